"""HDF5: one matrix `embeddings` (n, d) with `ids` (n,), or hyperion's one dataset per recording.

Only datasets that lie in the file itself are read: links to other files, external storage and virtual
datasets are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from duoplda.io._common import (
    ID_NAMES,
    VECTOR_NAMES,
    Chunk,
    PathLike,
    as_ids,
    bad,
    check_dim,
    check_float,
    chunk_rows,
    guarded,
    listed,
    need,
    open_binary,
    pick,
    shown,
)
from duoplda.io._h5text import check_texts, texts
from duoplda.io._source import Part, Source, row_parts

INFLATION = 2000  # no filter we know packs better than this; more is a header that lies


@contextmanager
def opened(path: PathLike) -> Iterator[Any]:
    """The open file; whatever the library raises inside the block is our error."""
    h5py = need("h5py")
    open_binary(path).close()
    with guarded(path, "HDF5"), h5py.File(path, "r") as f:
        yield f


def dataset(path: PathLike, group: Any, name: str) -> Any:
    """A dataset of this very file, whose declared size can be believed."""
    h5py = need("h5py")
    node = group
    for part in name.split("/"):
        if not isinstance(node, h5py.Group) or part not in node:
            raise bad(path, "", f"has no dataset {name}", f"it has: {listed(sorted(group))}")
        if not isinstance(node.get(part, getlink=True), h5py.HardLink):
            raise bad(path, name, "is a link", "copy the data into the file: links are not followed")
        node = node[part]
    if not isinstance(node, h5py.Dataset):
        raise bad(path, name, "is not a dataset")
    return believed(path, name, node)


def believed(path: PathLike, name: str, d: Any) -> Any:
    """A dataset that is stored in this file, in about as many bytes as it declares."""
    if d.is_virtual or d.external:
        raise bad(path, name, "keeps its data in other files", "copy the data into the file")
    if d.shape is None:
        raise bad(path, name, "is empty")
    declared = d.dtype.itemsize * int(np.prod(d.shape, dtype=object))
    stored = d.id.get_storage_size()
    if declared > stored * (INFLATION if d.chunks else 1) + 4096:
        raise bad(path, name, f"declares {declared} bytes and stores {stored}", "the file is damaged or unfinished")
    return d


def open_hdf5(
    path: PathLike, *, vectors: str | None = None, ids_name: str | None = None, part: Part | None = None
) -> Source:
    """An HDF5 file of either layout, or some rows of its matrix, as a source of chunks."""
    with opened(path) as f:
        names = list(f)
        found = pick(path, [*names, *filter(None, [vectors])], vectors, VECTOR_NAMES, "dataset")
        if found is not None and (vectors is not None or _ndim(f, found) == 2):
            return _matrix(path, f, found, ids_name or pick(path, names, None, ID_NAMES, "dataset"), part)
        if not names:
            raise bad(path, "", "holds no datasets")
        key, first = next(_walk(path, f), (None, None))
        if key is None:
            raise bad(path, "", "holds no datasets")
        dim, dtype = _vector(path, key, first)
    read, ids = partial(_each, path, dim, dtype), partial(_keys, path)
    return Source("hdf5 (a dataset per recording)", dim, dtype, None, read, ids=ids)


def _ndim(f: Any, name: str) -> int:
    node = f.get(name)
    return len(node.shape or ()) if hasattr(node, "shape") else 0


def _matrix(path: PathLike, f: Any, name: str, ids_name: str | None, part: Part | None) -> Source:
    d = dataset(path, f, name)
    if len(d.shape) != 2 or not d.shape[0]:
        raise bad(path, name, f"has shape {d.shape}", "embeddings are a matrix: one row per recording")
    n, dim = d.shape[0], check_dim(path, name, d.shape[1])
    dtype = check_float(path, name, d.dtype)
    if ids_name is None:
        raise bad(path, "", f"has no ids dataset beside {name}", f"add `ids`, or name it: it has {listed(list(f))}")
    names = dataset(path, f, ids_name)
    if names.shape != (n,):
        raise bad(path, ids_name, f"has shape {names.shape} for {n} vectors", "one id per vector")
    check_texts(path, names)

    row, stop = (0, n) if part is None else (part.first, part.stop)
    step = dim * dtype.itemsize

    def slices(rows: int) -> Iterator[slice]:
        limit = chunk_rows(rows, step)
        return (slice(first, min(first + limit, stop)) for first in range(row, stop, limit))

    def read(rows: int) -> Iterator[Chunk]:
        with opened(path) as f:
            for s in slices(rows):
                yield texts(path, f[ids_name], s), f[name][s].astype(dtype, copy=False)

    def ids(rows: int) -> Iterator[np.ndarray]:
        with opened(path) as f:
            for s in slices(rows):
                yield texts(path, f[ids_name], s)

    return Source("hdf5", dim, dtype, stop - row, read, ids=ids, cuts=partial(row_parts, n, step))


def _walk(path: PathLike, group: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """All datasets below a group; a key with `/` in it is a path of groups."""
    h5py = need("h5py")
    for name in group:
        key = prefix + name
        if depth > 32 or not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise bad(path, f"entry {shown(key)}", "is a link, or nested too deep", "links are not followed")
        node = group[name]
        if isinstance(node, h5py.Group):
            yield from _walk(path, node, key + "/", depth + 1)
        else:
            yield key, node


def _vector(path: PathLike, key: str, d: Any) -> tuple[int, np.dtype]:
    """Dimension and type of one recording's dataset."""
    place = f"entry {shown(key)}"
    believed(path, place, d)
    if "data_format" in d.attrs:
        raise bad(path, place, "is compressed as hyperion compresses features", "write it without compression")
    if len(d.shape) == 2 and d.shape[0] == 1:
        return check_dim(path, place, d.shape[1]), check_float(path, place, d.dtype)
    if len(d.shape) != 1:
        raise bad(path, place, f"has shape {d.shape}", "give one vector per recording")
    return check_dim(path, place, d.shape[0]), check_float(path, place, d.dtype)


