"""Exit codes of the command line under load: `python -m benchmarks.exit_codes [RUNS]` runs each mistake that often.

Twice as many commands as there are cores run at a time. A code other than the one promised is printed with what the
command wrote, and the exit status is 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from duoplda import PLDA
from duoplda.datasets import make_recordings
from duoplda.io import write_embeddings, write_map


def mistakes(folder: Path) -> Iterator[tuple[str, int, list[str]]]:
    """Name, promised exit code and arguments of commands that must fail."""
    X, speaker, session, _ = make_recordings(40, seed=0)
    ids = [f"utt{i:05}" for i in range(len(X))]
    for name in ("x.npz", "x.h5", "x.parquet", "x.scp"):
        write_embeddings(folder / name, ids, X)
        data = (folder / name).read_bytes()
        (folder / f"damaged{Path(name).suffix}").write_bytes(data[: len(data) * 2 // 3])
    write_embeddings(folder / "nan.npz", ids, np.where(np.arange(len(X))[:, None] == 3, np.nan, X))
    write_map(folder / "labels", ids, [f"s{s}" for s in speaker])
    text = (folder / "labels").read_text()
    (folder / "twice").write_text(text + text.splitlines()[0] + "\n")
    (folder / "more").write_text(text + "nobody s0\n")
    (folder / "short").write_text(text + "nobody\n")
    (folder / "enroll").write_text(f"s0 {ids[0]}\n")
    (folder / "trials").write_text(f"s0 {ids[0]}\nnobody {ids[1]}\n")
    PLDA(2, max_iter=2, tol=1e9, shrinkage=None).fit(X, speaker, session).save(folder / "model")

    def train(embeddings: str, labels: str, *options: str) -> list[str]:
        places = ["--embeddings", str(folder / embeddings), "--speakers", str(folder / labels)]
        return ["train", *places, "--out", str(folder / "new"), *options]

    yield "an id twice in the labels", 1, train("x.npz", "twice")
    yield "a labelled id without an embedding", 3, train("x.npz", "more")
    yield "a line of the labels with one field", 1, train("x.npz", "short")
    yield "an option that does not exist", 2, train("x.npz", "labels", "--no-such-option")
    for kind in ("npz", "h5", "parquet", "scp"):
        yield f"a damaged file of embeddings ({kind})", 1, train(f"damaged.{kind}", "labels")
    yield "a labelled id without an embedding (Parquet)", 3, train("x.parquet", "more")
    yield "NaN in a vector", 1, train("nan.npz", "labels")
    score = ["score", "--model", str(folder / "model"), "--embeddings", str(folder / "x.parquet")]
    lists = ["--enroll", str(folder / "enroll"), "--trials", str(folder / "trials")]
    yield "a trial of an unknown speaker", 3, [*score, *lists]


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    wrong = False
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
        for what, promised, arguments in mistakes(Path(name)):

            def run(_: int, command: list[str] = arguments) -> tuple[int, str]:
                done = subprocess.run([sys.executable, "-m", "duoplda", *command], capture_output=True, text=True)
                return done.returncode, done.stderr

            results = list(pool.map(run, range(runs)))
            print(f"{what:50} promised {promised}, got", dict(Counter(code for code, _ in results)), flush=True)
            others = {result for result in results if result[0] != promised}
            wrong |= bool(others)
            print(*(f"  {code}: {text}" for code, text in others), sep="\n", end="")
    sys.exit(wrong)


if __name__ == "__main__":
    main()
