"""Metrics against slow references, closed forms, llreval and scikit-learn."""

import io
import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llreval.bayes_error_rate import default_error_rate, fast_Bayes_error_rate
from llreval.cllr import cllr as llreval_cllr
from llreval.cllr import min_cllr as llreval_min_cllr
from llreval.pav_rocch import PAV, ROCCH
from scipy.integrate import quad
from scipy.interpolate import interp1d
from scipy.optimize import brentq
from scipy.stats import multivariate_normal, norm
from sklearn.metrics import roc_curve

from duoplda import DuopldaError, metrics

INF = np.inf
EER_METHODS = ("rocch", "interpolated", "nearest")
TRIAL_METRICS = {
    **{f"eer {method}": partial(metrics.eer, method=method) for method in EER_METHODS},
    "min_dcf": partial(metrics.min_dcf, p_target=[0.5, 0.1, 0.9], c_miss=[1, 10, 2]),
    "act_dcf": partial(metrics.act_dcf, p_target=[0.5, 0.1, 0.9], c_miss=[1, 10, 2]),
    "cllr": metrics.cllr,
    "min_cllr": metrics.min_cllr,
    "calibration_loss": metrics.calibration_loss,
    "bayes_error": partial(metrics.bayes_error, prior_log_odds=[-2.0, 0.3, 4.0]),
}
THRESHOLD_FREE = [*(f"eer {method}" for method in EER_METHODS), "min_dcf", "min_cllr"]


@st.composite
def trials(draw, values=None):
    """A few scores with many ties, and labels with both classes."""
    n = draw(st.integers(2, 14))
    values = st.integers(-3, 3).map(float) if values is None else values
    scores = np.array(draw(st.lists(values, min_size=n, max_size=n)))
    labels = np.array([True, False, *draw(st.lists(st.booleans(), min_size=n - 2, max_size=n - 2))])
    return scores, labels


with_infinities = st.sampled_from([-INF, -2.0, -1.0, 0.0, 0.5, 1.0, INF])


def gaussian_trials(d_prime, n=200_000):
    """Calibrated scores on exact quantiles: targets N(v/2, v), non-targets N(-v/2, v), v = d'^2."""
    grid = norm.ppf((np.arange(n) + 0.5) / n) * d_prime
    return np.concatenate((grid + d_prime**2 / 2, grid - d_prime**2 / 2)), np.arange(2 * n) < n


def random_trials(seed, n=3000):
    rng = np.random.default_rng(seed)
    labels = rng.random(n) < 0.2
    return np.round(rng.normal(size=n) * 2 + 2.5 * labels - 1, 1), labels


def slow_points(scores, labels):
    """(p_miss, p_fa) by counting at each distinct score, and for rejecting everything."""
    targets, nontargets = scores[labels], scores[~labels]
    points = [(np.mean(targets < t), np.mean(nontargets >= t)) for t in np.unique(scores)]
    return np.array([*points, (1.0, 0.0)])


def slow_rocch_eer(scores, labels):
    """The lowest crossing of p_miss = p_fa among the chords of all pairs of points."""
    crossings = []
    points = slow_points(scores, labels)
    for m0, f0 in points:
        for m1, f1 in points:
            if m0 <= f0 and m1 >= f1:
                share = 0.0 if m0 == f0 else (f0 - m0) / ((f0 - m0) + (m1 - f1))
                crossings.append(m0 + share * (m1 - m0))
    return min(crossings)


def slow_pav_llr(scores, labels):
    """Isotonic regression by its max-min formula over the distinct scores."""
    distinct = np.unique(scores)
    counts = np.array([[np.sum(labels[scores == v]), np.sum(~labels[scores == v])] for v in distinct])
    m = len(distinct)

    def share(j, k):
        t, n = counts[j : k + 1].sum(axis=0)
        return t / (t + n)

    p = np.array([max(min(share(j, k) for k in range(i, m)) for j in range(i + 1)) for i in range(m)])
    with np.errstate(divide="ignore"):
        llr = np.log(p) - np.log1p(-p) - np.log(np.sum(labels) / np.sum(~labels))
    return llr[np.searchsorted(distinct, scores)]


def slow_cllr(scores, labels):
    return (np.log2(1 + np.exp(-scores[labels])).mean() + np.log2(1 + np.exp(scores[~labels])).mean()) / 2


