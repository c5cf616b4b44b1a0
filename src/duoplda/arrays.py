"""The array library of the input (NumPy, torch, or any of the array API standard), and what that standard lacks.

The input decides where the work is done and what comes out: `namespace(X)` gives the library `xp`, and the numeric
rooms call `xp.*`. Labels, ids and counts are always arrays of NumPy, on the host. For NumPy's arrays, `in_order` and
what is built on it share the work between threads without changing any bit of the results.
"""

import importlib
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import cache
from threading import RLock, local
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import OpenBLASController, ThreadpoolController

from duoplda.errors import DuopldaError, some

Array = Any  # an array of NumPy, torch or another library of the array API standard


def namespace(*arrays: Any) -> Any:
    """The array library of the first argument that is an array but not NumPy's; NumPy otherwise."""
    for array in arrays:
        if isinstance(array, np.ndarray):
            continue
        if type(array).__module__.partition(".")[0] == "torch":
            return _torch()
        if hasattr(array, "__array_namespace__"):
            return array.__array_namespace__()
    return np


@cache
def _torch() -> Any:
    try:
        return importlib.import_module("array_api_compat.torch")  # torch with the names of the standard
    except ImportError:
        raise DuopldaError("tensors of torch need array-api-compat: pip install 'duoplda[torch]'") from None


def is_torch(xp: Any) -> bool:
    return "torch" in xp.__name__


def to_numpy(array: Any) -> NDArray[Any]:
    """A host copy (or view) of any array; a masked array must have no masked entry."""
    if isinstance(array, np.ma.MaskedArray):
        mask = np.atleast_1d(np.ma.getmaskarray(array))
        masked = np.flatnonzero(mask.any(axis=tuple(range(1, mask.ndim))))
        if len(masked):
            raise DuopldaError(f"the array has masked entries in rows {some(masked)}: remove these rows first")
        return array.data
    if isinstance(array, np.ndarray):
        return array
    if hasattr(array, "detach"):
        array = array.detach().cpu()
    try:
        return np.asarray(array)
    except (TypeError, RuntimeError):
        if not hasattr(array, "__dlpack__"):
            raise
        return np.from_dlpack(array, device="cpu")


def to_float(array: Any, xp: Any) -> Array:
    """The array in double precision, in its own library and on its own device; a list or NumPy's array in `xp`."""
    if xp is np:
        return np.asarray(array, dtype=np.float64)
    if namespace(array) is np:
        return xp.asarray(np.asarray(array, dtype=np.float64))
    if is_torch(xp):
        array = array.detach()  # no gradient is traced: EM would drag the whole history along
    return xp.astype(array, xp.float64, copy=False)


def put(host: Any, like: Array) -> Array:
    """A host array as doubles (or 64-bit integers) where `like` is; arrays of its library are returned as they are."""
    xp = namespace(like)
    if xp is not np and namespace(host) is xp:
        return host
    host = to_numpy(host)
    host = host.astype(np.int64 if host.dtype.kind in "biu" else np.float64, copy=False)
    if getattr(like, "is_cuda", False):  # from pinned memory, so that nobody waits for what the GPU is doing
        dtype = xp.int64 if host.dtype == np.int64 else xp.float64
        pinned = xp.empty(host.shape, dtype=dtype, pin_memory=True)
        pinned.numpy()[...] = host
        return pinned.to(like.device, non_blocking=True)
    return host if xp is np else xp.asarray(host, device=like.device)


