"""`duoplda identify`: who recordings are, of the known voices of a registry, or somebody else."""

from typing import Annotated

from duoplda.cli import _options as options
from duoplda.cli._options import File, option
from duoplda.cli._terminal import result, result_json, terminal, work_options
from duoplda.cli._words import answer_lines

EXAMPLES = """\
duoplda identify --registry voices.db --model model.safetensors --embeddings x.npz
duoplda identify --registry voices.db --model model.safetensors --audio call.wav --extractor campplus.onnx
duoplda identify --registry voices.db --model model.safetensors --embeddings x.npz --sessions utt2sess --json
duoplda identify --registry voices.db --model model.safetensors --embeddings x.npz --cost-wrong-name 10"""


def identify(
    model: options.Model,
    registry: options.Registry,
    embeddings: Annotated[File, option("Embeddings of the recordings to identify.")] = None,
    audio: options.Audio = None,
    extractor: options.Extractor = None,
    sessions: Annotated[
        File, option("The session of each recording (utt2sess): those of one session are asked about together.")
    ] = None,
    channels: options.Channels = None,
    ids: options.Ids = None,
    columns: options.Columns = None,
    prior: Annotated[
        float, option("The probability that it is one of the voices, which have equal parts of it.", min=0, max=1)
    ] = 0.5,
    top: Annotated[int, option("How many voices to tell of each.", min=1)] = 5,
    cost_wrong_name: Annotated[float, option("The cost of a wrong name.", min=0)] = 1.0,
    cost_missed: Annotated[float, option("The cost of `nobody` where it is a known voice.", min=0)] = 1.0,
    cost_unsure: Annotated[float, option("The cost of leaving it open.", min=0)] = 0.5,
    device: options.Device = "cpu",
    strict: options.Strict = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Say who recordings are: of the voices of a registry, or somebody else.

    Each line has a recording (or session), what is decided by the costs (a name, `nobody` that is known, or `unsure`),
    the probability of somebody else, and the most probable voices with their probabilities and log-likelihood ratios.
    With the usual costs, what has a probability above .5 is accepted; a wrong name that costs 10 asks for .95.
    """
    typed = work_options(locals())
    from duoplda.workflows import identify as workflow

    with terminal("identifying", quiet) as screen:
        answers = workflow.identify(**typed, note=screen.note, show=screen.show)
    if json:
        result_json(answers)
    else:
        result("\n".join(answer_lines(answers, screen)))
