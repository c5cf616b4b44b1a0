"""Statistics of shards that cut through sessions.

A shard knows which of its sessions go on elsewhere (`split`). The others are whole and go into its statistics; of the
split ones it leaves sums of what it has (`Parts`), which are joined before they are squared. With parts of n_p
recordings and means m_p, the scatter of a session about its mean m is that within the parts plus

    sum_p n_p (m_p - m)(m_p - m)'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Array, check_finite, gram, namespace, put, segment_sums, set_rows, take, zeros
from duoplda.data import labels as lab
from duoplda.data.labels import Ints, Labels
from duoplda.errors import DuopldaError, some
from duoplda.model.accumulate import Folds, parts
from duoplda.model.statistics import Statistics


@dataclass(frozen=True, eq=False)
class Parts:
    """What a shard has of sessions that go on in others."""

    offset: Array  # (d,)
    kinds: NDArray[Any]  # (K,)
    session_ids: NDArray[Any]  # (h,)
    speaker_ids: NDArray[Any]  # (h,) of each session
    session: Ints  # (cells,) index into session_ids
    kind: Ints  # (cells,)
    n: Ints  # (cells,) recordings
    F: Array  # (cells, d) their sums about the offset
    within: Array  # (folds, K, d, d) their scatter about the means of the cells, by fold of speakers

    def bucket(self, which: int, of: int) -> Parts:
        """Some of the sessions, by a hash of their ids: the same in every shard.

        The scatter goes with the first bucket that has any, so that none is left without sessions to be joined.
        """
        buckets = lab.keys(self.session_ids) % np.uint64(of)
        mine = buckets == which
        cells = np.flatnonzero(mine[self.session])
        place = np.cumsum(mine) - 1
        return Parts(
            self.offset,
            self.kinds,
            self.session_ids[mine],
            self.speaker_ids[mine],
            place[self.session[cells]],
            self.kind[cells],
            self.n[cells],
            take(self.F, cells),
            self.within if which == buckets.min() else 0 * self.within,
        )


def shard(
    X: Array,
    labels: Labels,
    split: NDArray[np.bool_],
    offset: Array,
    *,
    n_folds: int = 0,
    seed: int = 0,
    precision: str = "double",
) -> tuple[Statistics | None, Parts | None]:
    """Statistics of the whole sessions of a shard, and the parts of those that go on elsewhere (`split`, (H,))."""
    whole = rest = None
    in_part = split[labels.session]
    rows = np.flatnonzero(~in_part)
    if len(rows) == labels.n_recordings:
        whole = _whole(X, labels, offset, n_folds, seed, precision)
    elif len(rows):
        whole = _whole(take(X, rows), _rows(labels, rows), offset, n_folds, seed, precision)
    if in_part.any():
        rows = np.flatnonzero(in_part)
        some_labels = _rows(labels, rows)
        K, xp = len(labels.kinds), namespace(offset)
        row_cell, row_fold = (
            some_labels.session * K + some_labels.kind,
            lab.folds(labels.speaker_ids, n_folds, seed)[labels.speaker[rows]],
        )
        by_fold = [row_fold == f for f in range(max(n_folds, 1))]
        each = [parts(X, rows[of], row_cell[of], K, offset) for of in by_fold]
        cell, n = (np.concatenate([e[i] for e in each]) for i in (0, 1))
        F, within = xp.concat([e[2] for e in each], axis=0), xp.stack([e[3] for e in each])
        if not bool(xp.all(xp.isfinite(F))):
            check_finite(X)
        whose = labels.speaker_ids[some_labels.session_speaker]
        assert some_labels.session_ids is not None
        rest = Parts(offset, labels.kinds, some_labels.session_ids, whose, cell // K, cell % K, n, F, within)
    return whole, rest


def _rows(labels: Labels, rows: Ints) -> Labels:
    """Labels of some recordings; speakers keep their numbers."""
    sessions, session = np.unique(labels.session[rows], return_inverse=True)
    names = None if labels.session_ids is None else labels.session_ids[sessions]
    return Labels(labels.speaker_ids, names, labels.kinds, labels.speaker[rows], session.reshape(-1), labels.kind[rows])


def _used(labels: Labels) -> Labels:
    """The same without speakers that have no recordings."""
    present = np.bincount(labels.speaker, minlength=len(labels.speaker_ids)) > 0
    labels, _ = labels.select(present)
    return labels


def _whole(X: Array, labels: Labels, offset: Array, n_folds: int, seed: int, precision: str) -> Statistics:
    sums = Folds(_used(labels), X, n_folds, seed, offset=offset, single=precision == "single")
    sums.add_all(X)
    return Statistics.of(sums.result(lambda: X))


def join(pieces: list[Parts], *, n_folds: int = 0, seed: int = 0) -> Statistics | None:
    """Statistics of sessions from all their parts."""
    pieces = [p for p in pieces if p is not None]
    if not any(len(p.n) for p in pieces):
        return None
    offset = pieces[0].offset
    kinds = np.unique(np.concatenate([p.kinds for p in pieces]))
    K, d = len(kinds), offset.shape[0]
    xp = namespace(offset)
    ids, index = lab.codes(np.concatenate([p.session_ids for p in pieces]), "session")
    speaker_ids, speaker = lab.codes(np.concatenate([p.speaker_ids for p in pieces]), "speaker")
    owner = np.empty(len(ids), np.int64)
    owner[index] = speaker
    torn = np.unique(index[owner[index] != speaker])
    if len(torn):
        whose = speaker_ids[np.unique(speaker[index == torn[0]])]
        raise DuopldaError(
            f"session {ids[torn[0]]!s} belongs to {len(whose)} speakers ({some(whose, 4)}), in different shards"
            + (f", and so do {len(torn) - 1} others" if len(torn) > 1 else "")
            + ": a session is one conversation of one speaker. Make session names unique first, for example "
            "speaker + '-' + session"
        )
    first = np.cumsum([0, *(len(p.session_ids) for p in pieces)])
    session = np.concatenate([index[a + p.session] for a, p in zip(first, pieces, strict=False)])
    kind = np.concatenate([np.searchsorted(kinds, p.kinds)[p.kind] for p in pieces])
    n = np.concatenate([p.n for p in pieces])
    order = np.argsort(session * K + kind, kind="stable")
    cell, starts = np.unique((session * K + kind)[order], return_index=True)
    n = n[order]
    F = take(xp.concat([p.F for p in pieces], axis=0), order)
    total, N = segment_sums(F, starts), np.add.reduceat(n, starts)
    means = total / put(N.astype(float), F)[:, None]
    of = np.repeat(np.arange(len(cell)), np.diff(starts, append=len(n)))
    count = put(n.astype(float), F)[:, None]
    apart = (F / count - take(means, of)) * xp.sqrt(count)
    within = zeros((max(n_folds, 1), K, d, d), offset)
    for p in pieces:
        for k, to in enumerate(np.searchsorted(kinds, p.kinds).tolist()):
            within[:, to, ...] += p.within[:, k, ...]
    row_cell = np.repeat(cell, N)  # labels of the recordings themselves, whose vectors are no longer needed
    row_session = row_cell // K
    labels = Labels(speaker_ids, ids, kinds, owner[row_session], row_session, row_cell % K)
    fold = lab.folds(labels.speaker_ids, n_folds, seed)[owner[cell // K]][of]
    for f in range(len(within)):
        for k in range(K):
            within[f, k, ...] += gram(take(apart, np.flatnonzero((fold == f) & ((cell % K)[of] == k))))
    sums = zeros((len(ids) * K, d), offset)
    set_rows(sums, cell, total)
    out = Folds(labels, offset[None, :], n_folds, seed, offset=offset)
    out.add_sums(labels, xp.reshape(sums, (len(ids), K, d)), within)
    return Statistics.of(out.result())
