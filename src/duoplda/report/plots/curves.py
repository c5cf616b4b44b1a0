"""The points of curves, the limits of axes and their ticks, for figures and for HTML pages. No Matplotlib is needed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from duoplda.errors import DuopldaError
from duoplda.evaluation import metrics
from duoplda.evaluation.checks import Floats, Indices, targets_among

# Round rates for the ticks of a DET plot, the most important first.
TICK_RATES = (0.01, 0.1, 0.4, 1e-3, 1e-4, 1e-5, 1e-6, 0.05, 0.2, 0.02, 5e-3, 2e-3, 0.6, 0.8, 0.9, 0.95, 0.98, 0.99)


def thin(x: ArrayLike, y: ArrayLike, cell_x: float, cell_y: float) -> Indices:
    """Return the indices of the points that a curve needs if details smaller than a cell cannot be seen.

    Of neighbouring points within one cell (cell_x wide, cell_y high) the first is kept, and so is the last point of the
    curve. No part of a monotone curve moves by more than a cell.

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
    """Return the steps of P(LLR >= x | target) and P(LLR >= x | non-target): x rising, and both shares, each (2 m,).

    >>> x, targets, nontargets = tippett_curve([0.0, 1.0], [False, True])
    >>> x.tolist(), targets.tolist(), nontargets.tolist()
    ([0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0])
    """
    p_miss, p_fa, thresholds = metrics.det_curve(scores, labels, weights)
    steps = [np.repeat(share, 2)[1:-1] for share in (1 - p_miss, p_fa)]
    return np.repeat(thresholds[:-1], 2), steps[0], steps[1]


def score_range(all_scores: Iterable[ArrayLike], tail: float = 5e-4) -> tuple[float, float]:
    """Return the limits of an axis that shows the scores of all systems, but for a share `tail` at either end of each.

    >>> score_range([[-10.0, 0.0, 10.0], [20.0]])
    (-10.9, 20.9)
    """
    finite = [np.sort(s[np.isfinite(s)]) for s in map(np.asarray, all_scores)]
    ends = [float(s[k]) for s in finite if len(s) for k in (int(tail * len(s)), -1 - int(tail * len(s)))]
    low, high = (min(ends), max(ends)) if ends else (0.0, 0.0)
    margin = 0.03 * (high - low) if high > low else max(1.0, abs(low) * 0.1)
    return low - margin, high + margin


def det_limits(systems: Iterable[tuple[ArrayLike, ArrayLike]], high: float = 0.6) -> tuple[Floats, Floats]:
    """Return the limits (low, high) of a DET plot, of p_fa and of p_miss: `low` is half the rate of a single error.

    >>> x, y = det_limits([([0.0] * 110, [False] * 100 + [True] * 10)])
    >>> x.tolist(), y.tolist()
    ([0.005, 0.6], [0.05, 0.6])
    """
    counts = np.max([np.bincount(targets_among(labels), minlength=2) for _, labels in systems], axis=0)
    x, y = (np.array([np.clip(0.5 / n, 1e-7, 0.1), high]) for n in counts)
    return x, y


def det_ticks(limits: ArrayLike, gap: float) -> list[float]:
    """Return round rates between the limits that are at least a share `gap` of the probit axis apart.

    >>> det_ticks((0.01, 0.5), gap=0.2)
    [0.01, 0.1, 0.4]
    """
    low, high = ndtri(np.asarray(limits, dtype=np.float64))
    kept: list[float] = []
    for rate in TICK_RATES:
        place = ndtri(rate)
        if low <= place <= high and all(abs(place - ndtri(other)) >= gap * (high - low) for other in kept):
            kept.append(rate)
    return sorted(kept)


def principal_plane(means: ArrayLike) -> tuple[Floats, Floats]:
    """Return `means` (k, n) in their two directions of largest variance, (k, 2), and the shares of the variance, (2,).

    The sign of a direction is chosen such that its largest component is positive, so that a map is not mirrored by
    chance.

    >>> places, shares = principal_plane([[0.0, 0.0, 1.0], [2.0, 0.0, 1.0], [4.0, 0.0, 1.0]])
    >>> places.round(6).tolist(), shares.tolist()
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
