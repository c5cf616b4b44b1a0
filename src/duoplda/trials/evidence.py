"""How much sets of sessions speak for one speaker: exactly, and at a hundredth of the cost.

A cluster of sessions is (n, gamma), its counts of sessions by type and the vector of `duoplda.trials.sides`; both add
up when clusters merge. With Lambda = I + sum_c n_c G_c,

    Q(n, gamma) = (gamma'Lambda^-1 gamma - ln|Lambda|) / 2,    ln ratio of a and b = Q(a + b) - Q(a) - Q(b)

In the eigenvectors of the mean of the G_c the matrices are nearly diagonal. With lambda = sum_c n_c diag(G_c) there,

    Q ~ 1/2 sum_d [gamma_d^2 / (1 + lambda_d) - ln(1 + lambda_d)]

is exact where all sessions are of one type, and else a good guess which pairs deserve the exact one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import reproducible, to_numpy
from duoplda.trials.sides import Sides

Floats = NDArray[np.float64]
BATCH = 1 << 23  # bytes of Lambdas at a time
NODES = 3  # of the interpolation in a bin
CELLS = 1 << 22  # of a block of the matrix of all pairs


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the types of sessions of a model say, in the eigenvectors of their mean."""

    basis: Floats  # (ny, ny)
    G: Floats  # (C, ny, ny)
    diagonals: Floats  # (C, ny)
    mean: Floats  # (ny,) lambda of a session, on average
    is_diagonal: bool = field(default=False)  # the guess is exact

    @staticmethod
    @reproducible()
    def of(sides: Sides) -> Evidence:
        """For the sessions of some sides."""
        G = to_numpy(sides.terms.G)
        n = sides.counts.sum(axis=0) / max(1, sides.counts.sum())
        _, E = np.linalg.eigh(np.tensordot(n, G, axes=1))
        G = np.ascontiguousarray(E.T @ G @ E)
        diagonals = np.maximum(np.diagonal(G, axis1=1, axis2=2), 0.0)
        off = G - diagonals[:, :, None] * np.eye(G.shape[-1])
        alone = bool(np.abs(off).max(initial=0.0) <= 1e-11 * diagonals.max(initial=0.0))
        return Evidence(E, G, diagonals, n @ diagonals, alone)

    # -- of single clusters

    def guess(self, gamma: Floats, lam: Floats) -> Floats:
        """(...) Q of clusters with gamma and lambda (..., ny), off the diagonals."""
        s = 1.0 + lam
        return (gamma * gamma / s - np.log(s)).sum(axis=-1) / 2

    @reproducible()
    def exact(self, counts: Floats, gamma: Floats) -> Floats:
        """(k,) Q of clusters with counts (k, C) and gamma (k, ny).

        One Cholesky factor serves both terms: the last row of that of [[Lambda, gamma], [gamma', 1 + gamma'gamma]] is
        gamma' times the inverse of Lambda's.
        """
        if self.is_diagonal:
            return self.guess(gamma, counts @ self.diagonals)
        k, ny = gamma.shape
        out, step = np.empty(k), max(1, BATCH // (8 * (ny + 1) ** 2))
        for a in range(0, k, step):
            c, g = counts[a : a + step], gamma[a : a + step]
            used = np.flatnonzero(c.any(axis=0))
            M = np.zeros((len(g), ny + 1, ny + 1))
            M[:, :ny, :ny] = np.tensordot(c[:, used], self.G[used], axes=1)
            M[:, np.arange(ny), np.arange(ny)] += 1.0
            M[:, ny, :ny], M[:, ny, ny] = g, 1.0 + (g * g).sum(axis=1)
            L = np.linalg.cholesky(M)
            ln = np.log(L[:, np.arange(ny), np.arange(ny)]).sum(axis=1)
            out[a : a + step] = (L[:, ny, :ny] ** 2).sum(axis=1) / 2 - ln
        return out

    # -- of all pairs, by products

    @reproducible()
    def joined(self, gamma: Floats, lam: Floats, other: Floats, by: Floats) -> Floats:
        """(n, k) the guess at Q(a + b) of n clusters and k others that have the same lambda (ny,)."""
        D = 1 / (1.0 + lam + by)  # (n, ny)
        own = ((gamma * gamma) * D + np.log(D)).sum(axis=1) / 2
        return own[:, None] + (gamma * D) @ other.T + D @ (other * other).T / 2

    def pairs(self, gamma: Floats, lam: Floats) -> Pairs:
        """The guesses at Q(a + b) of all pairs of clusters, in blocks."""
        return Pairs(gamma, lam, self.mean)


@dataclass(eq=False)
class Pairs:
    """Q(a + b) of clusters with ragged counts, by matrix products.

    1 / (1 + lambda_a + lambda_b) is interpolated in lambda_a: clusters are put into bins by s, the number of sessions
    that their lambda is worth, within which it changes by a factor of two at most. With l_k the polynomials of
    Lagrange for the Chebyshev nodes s_k of a's bin and g the lambda of one session,

        gamma_a' gamma_b / (1 + lambda_a + lambda_b) ~ sum_k [l_k(lambda_a / g) gamma_a] . [gamma_b / (1 + s_k g + lambda_b)]

    The terms of b alone are interpolated likewise, and those of a in the bins of b.
    """

    gamma: Floats
    lam: Floats
    g: Floats

    def __post_init__(self) -> None:
        s = np.maximum(self.lam.sum(axis=1) / max(float(self.g.sum()), 1e-300), 1e-12)
        bins = np.floor(np.log2(s)).astype(np.int64)
        self.order = np.argsort(bins, kind="stable")
        self.gamma, self.lam, self.s = self.gamma[self.order], self.lam[self.order], s[self.order]
        levels, start = np.unique(bins[self.order], return_index=True)
        self.edges = np.append(start, len(s)).tolist()
        t = np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)
        self.nodes = [2.0**level * (1.5 + 0.5 * t) for level in levels.tolist()]

    @staticmethod
    def _lagrange(x: Floats, nodes: Floats) -> list[Floats]:
        """The polynomials at x: 1 at one node and 0 at the others."""
        out = []
        for k, node in enumerate(nodes):
            rest = np.delete(nodes, k)
            out.append(np.prod([(x - r) / (node - r) for r in rest], axis=0))
        return out

    def _right(self, nodes: Floats) -> Floats:
        """(n, NODES (ny + 1)) of all clusters b, for the nodes of a's bin."""
        parts, own = [], []
        for s in nodes:
            D = 1 / (1.0 + s * self.g + self.lam)
            parts.append(self.gamma * D)
            own.append(((self.gamma * self.gamma * D) + np.log(D)).sum(axis=1) / 2)
        return np.concatenate([*parts, np.stack(own, axis=1)], axis=1)

    def blocks(self) -> list[tuple[int, int]]:
        """Ranges of rows, in the order of bins, that are computed at a time."""
        n = len(self.s)
        step = max(1, CELLS // max(n, 1))
        return [(i, min(i + step, b)) for a, b in zip(self.edges, self.edges[1:], strict=False) for i in range(a, b, step)]

    @reproducible()
    def block(self, rows: tuple[int, int]) -> Floats:
        """(k, n) of some rows a and all b, both in the order of `order`."""
        a, b = rows
        own = int(np.searchsorted(self.edges, a, side="right")) - 1
        if not hasattr(self, "_kept") or self._kept[0] != own:
            self._kept = (own, self._right(self.nodes[own]))
        gamma, lam, s = self.gamma[a:b], self.lam[a:b], self.s[a:b]
        seen = self.g > 1e-9 * self.g.max()  # in other directions no session says anything
        worth = np.where(seen, lam / np.where(seen, self.g, 1.0), s[:, None])
        of_lam, of_s = self._lagrange(worth, self.nodes[own]), self._lagrange(s, self.nodes[own])
        left = np.concatenate([*(l * gamma for l in of_lam), np.stack(of_s, axis=1)], axis=1)
        out = left @ self._kept[1].T
        for j, nodes in enumerate(self.nodes):
            of = slice(*self.edges[j : j + 2])
            terms = [(gamma * gamma / (1.0 + t * self.g + lam)).sum(axis=1) / 2 for t in nodes]
            out[:, of] += np.stack(terms, axis=1) @ np.stack(self._lagrange(self.s[of], nodes))
        return out
