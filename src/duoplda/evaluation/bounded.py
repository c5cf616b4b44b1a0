"""Calibrations whose ratios stay within what trials support."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from duoplda.errors import DuopldaError
from duoplda.evaluation.calibration_base import Around, OfScores
from duoplda.evaluation.metrics import Floats
from duoplda.evaluation.support import elub, invariance_bounds

BOUNDS = {"elub": elub, "invariance": invariance_bounds}  # by the words that options name


class Bounded(Around):
    """A calibration whose ratios are kept within the bounds that its trials support (`duoplda.metrics.elub`).

    `calibration` learns first; then come the bounds of its ratios on the same trials, `lower_` and `upper_`: with
    `bounds` "elub" or "invariance" those of these two functions. A ratio beyond a bound becomes the bound, and is to be
    read as "at least" or "at most". The order of trials stays as it is, but for ties at the bounds; Cllr and decisions
    at usual priors hardly change. Use it where a number is reported as evidence; not before a fusion, nor where the
    highest of very many trials are looked for.

    >>> from duoplda.calibration import AffineCalibration
    >>> scores, labels = [-4.0, -3.0, -2.0, 1.0, -1.0, 2.0, 3.0, 4.0], [False] * 4 + [True] * 4
    >>> fitted = Bounded(AffineCalibration(), "elub").fit(scores, labels)
    >>> fitted.transform([-9.0, 9.0]).round(3).tolist()
    [-0.405, 0.405]
    """

    def __init__(self, calibration: OfScores, bounds: str = "elub") -> None:
        self.calibration = calibration
        self.bounds = bounds

    def fit(self, scores: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None) -> Self:
        """Learn from finite `scores`, boolean `labels` (n,) and trial `weights` (n,) or None."""
        if self.bounds not in BOUNDS:
            raise DuopldaError(f"bounds={self.bounds!r} must be one of {', '.join(BOUNDS)}")
        self.calibration_ = self._inner().fit(scores, labels, weights)
        ratios = self.calibration_.transform(scores)
        self.lower_, self.upper_ = BOUNDS[self.bounds](ratios, labels, weights)
        return self

    def transform(self, scores: ArrayLike) -> Floats:
        """Log-likelihood ratios of scores, none beyond the bounds."""
        check_is_fitted(self)
        return np.clip(self.calibration_.transform(scores), self.lower_, self.upper_)

    def summary(self) -> dict[str, float | str]:
        """What the inner calibration tells, and the bounds."""
        bounds: dict[str, float | str] = {"bounds": self.bounds, "lower": self.lower_, "upper": self.upper_}
        return {**self.calibration_.summary(), **bounds, "title": self.title}

    def _own_state(self) -> dict[str, Any]:
        return {self.bounds: np.array([self.lower_, self.upper_])}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the fitted object that gave this state."""
        inner, own = cls._split(state)
        if len(own) != 1 or not own.keys() <= BOUNDS.keys():
            raise DuopldaError(f"{cls.__name__} needs the bounds of one of {', '.join(BOUNDS)}, not {sorted(own)}")
        ((name, ends),) = own.items()
        pair = np.array(ends, np.float64)
        if pair.shape != (2,) or not pair[0] <= 0 <= pair[1]:
            raise DuopldaError(f"{name} must have a bound of at most 0 and one of at least 0, not {pair.tolist()}")
        fitted = cls(inner, name)
        fitted.calibration_ = inner
        fitted.lower_, fitted.upper_ = pair.tolist()
        return fitted
