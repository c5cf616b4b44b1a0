"""The model of a case and, where it is adapted to the population, the same without some of its speakers."""

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

ADAPTATION_GROUPS = 5  # of speakers who are left out together, two neighbours at a time: 6 adaptations in all
CALIBRATION_GROUPS = 12  # a calibration takes milliseconds

Floats = NDArray[np.float64]


class Models:
    """Who judges which pair: the model itself, or one that is adapted to the population without the pair's speakers.

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
        """The model that has not seen the speakers of some groups; adaptations are made once."""
        if not self.adapted:
            return self.source
        key = tuple(sorted(set(groups)))
        if key not in self._made:
            out = self.population.speakers[np.isin(self.group, key)]
            kept = np.flatnonzero(~np.isin(self.population.speaker, out))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DomainWarning)  # the check of the domain is one of the result's own
                self._made[key] = self.source.adapt(self.population.recordings(kept))
        return self._made[key]

    def turn(self, a: Ints, b: Ints) -> Ints:
        """(n,) who judges pairs of speakers of groups a and b: `left_out` of that number; -1: nobody does.

        An adaptation takes most of the time. So groups sit around a table, each model leaves out two neighbours, and
        speakers of groups that are no neighbours are not compared. Without adaptation the model itself judges all.
        """
        if not self.adapted:
            return np.zeros(len(a), np.int64)
        after = np.where((a == b) | ((a + 1) % self.n_groups == b), a, -1)
        return np.where((b + 1) % self.n_groups == a, b, after)

    def left_out(self, turn: int) -> Backend:
        """The model of a turn: without the speakers of the group of that number and of the next one."""
        return self.without(turn, (turn + 1) % self.n_groups)

    def moved(self, values: Floats) -> float:
        """The standard error of what the adapted model says, by what each `left_out` model says in its place.

        It is a jackknife that leaves out 2 of the groups at a time.
        """
        return float(np.sqrt((self.n_groups - 2) / 2 * np.var(values)))


def sides_of(model: Backend, material: Material, rows: Sequence[Ints]) -> Sides:
    """Sets of recordings as sides, in the order given; their sessions have no names, as no set shares any with another.

    Without names no `DomainWarning` is given either: the case has its own check.
    """
    index = np.concatenate(rows)
    ids = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
    part = material.rows(index)
    sides = model.enroll(part.X, ids, part.session, part.kind, part.occasion)
    return sides.select(sides.find(np.arange(len(rows)))).unnamed()


def ratios(model: Backend, known: Sides, questioned: Sides, pairs: NDArray[Any], calibrated: bool) -> Floats:
    """(n,) natural-log ratios of pairs of sides."""
    return np.asarray(model.llr(known, questioned, pairs, calibrated))


def check_domain(model: Backend, parts: Sequence[Material], what: str, adapted: bool) -> DomainCheck:
    """How far recordings are from those of the model's training; those of each part are taken to be of its speakers."""
    X = np.concatenate([part.X for part in parts])
    kinds = [part.kind for part in parts]
    named = [kind for kind in kinds if kind is not None]
    kind = np.concatenate(named) if len(named) == len(parts) else None
    speaker = np.concatenate([part.speaker for part in parts])
    session = np.concatenate([part.session for part in parts])
    seen = domain.see(model, X, None, kind)
    spread = domain.Spread.of(speaker, session)
    n_speakers = len(np.unique(speaker))
    if seen is None:  # too large to add up
        return DomainCheck(what, float("inf"), domain.limit(model, spread), False, len(X), n_speakers, adapted)
    measured = domain.measure(model, seen, spread)
    return DomainCheck(what, measured.distance, measured.limit, measured.within, len(X), n_speakers, adapted)
