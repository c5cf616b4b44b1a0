"""Rows of the tables of a registry: what is written, read, and found to be damaged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from duoplda.errors import MissingIds
from duoplda.estimators.backend import Backend
from duoplda.estimators.files import fingerprint
from duoplda.model.parameters import Model
from duoplda.voices.answers import Session, Voice
from duoplda.voices.given import checked_name
from duoplda.voices.snapshots import drop_blocks
from duoplda.voices.store import EMBEDDINGS, REMOVED, SESSIONS, VOICES, StoreError
from duoplda.voices.sums import StoredSums, checksum, packed, unpacked

Kept = tuple[NDArray[Any], list[Any] | None]  # recordings and their kinds, as they came

# -- written


def insert(connection: sa.Connection, table: sa.Table, **values: Any) -> int:
    return int(connection.execute(sa.insert(table).values(**values).returning(table.c.id)).scalar_one())


def bytes_of(sums: StoredSums) -> dict[str, Any]:
    """The columns of one session's sums."""
    parts = packed(sums.types, "<i8"), packed(sums.gamma, "<f8"), packed(sums.z, "<f8")
    row = dict(zip(("type", "gamma", "z"), parts, strict=True))
    return row | {"n_recordings": int(sums.types.sum()), "checksum": checksum(*parts)}


def add_session(connection: sa.Connection, voice: int, name: str, sums: StoredSums, by: str | None) -> int:
    return insert(connection, SESSIONS, voice=voice, name=name, added=now(), by=by, **bytes_of(sums))


def replace_sums(connection: sa.Connection, session: int, sums: StoredSums) -> None:
    connection.execute(sa.update(SESSIONS).where(SESSIONS.c.id == session).values(**bytes_of(sums)))


def keep_embeddings(connection: sa.Connection, session: int, X: NDArray[Any], kinds: NDArray[Any] | None) -> None:
    """Keep recordings of a session, as single or double floats, whatever they were."""
    dtype = "<f4" if X.dtype == np.float32 else "<f8"
    vectors = packed(X, dtype)
    told = None if kinds is None else json.dumps(kinds.tolist())
    n, d = X.shape
    row = {"session": session, "n": n, "d": d, "dtype": dtype, "kinds": told}
    connection.execute(sa.insert(EMBEDDINGS).values(**row, vectors=vectors, checksum=checksum(vectors)))


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


# -- read


def find_voice(connection: sa.Connection, name: str) -> int | None:
    """The number of a voice by name, if there is one."""
    number = connection.execute(sa.select(VOICES.c.id).where(VOICES.c.name == checked_name(name))).scalar()
    return None if number is None else int(number)


def number_of(connection: sa.Connection, name: str) -> int:
    """The number of a voice by name, which must be there."""
    number = find_voice(connection, name)
    if number is None:
        raise MissingIds(f"there is no voice {name!r}")
    return number


def sessions_by_name(connection: sa.Connection, voice: int) -> dict[str, int]:
    """The numbers of the sessions of a voice."""
    columns = sa.select(SESSIONS.c.name, SESSIONS.c.id).where(SESSIONS.c.voice == voice).order_by(SESSIONS.c.id)
    return {str(name): int(number) for name, number in connection.execute(columns)}


def counted_voices() -> sa.Select[Any]:
    """Voices, with their numbers of sessions and recordings."""
    totals = sa.func.count(SESSIONS.c.id), sa.func.coalesce(sa.func.sum(SESSIONS.c.n_recordings), 0)
    columns: list[Any] = [VOICES, totals[0].label("n_sessions"), totals[1].label("recordings")]
    return sa.select(*columns).select_from(VOICES.outerjoin(SESSIONS)).group_by(VOICES.c.id)


def voice_of(row: sa.Row[Any], sessions: tuple[Session, ...] = ()) -> Voice:
    created = datetime.fromisoformat(row.created)
    changed = datetime.fromisoformat(row.changed)
    return Voice(row.name, int(row.n_sessions), int(row.recordings), created, changed, row.by, sessions)


