"""`python -m benchmarks.scale [train score search]`: what a user's own sizes cost, as the tables of docs/scale.md.

train    `duoplda train` from files, with everything chosen, by recordings, dimensions and speakers
score    `duoplda score` of listed trials, from files to a file
search   the ten highest-scoring of 10^3 to 10^7 enrolled voices: latency, memory, throughput

Each measurement has a process of its own, and no more than two threads. Times are of one run, by the clock, and include
the start of Python and of the libraries; memory is the peak of the process. `--write "two cores of ..."` puts what was
measured into docs/scale.md, and a headline into README.md. `--smaller 100` only shows that it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import peak
from benchmarks.core import a_model
from benchmarks.memory import duoplda, write
from duoplda import PLDA, Backend, io
from duoplda.trials.blocks import Scorer
from duoplda.trials.sides import Sides

# Recordings and dimensions of a training; a speaker has 12 sessions of 1 to 6 recordings, 42 in all.
TRAININGS = ((10_000, 192), (100_000, 192), (350_000, 192), (350_000, 512), (1_000_000, 192))
TRIALS = (100_000, 2_000_000, 10_000_000)
ENROLLED = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
CHUNK = 1_000_000  # voices in memory: of more, each chunk is read from its file when it is its turn
D = 192  # the dimensions of ECAPA and CAM++; a model of full rank keeps so many numbers of each voice
TESTS = 100
PAGE = Path(__file__).parents[1] / "docs/scale.md"
TRAIN_HEADS = ("recordings", "dimensions", "speakers", "file", "time", "peak memory")
SCORE_HEADS = ("listed trials", "dimensions", "time", "trials a second", "peak memory")
SEARCH_HEADS = ("enrolled", "enrolling", "on disk", "first test", "each further test", "tests a second", "peak memory")


def trainings(smaller: int) -> Iterator[str]:
    """Rows of a table: the time and memory of training."""
    yield _head(TRAIN_HEADS)
    for recordings, dimensions in TRAININGS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            n, speakers = write(folder, recordings // smaller, dimensions if smaller == 1 else 6, 2)
            size = (folder / "x.npy").stat().st_size
            files = "--embeddings", "x.npy", "--speakers", "utt2spk", "--sessions", "utt2sess", "--out", "model"
            used = duoplda(folder, "train", *files, "--quiet")
        cells = (
            f"{n:,} | {dimensions} | {speakers:,} | {size / 1e6:,.0f} MB | {used.seconds:.0f} s | {used.peak:,.0f} MiB"
        )
        yield f"| {cells} |"


def scorings(smaller: int) -> Iterator[str]:
    """Rows of a table: the time and memory of scoring listed trials of 20,000 recordings and 2,000 models of three."""
    rng = np.random.default_rng(0)
    n_tests, n_models = max(20_000 // smaller, 40), max(2_000 // smaller, 10)
    ids = np.array([f"recording-{i:05}" for i in range(n_tests)])
    models = np.array([f"model-{i:04}" for i in range(n_models)])
    yield _head(SCORE_HEADS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        Backend.from_plda(a_plda()).save(folder / "model")
        io.write_embeddings(folder / "x.ark", ids, rng.standard_normal((n_tests, D), dtype=np.float32))
        lines = zip(np.repeat(models, 3), ids[: 3 * n_models], strict=True)
        (folder / "enroll").write_text("".join(f"{model} {recording}\n" for model, recording in lines))
        for n in TRIALS:
            a, b = rng.integers(0, n_models, n // smaller), rng.integers(0, n_tests, n // smaller)
            lines = zip(models[a], ids[b], strict=True)
            (folder / "trials").write_text("".join(f"{model} {recording}\n" for model, recording in lines))
            files = "--model", "model", "--embeddings", "x.ark", "--enroll", "enroll", "--trials", "trials"
            used = duoplda(folder, "score", *files, "--out", "scores", "--force", "--quiet", "--no-domain-check")
            rate = n / smaller / used.seconds
            yield f"| {n:,} | {D} | {used.seconds:.1f} s | {rate:,.0f} | {used.peak:.0f} MiB |"


def searches(smaller: int) -> Iterator[str]:
    """Rows of a table: what the ten highest-scoring voices cost, for so many enrolled."""
    yield _head(SEARCH_HEADS)
    for n in ENROLLED:
        command = [sys.executable, "-m", "benchmarks.scale", "--voices", str(max(n // smaller, 20))]
        command += ["--chunk", str(max(CHUNK // smaller, 20))]
        done = subprocess.run(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True, check=True)
        cost = json.loads(done.stdout)
        first, further = (_words(cost[key]) for key in ("first", "further"))
        cells = f"{n:,} | {_words(cost['enrolling'])} | {cost['disk'] / 1e6:,.0f} MB | {first} | {further}"
        rate = float(f"{TESTS / cost['all']:.2g}")
        yield f"| {cells} | {rate:,g} | {cost['peak']:,.0f} MiB |"


def a_plda() -> PLDA:
    model = a_model(D, D, D)
    return PLDA.from_parameters(model.mu[0], model.V, model.U, model.W[0])


def search(n: int, chunk: int) -> dict[str, Any]:
    """Enrol so many voices of one recording each, and find the ten that score highest for one test and for many.

    Up to `chunk` voices are in memory. More are in files of that many, and each search reads all of them, one by one;
    the same file stands for all, so that it may come from the memory that the system keeps of files.
    """
    plda = a_plda()
    rng = np.random.default_rng(0)
    in_memory = min(n, chunk)
    tests = plda.enroll(rng.standard_normal((TESTS, D)), np.arange(TESTS))
    begin = time.perf_counter()
    voices: Sides | None = None
    for start in range(0, in_memory, 10_000):
        ids = [f"voice-{i:08}" for i in range(start, min(start + 10_000, in_memory))]
        more = plda.enroll(rng.standard_normal((len(ids), D)), ids)
        voices = more if voices is None else voices.add(more)
    enrolling = (time.perf_counter() - begin) * n / in_memory
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "voices")
        voices.save(path)
        disk = path.stat().st_size * n // in_memory

        one = tests.select([0])
        if n <= chunk:
            scorer = Scorer(voices)
            first = _seconds(lambda: scorer.top(one, 10))  # what depends on the voices alone is computed now, and kept
            further = float(np.median([_seconds(lambda: scorer.top(one, 10)) for _ in range(7)]))
            all_tests = min(_seconds(lambda: scorer.top(tests, 10)) for _ in range(3))
        else:
            del voices

            def from_files(some: Sides) -> None:
                ratios = [Scorer(plda.load_sides(path)).top(some, 10)[1] for _ in range(n // chunk)]
                np.sort(np.concatenate(ratios, axis=1), axis=1)

            first = further = _seconds(lambda: from_files(one))
            all_tests = _seconds(lambda: from_files(tests))
    return {"enrolling": enrolling, "disk": disk, "first": first, "further": further, "all": all_tests, "peak": peak()}


def _head(heads: Sequence[str]) -> str:
    return f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}"


def _seconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def _words(seconds: float) -> str:
    """A time, with two digits."""
    return f"{float(f'{1e3 * seconds:.2g}'):g} ms" if seconds < 1 else f"{float(f'{seconds:.2g}'):,g} s"


def write_table(name: str, rows: list[str], where: str) -> None:
    """Replace a table of docs/scale.md, and the line above it that says when and where it was measured."""
    measured = f"Measured on {datetime.now(UTC):%Y-%m-%d} on {where}:"
    text = PAGE.read_text(encoding="utf-8")
    start, end = (f"<!-- {word} of the table {name} -->\n" for word in ("start", "end"))
    before, rest = text.split(start)
    after = rest.split(end)[1]
    PAGE.write_text("".join([before, start, f"{measured}\n\n", "\n".join(rows), "\n\n", end, after]), encoding="utf-8")


def write_headline(where: str) -> None:
    """Say in README.md what the middle rows of the tables of docs/scale.md say."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text(encoding="utf-8").splitlines()]
    by_size = {tuple(row[:2]): row for row in rows if len(row) > 4}
    n, d, speakers, _, seconds, memory = by_size["349,986", "192"]
    trials, _, scored, _, held = by_size["2,000,000", "192"]
    voices = next(row for row in rows if len(row) > 4 and row[0] == "1,000,000" and len(row) == len(SEARCH_HEADS))
    headline = [
        f"- **Scale**, on {where}: training on {n} x {d} of {speakers} speakers from a file, with everything chosen,",
        f"  takes {seconds} and {memory}; {trials} listed trials take {scored} and {held}; and the ten best of",
        f"  {voices[0]} enrolled voices {voices[4]} a test ([what your own sizes cost](docs/scale.md)).",
    ]
    readme = PAGE.parents[1] / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split("- **Scale**", 1)
    readme.write_text(before + "\n".join(headline) + rest[rest.index("\n\n") :], encoding="utf-8")


TABLES = {"train": trainings, "score": scorings, "search": searches}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", nargs="*", choices=[[], *TABLES], help="which of them; without names, all")
    parser.add_argument("--smaller", type=int, default=1, help="divide the sizes by this")
    parser.add_argument(
        "--write", metavar="WHERE", help="write the tables to docs/scale.md; where it was measured, in words"
    )
    parser.add_argument("--voices", type=int, help=argparse.SUPPRESS)  # one row of `search`, in this process
    parser.add_argument("--chunk", type=int, default=CHUNK, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.voices:
        print(json.dumps(search(given.voices, given.chunk)))
        return
    if given.smaller > 1:
        print(f"sizes are divided by {given.smaller}, whatever the tables say: these times mean nothing\n")
    os.environ["OMP_NUM_THREADS"] = str(min(2, os.cpu_count() or 1))
    for name in given.table or TABLES:
        rows = []
        for row in TABLES[name](given.smaller):
            print(row, flush=True)
            rows.append(row)
        print()
        if given.write:
            write_table(name, rows, given.write)
    if given.write:
        write_headline(given.write)


if __name__ == "__main__":
    main()
