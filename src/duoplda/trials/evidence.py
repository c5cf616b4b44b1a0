"""How much sets of sessions speak for one speaker: exactly, and at a hundredth of the cost.

A cluster of sessions is (n, gamma), its counts of sessions by type and the vector of `duoplda.trials.sides`; both add
up when clusters merge. With Lambda = I + sum_c n_c G_c,

    Q(n, gamma) = (gamma'Lambda^-1 gamma - ln|Lambda|) / 2,    ln ratio of a and b = Q(a + b) - Q(a) - Q(b)

In the eigenvectors of the mean of the G_c the matrices are nearly diagonal. With lambda = sum_c n_c diag(G_c) there,

    Q ~ 1/2 sum_d [gamma_d^2 / (1 + lambda_d) - ln(1 + lambda_d)]

is exact where all sessions are of one type, and else a good guess which pairs deserve the exact one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import reproducible, to_numpy
from duoplda.data.labels import Ints
from duoplda.trials.exact import log_evidence
from duoplda.trials.sides import Sides

Floats = NDArray[np.float64]
NODES = 3  # of the interpolation in a bin
CELLS = 1 << 22  # of a block of the matrix of all pairs


@dataclass(frozen=True, eq=False)
class DiagonalEvidence:
    """What the types of sessions of a model say, in the eigenvectors of their mean."""

    basis: Floats  # (ny, ny)
    G: Floats  # (C, ny, ny)
    diagonals: Floats  # (C, ny)
    mean: Floats  # (ny,) lambda of a session, on average
    is_diagonal: bool  # the guess is exact
    types: Ints  # (C, K)

    @staticmethod
    @reproducible()
    def of(sides: Sides, *more: Sides) -> DiagonalEvidence:
        """For the sessions of some sides."""
        types = sides.types
        n = sides.counts.sum(axis=0)
        G = to_numpy(sides.terms.G)
        if more:
            types = np.concatenate([s.types for s in (sides, *more)])
            types, first, place = np.unique(types, axis=0, return_index=True, return_inverse=True)
            n = np.bincount(place.reshape(-1), np.concatenate([s.counts.sum(axis=0) for s in (sides, *more)]))
            G = np.concatenate([to_numpy(s.terms.G) for s in (sides, *more)])[first]
        n = n / max(1, n.sum())
        _, E = np.linalg.eigh(np.tensordot(n, G, axes=1))
        G = np.ascontiguousarray(E.T @ G @ E)
        diagonals = np.maximum(np.diagonal(G, axis1=1, axis2=2), 0.0)
        off = G - diagonals[:, :, None] * np.eye(G.shape[-1])
        alone = bool(np.abs(off).max(initial=0.0) <= 1e-11 * diagonals.max(initial=0.0))
        return DiagonalEvidence(E, G, diagonals, n @ diagonals, alone, types)

    # -- of single clusters

    def guess(self, gamma: Floats, lam: Floats) -> Floats:
        """(...) Q of clusters with gamma and lambda (..., ny), off the diagonals."""
        s = 1.0 + lam
        return (gamma * gamma / s - np.log(s)).sum(axis=-1) / 2

    @reproducible()
    def exact(self, counts: Floats, gamma: Floats) -> Floats:
        """(k,) Q of clusters with counts (k, C) and gamma (k, ny)."""
        if self.is_diagonal:
            return self.guess(gamma, counts @ self.diagonals)
        return log_evidence(self.G, counts, gamma)

    # -- of all pairs, by products

    @reproducible()
    def joined(self, gamma: Floats, lam: Floats, other: Floats, by: Floats) -> Floats:
        """(n, k) the guess at Q(a + b) of n clusters and k others that have the same lambda (ny,)."""
        D = 1 / (1.0 + lam + by)  # (n, ny)
        own = ((gamma * gamma) * D + np.log(D)).sum(axis=1) / 2
        return own[:, None] + (gamma * D) @ other.T + D @ (other * other).T / 2

    def pairs(self, gamma: Floats, lam: Floats) -> GuessedPairs:
        """The guesses at Q(a + b) of all pairs of clusters, in blocks."""
        own = BinnedSets(gamma, lam, self.mean)
        return GuessedPairs(own, own)

    @reproducible()
    def ratios(self, a: Sides, b: Sides) -> Floats:
        """(n, k) guesses at the ln likelihood ratios of two sets of sides that share no session."""
        sets = []
        for sides in (a, b):
            gamma = to_numpy(sides.gamma) @ self.basis
            sets.append(BinnedSets(gamma, self._counts(sides) @ self.diagonals, self.mean))
        pairs = GuessedPairs(*sets)
        out = np.empty((len(a), len(b)))
        Q = [self.guess(s.gamma, s.lam) for s in sets]
        for rows in pairs.blocks():
            part = pairs.block(rows) - Q[0][rows[0] : rows[1], None] - Q[1]
            out[np.ix_(sets[0].order[rows[0] : rows[1]], sets[1].order)] = part
        return out

    def _counts(self, sides: Sides) -> Floats:
        """(n, C) sessions by our types."""
        place = {t: c for c, t in enumerate(map(tuple, self.types.tolist()))}
        counts = np.zeros((len(sides), len(self.types)))
        counts[:, [place[t] for t in map(tuple, sides.types.tolist())]] = sides.counts
        return counts


class BinnedSets:
    """Clusters in bins by s, the number of sessions that their lambda is worth; within a bin it at most doubles."""

    def __init__(self, gamma: Floats, lam: Floats, g: Floats):
        s = np.maximum(lam.sum(axis=1) / max(float(g.sum()), 1e-300), 1e-12)
        bins = np.floor(np.log2(s)).astype(np.int64)
        self.order = np.argsort(bins, kind="stable")
        self.gamma = gamma[self.order]
        self.lam = lam[self.order]
        self.s = s[self.order]
        self.g = g
        levels, start = np.unique(bins[self.order], return_index=True)
        self.edges = np.append(start, len(s)).tolist()
        t = np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)
        self.nodes = [2.0**level * (1.5 + 0.5 * t) for level in levels.tolist()]

    def at(self, x: float) -> tuple[Floats, Floats]:
        """(n, ny) gamma / (1 + x g + lambda), and (n,) the terms of Q that belong to these clusters alone."""
        D = 1 / (1.0 + x * self.g + self.lam)
        return self.gamma * D, (self.gamma * self.gamma * D + np.log(D)).sum(axis=1) / 2


class GuessedPairs:
    """Q(a + b) of clusters with ragged counts, by matrix products.

    1 / (1 + lambda_a + lambda_b) is interpolated in lambda_a. With l_k the polynomials of Lagrange for the Chebyshev
    nodes s_k of a's bin and g the lambda of one session,

        gamma_a' gamma_b / (1 + lambda_a + lambda_b)
            ~ sum_k [l_k(lambda_a / g) gamma_a] . [gamma_b / (1 + s_k g + lambda_b)]

    The terms of b alone are interpolated likewise, and those of a in the bins of b.
    """

    def __init__(self, a: BinnedSets, b: BinnedSets):
        self.a = a
        self.b = b
        self.order = a.order
        self._bin = -1

    def blocks(self) -> list[tuple[int, int]]:
        """Ranges of rows, in the order of bins, that are computed at a time."""
        step = max(1, CELLS // max(len(self.b.s), 1))
        edges = self.a.edges
        return [(i, min(i + step, end)) for start, end in pairwise(edges) for i in range(start, end, step)]

    @reproducible()
    def block(self, rows: tuple[int, int]) -> Floats:
        """(k, n) of some rows a and all b, both in the order of their bins."""
        own = int(np.searchsorted(self.a.edges, rows[0], side="right")) - 1
        if self._bin != own:
            found, alone = zip(*(self.b.at(x) for x in self.a.nodes[own]), strict=True)
            self._bin = own
            self._right = np.concatenate([*found, np.stack(alone, axis=1)], axis=1)
        gamma, lam, s = (x[slice(*rows)] for x in (self.a.gamma, self.a.lam, self.a.s))
        g = self.a.g
        nodes = self.a.nodes[own]
        seen = g > 1e-9 * g.max()  # in other directions no session says anything
        worth = np.where(seen, lam / np.where(seen, g, 1.0), s[:, None])
        parts = [x * gamma for x in lagrange(worth, nodes)]
        out = np.concatenate([*parts, np.stack(lagrange(s, nodes), axis=1)], axis=1) @ self._right.T
        for j, others in enumerate(self.b.nodes):
            of = slice(*self.b.edges[j : j + 2])
            terms = [(gamma * gamma / (1.0 + x * g + lam)).sum(axis=1) / 2 for x in others]
            out[:, of] += np.stack(terms, axis=1) @ np.stack(lagrange(self.b.s[of], others))
        return out


def lagrange(x: Any, nodes: Floats) -> list[Any]:
    """The polynomials of Lagrange at x (an array of any library): 1 at one node and 0 at the others."""
    out = []
    for k, node in enumerate(nodes):
        value: Any = 1.0
        for other in np.delete(nodes, k):
            value = value * ((x - float(other)) / float(node - other))
        out.append(value)
    return out
