"""Posteriors of the speaker factors where speakers differ in their numbers of sessions by type.

    y_i | Phi ~ N(Lambda_i^-1 gamma_i, Lambda_i^-1),   Lambda_i = I + sum_c n_ic G_c

Nearly every speaker may have a row of counts n_i of its own, and so a Lambda_i of its own to be inverted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda import arrays as ar
from duoplda.arrays import Array
from duoplda.data.labels import Ints


class Patterns:
    """The distinct rows of counts (M, C). Speakers with the same row have the same Lambda, which is inverted once.

    With `index` (M,), the rows of `counts` are known to differ, and speaker m has row index[m]: this saves a search for
    equal rows, which may take longer than the inverses.
    """

    def __init__(self, counts: NDArray[Any], sizes: Ints | None = None, index: Ints | None = None):
        rows = counts
        if index is None:
            rows, index = np.unique(counts, axis=0, return_inverse=True)
        multiplicity = np.bincount(index.reshape(-1), minlength=len(rows))
        recordings = rows @ (np.zeros(rows.shape[1], np.int64) if sizes is None else sizes)
        order = np.argsort(multiplicity, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        self.rows: Ints = rows[order]  # (P, C)
        self.recordings: Ints = recordings[order]  # (P,) recordings of a speaker; 0 without `sizes` (C,)
        self.multiplicity: Ints = multiplicity[order]  # (P,) speakers with that pattern, increasing
        self.index: Ints = rank[index.reshape(-1)]  # (M,) pattern of each speaker
        self.speakers: Ints = np.argsort(self.index, kind="stable")  # speakers in the order of the patterns
        self.start: Ints = np.concatenate([[0], np.cumsum(self.multiplicity)])

    def __len__(self) -> int:
        return len(self.rows)

    def runs(self, most: int, least: int) -> Iterator[list[range]]:
        """Runs of consecutive batches, each run of at least `least` patterns, except for the last one.

        A batch is a range of at most `most` patterns with equal multiplicity.
        """
        edges = [*np.flatnonzero(np.diff(self.multiplicity, prepend=-1)).tolist(), len(self)]
        run: list[range] = []
        for a, b in itertools.pairwise(edges):
            for p in range(a, b, most):
                run.append(range(p, min(p + most, b)))
                if run[-1].stop - run[0].start >= least:
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


def at_once(G: Array) -> int:
    """How many matrices Lambda are inverted at a time, for G (C, ny, ny)."""
    bytes_each = 8 * max(G.shape[-1], 1) ** 2
    if ar.namespace(G) is not np:
        return max(1, (1 << 28) // bytes_each)  # a device takes what fits into 256 MB
    # With fewer than 48 (or 2 MB), threads wait for each other, as only one of them can call Python at a time. More
    # than 8 MB do not stay in the caches.
    return max(1, min(max(48, (1 << 21) // bytes_each), (1 << 23) // bytes_each))


def inverses(G: Array, counts: Ints, invert: ar.SpdInverse, out: NDArray[Any] | None = None) -> tuple[Array, Array]:
    """Lambda^-1 (m, ny, ny) and ln|Lambda| (m,) of Lambda = I + sum_c n_c G_c, for rows n of counts (m, C).

    On the host, inverses are written to `out` (m, ny, ny); without it, to a buffer that the next call overwrites.
    """
    C, ny, _ = G.shape
    m = len(counts)
    xp = ar.namespace(G)
    flat = xp.reshape(G, (C, ny * ny))
    n = ar.put(counts.astype(float), G)
    if xp is not np:
        return ar.spd_inverse(ar.eye(ny, G) + xp.reshape(n @ flat, (m, ny, ny)))
    out = invert.buffer(-1, m, ny, ny) if out is None else out
    np.matmul(n, flat, out=out.reshape(m, ny * ny))
    out.reshape(m, ny * ny)[:, :: ny + 1] += 1.0
    return out, invert(out)


def speakers(G: Array, patterns: Patterns, gamma: Array, weights: NDArray[Any] | None = None) -> Speakers:
    """The posteriors for gamma (M, ny), and Q sums of Lambda^-1 with weights (P, Q) of the patterns."""
    xp = ar.namespace(G)
    ny = gamma.shape[1]
    P = len(patterns)
    weights = np.zeros((P, 0)) if weights is None else weights
    Q = weights.shape[1]
    ordered = ar.take(gamma, patterns.speakers)
    mean = ar.zeros(ordered.shape, gamma)
    ln = ar.zeros((P,), gamma)
    covariance = ar.zeros((Q, ny * ny), gamma)
    common = {}  # Lambda^-1 of patterns with so many speakers that threads share their rows

    def work(run: list[range], invert: ar.SpdInverse) -> Array:
        total = 0.0
        first = run[0].start
        stop = run[-1].stop
        room = invert.buffer(-1, stop - first, ny, ny) if xp is np else None
        for batch in run:
            m = len(batch)
            r = int(patterns.multiplicity[batch.start])  # speakers with each of these patterns
            places = slice(batch.start, batch.stop)
            rows = slice(int(patterns.start[batch.start]), int(patterns.start[batch.stop]))
            out = None if room is None else room[batch.start - first : batch.stop - first]
            cov, ln[places] = inverses(G, patterns.rows[places], invert, out)
            if len(ar.row_blocks(r, gamma)) > 1:
                for i in range(m):
                    common[rows.start + i * r, rows.start + (i + 1) * r] = cov[i, ...] + 0.0
            else:
                mean[rows, :] = xp.reshape(xp.reshape(ordered[rows, :], (m, r, ny)) @ cov, (m * r, ny))
            if Q and room is None:
                total = total + ar.put(weights[places].T, gamma) @ xp.reshape(cov, (m, ny * ny))
        if Q and room is not None:  # in one product, since each reads and writes all of the sums, which are large
            total = weights[first:stop].T @ room.reshape(-1, ny * ny)
        return total

    if ny:
        most = at_once(G)
        # 2 Q patterns: with fewer in a product, reading and writing the Q sums takes longer than the inverses. Their
        # inverses take at most 64 MB.
        least = max(most, min(2 * Q, (1 << 26) // (8 * ny * ny)))
        for total in ar.in_order(work, patterns.runs(most, least), P * ny**3 if xp is np else 0, ar.SpdInverse):
            covariance += total
    for (a, b), cov in common.items():
        mean[a:b, :] = ar.tall_product(ordered[a:b, :], cov)
    out = ar.zeros(ordered.shape, gamma)
    ar.set_rows(out, patterns.speakers, mean)
    return Speakers(out, ln, xp.reshape(covariance, (Q, ny, ny)))


@dataclass(frozen=True, eq=False)
class Diagonals:
    """For one kind of channels: the G of sessions of different size, which differ in a diagonal only.

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
        # A direction without session variability (a loading of 0, say) adds nothing, since J is 0 there with U. What
        # rounding leaves of both differs from one processor to the next, and must not be divided by each other.
        nothing = e <= len(e) * np.finfo(float).eps * e.max()
        e = np.where(nothing, 0.0, e)
        Z = np.where(nothing, 0.0, 1 / np.sqrt(np.where(nothing, 1.0, e)))[:, None] * (Q.T @ J)
        return cls(ar.symmetric(VWV - Z.T @ Z), Z, e, sizes)

    def pays(self, patterns: Patterns) -> bool:
        """Whether inverses of nx rows and products for each number of recordings cost less than inverses of ny rows."""
        nx, ny = self.Z.shape
        P = len(patterns)
        numbers = len(np.unique(patterns.recordings))
        # Products run at about the speed of inverses. 0.6 was measured: above it, the overhead is more than the gain.
        return P * nx**3 + 1.5 * numbers * len(self.sizes) * nx * ny * (nx + ny) < 0.6 * P * ny**3


