"""Training: from embeddings and labels to a model file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from duoplda.errors import OptionsError
from duoplda.estimators import checkpoint
from duoplda.estimators.backend import Backend
from duoplda.estimators.files import versions
from duoplda.estimators.plda import PLDA
from duoplda.io import read_embeddings, read_extractor, read_labels
from duoplda.workflows import _files as files
from duoplda.workflows._files import Columns, Note, PathLike, Show, silent
from duoplda.workflows._labels import one_table
from duoplda.workflows._quality import QUALITY_KEY, training_ranges


def train(
    embeddings: PathLike,
    out: PathLike,
    *,
    speakers: PathLike | None = None,
    sessions: PathLike | None = None,
    channels: PathLike | None = None,
    occasions: PathLike | None = None,
    labels: PathLike | None = None,
    quality: PathLike | None = None,
    ids: str | None = None,
    columns: Columns = None,
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
    strict: bool = False,
    force: bool = False,
    command: str | None = None,
    note: Note = silent,
    show: Show = silent,
    **options: Any,
) -> Backend:
    """Train a model on embeddings, which are read in chunks, write it, and return it.

    `<out>.resume` holds the state of a training that is under way, and of an interrupted one. The model remembers the
    usual range of each measure in the table `quality`. `options` are further parameters of `PLDA`.
    """
    one_table(labels, speakers=speakers, sessions=sessions, channels=channels, occasions=occasions)
    if labels is None and speakers is None:
        raise OptionsError("give either `labels` or `speakers` (with `sessions`)")
    if preset is not None and not length_norm:
        raise OptionsError("`preset` normalises lengths twice: leave `length_norm` as it is")
    in_embeddings = labels == embeddings  # as columns of theirs
    ids, *held, labels, quality = files.held_lists(ids, speakers, sessions, channels, occasions, labels, quality)
    speakers, sessions, channels, occasions = held
    lists = [None if ids == "rows" else ids, *held, None if in_embeddings else labels, quality]
    files.check_outputs([out], force, [embeddings], lists)
    choices: dict[str, Any] = {"model": model_type, "n_channels": learn_channels, "random_state": seed, **options}
    plda = PLDA(speaker_factors, session_factors, shrinkage=shrinkage, **choices)
    steps: dict[str, Any] = {"plda": plda, "center_by_channel": center_by_channel}
    if preset is None:
        backend = Backend(lda, whiten is not False, length_norm, **steps)
    else:
        backend = Backend.preset(preset, lda=lda or 128, whiten=bool(whiten), **steps)
    state = Path(f"{out}.resume")
    reading: dict[str, Any] = {"columns": columns, "allow_missing": allow_missing, "strict": strict, "hashed": True}
    with files.reader(device, dask, note, show, **reading) as (read, place):
        table: Any = in_embeddings
        if not in_embeddings:
            table = read_labels(speakers or labels, sessions, channels, occasions=occasions, columns=columns)
        recordings: Any = read(embeddings, ids, table)
        ranges = None
        if quality is not None:
            known = read_embeddings(embeddings, ids, columns=columns).ids() if in_embeddings else table.ids
            ranges = training_ranges(quality, known.tolist())
        del table
        files.release_memory()
        progress = files.Progress(show, recordings)
        backend = checkpoint.fit(backend, recordings, state, resume=resume, device=place, observer=progress, note=note)
    origin = {"sha256": files.file_hashes([embeddings, *lists]), "fingerprint": {str(embeddings): recordings.digest}}
    backend.provenance_ = {"versions": versions(), "command": command, **origin, "seed": seed}
    if (made_by := read_extractor(embeddings)) is not None:
        backend.provenance_["extractor"] = asdict(made_by)
    if ranges is not None:
        backend.provenance_[QUALITY_KEY] = ranges
    if sessions_are is not None:
        backend.provenance_["sessions_are"] = sessions_are
    backend.save(out, force=force)
    state.unlink(missing_ok=True)
    return backend
