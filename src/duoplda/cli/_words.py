"""Models, adaptations, clusterings and answers as lines of text."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result_json, table
from duoplda.errors import printable


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """The summary of a model as lines of text."""
    data = summary["data"]
    fit = summary["training"]
    lines = [
        "steps: " + " -> ".join(summary["steps"]),
        f"dimensions: {summary['n_features_in']} in, {summary['n_dimensions']} in the PLDA; "
        f"{summary['n_speaker_factors']} speaker and {summary['n_session_factors']} session factors",
        "variance: " + ", ".join(f"{name} {100 * share:.1f} %" for name, share in summary["variance_shares"].items()),
    ]
    if len(summary["channels"]) > 1:
        for kind, (share, noise) in zip(summary["channels"], summary["channel_noise"], strict=True):
            part = f"{100 * share:.1f} % of the recordings, noise {100 * noise:.1f} % of their variance"
            lines.append(f"kind of channel {kind}: {part}")
    if data:
        lines.append("trained on: " + ", ".join(f"{n:,} {what}" for what, n in data.items()))
    if fit:
        state = "converged" if fit["converged"] else "not converged"
        last = f", {fit['log_likelihood_per_recording']:.4f} nats per recording" if data else ""
        lines.append(f"EM: {fit['n_iter']} iterations, {state}{last}")
    if summary["shrinkage"]:
        lines.append("shrinkage: " + ", ".join(f"{name} {amount:g}" for name, amount in summary["shrinkage"].items()))
    lines += _choice_lines(summary)
    if domain := summary.get("domain"):
        recordings = f"{domain['n_recordings']:,} recordings of {domain['n_speakers']:,} speakers"
        end = "within it" if domain["within"] else "beyond it: ratios may mislead, see `duoplda adapt`"
        distance = f"squared distance {domain['distance']:.4g}, limit {domain['limit']:.4g}"
        lines.append(f"domain: {distance} for {recordings}: {end}")
    for one in summary.get("quality", ()):
        count = f"{one['outside']:,} of {one['recordings']:,} outside of {one['low']:.4g} to {one['high']:.4g}"
        lines.append(f"quality: {one['measure']}: median {one['median']:.4g}, {count}")
    if summary.get("adapted"):
        lines += adaptation_lines(summary["adapted"])
    lines += [f"{name} of this model: {summary[name]}" for name in ("sha256", "fingerprint") if name in summary]
    lines += _origin_lines(summary["provenance"])
    return [printable(line) for line in lines]  # names and texts come from the file, and may hold control characters


def voice_lines(summary: Mapping[str, Any]) -> list[str]:
    """A file of enrolled speakers as lines of text: how many there are, the model, and a line for each."""
    enrolled = summary["enrolled"]
    rows = [[name, *(f"{n:,}" for n in counts.values())] for name, counts in enrolled.items()]
    sums = ", ".join(f"{sum(c[what] for c in enrolled.values()):,} {what}" for what in ("sessions", "recordings"))
    return [
        f"enrolled: {len(enrolled):,} speakers, {sums}",
        f"fingerprint of the model that enrolled them: {summary['model']}",
        f"sha256 of this file: {summary['sha256']}" if "sha256" in summary else f"kept: {summary['keep']}",
        table([["speaker", "sessions", "recordings"], *rows]),
    ]


def case_lines(numbers: Mapping[str, Any]) -> list[str]:
    """The result of a case as lines of text."""
    words = numbers["words"]
    lines = [words["sentence"], words["interval"], words["verbal"], words["posterior"]]
    return [printable(line) for line in lines if line is not None]


def change_line(action: str, voices: Sequence[Mapping[str, Any]]) -> str:
    """A line that says that a registry was changed, and which voices the change was about."""
    names = ", ".join(f"{voice['name']} ({voice['n_sessions']:,} sessions)" for voice in voices[:10])
    more = f", ... ({len(voices):,} in all)" if len(voices) > 10 else ""
    return f"{action}: done" + (f": {names}{more}" if voices else "")


def registry_lines(voices: Sequence[Mapping[str, Any]]) -> list[str]:
    """The voices of a registry as lines of text, with the sessions of those that come with them."""
    rows = [["voice", "sessions", "recordings", "changed", "by"]]
    for voice in voices:
        counts = [f"{voice[what]:,}" for what in ("n_sessions", "n_recordings")]
        rows.append([voice["name"], *counts, voice["changed"][:16], voice["by"] or "-"])
    lines = [table(rows)]
    for voice in voices:
        if voice["sessions"]:
            parts = [["session", "recordings", "added", "by"]]
            for part in voice["sessions"]:
                parts.append([part["name"], f"{part['n_recordings']:,}", part["added"][:16], part["by"] or "-"])
            lines += ["", table(parts)]
    return lines


def answer_lines(answers: Mapping[str, Mapping[str, Any]], note: Callable[[str], None]) -> list[str]:
    """Answers as a line for each recording; a note says once that recordings are unlike the training data."""
    warnings = [answer["domain_warning"] for answer in answers.values() if answer["domain_warning"]]
    if warnings:
        note(f"{len(warnings):,} of {len(answers):,}: {warnings[0]}")
    lines = []
    for test, answer in answers.items():
        decided = answer["name"] if answer["decision"] == "accept" else f"({answer['decision']})"
        ranked = [f"{c['name']} {c['posterior']:.4f} ({c['llr']:+.2f})" for c in answer["candidates"]]
        lines.append("\t".join([test, decided, f"somebody else {answer['someone_else']:.4f}", *ranked]))
    return lines


def _choice_lines(summary: Mapping[str, Any]) -> list[str]:
    """The lines on what held-out trials chose, and on the calibration."""
    lines = []
    ranked = summary["model_costs"]
    if ranked:
        best, *others = (f"{name} {cost:.4f}" for name, cost in ranked.items())
        what = "held-out speakers, lower is better" if summary["cost"] is None else "cost of held-out trials"
        lines.append(f"model: {next(iter(ranked))}, the best by {what}: {best}, then {', '.join(others)}")
    if tried := summary["channel_costs"]:
        costs = ", ".join(f"{K}: {cost:.4f}" for K, cost in tried.items())
        lines.append(f"kinds of channels learnt: {len(summary['channels'])}, by the cost of each number ({costs})")
    if summary["cost"] is not None:
        scales = ", ".join(f"{name} {scale:g}" for name, scale in summary["scales"].items())
        lines.append(f"held-out trials: cost {summary['cost']:.4f} (1: no information)")
        lines.append(f"for ratios alone, covariances are scaled: {scales}")
    if told := summary["occasions"]:
        worth = f"so that {told['sessions']} of them count as {told['count_as']:.3g}"
        lines.append(f"sessions of one occasion: a correlation of {told['correlation']:g}, {worth}")
    if summary["calibration"]:
        known = summary["calibration_values"]
        if "one_kind_scale" in known:
            lines += structure_lines(known)
            return lines
        values = ", ".join(f"{name} {known[name]:.4g}" for name in ("scale", "offset") if name in known)
        name = known.get("title", summary["calibration"])
        lines.append(f"calibration: {name}" + (f": {values}" if values else ""))
        if "bounds" in known:
            lines.append(f"  {bounds_line(known)}")
    return lines


def bounds_line(known: Mapping[str, Any]) -> str:
    """A line on the bounds within which a calibration keeps ratios."""
    lower, upper = (known[name] / math.log(10) for name in ("lower", "upper"))
    return f"ratios are kept within 10^{lower:.2f} .. 10^{upper:.2f}, which its trials support ({known['bounds']})"


def structure_lines(known: Mapping[str, float]) -> list[str]:
    """Lines on a calibration by the structure of trials."""
    ends = "; ".join(
        f"scale {known[f'scale_at_{end}']:.4g}, offset {known[f'offset_at_{end}']:.4g} where {known[end]:.3g} nats are "
        "expected of one speaker"
        for end in ("least", "most")
    )
    kinds = f"scale times {known['one_kind_scale']:.4g}, offset plus {known['one_kind_offset']:.4g}"
    return [
        f"calibration by the structure of trials: {ends}",
        f"  where both sides are of one kind of channels: {kinds}",
    ]


def adaptation_lines(story: Mapping[str, Any]) -> list[str]:
    """`Backend.adapted_` as lines of text; earlier adaptations come last."""
    counts = ", ".join(f"{n:,} {what}" for what, n in story["target"].items())
    why = story["reasons"]
    lines = [f"adapted to: {counts} (method {story['method']}: {why['method']})"]
    who = next((what for what in ("clusters", "speakers", "sessions") if what in story["target"]), "recordings")
    moved = f"the mean went {100 * story['centre']:.1f} % of the way ({why['centre']})"
    lines.append(f"target: at a squared distance of {story['distance']:.4g} from the source; {moved}")
    for key, what in (("chosen", f"levels that held-out {who} choose"), ("shares", "shares of the target")):
        if story.get(key):
            shares = ", ".join(f"{name} {share:.3g}" for name, share in story[key].items())
            lines.append(f"{what}: {shares}" + f" ({why['shares']})" * (key == "shares"))
    for tried in story.get("partitions", ()):
        clusters = f"{tried['clusters']:,} clusters, cost of held-out trials {tried['cost']:.4f}"
        lines.append(f"partition by {tried['by']}, trust {tried['trust']:g}: {clusters}")
    fit = story["calibration"]
    values = "".join(f"{name} {fit[name]:.4g}, " for name in ("scale", "offset", "cost") if name in fit)
    lines.append(f"calibration after adaptation: {values}{fit['reason']}")
    lines += [f"note: {note}" for note in story["notes"]]
    if "before" in story:
        lines += [f"before that, {line}" for line in adaptation_lines(story["before"])]
    return lines


def _origin_lines(provenance: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Lines on where a model comes from; those on an adaptation begin with that word."""
    lines = []
    for name, value in provenance.items():
        if name in ("adaptation", "before") and isinstance(value, dict):
            lines += _origin_lines(value, f"{prefix}{name} ")
        elif isinstance(value, dict):
            lines += [f"{prefix}{name}: {key} {text}" for key, text in value.items()]
        elif value is not None:
            lines.append(f"{prefix}{name}: {value}")
    return lines


