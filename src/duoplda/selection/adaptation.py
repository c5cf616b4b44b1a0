"""What is chosen by speakers who are left out of an adaptation: shares of the target, a calibration, a partition.

Speakers of the target (or clusters of its sessions that stand for speakers) are divided into folds. Each fold in turn
is left out: the model that is adapted to the others says how likely the fold is, or scores trials between its speakers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from duoplda.arrays import Array, put
from duoplda.model.adaptation import Levels, SessionShares, Target, between, like
from duoplda.model.estep import EStep
from duoplda.model.parameters import Model
from duoplda.model.shrinkage import Scales, scaled
from duoplda.model.statistics import Statistics
from duoplda.selection.cost import best_offset
from duoplda.selection.cost import calibrate as lowest_cost
from duoplda.selection.cost import cost as decision_cost
from duoplda.selection.decision import HeldOutTrials, TrialOptions

Floats = NDArray[np.float64]

# Limits of a calibration: a dozen speakers of the target may well have few errors among their trials, and ratios must
# not become larger, or be shifted by more than 4 nats, on their word alone.
SCALE_LIMITS = (0.1, 1.0)
OFFSET_LIMIT = 4.0
# The share of the noise up to which a target is taken to be like the source. Held-out speakers chose .1 and .2 on a
# corpus like the source (so762), .4 and .5 elsewhere (cvau, amnist).
LIKE_SOURCE = 0.25


def have_folds(stats: Statistics) -> bool:
    """Whether there are speakers to leave out, and others to adapt to."""
    return sum(len(fold.speaker_ids) > 0 for fold in stats.folds) > 1


def _regrouped(stats: Statistics, turn: int = 0) -> Statistics:
    """The statistics with folds of three speakers or more, at most five of them, in one of several ways (`turn`)."""
    return stats.regrouped(int(np.clip(len(stats.speaker_ids) // 3, 2, 5)), turn)


def _left_out(stats: Statistics) -> Iterator[tuple[Statistics, Statistics]]:
    """Each fold, and the others together."""
    folds = [replace(fold, sample=None) for fold in stats.folds]
    for i, fold in enumerate(folds):
        yield fold, Statistics.sum([other for j, other in enumerate(folds) if j != i])


# -- shares of the target


def choose_shares(levels: Levels, stats: Statistics, k: float) -> SessionShares:
    """The shares of the target under which speakers (or clusters) that are left out are the most likely.

    Where each session is a speaker, held-out sessions tell of the noise alone: the other share is half as large. Where
    the noise is not told apart, all levels move with the total covariance, by one share. Where all speakers are in one
    fold nothing is chosen, and the shares are 0.
    """
    if not have_folds(stats):
        return SessionShares(0.0, 0.0)
    noise_shares = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    both_shares = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)
    parts = []
    for fold, others in _left_out(_regrouped(stats)):
        parts.append((EStep(levels.fitting(fold)), Target.of(levels.fitting(others))))
    values: dict[SessionShares, float] = {}

    def value(shares: SessionShares) -> float:
        if shares not in values:
            models = ((e_step, between(levels, target, shares, k)) for e_step, target in parts)
            values[shares] = sum(e_step.ln_likelihood(_placed(levels, model, e_step)) for e_step, model in models)
        return values[shares]

    if any(target.noise is None or target.both is None for _, target in parts):
        return max((SessionShares(share, share) for share in noise_shares), key=value)
    if stats.n_sessions == stats.n_speakers:
        return max((SessionShares(share, share / 2) for share in noise_shares), key=value)
    best = SessionShares(0.2, 0.1)
    before = None
    while best != before:
        before = best
        best = max((best._replace(noise=share) for share in noise_shares), key=value)
        best = max((best._replace(both=share) for share in both_shares), key=value)
    return best


def _placed(levels: Levels, model: Model, e_step: EStep) -> Model:
    """An adapted model as the statistics of an E-step take it: with their kinds of channels, and on their device."""
    one = like(model, e_step.stats, levels.priors)
    return replace(one, **{name: put(getattr(one, name), e_step.stats.offset) for name in ("mu", "V", "U", "W")})


def is_like_source(shares: SessionShares, distance: float, usual: float) -> bool:
    """Whether a target is like the source, by the shares that those left out chose, and by the distance of its mean.

    `usual` is the largest distance that recordings like the source have.

    >>> is_like_source(SessionShares(0.2, 0.1), distance=3.0, usual=5.0)
    True
    """
    return shares.noise <= LIKE_SOURCE and distance <= usual


# -- a calibration by trials


class HeldOutCalibration(NamedTuple):
    """Scale and offset of the ratios, from trials of speakers that were left out, and what these trials then cost."""

    scale: float
    offset: float
    cost: float


def calibrate(
    levels: Levels,
    stats: Statistics,
    adapted: Callable[[Statistics], Model],
    transform: Callable[[NDArray[Any], NDArray[Any] | None], Array],
    scales: Scales,
    options: TrialOptions,
) -> HeldOutCalibration | None:
    """The calibration of a model that is adapted to `stats`, from trials of speakers who were left out.

    Parameters
    ----------
    adapted : gives a model that is adapted to some of the statistics
    transform : takes recordings, and their kinds of channels or None, to the space of the PLDA
    scales : those of the ratios
    options : how trials are made, and what they cost

    Speakers are divided into folds in four ways, whose trials are pooled: with one way, the calibration of a dozen
    speakers hangs on who is in which fold. None: no trials can be made.
    """
    infer = levels.model.K > 1 and levels.fitting(stats).K == 1
    options = replace(options, infer_kinds=infer)
    stats = stats.map_samples(lambda X, kind, fold: transform(X, None if infer else kind))
    pooled = []
    for turn in range(4):
        folds = _regrouped(stats, turn)
        models = []
        counts = []
        for _, others in _left_out(folds):
            N = levels.fitting(others).N
            N = N if len(N) == levels.model.K else levels.priors
            models.append(scaled(adapted(others), scales))
            counts.append(N)
        held_out = HeldOutTrials([fold.sample for fold in folds.folds], models, counts, options)
        if held_out.folds:
            pooled.append((*held_out.scores(models.__getitem__)[0], held_out.weight))
    if not pooled:
        return None
    tar, non, weight = (np.concatenate(part) for part in zip(*pooled, strict=True))
    return bounded(tar, non, options.priors, weight)


def bounded(tar: Floats, non: Floats, priors: Sequence[float], weight: Floats) -> HeldOutCalibration:
    """The calibration of lowest cost among those whose scale and offset are within limits.

    The cost is convex: where the best scale is beyond a limit, the best one within is that limit, and so is the offset.
    """
    _, (scale, offset) = lowest_cost(tar, non, priors, weight)
    if not SCALE_LIMITS[0] <= scale <= SCALE_LIMITS[1]:
        scale = float(np.clip(scale, *SCALE_LIMITS))
        offset = best_offset(scale * tar, scale * non, priors, weight)
    cost = partial(decision_cost, tar, non, priors=priors, weight=weight)
    if abs(offset) > OFFSET_LIMIT:
        offset = float(np.clip(offset, -OFFSET_LIMIT, OFFSET_LIMIT))
        between_limits = minimize_scalar(lambda scale: cost(scale, offset), bounds=SCALE_LIMITS, method="bounded").x
        scale = min((*SCALE_LIMITS, float(between_limits)), key=lambda scale: cost(scale, offset))
    return HeldOutCalibration(float(scale), float(offset), cost(scale, offset))


# -- partitions that compete


class PartitionTrial(NamedTuple):
    """What came of an adaptation to the clusters of a partition."""

    cost: float | None  # of held-out trials; None: too few clusters to make any
    covered: float  # the share of sessions that are not alone in their cluster
    n_clusters: int


def best_partition(tried: Sequence[PartitionTrial]) -> int:
    """The place of the partition whose held-out trials cost least; of that with most clusters, if none has a cost.

    Clusters of none but obvious pairs would cost little. So a partition competes only if it leaves not many more
    sessions alone than the others do: if it covers at least three quarters of what the best-covering one covers.

    >>> obvious_pairs = PartitionTrial(0.05, covered=0.3, n_clusters=40)
    >>> best_partition([obvious_pairs, PartitionTrial(0.2, 0.9, 12), PartitionTrial(0.3, 1.0, 10)])
    1
    """
    with_cost = [i for i, trial in enumerate(tried) if trial.cost is not None]
    if not with_cost:
        return max(range(len(tried)), key=lambda i: tried[i].n_clusters)
    most = max(tried[i].covered for i in with_cost)
    return min((i for i in with_cost if tried[i].covered >= 0.75 * most), key=lambda i: tried[i].cost or 0.0)
