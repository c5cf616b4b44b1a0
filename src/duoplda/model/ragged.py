"""Speakers with ragged counts of sessions: nearly each of them has a Lambda of its own to be inverted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import (
    Array,
    SpdInverse,
    eye,
    namespace,
    one_thread_each,
    put,
    set_rows,
    spd_inverse,
    symmetric,
    take,
    zeros,
)
from duoplda.data.labels import Ints


class Patterns:
    """Speakers with the same counts of sessions by type have the same Lambda: each is factored once."""

    def __init__(self, counts: Ints, sizes: Ints | None = None):
        rows, index, multiplicity = np.unique(counts, axis=0, return_inverse=True, return_counts=True)
        recordings = rows @ (np.zeros(rows.shape[1], np.int64) if sizes is None else sizes)
        order = np.argsort(multiplicity, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        self.rows: Ints = rows[order]  # (P, C)
        self.recordings: Ints = recordings[order]  # (P,) of a speaker, where the sizes of the types are known
        self.multiplicity: Ints = multiplicity[order]  # (P,) increasing
        self.index: Ints = rank[index.reshape(-1)]  # (M,) pattern of each speaker
        self.speakers: Ints = np.argsort(self.index, kind="stable")  # speakers in the order of the patterns
        self.start: Ints = np.concatenate([[0], np.cumsum(self.multiplicity)])

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, most: int) -> Iterator[tuple[int, int]]:
        """Runs of patterns with as many speakers each."""
        edges = [*np.flatnonzero(np.diff(self.multiplicity, prepend=-1)).tolist(), len(self)]
        for a, b in itertools.pairwise(edges):
            for p in range(a, b, most):
                yield p, min(p + most, b)


@dataclass(frozen=True, eq=False)
class Speakers:
    """Posteriors of speaker factors: means (M, ny), ln|Lambda| by pattern (P,), and weighted sums of Lambda^-1."""

    mean: Array
    ln_Lambda: Array
    covariance: Array  # (Q, ny, ny) sum over patterns of weights[p, q] Lambda_p^-1


def speakers(G: Array, patterns: Patterns, gamma: Array, weights: NDArray[Any] | None = None) -> Speakers:
    """Factor Lambda_p = I + sum_c n_pc G_c for every pattern, and solve for its speakers' means."""
    xp = namespace(G)
    ny, P = gamma.shape[1], len(patterns)
    weights = np.zeros((P, 0)) if weights is None else weights
    ordered = take(gamma, patterns.speakers)
    mean, ln = zeros(ordered.shape, gamma), zeros((P,), gamma)
    flat_G = xp.reshape(G, (G.shape[0], ny * ny))

    def work(batches: list[tuple[int, int]]) -> Array:
        invert, buffer = SpdInverse(), None
        total = zeros((weights.shape[1], ny * ny), gamma)
        for a, b in batches:
            r, s = int(patterns.multiplicity[a]), slice(int(patterns.start[a]), int(patterns.start[b]))
            n = put(patterns.rows[a:b].astype(float), gamma)
            if xp is np:
                if buffer is None or buffer.shape[0] != b - a:
                    buffer = np.empty((b - a, ny * ny))
                np.matmul(n, flat_G, out=buffer)
                buffer[:, :: ny + 1] += 1.0
                cov = buffer.reshape(b - a, ny, ny)
                ln[a:b] = invert(cov)
            else:
                cov, ln[a:b] = spd_inverse(eye(ny, gamma) + xp.reshape(n @ flat_G, (b - a, ny, ny)))
            mean[s, :] = xp.reshape(xp.reshape(ordered[s, :], (b - a, r, ny)) @ cov, ((b - a) * r, ny))
            if weights.shape[1]:
                total += put(weights[a:b].T, gamma) @ xp.reshape(cov, (b - a, ny * ny))
        return total

    if ny == 0:
        covariance = zeros((weights.shape[1], 0), gamma)
    elif xp is np:
        todo = list(patterns.batches(max(1, (1 << 21) // (8 * ny * ny))))
        with one_thread_each(P * ny**3) as (threads, run):
            covariance = sum(run(work, [todo[i::threads] for i in range(threads)]))
    else:
        covariance = work(list(patterns.batches(max(1, (1 << 28) // (8 * ny * ny)))))
    out = zeros(ordered.shape, gamma)
    set_rows(out, patterns.speakers, mean)
    return Speakers(out, ln, xp.reshape(covariance, (weights.shape[1], ny, ny)))


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
        return cls(symmetric(VWV - Z.T @ Z), Z, e, sizes)

    def pays(self, patterns: Patterns) -> bool:
        """Whether matrices of nx rows, and products for each number of recordings, cost less than matrices of ny."""
        (nx, ny), P, C = self.Z.shape, len(patterns), len(self.sizes)
        D = len(np.unique(patterns.recordings))
        return P * nx**3 + 1.5 * D * C * nx * ny * (nx + ny) < 0.6 * P * ny**3


GROUP = 64  # patterns inverted at a time


def speakers_by_rank(parts: Diagonals, patterns: Patterns, gamma: NDArray[Any], weights: NDArray[Any]) -> Speakers:
    """As `speakers`, by Woodbury's formula: matrices of nx rows are inverted instead of ny.

    In the eigenvectors of K (its values: k), D = diag(1 / (1 + N k)):

        Lambda^-1 = D - D Z' inner^-1 Z D,   inner = diag(1 / w) + Z D Z',   ln|Lambda| = ln|inner| + sum ln w - ln|D|

    Z D Z' depends on a speaker by its number of recordings N only, and so does what stands around inner^-1.
    """
    P, Qn, (nx, ny) = len(patterns), weights.shape[1], parts.Z.shape
    ln, solved = np.empty(P), np.empty((len(gamma), ny))
    order = np.lexsort((patterns.multiplicity, patterns.recordings))
    share = parts.sizes[:, None] / (1 + parts.sizes[:, None] * parts.e)  # (C, nx)
    w = patterns.rows @ share  # (P, nx)
    edges = [0, *(np.flatnonzero(np.diff(patterns.recordings[order])) + 1).tolist(), P]
    groups = [order[a:b] for a, b in itertools.pairwise(edges)]  # of one number of recordings each

    def work(groups: list[NDArray[Any]]) -> NDArray[Any]:
        invert, buffer = SpdInverse(), np.empty((GROUP, nx, nx))
        total, diagonal = np.zeros((Qn, ny, ny)), np.zeros((Qn, ny))
        for group in groups:
            d = 1 / (1 + patterns.recordings[group[0]] * k)
            ZD = Z * d
            ZDZ, sums = ZD @ Z.T, np.zeros((Qn, nx * nx))
            ln[group] = -np.log(d).sum()
            for of in (group[i : i + GROUP] for i in range(0, len(group), GROUP)):
                inner = buffer[: len(of)]
                inner[...] = ZDZ
                inner.reshape(len(of), -1)[:, :: nx + 1] += 1 / w[of]
                ln[of] += invert(inner)
                runs = [0, *(np.flatnonzero(np.diff(patterns.multiplicity[of])) + 1).tolist(), len(of)]
                for i, j in itertools.pairwise(runs):  # as many speakers in each pattern
                    r = int(patterns.multiplicity[of[i]])
                    who = patterns.speakers[(patterns.start[of[i:j], None] + np.arange(r)).ravel()]
                    Dg = g[who] * d
                    x = ((Dg @ Z.T).reshape(j - i, r, nx) @ inner[i:j]).reshape(-1, nx)
                    solved[who] = Dg - x @ ZD
                sums += weights[of].T @ inner.reshape(len(of), -1)
            if Qn:
                total -= ZD.T @ (sums.reshape(Qn, nx, nx) @ ZD)
                diagonal += weights[group].sum(axis=0)[:, None] * d
        total[:, np.arange(ny), np.arange(ny)] += diagonal
        return total

    with one_thread_each(P * nx**3) as (threads, run):
        k, Q = np.linalg.eigh(parts.K)
        k, Z, g = np.maximum(k, 0.0), parts.Z @ Q, gamma @ Q
        covariance = sum(run(work, [groups[i::threads] for i in range(threads)]))
    ln += np.log(w).sum(axis=1)
    return Speakers(solved @ Q.T, ln, symmetric(Q @ covariance @ Q.T))
