"""`duoplda adapt`: a model for another domain, by recordings of that domain."""

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result_json
from duoplda.cli._words import adaptation_lines

EXAMPLES = """\
duoplda adapt --model m.safetensors --embeddings target.scp --sessions utt2sess --out adapted.safetensors
duoplda adapt --model m.safetensors --embeddings x.ark --speakers utt2spk --sessions utt2sess --out adapted.safetensors
duoplda adapt --model m.safetensors --embeddings shards/ --method total --dask local --out adapted.safetensors"""


def adapt(run: Run) -> None:
    """Adapt a model to recordings of another domain, as far as they are labelled.

    With speakers (at least 3) each level of the model moves towards the target's; with --sessions alone these are
    clustered first; without either, all levels move with the total covariance. Where there are enough speakers or
    clusters, held-out ones calibrate the ratios. A target like the source changes next to nothing. Embeddings are read
    in chunks, and the model is written whole or not at all.
    """
    adapted = run("adapting")
    if run.json:
        result_json({"model": str(run.given["out"]), **adapted.adapted_})
    else:
        run.note("\n".join([*adaptation_lines(adapted.adapted_), f"model: {run.given['out']}"]))
