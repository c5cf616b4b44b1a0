"""Plots: what they show is what the metrics say, they leave no global state, and their files are whole."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from scipy.special import ndtri

from duoplda import PLDA, DuopldaError
from duoplda.datasets import make_recordings
from duoplda.evaluation import metrics, support
from duoplda.report import plots

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

LABELS = np.arange(3000) < 400


def system(d, seed, scale=1.0, shift=0.0):
    noise = np.random.default_rng(seed).standard_normal(len(LABELS))
    return (d**0.5 * noise + np.where(LABELS, d / 2, -d / 2)) * scale + shift, LABELS


@pytest.fixture(scope="module")
def systems():
    return {"good": system(12, 0), "overconfident": system(7, 1, 2.0, 1.0), "_odd $name$": system(4, 2, 0.4)}


@pytest.fixture(scope="module")
def plda():
    X, speaker, session, _ = make_recordings(40, seed=1, n_dimensions=8, n_speaker_factors=3, n_session_factors=2)
    return PLDA(3, 2, tol=1e-4).fit(X, speaker, session=session)


def pictures(systems, plda, **ax):
    rng = np.random.default_rng(0)
    yield "det", plots.det(systems, operating_points=[(0.01, 1, 1), (0.5, 1, 10)], **ax)
    yield "tippett", plots.tippett(systems, **ax)
    yield "histogram", plots.histogram(*systems["good"], **ax)
    yield "bayes_error", plots.bayes_error(systems, **ax)
    yield "ece", plots.ece(systems, **ax)
    yield "reliability", plots.reliability(systems, **ax)
    yield "llr_overestimation", plots.llr_overestimation(systems, **ax)
    ratios = np.linspace(-3, 3, 20)
    yield "llr_interval", plots.llr_interval(ratios, ratios - 0.5, ratios + 0.2 * np.abs(ratios), **ax)
    yield "likelihood_trace", plots.likelihood_trace(plda, **ax)
    yield "variance_shares", plots.variance_shares(plda, **ax)
    yield "few speakers", plots.speaker_map(rng.standard_normal((40, 3)), np.arange(40) % 5, **ax)
    yield "many speakers", plots.speaker_map(rng.standard_normal((400, 2)), np.arange(400) % 130, **ax)


def test_each_plot_makes_a_column_wide_figure_with_labels(systems, plda):
    for name, ax in pictures(systems, plda):
        assert isinstance(ax, Axes), name
        assert ax.figure.get_figwidth() == 3.5
        assert ax.get_xlabel(), name
        assert ax.get_ylabel(), name


def test_nothing_is_cut_off_or_overlaps_at_paper_size(systems, plda):
    for name, ax in pictures(systems, plda):
        canvas = FigureCanvasAgg(ax.figure)
        canvas.draw()
        renderer = canvas.get_renderer()
        page = ax.figure.bbox
        parts = [ax.xaxis.label, ax.yaxis.label, *([ax.get_legend()] if ax.get_legend() else [])]
        for box in [part.get_window_extent(renderer) for part in parts]:
            assert box.x0 >= page.x0 - 1, name
            assert box.x1 <= page.x1 + 1, name
            assert box.y0 >= page.y0 - 1, name
            assert box.y1 <= page.y1 + 1, name
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            shown = [t.label1 for t in axis.get_major_ticks() if low <= t.get_loc() <= high and t.label1.get_text()]
            boxes = [label.get_window_extent(renderer) for label in shown]
            assert len(boxes) >= 3, name
            assert not any(a.overlaps(b) for k, a in enumerate(boxes) for b in boxes[:k]), (name, axis.axis_name)


def test_each_plot_draws_into_the_given_axes(systems, plda):
    ax = Figure().add_subplot()
    for name, drawn in pictures(systems, plda, ax=ax):
        assert drawn is ax, name
        ax.clear()


def test_pyplot_is_never_imported():
    code = """