def present_clusters(summary: Mapping[str, Any], run: Run) -> None:
    """Print how many speakers there are and which clusters are doubtful, as notes or as JSON."""
    if run.json:
        result_json({"out": str(run.given["out"]), **summary})
        return
    known = f", {summary['known']:,} of them known" if summary["known"] else ""
    kinds = ("segments", "local speakers", "recordings", "sessions", "speakers")
    counts = ", ".join(f"{summary[kind]:,} {kind}" for kind in kinds if kind in summary)
    lines = [f"{counts}{known}: {run.given['out']}"]
    if numbers := summary["number_posterior"]:
        likely = sorted(numbers, key=numbers.__getitem__, reverse=True)[:5]
        lines.append("probable numbers of speakers: " + ", ".join(f"{k} ({100 * numbers[k]:.0f} %)" for k in likely))
    if summary["weak_merges"]:
        lines.append("weakest speakers, and nats that splitting them would lose:")
        lines += [f"  {doubt['speaker']}  {doubt['nats']:.1f}" for doubt in summary["weak_merges"]]
    if summary["near_pairs"]:
        lines.append("nearest pairs of speakers, and nats that merging them would gain:")
        lines += [f"  {doubt['speaker']} {doubt['other']}  {doubt['nats']:.1f}" for doubt in summary["near_pairs"]]
    run.note("\n".join(lines))
