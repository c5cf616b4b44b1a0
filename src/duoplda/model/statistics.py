"""Sufficient statistics: sums that one pass over the recordings gathers, and from which EM works alone.

Let `c` count the recordings of a session by kind of channel (its *type*; with one kind, its size), and let `F_ij` be
the sums of its recordings, one for each kind present, stacked (all vectors are about an `offset` near the mean, so that
no digits are lost). The statistics are, for each type c,

    n_ic  sessions of speaker i,   A_ic = sum_j F_ij over them,   T_c = sum F_ij F_ij' over all sessions

and for each kind k the scatter of recordings about their session's mean, `within_k`, to which a recording that is the
only one of its kind in its session adds nothing. The sums of the source (Villalba, 2012) follow: N, F_i, and

    S_k = within_k + sum_c T_c[k, k] / c_k.

Memory, with K_c the number of kinds present: T_c takes (K_c d)^2 numbers for each type; of a type with fewer than K_c d
sessions, the rows F are kept instead, so that many rare types take little. A takes K_c d numbers for each pair of a
speaker and a type of its sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from numbers import Real
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.arrays import (
    Array,
    Arriving,
    Device,
    add_rows,
    check_finite,
    gram,
    namespace,
    on_device,
    put,
    reproducible,
    take,
    to_float,
    to_numpy,
    zeros,
)
from duoplda.data import labels as lab
from duoplda.data.labels import Ints, Labels
from duoplda.data.recordings import ROWS, ArrayRecordings, Chunk, Recordings
from duoplda.errors import DuopldaError, some
from duoplda.model.accumulate import (
    STREAM_BYTES,
    SessionSums,
    TypeBlock,
    add_scatters,
    check_sums,
    near_mean,
)
from duoplda.model.open_sessions import OpenSessions, join
from duoplda.model.sample import Sample, Sampler

Transform = Callable[[Array, NDArray[Any]], Array]  # of rows (k, d) and the names of their kinds of channels (k,)
Samples = Sequence[Sample | None]  # of each fold; None without folds


@dataclass(frozen=True, eq=False, repr=False)
class Statistics:
    """Sufficient statistics of labelled recordings; `a + b` joins shards, `weight * a` makes them count for less.

    With `close=False`, sessions stay open for recordings in other shards: `+` joins the parts of a session, and `close`
    takes every open session for complete.

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
    within: Array  # (K, d, d) weighted; None where all sessions are open
    sessions: NDArray[Any] | None  # complete ones, so that none is added twice: ids (int64) or hashes (uint64)
    open: OpenSessions | None = None
    folds: tuple[Statistics, ...] = ()  # statistics of each fold of speakers, where asked for; their sum
    seed: int = 0  # of the hash that divides speakers into folds
    known: str = "speakers"  # what the labels say: see `duoplda.data.labels.KNOWN`
    sample: Sample | None = None  # some recordings of a fold, as they were read, for held-out trials

    @classmethod
    def of(
        cls,
        recordings: Recordings,
        transform: Transform | None = None,
        *,
        n_folds: int = 0,
        seed: int = 0,
        device: Device = None,
        close: bool = True,
    ) -> Statistics:
        """Gather statistics in one pass over recordings.

        Parameters
        ----------
        recordings : arrays, files, or shards on a cluster
        transform : a function of rows (k, d) and their kinds of channels (k,) that is applied to each chunk first, on
            the device if there is one
        n_folds, seed : speakers are divided into folds by a hash of their ids, and the statistics of each fold are
            kept, too, so that speakers can be held out
        device : a device of torch ("cuda") to which recordings are copied in blocks, so that they need not fit into its
            memory; tensors are used where they are
        close : with False, sessions that have further recordings elsewhere stay open
        """
        pass_options = {"transform": transform, "device": device, "n_folds": n_folds, "seed": seed}
        make = partial(_gather, buckets=recordings.buckets, **pass_options)
        tie = (lambda loose: [s.close() for s in loose]) if close else list
        parts = recordings.reduce(make, _join, tie, max(n_folds, 1))
        return cls.from_folds(parts, seed) if n_folds else parts[0]

    @classmethod
    def unlabelled(
        cls,
        recordings: Recordings,
        transform: Callable[[Array], Array] | None = None,
        *,
        n_folds: int = 0,
        seed: int = 0,
        device: Device = None,
    ) -> Statistics:
        """Gather the mean and the covariance in one pass without labels, as if one speaker had a session per recording.

        With `n_folds`, each fold of speakers becomes such a speaker, so that the mean and the covariance without the
        fold can be computed. `transform` is a function of rows (k, d) that is applied to each chunk first, on the
        device if there is one.
        """
        make = partial(_gather_unlabelled, transform=transform, n_folds=n_folds, seed=seed, device=device)
        parts = recordings.reduce(make, _join, list, max(n_folds, 1))
        return cls.from_folds(parts, seed) if n_folds else parts[0]

    @classmethod
    def from_arrays(
        cls,
        X: Array,
        speaker: ArrayLike | None,
        session: ArrayLike | None = None,
        channel: ArrayLike | None = None,
        *,
        close: bool = True,
        **options: Any,
    ) -> Statistics:
        """Gather statistics of recordings `X` (N, d) in memory with their labels (N,); the options are those of `of`.

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
        """Join folds that were gathered apart; their sums of speakers A then lie in the memory of the whole's."""
        folds = list(folds)
        kinds = np.unique(np.concatenate([f.kinds for f in folds]))
        folds = [f._relabel(f.speaker_ids, kinds).about(folds[0].offset) for f in folds]
        whole = cls._added([replace(f, open=None, sample=None) for f in folds])
        # In the blocks of the whole, sums of speakers come fold by fold.
        A = {tuple(b.counts.tolist()): b.A for b in whole.blocks}
        row = dict.fromkeys(A, 0)
        parts = []
        for f in folds:
            blocks = []
            for b in f.blocks:
                t = tuple(b.counts.tolist())
                blocks.append(replace(b, A=A[t][row[t] : row[t] + len(b.n), :]))
                row[t] += len(b.n)
            parts.append(replace(f, blocks=tuple(blocks)))
        return replace(whole, folds=tuple(parts), seed=seed)

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
        """(C, K) the types that occur: recordings of a session by kind."""
        return np.array([b.counts for b in self.blocks], np.int64).reshape(-1, self.K)

    @cached_property
    def H(self) -> NDArray[np.float64]:
        """(C,) weighted number of sessions of each type."""
        return np.array([np.dot(self.weights[b.speaker], b.n) for b in self.blocks], np.float64)

    @cached_property
    def N(self) -> NDArray[np.float64]:
        """(K,) weighted number of recordings of each kind."""
        return self.H @ self.types

    @cached_property
    def f(self) -> list[Array]:
        """(C,) vectors (K_c d,): the weighted sum of F over the sessions of each type."""
        return [put(self.weights[b.speaker], b.A) @ b.A for b in self.blocks]

    @cached_property
    def kind_sums(self) -> Array:
        """(K, d) sums of the recordings of each kind about the offset."""
        sums = zeros((self.K, self.d), self.offset)
        for b, f in zip(self.blocks, self.f, strict=True):
            for k, _, columns in b.parts:
                sums[k, ...] += f[columns]
        return sums

    @property
    def kind_means(self) -> Array:
        """(K, d) means of the recordings of each kind about the offset; 0 where a kind has none."""
        return self.kind_sums / put(np.maximum(self.N, 1e-300), self.kind_sums)[:, None]

    @cached_property
    def S(self) -> Array:
        """(K, d, d) scatter of the recordings of each kind about the offset: S_k = within_k + sum_c T_c[k, k] / c_k."""
        out = self.within + 0.0
        for b in self.blocks:
            for k, n, columns in b.parts:
                squares = b.scatter[columns, columns] if b.squared else gram(b.scatter[:, columns])
                out[k, ...] += squares / n
        return out

    @cached_property
    def counts(self) -> Ints:
        """(M, C) sessions of each speaker by type."""
        out = np.zeros((len(self.speaker_ids), len(self.blocks)), np.int64)
        for c, b in enumerate(self.blocks):
            out[b.speaker, c] = b.n
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

    def __sub__(self, other: object) -> NoReturn:
        remedy = "gather statistics of the recordings that are to stay, or of several folds (n_folds)"
        raise DuopldaError(f"statistics can be added up, but nothing can be taken off them: {remedy}")

    @classmethod
    def sum(cls, parts: Sequence[Statistics]) -> Statistics:
        """Statistics of the recordings of all parts; open sessions of one name are joined."""
        first = parts[0]
        if len(parts) == 1:
            return first
        _refuse_different(parts)
        if first.folds:
            return cls.from_folds([cls.sum(same) for same in zip(*(p.folds for p in parts), strict=True)], first.seed)
        total = cls._added(parts)
        if total.sessions is not None:
            _refuse_repeated(total.sessions, total.open)
        samples = [p.sample for p in parts if p.sample is not None]
        return replace(total, sample=Sample.join(samples) if samples else None)

    @classmethod
    def _added(cls, parts: Sequence[Statistics]) -> Statistics:
        """The sum of parts without folds; it has no sample, and repeated sessions are not looked for."""
        offset = parts[0].offset
        speaker_ids = np.unique(np.concatenate([p.speaker_ids for p in parts]))
        kinds = np.unique(np.concatenate([p.kinds for p in parts]))
        parts = [p._relabel(speaker_ids, kinds).about(offset) for p in parts]
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
        joined_blocks = tuple(one_block(blocks[t]) for t in sorted(blocks))
        scatters = [p.within for p in parts if p.within is not None]
        within = sum(scatters[1:], scatters[0]) if scatters else None
        named = [p.session_keys for p in parts if p.session_keys is not None]
        keys = np.concatenate(named) if named else None
        open_parts = [p.open for p in parts if p.open is not None]
        opened = open_parts[0] if open_parts else None
        if len(open_parts) > 1:
            opened, scatter = join(open_parts, len(kinds), offset)
            within = scatter if within is None else within + scatter
        known = lab.least_known([p.known for p in parts])
        return cls(offset, kinds, speaker_ids, most, joined_blocks, within, keys, opened, known=known)

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
        parts = self.open
        speaker_ids, speaker = lab.codes(parts.speakers, "speaker")
        session = np.repeat(parts.session, parts.n)
        kind = np.repeat(parts.kind, parts.n)
        labels = Labels(speaker_ids, parts.names, self.kinds, speaker[session], session, kind)
        sums = SessionSums(labels, self.offset[None, :])
        sums.close(parts.session * self.K + parts.kind, parts.F)
        return Statistics.sum([replace(self, open=None), Statistics(**sums.result()[0], known=self.known)])

    def _without_sessions(self, within: Array, opened: OpenSessions | None = None) -> Statistics:
        """Statistics that have none of the complete sessions, and can be added to others."""
        nobody = replace(self, speaker_ids=self.speaker_ids[:0], weights=self.weights[:0], blocks=())
        return replace(nobody, within=within, sessions=None, open=opened, sample=None)

    def __radd__(self, other: Any) -> Statistics:
        return self if other == 0 else NotImplemented  # the built-in sum of shards starts from 0

    def of_kinds(self, kinds: NDArray[Any]) -> Statistics:
        """The same statistics for a longer, sorted list of `kinds` (K,) of channels that includes their own."""
        if self.folds:
            return Statistics.from_folds([fold.of_kinds(kinds) for fold in self.folds], self.seed)
        return self._relabel(self.speaker_ids, kinds)

    def regrouped(self, n: int, turn: int = 0) -> Statistics:
        """The same statistics with their folds joined into at most `n`, of about equally many speakers each.

        Another `turn` joins them in another way.
        """
        size = [len(fold.speaker_ids) for fold in self.folds]
        groups: list[list[int]] = [[] for _ in range(n)]
        for i in sorted(range(len(size)), key=lambda i: (-size[i], i * (2 * turn + 1) % len(size), i)):
            if size[i]:
                min(groups, key=lambda group: sum(size[j] for j in group)).append(i)
        folds = [Statistics.sum([self.folds[i] for i in sorted(group)]) for group in groups if group]
        return Statistics.from_folds(folds, self.seed)

    def map_samples(self, transform: Callable[[NDArray[Any], NDArray[Any], int], Array]) -> Statistics:
        """The same statistics with transformed recordings in the samples of the folds, from which trials are made.

        Samples hold recordings as they were read. `transform(rows, kinds, fold)` gives them as a model takes them that
        has not seen the speakers of the fold.
        """
        folds = []
        for i, fold in enumerate(self.folds):
            sample = fold.sample
            if sample is not None:
                rows = transform(sample.X, sample.kind, i) if len(sample) else np.zeros((0, self.d))
                sample = replace(sample, X=to_numpy(rows).astype(np.float64, copy=False))
            folds.append(replace(fold, sample=sample))
        return replace(self, folds=tuple(folds))

    def _relabel(self, speaker_ids: NDArray[Any], kinds: NDArray[Any]) -> Statistics:
        """The same statistics with indices into longer, sorted lists of speakers and kinds that include their own."""
        speaker = np.searchsorted(speaker_ids, self.speaker_ids)
        kind = np.searchsorted(kinds, self.kinds)
        weights = np.zeros(len(speaker_ids))
        weights[speaker] = self.weights
        within = self.within
        if len(kinds) > self.K and within is not None:
            within = zeros((len(kinds), self.d, self.d), self.within)
            for k, new_kind in enumerate(kind.tolist()):
                within[new_kind, ...] = self.within[k, ...]
        blocks = []
        for b in self.blocks:
            counts = np.zeros(len(kinds), np.int64)
            counts[kind] = b.counts
            blocks.append(replace(b, counts=counts, speaker=speaker[b.speaker]))
        opened = None if self.open is None else replace(self.open, kind=kind[self.open.kind])
        relabelled = replace(self, kinds=kinds, speaker_ids=speaker_ids, weights=weights)
        return replace(relabelled, blocks=tuple(blocks), within=within, open=opened)

    def about(self, offset: Array) -> Statistics:
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
        """The blocks after row k of `delta` (K, d) has been added to every recording of kind k."""
        for b, f, H in zip(self.blocks, self.f, self.H, strict=True):
            step = b.stacked(delta)
            A = b.A + put(b.n.astype(float), b.A)[:, None] * step[None, :]
            cross = f[:, None] * step[None, :]
            T = b.T + cross + cross.T + float(H) * step[:, None] * step[None, :]
            yield replace(b, A=A, scatter=T)

    def mapped(self, means: NDArray[np.float64], matrix: NDArray[np.float64]) -> Statistics:
        """Statistics of A'(x - mean of its kind), exactly; means (K, d), or (1, d) for all kinds; matrix A (d, r)."""
        A = put(matrix, self.offset)
        blocks = []
        xp = namespace(A)
        means = np.array(np.broadcast_to(means, (self.K, self.d)))
        for b in self.shifted(self.offset - put(means, self.offset)):
            by_kind = [columns for _, _, columns in b.parts]
            T = xp.concat([xp.concat([A.T @ b.T[i, j] @ A for j in by_kind], axis=1) for i in by_kind])
            blocks.append(replace(b, A=xp.concat([b.A[:, i] @ A for i in by_kind], axis=1), scatter=T))
        within = xp.stack([A.T @ self.within[k, ...] @ A for k in range(self.K)])
        folds = tuple(part.mapped(means, matrix) for part in self.folds)
        return replace(self, offset=zeros((A.shape[1],), A), blocks=tuple(blocks), within=within, folds=folds)