import io, sys, warnings
warnings.simplefilter("error")
warnings.simplefilter("default", DeprecationWarning)
import duoplda.report.plots as plots
assert "matplotlib" not in sys.modules
ax = plots.det({"a": ([0.0, 1.0, 2.0, 3.0], [False, True, False, True])})
ax.figure.savefig(io.BytesIO(), format="png")
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_systems_differ_in_colour_and_in_line_style(systems, tmp_path):
    for draw in (plots.det, plots.tippett, plots.reliability):
        ax = draw(systems)
        colors = {line.get_color() for line in ax.lines if not line.get_label().startswith("_child")}
        assert len(colors) == 3
        plots.save(ax, tmp_path / "lines.svg", force=True)
        styles = re.findall(r'<path d="[^"]*"[^>]*? style="(fill: none;[^"]*)"', (tmp_path / "lines.svg").read_text())
        patterns = {}
        for style in styles:
            values = dict(part.split(": ") for part in style.split("; ") if ": " in part)
            color = values.get("stroke", "").upper()
            patterns.setdefault(color, set()).add(values.get("stroke-dasharray", "solid"))
        dashes = [frozenset(patterns[color.upper()]) for color in colors]
        assert len(set(dashes)) == 3
    assert len({line.get_marker() for line in plots.bayes_error(systems).lines[:-1]}) == 3


def test_legend_shows_names_as_they_are(systems):
    texts = [text.get_text() for text in plots.tippett(systems).get_legend().get_texts()]
    assert texts[:2] == ["good", "overconfident"]
    assert texts[2].lstrip("\N{ZERO WIDTH SPACE}") == r"_odd \$name\$"


def test_det_curve_and_points_are_those_of_the_metrics(systems):
    at = (0.05, 2.0, 1.0)
    ax = plots.det({"good": systems["good"]}, operating_points=[at])
    scores, labels = systems["good"]
    curve = metrics.det_curve(scores, labels)
    x, y = ax.lines[0].get_data()
    low_x, low_y = ax.get_xlim()[0], ax.get_ylim()[0]
    inside = (curve.p_fa > low_x) & (curve.p_miss > low_y) & (curve.p_miss < 0.99) & (curve.p_fa < 0.99)
    for p_fa, p_miss in zip(ndtri(curve.p_fa[inside]), ndtri(curve.p_miss[inside]), strict=True):
        assert np.min(np.maximum(np.abs(ndtri(x) - p_fa), np.abs(ndtri(y) - p_miss))) <= 0.004
    (x_least, y_least), (x_actual, y_actual) = (line.get_data() for line in ax.lines[1:3])
    p, c_miss, c_fa = at
    scale = min(p * c_miss, (1 - p) * c_fa)
    for xs, ys, dcf in ((x_least, y_least, metrics.min_dcf), (x_actual, y_actual, metrics.act_dcf)):
        cost = p * c_miss * ys[0] + (1 - p) * c_fa * xs[0]
        assert cost / scale == pytest.approx(dcf(scores, labels, *at))
    eer = 100 * metrics.eer(scores, labels)
    assert f"{eer:.2f} %" in ax.get_legend().get_texts()[0].get_text()


def test_tippett_curve_counts(systems):
    scores, labels = systems["good"]
    x, targets, nontargets = plots.tippett_curve(scores, labels)
    for at in (-3.0, 0.0, 2.5):
        k = np.searchsorted(x, at)  # between two steps
        assert targets[k] == pytest.approx(np.mean(scores[labels] >= at))
        assert nontargets[k] == pytest.approx(np.mean(scores[~labels] >= at))


def test_histogram_integrates_to_one_with_infinite_scores():
    scores, labels = system(9, 3)
    scores = scores.copy()
    scores[:3], scores[-3:] = np.inf, -np.inf
    ax = plots.histogram(scores, labels)
    for patch in ax.patches:
        values, edges, _ = patch.get_data()
        assert np.sum(values * np.diff(edges)) == pytest.approx(1.0)


