"""Whether a calibration by the structure of trials, which has six parameters, is worth them.

A single scale and offset are simpler, and are kept unless the calibration by structure lowers the cost of trials
between speakers who were left out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import reproducible
from duoplda.data.labels import Ints
from duoplda.evaluation.calibration import StructureCalibration
from duoplda.selection.cost import Floats, calibrate, trial_losses
from duoplda.trials.structure import Structure


class StructuredTrials(NamedTuple):
    """Trials (n,) between held-out speakers, with their structure and the fold of their speakers."""

    scores: Floats
    target: NDArray[np.bool_]
    weight: Floats  # 1 for targets
    structure: Structure
    fold: Ints
    speaker: Ints  # who enrols

    def losses(self, llr: Floats, priors: tuple[float, ...]) -> Floats:
        """What each trial adds to the cost of the ratios `llr`."""
        share = np.where(self.target, self.weight / self.weight[self.target].sum(), 0.0)
        share = np.where(self.target, share, self.weight / self.weight[~self.target].sum())
        return share * np.where(self.target, *(trial_losses(llr, target, priors) for target in (True, False)))


@reproducible()
def by_structure(trials: StructuredTrials, priors: tuple[float, ...]) -> tuple[StructureCalibration, float] | None:
    """The calibration by structure and its cost; None where a single scale and offset do as well.

    Each fold is calibrated by what is learned from the others, with structure and without. What structure saves must
    exceed its standard error over speakers.
    """
    folds = np.unique(trials.fold)
    if len(folds) < 2 or not trials.structure.expected.min() > 0:
        return None
    scores, target, weight, structure, *_ = trials

    def learnt(rows: NDArray[np.bool_]) -> tuple[StructureCalibration, Floats]:
        """The calibration by structure that fits some trials best, and what each of all trials then costs."""
        expected, alike = (values[rows] for values in structure)
        fitted = StructureCalibration(priors).fit(
            scores[rows], target[rows], weight[rows], expected=expected, alike=alike
        )
        return fitted, trials.losses(fitted.transform(scores, *structure), priors)

    saved = np.zeros(len(scores))
    for fold in folds:
        held = trials.fold == fold
        tar = target & ~held
        non = ~target & ~held
        scale, offset = calibrate(scores[tar], scores[non], priors, weight[non])[1]
        saved[held] = (trials.losses(scale * scores + offset, priors) - learnt(~held)[1])[held]
    _, speaker = np.unique(trials.speaker, return_inverse=True)
    by_speaker = np.bincount(speaker.reshape(-1), saved)
    M = len(by_speaker)
    if M < 2 or by_speaker.mean() <= by_speaker.std(ddof=1) / np.sqrt(M):
        return None
    fitted, losses = learnt(np.ones_like(target))
    return fitted, float(losses.sum())