def one_block(blocks: list[TypeBlock]) -> TypeBlock:
    """Join blocks of one type."""
    if len(blocks) == 1:
        return blocks[0]
    every_speaker = np.concatenate([b.speaker for b in blocks])
    speaker = np.unique(every_speaker)
    if len(speaker) == len(every_speaker):  # as with folds and most shards: no rows are added up
        n = np.concatenate([b.n for b in blocks])
        A = namespace(blocks[0].A).concat([b.A for b in blocks])
        return TypeBlock(blocks[0].counts, every_speaker, n, A, add_scatters(blocks))
    n = np.zeros(len(speaker), np.int64)
    A = zeros((len(speaker), blocks[0].A.shape[1]), blocks[0].A)
    for b in blocks:
        rows = np.searchsorted(speaker, b.speaker)
        n[rows] += b.n
        add_rows(A, rows, b.A)
    return TypeBlock(blocks[0].counts, speaker, n, A, add_scatters(blocks))


def _refuse_different(parts: Sequence[Statistics]) -> None:
    """Refuse to add statistics of different dimensions, types of ids or folds."""
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


def _refuse_repeated(keys: NDArray[np.uint64], opened: OpenSessions | None) -> None:
    """Refuse sessions that are in several statistics, unless they are open in all of them."""
    every, times = np.unique(keys, return_counts=True)
    n = int((times > 1).sum()) + (0 if opened is None else int(np.isin(opened.keys, every, assume_unique=True).sum()))
    if n:
        cause = f"{n} sessions are in both statistics: a session that was closed cannot be added to"
        remedy = "keep it open (close=False) until all its parts are added, or give sessions unique names"
        raise DuopldaError(f"{cause}. Gather it in one shard, {remedy}")


