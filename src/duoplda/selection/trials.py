"""Trials between the speakers of a fold, made from the sample of its recordings (`duoplda.model.sample`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest

import numpy as np
from numpy.typing import NDArray

from duoplda.data.labels import Ints, order_of
from duoplda.model.sample import Sample
from duoplda.selection.cost import Floats

Enrolment = tuple[tuple[int, int | None], ...]  # numbers of sessions, and of recordings of each; None: all
EnrolmentSet = tuple[int, list[int]]  # the index of its form in the enrolment, and its recordings in the sample

# From one recording to all recordings of three sessions, as it is not known what enrolments will look like.
DEFAULT_ENROLMENT: Enrolment = ((1, 1), (1, None), (3, 1), (3, 3), (3, None))
# Added where occasions are known: only large sets show what sessions of one occasion share.
LARGE_ENROLMENT: Enrolment = ((6, None), (12, None))


@dataclass(frozen=True, eq=False)
class FoldTrials:
    """Pairs of sets of recordings and test recordings of one fold."""

    row: Ints  # (r,) recordings of the sample that are enrolled
    side: Ints  # (r,) the set of each,
    session: Ints  # (r,) the session of each
    test: Ints  # (t,) recordings of the sample that are tests
    cells: NDArray[np.int32]  # (n,) set * t + test of each pair, targets first
    n_targets: int
    weight: Floats  # of the non-targets
    speaker: Ints  # (sets,) the speaker of each set, as a number from 0

    @property
    def pairs(self) -> Ints:
        """(n, 2) the set and the test of each pair."""
        return np.stack(np.divmod(self.cells, len(self.test)), axis=1)


def make_trials(
    sample: Sample | None,
    enrolment: Enrolment = DEFAULT_ENROLMENT,
    *,
    max_speakers: int = 1000,
    max_sides: int = 3000,
    max_tests: int = 25,
    max_patterns: int = 40,
) -> FoldTrials | None:
    """Trials of the speakers of a sample; None where there are no targets, or no non-targets.

    Half of the sessions of a speaker are enrolled, and the others are tests. Where occasions are known, trials are
    across occasions: each set has sessions of one occasion, and its targets are recordings of the speaker's other
    occasions. The numbers of sets, tests and patterns are bounded, so that scoring takes seconds for any number of
    speakers: of many speakers, each brings only some of its sets and tests, in turn.

    Parameters
    ----------
    max_speakers : the most speakers of a fold
    max_sides : the most sets of a fold, and the most tests
    max_tests : the most tests of a speaker; more of them would add little
    max_patterns : the most patterns of sets (numbers of recordings by kind in each session), as each pattern is scored
        by itself; of each form of enrolment the commonest are kept
    """
    if sample is None or not len(sample):
        return None
    if sample.occasion is not None and enrolment == DEFAULT_ENROLMENT:
        enrolment += LARGE_ENROLMENT
    kind = np.unique(sample.kind, return_inverse=True)[1].reshape(-1)
    kinds = kind.tolist()
    K = int(kind.max()) + 1
    _, session = np.unique(sample.session, return_inverse=True)
    first = np.flatnonzero(np.append(True, sample.speaker[1:] != sample.speaker[:-1]))
    speakers = np.split(np.arange(len(sample)), first[1:])[:max_speakers]
    share = max_sides // len(speakers)  # of a speaker
    sets: list[EnrolmentSet] = []
    set_speaker = []
    tests = []
    test_speaker = []
    for speaker, rows in enumerate(speakers):
        edges = [0, *(np.flatnonzero(np.diff(sample.session[rows])) + 1).tolist(), len(rows)]
        by_session = [rows[a:b].tolist() for a, b in pairwise(edges)]  # in order of hashes
        enrolled, others = _enrolled_and_tested(sample, rows, by_session)
        groups = [_enrolment_sets(sessions, kinds, K, enrolment) for sessions in enrolled]
        possible = [group for turn in zip_longest(*groups) for group in turn if group is not None]
        chosen = [possible[(speaker * share + i) % len(possible)] for i in range(min(share, len(possible)))]
        sets += chosen
        set_speaker += [speaker] * len(chosen)
        others = others[np.argsort(sample.recording[others])][: min(share, max_tests)]
        tests.append(others)
        test_speaker += [speaker] * len(others)
    if not sets:
        return None
    kept = _of_common_patterns(sets, kinds, session.tolist(), max(1, max_patterns // len(enrolment)))
    rows_of = [sets[i][1] for i in kept]
    test = np.concatenate(tests)
    same = np.array(set_speaker)[kept][:, None] == np.array(test_speaker)[None, :]
    other = ~same
    if sample.occasion is not None:
        same &= sample.occasion[[rows[0] for rows in rows_of]][:, None] != sample.occasion[test]
    targets, nontargets = (np.flatnonzero(which).astype(np.int32) for which in (same, other))
    if not len(targets) or not len(nontargets):
        return None
    row = np.array([row for rows in rows_of for row in rows])
    side = np.repeat(np.arange(len(rows_of)), [len(rows) for rows in rows_of])
    cells = np.concatenate([targets, nontargets])
    weight = np.ones(len(nontargets))
    speaker_of = np.array(set_speaker)[kept]
    return FoldTrials(row, side, session[row], test, cells, len(targets), weight, speaker_of)


def _enrolled_and_tested(sample: Sample, rows: Ints, by_session: list[list[int]]) -> tuple[list[list[list[int]]], Ints]:
    """The enrolled sessions of a speaker, in groups of those that may be in one set, and its test recordings."""
    if sample.occasion is None:
        half = len(by_session) // 2
        enrolled = sum(map(len, by_session[:half]))
        return [by_session[:half]] if half else [], rows[enrolled:]
    by_occasion: dict[int, list[list[int]]] = {}
    for session in by_session:
        by_occasion.setdefault(int(sample.occasion[session[0]]), []).append(session)
    groups = [by_occasion[name] for name in sorted(by_occasion)]
    return groups if len(groups) > 1 else [], rows


def select_nontargets(trials: FoldTrials, scores: Floats, n_kept: int) -> tuple[FoldTrials, Floats]:
    """Trials with `n_kept` of the non-targets: two thirds are the highest-scoring, the others a sample of the rest.

    The highest-scoring ones decide the errors; the sample has weights that make up for those left out. `scores` (n,)
    are those of all pairs under some model; those of the pairs that stay are returned, too.
    """
    n = len(trials.weight)
    if n <= n_kept:
        return trials, scores
    nontargets = scores[trials.n_targets :]
    low = float(nontargets.min())
    high = float(nontargets.max())
    # As integers of 48 bits, scores are sorted several times as fast.
    levels = ((nontargets - low) * (((1 << 48) - 1) / ((high - low) or 1.0))).astype(np.uint64)
    order = order_of(levels)
    n_top = 2 * n_kept // 3
    sparse = order[: n - n_top][_spread(n - n_top, n_kept - n_top)]  # from low and high scores alike
    chosen = np.concatenate([order[n - n_top :], sparse])
    weight = np.repeat([1.0, (n - n_top) / len(sparse)], [n_top, len(sparse)]) * (n_kept / n)
    kept = np.concatenate([np.arange(trials.n_targets), trials.n_targets + chosen])
    return replace(trials, cells=trials.cells[kept], weight=weight), scores[kept]


def _spread(n: int, n_kept: int) -> Ints:
    """At most `n_kept` numbers below n, spread evenly by the golden section.

    Where scores are equal, their order is that of the pairs, which repeats with each set: with a round step between the
    numbers, whole tests would be left out.
    """
    if n <= n_kept:
        return np.arange(n)
    step = int(n * 0.6180339887498949)
    while math.gcd(step, n) > 1:
        step += 1
    return np.sort(np.arange(n_kept) * step % n)


def _of_common_patterns(
    sets: Sequence[EnrolmentSet], kinds: Sequence[int], session: Sequence[int], n_patterns: int
) -> Ints:
    """Indices of the sets with the commonest patterns of their form: recordings by kind in each session."""
    members: dict[int, dict[tuple[tuple[int, ...], ...], list[int]]] = {}  # sets by form and pattern
    for i, (form, rows) in enumerate(sets):
        by_session: dict[int, list[int]] = {}
        for row in rows:
            by_session.setdefault(session[row], []).append(kinds[row])
        pattern = tuple(sorted(tuple(sorted(present)) for present in by_session.values()))
        members.setdefault(form, {}).setdefault(pattern, []).append(i)
    kept = [sorted(patterns.values(), key=len, reverse=True)[:n_patterns] for patterns in members.values()]
    return np.sort(np.concatenate([np.array(places) for form in kept for places in form]))


def _enrolment_sets(
    sessions: list[list[int]], kinds: list[int], K: int, enrolment: Enrolment, n_sets: int = 4, n_singles: int = 2
) -> list[EnrolmentSet]:
    """Sets of recordings of one speaker, of the forms in `enrolment` in turn.

    There are at most `n_sets` of each form, and at most `n_singles` single recordings of each kind. Kinds of channels
    are taken in the same few orders for all speakers, so that few patterns of sets have to be scored.
    """
    sets: list[tuple[int, int, list[int]]] = []  # turn, form, recordings
    for form, (n_sessions, n_recordings) in enumerate(enrolment):
        if (n_sessions, n_recordings) == (1, 1):
            recordings = [row for session in sessions for row in session]
            singles: list[int] = []
            for k in range(K):
                singles += [row for row in recordings if kinds[row] == k][:n_singles]
            sets += [(i, form, [row]) for i, row in enumerate(singles)]
            continue
        n = min(n_sessions, len(sessions))
        seen = set()
        for i in range(n_sets):
            rows = []
            for j in range(n):
                first = (2 * (i % 3) + (j if n_recordings == 1 else 0)) % K
                rows += _by_kind_in_turn(sessions[(i * n + j) % len(sessions)], kinds, first, K)[:n_recordings]
            if (key := tuple(sorted(rows))) not in seen:
                seen.add(key)
                sets.append((i, form, rows))
    return [(form, rows) for _, form, rows in sorted(sets, key=lambda entry: entry[:2])]


def _by_kind_in_turn(session: list[int], kinds: list[int], first: int, K: int) -> list[int]:
    """The recordings of a session: one of each kind, from kind `first` on, then a second one of each, and so on."""
    if K == 1:
        return session
    seen = [0] * K
    order = []
    for row in session:
        k = (kinds[row] - first) % K
        order.append((seen[k], k, row))
        seen[k] += 1
    return [row for _, _, row in sorted(order)]
