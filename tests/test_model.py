"""Densities and posteriors against dense Gaussians, on ragged data with a mean far from zero; invariances."""

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

import oracle
from duoplda import PLDA, datasets
from duoplda.data import labels as lab
from duoplda.model import posteriors
from duoplda.model.parameters import Model

exhaust = settings(max_examples=25, derandomize=True, deadline=None, database=None)
near = {"rtol": 1e-11, "atol": 1e-11}

# name: (d, ny, nx, kinds, speakers, sessions of a speaker, recordings of a session)
CASES = {
    "ragged": (4, 2, 3, 1, 7, (1, 4), (1, 9)),
    "no session factors": (3, 2, 0, 1, 6, (1, 4), (1, 5)),
    "no speaker factors": (3, 0, 2, 1, 4, (1, 4), (1, 5)),
    "full rank": (3, 3, 3, 1, 6, (1, 4), (1, 9)),
    "one dimension": (1, 1, 1, 1, 9, (1, 5), (1, 9)),
    "one size": (3, 2, 2, 1, 6, (1, 4), (4, 4)),
    "one session each": (3, 2, 2, 1, 6, (1, 1), (1, 6)),
    "one recording each": (3, 2, 2, 1, 6, (1, 1), (1, 1)),
    "one speaker": (3, 2, 2, 1, 1, (5, 5), (1, 6)),
    "wide": (60, 60, 55, 1, 3, (1, 2), (1, 3)),
    "kinds": (3, 2, 2, 3, 6, (1, 4), (1, 6)),
    "kinds, full rank": (2, 2, 2, 3, 6, (1, 4), (1, 9)),
    "kinds, no session factors": (3, 2, 0, 3, 5, (1, 4), (1, 3)),
}


def forty_sizes():
    """Sessions of 1 to 40 recordings, four of each speaker."""
    rng = np.random.default_rng(40)
    p = oracle.random_model(rng, 2, 1, 1)
    sizes = np.arange(1, 41)
    session = np.repeat(np.arange(40), sizes)
    return p, oracle.draw(rng, p, session % 10, session)


def make(name, seed=0):
    if name == "forty sizes":
        return forty_sizes()
    d, ny, nx, K, n_speakers, sessions, recordings = CASES[name]
    rng = np.random.default_rng(seed)
    p = oracle.random_model(rng, d, ny, nx, K)
    return p, oracle.random_data(rng, p, n_speakers, sessions, recordings)


every_case = pytest.mark.parametrize("case", [*CASES, "forty sizes"])
one_kind = pytest.mark.parametrize("case", [*(c for c in CASES if CASES[c][3] == 1), "forty sizes"])


def model_of(p, put=np.asarray):
    return Model(put(p.mu), put(p.V), put(p.U), put(p.W), np.arange(len(p.mu)))


def encoded(p, data):
    labels = lab.encode(data.speaker, data.session, None, len(data))
    return replace(labels, kinds=np.arange(len(p.mu)), kind=data.kind)


def plda_of(p):
    return PLDA.from_parameters(p.mu[0], p.V, p.U, p.W[0])


# -- the oracle itself -------------------------------------------------------------------------------------------------


def test_the_oracle_is_scipys_gaussian():
    for case in ("ragged", "kinds"):
        p, data = make(case)
        mean, covariance = oracle.mean_and_covariance(p, data.speaker, data.session, data.kind)
        theirs = multivariate_normal(mean, covariance).logpdf(data.X.ravel())
        assert oracle.ln_density(p, data) == pytest.approx(theirs, rel=1e-11)
        assert oracle.log_likelihoods(p, data).sum() == pytest.approx(theirs, rel=1e-11)


def test_the_oracles_posterior_is_bayes_rule():
    """ln P(h) + ln P(Phi | h) - ln P(h | Phi) is ln P(Phi), wherever h is."""
    p, data = make("ragged")
    data = data.rows(data.speaker == data.speaker[0])
    hidden = oracle.posterior(p, data)
    rng = np.random.default_rng(1)
    for _ in range(3):
        h = rng.normal(size=len(hidden.mean))
        prior = multivariate_normal(np.zeros(len(h))).logpdf(h)
        x = h[p.V.shape[1] :].reshape(-1, p.U.shape[1])
        conditional = oracle.conditional_log_likelihoods(p, data, h[None, : p.V.shape[1]], x).sum()
        posterior = oracle.ln_gaussian(h, hidden.mean, hidden.covariance)
        assert prior + conditional - posterior == pytest.approx(oracle.ln_density(p, data), rel=1e-10)


# -- densities ---------------------------------------------------------------------------------------------------------


