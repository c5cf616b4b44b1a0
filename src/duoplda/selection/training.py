"""Training of a model, with choices by held-out speakers.

Where the model, its numbers of factors or its shrinkage are "auto", held-out speakers choose: by the cost of their
trials (`duoplda.selection.decision`) or by their likelihood (`duoplda.selection.held_out`). Then the model is trained
on all speakers (`duoplda.model.training`), and shrunk.
"""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.errors import DuopldaError
from duoplda.model import anova, em, simpler
from duoplda.model.parameters import Model
from duoplda.model.shrinkage import Shrinkage, Shrinker, scaled, target
from duoplda.model.statistics import Statistics
from duoplda.model.training import SINGULAR_NOISE_FLOOR, EMOptions, some_kind_is_rare, train
from duoplda.observer import SILENT, Observer
from duoplda.selection.cost import gains_more_than_chance
from duoplda.selection.decision import HeldOutCost, TrialOptions
from duoplda.selection.held_out import (
    USUAL_SHRINKAGE,
    Choice,
    Criterion,
    HeldOutFold,
    HeldOutLikelihood,
    Path,
    Ranks,
    can_hold_out,
    guess_shrinkage,
    hold_out,
)


class Trained(NamedTuple):
    """A trained model, and the choices that led to it."""

    model: Model  # shrunk
    shares: NDArray[np.float64]  # (K,) of the kinds of channels among the recordings
    choice: Choice
    path: Path  # log-likelihood per recording of held-out speakers, or cost, of each choice that was tried
    fit: em.Fit
    costs: dict[str, float]  # by name of model, the chosen one first: costs of trials, or minus log-likelihoods


class _Candidate(NamedTuple):
    """A model that may be trained, with the choices of held-out speakers for it."""

    statistics: Statistics  # of its kinds of channels and sessions
    ranks: Ranks
    choice: Choice
    path: Path
    losses: NDArray[np.float64] = np.zeros(0)  # by which models are compared, if they are: their sum is the cost

    @property
    def cost(self) -> float:
        return float(self.losses.sum()) if self.choice.cost is None else self.choice.cost


