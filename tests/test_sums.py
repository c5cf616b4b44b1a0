"""Sides from sums that no model enters are those of `enroll`."""

import numpy as np
import pytest

import oracle
from duoplda import PLDA
from duoplda.trials.sums import Sums


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("nx", [0, 3])
@pytest.mark.parametrize("named", [True, False])
def test_sides_of_several_models_are_those_that_enrolling_gives(K, nx, named):
    rng = np.random.default_rng(K + nx)
    data = oracle.random_data(rng, oracle.random_model(rng, 5, 4, nx, K), 12, (1, 5), (1, 4))
    side = np.unique(data.speaker, return_inverse=True)[1]
    session = np.unique(data.session, return_inverse=True)[1] if named else None
    sums = Sums(data.X, side, session, data.kind, K)
    for seed in range(3):
        p = oracle.random_model(np.random.default_rng(seed), 5, 4, nx, K)
        kinds = {} if K == 1 else {"channels": list(range(K))}
        mean, noise = (a[0] if K == 1 else a for a in (p.mu, p.W))
        plda = PLDA.from_parameters(mean, p.V, p.U, noise, **kinds)
        want = plda.enroll(data.X, side, session, data.kind if K > 1 else None)
        found = sums.sides(plda.model_)
        np.testing.assert_array_equal(found.types, want.types)
        np.testing.assert_array_equal(found.counts, want.counts)
        np.testing.assert_allclose(found.gamma, want.gamma, rtol=1e-10, atol=1e-10 * np.abs(want.gamma).max())
        np.testing.assert_allclose(found.Q, want.Q, rtol=1e-10, atol=1e-9)
