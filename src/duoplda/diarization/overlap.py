"""Overlapped speech: who else speaks where two people do, as VBx's and pyannote's pipelines assign it.

Each window goes to one speaker, so that a second one has to be assigned afterwards, where something else says that two
people speak: regions of overlap (here), or a segmentation with several local speakers in each chunk of a file
(`duoplda.diarization.chunks`). Where neither is given, the second speaker of overlapped speech is missed.
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

LEAST = 0.01  # of the posterior of a turn, for its second speaker to be more than chance


def second_speakers(turns: Diarization, regions: Regions) -> Diarization:
    """The turns, and one of another speaker for the part of each of them that lies in a region of overlap.

    The other speaker is the second most probable one of the turn, and where that one has less than 1 %, the one who
    speaks closest in time, as VBx's recipes have it. The posterior of the new turn is that of the second speaker.

    >>> from duoplda.diarization import Regions
    >>> columns = Coded.of(["f", "f"]), [0.0, 5.0], [5.0, 3.0], Coded.of(["ann", "bob"])
    >>> found = Diarization(*columns, np.ones(2), Coded.of(["", ""]), np.zeros(2))
    >>> both = second_speakers(found, Regions.of(["f"], [4.0], [5.5]))
    >>> list(zip(both.speaker.values.tolist(), both.start.tolist(), both.end.tolist()))
    [('ann', 0.0, 5.0), ('bob', 4.0, 5.0), ('bob', 5.0, 8.0), ('ann', 5.0, 5.5)]
    """
    rows: list[int] = []
    spans: list[tuple[float, float]] = []
    others: list[tuple[str, float]] = []
    files = rows_by_name(turns.file)
    for file, overlaps in rows_by_name(regions.file).items():
        own = files.get(file, np.zeros(0, np.int64))
        for start, end in _joined(regions.start[overlaps], regions.end[overlaps]):
            for row in own[(turns.start[own] < end) & (turns.end[own] > start)].tolist():
                begin = max(start, float(turns.start[row]))
                stop = min(end, float(turns.end[row]))
                other = _other(turns, own, row, (begin + stop) / 2)
                if other is not None:
                    rows.append(row)
                    spans.append((begin, stop))
                    others.append(other)
    if not rows:
        return turns
    return _with(turns, np.array(rows), np.array(spans), others)


def _joined(start: Floats, end: Floats) -> list[tuple[float, float]]:
    """Regions that overlap as one."""
    joined: list[tuple[float, float]] = []
    for a, b in sorted(zip(start.tolist(), end.tolist(), strict=True)):
        if joined and a <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(b, joined[-1][1])
        else:
            joined.append((a, b))
    return joined


def _other(turns: Diarization, own: NDArray[Any], row: int, moment: float) -> tuple[str, float] | None:
    """Who else speaks in a turn, and the posterior of that; None where the file has one speaker."""
    second = str(turns.second.values[row])
    if second and turns.second_posterior[row] >= LEAST:
        return second, float(turns.second_posterior[row])
    others = own[turns.speaker.codes[own] != turns.speaker.codes[row]]
    if not len(others):
        return None
    away = np.maximum(turns.start[others] - moment, moment - turns.end[others])
    name = str(turns.speaker.values[others[away.argmin()]])
    return name, float(turns.second_posterior[row]) if name == second else 0.0


def _with(turns: Diarization, rows: NDArray[Any], spans: Floats, others: list[tuple[str, float]]) -> Diarization:
    """The turns, and others of second speakers, in the order of files and times."""
    names = [name for name, _ in others]
    mine = turns[rows]
    order = np.lexsort(
        (
            np.append(np.zeros(len(turns)), np.ones(len(rows))),
            np.append(turns.start, spans[:, 0]),
            np.append(turns.file.codes, mine.file.codes),
        )
    )

    def both(a: Coded, b: list[str]) -> Coded:
        return Coded.of([*a.values.tolist(), *b])[order]

    voice = None
    voice_posterior = None
    if turns.voice is not None and turns.voice_posterior is not None:
        pairs = zip(turns.voice.values.tolist(), turns.voice_posterior.tolist(), strict=True)
        of = dict(zip(turns.speaker.values.tolist(), pairs, strict=True))
        known = [of.get(name, ("", 0.0)) for name in names]
        voice = both(turns.voice, [name for name, _ in known])
        voice_posterior = np.append(turns.voice_posterior, [p for _, p in known])[order]
    return Diarization(
        both(turns.file, mine.file.values.tolist()),
        np.append(turns.start, spans[:, 0])[order],
        np.append(turns.duration, spans[:, 1] - spans[:, 0])[order],
        both(turns.speaker, names),
        np.append(turns.posterior, [p for _, p in others])[order],
        both(turns.second, mine.speaker.values.tolist()),
        np.append(turns.second_posterior, mine.posterior)[order],
        voice,
        voice_posterior,
    )
