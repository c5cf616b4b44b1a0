"""A registry as one file, from which another registry is made on another machine or in another database.

The file is a container of duoplda: the statistics of all sessions as arrays, the embeddings if they are kept, and a
header with names and dates.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from duoplda.data.labels import Ints
from duoplda.errors import DuopldaError
from duoplda.io import read_container, write_container
from duoplda.io.common import PathLike
from duoplda.model.parameters import Model
from duoplda.trials.side_files import check_numbers
from duoplda.voices.given import checked_name
from duoplda.voices.rows import Kept, bytes_of, keep_embeddings, kept_embeddings, unpacked_sums
from duoplda.voices.store import REGISTRY, SESSIONS, VOICES
from duoplda.voices.sums import StoredSums

KIND = "duoplda-voices"
ROWS_OF_AN_INSERT = 1000


def write_export(path: PathLike, connection: sa.Connection, *, force: bool) -> None:
    """Write the whole registry to a file, which appears whole or not at all."""
    registry = connection.execute(sa.select(REGISTRY)).one()
    voices = connection.execute(sa.select(VOICES).order_by(VOICES.c.id)).all()
    rows = connection.execute(sa.select(SESSIONS).order_by(SESSIONS.c.voice, SESSIONS.c.id)).all()
    sizes = registry.n_kinds, registry.n_speaker_factors, registry.n_session_factors
    sums = unpacked_sums(connection, rows, *sizes)
    place = {row.id: i for i, row in enumerate(voices)}
    header: dict[str, Any] = {"model": registry.fingerprint, "keep": registry.keep, "created": registry.created}
    header["voices"] = [[row.name, row.created, row.changed, row.by] for row in voices]
    header["sessions"] = [[row.name, row.added, row.by] for row in rows]
    arrays: dict[str, NDArray[Any]] = {"voice": np.array([place[row.voice] for row in rows], np.int64)}
    arrays |= {"type": sums.types, "gamma": sums.gamma, "z": sums.z}
    if registry.keep == "embeddings":
        number = {row.id: i for i, row in enumerate(rows)}
        kinds = []
        for session, parts in kept_embeddings(connection):
            for p, (X, kinds_of_part) in enumerate(parts):
                arrays[f"embeddings.{number[session]}.{p}"] = X
                kinds.append([number[session], p, kinds_of_part])
        header["kinds"] = kinds
    write_container(path, KIND, arrays, header, force=force)


@dataclass(frozen=True, eq=False)
class Export:
    """The contents of a file of `write_export`."""

    header: dict[str, Any]  # keep, created, voices and sessions
    owner: Ints  # (h,) the voice of each session, as a place in the list of voices
    sums: StoredSums  # the sums of the sessions
    parts: dict[int, list[Kept]]  # the recordings of each session, if they are kept

    def insert(self, connection: sa.Connection) -> None:
        """Fill the tables of an empty registry."""
        voices = (
            {"id": i + 1, "name": name, "created": created, "changed": changed, "by": by, "version": 0}
            for i, (name, created, changed, by) in enumerate(self.header["voices"])
        )
        sessions = (
            {"id": i + 1, "voice": int(self.owner[i]) + 1, "name": name, "added": added, "by": by}
            | bytes_of(self.sums[[i]])
            for i, (name, added, by) in enumerate(self.header["sessions"])
        )
        for table, rows in ((VOICES, voices), (SESSIONS, sessions)):
            while batch := [*islice(rows, ROWS_OF_AN_INSERT)]:
                connection.execute(sa.insert(table), batch)
            if connection.dialect.name == "postgresql":  # its counters are not moved by rows that bring their number
                last = f"coalesce((SELECT max(id) FROM {table.name}), 1)"
                connection.exec_driver_sql(f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), {last})")
        for session, parts in self.parts.items():
            for X, kinds in parts:
                keep_embeddings(connection, session + 1, X, None if kinds is None else np.array(kinds))


def read_export(path: PathLike, model: Model, fingerprint: str) -> Export:
    """Read and check a file of `write_export`, which must be for this model."""
    arrays, header = read_container(path, [KIND])
    if header.get("model") != fingerprint:
        raise DuopldaError(f"{path}: these voices were enrolled by another model: give that one")
    try:
        return _checked(arrays, header, model)
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise DuopldaError(f"{path}: is damaged: {error}") from None


def _checked(arrays: dict[str, NDArray[Any]], header: dict[str, Any], model: Model) -> Export:
    voices = header["voices"]
    sessions = header["sessions"]
    h = len(sessions)
    check_numbers(arrays, {"voice": (h,), "type": (h, model.K), "gamma": (h, model.ny), "z": (h, model.nx)})
    owner = arrays["voice"]
    for name, *_ in (*voices, *sessions):
        checked_name(name)
    for date in [voice[1] for voice in voices] + [voice[2] for voice in voices] + [s[1] for s in sessions]:
        datetime.fromisoformat(date)
    pairs = {(int(v), session[0]) for v, session in zip(owner.tolist(), sessions, strict=True)}
    if (
        len({name for name, *_ in voices}) < len(voices)
        or len(pairs) < h
        or not np.array_equal(np.unique(owner), np.arange(len(voices)))
    ):
        raise ValueError("its voices and sessions do not fit together")
    parts: dict[int, list[Kept]] = {}
    for session, part, kinds in header.get("kinds", ()):
        X = arrays[f"embeddings.{session}.{part}"]
        if X.ndim != 2 or X.dtype not in (np.float32, np.float64) or not (kinds is None or len(kinds) == len(X)):
            raise ValueError(f"the embeddings of session {session} are {X.dtype} of shape {X.shape}")
        parts.setdefault(session, []).append((X, kinds))
    if header["keep"] == "embeddings" and len(parts) < h:
        raise ValueError("there are sessions without embeddings")
    return Export(header, owner, StoredSums(arrays["type"], arrays["gamma"], arrays["z"]), parts)
