"""`python -m benchmarks.voices [1000 ... 1000000]`: who is it, among so many known voices?

Voices have five sessions and 150 factors, as of a model of 192 dimensions and 151 speakers; their sums are drawn. For
each number of voices, `PLDA.top` finds the five highest-scoring of one test and of 64, beside the bare product of the
matrix of all voices, in double precision, and of the same tests, which every other step comes on top of. Ratios are of
the best times; the first question of a pattern of tests makes what later ones use. Then a session is added to a
voice, and asked again. Memory is what is kept beside the voices' own matrix, and the most that the process has held.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from benchmarks.common import machine, peak
from duoplda import PLDA, Sides
from duoplda.trials.tables import Table

D, NY, NX = 192, 150, 20
SESSIONS = 5


def voices(plda: PLDA, n: int) -> Sides:
    """Sides of five sessions of one recording, whose sums are drawn."""
    rng = np.random.default_rng(0)
    gamma = np.empty((n, NY))
    for start in range(0, n, 10000):
        gamma[start : start + 10000] = 10 * rng.standard_normal((min(10000, n - start), NY))
    none = np.zeros(0, np.int64)
    people = Table(ids=np.arange(n), counts=np.full((n, 1), SESSIONS), gamma=gamma)
    sessions = Table(name=np.zeros(0, "U1"), side=none, type=none, z=np.zeros((0, NX)))
    return Sides(plda.ratio_model_, np.ones((1, 1), np.int64), people, sessions)


def seconds(function: Callable[[], object], repeat: int) -> np.ndarray:
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return np.array(times)


def measure(plda: PLDA, n: int, repeat: int) -> None:
    sides = voices(plda, n)
    rng = np.random.default_rng(1)
    for T in (1, 64):
        tests = plda.enroll(rng.standard_normal((T, D)), range(T))
        right = np.ascontiguousarray(tests.gamma.T)
        first = seconds(lambda tests=tests: plda.top(sides, tests, 5), 1)[0]
        # In turn, so that other work on the machine slows both alike
        ours, floor = [], []
        for _ in range(repeat if T == 1 else max(3, repeat // 8)):
            floor += [*seconds(lambda right=right: sides.gamma @ right, 1)]
            ours += [*seconds(lambda tests=tests: plda.top(sides, tests, 5), 1)]
        median, slow = np.median(ours), np.percentile(ours, 99)
        cells = f"{1e3 * min(ours):9.2f} {1e3 * median:9.2f} {1e3 * slow:9.2f}"
        cells += f" {1e3 * min(floor):9.2f} {min(ours) / min(floor):6.2f} {T / median:11,.0f}"
        print(f"{n:9,} {T:4} {1e3 * first:9.1f} {cells}", flush=True)
    more = plda.enroll(rng.standard_normal((1, D)), [n // 2])
    sides.add(more)  # the first one makes an index of ids
    added = seconds(lambda: sides.add(more), 1)[0]
    again = seconds(lambda: plda.top(sides, tests, 5), 1)[0]
    made = sides.ranking
    kept = 0 if made is None else sum(block.single.nbytes for block in made.blocks.values())
    print(
        f"{'':9} a session added in {1e3 * added:.2f} ms, the next 64 in {1e3 * again:.1f} ms; beside the matrix "
        f"{kept / sides.gamma.nbytes:.2f} of it, {peak() / 1024:.2f} GiB at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.voices", description=__doc__.splitlines()[0])
    parser.add_argument("n", nargs="*", type=int, default=[1000, 10_000, 100_000])
    parser.add_argument("--repeat", type=int, default=40)
    given = parser.parse_args()
    rng = np.random.default_rng(2)
    V, U = rng.standard_normal((D, NY)) / 4, rng.standard_normal((D, NX)) / 4
    plda = PLDA.from_parameters(np.zeros(D), V, U, np.eye(D))
    print(machine())
    titles = f"{'first ms':>9} {'best':>9} {'median':>9} {'99 %':>9} {'product':>9} {'ratio':>6} {'tests / s':>11}"
    print(f"{'voices':>9} {'of':>4} {titles}")
    for n in given.n:
        measure(plda, n, given.repeat)


if __name__ == "__main__":
    main()
