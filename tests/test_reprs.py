"""How models, statistics, sides and clusters show themselves: in one line that no name can break out of."""

import numpy as np
import pytest

from duoplda import PLDA, Backend, Statistics
from duoplda.datasets import make_recordings

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e\n"


@pytest.fixture(scope="module")
def data():
    return make_recordings(40, (1, 4), (1, 3), n_dimensions=8, n_speaker_factors=4, n_session_factors=4, seed=0)


@pytest.fixture(scope="module")
def objects(data):
    """One of each, with hostile names wherever a name can stand."""
    speaker = np.char.add(HOSTILE, data.speaker.astype(str))
    session = np.char.add(HOSTILE, data.session.astype(str))
    kind = np.array([HOSTILE, "mic"])[np.arange(len(data.X)) % 2]
    backend = Backend(lda=6).fit(data.X, data.speaker, session=data.session, channel=kind)
    return {
        "Model": backend.plda_.model_,
        "Statistics": Statistics.from_arrays(data.X, speaker, session, kind, n_folds=2),
        "Sides": backend.enroll(data.X, speaker, session, kind),
        "Clustering": backend.cluster(data.X, session, known=backend.enroll(data.X[:60], speaker[:60])),
    }


@pytest.mark.parametrize("name", ["Model", "Statistics", "Sides", "Clustering"])
def test_text_is_one_line_and_cannot_steer_a_terminal(objects, name):
    text = repr(objects[name])
    assert text.startswith(f"<{name}: ")
    assert not set(text) & set("\x1b\u202e\n")
    assert len(text) < 800


def test_numbers_are_those_of_the_object(data, objects):
    N, H, M = len(data.X), len(np.unique(data.session)), len(np.unique(data.speaker))
    for name in ("Statistics", "Sides"):
        assert f" {N:,} recordings" in repr(objects[name])
        assert f" {H:,} sessions" in repr(objects[name])
    assert f" {M} speakers, 8 dimensions" in repr(objects["Statistics"])
    assert f"{M} sides" in repr(objects["Sides"])
    assert "6 dimensions, 6 speaker factors, 6 session factors" in repr(objects["Model"])
    clusters = objects["Clustering"]
    known = int(clusters.known.sum())
    assert f"<Clustering: {len(clusters)} speakers, {known} of them known, {N} recordings" in repr(clusters)


def test_open_sessions_are_counted(data):
    folds = Statistics.from_arrays(data.X, data.speaker, data.session, close=False, n_folds=3)
    assert f"3 folds, {len(np.unique(data.session))} open sessions" in repr(folds)


def test_many_ids_are_not_all_written(data):
    plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
    sides = plda.enroll(np.zeros((5000, 1)), np.arange(5000))
    assert repr(sides).endswith(", ... (5000 in all)>")
    assert len(repr(sides)) < 300


def test_a_fitted_estimator_is_shown_by_its_parameters(data):
    plda = PLDA(shrinkage=0.1).fit(data.X, data.speaker, session=data.session)
    assert repr(plda) == "PLDA(shrinkage=0.1)"


def test_sides_of_tensors_say_where_they_are():
    torch = pytest.importorskip("torch")
    plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
    assert "on cpu" in repr(plda.enroll(torch.zeros(2, 1, dtype=torch.float64), ["a", "b"]))
    assert "on cpu" not in repr(plda.enroll(np.zeros((2, 1)), ["a", "b"]))
