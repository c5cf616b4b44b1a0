"""Pictures of scores: DET, Tippett, histograms, Bayes error, cross-entropy, reliability and intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, ndtr, ndtri, xlogy

from duoplda.errors import DuopldaError, error_prefix
from duoplda.evaluation import metrics, support
from duoplda.evaluation.calibration import PAVCalibration
from duoplda.evaluation.checks import Booleans, Floats, check_trials
from duoplda.evaluation.support import LN10
from duoplda.report.plots.curves import det_limits, det_ticks, score_range, thin, tippett_curve
from duoplda.report.plots.drawing import DASHES, MARKERS, OKABE_ITO, SQUARE, dress, new_axes, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Trials = tuple[ArrayLike, ArrayLike]  # scores and labels
Systems = Mapping[str, Trials] | Trials | ArrayLike
Points = Sequence[tuple[float, float, float]]  # prior of a target, cost of a miss, cost of a false alarm


def det(
    systems: Systems,
    labels: ArrayLike | None = None,
    *,
    operating_points: Points = ((0.01, 1.0, 1.0),),
    ax: Axes | None = None,
) -> Axes:
    """Draw the miss rate against the false-alarm rate on probit axes, where Gaussian scores give straight lines.

    The curve shows how well scores separate the classes, and not whether their values can be trusted as ratios: for
    that, see the distance between the markers, or `reliability`. For each operating point (p_target, c_miss, c_fa) a
    filled marker shows the rates of decisions by the Bayes threshold, and an open one those of the least cost; points
    outside the axes are drawn on their border. The legend gives the EER ("rocch").

    >>> ax = det({"mine": ([-3.0, 1.0, -1.0, 3.0], [False, False, True, True])})
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('False-alarm rate (%)', 'Miss rate (%)')
    >>> ax = det([-3.0, 1.0, -1.0, 3.0], ["nontarget", "nontarget", "target", "target"])  # one system needs no name
    """
    styled = _styled(systems, labels, DASHES)
    trials = [(scores, targets) for _, scores, targets, *_ in styled]
    points = [[_decide(*pair, *point) for point in operating_points] for pair in trials]
    rates = [rate for both in points for pair in both for point in pair for rate in point if rate < 0.98]
    worst = max([1.2 * metrics.eer(*pair) for pair in trials] + rates)
    high = next((h for h in (0.6, 0.9) if h > worst), 0.98)
    x_limits, y_limits = det_limits(trials, high)
    ax = new_axes(ax, SQUARE)

    def probit(p: ArrayLike) -> Floats:  # matplotlib also asks for 0 and 1, where it is infinite
        return ndtri(np.clip(p, 1e-12, 1 - 1e-12))

    for axis, limits in ((ax.xaxis, x_limits), (ax.yaxis, y_limits)):
        getattr(ax, f"set_{axis.axis_name}scale")("function", functions=(probit, ndtr))
        getattr(ax, f"set_{axis.axis_name}lim")(*limits)
        ticks = det_ticks(limits, 0.065 if axis is ax.xaxis else 0.05)
        axis.set_ticks(ticks, [f"{100 * r:.12g}" for r in ticks])
        axis.set_ticks([], minor=True)
    for (name, scores, targets, color, dash), decisions in zip(styled, points, strict=True):
        curve = metrics.det_curve(scores, targets)
        x, y = (np.clip(p, limits[0] / 2, 1 - 1e-3) for p, limits in ((curve.p_fa, x_limits), (curve.p_miss, y_limits)))
        kept = thin(ndtri(x), ndtri(y), 0.004, 0.004)
        label = f"{short(name, 30)} (EER {100 * metrics.eer(scores, targets):.2f} %)"
        ax.plot(x[kept], y[kept], color=color, ls=dash, lw=1.3, label=label)
        for (actual, least), marker in zip(decisions, cycle(MARKERS), strict=False):
            for (p_miss, p_fa), face in ((least, "white"), (actual, color)):
                style: dict[str, Any] = {"mec": color, "mfc": face, "mew": 1.1, "ms": 5, "clip_on": False, "zorder": 5}
                place = [np.clip(p_fa, *x_limits)], [np.clip(p_miss, *y_limits)]
                ax.plot(*place, ls="none", marker=marker, **style)
    return dress(ax, "False-alarm rate (%)", "Miss rate (%)")


def tippett(systems: Systems, labels: ArrayLike | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw the shares of the target and of the non-target trials whose LR is at least x, on a log10 axis.

    Targets left of 0 and non-targets right of 0 have misleading ratios.

    >>> ax = tippett({"mine": ([-3.0, 1.0, -1.0, 3.0], [False, False, True, True])})
    >>> len(ax.lines) >= 2  # a curve for targets, and one for the others
    True
    """
    styled = _styled(systems, labels, DASHES)
    low, high = (end / LN10 for end in score_range(scores for _, scores, *_ in styled))
    ax = new_axes(ax)
    for name, scores, is_target, color, dash in styled:
        x, targets, nontargets = tippett_curve(scores, is_target)
        x = np.concatenate(([low], np.clip(x / LN10, low, high), [high]))
        for share, width, label in ((targets, 1.3, short(name)), (nontargets, 0.8, None)):
            y = np.concatenate(([1.0], share, [share[-1]]))
            kept = thin(x, y, (high - low) / 1000, 1e-3)
            ax.plot(x[kept], y[kept], color=color, ls=dash, lw=width, label=label)
    ax.axvline(0.0, color="0.6", lw=0.6, zorder=0)
    x_label = "log$_{10}$ LR (thick: targets, thin: non-targets)"
    return dress(ax, x_label, "Share with at least this LR", xlim=(low, high), ylim=(0.0, 1.0))


