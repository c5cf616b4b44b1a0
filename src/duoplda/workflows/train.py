"""Training: from embeddings and labels to a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from duoplda.errors import OptionsError
from duoplda.estimators import checkpoint
from duoplda.estimators.backend import Backend
from duoplda.estimators.plda import PLDA
from duoplda.io import read_labels
from duoplda.model.parameters import Model
from duoplda.observer import Observer
from duoplda.workflows._files import Note, PathLike, Show, check_outputs, file_hashes, reader, release_memory, silent
from duoplda.workflows._labels import one_table


class TrainingProgress(Observer):
    """Shows how far training is, and gives back what only the reading of recordings needed."""

    def __init__(self, show: Show, recordings: Any):
        self.show = show
        self.recordings = recordings

    def training_begins(self) -> None:
        if hasattr(self.recordings, "forget"):  # a cluster's labels are not here
            self.recordings.forget()
        release_memory(1 << 20)  # EM has many matrices at once, and frees them

    def fold(self, done: int, folds: int) -> None:
        self.show(None, f"held-out speakers: fold {done} of {folds}")

    def search(self, step: int, cost: float) -> None:
        self.show(None, f"held-out trials: step {step}, cost {cost:.4f}")

    def iteration(self, iteration: int, log_likelihood: float, model: Model) -> bool:
        self.show(iteration, f"iteration {iteration}: log-likelihood {log_likelihood:.6g} nats")
        return False


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
    device: str = "cpu",
    dask: str | None = None,
    resume: bool = False,
    allow_missing: bool = False,
    force: bool = False,
    command: str | None = None,
    note: Note = silent,
    show: Show = silent,
    **plda: Any,
) -> Backend:
    """Train a model on embeddings, which are read in chunks, and write it.

    Parameters
    ----------
    embeddings, ids : as for `duoplda.io.read_embeddings`
    out : the model file; `<out>.resume` holds the state of a training that is under way
    speakers, sessions, channels : lists of labels by recording
    labels : one table instead of the lists; the same path as `embeddings`: labels are columns of these
    preset, lda, whiten, length_norm, center_by_channel : the preprocessing, as `Backend` and `Backend.preset` have it
    sessions_are : "utterances" or "files", which the model keeps for diarisation
    device, dask : a device of torch, or a cluster of Dask (an address, or "local")
    resume : go on from `<out>.resume`
    command : what was typed, which the model keeps
    plda : parameters of `PLDA`

    Returns
    -------
    the model that was written
    """
    one_table(labels, speakers=speakers, sessions=sessions, channels=channels)
    if labels is None and speakers is None:
        raise OptionsError("give either `labels` or `speakers` (with `sessions`)")
    if preset is not None and not length_norm:
        raise OptionsError("`preset` normalises lengths twice: leave `length_norm` as it is")
    own = labels == embeddings  # labels are columns of the embeddings
    lists = [None if ids == "rows" else ids, speakers, sessions, channels, None if own else labels]
    check_outputs([out], force, [embeddings], lists)
    steps: dict[str, Any] = {"plda": PLDA(**plda), "center_by_channel": center_by_channel}
    if preset is None:
        backend = Backend(lda, whiten is not False, length_norm, **steps)
    else:
        backend = Backend.preset(preset, lda=lda or 128, whiten=bool(whiten), **steps)
    state = Path(f"{out}.resume")
    with reader(device, dask, note, show, allow_missing=allow_missing, hashed=True) as (read, place):
        table = True if own else read_labels(speakers or labels, sessions, channels)  # type: ignore[arg-type]
        recordings: Any = read(embeddings, ids, table)
        del table
        release_memory()
        progress = TrainingProgress(show, recordings)
        backend = checkpoint.fit(backend, recordings, state, resume=resume, device=place, observer=progress, note=note)
    inputs = {str(embeddings): recordings.digest, **file_hashes(lists)}
    origin = {"command": command, "inputs": inputs, "seed": plda.get("random_state")}
    backend.save(out, provenance=origin | ({"sessions_are": sessions_are} if sessions_are else {}), force=force)
    state.unlink(missing_ok=True)
    return Backend.load(out)
