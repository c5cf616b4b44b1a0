"""Bounded, kernel and bootstrap calibrations: what they claim, files and models that keep them, and lir's numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gaussian_kde
from sklearn.base import clone

from duoplda import PLDA, Backend, DuopldaError
from duoplda.calibration import (
    AffineCalibration,
    BootstrapCalibration,
    Bounded,
    Fusion,
    KDECalibration,
    PAVCalibration,
    QualityCalibration,
    load,
)
from duoplda.datasets import make_recordings
from duoplda.evaluation import metrics
from duoplda.evaluation.resampling import resamples
from duoplda.metrics import elub, invariance_bounds, llr_overestimation

LN10 = np.log(10)


def drawn(seed, n_targets=60, n_nontargets=200, scale=1.0, variance=8.0):
    """Gaussian log ratios, calibrated for scale 1 (the mean is half of the variance), and their truth."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n_targets + n_nontargets) < n_targets
    return scale * rng.normal(np.where(labels, variance / 2, -variance / 2), variance**0.5), labels


def sides(labels, n_speakers=30, seed=0):
    """Speakers of both sides of trials that have these labels."""
    names = np.random.default_rng(seed).integers(n_speakers, size=(2, len(labels)))
    other = (names[0] + 1 + names[1] % (n_speakers - 1)) % n_speakers
    return names[0], np.where(labels, names[0], other)


FITTED = {
    "bounded": Bounded(AffineCalibration(ridge=0.01), "elub"),
    "bounded by invariance": Bounded(PAVCalibration(), "invariance"),
    "kernels": KDECalibration(),
    "kernels of one width": KDECalibration(bandwidth=0.7),
    "bounded kernels": Bounded(KDECalibration(), "elub"),
    "resampled": BootstrapCalibration(AffineCalibration(ridge=0.01), n_resamples=10),
    "resampled bounds": BootstrapCalibration(Bounded(AffineCalibration(ridge=0.01)), n_resamples=10, confidence=0.5),
}


# ---- bounds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("word", "function"), [("elub", elub), ("invariance", invariance_bounds)])
def test_ratios_are_those_of_the_inner_calibration_within_the_bounds_of_its_ratios(word, function):
    scores, labels = drawn(0, scale=3.0)
    inner = AffineCalibration().fit(scores, labels)
    ratios = inner.transform(scores)
    bounds = function(ratios, labels)
    fitted = Bounded(AffineCalibration(), word).fit(scores, labels)
    assert (fitted.lower_, fitted.upper_) == bounds
    many = np.linspace(-60, 60, 201).reshape(3, 67)
    np.testing.assert_array_equal(fitted.transform(many), np.clip(inner.transform(many), *bounds))
    assert fitted.transform(many).max() == bounds.upper < inner.transform(many).max()
    assert fitted.transform([-np.inf, np.inf]).tolist() == list(bounds)


@given(st.integers(0, 10_000), st.sampled_from([0.3, 1.0, 4.0]), st.sampled_from(["elub", "invariance"]))
@settings(max_examples=25, deadline=None)
def test_no_ratio_lies_beyond_the_bounds_and_the_order_stays(seed, scale, word):
    scores, labels = drawn(seed, 20, 30, scale)
    fitted = Bounded(AffineCalibration(ridge=0.01), word).fit(scores, labels)
    ratios = fitted.transform(np.sort(scores))
    assert np.all(np.diff(ratios) >= 0)
    assert fitted.lower_ <= ratios.min()
    assert ratios.max() <= fitted.upper_
    assert np.max(np.abs(elub(fitted.transform(scores), labels))) <= np.log(31) + 1e-12


def test_a_fusion_is_bounded():
    scores, labels = drawn(0)
    both = np.stack([scores, scores + drawn(1)[0]], axis=1)
    fitted = Bounded(Fusion()).fit(both, labels)
    inner = Fusion().fit(both, labels)
    np.testing.assert_array_equal(fitted.transform(both), inner.transform(both).clip(fitted.lower_, fitted.upper_))


# ---- kernels ----------------------------------------------------------------------------------------


