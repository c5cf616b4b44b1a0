"""`duoplda evaluate`: how good scores, clusters and diarisation are."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from duoplda.cli import _options as options
from duoplda.cli._options import File, option
from duoplda.cli._terminal import Terminal, result, result_json, table, work_options

if TYPE_CHECKING:
    from duoplda.diarization import DiarizationErrors
    from duoplda.workflows.evaluate import ClusterEvaluation, ScoreEvaluation, TurnEvaluation

EXAMPLES = """duoplda evaluate --scores scores.txt --trials trials --plot det.pdf
duoplda evaluate --scores a.txt --scores b.txt --trials trials --p-target 0.01 --p-target 0.5 --json
duoplda evaluate --clusters utt2spk.tsv --reference utt2spk
duoplda evaluate --clusters found.rttm --reference truth.rttm --collar 0.25"""

Definition = StrEnum("Definition", ["rocch", "interpolated", "nearest"])


def evaluate(
    scores: Annotated[list[Path] | None, options.ScoreFile] = None,
    trials: Annotated[File, option(options.TRIALS_HELP)] = None,
    p_target: Annotated[
        list[float] | None, option("The prior of a target; repeat it for more.  [0.01]", metavar="PRIOR")
    ] = None,
    c_miss: options.CostMiss = 1.0,
    c_fa: options.CostFalseAlarm = 1.0,
    eer: Annotated[
        Definition, option("Which definition of the EER is used; rocch is that on the convex hull.")
    ] = Definition.rocch,
    speakers: options.TestSpeakers = None,
    enroll: options.Enrolment = None,
    bootstrap: options.Resamples = 200,
    seed: options.Seed = 0,
    clusters: Annotated[
        File,
        option("Clusters to evaluate instead of scores: recording and cluster (utt2spk), or RTTM."),
    ] = None,
    reference: Annotated[File, option("The truth about --clusters: recording and speaker (utt2spk), or RTTM.")] = None,
    collar: Annotated[
        float, option("Seconds that are not scored on both sides of a boundary of the reference.", min=0)
    ] = 0.0,
    skip_overlap: Annotated[
        bool, option("Score turns only where at most one person speaks.", "--skip-overlap")
    ] = False,
    uem: Annotated[File, option("Score turns in these regions only: lines `file channel start end`.")] = None,
    plot: Annotated[File, option("A picture of the DET curves to write: .pdf, .png or .svg.")] = None,
    json: options.Json = False,
    allow_missing: options.AllowMissing = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Print how good scores are, or clusters, or diarisation.

    Of natural-log likelihood ratios (--scores, --trials): EER, minDCF, actDCF, Cllr, minCllr and calibration loss.
    Systems are compared on the same trials; if --speakers tells who speaks on both sides, values get 95 % intervals.

    Of clusters (--clusters, --reference): B-cubed precision, recall and F, purity, coverage, NMI and the number of
    clusters, with 95 % intervals over speakers. Of turns (both files are RTTM): the diarisation error rate.
    """
    typed = work_options(locals())
    from duoplda.workflows import evaluate as workflow

    evaluation = workflow.evaluate(**typed, progress=not quiet, note=Terminal(quiet).note)
    if isinstance(evaluation, workflow.ScoreEvaluation):
        point = {"p_target": p_target or [0.01], "c_miss": c_miss, "c_fa": c_fa}
        present_scores(evaluation, eer.value, point, scores or [], bootstrap, json)
    elif isinstance(evaluation, workflow.ClusterEvaluation):
        present_clusters(evaluation, bootstrap, json)
    else:
        present_turns(evaluation, {"collar": collar, "skip_overlap": skip_overlap}, json)


