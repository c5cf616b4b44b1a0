"""Splitting: from labels to data for training, development and evaluation, with enrolments and trials."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from duoplda.errors import DuopldaError
from duoplda.evaluation import splitting
from duoplda.io import atomic_paths, check_output, read_labels, write_map, write_trials
from duoplda.io.labels import label_table
from duoplda.io.recordings import encoded_labels
from duoplda.io.text import write_columns
from duoplda.workflows import option
from duoplda.workflows._files import Note, silent
from duoplda.workflows._labels import one_table


def split(
    out: option.SplitOut,
    *,
    labels: option.Labels = None,
    speakers: option.Speakers = None,
    sessions: option.TrainingSessions = None,
    channels: option.TrainingChannels = None,
    columns: option.Columns = None,
    train: option.TrainShare = None,
    dev: option.DevShare = 0.25,
    eval: option.EvalShare = 0.25,
    enroll_sessions: option.EnrollSessions = 1,
    cross_channel: option.CrossChannel = False,
    nontargets: option.Nontargets = None,
    seed: option.SplitSeed = 0,
    force: option.Force = False,
    note: Note = silent,
) -> dict[str, dict[str, int]]:
    """Divide speakers into parts, write labels, enrolment and trials of each into a folder, and return their numbers.

    The files of the part `dev` are `dev.csv`, `dev_enroll` and `dev_trials`; training has `train.csv` alone.
    """
    one_table(labels, needed=True, speakers=speakers, sessions=sessions, channels=channels)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise DuopldaError(f"{folder}: exists and is not a folder; give another name")
    table = read_labels(speakers or labels, sessions, channels, columns=columns)  # type: ignore[arg-type]
    n_speakers = len(encoded_labels(table, note).speaker_ids)
    shares: dict[str, float | None] = {"train": train, "dev": dev, "eval": eval}
    options = {"enroll_sessions": enroll_sessions, "cross_channel": cross_channel, "nontargets": nontargets}
    parts = splitting.split(table, **shares, **options, random_state=seed)  # type: ignore[arg-type]
    for name in shares:
        for path in _files(folder, name):
            if name in parts and folder.is_dir():
                check_output(path, force, inputs=[labels, speakers, sessions, channels])
            elif path.exists():
                raise DuopldaError(f"{path}: is of an earlier split, and this one has no {name}; remove it")
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder, parts, force)
    counts = {name: _counts(part) for name, part in parts.items()}
    if unused := n_speakers - sum(count["speakers"] for count in counts.values()):
        note(f"{unused:,} speakers are in no part")
    return counts


def _files(folder: Path, name: str) -> list[Path]:
    """The files of a part: labels and, unless it is for training, the enrolment and the trials."""
    return [folder / f"{name}{end}" for end in ([".csv"] if name == "train" else [".csv", "_enroll", "_trials"])]


def _write(folder: Path, parts: Mapping[str, splitting.Part], force: bool) -> None:
    """Write all files, or none of them."""
    paths = [path for name in parts for path in _files(folder, name)]
    with atomic_paths(*paths, force=force) as temporaries:
        free = iter(temporaries)
        for part in parts.values():
            table = next(free)
            columns = label_table(table, part.labels)
            write_columns(table, ".csv", [list(columns.values())], list(columns))
            if part.enrollment is not None and part.trials is not None:
                write_map(next(free), part.enrollment.model.values, part.enrollment.recording.values, force=True)
                write_trials(next(free), part.trials, force=True)


def _counts(part: splitting.Part) -> dict[str, int]:
    """The numbers of speakers, sessions, recordings, models and trials of a part."""
    labels = encoded_labels(part.labels)
    counts = {"speakers": len(labels.speaker_ids), "sessions": labels.n_sessions, "recordings": labels.n_recordings}
    if part.enrollment is not None and part.trials is not None and part.trials.target is not None:
        n_targets = int(np.count_nonzero(part.trials.target))
        counts |= {"models": len(part.enrollment.model.names), "trials": len(part.trials), "targets": n_targets}
    return counts
