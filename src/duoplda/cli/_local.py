"""The part of `link` that is about local speakers: which segments each of them has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from duoplda.cli._common import missing, say
from duoplda.errors import DuopldaError, some

if TYPE_CHECKING:
    from duoplda.diarization import Segments, Turns

TOUCH = 1e-9  # seconds; a segment and a turn that overlap by less only touch
Local = tuple[str, str]  # a file, and the name of a speaker in it


def joined(paths: Sequence[Path]) -> Turns:
    """The turns of several RTTM files, which must be about different files."""
    from duoplda.diarization import Turns, read_rttm

    parts = [read_rttm(path) for path in paths]
    seen: dict[str, Path] = {}
    for path, part in zip(paths, parts, strict=True):
        twice = [name for name in part.file.names.tolist() if name in seen]
        if twice:
            cause = f"has turns of files of which {seen[twice[0]]} has some too: {some(twice)}"
            raise DuopldaError(f"{path}: {cause}; give all turns of a file in one RTTM")
        seen |= dict.fromkeys(part.file.names.tolist(), path)
    columns = ([getattr(part, name) for part in parts] for name in ("file", "start", "duration", "speaker"))
    return Turns.of(*(np.concatenate([np.asarray(column) for column in one]) for one in columns))


def by_overlap(segments: Segments, turns: Turns) -> dict[str, Local]:
    """The speaker of each segment: the one whose turns overlap it for the longest time; none where no turn does."""
    found: dict[str, Local] = {}
    spoken = _groups(turns.file.values)
    for file, rows in _groups(segments.file.values).items():
        own = spoken.get(file, np.zeros(0, np.int64))
        best = np.full(len(rows), TOUCH)
        who = np.full(len(rows), "", object)
        for speaker, of in sorted(_groups(turns.speaker.values[own]).items()):
            knots, seconds = _speech(turns.start[own[of]], turns.end[own[of]])
            ends = (np.interp(times[rows], knots, seconds) for times in (segments.start, segments.end))
            overlap = -np.subtract(*ends)
            who[overlap > best] = speaker
            best = np.maximum(best, overlap)
        found |= {str(segments.ids[row]): (file, name) for row, name in zip(rows, who, strict=True) if name}
    if len(found) < len(segments):
        say(f"{len(segments) - len(found):,} segments overlap no turn, and are not used")
    return found


def density(segments: Segments) -> float:
    """In how many segments a second of speech is, on average: 1 where they do not overlap."""
    spoken = 0.0
    for rows in _groups(segments.file.values).values():
        spoken += float(_speech(segments.start[rows], segments.end[rows])[1][-1])
    return float((segments.end - segments.start).sum()) / spoken


def _groups(values: Any) -> dict[str, Any]:
    """Rows of each value."""
    names, codes = np.unique(values, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    rows = np.split(order, np.searchsorted(codes[order], np.arange(1, len(names))))
    return dict(zip(names.tolist(), rows, strict=True)) if len(names) else {}


def _speech(start: Any, end: Any) -> tuple[Any, Any]:
    """Knots of the seconds that somebody has spoken up to a moment, which are linear between them."""
    order = np.argsort(start, kind="stable")
    start = start[order]
    end = np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.append(True, start[1:] > end[:-1]))  # turns of one speaker may overlap
    start = start[first]
    end = end[np.append(first[1:], len(end)) - 1]
    seconds = np.repeat(np.append(0.0, np.cumsum(end - start)), 2)[1:-1]
    return np.stack([start, end], axis=1).ravel(), seconds


def by_list(path: Path, segments: Segments | None, allow_missing: bool) -> dict[str, Local]:
    """The speakers of a list; their names count within a file, if segments say which file that is."""
    from duoplda.io import read_partition

    names = read_partition(path, "speaker")
    if segments is None:
        return {recording: ("", name) for recording, name in names.items()}
    file = dict(zip(segments.ids.tolist(), segments.file.values.tolist(), strict=True))
    missing(f"recordings of {path} are not among the segments", [i for i in names if i not in file], allow_missing)
    return {recording: (file[recording], name) for recording, name in names.items() if recording in file}


def within(people: Sequence[Local], rows: Iterable[int]) -> list[tuple[int, int]]:
    """Pairs of those local speakers, among some rows, who are of one file."""
    of: dict[str, list[int]] = {}
    for row in rows:
        of.setdefault(people[row][0], []).append(row)
    return [pair for own in of.values() for pair in combinations(own, 2)]
