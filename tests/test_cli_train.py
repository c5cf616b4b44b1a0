"""Choices of `duoplda train`: by what, for which enrolments and priors, of which model, with how many kinds."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cli_cases import done, duoplda
from duoplda import io
from duoplda.datasets import make_recordings


def data_of(n_speakers, folder):
    """Embeddings and lists of recordings, of which every third is noisier."""
    factors = {"n_dimensions": 6, "n_speaker_factors": 4, "n_session_factors": 3}
    X, speaker, session, _ = make_recordings(n_speakers, 4, 3, **factors, seed=0)
    ids = np.array([f"r{i:04d}" for i in range(len(X))])
    noisy = np.arange(len(X)) % 3 == 2
    X = X + noisy[:, None] * (2.0 + 2.0 * np.random.default_rng(1).normal(size=X.shape))
    io.write_embeddings(folder / "x.scp", ids, X)
    for name, values in {
        "utt2spk": speaker,
        "utt2sess": session,
        "utt2channel": np.where(noisy, "far", "near"),
    }.items():
        io.write_map(folder / name, ids, values)
    return ids, speaker


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    ids, speaker = data_of(40, folder)
    with (folder / "trials").open("w") as f:
        f.writelines(
            f"{ids[i]} {ids[j]} {'target' if speaker[i] == speaker[j] else 'nontarget'}\n"
            for i in range(0, 480, 12)
            for j in range(6, 480, 12)
        )
    return folder


def train(folder, *options, code=0, name="m"):
    out = folder / f"{name}.safetensors"
    lists = ["--speakers", folder / "utt2spk", "--sessions", folder / "utt2sess", "--out", out, "--force"]
    result = duoplda("train", "--embeddings", folder / "x.scp", *lists, *options)
    assert result.exit_code == code, result.output
    return json.loads(done("info", out, "--json").stdout) if code == 0 else result.stderr


def test_trials_choose_unless_likelihood_is_asked_for(folder):
    decision, likelihood = train(folder), train(folder, "--criterion", "likelihood")
    assert 0 < decision["cost"] < 1
    assert decision["calibration"] == "AffineCalibration"
    assert set(decision["calibration_values"]) >= {"scale", "offset"}
    assert decision["scales"] != {"speaker": 1.0, "session": 1.0} == likelihood["scales"]
    assert likelihood["cost"] is likelihood["calibration"] is None
    said = done("info", folder / "m.safetensors").stdout
    assert "calibration" not in said
    train(folder)
    said = done("info", folder / "m.safetensors").stdout
    for text in (
        "held-out trials: cost 0.",
        "for ratios alone, covariances are scaled: speaker ",
        "scale ",
        ", offset ",
    ):
        assert text in said


def test_what_the_deployment_looks_like(folder):
    found = [train(folder, *o) for o in ([], ["--enrolment", "2xall,1x1"], ["--priors", "0.001"])]
    assert len({f["cost"] for f in found}) == 3
    assert found[1]["parameters"]["plda"]["enrolment"] == [[2, None], [1, 1]]
    assert found[2]["parameters"]["plda"]["priors"] == [0.001]


def test_the_model_is_chosen_and_the_costs_are_told(folder):
    summary = train(folder, "--channels", folder / "utt2channel", "--model-type", "auto")
    assert set(summary["model_costs"]) == {"kinds", "two-source", "plain"}
    said = done("info", folder / "m.safetensors").stdout
    assert "model: kinds, the best by cost of held-out trials: kinds 0." in said
    for name, cost in summary["model_costs"].items():
        assert f"{name} {cost:.4f}" in said
    plain = train(folder, "--channels", folder / "utt2channel", "--model-type", "plain")
    assert plain["n_session_factors"] == 0
    assert len(plain["channels"]) == 1


def test_kinds_are_learnt_from_files(folder, tmp_path):
    data_of(100, tmp_path)  # of 40 speakers, the second kind gains two standard errors, the least that it must
    summary = train(tmp_path, "--learn-channels", "auto")
    assert summary["channels"] == [0, 1]
    said = done("info", tmp_path / "m.safetensors").stdout
    assert "kinds of channels learnt: 2, by the cost of each number (1: 0." in said
    assert train(folder, "--learn-channels", "3")["channels"] == [0, 1, 2]


def test_raw_leaves_the_calibration_out_and_calibrate_replaces_it(folder):
    train(folder, name="c")
    common = ["--model", folder / "c.safetensors", "--embeddings", folder / "x.scp", "--trials", folder / "trials"]
    scores = {}
    for name, option in {"calibrated": [], "raw": ["--raw"]}.items():
        done("score", *common, *option, "--out", folder / f"{name}.txt", "--force")
        scores[name] = io.read_scores(folder / f"{name}.txt").score
    values = json.loads(done("info", folder / "c.safetensors", "--json").stdout)["calibration_values"]
    np.testing.assert_allclose(scores["calibrated"], values["scale"] * scores["raw"] + values["offset"], atol=1e-4)
    own = ["--scores", folder / "raw.txt", "--trials", folder / "trials", "--model", folder / "c.safetensors"]
    assert "score with --raw first" in duoplda("calibrate", *own).stderr
    done("calibrate", *own, "--force")
    after = json.loads(done("info", folder / "c.safetensors", "--json").stdout)
    assert after["calibration_values"]["scale"] != values["scale"]
    assert after["scales"] != {"speaker": 1.0, "session": 1.0}


@pytest.mark.parametrize(
    "wrong",
    [
        ("--criterion", "best"),
        ("--enrolment", "3"),
        ("--enrolment", "0x1"),
        ("--priors", "2"),
        ("--priors", "x"),
        ("--model-type", "rich"),
        ("--learn-channels", "0"),
        ("--learn-channels", "many"),
    ],
)
def test_wrong_choices_are_named(folder, wrong):
    assert wrong[0] in train(folder, *wrong, code=2)


def test_speakers_with_one_session_are_chosen_by_likelihood_and_told_so(folder):
    speakers = ["--speakers", folder / "utt2sess", "--sessions", folder / "utt2sess"]
    out = folder / "one.safetensors"
    said = done("train", "--embeddings", folder / "x.scp", *speakers, "--session-factors", "0", "--out", out).stderr
    lines = [line for line in said.splitlines() if "no trials can be made of held-out speakers" in line]
    assert len(lines) == 1
    assert json.loads(done("info", out, "--json").stdout)["calibration"] is None