def test_cross_entropy_lines(systems):
    scores, labels = systems["overconfident"]
    entropy, least, nothing = plots.ece({"o": (scores, labels)}).lines
    odds = entropy.get_xdata() * np.log(10)
    np.testing.assert_allclose(entropy.get_ydata(), support.ece(scores, labels, odds))
    np.testing.assert_allclose(nothing.get_ydata(), support.ece(np.zeros(len(scores)), labels, odds), atol=1e-12)
    assert np.all(least.get_ydata() <= np.minimum(entropy.get_ydata(), nothing.get_ydata()) + 1e-12)


def test_overestimation_lines(systems):
    scores, labels = systems["overconfident"]
    rng = np.random.default_rng(0)
    names = rng.integers(30, size=(len(labels), 2))
    names[:, 1] = np.where(labels, names[:, 0], (names[:, 0] + 1 + names[:, 1] % 29) % 30)
    zero, excess, low, high = plots.llr_overestimation(
        {"o": (scores, labels)}, speakers=tuple(names.T), n_resamples=10
    ).lines
    expected = support.llr_overestimation(scores, labels, tuple(names.T), n_resamples=10)
    for line, values in zip((excess, low, high), expected[1:], strict=True):
        np.testing.assert_allclose(line.get_xdata() * np.log(10), expected.llr)
        np.testing.assert_allclose(line.get_ydata() * np.log(10), values)
    assert list(zero.get_ydata()) == [0, 0]
    assert np.all(low.get_ydata() <= excess.get_ydata())
    assert np.all(excess.get_ydata() <= high.get_ydata())


def test_interval_lines():
    ratios = np.array([2.0, -1.0, 0.0])
    low = ratios - np.array([3, 1, 2])
    high = ratios + np.array([0.1, 0.2, 0.3])
    above, below = plots.llr_interval(ratios, low, high).lines[1:]
    np.testing.assert_allclose(above.get_xdata() * np.log(10), [-1, 0, 2])
    np.testing.assert_allclose(above.get_ydata() * np.log(10), [0.2, 0.3, 0.1])
    np.testing.assert_allclose(below.get_ydata() * np.log(10), [-1, -2, -3])
    with pytest.raises(DuopldaError, match="have the shapes"):
        plots.llr_interval(ratios, ratios[:2], ratios)
    with pytest.raises(DuopldaError, match="is NaN"):
        plots.llr_interval(ratios, ratios, ratios * np.nan)


def test_bayes_error_lines(systems):
    scores, labels = systems["overconfident"]
    actual, least = plots.bayes_error({"o": (scores, labels)}).lines[:2]
    expected = metrics.bayes_error(scores, labels, actual.get_xdata())
    np.testing.assert_allclose(actual.get_ydata(), expected.actual)
    np.testing.assert_allclose(least.get_ydata(), expected.minimum)


def test_reliability_of_calibrated_scores_follows_the_diagonal():
    rng = np.random.default_rng(0)
    labels = np.arange(40000) < 20000
    scores = 3 * rng.standard_normal(40000) + np.where(labels, 4.5, -4.5)
    x, y = plots.reliability({"a": (scores, labels)}).lines[1].get_data()
    middle = np.abs(x) < 3
    assert np.max(np.abs(x[middle] - y[middle])) < 0.8
    infinite = scores.copy()
    infinite[0] = np.inf
    assert np.isfinite(plots.reliability({"a": (infinite, labels)}).lines[1].get_ydata()).all()


def test_likelihood_trace(plda):
    ax = plots.likelihood_trace(plda)
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), plda.log_likelihoods_)
    assert plots.likelihood_trace([-3.0, -2.0]).lines[0].get_ydata().tolist() == [-3.0, -2.0]
    made = PLDA.from_parameters(plda.mean_, plda.speaker_loadings_, None, plda.noise_precision_)
    with pytest.raises(DuopldaError, match="no likelihood trace"):
        plots.likelihood_trace(made)
    with pytest.raises(DuopldaError, match="list of numbers"):
        plots.likelihood_trace([[1.0]])


