"""The E-step: expectations of the hidden variables and the likelihood of a model, from the statistics alone.

The letters are those of `duoplda.model.parameters`; m is what is expected of a session, about the statistics' offset.
Work is cut into pieces that do not depend on the number of threads, and sums are added in their order, so that the same
statistics give the same bits everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from duoplda.arrays import (
    Array,
    add_rows,
    gram,
    in_order,
    namespace,
    put,
    reproducible,
    row_blocks,
    symmetric,
    take,
    zeros,
)
from duoplda.model.accumulate import TypeBlock
from duoplda.model.anova import by_kind
from duoplda.model.parameters import Model, Terms
from duoplda.model.ragged import Diagonals, Patterns, Speakers, speakers, speakers_by_rank
from duoplda.model.statistics import Statistics


@dataclass(frozen=True, eq=False)
class Moments:
    """Expected sums of hidden variables. With t = [y; x; 1] of a session, and F its sums by kind:"""

    ln_likelihood: float
    R: Array  # (K, q, q)  sum over sessions of c_k E[t t'],  q = ny + nx + 1
    C: Array  # (K, d, q)  sum over sessions of F_k E[t]'
    rho: Array  # (q, q)   sum over sessions of E[t t']
    y: Array  # (ny,)      sum over speakers of E[y]
    yy: Array  # (ny, ny)  sum over speakers of E[y y']
    M: float


@dataclass(frozen=True, eq=False)
class _Type:
    """The sessions of one type under a model; vectors and rows are stacked over the kinds present, K_c d in all."""

    block: TypeBlock
    H: float  # how many sessions
    f: Array  # (K_c d,) their sum
    mean: Array  # (K_c d,) what is expected of a session
    WU: Array  # (K_c d, nx)
    B: Array  # (K_c d, ny)
    J: Array  # (nx, ny)
    P: Array  # (nx, nx)
    ln_P: float


@dataclass(frozen=True, eq=False)
class _SpeakerSums:
    """Sums over the speakers who have sessions of one type."""

    y: Array  # (ny,)        sum n E[y]
    yy: Array  # (ny, ny)    sum n E[y y']
    Ay: Array  # (K_c d, ny) sum A E[y]'


class EStep:
    """Expectations under a model, for statistics whose grouping by pattern is worked out once."""

    def __init__(self, stats: Statistics):
        self.stats, self.host = stats, namespace(stats.offset) is np
        self.patterns = Patterns(stats.counts, stats.types.sum(axis=1))
        p = self.patterns
        M = np.bincount(p.index, stats.weights, minlength=len(p))[:, None]
        self.pattern_weights = np.concatenate([M * p.rows, M], axis=1)  # (P, C + 1)
        self.parts = [(c, rows) for c, b in enumerate(stats.blocks) for rows in row_blocks(len(b.n), stats.offset)]

    def ln_likelihood(self, model: Model) -> float:
        """The likelihood alone, at a fraction of the cost."""
        return self(model, moments=False).ln_likelihood

    @reproducible()
    def __call__(self, model: Model, moments: bool = True) -> Moments:
        stats, xp, d, q = self.stats, namespace(model.V), model.d, model.ny + model.nx + 1
        terms = Terms(model, stats.types)
        types = self._types(model, terms)
        gamma = self._gamma(types, model.ny)
        post = self._speakers(terms, gamma, moments)
        sums = self._speaker_sums(types, post) if moments else [None] * len(types)
        w = put(stats.weights, gamma)
        ln = self._ln_noise(model) + 0.5 * float(xp.sum(w[:, None] * gamma * post.mean))
        ln -= 0.5 * float(xp.sum(put(self.pattern_weights[:, -1], gamma) * post.ln_Lambda))
        R, C, rho = zeros((model.K, q, q), gamma), zeros((model.K, d, q), gamma), zeros((q, q), gamma)
        cost = float(sum(2 * model.nx * (t.mean.shape[0] + q) ** 2 for t in types)) if self.host else 0.0
        for t, (ln_t, E, Ft) in zip(types, in_order(_sessions, list(zip(types, sums, strict=True)), cost), strict=True):
            ln += ln_t
            if not moments:
                continue
            rho += E
            for at, k in enumerate(t.block.present.tolist()):
                R[k, ...] += int(t.block.counts[k]) * E
                C[k, ...] += Ft[at * d : (at + 1) * d, :]
        yy = (post.covariance[-1, ...] if moments else 0.0) + gram(xp.sqrt(w)[:, None] * post.mean)
        return Moments(ln, R, C, rho, w @ post.mean, yy, stats.n_speakers)

    def _types(self, model: Model, terms: Terms) -> list[_Type]:
        xp, m, types = namespace(model.V), model.mu - self.stats.offset, []
        for c, b in enumerate(self.stats.blocks):
            mean = xp.concat([int(b.counts[k]) * m[k, ...] for k in b.present.tolist()])
            WU, B = terms.stacked(b.present, c)
            H, ln_P = float(self.stats.H[c]), float(terms.ln_P[c])
            types.append(_Type(b, H, self.stats.f[c], mean, WU, B, terms.J[c, ...], terms.P[c, ...], ln_P))
        return types

    def _by_rows(self, work: Callable[..., Any], cost: float) -> Iterator[tuple[int, slice, Any]]:
        """`work(c, rows)` for blocks of rows of every A, which the threads share: type, rows and result, in order."""
        cost *= sum(len(b.n) * b.A.shape[1] for b in self.stats.blocks)
        found = in_order(lambda part: work(*part), self.parts, cost)
        yield from ((*part, result) for part, result in zip(self.parts, found, strict=True))

    def _gamma(self, types: list[_Type], ny: int) -> Array:
        """(M, ny) sum over types of B'(A_i - n_i m)."""
        gamma = zeros((len(self.stats.speaker_ids), ny), self.stats.offset)

        def work(c: int, rows: slice) -> Array:
            t, n = types[c], put(types[c].block.n[rows].astype(float), gamma)
            return t.block.A[rows, :] @ t.B - n[:, None] * (t.mean @ t.B)[None, :]

        for c, rows, found in self._by_rows(work, 2.0 * ny * self.host):
            add_rows(gamma, types[c].block.speaker[rows], found)
        return gamma

    def _speakers(self, terms: Terms, gamma: Array, moments: bool) -> Speakers:
        """q(y_i), and the sums of Lambda^-1 over patterns that the moments need."""
        weights = self.pattern_weights if moments else self.pattern_weights[:, :0]
        ny, nx = gamma.shape[1], terms.J.shape[1]
        parts = Diagonals.of(*terms.diagonals) if terms.diagonals is not None and 0 < nx < ny else None
        if parts is not None and parts.pays(self.patterns):
            return speakers_by_rank(parts, self.patterns, gamma, weights)
        return speakers(terms.G, self.patterns, gamma, weights)

    def _speaker_sums(self, types: list[_Type], post: Speakers) -> list[_SpeakerSums]:
        weights, ny = self.stats.weights, post.mean.shape[1]

        def work(c: int, rows: slice) -> tuple[Array, Array, Array]:
            b = types[c].block
            own, w = take(post.mean, b.speaker[rows]), weights[b.speaker[rows]]
            wn = w * b.n[rows]
            weighted = put(w, own)[:, None] * own
            return put(wn, own) @ own, gram(put(np.sqrt(wn), own)[:, None] * own), b.A[rows, :].T @ weighted

        sums: list[tuple[Array, ...]] = [(0.0, post.covariance[c, ...], 0.0) for c in range(len(types))]
        for c, _, found in self._by_rows(work, 3.0 * ny * self.host):
            sums[c] = tuple(a + b for a, b in zip(sums[c], found, strict=True))
        return [_SpeakerSums(*s) for s in sums]

    def _ln_noise(self, model: Model) -> float:
        """Sum over recordings of ln N(phi; mu_k, W_k^-1)."""
        stats, xp, ln = self.stats, namespace(model.V), 0.0
        f = by_kind(stats, stats.f)
        for k in range(model.K):
            N, mk = float(stats.N[k]), model.mu[k, ...] - stats.offset
            mf = mk[:, None] * f[k, ...][None, :]
            S = stats.S[k, ...] - mf - mf.T + N * mk[:, None] * mk[None, :]
            ln += 0.5 * N * float(model.ln_W[k]) - 0.5 * float(xp.sum(model.W[k, ...] * S))
        return ln


