"""`duoplda report`: write one HTML page on one or several systems."""

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result

EXAMPLES = "duoplda report --scores a.txt --scores b.txt --trials trials --model model.safetensors --out report.html"


def report(run: Run) -> None:
    """Write one self-contained HTML page: metrics, curves, sliders for the prior and the costs, worst trials.

    The page begins with a verdict on whether the ratios mean what they say. If --speakers says who speaks on both
    sides, the metrics get 95 % intervals. Each further column of the trials is a condition with a table of its own, and
    so is the channel of the test recordings (--channels). With --embeddings, the page says how far the recordings of
    the trials are from the training data of --model, and with --channels as well, how often the model infers the right
    one.
    """
    n_systems, n_trials = run(progress=not run.quiet)
    systems = "1 system" if n_systems == 1 else f"{n_systems} systems"
    run.note(f"{systems} on {n_trials:,} trials; open it in a browser")
    result(str(run.given["out"]))
