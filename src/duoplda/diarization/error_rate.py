"""Diarisation error rate: seconds of speech that were missed, invented or given to the wrong speaker.

At each moment let r reference speakers and h speakers of the hypothesis speak, and let c of the r be those to whom
speakers of the hypothesis that speak are mapped. Over all time that is scored

    miss = int max(0, r - h),   false alarm = int max(0, h - r),   confusion = int min(r, h) - c,   total = int r,
    DER = (miss + false alarm + confusion) / total.

In each file the mapping, of one speaker to one, is the one that makes int c the largest. The integrals are sums over
the stretches between all boundaries, without frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array

from duoplda.diarization.rttm import Regions, Turns
from duoplda.errors import DuopldaError, MissingIds, printable, some
from duoplda.evaluation.metrics import Booleans, Floats, Indices
from duoplda.io import Coded

TOUCH = 1e-9  # seconds; turns that overlap by less touch, as those whose ends were rounded do
MOST = 1 << 26  # pairs of speakers, or of a speaker and a stretch, of one file


class DiarizationErrors(NamedTuple):
    """Seconds of each error and of the reference's speech, where two who speak at a time count twice.

    >>> DiarizationErrors(miss=1.0, false_alarm=0.5, confusion=0.5, total=20.0).rate
    0.1
    """

    miss: float
    false_alarm: float
    confusion: float
    total: float
    files: Mapping[str, DiarizationErrors] = MappingProxyType({})  # each file's own errors; a file has no files

    @property
    def rate(self) -> float:
        """The DER; where nobody speaks in the reference, 0 without and infinite with false alarms."""
        errors = self.miss + self.false_alarm + self.confusion
        return errors / self.total if self.total else (float("inf") if errors else 0.0)


def der(
    hypothesis: Turns,
    reference: Turns,
    *,
    collar: float = 0.0,
    skip_overlap: bool = False,
    regions: Regions | None = None,
) -> DiarizationErrors:
    """Diarisation error rate, in all (times are added over the files) and in each file (`files`).

    Parameters
    ----------
    hypothesis, reference : turns; a speaker whose turns overlap is counted once. A file that only the reference
        has is missed as a whole. A file that only the hypothesis has is an error (`MissingIds`), unless `regions`
        name it: then nobody speaks in it, and all turns in it are false alarms
    collar : seconds before and after the start and the end of each turn of the reference that are not scored, as in
        NIST's md-eval; `collar` of pyannote.metrics is the sum of both sides, twice this one. Overlapping turns of one
        speaker are one turn here; turns that only touch are two
    skip_overlap : do not score where two or more speakers of the reference speak
    regions : what is scored, as a UEM file says; other time, and files without regions, are left out. Without
        regions all time is scored (md-eval alone stops at the last turn of the reference)

    Example
    -------
    >>> reference = Turns.of(["f", "f"], [0.0, 4.0], [4.0, 4.0], ["ann", "bob"])
    >>> found = der(Turns.of(["f", "f"], [0.0, 5.0], [5.0, 4.0], ["1", "2"]), reference)
    >>> found.miss, found.false_alarm, found.confusion, found.total, found.rate
    (0.0, 1.0, 1.0, 8.0, 0.25)
    """
    if not 0 <= collar < float("inf"):
        raise DuopldaError(f"collar={collar!r} must be a number of seconds, from 0 on")
    files = _files(hypothesis, reference, regions)
    columns = [_by_file(x.file, files) for x in (hypothesis, reference)]
    areas = _by_file(regions.file, files) if regions is not None else None
    found = {}
    for i, name in enumerate(files):
        ours = hypothesis[columns[0][i]]
        truth = reference[columns[1][i]]
        area = None if regions is None or areas is None else (regions.start[areas[i]], regions.end[areas[i]])
        try:
            found[name] = _file_errors(ours, truth, collar, skip_overlap, area)
        except DuopldaError as e:
            raise DuopldaError(f"file {printable(name)}: {e}") from None
    miss, false_alarm, confusion, total = np.sum([errors[:4] for errors in found.values()], axis=0).tolist()
    return DiarizationErrors(miss, false_alarm, confusion, total, found)


def _files(hypothesis: Turns, reference: Turns, regions: Regions | None) -> list[str]:
    """The names of the files that are scored."""
    ours, theirs = (_names(turns.file) for turns in (hypothesis, reference))
    scored = theirs if regions is None else _names(regions.file)
    known = {*theirs, *scored}
    if strange := [name for name in ours if name not in known]:
        cause = f"{len(strange)} files of the hypothesis that the reference does not have: {some(strange)}"
        raise MissingIds(f"{cause}; leave them out, or name them in the regions if nobody speaks in them")
    if not theirs or not scored:
        raise DuopldaError(f"the {'regions are' if theirs else 'reference is'} empty: there is nothing to compare with")
    if not {*theirs}.intersection(scored):
        raise DuopldaError(f"no file of the reference has regions, which name {some(scored, 3)}")
    return scored


def _names(column: Coded) -> list[str]:
    """The different values of a column, in the order of its names."""
    return column.names[np.unique(column.codes)].tolist()


def _by_file(column: Coded, files: list[str]) -> list[Indices]:
    """The rows of each file."""
    place = {name: i for i, name in enumerate(files)}
    codes = np.array([place.get(name, len(files)) for name in column.names.tolist()], np.intp)[column.codes]
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.searchsorted(codes[order], np.arange(1, len(files) + 1)))[:-1]


class _Speech(NamedTuple):
    """When each speaker of a file speaks; intervals of one speaker do not overlap, but may touch."""

    who: Indices
    start: Floats
    end: Floats


def _speech(turns: Turns) -> _Speech:
    """Unite the overlapping turns of each speaker; turns without duration are left out."""
    start = turns.start
    end = turns.end
    who = turns.speaker.codes
    keep = np.flatnonzero(end > start)
    who = np.unique(who[keep], return_inverse=True)[1]
    order = np.lexsort((start[keep], who))
    who = who[order]
    start = start[keep][order]
    end = end[keep][order]
    if not len(who):
        return _Speech(who, start, end)
    ends, rank = np.unique(end, return_inverse=True)
    reach = ends[np.maximum.accumulate(who * len(ends) + rank) % len(ends)]  # the latest end so far of this speaker
    first = np.concatenate(([True], (who[1:] != who[:-1]) | (start[1:] >= reach[:-1] - TOUCH)))
    return _Speech(who[first], start[first], reach[np.append(np.flatnonzero(first)[1:] - 1, len(who) - 1)])


def _file_errors(
    hypothesis: Turns, reference: Turns, collar: float, skip_overlap: bool, area: tuple[Floats, Floats] | None
) -> DiarizationErrors:
    """The errors of one file; `area` has the starts and ends of what is scored, None for everything."""
    ours = _speech(hypothesis)
    truth = _speech(reference)
    edges = np.concatenate((truth.start, truth.end))
    near = (edges - collar, edges + collar) if collar else (edges[:0], edges[:0])
    area_ends = [] if area is None else list(area)
    times = np.unique(np.concatenate([ours.start, ours.end, edges, *near, *area_ends]))
    seconds = np.diff(times)  # of the I stretches between neighbouring boundaries
    # (S, I) each
    R = _activity(truth, times)
    H = _activity(ours, times)
    r = R.sum(axis=0)
    h = H.sum(axis=0)
    scored = ~_covered(times, *near)
    if area is not None:
        scored &= _covered(times, *area)
    if skip_overlap:
        scored &= r < 2
    seconds = np.where(scored, seconds, 0.0)
    correct = _most_in_common(R, H, seconds)
    miss, false_alarm = (float(np.maximum(0, d) @ seconds) for d in (r - h, h - r))
    return DiarizationErrors(
        miss, false_alarm, max(0.0, float(np.minimum(r, h) @ seconds) - correct), float(r @ seconds)
    )


def _activity(speech: _Speech, times: Floats) -> csr_array:
    """Who speaks in which of the stretches between `times`, (S, I) of 0 and 1."""
    first = np.searchsorted(times, speech.start)
    last = np.searchsorted(times, speech.end)
    n = last - first
    if n.sum() > MOST:
        raise DuopldaError(f"too many turns overlap: {n.sum():,} pairs of a speaker and a stretch of time")
    stretch = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n) + np.repeat(first, n)
    shape = (int(speech.who.max(initial=-1)) + 1, max(len(times) - 1, 0))
    found = csr_array((np.ones(len(stretch), np.int64), (np.repeat(speech.who, n), stretch)), shape)
    found.sum_duplicates()
    found.data[:] = 1  # turns that touch may overlap by a rounding error
    return found


def _covered(times: Floats, start: Floats, end: Floats) -> Booleans:
    """Which of the stretches between `times` lie in some interval, (I,)."""
    opened, closed = (np.bincount(np.searchsorted(times, t), minlength=len(times)) for t in (start, end))
    return np.cumsum(opened - closed)[:-1] > 0


def _most_in_common(R: csr_array, H: csr_array, seconds: Floats) -> float:
    """The time that reference speakers share with the speakers mapped to them, at its largest."""
    if R.shape[0] * H.shape[0] > MOST:
        raise DuopldaError(f"{R.shape[0]:,} and {H.shape[0]:,} speakers are too many to be mapped to each other")
    together = (R.multiply(seconds) @ H.T).toarray()
    return float(together[linear_sum_assignment(together, maximize=True)].sum())
