"""Ln likelihood ratios of sides that share no session, in three ways behind one interface, `Ratios`.

- `ListedRatios`: exact, one pair of sides after another, as Q_3 - Q_1 - Q_2 (`duoplda.trials.exact`).
- `PatternProducts`: exact up to rounding, by matrix products, where many sides have the same counts of sessions.
- `GuessedRatios`: guesses without a bound on their error, by a few products, whatever the counts
  (`duoplda.trials.evidence`).

With the letters of `duoplda.trials.sides`: between sides of one pattern and sides of patterns q = 1 .. Q the ratio is
one matrix product, of inner size ny + 1 + Q:

    [gamma_1, 1, a_11 .. a_1Q] . [Lambda_3^-1 gamma_2, a_2, e_q],    e_q the unit vector of the second side's pattern.

Where Q is large, coefficients c_q (r,) stand for e_q: the Lambda_3^-1, and with them the a_1q, of all patterns are
combinations of those of r patterns (`PatternProducts._interpolate`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from duoplda.arrays import Array, SpdInverse, eye, in_order, is_torch, namespace, put, set_rows, take, to_numpy
from duoplda.data.labels import Ints
from duoplda.model.accumulate import CHUNK_BYTES
from duoplda.model.ragged import at_once, inverses
from duoplda.trials.evidence import BinnedSets, DiagonalEvidence, guessed_ratios
from duoplda.trials.exact import log_evidence
from duoplda.trials.sides import MOST_PATTERNS, Groups, Sides
from duoplda.trials.tables import empty

KEPT_BYTES = 3 << 29  # of factors and inverses that are kept from block to block
LISTED_PAIRS_AT_ONCE = 1 << 16  # listed pairs whose gamma is added up at a time: 75 MiB for 150 factors
# Patterns from which on each is the work of one thread. Of fewer, some threads would wait for the last ones: they come
# one after another, and all threads share the products of each.
PATTERNS_FOR_THREADS = 16


class Ratios(ABC):
    """Ln likelihood ratios of some enrolled sides and some of the tests, which share no session.

    An implementation may be for sides of some patterns only. It keeps what depends on the enrolled sides and on the
    patterns of the tests, and serves any tests of these patterns.
    """

    @abstractmethod
    def fill(self, out: Array, tests: Sides, part: slice) -> None:
        """Write the ratios of our enrolled sides and of the tests in the slice to `out`, (enrolled, tests in it).

        Cells of sides or tests that have other patterns are left as they are.
        """

    @abstractmethod
    def pairs(self, tests: Sides, i: Ints, j: Ints) -> Array:
        """(n,) the ratios of enrolled rows i (n,) and rows j (n,) of the tests, all of which have our patterns."""

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return 0


# -- listed sets


@dataclass(frozen=True, eq=False)
class ListedRatios(Ratios):
    """Exact ratios, pair by pair: for few pairs, and where nearly each pair of sides has a Lambda_3 of its own."""

    enrolled: Sides
    rows: Ints  # of the enrolled, whose ratios `fill` writes
    patterns: range  # of the tests for which it does

    def fill(self, out: Array, tests: Sides, part: slice) -> None:
        columns = PatternRows(tests, self.patterns, part).rows
        # In large blocks more pairs have equal sums of counts, whose work is shared.
        tests_at_once = max(1, 16 * LISTED_PAIRS_AT_ONCE // len(self.rows))
        for t in range(0, len(columns), tests_at_once):
            i, j = (x.reshape(-1) for x in np.meshgrid(self.rows, columns[t : t + tests_at_once]))
            put_cells(out, i, j - part.start, self.pairs(tests, i, j))

    def pairs(self, tests: Sides, i: Ints, j: Ints) -> Array:
        a = self.enrolled
        G, counts_a, counts_b = common_counts(a.groups, tests.groups)
        of_a = a.groups.index[i]
        of_b = tests.groups.index[j]
        # Pairs with the same sum of counts come one after another, so that each Lambda_3 is inverted once.
        patterns, pattern = np.unique(of_a * len(counts_b) + of_b, return_inverse=True)
        sums = counts_a[patterns // len(counts_b)] + counts_b[patterns % len(counts_b)]
        distinct, place = np.unique(sums, axis=0, return_inverse=True)
        sum_of_pair = place.reshape(-1)[pattern]
        order = np.argsort(sum_of_pair, kind="stable")
        out = empty((len(i),), G)
        for t in range(0, len(i), LISTED_PAIRS_AT_ONCE):
            rows = order[t : t + LISTED_PAIRS_AT_ONCE]
            gamma = take(a.gamma, i[rows]) + take(tests.gamma, j[rows])
            present, index = np.unique(sum_of_pair[rows], return_inverse=True)
            set_rows(out, rows, log_evidence(G, distinct[present], gamma, index))
        return out - take(a.Q, i) - take(tests.Q, j)


# -- the diagonal guess


class GuessedRatios(Ratios):
    """Approximate ratios of any enrolled sides and one set of tests, by a few matrix products."""

    def __init__(self, enrolled: Sides, tests: Sides):
        evidence = DiagonalEvidence.of(enrolled, tests)
        rows, columns = (
            BinnedSets(to_numpy(side.gamma) @ evidence.basis, evidence.counts(side) @ evidence.diagonals, evidence.mean)
            for side in (enrolled, tests)
        )
        matrix = np.empty((len(enrolled), len(tests)))
        for part, ratios in guessed_ratios(rows, columns):
            matrix[np.ix_(rows.order[part], columns.order)] = ratios
        self.matrix = put(matrix, enrolled.gamma)

    def fill(self, out: Array, tests: Sides, part: slice) -> None:
        out[:, :] = self.matrix[:, part]

    def pairs(self, tests: Sides, i: Ints, j: Ints) -> Array:
        flat = namespace(self.matrix).reshape(self.matrix, (-1,))
        return take(flat, i * len(tests) + j)


# -- products by pattern


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
        inside = slice(*np.searchsorted(index, [0, len(patterns)]).tolist())
        self.side = side
        self.patterns = patterns
        self.rows = order[inside] + part.start
        self.pattern: Ints = index[inside]
        self.start: Ints = np.searchsorted(self.pattern, np.arange(len(patterns) + 1))
        self.present: list[int] = np.flatnonzero(np.diff(self.start)).tolist()
        self.increase = one or bool((self.rows[1:] > self.rows[:-1]).all())
        if self.increase and len(self.rows) == part.stop - part.start:  # a view will do
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
        """Where the rows of pattern p are."""
        return slice(int(self.start[p]), int(self.start[p + 1]))


class Lambdas:
    """The matrices Lambda^-1 of counts (S, C) of sessions by type, and ln|Lambda| (S,).

    The matrices are computed once if `keep` and if they fit into `KEPT_BYTES`, and otherwise each time they are used.
    """

    def __init__(self, G: Array, counts: Ints, keep: bool):
        self.G = G
        self.counts = counts
        self.kept = None
        self.ln = empty((len(counts),), G)
        size = 8 * len(counts) * G.shape[-1] ** 2
        if keep and namespace(G) is not np and size <= 1 << 28:  # few enough for a device to compute at once
            self.kept, self.ln = inverses(G, counts, SpdInverse())
        elif keep and size <= KEPT_BYTES:
            kept = empty((len(counts), *G.shape[1:]), G)

            def use(u: int, M: Array) -> None:
                kept[u, ...] = M

            self.each(np.arange(len(counts)), use)
            self.kept = kept

    def each(self, which: Ints, use: Callable[[int, Array], None]) -> None:
        """Call `use(u, M)` with the inverse M for counts[which[u]], in threads; M may be overwritten afterwards."""
        xp = namespace(self.G)
        size = at_once(self.G)

        def work(t: int, invert: SpdInverse) -> None:
            batch = which[t : t + size]
            if self.kept is None:
                M, ln = inverses(self.G, self.counts[batch], invert)
                set_rows(self.ln, batch, ln)
            for u, s in enumerate(batch.tolist()):
                use(t + u, M[u, ...] if self.kept is None else self.kept[s, ...])

        cost = len(which) * self.G.shape[-1] ** 3
        run(work, range(0, len(which), size), cost if xp is np else 0, SpdInverse)


class PatternProducts(Ratios):
    """Exact ratios by products: for each pattern p of the sides `one`, a product with the sides `many` of patterns q.

    The products are those in the head of this file. `one` are the enrolled sides or, if `flip`, the tests. Each side of
    `many` is transformed once for each pattern of `one`, so that the set with fewer patterns should be `one`. Of the
    tests only their patterns are used, so that what is computed once serves all tests with these patterns.
    """

    def __init__(self, ours: PatternRows, theirs: Groups, pb: range, flip: bool):
        """For our sides, and tests grouped as `theirs` whose patterns are in the range `pb`."""
        self.ours = ours
        self.pb = pb
        self.flip = flip
        groups = ours.side.groups
        pa = ours.patterns
        G, counts_a, counts_b = common_counts(groups, theirs)
        enrolled = counts_a[pa.start : pa.stop], groups.ln_Lambda[pa.start : pa.stop]
        tests = counts_b[pb.start : pb.stop], theirs.ln_Lambda[pb.start : pb.stop]
        (one, self.ln_one), (many, self.ln_many) = (tests, enrolled) if flip else (enrolled, tests)
        counts, table = np.unique((one[:, None] + many).reshape(-1, G.shape[0]), axis=0, return_inverse=True)
        self.table: Ints = table.reshape(len(one), len(many))  # equal sums of counts have one Lambda_3
        self.ny = G.shape[-1]
        self.Lambda_3 = Lambdas(G, counts, keep=True)
        self.basis = np.arange(len(many))
        self.c = eye(len(many), G)
        if len(many) > MOST_PATTERNS and self.ny:
            mean = put(one.mean(axis=0), G)
            self._interpolate(eye(self.ny, G) + namespace(G).tensordot(mean, G, axes=1))

    @property
    def size(self) -> int:
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
        most = 512  # patterns that stand for all: with more of them, products would cost more than they save
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

    # -- factors

    @cached_property
    def _ready(self) -> Array:
        """The factors of our sides: `_left` or, if `flip`, `_right` for each p.

        They are computed when they are first used: a device is then at work on the factors of the other sides already.
        """
        if not self.flip:
            return self._left(self.ours)
        ready = empty((len(self.table), len(self.ours.rows), self.ny + 1), self.c)
        for p in range(len(self.table)):
            self._right(p, self.ours, ready[p, ...])
        return ready

    @cached_property
    def _our_c(self) -> Array:
        """(n, r) c_q of our sides, in increasing order of rows. Kept, as a device waits for indices from the host."""
        return take(self.c, self.ours.pattern[self.ours.order])

    def _left(self, one: PatternRows) -> Array:
        """(n, ny + 1 + r) [gamma_1, 1, a_1k], in the order of patterns."""
        xp = namespace(one.gamma)
        ny = self.ny
        g = one.gamma
        out = empty((len(one.rows), ny + 1 + len(self.basis)), g)
        out[:, :ny] = g
        out[:, ny] = 1.0

        def work(p: int) -> None:
            rows = one.of(p)
            which = self.table[p, self.basis]
            if xp is not np and self.Lambda_3.kept is not None:
                out[rows, ny + 1 :] = (_forms(g[rows, :], self.Lambda_3.kept, which) - one.quadratic[rows][:, None]) / 2
                return

            def use(k: int, M: Array) -> None:
                out[rows, ny + 1 + k] = (xp.vecdot(g[rows, :] @ M, g[rows, :]) - one.quadratic[rows]) / 2

            self.Lambda_3.each(which, use)

        each_by_one_thread = xp is np and len(one.present) >= PATTERNS_FOR_THREADS
        run(work, one.present, 2.0 * len(one.rows) * len(self.basis) * ny**2 if each_by_one_thread else 0)
        return out

    def _right(self, p: int, many: PatternRows, out: Array) -> None:
        """out[:, : ny + 1] = [Lambda_3^-1 gamma_2, a_2], (n, ny + 1), in increasing order of rows."""
        xp = namespace(many.gamma)
        ny = self.ny
        g = many.gamma
        solved = out[:, :ny] if many.increase else empty((len(many.rows), ny), g)

        def use(j: int, M: Array) -> None:
            rows = many.of(many.present[j])
            solved[rows, :] = g[rows, :] @ M

        if xp is np or self.Lambda_3.kept is None or not self._stacked(p, many, solved):
            self.Lambda_3.each(self.table[p, many.present], use)
        ln = self.ln_many - take(self.Lambda_3.ln, self.table[p, :]) + self.ln_one[p]
        ln = ln if len(many.patterns) == 1 else take(ln, many.pattern)
        alone = (xp.vecdot(solved, g) - many.quadratic + ln) / 2
        out[:, ny] = alone if many.increase else take(alone, many.order)
        if not many.increase:
            out[:, :ny] = take(solved, many.order)

    def _stacked(self, p: int, many: PatternRows, out: Array) -> bool:
        """out = Lambda_3^-1 gamma_2 by one stack of products, on a device, which waits for each of many small ones.

        False: some patterns have far more sides than others, and a stack would be too large.
        """
        sizes = np.diff(many.start)[many.present]
        if len(sizes) < 4 or len(sizes) * sizes.max() > 8 * len(many.rows):
            return False
        xp = namespace(out)
        most = int(sizes.max())
        stack = empty((len(sizes) * most, self.ny), out)
        place = put(np.flatnonzero((np.arange(most) < sizes[:, None]).reshape(-1)), out)
        set_rows(stack, place, many.gamma)
        M = take(self.Lambda_3.kept, self.table[p, many.present])
        stack = xp.reshape(stack, (len(sizes), most, self.ny)) @ M
        out[:, :] = take(xp.reshape(stack, (len(sizes) * most, self.ny)), place)
        return True

    # -- products

    def fill(self, out: Array, tests: Sides, part: slice) -> None:
        ours = self.ours
        theirs = PatternRows(tests, self.pb, part)
        columns = theirs.rows[theirs.order] - part.start
        if not len(columns):
            return
        ready = self._ready
        xp = namespace(out)
        if self.flip:
            left = self._left(theirs)

            def block(rows: slice, into: Array | None) -> Array:
                ours_c = self._our_c[rows, :]
                factors = (xp.concat([ready[q, rows, :], ours_c], axis=1) for q in theirs.present)
                if len(theirs.present) == 1:
                    return product(next(factors), take(left, theirs.order) if not theirs.increase else left, into)
                parts = [x @ left[theirs.of(q), :].T for q, x in zip(theirs.present, factors, strict=True)]
                values = xp.concat(parts, axis=1)
                return values if theirs.increase else take(values.T, theirs.order).T

            write(out, ours.rows[ours.order], columns, block)
            return

        width = ready.shape[1]

        def room() -> Array:  # for `_right`, and c_q beside it
            right = empty((len(columns), width), theirs.gamma)
            right[:, self.ny + 1 :] = take(self.c, theirs.pattern[theirs.order])
            return right

        def work(p: int, right: Array) -> None:
            self._right(p, theirs, right)
            left = ready[ours.of(p), :]
            write(out, ours.rows[ours.of(p)], columns, lambda rows, into: product(left[rows, :], right, into))

        cost = 2.0 * len(columns) * (len(ours.present) * self.ny**2 + len(ours.rows) * width)
        fits = xp is np and 8 * len(columns) * width <= 1 << 26  # each thread has such an array of its own
        run(work, ours.present, cost if fits and len(ours.present) >= PATTERNS_FOR_THREADS else 0, room)

    def pairs(self, tests: Sides, i: Ints, j: Ints) -> Array:
        theirs = PatternRows(tests, self.pb)
        one, many = (theirs, self.ours) if self.flip else (self.ours, theirs)
        rows_one, rows_many = (j, i) if self.flip else (i, j)
        place_one = one.order[np.searchsorted(one.rows[one.order], rows_one)]  # in the order of patterns
        place_many = np.searchsorted(many.rows[many.order], rows_many)  # in increasing order of rows
        pattern_many = many.pattern[many.order[place_many]]
        width = self.ny + 1
        left = self._left(theirs) if self.flip else self._ready
        # Copies: to take some rows of a part of the columns, NumPy would copy that part each time.
        head = left[:, :width]
        tail = left[:, width:]
        if isinstance(left, np.ndarray):
            head = np.ascontiguousarray(head)
            tail = np.ascontiguousarray(tail)
        out = empty((len(i),), left)
        room = empty((len(many.rows), width), left)
        for p in one.present:
            if not self.flip:
                self._right(p, many, room)
            right = self._ready[p, ...] if self.flip else room
            hit = np.flatnonzero(one.pattern[place_one] == p)
            products = dots(head, right, place_one[hit], place_many[hit])
            set_rows(out, hit, products + dots(tail, self.c, place_one[hit], pattern_many[hit]))
        return out


def _forms(g: Array, stack: Array, which: Ints) -> Array:
    """(n, r) g'Mg for rows g (n, ny) and the matrices M = stack[which], several of them in one product, on a device."""
    xp = namespace(g)
    n, ny = g.shape
    matrices_at_once = max(1, (1 << 27) // max(1, n * ny))  # 1 GiB of products
    out = []
    for k in range(0, len(which), matrices_at_once):
        M = take(stack, which[k : k + matrices_at_once])
        beside = xp.reshape(xp.permute_dims(M, (1, 0, 2)), (ny, M.shape[0] * ny))
        rows = xp.reshape(g @ beside, (n, M.shape[0], ny))
        out.append((rows @ g[:, :, None])[:, :, 0])  # a matrix product holds no further array of the size of `rows`
    return xp.concat(out, axis=1)


# -- pieces of work


def run(
    work: Callable[..., None], items: Sequence[Any], flops: float, scratch: Callable[[], Any] | None = None
) -> None:
    """Do the work of all items, in threads where `flops` are worth starting them; `scratch` is as for `in_order`."""
    deque(in_order(work, items, flops, scratch), maxlen=0)


def product(left: Array, right: Array, into: Array | None) -> Array:
    """left right', written to `into` if that is given."""
    xp = namespace(left)
    if getattr(left, "is_cuda", False) and left.shape[1] % 8:  # other inner sizes take half as long again
        left, right = (xp.concat([x, xp.zeros_like(x[:, : -x.shape[1] % 8])], axis=1) for x in (left, right))
    return left @ right.T if into is None else xp.matmul(left, right.T, out=into)


def write(out: Array, rows: Ints, columns: Ints, block: Callable[[slice, Array | None], Array]) -> None:
    """out[rows, columns] = block(all rows, None), for rows and columns that increase.

    `block(part, into)` gives the values of some of the rows. Where `into` is not None it may write them there, which
    saves a copy. On the host some rows are computed at a time, by threads, and the values stay in the caches.
    """
    xp = namespace(out)
    whole = len(columns) == out.shape[1]
    n = len(rows)
    # On the host there are eight pieces or more for threads to share, since BLAS uses one thread for each piece.
    step = max(16, min(256, n // 8, CHUNK_BYTES // (8 * len(columns)))) if xp is np else n

    def work(t: int) -> None:
        part = slice(t, min(t + step, n))
        these = rows[part]
        stride = int(these[1] - these[0]) if len(these) > 1 else 1
        if whole and (xp is np or is_torch(xp)) and bool((np.diff(these) == stride).all()):
            into = out[int(these[0]) : int(these[-1]) + 1 : stride, :]
            values = block(part, into)
            if values is not into:
                into[...] = values
        elif whole:
            set_rows(out, these, block(part, None))
        else:
            put_cells(out, these[:, None], columns, block(part, None))

    run(work, range(0, n, step), 300.0 * n * len(columns) if xp is np else 0)


def dots(left: Array, right: Array, i: Ints, j: Ints) -> Array:
    """Products of listed pairs of rows, in pieces that stay in the caches."""
    out = empty((len(i),), left)
    most = CHUNK_BYTES if isinstance(left, np.ndarray) else 1 << 28
    step = max(1, most // (32 * max(1, left.shape[1])))
    for t in range(0, len(i), step):
        these = np.arange(t, min(t + step, len(i)))
        set_rows(out, these, namespace(left).vecdot(take(left, i[these]), take(right, j[these])))
    return out


def common_counts(a: Groups, b: Groups) -> tuple[Array, Ints, Ints]:
    """G of the types of both sides, and the counts (P, C) of each side's patterns over these."""
    if np.array_equal(a.types, b.types):
        return a.G, a.rows, b.rows
    both = np.concatenate([a.types, b.types])
    types, first, place = np.unique(both, axis=0, return_index=True, return_inverse=True)
    places = np.split(place.reshape(-1), [len(a.types)])
    counts = [np.zeros((len(groups), len(types)), groups.rows.dtype) for groups in (a, b)]
    for table, groups, columns in zip(counts, (a, b), places, strict=True):
        table[:, columns] = groups.rows
    return take(namespace(a.G).concat([a.G, b.G]), first), counts[0], counts[1]


def put_cells(out: Array, i: Ints, j: Ints, values: Array) -> None:
    """out[i, j] = values."""
    if isinstance(out, np.ndarray) or is_torch(namespace(out)):
        out[put(i, out), put(j, out)] = values
    else:
        flat = namespace(out).reshape(values, (-1,))
        for t, (r, c) in enumerate(zip(*(x.reshape(-1).tolist() for x in np.broadcast_arrays(i, j)), strict=True)):
            out[r, c] = flat[t]
