"""The labels that training, adaptation and advice read: one table, lists, or columns of the embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext, suppress

import numpy as np

from duoplda.errors import DuopldaError, MissingIds
from duoplda.io import LabelColumns, label_columns, read_labels, read_sessions, source_files
from duoplda.workflows._files import ById, Columns, PathLike, labels_by_id
from duoplda.workflows.option import refuse


def one_table(labels: PathLike | None, *, needed: bool = False, **lists: PathLike | None) -> None:
    """Refuse lists of single labels beside a table of all labels; if `needed`, also refuse to have no speakers."""
    extra = [f"`{name}`" for name, path in lists.items() if path is not None]
    refuse(labels is not None and extra, f"`labels` is one table of all labels: leave out {' and '.join(extra)}")
    without = labels is None and lists.get("speakers") is None
    refuse(needed and without, "give either `labels` or `speakers` (with `sessions`)")


def read_known_labels(
    embeddings: PathLike,
    labels: PathLike | None,
    speakers: PathLike | None,
    sessions: PathLike | None,
    channels: PathLike | None,
    occasions: PathLike | None,
    columns: Columns,
) -> LabelColumns | bool | None:
    """Labels as far as they are known. True: they are columns of the embeddings; None: there are none."""
    if speakers is not None:
        return read_labels(speakers, sessions, channels, occasions=occasions, columns=columns)
    if sessions is not None:
        by_id = labels_by_id(sessions, channels, columns)
        return _sessions_alone([(by_id["session"] or {}, by_id["channel"])])
    if labels is None:
        return None
    in_embeddings = labels == embeddings
    files = source_files(labels) if in_embeddings else [labels]
    levels = set[str]()
    # The embeddings may be of a format that has no room for labels: then the reading of the recordings says so.
    with suppress(DuopldaError) if in_embeddings else nullcontext():
        levels = label_columns(files[0], columns)
    if "session" in levels and "speaker" not in levels:
        return _sessions_alone([read_sessions(file, columns) for file in files])
    return True if in_embeddings else read_labels(labels, columns=columns)


def _sessions_alone(parts: Iterable[tuple[ById | None, ById | None]]) -> LabelColumns:
    """Labels of sessions whose speakers are unknown, of mappings from ids to sessions and kinds of channels."""
    columns: list[list[str]] = [[], [], []]
    for session, channel in parts:
        if session is None:
            raise DuopldaError("some of the files have a column of the session, and some have none")
        columns[0] += session
        columns[1] += session.values()
        if channel is not None:
            if lack := [name for name in session if name not in channel]:
                raise MissingIds(f"{len(lack)} recordings have a session and no channel, the first: {lack[0]}")
            columns[2] += (channel[name] for name in session)
    ids, sessions, kinds = (np.array(column, str) for column in columns)
    if len(kinds) not in (0, len(ids)):
        raise DuopldaError("some of the files have a column of the channel, and some have none")
    return LabelColumns(ids, None, sessions, kinds if len(kinds) else None)
