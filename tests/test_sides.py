"""Sides that change: added to, removed from, saved and loaded again; and models that change under them."""

import copy
import pickle
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from duoplda import PLDA, Backend, DuopldaError
from duoplda.io import read_container, write_container
from duoplda.trials.blocks import Scorer
from duoplda.trials.side_files import read_enrolled
from duoplda.trials.sides import Sides, enroll, load
from test_llr import MODELS, enrolled, every_model, model_of, near, share, two_sides

exhaust = settings(max_examples=25, derandomize=True, deadline=None, database=None)


def by_type(side):
    """Sessions of each side by type, whatever the order of the columns."""
    return [sorted((tuple(t), int(n)) for t, n in zip(side.types, row, strict=True) if n) for row in side.counts]


def assert_same_sides(a, b):
    order = a.find(b.ids)
    assert len(a) == len(b)
    np.testing.assert_allclose(a.gamma[order], b.gamma, rtol=1e-9, atol=1e-9)
    assert [by_type(a)[i] for i in order] == by_type(b)
    names = [sorted((str(s.ids[i]), str(n), *s.types[t]) for i, n, t in zip(s.session_side, s.session, s.session_type,
             strict=True)) for s in (a, b)]  # fmt: skip
    assert names[0] == names[1]


def in_parts(p, data, part, named=True):
    """Sides of recordings that come in parts, added up one after another."""
    parts = [enrolled(p, data.rows(part == t), named) for t in np.unique(part)]
    out = parts[0].select(slice(None))
    for other in parts[1:]:
        assert out.add(other) is out
    return out


# -- adding and removing -----------------------------------------------------------------------------------------------


