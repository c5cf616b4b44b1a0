"""The steps before PLDA, as scikit-learn transformers: centre, reduce (LDA), whiten, normalise lengths.

    x <- x - mean         x <- L'x,  L'(within) L = I         x <- T^(-1/2) x         x <- sqrt(d) x / |x|

All but the last are affine. They are learnt from means and covariances, which one pass over the data gives. Recordings
are transformed in their own array library, on their own device; what is learnt stays on the host, in NumPy.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from duoplda.arrays import (
    Array,
    check_finite,
    check_rows,
    in_order,
    namespace,
    put,
    reproducible,
    row_blocks,
    symmetric,
    to_float,
    to_numpy,
)
from duoplda.data import labels as lab
from duoplda.errors import DuopldaError, some
from duoplda.estimators import checks
from duoplda.io import Transform
from duoplda.model import anova
from duoplda.model.accumulate import LARGEST_SUM
from duoplda.model.statistics import Statistics

__all__ = ["LDA", "Center", "LengthNorm", "Whiten"]

Floats = NDArray[np.float64]


def through(steps: Mapping[str, BaseEstimator], X: ArrayLike, channel: ArrayLike | None = None) -> Array:
    """(N, k) recordings `X` (N, d) after the fitted steps; steps that go by channel need their kinds `channel` (N,)."""
    rows = check_rows(X)[0]
    if not steps:
        return rows
    rows = checks.rows(next(iter(steps.values())), rows)
    check_finite(rows)
    kinds = None if channel is None else to_numpy(channel)
    if namespace(rows) is not np or (kinds is not None and kinds.shape != (len(rows),)):
        return _applied(steps, rows, kinds)

    last = list(steps.values())[-1]
    out = np.empty((len(rows), last.matrix_.shape[1] if isinstance(last, _Linear) else last.n_features_in_))

    def fill(part: slice) -> None:
        out[part] = _applied(steps, rows[part], None if kinds is None else kinds[part])

    # Blocks fit into the caches. They do not depend on the number of threads, and so the result does not either.
    try:
        deque(in_order(fill, row_blocks(len(rows), rows), 2.0 * rows.size * rows.shape[1]), maxlen=0)
    except DuopldaError:
        return _applied(steps, rows, kinds)  # this raises again, and names the rows of X instead of those of a block
    return out


def _applied(steps: Mapping[str, BaseEstimator], X: Array, channel: NDArray[Any] | None) -> Array:
    xp = namespace(X)
    out = np.array(X, np.float64) if xp is np else to_float(X, xp)  # a copy, which steps may change
    for step in steps.values():
        out = step._applied(out, channel)
    return out


def folded(steps: Mapping[str, BaseEstimator]) -> Transform:
    """The fitted steps as VBx and pyannote store them: centre, normalise lengths, multiply, centre, normalise lengths.

        x -> sqrt(k) unit( sqrt(d) unit(x - mean1) lda - mean2 )

    With two length normalisations, everything between them is one affine map, and only a mean may come before the
    first. With one, mean2 is 0: the second normalisation undoes what the first did to the length, and all matrices
    (LDA, whitening) multiply to one. Both are exact. Any other chain is refused.
    """
    parts: list[list[tuple[str, BaseEstimator]]] = [[]]  # the affine steps between length normalisations
    for name, step in steps.items():
        if isinstance(step, Center) and step.by_channel and len(step.channels_) > 1:
            kinds = f"means of {len(step.channels_)} kinds of channels"
            raise DuopldaError(f"{name} has {kinds}, and the files hold one mean: train without center_by_channel")
        if isinstance(step, LengthNorm):
            parts.append([])
        else:
            parts[-1].append((name, step))
    chain = " -> ".join(steps) or "no preprocessing"
    if len(parts) not in (2, 3) or parts[-1]:
        said = f"{chain} cannot be written for VBx or pyannote, which normalise lengths twice, once at the end"
        raise DuopldaError(f"{said}: train with length normalisation, for example by Backend.preset('vbx')")
    d = next(iter(steps.values())).n_features_in_
    mean1, matrix = _affine(parts[0], d)
    if len(parts) == 2:
        if any(isinstance(step, Center) for _, step in parts[0][1:]):
            raise DuopldaError(f"{chain} cannot be written for VBx or pyannote: the mean must be subtracted first")
        mean1 = parts[0][0][1].mean_ if parts[0] and isinstance(parts[0][0][1], Center) else np.zeros(d)
        return Transform(mean1, matrix, np.zeros(matrix.shape[1]))
    if early := [name for name, step in parts[0] if not isinstance(step, Center)]:
        names = ", ".join(early)
        said = f"{names} comes before the first of two length normalisations, where the files can have only a mean"
        raise DuopldaError(f"{chain} cannot be written for VBx or pyannote: {said}")
    mean2, lda = _affine(parts[1], d)
    return Transform(mean1, lda, mean2)


def _affine(steps: list[tuple[str, BaseEstimator]], d: int) -> tuple[Floats, Floats]:
    """The shift b (k,) and the matrix A (d, k) of steps that together are x -> x A - b."""
    A = np.eye(d)
    b = np.zeros(d)
    for _, step in steps:
        if isinstance(step, Center):
            b = b + step.mean_
        else:
            A = A @ step.matrix_
            b = b @ step.matrix_
    return b, A


def unfolded(transform: Transform) -> dict[str, Any]:
    """The five fitted steps of a transform, the reverse of `folded`."""
    d, k = transform.lda.shape
    lda = LDA(k)
    lda.matrix_ = transform.lda
    lda.ratios_ = np.zeros(0)  # the file of another tool does not have them
    steps: dict[str, Any] = {
        "center": Center().set_mean(transform.mean1),
        "length_norm": LengthNorm(),
        "lda": lda,
        "center_2": Center().set_mean(transform.mean2),
        "length_norm_2": LengthNorm(),
    }
    for step, width in zip(steps.values(), (d, d, d, k, k), strict=True):
        step.n_features_in_ = width
    return steps


@dataclass(frozen=True, eq=False)
class Covariances:
    """Means and covariances of recordings, and how the covariance divides between speakers, sessions and channels.

    With several kinds of channels, `pooled` and the three parts are about the means of the kinds.
    """

    mean: Floats  # (d,)
    pooled: Floats  # (d, d) covariance
    kinds: NDArray[Any]  # (K,)
    shares: Floats  # (K,) of the recordings
    kind_means: Floats  # (K, d)
    noise: Floats  # (d, d) of recordings about their session
    session: Floats  # (d, d) of sessions about their speaker, noise taken off
    speaker: Floats  # (d, d) of speakers, the rest taken off
    n_speakers: float

    @property
    def between_kinds(self) -> Floats:
        """(d, d) covariance of the means of the kinds."""
        centred = self.kind_means - self.mean
        return (self.shares[:, None] * centred).T @ centred

    @property
    def total(self) -> Floats:
        """(d, d) covariance about the mean of all."""
        return self.pooled + self.between_kinds

    @reproducible()
    def mapped(self, A: Floats) -> Covariances:
        """Of recordings A'x; A is (d, k)."""
        names = ("pooled", "noise", "session", "speaker")
        parts: dict[str, Any] = {name: symmetric(A.T @ getattr(self, name) @ A) for name in names}
        return replace(self, mean=self.mean @ A, kind_means=self.kind_means @ A, **parts)

    @classmethod
    @reproducible()
    def of(cls, stats: Statistics) -> Covariances:
        """From statistics, by an analysis of variance (method of moments)."""
        s = anova.scatters(stats)
        within, session, speaker = (to_numpy(a) for a in (s.within, s.session, s.speaker))
        N = stats.N
        n = stats.n_recordings
        kind_means = to_numpy(stats.kind_means) + to_numpy(stats.offset)
        if s.df[0] > 0:
            noise = within / s.df[0]
            sessions = (session - s.df[1] * noise) / s.a if s.df[1] > 0 and s.a > 0 else 0 * noise
            sizes, E = np.linalg.eigh(symmetric(sessions))
            sessions = (E * np.maximum(sizes, 0.0)) @ E.T  # a difference of two estimates may have negative eigenvalues
        else:  # no session has two recordings: noise and sessions are one
            noise = session / s.df[1] if s.df[1] > 0 else 0 * session
            sessions = 0 * noise
        speakers = (speaker - s.df[2] * noise - s.b * sessions) / max(s.e, 1.0)
        pooled = symmetric((within + session + speaker) / n)
        parts = (symmetric(noise), sessions, symmetric(speakers))
        return cls(N @ kind_means / n, pooled, stats.kinds, N / n, kind_means, *parts, stats.n_speakers)


