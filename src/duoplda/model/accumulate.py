"""The one pass over the data: recordings in any order, whole or in chunks, become the sums of `model.statistics`.

A session's sum F must be complete before it is squared. Sessions that a chunk holds whole are taken by type, in blocks
that fit into the caches (or a device's memory): their sums, and the scatter about their means. A session that is cut
stays *open*: its parts are added up until it is complete. The joint scatter of two parts of n and m recordings with
means p and q is the sum of their scatters plus nm / (n + m) (p - q)(p - q)' (see `Open.add`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import helmert

from duoplda import arrays as ar
from duoplda.arrays import Array
from duoplda.data.labels import NO_KIND, Ints, Labels, folds, keys
from duoplda.data.recordings import places_of
from duoplda.errors import DuopldaError

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

    @cached_property
    def parts(self) -> list[tuple[int, int, slice]]:
        """For each of the K_c kinds present: the kind, its recordings in a session, and its columns of A."""
        d = self.A.shape[1] // len(self.present)
        return [(k, int(self.counts[k]), slice(i * d, (i + 1) * d)) for i, k in enumerate(self.present.tolist())]

    @property
    def size(self) -> int:
        return int(self.counts.sum())

    @property
    def squared(self) -> bool:
        """Whether `scatter` is T already, not the rows F."""
        return self.scatter.shape[0] == self.scatter.shape[1]

    @property
    def T(self) -> Array:
        """(K_c d, K_c d) sum of F F' over all sessions, weighted by the speakers' weights."""
        return self.scatter if self.squared else ar.gram(self.scatter)

    def times(self, M: Array) -> Array:
        """T M, by way of the rows F where these are fewer."""
        return self.scatter @ M if self.squared else self.scatter.T @ (self.scatter @ M)

    def stacked(self, rows: Array) -> Array:
        """(K_c d,) the sums F of a session whose recordings of kind k are all equal to row k of (K, d)."""
        return ar.namespace(rows).concat([n * rows[k, ...] for k, n, _ in self.parts])


def add_scatters(blocks: list[TypeBlock]) -> Array:
    """T of several blocks of one type, or all their rows while these are fewer."""
    if sum(b.scatter.shape[0] for b in blocks) < blocks[0].A.shape[1]:
        return ar.namespace(blocks[0].A).concat([b.scatter for b in blocks])
    return sum((b.T for b in blocks[1:]), blocks[0].T)


@dataclass(frozen=True, eq=False)
class OpenSessions:
    """Sums of sessions that are not complete. A cell is the recordings of one kind in one session."""

    keys: NDArray[np.uint64]  # (h,) hashes of the sessions' names, by which parts find each other
    names: NDArray[Any]  # (h,)
    speakers: NDArray[Any]  # (h,) the speaker's id of each session
    session: Ints  # (cells,) index into the sessions
    kind: Ints  # (cells,)
    n: Ints  # (cells,) recordings
    F: Array  # (cells, d) their sums about the offset of the statistics

    def __len__(self) -> int:
        return len(self.keys)

    def select(self, sessions: NDArray[np.bool_]) -> OpenSessions:
        """Some of the sessions."""
        cells = np.flatnonzero(sessions[self.session])
        place = np.cumsum(sessions) - 1
        keys = self.keys[sessions]
        names = self.names[sessions]
        speakers = self.speakers[sessions]
        session = place[self.session[cells]]
        kind = self.kind[cells]
        n = self.n[cells]
        return OpenSessions(keys, names, speakers, session, kind, n, ar.take(self.F, cells))


Task = tuple[int, slice, Ints]  # whole sessions of one bin: the bin, their rows in order, and the pair of each
Found = tuple[int, Ints, Array, Array | None, dict[int, Array]]  # what they add: the arguments of `Sums._close`


class Sums:
    """Sums of complete sessions by type, fold and speaker, and of parts of sessions that are open.

    A *bin* is a type of sessions in one fold of speakers; a *pair* is a bin and a speaker that has sessions in it.
    """

    def __init__(
        self,
        labels: Labels,
        like: Array,
        offset: Array = None,
        n_folds: int = 0,
        seed: int = 0,
        single: bool = False,
        transform: Callable[[Array, NDArray[Any]], Array] | None = None,
    ):
        """`transform` is a function of rows (k, .) and their kinds that `add_all` applies on the device of `like`."""
        self.labels = labels
        self.xp = ar.namespace(like)
        self.single = single
        self.transform = transform
        self.n_folds = F = max(n_folds, 1)
        self._choose_offset(like, offset)
        M = max(len(labels.speaker_ids), 1)
        self.d = like.shape[1]
        K = len(labels.kinds)
        self.types, type_, _ = labels.types
        self.fold = folds(labels.speaker_ids, n_folds, seed)
        speaker = labels.session_speaker
        bin_ = type_ if F == 1 else type_ * F + ar.put(self.fold, speaker)[speaker]
        n_bins = len(self.types) * F
        # The rows of A: pairs in the order of bins and, in these, of speakers.
        pairs, self.session_pair, pair_n = ar.ranked(bin_ * M + speaker)
        pairs = ar.to_numpy(pairs)
        self.bin = bin_
        self.pair_n_all = ar.to_numpy(pair_n)
        self.pair_speaker = pairs % M
        self.pair_start = np.searchsorted(pairs // M, np.arange(n_bins + 1)).tolist()
        self.pair_n = np.zeros(len(pairs), np.int64)  # sessions that are complete
        self.bin_n = ar.to_numpy(ar.bincount(bin_, n_bins)).tolist()  # sessions in all
        widths = [int((self.types[b // F] > 0).sum()) * self.d for b in range(n_bins)]
        edges = zip(self.pair_start[:-1], self.pair_start[1:], widths, strict=True)
        self.A = [ar.zeros((b - a, w), self.offset) for a, b, w in edges]
        # T_c, or where a bin has fewer sessions than columns, their rows F, of which `rows_kept` are there already.
        self.T = [ar.zeros((min(h, w), w), self.offset) for h, w in zip(self.bin_n, widths, strict=True)]
        self.rows_kept = [0] * n_bins
        self.within = ar.zeros((F, K, self.d, self.d), self.offset)
        self.open = Open(labels.n_sessions, K, self.offset)

    def _choose_offset(self, like: Array, offset: Array | None) -> None:
        """The point about which rows are summed: near the mean of all rows, which is that of some of them."""
        xp = self.xp
        with np.errstate(all="ignore"):
            first = ar.to_float(like[: min(4096, like.shape[0]), :], xp)
            mean = xp.mean(first, axis=0) if offset is None else offset
            self.offset = xp.where(xp.isfinite(mean), mean, xp.zeros_like(mean))
            # Rows are summed as they are, unless they lie so far from 0 that digits would be lost.
            self.far = not bool(xp.all(xp.abs(self.offset) < 100 * xp.std(first, axis=0)))
        self.base = self.offset if self.far else xp.zeros_like(self.offset)
        if self.single:  # a number that single precision has too
            self.base = xp.astype(xp.astype(self.base, xp.float32), xp.float64)

    def add_all(self, X: Array | ar.Arriving) -> None:
        """All recordings at once, so that no session is ever open."""
        ip = ar.namespace(self.labels.session)
        key = self._order(self.labels.session, self.labels.kind)
        rows = None if bool(ip.all(key[1:] >= key[:-1])) else ip.argsort(key, stable=True)
        self._add_whole(X, rows, np.repeat(np.arange(len(self.pair_n)), self.pair_n_all), self.bin_n)
        self.pair_n += self.pair_n_all

    def _order(self, session: Array, kind: Array) -> Array:
        """Integers by which recordings are sorted by pair (and so by bin), session and kind."""
        return (self.session_pair[session] * self.labels.n_sessions + session) * len(self.labels.kinds) + kind

    def add(self, X: Array, index: slice | Ints) -> None:
        """A chunk, whose rows have the labels at `index`."""
        rows = places_of(index)
        session = self.labels.session[rows]
        kind = self.labels.kind[rows]
        sessions, inverse, have = np.unique(session, return_inverse=True, return_counts=True)
        whole = have == self._complete[sessions]
        if whole.any():
            place = np.flatnonzero(whole[inverse])
            chosen = sessions[whole]
            order = np.argsort(self._order(session[place], kind[place]), kind="stable")
            pair = np.sort(self.session_pair[chosen])
            n = np.bincount(self.bin[chosen], minlength=len(self.A))
            self._add_whole(X, place[order], pair, n.tolist())
            np.add.at(self.pair_n, pair, 1)
        part = np.flatnonzero(~whole[inverse])
        if len(part):
            self._add_open(X, part, rows[part])

    @cached_property
    def _complete(self) -> Ints:
        """(H,) how many recordings make a session complete; -1 where further ones are elsewhere."""
        size = self.labels.counts.sum(axis=1)
        return size if self.labels.open is None else np.where(self.labels.open, -1, size)

    def _add_whole(self, X: Array, rows: Array | None, pair: Ints, n_sessions: list[int]) -> None:
        """Whole sessions in the order of their pairs, `n_sessions` of each bin; rows sorted by session and kind."""
        tasks: list[Task] = []
        there = STREAM_BYTES if isinstance(X, np.ndarray) else DEVICE_BYTES
        if isinstance(X, ar.Arriving) and rows is None:  # few, so that little is left to do when the last one is there
            there = 4 * STREAM_BYTES
        rows_each = max(256, (CHUNK_BYTES if self.xp is np else there) // (8 * self.d))
        row = at = 0
        for b, h in enumerate(n_sessions):
            L = int(self.types[b // self.n_folds].sum())
            step = max(1, rows_each // L)
            for i in range(at, at + h, step):
                j = min(i + step, at + h)
                tasks.append((b, slice(row, row + (j - i) * L), pair[i:j]))
                row += (j - i) * L
            at += h
        found = self._work(X, rows, tasks, (None, None))
        if self.xp is np:  # whose sums and copies are not threaded: each core gets blocks of its own
            most = max((p.stop - p.start for _, p, _ in tasks), default=0)
            dtype = np.float32 if self.single and X.dtype == np.float32 else np.float64
            buffers = partial(np.empty, (2, most, self.d), dtype)
            flops = row * self.d**2
            found = ar.in_order(lambda task, own: next(self._work(X, rows, [task], own)), tasks, flops, buffers)
        for block in found:
            self._close(*block)

    def _blocks(self, X: Array, rows: Array | None, parts: list[slice], out: Array | None) -> Iterator[Array]:
        """Rows of X about `self.base`, in a buffer that is used again, or as they are."""
        if self.xp is not np and isinstance(X, np.ndarray):
            order = None if rows is None else ar.to_numpy(rows)
            wanted = parts if order is None else [order[p] for p in parts]
            for own, block in zip(wanted, ar.streamed(X, wanted, self.offset), strict=True):
                yield self._precise(self._transformed(block, own))
            return
        if isinstance(X, ar.Arriving):
            for p in parts:
                block = X.rows(p) if rows is None else ar.take(X.rows(slice(0, self.labels.n_recordings)), rows[p])
                yield self._precise(self._transformed(block, p if rows is None else rows[p]))
            return
        for p in parts:
            index: Any = None if rows is None else rows[p]
            if self.xp is np and index is not None and (np.diff(index) == 1).all():  # consecutive
                index, p = None, slice(int(index[0]), int(index[-1]) + 1)
            if out is None:
                block = X[p, :] if index is None else ar.take(X, index)
                yield self._precise(self._transformed(block, p if index is None else index))
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

    def _transformed(self, block: Array, index: Any) -> Array:
        """Rows with the labels at `index` behind the transform, if there is one."""
        if self.transform is None:
            return block
        kind = self.labels.kind[index] if len(self.labels.kinds) > 1 else np.zeros(block.shape[0], np.int64)
        return self.transform(block, self.labels.kinds[ar.to_numpy(kind)])

    def _precise(self, block: Array) -> Array:
        if not (self.single and block.dtype == self.xp.float32):
            block = ar.to_float(block, self.xp)
        return block - self.xp.astype(self.base, block.dtype) if self.far else block

    def _work(self, X: Array, index: Array | None, tasks: list[Task], buffers: Any) -> Iterator[Found]:
        """Sums and scatters of the tasks, one after the other; two buffers (rows, d) are used again for each."""
        blocks = self._blocks(X, index, [p for _, p, _ in tasks], buffers[0])
        for (b, _, pair), block in zip(tasks, blocks, strict=True):
            with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is found at the end
                G = self.xp.reshape(block, (len(pair), -1, self.d))
                counts = self.types[b // self.n_folds]
                F, within = self._squared(G, counts, buffers[1])
                yield b, pair, F, F.T @ F if self.T[b].shape[0] == F.shape[1] else None, within

    def _squared(self, G: Array, counts: Ints, spare: Array | None) -> tuple[Array, dict[int, Array]]:
        """Sums F (h, K_c d) of sessions G (h, L, d) of one type, and by kind the scatter about the session's mean."""
        xp = self.xp
        h, _, d = G.shape
        sums = []
        within = {}
        at = 0
        for k in np.flatnonzero(counts).tolist():
            n = int(counts[k])
            part = G[:, at : at + n, :]
            at += n
            if n == 1:
                sums.append(ar.to_float(part[:, 0, :], xp) - (self.offset - self.base))
                continue
            whole = xp.sum(part, axis=1, dtype=xp.float64)
            if n <= 8 and spare is not None:  # n - 1 orthonormal contrasts hold what n residuals do, at less cost
                rows = spare[: h * (n - 1)].reshape(h, n - 1, d)
                rest = np.matmul(helmert(n).astype(spare.dtype), part, out=rows)
            elif ar.is_torch(xp) and part.dtype == whole.dtype:
                rest = part.sub(whole[:, None, :], alpha=1 / n)  # in one go
            else:
                rest = part - xp.astype(whole / n, part.dtype, copy=False)[:, None, :]
            whole -= n * (self.offset - self.base)
            sums.append(whole)
            flat = xp.reshape(rest, (-1, d))
            within[k] = ar.to_float(flat.T @ flat, xp)  # NumPy sees that both are one array, and does half the work
        return sums[0] if len(sums) == 1 else xp.concat(sums, axis=1), within

    @np.errstate(invalid="ignore", over="ignore")
    def _close(self, b: int, pair: Ints, F: Array, T: Array | None, within: dict[int, Array]) -> None:
        """Give the sums F (h, K_c d) of complete sessions of bin b, sorted by pair (h,), and F'F to their speakers."""
        if T is not None:
            self.T[b] += T
        else:  # the rows F are kept instead
            first = self.rows_kept[b]
            self.rows_kept[b] = first + F.shape[0]
            self.T[b][first : first + F.shape[0], :] = F
        for k, scatter in within.items():
            self.within[b % self.n_folds, k, ...] += scatter
        ar.add_segments(self.A[b], pair - self.pair_start[b], F)

    @np.errstate(invalid="ignore", over="ignore")
    def _add_open(self, X: Array, place: Ints, rows: Ints) -> None:
        """Rows of sessions that have rows in other chunks too; they are summed by cell (session * K + kind)."""
        lb = self.labels
        K = len(self.labels.kinds)
        cell = lb.session[rows] * K + lb.kind[rows]
        order = np.argsort(cell, kind="stable")
        cells, starts, n = np.unique(cell[order], return_index=True, return_counts=True)
        G = ar.to_float(ar.put(ar.take(X, place[order]), self.offset), self.xp) - self.offset
        F = ar.segment_sums(G, starts)
        mean = F / ar.put(n.astype(float), F)[:, None]
        fold = self.fold[lb.session_speaker[cells // K]]
        rest = G - ar.take(mean, np.repeat(np.arange(len(n)), n))
        _add_by_bin(self.within, np.repeat(fold * K + cells % K, n), rest)
        self.open.add(cells, n, F, fold, self.within)
        sessions = np.unique(cells // K)
        self.close_sums(*self.open.take_out(sessions, self._complete[sessions]))

    @np.errstate(invalid="ignore", over="ignore")
    def close_sums(self, sessions: Ints, sums: Array) -> None:
        """Complete sessions (h,) by their sums (h, K, d)."""
        order = np.argsort(self.session_pair[sessions], kind="stable")
        bins = self.bin[sessions[order]]
        for b in np.unique(bins).tolist():
            chosen = order[slice(*np.searchsorted(bins, [b, b + 1]))]
            present = np.flatnonzero(self.types[b // self.n_folds])
            F = self.xp.concat([ar.take(sums[:, int(k), :], chosen) for k in present], axis=1)
            T = ar.gram(F) if self.T[b].shape[0] == F.shape[1] else None
            self._close(b, self.session_pair[sessions[chosen]], F, T, {})
        np.add.at(self.pair_n, self.session_pair[sessions], 1)

    def result(self, again: Callable[[], Any] | None = None) -> list[dict[str, Any]]:
        """The sums by fold, as fields of `Statistics`; `again` names the recordings that are not finite, if any are."""
        check_sums([*self.A, *self.T, self.within, self.open.sums], again)
        lb = self.labels
        done = self.pair_n > 0
        left = self._left_open()
        who = np.zeros(len(lb.speaker_ids), bool)
        who[self.pair_speaker[done]] = True
        out: list[dict[str, Any]] = []
        for f in range(self.n_folds):
            own = who & (self.fold == f)
            place = np.cumsum(own) - 1
            blocks = [self._block(c, f, done, place) for c in range(len(self.types))]
            rest = None if left is None else left.select((self.fold == f)[lb.session_speaker[self.open.sessions()]])
            found = {"speaker_ids": lb.speaker_ids[own], "weights": np.ones(int(own.sum())), "open": rest or None}
            found |= {"offset": self.offset, "kinds": lb.kinds, "blocks": tuple(b for b in blocks if b is not None)}
            out.append({**found, "within": self.within[f, ...], "sessions": self._names(f)})
        return out

    def _names(self, f: int) -> NDArray[Any] | None:
        """Keys of the complete sessions of a fold; of 64-bit integers the ids, which are hashed when asked for."""
        lb = self.labels
        if lb.session_ids is None:
            return None
        closed = np.ones(lb.n_sessions, bool)
        closed[self.open.sessions()] = False
        if self.n_folds > 1:
            closed &= (self.fold == f)[ar.to_numpy(lb.session_speaker)]
        ids = lb.session_ids[closed]
        return ids if ids.dtype == np.int64 else keys(ids)

    def _block(self, c: int, f: int, done: NDArray[np.bool_], place: Ints) -> TypeBlock | None:
        """The sessions of type c in fold f that are complete."""
        b = c * self.n_folds + f
        pairs = slice(self.pair_start[b], self.pair_start[b + 1])
        there = np.flatnonzero(done[pairs])
        if not len(there):
            return None
        A = self.A[b]
        T = self.T[b]
        if len(there) < A.shape[0]:
            A = ar.take(A, there)
        if T.shape[0] < T.shape[1]:
            T = T[: self.rows_kept[b], :]
        speaker = place[self.pair_speaker[pairs][there]]
        return TypeBlock(self.types[c], speaker, self.pair_n[pairs][there], A, T)

    def _left_open(self) -> OpenSessions | None:
        """Sessions that are not complete at the end."""
        lb = self.labels
        at = self.open.sessions()
        if lb.session_ids is None or not len(at):
            return None
        names = lb.session_ids[at]
        speakers = lb.speaker_ids[lb.session_speaker[at]]
        cells, n, F = self.open.cells()
        session, kind = np.divmod(cells, self.open.K)
        return OpenSessions(keys(names), names, speakers, np.searchsorted(at, session), kind, n, F)


class Moments:
    """Sums and scatters of rows by fold, without labels: a speaker for each fold, a session for each recording."""

    def __init__(self, like: Array, n_folds: int):
        xp = ar.namespace(like)
        self.n_folds = n_folds
        with np.errstate(all="ignore"):
            mean = xp.mean(ar.to_float(like, xp), axis=0)
            self.offset = xp.where(xp.isfinite(mean), mean, xp.zeros_like(mean))
        d = like.shape[1]
        self.n = np.zeros(n_folds, np.int64)
        self.f = ar.zeros((n_folds, d), mean)
        self.T = ar.zeros((n_folds, d, d), mean)

    @ar.reproducible()
    @np.errstate(invalid="ignore", over="ignore")
    def add(self, X: Array, fold: Ints | None) -> None:
        """Add rows X (k, d) of these folds (k,); None: all are of fold 0. One thread: each has buffers of its BLAS."""
        xp = ar.namespace(X)
        n = [X.shape[0]]
        if fold is not None:
            n = np.bincount(fold, minlength=self.n_folds).tolist()
            X = X if max(n) == X.shape[0] else ar.take(X, np.argsort(fold, kind="stable"))
        G = ar.to_float(X, xp)
        at = 0
        own_memory = xp is np and G is not X  # new memory takes longer than the sums
        G = np.subtract(G, self.offset, out=G) if own_memory else G - self.offset
        for k, h in enumerate(n):
            own = G[at : at + h, :]
            at += h
            if h:
                self.n[k] += h
                self.f[k, ...] += xp.sum(own, axis=0)
                self.T[k, ...] += own.T @ own

    def result(self, again: Callable[[], Any]) -> list[dict[str, Any] | None]:
        """The sums by fold, as fields of `Statistics`, None where a fold is empty; `again` as for `Sums.result`."""
        xp = ar.namespace(self.offset)
        check_sums([self.f, self.T], again)
        one = np.ones(1, np.int64)
        d = self.offset.shape[0]
        found: list[dict[str, Any] | None] = []
        for k, n in enumerate(self.n.tolist()):
            block = TypeBlock(one, 0 * one, n * one, xp.reshape(self.f[k, ...], (1, d)), self.T[k, ...])
            own: dict[str, Any] = {
                "offset": self.offset,
                "kinds": NO_KIND,
                "speaker_ids": k * one,
                "weights": np.ones(1),
            }
            own |= {"blocks": (block,), "within": ar.zeros((1, d, d), self.offset), "sessions": None}
            found.append(own if n else None)
        return found


def check_sums(sums: list[Array], again: Callable[[], Any] | None) -> None:
    """A NaN or an infinity anywhere in the data has spread into the sums; `again` names where."""
    xp = ar.namespace(*sums)
    if bool(xp.all(xp.stack([xp.all(xp.isfinite(A)) for A in sums]))):
        return
    if again is not None:
        again()
    raise DuopldaError("Input X contains values too large to add up: on what scale are they?")


def _add_by_bin(within: Array, bins: Ints, rows: Array) -> None:
    """Add the scatter of rows to `within` (folds, K, d, d); `bins` are fold * K + kind of each row."""
    K = within.shape[1]
    for b in np.unique(bins).tolist():
        within[b // K, b % K, ...] += ar.gram(ar.take(rows, np.flatnonzero(bins == b)))


class Open:
    """A table of sums of sessions 0 .. n-1 that are not complete; a session takes a slot while it is open."""

    def __init__(self, n_sessions: int, K: int, like: Array):
        self.K = K
        self.d = like.shape[0]
        self.slot = np.full(n_sessions, -1)
        self.free = np.zeros(0, np.int64)
        self.counts = np.zeros((0, K), np.int64)
        self.sums = ar.zeros((0, self.d), like)  # (slots * K, d)

    def __len__(self) -> int:
        return int((self.slot >= 0).sum())

    @np.errstate(invalid="ignore", over="ignore")
    def add(self, cell: Ints, n: Ints, F: Array, fold: Ints, within: Array) -> None:
        """Add sums F of n recordings to distinct cells (session * K + kind); scatter between parts goes to `within`."""
        xp = ar.namespace(F)
        self._open(np.unique(cell // self.K))
        at = self.slot[cell // self.K] * self.K + cell % self.K
        m = self.counts.reshape(-1)[at]
        of = np.flatnonzero(m > 0)
        if len(of):
            n_, m_ = (ar.put(a[of].astype(float), F)[:, None] for a in (n, m))
            jump = ar.take(F, of) / n_ - ar.take(self.sums, at[of]) / m_
            _add_by_bin(within, fold[of] * self.K + cell[of] % self.K, jump * xp.sqrt(n_ * m_ / (n_ + m_)))
        self.counts.reshape(-1)[at] += n
        ar.add_rows(self.sums, at, F)

    def _open(self, sessions: Ints) -> None:
        new = sessions[self.slot[sessions] < 0]
        if len(new) > len(self.free):  # twice as many slots
            have = len(self.counts)
            more = max(len(new) - len(self.free), have)
            self.free = np.concatenate([self.free, np.arange(have, have + more)])
            self.counts = np.concatenate([self.counts, np.zeros((more, self.K), np.int64)])
            xp = ar.namespace(self.sums)
            self.sums = xp.concat([self.sums, ar.zeros((more * self.K, self.d), self.sums)], axis=0)
        self.slot[new], self.free = self.free[: len(new)], self.free[len(new) :]

    def _cells(self, at: Ints) -> Ints:
        """The cells of each of the sessions, or of the slots, at `at`."""
        return (at[:, None] * self.K + np.arange(self.K)).reshape(-1)

    def take_out(self, sessions: Ints, sizes: Ints) -> tuple[Ints, Array]:
        """Take out the sessions (h,) of which as many recordings have come as `sizes` says; with sums (h, K, d)."""
        sessions = sessions[self.counts[self.slot[sessions]].sum(axis=1) == sizes]
        slots = self.slot[sessions]
        at = self._cells(slots)
        sums = ar.namespace(self.sums).reshape(ar.take(self.sums, at), (len(sessions), self.K, self.d))
        ar.set_rows(self.sums, at, ar.zeros((len(at), self.d), self.sums))
        self.counts[slots] = 0
        self.slot[sessions] = -1
        self.free = np.concatenate([self.free, slots])
        return sessions, sums

    def sessions(self) -> Ints:
        """The sessions that are open, in their order."""
        return np.flatnonzero(self.slot >= 0)

    def cells(self) -> tuple[Ints, Ints, Array]:
        """The cells (session * K + kind) that have recordings, how many, and their sums."""
        sessions = self.sessions()
        at = self._cells(self.slot[sessions])
        n = self.counts.reshape(-1)[at]
        there = np.flatnonzero(n > 0)
        return self._cells(sessions)[there], n[there], ar.take(self.sums, at[there])
