"""Diarisation as a whole: from the windows of each file to the turns of its speakers, who can be linked across files.

The windows of a file go through the preprocessing of the model (`Backend.transform`), and then into the space where
windows of one speaker have the covariance I, and the means of speakers the covariance diag(phi) (`latent`). There they
get first labels, from which `vb_hmm` finds speakers and changes. Windows of one speaker that follow each other become a
turn.

Which covariances I and diag(phi) stand for depends on what a session was in the training data:

    segments are sessions      speakers differ by VV',         segments by UU' + W^-1
    segments are recordings    speakers differ by VV' + UU',   segments by W^-1

Windows that overlap repeat each other, so a window counts as a share (`discount`) of an independent window, for the
evidence and for the prior. Unless the user sets this share, it follows from the share of the windows' time that is new
(`independent_share`). The constants of the HMM follow from the model and the file (`constants_of`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
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
    correlation_of_neighbours,
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

SMOOTHING = {"ratios": 5.0, "vbx": 5.0, "pyannote": 7.0}  # start -> `amount` of `smoothed`; those of VBx and pyannote


class Labelled(NamedTuple):
    """The speakers of one file with T windows and S speakers, numbered in the order in which they first speak.

    `labels` (T,) has the speaker of each window, `posterior` (T, S) the probabilities of all speakers in it, `numbers`
    the probability of each number of speakers, and `first` the number of speakers that the first labels had.
    """

    labels: Ints
    posterior: Floats
    numbers: dict[int, float]
    first: int


class HmmConstants(NamedTuple):
    """The constants of the HMM for one file (see `vb_hmm`)."""

    Fa: float
    Fb: float
    loop: float


def independent_share(start: Floats, end: Floats) -> float:
    """How much each window of a file counts, if an independent window counts 1: min(1, 1.6 rho).

    rho is the share of the windows' time that is new (`new_share`). The correlation of neighbouring windows of one
    speaker falls faster than their overlap: where 5/6, 4/6 and 1/2 of the time is the same, correlations are .62, .42
    and .25, and 1 / (1 + 2 sum of correlations) is about 1.6 rho.

    >>> round(independent_share(np.arange(0.0, 300.0, 0.25), np.arange(0.0, 300.0, 0.25) + 1.5), 2)
    0.27
    """
    return min(1.0, 1.6 * new_share(start, end))


def constants_of(phi: Floats, start: Floats, end: Floats) -> HmmConstants:
    """The constants of the HMM that follow from a model and from the windows of a file.

        F_a = min(1, 1.6 rho),    F_b = max(1, sum(phi) / 10 min(1, (T / 250 s)^1/2)),    loop = exp(-hop / 2.4 s)

    T is the time that the windows cover, hop is T / (number of windows), and F_a is `independent_share`. About a
    speaker, F_b / F_a windows say as much as one independent window; the longer a file, the more of its windows are
    dependent. With VBx's own model and example F_a is .29 and F_b 16.6, where VBx published .3 and 17.

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
    """Finds the speakers of the windows of one file: the options of `diarize`, checked once.

    By default the constants follow from the model and the file. Set them only if you can measure on files whose
    speakers you know. The number of speakers is worth giving wherever it is known.

    Parameters
    ----------
    start : how the first labels are found.
        "ratios": runs of windows, as long as one window, are merged by exact likelihood ratios while the posterior of
        the partition rises (`PLDA.cluster`); the mean of the file is subtracted for this step. "vbx": by cosines and
        average linkage, as in VBx. "pyannote": by the distances of centroids of the embeddings before any
        preprocessing, as in pyannote 4
    refine : how the first labels are improved. "vbx": by the HMM; "gmm": by the same model without the order of time,
        as in pyannote 4; None: not at all
    Fa, Fb, loop : the factor on the evidence, that on the cost of a speaker, and the probability to stay (see
        `vb_hmm`). None: with "ratios" the values that follow from the model and the file (`constants_of`), with "vbx"
        and "pyannote" those of VBx's example
    discount : how much a window counts in "ratios" and in linking, if an independent window counts 1. None: the share
        that follows from the times of the windows (`independent_share`)
    prior : for "ratios", the probability that two windows of a file are of one speaker; it is 1/4 if four people speak
        equally long
    n_speakers, min_speakers, max_speakers : the number of speakers of a file, or its limits, if they are known
    segments_are : "sessions" or "recordings": what a segment of a file is in the terms of the training data. The wrong
        choice can be very costly
    n_dimensions : the number of dimensions that are used, those in which speakers differ most; None: all
    bias : for "vbx", is added to the threshold that is found on the file (VBx's `--threshold`)
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
            raise DuopldaError(f"at least {low} and at most {high} speakers: give 1 or more, the smaller number first")

    @property
    def limits(self) -> tuple[int, float]:
        """The smallest and the largest number of speakers that a file may have."""
        if self.n_speakers is not None:
            return self.n_speakers, self.n_speakers
        low = 1 if self.min_speakers is None else self.min_speakers
        high = np.inf if self.max_speakers is None else self.max_speakers
        return low, high

    def share(self, start: Floats, end: Floats) -> float:
        """How much each window of a file counts, if an independent window counts 1."""
        return self.discount or independent_share(start, end)

    def __call__(
        self, model: DiagonalModel, Z: Array, X: Array, start: Floats, end: Floats, first: ArrayLike | None = None
    ) -> Labelled:
        """Find the speakers of the windows of one file, which must be in the order of time.

        If the first labels have fewer speakers than `limits` allow, they are replaced by those of "ratios". If the HMM
        leaves too few, it is run again with half the cost `Fb` of a speaker, and so on; if no cost is low enough, the
        first labels are the result. With "ratios", the speakers who are left are merged while that is more probable
        than not (`number.merges`), or until there are no more than allowed, and the HMM starts again from these.

        Parameters
        ----------
        model : the model without a session level, the first result of `Backend.collapsed`
        Z, X : (T, k), (T, d) the windows after preprocessing, and before it
        start, end : (T,) the times of the windows in seconds
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
        """(T,) the first labels, found as `how` says, or as `start` does if `how` is None."""
        how = how or self.start
        if how == "vbx":
            return cosine_labels(Z, self.bias)
        if how == "pyannote":
            return centroid_labels(X, self.threshold)
        low = self.limits[0]
        # A run covers about the time of one window. With single windows, merging snowballs into one cluster, because
        # all windows of a file share an offset.
        run = runs(start, end, max(1, round(1 / new_share(start, end))))
        if run[-1] + 1 < low:
            run = np.arange(len(rows))
        share = self.share(start, end)
        return ratio_labels(rows - rows.mean(axis=0), phi, share, self.prior, run, min_speakers=low)[run]

    def _constants(self, phi: Floats, start: Floats, end: Floats) -> HmmConstants:
        """The constants of the HMM: those that the user gave, and defaults for the others."""
        published = HmmConstants(Fa=0.3, Fb=17.0, loop=0.99)  # in VBx's example
        default = constants_of(phi, start, end) if self.start == "ratios" else published
        values = (self.Fa, self.Fb, self.loop)
        return HmmConstants(*(usual if value is None else value for value, usual in zip(values, default, strict=True)))

    def _hmm(self, rows: Floats, phi: Floats, labels: Ints, constants: HmmConstants) -> Diarized:
        """The result of the HMM, or of the mixture, that starts from labels."""
        loop = constants.loop if self.refine == "vbx" else None
        return vb_hmm(rows, phi, smoothed(labels, SMOOTHING[self.start]), Fa=constants.Fa, Fb=constants.Fb, loop=loop)

    def _refined(self, rows: Floats, phi: Floats, labels: Ints, constants: HmmConstants) -> Floats:
        """(T, S) posteriors of the HMM that starts from labels; if it drops too many speakers, 1 for each label."""
        for halvings in range(13):  # in the end a speaker costs Fb / 4096, next to nothing
            cheaper = constants._replace(Fb=constants.Fb / 2**halvings)
            refined = self._hmm(rows, phi, labels, cheaper)
            if len(np.unique(refined.labels)) >= self.limits[0]:
                return refined.responsibilities
        codes = np.unique(labels, return_inverse=True)[1]
        return np.eye(codes.max() + 1)[codes]

    def _settled(
        self, rows: Floats, phi: Floats, posterior: Floats, constants: HmmConstants
    ) -> tuple[Floats, dict[int, float]]:
        """Posteriors after merging speakers who are probably one, and the probability of each number of speakers."""
        codes = numbered(posterior.argmax(axis=1))
        steps = merges(*groups_of(rows, phi, codes, constants.Fa), phi, prior=1 / max(2.0, constants.Fa * len(rows)))
        numbers = number_posterior(steps, *self.limits)
        anyhow = number_posterior(steps, 1, np.inf)
        best, natural = (max(p, key=lambda k: p[k]) for p in (numbers, anyhow))
        if best > codes.max():
            return posterior, numbers
        merged = next(step.speaker for step in steps if len(np.unique(step.speaker)) == best)[codes]
        if best < natural:  # fewer are allowed than there seem to be: if it can, the HMM drops some
            labels = self._dropped(rows, phi, codes, constants, best)
            merged = merged if labels is None else labels
        return self._refined(rows, phi, merged, constants), numbers

    def _dropped(self, rows: Floats, phi: Floats, labels: Ints, constants: HmmConstants, n: int) -> Ints | None:
        """Labels of the HMM with n speakers; None if no cost of a speaker was found at which it leaves n."""
        for eighths in range(1, 25):  # up to eight times the cost, by factors of 2^(1/8)
            dropped = self._hmm(rows, phi, labels, constants._replace(Fb=constants.Fb * 2 ** (eighths / 8))).labels
            if (left := len(np.unique(dropped))) <= n:
                return dropped if left == n else None
        return None