def present_scores(
    evaluation: "ScoreEvaluation", eer: str, point: dict[str, Any], files: list[Path], bootstrap: int, json: bool
) -> None:
    """Print the metrics of systems: a row for each, its intervals below it."""
    names = evaluation.metrics
    n = evaluation.targets + evaluation.nontargets
    if json:
        counts = {"trials": n, "targets": evaluation.targets, "nontargets": evaluation.nontargets}
        systems: dict[str, Any] = {}
        for (name, values), path in zip(evaluation.systems.items(), files, strict=True):
            systems[name] = {"file": path, **dict(zip(names, values.estimate, strict=True))}
            if values.low is not None:
                ends = zip(values.low, values.high, strict=True)
                systems[name]["intervals"] = dict(zip(names, ends, strict=True))
        result_json(counts | {"missing": evaluation.missing, "eer_definition": eer, **point, "systems": systems})
        return
    result(f"{n:,} trials: {evaluation.targets:,} target, {evaluation.nontargets:,} non-target")
    heads = {"cllr": "Cllr", "min_cllr": "minCllr", "calibration_loss": "calib. loss"}
    rows = [["system", f"EER % ({eer})", *(heads.get(name, name.replace("_dcf", "DCF")) for name in names[1:])]]
    for name, values in evaluation.systems.items():
        forms = [(100.0, 2)] + [(1.0, 4)] * (len(names) - 1)  # the EER is a percentage
        cells = zip(forms, values.estimate, strict=True)
        rows.append([name, *(f"{scale * value:.{digits}f}" for (scale, digits), value in cells)])
        if values.low is not None:
            row = [""]
            for (scale, digits), low, high in zip(forms, values.low, values.high, strict=True):
                row.append(f"{scale * low:.{digits}f}..{scale * high:.{digits}f}")
            rows.append(row)
    result(table(rows))
    if evaluation.intervals:
        result(f"below each value: 95 % interval, {bootstrap} resamples of the speakers")


def present_clusters(evaluation: "ClusterEvaluation", bootstrap: int, json: bool) -> None:
    """Print how well clusters of recordings agree with their speakers."""
    metrics = evaluation.metrics
    if json:
        intervals = {name: (value.low, value.high) for name, value in metrics.items() if value.low is not None}
        counts = {"recordings": evaluation.recordings, "missing": evaluation.missing}
        result_json(counts | {name: value.estimate for name, value in metrics.items()} | {"intervals": intervals})
        return
    heads = {
        "b_cubed_precision": "B-cubed precision %",
        "b_cubed_recall": "B-cubed recall %",
        "b_cubed_f": "B-cubed F %",
        "purity": "purity %",
        "coverage": "coverage %",
        "nmi": "NMI",
        "clusters": "clusters found",
        "speakers": "true speakers",
    }
    forms = {"nmi": (1, 4), "clusters": (1, 0), "speakers": (1, 0)}
    rows = [["", "value", "95 % interval" * bool(bootstrap)]]
    for name, value in metrics.items():
        scale, digits = forms.get(name, (100, 2))
        ends = [] if value.low is None else [f"{scale * end:,.{digits}f}" for end in (value.low, value.high)]
        rows.append([heads[name], f"{scale * value.estimate:,.{digits}f}", "..".join(ends)])
    result(f"{evaluation.recordings:,} recordings")
    result(table(rows))
    if bootstrap:
        result(f"intervals: {bootstrap} resamples of the speakers")


def present_turns(evaluation: "TurnEvaluation", options: dict[str, Any], json: bool) -> None:
    """Print the diarisation error rate and its parts, of each file and in all."""
    errors = evaluation.errors
    if json:
        counts = {"files_left_out": evaluation.files_left_out}
        files = {name: error_parts(part) for name, part in errors.files.items()}
        result_json(options | counts | error_parts(errors) | {"files": files})
        return
    rows = [["file", "DER %", "miss s", "false alarm s", "confusion s", "speech s"]]
    for name, part in [*errors.files.items(), ("all", errors)]:
        rate, *seconds = error_parts(part).values()
        rows.append([name, f"{100 * rate:.2f}", *(f"{s:,.2f}" for s in seconds)])
    result(table(rows))


def error_parts(errors: "DiarizationErrors") -> dict[str, float]:
    """The rate and the seconds that it is made of."""
    return {"der": errors.rate, **{name: getattr(errors, name) for name in errors._fields[:4]}}
