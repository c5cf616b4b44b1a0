"""The exact evidence of sets of sessions. Every ratio is a difference of such numbers, or an approximation of one.

A set of sessions is (n, gamma): how many sessions of each type c it has, and the vector of `duoplda.trials.sides`. With
Lambda = I + sum_c n_c G_c,

    Q(n, gamma) = (gamma'Lambda^-1 gamma - ln|Lambda|) / 2

and, for sets a and b that share no session, the ln likelihood ratio is Q(a + b) - Q(a) - Q(b).
"""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Array, in_order, namespace, take
from duoplda.data.labels import Ints
from duoplda.model.ragged import Patterns, speakers

Floats = NDArray[np.float64]


def log_evidence(G: Array, counts: Ints | Floats, gamma: Array, index: Ints | None = None) -> Array:
    """(n,) Q of sets with counts (n, C) of sessions by type and gamma (n, ny), for the matrices G (C, ny, ny) of types.

    With `index` (n,), the rows of `counts` must all differ, and set m has counts[index[m]].
    Where many sets have the same counts, each Lambda is inverted once; where few have, Cholesky factors are cheaper.

    >>> log_evidence(np.array([[[3.0]]]), np.array([[1], [0]]), np.array([[2.0], [0.0]])).round(4).tolist()
    [-0.1931, 0.0]
    """
    if not gamma.shape[0]:
        return namespace(gamma).sum(gamma, axis=1)
    host = namespace(gamma) is np
    few = gamma.shape[0] < 16  # looking for equal counts takes longer than factoring so few matrices
    patterns = None if host and few else Patterns(counts, index=index)
    # A factor takes 1 / 1.6 of the time of an inverse. It needs finite numbers: LAPACK refuses others.
    if host and (patterns is None or 1.6 * len(patterns) > len(gamma)) and np.isfinite(gamma).all():
        return _by_factors(G, counts if index is None else counts[index], gamma)
    patterns = Patterns(counts, index=index) if patterns is None else patterns
    posterior = speakers(G, patterns, gamma)
    quadratic = namespace(gamma).vecdot(gamma, posterior.mean)
    return (quadratic - take(posterior.ln_Lambda, patterns.index)) / 2


def _by_factors(G: Floats, counts: Ints | Floats, gamma: Floats) -> Floats:
    """Q of sets by one Cholesky factor for each set, which serves both terms.

    The last row of the factor of [[Lambda, gamma], [gamma', s]] is gamma' times the inverse of Lambda's factor. Any s
    from 1 + gamma'gamma on makes the matrix positive definite; twice as much leaves room for rounding.
    """
    n, ny = gamma.shape
    out = np.empty(n)
    matrices_at_once = max(1, (1 << 21) // (8 * (ny + 1) ** 2))  # 2 MiB, which stay in the caches
    flat = G.reshape(len(G), ny * ny)

    def work(start: int) -> None:
        rows = slice(start, start + matrices_at_once)
        g = gamma[rows]
        c = counts[rows].astype(float)
        used = c.any(axis=0)
        Lambda = c @ flat if used.all() else c[:, used] @ flat[used]
        bordered = np.empty((len(g), ny + 1, ny + 1))
        bordered[:, :ny, :ny] = Lambda.reshape(len(g), ny, ny)
        bordered.reshape(len(g), -1)[:, :: ny + 2] += 1.0
        bordered[:, ny, :ny] = g
        bordered[:, ny, ny] = 2.0 * (1.0 + np.vecdot(g, g))
        factor = np.linalg.cholesky(bordered)
        last = factor[:, ny, :ny]
        ln_determinant = 2 * np.log(np.diagonal(factor, axis1=1, axis2=2)[:, :ny]).sum(axis=1)
        out[rows] = (np.vecdot(last, last) - ln_determinant) / 2

    if (
        n <= matrices_at_once
    ):  # clustering asks for a few sets many thousand times, and starting threads would take longer
        work(0)
    else:
        deque(in_order(work, range(0, n, matrices_at_once), n * ny**3 / 3), maxlen=0)
    return out
