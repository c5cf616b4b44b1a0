"""Pairs of the population in one structure, with their ratios, by which a case is calibrated and validated."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from duoplda.case import calibration
from duoplda.case.calibration import PopulationPairs
from duoplda.case.models import Models, ratios, sides_of
from duoplda.case.structure import DRAWS, Pool, Shape
from duoplda.data.labels import Ints
from duoplda.estimators.backend import Backend
from duoplda.trials.sides import Sides

Floats = NDArray[np.float64]

MOST_DIFFERENT = 10_000  # pairs of sides of two speakers: more pairs of the same speakers add little


class Reference:
    """The speakers of the population who can fill a structure, their sides, and the ratios of pairs of these.

    Attributes
    ----------
    speakers : (M,) their names, sorted
    group : (M,) the group with which each speaker is left out
    drawn : for each speaker, the ways in which he or she fills the structure
    """

    def __init__(self, pool: Pool, models: Models, shape: Shape):
        self.models = models
        self.pool = pool
        self.shape = shape
        drawn = {name: pool.draw(name, shape, DRAWS) for name in pool.material.speakers.tolist()}
        able = np.array([bool(ways) for ways in drawn.values()])
        self.speakers = pool.material.speakers[able]
        self.group: Ints = np.unique(models.group[able], return_inverse=True)[1].reshape(-1)
        self._model_group = models.group[able]
        self.drawn = [drawn[name] for name in self.speakers.tolist()]

    @property
    def M(self) -> int:
        """The number of speakers."""
        return len(self.speakers)

    @cached_property
    def pairs(self) -> Ints:
        """(n, 4) the speaker and the draw of the known side, then those of the questioned side."""
        rows = list(self._same())
        order = np.random.default_rng([self.pool.seed, 2]).permutation(self.M)
        pairs = np.array(rows + list(self._different(order)))
        return pairs[self._turn(pairs) >= 0]

    def _turn(self, pairs: Ints) -> Ints:
        """(n,) the number of the model that judges each pair; -1 where none does."""
        return self.models.turn(self._model_group[pairs[:, 0]], self._model_group[pairs[:, 2]])

    def _same(self) -> Iterator[tuple[int, int, int, int]]:
        """Pairs of sides of one speaker that share neither a session nor an occasion."""
        material = self.pool.material
        labels = [material.session]
        if self.shape.known_occasions and material.occasion is not None:
            labels.append(material.occasion)
        for i, ways in enumerate(self.drawn):
            for r, s in product(range(len(ways)), repeat=2):
                known, questioned = ways[r].known, ways[s].questioned
                if not any(np.isin(label[known], label[questioned]).any() for label in labels):
                    yield i, r, i, s

    def _different(self, order: Ints) -> Iterator[tuple[int, int, int, int]]:
        """Pairs of sides of two speakers; around a circle, each speaker is paired with equally many others."""
        M = self.M
        others = min(M - 1, max(1, MOST_DIFFERENT // M))
        draws = max(1, MOST_DIFFERENT // (M * others))
        for place in range(M):
            i = int(order[place])
            for step in range(1, others + 1):
                j = int(order[(place + step) % M])
                n_i = len(self.drawn[i])
                n_j = len(self.drawn[j])
                for t in range(min(draws, n_i * n_j)):
                    yield i, t % n_i, j, (t // n_i + t + step) % n_j

    @cached_property
    def trials(self) -> PopulationPairs:
        """The pairs with their ratios by the model's own calibration, from models that have not seen their speakers."""
        i, _, j, _ = self.pairs.T
        return PopulationPairs(self._ratios(), i == j, i, j, self.M)

    def _ratios(self) -> Floats:
        """(n,) the ratio of each pair, by the model that has not seen its speakers."""
        out = np.empty(len(self.pairs))
        turn = self._turn(self.pairs)
        for number in np.unique(turn).tolist():
            these = np.flatnonzero(turn == number)
            model = self.models.left_out(number)
            pairs = self.pairs[these]
            known, row_known = self._sides(model, pairs[:, :2], 0)
            questioned, row_questioned = self._sides(model, pairs[:, 2:], 1)
            out[these] = ratios(model, known, questioned, np.stack([row_known, row_questioned], axis=1))
        return out

    def _sides(self, model: Backend, cells: Ints, side: int) -> tuple[Sides, Ints]:
        """The sides that `cells` (n, 2) name by speaker and draw, each side once, and the place of each cell's side."""
        wanted, place = np.unique(cells, axis=0, return_inverse=True)
        rows = [self.drawn[speaker][draw][side] for speaker, draw in wanted.tolist()]
        return sides_of(model, self.models.population, rows), place.reshape(-1)

    # -- calibration

    @cached_property
    def map(self) -> tuple[float, float]:
        """The scale and the offset that are learnt from all speakers."""
        return calibration.learn(self.trials, self.M)

    @cached_property
    def calibrated(self) -> Floats:
        """(n,) the ratios of the pairs, each calibrated by speakers of other groups."""
        scale, offset = calibration.left_out(self.trials, self.group)
        return scale * self.trials.scores + offset

    def half(self, which: NDArray[np.bool_]) -> tuple[float, float]:
        """The scale and the offset that are learnt from some of the speakers (M,)."""
        trials = self.trials
        part = trials.of(which[trials.a] & which[trials.b])
        return calibration.learn(part, int(which.sum()))

    def resampled(self, n: int, seed: int) -> tuple[Floats, Floats]:
        """How often each speaker is in each resample (n, M), and the scales and offsets that the resamples give."""
        rng = np.random.default_rng([seed, 3])
        times = rng.multinomial(self.M, np.full(self.M, 1 / self.M), n).astype(float)
        return times, calibration.resampled(self.trials, times)
