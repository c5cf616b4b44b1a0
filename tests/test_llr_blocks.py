"""Score matrices in blocks, the best few, parts of sides, and the ways in which patterns are multiplied and merged."""

from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

import oracle
from duoplda import PLDA, Backend, DuopldaError
from duoplda.trials import blocks as llr
from duoplda.trials import sides as grouping
from duoplda.trials.meeting import shared
from duoplda.trials.ratios import ListedRatios, PatternProducts, PatternRows
from duoplda.trials.tables import empty
from test_llr import MODELS, each_pair, enrolled, every_model, listed, matrix, near, share, two_sides

exhaust = settings(max_examples=25, derandomize=True, deadline=None, database=None)


def every(sides):
    return range(len(sides.groups))


# Which of them a scorer takes is a matter of cost: each must be right.
WAYS = {
    "pair by pair": lambda A, B: ListedRatios(A, np.arange(len(A)), every(B)),
    "a product for each pattern of the enrolled": lambda A, B: PatternProducts(
        PatternRows(A, every(A)), B.groups, every(B), flip=False
    ),
    "a product for each pattern of the tests": lambda A, B: PatternProducts(
        PatternRows(A, every(A)), B.groups, every(B), flip=True
    ),
}
every_way = pytest.mark.parametrize("way", WAYS)


def filled(ratios, A, B, part):
    """The columns of a part of the tests."""
    out = empty((len(A), part.stop - part.start), A.gamma)
    ratios.fill(out, B, part)
    return out


def shared_sides(name, seed=0, n=(9, 11)):
    p, a, b = two_sides(name, seed, n=n, recordings=(1, 3))
    b = share(np.random.default_rng(seed), a, b, 0.2)
    return p, a, b, enrolled(p, a), enrolled(p, b)


def many_sides(rng, p, n, sessions, recordings):
    """Sides of any number of sessions and recordings in the ranges, in random order; nothing is shared."""
    per_side = rng.integers(*sessions, n, endpoint=True)
    side = np.repeat(rng.permutation(n), per_side)
    size = rng.integers(*recordings, len(side), endpoint=True)
    session = np.repeat(np.arange(len(side)) + rng.integers(1 << 40), size)
    kind = rng.integers(0, len(p.mu), len(session))
    return oracle.Data(rng.normal(p.mu[kind], 3.0), np.repeat(side, size), session, kind)


def assert_matrix(p, a, b, samples=25):
    """The matrix and its transpose: against merged pairs in every cell, against dense Gaussians in some."""
    A, B = enrolled(p, a), enrolled(p, b)
    got = matrix(A, B)
    np.testing.assert_allclose(matrix(B, A), got.T, rtol=1e-10, atol=1e-10)
    for way in WAYS.values():
        np.testing.assert_allclose(way(A, B).pairs(B, *each_pair(A, B).T), got.ravel(), rtol=1e-10, atol=1e-10)
    rng = np.random.default_rng(0)
    for i, j in rng.integers(0, got.shape, (samples, 2)):
        expected = oracle.llr(p, a.rows(a.speaker == A.ids[i]), b.rows(b.speaker == B.ids[j]))
        assert got[i, j] == pytest.approx(expected, rel=1e-10, abs=1e-10)
    return A, B, got


# -- ways to the same matrix -------------------------------------------------------------------------------------------


@every_way
@every_model
def test_every_way_gives_the_matrix(way, name):
    p, a, b = two_sides(name, 0, n=(9, 11), recordings=(1, 3))
    A, B = enrolled(p, a), enrolled(p, b)
    expected = oracle.llr_matrix(p, a, b)
    ratios = WAYS[way](A, B)
    np.testing.assert_allclose(filled(ratios, A, B, slice(0, 11)), expected, **near)
    np.testing.assert_allclose(filled(ratios, A, B, slice(3, 8)), expected[:, 3:8], **near)
    np.testing.assert_allclose(ratios.pairs(B, *each_pair(A, B).T), expected.ravel(), **near)


