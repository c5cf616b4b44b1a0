"""Training: from statistics to a model, with what has to be chosen on the way.

Numbers of factors and shrinkage that are "auto" are chosen by the likelihood of held-out speakers
(`duoplda.model.shrinkage`), a floor keeps the noise regular where data are few, and EM does the rest.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from duoplda.arrays import namespace
from duoplda.errors import DuopldaError
from duoplda.model import anova, em
from duoplda.model import shrinkage as shr
from duoplda.model.parameters import Model
from duoplda.model.statistics import Statistics

Ranks = tuple[int, int]  # numbers of speaker and of session factors
FLOOR = 1e-4  # of the mean variance, for noise that data leave singular, before it is shrunk


class Trained(NamedTuple):
    model: Model  # shrunk
    choice: shr.Choice
    path: dict[Any, float]  # log-likelihood per recording of held-out speakers, or cost, for each choice that was tried
    fit: em.Fit


@dataclass(frozen=True, eq=False)
class Training:
    """How to train; all but `random` are parameters of `duoplda.PLDA`."""

    n_speaker_factors: int | str | None = None
    n_session_factors: int | str | None = None
    shrinkage: tuple[float, ...] | str | None = None  # of 1, 3 or 4 numbers
    noise_floor: float = 0.0
    tol: float = 1e-6
    max_iter: int = 500
    accelerate: bool = True
    minimum_divergence: bool = True
    callback: Callable[[int, float, Model], Any] | None = None
    random: Callable[[], np.random.Generator] | None = None  # for random loadings; None: start from moments
    by_trials: Any = None  # chooses by held-out trials (`duoplda.evaluation.decision`); None: by likelihood

    def __call__(self, stats: Statistics, state: em.State | None = None) -> Trained:
        """Train a model; with `state`, EM goes on from there."""
        full = self._ranks(stats)
        anova.check_identifiable(stats, *full)
        reason = None if self.noise_floor else anova.singular(stats, *full)
        if reason is not None:
            if self.shrinkage is None:
                remedy = "Set shrinkage='auto', or noise_floor (for example 1e-4), or reduce the dimensions first"
                raise DuopldaError(f"{reason}. {remedy}")
            _warn(f"{reason}. Trained all the same, with a floor of {FLOOR:g} of the mean variance under the noise")
        ranks, path = full, {}
        given = (self.n_speaker_factors, self.n_session_factors)
        if "auto" in given:
            held_out = self._held_out(stats, full, "the numbers of factors")
            ny, nx = (None if g == "auto" else n for g, n in zip(given, full, strict=True))
            ranks, path = held_out.ranks(ny, nx, full), held_out.path
        choice, found = self._choice(stats, ranks)
        fit = self._em(stats, ranks, self.tol, self.callback, state)
        model = fit.model
        if any(choice.shrinkage):
            model = shr.Shrinker(model, shr.target(stats), stats.N)(choice.shrinkage)
        return Trained(model, choice, {**path, **found}, fit)

    def _ranks(self, stats: Statistics) -> Ranks:
        """The numbers of factors that are given; where one is not, the largest."""
        ny, nx = self.n_speaker_factors, self.n_session_factors
        ranks = [stats.d if ny is None or isinstance(ny, str) else int(ny)]
        ranks.append(anova.session_rank(stats) if nx is None or isinstance(nx, str) else int(nx))
        for name, n in zip(("n_speaker_factors", "n_session_factors"), ranks, strict=True):
            if n > stats.d:
                most = f"the {stats.d} dimensions of the data: use at most {stats.d}, or None"
                raise DuopldaError(f"{name}={n} is more than {most}")
        return ranks[0], ranks[1]

    def _em(self, stats: Statistics, ranks: Ranks, tol: float, callback: Any = None, state: Any = None) -> em.Fit:
        floor, few = float(self.noise_floor), _few(stats)
        if not floor and (few or (self.shrinkage is not None and anova.singular(stats, *ranks) is not None)):
            floor = FLOOR
        if floor:
            total = anova.total_covariance(stats)
            floor *= float(namespace(total).linalg.trace(total)) / stats.d or 1.0
        start = state
        if state is not None:
            own, sizes = tuple(getattr(state.model, a) for a in ("K", "d", "ny", "nx")), (stats.K, stats.d, *ranks)
            if own != sizes:
                raise DuopldaError(f"the state is of another training: its (K, d, ny, nx) are {own}, not {sizes}")
        elif self.random is None:
            start = em.moment_start(stats, *ranks, floor)
        else:
            start = em.random_start(stats, *ranks, self.random(), floor)
        how: dict[str, Any] = {"accelerate": self.accelerate, "minimum_divergence": self.minimum_divergence}
        how |= {"max_iter": self.max_iter, "floor": floor, "nu": stats.d if few else 1.0}
        return em.fit(stats, start, tol=tol, callback=callback, **how)

    def _held_out(self, stats: Statistics, ranks: Ranks, what: str) -> Any:
        """What chooses: the likelihood of held-out speakers, or the cost of their trials."""
        if not stats.folds:
            remedy = "gather them with n_folds=5, or give numbers"
            raise DuopldaError(f"held-out speakers can choose {what} only from statistics with folds: {remedy}")
        if not shr.HeldOut.possible(stats):
            raise DuopldaError(f"too few speakers ({len(stats.speaker_ids)}) to hold some out for {what}: give numbers")
        show = getattr(self.callback, "held_out", None)  # progress, for a callback that can show it
        held_out = shr.HeldOut(stats, lambda part: self._em(part, ranks, max(self.tol, 1e-4)).model, show)
        if self.by_trials is None:
            return held_out
        if self.by_trials.possible(stats):
            return self.by_trials(stats, held_out)
        cause = "no trials can be made of held-out speakers, as too few of them have two sessions"
        _warn(f"{cause}: their likelihood chooses {what}, and the ratios are not calibrated", 1)
        return held_out

    def _choice(self, stats: Statistics, ranks: Ranks) -> tuple[shr.Choice, dict[Any, float]]:
        """How far to shrink, as given or as held-out speakers choose, and what was tried."""
        several = ("channel",) if stats.K > 1 else ()
        possible = shr.HeldOut.possible(stats)
        if isinstance(self.shrinkage, tuple):  # one number for all; of three, that of the noise for kinds of channels
            given = self.shrinkage * 3 if len(self.shrinkage) == 1 else self.shrinkage
            return shr.Choice(shr.Shrinkage(*given, *(given[2:] if len(given) == 3 and several else ()))), {}
        if self.shrinkage is None:
            if not _few(stats):
                return shr.Choice(shr.Shrinkage()), {}
            free: tuple[str, ...] = several
            if not possible:
                cause = f"a kind of channels has fewer than {10 * stats.d} recordings, and no speakers can be held out"
                _warn(f"{cause}: the noise of each kind is moved halfway towards the mean", 1)
                return shr.Choice(shr.Shrinkage(channel=0.5)), {}
        else:
            free = ("speaker", *(("session",) if ranks[1] else ()), "noise", *several)
            if not possible and stats.folds:
                amount = shr.Shrinkage(**{name: getattr(shr.START, name) for name in free})
                few = f"too few speakers ({len(stats.speaker_ids)}) to hold some out"
                _warn(f"{few}: shrinkage set to {tuple(amount)}", 1)
                return shr.Choice(amount), {}
        chooser = self if self.shrinkage is not None else replace(self, by_trials=None)
        held_out = chooser._held_out(stats, ranks, "the shrinkage")
        return held_out.shrinkage(free), held_out.path


def _few(stats: Statistics) -> bool:
    """Whether a kind of channels has too few recordings for a covariance of its own."""
    return stats.K > 1 and bool((10 * stats.d > stats.N).any())


def _warn(message: str, deeper: int = 0) -> None:
    warnings.warn(message, UserWarning, stacklevel=5 + deeper)  # at the line that calls PLDA.fit