def test_kernels_give_the_ratio_of_scipys_densities():
    scores, labels = drawn(2)
    fitted = KDECalibration().fit(scores, labels)
    points = fitted.scores_[::50]
    logs = []
    for kind in (labels, ~labels):
        own = scores[kind]
        silverman = (4 / (3 * len(own))) ** 0.2 * own.std()
        logs.append(np.log(gaussian_kde(own, silverman / own.std(ddof=1))(points)))
    np.testing.assert_allclose(fitted.transform(points), logs[0] - logs[1], atol=1e-9)


def test_kernels_of_repeated_trials_are_those_of_weights():
    scores, labels = drawn(3, 20, 30)
    times = np.random.default_rng(0).integers(0, 3, len(scores))
    weighted = KDECalibration(0.5).fit(scores, labels, times)
    repeated = KDECalibration(0.5).fit(np.repeat(scores, times), np.repeat(labels, times))
    np.testing.assert_allclose(weighted.llr_, repeated.llr_, atol=1e-9)


def test_kernels_calibrate_what_no_line_can():
    """Targets in the middle of the non-targets."""
    rng = np.random.default_rng(0)
    labels = np.arange(2000) < 1000
    scores = np.where(labels, rng.normal(0, 1, 2000), rng.choice([-4, 4], 2000) + rng.normal(0, 1, 2000))
    ratios = KDECalibration().fit(scores, labels).transform(scores)
    assert metrics.cllr(ratios, labels) < 0.35
    assert metrics.min_cllr(scores, labels) > 0.6  # by any rising map


# ---- resamples --------------------------------------------------------------------------------------


@given(st.integers(0, 10_000), st.booleans())
@settings(max_examples=10, deadline=None)
def test_an_interval_contains_its_ratio(seed, of_speakers):
    scores, labels = drawn(seed, 40, 80)
    calibration = BootstrapCalibration(AffineCalibration(ridge=0.01), n_resamples=10, random_state=seed)
    fitted = calibration.fit(scores, labels, speakers=sides(labels) if of_speakers else None)
    many = np.linspace(-40, 40, 99)
    low, high = fitted.interval(many)
    ratios = fitted.transform(many)
    np.testing.assert_array_equal(ratios, AffineCalibration(ridge=0.01).fit(scores, labels).transform(many))
    assert np.all(low <= ratios)
    assert np.all(ratios <= high)


def test_intervals_are_quantiles_of_calibrations_of_resampled_speakers():
    scores, labels = drawn(1)
    speakers = sides(labels)
    fitted = BootstrapCalibration(AffineCalibration(0.2, 0.01), 19, 0.9, 5).fit(scores, labels, speakers=speakers)
    inner = AffineCalibration(0.2, 0.01)
    draws = resamples(labels, *speakers, 19, 0.9, 5)
    point = fitted.scores_[::100]
    ratios = [clone(inner).fit(scores, labels, weights).transform(point) for weights in draws]
    low, high = np.quantile(ratios, [0.05, 0.95], axis=0)
    estimate = fitted.transform(point)
    found = fitted.interval(point)
    np.testing.assert_allclose(found[0], np.minimum(low, estimate), atol=1e-9)
    np.testing.assert_allclose(found[1], np.maximum(high, estimate), atol=1e-9)


def test_more_trials_make_shorter_intervals():
    lengths = []
    for n in (40, 4000):
        scores, labels = drawn(0, n, n)
        low, high = BootstrapCalibration(AffineCalibration(), 30).fit(scores, labels).interval(5.0)
        lengths.append(high - low)
    assert lengths[1] < lengths[0] / 4  # sqrt(100) is 10


# ---- files and models -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FITTED)
def test_files_keep_what_was_learnt(name, tmp_path):
    scores, labels = drawn(4)
    fitted = clone(FITTED[name]).fit(scores, labels)
    fitted.save(tmp_path / "c.safetensors")
    loaded = load(tmp_path / "c.safetensors")
    many = np.linspace(-30, 30, 301)
    np.testing.assert_array_equal(loaded.transform(many), fitted.transform(many))
    assert repr(loaded) == repr(fitted)
    assert loaded.summary() == fitted.summary()
    if isinstance(fitted, BootstrapCalibration):
        np.testing.assert_array_equal(loaded.interval(many), fitted.interval(many))


