"""`duoplda info`: what is in a model file, in words."""

from pathlib import Path
from typing import Annotated

import typer

from duoplda.cli import _options as options
from duoplda.cli._options import File, option
from duoplda.cli._terminal import result, result_json, work_options
from duoplda.cli._words import summary_lines

EXAMPLES = """duoplda info model.safetensors
duoplda info model.safetensors --json
duoplda info model.safetensors --embeddings eval.scp --speakers utt2spk"""


def info(
    model: Annotated[Path, typer.Argument(help="The model, a file that `duoplda train` wrote.")],
    embeddings: Annotated[File, option("Recordings, which are compared with the training data of the model.")] = None,
    ids: options.Ids = None,
    speakers: Annotated[File, option("The speaker of each recording; the limit is higher for few speakers.")] = None,
    json: options.Json = False,
) -> None:
    """Print what is in a model: its steps, its sizes, what it was trained on, and how.

    With --embeddings also how far these are from the training data: beyond the limit, ratios may mislead, and the model
    should be adapted. Without --speakers each recording counts as a speaker of its own, and the limit is too low where
    there are only a few speakers.
    """
    typed = work_options(locals())
    from duoplda.workflows import info as workflow

    summary = workflow.info(**typed)
    if json:
        result_json(summary)
    else:
        result("\n".join(summary_lines(summary)))
