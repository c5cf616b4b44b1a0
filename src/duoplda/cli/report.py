"""`duoplda report`: one HTML page on one or several systems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli._common import (
    AllowMissing,
    Force,
    Quiet,
    command_line,
    files_hash,
    refuse_existing,
    result,
    say,
    usage,
)
from duoplda.cli.evaluate import Enroll, Resamples, ScoreFiles, Seed, Speakers, TrialFile, matched, speaker_sides
from duoplda.cli.score import read_map

EXAMPLE = """\b
Example:
  duoplda report --scores ours.txt --scores cosine.txt --trials trials --model model.safetensors --out report.html
"""


def report(
    scores: ScoreFiles,
    trials: TrialFile,
    out: Annotated[Path, typer.Option(help="The page, e.g. report.html.")],
    model: Annotated[Path | None, typer.Option(help="The model, for its summary and shares of variance.")] = None,
    channels: Annotated[Path | None, typer.Option(help="utt2channel: a table by kind of the test recording.")] = None,
    embeddings: Annotated[
        Path | None, typer.Option(help="With --channels and --model: kinds inferred from these against the true ones.")
    ] = None,
    title: Annotated[str, typer.Option(help="Its title.")] = "Speaker recognition report",
    p_target: Annotated[float, typer.Option(help="Prior of a target, where the sliders start.")] = 0.01,
    c_miss: Annotated[float, typer.Option(help="Cost of a miss.")] = 1.0,
    c_fa: Annotated[float, typer.Option(help="Cost of a false alarm.")] = 1.0,
    speakers: Speakers = None,
    enroll: Enroll = None,
    bootstrap: Resamples = 200,
    seed: Seed = 0,
    allow_missing: AllowMissing = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write one self-contained HTML page: metrics, curves, sliders for the prior and the costs, worst trials.

    With the speakers of both sides, 95 % intervals. Further columns of the trials are conditions with a table each, and
    so are the kinds of channels of the test recordings.
    """
    from duoplda.report import write_report

    refuse_existing(out, force)
    if embeddings and not (channels and model):
        usage("--embeddings needs --channels and --model: the kinds inferred are compared with the true ones")
    chain = _model(model) if model else None
    data = matched(scores, trials, allow_missing)
    conditions: dict[str, Any] = {name: column.values for name, column in data.trials.conditions.items()}
    kinds = None
    if channels:
        known = read_map(channels, "channel") or {}
        conditions["channel of the test"] = [known.get(t, "unknown") for t in data.trials.test.values.tolist()]
        kinds = _kinds(chain, embeddings, known) if embeddings else None
    write_report(
        out,
        data.systems,
        data.target,
        trials=(data.trials.enroll.values, data.trials.test.values),
        speakers=speaker_sides(data.trials, speakers, enroll) if speakers else None,
        conditions=conditions,
        kinds=kinds,
        title=title,
        data_counts={"trials left out, without a score": data.n_missing} if data.n_missing else None,
        model_summary=chain.plda_ if chain else None,
        commands=[command_line()],
        hashes=files_hash([*scores, trials, model, speakers, enroll, channels, embeddings]),
        prior=p_target,
        costs=(c_miss, c_fa),
        bootstrap=bootstrap,
        seed=seed,
        progress=not quiet,
        force=force,
    )
    say(f"{len(data.systems)} systems on {len(data.target):,} trials; open it in a browser")
    result(str(out))


def _kinds(chain: Any, embeddings: Path, known: dict[str, str]) -> tuple[list[str], list[str]]:
    """The true kind of each recording that has one, and the kind the model takes it for."""
    import numpy as np

    from duoplda.io import read_embeddings

    true: list[str] = []
    inferred: list[str] = []
    for ids, X in read_embeddings(embeddings).chunks():
        of = np.array([i in known for i in ids.tolist()], bool)
        if of.any():
            best = np.argmax(chain.plda_.channel_posterior(chain.transform(X[of])), axis=1)
            true += [known[i] for i in ids[of].tolist()]
            inferred += chain.plda_.channels_[best].astype(str).tolist()
    return true, inferred


def _model(path: Path) -> Any:
    """A back-end; a model from elsewhere as one without preprocessing."""
    from duoplda.cli.convert import read_model
    from duoplda.estimators.backend import Backend

    found = read_model(path)
    return found.backend if found.backend is not None else Backend.from_plda(found.plda)
