"""Recordings on a cluster of Dask: shards are read where they lie; only sums and scores travel.

`recordings(...)` gives a `Recordings` like any other. `Statistics.of`, `Backend.fit` and `duoplda.score` run on it the
very functions that they run on one machine, one task for each shard, and statistics are added up in a tree.

Sessions may be cut between shards. With a table of labels a shard sees which of its sessions are not complete; with
labels inside the shards, a first pass over these (not over the vectors) finds the sessions that several shards have.

Tasks are pure functions of shards on shared storage: what a lost worker had done, another does again.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import one_blas_thread
from duoplda.data import labels as lab
from duoplda.data.labels import Labels
from duoplda.data.recordings import ROWS, ArrayRecordings, Chunk, Recordings
from duoplda.errors import DuopldaError, some
from duoplda.io import LabelTable, Shard, embedding_shards
from duoplda.io.recordings import Digest, LabelIndex, Note, Progress, refuse_absent

try:
    from dask.delayed import Delayed, delayed
    from distributed import Client, LocalCluster, as_completed, default_client
    from distributed.scheduler import KilledWorker
except ImportError:
    raise DuopldaError("duoplda.engines.dask needs Dask: pip install 'duoplda[dask]'") from None

__all__ = ["ClusterRecordings", "connect", "recordings"]

FAN = 8  # results joined by one task
JOINED_BYTES = 1 << 28  # of open sessions that one task joins, about
MOST_BUCKETS = 16  # where the number of open sessions is not known beforehand
NAMES = ("X", "speaker", "session", "channel")

# Opens a part on a worker: (what there is to read, keys of its sessions that go on elsewhere) -> recordings, or None.
Opener = Callable[[Any, "NDArray[np.uint64] | None"], "Recordings | None"]


def recordings(
    data: Any,
    labels: LabelTable | bool | None = None,
    *,
    speaker: str = "speaker",
    session: str | None = "session",
    channel: str | None = None,
    vectors: str | Sequence[str] = "embedding",
    allow_missing: bool = False,
    client: Any = None,
    note: Note = lambda message: None,
    show: Progress = lambda done, message: None,
) -> ClusterRecordings:
    """Recordings whose parts are read by the workers of a cluster.

    Parameters
    ----------
    data : a file, folder or pattern of embeddings, or shards of `duoplda.io.embedding_shards`; or a dask DataFrame; or
        delayed chunks, each `(X, speaker, session)`, `(X, speaker, session, channel)` or a mapping of those names, or
        (for tests of trials) `{"X": X, "ids": ids}`. Frames and chunks are made twice unless they are persisted.
    labels : of shards: `duoplda.io.read_labels(...)`; True: they are columns of the shards themselves; None: the
        recordings have none, as tests of trials
    speaker, session, channel, vectors : columns of a data frame, as for `Recordings.from_frame`
    allow_missing : go on without labelled recordings that no shard has
    client : of `dask.distributed`; None: the current one
    note, show : functions that get messages for people, and (number, message) as shards are done

    Examples
    --------
    >>> from dask import delayed
    >>> from distributed import Client
    >>> from duoplda import Statistics
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(20, seed=0)
    >>> chunks = [delayed((X[i : i + 50], speaker[i : i + 50], session[i : i + 50])) for i in range(0, len(X), 50)]
    >>> with Client(processes=False, dashboard_address=None):
    ...     stats = Statistics.of(recordings(chunks))
    >>> stats.n_recordings == len(X)
    True
    """
    options: dict[str, Any] = {"client": client or current_client(), "note": note, "show": show}
    if hasattr(data, "to_delayed"):  # a dask DataFrame
        columns: dict[str, Any] = {"speaker": speaker, "session": session, "channel": channel, "vectors": vectors}
        wanted = [c for c in (speaker, session, channel, *([vectors] if isinstance(vectors, str) else vectors)) if c]
        absent = [c for c in wanted if c not in data.columns]
        if absent:
            raise DuopldaError(f"the data frame has no column {some(absent)}: it has {some(data.columns)}")
        rows = data[wanted].to_delayed()
        names = [f"partition {i}" for i in range(len(rows))]
        return ClusterRecordings(rows, partial(_of_frame, **columns), names, **options)
    if isinstance(data, str | os.PathLike):
        data = embedding_shards(data)
    data = list(data) if isinstance(data, Iterable) else [data]
    names = [d.name if isinstance(d, Shard) else f"chunk {i}" for i, d in enumerate(data)]
    if not all(isinstance(d, Shard) for d in data):
        return ClusterRecordings(data, _of_chunk, names, **options)
    if labels is True:
        return ClusterRecordings(data, _of_own_columns, names, light=_own_labels, dim=data[0].dim, **options)
    if labels is None or labels is False:
        return ClusterRecordings(data, _unlabelled, names, dim=data[0].dim, cut=False, **options)
    index = LabelIndex.of(labels, note)
    options |= {"index": index, "allow_missing": allow_missing, "dim": data[0].dim, "cut": False}
    return ClusterRecordings(data, _of_table, names, **options)


# -- parts, on the workers


def _of_table(what: tuple[Shard, LabelIndex], split: Any) -> Recordings | None:
    """A shard whose labels are in a table; a session of which recordings are missing here is open."""
    shard, index = what
    ids, X = shard.load()
    rows = index.find(ids)
    keep = rows >= 0
    if not keep.any():
        return None
    if not keep.all():
        ids, X, rows = ids[keep], X[keep], rows[keep]
    labels, whole = index.labels.rows(rows), index.labels
    sessions = np.unique(whole.session[rows])
    further = labels.counts.sum(axis=1) < whole.counts[sessions].sum(axis=1)
    return ArrayRecordings(X, ids=ids, labels=replace(labels, open=further if further.any() else None))


def _of_own_columns(shard: Shard, split: NDArray[np.uint64] | None) -> Recordings:
    labels = _own_labels(shard)
    ids, X = shard.load()
    return ArrayRecordings(X, ids=ids, labels=_with_open(labels, split))


def _own_labels(shard: Shard) -> Labels:
    own = shard.labels()
    return lab.encode(own.speaker, own.session, own.channel, by_speaker=True)


def _unlabelled(shard: Shard, split: Any) -> Recordings:
    ids, X = shard.load()
    return ArrayRecordings(X, ids=ids)


def _of_frame(frame: Any, split: NDArray[np.uint64] | None, **columns: Any) -> Recordings:
    return _labelled(Recordings.from_frame(frame, **columns), split)


def _of_chunk(chunk: Any, split: NDArray[np.uint64] | None) -> Recordings:
    try:
        given = dict(chunk) if hasattr(chunk, "keys") else dict(zip(NAMES, chunk, strict=False))
        X = given.pop("X")
    except (TypeError, KeyError, ValueError):
        raise DuopldaError("a chunk must be (X, speaker, session) or (X, speaker, session, channel)") from None
    return _labelled(ArrayRecordings(X, **given), split)


def _labelled(part: ArrayRecordings, split: NDArray[np.uint64] | None) -> ArrayRecordings:
    return part.relabelled(_with_open(part.labels(), split))


def _with_open(labels: Labels, split: NDArray[np.uint64] | None) -> Labels:
    if split is None or labels.session_ids is None or not len(split):
        return labels
    return replace(labels, open=np.isin(lab.keys(labels.session_ids), split))


# -- tasks


@contextmanager
def _named(name: str) -> Iterator[None]:
    """An error about the data says which shard it is about; BLAS keeps to the thread that Dask has given."""
    try:
        with one_blas_thread():
            yield
    except DuopldaError as error:
        said, file = str(error), re.split(" (rows|lines) ", name)[0]
        raise type(error)(said if file in said else f"{name}: {said}") from error


class Report(NamedTuple):
    """What the client learns of a part beside the result."""

    n: int  # recordings
    keys: int  # the sum of the keys of their ids, modulo 2^64
    digest: str | None  # of ids and vectors


def _report(part: Any) -> Report:
    if part is None or getattr(part, "ids", None) is None:
        return Report(0 if part is None else part.labels().n_recordings, 0, None)
    digest = Digest()
    digest.add(part.ids, part.X)
    total, value = int(lab.keys(part.ids).sum(dtype=np.uint64)), digest.value()
    digest.close()
    return Report(len(part.ids), total, value)


class Found(NamedTuple):
    """What a first pass says of a shard."""

    n: int
    dim: int | None
    n_kinds: int
    keys: NDArray[np.uint64] | None  # of its sessions


def _find(name: str, light: Callable[[Any], Labels] | None, opener: Opener, what: Any) -> Found:
    with _named(name):
        part = None if light is not None else opener(what, None)
        labels = light(what) if light is not None else part.labels()  # type: ignore[union-attr]
        dim = None if part is None else part.X.shape[1]  # type: ignore[attr-defined]
        keys = None if labels.session_ids is None else lab.keys(labels.session_ids)
        return Found(labels.n_recordings, dim, len(labels.kinds), keys)


def _make(name: str, opener: Opener, what: Any, split: Any, make: Any, n: int, buckets: int, first: bool) -> Any:
    """n results, loose ends (None where there are none), and a report, of one part."""
    with _named(name):
        part = opener(what, split)
        if part is None:
            return (*[None] * (n + buckets), Report(0, 0, None))
        results, loose = make(part)
        return (*results, *(loose or [None] * buckets), _report(part) if first else None)


def _join(join: Callable[[list[Any]], Any], pieces: list[Any]) -> Any:
    there = [p for p in pieces if p is not None]
    with one_blas_thread():
        return (there[0] if len(there) == 1 else join(there)) if there else None


def _tie(tie: Callable[[Any], Sequence[Any]], n: int, end: Any) -> tuple[Any, ...]:
    with one_blas_thread():
        return (None,) * n if end is None else tuple(tie(end))


def _map(name: str, opener: Opener, what: Any, function: Any) -> list[Any]:
    with _named(name):
        part = opener(what, None)
        return [] if part is None else list(function(part))


def _rows(name: str, what: tuple[Shard, LabelIndex]) -> NDArray[Any]:
    """Rows of the label table that a shard has; only ids are read, where the format allows it."""
    with _named(name):
        rows = what[1].find(what[0].ids())
        return rows[rows >= 0]


# -- recordings, as the client sees them


class ClusterRecordings(Recordings):
    """Parts of recordings that workers of a cluster open; see `recordings`.

    Attributes
    ----------
    digest : SHA-256 over those of the shards' ids and vectors; known after one pass
    """

    def __init__(
        self,
        parts: Sequence[Any],
        opener: Opener,
        names: Sequence[str],
        *,
        client: Any,
        note: Note,
        show: Progress,
        light: Callable[[Any], Labels] | None = None,
        index: LabelIndex | None = None,
        allow_missing: bool = False,
        dim: int | None = None,
        cut: bool = True,
    ):
        if not len(parts):
            raise DuopldaError("there are no shards")
        self.client, self.note, self.show = client, note, show
        self.index, self.allow_missing, self.dim = index, allow_missing, dim
        self.digest: str | None = None
        sent = None if index is None else _send(client, index)
        self.parts = list(parts) if index is None else [(p, sent) for p in parts]
        self.names, self.opener, self.light = list(names), opener, light
        self._cut = cut  # sessions may be cut, and only a first pass over the labels can tell
        self._split: list[Any] | None = None
        self._buckets = 1

    def labels(self) -> Labels:
        if self.index is None:
            raise DuopldaError("the labels of these recordings lie on the cluster, or there are none")
        return self.index.labels

    def chunks(self, rows: int = ROWS) -> Iterator[Chunk]:
        raise DuopldaError("recordings on a cluster are not read by the client: use map or reduce")

    @property
    def split(self) -> list[Any]:
        """For each part the keys of its sessions that other parts have too."""
        if self._split is None:
            self._split = self._first_pass() if self._cut else [None] * len(self.parts)
        return self._split

    def _first_pass(self) -> list[Any]:
        task = delayed(_find, pure=False)
        tasks = [task(n, self.light, self.opener, p) for n, p in zip(self.names, self.parts, strict=True)]
        found: list[Found] = self._all(tasks, "labels")
        if len({f.keys is None for f in found if f.n}) > 1:
            raise DuopldaError("some shards have names of sessions and some have none")
        keys = [np.zeros(0, np.uint64) if f.keys is None else f.keys for f in found]
        every, times = np.unique(np.concatenate(keys), return_counts=True)
        split = [k[np.isin(k, every[times > 1])] for k in keys]
        dim = self.dim or max(f.dim or 0 for f in found)
        size = 8 * dim * max(f.n_kinds for f in found) * sum(map(len, split))
        self._buckets = max(1, -(-size // JOINED_BYTES))
        return split

    @property
    def buckets(self) -> int:  # type: ignore[override]
        if self.index is not None:
            size = 8 * (self.dim or 0) * self.index.labels.n_sessions
            return min(MOST_BUCKETS, max(1, -(-size // JOINED_BYTES)))
        return self._buckets if self.split else 1

    def map(self, function: Callable[[Recordings], Iterable[Any]]) -> Iterator[Any]:
        """As for all recordings; about twice as many parts as the cluster has threads are under way."""
        sent = _send(self.client, function)
        most, at = 2 * max(1, sum(self.client.nthreads().values())), 0
        waiting: deque[tuple[Any, str]] = deque()
        task, done = delayed(_map, pure=False), 0
        try:
            while at < len(self.parts) or waiting:
                while at < len(self.parts) and len(waiting) < most:
                    name = self.names[at]
                    waiting.append((self.client.compute(task(name, self.opener, self.parts[at], sent)), name))
                    at += 1
                future, name = waiting.popleft()
                yield from _result(future, name)
                future.release()
                done += 1
                self.show(done, f"{done} of {len(self.parts)} shards")
        finally:
            _release([future for future, _ in waiting])

    def reduce(
        self,
        make: Callable[[Recordings], tuple[Sequence[Any], Sequence[Any]]],
        join: Callable[[list[Any]], Any],
        tie: Callable[[Any], Sequence[Any]],
        n: int = 1,
    ) -> list[Any]:
        """As for all recordings: each of the n results is joined in a tree of its own, so that no worker holds all."""
        buckets, sent = self.buckets, _send(self.client, make)
        task = delayed(_make, pure=False, nout=n + buckets + 1)
        first = self.digest is None
        made = [
            task(name, self.opener, part, split, sent, n, buckets, first)
            for name, part, split in zip(self.names, self.parts, self.split, strict=True)
        ]
        loose = [self._tree([m[n + b] for m in made], join) for b in range(buckets)]
        tied = [delayed(_tie, pure=False, nout=n)(tie, n, end) for end in loose]
        totals = [self._tree([part[i] for part in (*made, *tied)], join) for i in range(n)]
        results = self._watch(totals, [m[n + buckets] for m in made])
        if any(r is None for r in results):
            raise DuopldaError("none of the shards has a recording with a label")
        return results

    def _tree(self, level: list[Delayed], join: Any) -> Delayed:
        while len(level) > 1:
            level = [delayed(_join, pure=False)(join, level[i : i + FAN]) for i in range(0, len(level), FAN)]
        return level[0]

    def _all(self, tasks: list[Delayed], what: str) -> list[Any]:
        """Results of tasks, one for each part, in their order."""
        futures = self.client.compute(tasks)
        try:
            for done, future in enumerate(self._ended(futures), 1):
                _result(future, self.names[futures.index(future)], only_look=True)
                self.show(done, f"{what}: {done} of {len(tasks)} shards")
            return self.client.gather(futures)
        finally:
            _release(futures)

    def _watch(self, totals: list[Delayed], reports: list[Delayed]) -> list[Any]:
        """The sums; while they are being made, progress is shown and failures of parts are named."""
        futures = self.client.compute([*totals, *reports])
        sums, shards = futures[: len(totals)], futures[len(totals) :]
        try:
            for done, future in enumerate(self._ended(shards), 1):
                _result(future, self.names[shards.index(future)], only_look=True)
                self.show(done, f"statistics: {done} of {len(shards)} shards")
            self._check(self.client.gather(shards))
            return [_result(future, "the sum of the shards") for future in sums]
        finally:
            _release(futures)

    def _ended(self, futures: list[Any]) -> Iterator[Any]:
        with self.client.as_current():
            yield from as_completed(futures)

    def _check(self, reports: list[Report | None]) -> None:
        """After the first pass: with a table, all labelled recordings have come, each once."""
        there = [r for r in reports if r is not None]
        if len(there) < len(reports):
            return
        both = "".join(str(r.digest) for r in there)
        self.digest = "sha256:" + hashlib.sha256(both.encode()).hexdigest()
        if self.index is None:
            return
        n, total = sum(r.n for r in there), sum(r.keys for r in there) % 2**64
        if (n, total) == (len(self.index.ids), int(lab.keys(self.index.ids).sum(dtype=np.uint64))):
            return
        tasks = [delayed(_rows, pure=False)(name, part) for name, part in zip(self.names, self.parts, strict=True)]
        rows = self._all(tasks, "ids")
        times = np.bincount(np.concatenate(rows), minlength=len(self.index.ids))
        twice = np.flatnonzero(times > 1)
        if len(twice):
            where = [name for name, r in zip(self.names, rows, strict=True) if twice[0] in r]
            ids = self.index.ids[np.isin(self.index.order, twice)]
            raise DuopldaError(f"{len(twice)} ids are in two shards ({some(where, 4)}): {some(ids)}")
        refuse_absent(self.index.absent(np.concatenate(rows)), self.allow_missing, self.note)


def _same(value: Any) -> Any:
    return value


def _send(client: Any, value: Any) -> Any:
    """A value for the workers, as the result of a task: unlike scattered data, it survives the worker that has it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is large
        return client.submit(_same, value, pure=False)


