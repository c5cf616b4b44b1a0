"""Training: from embeddings and labels to a model file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from duoplda.estimators import checkpoint
from duoplda.estimators.backend import Backend
from duoplda.estimators.files import versions
from duoplda.estimators.plda import PLDA
from duoplda.io import read_embeddings, read_extractor, read_labels
from duoplda.workflows import _files as files
from duoplda.workflows import option
from duoplda.workflows._files import Note, Show, silent
from duoplda.workflows._labels import one_table
from duoplda.workflows._quality import QUALITY_KEY, training_ranges
from duoplda.workflows.option import refuse


def train(
    embeddings: option.TrainingEmbeddings,
    out: option.ModelOut,
    *,
    speakers: option.Speakers = None,
    sessions: option.TrainingSessions = None,
    channels: option.TrainingChannels = None,
    occasions: option.TrainingOccasions = None,
    labels: option.Labels = None,
    quality: option.TrainingQuality = None,
    ids: option.Ids = None,
    columns: option.Columns = None,
    speaker_factors: option.SpeakerFactors = None,
    session_factors: option.SessionFactors = None,
    shrinkage: option.Shrinkage = "auto",
    criterion: option.Criterion = "decision",
    enrolment: option.HeldOutEnrolment = None,
    priors: option.HeldOutPriors = (0.5, 0.01),
    calibration: option.HeldOutCalibration = "affine",
    model_type: option.ModelType = None,
    sessions_are: option.SessionsAre = None,
    learn_channels: option.LearnChannels = None,
    preset: option.Preset = None,
    lda: option.Lda = None,
    whiten: option.Whiten = None,
    length_norm: option.LengthNorm = True,
    center_by_channel: option.CenterByChannel = False,
    tol: option.Tolerance = 1e-6,
    max_iter: option.MaxIterations = 500,
    seed: option.FoldSeed = 0,
    device: option.Device = "cpu",
    dask: option.Dask = None,
    resume: option.Resume = False,
    allow_missing: option.AllowMissing = False,
    strict: option.Strict = False,
    force: option.Force = False,
    command: str | None = None,
    note: Note = silent,
    show: Show = silent,
    **parameters: Any,
) -> Backend:
    """Train a model on embeddings, which are read in chunks, write it, and return it.

    `<out>.resume` holds the state of a training that is running or was interrupted. The model remembers the usual range
    of each measure in the table `quality`. Further `parameters` are those of `PLDA`.
    """
    one_table(labels, needed=True, speakers=speakers, sessions=sessions, channels=channels, occasions=occasions)
    twice = preset is not None and not length_norm
    refuse(twice, "`preset` normalises lengths twice: leave `length_norm` as it is")
    in_embeddings = labels == embeddings  # as columns of theirs
    ids, *held, labels, quality = files.held_lists(ids, speakers, sessions, channels, occasions, labels, quality)
    speakers, sessions, channels, occasions = held
    lists = [None if ids == "rows" else ids, *held, None if in_embeddings else labels, quality]
    files.check_outputs([out], force, [embeddings], lists)
    plda = PLDA(
        speaker_factors,
        session_factors,
        shrinkage=shrinkage,
        criterion=criterion,
        enrolment=enrolment,
        priors=priors,
        calibration=calibration,
        model=model_type,
        n_channels=learn_channels,
        tol=tol,
        max_iter=max_iter,
        random_state=seed,
        **parameters,
    )
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
    made_by = read_extractor(embeddings)
    for_users = {"extractor": made_by and asdict(made_by), QUALITY_KEY: ranges, "sessions_are": sessions_are}
    backend.provenance_ |= {name: value for name, value in for_users.items() if value is not None}
    backend.save(out, force=force)
    state.unlink(missing_ok=True)
    return backend
