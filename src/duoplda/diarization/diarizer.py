"""Who speaks when: the windows of each file become turns of its speakers, and speakers are linked across files.

A file's windows go through the chain (`Backend.transform`) into the space where windows of one speaker differ by I and
speakers by diag(phi) (`latent`). There they get their first labels, from which `vb_hmm` finds speakers and changes;
windows of one speaker that follow each other become a turn.

Which covariances I and diag(phi) stand for depends on what the sessions of the training data were:

    segments are sessions      speakers differ by VV',         segments by UU' + W^-1
    segments are recordings    speakers differ by VV' + UU',   segments by W^-1

Windows that overlap repeat each other: a window counts as a share ("discount") of an independent one, for the evidence
and for the prior. Unless the user sets it, it follows from the share of the windows' time that is new
(`independent_share`), and so do the other numbers that a file and a model determine (`constants_of`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.arrays import Array, to_numpy
from duoplda.data import Recordings
from duoplda.data import labels as lab
from duoplda.diarization.first_labels import centroid_labels, cosine_labels, numbered, ratio_labels
from duoplda.diarization.known import Names, known_voices
from duoplda.diarization.linking import SEGMENT_LEVELS, link_speakers, one_session_each
from duoplda.diarization.number import groups_of, merges, number_posterior
from duoplda.diarization.overlap import second_speakers
from duoplda.diarization.rttm import Regions
from duoplda.diarization.segments import Segments
from duoplda.diarization.vbhmm import Diarized, Floats, Ints, latent, smoothed, vb_hmm
from duoplda.diarization.windows import (
    Diarization,
    OnMissing,
    embeddings_of,
    new_share,
    rows_by_file,
    runs,
    with_confidence,
)
from duoplda.errors import DuopldaError, error_prefix, printable, some
from duoplda.estimators import domain
from duoplda.estimators.backend import Backend
from duoplda.estimators.plda import PLDA
from duoplda.estimators.scoring import chain_of
from duoplda.io import DiagonalModel
from duoplda.trials.sides import Sides

SMOOTHING = {"ratios": 5.0, "vbx": 5.0, "pyannote": 7.0}  # start -> `amount` of `smoothed`, as VBx and pyannote have it


class Labelled(NamedTuple):
    """What was found in one file of T windows, with S speakers who are numbered in the order in which they first speak.

    `labels` (T,) are the speakers of windows, `posterior` (T, S) their probabilities, `numbers` the probability of each
    number of speakers, and `first` how many speakers the first labels had.
    """

    labels: Ints
    posterior: Floats
    numbers: dict[int, float]
    first: int


class HmmConstants(NamedTuple):
    """The numbers of the HMM for one file: see `vb_hmm`."""

    Fa: float
    Fb: float
    loop: float


def independent_share(start: Floats, end: Floats) -> float:
    """The share of an independent window that each window of a file counts for: min(1, 1.6 rho).

    rho is the share of the windows' time that is new (`new_share`). What neighbouring windows of one speaker have in
    common falls faster than their overlap: where 5/6, 4/6 and 1/2 of the time is the same, correlations are .62, .42
    and .25, and 1 / (1 + 2 sum of correlations) is about 1.6 rho.

    >>> round(independent_share(np.arange(0.0, 300.0, 0.25), np.arange(0.0, 300.0, 0.25) + 1.5), 2)
    0.27
    """
    return min(1.0, 1.6 * new_share(start, end))


def constants_of(phi: Floats, start: Floats, end: Floats) -> HmmConstants:
    """The numbers of the HMM that follow from a model and from the windows of a file.

        F_a = min(1, 1.6 rho),    F_b = max(1, sum(phi) / 10 min(1, (T / 250 s)^1/2)),    loop = exp(-hop / 2.4 s)

    T is the time that windows cover, hop is T / (their number), and F_a `independent_share`. F_b / F_a windows say as
    much of a speaker as one that is independent; longer files have more that is not. With VBx's own model this is .29
    and 16.6 on its example, whose published values are .3 and 17.

    >>> begin = np.arange(0.0, 300.0, 0.25)
    >>> Fa, Fb, loop = constants_of(np.full(100, 0.6), begin, begin + 1.5)
    >>> round(Fa, 2), round(Fb, 2), round(loop, 2)
    (0.27, 6.0, 0.9)
    """
    seconds = new_share(start, end) * float((end - start).sum())
    Fb = float(phi.sum()) / 10 * min(1.0, np.sqrt(seconds / 250))
    return HmmConstants(independent_share(start, end), max(1.0, Fb), float(np.exp(-seconds / len(start) / 2.4)))


@dataclass(frozen=True, eq=False)
class Diarizer:
    """How the windows of one file are given to speakers: the options of `diarize`, checked once.

    Parameters
    ----------
    start : how the first labels are found.
        "ratios": runs of windows, as long as one window, are merged by exact likelihood ratios while the posterior of
        the partition rises (`PLDA.cluster`); the mean of the file is subtracted for this step. "vbx": by cosines and
        average linkage, as VBx does. "pyannote": by the distances of centroids of the embeddings before any
        preprocessing, as pyannote 4 does
    refine : how the first labels are improved. "vbx": by the HMM; "gmm": by the same model without the order of time,
        as in pyannote 4; None: not at all
    Fa, Fb, loop : scale of the evidence, cost of a speaker and probability to stay (see `vb_hmm`); None: those that
        follow from the model and the file (`constants_of`), or with "vbx" and "pyannote" those of VBx's example
    discount : the share of an independent window that a window counts for in "ratios" and in linking; None: the one
        that follows from the times of the windows (`independent_share`)
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
    Fa: float | None = None
    Fb: float | None = None
    loop: float | None = None
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
        if self.loop is not None and not 0 <= self.loop <= 1:
            raise DuopldaError(f"loop={self.loop!r} must be a probability")
        if self.discount is not None and not 0 < self.discount <= 1:
            raise DuopldaError(f"discount={self.discount!r} must be greater than 0 and at most 1, or None")
        if self.n_speakers is not None and (self.min_speakers, self.max_speakers) != (None, None):
            raise DuopldaError("give either n_speakers, or min_speakers and max_speakers")
        low, high = self.limits
        if not 1 <= low <= high:
            raise DuopldaError(f"at least {low} and at most {high} speakers: both must be 1 or more, in this order")

    @property
    def limits(self) -> tuple[int, float]:
        """The fewest and the most speakers of a file."""
        if self.n_speakers is not None:
            return self.n_speakers, self.n_speakers
        low = 1 if self.min_speakers is None else self.min_speakers
        high = np.inf if self.max_speakers is None else self.max_speakers
        return low, high

    def share(self, start: Floats, end: Floats) -> float:
        """The share of an independent window that each window of a file counts for."""
        return self.discount or independent_share(start, end)

    def __call__(
        self, model: DiagonalModel, Z: Array, X: Array, start: Floats, end: Floats, first: ArrayLike | None = None
    ) -> Labelled:
        """The speakers of the windows of one file, which are in the order of time.

        If the first labels have fewer speakers than they must have, "ratios" finds others. If the HMM leaves too few,
        it is run again with half the cost `Fb` of a speaker, and so on; if that does not help, the first labels are
        the answer. Speakers who are left are merged while that is more probable than not (`number.merges`), or until
        there are no more than allowed, and the HMM starts again from these.

        Parameters
        ----------
        model : the first of the two that `Backend.collapsed` gives
        Z, X : (T, k), (T, d) windows after preprocessing, and before it
        start, end : (T,) of the windows, in seconds
        first : (T,) first labels, instead of those that `start` finds
        """
        rows, phi = latent(Z, model, self.n_dimensions)
        labels = self._first_labels(rows, phi, Z, X, start, end) if first is None else numbered(first)
        if len(np.unique(labels)) < self.limits[0]:
            labels = self._first_labels(rows, phi, Z, X, start, end, "ratios")
        n_first = len(np.unique(labels))
        numbers: dict[int, float] = {}
        posterior = np.eye(labels.max() + 1)[labels]
        if self.refine is not None:
            constants = self._constants(phi, start, end)
            posterior = self._refined(rows, phi, labels, constants)
            if self.start == "ratios":
                posterior, numbers = self._settled(rows, phi, posterior, constants)
        codes = numbered(posterior.argmax(axis=1))
        if codes.max() >= self.limits[1]:
            low, high = self.limits
            limits = {"min_speakers": low, "max_speakers": int(high)}
            merged = ratio_labels(rows, phi, self.share(start, end), self.prior, codes, **limits)
            posterior = np.eye(merged.max() + 1)[merged[codes]]
        return _labelled(posterior, numbers, n_first)

    def _first_labels(
        self, rows: Floats, phi: Floats, Z: Array, X: Array, start: Floats, end: Floats, how: str | None = None
    ) -> Ints:
        """(T,) the first labels, found as `start` says, or as `how` does."""
        how = how or self.start
        if how == "vbx":
            return cosine_labels(Z, self.bias)
        if how == "pyannote":
            return centroid_labels(X, self.threshold)
        low = self.limits[0]
        # A run covers about the time of one window. Single windows would snowball: all of a file share an offset.
        run = runs(start, end, max(1, round(1 / new_share(start, end))))
        if run[-1] + 1 < low:
            run = np.arange(len(rows))
        share = self.share(start, end)
        return ratio_labels(rows - rows.mean(axis=0), phi, share, self.prior, run, min_speakers=low)[run]

    def _constants(self, phi: Floats, start: Floats, end: Floats) -> HmmConstants:
        """The numbers of the HMM: those that are given, and the others from the model and the file."""
        published = HmmConstants(Fa=0.3, Fb=17.0, loop=0.99)  # of VBx's example
        default = constants_of(phi, start, end) if self.start == "ratios" else published
        values = (self.Fa, self.Fb, self.loop)
        return HmmConstants(*(usual if value is None else value for value, usual in zip(values, default, strict=True)))

    def _hmm(self, rows: Floats, phi: Floats, labels: Ints, constants: HmmConstants) -> Diarized:
        """The HMM, or the mixture, that starts from labels."""
        loop = constants.loop if self.refine == "vbx" else None
        return vb_hmm(rows, phi, smoothed(labels, SMOOTHING[self.start]), Fa=constants.Fa, Fb=constants.Fb, loop=loop)

    def _refined(self, rows: Floats, phi: Floats, labels: Ints, constants: HmmConstants) -> Floats:
        """(T, S) posteriors of the HMM that starts from labels; the labels themselves if it drops too many."""
        for halvings in range(13):  # a speaker then costs Fb / 4096, next to nothing
            cheaper = constants._replace(Fb=constants.Fb / 2**halvings)
            refined = self._hmm(rows, phi, labels, cheaper)
            if len(np.unique(refined.labels)) >= self.limits[0]:
                return refined.responsibilities
        codes = np.unique(labels, return_inverse=True)[1]
        return np.eye(codes.max() + 1)[codes]

    def _settled(
        self, rows: Floats, phi: Floats, posterior: Floats, constants: HmmConstants
    ) -> tuple[Floats, dict[int, float]]:
        """Posteriors after those who are one speaker were merged, and the probabilities of the numbers of speakers."""
        codes = numbered(posterior.argmax(axis=1))
        steps = merges(*groups_of(rows, phi, codes, constants.Fa), phi, prior=1 / max(2.0, constants.Fa * len(rows)))
        numbers = number_posterior(steps, *self.limits)
        anyhow = number_posterior(steps, 1, np.inf)
        best, natural = (max(p, key=lambda k: p[k]) for p in (numbers, anyhow))
        if best > codes.max():
            return posterior, numbers
        merged = next(step.speaker for step in steps if len(np.unique(step.speaker)) == best)[codes]
        if best < natural:  # fewer than there seem to be: the HMM says whom it can do without, if it can
            labels = self._dropped(rows, phi, codes, constants, best)
            merged = merged if labels is None else labels
        return self._refined(rows, phi, merged, constants), numbers

    def _dropped(self, rows: Floats, phi: Floats, labels: Ints, constants: HmmConstants, n: int) -> Ints | None:
        """The labels of the HMM with n speakers, if there is a cost of a speaker at which it leaves so many."""
        for eighths in range(1, 25):  # up to eight times the cost
            dropped = self._hmm(rows, phi, labels, constants._replace(Fb=constants.Fb * 2 ** (eighths / 8))).labels
            if (left := len(np.unique(dropped))) <= n:
                return dropped if left == n else None
        return None


