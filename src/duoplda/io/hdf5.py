"""HDF5: one matrix `embeddings` (n, d) with `ids` (n,), or hyperion's one dataset per recording.

Only datasets in the file itself are read: links, external storage and virtual datasets are refused. The
matrix and its ids may be in a group. Models and scores in HDF5 are opened and created here, too.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from subprocess import DEVNULL, PIPE
from threading import Timer
from typing import TYPE_CHECKING, Any

import numpy as np

from duoplda.io._source import VECTOR_NAMES, FilePart, IdsAndVectors, Source, check_matrix, row_parts, whole
from duoplda.io.common import (
    MAX_FEATURES,
    MAX_UNPACKED,
    PathLike,
    bad,
    check_dim,
    check_float,
    guarded,
    listed,
    model_array,
    need,
    open_binary,
    shown,
)
from duoplda.io.ids import ARRAY_ID_NAMES, MAX_ID, as_ids, check_id_type

if TYPE_CHECKING:
    import h5py


@dataclass(frozen=True, eq=False)
class Stored:
    """A dataset that is in the file itself, and whose declared size is plausible; `stored` checks both."""

    path: PathLike
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    cache: int  # bytes of unpacked data to keep, so that reading the next rows does not unpack the same data again
    handle: h5py.Dataset

    def read(self, index: slice | tuple[slice | int, ...] = ()) -> np.ndarray:
        """Read the part of the dataset that this index selects, as it would from an array of NumPy."""
        with guarded(self.path, "HDF5"):
            return np.asarray(self.handle[index])

    def texts(self, first: int, stop: int, rows: int) -> Iterator[np.ndarray]:
        """Yield the ids from row `first` to `stop` in blocks; their shape may be (n,), (n, 1) or (1, n)."""
        if self.dtype.kind == "O":
            blocks = _strings(self, first, stop, rows)
        else:
            cuts = (slice(i, min(i + rows, stop)) for i in range(first, stop, rows))
            blocks = (self.read(tuple(cut if n > 1 else 0 for n in self.shape)) for cut in cuts)
        for block in blocks:
            yield as_ids(self.path, np.atleast_1d(block), first)
            first += rows


@contextmanager
def opened(path: PathLike, cache: int = 1 << 20) -> Iterator[h5py.File]:
    """Open a file; `cache` bytes of unpacked data are kept for each dataset."""
    open_binary(path).close()
    with guarded(path, "HDF5"):
        f = need("h5py").File(path, "r", rdcc_nbytes=cache)
    with f:
        yield f


def members(path: PathLike, group: h5py.Group, most: int | None = None) -> list[str]:
    """Return the names in a group, or the first of them."""
    with guarded(path, "HDF5"):
        names = list(islice(group, most))
    if not all(isinstance(name, str) for name in names):
        raise bad(path, "", "has names in it that are not UTF-8", "the file may be damaged")
    return names


def member(path: PathLike, group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset | None:
    """Return the group or dataset of this name, which may be a path, in a group; None if there is none."""
    h5py = need("h5py")
    node = group
    for part in name.strip("/").split("/"):
        with guarded(path, "HDF5"):
            link = node.get(part, getlink=True) if isinstance(node, h5py.Group) else None
            node = node[part] if isinstance(link, h5py.HardLink) else None
        if link is not None and node is None:
            raise bad(path, f"entry {shown(part)}", "is a link", "copy the data into the file: links are not followed")
    return node


def dataset(path: PathLike, group: h5py.Group, name: str) -> Stored:
    """Return the dataset of this name, which may be a path of groups."""
    node = member(path, group, name)
    if node is None:
        raise bad(path, "", f"has no dataset {name}", f"it has: {listed(sorted(members(path, group)))}")
    return stored(path, name, node)


def stored(path: PathLike, name: str, node: h5py.Group | h5py.Dataset | None) -> Stored:
    """Check a dataset before anything is read from it."""
    if not isinstance(node, need("h5py").Dataset):
        raise bad(path, name, "is not a dataset")
    with guarded(path, "HDF5"):
        elsewhere = node.is_virtual or node.external
        shape = node.shape
        dtype = node.dtype
        chunks = node.chunks
        held = node.id.get_storage_size()
        packed = node.id.get_create_plist().get_nfilters() > 0
    if elsewhere:
        raise bad(path, name, "keeps its data in other files", "copy the data into the file")
    if shape is None:
        raise bad(path, name, "is empty")
    declared = dtype.itemsize * int(np.prod(shape, dtype=object))
    # No filter that we know packs more than 2000 bytes into one, so a header that declares more is damaged.
    if declared > held * (2000 if chunks else 1) + 4096:
        raise bad(path, name, f"declares {declared} bytes and stores {held}", "the file is damaged or unfinished")
    piece = dtype.itemsize * int(np.prod(chunks, dtype=object)) if chunks and packed else 0
    if piece > MAX_UNPACKED:
        cause = f"is packed in chunks of {piece} bytes, of which at most {MAX_UNPACKED} are unpacked at once"
        raise bad(path, name, cause, "write it with smaller chunks, or copy it with h5repack")
    cache = piece * -(-shape[1] // chunks[1]) if piece and len(shape) == 2 else piece
    return Stored(path, name, shape, dtype, min(max(cache, 1 << 20), MAX_UNPACKED), node)


def floats(path: PathLike, group: h5py.Group, name: str) -> np.ndarray:
    """Read an array of a model as float64, after checking its type, its size and its values."""
    d = dataset(path, group, name)
    check_float(path, name, d.dtype)  # before it is read, as it may be strings, or too large for memory
    check_dim(path, name, max(d.shape, default=0), MAX_FEATURES)
    return model_array(path, name, d.read())


def check_texts(d: Stored) -> None:
    """Refuse a dataset that cannot hold ids."""
    check_id_type(d.path, d.name, d.dtype)
    if d.dtype.kind == "O" and need("h5py").check_string_dtype(d.dtype) is None:
        raise bad(d.path, d.name, "holds something else than text", "store ids as strings")


def _strings(d: Stored, first: int, stop: int, rows: int) -> Iterator[np.ndarray]:
    """Yield blocks of strings of variable length, which another process reads; `_h5strings` says why."""
    script = str(Path(__file__).with_name("_h5strings.py"))
    longest = 4 * MAX_ID
    command = [sys.executable, "-P", script, os.path.abspath(d.path), d.name, *map(str, (first, stop, rows, longest))]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
    try:
        child = subprocess.Popen(command, env=env, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL)
    except OSError as e:
        cause = f"needs another process to read strings of variable length ({e})"
        raise bad(d.path, d.name, cause, "store ids with a fixed length") from e
    with child:
        try:
            for start in range(first, stop, rows):
                n = min(rows, stop - start)
                lengths = np.frombuffer(_answer(d, child, start, 4 * n), "<u4").clip(max=longest + 1)
                ends = np.cumsum(lengths, dtype=np.int64).tolist()
                text = _answer(d, child, start, ends[-1])
                yield np.array([text[i:j] for i, j in pairwise([0, *ends])], object)
        finally:
            child.kill()


def _answer(d: Stored, child: subprocess.Popen[bytes], row: int, n: int) -> bytes:
    """Read `n` bytes from the process, which is killed if it takes longer than a minute."""
    assert child.stdout is not None
    timer = Timer(60.0, child.kill)
    timer.start()
    try:
        data = child.stdout.read(n)
    finally:
        timer.cancel()
        timer.join()
    if len(data) < n:
        cause = "strings cannot be read: the library failed, crashed or did not come to an end"
        raise bad(d.path, f"{d.name}, row {row} or after", cause, "the file is damaged; write it again")
    return data


def open_hdf5(path: PathLike, *, vectors: str | None, ids_name: str | None, part: FilePart | None) -> Source:
    """Open an HDF5 file of either layout as a source of chunks; `part` is some rows of a matrix."""
    with opened(path) as f:
        vectors = vectors or _known(path, f, VECTOR_NAMES, ndim=2) or _only_one(path, f)
        if vectors is not None:
            return _matrix(path, f, vectors, ids_name, part)
        key, first = next(_walk(path, f), (None, None))
        if key is None:
            raise bad(path, "", "holds no datasets")
        d = _vector(path, key, first)
    dim = d.shape[-1]
    dtype = d.dtype.newbyteorder("=")
    read = partial(_each, path, dim, dtype)
    return Source(path, "hdf5", dim, dtype, None, read, format="hdf5 (a dataset per recording)")


def _known(path: PathLike, group: h5py.Group, names: Iterable[str], ndim: int = 0) -> str | None:
    """Return the first of these names that is a dataset with `ndim` axes (0: any number); None if none is."""
    for name in names:
        node = member(path, group, name)
        if isinstance(node, need("h5py").Dataset):
            with guarded(path, "HDF5"):
                shape = node.shape
            if not ndim or len(shape or ()) == ndim:
                return name
    return None


def _only_one(path: PathLike, f: h5py.File) -> str | None:
    """Return the only matrix with ids beside it in any group of the file; None if there is none."""
    matrices = []
    queue = [("", f)]
    most = 256  # groups, and members of each, that are searched; files with a matrix have few
    for prefix, group in queue:
        for name in members(path, group, most) if len(queue) < most else ():
            node = member(path, group, name)
            if isinstance(node, need("h5py").Group):
                queue.append((f"{prefix}{name}/", node))
        matrix = _known(path, group, VECTOR_NAMES, ndim=2)
        if matrix is not None and _known(path, group, ARRAY_ID_NAMES) is not None:
            matrices.append(prefix + matrix)
    if len(matrices) > 1:
        raise bad(path, "", f"has {len(matrices)} matrices: {listed(matrices)}", "choose one: `columns` vector=NAME")
    return matrices[0] if matrices else None


def _matrix(path: PathLike, f: h5py.File, name: str, ids_name: str | None, part: FilePart | None) -> Source:
    """Open a matrix; its ids are in the same group, or else in the root of the file."""
    d = dataset(path, f, name)
    group = name.strip("/").rpartition("/")[0]
    known = ARRAY_ID_NAMES if ids_name is None else (ids_name, *ARRAY_ID_NAMES)
    ids_path = _known(path, f, [*(f"{group}/{k}" for k in known if group), *known]) or ids_name
    if ids_path is None:
        remedy = f"add `ids`, or name them: it has {listed(members(path, f))}"
        raise bad(path, "", f"has no ids dataset beside {name}", remedy)
    id_list = dataset(path, f, ids_path)
    n, dim, dtype = check_matrix(path, name, d.shape, d.dtype)
    if id_list.shape not in ((n,), (n, 1), (1, n)):
        raise bad(path, ids_path, f"has shape {id_list.shape} for {n} vectors", "one id per vector")
    check_texts(id_list)
    run = part or whole(n)

    def read(limit: int, only: str) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        first = run.first
        with opened(path, d.cache) as f:
            vectors = dataset(path, f, name)
            for names in dataset(path, f, ids_path).texts(first, run.stop, limit):
                rows = slice(first, first + len(names))
                yield names, None if only == "ids" else vectors.read(rows).astype(dtype, copy=False)
                first += len(names)

    return Source(path, "hdf5", dim, dtype, run.n, read, cuts=partial(row_parts, n, dim * dtype.itemsize))


def _walk(
    path: PathLike, group: h5py.Group, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, h5py.Dataset | None]]:
    """Yield the path and the node of every dataset below a group, at any depth."""
    for name in members(path, group):
        if depth > 32:
            raise bad(path, f"entry {shown(prefix + name)}", "is nested too deep", "use fewer groups within groups")
        node = member(path, group, name)
        if isinstance(node, need("h5py").Group):
            yield from _walk(path, node, f"{prefix}{name}/", depth + 1)
        else:
            yield prefix + name, node


def _vector(path: PathLike, key: str, node: h5py.Dataset | None, like: tuple[int, np.dtype] | None = None) -> Stored:
    """Return the dataset of one recording: a vector of floats, of dimension and type `like` where that is given."""
    place = f"entry {shown(key)}"
    d = stored(path, place, node)
    with guarded(path, "HDF5"):
        compressed = "data_format" in d.handle.attrs
    if compressed:
        raise bad(path, place, "is compressed as hyperion compresses features", "write it without compression")
    if len(d.shape) != 1 and (len(d.shape) != 2 or d.shape[0] != 1):
        raise bad(path, place, f"has shape {d.shape}", "give one vector per recording")
    dim = check_dim(path, place, d.shape[-1])
    dtype = check_float(path, place, d.dtype)
    if like is not None and like != (dim, dtype):
        raise bad(path, place, f"holds {dim} {dtype}, the first entry {like[0]} {like[1]}", "all must be equal")
    return d


def _each(
    path: PathLike, dim: int, dtype: np.dtype, limit: int, only: str
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Yield the names of the datasets and, unless only ids are wanted, their vectors."""
    done = 0
    like = (dim, dtype)
    with opened(path) as f:
        walk = _walk(path, f)
        pairs = (
            (key, None if only == "ids" else _vector(path, key, node, like).read().reshape(dim)) for key, node in walk
        )
        while block := list(islice(pairs, limit)):
            keys, vectors = zip(*block, strict=True)
            X = None if only == "ids" else np.stack(vectors).astype(dtype, copy=False)
            yield as_ids(path, np.array(keys, object), done), X
            done += len(keys)


