"""What labels can teach a model, what training will choose for them, and what to do: docs/choosing.md for given data.

No rule of training is repeated here. Random numbers take the place of the recordings and go through the code of
training: the number of factors, and whether speakers and trials can be held out, depend only on the labels.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from textwrap import TextWrapper
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from duoplda.arrays import to_numpy
from duoplda.data import Labels, Recordings
from duoplda.data.copies import sessions_in_names
from duoplda.data.labels import Ints, encode
from duoplda.data.recordings import ArrayRecordings
from duoplda.errors import DuopldaError, printable, some
from duoplda.estimators import checks
from duoplda.estimators.backend import Backend
from duoplda.estimators.plda import PLDA
from duoplda.model import anova, simpler
from duoplda.model.statistics import Statistics
from duoplda.selection.held_out import can_hold_out
from duoplda.selection.trials import make_trials

# The leaves of the chart of docs/choosing.md to which labels can lead: what to do, and why. The page has figures.
LEAVES = {
    "A": (
        "Take another training set, or adapt a model from elsewhere.",
        "Speakers and sessions cannot be told apart: a speaker on another day would look like another speaker, and "
        "ratios are not calibrated. If a speaker was recorded on several days, these are sessions: label them.",
    ),
    "B": (
        "Simplified PLDA, which is chosen automatically.",
        "Every session has one recording, so that the session level has little to add. Shrinkage still helps.",
    ),
    "C": (
        "Two sources, speakers and sessions, which are chosen automatically.",
        "Copies of a recording no longer count as new evidence. That repairs calibration more than it lowers the EER.",
    ),
    "D": (
        "A noise for each kind of channel, which is chosen automatically. Kinds need not be known in trials.",
        "Recordings of a poor channel then count for less than those of a good one.",
    ),
    "E": (
        "If channels differ a lot and you can name their kinds, add a column `channel`; if not, learn them: "
        "--learn-channels auto, PLDA(n_channels='auto').",
        "Learnt kinds bring most of what named kinds bring.",
    ),
    "F": (
        "If you are not sure which model is best: --model-type auto, PLDA(model='auto', shrinkage='auto').",
        "Plain PLDA, two sources and kinds of channels are compared by held-out trials, as far as they are labelled. "
        "This takes as long as training all of them.",
    ),
    "G": (
        "Keep shrinkage='auto', the default of `duoplda train` and Backend(); a plain PLDA() has none.",
        "With hundreds of speakers or fewer, maximum likelihood overfits, and its ratios are badly calibrated.",
    ),
    "H": (
        "With this many speakers any shrinkage will do, and shrinkage='auto' costs time.",
        "On drawn data it changes nothing here. On real speech its calibration may still matter.",
    ),
    "L": (
        "Also name the sessions of enrolments (--sessions) that have several recordings.",
        "Otherwise copies of one recording count as independent evidence for the speaker.",
    ),
}


@dataclass(frozen=True)
class Level:
    """Whether a level of the model can be learnt, from how much, and why."""

    name: str  # speakers, sessions, noise, kinds
    learnt: bool
    differences: int  # the degrees of freedom from which it is learnt
    why: str


@dataclass(frozen=True)
class Leaf:
    """A leaf of the chart of docs/choosing.md."""

    letter: str
    advice: str
    reason: str


@dataclass(frozen=True)
class ProposedSessions:
    """Sessions that the ids of recordings seem to name, where no sessions are given."""

    form: str  # what ids look like, such as "copies" or "speaker/session/utterance"
    sessions: int  # how many there would be
    example: tuple[str, ...]  # recordings of one of them
    names: tuple[str, ...]  # the session of each recording


@dataclass(frozen=True)
class Advice:
    """What labels allow, what training will choose, and what to do. `print` shows it as a page.

    Only labels are examined: nothing is said of whether recordings are good, or like those that will be scored.

    Attributes
    ----------
    counts : numbers of speakers, sessions and recordings, and of speakers and sessions that have several
    sessions_per_speaker, recordings_per_session : the smallest number, the median and the largest
    kinds : the number of recordings of each kind of channel; empty if no kinds are named
    dimensions : the number of dimensions of the recordings, or None if it is not known
    levels : which levels of the model can be learnt, and which cannot
    model : what `Backend()` and `duoplda train` will train: "plain", "two-source" or "kinds"; None: they will refuse
    session_factors : whether the model will have session factors
    chosen_by : what will choose the shrinkage: "trials" of held-out speakers, their "likelihood", or "nothing"
    calibrated : whether ratios will be calibrated
    chosen : what training will choose, in words, with the reasons
    cautions : what to look at before training
    leaves : the leaves of the chart of docs/choosing.md to which the labels lead
    proposed : sessions that the ids of the recordings seem to name, where none are given; or None

    Example
    -------
    >>> advice = advise(["ann", "ann", "bob", "bob"], ["1", "1", "2", "3"])
    >>> advice.counts["speakers"], advice.sessions_per_speaker, advice.kinds
    (2, (1, 1.5, 2), {})
    """

    counts: dict[str, int]
    sessions_per_speaker: tuple[int, float, int]
    recordings_per_session: tuple[int, float, int]
    kinds: dict[str, int]
    dimensions: int | None
    levels: tuple[Level, ...]
    model: str | None
    session_factors: bool
    chosen_by: str
    calibrated: bool
    chosen: tuple[str, ...]
    cautions: tuple[str, ...]
    leaves: tuple[Leaf, ...]
    proposed: ProposedSessions | None = None

    def as_dict(self) -> dict[str, Any]:
        """The advice as numbers, texts, lists and dictionaries, without the session of each recording."""
        values = asdict(self)
        if self.proposed is not None:
            del values["proposed"]["names"]
        return values

    def __str__(self) -> str:
        return printable("\n".join(_page(self)), keep="\n")


def advise(
    speaker: ArrayLike | Recordings | Labels,
    session: ArrayLike | None = None,
    channel: ArrayLike | None = None,
    *,
    ids: ArrayLike | None = None,
    dimensions: int | None = None,
) -> Advice:
    """What the labels of recordings allow, what `Backend()` and `duoplda train` will choose, and what to do.

    Parameters
    ----------
    speaker, session, channel : (N,) labels as for `Backend.fit`; or `Recordings` or `Labels` in place of the first
    ids : (N,) names of the recordings: if no sessions are given, the ids may contain their names
    dimensions : the number of dimensions of the recordings, if it is known: some limits depend on it

    Examples
    --------
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(60, sessions=(1, 4), recordings=(1, 3), seed=0)
    >>> advice = advise(speaker, session, dimensions=X.shape[1])
    >>> advice.model, advice.chosen_by, [leaf.letter for leaf in advice.leaves]
    ('two-source', 'trials', ['C', 'E', 'F', 'G', 'L'])
    >>> advise(speaker).model
    'plain'
    >>> copies = [name for i in range(len(X) // 2) for name in (f"utt{i}", f"utt{i}-noise")]
    >>> advise(np.repeat(speaker, 2)[: len(copies)], ids=copies).proposed.example
    ('utt0', 'utt0-noise')
    """
    if isinstance(speaker, (Recordings, Labels)):
        if session is not None or channel is not None:
            raise DuopldaError("recordings bring their own labels: leave out session and channel")
        labels = speaker.labels() if isinstance(speaker, Recordings) else speaker
    else:
        labels = encode(speaker, session, channel)
    if dimensions is not None and (isinstance(dimensions, bool) or int(dimensions) != dimensions or dimensions < 1):
        raise DuopldaError(f"dimensions={dimensions!r} must be a whole number from 1 on, or None")
    if not labels.n_recordings:
        raise DuopldaError("there are no labels: give those of the training data")
    proposed = None
    if ids is not None and labels.session_ids is None:
        proposed = _propose(list(map(str, np.asarray(ids).tolist())), labels)
    return LabelSurvey(labels, None if dimensions is None else int(dimensions), proposed).advice()


def _propose(ids: list[str], labels: Labels) -> ProposedSessions | None:
    """The sessions that ids seem to name."""
    if len(ids) != labels.n_recordings:
        raise DuopldaError(f"{len(ids)} ids for {labels.n_recordings} recordings: give one for each")
    speaker = np.asarray(labels.speaker_ids)[to_numpy(labels.speaker)]
    found = sessions_in_names(ids, list(map(str, speaker.tolist())))
    if found is None:
        return None
    form, names = found
    largest, _ = Counter(names).most_common(1)[0]
    members = [name for name, session in zip(ids, names, strict=True) if session == largest]
    return ProposedSessions(form, len({*names}), tuple(members[:3]), tuple(names))


class LabelSurvey:
    """Labels, and their statistics as training would see them."""

    def __init__(self, labels: Labels, d: int | None, proposed: ProposedSessions | None):
        self.proposed = proposed
        self.sessions_named = labels.session_ids is not None
        self.labels = labels.filled
        labels = self.labels
        self.d = d
        self.n_speakers = len(labels.speaker_ids)
        self.n_sessions = labels.n_sessions
        self.n_recordings = labels.n_recordings
        self.per_speaker = np.bincount(to_numpy(labels.session_speaker), minlength=self.n_speakers)
        self.per_session = to_numpy(labels.counts).sum(axis=1)
        self.backend = Backend()
        self.plda: PLDA = self.backend.pipeline["plda"]
        X = np.random.default_rng(0).normal(size=(self.n_recordings, 1))
        self.stats: Statistics = self.plda.statistics(ArrayRecordings(X, labels=labels))
        kind = to_numpy(labels.kind)
        n_kinds = len(labels.kinds)
        names = map(str, labels.kinds.tolist())
        self.kinds = dict(zip(names, np.bincount(kind, minlength=n_kinds).tolist(), strict=True))
        self.has_session_factors = anova.session_rank(self.stats) > 0
        # As `PLDA(model=...)` calls it; two sources without session factors are the plain model.
        richest = simpler.possible(self.stats)[0]
        self.model = "plain" if richest == "two-source" and not self.has_session_factors else richest

    def advice(self) -> Advice:
        counts = {
            "speakers": self.n_speakers,
            "sessions": self.n_sessions,
            "recordings": self.n_recordings,
            "speakers with several sessions": int((self.per_speaker > 1).sum()),
            "sessions with several recordings": int((self.per_session > 1).sum()),
        }
        refusal = None
        try:
            anova.check_identifiable(self.stats, self.stats.d, anova.session_rank(self.stats))
        except DuopldaError as error:
            refusal = f"training refuses these labels: {error}"
        chosen_by = "nothing" if refusal else self.chooser()
        return Advice(
            counts,
            _least_median_most(self.per_speaker),
            _least_median_most(self.per_session),
            self.kinds if [*self.kinds] != [""] else {},
            self.d,
            self.levels(),
            None if refusal else self.model,
            self.has_session_factors and not refusal,
            chosen_by,
            chosen_by == "trials",
            (refusal,) if refusal else self.chosen(chosen_by),
            self.cautions(),
            tuple(Leaf(letter, *LEAVES[letter]) for letter in self.letters()),
            self.proposed,
        )

    def chooser(self) -> str:
        """What will choose the shrinkage: trials of held-out speakers, their likelihood, or nothing."""
        if not can_hold_out(self.stats):
            return "nothing"
        for fold in self.stats.folds:
            known = fold.kinds[self.stats.N - fold.N > 0]  # without a kind that no other fold has
            sample = fold.sample
            if sample is not None and self.stats.K > 1:
                sample = sample.rows(np.flatnonzero(np.isin(sample.kind, known)))
            if make_trials(sample, checks.enrolment(self.plda.enrolment)) is not None:
                return "trials"
        return "likelihood"

    def levels(self) -> tuple[Level, ...]:
        """Which levels can be told apart, as in the table of docs/choosing.md."""
        M = self.n_speakers
        H = self.n_sessions
        N = self.n_recordings
        K = self.stats.K
        if N == M:
            speakers = "no speaker has two recordings, so that speakers and noise cannot be told apart"
        elif H == M:
            speakers = "together with sessions: no speaker has two, so that both count as speakers"
        else:
            speakers = f"{_counted(M - 1, 'difference')} between speakers"
        if N == H:
            sessions = "no session has two recordings: sessions and noise are one"
        elif H == M:
            sessions = "no speaker has two sessions: sessions and speakers are one"
        else:
            sessions = f"{_counted(H - M, 'difference')} between sessions of a speaker"
        if N == M:
            noise = speakers
        elif N == H:
            noise = f"together with sessions: {_counted(N - M, 'difference')} between recordings of a speaker"
        else:
            noise = f"{_counted(N - H, 'difference')} between recordings of a session"
        if K > 1:
            kinds = f"{_counted(K, 'kind')} of channels, {min(self.kinds.values()):,} recordings of the rarest"
        elif [*self.kinds] != [""]:
            kinds = "one kind of channel is named, which is the same as none"
        elif N > H:
            kinds = "none are named; --learn-channels can find them in sessions with several recordings"
        else:
            kinds = "none are named, and only sessions with several recordings tell them apart"
        return (
            Level("speakers", M > 1 and N > M, M - 1, speakers),
            Level("sessions", N > H > M, H - M, sessions),
            Level("noise", N > M, N - H if N > H else N - M, noise),
            Level("kinds", K > 1, K - 1, kinds),
        )

    def chosen(self, chosen_by: str) -> tuple[str, ...]:
        """What training will choose, with the reasons."""
        K = self.stats.K
        between_speakers = self.n_speakers - 1
        between_sessions = self.n_sessions - self.n_speakers
        steps = " -> ".join(name for name, _ in self.backend.pipeline.steps)
        noise = f"a noise for each of the {K} kinds of channels" if K > 1 else "one noise"
        directions = f"at most {min(between_speakers, self.d or between_speakers):,} directions of speakers"
        amounts = ["speaker"]
        if self.has_session_factors:
            factors = "speaker and session factors"
            why = "sessions have several recordings, and speakers several sessions"
            directions += f" and {min(between_sessions, self.d or between_sessions):,} of sessions"
            amounts.append("session")
        else:
            factors = "speaker factors, no session factors"
            single = self.n_recordings == self.n_sessions
            why = "no session has two recordings" if single else "no speaker has two sessions"
        amounts += ["noise", "channel"] if K > 1 else ["noise"]
        shrinkage = f"shrinkage ({', '.join(amounts)})"
        folds = f"speakers are held out in {sum(len(f.speaker_ids) > 0 for f in self.stats.folds)} folds"
        choice = {
            "trials": (f"{shrinkage}, scales and calibration: by trials of held-out speakers; {folds}",),
            "likelihood": (
                f"{shrinkage}: by the likelihood of held-out speakers, as too few of them have two sessions; {folds}",
                "calibration: none, as no trials can be held out: ratios are not calibrated",
            ),
            "nothing": (f"{shrinkage}: fixed amounts, as too few speakers are there to hold some out; no calibration",),
        }[chosen_by]
        return (
            f"steps: {steps}",
            f"model: {self.model}, with {factors} and {noise}, as {why}",
            f"numbers of factors: as many as dimensions. The data show {directions}; shrinkage fills the others",
            *choice,
        )

    def cautions(self) -> tuple[str, ...]:
        """What to look at before training."""
        M = self.n_speakers
        H = self.n_sessions
        N = self.n_recordings
        cautions = []
        if self.proposed is not None:
            like = "those of copies" if self.proposed.form == "copies" else self.proposed.form
            cautions.append(
                f"no sessions are given, and ids look like {like}: that would be {self.proposed.sessions:,} sessions, "
                f"one of them of {', '.join(self.proposed.example)}. If that is right, give them; otherwise each "
                "recording counts as a session, and the ratios will be badly calibrated"
            )
        elif not self.sessions_named and N > M:
            cautions.append(
                "no sessions are given, so that each recording counts as a session. If some are copies of one "
                "conversation, or its channels, name the sessions: otherwise the ratios will be badly calibrated"
            )
        single = int((self.per_speaker < 2).sum())
        if H > M and 2 * single > M:
            cautions.append(f"{single:,} of {M:,} speakers have one session, and do not show how sessions differ")
        if self.stats.K > 1:
            cautions += self.cautions_of_kinds()
        if self.d is None:
            return tuple(cautions)
        df, where = (N - H, "sessions") if self.has_session_factors else (N - M, "speakers")
        if df < self.d:
            cautions.append(
                f"{_counted(df, 'difference')} within {where} for a noise of {self.d:,} dimensions: `duoplda train` "
                "warns and goes on by shrinkage, PLDA() refuses. Or reduce the dimensions (--lda)"
            )
        if self.has_session_factors and self.d > H - M:
            differences = f"{_counted(H - M, 'difference')} between sessions"
            cautions.append(f"{differences} for {self.d:,} dimensions: shrinkage fills the others")
        return tuple(cautions)

    def cautions_of_kinds(self) -> list[str]:
        """What to look at where kinds of channels are named."""
        cautions = []
        K = self.stats.K
        pairs = np.unique(to_numpy(self.labels.speaker) * K + to_numpy(self.labels.kind))
        speakers = np.bincount(pairs % K, minlength=K)
        lonely = [name for name, n in zip(self.kinds, speakers.tolist(), strict=True) if n < 2]
        if lonely:
            cautions.append(
                f"kinds of channels with one speaker ({some(lonely, 4)}): the channel cannot be told apart from that "
                "speaker. Is this column the kind of channel, such as phone or headset?"
            )
        # To know a covariance of d dimensions well takes about 10 d recordings.
        enough = 10 * (self.d or 0)
        rare = [name for name, n in self.kinds.items() if n < enough]
        if rare:
            cautions.append(
                f"kinds of channels with fewer than {enough:,} recordings ({some(rare, 4)}): their noise is moved "
                "towards that of the others, as far as held-out speakers choose"
            )
        return cautions

    def letters(self) -> str:
        """The leaves of the chart to which the labels lead."""
        if self.n_speakers < 2 or self.n_sessions == self.n_speakers:
            return "A"
        model = "DF" if self.stats.K > 1 else "CEF"
        if self.n_recordings == self.n_sessions:
            model = "B"
        # From a thousand speakers on, the choice of shrinkage changes nothing on drawn data (examples/few_speakers.py).
        shrinkage = "H" if self.n_speakers >= 1000 else "G"
        return model + shrinkage + "L" * (self.n_recordings > self.n_sessions)


def _least_median_most(n: Ints) -> tuple[int, float, int]:
    return int(n.min()), float(np.median(n)), int(n.max())


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' * (n != 1)}"


def _page(advice: Advice) -> list[str]:
    """The advice as lines of at most 100 columns."""
    counts = advice.counts
    lines = list[str]()

    def add(mark: str, text: str) -> None:
        lines.extend(TextWrapper(100, f"  {mark}", " " * (2 + len(mark)), break_long_words=False).wrap(text))

    size = f", of {_counted(advice.dimensions, 'dimension')}" if advice.dimensions else ""
    numbers = [_counted(counts[f"{name}s"], name) for name in ("speaker", "session", "recording")]
    lines.append(f"Labels: {', '.join(numbers)}{size}")
    for whole, part, (least, median, most) in (
        ("speaker", "sessions", advice.sessions_per_speaker),
        ("session", "recordings", advice.recordings_per_session),
    ):
        spread = f"{least:,}" if least == most else f"{least:,} to {most:,}, median {median:g}"
        several = f"{counts[f'{whole}s with several {part}']:,} of {counts[f'{whole}s']:,} {whole}s have several"
        add("", f"{part} of a {whole}: {spread}; {several}")
    first = list(advice.kinds.items())[:12]
    text = ", ".join(f"{name} {n:,}" for name, n in first) + ", ..." * (len(advice.kinds) > len(first))
    add("", f"kinds of channels: {f'{len(advice.kinds)} ({text})' if advice.kinds else 'none are named'}")
    lines += ["", "What can be learnt"]
    for level in advice.levels:
        add(f"{level.name + ':':<10}", f"{'yes' if level.learnt else 'no'}, {level.why}")
    lines += ["", "What `duoplda train` and Backend() will choose"]
    for text in advice.chosen:
        add("- ", text)
    if advice.cautions:
        lines += ["", "Look at"]
        for text in advice.cautions:
            add("- ", text)
    lines += ["", "What to do"]
    for leaf in advice.leaves:
        add(f"{leaf.letter}. ", f"{leaf.advice} {leaf.reason}")
    add("", "Letters are those of docs/choosing.md, which has what was measured on real speech.")
    return lines
