"""Adaptation: a model file for another domain, by recordings of that domain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from duoplda.errors import OptionsError
from duoplda.estimators import checkpoint, files
from duoplda.estimators.backend import Backend
from duoplda.io import source_files
from duoplda.observer import Observer
from duoplda.workflows._files import Note, PathLike, Show, check_outputs, file_hashes, reader, release_memory, silent
from duoplda.workflows._labels import one_table, read_known_labels


def adapt(
    model: PathLike,
    embeddings: PathLike,
    out: PathLike,
    *,
    speakers: PathLike | None = None,
    sessions: PathLike | None = None,
    channels: PathLike | None = None,
    labels: PathLike | None = None,
    ids: str | None = None,
    method: str = "auto",
    device: str = "cpu",
    dask: str | None = None,
    resume: bool = False,
    allow_missing: bool = False,
    force: bool = False,
    command: str | None = None,
    note: Note = silent,
    show: Show = silent,
    **options: Any,
) -> Backend:
    """Adapt a model to recordings of another domain, as far as they are labelled, and write it.

    Parameters
    ----------
    model : a model file, which stays as it is
    embeddings, ids, speakers, sessions, channels, labels : recordings of the target, as for `train`
    out : the adapted model; `<out>.resume` holds the stages of an adaptation that is under way
    method, options : of `Backend.adapt`
    device, dask, resume, command : as for `train`

    Returns
    -------
    the adapted model, whose `adapted_` tells what was done and why
    """
    one_table(labels, speakers=speakers, sessions=sessions, channels=channels)
    if channels is not None and speakers is None and sessions is None:
        raise OptionsError("`channels` are of use with `speakers` or `sessions`: give one of them")
    own = labels == embeddings  # labels are columns of the embeddings
    lists = [None if ids == "rows" else ids, speakers, sessions, channels, None if own else labels, model]
    check_outputs([out], force, [embeddings], lists)
    state = Path(f"{out}.resume")
    with reader(device, dask, note, show, allow_missing=allow_missing, hashed=True) as (read, place):
        backend = Backend.load(model)
        table = read_known_labels(embeddings, labels, speakers, sessions, channels)
        hashes = file_hashes(lists)
        target: Any = read(embeddings, ids, table)
        del table
        release_memory()
        # What tells this adaptation from others that may have left a file to resume from.
        inputs = [*hashes.values(), *(_sizes_and_times(embeddings) if own else ())]
        adapted = checkpoint.adapt(
            backend,
            target,
            state,
            inputs=inputs,
            resume=resume,
            device=place,
            observer=AdaptationProgress(show),
            note=note,
            method=method,
            **options,
        )
    origin = {"command": command, "inputs": {str(embeddings): target.digest, **hashes}, "versions": files.versions()}
    if "adaptation" in backend.provenance_:
        origin["before"] = backend.provenance_["adaptation"]
    adapted.save(out, provenance={"adaptation": origin}, force=force)
    state.unlink(missing_ok=True)
    return adapted


class AdaptationProgress(Observer):
    """Shows which stage of an adaptation begins."""

    def __init__(self, show: Show):
        self.show = show

    def stage(self, name: str) -> None:
        self.show(None, name)


def _sizes_and_times(embeddings: PathLike) -> list[tuple[int, int]]:
    """Sizes of the files of embeddings, and when they were written, which tell whether their labels have changed."""
    status = [file.stat() for file in source_files(embeddings)]
    return [(file.st_size, file.st_mtime_ns) for file in status]