def _each(path: PathLike, dim: int, dtype: np.dtype, rows: int) -> Iterator[Chunk]:
    limit = chunk_rows(rows, dim * dtype.itemsize)
    done = 0
    with opened(path) as f:
        keys: list[str] = []
        parts: list[np.ndarray] = []

        def chunk() -> Chunk:
            return as_ids(path, np.array(keys, object), done), np.stack(parts)

        for key, d in _walk(path, f):
            size, type_ = _vector(path, key, d)
            if size != dim or type_ != dtype:
                place = f"entry {shown(key)}"
                raise bad(path, place, f"holds {size} {type_}, the first entry {dim} {dtype}", "all must be equal")
            keys.append(key)
            parts.append(d[()].reshape(dim).astype(dtype, copy=False))
            if len(keys) == limit:
                yield chunk()
                done, keys, parts = done + limit, [], []
        if keys:
            yield chunk()


def _keys(path: PathLike, rows: int) -> Iterator[np.ndarray]:
    """The names of the datasets, without what they hold."""
    with opened(path) as f:
        keys, done = (key for key, _ in _walk(path, f)), 0
        while block := list(islice(keys, rows)):
            yield as_ids(path, np.array(block, object), done)
            done += len(block)


def write_hdf5(out: Path, chunks: Iterable[Chunk]) -> None:
    """Write chunks as `embeddings` and `ids`."""
    n, ids = 0, []
    with need("h5py").File(out, "w") as f:
        for names, X in chunks:
            if not n:
                rows, dim = max(1, (1 << 17) // (X.shape[1] * X.dtype.itemsize)), X.shape[1]
                f.create_dataset("embeddings", (0, dim), X.dtype, maxshape=(None, dim), chunks=(rows, dim))
            f["embeddings"].resize(n + len(X), 0)
            f["embeddings"][n:] = X
            ids += [name.encode("utf-8") for name in names.tolist()]
            n += len(X)
        f.create_dataset("ids", data=np.array(ids, dtype="S"))


def write_hdf5_each(out: Path, chunks: Iterable[Chunk]) -> None:
    """Write chunks as hyperion does: one dataset per recording, named by its id."""
    remedy = "write one matrix instead"
    with need("h5py").File(out, "w") as f:
        for ids, X in chunks:
            for name, x in zip(ids.tolist(), X, strict=True):
                place = f"entry {shown(name)}"
                if name.startswith("/") or any(p in ("", ".", "..") for p in name.split("/")):
                    raise bad(out, place, "cannot be the name of a dataset", remedy)
                if name in f:
                    raise bad(out, place, "is there already, or is the folder of another", "ids must differ")
                try:
                    f.create_dataset(name, data=x)
                except (ValueError, RuntimeError, TypeError, KeyError) as e:  # "a" is there, "a/b" is wanted
                    raise bad(out, place, f"cannot be a dataset ({e})", remedy) from e