def _spread(speaker: Ints, file: Ints, n_windows: float) -> domain.Spread:
    """How many speakers, files and independent windows the mean of all windows is of.

    A file has a room and a line, so it is one session; who speaks in several files may be the same few people.
    """
    in_files = domain.Spread.of(speaker).n_speakers / domain.Spread.of(file).n_speakers
    return domain.Spread(max(1.0, in_files), domain.Spread.of(file).n_speakers, n_windows)


def _labelled(posterior: Floats, numbers: dict[int, float], n_first: int) -> Labelled:
    """Speakers to whom no window goes are left out, and the others are numbered in the order in which they come."""
    winner = posterior.argmax(axis=1)
    labels = numbered(winner)
    columns = winner[np.unique(labels, return_index=True)[1]]
    shares = posterior[:, columns]
    return Labelled(labels, shares / shares.sum(axis=1, keepdims=True), numbers, n_first)


def diarize(
    model: Backend | PLDA,
    recordings: ArrayLike | Recordings,
    segments: Segments,
    *,
    start: str | ArrayLike = "ratios",
    link: bool = False,
    link_prior: float = 0.02,
    cannot_link_within: bool = False,
    known: Sides | None = None,
    known_prior: float = 0.5,
    overlap: Regions | None = None,
    told: Callable[[str, Labelled], object] | None = None,
    absent: OnMissing | None = None,
    unlisted: OnMissing | None = None,
    **options: Any,
) -> Diarization:
    """Find who speaks when in each file, and how sure that is.

    Windows that are far from the training data give a `DomainWarning` (see `duoplda.estimators.domain`).
    Each window goes to one speaker; with `overlap`, a second one speaks where two do. The number of speakers is found,
    and on a single file it can be wrong: pass `n_speakers` where it is known. The embeddings of all segments are held
    in memory.

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
    cannot_link_within : with `link`, never link two speakers of one file; with `known`, never give them one name
    known : enrolled voices (`Backend.enroll`, `Backend.load_sides`). Speakers who are one of them with more than even
        odds get their names, and the others keep those that they would have without (`duoplda.diarization.known`)
    known_prior : the probability that a speaker is one of the known voices
    overlap : regions in which two people speak (`duoplda.diarization.overlap`)
    told : called with the name of each file and what was found in it: labels, their probabilities, and the probability
        of each number of speakers
    absent, unlisted : called with the ids of segments without embeddings, and of embeddings without segments, if there
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
    if cannot_link_within and not link and known is None:
        raise DuopldaError("cannot_link_within=True has a meaning only with link=True, or with known voices")
    if not len(segments):
        raise DuopldaError("there are no segments: give windows of speech, at least one")
    if known is not None:
        chain.check_sides(known)
    first = None if isinstance(start, str) else lab.as_ids(start, "start", len(segments))
    X, present = embeddings_of(recordings, segments, absent, unlisted)
    local = _in_files(chain, diarizer, X[present], segments[present], None if first is None else first[present], told)
    called = local.cast  # what each local speaker is called in the end
    if link:
        apart = local.segments.file.codes if cannot_link_within else None
        level = diarizer.segments_are
        names = local.cast[local.speaker]
        linked = link_speakers(
            chain, local.Z, names, file=apart, discount=local.rho, segments_are=level, prior=link_prior
        )
        called = linked[local.first_rows]
    voices = None
    if known is not None:
        people, person = np.unique(called, return_inverse=True)
        options_of_voices = {"prior": known_prior, "apart": cannot_link_within, "person": person if link else None}
        if not link:
            people, person = called, np.arange(len(called))
        found = local.voices(chain, known, diarizer.segments_are, **options_of_voices)
        names = found.names(people)
        called = names[person]
        voices = {names[k]: (found.voice[k], found.posterior[k]) for k in np.argsort(found.posterior)}
    posteriors = {file: (called[columns], gamma) for file, (columns, gamma) in local.posteriors.items()}
    turns = with_confidence(local.segments, called[local.speaker], posteriors, voices)
    return turns if overlap is None else second_speakers(turns, overlap)


@dataclass(frozen=True, eq=False)
class _LocalSpeakers:
    """What was found in all files, each by itself: T windows, and the S speakers of all files, numbered through."""

    segments: Segments
    Z: Floats  # (T, k) windows after preprocessing
    rho: Floats  # (T,) the share of an independent window that each counts for
    speaker: Ints  # (T,)
    cast: NDArray[np.str_]  # (S,) names, such as "file-1"
    posteriors: dict[str, tuple[Ints, Floats]]  # file -> its speakers (K,), and their probabilities in its windows

    @property
    def first_rows(self) -> Ints:
        """(S,) the first window of each speaker."""
        return np.unique(self.speaker, return_index=True)[1]

    def voices(self, chain: Backend, known: Sides, segments_are: str, **options: Any) -> Names:
        """Who of the known voices they are, or the people to whom they are linked."""
        file = self.segments.file.values[self.first_rows]
        if segments_are == "recordings":
            vectors, speaker, channel = one_session_each(chain.plda_, self.Z, self.speaker, self.rho)
            heard = chain.plda_.enroll(vectors, speaker, speaker, channel)
            return known_voices(chain, heard, known, file, **options)
        times = {
            name: (self.segments.start[rows], self.segments.end[rows]) for name, rows in rows_by_file(self.segments)
        }
        shares = {name: new_share(*span) for name, span in times.items()}
        heard = chain.plda_.enroll(self.Z, self.speaker)
        return known_voices(chain, heard, known, file, discount=[shares[name] for name in file.tolist()], **options)


def _in_files(
    chain: Backend,
    diarizer: Diarizer,
    X: Array,
    segments: Segments,
    first: NDArray[Any] | None,
    told: Callable[[str, Labelled], object] | None,
) -> _LocalSpeakers:
    """The speakers of each file by itself."""
    diagonal, _ = chain.collapsed(one_session=diarizer.segments_are == "recordings")
    Z = np.empty((len(X), chain.plda_.n_features_in_))
    rho = np.empty(len(X))
    speaker = np.empty(len(X), np.int64)
    cast: list[str] = []
    posteriors: dict[str, tuple[Ints, Floats]] = {}
    for file, rows in rows_by_file(segments):
        with error_prefix(f"file {file}"):
            Z[rows] = to_numpy(chain.transform(X[rows]))
            times = segments.start[rows], segments.end[rows]
            labelled = diarizer(diagonal, Z[rows], X[rows], *times, None if first is None else first[rows])
        rho[rows] = diarizer.share(*times)
        if told is not None:
            told(file, labelled)
        n = int(labelled.labels.max()) + 1
        if labelled.first >= 4 and n == 1 and diarizer.limits[1] > 1:
            cause = f"file {printable(file)}: {labelled.first} first speakers became one"
            remedy = "if there are more, give their number; is the model one for these embeddings?"
            warnings.warn(f"{cause}; {remedy}", UserWarning, stacklevel=3)
        speaker[rows] = len(cast) + labelled.labels
        posteriors[file] = len(cast) + np.arange(n), labelled.posterior
        cast += [f"{file}-{k + 1}" for k in range(n)]
    domain.check(chain, domain.see(chain, X, Z), _spread(speaker, segments.file.codes, float(rho.sum())), 4)
    return _LocalSpeakers(segments, Z, rho, speaker, np.array(cast), posteriors)
