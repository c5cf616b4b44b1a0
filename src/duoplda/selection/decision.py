"""Shrinkage, two scales, a calibration and numbers of factors, chosen by the cost of held-out trials.

Held-out likelihood mostly measures how recordings of one speaker scatter, while users decide about trials. So trials
are made between the speakers of each fold, and scored by a model that has not seen these. With the cost C_pi and the
entropy H(pi) of `duoplda.selection.cost`, the cost of a change `theta` of the models is

    J(theta) = min over (a, b) of  mean over pi of C_pi(a LLR_theta + b) / H(pi)

theta holds the logits of the shrinkages (`duoplda.model.shrinkage`) and the logs of two scales, of VV' and of UU'. Only
ratios use the scaled model; (a, b) is its calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from duoplda.arrays import in_order, put, reproducible, take, to_numpy
from duoplda.data.labels import Ints, codes_among
from duoplda.evaluation.calibration import AffineCalibration, StructureCalibration
from duoplda.model.occasions import USUAL_KAPPA
from duoplda.model.parameters import Model
from duoplda.model.posteriors import kind_log_posterior
from duoplda.model.sample import FOLD_SAMPLE, Sample
from duoplda.model.shrinkage import Scales, Shrinkage, scaled
from duoplda.observer import SILENT, Observer
from duoplda.selection.cost import DEFAULT_PRIORS, Floats, calibrate, gain_in_errors, share_kept, trial_losses
from duoplda.selection.held_out import Change, Choice, Criterion, HeldOutFold
from duoplda.selection.search import Scores, Search
from duoplda.selection.structure import StructuredTrials, by_structure
from duoplda.selection.trials import DEFAULT_ENROLMENT, Enrolment, FoldTrials, make_trials, select_nontargets
from duoplda.trials.structure import Structure
from duoplda.trials.sums import ModelRatios, SideSums

KAPPAS = (0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.5)  # the best of which is chosen: the cost is flat around it
ENOUGH_SPEAKERS = 5  # with sessions of two occasions, to learn kappa from


@dataclass(frozen=True)
class TrialOptions:
    """What held-out trials look like, and at which priors decisions are made."""

    enrolment: Enrolment = DEFAULT_ENROLMENT
    priors: tuple[float, ...] = DEFAULT_PRIORS  # of a target
    by_structure: bool = False  # the calibration may depend on the structure of trials, where that pays
    infer_kinds: bool = False  # kinds of channels are inferred by the model of the fold, whatever the labels say


@dataclass(frozen=True, eq=False)
class ScoredFold:
    """The trials of a fold, and what their ratios are computed from."""

    index: int  # of the fold
    trials: FoldTrials
    summed: Callable[[float], ModelRatios]  # the same ratios with another kappa of sessions of one occasion
    pairs: ModelRatios  # the ratios of the trials, under any model


class HeldOutTrials:
    """Trials of the speakers of each fold, to be scored by models that have not seen these.

    Parameters
    ----------
    samples : recordings of each fold, as the model takes them that has not seen the fold
    models : this model for each fold; it names the kinds of channels, and infers them with `options.infer_kinds`
    counts : (K,) for each fold, the recordings of each kind that its model has seen
    first : the model of each fold under which the highest-scoring non-targets are chosen; by default that of `models`
    across : whether trials are across occasions, with sets of sessions of one occasion that count by the usual kappa;
        otherwise labels of occasions are ignored

    Attributes
    ----------
    first_scores : scores of targets and of non-targets under `first`
    weight : of the non-targets
    speakers : the enrolled speaker of each target and of each non-target, as a number
    folds : those in which trials can be made; empty if there are none
    """

    def __init__(
        self,
        samples: Sequence[Sample | None],
        models: Sequence[Model],
        counts: Sequence[NDArray[np.float64]],
        options: TrialOptions,
        first: Callable[[int], Model] | None = None,
        *,
        across: bool = False,
    ):
        max_nontargets = 150_000  # of all folds together: more change the cost by less than its noise
        kappa = USUAL_KAPPA if across else 0.0
        # Each thread that scores holds a changed model, which takes memory if it is large; 0 means one thread.
        self.flops = 1e12 if all(model.d <= 256 for model in models) else 0.0
        self.folds: list[ScoredFold] = []
        self.n_speakers = 0
        n_enrolled = 0
        first_scores = []
        speakers = []
        for i, (sample, model, N) in enumerate(zip(samples, models, counts, strict=True)):
            if sample is None:
                continue
            if not across:
                sample = sample.trimmed(FOLD_SAMPLE)  # as it would be without labels of occasions
            if model.K > 1 and not options.infer_kinds:
                kind = codes_among(sample.kind, model.kinds, len(sample))
                # The model of the fold knows nothing of a kind that only this fold has.
                sample = sample.rows(np.flatnonzero((kind >= 0) & (N[kind] > 0)))
            # Which recordings are enrolled depends on kinds that are labelled, but not on inferred ones: models with
            # different kinds would be compared on different trials (a bias of about .01 against each further kind).
            shaping = sample.without_kinds() if options.infer_kinds else sample
            trials = make_trials(shaping, options.enrolment)
            if trials is None:
                continue
            used, place = np.unique(np.concatenate([trials.row, trials.test]), return_inverse=True)
            sample = sample.rows(used)
            summed = _sums(trials, sample, place.reshape(-1), model, N, options.infer_kinds)
            pairs = summed(kappa)
            scores = to_numpy(pairs.matrix(model if first is None else first(i))).reshape(-1)[trials.cells]
            trials, kept_scores = select_nontargets(trials, scores, max_nontargets // len(samples))
            pairs.select(trials.cells)
            self.folds.append(ScoredFold(i, trials, summed, pairs))
            first_scores.append(kept_scores)
            speakers.append(n_enrolled + trials.speaker[trials.pairs[:, 0]])
            n_enrolled += int(trials.speaker.max()) + 1
            self.n_speakers += len(np.unique(sample.speaker))
        self.first_scores = self._split(first_scores)
        self.speakers = self._split(speakers)
        self.weight = np.concatenate([np.zeros(0), *(fold.trials.weight for fold in self.folds)])

    def structure(self, model_of: Callable[[int], Model]) -> tuple[Structure, Structure]:
        """The structure of targets and of non-targets; the function gives the model of a fold."""
        parts = []
        for fold in self.folds:
            table, side, test = fold.pairs.structure(model_of(fold.index))
            i, j = fold.trials.pairs.T
            parts.append([values[side[i], test[j]] for values in table])
        expected, alike = (self._split(list(values)) for values in zip(*parts, strict=True))
        return Structure(expected[0], alike[0]), Structure(expected[1], alike[1])

    def structured(self, model_of: Callable[[int], Model]) -> StructuredTrials:
        """The trials with their scores under a model for each fold, and their structure."""
        (scores,) = self.scores(model_of)
        structure = Structure(*(np.concatenate(values) for values in zip(*self.structure(model_of), strict=True)))
        target = np.repeat([True, False], [len(values) for values in scores])
        weight = np.concatenate([np.ones(len(scores[0])), self.weight])
        folds = self._split([np.full(len(fold.trials.cells), fold.index) for fold in self.folds])
        parts = (np.concatenate(values) for values in (folds, self.speakers))
        return StructuredTrials(np.concatenate(scores), target, weight, structure, *parts)

    def counted(self, kappa: float) -> HeldOutTrials:
        """The same trials with another kappa of the sessions of one occasion."""
        out = copy(self)
        out.folds = [replace(fold, pairs=fold.summed(kappa)) for fold in self.folds]
        for fold in out.folds:
            fold.pairs.select(fold.trials.cells)
        return out

    def scores(self, *model_of: Callable[[int], Model]) -> list[Scores]:
        """Scores of targets and of non-targets over all folds; each function gives the model of a fold.

        Those of several functions are computed in threads, unless the models are so large that memory would run short.
        """

        def score(task: tuple[Callable[[int], Model], ScoredFold]) -> Floats:
            make, fold = task
            return to_numpy(fold.pairs.listed(make(fold.index)))

        scores = list(in_order(score, [(make, fold) for make in model_of for fold in self.folds], self.flops))
        n = len(self.folds)
        return [self._split(scores[i * n : (i + 1) * n]) for i in range(len(model_of))]

    def _split(self, values: list[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Values of the trials of each fold, as those of all targets and those of all non-targets."""
        parts = [np.split(v, [fold.trials.n_targets]) for v, fold in zip(values, self.folds, strict=True)]
        none = np.zeros(0, bool)  # takes any other type
        return np.concatenate([none, *(p[0] for p in parts)]), np.concatenate([none, *(p[1] for p in parts)])


