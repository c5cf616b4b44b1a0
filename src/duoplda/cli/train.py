"""`duoplda train`: from embeddings and labels to a model."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from duoplda.cli import _options as options
from duoplda.cli import _parse as parse
from duoplda.cli._options import File, option
from duoplda.cli._terminal import command_line, result_json, terminal, work_options
from duoplda.cli._words import summary_lines

EXAMPLES = """duoplda train --embeddings xvectors.scp --speakers utt2spk --sessions utt2sess --out model.safetensors
duoplda train --embeddings x.parquet --labels table.csv --lda 150 --out model.safetensors --resume
duoplda train --embeddings x.ark --labels table.csv --model-type auto --enrolment 3xall --out model.safetensors
duoplda train --embeddings x.ark --labels table.csv --preset vbx --lda 128 --out model.safetensors
duoplda train --embeddings shards/ --labels shards/ --dask tcp://scheduler:8786 --out model.safetensors"""

Criterion = StrEnum("Criterion", ["decision", "likelihood"])
Calibration = StrEnum("Calibration", ["affine", "structure"])
ModelType = StrEnum(
    "ModelType", [("plain", "plain"), ("two_source", "two-source"), ("kinds", "kinds"), ("auto", "auto")]
)
SessionsAre = StrEnum("SessionsAre", ["utterances", "files"])
Preset = StrEnum("Preset", ["vbx"])


def train(
    embeddings: Annotated[
        Path, option("The training data: Kaldi ark or scp, npz, npy, HDF5, Parquet, a folder or 'x.*.ark'.")
    ],
    out: Annotated[Path, option("The model to write, a safetensors file.")],
    speakers: options.Speakers = None,
    sessions: options.TrainingSessions = None,
    channels: options.TrainingChannels = None,
    occasions: options.TrainingOccasions = None,
    labels: options.Labels = None,
    quality: Annotated[
        File, option("Measures of the recordings (`duoplda embed --quality-out`): audio unlike them gives a warning.")
    ] = None,
    ids: options.Ids = None,
    columns: options.Columns = None,
    speaker_factors: Annotated[
        str, option("The rank of the speaker level: a number, full, or auto (held-out speakers choose).")
    ] = "full",
    session_factors: Annotated[
        str, option("The rank of the session level: a number, full or auto; 0 leaves it out.")
    ] = "full",
    shrinkage: Annotated[
        str,
        option("How far covariances are shrunk: none, auto, a, or a,b,c for speaker, session and noise."),
    ] = "auto",
    criterion: Annotated[
        Criterion,
        option("What chooses wherever auto is given: the cost of trials of held-out speakers, or their likelihood."),
    ] = Criterion.decision,
    enrolment: Annotated[
        str | None,
        option("How speakers of held-out trials are enrolled: sessions x recordings, such as 1x1,3xall."),
    ] = None,
    priors: Annotated[str, option("Priors of a target at which the cost of held-out trials is measured.")] = "0.5,0.01",
    calibration: Annotated[
        Calibration, option("What held-out trials learn: one scale and offset, or those of each structure of trials.")
    ] = Calibration.affine,
    model_type: Annotated[ModelType | None, option("Which levels the model has.  [all that the labels allow]")] = None,
    sessions_are: Annotated[
        SessionsAre | None, option("What a session is in these data; diarize and link will use it.")
    ] = None,
    learn_channels: Annotated[
        str | None, option("Learn kinds of channels that nobody labelled: their number, or auto.")
    ] = None,
    preset: Annotated[
        Preset | None, option("The chain of VBx: centre, length, LDA (128), centre, length, PLDA.")
    ] = None,
    lda: Annotated[int | None, option("The number of dimensions that LDA keeps.  [no LDA]", min=1)] = None,
    whiten: Annotated[
        bool | None, option("Map the total covariance to the identity.  [yes, unless a preset is given]")
    ] = None,
    length_norm: Annotated[bool, option("Normalise the lengths of vectors.")] = True,
    center_by_channel: Annotated[
        bool, option("Subtract a mean for each kind of channel.", "--center-by-channel")
    ] = False,
    tol: Annotated[float, option("EM stops when it gains less, in nats per recording.", min=0)] = 1e-6,
    max_iter: Annotated[int, option("The largest number of EM iterations.", min=0)] = 500,
    seed: Annotated[int, option("The seed of the folds of held-out speakers.", min=0)] = 0,
    device: options.Device = "cpu",
    dask: options.Dask = None,
    resume: options.Resume = False,
    allow_missing: options.AllowMissing = False,
    strict: options.Strict = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Train a model; embeddings are read in chunks, and the model is written whole or not at all."""
    typed = work_options(locals())
    ranks = {"full": None, "auto": "auto"}
    typed["speaker_factors"] = parse.number_or_word("--speaker-factors", speaker_factors, ranks)
    typed["session_factors"] = parse.number_or_word("--session-factors", session_factors, ranks)
    typed["learn_channels"] = parse.number_or_word("--learn-channels", learn_channels, {"auto": "auto"}, least=1)
    typed["shrinkage"] = parse.shrinkages(shrinkage)
    typed["enrolment"] = parse.enrolments(enrolment)
    typed["priors"] = parse.probabilities("--priors", priors)
    from duoplda.workflows import train as workflow

    with terminal("training", quiet) as screen:
        backend = workflow.train(**typed, command=command_line(), note=screen.note, show=screen.show)
    if json:
        result_json({"model": str(out), **backend.summary()})
    else:
        screen.note("\n".join([*summary_lines({**backend.summary(), "provenance": {}}), f"model: {out}"]))
