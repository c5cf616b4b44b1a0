"""Parquet: a column of ids and a column of vectors (fixed-size lists, or lists that are equally long).

Vectors are written without a dictionary and with their bytes split (BYTE_STREAM_SPLIT), which packs
floats better, in row groups that are read one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from duoplda.io._common import (
    ID_NAMES,
    VECTOR_NAMES,
    Chunk,
    PathLike,
    Source,
    as_ids,
    bad,
    check_dim,
    chunk_rows,
    guarded,
    listed,
    need,
    open_binary,
    pick,
)

# one piece of one row group at a time: without these the whole file is fetched ahead
STREAMED = {"memory_map": False, "pre_buffer": False, "buffer_size": 1 << 20}


def open_parquet(path: PathLike, *, vectors: str | None = None, ids_name: str | None = None) -> Source:
    """A Parquet file as a source of chunks."""
    pa, pq = need("pyarrow"), need("pyarrow.parquet")
    open_binary(path).close()
    with guarded(path, "Parquet"), pq.ParquetFile(path, **STREAMED) as f:
        schema, n = f.schema_arrow, f.metadata.num_rows
        column = pick(path, schema.names, vectors, VECTOR_NAMES, "column")
        ids_column = pick(path, schema.names, ids_name, ID_NAMES, "column")
        for name, what in ((column, "vector"), (ids_column, "id")):
            if name is None:
                raise bad(path, "", f"has no known {what} column", f"name it: it has {listed(schema.names)}")
        if n < 1:
            raise bad(path, "", "holds no rows")
        kind = schema.field(column).type
        types = pa.types
        if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
            raise bad(path, f"column {column}", f"holds {kind}, not lists of floats", "write a list column")
        if not types.is_floating(kind.value_type):
            raise bad(path, f"column {column}", f"holds {kind}, not lists of floats", "write float lists")
        dtype = np.dtype(kind.value_type.to_pandas_dtype())
        if types.is_fixed_size_list(kind):
            dim = kind.list_size
        else:
            first = next(f.iter_batches(1, columns=[column]))[0]
            dim = len(first[0]) if first[0].is_valid else 0
        dim = check_dim(path, f"column {column}, row 0", dim)

    def read(rows: int) -> Iterator[Chunk]:
        limit = chunk_rows(rows, dim * dtype.itemsize)
        with guarded(path, "Parquet"), pq.ParquetFile(path, **STREAMED) as f:
            done = 0
            for batch in f.iter_batches(limit, columns=[ids_column, column], use_threads=False):
                batch.validate(full=True)
                names = batch.column(ids_column)
                if names.null_count:
                    raise bad(path, f"row {done} or after", "an id is missing", "fill the id column")
                text = names.cast(pa.string()).to_numpy(zero_copy_only=False)
                yield as_ids(path, text, done), _rows(path, batch.column(column), dim, dtype, done)
                done += len(names)

    return Source("parquet", dim, dtype, n, read)


def _rows(path: PathLike, lists: Any, dim: int, dtype: np.dtype, first: int) -> np.ndarray:
    """A column of lists as a matrix; every list has `dim` numbers and none is missing."""
    lengths = np.asarray(need("pyarrow.compute").list_value_length(lists).fill_null(-1))
    if (lengths != dim).any():
        row = int((lengths != dim).argmax())
        found = "no vector" if lengths[row] < 0 else f"a vector of dimension {lengths[row]}"
        raise bad(path, f"row {first + row}", f"has {found}, the first row dimension {dim}", "all must be equal")
    flat = lists.flatten()
    if flat.null_count:
        raise bad(path, f"row {first} or after", "a vector has a missing number", "fill it, or drop the row")
    return np.array(flat.to_numpy(zero_copy_only=False), dtype).reshape(-1, dim)


def write_parquet(out: Path, chunks: Iterable[Chunk]) -> None:
    """Write chunks as columns `id` and `embedding`, one row group per chunk."""
    pa, pq = need("pyarrow"), need("pyarrow.parquet")
    writer = None
    try:
        for ids, X in chunks:
            numbers = pa.array(np.ascontiguousarray(X).reshape(-1))
            vectors = pa.FixedSizeListArray.from_arrays(numbers, X.shape[1])
            table = pa.table({"id": pa.array(ids.tolist(), pa.string()), "embedding": vectors})
            if writer is None:
                writer = pq.ParquetWriter(
                    out,
                    table.schema,
                    compression="zstd",
                    use_dictionary=False,
                    use_byte_stream_split=["embedding.list.element"],
                )
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()
