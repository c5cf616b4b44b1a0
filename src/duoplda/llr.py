"""Sides of trials and the likelihood ratio between them.

A side is a set of recordings with sessions, summed up by (n, gamma, Lambda). With
Q = (gamma'Lambda^-1 gamma - ln|Lambda|) / 2 and sides that share no session,
Lambda_3 = Lambda_1 + Lambda_2 - I, gamma_3 = gamma_1 + gamma_2 and

    LLR = Q_3 - Q_1 - Q_2 = gamma_1'Lambda_3^-1 gamma_2 + a_1 + a_2
    a_s = gamma_s'(Lambda_3^-1 - Lambda_s^-1) gamma_s / 2
    (and the three ln|Lambda|, in a_2). Lambda depends on the counts of sessions by type only, the side's *pattern*.

Between sides of one pattern and sides of patterns q = 1 .. Q this is one matrix product, of inner size ny + 1 + Q:

    [gamma_1, 1, a_11 .. a_1Q] . [Lambda_3^-1 gamma_2, a_2, e_q],    e_q the unit vector of the second side's pattern.

Where Q is large, coefficients c_q (r,) stand for e_q: the Lambda_3^-1, and with them the a_1q, of all patterns are
combinations of those of r patterns (`_Product._interpolate`). Where nearly each pair of sides has a Lambda_3 of its
own, products do not help, and pairs are merged: Q_3 - Q_1 - Q_2 as it stands.

Sides that share a session (one conversation through two microphones) hold parts of it: the whole has type c_1 + c_2 and
z_1 + z_2, which changes Lambda_3 and gamma_3, and its session term (`model.session_terms`) no longer cancels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda import labels as lab
from duoplda._array import (
    Array,
    SpdInverse,
    add_rows,
    eye,
    is_torch,
    namespace,
    one_thread_each,
    put,
    segment_sums,
    set_rows,
    spd_inverse,
    take,
    to_numpy,
    zeros,
)
from duoplda.errors import DuopldaError
from duoplda.labels import Ints, Labels, some
from duoplda.model import Model, Terms, session_terms, sessions
from duoplda.ragged import Patterns, Speakers, speakers
from duoplda.statistics import CHUNK_BYTES

CELLS = 1 << 23  # of a block
MERGED = 1 << 16  # pairs merged at a time
KEEP = 3 << 29  # bytes of inverses that are kept from block to block
MOST_PATTERNS = 64  # of one side in a product, each with a unit vector of its own
FEW = 64  # sides: where more than MOST_PATTERNS patterns have fewer, these are ragged


@dataclass(frozen=True, eq=False)
class Sides:
    """Sets of recordings, each one side of trials: their ids (sorted, unless selected), sessions by type, and gamma."""

    ids: NDArray[Any]  # (n,)
    types: Ints  # (C, K) types of sessions: recordings by kind
    counts: Ints  # (n, C) sessions of each side by type
    gamma: Array  # (n, ny)
    model: Model
    # Named sessions of each side, to see when two sides share one; None where sessions have no names.
    session_ids: NDArray[Any] | None  # (names,) sorted
    session: Ints  # (h,) index into session_ids
    session_side: Ints  # (h,)
    session_type: Ints  # (h,)
    z: Array  # (h, nx)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def terms(self) -> Terms:
        return Terms(self.model, self.types)

    @cached_property
    def patterns(self) -> Patterns:
        return Patterns(self.counts)

    @cached_property
    def posterior(self) -> Speakers:
        return speakers(self.terms.G, self.patterns, self.gamma)

    @cached_property
    def quadratic(self) -> Array:
        """(n,) gamma' Lambda^-1 gamma."""
        return namespace(self.gamma).sum(self.gamma * self.posterior.mean, axis=1)

    @cached_property
    def Q(self) -> Array:
        """(n,) (gamma' Lambda^-1 gamma - ln|Lambda|) / 2."""
        return (self.quadratic - take(self.posterior.ln_Lambda, self.patterns.index)) / 2

    def find(self, ids: Any) -> Ints:
        """Rows of sides by id."""
        wanted = np.asarray(ids).reshape(-1)
        if wanted.dtype.kind in "OT":
            place = {v: i for i, v in enumerate(self.ids.tolist())}
            unknown = list(dict.fromkeys(v for v in wanted.tolist() if v not in place))
            if unknown:
                raise DuopldaError(f"{len(unknown)} ids are not among the {len(self.ids)} enrolled: {some(unknown)}")
            return np.array([place[v] for v in wanted.tolist()], np.int64)
        order = np.argsort(self.ids, kind="stable")
        rows = np.minimum(np.searchsorted(self.ids, wanted, sorter=order), max(len(self.ids) - 1, 0))
        rows = order[rows] if len(order) else rows
        missing = np.unique(wanted[self.ids[rows] != wanted]) if len(self.ids) else np.unique(wanted)
        if len(missing):
            raise DuopldaError(f"{len(missing)} ids are not among the {len(self.ids)} enrolled: {some(missing)}")
        return rows

    def select(self, rows: Any) -> Sides:
        """Some of the sides (a slice, or row numbers in any order), their sessions with them.

        >>> from duoplda import PLDA
        >>> plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
        >>> plda.enroll([[1.0], [2.0], [3.0]], ["a", "b", "c"]).select([2, 0]).ids.tolist()
        ['c', 'a']
        """
        rows = np.ascontiguousarray(np.arange(len(self))[rows])
        first, end = np.searchsorted(self.session_side, [rows, rows + 1])
        n = end - first
        at = np.repeat(first - np.cumsum(n) + n, n) + np.arange(n.sum())  # sessions are in the order of their sides
        return replace(
            self,
            ids=self.ids[rows],
            counts=self.counts[rows],
            gamma=take(self.gamma, rows),
            session=self.session[at],
            session_side=np.repeat(np.arange(len(rows)), n),
            session_type=self.session_type[at],
            z=take(self.z, at),
        )


