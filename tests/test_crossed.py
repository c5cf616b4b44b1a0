"""Ragged sides against ragged sides by products: as exact as promised, checked when they are made, or not used."""

import numpy as np
import pytest

import oracle
from duoplda import PLDA, DuopldaError
from duoplda.trials import crossed as products
from duoplda.trials.blocks import Scorer
from duoplda.trials.ratios import merged
from duoplda.trials.sides import shared
from test_array import LIBRARIES, Library
from test_llr import each_pair, enrolled

N = (190, 210)


def ragged(seed=0, n=N, K=1, ny=33, nx=20, sessions=(2, 9), rate=0.0):
    """A model, two sets of drawn recordings and their sides; a share of the second set's sessions are the first's."""
    rng = np.random.default_rng(seed)
    p = oracle.random_model(rng, 40, ny, nx, K)
    a, b = (oracle.random_data(rng, p, m, sessions, (1, 5)) for m in n)
    names, session = np.unique(b.session, return_inverse=True)
    names = np.where(rng.random(len(names)) < rate, rng.choice(a.session, len(names)), np.char.add("other", names))
    b = oracle.Data(b.X, b.speaker, names[session], b.kind)
    return p, a, b, enrolled(p, a), enrolled(p, b)


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch):
    monkeypatch.setattr(products, "WORTH", 1 << 19)


@pytest.fixture(scope="module")
def sides():
    p, a, b, A, B = ragged()
    return p, a, b, A, B, merged(A, B, *each_pair(A, B).T).reshape(N)


def test_as_exact_as_promised(sides):
    """All pairs against those that are merged one by one, and some against dense Gaussians."""
    p, a, b, A, B, exact = sides
    scorer = Scorer(A)
    got = scorer.columns(B)
    plan = scorer.plan(B)
    assert len(plan.crossed) == 1
    assert not plan.products
    assert not plan.merged
    assert plan.size > 0
    spread = np.ptp(exact)
    assert 0 < np.abs(got - exact).max() < 1e-8 * spread
    assert np.abs(Scorer(B).columns(A) - exact.T).max() < 1e-8 * spread
    for i, j in np.random.default_rng(0).integers(0, N, (12, 2)):
        dense = oracle.llr(p, a.rows(a.speaker == A.ids[i]), b.rows(b.speaker == B.ids[j]))
        assert got[i, j] == pytest.approx(dense, abs=1e-8 * spread)


@pytest.mark.parametrize("tolerance", [1e-2, 0.1, 1.0])
def test_tolerance(sides, tolerance):
    """Errors are below what is granted, and what is granted saves work."""
    *_, A, B, exact = sides
    scorer, narrow = Scorer(A, tolerance=tolerance), Scorer(A)
    assert 0 < np.abs(scorer.columns(B) - exact).max() < tolerance
    assert scorer.plan(B).crossed[0].r < narrow.plan(B).crossed[0].r


def test_two_kinds_of_channels():
    """Sessions of twenty types: inverses differ too much for the exact matrix, but some nats can be kept to."""
    *_, A, B = ragged(K=2)
    exact = merged(A, B, *each_pair(A, B).T).reshape(N)
    plan = Scorer(A).plan(B)
    assert not plan.crossed
    assert plan.merged
    scorer = Scorer(A, tolerance=10.0)
    assert scorer.plan(B).crossed
    assert 0 < np.abs(scorer.columns(B) - exact).max() < 10.0


def test_blocks_and_the_highest(sides):
    *_, A, B, exact = sides
    plda = PLDA.from_parameters(A.model.mu, A.model.V, A.model.U, A.model.W, channels=A.model.kinds)
    near = {"rtol": 0, "atol": 1e-8 * np.ptp(exact)}
    found = list(plda.llr_blocks(A, B, cells=len(A) * 50))
    assert len(found) == 5
    np.testing.assert_allclose(np.concatenate([block for _, block in found], axis=1), exact, **near)
    rows, ratios = plda.top(A, B, 3, tolerance=1e-2)
    np.testing.assert_allclose(ratios, -np.sort(-exact, axis=0)[:3].T, rtol=0, atol=1e-2)
    np.testing.assert_allclose(exact[rows, np.arange(len(B))[:, None]], ratios, rtol=0, atol=1e-2)
    np.testing.assert_array_equal(plda.llr(A, B, [[3, 4]], tolerance=1.0), plda.llr(A, B, [[3, 4]]))


def test_ragged_sides_beside_others_and_sessions_that_are_shared():
    """Rows and columns here and there: others are plain, and some trials share a session."""
    rng = np.random.default_rng(5)
    p, a, b, *_ = ragged(5, rate=0.01)
    both = []
    for data, m in ((a, 120), (b, 100)):
        plain = oracle.random_data(rng, p, m, (1, 1), (2, 2))
        plain = oracle.Data(
            plain.X, np.char.add("plain", plain.speaker), np.char.add(str(m), plain.session), plain.kind
        )
        both.append(enrolled(p, oracle.join(data, plain)))
    A, B = both
    scorer = Scorer(A)
    got = scorer.columns(B)
    assert [len(x) for x in (scorer.plan(B).crossed, scorer.plan(B).products)] == [1, 3]
    exact = merged(A, B, *each_pair(A, B).T).reshape(got.shape)
    i, j, values = shared(A, B)
    assert len(i) > 5
    exact[i, j] = values
    assert np.abs(got - exact).max() < 1e-8 * np.ptp(exact)


