"""Scores, labels and weights of trials, checked once at the door of every metric and calibration."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.arrays import check_index
from duoplda.errors import DuopldaError
from duoplda.io.trials import LABEL_WORDS

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]
Indices = NDArray[np.intp]
Weights = ArrayLike | None


def check_trials(scores: ArrayLike, labels: ArrayLike, weights: Weights) -> tuple[Floats, Booleans, Floats]:
    """Scores, labels and weights as (n,) arrays without NaN, with both classes and no zero weight."""
    check_index(scores=scores, labels=labels, weights=weights)
    s = np.asarray(scores)
    y = np.asarray(labels)
    w = np.ones(s.shape) if weights is None else np.asarray(weights, dtype=np.float64)
    if s.size == 0:
        raise DuopldaError("there are no scores")
    if s.ndim != 1 or not s.shape == y.shape == w.shape:
        shapes = f"scores has shape {s.shape}, labels {y.shape}, weights {w.shape}"
        raise DuopldaError(f"{shapes}; they must be (n,), equally long")
    s = real_numbers(s)
    y = targets_among(y)
    refuse_rows(np.isnan(s), "scores", "NaN", "remove these trials or find out why they have no score")
    refuse_rows(~(np.isfinite(w) & (w >= 0)), "weights", "negative or not finite", "use weights >= 0")
    if not w.all():
        s = s[w > 0]
        y = y[w > 0]
        w = w[w > 0]
    if not y.any() or y.all():
        missing = "non-target" if y.any() else "target"
        raise DuopldaError(f"there is no {missing} trial (of positive weight); both classes are needed")
    return s, y, w


def targets_among(labels: ArrayLike) -> Booleans:
    """Whether each trial is a target trial, from booleans, 0 and 1 of any type, or the words of lists of trials.

    >>> targets_among(["target", "nontarget"]).tolist(), targets_among([1.0, 0.0]).tolist()
    ([True, False], [True, False])
    """
    y = np.asarray(labels)
    y = np.array(y.tolist()) if y.dtype.kind in "OT" else y  # of pandas, perhaps: NumPy looks what is in it
    if y.dtype == np.bool_ or (y.dtype.kind in "iuf" and bool(np.all((y == 0) | (y == 1)))):
        return y.astype(bool, copy=False)
    words, index = np.unique(y.astype(str), return_inverse=True)
    known = [LABEL_WORDS.get(word.lower()) for word in words.tolist()]
    if y.dtype.kind not in "US" or None in known:
        allowed = "booleans, True for a target trial, or 0 and 1, or words such as target and nontarget"
        raise DuopldaError(f"labels must be {allowed}; found {words[:3].tolist()}")
    return np.array(known, bool)[index]


def real_numbers(scores: ArrayLike) -> Floats:
    """Scores of any shape as float64."""
    s = np.asarray(scores)
    if s.dtype.kind not in "fiu":
        raise DuopldaError(f"scores must be real numbers, not {s.dtype}")
    return s.astype(np.float64, copy=False)


def refuse_rows(bad: Booleans, name: str, what: str, remedy: str) -> None:
    """Raise an error that counts the bad rows and names the first five."""
    rows = np.flatnonzero(bad)
    if len(rows):
        first = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
        raise DuopldaError(f"{name}: {len(rows)} of {len(bad)} are {what} (rows {first}, from 0); {remedy}")
