"""What all formats share: errors that name a place, limits, opening files safely, checks of ids."""

import importlib
import io
import os
import stat
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, cast

import numpy as np

from duoplda.errors import UNPRINTABLE, DuopldaError, printable

PathLike = str | os.PathLike[str]
Chunk = tuple[np.ndarray, np.ndarray]

ROWS = 16384  # rows of a chunk unless the caller says otherwise
MAX_DIM = 1 << 18  # a larger dimension is taken for a damaged header
MAX_FEATURES = 1 << 13  # the same for models, which hold square matrices
MAX_ID = 512  # characters; a longer id is taken for damage
MAX_CHUNK = 1 << 26  # bytes of one chunk of vectors, however many rows were asked for
MAX_PACKED = 1 << 28  # bytes that a file may make us unpack at once
BOM = b"\xef\xbb\xbf"

SIGNATURES = {"npy": (b"\x93NUMPY",), "zip": (b"PK\3\4", b"PK\5\6"), "parquet": (b"PAR1",)}

# What zipfile, NumPy, h5py and pyarrow raise for damaged files; a lack of memory is not among them.
PARSER_ERRORS: tuple[type[Exception], ...] = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, RuntimeError, ArithmeticError),
    *(SyntaxError, struct.error, zlib.error, zipfile.BadZipFile, tokenize.TokenError),
)


def bad(path: PathLike, place: str, cause: str, remedy: str = "") -> DuopldaError:
    """Make the error of this package: one line with file, place, cause and remedy."""
    line = f"{os.fspath(path)}: " + (f"{place}: " if place else "") + cause + (f"; {remedy}" if remedy else "")
    return DuopldaError(printable(" ".join(line.split())))


def shown(value: object) -> str:
    """Show a value of the user's file in a few characters."""
    text = printable(repr(value[:64] if isinstance(value, str | bytes) else value))
    return text if len(text) <= 60 else text[:57] + "..."


def optional(module: str) -> Any:
    """Import an optional library; None where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def need(module: str) -> Any:
    """Import an optional library, or say how to install it."""
    found = optional(module)
    if found is None:
        raise DuopldaError(f"{module.split('.')[0]} is not installed; install it with: pip install duoplda[files]")
    return found


@contextmanager
def guarded(path: PathLike, what: str, *more: type[Exception]) -> Iterator[None]:
    """Turn what another library raises on a damaged file into our error.

    The block holds calls of that library and nothing else, so that our own mistakes come out as what they are.
    """
    try:
        yield
    except (DuopldaError, MemoryError):
        raise
    except (*PARSER_ERRORS, *more) as e:
        detail = " ".join(f"{type(e).__name__}: {e}".split())[:160]
        raise bad(path, "", f"cannot be read as {what} ({detail})", "the file may be damaged or cut short") from e


def system_error(path: PathLike, e: OSError | ValueError) -> DuopldaError:
    """Make the error for a file that the operating system does not let us have (ValueError: a zero in its name)."""
    remedy = "check the name" if isinstance(e, FileNotFoundError) else ""
    return bad(path, "", (getattr(e, "strerror", None) or str(e)).lower(), remedy)


def open_binary(path: PathLike) -> IO[bytes]:
    """Open a regular file for reading, unbuffered; anything else is an error."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):
            return open(path, "rb", buffering=0)
    except (OSError, ValueError) as e:
        raise system_error(path, e) from e
    if stat.S_ISDIR(mode):
        raise bad(path, "", "is a folder", "give a file")
    raise bad(path, "", "is not a regular file", "write it to disk first: it is read more than once")


def open_lines(path: PathLike) -> IO[bytes]:
    """Open a text file for reading line by line, after its byte-order mark."""
    f = io.BufferedReader(cast(io.RawIOBase, open_binary(path)))
    if f.read(len(BOM)) != BOM:
        f.seek(0)
    return f


def read_into(f: IO[bytes], view: memoryview) -> int:
    """Fill `view` as far as the file goes; return the number of bytes read."""
    done = 0
    while done < len(view) and (n := f.readinto(view[done:])):  # type: ignore[attr-defined]
        done += n
    return done


