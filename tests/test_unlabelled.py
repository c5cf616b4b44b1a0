"""What has no label is left out with a note, in all commands alike, and refused with --strict (exit code 3)."""

import numpy as np
import pytest

from cli_cases import QUICK, done, duoplda, lines, make_folder
from duoplda.datasets import make_recordings
from duoplda.io import read_embeddings, write_embeddings, write_map


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data, a model, trials, and lists that lack some of the recordings."""
    at = tmp_path_factory.mktemp("unlabelled")
    make_folder(at)
    enrolled = {recording for _, recording in lines(at / "enroll")}
    rows = lines(at / "utt2sess")
    lacking = {recording for recording, _ in rows[1:6:2]}  # no model loses all of its recordings
    assert lacking & enrolled
    for name in ("utt2spk", "utt2sess"):
        kept = [row for row in lines(at / name) if row[0] not in lacking]
        write_map(at / f"part_{name}", *zip(*kept, strict=True))
    return at


def train(at):
    labels = ["--speakers", at / "part_utt2spk", "--sessions", at / "part_utt2sess"]
    return ["train", "--embeddings", at / "x.npz", *labels, *QUICK, "--out", at / "part.safetensors", "--force"]


def adapt(at):
    words = ["adapt", "--model", at / "model.safetensors", "--embeddings", at / "x.npz"]
    return [*words, "--sessions", at / "part_utt2sess", "--out", at / "adapted.safetensors", "--force"]


def cluster(at):
    words = ["cluster", "--model", at / "model.safetensors", "--embeddings", at / "x.npz"]
    return [*words, "--sessions", at / "part_utt2sess", "--out", at / "clusters.tsv", "--force"]


def enroll(at):
    words = ["enroll", "--model", at / "model.safetensors", "--embeddings", at / "x.npz", "--enroll", at / "enroll"]
    return [*words, "--sessions", at / "part_utt2sess", "--out", at / "voices.safetensors", "--force"]


def score(at):
    words = ["score", "--model", at / "model.safetensors", "--embeddings", at / "x.npz", "--enroll", at / "enroll"]
    lists = ["--sessions", at / "part_utt2sess", "--trials", at / "trials"]
    return [*words, *lists, "--out", at / "scores.txt", "--force"]


def cohort(at):
    words = ["score", "--model", at / "model.safetensors", "--embeddings", at / "x.npz", "--trials", at / "pairs"]
    write_map(at / "pairs", ["utt00200"], ["utt00201"], force=True)
    ids, X = read_embeddings(at / "x.npz").load()
    rows = np.argsort(ids)[:40]
    write_embeddings(at / "cohort.npz", ids[rows], X[rows], force=True)
    lists = ["--cohort", at / "cohort.npz", "--cohort-speakers", at / "part_utt2spk"]
    return [*words, *lists, "--out", at / "normalised.txt", "--force"]


def link(at):
    words = ["link", "--model", at / "model.safetensors", "--embeddings", at / "x.npz"]
    return [*words, "--local", at / "part_utt2spk", "--out", at / "linked.tsv", "--force"]


def evaluate(at):
    return ["evaluate", "--clusters", at / "utt2spk", "--reference", at / "part_utt2spk", "--bootstrap", 0]


CASES = {
    train: "3 embeddings have no label",
    adapt: "3 embeddings have no label",
    cluster: "3 embeddings have no label",
    link: "3 embeddings have no label",
    enroll: "recordings have no session",
    score: "recordings have no session",
    cohort: "recordings of the cohort have no speaker",
    evaluate: "have no speaker",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", CASES, ids=lambda command: command.__name__)
def test_what_has_no_label_is_left_out(folder, command):
    result = done(*command(folder))
    assert CASES[command] in result.stderr
    assert ", and are left out" in result.stderr


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", CASES, ids=lambda command: command.__name__)
def test_strict_refuses_it(folder, command):
    result = duoplda(*command(folder), "--strict")
    assert result.exit_code == 3
    assert CASES[command] in result.stderr
    assert "(without --strict they are left out)" in result.stderr


def test_clusters_hold_labelled_recordings_alone(folder):
    done(*cluster(folder))
    clustered = {row[0] for row in lines(folder / "clusters.tsv")[1:]}
    assert clustered == {recording for recording, _ in lines(folder / "part_utt2sess")}


def test_diarize_leaves_out_embeddings_without_a_segment(folder, tmp_path):
    X, *_ = make_recordings(2, 1, 6, n_dimensions=12, n_speaker_factors=6, n_session_factors=6, seed=1)
    names = [f"w{i:02}" for i in range(len(X))]
    write_embeddings(tmp_path / "w.npz", names, X.astype(np.float32))
    (tmp_path / "segments").write_text("".join(f"{name} file {i} {i + 1}\n" for i, name in enumerate(names[:-3])))
    words = ["diarize", "--model", folder / "model.safetensors", "--embeddings", tmp_path / "w.npz"]
    words += ["--segments", tmp_path / "segments", "--out", tmp_path / "out.rttm"]
    strict = duoplda(*words, "--strict")
    assert strict.exit_code == 3
    assert "3 embeddings have no segment" in strict.stderr
    assert "3 embeddings have no segment" in done(*words).stderr
    assert (tmp_path / "out.rttm").stat().st_size
