"""The one pass over the data: recordings in any order, whole or in chunks, become the sums of `model.statistics`.

A session's sum F must be complete before it is squared. Sessions that a chunk holds whole are taken by type, in blocks
that fit into the caches (or a device's memory): their sums, and the scatter about their means. A session that is cut
stays *open*: its parts are added up until it is complete. The joint scatter of two parts of n and m recordings with
means p and q is the sum of their scatters plus nm / (n + m) (p - q)(p - q)' (see `OpenTable.add`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import helmert

from duoplda import arrays as ar
from duoplda.arrays import Array
from duoplda.data.labels import NO_KIND, Ints, Labels, folds, keys
from duoplda.data.recordings import places_of
from duoplda.errors import DuopldaError

CHUNK_BYTES = 1 << 24  # a block of rows in the work of one core: 16 MB stay in the caches of most machines
LARGEST_SUM = 1e90  # of squares: their inverses are parameters, of which 1e100 is the largest (`parameters.LARGEST`)
STREAM_BYTES = 1 << 27  # a block of rows on its way to a device: smaller ones cost it more time to start than to copy


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


class Batch(NamedTuple):
    """Whole sessions of one bin, which are summed up together."""

    bin: int
    rows: slice  # of all rows in order
    pairs: Ints  # (h,) the pair of each session, in rising order


class SessionSums:
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
        transform: Callable[[Array, NDArray[Any]], Array] | None = None,
    ):
        """`transform` is a function of rows (k, .) and their kinds that `add_all` applies on the device of `like`."""
        xp = ar.namespace(like)
        self.labels = labels
        self.xp = xp
        self.transform = transform
        self.n_folds = max(n_folds, 1)
        self.d = like.shape[1]
        first = ar.to_float(like[: min(4096, like.shape[0]), :], xp)
        self.offset = near_mean(first) if offset is None else offset
        with np.errstate(all="ignore"):
            # Rows are summed as they are, about a base of 0, unless they lie so far from it that digits would be lost.
            self.far = not bool(xp.all(xp.abs(self.offset) < 100 * xp.std(first, axis=0)))
        self.base = self.offset if self.far else xp.zeros_like(self.offset)
        self.types, session_type, _ = labels.types
        self.fold = folds(labels.speaker_ids, n_folds, seed)
        speaker = labels.session_speaker
        self.bin = session_type * self.n_folds + ar.put(self.fold, speaker)[speaker] if n_folds > 1 else session_type
        n_bins = len(self.types) * self.n_folds
        # The rows of A: pairs in the order of bins and, in these, of speakers.
        M = max(len(labels.speaker_ids), 1)
        pairs, self.session_pair, sessions_of_pair = ar.ranked(self.bin * M + speaker)
        pairs = ar.to_numpy(pairs)
        self.pair_size = ar.to_numpy(sessions_of_pair)  # all sessions of each pair
        self.pair_n = np.zeros(len(pairs), np.int64)  # those that are complete
        self.pair_speaker = pairs % M
        self.pair_start = np.searchsorted(pairs // M, np.arange(n_bins + 1)).tolist()
        self.bin_size = ar.to_numpy(ar.bincount(self.bin, n_bins)).tolist()  # all sessions of each bin
        widths = [int((self.types[b // self.n_folds] > 0).sum()) * self.d for b in range(n_bins)]
        edges = zip(self.pair_start[:-1], self.pair_start[1:], widths, strict=True)
        self.A = [ar.zeros((b - a, w), self.offset) for a, b, w in edges]
        # T_c, or where a bin has fewer sessions than columns, their rows F, of which `rows_kept` are filled in already.
        self.T = [ar.zeros((min(h, w), w), self.offset) for h, w in zip(self.bin_size, widths, strict=True)]
        self.rows_kept = [0] * n_bins
        K = len(labels.kinds)
        self.within = ar.zeros((self.n_folds, K, self.d, self.d), self.offset)
        self.open = OpenTable(labels.n_sessions, K, self.offset)

    def add_all(self, X: Array | ar.Arriving) -> None:
        """All recordings at once, so that no session is ever open."""
        ip = ar.namespace(self.labels.session)
        key = self._order(self.labels.session, self.labels.kind)
        rows = None if bool(ip.all(key[1:] >= key[:-1])) else ip.argsort(key, stable=True)
        self._add_whole(X, rows, np.repeat(np.arange(len(self.pair_n)), self.pair_size), self.bin_size)
        self.pair_n += self.pair_size

    def _order(self, session: Array, kind: Array) -> Array:
        """Integers by which recordings are sorted by pair (and so by bin), session and kind."""
        return (self.session_pair[session] * self.labels.n_sessions + session) * len(self.labels.kinds) + kind

    def add(self, X: Array, index: slice | Ints) -> None:
        """A chunk, whose rows have the labels at `index`."""
        rows = places_of(index)
        session = self.labels.session[rows]
        kind = self.labels.kind[rows]
        sessions, inverse, present = np.unique(session, return_inverse=True, return_counts=True)
        whole = present == self._complete[sessions]
        if whole.any():
            place = np.flatnonzero(whole[inverse])
            chosen = sessions[whole]
            order = np.argsort(self._order(session[place], kind[place]), kind="stable")
            pairs = np.sort(self.session_pair[chosen])
            n = np.bincount(self.bin[chosen], minlength=len(self.A))
            self._add_whole(X, place[order], pairs, n.tolist())
            np.add.at(self.pair_n, pairs, 1)
        part = np.flatnonzero(~whole[inverse])
        if len(part):
            self._add_open(X, part, rows[part])

    @cached_property
    def _complete(self) -> Ints:
        """(H,) how many recordings make a session complete; -1 where further ones are elsewhere."""
        size = self.labels.counts.sum(axis=1)
        return size if self.labels.open is None else np.where(self.labels.open, -1, size)

    def _add_whole(self, X: Array, rows: Array | None, pairs: Ints, n_sessions: list[int]) -> None:
        """Whole sessions in the order of their pairs, `n_sessions` of each bin; rows sorted by session and kind.

        X is an array of the host or of a device, or one that is `Arriving` there.
        """
        if self.xp is np:
            size = CHUNK_BYTES
        elif isinstance(X, np.ndarray):
            size = STREAM_BYTES
        elif isinstance(X, ar.Arriving) and rows is None:
            size = 4 * STREAM_BYTES  # not more, so that little is left to do when the last row has arrived
        else:
            size = 1 << 30  # all is on the device: large products keep it busy
        batches = self._batches(pairs, n_sessions, max(256, size // (8 * self.d)))
        if self.xp is not np:
            blocks = self._device_blocks(X, rows, [batch.rows for batch in batches])
            for batch, block in zip(batches, blocks, strict=True):
                self._close(batch.bin, batch.pairs, *self._squared(batch, block, None))
            return

        def work(batch: Batch, buffers: NDArray[np.float64]) -> tuple[Any, ...]:
            block = self._host_block(X, rows, batch.rows, buffers[0])
            return batch.bin, batch.pairs, *self._squared(batch, block, buffers[1])

        # NumPy's sums and copies are not threaded: each core gets blocks of its own.
        longest = max((batch.rows.stop - batch.rows.start for batch in batches), default=0)
        buffers = partial(np.empty, (2, longest, self.d))
        flops = batches[-1].rows.stop * self.d**2 if batches else 0
        for block in ar.in_order(work, batches, flops, buffers):
            self._close(*block)

    def _batches(self, pairs: Ints, n_sessions: list[int], most: int) -> list[Batch]:
        """Sessions of one bin, of about so many rows together."""
        batches = []
        row = 0
        first = 0
        for b, h in enumerate(n_sessions):
            size = int(self.types[b // self.n_folds].sum())
            step = max(1, most // size)
            for i in range(first, first + h, step):
                j = min(i + step, first + h)
                batches.append(Batch(b, slice(row, row + (j - i) * size), pairs[i:j]))
                row += (j - i) * size
            first += h
        return batches

    def _host_block(
        self, X: NDArray[Any], rows: Ints | None, part: slice, out: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Some rows of an array of NumPy about `self.base`, in a buffer that is used again, or as they are."""
        index = None if rows is None else rows[part]
        if index is not None and (np.diff(index) == 1).all():
            part = slice(int(index[0]), int(index[-1]) + 1)
            index = None
        block = out[: part.stop - part.start]
        if index is None:
            if X.dtype == block.dtype and not self.far:
                return X[part]
            return np.subtract(X[part], self.base, out=block)
        if X.dtype == block.dtype:
            np.take(X, index, axis=0, out=block, mode="clip")  # without "clip" NumPy would make a copy first
        else:
            block[...] = X[index]
        if self.far:
            block -= self.base
        return block

    def _device_blocks(self, X: Array, rows: Array | None, parts: list[slice]) -> Iterator[Array]:
        """Parts of the rows on a device, behind the transform and about `self.base`."""
        if isinstance(X, np.ndarray) and rows is not None:
            rows = ar.to_numpy(rows)
        wanted: list[Any] = parts if rows is None else [rows[part] for part in parts]  # slices or indices
        if isinstance(X, np.ndarray):
            blocks = ar.streamed(X, wanted, self.offset)
        elif rows is None:
            blocks = (X.rows(part) if isinstance(X, ar.Arriving) else X[part, :] for part in parts)
        else:
            every = X.rows(slice(0, self.labels.n_recordings)) if isinstance(X, ar.Arriving) else X
            blocks = (ar.take(every, index) for index in wanted)
        for index, block in zip(wanted, blocks, strict=True):
            if self.transform is not None:
                kind = self.labels.kind[index] if len(self.labels.kinds) > 1 else np.zeros(block.shape[0], np.int64)
                block = self.transform(block, self.labels.kinds[ar.to_numpy(kind)])
            block = ar.to_float(block, self.xp)
            yield block - self.base if self.far else block

    @np.errstate(invalid="ignore", over="ignore")  # what is not finite is found at the end
    def _squared(self, batch: Batch, block: Array, spare: Array | None) -> tuple[Array, Array | None, dict[int, Array]]:
        """Of the rows of a batch: sums F (h, K_c d), F'F if that is wanted, and the scatter by kind about F / n.

        `spare` is a buffer as large as the block.
        """
        xp = self.xp
        h = len(batch.pairs)
        d = self.d
        rows = xp.reshape(block, (h, -1, d))
        counts = self.types[batch.bin // self.n_folds]
        sums = []
        within = {}
        first = 0
        for k in np.flatnonzero(counts).tolist():
            n = int(counts[k])
            part = rows[:, first : first + n, :]
            first += n
            if n == 1:
                sums.append(part[:, 0, :] - (self.offset - self.base))
                continue
            total = xp.sum(part, axis=1)
            if n <= 8 and spare is not None:  # n - 1 orthonormal contrasts hold what n residuals do, at less cost
                contrasts = spare[: h * (n - 1)].reshape(h, n - 1, d)
                residuals = np.matmul(helmert(n), part, out=contrasts)
            elif ar.is_torch(xp):
                residuals = part.sub(total[:, None, :], alpha=1 / n)  # in one go
            else:
                residuals = part - (total / n)[:, None, :]
            total -= n * (self.offset - self.base)
            sums.append(total)
            flat = xp.reshape(residuals, (-1, d))
            within[k] = flat.T @ flat  # NumPy sees that both are one array, and does half the work
        F = sums[0] if len(sums) == 1 else xp.concat(sums, axis=1)
        return F, F.T @ F if self.T[batch.bin].shape[0] == F.shape[1] else None, within

    @np.errstate(invalid="ignore", over="ignore")
    def _close(self, b: int, pairs: Ints, F: Array, T: Array | None, within: dict[int, Array]) -> None:
        """Give the sums F (h, K_c d) of complete sessions of bin b, sorted by pair (h,), and F'F to their speakers."""
        if T is not None:
            self.T[b] += T
        else:  # the rows F are kept instead
            first = self.rows_kept[b]
            self.rows_kept[b] = first + F.shape[0]
            self.T[b][first : first + F.shape[0], :] = F
        for k, scatter in within.items():
            self.within[b % self.n_folds, k, ...] += scatter
        ar.add_segments(self.A[b], pairs - self.pair_start[b], F)

    @np.errstate(invalid="ignore", over="ignore")
    def _add_open(self, X: Array, place: Ints, rows: Ints) -> None:
        """Rows of sessions that have rows in other chunks too; they are summed by cell (session * K + kind)."""
        labels = self.labels
        K = len(labels.kinds)
        cell = labels.session[rows] * K + labels.kind[rows]
        order = np.argsort(cell, kind="stable")
        cells, starts, n = np.unique(cell[order], return_index=True, return_counts=True)
        G = ar.to_float(ar.put(ar.take(X, place[order]), self.offset), self.xp) - self.offset
        F = ar.segment_sums(G, starts)
        mean = F / ar.put(n.astype(float), F)[:, None]
        fold = self.fold[labels.session_speaker[cells // K]]
        residuals = G - ar.take(mean, np.repeat(np.arange(len(n)), n))
        _add_scatter(self.within, np.repeat(fold * K + cells % K, n), residuals)
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

    def result(self, name_rows: Callable[[], None] | None = None) -> list[dict[str, Any]]:
        """The sums by fold, as fields of `Statistics`.

        `name_rows` is called if any sum is not finite: it raises an error that names the recordings to blame.
        """
        check_sums([*self.A, *self.T, self.within, self.open.sums], name_rows)
        labels = self.labels
        complete = self.pair_n > 0
        open_sessions = self.open.sessions()
        open_fold = self.fold[ar.to_numpy(labels.session_speaker)[open_sessions]]
        still_open = None
        if labels.session_ids is not None and len(open_sessions):
            names = labels.session_ids[open_sessions]
            speakers = labels.speaker_ids[labels.session_speaker[open_sessions]]
            cells, n, F = self.open.cells()
            session = np.searchsorted(open_sessions, cells // self.open.K)
            still_open = OpenSessions(keys(names), names, speakers, session, cells % self.open.K, n, F)
        closed = np.ones(labels.n_sessions, bool)
        closed[open_sessions] = False
        heard = np.zeros(len(labels.speaker_ids), bool)
        heard[self.pair_speaker[complete]] = True
        parts: list[dict[str, Any]] = []
        for f in range(self.n_folds):
            members = heard & (self.fold == f)
            place = np.cumsum(members) - 1
            blocks = [self._block(c, f, complete, place) for c in range(len(self.types))]
            session_keys = None
            if labels.session_ids is not None:
                in_fold = (self.fold == f)[ar.to_numpy(labels.session_speaker)] if self.n_folds > 1 else True
                ids = labels.session_ids[closed & in_fold]
                session_keys = ids if ids.dtype == np.int64 else keys(ids)  # integers are hashed when asked for
            fields = {
                "offset": self.offset,
                "kinds": labels.kinds,
                "speaker_ids": labels.speaker_ids[members],
                "weights": np.ones(int(members.sum())),
                "blocks": tuple(b for b in blocks if b is not None),
                "within": self.within[f, ...],
                "sessions": session_keys,
                "open": None if still_open is None else still_open.select(open_fold == f) or None,
            }
            parts.append(fields)
        return parts

    def _block(self, c: int, f: int, complete: NDArray[np.bool_], place: Ints) -> TypeBlock | None:
        """The sessions of type c in fold f that are complete; `place` is the row of each speaker in the result."""
        b = c * self.n_folds + f
        pairs = slice(self.pair_start[b], self.pair_start[b + 1])
        rows = np.flatnonzero(complete[pairs])
        if not len(rows):
            return None
        A = self.A[b]
        T = self.T[b]
        if len(rows) < A.shape[0]:
            A = ar.take(A, rows)
        if T.shape[0] < T.shape[1]:
            T = T[: self.rows_kept[b], :]
        speaker = place[self.pair_speaker[pairs][rows]]
        return TypeBlock(self.types[c], speaker, self.pair_n[pairs][rows], A, T)


class UnlabelledSums:
    """Sums and scatters of rows by fold, without labels: a speaker for each fold, a session for each recording."""

    def __init__(self, like: Array, n_folds: int):
        d = like.shape[1]
        self.n_folds = n_folds
        self.offset = near_mean(ar.to_float(like, ar.namespace(like)))
        self.n = np.zeros(n_folds, np.int64)
        self.f = ar.zeros((n_folds, d), self.offset)
        self.T = ar.zeros((n_folds, d, d), self.offset)

    @ar.reproducible()
    @np.errstate(invalid="ignore", over="ignore")
    def add(self, X: Array, fold: Ints | None) -> None:
        """Add rows X (k, d) of these folds (k,); None: all are of fold 0."""
        xp = ar.namespace(X)
        sizes = [X.shape[0]]
        if fold is not None:
            sizes = np.bincount(fold, minlength=self.n_folds).tolist()
            X = X if max(sizes) == X.shape[0] else ar.take(X, np.argsort(fold, kind="stable"))
        G = ar.to_float(X, xp)
        # A copy may be written to, as getting new memory takes longer than the sums. Another object may be a view.
        is_copy = xp is np and not np.may_share_memory(G, X)
        G = np.subtract(G, self.offset, out=G) if is_copy else G - self.offset
        first = 0
        for k, h in enumerate(sizes):
            rows = G[first : first + h, :]
            first += h
            if h:
                self.n[k] += h
                self.f[k, ...] += xp.sum(rows, axis=0)
                self.T[k, ...] += rows.T @ rows

    def result(self, name_rows: Callable[[], None]) -> list[dict[str, Any] | None]:
        """The sums by fold, as fields of `Statistics`, None for an empty fold; `name_rows` as in `SessionSums`."""
        check_sums([self.f, self.T], name_rows)
        one = np.ones(1, np.int64)
        d = self.offset.shape[0]
        parts: list[dict[str, Any] | None] = []
        for k, n in enumerate(self.n.tolist()):
            A = ar.namespace(self.offset).reshape(self.f[k, ...], (1, d))
            fields = {
                "offset": self.offset,
                "kinds": NO_KIND,
                "speaker_ids": k * one,
                "weights": np.ones(1),
                "blocks": (TypeBlock(one, 0 * one, n * one, A, self.T[k, ...]),),
                "within": ar.zeros((1, d, d), self.offset),
                "sessions": None,
                "known": "nothing",
            }
            parts.append(fields if n else None)
        return parts


@np.errstate(all="ignore")
def near_mean(rows: Array) -> Array:
    """(d,) the mean of some rows, 0 where that is not finite: a point about which sums lose no digits."""
    xp = ar.namespace(rows)
    mean = xp.mean(rows, axis=0)
    return xp.where(xp.isfinite(mean), mean, xp.zeros_like(mean))


def check_sums(sums: list[Array], name_rows: Callable[[], None] | None) -> None:
    """A NaN or too large a number anywhere in the data has spread into the sums; `name_rows` names it in an error."""
    xp = ar.namespace(*sums)
    extremes = [extreme for A in sums if 0 not in A.shape for extreme in (xp.max(A), -xp.min(A))]
    if bool(xp.all(xp.stack(extremes) < LARGEST_SUM)):
        return
    if name_rows is not None:
        name_rows()
    raise DuopldaError("Input X contains values too large to add up: on what scale are they?")


def _add_scatter(within: Array, bins: Ints, rows: Array) -> None:
    """Add the scatter of rows to `within` (folds, K, d, d); `bins` are fold * K + kind of each row."""
    K = within.shape[1]
    for b in np.unique(bins).tolist():
        within[b // K, b % K, ...] += ar.gram(ar.take(rows, np.flatnonzero(bins == b)))


class OpenTable:
    """A table of sums of sessions 0 .. n-1 that are not complete; a session takes a slot while it is open."""

    def __init__(self, n_sessions: int, K: int, like: Array):
        self.K = K
        self.d = like.shape[0]
        self.slot = np.full(n_sessions, -1)
        self.free = np.zeros(0, np.int64)
        self.counts = np.zeros((0, K), np.int64)
        self.sums = ar.zeros((0, self.d), like)  # (slots * K, d)

    @np.errstate(invalid="ignore", over="ignore")
    def add(self, cell: Ints, n: Ints, F: Array, fold: Ints, within: Array) -> None:
        """Add sums F of n recordings to distinct cells (session * K + kind); scatter between parts goes to `within`."""
        xp = ar.namespace(F)
        self._open(np.unique(cell // self.K))
        place = self.slot[cell // self.K] * self.K + cell % self.K
        before = self.counts.reshape(-1)[place]
        joined = np.flatnonzero(before > 0)
        if len(joined):
            n_new, n_old = (ar.put(a[joined].astype(float), F)[:, None] for a in (n, before))
            jump = ar.take(F, joined) / n_new - ar.take(self.sums, place[joined]) / n_old
            bins = fold[joined] * self.K + cell[joined] % self.K
            _add_scatter(within, bins, jump * xp.sqrt(n_new * n_old / (n_new + n_old)))
        self.counts.reshape(-1)[place] += n
        ar.add_rows(self.sums, place, F)

    def _open(self, sessions: Ints) -> None:
        """Give a slot to each of the sessions that has none."""
        new = sessions[self.slot[sessions] < 0]
        if len(new) > len(self.free):  # twice as many slots
            size = len(self.counts)
            more = max(len(new) - len(self.free), size)
            self.free = np.concatenate([self.free, np.arange(size, size + more)])
            self.counts = np.concatenate([self.counts, np.zeros((more, self.K), np.int64)])
            xp = ar.namespace(self.sums)
            self.sums = xp.concat([self.sums, ar.zeros((more * self.K, self.d), self.sums)], axis=0)
        self.slot[new] = self.free[: len(new)]
        self.free = self.free[len(new) :]

    def _cells(self, places: Ints) -> Ints:
        """The cells of sessions, or of slots."""
        return (places[:, None] * self.K + np.arange(self.K)).reshape(-1)

    def take_out(self, sessions: Ints, sizes: Ints) -> tuple[Ints, Array]:
        """Take out the sessions (h,) of which as many recordings have come as `sizes` says; with sums (h, K, d)."""
        sessions = sessions[self.counts[self.slot[sessions]].sum(axis=1) == sizes]
        slots = self.slot[sessions]
        cells = self._cells(slots)
        sums = ar.namespace(self.sums).reshape(ar.take(self.sums, cells), (len(sessions), self.K, self.d))
        ar.set_rows(self.sums, cells, ar.zeros((len(cells), self.d), self.sums))
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
        slots = self._cells(self.slot[sessions])
        n = self.counts.reshape(-1)[slots]
        filled = np.flatnonzero(n > 0)
        return self._cells(sessions)[filled], n[filled], ar.take(self.sums, slots[filled])
