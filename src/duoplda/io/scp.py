"""Kaldi scp lists: lines `key file:offset` that point into archives.

A relative file name is looked for in the current folder, as Kaldi does, and then in the folder of the
list. Lines with a command (`cat a.ark |`), which is never run, and with a range of rows (`[0:3]`) are refused.
Entries that lie close together in one archive are read together.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from io import BufferedReader, BytesIO
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from duoplda.errors import DuopldaError
from duoplda.io._source import FilePart, Source
from duoplda.io.ark import ARK_BLOCK, LONGEST_ENTRY, Value, check_same, numbers, parse_value
from duoplda.io.common import PathLike, bad, open_binary, open_lines, refuse_audio, shown
from duoplda.io.ids import check_ids

MAX_SCP_LINE = 1 << 16  # bytes; a longer line is taken for damage


class Archives:
    """The archives that a list points to. Those used last stay open, since neighbouring lines often need the same."""

    def __init__(self, path: PathLike, here: str) -> None:
        self.path = path
        self.here = here
        self.folder = Path(path).parent
        self._open: OrderedDict[str, tuple[BufferedReader | BytesIO, int]] = OrderedDict()

    def close(self) -> None:
        for f, _ in self._open.values():
            f.close()

    def get(self, name: str, line: int) -> tuple[BufferedReader | BytesIO, int]:
        """Return the open file `name` and its size."""
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name]
        place = f"line {line}"
        candidates = (os.path.join(folder, name) for folder in (self.here, self.folder))
        archive = next(filter(os.path.exists, candidates), None)
        refuse_audio(self.path, place, name)
        if archive is None:
            raise bad(self.path, place, f"{name} is neither here nor in {self.folder}", "check the path")
        try:
            f = open_binary(archive)
        except DuopldaError as e:
            raise bad(self.path, place, str(e)) from e
        if len(self._open) == 32:  # few enough for any limit on open files
            self._open.popitem(last=False)[1][0].close()
        self._open[name] = f, os.fstat(f.fileno()).st_size
        return self._open[name]


Item = tuple[str, str, int, int]  # key, archive, offset, line number


def _items(path: PathLike, part: FilePart | None = None) -> Iterator[Item]:
    """Yield the lines of a list, or of a part of it."""
    names: dict[bytes, str] = {}
    with open_lines(path) as f:
        number, last = (0, None) if part is None else (part.first, part.stop)
        if part is not None:
            f.seek(part.offset)
        while number != last and (line := f.readline(MAX_SCP_LINE)):
            number += 1
            if not line.isspace():
                yield _item(path, line, number, names)


def _item(path: PathLike, line: bytes, number: int, names: dict[bytes, str]) -> Item:
    """Split and check one line. `names` keeps the decoded names of archives, as many lines have the same few."""
    fields = line.split(None, 1)
    where = fields[1].rstrip() if len(fields) == 2 else b""
    archive, _, offset = where.rpartition(b":")
    if not offset.isdigit() or len(offset) > 18:  # no offset: the file holds one value
        archive = b""
        offset = b"0"
    try:
        key = fields[0].decode()
        if archive in names:
            return key, names[archive], int(offset), number
        place = f"line {number}"
        if len(line) == MAX_SCP_LINE and not line.endswith(b"\n"):
            raise bad(path, place, f"is longer than {MAX_SCP_LINE} bytes", "not an scp list, or damaged")
        if not where or where.startswith(b":"):
            raise bad(path, place, "has no file name", "lines are `key file:offset`")
        if where.endswith(b"|") or where.startswith(b"|"):
            for word in where.decode().split():
                refuse_audio(path, place, word)
            raise bad(path, place, "holds a command, which is never run", "run it yourself, into an .ark")
        if where.endswith(b"]"):
            raise bad(path, place, "asks for a range of rows", "give one vector per line")
        name = (archive or where).decode()
        if archive:
            names[archive] = name
        return key, name, int(offset), number
    except UnicodeDecodeError as e:
        raise bad(path, f"line {number}", "is not UTF-8", "not an scp list, or in another encoding") from e


def open_scp(path: PathLike) -> Source:
    """Open an scp list as a source of chunks; its first vector gives dimension and precision."""
    first = next(_items(path), None)
    if first is None:
        raise bad(path, "", "is empty")
    with closing(Archives(path, "")) as archives:
        _, value = _one(path, archives, first)
    return scp_part(path, value.dim, value.dtype.newbyteorder("="))


def scp_part(path: PathLike, dim: int, dtype: np.dtype, part: FilePart | None = None, here: str = "") -> Source:
    """Open a list, or a part of it, of vectors of this dimension and type; files are looked for in `here` first."""
    n = None if part is None else part.n
    read = partial(_chunks, path, dim, dtype, part, here)
    cuts = partial(_cuts, path, dim * dtype.itemsize)
    return Source(path, "scp", dim, dtype, n, read, cuts=cuts, format="kaldi scp")


def _cuts(path: PathLike, row_bytes: int, size: int) -> list[FilePart]:
    """Cut a list into runs of lines that point to about `size` bytes of vectors."""
    run = max(1, size // row_bytes)
    parts = []
    with open_lines(path) as f:
        first = number = n = 0
        start = position = f.tell()
        while line := f.readline(MAX_SCP_LINE):
            number += 1
            n += not line.isspace()
            position += len(line)
            if n == run:
                parts.append(FilePart(first, number, n, start, f"lines {first + 1}-{number}"))
                first = number
                n = 0
                start = position
    if n:
        parts.append(FilePart(first, number, n, start, f"lines {first + 1}-{number}"))
    return parts


def _chunks(
    path: PathLike, dim: int, dtype: np.dtype, part: FilePart | None, here: str, limit: int, only: str
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Yield the keys of a list and, unless only ids are wanted, the vectors that it points to, in chunks."""
    items = _items(path, part)
    done = 0
    with closing(Archives(path, here)) as archives:
        while batch := list(islice(items, limit)):
            X = None if only == "ids" else np.empty((len(batch), dim), dtype)
            n = 0
            while X is not None and n < len(batch):
                n += _run(path, archives, batch, n, X)
            yield check_ids(path, np.array([item[0] for item in batch]), done), X
            done += len(batch)


