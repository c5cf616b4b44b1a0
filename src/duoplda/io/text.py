"""Lists and tables: columns of texts, coded into their different values, and columns of numbers.

A list has lines of fields between blanks, as Kaldi writes them; a table has a header and commas or tabs, or is
Parquet. `_parsers` splits text into columns.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from duoplda.errors import DuopldaError
from duoplda.io._arrow import batches, codes_of, damaged, schema_of, texts_of, to_arrow, write_tables
from duoplda.io._parsers import ColumnBlock, Layout, line_blocks, split_lines, text_blocks
from duoplda.io.common import PARQUET_SUFFIXES, PathLike, bad, content, installed, listed, need, open_lines, shown
from duoplda.io.ids import MAX_ID, Coded, as_ids, odd_ids

ColumnNames = Mapping[str, Sequence[str]]  # meaning -> the names that a column with that meaning may have


def first_line(path: PathLike) -> str:
    """Return the first line that is not blank."""
    content(path)  # or an error that says why it is no text
    with open_lines(path) as f:
        start = f.read(1 << 16)
    lines = start.split(b"\n")
    line = next((raw for raw in lines if raw.strip()), b"")
    if not line:
        raise bad(path, "", "is empty")
    try:
        text = line.decode("utf-8", "ignore" if len(lines) == 1 and len(start) > 60000 else "strict")
    except UnicodeDecodeError as e:
        raise bad(path, "line 1", "is not UTF-8", "not a text list, or written in another encoding") from e
    if "\0" in text:
        raise bad(path, "line 1", "holds binary data", "not a text list")
    if "\r" in text.rstrip("\r"):
        raise bad(path, "line 1", "has a carriage return in it", "end lines with a line feed")
    return text.rstrip("\r")


def header_fields(path: PathLike) -> tuple[list[str], str]:
    """Return the column names, were the first line a header, and what stands between them: tabs, or else commas."""
    line = first_line(path)
    if "\t" in line:
        return line.split("\t"), "\t"
    try:
        return next(csv.reader([line])), ","
    except csv.Error as e:
        raise bad(path, "line 1", f"is no header ({e})", "write the column names between commas") from e


def column_names(path: PathLike) -> list[str]:
    """Return the names of a table's columns; of a list without a header, the fields of its first line."""
    return schema_of(path)[0] if content(path) == "parquet" else header_fields(path)[0]


def is_table(path: PathLike, wanted: ColumnNames, meanings: Sequence[str]) -> bool:
    """Is the file Parquet, or CSV by its name, or does it start with a header that names all of `meanings`?"""
    if Path(path).suffix.lower() == ".csv" or content(path) == "parquet":
        return True
    names = [n.strip().lower() for n in header_fields(path)[0]]
    return len(names) > 1 and all(any(n in wanted[m] for n in names) for m in meanings)


def longest_line(path: PathLike) -> int:
    """Count the fields of the longest line."""
    return max(len(line.split()) for _, block in line_blocks(path, header=False) for line in block.split(b"\n"))


def line_of(path: PathLike, row: int, *, header: bool = False) -> str:
    """Return the place of a row in a list or table, for messages."""
    if content(path) != "parquet":
        with open_lines(path) as f:
            filled = (number for number, line in enumerate(f, 1) if line.strip())
            number = next((n for i, n in enumerate(filled) if i == row + header), None)
        if number is not None:
            return f"line {number}"
    return f"row {row}"


# -- reading


def read_list(path: PathLike, *, numbers: Sequence[int] = (), fields: Sequence[int] = (2, 3)) -> list[Any]:
    """Read the columns of a list: each is `Coded`, or a float64 array if it is one of `numbers`.

    Parameters
    ----------
    path : the file
    numbers : which columns (counted from 0) hold numbers
    fields : how many fields a line may have; the first line decides, and all others follow it
    """
    width = len(first_line(path).encode().split())  # at ASCII blanks; other blanks belong to the ids
    if width not in fields:
        raise bad(path, "line 1", f"has {width} fields", f"lines have {' or '.join(map(str, fields))}")
    blocks = text_blocks(path, Layout(width, columns=tuple(range(width)), numbers=tuple(numbers)))
    return [_joined(path, column) for column in zip(*blocks, strict=True)]


