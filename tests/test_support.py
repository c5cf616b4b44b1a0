"""Bounds, cross-entropy and distance from PAV: against their definitions on grids, and against lir where it is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duoplda import DuopldaError
from duoplda.metrics import cllr, dev_pav, ece, elub, invariance_bounds, misleading_evidence, pav_llr

LN10 = np.log(10)


def drawn(seed, n_targets=60, n_nontargets=200, separation=4.0, scale=1.0):
    """Gaussian log ratios that are calibrated for scale 1 (the mean is half of the variance)."""
    rng = np.random.default_rng(seed)
    targets = rng.normal(separation / 2, separation**0.5, n_targets)
    nontargets = rng.normal(-separation / 2, separation**0.5, n_nontargets)
    scores = scale * np.concatenate([targets, nontargets])
    return np.round(scores, 2), np.arange(len(scores)) < n_targets  # some scores are equal


def utility(scores, labels, t):
    """Expected cost at threshold t (a log ratio) with one more error in each class, and that of no ratios."""
    missed = (np.sum(scores[labels] <= t) + 1) / (labels.sum() + 1)
    accepted = (np.sum(scores[~labels] > t) + 1) / ((~labels).sum() + 1)
    return missed + np.exp(t) * accepted, min(1.0, np.exp(t))


CASES = [drawn(seed, scale=scale) for seed in range(4) for scale in (1.0, 2.0, 0.5, 5.0)] + [
    drawn(9, 3, 5),
    drawn(8, 1, 1),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_elub_is_where_ratios_stop_to_pay(case):
    scores, labels = CASES[case]
    bounds = elub(scores, labels)
    assert bounds.lower <= 0 <= bounds.upper
    assert bounds.upper <= np.log((~labels).sum() + 1) + 1e-12
    assert bounds.lower >= -np.log(labels.sum() + 1) - 1e-12
    for inside in np.linspace(bounds.lower, bounds.upper, 50)[1:-1] if bounds.lower < bounds.upper else ():
        with_ratios, without = utility(scores, labels, inside)
        assert with_ratios <= without + 1e-9
    for just_outside in (bounds.lower - 1e-6, bounds.upper + 1e-6):
        with_ratios, without = utility(scores, labels, just_outside)
        assert with_ratios > without


@pytest.mark.parametrize("case", range(len(CASES)))
def test_invariance_bounds_are_where_exceeding_a_ratio_is_no_longer_worth_it(case):
    scores, labels = CASES[case]
    bounds = invariance_bounds(scores, labels)
    ordered = {target: np.sort(scores[labels == target]) for target in (True, False)}

    def above(t, target):
        """The share of a class that is at least `t`, with half a trial added on either side."""
        own = ordered[target]
        return (len(own) - np.searchsorted(own, t) + 0.5) / (len(own) + 1)

    grid = np.arange(min(scores.min(), 0), max(scores.max(), 0), 0.0005)
    high = np.log(above(grid, True) / above(grid, False)) - grid
    low = grid - np.log((1 - above(grid, True)) / (1 - above(grid, False)))
    upper = grid[high < 0].min(initial=scores[labels].max())
    lower = grid[low < 0].max(initial=scores[~labels].min())
    assert bounds.upper == pytest.approx(max(upper, 0), abs=0.0006)
    assert bounds.lower == pytest.approx(min(lower, 0), abs=0.0006)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_lir_says_the_same(case):
    pytest.importorskip("lir")
    from lir.algorithms.bayeserror import elub as their_elub
    from lir.algorithms.invariance_bounds import calculate_invariance_bounds
    from lir.metrics.devpav import devpav
    from lir.plotting.expected_calibration_error import calculate_ece

    scores, labels = CASES[case]
    y = labels.astype(int)
    theirs = np.array(their_elub(scores / LN10, y, step_size=0.001))
    np.testing.assert_allclose(np.array(elub(scores, labels)) / LN10, theirs, atol=0.001 + 1e-9)
    theirs = np.log10(calculate_invariance_bounds(np.exp(scores), y)[:2])
    np.testing.assert_allclose(np.array(invariance_bounds(scores, labels)) / LN10, theirs, atol=0.001 + 1e-9)
    priors = np.array([0.01, 0.3, 0.5, 0.9])
    ours = ece(scores, labels, np.log(priors / (1 - priors)))
    np.testing.assert_allclose(ours, calculate_ece(np.exp(scores), y, priors), rtol=1e-9)
    if np.isfinite(pav_llr(scores, labels)).any():
        assert dev_pav(scores, labels) / LN10 == pytest.approx(float(np.ravel(devpav(scores / LN10, y))[0]), rel=1e-9)


def test_cross_entropy_at_even_odds_is_cllr_and_that_of_no_ratios_the_entropy_of_the_prior():
    scores, labels = drawn(0)
    assert ece(scores, labels, 0.0) == pytest.approx(cllr(scores, labels), rel=1e-12)
    p = 0.2
    nothing = ece(np.zeros(len(scores)), labels, np.log(p / (1 - p)))
    assert nothing == pytest.approx(-p * np.log2(p) - (1 - p) * np.log2(1 - p), rel=1e-12)
    assert ece(scores, labels, [[0.0, 1.0]]).shape == (1, 2)
    with pytest.raises(DuopldaError, match="prior_log_odds must lie within"):
        ece(scores, labels, 1000.0)


def test_distance_from_pav_by_a_fine_grid():
    scores, labels = drawn(3, scale=2.0)
    pav = pav_llr(scores, labels)
    finite = np.isfinite(pav)
    x = np.linspace(scores[finite].min(), scores[finite].max(), 400_001)
    order = np.argsort(scores[finite], kind="stable")
    distance = np.abs(np.interp(x, scores[finite][order], pav[finite][order]) - x)
    assert dev_pav(scores, labels) == pytest.approx(np.trapezoid(distance, x) / (x[-1] - x[0]), rel=1e-5)


def test_distance_from_pav_where_there_is_none():
    assert np.isnan(dev_pav([-1.0, 1.0], [False, True]))
    assert dev_pav([0.0, 0.0, -np.inf, -np.inf], [True, False, True, False]) == np.inf
    assert dev_pav([2.0, 2.0], [True, False]) == 2.0


def test_misleading_evidence_by_counting():
    scores, labels = drawn(1)
    result = misleading_evidence(scores, labels)
    assert result.of_targets == np.mean(scores[labels] < 0)
    assert result.of_nontargets == np.mean(scores[~labels] > 0)
    assert result.lowest_target == scores[labels].min() < 0
    assert result.highest_nontarget == scores[~labels].max() > 0


@given(st.integers(0, 1000), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_weights_are_repetitions(seed, times):
    scores, labels = drawn(seed, 20, 30)
    repeated = np.repeat(scores, times), np.repeat(labels, times)
    weights = np.full(len(scores), float(times))
    for function in (elub, invariance_bounds, misleading_evidence, dev_pav):
        np.testing.assert_allclose(function(scores, labels, weights), function(*repeated), rtol=1e-12)
    np.testing.assert_allclose(ece(scores, labels, [-1.0, 2.0], weights), ece(*repeated, [-1.0, 2.0]), rtol=1e-12)


@given(st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_exchanging_the_classes_exchanges_the_bounds(seed):
    """Ratios of different numbers are used, so that ties of >= and > do not matter."""
    scores, labels = drawn(seed, 20, 30)
    scores = scores + 1e-4 * np.random.default_rng(seed).random(len(scores))
    for function in (elub, invariance_bounds):
        lower, upper = function(scores, labels)
        np.testing.assert_allclose(function(-scores, ~labels), (-upper, -lower), atol=1e-9)


def test_more_trials_support_larger_ratios():
    few = elub(*drawn(0, 20, 50, separation=20.0))
    many = elub(*drawn(0, 2000, 5000, separation=20.0))
    assert many.upper > few.upper + 2
    assert many.lower < few.lower - 2


def test_bad_trials_are_refused():
    for function in (elub, invariance_bounds, misleading_evidence, dev_pav):
        with pytest.raises(DuopldaError, match="NaN"):
            function([np.nan, 1.0], [True, False])
        with pytest.raises(DuopldaError, match="both classes are needed"):
            function([0.0, 1.0], [True, True])
