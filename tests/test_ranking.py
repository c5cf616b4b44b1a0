"""The highest-scoring of many sides, by single precision and then double: the same as from the whole matrix."""

import numpy as np
import pytest

from duoplda import PLDA
from duoplda.trials.ranking import FEWEST, ranking_of
from duoplda.trials.sides import Sides
from duoplda.trials.tables import Table

NY = 8


@pytest.fixture(scope="module")
def plda():
    rng = np.random.default_rng(0)
    d = 10
    return PLDA.from_parameters(rng.normal(size=d), rng.normal(size=(d, NY)), rng.normal(size=(d, 3)), 2 * np.eye(d))


def drawn(plda, n, types, most=2, seed=0, first=0, scale=3.0):
    """Sides with random counts of sessions of some types, and gamma of about the size that these have."""
    rng = np.random.default_rng(seed)
    counts = np.zeros((n, len(types)), np.int64)
    counts[np.arange(n), rng.integers(len(types), size=n)] = rng.integers(1, most + 1, size=n)
    gamma = scale * rng.normal(size=(n, NY))
    people = Table(ids=np.arange(first, first + n), counts=counts, gamma=gamma)
    return Sides(plda.model_, np.array(types), people)


def check(plda, sides, tests, k):
    rows, ratios = plda.top(sides, tests, k)
    matrix = np.asarray(plda.llr(sides, tests))
    ranking = ranking_of(sides)
    if not len(sides.session):  # without sessions in common
        np.testing.assert_allclose(ranking.ratios(tests), matrix.T, rtol=1e-9, atol=1e-9)
    for t in range(len(tests)):
        order = np.lexsort((np.arange(len(sides)), -np.round(matrix[:, t], 9)))[:k]
        np.testing.assert_allclose(ratios[t], matrix[order, t], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(matrix[rows[t], t], ratios[t], rtol=1e-9, atol=1e-9)
        assert len(set(rows[t].tolist())) == k


@pytest.mark.parametrize("types", [[[1]], [[1], [2], [4]]])
@pytest.mark.parametrize("k", [1, 7])
def test_the_same_as_from_the_matrix(plda, types, k):
    sides = drawn(plda, FEWEST + 500, types)
    tests = drawn(plda, 6, [[1], [3]], seed=1)
    assert ranking_of(sides) is not None
    check(plda, sides, tests, k)
    check(plda, sides, tests.select([2]), k)


def test_equal_and_nearly_equal_sides(plda):
    """Beyond what single precision can tell: copies come in the order of their rows."""
    sides = drawn(plda, FEWEST + 100, [[1]], most=1, scale=100.0)
    test = drawn(plda, 1, [[1]], most=1, seed=1, scale=100.0)
    best = int(np.asarray(plda.llr(sides.select(slice(None)), test))[:, 0].argmax())
    for i in range(40):
        sides.gamma[i] = sides.gamma[best]
    for i in range(40, 60):
        sides.gamma[i] = sides.gamma[best] * (1 + 1e-12 * i)
    rows, ratios = plda.top(sides, test, 30)
    order = np.lexsort((np.arange(len(sides)), -np.asarray(plda.llr(sides, test))[:, 0]))
    np.testing.assert_allclose(ratios[0], np.asarray(plda.llr(sides, test))[order[:30], 0], rtol=1e-12)
    copies = [row for row in rows[0].tolist() if row < 40 or row == best]
    assert copies == sorted(copies)


def test_changes_are_followed(plda):
    """Sides that are added, added to, replaced and removed, before and after the first question."""
    sides = drawn(plda, FEWEST + 100, [[1], [2]])
    tests = drawn(plda, 4, [[1], [3]], seed=1)
    check(plda, sides, tests, 3)
    made = sides.ranking
    best = plda.top(sides, tests, 3)[0]
    sides.add(drawn(plda, 50, [[5]], seed=2, first=10**6))  # new ones, of a new type
    sides.add(drawn(plda, 1, [[1]], seed=3, first=int(best[0, 0])))  # more sessions of a known one
    check(plda, sides, tests, 3)
    sides.put(drawn(plda, 1, [[2]], seed=4, first=int(best[1, 0])))  # one in the place of another
    sides.put(drawn(plda, 60, [[1], [2]], seed=5, first=2 * 10**6))
    check(plda, sides, tests, 3)
    check(plda, sides, drawn(plda, 2, [[2]], seed=6), 3)
    assert sides.ranking is made  # nothing was made anew
    sides.remove(best[2])
    check(plda, sides, tests, 3)


def test_tests_that_share_a_session_with_a_side_are_exact_too(plda):
    rng = np.random.default_rng(1)
    sides = drawn(plda, FEWEST + 10, [[1]], most=1)
    X = rng.normal(size=(3, 10))
    sides.add(plda.enroll(X[:2], [10**6, 10**6 + 1], ["s", "t"]))
    tests = plda.enroll(X, [0, 0, 1], ["s", "s", "u"])
    check(plda, sides, tests, 4)


def test_guesses_are_near(plda):
    sides = drawn(plda, FEWEST + 100, [[1], [2]])
    tests = drawn(plda, 3, [[1], [3]], seed=1)
    ranking = ranking_of(sides)
    np.testing.assert_allclose(ranking.ratios(tests, precise=False), np.asarray(plda.llr(sides, tests)).T, atol=1e-3)


@pytest.mark.parametrize(("n", "near"), [(20_100, 1e-3), (500, 1e-9)])
def test_a_gallery_of_a_registry(plda, n, near):
    """The ratios of the highest are exact, of very many voices those of others near; voices that change or go."""
    pytest.importorskip("sqlalchemy")
    from duoplda import Backend
    from duoplda.voices.gallery import EXACT_UP_TO, Gallery

    assert (n > EXACT_UP_TO) == (near > 1e-9)
    gallery = Gallery(Backend.from_plda(plda))
    sides = drawn(plda, n, [[1], [2]])
    gallery.put([f"voice {i}" for i in range(n)], sides)
    tests = drawn(plda, 3, [[1]], seed=1)

    def same(sides, names):
        ratios = gallery.ratios(tests, 4)
        exact = np.asarray(plda.llr(sides, tests)).T
        np.testing.assert_allclose(ratios, exact, rtol=1e-9, atol=near)
        assert gallery.ratio(7, tests.select([1])) == pytest.approx(exact[1, 7], rel=1e-9)
        rows = np.argsort(-exact, axis=1)[:, :4]
        np.testing.assert_allclose(np.take_along_axis(ratios, rows, 1), np.take_along_axis(exact, rows, 1), rtol=1e-9)
        assert gallery.names == names
        assert [gallery.row(name) for name in names[:50]] == list(range(50))

    names = [f"voice {i}" for i in range(n)]
    same(sides, names)
    other = drawn(plda, 2, [[2]], seed=9)
    gallery.put(["voice 1", "voice 0"], other)  # with each other's names
    names[:2] = ["voice 1", "voice 0"]
    same(sides.put(other), names)
    gallery.remove([3, 10**7])
    names.pop(3)
    same(sides.remove([3]), names)
    assert not gallery.scorer.plans  # nothing was made anew for all voices
