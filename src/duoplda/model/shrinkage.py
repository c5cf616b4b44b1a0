"""Shrinkage for training with few speakers: each covariance is moved towards the shape of the total covariance.

How far is given, or chosen by held-out speakers (`duoplda.selection`).

With B = VV', S = UU', noise covariances Sigma_k = W_k^-1, their mean Sigma over recordings, and the total covariance T:

    B <- (1 - a) B + a b T,   b = tr(T^-1 B) / d         its size stays, its shape moves; the same for S
    Sigma_k <- (1 - c_k) Sigma_k + c_k Sigma             first towards the other kinds,
    Sigma_k <- (1 - a) Sigma_k + a s_k T                 then towards T

This is invariant to affine maps of the data, and the result has full rank where a > 0. A kind with few recordings moves
more: c_k = c / (c + (1 - c) N_k / mean N), so that c is the share of a kind with an average number.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from numpy.typing import NDArray

from duoplda.arrays import Array, cholesky, eye, namespace, reproducible, spd_inverse, symmetric
from duoplda.model.anova import total_covariance
from duoplda.model.parameters import Model
from duoplda.model.statistics import Statistics


class Shrinkage(NamedTuple):
    """How far each covariance is moved, from 0 (not at all) to 1."""

    speaker: float = 0.0
    session: float = 0.0
    noise: float = 0.0
    channel: float = 0.0  # a kind's noise towards the mean over kinds


class Scales(NamedTuple):
    """Factors of VV' and of UU', for ratios only."""

    speaker: float = 1.0
    session: float = 1.0


@reproducible()
def target(stats: Statistics) -> Array:
    """The total covariance; where it is singular, with a millionth of its mean variance in every direction."""
    T = total_covariance(stats)
    xp = namespace(T)
    mean = float(xp.linalg.trace(T)) / stats.d
    if mean == 0:  # all recordings are equal
        return eye(stats.d, T)
    if float(xp.min(xp.linalg.eigvalsh(T))) < 1e-9 * mean:
        T = T + 1e-6 * mean * eye(stats.d, T)
    return T


class Shrinker:
    """A model whose covariances can be moved. What every such change needs is computed by the first one."""

    def __init__(self, model: Model, T: Array, N: NDArray[Any]):
        """T (d, d) is the target, N (K,) are recordings by kind."""
        self.model = model
        self.T = T
        self.N = N
        self._kept: dict[str, tuple[Any, Array]] = {}  # the last V, U and W, and their amounts: often one alone changes

    @cached_property
    def _inverse(self) -> Array:
        return spd_inverse(self.T)[0]

    @cached_property
    def _noise(self) -> Array:
        return spd_inverse(self.model.W)[0]

    @cached_property
    def _covariances(self) -> list[Array]:
        return [L @ L.T for L in (self.model.V, self.model.U)]

    def _size(self, covariance: Array) -> float:
        return float(namespace(covariance).sum(self._inverse * covariance)) / self.model.d  # tr(T^-1 A) / d

    def _loadings(self, L: Array, A: Array, share: float) -> Array:
        if not share or not L.shape[1]:
            return L
        return cholesky(symmetric((1 - share) * A + share * max(self._size(A), 1e-12) * self.T))

    def _precisions(self, share: float, channel: float) -> Array:
        model = self.model
        N = self.N
        noise = self._noise
        xp = namespace(self.T)
        channel = channel if model.K > 1 else 0.0
        if not share and not channel:
            return model.W
        if channel:
            c = channel / (channel + (1 - channel) * N / N.mean())
            mean = sum(float(n) * noise[k, ...] for k, n in enumerate(N / N.sum()))
            noise = xp.stack([(1 - float(ck)) * noise[k, ...] + float(ck) * mean for k, ck in enumerate(c)])
        if share:
            sizes = [share * self._size(noise[k, ...]) for k in range(model.K)]
            noise = xp.stack([(1 - share) * noise[k, ...] + size * self.T for k, size in enumerate(sizes)])
        return spd_inverse(symmetric(noise))[0]

    def _once(self, name: str, amounts: Any, make: Callable[[], Array]) -> Array:
        kept = self._kept.get(name)
        if kept is None or kept[0] != amounts:
            kept = self._kept[name] = amounts, make()
        return kept[1]

    @reproducible()
    def __call__(self, a: Shrinkage) -> Model:
        """The model with its covariances moved."""
        model = self.model
        VV, UU = self._covariances
        V = self._once("V", a.speaker, lambda: self._loadings(model.V, VV, a.speaker))
        U = self._once("U", a.session, lambda: self._loadings(model.U, UU, a.session))
        W = self._once("W", (a.noise, a.channel), lambda: self._precisions(a.noise, a.channel))
        return replace(model, V=V, U=U, W=W)


@reproducible()
def truncate(model: Model, ny: int, nx: int) -> Model:
    """Keep the leading directions of VV' and UU' relative to the mean noise; what is left goes one level down."""
    xp = namespace(model.V)
    C = cholesky(xp.mean(model.W, axis=0))  # W = CC'

    def split(A: Array, n: int) -> tuple[Array, Array]:
        s, T = xp.linalg.eigh(symmetric(C.T @ A @ C))
        s = xp.where(s < 0, xp.zeros_like(s), s)
        L = xp.linalg.solve(C.T, T * xp.sqrt(s)[None, :])  # columns by increasing size
        cut = L.shape[1] - n
        return L[:, cut:], L[:, :cut] @ L[:, :cut].T

    V, rest = split(model.V @ model.V.T, ny)
    U = model.U
    if model.nx:
        U, rest = split(model.U @ model.U.T + rest, nx)
    return replace(model, V=V, U=U, W=spd_inverse(symmetric(spd_inverse(model.W)[0] + rest))[0])


def scaled(model: Model, scales: Scales) -> Model:
    """The model with VV' and UU' scaled."""
    return replace(model, V=model.V * scales.speaker**0.5, U=model.U * scales.session**0.5)
