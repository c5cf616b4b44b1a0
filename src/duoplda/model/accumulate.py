"""The one pass over the data: recordings in any order, whole or in chunks, become the sums of `duoplda.statistics`.

Sessions that are there as a whole are taken by type, in blocks that stay in the caches (or in a device's memory): their
sums F, and the scatter of what is left. Parts of a session that come one by one are held as sums until it is complete:
F must be squared whole. Two parts of n and m recordings with means p and q have the joint scatter of both plus

    nm / (n + m) (p - q)(p - q)'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import (
    Array,
    add_rows,
    add_segments,
    arange,
    check_finite,
    gram,
    is_torch,
    namespace,
    one_thread_each,
    put,
    ranked,
    segment_sums,
    set_rows,
    streamed,
    take,
    to_float,
    to_numpy,
    zeros,
)
from duoplda.data import labels as lab
from duoplda.data.labels import Ints, Labels
from duoplda.errors import DuopldaError, some

CHUNK_BYTES = 1 << 24  # a block of rows that stays in the caches
DEVICE_BYTES = 1 << 30  # a block of rows on a device
STREAM_BYTES = 1 << 27  # a block on its way there


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


def add_scatters(blocks: list[TypeBlock]) -> Array:
    """T of several blocks of one type, or all their rows while these are fewer."""
    if sum(b.scatter.shape[0] for b in blocks) < blocks[0].A.shape[1]:
        return namespace(blocks[0].A).concat([b.scatter for b in blocks])
    return sum((b.T for b in blocks[1:]), blocks[0].T)


class Gathered(NamedTuple):
    """The fields of `Statistics`, in their order."""

    offset: Array
    kinds: NDArray[Any]
    speaker_ids: NDArray[Any]
    weights: NDArray[np.float64]
    blocks: tuple[TypeBlock, ...]
    within: Array
    sessions: NDArray[Any] | None
    folds: tuple[Gathered, ...] = ()
    seed: int = 0


def helmert(n: int) -> NDArray[np.float64]:
    """(n - 1, n) orthonormal contrasts: C'C = I - 11'/n."""
    C = np.tri(n - 1, n)
    C[np.arange(n - 1), np.arange(1, n)] = -np.arange(1, n)
    return C / np.sqrt((C**2).sum(axis=1, keepdims=True))


def near_mean(rows: Array) -> Array:
    """(d,) a point about which to sum, near the mean of all rows: that of some of them, 0 where it is not finite."""
    xp = namespace(rows)
    offset = xp.mean(rows, axis=0)
    return xp.where(xp.isfinite(offset), offset, xp.zeros_like(offset))


class Folds:
    """Sums by fold of speakers; one fold of all where none are asked for."""

    def __init__(
        self,
        labels: Labels,
        like: Array,
        n_folds: int = 0,
        seed: int = 0,
        *,
        offset: Array | None = None,
        single: bool = False,
    ):
        xp = namespace(like)
        self.seed, self.n_folds = seed, n_folds
        with np.errstate(all="ignore"):
            first = to_float(like[: min(4096, like.shape[0]), :], xp)
            offset = near_mean(first) if offset is None else offset
            far = not bool(xp.all(xp.abs(offset) < 100 * xp.std(first, axis=0)))
        self.speaker_ids = labels.speaker_ids
        self.fold = lab.folds(labels.speaker_ids, n_folds, seed)
        parts = [labels.select(self.fold == f) for f in range(n_folds)] if n_folds else [(labels, None)]
        self.parts = [Sums(part, rows, offset, far, single) for part, rows in parts]
        self.A: dict[tuple[int, ...], Array] = {}  # the sums of all folds in one array, of which theirs are parts
        if n_folds:
            self._share(offset)

    @property
    def d(self) -> int:
        return self.parts[0].d

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

    def add_all(self, X: Array) -> None:
        """All recordings at once."""
        for part in self.parts:
            part.add_all(X)

    def add(self, X: Array, first_row: int) -> None:
        """A chunk that begins at a row of the data."""
        for part in self.parts:
            part.add(X, first_row)

    def add_sums(self, labels: Labels, sums: Array, within: Array) -> None:
        """All sessions at once by their sums (H, K, d), and the scatter about them by fold (folds, K, d, d)."""
        for f, part in enumerate(self.parts):
            of = np.flatnonzero(self.fold[labels.session_speaker] == f)
            part.close_sums(np.arange(len(of)), take(sums, of))
            part.within += within[f, ...]

    def result(self, again: Callable[[], Array] | None = None) -> Gathered:
        """What Statistics hold; `again` gives all recordings, to name those that are not finite."""
        parts = tuple(part.result(again) for part in self.parts)
        if not self.n_folds:
            return parts[0]
        own = [np.flatnonzero(self.fold == f) for f in range(self.n_folds)]
        blocks = []
        for t in sorted(self.A):
            of = [(f, b) for f, part in enumerate(parts) for b in part.blocks if tuple(b.counts.tolist()) == t]
            speaker = np.concatenate([own[f][b.speaker] for f, b in of])
            n = np.concatenate([b.n for _, b in of])
            blocks.append(TypeBlock(of[0][1].counts, speaker, n, self.A[t], add_scatters([b for _, b in of])))
        first = parts[0]
        keys = [p.sessions for p in parts if p.sessions is not None]
        within = sum((p.within for p in parts[1:]), first.within)
        return Gathered(
            first.offset,
            first.kinds,
            self.speaker_ids,
            np.ones(len(self.speaker_ids)),
            tuple(blocks),
            within,
            np.concatenate(keys) if keys else None,
            parts,
            self.seed,
        )


class Sums:
    """Sums of sessions that are complete, by type and speaker, and of parts of sessions that are not."""

    def __init__(self, labels: Labels, rows: Array | None, offset: Array, far: bool = True, single: bool = False):
        xp = namespace(offset)
        self.labels, self.xp, self.d = labels, xp, offset.shape[0]
        self.rows = rows  # of the data, increasing, that the labels are about; None: all
        self.offset, self.single = offset, single
        # Sums and differences are taken of the rows as they are, unless so far from 0 that digits would be lost.
        self.far = far
        self.base = offset if far else xp.zeros_like(offset)
        if single:  # a number that single precision has too
            self.base = xp.astype(xp.astype(self.base, xp.float32), xp.float64)
        M, d, K = len(labels.speaker_ids), self.d, len(labels.kinds)
        self.types, self.session_type, n_sessions = labels.types
        self.n_sessions = n_sessions.tolist()
        # The rows of A: pairs of a type and a speaker that has it, in this order.
        pairs, self.session_pair, pair_n = ranked(self.session_type * M + labels.session_speaker)
        pairs, self.pair_n = to_numpy(pairs), to_numpy(pair_n)
        self.pair_speaker = pairs % max(M, 1)
        self.pair_start = np.searchsorted(pairs // max(M, 1), np.arange(len(self.types) + 1)).tolist()
        self.A = [
            zeros((b - a, int((t > 0).sum()) * d), offset)
            for t, a, b in zip(self.types, self.pair_start[:-1], self.pair_start[1:], strict=True)
        ]
        # T_c, or where there are fewer sessions of a type, their rows F, so many of which are there already.
        self.T = [zeros((min(h, a.shape[1]), a.shape[1]), offset) for h, a in zip(self.n_sessions, self.A, strict=True)]
        self.rows_kept = [0] * len(self.types)
        self.within = zeros((K, d, d), offset)
        self.open: Open | None = None
        self.lock = Lock()

    # -- whole sessions

    def add_all(self, X: Array) -> None:
        """All recordings at once: by type and speaker, so that no session is ever open."""
        lb, ip = self.labels, namespace(self.labels.session)
        if not lb.n_recordings:
            return
        order = ip.argsort(self.session_pair, stable=True)
        rank = ip.empty_like(order)
        rank[order] = arange(lb.n_sessions, order)
        key = rank[lb.session] if len(lb.kinds) == 1 else rank[lb.session] * len(lb.kinds) + lb.kind
        rows = self.rows
        if not bool(ip.all(key[1:] >= key[:-1])):
            sort = ip.argsort(key, stable=True)
            rows = sort if rows is None else rows[sort]
        self._add_whole(X, rows, self.session_pair[order], self.n_sessions)

    def add(self, X: Array, first_row: int) -> None:
        """A chunk that begins at a row of the data."""
        lb = self.labels
        if self.rows is None:
            rows = np.arange(first_row, first_row + X.shape[0])
            in_chunk = rows - first_row
        else:
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
            n = np.bincount(self.session_type[chosen], minlength=len(self.types)).tolist()
            self._add_whole(X, in_chunk[place[np.argsort(key, kind="stable")]], self.session_pair[chosen[order]], n)
        part = np.flatnonzero(~whole[inverse])
        if len(part):
            self._add_open(X, in_chunk[part], rows[part])

    def _add_whole(self, X: Array, rows: Array | None, pair: Array, n_sessions: list[int]) -> None:
        """Whole sessions, by their pairs of type and speaker, so many of each type; rows sorted by session and kind."""
        tasks: list[tuple[int, slice, Array]] = []
        there = STREAM_BYTES if isinstance(X, np.ndarray) else DEVICE_BYTES
        rows_each = max(256, (CHUNK_BYTES // 4 if self.xp is np else there) // (8 * self.d))
        row = at = 0
        for c, h in enumerate(n_sessions):
            L = int(self.types[c].sum())
            step = max(1, rows_each // L)
            for a in range(at, at + h, step):
                b = min(a + step, at + h)
                tasks.append((c, slice(row, row + (b - a) * L), pair[a:b]))
                row += (b - a) * L
            at += h
        if not tasks:
            return
        if self.xp is not np:
            self._work(X, rows, tasks)
        else:  # sums and copies are not threaded in NumPy: give each core its own chunks
            with one_thread_each(row * self.d**2) as (threads, run):
                run(lambda i: self._work(X, rows, tasks[i::threads]), list(range(min(threads, len(tasks)))))

    def _blocks(self, X: Array, rows: Array | None, parts: list[slice], out: Array | None) -> Iterator[Array]:
        """Rows of X about `self.base`, in a buffer that is used again, or as they are."""
        if self.xp is not np and isinstance(X, np.ndarray):
            for block in streamed(X, parts if rows is None else [to_numpy(rows[p]) for p in parts], self.offset):
                yield self._precise(block)
            return
        for p in parts:
            index: Any = None if rows is None else rows[p]
            if self.xp is np and index is not None and index[-1] - index[0] == len(index) - 1 and _steps(index):
                index, p = None, slice(int(index[0]), int(index[-1]) + 1)
            if out is None:
                yield self._precise(X[p, :] if index is None else take(X, index))
            elif index is None and X.dtype == out.dtype and not self.far:
                yield X[p]
            elif index is None:
                yield np.subtract(X[p], self.base, out=out[: p.stop - p.start], casting="same_kind")
            else:
                block = out[: len(index)]
                if X.dtype == out.dtype:
                    np.take(X, index, axis=0, out=block, mode="clip")
                else:
                    block[...] = X[index]
                if self.far:
                    block -= self.base.astype(out.dtype)
                yield block

    def _precise(self, block: Array) -> Array:
        if self.single and block.dtype == self.xp.float32:
            return block - self.xp.astype(self.base, self.xp.float32) if self.far else block
        return to_float(block, self.xp) - self.base if self.far else to_float(block, self.xp)

    @np.errstate(invalid="ignore", over="ignore")  # what is not finite is found at the end
    def _work(self, X: Array, index: Array | None, tasks: list[tuple[int, slice, Array]]) -> None:
        xp, d = self.xp, self.d
        most = max(p.stop - p.start for _, p, _ in tasks)
        dtype = np.float32 if self.single and str(X.dtype) == "float32" else np.float64
        buffer, spare = (np.empty((most, d), dtype), np.empty((most, d), dtype)) if xp is np else (None, None)
        within: dict[int, Array] = {}
        T: dict[int, Array] = {}
        blocks = self._blocks(X, index, [p for _, p, _ in tasks], buffer)
        shift = self.offset - self.base
        for (c, _, pair), block in zip(tasks, blocks, strict=True):
            counts, h = self.types[c], len(pair)
            G = xp.reshape(block, (h, -1, d))
            sums, at = [], 0
            for k in np.flatnonzero(counts).tolist():
                n = int(counts[k])
                part = G[:, at : at + n, :]
                at += n
                whole = xp.sum(part, axis=1, dtype=xp.float64) if n > 1 else to_float(part[:, 0, :], xp)
                sums.append(whole - n * shift)
                if n == 1:
                    continue
                if n <= 8 and spare is not None:  # n - 1 differences hold what n residuals do, at less cost
                    rows_out = spare[: h * (n - 1)].reshape(h, n - 1, d)
                    rest = np.matmul(helmert(n).astype(dtype), part, out=rows_out)
                elif is_torch(xp) and part.dtype == whole.dtype:
                    rest = part.sub(whole[:, None, :], alpha=1 / n)  # in one go
                else:
                    rest = part - xp.astype(whole / n, part.dtype, copy=False)[:, None, :]
                scatter = gram(xp.reshape(rest, (-1, d)))
                within[k] = within[k] + scatter if k in within else to_float(scatter, xp)
            F = sums[0] if len(sums) == 1 else xp.concat(sums, axis=1)
            if self.T[c].shape[0] == F.shape[1]:
                T[c] = T[c] + gram(F) if c in T else gram(F)
            with self.lock:
                self._close(c, F, pair)
        with self.lock:
            for k, scatter in within.items():
                self.within[k, ...] += scatter
            for c, scatter in T.items():
                self.T[c] += scatter

    def _close(self, c: int, F: Array, pair: Array) -> None:
        """Give sums F (h, K_c d) of complete sessions of type c, sorted by pair, to their speakers."""
        if self.T[c].shape[0] < F.shape[1]:
            first = self.rows_kept[c]
            self.rows_kept[c] = first + F.shape[0]
            self.T[c][first : first + F.shape[0], :] = F
        add_segments(self.A[c], pair - self.pair_start[c], F)

    # -- sessions in parts

    @np.errstate(invalid="ignore", over="ignore")
    def _add_open(self, X: Array, place: Ints, rows: Ints) -> None:
        """Rows of sessions that have rows in other chunks too."""
        lb, K = self.labels, len(self.labels.kinds)
        cell, n, F, within = parts(X, place, lb.session[rows] * K + lb.kind[rows], K, self.offset)
        self.within += within
        if self.open is None:
            self.open = Open(lb, self.offset)
        self.open.add(cell, n, F, self.within)
        sessions = np.unique(cell // K)
        self.close_sums(*self.open.take_complete(sessions))

    def close_sums(self, sessions: Ints, sums: Array) -> None:
        """Complete sessions (h,) by their sums (h, K, d)."""
        if not len(sessions):
            return
        order = np.argsort(self.session_pair[sessions], kind="stable")
        type_ = self.session_type[sessions[order]]
        for c in np.unique(type_).tolist():
            chosen = order[slice(*np.searchsorted(type_, [c, c + 1]))]
            present = np.flatnonzero(self.types[c])
            F = self.xp.concat([take(sums[:, int(k), :], chosen) for k in present], axis=1)
            if self.T[c].shape[0] == F.shape[1]:
                self.T[c] += gram(F)
            self._close(c, F, self.session_pair[sessions[chosen]])

    def result(self, again: Callable[[], Array] | None) -> Gathered:
        """The sums; a NaN or an infinity anywhere in the data has spread into those of its speaker."""
        xp, lb = self.xp, self.labels
        finite = [xp.all(xp.isfinite(A)) for A in (*self.A, *self.T, self.within)]
        if not bool(xp.all(xp.stack(finite))):
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
        ids = lb.session_ids
        keys = ids if ids is None or ids.dtype == np.int64 else lab.keys(ids)  # numbers are hashed when asked for
        return Gathered(self.offset, lb.kinds, lb.speaker_ids, np.ones(len(lb.speaker_ids)), blocks, self.within, keys)


def _steps(index: Ints) -> bool:
    return bool((np.diff(index) == 1).all())


def parts(X: Array, place: Ints, cell: Ints, K: int, offset: Array) -> tuple[Ints, Ints, Array, Array]:
    """Rows of X by cell (session * K + kind): the cells that are there, how many rows each has, and their sums about
    the offset; and of each kind the scatter (K, d, d) of the rows about the mean of their cell."""
    xp = namespace(offset)
    order = np.argsort(cell, kind="stable")
    cell, starts, n = np.unique(cell[order], return_index=True, return_counts=True)
    G = to_float(put_rows(take(X, place[order]), offset), xp) - offset
    F = segment_sums(G, starts)
    mean = F / put(n.astype(float), F)[:, None]
    G = G - take(mean, np.repeat(np.arange(len(n)), n))  # not in place: F may be G itself
    kind = np.repeat(cell % K, n)
    within = zeros((K, G.shape[1], G.shape[1]), offset)
    for k in np.unique(kind).tolist():
        within[k, ...] = gram(G if K == 1 else take(G, np.flatnonzero(kind == k)))
    return cell, n, F, within


def put_rows(X: Array, like: Array) -> Array:
    """Rows on the device of `like`."""
    return X if namespace(X) is namespace(like) else put(X, like)


class Open:
    """Sums so far of sessions that are not complete."""

    def __init__(self, labels: Labels, like: Array):
        self.labels, self.K, self.d = labels, len(labels.kinds), like.shape[0]
        self.slot = np.full(labels.n_sessions, -1)
        self.free = np.zeros(0, np.int64)
        self.counts = np.zeros((0, self.K), np.int64)
        self.sums = zeros((0, self.d), like)  # (slots * K, d)

    def __len__(self) -> int:
        return int((self.slot >= 0).sum())

    def add(self, cell: Ints, n: Ints, F: Array, within: Array) -> None:
        """Add sums F of n recordings to cells, each at most once; and what the joining scatters, to `within`."""
        xp = namespace(F)
        self._open(np.unique(cell // self.K))
        at, kind = self.slot[cell // self.K] * self.K + cell % self.K, cell % self.K
        m = self.counts.reshape(-1)[at]
        for k in np.unique(kind[m > 0]).tolist():
            of = np.flatnonzero((m > 0) & (kind == k))
            n_, m_ = (put(a[of].astype(float), F)[:, None] for a in (n, m))
            jump = take(F, of) / n_ - take(self.sums, at[of]) / m_
            within[k, ...] += gram(jump * xp.sqrt(n_ * m_ / (n_ + m_)))
        self.counts.reshape(-1)[at] += n
        add_rows(self.sums, at, F)

    def _open(self, sessions: Ints) -> None:
        new = sessions[self.slot[sessions] < 0]
        if len(new) > len(self.free):  # twice as many slots
            have = len(self.counts)
            more = max(len(new) - len(self.free), have)
            self.free = np.concatenate([self.free, np.arange(have, have + more)])
            self.counts = np.concatenate([self.counts, np.zeros((more, self.K), np.int64)])
            xp = namespace(self.sums)
            self.sums = xp.concat([self.sums, zeros((more * self.K, self.d), self.sums)], axis=0)
        self.slot[new], self.free = self.free[: len(new)], self.free[len(new) :]

    def take_complete(self, sessions: Ints) -> tuple[Ints, Array]:
        """Those of the sessions that are complete, and their sums (h, K, d); they are held no longer."""
        xp = namespace(self.sums)
        done = sessions[(self.counts[self.slot[sessions]] == self.labels.counts[sessions]).all(axis=1)]
        slots = self.slot[done]
        at = (slots[:, None] * self.K + np.arange(self.K)).reshape(-1)
        sums = xp.reshape(take(self.sums, at), (len(done), self.K, self.d))
        set_rows(self.sums, at, zeros((len(at), self.d), self.sums))
        self.counts[slots], self.slot[done] = 0, -1
        self.free = np.concatenate([self.free, slots])
        return done, sums