class _Step(TransformerMixin, BaseEstimator, ABC):
    """The checks of input, and learning from statistics, which the transformers share."""

    def _rows(self, X: ArrayLike, reset: bool = False, **labels: ArrayLike | None) -> Array:
        if not reset:
            check_is_fitted(self)
        X = checks.rows(self, X, reset, **labels)
        check_finite(X)
        return to_float(X, namespace(X))

    def transform(self, X: ArrayLike, channel: ArrayLike | None = None) -> Array:
        """(N, k) recordings after this step; `X` (N, d) itself does not change.

        Their kinds of channels (N,) matter if each kind is centred on its own mean.
        """
        rows = self._rows(X, channel=channel)
        return self._applied(np.array(rows) if isinstance(rows, np.ndarray) else rows, channel)

    @abstractmethod
    def _applied(self, X: Array, channel: ArrayLike | None = None) -> Array:
        """Transform checked rows (N, d); the step may overwrite them if they are an array of NumPy."""

    def _channel(self, channel: ArrayLike | None) -> ArrayLike | None:
        """The kinds of the recordings if the step goes by them, otherwise None."""
        if self.by_channel and channel is None:
            raise DuopldaError(f"{type(self).__name__}(by_channel=True) needs channel: the kind of each recording")
        return channel if self.by_channel else None

    def fit_statistics(self, stats: Statistics | Covariances) -> Self:
        """Learn from statistics of recordings what `fit` learns from recordings."""
        covariances = Covariances.of(stats) if isinstance(stats, Statistics) else stats
        checks.width(self, len(covariances.mean))
        return self._learn(covariances)

    def _learn(self, covariances: Covariances) -> Self:
        return self


