"""Labels of recordings as integers: speakers, sessions, occasions and kinds of channels; and hashes of ids.

A session belongs to one speaker and to one occasion, such as a day, a call or a file. Lists and tables of labels are
read in `duoplda.io.labels`.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.arrays import Array, arange, bincount, check_index, is_torch, namespace, put, ranked, to_numpy
from duoplda.errors import DuopldaError, some

Ints = NDArray[np.int64]

KNOWN = ("speakers", "sessions", "nothing")  # what labels may say of recordings, from the most to the least
NO_KIND = np.array([""])  # the only kind of channel where nobody labelled channels


@dataclass(frozen=True, eq=False)
class Labels:
    """What is known of N recordings: who speaks, in which session and on which occasion, through which kind of channel.

    A level that nobody labelled is None, as in `speaker` and `speaker_ids` or in `session` and `session_ids`; `filled`
    has values for it, where the mathematics needs them. The ids are sorted as by `numpy.unique`. The integers index
    into them, and may be on a device, as the vectors may.

    >>> labels = encode(["b", "a", "b"], ["s1", "s2", "s1"])
    >>> labels.speaker_ids.tolist(), labels.speaker.tolist(), labels.session.tolist()
    (['a', 'b'], [1, 0, 1], [0, 1, 0])
    >>> encode(None, ["s1", "s2", "s1"]).speaker is None
    True
    """

    speaker_ids: NDArray[Any]  # (M,), or None
    session_ids: NDArray[Any] | None  # (H,); None: nobody named the sessions
    kinds: NDArray[Any]  # (K,) labels of the kinds of channels; one nameless kind where none are given
    speaker: Array  # (N,), or None
    session: Array  # (N,), or None
    kind: Array  # (N,)
    open: NDArray[np.bool_] | None = None  # (H,) whether a session has further recordings elsewhere; None: none has
    occasion_ids: NDArray[Any] | None = None  # (O,)
    occasion: Array | None = None  # (N,)

    @property
    def known(self) -> str:
        """One of `KNOWN`: "speakers" (perhaps with their sessions), "sessions" of unknown speakers, or "nothing"."""
        return "speakers" if self.speaker is not None else "sessions" if self.session is not None else "nothing"

    @property
    def filled(self) -> Labels:
        """The same labels with a speaker and a session for every recording, as statistics and posteriors need them.

        Where nobody named the sessions, each recording is a session of its own, without a name. Where nobody named the
        speakers, each session is a speaker of its own. No other code fills in a level.
        """
        # A cached property that returned self would be a cycle of references, and the labels of many chunks would stay
        # in memory until Python's next search for cycles.
        return self if self.speaker is not None and self.session is not None else self._filled

    @cached_property
    def _filled(self) -> Labels:
        session = arange(self.n_recordings, self.kind) if self.session is None else self.session
        if self.speaker is not None:
            return replace(self, session=session)
        ids = np.arange(self.n_recordings) if self.session_ids is None else self.session_ids
        return replace(self, session=session, speaker=session, speaker_ids=ids)

    def rows(self, index: NDArray[np.integer]) -> Labels:
        """The labels of some recordings, with the speakers and sessions that these have; all kinds stay."""
        changes: dict[str, Any] = {"kind": self.kind[index]}
        if self.speaker is not None:
            speakers, changes["speaker"], _ = ranked(self.speaker[index])
            changes["speaker_ids"] = self.speaker_ids[speakers]
        if self.session is not None:
            sessions, changes["session"], _ = ranked(self.session[index])
            changes["session_ids"] = None if self.session_ids is None else self.session_ids[sessions]
            changes["open"] = None if self.open is None else self.open[sessions]
        if self.occasion is not None and self.occasion_ids is not None:
            occasions, changes["occasion"], _ = ranked(self.occasion[index])
            changes["occasion_ids"] = self.occasion_ids[to_numpy(occasions)]
        return replace(self, **changes)

    @property
    def n_recordings(self) -> int:
        return len(self.kind)

    @property
    def n_sessions(self) -> int:
        return self.n_recordings if self.session_ids is None else len(self.session_ids)

    @cached_property
    def session_speaker(self) -> Array:
        """The speaker of each session, (H,), where speakers are known."""
        if self.session_ids is None:
            return self.speaker
        out = arange(self.n_sessions, self.speaker)
        out[self.session] = self.speaker
        return out

    @cached_property
    def counts(self) -> Array:
        """The number of recordings of each session by kind of channel, (H, K): the type of the session."""
        K = len(self.kinds)
        cell = self.session if K == 1 else self.session * K + self.kind
        return bincount(cell, self.n_sessions * K).reshape(-1, K)

    @cached_property
    def types(self) -> tuple[Ints, Array, Ints]:
        """The types of sessions (C, K), sorted; the type of each session (H,); the number of sessions of each (C,)."""
        counts = self.counts
        K = len(self.kinds)
        code = counts[:, 0]
        for k in range(1, K if self.n_sessions else 1):
            code = ranked(code)[1] * (namespace(code).max(counts[:, k]) + 1) + counts[:, k]
        _, type_, n = ranked(code)
        example = arange(len(n), code)
        example[type_] = arange(self.n_sessions, code)
        return to_numpy(counts[example, :]).astype(np.int64), type_, to_numpy(n)


def least_known(known: Sequence[str]) -> str:
    """Return what is known of recordings as a whole, given what is `known` of each of their parts.

    >>> least_known(["speakers", "sessions"])
    'sessions'
    """
    return max(known, key=KNOWN.index)


def encode(
    speaker: ArrayLike | None,
    session: ArrayLike | None = None,
    channel: ArrayLike | None = None,
    n: int | None = None,
    like: Array = None,
    *,
    occasion: ArrayLike | None = None,
    by_speaker: bool = False,
) -> Labels:
    """Check labels (n of each, if n is given) and turn them into integers, on the device of `like` if that is a tensor.

    None says that nobody labelled this level; if there are no labels at all, `n` says how many recordings there are. A
    session is one conversation of one speaker, so its name must not occur with two speakers in arrays. In lists and
    tables, sessions are often numbered anew for each speaker: with `by_speaker` a session is called "speaker name". All
    recordings of a session are of one occasion, whose name may occur with several speakers.
    """
    given = {"speaker": speaker, "session": session, "channel": channel, "occasion": occasion}
    check_index(**given)
    ids: dict[str, Any] = dict.fromkeys(given)
    index: dict[str, Array] = dict.fromkeys(given)
    for name, values in given.items():
        if values is not None:
            ids[name], index[name] = codes(values, name, n, like)
            n = len(index[name])
    if channel is None:
        if n is None:
            raise DuopldaError("there are no labels: give those of the speakers, the sessions or the channels")
        ids["channel"] = NO_KIND
        index["channel"] = 0 * arange(n, like if is_torch(namespace(like)) else None)
    if by_speaker and speaker is not None and session is not None:
        n_names = len(ids["session"])
        pairs, index["session"], _ = ranked(index["speaker"] * n_names + index["session"])
        who, what = np.divmod(to_numpy(pairs), n_names)
        names = zip(ids["speaker"][who].tolist(), ids["session"][what].tolist(), strict=True)
        ids["session"] = np.array([f"{speaker_name} {name}" for speaker_name, name in names], dtype=str)
    labels = Labels(
        ids["speaker"],
        ids["session"],
        ids["channel"],
        index["speaker"],
        index["session"],
        index["channel"],
        occasion_ids=ids["occasion"],
        occasion=index["occasion"],
    )
    if session is not None and speaker is not None:
        torn, rows = _torn(labels, labels.session_speaker, labels.speaker)
        if len(torn):
            who = ids["speaker"][np.unique(to_numpy(labels.speaker)[rows])]
            raise torn_session(ids["session"][torn[0]], who, len(torn) - 1, f"; rows {some(rows, 5)}")
    if session is not None and occasion is not None:
        session_occasion = arange(labels.n_sessions, labels.session)
        session_occasion[labels.session] = labels.occasion
        torn, rows = _torn(labels, session_occasion, labels.occasion)
        if len(torn):
            occasions = ids["occasion"][np.unique(to_numpy(labels.occasion)[rows])].tolist()
            raise torn_occasion(ids["session"][torn[0]], occasions, len(torn) - 1, f"; rows {some(rows, 5)}")
    return labels


def _torn(labels: Labels, expected: Array, level: Array) -> tuple[Ints, Ints]:
    """Return the sessions with a recording whose `level` is not the `expected` (H,), and the rows of the first one."""
    wrong = expected[labels.session] != level
    if not bool(wrong.any()):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    session = to_numpy(labels.session)
    torn = np.unique(session[to_numpy(wrong)])
    return torn, np.flatnonzero(session == torn[0])


def torn_occasion(name: Any, occasions: Sequence[Any], others: int, where: str = "") -> DuopldaError:
    """Return the error for a session with several occasions (None: an unknown one), as `others` sessions have too."""
    more = f", and so are {others} other session{'s' * (others > 1)}" if others else ""
    names = [name for name in occasions if name is not None]
    which = "with and without an occasion" if len(names) < len(occasions) else f"of {len(names)} occasions"
    remedy = "a session is of one day, call or file: correct it, or give its parts different names"
    return DuopldaError(f"session {name!s} is {which} ({some(names, 4)}{where}){more}: {remedy}")


def torn_session(name: Any, speakers: NDArray[Any], others: int, where: str) -> DuopldaError:
    """Return the error for a session that occurs with several speakers, as `others` sessions do too."""
    more = f", and so do {others} other session{'s' * (others > 1)}" if others else ""
    cause = f"session {name!s} belongs to {len(speakers)} speakers ({some(speakers, 4)}{where}){more}"
    remedy = "names repeat from speaker to speaker, make them unique first, for example speaker + '-' + session"
    return DuopldaError(f"{cause}: a session is one conversation of one speaker. If session {remedy}")


def codes(values: Any, name: str, n: int | None = None, like: Array = None) -> tuple[NDArray[Any], Array]:
    """Return sorted distinct ids and the index of each value in them, on the device of `like` if that is a tensor."""
    torch = is_torch(namespace(like))
    on_device = torch and getattr(values, "device", None) == like.device and values.ndim == 1 and len(values) == n
    on_device = on_device and "int" in str(values.dtype)
    array = values.long() if on_device else as_ids(values, name, n)
    # Integers that are further apart than this are sorted below, since their differences would overflow.
    if on_device or (array.dtype.kind == "i" and len(array) and int(array.max()) - int(array.min()) < 1 << 62):
        whole = array if on_device else put(array, like) if torch else array.astype(np.int64)
        low = whole.min()
        ids, index, _ = ranked(whole - low)
        return to_numpy(ids + low).astype(np.int64 if on_device else array.dtype, copy=False), index
    if array.dtype.kind in "biuf":
        ids, index = np.unique(array, return_inverse=True)
        index = index.reshape(-1).astype(np.int64)
    else:  # strings: a dictionary is several times as fast as sorting a million of them
        numbers: dict[Any, int] = {}
        # Equal strings often stand in runs: only the first of each run is looked up.
        first = np.flatnonzero(np.append(True, array[1:] != array[:-1])[: len(array)])
        runs = np.fromiter((numbers.setdefault(v, len(numbers)) for v in array[first].tolist()), np.int64, len(first))
        index = np.repeat(runs, np.diff(np.append(first, len(array))))
        ids = np.array(list(numbers), dtype=array.dtype)
        order = np.argsort(ids)
        ids = ids[order]
        index = np.argsort(order)[index]
    return ids, put(index, like) if torch else index


def places(values: NDArray[Any], among: NDArray[Any]) -> Ints:
    """Return the place of each value among sorted ones, and -1 where it is not one of them."""
    if not len(among):
        return np.full(len(values), -1)
    place = np.minimum(np.searchsorted(among, values), len(among) - 1)
    return np.where(among[place] == values, place, -1)


def order_of(whole: NDArray[Any]) -> Ints:
    """Return the stable order that sorts whole numbers (n,) from 0 on, as int32 if n allows.

    It sorts by 16 bits at a time: NumPy sorts those by radix, several times as fast as larger numbers.

    >>> order_of(np.array([70_000, 3, 70_000, 0])).tolist()
    [3, 1, 0, 2]
    """
    dtype: Any = np.int32 if len(whole) < 1 << 31 else np.int64
    order: Ints = np.argsort(whole.astype(np.uint16), kind="stable").astype(dtype)  # by the lowest bits
    upper = whole >> 16
    while upper.any():
        order = order[np.argsort(upper.astype(np.uint16)[order], kind="stable")]
        upper >>= 16
    return order


def codes_among(values: ArrayLike, ids: NDArray[Any], n: int) -> Ints:
    """Return the index of each of n values in `ids`, and -1 where it is not one of them or is missing (None, NaN)."""
    array = to_numpy(values)
    if array.ndim != 1 or len(array) != n:
        raise DuopldaError(f"{array.size} channel labels for {n} recordings: give one label for each recording")
    place = {v: i for i, v in enumerate(ids.tolist())}
    return np.array([place.get(v, -1) for v in array.tolist()], np.int64)


def as_ids(values: Any, name: str, n: int | None = None) -> NDArray[Any]:
    """Return labels as an array (n,) of one type; missing labels, mixed types and several columns are refused."""
    try:
        array = to_numpy(values)
    except DuopldaError:
        raise
    except ValueError as error:  # NumPy's, of lists of unequal lengths
        raise DuopldaError(f"{name} labels must be one-dimensional, one label for each recording: {error}") from None
    if isinstance(values, (list, tuple)) and array.ndim == 1 and array.dtype.kind in "US":
        array = np.fromiter(values, object, len(values))  # among texts, NumPy makes text of everything, even of NaN
    if array.ndim == 2 and array.shape[1] == 1:
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
        rows = some(np.flatnonzero(~np.isfinite(array)))
        raise DuopldaError(f"{name} labels are NaN or infinite at rows {rows}: Unknown label type")
    if array.dtype.kind == "T":
        return np.array(array.tolist(), dtype=str)
    if array.dtype.kind not in "biufUS":
        raise DuopldaError(f"{name} labels must be strings or numbers, got dtype {array.dtype}")
    return array


# -- hashes of ids


def folds(speaker_ids: NDArray[Any], n: int, seed: int = 0) -> Ints:
    """Return the fold of each speaker by a hash of its id, so that all shards agree on it; all 0 if n is 0."""
    if not n:
        return np.zeros(len(speaker_ids), np.int64)
    if not isinstance(seed, int | np.integer) or not 0 <= int(seed) < 1 << 64:
        raise DuopldaError(f"seed={seed!r} must be a whole number from 0 on")
    salt = _mix(np.array([seed], np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    return (_mix(keys(speaker_ids) ^ salt) % np.uint64(n)).astype(np.int64)


def keys(ids: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each id, the same on every machine. 5, 5.0, np.uint64(5) and "5" have the same hash."""
    if not len(ids):
        return np.zeros(0, np.uint64)
    if ids.dtype.kind == "f":
        whole = (ids == np.floor(ids)) & (np.abs(ids) < 2.0**63)
        bits = ids.astype(np.float64).view(np.uint64)
        return _mix(np.where(whole, np.where(whole, ids, 0).astype(np.int64).view(np.uint64), ~bits))
    if ids.dtype.kind in "biu":
        return _mix(ids.astype(np.uint64 if ids.dtype.kind == "u" else np.int64).view(np.uint64))
    letters = np.ascontiguousarray(ids.astype(str)).view(np.uint32).reshape(len(ids), -1)
    factors = _mix(np.arange(1, letters.shape[1] + 1, dtype=np.uint64)) | np.uint64(1)
    h = np.einsum("ij,j->i", letters.astype(np.uint64), factors)  # texts are padded with zeros, which add nothing
    # Whole numbers that are written as Python writes them hash as the numbers do, if they have at most 18 digits: more
    # might not fit into 64 bits.
    rows = np.flatnonzero(letters[:, 0] <= ord("9"))  # others do not begin with a digit or a minus
    letters = letters[rows]
    minus = letters[:, 0] == ord("-")
    digits = (letters >= ord("0")) & (letters <= ord("9"))
    length = (letters > 0).sum(axis=1) - minus
    first = np.where(minus, letters[:, min(1, letters.shape[1] - 1)], letters[:, 0])
    whole = (digits.sum(axis=1) == length) & (length > 0) & (length < 19)
    whole &= (first != ord("0")) | ((length == 1) & ~minus)
    value = np.zeros(len(letters), np.int64)
    for j in range(min(letters.shape[1], 19)):
        value = np.where(digits[:, j], 10 * value + (letters[:, j].astype(np.int64) - ord("0")), value)
    h[rows[whole]] = np.where(minus, -value, value)[whole].view(np.uint64)
    return _mix(h)


def mixed(*columns: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of each row of several columns of hashes or bits."""
    h = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        h = _mix((h ^ column) + np.uint64(0x9E3779B97F4A7C15))
    return h


def _mix(h: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread the differences of 64-bit numbers over all their bits (the finaliser of SplitMix64)."""
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))
