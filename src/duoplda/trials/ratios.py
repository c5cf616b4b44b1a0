"""Likelihood ratios of many sides by matrix products.

With the letters of `duoplda.sides`: between sides of one pattern and sides of patterns q = 1 .. Q the likelihood ratio
is one matrix product, of inner size ny + 1 + Q:

    [gamma_1, 1, a_11 .. a_1Q] . [Lambda_3^-1 gamma_2, a_2, e_q],    e_q the unit vector of the second side's pattern.

Where Q is large, coefficients c_q (r,) stand for e_q: the Lambda_3^-1, and with them the a_1q, of all patterns are
combinations of those of r patterns (`_Product._interpolate`). Where nearly each pair of sides has a Lambda_3 of its
own, products do not help, and pairs are merged: Q_3 - Q_1 - Q_2 as it stands.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from duoplda.arrays import (
    Array,
    SpdInverse,
    eye,
    is_torch,
    namespace,
    one_thread_each,
    put,
    set_rows,
    spd_inverse,
    take,
    to_numpy,
)
from duoplda.data.labels import Ints
from duoplda.model.accumulate import CHUNK_BYTES
from duoplda.model.parameters import Terms
from duoplda.trials.sides import Sides, shared

CELLS = 1 << 23  # of a block
MERGED = 1 << 16  # pairs merged at a time
KEEP = 3 << 29  # bytes of inverses that are kept from block to block
MOST_PATTERNS = 64  # of one side in a product, each with a unit vector of its own
FEW = 64  # sides: where more than MOST_PATTERNS patterns have fewer, these are ragged


class Scorer:
    """Two sets of sides; what depends on patterns, and on the first set alone, is computed once for all columns."""

    def __init__(self, a: Sides, b: Sides):
        self.a, self.b = a, b
        self.products: list[_Product] = []
        self.ragged: list[tuple[_Rows, range]] = []
        for (pa, few_a), (pb, few_b) in itertools.product(_parts(a), _parts(b)):
            ours, ny = _Rows(a, pa), a.gamma.shape[1]
            cells = len(ours.rows) * int(np.sum(b.patterns.multiplicity[pb.start : pb.stop]))
            if few_a and few_b and cells < 2 * ny * len(pa) * len(pb):  # an inverse costs as much as 4 ny solutions
                self.ragged.append((ours, pb))
            else:
                flip = len(pb) == 1 or (few_a > few_b and 8 * len(pb) * len(ours.rows) * (ny + 1) <= KEEP)
                self.products.append(_Product(ours, b, pb, flip))
        self.shared = shared(a, b)

    def columns(self, part: slice) -> Array:
        """(len(a), k) for the rows of b in the slice."""
        out = _empty((len(self.a), part.stop - part.start), self.a.gamma)
        for product in self.products:
            product.fill(out, part)
        for ours, pb in self.ragged:
            theirs = _Rows(self.b, pb, part).rows
            step = max(1, CELLS // 8 // len(ours.rows))
            for t in range(0, len(theirs), step):
                i, j = (x.reshape(-1) for x in np.meshgrid(ours.rows, theirs[t : t + step]))
                _put(out, i, j - part.start, merged(self.a, self.b, i, j))
        if self.shared is not None:
            i, j, values = self.shared
            of = np.flatnonzero((j >= part.start) & (j < part.stop))
            _put(out, i[of], j[of] - part.start, take(values, of))
        return out


def _parts(side: Sides) -> list[tuple[range, bool]]:
    """Patterns of few sides, if there are many of them, and the others: ranges, as patterns are sorted by sides."""
    s = side.patterns
    few = int(np.searchsorted(s.multiplicity, FEW))
    if few <= MOST_PATTERNS:
        few = 0
    elif 4 * s.start[few] > 3 * len(side):  # parts of columns are slow to write
        few = len(s)
    return [(r, f) for r, f in ((range(few), True), (range(few, len(s)), False)) if len(r)]


class _Rows:
    """Rows of sides (of those in a slice) with a range of patterns, in the order of these."""

    def __init__(self, side: Sides, patterns: range, part: slice | None = None):
        part = slice(0, len(side)) if part is None else part
        index, order = side.patterns.index[part] - patterns.start, np.arange(part.stop - part.start)
        if len(side.patterns) > 1 and not bool((index[1:] >= index[:-1]).all()):
            order = np.argsort(index, kind="stable")
            index = index[order]
        of = slice(*np.searchsorted(index, [0, len(patterns)]).tolist())
        self.side, self.patterns, self.rows = side, patterns, order[of] + part.start
        self.pattern: Ints = index[of]
        self.increase = len(side.patterns) == 1 or bool((self.rows[1:] > self.rows[:-1]).all())
        self.start: Ints = np.searchsorted(self.pattern, np.arange(len(patterns) + 1))
        self.present: list[int] = np.flatnonzero(np.diff(self.start)).tolist()
        if self.increase and len(self.rows) == part.stop - part.start:  # no need of a copy
            self.gamma, self.quadratic = side.gamma[part, :], side.quadratic[part]
        else:
            self.gamma, self.quadratic = take(side.gamma, self.rows), take(side.quadratic, self.rows)

    def of(self, p: int) -> slice:
        return slice(int(self.start[p]), int(self.start[p + 1]))


class _Lambdas:
    """Lambda^-1 of counts (S, C) of sessions by type, made once if they fit and are to be kept; ln|Lambda| (S,)."""

    def __init__(self, G: Array, counts: Ints, keep: bool):
        self.G, self.counts, self.kept, self.ln = G, counts, None, _empty((len(counts),), G)
        if keep and 8 * len(counts) * G.shape[-1] ** 2 <= KEEP:
            kept = _empty((len(counts), *G.shape[1:]), G)

            def use(u: int, M: Array) -> None:
                kept[u, ...] = M

            self.each(np.arange(len(counts)), use)
            self.kept = kept

    def each(self, which: Ints, use: Callable[[int, Array], None]) -> None:
        """`use(u, inverse)` of counts[which[u]], in threads; the inverse is overwritten afterwards."""
        xp, ny = namespace(self.G), self.G.shape[-1]
        size = max(1, (1 << 21 if xp is np else 1 << 28) // (8 * max(ny, 1) ** 2))
        flat = xp.reshape(self.G, (self.G.shape[0], ny * ny))

        def work(firsts: list[int]) -> None:
            invert, buffer = SpdInverse(), np.empty((size, ny * ny) if xp is np else 0)
            for t in firsts:
                of = which[t : t + size]
                if self.kept is None and xp is np:
                    np.matmul(self.counts[of].astype(float), flat, out=buffer[: len(of)])
                    buffer[: len(of), :: ny + 1] += 1.0
                    M = buffer[: len(of)].reshape(len(of), ny, ny)
                    self.ln[of] = invert(M)
                elif self.kept is None:
                    sums = put(self.counts[of].astype(float), flat) @ flat
                    M, ln = spd_inverse(eye(ny, flat) + xp.reshape(sums, (len(of), ny, ny)))
                    set_rows(self.ln, of, ln)
                for u, s in enumerate(of.tolist()):
                    use(t + u, M[u, ...] if self.kept is None else self.kept[s, ...])

        firsts = list(range(0, len(which), size))
        with one_thread_each(len(which) * ny**3 if xp is np else 0) as (threads, run):
            run(work, [firsts[i::threads] for i in range(threads)])


class _Product:
    """Sides `one` of patterns p and sides `many` of patterns q: for each p one product

        [gamma_1, 1, a_11 .. a_1r] . [Lambda_3^-1 gamma_2, a_2, c_q]

    as in the head of this file. `many` are the second set, or the first, if `flip`.
    """

    def __init__(self, ours: _Rows, b: Sides, pb: range, flip: bool):
        self.ours, self.b, self.pb, self.flip = ours, b, pb, flip
        theirs = _Rows(b, pb, slice(0, 0))  # for the patterns alone
        self.one, many = (theirs, ours) if flip else (ours, theirs)
        G, of_one, of_many = _common(self.one.side, many.side)
        of_one, of_many = (c[r.patterns.start : r.patterns.stop] for c, r in ((of_one, self.one), (of_many, many)))
        sums = (of_one[:, None] + of_many).reshape(-1, G.shape[0])
        counts, table = np.unique(sums, axis=0, return_inverse=True)
        self.table: Ints = table.reshape(len(of_one), len(of_many))  # equal sums of counts have one Lambda_3
        self.ny, self.Lambda_3 = G.shape[-1], _Lambdas(G, counts, keep=True)
        self.basis, self.c = np.arange(len(of_many)), eye(len(of_many), G)
        if len(of_many) > MOST_PATTERNS and self.ny:
            n = put(of_one.mean(axis=0), G)
            self._interpolate(eye(self.ny, G) + namespace(G).tensordot(n, G, axes=1))
        if flip:  # rows of `ready` are in the order of rows of a
            self.ready = _empty((len(of_one), len(ours.rows), self.ny + 1), G)
            order, right = np.argsort(ours.rows), _empty(self.ready.shape[1:], G)
            for p in range(len(of_one)):
                self.right(p, ours, right)
                self.ready[p, ...] = take(right, order)
        else:
            self.ready = self.left(ours)

    def _interpolate(self, Lambda: Array) -> None:
        """Lambda_3^-1 of (p, q) = sum_k c_qk Lambda_3^-1 of (p, k), for all p: choose patterns k, find c (Q, r).

        Lambda^-1 is a smooth function of a few counts, so that r is some hundreds, however many patterns there are.
        By a pivoted QR of random combinations of F'Lambda_3^-1 F, FF' the mean Lambda of `one`, which makes errors
        relative to gamma'Lambda^-1 gamma; they are of the size of rounding. A column of ones makes sum_k c_qk = 1.
        """
        from scipy.linalg import qr, solve_triangular

        xp, rng, (P, Q), ny, most = namespace(Lambda), np.random.default_rng(0), self.table.shape, self.ny, 512
        F, width = xp.linalg.cholesky(Lambda), min(ny, -(-2 * most // (ny * P)))
        FR = F @ put(rng.standard_normal((ny, width)), F)
        Y = _empty((len(self.Lambda_3.counts), ny, width), F)

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
            self.basis, self.c = pivot[:r], put(c[np.argsort(pivot)], F)

    def left(self, one: _Rows) -> Array:
        """(n, ny + 1 + r) [gamma_1, 1, a_1k]."""
        xp, ny, g = namespace(one.gamma), self.ny, one.gamma
        out = _empty((len(one.rows), ny + 1 + len(self.basis)), g)
        out[:, :ny], out[:, ny] = g, 1.0
        for p in one.present:
            of = one.of(p)

            def use(k: int, M: Array, of: slice = of) -> None:
                out[of, ny + 1 + k] = (xp.vecdot(g[of, :] @ M, g[of, :]) - one.quadratic[of]) / 2

            self.Lambda_3.each(self.table[p, self.basis], use)
        return out

    def right(self, p: int, many: _Rows, out: Array) -> None:
        """(n, ny + 1) [Lambda_3^-1 gamma_2, a_2]."""
        xp, ny, g = namespace(many.gamma), self.ny, many.gamma

        def use(j: int, M: Array) -> None:
            of = many.of(many.present[j])
            if xp is np:
                np.matmul(g[of], M, out=out[of, :ny])
            else:
                out[of, :ny] = g[of, :] @ M

        self.Lambda_3.each(self.table[p, many.present], use)
        ln = many.side.posterior.ln_Lambda[many.patterns.start : many.patterns.stop] - take(
            self.Lambda_3.ln, self.table[p, :]
        )
        ln = ln + self.one.side.posterior.ln_Lambda[self.one.patterns[p]]
        ln = ln if len(many.patterns) == 1 else take(ln, many.pattern)
        out[:, ny] = (xp.vecdot(out[:, :ny], g) - many.quadratic + ln) / 2

    def rights(self, many: _Rows) -> Iterator[tuple[int, Array]]:
        """For each p (n, ny + 1 + r) [Lambda_3^-1 gamma_2, a_2, c_q], in memory that the next one takes."""
        out = _empty((len(many.rows), self.ny + 1 + len(self.basis)), many.gamma)
        out[:, self.ny + 1 :] = take(self.c, many.pattern)
        for p in range(len(self.one.patterns)):
            self.right(p, many, out)
            yield p, out

    def fill(self, out: Array, part: slice) -> None:
        """The columns of b in the slice that have our patterns."""
        theirs, ours = _Rows(self.b, self.pb, part), self.ours
        columns = theirs.rows - part.start
        if not len(columns):
            return
        if self.flip:
            left, c = self.left(theirs), take(self.c, ours.pattern[np.argsort(ours.rows)])
            pieces = [(theirs.of(p), (self.ready[p, ...], c), left[theirs.of(p), :]) for p in theirs.present]
            _multiply(out, np.sort(ours.rows), columns, pieces)
            return
        for p, right in self.rights(theirs):
            left, rows, whole = self.ready[ours.of(p), :], ours.rows[ours.of(p)], slice(0, len(columns))
            if len(rows) > left.shape[1] and not theirs.increase:  # the factor is smaller than the product
                order = np.argsort(columns)
                _multiply(out, rows, columns[order], [(whole, (left,), take(right, order))])
            else:
                _multiply(out, rows, columns, [(whole, (left,), right)])


def _common(a: Sides, b: Sides) -> tuple[Array, Ints, Ints]:
    """G of the types of both sides, and the counts (P, C) of each side's patterns over these."""
    if np.array_equal(a.types, b.types):
        return a.terms.G, a.patterns.rows, b.patterns.rows
    types, place = np.unique(np.concatenate([a.types, b.types]), axis=0, return_inverse=True)
    counts = [np.zeros((len(s.patterns), len(types)), np.int64) for s in (a, b)]
    for c, s, at in zip(counts, (a, b), np.split(place.reshape(-1), [len(a.types)]), strict=True):
        c[:, at] = s.patterns.rows
    return Terms(a.model, types).G, counts[0], counts[1]


