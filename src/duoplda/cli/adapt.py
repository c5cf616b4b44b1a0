"""`duoplda adapt`: a model for another domain, by recordings of that domain."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli import _common as common
from duoplda.cli._adapted import words
from duoplda.cli._clusters import Prior
from duoplda.cli._common import AllowMissing, Force, Json, Quiet, say, usage
from duoplda.cli._labelled import marks, opener, read_known
from duoplda.cli._voices import Dask, Device, Ids
from duoplda.errors import printable

EXAMPLES = """\
duoplda adapt --model m.safetensors --embeddings target.scp --sessions utt2sess --out adapted.safetensors
duoplda adapt --model m.safetensors --embeddings x.ark --speakers utt2spk --sessions utt2sess --out adapted.safetensors
duoplda adapt --model m.safetensors --embeddings shards/ --method total --dask local --out adapted.safetensors"""


def adapt(
    model: Annotated[Path, typer.Option(help="A model that `duoplda train` wrote, which stays as it is.")],
    embeddings: Annotated[Path, typer.Option(help="Embeddings of the target: a file, a folder or 'x.*.ark'.")],
    out: Annotated[Path, typer.Option(help="The adapted model, a safetensors file.")],
    speakers: Annotated[Path | None, typer.Option(help="utt2spk or spk2utt, if speakers are known.")] = None,
    sessions: Annotated[Path | None, typer.Option(help="utt2sess; a session is of one speaker.")] = None,
    channels: Annotated[Path | None, typer.Option(help="utt2channel, with speakers or sessions.")] = None,
    labels: Annotated[Path | None, typer.Option(help="A table: id, speaker, session, channel; or EMBEDDINGS.")] = None,
    ids: Ids = None,
    method: Annotated[
        str,
        typer.Option(
            help="auto (by what is known), labels, clusters, sessions, total, centre, interpolation; "
            "of others: coral, coral+, kaldi, pooled."
        ),
    ] = "auto",
    weights: Annotated[str | None, typer.Option(help="Of the target, with commas, instead of the usual ones.")] = None,
    centre: Annotated[float | None, typer.Option(min=0, max=1, help="How far the mean goes.  [by the data]")] = None,
    prior: Prior = 0.02,
    source: Annotated[Path | None, typer.Option(help="For pooled: embeddings of the training data.")] = None,
    source_labels: Annotated[Path | None, typer.Option(help="And their labels: a table, or SOURCE.")] = None,
    device: Device = "cpu",
    dask: Dask = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from OUT.resume after an interruption.")] = False,
    allow_missing: AllowMissing = False,
    force: Force = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Adapt a model to recordings of another domain, as far as they are labelled.

    With speakers (at least 3) each level of the model moves towards the target's; with --sessions alone these are
    clustered first; without either, all levels move with the total covariance. Where there are enough speakers or
    clusters, held-out ones calibrate the ratios. A target like the source changes next to nothing. Embeddings are read
    in chunks, and the model is written whole or not at all.
    """
    if labels is not None and (speakers is not None or sessions is not None or channels is not None):
        usage("--labels has speakers, sessions and channels: leave out --speakers, --sessions and --channels")
    if channels is not None and speakers is None and sessions is None:
        usage("--channels are of use with --speakers or --sessions: give one of them")
    if dask is not None and device != "cpu":
        usage("--dask reads on the workers' processors: leave out --device")
    if not (source is None) == (source_labels is None) == (method != "pooled"):
        usage("--method pooled needs --source and --source-labels, the training data, and no other takes them")
    given = common.numbers("--weights", weights)

    from duoplda.estimators import checkpoint, files
    from duoplda.estimators.adaptation import METHODS
    from duoplda.estimators.backend import Backend
    from duoplda.io import check_output, read_labels, source_files

    common.one_of("--method", method, *METHODS)
    lists = [None if ids == "rows" else ids, speakers, sessions, channels, None if labels == embeddings else labels]
    lists += [model, None if source_labels == source else source_labels]
    read = [file for path in (embeddings, source) if path and out.exists() for file in source_files(path)]
    check_output(out, force, inputs=[*read, *lists])
    state = Path(f"{out}.resume")
    backend = Backend.load(model)
    table = read_known(embeddings, speakers, sessions, channels, labels)
    hashes = common.files_hash(lists)
    options: dict[str, Any] = {"method": method, "weights": given, "centre": centre, "prior": prior}
    with ExitStack() as stack:
        show = stack.enter_context(common.progress("adapting"))
        read_recordings = opener(stack, show, dask, allow_missing)
        data = read_recordings(embeddings, table, ids)
        former = None
        if source is not None:
            own = source_labels == source
            former = read_recordings(source, own or read_labels(source_labels))  # type: ignore[arg-type]
        del table
        common.release_memory()
        work: dict[str, Any] = {"device": None if device == "cpu" else device, "show": show, "note": say}
        work["inputs"] = [*hashes.values(), *(marks(embeddings) if labels == embeddings else ())]
        adapted = checkpoint.adapt(backend, data, state, resume=resume, source=former, **work, **options)
    inputs = {str(embeddings): data.digest, **({} if former is None else {str(source): former.digest}), **hashes}
    origin = {"command": common.command_line(), "inputs": inputs, "versions": files.versions()}
    if "adaptation" in backend.provenance_:
        origin["before"] = backend.provenance_["adaptation"]
    adapted.save(out, provenance={"adaptation": origin}, force=force)
    state.unlink(missing_ok=True)
    if json:
        common.result_json({"model": str(out), **adapted.adapted_})
    else:
        say("\n".join(map(printable, [*words(adapted.adapted_), f"model: {out}"])))
