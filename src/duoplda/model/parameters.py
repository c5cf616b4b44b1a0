"""The parameters of the model, and the densities that follow from them.

    phi_ijl = mu_k + V y_i + U x_ij + eps_ijl,   y_i, x_ij ~ N(0, I),   eps_ijl ~ N(0, W_k^-1),   k the kind of channel

`W` is a precision (in Kaldi and wespeaker `W` is a covariance). For a session of type `c` (c_k recordings of kind k)
and its recordings about their means, with `z = sum U'W_k (phi - mu_k)` and `v = sum V'W_k (phi - mu_k)` over them:

    J_c = sum_k c_k U'W_k V,   P_c = (I + sum_k c_k U'W_k U)^-1,   G_c = sum_k c_k V'W_k V - J_c'P_c J_c
    x_ij | y_i, Phi ~ N(P_c (z_ij - J_c y_i), P_c)
    y_i | Phi       ~ N(Lambda_i^-1 gamma_i, Lambda_i^-1)
    Lambda_i = I + sum_j G_c,   gamma_i = sum_j v_ij - J_c'P_c z_ij

    ln P(Phi_i) = sum_jl ln N(phi; mu_k, W_k^-1) + sum_j (ln|P_c| + z'P_c z) / 2
                  + (gamma'Lambda^-1 gamma - ln|Lambda|) / 2
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda import arrays as ar
from duoplda.arrays import Array
from duoplda.data.labels import NO_KIND, Ints
from duoplda.errors import DuopldaError, some

# The largest number among parameters. Squares of numbers that are much larger, or smaller than its inverse, leave the
# range of doubles, and some routines of LAPACK never return from infinity.
LARGEST = 1e100


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """Parameters for K kinds of channels; with one kind it is the model of the source."""

    mu: Array  # (K, d)
    V: Array  # (d, ny)
    U: Array  # (d, nx)
    W: Array  # (K, d, d) precisions
    kinds: NDArray[Any] = field(default_factory=NO_KIND.copy)  # (K,)

    def __repr__(self) -> str:
        kinds = f", kinds of channels {some(self.kinds.tolist())}" if self.K > 1 else ""
        return f"<Model: {self.d} dimensions, {self.ny} speaker factors, {self.nx} session factors{kinds}>"

    @property
    def d(self) -> int:
        return self.V.shape[0]

    @property
    def ny(self) -> int:
        return self.V.shape[1]

    @property
    def nx(self) -> int:
        return self.U.shape[1]

    @property
    def K(self) -> int:
        return self.mu.shape[0]

    @property
    def noise_alone(self) -> Model:
        """The model without hidden variables."""
        return replace(self, V=self.V[:, :0], U=self.U[:, :0])

    def __getstate__(self) -> dict[str, object]:
        """What another process gets: the parameters, without factors and copies on other devices."""
        return {parameter.name: getattr(self, parameter.name) for parameter in fields(self)}

    @cached_property
    def _copies(self) -> dict[str, Model]:
        return {}

    def like(self, array: Array) -> Model:
        """The model in the array library and on the device of an array; calls for one device give the same object.

        Sides are compared by the models that they belong to: a new copy would be compared number by number.
        """
        place = f"{ar.namespace(array).__name__} {array.device}"
        if place == f"{ar.namespace(self.V).__name__} {self.V.device}":
            return self
        if place not in self._copies:
            moved = {name: ar.put(ar.to_numpy(getattr(self, name)), array) for name in ("mu", "V", "U", "W")}
            self._copies[place] = replace(self, **moved)
        return self._copies[place]

    @cached_property
    def W_factor(self) -> Array:
        """(K, d, d) lower triangular C_k with W_k = C_k C_k'."""
        return ar.cholesky(self.W)

    @cached_property
    def ln_W(self) -> Array:
        """(K,) ln|W_k / 2 pi|."""
        return ar.logdet_cholesky(self.W_factor) - self.d * math.log(2 * math.pi)


def same(a: Model, b: Model) -> bool:
    """Whether two models of one array library have the same parameters, the names of their kinds included."""
    xp = ar.namespace(a.V)
    pairs = ((a.V, b.V), (a.U, b.U), (a.mu, b.mu), (a.W, b.W))
    equal = (x is y or (x.shape == y.shape and bool(xp.all(x == y))) for x, y in pairs)
    return a is b or (np.array_equal(a.kinds, b.kinds) and all(equal))


