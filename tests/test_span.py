"""Fewer recordings than dimensions: EM in the span of the recordings takes the very steps of EM in all dimensions."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import oracle
from duoplda import PLDA, Statistics
from duoplda.model import em
from duoplda.model.anova import total_covariance
from duoplda.model.span import Span
from duoplda.model.training import EMOptions
from duoplda.observer import Observer
from duoplda.selection.training import Training

FLOOR = 0.05


def problem(seed, d=60, K=1):
    rng = np.random.default_rng(seed)
    p = oracle.random_model(rng, d, 5, 4, K)
    data = oracle.random_data(rng, p, 6, (1, 4), (1, 4))
    stats = Statistics.from_arrays(data.X, data.speaker, data.session, data.kind if K > 1 else None)
    assert stats.n_recordings < d
    return data, stats


def covariances(model):
    """What two models must have in common: loadings may be turned, and factors without loadings do not count."""
    return model.mu, model.V @ model.V.T, model.U @ model.U.T, np.linalg.inv(model.W)


def assert_same(a, b, digits=1e-9):
    for x, y in zip(covariances(a), covariances(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=digits * np.abs(y).max())


@pytest.mark.parametrize(("K", "nu"), [(1, 0.0), (3, 0.0), (3, 1.0), (3, 60.0)])
@pytest.mark.parametrize("seed", range(3))
def test_steps_are_those_of_all_dimensions(seed, K, nu):
    _, stats = problem(seed, K=K)
    span = Span.of(stats, FLOOR)
    inside = span.statistics(stats)
    small = em.moment_start(inside, span.r, 7, FLOOR)
    large = span.model(small, 60, 9)
    assert (large.ny, large.nx) == (60, 9)
    for _ in range(3):
        within, whole = em.EStep(inside)(small), em.EStep(stats)(large)
        ln = span.ln(within.ln_likelihood)
        # Terms that add up to 3e8 cancel, as the means of kinds are 100 apart (measured: 1.3e-8).
        assert ln == pytest.approx(whole.ln_likelihood, abs=1e-7)
        small = em.md_step(em.ml_step(small, within, inside, FLOOR, nu), within)
        large = em.md_step(em.ml_step(large, whole, stats, FLOOR, nu), whole)
        assert_same(span.model(small, 60, 9), large)


def test_likelihood_is_that_of_a_dense_gaussian():
    data, stats = problem(3)
    fit = Training(em_options=EMOptions(noise_floor=1e-2, max_iter=4))(stats).fit
    m = fit.model
    dense = oracle.log_likelihoods(oracle.Params(m.mu, m.V, m.U, m.W), data).sum()
    assert fit.log_likelihoods[-1] == pytest.approx(dense, rel=1e-10)
    assert (np.diff(fit.log_likelihoods) > 0).all()


def test_not_where_recordings_fill_the_space():
    _, stats = problem(0)
    assert Span.of(stats.mapped(np.zeros((1, 60)), np.eye(60)[:, :10]), FLOOR) is None


def test_recordings_that_repeat_span_less():
    data, _ = problem(1)
    X = data.X - data.X.mean(axis=0)
    X[3:] = X[3:] @ np.ones((60, 1)) @ X[:1]  # all but three along one direction
    stats = Statistics.from_arrays(X, data.speaker, data.session)
    assert Span.of(stats, FLOOR).r <= 4
    assert np.isfinite(Training(em_options=EMOptions(noise_floor=1e-2))(stats).fit.log_likelihoods).all()


def test_training_ends_where_that_of_all_dimensions_does():
    data, stats = problem(5)
    in_span = PLDA(noise_floor=1e-2, tol=1e-9, max_iter=3000).fit(data.X, data.speaker, session=data.session)
    floor = 1e-2 * np.trace(total_covariance(stats)) / 60
    in_all = em.fit(stats, em.moment_start(stats, 60, 60, floor), floor=floor, tol=1e-9, max_iter=3000)
    assert in_span.log_likelihoods_[-1] / len(data) == pytest.approx(in_all.log_likelihoods[-1] / len(data), abs=1e-4)
    assert in_span.speaker_loadings_.shape == in_all.model.V.shape == (60, 60)


class Watch(Observer):
    def __init__(self, stop):
        self.stop, self.states, self.models = stop, [], []

    def iteration(self, iteration, ln_likelihood, model):
        self.models.append((ln_likelihood, model))
        return iteration == self.stop

    def state(self, state):
        self.states.append(state)


def test_callbacks_see_all_dimensions_and_states_go_on():
    _, stats = problem(2)
    whole = Training(em_options=EMOptions(noise_floor=1e-2, max_iter=6, tol=0))(stats).fit
    first = Watch(3)
    Training(em_options=EMOptions(noise_floor=1e-2, tol=0), observer=first)(stats)
    assert first.models[-1][0] == whole.log_likelihoods[3]
    assert first.models[-1][1].d == 60
    rest = Training(em_options=EMOptions(noise_floor=1e-2, max_iter=6, tol=0))(stats, first.states[-1]).fit
    np.testing.assert_array_equal(rest.log_likelihoods, whole.log_likelihoods)
    np.testing.assert_array_equal(rest.model.W, whole.model.W)


def test_the_same_bits_for_any_number_of_threads():
    rng = np.random.default_rng(0)
    X, speaker = rng.standard_normal((200, 600)), np.repeat(np.arange(25), 8)
    session = np.repeat(np.arange(100), 2)
    fitted = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            stats = Statistics.from_arrays(X, speaker, session)
            fitted.append(Training(em_options=EMOptions(noise_floor=1e-2, max_iter=2))(stats).fit.model)
    for name in ("mu", "V", "U", "W"):
        np.testing.assert_array_equal(*(getattr(model, name) for model in fitted))
