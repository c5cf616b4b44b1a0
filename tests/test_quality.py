"""Calibration with side information: the columns, the fit, cross-validation by speakers, tables and files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from scipy.special import expit, logit
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

from duoplda import DuopldaError
from duoplda.errors import MissingIds
from duoplda.evaluation import calibration, metrics
from duoplda.evaluation.calibration import AffineCalibration, QualityCalibration
from duoplda.evaluation.quality import choose, described, design, linked_sides, trial_folds, trial_quality
from duoplda.io import Coded, Enrollment, QualityTable, Trials, read_quality

FORMATS = [".tsv", ".csv", ".parquet"]


class Drawn(NamedTuple):
    trials: Trials
    table: QualityTable
    scores: np.ndarray
    speakers: tuple[np.ndarray, np.ndarray]

    @property
    def labels(self) -> np.ndarray:
        assert self.trials.target is not None
        return self.trials.target

    @property
    def known(self) -> dict[str, Any]:
        return {"quality": trial_quality(self.trials, self.table)}


def pairs(ids: list[str], i: np.ndarray, j: np.ndarray, target: np.ndarray | None = None) -> Trials:
    return Trials(Coded.of([ids[k] for k in i]), Coded.of([ids[k] for k in j]), target)


def drawn(n_speakers: int = 30, effect: float = 0.7, seed: int = 0, **columns: Any) -> Drawn:
    """All pairs of four recordings of each speaker; scores fall with short durations and with different kinds."""
    rng = np.random.default_rng(seed)
    speaker = np.repeat(np.arange(n_speakers), 4)
    n = len(speaker)
    duration, kind = np.exp(rng.normal(1.5, 1.0, n)), rng.integers(0, 2, n)
    i, j = np.triu_indices(n, 1)
    target = speaker[i] == speaker[j]
    score = rng.normal(np.where(target, 2.0, -2.0), 2.0)
    score = score - effect * (np.log(duration[i]) + np.log(duration[j])) - 2 * effect * (kind[i] != kind[j])
    table = {"duration": duration, "kind": np.where(kind, "phone", "close")}
    made = QualityTable.of([f"r{k}" for k in range(n)], table | {k: f(rng, speaker) for k, f in columns.items()})
    return Drawn(pairs([f"r{k}" for k in range(n)], i, j, target), made, score, (speaker[i], speaker[j]))


# -- columns


TABLE = {
    "a": (2.0, "phone", "mon", 7.0),
    "b": (8.0, "close", "mon", 1.0),
    "c": (5.0, "far", "tue", 2.0),
    "d": (1.0, "phone", "wed", -3.0),
    "e": (9.0, "close", "thu", 0.0),
}
MODELS = {"m": ["a", "b", "c"], "n": ["d"]}


def slow(enroll: list[str], test: list[str], symmetric: bool) -> dict[str, float]:
    """Every term of one trial, by its definition."""

    def side(names: list[str]) -> dict[str, float]:
        rows = [TABLE[name] for name in names]
        found = {
            "log number of recordings": np.log(len(rows)),
            "log number of sessions": np.log(len({r[2] for r in rows})),
        }
        found["log duration"] = np.mean([np.log(r[0]) for r in rows])
        found["cohort"] = np.mean([r[3] for r in rows])
        return found | {f"kind = {k}": np.mean([r[1] == k for r in rows]) for k in ("close", "far", "phone")}

    e, t = side(enroll), side(test)
    if symmetric:
        found = {f"{name}, both sides": e[name] + t[name] for name in e}
    else:
        found = {f"{name}, enrolment": e[name] for name in e} | {f"{name}, test": t[name] for name in t}
    differ = [TABLE[x][1] != TABLE[y][1] for x in enroll for y in test]
    return found | {"kind differs": np.mean(differ)}


@pytest.mark.parametrize("symmetric", [False, True])
def test_columns_are_what_their_definition_says(symmetric: bool) -> None:
    enroll, test = ["m", "m", "m", "n", "n", "e", "e"], ["a", "d", "e", "b", "c", "b", "d"]
    columns = dict(zip(("duration", "kind", "session", "cohort"), zip(*TABLE.values(), strict=True), strict=True))
    made = [(model, name) for model, names in MODELS.items() for name in names]
    enrollment = Enrollment(*(Coded.of(list(c)) for c in zip(*made, strict=True)))
    quality = trial_quality(Trials(Coded.of(enroll), Coded.of(test)), QualityTable.of(TABLE, columns), enrollment)
    recipe = choose(quality, symmetric)
    x = design(quality, recipe)
    assert not recipe.ignored
    names = [str(term) for term in recipe.terms]
    assert len(set(names)) == len(names)
    for k, (model, name) in enumerate(zip(enroll, test, strict=True)):
        expected = slow(MODELS.get(model, [model]), [name], symmetric)
        np.testing.assert_allclose(x[k], [expected[n] for n in names], atol=1e-12)
    # what is left out is constant, or is the word that the others are compared with
    everything = slow(["a"], ["b"], symmetric)
    test_side = {"log number of recordings, test", "log number of sessions, test"}
    (common,) = {"close", "far", "phone"} - {t.word for t in recipe.terms}
    left = {n for n in everything if f"kind = {common}" in n} | (set() if symmetric else test_side)
    assert set(names) == set(everything) - left


def test_exchanged_sides_have_the_same_ratio_if_symmetric() -> None:
    data = drawn()
    fitted = QualityCalibration(symmetric=True).fit(data.scores, data.labels, **data.known)
    other = trial_quality(Trials(data.trials.test, data.trials.enroll), data.table)
    np.testing.assert_allclose(fitted.transform(data.scores, **data.known), fitted.transform(data.scores, other))
    free = QualityCalibration().fit(data.scores, data.labels, **data.known)
    assert not np.allclose(free.transform(data.scores, **data.known), free.transform(data.scores, other), atol=1e-3)


def test_a_kind_that_one_side_never_changes_has_no_term_for_being_different() -> None:
    table = QualityTable.of("abcd", {"kind": ["x", "x", "y", "x"]})
    recipe = choose(trial_quality(Trials(Coded.of("aabb"), Coded.of("cdcd")), table), symmetric=True)
    assert [str(t) for t in recipe.terms] == ["kind = y, both sides"]


# -- the fit


def test_known_coefficients_are_found() -> None:
    """Labels are drawn from the model itself, so that the coefficients are what maximum likelihood tends to."""
    rng = np.random.default_rng(5)
    n, size = 400, 150_000
    columns = {
        "duration": np.exp(rng.normal(1, 1, n)),
        "cohort": rng.normal(3, 2, n),
        "kind": rng.choice(["x", "y"], n),
    }
    ids = [f"r{k}" for k in range(n)]
    i, j, s = rng.integers(n, size=size), rng.integers(n, size=size), rng.normal(0, 2, size)
    quality = trial_quality(pairs(ids, i, j), QualityTable.of(ids, columns))
    recipe = choose(quality)
    truth = {"log duration, enrolment": 0.8, "log duration, test": -0.4, "cohort, enrolment": -0.3, "cohort, test": 0.1}
    truth["kind differs"] = -0.9
    c = np.array([truth.get(str(term), 0.0) for term in recipe.terms])
    x = design(quality, recipe)
    llr = 1.5 * s + x @ c + 0.5
    y = rng.random(size) < expit(llr - 1)
    for p in (0.5, 0.1):
        fitted = QualityCalibration(p, ridge=1e-4).fit(s, y, quality=quality)
        assert fitted.scale_ == pytest.approx(1.5, abs=0.05)
        np.testing.assert_allclose(fitted.coefficients_ * fitted.deviations_, c * fitted.deviations_, atol=0.05)
        # a prior of the labels other than the share of targets moves the offset by the difference
        assert fitted.offset_ == pytest.approx(0.5 - 1 - logit(y.mean()), abs=0.1)


@pytest.mark.parametrize("p", [0.5, 0.05])
def test_without_a_ridge_it_is_scikit_learns_logistic_regression(p: float) -> None:
    data = drawn(12)
    s, y = data.scores, data.labels
    fitted = QualityCalibration(p, ridge=0.0).fit(s, y, **data.known)
    x = design(data.known["quality"], fitted.recipe)
    unit = fitted.deviations_
    weights = 1e3 * np.where(y, p / y.sum(), (1 - p) / (~y).sum())
    other = LogisticRegression(C=1e12, tol=1e-10, max_iter=10_000)
    other.fit(np.column_stack((s, x / unit)), y, sample_weight=weights)
    np.testing.assert_allclose([fitted.scale_, *fitted.coefficients_ * unit], other.coef_[0], rtol=1e-3, atol=1e-4)
    assert fitted.offset_ == pytest.approx(other.intercept_[0] - logit(p), rel=1e-3)


def test_the_ridge_is_on_side_information_only() -> None:
    data = drawn(12)
    s, y = data.scores, data.labels
    affine = AffineCalibration().fit(s, y)
    crushed = QualityCalibration(ridge=1e6).fit(s, y, **data.known)
    np.testing.assert_allclose(crushed.coefficients_ * crushed.deviations_, 0.0, atol=1e-6)
    assert crushed.scale_ == pytest.approx(affine.scale_, rel=1e-4)
    free, small = (QualityCalibration(ridge=r).fit(s, y, **data.known) for r in (0.0, 1e-3))
    norms = [np.linalg.norm(f.coefficients_ * f.deviations_) for f in (free, small, crushed)]
    assert norms[0] > norms[1] > 0.9 * norms[0] > norms[2]


def test_separated_scores_warn_and_weights_repeat() -> None:
    data = drawn(6)
    y = data.labels
    with pytest.warns(UserWarning, match="no finite scale is best"):
        fitted = QualityCalibration().fit(np.where(y, 5.0, -5.0) + 0.01 * data.scores, y, **data.known)
    assert fitted.ridge_ == pytest.approx(1 / min(y.sum(), (~y).sum()))
    with pytest.warns(UserWarning, match="the scale is negative"):
        QualityCalibration().fit(-data.scores, y, **data.known)
    weights = np.random.default_rng(0).integers(0, 3, len(y))
    e, t = (np.repeat(c.values, weights) for c in (data.trials.enroll, data.trials.test))
    again = trial_quality(Trials(Coded.of(e), Coded.of(t)), data.table)
    repeated = QualityCalibration().fit(np.repeat(data.scores, weights), np.repeat(y, weights), quality=again)
    weighted = QualityCalibration().fit(data.scores, y, weights, **data.known)
    assert [str(t) for t in repeated.recipe.terms] == [str(t) for t in weighted.recipe.terms]
    np.testing.assert_allclose(weighted.coefficients_, repeated.coefficients_, rtol=1e-6, atol=1e-9)


# -- cross-validation


def test_side_information_that_matters_lowers_held_out_cllr() -> None:
    data = drawn(40)
    held = QualityCalibration(symmetric=True).held_out(data.scores, data.labels, speakers=data.speakers, **data.known)
    affine, quality = (metrics.cllr(r, data.labels) for r in (held.affine, held.quality))
    assert quality < affine - 0.05
    assert (held.n_speakers, held.n_folds) == (40, 5)


def test_columns_that_say_nothing_do_not_help_speakers_who_were_held_out() -> None:
    """Each speaker has numbers of its own: on the same trials they help, on those of other speakers they cannot."""
    here, there = [], []
    for seed in range(6):
        noise = {f"x{k}": lambda rng, speaker: rng.normal(size=speaker.max() + 1)[speaker] for k in range(8)}
        data = drawn(24, effect=0.0, seed=seed, **noise)
        s, y = data.scores, data.labels
        learner = QualityCalibration(ridge=1e-6)
        held = learner.held_out(s, y, speakers=data.speakers, **data.known)
        there.append(metrics.cllr(held.affine, y) - metrics.cllr(held.quality, y))
        here.append(metrics.cllr(AffineCalibration().fit_transform(s, y), y))
        here[-1] -= metrics.cllr(learner.fit_transform(s, y, **data.known), y)
    assert min(here) > 0.01
    assert np.mean(there) < 2 * np.std(there, ddof=1) / np.sqrt(len(there))


def test_held_out_ratios_are_those_of_fits_without_the_two_folds() -> None:
    data = drawn(9)
    s, y, x = data.scores, data.labels, data.known["quality"]
    learner = QualityCalibration(0.2, symmetric=True)
    held = learner.held_out(s, y, speakers=data.speakers, n_folds=4, seed=3, **data.known)
    seen = np.zeros(len(y), int)
    a, b = data.speakers
    for out, learn in trial_folds(data.speakers, y, 4, 3):
        seen += out
        assert not {*a[out], *b[out]} & {*a[learn], *b[learn]}
        affine = AffineCalibration(0.2).fit(s[learn], y[learn])
        np.testing.assert_allclose(held.affine[out], affine.transform(s[out]), rtol=1e-6, atol=1e-9)
        part = trial_quality(Trials(data.trials.enroll[learn], data.trials.test[learn]), data.table)
        one = clone(learner).fit(s[learn], y[learn], quality=part)
        if [str(t) for t in one.recipe.terms] == [str(t) for t in choose(x, True).terms]:
            ratios = one.scale_ * s + one.offset_ + design(x, one.recipe) @ one.coefficients_
            np.testing.assert_allclose(held.quality[out], ratios[out], rtol=1e-6, atol=1e-9)
            seen[out] += 10
    assert set(seen % 10) == {1}
    assert (seen > 10).mean() > 0.5  # the reference of a kind may be another one, on some of the trials


def test_folds_need_enough_speakers_and_labels_that_agree() -> None:
    a, b = np.repeat(range(4), 4), np.tile(range(4), 4)
    with pytest.raises(DuopldaError, match="2 speakers in 5 folds"):
        list(trial_folds((a[a < 2], a[a < 2]), np.ones(8, bool)))
    with pytest.raises(DuopldaError, match=r"labels: 1 of 16 are at odds with the speakers \(rows 1,"):
        list(trial_folds((a, b), (a == b) | (np.arange(16) == 1)))
    with pytest.raises(DuopldaError, match="no target or no non-target"):
        list(trial_folds((a, b), (a == b) & (a == 0)))


def test_linked_ids_are_speakers_where_target_trials_tell() -> None:
    data = drawn(8)
    a, b = linked_sides(data.trials)
    assert ((a == b) == data.labels).all()
    assert len(np.unique(np.concatenate((a, b)))) == 8
    for name in np.unique(a):
        assert len(np.unique(data.speakers[0][a == name])) == 1
    with pytest.raises(DuopldaError, match="no truth"):
        linked_sides(Trials(data.trials.enroll, data.trials.test))


# -- what cannot be used


def test_ignored_columns_are_said() -> None:
    n = 20
    rng = np.random.default_rng(0)
    number = rng.normal(size=n)
    columns = {
        "rate": [8] * n,
        "kind": ["phone"] * n,
        "spk": [f"s{k}" for k in range(n)],
        "note": [f"text {k}" for k in range(n)],
        "gap": [np.nan, *number[1:]],
        "blank": ["", *["x", "y"] * 9, "x"],
        "session": ["", *(f"day {k}" for k in range(1, n))],
        "endless": [np.inf, *number[1:]],
        "duration": [0.0, *np.abs(number[1:])],
        "good": number,
    }
    ids = [f"r{k}" for k in range(n)]
    wide = QualityTable.of([*ids, *(f"x{k}" for k in range(99))], {k: [*v, *[v[-1]] * 99] for k, v in columns.items()})
    i, j = np.triu_indices(n, 1)
    y = rng.random(len(i)) < 0.3
    quality = trial_quality(pairs(ids, i, j), wide)
    fitted = QualityCalibration().fit(rng.normal(size=len(i)) + y, y, quality=quality)
    assert {str(t) for t in fitted.recipe.terms if not t.column.startswith("note")} == {"good, enrolment", "good, test"}
    same = "it is the same for all trials"
    assert (fitted.ignored_["rate"], fitted.ignored_["kind"], fitted.ignored_["spk"]) == (
        same,
        same,
        "it names speakers",
    )
    for name in ("gap", "blank", "endless", "session"):
        assert fitted.ignored_[name] == "a value is missing or infinite for 'r0'"
    assert "not positive" in fitted.ignored_["duration"]
    assert "note" not in fitted.ignored_  # 20 words may still be kinds


def test_names_are_no_kinds_and_a_table_of_nothing_is_an_error() -> None:
    ids = [f"r{k}" for k in range(60)]
    trials = Trials(Coded.of(ids[:30]), Coded.of(ids[30:]))
    table = QualityTable.of(ids, {"score": ["1.5"] * 20 + ["x"] + [str(k) for k in range(39)], "rate": [1] * 60})
    recipe = choose(trial_quality(trials, table))
    assert not recipe.terms
    assert re.fullmatch("it has 41 different texts, such as 'x': neither numbers .*", recipe.ignored["score"])
    with pytest.raises(DuopldaError, match=r"no column of the table can be used \(score: it has 41"):
        QualityCalibration().fit(np.arange(30.0), np.arange(30) % 2 == 0, quality=trial_quality(trials, table))


def test_recordings_without_a_row() -> None:
    trials = Trials(Coded.of(["m", "m", "a"]), Coded.of(["a", "zz", "b"]), np.array([True, False, True]))
    table = QualityTable.of("abc", {"duration": [1, 2, 3]})
    with pytest.raises(MissingIds, match=r"no row for 2 recordings: 'm', 'zz'; .*enrolment map"):
        trial_quality(trials, table)
    enrollment = Enrollment(Coded.of(["m", "m"]), Coded.of(["b", "c"]))
    with pytest.raises(MissingIds, match="no row for 1 recordings: 'zz'"):
        trial_quality(trials, table, enrollment)
    assert described(trials, table, enrollment).tolist() == [True, False, True]
    assert described(trials, table).tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("duration", None, r"the table has no column 'duration', .* it has 'kind'"),
        ("duration", [1, np.nan, 2, 3], r"column 'duration' cannot be used here: a value is missing.*for 'b'; fill it"),
        ("duration", [1, 0, 2, 3], r"'duration' cannot be used here: .*not positive"),
        ("duration", [1, "long", 2, 3], "column 'duration' has cells that are no numbers"),
        ("kind", ["phone", "close", "", "close"], r"'kind' cannot be used here: .* for 'c'"),
        ("kind", ["phone", "satellite", "close", "close"], "another word for the recordings 'b'; .* learnt "),
    ],
)
def test_other_recordings_need_what_was_learnt_from(column: str, values: Any, message: str) -> None:
    data = drawn(8)
    fitted = QualityCalibration().fit(data.scores, data.labels, **data.known)
    columns = {"duration": [1.0, 2, 3, 4], "kind": ["phone", "close", "phone", "close"]}
    trials = Trials(Coded.of("aab"), Coded.of("bcd"))
    good = trial_quality(trials, QualityTable.of("abcd", columns))
    assert np.isfinite(fitted.transform([0.0, 1.0, 2.0], good)).all()
    columns = {k: v for k, v in (columns | {column: values}).items() if v is not None}
    with pytest.raises(DuopldaError, match=message):
        fitted.transform([0.0, 1.0, 2.0], trial_quality(trials, QualityTable.of("abcd", columns)))
    with pytest.raises(DuopldaError, match="needs side information"):
        fitted.transform([0.0])
    with pytest.raises(DuopldaError, match=r"scores has shape \(2,\), and side information is on 3 trials"):
        fitted.transform([0.0, 1.0], good)
    with pytest.raises(DuopldaError, match=r"1 of 3 are not finite \(rows 1"):
        fitted.transform([0.0, np.nan, 1.0], good)


# -- files


def test_a_file_keeps_all(tmp_path: Path) -> None:
    data = drawn(8)
    fitted = QualityCalibration(0.3, 0.01, symmetric=True).fit(data.scores, data.labels, **data.known)
    path = tmp_path / "c.safetensors"
    fitted.save(path)
    again = calibration.load(path)
    assert (type(again), again.get_params()) == (QualityCalibration, fitted.get_params())
    assert [str(t) for t in again.recipe.terms] == [str(t) for t in fitted.recipe.terms]
    np.testing.assert_array_equal(
        again.transform(data.scores, **data.known), fitted.transform(data.scores, **data.known)
    )
    with pytest.raises(NotFittedError):
        clone(fitted).transform(data.scores, **data.known)
    with pytest.raises(DuopldaError, match="exists already"):
        again.save(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("terms_", None),
        ("terms_", []),
        ("terms_", [["number", "x"]]),
        ("terms_", [["exec", "x", "both", ""]] * 3),
        ("terms_", [["word", "elsewhere", "both", "x"]] * 3),
        ("terms_", [[1, 2, 3, 4]] * 3),
        ("kinds_", {"kind": 7}),
        ("kinds_", "kind"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, value: Any) -> None:
    data = drawn(8)
    path = tmp_path / "c.safetensors"
    fitted = QualityCalibration(symmetric=True).fit(data.scores, data.labels, **data.known)
    assert len(fitted.terms_) == 3
    fitted.save(path)
    header = {"format": "duoplda-calibration", "version": 1, "class": "QualityCalibration"}
    header |= {"terms_": fitted.terms_, "kinds_": fitted.kinds_, name: value}
    save_file(load_file(path), path, {"duoplda": json.dumps(header)})
    with pytest.raises(DuopldaError, match=f"^{re.escape(str(path))}: .*(damaged|0 terms for 3 coefficients)"):
        calibration.load(path)


# -- tables


@pytest.mark.parametrize("suffix", FORMATS)
def test_tables(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"quality{suffix}"
    rows = [("a", "2.5", "phone", ""), ("b", "nan", "far, close", "x"), ("c", "1e3", "phone", "NA")]
    if suffix == ".parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        ids, duration, kind, note = zip(*rows, strict=True)
        columns = {"utt": ids, "duration": [float(d) for d in duration], "kind": kind, "note": note}
        pq.write_table(pa.table({k: list(v) for k, v in columns.items()}), path)
    else:
        cell = '"{}"'.format if suffix == ".csv" else str
        lines = [["utt", "duration", "kind", "note"], *rows]
        between = "," if suffix == ".csv" else "\t"
        path.write_text("\n".join(between.join(map(cell, line)) for line in lines) + "\n")
    table = read_quality(path)
    assert (len(table), table.ids.tolist(), list(table.columns)) == (3, ["a", "b", "c"], ["duration", "kind", "note"])
    np.testing.assert_array_equal(table.numbers("duration"), [2.5, np.nan, 1000.0])
    assert table.words("kind").tolist() == ["phone", "far, close", "phone"]
    assert (table.numbers("kind"), table.words("note").tolist()) == (None, ["", "x", ""])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("utt\tduration\na\t1\nb\t2\na\t3\n", "line 4: id 'a' is there already; each recording has one line"),
        ("utt\tduration\na\t1\nb\n", "line 3: has 1 fields, the header 2"),
        ("clip\tduration\na\t1\n", "header: has no id column"),
        ("utt\nx\n", "header: has a column of ids and no other"),
        ("utt\tduration\n", "has a header and no rows"),
        ("utt\t" + "\t".join(f"x{k}" for k in range(256)) + "\n", "header: has 257 columns; give at most 256"),
        ("utt\tkind\na\tb\x1b[31m\n", "line 2: .*control characters"),
        ("", "is empty"),
    ],
)
def test_wrong_tables(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "quality.tsv"
    path.write_text(text)
    with pytest.raises(DuopldaError, match=f"^{re.escape(str(path))}: {message}"):
        read_quality(path)


def test_wrong_lists() -> None:
    with pytest.raises(DuopldaError, match="column 'x' has 1 cells for 2 ids"):
        QualityTable.of("ab", {"x": [1]})
    with pytest.raises(DuopldaError, match="id 'a' occurs twice"):
        QualityTable.of("aba", {"x": [1, 2, 3]})
    assert QualityTable.of("ab", {"x": ["1_000", "2"]}).numbers("x") is None


def test_a_table_of_many_recordings_takes_seconds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n, path = 100_000, tmp_path / "quality.tsv"
    kind = rng.choice(["phone", "close", "far"], n)
    lines = (
        f"r{k}\t{d:.3f}\t{w}\t{c:.5f}\n"
        for k, d, w, c in zip(range(n), rng.uniform(1, 9, n), kind, rng.normal(size=n), strict=True)
    )
    path.write_text("recording\tduration\tkind\tcohort\n" + "".join(lines))
    order = rng.permutation(n)
    ids = [f"r{k}" for k in range(n)]
    y = rng.random(n) < 0.2
    trials = pairs(ids, np.arange(n), order, y)
    quality = trial_quality(trials, read_quality(path))
    fitted = QualityCalibration().fit(rng.normal(size=n) + y, y, quality=quality)
    assert len(fitted.coefficients_) == 9  # two numbers and two words on either side, and whether kinds differ
