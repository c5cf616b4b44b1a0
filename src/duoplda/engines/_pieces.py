"""Pieces of labelled data as workers read them: shards of files, chunks, partitions of a data frame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import check_rows
from duoplda.data import labels as lab
from duoplda.data.labels import Labels
from duoplda.errors import DuopldaError
from duoplda.io import Labels as Table
from duoplda.io.shards import Shard

NAMES = ("X", "speaker", "session", "channel")


@dataclass(frozen=True, eq=False)
class LabelTable:
    """Labels by id, coded and sorted: each worker looks its shard's ids up. Sessions are their speaker's own."""

    ids: NDArray[Any]  # (n,) sorted
    speaker_ids: NDArray[Any]
    session_ids: NDArray[Any] | None
    kinds: NDArray[Any]
    codes: NDArray[np.int64]  # (n, 3) speaker, session, kind

    @staticmethod
    def of(table: Table) -> LabelTable:
        order = np.argsort(table.ids, kind="stable")
        session = None if table.session is None else own_sessions(table.speaker, table.session)
        labels = lab.encode(table.speaker, session, table.channel)
        codes = np.column_stack([labels.speaker, labels.session, labels.kind])[order]
        return LabelTable(table.ids[order], labels.speaker_ids, labels.session_ids, labels.kinds, codes)

    def find(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """Rows of the table, -1 where an id is not there."""
        place = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[place] == ids, place, -1)

    def columns(self, rows: NDArray[np.int64]) -> tuple[Any, Any, Any]:
        codes = self.codes[rows]
        session = None if self.session_ids is None else self.session_ids[codes[:, 1]]
        channel = None if self.kinds.tolist() == lab.NO_KIND.tolist() else self.kinds[codes[:, 2]]
        return self.speaker_ids[codes[:, 0]], session, channel


def own_sessions(speaker: NDArray[Any], session: NDArray[Any]) -> NDArray[Any]:
    """Names of sessions that may repeat from speaker to speaker, made unique."""
    return np.array([f"{a} {b}" for a, b in zip(speaker.tolist(), session.tolist(), strict=True)])


@dataclass(frozen=True, eq=False)
class Piece:
    """Labels and rows of one shard, chunk or partition, on the worker that works on it."""

    speaker: Any
    session: Any
    channel: Any
    rows: Callable[[], Any]  # (n, d)
    found: NDArray[np.int64] | None = None  # rows of the label table

    def labels(self) -> Labels:
        return lab.encode(self.speaker, self.session, self.channel)


def of_shard(what: tuple[Shard, LabelTable | None, bool]) -> Piece:
    """A shard, its labels (None: its own columns), and whether vectors will be asked for: then it is read once only."""
    shard, table, vectors = what
    if table is None:
        own = shard.labels()
        session = None if own.session is None else own_sessions(own.speaker, own.session)
        return Piece(own.speaker, session, own.channel, lambda: shard.load()[1])
    ids, X = shard.load() if vectors else (shard.ids(), None)
    found = table.find(ids)
    keep = found >= 0
    return Piece(*table.columns(found[keep]), lambda: X if keep.all() else X[keep], found[keep])  # type: ignore[index]


def of_chunk(chunk: Any) -> Piece:
    """`(X, speaker, session, channel)`, as long as it is, or a mapping of those names."""
    try:
        given = dict(chunk) if hasattr(chunk, "keys") else dict(zip(NAMES, chunk, strict=False))
        X = check_rows(given["X"])[0]
        return Piece(given["speaker"], given.get("session"), given.get("channel"), lambda: X)
    except (TypeError, KeyError, ValueError) as error:
        if isinstance(error, DuopldaError):
            raise
        raise DuopldaError("a chunk must be (X, speaker, session) or (X, speaker, session, channel)") from None


@dataclass(frozen=True)
class Columns:
    """Of a dask DataFrame. `vectors` is a column of lists, or several columns of numbers."""

    speaker: str
    session: str | None
    channel: str | None
    vectors: str | tuple[str, ...]

    def piece(self, frame: Any) -> Piece:
        speaker, session, channel = (
            None if c is None else frame[c].to_numpy() for c in (self.speaker, self.session, self.channel)
        )
        return Piece(speaker, session, channel, lambda: self._matrix(frame))

    def _matrix(self, frame: Any) -> Any:
        if not isinstance(self.vectors, str):
            return frame[list(self.vectors)].to_numpy()
        if frame[self.vectors].dtype == "string":
            raise DuopldaError(
                f"column {self.vectors} holds text, not lists: dask.config.set({{'dataframe.convert-string': False}}) "
                "before the data frame is made keeps Dask from printing lists"
            )
        try:
            return np.stack([np.asarray(v, np.float64) for v in frame[self.vectors]])
        except (TypeError, ValueError) as error:
            raise DuopldaError(f"column {self.vectors}: vectors of one length are needed ({error})") from None
