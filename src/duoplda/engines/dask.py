"""Recordings on a cluster of Dask: workers read the shards, and only sums and scores travel to the client.

`recordings(...)` returns a `Recordings` like any other. `Statistics.of`, `Backend.fit` and `duoplda.score` run the same
functions on it as on one machine, in one task for each shard, and statistics are added up in a tree.

Sessions may be cut between shards. With a table of labels, a worker can tell which sessions of a shard are not
complete; with labels inside the shards, a first pass over the labels finds the sessions that are in several shards.

Tasks are pure functions of shards on shared storage, so that another worker can repeat the tasks of a lost one.
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
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, count, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import one_blas_thread, to_numpy
from duoplda.data import labels as lab
from duoplda.data.labels import Labels
from duoplda.data.recordings import ROWS, ArrayRecordings, Chunk, Join, Make, Recordings, Tie, columns_of
from duoplda.errors import DuopldaError, some
from duoplda.io import LabelColumns, Shard, embedding_shards
from duoplda.io.recordings import Digest, LabelIndex, Note, Progress, missing, unlabelled

try:
    from dask.delayed import Delayed, delayed
    from dask.utils import apply
    from distributed import Client, Future, LocalCluster, as_completed, default_client
    from distributed.scheduler import KilledWorker
except ImportError:
    raise DuopldaError("duoplda.engines.dask needs Dask: pip install 'duoplda[dask]'") from None

__all__ = ["ClusterRecordings", "connect", "recordings"]

SessionKeys = NDArray[np.uint64] | None  # hashes of names of sessions of a part; None: the sessions have no names
# What a pass over the vectors of a part reports: the digest of ids and vectors and, in the first pass and if there is a
# table of labels, the rows of that table that the part has.
Report = tuple[str, NDArray[np.int32] | None]
Opener = Callable[[Any], ArrayRecordings | None]  # reads a shard or a chunk on a worker; None: it has no recordings


def recordings(
    data: Any,
    labels: LabelColumns | bool | None = None,
    *,
    speaker: str = "speaker",
    session: str | None = "session",
    channel: str | None = None,
    occasion: str | None = None,
    vectors: str | Sequence[str] = "embedding",
    allow_missing: bool | None = False,
    strict: bool = False,
    client: Client | None = None,
    note: Note = lambda message: None,
    show: Progress = lambda done, message: None,
) -> ClusterRecordings:
    """Return recordings whose parts are read by the workers of a cluster.

    Parameters
    ----------
    data : a file, folder or pattern of embeddings, or shards of `duoplda.io.embedding_shards`; or a dask DataFrame; or
        delayed chunks, each `(X, speaker, session)`, `(X, speaker, session, channel)` or a mapping of those names, or
        (for tests of trials) `{"X": X, "ids": ids}`. Frames and chunks are made twice unless they are persisted.
    labels : for shards, the result of `duoplda.io.read_labels`; True: they are columns of the shards; None: none
    speaker, session, channel, occasion, vectors : columns of a data frame, as for `Recordings.from_frame`
    allow_missing : go on without labelled recordings that no shard has; None: `labels` may be those of more recordings
    strict : refuse recordings that a table gives no label, after a pass over all ids; otherwise they are left out
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
    >>> with Client(processes=False, dashboard_address=":0"):
    ...     stats = Statistics.of(recordings(chunks))
    >>> stats.n_recordings == len(X)
    True
    """
    try:
        options: dict[str, Any] = {"client": client or default_client(), "note": note, "show": show}
    except ValueError:
        remedy = "make one first, distributed.Client('tcp://scheduler:8786') or Client() for this machine"
        raise DuopldaError(f"no client of Dask: {remedy}") from None
    if hasattr(data, "to_delayed"):  # a dask DataFrame
        columns: dict[str, Any] = {"speaker": speaker, "session": session, "channel": channel, "vectors": vectors}
        columns["occasion"] = occasion
        rows = data[columns_of(data, *columns.values())].to_delayed()
        names = [f"partition {i}" for i in range(len(rows))]
        return ClusterRecordings(rows, partial(Recordings.from_frame, **columns), names, **options)
    if isinstance(data, str | os.PathLike):
        data = embedding_shards(data)
    data = list(data) if isinstance(data, Iterable) else [data]
    names = [d.name if isinstance(d, Shard) else f"chunk {i}" for i, d in enumerate(data)]
    if not data or not all(isinstance(d, Shard) for d in data):
        return ClusterRecordings(data, _of_chunk, names, **options)
    options |= {"dim": data[0].dim, "cut": labels is True}
    if labels is None or isinstance(labels, bool):
        return ClusterRecordings(data, partial(_of_shard, labelled=bool(labels)), names, **options)
    options |= {"index": LabelIndex.of(labels, note), "allow_missing": allow_missing}
    found = ClusterRecordings(data, _of_table, names, **options)
    if strict:
        lack = [name for part in found.spread(_unlabelled, found.parts) for name in part]
        unlabelled("embeddings have no label", len(lack), lack, strict, note)
    return found


# -- parts, on the workers


def _of_table(source: tuple[Shard, LabelIndex]) -> ArrayRecordings | None:
    """Read a shard whose labels are in a table; a session that has further recordings elsewhere is open."""
    shard, index = source
    ids, X = shard.load()
    rows = index.find(ids)
    keep = rows >= 0
    if not keep.any():
        return None
    if not keep.all():
        ids = ids[keep]
        X = X[keep]
        rows = rows[keep]
    labels = index.labels.rows(rows)
    whole = index.labels
    if whole.session is not None:
        sessions = np.unique(whole.session[rows])
        further = labels.counts.sum(axis=1) < whole.counts[sessions].sum(axis=1)
        labels = replace(labels, open=further if further.any() else None)
    return ArrayRecordings(X, ids=ids, labels=labels)


def _unlabelled(source: tuple[Shard, LabelIndex]) -> list[str]:
    """Return the ids of a shard that a table of labels does not have."""
    shard, index = source
    ids = shard.ids()
    return ids[index.find(ids) < 0].tolist()


def _of_shard(shard: Shard, labelled: bool) -> ArrayRecordings:
    """Read a shard whose labels are columns of its own or, if not `labelled`, are not known."""
    ids, X = shard.load()
    return ArrayRecordings(X, ids=ids, labels=_own_labels(shard) if labelled else None)


def _own_labels(shard: Shard) -> Labels:
    columns = shard.labels()
    return lab.encode(columns.speaker, columns.session, columns.channel, occasion=columns.occasion, by_speaker=True)


def _of_chunk(chunk: Any) -> ArrayRecordings:
    """Return the recordings of a tuple of arrays, or of a mapping, that a user's delayed function returned."""
    names = ("X", "speaker", "session", "channel")
    try:
        arrays = dict(chunk) if hasattr(chunk, "keys") else dict(zip(names, chunk, strict=False))
        X = arrays.pop("X")
    except (TypeError, KeyError, ValueError):
        raise DuopldaError("a chunk must be (X, speaker, session) or (X, speaker, session, channel)") from None
    return ArrayRecordings(X, **arrays)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Make errors of the block name the shard, and hold BLAS to the one thread that Dask has given to the task."""
    try:
        with one_blas_thread():
            yield
    except DuopldaError as error:
        message = str(error)
        file = re.split(" (rows|lines) ", name)[0]
        named = type(error)(message if file in message else f"{name}: {message}")
        raise named.with_traceback(error.__traceback__) from None  # a cause does not survive the way to the client


class Survey(NamedTuple):
    """What a first pass over the labels of a part finds."""

    n_recordings: int
    n_dimensions: int  # 0: the vectors were not read
    n_kinds: int
    known: str  # see `duoplda.data.labels.KNOWN`
    sessions: SessionKeys


def _survey(name: str, source: Any, opener: Opener) -> Survey:
    with _named(name):
        part = None if isinstance(source, Shard) else opener(source)  # a shard gives labels without its vectors
        labels = _own_labels(source) if part is None else part.labels()
        keys = None if labels.session_ids is None else lab.keys(labels.session_ids)
        d = 0 if part is None else part.X.shape[1]
        return Survey(labels.n_recordings, d, len(labels.kinds), labels.known, keys)


def _checked_digest(part: ArrayRecordings | None, earlier: str | None) -> str:
    """Return the digest of a part; an error is raised if an earlier pass over it had another one."""
    with Digest() as digest:
        if part is not None:
            digest.add(np.zeros(0) if part.ids is None else part.ids, to_numpy(part.X))
        value = digest.value()
    if earlier not in (None, value):
        remedy = "leave the data alone while they are used, and start again"
        raise DuopldaError(f"has changed since the first pass over it; {remedy}")
    return value


def _make(
    name: str, opener: Opener, source: Any, split: SessionKeys, make: Make, n: int, buckets: int, earlier: str | None
) -> tuple[Any, ...]:
    """Return n results, loose ends (or None for each), and the report of one part; sessions in `split` are open."""
    with _named(name):
        part = opener(source)
        digest = _checked_digest(part, earlier)
        if part is None:
            return (*[None] * (n + buckets), (digest, np.zeros(0, np.int32)))
        if split is not None and len(split) and (labels := part.labels()).session_ids is not None:
            further = np.isin(lab.keys(labels.session_ids), split)
            part = ArrayRecordings(part.X, ids=part.ids, labels=replace(labels, open=further))
        results, loose = make(part)
        rows = source[1].find(part.ids) if opener is _of_table and earlier is None else None
        return (*results, *(loose or [None] * buckets), (digest, rows))


@one_blas_thread()
def _join(join: Join, pieces: list[Any]) -> Any:
    present = [piece for piece in pieces if piece is not None]
    if not present:
        return None
    return present[0] if len(present) == 1 else join(present)


@one_blas_thread()
def _tie(tie: Tie, n: int, end: Any) -> tuple[Any, ...]:
    return (None,) * n if end is None else tuple(tie(end))


def _map(
    name: str, opener: Opener, source: Any, function: Callable[[Recordings], Iterable[Any]], earlier: str | None
) -> list[Any]:
    with _named(name):
        part = opener(source)
        if earlier is not None:
            _checked_digest(part, earlier)
        if part is None:
            return []
        part.labels()  # wrong labels are an error, even if the function does not need them
        return list(function(part))


# -- recordings, as the client sees them


@dataclass(eq=False, repr=False)
class ClusterRecordings(Recordings):
    """Recordings whose parts workers of a cluster open; `recordings` returns them.

    >>> import numpy as np
    >>> from dask import delayed
    >>> with Client(processes=False, dashboard_address=":0"):
    ...     found = recordings([delayed((np.eye(2), ["a", "a"])), delayed((np.eye(2), ["b", "b"]))])
    ...     print(type(found).__name__, len(found.parts))
    ClusterRecordings 2
    """

    parts: list[Any]  # shards, with the index of labels if there is one; or delayed chunks
    opener: Opener
    names: list[str]
    client: Client
    note: Note
    show: Progress
    index: LabelIndex | None = None
    allow_missing: bool | None = False
    dim: int | None = None
    cut: bool = True  # whether sessions may be cut, and only a first pass over the labels can tell which
    joined_bytes: int = 1 << 28  # about how many bytes of open sessions one task joins, few enough for any worker
    digest: str | None = None  # SHA-256 of the digests of all parts; known after one pass

    def __post_init__(self) -> None:
        self.digests: Sequence[str | None] = [None] * len(self.parts)  # of the parts, after the first pass
        if not len(self.parts):
            raise DuopldaError("there are no shards")
        if self.index is not None:
            sent = _send(self.client, self.index)
            self.parts = [(part, sent) for part in self.parts]

    def labels(self) -> Labels:
        if self.index is None:
            raise DuopldaError("the labels of these recordings lie on the cluster, or there are none")
        return self.index.labels

    @property
    def known(self) -> str:
        """What the labels say of the recordings; labels on the cluster are read for this."""
        if self.index is not None:
            return self.index.labels.known
        known = [part.known for part in self.survey or () if part.n_recordings]
        return lab.least_known(known) if known else "nothing"

    def chunks(self, rows: int = ROWS) -> Iterator[Chunk]:
        raise DuopldaError("recordings on a cluster are not read by the client: use map or reduce")

    @cached_property
    def survey(self) -> list[Survey] | None:
        """What a first pass over the labels of all parts finds; None if none is needed, or there are no labels."""
        if not self.cut:
            return None
        task = delayed(_survey, pure=False)
        parts = zip(self.names, self.parts, strict=True)
        with self._computing([task(name, part, self.opener) for name, part in parts]) as futures:
            survey = self._watch(futures, "labels")
        if len({part.sessions is None for part in survey if part.n_recordings}) > 1:
            raise DuopldaError("some shards have names of sessions and some have none")
        return survey

    @cached_property
    def split(self) -> list[SessionKeys]:
        """For each part, the keys of its sessions that other parts have too; None if no survey was needed."""
        if self.survey is None:
            return [None] * len(self.parts)
        keys = [np.zeros(0, np.uint64) if part.sessions is None else part.sessions for part in self.survey]
        distinct, times = np.unique(np.concatenate(keys), return_counts=True)
        return [own[np.isin(own, distinct[times > 1])] for own in keys]

    @property
    def buckets(self) -> int:  # type: ignore[override]
        if self.survey is not None:
            d = self.dim or max(part.n_dimensions for part in self.survey)
            n_open = sum(len(keys) for keys in self.split if keys is not None)
            size = 8 * d * max(part.n_kinds for part in self.survey) * n_open
            return max(1, -(-size // self.joined_bytes))
        if self.index is None:
            return 1
        # How many sessions of a table are cut is not known beforehand. As most are not cut, 16 buckets are enough.
        size = 8 * (self.dim or 0) * self.index.labels.n_sessions
        return min(16, max(1, -(-size // self.joined_bytes)))

    def map(self, function: Callable[[Recordings], Iterable[Any]]) -> Iterator[Any]:
        """Run the function on all parts, about twice as many at a time as the cluster has threads."""
        sent = _send(self.client, function)
        task = delayed(_map, pure=False)
        parts = zip(self.names, self.parts, self.digests, strict=True)
        tasks = ((task(name, self.opener, part, sent, digest), name) for name, part, digest in parts)
        return chain.from_iterable(self._under_way(tasks, f"{len(self.parts)} shards"))

    def spread(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        """Yield `function(item)` for each of the items, in order, computed by the workers."""
        sent = _send(self.client, function)
        task = delayed(apply, pure=False)
        tasks = ((task(sent, (item,)), f"part {i + 1} of {len(items)}") for i, item in enumerate(items))
        return self._under_way(tasks, f"{len(items)} parts")

    def _under_way(self, tasks: Iterator[tuple[Delayed, str]], all_of_them: str) -> Iterator[Any]:
        """Yield the results of named tasks in order, while some of the next tasks are computed."""
        most = 2 * max(1, sum(self.client.nthreads().values()))
        waiting = deque[tuple[Future, str]]()
        try:
            for done in count(1):
                for task, name in islice(tasks, most - len(waiting)):
                    waiting.append((self.client.compute(task), name))
                if not waiting:
                    return
                future, name = waiting.popleft()
                yield _result(future, name)
                future.release()
                self.show(done, f"{done} of {all_of_them}")
        finally:
            for future, _ in waiting:
                future.release()

    def reduce(self, make: Make, join: Join, tie: Tie, n: int = 1) -> list[Any]:
        """Add up as `Recordings.reduce` does. Each result is joined in a tree of its own, so that no worker has all."""
        buckets = self.buckets
        sent = _send(self.client, make)
        task = delayed(_make, pure=False, nout=n + buckets + 1)
        parts = zip(self.names, self.parts, self.split, self.digests, strict=True)
        made = [task(name, self.opener, part, split, sent, n, buckets, digest) for name, part, split, digest in parts]
        loose = [self._tree([m[n + b] for m in made], join) for b in range(buckets)]
        tied = [delayed(_tie, pure=False, nout=n)(tie, n, end) for end in loose]
        totals = [self._tree([part[i] for part in (*made, *tied)], join) for i in range(n)]
        with self._computing([*totals, *(m[n + buckets] for m in made)]) as futures:
            self._check(self._watch(futures[n:], "statistics"))
            results = [_result(future, "the sum of the shards") for future in futures[:n]]
        if any(r is None for r in results):
            raise DuopldaError("none of the shards has a recording with a label")
        return results

    def _tree(self, level: list[Delayed], join: Join, fan: int = 8) -> Delayed:
        """Join all pieces of a level; each task joins `fan` of them, and has no more than these in memory."""
        while len(level) > 1:
            level = [delayed(_join, pure=False)(join, level[i : i + fan]) for i in range(0, len(level), fan)]
        return level[0]

    @contextmanager
    def _computing(self, tasks: list[Delayed]) -> Iterator[list[Future]]:
        """Start tasks, and give the block their futures; after the block, tasks that are not done are cancelled."""
        futures = self.client.compute(tasks)
        try:
            yield futures
        finally:
            for future in futures:
                future.release()

    def _watch(self, futures: list[Future], what: str) -> list[Any]:
        """Return the results of futures, one for each part; show progress, and name a part whose task fails."""
        names = dict(zip(futures, self.names, strict=True))
        with self.client.as_current():
            for done, future in enumerate(as_completed(futures), 1):
                if future.status != "finished":
                    _result(future, names[future])
                self.show(done, f"{what}: {done} of {len(futures)} shards")
        return self.client.gather(futures)

    def _check(self, reports: list[Report]) -> None:
        """Check after the first pass, if there is a table, that each labelled recording has come, and only once."""
        if self.digest is not None:
            return
        self.digests = [digest for digest, _ in reports]
        self.digest = hashlib.sha256("".join(digest for digest, _ in reports).encode()).hexdigest()
        if self.index is None:
            return
        rows = [np.zeros(0, np.int32) if part is None else part for _, part in reports]
        every = np.concatenate(rows)
        twice = np.flatnonzero(np.bincount(every) > 1)
        if len(twice):
            where = [name for name, part in zip(self.names, rows, strict=True) if twice[0] in part]
            ids = self.index.ids[np.isin(self.index.order, twice)]
            raise DuopldaError(f"{len(twice)} ids are in two shards ({some(where, 4)}): {some(ids)}")
        absent = self.index.absent(every) if self.allow_missing is not None else ()
        missing("labelled recordings have no embedding", absent, bool(self.allow_missing), self.note)


def _send(client: Client, value: Any) -> Future:
    """Send a value to the workers as the result of a task, which unlike scattered data survives a lost worker."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Dask warns of large values
        return client.submit(lambda same: same, value, pure=False)


def _result(future: Future, name: str) -> Any:
    """Return the result of a task, or raise its error with the worker's traceback."""
    try:
        return future.result()
    except KilledWorker as error:
        remedy = "Mostly that is memory: give workers more, or cut smaller shards"
        raise DuopldaError(f"{name}: the workers that took it were killed, one after another. {remedy}") from error
    except OSError as error:
        raise DuopldaError(f"{name}: {type(error).__name__}: {error}") from error
    except Exception as error:
        if not isinstance(error, DuopldaError):
            error.add_note(f"This happened on the cluster, in the task of {name}.")
        raise


@contextmanager
def connect(where: str) -> Iterator[Client]:
    """Give the block a client of the scheduler at an address, or of a new cluster on this machine (`local`).

    >>> with Client(processes=False, dashboard_address=":0") as own, connect(own.scheduler.address) as client:
    ...     client.submit(sum, [1, 2]).result()
    3
    """
    if where == "local":
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        options = {"n_workers": cores, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50}
        # The processes of the cluster inherit this and ignore Ctrl-C, which is for the command; that then ends them.
        main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
        try:
            cluster = LocalCluster(**options)
        finally:
            if main:
                signal.signal(signal.SIGINT, before)
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
