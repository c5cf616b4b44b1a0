"""The routes: each reads a request, calls one method of the registry, and sends its answer.

Names are query parameters. They could not be part of a path, as a name may contain slashes, or be `..`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.routing import APIRoute
from prometheus_client import generate_latest
from pydantic import BaseModel, Field

from duoplda.service.bodies import ARRAYS, AUDIO, JSON, Labels, Reader, Received
from duoplda.service.log import Audit, Fields
from duoplda.service.metrics import PROMETHEUS_TYPE, Metrics
from duoplda.service.problems import Problem
from duoplda.voices import Costs, Identification, Registry, Verification, Voice

VECTOR = [0.12, -1.5, 0.7]
RECORDINGS = {"embeddings": [VECTOR, VECTOR], "session": "2026-03-02"}
SPEAKERS = {"speakers": {"SPEAKER_00": [VECTOR, VECTOR], "SPEAKER_01": [VECTOR]}}

Name = Annotated[str, Query(description="The name of a voice.", examples=["anna"])]
Session = Annotated[str | None, Query(description="The session of all recordings of the request.")]
Kind = Annotated[str | None, Query(description="The kind of channel of all recordings of the request.")]
Cost = Annotated[float, Query(ge=0, le=1e9)]
Known = Annotated[float, Query(description="The prior probability that it is one of the voices.")]
Discount = Annotated[float, Query(gt=0, le=1e6, description="How much a recording counts, if one turn counts 1.")]


@dataclass(frozen=True)
class Parts:
    """The objects that routes use; the application keeps them as `app.state.parts`."""

    registry: Registry
    reader: Reader
    metrics: Metrics
    audit: Audit
    tokens: bool  # whether requests need a token


async def _parts(request: Request) -> Parts:  # async, like `_costs`: FastAPI runs other functions in a thread
    parts: Parts = request.app.state.parts
    return parts


Using = Annotated[Parts, Depends(_parts)]


async def _body(request: Request) -> tuple[str, bytes]:
    """The media type and the body of a request, which the gate has read."""
    return request.headers.get("content-type", ""), await request.body()


Body = Annotated[tuple[str, bytes], Depends(_body)]


def _recordings(parts: Using, body: Body, session: Session = None, kind: Kind = None) -> Received:
    """The recordings of a body, whose session and kind may be in the query instead."""
    received = parts.reader.recordings(*body)
    return Received(received.X, _one(session, received.session), _one(kind, received.kind))


def _one(query: str | None, body: Labels) -> Labels:
    """A label that may come in the query or in the body."""
    if query is not None and body is not None:
        raise Problem(422, "session and kind may be given once only: in the query or in the body")
    return body if query is None else query


Recordings = Annotated[Received, Depends(_recordings)]


async def _costs(cost_wrong_name: Cost = 1, cost_missed: Cost = 1, cost_unsure: Cost = 0.5) -> Costs:
    """The costs of decisions, from the query."""
    return Costs(cost_wrong_name, cost_missed, cost_unsure)


Costing = Annotated[Costs, Depends(_costs)]


def _takes(scope: str, example: object = None) -> dict[str, object]:
    """What the OpenAPI description of a route has beside that of FastAPI: the scope of its token, and its body."""
    if example is None:
        return {"x-scope": scope}
    binary = {"schema": {"type": "string", "format": "binary"}}
    files = (*ARRAYS, AUDIO) if example is RECORDINGS else ARRAYS
    content: dict[str, object] = {JSON: {"schema": {}, "example": example}, **dict.fromkeys(files, binary)}
    return {"x-scope": scope, "requestBody": {"required": True, "content": content}}


def scopes() -> dict[tuple[str, str], str]:
    """Return the scope that a token needs for each method and path: "read", "write", or "" if no token is needed."""
    routes = [route for route in router.routes if isinstance(route, APIRoute)]
    return {(method, r.path): (r.openapi_extra or {})["x-scope"] for r in routes for method in r.methods or ()}


@contextmanager
def _audited(request: Request, action: str, *, changes: bool = False, **what: str | int) -> Iterator[Fields]:
    """Write an action to the audit log: a change before and after it is made, so that none is without a line."""
    audit: Audit = request.app.state.parts.audit
    client = request.client.host if request.client else None
    who = {"who": request.state.who, "client": client, "request": request.state.request_id}
    fields: Fields = {**who, "action": action, **what}
    outcome: Fields = {"outcome": "done"}
    if changes:
        audit.write({**fields, "outcome": "begun"})
    try:
        yield outcome
    except Exception:
        outcome["outcome"] = "failed"
        raise
    finally:
        audit.write({**fields, **outcome})


router = APIRouter()

# -- who is known


class Voices(BaseModel):
    """Some of the voices, without their sessions."""

    total: int = Field(
        description="The number of voices that were found; `voices` may be a part of them.", examples=[1]
    )
    voices: list[Voice]


@router.get("/voices", response_model_exclude={"voices": {"__all__": {"sessions"}}}, openapi_extra=_takes("read"))
def list_voices(
    request: Request,
    parts: Using,
    search: Annotated[str | None, Query(description="List only names that contain this text.")] = None,
    offset: Annotated[int, Query(ge=0, le=1 << 60)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Voices:
    """List voices by name."""
    with _audited(request, "list"):
        voices = parts.registry.voices(search)
    return Voices(total=len(voices), voices=voices[offset : offset + limit])


@router.get("/voice", openapi_extra=_takes("read"))
def show_voice(request: Request, parts: Using, name: Name) -> Voice:
    """Show one voice and its sessions."""
    with _audited(request, "show", voice=name):
        return parts.registry.voice(name)


# -- enrol, rename, merge, remove


@router.post("/voice", status_code=201, openapi_extra=_takes("write", RECORDINGS))
def add_recordings(
    request: Request,
    parts: Using,
    name: Name,
    received: Recordings,
    join: Annotated[bool, Query(description="Add recordings to sessions that the voice has already.")] = False,
) -> Voice:
    """Add recordings to a voice; a voice of this name is made if there is none.

    Without `join`, a session that the voice has already is an error: recordings that are sent twice must not count
    twice.
    """
    X, session, kind = received
    with _audited(request, "add", changes=True, voice=name, recordings=len(X)):
        return parts.registry.add(name, X, session, kind, by=request.state.who, join=join)


@router.patch("/voice", openapi_extra=_takes("write"))
def rename_voice(
    request: Request,
    parts: Using,
    name: Name,
    to: Annotated[str, Query(description="The new name.", examples=["anna b"])],
) -> Voice:
    """Give a voice another name."""
    with _audited(request, "rename", changes=True, voice=name, to=to):
        return parts.registry.rename(name, to, by=request.state.who)


@router.post("/voice/merge", openapi_extra=_takes("write"))
def merge_voices(
    request: Request,
    parts: Using,
    name: Name,
    into: Annotated[str, Query(description="The voice that gets the sessions.")],
) -> Voice:
    """Give all sessions of a voice to another one, and remove the first."""
    with _audited(request, "merge", changes=True, voice=name, to=into):
        return parts.registry.merge(name, into, by=request.state.who)


# Without `response_model`, FastAPI before 0.116 reads "None" in a postponed annotation as a body; a 204 may have none.
@router.delete("/voice", status_code=204, response_model=None, openapi_extra=_takes("write"))
def remove_voice(request: Request, parts: Using, name: Name) -> None:
    """Remove a voice and all its sessions."""
    with _audited(request, "remove", changes=True, voice=name):
        parts.registry.remove(name, by=request.state.who)


@router.delete("/voice/session", status_code=204, response_model=None, openapi_extra=_takes("write"))
def remove_session(
    request: Request,
    parts: Using,
    name: Name,
    session: Annotated[str, Query(description="A session of the voice.")],
) -> None:
    """Remove one session of a voice, as if it had never been added."""
    with _audited(request, "remove session", changes=True, voice=name, session=session):
        parts.registry.remove_session(name, session, by=request.state.who)


# -- who is it?


@router.post("/identify", openapi_extra=_takes("read", RECORDINGS))
def identify(
    request: Request,
    parts: Using,
    received: Recordings,
    costs: Costing,
    k: Annotated[int, Query(ge=1, le=1000, description="How many candidates to name.")] = 5,
    known: Known = 0.5,
) -> Identification:
    """Say who speaks in recordings, which must all be of one person."""
    X, session, kind = received
    with _audited(request, "identify", recordings=len(X)) as outcome:
        answer = parts.registry.identify(X, session, k, known, costs=costs, kind=kind)
        outcome.update(decision=answer.decision, voice=answer.name)
    parts.metrics.decisions.labels(answer.decision).inc()
    return answer


@router.post("/verify", openapi_extra=_takes("read", RECORDINGS))
def verify(
    request: Request,
    parts: Using,
    name: Name,
    received: Recordings,
    costs: Costing,
    prior: Annotated[float, Query(description="The prior probability that it is this voice.")] = 0.5,
) -> Verification:
    """Say whether one voice speaks in recordings, which must all be of one person."""
    X, session, kind = received
    with _audited(request, "verify", voice=name, recordings=len(X)) as outcome:
        answer = parts.registry.verify(name, X, session, prior, costs, kind=kind)
        outcome.update(decision=answer.decision)
    parts.metrics.decisions.labels(answer.decision).inc()
    return answer


@router.post("/name_speakers", openapi_extra=_takes("read", SPEAKERS))
def name_speakers(
    request: Request,
    parts: Using,
    body: Body,
    costs: Costing,
    known: Known = 0.5,
    discount: Discount = 1.0,
    once: Annotated[bool, Query(description="Whether the speakers are different people.")] = True,
) -> dict[Literal["speakers"], dict[str, Identification]]:
    """Say who the speakers of one file are."""
    speakers = parts.reader.speakers(*body)
    with _audited(request, "name speakers", recordings=sum(map(len, speakers.values()))):
        named = parts.registry.name_speakers(speakers, known=known, costs=costs, discount=discount, once=once)
    for answer in named.values():
        parts.metrics.decisions.labels(answer.decision).inc()
    return {"speakers": named}


# -- does the service work?


class Ready(BaseModel):
    """What a client has to know before its first question."""

    status: Literal["ready"] = "ready"
    tokens: bool = Field(description="Whether requests need a token.")
    dimension: int = Field(description="The dimension of the model's vectors.", examples=[192])
    max_rows: int = Field(description="The largest number of recordings in a request.", examples=[2000])
    audio: bool = Field(description="Whether audio may be sent, from which the service makes embeddings.")


@router.get("/health", openapi_extra=_takes(""))
async def health() -> dict[Literal["status"], Literal["ok"]]:
    """Say that the service runs."""
    return {"status": "ok"}


@router.get("/ready", openapi_extra=_takes(""))
def ready(parts: Using) -> Ready:
    """Say that the registry can be read; if it cannot, the answer is a problem."""
    len(parts.registry)
    reader = parts.reader
    audio = reader.listen is not None
    return Ready(tokens=parts.tokens, dimension=reader.dimension, max_rows=reader.limits.max_rows, audio=audio)


@router.get("/metrics", openapi_extra=_takes("read"))
def show_metrics(parts: Using) -> Response:
    """Give the metrics for Prometheus."""
    return Response(generate_latest(parts.metrics.registry), media_type=PROMETHEUS_TYPE)
