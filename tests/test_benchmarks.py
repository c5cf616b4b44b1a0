"""The benchmarks beside other libraries, at a tiny size, with those that are installed. No time is asserted."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from benchmarks import __main__, peers

SIZE = ["--speakers=60", "--evaluated=20", "--dimensions=6", "--factors=3", "--iterations=3", "--repeat=1"]
NAMES = [
    "duoplda, two sources",
    "duoplda, simplified",
    "SpeechBrain PLDA",
    "hyperion SPLDA",
    "scikit-learn LDA, cosine",
]


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
