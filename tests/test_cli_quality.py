"""`duoplda calibrate --quality`: files in, calibrated scores and what was learnt out."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner

from duoplda import PLDA
from duoplda.cli import app
from duoplda.evaluation import metrics
from duoplda.evaluation.calibration import AffineCalibration, QualityCalibration, load
from duoplda.evaluation.quality import trial_quality
from duoplda.io import Coded, Scores, Trials, read_enrollment, read_quality, read_scores, read_trials, write_scores

N_SPEAKERS = 16


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)))


class Files(NamedTuple):
    """A folder with trials, scores, a table, speakers and an enrolment map."""

    folder: Path
    target: np.ndarray
    scores: np.ndarray

    def path(self, name: str) -> Path:
        return self.folder / name

    def learn(self, *more: object, out: str = "out.txt", enroll: bool = True) -> Any:
        given = ["--scores", self.path("s.txt"), "--trials", self.path("trials"), "--quality", self.path("table.tsv")]
        given += ["--enroll", self.path("enroll")] if enroll else []
        return run("calibrate", *given, "--out", self.path(out), *more)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Models of one or three recordings e*, against three recordings r* of each speaker; durations move the scores."""
    rng = np.random.default_rng(4)
    made = {f"m{m}": [f"e{m}-{k}" for k in range(1 + 2 * (m % 2))] for m in range(N_SPEAKERS)}
    tests = [f"r{t}" for t in range(3 * N_SPEAKERS)]
    names = [*(name for own in made.values() for name in own), *tests]
    duration = dict(zip(names, np.exp(rng.normal(1.5, 1.0, len(names))), strict=True))
    lines = [f"{n}\t{duration[n]:.6f}\t{rng.choice(['phone', 'close'])}\t8000\t{rng.normal():.4f}" for n in names]
    (tmp_path / "table.tsv").write_text("\n".join(["recording\tduration\tkind\trate\tnoise", *lines]) + "\n")
    (tmp_path / "enroll").write_text("".join(f"{m} {' '.join(own)}\n" for m, own in made.items()))
    owner = {n: f"s{n[1:].split('-')[0]}" for own in made.values() for n in own}
    owner |= {f"r{t}": f"s{t // 3}" for t in range(len(tests))}
    (tmp_path / "utt2spk").write_text("".join(f"{n} {s}\n" for n, s in owner.items()))
    model, test = (a.ravel() for a in np.meshgrid(np.arange(N_SPEAKERS), np.arange(len(tests)), indexing="ij"))
    target = model == test // 3
    level = np.array([np.mean(np.log([duration[n] for n in own])) for own in made.values()])
    score = rng.normal(np.where(target, 2.0, -2.0), 2.0) - level[model]
    score -= np.log([duration[n] for n in tests])[test]
    words = np.where(target, "target", "nontarget")
    rows = [f"m{m} r{t} {w}" for m, t, w in zip(model, test, words, strict=True)]
    (tmp_path / "trials").write_text("\n".join(rows) + "\n")
    enroll, recording = Coded.of([f"m{m}" for m in model]), Coded.of([tests[t] for t in test])
    write_scores(tmp_path / "s.txt", Scores(enroll, recording, score))
    return Files(tmp_path, target, score)


def direct(files: Files, **options: Any) -> tuple[QualityCalibration, Any]:
    quality = trial_quality(
        read_trials(files.path("trials")), read_quality(files.path("table.tsv")), read_enrollment(files.path("enroll"))
    )
    return QualityCalibration(**options).fit(files.scores, files.target, quality=quality), quality


def test_what_was_learnt_is_that_of_the_library(files: Files) -> None:
    done = files.learn("--speakers", files.path("utt2spk"), "--json", "--p-target", 0.2)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    fitted, quality = direct(files, p_target=0.2)
    assert [t["coefficient"] for t in found["terms"]] == pytest.approx(fitted.coefficients_.tolist(), rel=1e-9)
    assert [t["term"] for t in found["terms"]] == [str(t) for t in fitted.recipe.terms]
    assert "log number of recordings, enrolment" in [t["term"] for t in found["terms"]]
    assert found["ignored"] == {"rate": "it is the same for all trials"}
    assert (found["speakers"], found["folds"], found["speakers_known"]) == (N_SPEAKERS, 5, True)
    ratios = fitted.transform(files.scores, quality)
    np.testing.assert_allclose(read_scores(files.path("out.txt")).score, ratios, rtol=1e-9)
    assert found["cllr_same_trials"] == pytest.approx(metrics.cllr(ratios, files.target), rel=1e-9)
    model, test = np.divmod(np.arange(len(ratios)), 3 * N_SPEAKERS)
    sides = [f"s{m}" for m in model], [f"s{t // 3}" for t in test]
    held = fitted.held_out(files.scores, files.target, quality=quality, speakers=sides)
    bits = {"before": files.scores, "affine": held.affine, "quality": held.quality}
    expected = {name: metrics.cllr(x, files.target) for name, x in bits.items()}
    assert found["cllr_cross_validated"] == pytest.approx(expected, rel=1e-9)
    assert expected["quality"] < expected["affine"] - 0.02


