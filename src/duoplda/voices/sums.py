"""Sufficient statistics of sessions: made from recordings, added up to sides of trials, and stored as bytes.

A session has a type (K,) (its numbers of recordings of each kind), gamma (ny,) and z (nx,), as in
`duoplda.trials.sides`. A voice is the sum of its sessions, so that a session can be removed as if it had never been
added.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.arrays import segment_sums, to_numpy
from duoplda.data.labels import Ints
from duoplda.estimators.backend import Backend
from duoplda.model.parameters import Model
from duoplda.trials.meeting import Meeting
from duoplda.trials.sides import Sides
from duoplda.trials.tables import Table

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StoredSums:
    """The statistics of some sessions."""

    types: Ints  # (h, K)
    gamma: Floats  # (h, ny)
    z: Floats  # (h, nx)

    @classmethod
    def of(cls, chain: Backend, X: ArrayLike, session: Ints, kind: ArrayLike | None) -> StoredSums:
        """Return the statistics of recordings (n, d) in the sessions 0 .. h - 1."""
        sides = chain.enroll(X, session, session, kind)
        types = sides.types[sides.session_type]
        return cls(types, to_numpy(sides.gamma), to_numpy(sides.z))

    def __len__(self) -> int:
        return len(self.types)

    def __getitem__(self, rows: slice | Ints | Sequence[int]) -> StoredSums:
        return StoredSums(self.types[rows], self.gamma[rows], self.z[rows])

    def joined(self, other: StoredSums, model: Model) -> StoredSums:
        """Return each session joined with one session of `other`: the recordings of both are then one session."""
        shift = Meeting(model, self.types, other.types).shift(self.z, other.z)
        return StoredSums(self.types + other.types, self.gamma + other.gamma + shift, self.z + other.z)

    def sides(self, model: Model, ids: Sequence[Hashable], owner: Ints) -> Sides:
        """Return voices as sides of trials; `owner` (h,), in increasing order, is the voice of each session.

        The sessions have no names, because recordings that are asked about are never of an enrolled session.
        """
        types, type_ = np.unique(self.types, axis=0, return_inverse=True)
        n = len(ids)
        counts = np.bincount(owner * len(types) + type_.reshape(-1), minlength=n * len(types)).reshape(n, len(types))
        gamma = np.zeros((n, model.ny))
        if len(owner):
            starts = np.flatnonzero(np.diff(owner, prepend=-1))
            gamma[owner[starts]] = segment_sums(self.gamma, starts)
        return Sides(model, types, Table(ids=np.asarray(ids), counts=counts, gamma=gamma))


# -- bytes


def packed(array: NDArray[np.generic], dtype: str) -> bytes:
    """Return the numbers of an array as bytes in little-endian order."""
    return np.ascontiguousarray(array, dtype).tobytes()


def unpacked(data: bytes, dtype: str, *shape: int) -> NDArray[Any]:
    """Return the array from bytes of `packed`."""
    return np.frombuffer(data, dtype).reshape(shape).astype(np.dtype(dtype).newbyteorder("="), copy=False)


def checksum(*parts: bytes) -> int:
    """Return the CRC-32 of some bytes, by which rows are found that a disk or a program has damaged."""
    value = 0
    for part in parts:
        value = zlib.crc32(part, value)
    return value


def damage(sum_of_row: int, sizes: Sequence[int], parts: Sequence[object]) -> str | None:
    """Say what is wrong with the bytes of a row, which must have these sizes and this checksum; None if nothing is."""
    for part, size in zip(parts, sizes, strict=True):
        if not isinstance(part, bytes) or len(part) != size:
            n = len(part) if isinstance(part, bytes) else type(part).__name__
            return f"{n} bytes, expected {size}"
    return None if checksum(*parts) == sum_of_row else "its checksum does not match"  # type: ignore[arg-type]
