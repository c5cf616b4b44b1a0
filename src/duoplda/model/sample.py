"""A bounded sample of recordings, kept beside the statistics of each fold of speakers, for held-out trials.

Which recordings are kept depends on hashes of their labels and of their vectors alone, so that shards, a cluster and
files in any order keep the same ones: as many speakers as fit, those whose ids hash lowest; a few sessions of each of
them, and a few recordings of each of these, again those that hash lowest. What the whole data keep of a part is among
what the part by itself keeps, so that parts can be sampled apart and joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Array, take, to_numpy
from duoplda.data import labels as lab
from duoplda.data.labels import Ints, Labels
from duoplda.data.recordings import Recordings, places_of
from duoplda.errors import DuopldaError

Hashes = NDArray[np.uint64]


class SampleLimits(NamedTuple):
    """How much is kept: a few recordings suffice, as trials enrol three sessions at most and test as many others."""

    n_bytes: int = 1 << 26  # of the samples of all folds together, with 8 bytes for each number
    per_speaker: int = 16  # sessions of a speaker
    per_session: int = 5  # recordings of a session


FOLD_SAMPLE = SampleLimits()  # of the samples beside statistics
SESSIONS_WITH_OCCASIONS = 64  # of a speaker: only large sets of sessions show what those of one occasion share


@dataclass(frozen=True, eq=False)
class Sample:
    """Recordings of some speakers, as they were read, in the order of their hashes."""

    X: NDArray[Any]  # (n, d)
    kind: NDArray[Any]  # (n,) labels of their kinds of channels
    speaker: Hashes  # (n,)
    session: Hashes  # (n,)
    recording: Hashes  # (n,)
    max_recordings: int  # the most that may be kept
    limits: SampleLimits = FOLD_SAMPLE
    end: int = 1 << 64  # speakers whose ids hash to this or more are left out, as they did not fit
    occasion: Hashes | None = None  # (n,) of the day, the call or the file; None where these have no labels

    def __len__(self) -> int:
        return len(self.X)

    def columns(self) -> dict[str, Any]:
        """The arrays with an entry for each recording, by name."""
        columns: dict[str, Any] = {"X": self.X, "kind": self.kind, "speaker": self.speaker, "session": self.session}
        columns["recording"] = self.recording
        return columns if self.occasion is None else columns | {"occasion": self.occasion}

    def rows(self, index: Ints) -> Sample:
        """Some of the recordings."""
        return replace(self, **{name: column[index] for name, column in self.columns().items()})

    def trimmed(self, limits: SampleLimits) -> Sample:
        """The sample that would have been kept without labels of occasions, with which more sessions are kept."""
        if self.occasion is None:
            return self
        return Sample.join([replace(self, limits=limits, occasion=None)])

    def without_kinds(self) -> Sample:
        """The same recordings, as if all were of one kind of channel."""
        return replace(self, kind=np.zeros_like(self.kind))

    @staticmethod
    def of(recordings: Recordings, limits: SampleLimits) -> Sample:
        """Take one sample in a pass over recordings, without folds and statistics."""
        return recordings.reduce(partial(_gather, limits=limits), Sample.join, list)[0]

    @staticmethod
    def join(parts: Sequence[Sample]) -> Sample:
        """The sample of data that consist of the data of some samples."""
        columns = [part.columns() for part in parts]
        common = [name for name in columns[0] if all(name in part for part in columns)]  # parts may lack the occasion
        joined: dict[str, Any] = {name: np.concatenate([part[name] for part in columns]) for name in common}
        joined["end"] = min(part.end for part in parts)
        whole = replace(parts[0], **{"occasion": None, **joined})
        order = np.lexsort((whole.recording, whole.session, whole.speaker))
        order = order[: np.searchsorted(whole.speaker[order], np.uint64(min(whole.end, (1 << 64) - 1)))]
        keep = order[_rank(whole.speaker[order], whole.session[order]) < whole.limits.per_session]
        speaker = whole.speaker[keep]
        first = _starts(speaker, whole.session[keep])
        session = np.cumsum(first) - 1  # of each recording, as a number from 0
        keep = keep[_rank(speaker[first])[session] < whole.limits.per_speaker]
        speaker = whole.speaker[keep]
        edges = np.append(np.flatnonzero(_starts(speaker)), len(speaker))  # between speakers
        n = int(edges[edges <= whole.max_recordings][-1])
        end = whole.end if n == len(keep) else int(speaker[n])
        return replace(whole.rows(keep[:n]), end=end)


def few(recordings: Recordings, n: int) -> NDArray[Any]:
    """(m, d) at most n recordings, whatever their labels: those whose vectors hash lowest, in that order.

    >>> X = np.arange(12.0).reshape(6, 2)
    >>> sample = few(Recordings.from_arrays(X), 3)
    >>> sample.shape, bool((few(Recordings.from_arrays(X[::-1]), 3) == sample).all())
    ((3, 2), True)
    """
    vectors, hashes = zip(*recordings.map(partial(_lowest, n=n)), strict=True)
    order = np.argsort(np.concatenate(hashes), kind="stable")[:n]
    return np.concatenate(vectors)[order]


def _lowest(part: Recordings, n: int) -> Iterator[tuple[NDArray[Any], Hashes]]:
    """The n vectors of each chunk that hash lowest, in that order, and their hashes."""
    for chunk in part.vectors():
        vectors = to_numpy(chunk.X)
        hashes = _hash_vectors(vectors)
        order = np.argsort(hashes, kind="stable")[:n]
        yield vectors[order], hashes[order]


def _hash_vectors(vectors: NDArray[Any]) -> Hashes:
    """A hash of each row's numbers, whatever their precision is."""
    bits = np.ascontiguousarray(vectors.astype(np.float64) + 0.0).view(np.uint64)  # adding 0 makes -0 the same as 0
    return lab.mixed(*bits.T) if bits.size else np.zeros(len(vectors), np.uint64)


