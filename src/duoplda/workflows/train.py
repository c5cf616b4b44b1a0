"""Training: from embeddings and labels to a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from duoplda.errors import OptionsError
from duoplda.estimators import checkpoint
from duoplda.estimators.backend import Backend
from duoplda.estimators.files import versions
from duoplda.estimators.plda import PLDA
from duoplda.io import read_labels
from duoplda.workflows import _files as files
from duoplda.workflows._files import Note, PathLike, Show, silent
from duoplda.workflows._labels import one_table


def train(
    embeddings: PathLike,
    out: PathLike,
    *,
    speakers: PathLike | None = None,
    sessions: PathLike | None = None,
    channels: PathLike | None = None,
    labels: PathLike | None = None,
    ids: str | None = None,
    preset: str | None = None,
    lda: int | None = None,
    whiten: bool | None = None,
    length_norm: bool = True,
    center_by_channel: bool = False,
    sessions_are: str | None = None,
    speaker_factors: int | str | None = None,
    session_factors: int | str | None = None,
    shrinkage: str | float | tuple[float, ...] | None = "auto",
    model_type: str | None = None,
    learn_channels: int | str | None = None,
    seed: int = 0,
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
    """Train a model on embeddings, which are read in chunks, write it, and return it.

    `<out>.resume` holds the state of a training that is under way, and of an interrupted one. `options` are further
    parameters of `PLDA`.
    """
    one_table(labels, speakers=speakers, sessions=sessions, channels=channels)
    if labels is None and speakers is None:
        raise OptionsError("give either `labels` or `speakers` (with `sessions`)")
    if preset is not None and not length_norm:
        raise OptionsError("`preset` normalises lengths twice: leave `length_norm` as it is")
    in_embeddings = labels == embeddings  # as columns of theirs
    lists = [None if ids == "rows" else ids, speakers, sessions, channels, None if in_embeddings else labels]
    files.check_outputs([out], force, [embeddings], lists)
    choices: dict[str, Any] = {"model": model_type, "n_channels": learn_channels, "random_state": seed, **options}
    plda = PLDA(speaker_factors, session_factors, shrinkage=shrinkage, **choices)
    steps: dict[str, Any] = {"plda": plda, "center_by_channel": center_by_channel}
    if preset is None:
        backend = Backend(lda, whiten is not False, length_norm, **steps)
    else:
        backend = Backend.preset(preset, lda=lda or 128, whiten=bool(whiten), **steps)
    state = Path(f"{out}.resume")
    with files.reader(device, dask, note, show, allow_missing=allow_missing, hashed=True) as (read, place):
        table = True if in_embeddings else read_labels(speakers or labels, sessions, channels)  # type: ignore[arg-type]
        recordings: Any = read(embeddings, ids, table)
        del table
        files.release_memory()
        progress = files.Progress(show, recordings)
        backend = checkpoint.fit(backend, recordings, state, resume=resume, device=place, observer=progress, note=note)
    inputs = {str(embeddings): recordings.digest, **files.file_hashes(lists)}
    backend.provenance_ = {"versions": versions(), "command": command, "inputs": inputs, "seed": seed}
    if sessions_are is not None:
        backend.provenance_["sessions_are"] = sessions_are
    backend.save(out, force=force)
    state.unlink(missing_ok=True)
    return backend
