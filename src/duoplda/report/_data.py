"""The data of the page's script: curves with few enough points for a page, and exact counts for all slider positions.

The sliders stop at the values of a grid (prior, cost of a miss, cost of a false alarm), so the page needs decisions
only at the thresholds log(ratio), ratio = (1 - p) c_fa / (p c_miss), of these values. For each distinct ratio it gets
the counts of misses and false alarms; the least cost is found on the vertices of the ROC's convex hull, which are few.
Both give metrics.act_dcf and metrics.min_dcf exactly. The script computes the ratios by the same floating-point
operations as this file, so that no table of ratios is sent.

For systems whose scores are not ratios, the page gets no counts at Bayes thresholds and no curves over ratios or
priors.

A drawn curve is a list of whole numbers, 0 .. UNITS along either axis; counts and coordinates are sent as differences.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from scipy.special import ndtri

from duoplda.evaluation import metrics, support
from duoplda.evaluation.checks import Booleans, Floats
from duoplda.report._html import plain
from duoplda.report.plots import VarianceShares, det_limits, score_range, thin, tippett_curve

UNITS = 4000  # four to a pixel: a chart is less than 1000 pixels wide
BAYES_LIMIT = 7.0  # nats of prior log-odds: priors from 0.001 to 0.999
ECE_LIMIT = 3.0  # orders of magnitude of prior odds, as in `plots.ece`

Json = dict[str, Any]
Limits = Sequence[float] | Floats  # the lower and the upper end of an axis


class Grid(NamedTuple):
    """The values at which the sliders stop, and the numbers of those at which they start."""

    p_target: list[float]
    c_miss: list[float]
    c_fa: list[float]
    start: tuple[int, int, int]

    @classmethod
    def around(cls, p_target: float, c_miss: float, c_fa: float) -> Self:
        """Return a grid of usual values, to which the starting values are added."""
        priors = [1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.03, 0.04, 0.05, 0.1, 0.15, 0.2]
        priors += [0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999]
        costs = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
        start = (p_target, c_miss, c_fa)
        lists = [sorted({*usual, value}) for usual, value in zip((priors, costs, costs), start, strict=True)]
        i, j, k = (values.index(value) for values, value in zip(lists, start, strict=True))
        return cls(lists[0], lists[1], lists[2], (i, j, k))

    def ratios(self) -> Floats:
        """Return the distinct values of (1 - p) / p * (c_fa / c_miss), rising."""
        p, c_miss, c_fa = np.meshgrid(*self[:3])
        return np.unique((1 - p) / p * (c_fa / c_miss))


def page_data(
    systems: Mapping[str, Floats],
    labels: Booleans,
    grid: Grid,
    shares: VarianceShares | None,
    ratios: Collection[str],
) -> Json:
    """Return everything that the page's script needs, ready for JSON; `ratios` names the systems that give ratios."""
    x, y = (ndtri(limits) for limits in det_limits([(labels, labels)], high=0.98))
    span = score_range(systems[name] for name in ratios)
    thresholds = np.log(grid.ratios())
    curves_of = {name: _system(scores, labels, (x, y)) for name, scores in systems.items()}
    for name in ratios:
        curves_of[name] |= _of_ratios(systems[name], labels, thresholds, span)
    data: Json = {} if shares is None else {"shares": [_rounded(share) for share in shares[:3]]}
    data |= {"targets": int(labels.sum()), "nontargets": int((~labels).sum()), "units": UNITS}
    data |= {"bayes": BAYES_LIMIT, "ece": ECE_LIMIT}
    return data | {
        "grid": {"prior": grid.p_target, "miss": grid.c_miss, "fa": grid.c_fa, "start": grid.start},
        "det": {"x": x.tolist(), "y": y.tolist()},
        "tippett": [v / support.LN10 for v in span],
        "systems": [
            {"name": plain(name), "calibrated": name in ratios, **curves} for name, curves in curves_of.items()
        ],
    }


def _system(scores: Floats, labels: Booleans, det: Sequence[Limits]) -> Json:
    """The curves of a system that depend only on the order of its scores, and their histogram."""
    order = np.argsort(scores)
    scores = scores[order]
    labels = labels[order]
    n_targets = labels.sum()
    n_nontargets = (~labels).sum()
    curve = metrics.det_curve(scores, labels)
    hull = metrics.rocch(scores, labels)
    bayes = metrics.bayes_error(scores, labels, np.linspace(-BAYES_LIMIT, BAYES_LIMIT, 141))
    range_of_scores = score_range([scores])
    edges = np.linspace(*range_of_scores, 60 + 1)  # 60 bars
    shares = [np.histogram(scores[keep].clip(*range_of_scores), edges)[0] / keep.sum() for keep in (labels, ~labels)]
    # JSON knows no infinity: the page's script makes a number of the text.
    hull_thresholds = [t if np.isfinite(t) else "-Infinity"[int(t > 0) :] for t in _rounded(hull.thresholds, 6)]
    return {
        "hull": {
            "miss": _steps(hull.p_miss * n_targets),
            "fa": _steps(hull.p_fa * n_nontargets),
            "at": hull_thresholds,
        },
        "det": _drawn(ndtri(curve.p_fa), ndtri(curve.p_miss), *det),
        "bayes": {"least": _rounded(bayes.minimum)},
        "histogram": {"span": range_of_scores, "targets": _rounded(shares[0]), "nontargets": _rounded(shares[1])},
    }


def _of_ratios(scores: Floats, labels: Booleans, thresholds: Floats, span: Limits) -> Json:
    """The curves that read scores as natural-log ratios: Bayes decisions, Tippett, Bayes error, cross-entropy."""
    curve = metrics.det_curve(scores, labels)
    k = np.searchsorted(curve.thresholds[:-1], thresholds)
    x, targets, nontargets = tippett_curve(scores, labels)
    x = np.r_[span[0], x, span[1]]
    bayes = metrics.bayes_error(scores, labels, np.linspace(-BAYES_LIMIT, BAYES_LIMIT, 141))
    odds = np.linspace(-ECE_LIMIT, ECE_LIMIT, 61) * support.LN10
    return {
        "actual": {
            "miss": _steps(curve.p_miss[k] * labels.sum()),
            "fa": _steps(curve.p_fa[k] * (~labels).sum()),
        },
        "tippett": [_drawn(x, np.r_[1.0, share, share[-1]], span, (0.0, 1.0)) for share in (targets, nontargets)],
        "bayes": {"actual": _rounded(bayes.actual), "least": _rounded(bayes.minimum)},
        "ece": {
            "actual": _rounded(support.ece(scores, labels, odds)),
            "least": _rounded(support.ece(metrics.pav_llr(scores, labels), labels, odds)),
        },
    }


def _steps(values: Floats) -> list[int]:
    return np.diff(np.rint(values).astype(np.int64), prepend=0).tolist()


def _drawn(x: Floats, y: Floats, x_limits: Limits, y_limits: Limits) -> list[list[int]]:
    """Differences of the coordinates of a thinned curve; points outside the axes are drawn just beside them."""
    both = ((x, x_limits), (y, y_limits))
    units = [np.rint(np.clip((values - low) / (high - low), -0.05, 1.05) * UNITS) for values, (low, high) in both]
    kept = thin(units[0], units[1], 4, 4)  # 4 units are a pixel
    return [_steps(u[kept]) for u in units]


def _rounded(values: Floats, digits: int = 4) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]
