"""Ratios from sums that no model enters are those of sides that are enrolled."""

from dataclasses import replace

import numpy as np
import pytest

import oracle
from duoplda import PLDA
from duoplda.model.parameters import Terms
from duoplda.trials import sums
from duoplda.trials.sums import Pairs, Sums


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
    own = Sums(*rows, K)
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
        terms, own = Terms(plda.model_, np.array([[1]])), Sums(*rows, 1)
        np.testing.assert_allclose(
            own.gamma(plda.model_, terms, np.zeros(1, np.int64)), enrolled(plda, rows).gamma, rtol=1e-10, atol=1e-10
        )


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("nx", [0, 3])
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("matrix", [0, sums.MATRIX])
def test_ratios_under_several_models_are_those_of_enrolled_sides(K, nx, named, matrix, monkeypatch):
    """All of them, and a fifth of them, by a product or pair by pair."""
    monkeypatch.setattr(sums, "MATRIX", matrix)
    monkeypatch.setattr(sums, "at_once", lambda G: 3)
    first, second = two_sets(K, nx, named, seed=K + nx)
    pairs = Pairs(Sums(*first, K), Sums(*second, K))
    n = pairs.shape[0] * pairs.shape[1]
    cells = np.random.default_rng(0).permutation(n)[: n // 5]
    some = pairs.some(cells)
    for plda in models(K, nx):
        want = plda.llr(enrolled(plda, first), enrolled(plda, second))
        tight = {"rtol": 1e-9, "atol": 1e-9}
        np.testing.assert_allclose(pairs.matrix(plda.model_), want, **tight)
        np.testing.assert_allclose(pairs.listed(plda.model_, some), want.reshape(-1)[cells], **tight)


def test_equal_counts_are_inverted_once():
    """A side of two recordings, one of one, and a test of one: there is a Lambda of 1, 2 and 3 recordings."""
    rng = np.random.default_rng(0)
    first = Sums(rng.normal(size=(3, 5)), np.array([0, 0, 1]), None, np.zeros(3, np.int64), 1)
    test = Sums(rng.normal(size=(1, 5)), np.zeros(1, np.int64), None, np.zeros(1, np.int64), 1)
    assert Pairs(first, test).counts.tolist() == [[1], [2], [3]]


@pytest.mark.parametrize("matrix", [0, sums.MATRIX])
def test_other_libraries_give_the_same(library, matrix, monkeypatch):
    monkeypatch.setattr(sums, "MATRIX", matrix)
    sets = two_sets(3, 3)
    there = [(library.put(X), *labels) for X, *labels in sets]
    ours, theirs = (Pairs(*(Sums(*rows, 3) for rows in each)) for each in (sets, there))
    n = ours.shape[0] * ours.shape[1]
    cells = np.random.default_rng(1).permutation(n)[: n // 6]
    for plda in models(3, 3):
        model = plda.model_
        arrays = {name: library.put(getattr(model, name)) for name in ("mu", "V", "U", "W")}
        moved = replace(model, **arrays)
        for found, want in (
            (theirs.matrix(moved), ours.matrix(model)),
            (theirs.listed(moved, theirs.some(cells)), ours.listed(model, ours.some(cells))),
        ):
            np.testing.assert_allclose(library.get(found), want, rtol=1e-9, atol=1e-9)
