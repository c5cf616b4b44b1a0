"""A snapshot: the sums of voices in blocks of many voices, from which a program starts.

Reading the sessions of a voice and adding them up takes many times as long as reading the bytes of its sum. A block has
the sums of the time at which it was made: voices that have changed since are read from their sessions. Where a voice or
one of its sessions is removed, the blocks that may hold it are removed with it, so that nothing of it remains.
"""

from __future__ import annotations

import numpy as np
import sqlalchemy as sa

from duoplda.arrays import to_numpy
from duoplda.data.labels import Ints
from duoplda.model.parameters import Model
from duoplda.trials.sides import Sides
from duoplda.trials.tables import Table
from duoplda.voices.store import SNAPSHOT, VOICES, StoreError
from duoplda.voices.sums import checksum, damage, packed, unpacked


def write_block(connection: sa.Connection, version: int, voices: Sides) -> None:
    """Write a block of voices, whose ids are numbers in increasing order."""
    numbers = voices.ids
    parts = {
        "numbers": packed(numbers, "<i8"),
        "types": packed(voices.types, "<i8"),
        "counts": packed(voices.counts, "<i8"),
        "gamma": packed(to_numpy(voices.gamma), "<f8"),
    }
    ends = {"first": int(numbers[0]), "last": int(numbers[-1])}
    row = {"version": version, **ends, "n": len(numbers), "n_types": len(voices.types)}
    connection.execute(sa.insert(SNAPSHOT).values(**row, **parts, checksum=checksum(*parts.values())))


def read_snapshot(connection: sa.Connection, model: Model) -> Sides | None:
    """Read the voices of the snapshot that have not changed since, as sides by number; None if there is no snapshot."""
    size, oldest = connection.execute(sa.select(sa.func.sum(SNAPSHOT.c.n), sa.func.min(SNAPSHOT.c.version))).one()
    if size is None:
        return None
    query = sa.select(VOICES.c.id, VOICES.c.version).where(VOICES.c.version > oldest)
    changed = np.array([tuple(row) for row in connection.execute(query)], np.int64).reshape(-1, 2)
    numbers = np.empty(size, np.int64)
    gamma = np.empty((size, model.ny))
    columns: dict[tuple[int, ...], int] = {}  # the column of the counts for each type of session
    counts: list[tuple[int, Ints, list[int]]] = []
    n = 0
    # Blocks are read one by one, as together they may be large.
    for block in connection.execute(sa.select(SNAPSHOT.c.id).order_by(SNAPSHOT.c.first)).scalars().all():
        row = connection.execute(sa.select(SNAPSHOT).where(SNAPSHOT.c.id == block)).one()
        m = row.n
        sizes = 8 * m, 8 * row.n_types * model.K, 8 * m * row.n_types, 8 * m * model.ny
        cause = damage(row.checksum, sizes, (row.numbers, row.types, row.counts, row.gamma))
        if cause is not None:
            raise StoreError(f"damaged rows: the snapshot ({cause}): make a new one")
        members = unpacked(row.numbers, "<i8", m)
        later = changed[changed[:, 1] > row.version, 0]
        kept = ~np.isin(members, later)
        end = n + int(kept.sum())
        numbers[n:end] = members[kept]
        gamma[n:end] = unpacked(row.gamma, "<f8", m, model.ny)[kept]
        types = unpacked(row.types, "<i8", row.n_types, model.K)
        places = [columns.setdefault(type_, len(columns)) for type_ in map(tuple, types.tolist())]
        counts.append((n, unpacked(row.counts, "<i8", m, row.n_types)[kept], places))
        n = end
    every = np.zeros((n, len(columns)), np.int64)
    for start, some, places in counts:
        every[start : start + len(some), places] = some
    types = np.array([*columns], np.int64).reshape(-1, model.K)
    return Sides(model, types, Table(ids=numbers[:n], counts=every, gamma=gamma[:n]))


def drop_blocks(connection: sa.Connection, voice: int | None = None) -> None:
    """Remove the blocks in which a voice may be, or all blocks if none is given."""
    gone = sa.delete(SNAPSHOT)
    if voice is not None:
        gone = gone.where(SNAPSHOT.c.first <= voice, SNAPSHOT.c.last >= voice)
    connection.execute(gone)
