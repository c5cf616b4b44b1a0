"""NumPy `.npz`: `embeddings` (n, d) and `ids` (n,), streamed out of the zip file and never unpickled.

The arrays are found by the names in VECTOR_NAMES and ARRAY_ID_NAMES, or by those that the caller gives. In a file
without ids, the numbers of the rows, "0", "1", ..., are the ids. The arrays of models and scores are read here, too.
"""

import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from duoplda.io._source import VECTOR_NAMES, FilePart, IdsAndVectors, Source, check_matrix, row_parts, whole
from duoplda.io.common import PathLike, bad, guarded, listed, open_binary, pick
from duoplda.io.ids import ARRAY_ID_NAMES, IdList, as_ids, check_id_type
from duoplda.io.npy import are_rows, header, outside_ids, read_exactly, whole_array, write_npy


@contextmanager
def _member(
    path: PathLike, name: str, row: int = 0
) -> Iterator[tuple[IO[bytes], tuple[int, ...], bool, np.dtype, bool]]:
    """Open an array: a stream at the first number of `row`, shape, Fortran order, type, and whether it is packed."""
    with open_binary(path) as raw, ExitStack() as stack:
        with guarded(path, "a NumPy .npz file"):
            z = stack.enter_context(zipfile.ZipFile(raw))
            info = z.getinfo(name + ".npy")
            f = stack.enter_context(z.open(info))
        shape, fortran, dtype = header(path, f, name)
        if dtype.hasobject:
            raise bad(path, name, "holds pickled objects, which are never loaded", "save plain arrays")
        nbytes = dtype.itemsize * int(np.prod(shape, dtype=object))
        # Deflate packs at most 1032 bytes into one: more is a header that declares what is not in the file.
        if nbytes > info.file_size or info.file_size > 1032 * (info.compress_size + 1024):
            raise bad(path, name, f"declares {nbytes} bytes that are not there", "the file may be damaged")
        packed = info.compress_type != zipfile.ZIP_STORED
        if row:
            offset = f.tell() + row * nbytes // shape[0]
            with guarded(path, "a NumPy .npz file"):
                if packed:
                    f.seek(offset)
                else:  # in the file itself, as zipfile would read all data before that row
                    raw.seek(info.header_offset + 26)  # the lengths of the name and the extra field before the data
                    raw.seek(info.header_offset + 30 + sum(struct.unpack("<HH", raw.read(4))) + offset)
                    f = raw
        yield f, shape, fortran, dtype, packed


def names_in(path: PathLike) -> list[str]:
    """Return the names of the arrays in the file."""
    with open_binary(path) as raw, guarded(path, "a NumPy .npz file"), zipfile.ZipFile(raw) as z:
        files = z.namelist()
    names = [n.removesuffix(".npy") for n in files if n.endswith(".npy")]
    if not names and any(n.endswith("/data.pkl") for n in files):
        cause = "is a torch checkpoint, that is a pickle, which can run code when it is loaded"
        raise bad(path, "", cause, "save arrays with numpy.savez, or a PLDA by wespeaker's save_model (HDF5)")
    if not names:
        raise bad(path, "", f"is a zip file without arrays ({listed(files)})", "save it with numpy.savez")
    return names


def load_array(path: PathLike, name: str, most: int | None = None) -> np.ndarray:
    """Read a whole array of the file, such as that of a model; more than `most` bytes are an OverflowError."""
    with _member(path, name) as (f, shape, fortran, dtype, _):
        return whole_array(path, name, f, shape, fortran, dtype, most)


def load_text(path: PathLike, name: str, longest: int) -> str | None:
    """Read an array that is one text; None if it is something else, or has more than `longest` characters."""
    with _member(path, name) as (f, shape, _, dtype, _):
        if shape != () or dtype.kind != "U" or not 0 < dtype.itemsize <= 4 * longest:
            return None
        return str(whole_array(path, name, f, shape, False, dtype))


def open_npz(
    path: PathLike, ids: IdList, *, vectors: str | None, ids_name: str | None, part: FilePart | None
) -> Source:
    """Open a `.npz` file, or some of its rows, as a source of chunks."""
    names = names_in(path)
    name = pick(path, names, vectors, VECTOR_NAMES, "array")
    if name is None:
        known = ", ".join(VECTOR_NAMES)
        raise bad(
            path, "", f"has no array named one of {known}", f"name it: `columns` vector=NAME; it has {listed(names)}"
        )
    with _member(path, name) as (_, shape, fortran, dtype, packed):
        n, dim, native = check_matrix(path, name, shape, dtype)
    if fortran:
        raise bad(path, name, "is stored by columns, so that rows cannot be streamed", "save np.ascontiguousarray(X)")
    inside = pick(path, names, ids_name, ARRAY_ID_NAMES, "array", rather=True) if ids is None else None
    ids = "rows" if ids is None and inside is None else ids
    run = part or whole(n)
    step = dim * dtype.itemsize
    id_blocks = outside_ids(path, ids, n, part) if inside is None else _inside_ids(path, inside, n, run)

    def read(limit: int, only: str) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        if only == "ids":
            yield from ((block, None) for block in id_blocks(limit))
            return
        first = run.first
        with _member(path, name, first) as (f, *_):
            for block in id_blocks(limit):
                raw = read_exactly(path, f"{name}, row {first}", f, len(block) * step)
                yield block, np.frombuffer(raw, dtype).reshape(-1, dim).astype(native, copy=False)
                first += len(block)

    cuts = None if packed else partial(row_parts, n, step, ids=ids)
    return Source(path, "npz", dim, native, run.n, read, are_rows(ids), cuts)


def _inside_ids(path: PathLike, name: str, n: int, part: FilePart) -> Callable[[int], Iterator[np.ndarray]]:
    """Return a function that reads the ids in the file, in blocks."""
    with _member(path, name) as (_, shape, _, dtype, _):
        if shape != (n,):
            raise bad(path, name, f"has shape {shape} for {n} vectors", "one id per vector")
        check_id_type(path, name, dtype)

    def blocks(limit: int) -> Iterator[np.ndarray]:
        with _member(path, name, part.first) as (f, *_):
            for first in range(part.first, part.stop, limit):
                k = min(limit, part.stop - first)
                raw = read_exactly(path, f"{name}, row {first}", f, k * dtype.itemsize)
                values = np.frombuffer(raw, dtype) if dtype.itemsize else np.zeros(k, dtype)
                yield as_ids(path, values.astype(dtype.newbyteorder("="), copy=False), first)

    return blocks


def write_npz(out: Path, chunks: Iterable[IdsAndVectors], texts: Mapping[str, str] | None = None) -> None:
    """Write chunks as `embeddings` and `ids`, and texts beside them under names of their own."""
    part = out.with_name(out.name + ".npy")
    try:
        ids = write_npy(part, chunks)
        more = {name: np.array(text) for name, text in (texts or {}).items()}
        write_arrays(out, {"embeddings": np.load(part, mmap_mode="r"), "ids": np.concatenate(ids), **more})
    finally:
        part.unlink(missing_ok=True)


def write_arrays(out: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write a few whole arrays."""
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as z:
        for name, array in arrays.items():
            with z.open(name + ".npy", "w", force_zip64=True) as f:
                np.lib.format.write_array(f, array, allow_pickle=False)
