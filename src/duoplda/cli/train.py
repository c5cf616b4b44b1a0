"""`duoplda train`: from embeddings and labels to a model."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli import _common as common
from duoplda.cli._common import AllowMissing, Force, Json, Quiet, say, usage
from duoplda.cli._labelled import opener
from duoplda.cli._voices import Device, Ids
from duoplda.cli.info import words

EXAMPLES = """duoplda train --embeddings xvectors.scp --speakers utt2spk --sessions utt2sess --out model.safetensors
duoplda train --embeddings x.parquet --labels table.csv --lda 150 --out model.safetensors --resume
duoplda train --embeddings x.ark --labels table.csv --model-type auto --enrolment 3xall --out model.safetensors
duoplda train --embeddings x.ark --labels table.csv --preset vbx --lda 128 --out model.safetensors
duoplda train --embeddings shards/ --labels shards/ --dask tcp://scheduler:8786 --out model.safetensors"""


def train(
    embeddings: Annotated[Path, typer.Option(help="Kaldi ark or scp, npz, npy, HDF5, Parquet; a folder or 'x.*.ark'.")],
    out: Annotated[Path, typer.Option(help="The model, a safetensors file.")],
    speakers: Annotated[Path | None, typer.Option(help="utt2spk or spk2utt.")] = None,
    sessions: Annotated[Path | None, typer.Option(help="utt2sess: the session of each recording.")] = None,
    channels: Annotated[Path | None, typer.Option(help="utt2channel: the kind of channel of each recording.")] = None,
    labels: Annotated[Path | None, typer.Option(help="A table: id, speaker, session, channel; or EMBEDDINGS.")] = None,
    ids: Ids = None,
    speaker_factors: Annotated[str, typer.Option(help="A number, full, or auto (by held-out speakers).")] = "full",
    session_factors: Annotated[str, typer.Option(help="A number, full, or auto; 0: none.")] = "full",
    shrinkage: Annotated[str, typer.Option(help="none, auto, a, or a,b,c: speaker, session, noise.")] = "auto",
    criterion: Annotated[str, typer.Option(help="Of auto: decision (held-out trials) or likelihood.")] = "decision",
    enrolment: Annotated[str | None, typer.Option(help="Of held-out trials: sessions x recordings, 1x1,3xall.")] = None,
    priors: Annotated[str, typer.Option(help="Of a target in held-out trials.")] = "0.5,0.01",
    model_type: Annotated[str | None, typer.Option(help="plain, two-source, kinds or auto; else all labels.")] = None,
    sessions_are: Annotated[str | None, typer.Option(help="utterances or files: kept for diarize and link.")] = None,
    learn_channels: Annotated[str | None, typer.Option(help="Kinds of channels to learn: a number, or auto.")] = None,
    preset: Annotated[str | None, typer.Option(help="vbx: centre, norm, LDA (128), centre, norm, PLDA.")] = None,
    lda: Annotated[int | None, typer.Option(min=1, help="Dimensions to keep; without it, all.")] = None,
    whiten: Annotated[bool | None, typer.Option(help="Total covariance to identity; default without preset.")] = None,
    no_length_norm: Annotated[bool, typer.Option("--no-length-norm", help="Keep the lengths as they are.")] = False,
    center_by_channel: Annotated[bool, typer.Option("--center-by-channel", help="A mean for each kind.")] = False,
    tol: Annotated[float, typer.Option(min=0, help="EM stops at a smaller gain, in nats per recording.")] = 1e-6,
    max_iter: Annotated[int, typer.Option(min=0, help="The largest number of EM iterations.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the folds of held-out speakers.")] = 0,
    device: Device = "cpu",
    dask: Annotated[str | None, typer.Option(help="Read on a cluster: a scheduler's address, or local.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from OUT.resume after an interruption.")] = False,
    allow_missing: AllowMissing = False,
    force: Force = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train a model; embeddings are read in chunks, and the model is written whole or not at all."""
    common.labels_or_speakers(labels, speakers, sessions, channels)
    if dask is not None and device != "cpu":
        usage("--dask reads on the workers' processors: leave out --device")
    if preset is not None and no_length_norm:
        usage("--preset vbx normalises lengths twice: leave out --no-length-norm")
    common.one_of("--preset", preset, "vbx")
    given = {"--speaker-factors": speaker_factors, "--session-factors": session_factors}
    factors = [common.number_of_factors(option, text) for option, text in given.items()]
    choices: dict[str, Any] = {"shrinkage": common.shrinkages(shrinkage), "enrolment": common.enrolments(enrolment)}
    choices["criterion"] = common.one_of("--criterion", criterion, "decision", "likelihood")
    choices["model"] = common.one_of("--model-type", model_type, "plain", "two-source", "kinds", "auto")
    meant = common.one_of("--sessions-are", sessions_are, "utterances", "files")
    choices["priors"] = common.probabilities("--priors", priors)
    choices["n_channels"] = common.kinds_to_learn(learn_channels)

    from duoplda.estimators import checkpoint
    from duoplda.estimators.backend import Backend
    from duoplda.estimators.plda import PLDA
    from duoplda.io import check_output, read_labels, source_files

    own = labels == embeddings  # labels are columns of the embeddings
    lists = [None if ids == "rows" else ids, speakers, sessions, channels, None if own else labels]
    check_output(out, force, inputs=[*(source_files(embeddings) if out.exists() else ()), *lists])
    table = None if own else read_labels(speakers or labels, sessions, channels)  # type: ignore[arg-type]
    plda = PLDA(*factors, **choices, tol=tol, max_iter=max_iter, random_state=seed)
    if preset is None:
        backend = Backend(lda, whiten is not False, not no_length_norm, center_by_channel, plda)
    else:
        steps = {"whiten": bool(whiten), "center_by_channel": center_by_channel}
        backend = Backend.preset(preset, lda=lda or 128, plda=plda, **steps)
    state = Path(f"{out}.resume")
    with ExitStack() as stack:
        show = stack.enter_context(common.progress("training"))
        data = opener(stack, show, dask, allow_missing)(embeddings, own or table, ids)
        del table
        common.release_memory()
        work: dict[str, Any] = {"device": None if device == "cpu" else device, "callback": common.Watch(show)}
        work["read"] = partial(common.let_go, data)
        backend = checkpoint.fit(backend, data, state, resume=resume, note=say, **work)
    inputs = {str(embeddings): data.digest, **common.files_hash(lists)}
    origin = {"command": common.command_line(), "inputs": inputs, "seed": seed}
    backend.save(out, provenance=origin | ({"sessions_are": meant} if meant else {}), force=force)
    state.unlink(missing_ok=True)
    summary = Backend.load(out).summary()
    if json:
        common.result_json({"model": str(out), **summary})
    else:
        say("\n".join([*words({**summary, "provenance": {}}), f"model: {out}"]))
