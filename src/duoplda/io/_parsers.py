"""Lines of text, in blocks, as columns of texts and numbers.

pyarrow parses a block where it is installed and the block is plain: it is 10 to 25 times as fast as Python (2 million
lines in 0.4 s). Any other block is parsed by Python, where whatever is wrong is named with its line.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from duoplda.arrays import in_order
from duoplda.io.common import PathLike, bad, installed, need, open_lines, shown

# A column of a block: its different texts (a list, or Arrow's) and their codes, in one or more pieces, or numbers.
ColumnBlock = list[tuple[Any, np.ndarray]] | np.ndarray


@dataclass(frozen=True)
class Layout:
    """What the lines of a file look like: how many fields, between what, and which of them are wanted."""

    width: int
    delimiter: str = " "  # a space stands for any run of blanks
    columns: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    header: bool = False


def text_blocks(path: PathLike, layout: Layout) -> Iterator[list[ColumnBlock]]:
    """Yield the columns of each block of lines; several threads parse them, and the blocks stay in order."""
    return in_order(partial(_parsed, path, layout), line_blocks(path, layout.header), np.inf)


def line_blocks(path: PathLike, header: bool) -> Iterator[tuple[int, bytes]]:
    """Yield blocks of whole lines, with the number of their first line; not the header, nor blocks of blanks."""
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
    """Parse a block of plain lines; None where pyarrow is not installed or cannot make sense of them."""
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
    pa, arrow_csv, pc = (need(name) for name in ("pyarrow", "pyarrow.csv", "pyarrow.compute"))
    code = pa.dictionary(pa.int32(), pa.string())
    wanted = [str(i) for i in layout.columns]
    types = {str(i): pa.float64() if i in layout.numbers else code for i in range(layout.width)}
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(block),
            # No threads of Arrow: one that lets go of our bytes while Python shuts down aborts the process.
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
    if layout.delimiter == " " and any(empty):  # two blanks in a row, which count as one
        return None
    if layout.delimiter == "\t" and empty and all(empty):  # perhaps a line of tabs alone, which is a blank one
        return None
    return columns


def _parsed(path: PathLike, layout: Layout, numbered: tuple[int, bytes]) -> list[ColumnBlock]:
    """Parse a block of lines, which comes with the number of its first line in the file, or say what is wrong."""
    number, block = numbered
    by_pyarrow = _by_pyarrow(block, layout)
    if by_pyarrow is not None:
        return by_pyarrow
    rows = split_lines(path, number, block.split(b"\n"), layout.delimiter)
    if layout.delimiter == "\t" and not layout.header:  # of a list, some lines may have blanks instead, or as well
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