def enroll(model: Model, X: Array, ids: Any, session: Any = None, channel: Any = None) -> Sides:
    """Sum up sets of recordings. A session may be in several sets: sets are not assumed to be different speakers."""
    side_ids, side = lab.codes(ids, "speaker", X.shape[0])
    names = None
    if session is None:
        cell, cell_name = np.arange(len(side)), np.zeros(0, np.int64)
    else:
        names, name = lab.codes(session, "session", X.shape[0])
        cells, cell = np.unique(side * len(names) + name, return_inverse=True)
        cell, cell_name = cell.reshape(-1), cells % len(names)
    kind = np.zeros(len(side), np.int64) if channel is None else channel
    n_cells = len(side) if names is None else len(cell_name)
    labels = Labels(side_ids, np.arange(n_cells), model.kinds, side, cell, kind)
    s = sessions(model, X, labels)
    keep = slice(None) if names is not None else slice(0, 0)
    return Sides(
        side_ids,
        s.types,
        s.counts,
        s.gamma(Terms(model, s.types)),
        model,
        names,
        cell_name,
        labels.session_speaker[keep],
        s.type[keep],
        s.z[keep, :],
    )


def matrix(a: Sides, b: Sides) -> Array:
    """(len(a), len(b)) ln likelihood ratios."""
    return _Scorer(a, b).columns(slice(0, len(b)))


