"""From the ids of recordings to their labels: a table as integers, looked up by id."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

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
    """Return the labels of a table as integers; `note` is told how it was read, and what is assumed about sessions.

    Two speakers of a table may use the same name for a session: it is then two sessions. Where speakers are not known,
    a name is one session.
    """
    labels = encode(table.speaker, table.session, table.channel, occasion=table.occasion, by_speaker=True)
    if table.read_as:
        note(table.read_as)
    if table.speaker is None:
        return labels
    if table.session is None:
        note("no sessions given: each recording is taken for a session of its own")
        return labels
    row = np.empty(labels.n_sessions, np.int64)
    row[labels.session] = np.arange(len(table.ids))  # one row of each session
    names = len(np.unique(table.session[row]))
    if names < labels.n_sessions:
        note("names of sessions repeat from speaker to speaker: they are taken for different sessions of each speaker")
        if names > 1 and labels.n_sessions == len(labels.speaker_ids):
            cause = "no speaker has two sessions, and names of sessions repeat from speaker to speaker"
            warnings.warn(f"{cause}: are the labels of speakers and of sessions swapped?", UserWarning, stacklevel=2)
    return labels


def missing(
    what: str, ids: Iterable[object], allow_missing: bool, note: Note, there: tuple[str, Iterable[object]] = ("", ())
) -> None:
    """Refuse ids that are not there, or say that they are left out.

    Parameters
    ----------
    what : a sentence on them, after their number: "test recordings have no embedding"
    ids : the ids
    there : "the embeddings have", and ids that are there instead, of which some are shown
    """
    names = [str(name) for name in ids]
    if not names:
        return
    if allow_missing:
        note(f"{len(names)} {what}, left out: {_first(names, 10)}")
        return
    others, known = there
    instead = f"; {others} {shown}" if (shown := _first(islice(known, 4), 3)) else ""
    raise MissingIds(f"{len(names)} {what}: {_first(names, 10)}{instead} (`allow_missing` goes on without them)")


def unlabelled(what: str, n: int, ids: Iterable[object], strict: bool, note: Note) -> None:
    """Say how many recordings have no label and are left out; with `strict`, refuse them and show some ids."""
    if not n:
        return
    if strict:
        raise MissingIds(f"{n:,} {what}: {_first(islice(ids, 4), 3)} (without `strict` they are left out)")
    note(f"{n:,} {what}, and are left out")


def _first(names: Iterable[object], most: int) -> str:
    """List some names, and say whether there are more."""
    listed = [str(name) for name in names]
    return ", ".join(listed[:most]) + ", ..." * (len(listed) > most)
