"""Recordings as the model sees them: densities, posteriors of the hidden variables, kinds of channels.

The letters and the formulas are those at the head of `duoplda.model.parameters`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import (
    Array,
    add_rows,
    check_finite,
    eye,
    logdet_cholesky,
    namespace,
    put,
    segment_sums,
    solve_triangular,
    spd_inverse,
    streamed,
    take,
    to_float,
    zeros,
)
from duoplda.data.labels import Ints, Labels
from duoplda.errors import DuopldaError
from duoplda.model.accumulate import CHUNK_BYTES, STREAM_BYTES
from duoplda.model.parameters import Model, Terms
from duoplda.model.ragged import Patterns, speakers


@dataclass(frozen=True, eq=False)
class Sessions:
    """Labelled recordings as the model sees them: a session is its type and its (v, z)."""

    labels: Labels
    types: Ints  # (C, K)
    type: Ints  # (H,) index into types
    v: Array  # (H, ny)
    z: Array  # (H, nx)
    ln_noise: Array | None  # (M,) sum over a speaker's recordings of ln N(phi; mu_k, W_k^-1)

    @cached_property
    def counts(self) -> Ints:
        """(M, C) sessions of each speaker by type."""
        M, C = len(self.labels.speaker_ids), len(self.types)
        return np.bincount(self.labels.session_speaker * C + self.type, minlength=M * C).reshape(M, C)

    def by_speaker(self, rows: Array) -> Array:
        """Sums over the sessions of each speaker of rows (H, n)."""
        order = np.argsort(self.labels.session_speaker, kind="stable")
        return segment_sums(take(rows, order), np.flatnonzero(np.diff(self.labels.session_speaker[order], prepend=-1)))

    def gamma(self, terms: Terms) -> Array:
        """(M, ny)"""
        out = self.v + 0.0
        for c in range(len(self.types)):
            of = np.flatnonzero(self.type == c)
            if self.z.shape[1]:
                add_rows(out, of, -(take(self.z, of) @ terms.PJ[c, ...]))
        return self.by_speaker(out)


TOO_LARGE = "recordings have values too large to add up: are they on the scale of the training data?"


@np.errstate(invalid="ignore", over="ignore")
def sessions(model: Model, X: Array, labels: Labels, density: bool = False) -> Sessions:
    """Project recordings on what the model asks of them; with `density`, their ln N(phi; mu_k, W_k^-1) too.

    Recordings of the host are streamed to where the model is.
    """
    xp = namespace(model.V)
    if X.shape[1] != model.d:
        raise DuopldaError(f"X has {X.shape[1]} features, but PLDA is expecting {model.d} features as input")
    H, M = labels.n_sessions, len(labels.speaker_ids)
    types, session_type, _ = labels.types
    terms_v, terms_z = model.W @ model.V, model.W @ model.U
    v, z = zeros((H, model.ny), model.V), zeros((H, model.nx), model.V)
    ln = zeros((M, 1), model.V)
    away = namespace(X) is not xp
    step = max(256, (STREAM_BYTES if away else CHUNK_BYTES) // (8 * model.d))
    order = np.argsort(labels.session, kind="stable")
    for k in range(model.K):
        rows = order if model.K == 1 else order[labels.kind[order] == k]
        parts = [rows[a : a + step] for a in range(0, len(rows), step)]
        blocks = streamed(X, parts, model.V) if away and parts else (take(X, part) for part in parts)
        for part, block in zip(parts, blocks, strict=True):
            G = to_float(block, xp) - model.mu[k, ...]
            session = labels.session[part]
            starts = np.flatnonzero(np.diff(session, prepend=-1))
            F = segment_sums(G, starts)
            if not bool(xp.all(xp.isfinite(F))):
                check_finite(X)
                raise DuopldaError(TOO_LARGE)
            add_rows(v, session[starts], F @ terms_v[k, ...])
            add_rows(z, session[starts], F @ terms_z[k, ...])
            if density:
                q = xp.sum((G @ model.W_factor[k, ...]) ** 2, axis=1)
                ln_rows = (float(model.ln_W[k]) - q) / 2
                speaker = labels.speaker[part]
                by = np.argsort(speaker, kind="stable")
                first = np.flatnonzero(np.diff(speaker[by], prepend=-1))
                add_rows(ln, speaker[by][first], segment_sums(take(ln_rows, by)[:, None], first))
    return Sessions(labels, types, session_type, v, z, ln[:, 0] if density else None)


def session_terms(terms: Terms, types: Ints, z: Array) -> Array:
    """(ln|P_c| + z'P_c z) / 2 of each session, (H,); `types` are indices into the terms."""
    xp = namespace(z)
    out = zeros((z.shape[0], 1), z)
    for c in np.unique(types).tolist():
        of = np.flatnonzero(types == c)
        zc = take(z, of)
        add_rows(out, of, (terms.ln_P[c] + xp.sum((zc @ terms.P[c, ...]) * zc, axis=1))[:, None] / 2)
    return out[:, 0]


@np.errstate(invalid="ignore", over="ignore")  # what is not finite is found at the end
def log_likelihoods(model: Model, X: Array, labels: Labels) -> Array:
    """(M,) ln P(Phi_i | model)."""
    xp = namespace(X)
    s = sessions(model, X, labels, density=True)
    terms = Terms(model, s.types)
    gamma = s.gamma(terms)
    patterns = Patterns(s.counts)
    y = speakers(terms.G, patterns, gamma)
    ln = s.ln_noise + s.by_speaker(session_terms(terms, s.type, s.z)[:, None])[:, 0]
    ln = ln + (xp.sum(gamma * y.mean, axis=1) - take(y.ln_Lambda, patterns.index)) / 2
    if not bool(xp.all(xp.isfinite(ln))):
        raise DuopldaError(TOO_LARGE)
    return ln


def conditional_log_likelihoods(model: Model, X: Array, labels: Labels, y: Array, x: Array) -> Array:
    """(M,) ln P(Phi_i | y_i, X_i); y (M, ny) and x (H, nx) in the order of the sorted ids."""
    xp = namespace(X)
    for name, given, shape in (
        ("y", y, (len(labels.speaker_ids), model.ny)),
        ("x", x, (labels.n_sessions, model.nx)),
    ):
        if tuple(given.shape) == shape and not bool(xp.all(xp.isfinite(given))):
            raise DuopldaError(f"{name} contains NaN or infinity")
        if tuple(given.shape) != shape:
            raise DuopldaError(f"{name} has shape {tuple(given.shape)}, expected {shape}: a row for each sorted id")
    located = take(y, labels.speaker) @ model.V.T + take(x, labels.session) @ model.U.T
    still = Model(model.mu, zeros((model.d, 0), model.V), zeros((model.d, 0), model.V), model.W, model.kinds)
    s = sessions(still, to_float(X, xp) - located, labels, density=True)
    return s.ln_noise


@dataclass(frozen=True, eq=False)
class Posterior:
    """Posteriors of the hidden variables: q(y_i), q(x_ij | y_i) and the marginal means of x.

    Rows are in the order of `speaker_ids` and of `session_ids` (None where sessions have no names: then by recording).
    """

    speaker_ids: NDArray[Any]
    session_ids: NDArray[Any] | None
    speaker_mean: Array  # (M, ny) E[y_i]
    session_mean: Array  # (H, nx) E[x_ij], y_i integrated out
    session_speaker: Ints  # (H,) index into speaker_ids
    _counts: Ints
    _type: Ints
    _terms: Terms
    _z: Array

    @property
    def speaker_precision(self) -> Array:
        """(M, ny, ny) Lambda_i, made when asked for."""
        G = self._terms.G
        xp = namespace(G)
        return eye(G.shape[-1], G) + xp.tensordot(put(self._counts.astype(float), G), G, axes=1)

    @property
    def session_precision(self) -> Array:
        """(H, nx, nx) precision of x_ij given y_i, made when asked for."""
        return take(spd_inverse(self._terms.P)[0], self._type)

    def session_mean_given(self, y: Array) -> Array:
        """(H, nx) E[x_ij | y_i] for speaker factors y (M, ny)."""
        J = take(self._terms.J, self._type)
        zeta = self._z[:, :, None] - J @ take(y, self.session_speaker)[:, :, None]
        return (take(self._terms.P, self._type) @ zeta)[:, :, 0]


def posterior(model: Model, X: Array, labels: Labels) -> Posterior:
    s = sessions(model, X, labels)
    terms = Terms(model, s.types)
    y = speakers(terms.G, Patterns(s.counts), s.gamma(terms)).mean
    empty = zeros(s.z.shape, s.z)
    out = Posterior(
        labels.speaker_ids, labels.session_ids, y, empty, labels.session_speaker, s.counts, s.type, terms, s.z
    )
    for c in range(len(s.types)):  # as session_mean_given, without a stack of matrices
        of = np.flatnonzero(s.type == c)
        own = take(y, labels.session_speaker[of])
        add_rows(empty, of, (take(s.z, of) - own @ terms.J[c, ...].T) @ terms.P[c, ...])
    return out


@np.errstate(invalid="ignore", over="ignore")
def transform(model: Model, X: Array, kind: Ints) -> Array:
    """(N, ny) E[y | one recording]."""
    terms = Terms(model, np.eye(model.K, dtype=np.int64))
    out = zeros((X.shape[0], model.ny), X)
    for k in range(model.K):
        of = np.flatnonzero(kind == k)
        _, B = terms.stacked(np.array([k]), k)
        cov, _ = spd_inverse(eye(model.ny, B) + terms.G[k, ...])
        add_rows(out, of, (take(X, of) - model.mu[k, ...]) @ (B @ cov))
    return out


def kind_log_posterior(model: Model, X: Array, priors: Array) -> Array:
    """(N, K) ln P(kind k | phi), from ln pi_k + ln N(phi; mu_k, VV' + UU' + W_k^-1)."""
    xp = namespace(X)
    common = model.V @ model.V.T + model.U @ model.U.T
    columns = []
    for k in range(model.K):
        C = xp.linalg.cholesky(common + spd_inverse(model.W[k, ...])[0])
        e = solve_triangular(C, (X - model.mu[k, ...]).T)
        columns.append(xp.log(priors[k]) - (xp.sum(e * e, axis=0) + logdet_cholesky(C)) / 2)
    ln = xp.stack(columns, axis=1)
    top = xp.max(ln, axis=1, keepdims=True)
    return ln - top - xp.log(xp.sum(xp.exp(ln - top), axis=1, keepdims=True))
