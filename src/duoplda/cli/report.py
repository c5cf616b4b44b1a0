"""`duoplda report`: one HTML page on one or several systems."""

from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli import _systems as files
from duoplda.cli._common import AllowMissing, Force, Quiet, command_line, files_hash, result, say, usage

EXAMPLES = "duoplda report --scores a.txt --scores b.txt --trials trials --model model.safetensors --out report.html"


def report(
    scores: files.ScoreFiles,
    trials: files.TrialFile,
    out: Annotated[Path, typer.Option(help="The page, e.g. report.html.")],
    model: Annotated[Path | None, typer.Option(help="The model, for its sizes and shares of variance.")] = None,
    channels: Annotated[Path | None, typer.Option(help="Channels of the test recordings (utt2channel).")] = None,
    embeddings: Annotated[Path | None, typer.Option(help="Recordings: are they like MODEL's training data?")] = None,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Speaker recognition report",
    p_target: Annotated[float, typer.Option(help="Prior of a target, where the sliders start.")] = 0.01,
    c_miss: files.CostMiss = 1.0,
    c_fa: files.CostAlarm = 1.0,
    speakers: files.Speakers = None,
    enroll: files.Enroll = None,
    bootstrap: files.Resamples = 200,
    seed: files.Seed = 0,
    allow_missing: AllowMissing = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Write one self-contained HTML page: metrics, curves, sliders for the prior and the costs, worst trials.

    If --speakers tells who speaks on both sides, the metrics get 95 % intervals. Each further column of the trials is a
    condition with a table of its own, and so is the channel of the test recordings (--channels). With --embeddings the
    page tells how far the recordings of the trials are from MODEL's training data, and with --channels too how well
    MODEL infers them.
    """
    from duoplda.cli.convert import load_model
    from duoplda.io import check_output, read_map, read_recordings, source_files
    from duoplda.report import inferred_kinds, write_report

    if embeddings and not model:
        usage("--embeddings needs --model: recordings are compared with what it was trained on")
    inputs = [*scores, trials, model, speakers, enroll, channels, *(source_files(embeddings) if embeddings else [])]
    check_output(out, force, inputs=inputs)
    chain = load_model(model)[0] if model else None
    data = files.read_matched(scores, trials, allow_missing)
    more: dict[str, Any] = {name: column.values for name, column in data.trials.conditions.items()}
    known = read_map(channels, "channel") or {}
    if known:
        more["channel of the test"] = [known.get(t, "unknown") for t in data.trials.test.values.tolist()]
    options: dict[str, Any] = {"p_target": p_target, "costs": (c_miss, c_fa), "bootstrap": bootstrap, "seed": seed}
    options |= {"title": title, "commands": [command_line()], "hashes": files_hash(inputs), "progress": not quiet}
    options |= {"trials": (data.trials.enroll.values, data.trials.test.values), "conditions": more, "force": force}
    options["speakers"] = files.read_sides(data, speakers, enroll)
    options["kinds"] = inferred_kinds(chain, read_recordings(embeddings), known) if embeddings and known else None
    counts: dict[str, Any] = {"trials left out, without a score": data.n_left_out} if data.n_left_out else {}
    if embeddings:
        counts |= files.domain_of(chain, read_recordings(embeddings), data.trials, enroll)
    options["data_counts"] = counts
    write_report(out, data.systems, data.target, model_summary=chain.plda_ if chain else None, **options)
    say(f"{len(data.systems)} systems on {len(data.target):,} trials; open it in a browser")
    result(str(out))
