"""Shrinkage and ranks chosen by the likelihood of held-out speakers (by their trials: test_decision.py)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from duoplda import PLDA, DuopldaError, Statistics
from duoplda.datasets import make_recordings
from duoplda.model import em
from duoplda.model import shrinkage as shr
from duoplda.model.parameters import Model
from duoplda.selection import held_out


def data(n=30, seed=0, **more):
    options = dict(n_dimensions=12, n_speaker_factors=8, n_session_factors=12, **more)
    return make_recordings(n, (2, 5), (1, 4), seed=seed, **options)


AUTO = {"shrinkage": "auto", "criterion": "likelihood"}


def covariances(plda):
    W = plda.noise_precision_.reshape(-1, plda.n_features_in_, plda.n_features_in_)
    V, U = plda.speaker_loadings_, plda.session_loadings_
    return V @ V.T, U @ U.T, np.linalg.inv(W)


def test_the_formula():
    X, speaker, session, _ = data()
    ml = PLDA().fit(X, speaker, session=session)
    shrunk = PLDA(shrinkage=(0.5, 0.2, 0.1)).fit(X, speaker, session=session)
    T = np.cov(X.T, bias=True)
    for a, before, after in zip((0.5, 0.2, 0.1), covariances(ml), covariances(shrunk), strict=True):
        before, after = before.reshape(12, 12), after.reshape(12, 12)
        size = np.trace(np.linalg.solve(T, before)) / 12
        np.testing.assert_allclose(after, (1 - a) * before + a * size * T, rtol=1e-8, atol=1e-10)
    assert tuple(shrunk.shrinkage_) == (0.5, 0.2, 0.1, 0.0)
    np.testing.assert_array_equal(PLDA(shrinkage=0.0).fit(X, speaker, session=session).mean_, ml.mean_)


def test_kinds_move_towards_each_other_first():
    rng = np.random.default_rng(0)
    p = oracle.random_model(rng, 3, 2, 2, K=2)
    model = Model(p.mu, p.V, p.U, p.W, np.arange(2))
    N = np.array([30.0, 10.0])
    T = np.diag([1.0, 2.0, 3.0])
    out = shr.Shrinker(model, T, N)(shr.Shrinkage(0, 0, 0.25, 0.5))
    noise = np.linalg.inv(p.W)
    mean = 0.75 * noise[0] + 0.25 * noise[1]
    for k, c in enumerate((0.5 / (0.5 + 0.5 * 30 / 20), 0.5 / (0.5 + 0.5 * 10 / 20))):
        want = (1 - c) * noise[k] + c * mean
        want = 0.75 * want + 0.25 * np.trace(np.linalg.solve(T, want)) / 3 * T
        np.testing.assert_allclose(np.linalg.inv(out.W[k]), want, rtol=1e-10)


def test_densities_of_shrunk_parameters_are_the_oracles():
    X, speaker, session, _ = data(10)
    plda = PLDA(shrinkage=(0.5, 0.1, 0.1)).fit(X, speaker, session=session)
    p = oracle.Params(plda.channel_means_, plda.speaker_loadings_, plda.session_loadings_, plda.noise_precision_[None])
    d = oracle.Data(X, speaker, session, np.zeros(len(X), int))
    total = plda.partition_log_likelihood(X, speaker, session)
    assert total == pytest.approx(float(np.sum(oracle.log_likelihoods(p, d))), rel=1e-10)


def test_affine_maps_do_not_matter():
    X, speaker, session, _ = data()
    rng = np.random.default_rng(1)
    A, b = rng.normal(size=(12, 12)), rng.normal(size=12) * 10
    one, two = (PLDA(**AUTO).fit(Z, speaker, session=session) for Z in (X, X @ A.T + b))
    assert one.shrinkage_ == two.shrinkage_
    llr = [p.llr(p.enroll(Z, speaker, session), p.enroll(Z[:5], range(5))) for p, Z in ((one, X), (two, X @ A.T + b))]
    np.testing.assert_allclose(llr[0], llr[1], rtol=1e-3, atol=1e-2)  # EM stops at 1e-6 nats, not at the optimum


def test_auto_is_the_best_that_held_out_speakers_saw():
    X, speaker, session, _ = data()
    plda = PLDA(**AUTO).fit(X, speaker, session=session)
    assert plda.shrinkage_path_[plda.shrinkage_] == max(plda.shrinkage_path_.values())
    assert plda.shrinkage_.speaker > 0  # 30 speakers for 12 dimensions
    # By hand: folds from the statistics, models from the others, likelihoods by the estimator.
    stats = Statistics.from_arrays(X, speaker, session, n_folds=5)
    total = 0.0
    for f in range(5):
        mine = np.isin(speaker, stats.folds[f].speaker_ids)
        trained = PLDA(shrinkage=tuple(plda.shrinkage_)[:3], tol=1e-4).fit(
            X[~mine], speaker[~mine], session=session[~mine]
        )
        total += trained.partition_log_likelihood(X[mine], speaker[mine], session[mine])
    assert plda.shrinkage_path_[plda.shrinkage_] == pytest.approx(total / len(X), abs=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_no_step_on_the_grid_goes_further_up(seed):
    X, speaker, session, _ = data(25, seed)
    stats = Statistics.from_arrays(X, speaker, session, n_folds=5)
    train = PLDA(shrinkage=0.0, tol=1e-4)
    folds = held_out.hold_out(stats, lambda part: train.fit_statistics(part).model_)
    found = held_out.HeldOutLikelihood(folds, held_out.guess_shrinkage(stats))
    best = found.shrinkage(("speaker", "session", "noise")).shrinkage
    assert found.path[best] == max(found.path.values())
    for name in ("speaker", "session", "noise"):
        tried = [getattr(a, name) for a in found.path if a._replace(**{name: getattr(best, name)}) == best]
        assert min(tried) == 0 or min(tried) < getattr(best, name)  # steps were taken on both sides
        assert max(tried) == 1 or max(tried) > getattr(best, name)


def test_the_guess_goes_to_none_with_the_number_of_speakers():
    amounts = []
    for n in (5, 50, 500):
        X, speaker, session, _ = data(n)
        amounts.append(held_out.guess_shrinkage(Statistics.from_arrays(X, speaker, session))[:3])
        n_of = [len(np.unique(labels)) for labels in (speaker, session)] + [len(X)]
        want = [12 / (12 + m) for m in np.diff(n_of, prepend=0)]
        assert amounts[-1] == pytest.approx(np.clip(want, 0.005, 0.95), abs=5e-4)
    assert (np.diff(amounts, axis=0) < 0).all()


def test_auto_against_ml_on_new_speakers_and_with_many_speakers():
    gains = {}
    for n in (20, 1000):
        train = data(n, seed=1)
        test = make_recordings(200, 3, 2, model=train.model, seed=2)
        score = {}
        for name, options in (("ml", {}), ("auto", AUTO)):
            plda = PLDA(**options).fit(train.X, train.speaker, session=train.session)
            score[name] = plda.score(test.X, test.speaker, test.session)
        gains[n] = score["auto"] - score["ml"]
    assert gains[20] > 0.05
    assert gains[1000] > -1e-3  # and goes to none
    assert max(plda.shrinkage_) <= 0.05


def test_ranks_by_held_out_speakers():
    train = make_recordings(
        400, (2, 5), (2, 4), n_dimensions=20, n_speaker_factors=3, n_session_factors=4, channel_variance=0.2, seed=0
    )
    for criterion in ("likelihood", "decision"):
        plda = PLDA("auto", "auto", criterion=criterion).fit(train.X, train.speaker, session=train.session)
        assert 3 <= plda.speaker_loadings_.shape[1] <= 6
        assert 4 <= plda.session_loadings_.shape[1] <= 8
    half = PLDA(20, "auto").fit(train.X, train.speaker, session=train.session)
    assert half.speaker_loadings_.shape[1] == 20


def test_statistics_alone_are_enough_and_shards_agree_on_folds():
    X, speaker, session, _ = data(40)
    whole = PLDA(**AUTO).fit(X, speaker, session=session)
    some = np.isin(speaker, np.unique(speaker)[::3])
    shards = [Statistics.from_arrays(X[m], speaker[m], session[m], n_folds=5) for m in (some, ~some)]
    joined = PLDA(**AUTO).fit_statistics(shards[0] + shards[1])
    assert joined.shrinkage_ == whole.shrinkage_
    np.testing.assert_allclose(joined.noise_precision_, whole.noise_precision_, rtol=1e-6)
    with pytest.raises(DuopldaError, match="n_folds=5"):
        PLDA(**AUTO).fit_statistics(Statistics.from_arrays(X, speaker, session))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda X: X[:, [0, 1, 2, 2]], "copies of each other"),
        (lambda X: np.column_stack([X[:, :3], np.ones(len(X))]), "constant"),
        (lambda X: np.tile(X, 9), "only"),
    ],
)
@pytest.mark.filterwarnings("ignore:trials of held-out speakers cost")
def test_singular_data_train_with_shrinkage_and_say_so(spoil, message):
    X, speaker, session, _ = data(6)
    Z = spoil(X)
    with pytest.raises(DuopldaError, match=message):
        PLDA().fit(Z, speaker, session=session)
    with pytest.warns(UserWarning, match=message):
        plda = PLDA(shrinkage="auto").fit(Z, speaker, session=session)
    assert np.linalg.eigvalsh(plda.noise_precision_).min() > 0
    assert np.isfinite(plda.llr(plda.enroll(Z, speaker, session), plda.enroll(Z[:3], range(3)))).all()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(2, 25),
    d=st.integers(1, 6),
    speakers=st.integers(2, 8),
    kinds=st.integers(1, 3),
    duplicate=st.booleans(),
    constant=st.booleans(),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_any_labelled_data_train(seed, n, d, speakers, kinds, duplicate, constant, scale):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * scale + 3 * scale
    if duplicate:
        X[n // 2 :] = X[: n - n // 2]
    if constant:
        X[:, 0] = 1.0
    speaker = rng.integers(0, speakers, n)
    speaker[:2] = [0, 1]
    session = speaker * 100 + rng.integers(0, 3, n)
    plda = PLDA(shrinkage="auto").fit(X, speaker, session=session, channel=rng.integers(0, kinds, n))
    for name in ("mean_", "speaker_loadings_", "session_loadings_", "noise_precision_"):
        assert np.isfinite(getattr(plda, name)).all()
    assert np.linalg.eigvalsh(plda.noise_precision_).min() > 0
    assert np.isfinite(plda.llr(plda.enroll(X, speaker, session), plda.enroll(X, np.arange(n)))).all()


@pytest.mark.parametrize("bad", ["none", 2, (0.1, 0.2), (0, 0, -1), [0.1, 0.1, float("nan")]])
def test_shrinkage_that_is_none(bad):
    X, speaker, session, _ = data(6)
    with pytest.raises(DuopldaError, match="shrinkage="):
        PLDA(shrinkage=bad).fit(X, speaker, session=session)


def test_the_prior_of_kinds_is_climbed_too():
    rng = np.random.default_rng(3)
    p = oracle.random_model(rng, 4, 3, 4, K=3)
    d = oracle.random_data(rng, p, 15)
    stats = Statistics.from_arrays(d.X, d.speaker, d.session, d.kind)
    for accelerate in (False, True):
        fit = em.fit(stats, em.moment_start(stats, 3, 4), nu=20.0, accelerate=accelerate, max_iter=60, tol=0)
        assert np.diff(fit.log_likelihoods).min() > -1e-8 * abs(fit.log_likelihoods[-1])
