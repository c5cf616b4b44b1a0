"""PLDA: the scikit-learn face of the model. It checks input and keeps attributes; nothing numeric happens here."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from duoplda.arrays import (
    Array,
    check_finite,
    check_rows,
    namespace,
    on_device,
    put,
    symmetric,
    take,
    to_float,
    to_numpy,
)
from duoplda.data import labels as lab
from duoplda.errors import DuopldaError, some
from duoplda.io import container as modelfile
from duoplda.model import anova, em
from duoplda.model import kinds as channels
from duoplda.model import parameters as par
from duoplda.model import posteriors as post
from duoplda.model import shrinkage as shr
from duoplda.model.parameters import Model
from duoplda.model.posteriors import Posterior
from duoplda.model.statistics import Statistics
from duoplda.trials import blocks as llr
from duoplda.trials.blocks import Sides

FLOOR = 1e-4  # of the mean variance, for noise that data leave singular, before it is shrunk
NO_SPEAKERS = "PLDA requires y to be passed, but the target y is None: give the speaker of each row of X"


class PLDA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """PLDA with two sources of inter-session variability.

        phi_ijl = mean + V y_i + U x_ij + eps_ijl,    y_i, x_ij ~ N(0, I),    eps_ijl ~ N(0, W^-1)

    for recording l of session j of speaker i. All recordings of a session (one conversation through several channels,
    or its augmented copies) share x_ij, so that they are not taken for independent evidence.

    Parameters
    ----------
    n_speaker_factors : int, None or "auto"
        Columns of V. None: full rank. "auto": chosen by the likelihood of held-out speakers.
    n_session_factors : int, None or "auto"
        Columns of U. None: full rank if any session has several recordings, otherwise 0, which is simplified PLDA.
    shrinkage : None, "auto", float or (speaker, session, noise[, channel])
        How far the covariances VV', UU' and W^-1 are moved towards the shape of the total covariance after training,
        from 0 to 1 (see `duoplda.shrinkage`); `channel` moves the noise of a kind towards the mean over kinds.
        "auto": chosen by the likelihood of held-out speakers. None: maximum likelihood; only where a kind of channels
        has fewer than 10 d recordings are kinds moved towards each other, by as much as held-out speakers ask for.
        Shrunk covariances are of full rank.
    n_channels : int or None
        Learn so many kinds of channels from recordings without labels of kinds (`fit(X, ...)` only: it reads X several
        times). Only sessions with several recordings can tell kinds apart. `channels_` are then 0 .. n_channels - 1.
    n_folds : int
        Folds of speakers for "auto".
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
        For `init="random"` and for the folds of "auto" (an int there; otherwise 0).
    callback : callable or None
        `callback(iteration, log_likelihood, model)` after each iteration; returning True ends training. If it has a
        method `held_out(done, folds)`, that is called after each fold of "auto".

    Attributes
    ----------
    mean_ : (d,)   speaker_loadings_ : (d, ny)   session_loadings_ : (d, nx)   noise_precision_ : (d, d) or (K, d, d)
        mu, V, U and the precision W (Kaldi and wespeaker call a covariance W), of each kind where there are several.
    channels_ : (K,)   channel_means_ : (K, d)   channel_priors_ : (K,)
        Kinds of channels, their means and their shares of the recordings; `mean_` is the mean over them.
    shrinkage_ : Shrinkage   shrinkage_path_ : dict
        What was chosen or given; log-likelihoods per recording of held-out speakers that were looked at.
    log_likelihoods_ : (n_iter_ + 1,)
        Of the training data, that of the start first; with several kinds, plus the log of their common prior, which is
        worth one recording (d recordings where a kind has fewer than 10 d) and keeps every kind's noise regular.
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
        n_speaker_factors: int | str | None = None,
        n_session_factors: int | str | None = None,
        *,
        shrinkage: Any = None,
        n_channels: int | None = None,
        n_folds: int = 4,
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
        self.shrinkage = shrinkage
        self.n_channels = n_channels
        self.n_folds = n_folds
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

    def fit(self, X: Any, y: Any = None, session: Any = None, channel: Any = None) -> Self:
        """Learn the parameters from recordings `X` (N, d), their speakers `y`, sessions and kinds of channels (N,).

        `session=None`: every recording is its own session. `channel=None`: one noise for all.
        """
        if y is None:
            raise DuopldaError(NO_SPEAKERS)
        X = self._rows(X, reset=True)
        self._check_parameters()
        if channel is None and self.n_channels is not None and self.n_channels > 1:
            channel = self._learn_channels(X, y, session)
        n_folds = self.n_folds if self._needs_folds(channel, X.shape[1]) else 0
        return self._fit(Statistics.from_arrays(X, y, session, channel, n_folds=n_folds, seed=self._fold_seed()))

    def fit_statistics(self, stats: Statistics, start: Model | None = None) -> Self:
        """The same from statistics gathered elsewhere; "auto" needs them with folds (`n_folds=4`).

        EM goes on from `start`, where one is given: the model of an earlier training that was interrupted.
        """
        if not isinstance(stats, Statistics):
            raise DuopldaError(f"fit_statistics needs Statistics, got {type(stats).__name__}: use fit for recordings")
        self.n_features_in_ = stats.d
        if hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        self._check_parameters()
        return self._fit(stats, start)

    def _learn_channels(self, X: Array, speaker: Any, session: Any) -> NDArray[np.int64]:
        rows = to_numpy(X).astype(np.float64, copy=False)
        labels = lab.encode(speaker, session, None, len(rows))

        def train(kind: NDArray[np.int64]) -> Model:
            stats = Statistics.from_arrays(rows, speaker, session, kind)
            rough = clone(self).set_params(max_iter=10, shrinkage=(0.5, 0.1, 0.1, 0.1), callback=None)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return rough.fit_statistics(stats)._model()

        assert self.n_channels is not None
        return channels.learn(rows, labels, int(self.n_channels), train, self._fold_seed())

    def _fit(self, stats: Statistics, start: Model | None = None) -> Self:
        full_nx = anova.session_rank(stats, None)
        ny, nx = self.n_speaker_factors, self.n_session_factors
        fixed_ny = stats.d if ny is None or ny == "auto" else int(ny)
        fixed_nx = full_nx if nx is None or nx == "auto" else int(nx)
        for name, n in (("n_speaker_factors", fixed_ny), ("n_session_factors", fixed_nx)):
            if n > stats.d:
                raise DuopldaError(
                    f"{name}={n} is more than the {stats.d} dimensions of the data: use at most {stats.d}, or None"
                )
        anova.check_identifiable(stats, fixed_ny, fixed_nx)
        reason = None if self.noise_floor else anova.singular(stats, fixed_ny, fixed_nx)
        if reason is not None:
            if self.shrinkage is None:
                raise DuopldaError(
                    f"{reason}. Set shrinkage='auto', or noise_floor (for example 1e-4), or reduce the dimensions first"
                )
            _warn(f"{reason}. Trained all the same, with a floor of {FLOOR:g} of the mean variance under the noise")
        self.shrinkage_path_: dict[Any, float] = {}
        if "auto" in (ny, nx):
            held_out = self._held_out(stats, fixed_ny, fixed_nx, "the numbers of factors")
            given = [None if n == "auto" else f for n, f in ((ny, fixed_ny), (nx, fixed_nx))]
            fixed_ny, fixed_nx = held_out.ranks(given[0], given[1], (fixed_ny, fixed_nx))
            self.shrinkage_path_.update(held_out.path)
        amount = self._choose_shrinkage(stats, fixed_ny, fixed_nx)
        result = self._train(stats, fixed_ny, fixed_nx, self.tol, self.callback, start)
        model = result.model
        if any(amount):
            model = shr.shrink(model, amount, shr.target(stats), stats.N)
        self.shrinkage_ = amount
        self._keep(model, stats.N / stats.N.sum())
        self.log_likelihoods_ = result.log_likelihoods
        self.n_iter_ = len(result.log_likelihoods) - 1
        self.n_evaluations_ = result.n_evaluations
        self.converged_ = result.converged
        if not result.converged and self.n_iter_ >= self.max_iter:
            gain = float(np.diff(result.log_likelihoods)[-1]) / stats.n_recordings if self.n_iter_ else float("inf")
            _warn(
                f"EM did not converge in {self.n_iter_} iterations: the last one gained {gain:.2g} nats per "
                f"recording, and tol={self.tol:g}. Raise max_iter, or tol if that is precise enough",
                ConvergenceWarning,
            )
        return self

    def _train(
        self, stats: Statistics, ny: int, nx: int, tol: float, callback: Any = None, start: Model | None = None
    ) -> em.Fit:
        """EM from the start that was asked for."""
        floor, few = float(self.noise_floor), self._few(stats.K, stats.N, stats.d)
        if not floor and (few or (self.shrinkage is not None and anova.singular(stats, ny, nx) is not None)):
            floor = FLOOR
        if floor:
            total = anova.total_covariance(stats)
            floor *= float(namespace(total).linalg.trace(total)) / stats.d or 1.0
        if start is not None and (start.V.shape, start.U.shape) != ((stats.d, ny), (stats.d, nx)):
            raise DuopldaError(
                f"start has other sizes than the {stats.d} dimensions and {ny} and {nx} factors asked for"
            )
        if start is not None:
            pass
        elif self.init == "moments":
            start = em.moment_start(stats, ny, nx, floor)
        else:
            seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
            start = em.random_start(stats, ny, nx, np.random.default_rng(seed), floor)
        return em.fit(
            stats,
            start,
            tol=tol,
            max_iter=self.max_iter,
            accelerate=self.accelerate,
            minimum_divergence=self.minimum_divergence,
            floor=floor,
            nu=stats.d if few else 1.0,
            callback=callback,
        )

    @staticmethod
    def _few(K: int, N: Any, d: int) -> bool:
        """Whether a kind of channels has too few recordings for a covariance of its own."""
        return K > 1 and bool((np.asarray(N) < 10 * d).any())

    def _held_out(self, stats: Statistics, ny: int, nx: int, what: str) -> shr.HeldOut:
        if not stats.folds:
            raise DuopldaError(
                f"{what} can be chosen by held-out speakers only from statistics with folds: gather them with "
                "n_folds=4, or give numbers"
            )
        if not shr.HeldOut.possible(stats):
            raise DuopldaError(f"too few speakers ({len(stats.speaker_ids)}) to hold some out for {what}: give numbers")
        show = getattr(self.callback, "held_out", None)  # progress, for a callback that can show it
        return shr.HeldOut(stats, lambda part: self._train(part, ny, nx, max(self.tol, 1e-4)).model, show)

    def _choose_shrinkage(self, stats: Statistics, ny: int, nx: int) -> shr.Shrinkage:
        several = ("channel",) if stats.K > 1 else ()
        if self.shrinkage == "auto":
            free = ("speaker", *(("session",) if nx else ()), "noise", *several)
            if not shr.HeldOut.possible(stats) and stats.folds:
                amount = shr.Shrinkage(**{name: getattr(shr.START, name) for name in free})
                _warn(f"too few speakers ({len(stats.speaker_ids)}) to hold some out: shrinkage set to {tuple(amount)}")
                return amount
        elif self.shrinkage is None:
            if not self._few(stats.K, stats.N, stats.d):
                return shr.Shrinkage()
            free = several
            if not stats.folds or not shr.HeldOut.possible(stats):
                amount = shr.Shrinkage(channel=0.5)
                _warn(f"kinds of channels with fewer than {10 * stats.d} recordings, no held-out speakers: {amount}")
                return amount
        elif isinstance(self.shrinkage, Real):
            a = float(self.shrinkage)
            return shr.Shrinkage(a, a, a, a if several else 0.0)
        else:
            given = [float(a) for a in self.shrinkage]
            return shr.Shrinkage(*given, *([given[2]] if len(given) == 3 and several else []))
        held_out = self._held_out(stats, ny, nx, "the shrinkage")
        amount = held_out.shrinkage(free)
        self.shrinkage_path_.update(held_out.path)
        return amount

    def _needs_folds(self, channel: Any, d: int) -> bool:
        if "auto" in (self.n_speaker_factors, self.n_session_factors) or isinstance(self.shrinkage, str):
            return True
        if channel is None or self.shrinkage is not None:
            return False
        counts = np.unique(lab.as_ids(channel, "channel"), return_counts=True)[1]
        return self._few(len(counts), counts, d)

    def _fold_seed(self) -> int:
        return int(self.random_state) if isinstance(self.random_state, Integral) else 0

    def _check_parameters(self) -> None:
        for name in ("n_speaker_factors", "n_session_factors"):
            n = getattr(self, name)
            if n not in (None, "auto") and (not isinstance(n, Integral) or isinstance(n, bool) or n < 0):
                raise DuopldaError(f"{name}={n!r} must be a whole number from 0 on, None for full rank, or 'auto'")
        a = self.shrinkage
        numbers = [a] if isinstance(a, Real) else a
        if a is not None and a != "auto":
            good = isinstance(numbers, (list, tuple)) and (isinstance(a, Real) or len(numbers) in (3, 4))
            if not good or not all(isinstance(x, Real) and 0 <= float(x) <= 1 for x in numbers):
                raise DuopldaError(
                    f"shrinkage={a!r} must be None, 'auto', a number from 0 to 1, or (speaker, session, noise) of such"
                )
        n = self.n_channels
        if n is not None and (not isinstance(n, Integral) or isinstance(n, bool) or n < 1):
            raise DuopldaError(f"n_channels={n!r} must be a whole number from 1 on, or None")
        if not isinstance(self.n_folds, Integral) or self.n_folds < 2:
            raise DuopldaError(f"n_folds={self.n_folds!r} must be a whole number from 2 on")
        if self.n_speaker_factors == 0:
            raise DuopldaError("n_speaker_factors=0 leaves nothing to tell speakers apart by: use at least 1, or None")
        if self.callback is not None and not callable(self.callback):
            raise DuopldaError(f"callback={self.callback!r} must be a function of (iteration, log_likelihood, model)")
        if self.init not in ("moments", "random"):
            raise DuopldaError(f"init={self.init!r} must be 'moments' or 'random'")
        if not isinstance(self.max_iter, Integral) or self.max_iter < 0:
            raise DuopldaError(f"max_iter={self.max_iter!r} must be a whole number from 0 on")
        for name in ("tol", "noise_floor"):
            value = getattr(self, name)
            if not isinstance(value, Real) or not value >= 0 or (name == "noise_floor" and not np.isfinite(value)):
                raise DuopldaError(f"{name}={value!r} must be a number from 0 on")

    def _keep(self, model: Model, priors: Any) -> None:
        one = model.K == 1
        self.channels_ = model.kinds
        self.channel_means_ = model.mu
        self.channel_priors_ = put(priors, model.mu)
        self.mean_ = model.mu[0, ...] if one else self.channel_priors_ @ model.mu
        self.speaker_loadings_ = model.V
        self.session_loadings_ = model.U
        W = symmetric(model.W)  # to the last digit, as a file gives it back
        self.noise_precision_ = W[0, ...] if one else W

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "mean_")

    @classmethod
    def from_parameters(
        cls,
        mean: Any,
        speaker_loadings: Any,
        session_loadings: Any,
        noise_precision: Any,
        channels: Any = None,
        channel_priors: Any = None,
    ) -> Self:
        """A model with given parameters; `session_loadings=None`: no session factors.

        With K `channels`, `mean` is (K, d), `noise_precision` (K, d, d), and `channel_priors` (K,), or equal.
        """
        model = par.checked(mean, speaker_loadings, session_loadings, noise_precision, channels)
        priors = np.full(model.K, 1 / model.K) if channel_priors is None else to_numpy(channel_priors).astype(float)
        if priors.shape != (model.K,) or not (priors > 0).all():
            raise DuopldaError(f"channel_priors must be {model.K} positive numbers, got {priors}")
        plda = cls(n_speaker_factors=model.ny, n_session_factors=model.nx)
        plda._keep(model, priors / priors.sum())
        plda.n_features_in_ = model.d
        return plda

    # -- densities and posteriors

    def log_likelihood(
        self, X: Any, speaker: Any, session: Any = None, channel: Any = None
    ) -> tuple[NDArray[Any], Array]:
        """Speaker ids (sorted) and ln P(Phi_i | model) of each, in nats."""
        model, X, labels = self._labelled(X, speaker, session, channel)
        return labels.speaker_ids, post.log_likelihoods(model, X, labels)

    def score(self, X: Any, y: Any = None, session: Any = None, channel: Any = None) -> float:
        """Mean log marginal likelihood per recording, in nats."""
        if y is None:
            raise DuopldaError(NO_SPEAKERS)
        n = X.shape[0] if hasattr(X, "shape") else len(X)
        return self.partition_log_likelihood(X, y, session, channel) / n

    def conditional_log_likelihood(
        self, X: Any, y: Any, x: Any, speaker: Any, session: Any = None, channel: Any = None
    ) -> tuple[NDArray[Any], Array]:
        """Speaker ids and ln P(Phi_i | y_i, X_i), for given hidden variables.

        Rows of `y` (M, ny) go with the sorted speaker ids, rows of `x` (H, nx) with the sorted session ids (with the
        recordings if `session` is None).
        """
        model, X, labels = self._labelled(X, speaker, session, channel)
        xp = namespace(X)
        y, x = (to_float(a if xp is not np else np.asarray(a), xp) for a in (y, x))
        return labels.speaker_ids, post.conditional_log_likelihoods(model, X, labels, y, x)

    def partition_log_likelihood(self, X: Any, labels: Any, session: Any = None, channel: Any = None) -> float:
        """ln P(Phi | theta) of a partition of recordings into speakers: the sum of its clusters' marginal likelihoods.

        A difference of two partitions is the ln likelihood ratio between them.
        """
        _, ln = self.log_likelihood(X, labels, session, channel)
        return float(namespace(ln).sum(ln))

    def posterior(self, X: Any, speaker: Any, session: Any = None, channel: Any = None) -> Posterior:
        """Posteriors of the speaker factors, of the session factors given these, and marginal means of these."""
        return post.posterior(*self._labelled(X, speaker, session, channel))

    def transform(self, X: Any, channel: Any = None) -> Array:
        """(N, ny) E[y | phi] of each recording by itself."""
        check_is_fitted(self)
        X = self._rows(X)
        xp = namespace(X)
        out = post.transform(self._model(X), to_float(X, xp), self._kind(X, channel))
        if not bool(xp.all(xp.isfinite(out))):
            check_finite(X)
        return out

    def channel_posterior(self, X: Any) -> Array:
        """(N, K) probabilities of the kinds `channels_` for each recording by itself, from its marginal density."""
        check_is_fitted(self)
        X = self._rows(X)
        xp = namespace(X)
        priors = put(to_numpy(self.channel_priors_), X)
        return xp.exp(post.kind_log_posterior(self._model(X), to_float(X, xp), priors))

    def sample(
        self,
        n_speakers: int = 1,
        sessions: int | tuple[int, int] = 1,
        recordings: int | tuple[int, int] = 1,
        random_state: int | None = None,
        channel: Any = None,
    ) -> tuple[NDArray[Any], ...]:
        """Draw recordings, with speaker and session ids; a range (low, high) is drawn from uniformly.

        A model of several kinds of channels gives the kind of each recording too: drawn by `channel_priors_`, or all of
        the kind `channel`.
        """
        from duoplda.datasets import make_recordings

        check_is_fitted(self)
        K, kinds = len(self.channels_), []
        if channel is not None and channel not in self.channels_.tolist():
            raise DuopldaError(f"channel={channel!r} is not a kind of this model: {some(self.channels_)}")

        def kind(rng: np.random.Generator, n: int) -> NDArray[np.int64]:
            if channel is None:
                kinds.append(rng.choice(K, n, p=to_numpy(self.channel_priors_)))
            else:
                kinds.append(np.full(n, self.channels_.tolist().index(channel)))
            return kinds[0]

        data = make_recordings(
            n_speakers,
            sessions,
            recordings,
            seed=random_state,
            model=self._model(),
            kind=kind if K > 1 else None,
        )
        return (data.X, data.speaker, data.session, *(self.channels_[k] for k in kinds))

    # -- trials

    def enroll(
        self, X: Any, speaker: Any, session: Any = None, channel: Any = None, *, device: str | None = None
    ) -> Sides:
        """Sum up sets of recordings as sides of trials: one side for each id in `speaker`, ids sorted.

        Sets may hold several sessions and several recordings of each. Session ids also tell when the two sides of a
        trial share a session, which `llr` then takes into account. Kinds of channels that are not given, or not known
        to the model, are inferred from each recording.

        Sides are where the recordings are; with `device`, a device of torch such as "cuda", recordings of the host are
        streamed there, and need not fit.
        """
        check_is_fitted(self)
        X = self._rows(X)
        like = X if device is None or namespace(X) is not np else on_device(np.zeros(1), device)
        return llr.enroll(self._model(like), X, speaker, session, self._kind(X, channel))

    def llr(self, enrolled: Sides, tests: Sides, pairs: Any = None) -> Array:
        """ln P(both | same speaker) - ln P(both | different speakers): rows enrolled.ids, columns tests.ids.

        `pairs` (n, 2): only these rows of `enrolled` and `tests`; (n,) values come back.
        """
        self._check_sides(enrolled, tests)
        return llr.matrix(enrolled, tests) if pairs is None else llr.pairs(enrolled, tests, pairs)

    def llr_blocks(
        self, enrolled: Sides, tests: Sides, *, cells: int | None = None, host: bool = False
    ) -> Iterator[tuple[slice, Array]]:
        """The matrix of `llr` in blocks of columns: (slice of tests, (len(enrolled), k)), about so many `cells` each.

        With `host` blocks are NumPy's; those of a GPU are copied while the next one is computed.

        >>> plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
        >>> sides = plda.enroll([[-1.0], [0.0], [2.0]], ["a", "b", "c"])
        >>> [(part, block.shape) for part, block in plda.llr_blocks(sides, sides, cells=6)]
        [(slice(0, 2, None), (3, 2)), (slice(2, 3, None), (3, 1))]
        """
        self._check_sides(enrolled, tests)
        return llr.blocks(enrolled, tests, cells, host)

    def top(self, enrolled: Sides, tests: Sides, k: int) -> tuple[Array, Array]:
        """The k best of `enrolled` for each test, best first, without the matrix: (len(tests), k) rows, and ratios.

        Of equal ratios the lower row comes first; where fewer than k are enrolled, all come.

        >>> plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
        >>> sides = plda.enroll([[-1.0], [0.0], [2.0]], ["a", "b", "c"])
        >>> rows, ratios = plda.top(sides, sides, 2)
        >>> sides.ids[rows].tolist()
        [['a', 'b'], ['b', 'a'], ['c', 'b']]
        """
        self._check_sides(enrolled, tests)
        return llr.top(enrolled, tests, k)

    def _check_sides(self, enrolled: Sides, tests: Sides) -> None:
        check_is_fitted(self)
        for name, side in (("enrolled", enrolled), ("tests", tests)):
            if not isinstance(side, Sides):
                raise DuopldaError(f"{name} must come from enroll, got {type(side).__name__}")
        if namespace(enrolled.gamma) is not namespace(tests.gamma):
            raise DuopldaError("the two sides are in different array libraries: enroll both from arrays of one kind")
        own = self._model(enrolled.gamma)
        if not (par.same(own, enrolled.model) and par.same(own, tests.model)):
            raise DuopldaError("the sides were enrolled by different models: enroll both with the model that scores")

    @staticmethod
    def posterior_probability(llr: Any, prior: float = 0.01) -> Array:
        """P(same speaker | recordings) = 1 / (1 + exp(-LLR) (1 - prior) / prior)."""
        if not (isinstance(prior, Real) and 0 < prior < 1):
            raise DuopldaError(f"prior={prior!r} must lie between 0 and 1")
        xp = namespace(llr)
        if xp is np:
            return expit(np.asarray(llr) + logit(prior))
        log_odds = to_float(llr, xp) + float(logit(prior))
        small = xp.exp(-xp.abs(log_odds))
        return xp.where(log_odds < 0, small, xp.ones_like(small)) / (1 + small)

    # -- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a safetensors file, whole or not at all."""
        check_is_fitted(self)
        names = ["channel_means_", "channel_priors_", "speaker_loadings_", "session_loadings_", "noise_precision_"]
        arrays = {n.rstrip("_"): to_numpy(getattr(self, n)) for n in names}
        parameters = {
            k: v.item() if isinstance(v, np.generic) else v
            for k, v in self.get_params().items()
            if k not in ("callback", "random_state")
        }
        header: dict[str, Any] = {"parameters": parameters, "channels": self.channels_.tolist()}
        if hasattr(self, "shrinkage_"):
            header["shrinkage"] = list(self.shrinkage_)
        if hasattr(self, "log_likelihoods_"):
            arrays["log_likelihoods"] = self.log_likelihoods_
            header["fit"] = {"converged": bool(self.converged_), "n_evaluations": int(self.n_evaluations_)}
        modelfile.write(path, arrays, header)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote."""
        arrays, header = modelfile.read(path)
        try:
            channels, priors = np.array(header["channels"]), arrays["channel_priors"]
            noise = arrays["noise_precision"].reshape(len(channels), *arrays["noise_precision"].shape[-2:])
            mean, V, U = (arrays[n] for n in ("channel_means", "speaker_loadings", "session_loadings"))
            model = par.checked(mean, V, U, noise, channels)
            plda = cls(**header["parameters"])
            if priors.shape != channels.shape:
                raise DuopldaError(f"{len(channels)} channels, {len(priors)} priors")
            if "shrinkage" in header:
                plda.shrinkage_ = shr.Shrinkage(*header["shrinkage"])
            if "log_likelihoods" in arrays:
                plda.log_likelihoods_ = arrays["log_likelihoods"]
                if plda.log_likelihoods_.ndim != 1:
                    raise ValueError(f"log_likelihoods has shape {plda.log_likelihoods_.shape}")
                plda.n_iter_ = len(plda.log_likelihoods_) - 1
                plda.converged_ = header["fit"]["converged"]
                plda.n_evaluations_ = header["fit"]["n_evaluations"]
        except (KeyError, TypeError, ValueError) as error:
            raise DuopldaError(f"{path} is damaged: {error}") from None
        plda._keep(model, priors)
        plda.n_features_in_ = model.d
        return plda

    # -- inside

    @property
    def _n_features_out(self) -> int:
        return self.speaker_loadings_.shape[1]

    def _model(self, like: Array | None = None) -> Model:
        """The parameters, in the array library and on the device of the data."""
        mu, V, U, W = self.channel_means_, self.speaker_loadings_, self.session_loadings_, self.noise_precision_
        if like is not None and (namespace(V) is not namespace(like) or str(V.device) != str(like.device)):
            mu, V, U, W = (put(to_numpy(a), like) for a in (mu, V, U, W))
        return Model(mu, V, U, W[None, ...] if W.ndim == 2 else W, self.channels_)

    def _rows(self, X: Any, reset: bool = False) -> Array:
        if namespace(X) is np:
            try:
                X = validate_data(self, X, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite=False)
            except ValueError as error:
                raise DuopldaError(str(error)) from None
            return check_rows(X)[0]
        X, _ = check_rows(X)
        if reset:
            self.n_features_in_ = X.shape[1]
        elif X.shape[1] != self.n_features_in_:
            raise DuopldaError(
                f"X has {X.shape[1]} features, but PLDA is expecting {self.n_features_in_} features as input"
            )
        return X

    def _kind(self, X: Array, channel: Any) -> NDArray[np.int64]:
        """The kind of each recording: as labelled where the model knows the label, else the most probable."""
        n, K = X.shape[0], len(self.channels_)
        if K == 1:
            return np.zeros(n, np.int64)
        kind = np.full(n, -1) if channel is None else lab.codes_among(channel, self.channels_, n)
        unknown = np.flatnonzero(kind < 0)
        if len(unknown):
            kind[unknown] = np.argmax(to_numpy(self.channel_posterior(take(X, unknown))), axis=1)
        return kind

    def _labelled(self, X: Any, speaker: Any, session: Any, channel: Any) -> tuple[Model, Array, lab.Labels]:
        check_is_fitted(self)
        X = self._rows(X)
        labels = lab.encode(speaker, session, None, X.shape[0])
        return self._model(X), X, replace(labels, kinds=self.channels_, kind=self._kind(X, channel))


def _warn(message: str, category: type[Warning] = UserWarning) -> None:
    warnings.warn(message, category, stacklevel=4)
