"""Fewer recordings than dimensions: EM in the span of the recordings.

Let B (d, r) be an orthonormal basis of the span of the recordings about the offset. With a floor under the noise, each
step of EM keeps the form

    V = B V_s,   U = B U_s,   mu = offset + B mu_s,   W^-1 = B W_s^-1 B' + floor (I - BB')

since C and S of `duoplda.model.em` lie in the span, and noise outside of it is raised to the floor. So EM runs on the
statistics of B'(phi - offset) in r dimensions, and the likelihoods differ by a constant. More than r factors are not
needed: they would have no loadings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from duoplda import arrays as ar
from duoplda.arrays import Array
from duoplda.model.parameters import Model
from duoplda.model.statistics import Statistics
from duoplda.observer import Observer


@dataclass(frozen=True, eq=False)
class Span:
    """The span of the recordings of some statistics."""

    offset: Array  # (d,)
    basis: Array  # (d, r)
    floor: float
    n_recordings: float

    @classmethod
    @ar.reproducible()
    def of(cls, stats: Statistics, floor: float) -> Span | None:
        """The span, or None where there are at least as many recordings as dimensions."""
        N = int((stats.counts @ stats.types.sum(axis=1)).sum())
        if stats.d <= N:
            return None
        xp = ar.namespace(stats.offset)
        s, T = xp.linalg.eigh(ar.symmetric(xp.sum(stats.S, axis=0)))  # in rising order
        r = min(int(xp.sum(xp.astype(s > 1e-15 * stats.d * s[-1], xp.int64))), N)
        return cls(stats.offset, T[:, stats.d - r :], floor, stats.n_recordings)

    @property
    def r(self) -> int:
        """The number of its dimensions."""
        return self.basis.shape[1]

    @ar.reproducible()
    def statistics(self, stats: Statistics) -> Statistics:
        """Statistics of the recordings in coordinates of the span."""
        whole = replace(stats, folds=(), sample=None)
        return whole.mapped(ar.to_numpy(self.offset)[None, :], ar.to_numpy(self.basis))

    def ln(self, ln_likelihood: Any) -> Any:
        """The log-likelihood in all dimensions: outside of the span, recordings are 0, their variance the floor."""
        return ln_likelihood - self.n_recordings * (len(self.offset) - self.r) * math.log(2 * math.pi * self.floor) / 2

    @ar.reproducible()
    def model(self, model: Model, ny: int, nx: int) -> Model:
        """The model in all dimensions, with ny and nx factors; those beyond the span's have no loadings."""
        xp = ar.namespace(self.basis)
        B = self.basis
        d = B.shape[0]

        def loadings(L: Array, n: int) -> Array:
            return xp.concat([B @ L, ar.zeros((d, n - L.shape[1]), B)], axis=1)

        outside = ar.eye(d, B) - B @ B.T
        W = ar.symmetric(B @ model.W @ B.T + outside / self.floor)
        return replace(model, mu=self.offset + model.mu @ B.T, V=loadings(model.V, ny), U=loadings(model.U, nx), W=W)


class SpanObserver(Observer):
    """Gives the following observer models in all dimensions; the states of EM are those in the span."""

    def __init__(self, following: Observer, span: Span, ranks: tuple[int, int]):
        self.following = following
        self.span = span
        self.ranks = ranks

    def iteration(self, iteration: int, log_likelihood: float, model: Model) -> bool:
        whole = self.span.model(model, *self.ranks)
        return super().iteration(iteration, self.span.ln(log_likelihood), whole)
