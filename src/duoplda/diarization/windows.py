"""Windows of audio files: their embeddings, the share of their time that is new, and the turns that they form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from duoplda.io import Coded

PAUSE = 1e-6  # seconds; times in files are rounded to the microsecond, so a shorter gap is a rounding error
OnMissing = Callable[[NDArray[Any]], object]  # a function that receives the ids of what is missing


@dataclass(frozen=True, eq=False)
class Diarization(Turns):
    """Turns with the probabilities of their speakers, the result of `diarize`.

    The posterior of a turn is the probability that its speaker speaks, averaged over its windows. It is a probability
    within the model, and too large where the model does not fit the recording: use it to decide which turns to check
    first, and not as the share of turns that are right.

    >>> diarization = Diarization(
    ...     Coded.of(["f"]), [0.0], [2.5], Coded.of(["ann"]), np.array([0.8]), Coded.of(["bob"]), np.array([0.2])
    ... )
    >>> diarization.end.tolist(), diarization.posterior.tolist(), diarization.second.values.tolist()
    ([2.5], [0.8], ['bob'])
    """

    posterior: np.ndarray  # (n,) the probability of the speaker of each turn
    second: Coded  # the most probable other speaker of the file; "" if there is none
    second_posterior: np.ndarray  # (n,) the probability of that one; 0 if there is none
    voice: Coded | None = None  # the most probable known voice of the speaker; None: no voices were given
    voice_posterior: np.ndarray | None = None  # (n,) the probability that the speaker is this voice

    def __getitem__(self, rows: slice | np.ndarray) -> Diarization:
        """Return some of the turns."""
        turns = super().__getitem__(rows)
        confidence = self.posterior[rows], self.second[rows], self.second_posterior[rows]
        voice = None if self.voice is None else self.voice[rows]
        voice_posterior = None if self.voice_posterior is None else self.voice_posterior[rows]
        columns = turns.file, turns.start, turns.duration, turns.speaker
        return Diarization(*columns, *confidence, voice, voice_posterior)


def new_share(start: ArrayLike, end: ArrayLike) -> float:
    """The time that the windows of a file cover, as a share of the sum of their lengths.

    It is 1 if windows do not overlap, and about hop / length if they overlap regularly.

    >>> new_share([0.0, 0.5, 1.0, 9.0], [1.0, 1.5, 2.0, 10.0])
    0.75
    """
    order = np.argsort(start, kind="stable")
    start = np.asarray(start, np.float64)[order]
    end = np.asarray(end, np.float64)[order]
    covered_until = np.maximum.accumulate(np.append(start[:1], end[:-1]))
    return float(np.clip(end - np.maximum(start, covered_until), 0, None).sum() / (end - start).sum())


def correlation_of_neighbours(rows: Floats, start: Floats, end: Floats) -> tuple[float, float, float]:
    """How much alike the vectors of neighbouring windows are that overlap by half or more.

    Windows that share a part of their time share about the same part of all that varies in a file: the speaker, the
    words and the noise. `examples/diarization.py` prints the correlation for real conversations and speakers alone. In
    a wrong order it is near 0.

    Parameters
    ----------
    rows : (T, d) the vectors of a file's windows, in the order of time
    start, end : (T,) of the windows, in seconds

    Returns
    -------
    the correlation about the mean of the file; the share of time that such neighbours have in common; and the standard
    deviation of the correlation if windows were independent. All are NaN if no neighbours overlap by half or more.

    >>> shared, start = np.random.default_rng(0).normal(size=(101, 20)), np.arange(100.0)
    >>> [round(value, 2) for value in correlation_of_neighbours(shared[1:] + shared[:-1], start, start + 2)]
    [0.49, 0.5, 0.02]
    """
    length = end - start
    overlap = np.maximum(end[:-1] - start[1:], 0.0) / np.minimum(length[:-1], length[1:])
    first = np.flatnonzero(overlap >= 0.5)
    centred = rows - rows.mean(axis=0)
    variance = np.einsum("td,td->d", centred, centred) / len(rows)  # without a copy of a long file
    if not len(first) or not variance.any():
        return np.nan, np.nan, np.nan
    covariance = np.einsum("td,td->t", centred[:-1], centred[1:])[first].mean()
    n_directions = variance.sum() ** 2 / (variance**2).sum()  # as many as if all varied alike
    deviation = 1 / np.sqrt(len(first) * n_directions)
    return float(covariance / variance.sum()), float(overlap[first].mean()), float(deviation)


def runs(start: Floats, end: Floats, size: int) -> Ints:
    """(T,) the run of each window, 0, 1, ...

    A run has `size` windows that follow each other without a pause, or fewer before a pause.

    >>> runs(np.array([0.0, 1.0, 2.0, 9.0]), np.array([2.0, 3.0, 4.0, 11.0]), 2).tolist()
    [0, 0, 1, 2]
    """
    begins = np.append(True, start[1:] - end[:-1] > PAUSE)
    place = np.arange(len(start)) - np.maximum.accumulate(np.where(begins, np.arange(len(start)), 0))
    return np.cumsum(place % size == 0) - 1


def turn_starts(start: Floats, end: Floats, speaker: NDArray[Any]) -> Ints:
    """The rows of the windows, which are in the order of time, at which turns begin."""
    return np.append(0, np.flatnonzero((start[1:] - end[:-1] > PAUSE) | (speaker[1:] != speaker[:-1])) + 1)


def rows_by_file(segments: Segments) -> Iterator[tuple[str, Ints]]:
    """Yield the name of each file and the rows of its segments in the order of time.

    Segments that lie within others are refused: turns are formed from neighbouring windows, whose starts and ends must
    both be in the order of time.
    """
    for name, unordered in rows_by_name(segments.file).items():
        rows = unordered[np.lexsort((segments.end[unordered], segments.start[unordered]))]
        inside = np.flatnonzero(np.diff(segments.end[rows]) < 0)
        if len(inside):
            ids = some(segments.ids[rows[inside + 1]])
            raise DuopldaError(f"file {name}: segments lie within others: {ids}; give windows of one length")
        yield name, rows


def as_turns(segments: Segments, speaker: ArrayLike) -> Turns:
    """The turns of segments whose speakers (n,) are known.

    Segments of one speaker that overlap, or follow each other without a pause, become one turn. Where segments of two
    speakers overlap, each speaker gets half of the overlap, so at most one person speaks at a time. If people do speak
    at the same time, use `diarize_chunks`, or give `diarize` the regions of overlap.

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
    start, end, names_of_turns = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Turns.of(files, start, end - start, names_of_turns)


