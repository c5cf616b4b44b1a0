"""What is done to embeddings before PLDA: centre, reduce (LDA), whiten, normalise lengths. scikit-learn transformers.

    x <- x - mean         x <- L'x,  L'(within) L = I         x <- T^(-1/2) x         x <- sqrt(d) x / |x|

All but the last are affine, and all they need are means and covariances: a `Spread`, from one pass over the data.
Recordings are transformed in their own array library, on their own device; what is learnt stays on the host.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from duoplda.arrays import Array, check_finite, check_rows, namespace, put, symmetric, to_float, to_numpy
from duoplda.data import Recordings
from duoplda.data import labels as lab
from duoplda.errors import DuopldaError, some
from duoplda.estimators import checks
from duoplda.model import anova
from duoplda.model.statistics import Statistics, name_rows

__all__ = ["LDA", "Center", "LengthNorm", "Whiten"]

Floats = NDArray[np.float64]


def through(steps: Mapping[str, Any], X: Any, channel: Any = None) -> Array:
    """(N, k) recordings `X` (N, d) after the fitted steps; `channel` (N,) matters where they are centred by it."""
    out = check_rows(X)[0]
    for step in steps.values():
        out = step.transform(out, channel) if isinstance(step, Center) else step.transform(out)
    return out


@dataclass(frozen=True, eq=False)
class Spread:
    """Means and covariances of recordings, and how the covariance divides between speakers, sessions and channels.

    With several kinds of channels, `pooled` and the three parts are about the means of the kinds.
    """

    n: float  # recordings
    mean: Floats  # (d,)
    pooled: Floats  # (d, d) covariance
    kinds: NDArray[Any]  # (K,)
    shares: Floats  # (K,) of the recordings
    kind_means: Floats  # (K, d)
    noise: Floats | None = None  # (d, d) of recordings about their session
    session: Floats | None = None  # (d, d) of sessions about their speaker, noise taken off
    speaker: Floats | None = None  # (d, d) of speakers, the rest taken off
    n_speakers: float = 0.0

    @property
    def between_kinds(self) -> Floats:
        """(d, d) covariance of the means of the kinds."""
        centred = self.kind_means - self.mean
        return (self.shares[:, None] * centred).T @ centred

    def total(self, by_channel: bool = False) -> Floats:
        """(d, d) covariance about the mean, or about the means of the kinds."""
        return self.pooled if by_channel else self.pooled + self.between_kinds

    def mapped(self, A: Floats) -> Spread:
        """Of recordings A'x; A is (d, k)."""
        parts: dict[str, Any] = {}
        for name in ("pooled", "noise", "session", "speaker"):
            part = getattr(self, name)
            parts[name] = None if part is None else symmetric(A.T @ part @ A)
        return replace(self, mean=self.mean @ A, kind_means=self.kind_means @ A, **parts)

    @classmethod
    def of(cls, stats: Statistics) -> Spread:
        """From statistics of labelled recordings: variances divided as in an analysis of variance."""
        s = anova.scatters(stats)
        within, session, speaker = (to_numpy(a) for a in (s.within, s.session, s.speaker))
        N, n = stats.N, stats.n_recordings
        kind_means = to_numpy(anova.by_kind(stats, stats.f)) / np.maximum(N, 1e-300)[:, None] + to_numpy(stats.offset)
        if s.df[0] > 0:
            noise = within / s.df[0]
            sessions = _positive((session - s.df[1] * noise) / s.a) if s.df[1] > 0 and s.a > 0 else 0 * noise
        else:  # no session has two recordings: noise and sessions are one
            noise = session / s.df[1] if s.df[1] > 0 else 0 * session
            sessions = 0 * noise
        speakers = (speaker - s.df[2] * noise - s.b * sessions) / max(s.e, 1.0)
        pooled, parts = symmetric((within + session + speaker) / n), (symmetric(noise), sessions, symmetric(speakers))
        return cls(n, N @ kind_means / n, pooled, stats.kinds, N / n, kind_means, *parts, stats.n_speakers)

    @classmethod
    def unlabelled(cls, recordings: Recordings) -> Spread:
        """Mean and covariance of recordings, whatever their labels: one pass, wherever the recordings lie."""
        spread = recordings.reduce(cls.gather, cls.merge, list)[0]
        if spread is None:
            raise DuopldaError("there are no recordings")
        return spread

    @classmethod
    @np.errstate(invalid="ignore", over="ignore")
    def gather(cls, recordings: Recordings) -> tuple[list[Spread | None], list[Any]]:
        """Mean and covariance of one part of the recordings, or None where it is empty; there are no loose ends."""
        found: Spread | None = None
        for chunk in recordings.chunks():
            X = to_numpy(chunk.X).astype(np.float64)
            mean = X.mean(axis=0)
            X -= mean
            own = cls(len(X), mean, X.T @ X / len(X), lab.NO_KIND, np.ones(1), mean[None, :])
            if not np.isfinite(own.pooled).all():
                name_rows(recordings)
                raise DuopldaError("recordings have values too large to add up: on what scale are they?")
            found = cls.merge([found, own])
        return [found], []

    @classmethod
    def merge(cls, parts: Sequence[Spread | None]) -> Spread | None:
        """Mean and covariance of all recordings from those of parts of them, as `gather` gives them."""
        there = [p for p in parts if p is not None]
        if len(there) < 2:
            return there[0] if there else None
        share = np.array([p.n for p in there])
        share, n = share / share.sum(), float(share.sum())
        means = np.stack([p.mean for p in there])
        mean = share @ means
        apart = (means - mean) * np.sqrt(share)[:, None]
        pooled = np.tensordot(share, np.stack([p.pooled for p in there]), axes=1) + apart.T @ apart
        return cls(n, mean, symmetric(pooled), lab.NO_KIND, np.ones(1), mean[None, :])


