"""The ratios that a set of trials supports: bounds for what may be reported, and how good ratios are at all priors.

Forensic science asks of a system not only how well it does on average (Cllr), but how large a ratio may be that it
reports, how often its ratios mislead, and how far they are from those that the trials themselves would give. As in
`duoplda.metrics`, `scores` (n,) are natural-log likelihood ratios, and all results are in nats too: divide by ln 10
for the orders of magnitude that this field writes.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from duoplda.errors import DuopldaError
from duoplda.evaluation.checks import Floats, Weights, check_trials
from duoplda.evaluation.densities import log_density, silverman
from duoplda.evaluation.metrics import MAX_LOG_ODDS, Tally, cross_entropy, pool, tally
from duoplda.evaluation.resampling import interval, resamples

__all__ = ["Bounds", "MisleadingEvidence", "Overestimation", "dev_pav", "ece", "elub", "invariance_bounds"]
__all__ += ["llr_overestimation", "misleading_evidence"]

LN10 = math.log(10)  # nats of an order of magnitude, in which forensic science writes ratios


class Bounds(NamedTuple):
    """The lowest and the highest log ratio that a set of trials supports: lower <= 0 <= upper.

    A ratio beyond a bound is reported as the bound, with the words "at least" or "at most".

    >>> Bounds(-2.0, 3.0).upper
    3.0
    """

    lower: float
    upper: float


class MisleadingEvidence(NamedTuple):
    """The shares of ratios that point the wrong way, and the strongest of these as log ratios (0 where none does).

    >>> misleading_evidence([-1.0, 2.0, 0.5, -3.0], [True, True, False, False])
    MisleadingEvidence(of_targets=0.5, of_nontargets=0.5, lowest_target=-1.0, highest_nontarget=0.5)
    """

    of_targets: float  # the share of target trials with a ratio below 1
    of_nontargets: float  # the share of non-target trials with a ratio above 1
    lowest_target: float
    highest_nontarget: float


class Overestimation(NamedTuple):
    """By how much log ratios are too high, at points of their range: `llr` and `excess` (m,), and ends of intervals.

    >>> scores, labels = [-2.0, -1.0, 0.5, -0.5, 1.0, 2.0], [False, False, False, True, True, True]
    >>> curve = llr_overestimation(scores, labels)
    >>> curve.llr.shape, curve.low
    ((100,), None)
    """

    llr: Floats  # the ratios that were given
    excess: Floats  # what they are above those that the trials show
    low: Floats | None  # None without speakers, and so is high
    high: Floats | None


def misleading_evidence(scores: ArrayLike, labels: ArrayLike, weights: Weights = None) -> MisleadingEvidence:
    """The shares of ratios that point the wrong way, and the strongest of these.

    The strongest misleading ratio among n trials says little about others: with more trials there are stronger ones.

    >>> misleading_evidence([-2.0, 2.0], [False, True]).of_targets
    0.0
    """
    s, y, w = check_trials(scores, labels, weights)
    low = float(np.average(s[y] < 0, weights=w[y]))
    high = float(np.average(s[~y] > 0, weights=w[~y]))
    return MisleadingEvidence(low, high, float(s[y].min(initial=0.0)), float(s[~y].max(initial=0.0)))


def ece(scores: ArrayLike, labels: ArrayLike, prior_log_odds: ArrayLike, weights: Weights = None) -> Any:
    """Empirical cross-entropy in bits (Ramos): the uncertainty that is left at these priors if the ratios are believed.

    p mean over targets of log2(1 + exp(-s - l)) + (1 - p) mean over non-targets of log2(1 + exp(s + l)),   l = logit p

    At even odds (l = 0) it is Cllr. Without any ratio it is the entropy of the prior; where it is larger than that, the
    ratios mislead. `prior_log_odds` is a number or an array within -700 .. 700, in nats; so is the result.

    >>> ece([0.0, 0.0], [True, False], 0.0)
    1.0
    """
    log_odds = np.asarray(prior_log_odds, np.float64)
    if not np.all(np.abs(log_odds) <= MAX_LOG_ODDS):
        raise DuopldaError(f"prior_log_odds must lie within -{MAX_LOG_ODDS:g} .. {MAX_LOG_ODDS:g}")
    s, y, w = check_trials(scores, labels, weights)
    entropies = [cross_entropy(s, y, w, log_odd) for log_odd in log_odds.ravel().tolist()]
    result = np.reshape(entropies, log_odds.shape)
    return float(result) if result.ndim == 0 else result


def dev_pav(scores: ArrayLike, labels: ArrayLike, weights: Weights = None) -> float:
    """Mean distance, in nats, of the ratios from what PAV makes of them (Vergeer et al., 2021): 0 is calibrated.

    The mean is over the range of the scores to which PAV gives a finite ratio, along the line through its points; it
    does not depend on how many trials have a score in which part of the range. It is infinite where a score is infinite
    and PAV's ratio is not, and NaN where PAV gives no finite ratio at all, as for scores that separate the classes.

    >>> round(dev_pav([-1.0, 0.0, 1.0, 2.0], [False, True, False, True]), 3)
    0.5
    """
    bins = tally(*check_trials(scores, labels, weights))
    blocks = pool(bins)
    x = bins.scores
    y = blocks.llr[np.searchsorted(blocks.scores, x, side="right") - 1]
    finite = np.isfinite(y)
    if not finite.any():
        return float("nan")
    if not np.isfinite(x[finite]).all():
        return float("inf")
    x = x[finite]
    distance = y[finite] - x
    if len(x) == 1:
        return float(abs(distance[0]))
    ends = np.abs(distance[:-1]) + np.abs(distance[1:])
    crosses = distance[:-1] * distance[1:] < 0
    squares = distance[:-1] ** 2 + distance[1:] ** 2
    # The mean of |d| along a straight line: of a trapezium, or of two triangles where the line crosses 0.
    means = np.where(crosses, squares / np.where(crosses, 2 * ends, 1.0), ends / 2)
    return float(means @ np.diff(x) / (x[-1] - x[0]))


def llr_overestimation(
    scores: ArrayLike,
    labels: ArrayLike,
    speakers: tuple[ArrayLike, ArrayLike] | None = None,
    *,
    n_resamples: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
) -> Overestimation:
    """By how much ratios of each size are too high, as the trials show: 0 throughout is calibrated.

    A ratio should be the ratio of its own densities, so the excess is s - (ln f_target(s) - ln f_nontarget(s)), with
    densities by Gaussian kernels of Silverman's bandwidths. It is given at 100 points from the higher of the two .001
    quantiles of the classes to the lower of their .999 quantiles: where both have scores. With the `speakers` of both
    sides of each trial there are intervals over speakers (see `duoplda.metrics.bootstrap`). Infinite scores are left
    out. lir's plot of this name takes its bandwidths from the scores in that range alone, and its intervals are
    fiducial ones, over trials.

    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(4000) < 2000
    >>> scores = rng.normal(np.where(labels, 2.0, -2.0), 2.0)  # calibrated: the variance is twice the mean
    >>> bool(np.median(np.abs(llr_overestimation(scores, labels).excess)) < 0.2)
    True
    """
    s, y, _ = check_trials(scores, labels, None)
    finite = np.isfinite(s)
    classes = {"target": y & finite, "non-target": ~y & finite}
    if not all(kind.any() for kind in classes.values()):
        raise DuopldaError("all scores of one class are infinite: no ratio can be compared with its trials")
    quantiles = [np.quantile(s[kind], [0.001, 0.999], method="hazen") for kind in classes.values()]
    first = max(low for low, _ in quantiles)
    last = min(high for _, high in quantiles)
    if not first < last:
        raise DuopldaError("targets and non-targets have no scores in common: no ratio can be compared with its trials")
    points = np.linspace(first, last, 100)
    kernels = [(s[kind], silverman(s[kind], np.ones(kind.sum()), what)) for what, kind in classes.items()]

    def excess_of(parts: list[tuple[Floats, Floats]]) -> Floats:
        """The excess by scores and weights of the targets, then of the others."""
        densities = [log_density(points, *part, width) for part, (_, width) in zip(parts, kernels, strict=True)]
        return points - (densities[0] - densities[1])

    excess = excess_of([(values, np.ones(len(values))) for values, _ in kernels])
    if speakers is None:
        return Overestimation(points, excess, None, None)
    # Resamples differ only in weights. To save kernels, scores are rounded to steps of a 20th of a kernel's width.
    steps = [np.unique(np.rint(20 * values / width), return_inverse=True) for values, width in kernels]
    drawn = []
    for times in resamples(y, *speakers, n_resamples, confidence, seed):
        parts = []
        for (step, place), (_, width), kind in zip(steps, kernels, classes.values(), strict=True):
            weights = np.asarray(np.bincount(place, times[kind], len(step)), np.float64)
            parts.append((step * width / 20, weights))
        drawn.append(excess_of(parts))
    return Overestimation(points, excess, *interval(excess, np.array(drawn), confidence))


def elub(scores: ArrayLike, labels: ArrayLike, weights: Weights = None) -> Bounds:
    """Empirical lower and upper bounds (Vergeer et al., Science & Justice 56, 2016): where ratios stop being useful.

    To accept where the ratio exceeds t, for the costs at which that is right, costs P_miss(t) + t P_fa(t); to decide
    without ratios costs min(1, t). One error is added to either class: that no trial misled beyond some ratio does not
    prove that none would. Going away from t = 1, a bound is where the ratios first cost more than doing without them.
    With N non-targets the upper bound is at most ln(N + 1). Report a ratio beyond a bound as the bound.

    The bounds are exact; tools that look at a grid of thresholds (lir: .01 in log10) come within one step of them.

    >>> bounds = elub([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0], [False, False, False, True, True, True])
    >>> round(bounds.lower, 3), round(bounds.upper, 3)
    (-1.0, 1.0)
    """
    left, right, missed, accepted = _errors_by_threshold(tally(*check_trials(scores, labels, weights)), 1.0)
    with np.errstate(divide="ignore"):
        too_high = np.maximum(np.log(1 - missed) - np.log(accepted), np.maximum(left, 0.0))  # costs more than 1 beyond
        too_low = np.minimum(np.log(missed) - np.log(1 - accepted), np.minimum(right, 0.0))  # more than t below
    upper = np.min(too_high[too_high < right], initial=np.inf)
    lower = np.max(too_low[too_low > left], initial=-np.inf)
    return Bounds(float(min(lower, 0.0)), float(max(upper, 0.0)))


def invariance_bounds(scores: ArrayLike, labels: ArrayLike, weights: Weights = None) -> Bounds:
    """Bounds of invariance verification (Alberink et al., 2025): the ratio of exceeding t must itself be at least t.

    With P(s >= t) of either class by counts to which half a trial on either side is added (Jeffreys' prior), the upper
    bound is the lowest t where ln P_target(s >= t) - ln P_nontarget(s >= t) < t, the lower bound the highest where
    ln P_target(s < t) - ln P_nontarget(s < t) > t; no bound goes beyond the scores.

    The bounds are exact; lir looks at thresholds .001 apart in log10 and comes within one step of them.

    >>> bounds = invariance_bounds([-3.0, -2.0, -1.0, 1.0, 2.0, 3.0], [False, False, False, True, True, True])
    >>> round(bounds.lower, 3), round(bounds.upper, 3)
    (-1.609, 1.609)
    """
    bins = tally(*check_trials(scores, labels, weights))
    left, right, missed, accepted = _errors_by_threshold(bins, 0.5)
    too_high = np.maximum(np.log(1 - missed) - np.log(accepted), left)
    too_low = np.minimum(np.log(missed) - np.log(1 - accepted), right)
    upper = np.min(too_high[too_high < right], initial=bins.scores[bins.targets > 0][-1])
    lower = np.max(too_low[too_low > left], initial=bins.scores[bins.nontargets > 0][0])
    return Bounds(float(min(lower, 0.0)), float(max(upper, 0.0)))


def _errors_by_threshold(bins: Tally, added: float) -> tuple[Floats, Floats, Floats, Floats]:
    """Intervals of thresholds that hold no score, and P_miss and P_fa there, with `added` errors in each class.

    Half a trial is added to either side of a class if `added` is 0.5, and one error alone if it is 1.
    """
    left = np.concatenate(([-np.inf], bins.scores))
    right = np.concatenate((bins.scores, [np.inf]))
    missed = np.concatenate(([0.0], np.cumsum(bins.targets)))
    rejected = np.concatenate(([0.0], np.cumsum(bins.nontargets)))
    accepted = rejected[-1] - rejected
    return left, right, (missed + added) / (missed[-1] + 1), (accepted + added) / (rejected[-1] + 1)
