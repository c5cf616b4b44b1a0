"""Copies of rows from the host to a GPU, which overlap with its work on the rows that have arrived."""

import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays.libraries import Array

Part = slice | NDArray[np.int64]  # rows of an array
Event = Any  # an event of a torch stream; None where the device is the host, which has no streams


class _Sender:
    """Copies rows of a host array to a device, in a stream of its own.

    A GPU reads pinned memory only. Other rows are first copied into pinned buffers by all cores, which takes longer
    than the transfer to the GPU. With three buffers, both go on at the same time.
    """

    def __init__(self, X: NDArray[Any], rows: int, device: Any):
        import torch

        self.X = X
        self.rows = rows
        self.device = device
        cuda = device.type == "cuda"
        known = X.dtype.kind == "f" and X.dtype.itemsize <= 8
        self.dtype = X.dtype.newbyteorder("=") if known else np.dtype(np.float64)
        self.tensor: Array = None  # shares the memory of X, where torch can do that
        if X.dtype == self.dtype:
            with warnings.catch_warnings(), suppress(ValueError):  # torch refuses negative strides
                warnings.simplefilter("ignore")  # torch warns of read-only arrays, and this one is only read
                self.tensor = torch.from_numpy(X)
        self.pinned = cuda and self.tensor is not None and self.tensor.is_pinned()
        self.buffers: list[Array] = []
        self.copied: list[Event] = [None] * 3  # when each buffer has been read
        self.sent = 0
        self.side = torch.cuda.Stream(device) if cuda else None
        if self.side is not None:
            self.side.wait_stream(torch.cuda.current_stream(device))  # which may still use memory that we were given

    def room(self, rows: int) -> dict[str, Any]:
        """Return the arguments of `torch.empty` for a block of this number of rows."""
        import torch

        return {"size": (rows, self.X.shape[1]), "dtype": torch.from_numpy(np.empty(0, self.dtype)).dtype}

    def __call__(self, part: Part, out: Array, after: Event = None) -> Event:
        """Copy rows to `out` once the device has reached the event `after`; return the event of their arrival."""
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
        # A buffer must have been read before it is overwritten. Without buffers, one copy is made at a time, so that
        # other copies, such as those of labels, need not wait for all of them.
        before = self.copied[i - direct]
        if before is not None:
            before.synchronize()
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

    def _gather(self, part: Part, out: Array) -> None:
        """Copy rows to memory of the host."""
        import torch

        if self.tensor is None:
            out.numpy()[...] = self.X[part]
        elif isinstance(part, slice):
            out.copy_(self.tensor[part])
        else:
            torch.index_select(self.tensor, 0, torch.from_numpy(part), out=out)

    def wait(self, event: Event) -> None:
        """Make all work that is queued on the device from now on wait for an event."""
        import torch

        if event is not None:
            torch.cuda.current_stream(self.device).wait_event(event)

    def done(self) -> Event:
        """Return an event that occurs when the device has finished all work queued until now."""
        import torch

        return None if self.side is None else torch.cuda.current_stream(self.device).record_event()

    def end(self) -> None:
        """Keep the memory that is written to from being reused before the last copy has arrived."""
        self.wait(None if self.side is None else self.side.record_event())


def streamed(X: NDArray[Any], parts: Sequence[Part], like: Array) -> Iterator[Array]:
    """Yield blocks of rows of a host array (slices or indices) on the device of `like`.

    While the caller uses one block, the next two are copied. A block may be overwritten once the next is asked for.
    """
    import torch

    sizes = [p.stop - p.start if isinstance(p, slice) else len(p) for p in parts]
    send = _Sender(X, max(sizes, default=0), like.device)
    blocks = [torch.empty(**send.room(max(sizes, default=0)), device=like.device) for _ in range(3)]
    used: list[Event] = [None] * 3  # when the work on each of these was done

    def fetch(i: int) -> tuple[Array, Event]:
        block = blocks[i % 3][: sizes[i]]
        return block, send(parts[i], block, used[i % 3])

    with ThreadPoolExecutor(1) as thread:
        coming = deque(thread.submit(fetch, i) for i in range(min(2, len(parts))))
        try:
            for i in range(len(parts)):
                block, event = coming.popleft().result()
                if i + 2 < len(parts):
                    coming.append(thread.submit(fetch, i + 2))
                send.wait(event)
                yield block
                used[i % 3] = send.done()
        finally:  # the caller may have stopped early
            deque((future.exception() for future in coming), maxlen=0)
            send.end()


class Arriving:
    """A host array that is copied in the background, row by row, to a device that has room for all of it."""

    def __init__(self, X: NDArray[Any], like: Array, size: int):
        """`size` bytes of rows are copied at a time."""
        import torch

        n = X.shape[0]
        step = max(256, size // (X.dtype.itemsize * X.shape[1]))
        self.step = step
        self.send = _Sender(X, min(step, n), like.device)
        self.array = torch.empty(**self.send.room(n), device=like.device)
        parts = [slice(a, min(a + step, n)) for a in range(0, n, step)]
        thread = ThreadPoolExecutor(1)
        self.events = [thread.submit(self.send, p, self.array[p]) for p in parts]
        thread.shutdown(wait=False)

    @staticmethod
    def fits(X: NDArray[Any], like: Array) -> bool:
        """Say whether the array, in double precision, takes at most a quarter of the free memory of the GPU."""
        import torch

        return like.device.type != "cuda" or 4 * 8 * X.size <= torch.cuda.mem_get_info(like.device)[0]

    def rows(self, part: slice) -> Array:
        """Return some of the rows, as soon as they have arrived."""
        for event in self.events[part.start // self.step : -(-part.stop // self.step)]:
            self.send.wait(event.result())
        return self.array[part]

    def end(self) -> None:
        """Cancel the copies that have not begun, when no further rows are needed."""
        for event in self.events:
            event.cancel()
        deque((event.exception() for event in self.events if not event.cancelled()), maxlen=0)
        self.send.end()
