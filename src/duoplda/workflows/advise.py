"""Advice: what labels can teach a model, and what training will choose for them."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path

from duoplda.errors import DuopldaError, OptionsError
from duoplda.estimators.advice import Advice
from duoplda.estimators.advice import advise as advise_on
from duoplda.io import read_embeddings, read_labels, read_recordings
from duoplda.io.label_index import encoded_labels
from duoplda.workflows._files import Note, PathLike, silent
from duoplda.workflows._labels import one_table


def advise(
    *,
    labels: PathLike | None = None,
    speakers: PathLike | None = None,
    sessions: PathLike | None = None,
    channels: PathLike | None = None,
    embeddings: PathLike | None = None,
    ids: str | None = None,
    note: Note = silent,
) -> tuple[Advice, list[str]]:
    """What the labels of files allow, and commands to go on with; none where training would refuse.

    `embeddings` are looked at for their dimensions alone; `labels` may be embeddings that have labels as columns.
    """
    one_table(labels, speakers=speakers, sessions=sessions, channels=channels)
    if labels is None and speakers is None:
        raise OptionsError("give either `labels` or `speakers` (with `sessions`)")
    if embeddings is None and ids is not None:
        raise OptionsError("`ids` is about embeddings: give `embeddings`")
    if embeddings is None and labels is not None and _has_vectors(Path(labels)):
        embeddings = labels
    if labels is not None and labels == embeddings:
        recordings = read_recordings(labels, ids=ids, own_labels=True, note=note)
        advice = advise_on(recordings, dimensions=recordings.source.dim)
    else:
        table = read_labels(speakers or labels, sessions, channels)  # type: ignore[arg-type]
        d = None if embeddings is None else read_embeddings(embeddings, ids).dim
        advice = advise_on(encoded_labels(table, note), dimensions=d)
    options = {"--embeddings": embeddings or "EMBEDDINGS", "--ids": ids, "--labels": labels, "--speakers": speakers}
    options |= {"--sessions": sessions, "--channels": channels}
    files = [str(word) for option, value in options.items() if value is not None for word in (option, value)]
    commands = list[list[str]]()
    if any(leaf.letter == "A" for leaf in advice.leaves):  # too little for a model of its own
        commands.append(["duoplda", "adapt", "--model", "MODEL", *files, "--out", "adapted.safetensors"])
    if advice.model:
        commands.append(["duoplda", "train", *files, "--out", "model.safetensors"])
    return advice, [shlex.join(words) for words in commands]


def _has_vectors(path: Path) -> bool:
    """Whether a table, or a folder or pattern, is embeddings that bring their own labels."""
    if path.suffix.lower() in (".parquet", ".pq") or path.is_dir() or "*" in path.name:
        with suppress(DuopldaError):
            return read_embeddings(path).dim > 0
    return False
