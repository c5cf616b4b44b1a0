"""Two ways to the posteriors of speakers with ragged counts give the same."""

from __future__ import annotations

import numpy as np
import pytest

import oracle
from duoplda import Statistics
from duoplda import arrays as ar
from duoplda.model import em, ragged
from duoplda.model.parameters import Model


def few_session_factors(rng, U_scale=1.0):
    """Many counts, and a model with few session factors: matrices of their size are inverted on the host."""
    p = oracle.random_model(rng, 30, 28, 3)
    p.U[:, 1] *= U_scale
    return p, oracle.random_data(rng, p, 200, sessions=(1, 6))


def test_matrices_of_session_factors_give_what_those_of_speaker_factors_give():
    """Other libraries always invert matrices of the size of the speaker factors."""
    p, data = few_session_factors(np.random.default_rng(0))
    moments = []
    for xp in (np, pytest.importorskip("array_api_strict")):
        stats = Statistics.from_arrays(xp.asarray(data.X), data.speaker, data.session)
        model = Model(*(xp.asarray(a) for a in (p.mu, p.V, p.U, p.W)))
        moments.append(em.EStep(stats)(model))
        total = em.EStep(stats).ln_likelihood(model)
        assert total == pytest.approx(oracle.log_likelihoods(p, data).sum(), rel=1e-10)
    for name in ("grouped", "C", "rho", "y", "yy"):
        a, b = (ar.to_numpy(getattr(m, name)) for m in moments)
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max())


def test_a_session_factor_of_zero_changes_nothing():
    p, data = few_session_factors(np.random.default_rng(1), U_scale=0.0)
    stats = Statistics.from_arrays(data.X, data.speaker, data.session)
    total = em.EStep(stats).ln_likelihood(Model(p.mu, p.V, p.U, p.W))
    assert total == pytest.approx(oracle.log_likelihoods(p, data).sum(), rel=1e-10)