@pytest.mark.parametrize("name", FITTED)
def test_a_model_keeps_and_applies_them(name, tmp_path):
    X, speaker, session, _ = make_recordings(20, 3, 2, seed=0)
    backend = Backend(plda=PLDA(8, 8, tol=1e-2, shrinkage=0.1)).fit(X, speaker, session=session)
    raw = backend.llr(X[:40], X[40:80], calibrated=False)
    scores, truth = drawn(5, scale=2.0)
    backend.calibration_ = clone(FITTED[name]).fit(scores, truth)
    backend.save(tmp_path / "m.safetensors")
    loaded = Backend.load(tmp_path / "m.safetensors")
    ratios = loaded.llr(X[:40], X[40:80])
    np.testing.assert_allclose(ratios, backend.calibration_.transform(raw), atol=1e-9)
    known = loaded.summary()["calibration_values"]
    assert known == backend.calibration_.summary()
    if isinstance(backend.calibration_, Bounded):
        assert known["lower"] <= ratios.min()
        assert ratios.max() <= known["upper"]
        assert (known["lower"], known["upper"]) == (backend.calibration_.lower_, backend.calibration_.upper_)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"elub": [-1.0, 1.0]}, "the state of one inner calibration"),
        ({"elub": [1.0, 2.0], "PAVCalibration.laplace": 1.0}, "needs the state"),
        ({"elub": [1.0, 2.0], "inner": 1}, "a bound of at most 0"),
        ({"elub": [-1.0, np.nan], "inner": 1}, "a bound of at most 0"),
        ({"other": [-1.0, 2.0], "inner": 1}, "needs the bounds of one of elub, invariance"),
        ({"inner": 1}, "needs the bounds of one of elub, invariance"),
    ],
)
def test_damaged_states_are_refused(state, message):
    inner = AffineCalibration().of(1.0, 0.0).get_state()
    if state.pop("inner", None):
        state |= {f"AffineCalibration.{name}": value for name, value in inner.items()}
    with pytest.raises(DuopldaError, match=message):
        Bounded.from_state(state)


def test_damaged_intervals_are_refused():
    scores, labels = drawn(0)
    state = BootstrapCalibration(AffineCalibration(), 5).fit(scores, labels).get_state()
    for change, message in (
        ({"below_": np.zeros(3)}, "differ in length"),
        ({"above_": np.full(1001, np.nan)}, "not finite"),
        ({"more": 1.0}, "needs the state"),
    ):
        with pytest.raises(DuopldaError, match=message):
            BootstrapCalibration.from_state(state | change)


@pytest.mark.parametrize(
    ("calibration", "message"),
    [
        (Bounded(AffineCalibration(), "none"), "must be one of elub, invariance"),
        (Bounded(QualityCalibration()), "takes a calibration of scores alone"),
        (Bounded("affine"), "takes a calibration of scores alone"),
        (BootstrapCalibration(AffineCalibration(), 0), "n_resamples >= 1"),
        (BootstrapCalibration(AffineCalibration(), confidence=1.0), "confidence between 0 and 1"),
        (BootstrapCalibration(AffineCalibration(), random_state=None), "must be a whole number"),
        (KDECalibration(-1.0), "bandwidth=-1.0 must be a finite number >= 0"),
    ],
)
def test_impossible_options_are_refused(calibration, message):
    with pytest.raises(DuopldaError, match=message):
        calibration.fit(*drawn(0, 20, 20))


@pytest.mark.parametrize("calibration", [KDECalibration(), BootstrapCalibration(AffineCalibration()), *FITTED.values()])
def test_infinite_scores_are_refused(calibration):
    with pytest.raises(DuopldaError, match="1 of 4 are not finite"):
        clone(calibration).fit([1.0, -1.0, np.inf, 0.0], [True, False, True, False])


