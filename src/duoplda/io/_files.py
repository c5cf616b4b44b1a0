"""Embeddings in several files: which files a folder or a pattern means, and reading them as one."""

import glob
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from duoplda.io._source import Source, check_count
from duoplda.io.common import PathLike, bad, system_error


def natural(name: str) -> tuple[list[str | int], str]:
    """Return a key that sorts numbers in names by their values: x.2.ark before x.10.ark."""
    return [int(part) if i % 2 else part for i, part in enumerate(re.split("([0-9]+)", name))], name


def files_of(path: PathLike, suffixes: Sequence[str]) -> list[PathLike]:
    """Return the files that a name means: what is there under it, or else what matches it as a pattern."""
    name = os.fspath(path)
    if os.path.isdir(name):
        try:
            names = [n for n in os.listdir(name) if not n.startswith(".") and Path(n).suffix.lower() in suffixes]
        except OSError as e:
            raise system_error(path, e) from e
        if not names:
            remedy = f"give a file, or a folder of embeddings: no name in it ends in {' '.join(suffixes)}"
            raise bad(path, "", "is a folder", remedy)
        return _readable([os.path.join(name, n) for n in names])
    if os.path.lexists(name) or not glob.has_magic(name) or "\0" in name:
        return [path]  # whatever is wrong with it is said when it is opened
    found = _readable(glob.glob(name, recursive=True))
    if not found:
        raise bad(path, "", "no file matches this pattern", "check it, and the folder it starts from")
    return found


def _readable(names: list[str]) -> list[PathLike]:
    """Sort names in natural order, and leave out archives where there are lists, which point to them."""
    if any(n.lower().endswith(".scp") for n in names):
        names = [n for n in names if not n.lower().endswith(".ark")]
    return [Path(n) for n in sorted(names, key=natural)]


def joined(files: Sequence[tuple[PathLike, Source]]) -> Source:
    """Join several files of one dimension and precision to one source of chunks."""
    starts = [0] * len(files)  # the number of the first vector of each, known once the one before has been read

    def through(blocks: Callable[[Source], Iterator[Any]], size: Callable[[Any], int]) -> Iterator[Any]:
        done = 0
        for i, (file, source) in enumerate(files):
            starts[i] = done
            for block in blocks(source):
                done += size(block)
                yield block
            check_count(file, source.n, done - starts[i])

    def read(rows: int) -> Iterator[Any]:
        return through(lambda source: source.read(rows), lambda chunk: len(chunk[0]))

    def ids(rows: int) -> Iterator[Any]:
        return through(lambda source: source.names(rows), len)

    def vectors(rows: int) -> Iterator[Any]:
        return through(lambda source: source.bare(rows), len)

    def entry(number: int) -> str:
        i = bisect_right(starts, number) - 1
        return f"{Path(files[i][0]).name} {files[i][1].entry(number - starts[i])}"

    model = files[0][1]
    counts = [source.n for _, source in files]
    n = None if None in counts else sum(counts)  # type: ignore[arg-type]
    kinds = " and ".join(dict.fromkeys(source.format for _, source in files))
    what = f"{len(files)} files, {kinds}"
    return Source(what, model.dim, model.dtype, n, read, ids=ids, entry=entry, vectors=vectors)
