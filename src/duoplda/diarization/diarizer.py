"""Who speaks when: the windows of each file become turns of its speakers, and speakers are linked across files.

A file's windows go through the chain (`Backend.transform`) into the space where windows of one speaker differ by I and
speakers by diag(phi) (`latent`). There they get their first labels, from which `vb_hmm` finds speakers and changes;
windows of one speaker that follow each other become a turn.

Which covariances I and diag(phi) stand for depends on what the sessions of the training data were:

    segments are sessions      speakers differ by VV',         segments by UU' + W^-1
    segments are recordings    speakers differ by VV' + UU',   segments by W^-1

Windows that overlap repeat each other. A window of a file counts as the share rho ("discount") of an independent one,
for the evidence and for the prior. Unless the user sets it, it is the share of the windows' time that is new:

    rho = (seconds that windows cover) / (seconds of all windows),    about hop / length
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from duoplda.arrays import Array, to_numpy
from duoplda.data import Recordings
from duoplda.data import labels as lab
from duoplda.diarization.first_labels import centroid_labels, cosine_labels, numbered, ratio_labels
from duoplda.diarization.linking import SEGMENT_LEVELS, link_speakers
from duoplda.diarization.rttm import Turns
from duoplda.diarization.segments import Segments
from duoplda.diarization.vbhmm import Floats, Ints, latent, smoothed, vb_hmm
from duoplda.diarization.windows import OnMissing, as_turns, embeddings_of, new_share, rows_by_file
from duoplda.errors import DuopldaError, error_prefix, some
from duoplda.estimators.backend import Backend
from duoplda.estimators.plda import PLDA
from duoplda.estimators.scoring import chain_of
from duoplda.io import DiagonalModel

SMOOTHING = {"ratios": 5.0, "vbx": 5.0, "pyannote": 7.0}  # start -> `amount` of `smoothed`, as VBx and pyannote have it


@dataclass(frozen=True, eq=False)
class Diarizer:
    """How the windows of one file are given to speakers: the options of `diarize`, checked once.

    Parameters
    ----------
    start : how the first labels are found.
        "ratios": windows are merged by exact likelihood ratios while the posterior of the partition rises
        (`PLDA.cluster`). "vbx": by cosines and average linkage, as VBx does. "pyannote": by the distances of
        centroids of the embeddings before any preprocessing, as pyannote 4 does
    refine : how the first labels are improved. "vbx": by the HMM; "gmm": by the same model without the order of time,
        as in pyannote 4; None: not at all
    Fa, Fb, loop : scale of the evidence, cost of a speaker and probability to stay (see `vb_hmm`); the defaults are
        those of VBx's example
    discount : the share rho of an independent window that a window counts for in "ratios" and in linking; None: the
        share of the windows' time that is new
    prior : for "ratios", the probability that two windows of a file are of one speaker, such as 1/4 where four people
        speak equally long
    n_speakers, min_speakers, max_speakers : how many speakers a file has, if that is known
    segments_are : "sessions" or "recordings", what a segment of a file was in training
    n_dimensions : use only the dimensions in which speakers differ most; None: all
    bias : for "vbx", added to the threshold that is found on the file (VBx's `--threshold`)
    threshold : for "pyannote", the distance up to which clusters merge

    Example
    -------
    >>> from duoplda.io import Coded
    >>> plda = PLDA.from_parameters(np.zeros(2), 5 * np.eye(2), None, np.eye(2))
    >>> segments = Segments(np.array(["a", "b"]), Coded.of(["f", "f"]), np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    >>> options = {"Fa": 1, "Fb": 1}
    >>> Diarizer(**options).start, diarize(plda, [[9.0, 1.0], [-3.0, 7.0]], segments, **options).speaker.values.tolist()
    ('ratios', ['f-1', 'f-2'])
    """

    start: str = "ratios"
    refine: str | None = "vbx"
    Fa: float = 0.3
    Fb: float = 17.0
    loop: float = 0.99
    discount: float | None = None
    prior: float = 0.25
    n_speakers: int | None = None
    min_speakers: int | None = None
    max_speakers: int | None = None
    segments_are: str = "sessions"
    n_dimensions: int | None = None
    bias: float = -0.015
    threshold: float = 0.6

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("start", self.start, (*SMOOTHING,)),
            ("refine", self.refine, ("vbx", "gmm", None)),
            ("segments_are", self.segments_are, SEGMENT_LEVELS),
        ):
            if value not in allowed:
                raise DuopldaError(f"{name}={value!r} must be one of {some(allowed)}")
        if not 0 <= self.loop <= 1:
            raise DuopldaError(f"loop={self.loop!r} must be a probability")
        if self.discount is not None and not 0 < self.discount <= 1:
            raise DuopldaError(f"discount={self.discount!r} must be greater than 0 and at most 1, or None")
        if self.n_speakers is not None and (self.min_speakers, self.max_speakers) != (None, None):
            raise DuopldaError("give either n_speakers, or min_speakers and max_speakers")
        low, high = self.limits
        if not 1 <= low <= high:
            raise DuopldaError(f"at least {low} and at most {high} speakers: these must be from 1 on, in this order")

    @property
    def limits(self) -> tuple[int, float]:
        """The fewest and the most speakers of a file."""
        if self.n_speakers is not None:
            return self.n_speakers, self.n_speakers
        low = 1 if self.min_speakers is None else self.min_speakers
        high = np.inf if self.max_speakers is None else self.max_speakers
        return low, high

    def __call__(self, model: DiagonalModel, Z: Array, X: Array, rho: float, first: ArrayLike | None = None) -> Ints:
        """(T,) the speakers of the windows of one file, which are in the order of time.

        If the first labels have fewer speakers than they must have, "ratios" finds others. If the HMM leaves too few,
        it is run again with half the cost `Fb` of a speaker, and so on; if that does not help, the first labels are
        the answer. If too many are left, they are merged by ratios.

        Parameters
        ----------
        model : the first of the two that `Backend.collapsed` gives
        Z, X : (T, k), (T, d) windows after preprocessing, and before it
        rho : the share of an independent window that each counts for
        first : (T,) first labels, instead of those that `start` finds
        """
        rows, phi = latent(Z, model, self.n_dimensions)
        low, high = self.limits
        if first is not None:
            labels = numbered(first)
        elif self.start == "vbx":
            labels = cosine_labels(Z, self.bias)
        elif self.start == "pyannote":
            labels = centroid_labels(X, self.threshold)
        else:
            labels = ratio_labels(rows, phi, rho, self.prior, min_speakers=low)
        if len(np.unique(labels)) < low:
            labels = ratio_labels(rows, phi, rho, self.prior, min_speakers=low)
        if self.refine is not None:
            labels = self._refined(rows, phi, labels)
        speakers, codes = np.unique(labels, return_inverse=True)
        if len(speakers) <= high:
            return labels
        limits = {"min_speakers": low, "max_speakers": int(high)}
        return ratio_labels(rows, phi, rho, self.prior, codes, **limits)[codes]

    def _refined(self, rows: Floats, phi: Floats, labels: Ints) -> Ints:
        """Labels of the HMM, or of the mixture, that starts from these; the same labels if it drops too many."""
        start = smoothed(labels, SMOOTHING[self.start])
        loop = self.loop if self.refine == "vbx" else None
        for halvings in range(13):  # a speaker then costs Fb / 4096, next to nothing
            refined = vb_hmm(rows, phi, start, Fa=self.Fa, Fb=self.Fb / 2**halvings, loop=loop).labels
            if len(np.unique(refined)) >= self.limits[0]:
                return refined
        return labels


def diarize(
    model: Backend | PLDA,
    recordings: ArrayLike | Recordings,
    segments: Segments,
    *,
    start: str | ArrayLike = "ratios",
    link: bool = False,
    link_prior: float = 0.02,
    cannot_link_within: bool = False,
    absent: OnMissing | None = None,
    **options: Any,
) -> Turns:
    """Find who speaks when in each file.

    Each window goes to one speaker, so overlapped speech is missed. The number of speakers is found, and on a single
    file it can be wrong: pass `n_speakers` where it is known. The embeddings of all segments are held in memory.

    Parameters
    ----------
    model : the chain, or the PLDA
    recordings : embeddings (n, d) of the segments, in their order; or `Recordings` whose ids are those of the segments
    segments : windows of files, as `read_segments` gives them. They may overlap, but none may lie within another one
    start : "ratios", "vbx" or "pyannote" (see `Diarizer`), or (n,) first labels of the segments, which count
        within their file
    link : find the same speakers in different files; names are then those of `PLDA.cluster`, and otherwise those of a
        file's speakers, in the order in which they first speak, such as "file-1"
    link_prior : the probability that two speakers of different files are one person
    cannot_link_within : with `link`, never link two speakers of one file
    absent : called with a text and the ids of segments without embeddings, or of embeddings without segments, if there
        are any; these are then left out. With None they are an error (`MissingIds`)
    options : the other parameters of `Diarizer`

    Examples
    --------
    >>> from duoplda.io import Coded
    >>> plda = PLDA.from_parameters(np.zeros(2), 5 * np.eye(2), None, np.eye(2))
    >>> X = np.array([[9.0, 1.0], [8.5, 0.5], [-3.0, 7.0], [-2.5, 6.5], [9.0, 0.0]])
    >>> begin = np.arange(5.0)
    >>> segments = Segments(np.array(list("abcde")), Coded.of(["f"] * 5), begin, begin + 1)
    >>> turns = diarize(plda, X, segments, Fa=1, Fb=1)
    >>> turns.speaker.values.tolist(), turns.start.tolist(), turns.end.tolist()
    (['f-1', 'f-2', 'f-1'], [0.0, 2.0, 4.0], [2.0, 4.0, 5.0])
    """
    chain = chain_of(model)
    diarizer = Diarizer(start=start, **options) if isinstance(start, str) else Diarizer(**options)
    if cannot_link_within and not link:
        raise DuopldaError("cannot_link_within=True has a meaning only with link=True")
    if not len(segments):
        raise DuopldaError("there are no segments: give windows of speech, at least one")
    first = None if isinstance(start, str) else lab.as_ids(start, "start", len(segments))
    X, present = embeddings_of(recordings, segments, absent)
    X = X[present]
    segments = segments[present]
    first = None if first is None else first[present]
    diagonal, _ = chain.collapsed(one_session=diarizer.segments_are == "recordings")
    Z = np.empty((len(X), chain.plda_.n_features_in_))
    rho = np.empty(len(X))
    speaker = np.empty(len(X), np.int64)  # of all files, numbered through
    names: list[str] = []
    for file, rows in rows_by_file(segments):
        with error_prefix(f"file {file}"):
            Z[rows] = to_numpy(chain.transform(X[rows]))
            share = diarizer.discount or new_share(segments.start[rows], segments.end[rows])
            labels = diarizer(diagonal, Z[rows], X[rows], share, None if first is None else first[rows])
        rho[rows] = share
        labels = numbered(labels)
        speaker[rows] = len(names) + labels
        names += [f"{file}-{k + 1}" for k in range(labels.max() + 1)]
    who = np.array(names)[speaker]
    if link:
        apart = segments.file.codes if cannot_link_within else None
        level = diarizer.segments_are
        who = link_speakers(chain, Z, who, file=apart, discount=rho, segments_are=level, prior=link_prior)
    return as_turns(segments, who)
