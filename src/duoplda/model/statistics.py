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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import repeat
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import (
    Array,
    Arriving,
    add_rows,
    check_finite,
    gram,
    namespace,
    on_device,
    put,
    to_numpy,
    zeros,
)
from duoplda.data import labels as lab
from duoplda.data.labels import Ints, Labels
from duoplda.data.recordings import ROWS, ArrayRecordings, Recordings
from duoplda.errors import DuopldaError, some
from duoplda.model.accumulate import STREAM_BYTES, Moments, Open, OpenSessions, Sums, TypeBlock, add_scatters
from duoplda.model.sample import Sample, Sampler

PRECISIONS = ("double", "single")
LARGEST = 1e150  # the square of a larger value, added up, is soon infinite


@dataclass(frozen=True, eq=False, repr=False)
class Statistics:
    """Sufficient statistics of labelled recordings; `a + b` joins shards, `weight * a` makes them count for less.

    Sessions that are cut between shards are kept open (`close=False`), joined by `+`, and squared by `close`.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(6, 2))
    >>> speaker, session = np.array(list("aaabbb")), np.array(["s1", "s1", "s2", "s3", "s4", "s4"])
    >>> stats = Statistics.from_arrays(X, speaker, session)
    >>> stats.n_recordings, stats.n_sessions, stats.n_speakers
    (6.0, 4.0, 2.0)
    >>> parts = [Statistics.from_arrays(X[i::2], speaker[i::2], session[i::2], close=False) for i in range(2)]
    >>> whole = sum(parts).close()
    >>> whole.n_sessions, np.allclose(whole.within, stats.within)
    (4.0, True)
    """

    offset: Array  # (d,)
    kinds: NDArray[Any]  # (K,)
    speaker_ids: NDArray[Any]  # (M,) sorted
    weights: NDArray[np.float64]  # (M,) how much each speaker's likelihood counts
    blocks: tuple[TypeBlock, ...]  # by type, in lexicographic order
    within: Array  # (K, d, d) weighted; None: nothing yet, of open sessions alone
    sessions: NDArray[Any] | None  # complete ones, none to be added twice: ids (int64) or hashes (uint64)
    open: OpenSessions | None = None
    folds: tuple[Statistics, ...] = ()  # the same by fold of speakers, where asked for; they add up to the whole
    seed: int = 0  # of the folds
    known: str = "speakers"  # what the labels said: see `duoplda.data.labels.KNOWN`
    sample: Sample | None = None  # of a fold: some of its recordings, as they were read, for held-out trials

    @classmethod
    def of(
        cls,
        recordings: Recordings,
        transform: Any = None,
        *,
        n_folds: int = 0,
        seed: int = 0,
        device: str | None = None,
        precision: str = "double",
        close: bool = True,
    ) -> Statistics:
        """One pass over recordings, wherever they lie.

        Parameters
        ----------
        recordings : arrays, files, shards on a cluster: whatever is a `Recordings`
        transform : a function of rows (k, d) and their kinds of channels (k,) that is applied to each chunk first, on
            the device if there is one
        n_folds, seed : split speakers by a hash of their ids, and keep the parts too, for held-out speakers
        device : a device of torch ("cuda") through which recordings of the host are streamed in blocks, so that they
            need not fit there; tensors are used where they are
        precision : "single": differences within sessions of float32 recordings are squared in single precision, block
            by block, and only added in double: faster, and exact to about 1e-7 of the variances. Not for embeddings
            with directions of (nearly) no variance.
        close : False: sessions that have further recordings elsewhere stay open
        """
        if precision not in PRECISIONS:
            raise DuopldaError(f"precision={precision!r} must be one of {', '.join(PRECISIONS)}")
        options: dict[str, Any] = {"n_folds": n_folds, "seed": seed, "device": device, "single": precision == "single"}
        make = partial(_gather, transform=transform, buckets=recordings.buckets, **options)
        tie = (lambda loose: [s.close() for s in loose]) if close else list
        parts = recordings.reduce(make, _join, tie, max(n_folds, 1))
        return cls.from_folds(parts, seed) if n_folds else parts[0]

    @classmethod
    def unlabelled(
        cls,
        recordings: Recordings,
        transform: Any = None,
        *,
        n_folds: int = 0,
        seed: int = 0,
        device: str | None = None,
    ) -> Statistics:
        """One pass for the mean and the covariance, without labels: as of one speaker with a recording per session.

        With `n_folds` there is such a speaker for each fold, for the mean and the covariance without it. `transform`
        is a function of rows (k, d) that is applied to each chunk first, on the device if there is one.
        """
        make = partial(_gather_unlabelled, transform=transform, n_folds=n_folds, seed=seed, device=device)
        parts = recordings.reduce(make, _join, list, max(n_folds, 1))
        return cls.from_folds(parts, seed) if n_folds else parts[0]

    @classmethod
    def from_arrays(
        cls, X: Any, speaker: Any, session: Any = None, channel: Any = None, *, close: bool = True, **options: Any
    ) -> Statistics:
        """The same of recordings `X` (N, d) in memory with their labels (N,); the options are those of `of`.

        With `close=False` all sessions stay open, as other shards may have further recordings of them.
        """
        if speaker is None and session is None:
            raise DuopldaError("speaker is None: give the speaker of each row of X, or at least the session")
        recordings = ArrayRecordings(X, speaker, session, channel)
        if close:
            return cls.of(recordings, **options)
        if session is None:
            raise DuopldaError("close=False needs names of sessions, by which the parts of a session find each other")
        labels = recordings.labels()
        labels = replace(labels, open=np.ones(labels.n_sessions, bool))
        return cls.of(ArrayRecordings(X, labels=labels), close=False, **options)

    @classmethod
    def from_folds(cls, folds: Iterable[Statistics], seed: int) -> Statistics:
        """The whole of folds that were gathered and added apart; they then share its sums of speakers."""
        folds = list(folds)
        kinds = np.unique(np.concatenate([f.kinds for f in folds]))
        folds = [f._relabel(f.speaker_ids, kinds)._move(folds[0].offset) for f in folds]
        speaker_ids = np.concatenate([f.speaker_ids for f in folds])
        order = np.argsort(speaker_ids)
        place = np.argsort(order)
        start = np.cumsum([0, *(len(f.speaker_ids) for f in folds)])
        blocks: list[TypeBlock] = []
        own: list[list[TypeBlock]] = [[] for _ in folds]
        for t in sorted({tuple(b.counts.tolist()) for f in folds for b in f.blocks}):
            of = [(i, b) for i, f in enumerate(folds) for b in f.blocks if tuple(b.counts.tolist()) == t]
            A = namespace(folds[0].offset).concat([b.A for _, b in of], axis=0)
            speaker = np.concatenate([place[start[i] + b.speaker] for i, b in of])
            n = np.concatenate([b.n for _, b in of])
            at = 0
            for i, b in of:
                own[i].append(replace(b, A=A[at : at + len(b.n), :]))
                at += len(b.n)
            blocks.append(TypeBlock(of[0][1].counts, speaker, n, A, add_scatters([b for _, b in of])))
        parts = tuple(replace(f, blocks=tuple(b)) for f, b in zip(folds, own, strict=True))
        weights = np.concatenate([f.weights for f in folds])[order]
        within = _total([f.within for f in folds])
        whole = cls(folds[0].offset, kinds, speaker_ids[order], weights, tuple(blocks), within, _keys(folds))
        return replace(whole, folds=parts, seed=seed, known=lab.least_known([f.known for f in folds]))

    def __repr__(self) -> str:
        parts = [f"{self.n_recordings:,.0f} recordings", f"{self.n_sessions:,.0f} sessions"]
        parts += [f"{self.n_speakers:,.0f} speakers", f"{self.d} dimensions"]
        if self.K > 1:
            parts.append(f"kinds of channels {some(self.kinds.tolist())}")
        if self.folds:
            parts.append(f"{len(self.folds)} folds")
        if self.is_open:
            n_open = sum(len(s.open) for s in (self, *self.folds) if s.open is not None)
            parts.append(f"{n_open:,} open sessions")
        return f"<Statistics: {', '.join(parts)}>"

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
        out = self.within + 0.0
        for b in self.blocks:
            for k, n, of in b.parts:
                out[k, ...] += (b.scatter[of, of] if b.squared else gram(b.scatter[:, of])) / n
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
            add_rows(out, b.speaker, sum(b.A[:, of] for _, _, of in b.parts))
        return out

    @cached_property
    def session_keys(self) -> NDArray[np.uint64] | None:
        """Hashes of the ids of the complete sessions."""
        ids = self.sessions
        return lab.keys(ids) if ids is not None and ids.dtype == np.int64 else ids

    def __rmul__(self, weight: float) -> Statistics:
        if not (isinstance(weight, Real) and 0 < weight < float("inf")):
            what = repr(weight) if np.isscalar(weight) else type(weight).__name__
            raise DuopldaError(f"statistics can be weighted by a positive number, not by {what}")
        if self.is_open:
            raise DuopldaError("statistics with open sessions cannot be weighted: close them first")
        blocks = tuple(replace(b, scatter=b.T * float(weight)) for b in self.blocks)
        within = self.within * float(weight)
        folds = tuple(weight * part for part in self.folds)
        return replace(self, weights=self.weights * weight, blocks=blocks, within=within, folds=folds)

    __mul__ = __rmul__

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics.sum([self, other]) if isinstance(other, Statistics) else NotImplemented

    @classmethod
    def sum(cls, parts: Sequence[Statistics]) -> Statistics:
        """Statistics of the recordings of all parts; open sessions of one name are joined."""
        first = parts[0]
        if len(parts) == 1:
            return first
        _refuse_different(parts)
        if first.folds:
            return cls.from_folds([cls.sum(same) for same in zip(*(p.folds for p in parts), strict=True)], first.seed)
        speaker_ids = np.unique(np.concatenate([p.speaker_ids for p in parts]))
        kinds = np.unique(np.concatenate([p.kinds for p in parts]))
        parts = [p._relabel(speaker_ids, kinds)._move(first.offset) for p in parts]
        weights = np.stack([p.weights for p in parts])
        most = weights.max(axis=0)
        least = np.where(weights > 0, weights, np.inf).min(axis=0)
        if (most > least).any():
            who = some(speaker_ids[most > least])
            remedy = "weight whole speakers, or give them different names"
            raise DuopldaError(f"speakers {who} are in several statistics with different weights: {remedy}")
        blocks: dict[tuple[int, ...], list[TypeBlock]] = {}
        for p in parts:
            for b in p.blocks:
                blocks.setdefault(tuple(b.counts.tolist()), []).append(b)
        within = _total([p.within for p in parts])
        keys = _keys(parts)
        opened, within = _joined([p.open for p in parts if p.open is not None], within, len(kinds), first.offset)
        _refuse_repeated(keys, opened)
        joined = tuple(one_block(blocks[t]) for t in sorted(blocks))
        samples = [p.sample for p in parts if p.sample is not None]
        sample = Sample.join(samples) if samples else None
        known = lab.least_known([p.known for p in parts])
        return cls(first.offset, kinds, speaker_ids, most, joined, within, keys, opened, known=known, sample=sample)

    @property
    def is_open(self) -> bool:
        """Whether any session is open."""
        return self.open is not None or any(f.is_open for f in self.folds)

    def close(self) -> Statistics:
        """The same with every open session taken for complete."""
        if self.folds and self.is_open:
            return Statistics.from_folds([f.close() for f in self.folds], self.seed)
        if self.open is None:
            return self
        o = self.open
        K = self.K
        speaker_ids, speaker = lab.codes(o.speakers, "speaker")
        session = np.repeat(o.session, o.n)
        kind = np.repeat(o.kind, o.n)
        labels = Labels(speaker_ids, o.names, self.kinds, speaker[session], session, kind)
        rows = zeros((len(o) * K, self.d), self.offset)
        add_rows(rows, o.session * K + o.kind, o.F)
        sums = Sums(labels, self.offset[None, :], offset=self.offset)
        sums.close_sums(np.arange(len(o)), namespace(rows).reshape(rows, (len(o), K, self.d)))
        return Statistics.sum([replace(self, open=None), Statistics(**sums.result()[0], known=self.known)])

    def _nothing(self) -> Statistics:
        """Statistics of no recordings, to which these can be added."""
        none: dict[str, Any] = {
            "speaker_ids": self.speaker_ids[:0],
            "weights": self.weights[:0],
            "blocks": (),
            "sessions": None,
        }
        return replace(self, within=0.0 * self.within, open=None, sample=None, **none)

    def __radd__(self, other: Any) -> Statistics:
        return self if other == 0 else NotImplemented  # so that sum(shards) works

    def of_kinds(self, kinds: NDArray[Any]) -> Statistics:
        """The same for the sorted `kinds` (K,) of channels, among which are all of these."""
        if self.folds:
            return Statistics.from_folds([fold.of_kinds(kinds) for fold in self.folds], self.seed)
        return self._relabel(self.speaker_ids, kinds)

    def regrouped(self, n: int, turn: int = 0) -> Statistics:
        """The same with the folds joined to at most n that have about as many speakers each, in several ways."""
        size = [len(fold.speaker_ids) for fold in self.folds]
        groups: list[list[int]] = [[] for _ in range(n)]
        for i in sorted(range(len(size)), key=lambda i: (-size[i], i * (2 * turn + 1) % len(size), i)):
            if size[i]:
                min(groups, key=lambda own: sum(size[j] for j in own)).append(i)
        folds = [Statistics.sum([self.folds[i] for i in sorted(own)]) for own in groups if own]
        return Statistics.from_folds(folds, self.seed)

    def _relabel(self, speaker_ids: NDArray[Any], kinds: NDArray[Any]) -> Statistics:
        speaker = np.searchsorted(speaker_ids, self.speaker_ids)
        kind = np.searchsorted(kinds, self.kinds)
        weights = np.zeros(len(speaker_ids))
        weights[speaker] = self.weights
        within = self.within
        blocks = []
        if len(kinds) > self.K and within is not None:
            within = zeros((len(kinds), self.d, self.d), self.within)
            for k, to in enumerate(kind.tolist()):
                within[to, ...] = self.within[k, ...]
        for b in self.blocks:
            counts = np.zeros(len(kinds), np.int64)
            counts[kind] = b.counts
            blocks.append(replace(b, counts=counts, speaker=speaker[b.speaker]))
        opened = None if self.open is None else replace(self.open, kind=kind[self.open.kind])
        new: dict[str, Any] = {"kinds": kinds, "speaker_ids": speaker_ids, "weights": weights, "blocks": tuple(blocks)}
        return replace(self, within=within, open=opened, **new)

    def _move(self, offset: Array) -> Statistics:
        """The same statistics about another offset."""
        xp = namespace(self.offset, offset)
        if self.offset is offset or bool(xp.all(self.offset == offset)):
            return self
        delta = self.offset - offset
        opened = self.open
        if opened is not None:
            opened = replace(opened, F=opened.F + put(opened.n.astype(float), opened.F)[:, None] * delta)
        return replace(self, offset=offset, blocks=tuple(self.shifted(xp.stack([delta] * self.K))), open=opened)

    def shifted(self, delta: Array) -> Iterator[TypeBlock]:
        """The blocks of recordings to which a vector was added, that of their kind in `delta` (K, d)."""
        for b, f, H in zip(self.blocks, self.f, self.H, strict=True):
            step = b.stacked(delta)
            A = b.A + put(b.n.astype(float), b.A)[:, None] * step[None, :]
            cross = f[:, None] * step[None, :]
            T = b.T + cross + cross.T + float(H) * step[:, None] * step[None, :]
            yield replace(b, A=A, scatter=T)

    def mapped(self, means: NDArray[np.float64], matrix: NDArray[np.float64]) -> Statistics:
        """Statistics of A'(x - mean of its kind), exactly; means (K, d), or (1, d) for all kinds; matrix A (d, k)."""
        A = put(matrix, self.offset)
        blocks = []
        xp = namespace(A)
        means = np.array(np.broadcast_to(means, (self.K, self.d)))
        for b in self.shifted(self.offset - put(means, self.offset)):
            of = [columns for _, _, columns in b.parts]
            T = xp.concat([xp.concat([A.T @ b.T[i, j] @ A for j in of], axis=1) for i in of])
            blocks.append(replace(b, A=xp.concat([b.A[:, i] @ A for i in of], axis=1), scatter=T))
        within = xp.stack([A.T @ self.within[k, ...] @ A for k in range(self.K)])
        folds = tuple(part.mapped(means, matrix) for part in self.folds)
        return replace(self, offset=zeros((A.shape[1],), A), blocks=tuple(blocks), within=within, folds=folds)