class _Step(TransformerMixin, BaseEstimator):
    """What the transformers share."""

    def _rows(self, X: Any, reset: bool = False) -> Array:
        X = checks.rows(self, X, reset)
        check_finite(X)
        return to_float(X, namespace(X))

    def _spread(self, spread: Spread | Statistics) -> Spread:
        spread = Spread.of(spread) if isinstance(spread, Statistics) else spread
        checks.width(self, len(spread.mean))
        return spread


class _Linear(_Step):
    """Multiplies recordings by what it has learnt, `matrix_`."""

    matrix_: Floats

    def transform(self, X: Any) -> Array:
        """(N, k) recordings times the matrix (d, k)."""
        check_is_fitted(self)
        X = self._rows(X)
        return X @ put(self.matrix_, X)


def _kind_means(step: Any, X: Floats, channel: Any) -> tuple[NDArray[Any], NDArray[np.int64], Floats]:
    """The kinds (K,), the kind of each recording (N,) and the means (K, d); one kind unless `step.by_channel`."""
    if not step.by_channel:
        return lab.NO_KIND, np.zeros(len(X), np.int64), X.mean(axis=0)[None, :]
    if channel is None:
        raise DuopldaError(f"{type(step).__name__}(by_channel=True) needs channel: the kind of each recording")
    kinds, kind = lab.codes(channel, "channel", len(X))
    return kinds, kind, np.stack([X[kind == k].mean(axis=0) for k in range(len(kinds))])


class Center(OneToOneFeatureMixin, _Step):
    """Subtract the mean, of all recordings or of each kind of channel.

    Parameters
    ----------
    by_channel : bool
        Subtract the mean of the recording's kind; the mean of all where its kind is unknown or not given.

    Attributes
    ----------
    mean_ : (d,)   channels_ : (K,)   channel_means_ : (K, d)

    Examples
    --------
    >>> Center().fit([[1.0, 2.0], [3.0, 4.0]]).transform([[2.0, 3.0]]).tolist()
    [[0.0, 0.0]]
    """

    def __init__(self, by_channel: bool = False) -> None:
        self.by_channel = by_channel

    def fit(self, X: Any, y: Any = None, channel: Any = None) -> Self:
        """Learn from recordings `X` (N, d) and, for `by_channel`, their kinds of channels (N,)."""
        X = to_numpy(self._rows(X, reset=True))
        self.mean_ = X.mean(axis=0)
        self.channels_, _, self.channel_means_ = _kind_means(self, X, channel)
        return self

    def fit_statistics(self, stats: Statistics | Spread) -> Self:
        """The same from statistics."""
        spread = self._spread(stats)
        self.mean_, self.channels_, self.channel_means_ = spread.mean, lab.NO_KIND, spread.mean[None, :]
        if self.by_channel:
            self.channels_, self.channel_means_ = spread.kinds, spread.kind_means
        return self

    def transform(self, X: Any, channel: Any = None) -> Array:
        """(N, d) recordings less the mean."""
        check_is_fitted(self)
        X = self._rows(X)
        if not self.by_channel or channel is None:
            return X - put(self.mean_, X)
        kind = lab.codes_among(channel, self.channels_, X.shape[0])
        return X - put(np.concatenate([self.channel_means_, self.mean_[None, :]])[kind], X)  # -1, unknown: the last