def histogram(systems: Systems, labels: ArrayLike | None = None, *, bins: int = 60, ax: Axes | None = None) -> Axes:
    """Draw the density of the scores of each class of one system; scores beyond the axis count in its outermost bins.

    >>> ax = histogram([-3.0, 1.0, -1.0, 3.0], [False, False, True, True])
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['non-target (2)', 'target (2)']
    """
    styled = _styled(systems, labels, DASHES)
    if len(styled) > 1:
        raise DuopldaError(f"a histogram shows one system, not {len(styled)}: draw one for each")
    _, s, y, *_ = styled[0]
    low, high = score_range([s])
    edges = np.linspace(low, high, bins + 1)
    ax = new_axes(ax)
    for keep, name, color, dash in ((~y, "non-target", OKABE_ITO[1], "--"), (y, "target", OKABE_ITO[0], "-")):
        density = np.histogram(s[keep].clip(low, high), edges, density=True)[0]
        ax.stairs(density, edges, fill=True, color=color, alpha=0.25, lw=0)
        ax.stairs(density, edges, color=color, ls=dash, lw=1.2, label=f"{name} ({keep.sum():,})")
    return dress(ax, "LLR (nats)", "Density", columns=2, xlim=(low, high), ylim=(0.0, None))


def bayes_error(
    systems: Systems, labels: ArrayLike | None = None, *, limit: float = 7.0, ax: Axes | None = None
) -> Axes:
    """Draw the normalised Bayes error against the prior log-odds, as it is (solid) and at its least (dashed).

    A value of 1 is the error of decisions without scores: where the solid line is not below it, the ratios are of no
    use at that prior.

    >>> ax = bayes_error({"mine": ([-3.0, 1.0, -1.0, 3.0], [False, False, True, True])})
    >>> len(ax.lines) >= 2  # as it is, and the least
    True
    """
    styled = _styled(systems, labels, MARKERS)
    odds = np.linspace(-limit, limit, 141)
    top = 1.0
    ax = new_axes(ax)
    for name, scores, targets, color, marker in styled:
        actual, least = metrics.bayes_error(scores, targets, odds)
        style: dict[str, Any] = {"color": color, "marker": marker, "ms": 3, "lw": 1.2}
        ax.plot(odds, actual, label=short(name), markevery=(7, 14), **style)
        ax.plot(odds, least, ls=(0, (3, 1.5)), markevery=(0, 14), mfc="white", **style)
        top = max(top, float(np.max(actual)))
    ax.axhline(1.0, color="0.6", lw=0.6, zorder=0)
    limits: dict[str, Any] = {"xlim": (-limit, limit), "ylim": (0.0, min(1.05 * top, 1.5))}
    return dress(ax, "Prior log-odds (nats)", "Normalised Bayes error", **limits)