@given(trials(with_infinities))
def test_det_curve_counts_each_threshold_and_the_hull_lies_below(data):
    scores, labels = data
    p_miss, p_fa, thresholds = metrics.det_curve(scores, labels)
    points = slow_points(scores, labels)
    np.testing.assert_allclose(np.stack((p_miss, p_fa), axis=1), points, atol=1e-15)
    np.testing.assert_array_equal(thresholds, [*np.unique(scores), INF])
    hull = metrics.rocch(scores, labels)
    corners = np.searchsorted(thresholds[:-1], hull.thresholds[:-1])  # they are points of the curve
    np.testing.assert_array_equal(hull.p_miss, [*p_miss[corners], 1.0])
    np.testing.assert_array_equal(hull.p_fa, [*p_fa[corners], 0.0])
    for m0, f0, m1, f1 in zip(hull.p_miss, hull.p_fa, hull.p_miss[1:], hull.p_fa[1:], strict=False):
        side = (points[:, 0] - m0) * (f0 - f1) + (points[:, 1] - f0) * (m1 - m0)
        assert np.all(side >= -1e-12)  # no point lies below an edge


@given(trials(with_infinities))
def test_eer_of_the_convex_hull(data):
    assert metrics.eer(*data) == pytest.approx(slow_rocch_eer(*data), abs=1e-14)
    assert metrics.eer(*data) <= metrics.eer(*data, method="interpolated") + 1e-15


@given(trials())
def test_eer_as_scikit_learn_and_speechbrain_users_know_it(data):
    scores, labels = data
    fpr, tpr, _ = roc_curve(labels, scores)
    expected = brentq(lambda x: 1 - x - interp1d(fpr, tpr)(x), 0, 1)
    assert metrics.eer(scores, labels, method="interpolated") == pytest.approx(expected, abs=1e-9)
    best = 2.0
    for t in np.unique(scores):  # rejects score <= t
        miss, fa = np.mean(scores[labels] <= t), np.mean(scores[~labels] > t)
        if abs(miss - fa) < best - 1e-12:
            best, expected = abs(miss - fa), (miss + fa) / 2
    assert metrics.eer(scores, labels, method="nearest") == pytest.approx(expected, abs=1e-15)


@given(trials(with_infinities), st.floats(0.01, 0.99), st.floats(0.1, 10), st.floats(0.1, 10))
def test_dcf_of_all_thresholds_and_of_the_bayes_threshold(data, p, c_miss, c_fa):
    scores, labels = data
    scale = min(p * c_miss, (1 - p) * c_fa)
    least = np.min(slow_points(scores, labels) @ [p * c_miss, (1 - p) * c_fa]) / scale
    assert metrics.min_dcf(scores, labels, p, c_miss, c_fa) == pytest.approx(least, rel=1e-12, abs=1e-14)
    accept = scores >= np.log((1 - p) * c_fa / (p * c_miss))
    cost = p * c_miss * np.mean(~accept[labels]) + (1 - p) * c_fa * np.mean(accept[~labels])
    assert metrics.act_dcf(scores, labels, p, c_miss, c_fa) == pytest.approx(cost / scale, rel=1e-12)


def test_a_score_at_the_threshold_is_accepted():
    assert metrics.act_dcf([0.0, -1.0], [True, False], p_target=0.5) == 0.0
    assert metrics.act_dcf([1.0, 0.0], [True, False], p_target=0.5) == 1.0
    for t in np.arange(-30, 31) / 10:  # scores printed with one decimal fall on such a grid of priors
        assert metrics.bayes_error([t, -50.0], [True, False], -t).actual == 0.0


@given(trials(with_infinities))
def test_pav_is_the_isotonic_regression(data):
    scores, labels = data
    llr = slow_pav_llr(scores, labels)
    np.testing.assert_allclose(metrics.pav_llr(scores, labels), llr, atol=1e-12)
    assert metrics.min_cllr(scores, labels) == pytest.approx(slow_cllr(llr, labels), abs=1e-12)


