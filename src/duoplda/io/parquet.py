"""Parquet: a column of ids and a column of vectors (fixed-size lists, or lists of equal length).

Vectors are written without a dictionary and with their bytes split (BYTE_STREAM_SPLIT), which packs
floats better, in row groups that are read one after the other. Columns of labels may stand beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from duoplda.io._arrow import batches, codes_of, damaged, opened, texts_of, write_tables
from duoplda.io._source import (
    ROWS_PER_READ,
    VECTOR_NAMES,
    FilePart,
    IdsAndVectors,
    Source,
    check_count,
    label,
)
from duoplda.io.common import PathLike, bad, check_dim, listed, need, pick, shown
from duoplda.io.ids import ID_NAMES, MAX_ID, as_ids, odd_ids, pick_ids
from duoplda.io.labels import LABEL_COLUMNS, LabelColumns, warn_of_sessions
from duoplda.io.text import read_header

if TYPE_CHECKING:
    import pyarrow


def open_parquet(path: PathLike, *, vectors: str | None, ids_name: str | None, part: FilePart | None) -> Source:
    """Open a Parquet file, or some of its row groups, as a source of chunks."""
    with opened(path) as f, damaged(path):
        names = f.schema_arrow.names
        kinds = f.schema_arrow.types
        n = f.metadata.num_rows
        sizes = [f.metadata.row_group(i).num_rows for i in range(f.num_row_groups)]
    column = pick(path, names, vectors, VECTOR_NAMES, "column")
    ids_column = pick_ids(path, names, ids_name, ID_NAMES, "column")
    if column is None or ids_column is None:
        what = "vector" if column is None else "id"
        raise bad(path, "", f"has no known {what} column", f"name it: `columns` {what}=NAME; it has {listed(names)}")
    if n < 1:
        raise bad(path, "", "holds no rows")
    dim, dtype = _shape(path, column, kinds[names.index(column)])
    step = dim * dtype.itemsize

    def read(limit: int) -> Iterator[IdsAndVectors]:
        for first, batch in batches(path, [ids_column, column], limit, part):
            X = _rows(path, batch.column(column), dim, dtype, first)
            yield _ids(path, batch, ids_column, first), np.array(X)  # a copy, which the caller may change

    def ids(rows: int) -> Iterator[np.ndarray]:
        for first, batch in batches(path, [ids_column], rows, part):
            yield _ids(path, batch, ids_column, first)

    def alone(rows: int) -> Iterator[np.ndarray]:
        for first, batch in batches(path, [column], rows, part):
            yield _rows(path, batch.column(column), dim, dtype, first)

    n = n if part is None else part.n
    return Source("parquet", dim, dtype, n, read, read_ids=ids, read_vectors=alone, cuts=partial(_cuts, sizes, step))


def _shape(path: PathLike, column: str, kind: pyarrow.DataType) -> tuple[int, np.dtype]:
    """Return dimension and type of the vectors in a column of this Arrow type."""
    types = need("pyarrow").types
    place = f"column {column}"
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not lists or not types.is_floating(kind.value_type):
        raise bad(path, place, f"holds {kind}, not lists of floats", "write a column of float lists")
    dtype = np.dtype(f"f{kind.value_type.bit_width // 8}")  # `to_pandas_dtype` needs pandas
    if types.is_fixed_size_list(kind):
        return check_dim(path, f"{place}, row 0", kind.list_size), dtype
    _, batch = next(batches(path, [column], 1))
    first = batch.column(0)[0]
    return check_dim(path, f"{place}, row 0", len(first) if first.is_valid else 0), dtype


def _cuts(sizes: Sequence[int], row_bytes: int, size: int) -> list[FilePart]:
    """Cut a file into runs of row groups of at most `size` bytes, or of one that is larger."""
    parts = []
    first = 0  # group of the part, and `row` its first row
    row = 0
    n = 0
    for i, rows in enumerate([*sizes, 0]):
        if n and ((n + rows) * row_bytes > size or i == len(sizes)):
            parts.append(FilePart(first, i, n, row, f"rows {row}-{row + n - 1}"))
            first = i
            row += n
            n = 0
        n += rows
    return parts


def _ids(path: PathLike, batch: pyarrow.RecordBatch, column: str, first: int) -> np.ndarray:
    """Return a column of ids."""
    names, codes = codes_of(path, batch.column(column), first)
    if len(names) >= len(codes):  # of a whole row group, most of which differ
        return as_ids(path, texts_of(names.take(need("pyarrow").array(codes))), first)
    texts = texts_of(names)
    if texts.dtype.itemsize <= 4 * MAX_ID and not odd_ids(texts).any():
        return texts[codes]
    return as_ids(path, texts[codes], first)


def read_label_columns(path: PathLike, part: FilePart, columns: Mapping[str, str] | None = None) -> LabelColumns:
    """Read the labels that stand in the same rows as the vectors, which are not read."""
    header = read_header(path, LABEL_COLUMNS, columns, ("session", "channel", "occasion"))
    warn_of_sessions(header)
    wanted = {"ids" if meaning == "id" else meaning: name for meaning, name in header.name_of.items()}
    blocks: dict[str, list[np.ndarray]] = {meaning: [] for meaning in wanted}
    for first, batch in batches(path, list(dict.fromkeys(wanted.values())), ROWS_PER_READ, part):
        for meaning, name in wanted.items():
            blocks[meaning].append(_ids(path, batch, name, first))
    check_count(label(path, part), part.n, sum(map(len, blocks["ids"])))
    arrays = {meaning: np.concatenate(blocks.pop(meaning)) for meaning in wanted}
    return LabelColumns(**arrays, read_as=header.read_as())


def _rows(path: PathLike, lists: pyarrow.Array, dim: int, dtype: np.dtype, first: int) -> np.ndarray:
    """View a column of lists as a matrix, after checking that each has `dim` numbers and none is missing."""
    whole = lists.null_count == 0 and getattr(lists.type, "list_size", None) == dim
    lengths = np.zeros(0) if whole else np.asarray(need("pyarrow.compute").list_value_length(lists).fill_null(-1))
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
    labels: LabelColumns | None = None,
    texts: Mapping[str, str] | None = None,
) -> None:
    """Write chunks as columns `id` and `embedding`, one row group per chunk; labels beside them, texts as metadata."""
    pa = need("pyarrow")
    beside: dict[str, np.ndarray] = {}
    if labels is not None:
        known = {name: getattr(labels, name) for name in ("speaker", "session", "channel", "occasion")}
        for name, values in known.items():
            if values is None:
                continue
            beside[name] = as_ids(out, values)
            if beside[name].shape != (len(labels),):
                raise bad(out, f"column {name}", f"has {len(values)} values for {len(labels)} ids", "one for each id")

    def tables() -> Iterator[pyarrow.Table]:
        done = 0
        for ids, X in chunks:
            rows = slice(done, done + len(ids))
            if labels is not None:
                labelled = np.asarray(labels.ids)[rows]
                k = len(labelled)
                differ = labelled != ids[:k]
                if differ.any():
                    row = int(differ.argmax())
                    cause = f"has id {shown(str(ids[row]))}, its label {shown(str(labelled[row]))}"
                    raise bad(out, f"row {done + row}", cause, "put the labels in the order of the vectors")
                if k < len(ids):
                    raise bad(out, f"row {done + k}", f"has no label: there are {done + k}", "one label per vector")
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(X).reshape(-1)), X.shape[1])
            columns = {"id": pa.array(ids.tolist(), pa.string()), "embedding": vectors}
            columns |= {k: pa.array(v[rows].tolist(), pa.string()) for k, v in beside.items()}
            yield pa.table(columns, metadata=dict(texts or {}) or None)
            done += len(ids)
        if labels is not None and done != len(labels):
            raise bad(out, "", f"{len(labels)} labels for {done} vectors", "one label per vector, in the same order")

    packed = ["embedding.list.element"]
    write_tables(out, tables(), use_dictionary=list(beside) or False, use_byte_stream_split=packed)