def test_words_say_the_same(files: Files) -> None:
    quiet = files.learn("--json", "-q", out="a.txt")
    assert quiet.stderr == ""
    found = json.loads(quiet.stdout)
    done = files.learn()
    bits = found["cllr_cross_validated"]
    assert f"{bits['affine']:.4f} affine, {bits['quality']:.4f} with side information" in done.stderr
    assert f"{bits['before']:.4f} before" in done.stderr
    assert "column 'rate' is ignored: it is the same for all trials" in done.stderr
    assert "--speakers is not given: ids that target trials link count as one speaker" in done.stderr
    assert all(t["term"] in done.stderr for t in found["terms"])
    assert found["speakers"] == N_SPEAKERS
    assert done.stdout.strip() == str(files.path("out.txt"))


def test_held_out_scores_are_two_systems_of_a_report(files: Files) -> None:
    folder = files.path("held")
    done = files.learn("--held-out", folder, "--json")
    assert done.exit_code == 0, done.stderr
    bits = json.loads(done.stdout)["cllr_cross_validated"]
    both = ("--scores", folder / "affine.txt", "--scores", folder / "quality.txt", "--trials", files.path("trials"))
    row = json.loads(run("evaluate", *both, "--json").stdout)["systems"]
    assert row["affine"]["cllr"] == pytest.approx(bits["affine"], rel=1e-9)
    assert row["quality"]["cllr"] == pytest.approx(bits["quality"], rel=1e-9)
    done = run("report", *both, "--out", files.path("report.html"))
    assert done.exit_code == 0, done.stderr
    page = files.path("report.html").read_text()
    assert all(f"{bits[name]:.3f}" in page and name in page for name in ("affine", "quality"))
    before = (folder / "affine.txt").read_bytes()
    done = files.learn("--held-out", folder, out="other.txt")
    assert (done.exit_code, "--force" in done.stderr, files.path("other.txt").exists()) == (1, True, False)
    assert (folder / "affine.txt").read_bytes() == before
    assert files.learn("--held-out", folder, "--force", out="held/quality.txt").exit_code == 2
    assert files.learn("--held-out", files.path("utt2spk"), "--force", out="other.txt").exit_code == 1


def test_a_calibration_is_kept_and_applied_to_other_recordings(files: Files) -> None:
    assert files.learn(out="c.safetensors").exit_code == 0
    kept = files.path("c.safetensors")
    assert isinstance(load(kept), QualityCalibration)
    files.path("new.txt").write_text("x y 1.5\nx z -1\n")
    new = files.path("new.tsv")
    new.write_text("utt\tduration\tkind\tnoise\nx\t3\tphone\t0\ny\t4\tclose\t1\nz\t5\tphone\t2\n")
    apply = ("calibrate", "--from", kept, "--apply", files.path("new.txt"), "--out", files.path("applied.txt"))
    done = run(*apply, "--quality", new)
    assert done.exit_code == 0, done.stderr
    fitted, _ = direct(files)
    scores = read_scores(files.path("new.txt"))
    quality = trial_quality(Trials(scores.enroll, scores.test), read_quality(new))
    expected = fitted.transform(scores.score, quality)
    np.testing.assert_allclose(read_scores(files.path("applied.txt")).score, expected, rtol=1e-9)
    done = run(*apply, "--force")
    assert (done.exit_code, "with the columns duration, kind, noise" in done.stderr) == (1, True)
    new.write_text("utt\tduration\tkind\tnoise\nx\t3\tphone\t0\ny\t4\tclose\t1\n")
    done = run(*apply, "--quality", new, "--force")
    assert (done.exit_code, "no row for 1 recordings: 'z'" in done.stderr) == (3, True)
    done = run(*apply, "--quality", new, "--force", "--allow-missing")
    assert (done.exit_code, "1 trials with a recording that the table lacks" in done.stderr) == (0, True)
    assert read_scores(files.path("applied.txt")).score.tolist() == pytest.approx(expected[:1].tolist(), rel=1e-9)
    new.write_text("utt\tduration\tkind\tnoise\nx\t3\tphone\t0\ny\t4\tradio\t1\nz\t5\tphone\t2\n")
    done = run(*apply, "--quality", new, "--force")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "another word for the recordings 'y'" in done.stderr


def test_symmetric_by_default_only_without_an_enrolment_map(files: Files) -> None:
    """Without the map, a model is a recording of its own."""
    lines = files.path("table.tsv").read_text() + "".join(
        f"m{m}\t{m + 1}\tphone\t8000\t{m}\n" for m in range(N_SPEAKERS)
    )
    files.path("table.tsv").write_text(lines)
    sides = {}
    for name, more in (("plain", ()), ("free", ("--no-symmetric",))):
        done = files.learn("--json", *more, out=f"{name}.txt", enroll=False)
        assert done.exit_code == 0, done.stderr
        found = json.loads(done.stdout)
        sides[name] = found["symmetric"], {t["term"].partition(", ")[2] for t in found["terms"]}
    assert sides == {"plain": (True, {"both sides"}), "free": (False, {"enrolment", "test"})}
    assert json.loads(files.learn("--json").stdout)["symmetric"] is False


