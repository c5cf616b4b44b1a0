"""Recordings in files: embeddings in chunks, joined by their ids with the labels of a list or a table.

The formats are read in `duoplda.io.embeddings` and `duoplda.io.labels`; parts of files on a cluster are in
`duoplda.engines.dask`.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from duoplda.data.labels import Labels, encode, places
from duoplda.data.recordings import ROWS, Chunk, Recordings
from duoplda.errors import DuopldaError, MissingIds, some
from duoplda.io.common import PathLike, bad, held, listed, open_lines, plain_name
from duoplda.io.embeddings import Embeddings, files_of, read_embeddings
from duoplda.io.ids import IdList
from duoplda.io.labels import LabelColumns, read_own_labels

Note = Callable[[str], object]  # called with a message for people
Progress = Callable[[int, str], object]  # called with the number of vectors read so far, and a message for people
LabelledBlock = tuple[np.ndarray | None, np.ndarray, np.ndarray]  # ids, if they were read, vectors, rows of the labels


@dataclass(frozen=True, eq=False)
class LabelIndex:
    """Labels as integers, and the sorted ids by which the labels of a recording are found."""

    ids: np.ndarray  # (N,) of str, sorted
    order: np.ndarray  # (N,) int32, the row of the labels for each of them
    labels: Labels

    @staticmethod
    def of(table: LabelColumns, note: Note = lambda message: None) -> LabelIndex:
        """Index a table by its ids."""
        order = np.argsort(table.ids, kind="stable").astype(np.int32)
        return LabelIndex(table.ids[order], order, encoded_labels(table, note))

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Return the row of the labels for each id, as int32; it is -1 where an id has no label."""
        place = places(ids, self.ids).astype(np.int32)
        place[place >= 0] = self.order[place[place >= 0]]
        return place

    def absent(self, rows: np.ndarray) -> np.ndarray:
        """Return the ids, sorted, whose rows of the labels are not among `rows`."""
        seen = np.zeros(len(self.ids), bool)
        seen[rows] = True
        return self.ids[~seen[self.order]]


def encoded_labels(table: LabelColumns, note: Note = lambda message: None) -> Labels:
    """Return the labels of a table as integers; `note` gets messages on how the table was read.

    If two speakers of a table have a session of the same name, these are two sessions. Where speakers are not known, a
    name is one session.
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
    what : the rest of the sentence that begins with their number, such as "test recordings have no embedding"
    ids : the missing ids
    there : the beginning of a sentence, such as "the embeddings have", and ids that are there, a few of which are shown
    """
    names = [str(name) for name in ids]
    if not names:
        return
    if allow_missing:
        note(f"{len(names)} {what}, left out: {listed(names)}")
        return
    others, known = there
    some_known = [str(name) for name in islice(known, 4)]
    instead = f"; {others} {listed(some_known, 3)}" if some_known else ""
    raise MissingIds(f"{len(names)} {what}: {listed(names)}{instead} (`allow_missing` goes on without them)")


def unlabelled(what: str, n: int, ids: Iterable[object], strict: bool, note: Note) -> None:
    """Note how many recordings have no label and are left out; with `strict`, raise an error that shows some ids."""
    if not n:
        return
    if strict:
        shown_ids = listed([str(name) for name in islice(ids, 4)], 3)
        raise MissingIds(f"{n:,} {what}: {shown_ids} (without `strict` they are left out)")
    note(f"{n:,} {what}, and are left out")


class Digest(ThreadPoolExecutor):
    """A hash of ids and vectors that does not depend on the format and the chunks; a thread of its own computes it.

    In messages and reports it is called a fingerprint, as it differs from the `sha256sum` of the file. `states` has the
    hash of all vectors up to the end of each chunk. Given the states of an `earlier` pass, `changed` is the number of
    the first chunk, of those hashed until now, whose vectors are not the same.
    """

    def __init__(self, earlier: list[bytes] | None = None) -> None:
        super().__init__(1)
        self.states: list[bytes] = []
        self.changed: int | None = None
        self._earlier = earlier
        self._ids = hashlib.sha256()
        self._vectors = hashlib.sha256()
        self._last = self.submit(lambda: None)

    def add(self, ids: np.ndarray, X: np.ndarray) -> None:
        """Add ids (k,) and vectors (k, d); either may be empty, as they need not come together."""
        self._last.result()  # only one chunk waits at a time, so that memory stays bounded
        self._last = self.submit(self._update, ids, X)

    def _update(self, ids: np.ndarray, X: np.ndarray) -> None:
        """Add a chunk, in the other thread."""
        self._ids.update("".join([f"{i}\n" for i in ids.tolist()]).encode())
        if not len(X):
            return
        self._vectors.update(np.ascontiguousarray(X, X.dtype.newbyteorder("<")).data)
        self.states.append(self._vectors.copy().digest())
        n = len(self.states)
        if self._earlier is not None and self.changed is None and self._earlier[n - 1 : n] != self.states[-1:]:
            self.changed = n - 1

    def value(self) -> str:
        """Return the digest of all that was added."""
        self._last.result()
        if self._earlier is not None and self.changed is None and len(self.states) < len(self._earlier):
            self.changed = len(self.states)
        return hashlib.sha256(self._ids.digest() + self._vectors.digest()).hexdigest()


