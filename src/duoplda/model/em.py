"""Maximum likelihood by EM, from the statistics alone: an iteration costs the same for any number of recordings.

One iteration is an E-step, then the ML step for (mu, V, U, W) and the MD step (minimum divergence) for the prior of the
hidden variables, both from the same expectations: they maximise separate terms of the auxiliary function, so that the
likelihood never falls. The letters are those of `duoplda.model.parameters`; `m` is a mean about the statistics' offset.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda import arrays as ar
from duoplda.arrays import Array
from duoplda.errors import DuopldaError
from duoplda.model.acceleration import Anderson
from duoplda.model.anova import scatters, total_covariance
from duoplda.model.estep import EStep, Moments
from duoplda.model.parameters import Model, floored
from duoplda.model.statistics import Statistics
from duoplda.observer import SILENT, Observer


def ml_step(model: Model, moments: Moments, stats: Statistics, floor: float = 0.0, nu: float = 0.0) -> Model:
    """Maximise E[ln P(Phi | y, x)]: the regression of recordings on [y; x; 1], and what it leaves as noise.

    With `nu`, kinds of channels have a common prior worth nu recordings (see `ln_prior`).
    """
    xp = ar.namespace(model.V)
    ny = model.ny
    if model.K == 1:
        C = moments.C[0, ...]
        Z1 = ar.solve(moments.grouped[0, ...], C.T).T
        Z = Z1[:, :-1]
        m = Z1[:, -1][None, :]
        noise = ar.symmetric(stats.S[0, ...] - Z1 @ C.T)[None, ...] / float(stats.N[0])
    else:
        Z, m, noise = _regression_by_kind(model, moments, stats)
        if nu:
            N = ar.put(stats.N, noise)[:, None, None]
            noise = (noise * N + nu * ar.spd_inverse(xp.mean(model.W, axis=0))[0]) / (N + nu)
    W = ar.spd_inverse(floored(noise, floor))[0]
    return replace(model, mu=m + stats.offset, V=Z[:, :ny], U=Z[:, ny:], W=W)


def _regression_by_kind(model: Model, moments: Moments, stats: Statistics) -> tuple[Array, Array, Array]:
    """Loadings Z = [V U] that all kinds share; means (about the offset) and noise covariances by kind.

    Kinds that come together in every session, as copies do, share one R, so that products with it are made once.
    """
    xp = ar.namespace(model.V)
    C = moments.C
    R = moments.grouped
    group = moments.group
    d = model.d
    N = ar.put(np.maximum(stats.N, 1e-300), model.V)[:, None]
    r = R[:, :-1, -1]
    f = C[:, :, -1]
    mean = r / ar.take(N, np.unique(group, return_index=True)[1])  # (G, ny + nx) of [y; x]
    Rc = R[:, :-1, :-1] - r[:, :, None] * mean[:, None, :]
    WC = xp.reshape(model.W, (-1, d)).T @ xp.reshape(C, (-1, C.shape[2]))  # sum_k W_k C_k
    Wf = (model.W @ f[:, :, None])[:, :, 0]
    WC = WC[:, :-1] - Wf.T @ ar.take(mean, group)
    Z = shared_loadings(xp.concat([model.V, model.U], axis=1), model.W, Rc, WC, stats.N, group)
    m = (f - ar.take(r @ Z.T, group)) / N
    noise = C[:, :, :-1] @ Z.T
    noise *= -2.0
    noise += stats.S
    noise += ar.take(Z @ R[:, :-1, :-1] @ Z.T, group)  # S - CZ' - ZC' + ZRZ' - N mm', when made symmetric
    noise -= m[:, :, None] * (N * m)[:, None, :]
    return Z, m, ar.symmetric(noise) / N[:, :, None]


def shared_loadings(Z: Array, W: Array, R: Array, WC: Array, N: NDArray[Any], group: NDArray[Any]) -> Array:
    """Solve sum_k W_k Z R_k = WC = sum_k W_k C_k by ten preconditioned conjugate-gradient steps from Z.

    R_k is R[group[k]]. Each step raises the auxiliary function of EM. With a single group, Z = (sum W_k)^-1 WC R^-1.
    """
    xp = ar.namespace(Z)
    if R.shape[0] == 1:
        return ar.spd_inverse(xp.sum(W, axis=0))[0] @ WC @ ar.spd_inverse(ar.symmetric(R[0, ...]))[0]
    share = N / N.sum()  # of the recordings, by kind
    members = (group == np.arange(R.shape[0])[:, None]).astype(float)  # (G, K)
    n = ar.put(members.sum(axis=1), R)
    s = (members @ share) / members.sum(axis=1)  # kinds of a group have equal shares
    W_mean = xp.tensordot(ar.put(share, W), W, axes=1)
    R_sum = ar.symmetric(xp.tensordot(n, R, axes=1))
    left = ar.spd_inverse(W_mean)[0]
    right = ar.spd_inverse(R_sum)[0]
    # sum_g W_g Z R_g = W_mean Z R_sum + sum_g D_g Z R_g, and sum_g s_g D_g = 0: the largest group is expressed by the
    # others, which saves its product in every step.
    largest = int(np.argmax(s))
    others = np.array([g for g in range(len(s)) if g != largest])
    D = ar.take(xp.tensordot(ar.put(members, W), W, axes=1) - n[:, None, None] * W_mean, others)
    R = ar.take(R, others) - ar.put(s[others] / s[largest], R)[:, None, None] * R[largest, ...]
    D = xp.reshape(xp.permute_dims(D, (1, 0, 2)), (D.shape[1], -1))  # (d, (G - 1) d)

    def differences(A: Array) -> Array:
        return D @ xp.reshape(A @ R, (-1, A.shape[1]))

    residual = WC - W_mean @ Z @ R_sum - differences(Z)
    step = left @ residual @ right
    mean = residual  # W_mean step R_sum, which follows the same recursion as the step, without a product
    power = first = float(xp.sum(residual * step))
    for _ in range(10):  # with five steps, EM from bad starts was not monotone (docs/notes.md)
        if power <= 1e-16 * first or power <= 0:
            break
        image = mean + differences(step)
        a = power / float(xp.sum(step * image))
        Z = Z + a * step
        residual = residual - a * image
        ahead = left @ residual @ right
        previous = power
        power = float(xp.sum(residual * ahead))
        step = ahead + (power / previous) * step
        mean = residual + (power / previous) * mean
    return Z


def ln_prior(model: Model, nu: float) -> float:
    """ln p(W_1 .. W_K), a Wishart prior worth nu recordings about a common covariance Sigma_0, itself at its best.

        sum_k nu/2 (ln|W_k| - tr(Sigma_0 W_k)) + K nu/2 ln|Sigma_0|,   Sigma_0^-1 = mean of W_k

    up to a constant: 0 where all kinds are alike. It keeps kinds with few recordings from being singular.
    """
    if not nu or model.K == 1:
        return 0.0
    xp = ar.namespace(model.W)
    mean = ar.logdet_cholesky(ar.cholesky(xp.mean(model.W, axis=0)[None, ...])) - model.d * math.log(2 * math.pi)
    return nu / 2 * float(xp.sum(model.ln_W) - model.K * mean[0])


def md_step(model: Model, moments: Moments, basis: Array | None = None) -> Model:
    """Maximise E[ln P(y, x)] over y ~ N(mu_y, Sigma_y), x | y ~ N(mu_x + H y, Sigma_x); move that into the loadings.

    With Sigma = C C' (C lower triangular): U' = U C_x, V' = (V + U H) C_y, mu' = mu + (V + U H) mu_y + U mu_x. With the
    `basis` of `expect`, V' has all ny columns, and is what it would be if none had been left out.
    """
    ny = model.ny
    nx = model.nx
    M = moments.M
    mu_y = moments.y / M
    Sigma_y = ar.symmetric(moments.yy / M - mu_y[:, None] * mu_y[None, :])
    V = model.V
    U = model.U
    mu = model.mu
    if nx:
        rho = moments.rho
        H = float(moments.rho[-1, -1])
        one = rho[:-1, -1]
        centred = rho[:-1, :-1] - one[:, None] * (one / H)[None, :]
        slope = ar.solve(centred[:ny, :ny], centred[:ny, ny:]).T if ny else ar.zeros((nx, 0), V)
        mu_x = (one[ny:] - slope @ one[:ny]) / H
        Sigma_x = ar.symmetric(centred[ny:, ny:] - slope @ centred[:ny, ny:]) / H
        V = V + U @ slope
        mu = mu + U @ mu_x
        U = U @ ar.cholesky(Sigma_x)
    if ny:
        mu = mu + V @ mu_y
        if basis is not None:
            Sigma_y = ar.symmetric(basis @ (Sigma_y - ar.eye(ny, V)) @ basis.T) + ar.eye(basis.shape[0], V)
            V = V @ basis.T
        V = V @ ar.cholesky(Sigma_y)
    return replace(model, mu=mu, V=V, U=U)


@ar.reproducible()
def moment_start(stats: Statistics, ny: int, nx: int, floor: float = 0.0) -> Model:
    """A start from the analysis of variance (`duoplda.model.anova`), solved for W^-1, UU' and VV' from the noise up.

    Of UU' and VV', the leading directions are kept.
    """
    s = scatters(stats)
    noise = s.within / max(s.df[0], 1.0) if nx else (s.within + s.session) / max(s.df[0] + s.df[1], 1.0)
    if s.df[0] + s.df[1] <= 0:  # no speaker has two recordings: half of the total is as good as any other share
        noise = s.speaker / max(stats.n_recordings, 1.0) / 2
    noise = floored(noise, floor)
    UU = (s.session - s.df[1] * noise) / max(s.a, 1.0) if nx else noise * 0.0
    if nx and s.df[1] <= 0:
        UU = noise
    U = _leading(UU, noise, nx)
    VV = (s.speaker - s.df[2] * noise - s.b * (U @ U.T)) / max(s.e, 1.0)
    return _start(stats, _leading(VV, noise, ny), U, noise)


@ar.reproducible()
def random_start(stats: Statistics, ny: int, nx: int, rng: np.random.Generator, floor: float = 0.0) -> Model:
    """Loadings drawn at random, on the scale of the data; noise a third of the total covariance."""
    T = floored(total_covariance(stats), 3 * floor)
    C = ar.cholesky(T)
    V, U = (C @ ar.put(rng.standard_normal((stats.d, n)), T) / max(3.0 * n, 1.0) ** 0.5 for n in (ny, nx))
    return _start(stats, V, U, T / 3)


def _start(stats: Statistics, V: Array, U: Array, noise: Array) -> Model:
    """A model with a mean for each kind of channels, and the same noise for all."""
    W = ar.namespace(noise).concat([ar.spd_inverse(noise[None, ...])[0]] * stats.K)
    return Model(stats.kind_means + stats.offset, V, U, W, stats.kinds)


def _leading(covariance: Array, noise: Array, n: int) -> Array:
    """Loadings (d, n) of the directions in which a covariance is largest relative to the noise.

    In each of them it is taken for a hundredth of the noise at least: loadings of 0 would stay 0 in EM.
    """
    xp = ar.namespace(covariance)
    C = ar.cholesky(noise)
    s, T = xp.linalg.eigh(ar.symmetric(xp.linalg.solve(C, xp.linalg.solve(C, covariance).T)))
    s = s[s.shape[0] - n :]
    T = T[:, T.shape[1] - n :]
    return (C @ T) * xp.sqrt(xp.where(s < 1e-2, xp.full_like(s, 1e-2), s))[None, :]


@dataclass(frozen=True, eq=False)
class State:
    """EM after an iteration: all that later iterations depend on, so that `fit` continues from it to the same bits.

    The acceleration remembers up to 9 pairs of vectors as long as all parameters together, K d + d (ny + nx) + K d^2
    numbers, so that a saved state is up to 19 times as large as the model (57 MB with d = 512 and 150 + 100 factors).
    """

    model: Model
    trace: tuple[float, ...] = ()  # log-likelihoods: of the start, then after each iteration
    n_evaluations: int = 0  # E-steps, those of rejected accelerated steps included
    steps: tuple[Array, ...] = ()  # g(t) - t of the last iterations t -> g(t), up to 9
    images: tuple[Array, ...] = ()  # g(t)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The state as arrays of the host."""
        arrays = {name: ar.to_numpy(getattr(self.model, name)) for name in ("mu", "V", "U", "W")}
        for name, vectors in (("steps", self.steps), ("images", self.images)):
            arrays[name] = np.stack([ar.to_numpy(v) for v in vectors]) if vectors else np.zeros((0, 0))
        return arrays | {"trace": np.array(self.trace), "n_evaluations": np.array(self.n_evaluations)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], kinds: ArrayLike) -> State:
        """What `arrays` gave, and the names of the kinds of channels. ValueError if they do not belong together."""
        model = Model(arrays["mu"], arrays["V"], arrays["U"], arrays["W"], np.asarray(kinds))
        K, d = model.mu.shape
        ny = model.V.shape[1]
        nx = model.U.shape[1]
        size = model.mu.size + model.V.size + model.U.size + model.W.size
        n = len(arrays["steps"])
        shapes = [arrays[name].shape for name in ("V", "U", "W", "steps", "images")]
        if shapes != [(d, ny), (d, nx), (K, d, d), *[(n, size if n else 0)] * 2] or model.kinds.shape != (K,):
            raise ValueError("the sizes of its arrays do not fit together")
        trace = tuple(arrays["trace"].tolist())
        n_evaluations = int(arrays["n_evaluations"])
        return cls(model, trace, n_evaluations, tuple(arrays["steps"]), tuple(arrays["images"]))


