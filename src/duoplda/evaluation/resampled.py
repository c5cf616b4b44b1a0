"""Calibrations that know how much other trials, or other speakers, would have changed them."""

import warnings
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from duoplda.errors import DuopldaError
from duoplda.evaluation.calibration_base import Around, OfScores, refuse_infinite
from duoplda.evaluation.metrics import Booleans, Floats, check_trials, real_numbers, resamples

INTERVAL_POINTS = 1001  # where the intervals are computed


class BootstrapCalibration(Around):
    """A calibration with an interval around each ratio: it is learnt again from resampled trials, or speakers.

    `transform` gives the ratios of `calibration`, learnt from all trials, and `interval` what 95 % (`confidence`) of
    those learnt from `n_resamples` resamples give for the same scores. With `speakers`, the two columns of
    `duoplda.metrics.bootstrap`, these are resamples of the speakers; without, of single trials, whose intervals are too
    short, since trials of one speaker are not independent. The interval is about the calibration alone: the scores, and
    the model that gave them, are taken as they are.

    Intervals are kept as differences from the ratio at 1,001 scores from the lowest to the highest, and are linear
    between these; beyond, the differences stay what they are at the end.

    >>> from duoplda.calibration import AffineCalibration
    >>> scores, labels = [-4.0, -3.0, -2.0, 1.0, -1.0, 2.0, 3.0, 4.0], [False] * 4 + [True] * 4
    >>> fitted = BootstrapCalibration(AffineCalibration(ridge=0.1), n_resamples=50).fit(scores, labels)
    >>> low, high = fitted.interval(2.0)
    >>> bool(low < fitted.transform(2.0) < high)
    True
    """

    _arrays = ("scores_", "below_", "above_")

    def __init__(
        self, calibration: OfScores, n_resamples: int = 200, confidence: float = 0.95, random_state: int = 0
    ) -> None:
        self.calibration = calibration
        self.n_resamples = n_resamples
        self.confidence = confidence
        self.random_state = random_state

    def fit(
        self,
        scores: ArrayLike,
        labels: ArrayLike,
        weights: ArrayLike | None = None,
        *,
        speakers: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Learn from finite `scores` (n,), boolean `labels` (n,), `weights` (n,) or None, and both sides' speakers."""
        if not isinstance(self.random_state, int):  # a file keeps it
            raise DuopldaError(f"random_state={self.random_state!r} must be a whole number")
        s, y, w = check_trials(scores, labels, weights)
        refuse_infinite(real_numbers(scores)[:, None])
        kept = slice(None) if weights is None else np.asarray(weights) > 0  # as `check_trials` does
        enrolled, tests = (None, None) if speakers is None else (np.asarray(side)[kept] for side in speakers)
        draws = resamples(y, enrolled, tests, self.n_resamples, self.confidence, self.random_state)
        self.calibration_ = self._inner().fit(s, y, w)
        self.scores_ = np.linspace(s.min(), s.max(), INTERVAL_POINTS)
        ratios = np.array([self._again(s, y, w * times) for times in draws])
        if not np.isfinite(ratios).all():
            cause = "a resample gives infinite ratios, around which there are no intervals"
            raise DuopldaError(f"{cause}; use a calibration of finite ratios, or one that is bounded")
        tail = (1 - self.confidence) / 2
        low, high = np.quantile(ratios, [tail, 1 - tail], axis=0)
        estimate = self.calibration_.transform(self.scores_)
        self.below_ = np.minimum(low - estimate, 0.0)  # an interval contains its ratio
        self.above_ = np.maximum(high - estimate, 0.0)
        return self

    def _again(self, scores: Floats, labels: Booleans, weights: Floats) -> Floats:
        """Ratios, at the points of the intervals, of the calibration that a resample gives."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the fit to all trials says what there is to say
            return self._inner().fit(scores, labels, weights).transform(self.scores_)

    def transform(self, scores: ArrayLike) -> Floats:
        """Log-likelihood ratios of scores of any shape."""
        check_is_fitted(self)
        return self.calibration_.transform(scores)

    def interval(self, scores: ArrayLike) -> tuple[Floats, Floats]:
        """The lower and the upper ends of the intervals around these ratios."""
        ratios = self.transform(scores)
        x = real_numbers(scores)
        below, above = (np.interp(x, self.scores_, change) for change in (self.below_, self.above_))
        return ratios + below, ratios + above

    def summary(self) -> dict[str, float | str]:
        """What the inner calibration tells, and how many resamples there were."""
        return {**self.calibration_.summary(), "n_resamples": float(self.n_resamples), "title": self.title}

    def _own_state(self) -> dict[str, Any]:
        numbers = {name: float(getattr(self, name)) for name in ("n_resamples", "confidence", "random_state")}
        return numbers | {name: getattr(self, name) for name in self._arrays}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the fitted object that gave this state."""
        inner, own = cls._split(state)
        fitted = cls(inner)
        names = {"n_resamples", "confidence", "random_state", *cls._arrays}
        if own.keys() != names:
            raise DuopldaError(f"{cls.__name__} needs the state {sorted(names)}, not {sorted(own)}")
        fitted.set_state(own)
        fitted.n_resamples = int(fitted.n_resamples)
        fitted.random_state = int(fitted.random_state)
        fitted.calibration_ = inner
        return fitted