def with_confidence(
    segments: Segments,
    speaker: NDArray[Any],
    posteriors: dict[str, tuple[NDArray[Any], Floats]],
    voices: dict[str, tuple[str, float]] | None = None,
) -> Diarization:
    """The turns of segments, with the probabilities of their speakers.

    Parameters
    ----------
    segments, speaker : as for `as_turns`
    posteriors : file -> the names (S,) of its speakers, and their probabilities (T, S) in its windows, in the order of
        time. If linking has given several speakers one name, their probabilities are added
    voices : name of a speaker -> the most probable known voice of this speaker, and its probability

    Example
    -------
    >>> segments = Segments(np.array(["a", "b"]), Coded.of(["f", "f"]), np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    >>> gamma = {"f": (np.array(["ann", "bob"]), np.array([[0.9, 0.1], [0.7, 0.3]]))}
    >>> with_confidence(segments, np.array(["ann", "ann"]), gamma).posterior.round(6).tolist()
    [0.8]
    """
    turns = as_turns(segments, speaker)
    posterior: list[Floats] = []
    second: list[str] = []
    second_posterior: list[Floats] = []
    for file, rows in rows_by_file(segments):
        names, column = np.unique(posteriors[file][0], return_inverse=True)
        gamma = posteriors[file][1] @ np.eye(len(names))[column]  # (T, people)
        first = turn_starts(segments.start[rows], segments.end[rows], speaker[rows])
        mean = np.add.reduceat(gamma, first, axis=0) / np.diff(np.append(first, len(rows)))[:, None]
        turn = np.arange(len(first))
        speaker_column = np.searchsorted(names, speaker[rows[first]])
        posterior.append(mean[turn, speaker_column])
        mean[turn, speaker_column] = -1  # so that the largest of the row is that of another speaker, if there is one
        other = mean.argmax(axis=1)
        second += names[other].tolist() if len(names) > 1 else [""] * len(first)
        second_posterior.append(np.maximum(mean[turn, other], 0))
    confidence = np.concatenate(posterior), Coded.of(second), np.concatenate(second_posterior)
    if voices is None:
        return Diarization(turns.file, turns.start, turns.duration, turns.speaker, *confidence)
    voice, probability = zip(*(voices[name] for name in turns.speaker.values.tolist()), strict=True)
    known = Coded.of(voice), np.array(probability)
    return Diarization(turns.file, turns.start, turns.duration, turns.speaker, *confidence, *known)


