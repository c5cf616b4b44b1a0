"""Tables that grow row by row, and an index of the names in them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Array, namespace, take
from duoplda.data.labels import Ints


class Table:
    """Columns of one length, the first of which may be names.

    There is free room behind the rows: to append n rows one by one costs O(n), not O(n^2).
    """

    def __init__(self, **columns: Array):
        self.columns = columns
        self.n: int = next(iter(columns.values())).shape[0]

    def __getitem__(self, name: str) -> Array:
        return self.columns[name][: self.n, ...]

    def __getstate__(self) -> dict[str, Any]:
        return {"columns": {name: self[name] for name in self.columns}, "n": self.n}

    @cached_property
    def index(self) -> Index:
        """The rows by name. It grows with the table."""
        return Index(self[next(iter(self.columns))])

    def append(self, **rows: Array) -> None:
        """Add rows to all columns. Where new names are longer, or texts, the column becomes wider, or one of texts."""
        n = self.n + next(iter(rows.values())).shape[0]
        for name, new in rows.items():
            old = self.columns[name]
            if isinstance(old, np.ndarray) and old.dtype != new.dtype and len(new):
                if self.n and (old.dtype.kind, new.dtype.kind) != ("U", "U"):  # numbers and texts become texts
                    old = as_text(old[: self.n])
                    new = as_text(new)
                old = old[: self.n].astype(np.result_type(old, new) if self.n else new.dtype)
            if n > old.shape[0]:
                room = empty((max(n, 2 * self.n), *old.shape[1:]), old)
                room[: self.n, ...] = old[: self.n, ...]
                old = room
            old[self.n : n, ...] = new
            self.columns[name] = old
        if "index" in self.__dict__:
            self.index.extend(rows[next(iter(self.columns))])
        self.n = n

    def take(self, rows: Ints) -> Table:
        """A table of some of the rows, in this order."""
        return Table(**{name: take(self[name], rows) for name in self.columns})


def empty(shape: tuple[int, ...], like: Array) -> Array:
    """An array that is not filled, of the type and in the place of another."""
    xp = namespace(like)
    return np.empty(shape, like.dtype) if xp is np else xp.empty(shape, dtype=like.dtype, device=like.device)


def as_names(names: NDArray[Any]) -> NDArray[Any]:
    """Names as 64-bit numbers, or as text: bytes are text too."""
    if names.dtype.kind in "biuf" and not (names.dtype.kind == "u" and names.size and names.max() >> 63):
        return names.astype(np.float64 if names.dtype.kind == "f" else np.int64, copy=False)
    return as_text(names) if names.dtype.kind == "u" else names.astype(str)


def as_text(names: NDArray[Any]) -> NDArray[Any]:
    """Names as text, such that 5, 5.0 and "5" are the same; an array of text is returned as it is."""
    if names.dtype.kind == "U":
        return names
    texts = []
    for name in names.tolist():
        if isinstance(name, bytes):
            texts.append(name.decode())
        elif isinstance(name, bool | float) and float(name).is_integer():
            texts.append(str(int(name)))
        else:
            texts.append(str(name))
    return np.array(texts, dtype=str)


def packed(names: NDArray[Any]) -> NDArray[Any]:
    """Names as numbers for a file: a row of code points for each text."""
    if names.dtype.kind != "U":
        return names
    return np.ascontiguousarray(names).view(np.uint32).reshape(len(names), names.dtype.itemsize // 4)


def unpacked(array: NDArray[Any]) -> NDArray[Any]:
    """The names that `packed` packed."""
    if array.ndim == 1 and array.dtype in (np.int64, np.float64):
        return array
    if array.ndim != 2 or array.dtype != np.uint32 or not array.shape[1] or (array > 0x10FFFF).any():
        raise ValueError(f"names are {array.dtype} of shape {array.shape}, or no text")
    return np.ascontiguousarray(array).view(f"U{array.shape[1]}").reshape(-1)


class Index:
    """Rows of a column of names by name. As for labels, 5, 5.0 and "5" are one name."""

    def __init__(self, names: NDArray[Any]):
        self._last: dict[str, int] = {}
        self._before: list[int] = []  # of each row, the row before it that has the same name, or -1
        self.extend(names)

    def extend(self, names: NDArray[Any]) -> None:
        """Names of further rows."""
        for row, name in enumerate(as_text(names).tolist(), len(self._before)):
            self._before.append(self._last.get(name, -1))
            self._last[name] = row

    def last(self, names: NDArray[Any]) -> Ints:
        """The last row that has each of the names, -1 where there is none."""
        last = self._last
        return np.array([last.get(name, -1) for name in as_text(names).tolist()], np.int64)

    def find(self, names: NDArray[Any]) -> tuple[Ints, Ints]:
        """All rows that have one of the names, and which of the names it is."""
        row = self.last(names)
        which = np.arange(len(names))
        parts = [np.zeros((2, 0), np.int64)]
        while len(row):  # the last row of each name, then the one before it, and so on
            known = row >= 0
            row = row[known]
            which = which[known]
            parts.append(np.stack([row, which]))
            row = np.array([self._before[r] for r in row.tolist()], np.int64)
        rows, which = np.concatenate(parts, axis=1)
        return rows, which
