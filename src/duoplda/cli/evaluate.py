"""`duoplda evaluate`: measure how good scores, clusters and diarisation are."""

import math
from collections.abc import Mapping
from typing import Any

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result, result_json, table

EXAMPLES = """duoplda evaluate --scores scores.txt --trials trials --plot det.pdf
duoplda evaluate --scores a.txt --scores b.txt --trials trials --p-target 0.01 --p-target 0.5 --json
duoplda evaluate --scores a.txt --scores b.txt --trials trials --speakers utt2spk --compare a b
duoplda evaluate --clusters utt2spk.tsv --reference utt2spk
duoplda evaluate --clusters found.rttm --reference truth.rttm --collar 0.25"""


def evaluate(run: Run) -> None:
    """Print how good scores are, or clusters, or diarisation.

    For natural-log likelihood ratios (--scores, --trials): EER, minDCF, actDCF, Cllr, minCllr and calibration loss.
    Whoever decides by the ratios as they are should look at Cllr and actDCF; EER and the minima ignore bad calibration.
    Systems are compared on the same trials. If --speakers says who speaks on both sides, values get 95 % intervals, and
    --compare says whether the difference between two systems may be due to the choice of these speakers.

    For clusters (--clusters, --reference): B-cubed precision, recall and F, purity, coverage, NMI and the number of
    clusters, with 95 % intervals over speakers. For turns (both files are RTTM): the diarisation error rate.
    """
    evaluation = run(progress=not run.quiet)
    if run.json:
        result_json(evaluation)
    elif "systems" in evaluation:
        present_scores(evaluation, run.given["bootstrap"])
    elif "files" in evaluation:
        present_turns(evaluation)
    else:
        present_clusters(evaluation, run.given["bootstrap"])


def present_scores(evaluation: Mapping[str, Any], bootstrap: int) -> None:
    """Print the metrics of systems: a row for each, with its intervals below."""
    counts = f"{evaluation['targets']:,} target, {evaluation['nontargets']:,} non-target"
    result(f"{evaluation['trials']:,} trials: {counts}")
    heads = {"eer": f"EER % ({evaluation['eer_definition']})", "cllr": "Cllr", "min_cllr": "minCllr"}
    heads["calibration_loss"] = "calib. loss"
    rows: list[list[str]] = []
    for system, values in evaluation["systems"].items():
        names = [name for name in values if name not in ("file", "intervals", "support")]
        rows = rows or [["system", *(heads.get(name, name.replace("_dcf", "DCF")) for name in names)]]
        rows.append([system, *(metric(name, values[name]) for name in names)])
        if ends := values.get("intervals"):
            rows.append(["", *("..".join(metric(name, end) for end in ends[name]) for name in names)])
    result(table(rows))
    if len(rows) > 1 + len(evaluation["systems"]):
        result(f"below each value: 95 % interval, {bootstrap} resamples of the speakers")
    present_support(
        {system: values["support"] for system, values in evaluation["systems"].items() if "support" in values}
    )
    if comparison := evaluation.get("comparison"):
        present_comparison(comparison, bootstrap, heads)


def present_support(systems: Mapping[str, Mapping[str, Any]]) -> None:
    """Print which ratios the trials support, in orders of magnitude (log10)."""
    if not systems:
        return
    heads = ["system", "ELUB", "invariance bounds", "devPAV", "misleading %, same speaker", "other speakers"]
    heads += ["strongest", *(f"ECE({p}) bits" for p in next(iter(systems.values()))["ece"])]
    rows = [heads]
    for system, values in systems.items():
        bounds = (
            " .. ".join(order_of_magnitude(end) for end in values[name]) for name in ("elub", "invariance_bounds")
        )
        shares = (f"{100 * values[name]:.2f}" for name in ("of_targets", "of_nontargets"))
        strongest = " .. ".join(order_of_magnitude(values[name]) for name in ("lowest_target", "highest_nontarget"))
        entropies = (f"{bits:.4f}" for bits in values["ece"].values())
        rows.append([system, *bounds, order_of_magnitude(values["dev_pav"]), *shares, strongest, *entropies])
    result(table(rows))
    result("bounds, devPAV and strongest are log10 of ratios: beyond the bounds, these trials support no larger ones")


def present_comparison(comparison: Mapping[str, Any], bootstrap: int, heads: Mapping[str, str]) -> None:
    """Print the differences between two systems, and whether they may be due to the choice of speakers."""
    first, second = comparison["systems"]
    rows = [[f"{first} less {second}", "difference", "95 % interval", ""]]
    for name, values in comparison.items():
        if name == "systems":
            continue
        ends = [values["low"], values["high"]]
        words = f"{first} is better" if ends[1] < 0 else f"{second} is better" if ends[0] > 0 else "not told apart"
        head = heads.get(name, name.replace("_dcf", "DCF"))
        rows.append([head, metric(name, values["difference"]), "..".join(metric(name, end) for end in ends), words])
    result(table(rows))
    result(f"paired differences, {bootstrap} resamples of the speakers; smaller is better")


def order_of_magnitude(llr: float) -> str:
    """A natural-log ratio as its log10."""
    return f"{llr / math.log(10):.2f}"


def metric(name: str, value: float) -> str:
    """A metric of scores: the EER is a percentage."""
    return f"{100 * value:.2f}" if name == "eer" else f"{value:.4f}"


def present_clusters(evaluation: Mapping[str, Any], bootstrap: int) -> None:
    """Print how well clusters of recordings agree with their speakers."""
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
    for name, head in heads.items():
        scale, digits = forms.get(name, (100, 2))
        ends = [f"{scale * end:,.{digits}f}" for end in evaluation["intervals"].get(name, ())]
        rows.append([head, f"{scale * evaluation[name]:,.{digits}f}", "..".join(ends)])
    result(f"{evaluation['recordings']:,} recordings")
    result(table(rows))
    if bootstrap:
        result(f"intervals: {bootstrap} resamples of the speakers")


def present_turns(evaluation: Mapping[str, Any]) -> None:
    """Print the diarisation error rate and its parts, of each file and in all."""
    names = [name for name in evaluation if name not in ("collar", "skip_overlap", "files_left_out", "der", "files")]
    rows = [["file", "DER %", "miss s", "false alarm s", "confusion s", "speech s"]]
    for file, parts in [*evaluation["files"].items(), ("all", evaluation)]:
        rows.append([file, f"{100 * parts['der']:.2f}", *(f"{parts[name]:,.2f}" for name in names)])
    result(table(rows))
