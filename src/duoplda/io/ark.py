r"""Kaldi archives of vectors: binary (float, double) and text, vectors and 1-row matrices.

An archive is a sequence of entries `key value`; a binary value is `\0B`, then

    FV |DV   \4 int32 dim                  dim numbers
    FM |DM   \4 int32 rows  \4 int32 cols  rows * cols numbers       (rows must be 1 here)

and a text value is `[ 1.5 2 ... ]`. Compressed matrices (CM) are refused, as embeddings are not stored in them.
The archive is read in blocks. Entries whose keys are equally long lie at equal distances, so that a
block of them is one strided array; any other entry is found by searching for its header.
Lists that point into archives are read in `duoplda.io.scp`.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import IO, NamedTuple

import numpy as np

from duoplda.errors import UNPRINTABLE
from duoplda.io._source import IdsAndVectors, Source
from duoplda.io.common import PathLike, bad, check_dim, open_binary, shown
from duoplda.io.ids import MAX_ID

ARK_BLOCK = 1 << 20  # bytes of an archive that are read at once
# No entry that `check_dim` allows is longer: it has up to 2 MiB in binary, and as text up to 31 characters a number.
LONGEST_ENTRY = 8 << 20


class Value(NamedTuple):
    """What one value holds, and where it lies in a buffer."""

    dtype: np.dtype
    dim: int
    data: int  # first byte of the numbers (binary) or of the text after "["
    end: int  # first byte after the value
    text: bool


def parse_value(path: PathLike, buf: bytearray, pos: int, end: int, place: str) -> Value | None:
    """Parse the header of the value that starts at `buf[pos]`, before any memory is allocated for the value.

    Returns None if the buffer ends before the header does or, for a text, before the value does.
    """
    if end - pos < 2:
        return None
    if buf[pos : pos + 2] != b"\0B":
        return _parse_text(path, buf, pos, end, place)
    header = binary_header(path, buf, pos + 2, end, place)
    if header is None:
        return None
    dtype, (*rows, dim), data = header
    if rows and rows[0] != 1:
        raise bad(path, place, f"is a matrix of {rows[0]} rows", "give one vector (or a 1-row matrix) per recording")
    check_dim(path, place, dim)
    return Value(dtype, dim, data, data + dim * dtype.itemsize, False)


def binary_header(
    path: PathLike, buf: bytearray, pos: int, end: int, place: str
) -> tuple[np.dtype, tuple[int, ...], int] | None:
    """Read the header of a binary vector or matrix at `buf[pos]`: type, shape, and the place of the first number.

    Returns None if the buffer ends before the header does.
    """
    token = bytes(buf[pos : min(pos + 3, end)])
    if len(token) < 3:
        return None
    if token[:2] == b"CM":
        raise bad(path, place, "is a compressed matrix", "copy it with: copy-matrix --compress=false")
    if token not in (b"FV ", b"DV ", b"FM ", b"DM "):
        cause = f"holds {shown(token)}, not a float or double vector or matrix"
        raise bad(path, place, cause, "write it with copy-vector or copy-matrix")
    data = pos + (13 if token[1:2] == b"M" else 8)  # the size of each axis (int32) follows a byte 4
    if end < data:
        return None
    sizes = list(struct.iter_unpack("<bi", buf[pos + 3 : data]))
    if any(size_byte != 4 for size_byte, _ in sizes):
        raise bad(path, place, "has a damaged header (size byte)", "copy or write the file again")
    return np.dtype("<f4" if token[:1] == b"F" else "<f8"), tuple(n for _, n in sizes), data


def _parse_text(path: PathLike, buf: bytearray, pos: int, end: int, place: str) -> Value | None:
    """Find the end of a value `[ 1.5 2 ... ]` and count its numbers; None if the buffer ends before the value does."""
    start = skip_blanks(buf, pos, end, b" \t")
    if start == end:
        return None
    if buf[start] == 0x80:
        raise bad(path, place, "is a pickled entry, which is never loaded", "write vectors with copy-vector")
    if buf[start] != ord("["):
        cause = f"starts with {shown(bytes(buf[start : start + 4]))}, and neither with \\0B nor with ["
        raise bad(path, place, cause, "give a Kaldi archive")
    close = buf.find(b"]", start, end)
    if close < 0:
        return None
    lines = [line for line in bytes(buf[start + 1 : close]).split(b"\n") if line.strip()]
    if len(lines) > 1:
        raise bad(path, place, f"is a matrix of {len(lines)} rows", "give one vector per recording")
    dim = check_dim(path, place, len(lines[0].split()) if lines else 0)
    stop = buf.find(b"\n", close, end)
    if stop < 0:
        stop = end - 1
    if buf[close + 1 : stop + 1].strip():
        raise bad(path, place, "has something after ]", "end each entry with ] and a new line")
    return Value(np.dtype("<f8"), dim, start + 1, stop + 1, True)


def numbers(path: PathLike, buf: bytearray, value: Value, place: str) -> np.ndarray:
    """Return the numbers of one value."""
    if not value.text:
        return np.frombuffer(buf, value.dtype, value.dim, value.data)
    try:
        return np.array(bytes(buf[value.data : value.end]).partition(b"]")[0].split(), dtype=np.float64)
    except ValueError as e:
        raise bad(path, place, f"holds something that is no number ({e})", "write the archive again") from e


def check_same(path: PathLike, place: str, value: Value, dim: int, dtype: np.dtype) -> None:
    """Check that a vector has the dimension and the precision of the others."""
    if value.dim != dim:
        raise bad(path, place, f"has dimension {value.dim}, the first vector {dim}", "all must be equal")
    if value.dtype.itemsize != dtype.itemsize:
        raise bad(path, place, "mixes float and double vectors", "copy the archive with one precision")


def open_ark(path: PathLike) -> Source:
    """Open a Kaldi archive as a source of chunks; its first entry gives dimension and precision."""
    with open_binary(path) as f:
        size = os.fstat(f.fileno()).st_size
        for length in (8192, LONGEST_ENTRY):
            buf = bytearray(min(length, size))
            f.seek(0)
            end = f.readinto(buf)
            entry = _entry(path, buf, skip_blanks(buf, 0, end), end, 0, size)
            if entry is not None:
                break
        else:
            raise bad(path, "byte 0", "an entry is cut short or too long", "the file may be damaged")
    _, value = entry
    dim = value.dim
    dtype = value.dtype.newbyteorder("=")
    return Source(path, "ark", dim, dtype, None, lambda rows, _: _chunks(path, dim, dtype, rows), format="kaldi ark")


def skip_blanks(buf: bytearray, pos: int, end: int, blanks: bytes = b" \t\r\n") -> int:
    """Skip white space: Kaldi allows it before a key, and text archives end in some."""
    while pos < end and buf[pos] in blanks:
        pos += 1
    return pos


def _entry(path: PathLike, buf: bytearray, pos: int, end: int, base: int, size: int) -> tuple[str, Value] | None:
    """Find key and value of the entry at `buf[pos]`, which is byte `base + pos` of a file of `size` bytes.

    Returns None if the buffer ends before the entry does and the file goes on, so that more must be read.
    """
    place = f"byte {base + pos}"
    space = buf.find(b" ", pos, min(end, pos + MAX_ID + 1))
    raw = bytes(buf[pos : space if space >= 0 else min(end, pos + MAX_ID + 1)])
    if space < 0 and base + end < size and len(raw) <= MAX_ID:
        return None
    if space < 0 or not raw or len(raw.split()) != 1 or raw.split()[0] != raw:
        raise bad(path, place, f"no key where an entry starts ({shown(raw[:24])})", "not a Kaldi archive, or damaged")
    try:
        key = raw.decode("utf-8")
    except UnicodeDecodeError as e:
        raise bad(path, place, f"key {shown(raw)} is not UTF-8", "write ids in UTF-8") from e
    if UNPRINTABLE.search(key):
        raise bad(path, place, f"key {shown(key)} has control characters", "not a Kaldi archive, or damaged")
    place = f"entry {shown(key)} at byte {base + pos}"
    value = parse_value(path, buf, space + 1, end, place)
    if value is None:
        if base + end < size and end - pos < LONGEST_ENTRY:
            return None
        raise bad(path, place, "is cut short", "the file is incomplete: copy or write it again")
    if base + value.end > size:
        missing = base + value.end - size
        raise bad(path, place, f"is cut short by {missing} bytes", "the file is incomplete: copy or write it again")
    return key, value


def _chunks(path: PathLike, dim: int, dtype: np.dtype, limit: int) -> Iterator[IdsAndVectors]:
    """Yield the entries of an archive in chunks of `limit` vectors."""
    least = dim * 2 if dtype.itemsize == 8 else dim * dtype.itemsize  # bytes of the shortest entry: "1 2 3" as text
    with open_binary(path) as f:
        size = os.fstat(f.fileno()).st_size
        offset = 0
        n = 0
        buf = bytearray(min(ARK_BLOCK, size))
        ids = list[np.ndarray]()
        runs = True  # whether keys have been equally long, so that `_equal` is tried first
        while offset < size:
            f.seek(offset)
            end = f.readinto(buf)
            pos = 0
            while (pos := skip_blanks(buf, pos, end)) < end:
                if not n:
                    X = np.empty((min(limit, (size - offset - pos) // least + 1), dim), dtype)
                entry = _entry(path, buf, pos, end, offset, size)
                if entry is None or entry[1].end > end:
                    break
                key, value = entry
                place = f"entry {shown(key)} at byte {offset + pos}"
                part = 0
                check_same(path, place, value, dim, dtype)
                if not value.text:
                    head = bytes(buf[pos + len(key.encode()) : value.data])
                    part, keys, stop = (_equal if runs else _unequal)(buf, pos, end, head, X[n:])
                    runs = part > 3 if runs else part < 256
                if not part:  # a value in text, or a key that the fast readers leave out: one entry at a time
                    X[n] = numbers(path, buf, value, place)
                    part = 1
                    keys = np.array([key])
                    stop = value.end
                ids.append(keys)
                n = n + part
                pos = stop
                if n == len(X):
                    yield np.concatenate(ids), X
                    ids = []
                    n = 0
            if not pos and offset + end < size:  # the first entry is longer than the block
                if len(buf) == LONGEST_ENTRY:
                    raise bad(path, f"byte {offset}", "an entry is cut short or too long", "the file may be damaged")
                buf = bytearray(LONGEST_ENTRY)
            elif not pos:
                _entry(path, buf, 0, end, offset, size)  # raises an error that says what is missing
                raise bad(path, f"byte {offset}", "the last entry is cut short", "copy or write the file again")
            offset += pos
        if n:
            yield np.concatenate(ids), X[:n].copy()


def _equal(buf: bytearray, pos: int, end: int, head: bytes, X: np.ndarray) -> tuple[int, np.ndarray, int]:
    """Read the entries from `pos` on, as long as their keys have the length of the first and their headers are `head`.

    Returns how many there are, their keys, and where the last one ends; the vectors are written to X.
    """
    k = buf.find(head, pos, pos + MAX_ID + len(head)) - pos
    nbytes = X.shape[1] * X.itemsize
    stride = k + len(head) + nbytes
    n = min(len(X), (end - pos) // stride)
    block = np.frombuffer(buf, np.uint8, n * stride, pos).reshape(n, stride)
    same = (block[:, k : k + len(head)] == np.frombuffer(head, np.uint8)).all(1)
    same &= ((block[:, :k] > 32) & (block[:, :k] < 127)).all(1)
    n = n if same.all() else int(same.argmin())
    X[:n].view(np.uint8)[:] = block[:n, k + len(head) :]
    keys = np.ascontiguousarray(block[:n, :k]).view(f"S{k}").ravel().astype(str)
    return n, keys, pos + n * stride


def _unequal(buf: bytearray, pos: int, end: int, head: bytes, X: np.ndarray) -> tuple[int, np.ndarray, int]:
    """Read at most 512 entries from `pos` on whose header is `head`, with keys of any length.

    Returns what `_equal` returns; no entry is read if any of their keys needs a closer look.
    """
    keys: list[bytes] = []
    parts: list[memoryview] = []
    view = memoryview(buf)
    find = buf.find
    skip = len(head)
    nbytes = X.shape[1] * X.itemsize
    for _ in range(min(len(X), 512)):
        key_end = find(head, pos, pos + MAX_ID + skip)
        data = key_end + skip
        if key_end < 0 or data + nbytes > end:
            break
        keys.append(bytes(view[pos:key_end]))
        pos = data + nbytes
        parts.append(view[data:pos])
    joined = b"\n".join(keys)
    names = joined.decode("utf-8", "surrogateescape")  # bytes that are not UTF-8 become unprintable characters
    # An id that is not one clean word is left to `_entry`, which says what is wrong with it.
    if len(joined.split()) != len(keys) or not keys or UNPRINTABLE.search(names.replace("\n", "")):
        return 0, np.empty(0, str), pos
    X[: len(keys)].reshape(-1).view(np.uint8)[:] = np.frombuffer(b"".join(parts), np.uint8)
    return len(keys), np.array(names.split("\n")), pos


def write_ark(
    out: IO[bytes], chunks: Iterable[IdsAndVectors], *, text: bool = False
) -> Iterator[tuple[np.ndarray, list[int]]]:
    """Write chunks as archive entries; yield each chunk's ids and the offsets that an scp points to."""
    for ids, X in chunks:
        names = [name.encode("utf-8") + b" " for name in ids.tolist()]
        if text:
            values = [f" [ {' '.join(row)} ]\n".encode() for row in X.astype(str).tolist()]
        else:
            X = np.ascontiguousarray(X, "<f8" if X.dtype.itemsize == 8 else "<f4")
            head = b"\0B" + (b"DV \4" if X.dtype.itemsize == 8 else b"FV \4") + struct.pack("<i", X.shape[1])
            raw = memoryview(X.tobytes())
            step = X.shape[1] * X.dtype.itemsize
            values = [head + raw[i : i + step] for i in range(0, len(raw), step)]
        parts = [part for pair in zip(names, values, strict=True) for part in pair]
        offsets = list(accumulate(map(len, parts), initial=out.tell()))[1::2]
        out.write(b"".join(parts))
        yield ids, offsets
