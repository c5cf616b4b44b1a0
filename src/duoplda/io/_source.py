"""What a format gives to the reader: a source of chunks, and the parts that a file can be cut into."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from duoplda.io._common import Chunk, PathLike, bad


@dataclass(frozen=True)
class Part:
    """A run of a file's vectors that can be read by itself.

    `first` and `stop` count rows (npy, npz, HDF5), row groups (Parquet) or lines (scp). `at` is where they are found
    without going through what lies before: the first row of the groups, or the byte of the text list with the ids.
    """

    first: int
    stop: int
    n: int  # vectors
    at: int
    label: str  # for messages: rows 0-4095


@dataclass(frozen=True)
class Source:
    """An open file of embeddings: its shape, and functions that read it in chunks."""

    format: str
    dim: int
    dtype: np.dtype
    n: int | None  # number of vectors where the file says so without being read
    read: Callable[[int], Iterator[Chunk]]  # rows of a chunk -> chunks
    ids_are_rows: bool = False  # the file has no ids: they are row numbers
    ids: Callable[[int], Iterator[np.ndarray]] | None = None  # ids alone, where vectors need not be read for them
    cuts: Callable[[int], list[Part]] | None = None  # bytes of vectors -> parts of about that size
    entry: Callable[[int], str] = "entry {}".format  # the name of a vector in messages, by its number

    def names(self, rows: int) -> Iterator[np.ndarray]:
        """Yield the ids in blocks; vectors are read only where the format leaves no other way."""
        return (ids for ids, _ in self.read(rows)) if self.ids is None else self.ids(rows)


def row_parts(n: int, row_bytes: int, size: int, starts: Callable[[int], Iterable[int]] | None = None) -> list[Part]:
    """Cut n rows into runs of about `size` bytes; `starts` finds the byte at which every k-th line of a list begins."""
    each = max(1, size // row_bytes)
    at = starts(each) if starts is not None else [0] * (-(-n // each))
    stops = (min(i + each, n) for i in range(0, n, each))
    return [
        Part(i, stop, stop - i, a, f"rows {i}-{stop - 1}")
        for i, stop, a in zip(range(0, n, each), stops, at, strict=True)
    ]


def label(path: PathLike, part: Part | None) -> str:
    """Name a file and a part of it in messages."""
    return f"{os.fspath(path)} {part.label}" if part is not None else os.fspath(path)


def check_count(path: PathLike, n: int | None, found: int) -> None:
    """Check that as many vectors were found as the file declares."""
    if found == 0 or n not in (None, found):
        raise bad(path, "", f"holds {found} vectors, not the {n} it declares", "the file may be damaged")
