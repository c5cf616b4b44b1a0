"""Posteriors of the speaker factors when speakers have ragged counts of sessions.

    y_i | Phi ~ N(Lambda_i^-1 gamma_i, Lambda_i^-1),   Lambda_i = I + sum_c n_ic G_c

Nearly every speaker then has a row of counts n_i, and so a Lambda_i to be inverted, of its own.
"""

from __future__ import annotations

import itertools
from collections import deque
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

    def __init__(self, counts: NDArray[Any], sizes: Ints | None = None):
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


def at_once(G: Array) -> int:
    """How many Lambdas are inverted at a time, for G (C, ny, ny): of fewer, threads of the host wait for each other's
    calls (those of Python, one of which can run); more do not stay in the caches. Devices take what fits."""
    bytes_each = 8 * max(G.shape[-1], 1) ** 2
    if ar.namespace(G) is not np:
        return max(1, (1 << 28) // bytes_each)
    return max(1, min(max(48, (1 << 21) // bytes_each), (1 << 23) // bytes_each))


def inverses(G: Array, counts: Ints, invert: ar.SpdInverse, out: NDArray[Any] | None = None) -> tuple[Array, Array]:
    """Lambda^-1 (m, ny, ny) and ln|Lambda| (m,) of Lambda = I + sum_c n_c G_c, for rows n of counts (m, C).

    On the host, inverses are written to `out` (m, ny, ny); if there is none, the next call overwrites them.
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
    """The posteriors, one Lambda after another; `weights` (P, Q) are for Q weighted sums of the Lambda^-1."""
    xp = ar.namespace(G)
    ny = gamma.shape[1]
    P = len(patterns)
    weights = np.zeros((P, 0)) if weights is None else weights
    Q = weights.shape[1]
    ordered = ar.take(gamma, patterns.speakers)
    mean = ar.zeros(ordered.shape, gamma)
    ln = ar.zeros((P,), gamma)
    covariance = ar.zeros((Q, ny * ny), gamma)
    kept = {}

    def work(run: list[range], invert: ar.SpdInverse) -> Array:
        total = 0.0
        first = run[0].start
        room = invert.buffer(-1, run[-1].stop - first, ny, ny) if xp is np else None
        for p in run:
            m = len(p)
            r = int(patterns.multiplicity[p[0]])
            own = slice(p.start, p.stop)
            of = slice(int(patterns.start[p.start]), int(patterns.start[p.stop]))
            out = None if room is None else room[p.start - first : p.stop - first]
            cov, ln[own] = inverses(G, patterns.rows[own], invert, out)
            if len(ar.row_blocks(r, gamma)) > 1:  # too many speakers for one thread
                kept.update({(of.start + i * r, of.start + (i + 1) * r): cov[i, ...] + 0.0 for i in range(m)})
            else:
                mean[of, :] = xp.reshape(xp.reshape(ordered[of, :], (m, r, ny)) @ cov, (m * r, ny))
            if Q and room is None:
                total = total + ar.put(weights[own].T, gamma) @ xp.reshape(cov, (m, ny * ny))
        if Q and room is not None:  # at once: the sums are large
            total = weights[first : run[-1].stop].T @ room.reshape(-1, ny * ny)
        return total

    if ny:
        most = at_once(G)
        least = max(most, min(2 * Q, (1 << 26) // (8 * ny * ny)))
        runs = _runs(patterns.batches(most), least)
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
        nx, ny = self.Z.shape
        P = len(patterns)
        C = len(self.sizes)
        D = min(len(np.unique(patterns.recordings)), 24)  # about so many numbers stand for all
        return P * nx**3 + 1.5 * D * C * nx * ny * (nx + ny) < 0.6 * P * ny**3


GROUP = 64  # patterns whose matrices are inverted at a time


def among(N: Ints, k: NDArray[Any]) -> tuple[Ints, NDArray[Any]]:
    """A few of the numbers N (n,), s of them, and weights T (n, s) with which they stand for all, to rounding:

        d_N d_N' = sum_s T_Ns d_s d_s',   d_N = 1 / (1 + N k)

    Such functions of N are smooth for any k >= 0. They are looked at, each as a multiple of its value in the middle,
    for 0 and for values of k from where N k is nearly 0 to the largest one.
    """
    from scipy.linalg import qr, solve_triangular

    least = 0.01 / float(N.max())
    most = float(k.max())
    n_k = 2 + int(6 * np.log10(most / least)) if most > least else 0
    k = np.append(0.0, np.geomspace(least, max(most, least), n_k))[:, None]
    d = (1 + k * np.sqrt(N.min() * N.max())) / (1 + k * N)
    F = (d[:, None, :] * d)[np.tril_indices(len(d))]  # (pairs of k, n)
    scale = np.linalg.norm(F, axis=0)
    R, order = qr(F / scale, mode="r", pivoting=True, check_finite=False)
    size = np.abs(np.diagonal(R))
    s = int(np.sum(size > 1e-15 * size[0]))
    T = np.zeros((len(N), s))
    T[order] = solve_triangular(R[:s, :s], R[:s]).T * scale[order][:, None] / scale[order[:s]]
    return N[order[:s]], T


def _times(rows: NDArray[Any], r: Ints, A: NDArray[Any], B: NDArray[Any], C: NDArray[Any]) -> NDArray[Any]:
    """Rows times the matrices [A B'; B C] of a stack; r (m,) consecutive ones go with each of them."""
    out = np.empty_like(rows)
    h = A.shape[1]
    ends, n = (np.cumsum(r), rows.shape[1])
    for i, j in itertools.pairwise([0, *(np.flatnonzero(np.diff(r)) + 1).tolist(), len(r)]):  # equally many each
        of = slice(int(ends[i] - r[i]), int(ends[j - 1]))
        x = rows[of].reshape(j - i, -1, n)
        y = out[of].reshape(j - i, -1, n)
        y[:, :, :h] = x[:, :, :h] @ A[i:j] + x[:, :, h:] @ B[i:j]
        y[:, :, h:] = x[:, :, :h] @ B[i:j].mT + x[:, :, h:] @ C[i:j]
    return out


def _whole(blocks: NDArray[Any], n: int) -> NDArray[Any]:
    """(Q, n, n) symmetric matrices, from rows of the numbers of A, B and C."""
    Q = len(blocks)
    h = n // 2
    out = np.empty((Q, n, n))
    out[:, :h, :h] = blocks[:, : h * h].reshape(Q, h, h)
    out[:, h:, :h] = blocks[:, h * h : h * n].reshape(Q, n - h, h)
    out[:, h:, h:] = blocks[:, h * n :].reshape(Q, n - h, n - h)
    out[:, :h, h:] = out[:, h:, :h].mT
    return out


@ar.reproducible()
def speakers_by_rank(parts: Diagonals, patterns: Patterns, gamma: NDArray[Any], weights: NDArray[Any]) -> Speakers:
    """As `speakers`, by Woodbury's formula: matrices of nx rows are inverted instead of ny.

    In the eigenvectors of K (its values: k), D = diag(1 / (1 + N k)):

        Lambda^-1 = D - D Z' inner^-1 Z D,   inner = diag(1 / w) + Z D Z',   ln|Lambda| = ln|inner| + sum ln w - ln|D|

    Z D Z' depends on a speaker by its number of recordings N only, and so does what stands around inner^-1: for the
    sums, a few numbers stand for all. Each inner is four blocks, inverted as [A B'; B C].
    """
    P = len(patterns)
    Qn = weights.shape[1]
    nx, ny = parts.Z.shape
    k, Q = np.linalg.eigh(parts.K)
    k = np.maximum(k, 0.0)
    Z = parts.Z @ Q
    h = nx // 2
    order = np.lexsort((patterns.multiplicity, patterns.recordings))
    numbers, which = np.unique(patterns.recordings[order], return_inverse=True)
    r = patterns.multiplicity[order]
    weights = weights[order]
    first = np.concatenate([[0], np.cumsum(r)])
    people = patterns.speakers[np.repeat(patterns.start[order] - first[:-1], r) + np.arange(len(gamma))]
    # (M, ny), (numbers, ny)
    g = ar.tall_product(gamma[people], Q)
    d = 1 / (1 + numbers[:, None] * k)
    w = patterns.rows[order] @ (parts.sizes[:, None] / (1 + parts.sizes[:, None] * parts.e))  # (P, nx)
    ln = np.log(w).sum(axis=1) - np.log(d).sum(axis=1)[which]
    solved = np.empty((len(gamma), ny))

    def work(run: list[range], invert: ar.SpdInverse) -> list[NDArray[Any]]:
        of = slice(run[0].start, run[-1].stop)
        m = run[-1].stop - run[0].start
        shapes = ((h, h), (nx - h, h), (h, nx - h), (nx - h, nx - h))
        A, B, T, C = (invert.buffer(-1 - i, m, *shape) for i, shape in enumerate(shapes))
        owns = [slice(group.start - of.start, group.stop - of.start) for group in run]
        for group, own in zip(run, owns, strict=True):
            ZDZ = (Z * d[which[group.start]]) @ Z.T
            A[own] = ZDZ[:h, :h]
            B[own] = ZDZ[h:, :h]
            T[own] = ZDZ[:h, h:]
            C[own] = ZDZ[h:, h:]
        A.reshape(m, -1)[:, :: h + 1] += 1 / w[of, :h]
        C.reshape(m, -1)[:, :: nx - h + 1] += 1 / w[of, h:]
        ln[of] += invert.quarters(A, B, T, C)
        who = slice(int(first[of.start]), int(first[of.stop]))
        D = d[np.repeat(which[of], r[of])]
        Dg = g[who] * D
        solved[who] = Dg - (_times(Dg @ Z.T, r[of], A, B, C) @ Z) * D
        rows = [M.reshape(m, -1) for M in (A, B, C)]
        return [np.concatenate([weights[of][own].T @ M[own] for M in rows], axis=1) for own in owns]

    edges = [0, *(np.flatnonzero(np.diff(which)) + 1).tolist(), P]
    groups = [  # of one number of recordings each
        range(i, min(i + GROUP, b)) for a, b in itertools.pairwise(edges) for i in range(a, b, GROUP)
    ]
    few, T = among(numbers, k)
    around = np.zeros((len(few), Qn * (nx * nx - h * (nx - h))))  # sums of blocks of inner^-1, by these numbers
    T = T[which[[group.start for group in groups]]]
    found = ar.in_order(work, _runs(groups, GROUP), P * nx**3 + 4.0 * gamma.size * nx, ar.SpdInverse)
    sums = itertools.chain.from_iterable(found)
    step = max(4, (1 << 25) // (8 * around.shape[1] + 1))  # each time goes through all of `around`
    for i in range(0, len(groups), step):
        around += T[i : i + step].T @ np.stack([v.reshape(-1) for v in itertools.islice(sums, step)])
    deque(found, 0)
    covariance = np.zeros((Qn, ny, ny))
    covariance[:, np.arange(ny), np.arange(ny)] = weights.T @ d[which]

    def outside(s: int) -> NDArray[Any]:
        ZD = Z / (1 + few[s] * k)
        return ZD.T @ (_whole(around[s].reshape(Qn, -1), nx) @ ZD)

    cost = 2.0 * len(few) * Qn * nx * ny * (nx + ny)
    for part in ar.in_order(outside, range(len(few) if Qn else 0), cost):
        covariance -= part
    mean = np.empty_like(solved)
    ln_Lambda = np.empty(P)
    mean[people] = ar.tall_product(solved, Q.T)
    ln_Lambda[order] = ln
    return Speakers(mean, ln_Lambda, ar.symmetric(Q @ covariance @ Q.T))
