"""How well the procedure did on pairs of the population: metrics with intervals over speakers, and the bounds."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, t

from duoplda.case.reference import Reference
from duoplda.case.result import Estimate, Support, Validation
from duoplda.evaluation.metrics import calibration_loss, cllr, measure
from duoplda.evaluation.resampling import interval
from duoplda.evaluation.support import dev_pav, elub, invariance_bounds, misleading_evidence

Floats = NDArray[np.float64]

# The metrics in the order of `_measured`. Those that are fitted to their trials have their highest possible value here,
# by which `interval` reverses their intervals; for the others it is NaN.
METRICS = {
    "cllr": np.nan,
    "min_cllr": 1.0,
    "calibration_loss": np.inf,
    "eer": np.nan,
    "dev_pav": np.nan,
    "misleading_same": np.nan,
    "misleading_different": np.nan,
    "lowest_same": np.nan,
    "highest_different": np.nan,
}


def expanded(confidence: float, n_speakers: int) -> float:
    """Return the confidence at which to take quantiles of resamples, so that the interval is wide enough.

    Resamples of n speakers have (n - 1) / n of the variance of samples, and that variance is itself an estimate, so
    that Student's t takes the place of the normal distribution (Hesterberg, The American Statistician 69, 2015:
    "expanded percentile intervals").

    >>> round(expanded(0.95, 10), 3), round(expanded(0.95, 1000), 3)
    (0.983, 0.95)
    """
    quantile = float(t.ppf((1 + confidence) / 2, n_speakers - 1)) * math.sqrt(n_speakers / (n_speakers - 1))
    return float(2 * norm.cdf(quantile) - 1)


def validate(reference: Reference, times: Floats, confidence: float) -> Validation:
    """Return the metrics of calibrated pairs; `times` (R, M) says how often each resample takes each speaker."""
    trials = reference.trials
    scores = reference.calibrated
    same = trials.same
    weight = trials.weight
    order = np.argsort(scores, kind="stable")
    values = []
    for row in times:
        drawn = np.where(same, row[trials.a], row[trials.a] * row[trials.b]) * weight
        if drawn[same].any() and drawn[~same].any():
            values.append(_measured(scores[order], same[order], drawn[order]))
    estimate = _measured(scores[order], same[order], weight[order])
    low, high = interval(estimate, np.array(values), expanded(confidence, reference.M), list(METRICS.values()))
    estimates = {
        name: Estimate(*map(float, numbers))
        for name, *numbers in zip(METRICS, estimate.tolist(), low.tolist(), high.tolist(), strict=True)
    }
    return Validation(
        n_speakers=reference.M,
        n_same=int(same.sum()),
        n_different=int((~same).sum()),
        n_pairs_of_speakers=round(float(weight[~same].sum())),
        **estimates,
        own_cllr=float(cllr(trials.scores, same, weight)),
        own_calibration_loss=float(calibration_loss(trials.scores, same, weight)),
        scores=scores,
        labels=same,
        known_speaker=reference.speakers[trials.a],
        questioned_speaker=reference.speakers[trials.b],
        weights=weight,
    )


def _measured(scores: Floats, same: NDArray[np.bool_], weight: Floats) -> Floats:
    """The values of `METRICS`."""
    eer, _, _, bits, least, loss = measure(scores, same, weight)
    misleading = misleading_evidence(scores, same, weight)
    return np.array([bits, least, loss, eer, dev_pav(scores, same, weight), *misleading])


def support(reference: Reference) -> Support:
    """Return the bounds of the ratios that the pairs support; each pair of speakers counts once."""
    trials = reference.trials
    by_cost = elub(reference.calibrated, trials.same, trials.weight)
    by_tails = invariance_bounds(reference.calibrated, trials.same, trials.weight)
    lower = max(by_cost.lower, by_tails.lower)
    upper = min(by_cost.upper, by_tails.upper)
    return Support((by_cost.lower, by_cost.upper), (by_tails.lower, by_tails.upper), lower, upper)
