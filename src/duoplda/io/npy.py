"""NumPy `.npy` matrices with a list of ids beside them: x.npy with x.txt or x.ids, one id per line."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from math import prod
from pathlib import Path
from typing import IO

import numpy as np

from duoplda.io._source import FilePart, IdsAndVectors, Source, check_matrix, row_parts, whole
from duoplda.io.common import PathLike, bad, guarded, open_binary, open_lines, shown
from duoplda.io.ids import MAX_ID, IdList, as_ids


def header(path: PathLike, f: IO[bytes], place: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read shape, Fortran order and type of a `.npy` stream, which then stands at the first number."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with guarded(path, "a NumPy array"):
        version = np.lib.format.read_magic(f)
    if version not in readers:  # version 3 is for names of fields beyond ASCII, and a matrix of floats has no fields
        raise bad(path, place, f"has .npy version {version}", "save a plain float array with numpy.save")
    with guarded(path, "a NumPy array"), warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # NumPy lets Python's parser read the header, and it may warn
        try:
            shape, fortran, dtype = readers[version](f)
        except MemoryError:  # Python's parser raises it where the header, of up to 10,000 characters, is nested deeply
            raise ValueError("its header is no shape and type") from None
    # NumPy cannot make an array whose axes have more elements than this, even if one of them is empty.
    if len(shape) > 32 or any(type(n) is not int or n < 0 for n in shape) or prod(n or 1 for n in shape) >= 1 << 59:
        raise bad(path, place, f"has the impossible shape {shown(shape)}", "the file may be damaged")
    return shape, fortran, dtype


def read_exactly(path: PathLike, place: str, f: IO[bytes], nbytes: int) -> bytearray:
    """Read the next `nbytes` of a stream, or raise an error where it ends before."""
    data = bytearray()
    while len(data) < nbytes:
        with guarded(path, "NumPy arrays"):
            # 16 MB at a time: a header that declares too much makes us allocate no more than the file has.
            piece = f.read(min(1 << 24, nbytes - len(data)))
        if not piece:
            raise bad(path, place, f"is cut short by {nbytes - len(data)} bytes", "copy or write the file again")
        data += piece
    return data


def whole_array(
    path: PathLike,
    place: str,
    f: IO[bytes],
    shape: tuple[int, ...],
    fortran: bool,
    dtype: np.dtype,
    most: int | None = None,
) -> np.ndarray:
    """Read an array from a stream that stands at its first number; more than `most` bytes are an OverflowError."""
    nbytes = dtype.itemsize * prod(shape)
    if most is not None and nbytes > most:
        raise OverflowError(place)
    if not dtype.itemsize:
        return np.zeros(shape, dtype)
    return np.frombuffer(read_exactly(path, place, f, nbytes), dtype).reshape(shape, order="F" if fortran else "C")


def open_npy(path: PathLike, ids: IdList = None, *, part: FilePart | None = None) -> Source:
    """Open a `.npy` matrix, or some of its rows, and their ids as a source of chunks."""
    with open_binary(path) as f:
        shape, fortran, dtype = header(path, f, "header")
        start = f.tell()
        size = os.fstat(f.fileno()).st_size
    n, dim, native = check_matrix(path, "header", shape, dtype)
    step = dim * dtype.itemsize
    if size - start < n * step:
        raise bad(path, f"byte {size}", f"ends in row {(size - start) // step} of {n}", "copy or write it again")
    ids = ids_beside(path) if ids is None else ids
    id_blocks = outside_ids(path, ids, n, part)
    run = part or whole(n)

    def read(limit: int, only: str) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        if only == "ids":
            yield from ((names, None) for names in id_blocks(limit))
            return
        first = run.first

        with open_binary(path) as f:
            f.seek(start + first * step)
            for names in id_blocks(limit):
                k = len(names)
                if fortran:  # a new map for each chunk, so that the pages of the last one are freed
                    columns = np.memmap(path, dtype, "r", start, (n, dim), "F")
                    X = np.array(columns[first : first + k], native, order="C")
                else:
                    X = np.empty((k, dim), dtype)
                    if f.readinto(X.reshape(-1).view(np.uint8).data) < k * step:
                        raise bad(path, f"row {first} or after", "the file has become shorter", "read it again")
                    X = X.astype(native, copy=False)
                yield names, X
                first += k

    return Source(path, "npy", dim, native, run.n, read, are_rows(ids), partial(row_parts, n, step, ids=ids))


def ids_beside(path: PathLike) -> Path:
    """Find the list of ids of a `.npy` file: a file of the same name that ends in .txt or .ids."""
    beside = [Path(path).with_suffix(s) for s in (".txt", ".ids")]
    for list_ in beside:
        if list_.is_file():
            return list_
    names = f"{beside[0].name} or {beside[1].name}"
    raise bad(path, "", "has no list of ids", f"put {names} beside it, or give ids= (a file, or 'rows')")


def are_rows(ids: IdList) -> bool:
    """Say whether row numbers stand in for ids."""
    return isinstance(ids, str) and ids == "rows"


def outside_ids(
    path: PathLike, ids: IdList, n: int, part: FilePart | None = None
) -> Callable[[int], Iterator[np.ndarray]]:
    """Return a function that yields ids in blocks: row numbers ("rows"), lines of a text file, or a sequence."""
    run = part or whole(n)
    if are_rows(ids):
        firsts = range(run.first, run.stop)
        return lambda limit: (np.array(firsts[i : i + limit]).astype(str) for i in range(0, run.n, limit))
    if isinstance(ids, str | os.PathLike):
        if part is None and (lines := _count_lines(ids)) != n:  # for a part, the lines were counted when it was cut
            raise bad(ids, "", f"has {lines} ids for the {n} rows of {os.fspath(path)}", "one id per line")
        return partial(_lines, ids, run)
    array = as_ids(path, np.asarray(ids))
    if array.shape != (n,):
        raise bad(path, "", f"has {n} rows, but {len(array)} ids were given", "one id per row")
    return lambda limit: (array[i : i + limit] for i in range(0, n, limit))


def _count_lines(path: PathLike) -> int:
    """Count the lines of a text file."""
    n = 0
    last = b"\n"
    with open_binary(path) as f:
        while block := f.read(1 << 20):
            n = n + block.count(b"\n")
            last = block[-1:]
    return n + (last != b"\n")


def _lines(path: PathLike, part: FilePart, limit: int) -> Iterator[np.ndarray]:
    """Read a text file with one id per line, or a part of it, in blocks of `limit` ids."""
    done = part.first
    longest = 4 * MAX_ID + 2  # bytes of a line
    with open_lines(path) as f:
        if part.offset:  # otherwise stay where `open_lines` is, which is after the byte-order mark if there is one
            f.seek(part.offset)
        lines = islice(iter(partial(f.readline, longest), b""), part.n)
        while block := list(islice(lines, limit)):
            names = [line.strip() for line in block]
            if b"".join(block).split() != names or max(map(len, block)) == longest:
                odd = next(i for i, name in enumerate(names) if len(name.split()) != 1 or len(block[i]) == longest)
                line = f"line {done + odd + 1}"
                raise bad(path, line, f"{shown(block[odd])} is not one id", "an id list has one id per line")
            yield as_ids(path, np.array(names, "S"), done)
            done += len(names)


def write_npy(out: Path, chunks: Iterable[IdsAndVectors]) -> list[np.ndarray]:
    """Write the vectors of chunks as one `.npy`, and their number into its header at the end; return their ids."""
    ids: list[np.ndarray] = []
    with open(out, "wb") as f:
        for names, X in chunks:
            if not ids:
                described = np.lib.format.header_data_from_array_1_0(X[:0])
                np.lib.format.write_array_header_1_0(f, described)
                start = f.tell()
            ids.append(names)
            f.write(np.ascontiguousarray(X).data)
        described["shape"] = (sum(map(len, ids)), X.shape[1])
        f.seek(0)
        np.lib.format.write_array_header_1_0(f, described)
        if f.tell() != start:  # NumPy leaves room in the header for a larger first axis, but not for any number
            raise bad(out, "header", "has no room for the number of rows", "give the whole array, not chunks")
    return ids