def ece(systems: Systems, labels: ArrayLike | None = None, *, limit: float = 3.0, ax: Axes | None = None) -> Axes:
    """Draw the empirical cross-entropy against the prior: as it is (solid), by PAV (dashed), without ratios (dotted).

    Prior odds run from 10^-limit to 10^limit, as forensic science writes them. Where a solid line lies above the dotted
    one, a person who believes the ratios is worse informed than one who never heard them.

    >>> ax = ece({"mine": ([-3.0, 1.0, -1.0, 3.0], [False, False, True, True])})
    >>> len(ax.lines)  # as it is, by PAV, and without ratios
    3
    """
    styled = _styled(systems, labels, MARKERS)
    orders = np.linspace(-limit, limit, 121)
    odds = orders * LN10
    ax = new_axes(ax)
    top = 1.0
    for name, scores, targets, color, marker in styled:
        entropy = support.ece(scores, targets, odds)
        least = support.ece(metrics.pav_llr(scores, targets), targets, odds)
        style: dict[str, Any] = {"color": color, "marker": marker, "ms": 3, "lw": 1.2}
        ax.plot(orders, entropy, label=short(name), markevery=(6, 12), **style)
        ax.plot(orders, least, ls=(0, (3, 1.5)), markevery=(0, 12), mfc="white", **style)
        top = max(top, float(np.max(entropy)))
    p = expit(odds)
    ax.plot(orders, -(xlogy(p, p) + xlogy(1 - p, 1 - p)) / np.log(2), color="0.4", lw=0.9, ls=(0, (1, 1.5)), zorder=0)
    limits: dict[str, Any] = {"xlim": (-limit, limit), "ylim": (0.0, min(1.05 * top, 1.5))}
    return dress(ax, "Prior odds (log10)", "Empirical cross-entropy (bits)", **limits)


