"""Evaluation: how good scores, clusters and diarisation are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from duoplda.diarization import DiarizationErrors, der, is_rttm, read_rttm, read_uem
from duoplda.errors import DuopldaError, OptionsError
from duoplda.evaluation.metrics import BootstrapResult, measure_systems, metric_names
from duoplda.evaluation.partitions import partition_metrics
from duoplda.io import check_output, read_partition
from duoplda.workflows._files import Note, PathLike, missing, silent
from duoplda.workflows._matched import read_matched, read_speaker_sides


@dataclass(frozen=True, eq=False)
class ScoreEvaluation:
    """Metrics of systems on the same trials."""

    metrics: list[str]  # their names, in the order of the values
    systems: Mapping[str, BootstrapResult]
    targets: int
    nontargets: int
    missing: int  # trials that were left out, since some system has no score
    intervals: bool  # whether speakers were resampled


@dataclass(frozen=True, eq=False)
class ClusterEvaluation:
    """Metrics of clusters of recordings."""

    metrics: Mapping[str, Any]  # name -> estimate, low, high
    recordings: int
    missing: int  # recordings that only one of the files has


@dataclass(frozen=True, eq=False)
class TurnEvaluation:
    """Errors of diarisation."""

    errors: DiarizationErrors
    files_left_out: int


def evaluate(
    *,
    scores: Sequence[PathLike] = (),
    trials: PathLike | None = None,
    p_target: Sequence[float] = (),
    c_miss: float = 1.0,
    c_fa: float = 1.0,
    eer: str = "rocch",
    speakers: PathLike | None = None,
    enroll: PathLike | None = None,
    bootstrap: int = 200,
    seed: int = 0,
    clusters: PathLike | None = None,
    reference: PathLike | None = None,
    collar: float = 0.0,
    skip_overlap: bool = False,
    uem: PathLike | None = None,
    plot: PathLike | None = None,
    allow_missing: bool = False,
    force: bool = False,
    progress: bool = False,
    note: Note = silent,
) -> ScoreEvaluation | ClusterEvaluation | TurnEvaluation:
    """Measure scores on trials, clusters against speakers, or turns against turns, whichever the files hold."""
    of_turns = {"collar": collar, "skip_overlap": skip_overlap, "uem": uem}
    of_scores = [scores, trials, p_target, speakers, enroll, plot]
    if scores and trials and not (clusters or reference or any(of_turns.values())):
        check_output(plot, force, inputs=[*scores, trials, speakers, enroll])
        matched = read_matched(scores, trials, allow_missing, note)
        sides = read_speaker_sides(matched, speakers, enroll) if bootstrap else None
        priors = list(p_target) or [0.01]
        point: dict[str, Any] = {"p_target": priors, "c_miss": c_miss, "c_fa": c_fa, "eer_method": eer}
        resampling: dict[str, Any] = {"n_resamples": bootstrap, "seed": seed, "progress": progress}
        systems = measure_systems(matched.systems, matched.target, sides, **point, **resampling)
        if plot is not None:
            from duoplda.report import plots  # Matplotlib is an extra

            curves = {name: (values, matched.target) for name, values in matched.systems.items()}
            plots.save(plots.det(curves, [(p, c_miss, c_fa) for p in priors]), plot, force=force)
            note(f"{plot}: DET of {len(systems)} system{'s' * (len(systems) > 1)}")
        n_targets = int(matched.target.sum())
        counts = n_targets, len(matched.target) - n_targets, matched.n_left_out
        return ScoreEvaluation(metric_names(priors), systems, *counts, intervals=sides is not None)
    if clusters is None or reference is None or any(of_scores):
        what = "`scores` and `trials`, or `clusters` and `reference`"
        raise OptionsError(f"evaluate takes {what}, and the options of one of the two")
    turns = is_rttm(clusters)
    if turns != is_rttm(reference):
        names = (clusters, reference) if turns else (reference, clusters)
        raise DuopldaError(f"{names[0]} is RTTM and {names[1]} is not; give two files of turns, or two of labels")
    if turns:
        return _evaluate_turns(clusters, reference, collar, skip_overlap, uem, allow_missing, note)
    if any(of_turns.values()):
        raise OptionsError(
            "`collar`, `skip_overlap` and `uem` are for turns (RTTM), and these are labels of recordings"
        )
    return _evaluate_clusters(clusters, reference, bootstrap, seed, allow_missing, note)


def _evaluate_clusters(
    clusters: PathLike, reference: PathLike, bootstrap: int, seed: int, allow_missing: bool, note: Note
) -> ClusterEvaluation:
    """How well clusters of recordings agree with their speakers."""
    cluster = read_partition(clusters)
    speaker = read_partition(reference, "speaker")
    without = f"recordings of {clusters} have no speaker", [name for name in cluster if name not in speaker]
    missing(*without, allow_missing, note)
    without = f"recordings of {reference} have no cluster", [name for name in speaker if name not in cluster]
    missing(*without, allow_missing, note)
    ids = [name for name in cluster if name in speaker]
    if not ids:
        raise DuopldaError(f"{clusters} and {reference} have no recording in common; do their ids agree?")
    columns = [cluster[name] for name in ids], [speaker[name] for name in ids]
    measured = partition_metrics(*columns, n_resamples=bootstrap, seed=seed)
    return ClusterEvaluation(measured, len(ids), len({*cluster} ^ {*speaker}))


def _evaluate_turns(
    clusters: PathLike,
    reference: PathLike,
    collar: float,
    skip_overlap: bool,
    uem: PathLike | None,
    allow_missing: bool,
    note: Note,
) -> TurnEvaluation:
    """The diarisation error rate and its parts, of each file and in all."""
    turns = read_rttm(clusters)
    truth = read_rttm(reference)
    regions = read_uem(uem) if uem else None
    known = {*truth.file.names.tolist(), *(regions.file.names.tolist() if regions else ())}
    unknown = np.array([name not in known for name in turns.file.names.tolist()], bool)
    missing(f"files of {clusters} are not in {reference}", turns.file.names[unknown], allow_missing, note)
    turns = turns[~unknown[turns.file.codes]]
    errors = der(turns, truth, collar=collar, skip_overlap=skip_overlap, regions=regions)
    if absent := [name for name in errors.files if name in known - {*turns.file.names.tolist()}]:
        note(f"{len(absent)} files of {reference} have no turns in {clusters} and are missed: {', '.join(absent[:10])}")
    if unscored := len({*truth.file.names.tolist()} - {*errors.files}):
        note(f"{unscored} files of {reference} have no regions in {uem} and are not scored")
    return TurnEvaluation(errors, unscored + int(unknown.sum()))
