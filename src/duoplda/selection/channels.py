"""Kinds of channels that nobody labelled: learnt from a bounded sample, on which the model is then trained.

Which recordings of a session are of one kind is told by all of them together (`duoplda.model.kinds`), so they have to
be at hand. The sample (`duoplda.model.sample`) is the same from arrays, files in any order, and a cluster.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from duoplda.arrays import Array, symmetric, to_numpy
from duoplda.data import Recordings
from duoplda.data import labels as lab
from duoplda.data.recordings import ArrayRecordings
from duoplda.model import kinds
from duoplda.model.parameters import Model
from duoplda.model.posteriors import kind_log_joint
from duoplda.model.sample import Sample, SampleLimits
from duoplda.model.shrinkage import Shrinker
from duoplda.model.statistics import Statistics
from duoplda.observer import SILENT
from duoplda.selection.cost import gain_in_errors, gains_more_than_chance
from duoplda.selection.decision import HeldOutCost
from duoplda.selection.held_out import USUAL_SHRINKAGE, HeldOutFold, can_hold_out, guess_shrinkage, hold_out
from duoplda.selection.training import Training

Transform = Callable[[NDArray[np.float64], NDArray[np.str_]], Array]  # of rows and their kinds

MAX_KINDS = 8  # where their number is to be found
# Two kinds may gain nothing where three gain much: of the five channels of so762, two make one kind of three of them.
LEAST_TRIED = 3


class Learnt(NamedTuple):
    """Kinds of the recordings, and what speakers who were held out say of them, each its share."""

    kind: lab.Ints
    costs: NDArray[np.float64]  # of trials between them; where no trials can be made, the surprise
    surprise: NDArray[np.float64]  # -ln p of their recordings, whatever their kinds are, by recording


def learn(
    training: Training, n_kinds: int | str, recordings: Recordings, transform: Transform | None, seed: int
) -> tuple[Recordings, dict[int, float]]:
    """Recordings with kinds of channels, and the cost of each number of kinds that was tried.

    They stay as they are where they have labels of their kinds, or where one kind is the best choice.
    """
    sample = Sample.of(recordings, SampleLimits(n_bytes=1 << 28, per_speaker=64, per_session=16))
    if len(np.unique(sample.kind)) > 1:
        return recordings, {}
    X = sample.X if transform is None else transform(sample.X, sample.kind)
    rows = to_numpy(X).astype(np.float64, copy=False)
    labels = lab.encode(sample.speaker, sample.session, None, len(rows))
    learner = _Learner(training, rows, labels, seed)
    costs: dict[int, float] = {}
    if not isinstance(n_kinds, str):
        best = learner.learn(n_kinds)
    else:
        best = learner.learn(1)
        costs[1] = float(best.costs.sum())
        for K in range(2, MAX_KINDS + 1):
            more = learner.learn(K)
            costs[K] = float(more.costs.sum())
            if _is_better(more, best):
                best = more
            elif K >= LEAST_TRIED:
                break
    kind = best.kind
    if not kind.any():
        return recordings, costs
    return ArrayRecordings(sample.X, labels=replace(labels, kinds=np.arange(int(kind.max()) + 1), kind=kind)), costs


class _Learner:
    """Rough models of the sample."""

    def __init__(self, training: Training, rows: NDArray[np.float64], labels: lab.Labels, seed: int):
        ny = training.n_speaker_factors
        nx = training.n_session_factors
        self.rough = replace(
            training,
            n_speaker_factors=None if ny == "auto" else ny,
            n_session_factors=None if nx == "auto" else nx,
            model=None,
            trials=None,
            em_options=replace(training.em_options, max_iter=10),  # what is rough needs no convergence
            observer=SILENT,
        )
        self.trials = training.trials
        self.rows = rows
        self.labels = labels
        self.seed = seed

    def learn(self, K: int) -> Learnt:
        """Kinds that are learnt from each start; those whose held-out trials cost least."""
        if K == 1:
            return self._judged(np.zeros(len(self.rows), np.int64))
        learnt = []
        for start in kinds.STARTS:
            kind = kinds.learn(
                self.rows, self.labels, K, lambda kind: self._train(self._statistics(kind)), self.seed, start
            )
            learnt.append(self._judged(kind))
        return min(learnt, key=lambda one: float(one.costs.sum()))

    def _judged(self, kind: lab.Ints) -> Learnt:
        """The kinds with what held-out speakers say of them, whose kinds are inferred; 0 where none can be held out."""
        stats = self._statistics(kind, n_folds=2)
        if not can_hold_out(stats):
            return Learnt(kind, np.zeros(1), np.zeros(1))
        folds = hold_out(stats, lambda part: self._train(part, (0.0,)))
        surprise = np.concatenate([_surprise(fold) for fold in folds]) / len(kind)
        costs = surprise
        if self.trials is not None:
            criterion = HeldOutCost(folds, guess_shrinkage(stats), replace(self.trials, infer_kinds=True))
            if criterion.trials.folds:
                costs = criterion.cost_by_speaker(_usually_shrunk)
        return Learnt(kind, costs, surprise)

    def _statistics(self, kind: lab.Ints, n_folds: int = 0) -> Statistics:
        labels = replace(self.labels, kinds=np.arange(int(kind.max()) + 1), kind=kind)
        return Statistics.of(ArrayRecordings(self.rows, labels=labels), n_folds=n_folds, seed=self.seed)

    def _train(self, stats: Statistics, shrinkage: tuple[float, ...] = tuple(USUAL_SHRINKAGE)) -> Model:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = replace(self.rough, shrinkage=shrinkage)(stats).model
        return replace(model, W=symmetric(model.W))


def _usually_shrunk(shrinker: Shrinker) -> Model:
    return shrinker(USUAL_SHRINKAGE)


def _is_better(more: Learnt, best: Learnt) -> bool:
    """Whether trials cost less with more kinds, and these and the likelihood together say so by three standard errors.

    Costs alone took a kind of 14 recordings that gained .0001 bits for one in a drawn set without kinds, and likelihood
    alone sees little of kinds that differ in their means.
    """
    likelier = gain_in_errors(best.surprise, more.surprise)
    together = (gain_in_errors(best.costs, more.costs) + likelier) / 2**0.5
    return gains_more_than_chance(best.costs, more.costs) and together > 3


def _surprise(fold: HeldOutFold) -> NDArray[np.float64]:
    """-ln p of the recordings of each speaker of a fold, under a model that has not seen them, whatever their kinds."""
    sample = fold.sample
    assert sample is not None
    share = np.maximum(fold.shrinker.N / fold.shrinker.N.sum(), 1e-12)  # a kind may be of this fold alone
    ln = logsumexp(kind_log_joint(_usually_shrunk(fold.shrinker), sample.X, share), axis=1)
    _, speaker = np.unique(sample.speaker, return_inverse=True)
    return np.bincount(speaker, -ln).astype(np.float64)