def _multiply(out: Array, rows: Ints, columns: Ints, pieces: list[tuple[slice, tuple[Array, ...], Array]]) -> None:
    """out[rows, columns[of]] = [left ..] right' for pieces (of, left, right), which fill the columns; rows increase."""
    xp, m = namespace(out), len(columns)
    natural = len(pieces) == 1 and m == out.shape[1] and bool((columns[1:] > columns[:-1]).all())
    step = int(rows[1] - rows[0]) if len(rows) > 1 else 1
    matrix = natural and (xp is np or is_torch(xp)) and bool((np.diff(rows) == step).all())  # one, with a stride
    if matrix or xp is not np:
        for of, left, right in pieces:
            L = left[0] if len(left) == 1 else xp.concat(left, axis=1)
            if matrix:
                place = out[int(rows[0]) : int(rows[-1]) + 1 : step, :]
                xp.matmul(L, right.T, out=place)
            elif natural:
                set_rows(out, rows, L @ right.T)
            else:
                _put(out, rows[:, None], columns[of], L @ right.T)
        return
    inverse, width = np.argsort(columns), 2048 if natural else m
    size = max(16, min(256, CHUNK_BYTES // (8 * width)))

    def work(tiles: list[tuple[int, int]]) -> None:
        buffer, ordered = np.empty((2, size, width))
        for t, c in tiles:
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
    with one_thread_each(300.0 * len(rows) * m) as (threads, run):
        run(work, [tiles[t::threads] for t in range(threads)])


def _put(out: Array, i: Ints, j: Ints, values: Array) -> None:
    """out[i, j] = values."""
    if isinstance(out, np.ndarray):
        out[i, j] = values
    elif is_torch(namespace(out)):
        out[put(i, out), put(j, out)] = values
    else:
        flat = namespace(out).reshape(values, (-1,))
        for t, (r, c) in enumerate(zip(*(x.reshape(-1).tolist() for x in np.broadcast_arrays(i, j)), strict=True)):
            out[r, c] = flat[t]


def merged(a: Sides, b: Sides, i: Ints, j: Ints) -> Array:
    """Ratios of pairs of rows as Q_3 - Q_1 - Q_2; those with the same counts of sessions share an inverse."""
    G, of_a, of_b = _common(a, b)
    met, pair = np.unique(a.patterns.index[i] * len(of_b) + b.patterns.index[j], return_inverse=True)
    counts, s = np.unique(of_a[met // len(of_b)] + of_b[met % len(of_b)], axis=0, return_inverse=True)
    s = s.reshape(-1)[pair.reshape(-1)]
    order, Lambda_3, out = np.argsort(s, kind="stable"), _Lambdas(G, counts, keep=False), _empty((len(i),), G)
    for t in range(0, len(i), MERGED):
        these = order[t : t + MERGED]
        which, first = np.unique(s[these], return_index=True)
        edge = np.append(first, len(these))
        gamma, mean = take(a.gamma, i[these]) + take(b.gamma, j[these]), _empty((len(these), G.shape[-1]), G)

        def use(u: int, M: Array, edge: Ints = edge, gamma: Array = gamma, mean: Array = mean) -> None:
            of = slice(int(edge[u]), int(edge[u + 1]))
            mean[of, :] = gamma[of, :] @ M

        Lambda_3.each(which, use)
        set_rows(out, these, (namespace(G).vecdot(gamma, mean) - take(Lambda_3.ln, s[these])) / 2)
    return out - take(a.Q, i) - take(b.Q, j)


def gathered(a: Sides, b: Sides, i: Ints, j: Ints) -> Array:
    """Ratios of pairs of rows, more of them than rows, by rows of the factors."""
    flip = len(b.patterns) == 1
    ours, theirs = _Rows(a, range(len(a.patterns))), _Rows(b, range(len(b.patterns)))
    product = _Product(ours, b, theirs.patterns, flip)
    one, many, x, y = (theirs, ours, j, i) if flip else (ours, theirs, i, j)
    left, place = product.left(one) if flip else product.ready, (np.argsort(one.rows), np.argsort(many.rows))
    out, most = _empty((len(i),), a.gamma), CHUNK_BYTES if isinstance(left, np.ndarray) else 1 << 28
    step = max(1, most // (32 * left.shape[1]))
    for p, right in product.rights(many):
        of = np.flatnonzero(one.side.patterns.index[x] == p)
        for t in range(0, len(of), step):
            these = of[t : t + step]
            L, R = take(left, place[0][x[these]]), take(right, place[1][y[these]])
            set_rows(out, these, namespace(L).vecdot(L, R))
    return out


def _empty(shape: tuple[int, ...], like: Array) -> Array:
    xp = namespace(like)
    return np.empty(shape) if xp is np else xp.empty(shape, dtype=xp.float64, device=like.device)
