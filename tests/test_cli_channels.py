"""Kinds of channels on the command line: labels in, kinds in the model, in `info` and in the report."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cli_cases import duoplda
from duoplda import io
from duoplda.datasets import make_recordings

KINDS = np.array(["clean", "codec"])


def run(*arguments, code=0):
    result = duoplda(*arguments)
    assert result.exit_code == code, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("channels")
    data = make_recordings(60, (2, 4), 4, n_dimensions=6, n_speaker_factors=4, n_session_factors=3, seed=0)
    rng = np.random.default_rng(1)
    kind = np.arange(len(data.X)) % 2
    X = data.X + np.where(kind[:, None] == 1, 3.0 + 2.0 * rng.normal(size=data.X.shape), 0.0)
    ids = np.array([f"r{i:04d}" for i in range(len(X))])
    io.write_embeddings(folder / "x.scp", ids, X)
    lines = zip(ids, data.speaker, data.session, KINDS[kind], strict=True)
    (folder / "labels.tsv").write_text(
        "id\tspeaker\tsession\tchannel\n" + "".join("\t".join(line) + "\n" for line in lines)
    )
    io.write_map(folder / "utt2channel", ids, KINDS[kind])
    with (folder / "trials").open("w") as f:
        for i in range(0, 40):
            for j in range(40, 80):
                same = "target" if data.speaker[i] == data.speaker[j] else "nontarget"
                f.write(f"{ids[i]} {ids[j]} {same}\n")
        for i in range(0, len(ids) - 4, 4):
            f.write(f"{ids[i]} {ids[i + 3]} target\n")
    run("train", "--embeddings", folder / "x.scp", "--labels", folder / "labels.tsv", "--out", folder / "m.safetensors")
    return folder


def test_info_has_the_noise_of_each_kind(folder):
    text = run("info", folder / "m.safetensors")
    assert "kind of channel clean: 50.0 % of the recordings, noise" in text
    summary = json.loads(run("info", folder / "m.safetensors", "--json"))
    assert summary["channels"] == ["clean", "codec"]
    (_, clean), (_, codec) = summary["channel_noise"]
    assert codec > clean + 0.2


def test_scores_with_kinds_known_and_inferred_and_the_report(folder):
    common = ["--model", folder / "m.safetensors", "--embeddings", folder / "x.scp", "--trials", folder / "trials"]
    run("score", *common, "--channels", folder / "utt2channel", "--out", folder / "known.txt")
    run("score", *common, "--out", folder / "inferred.txt")
    known, inferred = (io.read_scores(folder / f"{name}.txt").score for name in ("known", "inferred"))
    assert not np.array_equal(known, inferred)
    assert np.mean(known == inferred) > 0.5  # most kinds are inferred rightly
    out = folder / "report.html"
    systems = ["--scores", folder / "known.txt", "--scores", folder / "inferred.txt", "--trials", folder / "trials"]
    more = ["--channels", folder / "utt2channel", "--embeddings", folder / "x.scp", "--model", folder / "m.safetensors"]
    run("report", *systems, *more, "--bootstrap", 0, "--out", out)
    page = out.read_text()
    assert "channel of the test" in page
    assert "taken for <bdi>codec</bdi>" in page
    assert "recordings are right" in page
    run("report", *systems, "--embeddings", folder / "x.scp", "--out", folder / "no.html", code=2)
    assert not (folder / "no.html").exists()


def test_sessions_that_lack_ids_are_missing_ids(folder):
    lines = (folder / "labels.tsv").read_text().splitlines()[1:]
    (folder / "utt2spk").write_text("".join(" ".join(line.split("\t")[:2]) + "\n" for line in lines))
    (folder / "utt2sess").write_text("".join(f"{x[0]} {x[2]}\n" for x in (line.split("\t") for line in lines[3:])))
    files = ["--speakers", folder / "utt2spk", "--sessions", folder / "utt2sess", "--out", folder / "none.safetensors"]
    run("train", "--embeddings", folder / "x.scp", *files, code=3)
    assert not (folder / "none.safetensors").exists()
