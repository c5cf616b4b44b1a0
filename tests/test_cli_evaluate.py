"""`evaluate`, `calibrate` and `report` on files: the numbers of `duoplda.metrics`, and nothing lost on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner

from duoplda import PLDA, metrics
from duoplda.cli import app
from duoplda.estimators.backend import Backend
from duoplda.evaluation import support
from duoplda.evaluation.calibration import AffineCalibration, Bounded, Fusion, KDECalibration, PAVCalibration, load
from duoplda.io import Coded, Scores, read_scores, write_scores

N_SPEAKERS = 12
LN10 = np.log(10)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)))


class Files(NamedTuple):
    """A folder with trials, two score files in other orders, and who speaks."""

    folder: Path
    target: np.ndarray  # in the order of the trials
    a: np.ndarray
    b: np.ndarray

    def path(self, name: str) -> Path:
        return self.folder / name


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Models m0 .. m11 against recordings r0 .. r35, three of each speaker; system b is shifted and scaled."""
    rng = np.random.default_rng(3)
    model, recording = (a.ravel() for a in np.meshgrid(np.arange(N_SPEAKERS), np.arange(3 * N_SPEAKERS), indexing="ij"))
    order = rng.permutation(len(model))
    model, recording = model[order], recording[order]
    target = model == recording // 3
    a = rng.normal(np.where(target, 2.0, -2.0), 2.0)
    b = 3 * rng.normal(np.where(target, 2.0, -2.0), 2.0) + 5
    lines = [f"m{m} r{r} {'target' if t else 'nontarget'}" for m, r, t in zip(model, recording, target, strict=True)]
    (tmp_path / "trials").write_text("\n".join(lines) + "\n")
    for name, scores in (("a.txt", a), ("b.tsv", b)):
        mixed = rng.permutation(len(a))
        enroll = Coded.of([f"m{i}" for i in model[mixed]])
        write_scores(tmp_path / name, Scores(enroll, Coded.of([f"r{i}" for i in recording[mixed]]), scores[mixed]))
    owners = [f"r{r} s{r // 3}" for r in range(3 * N_SPEAKERS)] + [f"e{m} s{m}" for m in range(N_SPEAKERS)]
    (tmp_path / "utt2spk").write_text("\n".join(owners) + "\n")
    (tmp_path / "enroll").write_text("".join(f"m{m} e{m}\n" for m in range(N_SPEAKERS)))
    return Files(tmp_path, target, a, b)


def evaluate(files: Files, *more: object, scores: tuple[str, ...] = ("a.txt",)) -> Any:
    given = [x for name in scores for x in ("--scores", files.path(name))]
    return run("evaluate", *given, "--trials", files.path("trials"), *more)


# -- evaluate


def test_json_equals_metrics(files: Files) -> None:
    done = evaluate(files, "--json", "--p-target", 0.01, "--p-target", 0.2, "--c-miss", 2, scores=("a.txt", "b.tsv"))
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["trials"], found["targets"]) == (len(files.target), int(files.target.sum()))
    assert found["eer_definition"] == "rocch"
    for name, s in (("a", files.a), ("b", files.b)):
        row, y = found["systems"][name], files.target
        assert row["eer"] == pytest.approx(metrics.eer(s, y), rel=1e-12)
        for p in (0.01, 0.2):
            assert row[f"min_dcf({p})"] == pytest.approx(metrics.min_dcf(s, y, p, 2.0), rel=1e-12)
            assert row[f"act_dcf({p})"] == pytest.approx(metrics.act_dcf(s, y, p, 2.0), rel=1e-12)
        assert row["cllr"] == pytest.approx(metrics.cllr(s, y), rel=1e-12)
        assert row["min_cllr"] == pytest.approx(metrics.min_cllr(s, y), rel=1e-12)
        assert row["calibration_loss"] == pytest.approx(metrics.calibration_loss(s, y), rel=1e-9)
        assert "intervals" not in row


def test_words_name_the_definition_and_the_numbers(files: Files) -> None:
    done = evaluate(files, "--eer", "interpolated")
    assert "EER % (interpolated)" in done.stdout
    assert f"{100 * metrics.eer(files.a, files.target, 'interpolated'):.2f}" in done.stdout
    assert f"{metrics.cllr(files.a, files.target):.4f}" in done.stdout
    assert evaluate(files, "--eer", "best").exit_code == 2


