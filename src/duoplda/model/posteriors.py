"""Densities of recordings, and posteriors of their hidden variables and kinds of channels, under a model.

The letters and the formulas are those at the head of `duoplda.model.parameters`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda import arrays as ar
from duoplda.arrays import Array
from duoplda.data.labels import Ints, Labels
from duoplda.errors import DuopldaError
from duoplda.model.accumulate import CHUNK_BYTES, STREAM_BYTES
from duoplda.model.parameters import Model, Terms
from duoplda.model.ragged import Patterns, speakers

TOO_LARGE = "recordings have values too large to add up: are they on the scale of the training data?"


@dataclass(frozen=True, eq=False)
class Sessions:
    """What the model needs of labelled recordings: the type of each session, and its v and z."""

    labels: Labels  # filled: a recording without a session is one of its own
    types: Ints  # (C, K)
    type: Ints  # (H,) index into types
    v: Array  # (H, ny)
    z: Array  # (H, nx)
    ln_noise: Array | None  # (M,) sum over a speaker's recordings of ln N(phi; mu_k, W_k^-1)

    @cached_property
    def counts(self) -> Ints:
        """(M, C) sessions of each speaker by type."""
        M = len(self.labels.speaker_ids)
        C = len(self.types)
        return np.bincount(self.labels.session_speaker * C + self.type, minlength=M * C).reshape(M, C)

    def by_speaker(self, rows: Array) -> Array:
        """(M, n) sums of rows (H, n) over the sessions of each speaker."""
        return _sums_by(self.labels.session_speaker, rows)[1]

    def gamma(self, terms: Terms) -> Array:
        """(M, ny) sum over a speaker's sessions of v - J'P z."""
        out = self.v + 0.0
        for c, chosen in _by_type(self.type) if self.z.shape[1] else ():
            ar.add_rows(out, chosen, -ar.tall_product(ar.take(self.z, chosen), terms.PJ[c, ...]))
        return self.by_speaker(out)


def _sums_by(owner: Ints, rows: Array) -> tuple[Ints, Array]:
    """The distinct owners of rows, sorted, and the sums of their rows."""
    order = np.argsort(owner, kind="stable")
    starts = np.flatnonzero(np.diff(owner[order], prepend=-1))
    return owner[order][starts], ar.segment_sums(ar.take(rows, order), starts)


def _by_type(types: Ints) -> Iterator[tuple[int, Ints]]:
    """Each type that occurs, and the indices of its sessions."""
    for c in np.unique(types).tolist():
        yield c, np.flatnonzero(types == c)


@np.errstate(invalid="ignore", over="ignore")
@ar.reproducible()
def sessions(model: Model, X: Array, labels: Labels, density: bool = False) -> Sessions:
    """Sums of recordings by session; with `density`, also the sums of ln N(phi; mu_k, W_k^-1) by speaker."""
    xp = ar.namespace(model.V)
    d = model.d
    if X.shape[1] != d:
        raise DuopldaError(f"X has {X.shape[1]} features, but PLDA is expecting {d} features as input")
    labels = labels.filled
    types, session_type, _ = labels.types
    WV = model.W @ model.V
    WU = model.W @ model.U
    v = ar.zeros((labels.n_sessions, model.ny), model.V)
    z = ar.zeros((labels.n_sessions, model.nx), model.V)
    ln = ar.zeros((len(labels.speaker_ids), 1), model.V)
    away = ar.namespace(X) is not xp  # rows of the host are streamed to the device of the model
    step = max(256, (STREAM_BYTES if away else CHUNK_BYTES) // (8 * d))
    order = np.argsort(labels.session, kind="stable")
    ln_W = [float(model.ln_W[k]) for k in range(model.K)] if density else []

    def blocks() -> Iterator[tuple[int, Ints, Array | None]]:
        """Kind by kind: the kind, indices of rows in the order of their sessions, and the rows if they are streamed."""
        for k in range(model.K):
            rows = order if model.K == 1 else order[labels.kind[order] == k]
            parts = [rows[a : a + step] for a in range(0, len(rows), step)]
            streamed = ar.streamed(X, parts, model.V) if away and parts else [None] * len(parts)
            yield from zip([k] * len(parts), parts, streamed, strict=True)

    def project(block: tuple[int, Ints, Array | None]) -> tuple[Any, ...]:
        k, part, rows = block
        G = ar.to_float(rows if away else ar.take(X, part), xp) - model.mu[k, ...]
        session = labels.session[part]  # sorted
        starts = np.flatnonzero(np.diff(session, prepend=-1))
        F = ar.segment_sums(G, starts)
        if not bool(xp.all(xp.isfinite(F))):
            ar.check_finite(X)
            raise DuopldaError(TOO_LARGE)
        projected = session[starts], F @ WV[k, ...], F @ WU[k, ...]
        if not density:
            return projected
        q = xp.sum((G @ model.W_factor[k, ...]) ** 2, axis=1)
        return *projected, *_sums_by(labels.speaker[part], (ln_W[k] - q)[:, None] / 2)

    cost = 2.0 * X.shape[0] * d * (model.ny + model.nx + d * density) if xp is np else 0
    for session, part_v, part_z, *ln_noise in ar.in_order(project, blocks(), cost):
        ar.add_rows(v, session, part_v)
        ar.add_rows(z, session, part_z)
        if ln_noise:
            ar.add_rows(ln, *ln_noise)
    return Sessions(labels, types, session_type, v, z, ln[:, 0] if density else None)


def session_terms(terms: Terms, types: Ints, z: Array) -> Array:
    """(ln|P_c| + z'P_c z) / 2 of each session, (H,); `types` are indices into the terms."""
    out = ar.zeros((z.shape[0], 1), z)
    for c, chosen in _by_type(types):
        zc = ar.take(z, chosen)
        quadratic = ar.namespace(z).sum(ar.tall_product(zc, terms.P[c, ...]) * zc, axis=1)
        ar.add_rows(out, chosen, (terms.ln_P[c] + quadratic)[:, None] / 2)
    return out[:, 0]


@np.errstate(invalid="ignore", over="ignore")  # what is not finite is found at the end
@ar.reproducible()
def log_likelihoods(model: Model, X: Array, labels: Labels) -> Array:
    """(M,) ln P(Phi_i | model)."""
    xp = ar.namespace(X)
    s = sessions(model, X, labels, density=True)
    terms = Terms(model, s.types)
    gamma = s.gamma(terms)
    patterns = Patterns(s.counts)
    y = speakers(terms.G, patterns, gamma)
    ln = s.ln_noise + s.by_speaker(session_terms(terms, s.type, s.z)[:, None])[:, 0]
    ln = ln + (xp.sum(gamma * y.mean, axis=1) - ar.take(y.ln_Lambda, patterns.index)) / 2
    if not bool(xp.all(xp.isfinite(ln))):
        raise DuopldaError(TOO_LARGE)
    return ln


def conditional_log_likelihoods(model: Model, X: Array, labels: Labels, y: Array, x: Array) -> Array:
    """(M,) ln P(Phi_i | y_i, X_i); y (M, ny) and x (H, nx) in the order of the sorted ids."""
    xp = ar.namespace(X)
    labels = labels.filled
    shapes = {"y": (len(labels.speaker_ids), model.ny), "x": (labels.n_sessions, model.nx)}
    for name, values in (("y", y), ("x", x)):
        shape = tuple(values.shape)
        if shape != shapes[name]:
            raise DuopldaError(f"{name} has shape {shape}, expected {shapes[name]}: a row for each sorted id")
        if not bool(xp.all(xp.isfinite(values))):
            raise DuopldaError(f"{name} contains NaN or infinity")
    located = ar.take(y, labels.speaker) @ model.V.T + ar.take(x, labels.session) @ model.U.T
    return sessions(model.noise_alone, ar.to_float(X, xp) - located, labels, density=True).ln_noise


@dataclass(frozen=True, eq=False)
class Posterior:
    """Posteriors of the hidden variables: of y_i, of x_ij given y_i, and the marginal means of x_ij.

    Rows are in the order of `speaker_ids` and of `session_ids`. These are None where sessions have no names: then each
    recording is a session, in the order of the recordings.

    >>> from duoplda import PLDA
    >>> plda = PLDA.from_parameters([0.0], [[1.0]], [[1.0]], [[1.0]])
    >>> hidden = plda.posterior([[3.0], [3.0], [-1.5]], ["a", "a", "b"], ["s", "s", "t"])
    >>> hidden.speaker_ids.tolist(), hidden.speaker_mean.round(2).tolist(), hidden.session_speaker.tolist()
    (['a', 'b'], [[1.2], [-0.5]], [0, 1])
    """

    speaker_ids: NDArray[Any]
    session_ids: NDArray[Any] | None
    speaker_mean: Array  # (M, ny) E[y_i]
    session_speaker: Ints  # (H,) index into speaker_ids
    _sessions: Sessions
    _terms: Terms

    @cached_property
    def session_mean(self) -> Array:
        """(H, nx) E[x_ij], y_i integrated out."""
        return self.session_mean_given(self.speaker_mean)

    @property
    def speaker_precision(self) -> Array:
        """(M, ny, ny) Lambda_i, computed at each call."""
        G = self._terms.G
        n = ar.put(self._sessions.counts.astype(float), G)
        return ar.eye(G.shape[-1], G) + ar.namespace(G).tensordot(n, G, axes=1)

    @property
    def session_precision(self) -> Array:
        """(H, nx, nx) the precision of x_ij given y_i, computed at each call."""
        return ar.take(ar.spd_inverse(self._terms.P)[0], self._sessions.type)

    @ar.reproducible()
    def session_mean_given(self, y: Array) -> Array:
        """(H, nx) E[x_ij | y_i] for speaker factors y (M, ny)."""
        z = self._sessions.z
        out = ar.zeros(z.shape, z)
        for c, chosen in _by_type(self._sessions.type):
            expected = ar.tall_product(ar.take(y, self.session_speaker[chosen]), self._terms.J[c, ...].T)
            ar.add_rows(out, chosen, ar.tall_product(ar.take(z, chosen) - expected, self._terms.P[c, ...]))
        return out


@ar.reproducible()
def posterior(model: Model, X: Array, labels: Labels) -> Posterior:
    """The posteriors of the hidden variables of labelled recordings X (N, d)."""
    s = sessions(model, X, labels)
    labels = s.labels
    terms = Terms(model, s.types)
    y = speakers(terms.G, Patterns(s.counts), s.gamma(terms)).mean
    return Posterior(labels.speaker_ids, labels.session_ids, y, labels.session_speaker, s, terms)


@np.errstate(invalid="ignore", over="ignore")
@ar.reproducible()
def transform(model: Model, X: Array, kind: Ints) -> Array:
    """(N, ny) E[y | phi] for each recording by itself, whose kind of channel is given (N,)."""
    terms = Terms(model, np.eye(model.K, dtype=np.int64))
    out = ar.zeros((X.shape[0], model.ny), X)
    for k, rows in _by_type(kind):
        _, B = terms.stacked(np.array([k]), k)
        covariance, _ = ar.spd_inverse(ar.eye(model.ny, B) + terms.G[k, ...])
        ar.add_rows(out, rows, ar.tall_product(ar.take(X, rows) - model.mu[k, ...], B @ covariance))
    return out


@ar.reproducible()
def kind_log_joint(model: Model, X: Array, priors: Array) -> Array:
    """(N, K) ln pi_k + ln N(phi; mu_k, VV' + UU' + W_k^-1), without d/2 ln 2 pi."""
    xp = ar.namespace(X)
    common = model.V @ model.V.T + model.U @ model.U.T
    joint = []
    for k in range(model.K):
        precision, ln_det = ar.spd_inverse(common + ar.spd_inverse(model.W[k, ...])[0])
        e = ar.tall_product(X - model.mu[k, ...], ar.cholesky(precision))
        joint.append(xp.log(priors[k]) - (xp.sum(e * e, axis=1) + ln_det) / 2)
    return xp.stack(joint, axis=1)


def kind_log_posterior(model: Model, X: Array, priors: Array) -> Array:
    """(N, K) ln P(kind k | phi), from ln pi_k + ln N(phi; mu_k, VV' + UU' + W_k^-1)."""
    xp = ar.namespace(X)
    ln = kind_log_joint(model, X, priors)
    top = xp.max(ln, axis=1, keepdims=True)  # the largest exponential is 1, so that none overflows
    return ln - top - xp.log(xp.sum(xp.exp(ln - top), axis=1, keepdims=True))
