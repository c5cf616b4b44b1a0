"""The answers of a registry as plain data, to print or to send."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from duoplda.trials.identification import Verdict


def _schema(description: str | None = None, example: object = None) -> dict[str, Any]:
    """The metadata of a field, which the HTTP service puts into its OpenAPI description."""
    metadata = {"description": description, "examples": None if example is None else [example]}
    return {name: value for name, value in metadata.items() if value is not None}


@dataclass(frozen=True)
class Session:
    """One enrolled session of a voice: how many recordings it has, when it was added, and by whom.

    >>> from datetime import UTC
    >>> Session("call-1", 2, datetime(2026, 1, 31, tzinfo=UTC), "ann").n_recordings
    2
    """

    name: str = field(metadata=_schema(example="2026-03-02"))
    n_recordings: int = field(metadata=_schema(example=3))
    added: datetime
    by: str | None = field(metadata=_schema("Who added it; in the service this is the name of a token.", "office"))


@dataclass(frozen=True)
class Voice:
    """A known voice: counts and dates. `sessions` is filled by `Registry.voice`, and empty in lists of voices.

    >>> from datetime import UTC
    >>> day = datetime(2026, 1, 31, tzinfo=UTC)
    >>> Voice("ann", 3, 4, day, day).n_sessions
    3
    """

    name: str = field(metadata=_schema(example="anna"))
    n_sessions: int = field(metadata=_schema(example=2))
    n_recordings: int = field(metadata=_schema(example=5))
    created: datetime
    changed: datetime
    by: str | None = field(default=None, metadata=_schema("Who changed it last.", "office"))
    sessions: tuple[Session, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """A voice that it may be, its calibrated natural-log likelihood ratio, and the probability that it is this voice.

    The ratio depends on the recordings alone; the probability depends on the prior, too.

    >>> Candidate("ann", 12.3, 0.99).name
    'ann'
    """

    name: str = field(metadata=_schema(example="anna"))
    llr: float = field(metadata=_schema("The log-likelihood ratio, in nats.", 14.2))
    posterior: float = field(metadata=_schema("The probability that it is this voice.", 0.993))


@dataclass(frozen=True)
class Identification:
    """Who speaks: the most probable voices, the probability of somebody else, and the decision of least expected cost.

    The probabilities are as good as the model's calibration is on such recordings. They do not replace a person's
    judgement where a wrong name has consequences.

    Attributes
    ----------
    candidates : the most probable voices, the first one first
    someone_else : the probability that it is none of the voices of the registry
    decision : "accept": it is `name`; "nobody": it is somebody else; "unsure": the costs say to leave it open
    name : the voice that is accepted, or None
    domain_warning : a sentence that says that these recordings are unlike those of the model's training, so that ratios
        may mislead; None if they are like them

    >>> Identification((Candidate("ann", 12.3, 0.99),), 0.01, "accept", "ann").name
    'ann'
    """

    candidates: tuple[Candidate, ...] = field(metadata=_schema("The most probable voices, the first one first."))
    someone_else: float = field(metadata=_schema("The probability that it is none of the registry's voices.", 0.006))
    decision: Verdict
    name: str | None = field(metadata=_schema("Who it is, where the decision is to accept.", "anna"))
    domain_warning: str | None = field(default=None, metadata=_schema("Why the ratios may mislead, where they may."))


@dataclass(frozen=True)
class Verification:
    """Whether it is one given voice: the natural-log likelihood ratio, the probability, and the decision by the costs.

    `decision` is "accept", "nobody" (it is somebody else) or "unsure" (the costs say to leave it open).

    >>> Verification("ann", 12.3, 0.99, "accept").decision
    'accept'
    """

    name: str = field(metadata=_schema(example="anna"))
    llr: float = field(metadata=_schema("The log-likelihood ratio, in nats.", 14.2))
    posterior: float = field(metadata=_schema("The probability that it is this voice.", 0.999))
    decision: Verdict
    domain_warning: str | None = None
