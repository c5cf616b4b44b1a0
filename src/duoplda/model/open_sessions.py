"""Sessions that a chunk or a shard cuts: their sums stay open until all their recordings have come.

A *cell* is the recordings of one kind of channel in one session. Of its recordings, the number n and the sum F about
the offset are kept. Where parts of a cell with sums F_p of n_p recordings are added up, the scatter of all recordings
about the mean of the cell is that of the parts about their own means, and

    sum_p n_p (F_p / n_p - F / n)(F_p / n_p - F / n)'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda import arrays as ar
from duoplda.arrays import Array
from duoplda.data.labels import Ints, torn_session


@dataclass(frozen=True, eq=False)
class OpenSessions:
    """Sums of sessions that are not complete."""

    keys: NDArray[np.uint64]  # (h,) hashes of the sessions' names, by which parts find each other
    names: NDArray[Any]  # (h,)
    speakers: NDArray[Any]  # (h,) the speaker's id of each session
    session: Ints  # (cells,) index into the sessions
    kind: Ints  # (cells,)
    n: Ints  # (cells,) recordings
    F: Array  # (cells, d) their sums about the offset of the statistics

    def __len__(self) -> int:
        return len(self.keys)

    def select(self, sessions: NDArray[np.bool_]) -> OpenSessions:
        """Some of the sessions."""
        cells = np.flatnonzero(sessions[self.session])
        place = np.cumsum(sessions) - 1
        keys = self.keys[sessions]
        names = self.names[sessions]
        speakers = self.speakers[sessions]
        session = place[self.session[cells]]
        kind = self.kind[cells]
        n = self.n[cells]
        return OpenSessions(keys, names, speakers, session, kind, n, ar.take(self.F, cells))


def join(parts: list[OpenSessions], K: int, offset: Array) -> tuple[OpenSessions, Array]:
    """Open sessions of several statistics about one offset, and the scatter (K, d, d) that joining their cells adds."""
    keys, first, index = np.unique(np.concatenate([p.keys for p in parts]), return_index=True, return_inverse=True)
    names = np.concatenate([p.names for p in parts])
    speakers = np.concatenate([p.speakers for p in parts])
    torn = np.unique(index[speakers[first][index] != speakers])
    if len(torn):
        who = np.unique(speakers[index == torn[0]])
        raise torn_session(names[first[torn[0]]], who, len(torn) - 1, ", in different shards")
    start = np.cumsum([0, *map(len, parts)])
    session = [index[start[i] + p.session] for i, p in enumerate(parts)]
    cell = np.concatenate([of_part * K + p.kind for of_part, p in zip(session, parts, strict=True)])
    F = ar.namespace(offset).concat([p.F for p in parts])
    cells, n, F, cell_of_row, spread = add_cells(cell, np.concatenate([p.n for p in parts]), F)
    d = offset.shape[0]
    scatter = ar.zeros((1, K, d, d), offset)
    add_scatter(scatter, cell_of_row % K, spread)
    return OpenSessions(keys, names[first], speakers[first], cells // K, cells % K, n, F), scatter[0, ...]


def add_cells(cell: Ints, n: Ints, F: Array) -> tuple[Ints, Ints, Array, Ints, Array]:
    """Add up sums F (k, d) of n (k,) recordings by their cells (k,), which may repeat.

    Returns the distinct cells in rising order, their n and F; and for each part the cell and sqrt(n) (F / n - mean of
    the cell), in another order: the squares of these rows are the scatter that the joining adds to those of the parts.
    """
    order = np.argsort(cell, kind="stable")
    cells, starts, parts = np.unique(cell[order], return_index=True, return_counts=True)
    part_F = ar.take(F, order)
    F = ar.segment_sums(part_F, starts)
    root = np.sqrt(n[order])
    n = np.add.reduceat(n[order], starts)
    mean = F / ar.put(n.astype(float), F)[:, None]
    root = ar.put(root, F)[:, None]
    of_part = np.repeat(np.arange(len(cells)), parts)
    return cells, n, F, cells[of_part], part_F / root - root * ar.take(mean, of_part)


def add_scatter(within: Array, bins: Ints, rows: Array) -> None:
    """Add the scatter of rows to `within` (folds, K, d, d); `bins` are fold * K + kind of each row."""
    K = within.shape[1]
    for b in np.unique(bins).tolist():
        within[b // K, b % K, ...] += ar.gram(ar.take(rows, np.flatnonzero(bins == b)))


class OpenTable:
    """Sums of cells that may still grow.

    Each cell has a place in the table; once it has been taken out, another cell uses that place.
    """

    def __init__(self, n_cells: int, like: Array):
        self.place = np.full(n_cells, -1, np.int32)
        self.free = np.zeros(0, np.int64)
        self.n = np.zeros(0, np.int64)
        self.F = ar.zeros((0, like.shape[0]), like)

    def put(self, cells: Ints, n: Ints, F: Array) -> None:
        """Put in cells that are not in the table."""
        size = len(self.n)
        if len(cells) > len(self.free):  # double the places, so that copies of the table are few
            more = max(len(cells) - len(self.free), size)
            self.free = np.concatenate([self.free, np.arange(size, size + more)])
            self.n = np.concatenate([self.n, np.zeros(more, np.int64)])
            self.F = ar.namespace(F).concat([self.F, ar.zeros((more, F.shape[1]), F)])
        places = self.free[: len(cells)]
        self.free = self.free[len(cells) :]
        self.place[cells] = places
        self.n[places] = n
        ar.set_rows(self.F, places, F)

    def take(self, cells: Ints) -> tuple[Ints, Ints, Array]:
        """Take out those of the cells that are in the table: the cells, their n and F."""
        cells = cells[self.place[cells] >= 0]
        places = self.place[cells]
        self.place[cells] = -1
        self.free = np.concatenate([self.free, places])
        return cells, self.n[places], ar.take(self.F, places)