def test_intervals_by_speakers(files: Files) -> None:
    speakers = ("--speakers", files.path("utt2spk"), "--enroll", files.path("enroll"), "--bootstrap", 40)
    done = evaluate(files, "--json", *speakers)
    assert done.exit_code == 0, done.stderr
    row = json.loads(done.stdout)["systems"]["a"]
    model = [line.split()[0][1:] for line in files.path("trials").read_text().splitlines()]
    test = [int(line.split()[1][1:]) // 3 for line in files.path("trials").read_text().splitlines()]
    sides = [f"s{m}" for m in model], [f"s{t}" for t in test]
    drawn = metrics.bootstrap(metrics.cllr, files.a, files.target, *sides, n_resamples=40)
    assert row["intervals"]["cllr"] == pytest.approx([drawn.low, drawn.high], rel=1e-9)
    done = evaluate(files, "--speakers", files.path("utt2spk"))
    assert (done.exit_code, "12 models whose speaker" in done.stderr) == (3, True)


def test_two_systems_are_compared_over_the_same_speakers(files: Files) -> None:
    speakers = ("--speakers", files.path("utt2spk"), "--enroll", files.path("enroll"), "--bootstrap", 40)
    done = evaluate(files, "--json", *speakers, "--compare", "a", "b", scores=("a.txt", "b.tsv"))
    assert done.exit_code == 0, done.stderr
    comparison = json.loads(done.stdout)["comparison"]
    assert comparison["systems"] == ["a", "b"]
    loss = comparison["cllr"]
    assert loss["difference"] == pytest.approx(
        metrics.cllr(files.a, files.target) - metrics.cllr(files.b, files.target)
    )
    assert loss["low"] <= loss["difference"] <= loss["high"] < 0
    done = evaluate(files, *speakers, "--compare", "a", "b", scores=("a.txt", "b.tsv"))
    assert "a less b" in done.stdout
    assert "a is better" in done.stdout
    done = evaluate(files, *speakers, "--compare", "a", "c", scores=("a.txt", "b.tsv"))
    assert (done.exit_code, "--compare names 'c'; the systems are 'a', 'b'" in done.stderr) == (2, True)
    done = evaluate(files, "--compare", "a", "b", scores=("a.txt", "b.tsv"))
    assert (done.exit_code, "--compare needs --speakers" in done.stderr) == (2, True)


def test_which_ratios_the_trials_support(files: Files) -> None:
    done = evaluate(files, "--json", "--support")
    values = json.loads(done.stdout)["systems"]["a"]["support"]
    assert values["elub"] == pytest.approx(support.elub(files.a, files.target))
    assert values["invariance_bounds"] == pytest.approx(support.invariance_bounds(files.a, files.target))
    assert values["dev_pav"] == pytest.approx(support.dev_pav(files.a, files.target))
    assert values["of_targets"] == np.mean(files.a[files.target] < 0)
    words = evaluate(files, "--support").stdout
    assert f"{support.elub(files.a, files.target).upper / np.log(10):.2f}" in words
    assert "log10" in words


def test_plot_is_written_and_kept(files: Files) -> None:
    out = files.path("det.svg")
    assert evaluate(files, "--plot", out).exit_code == 0
    assert b"<svg" in out.read_bytes()
    before = out.stat().st_mtime_ns
    done = evaluate(files, "--plot", out)
    assert (done.exit_code, "--force" in done.stderr) == (1, True)
    assert out.stat().st_mtime_ns == before


def test_missing_scores(files: Files) -> None:
    lines = files.path("a.txt").read_text().splitlines()
    files.path("a.txt").write_text("\n".join(lines[15:]) + "\nm0 elsewhere 3.5\n")
    done = evaluate(files)
    assert done.exit_code == 3
    assert "15 trials without a score" in done.stderr
    assert done.stderr.count(", ") == 10  # ten ids and an ellipsis
    assert done.stdout == ""
    done = evaluate(files, "--json", "--allow-missing")
    found = json.loads(done.stdout)
    gone = {tuple(line.split()[:2]) for line in lines[:15]}
    kept = np.array([tuple(t.split()[:2]) not in gone for t in files.path("trials").read_text().splitlines()])
    assert (found["trials"], found["missing"]) == (int(kept.sum()), 15)
    assert found["systems"]["a"]["cllr"] == pytest.approx(metrics.cllr(files.a[kept], files.target[kept]), rel=1e-12)
    assert "1 scores belong to no trial" in done.stderr


def test_wrong_input(files: Files) -> None:
    files.path("bare").write_text("m0 r0\nm0 r1\n")
    done = run("evaluate", "--scores", files.path("a.txt"), "--trials", files.path("bare"))
    assert (done.exit_code, "no truth" in done.stderr) == (1, True)
    first = files.path("a.txt").read_text().splitlines()[0]
    files.path("twice.txt").write_text(files.path("a.txt").read_text() + first + "\n")
    done = evaluate(files, scores=("twice.txt",))
    assert (done.exit_code, "has a score already" in done.stderr) == (1, True)
    done = evaluate(files, scores=("a.txt", "a.txt"))
    assert (done.exit_code, "twice" in done.stderr) == (1, True)
    assert run("evaluate", "--trials", files.path("trials")).exit_code == 2
    done = evaluate(files, "--p-target", 1.5)
    assert (done.exit_code, done.stderr.count("\n"), "p_target" in done.stderr) == (1, 1, True)
    files.path("nan.txt").write_text(
        files.path("a.txt").read_text().replace(first, " ".join(first.split()[:2]) + " nan")
    )
    assert evaluate(files, scores=("nan.txt",)).exit_code == 1


# -- calibrate


def cllr_of(files: Files, name: str) -> float:
    done = evaluate(files, "--json", scores=(name,))
    assert done.exit_code == 0, done.stderr
    (row,) = json.loads(done.stdout)["systems"].values()
    return row["cllr"]


@pytest.mark.parametrize("method", ["affine", "pav"])
def test_calibration_lowers_cllr(files: Files, method: str) -> None:
    out = files.path("better.txt")
    given = ("--scores", files.path("b.tsv"), "--trials", files.path("trials"))
    done = run("calibrate", *given, "--method", method, "--out", out)
    assert done.exit_code == 0, done.stderr
    assert cllr_of(files, "better.txt") < 0.8 * cllr_of(files, "b.tsv")
    kind = AffineCalibration() if method == "affine" else PAVCalibration()
    expected = metrics.cllr(kind.fit(files.b, files.target).transform(files.b), files.target)
    assert cllr_of(files, "better.txt") == pytest.approx(expected, rel=1e-9)


def test_calibration_is_kept_and_applied_to_other_scores(files: Files) -> None:
    kept, out = files.path("calibration.safetensors"), files.path("other.txt")
    learn = ("calibrate", "--scores", files.path("b.tsv"), "--trials", files.path("trials"))
    assert run(*learn, "--out", kept).exit_code == 0
    files.path("new.txt").write_text("x y 7.5\nx z -1\n")
    done = run("calibrate", "--from", kept, "--apply", files.path("new.txt"), "--out", out)
    assert done.exit_code == 0, done.stderr
    fitted = AffineCalibration().fit(files.b, files.target)
    assert read_scores(out).score.tolist() == pytest.approx(fitted.transform([7.5, -1.0]).tolist(), rel=1e-9)
    again = files.path("again.txt")
    assert run(*learn, "--apply", files.path("new.txt"), "--out", again).exit_code == 0
    assert again.read_text() == out.read_text()
    assert run(*learn, "--out", kept).exit_code == 1  # it is there already
    assert run(*learn, "--out", files.path("c.safetensors"), "--apply", out).exit_code == 2
    assert run(*learn).exit_code == 2
    assert run("calibrate", "--scores", out, "--out", again).exit_code == 2


def test_fusion(files: Files) -> None:
    both = ("--scores", files.path("a.txt"), "--scores", files.path("b.tsv"))
    done = run("calibrate", *both, "--trials", files.path("trials"), "--out", files.path("fused.txt"))
    assert done.exit_code == 0, done.stderr
    x = np.stack((files.a, files.b), axis=1)
    expected = metrics.cllr(Fusion().fit(x, files.target).transform(x), files.target)
    assert cllr_of(files, "fused.txt") == pytest.approx(expected, rel=1e-9)
    assert expected < min(cllr_of(files, "a.txt"), cllr_of(files, "b.tsv"))
    kept = files.path("fusion.safetensors")
    assert run("calibrate", *both, "--trials", files.path("trials"), "--out", kept).exit_code == 0
    one = ("--from", kept, "--apply", files.path("a.txt"), "--out", files.path("x.txt"))
    done = run("calibrate", *one)
    assert (done.exit_code, "is for 2 systems, and 1 are given" in done.stderr) == (1, True)
    assert not files.path("x.txt").exists()
    files.path("few.txt").write_text("".join(files.path("b.tsv").read_text().replace("\t", " ").splitlines(True)[4:]))
    done = run("calibrate", *one[:4], "--apply", files.path("few.txt"), "--out", files.path("x.txt"))
    assert (done.exit_code, "3 trials" in done.stderr) == (3, True)


def test_calibration_in_a_model(files: Files) -> None:
    rng = np.random.default_rng(0)
    model = files.path("model.safetensors")
    PLDA.from_parameters(np.zeros(2), np.eye(2), None, np.eye(2)).save(model)
    given = ("calibrate", "--scores", files.path("b.tsv"), "--trials", files.path("trials"), "--model", model)
    done = run(*given)
    assert done.exit_code == 0
    assert done.stdout == f"{model}\n"
    assert str(model) not in done.stderr  # the path is told once
    X = rng.standard_normal((4, 2))
    backend = Backend.load(model)
    sides = backend.enroll(X[:2], ["a", "b"]), backend.enroll(X[2:], ["c", "d"])
    fitted = AffineCalibration().fit(files.b, files.target)
    raw = backend.llr(*sides, calibrated=False)
    np.testing.assert_allclose(backend.llr(*sides), fitted.scale_ * raw + fitted.offset_, rtol=1e-9)
    before = model.read_bytes()
    assert run(*given, "--method", "pav").exit_code == 1  # there is one already
    assert model.read_bytes() == before
    assert run(*given, "--method", "pav", "--force").exit_code == 0
    assert isinstance(Backend.load(model).calibration_, PAVCalibration)
    done = run(*given, "--scores", files.path("a.txt"), "--force")
    assert (done.exit_code, "fusion" in done.stderr) == (1, True)


@pytest.mark.parametrize("bounds", ["elub", "invariance"])
def test_bounds_are_learnt_stored_applied_and_shown(files: Files, bounds: str) -> None:
    model = files.path("model.safetensors")
    PLDA.from_parameters(np.zeros(2), 30 * np.eye(2), None, np.eye(2)).save(model)
    given = ("calibrate", "--scores", files.path("b.tsv"), "--trials", files.path("trials"), "--bounds", bounds)
    expected = Bounded(AffineCalibration(), bounds).fit(files.b, files.target)
    done = run(*given, "--model", model)
    assert done.exit_code == 0, done.stderr
    orders = " .. ".join(f"10^{end / LN10:.2f}" for end in (expected.lower_, expected.upper_))
    assert f"ratios are kept within {orders}" in done.stderr
    words = run("info", model).stdout
    assert "calibration: Bounded(AffineCalibration): scale" in words
    assert f"ratios are kept within {orders}" in words
    known = json.loads(run("info", model, "--json").stdout)["calibration_values"]
    assert (known["lower"], known["upper"], known["bounds"]) == (expected.lower_, expected.upper_, bounds)
    backend = Backend.load(model)
    X = np.random.default_rng(0).standard_normal((6, 2)) * 30
    ratios = backend.llr(X, X)
    raw = backend.llr(X, X, calibrated=False)
    np.testing.assert_allclose(ratios, expected.transform(raw), rtol=1e-9)
    assert ratios.min() == expected.lower_ > expected.calibration_.transform(raw).min()
    kept, out = files.path("c.safetensors"), files.path("out.txt")
    done = run(*given, "--out", kept, "--json")
    assert json.loads(done.stdout)["upper"] == expected.upper_
    assert run("calibrate", "--from", kept, "--apply", files.path("b.tsv"), "--out", out).exit_code == 0
    found = read_scores(out).score
    np.testing.assert_allclose(np.sort(found), np.sort(expected.transform(files.b)), rtol=1e-9)
    done = run("calibrate", "--from", kept, "--apply", files.path("b.tsv"), "--bounds", bounds, "--out", out, "--force")
    assert (done.exit_code, "--bounds are learnt" in done.stderr) == (2, True)


def test_a_bounded_fusion(files: Files) -> None:
    both = ("--scores", files.path("a.txt"), "--scores", files.path("b.tsv"), "--trials", files.path("trials"))
    kept, out = files.path("fusion.safetensors"), files.path("fused.txt")
    assert run("calibrate", *both, "--bounds", "elub", "--out", kept).exit_code == 0
    apply = ("--apply", files.path("a.txt"), "--apply", files.path("b.tsv"), "--out", out)
    done = run("calibrate", "--from", kept, *apply)
    assert done.exit_code == 0, done.stderr
    x = np.stack((files.a, files.b), axis=1)
    fitted = Bounded(Fusion()).fit(x, files.target)
    assert cllr_of(files, "fused.txt") == pytest.approx(metrics.cllr(fitted.transform(x), files.target), rel=1e-9)
    model = files.path("model.safetensors")
    PLDA.from_parameters(np.zeros(2), np.eye(2), None, np.eye(2)).save(model)
    done = run("calibrate", *both, "--bounds", "elub", "--model", model)
    assert (done.exit_code, "cannot hold a fusion" in done.stderr) == (1, True)


def test_kernels_and_intervals(files: Files) -> None:
    given = ("calibrate", "--scores", files.path("b.tsv"), "--trials", files.path("trials"), "--method")
    kernels = files.path("kde.txt")
    assert run(*given, "kde", "--out", kernels).exit_code == 0
    expected = KDECalibration().fit(files.b, files.target).transform(files.b)
    assert cllr_of(files, "kde.txt") == pytest.approx(metrics.cllr(expected, files.target), rel=1e-9)
    kept = files.path("boot.safetensors")
    speakers = ("--speakers", files.path("utt2spk"), "--enroll", files.path("enroll"))
    done = run(*given, "bootstrap", *speakers, "--bounds", "elub", "--out", kept)
    assert done.exit_code == 0, done.stderr
    fitted = load(kept)
    low, high = fitted.interval(files.b)
    ratios = fitted.transform(files.b)
    np.testing.assert_allclose(ratios, Bounded(AffineCalibration()).fit(files.b, files.target).transform(files.b))
    assert np.all((low <= ratios) & (ratios <= high))
    assert np.any(high - low > 0.1)
    done = run(*given, "kde", *speakers, "--out", files.path("x.txt"))
    assert (done.exit_code, "--speakers and --enroll go with --quality" in done.stderr) == (2, True)


# -- log10, as forensic science writes ratios


def test_log10_scores_give_what_natural_ones_do(files: Files) -> None:
    for name in ("a.txt", "b.tsv"):
        natural = read_scores(files.path(name))
        write_scores(files.path("ten_" + name), Scores(natural.enroll, natural.test, natural.score / LN10))
    trials = ("--trials", files.path("trials"))
    systems = [json.loads(evaluate(files, "--json", "--support").stdout)["systems"]["a"]]
    done = evaluate(files, "--json", "--support", "--log10", scores=("ten_a.txt",))
    systems.append(json.loads(done.stdout)["systems"]["ten_a"])
    for values in systems:
        del values["file"]
        values |= values.pop("support")
        values |= {f"ece {prior}": bits for prior, bits in values.pop("ece").items()}
    assert systems[0].keys() == systems[1].keys()
    for name, value in systems[0].items():
        assert systems[1][name] == pytest.approx(value, rel=1e-9), name
    outs = [files.path(f"{name}.txt") for name in ("natural", "ten")]
    assert run("calibrate", "--scores", files.path("b.tsv"), *trials, "--out", outs[0]).exit_code == 0
    done = run("calibrate", "--scores", files.path("ten_b.tsv"), *trials, "--log10", "--out", outs[1])
    assert done.exit_code == 0, done.stderr
    natural, ten = (read_scores(out).score for out in outs)
    np.testing.assert_allclose(LN10 * ten, natural, rtol=1e-9)
    page = files.path("page.html")
    done = run("report", "--scores", files.path("ten_a.txt"), *trials, "--log10", "--out", page)
    assert done.exit_code == 0, done.stderr
    assert "1 system on 432 trials" in done.stderr
    assert f"{metrics.cllr(files.a, files.target):.3f}" in page.read_text()


def test_scores_are_written_in_log10(files: Files) -> None:
    rng = np.random.default_rng(0)
    model, x = files.path("model.safetensors"), files.path("x.npz")
    PLDA.from_parameters(np.zeros(2), np.eye(2), None, np.eye(2)).save(model)
    np.savez(x, ids=[f"r{k}" for k in range(6)], embeddings=rng.standard_normal((6, 2)))
    files.path("few").write_text("r0 r1\nr2 r4\nr3 r5\n")
    given = ("score", "--model", model, "--embeddings", x)
    for more in (("--trials", files.path("few")), ("--matrix", "--enroll", files.path("models"))):
        files.path("models").write_text("m r0\nn r1\n")
        outs = [files.path(f"{name}{len(more)}.npz") for name in ("natural", "ten")]
        for out, unit in zip(outs, ((), ("--log10",)), strict=True):
            done = run(*given, *more, *unit, "--out", out)
            assert done.exit_code == 0, done.stderr
        natural, ten = (read_scores(out).score for out in outs)
        assert len(natural) > 0
        np.testing.assert_allclose(LN10 * ten, natural, rtol=1e-6)
    done = run(*given, "--trials", files.path("few"), "--cosine", "--log10", "--out", files.path("y"))
    assert (done.exit_code, "--log10 is for likelihood ratios" in done.stderr) == (2, True)


def test_damaged_calibrations(files: Files) -> None:
    path, out = files.path("calibration.safetensors"), files.path("out.txt")
    PAVCalibration().fit(files.b, files.target).save(path)
    apply = ("calibrate", "--from", path, "--apply", files.path("a.txt"), "--out", out)
    whole = path.read_bytes()
    for data in (b"", whole[:40], whole[:-8], whole.replace(b"PAVCalibration", b"XAVCalibration"), b"\xff" * 50):
        path.write_bytes(data)
        done = run(*apply)
        assert (done.exit_code, done.stderr.count("\n"), str(path) in done.stderr) == (1, 1, True)
    PLDA.from_parameters(np.zeros(2), np.eye(2), None, np.eye(2)).save(path, force=True)
    done = run(*apply)
    assert (done.exit_code, "not a calibration" in done.stderr) == (1, True)
    assert not out.exists()


# -- report


def test_report(files: Files) -> None:
    pytest.importorskip("duoplda.report")
    model, out = files.path("model.safetensors"), files.path("report.html")
    rng = np.random.default_rng(0)
    noise = np.stack((np.eye(3), 2 * np.eye(3)))
    V, U = rng.standard_normal((3, 2)), rng.standard_normal((3, 1))
    PLDA.from_parameters(np.zeros((2, 3)), V, U, noise, ["mic", "phone"]).save(model)
    scores = ("--scores", files.path("a.txt"), "--scores", files.path("b.tsv"))
    given = ("report", *scores, "--trials", files.path("trials"), "--model", model, "--out", out)
    speakers = ("--speakers", files.path("utt2spk"), "--enroll", files.path("enroll"), "--bootstrap", 5)
    done = run(*given, *speakers)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.strip() == str(out)
    page = out.read_text()
    assert f"{100 * metrics.eer(files.a, files.target):.2f}" in page
    assert f"{metrics.cllr(files.b, files.target):.3f}" in page
    assert "session factors" in page
    done = run(*given)
    assert (done.exit_code, out.read_text() == page) == (1, True)


# -- what a command reads, it never writes over

INPUTS = {
    "evaluate --scores a.txt --trials trials --speakers utt2spk --enroll enroll --plot": "a.txt trials utt2spk enroll",
    "report --scores a.txt --trials trials --speakers utt2spk --enroll enroll --model model --out": (
        "a.txt trials utt2spk enroll model"
    ),
    "calibrate --scores a.txt --trials trials --apply b.tsv --model model --out": "a.txt trials b.tsv model",
    "calibrate --from calibration --apply a.txt --out": "calibration a.txt",
}


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize(("command", "name"), [(c, name) for c, names in INPUTS.items() for name in names.split()])
def test_force_does_not_let_an_output_replace_an_input(
    files: Files, monkeypatch: pytest.MonkeyPatch, command: str, name: str, link: bool
) -> None:
    monkeypatch.chdir(files.folder)
    PLDA.from_parameters(np.zeros(2), np.eye(2), None, np.eye(2)).save("model")
    AffineCalibration().fit(files.b, files.target).save("calibration")
    if link:
        Path("alias.svg").symlink_to(name)
    before = {path.name: path.read_bytes() for path in files.folder.iterdir()}
    done = run(*command.split(), "alias.svg" if link else name, "--force")
    assert (done.exit_code, done.stderr.count("\n"), done.stdout) == (1, 1, ""), done.output
    assert ("alias.svg" if link else name) in done.stderr
    assert {path.name: path.read_bytes() for path in files.folder.iterdir()} == before


@pytest.mark.parametrize("command", ["convert", "evaluate", "calibrate", "report", "info", "demo"])
def test_help_ends_in_an_example(command: str) -> None:
    done = run(command, "--help")
    assert done.exit_code == 0
    last = done.stdout.rstrip().splitlines()[-1]
    assert last.strip().startswith(f"duoplda {command} ")
