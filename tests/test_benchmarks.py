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
from benchmarks import __main__, clustering, common, core, files, memory, peers, scale

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
    assert len(written["rows"]) >= len([*core.ALL, *files.ALL, *memory.ALL])
    for row in written["rows"]:
        assert 0 < row["ratio"] < math.inf
        assert row["what"] in printed
        assert not row["worse"]  # sizes that were divided are not compared with those recorded
    keys = [(row["what"].strip(), row["size"]) for row in written["rows"]]
    assert len(set(keys)) == len(keys)  # by these the rows find their recorded ratios


def benchmark(monkeypatch, capsys, *arguments: object, **ratios: float) -> str:
    """What is printed by a run of benchmarks with these names and ratios."""

    def of(name: str, ratio: float):
        return lambda: iter([common.Row(f"{name} / floor", "size", 2 * ratio, 2.0, 1.0)])

    monkeypatch.setattr(__main__, "BENCHMARKS", {name: of(name, ratio) for name, ratio in ratios.items()})
    monkeypatch.setattr(sys, "argv", ["benchmarks", *map(str, arguments)])
    __main__.main()
    return capsys.readouterr().out


def test_ratios_are_recorded_and_what_gets_worse_is_marked(tmp_path, monkeypatch, capsys):
    out, kept = tmp_path / "out.json", tmp_path / "recorded.json"
    to = f"--out={out}", f"--recorded={kept}"
    printed = benchmark(monkeypatch, capsys, *to, a=1.0, b=2.0)
    assert not kept.exists()
    assert "WORSE" not in printed
    benchmark(monkeypatch, capsys, *to, "--record", a=1.0, b=2.0)
    assert common.recorded(kept) == {"a / floor: size": 1.0, "b / floor: size": 2.0}

    printed = benchmark(monkeypatch, capsys, *to, a=1.2, b=2.6)
    lines = {line.split(" / ")[0]: line for line in printed.partition("\n\n")[2].splitlines() if line[1:4] == " / "}
    assert [float(x) for x in lines["a"].split()[-5:]] == [2.4, 2.0, 1.2, 1.0, 1.0]  # the last is what was recorded
    assert lines["b"].endswith("WORSE")
    assert "b / floor (size): 2.6, was 2" in printed
    rows = json.loads(out.read_text())["rows"]
    assert [(row["recorded"], row["worse"]) for row in rows] == [(1.0, False), (2.0, True)]

    benchmark(monkeypatch, capsys, *to, "--record", "b", a=5.0, b=2.6)  # others stay as they were
    assert common.recorded(kept) == {"a / floor: size": 1.0, "b / floor: size": 2.6}


def test_only_whole_sizes_are_recorded(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        benchmark(monkeypatch, capsys, "--record", "--smaller=10", f"--recorded={tmp_path / 'x'}", a=1.0)
    assert "leave out --smaller" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


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


def test_the_benchmark_of_long_files_runs(tmp_path):
    printed = run("benchmarks.diarization", "--hours", 0.05, 0.1, f"--out={tmp_path / 'out.json'}")
    assert printed.splitlines()[2].split()[:2] == ["0.1", "1,440"]
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [row["windows"] for row in rows] == [720, 1440]
    assert all(0 < row["before"] <= row["peak"] for row in rows)


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


def test_single_tasks_beside_others(tmp_path, capsys):
    out, names = tmp_path / "out.json", list(peers.TASKS)
    peers.main([*SIZE, *(f"--only={name}" for name in names), f"--out={out}"])
    printed, written = capsys.readouterr().out, json.loads(out.read_text())
    rows = {row["task"]: row for row in written["tasks"]}
    assert sorted([*rows, *written["skipped"]]) == sorted(names)
    assert "variance components, statsmodels" in rows  # which the tests need in any case
    for name, row in rows.items():
        assert f"{name}: measured ({peers.TASKS[name].package} {row['version']})" in printed
        assert row["s_ours"] > 0
        assert row["s_theirs"] > 0
        assert abs(row["nats"]) < 1e-3
        assert row["difference"] < 0.05


def test_a_peer_that_cannot_be_imported_is_skipped(tmp_path, monkeypatch, capsys):
    (tmp_path / "speechbrain").mkdir()
    (tmp_path / "speechbrain" / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    peers.main([*SIZE, "--only=SpeechBrain PLDA", f"--out={tmp_path / 'out.json'}"])
    assert "SpeechBrain PLDA: cannot be imported (No module named 'speechbrain" in capsys.readouterr().out
    assert json.loads((tmp_path / "out.json").read_text())["rows"] == []


@pytest.mark.parametrize("enrolled", [20, 50])
def test_a_search_among_voices_is_measured(enrolled):
    """In memory, and in five chunks of files."""
    cost = scale.search(enrolled, 20 if enrolled == 20 else 10)
    assert set(cost) == {"enrolling", "disk", "first", "further", "all", "peak"}
    assert all(0 < value < math.inf for value in cost.values())


def test_the_page_on_scale_has_every_size_that_the_program_measures():
    page = (ROOT / "docs/scale.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")
    ]
    firsts = [row[0] for row in rows]
    assert [n for n in (*scale.TRIALS, *scale.ENROLLED) if f"{n:,}" not in firsts] == []
    trained = [
        (round(int(row[0].replace(",", "")), -4), int(row[1])) for row in rows if len(row) == 6 and row[0][0].isdigit()
    ]
    assert trained == [(n, d) for n, d in scale.TRAININGS]
    assert all(f"| {' | '.join(head)} |" in page for head in (scale.TRAIN_HEADS, scale.SCORE_HEADS, scale.SEARCH_HEADS))


def test_the_service_benchmark_runs(tmp_path):
    few = ("--voices=20", "--dimensions=4", "--clients=4", "--processes=1", "--seconds=0.5")
    printed = run("benchmarks.service", "load", *few, f"--out={tmp_path / 'out.json'}")
    measured = json.loads((tmp_path / "out.json").read_text())["load"]
    assert measured["requests"] > 4
    assert measured["wrong"] == 0
    assert "errors: none; lost: 0" in printed
