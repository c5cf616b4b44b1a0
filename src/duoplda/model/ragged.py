"""Posteriors of the speaker factors when speakers have ragged counts of sessions.

    y_i | Phi ~ N(Lambda_i^-1 gamma_i, Lambda_i^-1),   Lambda_i = I + sum_c n_ic G_c

Nearly every speaker then has a row of counts n_i, and so a Lambda_i to be inverted, of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda import arrays as ar
from duoplda.arrays import Array
from duoplda.data.labels import Ints


class Patterns:
    """Speakers with the same counts of sessions by type have the same Lambda: each is inverted once."""

    def __init__(self, counts: Ints, sizes: Ints | None = None):
        rows, index, multiplicity = np.unique(counts, axis=0, return_inverse=True, return_counts=True)
        recordings = rows @ (np.zeros(rows.shape[1], np.int64) if sizes is None else sizes)
        order = np.argsort(multiplicity, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        self.rows: Ints = rows[order]  # (P, C)
        self.recordings: Ints = recordings[order]  # (P,) of a speaker, where the sizes of the types are known
        self.multiplicity: Ints = multiplicity[order]  # (P,) speakers with that pattern, increasing
        self.index: Ints = rank[index.reshape(-1)]  # (M,) pattern of each speaker
        self.speakers: Ints = np.argsort(self.index, kind="stable")  # speakers in the order of the patterns
        self.start: Ints = np.concatenate([[0], np.cumsum(self.multiplicity)])

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, most: int) -> Iterator[range]:
        """Consecutive patterns, at most so many, that have equally many speakers."""
        edges = [*np.flatnonzero(np.diff(self.multiplicity, prepend=-1)).tolist(), len(self)]
        for a, b in itertools.pairwise(edges):
            for p in range(a, b, most):
                yield range(p, min(p + most, b))


def _runs(batches: Iterable[Any], least: int) -> Iterator[list[Any]]:
    """Consecutive batches until they hold at least so many patterns: one item of work, whose sums are added at once."""
    run: list[Any] = []
    for batch in batches:
        run.append(batch)
        if sum(map(len, run)) >= least:
            yield run
            run = []
    if run:
        yield run


@dataclass(frozen=True, eq=False)
class Speakers:
    """Posteriors of speaker factors: means (M, ny), ln|Lambda| by pattern (P,), and weighted sums of Lambda^-1."""

    mean: Array
    ln_Lambda: Array
    covariance: Array  # (Q, ny, ny) sum over patterns of weights[p, q] Lambda_p^-1


def inverses(G: Array, counts: Ints, invert: ar.SpdInverse) -> tuple[Array, Array]:
    """Lambda^-1 (m, ny, ny) and ln|Lambda| (m,) of Lambda = I + sum_c n_c G_c, for rows n of counts (m, C)."""
    (C, ny, _), m = G.shape, len(counts)
    xp = ar.namespace(G)
    flat, n = xp.reshape(G, (C, ny * ny)), ar.put(counts.astype(float), G)
    if xp is not np:
        return ar.spd_inverse(ar.eye(ny, G) + xp.reshape(n @ flat, (m, ny, ny)))
    out = invert.buffer(-1, m, ny, ny)  # which the next call with this `invert` overwrites
    np.matmul(n, flat, out=out.reshape(m, ny * ny))
    out.reshape(m, ny * ny)[:, :: ny + 1] += 1.0
    return out, invert(out)


def speakers(G: Array, patterns: Patterns, gamma: Array, weights: NDArray[Any] | None = None) -> Speakers:
    """The posteriors, one Lambda after another; `weights` (P, Q) are for Q weighted sums of the Lambda^-1."""
    xp = ar.namespace(G)
    ny, P = gamma.shape[1], len(patterns)
    weights = np.zeros((P, 0)) if weights is None else weights
    Q = weights.shape[1]
    ordered = ar.take(gamma, patterns.speakers)
    mean, ln = ar.zeros(ordered.shape, gamma), ar.zeros((P,), gamma)
    covariance, kept = ar.zeros((Q, ny * ny), gamma), {}

    def work(run: list[range], invert: ar.SpdInverse) -> Array:
        total = 0.0
        for p in run:
            m, r = len(p), int(patterns.multiplicity[p[0]])
            own, of = slice(p.start, p.stop), slice(int(patterns.start[p.start]), int(patterns.start[p.stop]))
            cov, ln[own] = inverses(G, patterns.rows[own], invert)
            if r > ar.ROWS:  # too many speakers for one thread
                kept.update({(of.start + i * r, of.start + (i + 1) * r): cov[i, ...] + 0.0 for i in range(m)})
            else:
                mean[of, :] = xp.reshape(xp.reshape(ordered[of, :], (m, r, ny)) @ cov, (m * r, ny))
            if Q:
                total = total + ar.put(weights[own].T, gamma) @ xp.reshape(cov, (m, ny * ny))
        return total

    if ny:
        most = max(1, (1 << 21 if xp is np else 1 << 28) // (8 * ny * ny))
        runs = _runs(patterns.batches(most), max(most, 2 * Q))
        for total in ar.in_order(work, runs, P * ny**3 if xp is np else 0, ar.SpdInverse):
            covariance += total
    for (a, b), cov in kept.items():
        mean[a:b, :] = ar.tall_product(ordered[a:b, :], cov)
    out = ar.zeros(ordered.shape, gamma)
    ar.set_rows(out, patterns.speakers, mean)
    return Speakers(out, ln, xp.reshape(covariance, (Q, ny, ny)))


@dataclass(frozen=True, eq=False)
class Diagonals:
    """One kind of channels: sessions of different size differ in a diagonal only.

    With U'WU = Q diag(e) Q', Z = diag(e)^-1/2 Q'U'WV and K = V'WV - Z'Z,

        G_L = L K + Z' diag(L / (1 + L e)) Z
        Lambda_i = I + N_i K + Z' diag(w_i) Z,   w_i = sum_L n_iL L / (1 + L e)
    """

    K: NDArray[Any]  # (ny, ny)
    Z: NDArray[Any]  # (nx, ny)
    e: NDArray[Any]  # (nx,)
    sizes: Ints  # (C,)

    @classmethod
    def of(cls, VWV: NDArray[Any], J: NDArray[Any], UWU: NDArray[Any], sizes: Ints) -> Diagonals:
        e, Q = np.linalg.eigh(UWU)
        e = np.maximum(e, 1e-300)
        Z = (Q.T @ J) / np.sqrt(e)[:, None]
        return cls(ar.symmetric(VWV - Z.T @ Z), Z, e, sizes)

    def pays(self, patterns: Patterns) -> bool:
        """Whether matrices of nx rows, and products for each number of recordings, cost less than matrices of ny."""
        (nx, ny), P, C = self.Z.shape, len(patterns), len(self.sizes)
        D = len(np.unique(patterns.recordings))
        return P * nx**3 + 1.5 * D * C * nx * ny * (nx + ny) < 0.6 * P * ny**3


GROUP = 64  # patterns whose matrices are inverted at a time


@ar.reproducible()
def speakers_by_rank(parts: Diagonals, patterns: Patterns, gamma: NDArray[Any], weights: NDArray[Any]) -> Speakers:
    """As `speakers`, by Woodbury's formula: matrices of nx rows are inverted instead of ny.

    In the eigenvectors of K (its values: k), D = diag(1 / (1 + N k)):

        Lambda^-1 = D - D Z' inner^-1 Z D,   inner = diag(1 / w) + Z D Z',   ln|Lambda| = ln|inner| + sum ln w - ln|D|

    Z D Z' depends on a speaker by its number of recordings N only, and so does what stands around inner^-1.
    """
    P, Qn, (nx, ny) = len(patterns), weights.shape[1], parts.Z.shape
    k, Q = np.linalg.eigh(parts.K)
    k, Z, g = np.maximum(k, 0.0), parts.Z @ Q, ar.tall_product(gamma, Q)
    ln, solved = np.empty(P), np.empty((len(gamma), ny))
    covariance = np.zeros((Qn, ny, ny))
    w = patterns.rows @ (parts.sizes[:, None] / (1 + parts.sizes[:, None] * parts.e))  # (P, nx)
    order = np.lexsort((patterns.multiplicity, patterns.recordings))
    edges = [0, *(np.flatnonzero(np.diff(patterns.recordings[order])) + 1).tolist(), P]

    def solve(of: Ints, inner: NDArray[Any], d: NDArray[Any], ZD: NDArray[Any]) -> None:
        """The means of the speakers with these patterns."""
        runs = [0, *(np.flatnonzero(np.diff(patterns.multiplicity[of])) + 1).tolist(), len(of)]
        for i, j in itertools.pairwise(runs):  # equally many speakers in each pattern
            r = int(patterns.multiplicity[of[i]])
            who = patterns.speakers[(patterns.start[of[i:j], None] + np.arange(r)).ravel()]
            Dg = g[who] * d
            x = ((Dg @ Z.T).reshape(j - i, r, nx) @ inner[i:j]).reshape(-1, nx)
            solved[who] = Dg - x @ ZD

    def work(run: list[Ints], invert: ar.SpdInverse) -> tuple[Any, Any]:
        total, diagonal = 0.0, 0.0
        for group in run:
            d = 1 / (1 + patterns.recordings[group[0]] * k)
            ZD = Z * d
            ZDZ, sums = ZD @ Z.T, np.zeros((Qn, nx * nx))
            for of in (group[i : i + GROUP] for i in range(0, len(group), GROUP)):
                inner = invert.buffer(-1, len(of), nx, nx)
                inner[...] = ZDZ
                inner.reshape(len(of), -1)[:, :: nx + 1] += 1 / w[of]
                ln[of] = invert(inner) - np.log(d).sum()
                solve(of, inner, d, ZD)
                sums += weights[of].T @ inner.reshape(len(of), -1)
            if Qn:
                total = total + ZD.T @ (sums.reshape(Qn, nx, nx) @ ZD)
                diagonal = diagonal + weights[group].sum(axis=0)[:, None] * d
        return total, diagonal

    groups = (  # of one number of recordings each
        order[i : min(i + 8 * GROUP, b)] for a, b in itertools.pairwise(edges) for i in range(a, b, 8 * GROUP)
    )
    for total, diagonal in ar.in_order(work, _runs(groups, GROUP), P * nx**3 + 4 * gamma.size * nx, ar.SpdInverse):
        covariance -= total
        covariance[:, np.arange(ny), np.arange(ny)] += diagonal
    ln += np.log(w).sum(axis=1)
    return Speakers(ar.tall_product(solved, Q.T), ln, ar.symmetric(Q @ covariance @ Q.T))
