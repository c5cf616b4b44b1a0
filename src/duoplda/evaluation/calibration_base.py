"""The base class of all calibrations, with their state in plain numbers and their file."""

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from duoplda.arrays import Array, to_numpy
from duoplda.errors import DuopldaError, error_prefix
from duoplda.evaluation.checks import Floats, real_numbers, refuse_rows
from duoplda.io import read_container, write_container

CALIBRATION_FILE = "duoplda-calibration"  # what the header of a file says that it holds
LARGEST_PARAMETER = 1e100  # of parameters and of what was learnt, as in a model: products with scores must not overflow


class OfScores(Protocol):
    """A calibration that needs only the scores of trials, so that another calibration can wrap it."""

    def fit(self, scores: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None) -> Self:
        """Learn from scores of known truth."""

    def transform(self, scores: ArrayLike) -> Floats:
        """Log-likelihood ratios of scores."""

    def get_state(self) -> dict[str, Any]:
        """Parameters and what was learnt."""

    def summary(self) -> dict[str, float | str]:
        """What was learnt, in single numbers and words."""


class Calibration(TransformerMixin, BaseEstimator):
    """The base class of all calibrations, with their state as a dictionary and their file."""

    scores_suffice: ClassVar[bool] = True  # False where a trial needs more than its score, as side information
    _classes: ClassVar[dict[str, type["Calibration"]]] = {}  # by the names that files hold
    _learnt: ClassVar[tuple[str, ...]]  # attributes that `fit` sets and that are numbers or arrays of them
    _arrays: ClassVar[tuple[str, ...]] = ()  # those among them that are arrays (m,), all of one length
    _texts: ClassVar[tuple[str, ...]] = ()  # attributes that `fit` sets and that are lists or dictionaries of texts

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not cls.__name__.startswith("_"):
            Calibration._classes[cls.__name__] = cls

    def get_state(self) -> dict[str, Any]:
        """Return parameters and learnt attributes as floats and arrays, for `from_state`."""
        check_is_fitted(self)
        values = self.get_params() | {name: getattr(self, name) for name in self._learnt}
        state = {name: v if isinstance(v, np.ndarray) else float(v) for name, v in values.items()}
        return state | {name: getattr(self, name) for name in self._texts}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return the fitted object that gave this state; an array of one number counts as a float."""
        fitted = cls()
        names = {*fitted.get_params(), *cls._learnt}
        if set(state) != names:
            raise DuopldaError(f"{cls.__name__} needs the state {sorted(names)}, not {sorted(state)}")
        fitted.set_state(state)
        return fitted

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Set attributes to the numbers of a state, or raise an error that names one that is no finite number."""
        for name, value in state.items():
            a = np.array(value, dtype=np.float64)
            if (a.ndim != 1 or not a.size) if name in self._arrays else a.size != 1:
                raise DuopldaError(f"{name} has shape {a.shape}; give {'(m,)' if name in self._arrays else 'a number'}")
            if np.isnan(a).any() or (name != "llr_" and not (np.abs(a) <= LARGEST_PARAMETER).all()):
                raise DuopldaError(f"{name} is not finite, or above {LARGEST_PARAMETER:g}")
            setattr(self, name, a if name in self._arrays else a.item())
        if len({len(getattr(self, name)) for name in self._arrays}) > 1:
            raise DuopldaError(f"{', '.join(self._arrays)} differ in length")

    def summary(self) -> dict[str, float | str]:
        """What was learnt, in single numbers and words, as `duoplda info` tells it."""
        return {name.rstrip("_"): v for name, v in self.get_state().items() if isinstance(v, float)}

    def apply(self, scores: Array) -> Array:
        """Log-likelihood ratios of scores of any array library, as NumPy arrays; affine maps stay in the library."""
        return self.transform(to_numpy(scores))

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the calibration as safetensors, whole or not at all; `force` replaces an existing file."""
        state = self.get_state()
        texts = {name: state.pop(name) for name in self._texts}
        arrays = {name: np.atleast_1d(np.asarray(v, np.float64)) for name, v in state.items()}
        write_container(path, CALIBRATION_FILE, arrays, {"class": type(self).__name__, **texts}, force=force)


def restore(name: str, state: Mapping[str, Any]) -> Any:
    """Return the fitted calibration of the class with this name that gave this state.

    >>> from duoplda.calibration import AffineCalibration
    >>> fitted = AffineCalibration().fit([-3.0, 1.0, -1.0, 3.0], [False, False, True, True])
    >>> restore("AffineCalibration", fitted.get_state()).scale_ == fitted.scale_
    True
    """
    return _class_of(name).from_state(state)


def load(path: str | os.PathLike[str]) -> Any:
    """Read a calibration from a file that its `save` wrote.

    >>> import tempfile
    >>> from duoplda.calibration import AffineCalibration
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     AffineCalibration().fit([-3.0, 1.0, -1.0, 3.0], [0, 0, 1, 1]).save(folder + "/c.safetensors")
    ...     load(folder + "/c.safetensors")
    AffineCalibration()
    """
    arrays, header = read_container(path, [CALIBRATION_FILE])
    with error_prefix(os.fspath(path)):
        name = str(header.get("class"))
        texts = {text: header[text] for text in _class_of(name)._texts if text in header}
        return restore(name, {**arrays, **texts})


def _class_of(name: str) -> type[Calibration]:
    """The class with this name."""
    classes = Calibration._classes
    if name not in classes:
        raise DuopldaError(f"holds {name!r}, which is no calibration; known: {', '.join(classes)}")
    return classes[name]


def without_nan(scores: ArrayLike) -> Floats:
    """Scores of any shape as float64, or an error that names the rows with NaN."""
    x = real_numbers(scores)
    refuse_rows(np.isnan(x.ravel()), "scores", "NaN", "a calibration cannot replace a missing score")
    return x


def refuse_infinite(x: Floats) -> None:
    """Raise an error where a row of x (n, k) has infinity or NaN: one of them would decide the whole fit."""
    bad = np.asarray(~np.isfinite(x).all(axis=1))
    refuse_rows(bad, "scores", "not finite", "remove these trials or clip their scores")
