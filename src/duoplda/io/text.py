"""Lists and tables, read and written as columns: texts as codes of their different values, and numbers.

A list has lines of fields that are separated by blanks, as in Kaldi, or by tabs. A table has a header, and fields that
are separated by commas, semicolons, tabs or blanks, or it is Parquet. What the columns mean is known to the modules of
labels, trials and scores.

If pyarrow is installed, it parses the blocks of text without quotes and other oddities, 10 to 25 times as fast as
Python does (2 million lines in 0.4 s). Python parses all other blocks, and names the line of whatever is wrong.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from duoplda.arrays import in_order
from duoplda.errors import DuopldaError, OptionsError
from duoplda.io._source import FilePart
from duoplda.io.common import (
    PARQUET_SUFFIXES,
    PathLike,
    bad,
    content,
    installed,
    listed,
    need,
    open_lines,
    plain_name,
    shown,
)
from duoplda.io.ids import MAX_ID, Coded, as_ids, odd_ids, texts_of, to_arrow
from duoplda.io.parquet import batches, codes_of, damaged, schema_of, write_tables

ColumnNames = Mapping[str, Sequence[str]]  # meaning -> the names that a column with that meaning may have
# Everything that a column of some table may mean. One command may read several tables, and names the columns of all.
MEANINGS: tuple[str, ...] = ("id", "speaker", "session", "channel", "occasion", "cluster", "vector")
MEANINGS += ("enroll", "test", "target", "score", "model", "recording")
# A column of a block: numbers; or one or more pieces, each of different texts (a list, or Arrow's) and their codes.
ColumnBlock = list[tuple[Any, np.ndarray]] | np.ndarray


# -- the beginning of a file


def first_line(path: PathLike) -> str:
    """Return the first line that is not blank."""
    content(path)  # raises an error if the file is empty, compressed or a pickle
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
    """Return the fields of the first line, taken for a header, and the delimiter between them ("" for Parquet).

    The delimiter is a tab if there is one; or a semicolon, if there are more of them than commas; or a comma if there
    is one; or else a blank.
    """
    if content(path) == "parquet":
        return schema_of(path)[0], ""
    line = first_line(path)
    if "\t" in line:
        return line.split("\t"), "\t"
    if "," not in line and ";" not in line and not plain_name(path).endswith(".csv"):
        return line.split(), " "
    delimiter = ";" if line.count(";") > line.count(",") else ","
    try:
        return next(csv.reader([line], delimiter=delimiter)), delimiter
    except csv.Error as e:
        raise bad(path, "line 1", f"is no header ({e})", "write the column names between commas") from e


def is_table(
    path: PathLike, wanted: ColumnNames, meanings: Sequence[str], columns: Mapping[str, str] | None = None
) -> bool:
    """Say whether a file is a table, and not a list.

    It is a table if it is Parquet, or CSV by its name, or starts with a header that has columns for all of `meanings`;
    and if the caller names columns that it has, or gives the numbers of the columns for all of `meanings`.
    """
    named = _of_table(wanted, columns)
    fields, delimiter = header_fields(path)
    if not delimiter or plain_name(path).endswith(".csv"):
        return True
    if all(named.get(meaning, "").isdecimal() for meaning in meanings):
        return True
    if any(name in fields for name in named.values()) or (named and delimiter != " "):
        return True
    names = [_plain_column(n) for n in fields]
    if len(names) > 1 and all(any(n in wanted[m] for n in names) for m in meanings):
        return True
    blanks = first_line(path).split()
    if delimiter in (",", ";") and (len(blanks) == 1 or blanks[0].endswith(delimiter)):
        marks = "commas" if delimiter == "," else "semicolons"
        cause = f"({listed(fields)}) has {marks} between its fields, and is not the header of a table"
        numbered = ",".join(f"{meaning}={i}" for i, meaning in enumerate(meanings, 1))
        remedy = f"write one, such as {delimiter.join(meanings)}; or number the columns: `columns` {numbered}"
        raise bad(path, "line 1", cause, remedy)
    return False


def _plain_column(name: str) -> str:
    """Return the name of a column in the form in which names are compared: `Session ID` becomes session_id."""
    return "_".join(name.strip().lower().replace("-", " ").split())


def _of_table(wanted: ColumnNames, columns: Mapping[str, str] | None) -> dict[str, str]:
    """Return the columns that the caller names, without those that belong to other kinds of tables."""
    if unknown := set(columns or {}) - set(MEANINGS):
        raise OptionsError(f"`columns` knows {', '.join(MEANINGS)}, not {', '.join(sorted(unknown))}")
    return {meaning: name for meaning, name in (columns or {}).items() if meaning in wanted}


@dataclass(frozen=True)
class Header:
    """The columns of a table: their names, the delimiter between them, and which of them has which meaning."""

    path: PathLike
    names: list[str]
    delimiter: str  # "" for Parquet
    written: bool  # whether the first line is a header; if not, columns are called by their numbers, from 1 on
    name_of: dict[str, str]  # meaning -> name
    unused: list[str]  # columns that have none of the meanings, and no vectors
    usual: ColumnNames  # for each meaning without a column, the names that such a column may have

    def read_as(self) -> str:
        """Return a sentence on how the table is read, or "" if its columns have the names of their meanings."""
        column = "" if self.written else "column "
        parts = [f"{m} is {column}{shown(name)[1:-1]}" for m, name in self.name_of.items() if name.lower() != m]
        parts = ["it has no header"] * (not self.written) + parts
        if self.delimiter in (";", " "):
            parts.insert(0, f"fields are between {'semicolons' if self.delimiter == ';' else 'blanks'}")
        if self.unused:
            names = [f"the {meaning} would be called {', '.join(usual[:4])}" for meaning, usual in self.usual.items()]
            parts.append(f"not used: {listed(self.unused)}" + f" ({'; '.join(names)})" * bool(names))
        return f"{os.fspath(self.path)}: {'; '.join(parts)}" if parts else ""


def read_header(
    path: PathLike, wanted: ColumnNames, columns: Mapping[str, str] | None = None, optional: Sequence[str] = ()
) -> Header:
    """Find the column for each meaning.

    The columns of ids and of both sides of trials may have other names in each table that a command reads. If `columns`
    gives a name for one of these that this table lacks, the usual names are looked for.

    Parameters
    ----------
    path : a CSV, TSV or Parquet table; where all meanings are optional, it may be a list as well
    wanted : meaning -> the names a column with that meaning may have (compared without case), the likeliest first
    columns : meaning -> the name that the caller says the column has, or its number, from 1 on, where there is no
        header; meanings that are not `wanted` are of other tables
    optional : meanings that may be missing
    """
    columns = _of_table(wanted, columns)
    names, delimiter = header_fields(path)
    # Columns of vectors, which only Parquet has.
    lists = [] if delimiter else [name for name, kind in zip(*schema_of(path), strict=True) if kind.num_fields]
    required = [meaning for meaning in wanted if meaning not in optional]
    numbered = columns and all(columns.get(meaning, "").isdecimal() for meaning in required or columns)
    written = not delimiter or not numbered or all(name in names for name in columns.values())
    if not written:
        names = [str(i + 1) for i in range(len(names))]
    if required and len(set(names)) != len(names):
        raise bad(path, "line 1", "two columns have the same name", "rename one")
    place = {_plain_column(name): name for name in reversed(names)}
    name_of = {m: name if name in names else place.get(_plain_column(name), "") for m, name in columns.items()}
    for meaning, known in wanted.items():
        if not name_of.get(meaning) and (meaning not in columns or meaning in ("id", "enroll", "test")):
            usual = (place[name] for name in known if name in place and place[name] not in name_of.values())
            name_of[meaning] = next(usual, "") if written else ""
    lack = [meaning for meaning in wanted if not name_of[meaning] and (meaning in required or meaning in columns)]
    if lack:
        raise _no_column(path, lack[0], names, delimiter, wanted, columns)
    name_of = {meaning: name_of[meaning] for meaning in wanted if name_of[meaning]}
    # A column without a name is the index that pandas writes, or follows a comma at the end of all lines.
    unused = [name for name in names if name.strip() and name not in (*name_of.values(), *lists)]
    usual_of = {meaning: known for meaning, known in wanted.items() if meaning not in name_of}
    return Header(path, names, delimiter, written, name_of, unused, usual_of)


def _no_column(
    path: PathLike,
    meaning: str,
    names: Sequence[str],
    delimiter: str,
    wanted: ColumnNames,
    columns: Mapping[str, str],
) -> DuopldaError:
    """Return the error for a table that lacks a column, or that has no header at all."""
    if meaning in columns:
        return bad(path, "header", f"has no column {shown(columns[meaning])}", f"it has {listed(names)}")
    if delimiter and not columns:
        _, block = next(line_blocks(path, header=True), (0, b""))
        rows = split_lines(path, 2, block.split(b"\n"), delimiter)
        again = [n for i, n in enumerate(names) if any(row[i : i + 1] == [n.encode()] for row in rows)]
        if again:
            numbered = ",".join(f"{m}={i}" for i, m in zip(range(1, len(names) + 1), wanted, strict=False))
            cause = f"({listed(names)}) is no header, as {shown(again[0])} stands in further lines"
            remedy = f"write one, such as {','.join(wanted)}; or number the columns: `columns` {numbered}"
            return bad(path, "line 1", cause, remedy)
    remedy = f"name it: `columns` {meaning}=NAME; it has {listed(names)}"
    return bad(path, "header", f"has no {meaning} column ({' or '.join(wanted[meaning][:4])})", remedy)


def list_layout(path: PathLike) -> tuple[int, str]:
    """Return the number of fields in the first line of a list, and the delimiter between them.

    The delimiter is a tab if that divides the line into fields, which may then have blanks in them; or else a blank.
    """
    line = first_line(path)
    fields = line.split("\t")
    if len(fields) > 1 and all(field and field == field.strip() for field in fields):
        return len(fields), "\t"
    return len(line.encode().split()), " "  # as bytes, like the other lines: a str is also split at other spaces


def has_groups(path: PathLike) -> bool:
    """Say whether any line of a list has more than two fields."""
    delimiter = b"\t" if list_layout(path)[1] == "\t" else None
    blocks = line_blocks(path, header=False)
    return any(len(line.split(delimiter)) > 2 for _, block in blocks for line in block.split(b"\n"))


def line_of(path: PathLike, row: int, *, header: bool = False) -> str:
    """Return the place of a row in messages: the number of its line, if the file has lines."""
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
    width, delimiter = list_layout(path)
    if width not in fields:
        raise bad(path, "line 1", f"has {width} fields", f"lines have {' or '.join(map(str, fields))}")
    layout = Layout(width, delimiter, tuple(range(width)), tuple(numbers))
    blocks = in_order(partial(_parsed, path, layout), line_blocks(path, header=False), np.inf)
    return [_joined(path, column) for column in zip(*blocks, strict=True)]


def read_groups(path: PathLike) -> tuple[Coded, Coded]:
    """Read lines `owner member member ...` as two columns with a row per member."""
    _, delimiter = list_layout(path)
    lines = []
    for number, block in line_blocks(path, header=False):
        for i, fields in enumerate(split_lines(path, number, block.split(b"\n"), delimiter)):
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
    header: Header, *, others: bool = False, numbers: Sequence[str] = (), part: FilePart | None = None
) -> dict[str, Any]:
    """Read columns of a CSV, TSV or Parquet table by what they mean: each is `Coded`, or a float64 array.

    Parameters
    ----------
    header : the columns; `read_header` finds them
    others : keep the columns that have none of the meanings, too, under their own names
    numbers : meanings whose columns are float64
    part : some row groups of a Parquet file
    """
    path = header.path
    name_of = header.name_of
    if others:
        name_of = name_of | {n: n for n in header.unused if n not in name_of}
    floats = [name_of[meaning] for meaning in numbers if meaning in name_of]
    if not header.delimiter:
        blocks = list(_parquet_blocks(path, list(name_of.values()), floats, part))
    else:
        places, marked = (tuple(header.names.index(n) for n in chosen) for chosen in (name_of.values(), floats))
        layout = Layout(len(header.names), header.delimiter, places, marked, header=header.written)
        # Several threads parse blocks of lines, which stay in order.
        blocks = list(in_order(partial(_parsed, path, layout), line_blocks(path, header.written), np.inf))
    if not blocks:
        raise bad(path, "", "has a header and no rows")
    return {
        meaning: _joined(path, column, header=header.written, blank=meaning not in header.name_of, part=part)
        for meaning, *column in zip(name_of, *blocks, strict=True)
    }


def _joined(
    path: PathLike,
    blocks: Sequence[ColumnBlock],
    *,
    header: bool = False,
    blank: bool = False,
    part: FilePart | None = None,
) -> Coded | np.ndarray:
    """Join the blocks of a column: numbers into one array, texts into one `Coded` if they can be ids.

    With `blank`, empty texts are allowed. `header` and `part` are for the places in messages.
    """
    if isinstance(blocks[0], np.ndarray):
        return np.concatenate(blocks)
    pieces = [piece for block in blocks for piece in block]
    names: Any  # the different texts of all pieces: a list, or Arrow's
    if installed("pyarrow"):
        import pyarrow as pa
        import pyarrow.compute as pc

        arrays = [pa.array(texts, pa.large_string()) for texts, _ in pieces]
        merged = pa.concat_arrays(arrays).dictionary_encode()
        places = np.split(np.asarray(merged.indices), np.cumsum([len(array) for array in arrays])[:-1])
        names = merged.dictionary
        lengths = np.asarray(pc.utf8_length(names))
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
        row = int((codes == wrong.argmax()).argmax())
        place = line_of(path, row, header=header) if part is None else f"row {part.offset + row}"
        raise bad(path, place, f"an id {cause}", f"ids are printable, of at most {MAX_ID} characters")
    return Coded(texts, codes)


def _parquet_blocks(
    path: PathLike, columns: list[str], floats: Sequence[str], part: FilePart | None
) -> Iterator[list[ColumnBlock]]:
    """Yield the columns of each batch of rows."""
    for first, batch in batches(path, columns, 1 << 18, part):
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


# -- lines of text as columns


@dataclass(frozen=True)
class Layout:
    """How the lines of a file are parsed: the number of fields, their delimiter, and the columns that are wanted."""

    width: int
    delimiter: str = " "  # a space stands for any run of blanks
    columns: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    header: bool = False


def line_blocks(path: PathLike, header: bool) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines with the number of their first line; a header and blocks of blanks are skipped."""
    size = 1 << 23  # bytes that are parsed at once; a longer line is taken for damage
    with open_lines(path) as f:
        number = 1
        while header and (line := f.readline(size)):
            number += 1
            header = line.isspace()
        while block := f.read(size) + f.readline(size):
            last = block.rfind(b"\n", 0, len(block) - 1) + 1  # where the last line starts
            if len(block) - last >= size:
                number += block.count(b"\n", 0, last)
                raise bad(path, f"line {number}", f"is longer than {size >> 20} MB", "not a text list")
            if not block.isspace():
                yield number, block
            number += block.count(b"\n")


