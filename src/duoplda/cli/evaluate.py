"""`duoplda evaluate`: how good scores, clusters and diarisation are."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli import _partitions as partitions
from duoplda.cli import _systems as files
from duoplda.cli._common import AllowMissing, Force, Json, Quiet, result, result_json, say

EXAMPLES = """duoplda evaluate --scores scores.txt --trials trials --plot det.pdf
duoplda evaluate --scores a.txt --scores b.txt --trials trials --p-target 0.01 --p-target 0.5 --json
duoplda evaluate --clusters utt2spk.tsv --reference utt2spk
duoplda evaluate --clusters found.rttm --reference truth.rttm --collar 0.25"""
HEADS = {"cllr": "Cllr", "min_cllr": "minCllr", "calibration_loss": "calib. loss"}

Priors = Annotated[list[float] | None, typer.Option(metavar="PRIOR", help="Prior of a target; repeatable.  [0.01]")]
Scores = Annotated[list[Path] | None, typer.Option(metavar="FILE", help="Scores; repeat for more systems.")]
Trials = Annotated[Path | None, typer.Option(help="Trials with their truth: model test target|nontarget, ...")]
Definition = StrEnum("Definition", ["rocch", "interpolated", "nearest"])


def evaluate(
    scores: Scores = None,
    trials: Trials = None,
    p_target: Priors = None,
    c_miss: files.CostMiss = 1.0,
    c_fa: files.CostAlarm = 1.0,
    eer: Annotated[Definition, typer.Option(help="Definition of the EER.")] = Definition.rocch,
    speakers: files.Speakers = None,
    enroll: files.Enroll = None,
    bootstrap: files.Resamples = 200,
    seed: files.Seed = 0,
    clusters: partitions.Clusters = None,
    reference: partitions.Reference = None,
    collar: partitions.Collar = 0.0,
    skip_overlap: partitions.SkipOverlap = False,
    uem: partitions.Uem = None,
    plot: Annotated[Path | None, typer.Option(help="DET curves: .pdf, .png or .svg.")] = None,
    json: Json = False,
    allow_missing: AllowMissing = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Print how good scores are, or clusters, or diarisation.

    Of natural-log likelihood ratios (--scores, --trials): EER, minDCF, actDCF, Cllr, minCllr and calibration loss.
    Systems are compared on the same trials; if --speakers tells who speaks on both sides, values get 95 % intervals.

    Of clusters (--clusters, --reference): B-cubed precision, recall and F, purity, coverage, NMI and the number of
    clusters, with 95 % intervals over speakers. Of turns (both files are RTTM): the diarisation error rate.
    """
    turns = {"collar": collar, "skip_overlap": skip_overlap, "uem": uem}
    if clusters or reference or any(turns.values()) or not scores or not trials:
        others = [scores, trials, p_target, speakers, enroll, plot]
        more: dict[str, Any] = {"bootstrap": bootstrap, "seed": seed, "allow_missing": allow_missing, "json": json}
        partitions.evaluate_partition(clusters, reference, others=others, diarization=turns, **more)
        return
    from duoplda.evaluation import metrics
    from duoplda.io import check_output

    check_output(plot, force, inputs=[*scores, trials, speakers, enroll])
    data = files.read_matched(scores, trials, allow_missing)
    sides = files.read_sides(data, speakers, enroll) if bootstrap else None
    point: dict[str, Any] = {"p_target": p_target or [0.01], "c_miss": c_miss, "c_fa": c_fa}
    drawing: dict[str, Any] = {"n_resamples": bootstrap, "seed": seed, "progress": not quiet}
    found = metrics.measure_systems(data.systems, data.target, sides, eer_method=eer.value, **point, **drawing)
    names = metrics.metric_names(point["p_target"])
    n = len(data.target)
    n_targets = int(data.target.sum())
    if plot:
        from duoplda.report import plots

        points = [(p, c_miss, c_fa) for p in point["p_target"]]
        plots.save(plots.det({k: (s, data.target) for k, s in data.systems.items()}, points), plot, force=force)
        say(f"{plot}: DET of {len(found)} system{'s' * (len(found) > 1)}")
    if json:
        counts = {"trials": n, "targets": n_targets, "nontargets": n - n_targets, "missing": data.n_left_out}
        systems: dict[str, Any] = {}
        for (name, row), path in zip(found.items(), scores, strict=True):
            systems[name] = {"file": path, **dict(zip(names, row.estimate, strict=True))}
            if row.low is not None:
                systems[name]["intervals"] = dict(zip(names, zip(row.low, row.high, strict=True), strict=True))
        result_json(counts | {"eer_definition": eer.value, **point, "systems": systems})
        return
    result(f"{n:,} trials: {n_targets:,} target, {n - n_targets:,} non-target")
    heads = [HEADS.get(name, name.replace("_dcf", "DCF")) for name in names[1:]]
    result("\n".join(table(["system", f"EER % ({eer})", *heads], found)))
    if sides:
        result(f"below each value: 95 % interval, {bootstrap} resamples of the speakers")


def table(head: Sequence[str], found: Mapping[str, Any]) -> list[str]:
    """Lines for people: a system in each, its intervals below it."""
    rows = [list(head)]
    for system, row in found.items():
        form = [(100.0, 2)] + [(1.0, 4)] * (len(row.estimate) - 1)  # the EER is a percentage
        rows.append([system, *(f"{k * v:.{n}f}" for (k, n), v in zip(form, row.estimate, strict=True))])
        if row.low is not None:
            ends = zip(form, row.low, row.high, strict=True)
            rows.append(["", *(f"{k * a:.{n}f}..{k * b:.{n}f}" for (k, n), a, b in ends)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([r[0].ljust(widths[0]), *map(str.rjust, r[1:], widths[1:])]) for r in rows]