class Whiten(OneToOneFeatureMixin, _Linear):
    """Make the total covariance T the identity: x <- T^(-1/2) x, the symmetric root.

    Parameters
    ----------
    floor : float
        No eigenvalue of T counts for less than this share of their mean; a warning says when it matters.
    by_channel : bool
        T is the covariance about the mean of each kind of channel: for recordings that were centred by channel.

    Attributes
    ----------
    matrix_ : (d, d)

    Examples
    --------
    >>> X = np.random.default_rng(0).normal(size=(100, 3)) * [1.0, 2.0, 3.0]
    >>> np.allclose(np.cov(Whiten().fit_transform(X).T, bias=True), np.eye(3))
    True
    """

    def __init__(self, floor: float = 1e-6, by_channel: bool = False) -> None:
        self.floor = floor
        self.by_channel = by_channel

    def fit(self, X: Any, y: Any = None, channel: Any = None) -> Self:
        """Learn from recordings `X` (N, d) and, for `by_channel`, their kinds of channels (N,)."""
        X = to_numpy(self._rows(X, reset=True))
        _, kind, means = _kind_means(self, X, channel)
        X = X - means[kind]
        return self._fit(X.T @ X / len(X))

    def fit_statistics(self, stats: Statistics | Spread) -> Self:
        """The same from statistics."""
        return self._fit(self._spread(stats).total(self.by_channel))

    def _fit(self, T: Floats) -> Self:
        s, E = np.linalg.eigh(symmetric(T))
        least = self.floor * s.mean()
        if not s.mean() > 0:
            raise DuopldaError("recordings do not vary at all (one sample, or copies of one): nothing can be whitened")
        low = int((s < least).sum())
        if low:
            warnings.warn(
                f"{low} of {len(s)} directions have (almost) no variance, and are not blown up to 1 by whitening: "
                "there are too few recordings for the dimensions, or columns repeat. LDA can leave them out",
                UserWarning,
                stacklevel=3,
            )
        self.matrix_ = (E / np.sqrt(np.maximum(s, least))) @ E.T
        return self


class LDA(checks.NeedsSpeakers, _Linear):
    """Keep the directions in which speakers differ most, compared with everything else that varies.

    An analysis of variance divides the covariance between speakers, sessions and recordings, so that a session counts
    once, however many recordings it has. With Sigma_w the sum of the channel and session covariances and Sigma_b the
    covariance of speakers,

        Sigma_b L = Sigma_w L D,    L' Sigma_w L = I,    the n_components largest of D.

    Parameters
    ----------
    n_components : int or None
        Directions to keep. None: the number of speakers less one, or all directions if these are fewer.
    session_nuisance : bool
        Sessions count as nuisance, as channels do. False: Sigma_w is the channel covariance alone.
    by_channel : bool
        Differences between the means of the kinds of channels do not count as nuisance: for recordings that were
        centred by channel.

    Attributes
    ----------
    matrix_ : (d, n_components)   ratios_ : (n_components,) ratios of speaker variance to nuisance variance

    Examples
    --------
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(60, seed=0)
    >>> LDA(8).fit(X, speaker, session=session).transform(X).shape[1]
    8
    """

    def __init__(
        self, n_components: int | None = None, session_nuisance: bool = True, by_channel: bool = False
    ) -> None:
        self.n_components = n_components
        self.session_nuisance = session_nuisance
        self.by_channel = by_channel

    def fit(self, X: Any, y: Any = None, session: Any = None, channel: Any = None) -> Self:
        """Learn from recordings `X` (N, d), their speakers `y`, sessions and kinds of channels (N,)."""
        self._check_speakers(y)
        X = to_numpy(self._rows(X, reset=True))
        return self._fit(Spread.of(Statistics.from_arrays(X, y, session, channel)))

    def fit_statistics(self, stats: Statistics | Spread) -> Self:
        """The same from statistics."""
        return self._fit(self._spread(stats))

    def _fit(self, spread: Spread) -> Self:
        d, n = len(spread.mean), self.n_components
        if spread.noise is None or spread.session is None or spread.speaker is None:
            raise DuopldaError("LDA needs statistics with speakers")
        most = int(min(d, spread.n_speakers - 1))
        if most < 1:
            raise DuopldaError("LDA needs two speakers or more, there is only one class")
        n = most if n is None else n
        if not checks.whole(n, 1) or n > most:
            raise DuopldaError(
                f"n_components={n!r} must lie between 1 and {most}: there are {spread.n_speakers:g} speakers "
                f"and {d} dimensions"
            )
        within = spread.noise + spread.session * self.session_nuisance
        if not self.by_channel:
            within = within + spread.between_kinds
        size = np.trace(within) / d
        if not size > 0:
            raise DuopldaError("LDA needs speakers with two recordings or more: nothing varies within speakers")
        s, E = np.linalg.eigh(within)
        root = (E / np.sqrt(np.maximum(s, 1e-6 * size))) @ E.T
        ratios, V = np.linalg.eigh(symmetric(root @ spread.speaker @ root))
        order = np.argsort(-ratios)[: int(n)]
        L = root @ V[:, order]
        largest = L[np.abs(L).argmax(axis=0), np.arange(int(n))]
        L *= np.where(largest < 0, -1.0, 1.0)  # signs that do not depend on LAPACK
        self.matrix_, self.ratios_ = L, ratios[order]
        return self

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """lda0, lda1, ..."""
        check_is_fitted(self)
        return np.array([f"lda{i}" for i in range(self.matrix_.shape[1])], dtype=object)


