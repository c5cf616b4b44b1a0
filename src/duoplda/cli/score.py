"""`duoplda score`: likelihood ratios of trials, of all pairs, or the highest of each test recording."""

from typing import TYPE_CHECKING

from duoplda.cli._commands import Run
from duoplda.cli._terminal import printing, result_json
from duoplda.errors import printable
from duoplda.workflows.option import refuse

if TYPE_CHECKING:
    from duoplda.io import Scores

EXAMPLES = """\
duoplda score --model model.safetensors --embeddings eval.scp --enroll enroll --trials trials --out scores.txt
duoplda score --model model.safetensors --embeddings eval.scp --enrolled voices.safetensors --top 10 --out best.tsv
duoplda score --model model.safetensors --audio recordings --extractor m.onnx --trials trials --out scores.txt
duoplda score --model model.safetensors --embeddings shards/ --enroll enroll --top 10 --dask local --out best.tsv
duoplda score --model model.safetensors --embeddings eval.scp --trials trials --cohort others.scp --out normalised"""


def score(run: Run) -> None:
    """Score trials: natural-log likelihood ratios (log10 with --log10) that two sides are of one speaker.

    A ratio above 0 speaks for one speaker, below 0 for two. Give --sessions if a side has copies of one recording:
    otherwise these count as independent evidence. With --matrix or --top, --trials only says which models and
    recordings to compare; without it, all models are compared with all test embeddings. With --cohort, scores are
    normalised, and are not likelihood ratios until they are calibrated. A warning says where recordings are unlike the
    training data: ratios may then mislead, and `duoplda adapt` helps.
    """
    both = run.json and run.given["out"] is None
    refuse(both, "--json prints a summary to standard output: give `out` for the scores")
    counts = run("scoring", receive=print_scores)
    if run.json:
        result_json({"out": str(run.given["out"]), **counts})
    elif run.given["out"] is not None:
        left_out = f", {counts['left_out']:,} trials left out" if counts["left_out"] else ""
        sides = f"{counts['models']:,} models and {counts['tests']:,} recordings"
        run.note(f"{counts['scores']:,} scores of {sides}{left_out}: {run.given['out']}")


def print_scores(scores: "Scores") -> None:
    """Print lines `model test score` on standard output."""
    with printing():
        for row in zip(scores.enroll.values, scores.test.values, scores.score.tolist(), strict=True):
            print(*map(printable, row))