def read_groups(path: PathLike) -> tuple[Coded, Coded]:
    """Read lines `owner member member ...` as two columns with a row per member."""
    first_line(path)  # or an error that says why it is no list
    lines = []
    for number, block in line_blocks(path, header=False):
        for i, fields in enumerate(split_lines(path, number, block.split(b"\n"), " ")):
            if len(fields) == 1:
                cause = f"{shown(fields[0].decode())} has no members"
                raise bad(path, f"line {number + i}", cause, "lines are `owner member ...`")
            lines += [fields] if fields else []
    owners = Coded.of(as_ids(path, np.array([line[0] for line in lines], object)))
    if twice := owners.repeated():
        raise bad(path, "", f"{shown(twice[0])} starts two lines", "put its members on one line")
    members = as_ids(path, np.array([member for line in lines for member in line[1:]], object))
    return Coded(owners.names, np.repeat(owners.codes, [len(line) - 1 for line in lines])), Coded.of(members)


def read_table(
    path: PathLike,
    wanted: ColumnNames,
    columns: Mapping[str, str] | None = None,
    *,
    optional: Sequence[str] = (),
    others: bool = False,
    numbers: Sequence[str] = (),
) -> dict[str, Any]:
    """Read columns of a CSV, TSV or Parquet table by what they mean.

    Parameters
    ----------
    path : the file
    wanted : meaning -> the names a column with that meaning may have (compared without case)
    columns : meaning -> the name that the caller says the column has
    optional : meanings that may be missing
    others : keep the remaining columns, too, under their own names
    numbers : meanings whose columns are float64
    """
    parquet = content(path) == "parquet"
    names, delimiter = (schema_of(path)[0], "") if parquet else header_fields(path)
    name_of = _names_by_meaning(path, names, wanted, columns or {}, optional)
    if others:
        name_of |= {n: n for n in names if n not in name_of.values() and n not in name_of}
    floats = [name_of[meaning] for meaning in numbers if meaning in name_of]
    if parquet:
        blocks = list(_parquet_blocks(path, list(name_of.values()), floats))
    else:
        places, marked = (tuple(names.index(n) for n in chosen) for chosen in (name_of.values(), floats))
        blocks = list(text_blocks(path, Layout(len(names), delimiter, places, marked, header=True)))
    if not blocks:
        raise bad(path, "", "has a header and no rows")
    return {
        meaning: _joined(path, column, header=True, blank=meaning not in wanted)
        for meaning, *column in zip(name_of, *blocks, strict=True)
    }


def _names_by_meaning(
    path: PathLike, names: Sequence[str], wanted: ColumnNames, columns: Mapping[str, str], optional: Sequence[str]
) -> dict[str, str]:
    """Find the name of the column for each meaning."""
    if set(columns) - set(wanted):
        raise DuopldaError(f"columns= knows {', '.join(wanted)}, not {', '.join(set(columns) - set(wanted))}")
    if len(set(names)) != len(names):
        raise bad(path, "line 1", "two columns have the same name", "rename one")
    name_of: dict[str, str] = {}
    for meaning, known in wanted.items():
        name = columns.get(meaning) or next((n for n in names if n.strip().lower() in known), None)
        if name is None and meaning not in optional:
            remedy = f"name it with columns={{{meaning!r}: ...}}; it has {listed(names)}"
            raise bad(path, "header", f"has no {meaning} column ({' or '.join(known[:4])})", remedy)
        if name is not None and name not in names:
            raise bad(path, "header", f"has no column {name!r}", f"it has {listed(names)}")
        if name is not None:
            name_of[meaning] = name
    return name_of


