"""Read strings of variable length from an HDF5 file, in a process of its own.

The library may loop for ever or crash where the heap of such strings is damaged. `duoplda.io.hdf5` therefore runs this
file as a script that imports nothing of duoplda, reads its answer with a time limit, and ends it.

Arguments: the file, the dataset, its first row, the row to stop before, the rows of a block, the longest string in
bytes. Each block goes to standard output as the lengths of its strings (uint32 each) and the strings; a string that is
too long is cut one byte behind the longest.
"""

import sys
from contextlib import suppress

MEMORY = 1 << 30  # bytes that reading may take, beyond those of the libraries


def main(path: str, name: str, first: int, stop: int, rows: int, longest: int) -> None:
    """Write the strings of a dataset, which is a list in any number of dimensions, to standard output."""
    import h5py
    import numpy as np

    with suppress(ImportError, OSError, ValueError), open("/proc/self/statm") as statm:  # where the system has limits
        import resource

        most = int(statm.read().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    with h5py.File(path, "r") as f:
        d = f[name]
        for start in range(first, stop, rows):
            part = slice(start, min(start + rows, stop))
            block = np.atleast_1d(d[tuple(part if n > 1 else 0 for n in d.shape)])
            texts = [bytes(text)[: longest + 1] for text in block]
            sys.stdout.buffer.write(np.array([len(text) for text in texts], "<u4").tobytes() + b"".join(texts))
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