class Medium(io.FileIO):
    """A file for HDF5 to write to, which keeps the first error and pretends that every write has succeeded."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        size = len(view)
        try:
            while len(view):
                view = view[super().write(view) :]
        except OSError as error:
            self.error = self.error or error
        return size

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0


@contextmanager
def created(out: Path) -> Iterator[h5py.File]:
    """Give the block a new HDF5 file. If a write fails, as on a full disk, the error is raised after the block.

    The HDF5 library must not see that error: when it closes a file and cannot write the rest, it ends the process
    (version 1.14, by a segmentation fault).
    """
    with Medium(out, "w+") as medium:
        try:
            with need("h5py").File(medium, "w") as f:
                yield f
        finally:
            if medium.error is not None:
                raise medium.error


def write_hdf5(out: Path, chunks: Iterable[IdsAndVectors], texts: Mapping[str, str] | None = None) -> None:
    """Write chunks as `embeddings` and `ids`, and texts as attributes."""
    n = 0
    ids = []
    with created(out) as f:
        for names, X in chunks:
            if not n:
                rows = max(1, (1 << 17) // (X.shape[1] * X.dtype.itemsize))
                dim = X.shape[1]
                f.create_dataset("embeddings", (0, dim), X.dtype, maxshape=(None, dim), chunks=(rows, dim))
            f["embeddings"].resize(n + len(X), 0)
            f["embeddings"][n:] = X
            ids.append(np.char.encode(names, "utf-8"))
            n += len(X)
        f.create_dataset("ids", data=np.concatenate(ids))
        f.attrs.update(texts or {})


def write_hdf5_each(out: Path, chunks: Iterable[IdsAndVectors]) -> None:
    """Write chunks as hyperion does: one dataset per recording, named by its id."""
    with created(out) as f:
        for name, x in ((name, x) for ids, X in chunks for name, x in zip(ids.tolist(), X, strict=True)):
            place = f"entry {shown(name)}"
            remedy = "write one matrix instead"
            if name.startswith("/") or any(p in ("", ".", "..") for p in name.split("/")):
                raise bad(out, place, "cannot be the name of a dataset", remedy)
            if name in f:
                raise bad(out, place, "is there already, or is the folder of another", "ids must differ")
            try:
                f.create_dataset(name, data=x)
            except (ValueError, RuntimeError, TypeError, KeyError) as e:  # "a" is a dataset: "a/b" cannot be one
                raise bad(out, place, f"cannot be a dataset ({e})", remedy) from e
