"""Kinds of channels that nobody labelled: learnt from a bounded sample, on which the model is then trained.

Which recordings of a session are of one kind is told by all of them together (`duoplda.model.kinds`), so they have to
be at hand. The sample (`duoplda.model.sample`) is the same from arrays, files in any order, and a cluster.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Array, symmetric, to_numpy
from duoplda.data import Recordings
from duoplda.data import labels as lab
from duoplda.data.recordings import ArrayRecordings
from duoplda.model import kinds
from duoplda.model.parameters import Model
from duoplda.model.sample import Sample, SampleLimits
from duoplda.model.shrinkage import Shrinker
from duoplda.model.statistics import Statistics
from duoplda.observer import SILENT
from duoplda.selection.cost import gains_more_than_chance
from duoplda.selection.decision import HeldOutCost
from duoplda.selection.held_out import USUAL_SHRINKAGE, HeldOutLikelihood, guess_shrinkage, hold_out
from duoplda.selection.training import Training

Transform = Callable[[NDArray[np.float64], NDArray[np.str_]], Array]  # of rows and their kinds

MAX_KINDS = 8  # where their number is to be found


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
        best = learner.kinds(n_kinds)
    else:
        best = learner.kinds(1)
        lowest = learner.costs(best)
        costs[1] = float(lowest.sum())
        for K in range(2, MAX_KINDS + 1):
            kind = learner.kinds(K)
            by_speaker = learner.costs(kind)
            costs[K] = float(by_speaker.sum())
            if not gains_more_than_chance(lowest, by_speaker):
                break
            best = kind
            lowest = by_speaker
    if not best.any():
        return recordings, costs
    return ArrayRecordings(sample.X, labels=replace(labels, kinds=np.arange(int(best.max()) + 1), kind=best)), costs


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

    def kinds(self, K: int) -> lab.Ints:
        """The kind of each recording of the sample."""
        if K == 1:
            return np.zeros(len(self.rows), np.int64)
        return kinds.learn(self.rows, self.labels, K, lambda kind: self._train(self._statistics(kind)), self.seed)

    def costs(self, kind: lab.Ints) -> NDArray[np.float64]:
        """The cost of held-out trials whose kinds are inferred, as the share of each speaker.

        Where no trials can be made it is minus the log-likelihood of held-out speakers, as a single number.
        """
        stats = self._statistics(kind, n_folds=2)
        folds = hold_out(stats, lambda part: self._train(part, (0.0,)))
        if self.trials is not None:
            criterion = HeldOutCost(folds, guess_shrinkage(stats), replace(self.trials, infer_kinds=True))
            if criterion.trials.folds:
                return criterion.cost_by_speaker(_usually_shrunk)
        return HeldOutLikelihood(folds, USUAL_SHRINKAGE).cost_by_speaker(_usually_shrunk)

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
