"""Pictures of scores, models and clusters: DET, Tippett, histograms, Bayes error, reliability, maps, trees.

Scores are natural-log likelihood ratios, and labels are True for a target trial, 1, or "target". Pictures of scores
take `scores, labels`, or one pair of both, or, to compare systems, a dictionary from a name to such a pair (or to
scores, if `labels` are those of all systems). Every function draws into the Axes it is given, or into a new figure as
wide as a column of print (3.5 in), and returns the Axes; `save` writes its figure. Systems differ in colour (the
Okabe-Ito palette, safe for the colour-blind) and in line style or marker. pyplot is never touched, so nothing stays
open behind one's back. What the pictures are made of (`tippett_curve`, `thin`, `variance_directions`, ...) needs no
matplotlib; the report draws the same curves.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, ndtr, ndtri, xlogy

from duoplda.errors import DuopldaError, error_prefix
from duoplda.evaluation import metrics, support
from duoplda.evaluation.calibration import PAVCalibration
from duoplda.evaluation.checks import Booleans, Floats, Indices, check_trials, targets_among
from duoplda.io import atomic_path
from duoplda.model.summary import VarianceShares, variance_directions
from duoplda.report._html import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from duoplda.estimators.plda import PLDA
    from duoplda.trials.clustering import Clustering

__all__ = ["bayes_error", "det", "ece", "histogram", "likelihood_trace", "llr_interval", "llr_overestimation"]
__all__ += ["reliability", "save", "shrinkage_path"]
__all__ += ["OKABE_ITO", "VarianceShares", "det_limits", "det_ticks", "score_range", "thin", "tippett_curve"]
__all__ += ["speaker_map", "tippett", "variance_directions", "variance_shares"]
__all__ += ["cluster_map", "cluster_sizes", "dendrogram", "principal_plane"]

Trials = tuple[ArrayLike, ArrayLike]  # scores and labels
Systems = Mapping[str, Trials] | Trials | ArrayLike
Points = Sequence[tuple[float, float, float]]  # prior of a target, cost of a miss, cost of a false alarm

# Okabe and Ito's colours, the yellow darkened for white paper
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B5A800")
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
_DASHES += ((0, (3, 1, 3, 3)), (0, (8, 3)), (0, (1, 3)), (0, (5, 1, 1, 1, 1, 1)))
_MARKERS = "os^Dv<>P"
_COLUMN = 3.5  # inches, the width of a column of print
_SQUARE = 0.92 * _COLUMN  # the height at which axes of equal importance are about square, below their legend


def thin(x: ArrayLike, y: ArrayLike, cell_x: float, cell_y: float) -> Indices:
    """Indices of the points that a curve needs when nobody can see less than a cell.

    Of neighbours within one cell (cell_x wide, cell_y high) the first is kept; the last point of all stays. No part of
    a monotone curve is moved by more than a cell.

    >>> thin([0.0, 0.1, 0.2, 1.0, 1.1], [0.0, 0.0, 0.0, 0.0, 0.0], 0.5, 0.5).tolist()
    [0, 3, 4]
    """
    a = np.floor(np.asarray(x) / cell_x)
    b = np.floor(np.asarray(y) / cell_y)
    keep = np.concatenate(([True], (a[1:] != a[:-1]) | (b[1:] != b[:-1])))
    keep[-1] = True
    return np.flatnonzero(keep)


def tippett_curve(
    scores: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None
) -> tuple[Floats, Floats, Floats]:
    """Steps of P(LLR >= x | target) and P(LLR >= x | non-target): x rising, then the two shares, each (2 m,).

    >>> x, targets, nontargets = tippett_curve([0.0, 1.0], [False, True])
    >>> x.tolist(), targets.tolist(), nontargets.tolist()
    ([0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0])
    """
    p_miss, p_fa, thresholds = metrics.det_curve(scores, labels, weights)
    steps = [np.repeat(share, 2)[1:-1] for share in (1 - p_miss, p_fa)]
    return np.repeat(thresholds[:-1], 2), steps[0], steps[1]


def score_range(all_scores: Iterable[ArrayLike], tail: float = 5e-4) -> tuple[float, float]:
    """Limits of an axis that shows all but a share `tail` of the scores at either end of any system.

    >>> score_range([[-10.0, 0.0, 10.0], [20.0]])
    (-10.9, 20.9)
    """
    finite = [np.sort(s[np.isfinite(s)]) for s in map(np.asarray, all_scores)]
    ends = [float(s[k]) for s in finite if len(s) for k in (int(tail * len(s)), -1 - int(tail * len(s)))]
    low, high = (min(ends), max(ends)) if ends else (0.0, 0.0)
    margin = 0.03 * (high - low) if high > low else max(1.0, abs(low) * 0.1)
    return low - margin, high + margin


def det_limits(systems: Iterable[tuple[ArrayLike, ArrayLike]], high: float = 0.6) -> tuple[Floats, Floats]:
    """Limits of a DET plot, (low, high) of p_fa, then of p_miss: from half the rate of one single error.

    >>> x, y = det_limits([([0.0] * 110, [False] * 100 + [True] * 10)])
    >>> x.tolist(), y.tolist()
    ([0.005, 0.6], [0.05, 0.6])
    """
    counts = np.max([np.bincount(targets_among(labels), minlength=2) for _, labels in systems], axis=0)
    x, y = (np.array([np.clip(0.5 / n, 1e-7, 0.1), high]) for n in counts)
    return x, y


def det_ticks(limits: ArrayLike, gap: float) -> list[float]:
    """Round rates between the limits, at least a share `gap` of the probit axis apart.

    >>> det_ticks((0.01, 0.5), gap=0.2)
    [0.01, 0.1, 0.4]
    """
    low, high = ndtri(np.asarray(limits, dtype=np.float64))
    by_importance = (
        0.01,
        0.1,
        0.4,
        1e-3,
        1e-4,
        1e-5,
        1e-6,
        0.05,
        0.2,
        0.02,
        5e-3,
        2e-3,
        0.6,
        0.8,
        0.9,
        0.95,
        0.98,
        0.99,
    )
    kept: list[float] = []
    for rate in by_importance:
        place = ndtri(rate)
        if low <= place <= high and all(abs(place - ndtri(other)) >= gap * (high - low) for other in kept):
            kept.append(rate)
    return sorted(kept)


def det(
    systems: Systems,
    labels: ArrayLike | None = None,
    *,
    operating_points: Points = ((0.01, 1.0, 1.0),),
    ax: Axes | None = None,
) -> Axes:
    """Miss against false-alarm rate on probit axes, where Gaussian scores give straight lines.

    For each operating point (p_target, c_miss, c_fa) a filled marker shows what deciding by the Bayes threshold gives,
    an open one the least cost; points outside the axes are drawn on their border. The legend gives the EER ("rocch").

    >>> ax = det({"mine": ([-3.0, 1.0, -1.0, 3.0], [False, False, True, True])})
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('False-alarm rate (%)', 'Miss rate (%)')
    >>> ax = det([-3.0, 1.0, -1.0, 3.0], ["nontarget", "nontarget", "target", "target"])  # one system needs no name
    """
    looks = _looks(systems, labels, _DASHES)
    trials = [(scores, targets) for _, scores, targets, *_ in looks]
    points = [[_decide(*pair, *point) for point in operating_points] for pair in trials]
    rates = [rate for both in points for pair in both for point in pair for rate in point if rate < 0.98]
    worst = max([1.2 * metrics.eer(*pair) for pair in trials] + rates)
    high = next((h for h in (0.6, 0.9) if h > worst), 0.98)
    x_limits, y_limits = det_limits(trials, high)
    ax = _axes(ax, _SQUARE)

    def probit(p: ArrayLike) -> Floats:  # matplotlib also asks for 0 and 1, where it is infinite
        return ndtri(np.clip(p, 1e-12, 1 - 1e-12))

    for axis, limits in ((ax.xaxis, x_limits), (ax.yaxis, y_limits)):
        getattr(ax, f"set_{axis.axis_name}scale")("function", functions=(probit, ndtr))
        getattr(ax, f"set_{axis.axis_name}lim")(*limits)
        ticks = det_ticks(limits, 0.065 if axis is ax.xaxis else 0.05)
        axis.set_ticks(ticks, [f"{100 * r:.12g}" for r in ticks])
        axis.set_ticks([], minor=True)
    for (name, scores, targets, color, dash), decisions in zip(looks, points, strict=True):
        curve = metrics.det_curve(scores, targets)
        x, y = (np.clip(p, limits[0] / 2, 1 - 1e-3) for p, limits in ((curve.p_fa, x_limits), (curve.p_miss, y_limits)))
        kept = thin(ndtri(x), ndtri(y), 0.004, 0.004)
        label = f"{_short(name, 30)} (EER {100 * metrics.eer(scores, targets):.2f} %)"
        ax.plot(x[kept], y[kept], color=color, ls=dash, lw=1.3, label=label)
        for (actual, least), marker in zip(decisions, cycle(_MARKERS), strict=False):
            for (p_miss, p_fa), face in ((least, "white"), (actual, color)):
                style: dict[str, Any] = {"mec": color, "mfc": face, "mew": 1.1, "ms": 5, "clip_on": False, "zorder": 5}
                place = [np.clip(p_fa, *x_limits)], [np.clip(p_miss, *y_limits)]
                ax.plot(*place, ls="none", marker=marker, **style)
    return _dress(ax, "False-alarm rate (%)", "Miss rate (%)")


def tippett(systems: Systems, labels: ArrayLike | None = None, *, ax: Axes | None = None) -> Axes:
    """Share of the target and of the non-target trials whose LR is at least x, on a log10 axis.

    >>> ax = tippett({"mine": ([-3.0, 1.0, -1.0, 3.0], [False, False, True, True])})
    >>> len(ax.lines) >= 2  # a curve for targets, and one for the others
    True
    """
    looks = _looks(systems, labels, _DASHES)
    ln10 = float(np.log(10.0))
    low, high = (end / ln10 for end in score_range(look[1] for look in looks))
    ax = _axes(ax)
    for name, scores, is_target, color, dash in looks:
        x, targets, nontargets = tippett_curve(scores, is_target)
        x = np.concatenate(([low], np.clip(x / ln10, low, high), [high]))
        for share, width, label in ((targets, 1.3, _short(name)), (nontargets, 0.8, None)):
            y = np.concatenate(([1.0], share, [share[-1]]))
            kept = thin(x, y, (high - low) / 1000, 1e-3)
            ax.plot(x[kept], y[kept], color=color, ls=dash, lw=width, label=label)
    ax.axvline(0.0, color="0.6", lw=0.6, zorder=0)
    x_label = "log$_{10}$ LR (thick: targets, thin: non-targets)"
    return _dress(ax, x_label, "Share with at least this LR", xlim=(low, high), ylim=(0.0, 1.0))


def histogram(systems: Systems, labels: ArrayLike | None = None, *, bins: int = 60, ax: Axes | None = None) -> Axes:
    """Density of the scores of each class of one system; scores beyond the axis count in its outermost bins.

    >>> ax = histogram([-3.0, 1.0, -1.0, 3.0], [False, False, True, True])
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['non-target (2)', 'target (2)']
    """
    looks = _looks(systems, labels, _DASHES)
    if len(looks) > 1:
        raise DuopldaError(f"a histogram shows one system, not {len(looks)}: draw one for each")
    _, s, y, *_ = looks[0]
    low, high = score_range([s])
    edges = np.linspace(low, high, bins + 1)
    ax = _axes(ax)
    for keep, name, color, dash in ((~y, "non-target", OKABE_ITO[1], "--"), (y, "target", OKABE_ITO[0], "-")):
        density = np.histogram(s[keep].clip(low, high), edges, density=True)[0]
        ax.stairs(density, edges, fill=True, color=color, alpha=0.25, lw=0)
        ax.stairs(density, edges, color=color, ls=dash, lw=1.2, label=f"{name} ({keep.sum():,})")
    return _dress(ax, "LLR (nats)", "Density", columns=2, xlim=(low, high), ylim=(0.0, None))


def bayes_error(
    systems: Systems, labels: ArrayLike | None = None, *, limit: float = 7.0, ax: Axes | None = None
) -> Axes:
    """Normalised Bayes error against the prior log-odds: actual (solid) and least (dashed). 1: no use at all.

    >>> ax = bayes_error({"mine": ([-3.0, 1.0, -1.0, 3.0], [False, False, True, True])})
    >>> len(ax.lines) >= 2  # as it is, and the least
    True
    """
    looks = _looks(systems, labels, _MARKERS)
    odds = np.linspace(-limit, limit, 141)
    top = 1.0
    ax = _axes(ax)
    for name, scores, targets, color, marker in looks:
        actual, least = metrics.bayes_error(scores, targets, odds)
        style: dict[str, Any] = {"color": color, "marker": marker, "ms": 3, "lw": 1.2}
        ax.plot(odds, actual, label=_short(name), markevery=(7, 14), **style)
        ax.plot(odds, least, ls=(0, (3, 1.5)), markevery=(0, 14), mfc="white", **style)
        top = max(top, float(np.max(actual)))
    ax.axhline(1.0, color="0.6", lw=0.6, zorder=0)
    limits: dict[str, Any] = {"xlim": (-limit, limit), "ylim": (0.0, min(1.05 * top, 1.5))}
    return _dress(ax, "Prior log-odds (nats)", "Normalised Bayes error", **limits)


def ece(systems: Systems, labels: ArrayLike | None = None, *, limit: float = 3.0, ax: Axes | None = None) -> Axes:
    """Empirical cross-entropy against the prior: as it is (solid), after PAV (dashed), and without ratios (dotted).

    Prior odds run from 10^-limit to 10^limit, as forensic science writes them. Where a solid line lies above the dotted
    one, whoever believes the ratios knows less than somebody who never heard them.

    >>> ax = ece({"mine": ([-3.0, 1.0, -1.0, 3.0], [False, False, True, True])})
    >>> len(ax.lines)  # as it is, by PAV, and without ratios
    3
    """
    looks = _looks(systems, labels, _MARKERS)
    orders = np.linspace(-limit, limit, 121)
    odds = orders * np.log(10)
    ax = _axes(ax)
    top = 1.0
    for name, scores, targets, color, marker in looks:
        entropy = support.ece(scores, targets, odds)
        least = support.ece(metrics.pav_llr(scores, targets), targets, odds)
        style: dict[str, Any] = {"color": color, "marker": marker, "ms": 3, "lw": 1.2}
        ax.plot(orders, entropy, label=_short(name), markevery=(6, 12), **style)
        ax.plot(orders, least, ls=(0, (3, 1.5)), markevery=(0, 12), mfc="white", **style)
        top = max(top, float(np.max(entropy)))
    p = expit(odds)
    ax.plot(orders, -(xlogy(p, p) + xlogy(1 - p, 1 - p)) / np.log(2), color="0.4", lw=0.9, ls=(0, (1, 1.5)), zorder=0)
    limits: dict[str, Any] = {"xlim": (-limit, limit), "ylim": (0.0, min(1.05 * top, 1.5))}
    return _dress(ax, "Prior odds (log10)", "Empirical cross-entropy (bits)", **limits)


def reliability(systems: Systems, labels: ArrayLike | None = None, *, ax: Axes | None = None) -> Axes:
    """The LLR that was given against the LLR it is worth; calibrated systems follow the diagonal.

    What it is worth is the PAV map with one added trial of each class at its ends, so that it is finite.

    >>> ax = reliability({"mine": ([-3.0, 1.0, -1.0, 3.0], [False, False, True, True])})
    >>> len(ax.lines) >= 2  # the diagonal, and the system
    True
    """
    looks = _looks(systems, labels, _DASHES)
    limits = score_range(look[1] for look in looks)
    ax = _axes(ax, _SQUARE)
    ax.plot(limits, limits, color="0.6", lw=0.6, zorder=0)
    low = 0.0
    high = 0.0
    for name, scores, targets, color, dash in looks:
        pav = PAVCalibration().fit(scores.clip(*limits), targets)
        steps = np.stack((pav.low_, pav.high_), axis=1).ravel()
        ax.plot(steps, np.repeat(pav.llr_, 2), color=color, ls=dash, lw=1.3, label=_short(name))
        low = min(low, float(pav.llr_[0]))
        high = max(high, float(pav.llr_[-1]))
    return _dress(ax, "LLR given (nats)", "LLR by PAV (nats)", xlim=limits, ylim=(low - 0.5, high + 0.5))


def llr_overestimation(
    systems: Systems,
    labels: ArrayLike | None = None,
    *,
    speakers: tuple[ArrayLike, ArrayLike] | None = None,
    n_resamples: int = 200,
    ax: Axes | None = None,
) -> Axes:
    """By how much ratios of each size are too high, in orders of magnitude; calibrated systems follow the line at 0.

    With the `speakers` of both sides of each trial, dotted lines are the ends of 95 % intervals over speakers. What is
    drawn is `duoplda.metrics.llr_overestimation`; the legend has the mean of its absolute value.

    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(200) < 100
    >>> ax = llr_overestimation(rng.normal(np.where(labels, 2.0, -2.0), 2.0), labels)
    >>> ax.get_ylabel()
    'Over-estimation of log$_{10}$ LR'
    """
    looks = _looks(systems, labels, _DASHES)
    ln10 = float(np.log(10.0))
    ax = _axes(ax)
    ax.axhline(0.0, color="0.6", lw=0.6, zorder=0)
    for name, scores, targets, color, dash in looks:
        with error_prefix(f"system {name!r}"):
            curve = support.llr_overestimation(scores, targets, speakers, n_resamples=n_resamples)
        x = curve.llr / ln10
        label = f"{_short(name, 30)} (mean {np.abs(curve.excess).mean() / ln10:.2f})"
        ax.plot(x, curve.excess / ln10, color=color, ls=dash, lw=1.3, label=label)
        for end in (curve.low, curve.high):
            if end is not None:
                ax.plot(x, end / ln10, color=color, ls=(0, (1, 1.5)), lw=0.8)
    return _dress(ax, "log$_{10}$ LR given", "Over-estimation of log$_{10}$ LR")


def llr_interval(ratios: ArrayLike, low: ArrayLike, high: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """How far intervals reach above and below their ratios (n,), in orders of magnitude, by the size of the ratio.

    >>> from duoplda.calibration import AffineCalibration, BootstrapCalibration
    >>> scores, labels = [-4.0, -3.0, -2.0, 1.0, -1.0, 2.0, 3.0, 4.0], [False] * 4 + [True] * 4
    >>> fitted = BootstrapCalibration(AffineCalibration(ridge=0.1), n_resamples=20).fit(scores, labels)
    >>> ax = llr_interval(fitted.transform(scores), *fitted.interval(scores))
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['upper end', 'lower end']
    """
    columns = [np.asarray(values, np.float64) for values in (ratios, low, high)]
    if columns[0].ndim != 1 or not columns[0].shape == columns[1].shape == columns[2].shape:
        shapes = ", ".join(str(values.shape) for values in columns)
        raise DuopldaError(f"ratios and the ends of their intervals have the shapes {shapes}; give (n,) of each")
    if np.isnan(columns).any():
        raise DuopldaError("a ratio or an end of an interval is NaN")
    order = np.argsort(columns[0], kind="stable")
    x, *ends = (values[order] / np.log(10.0) for values in columns)
    ax = _axes(ax)
    ax.axhline(0.0, color="0.6", lw=0.6, zorder=0)
    for end, name, color, dash in zip(ends[::-1], ("upper end", "lower end"), OKABE_ITO, _DASHES, strict=False):
        ax.plot(x, end - x, color=color, ls=dash, lw=1.2, marker="|", ms=3, label=name)
    return _dress(ax, "log$_{10}$ LR", "End of the interval less log$_{10}$ LR", columns=2)


def likelihood_trace(plda_or_trace: PLDA | ArrayLike, ax: Axes | None = None) -> Axes:
    """Log-likelihood of the training data after each iteration of EM; the start is iteration 0.

    >>> likelihood_trace([-120.0, -101.5, -101.2]).lines[0].get_ydata().tolist()
    [-120.0, -101.5, -101.2]
    """
    trace = getattr(plda_or_trace, "log_likelihoods_", plda_or_trace)
    if hasattr(trace, "fit"):
        raise DuopldaError("this model has no likelihood trace: it was not fitted, but made from parameters")
    values = np.asarray(trace, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0:
        raise DuopldaError(f"a likelihood trace is a list of numbers, not of shape {values.shape}")
    ax = _axes(ax)
    ax.plot(values, color=OKABE_ITO[0], lw=1.3, marker="o" if len(values) <= 30 else None, ms=3)
    ax.locator_params(axis="x", integer=True)
    return _dress(ax, "Iteration", "Log-likelihood (nats)")


def shrinkage_path(plda: PLDA, ax: Axes | None = None) -> Axes:
    """What `shrinkage="auto"` tried: where likelihood chose, one shrinkage varies and the others are as chosen.

    Where the cost of held-out trials chose, the shrinkages step by step, and the cost of each step.

    >>> from duoplda import PLDA
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(30, n_dimensions=6, n_speaker_factors=3, n_session_factors=2, seed=0)
    >>> ax = shrinkage_path(PLDA(shrinkage="auto", criterion="likelihood").fit(X, speaker, session=session))
    >>> len(ax.lines) > 0
    True
    """
    path = getattr(plda, "shrinkage_path_", {})
    chosen = getattr(plda, "shrinkage_", None)
    steps = {} if chosen is None else {a: cost for a, cost in path.items() if len(a) > len(chosen)}
    if chosen is None or not (steps or chosen in path):
        raise DuopldaError("this model has no path of shrinkages: fit it with shrinkage='auto'")
    ax = _axes(ax)
    if steps:
        for k, name in enumerate((*chosen._fields[: len(chosen)], "VV' scaled by", "UU' scaled by")):
            values = [a[k] for a in steps]
            if len(set(values)) > 1:
                style: dict[str, Any] = {"color": OKABE_ITO[k], "ls": ["-", "--", ":", "-."][k % 4]}
                ax.plot(values, marker="o", ms=3, lw=1.3, label=name, **style)
        costs = [f"{i}\n{cost:.3f}" for i, cost in enumerate(steps.values())]
        ax.set_xticks(range(len(costs)), costs, fontsize="x-small")
        return _dress(ax, "Step, and the cost of held-out trials", "Shrinkage, scale", columns=3)
    for k, name in enumerate(chosen._fields):
        others = [a for a in path if len(a) == len(chosen) and a == chosen._replace(**{name: a[k]})]
        if len(others) > 1:
            x, y = zip(*sorted((a[k], path[a]) for a in others), strict=True)
            ax.plot(x, y, color=OKABE_ITO[k], ls=["-", "--", ":", "-."][k], marker="o", ms=3, lw=1.3, label=name)
    return _dress(ax, "Shrinkage", "Held-out log-likelihood (nats per recording)", xlim=(-0.02, 1.02))


def variance_shares(
    model: PLDA | ArrayLike, session: ArrayLike | None = None, noise: ArrayLike | None = None, ax: Axes | None = None
) -> Axes:
    """Shares of the speaker's, the session's and the channel's variance, stacked, direction by direction.

    The arguments are those of `variance_directions`. The legend gives the shares of the traces.

    >>> ax = variance_shares(np.diag([3.0, 1.0]), np.eye(2), np.eye(2))
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['speaker 50 %', 'session 25 %', 'channel 25 %']
    """
    shares = variance_directions(model, session, noise)
    ax = _axes(ax)
    edges = np.arange(len(shares.speaker) + 1) + 0.5
    bottom = np.zeros(len(shares.speaker))
    looks = (("speaker", OKABE_ITO[0], None), ("session", OKABE_ITO[4], "////"), ("channel", OKABE_ITO[5], "...."))
    for (name, color, hatch), share, total in zip(looks, shares[:3], shares.total, strict=True):
        style: dict[str, Any] = {"color": color, "lw": 0, "hatch": hatch, "label": f"{name} {100 * total:.0f} %"}
        ax.stairs(bottom + share, edges, baseline=bottom, fill=True, **style).set_edgecolor("white")
        bottom = bottom + share
    ax.locator_params(axis="x", integer=True)
    limits: dict[str, Any] = {"xlim": (edges[0], edges[-1]), "ylim": (0.0, 1.0)}
    return _dress(ax, "Direction, by share of the speaker", "Share of the variance", columns=3, **limits)


def speaker_map(Y: ArrayLike, speaker: ArrayLike, ax: Axes | None = None) -> Axes:
    """Recordings (or speakers) in the first two factors: rows of `Y` (n, >= 2), joined to the mean of their speaker.

    >>> ax = speaker_map([[0.0, 1.0], [0.2, 0.8], [-1.0, 0.0]], ["ann", "ann", "bob"])
    >>> sorted(text.get_text() for text in ax.get_legend().get_texts())
    ['ann', 'bob']
    """
    rows = np.asarray(Y, dtype=np.float64)
    ids = np.asarray(speaker)
    if rows.ndim != 2 or rows.shape[1] < 2 or ids.shape != rows.shape[:1]:
        raise DuopldaError(f"Y has shape {rows.shape} and speaker {ids.shape}; give (n, 2 or more) and (n,)")
    names, index = np.unique(ids, return_inverse=True)
    means = np.stack([np.bincount(index, rows[:, k]) / np.bincount(index) for k in (0, 1)], axis=1)
    ax = _axes(ax, _SQUARE)
    few = len(names) <= 8
    spokes = np.stack((rows[:, :2], means[index], np.full((len(rows), 2), np.nan)), axis=1)
    for k in range(min(len(names), 64)):  # 64 pairs of colour and marker, then they come again
        rows_of = index % 64 == k
        color = OKABE_ITO[k % 8]
        marker = _MARKERS[(k + k // 8) % 8]
        ax.plot(*spokes[rows_of].reshape(-1, 2).T, color=color, lw=0.4, alpha=0.6 if few else 0.3, zorder=1)
        style: dict[str, Any] = {"color": color, "marker": marker, "ms": 3.5 if few else 2, "mew": 0, "zorder": 2}
        ax.plot(*rows[rows_of, :2].T, ls="none", label=_short(names[k], 24) if few else None, **style)
    ax.set_aspect("equal", adjustable="datalim")
    return _dress(ax, "Speaker factor 1", "Speaker factor 2", columns=4 if max(len(str(n)) for n in names) <= 6 else 2)


def cluster_sizes(clustering: Clustering, ax: Axes | None = None) -> Axes:
    """Sessions of each speaker that `cluster` found, the largest first; those who were known are hatched.

    >>> from duoplda import PLDA
    >>> found = PLDA.from_parameters([0.0], [[3.0]], None, [[1.0]]).cluster([[9.0], [9.1], [-5.0]], prior=0.5)
    >>> [text.get_text() for text in cluster_sizes(found).get_legend().get_texts()]
    ['found (2)']
    """
    sizes = np.asarray(clustering.sessions, dtype=np.float64)
    order = np.argsort(-sizes, kind="stable")
    sizes = sizes[order]
    known = np.asarray(clustering.known, bool)[order]
    edges = np.arange(len(sizes) + 1) + 0.5
    ax = _axes(ax)
    looks = ((~known, "found", OKABE_ITO[0], None), (known, "known", OKABE_ITO[1], "////"))
    for chosen, name, color, hatch in looks:
        if chosen.any():
            style: dict[str, Any] = {"color": color, "lw": 0, "hatch": hatch, "label": f"{name} ({chosen.sum():,})"}
            ax.stairs(np.where(chosen, sizes, 0.0), edges, fill=True, **style).set_edgecolor("white")
    ax.locator_params(integer=True)
    limits: dict[str, Any] = {"xlim": (edges[0], edges[-1]), "ylim": (0.0, None)}
    return _dress(ax, "Speaker, by number of sessions", "Sessions", columns=2, **limits)


def cluster_map(clustering: Clustering, ax: Axes | None = None) -> Axes:
    """The means of the speakers that `cluster` found, in their plane of largest variance; larger: more sessions.

    Those who were known are diamonds. The names of the eight speakers with the most sessions are written.

    >>> from duoplda import PLDA
    >>> plda = PLDA.from_parameters([0.0, 0.0], 3 * np.eye(2), None, np.eye(2))
    >>> found = plda.cluster([[9, 0], [9, 1], [0, 9]], prior=0.5)
    >>> [text.get_text() for text in cluster_map(found).texts]
    ['spk1', 'spk2']
    """
    places, shares = principal_plane(clustering.means)
    sizes = np.asarray(clustering.sessions)
    known = np.asarray(clustering.known, bool)
    ax = _axes(ax, _SQUARE)
    for chosen, name, color, marker in ((~known, "found", OKABE_ITO[0], "o"), (known, "known", OKABE_ITO[1], "D")):
        if chosen.any():
            style: dict[str, Any] = {"color": color, "marker": marker, "alpha": 0.6, "lw": 0}
            ax.scatter(
                places[chosen, 0],
                places[chosen, 1],
                s=6.0 * np.sqrt(sizes[chosen]),
                label=f"{name} ({chosen.sum():,})",
                **style,
            )
    for k in np.argsort(-sizes, kind="stable")[:8]:
        text: dict[str, Any] = {"xytext": (3, 3), "textcoords": "offset points", "fontsize": 5.5, "color": "0.25"}
        ax.annotate(_short(clustering.names[k], 16), places[k], **text)
    ax.set_aspect("equal", adjustable="datalim")
    x, y = (f"Direction {k + 1} ({100 * share:.0f} % of the variance)" for k, share in enumerate(shares))
    return _dress(ax, x, y, columns=2)


def dendrogram(clustering: Clustering, ax: Axes | None = None) -> Axes:
    """The tree of the merges by which `cluster` made speakers of sessions, one beside the other.

    The height of a merge is by how much less it gained than the first one; heights grow. Trees that are not joined are
    different speakers, before sessions were reassigned.

    >>> from duoplda import PLDA
    >>> found = PLDA.from_parameters([0.0], [[3.0]], None, [[1.0]]).cluster([[9.0], [9.1], [-5.0]], prior=0.5)
    >>> len(found.merges), dendrogram(found).get_ylabel() != ""
    (1, True)
    """
    tree = np.asarray(clustering.linkage(), dtype=np.float64)
    n = len(clustering.merges)
    if not n:
        raise DuopldaError("there is no tree to draw: nothing was merged, each session is a speaker of its own")
    leaves = len(tree) + 1
    heights = np.append(np.zeros(len(tree) + 1), tree[:, 2])
    below = dict(enumerate(tree[:, :2].astype(np.int64).tolist(), leaves))
    x = np.full(len(heights), np.nan)
    place = 0
    stack = [len(heights) - 1]
    while stack:  # leaves from the left to the right; no recursion, as a tree may be as deep as it has leaves
        node = stack.pop()
        if node < leaves:
            x[node] = place
            place = place + 1
        elif np.isnan(x[below[node][0]]):
            stack += [node, *reversed(below[node])]
        else:
            x[node] = x[below[node]].mean()
    ends = np.array([below[leaves + t] for t in range(n)])  # what was left in the end is not joined
    left = x[ends[:, 0]]
    right = x[ends[:, 1]]
    top = tree[:n, 2]
    gap = np.full(n, np.nan)
    xs = np.stack([left, left, right, right, gap], axis=1).ravel()
    ys = np.stack([heights[ends[:, 0]], top, top, heights[ends[:, 1]], gap], axis=1).ravel()
    ax = _axes(ax)
    ax.plot(xs, ys, color=OKABE_ITO[0], lw=0.8)
    ax.set_xticks([])
    return _dress(ax, f"{leaves:,} sessions", "Nats less than the first merge", ylim=(0.0, None))


def principal_plane(means: ArrayLike) -> tuple[Floats, Floats]:
    """Rows (k, 2): `means` (k, n) in their two directions of largest variance; and the shares of the variance, (2,).

    The sign of a direction is that which makes its largest component positive.

    >>> at, shares = principal_plane([[0.0, 0.0, 1.0], [2.0, 0.0, 1.0], [4.0, 0.0, 1.0]])
    >>> at.round(6).tolist(), shares.tolist()
    ([[-2.0, 0.0], [0.0, 0.0], [2.0, 0.0]], [1.0, 0.0])
    """
    rows = np.asarray(means, dtype=np.float64)
    if rows.ndim != 2 or not len(rows):
        raise DuopldaError(f"means have shape {rows.shape}: give (k, n), one row for each speaker")
    centred = rows - rows.mean(axis=0)
    values, directions = np.linalg.svd(centred, full_matrices=False)[1:]
    two = np.zeros((2, rows.shape[1]))
    two[: len(directions)] = directions[:2]
    signs = np.sign(two[np.arange(2), np.abs(two).argmax(axis=1)]) if rows.shape[1] else np.ones(2)
    power = np.pad(values**2, (0, 2))
    return centred @ (two * signs[:, None]).T, power[:2] / max(power.sum(), np.finfo(float).tiny)


def save(ax_or_figure: Axes | Figure, path: str | os.PathLike[str], *, dpi: int = 300, force: bool = False) -> None:
    """Write a figure as PNG, PDF or SVG, by the suffix of `path`: whole or not at all, the same bytes every time.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(likelihood_trace([-3.0, -2.0]), folder + "/trace.png")
    ...     Path(folder, "trace.png").read_bytes()[1:4]
    b'PNG'
    """
    import matplotlib

    kind = Path(path).suffix.lower().lstrip(".")
    if kind not in ("png", "pdf", "svg"):
        raise DuopldaError(f"{path}: the suffix must be .png, .pdf or .svg")
    figure: Any = getattr(ax_or_figure, "figure", None) or ax_or_figure
    metadata = {"png": {}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[kind]
    options: dict[Any, Any] = {"pdf.fonttype": 42, "svg.hashsalt": "duoplda"}  # a PDF's fonts stay text for journals
    with matplotlib.rc_context(options), atomic_path(path, force=force) as temporary:
        figure.savefig(temporary, format=kind, dpi=dpi, metadata=metadata)


def _looks(
    systems: Systems, labels: ArrayLike | None, styles: Iterable[Any]
) -> list[tuple[str, Floats, Booleans, str, Any]]:
    """Name, scores, labels, colour and line style (or marker) of each system, all of them checked."""
    by_name: Mapping[str, Any] = systems if isinstance(systems, Mapping) else {"scores": systems}
    if labels is not None:
        by_name = {name: (scores, labels) for name, scores in by_name.items()}
    if not by_name:
        raise DuopldaError("there is no system: give scores and labels, or a dictionary: name -> (scores, labels)")
    looks = []
    for (name, trials), color, style in zip(by_name.items(), cycle(OKABE_ITO), cycle(styles), strict=False):
        if not isinstance(trials, (tuple, list)) or len(trials) != 2:
            raise DuopldaError(f"system {name!r} must be scores and labels, of as many trials")
        with error_prefix(f"system {name!r}"):
            scores, targets, _ = check_trials(trials[0], trials[1], None)
        looks.append((name, scores, targets, color, style))
    return looks


def _decide(
    scores: ArrayLike, labels: ArrayLike, p: float, c_miss: float, c_fa: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """(p_miss, p_fa) of the Bayes decision and of the least cost."""
    metrics.min_dcf(scores, labels, p, c_miss, c_fa)  # refuses impossible priors and costs
    ratio = (1 - p) / p * (c_fa / c_miss)
    curve = metrics.det_curve(scores, labels)
    hull = metrics.rocch(scores, labels)
    k = int(np.searchsorted(curve.thresholds[:-1], np.log(ratio)))
    best = int(np.argmin(hull.p_miss + ratio * hull.p_fa))
    return (curve.p_miss[k], curve.p_fa[k]), (hull.p_miss[best], hull.p_fa[best])


def _short(name: object, most: int = 44) -> str:
    """A name that fits in a legend, and in which `$` and a leading `_` mean nothing to matplotlib."""
    text = plain(name, most)
    return ("\N{ZERO WIDTH SPACE}" + text if text.startswith("_") else text).replace("$", r"\$")


def _axes(ax: Axes | None, height: float = 0.78 * _COLUMN) -> Axes:
    """`ax`, or the Axes of a new figure of one column's width with type to match."""
    if ax is not None:
        return ax
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DuopldaError("plots need matplotlib: pip install 'duoplda[plots]'") from None
    ax = Figure(figsize=(_COLUMN, height), layout="constrained", dpi=150).add_subplot()
    ax.tick_params(labelsize=7, width=0.6, length=2.5)
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set_fontsize(8)
        axis.get_offset_text().set_fontsize(7)
    ax.spines[:].set_linewidth(0.6)
    return ax


def _dress(ax: Axes, x: str, y: str, columns: int = 1, **limits: Any) -> Axes:
    """Labels, limits, a faint grid, and the legend above the axes, where it hides nothing."""
    ax.set(xlabel=x, ylabel=y, axisbelow=True, **limits)
    ax.grid(color="0.9", lw=0.5)
    if ax.get_legend_handles_labels()[0]:
        size = float(ax.xaxis.label.get_fontsize()) - 1
        space: dict[str, Any] = {"borderaxespad": 0.2, "columnspacing": 0.9, "handletextpad": 0.5, "labelspacing": 0.25}
        space["handlelength"] = 2.6 if columns == 1 else 1.2
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, fontsize=size, frameon=False, **space)
    return ax
