"""Overlapped speech: finds the second speaker where two people speak, as VBx's pipelines do.

Each window is assigned to one speaker. A second one is assigned afterwards, where another tool says that two people
speak: by regions of overlap (here), or by a segmentation with several local speakers in each chunk of a file
(`duoplda.diarization.chunks`, as in pyannote's pipelines). Without either, the second speaker of overlapped speech is
missed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.diarization.rttm import Regions
from duoplda.diarization.segments import rows_by_name
from duoplda.diarization.vbhmm import Floats
from duoplda.diarization.windows import Diarization
from duoplda.io import Coded

LEAST = 0.01  # with a smaller posterior, the second most probable speaker of a turn is no more than chance


def second_speakers(turns: Diarization, regions: Regions) -> Diarization:
    """The turns, with a further turn of another speaker for each part of a turn that lies in a region of overlap.

    The other speaker is the second most probable one of the turn. If that one has a posterior below 1 %, it is the one
    who speaks closest in time, as in VBx's recipes. The posterior of the new turn is that of its speaker in the turn
    that it overlaps. The result is as good as the regions are: nothing checks here that two people speak in them.

    >>> from duoplda.diarization import Regions
    >>> columns = Coded.of(["f", "f"]), [0.0, 5.0], [5.0, 3.0], Coded.of(["ann", "bob"])
    >>> turns = Diarization(*columns, np.ones(2), Coded.of(["", ""]), np.zeros(2))
    >>> both = second_speakers(turns, Regions.of(["f"], [4.0], [5.5]))
    >>> list(zip(both.speaker.values.tolist(), both.start.tolist(), both.end.tolist()))
    [('ann', 0.0, 5.0), ('bob', 4.0, 5.0), ('bob', 5.0, 8.0), ('ann', 5.0, 5.5)]
    """
    rows: list[int] = []
    spans: list[tuple[float, float]] = []
    others: list[tuple[str, float]] = []
    turns_of = rows_by_name(turns.file)
    for file, overlaps in rows_by_name(regions.file).items():
        in_file = turns_of.get(file, np.zeros(0, np.int64))
        for start, end in _joined(regions.start[overlaps], regions.end[overlaps]):
            for row in in_file[(turns.start[in_file] < end) & (turns.end[in_file] > start)].tolist():
                begin = max(start, float(turns.start[row]))
                stop = min(end, float(turns.end[row]))
                other = _other(turns, in_file, row, (begin + stop) / 2)
                if other is not None:
                    rows.append(row)
                    spans.append((begin, stop))
                    others.append(other)
    if not rows:
        return turns
    return _with(turns, np.array(rows), np.array(spans), others)


def _joined(start: Floats, end: Floats) -> list[tuple[float, float]]:
    """The starts and ends of the regions of a file in order; those that overlap or touch become one region."""
    joined: list[tuple[float, float]] = []
    for a, b in sorted(zip(start.tolist(), end.tolist(), strict=True)):
        if joined and a <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(b, joined[-1][1])
        else:
            joined.append((a, b))
    return joined


def _other(turns: Diarization, in_file: NDArray[Any], row: int, moment: float) -> tuple[str, float] | None:
    """The other speaker of a turn and the posterior of this speaker; None if the file has one speaker only."""
    second = str(turns.second.values[row])
    if second and turns.second_posterior[row] >= LEAST:
        return second, float(turns.second_posterior[row])
    others = in_file[turns.speaker.codes[in_file] != turns.speaker.codes[row]]
    if not len(others):
        return None
    away = np.maximum(turns.start[others] - moment, moment - turns.end[others])
    name = str(turns.speaker.values[others[away.argmin()]])
    return name, float(turns.second_posterior[row]) if name == second else 0.0


def _with(turns: Diarization, rows: NDArray[Any], spans: Floats, others: list[tuple[str, float]]) -> Diarization:
    """The turns and those of second speakers, which overlap `rows`, in the order of files and times."""
    names = [name for name, _ in others]
    overlapped = turns[rows]
    order = np.lexsort(
        (
            np.append(np.zeros(len(turns)), np.ones(len(rows))),
            np.append(turns.start, spans[:, 0]),
            np.append(turns.file.codes, overlapped.file.codes),
        )
    )

    def both(a: Coded, b: list[str]) -> Coded:
        return Coded.of([*a.values.tolist(), *b])[order]

    voice = None
    voice_posterior = None
    if turns.voice is not None and turns.voice_posterior is not None:
        pairs = zip(turns.voice.values.tolist(), turns.voice_posterior.tolist(), strict=True)
        voice_of = dict(zip(turns.speaker.values.tolist(), pairs, strict=True))
        voices = [voice_of.get(name, ("", 0.0)) for name in names]
        voice = both(turns.voice, [name for name, _ in voices])
        voice_posterior = np.append(turns.voice_posterior, [p for _, p in voices])[order]
    return Diarization(
        both(turns.file, overlapped.file.values.tolist()),
        np.append(turns.start, spans[:, 0])[order],
        np.append(turns.duration, spans[:, 1] - spans[:, 0])[order],
        both(turns.speaker, names),
        np.append(turns.posterior, [p for _, p in others])[order],
        both(turns.second, overlapped.speaker.values.tolist()),
        np.append(turns.second_posterior, overlapped.posterior)[order],
        voice,
        voice_posterior,
    )
