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
from duoplda.model.shrinkage import Shrinkage
from duoplda.model.statistics import Statistics
from duoplda.observer import SILENT
from duoplda.selection.cost import gain_in_errors, gains_more_than_chance
from duoplda.selection.held_out import HeldOutFold, can_hold_out, guess_shrinkage, hold_out
from duoplda.selection.training import Training

Transform = Callable[[NDArray[np.float64], NDArray[np.str_]], Array]  # of rows and their kinds

MAX_KINDS = 8  # where their number is to be found
# Two kinds may gain nothing where three gain much: of the five channels of so762, two make one kind of three of them.
LEAST_TRIED = 3
N_FOLDS = 5  # of speakers, as in `duoplda.PLDA`


class Learnt(NamedTuple):
    """Kinds of the recordings, and what speakers who were held out say of them, each its share."""

    kind: lab.Ints
    surprise: NDArray[np.float64]  # -ln p of their recordings, whatever their kinds are, by recording
    costs: NDArray[np.float64] = np.zeros(0)  # of trials between them; where none can be made, the surprise


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
    costs = {}
    if not isinstance(n_kinds, str):
        best = learner.learn(n_kinds)
    else:
        learnt = [learner.judged(K) for K in range(1, LEAST_TRIED + 1)]
        while (best := _fewest(learnt)) is learnt[-1] and len(learnt) < MAX_KINDS:
            learnt.append(learner.judged(len(learnt) + 1))
        costs = {K: float(one.costs.sum()) for K, one in enumerate(learnt, start=1)}
    kind = best.kind
    if not kind.any():
        return recordings, costs
    return ArrayRecordings(sample.X, labels=replace(labels, kinds=np.arange(int(kind.max()) + 1), kind=kind)), costs


class _Learner:
    """Rough models of the sample."""

    def __init__(self, training: Training, rows: NDArray[np.float64], labels: lab.Labels, seed: int):
        ny = training.n_speaker_factors
        nx = training.n_session_factors
        trials = training.trials
        self.rough = replace(
            training,
            n_speaker_factors=None if ny == "auto" else ny,
            n_session_factors=None if nx == "auto" else nx,
            model=None,
            trials=None if trials is None else replace(trials, infer_kinds=True, by_structure=False),
            em_options=replace(training.em_options, max_iter=10),  # what is rough needs no convergence
            observer=SILENT,
        )
        self.rows = rows
        self.labels = labels
        self.seed = seed

    def learn(self, K: int) -> Learnt:
        """Kinds that are learnt from each start; those with which recordings of held-out speakers are likeliest."""
        if K == 1:
            return self._learnt(np.zeros(len(self.rows), np.int64))
        starts = [kinds.learn(self.rows, self.labels, K, self._model_of, self.seed, start) for start in kinds.STARTS]
        return min(map(self._learnt, starts), key=lambda learnt: float(learnt.surprise.sum()))

    def judged(self, K: int) -> Learnt:
        """The same with the costs of trials of held-out speakers, whose kinds are inferred.

        The model is shrunk as the final one will be, and its shrinkage chosen where that is chosen. With amounts that
        are the same for all numbers of kinds, a further kind gained by what it changed in the others: of two kinds that
        differ much in noise, even one with a single recording did.
        """
        learnt = self.learn(K)
        stats = self._statistics(learnt.kind, N_FOLDS)
        if self.rough.trials is None or not can_hold_out(stats):
            return learnt._replace(costs=learnt.surprise)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            costs = self.rough.chosen(stats, compare=True).losses
        return learnt._replace(costs=costs if len(costs) > 1 else learnt.surprise)  # else no trials can be made

    def _learnt(self, kind: lab.Ints) -> Learnt:
        stats = self._statistics(kind, N_FOLDS)
        if not can_hold_out(stats):
            return Learnt(kind, np.zeros(1))
        folds = hold_out(stats, lambda part: self._train(part, Shrinkage()))
        return Learnt(kind, np.concatenate([_surprise(fold, _guess(stats)) for fold in folds]) / len(kind))

    def _model_of(self, kind: lab.Ints) -> Model:
        """A rough model with these kinds, shrunk by the guess."""
        stats = self._statistics(kind)
        return self._train(stats, _guess(stats))

    def _train(self, stats: Statistics, shrinkage: Shrinkage) -> Model:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = replace(self.rough, shrinkage=tuple(shrinkage))(stats).model
        return replace(model, W=symmetric(model.W))

    def _statistics(self, kind: lab.Ints, n_folds: int = 0) -> Statistics:
        labels = replace(self.labels, kinds=np.arange(int(kind.max()) + 1), kind=kind)
        return Statistics.of(ArrayRecordings(self.rows, labels=labels), n_folds=n_folds, seed=self.seed)


def _guess(stats: Statistics) -> Shrinkage:
    """The guess; but no kind is moved towards the others.

    Where a kind of little noise is, it would take recordings of a louder one for its own.
    """
    return guess_shrinkage(stats)._replace(channel=0.0)


def _fewest(learnt: list[Learnt]) -> Learnt:
    """The fewest kinds from which no larger number gains more than chance."""
    for i, fewer in enumerate(learnt):
        if not any(_gains(fewer, more) for more in learnt[i + 1 :]):
            break
    return fewer


def _gains(fewer: Learnt, more: Learnt) -> bool:
    """Whether recordings are likelier with more kinds, by more than chance, and trials cost a standard error less.

    The likelihood says whether there are more kinds, the costs whether these pay. Costs alone often gain two standard
    errors where there is one kind, as the best of two starts and of several numbers is compared with it.
    """
    likelier = gains_more_than_chance(fewer.surprise, more.surprise)
    return likelier and gain_in_errors(fewer.costs, more.costs) > 1


def _surprise(fold: HeldOutFold, shrinkage: Shrinkage) -> NDArray[np.float64]:
    """-ln p of the recordings of each speaker of a fold, under a model that has not seen them, whatever their kinds."""
    sample = fold.sample
    assert sample is not None
    share = np.maximum(fold.shrinker.N / fold.shrinker.N.sum(), 1e-12)  # a kind may be of this fold alone
    ln = logsumexp(kind_log_joint(fold.shrinker(shrinkage), sample.X, share), axis=1)
    _, speaker = np.unique(sample.speaker, return_inverse=True)
    return np.bincount(speaker, -ln).astype(np.float64)
