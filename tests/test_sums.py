"""Ratios from sums that no model enters are those of sides that are enrolled."""

from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

import oracle
from duoplda import PLDA
from duoplda.model.parameters import Terms
from duoplda.trials.sums import ModelRatios, SideSums


def two_sets(K, nx, named=True, seed=0, n=12):
    """Recordings of sides that enrol, whose sessions are known or not, and of tests, each of one recording."""
    rng = np.random.default_rng(seed)
    p = oracle.random_model(rng, 5, 4, nx, K)
    first, second = (oracle.random_data(rng, p, n, (1, 5), (1, 4)) for _ in range(2))
    side = np.unique(first.speaker, return_inverse=True)[1]
    session = np.unique(first.session, return_inverse=True)[1] if named else None
    return (first.X, side, session, first.kind), (second.X, np.arange(len(second.X)), None, second.kind)


def models(K, nx, n=3):
    for seed in range(n):
        p = oracle.random_model(np.random.default_rng(seed), 5, 4, nx, K)
        kinds = {} if K == 1 else {"channels": list(range(K))}
        mean, noise = (a[0] if K == 1 else a for a in (p.mu, p.W))
        yield PLDA.from_parameters(mean, p.V, p.U, noise, **kinds)


def enrolled(plda, rows):
    X, side, session, kind = rows
    return plda.enroll(X, side, session, kind if plda.model_.K > 1 else None)


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("nx", [0, 3])
@pytest.mark.parametrize("named", [True, False])
def test_gamma_under_several_models_is_that_of_enrolling(K, nx, named):
    rows, _ = two_sets(K, nx, named, seed=K + nx)
    own = SideSums(*rows, K)
    for plda in models(K, nx):
        want = enrolled(plda, rows)
        np.testing.assert_array_equal(own.types, want.types)
        np.testing.assert_array_equal(own.counts, want.counts)
        order = np.random.default_rng(0).permutation(len(own.types))  # of the types of the terms
        found = own.gamma(plda.model_, Terms(plda.model_, own.types[order]), np.argsort(order))
        np.testing.assert_allclose(found, want.gamma, rtol=1e-10, atol=1e-10 * np.abs(want.gamma).max())


@pytest.mark.parametrize("n", [2, 60])
def test_few_and_many_sums_of_a_type_give_the_same(n):
    """One recording for each of n sides: products go by the rows, or by the matrices."""
    rng = np.random.default_rng(n)
    rows = (rng.normal(size=(n, 5)), np.arange(n), None, np.zeros(n, np.int64))
    for plda in models(1, 3):
        terms, own = Terms(plda.model_, np.array([[1]])), SideSums(*rows, 1)
        np.testing.assert_allclose(
            own.gamma(plda.model_, terms, np.zeros(1, np.int64)), enrolled(plda, rows).gamma, rtol=1e-10, atol=1e-10
        )


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("nx", [0, 3])
@pytest.mark.parametrize("named", [True, False])
def test_ratios_under_several_models_are_those_of_enrolled_sides(K, nx, named):
    """All of them, and a fifth of them."""
    first, second = two_sets(K, nx, named, seed=K + nx)
    pairs = ModelRatios(SideSums(*first, K), SideSums(*second, K))
    n = pairs.shape[0] * pairs.shape[1]
    cells = np.random.default_rng(0).permutation(n)[: n // 5]
    pairs.select(cells)
    for plda in models(K, nx):
        want = plda.llr(enrolled(plda, first), enrolled(plda, second))
        tight = {"rtol": 1e-9, "atol": 1e-9}
        np.testing.assert_allclose(pairs.matrix(plda.model_), want, **tight)
        np.testing.assert_allclose(pairs.listed(plda.model_), want.reshape(-1)[cells], **tight)


def test_few_of_very_many_pairs():
    """More than a million pairs, few of which are listed: these are computed one by one."""
    rng = np.random.default_rng(3)
    p = oracle.random_model(rng, 5, 4, 3, 1)
    (plda,) = models(1, 3, 1)
    side = np.repeat(np.arange(1100), 2)
    first = (rng.normal(p.mu[0], 2.0, (2200, 5)), side, None, 0 * side)
    second = (rng.normal(p.mu[0], 2.0, (1000, 5)), np.arange(1000), None, np.zeros(1000, np.int64))
    pairs = ModelRatios(SideSums(*first, 1), SideSums(*second, 1))
    cells = rng.permutation(1_100_000)[:500]
    want = plda.llr(enrolled(plda, first), enrolled(plda, second)).reshape(-1)[cells]
    pairs.select(cells)
    np.testing.assert_allclose(pairs.listed(plda.model_), want, rtol=1e-9, atol=1e-9)


def test_any_number_of_threads_gives_the_same_bits():
    first, second = two_sets(3, 3, n=60)
    pairs = ModelRatios(SideSums(*first, 3), SideSums(*second, 3))
    (plda,) = models(3, 3, 1)
    bits = []
    for threads in (1, 5):
        with threadpool_limits(threads, user_api="blas"):
            bits.append(pairs.matrix(plda.model_).tobytes())
    assert bits[0] == bits[1]


def test_other_libraries_give_the_same(library):
    sets = two_sets(3, 3)
    there = [(library.put(X), *labels) for X, *labels in sets]
    ours, theirs = (ModelRatios(*(SideSums(*rows, 3) for rows in each)) for each in (sets, there))
    n = ours.shape[0] * ours.shape[1]
    for pairs in (ours, theirs):
        pairs.select(np.random.default_rng(1).permutation(n)[: n // 6])
    for plda in models(3, 3):
        model = plda.model_
        arrays = {name: library.put(getattr(model, name)) for name in ("mu", "V", "U", "W")}
        moved = replace(model, **arrays)
        for found, want in (
            (theirs.matrix(moved), ours.matrix(model)),
            (theirs.listed(moved), ours.listed(model)),
        ):
            np.testing.assert_allclose(library.get(found), want, rtol=1e-9, atol=1e-9)