class _Linear(_Step):
    """A step that multiplies recordings by `matrix_`."""

    matrix_: Floats

    def _applied(self, X: Array, channel: ArrayLike | None = None) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            product = X @ put(self.matrix_, X)
        xp = namespace(product)
        infinite = np.flatnonzero(~to_numpy(xp.all(xp.isfinite(product), axis=1)))
        if len(infinite):
            where = f"{len(infinite)} of {len(X)} rows: {some(infinite)}"
            raise DuopldaError(f"values too large to be multiplied in {where}: on what scale are these vectors?")
        return product


@dataclass(eq=False, repr=False)
class Center(OneToOneFeatureMixin, _Step):
    """Subtract the mean, of all recordings or of each kind of channel.

    Parameters
    ----------
    by_channel : subtract the mean of the recording's kind, or the mean of all if its kind is unknown or not given

    Attributes
    ----------
    mean_ : (d,)   channels_ : (K,)   channel_means_ : (K, d)

    Examples
    --------
    >>> Center().fit([[1.0, 2.0], [3.0, 4.0]]).transform([[2.0, 3.0]]).tolist()
    [[0.0, 0.0]]
    """

    by_channel: bool = False

    def fit(self, X: ArrayLike, y: ArrayLike | None = None, channel: ArrayLike | None = None) -> Self:
        """Learn from recordings `X` (N, d) and, for `by_channel`, their kinds of channels (N,)."""
        rows = to_numpy(self._rows(X, reset=True, channel=channel))
        channel = self._channel(channel)
        mean = rows.mean(axis=0)
        if channel is None:
            return self.set_mean(mean)
        kinds, kind = lab.codes(channel, "channel", len(rows))
        return self.set_mean(mean, kinds, np.stack([rows[kind == k].mean(axis=0) for k in range(len(kinds))]))

    def _learn(self, covariances: Covariances) -> Self:
        if self.by_channel:
            return self.set_mean(covariances.mean, covariances.kinds, covariances.kind_means)
        return self.set_mean(covariances.mean)

    def set_mean(self, mean: Floats, channels: NDArray[Any] = lab.NO_KIND, channel_means: Floats | None = None) -> Self:
        """Take a mean (d,) that is known, and those of kinds of channels (K, d), instead of learning them."""
        self.mean_ = mean
        self.channels_ = channels
        self.channel_means_ = mean[None, :] if channel_means is None else channel_means
        return self

    def _applied(self, X: Array, channel: ArrayLike | None = None) -> Array:
        mean = put(self.mean_, X)
        if self.by_channel and channel is not None:
            kind = lab.codes_among(channel, self.channels_, X.shape[0])
            mean = put(np.concatenate([self.channel_means_, self.mean_[None, :]])[kind], X)  # -1, unknown: the last
        return np.subtract(X, mean, out=X) if isinstance(X, np.ndarray) else X - mean


