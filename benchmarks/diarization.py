"""`python -m benchmarks.diarization`: time and memory of long files, by the number of windows.

    OMP_NUM_THREADS=1 python -m benchmarks.diarization [--hours 0.83 2.5 5 10] [--dimensions 20] [--seed 0] [--out FILE]

Windows of 1.5 s every .25 s are drawn from the model that diarises them: six speakers whose variance is 2, noise whose
variance is 1 and of which windows share what their overlap makes them share, a turn shares .3, a speaker in a file .05
and the file .33. Turns have 12 windows on average. Each length is measured in a process of its own, as the peak of a
process never falls. The floor is the matrix products of one pass of the HMM's E-step over all windows, for as many
speakers as the first labels have.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.common import peak, save
from duoplda import PLDA
from duoplda.diarization import Segments, diarize
from duoplda.io import Coded

PER_HOUR = 4 * 3600  # windows
N_SPEAKERS = 6
VARIANCE = 2.0  # of speakers; that of the noise is 1
IN_TURN, IN_FILE, OFFSET = 0.3, 0.05, 0.33  # of the noise: of a turn, of a speaker in the file, of the file
WINDOWS_OF_A_TURN = 12


def drawn(n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(n, d) windows and (n,) their speakers."""
    rng = np.random.default_rng(seed)
    length = np.clip(rng.exponential(WINDOWS_OF_A_TURN, n // 2 + 1), 2, 60).astype(int)  # enough: none is below 2
    turn = np.repeat(np.arange(len(length)), length)[:n]
    speaker = rng.integers(N_SPEAKERS, size=len(length))[turn]
    voices = rng.normal(size=(N_SPEAKERS, d)) * np.sqrt(VARIANCE)
    voices += rng.normal(size=(N_SPEAKERS, d)) * np.sqrt(IN_FILE)
    turns = rng.normal(size=(len(length), d)) * np.sqrt(IN_TURN)
    steps = rng.normal(size=(n + 5, d))
    noise = sum(steps[k : n + k] for k in range(6)) / np.sqrt(6)  # six steps of .25 s make a window
    X = voices[speaker] + turns[turn] + np.sqrt(1 - IN_TURN - IN_FILE) * noise
    return X + rng.normal(size=d) * np.sqrt(OFFSET), speaker


def one(n: int, d: int, seed: int) -> dict[str, float]:
    """What a file of n windows takes."""
    plda = PLDA.from_parameters(np.zeros(d), np.sqrt(VARIANCE) * np.eye(d), None, np.eye(d))
    X, speaker = drawn(n, d, seed)
    begin = np.arange(n) * 0.25
    segments = Segments(np.arange(n).astype(str), Coded.of(["file"] * n), begin, begin + 1.5)
    before = peak()
    first = []
    clock = time.process_time()
    turns = diarize(plda, X, segments, told=lambda _, labelled: first.append(labelled))
    seconds = time.process_time() - clock
    after = peak()
    gamma = np.ones((n, first[0].first))
    clock = time.process_time()
    for _ in range(5):
        sums = gamma.T @ X
        gamma = X @ sums.T
    floor = (time.process_time() - clock) / 5
    confused = np.zeros((int(first[0].labels.max()) + 1, N_SPEAKERS))
    np.add.at(confused, (first[0].labels, speaker), 1)
    wrong = 1 - confused.max(axis=1).sum() / n
    found = len(turns.speaker.names)
    return {"seconds": seconds, "floor": floor, "before": before, "peak": after, "speakers": found, "wrong": wrong}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diarization", description=__doc__)
    parser.add_argument("--hours", type=float, nargs="+", default=[0.83, 2.5, 5, 10])
    parser.add_argument("--dimensions", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)  # windows, of the process that measures one file
    parser.add_argument("--out", type=Path, help="the JSON file, instead of one in benchmarks/results/")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(given.one, given.dimensions, given.seed)))
        return
    rows = []
    print(f"{'hours':>6} {'windows':>8} {'seconds':>8} {'/ floor':>8} {'peak MiB':>9} {'before':>7} speakers   wrong")
    for hours in given.hours:
        n = round(hours * PER_HOUR)
        options = ["--one", n, "--dimensions", given.dimensions, "--seed", given.seed]
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.diarization", *map(str, options)]
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        rows.append({"hours": hours, "windows": n, **row})
        cells = f"{hours:6g} {n:8,} {row['seconds']:8.1f} {row['seconds'] / row['floor']:8.0f} {row['peak']:9.0f}"
        print(f"{cells} {row['before']:7.0f} {row['speakers']:8} {100 * row['wrong']:5.2f} %", flush=True)
    print(f"\nwritten: {save('diarization-', {'rows': rows}, given.out)}")


if __name__ == "__main__":
    main()
