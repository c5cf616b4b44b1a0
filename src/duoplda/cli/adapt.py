"""`duoplda adapt`: adapt a model to another domain by recordings of that domain."""

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result_json
from duoplda.cli._words import adaptation_lines

EXAMPLES = """\
duoplda adapt --model m.safetensors --embeddings target.scp --sessions utt2sess --out adapted.safetensors
duoplda adapt --model m.safetensors --embeddings x.ark --speakers utt2spk --sessions utt2sess --out adapted.safetensors
duoplda adapt --model m.safetensors --embeddings shards/ --method total --dask local --out adapted.safetensors"""


def adapt(run: Run) -> None:
    """Adapt a model to recordings of another domain, with or without labels.

    Do this where a warning says that recordings are unlike the training data: ratios there may be worse than none. The
    more is labelled, the more it helps. With speakers (at least 3), each level of the model moves towards that of the
    target; with --sessions alone, sessions are clustered first; without either, all levels move with the total
    covariance. If there are enough speakers or clusters, held-out ones calibrate the ratios. A target like the source
    changes next to nothing. Embeddings are read in chunks, and the model is written whole or not at all.
    """
    adapted = run("adapting")
    if run.json:
        result_json({"model": str(run.given["out"]), **adapted.adapted_})
    else:
        run.note("\n".join([*adaptation_lines(adapted.adapted_), f"model: {run.given['out']}"]))