class FileRecordings(Recordings):
    """Embeddings in one or more files, read in chunks. If there are labels, only labelled recordings are read.

    `read_recordings` returns such recordings.

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

    def __init__(
        self,
        source: Embeddings,
        labels: LabelIndex | tuple[np.ndarray, Labels] | None,
        allow_missing: bool | None,
        strict: bool,
        note: Note,
        show: Progress,
        hashed: bool | None,
    ):
        """Take the arguments of `read_recordings`; `labels` are an index, or the ids and labels of all vectors."""
        self.source = source
        self.index = labels if isinstance(labels, LabelIndex) else None  # needed until the first pass is over
        self.allow_missing = allow_missing
        self.strict = strict
        self.note = note
        self.show = show
        self.hashed = labels is not None if hashed is None else hashed
        self.digest: str | None = None  # SHA-256 of ids and vectors, whatever the format; known after a hashed pass
        self._states: list[bytes] | None = None  # of the digest, in the first pass
        self._labels = None if self.index is None else self.index.labels
        self._rows: np.ndarray | None = None  # the row of the labels for each vector of the files
        self._ids = np.zeros(0, "U1")  # the ids of all vectors, until they are hashed
        if isinstance(labels, tuple):
            self._ids, self._labels = labels
            self._rows = np.arange(len(self._ids), dtype=np.int32)

    def labels(self) -> Labels:
        if self._labels is None:
            raise DuopldaError(f"{self.source.path}: these recordings have no labels; give a list or a table of them")
        return self._labels

    @property
    def known(self) -> str:
        return "nothing" if self._labels is None else self._labels.known

    def forget(self) -> None:
        """Free the labels, tens of megabytes for a million recordings, when these will not be read again."""
        self._labels = self.index = self._rows = None
        self._ids = self._ids[:0].copy()

    def vectors(self, rows: int = ROWS) -> Iterator[Chunk]:
        """Yield the same chunks, perhaps read-only. Ids are read in the first pass only, to find the labels."""
        return self.chunks(rows, named=self._rows is None)

    def chunks(self, rows: int = ROWS, named: bool = True) -> Iterator[Chunk]:
        """Yield chunks of exactly `rows` recordings, whatever blocks the files have; the last one may be shorter.

        Without `named` ids are not read.
        """
        held: list[LabelledBlock] = []
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

    def _used(self, named: bool) -> Iterator[LabelledBlock]:
        """Yield the recordings that are used, in the blocks of the files."""
        rows = []
        examples: list[str] = []  # a few ids of all vectors, and of those without a label, for messages
        without_label: list[str] = []
        read = 0
        blocks = self.source.chunks(ROWS) if named else ((None, X) for X in self.source.vectors(ROWS))
        starts = []  # the number of the first vector of each block
        with Digest(self._states) if self.hashed else nullcontext() as digest:
            if digest is not None and not named:
                digest.add(self._ids, np.zeros(0))
            for ids, X in blocks:
                starts.append(read)
                if digest is not None:
                    digest.add(np.zeros(0) if ids is None else ids, X)
                    if digest.changed is not None:
                        raise self._changed(starts[digest.changed])
                if self._rows is not None:
                    index = self._rows[read : read + len(X)]
                    if len(index) < len(X):
                        raise self._changed(read)
                elif self.index is not None and ids is not None:
                    index = self.index.find(ids)
                    rows.append(index)
                    examples += ids[: 4 - len(examples)].tolist()
                    without_label += ids[index < 0][: 4 - len(without_label)].tolist()
                else:
                    index = np.arange(read, read + len(X))
                read += len(X)
                self.show(read, f"{read:,} vectors")
                keep = index >= 0
                if keep.all():
                    yield ids, X, index
                elif keep.any():
                    yield None if ids is None else ids[keep], X[keep], index[keep]
            if digest is not None:
                fingerprint = digest.value()
                if digest.changed is not None:
                    raise self._changed([*starts, read][digest.changed])
                self.digest = self.digest or fingerprint
                self._states = digest.states
                self._ids = self._ids[:0].copy()  # a million ids are tens of megabytes
        if rows and self.index is not None:
            # The next pass need not look up any id, as it has the rows of the labels that this one has found.
            self._rows = np.concatenate(rows)
            self._compare_with_labels(self.index, self._rows, examples, without_label)
            self.index = None  # it holds all ids, tens of megabytes for a million

    def _compare_with_labels(
        self, index: LabelIndex, rows: np.ndarray, examples: list[str], without_label: list[str]
    ) -> None:
        """Refuse or note labels without a vector and vectors without a label, after a pass that found their `rows`."""
        used = rows >= 0
        if not used.any():
            raise MissingIds(
                f"{self.source.path}: none of its ids has a label: the labels have {some(index.ids[:3])}, "
                f"the embeddings {some(examples[:3])}"
            )
        if self.allow_missing is not None:
            absent = index.absent(rows[used])
            present = "the embeddings have", examples
            missing("labelled recordings have no embedding", absent, self.allow_missing, self.note, present)
        unlabelled("embeddings have no label", int((~used).sum()), without_label, self.strict, self.note)

    def _changed(self, number: int) -> DuopldaError:
        """Return the error for vectors, from a number on, that differ from those of the first pass."""
        remedy = "leave the files alone while they are used, and start again"
        place = f"at {self.source.entry(number)} or after it"
        return bad(self.source.path, place, "has changed since the first pass over it", remedy)


def _joined(parts: list[LabelledBlock]) -> LabelledBlock:
    """Join blocks into one."""
    if len(parts) == 1:
        return parts[0]
    ids, X, index = zip(*parts, strict=True)
    return None if ids[0] is None else np.concatenate(ids), np.concatenate(X), np.concatenate(index)


def read_recordings(
    path: PathLike,
    labels: LabelColumns | None = None,
    *,
    ids: IdList = None,
    columns: Mapping[str, str] | None = None,
    own_labels: bool = False,
    allow_missing: bool | None = False,
    strict: bool = False,
    note: Note = lambda message: None,
    show: Progress = lambda done, message: None,
    hashed: bool | None = None,
) -> FileRecordings:
    """Open the recordings in files of embeddings, for training, scoring or clustering.

    Parameters
    ----------
    path, ids, columns : as for `embedding_shards`
    labels : what `read_labels` returns, or None for recordings without labels, such as the tests of trials
    own_labels : whether the files (Parquet) have the labels in columns of their own
    allow_missing : whether to go on, with a note, if labelled recordings have no embedding; otherwise they are an
        error. None: say nothing, as the labels are those of more recordings than these
    strict : whether embeddings without a label are an error, where there are labels; otherwise they are left out, with
        a note
    note, show : functions that get messages for people, and (number of vectors, message) as vectors are read
    hashed : whether the first pass computes the `digest` of the recordings; None: only if they have labels

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
    source = read_embeddings(path, ids, columns=columns)
    known: LabelIndex | tuple[np.ndarray, Labels] | None = None
    if own_labels:
        table = _own_labels(source, columns)
        known = source.check_ids(table.ids), encoded_labels(table, note)
    elif labels is not None:
        known = LabelIndex.of(labels, note)
    return FileRecordings(source, known, allow_missing, strict, note, show, hashed)


