"""What all formats share: errors that name a place, opening files safely, and checks of what a header declares.

What an id may be is in `duoplda.io.ids`; writing is in `duoplda.io._atomic`.
"""

import gzip
import hashlib
import importlib
import io
import os
import re
import stat
import struct
import sys
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO

import numpy as np

from duoplda.errors import DuopldaError, printable

PathLike = str | os.PathLike[str]

MAX_FEATURES = 1 << 13  # a model of more dimensions, whose matrices would be half a gigabyte, is taken for damage
GZIP = b"\x1f\x8b"  # the first bytes of a file that gzip has packed
MAX_UNPACKED = 1 << 28  # bytes that a file may make us unpack at once; one page or chunk of real data has far fewer
HDF5_SUFFIXES = (".h5", ".hdf5", ".hdf")
PARQUET_SUFFIXES = (".parquet", ".pq")
AUDIO_SUFFIXES = (".wav", ".flac", ".sph", ".mp3", ".m4a", ".ogg", ".opus")
TABLE_SUFFIXES = (".tsv", ".csv", *PARQUET_SUFFIXES)


def bad(path: PathLike, place: str, cause: str, remedy: str = "") -> DuopldaError:
    """Return an error whose message is one line: the file, the place in it, the cause and the remedy."""
    line = f"{os.fspath(path)}: " + (f"{place}: " if place else "") + cause + (f"; {remedy}" if remedy else "")
    return DuopldaError(printable(" ".join(line.split())))


def shown(value: object) -> str:
    """Return a value of the user's file as it is shown in messages, in at most 60 characters."""
    text = printable(repr(value[:64] if isinstance(value, str | bytes) else value))
    return text if len(text) <= 60 else text[:57] + "..."


def listed(names: Sequence[str], most: int = 10) -> str:
    """Return the first names, between commas, as they are shown in messages."""
    return ", ".join(shown(n)[1:-1] for n in names[:most]) + (", ..." if len(names) > most else "") or "nothing"


def system_error(path: PathLike, e: OSError | ValueError) -> DuopldaError:
    """Return the error for a file that the operating system refuses; a ValueError means a zero byte in its name."""
    remedy = "check the name" if isinstance(e, FileNotFoundError) else ""
    return bad(path, "", (getattr(e, "strerror", None) or str(e)).lower(), remedy)


