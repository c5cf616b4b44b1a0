"""Ragged sides against ragged sides by products: the Lambda_3^-1 of all pairs of patterns, from those of a few.

With M(n) = Lambda(n)^-1 and the letters of `duoplda.trials.sides`, for pivots s_1 .. s_k among the patterns,

    M(a + b) ~ sum_ij alpha_i(a) alpha_j(b) M(s_i + s_j),    ln|Lambda(a + b)| likewise,

since each number of M(a + b) is a smooth function of a few counts of a. The alpha are those that are right for simple
functions of this kind: 1 / (1 + lambda_d(a) + lambda_d(p)), lambda the diagonal of Lambda - I in the eigenvectors of
its mean, for all d and a few p. They are combinations of functions psi_l, fewer and fewer of which count, and the
M(s_i + s_j) are combinations of some matrices M_k, so that

    gamma_a'M(a + b) gamma_b ~ sum_l [psi_l(a) gamma_a] . x_l(b),    x_l(b) = sum_k [sum_m D_lmk psi_m(b)] M_k gamma_b

is a product of inner size r ny for r functions, most of it in single precision. Sides with like counts need fewer, so
that ours are divided into parts, each with functions of its own. What sides have in common is taken from them first,
as small numbers have small errors: for any y,

    gamma'M gamma = (gamma - Lambda y)'M (gamma - Lambda y) + 2 gamma'y - y'Lambda y.

Pairs that are held out are computed exactly, and show what error is left.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Array, NotPositiveDefinite, eye, namespace, put, reproducible, take, to_numpy
from duoplda.data.labels import Ints
from duoplda.trials.ratios import Lambdas, PatternRows, common, merged, put_cells, run
from duoplda.trials.sides import Sides
from duoplda.trials.tables import empty

Floats = NDArray[np.float64]

WORTH = 1 << 24  # pairs of patterns times factors: fewer are inverted one by one
EXACT = 1e-8  # the largest error, as a share of the range of the scores, where no tolerance is granted
MARGIN = 6  # pairs held out may be off by the goal over this: the worst of all pairs are several times as far off
# Pivots: at least, at most, how many more, and how often
FEWEST = 8
MOST = 384
MORE = 1.2
TRIES = 4
HOPELESS = 300  # times the goal: more pivots will not do
MATRICES = 320  # M_k, at most
# Simple functions; ln-determinants; rows that a pivoted QR looks at first
SIMPLE = 450
LOGS = 8
SOME = 1000
# Numbers of each M, and combinations of these, that are looked at
PROBES = 450
MIXED = 16
# Functions, and matrices, that add less than the goal over this are left out at once
LITTLE = 10_000
TINY = 2000
# Held out; sides that stand out
PAIRS = 576
ENDS = 24
# Sides and rows at a time; bytes of columns
SIDES = 128
ROWS = 512
BYTES = 1 << 27
# The rounding of single precision; the largest numbers, of their mean size
SINGLE = 6e-8
FAR = 3
# Sides that share functions, at most; what they may be off, as a share of the goal
PART = 640
SHARE = 6


class Skeleton:
    """Rows of Z (m, f) as combinations of a few of them, by a pivoted QR.

    That looks at some rows, and again at these and those that would need large coefficients.
    """

    def __init__(self, Z: Floats, most: int, rng: np.random.Generator):
        from scipy.linalg import qr

        some = np.sort(rng.permutation(len(Z))[:SOME])
        for _ in range(3 if len(some) < len(Z) else 1):
            Q, self.R, order = qr(Z[some].T, mode="economic", pivoting=True, check_finite=False)
            size = np.abs(np.diagonal(self.R))
            r = min(most, int(np.sum(size > 1e-14 * size[0])))
            self.rows: Ints = some[order[:r]]  # best first
            # How far each is from those before it
            self.size = size[:r]
            self.at = Z @ Q[:, :r]
            sums = np.abs(self.coefficients(r)).sum(axis=1)
            some = np.union1d(some, np.argsort(-sums, kind="stable")[: SOME // 4])

    def coefficients(self, k: int) -> Floats:
        """(m, k) those of the first k."""
        from scipy.linalg import solve_triangular

        return solve_triangular(self.R[:k, :k], self.at[:, :k].T, check_finite=False).T


class Pivots:
    """Pivots among patterns with counts n (P, C), best first, and what M is for sums of two of them.

    Coordinates are those in which gamma of a side with the mean counts is of unit size. Lambda is inverted in others,
    in which that of two such sides is I, as errors of inverses grow with the range of eigenvalues.
    """

    def __init__(self, G: Array, n: Ints):
        host = to_numpy(G)
        self.n = n
        self.rng = np.random.default_rng(0)
        mean, E = np.linalg.eigh(np.tensordot(n.mean(axis=0), host, axes=1))
        self.mean = mean = np.maximum(mean, max(1e-9 * mean[-1], 1e-12))
        scale = np.sqrt(mean * (1 + mean))
        ny = len(mean)
        # Gamma @ basis are the coordinates
        self.basis = E / scale
        even = np.sqrt(1 + 2 * mean)
        self.turned = E.T @ host @ E
        scaled = self.turned / even[:, None] / even
        self.ln_scale = 2 * np.log(even).sum()
        self.stretch = put((scale / even)[:, None], G)  # (ny, 1) from the coordinates of the inverses
        self.diagonals = np.diagonal(self.turned, axis1=1, axis2=2)
        self.G = put(np.concatenate([(np.diag(1 / even**2) - np.eye(ny))[None], scaled]), G)  # of counts (1, n)
        self.size = 1 + n @ np.trace(host, axis1=1, axis2=2) / ny  # (P,) that of Lambda
        self.probes = put(self.rng.standard_normal((ny, min(ny, -(-PROBES // ny)))), G)
        self.best = Skeleton(self._simple(n), MOST, self.rng)
        self.sums = n[:0]
        self.sketch = np.zeros((0, ny * self.probes.shape[1]))
        self.ln = np.zeros(0)
        self.place = np.full((len(self.best.rows),) * 2, -1)  # of sums of two pivots among these

    def _simple(self, n: Ints) -> Floats:
        """(m, f) simple functions of counts n (m, C): those of the head of this file, 1, and some ln-determinants.

        With 1 / (1 + lambda_d) come numbers off the diagonal, as they are for two directions alone.
        """
        ny = len(self.mean)
        order = np.argsort(self.size, kind="stable")

        def other(shares: Floats) -> Ints:
            return self.n[order[(shares * (len(self.n) - 1)).astype(int)]]

        Z = [np.ones((len(n), 1))]
        far = max(3, -(-SIMPLE // ny))
        for t, p in enumerate([0 * n[0], *other(np.linspace(0.02, 0.98, far - 1))]):
            shift = 1 + t * ny // far
            beside = (n + p) @ np.diagonal(np.roll(self.turned, -shift, axis=2), axis1=1, axis2=2)
            own = 1 + (n + p) @ self.diagonals
            next_ = np.roll(own, -shift, axis=1)
            mean = self.mean, np.sqrt(self.mean * np.roll(self.mean, -shift))
            Z += [mean[0] / own, mean[1] * beside / (own * next_ - beside**2)]
        Z += [self.ln_diagonal(n + p)[:, None] for p in other(np.linspace(0, 1, LOGS))]
        return np.concatenate([z / max(np.abs(z).max(), 1e-300) for z in Z], axis=1)

    def ln_diagonal(self, n: Ints) -> Floats:
        """(m,) the ln-determinant of the diagonal of Lambda, which nearly is that of Lambda."""
        return np.log(1 + n @ self.diagonals).sum(axis=1)

    def inverses(self, n: Ints, use: Callable[[int, Array], None]) -> Floats:
        """`use(u, M(n[u]))` for counts n (m, C), not yet stretched; (m,) ln|Lambda(n)|."""
        found = Lambdas(self.G, np.column_stack([np.ones(len(n), np.int64), n]), keep=False)
        found.each(np.arange(len(n)), use)
        return to_numpy(found.ln) + self.ln_scale

    def sketches(self, n: Ints) -> tuple[Floats, Floats]:
        """(m, ..) M(n) times the probes, as rows, and (m,) ln|Lambda(n)|."""
        out = empty((len(n), *self.probes.shape), self.G)
        probes = self.stretch * self.probes

        def use(u: int, M: Array) -> None:
            out[u, ...] = self.stretch * (M @ probes)

        ln = self.inverses(n, use)
        return to_numpy(out).reshape(len(n), -1), ln

    def grow(self, k: int, least: float) -> None:
        """Take the first k: alpha (P, k), and sketches and ln-determinants of sums of two of them.

        Not of all: functions get smaller, and products of two that are `least` times the last one do not count.
        """
        self.k = k
        self.alpha = self.best.coefficients(k)
        size = self.best.size[:k]
        self.counts = size[:, None] * size >= least * size[0] * size[-1]
        new = np.argwhere(np.tril(self.counts) & (self.place[:k, :k] < 0))
        i, j = new.T
        self.place[i, j] = self.place[j, i] = len(self.sums) + np.arange(len(new))
        n = self.n[self.best.rows[i]] + self.n[self.best.rows[j]]
        sketch, ln = self.sketches(n)
        self.sums = np.concatenate([self.sums, n])
        self.sketch = np.concatenate([self.sketch, sketch])
        self.ln = np.concatenate([self.ln, ln - self.ln_diagonal(n)])
        self.L = self.best.R[:k, :k].T
        self.L_inverse = np.tril(np.linalg.inv(self.L))

    def surplus(self, numbers: Floats) -> Floats:
        """(.., k, k) numbers (.., sums) of M(s_i + s_j) in Newton's form, where each depends on earlier pivots only.

        With alpha = f L^-1, M(a + b) ~ sum_ij surplus_ij f_i(a) f_j(b); those that do not count are 0.
        """
        F = np.where(self.counts, numbers[..., self.place[: self.k, : self.k]], 0.0)
        return np.where(self.counts, self.L_inverse @ F @ self.L_inverse.T, 0.0)

    def psi(self, worth: float, least: float) -> tuple[Floats, Floats, Floats]:
        """(P, r) functions, those first that count most, and T^-1 (r, k), alpha = psi T^-1; ln-determinants.

        An error of M is `worth` as much as one of ln|Lambda|; those that add less than `least` to that are left out.
        """
        some = self.sketch @ self.rng.standard_normal((self.sketch.shape[1], MIXED))
        weight = (self.size / self.size.mean()) ** 0.5
        n = self.n[self.best.rows[: self.k]]
        own = weight[self.best.rows[: self.k]]
        Y = worth / MIXED**0.5 * own * (self.L @ self.surplus(some.T) @ self.L.T)  # (MIXED, k, k)
        ln = self.L @ self.surplus(self.ln) @ self.L.T
        for i in range(self.k):
            ln[i] += self.ln_diagonal(n + n[i])
        R = np.asarray(np.linalg.qr(np.concatenate([*Y, ln], axis=1).T, mode="r")).T
        rows = np.concatenate([weight[:, None] * (self.alpha @ R), (len(weight) / self.k) ** 0.5 * own[:, None] * R])
        _, s, V = np.linalg.svd(np.linalg.qr(rows, mode="r"))
        r = max(1, int(np.sum(s > least * np.sqrt(len(weight) * self.k))))
        T = R @ V.T
        T /= np.maximum(np.abs(self.alpha @ T).max(axis=0), 1e-300)
        return self.alpha @ T[:, :r], np.linalg.inv(T)[:r], ln


def _lengths(rows: Array) -> Floats:
    return np.sqrt(to_numpy(namespace(rows).sum(rows * rows, axis=1)))


def _count(terms: Floats, off: Floats, limit: float) -> int:
    """How many terms (pairs, k) must be added up, so that errors stay below a limit; they are `off` if all are."""
    rest = np.cumsum(terms[:, ::-1], axis=1)[:, ::-1]
    return int(np.max(np.flatnonzero(np.abs(off[:, None] - rest).max(axis=0) > limit), initial=0)) + 1


def _halves(rows: Floats, at: Ints) -> list[Ints]:
    """Divide rows with unlike directions by halves, until there are few: at[..] of each part, in order."""
    if len(at) <= PART:
        return [at]
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1), 1e-300)[:, None]
    unit = unit - unit.mean(axis=0)
    order = np.argsort(unit @ np.linalg.eigh(unit.T @ unit)[1][:, -1], kind="stable")
    halves = (np.sort(x) for x in np.array_split(order, 2))
    return [part for half in halves for part in _halves(rows[half], at[half])]


@dataclass(frozen=True, eq=False)
class Part:
    """Some of our sides, and functions that do for them: psi(a) . x(b) ~ own(a) . C'x(b)."""

    at: Ints  # (n,) places among ours
    own: Floats  # (n, q) those first that count most
    C: Floats  # (r, q)
    double: int  # so many are not in single precision