@ar.reproducible()
def speakers_by_rank(parts: Diagonals, patterns: Patterns, gamma: NDArray[Any], weights: NDArray[Any]) -> Speakers:
    """As `speakers`, by Woodbury's formula: matrices of nx rows are inverted instead of ny.

    In the eigenvectors of K (its values: k), D = diag(1 / (1 + N k)):

        Lambda^-1 = D - D Z' inner^-1 Z D,   inner = diag(1 / w) + Z D Z',   ln|Lambda| = ln|inner| + sum ln w - ln|D|

    Z D depends on a speaker by its number of recordings N only: patterns of one N are taken together.
    """
    k, Q = np.linalg.eigh(parts.K)
    k = np.maximum(k, 0.0)
    Z = parts.Z @ Q
    nx, ny = Z.shape
    n_sums = weights.shape[1]
    w = patterns.rows @ (parts.sizes[:, None] / (1 + parts.sizes[:, None] * parts.e))  # (P, nx)
    rotated = ar.tall_product(gamma, Q)
    mean = np.empty_like(rotated)
    ln = np.empty(len(patterns))

    def work(chosen: Ints, invert: ar.SpdInverse) -> NDArray[Any]:
        """The sums of Lambda^-1 over patterns with one number of recordings; means and determinants are written."""
        D = 1 / (1 + patterns.recordings[chosen[0]] * k)
        ZD = Z * D
        inner = invert.buffer(-1, len(chosen), nx, nx)
        inner[...] = ZD @ Z.T
        inner.reshape(len(chosen), nx * nx)[:, :: nx + 1] += 1 / w[chosen]
        ln[chosen] = invert(inner) + np.log(w[chosen]).sum(axis=1) - np.log(D).sum()
        for p, inverse in zip(chosen.tolist(), inner, strict=True):
            members = patterns.speakers[patterns.start[p] : patterns.start[p + 1]]
            g = rotated[members]
            mean[members] = g * D - g @ ZD.T @ inverse @ ZD
        sums = (weights[chosen].T @ inner.reshape(len(chosen), nx * nx)).reshape(n_sums, nx, nx)
        out = -(ZD.T @ (sums @ ZD))
        out[:, np.arange(ny), np.arange(ny)] += weights[chosen].sum(axis=0)[:, None] * D
        return out

    order = np.argsort(patterns.recordings, kind="stable")
    edges = [0, *(np.flatnonzero(np.diff(patterns.recordings[order])) + 1).tolist(), len(patterns)]
    most = 64  # inverted at a time: more do not stay in the caches
    groups = [order[i : min(i + most, b)] for a, b in itertools.pairwise(edges) for i in range(a, b, most)]
    covariance = np.zeros((n_sums, ny, ny))
    for total in ar.in_order(work, groups, len(patterns) * nx**3 + 4.0 * gamma.size * nx, ar.SpdInverse):
        covariance += total
    return Speakers(ar.tall_product(mean, Q.T), ln, ar.symmetric(Q @ covariance @ Q.T))