def _by_pyarrow(block: bytes, layout: Layout) -> list[ColumnBlock] | None:
    """Parse a block of lines by pyarrow; None if it is not installed, or if Python might read the block otherwise."""
    quoted = (b'"',)
    odd = {
        " ": (b"\t", b"\v", b"\f"),
        ",": quoted,
        ";": quoted,
        "\t": () if layout.header else (b" \t", b"\t ", b" \n"),
    }
    strange = any(c in block for c in odd[layout.delimiter])
    strange = strange or (b"\r" in block and block.count(b"\r") != block.count(b"\r\n"))
    if strange or not installed("pyarrow"):
        return None
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as arrow_csv

    code = pa.dictionary(pa.int32(), pa.string())
    wanted = [str(i) for i in layout.columns]
    types = {str(i): pa.float64() if i in layout.numbers else code for i in range(layout.width)}
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(block),
            # Arrow uses no threads of its own: one that frees our bytes while Python shuts down aborts the process.
            arrow_csv.ReadOptions(column_names=list(types), block_size=len(block), use_threads=False),
            arrow_csv.ParseOptions(delimiter=layout.delimiter, quote_char=False, double_quote=False),
            arrow_csv.ConvertOptions(
                column_types=types, include_columns=wanted, null_values=[], strings_can_be_null=False
            ),
        )
    except pa.ArrowException:
        return None
    columns: list[ColumnBlock] = []
    empty: list[bool] = []  # whether a column of texts has an empty one
    for i, column in zip(layout.columns, table.columns, strict=True):
        if i in layout.numbers:
            columns.append(np.asarray(column))
            continue
        part = [(chunk.dictionary, np.asarray(chunk.indices)) for chunk in column.chunks]
        empty.append(any(pc.index(names, "").as_py() >= 0 for names, _ in part))
        columns.append(part)
    if layout.delimiter == " " and any(empty):  # there are two blanks in a row, which count as one
        return None
    if layout.delimiter == "\t" and empty and all(empty):  # there may be a line of tabs alone, which counts as blank
        return None
    return columns


