"""Scores of enrolled sides and test sides: all of them, in blocks, the highest of each test, or listed pairs."""

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from numbers import Integral
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.arrays import Array, is_torch, namespace, put, reproducible, set_rows, take, to_numpy
from duoplda.data.labels import Ints, places
from duoplda.errors import DuopldaError, some
from duoplda.trials.meeting import shared
from duoplda.trials.ranking import ranking_of
from duoplda.trials.ratios import (
    KEPT_BYTES,
    GuessedRatios,
    ListedRatios,
    PatternProducts,
    PatternRows,
    Ratios,
    dots,
    put_cells,
    run,
)
from duoplda.trials.sides import Sides
from duoplda.trials.structure import Floats, Structure, Structures, guessed
from duoplda.trials.tables import empty

SCORES_PER_BLOCK = 1 << 23  # 64 MiB: large enough for products, small beside what holds the sides

# The map of a calibration by the structure of trials: (expected, alike) -> (scale, offset), each an array of trials
StructureMap = Callable[[Floats, Floats], tuple[Floats, Floats]]


def plan_ratios(a: Sides, b: Sides, whole: bool) -> list[Ratios]:
    """Choose the way in which the ratios of two sets of sides are computed, for each part of their patterns.

    With `whole`, all are computed by products, however ragged the sides are.
    """
    out: list[Ratios] = []
    ny = a.gamma.shape[1]
    parts = [[(range(len(s.groups)), False)] if whole else s.groups.parts for s in (a, b)]
    for (pa, rare_a), (pb, rare_b) in itertools.product(*parts):
        ours = PatternRows(a, pa)
        cells = len(ours.rows) * int(np.sum(b.groups.multiplicity[pb.start : pb.stop]))
        # An inverse costs as much as about 4 ny solutions, and products need one for each pair of patterns.
        if rare_a and rare_b and cells < 2 * ny * len(pa) * len(pb):
            out.append(ListedRatios(a, ours.rows, pb))
        else:
            kept = 8 * len(pb) * len(ours.rows) * (ny + 1)
            flip = len(pb) == 1 or (rare_a > rare_b and kept <= KEPT_BYTES)
            out.append(PatternProducts(ours, b.groups, pb, flip))
    return out


