"""`python -m benchmarks.voices [1000 ... 1000000]`: who is it, among so many known voices?

Voices have five sessions and 150 factors, as of a model of 192 dimensions and 151 speakers; their sums are drawn.

First `PLDA.top`, on which `identify` rests: it finds the five highest-scoring of one test and of 64, in turn with the
bare product of the matrix of all voices, in double precision, and of the same tests, which nothing can do without;
and with FAISS's exact flat index of vectors of the same length in single precision, where it is installed (`pip
install faiss-cpu`). Ratios are of the best times. The first question of a pattern of tests makes what later ones use.
Memory is the most that was held from before the voices were made to after these questions, as a multiple of the
matrix.

Then, unless `--no-registry`, a registry of the same voices in a SQLite file: how long it takes to import them, to write
a snapshot, to enrol another voice, to ask and to remove; and how long a new process takes until it can answer, from the
sessions and from a snapshot, beside reading the bytes of the snapshot, with the memory that this takes.
"""

from __future__ import annotations

import argparse
import re
import sqlite3
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks.common import machine, peak
from duoplda import PLDA, Sides
from duoplda.estimators.files import fingerprint
from duoplda.estimators.scoring import chain_of
from duoplda.io import write_container
from duoplda.trials.tables import Table
from duoplda.voices import Registry

try:
    import faiss
except ImportError:
    faiss = None

D, NY, NX = 192, 150, 20
SESSIONS = 5
STATUS = Path("/proc/self/status")  # of Linux; elsewhere no memory is told
DAY = "2026-01-01T00:00:00+00:00"


def drawn(rows: int, columns: int) -> np.ndarray:
    """Numbers of the size of gamma."""
    rng = np.random.default_rng(0)
    out = np.empty((rows, columns))
    for start in range(0, rows, 10000):
        out[start : start + 10000] = 10 * rng.standard_normal((min(10000, rows - start), columns))
    return out


def voices(plda: PLDA, n: int) -> Sides:
    """Sides of five sessions of one recording, whose sums are drawn."""
    people = Table(ids=np.arange(n), counts=np.full((n, 1), SESSIONS), gamma=drawn(n, NY))
    return Sides(plda.ratio_model_, np.ones((1, 1), np.int64), people)


def seconds(function: Callable[[], object], repeat: int = 1) -> np.ndarray:
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return np.array(times)


def memory() -> float:
    """MiB that this process holds now; its peak begins anew."""
    if not STATUS.exists():
        return float("nan")
    Path("/proc/self/clear_refs").write_text("5")
    return int(re.search(r"VmRSS:\s*(\d+) kB", STATUS.read_text())[1]) / 1024


# -- the highest-scoring of all


