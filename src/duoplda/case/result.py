"""The result of a case as plain data, to print, to draw or to send. Nothing is computed here.

All ratios are natural logarithms. `in_log10` turns them into the orders of magnitude that forensic science writes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.errors import DuopldaError

Floats = NDArray[np.float64]


class CaseRefused(DuopldaError):
    """No ratio can be given for this case; the message says why, and what to do.

    `reason` is one word for programs: "population" (too few speakers for a validation), "domain" (the recordings are
    unlike those of the training, and the model was not adapted), "both sides" (a session or a recording is on both
    sides), or "in population" (a recording of the case is among those of the population).

    >>> try:
    ...     raise CaseRefused("population", "3 speakers are too few: give at least 10")
    ... except CaseRefused as refused:
    ...     print(refused.reason, "|", refused)
    population | 3 speakers are too few: give at least 10
    """

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason = reason


def in_log10(nats: float) -> float:
    """Return the logarithm to the base 10 of a ratio that is given as its natural logarithm.

    >>> round(in_log10(math.log(1000)), 12)
    3.0
    """
    return nats / math.log(10)


class Estimate(NamedTuple):
    """A number and its interval over speakers, that is, how far it might move with other speakers of the population.

    >>> Estimate(0.2, 0.1, 0.4).high
    0.4
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class SideStructure:
    """The structure of one side of a comparison: its sessions, recordings and kinds of channels, without the vectors.

    Attributes
    ----------
    sessions : for each session, its number of recordings of each kind of channel; the largest sessions come first.
        A kind is "" where the kinds are not labelled.
    n_occasions : the number of days (or calls, or files) on which these sessions were; None where it is not known, or
        not used

    >>> side = SideStructure(({"telephone": 1}, {"clean": 1}))
    >>> side.n_sessions, side.n_recordings, str(side)
    (2, 2, '1 session of telephone, 1 session of clean')
    """

    sessions: tuple[dict[str, int], ...]
    n_occasions: int | None = None

    @property
    def n_sessions(self) -> int:
        """The number of sessions."""
        return len(self.sessions)

    @property
    def n_recordings(self) -> int:
        """The number of recordings."""
        return sum(sum(kinds.values()) for kinds in self.sessions)

    def __str__(self) -> str:
        words = [_session_in_words(kinds) for kinds in self.sessions]
        alike = {text: words.count(text) for text in words}  # in the order of the sessions
        text = ", ".join(f"{n} session{'s' * (n > 1)}{text}" for text, n in alike.items())
        n = self.n_occasions
        return text if n is None else f"{text}, on {n} occasion{'s' * (n > 1)}"


def _session_in_words(kinds: dict[str, int]) -> str:
    """The recordings of a session, such as " of telephone" or " of 2 clean and codec"."""
    if list(kinds) == [""]:
        n = kinds[""]
        return "" if n == 1 else f" of {n} recordings"
    parts = [name if n == 1 else f"{n} {name}" for name, n in kinds.items()]
    return f" of {' and '.join([', '.join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)}"