def _release(futures: list[Any]) -> None:
    """What is not done yet is not wanted any more."""
    for future in futures:
        future.release()


def _result(future: Any, name: str, *, only_look: bool = False) -> Any:
    """The result of a task, or its error with the worker's traceback; `only_look`: raise the error, if there is one."""
    if only_look and future.status == "finished":
        return None
    try:
        return future.result()
    except Exception as error:
        _raise(error, name)


def _raise(error: Exception, name: str) -> NoReturn:
    if isinstance(error, KilledWorker):
        raise DuopldaError(
            f"{name}: the workers that took it were killed, one after another. Mostly that is memory: give workers "
            "more, or cut smaller shards"
        ) from error
    if isinstance(error, OSError):
        raise DuopldaError(f"{name}: {type(error).__name__}: {error}") from error
    if not isinstance(error, DuopldaError):
        error.add_note(f"This happened on the cluster, in the task of {name}.")
    raise error


# -- clients


def current_client() -> Any:
    """The client that Dask takes by default."""
    try:
        return default_client()
    except ValueError:
        raise DuopldaError(
            "no client of Dask: make one first, distributed.Client('tcp://scheduler:8786') or Client() for this machine"
        ) from None


@contextmanager
def connect(where: str) -> Iterator[Any]:
    """A client of the scheduler at an address, or of a cluster of processes on this machine (`local`)."""
    if where == "local":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        options = {"n_workers": cores, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50}
        with _deaf_to_interrupts():
            cluster = LocalCluster(**options)
        with cluster, Client(cluster) as client:
            yield client
        return
    try:
        client = Client(where, timeout=10)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DuopldaError(f"no scheduler of Dask at {where!r}: {reason}. Give tcp://host:8786, or local") from None
    with client:
        yield client


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes that are started inside ignore Ctrl-C: it is for the command, which ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which processes inherit
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
