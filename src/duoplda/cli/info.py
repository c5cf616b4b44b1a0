"""`duoplda info`: what is in a model file, in words."""

from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli._common import Json, result, result_json
from duoplda.errors import printable

EXAMPLES = """duoplda info model.safetensors
duoplda info model.safetensors --json"""


def info(
    model: Annotated[Path, typer.Argument(help="A model that `duoplda train` wrote.")], json: Json = False
) -> None:
    """Print what is in a model: its steps, its sizes, what it was trained on, and how."""
    from duoplda.estimators.backend import Backend

    summary = Backend.load(model).summary()
    if json:
        result_json(summary)
    else:
        result("\n".join(words(summary)))


def _choices(summary: dict[str, Any]) -> list[str]:
    """What held-out trials chose, and the calibration."""
    lines = []
    ranked = summary["model_costs"]
    if ranked:
        best, *others = (f"{name} {cost:.4f}" for name, cost in ranked.items())
        what = "held-out speakers, lower is better" if summary["cost"] is None else "cost of held-out trials"
        lines.append(f"model: {next(iter(ranked))}, the best by {what}: {best}, then {', '.join(others)}")
    if tried := summary["channel_costs"]:
        text = ", ".join(f"{K}: {cost:.4f}" for K, cost in tried.items())
        lines.append(f"kinds of channels learnt: {len(summary['channels'])}, by the cost of each number ({text})")
    if summary["cost"] is not None:
        scales = ", ".join(f"{name} {scale:g}" for name, scale in summary["scales"].items())
        lines.append(f"held-out trials: cost {summary['cost']:.4f} (1: no information)")
        lines.append(f"for ratios alone, covariances are scaled: {scales}")
    if summary["calibration"]:
        values = {k: v for k, v in summary["calibration_values"].items() if k in ("scale", "offset")}
        more = ": " + ", ".join(f"{k} {v:.4g}" for k, v in values.items()) if values else ""
        lines.append(f"calibration: {summary['calibration']}{more}")
    return lines


def words(summary: dict[str, Any]) -> list[str]:
    """The summary of a model as lines for people."""
    data, shares, fit = summary["data"], summary["variance_shares"], summary["training"]
    lines = [
        "steps: " + " -> ".join(summary["steps"]),
        f"dimensions: {summary['n_features_in']} in, {summary['n_dimensions']} in the PLDA; "
        f"{summary['n_speaker_factors']} speaker and {summary['n_session_factors']} session factors",
        "variance: " + ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items()),
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
        lines.append("shrinkage: " + ", ".join(f"{k} {v:g}" for k, v in summary["shrinkage"].items()))
    lines += _choices(summary)
    for name, value in summary["provenance"].items():
        if isinstance(value, dict):
            lines += [f"{name}: {k} {v}" for k, v in value.items()]
        elif value is not None:
            lines.append(f"{name}: {value}")
    return [printable(line) for line in lines]  # names and texts in it come from the file
