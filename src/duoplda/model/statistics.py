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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Array, add_rows, check_rows, gram, namespace, on_device, put, zeros
from duoplda.data import labels as lab
from duoplda.data.labels import Ints, Labels
from duoplda.errors import DuopldaError, some
from duoplda.model.accumulate import Folds, Gathered, TypeBlock, add_scatters

__all__ = ["Statistics", "TypeBlock", "as_labels"]

PRECISIONS = ("double", "single")


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
    sessions: NDArray[Any] | None  # ids of the sessions, hashes (uint64) of those that are no integers
    folds: tuple[Statistics, ...] = ()  # the same by fold of speakers, where asked for; they add up to the whole
    seed: int = 0  # of the folds

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        speaker: Any,
        session: Any = None,
        channel: Any = None,
        *,
        n_folds: int = 0,
        seed: int = 0,
        device: str | None = None,
        precision: str = "double",
    ) -> Statistics:
        """One pass over labelled recordings `X` (N, d).

        Parameters
        ----------
        X, speaker, session, channel : recordings (N, d) and their labels (N,)
        n_folds, seed : split speakers by a hash of their ids, and keep the parts too, for held-out speakers
        device : a device of torch ("cuda") through which recordings of the host are streamed in blocks, so that they
            need not fit there; tensors are used where they are
        precision : "single": differences within sessions of float32 recordings are squared in single precision, block
            by block, and only added in double: faster, and exact to about 1e-7 of the variances. Not for embeddings
            with directions of (nearly) no variance.
        """
        X, _ = check_rows(X)
        single = _single(precision)
        like = X if device is None or namespace(X) is not np else on_device(X[: min(4096, len(X))], device)
        labels = lab.encode(speaker, session, channel, X.shape[0], like)
        sums = Folds(labels, like, n_folds, seed, single=single)
        sums.add_all(X)
        return cls.of(sums.result(lambda: X))

    @classmethod
    def accumulate(
        cls, chunks: Iterable[Any], labels: Any, *, n_folds: int = 0, seed: int = 0, precision: str = "double"
    ) -> Statistics:
        """The same from chunks, read once; sessions may be split between chunks, and are closed when complete.

        `labels` is `(speaker, session)`, `(speaker, session, channel)`, a mapping of those names, or `Labels`, for all
        recordings in the order in which the chunks bring them. A chunk is an array of rows.
        """
        labels = as_labels(labels)
        sums: Folds | None = None
        row, single = 0, _single(precision)
        for chunk in chunks:
            X, _ = check_rows(chunk)
            if sums is None:
                sums = Folds(labels, X, n_folds, seed, single=single)
            if X.shape[1] != sums.d:
                raise DuopldaError(f"a chunk that begins at row {row} has {X.shape[1]} columns, the first had {sums.d}")
            if row + X.shape[0] > labels.n_recordings:
                raise DuopldaError(f"the chunks bring more rows than the {labels.n_recordings} that have labels")
            sums.add(X, row)
            row += X.shape[0]
        if sums is None or row < labels.n_recordings:
            raise DuopldaError(f"the chunks brought {row} rows, {labels.n_recordings} have labels")
        return cls.of(sums.result())

    @classmethod
    def of(cls, g: Gathered) -> Statistics:
        """What a pass has gathered."""
        return cls(**{**g._asdict(), "folds": tuple(cls.of(f) for f in g.folds)})

    @classmethod
    def from_folds(cls, folds: Iterable[Statistics], seed: int) -> Statistics:
        """The whole of folds that were gathered and added apart; they then share its sums of speakers."""
        folds = list(folds)
        kinds = np.unique(np.concatenate([f.kinds for f in folds]))
        folds = [f._relabel(f.speaker_ids, kinds)._move(folds[0].offset) for f in folds]
        speaker_ids = np.concatenate([f.speaker_ids for f in folds])
        order = np.argsort(speaker_ids)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        start = np.cumsum([0, *(len(f.speaker_ids) for f in folds)])
        blocks: list[TypeBlock] = []
        own: list[list[TypeBlock]] = [[] for _ in folds]
        for t in sorted({tuple(b.counts.tolist()) for f in folds for b in f.blocks}):
            of = [(i, b) for i, f in enumerate(folds) for b in f.blocks if tuple(b.counts.tolist()) == t]
            A = namespace(folds[0].offset).concat([b.A for _, b in of], axis=0)
            speaker = np.concatenate([place[start[i] + b.speaker] for i, b in of])
            n, at = np.concatenate([b.n for _, b in of]), 0
            for i, b in of:
                own[i].append(replace(b, A=A[at : at + len(b.n), :]))
                at += len(b.n)
            blocks.append(TypeBlock(of[0][1].counts, speaker, n, A, add_scatters([b for _, b in of])))
        parts = tuple(replace(f, blocks=tuple(b)) for f, b in zip(folds, own, strict=True))
        named = [f.session_keys for f in folds if f.session_keys is not None]
        return cls(
            folds[0].offset,
            kinds,
            speaker_ids[order],
            np.concatenate([f.weights for f in folds])[order],
            tuple(blocks),
            sum((f.within for f in folds[1:]), folds[0].within),
            np.concatenate(named) if named else None,
            parts,
            seed,
        )

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

    @cached_property
    def session_keys(self) -> NDArray[np.uint64] | None:
        """Hashes of the sessions' ids: a session must not be added twice."""
        return None if self.sessions is None else lab.keys(self.sessions)

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
            np.concatenate(keys) if keys else None,
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
        if self.offset is offset or bool(xp.all(self.offset == offset)):
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
    return TypeBlock(a.counts, speaker, n, A, add_scatters([a, b]))


def _single(precision: str) -> bool:
    if precision not in PRECISIONS:
        raise DuopldaError(f"precision={precision!r} must be one of {', '.join(PRECISIONS)}")
    return precision == "single"


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