def _sessions(given: tuple[_Type, _SpeakerSums | None]) -> tuple[float, Array | None, Array | None]:
    """Sums over the sessions of a type: (ln|P| + z'Pz) / 2, E[t t'] (q, q) and F E[t]' (K_c d, q).

    sum E[x]    = P (U'W sum (F - m) - J sum n y),   sum E[x y'] = P (U'W sum (F - m) y' - J sum n yy')
    sum E[x x'] = P (U'W sum (F - m)(F - m)' WU - U'W sum (F - m) y' J' - (..)' + J sum n yy' J') P + H P
    sum F E[x]' = (sum F (F - m)' WU - sum F y' J') P
    """
    t, s = given
    xp, H, P, J = namespace(t.P), t.H, t.P, t.J
    mWU, fWU = t.mean @ t.WU, t.f @ t.WU
    TU = t.block.times(t.WU) - t.f[:, None] * mWU[None, :]  # sum F (F - m)' WU
    UTU = symmetric(t.WU.T @ TU - mWU[:, None] * (fWU - H * mWU)[None, :])
    ln = 0.5 * (H * t.ln_P + float(xp.sum(P * UTU)))
    if s is None:
        return ln, None, None
    UD = t.WU.T @ s.Ay - mWU[:, None] * s.y[None, :]  # U'W sum (F - m) y'
    x = P @ (fWU - H * mWU - J @ s.y)
    XY = P @ (UD - J @ s.yy)
    UDJ = UD @ J.T
    XX = H * P + P @ symmetric(UTU - UDJ - UDJ.T + J @ s.yy @ J.T) @ P
    FX = (TU - s.Ay @ J.T) @ P
    E = xp.concat(
        [
            xp.concat([s.yy, XY.T, s.y[:, None]], axis=1),
            xp.concat([XY, XX, x[:, None]], axis=1),
            xp.concat([s.y, x, put([H], x)])[None, :],
        ]
    )
    return ln, E, xp.concat([s.Ay, FX, t.f[:, None]], axis=1)
