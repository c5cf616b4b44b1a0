"""Side information: a table with one row for each recording and any number of columns, numbers or words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from duoplda.errors import DuopldaError
from duoplda.io._arrow import schema_of
from duoplda.io._coded import Coded
from duoplda.io.common import PathLike, bad, content, shown
from duoplda.io.labels import COLUMNS
from duoplda.io.text import header_fields, line_of, read_table

MAX_COLUMNS = 256  # a table with more of them is taken for something else, such as embeddings
MISSING = ("", "nan", "na", "n/a", "null")  # cells without a value, in any case


@dataclass(frozen=True, eq=False)
class QualityTable:
    """What is known of n recordings beside their embeddings: durations, kinds, means over a cohort, ...

    Cells are kept as texts; `numbers` and `words` say what a column means.
    """

    ids: np.ndarray  # (n,) of str, each once
    columns: Mapping[str, Coded]  # by name, n cells each

    @classmethod
    def of(cls, ids: Iterable[str], columns: Mapping[str, Iterable[Any]]) -> QualityTable:
        """Make a table of lists or arrays; None and NaN are missing values.

        Example
        -------
        >>> table = QualityTable.of(["a", "b"], {"duration": [3.5, None], "kind": ["phone", "close"]})
        >>> table.numbers("duration").tolist(), table.numbers("kind") is None
        ([3.5, nan], True)
        """
        names = np.array([str(name) for name in ids], dtype=str)
        cells = {name: ["" if v is None else str(v).strip() for v in column] for name, column in columns.items()}
        for name, column in cells.items():
            if len(column) != len(names):
                raise DuopldaError(f"column {name!r} has {len(column)} cells for {len(names)} ids; give one for each")
        if len(set(names.tolist())) < len(names):
            twice = next(n for n, k in zip(*np.unique(names, return_counts=True), strict=True) if k > 1)
            raise DuopldaError(f"id {shown(str(twice))} is there twice; each recording has one row")
        return cls(names, {name: Coded.of(column) for name, column in cells.items()})

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def rows(self) -> dict[str, int]:
        """The row of each recording."""
        return {name: i for i, name in enumerate(self.ids.tolist())}

    def numbers(self, name: str) -> np.ndarray | None:
        """Return a column as float64 (n,), NaN where a value is missing; None where a cell is no number."""
        column = self.columns[name]
        parsed = [_parsed(text) for text in column.names.tolist()]
        if any(value is None for value in parsed):
            return None
        return np.array(parsed, dtype=np.float64)[column.codes]

    def words(self, name: str) -> np.ndarray:
        """Return a column as texts (n,), "" where a value is missing."""
        column = self.columns[name]
        words = [text.strip() for text in column.names.tolist()]
        return np.array(["" if word.lower() in MISSING else word for word in words], dtype=str)[column.codes]


def read_quality(path: PathLike) -> QualityTable:
    """Read side information: a table (TSV, CSV or Parquet) with a column of ids and any others, at most 256.

    Cells that are empty, `nan`, `na`, `n/a` or `null` are missing values. A recording has one row.

    Example
    -------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "quality.csv").write_text("recording,duration,kind\\na,3.5,phone\\nb,nan,close\\n")
    ...     table = read_quality(folder + "/quality.csv")
    >>> table.numbers("duration").tolist(), table.words("kind").tolist()
    ([3.5, nan], ['phone', 'close'])
    """
    names = schema_of(path)[0] if content(path) == "parquet" else header_fields(path)[0]
    if len(names) > MAX_COLUMNS:
        raise bad(path, "header", f"has {len(names):,} columns", f"give at most {MAX_COLUMNS}, and a row a recording")
    table = read_table(path, {"id": COLUMNS["id"]}, others=True)
    ids: Coded = table.pop("id")
    if not table:
        raise bad(path, "header", "has a column of ids and no other", "add columns, such as duration or kind")
    if len(ids.names) != len(ids):
        code = int(np.flatnonzero(np.bincount(ids.codes) > 1)[0])
        place = line_of(path, int(np.flatnonzero(ids.codes == code)[1]), header=True)
        raise bad(path, place, f"id {shown(str(ids.names[code]))} is there already", "each recording has one line")
    return QualityTable(ids.values, table)


def _parsed(text: str) -> float | None:
    """The number that a cell stands for: NaN where there is none, None where the text is something else."""
    text = text.strip()
    if text.lower() in MISSING:
        return np.nan
    try:
        return None if "_" in text else float(text)  # Python reads 1_000 as a number
    except ValueError:
        return None
