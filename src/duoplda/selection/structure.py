"""Whether a calibration that knows the structure of trials is worth its six numbers.

One scale and one offset are simpler, and stay unless trials of speakers who were left out say otherwise.
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
    """Trials (n,) between held-out speakers, their structure, and who was left out where they were scored."""

    scores: Floats
    target: NDArray[np.bool_]
    weight: Floats  # targets count alike
    structure: Structure
    fold: Ints
    speaker: Ints  # who enrols

    def of(self, rows: NDArray[np.bool_]) -> StructuredTrials:
        """Some of the trials."""
        structure = Structure(*(values[rows] for values in self.structure))
        scores, target, weight, _, fold, speaker = self
        return StructuredTrials(scores[rows], target[rows], weight[rows], structure, fold[rows], speaker[rows])

    def losses(self, llr: Floats, priors: tuple[float, ...]) -> Floats:
        """What each trial adds to the cost of some ratios."""
        share = np.where(self.target, self.weight / self.weight[self.target].sum(), 0.0)
        share = np.where(self.target, share, self.weight / self.weight[~self.target].sum())
        return share * np.where(self.target, *(trial_losses(llr, target, priors) for target in (True, False)))


def learn(trials: StructuredTrials, priors: tuple[float, ...]) -> StructureCalibration:
    """The calibration by structure whose decisions cost least."""
    scores, target, weight, structure, *_ = trials
    return StructureCalibration(priors).fit(scores, target, weight, expected=structure.expected, alike=structure.alike)


@reproducible()
def by_structure(trials: StructuredTrials, priors: tuple[float, ...]) -> tuple[StructureCalibration, float] | None:
    """The calibration by structure and its cost; None where one scale and one offset do as well.

    Each fold is calibrated by what the others teach, with structure and without. What structure saves must exceed its
    standard error over speakers.
    """
    folds = np.unique(trials.fold)
    if len(folds) < 2 or not trials.structure.expected.min() > 0:
        return None
    saved = np.zeros(len(trials.scores))
    for fold in folds:
        held = trials.fold == fold
        teaching = trials.of(~held)
        fitted = learn(teaching, priors)
        non = ~teaching.target
        affine = calibrate(teaching.scores[teaching.target], teaching.scores[non], priors, teaching.weight[non])[1]
        structured = trials.losses(fitted.transform(trials.scores, *trials.structure), priors)
        saved[held] = (trials.losses(affine[0] * trials.scores + affine[1], priors) - structured)[held]
    _, speaker = np.unique(trials.speaker, return_inverse=True)
    by_speaker = np.bincount(speaker.reshape(-1), saved)
    M = len(by_speaker)
    if M < 2 or by_speaker.mean() <= by_speaker.std(ddof=1) / np.sqrt(M):
        return None
    fitted = learn(trials, priors)
    return fitted, float(trials.losses(fitted.transform(trials.scores, *trials.structure), priors).sum())
