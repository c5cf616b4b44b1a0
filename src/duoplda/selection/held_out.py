"""Models that have not seen the speakers of a fold, and choices by the likelihood of these speakers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import reproducible
from duoplda.evaluation.calibration import AffineCalibration, StructureCalibration
from duoplda.model.estep import EStep
from duoplda.model.parameters import Model
from duoplda.model.sample import Sample
from duoplda.model.shrinkage import Scales, Shrinkage, Shrinker, target, truncate
from duoplda.model.statistics import Statistics
from duoplda.observer import SILENT, Observer

Ranks = tuple[int, int]  # numbers of speaker and of session factors
Path = dict[tuple[float, ...], float]  # the value of each choice that was tried (shrinkages and scales, or ranks)
Change = Callable[[Shrinker], Model]  # a change that is tried: it gives the changed model of a fold

USUAL_SHRINKAGE = Shrinkage(0.5, 0.1, 0.1, 0.1)  # where too few speakers can be held out to choose better


class Choice(NamedTuple):
    """The choice of held-out speakers."""

    shrinkage: Shrinkage
    scales: Scales = Scales()
    calibration: AffineCalibration | StructureCalibration | None = None  # of the ratios, where trials chose
    cost: float | None = None  # of held-out trials, where they chose; a system without information costs 1
    kappa: float | None = None  # of sessions of one occasion, where trials across occasions chose it


@dataclass(frozen=True, eq=False)
class HeldOutFold:
    """A fold of speakers, and a model that was trained on all others."""

    statistics: Statistics  # without the sample
    sample: Sample | None
    shrinker: Shrinker


def can_hold_out(stats: Statistics) -> bool:
    """Whether there are at least two folds, each with two speakers or more in the others."""
    sizes = [len(fold.speaker_ids) for fold in stats.folds if len(fold.speaker_ids)]
    return len(sizes) >= 2 and sum(sizes) - max(sizes) >= 2


@reproducible()
def hold_out(stats: Statistics, train: Callable[[Statistics], Model], observer: Observer = SILENT) -> list[HeldOutFold]:
    """Train a model without the speakers of each fold in turn; folds without speakers are left out."""
    folds = [fold for fold in stats.folds if len(fold.speaker_ids)]
    bare = [replace(fold, sample=None) for fold in folds]
    held_out = []
    for i, fold in enumerate(folds):
        others = Statistics.sum(bare[:i] + bare[i + 1 :])
        shrinker = Shrinker(train(others), target(others), others.N)
        held_out.append(HeldOutFold(bare[i], fold.sample, shrinker))
        observer.fold(i + 1, len(folds))
    return held_out


def guess_shrinkage(stats: Statistics) -> Shrinkage:
    """A guess at the best shrinkage: d / (d + n) for a covariance of d dimensions estimated from n differences."""
    n = np.array([stats.n_speakers, stats.n_sessions, stats.n_recordings])
    shares = stats.d / (stats.d + np.diff(n, prepend=0.0))
    speaker, session, noise = np.round(np.clip(shares, 0.005, 0.95), 3).tolist()
    return Shrinkage(speaker, session, noise, USUAL_SHRINKAGE.channel)


class Criterion(ABC):
    """What is lowest for the best choice: a cost of held-out speakers."""

    path: Path
    path_sign = 1.0  # the factor of costs in the path

    @abstractmethod
    def cost(self, change: Change) -> float:
        """The cost of changed models; lower is better."""

    def cost_by_speaker(self, change: Change) -> NDArray[np.float64]:
        """What each speaker adds to the cost; a single number where it cannot be divided by speaker."""
        return np.array([self.cost(change)])

    @abstractmethod
    def shrinkage(self, free: tuple[str, ...]) -> Choice:
        """The best amounts of shrinkage of the covariances in `free`; those of the others are 0."""

    def kept_cost(self, key: tuple[float, ...], change: Change) -> float:
        """The cost of changed models, computed once and kept in `path`."""
        if key not in self.path:
            self.path[key] = self.path_sign * self.cost(change)
        return self.path_sign * self.path[key]

    def ranks(self, ny: int | None, nx: int | None, full: Ranks) -> Ranks:
        """The best numbers of factors: None is chosen, from a few shares of `full`; numbers that are given stay."""
        shares = (1, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05)

        def grid(given: int | None, n: int) -> list[int]:
            if given is not None or not n:
                return [n if given is None else given]
            return sorted({max(1, round(n * share)) for share in shares})

        def cost(ranks: Ranks) -> float:
            return self.kept_cost(ranks, lambda shrinker: truncate(shrinker.model, *ranks))

        speaker_ranks = grid(ny, full[0])
        session_ranks = grid(nx, full[1])
        best = (speaker_ranks[-1], session_ranks[-1])
        for _ in range(2):
            best = min(((n, best[1]) for n in speaker_ranks), key=cost)
            best = min(((best[0], n) for n in session_ranks), key=cost)
        return best


class HeldOutLikelihood(Criterion):
    """Minus the log-likelihood per recording of held-out speakers; `path` has the log-likelihoods themselves."""

    path_sign = -1.0

    def __init__(self, folds: list[HeldOutFold], start: Shrinkage):
        self.path = {}
        self.start = start
        self.n_recordings = sum(fold.statistics.n_recordings for fold in folds)
        self.folds = [(EStep(fold.statistics), fold.shrinker) for fold in folds]

    @reproducible()
    def cost(self, change: Change) -> float:
        total = 0.0
        for e_step, shrinker in self.folds:
            total += e_step.ln_likelihood(change(shrinker))
        return -total / self.n_recordings

    def shrinkage(self, free: tuple[str, ...]) -> Choice:
        """The best amounts on a grid, searched one after another from near the guess."""
        grid = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
        by_effect = ("noise", "session", "speaker", "channel")  # most of the likelihood is about the noise

        best = Shrinkage(**{name: min(grid, key=lambda a: abs(a - getattr(self.start, name))) for name in free})
        for _ in range(4):
            before = best
            for name in sorted(free, key=by_effect.index):
                best = self._descend([best._replace(**{name: a}) for a in grid], best)
            if best == before:
                break
        return Choice(best)

    def _descend(self, tried: list[Shrinkage], start: Shrinkage) -> Shrinkage:
        """The lowest of the amounts that is reached from `start` step by step, in one direction or in the other."""

        def cost(i: int) -> float:
            amounts = tried[i]
            return self.kept_cost(amounts, lambda shrinker: shrinker(amounts))

        i = tried.index(start)
        for step in (1, -1):
            while 0 <= i + step < len(tried) and cost(i + step) < cost(i):
                i += step
            if tried[i] != start:
                break
        return tried[i]
