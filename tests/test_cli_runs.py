"""Long runs of the command line: killed and taken up again, the demo, and real data in every format."""

import shlex
import signal
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cli_cases import DEADLINE, QUICK, done, duoplda, long_training, make_folder, same_model, start, training, wait_for
from duoplda.datasets import make_recordings
from duoplda.estimators.checkpoint import Checkpoint
from duoplda.io import (
    Coded,
    Trials,
    read_container,
    read_scores,
    write_container,
    write_embeddings,
    write_map,
    write_trials,
)
from duoplda.model.em import State

SHARED = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    at = tmp_path_factory.mktemp("cli")
    make_folder(at)
    return at


# -- interruptions


def test_killed_and_interrupted_training_goes_on(tmp_path):
    long_training(tmp_path)
    out, checkpoint = tmp_path / "m", tmp_path / "m.resume"
    slow = [*training(tmp_path), "--shrinkage", "none", "--tol", "0", "--max-iter", "100000", "--out", out]
    process = start(*slow)
    wait_for(checkpoint.exists, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not out.exists()
    first = read_container(checkpoint, ["duoplda-resume"])[0]["EM: trace"]

    process = start(*slow, "--resume")
    before = checkpoint.read_bytes()
    wait_for(lambda: checkpoint.exists() and checkpoint.read_bytes() != before, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130, errors
    assert f"going on after iteration {len(first) - 1}" in errors
    assert "duoplda: error: interrupted" in errors
    assert not out.exists()
    second = read_container(checkpoint, ["duoplda-resume"])[0]["EM: trace"]
    assert len(second) > len(first)
    np.testing.assert_array_equal(second[1 : len(first)], first[1:])

    end = ["--shrinkage", "none", "--tol", "0", "--max-iter", str(len(second) + 2), "--quiet"]
    done(*training(tmp_path), *end, "--out", tmp_path / "whole")
    done(*training(tmp_path), *end, "--out", out, "--resume")
    assert not checkpoint.exists()
    assert same_model(out, tmp_path / "whole")  # to the last bit, the log-likelihoods of all iterations included
    with_out = [p.name for p in tmp_path.iterdir() if p.name.startswith("m.") and not p.name.endswith(".part")]
    assert with_out == []


def test_resume_needs_the_same_data_and_options(tmp_path, folder):
    model = make_recordings(2, seed=0).model
    Checkpoint(tmp_path / "m.resume", {"lda": 4}, SimpleNamespace(digest="aa")).state(State(model, (-1.0,)))
    result = duoplda(*training(folder), *QUICK, "--out", tmp_path / "m", "--resume")
    assert result.exit_code == 1
    assert "other labels or options" in result.stderr
    (tmp_path / "m.resume").write_bytes(b"garbage")
    assert "damaged" in duoplda(*training(folder), *QUICK, "--out", tmp_path / "m", "--resume").stderr
    Checkpoint(tmp_path / "m.resume", {"lda": 4}, SimpleNamespace(digest="aa")).state(State(model, (-1.0,)))
    arrays, header = read_container(tmp_path / "m.resume", ["duoplda-resume"])
    for spoilt in (
        {**arrays, "EM: trace": arrays["EM: trace"] * np.nan},
        {**arrays, "EM: V": arrays["EM: V"][:, :1]},
        {**arrays, "EM: V": arrays["EM: V"].reshape(-1)},
        {k: v for k, v in arrays.items() if k != "EM: W"},
    ):
        write_container(tmp_path / "m.resume", "duoplda-resume", spoilt, header, force=True)
        result = duoplda(*training(folder), *QUICK, "--out", tmp_path / "m", "--resume")
        assert result.exit_code == 1
        assert "m.resume is damaged: remove it, and start anew" in result.stderr
    result = done(*training(folder), *QUICK, "--out", tmp_path / "m")  # not asked to go on: from the beginning
    assert not (tmp_path / "m.resume").exists()
    assert same_model(tmp_path / "m", folder / "model.safetensors")
    result = done(*training(folder), *QUICK, "--out", tmp_path / "n", "--resume")
    assert "the work starts from the beginning" in result.stderr


def size(path):
    """Bytes of a file; 0 if it is gone (a file that tried whether the folder can be written to)."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_killed_scoring_leaves_nothing(tmp_path, folder):
    X = np.random.default_rng(0).normal(size=(4000, 12)).astype(np.float32)
    ids = [f"r{i}" for i in range(len(X))]
    write_embeddings(tmp_path / "y.npz", ids, X)
    write_map(tmp_path / "all", ids, ids)
    out = tmp_path / "out"
    out.mkdir()
    arguments = ["score", "--model", folder / "model.safetensors", "--embeddings", tmp_path / "y.npz"]
    process = start(*arguments, "--enroll", tmp_path / "all", "--matrix", "--out", out / "scores.txt")
    wait_for(lambda: any(size(p) > 1 << 20 for p in out.iterdir()), process)
    process.kill()
    process.communicate()
    assert not (out / "scores.txt").exists()


# -- the demo


def test_demo_and_its_commands_one_by_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = done("demo", "--out", "demo")
    printed = result.stdout.splitlines()
    assert printed[-1] == "demo/report.html"
    commands = [shlex.split(line)[1:] for line in printed if line.startswith("duoplda ")]
    assert [c[0] for c in commands] == ["train", "train", "score", "score", "score", "report"]
    assert ["--sessions" in c for c in commands] == [True, False, True, False, False, False]
    demo = Path("demo")
    for name in ("train.ark", "train.scp", "eval.ark", "utt2spk", "utt2sess", "enroll", "trials.tsv", "report.html"):
        assert (demo / name).stat().st_size > 0
    names = ("duoplda", "simplified", "cosine")
    before = {n: read_scores(demo / f"{n}.txt").score for n in names}
    assert len({len(s) for s in before.values()}) == 1
    models = {n: (demo / f"{n}.safetensors").read_bytes() for n in names[:2]}
    for path in (*demo.glob("*.txt"), *demo.glob("*.safetensors"), demo / "report.html"):
        path.unlink()
    for command in commands:
        done(*command)
    for name in names:
        np.testing.assert_array_equal(read_scores(demo / f"{name}.txt").score, before[name])
    assert {n: (demo / f"{n}.safetensors").read_bytes() for n in names[:2]} == models
    assert (demo / "report.html").stat().st_size > 10_000

    from duoplda.evaluation.metrics import cllr
    from duoplda.io import read_trials

    target = read_trials(demo / "trials.tsv").target
    assert cllr(before["duoplda"], target) < 0.8 * cllr(before["simplified"], target)
    assert duoplda("demo", "--out", "demo").exit_code == 1


# -- real data


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")
def test_all_formats_give_the_same_model_and_scores_on_real_data(tmp_path):
    with np.load(SHARED / "amnist_campp_train.npz") as data:
        X, speaker, session = (data[k] for k in ("embeddings", "speaker", "session_id"))
    with np.load(SHARED / "amnist_campp_public.npz") as data:
        test = data["embeddings"]
    with np.load(SHARED / "amnist_trials_public.npz") as data:
        rows, model, row, label = (data[k] for k in ("model_rows", "trial_model", "trial_test_row", "trial_label"))
    ids = np.arange(len(X)).astype(str)
    write_map(tmp_path / "utt2spk", ids, [f"s{s}" for s in speaker.tolist()])
    write_map(tmp_path / "utt2sess", ids, [f"c{s}" for s in session.tolist()])
    pairs = [(f"m{m}", str(r)) for m, own in enumerate(rows.tolist()) for r in own if r >= 0]
    write_map(tmp_path / "enroll", *zip(*pairs, strict=True))
    some = np.random.default_rng(0).permutation(len(model))[:5000]
    enroll = Coded.of([f"m{m}" for m in model[some]])
    trials = Trials(enroll, Coded.of([str(r) for r in row[some]]), label[some].astype(bool))
    write_trials(tmp_path / "trials", trials)
    models, scores = [], []
    for suffix in ("npz", "scp", "h5", "parquet"):
        train, public = tmp_path / f"train.{suffix}", tmp_path / f"public.{suffix}"
        if suffix == "npz":  # as it came
            train, public = SHARED / "amnist_campp_train.npz", SHARED / "amnist_campp_public.npz"
        else:
            write_embeddings(train, ids, X)
            write_embeddings(public, ids[: len(test)], test)
        models.append(tmp_path / f"{suffix}.model")
        labels = ["--speakers", tmp_path / "utt2spk", "--sessions", tmp_path / "utt2sess"]
        few = ["--lda", 30, "--shrinkage", "0.3,0.1,0.1", "--tol", "1e-3"]
        done("train", "--embeddings", train, *labels, *few, "--out", models[-1], "--quiet")
        out = tmp_path / f"{suffix}.scores"
        arguments = ["score", "--model", models[-1], "--embeddings", public, "--enroll", tmp_path / "enroll"]
        done(*arguments, "--trials", tmp_path / "trials", "--out", out, "--quiet")
        scores.append(read_scores(out).score)
    for a, b in pairwise(models):
        assert same_model(a, b)
    for s in scores[1:]:
        np.testing.assert_array_equal(s, scores[0])

    from duoplda.evaluation.metrics import eer

    assert eer(scores[0], trials.target) < 0.1