def _parsed(path: PathLike, layout: Layout, numbered: tuple[int, bytes]) -> list[ColumnBlock]:
    """Parse a block of lines, given with the number of its first line in the file; what is wrong is an error."""
    number, block = numbered
    by_pyarrow = _by_pyarrow(block, layout)
    if by_pyarrow is not None:
        return by_pyarrow
    rows = split_lines(path, number, block.split(b"\n"), layout.delimiter)
    if layout.delimiter == "\t" and not layout.header:  # some lines of a list may have blanks instead of tabs, or both
        rows = [[field.strip() for field in row] if len(row) > 1 else b"".join(row).split() for row in rows]
    if set(map(len, rows)) - {0, layout.width}:
        i = next(i for i, row in enumerate(rows) if len(row) not in (0, layout.width))
        cause = f"has {len(rows[i])} fields, the {'header' if layout.header else 'first line'} {layout.width}"
        raise bad(path, f"line {number + i}", cause, "all lines must have the same number of fields")
    columns: list[ColumnBlock] = []
    for k in layout.columns:
        if k in layout.numbers:
            columns.append(np.array([_number(path, number + i, row[k]) for i, row in enumerate(rows) if row]))
        else:
            seen: dict[bytes, int] = {}
            codes = [seen.setdefault(row[k], len(seen)) for row in rows if row]
            columns.append([([name.decode() for name in seen], np.array(codes, np.int32))])
    return columns


