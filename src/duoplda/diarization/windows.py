"""Windows of audio files: their embeddings, the share of their time that is new, and the turns that they join to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.arrays import Array, check_finite, check_rows, to_numpy
from duoplda.data import Recordings
from duoplda.data import labels as lab
from duoplda.diarization.rttm import Turns
from duoplda.diarization.segments import Segments, rows_by_name
from duoplda.diarization.vbhmm import Floats, Ints
from duoplda.errors import DuopldaError, MissingIds, some

OnMissing = Callable[[str, NDArray[Any]], object]  # gets what is missing, in words, and the ids


def new_share(start: ArrayLike, end: ArrayLike) -> float:
    """The seconds that the windows of a file cover, as a share of the seconds of all windows.

    >>> new_share([0.0, 0.5, 1.0, 9.0], [1.0, 1.5, 2.0, 10.0])
    0.75
    """
    order = np.argsort(start, kind="stable")
    start = np.asarray(start, np.float64)[order]
    end = np.asarray(end, np.float64)[order]
    covered_until = np.maximum.accumulate(np.append(start[:1], end[:-1]))
    return float(np.clip(end - np.maximum(start, covered_until), 0, None).sum() / (end - start).sum())


def rows_by_file(segments: Segments) -> Iterator[tuple[str, Ints]]:
    """Yield the name of each file and the rows of its segments in the order of time.

    Segments that lie within others are refused: their neighbours in time would not be their neighbours in the list.
    """
    for name, unordered in rows_by_name(segments.file).items():
        rows = unordered[np.lexsort((segments.end[unordered], segments.start[unordered]))]
        inside = np.flatnonzero(np.diff(segments.end[rows]) < 0)
        if len(inside):
            ids = some(segments.ids[rows[inside + 1]])
            raise DuopldaError(f"file {name}: segments lie within others: {ids}. Give windows of one length")
        yield name, rows


def as_turns(segments: Segments, speaker: ArrayLike) -> Turns:
    """The turns of segments whose speakers (n,) are known, file by file.

    Segments of one speaker that overlap or follow each other without a pause become one turn. Where turns of two
    speakers overlap, each gets half of the overlap, so that at most one speaker speaks at a time.

    >>> from duoplda.io import Coded
    >>> segments = Segments(np.array(["a", "b"]), Coded.of(["f", "f"]), np.array([0.0, 1.0]), np.array([2.0, 3.0]))
    >>> as_turns(segments, ["ann", "bob"]).end.tolist()
    [1.5, 3.0]
    """
    names = lab.as_ids(speaker, "speaker", len(segments)).astype(str)
    files: list[str] = []
    parts: list[tuple[Floats, Floats, NDArray[Any]]] = []
    for file, rows in rows_by_file(segments):
        parts.append(_joined(segments.start[rows], segments.end[rows], names[rows]))
        files += [file] * len(parts[-1][0])
    if not parts:
        return Turns.of([], [], [], [])
    start, end, who = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Turns.of(files, start, end - start, who)


def _joined(start: Floats, end: Floats, speaker: NDArray[Any]) -> tuple[Floats, Floats, NDArray[Any]]:
    """Start, end and speaker of the turns of one file's windows, which are in the order of time."""
    pause = 1e-6  # seconds; times in files are rounded to the microsecond, so a shorter gap is none
    new = np.flatnonzero((start[1:] - end[:-1] > pause) | (speaker[1:] != speaker[:-1])) + 1
    first = np.append(0, new)
    last = np.append(new - 1, len(start) - 1)
    start = start[first]
    end = end[last]
    both = np.flatnonzero(start[1:] < end[:-1])
    end[both] = start[both + 1] = (end[both] + start[both + 1]) / 2
    return start, end, speaker[first]


def embeddings_of(
    recordings: ArrayLike | Recordings, segments: Segments, absent: OnMissing | None = None
) -> tuple[Array, Ints]:
    """(n, d) the embeddings of segments, and the rows of those that have one; see `diarize` for the arguments."""
    n = len(segments)
    if not isinstance(recordings, Recordings):
        X = to_numpy(check_rows(recordings)[0])
        if len(X) != n:
            raise DuopldaError(f"{len(X)} embeddings for {n} segments: give one for each segment, or Recordings")
        check_finite(X)
        return X, np.arange(n)
    vectors, present, unlisted = _collected(recordings, segments.ids)
    for what, ids in (
        ("segments have no embedding", segments.ids[~present]),
        ("embeddings have no segment", unlisted),
    ):
        if len(ids) and absent is None:
            raise MissingIds(f"{len(ids)} {what}: {some(ids)}")
        if len(ids) and absent is not None:
            absent(what, ids)
    if vectors is None or not present.any():
        raise DuopldaError("no segment has an embedding: the ids of the two must be the same")
    bad = present & ~np.isfinite(vectors).all(axis=1)
    if bad.any():
        cause = f"the embeddings of {bad.sum()} segments have NaN or infinity in them"
        raise DuopldaError(f"{cause}: {some(segments.ids[bad])}")
    return vectors, np.flatnonzero(present)


def _collected(recordings: Recordings, ids: NDArray[Any]) -> tuple[Array | None, NDArray[np.bool_], NDArray[Any]]:
    """The vectors of recordings in the order of `ids`, which ids have one, and the ids of all other recordings."""
    n = len(ids)
    order = np.argsort(ids)
    present = np.zeros(n, bool)
    unlisted = [ids[:0]]
    X: NDArray[Any] | None = None
    for place, vectors, others in recordings.map(partial(_wanted, known=ids[order])):
        rows = order[place]
        repeated = present[rows] | (np.bincount(rows, minlength=n)[rows] > 1)
        if repeated.any():
            raise DuopldaError(f"two embeddings have the same id: {some(np.unique(ids[rows[repeated]]))}")
        X = np.zeros((n, vectors.shape[1]), vectors.dtype) if X is None else X
        X[rows] = vectors
        present[rows] = True
        unlisted.append(others)
    return X, present, np.concatenate(unlisted)


def _wanted(part: Recordings, known: NDArray[Any]) -> Iterator[tuple[Ints, NDArray[Any], NDArray[Any]]]:
    """Yield the places of recordings among known, sorted ids, their vectors, and the ids of the other recordings."""
    for chunk in part.chunks():
        if chunk.ids is None or chunk.ids.dtype.kind != "U":
            raise DuopldaError("the recordings have no ids, or numbers: they must have the ids of the segments")
        place = lab.places(chunk.ids, known)
        yield place[place >= 0], to_numpy(chunk.X)[place >= 0], chunk.ids[place < 0]
