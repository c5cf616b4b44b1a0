"""Calibrations: the minimum they claim, known truths, ties, separation, state without pickle."""

import doctest
import json
import re
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save, save_file
from scipy.optimize import check_grad, minimize
from scipy.special import logit
from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

from duoplda import DuopldaError
from duoplda.evaluation import calibration, metrics
from duoplda.evaluation.calibration import AffineCalibration, Fusion, PAVCalibration


def gaussian_trials(d_prime=2.0, n=4000):
    """Calibrated scores on exact quantiles: targets N(v/2, v), non-targets N(-v/2, v), v = d'^2."""
    grid = norm.ppf((np.arange(n) + 0.5) / n) * d_prime
    return np.concatenate((grid + d_prime**2 / 2, grid - d_prime**2 / 2)), np.arange(2 * n) < n


def random_systems(seed=0, n=600, k=3):
    rng = np.random.default_rng(seed)
    labels = rng.random(n) < 0.2
    return rng.normal(size=(n, k)) * [1.0, 30.0, 0.01][:k] + np.outer(labels, [1.5, 30.0, 0.005][:k]), labels


def loss(llr, labels, p, weights=None):
    """The loss of the docstring, term by term."""
    w = np.ones(len(llr)) if weights is None else weights
    targets = np.average(np.log1p(np.exp(-llr[labels] - logit(p))), weights=w[labels])
    nontargets = np.average(np.log1p(np.exp(llr[~labels] + logit(p))), weights=w[~labels])
    return p * targets + (1 - p) * nontargets


ESTIMATORS = {
    "affine": AffineCalibration(p_target=0.1),
    "pav": PAVCalibration(laplace=0.5),
    "plain pav": PAVCalibration(laplace=0),
    "fusion": Fusion(p_target=0.3, ridge=0.01),
}


def fit(name):
    return clone(ESTIMATORS[name]).fit(*(random_systems() if name == "fusion" else gaussian_trials(n=200)))


# ---- affine and fusion ------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.01, 0.5, 0.9])
@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (0.1, -300.0), (40.0, 7.0), (-2.0, 1.0)])
def test_affine_undoes_an_affine_distortion(p, scale, offset):
    scores, labels = gaussian_trials()
    if scale < 0:
        with pytest.warns(UserWarning, match="the scale is negative"):
            fitted = AffineCalibration(p).fit(scores * scale + offset, labels)
    else:
        fitted = AffineCalibration(p).fit(scores * scale + offset, labels)
    assert fitted.scale_ * scale == pytest.approx(1.0, abs=0.01)
    np.testing.assert_allclose(fitted.transform(scores * scale + offset), scores, atol=0.1)
    assert fitted.ridge_ == 0.0


def test_affine_gives_the_bayes_threshold_its_meaning():
    scores, labels = gaussian_trials()
    distorted = scores / 3 + 1
    calibrated = AffineCalibration().fit_transform(distorted, labels)
    assert metrics.calibration_loss(distorted, labels) > 0.1
    assert metrics.calibration_loss(calibrated, labels) < 0.002
    np.testing.assert_allclose(
        metrics.act_dcf(calibrated, labels, [0.1, 0.5]),
        metrics.min_dcf(scores, labels, [0.1, 0.5]),
        atol=0.005,
    )


@pytest.mark.parametrize("p", [0.02, 0.5, 0.8])
def test_fusion_is_at_the_minimum_of_the_loss(p):
    scores, labels = random_systems()
    weights = np.random.default_rng(1).integers(1, 4, len(labels)).astype(float)
    fitted = Fusion(p).fit(scores, labels, weights)
    unit = scores.std(axis=0)

    def at(theta):
        return loss(scores / unit @ theta[:-1] + theta[-1], labels, p, weights)

    theta = np.append(fitted.scales_ * unit, fitted.offset_)
    other = minimize(at, np.zeros(4), method="BFGS", options={"gtol": 1e-6})
    np.testing.assert_allclose(theta, other.x, atol=2e-4)
    assert check_grad(at, lambda _: np.zeros(4), theta) < 1e-6  # the slope by differences is nil
    assert at(theta) <= other.fun + 1e-12


