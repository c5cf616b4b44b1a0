"""`duoplda report`: one HTML page on one or several systems."""

from pathlib import Path
from typing import Annotated

from duoplda.cli import _options as options
from duoplda.cli._options import File, option
from duoplda.cli._terminal import Terminal, command_line, result, work_options

EXAMPLES = "duoplda report --scores a.txt --scores b.txt --trials trials --model model.safetensors --out report.html"


def report(
    scores: Annotated[list[Path], options.ScoreFile],
    trials: Annotated[Path, option(options.TRIALS_HELP)],
    out: Annotated[Path, option("The page to write, e.g. report.html.")],
    model: Annotated[File, option("The model, whose sizes and shares of variance are shown.")] = None,
    channels: Annotated[File, option("The kind of channel of each test recording (utt2channel).")] = None,
    embeddings: Annotated[
        File, option("Embeddings of the trials, which are compared with the model's training data.")
    ] = None,
    title: Annotated[str, option("The title of the page.")] = "Speaker recognition report",
    p_target: Annotated[float, option("The prior of a target at which the sliders start.")] = 0.01,
    c_miss: options.CostMiss = 1.0,
    c_fa: options.CostFalseAlarm = 1.0,
    log10: options.Log10 = False,
    speakers: options.TestSpeakers = None,
    enroll: options.Enrolment = None,
    bootstrap: options.Resamples = 200,
    seed: options.Seed = 0,
    columns: options.Columns = None,
    allow_missing: options.AllowMissing = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Write one self-contained HTML page: metrics, curves, sliders for the prior and the costs, worst trials.

    If --speakers tells who speaks on both sides, the metrics get 95 % intervals. Each further column of the trials is a
    condition with a table of its own, and so is the channel of the test recordings (--channels). With --embeddings the
    page tells how far the recordings of the trials are from MODEL's training data, and with --channels too how well
    MODEL infers them.
    """
    typed = work_options(locals())
    from duoplda.workflows import report as workflow

    screen = Terminal(quiet)
    n_systems, n_trials = workflow.report(**typed, progress=not quiet, command=command_line(), note=screen.note)
    screen.note(counted(n_systems, n_trials))
    result(str(out))


def counted(n_systems: int, n_trials: int) -> str:
    """What the page is about, and how to read it."""
    return f"{n_systems} system{'s' * (n_systems > 1)} on {n_trials:,} trials; open it in a browser"
