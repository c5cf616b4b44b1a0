"""What a ratio rests on: how far the two sides lie from the population, and from each other.

With G = Lambda - I of a side, its gamma is G y + G^1/2 e under the model, y being what speaks and e the rest. So

    typicality:  gamma'(G + G^2)^-1 gamma                                   has the mean ny,
    similarity:  g1'G1^-1 g1 + g2'G2^-1 g2 - (g1 + g2)'(G1 + G2)^-1 (g1 + g2)    has the mean ny for one speaker,

whatever the sides are made of. Both are divided by ny, the number of dimensions in which G is not zero.
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

NOTHING = 1e-10  # of the greatest eigenvalue of G: directions that tell nothing of the speaker


def out_of_the_middle(sides: Sides) -> Floats:
    """(n,) how far sides lie from the middle of the population: 1 on average, by the model."""
    weighed = sides.weighed
    groups = weighed.groups
    G = to_numpy(groups.G)
    gamma = to_numpy(weighed.gamma)
    return _by_pattern(G, groups.rows, groups.index, gamma, lambda s: s + s**2)[0]


def apart(a: Sides, b: Sides, pairs: Ints) -> Floats:
    """(n,) how far the two sides of pairs (n, 2) lie from each other: 1 on average for one speaker, by the model."""
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
    """(n,) gamma'f(G)^-1 gamma per dimension, and the dimensions, for sides with counts[index] of sessions."""
    out = np.zeros(len(gamma))
    ranks = np.ones(len(gamma))
    for p in np.unique(index).tolist():
        rows = np.flatnonzero(index == p)
        values, vectors = np.linalg.eigh(np.tensordot(np.asarray(counts[p], float), G, axes=1))
        told = values > NOTHING * max(values[-1], 1e-300)
        squares = (gamma[rows] @ vectors[:, told]) ** 2 / spread(values[told])
        ranks[rows] = max(1, int(told.sum()))
        out[rows] = squares.sum(axis=1) / ranks[rows]
    return out, ranks


def distances(reference: Reference, known: Sides, questioned: Sides) -> tuple[Distance, Distance, Distance, float]:
    """Typicality of the known and of the questioned side, their similarity, and how many different pairs differ more.

    They are compared with the sides that were drawn from the population, by the model that judges the case.
    """
    model = reference.models.whole
    material = reference.models.population
    of_draw = [len(ways) for ways in reference.drawn]
    start = np.cumsum([0, *of_draw[:-1]])
    sides = [sides_of(model, material, [way[t] for ways in reference.drawn for way in ways]) for t in (0, 1)]
    weight = np.repeat(1 / np.array(of_draw), of_draw)
    typical = []
    for side, others in zip((known, questioned), sides, strict=True):
        value = float(out_of_the_middle(side)[0])
        typical.append(Distance(value, float(np.average(out_of_the_middle(others) > value, weights=weight))))
    i, r, j, s = reference.pairs.T
    pairs = np.stack([start[i] + r, start[j] + s], axis=1)
    value = float(apart(known, questioned, np.array([[0, 0]]))[0])
    farther = apart(sides[0], sides[1], pairs) > value
    same = reference.trials.same
    shares = [float(np.average(farther[these], weights=reference.trials.weight[these])) for these in (same, ~same)]
    return typical[0], typical[1], Distance(value, shares[0]), shares[1]
