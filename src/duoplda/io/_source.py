"""What a format gives to the reader: a source of chunks, and the parts that a file can be cut into."""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np

from duoplda.errors import DuopldaError
from duoplda.io.common import PathLike, bad, check_dim, check_float, open_lines

IdsAndVectors = tuple[np.ndarray, np.ndarray]  # ids (k,) of str and vectors (k, d), as files bring them

ROWS_PER_READ = 16384  # vectors of a chunk unless the caller says otherwise: 16 MB of 256 floats each
VECTOR_NAMES: tuple[str, ...] = ("embeddings", "embedding", "emb", "embs", "vectors", "vector", "xvectors", "xvector")
VECTOR_NAMES += ("x_vector", "ivectors", "ivector", "dvectors", "dvector", "X", "x", "data", "features")


@dataclass(frozen=True)
class FilePart:
    """A run of a file's vectors that can be read by itself.

    `first` and `stop` count rows (npy, npz, HDF5), row groups (Parquet) or lines (scp). `offset` says where the run
    starts, so that nothing before it need be read: the first row of the row groups, or a byte of the list with the ids.
    """

    first: int
    stop: int
    n: int  # vectors
    offset: int
    label: str  # for messages: rows 0-4095


@dataclass(frozen=True)
class Source:
    """An open file of embeddings: its shape, and functions that read it in chunks."""

    format: str
    dim: int
    dtype: np.dtype
    n: int | None  # number of vectors where the file says so without being read
    read_chunks: Callable[[int], Iterator[IdsAndVectors]]  # rows of a chunk -> chunks
    ids_are_rows: bool = False  # the file has no ids: they are row numbers
    read_ids: Callable[[int], Iterator[np.ndarray]] | None = None  # where vectors need not be read for them
    cuts: Callable[[int], list[FilePart]] | None = None  # bytes of vectors -> parts of about that size
    entry: Callable[[int], str] = "entry {}".format  # the name of a vector in messages, by its number
    read_vectors: Callable[[int], Iterator[np.ndarray]] | None = None  # where ids need not be read with them

    def chunks(self, rows: int) -> Iterator[IdsAndVectors]:
        """Yield chunks of at most `rows` vectors, and of fewer where those would take too much memory."""
        return self.read_chunks(self._most_rows(rows))

    def vectors(self, rows: int) -> Iterator[np.ndarray]:
        """Yield the vectors of the same chunks, perhaps read-only; ids are read only where there is no other way."""
        if self.read_vectors is None:
            return (X for _, X in self.chunks(rows))
        return self.read_vectors(self._most_rows(rows))

    def ids(self, rows: int) -> Iterator[np.ndarray]:
        """Yield the ids in blocks; vectors are read only where the format leaves no other way."""
        return (ids for ids, _ in self.chunks(rows)) if self.read_ids is None else self.read_ids(rows)

    def _most_rows(self, rows: int) -> int:
        """Limit a chunk to 64 MB, however many rows are asked for."""
        if rows < 1:
            raise DuopldaError(f"a chunk needs at least one row, got rows={rows}")
        return max(1, min(int(rows), (1 << 26) // (self.dim * self.dtype.itemsize)))


def joined(files: Sequence[tuple[PathLike, Source]]) -> Source:
    """Join several files of one dimension and precision to one source of chunks."""
    starts = [0] * len(files)  # the number of the first vector of each, known once the one before has been read

    def through(read: Callable[[Source, int], Iterator[Any]], rows: int) -> Iterator[Any]:
        done = 0
        for i, (file, source) in enumerate(files):
            starts[i] = done
            for block in read(source, rows):
                done += len(block[0]) if isinstance(block, tuple) else len(block)
                yield block
            check_count(file, source.n, done - starts[i])

    def entry(number: int) -> str:
        i = bisect_right(starts, number) - 1
        file, source = files[i]
        return f"{Path(file).name} {source.entry(number - starts[i])}"

    sources = [source for _, source in files]
    counts = [source.n for source in sources]
    return Source(
        f"{len(files)} files, {' and '.join(dict.fromkeys(source.format for source in sources))}",
        sources[0].dim,
        sources[0].dtype,
        None if None in counts else sum(n or 0 for n in counts),
        partial(through, Source.chunks),
        read_ids=partial(through, Source.ids),
        entry=entry,
        read_vectors=partial(through, Source.vectors),
    )


def whole(n: int) -> FilePart:
    """Return the part that is all n rows of a file."""
    return FilePart(0, n, n, 0, "")


def row_parts(n: int, row_bytes: int, size: int, ids: object = None) -> list[FilePart]:
    """Cut n rows into runs of about `size` bytes; a text file `ids` has the id of each row on a line of its own."""
    run = max(1, size // row_bytes)
    firsts = range(0, n, run)
    offsets = [0] * len(firsts)
    if isinstance(ids, str | os.PathLike) and ids != "rows":
        with open_lines(ids) as f:  # every `run`-th of the bytes at which lines start
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
