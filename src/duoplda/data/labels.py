"""Ids of speakers, sessions and kinds of channels as integers; a session belongs to one speaker."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Array, arange, bincount, is_torch, namespace, put, ranked, to_numpy
from duoplda.errors import DuopldaError, some

Ints = NDArray[np.int64]


def folds(speaker_ids: NDArray[Any], n: int, seed: int = 0) -> Ints:
    """A fold of each speaker, from a hash of its id: shards agree on it without talking. None (n = 0): all in one."""
    if not n:
        return np.zeros(len(speaker_ids), np.int64)
    salt = _mix(np.array([seed], np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    return (_mix(_hash(speaker_ids) ^ salt) % np.uint64(n)).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Labels:
    """Who speaks in each of N recordings, in which session, through which kind of channel.

    The ids are sorted as `numpy.unique` sorts them; the integer arrays index into them. These are on the host, or with
    recordings on a device (`encode(..., like=X)`).
    """

    speaker_ids: NDArray[Any]  # (M,)
    session_ids: NDArray[Any] | None  # (H,); None: every recording is a session of its own, without a name
    kinds: NDArray[Any]  # (K,) labels of the kinds of channels; one nameless kind where none are given
    speaker: Array  # (N,)
    session: Array  # (N,)
    kind: Array  # (N,)

    def select(self, speakers: NDArray[np.bool_]) -> tuple[Labels, Array]:
        """The labels of some of the speakers' recordings, and the rows of these."""
        xp = namespace(self.speaker)
        new = put(np.where(speakers, np.cumsum(speakers) - 1, -1), self.speaker)[self.speaker]
        rows = xp.nonzero(new >= 0)[0]
        sessions, session, _ = ranked(self.session[rows])
        names = None if self.session_ids is None else self.session_ids[to_numpy(sessions)]
        return Labels(self.speaker_ids[speakers], names, self.kinds, new[rows], session, self.kind[rows]), rows

    @property
    def n_recordings(self) -> int:
        return len(self.speaker)

    @property
    def n_sessions(self) -> int:
        return self.n_recordings if self.session_ids is None else len(self.session_ids)

    @cached_property
    def session_speaker(self) -> Array:
        """The speaker of each session, (H,)."""
        if self.session_ids is None:
            return self.speaker
        out = arange(self.n_sessions, self.speaker)
        out[self.session] = self.speaker
        return out

    @cached_property
    def counts(self) -> Array:
        """Recordings of each session by kind: its type, (H, K)."""
        K = len(self.kinds)
        cell = self.session if K == 1 else self.session * K + self.kind
        return bincount(cell, self.n_sessions * K).reshape(-1, K)

    @cached_property
    def types(self) -> tuple[Ints, Array, Ints]:
        """The types of sessions (C, K) in lexicographic order, that of each session (H,), and sessions of each (C,)."""
        counts, K = self.counts, len(self.kinds)
        code = counts[:, 0]
        for k in range(1, K if self.n_sessions else 1):
            code = ranked(code)[1] * (namespace(code).max(counts[:, k]) + 1) + counts[:, k]
        _, type_, n = ranked(code)
        example = arange(len(n), code)
        example[type_] = arange(self.n_sessions, code)
        return to_numpy(counts[example, :]).astype(np.int64), type_, to_numpy(n)


NO_KIND = np.array([""])


def encode(speaker: Any, session: Any = None, channel: Any = None, n: int | None = None, like: Any = None) -> Labels:
    """Check labels and turn them into integers, on the device of `like` where that is a tensor of torch.

    `n` is the number of recordings that the labels must have.
    """
    speaker_ids, speakers = codes(speaker, "speaker", n, like)
    n = len(speakers)
    session_ids, sessions = codes(session, "session", n, like) if session is not None else (None, arange(n, speakers))
    kind_ids, kind = codes(channel, "channel", n, like) if channel is not None else (NO_KIND, 0 * arange(n, speakers))
    labels = Labels(speaker_ids, session_ids, kind_ids, speakers, sessions, kind)
    wrong = labels.session_speaker[sessions] != speakers
    if session_ids is not None and bool(wrong.any()):
        torn, sessions, speakers = np.unique(to_numpy(sessions[wrong])), to_numpy(sessions), to_numpy(speakers)
        first = sessions == torn[0]
        raise DuopldaError(
            f"session {session_ids[torn[0]]!s} belongs to {len(np.unique(speakers[first]))} speakers "
            f"({some(speaker_ids[np.unique(speakers[first])], 4)}; rows {some(np.flatnonzero(first), 5)})"
            + (f", and so do {len(torn) - 1} other session{'s' * (len(torn) > 2)}" if len(torn) > 1 else "")
            + ": a session is one conversation of one speaker. If session names "
            "repeat from speaker to speaker, make them unique first, for example speaker + '-' + session"
        )
    return labels


