"""What the routes answer, as models that the API's description is made of, with examples."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

NAME = "anna"


class Answer(BaseModel):
    """What is made of an object of the library, by the names of its attributes."""

    model_config = ConfigDict(from_attributes=True)


class SessionAnswer(Answer):
    """One session of a voice."""

    name: str = Field(examples=["2026-03-02"])
    n_recordings: int = Field(examples=[3])
    added: datetime
    by: str | None = Field(None, description="The token that added it.", examples=["office"])


class VoiceAnswer(Answer):
    """A voice of the registry."""

    name: str = Field(examples=[NAME])
    n_sessions: int = Field(examples=[2])
    n_recordings: int = Field(examples=[5])
    created: datetime
    changed: datetime


class VoiceWithSessions(VoiceAnswer):
    """A voice and its sessions."""

    sessions: list[SessionAnswer]


class VoicesAnswer(BaseModel):
    """Some of the voices."""

    total: int = Field(description="How many there are, of which `voices` may be a part.", examples=[1])
    voices: list[VoiceAnswer]


class CandidateAnswer(Answer):
    """A voice that may be the speaker."""

    name: str = Field(examples=[NAME])
    llr: float = Field(description="The log-likelihood ratio, in nats.", examples=[14.2])
    posterior: float = Field(description="The probability that it is this voice.", examples=[0.993])


class IdentificationAnswer(Answer):
    """Who it is."""

    candidates: list[CandidateAnswer] = Field(description="The likeliest voices, the first one first.")
    someone_else: float = Field(description="The probability that it is nobody of the registry.", examples=[0.006])
    decision: Literal["accept", "nobody", "unsure"]
    name: str | None = Field(None, description="Who it is, where the decision is to accept.", examples=[NAME])
    domain_warning: str | None = Field(None, description="Why the ratios may mislead, where they may.")


class VerificationAnswer(Answer):
    """Whether it is one voice."""

    name: str = Field(examples=[NAME])
    llr: float = Field(description="The log-likelihood ratio, in nats.", examples=[14.2])
    posterior: float = Field(examples=[0.999])
    decision: Literal["accept", "nobody", "unsure"]
    domain_warning: str | None = None


class SpeakersAnswer(BaseModel):
    """Who each local speaker is."""

    speakers: dict[str, IdentificationAnswer]


class HealthAnswer(BaseModel):
    """That the service runs."""

    status: Literal["ok"] = "ok"


class ReadyAnswer(BaseModel):
    """What the page begins with."""

    status: Literal["ready"] = "ready"
    tokens: bool = Field(description="Whether a token is asked for.")
    dimension: int = Field(description="Numbers of a vector.", examples=[192])
    max_rows: int = Field(description="Recordings of a request, at most.", examples=[2000])
    audio: bool = Field(description="Whether audio may be sent, which the service embeds.")


class ProblemAnswer(BaseModel):
    """What is wrong, as RFC 9457 has it."""

    type: str = Field(examples=["about:blank"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(description="The cause and the remedy.", examples=["there is no voice 'anne'"])
    instance: str = Field(description="The id of the request, which is that of the log.")
