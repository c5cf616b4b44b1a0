"""What `duoplda train` and `duoplda adapt` share: recordings that are opened with the labels that are known of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duoplda.cli._common import say
from duoplda.errors import DuopldaError, MissingIds

if TYPE_CHECKING:
    from duoplda.io import LabelColumns


def opener(stack: ExitStack, show: Callable[..., None], dask: str | None, allow_missing: bool) -> Callable[..., Any]:
    """A function of embeddings, labels and ids that opens recordings, on this machine or on a cluster.

    Labels are a table, True (they are columns of the embeddings) or None. A cluster ends with the stack.
    """
    from duoplda.io import embedding_shards, read_recordings

    options: dict[str, Any] = {"allow_missing": allow_missing, "note": say, "show": show}
    if dask is None:

        def here(path: Path, labels: Any, ids: str | None = None) -> Any:
            own = labels is True
            return read_recordings(path, None if own else labels, ids=ids, own_labels=own, hashed=True, **options)

        return here
    from duoplda.engines.dask import connect, recordings

    client = stack.enter_context(connect(dask))
    return lambda path, labels, ids=None: recordings(embedding_shards(path, ids), labels, client=client, **options)


def read_known(
    embeddings: Path, speakers: Path | None, sessions: Path | None, channels: Path | None, labels: Path | None
) -> LabelColumns | bool | None:
    """Labels as `opener` takes them, as far as they are known."""
    from duoplda.io import label_columns, read_labels, read_map, read_sessions, source_files

    if speakers is not None:
        return read_labels(speakers, sessions, channels)
    if sessions is not None:
        return _sessions_alone([(read_map(sessions, "session") or {}, read_map(channels, "channel"))])
    if labels is None:
        return None
    own = labels == embeddings
    files = source_files(labels) if own else [labels]
    there = set[str]()
    with suppress(DuopldaError) if own else nullcontext():  # a format without room for labels, of which `opener` tells
        there = label_columns(files[0])
    if "session" in there and "speaker" not in there:
        return _sessions_alone([read_sessions(file) for file in files])
    return True if own else read_labels(labels)


def marks(path: Path) -> list[tuple[int, int]]:
    """Sizes of the files of embeddings, and when they were written, by which one sees that they have changed."""
    from duoplda.io import source_files

    return [(found.st_size, found.st_mtime_ns) for found in (file.stat() for file in source_files(path))]


def _sessions_alone(parts: Any) -> LabelColumns:
    """Labels of sessions whose speakers are unknown, of mappings from ids to sessions and kinds of channels."""
    import numpy as np

    from duoplda.io import LabelColumns

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
    ids, own, kind = (np.array(column, str) for column in columns)
    if len(kind) not in (0, len(ids)):
        raise DuopldaError("some of the files have a column of the channel, and some have none")
    return LabelColumns(ids, None, own, kind if len(kind) else None)
