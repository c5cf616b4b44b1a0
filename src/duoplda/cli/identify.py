"""`duoplda identify`: say which of the known voices of a registry recordings are of, or somebody else."""

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result, result_json
from duoplda.cli._words import answer_lines

EXAMPLES = """\
duoplda identify --registry voices.db --model model.safetensors --embeddings x.npz
duoplda identify --registry voices.db --model model.safetensors --audio call.wav --extractor campplus.onnx
duoplda identify --registry voices.db --model model.safetensors --embeddings x.npz --sessions utt2sess --json
duoplda identify --registry voices.db --model model.safetensors --embeddings x.npz --cost-wrong-name 10"""


def identify(run: Run) -> None:
    """Say which of the voices of a registry recordings are of, or that it is somebody else.

    Each line has a recording (or session), the decision that the costs lead to (a name, `nobody`, or `unsure`), the
    probability of somebody else, and the most probable voices with their probabilities and log-likelihood ratios. The
    probabilities depend on --prior, and are to be relied on only for recordings like the training data. With the usual
    costs, a name is accepted if its probability is above .5; if a wrong name costs 10, it must be above .95.
    """
    answers = run("identifying")
    if run.json:
        result_json(answers)
    else:
        result("\n".join(answer_lines(answers, run.note)))
