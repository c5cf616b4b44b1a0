"""The likelihood ratio between sides of trials: all, in blocks, the best few, listed pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Array, is_torch, namespace, put, set_rows, take, to_numpy
from duoplda.data.labels import Ints
from duoplda.errors import DuopldaError, some
from duoplda.trials.ratios import CELLS, Scorer, gathered, merged
from duoplda.trials.sides import Sides, enroll, shared

__all__ = ["Sides", "best", "blocks", "enroll", "matrix", "pairs", "top"]


def matrix(a: Sides, b: Sides) -> Array:
    """(len(a), len(b)) ln likelihood ratios."""
    return Scorer(a, b).columns(slice(0, len(b)))


def blocks(a: Sides, b: Sides, cells: int | None = None, host: bool = False) -> Iterator[tuple[slice, Array]]:
    """Columns of `matrix`, about so many cells at a time: (slice of b's rows, (len(a), k) ratios).

    With `host`, blocks are NumPy's; those of a GPU are copied while the next one is computed.
    """
    cells = cells or (CELLS if namespace(a.gamma) is np else 16 * CELLS)
    scorer, step = Scorer(a, b), max(1, cells // max(len(a), 1))
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
    out = merged(used_a, used_b, i, j) if factors > len(index) else gathered(used_a, used_b, i, j)
    both = shared(a, b, index)
    if both is not None:
        rows, columns, values = both  # sorted by trial
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
