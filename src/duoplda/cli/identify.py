"""`duoplda identify`: who recordings are, of the known voices of a registry, or somebody else."""

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result, result_json
from duoplda.cli._words import answer_lines

EXAMPLES = """\
duoplda identify --registry voices.db --model model.safetensors --embeddings x.npz
duoplda identify --registry voices.db --model model.safetensors --audio call.wav --extractor campplus.onnx
duoplda identify --registry voices.db --model model.safetensors --embeddings x.npz --sessions utt2sess --json
duoplda identify --registry voices.db --model model.safetensors --embeddings x.npz --cost-wrong-name 10"""


def identify(run: Run) -> None:
    """Say who recordings are: of the voices of a registry, or somebody else.

    Each line has a recording (or session), what is decided by the costs (a name, `nobody` that is known, or `unsure`),
    the probability of somebody else, and the most probable voices with their probabilities and log-likelihood ratios.
    With the usual costs, what has a probability above .5 is accepted; a wrong name that costs 10 asks for .95.
    """
    answers = run("identifying")
    if run.json:
        result_json(answers)
    else:
        result("\n".join(answer_lines(answers, run.note)))
