"""Checks of the input and of the parameters of estimators."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from duoplda.arrays import Array, check_index, check_rows, namespace, to_numpy
from duoplda.data import Recordings, as_recordings
from duoplda.errors import DuopldaError, some
from duoplda.model.simpler import MODELS
from duoplda.selection.trials import DEFAULT_ENROLMENT, Enrolment

if TYPE_CHECKING:
    from duoplda.estimators.plda import PLDA


class NeedsSpeakers:
    """Estimators that learn from labelled recordings only."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.target_tags.required = True
        return tags

    def _check_speakers(self, y: ArrayLike | None) -> None:
        if y is None:  # the first part of the message is what scikit-learn's own checks look for
            what = f"{type(self).__name__} requires y to be passed, but the target y is None"
            raise DuopldaError(f"{what}: give the speaker of each row")

    def _recordings(
        self,
        X: ArrayLike | Recordings,
        y: ArrayLike | None,
        session: ArrayLike | None,
        channel: ArrayLike | None,
        occasion: ArrayLike | None,
    ) -> Recordings:
        """The recordings to train on: `Recordings` as they are, or checked arrays, whose columns may have names."""
        if isinstance(X, Recordings):
            vars(self).pop("feature_names_in_", None)
        else:
            self._check_speakers(y)
            X = rows(self, X, reset=True, y=y, session=session, channel=channel, occasion=occasion)
        return as_recordings(X, y, session, channel, occasion)


def rows(estimator: BaseEstimator, X: ArrayLike, reset: bool = False, **labels: ArrayLike | None) -> Array:
    """Check that `X` is a matrix (N, d) of real numbers, in any array library, and return it there.

    With `reset` the estimator notes the number and the names of the columns; without it they must be those of the
    training. If `labels` of the rows, by name, have an index (of pandas), it must be that of `X`.
    """
    check_index(X=X, **labels)
    if namespace(X) is np:
        X = to_numpy(X) if isinstance(X, (np.ma.MaskedArray, np.matrix)) else X
        try:
            matrix = validate_data(estimator, X, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite=False)
        except ValueError as error:
            raise DuopldaError(str(error)) from None
        return check_rows(matrix)[0]
    matrix, _ = check_rows(X)
    d = matrix.shape[1]
    if reset:
        width(estimator, d)
    elif d != estimator.n_features_in_:
        expected = f"{type(estimator).__name__} is expecting {estimator.n_features_in_} features as input"
        raise DuopldaError(f"X has {d} features, but {expected}")
    return matrix


def no_repeats(ids: NDArray[Any]) -> None:
    """Refuse recordings whose ids occur more than once."""
    names, n = np.unique(ids, return_counts=True)
    repeated = names[n > 1].tolist()
    if repeated:
        raise DuopldaError(f"{len(repeated)} ids of recordings occur more than once: {some(repeated)}")


def no_weights(sample_weight: None) -> None:
    """Refuse weights. They are an argument because a `Pipeline` of scikit-learn passes one to every `score`."""
    if sample_weight is not None:
        raise DuopldaError("sample_weight must be None: recordings of a speaker cannot be weighted one by one")


def width(estimator: BaseEstimator, d: int) -> None:
    """Note in the estimator that the training data had d columns without names."""
    estimator.n_features_in_ = d
    vars(estimator).pop("feature_names_in_", None)


