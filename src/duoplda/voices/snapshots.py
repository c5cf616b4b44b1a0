"""A snapshot: the sums of voices in blocks of many, from which a program starts.

The sums of a voice are those of its sessions, and to read and add up these takes many times as long as to read bytes. A
block is of the time at which it was made: voices that have changed since are read from their sessions, and a block in
which a voice was that is removed, or one of whose sessions is, goes with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa

from duoplda.arrays import to_numpy
from duoplda.data.labels import Ints
from duoplda.model.parameters import Model
from duoplda.trials.sides import Sides
from duoplda.trials.tables import Table
from duoplda.voices.store import SNAPSHOT, VOICES, StoreError
from duoplda.voices.sums import Floats, checksum, packed, unnamed_sides, unpacked


def write_block(connection: sa.Connection, version: int, numbers: Sequence[int], sides: Sides) -> None:
    """Write voices, whose numbers increase."""
    parts = {
        "numbers": packed(np.asarray(numbers), "<i8"),
        "types": packed(sides.types, "<i8"),
        "counts": packed(sides.counts, "<i8"),
        "gamma": packed(to_numpy(sides.gamma), "<f8"),
    }
    row = {"version": version, "first": numbers[0], "last": numbers[-1], "n": len(numbers), "n_types": len(sides.types)}
    connection.execute(sa.insert(SNAPSHOT).values(**row, **parts, checksum=checksum(*parts.values())))


def read_snapshot(connection: sa.Connection, model: Model) -> Sides | None:
    """Read what the snapshot has of voices that have not changed since, as sides by number; None if there is none."""
    size, oldest = connection.execute(sa.select(sa.func.sum(SNAPSHOT.c.n), sa.func.min(SNAPSHOT.c.version))).one()
    if size is None:
        return None
    query = sa.select(VOICES.c.id, VOICES.c.version).where(VOICES.c.version > oldest)
    changed = np.array([tuple(row) for row in connection.execute(query)], np.int64).reshape(-1, 2)
    numbers = np.empty(size, np.int64)
    gamma = np.empty((size, model.ny))
    columns: dict[tuple[int, ...], int] = {}  # of counts, by the type of sessions that they count
    counts: list[tuple[int, Ints, list[int]]] = []
    n = 0
    for block in _blocks(connection, model):
        later = changed[changed[:, 1] > block.version, 0]
        kept = ~np.isin(block.numbers, later)
        end = n + int(kept.sum())
        numbers[n:end] = block.numbers[kept]
        gamma[n:end] = block.gamma if kept.all() else block.gamma[kept]
        places = [columns.setdefault(type_, len(columns)) for type_ in map(tuple, block.types.tolist())]
        counts.append((n, block.counts[kept], places))
        n = end
    every = np.zeros((n, len(columns)), np.int64)
    for start, some, places in counts:
        every[start : start + len(some), places] = some
    types = np.array([*columns], np.int64).reshape(-1, model.K)
    return unnamed_sides(model, types, Table(ids=numbers[:n], counts=every, gamma=gamma[:n]))


class VoiceBlock(NamedTuple):
    """Some voices as they were at some version of the registry."""

    version: int
    numbers: Ints  # (n,)
    types: Ints  # (T, K)
    counts: Ints  # (n, T)
    gamma: Floats  # (n, ny)


def _blocks(connection: sa.Connection, model: Model) -> Iterator[VoiceBlock]:
    """Read them one by one: together they may be large."""
    for number in connection.execute(sa.select(SNAPSHOT.c.id).order_by(SNAPSHOT.c.first)).scalars().all():
        row = connection.execute(sa.select(SNAPSHOT).where(SNAPSHOT.c.id == number)).one()
        try:
            if checksum(row.numbers, row.types, row.counts, row.gamma) != row.checksum:
                raise ValueError("its checksum does not match")
            numbers = unpacked(row.numbers, "<i8", row.n).astype(np.int64)
            types = unpacked(row.types, "<i8", row.n_types, model.K).astype(np.int64)
            counts = unpacked(row.counts, "<i8", row.n, row.n_types).astype(np.int64)
            gamma = unpacked(row.gamma, "<f8", row.n, model.ny).astype(float, copy=False)
        except (ValueError, TypeError) as error:
            raise StoreError(f"damaged rows: the snapshot ({error}): make it anew") from None
        yield VoiceBlock(row.version, numbers, types, counts, gamma)


def drop_blocks(connection: sa.Connection, voice: int | None = None) -> None:
    """Remove the blocks in which a voice may be; all of them, unless it is told."""
    gone = sa.delete(SNAPSHOT)
    if voice is not None:
        gone = gone.where(SNAPSHOT.c.first <= voice, SNAPSHOT.c.last >= voice)
    connection.execute(gone)