def test_fusion_is_scikit_learns_logistic_regression():
    scores, labels = random_systems(2)
    p = 0.1
    c = np.where(labels, p / labels.sum(), (1 - p) / (~labels).sum())
    unit = scores.std(axis=0)
    other = LogisticRegression(C=1e9, tol=1e-10, max_iter=1000).fit(scores / unit, labels, sample_weight=c * 1e3)
    fitted = Fusion(p).fit(scores, labels)
    np.testing.assert_allclose(fitted.scales_ * unit, other.coef_[0], rtol=1e-4)
    assert fitted.offset_ == pytest.approx(other.intercept_[0] - logit(p), rel=1e-4)


@pytest.mark.parametrize("p", [0.2, 0.7])
def test_ridge_is_on_the_scale_for_unit_variance(p):
    scores, labels = random_systems(3, k=1)
    fitted = AffineCalibration(p, ridge=0.3).fit(scores[:, 0], labels)
    c = np.where(labels, p / labels.sum(), (1 - p) / (~labels).sum())
    mean = c @ scores[:, 0]
    unit = np.sqrt(c @ (scores[:, 0] - mean) ** 2)

    def at(theta):
        return loss(theta[0] * scores[:, 0] / unit + theta[1], labels, p) + 0.3 * theta[0] ** 2 / 2

    best = minimize(at, np.zeros(2), method="BFGS").x
    assert fitted.scale_ * unit == pytest.approx(best[0], abs=1e-4)
    assert fitted.offset_ == pytest.approx(best[1], abs=1e-4)
    assert fitted.ridge_ == 0.3


def test_fusion_of_one_is_affine_and_twins_share():
    scores, labels = random_systems(4)
    affine = AffineCalibration(0.2).fit(scores[:, 1], labels)
    single = Fusion(0.2).fit(scores[:, [1]], labels)
    assert (single.scales_[0], single.offset_) == (affine.scale_, affine.offset_)
    twins = Fusion(0.2).fit(scores[:, [1, 1]], labels)
    np.testing.assert_allclose(twins.scales_, affine.scale_ / 2, rtol=1e-8)
    constant = np.column_stack((scores[:, 1], np.full(len(labels), 5.0)))
    with_constant = Fusion(0.2).fit(constant, labels)
    assert with_constant.scales_[0] == pytest.approx(affine.scale_, rel=1e-9)
    assert with_constant.scales_[1] == 0.0
    assert with_constant.offset_ == pytest.approx(affine.offset_, rel=1e-9)


def test_fusion_is_better_than_each_system():
    scores, labels = random_systems(5)
    fused = Fusion().fit_transform(scores, labels)
    singles = [metrics.cllr(AffineCalibration().fit_transform(s, labels), labels) for s in scores.T]
    assert metrics.cllr(fused, labels) < min(singles) - 0.01


def test_constant_scores_say_nothing():
    fitted = AffineCalibration(0.1).fit([3.0, 3.0, 3.0], [True, False, False])
    assert fitted.scale_ == 0.0
    assert fitted.offset_ == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(fitted.transform([-np.inf, 0.0, np.inf]), 0.0, atol=1e-12)


