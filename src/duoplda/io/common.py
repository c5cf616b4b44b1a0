"""What all formats share: errors that name a place, opening files safely, and checks of what a header declares."""

import importlib
import io
import os
import stat
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import IO, cast

import numpy as np

from duoplda.errors import DuopldaError, printable

PathLike = str | os.PathLike[str]

MAX_FEATURES = 1 << 13  # a model of more dimensions, whose matrices would be half a gigabyte, is taken for damage
MAX_UNPACKED = 1 << 28  # bytes that a file may make us unpack at once; one page or chunk of real data has far fewer
HDF5_SUFFIXES = (".h5", ".hdf5", ".hdf")
PARQUET_SUFFIXES = (".parquet", ".pq")
TABLE_SUFFIXES = (".tsv", ".csv", *PARQUET_SUFFIXES)


def bad(path: PathLike, place: str, cause: str, remedy: str = "") -> DuopldaError:
    """Make the error of this package: one line with file, place, cause and remedy."""
    line = f"{os.fspath(path)}: " + (f"{place}: " if place else "") + cause + (f"; {remedy}" if remedy else "")
    return DuopldaError(printable(" ".join(line.split())))


def shown(value: object) -> str:
    """Show a value of the user's file in at most 60 characters."""
    text = printable(repr(value[:64] if isinstance(value, str | bytes) else value))
    return text if len(text) <= 60 else text[:57] + "..."


def listed(names: Sequence[str]) -> str:
    """List at most ten names in a message."""
    return ", ".join(shown(n)[1:-1] for n in names[:10]) + (", ..." if len(names) > 10 else "") or "nothing"


def system_error(path: PathLike, e: OSError | ValueError) -> DuopldaError:
    """Make the error for a file that the operating system refuses (ValueError: its name has a zero byte in it)."""
    remedy = "check the name" if isinstance(e, FileNotFoundError) else ""
    return bad(path, "", (getattr(e, "strerror", None) or str(e)).lower(), remedy)


def need(module: str) -> ModuleType:
    """Import an optional library, or raise an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        library = module.split(".")[0]
        raise DuopldaError(f"{library} is not installed; install it with: pip install duoplda[files]") from None


def installed(module: str) -> bool:
    """Can an optional library be imported?"""
    try:
        return importlib.import_module(module) is not None
    except ImportError:
        return False


@contextmanager
def guarded(path: PathLike, what: str, *more: type[Exception]) -> Iterator[None]:
    """Turn what another library raises on a damaged file into our error.

    The block holds calls of that library and nothing else, so that our own mistakes come out as what they are.
    """
    # This is what zipfile, NumPy, h5py and pyarrow were seen to raise for damaged files. A lack of memory is not
    # among them: it says nothing of the file.
    errors: tuple[type[Exception], ...] = (
        *(OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, RuntimeError, ArithmeticError),
        *(SyntaxError, struct.error, zlib.error, zipfile.BadZipFile, tokenize.TokenError),
    )
    try:
        yield
    except (DuopldaError, MemoryError):
        raise
    except (*errors, *more) as e:
        detail = " ".join(f"{type(e).__name__}: {e}".split())[:160]
        raise bad(path, "", f"cannot be read as {what} ({detail})", "the file may be damaged or cut short") from e


# -- opening


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
    if f.read(3) != b"\xef\xbb\xbf":  # the byte-order mark that Windows programs write
        f.seek(0)
    return f


def file_size(path: PathLike) -> int:
    """Return the number of bytes of a regular file."""
    with open_binary(path) as f:
        return os.fstat(f.fileno()).st_size


def read_into(f: IO[bytes], view: memoryview) -> int:
    """Fill `view` as far as the file goes; return the number of bytes read."""
    done = 0
    while done < len(view) and (n := f.readinto(view[done:])):  # type: ignore[attr-defined]
        done += n
    return done


def first_bytes(path: PathLike) -> bytes:
    """Return the first 4096 bytes of a regular file; empty, compressed and pickled files are refused here."""
    with open_binary(path) as f:
        start = f.read(4096)
    if not start:
        raise bad(path, "", "is empty")
    if start[:2] == b"\x1f\x8b":
        raise bad(path, "byte 0", "is compressed with gzip", "decompress it first: gunzip")
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        raise bad(path, "byte 0", "is a pickle, which can run code when it is loaded", "save arrays as .npz")
    return start


def content(path: PathLike) -> str:
    """Say by its bytes whether a file is "npy", "zip", "parquet" or "hdf5"; "" where it is something else."""
    start = first_bytes(path)
    for kind, signatures in (("npy", b"\x93NUMPY"), ("zip", (b"PK\3\4", b"PK\5\6")), ("parquet", b"PAR1")):
        if start.startswith(signatures):
            return kind
    with open_binary(path) as f:
        for offset in (0, *(512 << k for k in range(22))):  # HDF5 may follow a user block of 512, 1024, ... bytes
            f.seek(offset)
            if f.read(8) == b"\x89HDF\r\n\x1a\n":
                return "hdf5"
    return ""


# -- checks of what a header declares


def check_dim(path: PathLike, place: str, dim: int, most: int = 1 << 18) -> int:
    """Check that a dimension is plausible: embeddings have hundreds, so that a quarter of a million is damage."""
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


def pick(path: PathLike, names: Sequence[str], wanted: str | None, known: Sequence[str], what: str) -> str | None:
    """Choose an array or column by name: the one the caller wants, or else the first known one; None where none is."""
    if wanted is not None:
        if wanted not in names:
            raise bad(path, "", f"has no {what} named {wanted!r}", f"it has: {listed(names)}")
        return wanted
    return next((name for name in known if name in names), None)