def on_device(X: Any, device: Any) -> Array:
    """Rows of the host as a tensor on a device of torch; where that is None or "cpu", or for tensors, as they are."""
    if device is None or str(device) == "cpu" or namespace(X) is not np:
        return X
    try:
        import torch
    except ImportError:
        raise DuopldaError(f"device {device!r} needs torch: pip install 'duoplda[torch]'") from None
    try:
        torch.zeros(1, dtype=torch.float64, device=device).cpu()  # not every device has doubles, or gives data back
        return torch.tensor(to_numpy(X), device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise DuopldaError(f"device {device!r} cannot be used: {cause}") from None


class _Sender:
    """Copies rows of a host array to a device, in a stream of its own.

    A GPU reads pinned memory only. Rows that lie elsewhere are first copied there by all cores, which takes longer than
    the way over the bus; three buffers keep both busy.
    """

    def __init__(self, X: NDArray[Any], rows: int, device: Any):
        import torch

        self.X = X
        self.rows = rows
        self.device = device
        cuda = device.type == "cuda"
        known = X.dtype.kind == "f" and X.dtype.itemsize <= 8
        self.dtype = X.dtype.newbyteorder("=") if known else np.dtype(np.float64)
        self.tensor: Array = _tensor(X) if X.dtype == self.dtype else None
        self.pinned = cuda and self.tensor is not None and self.tensor.is_pinned()
        self.buffers: list[Array] = []
        self.copied: list[Any] = [None] * 3  # when each buffer has been read
        self.sent = 0
        self.side = torch.cuda.Stream(device) if cuda else None
        if self.side is not None:
            self.side.wait_stream(torch.cuda.current_stream(device))  # which may still use memory that we were given

    def room(self, rows: int) -> dict[str, Any]:
        """The arguments of `torch.empty` for so many rows."""
        import torch

        return {"size": (rows, self.X.shape[1]), "dtype": torch.from_numpy(np.empty(0, self.dtype)).dtype}

    def __call__(self, part: Any, out: Array, after: Any = None) -> Any:
        """Copy rows (a slice or indices) to `out`, on the device after an event; the event when they are there."""
        import torch

        if self.side is None:
            block = out if out.device.type == "cpu" else torch.empty_like(out, device="cpu")
            self._gather(part, block)
            if block is not out:
                out.copy_(block)
            return None
        direct = self.pinned and isinstance(part, slice)
        i = self.sent % 3
        self.sent = self.sent + 1
        if (before := self.copied[i - direct]) is not None:  # one copy at a time without buffers, so that others, of
            before.synchronize()  # labels and small numbers, get their turn
        if direct:
            block = self.tensor[part]
        else:
            while len(self.buffers) <= i:
                self.buffers.append(torch.empty(**self.room(self.rows), pin_memory=True))
            block = self.buffers[i][: out.shape[0]]
            self._gather(part, block)
        with torch.cuda.stream(self.side):
            if after is not None:
                self.side.wait_event(after)
            out.copy_(block, non_blocking=True)
            self.copied[i] = self.side.record_event()
        return self.copied[i]

    def _gather(self, part: Any, out: Array) -> None:
        import torch

        if self.tensor is None:
            out.numpy()[...] = self.X[part]
        elif isinstance(part, slice):
            out.copy_(self.tensor[part])
        else:
            torch.index_select(self.tensor, 0, torch.from_numpy(part), out=out)

    def now(self, event: Any) -> None:
        """What is asked of the device from now on waits for an event."""
        import torch

        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)

    def done(self) -> Any:
        """An event: what has been asked of the device until now."""
        import torch

        return None if self.side is None else torch.cuda.current_stream(self.device).record_event()

    def end(self) -> None:
        """Nobody gets the memory that was written to before the last copy has arrived."""
        self.now(None if self.side is None else self.side.record_event())


def streamed(X: NDArray[Any], parts: list[Any], like: Array) -> Iterator[Array]:
    """Blocks of rows of a host array (slices or indices) on the device of `like`; while one is used, two others come.

    A block is overwritten when others are asked for.
    """
    import torch

    sizes = [p.stop - p.start if isinstance(p, slice) else len(p) for p in parts]
    send = _Sender(X, max(sizes, default=0), like.device)
    there = [torch.empty(**send.room(max(sizes, default=0)), device=like.device) for _ in range(3)]
    used: list[Any] = [None] * 3  # when the work on each of these was done

    def fetch(i: int) -> tuple[Array, Any]:
        block = there[i % 3][: sizes[i]]
        return block, send(parts[i], block, used[i % 3])

    with ThreadPoolExecutor(1) as thread:
        coming = deque(thread.submit(fetch, i) for i in range(min(2, len(parts))))
        try:
            for i in range(len(parts)):
                block, event = coming.popleft().result()
                if i + 2 < len(parts):
                    coming.append(thread.submit(fetch, i + 2))
                send.now(event)
                yield block
                used[i % 3] = send.done()
        finally:  # the caller may have stopped early
            deque((each.exception() for each in coming), maxlen=0)
            send.end()


