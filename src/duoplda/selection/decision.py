"""The cost of held-out trials, and what it chooses: shrinkage, two scales, a calibration, numbers of factors.

Held-out likelihood mostly measures how recordings of one speaker scatter; what a user decides about is trials. For the
speakers of each fold, whom the fold's model has not seen, half of the sessions enrol and the other half test. With

    C_pi(s) = pi mean_tar log2(1 + e^-(s + logit pi)) + (1 - pi) mean_non log2(1 + e^(s + logit pi))

and H(pi) the entropy of the prior, so that a system without information costs 1, the cost of a change `theta` is

    J(theta) = min over (a, b) of  mean over pi of C_pi(a LLR_theta + b) / H(pi)

Parameters are the shrinkages (`duoplda.model.shrinkage`), as logits, and the logs of two scales, of VV' and of UU'. The
scaled model serves ratios only; (a, b) is its calibration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import entr, expit, logit

from duoplda.arrays import Array, in_order, put, reproducible, take, to_numpy
from duoplda.data.labels import Ints, codes_among, order_of
from duoplda.model.parameters import Model
from duoplda.model.posteriors import kind_log_posterior
from duoplda.model.sample import Sample
from duoplda.model.shrinkage import Scales, Shrinkage, Shrinker, scaled, truncate
from duoplda.selection.held_out import Choice, HeldOut, best_ranks
from duoplda.trials.sums import Pairs, Some, Sums

Floats = NDArray[np.float64]
Enrolment = tuple[tuple[int, int | None], ...]  # sessions and recordings of each; None: all that there are
Expansion = tuple[float, Floats, Floats]  # a value, its gradient and its second derivatives
Progress = Callable[[int, float], None]  # gets the number of steps, and the cost of the last one
Transform = Callable[[NDArray[Any], NDArray[Any], int], Array]  # of rows, their kinds, and the fold held out

ENROLMENT: Enrolment = ((1, 1), (1, None), (3, 1), (3, 3), (3, None))
PRIORS = (0.5, 0.01)
# Of a speaker, at most: sets of each form, single recordings of each kind, tests
SETS = 4
SINGLES = 2
TESTS = 25
# Of a fold, at most: speakers, sets (and tests), patterns of sets
SPEAKERS = 1000
SIDES = 3000
PATTERNS = 40
NONTARGETS = 150_000  # of all folds together
# Nats: a score so wrong that its cost is linear; one so right that it costs nothing
FAR = 300.0
NEVER = -30.0
BLOCK = 1 << 13  # trials at a time, so that what is computed of them stays in the caches
LEAST = 1e-3  # scale of a calibration, relative to the deviation of the scores
SMALL = 256  # dimensions up to which folds are scored side by side
PENALTY = 0.015  # on the squared distance from the start, over the number of speakers: 1e-4 for 150
LIMITS = {"scales": 2.5, "shrinkage": 6.0}  # how far the logs and the logits may go
# Of the search: see there
DIFFERENCE = 0.05
STEP = 2.0
STEPS = 5
TOLERANCE = 0.02
WORTH = 30.0


# -- trials


@dataclass(frozen=True, eq=False)
class Trials:
    """Pairs of sets of recordings and test recordings of one fold."""

    row: Ints  # (r,) recordings of the sample that enrol,
    side: Ints  # (r,) the set of each,
    session: Ints  # (r,) and its session
    test: Ints  # (t,) recordings of the sample that test
    cells: NDArray[np.int32]  # (n,) set * t + test of each pair, targets first
    n_targets: int
    weight: Floats  # of the non-targets among them
    speaker: Ints  # (sets,) whose recordings each set holds, as a number from 0 on

    @property
    def pairs(self) -> Ints:
        """(n, 2) the set and the test of each pair."""
        return np.stack(np.divmod(self.cells, len(self.test)), axis=1)


def make_trials(sample: Sample | None, enrolment: Enrolment = ENROLMENT) -> Trials | None:
    """Trials of the speakers of a sample; None where there are no targets, or no non-targets.

    All is bounded, whatever the number of speakers: with many of them, each brings some of its sets and tests only, in
    turn. Of each form of enrolment the commonest patterns of sets are kept, as each has to be scored by itself.
    """
    if sample is None or not len(sample):
        return None
    kind = np.unique(sample.kind, return_inverse=True)[1].reshape(-1)
    kinds = kind.tolist()
    K = int(kind.max()) + 1
    _, session = np.unique(sample.session, return_inverse=True)
    new = np.flatnonzero(np.append(True, sample.speaker[1:] != sample.speaker[:-1]))
    speakers = np.split(np.arange(len(sample)), new[1:])[:SPEAKERS]
    share = SIDES // len(speakers)  # of a speaker
    sets: list[tuple[int, list[int]]] = []  # with the form of each
    owner = []
    tests = []
    test_owner = []
    for who, rows in enumerate(speakers):
        edges = [0, *(np.flatnonzero(np.diff(sample.session[rows])) + 1).tolist(), len(rows)]
        parts = [rows[a:b].tolist() for a, b in pairwise(edges)]  # by session, in order of hashes
        half = len(parts) // 2
        own = _sets(parts[:half], kinds, K, enrolment) if half else []
        own = [own[(who * share + i) % len(own)] for i in range(min(share, len(own)))]
        sets += own
        owner += [who] * len(own)
        rest = rows[edges[half] :]
        rest = rest[np.argsort(sample.recording[rest])][: min(share, TESTS)]
        tests.append(rest)
        test_owner += [who] * len(rest)
    if not sets:
        return None
    kept = _common(sets, kinds, session.tolist(), max(1, PATTERNS // len(enrolment)))
    rows_of = [sets[i][1] for i in kept]
    same = np.array(owner)[kept][:, None] == np.array(test_owner)[None, :]
    tar, non = (np.flatnonzero(which).astype(np.int32) for which in (same, ~same))
    if not len(tar) or not len(non):
        return None
    row = np.array([row for rows in rows_of for row in rows])
    side = np.repeat(np.arange(len(rows_of)), [len(rows) for rows in rows_of])
    cells = np.concatenate([tar, non])
    speaker = np.array(owner)[kept]
    return Trials(row, side, session[row], np.concatenate(tests), cells, len(tar), np.ones(len(non)), speaker)


def select(trials: Trials, scores: Floats, most: int) -> tuple[Trials, Floats]:
    """Some of the non-targets: two thirds are the highest-scoring, where decisions go wrong; others stand for many.

    `scores` (n,) are those of all pairs under some model; those of the pairs that stay are returned, too. The weights
    add up to what they would without the selection.
    """
    n = len(trials.weight)
    if n <= most:
        return trials, scores
    order = _ordered(scores[trials.n_targets :])
    n_top = 2 * most // 3
    rest = order[: n - n_top][_spread(n - n_top, most - n_top)]  # from low and high scores alike
    chosen = np.concatenate([order[n - n_top :], rest])
    weight = np.repeat([1.0, (n - n_top) / len(rest)], [n_top, len(rest)]) * (most / n)
    kept = np.concatenate([np.arange(trials.n_targets), trials.n_targets + chosen])
    return replace(trials, cells=trials.cells[kept], weight=weight), scores[kept]


def _ordered(x: Floats) -> Ints:
    """The order in which numbers increase, by 48 bits of their range."""
    low = float(x.min())
    high = float(x.max())
    return order_of(((x - low) * (((1 << 48) - 1) / ((high - low) or 1.0))).astype(np.uint64))


def _spread(n: int, most: int) -> Ints:
    """Places among n, at most so many: all of them, or such as any step would not find again (golden section)."""
    if n <= most:
        return np.arange(n)
    step = int(n * 0.6180339887498949)
    while math.gcd(step, n) > 1:
        step += 1
    return np.sort(np.arange(most) * step % n)


def _common(sets: list[tuple[int, list[int]]], kinds: list[int], session: list[int], most: int) -> Ints:
    """Which sets are of the commonest patterns of their form; a pattern counts recordings by kind in each session."""
    patterns: dict[int, dict[Any, list[int]]] = {}
    for i, (form, rows) in enumerate(sets):
        of: dict[int, list[int]] = {}
        for row in rows:
            of.setdefault(session[row], []).append(kinds[row])
        pattern = tuple(sorted(tuple(sorted(own)) for own in of.values()))
        patterns.setdefault(form, {}).setdefault(pattern, []).append(i)
    kept = [sorted(found.values(), key=len, reverse=True)[:most] for found in patterns.values()]
    return np.sort(np.concatenate([np.array(own) for form in kept for own in form]))


def _sets(sessions: list[list[int]], kinds: list[int], K: int, enrolment: Enrolment) -> list[tuple[int, list[int]]]:
    """Sets of recordings of one speaker, of the forms in `enrolment` in turn, each with the number of its form.

    Kinds of channels follow a few patterns that all speakers share, so that few patterns of sets have to be scored.
    """
    out: list[tuple[int, int, list[int]]] = []
    for form, (n_sessions, n_recordings) in enumerate(enrolment):
        if (n_sessions, n_recordings) == (1, 1):
            every = [row for session in sessions for row in session]
            singles = [[row] for k in range(K) for row in [row for row in every if kinds[row] == k][:SINGLES]]
            out += [(i, form, rows) for i, rows in enumerate(singles)]
            continue
        n = min(n_sessions, len(sessions))
        seen = set()
        for i in range(SETS):
            rows = []
            for j in range(n):
                first = (2 * (i % 3) + (j if n_recordings == 1 else 0)) % K
                rows += _of_session(sessions[(i * n + j) % len(sessions)], kinds, first, K)[:n_recordings]
            if (key := tuple(sorted(rows))) not in seen:
                seen.add(key)
                out.append((i, form, rows))
    return [(form, rows) for _, form, rows in sorted(out, key=lambda each: each[:2])]


def _of_session(session: list[int], kinds: list[int], first: int, K: int) -> list[int]:
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


# -- the cost


def cost(
    tar: Floats,
    non: Floats,
    scale: float,
    offset: float,
    priors: Sequence[float] = PRIORS,
    weight: Floats | None = None,
) -> float:
    """Mean over priors of C_pi / H(pi) of scores after an affine map; `weight` is of the non-targets."""
    return _cost((_affine(tar), _affine(non)), np.array([scale, offset]), priors, weight)[0]


def best_offset(tar: Floats, non: Floats, priors: Sequence[float] = PRIORS, weight: Floats | None = None) -> float:
    """The offset that makes scores cost least: the cost is convex, and falls on one side of it only."""
    both = (_affine(tar), _affine(non))
    every = np.concatenate([tar, non])
    beyond = 50 + max(abs(float(logit(p))) for p in priors)

    def slope(offset: float) -> float:
        return float(_cost(both, np.array([1.0, offset]), priors, weight)[1][1])

    return float(brentq(slope, -every.max() - beyond, beyond - every.min(), xtol=1e-9))


def _affine(x: Floats) -> Floats:
    return np.stack([x, np.ones_like(x)])


def _cost(both: Sequence[Floats], v: Floats, priors: Sequence[float], weight: Floats | None = None) -> Expansion:
    """The cost of scores v'F, its gradient and second derivatives in v; F (k, n) of targets and of non-targets.

    `weight` (n,) is of the non-targets.
    """
    value = 0.0
    gradient = np.zeros(len(v))
    curvature = np.zeros((len(v), len(v)))
    of = np.asarray(priors)
    entropy = (entr(of) + entr(1 - of)) * len(of)
    for every, sign in zip(both, (-1.0, 1.0), strict=True):
        n = every.shape[1]
        share = np.full(n, 1 / n) if sign < 0 or weight is None else weight / weight.sum()
        w = (of if sign < 0 else 1 - of) / entropy
        odds = np.exp(sign * logit(of))[:, None]
        for t in range(0, n, BLOCK):
            F = every[:, t : t + BLOCK]
            own = share[t : t + BLOCK]
            wrong = (sign * v) @ F  # by how much a score errs
            most = float(wrong.max())
            if most < NEVER:
                continue
            z = np.exp(np.minimum(wrong, FAR)) * odds  # (priors, n) e^(sign (score + logit p))
            rest = 1 / (1 + z)
            loss = w @ np.log1p(z)
            if most > FAR:  # ln(1 + e^z) is z there
                loss += w.sum() * np.maximum(wrong - FAR, 0)
            value += float(own @ loss)
            z *= rest
            gradient += sign * (F @ (own * (w @ z)))
            z *= rest
            curvature += (F * (own * (w @ z))) @ F.T
    return value, gradient, curvature


def _losses(scores: Floats, sign: float, priors: Sequence[float]) -> Floats:
    """What each trial costs, averaged over priors: of targets if `sign` is -1, of non-targets if it is 1."""
    p = np.asarray(priors)[:, None]
    weight = (p if sign < 0 else 1 - p) / (entr(p) + entr(1 - p))
    return (weight * np.logaddexp(0.0, sign * (scores + logit(p)))).mean(axis=0)


def _newton(at: Callable[[Floats], Expansion], v: Floats, most: int = 60) -> tuple[Floats, float]:
    """The minimum of a convex function: where it is, and its value."""
    value, gradient, curvature = at(v)
    for _ in range(most):
        step = np.linalg.solve(curvature, gradient)
        length = 1.0
        gain = float(gradient @ step) / 2  # of the step, were the function quadratic
        if gain < 1e-12:
            return v - step, value - gain
        new = at(v - step)
        while not new[0] <= value and length > 1e-6:
            length /= 2
            new = at(v - length * step)
        gain = value - new[0]
        if gain > 0:
            v = v - length * step
            value, gradient, curvature = new
        if gain < 1e-12:
            break
    return v, value


def calibrate(
    tar: Floats,
    non: Floats,
    priors: Sequence[float] = PRIORS,
    weight: Floats | None = None,
    start: Floats | None = None,
) -> tuple[float, Floats]:
    """The lowest cost, and the scale and the offset that reach it; `start` is a guess at these.

    Where a threshold separates the trials, no scale is best: 1 / (number of targets) times (scale - 1)^2 / 2 is added.
    """
    deviation = float(np.sqrt((tar.var() + non.var()) / 2 + (tar.mean() - non.mean()) ** 2 / 4)) or 1.0
    middle = float(tar.mean() + non.mean()) / 2
    ridge = np.diag([1.0 / (len(tar) * deviation**2), 1e-12])
    both = [_affine((x - middle) / deviation) for x in (tar, non)]

    def at(v: Floats) -> Expansion:
        value, gradient, curvature = _cost(both, v, priors, weight)
        u = v - [deviation, 0]
        return value + float(u @ ridge @ u) / 2, gradient + ridge @ u, curvature + ridge

    guess = np.array([1.0, 0.0])
    if start is not None:
        guess = np.array([start[0] * deviation, start[1] + start[0] * middle])
    v, value = _newton(at, guess)
    if v[0] < LEAST:  # scores that know nothing, or less: they keep their order, and an offset is learnt

        def offset(u: Floats) -> Expansion:
            value, gradient, curvature = at(np.array([LEAST, u[0]]))
            return value, gradient[1:], curvature[1:, 1:]

        u, value = _newton(offset, np.zeros(1))
        v = np.array([LEAST, u[0]])
    u = v - [deviation, 0]
    scale = float(v[0]) / deviation
    return value - float(u @ ridge @ u) / 2, np.array([scale, float(v[1]) - scale * middle])


# -- the search


@dataclass(eq=False)
class Search:
    """Gauss-Newton steps down the cost, penalised by the distance from the start.

    Scores are about linear in the parameters, s + J delta. With eta = a delta the cost of a (s + J delta) + b is that
    of a logistic regression on (s, 1, J), which is convex. J comes from differences, and each further point corrects
    it (Broyden), so that a step costs one evaluation. The search is smooth in the data: data that differ by rounding
    lead to points that hardly differ. Where the first few steps gain much, derivatives have changed, and are taken
    once more.
    """

    scores: Callable[[list[Floats]], list[tuple[Floats, Floats]]]  # of targets and non-targets, at several points
    limits: Floats
    priors: Sequence[float]
    penalty: float
    weight: Floats | None = None  # of the non-targets
    progress: Progress | None = None
    snap: Callable[[Floats], Floats] = lambda theta: theta  # to a point near by where the search may end

    def __call__(self, start: Floats, here: tuple[Floats, Floats] | None = None) -> tuple[Floats, float, Floats]:
        """The lowest point that is found, its cost and calibration; `here` are the scores at the start, if known."""
        self.start = self.best = start
        self.here = self.scores([start])[0] if here is None else here
        cost, affine = calibrate(*self.here, self.priors, self.weight, np.array([1.0, 0.0]))  # they are ratios
        self.value = cost
        self.tried = [(start, cost)]
        for again in (False, True):
            if again and self.tried[0][1] - self.value < WORTH * self.penalty:
                break
            slope = self._differences()
            radius = STEP
            for _ in range(STEPS):
                step = self._step(slope, affine)
                step *= min(1.0, radius / max(float(np.abs(step).max()), radius))
                step = self.snap(np.clip(self.best + step, -self.limits, self.limits)) - self.best
                if (length := float(np.abs(step).max())) < TOLERANCE:
                    break
                there = self.scores([self.best + step])[0]
                new_cost, found = calibrate(*there, self.priors, self.weight, affine)
                self.tried.append((self.best + step, new_cost))
                if self.progress is not None:
                    self.progress(len(self.tried), new_cost)
                value = new_cost + self._penalty(self.best + step)
                for J, new, old in zip(slope, there, self.here, strict=True):
                    J += np.outer(step / (step @ step), new - old - step @ J)
                if value < self.value:
                    self.best = self.best + step
                    self.here = there
                    self.value = value
                    cost = new_cost
                    affine = found
                else:
                    radius = length / 4
        return self.best, cost, affine

    def _penalty(self, theta: Floats) -> float:
        return self.penalty * float(((theta - self.start) ** 2).sum())

    def _differences(self) -> list[Floats]:
        """Derivatives of the scores of targets and of non-targets, a row for each parameter."""
        sizes = np.where(self.best > 0, -DIFFERENCE, DIFFERENCE)
        points = [self.best + h for h in np.diag(sizes)]
        moved = zip(*self.scores(points), strict=True)
        return [(np.stack(new) - old) / sizes[:, None] for new, old in zip(moved, self.here, strict=True)]

    def _step(self, slope: list[Floats], affine: Floats) -> Floats:
        """To the lowest point, were the scores linear."""
        scale = float(affine[0]) or 1.0
        features = [np.concatenate([_affine(s), J]) for s, J in zip(self.here, slope, strict=True)]
        pull = 2 * self.penalty / scale**2
        ridge = np.diag([1e-9, 1e-12, *[pull] * len(self.best)])
        away = scale * (self.best - self.start)

        def at(v: Floats) -> Expansion:
            value, gradient, curvature = _cost(features, v, self.priors, self.weight)
            u = v + np.concatenate([[0, 0], away])
            return value + float(u @ ridge @ u) / 2, gradient + ridge @ u, curvature + ridge

        v, _ = _newton(at, np.concatenate([affine, np.zeros(len(self.best))]), most=4)
        return v[2:] / (float(v[0]) or 1.0)


# -- the choice


@dataclass(frozen=True, eq=False)
class ByDecision:
    """Chooses what lowers the cost of held-out trials.

    Parameters
    ----------
    enrolment : forms of enrolment, as (sessions, recordings of each); None recordings: all that there are
    priors : the prior probabilities of a target at which decisions are made
    transform : what a recording of the sample goes through before the fold's model
    infer : kinds of channels are those that the fold's model gives to each recording, not those of the labels
    """

    enrolment: Enrolment = ENROLMENT
    priors: tuple[float, ...] = PRIORS
    transform: Transform = lambda X, kind, fold: X
    infer: bool = False

    def __call__(self, stats: Any, held_out: HeldOut, progress: Progress | None = None) -> HeldOutTrials:
        return HeldOutTrials(self, stats, held_out, progress)


@dataclass(frozen=True, eq=False)
class Fold:
    """The trials of a fold, its recordings summed up for them, and its model."""

    trials: Trials
    pairs: Pairs
    shrinker: Shrinker

    @cached_property
    def _some(self) -> list[Some]:
        return self.pairs.some(self.trials.cells.astype(np.int64))

    def scores(self, change: Callable[[Shrinker], Model]) -> Floats:
        """Of all trials under the changed model."""
        return to_numpy(self.pairs.listed(change(self.shrinker), self._some))


class HeldOutTrials:
    """Scores of held-out trials under changed models of their folds, and their cost; no `folds`: there are none."""

    def __init__(self, how: ByDecision, stats: Any, held_out: HeldOut, progress: Progress | None = None):
        self.progress = progress
        self.how = how
        self.path = held_out.path
        self.n_speakers = 0
        self.start = held_out.start
        self.folds: list[Fold] = []
        scores: list[Floats] = []
        folds = [(i, f) for i, f in enumerate(stats.folds) if len(f.speaker_ids)]
        for (index, fold), (_, shrinker) in zip(folds, held_out.parts, strict=True):
            model = shrinker.model
            sample = fold.sample
            if model.K > 1 and sample is not None and not how.infer:  # of a kind in this fold alone nothing is known
                kind = codes_among(sample.kind, model.kinds, len(sample))
                sample = sample.rows(np.flatnonzero((kind >= 0) & (shrinker.N[kind] > 0)))
            # Trials are made by kinds that are known. Those that are inferred must not shape them, or models with other
            # kinds would be compared on other trials, and by no fair measure (it cost each further kind about .01).
            trials = make_trials(sample.without_kinds() if how.infer and sample is not None else sample, how.enrolment)
            if sample is None or trials is None:
                continue
            used, place = np.unique(np.concatenate([trials.row, trials.test]), return_inverse=True)
            row, test = np.split(place.reshape(-1), [len(trials.row)])
            sample = sample.rows(used)
            X = put(to_numpy(how.transform(sample.X, sample.kind, index)).astype(np.float64, copy=False), model.V)
            kind = codes_among(sample.kind, model.kinds, len(used)) if model.K > 1 else np.zeros(len(used), np.int64)
            if how.infer and model.K > 1:
                shares = put(shrinker.N / shrinker.N.sum(), X)
                kind = to_numpy(kind_log_posterior(model, X, shares)).argmax(axis=1)
            kind = np.maximum(kind, 0)
            enrolled = Sums(take(X, row), trials.side, trials.session, kind[row], model.K)
            pairs = Pairs(enrolled, Sums(take(X, test), np.arange(len(test)), None, kind[test], model.K))
            every = to_numpy(pairs.matrix(shrinker(self.start))).reshape(-1)[trials.cells]
            trials, known = select(trials, every, NONTARGETS // len(folds))
            self.folds.append(Fold(trials, pairs, shrinker))
            scores.append(known)
            self.n_speakers += len(np.unique(sample.speaker))

        self.at_start = self._split(scores)

    @property
    def weight(self) -> Floats:
        """Of the non-targets."""
        return np.concatenate([fold.trials.weight for fold in self.folds])

    def scores(self, change: Callable[[Shrinker], Model]) -> tuple[Floats, Floats]:
        """Of targets and of non-targets, over all folds."""
        return self.scores_of([change])[0]

    def scores_of(self, changes: Sequence[Callable[[Shrinker], Model]]) -> list[tuple[Floats, Floats]]:
        """Those of several changes, side by side."""
        small = all(fold.shrinker.model.d <= SMALL for fold in self.folds)  # else they would take much memory
        tasks = [(change, fold) for change in changes for fold in self.folds]
        found = list(in_order(lambda task: task[1].scores(task[0]), tasks, 1e12 if small else 0))
        n = len(self.folds)
        return [self._split(found[i * n : (i + 1) * n]) for i in range(len(changes))]

    def _split(self, found: list[Floats]) -> tuple[Floats, Floats]:
        both = [np.split(s, [fold.trials.n_targets]) for s, fold in zip(found, self.folds, strict=True)]
        tar, non = (np.concatenate([np.zeros(0), *part]) for part in zip(*both, strict=True)) if both else ([], [])
        return np.asarray(tar), np.asarray(non)

    @reproducible()
    def value(self, change: Callable[[Shrinker], Model]) -> tuple[float, Floats]:
        """The cost of changed models, with the calibration that reaches it."""
        return calibrate(*self.scores(change), self.how.priors, self.weight)

    @reproducible()
    def shrinkage(self, free: tuple[str, ...]) -> Choice:
        """The best shrinkages (those in `free`), scales and calibration, the first two to three digits."""
        n = len(free)
        n_scales = 1 + ("session" in free)
        start = np.array([*(float(logit(getattr(self.start, name))) for name in free), *[0.0] * n_scales])
        limits = np.array([LIMITS["shrinkage"]] * n + [LIMITS["scales"]] * n_scales)

        def snap(theta: Floats) -> Floats:
            """To amounts of three digits."""
            return np.concatenate([logit(np.round(expit(theta[:n]), 3)), np.log(np.round(np.exp(theta[n:]), 3))])

        def amounts(theta: Floats, digits: int = 15) -> tuple[Shrinkage, Scales]:
            a = Shrinkage(**dict(zip(free, np.round(expit(theta[:n]), digits).tolist(), strict=True)))
            return a, Scales(*np.round(np.exp(theta[n:]), digits).tolist())

        def change(theta: Floats) -> Callable[[Shrinker], Model]:
            a, scales = amounts(theta)
            return lambda fold: scaled(fold(a), scales)

        def scores(points: list[Floats]) -> list[tuple[Floats, Floats]]:
            return self.scores_of([change(theta) for theta in points])

        penalty = PENALTY / self.n_speakers
        search = Search(scores, limits, self.how.priors, penalty, self.weight, self.progress, snap)
        best, value, (scale, offset) = search(start, self.at_start if "speaker" in free else None)
        for theta, found in [*search.tried, (best, value)]:
            a, scales = amounts(theta, 3)
            self.path.pop((*a, *scales), None)  # the last is what was chosen
            self.path[(*a, *scales)] = found
        return Choice(*amounts(best, 3), (float(scale), float(offset)), value)

    def cost(self, a: Shrinkage) -> float:
        """The cost at given amounts."""
        return self.value(lambda fold: fold(a))[0]

    def cost_by_speaker(self, a: Shrinkage) -> Floats:
        """(speakers,) what the trials of each enrolled speaker add to the cost at given amounts."""
        targets, nontargets = self.scores(lambda fold: fold(a))
        _, affine = calibrate(targets, nontargets, self.how.priors, self.weight)
        losses = [
            _losses(affine[0] * targets + affine[1], -1.0, self.how.priors) / len(targets),
            _losses(affine[0] * nontargets + affine[1], 1.0, self.how.priors) * self.weight / self.weight.sum(),
        ]
        by_speaker = []
        starts = [0, 0]
        for fold in self.folds:
            trials = fold.trials
            who = trials.speaker[trials.pairs[:, 0]]
            ends = [starts[0] + trials.n_targets, starts[1] + len(trials.weight)]
            shares = np.concatenate([loss[a:b] for loss, a, b in zip(losses, starts, ends, strict=True)])
            by_speaker.append(np.bincount(who, shares, minlength=int(trials.speaker.max()) + 1))
            starts = ends
        return np.concatenate(by_speaker)

    def ranks(self, ny: int | None, nx: int | None, full: tuple[int, int]) -> tuple[int, int]:
        """The best numbers of factors: those that are given stay, None is chosen, up to `full`."""

        def value(r: tuple[int, int]) -> float:
            if r not in self.path:
                self.path[r] = self.value(lambda fold: truncate(fold.model, *r))[0]
            return -self.path[r]

        return best_ranks(ny, nx, full, value)