def codes(values: Any, name: str, n: int | None = None, like: Any = None) -> tuple[NDArray[Any], Array]:
    """Sorted distinct ids, and the index of each value among them; on a device of torch where `like` is there."""
    if like is not None and is_torch(namespace(like)):
        there = getattr(values, "device", None) == like.device and values.ndim == 1 and len(values) == n
        if not there or "int" not in str(values.dtype):
            array = as_ids(values, name, n)
            if array.dtype.kind != "i":
                ids, index = codes(array, name, n)
                return ids, put(index, like)
            values = put(array, like)
        values = values.long()
        ids, index, _ = ranked(values - (low := values.min()))
        return to_numpy(ids + low), index
    array = as_ids(values, name, n)
    if array.dtype.kind == "i" and len(array) and int(array.max()) - int(array.min()) < 1 << 62:
        low = int(array.min())
        ids, index, _ = ranked(array.astype(np.int64) - low)
        return (ids + low).astype(array.dtype), index
    if array.dtype.kind in "biuf":
        ids, index = np.unique(array, return_inverse=True)
        return ids, index.reshape(-1).astype(np.int64)
    # A dictionary is several times faster than sorting a million strings.
    found: dict[Any, int] = {}
    index = np.fromiter((found.setdefault(v, len(found)) for v in array.tolist()), np.int64, len(array))
    ids = np.array(list(found), dtype=array.dtype)
    order = np.argsort(ids)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return ids[order], rank[index]


def codes_among(values: Any, ids: NDArray[Any], n: int | None = None) -> Ints:
    """The index of each value among given ids; -1 where it is not one of them."""
    own, index = codes(values, "channel", n)
    place = {v: i for i, v in enumerate(ids.tolist())}
    return np.array([place.get(v, -1) for v in own.tolist()], np.int64)[index]


def as_ids(values: Any, name: str, n: int | None = None) -> NDArray[Any]:
    array = to_numpy(values)
    if isinstance(values, (list, tuple)) and array.ndim == 1 and array.dtype.kind in "US":
        array = np.fromiter(values, object, len(values))  # NumPy made text of whatever was among it, NaN too
    if array.ndim == 2 and array.shape[1] == 1:
        import warnings

        from sklearn.exceptions import DataConversionWarning

        warnings.warn(f"{name} labels: a column vector was given, a 1-d array is expected", DataConversionWarning, 4)
        array = array[:, 0]
    if array.ndim != 1:
        raise DuopldaError(f"{name} labels must be one-dimensional, got shape {array.shape}")
    if n is not None and len(array) != n:
        raise DuopldaError(f"{len(array)} {name} labels for {n} recordings: give one label for each recording")
    if array.dtype.kind == "O":
        missing = [i for i, v in enumerate(array.tolist()) if v is None or type(v).__name__ == "NAType" or v != v]
        if missing:
            raise DuopldaError(f"{name} labels are missing (None or NaN) at rows {some(missing)}")
        types = {type(v) for v in array.tolist()}
        if all(issubclass(t, str) for t in types):  # NumPy's own strings too
            return array.astype(str)
        if all(issubclass(t, (int, float, np.integer, np.floating)) for t in types):
            return np.array(array.tolist())
        raise DuopldaError(f"{name} labels mix types ({some(sorted(t.__name__ for t in types))}): use one, e.g. str")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DuopldaError(
            f"{name} labels are NaN or infinite at rows {some(np.flatnonzero(~np.isfinite(array)))}: Unknown label type"
        )
    if array.dtype.kind == "T":
        return np.array(array.tolist(), dtype=str)
    if array.dtype.kind not in "biufUS":
        raise DuopldaError(f"{name} labels must be strings or numbers, got dtype {array.dtype}")
    return array


def keys(ids: NDArray[Any]) -> NDArray[np.uint64]:
    """A 64-bit hash of each id, the same on every machine and in every shard; hashes (uint64) stay as they are."""
    return ids if ids.dtype == np.uint64 else _hash(ids)


def _hash(ids: NDArray[Any]) -> NDArray[np.uint64]:
    if not len(ids):
        return np.zeros(0, np.uint64)
    if ids.dtype.kind in "biuf":
        h = ids.astype(np.float64).view(np.uint64) if ids.dtype.kind == "f" else ids.astype(np.int64).view(np.uint64)
    else:
        text = np.ascontiguousarray(ids.astype(str))
        letters = text.view(np.uint32).reshape(len(text), -1)  # zero-padded: a zero adds nothing below
        h = np.zeros(len(text), np.uint64)
        for j in range(letters.shape[1]):
            h += letters[:, j].astype(np.uint64) * (_mix(np.array([j + 1], np.uint64)) | np.uint64(1))
    return _mix(h)


def _mix(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))
