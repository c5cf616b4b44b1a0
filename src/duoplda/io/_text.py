"""Lists and tables in text, read by columns with pyarrow: no Python loop over lines.

A list has lines of fields between white space, as Kaldi writes them; a table has a header and commas or
tabs. Every column becomes codes into its different values, so that five million lines stay small. Only
when something is wrong are lines looked at one by one, to say where.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from duoplda.errors import DuopldaError
from duoplda.io._coded import Coded
from duoplda.io._common import (
    MAX_ID,
    PathLike,
    bad,
    guarded,
    listed,
    magic,
    need,
    odd_ids,
    open_binary,
    shown,
    starts_as,
)

BLOCK = 1 << 24
BOM = b"\xef\xbb\xbf"


def is_parquet(path: PathLike) -> bool:
    """Is the file Parquet, by its first bytes?"""
    return starts_as(magic(path), "parquet")


def is_hdf5(path: PathLike) -> bool:
    """Is the file HDF5, by its first bytes?"""
    return starts_as(magic(path), "hdf5")


def first_line(path: PathLike) -> str:
    """The first line that is not blank."""
    start = magic(path, 1 << 16).removeprefix(BOM)
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


def words(line: str) -> list[str]:
    """The fields of a line between ASCII blanks; other blanks belong to the ids."""
    return [word.decode("utf-8") for word in line.encode("utf-8").split()]


def header_fields(path: PathLike) -> list[str]:
    """The column names, were the first line a header: split at tabs, or else at commas."""
    line = first_line(path)
    delimiter = delimiter_of(path)
    try:
        return next(csv.reader([line])) if delimiter == "," else line.split(delimiter)
    except csv.Error as e:
        raise bad(path, "line 1", f"is no header ({e})", "write the column names between commas") from e


def delimiter_of(path: PathLike) -> str:
    """Tab where the first line has one, or else comma."""
    return "\t" if "\t" in first_line(path) else ","


def _blocks(path: PathLike) -> Iterator[bytes]:
    """The file in blocks of whole lines."""
    with open_binary(path) as f:
        rest = f.read(len(BOM)).removeprefix(BOM)
        while data := f.read(BLOCK):
            cut = data.rfind(b"\n") + 1
            if not cut and len(data) == BLOCK:
                raise bad(path, "", "has a line longer than 16 MB", "not a text list")
            block, rest = (rest + data[:cut], data[cut:]) if cut else (b"", rest + data)
            if block and not block.isspace():
                yield block
        if rest and not rest.isspace():
            yield rest


def _single_spaced(block: bytes) -> bytes:
    """Runs of blanks become one space; blanks at the ends of lines go."""
    block = re.sub(rb"[ \t\v\f]+", b" ", block)
    return re.sub(rb" ?(\r?\n) ?", rb"\1", block).strip(b" ")


def read_list(path: PathLike, *, numbers: Sequence[int] = (), fields: Sequence[int] = (2, 3)) -> list[Any]:
    """The columns of a list: `Coded` each, float64 arrays for those in `numbers`.

    Parameters
    ----------
    path : the file
    numbers : which columns (counted from 0) hold numbers
    fields : how many fields a line may have; the first line decides, and all others follow it
    """
    pa = need("pyarrow")
    width = len(words(first_line(path)))
    if width not in fields:
        raise bad(path, "line 1", f"has {width} fields", f"lines have {' or '.join(map(str, fields))}")
    tables = []
    for block in _blocks(path):
        table = None
        if not any(blank in block for blank in (b"\t", b"\v", b"\f")):
            with suppress(pa.ArrowException):  # perhaps only blanks are doubled: see below
                table = _parsed(block, width, numbers)
        try:
            table = _parsed(_single_spaced(block), width, numbers) if table is None else table
        except pa.ArrowException as e:
            raise _explained(path, width, numbers, e) from e
        if table is None:
            raise bad(path, "", "has an empty field (a lone carriage return?)", "end lines with a line feed")
        tables.append(table)
    table = pa.concat_tables(tables)
    return [column_of(path, table.column(i)) for i in range(width)]


def _parsed(block: bytes, width: int, numbers: Sequence[int]) -> Any:
    """Lines with single spaces as an Arrow table, or None where a field is empty."""
    pa, pc, csv_ = need("pyarrow"), need("pyarrow.compute"), need("pyarrow.csv")
    code = pa.dictionary(pa.int32(), pa.string())
    types = {str(i): pa.float64() if i in numbers else code for i in range(width)}
    table = csv_.read_csv(
        pa.BufferReader(block),
        csv_.ReadOptions(column_names=list(types), block_size=1 << 22),
        csv_.ParseOptions(delimiter=" ", quote_char=False, double_quote=False),
        csv_.ConvertOptions(column_types=types, null_values=[], strings_can_be_null=False),
    )
    for column in table.columns:
        for chunk in column.chunks if column.type == code else ():
            if pc.min(pc.binary_length(chunk.dictionary)).as_py() == 0:
                return None
    return table


def _explained(path: PathLike, width: int, numbers: Sequence[int], e: Exception) -> DuopldaError:
    """Which line made the parser fail, and why."""
    for number, raw in _numbered(path):
        place = f"line {number}"
        try:
            items = words(raw.decode("utf-8"))
        except UnicodeDecodeError:
            return bad(path, place, f"is not UTF-8 ({shown(raw[:40])})", "write the list in UTF-8")
        if len(items) != width:
            return bad(path, place, f"has {len(items)} fields, the first line {width}", "all must be equal")
        for i in numbers:
            try:
                float(items[i])
            except ValueError:
                return bad(path, place, f"{shown(items[i])} is not a number", "write it as 1.5 or -2e-3")
    return bad(path, "", f"cannot be read as a list ({str(e)[:120]})", "lines have fields between single spaces")


def _numbered(path: PathLike) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers; only for messages."""
    with open_binary(path) as raw, open(raw.fileno(), "rb", closefd=False) as f:
        for number, line in enumerate(f, 1):
            line = line.removeprefix(BOM) if number == 1 else line
            if line.strip():
                yield number, line


