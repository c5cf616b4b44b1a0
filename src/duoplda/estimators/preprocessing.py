"""What is done to embeddings before PLDA: centre, reduce (LDA), whiten, normalise lengths. scikit-learn transformers.

    x <- x - mean         x <- L'x,  L'(within) L = I         x <- T^(-1/2) x         x <- sqrt(d) x / |x|

All but the last are affine, and all they need are means and covariances: a `Spread`, from one pass over the data.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from duoplda.arrays import check_finite, check_rows, namespace, put, to_numpy
from duoplda.data import labels as lab
from duoplda.errors import DuopldaError, some
from duoplda.model import anova
from duoplda.model.statistics import Statistics

__all__ = ["LDA", "Center", "LengthNorm", "Whiten"]

Floats = NDArray[np.float64]


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
            parts[name] = None if part is None else _symmetric(A.T @ part @ A)
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
        return cls(
            n,
            N @ kind_means / n,
            _symmetric((within + session + speaker) / n),
            stats.kinds,
            N / n,
            kind_means,
            _symmetric(noise),
            sessions,
            _symmetric(speakers),
            stats.n_speakers,
        )

    @classmethod
    def merge(cls, parts: Sequence[Spread]) -> Spread:
        """Of the recordings of several, as `accumulate` gives them."""
        share = np.array([p.n for p in parts])
        share, n = share / share.sum(), float(share.sum())
        means = np.stack([p.mean for p in parts])
        mean = share @ means
        apart = (means - mean) * np.sqrt(share)[:, None]
        pooled = np.tensordot(share, np.stack([p.pooled for p in parts]), axes=1) + apart.T @ apart
        return cls(n, mean, _symmetric(pooled), lab.NO_KIND, np.ones(1), mean[None, :])

    @classmethod
    def accumulate(cls, chunks: Iterable[Any]) -> Spread:
        """Mean and covariance from chunks without labels, read once."""
        n, offset, total, scatter = 0, np.zeros(0), np.zeros(0), np.zeros((0, 0))
        for chunk in chunks:
            X = np.asarray(check_rows(chunk)[0], np.float64)
            if not n:
                offset = X.mean(axis=0)
                total, scatter = np.zeros(X.shape[1]), np.zeros((X.shape[1], X.shape[1]))
            if X.shape[1] != len(offset):
                raise DuopldaError(
                    f"a chunk that begins at row {n} has {X.shape[1]} columns, the first had {len(offset)}"
                )
            X = X - offset
            total += X.sum(axis=0)
            scatter += X.T @ X
            if not np.isfinite(total).all():
                check_finite(chunk, n)
            n += len(X)
        if not n:
            raise DuopldaError("the chunks brought no rows")
        mean = total / n
        pooled = _symmetric(scatter / n - mean[:, None] * mean[None, :])
        return cls(float(n), mean + offset, pooled, lab.NO_KIND, np.ones(1), (mean + offset)[None, :])


class _Step(TransformerMixin, BaseEstimator):
    """What the transformers share."""

    def _rows(self, X: Any, reset: bool = False) -> Floats:
        X = validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite=False)
        check_finite(X)
        return X

    def _spread(self, spread: Spread | Statistics) -> Spread:
        spread = Spread.of(spread) if isinstance(spread, Statistics) else spread
        self.n_features_in_ = len(spread.mean)
        if hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return spread


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
        X = self._rows(X, reset=True)
        if self.by_channel and channel is None:
            raise DuopldaError("Center(by_channel=True) needs channel: the kind of each recording")
        self.mean_ = X.mean(axis=0)
        self.channels_, self.channel_means_ = lab.NO_KIND, self.mean_[None, :]
        if self.by_channel:
            self.channels_, kind = lab.codes(channel, "channel", len(X))
            self.channel_means_ = np.stack([X[kind == k].mean(axis=0) for k in range(len(self.channels_))])
        return self

    def fit_statistics(self, stats: Statistics | Spread) -> Self:
        """The same from statistics."""
        spread = self._spread(stats)
        self.mean_, self.channels_, self.channel_means_ = spread.mean, lab.NO_KIND, spread.mean[None, :]
        if self.by_channel:
            self.channels_, self.channel_means_ = spread.kinds, spread.kind_means
        return self

    def transform(self, X: Any, channel: Any = None) -> Floats:
        """(N, d) recordings less the mean."""
        check_is_fitted(self)
        X = self._rows(X)
        if not self.by_channel or channel is None:
            return X - self.mean_
        kind = channel_codes(channel, self.channels_, len(X))
        return X - np.concatenate([self.channel_means_, self.mean_[None, :]])[kind]  # -1, unknown: the last


class Whiten(OneToOneFeatureMixin, _Step):
    """Make the total covariance T the identity: x <- T^(-1/2) x, the symmetric root.

    Parameters
    ----------
    floor : float
        No eigenvalue of T counts for less than this share of their mean; a warning says when it matters.
    by_channel : bool
        T is about the means of the kinds of channels (`fit_statistics` only; for data centred so).

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

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from recordings `X` (N, d)."""
        X = self._rows(X, reset=True)
        X = X - X.mean(axis=0)
        return self._fit(X.T @ X / len(X))

    def fit_statistics(self, stats: Statistics | Spread) -> Self:
        """The same from statistics."""
        return self._fit(self._spread(stats).total(self.by_channel))

    def _fit(self, T: Floats) -> Self:
        s, E = np.linalg.eigh(_symmetric(T))
        least = self.floor * s.mean()
        if not s.mean() > 0:
            raise DuopldaError(
                "recordings do not vary at all (one sample, or copies of one): there is nothing to whiten"
            )
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

    def transform(self, X: Any) -> Floats:
        """(N, d) recordings, whitened."""
        check_is_fitted(self)
        return self._rows(X) @ self.matrix_


class LDA(_Step):
    """Keep the directions in which speakers differ most, for what else varies.

    The covariance is divided as in an analysis of variance of speakers, sessions and recordings, so that a session with
    many recordings is one session. With Sigma_w the sum of channel and session covariance and Sigma_b that of speakers,

        Sigma_b L = Sigma_w L D,    L' Sigma_w L = I,    the n_components largest of D.

    Parameters
    ----------
    n_components : int or None
        Directions to keep; None: one less than there are speakers, or all.
    session_nuisance : bool
        Sessions count as nuisance, as channels do. False: Sigma_w is the channel covariance alone.
    by_channel : bool
        Differences between the means of kinds of channels are not counted as nuisance (they were taken off).

    Attributes
    ----------
    matrix_ : (d, n_components)   ratios_ : (n_components,) variance of speakers to nuisance

    Examples
    --------
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(60, seed=0)
    >>> LDA(8).fit(X, speaker, session=session).transform(X).shape[1]
    8
    """

    matrix_: Floats

    def __init__(
        self, n_components: int | None = None, session_nuisance: bool = True, by_channel: bool = False
    ) -> None:
        self.n_components = n_components
        self.session_nuisance = session_nuisance
        self.by_channel = by_channel

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def fit(self, X: Any, y: Any = None, session: Any = None, channel: Any = None) -> Self:
        """Learn from recordings `X` (N, d), their speakers `y`, sessions and kinds of channels (N,)."""
        if y is None:
            raise DuopldaError("LDA requires y to be passed, but the target y is None: give the speaker of each row")
        X = self._rows(X, reset=True)
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
        if n is None:
            n = most
        if not isinstance(n, Integral) or isinstance(n, bool) or not 1 <= n <= most:
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
        ratios, V = np.linalg.eigh(_symmetric(root @ spread.speaker @ root))
        order = np.argsort(-ratios)[: int(n)]
        L = root @ V[:, order]
        L *= np.where(
            L[np.abs(L).argmax(axis=0), np.arange(int(n))] < 0, -1.0, 1.0
        )  # signs that do not depend on LAPACK
        self.matrix_, self.ratios_ = L, ratios[order]
        return self

    def transform(self, X: Any) -> Floats:
        """(N, n_components)."""
        check_is_fitted(self)
        return self._rows(X) @ self.matrix_

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

    def transform(self, X: Any) -> Floats:
        """(N, d) recordings of length sqrt(d)."""
        check_is_fitted(self, "n_features_in_")
        X = self._rows(X)
        with np.errstate(over="ignore"):
            squares = np.vecdot(X, X)
        if ((squares > 1e-200) & (squares < 1e200)).all():
            return X * np.sqrt(X.shape[1] / squares)[:, None]
        scale = np.abs(X).max(axis=1, keepdims=True)  # so that no square overflows or vanishes
        zero = np.flatnonzero(scale[:, 0] == 0)
        if len(zero):
            raise DuopldaError(
                f"recordings of length 0 have no direction to keep, rows {some(zero)}: remove them, or look at what "
                "the extractor did with them (empty or silent audio?)"
            )
        X = X / scale
        return X * (np.sqrt(X.shape[1]) / np.linalg.norm(X, axis=1, keepdims=True))


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


def channel_codes(channel: Any, channels: NDArray[Any], n: int) -> NDArray[np.int64]:
    """The index of each kind among the known ones; -1 where it is None, NaN or not known."""
    values = list(channel)
    if len(values) != n:
        raise DuopldaError(f"{len(values)} channel labels for {n} recordings: give one label for each recording")
    place = {v: i for i, v in enumerate(channels.tolist())}
    return np.array([place.get(v.item() if isinstance(v, np.generic) else v, -1) for v in values], np.int64)


def _symmetric(A: Floats) -> Floats:
    return (A + A.T) / 2


def _positive(A: Floats) -> Floats:
    """The nearest covariance: negative eigenvalues, of estimates from few data, become 0."""
    s, E = np.linalg.eigh(_symmetric(A))
    return (E * np.maximum(s, 0.0)) @ E.T
