"""Training: every step monotone, the source's EM to nine digits, other people's fit, the truth from many recordings."""

import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.linalg import subspace_angles
from sklearn.exceptions import ConvergenceWarning
from statsmodels.regression.mixed_linear_model import MixedLM

import oracle
from conftest import LIBRARIES
from duoplda import PLDA, DuopldaError, Statistics
from duoplda.arrays import take, to_numpy
from duoplda.datasets import make_recordings
from duoplda.model import anova, em
from duoplda.model.parameters import Model
from duoplda.observer import SILENT, Observer, WithCallback

# array-api-strict is slow: where a test takes many steps, NumPy and torch are enough.
fast_library = pytest.mark.parametrize("library", [n for n in LIBRARIES if n != "array_api_strict"], indirect=True)

SHAPES = [(3, 2, 2), (1, 1, 1), (4, 4, 4), (3, 1, 0), (4, 1, 3)]  # d, ny, nx


def model_of(p, put=np.asarray):
    return Model(put(p.mu), put(p.V), put(p.U), put(p.W), np.arange(len(p.mu)))


def params_of(model):
    return oracle.Params(*(to_numpy(a) for a in (model.mu, model.V, model.U, model.W)))


def gather(data, K=1, put=np.asarray):
    return Statistics.from_arrays(put(data.X), data.speaker, data.session, data.kind if K > 1 else None)


def problem(seed, shape=(4, 2, 2), K=1, n_speakers=8, sessions=(1, 4), recordings=(1, 9)):
    rng = np.random.default_rng(seed)
    p = oracle.random_model(rng, *shape, K)
    return rng, p, oracle.random_data(rng, p, n_speakers, sessions, recordings)


def bad_start(rng, shape, K, X):
    """Means up to a thousand off; loadings and noise wrong by factors of up to ten thousand, in shape and in size."""
    d, ny, nx = shape
    mu = X.mean(axis=0) + 10 ** rng.uniform(-1, 3) * rng.normal(size=(K, d))
    V, U = (10 ** rng.uniform(-2, 2) * rng.normal(size=(d, n)) for n in (ny, nx))
    W = np.empty((K, d, d))
    for k in range(K):
        Q = np.linalg.qr(rng.normal(size=(d, d)))[0]
        W[k] = 10 ** rng.uniform(-2, 2) * (Q * 10 ** rng.uniform(-2, 2, d)) @ Q.T
    return Model(mu, V, U, (W + W.mT) / 2, np.arange(K))


def assert_never_falls(log_likelihoods, digits=1e-11):
    """Each step by itself, but for rounding in sums of many thousands (measured: 3e-14 of them, 3e-12 with kinds)."""
    steps = np.diff(log_likelihoods)
    worst = np.min(steps / np.abs(log_likelihoods[:-1]))
    assert worst > -digits, f"step {np.argmin(steps)} lost {-steps.min():.3g} nats"


# -- every step --------------------------------------------------------------------------------------------------------

MODES = {
    "ML and MD": {"accelerate": False},
    "ML only": {"accelerate": False, "minimum_divergence": False},
    "accelerated": {"accelerate": True},
    "accelerated, ML only": {"accelerate": True, "minimum_divergence": False},
    "kinds": {"accelerate": False, "K": 3},
    "kinds, accelerated": {"accelerate": True, "K": 3},
    "kinds with a prior": {"accelerate": True, "K": 3, "nu": 20.0},
}


def ln_prior(model, nu):
    """Of kinds about their mean, up to a constant: nu/2 (sum ln|W_k| - K ln|mean W|)."""
    return nu / 2 * (np.linalg.slogdet(model.W)[1].sum() - len(model.W) * np.linalg.slogdet(model.W.mean(axis=0))[1])


