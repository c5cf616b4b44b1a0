"""Evaluation: how good scores, clusters and diarisation are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from duoplda.diarization import DiarizationErrors, der, is_rttm, read_rttm, read_uem
from duoplda.errors import DuopldaError, OptionsError, some
from duoplda.evaluation.checks import Booleans, Floats
from duoplda.evaluation.matching import Matched
from duoplda.evaluation.metrics import measure, metric_names
from duoplda.evaluation.partitions import partition_metrics
from duoplda.evaluation.resampling import measure_systems, paired_difference
from duoplda.evaluation.support import dev_pav, ece, elub, invariance_bounds, misleading_evidence
from duoplda.io import check_output, read_partition
from duoplda.io.recordings import missing, unlabelled
from duoplda.workflows import option
from duoplda.workflows._files import Columns, Note, PathLike, held_lists, silent
from duoplda.workflows._matched import read_matched, read_speaker_sides
from duoplda.workflows.option import refuse


def evaluate(
    *,
    scores: option.ScoreFiles = (),
    trials: option.TrialsWithTruth = None,
    p_target: option.Priors = (),
    c_miss: option.CostMiss = 1.0,
    c_fa: option.CostFalseAlarm = 1.0,
    eer: option.EerDefinition = "rocch",
    speakers: option.TestSpeakers = None,
    enroll: option.Enrolment = None,
    bootstrap: option.Resamples = 200,
    seed: option.Seed = 0,
    compare: option.Compare = None,
    support: option.Support = False,
    log10: option.Log10 = False,
    clusters: option.Clusters = None,
    reference: option.Reference = None,
    collar: option.Collar = 0.0,
    skip_overlap: option.SkipOverlap = False,
    uem: option.Uem = None,
    plot: option.Plot = None,
    columns: option.Columns = None,
    allow_missing: option.AllowMissing = False,
    strict: option.Strict = False,
    force: option.Force = False,
    progress: bool = False,
    note: Note = silent,
) -> dict[str, Any]:
    """Measure scores on trials, clusters against speakers, or turns against turns, whichever the files hold.

    Returns numbers by name: for scores, of each of the `systems`; for turns, in all and of each of the `files`. With
    `compare`, two names of systems, there is also the paired difference of each metric; with `support`, which ratios
    the trials support.
    """
    of_turns = {"collar": collar, "skip_overlap": skip_overlap, "uem": uem}
    of_scores = [scores, trials, p_target, speakers, enroll, plot, compare, support, log10]
    if scores and trials and not (clusters or reference or any(of_turns.values())):
        check_output(plot, force, inputs=[*scores, trials, speakers, enroll])
        matched = read_matched(scores, trials, columns, allow_missing, note, log10)
        sides = read_speaker_sides(matched, speakers, enroll, columns) if bootstrap else None
        priors = list(p_target) or [0.01]
        point: dict[str, Any] = {"p_target": priors, "c_miss": c_miss, "c_fa": c_fa}
        resampling: dict[str, Any] = {"n_resamples": bootstrap, "seed": seed, "progress": progress}
        if compare is not None:
            differences = _differences(compare, matched, sides, {"eer_method": eer, **point}, resampling)
        measured = measure_systems(matched.systems, matched.target, sides, eer_method=eer, **point, **resampling)
        if plot is not None:
            _plot(plot, matched, [(p, c_miss, c_fa) for p in priors], force, note)
        systems = _numbers_by_system(measured, scores, metric_names(priors))
        if support:
            for name, values in systems.items():
                values["support"] = _support(matched.systems[name], matched.target, priors)
        n = len(matched.target)
        n_targets = int(matched.target.sum())
        counts = {"trials": n, "targets": n_targets, "nontargets": n - n_targets, "missing": matched.n_left_out}
        more = {} if compare is None else {"comparison": {"systems": list(compare), **differences}}
        return {**counts, "eer_definition": eer, **point, "systems": systems, **more}
    if clusters is None or reference is None or any(of_scores):
        what = "`scores` and `trials`, or `clusters` and `reference`"
        raise OptionsError(f"evaluate takes {what}, and the options of one of the two")
    clusters, reference = held_lists(clusters, reference)
    turns = is_rttm(clusters)
    if turns != is_rttm(reference):
        files = (clusters, reference) if turns else (reference, clusters)
        raise DuopldaError(f"{files[0]} is RTTM and {files[1]} is not; give two files of turns, or two of labels")
    if turns:
        return _evaluate_turns(clusters, reference, collar, skip_overlap, uem, allow_missing, note)
    cause = "`collar`, `skip_overlap` and `uem` are for turns (RTTM), and these are labels of recordings"
    refuse(any(of_turns.values()), cause)
    return _evaluate_clusters(clusters, reference, columns, bootstrap, seed, allow_missing, strict, note)


def _numbers_by_system(
    measured: Mapping[str, Any], scores: Sequence[PathLike], names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """The file, the metrics and the intervals of each system."""
    systems: dict[str, dict[str, Any]] = {}
    for (system, values), path in zip(measured.items(), scores, strict=True):
        systems[system] = {"file": path, **dict(zip(names, values.estimate, strict=True))}
        if values.low is not None:
            ends = zip(values.low, values.high, strict=True)
            systems[system]["intervals"] = dict(zip(names, ends, strict=True))
    return systems


def _differences(
    names: tuple[str, str],
    matched: Matched,
    sides: tuple[Any, Any] | None,
    point: dict[str, Any],
    resampling: dict[str, Any],
) -> dict[str, dict[str, float]]:
    """The difference of each metric between the first and the second system, with an interval over speakers."""
    if unknown := [name for name in names if name not in matched.systems]:
        raise OptionsError(f"`compare` names {some(unknown)}; the systems are {some(list(matched.systems))}")
    if sides is None:
        raise OptionsError("`compare` needs `speakers` (and `bootstrap` above 0): differences are tested over speakers")
    first, second = (matched.systems[name] for name in names)
    result = paired_difference(partial(measure, **point), first, second, matched.target, *sides, **resampling)
    ends = zip(result.estimate, result.low, result.high, strict=True)
    return {
        metric: {"difference": float(difference), "low": float(low), "high": float(high)}
        for metric, (difference, low, high) in zip(metric_names(point["p_target"]), ends, strict=True)
    }


def _support(scores: Floats, target: Booleans, priors: list[float]) -> dict[str, Any]:
    """Bounds of the ratios that the trials support (nats), how often ratios mislead, and their cross-entropy (bits)."""
    bounds = {"elub": elub(scores, target), "invariance_bounds": invariance_bounds(scores, target)}
    entropies = {f"{p:g}": ece(scores, target, math.log(p / (1 - p))) for p in priors}
    misleading = misleading_evidence(scores, target)._asdict()
    return {**bounds, "dev_pav": dev_pav(scores, target), **misleading, "ece": entropies}


def _plot(path: PathLike, matched: Matched, points: list[tuple[float, float, float]], force: bool, note: Note) -> None:
    """Write the DET curves of all systems, with the operating points."""
    from duoplda.report import plots  # Matplotlib is an extra

    curves = {name: (values, matched.target) for name, values in matched.systems.items()}
    plots.save(plots.det(curves, operating_points=points), path, force=force)
    note(f"{path}: DET of {len(curves)} system{'s' * (len(curves) > 1)}")


def _evaluate_clusters(
    clusters: PathLike,
    reference: PathLike,
    columns: Columns,
    bootstrap: int,
    seed: int,
    allow_missing: bool,
    strict: bool,
    note: Note,
) -> dict[str, Any]:
    """Measure how well clusters of recordings agree with their speakers."""
    cluster = read_partition(clusters, columns=columns)
    speaker = read_partition(reference, "speaker", columns)
    lack = [name for name in cluster if name not in speaker]
    unlabelled(f"recordings of {clusters} have no speaker", len(lack), lack, strict, note)
    lack = [name for name in speaker if name not in cluster]
    there = f"{clusters} has", cluster
    missing(f"recordings of {reference} have no cluster", lack, allow_missing, note, there)
    ids = [name for name in cluster if name in speaker]
    if not ids:
        raise DuopldaError(f"{clusters} and {reference} have no recording in common; do their ids agree?")
    partitions = [cluster[name] for name in ids], [speaker[name] for name in ids]
    measured = partition_metrics(*partitions, n_resamples=bootstrap, seed=seed)
    counts = {"recordings": len(ids), "missing": len({*cluster} ^ {*speaker})}
    intervals = {name: (value.low, value.high) for name, value in measured.items() if value.low is not None}
    return {**counts, **{name: value.estimate for name, value in measured.items()}, "intervals": intervals}


def _evaluate_turns(
    clusters: PathLike,
    reference: PathLike,
    collar: float,
    skip_overlap: bool,
    uem: PathLike | None,
    allow_missing: bool,
    note: Note,
) -> dict[str, Any]:
    """Measure the diarisation error rate and its parts, of each file and in all."""
    turns = read_rttm(clusters)
    truth = read_rttm(reference)
    regions = read_uem(uem) if uem else None
    known = {*truth.file.names.tolist(), *(regions.file.names.tolist() if regions else ())}
    unknown = np.array([name not in known for name in turns.file.names.tolist()], bool)
    missing(f"files of {clusters} are not in {reference}", turns.file.names[unknown], allow_missing, note)
    turns = turns[~unknown[turns.file.codes]]
    errors = der(turns, truth, collar=collar, skip_overlap=skip_overlap, regions=regions)
    files = {name: _error_parts(part) for name, part in errors.files.items() if not math.isnan(part.rate)}
    empty = [name for name in errors.files if name not in files]
    limits = f" outside the collar of {collar:g} s" * bool(collar) + " outside overlaps" * skip_overlap
    limits += f" in the regions of {uem}" * bool(uem)
    if not files:
        raise DuopldaError(f"{reference}: nothing is scored, as there is no speech{limits}")
    if empty:
        note(f"{len(empty)} files have no speech{limits} and are not scored: {some(empty)}")
    truly = {*truth.file.names.tolist()}
    if absent := [name for name in files if name in truly - {*turns.file.names.tolist()}]:
        note(f"{len(absent)} files of {reference} have no turns in {clusters} and are missed: {some(absent)}")
    if outside := sorted(truly - {*errors.files}):
        note(f"{len(outside)} files of {reference} have no regions in {uem} and are not scored: {some(outside)}")
    n_left_out = len(outside) + len(empty) + int(unknown.sum())
    options = {"collar": collar, "skip_overlap": skip_overlap, "files_left_out": n_left_out}
    return {**options, **_error_parts(errors), "files": files}


def _error_parts(errors: DiarizationErrors) -> dict[str, float]:
    """The error rate, and the seconds of each kind of error and of speech."""
    return {"der": errors.rate, **{name: getattr(errors, name) for name in errors._fields[:4]}}