@pytest.mark.parametrize("estimator", [AffineCalibration(0.3), Fusion(0.3), PAVCalibration(2.0)])
def test_integer_weights_repeat_and_order_does_not_matter(estimator):
    scores, labels = random_systems(6, n=300)
    x = scores if isinstance(estimator, Fusion) else np.round(scores[:, 0], 1)
    rng = np.random.default_rng(0)
    weights, order = rng.integers(0, 4, len(labels)), rng.permutation(len(labels))
    weighted = clone(estimator).fit(x, labels, weights).transform(x)
    repeated = clone(estimator).fit(np.repeat(x, weights, axis=0), np.repeat(labels, weights)).transform(x)
    shuffled = clone(estimator).fit(x[order], labels[order], weights[order]).transform(x)
    np.testing.assert_allclose(weighted, repeated, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(weighted, shuffled, rtol=1e-9, atol=1e-9)
    assert not np.allclose(weighted, clone(estimator).fit(x, labels).transform(x))


# ---- no finite minimum ------------------------------------------------------------------------------

SEPARATED = {
    "apart": ([-2.0, -1.0, 1.0, 2.0, 3.0], [False, False, True, True, True]),
    "tie at the border": ([-2.0, 1.0, 1.0, 2.0, 3.0], [False, False, True, True, True]),
}


@pytest.mark.parametrize("name", SEPARATED)
def test_separated_scores_warn_and_use_a_ridge(name):
    scores, labels = SEPARATED[name]
    with pytest.warns(UserWarning, match=r"no finite scale is best.*used ridge=0.5"):
        fitted = AffineCalibration().fit(scores, labels)
    assert fitted.ridge_ == 0.5
    assert 0 < fitted.scale_ < 2
    explicit = AffineCalibration(ridge=0.5).fit(scores, labels)  # asked for: no warning
    assert explicit.scale_ == fitted.scale_
    with pytest.warns(UserWarning, match="no finite scale is best"):
        Fusion().fit(np.column_stack((scores, scores)), labels)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), max_size=8))
def test_a_ridge_is_used_exactly_when_a_threshold_separates(more):
    s = np.array([0.0, 1.0, *(float(v) for v, _ in more)])
    y = np.array([True, False, *(label for _, label in more)])
    targets, nontargets = s[y], s[~y]
    separated = targets.min() >= nontargets.max() or targets.max() <= nontargets.min()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fitted = AffineCalibration().fit(s, y)
    assert (fitted.ridge_ > 0) == separated
    assert any("no finite scale" in str(w.message) for w in caught) == separated


@pytest.mark.parametrize("p", [0.001, 0.5, 0.999])
def test_one_error_in_many_trials_is_enough_for_a_minimum(p):
    labels = np.arange(40_000) < 20_000
    scores = np.where(labels, 10.0, -10.0) + np.random.default_rng(0).normal(size=40_000)
    scores[0] = -10.0
    fitted = AffineCalibration(p).fit(scores, labels)
    assert fitted.ridge_ == 0.0
    least = loss(fitted.transform(scores), labels, p)
    for scale, offset in ((1.01, 0.0), (0.99, 0.0), (1.0, 0.05), (1.0, -0.05)):  # it is the minimum
        assert loss(fitted.transform(scores) * scale + offset, labels, p) > least


def test_a_flag_that_only_targets_have_is_noticed():
    scores, labels = random_systems(7, k=1)
    flag = labels & (np.arange(len(labels)) % 3 == 0)
    with pytest.warns(UserWarning, match="separate .some of. the trials"):
        fitted = Fusion().fit(np.column_stack((scores[:, 0], flag.astype(float))), labels)
    assert 1 < fitted.scales_[1] < 20
    flag[np.flatnonzero(~labels)[0]] = True  # one exception, and there is a minimum
    assert Fusion().fit(np.column_stack((scores[:, 0], flag.astype(float))), labels).ridge_ == 0.0


# ---- PAV --------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), max_size=15))
def test_plain_pav_is_pav_llr_on_its_own_scores(more):
    scores = np.array([0.0, 1.0, *(float(s) for s, _ in more)])
    labels = np.array([True, False, *(y for _, y in more)])
    fitted = PAVCalibration(laplace=0).fit(scores, labels)
    np.testing.assert_allclose(fitted.transform(scores), metrics.pav_llr(scores, labels), atol=1e-12)


