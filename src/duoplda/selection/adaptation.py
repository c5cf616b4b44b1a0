"""What is chosen by speakers who are left out of an adaptation: levels that move, a calibration, a partition.

Speakers of the target (or clusters of its sessions that stand for speakers) are divided into folds. Each fold in turn
is left out: the model that is adapted to the others says how likely the fold is, or scores trials between its speakers.
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
Way = Callable[[Statistics], Model]  # to adapt: it gives a model that is adapted to some of the target's statistics

# Limits of a calibration: a dozen speakers of the target may well have few errors among their trials, and ratios must
# not become larger, or be shifted by more than 4 nats, on their word alone.
SCALE_LIMITS = (0.1, 1.0)
OFFSET_LIMIT = 4.0


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


# -- which levels move, and how far


class Gain(NamedTuple):
    """A move of levels, and by how much it makes speakers who were left out more likely than the source does."""

    move: Move
    mean: float  # nats a speaker
    error: float  # its standard error


def moves(target: Target) -> list[Move]:
    """What can be moved; levels that the target does not tell apart move together. The first is the source.

    >>> one_level = Target(np.zeros((1, 1)), np.ones(1), np.eye(1), noise=None)
    >>> [tuple(map(int, move[:3])) for move in moves(one_level)]
    [(0, 0, 0), (1, 1, 1)]
    """
    speaker_apart = target.speaker is not None
    noise_apart = target.noise is not None and (not speaker_apart or target.session is not None)
    found = []
    for speaker, session, noise in product((False, True), repeat=3):
        together = (speaker_apart or speaker == session) and (noise_apart or session == noise)
        if together:
            found.append(Move(speaker, session, noise))
    return found


def choose_levels(
    levels: Levels, stats: Statistics, candidates: Sequence[Move], adapted: Callable[[Target, Statistics, Move], Model]
) -> Gain:
    """The levels whose move makes speakers (or clusters) who are left out more likely than the source does.

    Parameters
    ----------
    stats : with folds
    candidates : the first of them moves nothing
    adapted : gives a model that is adapted to a target, of which statistics are at hand, by moving some levels

    All candidates are adapted to four fifths of the speakers. That with the highest mean gain over the source is taken
    if this gain exceeds its standard error over speakers; otherwise the source stays.
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
    """The mean over speakers of what sums over folds (F,) of so many speakers tell, and its standard error."""
    mean = values.sum() / sizes.sum()
    deviation = values - mean * sizes
    F = len(sizes)
    return float(mean), float(np.sqrt(F / (F - 1) * (deviation @ deviation)) / sizes.sum())


# -- a calibration by trials


class HeldOutCalibration(NamedTuple):
    """Scale and offset of the ratios, from trials of speakers that were left out, and what these trials then cost.

    Where the source's calibration knows the structure of trials, they are of the ratios that it has calibrated.
    """

    scale: float
    offset: float
    cost: float
    cost_before: float  # with the calibration of the source


def saves_enough(calibration: HeldOutCalibration, n_speakers: int) -> bool:
    """Whether a calibration saves what chance would not: a third of a bit over all speakers together.

    Two numbers that are fitted to trials of a few speakers save something always, and may cost more on others.

    >>> calibration = HeldOutCalibration(0.8, 0.0, cost=0.38, cost_before=0.4)
    >>> saves_enough(calibration, 5), saves_enough(calibration, 50)
    (False, True)
    """
    return n_speakers * (calibration.cost_before - calibration.cost) >= 1 / 3


