"""A script that reads strings of variable length from an HDF5 file, in a process of its own.

Where the heap of such strings is damaged, the HDF5 library may loop for ever or crash. `duoplda.io.hdf5` therefore runs
this file as a script, which imports nothing of duoplda, reads its output with a time limit, and ends it. The script
limits its own processor time and memory.

Arguments: the file, the dataset, its first row, the row to stop before, the rows of a block, and the longest string
that is allowed, in bytes. Each block is written to standard output as the lengths of its strings (uint32 each) followed
by the strings. A string that is too long is cut one byte after the allowed length, by which the reader sees it.
"""

import sys
import time
from contextlib import suppress


def main(path: str, name: str, first: int, stop: int, rows: int, longest: int) -> None:
    """Write the strings of a dataset to standard output; all but one of its axes have length 1."""
    import h5py
    import numpy as np

    with suppress(ImportError, OSError, ValueError):  # not every operating system can limit a process
        import resource

        # Two seconds, and one for every 10,000 strings, which is 100 times as long as an intact file takes.
        seconds = int(time.process_time()) + 3 + (stop - first) // 10_000
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        # A gigabyte beyond what the libraries take: many strings that point to one long text would fill the memory.
        with open("/proc/self/statm") as statm:
            memory = int(statm.read().split()[0]) * resource.getpagesize() + (1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    with h5py.File(path, "r") as f:
        d = f[name]
        for start in range(first, stop, rows):
            cut = slice(start, min(start + rows, stop))
            block = np.atleast_1d(d[tuple(cut if n > 1 else 0 for n in d.shape)])
            texts = [bytes(text)[: longest + 1] for text in block]
            sys.stdout.buffer.write(np.array([len(text) for text in texts], "<u4").tobytes() + b"".join(texts))
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
