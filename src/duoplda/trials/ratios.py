"""Likelihood ratios of many sides by matrix products.

With the letters of `duoplda.trials.sides`: between sides of one pattern and sides of patterns q = 1 .. Q the likelihood
ratio is one matrix product, of inner size ny + 1 + Q:

    [gamma_1, 1, a_11 .. a_1Q] . [Lambda_3^-1 gamma_2, a_2, e_q],    e_q the unit vector of the second side's pattern.

Where Q is large, coefficients c_q (r,) stand for e_q: the Lambda_3^-1, and with them the a_1q, of all patterns are
combinations of those of r patterns (`Product._interpolate`). Where nearly each pair of sides has a Lambda_3 of its
own, products do not help, and pairs are merged: Q_3 - Q_1 - Q_2 as it stands.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Array, SpdInverse, eye, in_order, is_torch, namespace, put, set_rows, take, to_numpy
from duoplda.data.labels import Ints
from duoplda.model.accumulate import CHUNK_BYTES
from duoplda.model.ragged import at_once, inverses
from duoplda.trials import sides
from duoplda.trials.sides import Groups, Sides
from duoplda.trials.tables import empty

MERGED = 1 << 16  # pairs merged at a time
# Patterns that are worth a thread each, and bytes that such a thread may take
MANY = 16
ROOM = 1 << 26
HALVES = 128  # forms of one side for which products of its numbers are worth while
KEEP = 3 << 29  # bytes of factors and inverses that are kept from block to block


class PatternRows:
    """The rows of sides (of those in a slice) whose patterns are in a range, in the order of the patterns."""

    def __init__(self, side: Sides, patterns: range, part: slice | None = None):
        part = slice(0, len(side)) if part is None else part
        one = len(side.groups) == 1
        index = side.groups.index[part] - patterns.start
        order = np.arange(part.stop - part.start)
        if not one and not bool((index[1:] >= index[:-1]).all()):
            order = np.argsort(index, kind="stable")
            index = index[order]
        of = slice(*np.searchsorted(index, [0, len(patterns)]).tolist())
        self.side = side
        self.patterns = patterns
        self.rows = order[of] + part.start
        self.pattern: Ints = index[of]
        self.start: Ints = np.searchsorted(self.pattern, np.arange(len(patterns) + 1))
        self.present: list[int] = np.flatnonzero(np.diff(self.start)).tolist()
        increase = one or bool((self.rows[1:] > self.rows[:-1]).all())
        if increase and len(self.rows) == part.stop - part.start:  # no need of a copy
            self.gamma = side.gamma[part, :]
            self.quadratic = side.quadratic[part]
        else:
            self.gamma = take(side.gamma, self.rows)
            self.quadratic = take(side.quadratic, self.rows)

    @cached_property
    def order(self) -> Ints:
        """The order in which `rows` increase."""
        return np.argsort(self.rows)

    def of(self, p: int) -> slice:
        return slice(int(self.start[p]), int(self.start[p + 1]))


class Lambdas:
    """Lambda^-1 of counts (S, C) of sessions by type, made once if they fit and are to be kept; ln|Lambda| (S,)."""

    def __init__(self, G: Array, counts: Ints, keep: bool):
        self.G = G
        self.counts = counts
        self.kept = None
        self.ln = empty((len(counts),), G)
        size = 8 * len(counts) * G.shape[-1] ** 2
        if keep and namespace(G) is not np and size <= 1 << 28:
            self.kept, self.ln = inverses(G, counts, SpdInverse())
        elif keep and size <= KEEP:
            kept = empty((len(counts), *G.shape[1:]), G)

            def use(u: int, M: Array) -> None:
                kept[u, ...] = M

            self.each(np.arange(len(counts)), use)
            self.kept = kept

    def each(self, which: Ints, use: Callable[[int, Array], None]) -> None:
        """`use(u, inverse)` of counts[which[u]], in threads; the inverse is overwritten afterwards."""
        xp = namespace(self.G)
        ny = self.G.shape[-1]
        size = at_once(self.G)

        def work(t: int, invert: SpdInverse) -> None:
            of = which[t : t + size]
            if self.kept is None:
                M, ln = inverses(self.G, self.counts[of], invert)
                set_rows(self.ln, of, ln)
            for u, s in enumerate(of.tolist()):
                use(t + u, M[u, ...] if self.kept is None else self.kept[s, ...])

        run(work, list(range(0, len(which), size)), len(which) * ny**3 if xp is np else 0, SpdInverse)


def run(work: Callable[..., None], items: list[Any], flops: float, scratch: Callable[[], Any]) -> None:
    """Do the work of all items, in threads where these are worth it; a single item may use the threads of BLAS."""
    if len(items) == 1:
        work(items[0], scratch())
    else:
        deque(in_order(work, items, flops, scratch), maxlen=0)


def by_pattern(work: Callable[..., None], patterns: list[int], flops: float, scratch: Callable[[], Any]) -> None:
    """As `run` where there are many patterns; else one after another, each by all threads, and where `flops` is 0."""
    if flops and len(patterns) >= MANY:
        run(work, patterns, flops, scratch)
        return
    room = scratch()
    for p in patterns:
        work(p, room)


class Product:
    """Sides `one` of patterns p and sides `many` of patterns q: for each p one product as in the head of this file.

    `one` is the first set of sides or, if `flip`, the second. Only the patterns of the second set are looked at here,
    so that what is computed once serves all sides with these patterns.
    """

    def __init__(self, ours: PatternRows, theirs: Groups, pb: range, flip: bool):
        self.ours = ours
        self.pb = pb
        self.flip = flip
        mine = ours.side.groups
        G, of_a, of_b = common(mine, theirs)
        known = [(c[r.start : r.stop], s.ln_Lambda[r.start : r.stop]) for c, s, r in (
            (of_a, mine, ours.patterns), (of_b, theirs, pb))]  # fmt: skip
        (of_one, self.ln_one), (of_many, self.ln_many) = known[::-1] if flip else known
        counts, table = np.unique((of_one[:, None] + of_many).reshape(-1, G.shape[0]), axis=0, return_inverse=True)
        self.table: Ints = table.reshape(len(of_one), len(of_many))  # equal sums of counts have one Lambda_3
        self.ny = G.shape[-1]
        self.Lambda_3 = Lambdas(G, counts, keep=True)
        self.basis = np.arange(len(of_many))
        self.c = eye(len(of_many), G)
        if len(of_many) > sides.MOST_PATTERNS and self.ny:
            n = put(of_one.mean(axis=0), G)
            self._interpolate(eye(self.ny, G) + namespace(G).tensordot(n, G, axes=1))

    @cached_property
    def ready(self) -> Array:
        """Of our sides `left` or, if `flip`, for each p `right` in the order of rows of the first set.

        It is made when it is first used: a device has then got the factors of the other sides to work on.
        """
        if not self.flip:
            return self.left(self.ours)
        ready = empty((len(self.table), len(self.ours.rows), self.ny + 1), self.c)
        right = empty(ready.shape[1:], ready)
        for p in range(len(self.table)):
            self.right(p, self.ours, right)
            ready[p, ...] = take(right, self.ours.order)
        return ready

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        n = len(self.ours.rows)
        width = self.ny + 1
        cells = n * (len(self.table) * width if self.flip else width + len(self.basis)) + int(np.prod(self.c.shape))
        return 8 * (cells + (0 if self.Lambda_3.kept is None else len(self.Lambda_3.counts) * self.ny**2))

    def _interpolate(self, Lambda: Array) -> None:
        """Lambda_3^-1 of (p, q) = sum_k c_qk Lambda_3^-1 of (p, k), for all p: choose patterns k, find c (Q, r).

        Lambda^-1 is a smooth function of a few counts, so that r is some hundreds, however many patterns there are.
        By a pivoted QR of random combinations of F'Lambda_3^-1 F, FF' the mean Lambda of `one`, which makes errors
        relative to gamma'Lambda^-1 gamma; they are of the size of rounding. A column of ones makes sum_k c_qk = 1.
        """
        from scipy.linalg import qr, solve_triangular

        xp = namespace(Lambda)
        rng = np.random.default_rng(0)
        P, Q = self.table.shape
        ny = self.ny
        most = 512
        F = xp.linalg.cholesky(Lambda)
        width = min(ny, -(-2 * most // (ny * P)))
        FR = F @ put(rng.standard_normal((ny, width)), F)
        Y = empty((len(self.Lambda_3.counts), ny, width), F)

        def use(u: int, M: Array) -> None:
            Y[u, ...] = F.T @ (M @ FR)

        self.Lambda_3.each(np.arange(Y.shape[0]), use)
        numbers = to_numpy(Y).reshape(-1, ny * width)
        Z = sum(numbers[row] @ rng.standard_normal((ny * width, most)) for row in self.table)
        Z = np.column_stack([Z, np.full(Q, np.abs(Z).max())])
        R, pivot = qr(Z.T, mode="r", pivoting=True, check_finite=False)
        size = np.abs(np.diagonal(R)) / abs(R[0, 0])
        r = int(np.sum(size > 1e-13))
        if 2 * r < Q and (r < len(size) or size[-1] < 1e-11):  # else each has a unit vector of its own
            c = np.vstack([np.eye(r), solve_triangular(R[:r, :r], R[:r, r:]).T])
            self.basis = pivot[:r]
            self.c = put(c[np.argsort(pivot)], F)

    @cached_property
    def own(self) -> Array:
        """(n, r) c_q of our sides, in the order of their rows: once, as a device waits for indices of the host."""
        return take(self.c, self.ours.pattern[self.ours.order])

    def left(self, one: PatternRows) -> Array:
        """(n, ny + 1 + r) [gamma_1, 1, a_1k]."""
        xp = namespace(one.gamma)
        ny = self.ny
        g = one.gamma
        out = empty((len(one.rows), ny + 1 + len(self.basis)), g)
        out[:, :ny] = g
        out[:, ny] = 1.0

        def work(p: int, _: None) -> None:
            of = one.of(p)
            if self.Lambda_3.kept is not None and (xp is not np or len(self.basis) >= HALVES):
                out[of, ny + 1 :] = (self._forms(p, g[of, :]) - one.quadratic[of][:, None]) / 2
                return

            def use(k: int, M: Array) -> None:
                out[of, ny + 1 + k] = (xp.vecdot(g[of, :] @ M, g[of, :]) - one.quadratic[of]) / 2

            self.Lambda_3.each(self.table[p, self.basis], use)

        by_pattern(work, one.present, 2.0 * len(one.rows) * len(self.basis) * ny**2 if xp is np else 0, lambda: None)
        return out

    def _forms(self, p: int, g: Array) -> Array:
        """(n, r) g'Lambda_3^-1 g for rows g (n, ny) and all k, several of them in one product."""
        xp = namespace(g)
        n, ny = g.shape
        r = len(self.basis)
        kept = self.Lambda_3.kept
        if kept is not None and xp is np:
            return forms(g, kept, self.table[p, self.basis])
        beside = self._beside_of_one if len(self.table) == 1 else self._beside(p)
        step = max(1, (1 << 27) // max(1, n * ny))
        cuts = [(k, min(k + step, r)) for k in range(0, r, step)]
        rows = (xp.reshape(g @ beside[:, a * ny : b * ny], (n, b - a, ny)) for a, b in cuts)
        return xp.concat([(x @ g[:, :, None])[:, :, 0] for x in rows], axis=1)

    def _beside(self, p: int) -> Array:
        """(ny, r ny) the Lambda_3^-1 of all k side by side."""
        stack = take(self.Lambda_3.kept, self.table[p, self.basis])
        xp = namespace(stack)
        r = len(self.basis)
        return xp.reshape(xp.permute_dims(stack, (1, 0, 2)), (self.ny, r * self.ny))

    @cached_property
    def _beside_of_one(self) -> Array:
        return self._beside(0)

    def right(self, p: int, many: PatternRows, out: Array) -> None:
        """(n, ny + 1) [Lambda_3^-1 gamma_2, a_2]."""
        xp = namespace(many.gamma)
        ny = self.ny
        g = many.gamma

        def use(j: int, M: Array) -> None:
            of = many.of(many.present[j])
            if xp is np:
                np.matmul(g[of], M, out=out[of, :ny])
            else:
                out[of, :ny] = g[of, :] @ M

        if xp is np or self.Lambda_3.kept is None or not self._at_once(p, many, out):
            self.Lambda_3.each(self.table[p, many.present], use)
        ln = self.ln_many - take(self.Lambda_3.ln, self.table[p, :]) + self.ln_one[p]
        ln = ln if len(many.patterns) == 1 else take(ln, many.pattern)
        out[:, ny] = (xp.vecdot(out[:, :ny], g) - many.quadratic + ln) / 2

    def _at_once(self, p: int, many: PatternRows, out: Array) -> bool:
        """out[:, :ny] = Lambda_3^-1 gamma_2 by one stack of products, on a device, unless some patterns have far more
        sides than others."""
        sizes = np.diff(many.start)[many.present]
        if len(sizes) < 4 or len(sizes) * sizes.max() > 8 * len(many.rows):
            return False
        xp = namespace(out)
        ny = self.ny
        most = int(sizes.max())
        stack = empty((len(sizes) * most, ny), out)
        place = put(np.flatnonzero((np.arange(most) < sizes[:, None]).reshape(-1)), out)
        set_rows(stack, place, many.gamma)
        M = take(self.Lambda_3.kept, self.table[p, many.present])
        stack = xp.reshape(stack, (len(sizes), most, ny)) @ M
        out[:, :ny] = take(xp.reshape(stack, (len(sizes) * most, ny)), place)
        return True

    def room(self, many: PatternRows) -> Array:
        """(n, ny + 1 + r) for `right`, and c_q beside it."""
        out = empty((len(many.rows), self.ny + 1 + len(self.basis)), many.gamma)
        out[:, self.ny + 1 :] = take(self.c, many.pattern)
        return out

    def fill(self, out: Array, b: Sides, part: slice) -> None:
        """The columns for the sides of b in the slice that have our patterns."""
        ours = self.ours
        theirs = PatternRows(b, self.pb, part)
        columns = theirs.rows - part.start
        whole = slice(0, len(theirs.rows))
        if not len(columns):
            return
        if self.flip:
            left = self.left(theirs)
            pieces = [(theirs.of(p), (self.ready[p, ...], self.own), left[theirs.of(p), :]) for p in theirs.present]
            multiply(out, ours.rows[ours.order], columns, pieces)
            return
        ready = self.ready
        order = None if bool((columns[1:] > columns[:-1]).all()) else theirs.order

        def work(p: int, right: Array) -> None:
            self.right(p, theirs, right)
            rows = ours.rows[ours.of(p)]
            left = ready[ours.of(p), :]
            # Rows of `out` are written whole, and in order, if there are enough of them to pay for sorted columns.
            if len(rows) > left.shape[1] and order is not None:
                multiply(out, rows, columns[order], [(whole, (left,), take(right, order))])
            else:
                multiply(out, rows, columns, [(whole, (left,), right)])

        width = ready.shape[1]
        cost = 2.0 * len(columns) * (len(ours.present) * self.ny**2 + len(ours.rows) * width)
        fits = namespace(out) is np and 8 * len(columns) * width <= ROOM
        by_pattern(work, ours.present, cost if fits else 0, lambda: self.room(theirs))

    def gather(self, b: Sides, i: Ints, j: Ints) -> Array:
        """Ratios of pairs of rows of the two sets, all of whose patterns are ours."""
        ours = self.ours
        theirs = PatternRows(b, self.pb)
        out, j, of_a, of_b = empty((len(i),), ours.gamma), theirs.order[j], ours.side.groups.index[i], b.groups.index[j]
        if not self.flip:
            right = self.room(theirs)
            for p in range(len(self.table)):
                self.right(p, theirs, right)
                of = np.flatnonzero(of_a == p)
                set_rows(out, of, dots(self.ready, right, ours.order[i[of]], j[of]))
            return out
        left = self.left(theirs)
        k = self.ny + 1
        first, rest = (np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x for x in (left[:, :k], left[:, k:]))
        for p in range(len(self.table)):
            of = np.flatnonzero(of_b == p)
            set_rows(out, of, dots(self.ready[p, ...], first, i[of], j[of]) + dots(self.c, rest, of_a[of], j[of]))
        return out


def forms(g: NDArray[Any], stack: NDArray[Any], which: Ints) -> NDArray[Any]:
    """(n, r) g'Mg for rows g (n, ny) and symmetric matrices M = stack[which], on the host.

    Products of two numbers of g, times the upper halves of the matrices: half the work of g'(M g).
    """
    n, ny = g.shape
    out = np.empty((len(g), len(which)))
    i, j = np.triu_indices(ny)
    upper = stack.reshape(len(stack), -1)[which[:, None], i * ny + j]
    upper[:, i != j] *= 2
    step = max(16, (1 << 24) // max(1, 8 * len(i)))

    def work(t: int, room: NDArray[Any]) -> None:
        x = g[t : t + step]
        u, v = (np.take(x, at, axis=1, out=to[: len(x)], mode="clip") for at, to in zip((i, j), room, strict=True))
        np.matmul(np.multiply(u, v, out=u), upper.T, out=out[t : t + step])

    run(work, list(range(0, n, step)), 2.0 * out.size * len(i), lambda: np.empty((2, step, len(i))))
    return out


def dots(left: Array, right: Array, i: Ints, j: Ints) -> Array:
    """Products of listed pairs of rows, in pieces that stay in the caches."""
    out = empty((len(i),), left)
    most = CHUNK_BYTES if isinstance(left, np.ndarray) else 1 << 28
    step = max(1, most // (32 * left.shape[1]))
    for t in range(0, len(i), step):
        these = np.arange(t, min(t + step, len(i)))
        set_rows(out, these, namespace(left).vecdot(take(left, i[these]), take(right, j[these])))
    return out


def common(a: Groups, b: Groups) -> tuple[Array, Ints, Ints]:
    """G of the types of both sides, and the counts (P, C) of each side's patterns over these."""
    if np.array_equal(a.types, b.types):
        return a.G, a.rows, b.rows
    both = np.concatenate([a.types, b.types])
    types, first, place = np.unique(both, axis=0, return_index=True, return_inverse=True)
    counts = [np.zeros((len(s), len(types)), np.int64) for s in (a, b)]
    for c, s, at in zip(counts, (a, b), np.split(place, [len(a.types)]), strict=True):
        c[:, at] = s.rows
    return take(namespace(a.G).concat([a.G, b.G]), first), counts[0], counts[1]


def multiply(out: Array, rows: Ints, columns: Ints, pieces: list[tuple[slice, tuple[Array, ...], Array]]) -> None:
    """out[rows, columns[of]] = [left ..] right' for pieces (of, left, right), which fill the columns; rows increase."""
    xp = namespace(out)
    m = len(columns)
    natural = len(pieces) == 1 and m == out.shape[1] and bool((columns[1:] > columns[:-1]).all())
    step = int(rows[1] - rows[0]) if len(rows) > 1 else 1
    matrix = natural and (xp is np or is_torch(xp)) and bool((np.diff(rows) == step).all())  # one, with a stride
    if not matrix and xp is np:
        _by_tiles(out, rows, columns, pieces, natural)
        return
    for of, left, right in pieces:
        L = left[0] if len(left) == 1 else xp.concat(left, axis=1)
        if getattr(L, "is_cuda", False) and L.shape[1] % 8:  # products of an odd inner size take half as long again
            none = xp.zeros_like(L[:, : -L.shape[1] % 8]), xp.zeros_like(right[:, : -L.shape[1] % 8])
            L = xp.concat([L, none[0]], axis=1)
            right = xp.concat([right, none[1]], axis=1)
        if matrix:
            xp.matmul(L, right.T, out=out[int(rows[0]) : int(rows[-1]) + 1 : step, :])
        elif natural:
            set_rows(out, rows, L @ right.T)
        else:
            put_cells(out, rows[:, None], columns[of], L @ right.T)


def _by_tiles(out: NDArray[Any], rows: Ints, columns: Ints, pieces: Iterable[Any], natural: bool) -> None:
    """`multiply` on the host, for rows or columns that are here and there: in tiles that stay in the caches."""
    m = len(columns)
    inverse = np.argsort(columns)
    width = 2048 if natural else m
    size = max(16, min(256, CHUNK_BYTES // (8 * width)))

    def work(tile: tuple[int, int], scratch: NDArray[Any]) -> None:
        t, c = tile
        buffer, ordered = scratch
        these = rows[t : t + size]
        block = buffer[: len(these), : min(width, m - c)]
        for of, left, right in pieces:
            L = left[0][t : t + size] if len(left) == 1 else np.concat([x[t : t + size] for x in left], axis=1)
            np.matmul(L, right[c : c + width].T, out=block[:, of])
        if natural:
            out[these, c : c + width] = block
        elif m == out.shape[1]:  # a row of `out` is written once, as a whole: no cache holds it
            out[these] = np.take(block, inverse, axis=1, out=ordered[: len(these)], mode="clip")
        else:
            out[these[:, None], columns] = block

    tiles = [(t, c) for t in range(0, len(rows), size) for c in range(0, m, width)]
    run(work, tiles, 300.0 * len(rows) * m, lambda: np.empty((2, size, width)))


def put_cells(out: Array, i: Ints, j: Ints, values: Array) -> None:
    """out[i, j] = values."""
    if isinstance(out, np.ndarray) or is_torch(namespace(out)):
        out[put(i, out), put(j, out)] = values
    else:
        flat = namespace(out).reshape(values, (-1,))
        for t, (r, c) in enumerate(zip(*(x.reshape(-1).tolist() for x in np.broadcast_arrays(i, j)), strict=True)):
            out[r, c] = flat[t]


def merged(a: Sides, b: Sides, i: Ints, j: Ints) -> Array:
    """Ratios of pairs of rows as Q_3 - Q_1 - Q_2; those with the same counts of sessions share an inverse."""
    G, of_a, of_b = common(a.groups, b.groups)
    met, pair = np.unique(a.groups.index[i] * len(of_b) + b.groups.index[j], return_inverse=True)
    counts, s = np.unique(of_a[met // len(of_b)] + of_b[met % len(of_b)], axis=0, return_inverse=True)
    s = s[pair]
    order = np.argsort(s, kind="stable")
    Lambda_3 = Lambdas(G, counts, keep=False)
    out = empty((len(i),), G)
    for t in range(0, len(i), MERGED):
        these = order[t : t + MERGED]
        which, first = np.unique(s[these], return_index=True)
        edge = np.append(first, len(these))
        gamma = take(a.gamma, i[these]) + take(b.gamma, j[these])
        mean = empty((len(these), G.shape[-1]), G)

        def use(u: int, M: Array, edge: Ints = edge, gamma: Array = gamma, mean: Array = mean) -> None:
            of = slice(int(edge[u]), int(edge[u + 1]))
            mean[of, :] = gamma[of, :] @ M

        Lambda_3.each(which, use)
        set_rows(out, these, (namespace(G).vecdot(gamma, mean) - take(Lambda_3.ln, s[these])) / 2)
    return out - take(a.Q, i) - take(b.Q, j)
