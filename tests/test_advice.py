"""`advise`: what it says of labels is what training does with them, and it leads to the leaves of docs/choosing.md."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duoplda import PLDA, Backend, DuopldaError, Recordings, advise
from duoplda.data.labels import encode
from duoplda.datasets import make_recordings

PAGE = (Path(__file__).parents[1] / "docs/choosing.md").read_text(encoding="utf-8")


def labels_of(shape, kinds=1):
    """Labels of speakers that each have sessions of so many recordings; kinds of channels take turns."""
    speaker, session = [], []
    for i, sizes in enumerate(shape):
        for j, n in enumerate(sizes):
            speaker += [f"s{i}"] * n
            session += [f"s{i}-{j}"] * n
    kind = np.array([f"k{k}" for k in range(kinds)])[np.arange(len(speaker)) % kinds]
    return np.array(speaker), np.array(session), kind if kinds > 1 else None


def letters(found):
    return "".join(leaf.letter for leaf in found.leaves)


def compare(found, speaker, session, kind, d=2):
    """Train on drawn recordings with these labels, and compare what was said with what was done."""
    X = np.random.default_rng(0).normal(size=(len(speaker), d))
    X += np.repeat(np.random.default_rng(1).normal(size=(len(set(speaker)), d)), counts(speaker), axis=0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if found.model is None:
            with pytest.raises(DuopldaError) as refused:
                Backend().fit(X, speaker, session=session, channel=kind)
            assert str(refused.value) in " ".join(found.chosen)
            return
        backend = Backend().fit(X, speaker, session=session, channel=kind)
    text, plda = " ".join(str(w.message) for w in said), backend.plda_
    assert (plda.session_loadings_.shape[1] > 0) == found.session_factors
    assert (len(plda.channels_) > 1) == (found.model == "kinds")
    assert (found.model == "plain") == (not found.session_factors and found.model != "kinds")
    assert (plda.calibration_ is not None) == (plda.cost_ is not None) == found.calibrated
    assert found.chosen_by == (
        "trials" if plda.cost_ is not None else "nothing" if "to hold some out: shrinkage set" in text else "likelihood"
    )
    assert ("the ratios are not calibrated" in text) == (found.chosen_by == "likelihood")
    free = re.search(r"shrinkage \(([a-z, ]+)\)", " ".join(found.chosen))[1].split(", ")
    assert {name for name, amount in plda.shrinkage_._asdict().items() if amount} <= set(free)
    if found.chosen_by == "trials":  # they choose between 0.002 and 0.998
        assert {name for name, amount in plda.shrinkage_._asdict().items() if amount} == set(free)
    assert backend.counts_ == {name: found.counts[name] for name in backend.counts_}
    assert [*backend.steps_, "plda"] == found.chosen[0].removeprefix("steps: ").split(" -> ")
    few = ("differences between recordings to learn" in text) or ("no speaker has two recordings" in text)
    assert any("for a noise of" in caution for caution in found.cautions) == few


def counts(speaker):
    return np.unique(speaker, return_counts=True)[1]


# -- each branch of the chart

SHAPES = {
    "one speaker": ([[2, 2]], 1, "A", None, "nothing"),
    "one recording for each speaker": ([[1]] * 12, 1, "A", "plain", "likelihood"),
    "one session for each speaker": ([[3]] * 12, 1, "A", "plain", "likelihood"),
    "one session for each speaker, kinds": ([[4]] * 12, 2, "A", "kinds", "likelihood"),
    "sessions of one recording": ([[1, 1, 1]] * 12, 1, "BG", "plain", "trials"),
    "sessions of one recording, kinds": ([[1, 1, 1]] * 12, 2, "BG", "kinds", "trials"),
    "sessions of several recordings": ([[2, 3]] * 12, 1, "CEFGL", "two-source", "trials"),
    "the same, kinds": ([[2, 3]] * 12, 2, "DFGL", "kinds", "trials"),
    "one speaker has two sessions": ([[2, 2], *[[2]] * 11], 1, "CEFGL", "two-source", "trials"),
    "two speakers": ([[2, 2]] * 2, 1, "CEFGL", "two-source", "nothing"),
    "thousands": ([[1, 2]] * 1000, 1, "CEFHL", "two-source", "trials"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_said_is_what_training_does(name):
    shape, kinds, leaves, model, by = SHAPES[name]
    speaker, session, kind = labels_of(shape, kinds)
    found = advise(speaker, session, kind, dimensions=2)
    assert (letters(found), found.model, found.chosen_by) == (leaves, model, by)
    compare(found, speaker, session, kind)


@given(
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=2, max_size=7),
    st.sampled_from([1, 1, 2, 3]),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_what_is_said_of_any_labels_is_what_training_does(shape, kinds, named):
    speaker, session, kind = labels_of(shape, kinds)
    session = session if named else None
    compare(advise(speaker, session, kind, dimensions=2), speaker, session, kind)


def test_every_leaf_stands_on_the_page():
    for letter in set("".join(row[2] for row in SHAPES.values())):
        assert re.search(rf"^ *- \*\*{letter}\. ", PAGE, re.MULTILINE)


def test_what_model_auto_compares_is_what_the_leaf_says():
    """Leaf F comes where there is more than one model to compare."""
    X, speaker, session, _ = make_recordings(20, 2, 2, n_dimensions=2, n_speaker_factors=1, n_session_factors=1, seed=0)
    assert "F" in letters(advise(speaker, session))
    assert len(PLDA(model="auto", shrinkage="auto").fit(X, speaker, session=session).model_costs_) > 1
    alone = np.arange(len(X))
    assert "F" not in letters(advise(speaker, alone))
    assert not PLDA(model="auto", shrinkage="auto").fit(X, speaker, session=alone).model_costs_


# -- counts and cautions


def test_counts():
    found = advise(*labels_of([[1], [2, 1], [3, 1, 1]])[:2])
    assert found.counts == {
        "speakers": 3,
        "sessions": 6,
        "recordings": 9,
        "speakers with several sessions": 2,
        "sessions with several recordings": 2,
    }
    assert (found.sessions_per_speaker, found.recordings_per_session) == ((1, 2.0, 3), (1, 1.0, 3))
    assert [level.differences for level in found.levels] == [2, 3, 3, 0]
    assert [level.learnt for level in found.levels] == [True, True, True, False]


def test_kinds_are_counted():
    speaker, session, _ = labels_of([[2, 2]] * 6)
    kind = np.array(["mic", "phone"])[np.arange(24) % 2]
    assert advise(speaker, session, kind).kinds == {"mic": 12, "phone": 12}
    assert advise(speaker, session).kinds == {}
    one = advise(speaker, session, np.repeat("mic", 24))
    assert (one.kinds, one.model) == ({"mic": 24}, "two-source")
    kind[:4] = "radio"  # of the first speaker alone
    (caution,) = advise(speaker, session, kind).cautions
    assert "'radio'" in caution
    assert "'mic'" not in caution


def test_sessions_that_nobody_named_are_asked_for():
    speaker, session, _ = labels_of([[2, 2]] * 6)
    assert any("name the sessions" in caution for caution in advise(speaker).cautions)
    assert not any("name the sessions" in caution for caution in advise(speaker, session).cautions)
    assert not any("name the sessions" in caution for caution in advise(np.arange(6)).cautions)


def test_dimensions_add_what_depends_on_them():
    labels = labels_of([[2, 2]] * 6, 2)
    assert advise(*labels).cautions == ()
    assert advise(*labels, dimensions=1).cautions == ()  # 12 of each kind, 12 differences
    text = " ".join(advise(*labels, dimensions=13).cautions)
    assert "12 differences within sessions for a noise of 13 dimensions" in text
    assert "6 differences between sessions for 13 dimensions" in text
    assert "fewer than 130 recordings ('k0', 'k1')" in text


def test_labels_come_as_arrays_as_recordings_or_as_integers():
    speaker, session, kind = labels_of([[2, 1]] * 6, 2)
    given = advise(speaker, session, kind)
    assert advise(Recordings.from_arrays(np.zeros((len(speaker), 3)), speaker, session, kind)) == given
    assert advise(encode(speaker, session, kind)) == given


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([],), {}, "there are no labels"),
        ((["a", "b"], ["s"]), {}, "1 session labels for 2 recordings"),
        ((["a", "b"], ["s", "s"]), {}, "session s belongs to 2 speakers"),
        ((["a", None],), {}, "speaker labels are missing"),
        ((["a", "b"],), {"dimensions": 0}, "dimensions=0 must be a whole number"),
        ((["a", "b"],), {"dimensions": 2.5}, "dimensions=2.5 must be a whole number"),
        ((Recordings.from_arrays(np.eye(2), ["a", "b"]), ["s", "t"]), {}, "bring their own labels"),
    ],
)
def test_bad_labels(arguments, options, message):
    with pytest.raises(DuopldaError, match=message):
        advise(*arguments, **options)


def test_names_cannot_steer_the_terminal():
    speaker, session, kind = labels_of([[2, 2]] * 6, 2)
    text = str(advise(speaker, session, np.where(kind == "k0", "\x1b[31m\u202e", "<b>"), dimensions=9))
    assert "\\x1b[31m\\u202e" in text
    assert not set(text) & set("\x1b\u202e")


def test_the_page_is_narrow():
    speaker, session, kind = labels_of([[2, 2]] * 6, 2)
    assert max(map(len, str(advise(speaker, session, kind, dimensions=100)).splitlines())) <= 100
