"""What labels can teach a model, what training will choose for them, and what to do: docs/choosing.md for own data.

Nothing of training is repeated here. Random numbers stand in for the recordings, which then go where recordings go: how
many factors there are, whether speakers can be held out and whether trials can be made of them depends on labels alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from textwrap import TextWrapper
from typing import Any

import numpy as np

from duoplda.arrays import to_numpy
from duoplda.data import Labels, Recordings
from duoplda.data.labels import encode
from duoplda.data.recordings import ArrayRecordings
from duoplda.errors import DuopldaError, printable, some
from duoplda.estimators.backend import Backend
from duoplda.estimators.plda import PLDA
from duoplda.model import anova, simpler
from duoplda.model.statistics import Statistics
from duoplda.selection.decision import make_trials
from duoplda.selection.held_out import HeldOut

THOUSANDS = 1000  # speakers from which on the choice of shrinkage changes nothing on drawn data
PER_KIND = 10  # recordings of a kind for each dimension, below which its noise leans on that of the other kinds

# The leaves of the chart of docs/choosing.md that labels lead to: what to do, and what we measured. A pair such as
# 4.17/.160 is the EER in % and Cllr in bits; tests/test_advice.py compares the figures with those of the page.
LEAVES = {
    "A": (
        "Take another training set, or a model from elsewhere that you adapt.",
        "Speakers and sessions cannot be told apart: another day would look like another speaker, and ratios are not "
        "calibrated. If recordings of a speaker were made on several days, these are sessions: label them.",
    ),
    "B": (
        "Simplified PLDA, which comes by itself: any other PLDA will do as well.",
        "One recording against one, drawn data: 4.10/0.153 with the session level, 4.22/0.169 without. What is left to "
        "gain is shrinkage.",
    ),
    "C": (
        "Two sources, speakers and sessions, which come by themselves.",
        "so762, chosen for the decision: 5.44/.246 if copies count as sessions, 4.74/.190 with the session level; "
        "amnist 2.85/.120 and 2.36/.097. It repairs calibration more than it lowers the EER.",
    ),
    "D": (
        "A noise for each kind of channel, which comes by itself. Kinds need not be known in trials.",
        "so762 4.17/.160, where two sources have 4.74/.190; amnist 2.05/.081, where they have 2.36/.097. Inferred in "
        "trials: 4.26/.164 and 2.06/.081.",
    ),
    "E": (
        "If channels differ a lot and you can name their kinds, add a column `channel`; if not, learn them: "
        "--learn-channels auto, PLDA(n_channels='auto').",
        "so762 4.32/.169 without any label of a channel, 4.17/.160 with them.",
    ),
    "F": (
        "If you are not sure what pays: --model-type auto, PLDA(model='auto', shrinkage='auto').",
        "Plain, two sources and kinds, as far as they are labelled, are compared by held-out trials: costs .309, .273 "
        "and .252 on so762, .218, .193 and .181 on amnist. It takes as long as training all of them.",
    ),
    "G": (
        "Keep shrinkage='auto', which `duoplda train` and Backend() have, and a plain PLDA() has not.",
        "amnist, 36 speakers, kinds: 4.88/.355 by maximum likelihood, 3.01/.242 chosen by likelihood, 2.05/.081 chosen "
        "for the decision; so762, 150 speakers: 5.00/.261, 4.36/.205, 4.17/.160.",
    ),
    "H": (
        "With so many speakers any shrinkage will do, and shrinkage='auto' costs time.",
        "Drawn data, Cllr: with 1,000 speakers .0070 for none, likelihood and decision alike. On real speech its "
        "calibration may still matter.",
    ),
    "L": (
        "Name the sessions of enrolments, too (--sessions), where these have several recordings.",
        "Five against five of one session, drawn data: 0.72/0.036; 2.84/6.367 if copies count as sessions, 1.87/0.104 "
        "if they are averaged.",
    ),
}
# What is lost where labels of sessions are not there, with the figures of leaf C.
UNNAMED = (
    "no sessions are given, so that each recording counts as a session. If some are copies of one conversation, or its "
    "channels, name the sessions: so762 6.01/.442 if copies count as sessions, 5.36/.288 with the session level"
)


FOOT = (
    "Letters are those of docs/choosing.md. 4.17/.160 is the EER in % and Cllr in bits. so762 and amnist are "
    "embeddings of real speech through five channels, of 150 and 36 training speakers."
)


@dataclass(frozen=True)
class Level:
    """Whether a level of the model can be learnt, from how much, and why."""

    name: str  # speakers, sessions, noise, kinds
    learnt: bool
    differences: int  # that tell of it: degrees of freedom
    why: str


@dataclass(frozen=True)
class Leaf:
    """A leaf of the chart of docs/choosing.md."""

    letter: str
    advice: str
    reason: str  # with what was measured


@dataclass(frozen=True)
class Advice:
    """What labels allow, what training will choose, and what to do. `print` shows it as a page.

    Attributes
    ----------
    counts : numbers of speakers, sessions and recordings, and of those that have several
    sessions_per_speaker, recordings_per_session : the least, the median and the most
    kinds : recordings of each kind of channel; empty: no kinds are named
    dimensions : of the recordings, if they are known
    levels : what can be learnt, and what cannot
    model : what `Backend()` and `duoplda train` will train: "plain", "two-source" or "kinds"; None: they will refuse
    session_factors : whether it will have any
    chosen_by : what will choose the shrinkage: "trials" of held-out speakers, their "likelihood", or "nothing"
    calibrated : whether ratios will be
    chosen : the same in words, with the reasons
    cautions : what to look at before training
    leaves : of the chart of docs/choosing.md, as far as labels lead

    Example
    -------
    >>> found = advise(["ann", "ann", "bob", "bob"], ["1", "1", "2", "3"])
    >>> found.counts["speakers"], found.sessions_per_speaker, found.kinds
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

    def as_dict(self) -> dict[str, Any]:
        """The same as numbers, texts, lists and dictionaries."""
        return asdict(self)

    def __str__(self) -> str:
        return printable("\n".join(_page(self)), keep="\n")