@fast_library
@pytest.mark.parametrize("mode", MODES)
def test_every_step_is_monotone_from_fifty_bad_starts(library, mode):
    options = dict(MODES[mode])
    K = options.pop("K", 1)
    for seed in range(50):
        shape = SHAPES[seed % len(SHAPES)]
        rng, _, data = problem(seed, shape, K, n_speakers=6, sessions=(1, 3))
        start = bad_start(rng, shape, K, data.X)
        stats = gather(data, K, library.put)
        fit = em.fit(stats, model_of(start, library.put), tol=-np.inf, max_iter=15, **options)
        assert_never_falls(fit.log_likelihoods)
        assert fit.log_likelihoods[-1] > fit.log_likelihoods[0]
        assert len(fit.log_likelihoods) == 16
        if seed < 10:
            # The starts are so bad that a covariance spans up to ten orders of magnitude: 1e-9 measured.
            for model, reported, digits in ((start, 0, 1e-8), (fit.model, -1, 1e-9)):
                p = params_of(model)
                total = oracle.log_likelihoods(p, data).sum() + ln_prior(p, options.get("nu", 0.0))
                assert fit.log_likelihoods[reported] == pytest.approx(total, rel=digits)


@fast_library
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("seed", range(10))
def test_each_half_of_a_step_is_monotone_by_itself(library, seed, K):
    shape = SHAPES[seed % len(SHAPES)]
    rng, _, data = problem(seed, shape, K)
    stats = gather(data, K, library.put)
    e_step = em.EStep(stats)
    for half in ("ML", "MD"):
        model = model_of(bad_start(rng, shape, K, data.X), library.put)
        trace = []
        for _ in range(8):
            moments = e_step(model)
            trace.append(moments.ln_likelihood)
            model = em.ml_step(model, moments, stats) if half == "ML" else em.md_step(model, moments)
        assert_never_falls(trace)
        assert trace[-1] > trace[0]


def test_expectations_are_those_of_the_dense_posterior(library):
    """R, C and rho of the E-step, one recording and one session at a time, kinds included."""
    for K in (1, 3):
        _, p, data = problem(3, (3, 2, 2), K)
        stats = gather(data, K, library.put)
        moments = em.EStep(stats)(model_of(p, library.put))
        offset = library.get(stats.offset)
        q = 5
        R, C, rho = np.zeros((K, q, q)), np.zeros((K, 3, q)), np.zeros((q, q))
        y1, yy = np.zeros(2), np.zeros((2, 2))
        for i in np.unique(data.speaker):
            own = data.rows(data.speaker == i)
            hidden = oracle.posterior(p, own)
            mean, covariance = hidden.y(0)
            y1 += mean
            yy += covariance + np.outer(mean, mean)
            for j, name in enumerate(np.unique(own.session)):
                at = np.r_[0:2, np.arange(*hidden.at_x(j).indices(len(hidden.mean)))]
                t = np.append(hidden.mean[at], 1.0)
                tt = np.outer(t, t)
                tt[:-1, :-1] += hidden.covariance[np.ix_(at, at)]
                rho += tt
                for row, k in zip(own.X[own.session == name], own.kind[own.session == name], strict=True):
                    R[k] += tt
                    C[k] += np.outer(row - offset, t)
        got_R = take(moments.grouped, moments.group)
        for got, expected in ((got_R, R), (moments.C, C), (moments.rho, rho), (moments.y, y1), (moments.yy, yy)):
            np.testing.assert_allclose(library.get(got), expected, rtol=1e-10, atol=1e-10)
        assert len(np.unique(data.speaker)) == moments.M


# -- the source, loop by loop ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("minimum_divergence", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_ten_iterations_are_the_source_loop_by_loop(library, shape, minimum_divergence):
    """From the truth and from elsewhere; parameters to 1e-9 (measured: 1e-10; the source sums squares about zero)."""
    rng, p, data = problem(4, shape, n_speakers=12)
    elsewhere = oracle.random_model(rng, *shape)
    for start in (p, oracle.Params(p.mu + 1, elsewhere.V, elsewhere.U, elsewhere.W)):
        options = {"accelerate": False, "minimum_divergence": minimum_divergence}
        stats = gather(data, put=library.put)
        fit = em.fit(stats, model_of(start, library.put), tol=-np.inf, max_iter=10, **options)
        direct = start
        for step in range(10):
            assert oracle.log_likelihoods(direct, data).sum() == pytest.approx(fit.log_likelihoods[step], rel=1e-10)
            direct = oracle.em_iteration(direct, data, minimum_divergence)
        for name in ("mu", "V", "U", "W"):
            got, expected = library.get(getattr(fit.model, name)), getattr(direct, name)
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-9, err_msg=name)
        assert np.abs(library.get(fit.model.V) - start.V).max() > 0.01  # ten iterations have gone somewhere