class Fit(NamedTuple):
    """The model that EM has found, and how it got there."""

    model: Model
    log_likelihoods: NDArray[np.float64]  # after each iteration, the start's first
    converged: bool
    n_evaluations: int  # E-steps, those of rejected accelerated steps included


def _as_stored(model: Model, like: Array) -> Model:
    """The model in contiguous arrays on the device of `like`, as a saved state has when it is read again.

    Products of arrays with other strides may differ in the last bit.
    """
    xp = ar.namespace(like)
    arrays = {name: ar.put(getattr(model, name), like) for name in ("mu", "V", "U", "W")}
    return replace(model, **{name: xp.reshape(xp.reshape(a, (-1,)), a.shape) for name, a in arrays.items()})


class Expected(NamedTuple):
    """An E-step, and the model that it was computed from, which has the speaker factors in use only."""

    model: Model
    basis: Array | None  # (all ny, ny in use) orthonormal; None: all factors are in use
    moments: Moments
    value: float  # the log-likelihood, or with `nu` that plus the log-prior


def expect(e_step: EStep, model: Model, nu: float) -> Expected:
    """The E-step without the speaker factors that are not in use, which cost as much as the others.

    M speakers cannot use more than M factors. In the other directions of y, EM soon has loadings of 0 and keeps them.
    With B (ny, r) the eigenvectors of V'V whose eigenvalues are not 0 to rounding, VV' = VB (VB)'. They are computed
    only where there are at least as many factors as speakers.
    """
    xp = ar.namespace(model.V)
    basis = None
    more_than_speakers = len(e_step.stats.speaker_ids) <= model.ny
    if more_than_speakers and len(e_step.patterns) > 1 and e_step.host:
        VV = ar.symmetric(model.V.T @ model.V)
        if math.isfinite(float(xp.sum(VV))):
            s, E = xp.linalg.eigh(VV)
            unused = int(np.sum(ar.to_numpy(s) < 1e-14 * float(s[-1])))
            if unused:
                basis = E[:, unused:]
                model = replace(model, V=model.V @ basis)
    moments = e_step(model)
    return Expected(model, basis, moments, moments.ln_likelihood + ln_prior(model, nu))