@pytest.mark.parametrize("d_prime", [0.5, 2.0, 3.5])
def test_gaussian_scores_have_their_closed_forms(d_prime):
    scores, labels = gaussian_trials(d_prime)
    v = d_prime**2
    for method in EER_METHODS:
        assert metrics.eer(scores, labels, method) == pytest.approx(norm.cdf(-d_prime / 2), abs=2e-5)
    bits, _ = quad(lambda z: np.logaddexp(0, -(v / 2 + d_prime * z)) / np.log(2) * norm.pdf(z), -12, 12)
    assert metrics.cllr(scores, labels) == pytest.approx(bits, abs=2e-5)
    assert metrics.min_cllr(scores, labels) == pytest.approx(bits, abs=2e-4)
    assert 0 <= metrics.calibration_loss(scores, labels) < 2e-4
    shifted = metrics.cllr(scores + 3, labels) - metrics.min_cllr(scores, labels)  # loses calibration only
    assert metrics.calibration_loss(scores + 3, labels) == pytest.approx(shifted, abs=1e-9)
    p = np.array([0.05, 0.5, 0.9])
    t = np.log((1 - p) / p)
    miss, fa = norm.cdf((t - v / 2) / d_prime), norm.sf((t + v / 2) / d_prime)
    expected = (p * miss + (1 - p) * fa) / np.minimum(p, 1 - p)
    np.testing.assert_allclose(metrics.act_dcf(scores, labels, p), expected, atol=1e-4)
    np.testing.assert_allclose(metrics.min_dcf(scores, labels, p), expected, atol=2e-4)


@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_llreval(seed):
    scores, labels = random_trials(seed)
    pav = PAV(scores, labels.astype(int))
    log_odds = np.linspace(-5, 5, 41)
    actual = fast_Bayes_error_rate(scores, labels.astype(int), log_odds)
    minimum, default = ROCCH(pav).Bayes_error_rate(log_odds), default_error_rate(log_odds)
    assert metrics.eer(scores, labels) == pytest.approx(ROCCH(pav).EER(), abs=1e-7)
    assert metrics.cllr(scores, labels) == pytest.approx(llreval_cllr(scores[labels], scores[~labels]))
    assert metrics.min_cllr(scores, labels) == pytest.approx(llreval_min_cllr(pav))
    ours = metrics.bayes_error(scores, labels, log_odds)
    np.testing.assert_allclose(ours, [actual / default, minimum / default], rtol=1e-11)
    raw = metrics.bayes_error(scores, labels, log_odds, normalized=False)
    np.testing.assert_allclose(raw, [actual, minimum], rtol=1e-11)
    p = 1 / (1 + np.exp(-log_odds))
    np.testing.assert_allclose(ours.minimum, metrics.min_dcf(scores, labels, p), rtol=1e-11)


