"""Reading embeddings and trials, and scoring listed trials, against kaldiio and NumPy in the same run."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.common import Row, interleaved, smaller
from benchmarks.core import a_model
from duoplda import PLDA, io

N, D, TRIALS = 300_000, 256, 5_000_000


def reading() -> Iterator[Row]:
    import kaldiio

    with tempfile.TemporaryDirectory() as folder:
        place, n = Path(folder), smaller(N)
        ids = np.array([f"utterance-{i:07d}" for i in range(n)])
        X = np.random.default_rng(0).standard_normal((n, D), dtype=np.float32)
        for name in ("x.ark", "x.npz", "x.parquet", "x.h5"):
            io.write_embeddings(place / name, ids, X)
        np.save(place / "plain.npy", X)

        def ours(name: str) -> float:
            return sum(float(x[0, 0]) for _, x in io.read_embeddings(place / name).chunks())

        def theirs() -> float:
            return sum(float(x[0]) for _, x in kaldiio.load_ark(str(place / "x.ark")))

        ark, npz, parquet, hdf, kaldi, numpy = interleaved(
            *(lambda name=name: ours(name) for name in ("x.ark", "x.npz", "x.parquet", "x.h5")),
            theirs,
            lambda: np.load(place / "plain.npy").sum(),
            repeat=3,
        )
        size = f"{n // 1000}k x {D} float32"
        yield Row("read ark in chunks / kaldiio", size, ark, kaldi, 1.0)
        yield Row("read ark in chunks / np.load of npy", size, ark, numpy, None)
        for name, time in (("npz", npz), ("Parquet", parquet), ("HDF5", hdf)):
            yield Row(f"read {name} in chunks / np.load of npy", size, time, numpy, None)


def trials() -> Iterator[Row]:
    rng = np.random.default_rng(0)
    model = a_model(128, 100, 50)
    plda = PLDA.from_parameters(model.mu[0], model.V, model.U, model.W[0])
    names = np.array([f"recording-{i:05d}" for i in range(20_000)])
    sides = plda.enroll(rng.standard_normal((len(names), 128)), names)
    n = smaller(TRIALS)
    a, b = rng.integers(0, len(names), (2, n))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trials")
        target = np.where(rng.random(n) < 0.1, "target", "nontarget")
        with path.open("w") as f:
            f.writelines(f"{x} {y} {t}\n" for x, y, t in zip(names[a], names[b], target, strict=True))

        def read_and_score() -> float:
            t = io.read_trials(path)
            pairs = np.c_[sides.find(t.enroll.names)[t.enroll.codes], sides.find(t.test.names)[t.test.codes]]
            return float(plda.llr(sides, sides, pairs=pairs)[0])

        ours, raw = interleaved(read_and_score, lambda: path.read_bytes().count(b"\n"), repeat=2)
        yield Row("read and score listed trials / counting the lines", f"{TRIALS // 10**6}M trials", ours, raw, None)


def help_page() -> Iterator[Row]:
    def start(*arguments: str) -> None:
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)

    ours, python = interleaved(lambda: start("-m", "duoplda", "--help"), lambda: start("-c", "pass"))
    yield Row("duoplda --help, seconds / half a second", f"Python itself: {python:.2f} s", ours, 0.5, 1.0)


ALL = (reading, trials, help_page)
