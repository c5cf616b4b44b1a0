"""Parquet files in batches of rows, with bounds on memory: tables and embeddings are both read with this."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from duoplda.io._source import FilePart, label
from duoplda.io.common import MAX_UNPACKED, PathLike, bad, guarded, need, open_binary
from duoplda.io.ids import MAX_ID, Coded

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


def damaged(path: PathLike) -> AbstractContextManager[None]:
    """Turn what pyarrow raises inside the block into our error."""
    return guarded(path, "Parquet", need("pyarrow").ArrowException)


@contextmanager
def opened(path: PathLike, texts: Sequence[str] = ()) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file; the columns `texts` come as codes, so that a long text stands in memory once."""
    open_binary(path).close()
    # One piece of one row group at a time: without these options pyarrow fetches the whole file ahead.
    streamed = {"memory_map": False, "pre_buffer": False, "buffer_size": 1 << 20}
    streamed["page_checksum_verification"] = True  # of pages that have one, as ours have
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
        # A row group that unpacks to far more than the file has may do so in one page, which is unpacked as a whole.
        # No real data unpack to more than 64 MB and a thousand times the file's size, nor to the second pair.
        # (Sizes of single columns would say more, but pyarrow aborts the process where their metadata are damaged.)
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
                batch.validate(full=True)  # UTF-8, and codes within their dictionaries
            yield first, batch
            first += len(batch)


def codes_of(path: PathLike, column: pa.Array, first: int) -> tuple[pa.StringArray, np.ndarray]:
    """Return the different texts of a column from row `first` on, as Arrow's strings, and the codes of its rows."""
    pa = need("pyarrow")
    pc = need("pyarrow.compute")
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
    return names, np.asarray(column.indices)


def texts_of(strings: pa.StringArray) -> np.ndarray:
    """Return Arrow's strings as an array of NumPy: if all are ASCII, without a Python object for each."""
    pc = need("pyarrow.compute")
    size = pc.binary_length(strings)
    width = pc.max(size).as_py() or 1
    if pc.sum(size).as_py() != pc.sum(pc.utf8_length(strings)).as_py():
        return np.array(strings.to_pylist(), dtype=str)
    padded = pc.ascii_rpad(strings, width, "\0")
    points = np.frombuffer(padded.buffers()[2], np.uint8, len(padded) * width, padded.offset * width)
    return points.astype(np.uint32).view(f"U{width}")


def to_arrow(column: Coded | np.ndarray) -> pa.Array:
    """Make an Arrow array of strings or floats of a column."""
    pa = need("pyarrow")
    if not isinstance(column, Coded):
        return pa.array(np.asarray(column, np.float64))
    return pa.array(column.names.tolist(), pa.string()).take(pa.array(column.codes))


def write_tables(out: Path, tables: Iterator[pa.Table], **options: object) -> None:
    """Write Arrow tables, of which there is at least one, as a row group each; a checksum tells of damaged pages."""
    first = next(tables)
    options |= {"compression": "zstd", "write_page_checksum": True}
    with need("pyarrow.parquet").ParquetWriter(out, first.schema, **options) as writer:
        for table in chain([first], tables):
            writer.write_table(table)
