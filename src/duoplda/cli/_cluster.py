"""Commands on a cluster of Dask (`--dask`)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from duoplda.cli.score import PAIRS, Work
from duoplda.errors import DuopldaError

if TYPE_CHECKING:
    from duoplda.io import Scores


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes that are started inside pay no heed to Ctrl-C: it is for the command, which ends them."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which processes inherit
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def dask_client(where: str) -> Iterator[Any]:
    """A client of the scheduler at an address, or of a cluster of processes on this machine (`local`)."""
    from duoplda.engines.dask import Client, LocalCluster

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


@dataclass
class ClusterWork(Work):
    """Models that are enrolled here, and test recordings that are scored where their shards lie."""

    client: Any = None
    shards: Any = ()
    maps: Any = (None, None)  # sessions and channels by recording
    n: int = 0

    @property
    def n_tests(self) -> int:
        return self.n

    def _blocks(self, **what: Any) -> Iterator[Any]:
        import numpy as np

        from duoplda.engines.dask import each_once, score_blocks

        options = {"session": self.maps[0], "channel": self.maps[1], "client": self.client}
        if len(self.test_ids) and "trials" not in what:
            options["wanted"] = self.test_ids
        seen = []
        for block in score_blocks(self.chain, self.sides(), self.shards, **options, **what):
            seen.append(block.ids)
            if len(block.ids):
                yield block
        self.n = len(each_once(np.concatenate(seen)))

    def listed(self) -> Iterator[Scores]:
        import numpy as np

        from duoplda.io import Coded, Scores

        values = np.full(len(self.pairs), np.nan)
        for block in self._blocks(trials=(self.pairs[:, 0], self.test_ids[self.pairs[:, 1]])):
            values[block.rows] = block.scores
        for i in range(0, len(values), PAIRS):
            codes = self.pairs[i : i + PAIRS].astype(np.int32)
            yield Scores(Coded(self.models, codes[:, 0]), Coded(self.test_ids, codes[:, 1]), values[i : i + PAIRS])

    def everything(self) -> Iterator[Scores]:
        import numpy as np

        for block in self._blocks():
            n, m = len(block.ids), len(self.models)
            yield self._of(block, np.tile(np.arange(m), n), np.repeat(np.arange(n), m), block.scores.T)

    def best(self, top: int) -> Iterator[Scores]:
        import numpy as np

        for block in self._blocks(top=top):
            n, k = block.rows.shape
            yield self._of(block, block.rows, np.repeat(np.arange(n), k), block.scores)

    def full(self) -> Any:
        import numpy as np

        from duoplda.io import ScoreMatrix

        blocks = list(self._blocks())
        ids = np.concatenate([b.ids for b in blocks])
        order = np.argsort(ids)
        return ScoreMatrix(self.models, ids[order], np.concatenate([b.scores for b in blocks], axis=1)[:, order])

    def _of(self, block: Any, rows: Any, columns: Any, values: Any) -> Scores:
        import numpy as np

        from duoplda.io import Coded, Scores

        models, tests = (
            Coded(self.models, rows.reshape(-1).astype(np.int32)),
            Coded(block.ids, columns.astype(np.int32)),
        )
        return Scores(models, tests, values.reshape(-1))