@dataclass(eq=False, repr=False)
class Whiten(OneToOneFeatureMixin, _Linear):
    """Make the total covariance T the identity: x <- T^(-1/2) x, the symmetric root.

    It needs more recordings than dimensions: directions without variance are not stretched, and a warning says so.

    Parameters
    ----------
    floor : eigenvalues of T below this share of their mean are raised to it
    by_channel : whether T is the covariance about the mean of each kind of channel, for recordings centred by channel

    Attributes
    ----------
    matrix_ : (d, d)

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(100, 3)) * [1.0, 2.0, 3.0]
    >>> np.allclose(np.cov(Whiten().fit_transform(X).T, bias=True), np.eye(3))
    True
    """

    floor: float = 1e-6
    by_channel: bool = False

    def fit(self, X: ArrayLike, y: ArrayLike | None = None, channel: ArrayLike | None = None) -> Self:
        """Learn from recordings `X` (N, d) and, for `by_channel`, their kinds of channels (N,)."""
        rows = self._rows(X, reset=True, channel=channel)
        one_speaker = np.zeros(rows.shape[0])
        return self._learn(Covariances.of(Statistics.from_arrays(rows, one_speaker, None, self._channel(channel))))

    @reproducible()
    def _learn(self, covariances: Covariances) -> Self:
        s, E = np.linalg.eigh(symmetric(covariances.pooled if self.by_channel else covariances.total))
        least = self.floor * s.mean()
        if not s.mean() * LARGEST_SUM > 1:
            cause = f"recordings do not vary at all (one sample, or copies of one), or too little ({s.mean():.3g})"
            raise DuopldaError(f"{cause}: nothing can be whitened")
        if low := int((s < least).sum()):
            warnings.warn(
                f"{low} of {len(s)} directions have (almost) no variance, and whitening does not stretch them to 1: "
                "there are too few recordings for the dimensions, or columns repeat. LDA can leave them out",
                UserWarning,
                stacklevel=4,
            )
        self.matrix_ = (E / np.sqrt(np.maximum(s, least))) @ E.T
        return self


