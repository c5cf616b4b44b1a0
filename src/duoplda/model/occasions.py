"""Sessions of one occasion, which together count for less than as many independent ones.

Sessions of one day, call or file share more than the speaker: a room, a line, a state of health. As a further level of
the model this would be a part `kappa` of the noise of a session that all sessions of an occasion have in common. The
mean of m of them then has the noise kappa + (1 - kappa) / m, which is that of

    m / (1 + (m - 1) kappa)

independent sessions: one counts for one, and any number of them for 1 / kappa at most.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Used where kappa was not learned. On halves of cvau, whose enrolments are of one day, the cost of trials across days
# is flat from .1 to .2 (docs/adaptation.md); the value nearer to 0 loses less where such sessions share little.
USUAL_KAPPA = 0.1


def independent_count(count: ArrayLike, kappa: float) -> NDArray[Any]:
    """The number of independent sessions that `count` of one occasion count for; a part of a session stays that part.

    >>> independent_count([0.5, 1.0, 11.0], 0.1).tolist()
    [0.5, 1.0, 5.5]
    >>> independent_count([3, 1000], 0.0).tolist()
    [3.0, 1000.0]
    """
    m = np.asarray(count, float)
    return m / (1 + np.maximum(m - 1, 0) * kappa)


def session_weight(count: ArrayLike, kappa: float) -> NDArray[Any]:
    """The weight of each of m = `count` sessions of one occasion, rho = 1 / (1 + (m - 1) kappa).

    >>> session_weight([1, 3, 12], 0.5).round(3).tolist()
    [1.0, 0.5, 0.154]
    """
    return 1 / (1 + np.maximum(np.asarray(count, float) - 1, 0) * kappa)
