"""Exit codes of the command line under load: `python -m benchmarks.exit_codes [RUNS]` runs each mistake that often.

Two commands run at a time while a third process keeps a core busy. A code other than the one promised is printed with
what the command wrote, and the exit status is 1.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from duoplda.datasets import make_recordings
from duoplda.io import write_embeddings, write_map


def mistakes(folder: Path) -> Iterator[tuple[str, int, list[str]]]:
    """Name, promised exit code and arguments of commands that must fail."""
    X, speaker, _, _ = make_recordings(40, seed=0)
    ids = [f"utt{i:05}" for i in range(len(X))]
    names = [f"s{s}" for s in speaker]
    write_embeddings(folder / "x.npz", ids, X)
    (folder / "damaged.npz").write_bytes((folder / "x.npz").read_bytes()[:-100])
    write_map(folder / "labels", ids, names)
    text = (folder / "labels").read_text()
    (folder / "twice").write_text(text + text.splitlines()[0] + "\n")
    (folder / "more").write_text(text + "nobody s0\n")
    (folder / "short").write_text(text + "nobody\n")

    def train(embeddings: str, labels: str, *options: str) -> list[str]:
        places = ["--embeddings", str(folder / embeddings), "--speakers", str(folder / labels)]
        return ["train", *places, "--out", str(folder / "model"), *options]

    yield "an id twice in the labels", 1, train("x.npz", "twice")
    yield "a labelled id without an embedding", 3, train("x.npz", "more")
    yield "a damaged file of embeddings", 1, train("damaged.npz", "labels")
    yield "a line of the labels with one field", 1, train("x.npz", "short")
    yield "an option that does not exist", 2, train("x.npz", "labels", "--no-such-option")


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    wrong = False
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        busy = subprocess.Popen([sys.executable, "-c", "import os\nwhile os.getppid() != 1: pass"])
        try:
            for what, promised, arguments in mistakes(Path(name)):

                def run(_: int, command: list[str] = arguments) -> tuple[int, str]:
                    done = subprocess.run([sys.executable, "-m", "duoplda", *command], capture_output=True, text=True)
                    return done.returncode, done.stderr

                results = list(pool.map(run, range(runs)))
                print(f"{what:40} promised {promised}, got", dict(Counter(code for code, _ in results)), flush=True)
                others = {result for result in results if result[0] != promised}
                wrong |= bool(others)
                print(*(f"  {code}: {text}" for code, text in others), sep="\n", end="")
        finally:
            busy.kill()
    sys.exit(wrong)


if __name__ == "__main__":
    main()
