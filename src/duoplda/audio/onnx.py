"""Reads the metadata of an ONNX file, and the names of its inputs and outputs.

sherpa-onnx ends the whole process if these are not as it expects, so they are checked first. ONNX is in the format of
Protocol Buffers: messages of fields, each with a number, a type and a value. Fields that are not needed, such as the
weights of the network, are skipped without being read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO

from duoplda.errors import DuopldaError
from duoplda.io.common import PathLike, bad, first_bytes, open_binary

GRAPH = 7  # the number of this field in the outermost message
METADATA_FIELD = 14  # the same
INPUT = 11  # the number of this field in the message of the graph
OUTPUT = 12  # the same
LONGEST_FIELD = 1 << 20  # bytes of an entry of the metadata, or of the description of an input


def read_metadata(path: PathLike) -> dict[str, str]:
    """Read the metadata of an ONNX file. No library for ONNX is needed.

    Example
    -------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     entry = b"\\x0a\\x04rate\\x12\\x0516000"
    ...     _ = Path(folder, "x.onnx").write_bytes(b"\\x72" + bytes([len(entry)]) + entry)
    ...     read_metadata(folder + "/x.onnx")
    {'rate': '16000'}
    """
    metadata = {}
    with _opened(path) as file:
        for number, end in _messages(path, file, file.seek(0, 2), 0):
            if number == METADATA_FIELD and end - file.tell() < LONGEST_FIELD:
                texts = _texts(path, file, end)
                metadata[texts.get(1, "")] = texts.get(2, "")
    return metadata


def read_ends(path: PathLike) -> tuple[list[str], list[str]]:
    """Read the names of the inputs and of the outputs of an ONNX file."""
    names: dict[int, list[str]] = {INPUT: [], OUTPUT: []}
    with _opened(path) as file:
        for number, end in _messages(path, file, file.seek(0, 2), 0):
            if number != GRAPH:
                continue
            for part, stop in _messages(path, file, end, file.tell()):
                if part in names and stop - file.tell() < LONGEST_FIELD:
                    names[part].append(_texts(path, file, stop).get(1, ""))
    return names[INPUT], names[OUTPUT]


def metadata_fields(metadata: Mapping[str, str]) -> bytes:
    """Return metadata as bytes to append to an ONNX file: fields of a message may be in any order.

    >>> metadata_fields({"rate": "16000"})
    b'r\\r\\n\\x04rate\\x12\\x0516000'
    """
    entries = [_bytes(1, name.encode()) + _bytes(2, text.encode()) for name, text in metadata.items()]
    return b"".join(_bytes(METADATA_FIELD, entry) for entry in entries)


def _bytes(number: int, value: bytes) -> bytes:
    """A field that holds bytes: its number with the type 2, its length, and the bytes."""
    head = bytearray()
    for n in (number << 3 | 2, len(value)):
        while n > 127:
            head.append(n & 127 | 128)
            n >>= 7
        head.append(n)
    return bytes(head) + value


def _opened(path: PathLike) -> IO[bytes]:
    """Open a file that is not empty, compressed or a pickle."""
    first_bytes(path)
    return open_binary(path)


def _messages(path: PathLike, file: IO[bytes], end: int, start: int) -> Iterator[tuple[int, int]]:
    """Yield the number and the end of each field of a message that holds bytes, with the file at its value."""
    position = start
    while position < end:
        file.seek(position)
        number, kind, length = _field(path, file)
        position = file.tell() + length
        if position > end or number == 0:
            raise _damaged(path)
        if kind == 2:
            yield number, position


def _texts(path: PathLike, file: IO[bytes], end: int) -> dict[int, str]:
    """The fields of a message as texts, by their numbers."""
    texts = {}
    for number, stop in _messages(path, file, end, file.tell()):
        texts[number] = file.read(stop - file.tell()).decode("utf-8", "replace")
    return texts


def _field(path: PathLike, file: IO[bytes]) -> tuple[int, int, int]:
    """Read the head of a field: its number, its type, and how many bytes of its value follow."""
    head = _varint(path, file)
    kind = head & 7
    if kind == 0:
        _varint(path, file)
        return head >> 3, kind, 0
    if kind not in (1, 2, 5):
        raise _damaged(path)
    return head >> 3, kind, _varint(path, file) if kind == 2 else {1: 8, 5: 4}[kind]


def _varint(path: PathLike, file: IO[bytes]) -> int:
    """Read an integer with seven bits in each byte, the lowest first."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise _damaged(path)
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value
    raise _damaged(path)


def _damaged(path: PathLike) -> DuopldaError:
    """The error for a file that is not in the ONNX format."""
    return bad(path, "", "is not an ONNX file, or is cut short", "download it again")
