"""Fewer iterations of EM: extrapolation from its last steps (Anderson's mixing, type II)."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np

from duoplda import arrays as ar
from duoplda.arrays import Array
from duoplda.model.parameters import Model, floored


class Anderson:
    """Extrapolates EM from its last steps t -> g(t), the parameters being one vector.

    With f = g(t) - t, the next point is g - sum_i a_i (g_{i+1} - g_i), where a is the least-squares fit of f by the
    differences f_{i+1} - f_i: if g were linear, f would be 0 there. If the steps grow along a line, the point where f
    would be 0 lies behind them and is no maximum (a saddle, for example). Then the next point is ahead on the line,
    four times as many steps away as the last move was long.
    """

    def __init__(self, steps: tuple[Array, ...], images: tuple[Array, ...], like: Array, depth: int, floor: float):
        self.depth = depth
        self.floor = floor
        self.steps = tuple(ar.put(v, like) for v in steps)  # f of the last iterations, up to depth + 1
        self.images = tuple(ar.put(v, like) for v in images)  # g

    def forget(self) -> None:
        """Forget all steps, so that the next points follow from steps to come."""
        self.steps = ()
        self.images = ()

    def ahead(self, model: Model, plain: Model) -> Model | None:
        """A model ahead of the plain step from `model`; None if there is none, or no steps to extrapolate from."""
        if not self.depth:
            return None
        t = _pack(model)
        g = _pack(plain)
        self.steps = (*self.steps, g - t)[-self.depth - 1 :]
        self.images = (*self.images, g)[-self.depth - 1 :]
        if len(self.steps) < 2:
            return None
        f_before, f = self.steps[-2:]
        moved = t - (self.images[-2] - f_before)  # by the last iteration
        size = float(f_before @ f_before)
        along = float(f_before @ moved)
        on_a_line = along > 0 and along**2 >= (1 - 1e-9) * size * float(moved @ moved)
        if on_a_line and float(f_before @ f) > size:
            # No diagonal entry of the factor of a noise covariance may fall by more than half: at 0 it is singular.
            factors = (ar.to_numpy(v[-math.prod(plain.W.shape) :]).reshape(plain.W.shape) for v in (g, f))
            now, change = (np.diagonal(a, axis1=1, axis2=2) for a in factors)
            until_half = float(np.min(now / 2 / np.maximum(-change, 1e-300)))
            return self._model(g + min(4 * along / size, until_half) * f, plain)
        dF = ar.namespace(t).stack([b - a for a, b in itertools.pairwise(self.steps)])
        inner = ar.to_numpy(dF @ dF.T)
        rhs = ar.to_numpy(dF @ f)
        scale = np.sqrt(np.maximum(np.diagonal(inner), 1e-300))
        a = np.linalg.lstsq(inner / np.outer(scale, scale), rhs / scale, rcond=1e-12)[0] / scale
        for weight, (before, after) in zip(a.tolist(), itertools.pairwise(self.images), strict=True):
            g = g - weight * (after - before)
        return self._model(g, plain)

    def _model(self, t: Array, like: Model) -> Model | None:
        shapes = [a.shape for a in (like.mu, like.V, like.U, like.W)]
        ends = np.cumsum([0, *map(math.prod, shapes)]).tolist()
        parts = [t[a:b] for a, b in itertools.pairwise(ends)]
        mu, V, U, factor = (ar.namespace(t).reshape(p, shape) for p, shape in zip(parts, shapes, strict=True))
        try:
            W = ar.spd_inverse(floored(factor @ factor.mT, self.floor))[0]
        except ar.NotPositiveDefinite:
            return None
        return replace(like, mu=mu, V=V, U=U, W=W)


def _pack(model: Model) -> Array:
    """The parameters as one vector, W_k by the Cholesky factor of its inverse, so that any vector is a model."""
    xp = ar.namespace(model.V)
    factor = ar.cholesky(ar.spd_inverse(model.W)[0])
    return xp.concat([xp.reshape(a, (-1,)) for a in (model.mu, model.V, model.U, factor)])