@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), max_size=15), st.integers(1, 3))
def test_laplace_adds_misleading_trials_at_both_ends(more, c):
    scores = np.array([0.0, 1.0, *(float(s) for s, _ in more)])
    labels = np.array([True, False, *(y for _, y in more)])
    fitted = PAVCalibration(laplace=c).fit(scores, labels)
    longer = np.concatenate((scores, [-99.0] * c, [99.0] * c))
    truth = np.concatenate((labels, [True] * c, [False] * c))
    np.testing.assert_allclose(fitted.transform(scores), metrics.pav_llr(longer, truth)[: len(scores)], atol=1e-12)
    everywhere = fitted.transform(np.concatenate(([-np.inf], np.linspace(-6, 6, 101), [np.inf])))
    assert np.all(np.isfinite(everywhere))
    assert np.all(np.diff(everywhere) >= -1e-12)
    assert everywhere[0] == pytest.approx(fitted.transform(scores.min()))
    assert everywhere[-1] == pytest.approx(fitted.transform(scores.max()))


def test_pav_is_linear_between_blocks():
    scores = [-3.0, -2.0, -2.0, -2.0, 0.0, 2.0, 2.0, 2.0, 3.0]
    labels = [False, False, False, True, False, True, True, False, True]
    plain = PAVCalibration(laplace=0).fit(scores, labels)
    # blocks: -3 alone | -2 .. 0 with 1 target, 3 non-targets | 2 with 2 targets, 1 non-target | 3 alone
    low, high = np.log(1 / 4) - np.log(3 / 5), np.log(2 / 4) - np.log(1 / 5)
    expected = [-np.inf, -np.inf, low, low, low, (low + high) / 2, high, high, np.inf, np.inf]
    actual = plain.transform([-9.0, -3.0, -2.5, -2.0, 0.0, 1.0, 2.0, 2.9, 3.0, 9.0])
    np.testing.assert_allclose(actual, expected)
    apart = PAVCalibration(laplace=0).fit([-1.0, 1.0], [False, True])
    np.testing.assert_array_equal(apart.transform([-1.0, 0.0, 1.0]), [-np.inf, 0.0, np.inf])


def test_pav_calibrates_what_no_line_can():
    scores, labels = gaussian_trials()
    bent = np.cbrt(scores)
    train, test = np.arange(len(bent)) % 2 == 0, np.arange(len(bent)) % 2 == 1
    pav = PAVCalibration().fit(bent[train], labels[train]).transform(bent[test])
    affine = AffineCalibration().fit(bent[train], labels[train]).transform(bent[test])
    best = metrics.cllr(scores[test], labels[test])
    assert metrics.cllr(pav, labels[test]) < best + 0.005
    assert metrics.cllr(affine, labels[test]) > best + 0.01


# ---- the estimators' manners ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ESTIMATORS)
def test_state_travels_through_safetensors(name):
    fitted = fit(name)
    state = fitted.get_state()
    assert all(type(v) is float or (type(v) is np.ndarray and v.dtype == np.float64) for v in state.values())
    stored = load(save({name: np.asarray(value) for name, value in state.items()}))
    again = type(fitted).from_state(stored)
    assert again.get_params() == fitted.get_params()
    x = random_systems(9)[0] if isinstance(fitted, Fusion) else np.linspace(-9, 9, 50)
    np.testing.assert_array_equal(again.transform(x), fitted.transform(x))
    assert again.get_state().keys() == state.keys()
    for wrong in ({}, {**state, "more": 1.0}):
        with pytest.raises(DuopldaError, match=f"{type(fitted).__name__} needs the state"):
            type(fitted).from_state(wrong)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_files(name, tmp_path):
    fitted, path = fit(name), tmp_path / "c.safetensors"
    fitted.save(path)
    again = calibration.load(path)
    assert (type(again), again.get_params()) == (type(fitted), fitted.get_params())
    x = random_systems(9)[0] if isinstance(fitted, Fusion) else np.linspace(-9, 9, 50)
    np.testing.assert_array_equal(again.transform(x), fitted.transform(x))
    before = path.read_bytes()
    with pytest.raises(DuopldaError, match="exists already"):
        fitted.save(path)
    fitted.save(path, force=True)
    assert path.read_bytes() == before
    with pytest.raises(NotFittedError):
        clone(fitted).save(tmp_path / "new")
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


