"""Adaptation: a model file for another domain, by recordings of that domain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from duoplda.estimators import checkpoint
from duoplda.estimators.backend import Backend
from duoplda.estimators.files import versions
from duoplda.io import source_files
from duoplda.workflows import _files as files
from duoplda.workflows import option
from duoplda.workflows._files import Note, Show, silent
from duoplda.workflows._labels import one_table, read_known_labels
from duoplda.workflows.option import refuse


def adapt(
    model: option.Model,
    embeddings: option.TargetEmbeddings,
    out: option.ModelOut,
    *,
    speakers: option.Speakers = None,
    sessions: option.TrainingSessions = None,
    channels: option.TrainingChannels = None,
    occasions: option.TrainingOccasions = None,
    labels: option.Labels = None,
    ids: option.Ids = None,
    columns: option.Columns = None,
    method: option.AdaptationMethod = "auto",
    weights: option.Weights = None,
    centre: option.Centre = None,
    prior: option.Prior = 0.02,
    device: option.Device = "cpu",
    dask: option.Dask = None,
    resume: option.Resume = False,
    allow_missing: option.AllowMissing = False,
    strict: option.Strict = False,
    force: option.Force = False,
    command: str | None = None,
    note: Note = silent,
    show: Show = silent,
) -> Backend:
    """Adapt a model to recordings of another domain, write it, and return it; `adapted_` says what was done and why.

    `<out>.resume` holds the finished stages of an adaptation that is running or was interrupted.
    """
    one_table(labels, speakers=speakers, sessions=sessions, channels=channels, occasions=occasions)
    alone = channels is not None and speakers is None and sessions is None
    refuse(alone, "`channels` need `speakers` or `sessions`: give one of them")
    cause = "`occasions` need `speakers`, between whom trials across occasions are made"
    refuse(occasions is not None and speakers is None, cause)
    in_embeddings = labels == embeddings  # as columns of theirs
    ids, *held, labels = files.held_lists(ids, speakers, sessions, channels, occasions, labels)
    speakers, sessions, channels, occasions = held
    lists = [None if ids == "rows" else ids, *held, None if in_embeddings else labels, model]
    files.check_outputs([out], force, [embeddings], lists)
    state = Path(f"{out}.resume")
    reading: dict[str, Any] = {"columns": columns, "allow_missing": allow_missing, "strict": strict, "hashed": True}
    with files.reader(device, dask, note, show, **reading) as (read, place):
        backend = Backend.load(model)
        table = read_known_labels(embeddings, labels, speakers, sessions, channels, occasions, columns)
        hashes = files.file_hashes(lists)
        target: Any = read(embeddings, ids, table, backend)
        del table
        files.release_memory()
        # A file to resume from must be of this very adaptation. Labels inside the embeddings are not hashed: sizes and
        # times of the files tell whether they have changed.
        status = [file.stat() for file in source_files(embeddings)] if in_embeddings else []
        inputs = [*hashes.values(), *((file.st_size, file.st_mtime_ns) for file in status)]
        work: dict[str, Any] = {"inputs": inputs, "resume": resume, "device": place, "note": note}
        how: dict[str, Any] = {"method": method, "weights": weights, "centre": centre, "prior": prior}
        adapted = checkpoint.adapt(backend, target, state, observer=files.Progress(show), **work, **how)
    hashes = {**files.file_hashes([embeddings]), **hashes}
    origin: dict[str, Any] = {"sha256": hashes, "fingerprint": {str(embeddings): target.digest}}
    origin = {"command": command, **origin, "versions": versions()}
    if "adaptation" in backend.provenance_:
        origin["before"] = backend.provenance_["adaptation"]
    adapted.save(out, provenance={"adaptation": origin}, force=force)
    state.unlink(missing_ok=True)
    return adapted