@every_case
def test_log_likelihoods(library, case):
    p, data = make(case)
    got = posteriors.log_likelihoods(model_of(p, library.put), library.put(data.X), encoded(p, data))
    np.testing.assert_allclose(library.get(got), oracle.log_likelihoods(p, data), **near)


@one_kind
def test_log_likelihood_and_score_of_the_estimator(case):
    p, data = make(case, seed=1)
    plda, expected = plda_of(p), oracle.log_likelihoods(p, data)
    ids, ln = plda.log_likelihood(data.X, data.speaker, data.session)
    assert ids.tolist() == np.unique(data.speaker).tolist()
    np.testing.assert_allclose(ln, expected, **near)
    mean = expected.sum() / len(data)
    assert plda.score(data.X, data.speaker, data.session) == pytest.approx(mean, rel=1e-11)
    assert plda.score(data.X.tolist(), data.speaker.tolist(), data.session.tolist()) == pytest.approx(mean, rel=1e-11)


@one_kind
def test_without_sessions_every_recording_is_its_own(case):
    p, data = make(case, seed=2)
    own = oracle.Data(data.X, data.speaker, np.arange(len(data)), data.kind)
    plda = plda_of(p)
    _, ln = plda.log_likelihood(data.X, data.speaker)
    np.testing.assert_allclose(ln, oracle.log_likelihoods(p, own), **near)
    post, hidden = plda.posterior(data.X, data.speaker), oracle.posterior(p, own)
    assert post.session_ids is None
    for n in range(len(data)):
        np.testing.assert_allclose(post.session_mean[n], hidden.x(n)[0], **near)


@every_case
def test_conditional_log_likelihood(library, case):
    p, data = make(case, seed=3)
    rng = np.random.default_rng(4)
    y = rng.normal(size=(len(np.unique(data.speaker)), p.V.shape[1]))
    x = rng.normal(size=(len(np.unique(data.session)), p.U.shape[1]))
    expected = oracle.conditional_log_likelihoods(p, data, y, x)
    X, given_y, given_x = (library.put(a) for a in (data.X, y, x))
    got = posteriors.conditional_log_likelihoods(model_of(p, library.put), X, encoded(p, data), given_y, given_x)
    np.testing.assert_allclose(library.get(got), expected, **near)
    if len(p.mu) == 1:
        ids, got = plda_of(p).conditional_log_likelihood(data.X, y, x, data.speaker, data.session)
        assert ids.tolist() == np.unique(data.speaker).tolist()
        np.testing.assert_allclose(got, expected, **near)


@one_kind
def test_partition_log_likelihood(case):
    """Any partition of sessions into speakers, from all apart to all together."""
    p, data = make(case, seed=5)
    if case == "forty sizes":
        data = data.rows(data.session < 12)
    if case == "wide":
        data = data.rows(np.arange(len(data)) < 5)
    plda = plda_of(p)
    sessions, session = np.unique(data.session, return_inverse=True)
    rng = np.random.default_rng(6)
    found = []
    for clusters in (np.arange(len(sessions)), np.zeros(len(sessions), int), rng.integers(0, 3, len(sessions))):
        labels = clusters[session]
        got = plda.partition_log_likelihood(data.X, labels, data.session)
        assert got == pytest.approx(oracle.partition_log_likelihood(p, data, labels), rel=1e-11)
        found.append(got)
    if len(sessions) > 1 and p.V.shape[1]:
        assert len({round(f, 6) for f in found}) > 1  # labels do matter
    assert isinstance(got, float)


# -- posteriors --------------------------------------------------------------------------------------------------------


