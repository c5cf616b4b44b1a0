"""Kinds of channels that nobody labelled: learnt from a bounded sample, on which the model is then trained.

Which recordings of a session are of one kind is told by all of them together (`duoplda.model.kinds`), so they have to
be at hand. The sample (`duoplda.model.sample`) is the same from arrays, files in any order, and a cluster.
"""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import to_numpy
from duoplda.data import Recordings
from duoplda.data import labels as lab
from duoplda.data.recordings import ArrayRecordings
from duoplda.model import kinds
from duoplda.model.parameters import Model
from duoplda.model.sample import Sample
from duoplda.model.statistics import Statistics
from duoplda.selection.held_out import START, HeldOut

LIMITS = {
    "size": 1 << 28,
    "per_speaker": 64,
    "per_session": 16,
}  # bytes, sessions, recordings of each
MOST = 8  # kinds, where their number is to be found
FOLDS = 2  # of speakers, for that


def learn(plda: Any, recordings: Recordings, transform: Any, seed: int) -> tuple[Recordings, dict[int, float]]:
    """Recordings with kinds of channels, and the cost of each number of kinds that was tried.

    They stay as they are where they have labels of their kinds, or where one kind is the best choice.
    """
    sample = Sample.of(recordings, **LIMITS)
    if len(np.unique(sample.kind)) > 1:
        return recordings, {}
    X = sample.X if transform is None else transform(sample.X, sample.kind)
    rows = to_numpy(X).astype(np.float64, copy=False)
    labels = lab.encode(sample.speaker, sample.session, None, len(rows))
    learner = _Learner(plda, rows, labels, seed)
    costs: dict[int, float] = {}
    if plda.n_channels != "auto":
        best = learner.kinds(plda.n_channels)
    else:
        best = learner.kinds(1)
        lowest = learner.costs(1, best)
        costs[1] = float(lowest.sum())
        for K in range(2, MOST + 1):
            kind = learner.kinds(K)
            by_speaker = learner.costs(K, kind)
            costs[K] = float(by_speaker.sum())
            # One kind more has to gain more than chance would give it: a standard error over the held-out speakers.
            # Without this rule the last digits of the data decided where kinds bring next to nothing.
            gains = lowest - by_speaker
            if gains.sum() <= np.sqrt(len(gains)) * gains.std():
                break
            best = kind
            lowest = by_speaker
    if not best.any():
        return recordings, costs
    return ArrayRecordings(sample.X, labels=replace(labels, kinds=np.arange(int(best.max()) + 1), kind=best)), costs


class _Learner:
    """Rough models of the sample."""

    def __init__(self, plda: Any, rows: NDArray[np.float64], labels: lab.Labels, seed: int):
        factors = {name: getattr(plda, name) for name in ("n_speaker_factors", "n_session_factors")}
        given: dict[str, Any] = {name: None if n == "auto" else n for name, n in factors.items()}
        given |= {"max_iter": 10, "callback": None, "n_channels": None, "model": None, "criterion": "likelihood"}
        self.plda = plda
        self.rough = replace(plda, **given)
        self.rows = rows
        self.labels = labels
        self.seed = seed

    def kinds(self, K: int) -> lab.Ints:
        """The kind of each recording of the sample."""
        if K == 1:
            return np.zeros(len(self.rows), np.int64)
        return kinds.learn(self.rows, self.labels, K, lambda kind: self._train(self._statistics(kind)), self.seed)

    def costs(self, K: int, kind: lab.Ints) -> NDArray[np.float64]:
        """The cost of held-out trials whose kinds are inferred, as the share of each speaker.

        Where no trials can be made it is minus the log-likelihood of held-out speakers, as a single number.
        """
        stats = self._statistics(kind, n_folds=FOLDS)
        how = self.plda.by_trials(infer=True)
        held_out = HeldOut(stats, lambda part: self._train(part, 0.0))
        trials = None if how is None else how(stats, held_out)
        if trials is not None and trials.folds:
            return trials.cost_by_speaker(START)
        return np.array([held_out.cost(START)])

    def _statistics(self, kind: lab.Ints, n_folds: int = 0) -> Statistics:
        labels = replace(self.labels, kinds=np.arange(int(kind.max()) + 1), kind=kind)
        return Statistics.of(ArrayRecordings(self.rows, labels=labels), n_folds=n_folds, seed=self.seed)

    def _train(self, stats: Statistics, shrinkage: Any = tuple(START)) -> Model:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return replace(self.rough, shrinkage=shrinkage).fit_statistics(stats).model_