def best_way(tried: Sequence[HeldOutCalibration]) -> int:
    """The place of the way to adapt whose trials cost least; the first is the source, which keeps its calibration.

    >>> source = HeldOutCalibration(0.5, 0.0, cost=0.5, cost_before=0.6)
    >>> near = HeldOutCalibration(0.8, 0.0, cost=0.4, cost_before=0.45)
    >>> best_way([source, near, near._replace(cost=0.38)]), best_way([source, near._replace(cost=0.61)])
    (2, 0)
    """
    # Going twice as far must be worth 1 % of the cost: of ways that are equally good, that nearer the source.
    costs = [tried[0].cost_before, *(way.cost * 1.01**i for i, way in enumerate(tried[1:]))]
    return int(np.argmin(costs))


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Speakers who are left out of an adaptation in turn, and what trials between them are made of."""

    levels: Levels
    stats: Statistics  # with folds, and samples of these
    ways: Sequence[Way]
    transform: Callable[
        [NDArray[Any], NDArray[Any] | None], Array
    ]  # of recordings and their kinds, to the PLDA's space
    scales: Scales  # of the ratios
    options: TrialOptions  # how trials are made, and what they cost

    def turns(self, across: bool = False) -> Iterator[tuple[HeldOutTrials, list[list[Model]]]]:
        """The trials of each division into folds, and for each way the models that have not seen these.

        Speakers are divided in four ways: with one, what a dozen speakers tell hangs on who is in which fold.
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
    """The calibration of each way to adapt, from the pooled trials of all turns; none where no trials can be made.

    Parameters
    ----------
    before : the calibration of the source, or None. Where it knows the structure of trials, what it makes of structures
        stays: learned are a scale and an offset of the ratios that it has calibrated.
    of_clusters : whether speakers are clusters, which may be wrong; see `bounded`
    """
    priors = left_out.options.priors
    pooled: list[list[tuple[Floats, Floats, Floats]]] = [[] for _ in left_out.ways]
    by_structure = isinstance(before, StructureCalibration)
    # Limits are of the scale of raw ratios.
    limits = tuple(np.array(SCALE_LIMITS) / (np.exp(before.log_scales_[0]) if by_structure else 1.0))
    reference = np.asarray if before is None or by_structure else before.apply
    for held_out, models in left_out.turns():
        scores = held_out.scores(*(way.__getitem__ for way in models))
        for part, way, (tar, non) in zip(pooled, models, scores, strict=True):
            if by_structure:
                of_tar, of_non = held_out.structure(way.__getitem__)
                tar, non = before.transform(tar, *of_tar), before.transform(non, *of_non)
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
    """What sessions of one occasion have in common, by trials across occasions of those left out of the first way."""
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
    """Scale and offset of the calibration of lowest cost among those that are within limits, and that cost.

    Two clusters of one speaker make non-targets that score high, which lower the offset and hardly the scale. Ratios
    that are too sure of themselves lower both. So clusters lower the offset by no more than they lower the scale: in 20
    drawn targets whose offset they lowered, that made ratios worse by .015 bits, and where they raised it, better by
    .09.

    The cost is convex: where the best scale is beyond a limit, the best one within is that limit, and so is the offset.
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


class Decision(NamedTuple):
    """Which way to adapt is taken, and what its trials give."""

    way: int  # its place; 0: the source stays as it is
    calibration: HeldOutCalibration | None  # None: that of the source stays
    cost: float  # of trials; 1: they tell nothing, or there are none
    notes: tuple[str, ...]  # why something stays, for people


def decide(
    tried: Sequence[HeldOutCalibration], n_ways: int, n_speakers: int, enough: int, of_clusters: bool = False
) -> Decision:
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
        return Decision(0, None, tried[0].cost_before if tried else 1.0, (note,))
    if not tried or n_speakers < enough:
        note = f"{n_speakers} clusters are too few to calibrate with (at least {enough})"
        return Decision(way, None, tried[way].cost if tried else 1.0, (note,) if of_clusters else ())
    chosen = tried[way]
    if saves_enough(chosen, n_speakers):
        return Decision(way, chosen, chosen.cost, ())
    saved = chosen.cost_before - chosen.cost
    note = f"a calibration by held-out trials would save {saved:.3f} bits: that of the source stays"
    return Decision(way, None, chosen.cost, (note,))
