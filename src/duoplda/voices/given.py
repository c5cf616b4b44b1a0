"""The input of a registry, checked once: names, recordings, and their sessions and kinds of channels."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable
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
class Given:
    """The checked recordings of one person."""

    X: NDArray[Any]  # (n, d)
    sessions: list[str] | None  # names of sessions in the order in which they occur; None: they have no names
    session: Ints  # (n,) the place of each recording's session in that list
    kinds: NDArray[Any] | None  # (n,) kinds of channels; None: they are inferred

    @classmethod
    def of(cls, X: ArrayLike, session: Labels, kind: Labels) -> Given:
        """Check recordings, and one label for all or one for each."""
        rows = matrix(X)
        n = len(rows)
        names = labels_of(session, n, "names of sessions")
        kinds = labels_of(kind, n, "kinds of channels")
        if names is None:
            return cls(rows, None, np.arange(n), kinds)
        checked = [checked_name(str(name), "a name of a session") for name in names.tolist()]
        places = {name: i for i, name in enumerate(dict.fromkeys(checked))}
        return cls(rows, [*places], np.array([places[name] for name in checked], np.int64), kinds)

    def part(self, session: int) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Return the recordings of one session, and their kinds."""
        rows = self.session == session
        return self.X[rows], None if self.kinds is None else self.kinds[rows]


def together(given: Collection[Given]) -> tuple[NDArray[Any], NDArray[Any] | None, Ints, Ints]:
    """Return the recordings of several people, their kinds (None if no kind is given), and their sessions (n,).

    Sessions are numbered through all people. Last comes the number of each person's first session, and after them the
    number of all sessions.
    """
    n_sessions = [int(one.session.max()) + 1 for one in given]
    first = np.concatenate([[0], np.cumsum(n_sessions)])
    session = np.concatenate([one.session + start for one, start in zip(given, first[:-1], strict=True)])
    return *joined([(one.X, one.kinds) for one in given]), session, first


def joined(parts: Collection[tuple[NDArray[Any], Any]]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Return the recordings of several parts and their kinds; None stands for one recording, or all, without kinds."""
    if len({X.shape[1] for X, _ in parts}) > 1:
        raise DuopldaError("some recordings have more dimensions than others: give embeddings of one extractor")
    vectors = np.concatenate([X for X, _ in parts])
    if all(kinds is None for _, kinds in parts):
        return vectors, None
    columns = [np.full(len(X), None) if kinds is None else np.asarray(kinds, object) for X, kinds in parts]
    return vectors, np.concatenate(columns)


def checked_name(name: str, what: str = "a name") -> str:
    """Return a checked name in Unicode's composed form, so that names that look the same are the same."""
    if not isinstance(name, str) or not name.strip() or name != name.strip() or len(name) > LONGEST_NAME:
        raise DuopldaError(
            f"{name!r:.100} is not {what}: names are texts of 1 to {LONGEST_NAME} characters without spaces at the ends"
        )
    if UNPRINTABLE.search(name):
        raise DuopldaError(f"{name!r:.100} is not {what}: it has characters that do not print")
    return unicodedata.normalize("NFC", name)


def matrix(X: ArrayLike) -> NDArray[Any]:
    """Return recordings as an array (n, d) in the host's memory, with at least one row."""
    try:
        rows = to_numpy(X)
        rows = rows if rows.dtype in (np.float32, np.float64) else rows.astype(float)
    except (TypeError, ValueError):
        raise DuopldaError("recordings must be numbers, (n, d) or (d,), in rows of one length") from None
    rows = rows[None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or not len(rows):
        raise DuopldaError(f"recordings must be (n, d) or (d,), at least one, got shape {rows.shape}")
    return rows


def labels_of(labels: Labels, n: int, what: str) -> NDArray[Any] | None:
    """Return one label for each of n recordings; one label may be given for all of them."""
    if labels is None:
        return None
    known = np.asarray(labels)
    known = known if known.ndim else np.full(n, known)
    if known.shape != (n,):
        raise DuopldaError(f"there are {n} recordings and {known.size} {what}")
    return known


def numbered(n: int, taken: Iterable[str]) -> list[str]:
    """Return names for n sessions that have none: the first numbers that are free."""
    used = set(taken)
    out: list[str] = []
    number = len(used)
    while len(out) < n:
        number += 1
        if str(number) not in used:
            out.append(str(number))
    return out