class Right(NamedTuple):
    """C'x of sides of the other set, (m, q ny), for one of our parts: a few functions as they are, others as single."""

    part: Part
    C: tuple[Array, Array]
    wide: Array
    narrow: Array


class Crossed:
    """Ratios of ragged sides of two sets, by products.

    Only the patterns of the second set are looked at, except for the pairs that are held out, which show the error.
    """

    @reproducible()
    def __init__(self, ours: PatternRows, b: Sides, pb: range, tolerance: float | None = None):
        """`ok`: the error is below the tolerance (nats) or, if that is None, a share `EXACT` of the scores' range."""
        self.a = ours.side
        self.pb = pb
        self.ok = False
        self.G, of_a, of_b = common(self.a.groups, b.groups)
        parts = of_a[ours.patterns.start : ours.patterns.stop], of_b[pb.start : pb.stop]
        n, which = np.unique(np.concatenate(parts), axis=0, return_inverse=True)
        of_ours, self.of_theirs = np.split(which.reshape(-1), [len(ours.patterns)])
        self.rows = np.sort(ours.rows)
        self.pattern: Ints = of_ours[self.a.groups.index[self.rows] - ours.patterns.start]  # of each of our rows
        try:
            self._search(Pivots(self.G, n), b, tolerance)
        except (np.linalg.LinAlgError, NotPositiveDefinite):  # pairs may do, one by one
            return

    @staticmethod
    def pays(ny: int, pairs: int, tolerance: float | None) -> bool:
        """Whether so many pairs of patterns are worth the search for pivots, which is shorter with a tolerance."""
        return pairs * ny >= WORTH // (1 if tolerance is None else 4)

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        parts = [x for part in self.parts for x in (part.own, part.C)]
        return 8 * sum(int(np.prod(x.shape)) for x in (self.M, self.D, self.psi, self.gamma, self.small, *parts))

    # -- pivots

    def _search(self, p: Pivots, b: Sides, tolerance: float | None) -> None:
        """Take more and more pivots until pairs that are held out are near enough."""
        self._center(p)
        self.gamma, self.base = self._sides(self.a, self.rows, self.pattern)
        at, theirs = self._held_out(p, b, self._rows(b, slice(0, len(b))))
        exact = to_numpy(merged(self.a, b, self.rows[at], theirs))
        spread = float(np.ptp(exact))
        goal = (EXACT * spread if tolerance is None else tolerance) / MARGIN
        size = _lengths(take(self.gamma, at)) * _lengths(self._sides(b, theirs, self._of(b, theirs))[0])
        if not (0 < goal < np.inf and size.max() < 1e20):
            return
        weight = size / (len(p.basis) * p.sketch.shape[1]) ** 0.5  # of errors of sketches in ratios
        share = goal / max(spread, goal)
        most = len(p.best.rows)
        # Found by trying
        k = max(FEWEST, int(np.sum(p.best.size > share**1.5 * p.best.size[0])))
        self.error = 0.0
        if most == MOST and p.best.size[-1] > share**1.3 * p.best.size[0]:  # no hope
            return
        for more in range(TRIES):
            p.grow(min(int(k * MORE**more), most), share**0.75)
            self._build(p, goal, weight)
            self.ok = self._cut(b, at, theirs, exact, goal)
            if self.ok or p.k == most or not self.error < HOPELESS * goal:
                return

    def _center(self, p: Pivots) -> None:
        """y of the head of this file, for our sides, and Lambda y by pattern, where half of I is for each side."""
        G = self.G
        mean = p.n[self.pattern].mean(axis=0)
        xp = namespace(G)
        g = take(self.a.gamma, self.rows)
        Lambda = eye(G.shape[-1], G) + xp.tensordot(put(mean, G), G, axes=1)
        self.y = xp.linalg.solve(Lambda, xp.mean(g, axis=0)[:, None])[:, 0]
        self.basis = put(p.basis, G)
        self.Lambda_y = put(p.n.astype(float), G) @ (G @ self.y) + self.y / 2  # (P, ny)

    def _held_out(self, p: Pivots, b: Sides, theirs: Ints) -> tuple[Ints, Ints]:
        """Places of ours and rows of b: any, those with the fewest counts and the largest gamma, with each of these."""
        of_b = self._of(b, theirs)
        kinds = []
        for pattern, g in ((self.pattern, self.gamma), (of_b, self._sides(b, theirs, of_b)[0])):
            ends = (np.argsort(x, kind="stable")[:ENDS] for x in (p.size[pattern], -_lengths(g)))
            kinds.append([np.arange(len(pattern)), *ends])
        found = [[p.rng.choice(x, PAIRS // 9) for x in pair] for pair in product(*kinds)]
        at, other = (np.concatenate(x) for x in zip(*found, strict=True))
        return at, theirs[other]

    def _build(self, p: Pivots, goal: float, weight: Floats) -> None:
        """The functions of all patterns, the M_k, and D; errors of M times the weights are those of ratios."""
        ny = len(p.basis)
        self.psi, inverse, ln = p.psi(2 * float(np.median(weight)), goal / LITTLE)
        found = Skeleton(p.sketch, MATRICES, p.rng)
        rho = max(1, int(np.sum(TINY * weight.max() * found.size > goal)))
        C = found.coefficients(rho)
        A = inverse @ p.L
        r = len(inverse)
        self.M = empty((ny, rho, ny), self.G)
        D = np.empty((rho, r, r))

        def use(u: int, M: Array) -> None:
            self.M[:, u, :] = p.stretch * M * p.stretch.T

        p.inverses(p.sums[found.rows[:rho]], use)
        for t in range(0, rho, 32):
            D[t : t + 32] = A @ p.surplus(C[:, t : t + 32].T) @ A.T
        self.D = put(np.ascontiguousarray(np.moveaxis(D, 0, 2)), self.G)  # (r, r, rho)
        self.ln = inverse @ ln @ inverse.T
        self.r = r

    def _cut(self, b: Sides, at: Ints, theirs: Ints, exact: Floats, goal: float) -> bool:
        """Whether pairs are near enough; then leave out functions that do not count, and take others as single."""
        of_a = self.pattern[at]
        of_b = self._of(b, theirs)
        g = take(self.gamma, at)
        psi_a = self.psi[of_a]
        psi_b = self.psi[of_b]
        h, base = self._sides(b, theirs, of_b)
        # what each function of a, and of b, adds to (gamma_3'Lambda_3^-1 gamma_3 - ln|Lambda_3|) / 2
        by_a = psi_a * (to_numpy(self._transformed(g + h, of_b, 0)[1]) - psi_b @ self.ln / 2)
        by_b = psi_b * (to_numpy(self._transformed(g + h, of_a, 0)[1]) - psi_a @ self.ln / 2)
        off = by_a.sum(axis=1) + to_numpy(take(self.base, at) + base) - exact
        self.error = float(np.abs(off).max())
        if not self.error <= goal:
            return False
        x = to_numpy(self._transformed(h, of_b, len(self.ln))[0])
        cross = psi_a * (x @ to_numpy(g)[:, :, None])[:, :, 0]
        whole = (self.psi, self.ln, self.D)
        columns = np.arange(len(at))
        ours, place = np.unique(at, return_inverse=True)
        for limit in (1.1 * goal, max(self.error, goal / 2), 0.0):  # if what is left out matters after all, less is
            self.r, *others = (_count(terms, off, limit) for terms in (cross, by_a, by_b))
            most = max(self.r, *others)
            self.psi = whole[0][:, :most]
            self.ln = whole[1][:most, :most]
            self.D = whole[2][:most, :most, :] + 0.0
            self.__dict__.pop("small", None)  # that of other functions
            self._divide(x[::2, : self.r, :], limit, goal)
            found = empty((len(ours), len(at)), self.gamma)
            self._block(found, b, theirs, columns, ours)  # as it will be computed
            if np.abs(to_numpy(found)[place, columns] - exact).max() <= 1.5 * goal:
                return True
        return False

    def _divide(self, x: Floats, limit: float, goal: float) -> None:
        """Divide ours into parts, each with as few functions as do; x (m, r, ny) are those of some of theirs.

        For P = |gamma| psi and x = Q R, with P R' = A diag(s) B', they are psi R'B and x P'A diag(1 / s). Each side of
        ours may be off by a share of the limit, as a root mean square over theirs.
        """
        m, r, ny = x.shape
        R = np.linalg.qr(np.moveaxis(x, 1, 2).reshape(m * ny, r), mode="r") / m**0.5
        P = _lengths(self.gamma)[:, None] * self.psi[self.pattern, :r]
        self.parts = list[Part]()
        for at in _halves(P @ R.T, np.arange(len(P))):
            A, s, B = np.linalg.svd(P[at] @ R.T, full_matrices=False)
            rest = np.sqrt(np.cumsum((A * s)[:, ::-1] ** 2, axis=1).max(axis=0))[::-1]  # from each on
            q = max(1, int(np.sum((rest > limit / SHARE * ny**0.5) & (s > 1e-12 * s[0]))))
            double = int(np.sum(FAR * SINGLE * np.cumsum(s[:q][::-1])[::-1] > goal / 4 * len(at) ** 0.5))
            C = P[at].T @ (A[:, :q] / np.maximum(s[:q], 1e-300))
            self.parts.append(Part(at, self.psi[self.pattern[at], :r] @ (R.T @ B[:q].T), C, double))

    # -- sides

    def _rows(self, b: Sides, part: slice) -> Ints:
        """Rows of b, of those in the slice, that have our patterns."""
        index = b.groups.index[part]
        return part.start + np.flatnonzero((index >= self.pb.start) & (index < self.pb.stop))

    def _of(self, b: Sides, rows: Ints) -> Ints:
        """The patterns of rows of b."""
        return self.of_theirs[b.groups.index[rows] - self.pb.start]

    def _sides(self, s: Sides, rows: Ints, pattern: Ints) -> tuple[Array, Array]:
        """gamma - Lambda y of some sides, in coordinates, and the rest of ratios: y'gamma - y'Lambda y / 2 - Q."""
        g = take(s.gamma, rows)
        Lambda_y = take(self.Lambda_y, pattern)
        return (g - Lambda_y) @ self.basis, (g - Lambda_y / 2) @ self.y - take(s.Q, rows)

    def _transformed(self, g: Array, pattern: Ints, r: int) -> tuple[Array, Array]:
        """x (m, r, ny) of sides with gamma g (m, ny), and their own terms gamma'x / 2 (m, k) of all functions."""
        xp = namespace(g)
        ny, rho, _ = self.M.shape
        k, _, _ = self.D.shape
        m = g.shape[0]
        y = xp.reshape(g @ xp.reshape(self.M, (ny, rho * ny)), (m, rho, ny))
        W = xp.reshape(put(self.psi[pattern], g) @ xp.reshape(self.D, (k, k * rho)), (m, k, rho))
        return W[:, :r, :] @ y, (W @ (y @ g[:, :, None]))[:, :, 0] / 2

    def _share(self, work: Callable[[slice, Any], None], n: int, r: int) -> None:
        """Work on n sides, some of them at a time, in threads of the host."""
        host = namespace(self.M) is np
        ny, rho, _ = self.M.shape
        k = self.D.shape[0]
        step = SIDES if host else 8 * SIDES
        flops = 2.0 * n * rho * (ny * ny + k * k + r * ny)
        run(work, [slice(t, min(t + step, n)) for t in range(0, n, step)], flops if host else 0, lambda: None)

    @cached_property
    def small(self) -> Array:
        return self._small(np.arange(len(self.rows)))

    def _small(self, at: Ints) -> Array:
        """(n, 2 k + 2) what ours have beside psi gamma: [own, psi, base, 1]."""
        k = self.D.shape[0]
        g = take(self.gamma, at)
        pattern = self.pattern[at]
        out = empty((len(at), 2 * k + 2), g)
        out[:, k : 2 * k] = put(self.psi[pattern], out)
        out[:, 2 * k + 1] = 1.0
        out[:, 2 * k] = take(self.base, at)

        def work(of: slice, _: None) -> None:
            out[of, :k] = self._transformed(g[of, :], pattern[of], 0)[1]

        self._share(work, len(at), 0)
        return out

    # -- products

    def fill(self, out: Array, b: Sides, part: slice) -> None:
        """The columns for the sides of b in the slice that have our patterns."""
        rows = self._rows(b, part)
        width = 4 * self.gamma.shape[1] * sum(p.own.shape[1] for p in self.parts)
        step = max(SIDES, BYTES * (1 if namespace(self.M) is np else 16) // width)
        for t in range(0, len(rows), step):
            self._block(out, b, rows[t : t + step], rows[t : t + step] - part.start)

    def _block(self, out: Array, b: Sides, theirs: Ints, columns: Ints, ours: Ints | None = None) -> None:
        """Some columns: [own gamma, own, psi, base, 1] of ours times [C'x, psi, own - ln, 1, base] of theirs.

        Of the first all but a few functions are in single precision. With `ours`, places of some, `out` has their rows.
        """
        xp = namespace(self.M)
        ny = self.gamma.shape[1]
        k = self.D.shape[0]
        m = len(theirs)
        like = xp.astype(self.M[:0, ...], xp.float32)
        pattern = self._of(b, theirs)
        small = empty((m, 2 * k + 2), self.M)
        g, base = self._sides(b, theirs, pattern)
        small[:, :k] = put(self.psi[pattern], small)
        small[:, 2 * k] = 1.0
        small[:, 2 * k + 1] = base
        ln = put(self.psi[pattern] @ self.ln / 2, small)
        mine, rows = (self.small, self.rows) if ours is None else (self._small(ours), np.arange(len(ours)))
        place = np.full(len(self.rows), -1)  # of ours, among those
        place[slice(None) if ours is None else ours] = np.arange(len(rows))
        rights = list[Right]()
        tiles = list[tuple[Right, Ints]]()
        step = ROWS if xp is np else 16 * ROWS
        for part in self.parts:
            C = put(part.C, self.M)
            first = part.double * ny
            rooms = empty((m, first), self.M), empty((m, part.C.shape[1] * ny - first), like)
            halves = C[:, : part.double].T, xp.astype(C[:, part.double :].T, like.dtype)
            rights.append(Right(part, halves, *rooms))
            some = np.flatnonzero(place[part.at] >= 0)
            tiles += [(rights[-1], some[t : t + step]) for t in range(0, len(some), step)]

        def right(of: slice, _: None) -> None:
            x, own = self._transformed(g[of, :], pattern[of], self.r)
            small[of, k : 2 * k] = own - ln[of, :]
            single = xp.astype(x, like.dtype)
            n = of.stop - of.start
            for r in rights:
                r.wide[of, :] = xp.reshape(r.C[0] @ x, (n, r.wide.shape[1]))
                r.narrow[of, :] = xp.reshape(r.C[1] @ single, (n, r.narrow.shape[1]))

        self._share(right, m, self.r)
        together = xp is np and bool((np.diff(columns) == 1).all())

        def tile(item: tuple[Right, Ints], _: None) -> None:
            (part, _C, wide, narrow), of = item
            own = put(part.own[of], self.M)
            gamma = take(self.gamma, part.at[of])
            to = place[part.at[of]]
            block = take(mine, to) @ small.T
            if wide.shape[1]:
                block += each_times(own[:, : part.double], gamma) @ wide.T
            if narrow.shape[1]:
                left = each_times(xp.astype(own[:, part.double :], like.dtype), xp.astype(gamma, like.dtype))
                block += xp.astype(left @ narrow.T, block.dtype)
            if together:
                out[rows[to], columns[0] : columns[-1] + 1] = block
            else:
                put_cells(out, rows[to][:, None], columns, block)

        flops = 2.0 * m * ny * len(rows) * max(part.own.shape[1] for part in self.parts)
        run(tile, tiles, flops if xp is np else 0, lambda: None)


def each_times(psi: Array, gamma: Array) -> Array:
    """(n, r ny) psi_l gamma for psi (n, r) and gamma (n, ny)."""
    return namespace(psi).reshape(psi[:, :, None] * gamma[:, None, :], (psi.shape[0], psi.shape[1] * gamma.shape[1]))
