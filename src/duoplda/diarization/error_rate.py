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
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array

from duoplda.diarization.rttm import Regions, Turns
from duoplda.diarization.segments import rows_by_name
from duoplda.diarization.vbhmm import Floats, Ints
from duoplda.errors import DuopldaError, MissingIds, error_prefix, printable, some

Speech = tuple[Ints, Floats, Floats]  # speaker, start and end of intervals in which one speaker speaks

ROUNDING = 1e-9  # seconds; start + duration + collar is exact to some 1e-11 in a day, and no turn is so short
MAX_CELLS = 1 << 26  # of the matrices of one file, speakers by speakers or by stretches of time: 0.5 GB each


class DiarizationErrors(NamedTuple):
    """Seconds of each kind of error, and of the reference's speech, where two who speak at a time count twice.

    `miss` is speech that no speaker of the hypothesis has, `false_alarm` what the hypothesis has beyond the speech of
    the reference, `confusion` speech that was given to another speaker. A high miss rate points at the detection of
    speech (or at overlapped speech, which `diarize` gives to two speakers only with `overlap`), a high confusion at the
    clustering.

    >>> DiarizationErrors(miss=1.0, false_alarm=0.5, confusion=0.5, total=20.0).rate
    0.1
    """

    miss: float
    false_alarm: float
    confusion: float
    total: float
    files: Mapping[str, DiarizationErrors] = MappingProxyType({})  # the errors of each file; a file's have none

    @property
    def rate(self) -> float:
        """The DER; where nobody speaks in the reference it is infinite with false alarms, else NaN: nothing is scored.

        Other scorers differ: pyannote.metrics and dscore give 100 % and 0 %, and md-eval has no line for the file.
        """
        errors = self.miss + self.false_alarm + self.confusion
        return errors / self.total if self.total else float("inf" if errors else "nan")


def der(
    hypothesis: Turns,
    reference: Turns,
    *,
    collar: float = 0.0,
    skip_overlap: bool = False,
    regions: Regions | None = None,
) -> DiarizationErrors:
    """Diarisation error rate, in all (times are added over the files) and in each file (`files`).

    A rate can exceed 1. Rates with different collars, or with and without overlapped speech, are not comparable: say
    both beside the number.

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
    >>> errors = der(Turns.of(["f", "f"], [0.0, 5.0], [5.0, 4.0], ["1", "2"]), reference)
    >>> errors.miss, errors.false_alarm, errors.confusion, errors.total, errors.rate
    (0.0, 1.0, 1.0, 8.0, 0.25)
    """
    if not 0 <= collar < float("inf"):
        raise DuopldaError(f"collar={collar!r} must be a number of seconds, from 0 on")
    names = _scored_files(hypothesis, reference, regions)
    nothing = np.empty(0, np.int64)
    ours = rows_by_name(hypothesis.file)
    theirs = rows_by_name(reference.file)
    areas = {} if regions is None else rows_by_name(regions.file)
    files = {}
    for name in names:
        area = None if regions is None else (regions.start[areas[name]], regions.end[areas[name]])
        turns = hypothesis[ours.get(name, nothing)], reference[theirs.get(name, nothing)]
        with error_prefix(f"file {printable(name)}"):
            files[name] = _file_errors(*turns, collar, skip_overlap, area)
    miss, false_alarm, confusion, total = np.sum([errors[:4] for errors in files.values()], axis=0).tolist()
    return DiarizationErrors(miss, false_alarm, confusion, total, files)


def _scored_files(hypothesis: Turns, reference: Turns, regions: Regions | None) -> list[str]:
    """The names of the files that are scored."""
    ours = list(rows_by_name(hypothesis.file))
    theirs = list(rows_by_name(reference.file))
    scored = theirs if regions is None else list(rows_by_name(regions.file))
    known = {*theirs, *scored}
    if unknown := [name for name in ours if name not in known]:
        cause = f"{len(unknown)} files of the hypothesis that the reference does not have: {some(unknown)}"
        raise MissingIds(f"{cause}; leave them out, or name them in the regions if nobody speaks in them")
    if not theirs or not scored:
        raise DuopldaError(f"the {'regions are' if theirs else 'reference is'} empty: there is nothing to compare with")
    if not {*theirs}.intersection(scored):
        raise DuopldaError(f"no file of the reference has regions, which name {some(scored, 3)}")
    return scored


