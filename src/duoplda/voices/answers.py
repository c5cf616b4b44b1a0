"""What a registry answers: plain data, to print or to send."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Session:
    """One enrolled session of a voice: how many recordings it has, when it was added, and by whom.

    >>> from datetime import UTC
    >>> Session("call-1", 2, datetime(2026, 1, 31, tzinfo=UTC), "ann").n_recordings
    2
    """

    name: str
    n_recordings: int
    added: datetime
    by: str | None


@dataclass(frozen=True)
class Voice:
    """A known voice: counts and dates. Its sessions are there where one voice was asked for (`Registry.voice`).

    >>> from datetime import UTC
    >>> day = datetime(2026, 1, 31, tzinfo=UTC)
    >>> Voice("ann", 3, 4, day, day).n_sessions
    3
    """

    name: str
    n_sessions: int
    n_recordings: int
    created: datetime
    changed: datetime
    by: str | None = None  # who changed it last
    sessions: tuple[Session, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """A voice that it may be, its calibrated ln likelihood ratio, and the probability that it is this one.

    >>> Candidate("ann", 12.3, 0.99).name
    'ann'
    """

    name: str
    llr: float
    posterior: float


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

    candidates: tuple[Candidate, ...]
    someone_else: float
    decision: str
    name: str | None
    domain_warning: str | None = None


@dataclass(frozen=True)
class Verification:
    """Whether it is one given voice: its ln likelihood ratio, the probability, and what is decided by the costs.

    `decision` is "accept", "nobody" (it is somebody else) or "unsure".

    >>> Verification("ann", 12.3, 0.99, "accept").decision
    'accept'
    """

    name: str
    llr: float
    posterior: float
    decision: str
    domain_warning: str | None = None