def checked(
    mean: ArrayLike,
    speaker_loadings: ArrayLike,
    session_loadings: ArrayLike | None,
    noise_precision: ArrayLike,
    kinds: ArrayLike | None = None,
) -> Model:
    """A model of parameters that a user gives, after checks; `kinds` (K,) are the names of its kinds of channels."""
    parameters: dict[str, Array] = {"mean": mean, "speaker_loadings": speaker_loadings}
    parameters |= {"session_loadings": session_loadings, "noise_precision": noise_precision}
    xp = ar.namespace(*parameters.values())
    arrays = {}
    for name, a in parameters.items():
        if a is None and name != "session_loadings":
            raise DuopldaError(f"{name} is None: only session_loadings may be, for a model without session factors")
        if a is not None:
            try:
                a = np.asarray(a) if ar.namespace(a) is np else a
                if "complex" in str(a.dtype):
                    raise TypeError("got complex ones")
                arrays[name] = ar.to_float(a, xp) + 0.0  # a copy, which the user cannot change
            except (TypeError, ValueError) as error:
                raise DuopldaError(f"{name} must be an array of real numbers: {error}") from None
    if not arrays["mean"].ndim or not arrays["mean"].shape[-1]:
        raise DuopldaError(f"mean has shape {tuple(arrays['mean'].shape)}, expected (dimensions,)")
    d = arrays["mean"].shape[-1]
    if "session_loadings" not in arrays:
        arrays["session_loadings"] = ar.zeros((d, 0), arrays["mean"])
    K = () if kinds is None else (len(np.asarray(kinds)),)
    shapes = {"mean": (*K, d), "speaker_loadings": (d, -1), "session_loadings": (d, -1), "noise_precision": (*K, d, d)}
    for name, shape in shapes.items():
        got = tuple(arrays[name].shape)
        if len(got) != len(shape) or any(s not in (-1, g) for s, g in zip(shape, got, strict=True)):
            want = "(" + ", ".join("factors" if s == -1 else str(s) for s in shape) + ")"
            raise DuopldaError(f"{name} has shape {got}, expected {want}, as the mean has {d} dimensions")
        if shape[-1] == -1 and got[-1] > d:
            raise DuopldaError(f"{name} has {got[-1]} factors for {d} dimensions: at most {d} make sense")
        if not bool(xp.all(xp.isfinite(arrays[name]))):
            raise DuopldaError(f"{name} contains NaN or infinity")
        high = float(xp.max(xp.abs(arrays[name]))) if 0 not in got else 0.0
        if high > LARGEST:
            raise DuopldaError(f"{name} has numbers up to {high:.3g}: up to {LARGEST:g} can be computed with")
    W = xp.reshape(arrays["noise_precision"], (-1, d, d))
    worst = float(xp.max(xp.abs(W - W.mT)))
    if worst > 1e-6 * float(xp.max(xp.abs(W))):
        raise DuopldaError(f"noise_precision is not symmetric (entries differ by up to {worst:.3g})")
    W = ar.symmetric(W)
    variances = xp.linalg.diagonal(W)
    low = float(xp.min(variances))
    if low * LARGEST >= 1:
        scale = variances**-0.5  # columns may be in very different units
        low = float(xp.min(xp.linalg.eigvalsh(W * scale[:, :, None] * scale[:, None, :])))
    if low * LARGEST < 1:
        raise DuopldaError(f"noise_precision is not positive definite (smallest eigenvalue {low:.3g})")
    mu = xp.reshape(arrays["mean"], (-1, d))
    V = arrays["speaker_loadings"]
    U = arrays["session_loadings"]
    model = Model(mu, V, U, W, NO_KIND if kinds is None else np.asarray(kinds))
    _check_digits(model)
    return model


