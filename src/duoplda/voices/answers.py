"""What a registry answers: plain data, to print or to send."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from duoplda.trials.identification import Verdict


def _told(description: str | None = None, example: object = None) -> dict[str, Any]:
    """What the description of the HTTP service says of a field."""
    told = {"description": description, "examples": None if example is None else [example]}
    return {name: value for name, value in told.items() if value is not None}


@dataclass(frozen=True)
class Session:
    """One enrolled session of a voice: how many recordings it has, when it was added, and by whom.

    >>> from datetime import UTC
    >>> Session("call-1", 2, datetime(2026, 1, 31, tzinfo=UTC), "ann").n_recordings
    2
    """

    name: str = field(metadata=_told(example="2026-03-02"))
    n_recordings: int = field(metadata=_told(example=3))
    added: datetime
    by: str | None = field(metadata=_told("Who added it: of the service, the name of a token.", "office"))


@dataclass(frozen=True)
class Voice:
    """A known voice: counts and dates. Its sessions are there where one voice was asked for (`Registry.voice`).

    >>> from datetime import UTC
    >>> day = datetime(2026, 1, 31, tzinfo=UTC)
    >>> Voice("ann", 3, 4, day, day).n_sessions
    3
    """

    name: str = field(metadata=_told(example="anna"))
    n_sessions: int = field(metadata=_told(example=2))
    n_recordings: int = field(metadata=_told(example=5))
    created: datetime
    changed: datetime
    by: str | None = field(default=None, metadata=_told("Who changed it last.", "office"))
    sessions: tuple[Session, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """A voice that it may be, its calibrated ln likelihood ratio, and the probability that it is this one.

    >>> Candidate("ann", 12.3, 0.99).name
    'ann'
    """

    name: str = field(metadata=_told(example="anna"))
    llr: float = field(metadata=_told("The log-likelihood ratio, in nats.", 14.2))
    posterior: float = field(metadata=_told("The probability that it is this voice.", 0.993))


@dataclass(frozen=True)
class Identification:
    """Who it is: the most probable voices, the probability of somebody else, and what is decided by the costs.

    Attributes
    ----------
    candidates : the most probable voices, the first one first
    someone_else : the probability that it is none of the voices of the registry
    decision : "accept": it is `name`; "nobody": it is somebody else; "unsure": it is better left open
    name : the voice that is accepted, or None
    domain_warning : that these recordings are unlike those that the model was trained on, so that ratios may mislead;
        None where they are like them

    >>> Identification((Candidate("ann", 12.3, 0.99),), 0.01, "accept", "ann").name
    'ann'
    """

    candidates: tuple[Candidate, ...] = field(metadata=_told("The most probable voices, the first one first."))
    someone_else: float = field(metadata=_told("The probability that it is nobody of the registry.", 0.006))
    decision: Verdict
    name: str | None = field(metadata=_told("Who it is, where the decision is to accept.", "anna"))
    domain_warning: str | None = field(default=None, metadata=_told("Why the ratios may mislead, where they may."))


@dataclass(frozen=True)
class Verification:
    """Whether it is one given voice: its ln likelihood ratio, the probability, and what is decided by the costs.

    `decision` is "accept", "nobody" (it is somebody else) or "unsure".

    >>> Verification("ann", 12.3, 0.99, "accept").decision
    'accept'
    """

    name: str = field(metadata=_told(example="anna"))
    llr: float = field(metadata=_told("The log-likelihood ratio, in nats.", 14.2))
    posterior: float = field(metadata=_told("The probability that it is this voice.", 0.999))
    decision: Verdict
    domain_warning: str | None = None