def advise(speaker: Any, session: Any = None, channel: Any = None, *, dimensions: int | None = None) -> Advice:
    """What the labels of recordings allow, what `Backend()` and `duoplda train` will choose, and what to do.

    Parameters
    ----------
    speaker, session, channel : (N,) labels as for `Backend.fit`; or `Recordings` or `Labels` in place of the first
    dimensions : of the recordings, where they are known: some limits depend on them

    Examples
    --------
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(60, sessions=(1, 4), recordings=(1, 3), seed=0)
    >>> found = advise(speaker, session, dimensions=X.shape[1])
    >>> found.model, found.chosen_by, [leaf.letter for leaf in found.leaves]
    ('two-source', 'trials', ['C', 'E', 'F', 'G', 'L'])
    >>> advise(speaker).model
    'plain'
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
    return _Look(labels, None if dimensions is None else int(dimensions)).advice()


class _Look:
    """Labels, and what training would see of them."""

    def __init__(self, labels: Labels, d: int | None):
        self.labels = labels
        self.d = d
        self.M = len(labels.speaker_ids)
        self.H = labels.n_sessions
        self.N = labels.n_recordings
        self.per_speaker = np.bincount(to_numpy(labels.session_speaker), minlength=self.M)
        self.per_session = to_numpy(labels.counts).sum(axis=1)
        kind = to_numpy(labels.kind)
        K = len(labels.kinds)
        self.kinds = dict(zip(map(str, labels.kinds.tolist()), np.bincount(kind, minlength=K).tolist(), strict=True))
        who = np.unique(to_numpy(labels.speaker) * K + kind) % K
        self.speakers_of_kind = np.bincount(who, minlength=K)
        self.backend = Backend()
        self.plda: PLDA = self.backend.pipeline["plda"]
        X = np.random.default_rng(0).normal(size=(self.N, 1))
        self.stats: Statistics = self.plda.statistics(ArrayRecordings(X, labels=labels))

    def advice(self) -> Advice:
        several = {"speakers": int((self.per_speaker > 1).sum()), "sessions": int((self.per_session > 1).sum())}
        counts = {"speakers": self.M, "sessions": self.H, "recordings": self.N}
        counts |= {f"{name} with several {of}": several[name] for name, of in _PARTS.items()}
        refusal = self.refusal()
        by = "nothing" if refusal else self.chooser()
        return Advice(
            counts,
            _spread(self.per_speaker),
            _spread(self.per_session),
            self.kinds if self.named else {},
            self.d,
            self.levels(),
            None if refusal else self.model,
            self.nx and not refusal,
            by,
            by == "trials",
            (refusal,) if refusal else self.chosen(by),
            self.cautions(),
            tuple(Leaf(letter, *LEAVES[letter]) for letter in self.letters()),
        )

    @property
    def named(self) -> bool:
        """Whether kinds of channels are named."""
        return [*self.kinds] != [""]

    @property
    def nx(self) -> bool:
        """Whether there will be session factors."""
        return anova.session_rank(self.stats) > 0

    @property
    def model(self) -> str:
        """The model in the words of `PLDA(model=...)`; without session factors and kinds it is the plain one."""
        richest = simpler.possible(self.stats)[0]
        return "plain" if richest == "two-source" and not self.nx else richest

    def refusal(self) -> str | None:
        """Why training will refuse."""
        try:
            anova.check_identifiable(self.stats, self.stats.d, anova.session_rank(self.stats))
        except DuopldaError as error:
            return f"training refuses these labels: {error}"
        return None

    def chooser(self) -> str:
        """What will choose: trials of held-out speakers, where any can be made."""
        if not HeldOut.possible(self.stats):
            return "nothing"
        how = self.plda.by_trials()
        assert how is not None
        for fold in self.stats.folds:
            known = fold.kinds[self.stats.N - fold.N > 0]  # of a kind in this fold alone nothing is known
            sample = fold.sample
            if sample is not None and self.stats.K > 1:
                sample = sample.rows(np.flatnonzero(np.isin(sample.kind, known)))
            if make_trials(sample, how.enrolment) is not None:
                return "trials"
        return "likelihood"

    def levels(self) -> tuple[Level, ...]:
        """What can be told apart, as in the table of docs/choosing.md."""
        M = self.M
        H = self.H
        N = self.N
        what = {"speakers": M - 1, "sessions": H - M, "noise": N - H if N > H else N - M}
        if N == M:
            speakers = "no speaker has two recordings, so that speakers and noise cannot be told apart"
        elif H == M:
            speakers = "together with sessions: no speaker has two, so that both count as speakers"
        else:
            speakers = f"{_n(M - 1, 'difference')} between speakers"
        if N == H:
            sessions = "no session has two recordings: sessions and noise are one"
        elif H == M:
            sessions = "no speaker has two sessions: sessions and speakers are one"
        else:
            sessions = f"{_n(H - M, 'difference')} between sessions of a speaker"
        noise = f"{_n(N - H, 'difference')} between recordings of a session"
        if N == H:
            noise = f"together with sessions: {_n(N - M, 'difference')} between recordings of a speaker"
        kinds = "none are named, and only sessions with several recordings tell them apart"
        if self.stats.K > 1:
            kinds = f"{_n(self.stats.K, 'kind')} of channels, {min(self.kinds.values()):,} recordings of the rarest"
        elif self.named:
            kinds = "one kind of channel is named, which is as good as none"
        elif N > H:
            kinds = "none are named; --learn-channels can find them in sessions with several recordings"
        found = (M > 1 and N > M, N > H > M, N > M, self.stats.K > 1)
        whys = (speakers, sessions, noise if N > M else speakers, kinds)
        differences = (*what.values(), self.stats.K - 1)
        return tuple(map(Level, (*what, "kinds"), found, differences, whys))

    def chosen(self, by: str) -> tuple[str, ...]:
        """What training will choose, with the reasons."""
        K = self.stats.K
        H = self.H
        M = self.M
        N = self.N
        steps = " -> ".join(name for name, _ in self.backend.pipeline.steps)
        noise = f"a noise for each of the {K} kinds of channels" if K > 1 else "one noise"
        if self.nx:
            factors = "speaker and session factors"
            why = "sessions have several recordings, and speakers several sessions"
        else:
            factors = "speaker factors, no session factors"
            why = "no session has two recordings" if N == H else "no speaker has two sessions"
        lines = [f"steps: {steps}", f"model: {self.model}, with {factors} and {noise}, as {why}"]
        most = f"the data tell of at most {min(M - 1, self.d or M):,} directions of speakers"
        if self.nx:
            most += f" and {min(H - M, self.d or H):,} of sessions"
        lines.append(f"numbers of factors: as many as dimensions. Of these {most}; shrinkage fills the others")
        free = ["speaker", *(["session"] if self.nx else []), "noise", *(["channel"] if K > 1 else [])]
        what = f"shrinkage ({', '.join(free)})"
        folds = f"speakers are held out in {sum(len(f.speaker_ids) > 0 for f in self.stats.folds)} folds"
        lines += {
            "trials": [f"{what}, scales and calibration: by trials of held-out speakers; {folds}"],
            "likelihood": [
                f"{what}: by the likelihood of held-out speakers, as too few of them have two sessions; {folds}",
                "calibration: none, as no trials can be held out: ratios are not calibrated",
            ],
            "nothing": [f"{what}: fixed amounts, as there are too few speakers to hold some out; no calibration"],
        }[by]
        return tuple(lines)

    def cautions(self) -> tuple[str, ...]:
        """What to look at before training."""
        K = self.stats.K
        H = self.H
        M = self.M
        N = self.N
        d = self.d
        out = []
        if self.labels.session_ids is None and N > M:
            out.append(UNNAMED)
        single = int((self.per_speaker < 2).sum())
        if H > M and 2 * single > M:
            out.append(f"{single:,} of {M:,} speakers have one session, and tell nothing of how sessions differ")
        lonely = [name for name, n in zip(self.kinds, self.speakers_of_kind, strict=True) if n < 2]
        if K > 1 and lonely:
            cause = "cannot be told from that speaker. Is this column the kind of channel, such as phone or headset?"
            out.append(f"kinds of channels with one speaker ({some(lonely, 4)}): what is the channel's {cause}")
        if d is None:
            return tuple(out)
        df, where = (N - H, "sessions") if self.nx else (N - M, "speakers")
        if df < d:
            rest = "`duoplda train` warns and goes on by shrinkage, PLDA() refuses. Or reduce the dimensions (--lda)"
            out.append(f"{_n(df, 'difference')} within {where} for a noise of {d:,} dimensions: {rest}")
        if self.nx and d > H - M:
            out.append(f"{_n(H - M, 'difference')} between sessions for {d:,} dimensions: shrinkage fills the others")
        few = [name for name, n in self.kinds.items() if n < PER_KIND * d]
        if K > 1 and few:
            rest = "their noise leans on that of the others, as far as held-out speakers choose"
            out.append(f"kinds of channels with fewer than {PER_KIND * d:,} recordings ({some(few, 4)}): {rest}")
        return tuple(out)

    def letters(self) -> str:
        """The leaves of the chart that the labels lead to."""
        if self.M < 2 or self.H == self.M:
            return "A"
        first = "B" if self.N == self.H else "DF" if self.stats.K > 1 else "CEF"
        return first + ("H" if self.M >= THOUSANDS else "G") + "L" * (self.N > self.H)


_PARTS = {"speakers": "sessions", "sessions": "recordings"}


def _spread(n: Any) -> tuple[int, float, int]:
    return int(n.min()), float(np.median(n)), int(n.max())


def _n(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' * (n != 1)}"


def _page(found: Advice) -> list[str]:
    """Lines for people, no longer than 100 columns."""
    counts = found.counts
    lines = list[str]()

    def item(mark: str, text: str) -> None:
        lines.extend(TextWrapper(100, f"  {mark}", " " * (2 + len(mark)), break_long_words=False).wrap(text))

    def spread(n: tuple[int, float, int]) -> str:
        return f"{n[0]:,}" if n[0] == n[2] else f"{n[0]:,} to {n[2]:,}, median {n[1]:g}"

    size = f", of {_n(found.dimensions, 'dimension')}" if found.dimensions else ""
    numbers = [_n(counts[f"{name}s"], name) for name in ("speaker", "session", "recording")]
    lines.append(f"Labels: {', '.join(numbers)}{size}")
    each = {"speakers": found.sessions_per_speaker, "sessions": found.recordings_per_session}
    for name, of in _PARTS.items():
        have = counts[f"{name} with several {of}"]
        item("", f"{of} of a {name[:-1]}: {spread(each[name])}; {have:,} of {counts[name]:,} {name} have several")
    most = list(found.kinds.items())[:12]
    text = ", ".join(f"{name} {n:,}" for name, n in most) + ", ..." * (len(found.kinds) > len(most))
    item("", f"kinds of channels: {f'{len(found.kinds)} ({text})' if found.kinds else 'none are named'}")
    lines += ["", "What can be learnt"]
    for level in found.levels:
        item(f"{level.name + ':':<10}", f"{'yes' if level.learnt else 'no'}, {level.why}")
    lines += ["", "What `duoplda train` and Backend() will choose"]
    for text in found.chosen:
        item("- ", text)
    if found.cautions:
        lines += ["", "Look at"]
        for text in found.cautions:
            item("- ", text)
    lines += ["", "What to do, with what we measured"]
    for leaf in found.leaves:
        item(f"{leaf.letter}. ", leaf.advice)
        item("   ", leaf.reason)
    item("", FOOT)
    return lines
