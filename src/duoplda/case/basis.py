"""Typicality and similarity, on which a ratio rests: how far the sides lie from the population and from each other.

With G = Lambda - I of a side, its gamma is G y + G^1/2 e under the model, where the speaker's factors y and the rest e
are standard normal. So

    typicality:  gamma'(G + G^2)^-1 gamma                                   has the mean ny,
    similarity:  g1'G1^-1 g1 + g2'G2^-1 g2 - (g1 + g2)'(G1 + G2)^-1 (g1 + g2)    has the mean ny for one speaker,

whatever sessions the sides have. Both are divided by ny, the number of dimensions in which G is not zero.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import to_numpy
from duoplda.case.models import sides_of
from duoplda.case.reference import Reference
from duoplda.case.result import Distance
from duoplda.data.labels import Ints
from duoplda.trials.ratios import common_counts
from duoplda.trials.sides import Sides

Floats = NDArray[np.float64]

LEAST_EIGENVALUE = 1e-10  # relative to the largest eigenvalue of G: directions below it say nothing about the speaker


def from_the_middle(sides: Sides) -> Floats:
    """Return (n,) how far sides lie from the middle of the population; the model expects 1 on average."""
    weighed = sides.weighed
    groups = weighed.groups
    G = to_numpy(groups.G)
    gamma = to_numpy(weighed.gamma)
    return _by_pattern(G, groups.rows, groups.index, gamma, lambda s: s + s**2)[0]


def apart(a: Sides, b: Sides, pairs: Ints) -> Floats:
    """Return (n,) how far the two sides of pairs (n, 2) lie from each other; the model expects 1 for one speaker."""
    one = a.weighed
    other = b.weighed
    G, of_a, of_b = common_counts(one.groups, other.groups)
    G = to_numpy(G)
    i, j = pairs.T
    gamma_a = to_numpy(one.gamma)
    gamma_b = to_numpy(other.gamma)
    first, rank_a = _by_pattern(G, of_a, one.groups.index, gamma_a, lambda s: s)
    second, rank_b = _by_pattern(G, of_b, other.groups.index, gamma_b, lambda s: s)
    both = of_a[one.groups.index[i]] + of_b[other.groups.index[j]]
    counts, index = np.unique(both, axis=0, return_inverse=True)
    third, rank = _by_pattern(G, counts, index.reshape(-1), gamma_a[i] + gamma_b[j], lambda s: s)
    squares = first[i] * rank_a[i] + second[j] * rank_b[j] - third * rank
    return np.asarray(squares / (rank_a[i] + rank_b[j] - rank))


def _by_pattern(
    G: Floats, counts: NDArray[np.generic], index: Ints, gamma: Floats, spread: Callable[[Floats], Floats]
) -> tuple[Floats, Floats]:
    """(n,) gamma'f(G)^-1 gamma per dimension, and the number of dimensions; f is `spread`, of the eigenvalues of G.

    `counts` (p, types) are the numbers of sessions in each pattern of sides, and `index` (n,) is the pattern of a side.
    """
    out = np.zeros(len(gamma))
    ranks = np.ones(len(gamma))
    for p in np.unique(index).tolist():
        rows = np.flatnonzero(index == p)
        values, vectors = np.linalg.eigh(np.tensordot(np.asarray(counts[p], float), G, axes=1))
        informative = values > LEAST_EIGENVALUE * max(values[-1], 1e-300)
        squares = (gamma[rows] @ vectors[:, informative]) ** 2 / spread(values[informative])
        ranks[rows] = max(1, int(informative.sum()))
        out[rows] = squares.sum(axis=1) / ranks[rows]
    return out, ranks


def distances(reference: Reference, known: Sides, questioned: Sides) -> tuple[Distance, Distance, Distance, float]:
    """Return the typicality of both sides, their similarity, and the share of different pairs that lie farther apart.

    The sides of the case are compared with those that were drawn from the population, by the model of the case.
    """
    model = reference.models.whole
    material = reference.models.population
    of_draw = [len(ways) for ways in reference.drawn]
    start = np.cumsum([0, *of_draw[:-1]])
    sides = [sides_of(model, material, [way[t] for ways in reference.drawn for way in ways]) for t in (0, 1)]
    weight = np.repeat(1 / np.array(of_draw), of_draw)
    typical = []
    for side, others in zip((known, questioned), sides, strict=True):
        value = float(from_the_middle(side)[0])
        typical.append(Distance(value, float(np.average(from_the_middle(others) > value, weights=weight))))
    i, r, j, s = reference.pairs.T
    pairs = np.stack([start[i] + r, start[j] + s], axis=1)
    value = float(apart(known, questioned, np.array([[0, 0]]))[0])
    farther = apart(sides[0], sides[1], pairs) > value
    same = reference.trials.same
    shares = [float(np.average(farther[these], weights=reference.trials.weight[these])) for these in (same, ~same)]
    return typical[0], typical[1], Distance(value, shares[0]), shares[1]