@every_case
def test_posteriors(library, case):
    p, data = make(case, seed=7)
    post = posteriors.posterior(model_of(p, library.put), library.put(data.X), encoded(p, data))
    speakers, sessions = np.unique(data.speaker), np.unique(data.session)
    assert post.speaker_ids.tolist() == speakers.tolist()
    assert post.session_ids.tolist() == sessions.tolist()
    ny, nx = p.V.shape[1], p.U.shape[1]
    speaker_mean, speaker_precision = library.get(post.speaker_mean), library.get(post.speaker_precision)
    session_mean, session_precision = library.get(post.session_mean), library.get(post.session_precision)
    assert speaker_mean.shape == (len(speakers), ny)
    assert speaker_precision.shape == (len(speakers), ny, ny)
    assert session_mean.shape == (len(sessions), nx)
    assert session_precision.shape == (len(sessions), nx, nx)
    y = np.random.default_rng(8).normal(size=(len(speakers), ny))
    given_y = library.get(post.session_mean_given(library.put(y)))
    for i, name in enumerate(speakers):
        own = data.rows(data.speaker == name)
        hidden = oracle.posterior(p, own)
        mean, covariance = hidden.y(0)
        np.testing.assert_allclose(speaker_mean[i], mean, **near)
        np.testing.assert_allclose(speaker_precision[i], np.linalg.inv(covariance), **near)
        for j, session in enumerate(np.unique(own.session)):
            row = int(np.searchsorted(sessions, session))
            assert post.session_speaker[row] == i
            np.testing.assert_allclose(session_mean[row], hidden.x(j)[0], **near)
            mean, covariance = hidden.x_given_y(j, 0, y[i])
            np.testing.assert_allclose(given_y[row], mean, **near)
            # The oracle's covariance is a difference of nearly equal matrices where a session has 40 recordings.
            np.testing.assert_allclose(session_precision[row], np.linalg.inv(covariance), rtol=1e-10, atol=1e-10)
    if len(p.mu) == 1:
        public = plda_of(p).posterior(library.put(data.X), data.speaker, data.session)
        np.testing.assert_allclose(library.get(public.speaker_mean), speaker_mean, **near)
        np.testing.assert_allclose(library.get(public.session_mean), session_mean, **near)


@one_kind
def test_transform_is_the_posterior_of_a_recording_by_itself(library, case):
    p, data = make(case, seed=9)
    X = data.X[:5]
    got = library.get(plda_of(p).transform(library.put(X)))
    assert got.shape == (len(X), p.V.shape[1])
    for row, y in zip(X, got, strict=True):
        alone = oracle.Data(row[None], np.zeros(1), np.zeros(1), np.zeros(1, int))
        np.testing.assert_allclose(y, oracle.posterior(p, alone).y(0)[0], **near)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_other_number_types_are_computed_in_double_precision(dtype):
    p, data = make("ragged", seed=10)
    X = data.X.astype(dtype)
    plda, exact = plda_of(p), X.astype(np.float64)
    labels = data.speaker, data.session
    assert plda.score(X, *labels) == pytest.approx(plda.score(exact, *labels), rel=1e-13)
    np.testing.assert_allclose(plda.transform(X), plda.transform(exact), rtol=1e-13)
    np.testing.assert_allclose(
        plda.posterior(X, *labels).speaker_mean, plda.posterior(exact, *labels).speaker_mean, rtol=1e-13
    )
    assert plda.transform(X).dtype == np.float64


def test_more_recordings_than_one_block_holds():
    """Blocks of 16 MB cut sessions: the likelihood of a speaker is that of its recordings alone."""
    rng = np.random.default_rng(11)
    p = oracle.random_model(rng, 256, 2, 2)
    speaker = np.arange(18_000) // 3 % 6  # rows of a session of 3,000 recordings are far apart
    data = oracle.Data(p.mu[0] + rng.normal(size=(18_000, 256)), speaker, speaker, 0 * speaker)
    whole = posteriors.log_likelihoods(model_of(p), data.X, encoded(p, data))
    for i in range(6):
        one = data.rows(speaker == i)
        alone = posteriors.log_likelihoods(model_of(p), one.X, encoded(p, one))
        np.testing.assert_allclose(whole[i], alone[0], rtol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 48, 49, 97, 200])
def test_inverses_of_stacks(n):
    """The recursion of the in-place inverse: no level, one, two and three."""
    from duoplda.arrays import NotPositiveDefinite, spd_inverse

    rng = np.random.default_rng(n)
    A = rng.normal(size=(2, 3, n, n + 5))
    A = A @ A.mT / n + np.eye(n)
    before = A.copy()
    inverse, ln = spd_inverse(A)
    np.testing.assert_array_equal(A, before)
    np.testing.assert_allclose(inverse @ A, np.broadcast_to(np.eye(n), A.shape), rtol=0, atol=1e-13)
    np.testing.assert_allclose(ln, np.linalg.slogdet(A)[1], rtol=1e-13)
    np.testing.assert_allclose(inverse, inverse.mT, rtol=0, atol=1e-15)
    A[1, 2, -1, -1] = -1.0
    with pytest.raises(NotPositiveDefinite):
        spd_inverse(A)


# -- invariances -------------------------------------------------------------------------------------------------------


def numbers(p, data):
    """All that a model says of data, by sorted id."""
    post = posteriors.posterior(model_of(p), data.X, encoded(p, data))
    return posteriors.log_likelihoods(model_of(p), data.X, encoded(p, data)), post