def test_what_rounding_leaves_of_a_direction_without_sessions_counts_for_nothing():
    """Some processors make an eigenvalue of 1e-17 of a 0, and others a 0; neither may be divided by."""
    rng = np.random.default_rng(2)
    sizes = np.arange(1, 4)
    VWV, J, UWU = products(rng, 12, 3)
    J[2] = 0.0
    UWU[2] = 0.0
    UWU[:, 2] = 0.0
    turn = np.linalg.qr(rng.standard_normal((3, 3)))[0]  # the same model in other coordinates of x, with their rounding
    means = []
    patterns = ragged.Patterns(rng.multinomial(6, np.full(3, 1 / 3), 50), sizes)
    gamma = rng.standard_normal((50, 12))
    for rotation, left in ((np.eye(3), 0.0), (np.eye(3), 1e-17), (turn, 0.0)):
        left_over = rotation @ (UWU + np.diag([0.0, 0.0, left])) @ rotation.T
        parts = ragged.Diagonals.of(VWV, rotation @ J + left, left_over, sizes)
        means.append(ragged.speakers_by_rank(parts, patterns, gamma, np.zeros((len(patterns), 0))).mean)
    np.testing.assert_allclose(means[1], means[0], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(means[2], means[0], rtol=1e-10, atol=1e-12)


def test_it_is_used_where_it_pays():
    sizes = np.arange(1, 8)
    rng = np.random.default_rng(0)
    counts = rng.multinomial(8, np.full(7, 1 / 7), 3000)
    patterns = ragged.Patterns(counts, sizes)
    few = ragged.Diagonals(np.eye(150), np.zeros((60, 150)), np.ones(60), sizes)
    full = ragged.Diagonals(np.eye(150), np.zeros((150, 150)), np.ones(150), sizes)
    assert few.pays(patterns)
    assert not full.pays(patterns)


def products(rng, ny, nx):
    """V'WV, U'WV and U'WU of any model of one kind of channels: blocks of one positive definite matrix."""
    F = rng.standard_normal((ny + nx, 2 * (ny + nx))) * rng.uniform(0.2, 1.5, (ny + nx, 1))
    S = F @ F.T / F.shape[1]
    return S[:ny, :ny], S[ny:, :ny], S[ny:, ny:]


def diagonals(rng, ny, nx, sizes):
    VWV, J, UWU = products(rng, ny, nx)
    G = [L * VWV - L**2 * J.T @ np.linalg.solve(np.eye(nx) + L * UWU, J) for L in sizes.tolist()]
    return ragged.Diagonals.of(VWV, J, UWU, sizes), np.array(G)


@pytest.mark.parametrize(("ny", "nx"), [(50, 45), (40, 33), (9, 2), (3, 1)])
@pytest.mark.parametrize("Q", [0, 3])
def test_means_determinants_and_sums_of_inverses(ny, nx, Q):
    """Patterns of one speaker and of several, and numbers of recordings with one pattern and with many."""
    rng, sizes = np.random.default_rng(ny), np.array([1, 2, 5])
    parts, G = diagonals(rng, ny, nx, sizes)
    some = rng.integers([1, 0, 0], [5, 4, 4], (150, 3))
    alike = [(60 - 2 * b - 5 * c, b, c) for c in range(13) for b in range((60 - 5 * c) // 2 + 1)]  # 60 recordings each
    counts = np.concatenate([some, alike, np.tile([[3, 0, 2], [0, 40, 0]], (6, 1))])
    patterns = ragged.Patterns(counts, sizes)
    assert len(set(patterns.multiplicity.tolist())) > 3
    gamma, weights = rng.standard_normal((len(counts), ny)), rng.uniform(0, 2, (len(patterns), Q))
    Lambda = np.eye(ny) + np.tensordot(patterns.rows, G, axes=1)
    inverse = np.linalg.inv(Lambda)
    means = np.einsum("mij,mj->mi", inverse[patterns.index], gamma)
    sums = np.tensordot(weights.T, inverse, axes=1)
    by_rank = ragged.speakers_by_rank(parts, patterns, gamma, weights)
    for found in (by_rank, ragged.speakers(G, patterns, gamma, weights)):
        np.testing.assert_allclose(found.mean, means, rtol=0, atol=1e-12 * np.abs(means).max())
        np.testing.assert_allclose(found.ln_Lambda, np.linalg.slogdet(Lambda)[1], rtol=1e-12)
        assert found.covariance.shape == (Q, ny, ny)
        np.testing.assert_allclose(found.covariance, sums, rtol=0, atol=1e-12 * np.abs(sums).max(initial=0))


def definite(rng, m, n, condition=30.0):
    Q = np.linalg.qr(rng.standard_normal((m, n, n)))[0]
    return ar.symmetric((Q * np.geomspace(1, 1 / condition, n)) @ Q.mT)


@pytest.mark.parametrize("n", [1, 2, 4, 5, 6, 31, 32, 33, 67, 130])
@pytest.mark.parametrize("m", [1, 7, 8, 40])
def test_inverses_and_determinants(m, n):
    """One object for stacks of several sizes: what it keeps of one does not show in the next."""
    rng, invert = np.random.default_rng(n), ar.SpdInverse()
    for size, rows in ((m, n), (m + 3, n), (m, n + 1), (m, n)):
        M = definite(rng, size, rows)
        X = M.copy()
        np.testing.assert_allclose(invert(X), np.linalg.slogdet(M)[1], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(X @ M, np.broadcast_to(np.eye(rows), M.shape), atol=1e-12)


@pytest.mark.parametrize("n", [5, 18, 32])
def test_small_inverses_of_nearly_singular_matrices_are_as_good_as_those_of_lapack(n):
    """Without elimination by blocks, in which the square root of the condition is lost as well."""
    M = definite(np.random.default_rng(n), 9, n, 1e9)
    exact = np.linalg.norm(M @ np.linalg.inv(M) - np.eye(n))
    assert np.linalg.norm(M @ ar.spd_inverse(M)[0] - np.eye(n)) < 10 * exact


def test_an_inverse_has_the_same_bits_whatever_the_others_of_its_stack_are():
    M = definite(np.random.default_rng(0), 30, 70)
    whole, part = M.copy(), M[7:20].copy()
    invert = ar.SpdInverse()
    ln = invert(whole)
    assert np.array_equal(invert(part), ln[7:20])
    assert np.array_equal(part, whole[7:20])


@pytest.mark.parametrize("m", [3, 12])
@pytest.mark.parametrize("at", [0, 30, 55, 79])
def test_a_matrix_that_is_not_positive_definite_is_found(m, at):
    M = definite(np.random.default_rng(0), m, 80)
    M[-1, at, at] = -0.1
    with pytest.raises(ar.NotPositiveDefinite):
        ar.SpdInverse()(M)
