"""Maximum likelihood by EM, from the statistics alone: an iteration costs the same for any number of recordings.

One iteration is an E-step, then the ML step for (mu, V, U, W) and the MD step (minimum divergence) for the prior of the
hidden variables, both from the same expectations: they maximise separate terms of the auxiliary function, so that the
likelihood never falls. Names are those of `model`; `m` is a mean about the statistics' offset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import (
    Array,
    add_rows,
    gram,
    namespace,
    put,
    spd_inverse,
    symmetric,
    take,
    to_numpy,
    zeros,
)
from duoplda.errors import DuopldaError
from duoplda.model.anova import by_kind, scatters, total_covariance
from duoplda.model.parameters import Model, Terms
from duoplda.model.ragged import Diagonals, Patterns, speakers, speakers_by_rank
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
class Fit:
    model: Model
    log_likelihoods: NDArray[np.float64]  # after each iteration, the start's first
    converged: bool
    n_evaluations: int  # E-steps, those of rejected accelerated steps included


class EStep:
    """Expectations under a model, for statistics whose grouping by pattern is worked out once."""

    def __init__(self, stats: Statistics):
        self.stats = stats
        self.patterns = Patterns(stats.counts, stats.types.sum(axis=1))
        p = self.patterns
        M = np.bincount(p.index, stats.weights, minlength=len(p))[:, None]
        self.pattern_weights = np.concatenate([M * p.rows, M], axis=1)  # (P, C + 1)

    def ln_likelihood(self, model: Model) -> float:
        """The likelihood alone, at a fraction of the cost."""
        return self(model, moments=False).ln_likelihood

    def __call__(self, model: Model, moments: bool = True) -> Moments:
        stats, ny, nx, d, K = self.stats, model.ny, model.nx, model.d, model.K
        xp = namespace(model.V)
        terms = Terms(model, stats.types)
        m = model.mu - stats.offset
        means = [xp.concat([int(b.counts[k]) * m[k, ...] for k in b.present.tolist()]) for b in stats.blocks]
        loads = [terms.stacked(b.present, c) for c, b in enumerate(stats.blocks)]

        gamma = zeros((len(stats.speaker_ids), ny), model.V)
        for b, mean, (_, B) in zip(stats.blocks, means, loads, strict=True):
            add_rows(gamma, b.speaker, b.A @ B - put(b.n.astype(float), B)[:, None] * (mean @ B)[None, :])
        weights = self.pattern_weights if moments else self.pattern_weights[:, :0]
        parts = Diagonals.of(*terms.diagonals) if terms.diagonals is not None and 0 < nx < ny else None
        if parts is not None and parts.pays(self.patterns):
            post = speakers_by_rank(parts, self.patterns, gamma, weights)
        else:
            post = speakers(terms.G, self.patterns, gamma, weights)
        y, w = post.mean, put(stats.weights, gamma)

        ln = -0.5 * float(xp.sum(put(self.pattern_weights[:, -1], gamma) * post.ln_Lambda))
        ln += 0.5 * float(xp.sum(w[:, None] * gamma * y))
        S, f = stats.S, by_kind(stats, stats.f)
        for k in range(K):
            N, mk, fk = float(stats.N[k]), m[k, ...], f[k, ...]
            mf = mk[:, None] * fk[None, :]
            ln += 0.5 * N * float(model.ln_W[k])
            ln -= 0.5 * float(xp.sum(model.W[k, ...] * (S[k, ...] - mf - mf.T + N * mk[:, None] * mk[None, :])))

        R, C = zeros((K, ny + nx + 1, ny + nx + 1), gamma), zeros((K, d, ny + nx + 1), gamma)
        rho = zeros((ny + nx + 1, ny + nx + 1), gamma)
        for c, (b, mc, (WU, _)) in enumerate(zip(stats.blocks, means, loads, strict=True)):
            H, fc, P = float(stats.H[c]), stats.f[c], terms.P[c, ...]
            mWU, fWU = mc @ WU, fc @ WU
            TU = b.times(WU) - fc[:, None] * mWU[None, :]  # sum F (F - m)' WU
            UTU = symmetric(WU.T @ TU - mWU[:, None] * (fWU - H * mWU)[None, :])
            ln += 0.5 * (H * float(terms.ln_P[c]) + float(xp.sum(P * UTU)))
            if not moments:
                continue
            wn = stats.weights[b.speaker] * b.n
            own = take(y, b.speaker)
            y1 = put(wn, own) @ own  # sum n y
            Y = post.covariance[c, ...] + gram(put(np.sqrt(wn), own)[:, None] * own)  # sum n E[yy']
            D = b.A.T @ (put(stats.weights[b.speaker], own)[:, None] * own)  # sum A y'
            J = terms.J[c, ...]
            UD = WU.T @ D - mWU[:, None] * y1[None, :]  # U'W sum (F - m) y'
            x1 = P @ (fWU - H * mWU - J @ y1)
            XY = P @ (UD - J @ Y)
            UDJ = UD @ J.T
            XX = H * P + P @ symmetric(UTU - UDJ - UDJ.T + J @ Y @ J.T) @ P
            FX = (TU - D @ J.T) @ P

            E = xp.concat(
                [
                    xp.concat([Y, XY.T, y1[:, None]], axis=1),
                    xp.concat([XY, XX, x1[:, None]], axis=1),
                    xp.concat([y1, x1, put([H], y1)])[None, :],
                ]
            )
            Ft = xp.concat([D, FX, fc[:, None]], axis=1)
            rho += E
            for at, k in enumerate(b.present.tolist()):
                R[k, ...] += int(b.counts[k]) * E
                C[k, ...] += Ft[at * d : (at + 1) * d, :]
        yy = (post.covariance[-1, ...] if moments else 0.0) + gram(xp.sqrt(w)[:, None] * y)
        return Moments(ln, R, C, rho, w @ y, yy, stats.n_speakers)


def ml_step(model: Model, moments: Moments, stats: Statistics, floor: float = 0.0, nu: float = 0.0) -> Model:
    """Maximise E[ln P(Phi | y, x)]: the regression of recordings on [y; x; 1], and what it leaves as noise.

    With `nu`, kinds of channels have a common prior worth nu recordings (see `ln_prior`).
    """
    xp = namespace(model.V)
    K, ny = model.K, model.ny
    R, C = moments.R, moments.C
    if K == 1:
        Z1 = xp.linalg.solve(R[0, ...], C[0, ...].T).T
        Z, m = Z1[:, :-1], Z1[:, -1][None, :]
        noise = [symmetric(stats.S[0, ...] - Z1 @ C[0, ...].T) / float(stats.N[0])]
    else:
        N = put(np.maximum(stats.N, 1e-300), model.V)[:, None]
        r, f = R[:, :-1, -1], C[:, :, -1]
        Rc = R[:, :-1, :-1] - r[:, :, None] * (r / N)[:, None, :]
        Cc = C[:, :, :-1] - f[:, :, None] * (r / N)[:, None, :]
        Z = _loadings(xp.concat([model.V, model.U], axis=1), model.W, Rc, Cc, stats.N)
        m = (f - r @ Z.T) / N
        noise = []
        for k in range(K):
            CZ = Cc[k, ...] @ Z.T
            Sc = stats.S[k, ...] - f[k, :][:, None] * (f[k, :] / N[k, 0])[None, :]
            noise.append(symmetric(Sc - CZ - CZ.T + Z @ Rc[k, ...] @ Z.T) / N[k, 0])
        if nu:
            prior = nu * spd_inverse(xp.mean(model.W, axis=0))[0]
            noise = [(n * N[k, 0] + prior) / (N[k, 0] + nu) for k, n in enumerate(noise)]
    if floor:
        noise = [_floored(n, floor) for n in noise]
    try:
        W = xp.stack([spd_inverse(n[None, ...])[0][0, ...] for n in noise])
    except Exception as error:
        if "LinAlg" not in type(error).__name__:
            raise
        raise DuopldaError(
            "the noise covariance became singular: there are too few recordings for the dimensions, or recordings or "
            "columns repeat. Set noise_floor (for example 1e-4), or reduce the dimensions first"
        ) from None
    return replace(model, mu=m + stats.offset, V=Z[:, :ny], U=Z[:, ny:], W=W)


def ln_prior(model: Model, nu: float) -> float:
    """ln p(W_1 .. W_K), a Wishart prior worth nu recordings about a common covariance Sigma_0, itself at its best.

        sum_k nu/2 (ln|W_k| - tr(Sigma_0 W_k)) + K nu/2 ln|Sigma_0|,   Sigma_0^-1 = mean of W_k

    up to a constant: 0 where all kinds are alike. It keeps kinds with few recordings from being singular.
    """
    if not nu or model.K == 1:
        return 0.0
    xp = namespace(model.W)
    _, ln = spd_inverse(model.W)
    _, ln_mean = spd_inverse(xp.mean(model.W, axis=0))
    return nu / 2 * float(xp.sum(ln) - model.K * ln_mean)


def _loadings(Z: Array, W: Array, R: Array, C: Array, N: NDArray[Any]) -> Array:
    """Solve sum_k W_k Z R_k = sum_k W_k C_k by ten preconditioned conjugate-gradient steps from Z: each raises Q."""
    xp = namespace(Z)
    share = put(N / N.sum(), Z)  # of the recordings, by kind
    left = spd_inverse(xp.tensordot(share, W, axes=1))[0]
    right = spd_inverse(symmetric(xp.sum(R, axis=0)))[0]
    residual = xp.sum(W @ (C - Z @ R), axis=0)
    step = left @ residual @ right
    power = float(xp.sum(residual * step))
    first = power
    for _ in range(10):
        if power <= 1e-16 * first or power <= 0:
            break
        image = xp.sum(W @ (step @ R), axis=0)
        a = power / float(xp.sum(step * image))
        Z = Z + a * step
        residual = residual - a * image
        ahead = left @ residual @ right
        previous, power = power, float(xp.sum(residual * ahead))
        step = ahead + (power / previous) * step
    return Z


def _floored(covariance: Array, floor: float) -> Array:
    """The best covariance with no eigenvalue below the floor: still the maximiser, under that constraint."""
    xp = namespace(covariance)
    s, T = xp.linalg.eigh(covariance)
    return symmetric((T * xp.where(s < floor, xp.full_like(s, floor), s)[None, :]) @ T.T)


def md_step(model: Model, moments: Moments) -> Model:
    """Maximise E[ln P(y, x)] over y ~ N(mu_y, Sigma_y), x | y ~ N(mu_x + H y, Sigma_x); move that into the loadings.

    With Sigma = C C' (C lower triangular): U' = U C_x, V' = (V + U H) C_y, mu' = mu + (V + U H) mu_y + U mu_x.
    """
    xp = namespace(model.V)
    ny, nx, M = model.ny, model.nx, moments.M
    mu_y = moments.y / M
    Sigma_y = symmetric(moments.yy / M - mu_y[:, None] * mu_y[None, :])
    V, U, mu = model.V, model.U, model.mu
    if nx:
        rho, H = moments.rho, float(moments.rho[-1, -1])
        one = rho[:-1, -1]
        centred = rho[:-1, :-1] - one[:, None] * (one / H)[None, :]
        slope = xp.linalg.solve(centred[:ny, :ny], centred[:ny, ny:]).T if ny else zeros((nx, 0), V)
        mu_x = (one[ny:] - slope @ one[:ny]) / H
        Sigma_x = symmetric(centred[ny:, ny:] - slope @ centred[:ny, ny:]) / H
        V = V + U @ slope
        mu = mu + U @ mu_x
        U = U @ xp.linalg.cholesky(Sigma_x)
    if ny:
        mu = mu + V @ mu_y
        V = V @ xp.linalg.cholesky(Sigma_y)
    return replace(model, mu=mu, V=V, U=U)


# -- start


def moment_start(stats: Statistics, ny: int, nx: int, floor: float = 0.0) -> Model:
    """W^-1 from within sessions, UU' from between sessions less its share of noise, VV' likewise; leading parts."""
    s = scatters(stats)
    noise = s.within / max(s.df[0], 1.0) if nx else (s.within + s.session) / max(s.df[0] + s.df[1], 1.0)
    xp = namespace(noise)
    if s.df[0] + s.df[1] <= 0:  # no speaker has two recordings: half of the total is as good as any other share
        noise = s.speaker / max(stats.n_recordings, 1.0) / 2
    if floor:
        noise = _floored(noise, floor)
    UU = (s.session - s.df[1] * noise) / max(s.a, 1.0) if nx else noise * 0.0
    if nx and s.df[1] <= 0:
        UU = noise
    U = _leading(UU, noise, nx)
    VV = (s.speaker - s.df[2] * noise - s.b * (U @ U.T)) / max(s.e, 1.0)
    V = _leading(VV, noise, ny)
    W = spd_inverse(noise[None, ...])[0]
    f = by_kind(stats, stats.f)
    mu = f / put(np.maximum(stats.N, 1e-300), f)[:, None] + stats.offset
    return Model(mu, V, U, xp.concat([W] * stats.K), stats.kinds)


def _leading(covariance: Array, noise: Array, n: int) -> Array:
    """Loadings of the n directions in which a covariance stands out most from the noise; never quite zero.

    (A loading of zero stays zero under EM.)
    """
    xp = namespace(covariance)
    C = xp.linalg.cholesky(noise)
    half = xp.linalg.solve(C, covariance)
    s, T = xp.linalg.eigh(symmetric(xp.linalg.solve(C, half.T)))
    s, T = s[s.shape[0] - n :], T[:, T.shape[1] - n :]
    return (C @ T) * xp.sqrt(xp.where(s < 1e-2, xp.full_like(s, 1e-2), s))[None, :]


def random_start(stats: Statistics, ny: int, nx: int, rng: np.random.Generator, floor: float = 0.0) -> Model:
    """Loadings drawn at random, on the scale of the data; noise a third of the total covariance."""
    T = total_covariance(stats)
    if floor:
        T = _floored(T, 3 * floor)
    xp = namespace(T)
    C = xp.linalg.cholesky(T)
    draw = [put(rng.standard_normal((stats.d, n)), T) / max(3.0 * n, 1.0) ** 0.5 for n in (ny, nx)]
    f = by_kind(stats, stats.f)
    mu = f / put(np.maximum(stats.N, 1e-300), f)[:, None] + stats.offset
    W = spd_inverse((T / 3)[None, ...])[0]
    return Model(mu, C @ draw[0], C @ draw[1], xp.concat([W] * stats.K), stats.kinds)


# -- what can be learnt


# -- the loop


class _Anderson:
    """Extrapolates a fixed-point iteration from its last steps (Anderson's mixing, type II).

    With f = g(t) - t, the next point is g - sum_i a_i (g_{i+1} - g_i), a the least-squares fit of f by f_{i+1} - f_i.
    """

    def __init__(self, depth: int):
        self.depth = depth
        self.clear()

    def clear(self) -> None:
        self.f: list[Array] = []
        self.g: list[Array] = []

    def __call__(self, t: Array, g: Array) -> Array | None:
        self.f, self.g = [*self.f, g - t][-self.depth - 1 :], [*self.g, g][-self.depth - 1 :]
        if len(self.f) < 2:
            return None
        xp = namespace(t)
        dF = xp.stack([b - a for a, b in zip(self.f[:-1], self.f[1:], strict=True)])
        inner = to_numpy(dF @ dF.T)
        rhs = to_numpy(dF @ self.f[-1])
        scale = np.sqrt(np.maximum(np.diagonal(inner), 1e-300))
        a = np.linalg.lstsq(inner / np.outer(scale, scale), rhs / scale, rcond=1e-12)[0] / scale
        out = g
        for ai, g0, g1 in zip(a.tolist(), self.g[:-1], self.g[1:], strict=True):
            out = out - ai * (g1 - g0)
        return out


def _pack(model: Model) -> Array:
    xp = namespace(model.V)
    factor = xp.linalg.cholesky(spd_inverse(model.W)[0])
    return xp.concat([xp.reshape(a, (-1,)) for a in (model.mu, model.V, model.U, factor)])


def _unpack(t: Array, like: Model, floor: float = 0.0) -> Model | None:
    xp = namespace(t)
    K, d, ny, nx = like.K, like.d, like.ny, like.nx
    ends = np.cumsum([K * d, d * ny, d * nx, K * d * d]).tolist()
    mu, V, U = xp.reshape(t[: ends[0]], (K, d)), t[ends[0] : ends[1]], t[ends[1] : ends[2]]
    factor = xp.reshape(t[ends[2] :], (K, d, d))
    try:
        noise = factor @ factor.mT
        if floor:
            noise = xp.stack([_floored(noise[k, ...], floor) for k in range(K)])
        W = spd_inverse(noise)[0]
    except Exception as error:
        if "LinAlg" in type(error).__name__:
            return None
        raise
    return replace(like, mu=mu, V=xp.reshape(V, (d, ny)), U=xp.reshape(U, (d, nx)), W=W)


def fit(
    stats: Statistics,
    start: Model,
    *,
    tol: float = 1e-6,
    max_iter: int = 500,
    accelerate: bool = True,
    minimum_divergence: bool = True,
    floor: float = 0.0,
    nu: float = 0.0,
    callback: Callable[[int, float, Model], Any] | None = None,
) -> Fit:
    """EM from a start until an iteration gains less than `tol` nats per recording.

    With `accelerate`, Anderson steps (depth 8 on mu, V, U and the factor of W^-1) are taken where they raise the
    likelihood, else the plain step is taken and the memory cleared. With `nu`, likelihood times prior is meant.
    `callback(iteration, log-likelihood, model)` ends the loop by returning True.
    """
    e_step, extrapolate = EStep(stats), _Anderson(8)
    model, moments = start, e_step(start)
    value = moments.ln_likelihood + ln_prior(model, nu)
    trace, evaluations, converged = [value], 1, False
    for iteration in range(1, max_iter + 1):
        plain = ml_step(model, moments, stats, floor, nu)
        if minimum_divergence:
            plain = md_step(plain, moments)
        bold = None
        if accelerate:
            t = extrapolate(_pack(model), _pack(plain))
            bold = None if t is None else _unpack(t, plain, floor)
        following = None
        if bold is not None:
            following = _try(e_step, bold)
            evaluations += 1
            least = value + max(tol, 0.0) * stats.n_recordings  # only a plain step may end the loop
            if following is None or not following.ln_likelihood + ln_prior(bold, nu) > least:
                extrapolate.clear()
                bold = following = None
        model = plain if bold is None else bold
        if following is None:
            following = e_step(model)
            evaluations += 1
        moments, before = following, value
        value = moments.ln_likelihood + ln_prior(model, nu)
        gain = value - before
        trace.append(value)
        stop = callback(iteration, value, model) if callback is not None else False
        if gain < tol * stats.n_recordings:
            converged = True
            break
        if stop is not None and bool(stop):
            break
    return Fit(model, np.array(trace), converged, evaluations)


def _try(e_step: EStep, model: Model) -> Moments | None:
    """Expectations under an extrapolated model, which may be no model at all."""
    try:
        moments = e_step(model)
    except Exception as error:
        if "LinAlg" in type(error).__name__:
            return None
        raise
    return moments if np.isfinite(moments.ln_likelihood) else None
