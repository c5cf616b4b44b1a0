"""Likelihood ratios between sets of recordings against dense Gaussians; sides that share sessions; pairs."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from duoplda import PLDA, Backend, DomainWarning, DuopldaError, Sides
from duoplda.datasets import make_recordings
from duoplda.model.parameters import Model
from duoplda.trials.blocks import Scorer
from duoplda.trials.sides import enroll

exhaust = settings(max_examples=25, derandomize=True, deadline=None, database=None)
near = {"rtol": 1e-11, "atol": 1e-11}

# name: (d, ny, nx, kinds)
MODELS = {
    "low rank": (4, 2, 3, 1),
    "full rank": (3, 3, 3, 1),
    "no session factors": (3, 2, 0, 1),
    "no speaker factors": (3, 0, 2, 1),
    "one dimension": (1, 1, 1, 1),
    "kinds": (3, 2, 2, 3),
}
every_model = pytest.mark.parametrize("name", MODELS)


def matrix(a, b):
    return Scorer(a).columns(b)


def listed(a, b, index):
    return Scorer(a).pairs(b, index)


def model_of(p):
    return Model(p.mu, p.V, p.U, p.W, np.arange(len(p.mu)))


def enrolled(p, data, named=True):
    return enroll(model_of(p), data.X, data.speaker, data.session if named else None, data.kind)


def two_sides(name, seed=0, n=(6, 7), recordings=(1, 5)):
    """Two sets of sides of different people, ragged, no session in common."""
    rng = np.random.default_rng(seed)
    p = oracle.random_model(rng, *MODELS[name])
    a, b = (oracle.random_data(rng, p, m, (1, 3), recordings) for m in n)
    return p, a, oracle.Data(b.X, b.speaker, np.char.add("other", b.session), b.kind)


def share(rng, a, b, rate=0.5):
    """Recordings of b join sessions of a at random: each session of b may become one of a's."""
    names, session = np.unique(b.session, return_inverse=True)
    theirs = np.unique(a.session)
    new = names.astype(object)
    for i in np.flatnonzero(rng.random(len(names)) < rate):
        new[i] = rng.choice(theirs)
    return oracle.Data(b.X, b.speaker, np.array(new, str)[session], b.kind)


def each_pair(a, b):
    return np.argwhere(np.ones((len(a), len(b)), bool))


def assert_llr(p, a, b, named=True, expected=None):
    """The matrix, the matrix of swapped sides and all pairs against the oracle."""
    expected = oracle.llr_matrix(p, a, b) if expected is None else expected
    A, B = enrolled(p, a, named), enrolled(p, b, named)
    got = matrix(A, B)
    np.testing.assert_allclose(got, expected, **near)
    np.testing.assert_allclose(matrix(B, A), expected.T, **near)
    np.testing.assert_allclose(listed(A, B, each_pair(A, B)), expected.ravel(), **near)
    return got


# -- sides that share no session ---------------------------------------------------------------------------------------


@every_model
@pytest.mark.parametrize("seed", range(3))
def test_ragged_sets(name, seed):
    p, a, b = two_sides(name, seed)
    got = assert_llr(p, a, b)
    if p.V.shape[1]:
        assert got.std() > 0.01
    else:
        np.testing.assert_array_equal(got, 0.0)


@pytest.mark.parametrize("name", [n for n in MODELS if MODELS[n][3] == 1])
def test_the_estimator(name):
    p, a, b = two_sides(name, 3)
    plda = PLDA.from_parameters(p.mu[0], p.V, p.U, p.W[0])
    A, B = plda.enroll(a.X, a.speaker, a.session), plda.enroll(b.X, b.speaker, session=b.session)
    assert isinstance(A, Sides)
    assert A.ids.tolist() == np.unique(a.speaker).tolist()
    assert A.gamma.shape == (len(A), p.V.shape[1])
    expected = oracle.llr_matrix(p, a, b)
    np.testing.assert_allclose(plda.llr(A, B), expected, **near)
    pairs = np.array([[5, 0], [0, 6], [5, 0], [2, 2]])
    np.testing.assert_allclose(plda.llr(A, B, pairs=pairs), expected[pairs[:, 0], pairs[:, 1]], **near)
    np.testing.assert_allclose(plda.llr(A, B, pairs=pairs.tolist()), expected[pairs[:, 0], pairs[:, 1]], **near)
    # A side is (n, gamma, Lambda): counts of sessions by type, and the types.
    for row, i in enumerate(A.ids):
        sizes = np.unique(a.session[a.speaker == i], return_counts=True)[1]
        assert sorted(np.repeat(A.types[:, 0], A.counts[row]).tolist()) == sorted(sizes.tolist())