def test_missing_rows(files: Files) -> None:
    table = files.path("table.tsv")
    table.write_text(
        "".join(line for line in table.read_text().splitlines(True) if not line.startswith(("r5\t", "e3-1")))
    )
    done = files.learn()
    assert (done.exit_code, "no row for 2 recordings: 'e3-1', 'r5'" in done.stderr) == (3, True)
    assert not files.path("out.txt").exists()
    done = files.learn("--allow-missing", "--json")
    assert done.exit_code == 0, done.stderr
    left = N_SPEAKERS + 3 * N_SPEAKERS - 1
    assert f"{left} trials with a recording that the table lacks, left out: " in done.stderr
    assert json.loads(done.stdout)["trials"] == len(files.target) - left
    assert len(read_scores(files.path("out.txt"))) == len(files.target) - left
    table.write_text("recording\tduration\nelsewhere\t1\n")
    done = files.learn("--allow-missing", "--force")
    assert (done.exit_code, "does not describe both sides of any trial" in done.stderr) == (1, True)


def test_options_that_do_not_go_together(files: Files) -> None:
    affine = files.path("affine.safetensors")
    AffineCalibration().fit(files.scores, files.target).save(affine)
    plain = (
        "calibrate",
        "--scores",
        files.path("s.txt"),
        "--trials",
        files.path("trials"),
        "--out",
        files.path("x.txt"),
    )
    for more in (("--speakers", "utt2spk"), ("--enroll", "enroll"), ("--held-out", "folder"), ("--symmetric",)):
        assert run(*plain, *more).exit_code == 2
    assert files.learn("--method", "pav").exit_code == 2
    assert files.learn("--scores", files.path("s.txt")).exit_code == 2
    apply = ("calibrate", "--from", affine, "--apply", files.path("s.txt"), "--out", files.path("x.txt"))
    done = run(*apply, "--quality", files.path("table.tsv"))
    assert (done.exit_code, "is not a calibration with side information" in done.stderr) == (1, True)
    assert run(*apply, "--quality", files.path("table.tsv"), "--speakers", files.path("utt2spk")).exit_code == 2
    model = files.path("model.safetensors")
    PLDA.from_parameters(np.zeros(2), np.eye(2), None, np.eye(2)).save(model)
    before = model.read_bytes()
    done = files.learn("--model", model)
    assert (done.exit_code, "side information" in done.stderr, model.read_bytes() == before) == (1, True, True)
    for name in ("table.tsv", "enroll", "s.txt"):
        before = files.path(name).read_bytes()
        assert files.learn("--force", out=name).exit_code == 1
        assert files.path(name).read_bytes() == before


def test_json_of_the_other_methods(files: Files) -> None:
    given = ("calibrate", "--scores", files.path("s.txt"), "--trials", files.path("trials"), "--json")
    done = run(*given, "--out", files.path("x.txt"))
    found = json.loads(done.stdout)
    fitted = AffineCalibration().fit(files.scores, files.target)
    assert (found["method"], found["scale"]) == ("affine", pytest.approx(fitted.scale_, rel=1e-9))
    after = metrics.cllr(fitted.transform(files.scores), files.target)
    assert found["cllr_same_trials"]["after"] == pytest.approx(after, rel=1e-9)
    done = run(*given, "--method", "pav", "--out", files.path("y.txt"))
    assert len(json.loads(done.stdout)["llr"]) > 2


def test_the_page_on_it_runs(files: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command of docs/calibration.md, and its Python."""
    monkeypatch.chdir(files.folder)
    page = (Path(__file__).parents[1] / "docs" / "calibration.md").read_text()
    for old, new in {"s.txt": "dev.txt eval.txt", "trials": "dev_trials", "table.tsv": "eval_table.tsv"}.items():
        for name in new.split():
            shutil.copy(old, name)
    shutil.copy("enroll", "eval_enroll")
    commands = re.findall(r"^duoplda ([a-z].*)$", page, re.M)
    assert [command.split()[0] for command in commands] == [*5 * ["calibrate"], "report"]
    for command in commands:
        done = run(*shlex.split(command))
        assert done.exit_code == 0, done.output
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(compile(code, "docs/calibration.md", "exec"), names)
    assert all(names[fitted].lower_ < 0 < names[fitted].upper_ for fitted in ("bounded", "kernels"))
    assert (names["low"] < names["high"]).all()
    assert "log duration, test" in capsys.readouterr().out
    np.testing.assert_allclose(read_scores("eval_calibrated.txt").score, names["ratios"], rtol=1e-9)
    np.testing.assert_allclose(read_scores("held/quality.txt").score, names["held_out"].quality, rtol=1e-9)
