"""Shrinkage for training with few speakers: each covariance is moved towards the shape of the total covariance.

How far is chosen by the likelihood of held-out speakers, and so are the numbers of factors.

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

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Array, cholesky, eye, namespace, reproducible, spd_inverse, symmetric
from duoplda.model.anova import total_covariance
from duoplda.model.estep import EStep
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


class Choice(NamedTuple):
    """What held-out speakers chose."""

    shrinkage: Shrinkage
    scales: Scales = Scales()
    calibration: tuple[float, float] | None = None  # scale and offset of the ratios, where trials chose
    cost: float | None = None  # of held-out trials, where they chose; a system without information costs 1


Progress = Callable[[int, int], None]  # gets the number of folds that are done, and of all
GRID = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
START = Shrinkage(0.5, 0.1, 0.1, 0.1)
CLIMB = ("noise", "session", "speaker", "channel")  # most of the likelihood is about the noise


def guess(stats: Statistics) -> Shrinkage:
    """A guess at the best shrinkage: d / (d + n) for a covariance in d dimensions that n differences tell of."""
    n = np.array([stats.n_speakers, stats.n_sessions, stats.n_recordings])
    shares = stats.d / (stats.d + np.diff(n, prepend=0.0))
    speaker, session, noise = np.round(np.clip(shares, 0.005, 0.95), 3).tolist()
    return Shrinkage(speaker, session, noise, START.channel)


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


class HeldOut:
    """Log-likelihood per recording of each fold's speakers under models that are trained, once, on the other folds."""

    @reproducible()
    def __init__(self, stats: Statistics, train: Callable[[Statistics], Model], progress: Progress | None = None):
        folds = [replace(f, sample=None) for f in stats.folds if len(f.speaker_ids)]
        self.parts = []
        self.path = dict[Any, float]()
        self.start = guess(stats)
        for i, fold in enumerate(folds):
            rest = Statistics.sum([f for f in folds if f is not fold])
            self.parts.append((EStep(fold), Shrinker(train(rest), target(rest), rest.N)))
            if progress is not None:
                progress(i + 1, len(folds))

    @staticmethod
    def possible(stats: Statistics) -> bool:
        """At least two folds, each with two speakers or more in the others."""
        sizes = [len(f.speaker_ids) for f in stats.folds if len(f.speaker_ids)]
        return len(sizes) >= 2 and sum(sizes) - max(sizes) >= 2

    def value(self, key: Any, change: Callable[[Shrinker], Model]) -> float:
        """That of the changed models, kept under `key`."""
        if key not in self.path:
            total = n = 0.0
            for e_step, fold in self.parts:
                total += e_step.ln_likelihood(change(fold))
                n += e_step.stats.n_recordings
            self.path[key] = total / n
        return self.path[key]

    def shrinkage(self, free: tuple[str, ...]) -> Choice:
        """The best amounts on the grid, those in `free` being climbed one at a time from near the guess at them."""

        def value(a: Shrinkage) -> float:
            return self.value(a, lambda fold: fold(a))

        at = Shrinkage(**{name: min(GRID, key=lambda a: abs(a - getattr(self.start, name))) for name in free})
        for _ in range(4):
            before = at
            for name in sorted(free, key=CLIMB.index):
                i = _climb(GRID.index(getattr(at, name)), len(GRID), lambda j: value(at._replace(**{name: GRID[j]})))  # noqa: B023
                at = at._replace(**{name: GRID[i]})
            if at == before:
                break
        return Choice(at)

    def cost(self, a: Shrinkage) -> float:
        """Minus the log-likelihood per recording at given amounts."""
        return -self.value(a, lambda fold: fold(a))

    def ranks(self, ny: int | None, nx: int | None, full: tuple[int, int]) -> tuple[int, int]:
        """The best numbers of factors: those that are given stay, None is chosen, up to `full`."""
        return best_ranks(ny, nx, full, lambda r: self.value(r, lambda fold: truncate(fold.model, *r)))


def best_ranks(ny: int | None, nx: int | None, full: tuple[int, int], value: Callable[..., float]) -> tuple[int, int]:
    """The numbers of factors of the highest value: those that are given stay, None is chosen, up to `full`."""
    shares = (1, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.05)

    def grid(given: int | None, n: int) -> list[int]:
        if given is not None or not n:
            return [n if given is None else given]
        return sorted({max(1, round(n * share)) for share in shares})

    of_y = grid(ny, full[0])
    of_x = grid(nx, full[1])
    best = (of_y[-1], of_x[-1])
    for _ in range(2):
        best = max(((n, best[1]) for n in of_y), key=value)
        best = max(((best[0], n) for n in of_x), key=value)
    return best


def _climb(i: int, n: int, value: Callable[[int], float]) -> int:
    """The top that is reached from place i of n by going up."""
    for step in (1, -1):
        start = i
        while 0 <= i + step < n and value(i + step) > value(i):
            i += step
        if i != start:
            break
    return i