@pytest.mark.parametrize("name", TRIAL_METRICS)
@settings(max_examples=25)
@given(data=trials(), seed=st.integers(0, 2**32 - 1))
def test_integer_weights_repeat_and_order_does_not_matter(name, data, seed):
    scores, labels = data
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 4, len(scores))
    weights[:2] = rng.integers(1, 4, 2)  # the first two trials are of different classes
    metric, order = TRIAL_METRICS[name], rng.permutation(len(scores))
    for array in (scores, labels, weights):
        array.flags.writeable = False  # the input is left alone
    repeated = metric(np.repeat(scores, weights), np.repeat(labels, weights))
    np.testing.assert_allclose(metric(scores, labels, weights=weights), repeated, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(metric(scores[order], labels[order]), metric(scores, labels), atol=1e-12)
    per_class = np.where(labels, 0.3, 7.0)  # only the weights within a class matter
    np.testing.assert_allclose(metric(scores, labels, weights=per_class), metric(scores, labels), atol=1e-12)


@pytest.mark.parametrize("name", THRESHOLD_FREE)
@given(data=trials())
def test_monotone_transforms_change_nothing(name, data):
    metric, (scores, labels) = TRIAL_METRICS[name], data
    np.testing.assert_array_equal(metric(scores, labels), metric(np.exp(scores) - 7, labels))


@given(trials(st.floats(-20, 20)))
def test_cllr_is_its_formula_and_the_classes_are_symmetric(data):
    scores, labels = data
    assert metrics.cllr(scores, labels) == pytest.approx(slow_cllr(scores, labels), rel=1e-12)
    for metric in (metrics.eer, metrics.cllr, metrics.min_cllr):
        assert metric(-scores, ~labels) == pytest.approx(metric(scores, labels), abs=1e-12)


@given(trials(), st.integers(0, 2**32 - 1))
def test_pav_llr_with_weights_covers_every_trial(data, seed):
    scores, labels = data
    weights = np.random.default_rng(seed).integers(0, 3, len(scores))
    weights[:2] = 1
    llr = metrics.pav_llr(scores, labels, weights=weights)
    repeated = metrics.pav_llr(np.repeat(scores, weights), np.repeat(labels, weights))
    np.testing.assert_allclose(np.repeat(llr, weights), repeated, atol=1e-12)
    rising = llr[np.argsort(scores)]
    assert np.all(rising[1:] >= rising[:-1])


def test_scalars_give_floats_and_lists_give_arrays():
    scores, labels = random_trials(0, n=200)
    for metric in (metrics.min_dcf, metrics.act_dcf):
        assert type(metric(scores, labels)) is float
        several = metric(scores, labels, p_target=[0.01, 0.1, 0.5], c_miss=[10.0, 1.0, 1.0], c_fa=2)
        one_by_one = [metric(scores, labels, p, c, 2) for p, c in [(0.01, 10.0), (0.1, 1.0), (0.5, 1.0)]]
        np.testing.assert_array_equal(several, one_by_one)
        assert metric(scores, labels, p_target=[[0.1], [0.2]], c_miss=[1, 2, 3]).shape == (2, 3)
    assert type(metrics.bayes_error(scores, labels, 0.0).minimum) is float
    for metric in (metrics.eer, metrics.cllr, metrics.min_cllr, metrics.calibration_loss):
        assert type(metric(scores.astype(np.float32), labels.astype(int).tolist())) is float


def test_perfect_and_useless_scores():
    scores, labels = np.array([-4.0, -3.0, 2.0, 2.0]), np.array([False, False, True, True])
    assert metrics.min_cllr(scores, labels) == metrics.min_dcf(scores, labels) == 0.0
    assert [metrics.eer(scores, labels, method) for method in EER_METHODS] == [0.0, 0.0, 0.0]
    assert metrics.pav_llr(scores, labels).tolist() == [-INF, -INF, INF, INF]
    scores, labels = np.zeros(5), np.array([True, False, False, True, False])
    assert [metrics.eer(scores, labels, method) for method in EER_METHODS] == [0.5, 0.5, 0.5]
    assert metrics.min_cllr(scores, labels) == pytest.approx(1.0)
    assert metrics.min_dcf(scores, labels, 0.2) == 1.0
    np.testing.assert_allclose(metrics.pav_llr(scores, labels), 0.0, atol=1e-15)


def test_infinite_scores():
    assert metrics.cllr([INF, -INF], [True, False]) == 0.0
    assert metrics.cllr([-INF, -1.0], [True, False]) == INF
    assert metrics.cllr([1.0, INF], [True, False]) == INF
    assert metrics.cllr([1.0, INF, -INF], [True, False, False], weights=[1, 0, 1]) < 1
    assert metrics.calibration_loss([-INF, -1.0], [True, False]) == INF
    assert metrics.min_cllr([INF, INF, -INF, -INF], [True, False, True, False]) == pytest.approx(1.0)
    assert metrics.act_dcf([-INF, INF], [True, False], 0.5) == 2.0
    assert metrics.eer([INF, INF, -INF], [True, False, False]) == pytest.approx(1 / 3)
    assert metrics.cllr([1e300, -1e300], [False, True]) > 1e299


GOOD, Y = [0.0, 1.0, 2.0], [True, False, True]
WRONG_TRIALS = [
    ([], [], None, "there are no scores"),
    (GOOD, [True, False], None, r"scores has shape \(3,\), labels \(2,\)"),
    ([GOOD], [Y], None, r"scores has shape \(1, 3\)"),
    ([0.0, np.nan, 1.0], Y, None, r"scores: 1 of 3 are NaN \(rows 1, from 0\)"),
    ([np.nan] * 7 + GOOD, [True] * 7 + Y, None, r"7 of 10 are NaN \(rows 0, 1, 2, 3, 4, \.\.\., from 0\)"),
    (["a", "b", "c"], Y, None, "scores must be real numbers"),
    (GOOD, [True, True, True], None, "no non-target trial"),
    (GOOD, [0, 0, 0], None, "no target trial"),
    (GOOD, [0, 1, 2], None, r"labels must be booleans.*found \['0', '1', '2'\]"),
    (GOOD, [0.0, 1.0, 0.5], None, r"labels must be booleans.*found \['0.0', '0.5', '1.0'\]"),
    (GOOD, [0.0, 1.0, np.nan], None, "labels must be booleans"),
    (GOOD, [-1, 1, 1], None, "labels must be booleans"),
    (GOOD, ["target", "nontarget", "foo"], None, "words such as target and nontarget; found .*'foo', 'nontarget'"),
    (GOOD, [None, True, False], None, "labels must be booleans"),
    (GOOD, Y, [1.0, 1.0], r"weights \(2,\); they must be \(n,\), equally long"),
    (GOOD, Y, [1.0, -1.0, 1.0], r"weights: 1 of 3 are negative or not finite \(rows 1, from 0\)"),
    (GOOD, Y, [1.0, 1.0, np.nan], "weights: 1 of 3 are negative or not finite"),
    (GOOD, Y, [1.0, 0.0, 1.0], "no non-target trial .of positive weight."),
]
WRONG_OPTIONS = [
    (metrics.min_dcf, {"p_target": 0.0}, "p_target must lie strictly between 0 and 1"),
    (metrics.act_dcf, {"p_target": [0.5, 1.0]}, r"p_target=\[0.5, 1.0\].*strictly between"),
    (metrics.min_dcf, {"p_target": np.nan}, "strictly between"),
    (metrics.min_dcf, {"c_miss": 0.0}, "costs must be positive and finite"),
    (metrics.act_dcf, {"c_fa": -1.0}, "costs must be positive and finite"),
    (metrics.min_dcf, {"c_fa": np.inf}, "costs must be positive and finite"),
    (metrics.act_dcf, {"p_target": [0.1, 0.2], "c_miss": [1, 2, 3]}, "lists of the same length"),
    (metrics.min_dcf, {"p_target": 1e-300, "c_fa": 1e300}, "the Bayes threshold is beyond 700"),
    (metrics.act_dcf, {"c_miss": 1e300, "c_fa": 1e-300}, "the Bayes threshold is beyond 700"),
    (metrics.eer, {"method": "mean"}, "'rocch', 'interpolated' or 'nearest'"),
    (metrics.bayes_error, {"prior_log_odds": np.nan}, "prior_log_odds must lie within -700 .. 700"),
    (metrics.bayes_error, {"prior_log_odds": [0.0, 701.0]}, "prior_log_odds must lie within"),
]


@pytest.mark.parametrize(("scores", "labels", "weights", "message"), WRONG_TRIALS)
def test_wrong_trials_are_refused(scores, labels, weights, message):
    for metric in [*TRIAL_METRICS.values(), metrics.det_curve, metrics.rocch, metrics.pav_llr]:
        with pytest.raises(DuopldaError, match=message):
            metric(scores, labels, weights=weights)


@pytest.mark.parametrize(
    "labels",
    [
        ["target", "nontarget", "target", "nontarget"],
        ["TARGET", "imposter", "tgt", "non-target"],
        np.array([b"target", b"nontarget", b"target", b"nontarget"]),
        np.array(["target", "nontarget"] * 2, object),
        np.array(["target", "nontarget"] * 2, np.dtypes.StringDType()),
        [1.0, 0.0, 1.0, 0.0],
        np.array([1, 0, 1, 0], np.uint8),
        np.array([True, False, True, False], object),
        ["1", "0", "1", "0"],
    ],
)
def test_labels_are_words_numbers_or_booleans(labels):
    scores = [3.0, 1.0, -1.0, -3.0]
    for metric in [*TRIAL_METRICS.values(), metrics.det_curve, metrics.rocch, metrics.pav_llr, metrics.measure]:
        np.testing.assert_array_equal(metric(scores, labels), metric(scores, [True, False, True, False]))


@pytest.mark.parametrize(("metric", "options", "message"), WRONG_OPTIONS)
def test_wrong_options_are_refused(metric, options, message):
    with pytest.raises(DuopldaError, match=message):
        metric(GOOD, Y, **options)


def speaker_trials(seed=0, n_speakers=6, n=60):
    rng = np.random.default_rng(seed)
    a, b = rng.integers(n_speakers, size=(2, n))
    b[::3] = a[::3]
    return np.round(rng.normal(size=n) + (a == b), 1), a == b, a, b


def test_bootstrap_equals_copying_the_speakers():
    scores, labels, a, b = speaker_trials()
    names = np.array(["ann", "bob", "cid", "dee", "eve", "fay"])  # sorted, as np.unique indexes them
    result = metrics.bootstrap(metrics.min_cllr, scores, labels, names[a], names[b], n_resamples=8, seed=3)
    rng = np.random.default_rng(3)
    for value in result.values:
        drawn = rng.integers(6, size=6)
        copies = []
        for s, y, i, j in zip(scores, labels, a, b, strict=True):
            for first in np.flatnonzero(drawn == i):  # each draw is a person of its own
                for second in np.flatnonzero(drawn == j):
                    if i != j or first == second:
                        copies.append((s, y))
        copied = np.array(copies)
        assert value == pytest.approx(metrics.min_cllr(copied[:, 0], copied[:, 1] == 1), abs=1e-12)
    assert result.estimate == pytest.approx(metrics.min_cllr(scores, labels))


def test_bootstrap_sees_speakers_not_trials():
    # 100 speakers with 20 target trials each, all missed for 30 speakers: the miss rate of new
    # speakers has standard deviation sqrt(0.3 * 0.7 / 100), not sqrt(0.3 * 0.7 / 2000)
    a = np.concatenate((np.repeat(np.arange(100), 20), np.arange(100)))
    b = np.concatenate((np.repeat(np.arange(100), 20), (np.arange(100) + 1) % 100))
    scores = np.where(a == b, np.where(a < 30, -1.0, 1.0), -2.0)

    def miss_rate(s, y, weights):
        return np.average(s[y] < 0, weights=weights[y])

    result = metrics.bootstrap(miss_rate, scores, a == b, a, b, n_resamples=1500)
    sigma = np.sqrt(0.3 * 0.7 / 100)
    assert result.estimate == pytest.approx(0.3)
    assert np.std(result.values) == pytest.approx(sigma, rel=0.08)
    assert result.low == pytest.approx(0.3 - 1.96 * sigma, abs=0.015)
    assert result.high == pytest.approx(0.3 + 1.96 * sigma, abs=0.015)
    narrow = metrics.bootstrap(miss_rate, scores, a == b, a, b, n_resamples=1500, confidence=0.5)
    assert result.low < narrow.low < narrow.high < result.high


def test_bootstrap_is_seeded():
    data = speaker_trials(1)
    first = metrics.bootstrap(metrics.eer, *data, n_resamples=20)
    again = metrics.bootstrap(metrics.eer, *data, n_resamples=20)
    other = metrics.bootstrap(metrics.eer, *data, n_resamples=20, seed=1)
    np.testing.assert_array_equal(first.values, again.values)
    assert not np.array_equal(first.values, other.values)


def test_a_paired_difference_is_that_of_the_same_resamples():
    scores, labels, a, b = speaker_trials(1)
    others = scores + np.random.default_rng(0).normal(size=len(scores))
    both = [metrics.bootstrap(metrics.min_cllr, s, labels, a, b, n_resamples=30, seed=5) for s in (scores, others)]
    result = metrics.paired_difference(metrics.min_cllr, scores, others, labels, a, b, n_resamples=30, seed=5)
    np.testing.assert_allclose(result.values, both[0].values - both[1].values, atol=1e-12)
    assert result.estimate == pytest.approx(both[0].estimate - both[1].estimate, abs=1e-12)
    assert result.low <= result.estimate <= result.high
    of_all = metrics.paired_difference(metrics.measure, scores, others, labels, a, b, n_resamples=30, seed=5)
    position = metrics.metric_names().index("min_cllr")
    np.testing.assert_allclose(of_all.values[:, position], result.values, atol=1e-12)


def test_a_paired_difference_sees_what_intervals_of_each_system_hide():
    """All speakers are a little better in one system, by far less than they differ from each other."""
    rng = np.random.default_rng(0)
    a, b = (side.ravel() for side in np.meshgrid(np.arange(25), np.arange(25), indexing="ij"))
    hard = rng.normal(0.0, 1.5, 25)
    scores = np.where(a == b, 2.0, -2.0) + hard[a] + hard[b] + rng.normal(0.0, 1.0, len(a))
    better = scores + np.where(a == b, 0.3, -0.3)
    first, second = (metrics.bootstrap(metrics.cllr, s, a == b, a, b, n_resamples=300) for s in (scores, better))
    paired = metrics.paired_difference(metrics.cllr, scores, better, a == b, a, b, n_resamples=300)
    assert first.low < second.high
    assert 0 < paired.low < paired.high
    nothing = metrics.paired_difference(metrics.cllr, scores, scores, a == b, a, b, n_resamples=5)
    assert nothing.low == nothing.estimate == nothing.high == 0


def test_bootstrap_of_arrays_and_of_infinite_values():
    scores, labels, a, b = speaker_trials(2)
    metric = partial(metrics.act_dcf, p_target=[0.5, 0.1])
    result = metrics.bootstrap(metric, scores, labels, a, b, n_resamples=30, confidence=0.8)
    np.testing.assert_array_equal(result.low, np.sort(result.values, axis=0)[3])
    np.testing.assert_array_equal(result.high, np.sort(result.values, axis=0)[26])
    np.testing.assert_array_equal(result.estimate, metric(scores, labels))
    scores[np.flatnonzero(labels)[0]] = -INF
    result = metrics.bootstrap(metrics.cllr, scores, labels, a, b, n_resamples=200)
    assert np.isfinite(result.low)
    assert result.high == INF


def drawn_ratios(rng, n_speakers, scale=1.0, offset=0.0):
    """Trials between all pairs of three recordings of each speaker; with scale 1 and offset 0 ratios are calibrated."""
    speaker = np.repeat(np.arange(n_speakers), 3)
    x = rng.normal(size=n_speakers)[speaker] + 0.5 * rng.normal(size=len(speaker))
    one, two = np.triu_indices(len(x), 1)
    both = np.stack((x[one], x[two]), axis=1)
    same = multivariate_normal([0, 0], [[1.25, 1], [1, 1.25]]).logpdf(both)
    llr = same - norm(0, np.sqrt(1.25)).logpdf(both).sum(axis=1)
    return scale * llr + offset, speaker[one] == speaker[two], speaker[one], speaker[two]


@pytest.mark.parametrize("n_resamples", [1, 2, 20])
def test_every_interval_holds_its_estimate(n_resamples):
    rng = np.random.default_rng(0)
    for case in range(60):
        data = drawn_ratios(rng, 2 + case % 9, *((1.0, 0.0), (1.5, 1.0), (0.1, -1.0))[case % 3])
        metric = (partial(metrics.measure, p_target=[0.05, 0.5]), metrics.calibration_loss)[case % 2]
        result = metrics.bootstrap(metric, *data, n_resamples=n_resamples, seed=case)
        assert np.all((result.low >= 0) & (result.low <= result.estimate) & (result.estimate <= result.high))
    scores, labels, a, b = data
    scores[np.flatnonzero(labels)[0]] = -INF
    result = metrics.bootstrap(metrics.calibration_loss, scores, labels, a, b, n_resamples=n_resamples)
    assert result.estimate == result.high == INF
    assert result.low >= 0


def test_the_interval_of_the_loss_of_calibrated_ratios_starts_near_zero():
    """By quantiles of the resampled values none of these did: they repeat the bias of the fit to few trials."""
    rng = np.random.default_rng(1)
    results = [metrics.bootstrap(metrics.calibration_loss, *drawn_ratios(rng, 8), n_resamples=60) for _ in range(15)]
    assert np.mean([result.low < 0.01 for result in results]) > 0.8
    assert np.mean([np.sort(result.values)[1] < 0.01 for result in results]) < 0.1
    alone = [metrics.bootstrap(metrics.min_cllr, *drawn_ratios(rng, 4), n_resamples=60).high for _ in range(20)]
    assert max(alone) <= 1


def test_bootstrap_progress_goes_to_a_terminal_only(monkeypatch, capsys):
    run = partial(metrics.bootstrap, metrics.eer, *speaker_trials(3), n_resamples=5, progress=True)
    run()
    assert capsys.readouterr() == ("", "")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    shown = run()
    assert "bootstrap" in sys.stderr.getvalue()
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setitem(sys.modules, "rich.progress", None)  # as if rich were not installed
    np.testing.assert_array_equal(run().values, shown.values)
    assert sys.stderr.getvalue() == ""


def test_bootstrap_refuses_what_it_cannot_use():
    scores, labels, a, b = speaker_trials(4)
    with pytest.raises(DuopldaError, match="at odds with the speakers"):
        metrics.bootstrap(metrics.eer, scores, ~labels, a, b)
    with pytest.raises(DuopldaError, match="the speaker of each side"):
        metrics.bootstrap(metrics.eer, scores, labels, a[:-1], b)
    for wrong in ({"n_resamples": 0}, {"confidence": 95}, {"seed": -1}):
        with pytest.raises(DuopldaError, match="n_resamples >= 1, confidence between 0 and 1, and a seed >= 0"):
            metrics.bootstrap(metrics.eer, scores, labels, a, b, **wrong)


def test_bootstrap_draws_again_until_both_classes_are_there():
    two = ([1.0, 0.0], [True, False], [0, 0], [0, 1])  # half of the draws lack the other speaker
    assert np.all(metrics.bootstrap(metrics.eer, *two, n_resamples=50).values == 0.0)

    class OnlyTheFirst(np.random.Generator):
        def integers(self, n, size):
            return np.zeros(size, dtype=int)

    with pytest.raises(DuopldaError, match="2 speakers are too few"):
        metrics.bootstrap(metrics.eer, *two, seed=OnlyTheFirst(np.random.PCG64(0)))


@pytest.mark.parametrize("method", ["rocch", "interpolated", "nearest"])
@pytest.mark.parametrize("weighted", [False, True])
@given(data=trials())
def test_measure_is_every_metric_by_itself(method, weighted, data):
    scores, labels = data
    w = np.random.default_rng(len(scores)).integers(1, 4, len(labels)) if weighted else None
    row = metrics.measure(scores, labels, w, p_target=[0.1, 0.5], c_miss=2.0, c_fa=3.0, eer_method=method)
    found = dict(zip(metrics.metric_names([0.1, 0.5]), row.tolist(), strict=True))
    expected = {"eer": metrics.eer(scores, labels, method, w)}
    for p in (0.1, 0.5):
        expected[f"min_dcf({p})"] = metrics.min_dcf(scores, labels, p, 2, 3, weights=w)
        expected[f"act_dcf({p})"] = metrics.act_dcf(scores, labels, p, 2, 3, weights=w)
    for name in ("cllr", "min_cllr", "calibration_loss"):
        expected[name] = getattr(metrics, name)(scores, labels, weights=w)
    assert found == pytest.approx(expected, rel=1e-12, nan_ok=True)
    assert list(found) == list(expected)


def test_systems_are_measured_with_and_without_speakers():
    scores, labels, a, b = speaker_trials(5)
    systems = {"s": scores, "t": -scores}
    plain = metrics.measure_systems(systems, labels, p_target=0.2)
    drawn = metrics.measure_systems(systems, labels, (a, b), n_resamples=10, seed=3, p_target=0.2)
    for name, s in systems.items():
        np.testing.assert_array_equal(plain[name].estimate, metrics.measure(s, labels, p_target=0.2))
        np.testing.assert_allclose(drawn[name].estimate, plain[name].estimate, rtol=1e-12)
        assert plain[name].low is plain[name].high is None
        alone = metrics.bootstrap(partial(metrics.measure, p_target=0.2), s, labels, a, b, n_resamples=10, seed=3)
        np.testing.assert_array_equal(drawn[name].low, alone.low)
        np.testing.assert_array_equal(drawn[name].high, alone.high)
    assert metrics.measure_systems(systems, labels, (a, b), n_resamples=0)["s"].low is None
    with pytest.raises(DuopldaError, match=r"^system 't': scores: 1 of .* are NaN"):
        metrics.measure_systems({"s": scores, "t": np.where(np.arange(len(scores)) == 2, np.nan, scores)}, labels)
    with pytest.raises(DuopldaError, match="method is 'best'"):
        metrics.measure(scores, labels, eer_method="best")