def _sums(
    trials: FoldTrials, sample: Sample, place: Ints, model: Model, N: NDArray[np.float64], infer_kinds: bool
) -> Callable[[float], ModelRatios]:
    """A function of kappa that sums up both sides of trials; `place` (rows + tests,) are their places in the sample."""
    X = put(sample.X.astype(np.float64, copy=False), model.V)
    kind = np.zeros(len(sample), np.int64)
    if model.K > 1:
        if infer_kinds:
            kind = to_numpy(kind_log_posterior(model, X, put(N / N.sum(), X))).argmax(axis=1)
        else:
            kind = codes_among(sample.kind, model.kinds, len(sample))
    row, test = np.split(place, [len(trials.row)])
    tests = SideSums(take(X, test), np.arange(len(test)), None, kind[test], model.K)

    def summed(kappa: float) -> ModelRatios:
        return ModelRatios(SideSums(take(X, row), trials.side, trials.session, kind[row], model.K, kappa), tests)

    return summed


class HeldOutCost(Criterion):
    """The cost of held-out trials after the best calibration."""

    def __init__(self, folds: list[HeldOutFold], start: Shrinkage, options: TrialOptions, observer: Observer = SILENT):
        self.path = {}
        self.shrinkers = [fold.shrinker for fold in folds]
        self.start = start
        self.priors = options.priors
        self.may_depend_on_structure = options.by_structure
        self.observer = observer
        self.samples = [fold.sample for fold in folds]
        models = [shrinker.model for shrinker in self.shrinkers]
        counts = [shrinker.N for shrinker in self.shrinkers]
        self._trials_of = partial(HeldOutTrials, self.samples, models, counts, options)
        self.trials = self._trials_of(lambda i: self.shrinkers[i](start))

    def scores(self, *changes: Change) -> list[Scores]:
        """Scores of targets and of non-targets under the changed models of the folds."""
        return self.trials.scores(*[lambda i, change=change: change(self.shrinkers[i]) for change in changes])

    @reproducible()
    def cost(self, change: Change) -> float:
        return calibrate(*self.scores(change)[0], self.priors, self.trials.weight)[0]

    def cost_by_speaker(self, change: Change) -> Floats:
        """(speakers,) what the trials of each enrolled speaker add to the cost of changed models."""
        scores = self.scores(change)[0]
        return self._losses(scores, *calibrate(*scores, self.priors, self.trials.weight)[1])

    def _losses(self, scores: Scores, scale: float, offset: float) -> Floats:
        """(speakers,) the same for scores that are given, with a calibration."""
        targets, nontargets = scores
        weight = self.trials.weight
        losses = [
            trial_losses(scale * targets + offset, True, self.priors) / len(targets),
            trial_losses(scale * nontargets + offset, False, self.priors) * weight / weight.sum(),
        ]
        return np.bincount(np.concatenate(self.trials.speakers), np.concatenate(losses)).astype(np.float64)

    @reproducible()
    def shrinkage(self, free: tuple[str, ...]) -> Choice:
        """The best shrinkages and scales, to three digits, and the calibration."""
        n = len(free)
        n_scales = 1 + ("session" in free)
        start = np.array([*(float(logit(getattr(self.start, name))) for name in free), *[0.0] * n_scales])
        # Logits beyond 6 are amounts of 0 or 1 to two digits. With a scale beyond e^2.5 = 12, little of the trained
        # model would be left.
        limits = np.array([6.0] * n + [2.5] * n_scales)
        # What few speakers choose is mostly noise, in the scales most of all: with a tenth of this penalty, 10 drawn
        # speakers chose scales of 4 and more. A larger penalty is worse where each session has one recording.
        penalty = np.array([0.015] * n + [0.15] * n_scales) / self.trials.n_speakers

        def snap(theta: Floats) -> Floats:
            return np.concatenate([logit(np.round(expit(theta[:n]), 3)), np.log(np.round(np.exp(theta[n:]), 3))])

        def amounts(theta: Floats) -> tuple[Shrinkage, Scales]:
            # Without rounding, the inverse of a logit or a log would miss three digits by its last bits.
            a = Shrinkage(**dict(zip(free, np.round(expit(theta[:n]), 15).tolist(), strict=True)))
            return a, Scales(*np.round(np.exp(theta[n:]), 15).tolist())

        def change(theta: Floats) -> Change:
            a, scales = amounts(theta)
            return lambda shrinker: scaled(shrinker(a), scales)

        def scores(points: list[Floats]) -> list[Scores]:
            return self.scores(*map(change, points))

        search = Search(scores, limits, self.priors, penalty, self.trials.weight, self.observer, snap)
        best, cost, (scale, offset) = search(start, self.trials.first_scores)
        # Of scales and calibration, only the share is kept that the gain over none at all supports.
        unscaled = np.append(best[:n], np.zeros(n_scales))
        without = self._losses(scores([unscaled])[0], 1.0, 0.0)
        kept = share_kept(gain_in_errors(without, self._losses(search.best_scores, scale, offset)))
        best = snap(unscaled + kept * (best - unscaled))
        cost = calibrate(*scores([best])[0], self.priors, self.trials.weight)[0]
        calibration: AffineCalibration | StructureCalibration
        calibration = AffineCalibration.of(float(scale) ** kept, float(offset) * kept)
        for theta, value in [*search.tried, (best, cost)]:
            a, scales = amounts(theta)
            self.path.pop((*a, *scales), None)  # the last entry of the path is the choice
            self.path[(*a, *scales)] = value
        if self.may_depend_on_structure:
            best_change = change(best)
            trials = self.trials.structured(lambda i: best_change(self.shrinkers[i]))
            calibration, cost = by_structure(trials, self.priors) or (calibration, cost)
        shrunk, scales = amounts(best)
        kappa = self._kappa(lambda shrinker: scaled(shrinker(shrunk), scales))
        return Choice(shrunk, scales, calibration, cost, kappa)

    def _kappa(self, change: Change) -> float | None:
        """The kappa of sessions of one occasion, by trials across occasions; None if no such trials can be made."""
        if not know_occasions(self.samples):
            return None
        models = [change(shrinker) for shrinker in self.shrinkers]
        return learn_kappa([(self._trials_of(models.__getitem__, across=True), models.__getitem__)], self.priors)


