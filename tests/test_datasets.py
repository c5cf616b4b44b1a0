"""Built-in data: seeded, ragged, and drawn from the model that the docstring describes."""

import doctest

import numpy as np
import pytest

from duoplda import PLDA, datasets
from duoplda.datasets import Dataset, make_recordings

SMALL = {"n_dimensions": 4, "n_speaker_factors": 2, "n_session_factors": 1}


def variance(covariance):
    """Mean variance of a dimension."""
    return np.trace(covariance) / len(covariance)


def test_shapes_and_names():
    data = make_recordings(12, sessions=(1, 3), recordings=(1, 4), seed=5, **SMALL)
    assert isinstance(data, Dataset)
    X, speaker, session, model = data
    assert X.dtype == np.float64
    assert X.shape == (len(speaker), 4)
    assert len(session) == len(speaker)
    assert np.unique(speaker).tolist() == sorted(f"spk{i}" for i in range(12))
    for s in np.unique(session):  # a session's name is its speaker's and a number, and so it has one speaker
        assert set(speaker[session == s]) == {s.rpartition("-")[0]}
    for p in np.unique(speaker):
        numbers = np.unique([int(s.rpartition("-")[2]) for s in session[speaker == p]])
        assert numbers.tolist() == list(range(len(numbers)))
    assert (model.mu.shape, model.V.shape, model.U.shape, model.W.shape) == ((1, 4), (4, 2), (4, 1), (1, 4, 4))


def test_defaults():
    data = make_recordings()
    assert len(np.unique(data.speaker)) == 100
    assert data.X.shape[1] == 32
    assert (data.model.V.shape, data.model.U.shape) == ((32, 16), (32, 12))
    np.testing.assert_array_equal(data.X, make_recordings(seed=0).X)


def test_seeds():
    a, b, c = (make_recordings(10, seed=s, **SMALL) for s in (3, 3, 4))
    for x, y in zip(a[:3], b[:3], strict=True):
        np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(a.model.V, b.model.V)
    assert not np.array_equal(a.model.V, c.model.V)
    assert a.X.shape != c.X.shape or not np.array_equal(a.X, c.X)
    free = [make_recordings(10, sessions=1, recordings=1, seed=None, **SMALL).X for _ in range(2)]
    assert not np.array_equal(*free)


def test_ragged():
    """Counts are drawn uniformly from a range, both ends included."""
    data = make_recordings(600, sessions=(2, 5), recordings=(1, 3), seed=1, **SMALL)
    sessions, per_session = np.unique(data.session, return_counts=True)
    _, per_speaker = np.unique([s.rpartition("-")[0] for s in sessions], return_counts=True)
    for counts, low, high in ((per_speaker, 2, 5), (per_session, 1, 3)):
        share = np.bincount(counts, minlength=high + 1) / len(counts)
        assert share[:low].sum() == 0
        np.testing.assert_allclose(share[low:], 1 / (high - low + 1), atol=0.06)


def test_fixed_counts():
    data = make_recordings(7, sessions=3, recordings=2, **SMALL)
    assert data.X.shape == (42, 4)
    assert (np.unique(data.session, return_counts=True)[1] == 2).all()
    assert (np.unique(data.speaker, return_counts=True)[1] == 6).all()
    for counts in ((3, 3), [3, 3], np.int64(3)):  # other ways to say the same
        assert make_recordings(7, sessions=counts, recordings=2, **SMALL).X.shape == (42, 4)


def test_model_has_the_documented_variances():
    """Whatever the draw: a single factor of a few dimensions must not come out three times as strong."""
    for seed in range(5):
        small = make_recordings(1, 1, 1, seed=seed, session_variance=0.7, **SMALL).model
        assert variance(small.U @ small.U.T) == pytest.approx(0.7, rel=1e-9)
    model = make_recordings(
        *(1, 1, 1),
        n_dimensions=200,
        n_speaker_factors=100,
        n_session_factors=60,
        speaker_variance=2.0,
        session_variance=0.3,
        channel_variance=0.7,
        mean=4.0,
        seed=2,
    ).model
    assert variance(model.V @ model.V.T) == pytest.approx(2.0, rel=1e-9)
    assert variance(model.U @ model.U.T) == pytest.approx(0.3, rel=1e-9)
    noise = np.linalg.inv(model.W[0])
    assert variance(noise) == pytest.approx(0.7, rel=1e-9)
    eigenvalues = np.linalg.eigvalsh(noise)
    assert eigenvalues[-1] / eigenvalues[0] == pytest.approx(10, rel=1e-9)
    assert np.abs(noise - np.diag(np.diagonal(noise))).max() > 0.01  # full, not diagonal
    assert model.mu.std() == pytest.approx(4.0, rel=0.15)


def test_recordings_have_the_documented_variances():
    """An analysis of variance of many recordings, four of a session, gives back each part."""
    X, speaker, session, model = make_recordings(3000, sessions=4, recordings=4, seed=3, **SMALL)
    G = X.reshape(3000, 4, 4, 4)  # speakers, sessions, recordings, dimensions
    of_session, of_speaker = G.mean(axis=2), G.mean(axis=(1, 2))
    within = np.einsum("ijld,ijle->de", G - of_session[:, :, None], G - of_session[:, :, None]) / (3000 * 4 * 3)
    between = np.einsum("ijd,ije->de", *[of_session - of_speaker[:, None]] * 2) / (3000 * 3) - within / 4
    speakers = np.cov(of_speaker.T) - (between + within / 4) / 4
    np.testing.assert_allclose(within, np.linalg.inv(model.W[0]), atol=0.02)
    np.testing.assert_allclose(between, model.U @ model.U.T, rtol=0.06, atol=0.03)
    np.testing.assert_allclose(speakers, model.V @ model.V.T, rtol=0.1, atol=0.1)
    np.testing.assert_allclose(of_speaker.mean(axis=0), model.mu[0], atol=0.1)
    assert np.array_equal(speaker.reshape(3000, 16)[:, 0], [f"spk{i}" for i in range(3000)])
    assert len(np.unique(session)) == 12000


def test_test_sets_of_the_same_model():
    train = make_recordings(5, seed=1, **SMALL)
    test = make_recordings(6, sessions=2, recordings=2, seed=2, model=train.model)
    assert test.model is train.model
    assert test.X.shape == (24, 4)
    plda = PLDA.from_parameters(train.model.mu[0], train.model.V, train.model.U, train.model.W[0])
    X, speaker, session = plda.sample(6, sessions=2, recordings=2, random_state=2)
    np.testing.assert_array_equal(X, test.X)
    np.testing.assert_array_equal(speaker, test.speaker)
    np.testing.assert_array_equal(session, test.session)


def test_no_factors():
    data = make_recordings(2000, 1, 1, n_dimensions=3, n_speaker_factors=0, n_session_factors=0, seed=4)
    np.testing.assert_allclose(np.cov(data.X.T), np.linalg.inv(data.model.W[0]), atol=0.06)
    none = make_recordings(0, **SMALL)
    assert none.X.shape == (0, 4)
    assert len(none.speaker) == len(none.session) == 0


def test_one_dimension():
    data = make_recordings(5, n_dimensions=1, n_speaker_factors=1, n_session_factors=1)
    assert data.X.shape[1] == 1


def test_docstrings():
    result = doctest.testmod(datasets)
    assert (result.failed, result.attempted > 0) == (0, True)
