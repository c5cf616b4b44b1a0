"""The model of a case and, where it is adapted to the population, the same adaptation without some of the speakers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.case.material import Material
from duoplda.case.result import DomainCheck
from duoplda.data.labels import Ints
from duoplda.errors import DomainWarning
from duoplda.estimators import domain
from duoplda.estimators.backend import Backend
from duoplda.trials.sides import Sides

# Groups of speakers who are left out together. An adaptation takes most of the time of a case: with 5 groups, of which
# two neighbours are left out at a time, there are 6 adaptations in all. A calibration takes milliseconds.
ADAPTATION_GROUPS = 5
CALIBRATION_GROUPS = 12

Floats = NDArray[np.float64]


class Models:
    """The models that judge pairs: the model itself, or adaptations to the population without the speakers of a pair.

    Attributes
    ----------
    whole : the model that judges the case, adapted to the whole population if it is adapted at all
    group : the group of each speaker of the population (M,), in the order of their names
    """

    def __init__(self, model: Backend, population: Material, adapt: bool, seed: int):
        self.source = model
        self.population = population
        self.adapted = adapt
        M = len(population.speakers)
        self.n_groups = min(ADAPTATION_GROUPS if adapt else CALIBRATION_GROUPS, M)
        self.group: Ints = np.arange(M) % self.n_groups
        np.random.default_rng([seed, 1]).shuffle(self.group)
        self._made: dict[tuple[int, ...], Backend] = {}
        self.whole = self.without()

    def without(self, *groups: int) -> Backend:
        """Return the model that has not seen the speakers of some groups; each adaptation is made once."""
        if not self.adapted:
            return self.source
        key = tuple(sorted(set(groups)))
        if key not in self._made:
            out = self.population.speakers[np.isin(self.group, key)]
            kept = np.flatnonzero(~np.isin(self.population.speaker, out))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DomainWarning)  # the result has a check of the domain of its own
                self._made[key] = self.source.adapt(self.population.recordings(kept))
        return self._made[key]

    def turn(self, a: Ints, b: Ints) -> Ints:
        """Return (n,) the number of the model that judges pairs of speakers of groups a and b, for `left_out`, or -1.

        An adaptation for each pair of groups would take too long. So the groups are arranged in a circle, each model
        leaves out two neighbours, and speakers of groups that are not neighbours are not compared (-1). Without
        adaptation the model itself judges all pairs.
        """
        if not self.adapted:
            return np.zeros(len(a), np.int64)
        after = np.where((a == b) | ((a + 1) % self.n_groups == b), a, -1)
        return np.where((b + 1) % self.n_groups == a, b, after)

    def left_out(self, turn: int) -> Backend:
        """Return the model that is adapted without the group of this number and the next one."""
        return self.without(turn, (turn + 1) % self.n_groups)

    def moved(self, values: Floats) -> float:
        """Return the standard error of a value of the adapted model, from the values of the `left_out` models.

        It is a jackknife that leaves out two of the groups at a time.
        """
        return float(np.sqrt((self.n_groups - 2) / 2 * np.var(values)))


def sides_of(model: Backend, material: Material, rows: Sequence[Ints]) -> Sides:
    """Return sets of recordings as sides, in the order given, whose sessions have no names: sets share no session.

    Without names no `DomainWarning` is given either, as the case has its own check.
    """
    index = np.concatenate(rows)
    ids = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
    part = material.rows(index)
    sides = model.enroll(part.X, ids, part.session, part.kind, part.occasion)
    return sides.select(sides.find(np.arange(len(rows)))).unnamed()


def ratios(model: Backend, known: Sides, questioned: Sides, pairs: NDArray[Any], calibrated: bool = True) -> Floats:
    """Return (n,) natural-log ratios of pairs of sides, by the model's own calibration or without any."""
    return np.asarray(model.llr(known, questioned, pairs, calibrated))


def check_domain(model: Backend, parts: Sequence[Material], what: str, adapted: bool) -> DomainCheck:
    """Return how far recordings, in parts with speakers of their own, are from those of the model's training."""
    X = np.concatenate([part.X for part in parts])
    kinds = [part.kind for part in parts]
    named = [kind for kind in kinds if kind is not None]
    kind = np.concatenate(named) if len(named) == len(parts) else None
    speaker = np.concatenate([part.speaker for part in parts])
    session = np.concatenate([part.session for part in parts])
    seen = domain.see(model, X, None, kind)
    spread = domain.Spread.of(speaker, session)
    n_speakers = len(np.unique(speaker))
    if seen is None:  # the vectors are so large that their sum is not finite
        return DomainCheck(what, float("inf"), domain.limit(model, spread), False, len(X), n_speakers, adapted)
    measured = domain.measure(model, seen, spread)
    return DomainCheck(what, measured.distance, measured.limit, measured.within, len(X), n_speakers, adapted)