@pytest.mark.parametrize(("minimum_divergence", "nu"), [(True, 0.0), (False, 0.0), (True, 15.0)])
@pytest.mark.parametrize("shape", [(2, 1, 1), (3, 1, 2), (1, 1, 1)])
def test_ten_iterations_of_kinds_are_the_direct_ones(library, shape, minimum_divergence, nu):
    """At most nine loadings: ten conjugate-gradient steps solve for them exactly."""
    _, p, data = problem(5, shape, K=3, n_speakers=10)
    options = {"accelerate": False, "minimum_divergence": minimum_divergence, "nu": nu}
    start = oracle.Params(p.mu + 0.5, 1.3 * p.V, 0.7 * p.U, 2 * p.W)
    stats = gather(data, 3, library.put)
    fit = em.fit(stats, model_of(start, library.put), tol=-np.inf, max_iter=10, **options)
    direct = start
    for _ in range(10):
        direct = oracle.em_iteration_kinds(direct, data, minimum_divergence, nu)
    for name in ("mu", "V", "U", "W"):
        got = library.get(getattr(fit.model, name))
        np.testing.assert_allclose(got, getattr(direct, name), rtol=1e-9, atol=1e-9, err_msg=name)


def test_the_two_direct_algorithms_agree():
    """The source's formulas and the dense posterior's, for one kind: the tests' own check."""
    _, p, data = problem(6, (3, 2, 2))
    a, b = oracle.em_iteration(p, data), oracle.em_iteration_kinds(p, data)
    for name in ("mu", "V", "U", "W"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), rtol=1e-10, atol=1e-10)


def test_the_printed_sign_of_the_transform_lowers_the_likelihood():
    """Erratum 1, for the record: U C_x and (V + UH) C_y, not their inverse transposes."""
    _, _, data = problem(7)
    stats = gather(data)
    start = em.moment_start(stats, 2, 2)
    model = Model(start.mu, 2 * start.V, 2 * start.U, start.W)
    e_step = em.EStep(stats)
    moments = e_step(model)
    right = em.md_step(model, moments)
    C_y = np.linalg.cholesky(moments.yy / moments.M - np.outer(moments.y, moments.y) / moments.M**2)
    C_x = np.linalg.pinv(model.U) @ right.U
    V = right.V @ np.linalg.inv(C_y)  # V + UH
    printed = Model(right.mu, V @ np.linalg.inv(C_y).T, model.U @ np.linalg.inv(C_x).T, right.W)
    assert e_step(printed).ln_likelihood < moments.ln_likelihood - 1
    assert e_step(right).ln_likelihood > moments.ln_likelihood + 1


