"""The one door: whatever holds recordings gives their labels, and their vectors in chunks.

Arrays and chunks are below; files are in `duoplda.io`, shards on a cluster in `duoplda.engines`. Everything that reads
recordings does so by `map` or `reduce`, which run a function on this machine, or wherever the parts lie.
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

# Rows of a chunk. All sources have the same number, since sums of other chunks would differ in the last bits; 4,096
# vectors of 192 numbers are 6 MB, which stay in the caches of most processors.
ROWS = 4096

# Functions of `Recordings.reduce`: what they give and take is their own affair.
Make = Callable[["Recordings"], tuple[Sequence[Any], Sequence[Any]]]
Join = Callable[[list[Any]], Any]
Tie = Callable[[Any], Sequence[Any]]


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some recordings on their way.

    >>> chunk = next(Recordings.from_arrays(np.eye(3), ids=["a", "b", "c"]).chunks(rows=2))
    >>> chunk.X.shape, chunk.names.tolist()
    ((2, 3), ['a', 'b'])
    """

    X: Array  # (k, d)
    index: slice | Ints  # their places among the labels of all recordings
    ids: NDArray[Any] | None = None  # (k,) their names, where they have any

    @property
    def names(self) -> NDArray[Any]:
        """(k,) their ids, or their places where they have none."""
        return places_of(self.index) if self.ids is None else self.ids


def places_of(index: slice | Ints) -> Ints:
    """The places of a chunk's recordings, one by one."""
    return np.arange(index.start, index.stop) if isinstance(index, slice) else index


class Recordings(ABC):
    """N recordings: who speaks in them, and their vectors, read as often as one likes, one chunk at a time.

    Examples
    --------
    >>> import numpy as np
    >>> recordings = Recordings.from_arrays(np.eye(3), ["a", "a", "b"], ["s1", "s1", "s2"])
    >>> recordings.labels().speaker_ids.tolist(), [chunk.X.shape for chunk in recordings.chunks(rows=2)]
    (['a', 'b'], [(2, 3), (1, 3)])
    """

    buckets = 1  # into which open sessions are divided, where they are many
    may_have_kinds = True  # whether the labels may name several kinds of channels, as far as is known before a pass

    @abstractmethod
    def labels(self) -> Labels:
        """The labels of all recordings; chunks say which of them they bring."""

    @property
    def known(self) -> str:
        """What the labels say of the recordings: "speakers", "sessions" or "nothing"."""
        return self.labels().known

    @abstractmethod
    def chunks(self, rows: int = ROWS) -> Iterator[Chunk]:
        """The recordings, in chunks of `rows` (the last one is shorter)."""

    def forget(self) -> None:
        """Give back what only the reading of recordings needs, once they will not be read again."""
        return

    def vectors(self, rows: int = ROWS) -> Iterator[Chunk]:
        """The same chunks for those who need no ids and change no vector: ids may lack where they take time to read."""
        return self.chunks(rows)

    def map(self, function: Callable[[Recordings], Iterable[Any]]) -> Iterator[Any]:
        """What `function(part)` yields for each part of the recordings, in order; here all of them are one part."""
        yield from function(self)

    def spread(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """What `function(item)` gives for each of some items, in order, computed where the recordings lie."""
        return map(function, items)

    def reduce(self, make: Make, join: Join, tie: Tie, n: int = 1) -> list[Any]:
        """Add something up over all parts of the recordings: n results.

        `make(part)` gives n results that can be joined at once, and loose ends (as many for each part, or none) that
        must first be joined over all parts; `tie` then makes n further results of each.
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
        """Recordings `X` (N, d) in memory with their labels (N,), as far as these are known.

        None says that nobody labelled them: `speaker=None` with sessions is "sessions of unknown speakers". To be taken
        for recordings of different speakers, they need different names of speakers. The `occasion` is the day, the call
        or the file that sessions are of.
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
        """Recordings that `chunks()` brings anew at each call as matrices of rows, with labels in their order.

        Labels are given as far as they are known; without any, the recordings may be of any number.
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
        """Rows of a pandas data frame; `vectors` is a column of lists, or several columns of numbers.

        The other arguments name columns of labels; None: there is no such column.
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
    """A matrix in memory, of NumPy or of another array library; its labels as they are, or as integers already."""

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
        """Whether the labels name several kinds of channels."""
        return (self._labels is not None or self._given[2] is not None) and len(self.labels(self.X).kinds) > 1

    def labels(self, like: Array = None) -> Labels:
        """The labels; made when first asked for, on the device of `like`."""
        if self._labels is None:
            self._labels = encode(*self._given, self.X.shape[0], like, occasion=self._occasion)
        return self._labels

    def chunks(self, rows: int = ROWS) -> Iterator[Chunk]:
        for i in range(0, self.X.shape[0], rows):
            part = slice(i, min(i + rows, self.X.shape[0]))
            yield Chunk(self.X[part, ...], part, None if self.ids is None else self.ids[part])


class ChunkRecordings(Recordings):
    """Matrices of rows that come one after another."""

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
    """Recordings whose named sessions are said to be of other speakers."""

    def __init__(self, recordings: Recordings, sessions: NDArray[Any], speakers: NDArray[Any]):
        """The sorted names of all `sessions` (H,), and their `speakers` (H,)."""
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
            # A session of which no recording has come has no cluster, and adds nothing to whichever it is put into.
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
        """As for the recordings themselves, wherever they lie."""
        return self.recordings.map(partial(self._part, function))

    def reduce(self, make: Make, join: Join, tie: Tie, n: int = 1) -> list[Any]:
        """As for the recordings themselves, wherever they lie."""
        return self.recordings.reduce(partial(self._part, make), join, tie, n)

    def __getstate__(self) -> dict[str, Any]:
        # A worker has a part of the recordings of its own.
        return {"recordings": None, "sessions": self.sessions, "speakers": self.speakers, "_labels": None}

    def _part(self, function: Callable[[Recordings], Any], part: Recordings) -> Any:
        return function(Relabelled(part, self.sessions, self.speakers))


def columns_of(frame: Any, *wanted: str | Sequence[str] | None) -> list[str]:
    """The names of the columns that are wanted; a data frame must have them all."""
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
    """Recordings as they are, or the arrays that stand for them.

    >>> recordings = as_recordings(np.eye(2), ["a", "b"])
    >>> as_recordings(recordings) is recordings
    True
    """
    if not isinstance(X, Recordings):
        return Recordings.from_arrays(X, speaker, session, channel, occasion=occasion)
    if any(label is not None for label in (speaker, session, channel, occasion)):
        raise DuopldaError("recordings bring their own labels: leave out speaker, session, channel and occasion")
    return X
