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
from pathlib import Path

import numpy as np

SIZES = (1, 2, 3, 4, 5, 6)  # recordings of a session
GOAL = 1 << 30
PROGRAM = """
import json, resource, sys
import duoplda.estimators.plda
start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
from duoplda.cli import app
if app(sys.argv[1:], prog_name="duoplda", standalone_mode=False):
    sys.exit("duoplda train failed")
print(json.dumps([start * 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
"""


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
        arguments = ["train", "--embeddings", "x.npy", "--speakers", "utt2spk", "--sessions", "utt2sess"]
        arguments += ["--max-iter", str(given.max_iter), "--out", "m", "--quiet", *more]
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments], cwd=folder, stdout=subprocess.PIPE, text=True, check=True
        )
        seconds = time.perf_counter() - begin
    start, peak = json.loads(done.stdout)
    print(f"{n:,} recordings of {speakers:,} speakers x {given.dimensions}, {size / 1e9:.2f} GB; {seconds:.0f} s")
    print(f"peak {peak / 2**20:.0f} MiB, of which {start / 2**20:.0f} MiB for the libraries; goal: less than 1024 MiB")
    sys.exit(peak >= GOAL)


if __name__ == "__main__":
    main()