def first_version(path, state, **header):
    """Write a file as duoplda did before calibrations had a `save`."""
    header = {"format": "duoplda-calibration", "version": 1, "class": "PAVCalibration", **header}
    arrays = {name: np.atleast_1d(np.asarray(value, np.float64)) for name, value in state.items()}
    save_file(arrays, path, {"duoplda": json.dumps(header)})


def test_files_of_the_first_version_are_read(tmp_path):
    state = {"laplace": 1.0, "low_": [-2.0, 1.0], "high_": [0.0, 3.0], "llr_": [-np.inf, 0.75]}
    first_version(tmp_path / "c", state)
    found = calibration.load(tmp_path / "c")
    assert isinstance(found, PAVCalibration)
    assert found.transform([-1.0, 2.0]).tolist() == [-np.inf, 0.75]
    first_version(tmp_path / "c", {"p_target": 0.5, "ridge": 0, "scale_": 2, "offset_": 1, "ridge_": 0}, **AFFINE)
    assert calibration.load(tmp_path / "c").transform([3.0]).tolist() == [7.0]


AFFINE = {"class": "AffineCalibration"}
LINE = {"p_target": 0.5, "ridge": 0.0, "scale_": 2.0, "offset_": 1.0, "ridge_": 0.0}
STEPS = {"laplace": 1.0, "low_": [0.0, 1.0], "high_": [0.0, 1.0], "llr_": [-1.0, 1.0]}


@pytest.mark.parametrize(
    ("state", "header", "message"),
    [
        (STEPS | {"low_": [0.0]}, {}, "low_, high_, llr_ differ in length"),
        (STEPS | {"llr_": [0.0, np.nan]}, {}, "llr_ is not finite"),
        (STEPS | {"high_": [0.0, np.inf]}, {}, "high_ is not finite"),
        (STEPS | {"low_": [[0.0, 1.0]]}, {}, r"low_ has shape \(1, 2\)"),
        (STEPS | {"low_": [], "high_": [], "llr_": []}, {}, r"has shape \(0,\)"),
        (STEPS | {"laplace": [1.0, 2.0]}, {}, r"laplace has shape \(2,\); give a number"),
        (STEPS, AFFINE, "AffineCalibration needs the state"),
        (LINE | {"scale_": np.inf}, AFFINE, "scale_ is not finite"),
        (LINE, {"class": "Backend"}, "'Backend', which is no calibration"),
        (LINE, {"class": ["x"]}, "which is no calibration"),
        (LINE, {"version": 2}, "version 2"),
        (LINE, {"format": "duoplda-backend"}, "is a model of duoplda, not a calibration"),
    ],
)
def test_damaged_files_are_refused(tmp_path, state, header, message):
    first_version(tmp_path / "c", state, **header)
    with pytest.raises(DuopldaError, match=f"^{re.escape(str(tmp_path / 'c'))}: .*{message}"):
        calibration.load(tmp_path / "c")


@pytest.mark.parametrize("name", ESTIMATORS)
def test_clone_and_parameters(name):
    fitted = fit(name)
    fresh = clone(fitted)
    assert fresh.get_params() == fitted.get_params()
    for use in (lambda: fresh.transform([[0.0, 0.0, 0.0]]), fresh.get_state):
        with pytest.raises(NotFittedError):
            use()
    parameter = next(iter(fresh.get_params()))
    assert fresh.set_params(**{parameter: 0.25}).get_params()[parameter] == 0.25