def need(module: str) -> ModuleType:
    """Import an optional library, or raise an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        library = module.split(".")[0]
        extra = "audio" if library in ("sherpa_onnx", "soundfile", "soxr") else "files"
        raise DuopldaError(f"{library} is not installed; install it with: pip install duoplda[{extra}]") from None


def installed(module: str) -> bool:
    """Say whether an optional library can be imported."""
    try:
        return importlib.import_module(module) is not None
    except ImportError:
        return False


@contextmanager
def guarded(path: PathLike, what: str, *more: type[Exception]) -> Iterator[None]:
    """Turn what another library raises on a damaged file into our error.

    The block should hold calls of that library only: exceptions from mistakes in our own code must not be hidden.
    """
    # These are what zipfile, NumPy, h5py and pyarrow were seen to raise for damaged files. MemoryError is not among
    # them, as it says nothing about the file.
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


@dataclass(frozen=True, repr=False)
class HeldText(os.PathLike[str]):
    """A list in memory that came through a pipe or from gzip: lists are read more than once, and a pipe cannot be."""

    name: str  # what the user calls it
    data: bytes  # the unpacked text
    sha256: str  # the hash of the bytes that were read, before they were unpacked

    def __fspath__(self) -> str:
        return self.name

    __str__ = __fspath__


def held(path: PathLike) -> PathLike:
    """Return a list in a form that can be opened any number of times.

    The path of a plain file is returned as it is. "-", which is standard input, and a pipe, such as `<(zcat list.gz)`,
    are read to their ends into memory; what is packed with gzip is unpacked, whatever its name. A path that cannot be
    opened is returned as it is, too: the error will come from the function that opens it.
    """
    if isinstance(path, HeldText):
        return path
    if os.fspath(path) == "-":
        if getattr(sys.stdin, "buffer", None) is None:
            raise bad("standard input", "", "is closed", "give a file, or what is to be read: < list")
        return _hold("standard input", sys.stdin.buffer)
    if not os.path.exists(path):
        return path
    with suppress(OSError), open(path, "rb") as f:
        if not os.path.isfile(path) or f.peek(2).startswith(GZIP):
            return _hold(os.fspath(path), f)
    return path


def _hold(name: str, f: IO[bytes]) -> HeldText:
    """Read a source to its end, and unpack it, in bounded memory."""
    most = 1 << 30  # bytes of a list, 20 million trials: it must fit into memory beside what is made of it
    # The lists that were tried, with ids of up to 160 characters, shrink by at most a factor of 100. What shrinks by
    # 1,000, gzip's limit, holds no information, and may have been made to fill the memory.
    least = 1 << 26
    densest = 250
    try:
        packed = _whole(name, f, most, "write it to a file first, and give that")
    except OSError as e:
        raise system_error(name, e) from e
    data = packed
    if packed.startswith(GZIP):
        most = min(most, max(least, densest * len(packed)))
        with guarded(name, "gzip"), gzip.GzipFile(fileobj=io.BytesIO(packed)) as unpacked:
            data = _whole(name, unpacked, most, "if it is a list after all, unpack it first: gunzip")
    return HeldText(name, data, hashlib.sha256(packed).hexdigest())


def _whole(name: str, f: IO[bytes] | gzip.GzipFile, most: int, remedy: str) -> bytes:
    """Read what is left of a file; more than `most` bytes are an error."""
    store = io.BytesIO()
    while block := f.read(1 << 20):
        if store.tell() + len(block) > most:
            raise bad(name, "", f"holds more than {most >> 20} MB", remedy)
        store.write(block)
    return store.getvalue()


def plain_name(path: PathLike) -> str:
    """Return the name of a file in lower case, without the folder and without `.gz`."""
    return Path(path).name.lower().removesuffix(".gz")


def open_binary(path: PathLike) -> io.BufferedReader | io.BytesIO:
    """Open a regular file, or a text that is held, for reading; anything else is an error."""
    if isinstance(path, HeldText):
        return io.BytesIO(path.data)
    if os.fspath(path) == "-":
        raise bad(path, "", "is standard input, from which lists are read", "write this to a file first, and give that")
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISREG(mode):
            return open(path, "rb")
    except (OSError, ValueError) as e:
        raise system_error(path, e) from e
    if stat.S_ISDIR(mode):
        raise bad(path, "", "is a folder", "give a file")
    raise bad(path, "", "is not a regular file", "write it to disk first: it is read more than once")


def open_lines(path: PathLike) -> io.BufferedReader | io.BytesIO:
    """Open a text file for reading line by line, and skip its byte-order mark if it has one."""
    f = open_binary(path)
    if f.read(3) != b"\xef\xbb\xbf":  # the byte-order mark that Windows programs write
        f.seek(0)
    return f


def file_size(path: PathLike) -> int:
    """Return the number of bytes of a regular file."""
    with open_binary(path) as f:
        return os.fstat(f.fileno()).st_size


def file_sha256(path: PathLike) -> str:
    """Return the SHA-256 of the bytes of a file, as `sha256sum` prints it."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def first_bytes(path: PathLike) -> bytes:
    """Return the first 4096 bytes of a regular file; empty, compressed and pickled files are refused here."""
    with open_binary(path) as f:
        start = f.read(4096)
    if not start:
        raise bad(path, "", "is empty")
    if start.startswith(GZIP):
        raise bad(path, "byte 0", "is compressed with gzip", "decompress it first: gunzip")
    for tool, signature in {"xz": rb"\xfd7zXZ\0", "bzip2": rb"BZh[1-9]1AY&SY", "zstd": rb"\x28\xb5\x2f\xfd"}.items():
        if re.match(signature, start):
            raise bad(path, "byte 0", f"is compressed with {tool}", f"lists may come through pipes: <({tool} -dc ...)")
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        raise bad(path, "byte 0", "is a pickle, which can run code when it is loaded", "save arrays as .npz")
    return start


