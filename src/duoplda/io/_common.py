"""What every format shares: errors with a place, limits, safe opening, the check for repeated ids."""

from __future__ import annotations

import importlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import numpy as np

from duoplda.errors import DuopldaError

PathLike = str | os.PathLike[str]
Chunk = tuple[np.ndarray, np.ndarray]

ROWS = 16384  # rows of a chunk unless the caller says otherwise
MAX_DIM = 1 << 18  # a larger dimension is taken for a damaged header
MAX_ID = 512  # bytes; a longer id is taken for damage
MAX_CHUNK = 1 << 28  # bytes of one chunk of vectors, whatever number of rows was asked for

ODD = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")  # not in an id

VECTOR_NAMES = ("embeddings", "embedding", "vectors", "vector", "xvectors", "ivectors", "X", "x", "data")
ID_NAMES = ("ids", "id", "utt_ids", "utt_id", "utts", "utt", "utterances", "keys", "names", "segmentid")


def bad(path: PathLike, place: str, cause: str, remedy: str = "") -> DuopldaError:
    """The error of this room: one line with file, place, cause and remedy."""
    line = f"{os.fspath(path)}: " + (f"{place}: " if place else "") + cause + (f"; {remedy}" if remedy else "")
    return DuopldaError(" ".join(line.split()))


def shown(value: object) -> str:
    """A value of the user's file, short enough for a one-line message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def need(module: str) -> Any:
    """Import an optional library, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        name = module.partition(".")[0]
        raise DuopldaError(f"{name} is not installed; install it with: pip install duoplda[files]") from e


@contextmanager
def guarded(path: PathLike, what: str) -> Iterator[None]:
    """Turn whatever a third-party parser raises on a damaged file into our error."""
    try:
        yield
    except DuopldaError:
        raise
    except Exception as e:
        detail = " ".join(f"{type(e).__name__}: {e}".split())[:160]
        raise bad(path, "", f"cannot be read as {what} ({detail})", "the file may be damaged or cut short") from e


def system_error(path: PathLike, e: OSError) -> DuopldaError:
    """The error for a file that the operating system does not let us have."""
    remedy = "check the name" if isinstance(e, FileNotFoundError) else ""
    return bad(path, "", (e.strerror or str(e)).lower(), remedy)


def open_binary(path: PathLike) -> IO[bytes]:
    """Open a regular file for reading, unbuffered; anything else is our error."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise bad(path, "", "is a folder", "give a file")
        if not stat.S_ISREG(mode):
            raise bad(path, "", "is not a regular file", "write it to disk first: it is read more than once")
        return open(path, "rb", buffering=0)
    except (OSError, ValueError) as e:
        if isinstance(e, DuopldaError):
            raise
        raise (system_error(path, e) if isinstance(e, OSError) else bad(path, "", str(e))) from e


def read_into(f: IO[bytes], view: memoryview) -> int:
    """Fill `view` as far as the file goes; the number of bytes read."""
    done = 0
    while done < len(view):
        n = f.readinto(view[done:])  # type: ignore[attr-defined]
        if not n:
            break
        done += n
    return done


def magic(path: PathLike, n: int = 4096) -> bytes:
    """The first bytes of a regular, non-empty file; compressed and pickled files are refused here."""
    with open_binary(path) as f:
        start = f.read(n)
    if not start:
        raise bad(path, "", "is empty")
    if start[:2] == b"\x1f\x8b":
        raise bad(path, "byte 0", "is compressed with gzip", "decompress it first: gunzip")
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        raise bad(path, "byte 0", "is a pickle, which can run code when it is loaded", "save arrays as .npz")
    return start


def starts_as(start: bytes, kind: str) -> bool:
    """Do the first bytes say npy, zip, parquet or hdf5 (which may follow a user block)?"""
    if kind == "hdf5":
        return any(start[at : at + 8] == b"\x89HDF\r\n\x1a\n" for at in (0, 512, 1024, 2048))
    return start.startswith({"npy": (b"\x93NUMPY",), "zip": (b"PK\3\4", b"PK\5\6"), "parquet": (b"PAR1",)}[kind])


def chunk_rows(rows: int, row_bytes: int) -> int:
    """How many rows a chunk may have: what was asked for, within MAX_CHUNK bytes."""
    if rows < 1:
        raise DuopldaError(f"a chunk needs at least one row, got rows={rows}")
    return max(1, min(int(rows), MAX_CHUNK // max(row_bytes, 1)))


def check_dim(path: PathLike, place: str, dim: int) -> int:
    """A dimension that can be believed."""
    if not 0 < dim <= MAX_DIM:
        raise bad(path, place, f"dimension {dim} is not in 1..{MAX_DIM}", "the file may be damaged")
    return int(dim)


def check_float(path: PathLike, place: str, dtype: np.dtype) -> np.dtype:
    """A float type in native byte order; objects (pickles) and integers are refused."""
    if dtype.hasobject:
        raise bad(path, place, "holds pickled objects, which are never loaded", "save a float array")
    if dtype.kind != "f" or dtype.itemsize not in (2, 4, 8):
        raise bad(path, place, f"holds {dtype}, not 16-, 32- or 64-bit floats", "save a float array")
    return dtype.newbyteorder("=")


def pick(path: PathLike, found: Sequence[str], wanted: str | None, known: Sequence[str], what: str) -> str | None:
    """The name of an array, dataset or column: the caller's, or the first known one that is there."""
    if wanted is not None:
        if wanted not in found:
            raise bad(path, "", f"has no {what} named {wanted!r}", f"it has: {listed(found)}")
        return wanted
    return next((name for name in known if name in found), None)


