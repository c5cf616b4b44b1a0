"""What users give to a registry: names, recordings, their sessions and kinds, checked once."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.arrays import to_numpy
from duoplda.data.labels import Ints
from duoplda.errors import UNPRINTABLE, DuopldaError

LONGEST_NAME = 500

Labels = ArrayLike | None


@dataclass(frozen=True, eq=False)
class Addition:
    """Recordings of one voice, checked."""

    name: str
    X: NDArray[Any]  # (n, d)
    sessions: list[str] | None  # None: they have no names yet
    session: Ints  # (n,)
    kinds: NDArray[Any] | None  # (n,)

    @classmethod
    def of(cls, name: str, X: ArrayLike, session: Labels, kind: Labels) -> Addition:
        rows = matrix(X)
        return cls(checked_name(name), rows, *sessions_of(session, len(rows)), kinds_of(kind, len(rows)))

    def part(self, session: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """The recordings of one session, and their kinds."""
        rows = self.session == session
        return self.X[rows], None if self.kinds is None else self.kinds[rows]


def checked_name(name: str, what: str = "a name") -> str:
    """A name in Unicode's composed form, so that one that looks the same is the same."""
    if not isinstance(name, str) or not name.strip() or name != name.strip() or len(name) > LONGEST_NAME:
        raise DuopldaError(
            f"{name!r:.100} is not {what}: names are texts of 1 to {LONGEST_NAME} characters without spaces at the ends"
        )
    if UNPRINTABLE.search(name):
        raise DuopldaError(f"{name!r:.100} is not {what}: it has characters that do not print")
    return unicodedata.normalize("NFC", name)


def matrix(X: ArrayLike) -> NDArray[Any]:
    """Recordings (n, d) of the host, at least one of them."""
    try:
        rows = to_numpy(X)
        rows = rows if rows.dtype in (np.float32, np.float64) else rows.astype(float)
    except (TypeError, ValueError):
        raise DuopldaError("recordings must be numbers, (n, d) or (d,), in rows of one length") from None
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or not len(rows):
        raise DuopldaError(f"recordings must be (n, d) or (d,), at least one, got shape {rows.shape}")
    return rows


def sessions_of(session: Labels, n: int) -> tuple[list[str] | None, Ints]:
    """The names of sessions in the order in which they occur, and which one each recording is of."""
    if session is None:
        return None, np.arange(n)
    named = np.asarray(session)
    labels = [str(label) for label in (named.tolist() if named.ndim else [named.item()] * n)]
    if len(labels) != n:
        raise DuopldaError(f"there are {n} recordings and {len(labels)} names of sessions")
    names = [checked_name(label, "a name of a session") for label in labels]
    places = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return [*places], np.array([places[name] for name in names], np.int64)


def kinds_of(kind: Labels, n: int) -> NDArray[Any] | None:
    """The kind of each recording, None if it is not told."""
    if kind is None:
        return None
    kinds = np.asarray(kind)
    kinds = kinds if kinds.ndim else np.full(n, kinds)
    if kinds.shape != (n,):
        raise DuopldaError(f"there are {n} recordings and {kinds.size} kinds of channels")
    return kinds


def numbered(n: int, taken: Iterable[str]) -> list[str]:
    """Names of n sessions that have none: the first numbers that are free."""
    used = set(taken)
    out: list[str] = []
    number = len(used)
    while len(out) < n:
        number += 1
        if str(number) not in used:
            out.append(str(number))
    return out
