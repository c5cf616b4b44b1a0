"""Statistics and scores on a cluster of Dask: shards are read where they lie, only sums and scores travel.

Two passes over the shards. The first reads labels only and finds the sessions that more than one shard has. In the
second each shard leaves the statistics of its whole sessions and, of the others, sums of what it has; these are joined
by session before they are squared (`duoplda.shards`), and everything is added up in a tree. Training then needs nothing
but the statistics, and runs where the user sits.

Tasks are pure functions of shards on shared storage: what a lost worker had done, another does again.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import check_finite, check_rows, one_blas_thread
from duoplda.data import labels as lab
from duoplda.data.labels import Labels
from duoplda.engines._pieces import Columns, LabelTable, Piece, of_chunk, of_shard
from duoplda.engines._scores import Job, ScoreBlock, Trials, chain_of, recordings, score
from duoplda.errors import DuopldaError, some
from duoplda.estimators.backend import Backend, Transform
from duoplda.estimators.plda import PLDA
from duoplda.estimators.preprocessing import Spread
from duoplda.io import Labels as Table
from duoplda.io.shards import Shard
from duoplda.model import shards
from duoplda.model.accumulate import near_mean
from duoplda.model.shards import Parts
from duoplda.model.statistics import Statistics
from duoplda.trials.blocks import Sides

try:
    from dask.delayed import Delayed, delayed
    from distributed import Client, LocalCluster, as_completed, default_client
    from distributed.scheduler import KilledWorker
except ImportError:
    raise DuopldaError("duoplda.engines.dask needs Dask: pip install 'duoplda[dask]'") from None

__all__ = ["Client", "Cluster", "LocalCluster", "ScoreBlock", "present", "score_blocks", "statistics", "vectors"]

ROWS = 1024  # transformed at a time
FAN = 8  # statistics added by one task
JOINED_BYTES = 1 << 28  # of parts of sessions that one task joins
Show = Callable[[int, str], Any]  # (done, note)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """What goes wrong with a shard says its name; BLAS keeps to the thread that Dask has given."""
    try:
        with one_blas_thread():
            yield
    except DuopldaError as error:
        said, file = str(error), re.split(" (rows|lines) ", name)[0]
        raise type(error)(said if file in said else f"{name}: {said}") from None


# -- tasks


@dataclass(frozen=True, eq=False)
class Found:
    """What the first pass says of a shard."""

    n: int
    keys: NDArray[np.uint64] | None  # of its sessions
    kinds: NDArray[Any]
    rows: NDArray[np.int64] | None  # of the label table


def _first(piece: Callable[[Any], Piece], what: Any, name: str) -> Found:
    with _named(name):
        p = piece(what)
        if p.found is not None and not len(p.found):
            return Found(0, None, lab.NO_KIND, p.found)
        labels = p.labels()
        keys = None if labels.session_ids is None else lab.keys(labels.session_ids)
        return Found(labels.n_recordings, keys, labels.kinds, p.found)


def _rows(p: Piece, transform: Transform | None, labels: Labels) -> Any:
    X = check_rows(p.rows())[0]
    if X.shape[0] != labels.n_recordings:
        raise DuopldaError(f"has {X.shape[0]} rows, and labels of {labels.n_recordings}")
    if transform is None:
        return X
    channel = labels.kinds[labels.kind]
    try:  # in blocks that stay in the caches
        return np.concatenate([transform(X[i : i + ROWS], channel[i : i + ROWS]) for i in range(0, len(X), ROWS)])
    except DuopldaError:
        check_finite(X)
        raise


def _offset(piece: Callable[[Any], Piece], what: Any, name: str, transform: Transform | None) -> Any:
    with _named(name):
        p = piece(what)
        X, labels = check_rows(p.rows())[0], p.labels()
        some_rows = slice(0, 4096)
        few = replace(p, rows=lambda: X[some_rows])
        few_labels = replace(
            labels,
            session_ids=None,
            speaker=labels.speaker[some_rows],
            session=np.arange(len(X[some_rows])),
            kind=labels.kind[some_rows],
        )
        return near_mean(np.asarray(_rows(few, transform, few_labels), np.float64))


def _spread(piece: Callable[[Any], Piece], what: Any, name: str) -> Spread:
    with _named(name):
        X = check_rows(piece(what).rows())[0]
        return Spread.accumulate(X[i : i + 4096] for i in range(0, len(X), 4096))


def _second(
    piece: Callable[[Any], Piece],
    what: Any,
    name: str,
    split: NDArray[np.uint64],
    offset: Any,
    transform: Transform | None,
    n_buckets: int,
    options: dict[str, Any],
) -> tuple[Any, ...]:
    """Statistics of whole sessions, and the parts of the others by bucket."""
    with _named(name):
        p = piece(what)
        labels = p.labels()
        goes_on = np.zeros(labels.n_sessions, bool)
        if labels.session_ids is not None and len(split):
            goes_on = np.isin(lab.keys(labels.session_ids), split)
        whole, parts = shards.shard(_rows(p, transform, labels), labels, goes_on, offset, **options)
        return *_apart(whole, options), *(
            None if parts is None else parts.bucket(b, n_buckets) for b in range(n_buckets)
        )


def _apart(stats: Statistics | None, options: dict[str, Any]) -> tuple[Statistics | None, ...]:
    """The folds, without the whole that they add up to: half of the bytes."""
    return (None,) * max(options["n_folds"], 1) if stats is None else stats.folds or (stats,)


def _join(parts: list[Parts], options: dict[str, Any]) -> tuple[Statistics | None, ...]:
    with one_blas_thread():
        return _apart(shards.join(parts, n_folds=options["n_folds"], seed=options["seed"]), options)


def _add(parts: list[Statistics | None]) -> Statistics | None:
    with one_blas_thread():
        there = [p for p in parts if p is not None]
        return sum(there[1:], there[0]) if there else None


# -- the passes


class Cluster:
    """Labelled shards on a cluster: what `Backend.fit_passes` asks for.

    Parameters
    ----------
    pieces : delayed objects (or plain data) to be read on workers, one for each shard
    piece : a function that makes a `Piece` of what such an object becomes
    names : of the shards, for messages
    client : of Dask; without one, the current one
    show : called with (done, note) as tasks end
    labels : the same objects with labels only, where those come cheaper
    """

    def __init__(
        self,
        pieces: Sequence[Any],
        piece: Callable[[Any], Piece],
        names: Sequence[str],
        client: Any = None,
        show: Show | None = None,
        labels: Sequence[Any] | None = None,
    ):
        if not len(pieces):
            raise DuopldaError("there are no shards")
        self.client = client or current_client()
        self.pieces, self.names, self.piece = list(pieces), list(names), piece
        self.light = list(labels) if labels is not None else self.pieces
        self.show: Show = show or (lambda done, note: None)
        self._found: list[Found] | None = None

    @classmethod
    def of_shards(cls, found: Sequence[Shard], table: Table | None, client: Any = None, show: Any = None) -> Cluster:
        """Shards of `duoplda.io.embedding_shards`; their labels from a table, or from columns of their own."""
        client = client or current_client()
        coded = None if table is None else client.scatter(LabelTable.of(table), broadcast=True, hash=False)
        pieces, light = ([(s, coded, vectors) for s in found] for vectors in (True, False))
        return cls(pieces, of_shard, [s.name for s in found], client, show, light)

    def _ended(self, futures: list[Any]) -> Iterator[Any]:
        with self.client.as_current():
            yield from as_completed(futures)

    def _each(self, tasks: list[Delayed], names: Sequence[str], note: str) -> list[Any]:
        """Results of tasks in their order; what fails is named."""
        futures = self.client.compute(tasks)
        try:
            for done, future in enumerate(self._ended(futures), 1):
                if future.status == "error":
                    raise _cause(future.exception(), names[futures.index(future)])
                self.show(done, f"{note}: {done} of {len(tasks)} shards")
            return self.client.gather(futures)
        finally:
            _release(futures)

    @property
    def found(self) -> list[Found]:
        """The first pass: which sessions each shard has; shards without labelled recordings are dropped."""
        if self._found is None:
            task = delayed(_first, pure=False)
            tasks = [task(self.piece, p, n) for p, n in zip(self.light, self.names, strict=True)]
            found = self._each(tasks, self.names, "labels")
            keep = [i for i, f in enumerate(found) if f.n]
            self.pieces, self.light, self.names = ([x[i] for i in keep] for x in (self.pieces, self.light, self.names))
            self._found = [found[i] for i in keep]
            if not keep:
                raise DuopldaError("none of the shards has a recording with a label")
        return self._found

    def missing(self, table: Table) -> NDArray[Any]:
        """Ids of the label table that no shard has; that two have one is an error."""
        rows = np.concatenate([r for r in (f.rows for f in self.found) if r is not None])
        times = np.bincount(rows, minlength=len(table))
        names = np.sort(table.ids)
        twice = np.flatnonzero(times > 1)
        if len(twice):
            where = [
                n for n, f in zip(self.names, self.found, strict=True) if f.rows is not None and twice[0] in f.rows
            ]
            raise DuopldaError(f"{len(twice)} ids are in two shards ({some(where, 4)}): {some(names[twice])}")
        return names[times == 0]

    def n_kinds(self) -> int:
        return len(np.unique(np.concatenate([f.kinds for f in self.found])))

    def spread(self, labelled: bool) -> Spread:
        if labelled:
            return Spread.of(self.statistics(None))
        _ = self.found
        task = delayed(_spread, pure=False)
        tasks = [task(self.piece, p, n) for p, n in zip(self.pieces, self.names, strict=True)]
        return Spread.merge(self._each(tasks, self.names, "means"))

    def statistics(
        self, transform: Transform | None, *, n_folds: int = 0, seed: int = 0, precision: str = "double"
    ) -> Statistics:
        found = self.found
        if len({f.keys is None for f in found}) > 1:
            raise DuopldaError("some shards have names of sessions and some have none")
        keys = [np.zeros(0, np.uint64) if f.keys is None else f.keys for f in found]
        every, times = np.unique(np.concatenate(keys), return_counts=True)
        split = [k[np.isin(k, every[times > 1])] for k in keys]
        del every, times, keys
        sent = self.client.scatter(transform, broadcast=True, hash=False) if transform is not None else None
        offset = self._each(
            [delayed(_offset, pure=False)(self.piece, self.pieces[0], self.names[0], sent)], self.names, "offset"
        )[0]
        width = 8 * len(offset) * self.n_kinds()
        n_buckets = max(1, -(-sum(len(s) for s in split) * width // JOINED_BYTES))
        options = {"n_folds": n_folds, "seed": seed, "precision": precision}
        n = max(n_folds, 1)
        task = delayed(_second, pure=False, nout=n + n_buckets)
        tasks = [
            task(self.piece, p, n, s, offset, sent, n_buckets, options)
            for p, n, s in zip(self.pieces, self.names, split, strict=True)
        ]
        ends = list(tasks)
        if any(len(s) for s in split):
            join = delayed(_join, pure=False, nout=n)
            ends += [join([t[n + b] for t in tasks], options) for b in range(n_buckets)]
        totals = []
        for f in range(n):  # each fold in a tree of its own, so that no worker holds the whole
            level: list[Any] = [t[f] for t in ends]
            while len(level) > 1:
                level = [delayed(_add, pure=False)(level[i : i + FAN]) for i in range(0, len(level), FAN)]
            totals += level
        folds = self._watch(totals, tasks)
        return Statistics.from_folds(folds, seed) if n_folds else folds[0]

    def _watch(self, totals: list[Delayed], tasks: list[Delayed]) -> list[Statistics]:
        """The sums; while they are being made, how far that is."""
        everything = self.client.compute([*totals, *tasks])
        results, shards_ = everything[: len(totals)], everything[len(totals) :]
        try:
            for done, future in enumerate(self._ended(shards_), 1):
                if future.status == "error":
                    raise _cause(future.exception(), self.names[shards_.index(future)])
                future.release()
                self.show(done, f"statistics: {done} of {len(tasks)} shards")
            return self.client.gather(results)
        except Exception as error:
            raise _cause(error, "the sum of the shards") from None
        finally:
            _release(everything)

    def forget(self) -> None:
        self._found = None


def _release(futures: list[Any]) -> None:
    """What is not done yet is not wanted any more."""
    for future in futures:
        future.release()


def _cause(error: BaseException | None, name: str) -> BaseException:
    """A user's error with the name of the shard; anything else as it is, if it is not about the data."""
    if isinstance(error, KilledWorker):
        return DuopldaError(
            f"{name}: the workers that took it were killed, one after another. Mostly that is memory: give workers "
            "more, or cut smaller shards"
        )
    if error is None or isinstance(error, DuopldaError):
        return error or DuopldaError(f"{name}: the task was cancelled")
    return DuopldaError(f"{name}: {type(error).__name__}: {error}")