def line_of(path: PathLike, row: int, *, header: bool = False) -> str:
    """The place of a row in a text list, for messages."""
    if is_parquet(path):
        return f"row {row}"
    for i, (number, _) in enumerate(_numbered(path)):
        if i == row + header:
            return f"line {number}"
    return f"row {row}"


def read_table(
    path: PathLike,
    wanted: Mapping[str, Sequence[str]],
    given: Mapping[str, str] | None = None,
    *,
    optional: Sequence[str] = (),
    others: bool = False,
    numbers: Sequence[str] = (),
) -> dict[str, Any]:
    """Columns of a CSV, TSV or Parquet table by what they mean.

    Parameters
    ----------
    path : the file
    wanted : meaning -> the names a column with that meaning may have (compared without case)
    given : meaning -> the name the caller says it has
    optional : meanings that may be missing
    others : keep the remaining columns, too, under their own names
    numbers : meanings whose columns are float64
    """
    given = dict(given or {})
    if set(given) - set(wanted):
        raise DuopldaError(f"columns= knows {', '.join(wanted)}, not {', '.join(set(given) - set(wanted))}")
    parquet = is_parquet(path)
    names = _parquet_names(path) if parquet else header_fields(path)
    if len(set(names)) != len(names):
        raise bad(path, "line 1", "two columns have the same name", "rename one")
    where: dict[str, str] = {}
    for meaning, known in wanted.items():
        name = given.get(meaning) or next((n for n in names if n.strip().lower() in known), None)
        if name is None and meaning not in optional:
            remedy = f"name it with columns={{{meaning!r}: ...}}; it has {listed(names)}"
            raise bad(path, "header", f"has no {meaning} column ({' or '.join(known[:4])})", remedy)
        if name is not None and name not in names:
            raise bad(path, "header", f"has no column {name!r}", f"it has {listed(names)}")
        if name is not None:
            where[meaning] = name
    if others:
        where |= {n: n for n in names if n not in where.values() and n not in where}
    floats = {where[m] for m in numbers if m in where}
    table = (_read_parquet if parquet else _read_csv)(path, names, list(where.values()), floats)
    if not table.num_rows:
        raise bad(path, "", "has a header and no rows")
    return {
        meaning: column_of(path, table.column(name), header=True, blank=meaning not in wanted)
        for meaning, name in where.items()
    }


def has_columns(path: PathLike, wanted: Mapping[str, Sequence[str]], meanings: Sequence[str]) -> bool:
    """Does the file start with a header that names all of `meanings`?"""
    names = [n.strip().lower() for n in header_fields(path)]
    return len(names) > 1 and all(any(n in wanted[m] for n in names) for m in meanings)


def _read_csv(path: PathLike, names: list[str], columns: list[str], floats: set[str]) -> Any:
    pa, pc = need("pyarrow"), need("pyarrow.csv")
    delimiter = delimiter_of(path)
    code = pa.dictionary(pa.int32(), pa.string())
    with open_binary(path) as f:
        try:
            return pc.read_csv(
                pa.PythonFile(f, mode="r"),
                read_options=pc.ReadOptions(block_size=BLOCK),
                parse_options=pc.ParseOptions(delimiter=delimiter, quote_char='"' if delimiter == "," else False),
                convert_options=pc.ConvertOptions(
                    column_types={n: pa.float64() if n in floats else code for n in names},
                    include_columns=columns,
                    null_values=[],
                    strings_can_be_null=False,
                ),
            )
        except (pa.ArrowException, ValueError, KeyError) as e:
            raise _explained_table(path, delimiter, names, floats, e) from e