def measure(plda: PLDA, n: int, repeat: int) -> None:
    """`PLDA.top` beside the product and FAISS."""
    before = memory()
    sides = voices(plda, n)
    rng = np.random.default_rng(1)
    tests = {T: plda.enroll(rng.standard_normal((T, D)), range(T)) for T in (1, 64)}
    first = {T: seconds(lambda test=test: plda.top(sides, test, 5))[0] for T, test in tests.items()}
    held = peak() - before
    index = None
    if faiss is not None:
        index = faiss.IndexFlatIP(NY)
        index.add(sides.gamma.astype(np.float32))
    for T, test in tests.items():
        right = np.ascontiguousarray(test.gamma.T)
        single = test.gamma.astype(np.float32)
        asked: list[Callable[[], object]] = [
            lambda test=test: plda.top(sides, test, 5),
            lambda right=right: sides.gamma @ right,
        ]
        if index is not None:
            asked += [lambda single=single: index.search(single, 5)]
        times = np.array([[seconds(ask)[0] for ask in asked] for _ in range(repeat if T == 1 else max(3, repeat // 4))])
        ours, floor, *peer = 1e3 * times.min(axis=0)
        median, slow = 1e3 * np.percentile(times[:, 0], [50, 99])
        cells = f"{1e3 * first[T]:9.1f} {ours:9.2f} {median:9.2f} {slow:9.2f} {floor:9.2f} {ours / floor:6.2f}"
        cells += f" {peer[0]:9.2f} {ours / peer[0]:6.2f}" if peer else f" {'':16}"
        print(f"{n:9,} {T:4} {cells} {1e3 * T / median:11,.0f}", flush=True)
    more = plda.enroll(rng.standard_normal((1, D)), [n // 2])
    sides.add(more)  # the first one makes an index of ids
    added = seconds(lambda: sides.add(more))[0]
    again = seconds(lambda: plda.top(sides, tests[64], 5))[0]
    print(
        f"{'':9} a session added in {1e3 * added:.2f} ms, the next 64 in {1e3 * again:.1f} ms; "
        f"memory {held / (sides.gamma.nbytes / 2**20):.2f} times the matrix of {sides.gamma.nbytes / 2**30:.3f} GiB"
    )


# -- a registry


def filled(folder: Path, plda: PLDA, n: int) -> Registry:
    """A registry of n voices of five sessions, by way of a file as `Registry.export` writes it."""
    header = {"model": fingerprint(chain_of(plda)), "keep": "statistics", "created": DAY}
    header["voices"] = [[f"voice {i}", DAY, DAY, None] for i in range(n)]
    header["sessions"] = [[str(j), DAY, None] for _ in range(n) for j in range(SESSIONS)]
    rows = n * SESSIONS
    arrays = {"voice": np.repeat(np.arange(n), SESSIONS), "type": np.ones((rows, 1), np.int64)}
    arrays |= {"gamma": drawn(rows, NY), "z": drawn(rows, NX)}
    write_container(folder / "export", "duoplda-voices", arrays, header)
    del arrays, header
    return Registry.import_(folder / "export", folder / "voices.db", plda)


def started(path: Path, model: Path) -> tuple[float, float]:
    """Seconds until a registry has answered a question about one of its voices, and the memory it took, in MiB."""
    plda = PLDA.load(model)
    before = memory()
    begin = time.perf_counter()
    with Registry.open(path, plda) as registry:
        registry.verify("voice 0", np.zeros(D))
        return time.perf_counter() - begin, peak() - before


def in_a_new_process(function: Callable[..., tuple[float, float]], *arguments: object) -> tuple[float, float]:
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def measure_registry(folder: Path, plda: PLDA, n: int, repeat: int) -> None:
    """What a registry of n voices costs."""
    path = folder / "voices.db"
    plda.save(folder / "model")
    rng = np.random.default_rng(1)
    begin = time.perf_counter()
    with filled(folder, plda, n) as registry:
        print(f"{n:9,} imported in {time.perf_counter() - begin:.1f} s, {path.stat().st_size / 2**30:.2f} GiB")
        (folder / "export").unlink()
        slow, held = in_a_new_process(started, path, folder / "model")
        matrix = 8 * n * NY / 2**20
        print(f"{'':9} start from sessions {slow:.2f} s, memory {held / matrix:.2f} times the matrix")
        written = seconds(registry.snapshot)[0]
        fast, held = in_a_new_process(started, path, folder / "model")
        raw = sqlite3.connect(path)
        read = seconds(lambda: [*map(len, raw.execute("SELECT numbers, types, counts, gamma FROM snapshot"))])[0]
        raw.close()
        print(
            f"{'':9} start from a snapshot {fast:.2f} s, {fast / read:.1f} times reading its bytes ({read:.3f} s), "
            f"memory {held / matrix:.2f}; written in {written:.2f} s"
        )
        X = rng.standard_normal((repeat + 1, D))
        first = seconds(lambda: registry.identify(X[0]))[0]
        asked = 1e3 * np.array([seconds(lambda x=x: registry.identify(x))[0] for x in X[1:]])
        enrolled = [seconds(lambda i=i, x=x: registry.add(f"new {i}", x))[0] for i, x in enumerate(X[1:])]
        seen = 1e3 * seconds(lambda: registry.identify(X[0]))[0]
        removed = seconds(lambda: registry.remove("new 0"))[0]
        print(
            f"{'':9} one test: the first {first:.2f} s, then median {np.median(asked):.2f} ms, "
            f"99 % {np.percentile(asked, 99):.2f} ms; a voice enrolled in {1e3 * np.median(enrolled):.1f} ms, "
            f"the next test {seen:.0f} ms; one removed in {removed:.2f} s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.voices", description=__doc__.splitlines()[0])
    parser.add_argument("n", nargs="*", type=int, default=[1000, 10_000, 100_000])
    parser.add_argument("--repeat", type=int, default=40)
    parser.add_argument("--no-top", action="store_true")
    parser.add_argument("--no-registry", action="store_true")
    given = parser.parse_args()
    rng = np.random.default_rng(2)
    V, U = rng.standard_normal((D, NY)) / 4, rng.standard_normal((D, NX)) / 4
    plda = PLDA.from_parameters(np.zeros(D), V, U, np.eye(D))
    print(machine())
    if not given.no_top:
        titles = f"{'first ms':>9} {'best':>9} {'median':>9} {'99 %':>9} {'product':>9} {'ratio':>6}"
        print(f"{'voices':>9} {'of':>4} {titles} {'FAISS':>9} {'ratio':>6} {'tests / s':>11}")
        for n in given.n:
            measure(plda, n, given.repeat)
    if not given.no_registry:
        for n in given.n:
            with tempfile.TemporaryDirectory() as folder:
                measure_registry(Path(folder), plda, n, given.repeat)


if __name__ == "__main__":
    main()
