"""Centring, whitening, LDA and length normalisation, against loops and dense algebra."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_limits

from duoplda import PLDA, DuopldaError, Recordings, Statistics
from duoplda.datasets import make_recordings
from duoplda.estimators.preprocessing import LDA, Center, Covariances, LengthNorm, Whiten, through


@pytest.fixture(scope="module")
def data():
    X, speaker, session, _ = make_recordings(40, n_dimensions=6, n_speaker_factors=4, n_session_factors=3, seed=3)
    channel = np.array(["mic", "phone", "web"])[np.random.default_rng(0).integers(3, size=len(X))]
    X = X + np.where(channel == "phone", 2.0, 0.0)[:, None]
    return X, speaker, session, channel


def refusals(estimator):
    zero = {"check_estimators_dtypes": "its data have a row of zeros, which has no direction"}
    return zero if isinstance(estimator, LengthNorm) else {}


@parametrize_with_checks([Center(), Whiten(), LengthNorm(), LDA()], expected_failed_checks=refusals)
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


# -- centre


def test_center_by_channel_falls_back_to_the_mean_of_all(data):
    X, _, _, channel = data
    center = Center(by_channel=True).fit(X, channel=channel)
    Z = center.transform(X, channel)
    for kind in np.unique(channel):
        np.testing.assert_allclose(Z[channel == kind].mean(axis=0), 0, atol=1e-12)
    for unknown in (["satellite"] * len(X), [None] * len(X), None):
        np.testing.assert_allclose(center.transform(X, unknown), X - X.mean(axis=0))
    mixed = np.array(channel, object)
    mixed[0] = None
    np.testing.assert_allclose(center.transform(X, mixed)[0], X[0] - X.mean(axis=0))
    np.testing.assert_allclose(center.transform(X, mixed)[1:], Z[1:])


def test_one_behaviour_for_kinds_that_are_missing(data):
    """Where recordings are used, a missing kind is an unknown one; where a model is trained, it is an error."""
    X, speaker, session, channel = data
    mixed = np.array(channel, object)
    mixed[[2, 5]] = None
    for other in (mixed, np.where(mixed == None, np.nan, mixed), np.where(mixed == None, "?", mixed).astype(str)):  # noqa: E711
        center = Center(by_channel=True).fit(X, channel=channel)
        np.testing.assert_allclose(center.transform(X, other)[[2, 5]], X[[2, 5]] - X.mean(axis=0))
        plda = PLDA(shrinkage=0.1).fit(X, speaker, session=session, channel=channel)
        inferred = plda.channels_[plda.channel_posterior(X).argmax(axis=1)]
        same = np.where(np.isin(np.arange(len(X)), [2, 5]), inferred, channel)
        np.testing.assert_array_equal(plda.transform(X, other), plda.transform(X, same))
        for method in (plda.enroll, plda.posterior, plda.log_likelihood):
            method(X, speaker, session, other)
    for call in (
        lambda: Center(by_channel=True).fit(X, channel=mixed),
        lambda: Whiten(by_channel=True).fit(X, channel=mixed),
        lambda: LDA(2).fit(X, speaker, session, mixed),
        lambda: PLDA().fit(X, speaker, session, mixed),
        lambda: Statistics.from_arrays(X, speaker, session, mixed),
    ):
        with pytest.raises(DuopldaError, match=r"channel labels are missing \(None or NaN\) at rows 2, 5"):
            call()
    for call in (lambda c: plda.enroll(X, speaker, session, c), lambda c: center.transform(X, c)):
        with pytest.raises(DuopldaError, match="2 channel labels for"):
            call(["mic", "mic"])


def test_center_from_statistics(data):
    X, speaker, session, channel = data
    stats = Statistics.from_arrays(X, speaker, session, channel)
    for by in (False, True):
        a = Center(by).fit(X, channel=channel)
        b = Center(by).fit_statistics(stats)
        np.testing.assert_allclose(a.transform(X, channel), b.transform(X, channel), atol=1e-10)
        assert a.channels_.tolist() == b.channels_.tolist()


def test_center_by_channel_needs_channels(data):
    with pytest.raises(DuopldaError, match="needs channel"):
        Center(by_channel=True).fit(data[0])
    with pytest.raises(DuopldaError, match="2 channel labels for"):
        Center(by_channel=True).fit(data[0], channel=data[3]).transform(data[0], ["mic", "mic"])


# -- whiten


def test_whiten_makes_the_total_covariance_the_identity(data):
    X, speaker, session, channel = data
    whiten = Whiten().fit(X)
    np.testing.assert_allclose(np.cov(whiten.transform(X).T, bias=True), np.eye(6), atol=1e-10)
    stats = Statistics.from_arrays(X, speaker, session)
    np.testing.assert_allclose(Whiten().fit_statistics(stats).matrix_, whiten.matrix_, atol=1e-9)
    with_kinds = Statistics.from_arrays(X, speaker, session, channel)
    np.testing.assert_allclose(Whiten().fit_statistics(with_kinds).matrix_, whiten.matrix_, atol=1e-9)
    Z = Center(True).fit(X, channel=channel).transform(X, channel)
    by = Whiten(by_channel=True).fit_statistics(with_kinds)
    np.testing.assert_allclose(by.matrix_, Whiten().fit(Z).matrix_, atol=1e-9)
    assert np.abs(by.matrix_ - whiten.matrix_).max() > 1e-3
    np.testing.assert_allclose(Whiten(by_channel=True).fit(X, channel=channel).matrix_, by.matrix_, atol=1e-9)
    np.testing.assert_array_equal(Whiten().fit(X, channel=channel).matrix_, whiten.matrix_)
    with pytest.raises(DuopldaError, match=r"Whiten\(by_channel=True\) needs channel"):
        Whiten(by_channel=True).fit(X)


def test_whiten_does_not_blow_up_directions_without_variance(data):
    X = np.hstack([data[0], data[0][:, :1]])  # a column repeats
    with pytest.warns(UserWarning, match="1 of 7 directions"):
        whiten = Whiten().fit(X)
    assert np.isfinite(whiten.transform(X)).all()
    assert np.abs(whiten.transform(X)).max() < 1e3
    with pytest.raises(DuopldaError, match="do not vary"):
        Whiten().fit(np.ones((5, 2)))


# -- LDA


def planted(rng, n_speakers, n_sessions, n_recordings, session=0.1):
    """Direction 0: speakers, hardly any sessions. Direction 1: more of speakers, far more of sessions, no noise."""
    speaker = np.repeat(np.arange(n_speakers), n_sessions * n_recordings)
    which = np.repeat(np.arange(n_speakers * n_sessions), n_recordings)
    draw = rng.standard_normal
    y, x, e = draw((n_speakers, 2)), draw((n_speakers * n_sessions, 2)), draw((len(speaker), 2))
    X = y[speaker] * [1, 1.2] + x[which] * [session, 3] + e * [0.7, 0.05]
    return X, speaker, which


def test_lda_takes_sessions_for_nuisance_unless_told_otherwise():
    X, speaker, session = planted(np.random.default_rng(0), 100, 4, 5)
    yes = LDA(1).fit(X, speaker, session=session).matrix_[:, 0]
    no = LDA(1, session_nuisance=False).fit(X, speaker, session=session).matrix_[:, 0]
    assert abs(yes[0]) > 5 * abs(yes[1])
    assert abs(no[1]) > 5 * abs(no[0])


def test_lda_against_an_analysis_of_variance_by_loops():
    M, H, L = 30, 4, 3  # balanced, so that every textbook has the formulas
    X, speaker, session = planted(np.random.default_rng(1), M, H, L, session=1.5)
    A = np.random.default_rng(2).normal(size=(2, 2))
    X = X @ A
    grand = X.mean(axis=0)
    cells = X.reshape(M, H, L, 2)
    within, between, speakers = np.zeros((2, 2)), np.zeros((2, 2)), np.zeros((2, 2))
    for i in range(M):
        m = cells[i].reshape(-1, 2).mean(axis=0)
        speakers += H * L * np.outer(m - grand, m - grand)
        for j in range(H):
            s = cells[i, j].mean(axis=0)
            between += L * np.outer(s - m, s - m)
            for x in cells[i, j]:
                within += np.outer(x - s, x - s)
    noise = within / (M * H * (L - 1))
    sessions = (between / (M * (H - 1)) - noise) / L
    speaker_covariance = (speakers / (M - 1) - between / (M * (H - 1))) / (H * L)
    lda = LDA().fit(X, speaker, session=session)
    L_ = lda.matrix_
    np.testing.assert_allclose(L_.T @ (noise + sessions) @ L_, np.eye(2), atol=1e-9)
    np.testing.assert_allclose(L_.T @ speaker_covariance @ L_, np.diag(lda.ratios_), atol=1e-9)
    assert lda.ratios_[0] > lda.ratios_[1]
    by_stats = LDA().fit_statistics(Statistics.from_arrays(X, speaker, session))
    np.testing.assert_allclose(by_stats.matrix_, L_)


def test_lda_with_one_recording_a_session_is_the_usual_one(data):
    X, speaker, _, _ = data
    lda = LDA(3).fit(X, speaker)
    means = np.stack([X[speaker == s].mean(axis=0) for s in speaker])
    within = (X - means).T @ (X - means) / (len(X) - len(set(speaker)))
    np.testing.assert_allclose(lda.matrix_.T @ within @ lda.matrix_, np.eye(3), atol=1e-9)


def test_lda_counts_channel_means_as_nuisance_unless_they_were_taken_off():
    rng = np.random.default_rng(0)
    X, speaker, session = planted(rng, 60, 3, 4)
    X[:, 1] = rng.standard_normal(60)[speaker] + 0.3 * rng.standard_normal(len(X))
    channel = rng.integers(2, size=len(X))
    X[:, 1] += 40 * channel  # speakers differ here, but channels far more
    stats = Statistics.from_arrays(X, speaker, session, channel)
    plain, by = (LDA(1, by_channel=b).fit_statistics(stats).matrix_[:, 0] for b in (False, True))
    assert abs(plain[0]) > 5 * abs(plain[1])
    assert abs(by[1]) > abs(by[0])


@pytest.mark.parametrize("n", [0, 7, 2.5, True])
def test_lda_refuses_impossible_sizes(data, n):
    with pytest.raises(DuopldaError, match="must lie between 1 and 6: there are 40 speakers"):
        LDA(n).fit(data[0], data[1])


def test_lda_needs_speakers_with_several_recordings():
    with pytest.raises(DuopldaError, match="two recordings or more"):
        LDA(1).fit(np.eye(4), range(4))
    with pytest.raises(DuopldaError, match="needs two speakers or more"):
        LDA(1).fit_statistics(Statistics.unlabelled(Recordings.from_arrays(np.eye(4))))


# -- length normalisation and input


def test_length_norm(data):
    Z = LengthNorm().fit_transform(data[0])
    np.testing.assert_allclose(np.linalg.norm(Z, axis=1), np.sqrt(6))
    np.testing.assert_allclose(Z / np.sqrt(6), data[0] / np.linalg.norm(data[0], axis=1, keepdims=True))
    huge = LengthNorm().fit_transform([[3e200, 4e200], [3e-200, 4e-200]])
    np.testing.assert_allclose(huge, np.sqrt(2) * np.array([[0.6, 0.8]] * 2))
    with pytest.raises(DuopldaError, match=r"length 0 .* rows 1"):
        LengthNorm().fit_transform([[1.0, 0.0], [0.0, 0.0]])


@pytest.mark.parametrize("step", [Center(), Whiten(), LengthNorm()])
def test_bad_rows_are_named(data, step):
    X = data[0].copy()
    X[[3, 5], 1] = np.nan, np.inf
    with pytest.raises(DuopldaError, match=r"2 of \d+ rows: 3, 5"):
        clone(step).fit(X)
    with pytest.raises(DuopldaError, match=r"rows: 3, 5"):
        clone(step).fit(data[0]).transform(X)


# -- statistics


def test_values_too_large_to_be_multiplied_are_named(data):
    """Whatever the processor does with products that are not finite."""
    X = np.concatenate([data[0], np.full((1, 6), 1.7e308)])
    whiten = Whiten().fit(1e-6 * data[0])  # its matrix has numbers of about 1e6
    message = rf"too large to be multiplied in 1 of \d+ rows: {len(data[0])}: on what scale"
    with pytest.raises(DuopldaError, match=message):
        whiten.transform(X)


def test_spread_from_chunks_is_that_of_the_whole(data):
    X = data[0] + 1e4  # far from 0: digits must not get lost

    def of(*parts):
        return Statistics.unlabelled(Recordings.from_chunks(lambda: parts, np.zeros(sum(map(len, parts)))))

    chunks = [X[i : i + 17] for i in range(0, len(X), 17)]
    for stats in (of(*chunks), of(*chunks[:3]) + of(chunks[3]) + of(*chunks[4:])):
        spread = Covariances.of(stats)
        np.testing.assert_allclose(spread.mean, X.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(spread.total, np.cov(X.T, bias=True), rtol=1e-8)
        assert stats.n_recordings == len(X)
    with pytest.raises(DuopldaError, match="there are no recordings"):
        of()
    with pytest.raises(DuopldaError, match="rows 21,"):
        of(np.ones((20, 2)), np.array([[0.0, 1.0], [np.nan, 0.0]]))
    with pytest.raises(DuopldaError, match=r"too large to add up \(up to 1e\+200\) in rows 21,"):
        of(np.ones((20, 2)), np.array([[1.0, 0.0], [0.0, 1e200]]))


def test_through_applies_the_steps_in_order(data):
    X, _, _, channel = data
    center = Center(by_channel=True).fit(X, channel=channel)
    steps = {"center": center, "length_norm": LengthNorm().fit(X)}
    np.testing.assert_array_equal(through(steps, X, channel), LengthNorm().fit_transform(center.transform(X, channel)))
    np.testing.assert_array_equal(through({}, X), X)


def test_mapped_statistics_are_those_of_mapped_data(data):
    X, speaker, session, channel = data
    A = np.random.default_rng(0).normal(size=(6, 4))
    kinds = np.unique(channel)
    means = np.stack([X[channel == k].mean(axis=0) for k in kinds])
    Z = (X - means[np.searchsorted(kinds, channel)]) @ A
    ours = Statistics.from_arrays(X, speaker, session, channel, n_folds=3).mapped(means, A)
    theirs = Statistics.from_arrays(Z, speaker, session, channel, n_folds=3)
    for a, b in [(ours, theirs), *zip(ours.folds, theirs.folds, strict=True)]:
        b = b.about(a.offset)
        np.testing.assert_allclose(a.S, b.S, atol=1e-8)
        np.testing.assert_allclose(a.within, b.within, atol=1e-8)
        for p, q in zip(a.blocks, b.blocks, strict=True):
            np.testing.assert_allclose(p.A, q.A, atol=1e-8)
            np.testing.assert_allclose(p.T, q.T, atol=1e-7)


def test_through_works_in_blocks_that_do_not_show(data):
    """More rows than a block: the same as step by step, with rows named by their place in all of them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2500, 4)).astype(np.float32)
    kinds = np.array(["a", "b"])[rng.integers(0, 2, len(X))]
    X.flags.writeable = False
    steps = {
        "center": Center(by_channel=True).fit(X, channel=kinds),
        "whiten": Whiten().fit(X),
        "norm": LengthNorm().fit(X),
    }
    by_step = steps["norm"].transform(steps["whiten"].transform(steps["center"].transform(X, kinds)))
    np.testing.assert_allclose(through(steps, X, kinds), by_step, rtol=1e-12)
    np.testing.assert_allclose(through(steps, X, kinds.tolist()), by_step, rtol=1e-12)
    with pytest.raises(DuopldaError, match="2501 channel labels for 2500 recordings"):
        through(steps, X, np.append(kinds, "a"))
    bad = X.copy()
    bad[2100] = steps["center"].channel_means_[0]
    single = {"center": steps["center"], "norm": steps["norm"]}
    single["center"].channel_means_ = bad[[2100, 2100]].astype(float)
    with pytest.raises(DuopldaError, match="length 0 have no direction to keep, rows 2100:"):
        through(single, bad, kinds)
    bad[2200] = np.nan
    with pytest.raises(DuopldaError, match="1 of 2500 rows: 2200"):
        through(single, bad, kinds)
    large = np.ones((3, 4))
    large[1] = 1e300
    steps["whiten"].matrix_ = np.full((4, 4), 1e300)
    with np.errstate(over="ignore"), pytest.raises(DuopldaError, match="in 1 of 3 rows: 1: on what scale"):
        through({"whiten": steps["whiten"], "norm": steps["norm"]}, large)


def test_what_is_learnt_does_not_depend_on_the_number_of_threads():
    rng = np.random.default_rng(0)
    X, speaker = rng.normal(size=(2000, 256)) * rng.uniform(1, 2, 256), np.repeat(np.arange(100), 20)
    stats, found = Statistics.from_arrays(X, speaker), []
    for threads in (1, 4):
        with threadpool_limits(threads):
            spread = Covariances.of(stats)
            whiten = Whiten().fit_statistics(spread)
            lda = LDA(20).fit_statistics(spread.mapped(whiten.matrix_))
            steps = {"center": Center().fit_statistics(spread), "whiten": whiten, "norm": LengthNorm().fit(X)}
            found.append([a.tobytes() for a in (whiten.matrix_, lda.matrix_, through(steps, X))])
    assert found[0] == found[1]
