"""Diarisation while people speak: windows come in, and labels and corrections of earlier labels go out.

As soon as a window has waited for the delay, the last minutes are diarised again, in the same way as a recording. This
is a round. Speakers of a round are matched with those of the previous round by the number of windows that they share.
The labels of windows that are older than the memory are final, and only the last of these windows of each speaker are
kept: with them, speakers who come back are recognised.
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

KEPT = 60  # windows of each speaker that are kept after they have become older than the memory


class OnlineLabel(NamedTuple):
    """The speaker of a window from `start` to `end`, and the probability of this speaker.

    `replaces` is the speaker in the label that this one corrects, and "" if the window had no label before.

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

    Use it where labels are needed while people speak. A recording that is complete is better given to `diarize`, which
    does the work once. With a short delay more labels are corrected later, and more time is spent on computing: each
    round takes about as long as diarising `memory` seconds of a recording.

    Parameters
    ----------
    model : the `Backend`, or a `PLDA` for embeddings that need no preprocessing
    known : enrolled voices. Speakers who are taken to be one of them have its name, others are speaker1, speaker2, ...
    known_prior : the probability that a speaker is one of the known voices
    delay : a window gets its label at the latest with a window that ends this many seconds later
    memory : labels of windows up to this many seconds old can still be corrected
    options : parameters of `Diarizer`

    Example
    -------
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
            cause = f"delay={delay!r} and memory={memory!r}"
            raise DuopldaError(f"{cause}: give seconds, from 0 on, and a memory longer than the delay")
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
        self._speaker: Ints = np.empty(0, np.int64)  # of each window, numbered through the stream; -1: no label yet
        self._last_name: list[str] = []  # the speaker in the last label of each window; "": no label yet
        self._n_speakers = 0
        self._new: list[tuple[Floats, float, float]] = []

    def add(self, x: ArrayLike, start: float, end: float) -> list[OnlineLabel]:
        """Take the embedding (d,) of the next window, and return the labels that are new or have changed."""
        row = finite_rows(np.asarray(x, float)[None])
        if row.shape[1] != self._X.shape[1]:
            raise DuopldaError(f"the window has {row.shape[1]} dimensions, but the model takes {self._X.shape[1]}")
        previous = self._new[-1][1:] if self._new else self._times[-1] if len(self._times) else (0.0, 0.0)
        if not (0 <= start < end < np.inf and start >= previous[0] and end >= previous[1]):
            cause = f"the window from {start} to {end} s is empty, or starts or ends earlier than the window before it"
            raise DuopldaError(f"{cause}: give windows in the order of time")
        self._new.append((row[0], float(start), float(end)))
        return self._round() if end - self._new[0][2] >= self.delay else []

    def finish(self) -> list[OnlineLabel]:
        """Return the labels of the windows that have none yet, and the last corrections."""
        return self._round() if self._new else []

    def _round(self) -> list[OnlineLabel]:
        """Diarise all windows that are kept, and return the labels that are new or have changed."""
        rows, start, end = zip(*self._new, strict=True)
        self._new = []
        self._X = np.concatenate([self._X, rows])
        self._times = np.concatenate([self._times, np.column_stack([start, end])])
        self._speaker = np.append(self._speaker, np.full(len(rows), -1))
        self._last_name += [""] * len(rows)
        Z = to_numpy(self._chain.transform(self._X))
        labelled = self._diarizer(self._diagonal, Z, self._X, *self._times.T)
        speaker = self._numbers(labelled.labels)
        names = self._names(Z, labelled.labels)
        labels = []
        self._speaker = speaker[labelled.labels]
        recent = self._recent
        for t, k in enumerate(labelled.labels.tolist()):
            name = names[k] or f"speaker{speaker[k] + 1}"
            if recent[t] and name != self._last_name[t]:
                begin, stop = self._times[t].tolist()
                labels.append(OnlineLabel(begin, stop, name, float(labelled.posterior[t, k]), self._last_name[t]))
                self._last_name[t] = name
        self._forget()
        return labels

    def _numbers(self, labels: Ints) -> Ints:
        """(S,) the number in the stream of each speaker of this round.

        It is that of the earlier speaker with whom the speaker shares windows, matched one to one such that as many
        windows as possible are shared. Speakers without a match get a new number.
        """
        S = int(labels.max()) + 1
        common = np.zeros((S, self._n_speakers))
        labelled_before = self._speaker >= 0
        np.add.at(common, (labels[labelled_before], self._speaker[labelled_before]), 1)
        numbers = np.full(S, -1)
        current, earlier = linear_sum_assignment(-common)
        matched = common[current, earlier] > 0
        numbers[current[matched]] = earlier[matched]
        for k in np.flatnonzero(numbers < 0):
            numbers[k] = self._n_speakers
            self._n_speakers += 1
        return numbers

    def _names(self, Z: Floats, labels: Ints) -> list[str]:
        """The known voice that each speaker is taken to be, and "" for a speaker who is none of them."""
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
        """(T,) whether the label of each window can still be corrected."""
        return self._times[:, 1] > self._times[-1, 1] - self.memory

    def _forget(self) -> None:
        """Drop the windows that are older than the memory, except the last ones of each speaker."""
        keep = self._recent
        for k in np.unique(self._speaker):
            keep[np.flatnonzero(self._speaker == k)[-KEPT:]] = True
        self._X = self._X[keep]
        self._times = self._times[keep]
        self._speaker = self._speaker[keep]
        self._last_name = [name for name, kept in zip(self._last_name, keep, strict=True) if kept]


def final_labels(labels: list[OnlineLabel]) -> dict[tuple[float, float], str]:
    """The speaker of each window (start, end) after all corrections.

    >>> final_labels([OnlineLabel(0, 1, "speaker1", 0.5, ""), OnlineLabel(0, 1, "ann", 0.9, "speaker1")])
    {(0, 1): 'ann'}
    """
    return {(label.start, label.end): label.speaker for label in labels}