def test_variance_shares_add_up_and_rotate_with_the_space(plda):
    V, U, N = plda.speaker_loadings_, plda.session_loadings_, np.linalg.inv(plda.noise_precision_)
    shares = plots.variance_directions(plda)
    np.testing.assert_allclose(shares.speaker + shares.session + shares.channel, 1.0)
    assert np.all(np.diff(shares.speaker) <= 1e-9)
    assert np.sum(shares.speaker > 1e-6) == 3
    assert np.sum(shares.session[3:] > 1e-6) == 2
    assert sum(shares.total) == pytest.approx(1.0)
    A = np.random.default_rng(0).standard_normal((8, 8))
    other = plots.variance_directions(A @ V @ V.T @ A.T, A @ U @ U.T @ A.T, A @ N @ A.T)
    for mine, theirs in zip(shares[:3], other[:3], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-7)
    with pytest.raises(DuopldaError, match="covariance"):
        plots.variance_directions(np.eye(2))
    with pytest.raises(DuopldaError, match="shapes"):
        plots.variance_directions(np.eye(2), np.eye(3), np.eye(2))
    with pytest.raises(DuopldaError, match="positive definite"):
        plots.variance_directions(np.zeros((2, 2)), np.zeros((2, 2)), np.zeros((2, 2)))


def test_variance_shares_of_several_kinds_of_channels(plda):
    V, U, W = plda.speaker_loadings_, plda.session_loadings_, plda.noise_precision_
    means = np.stack((plda.mean_, plda.mean_))
    kinds = PLDA.from_parameters(means, V, U, np.stack((W, W / 3)), channels=["a", "b"], channel_priors=[0.75, 0.25])
    expected = plots.variance_directions(V @ V.T, U @ U.T, np.linalg.inv(W) * (0.75 + 0.25 * 3))
    for mine, theirs in zip(plots.variance_directions(kinds)[:3], expected[:3], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-9)


def test_speaker_map_shows_every_row():
    Y, speaker = np.random.default_rng(0).standard_normal((300, 4)), np.arange(300) % 100
    points = [line for line in plots.speaker_map(Y, speaker).lines if line.get_linestyle() == "None"]
    shown = np.concatenate([np.stack(line.get_data(), axis=1) for line in points])
    np.testing.assert_array_equal(shown[np.lexsort(shown.T)], Y[np.lexsort(Y[:, :2].T), :2])
    with pytest.raises(DuopldaError, match="2 or more"):
        plots.speaker_map(Y[:, :1], speaker)


