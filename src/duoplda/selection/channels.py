"""Kinds of channels that nobody labelled: learnt from a bounded sample, on which the model is then trained.

The kind of a recording follows from all recordings of its session (`duoplda.model.kinds`), so these have to be in
memory. The sample (`duoplda.model.sample`) is the same from arrays, files in any order, and a cluster.

The number of kinds is chosen by held-out speakers. A larger number is taken where their recordings and the kinds of
these are together likelier, and where their trials cost less.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Array, symmetric, to_numpy
from duoplda.data import Recordings
from duoplda.data import labels as lab
from duoplda.data.recordings import ArrayRecordings
from duoplda.model import kinds
from duoplda.model.parameters import Model
from duoplda.model.posteriors import log_likelihoods
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
    """Kinds of the recordings, and how well models with these kinds describe each of the held-out speakers."""

    kind: lab.Ints
    surprise: NDArray[np.float64]  # -ln p of the speaker's recordings and of their kinds, divided by all recordings
    costs: NDArray[np.float64]  # what the speaker adds to the cost of trials; without trials, surprise


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
        learnt = [learner.learn(K) for K in range(1, LEAST_TRIED + 1)]
        while (best := _fewest(learnt)) is learnt[-1] and len(learnt) < MAX_KINDS:
            learnt.append(learner.learn(len(learnt) + 1))
        costs = {K: float(one.costs.sum()) for K, one in enumerate(learnt, start=1)}
    kind = best.kind
    if not kind.any():
        return recordings, costs
    return ArrayRecordings(sample.X, labels=replace(labels, kinds=np.arange(int(kind.max()) + 1), kind=kind)), costs


class _Learner:
    """Learns kinds from the sample by rough models, and judges them by speakers who are held out."""

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
        """The kinds that are learnt from the start with which trials of held-out speakers cost least.

        The likelier start was the dearer one on so762.
        """
        if K == 1:
            return self._judged(np.zeros(len(self.rows), np.int64))
        starts = [kinds.learn(self.rows, self.labels, K, self._model_of, self.seed, start) for start in kinds.STARTS]
        return min(map(self._judged, starts), key=lambda learnt: float(learnt.costs.sum()))

    def _judged(self, kind: lab.Ints) -> Learnt:
        """The kinds with what held-out speakers say of them; kinds are inferred in their trials.

        Each number of kinds is judged with the shrinkage that the final model would have. With the same amounts for
        all numbers, a third kind gained where two differ much in noise, even if it had a single recording: a kind
        moves towards the others by a share that falls with their number.
        """
        stats = self._statistics(kind, N_FOLDS)
        if not can_hold_out(stats):
            return Learnt(kind, np.zeros(1), np.zeros(1))
        folds = hold_out(stats, lambda part: self._train(part, Shrinkage()))
        surprise = np.concatenate([_surprise(fold, _guess(stats)) for fold in folds]) / len(kind)
        if self.rough.trials is None:
            return Learnt(kind, surprise, surprise)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            costs = self.rough.chosen(stats, compare=True).losses
        return Learnt(kind, surprise, costs if len(costs) > 1 else surprise)  # one number: no trials can be made

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
    """The guess, except that no kind is moved towards the others.

    A kind with little noise that is moved takes recordings of a louder kind for its own, and keeps them.
    """
    return guess_shrinkage(stats)._replace(channel=0.0)


def _fewest(learnt: list[Learnt]) -> Learnt:
    """The smallest number of kinds over which no larger one gains."""
    for i, fewer in enumerate(learnt):
        if not any(_gains(fewer, more) for more in learnt[i + 1 :]):
            break
    return fewer


def _gains(fewer: Learnt, more: Learnt) -> bool:
    """Whether held-out recordings are likelier with more kinds, by more than chance, and trials cost less.

    The likelihood says whether there are more kinds, and the one-standard-error rule whether they pay. Costs alone
    gain two standard errors in some data of one kind, as several numbers are compared with one.
    """
    likelier = gains_more_than_chance(fewer.surprise, more.surprise)
    return likelier and gain_in_errors(fewer.costs, more.costs) > 1


def _surprise(fold: HeldOutFold, shrinkage: Shrinkage) -> NDArray[np.float64]:
    """-ln p of the recordings of each speaker of a fold and of their kinds, of a model that has not seen the speaker.

    The kinds are part of it so that a kind that is split in two, whose halves nobody can tell apart, is less likely.
    """
    sample = fold.sample
    assert sample is not None
    model = fold.shrinker(shrinkage)
    kind = lab.codes_among(sample.kind, model.kinds, len(sample))
    share = np.maximum(fold.shrinker.N / fold.shrinker.N.sum(), 1e-12)  # a kind may be of this fold alone
    labels = replace(lab.encode(sample.speaker, sample.session, None, len(sample)), kinds=model.kinds, kind=kind)
    ln = to_numpy(log_likelihoods(model, sample.X.astype(np.float64, copy=False), labels))
    return -ln - np.bincount(labels.speaker, np.log(share)[kind])
