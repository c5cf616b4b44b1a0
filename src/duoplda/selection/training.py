"""Training: from statistics to a model, with what has to be chosen on the way.

Models, numbers of factors and shrinkage that are "auto" are chosen by held-out speakers: by the cost of their trials
(`duoplda.selection.decision`) or by their likelihood (`duoplda.selection.held_out`). A floor keeps the noise regular
where data are few, and EM does the rest.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import namespace
from duoplda.errors import DuopldaError
from duoplda.model import anova, em, simpler
from duoplda.model import shrinkage as shr
from duoplda.model.parameters import Model
from duoplda.model.span import Span
from duoplda.model.statistics import Statistics
from duoplda.selection.held_out import START, Choice, HeldOut

Ranks = tuple[int, int]  # numbers of speaker and of session factors
FLOOR = 1e-4  # of the mean variance, for noise that data leave singular, before it is shrunk

NOTHING = 0.99  # a cost that says so


class Trained(NamedTuple):
    model: Model  # shrunk
    shares: NDArray[np.float64]  # (K,) of the kinds of channels among the recordings
    choice: Choice
    path: dict[Any, float]  # log-likelihood per recording of held-out speakers, or cost, for each choice that was tried
    fit: em.Fit
    costs: dict[
        str, float
    ]  # of the models among which one was chosen, the best first; less their likelihood, if that chose


class _Chosen(NamedTuple):
    """What held-out speakers chose for one model."""

    ranks: Ranks
    choice: Choice
    path: dict[Any, float]


@dataclass(frozen=True, eq=False)
class Training:
    """How to train; all but `random` are parameters of `duoplda.PLDA`."""

    n_speaker_factors: int | str | None = None
    n_session_factors: int | str | None = None
    model: str | None = None
    shrinkage: tuple[float, ...] | str | None = None  # of 1, 3 or 4 numbers
    noise_floor: float = 0.0
    tol: float = 1e-6
    max_iter: int = 500
    accelerate: bool = True
    minimum_divergence: bool = True
    callback: Callable[[int, float, Model], Any] | None = None
    random: Callable[[], np.random.Generator] | None = None  # for random loadings; None: start from moments
    by_trials: Any = None  # chooses by held-out trials (`duoplda.selection.decision`); None: by likelihood

    def __call__(self, stats: Statistics, state: em.State | None = None) -> Trained:
        """Train a model; with `state`, EM goes on from there."""
        if self.model != "auto":
            own = self._of(self.model, stats)
            stats = simpler.of(self.model, stats)
            return own._train(stats, own._chosen(stats), state)
        names = simpler.possible(stats)
        if len(names) == 1 or not HeldOut.possible(stats):
            if len(names) > 1:
                _warn(f"too few speakers ({len(stats.speaker_ids)}) to hold some out: model set to {names[0]!r}")
            return replace(self, model=names[0])(stats, state)
        found = {}
        for name in names:
            own = self._of(name, stats)
            part = simpler.of(name, stats)
            chosen = own._chosen(part)
            found[name] = (own._value(part, chosen), own, part, chosen)
        order = sorted(found, key=lambda name: found[name][0])
        _, own, part, chosen = found[order[0]]
        return own._train(part, chosen, state)._replace(costs={name: found[name][0] for name in order})

    def _of(self, model: str | None, stats: Statistics) -> Training:
        """The training of one model."""
        if model in simpler.MODELS and model not in (there := simpler.possible(stats)):
            needs = {"kinds": "kinds of channels", "two-source": "sessions with several recordings"}[model]
            raise DuopldaError(
                f"model={model!r} needs {needs}, which the labels do not have: {', '.join(there)} can be"
            )
        return replace(self, model=model, n_session_factors=0 if model == "plain" else self.n_session_factors)

    def _chosen(self, stats: Statistics) -> _Chosen:
        """What is left to choose before EM."""
        full = self._ranks(stats)
        anova.check_identifiable(stats, *full)
        if self.n_session_factors is None and (merged := anova.single_sessions(stats)):
            _warn(merged)
        reason = None if self.noise_floor else anova.singular(stats, *full)
        if reason is not None:
            if self.shrinkage is None:
                remedy = "Set shrinkage='auto', or noise_floor (for example 1e-4), or reduce the dimensions first"
                raise DuopldaError(f"{reason}. {remedy}")
            _warn(f"{reason}. Trained all the same, with a floor of {FLOOR:g} of the mean variance under the noise")
        ranks = full
        path = {}
        given = (self.n_speaker_factors, self.n_session_factors)
        if "auto" in given:
            held_out = self._held_out(stats, full, "the numbers of factors")
            ny, nx = (None if g == "auto" else n for g, n in zip(given, full, strict=True))
            ranks = held_out.ranks(ny, nx, full)
            path = held_out.path
        choice, found = self._choice(stats, ranks)
        return _Chosen(ranks, choice, {**path, **found})

    def _value(self, stats: Statistics, chosen: _Chosen) -> float:
        """What the models are compared by: the cost of held-out trials, or minus the likelihood."""
        if chosen.choice.cost is not None:
            return chosen.choice.cost
        amount = chosen.choice.shrinkage
        if self.by_trials is None and amount in chosen.path:
            return -chosen.path[amount]
        return self._held_out(stats, chosen.ranks, "the model").cost(amount)

    def _train(self, stats: Statistics, chosen: _Chosen, state: em.State | None) -> Trained:
        """EM, then what was chosen."""
        fit = self._em(stats, chosen.ranks, self.tol, self.callback, state)
        model = fit.model
        if any(chosen.choice.shrinkage):
            model = shr.Shrinker(model, shr.target(stats), stats.N)(chosen.choice.shrinkage)
        return Trained(model, stats.N / stats.N.sum(), chosen.choice, chosen.path, fit, {})

    def _ranks(self, stats: Statistics) -> Ranks:
        """The numbers of factors that are given; where one is not, the largest."""
        ny = self.n_speaker_factors
        nx = self.n_session_factors
        ranks = [stats.d if ny is None or isinstance(ny, str) else int(ny)]
        ranks.append(anova.session_rank(stats) if nx is None or isinstance(nx, str) else int(nx))
        for name, n in zip(("n_speaker_factors", "n_session_factors"), ranks, strict=True):
            if n > stats.d:
                most = f"the {stats.d} dimensions of the data: use at most {stats.d}, or None"
                raise DuopldaError(f"{name}={n} is more than {most}")
        return ranks[0], ranks[1]

    def _em(self, stats: Statistics, ranks: Ranks, tol: float, callback: Any = None, state: Any = None) -> em.Fit:
        floor = float(self.noise_floor)
        few = _few(stats)
        if not floor and (few or (self.shrinkage is not None and anova.singular(stats, *ranks) is not None)):
            floor = FLOOR
        if floor:
            total = anova.total_covariance(stats)
            floor *= float(namespace(total).linalg.trace(total)) / stats.d or 1.0
        how: dict[str, Any] = {"accelerate": self.accelerate, "minimum_divergence": self.minimum_divergence}
        how |= {"max_iter": self.max_iter, "floor": floor, "nu": stats.d if few else 1.0, "tol": tol}
        span = Span.of(stats, floor) if floor else None
        all_ranks = ranks
        if span is not None:
            stats = span.statistics(stats)
            ranks = (min(ranks[0], span.r), min(ranks[1], span.r))
            callback = span.callback(callback, *all_ranks)
        start = state
        if state is not None:
            own = tuple(getattr(state.model, a) for a in ("K", "d", "ny", "nx"))
            sizes = (stats.K, stats.d, *ranks)
            if own != sizes:
                raise DuopldaError(f"the state is of another training: its (K, d, ny, nx) are {own}, not {sizes}")
        elif self.random is None:
            start = em.moment_start(stats, *ranks, floor)
        else:
            start = em.random_start(stats, *ranks, self.random(), floor)
        fit = em.fit(stats, start, callback=callback, **how)
        return fit if span is None else span.fit(fit, *all_ranks)

    def _held_out(self, stats: Statistics, ranks: Ranks, what: str) -> Any:
        """What chooses: the likelihood of held-out speakers, or the cost of their trials."""
        if not stats.folds:
            remedy = "gather them with n_folds=5, or give numbers"
            raise DuopldaError(f"held-out speakers can choose {what} only from statistics with folds: {remedy}")
        if not HeldOut.possible(stats):
            raise DuopldaError(f"too few speakers ({len(stats.speaker_ids)}) to hold some out for {what}: give numbers")
        show = getattr(self.callback, "held_out", None)  # progress, for a callback that can show it
        held_out = HeldOut(stats, lambda part: self._em(part, ranks, max(self.tol, 1e-4)).model, show)
        if self.by_trials is None:
            return held_out
        trials = self.by_trials(stats, held_out, getattr(self.callback, "trials", None))
        if trials.folds:
            return trials
        cause = "no trials can be made of held-out speakers, as too few of them have two sessions"
        _warn(f"{cause}: their likelihood chooses {what}, and the ratios are not calibrated")
        return held_out

    def _choice(self, stats: Statistics, ranks: Ranks) -> tuple[Choice, dict[Any, float]]:
        """How far to shrink, as given or as held-out speakers choose, and what was tried."""
        several = ("channel",) if stats.K > 1 else ()
        possible = HeldOut.possible(stats)
        if isinstance(self.shrinkage, tuple):  # one number for all; of three, that of the noise for kinds of channels
            given = self.shrinkage * 3 if len(self.shrinkage) == 1 else self.shrinkage
            return Choice(shr.Shrinkage(*given, *(given[2:] if len(given) == 3 and several else ()))), {}
        if self.shrinkage is None:
            if not _few(stats):
                return Choice(shr.Shrinkage()), {}
            free: tuple[str, ...] = several
            if not possible:
                cause = f"a kind of channels has fewer than {10 * stats.d} recordings, and no speakers can be held out"
                _warn(f"{cause}: the noise of each kind is moved halfway towards the mean")
                return Choice(shr.Shrinkage(channel=0.5)), {}
        else:
            free = ("speaker", *(("session",) if ranks[1] else ()), "noise", *several)
            if not possible and stats.folds:
                amount = shr.Shrinkage(**{name: getattr(START, name) for name in free})
                few = f"too few speakers ({len(stats.speaker_ids)}) to hold some out"
                _warn(f"{few}: shrinkage set to {tuple(amount)}")
                return Choice(amount), {}
        chooser = self if self.shrinkage is not None else replace(self, by_trials=None)
        held_out = chooser._held_out(stats, ranks, "the shrinkage")
        choice = held_out.shrinkage(free)
        if choice.cost is not None and choice.cost > NOTHING:
            remedy = "are the labels of speakers right?"
            _warn(f"trials of held-out speakers cost {choice.cost:.3f}, where 1 is a guess: {remedy}")
        return choice, held_out.path


def _few(stats: Statistics) -> bool:
    """Whether a kind of channels has too few recordings for a covariance of its own."""
    return stats.K > 1 and bool((10 * stats.d > stats.N).any())


def _warn(message: str) -> None:
    """Warn at the line outside of this package that asked for the training."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("duoplda"):
        level = level + 1
        frame = frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)
