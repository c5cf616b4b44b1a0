"""PLDA: the scikit-learn face of the model. It checks input and keeps attributes; nothing numeric happens here."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from duoplda import em, llr, modelfile
from duoplda import labels as lab
from duoplda import model as mod
from duoplda._array import Array, namespace, put, to_float, to_numpy
from duoplda.errors import DuopldaError
from duoplda.llr import Sides
from duoplda.model import Model, Posterior
from duoplda.statistics import Statistics, check_finite, check_rows

NO_SPEAKERS = "PLDA requires y to be passed, but the target y is None: give the speaker of each row of X"


class PLDA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """PLDA with two sources of inter-session variability.

        phi_ijl = mean + V y_i + U x_ij + eps_ijl,    y_i, x_ij ~ N(0, I),    eps_ijl ~ N(0, W^-1)

    for recording l of session j of speaker i. All recordings of a session (one conversation through several channels,
    or its augmented copies) share x_ij, so that they are not taken for independent evidence.

    Parameters
    ----------
    n_speaker_factors : int or None
        Columns of V. None: full rank.
    n_session_factors : int or None
        Columns of U. None: full rank if any session has several recordings, otherwise 0, which is simplified PLDA.
    init : {"moments", "random"}
        Start from an analysis of variance, or from loadings drawn with `random_state`.
    tol : float
        EM stops when an iteration gains less, in nats per recording.
    max_iter : int
        The most iterations; a ConvergenceWarning says when they were not enough.
    accelerate : bool
        Anderson acceleration, safeguarded by the likelihood.
    minimum_divergence : bool
        The MD step after each ML step. Without it EM is very slow.
    noise_floor : float
        No eigenvalue of W^-1 falls below this share of the mean variance of a dimension. 0: no floor, and data that
        leave W^-1 singular are refused.
    random_state : int, RandomState instance or None
        For `init="random"`.
    callback : callable or None
        `callback(iteration, log_likelihood, model)` after each iteration; returning True ends training.

    Attributes
    ----------
    mean_ : (d,)   speaker_loadings_ : (d, ny)   session_loadings_ : (d, nx)   noise_precision_ : (d, d)
        mu, V, U and the precision W (Kaldi and wespeaker call a covariance W).
    log_likelihoods_ : (n_iter_ + 1,) of the training data, that of the start first.
    n_iter_ : int   n_evaluations_ : int   converged_ : bool

    Examples
    --------
    >>> from duoplda import PLDA
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(60, seed=0)
    >>> plda = PLDA(n_speaker_factors=16, n_session_factors=12).fit(X, speaker, session=session)
    >>> enrolled = plda.enroll(X[:40], speaker[:40], session[:40])
    >>> tests = plda.enroll(X[40:50], range(10))
    >>> plda.llr(enrolled, tests).shape == (len(enrolled), 10)
    True
    """

    def __init__(
        self,
        n_speaker_factors: int | None = None,
        n_session_factors: int | None = None,
        *,
        init: str = "moments",
        tol: float = 1e-6,
        max_iter: int = 500,
        accelerate: bool = True,
        minimum_divergence: bool = True,
        noise_floor: float = 0.0,
        random_state: Any = None,
        callback: Callable[[int, float, Model], Any] | None = None,
    ):
        self.n_speaker_factors = n_speaker_factors
        self.n_session_factors = n_session_factors
        self.init = init
        self.tol = tol
        self.max_iter = max_iter
        self.accelerate = accelerate
        self.minimum_divergence = minimum_divergence
        self.noise_floor = noise_floor
        self.random_state = random_state
        self.callback = callback

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    # -- training

    def fit(self, X: Any, y: Any = None, session: Any = None) -> Self:
        """Learn the parameters from recordings `X` (N, d), their speakers `y` (N,) and their sessions (N,).

        `session=None`: every recording is its own session.
        """
        if y is None:
            raise DuopldaError(
                "PLDA requires y to be passed, but the target y is None: give the speaker of each row of X"
            )
        X = self._rows(X, reset=True)
        return self._fit(Statistics.from_arrays(X, y, session))

    def fit_statistics(self, stats: Statistics) -> Self:
        """The same from statistics gathered elsewhere."""
        self.n_features_in_ = stats.d
        if hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self._fit(stats)

    def _fit(self, stats: Statistics) -> Self:
        self._check_parameters()
        d = stats.d
        ny = d if self.n_speaker_factors is None else self.n_speaker_factors
        nx = em.full_rank(stats, self.n_session_factors)
        for name, n in (("n_speaker_factors", ny), ("n_session_factors", nx)):
            if n > d:
                raise DuopldaError(f"{name}={n} is more than the {d} dimensions of the data: use at most {d}, or None")
        floor = float(self.noise_floor)
        em.check_identifiable(stats, ny, nx, floor)
        if floor:
            total = em.total_covariance(stats)
            floor *= float(namespace(total).linalg.trace(total)) / d
            if floor == 0:
                raise DuopldaError("all recordings are equal: there is nothing to learn")
        if self.init == "moments":
            start = em.moment_start(stats, ny, nx, floor)
        else:
            seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
            start = em.random_start(stats, ny, nx, np.random.default_rng(seed), floor)
        result = em.fit(
            stats,
            start,
            tol=self.tol,
            max_iter=self.max_iter,
            accelerate=self.accelerate,
            minimum_divergence=self.minimum_divergence,
            floor=floor,
            callback=self.callback,
        )
        self._keep(result.model)
        self.log_likelihoods_ = result.log_likelihoods
        self.n_iter_ = len(result.log_likelihoods) - 1
        self.n_evaluations_ = result.n_evaluations
        self.converged_ = result.converged
        if not result.converged and self.n_iter_ >= self.max_iter:
            gain = float(np.diff(result.log_likelihoods)[-1]) / stats.n_recordings if self.n_iter_ else float("inf")
            warnings.warn(
                f"EM did not converge in {self.n_iter_} iterations: the last one gained {gain:.2g} nats per "
                f"recording, and tol={self.tol:g}. Raise max_iter, or tol if that is precise enough",
                ConvergenceWarning,
                stacklevel=3,
            )
        return self

    def _check_parameters(self) -> None:
        for name in ("n_speaker_factors", "n_session_factors"):
            n = getattr(self, name)
            if n is not None and (not isinstance(n, Integral) or isinstance(n, bool) or n < 0):
                raise DuopldaError(f"{name}={n!r} must be a whole number from 0 on, or None for full rank")
        if self.n_speaker_factors == 0:
            raise DuopldaError("n_speaker_factors=0 leaves nothing to tell speakers apart by: use at least 1, or None")
        if self.init not in ("moments", "random"):
            raise DuopldaError(f"init={self.init!r} must be 'moments' or 'random'")
        if not isinstance(self.max_iter, Integral) or self.max_iter < 0:
            raise DuopldaError(f"max_iter={self.max_iter!r} must be a whole number from 0 on")
        for name in ("tol", "noise_floor"):
            value = getattr(self, name)
            if not isinstance(value, Real) or not value >= 0:
                raise DuopldaError(f"{name}={value!r} must be a number from 0 on")

    def _keep(self, model: Model) -> None:
        self.mean_ = model.mu[0, ...]
        self.speaker_loadings_ = model.V
        self.session_loadings_ = model.U
        self.noise_precision_ = model.W[0, ...]

    @classmethod
    def from_parameters(cls, mean: Any, speaker_loadings: Any, session_loadings: Any, noise_precision: Any) -> Self:
        """A model with given parameters; `session_loadings=None`: no session factors."""
        model = mod.checked(mean, speaker_loadings, session_loadings, noise_precision)
        plda = cls(n_speaker_factors=model.ny, n_session_factors=model.nx)
        plda._keep(model)
        plda.n_features_in_ = model.d
        return plda

    # -- densities and posteriors

    def log_likelihood(self, X: Any, speaker: Any, session: Any = None) -> tuple[NDArray[Any], Array]:
        """Speaker ids (sorted) and ln P(Phi_i | model) of each, in nats."""
        model, X, labels = self._labelled(X, speaker, session)
        return labels.speaker_ids, mod.log_likelihoods(model, X, labels)

    def score(self, X: Any, y: Any = None, session: Any = None) -> float:
        """Mean log marginal likelihood per recording, in nats."""
        if y is None:
            raise DuopldaError(
                "PLDA requires y to be passed, but the target y is None: give the speaker of each row of X"
            )
        _, ln = self.log_likelihood(X, y, session)
        return float(namespace(ln).sum(ln)) / X.shape[0] if hasattr(X, "shape") else float(ln.sum()) / len(X)

    def conditional_log_likelihood(
        self, X: Any, y: Any, x: Any, speaker: Any, session: Any = None
    ) -> tuple[NDArray[Any], Array]:
        """Speaker ids and ln P(Phi_i | y_i, X_i), for given hidden variables.

        Rows of `y` (M, ny) go with the sorted speaker ids, rows of `x` (H, nx) with the sorted session ids (with the
        recordings if `session` is None).
        """
        model, X, labels = self._labelled(X, speaker, session)
        xp = namespace(X)
        y, x = (to_float(a if xp is not np else np.asarray(a), xp) for a in (y, x))
        return labels.speaker_ids, mod.conditional_log_likelihoods(model, X, labels, y, x)

    def partition_log_likelihood(self, X: Any, labels: Any, session: Any = None) -> float:
        """ln P(Phi | theta) of a partition of recordings into speakers: the sum of its clusters' marginal likelihoods.

        A difference of two partitions is the ln likelihood ratio between them.
        """
        _, ln = self.log_likelihood(X, labels, session)
        return float(namespace(ln).sum(ln))

    def posterior(self, X: Any, speaker: Any, session: Any = None) -> Posterior:
        """Posteriors of the speaker factors, of the session factors given these, and marginal means of these."""
        return mod.posterior(*self._labelled(X, speaker, session))

    def transform(self, X: Any) -> Array:
        """(N, ny) E[y | phi] of each recording by itself."""
        check_is_fitted(self)
        X = self._rows(X)
        xp = namespace(X)
        out = mod.transform(self._model(X), to_float(X, xp))
        if not bool(xp.all(xp.isfinite(out))):
            check_finite(X)
        return out

    def sample(
        self,
        n_speakers: int = 1,
        sessions: int | tuple[int, int] = 1,
        recordings: int | tuple[int, int] = 1,
        random_state: int | None = None,
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Draw recordings, with speaker and session ids; a range (low, high) is drawn from uniformly."""
        from duoplda.datasets import make_recordings

        check_is_fitted(self)
        data = make_recordings(n_speakers, sessions, recordings, seed=random_state, model=self._model())
        return data.X, data.speaker, data.session

    # -- trials

    def enroll(self, X: Any, speaker: Any, session: Any = None) -> Sides:
        """Sum up sets of recordings as sides of trials: one side for each id in `speaker`, ids sorted.

        Sets may hold several sessions and several recordings of each. Session ids also tell when the two sides of a
        trial share a session, which `llr` then takes into account.
        """
        check_is_fitted(self)
        X = self._rows(X)
        return llr.enroll(self._model(X), X, speaker, session)

    def llr(self, enrolled: Sides, tests: Sides, pairs: Any = None) -> Array:
        """ln P(both | same speaker) - ln P(both | different speakers): rows enrolled.ids, columns tests.ids.

        `pairs` (n, 2): only these rows of `enrolled` and `tests`; (n,) values come back.
        """
        check_is_fitted(self)
        for name, side in (("enrolled", enrolled), ("tests", tests)):
            if not isinstance(side, Sides):
                raise DuopldaError(f"{name} must come from enroll, got {type(side).__name__}")
        if enrolled.gamma.shape[1] != tests.gamma.shape[1] or enrolled.model.d != tests.model.d:
            raise DuopldaError(
                "the two sides were enrolled by different models: enroll both with the model that scores"
            )
        return llr.matrix(enrolled, tests) if pairs is None else llr.pairs(enrolled, tests, pairs)

    @staticmethod
    def posterior_probability(llr: Any, prior: float = 0.01) -> Array:
        """P(same speaker | recordings) = 1 / (1 + exp(-LLR) (1 - prior) / prior)."""
        if not 0 < prior < 1:
            raise DuopldaError(f"prior={prior!r} must lie between 0 and 1")
        xp = namespace(llr)
        if xp is np:
            return expit(np.asarray(llr) + logit(prior))
        return 1 / (1 + xp.exp(-(llr + float(logit(prior)))))

    # -- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a safetensors file, whole or not at all."""
        check_is_fitted(self)
        names = ["mean_", "speaker_loadings_", "session_loadings_", "noise_precision_"]
        arrays = {n.rstrip("_"): to_numpy(getattr(self, n)) for n in names}
        parameters = {k: v for k, v in self.get_params().items() if k not in ("callback", "random_state")}
        header: dict[str, Any] = {"parameters": parameters}
        if hasattr(self, "log_likelihoods_"):
            arrays["log_likelihoods"] = self.log_likelihoods_
            header["fit"] = {"converged": bool(self.converged_), "n_evaluations": int(self.n_evaluations_)}
        modelfile.write(path, arrays, header)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote."""
        arrays, header = modelfile.read(path)
        try:
            model = mod.checked(
                *(arrays[n] for n in ("mean", "speaker_loadings", "session_loadings", "noise_precision"))
            )
            plda = cls(**header["parameters"])
        except (KeyError, TypeError, ValueError) as error:
            raise DuopldaError(f"{path} is damaged: {error}") from None
        plda._keep(model)
        plda.n_features_in_ = model.d
        if "log_likelihoods" in arrays:
            plda.log_likelihoods_ = arrays["log_likelihoods"]
            plda.n_iter_ = len(plda.log_likelihoods_) - 1
            plda.converged_ = header["fit"]["converged"]
            plda.n_evaluations_ = header["fit"]["n_evaluations"]
        return plda

    # -- inside

    @property
    def _n_features_out(self) -> int:
        return self.speaker_loadings_.shape[1]

    def _model(self, like: Array | None = None) -> Model:
        """The parameters, in the array library and on the device of the data."""
        mu, V, U, W = self.mean_, self.speaker_loadings_, self.session_loadings_, self.noise_precision_
        if like is not None and (namespace(V) is not namespace(like) or str(V.device) != str(like.device)):
            mu, V, U, W = (put(to_numpy(a), like) for a in (mu, V, U, W))
        return Model(mu[None, :], V, U, W[None, :, :])

    def _rows(self, X: Any, reset: bool = False) -> Array:
        if namespace(X) is np:
            X = validate_data(self, X, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite=False)
            return check_rows(X)[0]
        X, _ = check_rows(X)
        if reset:
            self.n_features_in_ = X.shape[1]
        elif X.shape[1] != self.n_features_in_:
            raise DuopldaError(
                f"X has {X.shape[1]} features, but PLDA is expecting {self.n_features_in_} features as input"
            )
        return X

    def _labelled(self, X: Any, speaker: Any, session: Any) -> tuple[Model, Array, lab.Labels]:
        check_is_fitted(self)
        X = self._rows(X)
        return self._model(X), X, lab.encode(speaker, session, None, X.shape[0])
