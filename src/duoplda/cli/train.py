"""`duoplda train`: from embeddings and labels to a model."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from duoplda.cli import _options as options
from duoplda.cli import _parse as parse
from duoplda.cli._terminal import command_line, result_json, terminal
from duoplda.cli._words import summary_lines

EXAMPLES = """duoplda train --embeddings xvectors.scp --speakers utt2spk --sessions utt2sess --out model.safetensors
duoplda train --embeddings x.parquet --labels table.csv --lda 150 --out model.safetensors --resume
duoplda train --embeddings x.ark --labels table.csv --model-type auto --enrolment 3xall --out model.safetensors
duoplda train --embeddings x.ark --labels table.csv --preset vbx --lda 128 --out model.safetensors
duoplda train --embeddings shards/ --labels shards/ --dask tcp://scheduler:8786 --out model.safetensors"""

Criterion = StrEnum("Criterion", ["decision", "likelihood"])
ModelType = StrEnum(
    "ModelType", [("plain", "plain"), ("two_source", "two-source"), ("kinds", "kinds"), ("auto", "auto")]
)
SessionsAre = StrEnum("SessionsAre", ["utterances", "files"])
Preset = StrEnum("Preset", ["vbx"])


def train(
    embeddings: Annotated[
        Path, typer.Option(help="The training data: Kaldi ark or scp, npz, npy, HDF5, Parquet, a folder or 'x.*.ark'.")
    ],
    out: Annotated[Path, typer.Option(help="The model to write, a safetensors file.")],
    speakers: options.Speakers = None,
    sessions: options.TrainingSessions = None,
    channels: options.TrainingChannels = None,
    labels: options.Labels = None,
    ids: options.Ids = None,
    speaker_factors: Annotated[
        str, typer.Option(help="The rank of the speaker level: a number, full, or auto (held-out speakers choose).")
    ] = "full",
    session_factors: Annotated[
        str, typer.Option(help="The rank of the session level: a number, full or auto; 0 leaves it out.")
    ] = "full",
    shrinkage: Annotated[
        str,
        typer.Option(help="How far covariances are shrunk: none, auto, a, or a,b,c for speaker, session and noise."),
    ] = "auto",
    criterion: Annotated[
        Criterion,
        typer.Option(help="What chooses wherever auto is given: the cost of held-out trials, or their likelihood."),
    ] = Criterion.decision,
    enrolment: Annotated[
        str | None,
        typer.Option(help="How speakers of held-out trials are enrolled: sessions x recordings, such as 1x1,3xall."),
    ] = None,
    priors: Annotated[
        str, typer.Option(help="Priors of a target at which the cost of held-out trials is measured.")
    ] = "0.5,0.01",
    model_type: Annotated[
        ModelType | None, typer.Option(help="Which levels the model has.  [all that the labels allow]")
    ] = None,
    sessions_are: Annotated[
        SessionsAre | None, typer.Option(help="What a session is in these data; diarize and link will use it.")
    ] = None,
    learn_channels: Annotated[
        str | None, typer.Option(help="Learn kinds of channels that nobody labelled: their number, or auto.")
    ] = None,
    preset: Annotated[
        Preset | None, typer.Option(help="The chain of VBx: centre, length, LDA (128), centre, length, PLDA.")
    ] = None,
    lda: Annotated[int | None, typer.Option(min=1, help="The number of dimensions that LDA keeps.  [no LDA]")] = None,
    whiten: Annotated[
        bool | None, typer.Option(help="Map the total covariance to the identity.  [yes, unless a preset is given]")
    ] = None,
    length_norm: Annotated[bool, typer.Option(help="Normalise the lengths of vectors.")] = True,
    center_by_channel: Annotated[
        bool, typer.Option("--center-by-channel", help="Subtract a mean for each kind of channel.")
    ] = False,
    tol: Annotated[float, typer.Option(min=0, help="EM stops when it gains less, in nats per recording.")] = 1e-6,
    max_iter: Annotated[int, typer.Option(min=0, help="The largest number of EM iterations.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the folds of held-out speakers.")] = 0,
    device: options.Device = "cpu",
    dask: options.Dask = None,
    resume: options.Resume = False,
    allow_missing: options.AllowMissing = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Train a model; embeddings are read in chunks, and the model is written whole or not at all."""
    ranks = {"full": None, "auto": "auto"}
    plda = {
        "n_speaker_factors": parse.number_or_word("--speaker-factors", speaker_factors, ranks),
        "n_session_factors": parse.number_or_word("--session-factors", session_factors, ranks),
        "shrinkage": parse.shrinkages(shrinkage),
        "criterion": criterion.value,
        "enrolment": parse.enrolments(enrolment),
        "priors": parse.probabilities("--priors", priors),
        "model": model_type and model_type.value,
        "n_channels": parse.number_or_word("--learn-channels", learn_channels, {"auto": "auto"}, least=1),
        "tol": tol,
        "max_iter": max_iter,
        "random_state": seed,
    }
    from duoplda.workflows import train as workflow

    with terminal("training", quiet) as screen:
        backend = workflow.train(
            embeddings,
            out,
            speakers=speakers,
            sessions=sessions,
            channels=channels,
            labels=labels,
            ids=ids,
            preset=preset,
            lda=lda,
            whiten=whiten,
            length_norm=length_norm,
            center_by_channel=center_by_channel,
            sessions_are=sessions_are,
            device=device,
            dask=dask,
            resume=resume,
            allow_missing=allow_missing,
            force=force,
            command=command_line(),
            note=screen.note,
            show=screen.show,
            **plda,
        )
    if json:
        result_json({"model": str(out), **backend.summary()})
    else:
        screen.note("\n".join([*summary_lines({**backend.summary(), "provenance": {}}), f"model: {out}"]))
