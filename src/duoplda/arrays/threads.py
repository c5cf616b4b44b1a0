"""Threads whose number does not change the results: the cores share the work, and every bit stays the same.

The last digits of a product of matrices depend on the number of threads of BLAS. BLAS is therefore held to one thread,
and our own threads take whole items of work, whose results are put together in the order of the items.
"""

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
from threadpoolctl import LibController, OpenBLASController, ThreadpoolController

from duoplda.arrays.libraries import Array, namespace

Libraries = tuple[list[LibController], list[LibController]]


@cache
def _blas_libraries(with_scipy: bool) -> Libraries:
    """Return BLAS libraries whose number of threads holds for the process, and those where each thread has its own.

    `with_scipy` is only the key of the cache: once SciPy has been imported, there is a second BLAS to be found.
    """
    libraries = [c for c in ThreadpoolController().lib_controllers if c.user_api == "blas"]
    per_thread = [c for c in libraries if getattr(c, "threading_layer", None) == "openmp"]
    return [c for c in libraries if c not in per_thread], per_thread


class BlasThreads:
    """Sets how many threads BLAS may use: one while any caller is inside `held`, else the number from before."""

    def __init__(self, libraries: Callable[[], Libraries]):
        self.libraries = libraries
        self.allowed = 1  # the number of threads that BLAS might use before, the largest over the libraries
        self._lock = RLock()
        self._callers = 0
        self._before: list[tuple[LibController, int]] = []

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold BLAS to one thread while any caller is inside; the last one to leave restores the number from before.

        The same data then always give the same bits. `in_order` makes use of the other cores.
        """
        of_process, of_thread = self.libraries()
        mine = [(library, library.num_threads) for library in of_thread]
        self._set([(library, 1) for library in of_thread])
        with self._lock:
            self._callers += 1
            if self._callers == 1:
                self._before = [(library, library.num_threads) for library in of_process]
                self.allowed = max([n for _, n in self._before + mine], default=1)
                self._set([(library, 1) for library in of_process])
        try:
            yield
        finally:
            with self._lock:
                self._callers -= 1
                if not self._callers:
                    self._set(self._before)
            self._set(mine)

    @staticmethod
    def _set(numbers: list[tuple[LibController, int]]) -> None:
        # threadpoolctl lets one thread of the process change a shared number, and silently ignores all others until
        # that thread is cleared. The method that clears it is not in all versions.
        release = getattr(OpenBLASController, "clear_controlling_thread", lambda force: None)
        for library, n in numbers:
            release(force=True)
            library.set_num_threads(n)
            release(force=True)


# The only instance: the number of threads of BLAS is itself one setting of the process, which all callers share.
blas = BlasThreads(lambda: _blas_libraries("scipy.linalg" in sys.modules))
reproducible = blas.held
_cores_in_use: ContextVar[bool] = ContextVar("cores_in_use", default=False)  # if True, we start no threads


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS to one thread, and `in_order` too, for a task of an engine that has given a core to each task."""
    before = _cores_in_use.set(True)
    try:
        with reproducible():
            yield
    finally:
        _cores_in_use.reset(before)


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
    with reproducible():
        worth_threads = flops >= 1e8  # less takes some milliseconds, about as long as a pool of threads to start
        threads = blas.allowed if worth_threads and not _cores_in_use.get() else 1
        if isinstance(items, Sized) and len(items) < 2:
            threads = 1
        if threads == 1:
            working_memory = () if scratch is None else (scratch(),)
            for item in items:
                yield function(item, *working_memory)
            return
        kept = local()

        def work(item: Any) -> Any:
            with one_blas_thread():
                if scratch is None:
                    return function(item)
                if not hasattr(kept, "scratch"):
                    kept.scratch = scratch()
                return function(item, kept.scratch)

        coming: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(threads) as pool:
            try:
                for item in items:
                    coming.append(pool.submit(copy_context().run, work, item))
                    if len(coming) == 2 * threads:
                        yield coming.popleft().result()
                while coming:
                    yield coming.popleft().result()
            finally:
                for future in coming:
                    future.cancel()


def row_blocks(n: int, like: Array) -> list[slice]:
    """Cut n rows into slices, each of which is the work of one thread; one slice where `like` is not NumPy's."""
    # A product of 1,024 rows runs at the full speed of BLAS, and a few thousand rows already give every core a block.
    step = 1024 if namespace(like) is np else max(n, 1)
    return [slice(a, min(a + step, n)) for a in range(0, n, step)]


def tall_product(X: Array, M: Array) -> Array:
    """Return X M for a tall matrix X. Threads share its rows, and the bits do not depend on their number."""
    if namespace(X) is not np:
        return X @ M
    out = np.empty((len(X), M.shape[1]))
    products = in_order(lambda s: np.matmul(X[s], M, out=out[s]), row_blocks(len(X), X), 2.0 * X.size * M.shape[1])
    deque(products, maxlen=0)
    return out


def gram(X: Array) -> Array:
    """Return X'X in the same way. As both factors are one array, NumPy calls BLAS's syrk, which does half the work."""
    if namespace(X) is not np:
        return X.T @ X
    blocks = row_blocks(max(len(X), 1), X)
    return sum(in_order(lambda s: X[s].T @ X[s], blocks, float(X.size) * X.shape[1]))
