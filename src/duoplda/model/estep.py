"""The E-step: expectations of the hidden variables and the likelihood of a model, from the statistics alone.

The letters are those of `duoplda.model.parameters`; m is what is expected of a session, about the statistics' offset.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from duoplda import arrays as ar
from duoplda.arrays import Array
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


# Sums over the speakers who have n sessions of one type: n E[y] (ny,), n E[y y'] (ny, ny) and A E[y]' (K_c d, ny); for
# a type of few sessions, weighted rows E[y] (m, ny) instead of the last.
SpeakerSums = tuple[Array, Array, Array]


class Weights(NamedTuple):
    """Loadings of the sessions of one type, those of the kinds present one below the other."""

    WU: Array  # (K_c d, nx)
    WV: Array  # (K_c d, ny); for a type of many sessions, B_c
    few: bool  # rows F of sessions are at hand, and of fewer speakers than there are factors: products go by them


class EStep:
    """Expectations under a model, for statistics whose grouping by pattern is worked out once."""

    def __init__(self, stats: Statistics):
        self.stats, self.host = stats, ar.namespace(stats.offset) is np
        self.patterns = p = Patterns(stats.counts, stats.types.sum(axis=1))
        M = np.bincount(p.index, stats.weights, minlength=len(p))[:, None]
        self.pattern_weights = np.concatenate([M * p.rows, M], axis=1)  # (P, C + 1)
        self.parts = [(c, rows) for c, b in enumerate(stats.blocks) for rows in ar.row_blocks(len(b.n), stats.offset)]

    def ln_likelihood(self, model: Model) -> float:
        """The likelihood alone, at a fraction of the cost."""
        return self(model, moments=False).ln_likelihood

    @ar.reproducible()
    def __call__(self, model: Model, moments: bool = True) -> Moments:
        stats, xp, d, q = self.stats, ar.namespace(model.V), model.d, model.ny + model.nx + 1
        terms, m = Terms(model, stats.types), model.mu - stats.offset
        means = [b.stacked(m) for b in stats.blocks]  # (K_c d,) what is expected of a session of each type
        weights = self._weights(terms)
        gamma = self._gamma(means, weights, terms)
        post = self._speakers(terms, gamma, moments)
        sums = self._speaker_sums(post, weights) if moments else [None] * len(means)
        w = ar.put(stats.weights, gamma)
        ln = self._ln_noise(model) + 0.5 * float(xp.sum(w[:, None] * gamma * post.mean))
        ln -= 0.5 * float(xp.sum(ar.put(self.pattern_weights[:, -1], gamma) * post.ln_Lambda))
        R, C, rho = ar.zeros((model.K, q, q), gamma), ar.zeros((model.K, d, q), gamma), ar.zeros((q, q), gamma)
        cost = float(sum(2 * model.nx * (mean.shape[0] + q) ** 2 for mean in means)) if self.host else 0.0
        tasks = [(c, means[c], weights[c], sums[c]) for c in range(len(means))]
        found = ar.in_order(lambda task: _sessions(stats, terms, *task), tasks, cost)
        for b, (ln_c, E, Ft) in zip(stats.blocks, found, strict=True):
            ln += ln_c
            if not moments:
                continue
            rho += E
            for k, n, of in b.parts:
                R[k, ...] += n * E
                C[k, ...] += Ft[of, :]
        yy = (post.covariance[-1, ...] if moments else 0.0) + ar.gram(xp.sqrt(w)[:, None] * post.mean)
        return Moments(ln, R, C, rho, w @ post.mean, yy, stats.n_speakers)

    def _by_rows(self, work: Callable[..., Any], cost: float) -> Iterator[tuple[int, slice, Any]]:
        """`work(c, rows)` for blocks of rows of every A, which the threads share: type, rows and result, in order."""
        cost *= sum(len(b.n) * b.A.shape[1] for b in self.stats.blocks)
        found = ar.in_order(lambda part: work(*part), self.parts, cost)
        yield from ((*part, result) for part, result in zip(self.parts, found, strict=True))

    def _weights(self, terms: Terms) -> list[Weights]:
        nx, ny, out, kept = terms.J.shape[1], terms.J.shape[2], [], dict[tuple[int, ...], tuple[Array, Array]]()
        for c, b in enumerate(self.stats.blocks):
            present = b.present.tolist()
            few = not b.squared and len(b.n) < min(max(nx, ny), ar.ROWS)
            if few and tuple(present) not in kept:  # other types may have the same kinds
                kept[tuple(present)] = terms.loadings(present)
            out.append(Weights(*(kept[tuple(present)] if few else terms.stacked(present, c)), few))
        return out

    def _gamma(self, means: list[Array], weights: list[Weights], terms: Terms) -> Array:
        """(M, ny) sum over types of B'(A_i - n_i m)."""
        ny = terms.J.shape[2]
        gamma = ar.zeros((len(self.stats.speaker_ids), ny), self.stats.offset)

        def work(c: int, rows: slice) -> Array:
            b, (WU, WV, few) = self.stats.blocks[c], weights[c]
            n = ar.put(b.n[rows].astype(float), gamma)
            if few:
                A = b.A[rows, :] - n[:, None] * means[c][None, :]
                return A @ WV - (A @ WU) @ terms.PJ[c, ...]
            return b.A[rows, :] @ WV - n[:, None] * (means[c] @ WV)[None, :]

        for c, rows, found in self._by_rows(work, 2.0 * ny * self.host):
            ar.add_rows(gamma, self.stats.blocks[c].speaker[rows], found)
        return gamma

    def _speakers(self, terms: Terms, gamma: Array, moments: bool) -> Speakers:
        """q(y_i), and the sums of Lambda^-1 over patterns that the moments need."""
        weights = self.pattern_weights if moments else self.pattern_weights[:, :0]
        ny, nx = gamma.shape[1], terms.J.shape[1]
        parts = Diagonals.of(*terms.diagonals) if terms.diagonals is not None and 0 < nx < ny else None
        if parts is not None and parts.pays(self.patterns):
            return speakers_by_rank(parts, self.patterns, gamma, weights)
        return speakers(terms.G, self.patterns, gamma, weights)

    def _speaker_sums(self, post: Speakers, of_types: list[Weights]) -> list[SpeakerSums]:
        weights, ny = self.stats.weights, post.mean.shape[1]

        def work(c: int, rows: slice) -> SpeakerSums:
            b = self.stats.blocks[c]
            own, w = ar.take(post.mean, b.speaker[rows]), weights[b.speaker[rows]]
            wn = w * b.n[rows]
            weighted = ar.put(w, own)[:, None] * own
            Ay = weighted if of_types[c].few else b.A[rows, :].T @ weighted
            return ar.put(wn, own) @ own, ar.gram(ar.put(np.sqrt(wn), own)[:, None] * own), Ay

        sums: list[SpeakerSums] = [(0.0, post.covariance[c, ...], 0.0) for c in range(len(self.stats.blocks))]
        for c, _, (y, yy, Ay) in self._by_rows(work, 3.0 * ny * self.host):
            sums[c] = (sums[c][0] + y, sums[c][1] + yy, sums[c][2] + Ay)
        return sums

    def _ln_noise(self, model: Model) -> float:
        """Sum over recordings of ln N(phi; mu_k, W_k^-1)."""
        stats, xp, ln = self.stats, ar.namespace(model.V), 0.0
        f = by_kind(stats, stats.f)
        for k in range(model.K):
            N, mk = float(stats.N[k]), model.mu[k, ...] - stats.offset
            mf = mk[:, None] * f[k, ...][None, :]
            S = stats.S[k, ...] - mf - mf.T + N * mk[:, None] * mk[None, :]
            ln += 0.5 * N * float(model.ln_W[k]) - 0.5 * float(xp.sum(model.W[k, ...] * S))
        return ln


