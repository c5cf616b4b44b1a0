"""Parquet: tables in batches of rows, with bounds on memory, and embeddings.

Embeddings are a column of ids and a column of vectors (fixed-size lists, or lists of equal length), perhaps with
columns of labels. Vectors are written without a dictionary and with their bytes split (BYTE_STREAM_SPLIT), which
compresses floats better, and in row groups that are read one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from duoplda.io._source import VECTOR_NAMES, FilePart, IdsAndVectors, Source, label
from duoplda.io.common import MAX_UNPACKED, PathLike, bad, check_dim, guarded, listed, need, open_binary, pick, shown
from duoplda.io.ids import ID_NAMES, MAX_ID, as_ids, odd_ids, texts_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# -- tables


def damaged(path: PathLike) -> AbstractContextManager[None]:
    """Turn what pyarrow raises inside the block into our error."""
    return guarded(path, "Parquet", need("pyarrow").ArrowException)


@contextmanager
def opened(path: PathLike, texts: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file; the columns `texts` are read as codes, so that a repeated text is in memory only once."""
    open_binary(path).close()
    # With these options, pyarrow reads one piece of one row group at a time, and not the whole file ahead.
    streamed = {"memory_map": False, "pre_buffer": False, "buffer_size": 1 << 20}
    streamed["page_checksum_verification"] = True  # for pages that have a checksum, as those that we write have
    with damaged(path):
        f = need("pyarrow.parquet").ParquetFile(path, read_dictionary=list(texts) or None, **streamed)
    with f:
        yield f


def schema_of(path: PathLike) -> tuple[list[str], list[pa.DataType]]:
    """Return the names and the Arrow types of the columns."""
    with opened(path) as f, damaged(path):
        return list(f.schema_arrow.names), list(f.schema_arrow.types)