@every_model
@pytest.mark.parametrize("seed", range(2))
def test_sides_in_parts_are_sides_at_once(name, seed):
    """Recordings of a session come in different parts, and so do the sessions of a speaker."""
    p, a, b = two_sides(name, seed, n=(6, 7), recordings=(1, 5))
    b = share(np.random.default_rng(seed), a, b, 0.3)
    part = np.random.default_rng(seed).integers(0, 4, len(a))
    A, whole, B = in_parts(p, a, part), enrolled(p, a), enrolled(p, b)
    assert_same_sides(A, whole)
    got = A.find(whole.ids)
    expected = oracle.llr_matrix(p, a, b)
    np.testing.assert_allclose(Scorer(A).columns(B)[got], expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(Scorer(B).columns(A)[:, got], expected.T, rtol=1e-9, atol=1e-9)


@exhaust
@given(st.integers(0, 2**32 - 1), st.sampled_from(list(MODELS)), st.integers(1, 9), st.booleans())
def test_any_parts(seed, name, n, named):
    p, a, _ = two_sides(name, seed, n=(3, 2), recordings=(1, 4))
    part = np.random.default_rng(seed).integers(0, n, len(a))
    assert_same_sides(in_parts(p, a, part, named), enrolled(p, a, named))


def test_sessions_with_and_without_names():
    p, a, b = two_sides("low rank", 3)
    other = oracle.Data(b.X, b.speaker, b.session, b.kind)
    both = enrolled(p, a).add(enrolled(p, other, named=False))
    assert both.session.tolist() == enrolled(p, a).session.tolist()
    joined = oracle.join(a, oracle.Data(b.X, b.speaker, np.char.add("x", np.arange(len(b)).astype(str)), b.kind))
    np.testing.assert_allclose(Scorer(both).columns(enrolled(p, a)), oracle.llr_matrix(p, joined, a), **near)
    turned = enrolled(p, other, named=False).add(enrolled(p, a))
    assert_same_sides(turned, both)


def test_a_session_of_a_known_speaker_costs_no_copy():
    """Neither time nor memory depends on how many others are enrolled."""
    rng = np.random.default_rng(0)
    p = oracle.random_model(rng, 4, 3, 2)
    n = 20_000
    side = enroll(model_of(p), rng.normal(size=(n, 4)), np.arange(n), np.arange(n))
    new = [enroll(model_of(p), rng.normal(size=(2, 4)), [7, 7], [n + t, n + t]) for t in range(3)]
    side.add(new[0])  # the ids are indexed, and room is made
    gamma, before = side.gamma, side.gamma.copy()
    tracemalloc.start()
    try:
        side.add(new[1])
        again = enroll(side.model, rng.normal(size=(1, 4)), [7], [7])  # a further recording of an old session
        side.add(again)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50_000 < side.gamma.nbytes // 8
    assert np.shares_memory(gamma, side.gamma)
    assert np.flatnonzero((side.gamma != before).any(axis=1)).tolist() == [7]
    assert side.counts[7].sum() == 3


def test_many_small_additions_grow_the_table_seldom():
    rng = np.random.default_rng(1)
    p = oracle.random_model(rng, 3, 2, 1)
    X = rng.normal(size=(300, 3))
    side = Sides.empty(model_of(p))
    copies = 0
    for i in range(300):
        before = side.gamma
        side.add(enroll(side.model, X[i : i + 1], [f"speaker {i}"], [f"session {i}"]))
        copies += not np.shares_memory(before, side.gamma)
    assert copies < 12
    assert_same_sides(side, enroll(side.model, X, [f"speaker {i}" for i in range(300)],
                                   [f"session {i}" for i in range(300)]))  # fmt: skip


def test_sides_are_removed_with_their_sessions():
    p, a, b = two_sides("low rank", 5)
    b = share(np.random.default_rng(1), a, b, 0.5)
    A, B = enrolled(p, a), enrolled(p, b)
    gone = A.ids[[1, 4]]
    rest = ~np.isin(a.speaker, gone)
    assert A.remove(gone) is A
    assert_same_sides(A, enrolled(p, a.rows(rest)))
    np.testing.assert_allclose(Scorer(A).columns(B), oracle.llr_matrix(p, a.rows(rest), b), **near)
    A.add(enrolled(p, a.rows(~rest)))  # and back again
    assert_same_sides(A, enrolled(p, a))
    with pytest.raises(DuopldaError, match="1 ids are not among the 6 enrolled: 'nobody'"):
        A.remove(["nobody"])
    assert len(A.remove(A.ids)) == 0


def test_what_was_computed_is_computed_anew():
    p, a, b = two_sides("low rank", 6)
    first = np.arange(len(a)) % 2 == 0
    A, B = enrolled(p, a.rows(first)), enrolled(p, b)
    scorer = Scorer(A)
    scorer.columns(B), scorer.pairs(B, np.tile([[0, 0]], (500, 1)))
    A.add(enrolled(p, a.rows(~first)))
    order = A.find(np.unique(a.speaker))
    np.testing.assert_allclose(scorer.columns(B)[order], oracle.llr_matrix(p, a, b), **near)
    got = scorer.pairs(B, np.tile([[order[0], 0]], (500, 1)))
    np.testing.assert_allclose(got, oracle.llr_matrix(p, a, b)[0, 0], **near)


@pytest.mark.parametrize("types", [(np.int64, np.uint64), (np.int64, float), (np.uint8, np.int64), (np.int64, str),
                                   (str, np.int64), ("S3", "U5")])  # fmt: skip
def test_ids_of_another_type_are_the_same_ids(types):
    """5, 5.0, "5" and b"5" name one speaker, and one session."""
    rng = np.random.default_rng(2)
    p = oracle.random_model(rng, 3, 2, 2)
    X, who = rng.normal(size=(6, 3)), np.array([1, 1, 2, 2, 3, 12])
    session = np.array([10, 10, 20, 21, 30, 40])
    first = np.array([0, 2, 4])
    rest = np.setdiff1d(np.arange(6), first)
    parts = [
        enroll(model_of(p), X[rows], who[rows].astype(t), session[rows].astype(t))
        for rows, t in zip((first, rest), types, strict=True)
    ]
    side = parts[0].add(parts[1])
    whole = enroll(model_of(p), X, who, session)
    assert sorted(map(int, side.ids.tolist())) == [1, 2, 3, 12]
    order = side.find(whole.ids)
    np.testing.assert_allclose(side.gamma[order], whole.gamma, **near)
    assert side.counts.sum() == 5


def test_what_cannot_be_added():
    p, a, b = two_sides("low rank", 7)
    A = enrolled(p, a)
    other = Sides.empty(model_of(oracle.Params(p.mu, p.V, p.U, 2 * p.W)))
    with pytest.raises(DuopldaError, match="enrolled by different models"):
        A.add(other)
    with pytest.raises(DuopldaError, match="an id occurs twice"):
        A.add(enrolled(p, b).select([0, 0]))


def test_every_library_adds(library):
    p, a, b = two_sides("low rank", 8)
    plda = PLDA.from_parameters(*(library.put(x) for x in (p.mu[0], p.V, p.U, p.W[0])))
    part = np.arange(len(a)) % 3
    A, *rest = (plda.enroll(library.put(a.X[part == t]), a.speaker[part == t], a.session[part == t]) for t in range(3))
    for other in rest:
        A.add(other)
    B = plda.enroll(library.put(b.X), b.speaker, b.session)
    got = library.get(plda.llr(A, B))[A.find(np.unique(a.speaker))]
    np.testing.assert_allclose(got, oracle.llr_matrix(p, a, b), rtol=1e-9, atol=1e-9)
    assert library.get(A.remove(A.ids[:2]).gamma).shape == (4, 2)


# -- what is kept between sets of tests --------------------------------------------------------------------------------


def some_tests(rng, p, sizes):
    """Tests of one session each, of so many recordings."""
    sides = np.repeat(np.arange(len(sizes)), sizes)
    return enroll(model_of(p), rng.normal(size=(len(sides), p.V.shape[0])), sides, sides + 10_000)


@pytest.mark.parametrize("call", ["columns", "pairs"])
def test_factors_are_made_once_for_all_tests_of_the_same_patterns(call):
    """Tests with the same few patterns, as often as one likes, in any order and any number: nothing is made anew."""
    rng = np.random.default_rng(3)
    p, a, _ = two_sides("low rank", 9, n=(12, 2), recordings=(1, 3))
    A = enrolled(p, a)
    scorer = Scorer(A)
    sets = [some_tests(rng, p, sizes) for sizes in ([1, 2, 1, 1], [2, 2, 1], [1] * 30 + [2], [2, 1])]
    assert len({b.groups.key for b in sets}) == 1
    plan = scorer.plan(sets[0])
    for b in sets:
        index = np.argwhere(np.ones((len(A), len(b)), bool)).repeat(50, axis=0)
        got = scorer.columns(b) if call == "columns" else scorer.pairs(b, index)[::50].reshape(len(A), len(b))
        assert scorer.plan(b) is plan
        np.testing.assert_allclose(got, Scorer(A).columns(b), rtol=1e-12, atol=1e-12)
    assert len(scorer.plans) == 1
    scorer.columns(some_tests(rng, p, [1, 3]))
    assert len(scorer.plans) == 2


def test_what_is_kept_is_bounded():
    """The plans of tests that came last are kept, as far as they fit, and the last one always."""
    rng = np.random.default_rng(4)
    p, a, _ = two_sides("low rank", 10)
    A = enrolled(p, a)
    sets = [some_tests(rng, p, [n]) for n in range(1, 20)]
    size = sum(ratios.size for ratios in Scorer(A).plan(sets[-1]))
    for kept_bytes, least, most in ((5 * size, 2, 5), (0, 1, 1)):
        scorer = Scorer(A, kept_bytes=kept_bytes)
        for b in sets:
            np.testing.assert_allclose(scorer.columns(b), Scorer(A).columns(b), rtol=1e-12)
        assert least <= len(scorer.plans) <= most


def test_few_pairs_of_many_build_the_factors_that_all_will_need():
    """Chunk after chunk of listed trials: told how many there will be, the first chunk builds what the others use."""
    rng = np.random.default_rng(5)
    p, a, _ = two_sides("low rank", 11, n=(40, 2), recordings=(1, 1))
    A, b = enrolled(p, a), some_tests(rng, p, [1] * 4)
    index = np.column_stack([np.arange(16) % 40, np.arange(16) % 4])
    expected = Scorer(A).columns(b)[index[:, 0], index[:, 1]]
    for total, plans in ((0, 0), (10_000, 1)):
        scorer = Scorer(A)
        np.testing.assert_allclose(scorer.pairs(b, index, expected=total), expected, **near)
        assert len(scorer.plans) == plans


def test_ragged_sides_have_factors_of_their_own_for_pairs():
    """The matrix is computed pair by pair, but not where many pairs of few rows are listed."""
    rng = np.random.default_rng(18)
    p = oracle.random_model(rng, 4, 2, 3)
    A, B = (enrolled(p, oracle.random_data(rng, p, 90, (6, 12), (1, 6))).unnamed() for _ in range(2))
    scorer = Scorer(A)
    expected = scorer.columns(B)
    assert [type(ratios).__name__ for ratios in scorer.plan(B)] == ["ListedRatios"]
    index = np.argwhere(np.ones(expected.shape, bool)).repeat(3, axis=0)
    np.testing.assert_allclose(scorer.pairs(B, index), expected[index[:, 0], index[:, 1]], rtol=1e-9, atol=1e-9)
    assert [type(ratios).__name__ for ratios in scorer.plan(B, whole=True)] == ["PatternProducts"]
    assert len(scorer.plans) == 2


def test_sides_are_pickled_without_what_was_computed():
    p, a, b = two_sides("low rank", 12)
    A, B = enrolled(p, a), enrolled(p, b)
    size = len(pickle.dumps(A))
    expected = Scorer(A).columns(B)
    assert len(pickle.dumps(A)) == size
    np.testing.assert_array_equal(Scorer(pickle.loads(pickle.dumps(A))).columns(B), expected)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["low rank", "kinds", "no session factors"])
