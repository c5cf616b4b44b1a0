"""Diarisation while people speak: windows come in, labels go out, and earlier labels are corrected.

Whenever a window has waited for the delay, the last minutes are diarised again as a recording would be. A speaker is
identified with the speaker of the previous round with whom most windows are shared. Of older windows only the last ones
of each speaker are kept, so that speakers who come back are recognised; the labels of older windows are final.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from duoplda.arrays import to_numpy
from duoplda.diarization.diarizer import Diarizer
from duoplda.diarization.known import known_voices
from duoplda.diarization.vbhmm import Floats, Ints, finite_rows
from duoplda.diarization.windows import new_share
from duoplda.errors import DuopldaError
from duoplda.estimators.backend import Backend
from duoplda.estimators.plda import PLDA
from duoplda.estimators.scoring import chain_of
from duoplda.trials.sides import Sides

KEPT = 60  # windows of each speaker that stay when they are older than the memory


class OnlineLabel(NamedTuple):
    """The speaker of a window, how probable that is, and who was told before: "" where the window is new.

    >>> OnlineLabel(0.0, 1.5, "speaker1", 0.9, "").speaker
    'speaker1'
    """

    start: float
    end: float
    speaker: str
    posterior: float
    replaces: str


class Online:
    """Diarisation of one stream, whose windows come in the order of time.

    Parameters
    ----------
    model : the chain, or the PLDA
    known : enrolled voices, whose names speakers then have; others are speaker1, speaker2, ...
    known_prior : the probability that a speaker is one of the known voices
    delay : in seconds, the longest time between the end of a window and that of the one with which it gets a label
    memory : in seconds, how far back labels are still corrected
    options : parameters of `Diarizer`

    A short delay costs labels that are corrected later, and computing time: each round takes about as long as to
    diarise `memory` seconds.

    >>> plda = PLDA.from_parameters(np.zeros(2), 5 * np.eye(2), None, np.eye(2))
    >>> online = Online(plda, delay=2.0, Fa=1, Fb=1)
    >>> labels = []
    >>> for t, x in enumerate([[9.0, 1.0], [8.5, 0.5], [-3.0, 7.0], [-2.5, 6.5]]):
    ...     labels += online.add(x, t, t + 1)
    >>> labels += online.finish()
    >>> [label.speaker for label in labels]
    ['speaker1', 'speaker1', 'speaker2', 'speaker2']
    """

    def __init__(
        self,
        model: Backend | PLDA,
        *,
        known: Sides | None = None,
        known_prior: float = 0.5,
        delay: float = 10.0,
        memory: float = 300.0,
        **options: Any,
    ):
        if not 0 <= delay < memory < np.inf:
            raise DuopldaError(
                f"delay={delay!r} and memory={memory!r}: both must be seconds, and the memory longer than the delay"
            )
        self.delay = delay
        self.memory = memory
        self._chain = chain_of(model)
        self._diarizer = Diarizer(**options)
        self._diagonal, _ = self._chain.collapsed(one_session=self._diarizer.segments_are == "recordings")
        if known is not None:
            self._chain.check_sides(known)
        self._known = known
        self._known_prior = known_prior
        self._X = np.empty((0, self._chain.n_features_in_))
        self._times = np.empty((0, 2))
        self._speaker: Ints = np.empty(0, np.int64)  # of each window, numbered for the whole stream; -1: not yet
        self._told: list[str] = []
        self._n_speakers = 0
        self._new: list[tuple[Floats, float, float]] = []

    def add(self, x: ArrayLike, start: float, end: float) -> list[OnlineLabel]:
        """Take the embedding (d,) of the next window, and return labels that are new or have changed."""
        row = finite_rows(np.asarray(x, float)[None])
        if row.shape[1] != self._X.shape[1]:
            raise DuopldaError(f"the window has {row.shape[1]} dimensions, the model takes {self._X.shape[1]}")
        before = self._new[-1][1:] if self._new else self._times[-1] if len(self._times) else (0.0, 0.0)
        if not (0 <= start < end < np.inf and start >= before[0] and end >= before[1]):
            raise DuopldaError(f"the window from {start} to {end} s is empty, or does not follow the windows before it")
        self._new.append((row[0], float(start), float(end)))
        return self._round() if end - self._new[0][2] >= self.delay else []

    def finish(self) -> list[OnlineLabel]:
        """Return the labels of the windows that still wait, and the last corrections."""
        return self._round() if self._new else []

    def _round(self) -> list[OnlineLabel]:
        rows, start, end = zip(*self._new, strict=True)
        self._new = []
        self._X = np.concatenate([self._X, rows])
        self._times = np.concatenate([self._times, np.column_stack([start, end])])
        self._speaker = np.append(self._speaker, np.full(len(rows), -1))
        self._told += [""] * len(rows)
        Z = to_numpy(self._chain.transform(self._X))
        labelled = self._diarizer(self._diagonal, Z, self._X, *self._times.T)
        speaker = self._numbers(labelled.labels)
        names = self._names(Z, labelled.labels)
        labels = []
        self._speaker = speaker[labelled.labels]
        recent = self._recent
        for t, k in enumerate(labelled.labels.tolist()):
            name = names[k] or f"speaker{speaker[k] + 1}"
            if recent[t] and name != self._told[t]:
                begin, stop = self._times[t].tolist()
                labels.append(OnlineLabel(begin, stop, name, float(labelled.posterior[t, k]), self._told[t]))
                self._told[t] = name
        self._forget()
        return labels

    def _numbers(self, labels: Ints) -> Ints:
        """(S,) the numbers of speakers in the stream: those with whom they have most windows in common, or new ones."""
        S = int(labels.max()) + 1
        common = np.zeros((S, self._n_speakers))
        old = self._speaker >= 0
        np.add.at(common, (labels[old], self._speaker[old]), 1)
        numbers = np.full(S, -1)
        here, before = linear_sum_assignment(-common)
        same = common[here, before] > 0
        numbers[here[same]] = before[same]
        for k in np.flatnonzero(numbers < 0):
            numbers[k] = self._n_speakers
            self._n_speakers += 1
        return numbers

    def _names(self, Z: Floats, labels: Ints) -> list[str]:
        """The known voice of each speaker, "" where it is none."""
        S = int(labels.max()) + 1
        if self._known is None:
            return [""] * S
        heard = self._chain.plda_.enroll(Z, labels)
        names = known_voices(
            self._chain, heard, self._known, np.zeros(S), discount=new_share(*self._times.T), prior=self._known_prior
        )
        return [voice if named else "" for voice, named in zip(names.voice, names.named, strict=True)]

    @property
    def _recent(self) -> NDArray[np.bool_]:
        """(T,) the windows whose labels are still corrected."""
        return self._times[:, 1] > self._times[-1, 1] - self.memory

    def _forget(self) -> None:
        """Drop windows that are older than the memory, but for the last ones of each speaker."""
        keep = self._recent
        for k in np.unique(self._speaker):
            keep[np.flatnonzero(self._speaker == k)[-KEPT:]] = True
        self._X = self._X[keep]
        self._times = self._times[keep]
        self._speaker = self._speaker[keep]
        self._told = [name for name, kept in zip(self._told, keep, strict=True) if kept]


def final_labels(labels: list[OnlineLabel]) -> dict[tuple[float, float], str]:
    """The speaker of each window (start, end) after all corrections.

    >>> final_labels([OnlineLabel(0, 1, "speaker1", 0.5, ""), OnlineLabel(0, 1, "ann", 0.9, "speaker1")])
    {(0, 1): 'ann'}
    """
    return {(label.start, label.end): label.speaker for label in labels}
