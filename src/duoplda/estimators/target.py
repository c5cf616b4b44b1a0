"""What the recordings of a target show before a model is adapted to them: statistics, distances, and how far the mean
is to move.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Device, to_numpy
from duoplda.data.recordings import Recordings
from duoplda.errors import DuopldaError, some
from duoplda.estimators import domain
from duoplda.estimators.preprocessing import Center, through
from duoplda.model import adaptation as levels_of
from duoplda.model import anova
from duoplda.model.adaptation import Levels
from duoplda.model.statistics import Statistics

if TYPE_CHECKING:
    from duoplda.estimators.plda import ScoresTrials

Steps = dict[str, Any]  # fitted steps of preprocessing, by name


@dataclass(eq=False)
class TargetPasses:
    """Passes over the recordings of a target, to which the source is to be adapted.

    Attributes
    ----------
    raw : statistics of the recordings as they are, after `survey`
    domain : the distance of the target from the source, after `survey`
    """

    source: ScoresTrials
    recordings: Recordings | Statistics
    centre: float | None  # how far the mean is to move, if the user says so
    device: Device
    centre_reason: str | None = None  # why the mean moves as far as it does, if its speakers decide

    def __post_init__(self) -> None:
        self.known = self.recordings.known
        plda = self.source.plda_
        self.levels = Levels(plda.model_, to_numpy(plda.channel_priors_))

    def statistics(self, steps: Steps, n_folds: int = 0, recordings: Recordings | None = None) -> Statistics:
        """Statistics of the target, or of some of its recordings with clusters as labels, after some steps.

        If nothing is known of the recordings, they are only their mean and covariance.
        """
        target = recordings or self.recordings
        if isinstance(target, Statistics):
            return target
        transform = partial(through, steps) if steps else None
        if self.known == "nothing" and recordings is None:
            return Statistics.unlabelled(target, transform, device=self.device)
        return Statistics.of(target, transform, n_folds=n_folds, device=self.device)

    def survey(self) -> dict[str, int]:
        """Find the size of the target and the distance of its mean from the source; refuse vectors of no use."""
        steps = self.source.steps_
        plda = self.source.plda_
        raw = self.statistics({})
        n = int(raw.n_recordings)
        wanted = self.source.n_features_in_
        if raw.d != wanted:
            raise DuopldaError(f"the target's vectors have {raw.d} dimensions, the model takes {wanted}")
        mean = _mean(raw)
        variances = np.diagonal(to_numpy(anova.total_covariance(raw)))
        # Rounding leaves a constant column of numbers near m a variance of about (1e-16 m)^2.
        constant = np.flatnonzero(variances <= 1e-24 * (np.abs(mean) + 1e-150) ** 2)
        if len(constant) and n > 1:
            remedy = "are these vectors of the same extractor?"
            raise DuopldaError(f"columns {some(constant)} of the target are constant: {remedy}")
        self.raw = raw
        if domain.whitens(self.source):
            seen = domain.Seen(n, n * (mean - next(iter(steps.values())).mean_))
        else:
            seen = domain.Seen(n, n * (_mean(self.measured()) - to_numpy(plda.mean_)))
        self.domain = domain.measure(self.source, seen, int(raw.n_speakers))
        if not self.domain.distance < 1e30:  # at 1e15 standard deviations, doubles cannot tell recordings apart
            cause = f"the target's mean is at a squared distance of {self.domain.distance:.3g} from the source's"
            raise DuopldaError(f"{cause}: give vectors of the same extractor, on the same scale")
        counts = {"recordings": n}
        if self.known != "nothing":
            counts["sessions"] = int(raw.n_sessions)
        if self.known == "speakers":
            counts["speakers"] = len(raw.speaker_ids)
        return counts

    def measured(self, recordings: Recordings | None = None) -> Statistics:
        """Statistics of the target, or of recordings with other labels, in the space where distances are measured."""
        steps = {} if domain.whitens(self.source) else self.source.steps_
        return self.statistics(steps, 0, recordings) if steps or recordings is not None else self.raw

    def centring(
        self, n_speakers: float | None, stats: Statistics | None = None, scatter: float | None = None
    ) -> tuple[float, Steps]:
        """How far the mean moves, from 0 to 1, and the steps with their centring moved as far.

        A `centre` that the user gave decides. Otherwise, the mean of few speakers is partly their own: it moves as far
        as `n_speakers` allow, and all the way if that is None. `scatter` is how far a mean of this many speakers
        scatters. Without it, the distances between the speakers (or clusters) of `stats`, in the space where distances
        are measured, tell; without these, the speakers of the source do.
        """
        if self.centre is not None:
            k = self.centre
        elif n_speakers is None:
            k = 1.0
        else:
            self.centre_reason = f"a mean of about {n_speakers:.3g} speakers is partly their own"
            if scatter is None:
                scatter = self.scatter_of_speakers(n_speakers) if stats is None else self.scatter_of_mean(stats)
            k = levels_of.centring(self.domain.distance, scatter)
        steps: Steps = {}
        for name, step in self.source.steps_.items():
            if isinstance(step, Center) and k:
                step = _moved_center(step, self.statistics(steps) if steps else self.raw, k)
            steps[name] = step
        return k, steps

    def scatter_of_speakers(self, n_speakers: float) -> float:
        """How far the mean of `n_speakers` scatters if they are like the speakers of the source."""
        levels = self.levels
        T = levels.B + levels.S + np.tensordot(levels.priors, levels.N, 1)
        return float(np.trace(np.linalg.solve(T, levels.B))) / n_speakers

    def scatter_of_mean(self, stats: Statistics) -> float:
        """How far the mean of the speakers of these statistics scatters, by the distances between them."""
        deviations, weights = levels_of.scatter_of_mean(stats)
        squares = [domain.distance(self.source, domain.Seen(1, row)) for row in deviations]
        return float(weights @ squares)


def _mean(stats: Statistics) -> NDArray[np.float64]:
    """(d,) the mean of all recordings."""
    sums = zip(stats.blocks, stats.f, strict=True)
    total = sum(to_numpy(f)[columns] for block, f in sums for _, _, columns in block.parts)
    return to_numpy(stats.offset) + total / stats.n_recordings


def _moved_center(step: Center, stats: Statistics, k: float) -> Center:
    """A centring that is moved by the share k of the way to the target's mean, for each kind that the target has."""
    new = copy(step)
    shift = k * (_mean(stats) - step.mean_)
    new.mean_ = step.mean_ + shift
    new.channel_means_ = step.channel_means_ + shift
    if step.by_channel:
        means = to_numpy(stats.kind_means) + to_numpy(stats.offset)
        for kind, mean in zip(stats.kinds.tolist(), means, strict=True):
            for row in np.flatnonzero(step.channels_ == kind):
                new.channel_means_[row] = step.channel_means_[row] + k * (mean - step.channel_means_[row])
    return new