# -- the pass, as it runs on one part of the recordings


def _gather(
    part: Recordings, *, transform: Transform | None, device: Device, n_folds: int, seed: int, buckets: int
) -> tuple[list[Statistics], list[tuple[Statistics, ...]]]:
    """Statistics of complete sessions by fold, and of open sessions by bucket and fold.

    Open sessions are put into buckets by their names, so that the workers of a cluster join one bucket each.
    """
    gathered = _at_once(part, transform, device, n_folds, seed) if isinstance(part, ArrayRecordings) else None
    sums, samples = gathered or _by_chunks(part, transform, device, n_folds, seed)
    known = part.labels().known
    by_fold = []
    for fields, sample in zip(sums.result(partial(_name_rows, part)), samples, strict=True):
        by_fold.append(Statistics(**fields, known=known, sample=sample))
    loose = []
    for bucket in range(buckets) if any(s.open is not None for s in by_fold) else ():
        of_bucket = []
        for s in by_fold:
            opened = None if s.open is None else s.open.select(s.open.keys % np.uint64(buckets) == bucket)
            of_bucket.append(s._without_sessions(None, opened or None))
        loose.append(tuple(of_bucket))
    return [replace(s, open=None) for s in by_fold], loose


def _at_once(
    part: ArrayRecordings, transform: Transform | None, device: Device, n_folds: int, seed: int
) -> tuple[SessionSums, Samples] | None:
    """The sums and samples of an array, all rows at once; None where rows have to come in chunks.

    That is so with a transform on the host, which would need a copy of all rows.
    """
    X = part.X
    first = slice(0, min(ROWS, X.shape[0]))
    like = X if device is None or namespace(X) is not np else on_device(X[first], device)
    moves = namespace(like) is not namespace(X) and Arriving.fits(X, like)
    rows = Arriving(X, like, STREAM_BYTES // 4) if moves else X  # they are copied while labels are sorted
    try:
        labels = part.labels(like).filled
        if transform is not None:
            if namespace(like) is np or labels.open is not None:
                return None
            like = transform(like[first, :], labels.kinds[to_numpy(labels.kind[first])])
        sums = SessionSums(labels, like, n_folds, seed, transform)
        every = slice(0, labels.n_recordings)
        if labels.open is None:
            sums.add_all(rows)
        else:
            sums.add(X, every)
        if not n_folds:
            return sums, [None]
        sampler = Sampler(labels, X.shape[1], n_folds, seed)
        sampler.add(X, every)
        return sums, sampler.result()
    except DuopldaError:
        if transform is not None:
            _name_rows(part, transform)
        raise
    finally:
        if moves:
            rows.end()


def _by_chunks(
    part: Recordings, transform: Transform | None, device: Device, n_folds: int, seed: int
) -> tuple[SessionSums, Samples]:
    """The sums and samples of recordings that come in chunks."""
    labels = part.labels().filled
    labels = replace(labels, **{name: to_numpy(getattr(labels, name)) for name in ("speaker", "session", "kind")})
    sums = None
    sampler = None
    for chunk, X in _chunks(part, device, transform, labels):
        if sums is None:
            sums = SessionSums(labels, X, n_folds, seed)
            sampler = Sampler(labels, chunk.X.shape[1], n_folds, seed) if n_folds else None
        sums.add(X, chunk.index)
        if sampler is not None:
            sampler.add(chunk.X, chunk.index)
    if sums is None:
        raise DuopldaError("there are no recordings")
    return sums, [None] if sampler is None else sampler.result()


def _gather_unlabelled(
    part: Recordings, transform: Callable[[Array], Array] | None, n_folds: int, seed: int, device: Device
) -> tuple[list[Statistics], list[Any]]:
    """As `_gather`, for `Statistics.unlabelled`."""
    folds = None
    if n_folds:
        labels = part.labels().filled
        folds = lab.folds(labels.speaker_ids, n_folds, seed)[to_numpy(labels.speaker)]
    offset = None
    n = np.zeros(max(n_folds, 1), np.int64)
    step = _chunk_rows(device)
    for chunk, X in _chunks(part, device, transform):
        if offset is None:
            offset = near_mean(to_float(X[: min(ROWS, X.shape[0]), :], namespace(X)))
            d = offset.shape[0]
            f = zeros((len(n), d), offset)
            T = zeros((len(n), d, d), offset)
        for i in range(0, X.shape[0], step):  # a chunk may be of any size
            part_of_chunk = slice(i, min(i + step, X.shape[0]))
            rows = X[part_of_chunk, :]
            fold = np.zeros(rows.shape[0], np.int64) if folds is None else folds[chunk.index][part_of_chunk]
            n += np.bincount(fold, minlength=len(n))
            _add_moments(f, T, offset, rows, fold)
    if offset is None:
        raise DuopldaError("there are no recordings")
    check_sums([f, T], partial(_name_rows, part))
    one = np.ones(1, np.int64)
    within = zeros((1, d, d), offset)
    statistics = []
    for k, count in enumerate(n.tolist()):
        block = TypeBlock(one, 0 * one, count * one, f[k, ...][None, :], T[k, ...])
        of_fold = Statistics(offset, lab.NO_KIND, k * one, np.ones(1), (block,), within, None, known="nothing")
        statistics.append(of_fold if count else of_fold._without_sessions(within))
    return statistics, []


@reproducible()
@np.errstate(invalid="ignore", over="ignore")
def _add_moments(f: Array, T: Array, offset: Array, rows: Array, fold: Ints) -> None:
    """Add the sums of rows about the offset to f (folds, d), and those of their squares to T (folds, d, d)."""
    xp = namespace(rows)
    sizes = np.bincount(fold, minlength=f.shape[0]).tolist()
    rows = rows if max(sizes) == len(fold) else take(rows, np.argsort(fold, kind="stable"))
    G = to_float(rows, xp)
    # A copy is centred in place, as getting new memory takes longer than the sums; a view of other rows must not be.
    is_copy = xp is np and not np.may_share_memory(G, rows)
    G = np.subtract(G, offset, out=G) if is_copy else G - offset
    first = 0
    for k, size in enumerate(sizes):
        if size:
            part = G[first : first + size, :]
            f[k, ...] += xp.sum(part, axis=0)
            T[k, ...] += part.T @ part
        first += size


def _chunk_rows(device: Device) -> int:
    """Rows of a chunk: more of them for a device, which takes some time to start on each chunk."""
    return ROWS if device is None or str(device) == "cpu" else 8 * ROWS


def _chunks(
    part: Recordings, device: Device, transform: Callable[..., Array] | None, labels: Labels | None = None
) -> Iterator[tuple[Chunk, Array]]:
    """Chunks as they were read, each with its transformed rows on the device.

    With labels, the transform also gets the kinds of channels of the rows.
    """
    for chunk in part.vectors(_chunk_rows(device)):
        try:
            X = on_device(chunk.X, device)
            if transform is not None:
                X = transform(X) if labels is None else transform(X, labels.kinds[labels.kind[chunk.index]])
        except DuopldaError:
            _name_rows(part)  # the error names the recordings, not the rows of the chunk
            raise
        yield chunk, X


def _name_rows(part: Recordings, transform: Transform | None = None) -> None:
    """Read the recordings again and raise an error that names those that are not finite or too large, if there are any.

    A transform that has failed on rows in another order is run again in that of the recordings, so that its error names
    the right ones.
    """
    largest = 1e40  # squares of 1e10 such values add up to `accumulate.LARGEST_SUM`
    for chunk in part.chunks():
        size = np.abs(to_numpy(chunk.X)).max(axis=1).astype(np.float64)
        bad = np.flatnonzero(~(size < largest))
        if not len(bad):
            continue
        if isinstance(part, ArrayRecordings):
            check_finite(part.X)
        who = ("rows " if chunk.ids is None else "") + some(chunk.names[bad])
        what = "NaN or infinity"
        remedy = "Remove these recordings, or look at what the extractor did with them (empty or silent audio?)"
        if np.isfinite(size[bad]).all():
            what = f"values too large to add up (up to {size.max():.3g})"
            remedy = "Remove these recordings, or divide all by a number, if this is their scale"
        raise DuopldaError(f"Input X contains {what} in {who}, and perhaps in others. {remedy}")
    if transform is not None:
        labels = part.labels()
        for chunk in part.chunks():
            transform(chunk.X, labels.kinds[to_numpy(labels.kind[chunk.index])])


def _join(pieces: Sequence[Any]) -> Any:
    """Add up statistics; tuples of them are added place by place."""
    if isinstance(pieces[0], tuple):
        return tuple(Statistics.sum(same) for same in zip(*pieces, strict=True))
    return Statistics.sum(pieces)