def _one(path: PathLike, archives: Archives, item: Item) -> tuple[bytearray, Value]:
    """Read the value that one line points to into a buffer that starts with it."""
    key, name, offset, line = item
    f, size = archives.get(name, line)
    place = f"line {line} (entry {shown(key)}, {name}:{offset})"
    if offset >= size:
        raise bad(path, place, f"points past the end of the archive ({size} bytes)", "write archive and list again")
    for length in (8192, LONGEST_ENTRY):
        buf = bytearray(min(length, size - offset))
        f.seek(offset)
        end = f.readinto(buf)
        refuse_audio(path, place, name, bytes(buf[:8]))
        value = parse_value(path, buf, 0, end, place)
        if value is not None and value.end <= end:
            return buf, value
    raise bad(path, place, "the archive is cut short there", "copy or write it again")


def _run(path: PathLike, archives: Archives, batch: list[Item], n: int, X: np.ndarray) -> int:
    """Read the vectors of line `n` and of the lines after it that lie close behind; return how many were read."""
    buf, value = _one(path, archives, batch[n])
    _, name, start, line = batch[n]
    place = f"line {line} (entry {shown(batch[n][0])})"
    check_same(path, place, value, X.shape[1], X.dtype)
    X[n] = numbers(path, buf, value, place)
    offsets = [start]
    gap = 1 << 16  # bytes; entries that are further apart are read one by one, as what lies between is read too
    for _, other, offset, _line in islice(batch, n + 1, None):
        if other != name or not 0 < offset - offsets[-1] <= gap or offset - start > ARK_BLOCK:
            break
        offsets.append(offset)
    if len(offsets) == 1 or value.text:
        return 1
    head = bytes(buf[: value.data])  # the header, which is the same for all vectors of this dimension and type
    length = value.end
    f, _ = archives.get(name, line)
    f.seek(start)
    block = np.empty(offsets[-1] - start + length, np.uint8)
    end = f.readinto(block.data)
    starts = np.array(offsets) - start
    entries = sliding_window_view(block, length)[starts[starts + length <= end]]
    same = (entries[:, : len(head)] == np.frombuffer(head, np.uint8)).all(1)
    k = len(same) if same.all() else int(same.argmin())
    X[n : n + k].view(np.uint8)[:] = entries[:k, len(head) :]
    return max(1, k)
