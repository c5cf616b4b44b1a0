"""The quality of the recordings of a training, by several measures, and a warning where others are unlike them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from duoplda.errors import DomainWarning, DuopldaError
from duoplda.estimators.backend import Backend
from duoplda.io import QualityTable, read_quality
from duoplda.workflows._files import PathLike

QUALITY_KEY = "quality"  # in the provenance of a model
# Quantiles of the training. There are seven measures, and about one of a hundred recordings that are like the training
# should be outside by one of them. (It is more if the training has few speakers.)
TRAINING_QUANTILES = (0.001, 0.999)

Range = tuple[float, float]


class Unlike(NamedTuple):
    """How recordings compare with those of a training by one measure."""

    measure: str
    low: float  # of the training
    high: float
    median: float  # of these recordings
    recordings: int
    outside: int  # of the range of the training

    @property
    def text(self) -> str:
        """The comparison in words."""
        count = f"{self.outside:,} of {self.recordings:,}"
        return f"{self.measure}: median {self.median:.4g}, {count} outside of {self.low:.4g} to {self.high:.4g}"


def training_ranges(path: PathLike, ids: Iterable[str]) -> dict[str, list[float]]:
    """The usual range of each numeric measure of a table, over the recordings with these ids."""
    table = read_quality(path)
    rows = [table.rows[name] for name in ids if name in table.rows]
    if not rows:
        raise DuopldaError(f"{path}: has no row for any recording of the training; do the ids agree?")
    ranges = {}
    for name, values in _numbers(table, rows).items():
        # The ends are values that occurred: with less than a thousand recordings, the lowest and the highest.
        low = np.quantile(values, TRAINING_QUANTILES[0], method="lower")
        high = np.quantile(values, TRAINING_QUANTILES[1], method="higher")
        ranges[name] = [float(low), float(high)]
    return ranges


def ranges_of(model: Backend) -> dict[str, Range]:
    """The ranges that a model remembers if it was trained with a table of quality, else none."""
    kept = model.provenance_.get(QUALITY_KEY)
    if not isinstance(kept, dict):
        return {}
    return {str(name): (float(pair[0]), float(pair[1])) for name, pair in kept.items() if _is_range(pair)}


def _is_range(pair: Any) -> bool:
    """Whether a value of the file is a range of `training_ranges`; another program may have written anything there."""
    return isinstance(pair, list) and len(pair) == 2 and all(isinstance(end, (int, float)) for end in pair)


def compare(ranges: dict[str, Range], table: QualityTable) -> list[Unlike]:
    """Compare all recordings of a table with the training, by each measure that both have."""
    compared = []
    for name, values in _numbers(table, range(len(table))).items():
        if name in ranges:
            low, high = ranges[name]
            outside = int(np.count_nonzero((values < low) | (values > high)))
            compared.append(Unlike(name, low, high, float(np.median(values)), len(values), outside))
    return compared


def warn_of_quality(ranges: dict[str, Range], table: QualityTable) -> None:
    """Warn if, by some measure, most recordings are outside the range of nearly all of the training."""
    if unlike := [one.text for one in compare(ranges, table) if 2 * one.outside > one.recordings]:
        warnings.warn(
            "most of these recordings are not like those that the model was trained on, by their quality "
            f"({'; '.join(unlike)}). Ratios may mislead: adapt the model to such recordings with `duoplda adapt`",
            DomainWarning,
            stacklevel=3,
        )


def _numbers(table: QualityTable, rows: Iterable[int]) -> dict[str, np.ndarray]:
    """The known values of each numeric column, in these rows."""
    chosen = np.fromiter(rows, np.int64)
    columns = {name: table.numbers(name) for name in table.columns}
    known = {
        name: values[chosen][np.isfinite(values[chosen])] for name, values in columns.items() if values is not None
    }
    return {name: values for name, values in known.items() if len(values)}
