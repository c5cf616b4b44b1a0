"""What each format's module gives to `duoplda.io.embeddings`: an open source of chunks, and parts to cut it into."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any

import numpy as np

from duoplda.io.common import PathLike, bad, check_dim, check_float, open_lines

IdsAndVectors = tuple[np.ndarray, np.ndarray]  # ids (k,) of str and vectors (k, d), as files bring them
# It is called with the number of rows of a chunk, and with "ids" or "vectors" if the other is not wanted, else with "".
# What is not wanted may be None, if it saves the format time to leave it out. Vectors read alone may be read-only.
Reader = Callable[[int, str], Iterator[tuple[Any, Any]]]

ROWS_PER_READ = 16384  # vectors of a chunk, unless the caller asks for others: 16 MB for 256 floats each
VECTOR_NAMES: tuple[str, ...] = ("embeddings", "embedding", "emb", "embs", "vectors", "vector", "xvectors", "xvector")
VECTOR_NAMES += ("x_vector", "ivectors", "ivector", "dvectors", "dvector", "X", "x", "data", "features")


@dataclass(frozen=True)
class FilePart:
    """A run of a file's vectors that can be read by itself.

    `first` and `stop` count rows (npy, npz, HDF5), row groups (Parquet) or lines (scp). `offset` says where the run
    starts, so that nothing before it need be read: the number of its first row (Parquet), or a byte of the scp or of
    the list of ids.
    """

    first: int
    stop: int
    n: int  # vectors
    offset: int
    label: str  # for messages: rows 0-4095


@dataclass(frozen=True)
class Source:
    """An open file of embeddings: its shape, and a function that reads it in chunks."""

    path: PathLike
    kind: str  # ark, scp, npy, npz, hdf5 or parquet
    dim: int
    dtype: np.dtype
    n: int | None  # number of vectors where the file says so without being read
    read: Reader
    ids_are_rows: bool = False  # the file has no ids: they are row numbers
    cuts: Callable[[int], list[FilePart]] | None = None  # bytes of vectors -> parts of about that size
    format: str = ""  # the format in words, where `kind` is not enough


def whole(n: int) -> FilePart:
    """Return the part that is all n rows of a file."""
    return FilePart(0, n, n, 0, "")


def row_parts(n: int, row_bytes: int, size: int, ids: object = None) -> list[FilePart]:
    """Cut n rows into runs of about `size` bytes; a text file `ids` has the id of each row on a line of its own."""
    run = max(1, size // row_bytes)
    firsts = range(0, n, run)
    offsets = [0] * len(firsts)
    if isinstance(ids, str | os.PathLike) and ids != "rows":
        with open_lines(ids) as f:  # of the bytes at which lines start, those of every `run`-th line
            offsets = list(islice(accumulate(map(len, f), initial=f.tell()), 0, n, run))
    parts = []
    for first, offset in zip(firsts, offsets, strict=True):
        stop = min(first + run, n)
        parts.append(FilePart(first, stop, stop - first, offset, f"rows {first}-{stop - 1}"))
    return parts


def check_matrix(path: PathLike, place: str, shape: tuple[int, ...], dtype: np.dtype) -> tuple[int, int, np.dtype]:
    """Return rows, dimension and native type of an array that must be a matrix of floats."""
    native = check_float(path, place, dtype)
    if len(shape) != 2:
        raise bad(path, place, f"has shape {shape}", "embeddings are a matrix: one row per recording")
    if not shape[0]:
        raise bad(path, place, "holds no vectors")
    return shape[0], check_dim(path, place, shape[1]), native


def check_count(path: PathLike, declared: int | None, n: int) -> None:
    """Check that as many vectors were read as the file declares."""
    if n == 0 or declared not in (None, n):
        raise bad(path, "", f"holds {n} vectors, not the {declared} it declares", "the file may be damaged")


def label(path: PathLike, part: FilePart | None) -> str:
    """Name a file and a part of it in messages."""
    return f"{os.fspath(path)} {part.label}" if part is not None else os.fspath(path)