def test_columns_in_blocks(monkeypatch, sides):
    """Few columns and rows at a time, and QRs that look at some rows first."""
    *_, A, B, exact = sides
    for name, value in {"ROWS": 20, "BYTES": 1, "SIDES": 50, "SOME": 300}.items():
        monkeypatch.setattr(products, name, value)
    assert np.abs(Scorer(A).columns(B) - exact).max() < 1e-8 * np.ptp(exact)


def test_other_tests_with_the_same_patterns_are_checked_anew(sides):
    _, _, b, A, B, exact = sides
    scorer = Scorer(A, tolerance=1e-2)
    first = scorer.plan(B)
    assert scorer.plan(B) is first
    far = enrolled(sides[0], oracle.Data(b.X * 50, b.speaker, b.session, b.kind))
    assert far.groups.key == B.groups.key
    assert scorer.plan(far) is not first
    exact = merged(A, far, *each_pair(A, far).T).reshape(N)
    assert np.abs(scorer.columns(far) - exact).max() < 1e-2


@pytest.mark.parametrize("change", [{"MOST": 10}, {"EXACT": 1e-16}, {"TRIES": 0}], ids=str)
def test_where_the_error_is_too_large_pairs_are_merged(monkeypatch, sides, change):
    *_, A, B, exact = sides
    for name, value in change.items():
        monkeypatch.setattr(products, name, value)
    plan = Scorer(A).plan(B)
    assert not plan.crossed
    assert plan.merged
    np.testing.assert_allclose(Scorer(A).columns(B.select(slice(0, 90))), exact[:, :90], rtol=1e-10, atol=1e-10)


def test_a_matrix_that_cannot_be_solved_leaves_pairs(monkeypatch, sides):
    *_, A, B, _ = sides

    def fail(*_):
        raise np.linalg.LinAlgError("singular")

    monkeypatch.setattr(products.Pivots, "grow", fail)
    assert not Scorer(A).plan(B).crossed


def test_few_pairs_are_merged(monkeypatch, sides):
    *_, A, B, _ = sides
    monkeypatch.setattr(products, "WORTH", len(A.groups) * len(B.groups) * 33 + 1)
    assert not Scorer(A).plan(B).crossed
    assert Scorer(A).plan(B).merged
    assert Scorer(A, tolerance=1.0).plan(B).crossed  # which is quicker to find


def test_recordings_that_say_nothing(sides):
    """All recordings are at the mean, gamma is 0, and only the ln-determinants are left."""
    p, a, *_ = sides
    at_mean = oracle.Data(p.mu[a.kind], a.speaker, a.session, a.kind)
    A, B = enrolled(p, at_mean), enrolled(p, oracle.Data(at_mean.X, a.speaker, np.char.add("x", a.session), a.kind))
    exact = merged(A, B, *each_pair(A, B).T).reshape(len(A), len(B))
    assert Scorer(A).plan(B).crossed
    assert np.abs(Scorer(A).columns(B) - exact).max() < 1e-8 * np.ptp(exact)


def test_always_the_same_bits(sides):
    *_, A, B, _ = sides
    first, again = (Scorer(A, tolerance=1e-3).columns(B) for _ in range(2))
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize("name", [name for name in LIBRARIES if name != "numpy"])
def test_every_library_gives_the_same(name):
    lib = Library(name)
    p, a, b, A, B = ragged(9)
    plda = PLDA.from_parameters(*(lib.put(x) for x in (p.mu[0], p.V, p.U, p.W[0])))
    ours, theirs = (plda.enroll(lib.put(s.X), s.speaker, s.session) for s in (a, b))
    some, expected = slice(20, 40), Scorer(A).columns(B)
    scorer = Scorer(ours, tolerance=1.0)
    found = lib.get(scorer.columns(theirs, some))
    assert scorer.plan(theirs).crossed
    np.testing.assert_allclose(found, expected[:, some], rtol=0, atol=1.0)
    if name == "torch":  # others are slow
        found = lib.get(Scorer(ours).columns(theirs, some))
        np.testing.assert_allclose(found, expected[:, some], rtol=0, atol=2e-8 * np.ptp(expected))


@pytest.mark.parametrize("tolerance", [0, -1.0, np.nan, np.inf, "1e-3"])
def test_tolerances_that_are_none(sides, tolerance):
    A = sides[3]
    with pytest.raises(DuopldaError, match="must be a positive number of nats"):
        Scorer(A, tolerance=tolerance)


@pytest.mark.parametrize("tolerance", [None, 1e-2])
def test_parts_with_functions_of_their_own(monkeypatch, sides, tolerance):
    """Ours are divided into parts of like counts, which need fewer functions; all pairs are as exact as promised."""
    *_, A, B, exact = sides
    whole = Scorer(A, tolerance=tolerance).plan(B).crossed[0]
    monkeypatch.setattr(products, "PART", 50)
    scorer = Scorer(A, tolerance=tolerance)
    assert np.abs(scorer.columns(B) - exact).max() < (tolerance or 1e-8 * np.ptp(exact))
    found = scorer.plan(B).crossed[0]
    assert len(found.parts) == 4
    np.testing.assert_array_equal(np.sort(np.concatenate([part.at for part in found.parts])), np.arange(len(A)))
    assert len(whole.parts) == 1
    assert np.mean([part.own.shape[1] for part in found.parts]) < whole.parts[0].own.shape[1]
