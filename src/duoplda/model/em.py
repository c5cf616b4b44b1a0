"""Maximum likelihood by EM, from the statistics alone: an iteration costs the same for any number of recordings.

One iteration is an E-step, then the ML step for (mu, V, U, W) and the MD step (minimum divergence) for the prior of the
hidden variables, both from the same expectations: they maximise separate terms of the auxiliary function, so that the
likelihood never falls. The letters are those of `duoplda.model.parameters`; `m` is a mean about the statistics' offset.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda import arrays as ar
from duoplda.arrays import Array
from duoplda.errors import DuopldaError
from duoplda.model.anova import kind_means, scatters, total_covariance
from duoplda.model.estep import EStep, Moments
from duoplda.model.parameters import Model
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
    W = ar.spd_inverse(_floored(noise, floor))[0]
    return replace(model, mu=m + stats.offset, V=Z[:, :ny], U=Z[:, ny:], W=W)


def _regression_by_kind(model: Model, moments: Moments, stats: Statistics) -> tuple[Array, Array, Array]:
    """Loadings Z = [V U] that all kinds share; means (about the offset) and noise covariances by kind.

    Kinds that come together in every session, as copies do, have one R between them: what it costs is paid once.
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
    Z = _loadings(xp.concat([model.V, model.U], axis=1), model.W, Rc, WC, stats.N, group)
    m = (f - ar.take(r @ Z.T, group)) / N
    noise = C[:, :, :-1] @ Z.T
    noise *= -2.0
    noise += stats.S
    noise += ar.take(Z @ R[:, :-1, :-1] @ Z.T, group)  # S - CZ' - ZC' + ZRZ' - N mm', when made symmetric
    noise -= m[:, :, None] * (N * m)[:, None, :]
    return Z, m, ar.symmetric(noise) / N[:, :, None]


def _loadings(Z: Array, W: Array, R: Array, WC: Array, N: NDArray[Any], group: NDArray[Any]) -> Array:
    """Solve sum_k W_k Z R_k = WC = sum_k W_k C_k by ten preconditioned conjugate-gradient steps from Z: each raises Q.

    R_k is R[group[k]]. With a single group, Z = (sum W_k)^-1 WC R^-1.
    """
    xp = ar.namespace(Z)
    if R.shape[0] == 1:
        return ar.spd_inverse(xp.sum(W, axis=0))[0] @ WC @ ar.spd_inverse(ar.symmetric(R[0, ...]))[0]
    share = N / N.sum()  # of the recordings, by kind
    members = (group == np.arange(R.shape[0])[:, None]).astype(float)  # (G, K)
    # Kinds of a group have equal shares
    n = ar.put(members.sum(axis=1), R)
    s = (members @ share) / members.sum(axis=1)
    W_mean = xp.tensordot(ar.put(share, W), W, axes=1)
    R_sum = ar.symmetric(xp.tensordot(n, R, axes=1))
    left = ar.spd_inverse(W_mean)[0]
    right = ar.spd_inverse(R_sum)[0]
    # sum_g W_g Z R_g = W_mean Z R_sum + sum_g D_g Z R_g, and sum_g s_g D_g = 0: the largest group is put into the rest
    out = int(np.argmax(s))
    rest = np.array([g for g in range(len(s)) if g != out])
    D = ar.take(xp.tensordot(ar.put(members, W), W, axes=1) - n[:, None, None] * W_mean, rest)
    R = ar.take(R, rest) - ar.put(s[rest] / s[out], R)[:, None, None] * R[out, ...]
    D = xp.reshape(xp.permute_dims(D, (1, 0, 2)), (D.shape[1], -1))  # (d, (G - 1) d)

    def others(A: Array) -> Array:
        return D @ xp.reshape(A @ R, (-1, A.shape[1]))

    residual = WC - W_mean @ Z @ R_sum - others(Z)
    # W_mean step R_sum is `mean` without a product, now and later
    step = left @ residual @ right
    mean = residual
    power = first = float(xp.sum(residual * step))
    for _ in range(10):
        if power <= 1e-16 * first or power <= 0:
            break
        image = mean + others(step)
        a = power / float(xp.sum(step * image))
        Z = Z + a * step
        residual = residual - a * image
        ahead = left @ residual @ right
        previous = power
        power = float(xp.sum(residual * ahead))
        step = ahead + (power / previous) * step
        mean = residual + (power / previous) * mean
    return Z