def current_client() -> Any:
    try:
        return default_client()
    except ValueError:
        raise DuopldaError(
            "no client of Dask: make one first, distributed.Client('tcp://scheduler:8786') or Client() for this machine"
        ) from None


def statistics(
    data: Any,
    *,
    speaker: str = "speaker",
    session: str | None = "session",
    channel: str | None = None,
    vectors: str | Sequence[str] = "embedding",
    labels: Table | None = None,
    transform: Transform | None = None,
    n_folds: int = 0,
    seed: int = 0,
    precision: str = "double",
    client: Any = None,
    show: Show | None = None,
) -> Statistics:
    """`Statistics` of shards on a cluster, equal to those of all recordings in one place.

    Parameters
    ----------
    data : shards of `duoplda.io.embedding_shards`; or a dask DataFrame with columns `speaker`, `session`, `channel` and
        `vectors` (a column of lists, or several of numbers); or delayed chunks, each `(X, speaker, session)` or
        `(X, speaker, session, channel)`. Frames and chunks are made twice unless they are persisted.
    labels : of shards, `duoplda.io.read_labels(...)`; None: each shard has them as columns of its own
    transform : a function of (X, channel) that workers apply first, such as `Backend.transform`
    n_folds, seed, precision : as for `Statistics.from_arrays`
    client : of `dask.distributed`; None: the current one
    show : a function of (done, note), called as shards are done

    Examples
    --------
    >>> from dask import delayed
    >>> from distributed import Client
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(20, seed=0)
    >>> chunks = [delayed((X[i : i + 50], speaker[i : i + 50], session[i : i + 50])) for i in range(0, len(X), 50)]
    >>> with Client(processes=False, dashboard_address=None) as client:
    ...     stats = statistics(chunks)
    >>> stats.n_recordings == len(X)
    True
    """
    if hasattr(data, "to_delayed"):  # a dask DataFrame
        wanted = [speaker, session, channel, *([vectors] if isinstance(vectors, str) else vectors)]
        lacking = [c for c in wanted if c is not None and c not in data.columns]
        if lacking:
            raise DuopldaError(f"the data frame has no column {some(lacking)}: it has {some(data.columns)}")
        columns = Columns(speaker, session, channel, vectors if isinstance(vectors, str) else tuple(vectors))
        # (labels alone may come in other partitions: Dask joins those that are small after a choice of columns)
        rows = data[[c for c in wanted if c is not None]].to_delayed()
        names = [f"partition {i}" for i in range(len(rows))]
        cluster = Cluster(rows, columns.piece, names, client, show)
    else:
        data = list(data) if isinstance(data, Iterable) else [data]
        if all(isinstance(s, Shard) for s in data):
            cluster = Cluster.of_shards(data, labels, client, show)
        else:
            cluster = Cluster(data, of_chunk, [f"chunk {i}" for i in range(len(data))], client, show)
    return cluster.statistics(transform, n_folds=n_folds, seed=seed, precision=precision)