@pytest.mark.parametrize("case", ["ragged", "kinds"])
def test_the_order_of_recordings_does_not_matter(case):
    p, data = make(case, seed=12)
    ln, post = numbers(p, data)

    @exhaust
    @given(st.permutations(range(len(data))))
    def check(order):
        again, post_again = numbers(p, data.rows(np.array(order)))
        np.testing.assert_allclose(again, ln, rtol=1e-12)
        np.testing.assert_allclose(post_again.speaker_mean, post.speaker_mean, rtol=0, atol=1e-12)
        np.testing.assert_allclose(post_again.session_mean, post.session_mean, rtol=0, atol=1e-12)

    check()


def rotation(rng, n):
    return np.linalg.qr(rng.normal(size=(n, n)))[0]


@pytest.mark.parametrize("case", ["ragged", "kinds", "full rank", "one dimension"])
def test_rotated_factors_are_the_same_model(case):
    p, data = make(case, seed=13)
    ln, post = numbers(p, data)

    @exhaust
    @given(st.integers(0, 2**32 - 1))
    def check(seed):
        rng = np.random.default_rng(seed)
        Qy, Qx = rotation(rng, p.V.shape[1]), rotation(rng, p.U.shape[1])
        rotated, post_rotated = numbers(oracle.Params(p.mu, p.V @ Qy, p.U @ Qx, p.W), data)
        np.testing.assert_allclose(rotated, ln, rtol=1e-12)
        np.testing.assert_allclose(post_rotated.speaker_mean @ Qy.T, post.speaker_mean, rtol=0, atol=1e-11)
        np.testing.assert_allclose(post_rotated.session_mean @ Qx.T, post.session_mean, rtol=0, atol=1e-11)

    check()


@pytest.mark.parametrize("case", ["ragged", "kinds", "no session factors", "one dimension"])
def test_an_affine_map_of_the_data_changes_the_unit_of_density_only(case):
    p, data = make(case, seed=14)
    ln, post = numbers(p, data)
    counts = np.array([(data.speaker == s).sum() for s in np.unique(data.speaker)])

    @exhaust
    @given(st.integers(0, 2**32 - 1), st.sampled_from([1e-3, 1.0, 1e3]))
    def check(seed, scale):
        rng = np.random.default_rng(seed)
        d = p.V.shape[0]
        A = scale * rotation(rng, d) @ np.diag(rng.uniform(0.5, 2.0, d)) @ rotation(rng, d)
        shift = scale * rng.normal(0, 50, d)
        back = np.linalg.inv(A)
        W = back.T @ p.W @ back
        mapped = oracle.Params(p.mu @ A.T + shift, A @ p.V, A @ p.U, (W + W.mT) / 2)
        moved = oracle.Data(data.X @ A.T + shift, data.speaker, data.session, data.kind)
        ln_mapped, post_mapped = numbers(mapped, moved)
        jacobian = np.linalg.slogdet(A)[1]
        np.testing.assert_allclose(ln_mapped + counts * jacobian, ln, rtol=1e-11)
        np.testing.assert_allclose(post_mapped.speaker_mean, post.speaker_mean, **near)
        np.testing.assert_allclose(post_mapped.session_mean, post.session_mean, **near)
        np.testing.assert_allclose(post_mapped.speaker_precision, post.speaker_precision, **near)

    check()