def _file_errors(
    hypothesis: Turns, reference: Turns, collar: float, skip_overlap: bool, area: tuple[Floats, Floats] | None
) -> DiarizationErrors:
    """The errors of one file; `area` has the starts and ends of what is scored, None for everything."""
    ours = _united(hypothesis)
    truth = _united(reference)
    edges = np.concatenate(truth[1:])
    near = (edges - collar, edges + collar) if collar else (edges[:0], edges[:0])
    area_ends = [] if area is None else list(area)
    times = np.unique(np.concatenate([*ours[1:], edges, *near, *area_ends]))
    R = _activity(truth, times)  # (S, I) speakers by stretches between neighbouring times
    H = _activity(ours, times)
    r = R.sum(axis=0)
    h = H.sum(axis=0)
    scored = ~_covered(times, *near)
    if area is not None:
        scored &= _covered(times, *area)
    if skip_overlap:
        scored &= r < 2
    seconds = np.diff(times)
    seconds[~scored | (seconds < ROUNDING)] = 0.0
    if R.shape[0] * H.shape[0] > MAX_CELLS:
        raise DuopldaError(f"{R.shape[0]:,} and {H.shape[0]:,} speakers are too many to be mapped to each other")
    together = (R.multiply(seconds) @ H.T).toarray()
    correct = float(together[linear_sum_assignment(together, maximize=True)].sum())
    miss, false_alarm = (float(np.maximum(0, d) @ seconds) for d in (r - h, h - r))
    confusion = max(0.0, float(np.minimum(r, h) @ seconds) - correct)
    return DiarizationErrors(miss, false_alarm, confusion, float(r @ seconds))


def _united(turns: Turns) -> Speech:
    """Unite the overlapping turns of each speaker; turns without duration are left out, and turns that touch stay."""
    spoken = turns[turns.end > turns.start]
    who = np.unique(spoken.speaker.codes, return_inverse=True)[1]
    order = np.lexsort((spoken.start, who))
    who = who[order]
    start = spoken.start[order]
    if not len(who):
        return who, start, start
    ends, rank = np.unique(spoken.end[order], return_inverse=True)
    reach = ends[np.maximum.accumulate(who * len(ends) + rank) % len(ends)]  # the latest end so far of this speaker
    first = np.concatenate(([True], (who[1:] != who[:-1]) | (start[1:] >= reach[:-1] - ROUNDING)))
    return who[first], start[first], reach[np.append(np.flatnonzero(first)[1:] - 1, len(who) - 1)]


def _activity(speech: Speech, times: Floats) -> csr_array:
    """Who speaks in which of the stretches between `times`, (S, I) of 0 and 1."""
    who, start, end = speech
    first = np.searchsorted(times, start)
    n = np.searchsorted(times, end) - first
    if n.sum() > MAX_CELLS:
        raise DuopldaError(f"too many turns overlap: {n.sum():,} pairs of a speaker and a stretch of time")
    stretch = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n) + np.repeat(first, n)
    shape = (int(who.max(initial=-1)) + 1, max(len(times) - 1, 0))
    activity = csr_array((np.ones(len(stretch), np.int64), (np.repeat(who, n), stretch)), shape)
    activity.sum_duplicates()
    activity.data[:] = 1  # turns that touch may overlap by a rounding error
    return activity


def _covered(times: Floats, start: Floats, end: Floats) -> NDArray[np.bool_]:
    """Which of the stretches between `times` lie in some interval, (I,)."""
    opened, closed = (np.bincount(np.searchsorted(times, t), minlength=len(times)) for t in (start, end))
    return np.cumsum(opened - closed)[:-1] > 0