def _joined(
    path: PathLike, blocks: Sequence[ColumnBlock], *, header: bool = False, blank: bool = False
) -> Coded | np.ndarray:
    """Join the blocks of a column: numbers to one array, texts to one `Coded`, after checking that they can be ids."""
    if isinstance(blocks[0], np.ndarray):
        return np.concatenate(blocks)
    pieces = [piece for block in blocks for piece in block]
    names: Any  # the different texts of all pieces: a list, or Arrow's
    if installed("pyarrow"):
        pa = need("pyarrow")
        arrays = [pa.array(texts, pa.large_string()) for texts, _ in pieces]
        merged = pa.concat_arrays(arrays).dictionary_encode()
        places = np.split(np.asarray(merged.indices), np.cumsum([len(array) for array in arrays])[:-1])
        names = merged.dictionary
        lengths = np.asarray(need("pyarrow.compute").utf8_length(names))
    else:
        seen: dict[str, int] = {}
        places = [np.array([seen.setdefault(name, len(seen)) for name in texts], np.int32) for texts, _ in pieces]
        names = list(seen)
        lengths = np.fromiter(map(len, seen), np.int64, len(seen))
    codes = np.concatenate([place[codes] for place, (_, codes) in zip(places, pieces, strict=True)])
    wrong = lengths > MAX_ID
    cause = "is too long"
    if not wrong.any():
        texts = np.array(names, dtype=str) if isinstance(names, list) else texts_of(names)
        wrong = odd_ids(texts) & ~(blank & (texts == ""))
        cause = "is empty or has control characters in it"
    if wrong.any():
        place = line_of(path, int((codes == wrong.argmax()).argmax()), header=header)
        raise bad(path, place, f"an id {cause}", f"ids are printable, of at most {MAX_ID} characters")
    return Coded(texts, codes)


def _parquet_blocks(path: PathLike, columns: list[str], floats: Sequence[str]) -> Iterator[list[ColumnBlock]]:
    """Yield the columns of each batch of rows."""
    for first, batch in batches(path, columns, 1 << 18):
        block: list[ColumnBlock] = []
        for name in columns:
            column = batch.column(name)
            if name not in floats:
                block.append([codes_of(path, column, first)])
                continue
            if column.null_count:
                raise bad(path, f"row {first} or after", "a value is missing", "fill the column")
            with damaged(path):
                block.append(np.asarray(column.cast("float64")))
        yield block


# -- writing


def write_columns(
    out: Path, suffix: str, blocks: Iterable[Sequence[Coded | np.ndarray]], names: Sequence[str] = ()
) -> None:
    """Write columns (`Coded`, or floats), block after block: a table where the suffix names one, or else a list.

    Floats in text have as few digits as it takes to read the same number again.
    """
    if suffix in PARQUET_SUFFIXES:
        table = need("pyarrow").table
        write_tables(out, (table([to_arrow(column) for column in columns], list(names)) for columns in blocks))
        return
    delimiter = {".csv": ",", ".tsv": "\t"}.get(suffix, " ")
    with open(out, "wb") as f:
        if delimiter != " ":
            f.write((delimiter.join(names) + "\n").encode())
        for columns in blocks:
            for i in range(0, len(columns[0]), 1 << 18):
                f.write(_lines([column[i : i + (1 << 18)] for column in columns], delimiter))


def _lines(columns: Sequence[Coded | np.ndarray], delimiter: str) -> bytes:
    """Write rows out as bytes (or a buffer of pyarrow's), with fields in quotes where commas ask for it."""
    names = [name for c in columns if isinstance(c, Coded) and delimiter == "," for name in c.names.tolist()]
    if installed("pyarrow") and not any("," in name or '"' in name for name in names):
        pc = need("pyarrow.compute")
        texts = [to_arrow(column).cast("string") for column in columns]
        return pc.binary_join_element_wise(pc.binary_join_element_wise(*texts, delimiter), "\n", "").buffers()[2]
    quoting: Any = {"quotechar": '"'} if delimiter == "," else {"quoting": csv.QUOTE_NONE, "quotechar": None}
    fields = [c.values.tolist() if isinstance(c, Coded) else map(repr, np.asarray(c, float).tolist()) for c in columns]
    text = StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator="\n", **quoting).writerows(zip(*fields, strict=True))
    return text.getvalue().encode()
