"""Rows of the tables of a registry: how they are written and read, and how damaged ones are found."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from duoplda.errors import MissingIds
from duoplda.estimators.backend import Backend
from duoplda.estimators.files import fingerprint
from duoplda.model.parameters import Model
from duoplda.trials.sides import Sides
from duoplda.voices.answers import Session, Voice
from duoplda.voices.given import checked_name
from duoplda.voices.snapshots import drop_blocks
from duoplda.voices.store import EMBEDDINGS, REMOVED, SESSIONS, VOICES, StoreError
from duoplda.voices.sums import StoredSums, checksum, damage, packed, unpacked

Kept = tuple[NDArray[Any], list[Any] | None]  # recordings and their kinds, as they were given

VOICES_OF_A_QUERY = 500  # databases limit how many values a query may have
NAMES_OF_A_FETCH = 10_000  # fetched one by one, names take twice as long; all at once they take much memory

# -- writing


def insert(connection: sa.Connection, table: sa.Table, **values: Any) -> int:
    return int(connection.execute(sa.insert(table).values(**values).returning(table.c.id)).scalar_one())


def bytes_of(sums: StoredSums) -> dict[str, Any]:
    """Return the columns with the sums of one session."""
    parts = packed(sums.types, "<i8"), packed(sums.gamma, "<f8"), packed(sums.z, "<f8")
    row = dict(zip(("type", "gamma", "z"), parts, strict=True))
    return row | {"n_recordings": int(sums.types.sum()), "checksum": checksum(*parts)}


def replace_sums(connection: sa.Connection, session: int, sums: StoredSums) -> None:
    connection.execute(sa.update(SESSIONS).where(SESSIONS.c.id == session).values(**bytes_of(sums)))


def keep_embeddings(connection: sa.Connection, session: int, X: NDArray[Any], kinds: NDArray[Any] | None) -> None:
    """Keep recordings of a session: those in single precision as such, and all others in double precision."""
    dtype = "<f4" if X.dtype == np.float32 else "<f8"
    vectors = packed(X, dtype)
    kinds_as_json = None if kinds is None else json.dumps(kinds.tolist())
    n, d = X.shape
    row = {"session": session, "n": n, "d": d, "dtype": dtype, "kinds": kinds_as_json}
    connection.execute(sa.insert(EMBEDDINGS).values(**row, vectors=vectors, checksum=checksum(vectors)))


def join_sessions(connection: sa.Connection, model: Model, session: int, into: int) -> None:
    """Make one session of two: `into` gets the recordings of `session`, which is removed."""
    joined = sums_of(connection, model, into).joined(sums_of(connection, model, session), model)
    replace_sums(connection, into, joined)
    connection.execute(sa.update(EMBEDDINGS).where(EMBEDDINGS.c.session == session).values(session=into))
    connection.execute(sa.delete(SESSIONS).where(SESSIONS.c.id == session))


def drop_sessions(connection: sa.Connection, which: sa.ColumnElement[bool]) -> None:
    sessions = sa.select(SESSIONS.c.id).where(which)
    connection.execute(sa.delete(EMBEDDINGS).where(EMBEDDINGS.c.session.in_(sessions)))
    connection.execute(sa.delete(SESSIONS).where(which))


def forget(connection: sa.Connection, voice: int, version: int, by: str | None) -> None:
    """Remove a voice that has no sessions any more; its number stays, for other programs that have read it."""
    drop_blocks(connection, voice)
    connection.execute(sa.delete(VOICES).where(VOICES.c.id == voice))
    connection.execute(sa.insert(REMOVED).values(voice=voice, version=version, removed=now(), by=by))


def touch(connection: sa.Connection, voice: int, version: int, by: str | None) -> None:
    """Note that a voice has changed."""
    values = {"changed": now(), "version": version, "by": by}
    connection.execute(sa.update(VOICES).where(VOICES.c.id == voice).values(**values))


# -- reading


def names_of(connection: sa.Connection, query: sa.Select[Any]) -> dict[int, str]:
    """Return the names of voices by number; `query` selects both."""
    parts = connection.execute(query).partitions(NAMES_OF_A_FETCH)
    return {int(number): str(name) for part in parts for number, name in part}


def sides_of(connection: sa.Connection, model: Model, ids: Mapping[int, Hashable], *, every: bool) -> Iterator[Sides]:
    """Yield voices as sides of trials, some voices at a time; `ids` gives the id of each by its number.

    `every` says that `ids` has all voices of the registry, so that ranges of numbers can be read.
    """
    columns = sa.select(SESSIONS).order_by(SESSIONS.c.voice, SESSIONS.c.id)
    numbers = sorted(ids)
    for start in range(0, len(numbers), VOICES_OF_A_QUERY):
        voices = numbers[start : start + VOICES_OF_A_QUERY]
        where = SESSIONS.c.voice.between(voices[0], voices[-1]) if every else SESSIONS.c.voice.in_(voices)
        sessions = connection.execute(columns.where(where)).all()
        owner = np.searchsorted(voices, [row.voice for row in sessions])
        sums = unpacked_sums(connection, sessions, model.K, model.ny, model.nx)
        yield sums.sides(model, [ids[number] for number in voices], owner)


def find_voice(connection: sa.Connection, name: str) -> int | None:
    """Return the number of a voice by name; None if there is none."""
    number = connection.execute(sa.select(VOICES.c.id).where(VOICES.c.name == checked_name(name))).scalar()
    return None if number is None else int(number)


def number_of(connection: sa.Connection, name: str) -> int:
    """Return the number of a voice by name, which must be there."""
    number = find_voice(connection, name)
    if number is None:
        raise MissingIds(f"there is no voice {name!r}")
    return number


def sessions_by_name(connection: sa.Connection, voice: int) -> dict[str, int]:
    """Return the numbers of the sessions of a voice by name, in the order in which they were added."""
    columns = sa.select(SESSIONS.c.name, SESSIONS.c.id).where(SESSIONS.c.voice == voice).order_by(SESSIONS.c.id)
    return {str(name): int(number) for name, number in connection.execute(columns)}


def counted_voices() -> sa.Select[Any]:
    """Return a query for voices with their numbers of sessions and recordings."""
    totals = sa.func.count(SESSIONS.c.id), sa.func.coalesce(sa.func.sum(SESSIONS.c.n_recordings), 0)
    columns: list[Any] = [VOICES, totals[0].label("n_sessions"), totals[1].label("recordings")]
    return sa.select(*columns).select_from(VOICES.outerjoin(SESSIONS)).group_by(VOICES.c.id)


def voice_of(row: sa.Row[Any], sessions: Iterable[sa.Row[Any]] = ()) -> Voice:
    """Return a voice from a row of `counted_voices` and rows of its sessions."""
    created, changed = map(datetime.fromisoformat, (row.created, row.changed))
    parts = (Session(s.name, int(s.n_recordings), datetime.fromisoformat(s.added), s.by) for s in sessions)
    return Voice(row.name, int(row.n_sessions), int(row.recordings), created, changed, row.by, tuple(parts))


def described(chain: Backend) -> dict[str, Any]:
    """Return the columns of the registry that describe its model."""
    model = chain.ratio_model_
    sizes = {"n_kinds": model.K, "n_speaker_factors": model.ny, "n_session_factors": model.nx}
    return {"fingerprint": fingerprint(chain), **sizes}


def now() -> str:
    return datetime.now(UTC).isoformat()


def sums_of(connection: sa.Connection, model: Model, session: int) -> StoredSums:
    """Return the sums of one session by number."""
    rows = connection.execute(sa.select(SESSIONS).where(SESSIONS.c.id == session)).all()
    return unpacked_sums(connection, rows, model.K, model.ny, model.nx)


def unpacked_sums(connection: sa.Connection, rows: Sequence[sa.Row[Any]], K: int, ny: int, nx: int) -> StoredSums:
    """Return the sums in rows of sessions, for K kinds and ny and nx factors; an error names damaged rows."""
    h = len(rows)
    sizes = 8 * K, 8 * ny, 8 * nx
    parts = [(row.type, row.gamma, row.z) for row in rows]
    wrong = []
    for row, part in zip(rows, parts, strict=True):
        cause = damage(row.checksum, sizes, part)
        if cause is not None:
            owner = connection.execute(sa.select(VOICES.c.name).where(VOICES.c.id == row.voice)).scalar()
            wrong.append(f"session {row.name!r} of {owner!r} ({cause})")
    if wrong:
        raise _damaged(*wrong)
    type_, gamma, z = (b"".join(column) for column in zip(*parts, strict=True)) if parts else (b"", b"", b"")
    return StoredSums(unpacked(type_, "<i8", h, K), unpacked(gamma, "<f8", h, ny), unpacked(z, "<f8", h, nx))


def kept_embeddings(connection: sa.Connection) -> Iterator[tuple[int, list[Kept]]]:
    """Yield the number of each session with its recordings and their kinds, in the parts in which they were added."""
    for session_id, name in connection.execute(sa.select(SESSIONS.c.id, SESSIONS.c.name)).all():
        parts = []
        query = sa.select(EMBEDDINGS).where(EMBEDDINGS.c.session == session_id).order_by(EMBEDDINGS.c.id)
        for row in connection.execute(query).all():
            try:
                size = row.n * row.d * {"<f4": 4, "<f8": 8}[row.dtype]
                cause = damage(row.checksum, [size], [row.vectors])
                kinds = None if row.kinds is None else [*json.loads(row.kinds)]
            except (KeyError, ValueError, TypeError) as error:
                cause = str(error)
            if cause is not None:
                raise _damaged(f"the embeddings of session {name!r} ({cause})")
            parts.append((unpacked(row.vectors, row.dtype, row.n, row.d), kinds))
        if not parts:
            raise _damaged(f"session {name!r} (it has no embeddings)")
        yield int(session_id), parts


def _damaged(*rows: str) -> StoreError:
    return StoreError(f"damaged rows: {'; '.join(rows)}: remove these sessions, or import an export")