def _spread(speaker: Ints, file: Ints, n_windows: float) -> domain.Spread:
    """The numbers of speakers, of sessions and of independent windows over which the mean of all windows is taken.

    The windows of a file share a room and a line, so a file counts as one session. The speakers of several files may be
    the same few people, so only as many count as a file has on average.
    """
    in_files = domain.Spread.of(speaker).n_speakers / domain.Spread.of(file).n_speakers
    return domain.Spread(max(1.0, in_files), domain.Spread.of(file).n_speakers, n_windows)


def _labelled(posterior: Floats, numbers: dict[int, float], n_first: int) -> Labelled:
    """The result for one file: speakers without a window are left out, the others numbered as they first speak."""
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
    """Find who speaks when in each file, and how certain that is.

    The number of speakers is found. On a single file it can be wrong: give `n_speakers` if you know it. Each window is
    assigned to one speaker, so that the second speaker of overlapped speech is missed unless `overlap` says where two
    people speak. Expect errors in the first half minute of a file, and with windows that are far apart: people who say
    little are then missed. Windows that are far from the training data give a `DomainWarning` (see
    `duoplda.estimators.domain`), and windows that overlap and are hardly alike a `UserWarning`: they may be in another
    order than the segments. The embeddings of all segments are held in memory.

    Parameters
    ----------
    model : the `Backend`, or a `PLDA` for embeddings that need no preprocessing
    recordings : the embeddings (n, d) of the segments, in the same order; or `Recordings` with the ids of the segments
    segments : windows of files, as `read_segments` gives them. They may overlap, but none may lie within another one
    start : "ratios", "vbx" or "pyannote" (see `Diarizer`), or first labels (n,) of the segments, which hold within
        their file
    link : find the same people in different files. Names are then those of `PLDA.cluster`. Without `link`, speakers
        are named after their file, in the order in which they first speak, such as "file-1"
    link_prior : the probability that two speakers of different files are one person
    cannot_link_within : with `link`, never link two speakers of one file; with `known`, never give them one name
    known : enrolled voices (`Backend.enroll`, `Backend.load_sides`). A speaker who is one of them with more than even
        odds gets its name; the others keep the names that they would have without (`duoplda.diarization.known`)
    known_prior : the probability that a speaker is one of the known voices
    overlap : regions in which two people speak (`duoplda.diarization.overlap`)
    told : a function that is called with the name of each file and its `Labelled`: the labels, their probabilities, and
        the probability of each number of speakers
    absent, unlisted : functions that are called with the ids of segments without embeddings, and of embeddings without
        segments, if there are any; these are then left out. With None they are errors (`MissingIds`)
    options : the other parameters of `Diarizer`

    Example
    -------
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
        raise DuopldaError("cannot_link_within=True has an effect only with link=True, or with known voices")
    if not len(segments):
        raise DuopldaError("there are no segments: give at least one window of speech")
    if known is not None:
        chain.check_sides(known)
    first = None if isinstance(start, str) else lab.as_ids(start, "start", len(segments))
    X, present = embeddings_of(recordings, segments, absent, unlisted)
    local = _in_files(chain, diarizer, X[present], segments[present], None if first is None else first[present], told)
    called = local.cast  # the final name of each local speaker
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
    """The speakers of all files, each file by itself: T windows, and S local speakers numbered through all files."""

    segments: Segments
    Z: Floats  # (T, k) the windows after preprocessing
    rho: Floats  # (T,) how much each window counts, if an independent one counts 1
    speaker: Ints  # (T,) the local speaker of each window
    cast: NDArray[np.str_]  # (S,) names of local speakers, such as "file-1"
    posteriors: dict[str, tuple[Ints, Floats]]  # file -> its speakers (K,), and their probabilities in its windows

    @property
    def first_rows(self) -> Ints:
        """(S,) the first window of each speaker."""
        return np.unique(self.speaker, return_index=True)[1]

    def voices(self, chain: Backend, known: Sides, segments_are: str, **options: Any) -> Names:
        """The known voices that the local speakers are, or that the people are to whom they are linked."""
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


def _doubts(labelled: Labelled, Z: Floats, start: Floats, end: Floats, most_speakers: float) -> Iterator[str]:
    """What a user should check of a file."""
    if labelled.first >= 4 and labelled.labels.max() == 0 and most_speakers > 1:
        remedy = "if there are more, give their number, and check that the model is for these embeddings"
        yield f"{labelled.first} first speakers became one; {remedy}"
    correlation, overlap, deviation = correlation_of_neighbours(Z, start, end)
    # A quarter of what is to be expected is far below all real files; few windows allow no statement.
    if correlation < overlap / 4 and overlap / 4 > 4 * deviation:
        cause = f"neighbouring windows share {100 * overlap:.0f} % of their time, but their embeddings are hardly alike"
        remedy = "are the embeddings those of these windows, in the same order, and is there speech?"
        yield f"{cause} (correlation {correlation:.2f}); {remedy}"


def _in_files(
    chain: Backend,
    diarizer: Diarizer,
    X: Array,
    segments: Segments,
    first: NDArray[Any] | None,
    told: Callable[[str, Labelled], object] | None,
) -> _LocalSpeakers:
    """Find the speakers of each file by itself."""
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
        for doubt in _doubts(labelled, Z[rows], *times, diarizer.limits[1]):
            warnings.warn(f"file {printable(file)}: {doubt}", UserWarning, stacklevel=3)
        n = int(labelled.labels.max()) + 1
        speaker[rows] = len(cast) + labelled.labels
        posteriors[file] = len(cast) + np.arange(n), labelled.posterior
        cast += [f"{file}-{k + 1}" for k in range(n)]
    domain.check(chain, domain.see(chain, X, Z), _spread(speaker, segments.file.codes, float(rho.sum())), 4)
    return _LocalSpeakers(segments, Z, rho, speaker, np.array(cast), posteriors)