class LengthNorm(OneToOneFeatureMixin, _Step):
    """Scale every recording to the length sqrt(d), so that a dimension's variance is about 1.

    >>> LengthNorm().fit_transform([[3.0, 4.0]]).round(4).tolist()
    [[0.8485, 1.1314]]
    """

    def fit(self, X: Any, y: Any = None) -> Self:
        """Nothing is learnt."""
        self._rows(X, reset=True)
        return self

    def fit_statistics(self, stats: Statistics | Spread) -> Self:
        """Nothing is learnt."""
        self._spread(stats)
        return self

    def transform(self, X: Any) -> Array:
        """(N, d) recordings of length sqrt(d)."""
        check_is_fitted(self, "n_features_in_")
        X = self._rows(X)
        xp = namespace(X)
        with np.errstate(over="ignore"):
            squares = xp.vecdot(X, X)
        if bool(xp.all((squares > 1e-200) & (squares < 1e200))):
            return X * xp.sqrt(X.shape[1] / squares)[:, None]
        scale = xp.max(xp.abs(X), axis=1, keepdims=True)  # so that no square overflows or vanishes
        zero = np.flatnonzero(to_numpy(scale)[:, 0] == 0)
        if len(zero):
            raise DuopldaError(
                f"recordings of length 0 have no direction to keep, rows {some(zero)}: remove them, or look at what "
                "the extractor did with them (empty or silent audio?)"
            )
        X = X / scale
        return X * xp.sqrt(X.shape[1] / xp.vecdot(X, X))[:, None]


def mapped(stats: Statistics, means: NDArray[np.float64], matrix: NDArray[np.float64]) -> Statistics:
    """Statistics of (x - mean of its kind) A from those of x: exact, as the maps are affine."""
    A, delta = put(matrix, stats.offset), stats.offset - put(means, stats.offset)  # (K, d): x = offset + ... - mean
    xp, d, k = namespace(A), stats.d, matrix.shape[1]
    blocks = []
    for b, f, H in zip(stats.blocks, stats.f, stats.H, strict=True):
        n = len(b.present)
        shift = xp.concat([int(b.counts[j]) * delta[j, :] for j in b.present.tolist()])
        fd = f[:, None] * shift[None, :]
        own = b.A + put(b.n.astype(float), b.A)[:, None] * shift[None, :]
        T = b.T + fd + fd.T + float(H) * shift[:, None] * shift[None, :]
        own = xp.concat([own[:, i * d : (i + 1) * d] @ A for i in range(n)], axis=1)
        cells = [[A.T @ T[i * d : (i + 1) * d, j * d : (j + 1) * d] @ A for j in range(n)] for i in range(n)]
        T = xp.concat([xp.concat(row, axis=1) for row in cells])
        blocks.append(replace(b, A=own, scatter=T))
    within = xp.stack([A.T @ stats.within[i, ...] @ A for i in range(stats.K)])
    folds = tuple(mapped(part, means, matrix) for part in stats.folds)
    offset = put(np.zeros(k), stats.offset)
    return replace(stats, offset=offset, blocks=tuple(blocks), within=within, folds=folds)


def _positive(A: Floats) -> Floats:
    """The nearest covariance: negative eigenvalues, of estimates from few data, become 0."""
    s, E = np.linalg.eigh(symmetric(A))
    return (E * np.maximum(s, 0.0)) @ E.T
