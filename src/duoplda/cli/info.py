"""`duoplda info`: what is in a model file, in words."""

from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli import _adapted
from duoplda.cli._common import Json, result, result_json, usage
from duoplda.cli._voices import Ids
from duoplda.errors import DuopldaError, printable

EXAMPLES = """duoplda info model.safetensors
duoplda info model.safetensors --json
duoplda info model.safetensors --embeddings eval.scp --speakers utt2spk"""


def info(
    model: Annotated[Path, typer.Argument(help="A model that `duoplda train` wrote.")],
    embeddings: Annotated[Path | None, typer.Option(help="Recordings: are they like the training data?")] = None,
    ids: Ids = None,
    speakers: Annotated[Path | None, typer.Option(help="utt2spk; with fewer speakers the limit is higher.")] = None,
    json: Json = False,
) -> None:
    """Print what is in a model: its steps, its sizes, what it was trained on, and how.

    With --embeddings also how far these are from the training data: beyond the limit, ratios may mislead, and the model
    should be adapted. Without --speakers each recording counts as a speaker of its own, and the limit is too low where
    there are only a few speakers.
    """
    if embeddings is None and (ids is not None or speakers is not None):
        usage("--ids and --speakers are about recordings: give --embeddings")
    from duoplda.estimators.backend import Backend

    chain = Backend.load(model)
    summary = chain.summary()
    if embeddings is not None:
        summary["domain"] = _domain(chain, embeddings, ids, speakers)
    if json:
        result_json(summary)
    else:
        result("\n".join(words(summary)))


def _domain(chain: Any, embeddings: Path, ids: str | None, speakers: Path | None) -> dict[str, Any]:
    """How far recordings are from the training data of a chain; with speakers, those whose speaker is known."""
    from duoplda.estimators import domain
    from duoplda.io import read_map, read_recordings

    known = read_map(speakers, "speaker")
    seen, names = domain.look(chain, read_recordings(embeddings, ids=ids), None if known is None else [*known])
    if not seen.n:
        raise DuopldaError(
            f"{embeddings}: no recording of it {f'is in {speakers}' if speakers else 'can be summed up'}"
        )
    found = domain.measure(chain, seen, seen.n if known is None else len({known[name] for name in names.tolist()}))
    return {**found._asdict(), "within": found.within}


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
    data = summary["data"]
    shares = summary["variance_shares"]
    fit = summary["training"]
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
    if found := summary.get("domain"):
        of = f"{found['n_recordings']:,} recordings of {found['n_speakers']:,} speakers"
        end = "within it" if found["within"] else "beyond it: ratios may mislead, see `duoplda adapt`"
        lines.append(f"domain: squared distance {found['distance']:.4g}, limit {found['limit']:.4g} for {of}: {end}")
    if summary.get("adapted"):
        lines += _adapted.words(summary["adapted"])
    lines += _adapted.origin(summary["provenance"])
    return [printable(line) for line in lines]  # names and texts in it come from the file
