"""The evidence that sets of sessions are of one speaker: exact, and as a guess at a hundredth of the cost.

A set of sessions (a cluster, a side) is (n, gamma): its counts of sessions by type, and the vector of
`duoplda.trials.sides`. Both add up when sets are joined. `duoplda.trials.exact` has the exact evidence Q(n, gamma).

In the eigenvectors of the mean of the G_c, the G_c are nearly diagonal. With lambda = sum_c n_c diag(G_c) there,

    Q ~ 1/2 sum_d [gamma_d^2 / (1 + lambda_d) - ln(1 + lambda_d)]

is exact where all sessions are of one type. Otherwise it is a guess, perhaps several nats away, which finds the pairs
whose exact evidence is worth computing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import mul

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Array, namespace, reproducible, take, to_numpy
from duoplda.data.labels import Ints
from duoplda.trials.exact import log_evidence
from duoplda.trials.sides import Sides

Floats = NDArray[np.float64]


def guessed_evidence(gamma: Array, lam: Array) -> Array:
    """(...) the guess at Q of sets with gamma and lambda (..., ny), in any array library."""
    xp = namespace(gamma)
    precision = 1.0 + lam
    return xp.sum(gamma * gamma / precision - xp.log(precision), axis=-1) / 2


@dataclass(frozen=True, eq=False)
class DiagonalEvidence:
    """The matrices of the types of sessions, in the eigenvectors of their mean, and the evidence of sets there."""

    basis: Floats  # (ny, ny) the eigenvectors, in columns: gamma @ basis is what the methods take
    G: Floats  # (C, ny, ny)
    diagonals: Floats  # (C, ny)
    mean: Floats  # (ny,) lambda of a session, on average
    is_diagonal: bool  # then the guess is exact
    types: Ints  # (C, K)

    @staticmethod
    @reproducible()
    def of(*sides: Sides) -> DiagonalEvidence:
        """For the types of sessions of some sides; types that occur more often have more weight in the mean."""
        types, first, place = np.unique(
            np.concatenate([s.types for s in sides]), axis=0, return_index=True, return_inverse=True
        )
        n = np.bincount(place.reshape(-1), np.concatenate([s.counts.sum(axis=0) for s in sides]), len(types))
        order = np.argsort(first)  # types in the order in which sides have them
        types = types[order]
        G = np.concatenate([to_numpy(s.terms.G) for s in sides])[first[order]]
        n = n[order] / max(1, n.sum())
        _, E = np.linalg.eigh(np.tensordot(n, G, axes=1))
        G = np.ascontiguousarray(E.T @ G @ E)
        diagonals = np.maximum(np.diagonal(G, axis1=1, axis2=2), 0.0)
        beside = G - diagonals[:, :, None] * np.eye(G.shape[-1])
        # Rounding leaves about 1e-15 beside the diagonals; two types that differ leave far more than 1e-11.
        is_diagonal = bool(np.abs(beside).max(initial=0.0) <= 1e-11 * diagonals.max(initial=0.0))
        return DiagonalEvidence(E, G, diagonals, n @ diagonals, is_diagonal, types)

    @property
    def work_of_a_set(self) -> float:
        """The approximate number of multiplications that the exact evidence of a set takes."""
        ny = len(self.mean)
        return float(ny if self.is_diagonal else ny**3)

    def counts(self, sides: Sides) -> Floats:
        """(n, C) sessions of sides by the types of this evidence."""
        place = {t: c for c, t in enumerate(map(tuple, self.types.tolist()))}
        counts = np.zeros((len(sides), len(self.types)))
        counts[:, [place[t] for t in map(tuple, sides.types.tolist())]] = sides.counts
        return counts

    @reproducible()
    def exact(self, counts: Floats, gamma: Floats) -> Floats:
        """(k,) Q of sets with counts (k, C) and gamma (k, ny)."""
        if self.is_diagonal:
            return guessed_evidence(gamma, counts @ self.diagonals)
        return log_evidence(self.G, counts, gamma)

    @reproducible()
    def exact_joins(self, counts: Floats, gamma: Floats, others: Floats, counts_of_others: Floats) -> Floats:
        """(k, n) Q(a + b) of k sets `others` (k, ny), which have the same counts (C,), and of n sets (n, C), (n, ny).

        Each of the n matrices is inverted once, however many others there are.
        """
        k = len(others)
        n = len(gamma)
        both = (others[:, None] + gamma).reshape(k * n, -1)
        index = np.tile(np.arange(n), k)
        return log_evidence(self.G, counts + counts_of_others, both, index).reshape(k, n)

    @reproducible()
    def ratios(self, counts: Floats, gamma: Floats, counts_of_others: Floats, others: Floats, n_exact: int) -> Floats:
        """(k, n) ln likelihood ratios of k sets (k, C), (k, ny) and n sets (n, C), (n, ny).

        All are guessed, and for each of the k the `n_exact` highest guesses are replaced by exact ratios.
        """
        lam = counts @ self.diagonals
        alone = guessed_evidence(gamma, lam)
        ratios = np.empty((len(others), len(gamma)))
        for row, (count, g) in enumerate(zip(counts_of_others, others, strict=True)):
            lam_of_one = count @ self.diagonals
            joined = guessed_joins(gamma, lam, g[None], lam_of_one)[0]
            ratios[row] = joined - alone - guessed_evidence(g, lam_of_one)
            if not self.is_diagonal:  # otherwise the guesses are exact
                best = np.argsort(-ratios[row], kind="stable")[:n_exact]
                together = self.exact(counts[best] + count, gamma[best] + g)
                apart = self.exact(counts[best], gamma[best]) + self.exact(count[None], g[None])
                ratios[row, best] = together - apart
        return ratios


@reproducible()
def guessed_joins(gamma: Array, lam: Array, others: Array, lam_of_others: Array) -> Array:
    """(k, n) guesses at Q(a + b) of k sets `others` (k, ny), which have one lambda (ny,), and of n sets (n, ny)."""
    xp = namespace(gamma)
    D = 1 / (1.0 + lam + lam_of_others)  # (n, ny)
    of_sets = xp.sum(gamma * gamma * D + xp.log(D), axis=1) / 2
    return others @ (gamma * D).T + (others * others) @ (D / 2).T + of_sets


class BinnedSets:
    """Sets in bins by s, the number of average sessions that their lambda is worth; within a bin s at most doubles.

    Attributes
    ----------
    order : (n,) the sets by bins; everything else is in this order
    gamma, lam, s, Q : (n, ny), (n, ny), (n,), (n,) of the sets, Q being the guess
    session_lam : (ny,) lambda of an average session
    edges : where bins begin, and n
    nodes : for each bin the values of s between which we interpolate: three Chebyshev nodes, by which ratios are .10
        nats (rms) from those without interpolation
    """

    def __init__(self, gamma: Array, lam: Array, session_lam: Array):
        xp = namespace(gamma)
        s = xp.sum(lam, axis=1) / max(float(xp.sum(session_lam)), 1e-300)
        s = xp.maximum(s, xp.full_like(s, 1e-12))
        bins = np.floor(np.log2(to_numpy(s))).astype(np.int64)
        self.order = np.argsort(bins, kind="stable")
        self.gamma = take(gamma, self.order)
        self.lam = take(lam, self.order)
        self.s = take(s, self.order)
        self.Q = guessed_evidence(self.gamma, self.lam)
        self.session_lam = session_lam
        levels, start = np.unique(bins[self.order], return_index=True)
        self.edges: list[int] = np.append(start, len(bins)).tolist()
        chebyshev = [1.5 + 0.5 * math.cos(math.pi * (k + 0.5) / 3) for k in range(3)]  # between 1 and 2
        self.nodes = [[2.0**level * node for node in chebyshev] for level in levels.tolist()]

    def weights(self, j: int, part: slice) -> Array:
        """(k, 3) weights of the nodes of bin j for sets of that bin."""
        return namespace(self.s).stack(lagrange(self.s[part], self.nodes[j]), axis=1)


def guessed_ratios(
    a: BinnedSets, b: BinnedSets, cells: int = 1 << 22, multiple: int = 1
) -> Iterator[tuple[slice, Array]]:
    """Guesses at the ln likelihood ratios of all a and all b, by matrix products: rows of a, and the ratios (k, n).

    1 / (1 + lambda_a + lambda_b) is interpolated in lambda_a. With l_k the polynomials of Lagrange for the nodes s_k of
    a's bin, and g the lambda of an average session,

        gamma_a' gamma_b / (1 + lambda_a + lambda_b)
            ~ sum_k [l_k(lambda_a / g) gamma_a] . [gamma_b / (1 + s_k g + lambda_b)]

    Terms of b alone are interpolated at a's nodes, and those of a alone at b's nodes; as the l_k add up to 1, Q(a) and
    Q(b) are taken off there. Rows and columns are in the order of the bins. A block has about `cells` ratios. Columns
    of zeros fill it up to a `multiple`: products are faster on a GPU if the rows of their result begin at such places.
    """
    n = len(b.order)
    step = max(1, cells // max(n, 1))
    for bin_of_a, (start, stop) in enumerate(pairwise(a.edges)):
        with reproducible():
            right = _right_factor(a.nodes[bin_of_a], b, -n % multiple)
        for i in range(start, stop, step):
            rows = slice(i, min(i + step, stop))
            with reproducible():
                ratios = _left_factor(a, bin_of_a, rows, b.nodes) @ right.T
            yield rows, ratios


def _left_factor(a: BinnedSets, j: int, rows: slice, nodes_of_b: list[list[float]]) -> Array:
    """(k, 3 ny + 3 + 3 bins of b) for some sets of bin j."""
    xp = namespace(a.gamma)
    gamma = a.gamma[rows, ...]
    lam = a.lam[rows, ...]
    g = a.session_lam
    # In other directions no session says anything, and lambda / g is not defined.
    informative = g > 1e-9 * (xp.max(g) if g.shape[0] else 0.0)
    worth = xp.where(informative, lam / xp.where(informative, g, xp.ones_like(g)), a.s[rows, None])
    products = [weight * gamma for weight in lagrange(worth, a.nodes[j])]
    squares = gamma * gamma
    terms = [xp.sum(squares / (1.0 + node * g + lam), axis=1) / 2 for nodes in nodes_of_b for node in nodes]
    alone = xp.stack(terms, axis=1) - a.Q[rows, None]
    return xp.concat([*products, a.weights(j, rows), alone], axis=1)


def _right_factor(nodes_of_a: list[float], b: BinnedSets, n_zeros: int) -> Array:
    """(n + n_zeros, 3 ny + 3 + 3 bins of b) for all b and a bin of a; the last rows are zeros."""
    xp = namespace(b.gamma)
    products = []
    alone = []
    for node in nodes_of_a:
        D = 1 / (1.0 + node * b.session_lam + b.lam)
        products.append(b.gamma * D)
        alone.append(xp.sum(b.gamma * b.gamma * D + xp.log(D), axis=1) / 2 - b.Q)
    weights = xp.zeros((len(b.order), 3 * len(b.nodes)), dtype=b.gamma.dtype, device=b.gamma.device)
    for j, (start, stop) in enumerate(pairwise(b.edges)):
        weights[start:stop, 3 * j : 3 * j + 3] = b.weights(j, slice(start, stop))
    factor = xp.concat([*products, xp.stack(alone, axis=1), weights], axis=1)
    zeros = xp.zeros((n_zeros, factor.shape[1]), dtype=factor.dtype, device=factor.device)
    return xp.concat([factor, zeros]) if n_zeros else factor


def lagrange(x: Array, nodes: list[float]) -> list[Array]:
    """The polynomials of Lagrange at x: each is 1 at one node and 0 at the others."""
    polynomials = []
    for node in nodes:
        factors = [(x - other) / (node - other) for other in nodes if other != node]
        polynomials.append(reduce(mul, factors))
    return polynomials
