"""The E-step: expectations of the hidden variables and the likelihood of a model, from the statistics alone.

The letters are those of `duoplda.model.parameters`. For a session of type c, F are its sums about the offset of the
statistics, and m_c, the stacked c_k (mu_k - offset), is what the model expects F to be on average.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda import arrays as ar
from duoplda.arrays import Array
from duoplda.model.accumulate import TypeBlock
from duoplda.model.parameters import Model, Terms
from duoplda.model.ragged import Diagonals, Patterns, Speakers, speakers, speakers_by_rank
from duoplda.model.statistics import Statistics


@dataclass(frozen=True, eq=False)
class Moments:
    """Expected sums of hidden variables, with t = [y; x; 1] of a session, and F_k its sum of recordings of kind k."""

    ln_likelihood: float
    grouped: Array  # (G, q, q) R of each group; kinds that come together in every session, as copies do, are a group
    group: NDArray[Any]  # (K,) the group of each kind
    C: Array  # (K, d, q) sum over sessions of F_k E[t]'
    rho: Array  # (q, q) sum over sessions of E[t t']
    y: Array  # (ny,) sum over speakers of E[y]
    yy: Array  # (ny, ny) sum over speakers of E[y y']
    M: float  # weighted number of speakers


# Sums over the speakers who have n sessions of one type: n E[y] (ny,), n E[y y'] (ny, ny) and A E[y]' (K_c d, ny); for
# a type of few sessions, weighted rows E[y] (m, ny) instead of the last.
SpeakerSums = tuple[Array, Array, Array]


# Loadings WU (K_c d, nx) and B (K_c d, ny) of one type; None where products go by the rows F of its sessions instead.
Loadings = tuple[Array, Array] | None


@dataclass(frozen=True, eq=False)
class Hidden:
    """What follows from a model before sessions are looked at: its terms by type, and posteriors of the speakers."""

    terms: Terms
    means: list[Array]  # (C,) m_c (K_c d,)
    loadings: list[Loadings]  # (C,)
    speakers: Speakers
    ln: float  # the log-likelihood but for sum_j (ln|P| + z'Pz) / 2
    flops: float  # about, of the sums over sessions of all types; 0 where the host does not compute them


class EStep:
    """The E-step for given statistics, whose speakers are grouped by pattern once."""

    def __init__(self, stats: Statistics):
        self.stats = stats
        self.host = ar.namespace(stats.offset) is np
        self.patterns = Patterns(stats.counts, stats.types.sum(axis=1))
        M = np.bincount(self.patterns.index, stats.weights, minlength=len(self.patterns))[:, None]
        self.pattern_weights = np.concatenate([M * self.patterns.rows, M], axis=1)  # (P, C + 1)
        counts, group = np.unique(stats.types.reshape(-1, stats.K), axis=1, return_inverse=True)
        self.group = group.reshape(-1)  # (K,) kinds whose counts are alike in all types
        # (G + 1, C) how often E[t t'] of a type counts in R, and in rho
        self.added = np.concatenate([counts.T, np.ones((1, len(counts)))])
        self.parts = [(c, rows) for c, b in enumerate(stats.blocks) for rows in ar.row_blocks(len(b.n), stats.offset)]

    @ar.reproducible()
    def ln_likelihood(self, model: Model) -> float:
        """The log-likelihood alone, at a fraction of the cost."""
        hidden = self._hidden(model, self.pattern_weights[:, :0])
        types = range(len(hidden.means))
        by_type = ar.in_order(lambda c: _sessions(self.stats, hidden, c)[0], types, hidden.flops)
        return sum(by_type, hidden.ln)

    @ar.reproducible()
    def __call__(self, model: Model) -> Moments:
        """The log-likelihood of a model, and the expectations under it."""
        stats = self.stats
        xp = ar.namespace(model.V)
        q = model.ny + model.nx + 1
        n_types = len(stats.blocks)
        hidden = self._hidden(model, self.pattern_weights)
        sums = self._speaker_sums(hidden.speakers, hidden.loadings)
        ln = hidden.ln
        C = ar.zeros((model.K, model.d, q), stats.offset)
        added = ar.zeros((len(self.added), q * q), stats.offset)
        # E[t t'] of as many types as fit into 32 MB, which are then added to R and rho in one product.
        most = max(1, (1 << 25) // (8 * q * q))
        E = ar.zeros((min(most, n_types), q, q), stats.offset)
        for part in (range(start, min(start + most, n_types)) for start in range(0, n_types, most)):
            tasks = [(c, sums[c], E[c - part.start, ...]) for c in part]
            share = hidden.flops * len(part) / n_types
            by_type = list(ar.in_order(lambda task: _sessions(stats, hidden, *task), tasks, share))
            ln = sum((ln_c for ln_c, _ in by_type), ln)
            n = ar.put(self.added[:, part.start : part.stop], added)
            added += n @ xp.reshape(E[: len(part), ...], (len(part), q * q))
            self._add_products(C, part, hidden.loadings, sums, [FX for _, FX in by_type])
        added = xp.reshape(added, (len(self.added), q, q))
        w = ar.put(stats.weights, added)
        y = hidden.speakers.mean
        yy = hidden.speakers.covariance[-1, ...] + ar.gram(xp.sqrt(w)[:, None] * y)
        return Moments(ln, added[:-1, ...], self.group, C, added[-1, ...], w @ y, yy, stats.n_speakers)

    def _hidden(self, model: Model, pattern_weights: NDArray[np.float64]) -> Hidden:
        """The posteriors q(y_i), with sums of Lambda^-1 over patterns with these weights (P, Q)."""
        stats = self.stats
        xp = ar.namespace(model.V)
        terms = Terms(model, stats.types)
        m = model.mu - stats.offset
        means = [b.stacked(m) for b in stats.blocks]
        loadings = list[Loadings]()
        for c, b in enumerate(stats.blocks):
            # Of a type with fewer speakers than factors, the rows F and A are multiplied instead, which costs less than
            # making its loadings. The rows must be in one block.
            few = len(b.n) < max(model.nx, model.ny) and len(ar.row_blocks(len(b.n), terms.J)) == 1
            loadings.append(None if few and not b.squared else terms.stacked(b.present, c))
        gamma = self._gamma(means, loadings, terms)
        parts = Diagonals.of(*terms.diagonals) if terms.diagonals is not None and 0 < model.nx < model.ny else None
        if parts is not None and parts.pays(self.patterns):
            y = speakers_by_rank(parts, self.patterns, gamma, pattern_weights)
        else:
            y = speakers(terms.G, self.patterns, gamma, pattern_weights)
        ln = self._ln_noise(model) + 0.5 * float(xp.sum(ar.put(stats.weights, gamma)[:, None] * gamma * y.mean))
        ln -= 0.5 * float(xp.sum(ar.put(self.pattern_weights[:, -1], gamma) * y.ln_Lambda))
        q = model.ny + model.nx + 1
        flops = float(sum(2 * model.nx * (mean.shape[0] + q) ** 2 for mean in means)) if self.host else 0.0
        return Hidden(terms, means, loadings, y, ln, flops)

    def _add_products(
        self, C: Array, part: range, loadings: list[Loadings], sums: list[SpeakerSums], by_type: list[Array]
    ) -> None:
        """Add the sums of F E[t]' of some types to C, by kind; types whose rows are multiplied share one product."""
        xp = ar.namespace(C)
        rows = list[list[tuple[Array, Array]]]([] for _ in range(C.shape[0]))
        for c, FX in zip(part, by_type, strict=True):
            b = self.stats.blocks[c]
            _, yy, Ay = sums[c]
            ny = yy.shape[0]
            h = b.scatter.shape[0]
            for k, _, columns in b.parts:
                if loadings[c] is None:
                    rows[k] += [(b.scatter[:, columns], FX[:h, :]), (b.A[:, columns], FX[h:, :])]
                else:
                    C[k, :, :ny] += Ay[columns, :]
                    C[k, :, ny:-1] += FX[columns, :]
                    C[k, :, -1] += self.stats.f[c][columns]
        for k, pairs in enumerate(rows):
            if pairs:
                F, t = (xp.concat(side) for side in zip(*pairs, strict=True))
                C[k, ...] += F.T @ t

    def _by_rows(self, work: Callable[..., Any], cost: float) -> Iterator[tuple[int, slice, Any]]:
        """Run `work(c, rows)` in threads on blocks of rows of A of each type; give type, rows and result in order."""
        cost *= sum(len(b.n) * b.A.shape[1] for b in self.stats.blocks)
        results = ar.in_order(lambda part: work(*part), self.parts, cost)
        yield from ((*part, result) for part, result in zip(self.parts, results, strict=True))

    def _gamma(self, means: list[Array], loadings: list[Loadings], terms: Terms) -> Array:
        """(M, ny) gamma_i = sum_c B_c'(A_ic - n_ic m_c)."""
        ny = terms.J.shape[2]
        gamma = ar.zeros((len(self.stats.speaker_ids), ny), self.stats.offset)

        def work(c: int, rows: slice) -> Array:
            b = self.stats.blocks[c]
            of_type = loadings[c]
            n = ar.put(b.n[rows].astype(float), gamma)
            if of_type is None:
                A = b.A[rows, :] - n[:, None] * means[c][None, :]
                return _times(b, A, terms.WV) - _times(b, A, terms.WU) @ terms.PJ[c, ...]
            _, B = of_type
            return b.A[rows, :] @ B - n[:, None] * (means[c] @ B)[None, :]

        for c, rows, part in self._by_rows(work, 2.0 * ny * self.host):
            ar.add_rows(gamma, self.stats.blocks[c].speaker[rows], part)
        return gamma

    def _speaker_sums(self, post: Speakers, loadings: list[Loadings]) -> list[SpeakerSums]:
        """The sums over speakers that each type needs."""
        weights = self.stats.weights
        ny = post.mean.shape[1]

        def work(c: int, rows: slice) -> SpeakerSums:
            b = self.stats.blocks[c]
            y = ar.take(post.mean, b.speaker[rows])
            w = weights[b.speaker[rows]]
            wn = w * b.n[rows]
            weighted = ar.put(w, y)[:, None] * y
            Ay = weighted if loadings[c] is None else b.A[rows, :].T @ weighted
            return ar.put(wn, y) @ y, ar.gram(ar.put(np.sqrt(wn), y)[:, None] * y), Ay

        sums: list[SpeakerSums] = [(0.0, post.covariance[c, ...], 0.0) for c in range(len(self.stats.blocks))]
        for c, _, (y, yy, Ay) in self._by_rows(work, 3.0 * ny * self.host):
            sums[c] = (sums[c][0] + y, sums[c][1] + yy, sums[c][2] + Ay)
        return sums

    def _ln_noise(self, model: Model) -> float:
        """Sum over recordings of ln N(phi; mu_k, W_k^-1)."""
        stats = self.stats
        xp = ar.namespace(model.V)
        ln = 0.0
        for k in range(model.K):
            N = float(stats.N[k])
            mk = model.mu[k, ...] - stats.offset
            mf = mk[:, None] * stats.kind_sums[k, ...][None, :]
            S = stats.S[k, ...] - mf - mf.T + N * mk[:, None] * mk[None, :]
            ln += 0.5 * N * float(model.ln_W[k]) - 0.5 * float(xp.sum(model.W[k, ...] * S))
        return ln