def listed(names: Sequence[str]) -> str:
    """At most ten names for a message."""
    return ", ".join(shown(n)[1:-1] for n in names[:10]) + (", ..." if len(names) > 10 else "") or "nothing"


def as_ids(path: PathLike, values: Any, first: int = 0) -> np.ndarray:
    """Ids from a file as an array of str: bytes are UTF-8, integers are written out, nothing else goes."""
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
    """Which ids (a contiguous array of str) are empty or have control characters, (n,) bool."""
    width = ids.dtype.itemsize // 4
    if not ids.size or not width:
        return np.ones(ids.size, bool)
    points = ids.view(np.uint32).reshape(ids.size, width)
    odd = points[:, 0] == 0
    if points.max() < 127:
        return odd | ((points > 0) & (points < 32)).any(1) if ((points > 0) & (points < 32)).any() else odd
    odd |= (((points > 0) & (points < 32)) | (points == 127) | (points == 0x85)).any(1)
    odd |= ((points == 0x2028) | (points == 0x2029) | (points > 0x10FFFF)).any(1)
    return odd | ((points >= 0xD800) & (points < 0xE000)).any(1)


def check_ids(path: PathLike, ids: np.ndarray, first: int = 0, *, token: bool = False) -> np.ndarray:
    """Ids that can stand in a list: not empty, one line, real characters; `token`: no white space."""
    if not ids.size:
        return ids
    if ids.dtype.itemsize > 4 * MAX_ID:
        raise bad(path, f"row {first} or after", "an id is too long", f"ids have at most {MAX_ID} characters")
    odd = odd_ids(ids)
    if odd.any():
        place = f"row {first + int(odd.argmax())}"
        raise bad(path, place, "the id is empty or has control characters", "give it a printable id")
    if token:
        spaced = (ids.view(np.uint32).reshape(ids.size, -1) == 32).any(1)
        if spaced.any():
            row = int(spaced.argmax())
            raise bad(path, f"row {first + row}", f"id {shown(str(ids[row]))} has a space", "this format allows none")
    return ids


class IdLog:
    """Notes 8 bytes per id and says afterwards which may have come twice, in memory that stays small."""

    _factors = np.random.default_rng(5).integers(1 << 63, dtype=np.uint64, size=MAX_ID) * np.uint64(2) + np.uint64(1)

    def __init__(self) -> None:
        self._hashes: list[np.ndarray] = []

    @classmethod
    def hashes(cls, ids: np.ndarray) -> np.ndarray:
        """A sum of code points times odd numbers: padding adds nothing, so that widths may differ."""
        points = np.ascontiguousarray(ids).view(np.uint32).reshape(len(ids), -1)
        return np.einsum("ij,j->i", points.astype(np.uint64), cls._factors[: points.shape[1]])

    def add(self, ids: np.ndarray) -> None:
        self._hashes.append(self.hashes(ids))

    def suspects(self) -> np.ndarray:
        """Hashes that occur more than once; two different ids share one with probability about 2^-57."""
        if not self._hashes:
            return np.empty(0, np.uint64)
        all_ = np.sort(np.concatenate(self._hashes))
        return np.unique(all_[1:][all_[1:] == all_[:-1]])


def refuse_repeated(
    path: PathLike,
    log: IdLog,
    again: Callable[[], Iterator[np.ndarray]],
    entry: Callable[[int], str] = "entry {}".format,
) -> None:
    """Raise for the first id that really occurs twice; `again` goes through the ids once more."""
    suspects = log.suspects()
    if not suspects.size:
        return
    seen: dict[str, int] = {}
    row = 0
    for ids in again():
        for i in np.flatnonzero(np.isin(IdLog.hashes(ids), suspects)):
            name = str(ids[i])
            if name in seen:
                cause = f"id {shown(name)} is there already as {entry(seen[name])}"
                raise bad(path, entry(row + int(i)), cause, "ids must differ")
            seen[name] = row + int(i)
        row += len(ids)
