"""What the tests of the command line share: running commands, and a folder with data, a model and trials."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from duoplda.cli import app
from duoplda.datasets import make_recordings
from duoplda.io import Coded, Trials, read_container, write_embeddings, write_map, write_trials

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
DEADLINE = 300  # seconds after which a process hangs: far more than it takes, as machines that test are busy
QUICK = ["--shrinkage", "0.1,0.1,0.1", "--tol", "1e-4"]


def duoplda(*arguments, stdin=None):
    """Run a command in this process, as if it had been typed, with these bytes on standard input."""
    typed = [str(a) for a in arguments]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["duoplda", *typed])
        return CliRunner().invoke(app, typed, stdin, prog_name="duoplda")


def lines(path):
    """The fields of each line of a list."""
    return [line.split() for line in path.read_text().splitlines()]


def done(*arguments, **more):
    result = duoplda(*arguments, **more)
    if result.exit_code != 0 and not isinstance(result.exception, SystemExit):
        raise result.exception  # it is not in the output
    assert result.exit_code == 0, result.output
    return result


def start(*arguments, **more):
    """A command in a process of its own that takes Ctrl-C, even if the tests run in a background that ignores it."""
    command = [sys.executable, "-m", "duoplda", *map(str, arguments)]
    options = {"env": ENVIRONMENT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
    return subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options)


def wait_for(condition, process, seconds=DEADLINE):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.002)


def recordings(folder, n_speakers=40, d=12, seed=0, name="x.npz"):
    """Embeddings and labels in a folder."""
    X, speaker, session, _ = make_recordings(
        n_speakers, (2, 4), (1, 4), n_dimensions=d, n_speaker_factors=d // 2, n_session_factors=d // 2, seed=seed
    )
    ids = np.array([f"utt{i:05}" for i in range(len(X))])
    order = np.random.default_rng(seed).permutation(len(X))  # files are not in the order of the labels
    write_embeddings(folder / name, ids[order], X[order].astype(np.float32))
    write_map(folder / "utt2spk", ids, speaker)
    write_map(folder / "utt2sess", ids, session)
    write_map(folder / "utt2chan", ids, np.array(["mic", "phone"])[np.arange(len(X)) % 2])
    return X.astype(np.float32)[order], ids[order], speaker[order], session[order]


def long_training(folder, name="x.npz"):
    """Recordings on which even `--tol 0` does not end before a signal arrives: 70 iterations of a tenth of a second.

    On small data EM ends by itself (nothing is left to gain) while a busy machine lets these tests wait.
    """
    recordings(folder, n_speakers=100, d=200, seed=1, name=name)


def make_folder(at):
    """Data, a model, an enrolment map and trials."""
    _, ids, speaker, _ = recordings(at)
    labels = dict(zip(ids.tolist(), speaker.tolist(), strict=True))
    some = np.unique(speaker)[:6]
    enroll = [(f"m-{s}", i) for s in some for i in sorted(i for i in labels if labels[i] == s)[:2]]
    write_map(at / "enroll", *zip(*enroll, strict=True))
    tests = sorted(i for i in labels if labels[i] in some and i not in dict(map(reversed, enroll)))
    pairs = [(f"m-{s}", t, labels[t] == s) for s in some for t in tests]
    left, right, target = zip(*pairs, strict=True)
    write_trials(at / "trials", Trials(Coded.of(left), Coded.of(right), np.array(target)))
    done(*training(at), *QUICK, "--out", at / "model.safetensors", "--quiet")


def training(folder, name="x.npz"):
    labels = ["--speakers", folder / "utt2spk", "--sessions", folder / "utt2sess"]
    return ["train", "--embeddings", folder / name, *labels]


def scoring(folder):
    return ["score", "--model", folder / "model.safetensors", "--embeddings", folder / "x.npz"]


def same_model(a, b):
    (x, _), (y, _) = (read_container(p, ["duoplda-backend"]) for p in (a, b))
    return set(x) == set(y) and all(np.array_equal(x[k], y[k]) for k in x)