def _floored(covariances: Array, floor: float) -> Array:
    """The best covariances (..., d, d) with no eigenvalue below the floor: the maximiser under that constraint."""
    if not floor:
        return covariances
    xp = ar.namespace(covariances)
    with suppress(ar.NotPositiveDefinite):  # as a rule none is below, and that is told at a tenth of the cost
        ar.cholesky(covariances - floor * ar.eye(covariances.shape[-1], covariances))
        return covariances
    s, T = xp.linalg.eigh(covariances)
    return ar.symmetric((T * xp.where(s < floor, xp.full_like(s, floor), s)[..., None, :]) @ T.mT)


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
    `basis` of `_in_use`, V' has all ny columns, and is what it would be if none had been left out.
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
            V, one = V @ basis.T, ar.eye(ny, V)
            Sigma_y = ar.symmetric(basis @ (Sigma_y - one) @ basis.T) + ar.eye(basis.shape[0], V)
        V = V @ ar.cholesky(Sigma_y)
    return replace(model, mu=mu, V=V, U=U)


class Expected(NamedTuple):
    """An E-step: the model that it was made of, in which only speaker factors in use are left, and what it gave."""

    model: Model
    basis: Array | None
    moments: Moments


def _in_use(model: Model) -> tuple[Model, Array | None]:
    """The model with loadings V B (d, r) for V, and the basis B (ny, r): VV' = VB (VB)', to rounding.

    More speaker factors than speakers cannot all be used. EM soon has no loadings in the other directions of y, and
    keeps it so, as nothing is learnt of y there. None: all directions are in use.
    """
    xp = ar.namespace(model.V)
    VV = ar.symmetric(model.V.T @ model.V)
    if not math.isfinite(float(xp.sum(VV))):
        return model, None
    s, E = xp.linalg.eigh(VV)
    unused = int(np.sum(ar.to_numpy(s) < 1e-14 * float(s[-1])))
    return (replace(model, V=model.V @ E[:, unused:]), E[:, unused:]) if unused else (model, None)


@ar.reproducible()
def moment_start(stats: Statistics, ny: int, nx: int, floor: float = 0.0) -> Model:
    """W^-1 from within sessions, UU' from between sessions less its share of noise, VV' likewise; leading parts."""
    s = scatters(stats)
    noise = s.within / max(s.df[0], 1.0) if nx else (s.within + s.session) / max(s.df[0] + s.df[1], 1.0)
    if s.df[0] + s.df[1] <= 0:  # no speaker has two recordings: half of the total is as good as any other share
        noise = s.speaker / max(stats.n_recordings, 1.0) / 2
    noise = _floored(noise, floor)
    UU = (s.session - s.df[1] * noise) / max(s.a, 1.0) if nx else noise * 0.0
    if nx and s.df[1] <= 0:
        UU = noise
    U = _leading(UU, noise, nx)
    VV = (s.speaker - s.df[2] * noise - s.b * (U @ U.T)) / max(s.e, 1.0)
    return _start(stats, _leading(VV, noise, ny), U, noise)


@ar.reproducible()
def random_start(stats: Statistics, ny: int, nx: int, rng: np.random.Generator, floor: float = 0.0) -> Model:
    """Loadings drawn at random, on the scale of the data; noise a third of the total covariance."""
    T = _floored(total_covariance(stats), 3 * floor)
    C = ar.cholesky(T)
    V, U = (C @ ar.put(rng.standard_normal((stats.d, n)), T) / max(3.0 * n, 1.0) ** 0.5 for n in (ny, nx))
    return _start(stats, V, U, T / 3)


def _start(stats: Statistics, V: Array, U: Array, noise: Array) -> Model:
    """Each kind has its own mean, and the noise that is given."""
    W = ar.namespace(noise).concat([ar.spd_inverse(noise[None, ...])[0]] * stats.K)
    return Model(kind_means(stats) + stats.offset, V, U, W, stats.kinds)


def _leading(covariance: Array, noise: Array, n: int) -> Array:
    """Loadings of the n directions in which a covariance stands out most from the noise; never 0: EM would keep it."""
    xp = ar.namespace(covariance)
    C = ar.cholesky(noise)
    s, T = xp.linalg.eigh(ar.symmetric(xp.linalg.solve(C, xp.linalg.solve(C, covariance).T)))
    s = s[s.shape[0] - n :]
    T = T[:, T.shape[1] - n :]
    return (C @ T) * xp.sqrt(xp.where(s < 1e-2, xp.full_like(s, 1e-2), s))[None, :]


