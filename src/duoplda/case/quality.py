"""Measures of the recordings of a case, such as their duration and noise, beside those of the population."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.case.file import CaseFile
from duoplda.case.recordings import CaseRecordings
from duoplda.errors import MissingIds, some
from duoplda.io import QualityTable, read_quality

Floats = NDArray[np.float64]
USUAL = (0.05, 0.95)  # quantiles of the population between which a value is called usual


class ValueRange(NamedTuple):
    """The range of the values of a measure; NaN where nothing was measured.

    >>> ValueRange.of(np.array([3.0, np.nan, 1.0, 2.0]))
    ValueRange(n=3, lowest=1.0, usual_low=1.1, median=2.0, usual_high=2.9, highest=3.0)
    """

    n: int
    lowest: float
    usual_low: float
    median: float
    usual_high: float
    highest: float

    @classmethod
    def of(cls, values: Floats) -> ValueRange:
        """Make it from values, without those that are NaN."""
        known = values[np.isfinite(values)]
        if not len(known):
            return cls(0, *[float("nan")] * 5)
        return cls(len(known), *np.quantile(known, [0.0, USUAL[0], 0.5, USUAL[1], 1.0]).tolist())


@dataclass(frozen=True)
class Measure:
    """One measure on both sides and on the population.

    >>> low, middle, usual = (ValueRange.of(np.array(values)) for values in ([1.0], [6.0], [5.0, 9.0]))
    >>> Measure("seconds", known=low, questioned=middle, population=usual).unusual
    ['known']
    """

    name: str
    known: ValueRange
    questioned: ValueRange
    population: ValueRange

    @property
    def unusual(self) -> list[str]:
        """The sides with a value that is not usual in the population; none if the population was not measured."""
        usual = self.population
        if not usual.n:
            return []
        sides = {"known": self.known, "questioned": self.questioned}
        return [n for n, side in sides.items() if side.lowest < usual.usual_low or side.highest > usual.usual_high]


@dataclass(frozen=True)
class CaseQuality:
    """The measures of the recordings of a case, from a table.

    Attributes
    ----------
    measures : the columns of numbers
    cells : the cells of each recording of the case, as they stand in the table
    """

    measures: tuple[Measure, ...]
    cells: Mapping[str, Mapping[str, str]]


def read_case_quality(case: CaseFile, sides: CaseRecordings) -> CaseQuality | None:
    """Read the table of measures that a case file names; None if it names none.

    Every recording of the case must have a row. Of the population, those recordings are compared that have rows.
    """
    if case.quality is None:
        return None
    table = read_quality(case.quality)
    ids = [*sides.known.ids.tolist(), *sides.questioned.ids.tolist()]
    if lack := [id for id in ids if id not in table.rows]:
        cause = f"{len(lack)} recordings of the case have no row: {some(lack, 4)}"
        raise MissingIds(str(case.error(("quality",), cause, "measure them too, or leave `quality` out")))
    measures = []
    for name in table.columns:
        values = table.numbers(name)
        if values is not None and np.isfinite(values).any():
            measures.append(_measure(name, values, table, sides))
    words = {name: table.words(name) for name in table.columns}
    cells = {id: {name: str(column[table.rows[id]]) for name, column in words.items()} for id in ids}
    return CaseQuality(tuple(measures), cells)


def _measure(name: str, values: Floats, table: QualityTable, sides: CaseRecordings) -> Measure:
    """A column of numbers, on both sides and on the population."""
    ranges = {}
    for which, side in sides._asdict().items():
        rows = np.array([table.rows[id] for id in side.ids.tolist() if id in table.rows], dtype=np.int64)
        ranges[which] = ValueRange.of(values[rows])
    return Measure(name, **ranges)