def _starts(*columns: Hashes) -> NDArray[np.bool_]:
    """Which rows of sorted columns differ from the row before."""
    new = np.ones(len(columns[0]), bool)
    if len(new):
        new[1:] = np.any([c[1:] != c[:-1] for c in columns], axis=0)
    return new


def _rank(*columns: Hashes) -> Ints:
    """The place of each row among the rows that are equal to it, in sorted columns."""
    start = np.flatnonzero(_starts(*columns))
    return np.arange(len(columns[0])) - np.repeat(start, np.diff(np.append(start, len(columns[0]))))


class Sampler:
    """Takes samples of n folds from chunks of recordings, whose labels are all known before."""

    def __init__(self, labels: Labels, d: int, n_folds: int, seed: int, limits: SampleLimits = FOLD_SAMPLE):
        if labels.occasion is not None:
            limits = limits._replace(per_speaker=max(limits.per_speaker, SESSIONS_WITH_OCCASIONS))
        self.labels = labels
        self.limits = limits
        self.n_folds = n_folds
        self.max_recordings = limits.n_bytes // (8 * d * n_folds)
        self.speaker_hash = lab.keys(labels.speaker_ids)
        self.fold = lab.folds(labels.speaker_ids, n_folds, seed)
        session_speaker = to_numpy(labels.session_speaker)
        # Speakers who may be kept: all that fit if each brings only one recording of each of its first sessions.
        n_speakers = len(self.speaker_hash)
        n = np.minimum(np.bincount(session_speaker, minlength=n_speakers), limits.per_speaker)
        wanted = np.zeros(n_speakers, bool)
        for fold in range(n_folds):
            members = np.flatnonzero(self.fold == fold)
            members = members[np.argsort(self.speaker_hash[members])]
            wanted[members[np.cumsum(n[members]) <= self.max_recordings]] = True
        self.wanted = wanted[to_numpy(labels.speaker)]  # by recording
        self.occasion_hash = None if labels.occasion_ids is None else lab.keys(labels.occasion_ids)
        self.session_hash: Hashes | None = None  # of each session, where they have names
        if labels.session_ids is not None:
            candidates = np.flatnonzero(wanted[session_speaker])
            self.session_hash = self._hash_sessions(candidates, session_speaker)
            order = candidates[np.lexsort((self.session_hash[candidates], session_speaker[candidates]))]
            kept = np.zeros(labels.n_sessions, bool)
            kept[order[_rank(session_speaker[order].astype(np.uint64)) < limits.per_speaker]] = True
            self.wanted &= kept[to_numpy(labels.session)]
        nobody = np.zeros(0, np.uint64)
        occasion = None if labels.occasion is None else nobody
        empty = np.zeros((0, d), np.float32), labels.kinds[:0], nobody, nobody, nobody
        self.parts: list[list[Sample]] = []  # by fold
        for fold in range(n_folds):
            end = int(np.min(self.speaker_hash[~wanted & (self.fold == fold)], initial=(1 << 64) - 1))
            self.parts.append([Sample(*empty, self.max_recordings, limits, end, occasion)])

    def _hash_sessions(self, index: Ints, session_speaker: Ints) -> Hashes:
        """(H,) hashes of the sessions at `index`, 0 elsewhere; their names may begin with the speaker's or not."""
        hashes = np.zeros(len(session_speaker), np.uint64)
        speaker = session_speaker[index]
        names = np.asarray(self.labels.session_ids)[index]
        if names.dtype.kind in "US":
            prefixes = [f"{name} " for name in self.labels.speaker_ids[speaker].tolist()]
            pairs = zip(names.astype(str).tolist(), prefixes, strict=True)
            names = np.array([name.removeprefix(prefix) for name, prefix in pairs], str)
        hashes[index] = lab.mixed(lab.keys(names), self.speaker_hash[speaker])
        return hashes

    def add(self, X: Array, index: slice | Ints) -> None:
        """Add those of the rows X that belong into the samples; their labels are at `index`."""
        place = places_of(index)
        rows = np.flatnonzero(self.wanted[place])
        if not len(rows):
            return
        place = place[rows]
        vectors = to_numpy(take(X, rows))
        speaker = to_numpy(self.labels.speaker)[place]
        recording = _hash_vectors(vectors)
        session = recording
        if self.session_hash is not None:
            session = self.session_hash[to_numpy(self.labels.session)[place]]
        kind = self.labels.kinds[to_numpy(self.labels.kind)[place]]
        hashes = (self.speaker_hash[speaker], session, recording)
        occasion = None
        if self.occasion_hash is not None:
            occasion = self.occasion_hash[to_numpy(self.labels.occasion)[place]]
        chunk = Sample(vectors, kind, *hashes, self.max_recordings, self.limits, occasion=occasion)
        for fold in np.unique(self.fold[speaker]).tolist():
            parts = self.parts[fold]
            parts.append(chunk.rows(np.flatnonzero(self.fold[speaker] == fold)))
            # Joining sorts: it waits until as many rows again have come, so that it takes little of the time.
            if sum(map(len, parts)) > 2 * self.max_recordings + 4096:
                self.parts[fold] = [Sample.join(parts)]

    def result(self) -> list[Sample]:
        """The sample of each fold."""
        return [Sample.join(parts) for parts in self.parts]


def _gather(part: Recordings, limits: SampleLimits) -> tuple[list[Sample], list[Any]]:
    """The sample of a part of the recordings, as `Recordings.reduce` takes it."""
    sampler = None
    labels = part.labels().filled
    for chunk in part.chunks():
        if sampler is None:
            sampler = Sampler(labels, chunk.X.shape[1], 1, 0, limits)
        sampler.add(chunk.X, chunk.index)
    if sampler is None:
        raise DuopldaError("there are no recordings")
    return sampler.result(), []