def test_thin_keeps_every_point_within_a_cell():
    scores, labels = system(6, 5)
    curve = metrics.det_curve(scores, labels)
    kept = plots.thin(curve.p_fa, curve.p_miss, 0.01, 0.02)
    before = kept[np.searchsorted(kept, np.arange(len(curve.p_fa)), side="right") - 1]
    assert np.max(np.abs(curve.p_fa - curve.p_fa[before])) < 0.01
    assert np.max(np.abs(curve.p_miss - curve.p_miss[before])) < 0.02
    assert len(kept) < 200
    assert kept[0] == 0
    assert kept[-1] == len(curve.p_fa) - 1


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_save_writes_whole_reproducible_files(tmp_path, systems, suffix):
    ax = plots.det(systems)
    first, second = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    plots.save(ax, first)
    plots.save(ax.figure, second)
    assert first.read_bytes() == second.read_bytes()
    start = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[suffix]
    assert first.read_bytes().startswith(start)
    if suffix == "svg":
        ElementTree.parse(first)
    with pytest.raises(DuopldaError, match="exists"):
        plots.save(ax, first)
    plots.save(ax, first, force=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [first.name, second.name]


def test_save_refuses_other_suffixes(tmp_path, systems):
    with pytest.raises(DuopldaError, match=r"\.png, \.pdf or \.svg"):
        plots.save(plots.tippett(systems), tmp_path / "a.jpeg")
    assert not list(tmp_path.iterdir())


def test_a_failed_save_leaves_nothing_behind(tmp_path):
    class Broken:
        figure = None

        def savefig(self, path, **_):
            path.write_bytes(b"half")
            raise RuntimeError("disk full")

    with pytest.raises(RuntimeError):
        plots.save(Broken(), tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def test_a_million_trials_make_a_small_file(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(1_000_000) < 100_000
    scores = 4 * rng.standard_normal(len(labels)) + np.where(labels, 8, -8)
    plots.save(plots.det({"a": (scores, labels)}), tmp_path / "det.svg")
    assert (tmp_path / "det.svg").stat().st_size < 200_000


@pytest.mark.parametrize(
    "draw", [plots.det, plots.tippett, plots.bayes_error, plots.ece, plots.reliability, plots.histogram]
)
def test_scores_and_labels_are_drawn_as_a_dictionary_of_them_is(systems, draw):
    scores, labels = systems["good"]
    words = np.where(labels, "target", "nontarget")
    calls = [
        (scores, labels),
        ((scores, labels),),
        ([scores, words],),
        (scores, labels * 1.0),
        ({"scores": scores}, words),
    ]
    expected = draw({"scores": (scores, labels)})
    for arguments in calls:
        ax = draw(*arguments)
        assert len(ax.lines) == len(expected.lines)
        for line, other in zip(ax.lines, expected.lines, strict=True):
            np.testing.assert_array_equal(line.get_xydata(), other.get_xydata())
        texts = [[text.get_text() for text in a.get_legend().get_texts()] for a in (ax, expected)]
        assert texts[0] == texts[1]


def test_a_histogram_shows_one_system(systems):
    with pytest.raises(DuopldaError, match="one system, not 3"):
        plots.histogram(systems)


@pytest.mark.parametrize(
    "bad", [[], [1.0, 2.0], {}, {"a": [1.0, 2.0, 3.0]}, [1.0], {"a": ([np.nan, 1.0], [True, False])}]
)
def test_bad_systems_are_refused(bad):
    with pytest.raises(DuopldaError, match="system"):
        plots.tippett(bad)


def test_extreme_scores_are_drawn(tmp_path):
    separated = {"perfect": ([-1.0, -2.0, 1.0, 2.0], [False, False, True, True])}
    constant = {"constant": ([0.0, 0.0, 0.0], [True, False, True])}
    infinite = {"infinite": ([-np.inf, np.inf, np.inf, -np.inf], [False, False, True, True])}
    for case in (separated, constant, infinite):
        for k, draw in enumerate((plots.det, plots.tippett, plots.bayes_error, plots.reliability)):
            plots.save(draw(case), tmp_path / f"{k}.png", dpi=50, force=True)
        plots.histogram(*next(iter(case.values())))


def test_steps_down_the_cost():
    data = make_recordings(25, (2, 4), (1, 3), n_dimensions=6, n_speaker_factors=3, n_session_factors=2, seed=1)
    plda = PLDA(shrinkage="auto").fit(data.X, data.speaker, session=data.session)
    ax = plots.shrinkage_path(plda)
    lines = {line.get_label(): line.get_ydata()[-1] for line in ax.lines}
    assert lines["speaker"] == plda.shrinkage_.speaker
    assert lines["VV' scaled by"] == plda.scales_.speaker
    assert ax.get_xticklabels()[-1].get_text().endswith(f"{plda.cost_:.3f}")


def test_shrinkage_path():
    data = make_recordings(25, (2, 4), (1, 3), n_dimensions=6, n_speaker_factors=3, n_session_factors=2, seed=1)
    plda = PLDA(shrinkage="auto", criterion="likelihood").fit(data.X, data.speaker, session=data.session)
    ax = plots.shrinkage_path(plda)
    top = max(plda.shrinkage_path_.values())
    assert ax.lines
    for line in ax.lines:
        x, y = line.get_xdata(), line.get_ydata()
        assert y[np.flatnonzero(np.asarray(x) == getattr(plda.shrinkage_, line.get_label()))[0]] == top == max(y)
    with pytest.raises(DuopldaError, match="shrinkage='auto'"):
        plots.shrinkage_path(PLDA(3, 2).fit(data.X, data.speaker, session=data.session))
