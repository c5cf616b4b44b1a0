"""Calibrations that wrap another calibration, to keep its ratios within bounds or to give intervals around them."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from duoplda.errors import DuopldaError
from duoplda.evaluation.calibration_base import Calibration, OfScores, refuse_infinite, restore
from duoplda.evaluation.checks import Booleans, Floats, check_trials, real_numbers
from duoplda.evaluation.resampling import resamples
from duoplda.evaluation.support import elub, invariance_bounds

BOUNDS = {"elub": elub, "invariance": invariance_bounds}  # by the words that options name
INTERVAL_POINTS = 1001  # where the intervals are computed


class Around(Calibration, ABC):
    """The base of calibrations that wrap another one, `calibration`, whose fitted copy is `calibration_`.

    In the state, the names of what the inner calibration learnt begin with its class: "AffineCalibration.scale_".
    """

    calibration: OfScores
    calibration_: OfScores

    def _inner(self) -> OfScores:
        """A fresh inner calibration."""
        inner = self.calibration
        if not (isinstance(inner, Calibration) and inner.scores_suffice):
            raise DuopldaError(f"{type(self).__name__} takes a calibration of scores alone, not {inner!r}")
        return clone(inner)

    @property
    def title(self) -> str:
        """The names of the classes, from the outermost inwards."""
        inner = self.calibration_
        return f"{type(self).__name__}({inner.title if isinstance(inner, Around) else type(inner).__name__})"

    def get_state(self) -> dict[str, Any]:
        """Return what was learnt as floats and arrays, for `from_state`."""
        check_is_fitted(self)
        name = type(self.calibration_).__name__
        return {f"{name}.{key}": value for key, value in self.calibration_.get_state().items()} | self._own_state()

    @abstractmethod
    def _own_state(self) -> dict[str, Any]:
        """The part of the state that is not the inner calibration's."""

    @abstractmethod
    def _take_own(self, own: dict[str, Any]) -> None:
        """Restore that part of the state, or raise an error where it is damaged."""

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the fitted object that gave this state."""
        inner = {name.partition(".")[2]: value for name, value in state.items() if "." in name}
        names = {name.partition(".")[0] for name in state if "." in name}
        if len(names) != 1:
            raise DuopldaError(f"{cls.__name__} needs the state of one inner calibration, not of {sorted(names)}")
        fitted = cls(restore(names.pop(), inner))
        fitted._take_own({name: value for name, value in state.items() if "." not in name})
        fitted.calibration_ = fitted.calibration
        return fitted


class Bounded(Around):
    """A calibration whose ratios are kept within the bounds that its trials support (`duoplda.metrics.elub`).

    `calibration` learns first. The bounds of its ratios on the same trials, `lower_` and `upper_`, are then computed by
    `duoplda.metrics.elub` or `invariance_bounds`, as `bounds` ("elub" or "invariance") says. A ratio beyond a bound
    becomes the bound: report it as "at least" or "at most". The order of trials stays as it is, except for ties at the
    bounds; Cllr and decisions at usual priors hardly change. Use it where a number is reported as evidence. Do not use
    it before a fusion, nor to find the highest of very many trials, many of which would be equal.

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
        """The summary of the inner calibration, and the bounds."""
        bounds: dict[str, float | str] = {"bounds": self.bounds, "lower": self.lower_, "upper": self.upper_}
        return {**self.calibration_.summary(), **bounds, "title": self.title}

    def _own_state(self) -> dict[str, Any]:
        return {self.bounds: np.array([self.lower_, self.upper_])}

    def _take_own(self, own: dict[str, Any]) -> None:
        if len(own) != 1 or not own.keys() <= BOUNDS.keys():
            raise DuopldaError(f"Bounded needs the bounds of one of {', '.join(BOUNDS)}, not {sorted(own)}")
        ((name, ends),) = own.items()
        pair = np.array(ends, np.float64)
        if pair.shape != (2,) or not pair[0] <= 0 <= pair[1]:
            raise DuopldaError(f"{name} must have a bound of at most 0 and one of at least 0, not {pair.tolist()}")
        self.bounds = name
        self.lower_, self.upper_ = pair.tolist()


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
        """The summary of the inner calibration, and the number of resamples."""
        return {**self.calibration_.summary(), "n_resamples": float(self.n_resamples), "title": self.title}

    def _own_state(self) -> dict[str, Any]:
        numbers = {name: float(getattr(self, name)) for name in ("n_resamples", "confidence", "random_state")}
        return numbers | {name: getattr(self, name) for name in self._arrays}

    def _take_own(self, own: dict[str, Any]) -> None:
        names = {"n_resamples", "confidence", "random_state", *self._arrays}
        if own.keys() != names:
            raise DuopldaError(f"BootstrapCalibration needs the state {sorted(names)}, not {sorted(own)}")
        self.set_state(own)
        self.n_resamples = int(self.n_resamples)
        self.random_state = int(self.random_state)