def split_lines(path: PathLike, number: int, lines: list[bytes], delimiter: str) -> list[list[bytes]]:
    """Split lines, the first of which is line `number` of the file, into fields; a blank line has none."""
    rows: list[list[bytes]] = []
    for i, line in enumerate(lines):
        line = line.removesuffix(b"\r")
        try:
            text = line.decode()
            if b"\r" in line:
                raise csv.Error("a carriage return is in it")
            if not line.strip():
                rows.append([])
            elif delimiter in ",;":
                rows.append([field.encode() for field in next(csv.reader([text], delimiter=delimiter, strict=True))])
            else:
                rows.append(line.split() if delimiter == " " else line.split(b"\t"))
        except UnicodeDecodeError as e:
            cause = f"is not UTF-8 ({shown(line[:40])})"
            raise bad(path, f"line {number + i}", cause, "write the file in UTF-8") from e
        except csv.Error as e:
            remedy = "put fields in quotes, and end lines with a line feed"
            raise bad(path, f"line {number + i}", f"cannot be split into fields ({e})", remedy) from e
    return rows


def _number(path: PathLike, line: int, value: bytes) -> float:
    """Return a field as a number."""
    try:
        if b"_" not in value:  # Python reads 1_000 as a number
            return float(value)
    except ValueError:
        pass
    raise bad(path, f"line {line}", f"{shown(value.decode())} is not a number", "write it as 1.5 or -2e-3")


