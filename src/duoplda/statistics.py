"""What one pass over the data leaves: sums that add, and all that training will ever need.

Let `c` count the recordings of a session by kind of channel (its *type*; with one kind, its size), and let `F_ij` be
the sums of its recordings, one for each kind present, stacked (all vectors are about an `offset` near the mean, so that
no digits are lost). Kept are, for each type c:

    n_ic  sessions of speaker i,   A_ic = sum_j F_ij over them,   T_c = sum F_ij F_ij' over all sessions

and for each kind k the scatter of recordings about their session's mean, `within_k`. A recording that is alone of its
kind in its session costs nothing within. From these follow the sums of the source: N, F_i, and

    S_k = within_k + sum_c T_c[k, k] / c_k.

Memory: for each type the smaller of (K_c d)^2 for T_c and K_c d for each of its sessions (their rows F are kept where
they are fewer, so that many types cost little), and K_c d for each pair of a speaker and a type that it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda import labels as lab
from duoplda._array import (
    Array,
    add_rows,
    gram,
    namespace,
    one_thread_each,
    put,
    segment_sums,
    take,
    to_float,
    to_numpy,
    zeros,
)
from duoplda.errors import DuopldaError
from duoplda.labels import Ints, Labels, some

CHUNK_BYTES = 1 << 24  # a block of rows that stays in the caches


@dataclass(frozen=True, eq=False)
class TypeBlock:
    """The sessions of one type."""

    counts: Ints  # (K,) recordings of a session by kind
    speaker: Ints  # (m,) speakers who have such sessions, each once
    n: Ints  # (m,) how many of them
    A: Array  # (m, K_c d) sums of F over a speaker's sessions
    scatter: Array  # (K_c d, K_c d) T, weighted; while there are fewer sessions than that, their rows F (h, K_c d)

    @cached_property
    def present(self) -> Ints:
        return np.flatnonzero(self.counts)

    @property
    def size(self) -> int:
        return int(self.counts.sum())

    @property
    def T(self) -> Array:
        """(K_c d, K_c d) sum of F F' over all sessions, weighted by the speakers' weights."""
        rows, columns = self.scatter.shape
        return self.scatter if rows == columns else gram(self.scatter)

    def times(self, M: Array) -> Array:
        """T M, by way of the rows F where these are fewer."""
        rows, columns = self.scatter.shape
        return self.scatter @ M if rows == columns else self.scatter.T @ (self.scatter @ M)


@dataclass(frozen=True, eq=False)
class Statistics:
    """Sufficient statistics of labelled recordings; `a + b` joins shards, `weight * a` makes them count for less.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(6, 2))
    >>> stats = Statistics.from_arrays(X, ["a", "a", "a", "b", "b", "b"], ["s1", "s1", "s2", "s3", "s4", "s4"])
    >>> stats.n_recordings, stats.n_sessions, stats.n_speakers
    (6.0, 4.0, 2.0)
    """

    offset: Array  # (d,)
    kinds: NDArray[Any]  # (K,)
    speaker_ids: NDArray[Any]  # (M,) sorted
    weights: NDArray[np.float64]  # (M,) how much each speaker's likelihood counts
    blocks: tuple[TypeBlock, ...]  # by type, in lexicographic order
    within: Array  # (K, d, d) weighted
    session_keys: NDArray[np.uint64] | None  # hashes of the sessions' ids: a session must not be added twice
    folds: tuple[Statistics, ...] = ()  # the same by fold of speakers, where asked for; they add up to the whole
    seed: int = 0  # of the folds

    @staticmethod
    def from_arrays(
        X: Any, speaker: Any, session: Any = None, channel: Any = None, *, n_folds: int = 0, seed: int = 0
    ) -> Statistics:
        """One pass over labelled recordings `X` (N, d).

        With `n_folds`, speakers are split by a hash of their ids, and the parts are kept too, for held-out speakers.
        """
        X, _ = check_rows(X)
        labels = lab.encode(speaker, session, channel, X.shape[0])
        sums = _FoldSums(labels, X, n_folds, seed)
        for fold in sums.parts:
            fold.add_sorted(X)
        return sums.result(lambda: X)

    @staticmethod
    def accumulate(chunks: Iterable[Any], labels: Any, *, n_folds: int = 0, seed: int = 0) -> Statistics:
        """The same from chunks, read once; sessions may be split between chunks, and are closed when complete.

        `labels` is `(speaker, session)`, `(speaker, session, channel)`, a mapping of those names, or `Labels`, for all
        recordings in the order in which the chunks bring them. A chunk is an array of rows.
        """
        labels = as_labels(labels)
        sums: _FoldSums | None = None
        row = 0
        for chunk in chunks:
            X, _ = check_rows(chunk)
            if sums is None:
                sums = _FoldSums(labels, X, n_folds, seed)
            d = sums.parts[0].d
            if X.shape[1] != d:
                raise DuopldaError(f"a chunk that begins at row {row} has {X.shape[1]} columns, the first had {d}")
            if row + X.shape[0] > labels.n_recordings:
                raise DuopldaError(f"the chunks bring more rows than the {labels.n_recordings} that have labels")
            for fold in sums.parts:
                fold.add(X, row)
            row += X.shape[0]
        if sums is None or row < labels.n_recordings:
            raise DuopldaError(f"the chunks brought {row} rows, {labels.n_recordings} have labels")
        return sums.result(None)

    # -- counts

    @property
    def d(self) -> int:
        return self.offset.shape[0]

    @property
    def K(self) -> int:
        return len(self.kinds)

    @property
    def n_speakers(self) -> float:
        return float(self.weights.sum())

    @property
    def n_sessions(self) -> float:
        return float(sum(self.H))

    @property
    def n_recordings(self) -> float:
        return float(self.N.sum())

    @cached_property
    def types(self) -> Ints:
        """(C, K) the types of sessions there are."""
        return np.array([b.counts for b in self.blocks], np.int64).reshape(-1, self.K)

    @cached_property
    def H(self) -> NDArray[np.float64]:
        """(C,) weighted sessions of each type."""
        return np.array([np.dot(self.weights[b.speaker], b.n) for b in self.blocks], np.float64)

    @cached_property
    def N(self) -> NDArray[np.float64]:
        """(K,) weighted recordings of each kind."""
        return self.H @ self.types

    @cached_property
    def f(self) -> list[Array]:
        """Sum of F over the sessions of each type."""
        return [put(self.weights[b.speaker], b.A) @ b.A for b in self.blocks]

    @cached_property
    def S(self) -> Array:
        """(K, d, d) scatter of the recordings of each kind about the offset."""
        d = self.d
        out = self.within + 0.0
        for b in self.blocks:
            rows, columns = b.scatter.shape
            for at, k in enumerate(b.present.tolist()):
                part = slice(at * d, (at + 1) * d)
                own = b.scatter[part, part] if rows == columns else gram(b.scatter[:, part])
                out[k, ...] += own / int(b.counts[k])
        return out

    @cached_property
    def counts(self) -> Ints:
        """(M, C) sessions of each speaker by type."""
        out = np.zeros((len(self.speaker_ids), len(self.blocks)), np.int64)
        for c, b in enumerate(self.blocks):
            out[b.speaker, c] = b.n
        return out

    @cached_property
    def speaker_sums(self) -> Array:
        """(M, d) sum of all recordings of each speaker about the offset, whatever their kind."""
        out = zeros((len(self.speaker_ids), self.d), self.offset)
        for b in self.blocks:
            add_rows(out, b.speaker, sum(b.A[:, i * self.d : (i + 1) * self.d] for i in range(len(b.present))))
        return out

    # -- algebra

    def __rmul__(self, weight: float) -> Statistics:
        if not (isinstance(weight, Real) and 0 < weight < float("inf")):
            what = repr(weight) if np.isscalar(weight) else type(weight).__name__
            raise DuopldaError(f"statistics can be weighted by a positive number, not by {what}")
        blocks = tuple(replace(b, scatter=b.T * float(weight)) for b in self.blocks)
        within, folds = self.within * float(weight), tuple(weight * part for part in self.folds)
        return replace(self, weights=self.weights * weight, blocks=blocks, within=within, folds=folds)

    __mul__ = __rmul__

    def __add__(self, other: Statistics) -> Statistics:
        if not isinstance(other, Statistics):
            return NotImplemented
        if self.d != other.d:
            raise DuopldaError(f"statistics of {self.d} and of {other.d} dimensions cannot be added")
        if self.speaker_ids.dtype.kind != other.speaker_ids.dtype.kind:
            raise DuopldaError(
                f"speaker ids of different types ({self.speaker_ids.dtype}, {other.speaker_ids.dtype}) cannot be merged"
            )
        if self.session_keys is not None and other.session_keys is not None:
            both = len(np.intersect1d(self.session_keys, other.session_keys, assume_unique=True))
            if both:
                raise DuopldaError(
                    f"{both} sessions are in both statistics: a session cannot be split between statistics that are "
                    "added. Gather it in one shard, use Statistics.accumulate, or give sessions unique names"
                )
        speaker_ids = np.union1d(self.speaker_ids, other.speaker_ids)
        kinds = np.union1d(self.kinds, other.kinds)
        a, b = self._relabel(speaker_ids, kinds), other._relabel(speaker_ids, kinds)._move(self.offset)
        shared = (a.weights > 0) & (b.weights > 0) & (a.weights != b.weights)
        if shared.any():
            raise DuopldaError(
                f"speakers {some(speaker_ids[shared])} are in both statistics with different weights: "
                "weight whole speakers, or give them different names"
            )
        parts: dict[tuple[int, ...], TypeBlock] = {tuple(x.counts.tolist()): x for x in a.blocks}
        for x in b.blocks:
            key = tuple(x.counts.tolist())
            parts[key] = _join(parts[key], x) if key in parts else x
        keys = [k for k in (self.session_keys, other.session_keys) if k is not None]
        folds: tuple[Statistics, ...] = ()
        if len(self.folds) == len(other.folds) and self.seed == other.seed:
            folds = tuple(x + y for x, y in zip(self.folds, other.folds, strict=True))
        return Statistics(
            self.offset,
            kinds,
            speaker_ids,
            np.maximum(a.weights, b.weights),
            tuple(parts[key] for key in sorted(parts)),
            a.within + b.within,
            np.sort(np.concatenate(keys)) if keys else None,
            folds,
            self.seed,
        )

    def __radd__(self, other: Any) -> Statistics:
        return self if other == 0 else NotImplemented  # so that sum(shards) works

    def _relabel(self, speaker_ids: NDArray[Any], kinds: NDArray[Any]) -> Statistics:
        speaker = np.searchsorted(speaker_ids, self.speaker_ids)
        kind = np.searchsorted(kinds, self.kinds)
        weights = np.zeros(len(speaker_ids))
        weights[speaker] = self.weights
        within = zeros((len(kinds), self.d, self.d), self.within)
        blocks = []
        for k, to in enumerate(kind.tolist()):
            within[to, ...] = self.within[k, ...]
        for b in self.blocks:
            counts = np.zeros(len(kinds), np.int64)
            counts[kind] = b.counts
            blocks.append(replace(b, counts=counts, speaker=speaker[b.speaker]))
        return replace(self, kinds=kinds, speaker_ids=speaker_ids, weights=weights, blocks=tuple(blocks), within=within)

    def _move(self, offset: Array) -> Statistics:
        """The same statistics about another offset."""
        xp = namespace(self.offset, offset)
        if self.offset is offset:
            return self
        blocks = []
        for b, f, H in zip(self.blocks, self.f, self.H, strict=True):
            delta = xp.concat([int(b.counts[k]) * (self.offset - offset) for k in b.present.tolist()])
            fd = f[:, None] * delta[None, :]
            A = b.A + put(b.n.astype(float), b.A)[:, None] * delta[None, :]
            T = b.T + fd + fd.T + float(H) * delta[:, None] * delta[None, :]
            blocks.append(replace(b, A=A, scatter=T))
        return replace(self, offset=offset, blocks=tuple(blocks))


def _join(a: TypeBlock, b: TypeBlock) -> TypeBlock:
    speaker = np.union1d(a.speaker, b.speaker)
    n, A = np.zeros(len(speaker), np.int64), zeros((len(speaker), a.A.shape[1]), a.A)
    for x in (a, b):
        rows = np.searchsorted(speaker, x.speaker)
        n[rows] += x.n
        add_rows(A, rows, x.A)
    return TypeBlock(a.counts, speaker, n, A, _add_scatters([a, b]))


def _add_scatters(blocks: list[TypeBlock]) -> Array:
    """T of several blocks of one type, or all their rows while these are fewer."""
    if sum(b.scatter.shape[0] for b in blocks) < blocks[0].A.shape[1]:
        return namespace(blocks[0].A).concat([b.scatter for b in blocks])
    return sum((b.T for b in blocks[1:]), blocks[0].T)


def check_rows(X: Any) -> tuple[Array, Any]:
    """A two-dimensional array of real numbers, in its own library."""
    xp = namespace(X)
    if xp is np:
        X = np.asarray(X)
        if X.dtype.kind == "c":
            raise DuopldaError(f"recordings must be real numbers, got complex ones ({X.dtype})")
        if X.dtype.kind not in "fiub":
            try:
                X = X.astype(np.float64)
            except (TypeError, ValueError) as error:
                raise DuopldaError(f"recordings must be numbers, got dtype {X.dtype}: {error}") from None
    elif xp.isdtype(X.dtype, "complex floating"):
        raise DuopldaError(f"recordings must be real numbers, got complex ones ({X.dtype})")
    if X.ndim != 2:
        raise DuopldaError(f"recordings must be a matrix of shape (recordings, dimensions), got shape {tuple(X.shape)}")
    if X.shape[0] == 0 or X.shape[1] == 0:
        raise DuopldaError(f"found an array with shape {tuple(X.shape)}: at least one recording is needed")
    return X, xp


def check_finite(X: Array, first_row: int = 0) -> None:
    """Name the rows that are not finite."""
    xp = namespace(X)
    bad = np.flatnonzero(~to_numpy(xp.all(xp.isfinite(X), axis=1)))
    if len(bad):
        raise DuopldaError(
            f"Input X contains NaN or infinity in {len(bad)} of {X.shape[0]} rows: {some(bad + first_row)}. "
            "Remove these recordings, or look at what the extractor did with them (empty or silent audio?)"
        )


def as_labels(labels: Any) -> Labels:
    """Labels in any of the forms that `Statistics.accumulate` takes."""
    if isinstance(labels, Labels):
        return labels
    if isinstance(labels, Mapping) and {"speaker"} <= set(labels) <= {"speaker", "session", "channel"}:
        return lab.encode(**labels)
    if isinstance(labels, (tuple, list)) and 1 <= len(labels) <= 3:
        return lab.encode(*labels)
    raise DuopldaError(
        "labels must be (speaker, session), (speaker, session, channel), a mapping of those names, or Labels, "
        f"got {type(labels).__name__}"
    )


def _helmert(n: int) -> NDArray[np.float64]:
    """(n - 1, n) orthonormal contrasts: C'C = I - 11'/n."""
    C = np.tri(n - 1, n)
    C[np.arange(n - 1), np.arange(1, n)] = -np.arange(1, n)
    return C / np.sqrt((C**2).sum(axis=1, keepdims=True))


class _FoldSums:
    """Sums by fold of speakers; one fold of all where none are asked for."""

    def __init__(self, labels: Labels, like: Array, n_folds: int, seed: int):
        xp = namespace(like)
        self.seed, self.n_folds = seed, n_folds
        with np.errstate(all="ignore"):
            offset = xp.mean(to_float(like[: min(4096, like.shape[0]), :], xp), axis=0)
            offset = xp.where(xp.isfinite(offset), offset, xp.zeros_like(offset))
            spread = xp.std(to_float(like[: min(4096, like.shape[0]), :], xp), axis=0)
            far = not bool(xp.all(xp.abs(offset) < 100 * spread))
        self.speaker_ids = labels.speaker_ids
        self.fold = lab.folds(labels.speaker_ids, n_folds, seed) if n_folds else np.zeros(len(labels.speaker_ids))
        if n_folds:
            parts = [labels.select(self.fold == f) for f in range(n_folds)]
        else:
            parts = [(labels, np.arange(labels.n_recordings))]
        self.parts = [_Sums(part, rows, offset, far) for part, rows in parts]
        self.A: dict[tuple[int, ...], Array] = {}  # the sums of all folds in one array, of which theirs are parts
        if n_folds:
            self._share(offset)

    def _share(self, like: Array) -> None:
        rows: dict[tuple[int, ...], int] = {}
        for part in self.parts:
            for t, A in zip(part.types.tolist(), part.A, strict=True):
                rows[tuple(t)] = rows.get(tuple(t), 0) + A.shape[0]
        at = dict.fromkeys(rows, 0)
        for part in self.parts:
            for c, t in enumerate(map(tuple, part.types.tolist())):
                n, width = part.A[c].shape
                if t not in self.A:
                    self.A[t] = zeros((rows[t], width), like)
                part.A[c] = self.A[t][at[t] : at[t] + n, :]
                at[t] += n

    def result(self, again: Any) -> Statistics:
        parts = tuple(part.result(again) for part in self.parts)
        if not self.n_folds:
            return parts[0]
        own = [np.flatnonzero(self.fold == f) for f in range(self.n_folds)]
        blocks = []
        for t in sorted(self.A):
            of = [(f, b) for f, part in enumerate(parts) for b in part.blocks if tuple(b.counts.tolist()) == t]
            speaker = np.concatenate([own[f][b.speaker] for f, b in of])
            n = np.concatenate([b.n for _, b in of])
            blocks.append(TypeBlock(of[0][1].counts, speaker, n, self.A[t], _add_scatters([b for _, b in of])))
        first = parts[0]
        keys = None if first.session_keys is None else np.sort(np.concatenate([p.session_keys for p in parts]))
        within = sum((p.within for p in parts[1:]), first.within)
        weights = np.ones(len(self.speaker_ids))
        return Statistics(
            first.offset, first.kinds, self.speaker_ids, weights, tuple(blocks), within, keys, parts, self.seed
        )


class _Sums:
    """Statistics while they are gathered: closed sessions in their type's sums, open ones as sums of their own."""

    def __init__(self, labels: Labels, rows: Ints, offset: Array, far: bool = True):
        xp = namespace(offset)
        self.labels, self.xp, self.d = labels, xp, offset.shape[0]
        self.rows = rows  # of the data, increasing, that the labels are about
        self.offset = offset
        # Sums and differences are taken of the rows as they are, unless so far from 0 that digits would be lost.
        self.far = far
        self.base = offset if far else xp.zeros_like(offset)
        self.types, self.session_type = np.unique(labels.counts, axis=0, return_inverse=True)
        self.session_type = self.session_type.reshape(-1)
        M, d, K = len(labels.speaker_ids), self.d, len(labels.kinds)
        # The rows of A: pairs of a type and a speaker that has it, in this order.
        pairs, self.session_pair, self.pair_n = np.unique(
            self.session_type * M + labels.session_speaker, return_inverse=True, return_counts=True
        )
        self.pair_speaker = pairs % M
        self.pair_start = np.searchsorted(pairs // M, np.arange(len(self.types) + 1))
        self.A = [
            zeros((b - a, int((t > 0).sum()) * d), self.offset)
            for t, a, b in zip(self.types, self.pair_start[:-1], self.pair_start[1:], strict=True)
        ]
        # T_c, or where there are fewer sessions of a type, their rows F, so many of which are there already.
        sessions = np.bincount(self.session_type, minlength=len(self.types)).tolist()
        self.T = [zeros((min(h, a.shape[1]), a.shape[1]), self.offset) for h, a in zip(sessions, self.A, strict=True)]
        self.rows_kept = [0] * len(self.types)
        self.within = zeros((K, d, d), self.offset)
        self.open: dict[int, tuple[Ints, Array]] = {}  # session -> counts so far (K,), sums so far (K, d)
        chunk = CHUNK_BYTES // 4 if xp is np else 1 << 31  # of a core's cache; of a device's memory
        self.rows_per_chunk = max(256, chunk // (8 * d))
        self.lock = Lock()

    def add_sorted(self, X: Array) -> None:
        """All recordings at once: by type and speaker, so that no session is ever open."""
        lb = self.labels
        session_order = np.argsort(self.session_pair, kind="stable")
        rank = np.empty_like(session_order)
        rank[session_order] = np.arange(len(session_order))
        key = rank[lb.session] if len(lb.kinds) == 1 else rank[lb.session] * len(lb.kinds) + lb.kind
        rows = self.rows if bool((key[1:] >= key[:-1]).all()) else self.rows[np.argsort(key, kind="stable")]
        self._add_complete(X, rows, session_order)

    def add(self, X: Array, first_row: int) -> None:
        """A chunk that begins at a row of the data."""
        lb = self.labels
        rows = np.arange(*np.searchsorted(self.rows, [first_row, first_row + X.shape[0]]))  # among the labels
        in_chunk = self.rows[rows] - first_row
        sessions, inverse, have = np.unique(lb.session[rows], return_inverse=True, return_counts=True)
        whole = have == lb.counts[sessions].sum(axis=1)
        if whole.any():
            chosen = sessions[whole]
            order = np.argsort(self.session_pair[chosen], kind="stable")
            rank = np.full(len(sessions), -1)
            rank[np.flatnonzero(whole)[order]] = np.arange(len(order))
            place = np.flatnonzero(whole[inverse])
            key = rank[inverse[place]] * len(lb.kinds) + lb.kind[rows[place]]
            self._add_complete(X, in_chunk[place[np.argsort(key, kind="stable")]], chosen[order])
        part = np.flatnonzero(~whole[inverse])
        if len(part):
            self._add_open(X, in_chunk[part], rows[part])

    def _rows(self, X: Array, index: Ints, buffer: Array | None = None) -> Array:
        """Rows of X about `self.base`, in double precision, in a buffer that is used again, or as they are."""
        ordered = index[-1] - index[0] == len(index) - 1 and bool((np.diff(index) == 1).all())
        part = slice(int(index[0]), int(index[-1]) + 1)
        if buffer is None:
            return to_float(X[part, :] if ordered else take(X, index), self.xp) - self.base
        out = buffer[: len(index)]
        if ordered and X.dtype == np.float64 and not self.far:
            return X[part]
        if ordered:
            return np.subtract(X[part], self.base, out=out)
        if X.dtype == np.float64:
            np.take(X, index, axis=0, out=out, mode="clip")
        else:
            out[...] = X[index]
        if self.far:
            out -= self.base
        return out

    def _add_complete(self, X: Array, rows: Ints, sessions: Ints) -> None:
        """Whole sessions, sorted by pair of type and speaker; their rows sorted by session and kind."""
        session_type = self.session_type[sessions]
        row, tasks = 0, []
        for c in np.unique(session_type).tolist():
            L = int(self.types[c].sum())
            first, last = np.searchsorted(session_type, [c, c + 1]).tolist()
            step = max(1, self.rows_per_chunk // L)
            for a in range(first, last, step):
                b = min(a + step, last)
                tasks.append((c, rows[row : row + (b - a) * L], sessions[a:b]))
                row += (b - a) * L
        if not tasks:
            return
        if self.xp is not np:
            self._work(X, tasks)
        else:  # sums and copies are not threaded in NumPy: give each core its own chunks
            with one_thread_each(len(rows) * self.d**2) as (threads, run):
                run(lambda i: self._work(X, tasks[i::threads]), list(range(min(threads, len(tasks)))))

    @np.errstate(invalid="ignore", over="ignore")  # what is not finite is found at the end
    def _work(self, X: Array, tasks: list[tuple[int, Ints, Ints]]) -> None:
        xp, d = self.xp, self.d
        most = max(len(rows) for _, rows, _ in tasks)
        buffer, spare = (np.empty((most, d)), np.empty((most, d))) if xp is np else (None, None)
        within: dict[int, Array] = {}
        T: dict[int, Array] = {}
        for c, rows, sessions in tasks:
            counts, h = self.types[c], len(sessions)
            G = xp.reshape(self._rows(X, rows, buffer), (h, -1, d))
            sums, at = [], 0
            for k in np.flatnonzero(counts).tolist():
                n = int(counts[k])
                part = G[:, at : at + n, :]
                at += n
                whole = xp.sum(part, axis=1) if n > 1 else part[:, 0, :]
                sums.append(whole - n * (self.offset - self.base))
                if n == 1:
                    continue
                if n <= 8:  # n - 1 differences hold what n residuals do, at less cost
                    contrasts = put(_helmert(n), part)
                    rows_out = None if spare is None else spare[: h * (n - 1)].reshape(h, n - 1, d)
                    rest = contrasts @ part if rows_out is None else np.matmul(contrasts, part, out=rows_out)
                else:
                    rest = part - (whole / n)[:, None, :]
                scatter = gram(xp.reshape(rest, (-1, d)))
                within[k] = within[k] + scatter if k in within else scatter
            F = sums[0] if len(sums) == 1 else xp.concat(sums, axis=1)
            if self.T[c].shape[0] == F.shape[1]:
                T[c] = T[c] + gram(F) if c in T else gram(F)
            with self.lock:
                self._close(c, F, sessions)
        with self.lock:
            for k, scatter in within.items():
                self.within[k, ...] += scatter
            for c, scatter in T.items():
                self.T[c] += scatter

    def _close(self, c: int, F: Array, sessions: Ints) -> None:
        """Give sums F (h, K_c d) of complete sessions of type c, sorted by speaker, to their speakers."""
        if self.T[c].shape[0] < F.shape[1]:
            first = self.rows_kept[c]
            self.rows_kept[c] = first + F.shape[0]
            self.T[c][first : first + F.shape[0], :] = F
        pair = self.session_pair[sessions]
        starts = np.flatnonzero(np.diff(pair, prepend=-1))
        add_rows(self.A[c], pair[starts] - self.pair_start[c], segment_sums(F, starts))

    @np.errstate(invalid="ignore", over="ignore")
    def _add_open(self, X: Array, place: Ints, rows: Ints) -> None:
        """Rows of sessions that have rows in other chunks too.

        Two parts of n and m rows with means p and q: their joint scatter is the sum of both plus nm/(n+m) (p-q)(p-q)'.
        """
        xp, lb, K, d = self.xp, self.labels, len(self.labels.kinds), self.d
        cell = lb.session[rows] * K + lb.kind[rows]
        order = np.argsort(cell, kind="stable")
        cell, starts, n = np.unique(cell[order], return_index=True, return_counts=True)
        G = self._rows(X, place[order]) - (self.offset - self.base)
        F = segment_sums(G, starts)
        mean = F / put(n.astype(float), F)[:, None]
        G = G - take(mean, np.repeat(np.arange(len(n)), n))  # not in place: F may be G itself
        row_kind = np.repeat(cell % K, n)
        jumps: list[list[Array]] = [[] for _ in range(K)]
        for i, (s, k) in enumerate(zip((cell // K).tolist(), (cell % K).tolist(), strict=True)):
            if s not in self.open:
                self.open[s] = (np.zeros(K, np.int64), zeros((K, d), self.offset))
            counts, sums = self.open[s]
            if counts[k]:
                m = int(counts[k])
                jump = mean[i, :] - sums[k, :] / m
                jumps[k].append(float(n[i] * m / (n[i] + m)) ** 0.5 * jump)
            counts[k] += n[i]
            sums[k, :] += F[i, :]
        for k in range(K):
            if (row_kind == k).any():
                self.within[k, ...] += gram(take(G, np.flatnonzero(row_kind == k)))
            if jumps[k]:
                self.within[k, ...] += gram(xp.stack(jumps[k]))
        done = [s for s in np.unique(cell // K).tolist() if (self.open[s][0] == lb.counts[s]).all()]
        done.sort(key=lambda s: self.session_pair[s])
        for c in np.unique(self.session_type[done]).tolist():
            chosen = [s for s in done if self.session_type[s] == c]
            present = np.flatnonzero(self.types[c])
            F = xp.stack([xp.reshape(take(self.open.pop(s)[1], present), (-1,)) for s in chosen])
            if self.T[c].shape[0] == F.shape[1]:
                self.T[c] += gram(F)
            self._close(c, F, np.array(chosen))

    def result(self, again: Any) -> Statistics:
        """The statistics; a NaN or an infinity anywhere in the data has spread into the sums of its speaker."""
        xp, lb = self.xp, self.labels
        if not all(bool(xp.all(xp.isfinite(A))) for A in (*self.A, *self.T, self.within)):
            if again is not None:
                check_finite(again())
            bad = set()
            for A, a in zip(self.A, self.pair_start, strict=False):
                rows = np.flatnonzero(~to_numpy(xp.all(xp.abs(A) < 1e150, axis=1)))
                bad.update(self.pair_speaker[rows + a].tolist())
            raise DuopldaError(
                "Input X contains NaN, infinity or values too large to add up, in recordings of the speakers "
                f"{some(lb.speaker_ids[sorted(bad)])}"
            )
        blocks = tuple(
            TypeBlock(t, self.pair_speaker[a:b], self.pair_n[a:b], A, T)
            for t, a, b, A, T in zip(self.types, self.pair_start, self.pair_start[1:], self.A, self.T, strict=False)
        )
        keys = None if lb.session_ids is None else lab.keys(lb.session_ids)
        weights = np.ones(len(lb.speaker_ids))
        return Statistics(self.offset, lb.kinds, lb.speaker_ids, weights, blocks, self.within, keys)
