"""Recordings, the one interface through which everything downstream reads labels and vectors, chunk by chunk.

Recordings in arrays and in chunks are here, those in files in `duoplda.io.recordings`, and shards on a cluster in
`duoplda.engines.dask`. A job that works on recordings anywhere uses `map` or `reduce`, which run a function on this
machine or on the workers that have the parts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.arrays import Array, check_index, check_rows, to_numpy
from duoplda.data.labels import Ints, Labels, as_ids, encode
from duoplda.errors import DuopldaError, some

# Rows of a chunk, the same for all sources: sums over other chunks would differ in the last bits. 4,096 vectors of 192
# numbers take 6 MB, which stay in the caches of most processors.
ROWS = 4096

# The functions that `Recordings.reduce` calls. It hands on what they return without looking at it.
Make = Callable[["Recordings"], tuple[Sequence[Any], Sequence[Any]]]
Join = Callable[[list[Any]], Any]
Tie = Callable[[Any], Sequence[Any]]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some of the recordings: their vectors, and which of all recordings they are.

    >>> chunk = next(Recordings.from_arrays(np.eye(3), ids=["a", "b", "c"]).chunks(rows=2))
    >>> chunk.X.shape, chunk.names.tolist()
    ((2, 3), ['a', 'b'])
    """

    X: Array  # (k, d)
    index: slice | Ints  # their places among the labels of all recordings
    ids: NDArray[Any] | None = None  # (k,) their names, or None where they have none or these were not asked for

    @property
    def names(self) -> NDArray[Any]:
        """The ids (k,), or the places of the recordings where there are none."""
        return places_of(self.index) if self.ids is None else self.ids


def places_of(index: slice | Ints) -> Ints:
    """Return the places of a chunk's recordings as an array, also where they are a slice."""
    return np.arange(index.start, index.stop) if isinstance(index, slice) else index