def _sessions(
    stats: Statistics, terms: Terms, c: int, m: Array, weights: Weights, sums: SpeakerSums | None
) -> tuple[float, Array | None, Array | None]:
    """Sums over the sessions of type c: (ln|P| + z'Pz) / 2, E[t t'] (q, q) and F E[t]' (K_c d, q).

    sum E[x]    = P U'W sum (F - m) - PJ sum n y,   sum E[x y'] = P U'W sum (F - m) y' - PJ sum n yy'
    sum E[x x'] = P U'W sum (F - m)(F - m)' WU P - P U'W sum (F - m) y' (PJ)' - (..)' + PJ sum n yy' (PJ)' + H P
    sum F E[x]' = sum F (F - m)' WU P - sum F y' (PJ)'
    """
    b, H, f, P, PJ, WU = stats.blocks[c], float(stats.H[c]), stats.f[c], terms.P[c, ...], terms.PJ[c, ...], weights.WU
    xp, mWU, fWU = ar.namespace(P), m @ WU, f @ WU
    mP, fP = mWU @ P, fWU @ P
    F_WU = b.scatter @ WU if weights.few else WU  # rows of sessions, or of dimensions
    F_WUP = F_WU @ P if weights.few else b.times(WU) @ P  # for dimensions: sum F F' WU P
    trace = float(xp.sum(F_WU * F_WUP)) - float(2 * fWU @ mP - H * mWU @ mP)  # sum z'Pz
    ln = 0.5 * (H * float(terms.ln_P[c]) + trace)
    if sums is None:
        return ln, None, None
    y, yy, Ay = sums
    if weights.few:
        own, Ay = Ay, b.A.T @ Ay
        FX = b.scatter.T @ F_WUP - b.A.T @ (own @ PJ.T)
        PUTUP, PUD = ar.gram(F_WUP), ((b.A @ WU) @ P).T @ own
    else:
        FX = F_WUP - Ay @ PJ.T
        PUTUP, PUD = P @ (WU.T @ F_WUP), P @ (WU.T @ Ay)
    FX = FX - f[:, None] * mP[None, :]
    PUTUP = ar.symmetric(PUTUP - mP[:, None] * (2 * fP - H * mP)[None, :])  # P U'W sum (F - m)(F - m)' WU P
    PUD = PUD - mP[:, None] * y[None, :]  # P U'W sum (F - m) y'
    PJyy = PJ @ yy
    x, XY, half = fP - H * mP - PJ @ y, PUD - PJyy, (PJyy / 2 - PUD) @ PJ.T
    XX = H * P + PUTUP + half + half.T
    blocks = [(yy, XY.T, y[:, None]), (XY, XX, x[:, None]), (y[None, :], x[None, :], ar.put([[H]], x))]
    E = xp.concat([xp.concat(row, axis=1) for row in blocks])
    return ln, E, xp.concat([Ay, FX, f[:, None]], axis=1)
