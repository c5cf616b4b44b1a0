"""Every benchmark runs, at a tiny size; those of other libraries where these are installed. No time is asserted."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks import __main__, clustering, core, files, peers

from duoplda import PLDA

ROOT = Path(__file__).parents[1]

SIZE = ["--speakers=60", "--evaluated=20", "--dimensions=6", "--factors=3", "--iterations=3", "--repeat=1"]
NAMES = [
    "duoplda, two sources",
    "duoplda, simplified",
    "SpeechBrain PLDA",
    "hyperion SPLDA",
    "scikit-learn LDA, cosine",
]


def run(*arguments: object) -> str:
    command = [sys.executable, "-m", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_benchmark_runs(tmp_path):
    printed = run("benchmarks", "--smaller=1000", f"--out={tmp_path / 'out.json'}")
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["smaller"] == 1000
    assert "sizes are divided by 1000" in printed
    assert len(written["rows"]) >= len([*core.ALL, *files.ALL])
    for row in written["rows"]:
        assert 0 < row["ratio"] < math.inf
        assert row["what"] in printed


def test_the_cluster_benchmark_runs(tmp_path):
    sizes = ("--speakers=12", "--shards=2", "--dimensions=4", "--repeat=1", "--workers=1")
    printed = run("benchmarks.cluster", *sizes, f"--out={tmp_path / 'out.json'}")
    (row,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert set(row["seconds"]) == {"labels", "spread", "statistics"}
    assert "1200 recordings x 4 in 2 Parquet shards" in printed
    assert "1e9 recordings x 4" in printed


def test_the_memory_benchmark_runs():
    printed = run("benchmarks.memory", "--recordings=2000", "--dimensions=6")
    assert "recordings of 9 speakers x 6" in printed


def test_the_clustering_benchmark_runs(tmp_path):
    printed = run("benchmarks.clustering", "--sessions=300", "--dimensions=150", f"--out={tmp_path / 'out.json'}")
    written = json.loads((tmp_path / "out.json").read_text())
    assert (written["sessions"], written["dimensions"]) == (300, 150)
    assert 300 < written["recordings"] < 5 * 300
    assert written["clustering_s"] / written["candidates_s"] == pytest.approx(written["ratio"])
    assert 0 < written["bytes_before"] <= written["bytes_peak"]
    assert written["b_cubed_f"] > 0.95  # sessions are drawn with the speakers that they are compared with
    assert abs(written["found"] - written["speakers"]) <= 2
    assert f"speakers found    {written['found']:10,} / {written['speakers']:,}" in printed
    assert "goals are for 50,000 sessions" in printed


def test_the_clustering_benchmark_draws_what_it_says():
    V, U, L = clustering.a_model(40)
    shares = [np.trace(A @ A.T) / 40 for A in (V, U, L)]
    np.testing.assert_allclose(shares, [0.18, 0.32, 0.5], rtol=1e-12)
    speaker = clustering.speakers_of(5000, seed=1)
    sizes = np.bincount(speaker)
    assert len(speaker) == 5000
    assert (sizes.min(), sizes.max()) == (1, 39)
    W = np.linalg.inv(L @ L.T)
    plda = PLDA.from_parameters(np.zeros(40), V, U, (W + W.T) / 2)
    sides, recordings = clustering.drawn(plda, clustering.Host(1), L, speaker, seed=1)
    assert sides.ids.tolist() == list(range(5000))
    assert sides.types.ravel().tolist() == [1, 2, 3, 4, 5]
    assert (sides.counts @ sides.types).sum() == recordings
    same, other = (
        np.column_stack([np.arange(4999), np.arange(1, 5000)]),
        np.column_stack([np.arange(4000), np.arange(4000) + 1000]),
    )
    same = same[speaker[:-1] == speaker[1:]]
    assert plda.llr(sides, sides, same).mean() > 0 > plda.llr(sides, sides, other).mean()


def test_peers(tmp_path, monkeypatch, capsys):
    out = tmp_path / "peers.json"
    monkeypatch.setattr(sys, "argv", ["benchmarks", "peers", *SIZE, *(f"--only={n}" for n in NAMES), f"--out={out}"])
    __main__.main()
    printed, written = capsys.readouterr().out, json.loads(out.read_text())
    rows = {row["system"]: row for row in written["rows"]}
    assert sorted([*rows, *written["skipped"]]) == sorted(NAMES)
    for name, why in written["skipped"].items():
        assert f"{name}: {why}, skipped" in printed
    lines = printed.partition("\n\n")[2].splitlines()
    for name, row in rows.items():
        assert any(line.startswith(name) for line in lines)
        assert row["MiB_peak"] >= row["MiB_before"] > 0
        assert [r["enrolment"] for r in row["results"]] == list(peers.SYSTEMS[name].treats)
        for result in row["results"]:
            assert 0 < result["EER"] <= 50
            assert result["min_Cllr"] <= (1 if result["Cllr"] is None else result["Cllr"]) + 1e-12

    two, one, lda = (rows[NAMES[i]] for i in (0, 1, -1))
    for row in (two, one):
        assert row["nats_short"] == pytest.approx(0, abs=1e-3)
        assert (np.diff(row["ln_likelihoods"]) > -1e-9).all()
        assert 1 <= row["iterations"] <= row["iterations_in_all"]
    assert two["results"][0]["Cllr"] < one["results"][0]["Cllr"]  # copies are not sessions
    assert lda["results"][0]["Cllr"] is None


def test_a_peer_that_cannot_be_imported_is_skipped(tmp_path, monkeypatch, capsys):
    (tmp_path / "speechbrain").mkdir()
    (tmp_path / "speechbrain" / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    peers.main([*SIZE, "--only=SpeechBrain PLDA", f"--out={tmp_path / 'out.json'}"])
    assert "SpeechBrain PLDA: cannot be imported (No module named 'speechbrain" in capsys.readouterr().out
    assert json.loads((tmp_path / "out.json").read_text())["rows"] == []
