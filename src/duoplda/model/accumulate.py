"""The one pass over the data: recordings in any order, whole or in chunks, become the sums of `model.statistics`.

A session's sum F must be complete before it is squared. Sessions that a chunk holds whole are taken by type, in blocks
that fit into the caches (or a device's memory): their sums, and the scatter about their means. A session that is cut
stays open until it is complete (`duoplda.model.open_sessions`).
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
from duoplda.data.labels import Ints, Labels, folds, keys
from duoplda.data.recordings import ROWS, places_of
from duoplda.errors import DuopldaError
from duoplda.model.open_sessions import OpenSessions, OpenTable, add_cells, add_scatter

CHUNK_BYTES = 1 << 24  # a block of rows for one core: 16 MB stay in the caches of most machines
LARGEST_SUM = 1e90  # of squares; inverses of sums become parameters, which may be 1e100 at most (`parameters.LARGEST`)
STREAM_BYTES = 1 << 27  # a block of rows that is copied to a device: smaller ones take longer to start than to copy


@dataclass(frozen=True, eq=False)
class TypeBlock:
    """Sums over the sessions of one type."""

    counts: Ints  # (K,) recordings of a session by kind
    speaker: Ints  # (m,) speakers who have such sessions, each once
    n: Ints  # (m,) sessions of each of these speakers
    A: Array  # (m, K_c d) sums of F over a speaker's sessions
    scatter: Array  # (K_c d, K_c d) T, weighted; of fewer than K_c d sessions, their rows F (h, K_c d)

    @cached_property
    def present(self) -> Ints:
        """(K_c,) the kinds of channels present."""
        return np.flatnonzero(self.counts)

    @cached_property
    def parts(self) -> list[tuple[int, int, slice]]:
        """For each of the K_c kinds present: the kind, its recordings in a session, and its columns of A."""
        d = self.A.shape[1] // len(self.present)
        return [(k, int(self.counts[k]), slice(i * d, (i + 1) * d)) for i, k in enumerate(self.present.tolist())]

    @property
    def size(self) -> int:
        """The number of recordings of a session."""
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
    """The scatter of several blocks of one type: T, or all rows F where these are fewer than its columns."""
    if sum(b.scatter.shape[0] for b in blocks) < blocks[0].A.shape[1]:
        return ar.namespace(blocks[0].A).concat([b.scatter for b in blocks])
    return sum((b.T for b in blocks[1:]), blocks[0].T)


Batch = tuple[int, slice, Ints]  # sessions of one bin: the bin, the range of their sorted rows, and their pairs (h,)


class SessionSums:
    """Sums of complete sessions by type, fold and speaker, and of parts of sessions that are open.

    A *bin* is a type of sessions in one fold of speakers; a *pair* is a bin and a speaker that has sessions in it.
    """

    def __init__(
        self,
        labels: Labels,
        like: Array,
        n_folds: int = 0,
        seed: int = 0,
        transform: Callable[[Array, NDArray[Any]], Array] | None = None,
    ):
        """Rows are in the array library and on the device of `like`, some of the rows (k, d).

        `transform` is a function of rows, as they are read, and their kinds, that `add_all` applies on that device.
        """
        xp = ar.namespace(like)
        self.labels = labels
        self.xp = xp
        self.transform = transform
        self.n_folds = max(n_folds, 1)
        self.d = like.shape[1]
        first = ar.to_float(like[: min(ROWS, like.shape[0]), :], xp)
        self.offset = near_mean(first)
        with np.errstate(all="ignore"):
            # Rows are summed as they are, about a base of 0, unless they lie so far from it that digits are lost: 100
            # standard deviations away, squares are 1e4 times as large as about the mean, which costs 4 of 16 digits.
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
        self.pair_size = ar.to_numpy(sessions_of_pair)  # (pairs,) all sessions of each pair
        self.pair_n = np.zeros(len(pairs), np.int64)  # (pairs,) those of them that are complete
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
        self.open: OpenTable | None = None  # made when the first session is cut
        self.n_come = np.zeros(labels.n_sessions, np.int32)  # recordings that have come of sessions that chunks cut

    def add_all(self, X: Array | ar.Arriving) -> None:
        """Add all recordings at once, so that no session is cut."""
        ip = ar.namespace(self.labels.session)
        key = self._order(self.labels.session, self.labels.kind)
        rows = None if bool(ip.all(key[1:] >= key[:-1])) else ip.argsort(key, stable=True)
        self._add_whole(X, rows, np.repeat(np.arange(len(self.pair_n)), self.pair_size), self.bin_size)
        self.pair_n += self.pair_size

    def _order(self, session: Array, kind: Array) -> Array:
        """Integers that sort recordings by pair (and so by bin), then by session, then by kind."""
        return (self.session_pair[session] * self.labels.n_sessions + session) * len(self.labels.kinds) + kind

    def add(self, X: Array, index: slice | Ints) -> None:
        """Add a chunk of rows, whose labels are at `index`."""
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
        """Add whole sessions in the order of their pairs, `n_sessions` of each bin.

        X is an array of the host or of a device, or one that is `Arriving` there; `rows` are indices that sort it by
        session and kind, or None if it is sorted.
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
            blocks = self._device_blocks(X, rows, [part for _, part, _ in batches])
            for (b, _, of_sessions), block in zip(batches, blocks, strict=True):
                self._add_sums(b, of_sessions, *self._squared(b, len(of_sessions), block, None))
            return

        def work(batch: Batch, buffers: NDArray[np.float64]) -> tuple[Any, ...]:
            b, part, of_sessions = batch
            block = self._host_block(X, rows, part, buffers[0])
            return b, of_sessions, *self._squared(b, len(of_sessions), block, buffers[1])

        # NumPy's sums and copies are not threaded: each core gets blocks of its own.
        longest = max((part.stop - part.start for _, part, _ in batches), default=0)
        buffers = partial(np.empty, (2, longest, self.d))
        flops = batches[-1][1].stop * self.d**2 if batches else 0
        for block in ar.in_order(work, batches, flops, buffers):
            self._add_sums(*block)

    def _batches(self, pairs: Ints, n_sessions: list[int], most: int) -> list[Batch]:
        """Batches of sessions of one bin, of about `most` rows each."""
        batches = []
        row = 0
        first = 0
        for b, h in enumerate(n_sessions):
            size = int(self.types[b // self.n_folds].sum())
            step = max(1, most // size)
            for i in range(first, first + h, step):
                j = min(i + step, first + h)
                batches.append((b, slice(row, row + (j - i) * size), pairs[i:j]))
                row += (j - i) * size
            first += h
        return batches

    def _host_block(
        self, X: NDArray[Any], rows: Ints | None, part: slice, out: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Some rows of a NumPy array about `self.base`: as they are where possible, or in the buffer `out`."""
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
        """Parts of the rows on a device, transformed and about `self.base`."""
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
    def _squared(
        self, b: int, h: int, block: Array, spare: Array | None
    ) -> tuple[Array, Array | None, dict[int, Array]]:
        """Of the rows of h sessions of bin b: F (h, K_c d), F'F unless rows F are kept, scatter by kind about F / n.

        `spare` is a buffer as large as the block.
        """
        xp = self.xp
        d = self.d
        rows = xp.reshape(block, (h, -1, d))
        counts = self.types[b // self.n_folds]
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
            if n <= 8 and spare is not None:  # n - 1 orthonormal contrasts have the scatter of n residuals
                contrasts = spare[: h * (n - 1)].reshape(h, n - 1, d)
                residuals = np.matmul(helmert(n), part, out=contrasts)
            elif ar.is_torch(xp):
                residuals = part.sub(total[:, None, :], alpha=1 / n)  # without an array for total / n
            else:
                residuals = part - (total / n)[:, None, :]
            total -= n * (self.offset - self.base)
            sums.append(total)
            flat = xp.reshape(residuals, (-1, d))
            within[k] = flat.T @ flat  # NumPy sees that both are one array, and does half the work
        F = sums[0] if len(sums) == 1 else xp.concat(sums, axis=1)
        return F, F.T @ F if self.T[b].shape[0] == F.shape[1] else None, within

    @np.errstate(invalid="ignore", over="ignore")
    def _add_sums(self, b: int, pairs: Ints, F: Array, T: Array | None, within: dict[int, Array]) -> None:
        """Add sums F (h, K_c d) of complete sessions of bin b, sorted by pair (h,), F'F and the scatter by kind."""
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
        """Add rows of sessions that have further rows in other chunks."""
        labels = self.labels
        K = len(labels.kinds)
        cell = labels.session[rows] * K + labels.kind[rows]
        G = ar.to_float(ar.put(ar.take(X, place), self.offset), self.xp) - self.offset
        if self.open is None:
            self.open = OpenTable(labels.n_sessions * K, self.offset)
        cells_before, n_before, F_before = self.open.take(np.unique(cell))
        parts = np.concatenate([cell, cells_before])
        n = np.concatenate([np.ones(len(cell), np.int64), n_before])
        cells, n, F, cell_of_part, spread = add_cells(parts, n, self.xp.concat([G, F_before]))
        fold = self.fold[labels.session_speaker[cell_of_part // K]]
        add_scatter(self.within, fold * K + cell_of_part % K, spread)
        self.open.put(cells, n, F)
        sessions, n_come = np.unique(cell // K, return_counts=True)
        self.n_come[sessions] += n_come
        complete = sessions[self.n_come[sessions] == self._complete[sessions]]
        closed, _, F = self.open.take((complete[:, None] * K + np.arange(K)).reshape(-1))
        self.close(closed, F)

    @np.errstate(invalid="ignore", over="ignore")
    def close(self, cells: Ints, F: Array) -> None:
        """Add complete sessions, given the sums F (., d) of their cells (session * K + kind, in rising order)."""
        session = cells // len(self.labels.kinds)
        order = np.argsort(self.session_pair[session], kind="stable")  # cells of a session stay side by side
        pairs = self.session_pair[session[order]]
        bins = self.bin[session[order]]
        for b in np.unique(bins).tolist():
            part = slice(*np.searchsorted(bins, [b, b + 1]))
            n_kinds = int((self.types[b // self.n_folds] > 0).sum())
            sums = self.xp.reshape(ar.take(F, order[part]), (-1, n_kinds * self.d))
            T = ar.gram(sums) if self.T[b].shape[0] == sums.shape[1] else None
            self._add_sums(b, pairs[part][::n_kinds], sums, T, {})
            np.add.at(self.pair_n, pairs[part][::n_kinds], 1)

    def result(self, name_rows: Callable[[], None] | None = None) -> list[dict[str, Any]]:
        """The sums by fold, as fields of `Statistics`.

        `name_rows` is called if any sum is not finite: it raises an error that names the recordings to blame.
        """
        labels = self.labels
        K = len(labels.kinds)
        sums = [*self.A, *self.T, self.within]
        session_speaker = ar.to_numpy(labels.session_speaker)
        session_fold = self.fold[session_speaker]
        closed = np.ones(labels.n_sessions, bool)
        opened = None  # sessions of all folds
        if self.open is not None:
            cells, n, F = self.open.take(np.flatnonzero(self.open.place >= 0))
            sums.append(F)
            open_sessions, session = np.unique(cells // K, return_inverse=True)
            closed[open_sessions] = False
            if labels.session_ids is not None:
                names = labels.session_ids[open_sessions]
                speakers = labels.speaker_ids[session_speaker[open_sessions]]
                opened = OpenSessions(keys(names), names, speakers, session, cells % K, n, F)
        check_sums(sums, name_rows)
        has_sums = np.zeros(len(labels.speaker_ids), bool)
        has_sums[self.pair_speaker[self.pair_n > 0]] = True
        parts: list[dict[str, Any]] = []
        for f in range(self.n_folds):
            members = has_sums & (self.fold == f)
            session_keys = None
            if labels.session_ids is not None:
                ids = labels.session_ids[closed & (session_fold == f)]
                session_keys = ids if ids.dtype == np.int64 else keys(ids)  # integers are hashed when asked for
            fields = {
                "offset": self.offset,
                "kinds": labels.kinds,
                "speaker_ids": labels.speaker_ids[members],
                "weights": np.ones(int(members.sum())),
                "blocks": self._blocks(f, np.cumsum(members) - 1),
                "within": self.within[f, ...],
                "sessions": session_keys,
                "open": None if opened is None else opened.select(session_fold[~closed] == f) or None,
            }
            parts.append(fields)
        return parts

    def _blocks(self, f: int, place: Ints) -> tuple[TypeBlock, ...]:
        """The complete sessions of fold f by type; `place` is the row of each speaker in the result."""
        blocks = []
        for c, counts in enumerate(self.types):
            b = c * self.n_folds + f
            pairs = slice(self.pair_start[b], self.pair_start[b + 1])
            n = self.pair_n[pairs]
            rows = np.flatnonzero(n)
            if len(rows):
                A = self.A[b] if len(rows) == len(n) else ar.take(self.A[b], rows)
                few = self.T[b].shape[0] < self.T[b].shape[1]
                T = self.T[b][: self.rows_kept[b], :] if few else self.T[b]
                blocks.append(TypeBlock(counts, place[self.pair_speaker[pairs][rows]], n[rows], A, T))
        return tuple(blocks)


@np.errstate(all="ignore")
def near_mean(rows: Array) -> Array:
    """(d,) the mean of some rows, 0 where that is not finite: a point about which sums lose no digits."""
    xp = ar.namespace(rows)
    mean = xp.mean(rows, axis=0)
    return xp.where(xp.isfinite(mean), mean, xp.zeros_like(mean))


def check_sums(sums: list[Array], name_rows: Callable[[], None] | None) -> None:
    """Refuse sums into which a NaN or too large a number has spread; `name_rows` raises an error that names it."""
    xp = ar.namespace(*sums)
    extremes = [extreme for A in sums if 0 not in A.shape for extreme in (xp.max(A), -xp.min(A))]
    if bool(xp.all(xp.stack(extremes) < LARGEST_SUM)):
        return
    if name_rows is not None:
        name_rows()
    raise DuopldaError("Input X contains values too large to add up: on what scale are they?")
