"""`python -m benchmarks.memory`: the peak memory of `duoplda train`, in a process of its own.

By default a million recordings of 512 dimensions from a 2 GB file: the goal is less than 1 GB. The file is made, read
twice and removed. `--recordings 100000` is over in seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.common import Row, smaller

SIZES = (1, 2, 3, 4, 5, 6)  # recordings of a session
GOAL = 1024  # MiB
PROGRAM = """
import importlib, json, sys
sys.path.insert(0, sys.argv.pop(1))
from benchmarks.common import peak
for library in sys.argv.pop(1).split():
    importlib.import_module(library)
start = peak()
from duoplda.cli import app
if app(sys.argv[1:], prog_name="duoplda", standalone_mode=False):
    sys.exit(f"duoplda {sys.argv[1]} failed")
print(json.dumps([start, peak()]))
"""


class Used(NamedTuple):
    """What a command took."""

    before: float  # MiB, with the libraries loaded
    peak: float  # MiB
    seconds: float


def duoplda(folder: Path, *arguments: object, libraries: str = "duoplda.estimators.plda") -> Used:
    """Run a command in a process of its own, which loads some libraries first; scores must go to a file."""
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[1]), libraries, *map(str, arguments)]
    begin = time.perf_counter()
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return Used(*json.loads(done.stdout.splitlines()[-1]), time.perf_counter() - begin)


def write(folder: Path, recordings: int, dimensions: int, repeats: int) -> tuple[int, int]:
    """x.npy and its labels, made in pieces: `repeats` sessions of each size for every speaker."""
    per_speaker = repeats * sum(SIZES)
    speakers = max(recordings // per_speaker, 8)
    n = speakers * per_speaker
    session = np.repeat(np.arange(repeats * len(SIZES)), np.tile(SIZES, repeats))  # of one speaker
    rng = np.random.default_rng(0)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (n, dimensions))
    del x  # only the header and the size: rows are written below, so that no page of a map stays in memory
    with (
        open(folder / "x.npy", "r+b") as file,
        open(folder / "x.ids", "w") as ids,
        open(folder / "utt2spk", "w") as utt2spk,
        open(folder / "utt2sess", "w") as utt2sess,
    ):
        file.seek(-n * dimensions * 4, os.SEEK_END)
        for s in range(speakers):
            y, X = rng.standard_normal((2, dimensions), np.float32), rng.standard_normal((session[-1] + 1, dimensions))
            rows = rng.standard_normal((per_speaker, dimensions), np.float32)
            rows += y[0] + X.astype(np.float32)[session]
            file.write(rows.tobytes())
            names = [f"spk{s:05}-{c:03}-{i:03}" for i, c in enumerate(session.tolist())]
            ids.write("".join(f"{name}\n" for name in names))
            utt2spk.write("".join(f"{name} spk{s:05}\n" for name in names))
            utt2sess.write("".join(f"{name} {name[:12]}\n" for name in names))
    return n, speakers


def train(folder: Path, max_iter: int = 2, *more: str) -> Used:
    """Train on what `write` wrote."""
    files = "--embeddings", "x.npy", "--speakers", "utt2spk", "--sessions", "utt2sess", "--out", "m"
    return duoplda(folder, "train", *files, "--max-iter", max_iter, "--quiet", *more)


def memory() -> Iterator[Row]:
    """A million recordings of 512 dimensions."""
    with tempfile.TemporaryDirectory() as name:
        n = smaller(1_000_000)
        write(Path(name), n, 512 if n == 1_000_000 else 6, 10)
        used = train(Path(name))
    yield Row("train, peak MiB / 1,024 MiB", "1M x 512 single, 2.05 GB npy, 4,761 speakers", used.peak, GOAL, 1, "MiB")


ALL = (memory,)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--recordings", type=int, default=1_000_000)
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=10, help="sessions of each size (1 to 6) of a speaker")
    parser.add_argument("--max-iter", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the file is made (and removed)")
    given, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        n, speakers = write(folder, given.recordings, given.dimensions, given.repeats)
        size = (folder / "x.npy").stat().st_size
        used = train(folder, given.max_iter, *more)
    print(f"{n:,} recordings of {speakers:,} speakers x {given.dimensions}, {size / 1e9:.2f} GB; {used.seconds:.0f} s")
    print(f"peak {used.peak:.0f} MiB, of which {used.before:.0f} MiB for the libraries; goal: less than {GOAL} MiB")
    sys.exit(used.peak >= GOAL)


if __name__ == "__main__":
    main()