def content(path: PathLike) -> str:
    """Say by its bytes whether a file is "npy", "zip", "parquet" or "hdf5"; return "" for anything else."""
    start = first_bytes(path)
    signatures = {b"\x93NUMPY": "npy", b"PK\3\4": "zip", b"PK\5\6": "zip", b"PAR1": "parquet"}
    kind = next((kind for signature, kind in signatures.items() if start.startswith(signature)), "")
    if not kind:
        with open_binary(path) as f:
            for offset in (0, *(512 << k for k in range(22))):  # HDF5 may follow a user block of 512, 1024, ... bytes
                f.seek(offset)
                if f.read(8) == b"\x89HDF\r\n\x1a\n":
                    kind = "hdf5"
    if kind and isinstance(path, HeldText):
        cause = f"is {kind}, which is not read from start to end, and cannot come through gzip or a pipe"
        raise bad(path, "", cause, "give a plain file")
    return kind


def refuse_audio(path: PathLike, place: str, name: str, start: bytes = b"") -> None:
    """Raise an error if a file is audio, by its name or by its first bytes: embeddings are read here."""
    if start.startswith((b"RIFF", b"fLaC", b"OggS", b"NIST_1A", b"ID3")) or name.lower().endswith(AUDIO_SUFFIXES):
        cause = f"{shown(name)[1:-1]} is audio, and embeddings are read here"
        raise bad(path, place, cause, "make them first: duoplda embed, or any extractor of speaker embeddings")


# -- checks of what a header declares


def check_dim(path: PathLike, place: str, dim: int, most: int = 1 << 18) -> int:
    """Check that a dimension is plausible. Embeddings have hundreds, so more than a quarter of a million is damage."""
    if not 0 < dim <= most:
        raise bad(path, place, f"dimension {dim} is not in 1..{most}", "the file may be damaged")
    return int(dim)


def check_float(path: PathLike, place: str, dtype: np.dtype) -> np.dtype:
    """Return a float type in native byte order; any other type, such as integers or pickled objects, is refused."""
    if dtype.hasobject:
        raise bad(path, place, "holds pickled objects, which are never loaded", "save a float array")
    if dtype.kind != "f" or dtype.itemsize not in (2, 4, 8):
        raise bad(path, place, f"holds {dtype}, not 16-, 32- or 64-bit floats", "save a float array")
    return dtype.newbyteorder("=")


def model_array(path: PathLike, place: str, array: np.ndarray) -> np.ndarray:
    """Return an array of a model as float64, after checking its type, its size and its values."""
    check_float(path, place, array.dtype)
    check_dim(path, place, max(array.shape, default=0), MAX_FEATURES)
    array = np.asarray(array, np.float64)
    if not np.isfinite(array).all() or not array.size or np.abs(array).max() > 1e100:
        raise bad(path, place, "is empty, or has NaN, infinity or values beyond 1e100 in it", "train it again")
    return array


def pick(
    path: PathLike,
    names: Sequence[str],
    wanted: str | None,
    known: Sequence[str],
    what: str,
    *,
    rather: bool = False,
) -> str | None:
    """Choose an array or column: the one that is `wanted`, else the first of the `known` names; None if there is none.

    A wanted name that is not there is an error. With `rather`, a known name is taken instead: one command may read
    several files, and not all of them have the wanted name.
    """
    usual = next((name for name in known if name in names), None)
    if wanted is None or (rather and usual is not None and wanted not in names):
        return usual
    if wanted not in names:
        raise bad(path, "", f"has no {what} named {wanted!r}", f"it has: {listed(names)}")
    return wanted