def _joined(start: Floats, end: Floats, speaker: NDArray[Any]) -> tuple[Floats, Floats, NDArray[Any]]:
    """The starts, ends and speakers of the turns of one file, whose windows are in the order of time."""
    first = turn_starts(start, end, speaker)
    last = np.append(first[1:] - 1, len(start) - 1)
    start = start[first]
    end = end[last]
    both = np.flatnonzero(start[1:] < end[:-1])
    end[both] = start[both + 1] = (end[both] + start[both + 1]) / 2
    return start, end, speaker[first]


def embeddings_of(
    recordings: ArrayLike | Recordings,
    segments: Segments,
    absent: OnMissing | None = None,
    unlisted: OnMissing | None = None,
) -> tuple[Array, Ints]:
    """(n, d) the embeddings of segments, and the rows of the segments that have one; arguments are as for `diarize`."""
    n = len(segments)
    if not isinstance(recordings, Recordings):
        X = to_numpy(check_rows(recordings)[0])
        if len(X) != n:
            raise DuopldaError(f"{len(X)} embeddings for {n} segments: give one for each segment, or `Recordings`")
        check_finite(X)
        return X, np.arange(n)
    vectors, present, others = _collected(recordings, segments.ids)
    for what, ids, left_out in (
        ("segments have no embedding", segments.ids[~present], absent),
        ("embeddings have no segment", others, unlisted),
    ):
        if len(ids) and left_out is None:
            raise MissingIds(f"{len(ids)} {what}: {some(ids)}")
        if len(ids) and left_out is not None:
            left_out(ids)
    if vectors is None or not present.any():
        raise DuopldaError("no segment has an embedding: segments and embeddings must have the same ids")
    bad = present & ~np.isfinite(vectors).all(axis=1)
    if bad.any():
        cause = f"the embeddings of {bad.sum()} segments have NaN or infinity in them: {some(segments.ids[bad])}"
        raise DuopldaError(f"{cause}; remove these segments, or compute their embeddings again")
    return vectors, np.flatnonzero(present)


def _collected(recordings: Recordings, ids: NDArray[Any]) -> tuple[Array | None, NDArray[np.bool_], NDArray[Any]]:
    """The vectors of recordings in the order of `ids`, whether each id has one, and the ids of other recordings."""
    n = len(ids)
    order = np.argsort(ids)
    present = np.zeros(n, bool)
    unlisted = [ids[:0]]
    X: NDArray[Any] | None = None
    for place, vectors, others in recordings.map(partial(_wanted, known=ids[order])):
        rows = order[place]
        repeated = present[rows] | (np.bincount(rows, minlength=n)[rows] > 1)
        if repeated.any():
            cause = f"two embeddings have the same id: {some(np.unique(ids[rows[repeated]]))}"
            raise DuopldaError(f"{cause}; ids must differ")
        X = np.zeros((n, vectors.shape[1]), vectors.dtype) if X is None else X
        X[rows] = vectors
        present[rows] = True
        unlisted.append(others)
    return X, present, np.concatenate(unlisted)


def _wanted(part: Recordings, known: NDArray[Any]) -> Iterator[tuple[Ints, NDArray[Any], NDArray[Any]]]:
    """Yield the places of recordings among sorted ids, their vectors, and the ids of recordings not among them."""
    for chunk in part.chunks():
        if chunk.ids is None or chunk.ids.dtype.kind != "U":
            raise DuopldaError("the recordings have no ids, or numbers as ids: they must have the ids of the segments")
        place = lab.places(chunk.ids, known)
        yield place[place >= 0], to_numpy(chunk.X)[place >= 0], chunk.ids[place < 0]