@dataclass(frozen=True, eq=False)
class Training:
    """What to train and what to choose: checked parameters of `duoplda.PLDA`."""

    n_speaker_factors: int | str | None = None
    n_session_factors: int | str | None = None
    model: str | None = None
    shrinkage: tuple[float, ...] | str | None = None  # 1, 3 or 4 numbers, or "auto"
    trials: TrialOptions | None = None  # of held-out trials; None: the likelihood of held-out speakers chooses
    em_options: EMOptions = field(default_factory=EMOptions)
    observer: Observer = SILENT

    def __call__(self, stats: Statistics, state: em.State | None = None) -> Trained:
        """Train a model; with `state`, EM continues from there."""
        if self.model != "auto":
            return self._trained(self._candidate(self.model, stats), state)
        names = simpler.possible(stats)
        if len(names) == 1 or not can_hold_out(stats):
            if len(names) > 1:
                _warn(f"too few speakers ({len(stats.speaker_ids)}) to hold some out: model set to {names[0]!r}")
            return self._trained(self._candidate(names[0], stats), state)
        candidates = {name: self._candidate(name, stats, compare=True) for name in names}
        chosen = _simplest(candidates)
        costs = {name: candidates[name].cost for name in names}
        order = sorted(names, key=lambda name: (name != chosen, costs[name]))
        return self._trained(candidates[chosen], state)._replace(costs={name: costs[name] for name in order})

    def _candidate(self, name: str | None, stats: Statistics, compare: bool = False) -> _Candidate:
        """The candidate of a name, with its numbers of factors and shrinkage, and its losses with `compare`."""
        possible = simpler.possible(stats)
        if name in simpler.MODELS and name not in possible:
            needs = {"kinds": "kinds of channels", "two-source": "sessions with several recordings"}[name]
            has = ", ".join(possible)
            raise DuopldaError(f"model={name!r} needs {needs}, which the labels do not have: {has} can be")
        choosing = replace(self, n_session_factors=0) if name == "plain" else self
        return choosing.chosen(simpler.of(name, stats), compare)

    def chosen(self, stats: Statistics, compare: bool) -> _Candidate:
        """What held-out speakers choose, and the losses of theirs if models are to be compared."""
        full = self._full_ranks(stats)
        self._check(stats, full)
        path: Path = {}
        ranks = full
        wanted = (self.n_speaker_factors, self.n_session_factors)
        if "auto" in wanted:
            criterion = self._criterion(stats, full, "the numbers of factors", self.trials)
            ny, nx = (None if number == "auto" else n for number, n in zip(wanted, full, strict=True))
            ranks = criterion.ranks(ny, nx, full)
            path |= criterion.path
        choice, chooser = self._choice(stats, ranks)
        candidate = _Candidate(stats, ranks, choice, path | ({} if chooser is None else chooser.path))
        if not compare:
            return candidate
        if chooser is None or self.shrinkage is None:
            chooser = self._criterion(stats, ranks, "the model", self.trials)
        losses = chooser.cost_by_speaker(lambda shrinker: scaled(shrinker(choice.shrinkage), choice.scales))
        return candidate._replace(losses=losses)

    def _trained(self, candidate: _Candidate, state: em.State | None) -> Trained:
        stats, ranks, choice, path, _ = candidate
        will_be_shrunk = self.shrinkage is not None
        fit = train(stats, ranks, self.em_options, will_be_shrunk=will_be_shrunk, observer=self.observer, state=state)
        model = fit.model
        if any(choice.shrinkage):
            model = Shrinker(model, target(stats), stats.N)(choice.shrinkage)
        return Trained(model, stats.N / stats.N.sum(), choice, path, fit, {})

    def _full_ranks(self, stats: Statistics) -> Ranks:
        """The given numbers of factors; the largest possible where none is given."""
        largest = {"n_speaker_factors": stats.d, "n_session_factors": anova.session_rank(stats)}
        for name in largest:
            number = getattr(self, name)
            if number is not None and not isinstance(number, str):
                largest[name] = int(number)
                if number > stats.d:
                    limit = f"the {stats.d} dimensions of the data: use at most {stats.d}, or None"
                    raise DuopldaError(f"{name}={number} is more than {limit}")
        return largest["n_speaker_factors"], largest["n_session_factors"]

    def _check(self, stats: Statistics, ranks: Ranks) -> None:
        """Refuse data from which the parameters cannot be estimated, and warn of what is done where a remedy exists."""
        anova.check_identifiable(stats, *ranks)
        if self.n_session_factors is None and (merged := anova.single_sessions(stats)):
            _warn(merged)
        reason = None if self.em_options.noise_floor else anova.singular(stats, *ranks)
        if reason is None:
            return
        if self.shrinkage is None:
            remedy = "Set shrinkage='auto', or noise_floor (for example 1e-4), or reduce the dimensions first"
            raise DuopldaError(f"{reason}. {remedy}")
        floor = f"a floor of {SINGULAR_NOISE_FLOOR:g} of the mean variance under the noise"
        _warn(f"{reason}. Trained all the same, with {floor}")

    def _criterion(self, stats: Statistics, ranks: Ranks, what: str, trials: TrialOptions | None) -> Criterion:
        """The criterion of choice: the cost of held-out trials, or the likelihood where no trials can be made."""
        if not stats.folds:
            remedy = "gather them with n_folds=5, or give numbers"
            raise DuopldaError(f"held-out speakers can choose {what} only from statistics with folds: {remedy}")
        if not can_hold_out(stats):
            raise DuopldaError(f"too few speakers ({len(stats.speaker_ids)}) to hold some out for {what}: give numbers")
        # Models of folds only choose, so EM may stop early: another digit of the likelihood changes no choice.
        quick = replace(self.em_options, tol=max(self.em_options.tol, 1e-4))
        will_be_shrunk = self.shrinkage is not None
        folds: list[HeldOutFold] = hold_out(
            stats, lambda part: train(part, ranks, quick, will_be_shrunk=will_be_shrunk).model, self.observer
        )
        start = guess_shrinkage(stats)
        if trials is not None:
            criterion = HeldOutCost(folds, start, trials, self.observer)
            if criterion.trials.folds:
                return criterion
            cause = "no trials can be made of held-out speakers, as too few of them have two sessions"
            _warn(f"{cause}: their likelihood chooses {what}, and the ratios are not calibrated")
        return HeldOutLikelihood(folds, start)

    def _choice(self, stats: Statistics, ranks: Ranks) -> tuple[Choice, Criterion | None]:
        """The amounts of shrinkage, given or chosen by held-out speakers, and the criterion if they were chosen."""
        kinds = ("channel",) if stats.K > 1 else ()
        if isinstance(self.shrinkage, tuple):
            speaker, session, noise, *channel = self.shrinkage * 3 if len(self.shrinkage) == 1 else self.shrinkage
            if not channel and kinds:
                channel = [noise]
            return Choice(Shrinkage(speaker, session, noise, *channel)), None
        if self.shrinkage is None:
            return self._choice_of_kinds(stats, ranks)
        free = ("speaker", *(("session",) if ranks[1] else ()), "noise", *kinds)
        if not can_hold_out(stats) and stats.folds:
            usual = Shrinkage(**{name: getattr(USUAL_SHRINKAGE, name) for name in free})
            few = f"too few speakers ({len(stats.speaker_ids)}) to hold some out"
            _warn(f"{few}: shrinkage set to {tuple(usual)}")
            return Choice(usual), None
        criterion = self._criterion(stats, ranks, "the shrinkage", self.trials)
        choice = criterion.shrinkage(free)
        # At a cost so near to 1, scores of targets look like those of non-targets.
        if choice.cost is not None and choice.cost > 0.99:
            remedy = "are the labels of speakers right?"
            _warn(f"trials of held-out speakers cost {choice.cost:.3f}, where 1 is a guess: {remedy}")
        return choice, criterion

    def _choice_of_kinds(self, stats: Statistics, ranks: Ranks) -> tuple[Choice, Criterion | None]:
        """The choice for maximum likelihood: only the noise of kinds with few recordings moves towards the mean."""
        if not some_kind_is_rare(stats):
            return Choice(Shrinkage()), None
        if not can_hold_out(stats):
            cause = f"a kind of channels has fewer than {10 * stats.d} recordings, and no speakers can be held out"
            _warn(f"{cause}: the noise of each kind is moved halfway towards the mean")
            return Choice(Shrinkage(channel=0.5)), None
        criterion = self._criterion(stats, ranks, "the shrinkage", trials=None)
        return criterion.shrinkage(("channel",)), criterion


def _simplest(candidates: dict[str, _Candidate]) -> str:
    """The name of the simplest model than which no richer one is better by more than chance."""
    simplest, *richer = [name for name in reversed(simpler.MODELS) if name in candidates]
    for name in richer:
        if gains_more_than_chance(candidates[simplest].losses, candidates[name].losses):
            simplest = name
    return simplest


def _warn(message: str) -> None:
    """Warn, with the line outside of this package from which the training was called."""
    level = 1
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("duoplda"):
        level = level + 1
        frame = frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)
