"""`duoplda info`: print what is in a model file or in a file of enrolled speakers."""

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result, result_json
from duoplda.cli._words import summary_lines, voice_lines

EXAMPLES = """duoplda info model.safetensors
duoplda info model.safetensors --json
duoplda info model.safetensors --embeddings eval.scp --speakers utt2spk
duoplda info voices.safetensors"""


def info(run: Run) -> None:
    """Print what is in a model, or who is enrolled in a file.

    For a model: its steps, its sizes, what it was trained on, and how. Inputs have their SHA-256, as `sha256sum` prints
    it; the fingerprint of embeddings depends only on ids and vectors, not on the format of the file. For a file of
    enrolled speakers: how many sessions and recordings each has, and the fingerprint of the model that enrolled them.

    With --embeddings it also prints how far these are from the training data: beyond the limit, ratios may mislead, and
    the model should be adapted. Without --speakers, the number of speakers is estimated from the recordings, and the
    limit depends on it.
    """
    summary = run()
    if run.json:
        result_json(summary)
    elif "enrolled" in summary:
        result("\n".join(voice_lines(summary)))
    else:
        result("\n".join(summary_lines(summary)))