# -- what sessions of one occasion have in common


def know_occasions(samples: Sequence[Sample | None]) -> bool:
    """Whether enough speakers of the samples have sessions of several occasions."""
    count = 0
    for sample in samples:
        if sample is not None and sample.occasion is not None and len(sample):
            pairs = np.unique(np.stack([sample.speaker, sample.occasion]), axis=1)
            count += int((np.unique(pairs[0], return_counts=True)[1] > 1).sum())
    return count >= ENOUGH_SPEAKERS


@reproducible()
def learn_kappa(
    trials: Iterable[tuple[HeldOutTrials, Callable[[int], Model]]], priors: Sequence[float]
) -> float | None:
    """The kappa at which trials across occasions cost least after calibration; None if there are no trials.

    Trials are given with the function that gives the model of each fold.
    """
    pooled: list[list[tuple[Floats, ...]]] = [[] for _ in KAPPAS]
    for held_out, model_of in trials:
        for part, kappa in zip(pooled, KAPPAS, strict=True):
            counted = held_out.counted(kappa)
            (scores,) = counted.scores(model_of)
            part.append((*scores, counted.weight))
    costs = {}
    for kappa, part in zip(KAPPAS, pooled, strict=True):
        targets, nontargets, weight = (np.concatenate([np.zeros(0), *values]) for values in zip(*part, strict=True))
        if not len(targets) or not len(nontargets):
            return None
        costs[kappa] = calibrate(targets, nontargets, priors, weight)[0]
    return min(costs, key=costs.__getitem__)
