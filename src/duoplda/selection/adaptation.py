"""What speakers who are left out of an adaptation choose: the levels that move, and the calibration.

Speakers of the target (or clusters of its sessions that stand for speakers) are divided into folds. Each fold in turn
is left out: under the model that is adapted to the others, its likelihood is computed, or trials between its speakers
are scored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from duoplda.arrays import Array
from duoplda.evaluation.calibration import StructureCalibration
from duoplda.model.adaptation import Levels, Move, Target, fitted_to
from duoplda.model.estep import EStep
from duoplda.model.parameters import Model
from duoplda.model.shrinkage import Scales, scaled
from duoplda.model.statistics import Statistics
from duoplda.selection.cost import best_offset
from duoplda.selection.cost import calibrate as lowest_cost
from duoplda.selection.cost import cost as decision_cost
from duoplda.selection.decision import HeldOutTrials, TrialOptions, learn_kappa

Floats = NDArray[np.float64]
Way = Callable[[Statistics], Model]  # a way to adapt: the adapted model, given some of the target's statistics

# Limits of a calibration. The trials of a dozen speakers may have few errors by chance, which is no reason to make
# ratios larger than they are, or to shift them by more than 4 nats.
SCALE_LIMITS = (0.1, 1.0)
OFFSET_LIMIT = 4.0


def have_folds(stats: Statistics) -> bool:
    """Whether there are at least two folds with speakers: one to leave out, and one to adapt to."""
    return sum(len(fold.speaker_ids) > 0 for fold in stats.folds) > 1


def _left_out(stats: Statistics, turn: int = 0) -> Iterator[tuple[Statistics, Statistics]]:
    """Each of two to five folds of about three speakers or more, and the sum of the others, without their samples.

    Another `turn` joins the folds of the statistics in another way.
    """
    folds = stats.regrouped(int(np.clip(len(stats.speaker_ids) // 3, 2, 5)), turn).folds
    bare = [replace(fold, sample=None) for fold in folds]
    for i, fold in enumerate(folds):
        yield fold, Statistics.sum([other for j, other in enumerate(bare) if j != i])


# -- which levels move, and how far


class Gain(NamedTuple):
    """A move of levels, and what it gains over the source in the log-likelihood of speakers who were left out."""

    move: Move
    mean: float  # nats a speaker
    error: float  # its standard error


def moves(target: Target) -> list[Move]:
    """All moves of levels, where those that the target does not tell apart move together. The first moves nothing.

    >>> one_level = Target(np.zeros((1, 1)), np.ones(1), np.eye(1), noise=None)
    >>> [tuple(map(int, move[:3])) for move in moves(one_level)]
    [(0, 0, 0), (1, 1, 1)]
    """
    speaker_apart = target.speaker is not None
    noise_apart = target.noise is not None and (not speaker_apart or target.session is not None)
    possible = []
    for speaker, session, noise in product((False, True), repeat=3):
        together = (speaker_apart or speaker == session) and (noise_apart or session == noise)
        if together:
            possible.append(Move(speaker, session, noise))
    return possible


def choose_levels(
    levels: Levels, stats: Statistics, candidates: Sequence[Move], adapted: Callable[[Target, Statistics, Move], Model]
) -> Gain:
    """The move under which speakers (or clusters) who are left out are likeliest, if it gains more than chance.

    Parameters
    ----------
    stats : with folds
    candidates : the first of them moves nothing
    adapted : gives the model that is adapted to a target, with its statistics, by a move

    Each candidate adapts to four fifths of the speakers, and is judged by the likelihood of the others. That with the
    highest mean gain over the source is chosen if the gain exceeds its standard error over speakers, otherwise the
    source.
    """
    folds = [replace(fold, sample=None) for fold in stats.folds if len(fold.speaker_ids)]
    sizes = np.array([len(fold.speaker_ids) for fold in folds])
    n_groups = min(5, len(folds))
    ln = np.zeros((len(candidates), len(folds)))
    for group in range(n_groups):
        others = levels.fitting(Statistics.sum([fold for i, fold in enumerate(folds) if i % n_groups != group]))
        target = Target.of(others)
        models = [adapted(target, others, move) for move in candidates]
        for i in range(group, len(folds), n_groups):
            e_step = EStep(levels.fitting(folds[i]))
            ln[:, i] = [e_step.ln_likelihood(fitted_to(model, e_step.stats, levels.priors)) for model in models]
    gains = []
    for move, row in zip(candidates, ln, strict=True):
        gains.append(Gain(move, *_mean_by_speaker(row - ln[0], sizes)))
    best = max(gains, key=lambda gain: gain.mean)
    return best if best.mean > best.error else gains[0]


def _mean_by_speaker(values: Floats, sizes: NDArray[Any]) -> tuple[float, float]:
    """The mean over speakers, and its standard error, of values that are sums (F,) over folds of these sizes."""
    mean = values.sum() / sizes.sum()
    deviation = values - mean * sizes
    F = len(sizes)
    return float(mean), float(np.sqrt(F / (F - 1) * (deviation @ deviation)) / sizes.sum())


# -- a calibration by trials


class HeldOutCalibration(NamedTuple):
    """A scale and an offset of ratios, learned from trials of speakers who were left out, and the cost of these trials.

    Where the source's calibration depends on the structure of trials, the two apply to the ratios that it gives.
    """

    scale: float
    offset: float
    cost: float
    cost_before: float  # with the calibration of the source


def saves_enough(calibration: HeldOutCalibration, n_speakers: int) -> bool:
    """Whether a calibration saves more than chance would: a third of a bit in cost, summed over the speakers.

    Two numbers that are fitted to the trials of a few speakers always lower their cost, and may raise that of others.

    >>> calibration = HeldOutCalibration(0.8, 0.0, cost=0.38, cost_before=0.4)
    >>> saves_enough(calibration, 5), saves_enough(calibration, 50)
    (False, True)
    """
    return n_speakers * (calibration.cost_before - calibration.cost) >= 1 / 3


def best_way(tried: Sequence[HeldOutCalibration]) -> int:
    """The index of the way to adapt whose trials cost least; the first is the source, which keeps its calibration.

    >>> source = HeldOutCalibration(0.5, 0.0, cost=0.5, cost_before=0.6)
    >>> near = HeldOutCalibration(0.8, 0.0, cost=0.4, cost_before=0.45)
    >>> best_way([source, near, near._replace(cost=0.38)]), best_way([source, near._replace(cost=0.61)])
    (2, 0)
    """
    # Each further way moves farther, and must save 1 % more: of equally good ways, the one nearest to the source.
    costs = [tried[0].cost_before, *(way.cost * 1.01**i for i, way in enumerate(tried[1:]))]
    return int(np.argmin(costs))


@dataclass(frozen=True, eq=False)
class LeftOut:
    """All that is needed to leave out speakers of an adaptation in turn, and to score trials between them."""

    levels: Levels
    stats: Statistics  # with folds, and samples of these
    ways: Sequence[Way]
    # of recordings and their kinds, to vectors as the PLDA takes them
    transform: Callable[[NDArray[Any], NDArray[Any] | None], Array]
    scales: Scales  # of the model of the ratios
    options: TrialOptions  # how trials are made, and the priors of their cost

    def turns(self, across: bool = False) -> Iterator[tuple[HeldOutTrials, list[list[Model]]]]:
        """For each of four divisions into folds: its trials, and by way to adapt the models without each fold.

        With a single division, what is learned from a dozen speakers depends on who is in which fold.
        """
        infer = self.levels.model.K > 1 and self.levels.fitting(self.stats).K == 1
        options = replace(self.options, infer_kinds=infer)
        stats = self.stats.map_samples(lambda X, kind, fold: self.transform(X, None if infer else kind))
        for turn in range(4):
            samples = []
            models: list[list[Model]] = [[] for _ in self.ways]
            counts = []
            for fold, others in _left_out(stats, turn):
                N = self.levels.fitting(others).N
                N = N if len(N) == self.levels.model.K else self.levels.priors
                samples.append(fold.sample)
                counts.append(N)
                for way, adapted in zip(models, self.ways, strict=True):
                    way.append(scaled(adapted(others), self.scales))
            held_out = HeldOutTrials(samples, models[0], counts, options, across=across)
            if held_out.folds:
                yield held_out, models


def calibrate(left_out: LeftOut, before: Any, of_clusters: bool = False) -> list[HeldOutCalibration]:
    """The calibration of each way to adapt, from the pooled trials of all turns; empty if no trials can be made.

    Parameters
    ----------
    before : the calibration of the source, or None. If it depends on the structure of trials, it stays, and a scale and
        an offset of the ratios that it gives are learned.
    of_clusters : whether speakers are clusters, which may be wrong; see `bounded`
    """
    priors = left_out.options.priors
    pooled: list[list[tuple[Floats, Floats, Floats]]] = [[] for _ in left_out.ways]
    by_structure = isinstance(before, StructureCalibration)
    # The limits are those of the scale of uncalibrated ratios.
    limits = tuple(np.array(SCALE_LIMITS) / (np.exp(before.log_scales_[0]) if by_structure else 1.0))
    reference = np.asarray if before is None or by_structure else before.apply
    for held_out, models in left_out.turns():
        scores = held_out.scores(*(way.__getitem__ for way in models))
        for part, way, (tar, non) in zip(pooled, models, scores, strict=True):
            if by_structure:
                of_tar, of_non = held_out.structure(way.__getitem__)
                tar = before.transform(tar, *of_tar)
                non = before.transform(non, *of_non)
            part.append((tar, non, held_out.weight))
    if not pooled[0]:
        return []
    calibrations = []
    for part in pooled:
        tar, non, weight = (np.concatenate(values) for values in zip(*part, strict=True))
        cost_before = decision_cost(reference(tar), reference(non), 1.0, 0.0, priors, weight)
        calibrations.append(HeldOutCalibration(*bounded(tar, non, priors, weight, limits, of_clusters), cost_before))
    return calibrations


def kappa_of_occasions(left_out: LeftOut) -> float | None:
    """The kappa of sessions of one occasion that trials across occasions choose, with the first way to adapt."""
    turns = left_out.turns(across=True)
    return learn_kappa(((trials, models[0].__getitem__) for trials, models in turns), left_out.options.priors)


def bounded(
    tar: Floats,
    non: Floats,
    priors: Sequence[float],
    weight: Floats,
    limits: tuple[float, float] = SCALE_LIMITS,
    of_clusters: bool = False,
) -> tuple[float, float, float]:
    """Scale, offset and cost of the calibration that costs least within limits.

    With clusters, the offset may fall by no more than the scale does. If two clusters are one speaker, there are
    non-targets that score high, which lower the offset and hardly the scale; over-confident ratios lower both. In 20
    drawn targets, a lower offset by clusters made ratios worse by .015 bits, and a higher one better by .09.

    The cost is convex. So where the best scale is beyond a limit, the best one within is that limit; the same holds for
    the offset.
    """
    _, (scale, offset) = lowest_cost(tar, non, priors, weight)
    if not limits[0] <= scale <= limits[1]:
        scale = float(np.clip(scale, *limits))
        offset = best_offset(scale * tar, scale * non, priors, weight)
    cost = partial(decision_cost, tar, non, priors=priors, weight=weight)

    def within(scale: float) -> float:
        least = min(scale - 1, 0.0) if of_clusters else -OFFSET_LIMIT
        return float(np.clip(offset, least, OFFSET_LIMIT))

    if within(scale) != offset:
        between_limits = minimize_scalar(lambda scale: cost(scale, within(scale)), bounds=limits, method="bounded").x
        scale = min((*limits, float(between_limits)), key=lambda scale: cost(scale, within(scale)))
    return float(scale), within(scale), cost(scale, within(scale))


# -- what follows from all of them


class ChosenWay(NamedTuple):
    """Which way to adapt is taken, and what its trials give."""

    way: int  # its place; 0: the source stays as it is
    calibration: HeldOutCalibration | None  # None: that of the source stays
    cost: float  # of trials; 1: they tell nothing, or there are none
    notes: tuple[str, ...]  # why something stays, for people


def decide(
    tried: Sequence[HeldOutCalibration], n_ways: int, n_speakers: int, enough: int, of_clusters: bool = False
) -> ChosenWay:
    """Take the way whose trials cost least, and its calibration where this saves more than chance would.

    Parameters
    ----------
    tried : the calibrations of all ways, the first of which is the source; empty: there are no trials
    n_ways : their number; without trials the last one is taken
    n_speakers, enough : the number of speakers (or clusters), and how many of them calibrate the ratios

    >>> source = HeldOutCalibration(0.5, 0.0, cost=0.5, cost_before=0.6)
    >>> decide([source, source._replace(cost=0.4)], 2, 30, enough=5)[:3]
    (1, HeldOutCalibration(scale=0.5, offset=0.0, cost=0.4, cost_before=0.6), 0.4)
    >>> decide([], 2, 4, enough=5).way
    1
    """
    way = best_way(tried) if tried else min(1, n_ways - 1)
    if not way:
        who = "clusters" if of_clusters else "speakers"
        reason = "likely" if n_ways == 1 else "easy to tell apart"
        note = f"no level that moves makes held-out {who} more {reason}: covariances and calibration stay"
        return ChosenWay(0, None, tried[0].cost_before if tried else 1.0, (note,))
    if not tried or n_speakers < enough:
        note = f"{n_speakers} clusters are too few to calibrate with (at least {enough})"
        return ChosenWay(way, None, tried[way].cost if tried else 1.0, (note,) if of_clusters else ())
    chosen = tried[way]
    if saves_enough(chosen, n_speakers):
        return ChosenWay(way, chosen, chosen.cost, ())
    saved = chosen.cost_before - chosen.cost
    note = f"a calibration by held-out trials would save {saved:.3f} bits: that of the source stays"
    return ChosenWay(way, None, chosen.cost, (note,))
