"""Threads that do not show in the results: the cores share the work, and no bit of what comes out changes."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import cache
from threading import RLock, local
from typing import Any

import numpy as np
from threadpoolctl import OpenBLASController, ThreadpoolController

from duoplda.arrays.libraries import Array, namespace

FEW_FLOPS = 1e8  # work of fewer is not worth a pool of threads
ROWS_PER_BLOCK = 1024  # of a tall matrix, for one thread at a time

_lock = RLock()
_holders = 0  # callers that hold BLAS to one thread
_before: list[tuple[Any, int]] = []  # the libraries that they hold, and the numbers of threads from before
_allowed = 1  # the largest of these
_alone: ContextVar[bool] = ContextVar("alone", default=False)  # the cores are in use: no threads of our own


@cache
def _blas(with_scipy: bool) -> tuple[list[Any], list[Any]]:
    """BLAS libraries with one number of threads for the process, and those with one for each of its threads."""
    found = [c for c in ThreadpoolController().lib_controllers if c.user_api == "blas"]
    own = [c for c in found if getattr(c, "threading_layer", None) == "openmp"]
    return [c for c in found if c not in own], own


def _set_threads(numbers: list[tuple[Any, int]]) -> None:
    # threadpoolctl lets only one thread of the process change a shared number, and says nothing to the others.
    release = getattr(OpenBLASController, "clear_controlling_thread", lambda force: None)
    for library, n in numbers:
        release(force=True)
        library.set_num_threads(n)
        release(force=True)


@contextmanager
def reproducible() -> Iterator[None]:
    """Hold BLAS to one thread while any caller is inside; the last one to leave restores the number from before.

    The last digits of a product of matrices depend on the number of threads of BLAS. Held to one, the same data always
    give the same bits; `in_order` brings the other cores to work.
    """
    global _holders, _allowed, _before
    shared, own = _blas("scipy.linalg" in sys.modules)  # SciPy brings a BLAS of its own
    mine = [(c, c.num_threads) for c in own]
    _set_threads([(c, 1) for c in own])
    with _lock:
        _holders += 1
        if _holders == 1:
            _before = [(c, c.num_threads) for c in shared]
            _allowed = max([n for _, n in _before + mine], default=1)
            _set_threads([(c, 1) for c in shared])
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if not _holders:
                _set_threads(_before)
        _set_threads(mine)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """As `reproducible`, and `in_order` starts no threads: for tasks of an engine that has given out the cores."""
    before = _alone.set(True)
    try:
        with reproducible():
            yield
    finally:
        _alone.reset(before)


def in_order(
    function: Callable[..., Any], items: Iterable[Any], flops: float, scratch: Callable[[], Any] | None = None
) -> Iterator[Any]:
    """Yield `function(item)` for each of the items, in their order, computed by as many threads as BLAS was allowed.

    A caller who adds up the results gets the same bits for any number of threads, as long as the items do not depend on
    that number. Only a few results wait at a time. Work of few `flops` in all is done by the calling thread alone.
    With `scratch`, `function(item, scratch())` is called; each thread makes one such object and uses it again.

    >>> list(in_order(lambda n: n * n, [3, 1, 2], flops=1e12))
    [9, 1, 4]
    """
    own = local()

    def work(item: Any) -> Any:
        if scratch is None:
            return function(item)
        if not hasattr(own, "scratch"):
            own.scratch = scratch()
        return function(item, own.scratch)

    def alone(item: Any) -> Any:
        with one_blas_thread():
            return work(item)

    with reproducible():
        threads = 1 if flops < FEW_FLOPS or _alone.get() else _allowed
        if threads == 1 or (isinstance(items, Sized) and len(items) < 2):
            yield from map(work, items)
            return
        coming: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(threads) as pool:
            try:
                for item in items:
                    coming.append(pool.submit(copy_context().run, alone, item))
                    if len(coming) == 2 * threads:
                        yield coming.popleft().result()
                while coming:
                    yield coming.popleft().result()
            finally:
                for future in coming:
                    future.cancel()


def row_blocks(n: int, like: Array) -> list[slice]:
    """Slices of n rows, for one thread at a time; a single one where `like` is not NumPy's."""
    step = ROWS_PER_BLOCK if namespace(like) is np else max(n, 1)
    return [slice(a, min(a + step, n)) for a in range(0, n, step)]


def tall_product(X: Array, M: Array) -> Array:
    """X M for a tall matrix X, in blocks of rows that the threads share; the same bits for any number of them."""
    if namespace(X) is not np:
        return X @ M
    out = np.empty((len(X), M.shape[1]))
    deque(in_order(lambda s: np.matmul(X[s], M, out=out[s]), row_blocks(len(X), X), 2.0 * X.size * M.shape[1]), 0)
    return out


def gram(X: Array) -> Array:
    """X'X, likewise. NumPy sees that both factors are one array and calls syrk, which is half the work."""
    if namespace(X) is not np:
        return X.T @ X
    blocks = row_blocks(max(len(X), 1), X)
    return sum(in_order(lambda s: X[s].T @ X[s], blocks, float(X.size) * X.shape[1]))