def maximise(expected: Expected, stats: Statistics, minimum_divergence: bool, floor: float, nu: float) -> Model:
    """The ML step, and the MD step unless it is not wanted."""
    model = ml_step(expected.model, expected.moments, stats, floor, nu)
    if minimum_divergence:
        model = md_step(model, expected.moments, expected.basis)
    elif expected.basis is not None:
        model = replace(model, V=model.V @ expected.basis.T)
    return _as_stored(model, stats.offset)


@ar.reproducible()
def fit(
    stats: Statistics,
    start: Model | State,
    *,
    tol: float = 1e-6,
    max_iter: int = 500,
    accelerate: bool = True,
    minimum_divergence: bool = True,
    floor: float = 0.0,
    nu: float = 0.0,
    observer: Observer = SILENT,
) -> Fit:
    """EM from a start until an iteration gains less than `tol` nats per recording.

    With `accelerate`, Anderson steps (depth 8 on mu, V, U and the factor of W^-1) are taken where they raise the
    likelihood, else the plain step is taken and the memory cleared. With `nu`, it is the likelihood times the prior
    (see `ln_prior`) that is maximised.

    After each iteration the observer gets the `State`, and then the iteration, after which it can end the loop. With a
    state as the start, EM continues from there, and ends with the same bits as if it had not been interrupted.
    """
    e_step = EStep(stats)
    state = start if isinstance(start, State) else State(start)
    state = replace(state, model=_as_stored(state.model, stats.offset))
    anderson = Anderson(state.steps, state.images, stats.offset, 8 if accelerate else 0, floor)
    enough = tol * stats.n_recordings
    stopped = False
    try:
        expected = expect(e_step, state.model, nu)
        if not state.trace:
            state = replace(state, trace=(expected.value,), n_evaluations=1)
        converged = len(state.trace) > 1 and state.trace[-1] - state.trace[-2] < enough
        while not converged and not stopped and len(state.trace) <= max_iter:
            last = state.trace[-1]
            evaluations = state.n_evaluations + 1
            model = maximise(expected, stats, minimum_divergence, floor, nu)
            ahead = anderson.ahead(state.model, model)
            better = None
            if ahead is not None:
                with suppress(ar.NotPositiveDefinite):  # an extrapolated model may be no model at all
                    better = expect(e_step, ahead, nu)
            # A step ahead must gain more than `enough`, so that only a plain step ends the loop: a small gain of a step
            # ahead does not show that nothing is left to gain.
            if ahead is not None and better is not None and last + max(enough, 0.0) < better.value < math.inf:
                model = ahead
                expected = better
            else:
                if ahead is not None:
                    evaluations += 1
                    anderson.forget()  # steps that led to a worse model would do so again
                expected = expect(e_step, model, nu)
            gain = expected.value - last
            if tol >= 0 and -1e-8 * abs(last) < gain < 0:
                converged = True  # it is lower by rounding alone, so that nothing is left to gain: the last state stays
                break
            state = State(model, (*state.trace, expected.value), evaluations, anderson.steps, anderson.images)
            observer.state(state)
            stopped = observer.iteration(len(state.trace) - 1, expected.value, model)
            converged = gain < enough
    except ar.NotPositiveDefinite:
        cause = "there are too few recordings for the dimensions, or recordings or columns repeat"
        remedy = "Set noise_floor (for example 1e-4), or reduce the dimensions first"
        raise DuopldaError(f"the noise covariance became singular: {cause}. {remedy}") from None
    return Fit(state.model, np.array(state.trace), converged, state.n_evaluations)
