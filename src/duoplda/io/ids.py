"""Ids of recordings, speakers and models: what they may be, which of them occur twice, and columns of coded ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from duoplda.errors import UNPRINTABLE
from duoplda.io.common import PathLike, bad, shown

if TYPE_CHECKING:
    import pyarrow as pa

IdList = PathLike | Sequence[str] | np.ndarray | None  # ids= of readers: a text file, "rows", or the ids themselves

MAX_ID = 512  # characters; a longer id is taken for damage
# Names that a column of ids may have. If a table has several, such as an utterance and its recording, the first counts.
ID_NAMES: tuple[str, ...] = ("id", "ids", "utt_id", "utt_ids", "utt", "utts", "uttid", "utterance", "utterances")
ID_NAMES += ("utterance_id", "segmentid", "segment_id", "segment", "recording", "recording_id", "rec_id", "key", "keys")
ID_NAMES += ("name", "names", "filename", "file_name", "file_id", "fileid", "file", "path", "wav")
# The same for arrays. They are fewer, as an array beside a matrix may be a label, such as the original of each copy.
ARRAY_ID_NAMES = ("ids", "id", "utt_ids", "utt_id", "utts", "utt", "utterances", "keys", "names", "segmentid")


@dataclass(frozen=True, eq=False)
class Coded:
    """A column of n strings with few different values. It stands for `names[codes]` and takes 4 bytes for each row.

    Example
    -------
    >>> Coded.of(["b", "a", "b"]).codes
    array([0, 1, 0], dtype=int32)
    """

    names: np.ndarray  # (k,) of str, each value once, in order of first appearance where it was read from a list
    codes: np.ndarray  # (n,) int32, rows of `names`

    @classmethod
    def of(cls, values: Iterable[str] | np.ndarray) -> Coded:
        """Code an array or list of strings."""
        seen: dict[str, int] = {}
        items = values.tolist() if isinstance(values, np.ndarray) else list(values)
        codes = np.fromiter((seen.setdefault(v, len(seen)) for v in items), np.int32, len(items))
        return cls(np.array(list(seen), dtype=str), codes)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice | np.ndarray) -> Coded:
        """Return some of the rows, with the same names."""
        return Coded(self.names, self.codes[rows])

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.names[self.codes], dtype)

    @property
    def values(self) -> np.ndarray:
        """The strings themselves, (n,)."""
        return self.names[self.codes]

    def repeated(self) -> tuple[str, int] | None:
        """Return a value that occurs twice and the row of its second occurrence; None where all values differ."""
        if len(self.names) == len(self.codes):
            return None
        code = int(np.flatnonzero(np.bincount(self.codes) > 1)[0])
        return str(self.names[code]), int(np.flatnonzero(self.codes == code)[1])


# -- strings of Arrow


def texts_of(strings: pa.StringArray) -> np.ndarray:
    """Return Arrow's strings as an array of NumPy; if all are ASCII, no Python object is made for each."""
    import pyarrow.compute as pc

    size = pc.binary_length(strings)
    width = pc.max(size).as_py() or 1
    if pc.sum(size).as_py() != pc.sum(pc.utf8_length(strings)).as_py():
        return np.array(strings.to_pylist(), dtype=str)
    padded = pc.ascii_rpad(strings, width, "\0")
    points = np.frombuffer(padded.buffers()[2], np.uint8, len(padded) * width, padded.offset * width)
    return points.astype(np.uint32).view(f"U{width}")


def to_arrow(column: Coded | np.ndarray) -> pa.Array:
    """Return a column of texts, or of floats, as an array of Arrow."""
    import pyarrow as pa

    if not isinstance(column, Coded):
        return pa.array(np.asarray(column, np.float64))
    return pa.array(column.names.tolist(), pa.string()).take(pa.array(column.codes))


# -- what an id may be


def check_id_type(path: PathLike, place: str, dtype: np.dtype) -> None:
    """Refuse an array that cannot hold ids: they are text, or integers."""
    if dtype.kind not in "USOiu" or dtype.itemsize > 4 * MAX_ID:
        raise bad(path, place, f"holds {dtype}, not ids", "store ids as strings, or name another array")


def as_ids(path: PathLike, values: ArrayLike | Sequence[str], first: int = 0) -> np.ndarray:
    """Turn ids of a file into an array of str: bytes are UTF-8, integers are written out, anything else is refused.

    `first` is the row of the file that the first of them stands in, for messages.
    """
    array = np.asarray(values)
    if array.dtype.kind in "iu":
        return array.astype(str)
    if array.dtype.kind == "S" and array.size and not (array.view(np.uint8) >= 128).any():  # ASCII, all at once
        array = array.astype(str)
    elif array.dtype.kind in "SO":
        texts = []
        for row, value in enumerate(array.tolist(), first):
            try:
                text = value.decode("utf-8") if isinstance(value, bytes) else value
            except UnicodeDecodeError as e:
                raise bad(path, f"row {row}", f"id {shown(value)} is not UTF-8", "write ids in UTF-8") from e
            if not isinstance(text, str) or len(text) > MAX_ID:
                raise bad(path, f"row {row}", f"{shown(text)} is not an id", f"ids are text of at most {MAX_ID} bytes")
            texts.append(text)
        array = np.array(texts, dtype=str)
    if array.dtype.kind != "U":
        raise bad(path, "", f"ids are {array.dtype}, not text", "save them as strings")
    return check_ids(path, np.ascontiguousarray(array), first)


def odd_ids(ids: np.ndarray) -> np.ndarray:
    """Say which ids (a contiguous array of str) are empty or have characters in them that do not print, (n,) bool.

    This looks at the code points of all ids at once. Only ids beyond ASCII are searched one by one.
    """
    width = ids.dtype.itemsize // 4
    if not ids.size or not width:
        return np.ones(ids.size, bool)
    points = ids.view(np.uint32).reshape(ids.size, width)
    padding = points == 0
    odd = padding[:, 0] | ((points < 32) & ~padding).any(1) | (padding[:, :-1] & ~padding[:, 1:]).any(1)
    if points.max() > 126:
        odd |= (points > 0x10FFFF).any(1)  # not a code point of Unicode: Python cannot make a str of it
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
