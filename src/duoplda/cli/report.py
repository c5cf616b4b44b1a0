"""`duoplda report`: one HTML page on one or several systems."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli._common import AllowMissing, Force, Quiet, command_line, files_hash, refuse_existing, result, say
from duoplda.cli.evaluate import Enroll, Resamples, ScoreFiles, Seed, Speakers, TrialFile, matched, speaker_sides

EXAMPLE = """\b
Example:
  duoplda report --scores ours.txt --scores cosine.txt --trials trials --model model.safetensors --out report.html
"""


def report(
    scores: ScoreFiles,
    trials: TrialFile,
    out: Annotated[Path, typer.Option(help="The page, e.g. report.html.")],
    model: Annotated[Path | None, typer.Option(help="The model, for its summary and shares of variance.")] = None,
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

    With the speakers of both sides, 95 % intervals. Further columns of the trials are conditions with a table each.
    """
    from duoplda.report import write_report

    refuse_existing(out, force)
    plda = _model(model) if model else None
    data = matched(scores, trials, allow_missing)
    write_report(
        out,
        data.systems,
        data.target,
        trials=(data.trials.enroll.values, data.trials.test.values),
        speakers=speaker_sides(data.trials, speakers, enroll) if speakers else None,
        conditions={name: column.values for name, column in data.trials.conditions.items()},
        title=title,
        data_counts={"trials left out, without a score": data.n_missing} if data.n_missing else None,
        model_summary=plda,
        variance_shares=_shares(plda) if plda is not None else None,
        commands=[command_line()],
        hashes=files_hash([*scores, trials, model, speakers, enroll]),
        prior=p_target,
        costs=(c_miss, c_fa),
        bootstrap=bootstrap,
        seed=seed,
        progress=not quiet,
        force=force,
    )
    say(f"{len(data.systems)} systems on {len(data.target):,} trials; open it in a browser")
    result(str(out))


def _shares(plda: Any) -> Any:
    """Shares of variance; the noise is the mean over the kinds of channels."""
    import numpy as np

    from duoplda.plots import variance_directions

    V, U, W = plda.speaker_loadings_, plda.session_loadings_, plda.noise_precision_
    noise = np.tensordot(plda.channel_priors_, np.linalg.inv(W.reshape(-1, *W.shape[-2:])), 1)
    return variance_directions(V @ V.T, U @ U.T, noise)


def _model(path: Path) -> Any:
    from duoplda.cli.convert import read_model

    return read_model(path).plda