@dataclass(eq=False, repr=False)
class LDA(checks.NeedsSpeakers, ClassNamePrefixFeaturesOutMixin, _Linear):
    """Keep the directions in which speakers differ most, compared with everything else that varies.

    Fewer dimensions take less time and fewer recordings to train on. With shrinkage, PLDA seldom needs LDA before it.
    An analysis of variance divides the covariance between speakers, sessions and recordings, so that a session counts
    once, however many recordings it has. With Sigma_w the sum of the channel and session covariances and Sigma_b the
    covariance of speakers,

        Sigma_b L = Sigma_w L D,    L' Sigma_w L = I,    the n_components largest of D.

    Parameters
    ----------
    n_components : the number of directions to keep; None: one less than there are speakers, or all if that is less
    session_nuisance : whether sessions count as nuisance, as channels do; if not, Sigma_w is the channel covariance
    by_channel : whether differences between the means of the kinds are no nuisance, for recordings centred by channel

    Attributes
    ----------
    matrix_ : (d, n_components)
    ratios_ : (n_components,) ratios of speaker variance to nuisance variance; (0,) if another tool made the matrix

    Examples
    --------
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(60, seed=0)
    >>> LDA(8).fit(X, speaker, session=session).transform(X).shape[1]
    8
    """

    n_components: int | None = None
    session_nuisance: bool = True
    by_channel: bool = False

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        session: ArrayLike | None = None,
        channel: ArrayLike | None = None,
    ) -> Self:
        """Learn from recordings `X` (N, d), their speakers `y`, sessions and kinds of channels (N,)."""
        self._check_speakers(y)
        rows = self._rows(X, reset=True, y=y, session=session, channel=channel)
        return self._learn(Covariances.of(Statistics.from_arrays(rows, y, session, channel)))

    @reproducible()
    def _learn(self, covariances: Covariances) -> Self:
        d = len(covariances.mean)
        most = int(min(d, covariances.n_speakers - 1))
        if most < 1:
            raise DuopldaError("LDA needs two speakers or more, there is only one class")
        n = most if self.n_components is None else self.n_components
        if not checks.whole(n, 1) or n > most:
            sizes = f"there are {covariances.n_speakers:g} speakers and {d} dimensions"
            raise DuopldaError(f"n_components={n!r} must lie between 1 and {most}: {sizes}")
        within = covariances.noise + covariances.session * self.session_nuisance
        if not self.by_channel:
            within = within + covariances.between_kinds
        size = np.trace(within) / d
        if not size > 0:
            raise DuopldaError("LDA needs speakers with two recordings or more: nothing varies within speakers")
        s, E = np.linalg.eigh(within)
        # With few recordings, some directions have no nuisance: the floor, as in `Whiten`, keeps their ratios finite.
        root = (E / np.sqrt(np.maximum(s, 1e-6 * size))) @ E.T
        ratios, V = np.linalg.eigh(symmetric(root @ covariances.speaker @ root))
        order = np.argsort(-ratios)[: int(n)]
        L = root @ V[:, order]
        largest = L[np.abs(L).argmax(axis=0), np.arange(int(n))]
        L *= np.where(largest < 0, -1.0, 1.0)  # otherwise the signs depend on the release of LAPACK
        self.matrix_ = L
        self.ratios_ = ratios[order]
        return self

    @property
    def _n_features_out(self) -> int:
        return self.matrix_.shape[1]


class LengthNorm(OneToOneFeatureMixin, _Step):
    """Scale every recording to the length sqrt(d), so that the variance of a dimension is about 1.

    It makes embeddings more Gaussian, as PLDA expects them. Recordings of length 0 are an error.

    >>> LengthNorm().fit_transform([[3.0, 4.0]]).round(4).tolist()
    [[0.8485, 1.1314]]
    """

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Check the recordings; nothing is learnt."""
        self._rows(X, reset=True)
        return self

    def _applied(self, X: Array, channel: ArrayLike | None = None) -> Array:
        xp = namespace(X)
        with np.errstate(over="ignore", invalid="ignore"):
            squares = xp.vecdot(X, X)
        # Between these limits, which hold nearly always, neither squares nor their sums overflow or vanish.
        if bool(xp.all((squares > 1e-200) & (squares < 1e200))):
            scale = xp.sqrt(X.shape[1] / squares)[:, None]
            return np.multiply(X, scale, out=X) if isinstance(X, np.ndarray) else X * scale
        check_finite(X)  # earlier steps may have overflowed
        scale = xp.max(xp.abs(X), axis=1, keepdims=True)
        zero = np.flatnonzero(to_numpy(scale)[:, 0] == 0)
        if len(zero):
            remedy = "remove them, or look at what the extractor did with them (empty or silent audio?)"
            raise DuopldaError(f"recordings of length 0 have no direction to keep, rows {some(zero)}: {remedy}")
        X = X / scale
        return X * xp.sqrt(X.shape[1] / xp.vecdot(X, X))[:, None]
