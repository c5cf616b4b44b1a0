"""Who speaks when: the windows of each file become turns of its speakers, and speakers are linked across files.

A file's windows go through the chain (`Backend.transform`) into the space where windows of one speaker differ by I and
speakers by diag(phi) (`latent`). There they get their first labels, from which `vb_hmm` finds speakers and
changes; windows of one speaker that follow each other become a turn.

Which covariances I and diag(phi) stand for depends on what the sessions of the training data were:

    segments are sessions      speakers differ by VV',         segments by UU' + W^-1
    segments are recordings    speakers differ by VV' + UU',   segments by W^-1

Windows that overlap say some things twice. A window of a file counts as the share rho ("discount") of an independent
one, for the evidence and for the prior. Unless given, it is the share of the windows' time that is new:

    rho = (seconds that windows cover) / (seconds of all windows),    about hop / length
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import check_finite, check_rows, to_numpy
from duoplda.data import Recordings
from duoplda.data import labels as lab
from duoplda.data.labels import Ints
from duoplda.diarization.rttm import Turns
from duoplda.diarization.segments import Segments
from duoplda.diarization.vbhmm import centroid_labels, cosine_labels, latent, smoothed, turns, vb_hmm
from duoplda.errors import DuopldaError, MissingIds, some
from duoplda.estimators.backend import Backend
from duoplda.estimators.clustering import unscaled
from duoplda.estimators.plda import PLDA
from duoplda.estimators.scoring import chain_of
from duoplda.evaluation.metrics import named
from duoplda.io import DiagonalModel

Floats = NDArray[np.float64]
Absent = Callable[[str, NDArray[Any]], Any]  # gets what is missing, in words, and the ids

SMOOTHING = {"ratios": 5.0, "vbx": 5.0, "pyannote": 7.0}  # of the first labels, by how they are found
HALVED = 12  # times at most, the cost of a speaker where there must be more of them
LEVELS = ("sessions", "recordings")


@dataclass(frozen=True, eq=False)
class Diarizer:
    """How the windows of one file are given to speakers.

    Parameters
    ----------
    start : how the first labels are found.
        "ratios": windows are merged by exact likelihood ratios while the posterior of the partition rises
        (`PLDA.cluster`). "vbx": by cosines and average linkage, as VBx does. "pyannote": by the distances of
        centroids of the embeddings as they were given, as pyannote 4 does
    refine : "vbx": the HMM; "gmm": the same without an order of time, as in pyannote 4; None: the first labels stay
    Fa, Fb, loop : of the HMM (see `vb_hmm`); the defaults are those of VBx's own example
    discount : the share rho of an independent window that a window counts for in "ratios" and in linking; None: the
        share of the windows' time that is new (`new_share`)
    prior : of "ratios": the probability that two windows of a file are of one speaker, such as 1/4 where four people
        speak equally long
    n_speakers, min_speakers, max_speakers : how many speakers a file has, if that is known
    segments_are : "sessions" or "recordings", what a segment of a file was in training
    n_dimensions : use the dimensions in which speakers differ most; None: all
    bias : of "vbx": added to the threshold that is found (VBx's `--threshold`)
    threshold : of "pyannote": the distance up to which clusters merge

    Example
    -------
    >>> from duoplda.io import Coded
    >>> plda = PLDA.from_parameters(np.zeros(2), 5 * np.eye(2), None, np.eye(2))
    >>> segments = Segments(np.array(["a", "b"]), Coded.of(["f", "f"]), np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    >>> options = {"Fa": 1, "Fb": 1}  # of Diarizer, which `diarize` makes of them
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
        words = {"start": (*SMOOTHING,), "refine": ("vbx", "gmm", None), "segments_are": LEVELS}
        for name, allowed in words.items():
            if (value := getattr(self, name)) not in allowed:
                raise DuopldaError(f"{name}={value!r} must be one of {some(allowed)}")
        if not 0 <= self.loop <= 1:
            raise DuopldaError(f"loop={self.loop!r} must be a probability")
        if self.discount is not None and not 0 < self.discount <= 1:
            raise DuopldaError(f"discount={self.discount!r} must be greater than 0 and at most 1, or None")
        if self.n_speakers is not None and (self.min_speakers, self.max_speakers) != (None, None):
            raise DuopldaError("n_speakers says it all: leave out min_speakers and max_speakers")
        low, high = self.limits
        if not 1 <= low <= high:
            raise DuopldaError(f"at least {low} and at most {high} speakers: these must be from 1 on, in this order")

    @property
    def limits(self) -> tuple[float, float]:
        """The fewest and the most speakers of a file."""
        n = self.n_speakers
        low, high = (self.min_speakers, self.max_speakers) if n is None else (n, n)
        return 1 if low is None else low, np.inf if high is None else high

    def rho(self, start: Floats, end: Floats) -> float:
        """What a window of a file counts for."""
        return new_share(start, end) if self.discount is None else self.discount

    def __call__(self, model: DiagonalModel, Z: Any, X: Any, rho: float, first: Any = None) -> Ints:
        """(T,) the speakers of the windows of one file, in the order of time.

        Parameters
        ----------
        model : of `Backend.collapsed`
        Z, X : (T, k), (T, d) windows after preprocessing, and before it
        rho : what each counts for
        first : (T,) first labels, instead of those that `start` finds

        Limits to the number of speakers: where the first labels have too few, "ratios" finds them; where the HMM
        leaves too few, it is run again with half the cost `Fb` of a speaker, and so on, and in the end the first
        labels stay; where too many are left, they are merged by ratios.
        """
        rows, phi = latent(Z, model, self.n_dimensions)
        low, high = self.limits
        labels = self._first_labels(rows, phi, Z, X, rho) if first is None else _in_order(np.asarray(first))
        if _number(labels) < low:
            labels = self._by_ratios(rows, phi, rho, min_speakers=low)
        found = self._refined(rows, phi, labels) if self.refine else labels
        if _number(found) <= high:
            return found
        codes = np.unique(found, return_inverse=True)[1]
        return self._by_ratios(rows, phi, rho, codes, min_speakers=low, max_speakers=high)[codes]

    def _first_labels(self, rows: Floats, phi: Floats, Z: Any, X: Any, rho: float) -> Ints:
        if self.start == "ratios":
            return self._by_ratios(rows, phi, rho, min_speakers=self.limits[0])
        return cosine_labels(Z, self.bias) if self.start == "vbx" else centroid_labels(X, self.threshold)

    def _by_ratios(self, rows: Floats, phi: Floats, rho: float, groups: Ints | None = None, **limits: Any) -> Ints:
        """Merge windows, or groups of them, by exact ratios; moving single windows afterwards is left to the HMM.

        A window counts rho for the prior, too: gain = Q(rho a + rho b) - Q(rho a) - Q(rho b) + rho (that of the prior).
        """
        own = np.flatnonzero(phi > 1e-12 * phi.max(initial=0))
        if not len(own):
            raise DuopldaError("the model has no variance between speakers: there is nothing to tell them apart by")
        plda = PLDA.from_parameters(np.zeros(len(own)), np.diag(np.sqrt(phi[own])), None, np.eye(len(own)))
        items = rows[:, own] if groups is None else plda.enroll(rows[:, own], groups)
        options: dict[str, Any] = {"prior": self.prior, "weight": 1 / rho, "discount": rho, "refine": False}
        return plda.cluster(items, **options, **limits).labels

    def _refined(self, rows: Floats, phi: Floats, labels: Ints) -> Ints:
        start = smoothed(labels, SMOOTHING[self.start])
        loop = self.loop if self.refine == "vbx" else None
        for halved in range(HALVED + 1):
            found = vb_hmm(rows, phi, start, Fa=self.Fa, Fb=self.Fb / 2**halved, loop=loop).labels
            if _number(found) >= self.limits[0]:
                return found
        return labels


def _number(labels: Ints) -> int:
    return len(np.unique(labels))


def new_share(start: Any, end: Any) -> float:
    """The seconds that the windows of a file cover, as a share of the seconds of all windows.

    >>> new_share([0.0, 0.5, 1.0, 9.0], [1.0, 1.5, 2.0, 10.0])
    0.75
    """
    order = np.argsort(start, kind="stable")
    start = np.asarray(start, np.float64)[order]
    end = np.asarray(end, np.float64)[order]
    before = np.maximum.accumulate(np.append(start[:1], end[:-1]))
    return float(np.clip(end - np.maximum(start, before), 0, None).sum() / (end - start).sum())


# -- files


def diarize(
    model: Backend | PLDA,
    recordings: Any,
    segments: Segments,
    *,
    start: Any = "ratios",
    link: bool = False,
    link_prior: float = 0.02,
    cannot_link_within: bool = False,
    absent: Absent | None = None,
    **options: Any,
) -> Turns:
    """Find who speaks when in each file. The embeddings of all segments are held in memory.

    Parameters
    ----------
    model : the chain, or the PLDA
    recordings : embeddings (n, d) of the segments, in their order; or `Recordings` whose ids are those of the segments
    segments : windows of files, of `read_segments`. They may overlap, but none may lie within another one
    start : "ratios", "vbx" or "pyannote" (see `Diarizer`), or (n,) first labels of the segments, which count
        within their file
    link : find the same speakers in different files; names are then those of `PLDA.cluster`, and otherwise those of a
        file's speakers, in the order in which they first speak, such as "file-1"
    link_prior : the probability that two speakers of different files are one person
    cannot_link_within : two speakers of one file are never linked
    absent : called with a text and the ids of segments without embeddings, or of embeddings without segments, if there
        are any; they are then left out. Unless given, they are an error
    options : the other parameters of `Diarizer`

    Examples
    --------
    >>> from duoplda.io import Coded
    >>> plda = PLDA.from_parameters(np.zeros(2), 5 * np.eye(2), None, np.eye(2))
    >>> X = np.array([[9.0, 1.0], [8.5, 0.5], [-3.0, 7.0], [-2.5, 6.5], [9.0, 0.0]])
    >>> begin = np.arange(5.0)
    >>> segments = Segments(np.array(list("abcde")), Coded.of(["f"] * 5), begin, begin + 1)
    >>> found = diarize(plda, X, segments, Fa=1, Fb=1)
    >>> found.speaker.values.tolist(), found.start.tolist(), found.end.tolist()
    (['f-1', 'f-2', 'f-1'], [0.0, 2.0, 4.0], [2.0, 4.0, 5.0])
    """
    chain = chain_of(model)
    given = None if isinstance(start, str) else start
    how = Diarizer(**options) if given is not None else Diarizer(start=start, **options)
    if not len(segments):
        raise DuopldaError("there are no segments: give windows of speech, at least one")
    first = None if given is None else lab.as_ids(given, "start", len(segments))
    X, there = embeddings_of(recordings, segments, absent)
    own = segments.file[there], segments.start[there], segments.end[there]
    X = X[there]
    segments = Segments(segments.ids[there], *own)
    first = None if first is None else first[there]
    diagonal, _ = chain.collapsed(one_session=how.segments_are == "recordings")
    Z = np.empty((len(X), chain.plda_.n_features_in_))
    # Of all files, numbered through
    speaker = np.empty(len(X), np.int64)
    rho = np.empty(len(X))
    names: list[str] = []
    for name, rows in _files(segments):
        with named(f"file {name}"):
            Z[rows] = to_numpy(chain.transform(X[rows]))
            rho[rows] = how.rho(segments.start[rows], segments.end[rows])
            labels = _in_order(how(diagonal, Z[rows], X[rows], rho[rows[0]], None if first is None else first[rows]))
        speaker[rows] = len(names) + labels
        names += [f"{name}-{k + 1}" for k in range(labels.max() + 1)]
    who = np.array(names)[speaker]
    if link:
        file = segments.file.codes if cannot_link_within else None
        who = link_speakers(chain, Z, who, file=file, discount=rho, segments_are=how.segments_are, prior=link_prior)
    return as_turns(segments, who)


def _files(segments: Segments) -> Iterator[tuple[str, Ints]]:
    """The files, and the rows of their segments in the order of time; windows within others are refused."""
    order = np.lexsort((segments.end, segments.start, segments.file.codes))
    edges = np.searchsorted(segments.file.codes[order], np.arange(len(segments.file.names) + 1))
    for code, name in enumerate(segments.file.names):
        rows = order[edges[code] : edges[code + 1]]
        inside = np.flatnonzero(np.diff(segments.end[rows]) < 0)
        if len(inside):
            ids = some(segments.ids[rows[inside + 1]])
            raise DuopldaError(f"file {name}: segments lie within others: {ids}. Give windows of one length")
        if len(rows):
            yield str(name), rows


def _in_order(labels: Ints) -> Ints:
    """Labels 0, 1, ... in the order in which they first come."""
    _, first, codes = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[codes]


def as_turns(segments: Segments, speaker: Any) -> Turns:
    """The turns of segments whose speakers (n,) are known, file by file.

    >>> from duoplda.io import Coded
    >>> segments = Segments(np.array(["a", "b"]), Coded.of(["f", "f"]), np.array([0.0, 1.0]), np.array([2.0, 3.0]))
    >>> as_turns(segments, ["ann", "bob"]).end.tolist()
    [1.5, 3.0]
    """
    who = lab.as_ids(speaker, "speaker", len(segments)).astype(str)
    parts = [(name, turns(segments.start[r], segments.end[r], who[r])) for name, r in _files(segments)]
    files = [name for name, spans in parts for _ in spans.start]
    if not files:
        return Turns.of([], [], [], [])
    start, end, label = (np.concatenate(column) for column in zip(*(spans for _, spans in parts), strict=True))
    return Turns.of(files, start, end - start, label)


def embeddings_of(recordings: Any, segments: Segments, absent: Absent | None = None) -> tuple[Any, Ints]:
    """(n, d) the embeddings of segments, and the rows of those that have one; `absent` as for `diarize`."""
    absent = absent or _refuse
    n = len(segments)
    if not isinstance(recordings, Recordings):
        given = to_numpy(check_rows(recordings)[0])
        if len(given) != n:
            raise DuopldaError(f"{len(given)} embeddings for {n} segments: give one for each segment, or Recordings")
        check_finite(given)
        return given, np.arange(n)
    order = np.argsort(segments.ids)
    there = np.zeros(n, bool)
    strange = [segments.ids[:0]]
    X: NDArray[Any] | None = None
    for place, rows, others in recordings.map(partial(_wanted, known=segments.ids[order])):
        own = order[place]
        twice = own[there[own]] if there[own].any() else own[np.bincount(own, minlength=n)[own] > 1]
        if len(twice):
            raise DuopldaError(f"ids of embeddings are there twice: {some(np.unique(segments.ids[twice]))}")
        X = np.zeros((n, rows.shape[1]), rows.dtype) if X is None else X
        X[own] = rows
        there[own] = True
        strange.append(others)
    for what, ids in (
        ("segments have no embedding", segments.ids[~there]),
        ("embeddings have no segment", np.concatenate(strange)),
    ):
        if len(ids):
            absent(what, ids)
    if X is None or not there.any():
        raise DuopldaError("no segment has an embedding: the ids of the two must be the same")
    bad = there & ~np.isfinite(X).all(axis=1)
    if bad.any():
        raise DuopldaError(
            f"the embeddings of {bad.sum()} segments have NaN or infinity in them: {some(segments.ids[bad])}"
        )
    return X, np.flatnonzero(there)


def _wanted(part: Recordings, known: NDArray[Any]) -> Iterator[tuple[Ints, NDArray[Any], NDArray[Any]]]:
    """Places among known ids, sorted, and vectors of those recordings; the ids of the others."""
    for chunk in part.chunks():
        if chunk.ids is None or chunk.ids.dtype.kind != "U":
            raise DuopldaError("the recordings have no ids, or numbers: they must have the ids of the segments")
        place = lab.places(chunk.ids, known)
        yield place[place >= 0], to_numpy(chunk.X)[place >= 0], chunk.ids[place < 0]


def _refuse(what: str, ids: NDArray[Any]) -> None:
    raise MissingIds(f"{len(ids)} {what}: {some(ids)}")


# -- the same speakers in other files


def link_speakers(
    model: Backend | PLDA,
    Z: Any,
    local: Any,
    *,
    file: Any = None,
    discount: Any = 1.0,
    segments_are: str = "sessions",
    prior: float = 0.02,
) -> NDArray[Any]:
    """(n,) names of speakers that hold in all files, for segments whose speakers are known within their files.

    Each local speaker is clustered as one item, by y: with segments that are recordings as one session (V, U, W), with
    segments that are sessions as independent sessions, V and a noise of UU' + W^-1. Of its n segments, rho n count: so
    many recordings (rounded, at least one), all at the mean of the n.

    Parameters
    ----------
    model : the chain, or the PLDA
    Z : (n, k) segments after preprocessing (`Backend.transform`)
    local : (n,) their speakers, under names that differ from file to file
    file : (n,) their files, where two speakers of one file must not be linked; None: they may be. (If a file's speaker
        was split into two, linking is what joins them again.)
    discount : rho, a number or (n,)
    segments_are : as for `Diarizer`
    prior : the probability that two local speakers are one person

    Examples
    --------
    >>> plda = PLDA.from_parameters(np.zeros(2), 9 * np.eye(2), None, np.eye(2))
    >>> link_speakers(plda, [[9.0, 9.0], [-9.0, 9.0], [9.5, 8.5]], ["a-1", "a-2", "b-1"]).tolist()
    ['spk1', 'spk2', 'spk1']
    """
    if segments_are not in LEVELS:
        raise DuopldaError(f"segments_are={segments_are!r} must be one of {some(LEVELS)}")
    plda = chain_of(model).plda_
    rows = to_numpy(check_rows(Z)[0]).astype(np.float64)
    n = len(rows)
    K = len(plda.channels_)
    names, side = lab.codes(local, "speaker", n)
    kind = to_numpy(plda.channel_posterior(rows)).argmax(axis=1) if K > 1 else np.zeros(n, np.int64)
    cells, cell, size = np.unique(side * K + kind, return_inverse=True, return_counts=True)
    mean = np.zeros((len(cells), rows.shape[1]))
    np.add.at(mean, cell, rows)
    times = np.maximum(1, np.rint(np.bincount(cell, np.broadcast_to(discount, n)))).astype(np.int64)
    mean, who, of = (np.repeat(a, times, axis=0) for a in (mean / size[:, None], names[cells // K], cells % K))
    pairs = None if file is None else _within(names, side, lab.codes(file, "file", n)[1])
    voices = _of_segments(plda) if segments_are == "sessions" else unscaled(plda)
    found = voices.cluster(voices.enroll(mean, who, who, plda.channels_[of]), prior=prior, cannot_link=pairs)
    return found.names[found.labels][np.searchsorted(found.ids, names)][side]


def _within(names: NDArray[Any], side: Ints, file: Ints) -> NDArray[Any]:
    """(k, 2) the pairs of speakers of one file."""
    home = np.empty(len(names), np.int64)
    home[side] = file
    pairs = [names[:0].reshape(0, 2)]
    for own in (names[home == f] for f in np.unique(home)):
        pairs.append(np.stack([own[i] for i in np.triu_indices(len(own), 1)], axis=1))
    return np.concatenate(pairs)


def _of_segments(plda: PLDA) -> PLDA:
    """The model for segments that are sessions: UU' becomes noise of each."""
    U = to_numpy(plda.session_loadings_)
    W = np.linalg.inv(U @ U.T + np.linalg.inv(to_numpy(plda.noise_precision_)))
    W = (W + np.swapaxes(W, -1, -2)) / 2
    kinds = {"channels": plda.channels_, "channel_priors": plda.channel_priors_} if len(plda.channels_) > 1 else {}
    mean = plda.channel_means_ if kinds else plda.mean_
    return PLDA.from_parameters(to_numpy(mean), to_numpy(plda.speaker_loadings_), None, W, **kinds)
