"""The recordings of a side or of the population in memory, in an order that is independent of that of the input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import to_numpy
from duoplda.data import Recordings
from duoplda.data.labels import Ints
from duoplda.errors import DuopldaError, error_prefix, some


@dataclass(frozen=True, eq=False)
class Material:
    """Recordings with their labels as texts, sorted by speaker, session, kind and vector.

    Kinds and occasions are None where nobody labelled them. Without labels of sessions, each recording is a session of
    its own, and its id names it.
    """

    X: NDArray[Any]  # (N, d)
    ids: NDArray[np.str_]
    speaker: NDArray[np.str_]  # "" where speakers are not named, as on the two sides of a case
    session: NDArray[np.str_]
    kind: NDArray[np.str_] | None
    occasion: NDArray[np.str_] | None

    @classmethod
    def of(cls, recordings: Recordings, name: str) -> Material:
        """Read all recordings, once; `name` says in errors which recordings they are."""
        with error_prefix(name):
            labels = recordings.labels()
            n = labels.n_recordings
            chunks = list(recordings.chunks())
            if not sum(chunk.X.shape[0] for chunk in chunks):
                raise DuopldaError("there are no recordings: give at least one")
            place = np.concatenate([np.arange(n)[chunk.index] for chunk in chunks])
            X = np.concatenate([to_numpy(chunk.X) for chunk in chunks])
            ids = np.concatenate([chunk.names.astype(str) for chunk in chunks])
            wrong = np.flatnonzero(~np.isfinite(X).all(axis=1))
            if len(wrong):
                raise DuopldaError(f"NaN or infinity in the vectors of {some(ids[wrong], 5)}: leave these out")
        levels = labels.rows(place).filled
        people = np.full(len(X), "") if labels.speaker is None else _texts(levels.speaker_ids, levels.speaker)
        named = labels.session is not None and levels.session_ids is not None
        session = _texts(levels.session_ids, levels.session) if named else ids
        kinds = None if levels.kinds.tolist() == [""] else _texts(levels.kinds, levels.kind)
        occasion = None if levels.occasion is None else _texts(levels.occasion_ids, levels.occasion)
        keys = (X[:, min(1, X.shape[1] - 1)], X[:, 0], people if kinds is None else kinds, session, people)
        order = np.lexsort(keys)
        material = cls(X, ids, people, session, kinds, occasion)
        return material.rows(order)

    def __len__(self) -> int:
        return len(self.X)

    def rows(self, index: NDArray[Any]) -> Material:
        """Return some of the recordings."""
        kind = None if self.kind is None else self.kind[index]
        occasion = None if self.occasion is None else self.occasion[index]
        return Material(self.X[index], self.ids[index], self.speaker[index], self.session[index], kind, occasion)

    def without_kinds(self) -> Material:
        """Return the same recordings without labels of kinds."""
        return Material(self.X, self.ids, self.speaker, self.session, None, self.occasion)

    @cached_property
    def sessions(self) -> tuple[NDArray[np.str_], Ints]:
        """The sorted names of the sessions (H,), and for each recording (N,) the place of its session among them."""
        names, index = np.unique(self.session, return_inverse=True)
        return names, index.reshape(-1)

    @cached_property
    def speakers(self) -> NDArray[np.str_]:
        """The sorted names of the speakers (M,)."""
        return np.unique(self.speaker)

    def of_speaker(self, name: str) -> Ints:
        """Return the rows of a speaker's recordings."""
        return np.flatnonzero(self.speaker == name)

    def recordings(self, index: NDArray[Any] | None = None) -> Recordings:
        """Return the recordings, or some of them, with all their labels, as models read them."""
        part = self if index is None else self.rows(index)
        speaker = None if not part.speaker.any() else part.speaker
        return Recordings.from_arrays(part.X, speaker, part.session, part.kind, part.ids, occasion=part.occasion)


def same_vectors(first: NDArray[Any], second: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yield pairs of rows, one of `first` (n, d) and one of `second` (m, d), that are the very same vector.

    Different recordings do not have the same embedding to the last bit, so these are one recording under two ids.
    """
    rows: dict[bytes, int] = {}
    for i, vector in enumerate(np.asarray(first, np.float64)):
        rows.setdefault(vector.tobytes(), i)
    for j, vector in enumerate(np.asarray(second, np.float64)):
        row = rows.get(vector.tobytes())
        if row is not None:
            yield row, j


def _texts(names: Any, index: Any) -> NDArray[np.str_]:
    """The names at some places, as texts."""
    return np.asarray(names)[to_numpy(index)].astype(str)