@exhaust
@given(
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(1, 3),
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_any_shape_of_model_and_data(d, ny, nx, K, sizes, seed):
    """`sizes[i][j]`: recordings of session j of speaker i."""
    rng = np.random.default_rng(seed)
    p = oracle.random_model(rng, d, min(ny, d), min(nx, d), K)
    speaker = np.concatenate([np.full(sum(of), i) for i, of in enumerate(sizes)])
    session = np.repeat(np.arange(sum(map(len, sizes))), list(itertools.chain(*sizes)))
    data = oracle.draw(rng, p, speaker, session, rng.integers(0, K, len(speaker)))
    data = data.rows(rng.permutation(len(data)))
    ln, post = numbers(p, data)
    np.testing.assert_allclose(ln, oracle.log_likelihoods(p, data), **near)
    hidden = oracle.posterior(p, data)
    for i in range(len(sizes)):
        np.testing.assert_allclose(post.speaker_mean[i], hidden.y(i)[0], **near)
    for j in range(int(session.max()) + 1):
        np.testing.assert_allclose(post.session_mean[j], hidden.x(j)[0], **near)


# -- drawing -----------------------------------------------------------------------------------------------------------


def assert_covariance(a, b, Saa, Sbb, Sab):
    """Means of products of a and b are Sab, within five standard deviations of such a mean of n products."""
    n = len(a)
    got = a.T @ b / n
    sd = np.sqrt((np.outer(np.diagonal(Saa), np.diagonal(Sbb)) + Sab**2) / n)
    assert (np.abs(got - Sab) < 5 * sd).all()


def test_sample_has_the_moments_of_the_model():
    p, _ = make("ragged")
    n = 20_000
    X, speaker, session = plda_of(p).sample(n, sessions=2, recordings=2, random_state=1)
    assert X.shape == (4 * n, 4)
    assert len(np.unique(speaker)) == n
    assert len(np.unique(session)) == 2 * n
    order = np.lexsort((session, speaker))
    assert (session[order].reshape(n, 2, 2) == session[order].reshape(n, 2, 2)[:, :, :1]).all()
    X = X[order].reshape(n, 2, 2, 4) - p.mu[0]
    speaker_, session_ = p.V @ p.V.T, p.U @ p.U.T
    total = speaker_ + session_ + np.linalg.inv(p.W[0])
    assert (np.abs(X.mean(axis=0)) < 5 * np.sqrt(np.diagonal(total) / n)).all()
    for j, l in itertools.product(range(2), repeat=2):
        assert_covariance(X[:, j, l], X[:, j, l], total, total, total)
        assert_covariance(X[:, j, l], X[:, j, 1 - l], total, total, speaker_ + session_)
        assert_covariance(X[:, j, l], X[:, 1 - j, l], total, total, speaker_)
    assert_covariance(X[1:, 0, 0], X[:-1, 0, 0], total, total, 0 * total)
    # What is left of the difference of two recordings, and of two sessions, is one source's alone: sharper.
    noise = 2 * np.linalg.inv(p.W[0])
    within, between = X[:, 0, 0] - X[:, 0, 1], X[:, 0].sum(axis=1) - X[:, 1].sum(axis=1)
    assert_covariance(within, within, noise, noise, noise)
    both = 8 * session_ + 2 * noise
    assert_covariance(between, between, both, both, both)


def test_sample_of_kinds():
    p, _ = make("kinds")
    n = 20_000
    kind = np.tile([0, 1, 2], n)
    X, speaker, session = datasets.sample(model_of(p), np.random.default_rng(2), np.ones(n, int), np.full(n, 3), kind)
    np.testing.assert_array_equal(speaker, np.repeat(np.arange(n), 3))
    np.testing.assert_array_equal(session, speaker)
    X = X.reshape(n, 3, 3) - p.mu
    shared = p.V @ p.V.T + p.U @ p.U.T
    total = [shared + np.linalg.inv(W) for W in p.W]
    for k in range(3):
        assert (np.abs(X[:, k].mean(axis=0)) < 5 * np.sqrt(np.diagonal(total[k]) / n)).all()
        assert_covariance(X[:, k], X[:, k], total[k], total[k], total[k])
        other = (k + 1) % 3
        assert_covariance(X[:, k], X[:, other], total[k], total[other], shared)


def test_sample_draws_ranges_and_is_seeded():
    p, _ = make("ragged")
    plda = plda_of(p)
    X, speaker, session = plda.sample(200, sessions=(1, 3), recordings=(2, 5), random_state=3)
    _, first, size = np.unique(session, return_index=True, return_counts=True)
    assert set(size.tolist()) == {2, 3, 4, 5}
    assert set(np.unique(speaker[first], return_counts=True)[1].tolist()) == {1, 2, 3}
    assert len(np.unique(speaker)) == 200
    again = plda.sample(200, sessions=(1, 3), recordings=(2, 5), random_state=3)
    np.testing.assert_array_equal(again[0], X)
    assert not np.array_equal(plda.sample(200, (1, 3), (2, 5), random_state=4)[0][: len(X)], X)
    # What is drawn is likely: 2 ln P is chi-square distributed about its expectation.
    _, ln = plda.log_likelihood(X, speaker, session)
    expected = 0.0
    for s in np.unique(speaker):
        of = speaker == s
        _, covariance = oracle.mean_and_covariance(p, speaker[of], session[of], np.zeros(of.sum(), int))
        expected -= 0.5 * np.linalg.slogdet(2 * np.pi * np.e * covariance)[1]
    assert abs(ln.sum() - expected) < 4 * np.sqrt(X.size / 2)


def test_a_pickled_model_leaves_its_copies_on_other_devices_behind():
    strict = pytest.importorskip("array_api_strict")
    model = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]]).model_
    there = model.like(strict.asarray([0.0]))
    assert there is model.like(strict.asarray([1.0]))
    again = pickle.loads(pickle.dumps(model))  # of our own making
    assert set(vars(again)) == {"mu", "V", "U", "W", "kinds"}
