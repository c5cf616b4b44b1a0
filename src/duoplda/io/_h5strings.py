"""Read strings of variable length from an HDF5 file, in a process of its own.

The library may loop for ever or crash where the heap of such strings is damaged. `duoplda.io.hdf5` therefore runs this
file as a script that imports nothing of duoplda, reads its answer with a time limit, and ends it. The script itself
limits the time of the processor and the memory that it may take.

Arguments: the file, the dataset, its first row, the row to stop before, the rows of a block, the longest string in
bytes. Each block goes to standard output as the lengths of its strings (uint32 each) and the strings; a string that is
too long is cut one byte behind the longest.
"""

import sys
import time
from contextlib import suppress


def main(path: str, name: str, first: int, stop: int, rows: int, longest: int) -> None:
    """Write the strings of a dataset, which is a list in any number of dimensions, to standard output."""
    import h5py
    import numpy as np

    with suppress(ImportError, OSError, ValueError):  # where the system has limits
        import resource

        # Two seconds, and one for every 10,000 strings: 100 times what they take, unless the library loops for ever.
        seconds = int(time.process_time()) + 3 + (stop - first) // 10_000
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        # A gigabyte beyond what the libraries take: strings that share one long text would fill the memory.
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
