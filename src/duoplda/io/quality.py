"""Side information on recordings, such as durations: a table with a row for each, and columns of numbers or words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from duoplda.errors import DuopldaError
from duoplda.io.common import PathLike, bad, held, shown
from duoplda.io.ids import Coded
from duoplda.io.labels import LABEL_COLUMNS
from duoplda.io.text import header_fields, line_of, read_header, read_table


@dataclass(frozen=True, eq=False)
class QualityTable:
    """What is known of n recordings beside their embeddings: durations, kinds, means over a cohort, ...

    Cells are kept as texts. `numbers` reads a column as numbers, and `words` as words.
    """

    ids: np.ndarray  # (n,) of str, each once
    columns: Mapping[str, Coded]  # by name, n cells each

    @classmethod
    def of(cls, ids: Iterable[str], columns: Mapping[str, Iterable[object]]) -> QualityTable:
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
        if repeated := Coded.of(names).repeated():
            raise DuopldaError(f"id {shown(repeated[0])} occurs twice; each recording has one row")
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
        words = [_word(text) for text in column.names.tolist()]
        if any("_" in word for word in words):  # Python would read 1_000 as a number
            return None
        try:
            return np.array([float(word or "nan") for word in words], dtype=np.float64)[column.codes]
        except ValueError:
            return None

    def words(self, name: str) -> np.ndarray:
        """Return a column as texts (n,), "" where a value is missing."""
        column = self.columns[name]
        return np.array([_word(text) for text in column.names.tolist()], dtype=str)[column.codes]


def read_quality(path: PathLike, columns: Mapping[str, str] | None = None) -> QualityTable:
    """Read side information: a table (TSV, CSV or Parquet) with a column of ids and any others, at most 256.

    Cells that are empty, `nan`, `na`, `n/a` or `null` are missing values. A recording has one row. `columns` may name
    the column of ids: {"id": "clip"}.

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
    path = held(path)
    n_columns = len(header_fields(path)[0])
    if n_columns > 256:  # such a table is taken for something else, such as embeddings
        raise bad(path, "header", f"has {n_columns:,} columns", "give at most 256, and one row for each recording")
    table = read_table(read_header(path, {"id": LABEL_COLUMNS["id"]}, columns), others=True)
    ids: Coded = table.pop("id")
    if not table:
        raise bad(path, "header", "has a column of ids and no other", "add columns, such as duration or kind")
    if repeated := ids.repeated():
        name, row = repeated
        cause = f"id {shown(name)} is there already"
        raise bad(path, line_of(path, row, header=True), cause, "each recording has one line")
    return QualityTable(ids.values, table)


def _word(text: str) -> str:
    """Return the text of a cell without blanks around it; "" where it stands for a missing value."""
    word = text.strip()
    return "" if word.lower() in ("nan", "na", "n/a", "null") else word
