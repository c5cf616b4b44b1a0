"""Rows of arrays: checks of those that users give, and taking, setting and adding rows by their indices."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays.libraries import Array, is_torch, namespace, put, to_numpy, zeros
from duoplda.errors import DuopldaError, some


def check_rows(X: Array) -> tuple[Array, Any]:
    """Return a matrix of real numbers and its array library; a DuopldaError says why `X` is none."""
    xp = namespace(X)
    X = to_numpy(X) if xp is np else X
    if xp.isdtype(X.dtype, "complex floating"):
        raise DuopldaError(f"recordings must be real numbers, got complex ones ({X.dtype})")
    if xp is np and X.dtype.kind not in "fiub":
        try:
            X = X.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise DuopldaError(f"recordings must be numbers, got dtype {X.dtype}: {error}") from None
    if X.ndim != 2:
        raise DuopldaError(f"recordings must be a matrix of shape (recordings, dimensions), got shape {tuple(X.shape)}")
    if X.shape[0] == 0 or X.shape[1] == 0:
        raise DuopldaError(f"found an array with shape {tuple(X.shape)}: at least one recording is needed")
    return X, xp


def check_finite(X: Array, ids: NDArray[Any] | None = None) -> None:
    """Raise a DuopldaError that names the rows that are not finite, or their recordings by `ids`, if there are any."""
    xp = namespace(X)
    bad = np.flatnonzero(~to_numpy(xp.all(xp.isfinite(X), axis=1)))
    if len(bad):
        where = f"{len(bad)} of {X.shape[0]} rows: {some(bad)}"
        if ids is not None:  # X may be a chunk, in which row numbers would mislead
            where = f"{len(bad)} recordings: {some(ids[bad])}"
        remedy = "Remove these recordings, or look at what the extractor did with them (empty or silent audio?)"
        raise DuopldaError(f"Input X contains NaN or infinity in {where}. {remedy}")


def check_index(**columns: Any) -> None:
    """Raise a DuopldaError where the rows of data frames or Series have different names, or the same in another order.

    Lists, arrays and polars have no index and are taken in their order. Different lengths are refused elsewhere.
    """
    named = {name: rows.index for name, rows in columns.items() if hasattr(getattr(rows, "index", None), "equals")}
    for name in list(named)[1:]:
        first = next(iter(named))
        index = named[name]
        expected = named[first]
        if len(index) != len(expected) or index.equals(expected):
            continue
        row = int(np.argmax(np.asarray(expected != index)))
        wanted, got = (names[row : row + 1].tolist()[0] for names in (expected, index))  # 7, not np.int64(7)
        order = f"{name}.loc[{first}.index] puts them in the order of {first}; " if expected.isin(index).all() else ""
        raise DuopldaError(
            f"{first} and {name} have different indexes: row {row} is {wanted!r} in {first}, and {got!r} "
            f"in {name}. {order}where the order is right as it is, give {name}.to_numpy()"
        )


def take(array: Array, index: NDArray[Any]) -> Array:
    """Return the rows of an array that have these indices, which are on the host."""
    xp = namespace(array)
    return np.take(array, index, axis=0) if xp is np else xp.take(array, put(index, array), axis=0)


def set_rows(array: Array, index: NDArray[Any], rows: Array) -> None:
    """Set `array[index] = rows` in place."""
    if isinstance(array, np.ndarray):
        array[index] = rows
    elif is_torch(namespace(array)):
        array[put(index, array)] = rows
    else:
        for row, i in enumerate(index):  # the standard has no assignment by an array of indices
            array[int(i), ...] = rows[row, ...]


def add_rows(array: Array, index: NDArray[Any], rows: Array) -> None:
    """Add `array[index] += rows` in place; no index may repeat."""
    xp = namespace(array)
    if xp is np:
        array[index] += rows
    elif is_torch(xp):
        array.index_add_(0, put(index, array), rows)
    else:
        set_rows(array, index, take(array, index) + rows)


def segment_sums(rows: Array, starts: NDArray[Any]) -> Array:
    """Return sums of consecutive rows. Segment s begins at row `starts[s]`; none is empty. The result may be `rows`."""
    xp = namespace(rows)
    if len(starts) == rows.shape[0]:  # every segment is one row
        return rows
    if xp is np:
        from scipy.sparse import csr_array

        # A product with a sparse matrix of ones is ten times as fast as np.add.reduceat, which goes by columns.
        n = rows.shape[0]
        ones = np.ones(n, rows.dtype)
        return csr_array((ones, np.arange(n), np.append(starts, n)), shape=(len(starts), n)) @ rows
    ends = np.append(starts[1:], rows.shape[0])
    if is_torch(xp):
        out = zeros((len(starts), rows.shape[1]), rows)
        out.index_add_(0, put(np.repeat(np.arange(len(starts)), ends - starts), rows), rows)
        return out
    return xp.stack([xp.sum(rows[a:b, :], axis=0) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)])


def add_segments(array: Array, index: Array, rows: Array) -> None:
    """Add `array[index] += rows` in place, for an increasing index that may repeat."""
    xp = namespace(array)
    index = to_numpy(index)
    starts = np.flatnonzero(np.diff(index, prepend=-1))
    ends = np.append(starts[1:], len(index))
    if not is_torch(xp):
        add_rows(array, index[starts], segment_sums(rows, starts))
    elif len(starts) <= 8 and 64 * len(starts) < len(index):  # few long runs: segment_reduce has one thread per column
        for i, a, b in zip(index[starts].tolist(), starts.tolist(), ends.tolist(), strict=True):
            array[i] += rows[a:b].sum(0)
    else:  # sums of runs first, which is faster than adding row by row, and gives the same bits every time
        sums = xp.segment_reduce(rows, "sum", lengths=put(ends - starts, array), axis=0, unsafe=True)
        array.index_add_(0, put(index[starts], array), sums)


def bincount(index: Array, n: int) -> Array:
    """Count how often each of the integers 0 .. n - 1 occurs in an array."""
    if isinstance(index, np.ndarray):
        return np.bincount(index, minlength=n)
    table = index.new_zeros(n)  # torch.bincount would first find the largest entry, and wait until the host has it
    return table.scatter_add_(0, index, index.new_ones(1).expand_as(index))


def ranked(values: Array) -> tuple[Array, Array, Array]:
    """Return the distinct integers (>= 0) in increasing order, the rank of each entry, and how often each occurs."""
    xp = namespace(values)
    high = int(xp.max(values)) + 1 if values.shape[0] else 0
    if high > 4 * values.shape[0] + 1024:  # too many for a table, which is several times faster than sorting
        if xp is np:
            return np.unique(values, return_inverse=True, return_counts=True)
        return values.unique(return_inverse=True, return_counts=True)
    table = bincount(values, high)
    distinct = xp.nonzero(table)[0]
    return distinct, (xp.cumulative_sum(xp.astype(table > 0, xp.int64)) - 1)[values], table[distinct]