def test_infinite_ratios_have_no_intervals():
    scores, labels = drawn(0)
    with pytest.raises(DuopldaError, match="a resample gives infinite ratios"):
        BootstrapCalibration(PAVCalibration(laplace=0), 5).fit(scores, labels)
    bounded = BootstrapCalibration(Bounded(PAVCalibration(laplace=0)), 5).fit(scores, labels)
    assert np.isfinite(bounded.interval([-99.0, 0.0, 99.0])).all()


def test_scores_that_are_all_the_same_have_no_bandwidth():
    with pytest.raises(DuopldaError, match="all scores of target trials are the same"):
        KDECalibration().fit([1.0, 1.0, 0.0, 2.0], [True, True, False, False])


# ---- lir --------------------------------------------------------------------------------------------


def test_lir_bounds_the_same_ratios():
    """lir looks for bounds in steps of .01 in log10: the ratios are the same but for a step at the bounds."""
    pytest.importorskip("lir")
    from lir.algorithms.bayeserror import ELUBBounder
    from lir.data.models import LLRData

    scores, labels = drawn(6, scale=2.0)
    ratios = AffineCalibration(ridge=0.01).fit(scores, labels).transform(scores)
    theirs = ELUBBounder().fit_transform(LLRData(features=ratios / LN10, labels=labels.astype(int)))
    ours = Bounded(AffineCalibration(ridge=0.01)).fit(scores, labels)
    np.testing.assert_allclose(ours.transform(scores) / LN10, theirs.llrs, atol=0.01)
    inside = (theirs.llrs > theirs.llr_lower_bound) & (theirs.llrs < theirs.llr_upper_bound)
    np.testing.assert_allclose(ours.transform(scores)[inside], LN10 * theirs.llrs[inside], atol=1e-9)


def test_lir_has_the_same_kernels():
    pytest.importorskip("lir")
    from lir.algorithms.kde import KDECalibrator

    scores, labels = drawn(7)
    for bandwidth, theirs in ((0.0, "silverman"), (0.8, 0.8)):
        ours = KDECalibration(bandwidth).fit(scores, labels)
        points = ours.scores_[::25]
        ratios = KDECalibrator(bandwidth=theirs).fit(scores, labels.astype(int)).transform(points)
        np.testing.assert_allclose(ours.transform(points), LN10 * ratios, atol=1e-9)


def test_lir_overestimates_the_same_for_the_same_bandwidths():
    pytest.importorskip("lir")
    from lir.algorithms.llr_overestimation import calc_llr_overestimation

    from duoplda.evaluation.densities import silverman

    scores, labels = drawn(8)
    widths = [silverman(scores[kind], np.ones(kind.sum()), "") / LN10 for kind in (labels, ~labels)]
    grid, excess, _ = calc_llr_overestimation(scores / LN10, labels.astype(int), 0, bw=tuple(widths))
    ours = llr_overestimation(scores, labels)
    np.testing.assert_allclose(ours.llr / LN10, grid, atol=1e-9)
    np.testing.assert_allclose(ours.excess / LN10, excess, atol=1e-9)


def test_lir_has_the_same_cllr_and_pav():
    pytest.importorskip("lir")
    from lir.algorithms.isotonic_regression import IsotonicCalibrator
    from lir.data.models import LLRData
    from lir.metrics import cllr, cllr_cal, cllr_min

    scores, labels = drawn(9, scale=1.7)
    data = LLRData(features=scores / LN10, labels=labels.astype(int))
    assert metrics.cllr(scores, labels) == pytest.approx(cllr(data), rel=1e-9)
    assert metrics.min_cllr(scores, labels) == pytest.approx(cllr_min(data), rel=1e-9)
    assert metrics.calibration_loss(scores, labels) == pytest.approx(cllr_cal(data), rel=1e-9)
    theirs = IsotonicCalibrator().fit_transform(scores / LN10, labels.astype(int))
    ours = metrics.pav_llr(scores, labels)
    finite = np.isfinite(ours)
    np.testing.assert_allclose(ours[finite], LN10 * theirs[finite], atol=1e-9)
    np.testing.assert_array_equal(ours[~finite], theirs[~finite])
