"""Ids in HDF5 datasets: strings of fixed or variable length, or integers.

Strings of variable length are read here byte by byte and not by libhdf5, which loops for ever or crashes
(version 2.0) when the heap they lie in is damaged. An element is a length (4 bytes), the address of a heap
(8) and the number of an object in it (4). A heap is `GCOL`, its size (8 bytes, at 8) and from 16 on objects:
number (2), count (2), 4 unused, size (8) and the content, padded to 8.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import IO, Any

import numpy as np

from duoplda.io._common import MAX_ID, PathLike, as_ids, bad, need, open_binary

ELEMENT = np.dtype([("length", "<u4"), ("heap", "<u8"), ("object", "<u4")])
MAX_HEAP = 1 << 26
NOWHERE = (0, 2**64 - 1)
DEFLATE = 1


def check_texts(path: PathLike, d: Any) -> None:
    """Can the dataset hold ids?"""
    if d.dtype.kind not in "SOiu" or d.dtype.itemsize > 4 * MAX_ID:
        raise bad(path, d.name, f"holds {d.dtype}, not ids", "store ids as strings")
    if d.dtype.kind == "O" and need("h5py").check_string_dtype(d.dtype) is None:
        raise bad(path, d.name, "holds something else than text", "store ids as strings")


def texts(path: PathLike, d: Any, part: slice = slice(None)) -> np.ndarray:
    """The ids in (a part of) a dataset; a list written as (n, 1) or (1, n) is a list."""
    first, stop, _ = part.indices(d.size)
    if d.dtype.kind == "O":
        values: Any = _variable(path, d, first, stop)
    else:
        values = d[part] if d.ndim == 1 else np.asarray(d[()]).ravel()[part]
    return as_ids(path, values, first)


def _variable(path: PathLike, d: Any, first: int, stop: int) -> np.ndarray:
    """Elements `first` to `stop` of a dataset of strings of variable length, as bytes."""
    if d.file.id.get_create_plist().get_sizes() != (8, 8):
        raise bad(path, d.name, "is in a file with short addresses", "store ids with a fixed length")
    base = d.file.userblock_size
    with open_binary(path) as f:
        raw = _elements(path, d, f, first, stop)
        heaps = _Heaps(path, f, base)
        items = [heaps.get(*e) if e[0] and e[1] not in NOWHERE else b"" for e in raw.tolist()]
    return np.array(items, dtype=object)


def _elements(path: PathLike, d: Any, f: IO[bytes], first: int, stop: int) -> np.ndarray:
    """The raw elements, from contiguous storage or from the chunks of a one-dimensional dataset."""
    h5d, plist = need("h5py").h5d, d.id.get_create_plist()
    if plist.get_layout() == h5d.CONTIGUOUS:
        offset = d.id.get_offset()
        if offset is None:
            raise bad(path, d.name, "was never written", "write the file again")
        return np.frombuffer(
            _bytes(path, f, offset + first * ELEMENT.itemsize, (stop - first) * ELEMENT.itemsize), ELEMENT
        )
    filters = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
    if plist.get_layout() != h5d.CHUNKED or d.ndim != 1 or filters not in ([], [DEFLATE]):
        raise bad(path, d.name, "stores strings in a way that is not read", "store ids with a fixed length")
    step, parts = d.chunks[0], []
    nbytes = step * ELEMENT.itemsize
    for start in range(first // step * step, stop, step):
        info = d.id.get_chunk_info_by_coord((start,))
        if info.byte_offset is None:
            raise bad(path, d.name, f"was never written from row {start} on", "write the file again")
        data = _bytes(path, f, info.byte_offset, info.size)
        if filters and not info.filter_mask:
            data = zlib.decompressobj().decompress(data, nbytes)
        if len(data) != nbytes:
            raise bad(path, d.name, f"is damaged from row {start} on", "write the file again")
        parts.append(np.frombuffer(data, ELEMENT)[max(0, first - start) : stop - start])
    return np.concatenate(parts) if parts else np.empty(0, ELEMENT)


def _bytes(path: PathLike, f: IO[bytes], offset: int, n: int) -> bytes:
    """`n` bytes of the file, all of which are there."""
    if offset + n > os.fstat(f.fileno()).st_size:
        raise bad(path, f"byte {offset}", f"{n} bytes should follow", "the file is damaged or cut short")
    f.seek(offset)
    return f.read(n)


class _Heaps:
    """The heaps of a file; the last one read is kept."""

    def __init__(self, path: PathLike, f: IO[bytes], base: int) -> None:
        self.path, self.f, self.base = path, f, base
        self._at, self._objects = -1, {}  # type: ignore[var-annotated]

    def get(self, length: int, heap: int, number: int) -> bytes:
        """One string, without the zeros at its end."""
        if heap != self._at:
            self._objects, self._at = self._read(heap + self.base), heap
        found = self._objects.get(number)
        if found is None or length > len(found) or length > 4 * MAX_ID:
            raise bad(self.path, f"byte {heap + self.base}", "a heap lacks a string", "the file is damaged")
        return found[:length].rstrip(b"\0")

    def _read(self, at: int) -> dict[int, bytes]:
        place = f"byte {at}"
        head = _bytes(self.path, self.f, at, 16)
        size = int.from_bytes(head[8:], "little")
        if head[:5] != b"GCOL\1" or not 16 <= size <= MAX_HEAP:
            raise bad(self.path, place, "no heap of strings is there", "the file is damaged")
        heap, pos = _bytes(self.path, self.f, at + 16, size - 16), 0
        objects = {}
        while pos + 16 <= len(heap):
            number, length = struct.unpack_from("<H6xQ", heap, pos)
            if not number:  # the free rest
                break
            objects[number] = heap[pos + 16 : pos + 16 + length]
            pos += 16 + (length + 7) // 8 * 8
        return objects