class Recordings(ABC):
    """N recordings: who speaks in them, and their vectors, which can be read any number of times, chunk by chunk.

    Examples
    --------
    >>> import numpy as np
    >>> recordings = Recordings.from_arrays(np.eye(3), ["a", "a", "b"], ["s1", "s1", "s2"])
    >>> recordings.labels().speaker_ids.tolist(), [chunk.X.shape for chunk in recordings.chunks(rows=2)]
    (['a', 'b'], [(2, 3), (1, 3)])
    """

    buckets = 1  # the number of groups in which `reduce` joins loose ends, so that no task holds all of them
    may_have_kinds = True  # whether the labels may name several kinds of channels, as far as is known before a pass

    @abstractmethod
    def labels(self) -> Labels:
        """Return the labels of all recordings; `Chunk.index` says which of them a chunk has."""

    @property
    def known(self) -> str:
        """What the labels say of the recordings: "speakers", "sessions" or "nothing"."""
        return self.labels().known

    @abstractmethod
    def chunks(self, rows: int = ROWS) -> Iterator[Chunk]:
        """Yield the recordings in chunks of `rows`; the last chunk may be shorter."""

    def forget(self) -> None:
        """Free the memory that only reading needs, when the recordings will not be read again."""
        return

    def vectors(self, rows: int = ROWS) -> Iterator[Chunk]:
        """Yield the same chunks for a caller who needs no ids and changes no vector, as this can be faster."""
        return self.chunks(rows)

    def map(self, function: Callable[[Recordings], Iterable[Any]]) -> Iterator[Any]:
        """Yield what `function(part)` yields for each part of the recordings, in order. Here there is one part."""
        yield from function(self)

    def spread(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """Yield `function(item)` for each of the items, in order, computed on the machines that read the recordings."""
        return map(function, items)

    def reduce(self, make: Make, join: Join, tie: Tie, n: int = 1) -> list[Any]:
        """Add something up over all parts of the recordings, and return n results.

        `make(part)` returns n results, which `join` adds to those of other parts, and loose ends, such as sessions that
        may go on in other parts. There are as many loose ends for each part, or none. They are joined over all parts
        first; then `tie` makes n further results of each.
        """
        results, loose = make(self)
        tied = [tie(end) for end in loose]
        return [join(list(pieces)) for pieces in zip(results, *tied, strict=True)]

    @staticmethod
    def from_arrays(
        X: ArrayLike,
        speaker: ArrayLike | None = None,
        session: ArrayLike | None = None,
        channel: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        *,
        occasion: ArrayLike | None = None,
    ) -> ArrayRecordings:
        """Return recordings `X` (N, d) in memory with their labels (N,), as far as these are known.

        None says that nobody labelled this level: `speaker=None` with sessions means sessions of unknown speakers.
        Recordings that are known to be of different speakers need different names of speakers. The `occasion` is the
        day, the call or the file that a session is of.
        """
        return ArrayRecordings(X, speaker, session, channel, ids, occasion=occasion)

    @staticmethod
    def from_chunks(
        chunks: Callable[[], Iterable[ArrayLike]],
        speaker: ArrayLike | None = None,
        session: ArrayLike | None = None,
        channel: ArrayLike | None = None,
        *,
        occasion: ArrayLike | None = None,
    ) -> ChunkRecordings:
        """Return recordings whose vectors `chunks()` yields anew at each call, as matrices of rows.

        Labels are in the order of the rows, and given as far as they are known. Without labels, the number of rows need
        not be known.
        """
        unlabelled = all(label is None for label in (speaker, session, channel, occasion))
        labels = None if unlabelled else encode(speaker, session, channel, occasion=occasion)
        return ChunkRecordings(chunks, labels)

    @staticmethod
    def from_frame(
        frame: Any,
        speaker: str | None = "speaker",
        session: str | None = "session",
        channel: str | None = None,
        vectors: str | Sequence[str] = "embedding",
        *,
        occasion: str | None = None,
    ) -> ArrayRecordings:
        """Return the rows of a pandas data frame; `vectors` names a column of lists, or several columns of numbers.

        The other arguments name columns of labels, and are None where there is no such column.
        """
        names = {"speaker": speaker, "session": session, "channel": channel, "occasion": occasion}
        columns_of(frame, *names.values(), vectors)
        labels = {what: None if name is None else frame[name].to_numpy() for what, name in names.items()}
        if not isinstance(vectors, str):
            return ArrayRecordings(frame[list(vectors)].to_numpy(), **labels)
        if frame[vectors].dtype == "string":
            remedy = "before the data frame is made, dask.config.set({'dataframe.convert-string': False}) keeps lists"
            raise DuopldaError(f"column {vectors} holds text, not lists: {remedy}")
        try:
            rows = np.stack([np.asarray(v, np.float64) for v in frame[vectors]])
        except (TypeError, ValueError) as error:
            raise DuopldaError(f"column {vectors}: vectors of one length are needed ({error})") from None
        return ArrayRecordings(rows, **labels)


class ArrayRecordings(Recordings):
    """A matrix in memory, of NumPy or of another array library, with labels as the user gave them or as `Labels`."""

    def __init__(
        self,
        X: ArrayLike,
        speaker: ArrayLike | None = None,
        session: ArrayLike | None = None,
        channel: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        labels: Labels | None = None,
        *,
        occasion: ArrayLike | None = None,
    ):
        check_index(X=X, speaker=speaker, session=session, channel=channel, ids=ids, occasion=occasion)
        self.X = check_rows(X)[0]
        self._given = (speaker, session, channel)
        self._occasion = occasion
        self.ids = None if ids is None else as_ids(ids, "recording", self.X.shape[0])
        self._labels = labels

    @property
    def may_have_kinds(self) -> bool:  # type: ignore[override]
        """Says whether the labels name several kinds of channels."""
        return (self._labels is not None or self._given[2] is not None) and len(self.labels(self.X).kinds) > 1

    def labels(self, like: Array = None) -> Labels:
        """Return the labels; the first call encodes them, on the device of `like`."""
        if self._labels is None:
            self._labels = encode(*self._given, self.X.shape[0], like, occasion=self._occasion)
        return self._labels

    def chunks(self, rows: int = ROWS) -> Iterator[Chunk]:
        for i in range(0, self.X.shape[0], rows):
            part = slice(i, min(i + rows, self.X.shape[0]))
            yield Chunk(self.X[part, ...], part, None if self.ids is None else self.ids[part])


class ChunkRecordings(Recordings):
    """Recordings whose vectors a function of the user yields as matrices of rows."""

    def __init__(self, chunks: Callable[[], Iterable[ArrayLike]], labels: Labels | None):
        if not callable(chunks):
            raise DuopldaError("chunks must be a function that gives the matrices anew at each call, not an iterator")
        self._chunks = chunks
        self._labels = labels

    def labels(self) -> Labels:
        if self._labels is None:
            raise DuopldaError("these recordings have no labels: give the speaker of each, or at least the session")
        return self._labels

    @property
    def known(self) -> str:
        return "nothing" if self._labels is None else self._labels.known

    def chunks(self, rows: int = ROWS) -> Iterator[Chunk]:
        start = 0
        n = None if self._labels is None else self._labels.n_recordings
        d = None
        for matrix in self._chunks():
            X = check_rows(matrix)[0]
            d = X.shape[1] if d is None else d
            end = start + X.shape[0]
            if X.shape[1] != d:
                raise DuopldaError(f"a chunk that begins at row {start} has {X.shape[1]} columns, the first had {d}")
            if n is not None and end > n:
                raise DuopldaError(f"the chunks bring more rows than the {n} that have labels")
            yield Chunk(X, slice(start, end))
            start = end
        if n is not None and start < n:
            raise DuopldaError(f"the chunks brought {start} rows, {n} have labels")


class Relabelled(Recordings):
    """Recordings whose sessions are given other speakers, such as the clusters that they were put into."""

    def __init__(self, recordings: Recordings, sessions: NDArray[Any], speakers: NDArray[Any]):
        """Take the sorted names of all `sessions` (H,) and the new speaker of each of them (H,)."""
        self.recordings = recordings
        self.sessions = sessions
        self.speakers = speakers
        self._labels: Labels | None = None

    @property
    def sizes(self) -> Ints:
        """(M,) the number of sessions of each of these speakers."""
        return np.unique(self.speakers, return_counts=True)[1]

    buckets = property(lambda self: self.recordings.buckets)
    may_have_kinds = property(lambda self: self.recordings.may_have_kinds)

    def labels(self) -> Labels:
        if self._labels is None:
            labels = self.recordings.labels()
            if labels.session_ids is None:
                raise DuopldaError(
                    "the sessions have no names, by which they are put into clusters: label the sessions"
                )
            # A session without any recording has no new speaker. It gets that of a neighbour, to which it adds nothing.
            place = np.searchsorted(self.sessions, labels.session_ids).clip(max=len(self.sessions) - 1)
            speakers = self.speakers[place]
            speaker_ids, speaker = np.unique(speakers, return_inverse=True)  # of sessions, which are fewer
            session = to_numpy(labels.session)
            self._labels = replace(labels, speaker_ids=speaker_ids, speaker=speaker.reshape(-1)[session])
        return self._labels

    def chunks(self, rows: int = ROWS) -> Iterator[Chunk]:
        return self.recordings.chunks(rows)

    def vectors(self, rows: int = ROWS) -> Iterator[Chunk]:
        return self.recordings.vectors(rows)

    def map(self, function: Callable[[Recordings], Iterable[Any]]) -> Iterator[Any]:
        """Do what `map` of the recordings themselves does."""
        return self.recordings.map(partial(self._part, function))

    def reduce(self, make: Make, join: Join, tie: Tie, n: int = 1) -> list[Any]:
        """Do what `reduce` of the recordings themselves does."""
        return self.recordings.reduce(partial(self._part, make), join, tie, n)

    def __getstate__(self) -> dict[str, Any]:
        # A worker opens its part of the recordings itself.
        return {"recordings": None, "sessions": self.sessions, "speakers": self.speakers, "_labels": None}

    def _part(self, function: Callable[[Recordings], Any], part: Recordings) -> Any:
        return function(Relabelled(part, self.sessions, self.speakers))


def columns_of(frame: Any, *wanted: str | Sequence[str] | None) -> list[str]:
    """Return the names of the wanted columns as one list; a data frame must have them all."""
    names = [n for w in wanted if w is not None for n in ([w] if isinstance(w, str) else w)]
    absent = [name for name in names if name not in frame.columns]
    if absent:
        raise DuopldaError(f"the data frame has no column {some(absent)}: it has {some(frame.columns)}")
    return names


def as_recordings(
    X: ArrayLike | Recordings,
    speaker: ArrayLike | None = None,
    session: ArrayLike | None = None,
    channel: ArrayLike | None = None,
    occasion: ArrayLike | None = None,
) -> Recordings:
    """Return recordings as they are, and make recordings of arrays.

    >>> recordings = as_recordings(np.eye(2), ["a", "b"])
    >>> as_recordings(recordings) is recordings
    True
    """
    if not isinstance(X, Recordings):
        return Recordings.from_arrays(X, speaker, session, channel, occasion=occasion)
    if any(label is not None for label in (speaker, session, channel, occasion)):
        raise DuopldaError("recordings bring their own labels: leave out speaker, session, channel and occasion")
    return X
