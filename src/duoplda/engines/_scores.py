"""Scores on a cluster of Dask: models are sent to the workers once, recordings are scored where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.data.labels import Ints
from duoplda.errors import DuopldaError, some
from duoplda.estimators.backend import Backend
from duoplda.estimators.plda import PLDA
from duoplda.io.shards import Shard
from duoplda.trials.blocks import Sides


@dataclass(frozen=True, eq=False)
class ScoreBlock:
    """Scores of the test recordings of one shard."""

    ids: NDArray[Any]  # (n,)
    scores: NDArray[np.float64]  # (models, n); (n, k) with top, best first; (m,) of listed trials
    rows: Ints | None = None  # (n, k) the models, with top; (m,) which of the trials these are


@dataclass(frozen=True, eq=False)
class Trials:
    """Listed trials by test recording, so that each worker finds those of its shard."""

    tests: NDArray[Any]  # (t,) ids, sorted
    start: Ints  # (t + 1,) the trials of a test are order[start[i] : start[i + 1]]
    order: Ints  # (n,)
    model: Ints  # (n,) rows of the enrolled

    @staticmethod
    def of(model: Any, test: Any) -> Trials:
        """`model` (n,) rows of the enrolled, `test` (n,) ids of recordings."""
        tests, code = np.unique(np.asarray(test), return_inverse=True)
        order = np.argsort(code.reshape(-1), kind="stable")
        start = np.concatenate([[0], np.cumsum(np.bincount(code.reshape(-1), minlength=len(tests)))])
        return Trials(tests, start, order, np.asarray(model))

    def among(self, ids: NDArray[Any]) -> tuple[Ints, Ints, Ints]:
        """Rows of ids that are tested; and of their trials, which these are, and which of those rows they test."""
        place = np.minimum(np.searchsorted(self.tests, ids), len(self.tests) - 1)
        rows = np.flatnonzero(self.tests[place] == ids)
        first, last = self.start[place[rows]], self.start[place[rows] + 1]
        n = last - first
        each = np.repeat(first - np.cumsum(n) + n, n) + np.arange(n.sum())
        return rows, self.order[each], np.repeat(np.arange(len(rows)), n)


@dataclass(frozen=True, eq=False)
class Job:
    """All that is the same for every shard."""

    chain: Backend
    enrolled: Sides
    session: Mapping[str, str] | None
    channel: Mapping[str, str] | None
    top: int | None
    trials: Trials | None
    wanted: NDArray[Any] | None = None  # sorted ids; None: all


def recordings(
    chain: Backend, what: Any, wanted: NDArray[Any] | None, channel: Mapping[str, str] | None
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Ids of a shard, or of a chunk `(ids, X)`, that are wanted, and their vectors as the PLDA takes them."""
    ids, X = what.load() if isinstance(what, Shard) else (np.asarray(what[0]), np.asarray(what[1]))
    if X.ndim != 2 or len(ids) != len(X) or X.shape[1] != chain.n_features_in_:
        raise DuopldaError(f"has {len(ids)} ids and vectors of shape {X.shape}; the model takes {chain.n_features_in_}")
    if wanted is not None:
        place = np.minimum(np.searchsorted(wanted, ids), max(len(wanted) - 1, 0))
        keep = wanted[place] == ids if len(wanted) else np.zeros(len(ids), bool)
        ids, X = ids[keep], X[keep]
    bad = np.flatnonzero(~np.isfinite(X).all(axis=1))
    if len(bad):
        raise DuopldaError(f"the vectors of {some(ids[bad])} have NaN or infinity")
    if not len(ids):
        return ids, np.zeros((0, chain.plda_.n_features_in_))
    kinds = None if channel is None else [channel.get(i, "") for i in ids.tolist()]
    return ids, chain.transform(X, kinds)


def score(job: Job, what: Any) -> ScoreBlock:
    """On a worker: the recordings of one shard against all models, or in the listed trials."""
    chain = job.chain
    ids, Z = recordings(chain, what, job.wanted if job.trials is None else job.trials.tests, job.channel)
    if not len(ids):
        empty = np.zeros((len(job.enrolled), 0)) if job.top is None and job.trials is None else np.zeros(0)
        return ScoreBlock(ids, empty, None if empty.ndim == 2 else np.zeros(0, np.int64))
    names = ids.tolist()
    session = None if job.session is None else [job.session.get(i, f"recording {i}") for i in names]
    kinds = None if job.channel is None else [job.channel.get(i, "") for i in names]
    tests = chain.plda_.enroll(Z, np.arange(len(ids)), session, kinds)
    if job.trials is not None:
        _, which, test = job.trials.among(ids)
        pairs = np.column_stack([job.trials.model[which], test])
        return ScoreBlock(ids, chain.llr(job.enrolled, tests, pairs), which)
    if job.top is not None:
        rows, scores = chain.top(job.enrolled, tests, job.top)
        return ScoreBlock(ids, scores, rows)
    return ScoreBlock(ids, chain.llr(job.enrolled, tests))


def chain_of(model: Backend | PLDA) -> Backend:
    return model if isinstance(model, Backend) else Backend.from_plda(model)