@dataclass(frozen=True)
class Population:
    """The relevant population, and how far it could be matched with the case.

    Attributes
    ----------
    n_speakers, n_sessions, n_recordings : the numbers that were given
    n_used : the number of speakers who have recordings as in the case, and so take part in the validation
    known, questioned : the structure of the sides that were drawn from it; that of the case if nothing is lacking
    lacking : sentences that say what the population lacks, and what was taken instead; empty if it lacks nothing

    >>> one = SideStructure(({"telephone": 1},))
    >>> Population(40, 160, 320, n_used=37, known=one, questioned=one, lacking=()).n_used
    37
    """

    n_speakers: int
    n_sessions: int
    n_recordings: int
    n_used: int
    known: SideStructure
    questioned: SideStructure
    lacking: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Validation:
    """How well the whole procedure did on pairs of the population in the structure of the case.

    No pair was judged by an adaptation or a calibration that had seen either of its speakers. So the figures say how
    often, and how far, a ratio like that of the case misleads, if the case is like the population.

    Attributes
    ----------
    n_speakers, n_same, n_different : the numbers of speakers, and of pairs of sides of one speaker and of two
    n_pairs_of_speakers : the number of different pairs of speakers among the latter, on which the bounds depend
    cllr, min_cllr, calibration_loss, eer, dev_pav : metrics with intervals over speakers. The first three are in bits,
        the EER is a share, and devPAV is in nats (NaN where the classes do not overlap).
    misleading_same, misleading_different : the shares of pairs of one speaker with a ratio below 1, and of two speakers
        with a ratio above 1
    lowest_same, highest_different : the strongest misleading ratios (0 where there is none)
    own_cllr, own_calibration_loss : the same metrics of the ratios by the model's own calibration, or by none
    scores, labels, known_speaker, questioned_speaker : (n,) the ratios of the pairs, whether they are of one speaker,
        and the names of their speakers, for Tippett, ECE and PAV plots
    weights : (n,) the weights of the pairs in all metrics, by which each speaker, and each pair of speakers, counts as
        one

    >>> from dataclasses import fields
    >>> [field.name for field in fields(Validation) if field.type == "Estimate"][:5]  # those with an interval
    ['cllr', 'min_cllr', 'calibration_loss', 'eer', 'dev_pav']
    """

    n_speakers: int
    n_same: int
    n_different: int
    n_pairs_of_speakers: int
    cllr: Estimate
    min_cllr: Estimate
    calibration_loss: Estimate
    eer: Estimate
    dev_pav: Estimate
    misleading_same: Estimate
    misleading_different: Estimate
    lowest_same: Estimate
    highest_different: Estimate
    own_cllr: float
    own_calibration_loss: float
    scores: Floats
    labels: NDArray[np.bool_]
    known_speaker: NDArray[np.str_]
    questioned_speaker: NDArray[np.str_]
    weights: Floats


@dataclass(frozen=True)
class Support:
    """The bounds of the ratios that the validation supports; nothing was tested beyond them.

    Each pair of speakers counts once, however many pairs of their sides were drawn.

    Attributes
    ----------
    elub, invariance : the (lowest, highest) log ratio that each rule supports
    lower, upper : the narrower bounds of both rules

    >>> Support(elub=(-4.0, 5.0), invariance=(-3.5, 5.5), lower=-3.5, upper=5.0).upper
    5.0
    """

    elub: tuple[float, float]
    invariance: tuple[float, float]
    lower: float
    upper: float


@dataclass(frozen=True)
class Ratio:
    """The likelihood ratio of the case, as a natural logarithm. Only `stated` and its interval are for a conclusion.

    Attributes
    ----------
    raw : the ratio by the model (adapted, if it was), without any calibration
    own : the ratio by the model's own calibration; `raw` if it has none
    calibrated : the ratio by the calibration in the structure of the case, before any bound
    low, high : the interval of `calibrated` over resamples of the population's speakers
    confidence : the confidence of that interval, such as .95
    scale, offset : calibrated = scale own + offset
    stated : the ratio that may be stated: `calibrated`, or the bound beyond which it lies
    relation : "about", "at least" or "at most", which belongs before `stated`
    bound_by : the rule whose bound was reached, "elub" or "invariance"; None if none was
    stated_low, stated_high : the interval, kept within the bounds as well
    support : the bounds

    >>> calibrated = {"raw": 9.0, "own": 8.0, "calibrated": 6.5, "low": 5.8, "high": 7.4, "confidence": 0.95}
    >>> stated = {"stated": 5.0, "relation": "at least", "bound_by": "elub", "stated_low": 5.0, "stated_high": 5.0}
    >>> bounds = Support((-4.0, 5.0), (-3.5, 5.5), -3.5, 5.0)
    >>> ratio = Ratio(**calibrated, scale=0.8, offset=0.1, **stated, support=bounds)
    >>> f"{ratio.relation} {math.exp(ratio.stated):.0f}"
    'at least 148'
    """

    raw: float
    own: float
    calibrated: float
    low: float
    high: float
    confidence: float
    scale: float
    offset: float
    stated: float
    relation: str
    bound_by: str | None
    stated_low: float
    stated_high: float
    support: Support


@dataclass(frozen=True)
class SessionShare:
    """The share of one session in the ratio: the ratio with it minus the ratio without it, both calibrated.

    Attributes
    ----------
    side : "known" or "questioned"
    session : its name
    structure : its numbers of recordings by kind of channel
    without : the ratio without it, calibrated in that structure; None if it is the only session of its side
    share : `calibrated` minus `without`, or None

    >>> SessionShare("known", "monday", {"telephone": 1}, without=2.5, share=0.75).share
    0.75
    """

    side: str
    session: str
    structure: dict[str, int]
    without: float | None
    share: float | None


