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

from duoplda.arrays import Array
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


def _left_out(stats: Statistics, turn: int = 0) -> Iterator[tuple[Statistics, Statistics]]:
    """Each fold of three speakers or more, at most five of them, and the others together, without their samples.

    Another `turn` puts the speakers into folds in another way.
    """
    folds = stats.regrouped(int(np.clip(len(stats.speaker_ids) // 3, 2, 5)), turn).folds
    bare = [replace(fold, sample=None) for fold in folds]
    for i, fold in enumerate(folds):
        yield fold, Statistics.sum([other for j, other in enumerate(bare) if j != i])


# -- shares of the target


def choose_shares(levels: Levels, stats: Statistics, k: float) -> SessionShares:
    """The shares of the target under which speakers (or clusters) that are left out are the most likely.

    Where each session is a speaker, held-out sessions tell of the noise alone: the other share is half as large. Where
    the noise is not told apart, all levels move with the total covariance, by one share. The statistics have folds.
    """
    noise_shares = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    both_shares = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)
    parts = []
    for fold, others in _left_out(stats):
        e_step = EStep(levels.fitting(replace(fold, sample=None)))
        parts.append((e_step, Target.of(levels.fitting(others))))
    values: dict[SessionShares, float] = {}

    def value(shares: SessionShares) -> float:
        if shares not in values:
            values[shares] = 0.0
            for e_step, target in parts:
                model = like(between(levels, target, shares, k), e_step.stats, levels.priors)
                values[shares] += e_step.ln_likelihood(model)
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
        samples = []
        models = []
        counts = []
        for fold, others in _left_out(stats, turn):
            N = levels.fitting(others).N
            N = N if len(N) == levels.model.K else levels.priors
            samples.append(fold.sample)
            models.append(scaled(adapted(others), scales))
            counts.append(N)
        held_out = HeldOutTrials(samples, models, counts, options)
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