# -- writing


def write_columns(
    out: Path, suffix: str, blocks: Iterable[Sequence[Coded | np.ndarray]], names: Sequence[str] = ()
) -> None:
    """Write columns (`Coded`, or floats), block after block, as a table if the suffix names one, and else as a list.

    Floats are written as text with the fewest digits from which the same number can be read again.
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
    """Return rows as the bytes of lines (or a buffer of pyarrow's); between commas, fields are quoted where needed."""
    names = [name for c in columns if isinstance(c, Coded) and delimiter == "," for name in c.names.tolist()]
    if installed("pyarrow") and not any("," in name or '"' in name for name in names):
        import pyarrow.compute as pc

        texts = [to_arrow(column).cast("string") for column in columns]
        return pc.binary_join_element_wise(pc.binary_join_element_wise(*texts, delimiter), "\n", "").buffers()[2]
    quoting: Any = {"quotechar": '"'} if delimiter == "," else {"quoting": csv.QUOTE_NONE, "quotechar": None}
    fields = [c.values.tolist() if isinstance(c, Coded) else map(repr, np.asarray(c, float).tolist()) for c in columns]
    text = StringIO(newline="")
    csv.writer(text, delimiter=delimiter, lineterminator="\n", **quoting).writerows(zip(*fields, strict=True))
    return text.getvalue().encode()