@dataclass(frozen=True)
class Distance:
    """A distance as a mean square per dimension, and its place among the distances of the population.

    Attributes
    ----------
    value : the distance; the model expects 1 on average
    farther : the share of comparable sides (or pairs of sides) of the population that lie farther

    >>> Distance(value=1.9, farther=0.04).farther  # rare in this population
    0.04
    """

    value: float
    farther: float


@dataclass(frozen=True)
class Sensitivity:
    """The ratio after one change of its grounds, such as another calibration or a kind of channel less.

    Attributes
    ----------
    what : the change as a phrase, such as "calibrated by one half of the population"
    group : "population", "kind", "calibration" or "adaptation", for programs
    calibrated : the ratio after the change; None where there is none, and `note` says why
    n_speakers : the number of speakers in its calibration; 0 for the model's own
    note : a remark, or an empty text

    >>> Sensitivity("without recordings of the kind codec", "kind", calibrated=1.5, n_speakers=22).note
    ''
    """

    what: str
    group: str
    calibrated: float | None
    n_speakers: int
    note: str = ""


@dataclass(frozen=True)
class DomainCheck:
    """How far recordings lie from those of the model's training (`duoplda.estimators.domain`).

    Where they are not within the limit, ratios of the model may be wrong in either direction.

    Attributes
    ----------
    what : "the case" or "the population"
    distance, limit : the squared distance of their mean, and the largest that is usual for this number of recordings
    within : whether the distance is within the limit
    n_recordings, n_speakers : the numbers of recordings and speakers that were checked
    adapted : whether this is the distance from an adapted model

    >>> DomainCheck("the case", 14.2, 5.1, within=False, n_recordings=4, n_speakers=1, adapted=False).within
    False
    """

    what: str
    distance: float
    limit: float
    within: bool
    n_recordings: int
    n_speakers: int
    adapted: bool


@dataclass(frozen=True, eq=False)
class CaseResult:
    """An assessed case: the ratio, its validation and its grounds.

    Attributes
    ----------
    known, questioned : the structure of the two sides of the case
    population : the relevant population, and how far it could be matched with the case
    validation : the validation of the whole procedure in that structure
    ratio : the ratio that may be stated, its interval and its bounds
    sessions : the share of each session
    typicality_known, typicality_questioned : how far each side lies from the middle of the population; `farther` is the
        share of the population's sides of this structure that lie farther out. A similarity between sides that are rare
        in the population is stronger evidence than one between common ones.
    similarity : how far the two sides lie from each other, relative to what the model expects of one speaker;
        `farther` is the share of the population's same-speaker pairs that lie farther apart
    similarity_different : the share of the population's different-speaker pairs that lie farther apart
    sensitivity : the ratio after changes of its grounds
    domain : checks of the population and of the case
    adapted : what `Backend.adapt` did (its `adapted_`), or None
    seed, n_resamples : the seed and the number of resamples, which repeat the result to the last bit
    prior_weight : lambda of the calibration's prior, which keeps it near the model's own
    notes : further sentences for the reader

    >>> from dataclasses import fields
    >>> [field.name for field in fields(CaseResult)][:5]  # `assess` fills them
    ['known', 'questioned', 'population', 'validation', 'ratio']
    """

    known: SideStructure
    questioned: SideStructure
    population: Population
    validation: Validation
    ratio: Ratio
    sessions: tuple[SessionShare, ...]
    typicality_known: Distance
    typicality_questioned: Distance
    similarity: Distance
    similarity_different: float
    sensitivity: tuple[Sensitivity, ...]
    domain: tuple[DomainCheck, ...]
    adapted: dict[str, Any] | None
    seed: int
    n_resamples: int
    prior_weight: float
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the same as dictionaries, lists, texts and numbers, for JSON; NaN and infinity become None."""
        plain = _plain(asdict(self))
        assert isinstance(plain, dict)
        return plain


def _plain(value: Any) -> Any:
    """A value of the fields above as values that JSON can hold."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, Estimate):
        return {name: _plain(item) for name, item in value._asdict().items()}
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(item) for item in (value.tolist() if isinstance(value, np.ndarray) else value)]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
