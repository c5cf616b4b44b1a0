"""`duoplda report`: one HTML page on one or several systems."""

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result

EXAMPLES = "duoplda report --scores a.txt --scores b.txt --trials trials --model model.safetensors --out report.html"


def report(run: Run) -> None:
    """Write one self-contained HTML page: metrics, curves, sliders for the prior and the costs, worst trials.

    If --speakers tells who speaks on both sides, the metrics get 95 % intervals. Each further column of the trials is a
    condition with a table of its own, and so is the channel of the test recordings (--channels). With --embeddings the
    page tells how far the recordings of the trials are from MODEL's training data, and with --channels too how well
    MODEL infers them.
    """
    n_systems, n_trials = run(progress=not run.quiet)
    systems = "1 system" if n_systems == 1 else f"{n_systems} systems"
    run.note(f"{systems} on {n_trials:,} trials; open it in a browser")
    result(str(run.given["out"]))
