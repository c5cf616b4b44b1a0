"""What a format gives to the reader: a source of chunks, and the parts that a file can be cut into."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

import numpy as np

from duoplda.io.common import Chunk, PathLike, bad, check_dim, check_float, chunk_rows, open_lines

VECTOR_NAMES = ("embeddings", "embedding", "vectors", "vector", "xvectors", "ivectors", "X", "x", "data")
ID_NAMES = ("ids", "id", "utt_ids", "utt_id", "utts", "utt", "utterances", "keys", "names", "segmentid")


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
    blocks: Callable[[int], Iterator[Chunk]]  # rows of a chunk -> chunks
    ids_are_rows: bool = False  # the file has no ids: they are row numbers
    ids: Callable[[int], Iterator[np.ndarray]] | None = None  # ids alone, where vectors need not be read for them
    cuts: Callable[[int], list[Part]] | None = None  # bytes of vectors -> parts of about that size
    entry: Callable[[int], str] = "entry {}".format  # the name of a vector in messages, by its number
    vectors: Callable[[int], Iterator[np.ndarray]] | None = None  # vectors alone, where ids need not be read with them

    def read(self, rows: int) -> Iterator[Chunk]:
        """Yield chunks of at most `rows` vectors, and of fewer where those would take too much memory."""
        return self.blocks(self._most(rows))

    def bare(self, rows: int) -> Iterator[np.ndarray]:
        """Yield the vectors in the same blocks, perhaps read-only; ids are read only where there is no other way."""
        return (X for _, X in self.read(rows)) if self.vectors is None else self.vectors(self._most(rows))

    def _most(self, rows: int) -> int:
        return chunk_rows(rows, self.dim * self.dtype.itemsize)

    def names(self, rows: int) -> Iterator[np.ndarray]:
        """Yield the ids in blocks; vectors are read only where the format leaves no other way."""
        return (ids for ids, _ in self.read(rows)) if self.ids is None else self.ids(rows)


def whole(n: int) -> Part:
    """Return the part that is all n rows of a file."""
    return Part(0, n, n, 0, "")


def row_parts(n: int, row_bytes: int, size: int, ids: Any = None) -> list[Part]:
    """Cut n rows into runs of about `size` bytes; a text file `ids` has the id of each row on a line of its own."""
    each = max(1, size // row_bytes)
    firsts = range(0, n, each)
    at = [0] * len(firsts)
    if isinstance(ids, str | os.PathLike) and ids != "rows":
        with open_lines(ids) as f:  # of the bytes at which lines start, every `each`-th
            at = list(islice(accumulate(map(len, f), initial=f.tell()), 0, n, each))
    stops = (min(i + each, n) for i in firsts)
    return [Part(i, stop, stop - i, a, f"rows {i}-{stop - 1}") for i, stop, a in zip(firsts, stops, at, strict=True)]


def check_matrix(path: PathLike, place: str, shape: tuple[int, ...], dtype: np.dtype) -> tuple[int, int, np.dtype]:
    """Return rows, dimension and native type of an array that must be a matrix of floats."""
    native = check_float(path, place, dtype)
    if len(shape) != 2:
        raise bad(path, place, f"has shape {shape}", "embeddings are a matrix: one row per recording")
    if not shape[0]:
        raise bad(path, place, "holds no vectors")
    return shape[0], check_dim(path, place, shape[1]), native


def label(path: PathLike, part: Part | None) -> str:
    """Name a file and a part of it in messages."""
    return f"{os.fspath(path)} {part.label}" if part is not None else os.fspath(path)


def check_count(path: PathLike, n: int | None, found: int) -> None:
    """Check that as many vectors were found as the file declares."""
    if found == 0 or n not in (None, found):
        raise bad(path, "", f"holds {found} vectors, not the {n} it declares", "the file may be damaged")
