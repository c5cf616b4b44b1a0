"""Shrinkage for training with few speakers: each covariance is moved towards the shape of the total covariance.

How far is given, or chosen by held-out speakers (`duoplda.selection`).

With B = VV', S = UU', noise covariances Sigma_k = W_k^-1, their mean Sigma over recordings, and the total covariance T:

    B <- (1 - a) B + a b T,   b = tr(T^-1 B) / d         its size stays, its shape moves; the same for S
    Sigma_k <- (1 - c_k) Sigma_k + c_k Sigma             first towards the other kinds,
    Sigma_k <- (1 - a) Sigma_k + a s_k T                 then towards T

This is invariant to affine maps of the data, and the result has full rank where a > 0. A kind with few recordings moves
more: c_k = c / (c + (1 - c) N_k / mean N), so that c is the share of a kind with an average number.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
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
    """Factors of VV' and UU' in the model of the ratios; all else uses the model as it was trained."""

    speaker: float = 1.0
    session: float = 1.0


@reproducible()
def target(stats: Statistics) -> Array:
    """The total covariance T; if it is singular, a millionth of its mean variance is added in every direction."""
    T = total_covariance(stats)
    xp = namespace(T)
    mean = float(xp.linalg.trace(T)) / stats.d
    if mean == 0:  # all recordings are equal
        return eye(stats.d, T)
    if float(xp.min(xp.linalg.eigvalsh(T))) < 1e-9 * mean:
        T = T + 1e-6 * mean * eye(stats.d, T)
    return T


class Shrinker:
    """Shrinks the covariances of one model by any amounts; what all of these need is computed once."""

    @reproducible()
    def __init__(self, model: Model, T: Array, N: NDArray[np.float64]):
        """T (d, d) is the total covariance, and N (K,) are the numbers of recordings by kind."""
        self.model = model
        self.T = T
        self.N = N
        self._T_inverse = spd_inverse(T)[0]
        self._noise = spd_inverse(model.W)[0]  # (K, d, d) covariances

    @reproducible()
    def __call__(self, amounts: Shrinkage) -> Model:
        """The model with its covariances shrunk by these amounts."""
        V = self._loadings(self.model.V, amounts.speaker)
        U = self._loadings(self.model.U, amounts.session)
        channel = amounts.channel if self.model.K > 1 else 0.0
        if not amounts.noise and not channel:
            return replace(self.model, V=V, U=U)
        noise = [self._noise[k, ...] for k in range(self.model.K)]
        if channel:
            c = channel / (channel + (1 - channel) * self.N / self.N.mean())
            shares = (self.N / self.N.sum()).tolist()
            mean = sum(share * covariance for share, covariance in zip(shares, noise, strict=True))
            noise = [(1 - ck) * covariance + ck * mean for ck, covariance in zip(c.tolist(), noise, strict=True)]
        if amounts.noise:
            noise = [self._towards_target(covariance, amounts.noise) for covariance in noise]
        W = spd_inverse(symmetric(namespace(self.T).stack(noise)))[0]
        return replace(self.model, V=V, U=U, W=W)

    def _loadings(self, L: Array, share: float) -> Array:
        if not share or not L.shape[1]:
            return L
        return cholesky(symmetric(self._towards_target(L @ L.T, share)))

    def _towards_target(self, covariance: Array, share: float) -> Array:
        size = float(namespace(covariance).sum(self._T_inverse * covariance)) / self.model.d  # tr(T^-1 A) / d
        return (1 - share) * covariance + share * max(size, 1e-12) * self.T  # a covariance of rank 0 moves, too


@reproducible()
def truncate(model: Model, ny: int, nx: int) -> Model:
    """The model with ny and nx factors: the leading directions of VV' and UU' relative to the mean noise stay.

    What is cut off VV' is added to UU', and what is cut off that to the noise.
    """
    xp = namespace(model.V)
    C = cholesky(xp.mean(model.W, axis=0))  # W = CC'

    def split(A: Array, n: int) -> tuple[Array, Array]:
        s, T = xp.linalg.eigh(symmetric(C.T @ A @ C))
        s = xp.where(s < 0, xp.zeros_like(s), s)
        L = xp.linalg.solve(C.T, T * xp.sqrt(s)[None, :])  # columns by increasing size
        cut = L.shape[1] - n
        return L[:, cut:], L[:, :cut] @ L[:, :cut].T

    V, left = split(model.V @ model.V.T, ny)
    U = model.U
    if model.nx:
        U, left = split(model.U @ model.U.T + left, nx)
    return replace(model, V=V, U=U, W=spd_inverse(symmetric(spd_inverse(model.W)[0] + left))[0])


def scaled(model: Model, scales: Scales) -> Model:
    """The model with VV' and UU' scaled."""
    return replace(model, V=model.V * scales.speaker**0.5, U=model.U * scales.session**0.5)