@every_model
def test_listed_pairs_are_cells_of_the_matrix(name):
    """All of them, each often enough for factors of all rows, and pairs of some rows only; some share a session."""
    p, a, b, A, B = shared_sides(name)
    expected = oracle.llr_matrix(p, a, b)
    np.testing.assert_allclose(matrix(A, B), expected, **near)
    np.testing.assert_allclose(matrix(B, A), expected.T, **near)
    pairs = each_pair(A, B)
    np.testing.assert_allclose(listed(A, B, pairs), expected.ravel(), **near)
    many = np.tile(pairs, (30, 1))
    np.testing.assert_allclose(listed(A, B, many), np.tile(expected.ravel(), 30), **near)
    few = many[(many[:, 0] % 4 == 3) & (many[:, 1] % 5 == 2)][:100]
    np.testing.assert_allclose(listed(A, B, few), expected[few[:, 0], few[:, 1]], **near)


def test_any_number_of_threads_gives_the_same_bits():
    """Twenty patterns, in threads; ragged sides, whose inverses are made in threads; and pairs one by one."""
    rng = np.random.default_rng(1)
    p = oracle.random_model(rng, 40, 32, 8)
    sides = []
    for n in (1200, 1500):  # enough to be worth threads; of one session each, with 1 to 20 recordings
        side = np.repeat(np.arange(n), np.arange(n) % 20 + 1)
        data = oracle.Data(rng.normal(p.mu[0], 3.0, (len(side), 40)), side, side + 1000 * len(sides), 0 * side)
        sides.append(enrolled(p, data))
    ragged = [enrolled(p, many_sides(rng, p, n, (3, 8), (1, 4))) for n in (300, 70)]
    for A, B in ((sides[0], sides[1]), (ragged[0], sides[0]), (sides[0], ragged[0]), (ragged[0], ragged[1])):
        found = []
        for threads in (1, 4):
            with threadpool_limits(threads):
                found.append(matrix(A, B).tobytes())
        assert found[0] == found[1]


@exhaust
@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.sampled_from(list(MODELS)))
def test_any_patterns_on_both_sides(seed, rate, name):
    p, a, b = two_sides(name, seed, n=(4, 4), recordings=(1, 3))
    b = share(np.random.default_rng(seed), a, b, rate)
    expected = oracle.llr_matrix(p, a, b)
    A, B = enrolled(p, a), enrolled(p, b)
    np.testing.assert_allclose(matrix(A, B), expected, **near)
    found = [block for _, block in llr.Scorer(A).blocks(B, cells=9)]
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, **near)


@pytest.mark.parametrize(("ny", "nx", "K"), [(1, 1, 1), (3, 2, 1), (2, 3, 2), (16, 12, 1)])
def test_many_patterns_are_combinations_of_few(ny, nx, K):
    """Ragged sides against sides of few patterns: most patterns have coefficients, and no digit shows it."""
    rng = np.random.default_rng(3)
    p = oracle.random_model(rng, max(4, ny), ny, nx, K)
    a, b = many_sides(rng, p, 900, (3, 8), (1, 6)), many_sides(rng, p, 130, (1, 1), (1, 1))
    A, B, _ = assert_matrix(p, a, b)
    assert len(A.patterns) > 3 * len(B.patterns)


def test_patterns_that_are_no_combinations():
    """Where no few of the patterns span the others, each keeps a unit vector: here all are too different."""
    rng = np.random.default_rng(4)
    p = oracle.random_model(rng, 8, 6, 5)
    A, *_ = assert_matrix(p, many_sides(rng, p, 80, (1, 9), (1, 9)), many_sides(rng, p, 5, (1, 1), (1, 1)))
    assert len(A.patterns) > 70


@pytest.mark.parametrize("n", [(70, 80), (300, 40)])
def test_ragged_sides_are_merged(n):
    rng = np.random.default_rng(5)
    p = oracle.random_model(rng, 3, 2, 2)
    a, b = many_sides(rng, p, n[0], (6, 12), (1, 6)), many_sides(rng, p, n[1], (6, 12), (1, 6))
    A, B, _ = assert_matrix(p, a, b)
    (ratios,) = llr.Scorer(A).plan(B)
    assert isinstance(ratios, ListedRatios) == (n[1] > 64)  # few patterns are worth products