# -- scores


def score_blocks(
    model: Backend | PLDA,
    enrolled: Sides,
    tests: Sequence[Any],
    *,
    session: Mapping[str, str] | None = None,
    channel: Mapping[str, str] | None = None,
    top: int | None = None,
    trials: tuple[Any, Any] | None = None,
    wanted: Any = None,
    client: Any = None,
    show: Show | None = None,
) -> Iterator[ScoreBlock]:
    """Log-likelihood ratios of enrolled models and the recordings of shards, a `ScoreBlock` for each shard, in order.

    Parameters
    ----------
    model : the chain or the PLDA that enrolled
    enrolled : models, of `model.enroll`; they are sent to each worker once
    tests : shards of `duoplda.io.embedding_shards`, or delayed chunks `(ids, X)`; each recording is a test
    session, channel : of test recordings by id; a recording without one has a session of its own, its kind is inferred
    top : only the best so many models of each test, so that no matrix comes back
    trials : `(model, test)`, rows of the enrolled (n,) and ids of recordings (n,): only these, with their places
    wanted : ids of recordings, where not all of the shards' are to be scored
    client, show : as for `statistics`

    Examples
    --------
    >>> from dask import delayed
    >>> from distributed import Client
    >>> from duoplda import PLDA
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(40, seed=0)
    >>> plda = PLDA(8, 8).fit(X, speaker, session=session)
    >>> models = plda.enroll(X[:50], speaker[:50], session[:50])
    >>> tests = [delayed((["a", "b"], X[50:52])), delayed((["c"], X[52:53]))]
    >>> with Client(processes=False, dashboard_address=None):
    ...     blocks = list(score_blocks(plda, models, tests, top=1))
    >>> [block.ids.tolist() for block in blocks], blocks[0].rows.shape
    ([['a', 'b'], ['c']], (2, 1))
    """
    client = client or current_client()
    tests = list(tests)
    names = [t.name if isinstance(t, Shard) else f"chunk {i}" for i, t in enumerate(tests)]
    listed = None if trials is None else Trials.of(*trials)
    some_ids = None if wanted is None else np.unique(np.asarray(wanted))
    job = Job(chain_of(model), enrolled, session, channel, top, listed, some_ids)
    sent = client.scatter(job, broadcast=True, hash=False)
    for done, block in enumerate(_in_order(client, score, sent, tests, names), 1):
        if show is not None:
            show(done, f"{done} of {len(tests)} shards")
        yield block


