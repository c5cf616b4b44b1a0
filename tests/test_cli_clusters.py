"""`duoplda evaluate --clusters`: what the library gives, printed; and what does not fit together is said."""

import json

import numpy as np
import pytest

from cli_cases import done, duoplda
from duoplda.diarization import Turns, der, write_rttm
from duoplda.metrics import partition_metrics

TRUTH = {f"r{i:02}": f"s{i // 4}" for i in range(40)}


@pytest.fixture
def labels(tmp_path):
    """Clusters with a header and a further column, in another order than the speakers, and two of them wrong."""
    found = {name: f"c{who}" for name, who in reversed(TRUTH.items())} | {"r00": "new", "r07": "cs9"}
    lines = [f"{name}\t{cluster}\t0.5" for name, cluster in found.items()]
    (tmp_path / "utt2spk.tsv").write_text("\n".join(["recording\tcluster\tposterior", *lines]) + "\n")
    (tmp_path / "utt2spk").write_text("".join(f"{name} {who}\n" for name, who in TRUTH.items()))
    (tmp_path / "plain").write_text("".join(f"{name} {cluster}\n" for name, cluster in found.items()))
    return tmp_path, [found[name] for name in TRUTH], list(TRUTH.values())


def clusters(folder, *more, found="utt2spk.tsv", truth="utt2spk"):
    return duoplda("evaluate", "--clusters", folder / found, "--reference", folder / truth, *more)


@pytest.mark.parametrize("name", ["utt2spk.tsv", "plain"])
def test_json_is_what_the_library_gives(labels, name):
    folder, found, truth = labels
    shown = json.loads(clusters(folder, "--json", "--bootstrap", 50, "--seed", 3, found=name).stdout)
    expected = partition_metrics(found, truth, n_resamples=50, seed=3)
    assert {k: shown[k] for k in expected} == pytest.approx({k: v.estimate for k, v in expected.items()}, rel=1e-12)
    assert shown["recordings"] == 40
    assert shown["missing"] == 0
    assert shown["speakers"] == 10
    assert shown["clusters"] == 11
    for name, ends in shown["intervals"].items():
        assert ends == pytest.approx([expected[name].low, expected[name].high], rel=1e-12)
    assert set(shown["intervals"]) == set(expected) - {"speakers"}


def test_people_see_values_and_intervals(labels):
    folder, found, truth = labels
    text = clusters(folder).stdout
    f = partition_metrics(found, truth)["b_cubed_f"]
    row = next(line.split() for line in text.splitlines() if line.startswith("B-cubed F"))
    assert row == ["B-cubed", "F", "%", f"{100 * f.estimate:.2f}", f"{100 * f.low:.2f}..{100 * f.high:.2f}"]
    for word in (
        "precision",
        "recall",
        "purity",
        "coverage",
        "NMI",
        "clusters found",
        "true speakers",
        "200 resamples",
    ):
        assert word in text
    assert "interval" not in clusters(folder, "--bootstrap", 0).stdout


def test_missing_recordings(labels):
    folder = labels[0]
    lines = (folder / "plain").read_text().splitlines()
    (folder / "fewer").write_text("\n".join(lines[:-1]) + "\n")
    (folder / "more").write_text("\n".join([*lines, "strange c1"]) + "\n")
    for name, what, who in (("fewer", "have no cluster", "r00"), ("more", "have no speaker", "strange")):
        failed = clusters(folder, "--strict", found=name)
        assert failed.exit_code == 3
        assert what in failed.stderr
        assert who in failed.stderr
        shown = json.loads(clusters(folder, "--allow-missing", "--json", found=name).stdout)
        assert shown["missing"] == 1
        assert shown["recordings"] == (39 if name == "fewer" else 40)
    (folder / "others").write_text("x c1\n")
    failed = clusters(folder, "--allow-missing", found="others")
    assert failed.exit_code == 1
    assert "no recording in common" in failed.stderr


@pytest.fixture
def turns(tmp_path):
    truth = Turns.of(["f", "f", "g"], [0, 3, 0], [4, 4, 5], ["ann", "bob", "ann"])
    found = Turns.of(["f", "f"], [0, 4.5], [4.5, 3], ["1", "2"])
    write_rttm(tmp_path / "truth.rttm", truth)
    write_rttm(tmp_path / "found.rttm", found)
    return tmp_path, found, truth


RTTM = {"found": "found.rttm", "truth": "truth.rttm"}


@pytest.mark.parametrize(
    ("given", "options"),
    [([], {}), (["--collar", 0.25], {"collar": 0.25}), (["--skip-overlap"], {"skip_overlap": True})],
)
def test_errors_of_turns(turns, given, options):
    folder, found, truth = turns
    shown = json.loads(clusters(folder, "--json", *given, **RTTM).stdout)
    expected = der(found, truth, **options)
    for mine, theirs in ((shown, expected), *((shown["files"][f], expected.files[f]) for f in ("f", "g"))):
        values = [mine[name] for name in ("der", "miss", "false_alarm", "confusion", "total")]
        assert values == pytest.approx([theirs.rate, *theirs[:4]], abs=1e-9)


