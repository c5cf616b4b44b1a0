"""Local speakers: the speakers of one file, under names that hold in this file only, and their segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from duoplda.diarization.rttm import Turns, read_rttm
from duoplda.diarization.segments import Segments, rows_by_name
from duoplda.diarization.vbhmm import Floats
from duoplda.diarization.windows import new_share
from duoplda.errors import DuopldaError, some
from duoplda.io import Coded
from duoplda.io.common import PathLike

LocalSpeaker = tuple[str, str]  # a file, and the name of a speaker in it


def read_turns(paths: Sequence[PathLike]) -> Turns:
    """The turns of several RTTM files; no two of them may have turns of the same audio file."""
    parts = [read_rttm(path) for path in paths]
    read_from: dict[str, PathLike] = {}
    for path, part in zip(paths, parts, strict=True):
        files = part.file.names.tolist()
        repeated = [name for name in files if name in read_from]
        if repeated:
            cause = f"has turns of files that are in {read_from[repeated[0]]} as well: {some(repeated)}"
            raise DuopldaError(f"{path}: {cause}; give all turns of a file in one RTTM")
        read_from |= dict.fromkeys(files, path)
    columns = ([getattr(part, name) for part in parts] for name in ("file", "start", "duration", "speaker"))
    return Turns.of(*(np.concatenate([np.asarray(part) for part in column]) for column in columns))


def speakers_by_overlap(segments: Segments, turns: Turns) -> dict[str, LocalSpeaker]:
    """The speaker of each segment: the one whose turns overlap it for the longest time.

    Segments that no turn overlaps are left out.

    >>> segments = Segments(np.array(["s1", "s2"]), Coded.of(["f", "f"]), np.array([0.0, 5.0]), np.array([4.0, 6.0]))
    >>> speakers_by_overlap(segments, Turns.of(["f", "f"], [0.0, 1.0], [1.0, 2.0], ["ann", "bob"]))
    {'s1': ('f', 'bob')}
    """
    speakers: dict[str, LocalSpeaker] = {}
    turns_of = rows_by_name(turns.file)
    for file, rows in sorted(rows_by_name(segments.file).items()):
        spoken = turns_of.get(file, np.zeros(0, np.int64))
        longest = np.full(len(rows), 1e-9)  # seconds; with a shorter overlap, a segment and a turn only touch
        names = np.full(len(rows), "", object)
        for speaker, part in sorted(rows_by_name(turns.speaker[spoken]).items()):
            knots, seconds = _speech(turns.start[spoken[part]], turns.end[spoken[part]])
            until_start, until_end = (np.interp(t[rows], knots, seconds) for t in (segments.start, segments.end))
            overlap = until_end - until_start
            names[overlap > longest] = speaker
            longest = np.maximum(longest, overlap)
        speakers |= {str(segments.ids[row]): (file, name) for row, name in zip(rows, names, strict=True) if name}
    return speakers


def overlap_of_segments(segments: Segments) -> float:
    """The mean number of segments that contain a given second of speech; it is 1 if segments do not overlap."""
    length = segments.end - segments.start
    spoken = 0.0
    for rows in rows_by_name(segments.file).values():
        spoken += new_share(segments.start[rows], segments.end[rows]) * float(length[rows].sum())
    return float(length.sum()) / spoken


def renamed(turns: Turns, names: Mapping[LocalSpeaker, str]) -> tuple[Turns, list[LocalSpeaker]]:
    """The turns with new names of their speakers, and the speakers without a new name.

    Those without one get a name that is made of their file and their old name.
    """
    people = list(zip(turns.file.values.tolist(), turns.speaker.values.tolist(), strict=True))
    speakers = Coded.of([names.get(person) or "_".join(person) for person in people])
    return Turns(turns.file, turns.start, turns.duration, speakers), sorted({*people} - {*names})


def _speech(start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """The seconds of speech of one speaker up to a moment, as a piecewise linear function: its knots and values."""
    order = np.argsort(start, kind="stable")
    start = start[order]
    end = np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.append(True, start[1:] > end[:-1]))  # turns of one speaker may overlap
    start = start[first]
    end = end[np.append(first[1:], len(end)) - 1]
    seconds = np.repeat(np.append(0.0, np.cumsum(end - start)), 2)[1:-1]
    return np.stack([start, end], axis=1).ravel(), seconds
