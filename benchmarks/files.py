"""Reading, training and scoring from files, against the same work in memory, kaldiio and NumPy in the same run."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import common
from benchmarks.common import Row, interleaved, smaller
from benchmarks.core import a_model
from benchmarks.memory import duoplda
from duoplda import PLDA, Backend, Statistics, io
from duoplda.data.recordings import ROWS
from duoplda.estimators import scoring
from duoplda.observer import Observer

N, D, TRIALS = 300_000, 256, 5_000_000
SPEAKERS, SESSIONS, RECORDINGS, FOLDS = 2500, 20, 6, 4  # to train on: N recordings
LISTED, TESTS, MODELS, EACH = 2_000_000, 20_000, 2_000, 3  # to score: trials, recordings, models, recordings of each


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


def training() -> Iterator[Row]:
    """Processor time of training from Parquet: what grows with the recordings, and what does not.

    Whitening and length normalisation take a reading of their own, so that vectors are read twice, squared once for the
    covariance, multiplied once by the whitening, and summed up: that cannot be avoided, and is measured by itself.
    """
    import pyarrow.parquet as pq

    d = D if common.DIVISOR == 1 else 8
    rng, speakers = np.random.default_rng(0), smaller(SPEAKERS, 40)
    sessions = speakers * SESSIONS
    speaker, session = np.repeat(np.arange(speakers), SESSIONS * RECORDINGS), np.repeat(np.arange(sessions), RECORDINGS)
    X = rng.standard_normal((len(speaker), d), dtype=np.float32)
    X += 0.6 * rng.standard_normal((speakers, d), np.float32)[speaker]
    X += 0.8 * rng.standard_normal((sessions, d), np.float32)[session]
    names = [np.array([f"{what}-{i:07}" for i in range(n)]) for what, n in (("s", speakers), ("c", sessions))]
    ids = np.array([f"utterance-{i:07}" for i in range(len(X))])
    marks: list[float] = []

    class Clock(Observer):
        def training_begins(self) -> None:
            marks.append(time.process_time())

    def bare() -> None:  # reading by pyarrow alone
        for _ in pq.ParquetFile(path, pre_buffer=False).iter_batches(ROWS, columns=["embedding"], use_threads=False):
            pass

    def read() -> None:
        recordings = io.read_recordings(path, own_labels=True)
        for _ in range(2):
            for _ in recordings.vectors():
                pass

    def train() -> None:
        plda = PLDA(shrinkage="auto", random_state=0, n_folds=FOLDS)
        Backend(plda=plda).fit(io.read_recordings(path, own_labels=True), observer=Clock())

    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        path = Path(folder, "x.parquet")
        io.write_embeddings(path, ids, X, labels=io.LabelColumns(ids, names[0][speaker], names[1][session]))
        one_pass = min(_processor(lambda: Statistics.from_arrays(X, speaker, session)) for _ in range(3))
        folds = _processor(lambda: Statistics.from_arrays(X, speaker, session, n_folds=FOLDS))
        products = min(_products(X) for _ in range(3))
        least = one_pass + products + 2 * min(_processor(bare) for _ in range(3))
        reading = min(_processor(read) for _ in range(3))
        begin = time.process_time()
        all_of_it = _processor(train)
        gathered = marks[-1] - begin
    size = f"{N // 1000}k x {D}, {FOLDS} folds, processor time"
    yield Row("train from Parquet, all of it / one pass in memory", size, all_of_it, one_pass, None)
    yield Row("  choice and EM, for any number of recordings / one pass", size, all_of_it - gathered, one_pass, None)
    yield Row("  what grows with recordings / one pass", size, gathered, one_pass, 2)
    yield Row("  the same / the same pass with folds", size, gathered, folds, None)
    yield Row("  the same / bare readings, products and one pass", size, gathered, least, None)
    yield Row("  reading twice, labels and hash / one pass", size, reading, one_pass, None)


def _products(X: np.ndarray) -> float:
    """The processor time of X'X and of X times a matrix, in double precision."""
    wide, matrix = X.astype(np.float64), np.ones((X.shape[1], X.shape[1]))
    return _processor(lambda: (wide.T @ wide, wide @ matrix))


def _processor(function: Callable[[], Any]) -> float:
    """The processor time of a function, that of all threads together."""
    start = time.process_time()
    function()
    return time.process_time() - start


