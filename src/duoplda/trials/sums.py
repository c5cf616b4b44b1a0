"""Sides of the same recordings under one model after another.

What a side's gamma needs of its recordings are sums that no model enters: over the sessions of one type c, the sum of
the recordings of each kind k. With n recordings in a sum F,

    gamma = sum over (c, k) of  (F - n mu_k)' W_k V - (F - n mu_k)' W_k U P_c J_c

so that recordings are added up once, and each model costs the products with its own matrices.
"""

import numpy as np

from duoplda.arrays import Array, add_rows, put, reproducible, segment_sums, take, zeros
from duoplda.data.labels import Ints, Labels
from duoplda.model.parameters import Model, Terms
from duoplda.model.ragged import Patterns
from duoplda.trials.sides import Sides
from duoplda.trials.tables import Table


class Sums:
    """Recordings X (n, d) of kinds (n,), 0 .. K - 1, summed up for sides (n,), 0 .. S - 1.

    A session (n,) is one whole; None: each recording is a session of its own.
    """

    def __init__(self, X: Array, side: Ints, session: Ints | None, kind: Ints, K: int):
        cell = np.arange(len(side))
        if session is not None:
            cell = np.unique(side * (int(session.max()) + 1) + session, return_inverse=True)[1].reshape(-1)
        n_sides, n_cells = int(side.max()) + 1, int(cell.max()) + 1
        labels = Labels(np.arange(n_sides), np.arange(n_cells), np.arange(K), side, cell, kind)
        self.types, type_, _ = labels.types
        C = len(self.types)
        self.counts: Ints = np.bincount(labels.session_speaker * C + type_, minlength=n_sides * C).reshape(n_sides, C)
        self.patterns = Patterns(self.counts)
        place = (kind * C + type_[cell]) * n_sides + side
        order = np.argsort(place, kind="stable")
        starts = np.flatnonzero(np.diff(place[order], prepend=-1))
        self.F = segment_sums(take(X, order), starts)  # (R, d) by kind, then type, then side
        self.n = put(np.diff(np.append(starts, len(place))).astype(np.float64)[:, None], X)  # (R, 1)
        of_kind, cell = np.divmod(place[order][starts], C * n_sides)
        cells, self.cell = np.unique(cell, return_inverse=True)  # (R,) the cell of each sum: a type and a side
        of_type, self.side = np.divmod(cells, n_sides)
        self.kind_edges = np.searchsorted(of_kind, np.arange(K + 1)).tolist()
        self.type_edges = np.searchsorted(of_type, np.arange(C + 1)).tolist()

    @reproducible()
    def sides(self, model: Model) -> Sides:
        """The sides under a model with these kinds of channels; their ids are 0 .. S - 1, and no session has a name."""
        terms, n = Terms(model, self.types), len(self.side)
        v, z = zeros((n, model.ny), model.V), zeros((n, model.nx), model.V)
        for k in range(model.K):
            of = slice(*self.kind_edges[k : k + 2])
            G = self.F[of, :] - self.n[of, :] * model.mu[k, ...]
            add_rows(v, self.cell[of], G @ terms.WV[k, ...])
            add_rows(z, self.cell[of], G @ terms.WU[k, ...])
        gamma = zeros((len(self.counts), model.ny), model.V)
        for c in range(len(self.types)):
            of = slice(*self.type_edges[c : c + 2])
            add_rows(gamma, self.side[of], v[of, :] - z[of, :] @ terms.PJ[c, ...])
        people = Table(ids=np.arange(len(self.counts)), counts=self.counts, gamma=gamma)
        none = np.zeros(0, np.int64)
        sides = Sides(model, self.types, people, Table(name=np.zeros(0, "U1"), side=none, type=none, z=z[:0, :]))
        sides.terms, sides.patterns = terms, self.patterns
        return sides