def whole(value: Any, low: int) -> bool:
    """Whether a parameter is a whole number from `low` on."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= low


def seed(random_state: int | np.random.RandomState | None) -> int:
    """The seed of the folds and of random starts: `random_state` if it is an int, otherwise 0."""
    if random_state is None or isinstance(random_state, np.random.RandomState):
        return 0
    largest = 2**32 - 1  # the largest seed that NumPy takes
    if not whole(random_state, 0) or random_state > largest:
        allowed = f"None, a whole number from 0 to {largest}, or a RandomState"
        raise DuopldaError(f"random_state={random_state!r} must be {allowed}")
    return int(random_state)


def shrinkage(value: str | ArrayLike | None) -> str | tuple[float, ...] | None:
    """The parameter `shrinkage`: None, "auto", or the numbers that were given, as a tuple of 1, 3 or 4."""
    if value is None or (isinstance(value, str) and value == "auto"):
        return value
    try:
        amounts = to_numpy(value)
        numeric = amounts.dtype.kind in "fiu" and amounts.shape in ((), (3,), (4,))
        good = numeric and bool(((amounts >= 0) & (amounts <= 1)).all())
    except (TypeError, ValueError):
        good = False
    if not good:
        names = "(speaker, session, noise) or (speaker, session, noise, channel)"
        raise DuopldaError(f"shrinkage={value!r} must be None, 'auto', a number from 0 to 1, or three or four: {names}")
    return tuple(amounts.reshape(-1).tolist())


def enrolment(value: Sequence[tuple[int, int | None]] | None) -> Enrolment:
    """The parameter `enrolment`: pairs of numbers of sessions and of recordings in each, or the usual mixture."""
    if value is None:
        return DEFAULT_ENROLMENT
    try:
        pairs = [(sessions, recordings) for sessions, recordings in (value if isinstance(value, (tuple, list)) else ())]
    except (TypeError, ValueError):
        pairs = []
    if not pairs or not all(whole(s, 1) and (r is None or whole(r, 1)) for s, r in pairs):
        form = "pairs (sessions, recordings of each), such as ((1, 1), (3, None))"
        raise DuopldaError(f"enrolment={value!r} must be None, or {form}; None stands for all recordings of a session")
    return tuple((int(s), None if r is None else int(r)) for s, r in pairs)


def priors(value: ArrayLike) -> tuple[float, ...]:
    """The parameter `priors`: one or more probabilities."""
    try:
        numbers = np.atleast_1d(np.asarray(() if isinstance(value, str) else value, float))
    except (TypeError, ValueError):
        numbers = np.zeros(0)
    if numbers.ndim != 1 or not len(numbers) or not ((numbers > 0) & (numbers < 1)).all():
        raise DuopldaError(f"priors={value!r} must be probabilities between 0 and 1, such as (0.5, 0.01)")
    return tuple(numbers.tolist())


def plda_parameters(plda: PLDA) -> None:
    """Refuse wrong values of the parameters of a PLDA, with a message that says what is allowed."""
    if not isinstance(plda.criterion, str) or plda.criterion not in ("decision", "likelihood"):
        raise DuopldaError(f"criterion={plda.criterion!r} must be 'decision' or 'likelihood'")
    if not (plda.model is None or (isinstance(plda.model, str) and plda.model in ("auto", *MODELS))):
        raise DuopldaError(f"model={plda.model!r} must be None, 'auto', {', '.join(map(repr, MODELS))}")
    if not isinstance(plda.calibration, str) or plda.calibration not in ("affine", "structure"):
        raise DuopldaError(f"calibration={plda.calibration!r} must be 'affine' or 'structure'")
    enrolment(plda.enrolment)
    priors(plda.priors)
    seed(plda.random_state)
    shrinkage(plda.shrinkage)
    for name, least in (("n_speaker_factors", 1), ("n_session_factors", 0), ("n_channels", 1)):
        value = getattr(plda, name)
        automatic = value is None or (isinstance(value, str) and value == "auto")
        if not automatic and not whole(value, least):
            allowed = f"a whole number from {least} on, None for the default, or 'auto'"
            raise DuopldaError(f"{name}={value!r} must be {allowed}")
    for name, least in (("n_folds", 2), ("max_iter", 0)):
        value = getattr(plda, name)
        if not whole(value, least):
            raise DuopldaError(f"{name}={value!r} must be a whole number from {least} on")
    for name in ("tol", "noise_floor"):
        value = getattr(plda, name)
        if not (isinstance(value, Real) and float(value) >= 0 and (name == "tol" or float(value) < np.inf)):
            raise DuopldaError(f"{name}={value!r} must be a number from 0 on")
    if plda.init not in ("moments", "random"):
        raise DuopldaError(f"init={plda.init!r} must be 'moments' or 'random'")
    if plda.callback is not None and not callable(plda.callback):
        raise DuopldaError(f"callback={plda.callback!r} must be a function of (iteration, log_likelihood, model)")