def _times(b: TypeBlock, rows: Array, loadings: Array) -> Array:
    """Rows (..., K_c d) times the stacked loadings (K, d, n) of the kinds present, which are not copied for it."""
    return sum(rows[..., columns] @ loadings[k, ...] for k, _, columns in b.parts)


def _sessions(
    stats: Statistics, hidden: Hidden, c: int, sums: SpeakerSums | None = None, E: Array = None
) -> tuple[float, Array | None]:
    """Sums over the sessions of type c: (ln|P| + z'Pz) / 2; E[t t'], written to E (q, q); and F E[x]' (K_c d, nx).

    sum E[x]    = P U'W sum (F - m) - PJ sum n y,   sum E[x y'] = P U'W sum (F - m) y' - PJ sum n yy'
    sum E[x x'] = P U'W sum (F - m)(F - m)' WU P - P U'W sum (F - m) y' (PJ)' - (..)' + PJ sum n yy' (PJ)' + H P
    sum F E[x]' = sum F (F - m)' WU P - sum F y' (PJ)'

    Without `sums` of the speakers, only the first is computed. Where rows are multiplied, the last one is (h + m, q):
    the products of the h rows F and the m rows A with it add up to the sum of F E[t]'.
    """
    b = stats.blocks[c]
    H = float(stats.H[c])
    f = stats.f[c]
    m = hidden.means[c]
    loadings = hidden.loadings[c]
    terms = hidden.terms
    P = terms.P[c, ...]
    PJ = terms.PJ[c, ...]
    xp = ar.namespace(P)
    if loadings is None:
        F_WU, A_WU, mWU, fWU = (_times(b, rows, terms.WU) for rows in (b.scatter, b.A, m, f))
        F_WUP = F_WU @ P  # rows of sessions
    else:
        F_WU = WU = loadings[0]
        T_WU = b.scatter @ WU if b.squared else b.scatter.T @ (b.scatter @ WU)
        F_WUP = T_WU @ P  # rows of dimensions: sum F F' WU P
        mWU = m @ WU
        fWU = f @ WU
    mP = mWU @ P
    fP = fWU @ P
    trace = float(xp.sum(F_WU * F_WUP)) - float(2 * fWU @ mP - H * mWU @ mP)  # sum z'Pz
    ln = 0.5 * (H * float(terms.ln_P[c]) + trace)
    if sums is None:
        return ln, None
    y, yy, Ay = sums
    ny = yy.shape[0]
    nx = P.shape[0]
    if loadings is None:  # every weight is 1: weighted statistics have T instead of rows
        n = ar.put(b.n.astype(float), P)[:, None]
        h = F_WU.shape[0]
        FX = ar.zeros((h + n.shape[0], ny + nx + 1), P)
        FX[:h, ny:-1] = F_WUP
        FX[h:, :ny] = Ay
        FX[h:, ny:-1] = -(Ay @ PJ.T) - mP[None, :]
        FX[h:, -1] = 1.0
        PUTUP = ar.gram(F_WUP - mP[None, :])
        PUD = (A_WU @ P - n * mP[None, :]).T @ Ay
    else:
        FX = F_WUP - Ay @ PJ.T
        FX -= f[:, None] * mP[None, :]
        PUTUP = P @ (WU.T @ F_WUP)
        PUD = P @ (WU.T @ Ay)
        PUTUP -= mP[:, None] * (2 * fP - H * mP)[None, :]  # P U'W sum (F - m)(F - m)' WU P
        PUTUP = ar.symmetric(PUTUP)
        PUD -= mP[:, None] * y[None, :]  # P U'W sum (F - m) y'
    PJyy = PJ @ yy
    XX = E[ny:-1, ny:-1]
    XY = E[ny:-1, :ny]
    x = fP - H * mP - PJ @ y
    XY[...] = PUD
    XY -= PJyy
    half = (PJyy / 2 - PUD) @ PJ.T
    XX[...] = H * P
    for part in (PUTUP, half, half.T):  # in place: getting new pages from the system takes as long as the sums
        XX += part
    E[:ny, :ny] = yy
    E[:ny, ny:-1] = XY.T
    E[:ny, -1] = y
    E[-1, :ny] = y
    E[ny:-1, -1] = x
    E[-1, ny:-1] = x
    E[-1, -1] = H
    return ln, FX