class Arriving:
    """A host array on its way to a device that has room for it, in the order of its rows, while other work is done."""

    def __init__(self, X: NDArray[Any], like: Array, size: int):
        """`size` bytes of rows are copied at a time."""
        import torch

        n = X.shape[0]
        step = max(256, size // (X.dtype.itemsize * X.shape[1]))
        self.step = step
        self.send = _Sender(X, min(step, n), like.device)
        self.there = torch.empty(**self.send.room(n), device=like.device)
        parts = [slice(a, min(a + step, n)) for a in range(0, n, step)]
        thread = ThreadPoolExecutor(1)
        self.events = [thread.submit(self.send, p, self.there[p]) for p in parts]
        thread.shutdown(wait=False)

    @staticmethod
    def fits(X: NDArray[Any], like: Array) -> bool:
        """Whether the array, in double precision, takes at most a quarter of the memory of a GPU that is free."""
        import torch

        return like.device.type != "cuda" or 4 * 8 * X.size <= torch.cuda.mem_get_info(like.device)[0]

    def rows(self, part: slice) -> Array:
        """Some of the rows, as soon as they are there."""
        for event in self.events[part.start // self.step : -(-part.stop // self.step)]:
            self.send.now(event.result())
        return self.there[part]

    def end(self) -> None:
        """Nothing more is wanted."""
        for event in self.events:
            event.cancel()
        deque((event.exception() for event in self.events if not event.cancelled()), maxlen=0)
        self.send.end()


def _tensor(X: NDArray[Any]) -> Array | None:
    """A host array as a tensor that shares its memory, where torch can do that."""
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the array may be read-only: it is only read
            return torch.from_numpy(X)
    except ValueError:  # negative strides
        return None


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    xp = namespace(like)
    return np.zeros(shape) if xp is np else xp.zeros(shape, dtype=xp.float64, device=like.device)


def arange(n: int, like: Array) -> Array:
    """0 .. n-1 where `like` is."""
    xp = namespace(like)
    return np.arange(n) if xp is np else xp.arange(n, dtype=xp.int64, device=like.device)


def eye(n: int, like: Array) -> Array:
    xp = namespace(like)
    return np.eye(n) if xp is np else xp.eye(n, dtype=xp.float64, device=like.device)


def take(array: Array, index: NDArray[Any]) -> Array:
    """Rows of an array by host indices."""
    xp = namespace(array)
    return np.take(array, index, axis=0) if xp is np else xp.take(array, put(index, array), axis=0)


def set_rows(array: Array, index: NDArray[Any], rows: Array) -> None:
    """`array[index] = rows` in place."""
    if isinstance(array, np.ndarray):
        array[index] = rows
    elif is_torch(namespace(array)):
        array[put(index, array)] = rows
    else:
        for at, i in enumerate(index):
            array[int(i), ...] = rows[at, ...]


def add_rows(array: Array, index: NDArray[Any], rows: Array) -> None:
    """`array[index] += rows` in place, where no index repeats."""
    xp = namespace(array)
    if xp is np:
        array[index] += rows
    elif is_torch(xp):
        array.index_add_(0, put(index, array), rows)
    else:
        set_rows(array, index, take(array, index) + rows)


def segment_sums(rows: Array, starts: NDArray[Any]) -> Array:
    """Sums of consecutive rows; segment s begins at row `starts[s]`, and none is empty. Not always a copy."""
    xp = namespace(rows)
    if len(starts) == rows.shape[0]:  # every segment is one row
        return rows
    if xp is np:
        return _indicator(starts, rows) @ rows
    ends = np.append(starts[1:], rows.shape[0])
    if is_torch(xp):
        out = zeros((len(starts), rows.shape[1]), rows)
        out.index_add_(0, put(np.repeat(np.arange(len(starts)), ends - starts), rows), rows)
        return out
    return xp.stack([xp.sum(rows[a:b, :], axis=0) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)])


def _indicator(starts: NDArray[Any], rows: NDArray[Any]) -> Any:
    """The sparse matrix that adds up segments of rows: ten times as fast as np.add.reduceat, which goes by columns."""
    from scipy.sparse import csr_array

    n = rows.shape[0]
    return csr_array((np.ones(n, rows.dtype), np.arange(n), np.append(starts, n)), shape=(len(starts), n))


def add_segments(array: Array, index: Array, rows: Array) -> None:
    """`array[index] += rows` in place, for an increasing index that may repeat."""
    xp = namespace(array)
    index = to_numpy(index)
    starts = np.flatnonzero(np.diff(index, prepend=-1))
    ends = np.append(starts[1:], len(index))
    if not is_torch(xp):
        add_rows(array, index[starts], segment_sums(rows, starts))
    elif len(starts) <= 8 and 64 * len(starts) < len(index):  # long runs, each column of which one thread would add up
        for i, a, b in zip(index[starts].tolist(), starts.tolist(), ends.tolist(), strict=True):
            array[i] += rows[a:b].sum(0)
    else:  # sums of runs first: faster than adding rows one by one, and always the same
        sums = xp.segment_reduce(rows, "sum", lengths=put(ends - starts, array), axis=0, unsafe=True)
        array.index_add_(0, put(index[starts], array), sums)


def bincount(index: Array, n: int) -> Array:
    """How often each of the integers 0 .. n - 1 occurs in an array."""
    if isinstance(index, np.ndarray):
        return np.bincount(index, minlength=n)
    table = index.new_zeros(n)  # torch's own would look for the largest first, and wait for it
    return table.scatter_add_(0, index, index.new_ones(1).expand_as(index))


def ranked(values: Array) -> tuple[Array, Array, Array]:
    """The distinct integers (>= 0) in increasing order, the rank of each entry among them, and how often they occur."""
    xp = namespace(values)
    high = int(xp.max(values)) + 1 if values.shape[0] else 0
    if high > 4 * values.shape[0] + 1024:  # too many for a table, which is several times faster than sorting
        if xp is np:
            return np.unique(values, return_inverse=True, return_counts=True)
        return values.unique(return_inverse=True, return_counts=True)
    table = bincount(values, high)
    distinct = xp.nonzero(table)[0]
    return distinct, (xp.cumulative_sum(xp.astype(table > 0, xp.int64)) - 1)[values], table[distinct]


def symmetric(matrix: Array) -> Array:
    """The symmetric part, to remove the last digit's asymmetry."""
    return (matrix + matrix.mT) / 2


def logdet_cholesky(factor: Array) -> Array:
    """ln|CC'| of triangular factors C (..., n, n)."""
    xp = namespace(factor)
    return 2 * xp.sum(xp.log(xp.linalg.diagonal(factor)), axis=-1)


class NotPositiveDefinite(ArithmeticError):
    """A matrix that should be symmetric and positive definite is not, or not as far as its digits show."""


def _checked(function: Callable[..., Array], *matrices: Array) -> Array:
    """What a function of linear algebra gives; NotPositiveDefinite where it fails, whatever the library does then."""
    xp = namespace(*matrices)
    library = sys.modules["torch"] if is_torch(xp) else np
    try:
        result = function(*matrices)
    except library.linalg.LinAlgError as error:
        raise NotPositiveDefinite(str(error)) from None
    if not bool(xp.all(xp.isfinite(result))):  # other libraries return NaN
        raise NotPositiveDefinite("the result is not finite")
    return result


def cholesky(matrices: Array) -> Array:
    """Lower triangular C with CC' = A, of symmetric positive definite matrices A (..., n, n)."""
    return _checked(namespace(matrices).linalg.cholesky, matrices)


def solve(matrices: Array, rhs: Array) -> Array:
    """A^-1 B for regular matrices A (..., n, n) and B (..., n, m)."""
    return _checked(namespace(matrices, rhs).linalg.solve, matrices, rhs)


def spd_inverse(matrices: Array) -> tuple[Array, Array]:
    """Inverses and ln-determinants of symmetric positive definite matrices (..., n, n)."""
    xp = namespace(matrices)
    n = matrices.shape[-1]
    if n == 0:
        return matrices, zeros(matrices.shape[:-2], matrices)
    if xp is np:
        out = np.array(matrices, dtype=np.float64, order="C")
        ln = SpdInverse()(out.reshape(-1, n, n))
        return out, ln.reshape(matrices.shape[:-2])
    factor = cholesky(matrices)
    inverse = xp.cholesky_inverse(factor) if is_torch(xp) else symmetric(_checked(xp.linalg.inv, matrices))
    return inverse, logdet_cholesky(factor)


class SpdInverse:
    """Inverts stacks (m, n, n) of symmetric positive definite matrices in place; returns their ln-determinants.

    By block elimination: with M = [A B'; B C], X = B A^-1 and S = C - X B',

        M^-1 = [A^-1 + X'S^-1 X, -X'S^-1; -S^-1 X, S^-1],   ln|M| = ln|A| + ln|S|,

    down to blocks of 32 or fewer rows, which are inverted by Cholesky factors. Most of the work is then products of
    stacks, during which Python's other threads run. SciPy's potrf and potri would need fewer operations, but they
    belong to another BLAS than NumPy's products, and the threads of the two wait for each other (an iteration was five
    times slower). Buffers are kept between calls: half of the time would go into getting new pages from the system. One
    object serves one thread.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, ...], NDArray[Any]] = {}

    def buffer(self, use: int, m: int, rows: int, columns: int) -> NDArray[Any]:
        """A stack (m, rows, columns), at first 0, that is the same memory for each use; own uses are 0 and more."""
        kept = self._buffers.get((use, rows, columns))
        if kept is None or len(kept) < m:
            kept = self._buffers[use, rows, columns] = np.zeros((m, rows, columns))
        return kept[:m]

    def __call__(self, M: NDArray[Any]) -> NDArray[Any]:
        return _checked(self._inverted, M)

    def quarters(self, A: NDArray[Any], B: NDArray[Any], T: NDArray[Any], C: NDArray[Any]) -> NDArray[Any]:
        """The same for stacks [A T; B C], T = B', whose blocks are arrays of their own; T is read only.

        What is done to each number of a block is several times as fast in an array of its own as in a part of another.
        """
        return _checked(self._inverted, A, B, T, C)

    def _inverted(self, *blocks: NDArray[Any]) -> NDArray[Any]:
        invert: Callable[..., None] = self._eliminate if len(blocks) > 1 else self._invert
        n = blocks[0].shape[1] + sum(C.shape[1] for C in blocks[3:])
        diagonal = self.buffer(0, 1, len(blocks[0]), n)[0]
        invert(*blocks, diagonal)
        ln: NDArray[Any] = 2.0 * np.log(diagonal).sum(axis=1)
        return ln

    def _invert(self, M: NDArray[Any], diagonal: NDArray[Any]) -> None:
        """Also writes the diagonals (m, n) of Cholesky factors."""
        m, n = M.shape[:2]
        h = M.shape[1] // 2
        if n <= 32:
            factor = np.linalg.cholesky(M)
            diagonal[...] = np.diagonal(factor, axis1=1, axis2=2)
            inverse = self._lower(factor) if m >= 8 and n else np.linalg.inv(factor)
            # Half of it is 0. As a single product it would go to syrk, which is slow for small matrices.
            np.matmul(inverse.mT, inverse[:, :, :h], out=M[:, :, :h])
            np.matmul(inverse[:, h:].mT, inverse[:, h:, h:], out=M[:, :, h:])
            return
        B = M[:, h:, :h]
        T = M[:, :h, h:]
        self._eliminate(M[:, :h, :h], B, T, M[:, h:, h:], diagonal)
        T[...] = B.mT

    def _eliminate(
        self, A: NDArray[Any], B: NDArray[Any], T: NDArray[Any], C: NDArray[Any], diagonal: NDArray[Any]
    ) -> None:
        m, k, h = B.shape
        self._invert(A, diagonal[:, :h])
        X = np.matmul(B, A, out=self.buffer(1, m, k, h))
        np.negative(X, out=X)
        C += np.matmul(X, T, out=self.buffer(2, m, k, k))
        self._invert(C, diagonal[:, h:])
        np.matmul(C, X, out=B)
        A += np.matmul(X.mT, B, out=self.buffer(2, m, h, h))

    def _lower(self, L: NDArray[Any]) -> NDArray[Any]:
        """L^-1 of lower triangular L (m, n, n): first all blocks of 5 on the diagonal, then the rows of blocks in turn.

        The numbers at one place of all these blocks lie side by side, so that a few calls invert them all. If the last
        block is smaller, it goes on as an identity. Above the diagonal the buffers stay 0.
        """
        m, n = L.shape[:2]
        b = 5
        starts = range(0, n, b)
        D, X, terms = (self.buffer(use, b, b, m * len(starts)) for use in (3, 4, 5))
        own = D.reshape(b, b, len(starts), m)
        own[:, :, -1] = np.eye(b)[:, :, None]
        for j, a in enumerate(starts):
            e = min(b, n - a)
            own[:e, :e, j] = L[:, a : a + e, a : a + e].transpose(1, 2, 0)
        for i in range(b):
            np.divide(1.0, D[i, i], out=X[i, i])
            np.multiply(D[i, :i, None], X[:i, :i], out=terms[:i, :i])
            X[i, :i] = terms[:i, :i].sum(axis=0)
            X[i, :i] *= -X[i, i]
        own = X.reshape(b, b, len(starts), m).transpose(2, 3, 0, 1)
        out = self.buffer(6, m, n, n)
        for j, a in enumerate(starts):
            e = min(a + b, n)
            out[:, a:e, a:e] = own[j, :, : e - a, : e - a]
            np.matmul(out[:, a:e, a:e], -L[:, a:e, :a] @ out[:, :a, :a], out=out[:, a:e, :a])
        return out


FEW_FLOPS = 1e8  # work of fewer is not worth a pool of threads
ROWS = 1024  # of a tall matrix, for one thread at a time

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
    step = ROWS if namespace(like) is np else max(n, 1)
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


def check_rows(X: Any) -> tuple[Array, Any]:
    """A two-dimensional array of real numbers, in its own library."""
    xp = namespace(X)
    X = to_numpy(X) if xp is np else X
    if xp.isdtype(X.dtype, "complex floating"):
        raise DuopldaError(f"recordings must be real numbers, got complex ones ({X.dtype})")
    if xp is np and X.dtype.kind not in "fiub":
        try:
            X = X.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise DuopldaError(f"recordings must be numbers, got dtype {X.dtype}: {error}") from None
    if X.ndim != 2:
        raise DuopldaError(f"recordings must be a matrix of shape (recordings, dimensions), got shape {tuple(X.shape)}")
    if X.shape[0] == 0 or X.shape[1] == 0:
        raise DuopldaError(f"found an array with shape {tuple(X.shape)}: at least one recording is needed")
    return X, xp


def check_finite(X: Array) -> None:
    """Name the rows that are not finite."""
    xp = namespace(X)
    bad = np.flatnonzero(~to_numpy(xp.all(xp.isfinite(X), axis=1)))
    if len(bad):
        where = f"{len(bad)} of {X.shape[0]} rows: {some(bad)}"
        remedy = "Remove these recordings, or look at what the extractor did with them (empty or silent audio?)"
        raise DuopldaError(f"Input X contains NaN or infinity in {where}. {remedy}")
