"""The voices of a registry in memory, ready to be compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Device, namespace, on_device, to_numpy
from duoplda.errors import MissingIds
from duoplda.estimators.backend import Backend
from duoplda.trials.blocks import Scorer
from duoplda.trials.ranking import ranking_of
from duoplda.trials.sides import Sides

Floats = NDArray[np.float64]

# With more voices than this, all ratios are computed in single precision, and the highest again in double precision.
EXACT_UP_TO = 20_000
# A ranking keeps factors for each pattern (the same numbers of sessions and recordings). If a pattern has fewer voices
# than this on average, keeping them costs more than it saves.
VOICES_OF_A_PATTERN = 32


class Gallery:
    """Voices by number, which can be replaced and removed, and their ratios with tests.

    With a `device`, ratios are computed from a copy of the voices there, which is made again after a change.
    """

    def __init__(self, chain: Backend, device: Device = None):
        self.chain = chain
        self.model = chain.ratio_model_.like(on_device(np.zeros(1), device))
        self.begin([], Sides.empty(chain.ratio_model_, np.zeros(0, np.int64)))

    def begin(self, names: list[str], sides: Sides) -> None:
        """Replace all voices by these, whose ids are numbers."""
        self.sides = sides
        self.names = names
        self.rows = {name: row for row, name in enumerate(names)}
        self.scorer = self.chain.scorer(sides)
        self._copy: Scorer | None = None

    def put(self, names: Sequence[str], sides: Sides) -> None:
        """Add voices, whose ids are numbers, or replace those that are there under the same numbers."""
        self._copy = None
        self.sides.put(sides)
        rows = self.sides.rows(sides.ids).tolist()
        for row in rows:  # all old names go first, as two voices may have swapped names
            if row < len(self.names):
                self.rows.pop(self.names[row], None)
        self.names += [""] * (len(self.sides) - len(self.names))
        for row, name in zip(rows, names, strict=True):
            self.names[row] = name
            self.rows[name] = row

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove voices; numbers that are not there are ignored."""
        removed = np.array([*dict.fromkeys(numbers)], np.int64)
        rows = self.sides.rows(removed)
        if (rows >= 0).any():
            self._copy = None
            gone = {*rows[rows >= 0].tolist()}
            self.sides.remove(removed[rows >= 0])
            self.names = [name for row, name in enumerate(self.names) if row not in gone]
            self.rows = {name: row for row, name in enumerate(self.names)}

    def row(self, name: str) -> int:
        """Return the row of a voice, which must be there."""
        row = self.rows.get(name)
        if row is None:
            raise MissingIds(f"there is no voice {name!r}")
        return row

    def ratios(self, tests: Sides, k: int) -> Floats:
        """Return (tests, voices) calibrated natural-log likelihood ratios.

        With more than EXACT_UP_TO voices, the `k` highest ratios of each test are exact, and the others are off by
        hundredths of a nat; on a device all are exact. Terms that depend on one voice alone are kept for further
        questions until that voice changes.
        """
        if namespace(self.model.V) is not np:  # on a device
            if self._copy is None:
                self._copy = self.chain.scorer(self.sides.moved_to(self.model))
            return self._calibrated(to_numpy(self._copy.columns(tests.moved_to(self.model))).T)
        ranking = ranking_of(self.sides) if self.scorer.calibration is None else None  # a ranking is of raw ratios
        few = len(self.sides) <= EXACT_UP_TO
        if ranking is None or (few and len(self.sides) < VOICES_OF_A_PATTERN * len(ranking.blocks)):
            return self._calibrated(to_numpy(self.scorer.columns(tests)).T)
        if few:
            return self._calibrated(ranking.ratios(tests))
        out = ranking.ratios(tests, precise=False)
        np.put_along_axis(out, *ranking.top(tests, min(k, len(self.sides))), axis=1)
        return self._calibrated(out)

    def ratio(self, row: int, tests: Sides) -> float:
        """Return the calibrated ratio of one voice and one test."""
        alone = self.chain.scorer(self.sides.select([row]))  # a scorer of all voices would look at each of them
        return float(self._calibrated(to_numpy(alone.columns(tests)))[0, 0])

    def _calibrated(self, ratios: Floats) -> Floats:
        calibration = self.chain.calibration_ if self.scorer.calibration is None else None
        return ratios if calibration is None else to_numpy(calibration.apply(ratios))