@every_model
def test_each_row_of_a_matrix_is_a_side(name):
    """Recordings in the place of sides: each is a side by itself, in a session of its own."""
    p, a, b = two_sides(name)
    plda = PLDA.from_parameters(p.mu, p.V, p.U, p.W, np.arange(len(p.mu)))
    chain = Backend.from_plda(plda)
    A, B = (plda.enroll(data.X, np.arange(len(data.X))) for data in (a, b))
    expected = plda.llr(A, B)
    assert expected.shape == (len(a.X), len(b.X))
    pairs = [(0, 1), (3, 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DomainWarning)  # the data were not drawn from the mean of this model
        for model in (plda, chain):
            for left, right in ((a.X, b.X), (A, b.X), (a.X, B), (a.X.tolist(), b.X.tolist())):
                np.testing.assert_array_equal(model.llr(left, right), expected)
            np.testing.assert_allclose(model.llr(a.X, b.X, pairs), [expected[pair] for pair in pairs], rtol=1e-12)
            blocks = [block for _, block in model.llr_blocks(a.X, b.X)]
            np.testing.assert_array_equal(np.concatenate(blocks, axis=1), expected)
            np.testing.assert_array_equal(model.top(a.X, b.X, 2)[0], model.top(A, B, 2)[0])


def test_recordings_of_nobody_knows_whom_are_compared_with_the_training_data():
    """Rows may all be of one recording, which is far from the mean; but not as far as this."""
    X, speaker, session, _ = make_recordings(60, seed=0)
    chain = Backend(plda=PLDA(8, 8)).fit(X, speaker, session=session)
    for name in np.unique(speaker)[:20]:
        rows = X[speaker == name]
        chain.llr(rows, rows)  # a warning would be an error here
    with pytest.warns(DomainWarning, match="usual for 9 recordings of "):
        chain.llr(X[:3] + 20, X[3:9] + 20)


@every_model
def test_sessions_without_names_are_one_recording_each(name):
    p, a, b = two_sides(name, 4)
    unnamed = [oracle.Data(s.X, s.speaker, np.arange(len(s)) + t, s.kind) for t, s in ((0, a), (1000, b))]
    expected = oracle.llr_matrix(p, *unnamed)
    assert_llr(p, a, b, named=False, expected=expected)
    # One side with names, the other without: nothing is shared, but a's sessions are sessions.
    A, B = enrolled(p, a), enrolled(p, b, named=False)
    np.testing.assert_allclose(matrix(A, B), oracle.llr_matrix(p, a, unnamed[1]), **near)
    np.testing.assert_allclose(matrix(B, A), oracle.llr_matrix(p, unnamed[1], a), **near)


@every_model
def test_one_pattern_on_each_side(name):
    """Single recordings against sets of two sessions of three: one matrix product."""
    rng = np.random.default_rng(5)
    p = oracle.random_model(rng, *MODELS[name])
    a = oracle.draw(rng, p, np.arange(8), np.arange(8), np.zeros(8, int))
    session = np.repeat(np.arange(100, 110), 3)
    b = oracle.draw(rng, p, (session - 100) // 2, session, np.zeros(30, int))
    A, B = enrolled(p, a), enrolled(p, b)
    assert len(A.patterns) == len(B.patterns) == 1
    assert_llr(p, a, b)
    assert_llr(p, a, a.rows(np.arange(3)), named=False, expected=_apart(p, a, a.rows(np.arange(3))))


def _apart(p, a, b):
    return oracle.llr_matrix(p, a, oracle.Data(b.X, b.speaker, b.session + 10_000, b.kind))


@every_model
def test_patterns_that_take_turns(name):
    """Sides of two patterns alternate, on both sides; rows and columns come out in the order of the ids."""
    rng = np.random.default_rng(6)
    p = oracle.random_model(rng, *MODELS[name])
    sides = []
    for start in (0, 1):
        speaker = np.repeat(np.arange(7), np.where(np.arange(7) % 2 == start, 1, 3))
        session = np.where(speaker % 2 == start, speaker, 100 * start + speaker) + 1000 * start
        kind = np.zeros(len(speaker), int)
        data = oracle.draw(rng, p, speaker, session, kind)
        sides.append(data.rows(rng.permutation(len(data))))
    A, B = (enrolled(p, s) for s in sides)
    assert len(A.patterns) == len(B.patterns) == 2
    assert_llr(p, *sides)


@pytest.mark.parametrize("n", [(40, 3), (3, 40), (40, 36)])
def test_more_patterns_than_go_into_one_product(n):
    """Side i has i + 1 recordings (in one session, two or three): every side is a pattern of its own."""
    rng = np.random.default_rng(31)
    p = oracle.random_model(rng, 2, 1, 1)
    sides = []
    for start, m in zip((0, 10_000), n, strict=True):
        speaker = np.repeat(rng.permutation(m), np.arange(1, m + 1))
        session = start + 3 * speaker + np.arange(len(speaker)) % (1 + speaker % 3)
        sides.append(oracle.draw(rng, p, speaker, session))
    a, b = sides
    A, B = enrolled(p, a), enrolled(p, b)
    assert (len(A.patterns), len(B.patterns)) == n
    got = matrix(A, B)
    np.testing.assert_allclose(matrix(B, A), got.T, **near)
    np.testing.assert_allclose(listed(A, B, each_pair(A, B)), got.ravel(), **near)
    for i, j in rng.integers(0, n, (60, 2)):
        expected = oracle.llr(p, a.rows(a.speaker == i), b.rows(b.speaker == j))
        assert got[i, j] == pytest.approx(expected, rel=1e-11, abs=1e-11)


def test_swapped_sides_give_the_transpose():
    p, a, b = two_sides("low rank", 8, n=(12, 15), recordings=(1, 3))
    A, B = enrolled(p, a), enrolled(p, b)
    np.testing.assert_allclose(matrix(A, B), matrix(B, A).T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(matrix(A, A), matrix(A, A).T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_other_number_types_are_computed_in_double_precision(dtype):
    p, a, b = two_sides("low rank", 9)
    plda = PLDA.from_parameters(p.mu[0], p.V, p.U, p.W[0])
    X = a.X.astype(dtype)
    one, two = (plda.enroll(x, a.speaker, a.session) for x in (X, X.astype(np.float64)))
    B = plda.enroll(b.X, b.speaker, b.session)
    np.testing.assert_allclose(plda.llr(one, B), plda.llr(two, B), rtol=1e-12, atol=1e-12)
    assert plda.llr(one, B).dtype == np.float64


# -- sides that share sessions -----------------------------------------------------------------------------------------


@every_model
@pytest.mark.parametrize("rate", [0.3, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_shared_sessions_are_merged(name, rate, seed):
    """Some trials share sessions, some do not; a session of a may join several sides of b."""
    p, a, b = two_sides(name, 10 + seed)
    b = share(np.random.default_rng(seed), a, b, rate)
    expected = oracle.llr_matrix(p, a, b)
    assert_llr(p, a, b, expected=expected)
    if p.U.shape[1] and p.V.shape[1]:  # that they are shared must have made a difference
        apart = oracle.llr_matrix(p, a, oracle.Data(b.X, b.speaker, np.char.add("not ", b.session), b.kind))
        changed = np.abs(expected - apart) > 1e-6
        common = [
            [
                len(np.intersect1d(a.session[a.speaker == i], b.session[b.speaker == j])) > 0
                for j in np.unique(b.speaker)
            ]
            for i in np.unique(a.speaker)
        ]
        np.testing.assert_array_equal(changed, common)
        assert 0 < np.sum(common) < np.size(common)


@every_model
def test_a_session_enrolled_in_several_sides(name):
    """One conversation, recordings of which are in two sides of a and in two of b (and twice in one trial)."""
    rng = np.random.default_rng(20)
    p = oracle.random_model(rng, *MODELS[name])
    K = len(p.mu)
    speaker = np.array(["m", "m", "m", "k", "k", "z", "z", "z"])
    session = np.array(["s", "s", "t", "s", "u", "t", "t", "v"])
    # Drawn as if of one speaker: sides are not assumed to be people.
    one = np.zeros(8, int)
    a = oracle.draw(rng, p, one, session, rng.integers(0, K, 8))
    b = oracle.draw(rng, p, one, session, rng.integers(0, K, 8))
    a = oracle.Data(a.X, speaker, session, a.kind)
    b = oracle.Data(b.X, speaker[::-1], session[::-1], b.kind)
    assert_llr(p, a, b)


@every_model
def test_the_same_recordings_on_both_sides(name):
    """All sessions are shared on the diagonal: what is told apart there is noise alone."""
    p, a, _ = two_sides(name, 21)
    got = assert_llr(p, a, a)
    if p.U.shape[1] and p.V.shape[1]:
        A = enrolled(p, a)
        renamed = enrolled(p, oracle.Data(a.X, a.speaker, np.char.add("x", a.session), a.kind))
        off = ~np.eye(len(A), dtype=bool)
        np.testing.assert_allclose(got[off], matrix(A, renamed)[off], rtol=1e-11, atol=1e-11)
        assert (np.abs(got - matrix(A, renamed))[~off] > 1e-3).all()


def test_a_common_name_costs_only_the_trials_that_share():
    """Every value of the other trials stays what it is, to the last digit."""
    p, a, b = two_sides("low rank", 22)
    apart = matrix(enrolled(p, a), enrolled(p, b))
    session = b.session.astype(object)
    session[b.session == b.session[0]] = a.session[0]
    shared = oracle.Data(b.X, b.speaker, session.astype(str), b.kind)
    got = matrix(enrolled(p, a), enrolled(p, shared))
    i = np.searchsorted(np.unique(a.speaker), a.speaker[0])
    j = np.searchsorted(np.unique(b.speaker), b.speaker[0])
    np.testing.assert_allclose(got, oracle.llr_matrix(p, a, shared), **near)
    assert got[i, j] != apart[i, j]
    got[i, j] = apart[i, j]
    np.testing.assert_array_equal(got, apart)


@pytest.mark.parametrize(
    "types", [(int, np.uint8), (np.int32, np.int64), (int, float), ("S9", "U9"), (object, "U9"), ("U5", "U9")]
)
def test_names_of_sessions_of_another_type_are_the_same_names(types):
    p, a, b = two_sides("low rank", 23, n=(3, 3))
    # Each side of b is a session that a has too.
    codes = [np.unique(a.session, return_inverse=True)[1], np.unique(b.speaker, return_inverse=True)[1]]
    text = types[1] == "U9"
    session = [(np.char.add("s", c.astype(str)) if text else c).astype(t) for c, t in zip(codes, types, strict=True)]
    expected = oracle.llr_matrix(
        p, oracle.Data(a.X, a.speaker, codes[0], a.kind), oracle.Data(b.X, b.speaker, codes[1], b.kind)
    )
    A = enroll(model_of(p), a.X, a.speaker, session[0])
    B = enroll(model_of(p), b.X, b.speaker, session[1])
    np.testing.assert_allclose(matrix(A, B), expected, **near)
    np.testing.assert_allclose(listed(A, B, each_pair(A, B)), expected.ravel(), **near)


# -- pairs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["low rank", "kinds"])
def test_any_list_of_pairs_is_that_part_of_the_matrix(name):
    p, a, b = two_sides(name, 24)
    b = share(np.random.default_rng(0), a, b, 0.4)
    A, B = enrolled(p, a), enrolled(p, b)
    expected = oracle.llr_matrix(p, a, b)

    @exhaust
    @given(st.lists(st.tuples(st.integers(0, len(A) - 1), st.integers(0, len(B) - 1)), max_size=30))
    def check(rows):
        index = np.array(rows, np.int64).reshape(-1, 2)
        got = listed(A, B, index)
        assert got.shape == (len(rows),)
        np.testing.assert_allclose(got, expected[index[:, 0], index[:, 1]], **near)

    check()


def test_no_pairs_and_pairs_many_times_over():
    p, a, b = two_sides("low rank", 25)
    b = share(np.random.default_rng(0), a, b, 0.4)
    A, B = enrolled(p, a), enrolled(p, b)
    assert listed(A, B, np.empty((0, 2), int)).shape == (0,)
    expected = matrix(A, B)
    index = np.tile(each_pair(A, B)[::-1], (50, 1)).astype(np.uint16)
    np.testing.assert_allclose(listed(A, B, index), np.tile(expected.ravel()[::-1], 50), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint64])
def test_pairs_of_any_integer_type(dtype):
    """12 x 20 trials do not fit into eight bits, and nobody should have to know."""
    p, a, b = two_sides("low rank", 32, n=(12, 20), recordings=(1, 3))
    b = share(np.random.default_rng(2), a, b, 0.7)
    A, B = enrolled(p, a), enrolled(p, b)
    index = each_pair(A, B)
    np.testing.assert_array_equal(listed(A, B, index.astype(dtype)), listed(A, B, index))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([[0, 7]], r"1 pairs name rows that do not exist \(side 2 has 7\): 0"),
        ([[0, 0], [6, 0], [-1, 2]], r"2 pairs name rows that do not exist \(side 1 has 6\): 1, 2"),
        ([[0.0, 1.0]], "integers of shape"),
        ([0, 1], "integers of shape"),
        ([[0, 1, 2]], "integers of shape"),
    ],
)
def test_pairs_that_are_not_there(pairs, message):
    p, a, b = two_sides("low rank", 26)
    with pytest.raises(DuopldaError, match=message):
        listed(enrolled(p, a), enrolled(p, b), pairs)


def test_rows_by_id():
    p, a, _ = two_sides("low rank", 27)
    A = enrolled(p, a)
    wanted = ["speaker3", "speaker0", "speaker3"]
    assert A.ids[A.find(wanted)].tolist() == wanted
    with pytest.raises(DuopldaError, match=r"1 ids are not among the 6 enrolled: 'speaker9'"):
        A.find(["speaker9", "speaker0"])


# -- invariances -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["low rank", "full rank", "kinds"])
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_units_and_factors_of_the_model_do_not_matter(name, rate):
    """LLRs are the same after an affine map of the data, a rotation of y and of x, and a new order of recordings."""
    p, a, b = two_sides(name, 28)
    b = share(np.random.default_rng(1), a, b, rate)
    expected = matrix(enrolled(p, a), enrolled(p, b))

    def rotation(rng, n):
        return np.linalg.qr(rng.normal(size=(n, n)))[0]

    @exhaust
    @given(st.integers(0, 2**32 - 1), st.permutations(range(len(a))))
    def check(seed, order):
        rng = np.random.default_rng(seed)
        d, ny, nx = p.V.shape[0], p.V.shape[1], p.U.shape[1]
        A = rotation(rng, d) @ np.diag(rng.uniform(0.3, 3.0, d)) @ rotation(rng, d)
        shift, back = rng.normal(0, 50, d), np.linalg.inv(A)
        W = back.T @ p.W @ back
        mapped = oracle.Params(
            p.mu @ A.T + shift, A @ p.V @ rotation(rng, ny), A @ p.U @ rotation(rng, nx), (W + W.mT) / 2
        )
        a2, b2 = (oracle.Data(s.X @ A.T + shift, s.speaker, s.session, s.kind) for s in (a, b))
        got = matrix(enrolled(mapped, a2.rows(np.array(order))), enrolled(mapped, b2))
        np.testing.assert_allclose(got, expected, **near)

    check()


@exhaust
@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.sampled_from(list(MODELS)))
def test_any_sets(seed, rate, name):
    p, a, b = two_sides(name, seed, n=(3, 3), recordings=(1, 4))
    assert_llr(p, a, share(np.random.default_rng(seed), a, b, rate))


# -- from ratios to probabilities --------------------------------------------------------------------------------------


@pytest.mark.parametrize("prior", [0.01, 0.5, 0.999])
def test_posterior_probability_is_bayes_rule(prior):
    ratios = np.linspace(-30, 30, 25)
    same, different = prior * np.exp(ratios), 1 - prior
    np.testing.assert_allclose(PLDA.posterior_probability(ratios, prior), same / (same + different), rtol=1e-13)
    assert PLDA.posterior_probability(0.0, prior) == pytest.approx(prior, rel=1e-13)


def test_posterior_probability_from_densities():
    """P(same) by summing over the two hypotheses, from the densities of the recordings."""
    p, a, b = two_sides("low rank", 29, n=(3, 3), recordings=(1, 3))
    plda = PLDA.from_parameters(p.mu[0], p.V, p.U, p.W[0])
    A, B = (plda.enroll(s.X, s.speaker, s.session) for s in (a, b))
    got = plda.posterior_probability(plda.llr(A, B), prior=0.2)
    for i, j in each_pair(got, got[0]):
        x, y = a.rows(a.speaker == f"speaker{i}"), b.rows(b.speaker == f"speaker{j}")
        both = oracle.join(x, y)
        together = oracle.partition_log_likelihood(p, both, np.zeros(len(both)))
        apart = oracle.partition_log_likelihood(p, both, np.repeat([0, 1], [len(x), len(y)]))
        top = max(together, apart)
        same, different = 0.2 * np.exp(together - top), 0.8 * np.exp(apart - top)
        assert got[i, j] == pytest.approx(same / (same + different), rel=1e-11)


@pytest.mark.parametrize("far", [0.2, 20.0])  # standard deviations from the mean, either way: LLRs of +-1e3, +-1e7
def test_extreme_ratios(far):
    """Hundreds of nats either way: exact, and probabilities without a warning."""
    d = 4
    p = oracle.Params(np.full((1, d), 40.0), 10 * np.eye(d), 0.1 * np.eye(d), 1e4 * np.eye(d)[None])
    rng = np.random.default_rng(30)
    one = p.V @ np.full(d, far)
    X = p.mu[0] + np.array([one, one, -one, -one]) + 0.01 * rng.normal(size=(4, d))
    a = oracle.Data(X[[0, 2]], np.arange(2), np.arange(2), np.zeros(2, int))
    b = oracle.Data(X[[1, 3]], np.arange(2), 10 + np.arange(2), np.zeros(2, int))
    expected = oracle.llr_matrix(p, a, b)
    assert expected.min() < -800
    A, B = enrolled(p, a), enrolled(p, b)
    got = matrix(A, B)
    np.testing.assert_allclose(got, expected, rtol=1e-10)  # differences of numbers that are ten times as large
    np.testing.assert_allclose(listed(A, B, each_pair(A, B)).reshape(2, 2), expected, rtol=1e-10)
    np.testing.assert_array_equal(PLDA.posterior_probability(got) > 0.5, np.eye(2, dtype=bool))


def test_extreme_probabilities():
    probability = PLDA.posterior_probability(np.array([-1e6, -800.0, 800.0, 1e6, -np.inf, np.inf]))
    np.testing.assert_array_equal(probability, [0, 0, 1, 1, 0, 1])
    # No digits are lost where the probability is small but can be written.
    assert PLDA.posterior_probability(-600.0, 0.5) == pytest.approx(np.exp(-600.0), rel=1e-13)


@pytest.mark.parametrize("prior", [0, 1, -0.1, np.nan, 2])
def test_priors_that_are_none(prior):
    with pytest.raises(DuopldaError, match="must lie between 0 and 1"):
        PLDA.posterior_probability(0.0, prior)