def blocks(a: Sides, b: Sides, cells: int | None = None, host: bool = False) -> Iterator[tuple[slice, Array]]:
    """Columns of `matrix`, about so many cells at a time: (slice of b's rows, (len(a), k) ratios).

    With `host`, blocks are NumPy's; those of a GPU are copied while the next one is computed.
    """
    cells = cells or (CELLS if namespace(a.gamma) is np else 16 * CELLS)
    scorer, step = _Scorer(a, b), max(1, cells // max(len(a), 1))
    parts = (slice(i, min(i + step, len(b))) for i in range(0, len(b), step))
    computed = ((part, scorer.columns(part)) for part in parts)
    return _on_host(computed) if host else computed


def _on_host(computed: Iterable[tuple[slice, Array]]) -> Iterator[tuple[slice, NDArray[Any]]]:
    before: list[tuple[slice, Array, Any]] = []
    stream = None
    for part, block in computed:
        if not getattr(block, "is_cuda", False):
            yield part, to_numpy(block)
            continue
        import torch

        stream = stream or torch.cuda.Stream(block.device)
        stream.wait_stream(torch.cuda.current_stream(block.device))
        with torch.cuda.stream(stream):
            there = torch.empty(block.shape, dtype=block.dtype, pin_memory=True).copy_(block, non_blocking=True)
            block.record_stream(stream)  # its memory is not handed out again before it has been read
            before.append((part, there, stream.record_event()))
        if len(before) > 1:
            yield _arrived(*before.pop(0))
    for each in before:
        yield _arrived(*each)


def _arrived(part: slice, there: Array, event: Any) -> tuple[slice, NDArray[Any]]:
    event.synchronize()
    return part, there.numpy()


def top(a: Sides, b: Sides, k: int) -> tuple[Array, Array]:
    """The k best rows of `a` (all, if it has fewer) for each of `b`, and their ratios: (len(b), k) twice, best first.

    Of equal ratios that of the lower row comes first. The matrix is never whole.
    """
    if not isinstance(k, Integral) or k < 1:
        raise DuopldaError(f"k={k!r} must be a whole number from 1 on")
    k = min(int(k), len(a))
    found = [best(block, k) for _, block in blocks(a, b)] if k else []
    rows, ratios = zip(*found, strict=True) if found else ([np.zeros((len(b), k), np.int64)], [np.zeros((len(b), k))])
    return put(np.concatenate(rows), a.gamma), put(np.concatenate(ratios), a.gamma)


def best(block: Array, k: int) -> tuple[Ints, NDArray[Any]]:
    """Rows and values of the k largest of each column (of equal ones, the first): (columns, k), on the host.

    The k-th largest maximum of groups of rows is at most the k-th largest value: what is smaller is not looked at.
    """
    xp, (n, m) = namespace(block), block.shape
    if is_torch(xp):
        value, row = block.T.topk(k, dim=1)
        if bool(((block >= value[:, -1]).sum(dim=0) == k).all()):  # no doubt which k these are
            row, value = to_numpy(row), to_numpy(value)
            order = np.lexsort((row, -value), axis=1)
            return np.take_along_axis(row, order, axis=1), np.take_along_axis(value, order, axis=1)
    width = max(1, min(64, n // (4 * k)))
    groups = n // width
    maxima = xp.max(xp.reshape(block[: groups * width, :], (groups, width, m)), axis=1)
    enough = block >= xp.sort(maxima, axis=0)[groups - k, :]
    cell = xp.nonzero(xp.reshape(enough, (n * m,)))[0]
    value = to_numpy(xp.take(xp.reshape(block, (n * m,)), cell, axis=0))
    row, column = np.divmod(to_numpy(cell), m)
    order = np.lexsort((row, -value, column))
    chosen = order[np.searchsorted(column[order], np.arange(m))[:, None] + np.arange(k)]
    return row[chosen], value[chosen]


def pairs(a: Sides, b: Sides, index: Any) -> Array:
    """(n,) ln likelihood ratios of listed pairs (n, 2) of rows of a and of b."""
    try:
        index = to_numpy(index)
    except ValueError:
        raise DuopldaError("pairs must be integers of shape (n, 2), got rows of different lengths") from None
    if index.ndim != 2 or index.shape[1] != 2 or index.dtype.kind not in "iu":
        raise DuopldaError(f"pairs must be integers of shape (n, 2), got {index.dtype} of shape {index.shape}")
    index = index.astype(np.int64, copy=False)  # row * columns + column must not wrap round
    for column, side in ((0, a), (1, b)):
        bad = np.flatnonzero((index[:, column] < 0) | (index[:, column] >= len(side)))
        if len(bad):
            raise DuopldaError(
                f"{len(bad)} pairs name rows that are not there (side {column + 1} has {len(side)}): {some(bad)}"
            )
    (used_a, i), (used_b, j) = _used(a, index[:, 0]), _used(b, index[:, 1])
    factors = len(used_a.patterns) * len(used_b) + len(used_b.patterns) * len(used_a)
    out = _merged(used_a, used_b, i, j) if factors > len(index) else _gathered(used_a, used_b, i, j)
    shared = _shared(a, b, index)
    if shared is not None:
        rows, columns, values = shared  # sorted by trial
        trial, cell = rows * len(b) + columns, index[:, 0] * len(b) + index[:, 1]
        place = np.minimum(np.searchsorted(trial, cell), len(trial) - 1)
        hit = np.flatnonzero(trial[place] == cell)
        set_rows(out, hit, take(values, place[hit]))
    return out


def _used(side: Sides, rows: Ints) -> tuple[Sides, Ints]:
    """The sides that are used, unless these are most of them, and the rows among them."""
    used = np.zeros(len(side), bool)
    used[rows] = True
    return (side.select(used), (np.cumsum(used) - 1)[rows]) if 2 * used.sum() < len(side) else (side, rows)


# -- products ----------------------------------------------------------------------------------------------------------


class _Scorer:
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
        self.shared = _shared(a, b)

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
                _put(out, i, j - part.start, _merged(self.a, self.b, i, j))
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


def _merged(a: Sides, b: Sides, i: Ints, j: Ints) -> Array:
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


def _gathered(a: Sides, b: Sides, i: Ints, j: Ints) -> Array:
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


def _shared(a: Sides, b: Sides, only: Ints | None = None) -> tuple[Ints, Ints, Array] | None:
    """Trials whose sides share a session: rows, columns and their ln likelihood ratios."""
    names_a, names_b = a.session_ids, b.session_ids
    if names_a is None or names_b is None or (names_a.dtype.kind in "biuf") != (names_b.dtype.kind in "biuf"):
        return None
    if names_a.dtype.kind not in "biuf":
        names_a, names_b = names_a.astype(str), names_b.astype(str)  # bytes are text too
    common = np.intersect1d(names_a, names_b, assume_unique=True)
    if not len(common):
        return None
    place = np.full(len(names_b), -1)
    place[np.searchsorted(names_b, common)] = np.searchsorted(names_a, common)
    name_b = place[b.session]  # the session's name in a's numbering, -1 if it is not there
    cells_b = np.flatnonzero(name_b >= 0)
    cells_b = cells_b[np.argsort(name_b[cells_b], kind="stable")]
    low = np.searchsorted(name_b[cells_b], a.session, side="left")
    count = np.searchsorted(name_b[cells_b], a.session, side="right") - low
    ca = np.repeat(np.arange(len(a.session)), count)
    cb = cells_b[np.repeat(low, count) + np.arange(len(ca)) - np.repeat(np.cumsum(count) - count, count)]
    trial = a.session_side[ca] * len(b) + b.session_side[cb]
    if only is not None:
        listed = np.isin(trial, only[:, 0] * len(b) + only[:, 1])
        ca, cb, trial = ca[listed], cb[listed], trial[listed]
    if not len(trial):
        return None
    xp = namespace(a.gamma)
    # Merged types: one for each pair of types that meet.
    meet, which = np.unique(a.session_type[ca] * len(b.types) + b.session_type[cb], return_inverse=True)
    which = which.reshape(-1)
    ta, tb = meet // len(b.types), meet % len(b.types)
    merged = Terms(a.model, a.types[ta] + b.types[tb])
    trials, at = np.unique(trial, return_inverse=True)
    at = at.reshape(-1)
    i, j = trials // len(b), trials % len(b)
    za, zb = take(a.z, ca), take(b.z, cb)
    gain = (
        session_terms(merged, which, za + zb)
        - session_terms(a.terms, a.session_type[ca], za)
        - session_terms(b.terms, b.session_type[cb], zb)
    )[:, None]
    shift = zeros((len(ca), a.gamma.shape[1]), a.gamma)
    for t in range(len(meet)):
        of = np.flatnonzero(which == t)
        x, y = take(za, of), take(zb, of)
        change = x @ a.terms.PJ[int(ta[t]), ...] + y @ b.terms.PJ[int(tb[t]), ...] - (x + y) @ merged.PJ[t, ...]
        add_rows(shift, of, change)
    order = np.argsort(at, kind="stable")
    starts = np.flatnonzero(np.diff(at[order], prepend=-1))
    gain, shift = segment_sums(take(gain, order), starts)[:, 0], segment_sums(take(shift, order), starts)
    gamma = take(a.gamma, i) + take(b.gamma, j) + shift
    met = np.bincount(at * len(meet) + which, minlength=len(trials) * len(meet)).reshape(len(trials), -1)
    G = xp.concat([a.terms.G, b.terms.G, merged.G - take(a.terms.G, ta) - take(b.terms.G, tb)])
    patterns = Patterns(np.concatenate([a.counts[i], b.counts[j], met], axis=1))
    both = speakers(G, patterns, gamma)

    Q3 = (xp.sum(gamma * both.mean, axis=1) - take(both.ln_Lambda, patterns.index)) / 2
    return i, j, gain + Q3 - take(a.Q, i) - take(b.Q, j)