def _own_labels(source: Embeddings, columns: Mapping[str, str] | None) -> LabelColumns:
    """Read labels that are columns of the files of embeddings; no vector is read."""
    parts = [read_own_labels(file.path, file.kind, columns) for file in source.sources]
    if len(parts) == 1:  # a copy of a million ids would take tens of megabytes
        return parts[0]
    for name in dict.fromkeys(name for part in parts for name in part.by_name):
        pairs = zip(source.sources, parts, strict=True)
        lack = [Path(file.path).name for file, part in pairs if name not in part.by_name]
        if lack:
            raise DuopldaError(f"some of the files have a column of the {name}, and some have none: {some(lack, 4)}")
    columns_of_all = {name: np.concatenate([part.by_name[name] for part in parts]) for name in parts[0].by_name}
    return LabelColumns.of(columns_of_all, parts[0].read_as)


def source_files(path: PathLike) -> list[Path]:
    """Return the files that are read for embeddings: those of a folder or pattern, and the archives that an scp names.

    >>> import tempfile
    >>> import numpy as np
    >>> from duoplda.io import write_embeddings
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_embeddings(folder + "/x.scp", ["a"], np.eye(1))
    ...     [path.name for path in source_files(folder + "/x.scp")]
    ['x.scp', 'x.ark']
    """
    out: list[Path] = []
    for file in filter(Path.is_file, map(Path, files_of(path))):
        out.append(file)
        if plain_name(file).endswith(".scp"):
            with open_lines(held(file)) as lines:
                fields = (line.decode("utf-8", "replace").split(None, 1) for line in lines)
                archives = {parts[1].strip().rpartition(":")[0] for parts in fields if len(parts) == 2}
            places = [place for name in sorted(archives) if name for place in (Path(name), file.parent / name)]
            out += filter(Path.is_file, places)
    return list(dict.fromkeys(out))  # each file once: an absolute path of an scp was found in both places