def session_of(row: sa.Row[Any]) -> Session:
    return Session(row.name, int(row.n_recordings), datetime.fromisoformat(row.added), row.by)


def described(chain: Backend) -> dict[str, Any]:
    """The columns of the registry that a model fills."""
    model = chain.ratio_model_
    sizes = {"n_kinds": model.K, "n_speaker_factors": model.ny, "n_session_factors": model.nx}
    return {"fingerprint": fingerprint(chain), **sizes}


def now() -> str:
    return datetime.now(UTC).isoformat()


def sums_of(connection: sa.Connection, model: Model, sessions: Sequence[int]) -> StoredSums:
    """The sums of sessions by number."""
    rows = connection.execute(sa.select(SESSIONS).where(SESSIONS.c.id.in_(sessions))).all()
    return unpacked_sums(connection, rows, model.K, model.ny, model.nx)


def unpacked_sums(connection: sa.Connection, rows: Sequence[sa.Row[Any]], K: int, ny: int, nx: int) -> StoredSums:
    """The sums of rows of sessions, of K kinds and so many factors; those that are damaged are named."""
    h = len(rows)
    sizes = 8 * K, 8 * ny, 8 * nx
    parts = [(row.type, row.gamma, row.z) for row in rows]
    sound = (tuple(map(len, part)) == sizes for part in parts)
    if all(sound) and all(checksum(*part) == row.checksum for part, row in zip(parts, rows, strict=True)):
        type_, gamma, z = (b"".join(column) for column in zip(*parts, strict=True)) if parts else (b"", b"", b"")
        floats = unpacked(gamma, "<f8", h, ny).astype(float), unpacked(z, "<f8", h, nx).astype(float)
        return StoredSums(unpacked(type_, "<i8", h, K).astype(np.int64), *floats)
    out = StoredSums(np.empty((h, K), np.int64), np.empty((h, ny)), np.empty((h, nx)))
    wrong = []
    for i, row in enumerate(rows):
        try:
            out.types[i] = unpacked(row.type, "<i8", K)
            out.gamma[i] = unpacked(row.gamma, "<f8", ny)
            out.z[i] = unpacked(row.z, "<f8", nx)
            _same_checksum(row.checksum, row.type, row.gamma, row.z)
        except ValueError as error:
            owner = connection.execute(sa.select(VOICES.c.name).where(VOICES.c.id == row.voice)).scalar()
            wrong.append(f"session {row.name!r} of {owner!r} ({error})")
    if wrong:
        raise _damaged(wrong)
    return out


def kept_embeddings(connection: sa.Connection) -> Iterator[tuple[int, list[Kept]]]:
    """Each session's number, and its recordings and their kinds, in the parts in which they came."""
    for session_id, name in connection.execute(sa.select(SESSIONS.c.id, SESSIONS.c.name)).all():
        parts = []
        query = sa.select(EMBEDDINGS).where(EMBEDDINGS.c.session == session_id).order_by(EMBEDDINGS.c.id)
        for row in connection.execute(query).all():
            try:
                _same_checksum(row.checksum, row.vectors)
                if row.dtype not in ("<f4", "<f8"):
                    raise ValueError(f"its numbers are {row.dtype!r}")
                kinds = None if row.kinds is None else [*json.loads(row.kinds)]
                parts.append((unpacked(row.vectors, row.dtype, row.n, row.d), kinds))
            except (ValueError, TypeError) as error:
                raise _damaged([f"the embeddings of session {name!r} ({error})"]) from None
        if not parts:
            raise _damaged([f"session {name!r} (it has no embeddings)"])
        yield int(session_id), parts


def _same_checksum(expected: int, *parts: bytes) -> None:
    if checksum(*parts) != expected:
        raise ValueError("its checksum does not match")


def _damaged(rows: Iterable[str]) -> StoreError:
    return StoreError(f"damaged rows: {'; '.join(rows)}: remove these sessions, or import an export")
