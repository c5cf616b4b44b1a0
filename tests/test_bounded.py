"""What keeps memory bounded changes no result: pieces of listed trials, labels that are let go."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duoplda import PLDA, Backend, DuopldaError, io
from duoplda.data import Recordings
from duoplda.data.labels import order_of
from duoplda.datasets import make_recordings
from duoplda.estimators import checkpoint, scoring
from duoplda.estimators.scoring import ListedTrials
from duoplda.observer import Observer


@given(st.data())
def test_pieces_are_what_is_among_them(data):
    n = data.draw(st.integers(1, 40))
    model = np.array(data.draw(st.lists(st.integers(-1, 4), min_size=n, max_size=n)))
    test = np.array(data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)))
    ids = np.array(data.draw(st.permutations(range(10))))[: data.draw(st.integers(1, 10))]
    most = data.draw(st.integers(1, 50))
    pairs = ListedTrials.of(model, test)
    wanted = [i for i in range(n) if model[i] >= 0 and test[i] in ids]
    seen, rows_before = [], 0
    for rows, which, row in pairs.pieces(ids, most):
        assert rows.start >= rows_before  # pieces share no recording
        rows_before = rows.stop
        assert (ids[rows][row] == test[which]).all()
        one = np.bincount(row).max()
        assert len(which) < most + one
        seen += which.tolist()
    assert sorted(seen) == wanted
    whole = [which.tolist() for _, which, _ in pairs.pieces(ids)]
    assert whole == ([seen] if seen else [])  # in the same order


@given(st.lists(st.integers(0, 6) | st.integers(0, 1 << 17) | st.integers(0, 1 << 62), max_size=60))
def test_equal_numbers_keep_their_order(whole):
    code = np.array(whole, np.int64)
    np.testing.assert_array_equal(order_of(code), np.argsort(code, kind="stable"))
    assert code.tolist() == whole


@pytest.mark.parametrize("cohort", [False, True])
def test_trials_in_pieces_have_the_same_scores(cohort):
    """More trials than are scored at a time; with a cohort, all of a test's trials are scored together."""
    X, speaker, session, _ = make_recordings(30, 3, 2, seed=0)
    plda = PLDA(8, 8).fit(X, speaker, session=session)
    enrolled = plda.enroll(X[:60], speaker[:60], session[:60])
    names = np.array([f"t{i:02}" for i in range(60)])
    tests = Recordings.from_arrays(X[60:120], ids=names)
    others = plda.enroll(X[120:], speaker[120:], session[120:]) if cohort else None
    rng = np.random.default_rng(0)
    n = 200_000
    model = rng.integers(0, len(enrolled), n)
    test = rng.integers(0, 60, n)
    values = np.full(n, np.nan)
    blocks = list(scoring.score(plda, enrolled, tests, trials=(model, names[test]), cohort=others))
    for block in blocks:
        values[block.rows] = block.scores
    assert np.concatenate([block.ids for block in blocks]).tolist() == names.tolist()
    assert (len(blocks) > 1) == (not cohort)
    matrix = scoring.as_matrix(scoring.score(plda, enrolled, tests, cohort=others), enrolled.ids)
    np.testing.assert_allclose(values, matrix.score[model, test], rtol=0, atol=1e-9)


def test_labels_are_let_go_when_recordings_have_been_read(tmp_path):
    X, speaker, session, _ = make_recordings(12, 3, 2, seed=0)
    ids = np.array([f"r{i}" for i in range(len(X))])
    io.write_embeddings(tmp_path / "x.npz", ids, X)
    table = io.LabelColumns(ids, np.char.add("s", speaker.astype(str)), np.char.add("c", session.astype(str)))
    backend = Backend(plda=PLDA(4, 4, tol=1e-3))
    calls = []

    class Reader(Observer):
        def training_begins(self):
            calls.append(data.digest)  # known by now
            data.forget()

    data = io.read_recordings(tmp_path / "x.npz", table)
    found = checkpoint.fit(backend, data, tmp_path / "state", observer=Reader())
    assert calls == [data.digest]
    assert len(calls[0]) == 64
    with pytest.raises(DuopldaError, match="no labels"):
        data.labels()
    whole = checkpoint.fit(backend, io.read_recordings(tmp_path / "x.npz", table), tmp_path / "state")
    for name in ("speaker_loadings_", "session_loadings_", "noise_precision_"):
        np.testing.assert_array_equal(getattr(found.plda_, name), getattr(whole.plda_, name))