def reliability(systems: Systems, labels: ArrayLike | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw the LLR by PAV on these trials against the LLR of the system; calibrated systems follow the diagonal.

    PAV gets one added trial of each class at its ends, so that its values are finite. With few trials the steps are
    coarse, and leave the diagonal by chance.

    >>> ax = reliability({"mine": ([-3.0, 1.0, -1.0, 3.0], [False, False, True, True])})
    >>> len(ax.lines) >= 2  # the diagonal, and the system
    True
    """
    styled = _styled(systems, labels, DASHES)
    limits = score_range(scores for _, scores, *_ in styled)
    ax = new_axes(ax, SQUARE)
    ax.plot(limits, limits, color="0.6", lw=0.6, zorder=0)
    low = 0.0
    high = 0.0
    for name, scores, targets, color, dash in styled:
        pav = PAVCalibration().fit(scores.clip(*limits), targets)
        steps = np.stack((pav.low_, pav.high_), axis=1).ravel()
        ax.plot(steps, np.repeat(pav.llr_, 2), color=color, ls=dash, lw=1.3, label=short(name))
        low = min(low, float(pav.llr_[0]))
        high = max(high, float(pav.llr_[-1]))
    return dress(ax, "LLR given (nats)", "LLR by PAV (nats)", xlim=limits, ylim=(low - 0.5, high + 0.5))


def llr_overestimation(
    systems: Systems,
    labels: ArrayLike | None = None,
    *,
    speakers: tuple[ArrayLike, ArrayLike] | None = None,
    n_resamples: int = 200,
    ax: Axes | None = None,
) -> Axes:
    """Draw by how many orders of magnitude ratios of each size are too high; calibrated systems follow the line at 0.

    With the `speakers` of both sides of each trial, dotted lines are the ends of 95 % intervals over speakers. The
    curve is that of `duoplda.metrics.llr_overestimation`; the legend has the mean of its absolute value.

    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(200) < 100
    >>> ax = llr_overestimation(rng.normal(np.where(labels, 2.0, -2.0), 2.0), labels)
    >>> ax.get_ylabel()
    'Over-estimation of log$_{10}$ LR'
    """
    styled = _styled(systems, labels, DASHES)
    ax = new_axes(ax)
    ax.axhline(0.0, color="0.6", lw=0.6, zorder=0)
    for name, scores, targets, color, dash in styled:
        with error_prefix(f"system {name!r}"):
            curve = support.llr_overestimation(scores, targets, speakers, n_resamples=n_resamples)
        x = curve.llr / LN10
        label = f"{short(name, 30)} (mean {np.abs(curve.excess).mean() / LN10:.2f})"
        ax.plot(x, curve.excess / LN10, color=color, ls=dash, lw=1.3, label=label)
        for end in (curve.low, curve.high):
            if end is not None:
                ax.plot(x, end / LN10, color=color, ls=(0, (1, 1.5)), lw=0.8)
    return dress(ax, "log$_{10}$ LR given", "Over-estimation of log$_{10}$ LR")


def llr_interval(ratios: ArrayLike, low: ArrayLike, high: ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Draw how far intervals reach above and below their ratios (n,), in orders of magnitude, by the size of the ratio.

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
    x, *ends = (values[order] / LN10 for values in columns)
    ax = new_axes(ax)
    ax.axhline(0.0, color="0.6", lw=0.6, zorder=0)
    for end, name, color, dash in zip(ends[::-1], ("upper end", "lower end"), OKABE_ITO, DASHES, strict=False):
        ax.plot(x, end - x, color=color, ls=dash, lw=1.2, marker="|", ms=3, label=name)
    return dress(ax, "log$_{10}$ LR", "End of the interval less log$_{10}$ LR", columns=2)


def _styled(
    systems: Systems, labels: ArrayLike | None, styles: Iterable[Any]
) -> list[tuple[str, Floats, Booleans, str, Any]]:
    """The name, the checked scores and labels, the colour and the line style (or marker) of each system."""
    by_name: Mapping[str, Any] = systems if isinstance(systems, Mapping) else {"scores": systems}
    if labels is not None:
        by_name = {name: (scores, labels) for name, scores in by_name.items()}
    if not by_name:
        raise DuopldaError("there is no system: give scores and labels, or a dictionary: name -> (scores, labels)")
    styled = []
    for (name, trials), color, style in zip(by_name.items(), cycle(OKABE_ITO), cycle(styles), strict=False):
        if not isinstance(trials, (tuple, list)) or len(trials) != 2:
            raise DuopldaError(f"system {name!r} must be scores and labels, of as many trials")
        with error_prefix(f"system {name!r}"):
            scores, targets, _ = check_trials(trials[0], trials[1], None)
        styled.append((name, scores, targets, color, style))
    return styled


def _decide(
    scores: ArrayLike, labels: ArrayLike, p: float, c_miss: float, c_fa: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The rates (p_miss, p_fa) of decisions by the Bayes threshold, and those of the least cost."""
    metrics.min_dcf(scores, labels, p, c_miss, c_fa)  # refuses impossible priors and costs
    ratio = (1 - p) / p * (c_fa / c_miss)
    curve = metrics.det_curve(scores, labels)
    hull = metrics.rocch(scores, labels)
    k = int(np.searchsorted(curve.thresholds[:-1], np.log(ratio)))
    best = int(np.argmin(hull.p_miss + ratio * hull.p_fa))
    return (curve.p_miss[k], curve.p_fa[k]), (hull.p_miss[best], hull.p_fa[best])
