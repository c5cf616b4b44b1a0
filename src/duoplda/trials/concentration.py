"""The number of speakers to expect: the concentration of the prior over partitions, learned from what is clustered.

The prior of Ewens expects k = alpha [digamma(alpha + n) - digamma(alpha)] clusters of n sessions, where
alpha = (1 - p) / p and p is the probability that two random sessions are of one speaker. Which two clusters are merged
first does not depend on alpha, only where merging stops. So clusters are merged down to where the least alpha would
stop, and along this path the alpha is found whose best partition has the number of clusters that it expects.

The partitions on the path also say how sure their number of clusters is. Let T_k be the sum of the gains at an alpha of
1 where k clusters are left, and let every ln alpha between its limits be equally probable. Then

    ln P(k) = TEMPER [T_k + ln integral of alpha^k Gamma(alpha) / Gamma(alpha + n) d ln alpha]

This leaves out all other partitions into k clusters, and those on the path are the best of many. TEMPER makes up for
that.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import digamma, gammaln, logsumexp, softmax

from duoplda.trials.evidence import Floats

# Then one speaker is expected, whatever number of sessions fits into memory.
LEAST_LN_ALPHA = math.log(0.01)
# At 1, the most probable number of drawn speakers had a probability of 69 % and was right in 62 % of cases. At .7 its
# probability was 64 %, and at .5 59 %. Measured with seeds that `examples/clustering_drawn.py` does not use.
TEMPER = 0.7


def most_ln_alpha(n_sessions: float) -> float:
    """The largest ln alpha, with which each session is expected to have two others of its speaker.

    Without a limit, the partition in which everybody is alone would explain itself: it makes alpha infinite, and an
    infinite alpha makes it certain.
    """
    return max(math.log(n_sessions / 2), LEAST_LN_ALPHA)


def expected_clusters(ln_alpha: float, n_sessions: float) -> float:
    """The number of clusters that the prior expects of n sessions.

    >>> round(expected_clusters(0.0, 4), 3)  # 1 + 1/2 + 1/3 + 1/4
    2.083
    """
    alpha = math.exp(ln_alpha)
    return alpha * float(digamma(alpha + n_sessions) - digamma(alpha))


def ln_alpha_of(n_clusters: float, n_sessions: float) -> float:
    """The ln alpha that expects this number of clusters, within its limits."""
    most = most_ln_alpha(n_sessions)

    def excess(ln_alpha: float) -> float:
        return expected_clusters(ln_alpha, n_sessions) - n_clusters

    if excess(LEAST_LN_ALPHA) >= 0:
        return LEAST_LN_ALPHA
    return most if excess(most) <= 0 else float(brentq(excess, LEAST_LN_ALPHA, most))


def learn(pulls: Floats, n_items: int, n_sessions: float, allowed: NDArray[np.bool_]) -> tuple[float, int]:
    """The ln alpha whose best partition on a path of merges has the number of clusters that it expects.

    With it, the number of merges to that partition. `pulls` (t,) are the gains of the merges of `n_items` items with an
    alpha of 1, and `allowed` (t + 1,) says before which merge, or after the last one, the partition may be taken. The
    search begins at the square root of the number of sessions as the number of clusters, which is between one and all
    alone. A larger alpha leaves more clusters, and more clusters make alpha larger: so the numbers only rise, or only
    fall, and the search ends where one of them comes again.
    """
    ln_alpha = ln_alpha_of(max(1.5, math.sqrt(n_sessions)), n_sessions)
    n_merges = -1
    while True:
        best = best_on_path(pulls, ln_alpha, allowed)
        if best == n_merges:
            return ln_alpha, n_merges
        n_merges = best
        ln_alpha = ln_alpha_of(float(n_items - n_merges), n_sessions)


def best_on_path(pulls: Floats, ln_alpha: float, allowed: NDArray[np.bool_]) -> int:
    """The number of merges of a path after which the posterior is highest.

    >>> best_on_path(np.array([3.0, 1.0, 2.5, -9.0]), 2.0, np.ones(5, bool))
    1
    """
    gains = np.concatenate([[0.0], np.cumsum(pulls - ln_alpha)])
    return int(np.argmax(np.where(allowed, gains, -np.inf)))


def posterior_of_number(
    pulls: Floats, n_items: int, n_sessions: float, number: NDArray[np.int64], allowed: NDArray[np.bool_]
) -> dict[int, float]:
    """The probability of each number of speakers to which a path of merges leads, without negligible ones.

    `number` (t + 1,) are the numbers of speakers before each merge and after the last one. Known speakers without a
    recording are not counted.

    >>> path = posterior_of_number(np.array([9.0, 5.0, -9.0]), 4, 4, np.array([4, 3, 2, 1]), np.ones(4, bool))
    >>> {k: round(p, 2) for k, p in path.items()}
    {1: 0.01, 2: 0.97, 3: 0.02}
    """
    ln_alpha = np.linspace(LEAST_LN_ALPHA, most_ln_alpha(n_sessions), 200)
    alpha = np.exp(ln_alpha)
    k = n_items - np.arange(len(pulls) + 1.0)
    prior = logsumexp(k[:, None] * ln_alpha + gammaln(alpha) - gammaln(alpha + n_sessions), axis=1)
    total = np.concatenate([[0.0], np.cumsum(pulls)])
    share = np.bincount(number[allowed], softmax(TEMPER * (total + prior)[allowed]))
    likely = np.flatnonzero(share > 1e-3)
    return dict(zip(likely.tolist(), (share[likely] / share[likely].sum()).tolist(), strict=True))