def _explained_table(path: PathLike, delimiter: str, names: list[str], floats: set[str], e: Exception) -> DuopldaError:
    for number, raw in _numbered(path):
        place = f"line {number}"
        try:
            text = raw.decode("utf-8").rstrip("\r\n")
            items = next(csv.reader([text]), []) if delimiter == "," else text.split(delimiter)
        except UnicodeDecodeError:
            return bad(path, place, f"is not UTF-8 ({shown(raw[:40])})", "write the table in UTF-8")
        except csv.Error as error:
            return bad(path, place, f"is no row of a table ({error})", "quote the fields")
        if len(items) != len(names):
            return bad(path, place, f"has {len(items)} columns, the header {len(names)}", "fill or quote the fields")
        for name, item in zip(names, items, strict=True):
            if name in floats and item not in names:
                try:
                    float(item)
                except ValueError:
                    return bad(path, place, f"{shown(item)} in column {name} is not a number", "write it as 1.5")
    return bad(path, "", f"cannot be read as a table ({str(e)[:120]})", "give a header and one row per line")


def _parquet_names(path: PathLike) -> list[str]:
    pq = need("pyarrow.parquet")
    with guarded(path, "Parquet"):
        return list(pq.read_schema(path).names)


def _read_parquet(path: PathLike, names: list[str], columns: list[str], floats: set[str]) -> Any:
    pa, pq = need("pyarrow"), need("pyarrow.parquet")
    with guarded(path, "Parquet"):
        table = pq.read_table(path, columns=columns, partitioning=None)
        table.validate(full=True)  # UTF-8, and codes within their dictionaries
        kinds = [pa.float64() if n in floats else pa.string() for n in columns]
        return table.cast(pa.schema(list(zip(columns, kinds, strict=True))))


def column_of(path: PathLike, column: Any, *, header: bool = False, blank: bool = False, first: int = 0) -> Any:
    """An Arrow column, from row `first` on, as `Coded`, or as a float64 array; missing values are an error."""
    pa = need("pyarrow")
    if column.null_count:
        row = int(np.flatnonzero(np.asarray(column.is_null()))[0])
        raise bad(path, line_of(path, first + row, header=header), "a value is missing", "fill the column")
    if pa.types.is_floating(column.type):
        return np.asarray(column, dtype=np.float64)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column = column.unify_dictionaries()
    values = column.chunk(0).dictionary.to_pylist()
    codes = np.concatenate([np.asarray(c.indices) for c in column.chunks]).astype(np.int32, copy=False)
    long = next((i for i, v in enumerate(values) if len(v) > MAX_ID), None)
    if long is not None:
        row = int((codes == long).argmax())
        raise bad(
            path,
            line_of(path, first + row, header=header),
            f"{shown(values[long])} is too long",
            f"at most {MAX_ID} characters",
        )
    names = np.array(values, dtype=str)
    odd = odd_ids(names) & ~(blank & (names == ""))
    if odd.any():
        row = int((codes == odd.argmax()).argmax())
        place = line_of(path, first + row, header=header)
        raise bad(path, place, "an id is empty or has control characters", "give it an id")
    return Coded(names, codes)


def write_columns(
    out: Path, batches: Iterable[Sequence[Coded | np.ndarray]], *, delimiter: str, header: Sequence[str] = ()
) -> None:
    """Write columns (`Coded`, or floats) as text; floats as short as reads back the same."""
    pa, pc, pcsv = need("pyarrow"), need("pyarrow.compute"), need("pyarrow.csv")
    with open(out, "wb") as f:
        if header:
            f.write((delimiter.join(header) + "\n").encode("utf-8"))
        for columns in batches:
            if delimiter == "," and any(_quotable(c) for c in columns):
                table = pa.table([arrow(c) for c in columns], [str(i) for i in range(len(columns))])
                pcsv.write_csv(table, f, pcsv.WriteOptions(include_header=False))
                continue
            for i in range(0, len(columns[0]), 1 << 18):
                texts = [arrow(c[i : i + (1 << 18)]).cast(pa.string()) for c in columns]
                lines = pc.binary_join_element_wise(*texts, delimiter)
                f.write(pc.binary_join_element_wise(lines, "\n", "").buffers()[2])


def _quotable(column: Coded | np.ndarray) -> bool:
    return isinstance(column, Coded) and any("," in name or '"' in name for name in column.names.tolist())


def arrow(column: Coded | np.ndarray) -> Any:
    """A column as an Arrow array of strings or floats."""
    pa = need("pyarrow")
    if not isinstance(column, Coded):
        return pa.array(np.asarray(column, np.float64))
    return pa.array(column.names.tolist(), pa.string()).take(pa.array(column.codes))