def one_block(blocks: list[TypeBlock]) -> TypeBlock:
    """Blocks of one type as one."""
    if len(blocks) == 1:
        return blocks[0]
    speaker = np.unique(np.concatenate([b.speaker for b in blocks]))
    n = np.zeros(len(speaker), np.int64)
    A = zeros((len(speaker), blocks[0].A.shape[1]), blocks[0].A)
    for b in blocks:
        rows = np.searchsorted(speaker, b.speaker)
        n[rows] += b.n
        add_rows(A, rows, b.A)
    return TypeBlock(blocks[0].counts, speaker, n, A, add_scatters(blocks))


def _keys(parts: Sequence[Statistics]) -> NDArray[np.uint64] | None:
    named = [p.session_keys for p in parts if p.session_keys is not None]
    return np.concatenate(named) if named else None


def _total(scatters: Sequence[Array]) -> Array:
    there = [s for s in scatters if s is not None]
    return sum(there[1:], there[0]) if there else None


def _joined(parts: list[OpenSessions], within: Array, K: int, offset: Array) -> tuple[OpenSessions | None, Array]:
    """Open sessions of several statistics, and `within` with the scatter that their joining adds."""
    if len(parts) < 2:
        return (parts[0] if parts else None), within
    keys, first, index = np.unique(np.concatenate([p.keys for p in parts]), return_index=True, return_inverse=True)
    names, speakers = (np.concatenate([getattr(p, a) for p in parts]) for a in ("names", "speakers"))
    torn = np.unique(index[speakers[first][index] != speakers])
    if len(torn):
        who = np.unique(speakers[index == torn[0]])
        raise lab.torn_session(names[first[torn[0]]], who, len(torn) - 1, ", in different shards")
    d = offset.shape[0]
    table = Open(len(keys), K, offset)
    at = 0
    scatter = zeros((1, K, d, d), offset)
    for p in parts:
        session = index[at : at + len(p)][p.session]
        table.add(session * K + p.kind, p.n, p.F, np.zeros(len(p.n), np.int64), scatter)
        at += len(p)
    cells, n, F = table.cells()
    within = scatter[0, ...] if within is None else within + scatter[0, ...]
    return OpenSessions(keys, names[first], speakers[first], cells // K, cells % K, n, F), within


def _refuse_different(parts: Sequence[Statistics]) -> None:
    """Statistics can be added if they are of one dimension, one type of ids, and the same folds."""
    first = parts[0]
    for p in parts[1:]:
        if p.d != first.d:
            raise DuopldaError(f"statistics of {first.d} and of {p.d} dimensions cannot be added")
        if p.speaker_ids.dtype.kind != first.speaker_ids.dtype.kind:
            kinds = f"{first.speaker_ids.dtype}, {p.speaker_ids.dtype}"
            raise DuopldaError(f"speaker ids of different types ({kinds}) cannot be merged")
        if len(p.folds) != len(first.folds) or (p.folds and p.seed != first.seed):
            said = [f"{len(s.folds)} folds" + f" with seed {s.seed}" * bool(s.folds) for s in (first, p)]
            remedy = "gather all of them with the same n_folds and seed"
            raise DuopldaError(f"statistics with different folds ({said[0]}; {said[1]}) cannot be added: {remedy}")


def _refuse_repeated(keys: NDArray[np.uint64] | None, opened: OpenSessions | None) -> None:
    """A session is in one of the statistics only, unless it is open in all that have a part of it."""
    if keys is None:
        return
    every, times = np.unique(keys, return_counts=True)
    n = int((times > 1).sum()) + (0 if opened is None else int(np.isin(opened.keys, every, assume_unique=True).sum()))
    if n:
        cause = f"{n} sessions are in both statistics: a session that was closed cannot be added to"
        remedy = "keep it open (close=False) until all its parts are added, or give sessions unique names"
        raise DuopldaError(f"{cause}. Gather it in one shard, {remedy}")


# -- the pass, as it runs on one part of the recordings


def _gather(
    part: Recordings, *, transform: Any, device: str | None, buckets: int, **options: Any
) -> tuple[list[Statistics], list[tuple[Statistics, ...]]]:
    """Statistics of complete sessions by fold; and by bucket those of open sessions, by fold as well."""
    whole = _at_once(part, transform, device, options) if isinstance(part, ArrayRecordings) else None
    sums, sampler = whole or _by_chunks(part, transform, device, options)
    samples: Any = repeat(None) if sampler is None else sampler.result()
    results = zip(sums.result(partial(_name_rows, part)), samples, strict=False)
    known = part.labels().known
    found = [Statistics(**g, sample=sample, known=known) for g, sample in results]
    loose = []
    empty: dict[str, Any] = {"speaker_ids": found[0].speaker_ids[:0], "weights": np.zeros(0), "blocks": ()}
    empty |= {"within": None, "sessions": None, "sample": None}
    for b in range(buckets) if any(s.open is not None for s in found) else ():
        own = [None if s.open is None else s.open.select(s.open.keys % np.uint64(buckets) == b) for s in found]
        loose.append(tuple(replace(s, open=o or None, **empty) for s, o in zip(found, own, strict=True)))
    return [replace(s, open=None) for s in found], loose


def _at_once(
    part: ArrayRecordings, transform: Any, device: str | None, options: dict[str, Any]
) -> tuple[Sums, Sampler | None] | None:
    """The sums of an array; None where it must come in chunks: with a transform, unless a device does the work."""
    X = part.X
    first = slice(0, min(ROWS, X.shape[0]))
    like = X if device is None or namespace(X) is not np else on_device(X[first], device)
    moves = namespace(like) is not namespace(X) and Arriving.fits(X, like)
    rows = Arriving(X, like, STREAM_BYTES // 4) if moves else X  # which come while labels are sorted
    try:
        labels = part.labels(like).filled
        if transform is not None:
            if namespace(like) is np or labels.open is not None:
                return None
            like = transform(like[first, :], labels.kinds[to_numpy(labels.kind[first])])
        sums = Sums(labels, like, transform=transform, **options)
        sampler = _sampler(labels, X, options)
        if labels.open is None:
            sums.add_all(rows)
        else:
            sums.add(X, slice(0, labels.n_recordings))
        if sampler is not None:
            sampler.add(X, slice(0, labels.n_recordings))
        return sums, sampler
    except DuopldaError:
        if transform is not None:
            _name_rows(part, transform)
        raise
    finally:
        if moves:
            rows.end()


def _sampler(labels: Labels, X: Array, options: dict[str, Any]) -> Sampler | None:
    return Sampler(labels, X.shape[1], options["n_folds"], options["seed"]) if options["n_folds"] else None


def _by_chunks(
    part: Recordings, transform: Any, device: str | None, options: dict[str, Any]
) -> tuple[Sums, Sampler | None]:
    sums = None
    sampler = None
    labels = part.labels().filled
    labels = replace(labels, **{name: to_numpy(getattr(labels, name)) for name in ("speaker", "session", "kind")})
    for chunk in part.vectors(_rows(device)):
        X = on_device(chunk.X, device)
        if transform is not None:
            try:
                X = transform(X, labels.kinds[labels.kind[chunk.index]])
            except DuopldaError:
                _name_rows(part)  # which names the recordings, not the rows of the chunk
                raise
        if sums is None:
            sums = Sums(labels, X, **options)
            sampler = _sampler(labels, chunk.X, options)
        sums.add(X, chunk.index)
        if sampler is not None:
            sampler.add(chunk.X, chunk.index)
    if sums is None:
        raise DuopldaError("there are no recordings")
    return sums, sampler


def _rows(device: str | None) -> int:
    """Of a chunk: those for a device are larger, as each costs it some time."""
    return ROWS if device is None or str(device) == "cpu" else 8 * ROWS


def _gather_unlabelled(
    part: Recordings, transform: Any, n_folds: int, seed: int, device: str | None
) -> tuple[list[Statistics], list[Any]]:
    labels = part.labels().filled if n_folds else None
    folds = None if labels is None else lab.folds(labels.speaker_ids, n_folds, seed)[to_numpy(labels.speaker)]
    sums = None
    step = _rows(device)
    for chunk in part.vectors(step):
        X = on_device(chunk.X, device)
        fold = None if folds is None else folds[chunk.index]
        if transform is not None:
            try:
                X = transform(X)
            except DuopldaError:
                _name_rows(part)  # which names the recordings, not the rows of the chunk
                raise
        sums = Moments(X[: min(ROWS, X.shape[0]), :], max(n_folds, 1)) if sums is None else sums
        for i in range(0, X.shape[0], step):
            own = slice(i, min(i + step, X.shape[0]))
            sums.add(X[own, :], None if fold is None else fold[own])
    if sums is None:
        raise DuopldaError("there are no recordings")
    results = [
        None if own is None else Statistics(**own, known="nothing") for own in sums.result(partial(_name_rows, part))
    ]
    empty = next(own for own in results if own is not None)._nothing()
    return [own or empty for own in results], []


def _name_rows(part: Recordings, transform: Any = None) -> Any:
    """Read again and raise an error that names the recordings that are not finite or too large, if any.

    With a transform that fails in rows of another order, it then fails in that of the recordings.
    """
    for chunk in part.chunks():
        size = np.abs(to_numpy(chunk.X)).max(axis=1).astype(np.float64)
        bad = np.flatnonzero(~(size < LARGEST))
        if not len(bad):
            continue
        if isinstance(part, ArrayRecordings):
            check_finite(part.X)
        who = ("rows " if chunk.ids is None else "") + some(chunk.names[bad])
        what = "values too large to add up" if np.isfinite(size[bad]).all() else "NaN or infinity"
        remedy = "Remove these recordings, or look at what the extractor did with them (empty or silent audio?)"
        raise DuopldaError(f"Input X contains {what} in {who}, and perhaps in others. {remedy}")
    if transform is not None:
        labels = part.labels()
        for chunk in part.chunks():
            transform(chunk.X, labels.kinds[to_numpy(labels.kind[chunk.index])])


def _join(pieces: list[Any]) -> Any:
    """Statistics added up; of tuples, each place by itself."""
    if isinstance(pieces[0], tuple):
        return tuple(Statistics.sum(same) for same in zip(*pieces, strict=True))
    return Statistics.sum(pieces)
