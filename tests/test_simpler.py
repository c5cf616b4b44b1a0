"""Statistics of simpler models, and the model that held-out speakers choose."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import oracle
from duoplda import PLDA, Backend, DuopldaError, Statistics
from duoplda.datasets import make_recordings
from duoplda.model import simpler


@pytest.fixture(scope="module")
def ragged():
    rng = np.random.default_rng(5)
    return oracle.random_data(rng, oracle.random_model(rng, 4, 2, 3, K=3), 12)


def same(a: Statistics, b: Statistics) -> None:
    """As b, about whatever offset."""
    a = a.about(b.offset)
    assert a.speaker_ids.tolist() == b.speaker_ids.tolist()
    assert a.types.tolist() == b.types.tolist()
    np.testing.assert_array_equal(a.counts, b.counts)
    size = float(np.abs(b.S).max())
    np.testing.assert_allclose(a.within, b.within, atol=1e-10 * size)
    for x, y in zip(a.blocks, b.blocks, strict=True):
        np.testing.assert_allclose(x.A[np.argsort(x.speaker)], y.A[np.argsort(y.speaker)], atol=1e-10 * size)
        np.testing.assert_allclose(x.T, y.T, atol=1e-10 * size)


@pytest.mark.parametrize("n_folds", [0, 3])
def test_simpler_statistics_are_those_of_fewer_labels(ragged, n_folds):
    d, folds = ragged, {"n_folds": n_folds}
    stats = Statistics.from_arrays(d.X, d.speaker, d.session, d.kind, **folds)
    found = {
        "kinds": stats,
        "two-source": Statistics.from_arrays(d.X, d.speaker, d.session, **folds),
        "plain": Statistics.from_arrays(d.X, d.speaker, **folds),
    }
    assert simpler.possible(stats) == list(simpler.MODELS)
    for name, want in found.items():
        made = simpler.of(name, stats)
        same(made, want)
        for a, b in zip(made.folds, want.folds, strict=True):
            same(a, b)
    same(simpler.without_sessions(stats), Statistics.from_arrays(d.X, d.speaker, None, d.kind))


def test_a_model_by_name_is_that_of_fewer_labels(ragged):
    d = ragged
    options = {"shrinkage": (0.5, 0.2, 0.2)}
    for name, labels in {"two-source": {"session": d.session}, "plain": {}}.items():
        a = PLDA(model=name, **options).fit(d.X, d.speaker, session=d.session, channel=d.kind)
        b = PLDA(**options).fit(d.X, d.speaker, **labels)
        assert a.session_loadings_.shape == b.session_loadings_.shape
        assert len(a.channels_) == 1
        np.testing.assert_allclose(a.noise_precision_, b.noise_precision_, rtol=1e-6)
        np.testing.assert_allclose(a.speaker_loadings_, b.speaker_loadings_, rtol=1e-5, atol=1e-8)


def draw(kind: str, n=80):
    """Data of which one model is true: the channels of a session are alike, or differ, or sessions do not matter."""
    labels = {"n_dimensions": 10, "n_speaker_factors": 6, "seed": 3}
    X, speaker, session, _ = make_recordings(n, 4, 3, n_session_factors=0 if kind == "plain" else 8, **labels)
    rng = np.random.default_rng(0)
    channel = np.tile(np.array(["clean", "noisy", "phone"]), len(X) // 3)
    if kind == "kinds":
        X = X + rng.normal(size=X.shape) * np.select([channel == "noisy", channel == "phone"], [4.0, 1.5], 0.0)[:, None]
    return X, speaker, session, channel


@pytest.mark.parametrize("truth", ["kinds", "plain"])
@pytest.mark.parametrize("options", [{}, {"criterion": "likelihood"}, {"shrinkage": (0.1, 0.1, 0.1)}])
def test_a_true_model_is_found(truth, options):
    X, speaker, session, channel = draw(truth)
    plda = PLDA(model="auto", **{"shrinkage": "auto", **options}).fit(X, speaker, session=session, channel=channel)
    costs = plda.model_costs_
    assert set(costs) == set(simpler.MODELS)
    assert list(costs.values())[1:] == sorted(list(costs.values())[1:])
    if truth == "kinds" or "criterion" not in options:
        assert next(iter(costs)) == truth
    else:  # all three can be true, and the likelihood says nothing of chance
        assert max(costs.values()) - min(costs.values()) < 0.05
    single = PLDA(model=next(iter(costs)), **{"shrinkage": "auto", **options})
    single.fit(X, speaker, session=session, channel=channel)
    np.testing.assert_allclose(single.noise_precision_, plda.noise_precision_, rtol=1e-9)  # sums by fold, or of all
    if options == {}:
        assert single.cost_ == plda.cost_ == next(iter(costs.values()))


def test_a_chosen_model_scores_with_all_labels_and_is_kept(tmp_path):
    X, speaker, session, channel = draw("plain")
    backend = Backend(plda=PLDA(model="auto", shrinkage="auto")).fit(X, speaker, session, channel)
    backend.save(tmp_path / "m.safetensors")
    again = Backend.load(tmp_path / "m.safetensors")
    assert again.plda_.model_costs_ == backend.plda_.model_costs_
    assert list(again.plda_.model_costs_) == list(backend.plda_.model_costs_)
    llr = [b.llr(b.enroll(X, speaker, session, channel), b.enroll(X[:5], range(5))) for b in (backend, again)]
    np.testing.assert_array_equal(*llr)


def test_where_nothing_can_be_compared():
    X, speaker, session, channel = draw("kinds", 6)
    two = np.isin(speaker, np.unique(speaker)[:2])
    with pytest.warns(UserWarning, match="too few speakers") as seen:
        plda = PLDA(model="auto", shrinkage=0.5).fit(X[two], speaker[two], session=session[two], channel=channel[two])
    assert seen[0].filename == __file__
    assert len(plda.channels_) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert PLDA(model="auto", shrinkage=0.5).fit(X, speaker).model_costs_ == {}
    with pytest.raises(DuopldaError, match="needs kinds of channels"):
        PLDA(model="kinds").fit(X, speaker, session=session)
    with pytest.raises(DuopldaError, match="needs sessions with several"):
        PLDA(model="two-source").fit(X, speaker)
    with pytest.raises(DuopldaError, match="model="):
        PLDA(model="best").fit(X, speaker, session=session)


def test_what_statistics_chose_is_kept_in_a_file(tmp_path):
    X, speaker, session, channel = draw("kinds", 30)
    stats = Statistics.from_arrays(X, speaker, session, channel, n_folds=5)
    plda = PLDA(model="auto", shrinkage="auto").fit_statistics(stats)
    plda.save(tmp_path / "m.safetensors")
    again = PLDA.load(tmp_path / "m.safetensors")
    for name in ("scales_", "cost_", "model_costs_", "channel_costs_"):
        assert getattr(again, name) == getattr(plda, name)
    assert plda.channel_costs_ == {}
