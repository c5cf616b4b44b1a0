"""Scores find their trials: whatever their order, each trial gets its own score, and none is lost without a word."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duoplda.errors import DuopldaError, MissingIds
from duoplda.evaluation.calibration import AffineCalibration, Fusion
from duoplda.evaluation.matching import calibrate_scores, lookup, match_files, match_scores, speaker_sides
from duoplda.io import Coded, Enrollment, Scores, Trials, write_scores, write_trials

pairs = st.tuples(st.sampled_from("abc"), st.sampled_from("pqrs"))


def columns(pairs):
    return [Coded.of([pair[k] for pair in pairs]) for k in (0, 1)]


def scores(pairs, values=None):
    return Scores(*columns(pairs), np.arange(float(len(pairs))) if values is None else np.array(values, float))


def trials(pairs, target=None):
    rows = Coded.of([str(row) for row in range(len(pairs))])
    return Trials(*columns(pairs), None if target is None else np.array(target), {"row": rows})


@given(st.lists(pairs, min_size=1), st.lists(pairs, unique=True))
def test_lookup_is_a_dictionary(wanted, have):
    place = {pair: row for row, pair in enumerate(have)}
    found = lookup(scores(have), *columns(wanted))
    assert found.tolist() == [place.get(pair, -1) for pair in wanted]


@given(st.lists(pairs, min_size=1, unique=True), st.lists(st.lists(pairs, unique=True), min_size=1, max_size=3))
def test_every_trial_gets_its_score_in_every_system(wanted, systems):
    given = {str(k): scores(have, [10 * k + row for row in range(len(have))]) for k, have in enumerate(systems)}
    kept = [row for row, pair in enumerate(wanted) if all(pair in have for have in systems)]
    key = trials(wanted, [row % 2 == 0 for row in range(len(wanted))])
    if not kept:
        with pytest.raises(DuopldaError, match="no trial has a score in every system"):
            match_scores(key, given, allow_missing=True)
        return
    found = match_scores(key, given, allow_missing=True)
    assert found.trials.conditions["row"].values.tolist() == list(map(str, kept))
    assert found.target.tolist() == [row % 2 == 0 for row in kept]
    assert found.n_left_out == len(wanted) - len(kept)
    for k, have in enumerate(systems):
        assert found.systems[str(k)].tolist() == [10 * k + have.index(wanted[row]) for row in kept]
        assert found.missing[str(k)] == len(set(wanted) - set(have))
        assert found.unused[str(k)] == len(set(have) - set(wanted))
    if found.n_left_out:
        with pytest.raises(MissingIds, match=r"^\d: [\d,]+ trials without a score, such as "):
            match_scores(key, given)
    else:
        assert match_scores(key, given).n_left_out == 0


def test_missing_trials_are_counted_and_the_first_ten_named():
    wanted = [("m", f"r{k}") for k in range(12)]
    with pytest.raises(MissingIds) as caught:
        match_scores(trials(wanted), {"ours": scores([])})
    first = ", ".join(f"'m r{k}'" for k in range(10))
    assert str(caught.value).startswith(f"ours: 12 trials without a score, such as {first}; leave them out")


def test_a_score_that_is_nan_is_not_missing():
    found = match_scores(trials([("a", "p"), ("a", "q")]), {"s": scores([("a", "q"), ("a", "p")], [np.nan, 1.0])})
    np.testing.assert_array_equal(found.systems["s"], [1.0, np.nan])


def test_two_scores_for_a_trial_are_refused():
    with pytest.raises(DuopldaError, match=r"^s: score 3: 'a p' has a score already"):
        match_scores(trials([("a", "p")]), {"s": scores([("a", "p"), ("a", "q"), ("a", "p")])})


def test_trials_without_truth_have_no_target():
    found = match_scores(trials([("a", "p")]), {"s": scores([("a", "p")])})
    with pytest.raises(DuopldaError, match="no truth"):
        _ = found.target


def test_files_get_the_shortest_names_that_differ(tmp_path):
    have = [("a", "p"), ("a", "q")]
    write_trials(tmp_path / "key", trials(have, [True, False]))
    (tmp_path / "more").mkdir()
    for name in ("s.txt", "t.txt", "s.tsv", "more/s.txt"):
        write_scores(tmp_path / name, scores(have))

    def names(*files):
        return list(match_files(tmp_path / "key", [tmp_path / f for f in files]).systems)

    assert names("s.txt", "t.txt") == ["s", "t"]
    assert names("s.txt", "s.tsv") == ["s.txt", "s.tsv"]
    assert names("s.txt", "more/s.txt") == [str(tmp_path / "s.txt"), str(tmp_path / "more/s.txt")]
    with pytest.raises(DuopldaError, match="twice"):
        names("s.txt", "s.txt")
    write_trials(tmp_path / "bare", trials(have))
    with pytest.raises(DuopldaError, match=r"bare: .*no truth"):
        match_files(tmp_path / "bare", [tmp_path / "s.txt"])


def test_speakers_of_models():
    speaker_of = {"p": "anna", "q": "bert", "e": "anna", "b": "bert"}
    key = trials([("a", "p"), ("b", "q"), ("anna", "q")])
    enrolled = Enrollment(Coded.of(["a", "a"]), Coded.of(["e", "unknown"]))
    left, right = speaker_sides(key, speaker_of, enrolled)
    assert left.tolist() == ["anna", "bert", "anna"]  # by its recordings, by its id, by its name
    assert right.tolist() == ["anna", "bert", "bert"]
    with pytest.raises(MissingIds, match="1 models whose speaker is not known: 'a'; label them, or give the enrolment"):
        speaker_sides(key, speaker_of)
    with pytest.raises(MissingIds, match="1 recordings whose speaker is not known: 'q'; label them"):
        speaker_sides(key, {"a": "x", "b": "y", "p": "anna"})
    mixed = Enrollment(Coded.of(["a", "a"]), Coded.of(["p", "q"]))
    with pytest.raises(DuopldaError, match="'a' has recordings of several speakers"):
        speaker_sides(key, speaker_of, mixed)


def test_calibrated_scores_keep_their_pairs():
    rng = np.random.default_rng(0)
    have = [("abc"[k // 4], "pqrs"[k % 4]) for k in range(12)]
    y = np.arange(12) % 4 == 0
    x = rng.normal(y[:, None] * 1.0, 1.0, (12, 2))
    one = AffineCalibration().fit(x[:, 0], y)
    got = calibrate_scores(one, {"a": scores(have, x[:, 0])})
    assert got.enroll.values.tolist() == [a for a, _ in have]
    np.testing.assert_allclose(got.score, one.scale_ * x[:, 0] + one.offset_)
    both = Fusion().fit(x, y)
    order = rng.permutation(12)
    systems = {"a": scores(have, x[:, 0]), "b": scores([have[k] for k in order], x[order, 1])}
    np.testing.assert_allclose(calibrate_scores(both, systems).score, x @ both.scales_ + both.offset_)
    systems["b"] = scores([have[k] for k in order[3:]], x[order[3:], 1])
    with pytest.raises(MissingIds, match=r"^b: 3 trials"):
        calibrate_scores(both, systems)
    kept = calibrate_scores(both, systems, allow_missing=True)
    np.testing.assert_allclose(kept.score, np.delete(x, order[:3], axis=0) @ both.scales_ + both.offset_)
    for fitted, some in ((both, {"a": scores(have)}), (one, systems)):
        with pytest.raises(DuopldaError, match="the calibration is for"):
            calibrate_scores(fitted, some)
    with pytest.raises(DuopldaError, match=r"^a: .*NaN"):
        calibrate_scores(one, {"a": scores(have, np.full(12, np.nan))})