def _check_digits(model: Model) -> None:
    """Refuse a model whose mean or loadings are so large that double precision loses its noise beside them."""
    xp = ar.namespace(model.V)
    # Training accepts noise down to 1e-13 of the variance, so that loadings may be 1e7 times as large. A mean that is
    # 1e15 times as large leaves one digit of a recording's difference from it.
    limits = {"speaker_loadings": (model.V, 1e7), "session_loadings": (model.U, 1e7), "mean": (model.mu.T, 1e15)}
    for name, (columns, limit) in limits.items():
        size = float(xp.max(xp.abs(model.W_factor.mT @ columns))) if columns.shape[1] else 0.0
        if size > limit:
            remedy = "the model is singular, or its file is damaged"
            raise DuopldaError(f"{name} has numbers {size:.3g} times the standard deviation of the noise: {remedy}")
    kind = np.eye(model.K, dtype=np.int64)
    try:
        G = Terms(model, np.concatenate([kind, 100 * kind])).G
        ar.cholesky(ar.eye(model.ny, G) + 100 * G)  # Lambda of a speaker with 100 sessions
    except ar.NotPositiveDefinite:
        cause = "the loadings are so large beside the noise that posteriors of speakers have no digit that is right"
        raise DuopldaError(f"{cause}: train again with noise_floor (for example 1e-4)") from None


def floored(covariances: Array, floor: float) -> Array:
    """Covariances (..., d, d) whose eigenvalues are raised to the floor, which maximises the likelihood under it."""
    if not floor:
        return covariances
    xp = ar.namespace(covariances)
    with suppress(ar.NotPositiveDefinite):  # as a rule none is below, which costs a tenth to find out
        ar.cholesky(covariances - floor * ar.eye(covariances.shape[-1], covariances))
        return covariances
    s, T = xp.linalg.eigh(covariances)
    return ar.symmetric((T * xp.where(s < floor, xp.full_like(s, floor), s)[..., None, :]) @ T.mT)


def loadings_of(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """(d, r) loadings L with LL' equal to a covariance of rank r."""
    s, E = np.linalg.eigh(ar.symmetric(covariance))
    in_use = s > 1e-12 * max(float(s[-1]), 0.0)
    return E[:, in_use] * np.sqrt(s[in_use])


class Terms:
    """P_c, J_c, G_c and what else a session of type c adds to posteriors, stacked over the types (C, K)."""

    @ar.reproducible()
    def __init__(self, model: Model, types: Ints):
        xp = ar.namespace(model.V)
        V = model.V
        U = model.U
        host = xp is np
        size = model.ny + model.nx

        self.WV = model.W @ V  # (K, d, ny)
        self.WU = model.W @ U  # (K, d, nx)
        # Sums over kinds are taken of WV (then V'WV is made by type) or of V'WV (made by kind), whichever is fewer.
        by_type = 0 < len(types) < model.K
        weights = ar.put(types.astype(float), V)
        WV, WU = (xp.tensordot(weights, a, axes=1) if by_type else a for a in (self.WV, self.WU))
        VWV = V.T @ WV
        J = U.T @ WV
        UWU = ar.symmetric(U.T @ WU)

        def of_types(part: slice) -> tuple[Array, ...]:
            c = ar.eye(len(types), V)[part, :] if by_type else weights[part, :]
            Jc = xp.tensordot(c, J, axes=1)
            P, ln = ar.spd_inverse(ar.eye(model.nx, U) + xp.tensordot(c, UWU, axes=1))
            PJ = P @ Jc
            return Jc, P, -ln, PJ, ar.symmetric(xp.tensordot(c, VWV, axes=1) - Jc.mT @ PJ)

        # Types are taken together whose matrices fill 8 MB, which stay in the caches of a core.
        step = max(1, (1 << 23) // (8 * size**2 + 1)) if host else max(len(types), 1)
        parts = [slice(a, a + step) for a in range(0, max(len(types), 1), step)]
        products = ar.in_order(of_types, parts, 2.0 * len(types) * model.nx * size**2 if host else 0)
        # (C, nx, ny), (C, nx, nx), (C,), (C, nx, ny), (C, ny, ny)
        self.J, self.P, self.ln_P, self.PJ, self.G = (xp.concat(a) for a in zip(*products, strict=True))
        self.diagonals = (VWV[0, ...], J[0, ...], UWU[0, ...], types[:, 0]) if model.K == 1 and host else None

    def stacked(self, present: Ints, c: int) -> tuple[Array, Array]:
        """WU_c (K_c d, nx) and B_c = WV_c - WU_c P_c J_c (K_c d, ny) of the kinds present in type c."""
        xp = ar.namespace(self.WV)
        K, d, _ = self.WU.shape
        # Types with all kinds share the memory of WU and WV, since there may be many of them.
        chosen = (a if len(present) == K else ar.take(a, present) for a in (self.WU, self.WV))
        WU, WV = (xp.reshape(a, (len(present) * d, a.shape[2])) for a in chosen)
        return WU, WV - WU @ self.PJ[c, ...]
