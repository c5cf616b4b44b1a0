"""Exit codes of the command line under load: `python -m benchmarks.exit_codes [RUNS] [KIND ...]`.

Each command is run that often (500 times), twice as many at a time as there are cores. Kinds: mistakes in files and
options; closed_streams (`2>&-` and the like, in every command); refused_writes (a limit on the size of files). Exit
codes other than the one promised are printed with what the command wrote (a traceback, or no line of an error where
there must be one, counts as another code), and so are temporary files that are left behind. The exit status then is 1.
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
from typing import NamedTuple

import numpy as np

from duoplda import PLDA
from duoplda.datasets import make_recordings
from duoplda.io import write_embeddings, write_map
from duoplda.voices import Registry

PLAIN = 'exec "$@"'


class Case(NamedTuple):
    """A command that must end with an exit code, and the line of the shell that runs it."""

    what: str
    code: int
    arguments: list[str]
    shell: str = PLAIN


def mistakes(folder: Path) -> Iterator[Case]:
    """Commands that must fail because of what they are given."""
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

    yield Case("an id twice in the labels", 1, train("x.npz", "twice"))
    yield Case("a labelled id without an embedding", 3, train("x.npz", "more"))
    yield Case("a line of the labels with one field", 1, train("x.npz", "short"))
    yield Case("an option that does not exist", 2, train("x.npz", "labels", "--no-such-option"))
    for kind in ("npz", "h5", "parquet", "scp"):
        yield Case(f"a damaged file of embeddings ({kind})", 1, train(f"damaged.{kind}", "labels"))
    yield Case("a labelled id without an embedding (Parquet)", 3, train("x.parquet", "more"))
    yield Case("NaN in a vector", 1, train("nan.npz", "labels"))
    score = ["score", "--model", str(folder / "model"), "--embeddings", str(folder / "x.parquet")]
    lists = ["--enroll", str(folder / "enroll"), "--trials", str(folder / "trials")]
    yield Case("a trial of an unknown speaker", 3, [*score, *lists])


def every_command(folder: Path) -> list[tuple[list[str], bool]]:
    """Each command as it works, and whether it prints a result; `score` prints its scores.

    `embed` needs a network of its own, and `serve` goes on until it is ended.
    """
    X, speaker, session, _ = make_recordings(20, seed=0)
    ids = [f"utt{i:05}" for i in range(len(X))]
    write_embeddings(folder / "x.npz", ids, X)
    write_map(folder / "utt2spk", ids, speaker)
    write_map(folder / "utt2sess", ids, session)
    people = sorted(set(speaker.tolist()))[:8]
    trials = [(who, i, who == speaker[i]) for who in people for i in range(1, len(X), 3)]
    (folder / "trials").write_text("".join(f"{who} {ids[i]} {'non' * (not same)}target\n" for who, i, same in trials))
    (folder / "scores").write_text("".join(f"{who} {ids[i]} {i % 7 + 2 * same}\n" for who, i, same in trials))
    (folder / "enroll").write_text("".join(f"{speaker[i]} {ids[i]}\n" for i in range(0, len(X), 3)))
    (folder / "segments").write_text("".join(f"{name} f {i} {i + 1}\n" for i, name in enumerate(ids)))
    (folder / "local").write_text("".join(f"{name} f{i % 2}-{speaker[i]}\n" for i, name in enumerate(ids)))
    plda = PLDA(2, max_iter=2, tol=1e9, shrinkage=None).fit(X, speaker, session)
    plda.save(folder / "model")
    with Registry.create(folder / "voices.db", plda) as voices:
        voices.add(people[0], X[speaker == people[0]], session[speaker == people[0]])
    model = ["--model", str(folder / "model"), "--embeddings", str(folder / "x.npz")]
    lists = ["--speakers", str(folder / "utt2spk"), "--sessions", str(folder / "utt2sess")]
    scored = ["--scores", str(folder / "scores"), "--trials", str(folder / "trials")]
    enrolled = ["--enroll", str(folder / "enroll")]

    def out(name: str) -> list[str]:
        return ["--out", str(folder / name), "--force"]

    quick = ["--shrinkage", "none", "--tol", "1e9"]
    return [
        (["advise", *lists], True),
        (["split", *lists, *out("parts")], True),
        (["train", *model[2:], *lists, *quick, *out("trained")], False),
        (["adapt", *model, *lists, *out("adapted")], False),
        (["enroll", *model, *enrolled, *out("voices")], False),
        (["score", *model, *enrolled, "--trials", str(folder / "trials")], True),
        (["voices", "list", "--registry", str(folder / "voices.db")], True),
        (["identify", *model, "--registry", str(folder / "voices.db")], True),
        (["cluster", *model, *lists[2:], *out("clusters")], False),
        (["link", *model, "--local", str(folder / "local"), *out("links")], False),
        (["diarize", *model, "--segments", str(folder / "segments"), *out("x.rttm")], False),
        (["info", str(folder / "model")], True),
        (["convert", str(folder / "model"), str(folder / "kaldi"), "--force"], True),
        (["evaluate", *scored, *lists[:2], *enrolled, "--bootstrap", "20"], True),
        (["calibrate", *scored, *out("calibrated.txt")], True),
        (["report", *scored, *out("report.html")], True),
        (["case", str(folder / "case.toml"), "--new", "--force"], False),
        (["demo", "--out", str(folder / "demo"), "--force"], True),
    ]


def closed_streams(folder: Path) -> Iterator[Case]:
    """Every command with standard error, input or output closed, or output on a full disk."""
    for arguments, prints in every_command(folder):
        for shell, code in (("2>&-", 0), ("<&-", 0), (">&-", int(prints)), (">/dev/full", int(prints))):
            yield Case(f"{arguments[0]} {shell}", code, arguments, f"{PLAIN} {shell}")


def refused_writes(folder: Path) -> Iterator[Case]:
    """Commands that may write 1,000 bytes, and no more."""
    for arguments, _ in every_command(folder):
        if arguments[0] == "convert":
            for to in ("vbx", "pyannote", "kaldi"):
                pair = ["convert", arguments[1], str(folder / f"pair-{to}"), "--to", to]
                yield Case(f"convert --to {to}, file-size limit", 1, pair, f"ulimit -f 1; {PLAIN}")
        elif arguments[0] in ("train", "enroll", "report"):
            yield Case(f"{arguments[0]}, file-size limit", 1, arguments, f"ulimit -f 1; {PLAIN}")


def run(case: Case) -> tuple[int, str]:
    """Run a command; return its exit code, and its errors or what it should not have left behind."""
    command = ["sh", "-c", case.shell, "sh", sys.executable, "-m", "duoplda", *case.arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    said = done.stderr.count("duoplda: error: ")
    clean = "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    clean &= said == (case.code in (1, 3)) or case.code == 2  # typer words what is wrong with options
    return done.returncode if clean else -1, done.stderr


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    wanted = {"mistakes": mistakes, "closed_streams": closed_streams, "refused_writes": refused_writes}
    wrong = False
    for name in sys.argv[2:] or wanted:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
            for case in wanted[name](Path(folder)):
                results = list(pool.map(run, [case] * runs))
                counted = dict(Counter(code for code, _ in results))
                print(f"{case.what:50} promised {case.code}, got", counted, flush=True)
                others = {result for result in results if result[0] != case.code}
                wrong |= bool(others)
                for code, text in others:
                    print(f"  {code}: {text}", flush=True)
            left = [str(path) for path in Path(folder).rglob("*.tmp")]
            wrong |= bool(left)
            print(f"{name}: temporary files left behind:", *left or ["none"], flush=True)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
