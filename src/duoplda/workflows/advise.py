"""Advice: what labels can teach a model, and what training will choose for them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from duoplda.errors import DuopldaError
from duoplda.estimators.advice import Advice, ProposedSessions
from duoplda.estimators.advice import advise as advise_on
from duoplda.io import Coded, read_embeddings, read_labels, read_recordings, write_map
from duoplda.io.common import TABLE_SUFFIXES
from duoplda.io.labels import write_table
from duoplda.io.recordings import encoded_labels
from duoplda.workflows import option
from duoplda.workflows._files import Columns, Note, PathLike, silent
from duoplda.workflows._labels import one_table
from duoplda.workflows.option import refuse


def advise(
    *,
    labels: option.Labels = None,
    speakers: option.Speakers = None,
    sessions: option.TrainingSessions = None,
    channels: option.TrainingChannels = None,
    embeddings: option.LookedAtEmbeddings = None,
    ids: option.Ids = None,
    columns: option.Columns = None,
    write_sessions: option.WriteSessions = None,
    force: option.Force = False,
    note: Note = silent,
) -> tuple[Advice, list[str]]:
    """What the labels of files allow, and the commands to go on with, of which there may be none.

    Of `embeddings`, only the number of dimensions is read; `labels` may be embeddings that have labels as columns.
    Sessions that the ids seem to name are written to `write_sessions`.
    """
    one_table(labels, needed=True, speakers=speakers, sessions=sessions, channels=channels)
    refuse(embeddings is None and ids is not None, "`ids` is about embeddings: give `embeddings`")
    if embeddings is None and labels is not None and _has_vectors(Path(labels), columns):
        embeddings = labels
    if labels is not None and labels == embeddings:
        recordings = read_recordings(labels, ids=ids, columns=columns, own_labels=True, note=note)
        names = recordings.source.ids()
        advice = advise_on(recordings, ids=names, dimensions=recordings.source.dim)
    else:
        table = read_labels(speakers or labels, sessions, channels, columns=columns)  # type: ignore[arg-type]
        d = None if embeddings is None else read_embeddings(embeddings, ids, columns=columns).dim
        names = table.ids
        advice = advise_on(encoded_labels(table, note), ids=names, dimensions=d)
    if write_sessions is not None:
        if advice.proposed is None:
            raise DuopldaError("`write_sessions`: sessions are given, or the ids seem to name none: nothing to write")
        _write_sessions(write_sessions, names, advice.proposed, force)
    typed = {"--embeddings": embeddings or "EMBEDDINGS", "--ids": ids, "--labels": labels, "--speakers": speakers}
    typed |= {"--sessions": sessions, "--channels": channels}
    if columns:
        typed["--columns"] = ",".join(f"{meaning}={name}" for meaning, name in columns.items())
    return advice, [shlex.join(words) for words in _commands(advice, typed, write_sessions)]


def _commands(advice: Advice, typed: dict[str, Any], write_sessions: PathLike | None) -> Iterator[list[str]]:
    """The commands to go on with, by the options that were typed for the advice."""
    speakers = typed["--speakers"] or typed["--labels"]
    if advice.proposed is not None and Path(speakers).is_file():
        # A list of sessions goes with a list of speakers, and the table can be read as such a list.
        out = write_sessions or "utt2sess"
        if write_sessions is None:
            given = {name: typed.get(name) for name in ("--labels", "--speakers", "--columns")}
            yield ["duoplda", "advise", *_words(given), "--write-sessions", str(out)]
        typed = typed | {"--labels": None, "--speakers": speakers, "--sessions": out}
    files = _words(typed)
    if any(leaf.letter == "A" for leaf in advice.leaves):  # too little for a model of its own
        yield ["duoplda", "adapt", "--model", "MODEL", *files, "--out", "adapted.safetensors"]
    if advice.model:
        yield ["duoplda", "train", *files, "--out", "model.safetensors"]


def _words(options: Mapping[str, object]) -> list[str]:
    """The options that are given, as they are typed."""
    return [str(word) for name, value in options.items() if value is not None for word in (name, value)]


def _write_sessions(path: PathLike, ids: NDArray[Any], proposed: ProposedSessions, force: bool) -> None:
    """Write lines `recording session`, or a table of them."""
    if Path(path).suffix.lower() in TABLE_SUFFIXES:
        write_table(path, {"id": Coded.of(ids), "session": Coded.of(proposed.names)}, force=force)
    else:
        write_map(path, ids, proposed.names, force=force)


def _has_vectors(path: Path, columns: Columns) -> bool:
    """Whether a table, or a folder or pattern, is embeddings that bring their own labels."""
    if path.suffix.lower() in (".parquet", ".pq") or path.is_dir() or "*" in path.name:
        with suppress(DuopldaError):
            return read_embeddings(path, columns=columns).dim > 0
    return False
