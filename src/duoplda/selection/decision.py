"""What the cost of held-out trials chooses: shrinkage, two scales, a calibration, numbers of factors.

Held-out likelihood mostly measures how recordings of one speaker scatter; what a user decides about is trials. They are
made between the speakers of each fold, and scored by a model that has not seen these. With the cost C_pi and the
entropy H(pi) of `duoplda.selection.cost`, the cost of a change `theta` of the models is

    J(theta) = min over (a, b) of  mean over pi of C_pi(a LLR_theta + b) / H(pi)

Parameters are the shrinkages (`duoplda.model.shrinkage`), as logits, and the logs of two scales, of VV' and of UU'. The
scaled model serves ratios only; (a, b) is its calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from duoplda.arrays import in_order, put, reproducible, take, to_numpy
from duoplda.data.labels import Ints, codes_among
from duoplda.model.parameters import Model
from duoplda.model.posteriors import kind_log_posterior
from duoplda.model.sample import Sample
from duoplda.model.shrinkage import Scales, Shrinkage, scaled
from duoplda.observer import SILENT, Observer
from duoplda.selection.cost import DEFAULT_PRIORS, Floats, calibrate, trial_losses
from duoplda.selection.held_out import Change, Choice, Criterion, HeldOutFold
from duoplda.selection.search import Scores, Search
from duoplda.selection.trials import DEFAULT_ENROLMENT, Enrolment, FoldTrials, make_trials, select_nontargets
from duoplda.trials.sums import ListedCells, ModelRatios, SideSums


@dataclass(frozen=True)
class TrialOptions:
    """What held-out trials look like, and at which priors decisions are made."""

    enrolment: Enrolment = DEFAULT_ENROLMENT
    priors: tuple[float, ...] = DEFAULT_PRIORS  # of a target
    infer_kinds: bool = False  # kinds of channels are those that the fold's model infers, not those of the labels


@dataclass(frozen=True, eq=False)
class ScoredFold:
    """The trials of a fold, and its recordings summed up for them."""

    index: int  # of the fold
    trials: FoldTrials
    pairs: ModelRatios
    listed: list[ListedCells]


class HeldOutTrials:
    """Trials of the speakers of each fold, to be scored by models that have not seen these.

    Parameters
    ----------
    samples : recordings of each fold, as its model takes them
    models : the model of each fold; it tells the kinds of channels, and infers them where that is asked for
    counts : (K,) recordings of each kind that the model of each fold has seen
    first : the models under which the highest-scoring non-targets are found; `first_scores` are those under them

    Folds in which no trials can be made are left out; `folds` is empty if that is so for all of them.
    """

    def __init__(
        self,
        samples: Sequence[Sample | None],
        models: Sequence[Model],
        counts: Sequence[NDArray[np.float64]],
        options: TrialOptions,
        first: Callable[[int], Model] | None = None,
    ):
        max_nontargets = 150_000  # of all folds together: more of them change the cost by less than its noise
        self.flops = 1e12 if all(model.d <= 256 for model in models) else 0.0  # 0: threads are not worth it
        self.folds: list[ScoredFold] = []
        self.n_speakers = 0
        first_scores = []
        for i, (sample, model, N) in enumerate(zip(samples, models, counts, strict=True)):
            if sample is not None and model.K > 1 and not options.infer_kinds:
                kind = codes_among(sample.kind, model.kinds, len(sample))
                # Of a kind that this fold has alone, its model knows nothing.
                sample = sample.rows(np.flatnonzero((kind >= 0) & (N[kind] > 0)))
            # Trials are made by kinds that are known. Those that are inferred must not shape them, or models with other
            # kinds would be compared on other trials, and by no fair measure (it cost each further kind about .01).
            shaping = sample.without_kinds() if sample is not None and options.infer_kinds else sample
            trials = make_trials(shaping, options.enrolment)
            if sample is None or trials is None:
                continue
            used, place = np.unique(np.concatenate([trials.row, trials.test]), return_inverse=True)
            sample = sample.rows(used)
            pairs = _summed(trials, sample, place.reshape(-1), model, N, options.infer_kinds)
            scores = to_numpy(pairs.matrix(model if first is None else first(i))).reshape(-1)[trials.cells]
            trials, kept_scores = select_nontargets(trials, scores, max_nontargets // len(samples))
            self.folds.append(ScoredFold(i, trials, pairs, pairs.cells(trials.cells.astype(np.int64))))
            first_scores.append(kept_scores)
            self.n_speakers += len(np.unique(sample.speaker))
        self.first_scores = self._split(first_scores)

    @property
    def weight(self) -> Floats:
        """Of the non-targets."""
        return np.concatenate([fold.trials.weight for fold in self.folds])

    def scores(self, *model_of: Callable[[int], Model]) -> list[Scores]:
        """Scores of targets and of non-targets over all folds; each function gives the model of a fold.

        Those of several functions are computed side by side, unless the models are large: all of them take memory.
        """

        def score(task: tuple[Callable[[int], Model], ScoredFold]) -> Floats:
            make, fold = task
            return to_numpy(fold.pairs.listed(make(fold.index), fold.listed))

        scores = list(in_order(score, [(make, fold) for make in model_of for fold in self.folds], self.flops))
        n = len(self.folds)
        return [self._split(scores[i * n : (i + 1) * n]) for i in range(len(model_of))]

    def _split(self, scores: list[Floats]) -> Scores:
        parts = [np.split(s, [fold.trials.n_targets]) for s, fold in zip(scores, self.folds, strict=True)]
        none = np.zeros(0)
        return np.concatenate([none, *(p[0] for p in parts)]), np.concatenate([none, *(p[1] for p in parts)])


def _summed(
    trials: FoldTrials, sample: Sample, place: Ints, model: Model, N: NDArray[np.float64], infer_kinds: bool
) -> ModelRatios:
    """The recordings of both sides, added up for any model; `place` of each row and test is in the sample."""
    X = put(sample.X.astype(np.float64, copy=False), model.V)
    kind = np.zeros(len(sample), np.int64)
    if model.K > 1:
        if infer_kinds:
            kind = to_numpy(kind_log_posterior(model, X, put(N / N.sum(), X))).argmax(axis=1)
        else:
            kind = codes_among(sample.kind, model.kinds, len(sample))
    row, test = np.split(place, [len(trials.row)])
    enrolled = SideSums(take(X, row), trials.side, trials.session, kind[row], model.K)
    return ModelRatios(enrolled, SideSums(take(X, test), np.arange(len(test)), None, kind[test], model.K))


class HeldOutCost(Criterion):
    """The cost of held-out trials after the best calibration."""

    def __init__(self, folds: list[HeldOutFold], start: Shrinkage, options: TrialOptions, observer: Observer = SILENT):
        self.path = {}
        self.shrinkers = [fold.shrinker for fold in folds]
        self.start = start
        self.priors = options.priors
        self.observer = observer
        samples = [fold.sample for fold in folds]
        models = [shrinker.model for shrinker in self.shrinkers]
        counts = [shrinker.N for shrinker in self.shrinkers]
        self.trials = HeldOutTrials(samples, models, counts, options, lambda i: self.shrinkers[i](start))

    def scores(self, *changes: Change) -> list[Scores]:
        """Scores of targets and of non-targets under the changed models of the folds."""
        return self.trials.scores(*[lambda i, change=change: change(self.shrinkers[i]) for change in changes])

    @reproducible()
    def calibrated(self, change: Change) -> tuple[float, Floats]:
        """The cost of changed models, and the scale and the offset that reach it."""
        return calibrate(*self.scores(change)[0], self.priors, self.trials.weight)

    def cost(self, change: Change) -> float:
        return self.calibrated(change)[0]

    def cost_by_speaker(self, change: Change) -> Floats:
        """(speakers,) what the trials of each enrolled speaker add to the cost of changed models."""
        targets, nontargets = self.scores(change)[0]
        weight = self.trials.weight
        _, (scale, offset) = calibrate(targets, nontargets, self.priors, weight)
        losses = [
            trial_losses(scale * targets + offset, True, self.priors) / len(targets),
            trial_losses(scale * nontargets + offset, False, self.priors) * weight / weight.sum(),
        ]
        by_speaker = []
        starts = [0, 0]
        for fold in self.trials.folds:
            trials = fold.trials
            speaker = trials.speaker[trials.pairs[:, 0]]
            ends = [starts[0] + trials.n_targets, starts[1] + len(trials.weight)]
            shares = np.concatenate([loss[a:b] for loss, a, b in zip(losses, starts, ends, strict=True)])
            by_speaker.append(np.bincount(speaker, shares, minlength=int(trials.speaker.max()) + 1))
            starts = ends
        return np.concatenate(by_speaker)

    @reproducible()
    def shrinkage(self, free: tuple[str, ...]) -> Choice:
        """The best shrinkages, scales and calibration, the first two to three digits."""
        n = len(free)
        n_scales = 1 + ("session" in free)
        start = np.array([*(float(logit(getattr(self.start, name))) for name in free), *[0.0] * n_scales])
        # Logits beyond 6 are amounts of 0 or 1 to two digits; a factor of e^2.5 = 12 is no longer the trained model.
        limits = np.array([6.0] * n + [2.5] * n_scales)
        # Scales that few speakers choose are mostly noise. 1e-4 for 150 speakers lowers the cost of new ones most.
        penalty = 0.015 / self.trials.n_speakers

        def snap(theta: Floats) -> Floats:
            return np.concatenate([logit(np.round(expit(theta[:n]), 3)), np.log(np.round(np.exp(theta[n:]), 3))])

        def amounts(theta: Floats, digits: int = 15) -> tuple[Shrinkage, Scales]:
            a = Shrinkage(**dict(zip(free, np.round(expit(theta[:n]), digits).tolist(), strict=True)))
            return a, Scales(*np.round(np.exp(theta[n:]), digits).tolist())

        def change(theta: Floats) -> Change:
            a, scales = amounts(theta)
            return lambda shrinker: scaled(shrinker(a), scales)

        def scores(points: list[Floats]) -> list[Scores]:
            return self.scores(*map(change, points))

        search = Search(scores, limits, self.priors, penalty, self.trials.weight, self.observer, snap)
        best, cost, (scale, offset) = search(start, self.trials.first_scores)
        for theta, value in [*search.tried, (best, cost)]:
            a, scales = amounts(theta, 3)
            self.path.pop((*a, *scales), None)  # the last is what was chosen
            self.path[(*a, *scales)] = value
        return Choice(*amounts(best, 3), (float(scale), float(offset)), cost)
