"""What is chosen by the likelihood of held-out speakers: how far to shrink, and the numbers of factors."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from duoplda.arrays import reproducible
from duoplda.model.estep import EStep
from duoplda.model.parameters import Model
from duoplda.model.shrinkage import Scales, Shrinkage, Shrinker, target, truncate
from duoplda.model.statistics import Statistics


class Choice(NamedTuple):
    """What held-out speakers chose."""

    shrinkage: Shrinkage
    scales: Scales = Scales()
    calibration: tuple[float, float] | None = None  # scale and offset of the ratios, where trials chose
    cost: float | None = None  # of held-out trials, where they chose; a system without information costs 1


Progress = Callable[[int, int], None]  # gets the number of folds that are done, and of all
GRID = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
START = Shrinkage(0.5, 0.1, 0.1, 0.1)
CLIMB = ("noise", "session", "speaker", "channel")  # most of the likelihood is about the noise


def guess(stats: Statistics) -> Shrinkage:
    """A guess at the best shrinkage: d / (d + n) for a covariance in d dimensions that n differences tell of."""
    n = np.array([stats.n_speakers, stats.n_sessions, stats.n_recordings])
    shares = stats.d / (stats.d + np.diff(n, prepend=0.0))
    speaker, session, noise = np.round(np.clip(shares, 0.005, 0.95), 3).tolist()
    return Shrinkage(speaker, session, noise, START.channel)


class HeldOut:
    """Log-likelihood per recording of each fold's speakers under models that are trained, once, on the other folds."""

    @reproducible()
    def __init__(self, stats: Statistics, train: Callable[[Statistics], Model], progress: Progress | None = None):
        folds = [replace(f, sample=None) for f in stats.folds if len(f.speaker_ids)]
        self.parts = []
        self.path = dict[Any, float]()
        self.start = guess(stats)
        for i, fold in enumerate(folds):
            rest = Statistics.sum([f for f in folds if f is not fold])
            self.parts.append((EStep(fold), Shrinker(train(rest), target(rest), rest.N)))
            if progress is not None:
                progress(i + 1, len(folds))

    @staticmethod
    def possible(stats: Statistics) -> bool:
        """At least two folds, each with two speakers or more in the others."""
        sizes = [len(f.speaker_ids) for f in stats.folds if len(f.speaker_ids)]
        return len(sizes) >= 2 and sum(sizes) - max(sizes) >= 2

    def value(self, key: Any, change: Callable[[Shrinker], Model]) -> float:
        """That of the changed models, kept under `key`."""
        if key not in self.path:
            total = n = 0.0
            for e_step, fold in self.parts:
                total += e_step.ln_likelihood(change(fold))
                n += e_step.stats.n_recordings
            self.path[key] = total / n
        return self.path[key]

    def shrinkage(self, free: tuple[str, ...]) -> Choice:
        """The best amounts on the grid, those in `free` being climbed one at a time from near the guess at them."""

        def value(a: Shrinkage) -> float:
            return self.value(a, lambda fold: fold(a))

        at = Shrinkage(**{name: min(GRID, key=lambda a: abs(a - getattr(self.start, name))) for name in free})
        for _ in range(4):
            before = at
            for name in sorted(free, key=CLIMB.index):
                i = _climb(GRID.index(getattr(at, name)), len(GRID), lambda j: value(at._replace(**{name: GRID[j]})))  # noqa: B023
                at = at._replace(**{name: GRID[i]})
            if at == before:
                break
        return Choice(at)

    def cost(self, a: Shrinkage) -> float:
        """Minus the log-likelihood per recording at given amounts."""
        return -self.value(a, lambda fold: fold(a))

    def ranks(self, ny: int | None, nx: int | None, full: tuple[int, int]) -> tuple[int, int]:
        """The best numbers of factors: those that are given stay, None is chosen, up to `full`."""
        return best_ranks(ny, nx, full, lambda r: self.value(r, lambda fold: truncate(fold.model, *r)))


def best_ranks(ny: int | None, nx: int | None, full: tuple[int, int], value: Callable[..., float]) -> tuple[int, int]:
    """The numbers of factors of the highest value: those that are given stay, None is chosen, up to `full`."""
    shares = (1, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05)

    def grid(given: int | None, n: int) -> list[int]:
        if given is not None or not n:
            return [n if given is None else given]
        return sorted({max(1, round(n * share)) for share in shares})

    of_y = grid(ny, full[0])
    of_x = grid(nx, full[1])
    best = (of_y[-1], of_x[-1])
    for _ in range(2):
        best = max(((n, best[1]) for n in of_y), key=value)
        best = max(((best[0], n) for n in of_x), key=value)
    return best


def _climb(i: int, n: int, value: Callable[[int], float]) -> int:
    """The top that is reached from place i of n by going up."""
    for step in (1, -1):
        start = i
        while 0 <= i + step < n and value(i + step) > value(i):
            i += step
        if i != start:
            break
    return i
