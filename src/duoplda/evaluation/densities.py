"""Densities of the scores of either class by Gaussian kernels, and the calibration that follows from them.

f(x) = sum over trials of w / (sum of w) N(x; score, h^2), with the bandwidth h of Silverman's rule unless one is given.
"""

from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp
from sklearn.utils.validation import check_is_fitted

from duoplda.errors import DuopldaError
from duoplda.evaluation.calibration_base import Calibration, refuse_infinite, without_nan
from duoplda.evaluation.checks import Floats, check_trials, real_numbers

POINTS = 1001  # where a KDECalibration computes its ratios: one for each thousandth of the range of the scores
AT_ONCE = 1 << 22  # values of kernels that are in memory at a time


class KDECalibration(Calibration):
    """Ratios of two densities by Gaussian kernels: llr(s) = ln f_target(s) - ln f_nontarget(s).

    Forensic science has used it where no straight line fits. It assumes nothing but smoothness, and pays for it where
    trials are few: **the map need not be monotone**, so the order of trials may change; and beyond the trials of one
    class, the ratio depends on the tail of a single kernel and grows beyond what any trial has shown. Put it inside
    `Bounded`; use `PAVCalibration` where the order must stay. Searches for the highest-scoring models of a test rank
    them by scores before calibration.

    `bandwidth` is that of both classes, in the unit of the scores; with 0 (the default) each class has its own by
    Silverman's rule, h = (4 / (3 n))^(1/5) standard deviations. The ratio is computed at 1,001 points from the lowest
    score to the highest (`scores_`, `llr_`), is linear between them, and constant beyond.

    >>> scores, labels = [-3.0, -2.0, 1.0, -1.0, 2.0, 3.0], [False, False, False, True, True, True]
    >>> calibration = KDECalibration().fit(scores, labels)
    >>> calibration.transform([-2.0, 0.0, 2.0]).round(2).tolist()
    [-0.85, 0.0, 0.85]
    """

    _learnt = ("target_bandwidth_", "nontarget_bandwidth_", "scores_", "llr_")
    _arrays = ("scores_", "llr_")

    def __init__(self, bandwidth: float = 0.0) -> None:
        self.bandwidth = bandwidth

    def fit(self, scores: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None) -> Self:
        """Learn from finite `scores` (n,), boolean `labels` (n,) and trial `weights` (n,) or None."""
        if not 0 <= self.bandwidth < np.inf:
            raise DuopldaError(f"bandwidth={self.bandwidth!r} must be a finite number >= 0")
        s, y, w = check_trials(scores, labels, weights)
        refuse_infinite(real_numbers(scores)[:, None])
        self.scores_ = np.linspace(s.min(), s.max(), POINTS)
        self.target_bandwidth_ = self.bandwidth or silverman(s[y], w[y], "target")
        self.nontarget_bandwidth_ = self.bandwidth or silverman(s[~y], w[~y], "non-target")
        targets = log_density(self.scores_, s[y], w[y], self.target_bandwidth_)
        self.llr_ = targets - log_density(self.scores_, s[~y], w[~y], self.nontarget_bandwidth_)
        return self

    def transform(self, scores: ArrayLike) -> Floats:
        """Log-likelihood ratios of scores of any shape."""
        check_is_fitted(self)
        return np.asarray(np.interp(without_nan(scores), self.scores_, self.llr_))


def silverman(scores: Floats, weights: Floats, what: str) -> float:
    """Silverman's bandwidth for a Gaussian density, (4 / (3 n))^(1/5) standard deviations.

    >>> round(silverman(np.array([-1.0, 1.0]), np.ones(2), "target"), 4)
    0.9221
    """
    mean = np.average(scores, weights=weights)
    deviation = float(np.sqrt(np.average((scores - mean) ** 2, weights=weights)))
    if not deviation > 1e-12 * abs(mean):
        cause = f"all scores of {what} trials are the same ({mean:g}), so that no bandwidth follows from them"
        raise DuopldaError(f"{cause}; give a bandwidth, or more trials")
    return float((4 / (3 * weights.sum())) ** 0.2 * deviation)


def log_density(points: Floats, scores: Floats, weights: Floats, bandwidth: float) -> Floats:
    """ln f at `points` (m,), of `scores` (n,) with `weights` (n,).

    >>> log_density(np.array([0.0]), np.array([0.0]), np.ones(1), 1.0).round(4).tolist()
    [-0.9189]
    """
    step = max(1, AT_ONCE // len(scores))
    parts = []
    for first in range(0, len(points), step):
        z = (points[first : first + step, None] - scores) / bandwidth
        parts.append(logsumexp(-0.5 * z**2, axis=1, b=weights))
    return np.concatenate(parts) - np.log(weights.sum() * bandwidth * np.sqrt(2 * np.pi))
