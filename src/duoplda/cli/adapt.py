"""`duoplda adapt`: a model for another domain, by recordings of that domain."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from duoplda.cli import _options as options
from duoplda.cli import _parse as parse
from duoplda.cli._options import option
from duoplda.cli._terminal import command_line, result_json, terminal, work_options
from duoplda.cli._words import adaptation_lines

EXAMPLES = """\
duoplda adapt --model m.safetensors --embeddings target.scp --sessions utt2sess --out adapted.safetensors
duoplda adapt --model m.safetensors --embeddings x.ark --speakers utt2spk --sessions utt2sess --out adapted.safetensors
duoplda adapt --model m.safetensors --embeddings shards/ --method total --dask local --out adapted.safetensors"""

AdaptationMethod = StrEnum("AdaptationMethod", ["auto", "labels", "clusters", "sessions", "total", "centre", "kaldi"])


def adapt(
    model: Annotated[Path, option("The model, a file that `duoplda train` wrote; it stays as it is.")],
    embeddings: Annotated[Path, option("Embeddings of the target: a file, a folder or 'x.*.ark'.")],
    out: Annotated[Path, option("The adapted model to write, a safetensors file.")],
    speakers: options.Speakers = None,
    sessions: options.TrainingSessions = None,
    channels: options.TrainingChannels = None,
    occasions: options.TrainingOccasions = None,
    labels: options.Labels = None,
    ids: options.Ids = None,
    columns: options.Columns = None,
    method: Annotated[
        AdaptationMethod,
        option("How to adapt; auto goes by what is known, kaldi does what Kaldi does."),
    ] = AdaptationMethod.auto,
    weights: Annotated[
        str | None,
        option("How much the target counts at each level, from 0 to 1, with commas.  [by the method]"),
    ] = None,
    centre: Annotated[
        float | None, option("How far the mean moves to the target's.  [by the data]", min=0, max=1)
    ] = None,
    prior: options.Prior = 0.02,
    device: options.Device = "cpu",
    dask: options.Dask = None,
    resume: options.Resume = False,
    allow_missing: options.AllowMissing = False,
    strict: options.Strict = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Adapt a model to recordings of another domain, as far as they are labelled.

    With speakers (at least 3) each level of the model moves towards the target's; with --sessions alone these are
    clustered first; without either, all levels move with the total covariance. Where there are enough speakers or
    clusters, held-out ones calibrate the ratios. A target like the source changes next to nothing. Embeddings are read
    in chunks, and the model is written whole or not at all.
    """
    typed = work_options(locals())
    typed["weights"] = parse.numbers("--weights", weights)
    from duoplda.workflows import adapt as workflow

    with terminal("adapting", quiet) as screen:
        adapted = workflow.adapt(**typed, command=command_line(), note=screen.note, show=screen.show)
    if json:
        result_json({"model": str(out), **adapted.adapted_})
    else:
        screen.note("\n".join([*adaptation_lines(adapted.adapted_), f"model: {out}"]))