def listed_trials() -> Iterator[Row]:
    """What `duoplda score` does, from files to a file, against the ratios of the same pairs of sides in memory."""
    import pyarrow as pa
    import pyarrow.csv as csv

    rng, n_tests, n = np.random.default_rng(0), smaller(TESTS, 40), smaller(LISTED)
    n_models = min(MODELS, n_tests // EACH)
    model = a_model(D, 150, 100)
    chain = Backend.from_plda(PLDA.from_parameters(model.mu[0], model.V, model.U, model.W[0]))
    X = rng.standard_normal((n_tests, D), dtype=np.float32)
    ids = np.array([f"recording-{i:05}" for i in range(n_tests)])
    models = np.array([f"model-{i:04}" for i in range(n_models)])
    a, b = rng.integers(0, n_models, n), rng.integers(0, n_tests, n)
    enrolled = chain.enroll(X[: EACH * n_models], np.repeat(models, EACH))
    tests, pairs = chain.enroll(X, ids), np.column_stack([a, b])
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        chain.save(place / "model")
        io.write_embeddings(place / "x.ark", ids, X)
        lines = zip(np.repeat(models, EACH), ids[: EACH * n_models], strict=True)
        place.joinpath("enroll").write_text("".join(f"{m} {r}\n" for m, r in lines))
        lines = zip(models[a], ids[b], strict=True)
        place.joinpath("trials").write_text("".join(f"{m} {r}\n" for m, r in lines))

        def ours() -> None:
            listed, recordings = io.read_trials(place / "trials"), io.read_recordings(place / "x.ark")
            members = scoring.members(io.read_enrollment(place / "enroll"), listed)
            voices = scoring.enroll_recordings(chain, recordings, *members)
            io.write_scores(place / "scores", scoring.score_trials(chain, voices, listed, recordings), force=True)

        def bare() -> None:  # the lists by pyarrow alone
            code, options = pa.dictionary(pa.int32(), pa.string()), csv.ParseOptions(delimiter=" ")
            named = csv.ReadOptions(column_names=["a", "b"], use_threads=False)
            types = csv.ConvertOptions(column_types={"a": code, "b": code})
            table = csv.read_csv(place / "trials", named, options, types)
            table = pa.table({k: table[k].cast(pa.string()) for k in "ab"} | {"score": scores})
            csv.write_csv(table, place / "bare", csv.WriteOptions(include_header=False, delimiter=" "))

        scores = chain.llr(enrolled, tests, pairs=pairs)
        with threadpool_limits(1):
            from_files, in_memory, lists = (
                min(_processor(f) for _ in range(3))
                for f in (ours, lambda: chain.llr(enrolled, tests, pairs=pairs), bare)
            )
        files = "--model", "model", "--embeddings", "x.ark", "--enroll", "enroll", "--trials", "trials"
        loaded = "duoplda.estimators.scoring pyarrow.csv pyarrow.compute"
        used = duoplda(place, "score", *files, "--out", "s", "--quiet", libraries=loaded)
    size = f"{LISTED // 10**6}M trials, {TESTS // 1000}k x {D}, processor time"
    yield Row("score listed trials, files to file / pairs in memory", size, from_files, in_memory, 1.5)
    yield Row("  the same / pairs, and the lists by pyarrow", size, from_files, in_memory + lists, None)
    # Two codes, a place, a row and a score for each trial; gamma of the models; a chunk of vectors.
    held = (24 * n + 8 * n_models * 150 + 8 * ROWS * D) / 2**20
    size = f"{LISTED // 10**6}M trials, {TESTS // 1000}k x {D}"
    peak = used.peak - used.before
    yield Row("  peak MiB but for libraries / list, models, one chunk", size, peak, held, None, "MiB")


def help_page() -> Iterator[Row]:
    def start(*arguments: str) -> None:
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)

    ours, python = interleaved(lambda: start("-m", "duoplda", "--help"), lambda: start("-c", "pass"))
    yield Row("duoplda --help, seconds / half a second", "in a process of its own", ours, 0.5, 1.0)
    yield Row("  the same / Python itself", "in a process of its own", ours, python, None)


ALL = (reading, training, trials, listed_trials, help_page)
