"""`duoplda train`: train a model on embeddings and labels."""

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result_json
from duoplda.cli._words import summary_lines

EXAMPLES = """duoplda train --embeddings xvectors.scp --speakers utt2spk --sessions utt2sess --out model.safetensors
duoplda train --embeddings x.parquet --labels table.csv --lda 150 --out model.safetensors --resume
duoplda train --embeddings x.ark --labels table.csv --model-type auto --enrolment 3xall --out model.safetensors
duoplda train --embeddings x.ark --labels table.csv --preset vbx --lda 128 --out model.safetensors
duoplda train --embeddings shards/ --labels shards/ --dask tcp://scheduler:8786 --out model.safetensors"""


def train(run: Run) -> None:
    """Train a model on embeddings with speakers and, as far as they are known, sessions and kinds of channels.

    Name the sessions wherever several recordings are of one conversation: otherwise ratios will be badly calibrated.
    `duoplda advise` says what your labels allow. Expect calibrated ratios for recordings like these, and adapt the
    model for others (`duoplda adapt`). Embeddings are read in chunks, and the model is written whole or not at all.
    """
    backend = run("training")
    if run.json:
        result_json({"model": str(run.given["out"]), **backend.summary()})
    else:
        run.note("\n".join([*summary_lines({**backend.summary(), "provenance": {}}), f"model: {run.given['out']}"]))