def test_people_see_errors_of_each_file(turns):
    folder, found, truth = turns
    shown = clusters(folder, **RTTM)
    head, *lines = shown.stdout.splitlines()
    assert head.split()[:3] == ["file", "DER", "%"]
    expected = der(found, truth)
    for line, (name, errors) in zip(lines, [*expected.files.items(), ("all", expected)], strict=True):
        assert line.split() == [name, f"{100 * errors.rate:.2f}", *(f"{s:.2f}" for s in errors[:4])]
    assert "1 files of" in shown.stderr  # g has no turns
    assert "missed: 'g'" in shown.stderr


def test_regions_and_missing_files(turns):
    folder, found, truth = turns
    (folder / "uem").write_text("f 1 0 2\n")
    shown = clusters(folder, "--json", "--uem", folder / "uem", **RTTM)
    assert json.loads(shown.stdout)["total"] == 2
    assert "1 files of" in shown.stderr
    assert "not scored" in shown.stderr
    failed = clusters(folder, found="truth.rttm", truth="found.rttm")
    assert failed.exit_code == 3
    assert "g (--allow-missing" in failed.stderr
    shown = json.loads(clusters(folder, "--json", "--allow-missing", found="truth.rttm", truth="found.rttm").stdout)
    rest = truth[np.asarray(truth.file) == "f"]
    assert shown["total"] == der(rest, found).total
    assert shown["files_left_out"] == 1


def test_where_nothing_is_scored_no_rate_is_printed(turns):
    folder = turns[0]
    failed = clusters(folder, "--collar", 30, **RTTM)
    assert failed.exit_code == 1
    assert failed.stdout == ""
    assert "truth.rttm: nothing is scored, as there is no speech outside the collar of 30 s" in failed.stderr
    shown = clusters(folder, "--collar", 2.25, **RTTM)  # the turns of f last 4 s, that of g 5 s
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["file", "g", "all"]
    assert "1 files have no speech outside the collar of 2.25 s and are not scored: 'f'" in shown.stderr


def test_a_file_that_only_the_regions_have_gets_no_row(turns):
    folder = turns[0]
    (folder / "uem").write_text("f 1 0 9\nsilent 1 0 9\ng 1 7 9\n")
    shown = clusters(folder, "--uem", folder / "uem", **RTTM)
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["file", "f", "all"]
    assert f"2 files have no speech in the regions of {folder / 'uem'}" in shown.stderr
    assert "not scored: 'silent', 'g'" in shown.stderr
    assert "missed" not in shown.stderr
    counted = json.loads(clusters(folder, "--json", "--uem", folder / "uem", **RTTM).stdout)
    assert list(counted["files"]) == ["f"]
    assert counted["files_left_out"] == 2
    write_rttm(folder / "more.rttm", Turns.of(["f", "silent"], [0, 1], [4, 2], ["1", "1"]))
    shown = clusters(folder, "--uem", folder / "uem", found="more.rttm", truth="truth.rttm")
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert rows[2] == ["silent", "inf", "0.00", "2.00", "0.00", "0.00"]  # false alarms, where nobody speaks


def test_options_that_do_not_go_together(labels, turns):
    folder = labels[0]
    for given in (
        [],
        ["--clusters", folder / "plain"],
        ["--reference", folder / "utt2spk"],
        ["--scores", folder / "plain"],
        ["--trials", folder / "plain"],
        ["--scores", folder / "plain", "--trials", folder / "plain", "--collar", 0.25],
        ["--scores", folder / "plain", "--trials", folder / "plain", "--clusters", folder / "plain"],
        ["--clusters", folder / "plain", "--reference", folder / "utt2spk", "--scores", folder / "plain"],
        ["--clusters", folder / "plain", "--reference", folder / "utt2spk", "--plot", folder / "x.pdf"],
        ["--clusters", folder / "plain", "--reference", folder / "utt2spk", "--collar", 0.25],
        ["--clusters", folder / "found.rttm", "--reference", folder / "truth.rttm", "--collar", -1],
    ):
        failed = duoplda("evaluate", *given)
        assert failed.exit_code == 2, given
        assert "Traceback" not in failed.output
    for one, other in (("plain", "truth.rttm"), ("found.rttm", "utt2spk")):
        failed = clusters(folder, found=one, truth=other)
        assert failed.exit_code == 1
        assert "is RTTM and" in failed.stderr


def test_help_ends_in_an_example():
    text = done("evaluate", "--help").stdout
    assert "--clusters found.rttm --reference truth.rttm --collar 0.25" in text.split("Example:")[1]