def test_ragged_sides_and_others_on_both_sides():
    """Each of the four parts of the matrix is made in its own way, and all of them in blocks too."""
    rng = np.random.default_rng(15)
    p = oracle.random_model(rng, 3, 2, 2)
    sides = []
    for n in ((100, 70), (80, 90)):
        ragged, plain = many_sides(rng, p, n[0], (6, 12), (1, 6)), many_sides(rng, p, n[1], (1, 1), (2, 2))
        both = oracle.join(ragged, oracle.Data(plain.X, plain.speaker + n[0], plain.session, plain.kind))
        sides.append(oracle.Data(both.X, rng.permutation(sum(n))[both.speaker], both.session, both.kind))
    A, B, expected = assert_matrix(p, *sides, samples=60)
    plan = llr.Scorer(A).plan(B)
    assert sorted(type(ratios).__name__ for ratios in plan) == ["ListedRatios", *["PatternProducts"] * 3]
    found = [block for _, block in llr.Scorer(A).blocks(B, cells=20 * len(A))]
    assert len(found) == 9
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("order", ["sorted", "in turns", "any"])
@pytest.mark.parametrize("n", [(60, 50), (20, 50), (60, 7), (900, 210)])
def test_wherever_the_rows_of_a_pattern_are(n, order):
    """Blocks of the matrix, every third row, rows and columns here and there; of few rows, or of many."""
    rng = np.random.default_rng(6)
    p = oracle.random_model(rng, 3, 2, 2)
    sides = []
    for m in n:
        recordings = {"sorted": np.arange(m) * 3 // m, "in turns": np.arange(m) % 3, "any": rng.integers(0, 3, m)}
        side = np.repeat(np.arange(m), recordings[order] + 1)
        sides.append(oracle.Data(rng.normal(p.mu[0], 3.0, (len(side), 3)), side, side + 1000 * m, 0 * side))
    A, *_ = assert_matrix(p, *sides)
    assert len(A.patterns) == 3


# -- blocks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cells", [1, 30, 10**6])
def test_blocks_are_the_matrix(cells):
    *_, A, B = shared_sides("low rank", 8, n=(9, 23))
    expected = matrix(A, B)
    assert (np.abs(expected - matrix(A, B.select(slice(None)))) < 1e-10).all()
    at = 0
    for part, block in llr.Scorer(A).blocks(B, cells=cells):
        assert part.start == at
        assert block.shape == (len(A), part.stop - part.start)
        assert block.size <= max(cells, len(A))
        np.testing.assert_allclose(block, expected[:, part], rtol=1e-10, atol=1e-10)
        at = part.stop
    assert at == len(B)


# -- the best few ------------------------------------------------------------------------------------------------------


def best_of(matrix, k):
    """By a stable sort of each column."""
    rows = np.argsort(-matrix, axis=0, kind="stable")[:k]
    return rows.T, np.take_along_axis(matrix, rows, axis=0).T


@pytest.mark.parametrize("k", [1, 2, 8, 9, 10, 1000])
def test_top(k):
    *_, A, B = shared_sides("kinds", 10)
    rows, ratios = llr.Scorer(A).top(B, k)
    assert rows.dtype == np.int64
    expected = best_of(matrix(A, B), k)
    np.testing.assert_array_equal(rows, expected[0])
    np.testing.assert_allclose(ratios, expected[1], rtol=1e-10, atol=1e-10)
    assert rows.shape == ratios.shape == (len(B), min(k, len(A)))


@exhaust
@given(st.integers(1, 700), st.integers(1, 5), st.integers(1, 12), st.integers(2, 400), st.integers(0, 2**32 - 1))
def test_best_of_a_block_with_ties(n, m, k, values, seed):
    """Few different values: of equal ones, those of the lower rows come, in their order."""
    block = np.random.default_rng(seed).integers(0, values, (n, m)).astype(float)
    rows, found = llr.best(block, min(k, n))
    expected = best_of(block, k)
    np.testing.assert_array_equal(rows, expected[0])
    np.testing.assert_array_equal(found, expected[1])


def test_top_of_equal_sides():
    """The same recording enrolled under many names: any of them, as the last digits of a product have it.

    Which of equal columns a product gives another last digit is the library's affair. Of ratios that are the same to
    the last bit, the first name comes first.
    """
    p, _, b = two_sides("low rank", 11)
    X = np.repeat(b.X[:2], 300, axis=0)
    twice = grouping.enroll(enrolled(p, b).model, X, np.arange(600))
    rows, ratios = llr.Scorer(twice).top(enrolled(p, b), 4)
    which = rows // 300  # of the two recordings
    assert set(which[:, 0].tolist()) == {0, 1}
    np.testing.assert_array_equal(which, np.repeat(which[:, :1], 4, axis=1))
    np.testing.assert_allclose(ratios, np.repeat(ratios[:, :1], 4, axis=1), rtol=1e-12)
    in_order = np.lexsort((rows, -ratios), axis=1)
    np.testing.assert_array_equal(in_order, np.tile(np.arange(4), (len(rows), 1)))


@pytest.mark.parametrize("k", [0, -1, 1.5, None])
def test_top_of_no_number(k):
    *_, A, B = shared_sides("low rank")
    with pytest.raises(DuopldaError, match="must be a whole number from 1 on"):
        llr.Scorer(A).top(B, k)


# -- parts of sides ----------------------------------------------------------------------------------------------------


@every_model
@pytest.mark.parametrize("rows", [slice(2, 7), slice(None, None, -2), [4, 0, 4, 8, 1], []], ids=str)
def test_select(name, rows):
    """Rows of the matrix are those of all sides, sessions that are shared included."""
    *_, A, B = shared_sides(name, 12)
    some = A.select(rows)
    assert some.ids.tolist() == A.ids[rows].tolist()
    assert len(some) == len(A.ids[rows])
    expected = matrix(A, B)[rows]
    np.testing.assert_allclose(matrix(some, B), expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(matrix(B, some), expected.T, rtol=1e-10, atol=1e-10)
    assert some.ids[some.find(some.ids)].tolist() == some.ids.tolist()
    assert sum(block.shape[1] for _, block in llr.Scorer(B).blocks(some, cells=1)) == len(some)
    assert [x.shape for x in llr.Scorer(B).top(some, 3)] == [(len(some), 3)] * 2
    assert [x.shape for x in llr.Scorer(some).top(B, 3)] == [(len(B), min(3, len(some)))] * 2


def test_selected_sides_keep_what_they_share():
    """Some trials share sessions; after `select` they do not all, and these are no longer merged."""
    *_, A, B = shared_sides("low rank", 13)
    i, j, _ = shared(A, B)
    left, *_ = shared(A.select([int(i[0])]), B)
    assert left.tolist() == [0] * np.sum(i == i[0])
    others = np.setdiff1d(np.arange(len(B)), j)
    assert shared(A, B.select(others)) is None
    assert len(others) < len(B)


# -- libraries and estimators ------------------------------------------------------------------------------------------


@every_way
def test_every_way_is_the_same_in_every_library(library, way):
    p, a, b = two_sides("low rank", 20, n=(12, 14), recordings=(1, 3))
    plda = PLDA.from_parameters(*(library.put(x) for x in (p.mu[0], p.V, p.U, p.W[0])))
    A, B = (plda.enroll(library.put(s.X), s.speaker, s.session) for s in (a, b))
    ratios = WAYS[way](A, B)
    expected = oracle.llr_matrix(p, a, b)
    np.testing.assert_allclose(library.get(filled(ratios, A, B, slice(2, 11))), expected[:, 2:11], **near)
    np.testing.assert_allclose(library.get(ratios.pairs(B, *each_pair(A, B).T)), expected.ravel(), **near)


@pytest.mark.parametrize("seed", range(2))
def test_every_library_gives_the_same(library, seed):
    p, a, b, A, B = shared_sides("low rank", 14 + seed, n=(12, 14))
    plda = PLDA.from_parameters(*(library.put(x) for x in (p.mu[0], p.V, p.U, p.W[0])))
    ours, theirs = (plda.enroll(library.put(s.X), s.speaker, s.session) for s in (a, b))
    expected = matrix(A, B)
    tight = {"rtol": 1e-10, "atol": 1e-10}
    np.testing.assert_allclose(library.get(plda.llr(ours, theirs)), expected, **tight)
    np.testing.assert_allclose(library.get(plda.llr(theirs, ours)), expected.T, **tight)
    for part, block in plda.llr_blocks(ours, theirs, cells=40):
        np.testing.assert_allclose(library.get(block), expected[:, part], **tight)
    for part, block in plda.llr_blocks(ours, theirs, cells=40, host=True):
        assert isinstance(block, np.ndarray)
        np.testing.assert_allclose(block, expected[:, part], **tight)
    rows, ratios = plda.top(ours, theirs, 3)
    assert type(rows) is library.array_type
    np.testing.assert_array_equal(np.asarray(rows), best_of(expected, 3)[0])
    np.testing.assert_allclose(library.get(ratios), best_of(expected, 3)[1], **tight)
    for rows in ([5, 1, 2], slice(None, None, -3)):
        np.testing.assert_allclose(library.get(plda.llr(ours.select(rows), theirs)), expected[rows], **tight)
    many = np.tile(each_pair(A, B), (4, 1))  # so many that factors of all rows are made
    np.testing.assert_allclose(library.get(plda.llr(ours, theirs, pairs=many)), np.tile(expected.ravel(), 4), **tight)


@pytest.mark.parametrize("order", ["sorted", "in turns", "any"])
def test_rows_of_a_pattern_in_every_library(library, order):
    rng = np.random.default_rng(16)
    p = oracle.random_model(rng, 3, 2, 2)
    n = {"sorted": np.arange(30) // 15, "in turns": np.arange(30) % 2, "any": rng.integers(0, 2, 30)}[order]
    side = np.repeat(np.arange(30), n + 1)
    X = rng.normal(p.mu[0], 3.0, (len(side), 3))
    numpys, ours = (
        PLDA.from_parameters(*map(put, (p.mu[0], p.V, p.U, p.W[0]))).enroll(put(X), side, side)
        for put in (np.asarray, library.put)
    )
    np.testing.assert_allclose(library.get(matrix(ours, ours)), matrix(numpys, numpys), rtol=1e-10, atol=1e-10)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_blocks_of_a_gpu_arrive_whole():
    """Many blocks at once on the host, each copied while the next is computed: none is overwritten."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    p, a, b, A, B = shared_sides("low rank", 17, n=(40, 600))
    plda = PLDA.from_parameters(*(torch.asarray(x, device="cuda") for x in (p.mu[0], p.V, p.U, p.W[0])))
    ours, theirs = (plda.enroll(torch.asarray(s.X, device="cuda"), s.speaker, s.session) for s in (a, b))
    found = list(plda.llr_blocks(ours, theirs, cells=200, host=True))
    assert len(found) == 120
    whole = np.concatenate([block for _, block in found], axis=1)
    np.testing.assert_allclose(whole, matrix(A, B), rtol=1e-10, atol=1e-10)
    assert plda.llr(ours, theirs).is_cuda


@pytest.mark.parametrize("calibrated", [True, False])
@pytest.mark.parametrize("method", ["affine", "pav"])
def test_a_chain_calibrates_blocks_and_the_best(method, calibrated):
    p, a, b, *_ = shared_sides("low rank", 18)
    chain = Backend.from_plda(PLDA.from_parameters(p.mu[0], p.V, p.U, p.W[0]))
    A, B = chain.enroll(a.X, a.speaker, a.session), chain.enroll(b.X, b.speaker, b.session)
    raw = chain.llr(A, B)
    target = raw + np.random.default_rng(0).normal(0, 3, raw.shape) > np.median(raw)
    chain.calibrate(raw.ravel(), target.ravel(), method)
    expected = chain.llr(A, B, calibrated=calibrated)
    assert np.array_equal(expected, raw) != calibrated
    for part, block in chain.llr_blocks(A, B, cells=20, calibrated=calibrated):
        np.testing.assert_allclose(block, expected[:, part], rtol=1e-9, atol=1e-9)
    rows, scores = chain.top(A, B, 3, calibrated=calibrated)
    np.testing.assert_array_equal(rows, best_of(raw, 3)[0])
    np.testing.assert_allclose(scores, np.take_along_axis(expected, rows.T, axis=0).T, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("call", [lambda m, *s: m.llr_blocks(*s), lambda m, *s: m.top(*s, 2)], ids=["blocks", "top"])
def test_sides_of_another_model_are_refused(call):
    p, _, b, A, _ = shared_sides("low rank", 19)
    plda = PLDA.from_parameters(p.mu[0], p.V, p.U, p.W[0])
    other = PLDA.from_parameters(p.mu[0], 2 * p.V, p.U, p.W[0]).enroll(b.X, b.speaker)
    with pytest.raises(DuopldaError, match="enrolled by different models"):
        call(plda, A, other)
    with pytest.raises(DuopldaError, match="tests: X has 1 features"):
        call(plda, A, b.X[:, :1])