@pytest.mark.parametrize("kind", ["text", "numbers", "no names", "added"])
def test_saved_sides_are_the_same_sides(tmp_path, name, kind):
    p, a, b = two_sides(name, 13)
    b = share(np.random.default_rng(0), a, b, 0.4)
    if kind == "numbers":
        session = [np.unique(np.concatenate([a.session, b.session]), return_inverse=True)[1], None]
        a, b = (oracle.Data(s.X, np.unique(s.speaker, return_inverse=True)[1], c, s.kind)
                for s, c in zip((a, b), np.split(session[0], [len(a)]), strict=True))  # fmt: skip
    A, B = (enrolled(p, s, kind != "no names") for s in (a, b))
    if kind == "added":
        A = in_parts(p, a, np.arange(len(a)) % 3)
    A.save(tmp_path / "voices")
    back = load(tmp_path / "voices", A.model)
    assert back.ids.dtype.kind == A.ids.dtype.kind
    assert back.ids.tolist() == A.ids.tolist()
    np.testing.assert_array_equal(Scorer(back).columns(B), Scorer(A).columns(B))
    back.add(B)
    assert_same_sides(back, in_parts(p, oracle.join(a, b), np.repeat([0, 1], [len(a), len(b)]), kind != "no names"))


def test_names_that_are_not_ascii(tmp_path):
    plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
    names = ["Žofie", "小林", "a", ""]
    plda.enroll(np.ones((4, 1)), names, names[::-1]).save(tmp_path / "voices")
    back = plda.load_sides(tmp_path / "voices")
    assert back.ids.tolist() == sorted(names)
    assert back.session[back.session_side == back.find(["小林"])].tolist() == ["a"]