def vectors(
    model: Backend | PLDA,
    shards: Sequence[Shard],
    wanted: Any,
    channel: Mapping[str, str] | None = None,
    *,
    client: Any = None,
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Recordings by id from shards, as the PLDA takes them: ids (n,) that are there, sorted, and rows (n, k)."""
    client = client or current_client()
    chain = chain_of(model)
    sent = client.scatter((chain, np.unique(np.asarray(wanted)), channel), broadcast=True, hash=False)
    parts = list(_in_order(client, _wanted, sent, list(shards), [s.name for s in shards]))
    ids, Z = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
    found = each_once(ids)
    return found, Z[np.argsort(ids)]


def present(shards: Sequence[Shard], wanted: Any, *, client: Any = None) -> NDArray[Any]:
    """Which ids the shards have, sorted; vectors are read only where the format leaves no other way."""
    client = client or current_client()
    sent = client.scatter(np.unique(np.asarray(wanted)), broadcast=True, hash=False)
    return each_once(np.concatenate(list(_in_order(client, _present, sent, list(shards), [s.name for s in shards]))))


def each_once(found: NDArray[Any]) -> NDArray[Any]:
    """Ids that shards have, sorted; that two have one is an error."""
    ids, times = np.unique(found, return_counts=True)
    if (times > 1).any():
        raise DuopldaError(f"{int((times > 1).sum())} ids are in two shards: {some(ids[times > 1])}")
    return ids


def _present(wanted: NDArray[Any], shard: Shard) -> NDArray[Any]:
    ids = shard.ids()
    return ids[np.isin(ids, wanted)]


def _wanted(common: tuple[Any, Any, Any], what: Any) -> tuple[Any, Any]:
    chain, wanted, channel = common
    return recordings(chain, what, wanted, channel)


def _named_call(name: str, function: Any, common: Any, what: Any) -> Any:
    with _named(name):
        return function(common, what)


def _in_order(client: Any, function: Any, common: Any, items: list[Any], names: list[str]) -> Iterator[Any]:
    """`function(common, item)` of each on the cluster, in order; twice as many as there are threads are under way."""
    most, at = 2 * max(1, sum(client.nthreads().values())), 0
    waiting: deque[tuple[Any, str]] = deque()
    task = delayed(_named_call, pure=False)
    try:
        while at < len(items) or waiting:
            while at < len(items) and len(waiting) < most:
                waiting.append((client.compute(task(names[at], function, common, items[at])), names[at]))
                at += 1
            future, name = waiting.popleft()
            try:
                result = future.result()
            except Exception as error:
                raise _cause(error, name) from None
            future.release()
            yield result
    finally:
        _release([future for future, _ in waiting])
