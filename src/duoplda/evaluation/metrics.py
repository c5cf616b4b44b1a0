"""Metrics of scores: error rates, detection costs, Cllr, and their minima over all calibrations.

Every function takes `scores` (n,), natural-log likelihood ratios s; `labels` (n,), True for a target trial, or 1 and 0,
or words as in lists of trials ("target", "nontarget"); and `weights` (n,), w >= 0, or None for weights of 1. A trial is
accepted when s >= threshold, so that, with T and N the summed weights of the target and the non-target trials,

    p_miss(threshold) = (1 / T) sum of w over the targets with s < threshold
    p_fa(threshold)   = (1 / N) sum of w over the non-targets with s >= threshold.

Equal scores are one step of both curves, never two, so no result depends on the order of the trials.
Scores may be infinite; a NaN is refused.

Which number to look at: Cllr tells whether the ratios can be used as evidence at any prior, a detection cost whether
decisions at one prior are good, and the EER only how well two classes can be told apart by some threshold that nobody
knows beforehand. A system can have a low EER and ratios that mislead.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import isotonic_regression
from scipy.special import expit

from duoplda.errors import DuopldaError
from duoplda.evaluation.checks import Booleans, Floats, Weights, check_trials

__all__ = ["BayesError", "DetCurve", "act_dcf", "bayes_error", "calibration_loss", "cllr", "det_curve", "eer"]
__all__ += ["measure", "metric_names", "min_cllr", "min_dcf", "pav_llr", "rocch"]

MAX_LOG_ODDS = 700.0  # exp(700) is still a finite double, exp(710) is not


class DetCurve(NamedTuple):
    """Error rates for rising thresholds: `p_miss`, `p_fa`, `thresholds`, each (m + 1,).

    At `thresholds[k]` the share `p_miss[k]` of the targets is rejected and the share `p_fa[k]` of the non-targets
    accepted.

    >>> curve = det_curve([0.0, 1.0], [False, True])
    >>> curve.p_miss.tolist(), curve.p_fa.tolist(), curve.thresholds.tolist()
    ([0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, inf])
    """

    p_miss: Floats
    p_fa: Floats
    thresholds: Floats


class BayesError(NamedTuple):
    """Bayes error rates of the scores as they are (`actual`) and after calibration by PAV (`minimum`).

    The difference is what better calibration could gain at these priors. Normalised, 1 is the error of deciding without
    looking at scores: an `actual` above 1 means that the scores do harm there.

    >>> errors = bayes_error([-3.0, 1.0, -1.0, 3.0], [False, False, True, True], 0.0)
    >>> bool(errors.minimum <= errors.actual)
    True
    """

    actual: Any  # a float, or an array of the shape of the priors; and so is minimum
    minimum: Any


class Tally(NamedTuple):
    """The weight of each class in bins of rising score."""

    scores: Floats  # the lowest of each bin
    targets: Floats
    nontargets: Floats
    llr: Floats  # what a threshold is compared with: the score of a bin, or the ratio of a block of PAV


def eer(scores: ArrayLike, labels: ArrayLike, method: str = "rocch", weights: Weights = None) -> float:
    """Equal error rate: the common value of p_miss and p_fa, 0 where a threshold separates the classes, 0.5 by chance.

    It compares systems on the same trials. It is not the error rate of a system in use, whose threshold is fixed
    beforehand and whose priors differ: see `act_dcf`. By Doddington's rule, 30 errors are needed to know an error
    rate to within 30 % (with 90 % confidence).

    The empirical rates are steps and seldom meet, which is why tools disagree. `method` says what is meant:
    - "rocch": where the convex hull of the ROC crosses p_miss = p_fa. It is the largest minimum Bayes error over all
      priors, max_p min_t p p_miss(t) + (1 - p) p_fa(t), and never exceeds "interpolated".
    - "interpolated": where straight lines between neighbouring points of the ROC cross p_miss = p_fa, as
      `brentq(lambda x: 1 - x - interp1d(fpr, tpr)(x), 0, 1)` on scikit-learn's `roc_curve` gives.
    - "nearest": (p_miss + p_fa) / 2 at the (lowest) threshold where the two are closest, as SpeechBrain's `EER` gives.

    >>> eer([-2.0, -1.0, 0.5, 0.0, 1.0, 2.0], [False, False, False, True, True, True])
    0.16666666666666666
    """
    bins = tally(*check_trials(scores, labels, weights))
    return _eer(bins, pool(bins), method)


def det_curve(scores: ArrayLike, labels: ArrayLike, weights: Weights = None) -> DetCurve:
    """Miss and false-alarm rates at every distinct score, from accepting all to rejecting all.

    thresholds = (the m distinct scores, rising, then +inf); p_miss rises from 0 to 1, p_fa falls from 1 to 0; each is
    (m + 1,). The last point stands for rejecting every trial, those with a score of +inf included.

    >>> det_curve([0.0, 1.0, 1.0, 2.0], [False, True, False, True]).p_miss.tolist()
    [0.0, 0.0, 0.5, 1.0]
    """
    return _curve(tally(*check_trials(scores, labels, weights)))


def rocch(scores: ArrayLike, labels: ArrayLike, weights: Weights = None) -> DetCurve:
    """Vertices of the convex hull of the ROC, where every minimum cost is found.

    The hull's h edges are the blocks of the PAV algorithm: the edge of a block with target share t and non-target
    share n of their classes goes from (p_miss, p_fa) to (p_miss + t, p_fa - n). Returns three (h + 1,) arrays.

    >>> rocch([0.0, 1.0, 2.0, 3.0], [False, True, False, True]).p_fa.tolist()
    [1.0, 0.5, 0.0, 0.0]
    """
    return _curve(pool(tally(*check_trials(scores, labels, weights))))


def min_dcf(
    scores: ArrayLike,
    labels: ArrayLike,
    p_target: ArrayLike = 0.01,
    c_miss: ArrayLike = 1.0,
    c_fa: ArrayLike = 1.0,
    weights: Weights = None,
) -> Any:
    """Lowest normalised detection cost that any threshold reaches: the minimum over t of the cost in `act_dcf`.

    The threshold is the best for these very trials, so this is a lower limit for what a calibrated system would cost,
    not what it costs. 1 means that at these priors no threshold is better than deciding without scores.

    >>> min_dcf([-1.0, 0.0, 1.0, 2.0], [False, True, False, True], p_target=[0.5, 0.01]).tolist()
    [0.5, 0.5]
    """
    ratio = _cost_ratio(p_target, c_miss, c_fa)
    return plain(_normalised_cost(pool(tally(*check_trials(scores, labels, weights))), np.log(ratio), ratio))


def act_dcf(
    scores: ArrayLike,
    labels: ArrayLike,
    p_target: ArrayLike = 0.01,
    c_miss: ArrayLike = 1.0,
    c_fa: ArrayLike = 1.0,
    weights: Weights = None,
) -> Any:
    """Normalised detection cost (NIST) of deciding by the Bayes threshold, as if the scores were calibrated.

    [p c_miss p_miss(t) + (1 - p) c_fa p_fa(t)] / min(p c_miss, (1 - p) c_fa),   t = log((1 - p) c_fa / (p c_miss))

    1 is the cost of the better of accepting all and rejecting all; more than 1 means that deciding by these scores is
    worse than not looking at them. The distance to `min_dcf` is what calibration would gain.

    The prior and the costs are scalars or arrays that broadcast. Returns a float for scalars, otherwise an array.

    >>> act_dcf([-1.0, 0.0, 1.0, 2.0], [False, True, False, True], p_target=[0.5, 0.01]).tolist()
    [0.5, 1.0]
    """
    ratio = _cost_ratio(p_target, c_miss, c_fa)
    return plain(_normalised_cost(tally(*check_trials(scores, labels, weights)), np.log(ratio), ratio))


def bayes_error(
    scores: ArrayLike, labels: ArrayLike, prior_log_odds: ArrayLike, normalized: bool = True, weights: Weights = None
) -> BayesError:
    """Bayes error rate against the prior, for the scores as they are and for the best calibration.

    With p = 1 / (1 + exp(-prior_log_odds)), `actual` is p p_miss(t) + (1 - p) p_fa(t) at the Bayes threshold
    t = -prior_log_odds and `minimum` is its minimum over t; both are divided by min(p, 1 - p), the error of a decision
    without scores, unless `normalized` is False. `prior_log_odds` is a scalar or an array within -700 .. 700.

    >>> bayes_error([-3.0, -1.0, 1.0, 3.0], [False, True, False, True], 0.0)
    BayesError(actual=1.0, minimum=0.5)
    """
    log_odds = np.asarray(prior_log_odds, dtype=np.float64)
    if not np.all(np.abs(log_odds) <= MAX_LOG_ODDS):
        raise DuopldaError(f"prior_log_odds must lie within -{MAX_LOG_ODDS:g} .. {MAX_LOG_ODDS:g}")
    scale = 1.0 if normalized else expit(-np.abs(log_odds))
    bins = tally(*check_trials(scores, labels, weights))
    costs = (_normalised_cost(b, -log_odds, np.exp(-log_odds)) for b in (bins, pool(bins)))
    return BayesError(*(plain(cost * scale) for cost in costs))


def cllr(scores: ArrayLike, labels: ArrayLike, weights: Weights = None) -> float:
    """Cost of the log-likelihood ratios in bits: 0 is perfect, 1 is what always reporting an LLR of 0 costs.

    More than 1 means that the ratios mislead: whoever believes them decides worse than without them. `calibration_loss`
    tells how much of it comes from their scale, and `min_cllr` how much from a lack of separation.

    (mean over targets of log2(1 + exp(-s)) + mean over non-targets of log2(1 + exp(s))) / 2

    A target at -inf or a non-target at +inf makes it infinite.

    >>> cllr([0.0, 0.0], [True, False])
    1.0
    """
    return cross_entropy(*check_trials(scores, labels, weights))


def min_cllr(scores: ArrayLike, labels: ArrayLike, weights: Weights = None) -> float:
    """Cllr after the best monotone recalibration of these scores, `cllr(pav_llr(scores))`, in bits.

    It measures discrimination alone: 0 if a threshold separates the classes, 1 if the order of the scores says nothing.

    >>> min_cllr([-5.0, 1.0, 2.0], [False, True, True])
    0.0
    """
    return _min_cllr(pool(tally(*check_trials(scores, labels, weights))))


def calibration_loss(scores: ArrayLike, labels: ArrayLike, weights: Weights = None) -> float:
    """What miscalibration costs, in bits: cllr - min_cllr, at least 0.

    With few trials it is above 0 for perfectly calibrated ratios too, since `min_cllr` is fitted to these trials.

    >>> round(calibration_loss([1.0, 1.0, 1.0], [True, False, False]), 6)
    0.173289
    """
    trials = check_trials(scores, labels, weights)
    return max(0.0, cross_entropy(*trials) - _min_cllr(pool(tally(*trials))))


def pav_llr(scores: ArrayLike, labels: ArrayLike, weights: Weights = None) -> Floats:
    """Optimally calibrated log-likelihood ratio of each trial, by the pool-adjacent-violators algorithm.

    In a block with target weight t and non-target weight n it is log(t / T) - log(n / N), so -inf below every target
    and +inf above every non-target. It uses the labels of these same trials: a yardstick, not a calibration for others
    (see `duoplda.calibration`). A trial of weight zero gets the value of the last block that starts at or below it.

    >>> pav_llr([-1.0, 0.0, 0.0, 1.0], [False, True, False, True]).tolist()
    [-inf, 0.0, 0.0, inf]
    """
    blocks = pool(tally(*check_trials(scores, labels, weights)))
    index = np.searchsorted(blocks.scores, np.asarray(scores, dtype=np.float64), side="right") - 1
    return blocks.llr[np.maximum(index, 0)]


def metric_names(p_target: ArrayLike = 0.01) -> list[str]:
    """Return the names of the metrics that `measure` gives for these priors.

    >>> metric_names([0.01, 0.5])[:5]
    ['eer', 'min_dcf(0.01)', 'act_dcf(0.01)', 'min_dcf(0.5)', 'act_dcf(0.5)']
    """
    costs = [f"{kind}_dcf({p:g})" for p in np.atleast_1d(p_target) for kind in ("min", "act")]
    return ["eer", *costs, "cllr", "min_cllr", "calibration_loss"]


def measure(
    scores: ArrayLike,
    labels: ArrayLike,
    weights: Weights = None,
    *,
    p_target: ArrayLike = 0.01,
    c_miss: float = 1.0,
    c_fa: float = 1.0,
    eer_method: str = "rocch",
) -> Floats:
    """Return all metrics in the order of `metric_names(p_target)`; the trials are sorted and pooled only once.

    `p_target` is one prior or several; `eer_method` is the definition of the EER (see `eer`).

    >>> measure([-1.0, 0.0, 1.0, 2.0], [False, True, False, True], p_target=0.5).round(3).tolist()
    [0.25, 0.5, 0.5, 0.882, 0.5, 0.382]
    """
    ratio = _cost_ratio(np.atleast_1d(p_target), c_miss, c_fa)
    trials = check_trials(scores, labels, weights)
    bins = tally(*trials)
    blocks = pool(bins)
    costs = np.stack([_normalised_cost(b, np.log(ratio), ratio) for b in (blocks, bins)], axis=1)  # least, actual
    bits = cross_entropy(*trials)
    fewest = _min_cllr(blocks)
    return np.array([_eer(bins, blocks, eer_method), *costs.ravel(), bits, fewest, max(0.0, bits - fewest)])


def tally(scores: Floats, labels: Booleans, weights: Floats) -> Tally:
    """Weight of each class at each distinct score; sorts only what is not sorted yet."""
    if not np.all(scores[:-1] <= scores[1:]):
        order = np.argsort(scores)
        scores = scores[order]
        labels = labels[order]
        weights = weights[order]
    starts = np.flatnonzero(np.concatenate(([True], scores[1:] != scores[:-1])))
    targets = np.add.reduceat(np.where(labels, weights, 0.0), starts)
    nontargets = np.add.reduceat(np.where(labels, 0.0, weights), starts)
    return Tally(scores[starts], targets, nontargets, scores[starts])


def pool(bins: Tally) -> Tally:
    """The blocks of the PAV algorithm: neighbours pooled until the share of targets rises with the score.

    The log-likelihood ratio of a block, log(t / T) - log(n / N), rises too (ties of rounding are evened out).
    """
    total = bins.targets + bins.nontargets
    starts = isotonic_regression(bins.targets / total, weights=total).blocks[:-1]
    targets = np.add.reduceat(bins.targets, starts)
    nontargets = np.add.reduceat(bins.nontargets, starts)
    with np.errstate(divide="ignore"):
        llr = np.log(targets / targets.sum()) - np.log(nontargets / nontargets.sum())
    return Tally(bins.scores[starts], targets, nontargets, np.maximum.accumulate(llr))


def cross_entropy(s: Floats, y: Booleans, w: Floats, log_odds: float = 0.0) -> float:
    """The empirical cross-entropy of checked trials at these prior log odds, in bits; at even odds it is Cllr."""
    of_targets = np.logaddexp(0.0, -s[y] - log_odds)
    of_nontargets = np.logaddexp(0.0, s[~y] + log_odds)
    p = 1 / (1 + np.exp(-log_odds))
    nats = p * np.average(of_targets, weights=w[y]) + (1 - p) * np.average(of_nontargets, weights=w[~y])
    return float(nats / np.log(2))


def _curve(bins: Tally) -> DetCurve:
    """Error rates of accepting all bins, all but the lowest, ..., none."""
    missed = np.concatenate(([0.0], np.cumsum(bins.targets)))
    rejected = np.concatenate(([0.0], np.cumsum(bins.nontargets)))
    p_fa = (rejected[-1] - rejected) / rejected[-1]
    return DetCurve(missed / missed[-1], p_fa, np.concatenate((bins.scores, [np.inf])))


def _eer(bins: Tally, blocks: Tally, method: str) -> float:
    """The EER from the bins of `tally` and the blocks of `pool`."""
    if method not in ("rocch", "interpolated", "nearest"):
        raise DuopldaError(f"method is {method!r}; use 'rocch', 'interpolated' or 'nearest'")
    p_miss, p_fa, _ = _curve(blocks if method == "rocch" else bins)
    difference = p_miss - p_fa  # rises from -1 to 1
    if method == "nearest":
        # Equal differences can differ in their last digits; rounded, the lowest threshold among them is taken.
        k = int(np.argmin(np.round(np.abs(difference), 12)))
        return float((p_miss[k] + p_fa[k]) / 2)
    k = int(np.searchsorted(difference, 0.0))
    share = difference[k] / (difference[k] - difference[k - 1])
    return float(p_miss[k] - share * (p_miss[k] - p_miss[k - 1]))


def _normalised_cost(bins: Tally, threshold: Floats, ratio: Floats) -> Floats:
    """Cost of accepting the bins with llr >= threshold = log(ratio); ratio = (1 - p) c_fa / (p c_miss)."""
    p_miss, p_fa, _ = _curve(bins)
    k = np.searchsorted(bins.llr, threshold)
    return np.asarray(p_miss[k] * np.maximum(1.0, 1.0 / ratio) + p_fa[k] * np.maximum(1.0, ratio))


def _cost_ratio(p_target: ArrayLike, c_miss: ArrayLike, c_fa: ArrayLike) -> Floats:
    """(1 - p) c_fa / (p c_miss), whose logarithm is the Bayes threshold."""
    options = f"p_target={p_target!r}, c_miss={c_miss!r}, c_fa={c_fa!r}"
    try:
        p, miss, fa = np.broadcast_arrays(*(np.asarray(v, np.float64) for v in (p_target, c_miss, c_fa)))
    except ValueError:
        raise DuopldaError(f"{options}: each must be a number, or lists of the same length") from None
    if not np.all((p > 0) & (p < 1)):
        raise DuopldaError(f"{options}: p_target must lie strictly between 0 and 1")
    if not np.all((miss > 0) & (fa > 0) & np.isfinite(miss) & np.isfinite(fa)):
        raise DuopldaError(f"{options}: costs must be positive and finite")
    log_ratio = np.log1p(-p) + np.log(fa) - np.log(p) - np.log(miss)
    if not np.all(np.abs(log_ratio) <= MAX_LOG_ODDS):
        raise DuopldaError(f"{options}: the Bayes threshold is beyond {MAX_LOG_ODDS:g} in size")
    return np.asarray((1 - p) / p * (fa / miss))


def _min_cllr(blocks: Tally) -> float:
    """Cllr of blocks at their own ratios. A class that a block lacks is left out: 0 times infinity is no number."""
    t = blocks.targets > 0
    n = blocks.nontargets > 0
    weights = np.concatenate((blocks.targets[t], blocks.nontargets[n]))
    return cross_entropy(np.concatenate((blocks.llr[t], blocks.llr[n])), np.arange(len(weights)) < t.sum(), weights)


def plain(value: Floats) -> Any:
    """A float instead of an array without dimensions."""
    return float(value) if np.ndim(value) == 0 else value
