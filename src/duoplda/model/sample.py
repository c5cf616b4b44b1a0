"""A bounded sample of recordings, kept beside the statistics of each fold of speakers, for held-out trials.

Which recordings are kept depends on hashes of their labels and of their vectors alone, so that shards, a cluster and
files in any order keep the same ones: the speakers whose ids hash lowest, as many as fit; of each of them the SESSIONS
sessions that hash lowest; of each of these the RECORDINGS recordings whose vectors hash lowest. A part of the data that
keeps its own lowest has all that the whole will keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Array, take, to_numpy
from duoplda.data import labels as lab
from duoplda.data.labels import Ints, Labels
from duoplda.data.recordings import Recordings, places_of
from duoplda.errors import DuopldaError

BYTES = 1 << 26  # of all folds together, at 8 bytes a number
SESSIONS = 16
RECORDINGS = 5
COLUMNS = ("X", "kind", "speaker", "session", "recording")

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Sample:
    """Recordings of some speakers, as they were read, in the order of their hashes."""

    X: NDArray[Any]  # (n, d)
    kind: NDArray[Any]  # (n,) labels of their kinds of channels
    speaker: Hashes  # (n,)
    session: Hashes  # (n,)
    recording: Hashes  # (n,)
    most: int  # recordings that may be kept,
    per_speaker: int = SESSIONS  # sessions of a speaker
    per_session: int = RECORDINGS  # and recordings of a session
    end: int = 1 << 64  # speakers whose ids hash to this or more are left out, as they did not fit

    def __len__(self) -> int:
        return len(self.X)

    def rows(self, index: Ints) -> Sample:
        """Some of the recordings."""
        return replace(self, **{name: getattr(self, name)[index] for name in COLUMNS})

    def without_kinds(self) -> Sample:
        """The same recordings, as if all were of one kind of channel."""
        return replace(self, kind=np.zeros_like(self.kind))

    @staticmethod
    def of(recordings: Recordings, **limits: int) -> Sample:
        """One pass for a sample alone; the limits are those of `Sampler`."""
        return recordings.reduce(partial(_gather, limits=limits), Sample.join, list)[0]

    @staticmethod
    def join(parts: Sequence[Sample]) -> Sample:
        """What the whole of which these are parts keeps."""
        columns: dict[str, Any] = {name: np.concatenate([getattr(p, name) for p in parts]) for name in COLUMNS}
        return replace(parts[0], **columns, end=min(p.end for p in parts)).trimmed()

    def trimmed(self) -> Sample:
        """The recordings that are to be kept, in order."""
        order = np.lexsort((self.recording, self.session, self.speaker))
        order = order[: np.searchsorted(self.speaker[order], np.uint64(min(self.end, (1 << 64) - 1)))]
        keep = order[_rank(self.speaker[order], self.session[order]) < self.per_session]
        speaker = self.speaker[keep]
        session = self.session[keep]
        first = _starts(speaker, session)
        of = np.cumsum(first) - 1  # the session of each recording
        keep = keep[_rank(speaker[first])[of] < self.per_speaker]
        speaker = self.speaker[keep]
        starts = np.append(np.flatnonzero(_starts(speaker)), len(speaker))  # of speakers
        n = int(starts[starts <= self.most][-1])
        end = self.end if n == len(keep) else int(speaker[n])
        return replace(self.rows(keep[:n]), end=end)


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
    """Takes what belongs into the samples of n folds from chunks of recordings, of which it knows all labels."""

    def __init__(
        self,
        labels: Labels,
        d: int,
        n_folds: int,
        seed: int,
        size: int = BYTES,
        per_speaker: int = SESSIONS,
        per_session: int = RECORDINGS,
    ):
        self.most = size // (8 * d * n_folds)
        self.labels = labels
        self.n = n_folds
        self.limits = (self.most, per_speaker, per_session)
        speaker = lab.keys(labels.speaker_ids)
        self.fold = lab.folds(labels.speaker_ids, n_folds, seed)
        self.speaker = speaker
        wanted = self._speakers(speaker)
        of = to_numpy(labels.session_speaker)
        self.sessions = None if labels.session_ids is None else self._session_hashes(wanted[of], of)
        self.wanted = wanted[to_numpy(labels.speaker)]
        if self.sessions is not None:
            chosen = np.flatnonzero(wanted[of])
            order = chosen[np.lexsort((self.sessions[chosen], of[chosen]))]
            kept = np.zeros(labels.n_sessions, bool)
            kept[order[_rank(of[order].astype(np.uint64)) < per_speaker]] = True
            self.wanted &= kept[to_numpy(labels.session)]
        none = np.zeros(0, np.uint64)
        empty = (np.zeros((0, d), np.float32), labels.kinds[:0], none, none, none)
        out = [np.min(speaker[~wanted & (self.fold == fold)], initial=(1 << 64) - 1) for fold in range(n_folds)]
        self.parts = [[Sample(*empty, *self.limits, int(end))] for end in out]

    def _speakers(self, keys: Hashes) -> NDArray[np.bool_]:
        """The speakers who may be kept: each will bring at least a recording of each of its first sessions."""
        n = np.minimum(np.bincount(to_numpy(self.labels.session_speaker), minlength=len(keys)), self.limits[1])
        wanted = np.zeros(len(keys), bool)
        for fold in range(self.n):
            own = np.flatnonzero(self.fold == fold)
            own = own[np.argsort(keys[own])]
            wanted[own[np.cumsum(n[own]) <= self.most]] = True
        return wanted

    def _session_hashes(self, wanted: NDArray[np.bool_], of: Ints) -> Hashes:
        """Hashes of sessions, whether their names stand alone or after the speaker's."""
        out = np.zeros(len(of), np.uint64)
        index = np.flatnonzero(wanted)
        names = np.asarray(self.labels.session_ids)[index]
        if names.dtype.kind in "US":
            prefixes = (f"{name} " for name in self.labels.speaker_ids[of[index]].tolist())
            names = np.array(
                [s.removeprefix(p) for s, p in zip(names.astype(str).tolist(), prefixes, strict=True)], str
            )
        out[index] = lab.mixed(lab.keys(names), self.speaker[of[index]])
        return out

    def add(self, X: Array, index: slice | Ints) -> None:
        """Take what is wanted from rows X, whose places among the labels are in `index`."""
        place = places_of(index)
        rows = np.flatnonzero(self.wanted[place])
        if not len(rows):
            return
        place = place[rows]
        vectors = to_numpy(take(X, rows))
        who = to_numpy(self.labels.speaker)[place]
        recording = _vector_hashes(vectors)
        session = recording if self.sessions is None else self.sessions[to_numpy(self.labels.session)[place]]
        kind = self.labels.kinds[to_numpy(self.labels.kind)[place]]
        whole = Sample(vectors, kind, self.speaker[who], session, recording, *self.limits)
        for fold in np.unique(self.fold[who]).tolist():
            parts = self.parts[fold]
            parts.append(whole.rows(np.flatnonzero(self.fold[who] == fold)))
            if sum(map(len, parts)) > 2 * self.most + 4096:
                self.parts[fold] = [Sample.join(parts)]

    def result(self) -> list[Sample]:
        """The sample of each fold."""
        return [Sample.join(parts) for parts in self.parts]


def _gather(part: Recordings, limits: dict[str, int]) -> tuple[list[Sample], list[Any]]:
    sampler = None
    labels = part.labels().filled
    for chunk in part.chunks():
        sampler = Sampler(labels, chunk.X.shape[1], 1, 0, **limits) if sampler is None else sampler
        sampler.add(chunk.X, chunk.index)
    if sampler is None:
        raise DuopldaError("there are no recordings")
    return sampler.result(), []


def _vector_hashes(X: NDArray[Any]) -> Hashes:
    """A hash of each row's numbers, whatever their precision is."""
    bits = np.ascontiguousarray(X.astype(np.float64) + 0.0).view(np.uint64)
    return lab.mixed(*bits.T) if bits.size else np.zeros(len(X), np.uint64)
