"""Recordings in files: embeddings in chunks, and the labels that a list or a table gives their ids."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.data.labels import Ints, Labels, encode, places
from duoplda.data.recordings import ROWS, Chunk, Recordings
from duoplda.errors import DuopldaError, MissingIds, some
from duoplda.io._files import files_of
from duoplda.io.common import PathLike
from duoplda.io.embeddings import Embeddings, read_embeddings
from duoplda.io.ids import IdList
from duoplda.io.labels import LabelColumns
from duoplda.io.shards import Shard, embedding_shards

Progress = Callable[[int, str], Any]  # called with what is done, and a note for people
Note = Callable[[str], Any]
# Ids, if they were read, vectors, and places among the labels.
Read = tuple[NDArray[Any] | None, NDArray[Any], Ints]


@dataclass(frozen=True, eq=False)
class LabelIndex:
    """Labels as integers, and the ids by which recordings find theirs."""

    ids: NDArray[Any]  # (N,) sorted
    order: NDArray[np.int32]  # (N,) the rows of the labels that they stand for
    labels: Labels

    @staticmethod
    def of(table: LabelColumns, note: Note = lambda message: None) -> LabelIndex:
        """Index a table by its ids."""
        order = np.argsort(table.ids, kind="stable").astype(np.int32)
        return LabelIndex(table.ids[order], order, coded(table, note))

    def find(self, ids: NDArray[Any]) -> NDArray[np.int32]:
        """The row of the labels for each id, -1 where it has none."""
        place = places(ids, self.ids).astype(np.int32)
        place[place >= 0] = self.order[place[place >= 0]]
        return place

    def absent(self, rows: NDArray[Any]) -> NDArray[Any]:
        """The ids, sorted, whose rows are not among those given."""
        seen = np.zeros(len(self.ids), bool)
        seen[rows] = True
        return self.ids[~seen[self.order]]


def coded(table: LabelColumns, note: Note = lambda message: None) -> Labels:
    """The labels of a table, in which the name of a session counts within its speaker: two speakers may use the same.

    Where speakers are not known, names of sessions stay as they are.
    """
    labels = encode(table.speaker, table.session, table.channel, by_speaker=True)
    if table.speaker is None:
        return labels
    if table.session is None:
        note("no sessions given: each recording is taken for a session of its own")
        return labels
    row = np.empty(labels.n_sessions, np.int64)
    row[labels.session] = np.arange(len(table))  # one of each session
    if len(np.unique(table.session[row])) < labels.n_sessions:
        note("names of sessions repeat from speaker to speaker: each speaker's are taken for their own")
    return labels


def refuse_absent(ids: NDArray[Any], allow_missing: bool, note: Note) -> None:
    """Labelled recordings without an embedding are an error, or are left out where that is allowed."""
    if not len(ids):
        return
    said = f"{len(ids)} labelled recordings have no embedding"
    shown = ", ".join(map(str, ids[:10])) + ", ..." * (len(ids) > 10)
    if not allow_missing:
        raise MissingIds(f"{said}: {shown} (--allow-missing, or allow_missing=True, goes on without them)")
    note(f"{said}, left out: {shown}")


class Digest(ThreadPoolExecutor):
    """SHA-256 of ids and vectors, however they are cut into chunks; a thread of its own does the work."""

    def __init__(self) -> None:
        super().__init__(1)
        self._ids = hashlib.sha256()
        self._vectors = hashlib.sha256()
        self._last = self.submit(self._update, np.zeros(0), np.zeros(0))

    def add(self, ids: NDArray[Any], X: NDArray[Any]) -> None:
        """Either may be empty: ids and vectors need not come together."""
        self._last.result()
        self._last = self.submit(self._update, ids, X)

    def _update(self, ids: NDArray[Any], X: NDArray[Any]) -> None:
        self._ids.update("".join([f"{i}\n" for i in ids.tolist()]).encode())
        self._vectors.update(np.ascontiguousarray(X, X.dtype.newbyteorder("<")).data)

    def value(self) -> str:
        self._last.result()
        return "sha256:" + hashlib.sha256(self._ids.digest() + self._vectors.digest()).hexdigest()


@dataclass(eq=False, repr=False)
class FileRecordings(Recordings):
    """Embeddings in one or more files, read in chunks. With labels, only labelled recordings come.

    >>> import tempfile
    >>> import numpy as np
    >>> from duoplda.io import LabelColumns, write_embeddings
    >>> labels = LabelColumns(np.array(["a", "b"]), np.array(["ann", "bob"]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_embeddings(folder + "/x.npz", ["a", "b", "c"], np.eye(3))
    ...     recordings = read_recordings(folder + "/x.npz", labels, allow_missing=True)
    ...     [chunk.ids.tolist() for chunk in recordings.chunks()]
    [['a', 'b']]
    """

    source: Embeddings
    index: LabelIndex | None = None
    allow_missing: bool = False
    note: Note = lambda message: None
    show: Progress = lambda done, message: None
    digest: str | None = None  # SHA-256 of ids and vectors, whatever the format; known after a pass, if `hashed`
    hashed: bool | None = None  # None: recordings with labels are
    beside: tuple[NDArray[Any], Labels] | None = None  # instead of an index: ids and labels of all vectors, in order

    def __post_init__(self) -> None:
        self._labels = None if self.index is None else self.index.labels
        self._rows: NDArray[np.int32] | None = None  # of the labels, for each vector of the files
        self._ids = np.zeros(0, "U1")  # of all vectors, until they are hashed
        if self.beside is not None:
            self._ids, self._labels = self.beside
            self._rows = np.arange(len(self._ids), dtype=np.int32)
            self.beside = None
        self.hashed = self._labels is not None if self.hashed is None else self.hashed

    def labels(self) -> Labels:
        if self._labels is None:
            raise DuopldaError(f"{self.source.path}: these recordings have no labels; give a list or a table of them")
        return self._labels

    @property
    def known(self) -> str:
        return "nothing" if self._labels is None else self._labels.known

    def forget(self) -> None:
        """Let go of the labels, tens of megabytes for a million recordings, when these will not be read again."""
        self._labels = self.index = self._rows = None
        self._ids = self._ids[:0].copy()

    def chunks(self, rows: int = ROWS) -> Iterator[Chunk]:
        """Chunks of exactly `rows` recordings, whatever those of the format are; the last one is shorter."""
        return self._cut(rows, named=True)

    def vectors(self, rows: int = ROWS) -> Iterator[Chunk]:
        """The same chunks, which may be read-only. Ids are read only while it is not known whose the vectors are."""
        return self._cut(rows, named=self._rows is None)

    def _cut(self, rows: int, named: bool) -> Iterator[Chunk]:
        held: list[Read] = []
        n = 0
        for block in self._used(named):
            held.append(block)
            n += len(block[1])
            if n >= rows:
                ids, X, index = _joined(held)
                cut = n - n % rows
                n = n % rows
                for first in range(0, cut, rows):
                    part = slice(first, first + rows)
                    yield Chunk(X[part], index[part], None if ids is None else ids[part])
                held = [(None if ids is None else ids[cut:], X[cut:], index[cut:])] if n else []
        if n:
            ids, X, index = _joined(held)
            yield Chunk(X, index, ids)

    def _used(self, named: bool) -> Iterator[Read]:
        """The recordings that are used, as the files bring them."""
        rows = []
        read = 0
        blocks: Any = self.source.chunks(ROWS) if named else ((None, X) for X in self.source.vectors(ROWS))
        with Digest() if self.digest is None and self.hashed else nullcontext() as digest:
            if digest is not None and not named:
                digest.add(self._ids, np.zeros(0))
            for ids, X in blocks:
                if digest is not None:
                    digest.add(np.zeros(0) if ids is None else ids, X)
                index: Any = np.arange(read, read + len(X))
                if self._rows is not None:
                    index = self._rows[read : read + len(X)]
                elif self.index is not None:
                    index = self.index.find(ids)
                    rows.append(index)
                read += len(X)
                self.show(read, f"{read:,} vectors")
                keep = index >= 0
                if keep.all():
                    yield ids, X, index
                elif keep.any():
                    yield None if ids is None else ids[keep], X[keep], index[keep]
            if digest is not None:
                self.digest = digest.value()
                self._ids = self._ids[:0].copy()  # a million ids are tens of megabytes
        if rows:
            self._keep(np.concatenate(rows))

    def _keep(self, rows: NDArray[np.int32]) -> None:
        """What the first pass has found, so that the next one need not look ids up."""
        assert self.index is not None
        self._rows = rows
        used = rows >= 0
        refuse_absent(self.index.absent(rows[used]), self.allow_missing, self.note)
        if not used.all():
            self.note(f"{(~used).sum():,} embeddings have no label, and are not used")
        if not used.any():
            raise DuopldaError(f"{self.source.path}: none of its ids has a label")
        self.index = None  # which has all ids, too


def _joined(parts: list[Read]) -> Read:
    if len(parts) == 1:
        return parts[0]
    ids, X, index = zip(*parts, strict=True)
    return None if ids[0] is None else np.concatenate(ids), np.concatenate(X), np.concatenate(index)


def read_recordings(
    path: PathLike,
    labels: LabelColumns | None = None,
    *,
    ids: IdList = None,
    vectors: str | None = None,
    ids_name: str | None = None,
    own_labels: bool = False,
    allow_missing: bool = False,
    note: Note = lambda message: None,
    show: Progress = lambda done, message: None,
    hashed: bool | None = None,
) -> FileRecordings:
    """Open recordings in files, as training, scoring and clustering read them.

    Parameters
    ----------
    path, ids, vectors, ids_name : as for `read_embeddings`
    labels : what `read_labels` returns, or None for recordings without labels, such as the tests of trials
    own_labels : whether the files (Parquet) have the labels in columns of their own
    allow_missing : go on without labelled recordings that have no embedding; otherwise they are an error
    note, show : functions that get messages for people, and (number of vectors, message) as vectors are read
    hashed : whether the first pass computes the `digest` of the recordings; None does so if they have labels

    Example
    -------
    >>> import tempfile
    >>> from duoplda.io import LabelColumns, write_embeddings
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_embeddings(folder + "/x.ark", ["a", "b"], np.eye(2, 3))
    ...     table = LabelColumns(np.array(["b", "a"]), np.array(["bob", "alice"]))
    ...     for chunk in read_recordings(folder + "/x.ark", table).chunks():
    ...         print(chunk.ids, chunk.index, chunk.X.shape)
    ['a' 'b'] [1 0] (2, 3)
    """
    source = read_embeddings(path, ids, vectors=vectors, ids_name=ids_name)
    beside = None
    index = None if labels is None or own_labels else LabelIndex.of(labels, note)
    if own_labels:
        most = 1 << 62  # bytes, which no file has: one shard for each file
        table = own_table(embedding_shards(path, ids, vectors=vectors, ids_name=ids_name, bytes_each=most))
        beside = source.check_ids(table.ids), coded(table, note)
    return FileRecordings(source, index, allow_missing, note, show, hashed=hashed, beside=beside)


def own_table(shards: list[Shard]) -> LabelColumns:
    """Read labels that are columns of the embeddings themselves; no vector is read for them."""
    parts = [shard.labels() for shard in shards]
    columns: dict[str, Any] = {}
    for name in ("ids", "speaker", "session", "channel"):
        values = [getattr(part, name) for part in parts]
        lack = [s.name for s, v in zip(shards, values, strict=True) if v is None]
        if 0 < len(lack) < len(parts):
            raise DuopldaError(f"some of the files have a column of the {name}, and some have none: {some(lack, 4)}")
        columns[name] = None if lack else values[0] if len(values) == 1 else np.concatenate(values)
    return LabelColumns(**columns)


def source_files(path: PathLike) -> list[Path]:
    """The files that are read for embeddings: those of a folder or pattern, and the archives that an scp names.

    >>> import tempfile
    >>> import numpy as np
    >>> from duoplda.io import write_embeddings
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_embeddings(folder + "/x.scp", ["a"], np.eye(1))
    ...     [path.name for path in source_files(folder + "/x.scp")]
    ['x.scp', 'x.ark']
    """
    out: list[Path] = []
    for file in map(Path, files_of(path)):
        out.append(file)
        if file.suffix.lower() == ".scp" and file.is_file():
            with open(file, encoding="utf-8", errors="replace") as lines:
                fields = (line.split(None, 1) for line in lines)
                archives = {parts[1].strip().rpartition(":")[0] for parts in fields if len(parts) == 2}
            places = [place for name in sorted(archives) if name for place in (Path(name), file.parent / name)]
            out += filter(Path.is_file, places)
    return list(dict.fromkeys(out))  # an absolute path has come twice
