"""Sessions of one occasion (a day, a call, a file) on a side of a trial.

The likelihood of each of m sessions of one occasion and side is raised to the power rho = 1 / (1 + (m - 1) kappa),

    evidence of a set of sessions s = ln of the integral over y of N(y; 0, I) times the product of P(Phi_s | y)^rho_s

which multiplies the sums (n, gamma) of the occasion by rho, Q(rho n, rho gamma), and leaves everything else as it is.
m, and with it rho, changes when sides are added to each other. That is why the sums of each occasion are kept without
rho.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Array, add_rows, add_segments, put, take, zeros
from duoplda.data.labels import Ints
from duoplda.model.occasions import session_weight
from duoplda.trials.tables import Table, as_text

Floats = NDArray[np.float64]


class Occasions:
    """The occasions of some sides.

    Attributes
    ----------
    kappa : what sessions of one occasion have in common, as a share of what differs from session to session
    name, side : (o,), (o,) the occasion, and the row of the side; two sides may have parts of one occasion
    counts, gamma : (o, C), (o, ny) sums of its sessions, which are also part of the sums of the side
    """

    def __init__(self, kappa: float, name: NDArray[Any], side: Ints, counts: Ints, gamma: Array):
        self.kappa = kappa
        self.table = Table(name=as_text(name), side=side, counts=counts, gamma=gamma)

    name = property(lambda self: self.table["name"])
    side = property(lambda self: self.table["side"])
    counts = property(lambda self: self.table["counts"])
    gamma = property(lambda self: self.table["gamma"])

    def __len__(self) -> int:
        return self.table.n

    def __getstate__(self) -> dict[str, Any]:
        return {"kappa": self.kappa, "table": self.table}

    @staticmethod
    def none(n_types: int, gamma: Array) -> Occasions:
        """No occasions, for sides with `n_types` types of sessions and with gamma (n, ny)."""
        ints = np.zeros((0, n_types), np.int64)
        return Occasions(0.0, np.zeros(0, "U1"), np.zeros(0, np.int64), ints, zeros((0, gamma.shape[1]), gamma))

    @cached_property
    def _places(self) -> dict[tuple[int, str], int]:
        return {key: row for row, key in enumerate(zip(self.side.tolist(), self.name.tolist(), strict=True))}

    @property
    def weight(self) -> Floats:
        """(o,) rho of each."""
        return session_weight(self.counts.sum(axis=1), self.kappa)

    def names(self, rows: Ints) -> list[str | None]:
        """The occasions of these rows, None where a row is -1."""
        known = self.name.tolist()
        return [known[row] if row >= 0 else None for row in rows.tolist()]

    def select(self, rows: Ints, side: Ints) -> Occasions:
        """The occasions of these rows, as those of the sides `side`."""
        part = self.table.take(rows)
        return Occasions(self.kappa, part["name"], side, part["counts"], part["gamma"])

    def widen(self, n_types: int) -> None:
        """Make room for further types of sessions."""
        room = n_types - self.counts.shape[1]
        self.table.columns["counts"] = np.pad(self.table.columns["counts"], ((0, 0), (0, room)))

    def add(self, other: Occasions, side: Ints, columns: Ints) -> Ints:
        """Add the occasions of other sides, and return the rows that they have here.

        `side` (o,) are the rows of their sides here, and `columns` the columns of their types of sessions.
        """
        places = self._places
        names = other.name.tolist()
        rows = np.array([places.setdefault(key, len(places)) for key in zip(side.tolist(), names, strict=True)], int)
        new = np.flatnonzero(rows >= len(self))
        counts = np.zeros((len(new), self.counts.shape[1]), np.int64)
        gamma = zeros((len(new), other.gamma.shape[1]), other.gamma)
        self.table.append(name=other.name[new], side=side[new], counts=counts, gamma=gamma)
        self.counts[rows[:, None], columns] += other.counts
        add_rows(self.gamma, rows, other.gamma)
        return rows

    def weighed(self, counts: Ints, gamma: Array) -> tuple[Floats, Array]:
        """The counts (n, C) and gamma (n, ny) of the sides, with each session counting for rho."""
        alone = counts.copy()  # sessions without an occasion
        np.subtract.at(alone, self.side, self.counts)
        weighed = alone.astype(np.float64)
        np.add.at(weighed, self.side, self.weight[:, None] * self.counts)
        order = np.argsort(self.side, kind="stable")
        loss = put((self.weight[order] - 1)[:, None], gamma) * take(self.gamma, order)
        out = gamma + 0.0
        add_segments(out, self.side[order], loss)
        # Sums of the same numbers in another order differ in the last bits. Rounding makes them one pattern.
        return np.round(weighed, 12), out