def batches(
    path: PathLike, columns: Sequence[str], rows: int, part: FilePart | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the checked record batches of some columns and row groups, each with the number of its first row."""
    types = need("pyarrow").types
    texts = [n for n, t in zip(*schema_of(path), strict=True) if types.is_string(t) or types.is_large_string(t)]
    with opened(path, [n for n in texts if n in columns]) as f:
        first, groups = (0, range(f.num_row_groups)) if part is None else (part.offset, range(part.first, part.stop))
        with damaged(path):
            largest = max((f.metadata.row_group(i).total_byte_size for i in groups), default=0)
        size = os.stat(path).st_size
        # A row group that unpacks to far more than the size of the file may do so in one page, which is unpacked as a
        # whole. No real data unpack to more than 64 MB and 1,000 times the size, or MAX_UNPACKED and 100 times it.
        # (Sizes of single columns would tell more, but pyarrow aborts the process where their metadata are damaged.)
        if any(largest > least and largest > ratio * size for least, ratio in ((1 << 26, 1000), (MAX_UNPACKED, 100))):
            cause = f"a row group unpacks to {largest} bytes, from a file of {size} bytes, which no real data do"
            raise bad(path, "", cause, "write the file again, in smaller row groups, and ids as short texts")
        with damaged(path):
            stream = f.iter_batches(rows, row_groups=list(groups), columns=list(columns), use_threads=False)
        while True:
            with damaged(label(path, part)):
                batch = next(stream, None)
                if batch is None:
                    return
                batch.validate(full=True)  # texts must be UTF-8, and codes must be within their dictionaries
            yield first, batch
            first += len(batch)


def codes_of(path: PathLike, column: pa.Array, first: int) -> tuple[pa.StringArray, np.ndarray]:
    """Return the different texts of a column, as Arrow's strings, and the codes of its rows, from row `first` on."""
    import pyarrow as pa
    import pyarrow.compute as pc

    with damaged(path):
        if not pa.types.is_dictionary(column.type):
            column = column.cast(pa.string()).dictionary_encode()
        missing = column.null_count + column.dictionary.null_count
        names = column.dictionary.cast(pa.string())
        longest = pc.max(pc.binary_length(names)).as_py() or 0
    if missing:
        row = first + int(np.asarray(column.is_null()).argmax())
        raise bad(path, f"row {row}", "a value is missing", "fill the column")
    if longest > 4 * MAX_ID:
        raise bad(path, f"row {first} or after", "an id is too long", f"ids have at most {MAX_ID} characters")
    if len(names) > len(column):  # the texts of a whole row group, of which this batch has only some
        return names.take(column.indices), np.arange(len(column), dtype=np.int32)
    return names, np.asarray(column.indices)


def write_tables(out: Path, tables: Iterator[pa.Table], **options: object) -> None:
    """Write one or more Arrow tables as a row group each, with checksums by which readers notice damaged pages."""
    first = next(tables)
    options |= {"compression": "zstd", "write_page_checksum": True}
    with need("pyarrow.parquet").ParquetWriter(out, first.schema, **options) as writer:
        for table in chain([first], tables):
            writer.write_table(table)


# -- embeddings


def open_parquet(path: PathLike, *, vectors: str | None, ids_name: str | None, part: FilePart | None) -> Source:
    """Open a Parquet file, or some of its row groups, as a source of chunks."""
    with opened(path) as f, damaged(path):
        names = f.schema_arrow.names
        kinds = f.schema_arrow.types
        n = f.metadata.num_rows
        sizes = [f.metadata.row_group(i).num_rows for i in range(f.num_row_groups)]
    column = pick(path, names, vectors, VECTOR_NAMES, "column")
    ids_column = pick(path, names, ids_name, ID_NAMES, "column", rather=True)
    if column is None or ids_column is None:
        what = "vector" if column is None else "id"
        raise bad(path, "", f"has no known {what} column", f"name it: `columns` {what}=NAME; it has {listed(names)}")
    if n < 1:
        raise bad(path, "", "holds no rows")
    dim, dtype = _shape(path, column, kinds[names.index(column)])

    def read(limit: int, only: str) -> Iterator[tuple[Any, Any]]:
        wanted = [name for name, what in ((ids_column, "ids"), (column, "vectors")) if only in ("", what)]
        for first, batch in batches(path, wanted, limit, part):
            X = None if only == "ids" else _rows(path, batch.column(column), dim, dtype, first)
            ids = None if only == "vectors" else _ids(path, batch, ids_column, first)
            yield ids, X if only else np.array(X)  # a copy that can be written to, as the caller may change it

    n = n if part is None else part.n
    return Source(path, "parquet", dim, dtype, n, read, cuts=partial(_cuts, sizes, dim * dtype.itemsize))


def _shape(path: PathLike, column: str, kind: pa.DataType) -> tuple[int, np.dtype]:
    """Return dimension and type of the vectors in a column of this Arrow type."""
    from pyarrow import types

    place = f"column {column}"
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not lists or not types.is_floating(kind.value_type):
        raise bad(path, place, f"holds {kind}, not lists of floats", "write a column of float lists")
    dtype = np.dtype(f"f{kind.value_type.bit_width // 8}")  # without `to_pandas_dtype`, which needs pandas
    if types.is_fixed_size_list(kind):
        return check_dim(path, f"{place}, row 0", kind.list_size), dtype
    _, batch = next(batches(path, [column], 1))
    first = batch.column(0)[0]
    return check_dim(path, f"{place}, row 0", len(first) if first.is_valid else 0), dtype


def _cuts(sizes: Sequence[int], row_bytes: int, size: int) -> list[FilePart]:
    """Cut a file into runs of row groups of at most `size` bytes; a larger row group is a run of its own."""
    parts = []
    first = 0  # the first row group of the part
    row = 0  # the first row of the part
    n = 0
    for i, rows in enumerate([*sizes, 0]):
        if n and ((n + rows) * row_bytes > size or i == len(sizes)):
            parts.append(FilePart(first, i, n, row, f"rows {row}-{row + n - 1}"))
            first = i
            row += n
            n = 0
        n += rows
    return parts


def _ids(path: PathLike, batch: pa.RecordBatch, column: str, first: int) -> np.ndarray:
    """Return a column of a batch as checked ids."""
    names, codes = codes_of(path, batch.column(column), first)
    texts = texts_of(names)
    if texts.dtype.itemsize <= 4 * MAX_ID and not odd_ids(texts).any():
        return texts[codes]
    return as_ids(path, texts[codes], first)


def _rows(path: PathLike, lists: pa.Array, dim: int, dtype: np.dtype, first: int) -> np.ndarray:
    """View a column of lists as a matrix, after checking that each has `dim` numbers and none is missing."""
    import pyarrow.compute as pc

    whole = lists.null_count == 0 and getattr(lists.type, "list_size", None) == dim
    lengths = np.zeros(0) if whole else np.asarray(pc.list_value_length(lists).fill_null(-1))
    if (lengths != dim).any():
        row = int((lengths != dim).argmax())
        vector = "no vector" if lengths[row] < 0 else f"a vector of dimension {lengths[row]}"
        raise bad(path, f"row {first + row}", f"has {vector}, the first row dimension {dim}", "all must be equal")
    flat = lists.flatten()
    if flat.null_count:
        raise bad(path, f"row {first} or after", "a vector has a missing number", "fill it, or drop the row")
    return np.asarray(flat.to_numpy(zero_copy_only=False), dtype).reshape(-1, dim)


def write_parquet(
    out: Path,
    chunks: Iterable[IdsAndVectors],
    labels: Mapping[str, np.ndarray] | None = None,
    texts: Mapping[str, str] | None = None,
) -> None:
    """Write chunks as columns `id` and `embedding`, one row group per chunk, with labels, and texts as metadata.

    The labels are columns by name. Their `id` must be the ids of all chunks, in the same order.
    """
    arrow = need("pyarrow")
    beside = {name: as_ids(out, values) for name, values in (labels or {}).items()}
    labelled = beside.pop("id", None)
    for name, values in beside.items():
        if labelled is not None and values.shape != labelled.shape:
            raise bad(out, f"column {name}", f"has {len(values)} values for {len(labelled)} ids", "one for each id")

    def tables() -> Iterator[pa.Table]:
        done = 0
        for ids, X in chunks:
            rows = slice(done, done + len(ids))
            if labelled is not None:
                expected = labelled[rows]
                k = len(expected)
                differ = expected != ids[:k]
                if differ.any():
                    row = int(differ.argmax())
                    cause = f"has id {shown(str(ids[row]))}, its label {shown(str(expected[row]))}"
                    raise bad(out, f"row {done + row}", cause, "put the labels in the order of the vectors")
                if k < len(ids):
                    raise bad(out, f"row {done + k}", f"has no label: there are {done + k}", "one label per vector")
            vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(np.ascontiguousarray(X).reshape(-1)), X.shape[1])
            columns = {"id": arrow.array(ids.tolist(), arrow.string()), "embedding": vectors}
            columns |= {k: arrow.array(v[rows].tolist(), arrow.string()) for k, v in beside.items()}
            yield arrow.table(columns, metadata=dict(texts or {}) or None)
            done += len(ids)
        if labelled is not None and done != len(labelled):
            raise bad(out, "", f"{len(labelled)} labels for {done} vectors", "one label per vector, in the same order")

    packed = ["embedding.list.element"]
    write_tables(out, tables(), use_dictionary=list(beside) or False, use_byte_stream_split=packed)
