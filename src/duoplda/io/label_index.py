"""From the ids of recordings to their labels: a table as integers, looked up by id."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from duoplda.data.labels import Labels, encode, places
from duoplda.errors import MissingIds
from duoplda.io.labels import LabelColumns

Note = Callable[[str], object]  # called with a message for people


@dataclass(frozen=True, eq=False)
class LabelIndex:
    """Labels as integers, and the ids by which recordings find theirs."""

    ids: np.ndarray  # (N,) of str, sorted
    order: np.ndarray  # (N,) int32, the row of the labels for each of them
    labels: Labels

    @staticmethod
    def of(table: LabelColumns, note: Note = lambda message: None) -> LabelIndex:
        """Index a table by its ids."""
        order = np.argsort(table.ids, kind="stable").astype(np.int32)
        return LabelIndex(table.ids[order], order, encoded_labels(table, note))

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Return the row of the labels for each id, int32, -1 where an id has no label."""
        place = places(ids, self.ids).astype(np.int32)
        place[place >= 0] = self.order[place[place >= 0]]
        return place

    def absent(self, rows: np.ndarray) -> np.ndarray:
        """Return the ids, sorted, whose rows of the labels are not among `rows`."""
        seen = np.zeros(len(self.ids), bool)
        seen[rows] = True
        return self.ids[~seen[self.order]]


def encoded_labels(table: LabelColumns, note: Note = lambda message: None) -> Labels:
    """Return the labels of a table as integers; `note` is told what is assumed about sessions.

    Two speakers of a table may use the same name for a session: it is then two sessions. Where speakers are not known,
    a name is one session.
    """
    labels = encode(table.speaker, table.session, table.channel, by_speaker=True)
    if table.speaker is None:
        return labels
    if table.session is None:
        note("no sessions given: each recording is taken for a session of its own")
        return labels
    row = np.empty(labels.n_sessions, np.int64)
    row[labels.session] = np.arange(len(table))  # one row of each session
    if len(np.unique(table.session[row])) < labels.n_sessions:
        note("names of sessions repeat from speaker to speaker: they are taken for different sessions of each speaker")
    return labels


def refuse_absent(ids: np.ndarray, allow_missing: bool, note: Note) -> None:
    """Raise an error for labelled recordings without an embedding; with `allow_missing`, only note them."""
    if not len(ids):
        return
    cause = f"{len(ids)} labelled recordings have no embedding"
    shown = ", ".join(map(str, ids[:10])) + ", ..." * (len(ids) > 10)
    if not allow_missing:
        raise MissingIds(f"{cause}: {shown} (--allow-missing, or allow_missing=True, goes on without them)")
    note(f"{cause}, left out: {shown}")