@pytest.mark.parametrize("name", ["affine", "pav", "plain pav"])
def test_scores_of_any_shape(name):
    fitted = fit(name)
    flat = np.linspace(-3, 3, 12)
    np.testing.assert_array_equal(fitted.transform(flat.reshape(3, 4)), fitted.transform(flat).reshape(3, 4))
    assert fitted.transform(0.5).shape == ()
    assert fitted.transform([-np.inf, np.inf])[0] < fitted.transform([-np.inf, np.inf])[1]


def test_fusion_of_blocks_of_scores():
    scores = random_systems(8, n=12)[0]
    fusion = fit("fusion")
    expected = [np.dot(row, fusion.scales_) + fusion.offset_ for row in scores]
    np.testing.assert_allclose(fusion.transform(scores.reshape(3, 4, 3)).ravel(), expected)


Y = [True, False, True, False]


@pytest.mark.parametrize(
    ("estimator", "scores", "labels", "message"),
    [
        (
            AffineCalibration(p_target=1.0),
            [0.0, 1, 2, 3],
            Y,
            "p_target=1.0 must lie strictly between 0 and 1",
        ),
        (Fusion(p_target=0), [[0.0], [1], [2], [3]], Y, "p_target=0 must lie strictly"),
        (AffineCalibration(ridge=-1.0), [0.0, 1, 2, 3], Y, "ridge=-1.0 must be a finite number >= 0"),
        (PAVCalibration(laplace=-1), [0.0, 1, 2, 3], Y, "laplace=-1 must be a finite number >= 0"),
        (AffineCalibration(), [[0.0], [1], [2], [3]], Y, r"shape \(4, 1\); give \(n,\)"),
        (Fusion(), [0.0, 1, 2, 3], Y, r"shape \(4,\); give \(n, k\)"),
        (AffineCalibration(), [0.0, np.inf, np.nan, 3], Y, r"2 of 4 are not finite \(rows 1, 2, from 0\)"),
        (PAVCalibration(), [0.0, -np.inf, 2, 3], Y, r"1 of 4 are not finite \(rows 1, from 0\)"),
        (PAVCalibration(), [0.0, np.nan, 2, 3], Y, r"1 of 4 are NaN"),
        (Fusion(), [[0.0, 1], [1, np.nan], [2, 2], [3, 0]], Y, r"1 of 4 are not finite \(rows 1, from 0\)"),
        (AffineCalibration(), [0.0, 1, 2, 3], [True] * 4, "no non-target trial"),
        (AffineCalibration(), [0.0, 1, 2, 3], Y[:3], r"scores has shape \(4,\), labels \(3,\)"),
        (AffineCalibration(), [], [], "there are no scores"),
        (PAVCalibration(), [], [], "there are no scores"),
        (Fusion(), np.empty((4, 0)), Y, "there are no scores"),
        (Fusion(), [["a"], ["b"]], [True, False], "scores must be real numbers"),
    ],
)
def test_wrong_trials_are_refused(estimator, scores, labels, message):
    with pytest.raises(DuopldaError, match=message):
        estimator.fit(scores, labels)


def test_wrong_scores_are_refused_by_transform():
    for name in ("affine", "pav"):
        with pytest.raises(DuopldaError, match=r"1 of 2 are NaN \(rows 1, from 0\)"):
            fit(name).transform([0.0, np.nan])
    fusion = fit("fusion")
    with pytest.raises(DuopldaError, match="was fitted on 3 systems"):
        fusion.transform([[0.0, 1.0]])
    with pytest.raises(DuopldaError, match="1 of 2 are not finite"):
        fusion.transform([[0.0, 1.0, 2.0], [0.0, np.inf, 2.0]])


def test_docstring_examples():
    failed, attempted = doctest.testmod(calibration)
    assert failed == 0
    assert attempted >= 7
