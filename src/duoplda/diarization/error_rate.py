"""Diarisation error rate: seconds of speech that were missed, invented or assigned to the wrong speaker.

At a given moment, r speakers of the reference and h speakers of the hypothesis speak. Speakers of the hypothesis are
mapped to those of the reference, and c of the r are such that their counterpart in the hypothesis speaks as well. Over
all time that is scored

    miss = int max(0, r - h),   false alarm = int max(0, h - r),   confusion = int min(r, h) - c,   total = int r,
    DER = (miss + false alarm + confusion) / total.

In each file the mapping is one to one, and it is the one with the largest int c. The integrals are exact sums over the
stretches between neighbouring boundaries of turns; time is not cut into frames.
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

ROUNDING = 1e-9  # seconds; start + duration + collar has an error of some 1e-11 within a day, and no turn is so short
MAX_CELLS = 1 << 26  # largest matrix of one file, of speakers by speakers or by stretches of time: 0.5 GB


class DiarizationErrors(NamedTuple):
    """Seconds of each kind of error, and of speech in the reference; where two people speak, time counts twice.

    `miss` is speech for which the hypothesis has no speaker, `false_alarm` is speech that only the hypothesis has, and
    `confusion` is speech that was assigned to the wrong speaker. If most errors are misses, look at the detection of
    speech, or at overlapped speech (`diarize` assigns it to two speakers only with `overlap`). If most are confusions,
    look at the clustering.

    >>> DiarizationErrors(miss=1.0, false_alarm=0.5, confusion=0.5, total=20.0).rate
    0.1
    """

    miss: float
    false_alarm: float
    confusion: float
    total: float
    files: Mapping[str, DiarizationErrors] = MappingProxyType({})  # the errors of each file; empty in these

    @property
    def rate(self) -> float:
        """The DER. If nobody speaks in the reference, it is infinite with false alarms, and NaN without.

        Other scorers treat this case differently: pyannote.metrics and dscore give 100 % and 0 %, and md-eval has no
        line for the file.
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
    """Diarisation error rate over all files (their seconds are added), and of each file (`files`).

    A rate can exceed 1. Rates with different collars cannot be compared, and neither can rates with and without
    overlapped speech: report both settings beside the number.

    Parameters
    ----------
    hypothesis, reference : turns; where turns of one speaker overlap, the time counts once. A file that only the
        reference has is missed as a whole. A file that only the hypothesis has is an error (`MissingIds`), unless it is
        in `regions`: then nobody speaks in it, and all its turns are false alarms
    collar : seconds before and after the start and the end of each turn of the reference that are not scored, as in
        NIST's md-eval. The `collar` of pyannote.metrics is the sum of both sides, twice this one. Overlapping turns of
        one speaker are one turn here; turns that only touch are two
    skip_overlap : leave out the time in which two or more speakers of the reference speak
    regions : the time that is scored, as in a UEM file; other time, and files without regions, are left out. Without
        regions all time is scored (md-eval stops at the last turn of the reference)

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
    hypothesis_rows = rows_by_name(hypothesis.file)
    reference_rows = rows_by_name(reference.file)
    region_rows = {} if regions is None else rows_by_name(regions.file)
    files = {}
    for name in names:
        area = None if regions is None else (regions.start[region_rows[name]], regions.end[region_rows[name]])
        turns = hypothesis[hypothesis_rows.get(name, nothing)], reference[reference_rows.get(name, nothing)]
        with error_prefix(f"file {printable(name)}"):
            files[name] = _file_errors(*turns, collar, skip_overlap, area)
    miss, false_alarm, confusion, total = np.sum([errors[:4] for errors in files.values()], axis=0).tolist()
    return DiarizationErrors(miss, false_alarm, confusion, total, files)


def _scored_files(hypothesis: Turns, reference: Turns, regions: Regions | None) -> list[str]:
    """The names of the files that are scored."""
    in_hypothesis = list(rows_by_name(hypothesis.file))
    in_reference = list(rows_by_name(reference.file))
    scored = in_reference if regions is None else list(rows_by_name(regions.file))
    known = {*in_reference, *scored}
    if unknown := [name for name in in_hypothesis if name not in known]:
        cause = f"{len(unknown)} files of the hypothesis are not in the reference: {some(unknown)}"
        raise MissingIds(f"{cause}; leave them out, or list them in the regions if nobody speaks in them")
    if not in_reference or not scored:
        empty = "regions are" if in_reference else "reference is"
        raise DuopldaError(f"the {empty} empty, so there is nothing to compare the hypothesis with")
    if not {*in_reference}.intersection(scored):
        raise DuopldaError(f"no file of the reference is in the regions, which are for {some(scored, 3)}")
    return scored


def _file_errors(
    hypothesis: Turns, reference: Turns, collar: float, skip_overlap: bool, area: tuple[Floats, Floats] | None
) -> DiarizationErrors:
    """The errors of one file; `area` has the starts and ends of the scored time, or is None if all is scored."""
    hypothesis_speech = _united(hypothesis)
    reference_speech = _united(reference)
    edges = np.concatenate(reference_speech[1:])
    near = (edges - collar, edges + collar) if collar else (edges[:0], edges[:0])
    area_ends = [] if area is None else list(area)
    times = np.unique(np.concatenate([*hypothesis_speech[1:], edges, *near, *area_ends]))
    R = _activity(reference_speech, times)  # (S, I) speakers by stretches between neighbouring times
    H = _activity(hypothesis_speech, times)
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
        raise DuopldaError(f"{R.shape[0]:,} and {H.shape[0]:,} speakers are too many to map to each other")
    together = (R.multiply(seconds) @ H.T).toarray()
    correct = float(together[linear_sum_assignment(together, maximize=True)].sum())
    miss, false_alarm = (float(np.maximum(0, d) @ seconds) for d in (r - h, h - r))
    confusion = max(0.0, float(np.minimum(r, h) @ seconds) - correct)
    return DiarizationErrors(miss, false_alarm, confusion, float(r @ seconds))


def _united(turns: Turns) -> Speech:
    """The turns of each speaker, with those that overlap united; turns that only touch stay apart.

    Turns without duration are left out.
    """
    spoken = turns[turns.end > turns.start]
    speaker = np.unique(spoken.speaker.codes, return_inverse=True)[1]
    order = np.lexsort((spoken.start, speaker))
    speaker = speaker[order]
    start = spoken.start[order]
    if not len(speaker):
        return speaker, start, start
    ends, rank = np.unique(spoken.end[order], return_inverse=True)
    reach = ends[np.maximum.accumulate(speaker * len(ends) + rank) % len(ends)]  # the latest end so far of this speaker
    first = np.concatenate(([True], (speaker[1:] != speaker[:-1]) | (start[1:] >= reach[:-1] - ROUNDING)))
    return speaker[first], start[first], reach[np.append(np.flatnonzero(first)[1:] - 1, len(speaker) - 1)]


def _activity(speech: Speech, times: Floats) -> csr_array:
    """(S, I) of 0 and 1: which speaker speaks in which of the I stretches between neighbouring `times`."""
    speaker, start, end = speech
    first = np.searchsorted(times, start)
    n = np.searchsorted(times, end) - first
    if n.sum() > MAX_CELLS:
        raise DuopldaError(f"too many turns overlap: {n.sum():,} pairs of a speaker and a stretch of time")
    stretch = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n) + np.repeat(first, n)
    shape = (int(speaker.max(initial=-1)) + 1, max(len(times) - 1, 0))
    activity = csr_array((np.ones(len(stretch), np.int64), (np.repeat(speaker, n), stretch)), shape)
    activity.sum_duplicates()
    activity.data[:] = 1  # turns that touch may overlap by a rounding error
    return activity


def _covered(times: Floats, start: Floats, end: Floats) -> NDArray[np.bool_]:
    """(I,) whether each of the stretches between neighbouring `times` lies in an interval."""
    opened, closed = (np.bincount(np.searchsorted(times, t), minlength=len(times)) for t in (start, end))
    return np.cumsum(opened - closed)[:-1] > 0