@dataclass(frozen=True, eq=False)
class State:
    """EM after an iteration, with all that later iterations depend on: `fit` goes on from it to the very same bits.

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
        found = {name: ar.to_numpy(getattr(self.model, name)) for name in ("mu", "V", "U", "W")}
        for name in ("steps", "images"):
            rows = [ar.to_numpy(row) for row in getattr(self, name)]
            found[name] = np.stack(rows) if rows else np.zeros((0, 0))
        return found | {"trace": np.array(self.trace), "n_evaluations": np.array(self.n_evaluations)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], kinds: Any) -> State:
        """What `arrays` gave, and the names of the kinds of channels. ValueError if they do not belong together."""
        model = Model(arrays["mu"], arrays["V"], arrays["U"], arrays["W"], np.asarray(kinds))
        K, d = model.mu.shape
        ny = model.V.shape[1]
        nx = model.U.shape[1]
        size = model.mu.size + model.V.size + model.U.size + model.W.size
        n = len(arrays["steps"])
        found = [arrays[name].shape for name in ("V", "U", "W", "steps", "images")]
        if found != [(d, ny), (d, nx), (K, d, d), *[(n, size if n else 0)] * 2] or model.kinds.shape != (K,):
            raise ValueError("the sizes of its arrays do not fit together")
        trace = tuple(arrays["trace"].tolist())
        n_evaluations = int(arrays["n_evaluations"])
        return cls(model, trace, n_evaluations, tuple(arrays["steps"]), tuple(arrays["images"]))


class Fit(NamedTuple):
    model: Model
    log_likelihoods: NDArray[np.float64]  # after each iteration, the start's first
    converged: bool
    n_evaluations: int  # E-steps, those of rejected accelerated steps included


class _Anderson:
    """Extrapolates EM from its last steps t -> g(t), parameters being one vector (Anderson's mixing, type II).

    With f = g(t) - t, the next point is g - sum_i a_i (g_{i+1} - g_i), a the least-squares fit of f by f_{i+1} - f_i.
    That is where f would be 0. Steps that grow along a line lead away from such a point, which is no maximum: then the
    next point is further along the line, by four times as many steps as the last time.
    """

    def __init__(self, state: State, like: Array, depth: int, floor: float):
        self.depth = depth
        self.floor = floor
        self.f, self.g = (tuple(ar.put(v, like) for v in given) for given in (state.steps, state.images))

    def __call__(self, model: Model, plain: Model) -> Model | None:
        """A model ahead of the plain step; None where there is none."""
        if not self.depth:
            return None
        t = _pack(model)
        g = _pack(plain)
        self.f = (*self.f, g - t)[-self.depth - 1 :]
        self.g = (*self.g, g)[-self.depth - 1 :]
        if len(self.f) < 2:
            return None
        n = self._growing(t)
        if n:
            return self._model(g + min(n, _until_half(g, self.f[-1], plain)) * self.f[-1], plain)
        dF = ar.namespace(t).stack([b - a for a, b in zip(self.f[:-1], self.f[1:], strict=True)])
        inner = ar.to_numpy(dF @ dF.T)
        rhs = ar.to_numpy(dF @ self.f[-1])
        scale = np.sqrt(np.maximum(np.diagonal(inner), 1e-300))
        a = np.linalg.lstsq(inner / np.outer(scale, scale), rhs / scale, rcond=1e-12)[0] / scale
        for ai, g0, g1 in zip(a.tolist(), self.g[:-1], self.g[1:], strict=True):
            g = g - ai * (g1 - g0)
        return self._model(g, plain)

    def _growing(self, t: Array) -> float:
        """How many steps to go ahead where the last one went on in the direction of the one before, and further."""
        f0, f1, moved = *self.f[-2:], t - (self.g[-2] - self.f[-2])
        size = float(f0 @ f0)
        along = float(f0 @ moved)
        on_a_line = along > 0 and along**2 >= (1 - 1e-9) * size * float(moved @ moved)
        return 4 * along / size if on_a_line and float(f0 @ f1) > size else 0.0

    def _model(self, t: Array, like: Model) -> Model | None:
        try:
            return _unpack(t, like, self.floor)
        except ar.NotPositiveDefinite:
            return None


def _pack(model: Model) -> Array:
    """The parameters as one vector, W_k by the Cholesky factor of its inverse."""
    xp = ar.namespace(model.V)
    factor = ar.cholesky(ar.spd_inverse(model.W)[0])
    return xp.concat([xp.reshape(a, (-1,)) for a in (model.mu, model.V, model.U, factor)])


def _until_half(t: Array, step: Array, like: Model) -> float:
    """How often a step can be added before a diagonal entry of a factor of W_k^-1 is less than half of what it is."""
    factors = (ar.to_numpy(v[-math.prod(like.W.shape) :]).reshape(like.W.shape) for v in (t, step))
    now, change = (np.diagonal(a, axis1=1, axis2=2) for a in factors)
    return float(np.min(now / 2 / np.maximum(-change, 1e-300)))


def _unpack(t: Array, like: Model, floor: float) -> Model:
    shapes = [a.shape for a in (like.mu, like.V, like.U, like.W)]
    ends = np.cumsum([0, *map(math.prod, shapes)]).tolist()
    parts = [t[a:b] for a, b in itertools.pairwise(ends)]
    mu, V, U, factor = (ar.namespace(t).reshape(p, shape) for p, shape in zip(parts, shapes, strict=True))
    return replace(like, mu=mu, V=V, U=U, W=ar.spd_inverse(_floored(factor @ factor.mT, floor))[0])


def _as_stored(model: Model, like: Array) -> Model:
    """The model in contiguous arrays where `like` is: products of others may differ in the last bit."""
    xp = ar.namespace(like)
    there = {name: ar.put(getattr(model, name), like) for name in ("mu", "V", "U", "W")}
    return replace(model, **{name: xp.reshape(xp.reshape(a, (-1,)), a.shape) for name, a in there.items()})


def _states(
    expected: Callable[[Model], Expected],
    state: State,
    step: Callable[[Expected], Model],
    ahead: _Anderson,
    nu: float,
    least: float,
) -> Iterator[State]:
    """The given state, then that after each iteration, without end. A step ahead must gain more than `least`."""
    model = state.model
    found = expected(model)
    trace = state.trace or (found.moments.ln_likelihood + ln_prior(found.model, nu),)
    evaluations = state.n_evaluations or 1
    yield State(model, trace, evaluations, ahead.f, ahead.g)
    while True:
        plain = _as_stored(step(found), model.mu)
        bold = ahead(model, plain)
        better = False
        if bold is not None:
            evaluations += 1
            with suppress(ar.NotPositiveDefinite):  # an extrapolated model may be no model at all
                there = expected(bold)
                value = there.moments.ln_likelihood + ln_prior(there.model, nu)
                better = trace[-1] + least < value < math.inf
        if bold is not None and better:
            model = bold
            found = there
        else:
            if bold is not None:
                ahead.f = ahead.g = ()
            model = plain
            found = expected(plain)
            evaluations = evaluations + 1
            value = found.moments.ln_likelihood + ln_prior(found.model, nu)
        trace = (*trace, value)
        yield State(model, trace, evaluations, ahead.f, ahead.g)


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
    likelihood, else the plain step is taken and the memory cleared. With `nu`, likelihood times prior is meant.

    After each iteration the observer is told, and can end the loop. It gets the `State` first: with this as the start,
    EM goes on where it was, and ends with the same bits as if it had not been interrupted.
    """

    e_step = EStep(stats)

    def expected(model: Model) -> Expected:
        fewer = len(e_step.patterns) > 1 and len(stats.speaker_ids) <= model.ny and e_step.host  # worth a look
        model, basis = _in_use(model) if fewer else (model, None)
        return Expected(model, basis, e_step(model))

    def step(found: Expected) -> Model:
        model, basis, moments = found
        plain = ml_step(model, moments, stats, floor, nu)
        if minimum_divergence:
            return md_step(plain, moments, basis)
        return plain if basis is None else replace(plain, V=plain.V @ basis.T)

    first = start if isinstance(start, State) else State(start)
    first = replace(first, model=_as_stored(first.model, stats.offset))
    before = first
    ahead = _Anderson(first, stats.offset, 8 if accelerate else 0, floor)
    least = max(tol, 0.0) * stats.n_recordings  # only a plain step may end the loop
    try:
        for state in _states(expected, first, step, ahead, nu, least):
            iteration = len(state.trace) - 1
            stop = False
            if iteration and tol >= 0 and -1e-8 * abs(state.trace[-2]) < state.trace[-1] - state.trace[-2] < 0:
                # Lower by rounding alone: nothing is left to gain
                state = before
                converged = True
                break
            before = state
            if iteration >= max(len(first.trace), 1):
                observer.state(state)
                stop = observer.iteration(iteration, state.trace[-1], state.model)
            converged = iteration > 0 and state.trace[-1] - state.trace[-2] < tol * stats.n_recordings
            if converged or stop or iteration >= max_iter:
                break
    except ar.NotPositiveDefinite:
        cause = "there are too few recordings for the dimensions, or recordings or columns repeat"
        remedy = "Set noise_floor (for example 1e-4), or reduce the dimensions first"
        raise DuopldaError(f"the noise covariance became singular: {cause}. {remedy}") from None
    return Fit(state.model, np.array(state.trace), converged, state.n_evaluations)