def magic(path: PathLike, n: int = 4096) -> bytes:
    """Return the first bytes of a regular file; empty, compressed and pickled files are refused here."""
    with open_binary(path) as f:
        start = f.read(n)
    if not start:
        raise bad(path, "", "is empty")
    if start[:2] == b"\x1f\x8b":
        raise bad(path, "byte 0", "is compressed with gzip", "decompress it first: gunzip")
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        raise bad(path, "byte 0", "is a pickle, which can run code when it is loaded", "save arrays as .npz")
    return start


def content(path: PathLike) -> str:
    """Say by its bytes whether a file is "npy", "zip", "parquet" or "hdf5"; "" where it is something else."""
    start = magic(path)
    for kind, marks in SIGNATURES.items():
        if start.startswith(marks):
            return kind
    with open_binary(path) as f:
        for at in (0, *(512 << k for k in range(22))):  # HDF5 may follow a block of the user, of 512 bytes or more
            f.seek(at)
            if f.read(8) == b"\x89HDF\r\n\x1a\n":
                return "hdf5"
    return ""


def chunk_rows(rows: int, row_bytes: int) -> int:
    """Return how many rows a chunk may have: as many as were asked for, within MAX_CHUNK bytes."""
    if rows < 1:
        raise DuopldaError(f"a chunk needs at least one row, got rows={rows}")
    return max(1, min(int(rows), MAX_CHUNK // max(row_bytes, 1)))


def check_dim(path: PathLike, place: str, dim: int, most: int = MAX_DIM) -> int:
    """Check that a dimension can be believed."""
    if not 0 < dim <= most:
        raise bad(path, place, f"dimension {dim} is not in 1..{most}", "the file may be damaged")
    return int(dim)


def check_float(path: PathLike, place: str, dtype: np.dtype) -> np.dtype:
    """Return a float type in native byte order; objects (pickles) and integers are refused."""
    if dtype.hasobject:
        raise bad(path, place, "holds pickled objects, which are never loaded", "save a float array")
    if dtype.kind != "f" or dtype.itemsize not in (2, 4, 8):
        raise bad(path, place, f"holds {dtype}, not 16-, 32- or 64-bit floats", "save a float array")
    return dtype.newbyteorder("=")


def check_id_type(path: PathLike, place: str, dtype: np.dtype) -> None:
    """Refuse an array that cannot hold ids: they are text, or integers."""
    if dtype.kind not in "USOiu" or dtype.itemsize > 4 * MAX_ID:
        raise bad(path, place, f"holds {dtype}, not ids", "store ids as strings, or name another array")


def pick(path: PathLike, found: Sequence[str], wanted: str | None, known: Sequence[str], what: str) -> str | None:
    """Choose the name of an array or column: the caller's, or the first known one that is there; None where none is."""
    if wanted is not None:
        if wanted not in found:
            raise bad(path, "", f"has no {what} named {wanted!r}", f"it has: {listed(found)}")
        return wanted
    return next((name for name in known if name in found), None)


def listed(names: Sequence[str]) -> str:
    """List at most ten names in a message."""
    return ", ".join(shown(n)[1:-1] for n in names[:10]) + (", ..." if len(names) > 10 else "") or "nothing"


def as_ids(path: PathLike, values: Any, first: int = 0) -> np.ndarray:
    """Turn ids of a file into an array of str: bytes are UTF-8, integers are written out, anything else is refused."""
    values = np.asarray(values)
    if values.dtype.kind in "iu":
        return values.astype(str)
    if values.dtype.kind == "S" and values.size and not (values.view(np.uint8) >= 128).any():
        values = values.astype(str)
    elif values.dtype.kind in "SO":
        values = np.array([_text(path, v, first + i) for i, v in enumerate(values.tolist())], dtype=str)
    if values.dtype.kind != "U":
        raise bad(path, "", f"ids are {values.dtype}, not text", "save them as strings")
    return check_ids(path, np.ascontiguousarray(values), first)


def _text(path: PathLike, value: object, row: int) -> str:
    try:
        text = value.decode("utf-8") if isinstance(value, bytes) else value
    except UnicodeDecodeError as e:
        raise bad(path, f"row {row}", f"id {shown(value)} is not UTF-8", "write ids in UTF-8") from e
    if not isinstance(text, str) or len(text) > MAX_ID:
        raise bad(path, f"row {row}", f"{shown(text)} is not an id", f"ids are text of at most {MAX_ID} bytes")
    return text


def odd_ids(ids: np.ndarray) -> np.ndarray:
    """Say which ids (a contiguous array of str) are empty or have characters in them that do not print, (n,) bool."""
    width = ids.dtype.itemsize // 4
    if not ids.size or not width:
        return np.ones(ids.size, bool)
    points = ids.view(np.uint32).reshape(ids.size, width)
    padding = points == 0
    odd = padding[:, 0] | ((points < 32) & ~padding).any(1) | (padding[:, :-1] & ~padding[:, 1:]).any(1)
    if points.max() > 126:
        odd |= (points > 0x10FFFF).any(1)
        rows = np.flatnonzero((points > 126).any(1) & ~odd)
        odd[rows] = [UNPRINTABLE.search(name) is not None for name in ids[rows].tolist()]
    return odd


def check_ids(path: PathLike, ids: np.ndarray, first: int = 0, *, token: bool = False) -> np.ndarray:
    """Check that ids are not empty, not too long and printable and, with `token`, that they have no spaces."""
    if not ids.size:
        return ids
    if ids.dtype.itemsize > 4 * MAX_ID:
        raise bad(path, f"row {first} or after", "an id is too long", f"ids have at most {MAX_ID} characters")
    odd = odd_ids(ids)
    if odd.any():
        place = f"row {first + int(odd.argmax())}"
        raise bad(path, place, "the id is empty or has control characters in it", "give it a printable id")
    if token:
        spaced = (ids.view(np.uint32).reshape(ids.size, -1) == 32).any(1)
        if spaced.any():
            row = int(spaced.argmax())
            raise bad(path, f"row {first + row}", f"id {shown(str(ids[row]))} has a space", "this format allows none")
    return ids


class IdLog:
    """A record of 8 bytes per id, by which `refuse_repeated` finds the ids that may have come twice."""

    _factors = np.random.default_rng(5).integers(1 << 63, dtype=np.uint64, size=MAX_ID) * np.uint64(2) + np.uint64(1)

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []

    @classmethod
    def hashes(cls, ids: np.ndarray) -> np.ndarray:
        """Hash ids by sums of code points times odd numbers; padding adds nothing, so that widths may differ."""
        points = np.ascontiguousarray(ids).view(np.uint32).reshape(len(ids), -1)
        return np.einsum("ij,j->i", points.astype(np.uint64), cls._factors[: points.shape[1]])

    def add(self, ids: np.ndarray) -> None:
        self.parts.append(self.hashes(ids))


def refuse_repeated(
    path: PathLike,
    log: IdLog,
    again: Callable[[], Iterator[np.ndarray]],
    entry: Callable[[int], str] = "entry {}".format,
) -> None:
    """Raise an error for the first id that really occurs twice; `again` goes through the ids once more."""
    hashes = np.sort(np.concatenate([np.empty(0, np.uint64), *log.parts]))
    suspects = hashes[1:][hashes[1:] == hashes[:-1]]  # two different ids share a hash with probability about 2^-57
    seen: dict[str, int] = {}
    row = 0
    for ids in again() if suspects.size else ():
        for i in np.flatnonzero(np.isin(IdLog.hashes(ids), suspects)):
            name = str(ids[i])
            if name in seen:
                cause = f"id {shown(name)} is there already as {entry(seen[name])}"
                raise bad(path, entry(row + int(i)), cause, "ids must differ")
            seen[name] = row + int(i)
        row += len(ids)