class Scorer:
    """Ln likelihood ratios of enrolled sides and any number of sets of test sides.

    What depends on the enrolled sides and on the patterns of the tests is computed once, and kept for all sets of tests
    that have the same patterns (up to `kept_bytes`, and always for the last one). When sides are added to the
    enrolled ones or removed, it is computed again. With `cosine`, scores are the cosines of gamma instead. With a
    `calibration` that knows the structure of trials, ratios are calibrated here, before the highest are chosen: it may
    change which they are. The scores are the same bits for any number of threads.

    Where nearly every side of both sets has counts of sessions of its own, no product serves many pairs. They are then
    computed one by one, some thousands of them in a second, and `guesses` may be enough.

    >>> from duoplda import PLDA
    >>> plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
    >>> scorer = Scorer(plda.enroll([[-1.0], [0.0], [2.0]], ["a", "b", "c"]))
    >>> [scorer.columns(plda.enroll([[x]], ["test"])).argmax().item() for x in (-2.0, 0.1, 3.0)]
    [0, 1, 2]
    """

    def __init__(
        self,
        enrolled: Sides,
        cosine: bool = False,
        kept_bytes: int = KEPT_BYTES,
        calibration: StructureMap | None = None,
    ):
        self.enrolled = enrolled
        self.calibration = calibration
        self.structures = Structures(enrolled)
        self.version = enrolled.version
        self.lock = Lock()
        self.cosine = cosine
        self.kept_bytes = kept_bytes
        self.plans: OrderedDict[Any, list[Ratios]] = OrderedDict()

    @property
    def a(self) -> Sides:
        """The enrolled sides as evidence."""
        return self.enrolled.weighed

    def plan(self, b: Sides, whole: bool = False) -> list[Ratios]:
        """The ways to compute ratios of tests with the patterns of b, with what is kept from earlier such tests."""
        with self.lock:
            if self.version != self.enrolled.version:
                self.plans.clear()
                self.version = self.enrolled.version
            ragged = any(rare for side in (self.a, b) for _, rare in side.groups.parts)
            key = (whole and ragged, b.groups.key)
            if key not in self.plans:
                self.plans[key] = plan_ratios(self.a, b, whole)
            self.plans.move_to_end(key)
            while len(self.plans) > 1:
                kept = sum(ratios.size for plan in self.plans.values() for ratios in plan)
                if kept <= self.kept_bytes:
                    break
                self.plans.popitem(last=False)
            return self.plans[key]

    @reproducible()
    def columns(self, tests: Sides, part: slice | None = None) -> Array:
        """(enrolled, k) scores of the tests in a slice, or of all tests."""
        part = part or slice(0, len(tests))
        tests = tests.weighed
        if self.cosine:
            return _unit(self.a.gamma) @ _unit(tests.gamma[part, ...]).T
        out = empty((len(self.a), part.stop - part.start), self.a.gamma)
        for ratios in self.plan(tests):
            ratios.fill(out, tests, part)
        both = shared(self.a, tests, part)
        if both is not None:
            i, j, values = both
            put_cells(out, i, j - part.start, values)
        if self.calibration is not None:
            structure, column = self.structures.of_columns(tests, part)
            _stretch(out, self.a.groups.index, *(v[:, column] for v in self.calibration(*structure)))
        return out

    def blocks(self, tests: Sides, cells: int | None = None, host: bool = False) -> Iterator[tuple[slice, Array]]:
        """All columns in blocks of about `cells` scores: (slice of tests, (enrolled, k) scores).

        With `host`, blocks are NumPy's; those of a GPU are copied while the next one is computed.
        """
        like = self.a.gamma
        if cells is None and namespace(like) is np:
            cells = SCORES_PER_BLOCK
        elif cells is None:  # a device gains by larger blocks: up to a sixteenth of the memory of a GPU
            cells = 16 * SCORES_PER_BLOCK
            if getattr(like, "is_cuda", False) and not host:
                import torch

                cells = max(cells, torch.cuda.get_device_properties(like.device).total_memory // (16 * 8))
        step = max(1, cells // max(len(self.a), 1))
        if step > 256 and namespace(like) is not np:
            step -= step % 256  # a device multiplies faster where the rows of a block begin at multiples of 256 numbers
        parts = (slice(i, min(i + step, len(tests))) for i in range(0, len(tests), step))
        computed = ((part, self.columns(tests, part)) for part in parts)
        return _on_host(computed) if host else computed

    def top(self, tests: Sides, k: int) -> tuple[Array, Array]:
        """The k highest-scoring rows of the enrolled for each test, highest first, and their scores: (tests, k) twice.

        Where fewer than k are enrolled, all of them are returned. Of equal scores, that of the lower row comes first.
        The matrix of all scores is never in memory.
        """
        if not isinstance(k, Integral) or k < 1:
            raise DuopldaError(f"k={k!r} must be a whole number from 1 on")
        k = min(int(k), len(self.a))
        tests = tests.weighed
        # A ranking compares raw ratios, whose order is not that of ratios that are calibrated by structure.
        raw = not self.cosine and self.calibration is None
        ranking = ranking_of(self.a) if raw and 16 * k <= len(self.a) else None
        if ranking is not None and shared(self.a, tests) is None:
            return ranking.top(tests, k)
        xp = namespace(self.a.gamma)
        highest = _highest_on_device if is_torch(xp) else best
        parts = [highest(block, k) for _, block in self.blocks(tests)] if k else []
        if not parts:
            none = np.zeros((len(tests), k))
            return put(none.astype(np.int64), self.a.gamma), put(none, self.a.gamma)
        rows, scores = (namespace(*arrays).concat(arrays) for arrays in zip(*parts, strict=True))
        return put(rows, self.a.gamma), put(scores, self.a.gamma)

    @reproducible()
    def pairs(self, tests: Sides, index: ArrayLike, expected: int = 0) -> Array:
        """(n,) scores of listed pairs (n, 2) of rows of the enrolled and of the tests.

        `expected` is the number of pairs in all, where further pairs of the same enrolled sides will follow: for more
        pairs it is worth computing more of what they share.
        """
        index = listed_pairs(index, (len(self.a), len(tests)))
        tests = tests.weighed
        if self.cosine:
            return dots(_unit(self.a.gamma), _unit(tests.gamma), index[:, 0], index[:, 1])
        used, rows = _used(tests, index[:, 1])
        out = self._unshared(used, np.column_stack([index[:, 0], rows]), expected)
        both = shared(self.a, tests, only=index)
        if both is not None:
            rows, columns, values = both  # sorted by trial
            place = places(index[:, 0] * len(tests) + index[:, 1], rows * len(tests) + columns)
            hit = np.flatnonzero(place >= 0)
            set_rows(out, hit, take(values, place[hit]))
        if self.calibration is None:
            return out
        return self._by_structure(out, self.structures.of_pairs(tests, *index.T))

    def _by_structure(self, ratios: Array, structure: Structure) -> Array:
        """Calibrate ratios by the structure of each trial."""
        assert self.calibration is not None
        scale, offset = (put(values, ratios) for values in self.calibration(*structure))
        return scale * ratios + offset

    def guesses(self, tests: Sides, index: ArrayLike | None = None) -> Array:
        """Approximate `columns`, or `pairs`, by a few products (`duoplda.trials.ratios.GuessedRatios`).

        Guesses may be several nats away. Use them to find the pairs that deserve exact ratios; do not report them.
        """
        if len(self.a.session) and len(np.intersect1d(self.a.session, tests.session)):
            raise DuopldaError(
                "some sides share a session, which only exact ratios take into account: leave out approximate"
            )
        tests = tests.weighed
        ratios = GuessedRatios(self.a, tests)
        if index is not None:
            i, j = listed_pairs(index, (len(self.a), len(tests))).T
            values = ratios.pairs(tests, i, j)
            if self.calibration is None:
                return values
            return self._by_structure(values, Structure(*(v[i, j] for v in guessed(self.a, tests))))
        out = empty((len(self.a), len(tests)), self.a.gamma)
        ratios.fill(out, tests, slice(0, len(tests)))
        return out if self.calibration is None else self._by_structure(out, guessed(self.a, tests))

    def _unshared(self, tests: Sides, index: Ints, expected: int) -> Array:
        """Ratios of pairs as if no session were shared, in the way that costs less.

        The work is counted in solutions of Lambda_3. Pair by pair, each takes one. The factors of the tests take one
        for each pattern of the enrolled, and those of the enrolled, which serve all pairs that are expected, one for
        each pattern of the tests.
        """
        i, j = index.T
        of_tests = len(self.a.groups) * len(tests)
        of_enrolled = len(tests.groups) * len(self.a)
        if of_tests + of_enrolled * len(i) / max(expected, len(i), 1) <= len(i):
            (ratios,) = self.plan(tests, whole=True)
            return ratios.pairs(tests, i, j)
        enrolled, i = _used(self.a, i)
        if enrolled is not self.a:
            return Scorer(enrolled)._unshared(tests, np.column_stack([i, j]), 0)
        return ListedRatios(enrolled, np.arange(0), range(0)).pairs(tests, i, j)


def _stretch(out: Array, pattern: Ints, scale: Floats, offset: Floats) -> None:
    """out = scale out + offset in place, for scales and offsets (P, k) of the patterns of rows."""
    rows_at_once = max(1, (1 << 15) // max(1, out.shape[1])) if namespace(out) is np else len(pattern)
    a, b = (put(values, out) for values in (scale, offset))

    def work(start: int) -> None:
        rows = slice(start, start + rows_at_once)
        out[rows, :] = take(a, pattern[rows]) * out[rows, :] + take(b, pattern[rows])

    run(work, range(0, len(pattern), max(1, rows_at_once)), 4.0 * len(pattern) * out.shape[1])


def _unit(rows: Array) -> Array:
    xp = namespace(rows)
    length = xp.sqrt(xp.sum(rows * rows, axis=1, keepdims=True))
    return rows / xp.where(length > 0, length, xp.ones_like(length))


def _on_host(computed: Iterable[tuple[slice, Array]]) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Blocks as arrays of NumPy. Those of a GPU are copied on a stream of their own while the next one is computed."""
    before: deque[tuple[slice, Array, Any]] = deque()
    stream = None
    for part, block in computed:
        if not getattr(block, "is_cuda", False):
            yield part, to_numpy(block)
            continue
        import torch

        stream = stream or torch.cuda.Stream(block.device)
        stream.wait_stream(torch.cuda.current_stream(block.device))
        with torch.cuda.stream(stream):
            copy = torch.empty(block.shape, dtype=block.dtype, pin_memory=True).copy_(block, non_blocking=True)
            block.record_stream(stream)  # its memory is not handed out again before it has been read
            before.append((part, copy, stream.record_event()))
        if len(before) > 1:
            yield _arrived(*before.popleft())
    for arriving in before:
        yield _arrived(*arriving)


def _arrived(part: slice, copy: Array, event: Any) -> tuple[slice, NDArray[Any]]:
    """The copy, as soon as it is complete."""
    event.synchronize()
    return part, copy.numpy()


def best(block: Array, k: int) -> tuple[Ints, NDArray[Any]]:
    """Rows and values of the k largest of each column (of equal ones, the first): (columns, k), on the host.

    The k-th largest maximum of groups of rows is at most the k-th largest value, so that smaller values are left out.
    """
    xp = namespace(block)
    n, m = block.shape
    if is_torch(xp):
        row, value = _highest_on_device(block, k)
        return to_numpy(row), to_numpy(value)
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


def _highest_on_device(block: Array, k: int) -> tuple[Array, Array]:
    """`best` of a tensor, on its device. The whole tensor is read only once, for the maxima of groups of 32 rows.

    The k-th largest of a few maxima is a lower bound of the k-th largest value. Only groups whose maximum reaches it
    are read again, some ten for each column. Where many values are equal these are too many, and columns are sorted.
    """
    n, m = block.shape
    device = block.device
    width = min(32, int((n / k) ** 0.5), n // (8 * k))
    if width < 2:
        return _sorted_on_device(block, k)
    xp = namespace(block)
    groups = -(-n // width)
    whole = n // width
    maxima = xp.empty((groups, m), dtype=block.dtype, device=device)
    xp.amax(block[: whole * width].reshape(whole, width, m), 1, out=maxima[:whole])
    if whole < groups:
        xp.amax(block[whole * width :], 0, out=maxima[whole])
    groups_together = max(1, whole // (8 * k))
    coarse = maxima[: whole // groups_together * groups_together].reshape(-1, groups_together, m).amax(1)
    least = coarse.topk(k, dim=0).values[-1]  # (m,)
    group, column = (~(maxima < least)).nonzero(as_tuple=True)  # in the order of groups; NaN is never lost
    if len(group) * width > n * m // 8 + 4096:
        return _sorted_on_device(block, k)
    row = group[:, None] * width + xp.arange(width, device=device)
    value = block[row.clamp(max=n - 1), column[:, None]]  # (candidates, width)
    enough = ~(value < least[column][:, None])
    if whole < groups:
        enough &= row < n
    i, j = enough.nonzero(as_tuple=True)
    row = row[i, j]
    value = value[i, j]
    column = column[i]
    order = value.sort(descending=True, stable=True).indices  # of equal values, the lower row comes first
    column, again = column[order].sort(stable=True)
    first = xp.searchsorted(column, xp.arange(m, device=device))
    chosen = order[again[first[:, None] + xp.arange(k, device=device)]]
    return row[chosen], value[chosen]


def _sorted_on_device(block: Array, k: int) -> tuple[Array, Array]:
    """`best` of a tensor by sorting its columns, some at a time."""
    xp = namespace(block)
    n, m = block.shape
    step = max(1, SCORES_PER_BLOCK // n)
    rows = []
    values = []
    for t in range(0, m, step):
        value, row = block[:, t : t + step].T.sort(dim=1, descending=True, stable=True)
        rows.append(row[:, :k])
        values.append(value[:, :k])
    return xp.cat(rows), xp.cat(values)


def listed_pairs(index: ArrayLike, sizes: tuple[int, int]) -> Ints:
    """Pairs (n, 2) of row numbers as integers, or an error where they name rows that do not exist."""
    try:
        index = to_numpy(index)
    except ValueError:
        raise DuopldaError("pairs must be integers of shape (n, 2), got rows of different lengths") from None
    if index.ndim != 2 or index.shape[1] != 2 or index.dtype.kind not in "iu":
        raise DuopldaError(f"pairs must be integers of shape (n, 2), got {index.dtype} of shape {index.shape}")
    index = index.astype(np.int64, copy=False)  # row * columns + column must not wrap round
    for column, n in enumerate(sizes):
        off = np.flatnonzero((index[:, column] < 0) | (index[:, column] >= n))
        if len(off):
            side = f"side {column + 1} has {n}"
            raise DuopldaError(f"{len(off)} pairs name rows that do not exist ({side}): {some(off)}")
    return index


def _used(side: Sides, rows: Ints) -> tuple[Sides, Ints]:
    """The sides that occur in `rows`, and the rows renumbered; all sides where at least half of them occur."""
    used = np.zeros(len(side), bool)
    used[rows] = True
    if 2 * used.sum() >= len(side):
        return side, rows
    return side.select(used), (np.cumsum(used) - 1)[rows]