CHANGES = {
    "noise_precision_": lambda plda: setattr(plda, "noise_precision_", 5 * plda.noise_precision_),
    "channel_means_": lambda plda: setattr(plda, "channel_means_", 1 + plda.channel_means_),
    "mean_": lambda plda: setattr(plda, "mean_", 1 + plda.mean_),
    "speaker_loadings_": lambda plda: setattr(plda, "speaker_loadings_", 2 * plda.speaker_loadings_),
    "session_loadings_": lambda plda: setattr(plda, "session_loadings_", 2 * plda.session_loadings_),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_refuses_its_old_sides(tmp_path, change):
    """Ratios would silently be wrong: by hundreds of nats where the noise is five times smaller."""
    p, a, b = two_sides("low rank", 14)
    plda = PLDA.from_parameters(p.mu[0], p.V, p.U, p.W[0])
    A, B = (plda.enroll(s.X, s.speaker, s.session) for s in (a, b))
    A.save(tmp_path / "voices")
    plda.llr(A, B)
    CHANGES[change](plda)
    with pytest.raises(DuopldaError, match="enrolled by different models"):
        plda.llr(A, B)
    with pytest.raises(DuopldaError, match="enrolled by different models"):
        plda.llr(plda.enroll(a.X, a.speaker), B)
    with pytest.raises(DuopldaError, match="enrolled with another model"):
        plda.load_sides(tmp_path / "voices")
    with pytest.raises(DuopldaError, match="enrolled by different models"):
        A.add(plda.enroll(b.X, b.speaker))
    new = [plda.enroll(s.X, s.speaker, s.session) for s in (a, b)]
    assert np.isfinite(plda.llr(*new)).all()


def test_a_model_from_a_file_loads_the_sides_of_the_one_that_was_saved(tmp_path):
    rng = np.random.default_rng(15)
    X, speaker = rng.normal(size=(200, 6)), np.repeat(np.arange(50), 4)
    backend = Backend(plda=PLDA(3, 2, max_iter=5, tol=1)).fit(X, speaker, session=np.repeat(np.arange(100), 2))
    backend.save(tmp_path / "model")
    sides = backend.enroll(X[:20], speaker[:20])
    sides.save(tmp_path / "voices")
    again = Backend.load(tmp_path / "model")
    tests = again.enroll(X[20:], np.arange(180))
    np.testing.assert_array_equal(again.llr(again.load_sides(tmp_path / "voices"), tests), again.llr(sides, tests))
    other = Backend(plda=PLDA(3, 2, max_iter=5, tol=1)).fit(X[4:], speaker[4:], session=np.repeat(np.arange(98), 2))
    with pytest.raises(DuopldaError, match=r"voices: .*enrolled with another model.*give the model that enrolled"):
        other.load_sides(tmp_path / "voices")


DAMAGE = {
    "a lacking array": lambda a: a.pop("gamma"),
    "another shape": lambda a: a.update(gamma=a["gamma"][:, :1]),
    "another type": lambda a: a.update(counts=a["counts"].astype(float)),
    "negative counts": lambda a: a.update(counts=-a["counts"]),
    "a side that is not there": lambda a: a.update(session_side=a["session_side"] + 100),
    "a side far away": lambda a: a.update(session_side=a["session_side"] + 2**50),
    "a type that is not there": lambda a: a.update(session_type=a["session_type"] + 100),
    "sessions that are not counted": lambda a: a.update(counts=0 * a["counts"]),
    "NaN": lambda a: a.update(z=a["z"] * np.nan),
    "numbers whose squares overflow": lambda a: a.update(gamma=a["gamma"] + 1e200),
    "a sum that overflows": lambda a: a.update(seen=np.full(7, 1e308), n_seen=np.array([2])),
    "more sessions than anybody has": lambda a: a.update(counts=a["counts"] + 2**40),
    "more recordings than a session has": lambda a: a.update(types=a["types"] + 2**62),
    "names that are no text": lambda a: a.update(ids=np.full_like(a["ids"], 2**31)),
    "names of three dimensions": lambda a: a.update(ids=a["ids"][:, :, None]),
    "names without letters": lambda a: a.update(ids=a["ids"][:, :0]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_sides_are_one_line(tmp_path, damage):
    p, a, _ = two_sides("low rank", 16)
    A = enrolled(p, a)
    A.save(tmp_path / "good")
    arrays, header = read_container(tmp_path / "good", ["duoplda-sides"])
    DAMAGE[damage](arrays)
    write_container(tmp_path / "bad", "duoplda-sides", arrays, header)
    with pytest.raises(DuopldaError, match=r"bad: is damaged: ") as error:
        load(tmp_path / "bad", A.model)
    assert "\n" not in str(error.value)
    with suppress(DuopldaError):  # without the model, some damage cannot be seen
        read_enrolled(tmp_path / "bad")


def test_sides_are_no_model(tmp_path):
    plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
    plda.enroll([[1.0]], ["a"]).save(tmp_path / "voices")
    plda.save(tmp_path / "model")
    with pytest.raises(DuopldaError, match="file of enrolled speakers"):
        PLDA.load(tmp_path / "voices")
    with pytest.raises(DuopldaError, match="not a file of enrolled speakers"):
        plda.load_sides(tmp_path / "model")
    with pytest.raises(DuopldaError, match="exists already"):
        plda.enroll([[1.0]], ["a"]).save(tmp_path / "voices", force=False)


def test_patterns_are_in_an_order_of_their_own():
    """Sides with the same patterns can use the same factors, whichever sides they are."""
    rng = np.random.default_rng(17)
    p = oracle.random_model(rng, 3, 2, 1)
    a, b = some_tests(rng, p, [3, 1, 1, 2]), some_tests(rng, p, [2, 2, 2, 1, 3])
    assert a.groups.key == b.groups.key
    assert a.groups.rows[a.groups.index].tolist() == a.counts.tolist()


def test_a_copy_is_changed_alone():
    """What is added to a copy, or removed from it, is not seen in the original."""
    plda = PLDA.from_parameters([0.0], [[1.0]], [[0.5]], [[1.0]])
    sides = plda.enroll([[1.0], [2.0]], ["a", "b"], ["s", "t"])
    before = sides.gamma.copy(), sides.counts.copy(), sides.z.copy()
    other = copy.copy(sides)
    other.add(plda.enroll([[4.0], [5.0]], ["a", "c"], ["s", "u"]))
    other.remove(["b"])
    assert sides.ids.tolist() == ["a", "b"]
    for old, new in zip(before, (sides.gamma, sides.counts, sides.z), strict=True):
        np.testing.assert_array_equal(old, new)


def test_sides_of_a_group_are_summed_up():
    plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
    X = np.array([[1.0], [2.0], [4.0], [8.0]])
    found = plda.enroll(X, ["a", "b", "c", "d"]).grouped(np.array([1, 0, 1, 1]))
    want = plda.enroll(X, [1, 0, 1, 1])
    np.testing.assert_array_equal(found.counts, want.counts)
    np.testing.assert_allclose(found.gamma, want.gamma)
    assert not len(found.session)