def test_the_estimator_runs_this_em():
    _, _, data = problem(8, (3, 2, 2), n_speakers=12)
    options = {"n_speaker_factors": 2, "n_session_factors": 2, "tol": 0, "accelerate": False}
    fits = []
    for max_iter in (0, 10):
        with pytest.warns(ConvergenceWarning, match=f"did not converge in {max_iter} iterations"):
            fits.append(PLDA(max_iter=max_iter, **options).fit(data.X, data.speaker, session=data.session))
    direct = oracle.Params(
        fits[0].mean_[None], fits[0].speaker_loadings_, fits[0].session_loadings_, fits[0].noise_precision_[None]
    )
    lns = [oracle.log_likelihoods(direct, data).sum()]
    for _ in range(10):
        direct = oracle.em_iteration(direct, data)
        lns.append(oracle.log_likelihoods(direct, data).sum())
    plda = fits[1]
    np.testing.assert_allclose(plda.log_likelihoods_, lns, rtol=1e-10)
    assert (plda.n_iter_, plda.n_evaluations_, plda.converged_) == (10, 11, False)
    np.testing.assert_allclose(plda.mean_, direct.mu[0], rtol=1e-9)
    np.testing.assert_allclose(plda.speaker_loadings_, direct.V, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(plda.session_loadings_, direct.U, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(plda.noise_precision_, direct.W[0], rtol=1e-9, atol=1e-9)
    again = PLDA(**{**options, "tol": 1e-6}).fit_statistics(gather(data))
    assert again.converged_
    assert plda.score(data.X, data.speaker, data.session) == pytest.approx(lns[-1] / len(data), rel=1e-10)


# -- other people's fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_one_dimension_is_statsmodels_nested_random_effects(seed):
    """phi ~ 1 + (1 | speaker) + (1 | speaker:session) by maximum likelihood, of statsmodels' own making."""
    rng = np.random.default_rng(seed)
    p = oracle.Params(np.array([[50.0]]), np.array([[1.5]]), np.array([[1.0]]), np.array([[[1 / 0.49]]]))
    data = oracle.random_data(rng, p, 30, (1, 4), (1, 5))
    table = pd.DataFrame({"phi": data.X[:, 0], "speaker": data.speaker, "session": data.session})
    theirs = MixedLM.from_formula(
        "phi ~ 1", groups="speaker", re_formula="1", vc_formula={"session": "0 + C(session)"}, data=table
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its Hessian, which is not looked at
        theirs = theirs.fit(reml=False, method=["bfgs", "powell"], gtol=1e-8)
    plda = PLDA(tol=1e-13, max_iter=3000).fit(data.X, data.speaker, session=data.session)
    ours = [
        plda.mean_[0],
        plda.speaker_loadings_[0, 0] ** 2,
        plda.session_loadings_[0, 0] ** 2,
        1 / plda.noise_precision_[0, 0],
    ]
    found = [theirs.fe_params.iloc[0], theirs.cov_re.iloc[0, 0], theirs.vcomp[0], theirs.scale]
    # Its likelihood at its parameters is ours there: two implementations of one density.
    there = PLDA.from_parameters([found[0]], [[found[1] ** 0.5]], [[found[2] ** 0.5]], [[1 / found[3]]])
    at_theirs = there.partition_log_likelihood(data.X, data.speaker, data.session)
    assert at_theirs == pytest.approx(theirs.llf, rel=1e-12)
    # The same maximum; its optimiser stops where the slope is small, on a flat top (measured: 4e-13 nats, 2e-7).
    assert plda.log_likelihoods_[-1] == pytest.approx(theirs.llf, abs=1e-9)
    np.testing.assert_allclose(ours, found, rtol=1e-5)


# -- the truth ---------------------------------------------------------------------------------------------------------


def test_recovery_from_twenty_thousand_recordings():
    """1,000 speakers of 5 sessions of 4 recordings: subspaces, variances and mean come back.

    A covariance estimated from n draws is wrong by about sqrt(2 / n) of itself: n is 1,000 for VV', 4,000 for UU',
    15,000 for W^-1. The tolerances are three such deviations.
    """
    data = make_recordings(1000, 5, 4, n_dimensions=10, n_speaker_factors=3, n_session_factors=2, mean=50.0, seed=11)
    assert len(data.X) == 20_000
    plda = PLDA(3, 2).fit(data.X, data.speaker, session=data.session)
    assert plda.converged_
    truth = data.model
    for got, true, n in (
        (plda.speaker_loadings_ @ plda.speaker_loadings_.T, truth.V @ truth.V.T, 1000),
        (plda.session_loadings_ @ plda.session_loadings_.T, truth.U @ truth.U.T, 4000),
        (np.linalg.inv(plda.noise_precision_), np.linalg.inv(truth.W[0]), 15_000),
    ):
        assert np.linalg.norm(got - true) < 3 * np.sqrt(2 / n) * np.linalg.norm(true)
        assert np.trace(got) == pytest.approx(np.trace(true), rel=3 * np.sqrt(2 / n))
    assert np.degrees(subspace_angles(plda.speaker_loadings_, truth.V)).max() < 4.0
    assert np.degrees(subspace_angles(plda.session_loadings_, truth.U)).max() < 2.0
    total = truth.V @ truth.V.T + (truth.U @ truth.U.T + np.linalg.inv(truth.W[0]) / 4) / 5  # of a speaker's mean
    assert (np.abs(plda.mean_ - truth.mu[0]) < 4 * np.sqrt(np.diagonal(total) / 1000)).all()
    # The maximum is above the truth, and by what Wilks' theorem says: half a nat for each free parameter.
    at_truth = em.EStep(Statistics.from_arrays(data.X, data.speaker, data.session))(truth).ln_likelihood
    free = 10 + (30 - 3) + (20 - 1) + 55
    gain = plda.log_likelihoods_[-1] - at_truth
    assert abs(gain - free / 2) < 4 * np.sqrt(free / 2)


def test_recovery_of_kinds():
    """Each kind's mean and noise, from sessions in which kinds are mixed."""
    rng = np.random.default_rng(12)
    p = oracle.random_model(rng, 3, 1, 1, K=3)
    speaker = np.repeat(np.arange(400), 20)
    session = np.arange(8000) // 5
    kind = rng.integers(0, 3, 8000)
    data = oracle.draw(rng, p, speaker, session, kind)
    stats = gather(data, 3)
    fit = em.fit(stats, em.moment_start(stats, 1, 1))
    assert fit.converged
    for k in range(3):
        noise, true = np.linalg.inv(fit.model.W[k]), np.linalg.inv(p.W[k])
        assert np.linalg.norm(noise - true) < 3 * np.sqrt(2 / 2000) * np.linalg.norm(true)
    assert np.degrees(subspace_angles(fit.model.V, p.V)).max() < 5.0
    assert np.degrees(subspace_angles(fit.model.U, p.U)).max() < 5.0
    # Differences between kinds' means: speakers and sessions cancel from them.
    for k in (1, 2):
        noise = np.diagonal(np.linalg.inv(p.W[0]) + np.linalg.inv(p.W[k]))
        difference = (fit.model.mu[k] - fit.model.mu[0]) - (p.mu[k] - p.mu[0])
        assert (np.abs(difference) < 4 * np.sqrt(noise / 2600)).all()


# -- a floor -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accelerate", [False, True])
@pytest.mark.parametrize("K", [1, 2])
def test_the_floor_holds_at_every_step_and_steps_stay_monotone(accelerate, K):
    for seed in (0, 3, 6):
        _, _, data = problem(seed, (4, 2, 2), K)
        stats = gather(data, K)
        for floor in (0.5, 1.0):
            start = em.random_start(stats, 2, 2, np.random.default_rng(0), floor)
            low = []

            def watch(iteration, ln, model, low=low):
                low.append(np.linalg.eigvalsh(np.linalg.inv(model.W)).min())

            fit = em.fit(
                stats,
                start,
                tol=-np.inf,
                max_iter=30,
                accelerate=accelerate,
                floor=floor,
                observer=WithCallback(watch, SILENT),
            )
            assert min(low) > floor * (1 - 1e-10)
            assert low[-1] < floor * (1 + 1e-10)  # and it is felt
            assert_never_falls(fit.log_likelihoods)


@pytest.mark.parametrize("accelerate", [False, True])
def test_a_floor_makes_singular_data_trainable(accelerate):
    """Fewer recordings than dimensions, and a column twice; the floor is a share of the mean variance."""
    _, _, data = problem(9, (6, 2, 2), n_speakers=4, sessions=(2, 2), recordings=(1, 2))
    X = np.column_stack([data.X, data.X[:, 0]])
    assert len(X) < 2 * X.shape[1]
    plda = PLDA(noise_floor=0.01, accelerate=accelerate, tol=1e-5).fit(X, data.speaker, session=data.session)
    floor = 0.01 * np.mean(np.var(X, axis=0))
    noise = np.linalg.eigvalsh(np.linalg.inv(plda.noise_precision_))
    assert noise.min() == pytest.approx(floor, rel=1e-11)
    assert_never_falls(plda.log_likelihoods_)
    assert np.isfinite(plda.transform(X)).all()


# -- few speakers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("init", ["moments", "random"])
def test_more_factors_than_speakers(init):
    _, _, data = problem(10, (6, 2, 2), n_speakers=3, sessions=(4, 5), recordings=(3, 6))
    plda = PLDA(init=init, random_state=0, tol=1e-5).fit(data.X, data.speaker, session=data.session)
    assert plda.speaker_loadings_.shape == plda.session_loadings_.shape == (6, 6)
    assert_never_falls(plda.log_likelihoods_)
    p = oracle.Params(plda.mean_[None], plda.speaker_loadings_, plda.session_loadings_, plda.noise_precision_[None])
    assert plda.log_likelihoods_[-1] == pytest.approx(oracle.log_likelihoods(p, data).sum(), rel=1e-10)
    enrolled = plda.enroll(data.X, data.speaker, data.session)
    tests = oracle.Data(data.X + 0.1, data.speaker, np.char.add("t", data.session), data.kind)
    scores = plda.llr(enrolled, plda.enroll(tests.X, tests.speaker, tests.session))
    np.testing.assert_allclose(scores, oracle.llr_matrix(p, data, tests), rtol=1e-10)


def test_without_session_factors_copies_are_sessions():
    """nx = 0 does not look at sessions: the fit is that of unlabelled sessions."""
    _, _, data = problem(11, (3, 2, 2), n_speakers=15)
    a = PLDA(2, 0, tol=1e-9).fit(data.X, data.speaker, session=data.session)
    b = PLDA(2, tol=1e-9).fit(data.X, data.speaker)
    assert b.session_loadings_.shape == (3, 0)
    assert a.log_likelihoods_[-1] == pytest.approx(b.log_likelihoods_[-1], rel=1e-10)
    np.testing.assert_allclose(a.noise_precision_, b.noise_precision_, rtol=1e-11)


# -- starts and speed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_the_moment_start_is_ahead_of_a_random_one(seed):
    data = make_recordings(60, n_dimensions=12, n_speaker_factors=4, n_session_factors=3, seed=seed)
    stats = Statistics.from_arrays(data.X, data.speaker, data.session)
    options = {"tol": -np.inf, "max_iter": 8, "accelerate": False}
    moments = em.fit(stats, em.moment_start(stats, 4, 3), **options).log_likelihoods
    random = em.fit(stats, em.random_start(stats, 4, 3, np.random.default_rng(seed)), **options).log_likelihoods
    assert moments[0] > random[1]
    assert moments[2] > random[5]
    assert (moments > random).all()


def test_moments_without_noise_are_the_truth():
    """Scatters expect what they say: averaged over draws, the analysis of variance gives the covariances back."""
    rng = np.random.default_rng(13)
    p = oracle.random_model(rng, 2, 1, 1)
    speaker, session, _ = oracle.ragged_labels(rng, 12)
    parts = []
    n = 100
    for _ in range(n):
        data = oracle.draw(rng, p, speaker, session)
        s = anova.scatters(gather(data))
        parts.append([s.within, s.session, s.speaker])
    mean, sd = np.mean(parts, axis=0), np.std(parts, axis=0) / np.sqrt(n)
    noise, UU, VV = np.linalg.inv(p.W[0]), p.U @ p.U.T, p.V @ p.V.T
    N, H, M = len(speaker), len(np.unique(session)), 12
    assert s.df == (N - H, H - M, M - 1)
    expected = [
        s.df[0] * noise,
        s.df[1] * noise + s.a * UU,
        s.df[2] * noise + s.b * UU + s.e * VV,
    ]
    assert (np.abs(mean - expected) < 4.5 * sd).all()


def slow_problem():
    """Much noise, few sessions, full rank: plain EM needs hundreds of iterations."""
    data = make_recordings(
        60, (1, 4), (1, 4), n_dimensions=5, n_speaker_factors=5, n_session_factors=5, speaker_variance=0.3, seed=6
    )
    stats = Statistics.from_arrays(data.X, data.speaker, data.session)
    return stats, em.moment_start(stats, 5, 5)


def test_acceleration_comes_to_the_same_end_sooner():
    stats, start = slow_problem()
    bold = em.fit(stats, start, tol=1e-9, max_iter=5000)
    plain = em.fit(stats, start, tol=1e-9, max_iter=5000, accelerate=False)
    assert bold.converged
    assert plain.converged
    assert plain.n_evaluations == len(plain.log_likelihoods)
    assert bold.n_evaluations < plain.n_evaluations
    assert bold.n_evaluations * 4 < plain.n_evaluations  # measured: 8 times fewer
    # Plain EM stops further from the end: its last steps are short, but there would be many of them.
    assert bold.log_likelihoods[-1] > plain.log_likelihoods[-1]
    assert bold.log_likelihoods[-1] - plain.log_likelihoods[-1] < 1e-6 * stats.n_recordings
    assert_never_falls(bold.log_likelihoods)
    B, b = (f.model.V @ f.model.V.T for f in (bold, plain))
    np.testing.assert_allclose(B, b, atol=2e-4)  # what 1e-7 nats a recording leave open; measured 4e-5


@pytest.mark.parametrize("tol", [1e-4, 1e-6])
@pytest.mark.parametrize("seed", [17, 21, 85, 96, 100, 109])
def test_converged_means_that_em_has_no_more_to_gain(seed, tol):
    """An accelerated step may gain little by bad luck: that is no reason to stop."""
    shape = [(3, 2, 2), (1, 1, 1), (4, 4, 4), (3, 1, 0), (6, 2, 3)][seed % 5]
    K = 1 if seed % 3 else 2
    rng, _, data = problem(seed, shape, K, n_speakers=20, recordings=(1, 5))
    stats = gather(data, K)
    for start in (bad_start(rng, shape, K, data.X), em.random_start(stats, *shape[1:], rng)):
        fit = em.fit(stats, start, tol=tol)
        assert fit.converged
        more = em.fit(stats, fit.model, tol=-np.inf, max_iter=1, accelerate=False)
        assert np.diff(more.log_likelihoods)[0] < 1.5 * tol * stats.n_recordings


@pytest.mark.parametrize("seed", range(6))
def test_the_end_is_not_lowered_by_rounding(seed):
    """With tol=0 EM runs until a step gains nothing; a step that loses by rounding is not taken."""
    stats = gather(problem(seed)[2], 1)
    fit = em.fit(stats, em.moment_start(stats, 2, 2), tol=0)
    assert fit.converged
    assert np.diff(fit.log_likelihoods).min() >= 0


def test_a_callback_can_end_training():
    stats, start = slow_problem()
    seen = []

    def stop_at_five(iteration, log_likelihood, model):
        seen.append((iteration, log_likelihood, model))
        return iteration == 5

    fit = em.fit(stats, start, observer=WithCallback(stop_at_five, SILENT))
    assert [s[0] for s in seen] == [1, 2, 3, 4, 5]
    assert not fit.converged
    assert len(fit.log_likelihoods) == 6
    assert fit.model is seen[-1][2]
    assert [s[1] for s in seen] == fit.log_likelihoods[1:].tolist()
    plda = PLDA(5, 5, callback=stop_at_five).fit_statistics(stats)  # no warning: it was asked for
    assert (plda.n_iter_, plda.converged_) == (5, False)


# -- training that was interrupted -------------------------------------------------------------------------------------

INTERRUPTED = {
    "one kind": {},
    "few factors": {"shape": (6, 3, 2)},
    "no session factors": {"shape": (5, 3, 0)},
    "kinds": {"K": 3, "nu": 2.0},
    "a floor": {"floor": 0.05},
    "plain": {"accelerate": False},
    "ML only": {"minimum_divergence": False, "shape": (17, 5, 3)},
}


class Keeper(Observer):
    """Keeps the state after each iteration as arrays, as a file would."""

    def __init__(self):
        self.saved, self.calls = [], []

    def iteration(self, iteration, log_likelihood, model):
        assert len(self.saved) == len(self.calls) + 1  # the state is offered first
        self.calls.append((iteration, log_likelihood))

    def state(self, state):
        self.saved.append({name: a.copy() for name, a in state.arrays().items()})


def test_after_a_rejected_step_ahead_em_goes_on_as_from_a_new_start():
    """What led to the rejected step is forgotten: it would lead there again."""
    rejected = 0
    for seed in (4, 5, 7):
        rng, _, data = problem(seed, (4, 4, 4), n_speakers=15)
        stats, keeper = gather(data), Keeper()
        whole = em.fit(stats, bad_start(rng, (4, 4, 4), 1, data.X), tol=1e-9, observer=keeper)
        evaluations = [1, *(int(saved["n_evaluations"]) for saved in keeper.saved)]
        for i in np.flatnonzero(np.diff(evaluations) == 2)[:-1]:  # both the step ahead and the plain one were looked at
            anew = em.fit(stats, em.State.from_arrays(keeper.saved[i], [0]).model, tol=1e-9)
            np.testing.assert_array_equal(anew.log_likelihoods, whole.log_likelihoods[i + 1 :])
            rejected += 1
    assert rejected > 8


@pytest.mark.parametrize("case", INTERRUPTED)
def test_training_goes_on_from_any_iteration_to_the_same_bits(case):
    options = {"tol": 0.0, "max_iter": 25, **INTERRUPTED[case]}
    shape, K = options.pop("shape", (4, 4, 4)), options.pop("K", 1)
    rng, _, data = problem(21, shape, K, n_speakers=15)
    stats, keeper = gather(data, K), Keeper()
    start = bad_start(rng, shape, K, data.X)
    whole = em.fit(stats, start, observer=keeper, **options)
    assert len(keeper.saved) == len(whole.log_likelihoods) - 1 >= 9  # enough to be interrupted in
    assert keeper.calls == list(enumerate(whole.log_likelihoods.tolist()))[1:]
    for saved in keeper.saved:
        again = Keeper()
        state = em.State.from_arrays(saved, start.kinds)
        rest = em.fit(stats, state, observer=again, **options)
        np.testing.assert_array_equal(rest.log_likelihoods, whole.log_likelihoods)
        for name in ("mu", "V", "U", "W"):
            np.testing.assert_array_equal(getattr(rest.model, name), getattr(whole.model, name))
        assert (rest.n_evaluations, rest.converged) == (whole.n_evaluations, whole.converged)
        assert again.calls == keeper.calls[len(state.trace) - 1 :]


@pytest.mark.parametrize("seed", [5, 7, 8])
def test_a_rejected_step_ahead_is_forgotten(seed):
    """From there EM goes on as if it had begun there: no step before has a say in where the next one leads."""
    rng, _, data = problem(seed, (4, 4, 4), n_speakers=15)
    stats, keeper = gather(data), Keeper()
    start = bad_start(rng, (4, 4, 4), 1, data.X)
    whole = em.fit(stats, start, tol=0, max_iter=25, observer=keeper)
    states = [em.State.from_arrays(saved, start.kinds) for saved in keeper.saved]
    rejected = [b for a, b in itertools.pairwise(states) if b.n_evaluations == a.n_evaluations + 2]
    assert len(rejected) >= 3
    for state in rejected:
        fresh = em.State(state.model, state.trace, state.n_evaluations)
        again = em.fit(stats, fresh, tol=0, max_iter=25)
        np.testing.assert_array_equal(again.log_likelihoods, whole.log_likelihoods)
        assert again.n_evaluations == whole.n_evaluations


def test_training_that_had_converged_does_not_go_on():
    _, _, data = problem(22)
    stats, keeper = gather(data), Keeper()
    whole = em.fit(stats, em.moment_start(stats, 2, 2), observer=keeper)
    assert whole.converged
    again = em.fit(stats, em.State.from_arrays(keeper.saved[-1], [0]))
    assert again.converged
    np.testing.assert_array_equal(again.log_likelihoods, whole.log_likelihoods)


def test_a_saved_state_that_is_damaged_is_refused():
    _, _, data = problem(22)
    stats, keeper = gather(data), Keeper()
    em.fit(stats, em.moment_start(stats, 2, 2), observer=keeper, max_iter=4)
    saved = keeper.saved[-1]
    for name, bad in (("V", saved["V"][:-1]), ("images", saved["images"][:, :-1]), ("steps", saved["steps"][:-1])):
        with pytest.raises(ValueError, match="do not fit together"):
            em.State.from_arrays({**saved, name: bad}, [0])
    with pytest.raises(ValueError, match="do not fit together"):
        em.State.from_arrays(saved, [0, 1])
    with pytest.raises(KeyError):
        em.State.from_arrays({name: a for name, a in saved.items() if name != "trace"}, [0])


def test_data_that_leave_no_noise_are_the_users_error():
    """Two recordings that are equal in each session: not an error of linear algebra."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(30, 3)), 2, axis=0)
    stats = Statistics.from_arrays(X, np.repeat(np.arange(10), 6), np.repeat(np.arange(30), 2))
    start = Model(np.zeros((1, 3)), np.eye(3), np.eye(3), np.eye(3)[None])
    with pytest.raises(DuopldaError, match="noise covariance became singular"):
        em.fit(stats, start, tol=0, max_iter=5000)


def test_errors_of_the_observer_are_not_swallowed():
    """An extrapolated model may be no model, which is no error. Whatever else goes wrong is one."""

    class Singular(Observer):
        def iteration(self, iteration, log_likelihood, model):
            raise np.linalg.LinAlgError("of the observer")

    stats = gather(problem(23)[2])
    with pytest.raises(np.linalg.LinAlgError, match="of the observer"):
        em.fit(stats, em.moment_start(stats, 2, 2), observer=Singular())
