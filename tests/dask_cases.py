"""A cluster of Dask for tests that are not about processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def cluster_in_threads(n_workers: int) -> Iterator[Any]:
    """A client of workers that are threads of this process, and start at once.

    They talk over TCP, so that tasks and results are pickled, as between machines. Workers that are processes of their
    own are in tests/test_engines_dask.py and tests/test_cli_adapt.py.
    """
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": n_workers, "threads_per_worker": 1, "processes": False, "protocol": "tcp"}
    with (
        distributed.LocalCluster(**options, dashboard_address=None, silence_logs=50) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client
