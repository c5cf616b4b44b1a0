"""Two ways to the posteriors of speakers with ragged counts give the same."""

from __future__ import annotations

import numpy as np
import pytest

import oracle
from duoplda import Statistics
from duoplda.model import em, ragged
from duoplda.model.parameters import Model


@pytest.mark.parametrize(("d", "ny", "nx"), [(9, 7, 3), (6, 6, 5), (5, 2, 1)])
def test_matrices_of_session_factors_give_what_those_of_speaker_factors_give(monkeypatch, d, ny, nx):
    rng = np.random.default_rng(d)
    p = oracle.random_model(rng, d, ny, nx)
    data = oracle.random_data(rng, p, 40, sessions=(1, 6))
    stats = Statistics.from_arrays(data.X, data.speaker, data.session)
    model = Model(p.mu, p.V, p.U, p.W)
    moments = []
    for pays in (True, False):
        monkeypatch.setattr(ragged.Diagonals, "pays", lambda self, patterns, pays=pays: pays)
        monkeypatch.setattr(ragged, "GROUP", 3)
        moments.append(em.EStep(stats)(model))
        total = em.EStep(stats).ln_likelihood(model)
        assert total == pytest.approx(oracle.log_likelihoods(p, data).sum(), rel=1e-10)
    for name in ("R", "C", "rho", "y", "yy"):
        a, b = (getattr(m, name) for m in moments)
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max())


def test_a_session_factor_of_zero_changes_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    p = oracle.random_model(rng, 5, 4, 2)
    p.U[:, 1] = 0.0
    data = oracle.random_data(rng, p, 20)
    stats = Statistics.from_arrays(data.X, data.speaker, data.session)
    monkeypatch.setattr(ragged.Diagonals, "pays", lambda self, patterns: True)
    total = em.EStep(stats).ln_likelihood(Model(p.mu, p.V, p.U, p.W))
    assert total == pytest.approx(oracle.log_likelihoods(p, data).sum(), rel=1e-10)


def test_it_is_used_where_it_pays():
    sizes = np.arange(1, 8)
    rng = np.random.default_rng(0)
    counts = rng.multinomial(8, np.full(7, 1 / 7), 3000)
    patterns = ragged.Patterns(counts, sizes)
    few = ragged.Diagonals(np.eye(150), np.zeros((60, 150)), np.ones(60), sizes)
    full = ragged.Diagonals(np.eye(150), np.zeros((150, 150)), np.ones(150), sizes)
    assert few.pays(patterns)
    assert not full.pays(patterns)


@pytest.mark.parametrize("N", [[3], [1, 2, 3], [2, 50, 51, 52, 900], range(2, 99), range(1, 400)], ids=len)
@pytest.mark.parametrize("k", ["spread", "far apart", "none"])
def test_a_few_numbers_of_recordings_stand_for_all(N, k):
    rng, N = np.random.default_rng(0), np.array(N)
    k = {
        "spread": rng.uniform(0.1, 3, 20),
        "far apart": np.append(0.0, np.geomspace(1e-9, 1e4, 30)),
        "none": np.zeros(3),
    }[k]
    few, T = ragged.among(N, k)
    assert set(few) <= set(N)
    assert len(few) <= min(len(N), 40)
    d, d_few = (1 / (1 + n[:, None] * k) for n in (N, few))
    want = d[:, :, None] * d[:, None, :]
    np.testing.assert_allclose(np.tensordot(T, d_few[:, :, None] * d_few[:, None, :], axes=1), want, rtol=1e-11)
