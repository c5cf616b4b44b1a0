"""Sessions of one occasion: what several of them are worth.

Sessions of one day, call or file share more than the speaker: a room, a line, a state of health. As a further level of
the model this would be a part `kappa` of the noise of a session that all sessions of an occasion have in common. The
mean of m of them then has the noise kappa + (1 - kappa) / m, which is that of

    m / (1 + (m - 1) kappa)

independent ones: one stays one, and however many there are, they count for no more than 1 / kappa.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Where nobody has learned it: on halves of cvau, whose enrolments are of one day, the cost of trials across days is
# flat from .1 to .2 (docs/adaptation.md), and nearer 0 less is lost where occasions mean little.
USUAL_KAPPA = 0.1


def independent_count(count: ArrayLike, kappa: float) -> NDArray[Any]:
    """How many independent sessions so many of one occasion count for; a part of a session stays that part.

    >>> independent_count([0.5, 1.0, 11.0], 0.1).tolist()
    [0.5, 1.0, 5.5]
    >>> independent_count([3, 1000], 0.0).tolist()
    [3.0, 1000.0]
    """
    m = np.asarray(count, float)
    return m / (1 + np.maximum(m - 1, 0) * kappa)


def session_weight(count: ArrayLike, kappa: float) -> NDArray[Any]:
    """What each of so many sessions of one occasion counts for, rho = 1 / (1 + (m - 1) kappa).

    >>> session_weight([1, 3, 12], 0.5).round(3).tolist()
    [1.0, 0.5, 0.154]
    """
    return 1 / (1 + np.maximum(np.asarray(count, float) - 1, 0) * kappa)
