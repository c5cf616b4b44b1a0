"""The routes: each reads a request, calls one method of the registry, and answers what that gives.

Names are parameters of the query. A path would not do: names of voices may have slashes, or be `..`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, TypedDict

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.routing import APIRoute

from duoplda.service import answers
from duoplda.service.bodies import ARRAYS, AUDIO, JSON, Labels, Reader
from duoplda.service.log import Audit, Fields
from duoplda.service.metrics import PROMETHEUS_TYPE, Metrics
from duoplda.service.problems import Problem
from duoplda.voices import Costs, Registry

VECTOR = [0.12, -1.5, 0.7]
RECORDINGS = {"embeddings": [VECTOR, VECTOR], "session": "2026-03-02"}
SPEAKERS = {"speakers": {"SPEAKER_00": [VECTOR, VECTOR], "SPEAKER_01": [VECTOR]}}

Name = Annotated[str, Query(description="The name of a voice.", examples=[answers.NAME])]
Session = Annotated[str | None, Query(description="The session of all recordings that are sent.")]
Kind = Annotated[str | None, Query(description="The kind of channel of all recordings.")]
Cost = Annotated[float, Query(ge=0, le=1e9)]
Known = Annotated[float, Query(description="The probability, before listening, that it is one of the voices.")]


class Body(TypedDict):
    """The body of a request, which the gate has read."""

    media_type: str
    body: bytes


async def _body(request: Request) -> Body:
    return {"media_type": request.headers.get("content-type", ""), "body": await request.body()}


Sent = Annotated[Body, Depends(_body)]


def _costs(cost_wrong_name: Cost = 1, cost_missed: Cost = 1, cost_unsure: Cost = 0.5) -> Costs:
    """What decisions cost."""
    return Costs(cost_wrong_name, cost_missed, cost_unsure)


Costing = Annotated[Costs, Depends(_costs)]


def _takes(scope: str, example: object = None) -> dict[str, object]:
    """What the description of a route says beside FastAPI: the scope of its token, and its body."""
    if example is None:
        return {"x-scope": scope}
    binary = {"schema": {"type": "string", "format": "binary"}}
    files = (*ARRAYS, AUDIO) if example is RECORDINGS else ARRAYS
    content: dict[str, object] = {JSON: {"schema": {}, "example": example}, **dict.fromkeys(files, binary)}
    return {"x-scope": scope, "requestBody": {"required": True, "content": content}}


def routes(registry: Registry, reader: Reader, metrics: Metrics, audit: Audit, tokens: bool) -> APIRouter:
    """The routes over one registry."""
    router = APIRouter()
    _add_reading(router, registry, audit)
    _add_changing(router, registry, reader, audit)
    _add_asking(router, registry, reader, metrics, audit)
    _add_watching(router, registry, reader, metrics, tokens)
    return router


def scopes_of(router: APIRouter) -> dict[tuple[str, str], str]:
    """What a token must allow for each method and path: "read", "write", or "" where none is needed."""
    routes = [route for route in router.routes if isinstance(route, APIRoute)]
    return {(method, r.path): (r.openapi_extra or {})["x-scope"] for r in routes for method in r.methods or ()}


def _add_reading(router: APIRouter, registry: Registry, audit: Audit) -> None:
    """Who is known."""

    @router.get("/voices", openapi_extra=_takes("read"))
    def list_voices(
        request: Request,
        search: Annotated[str | None, Query(description="Only names with this text in them.")] = None,
        offset: Annotated[int, Query(ge=0, le=1 << 60)] = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> answers.VoicesAnswer:
        """List voices by name."""
        with _audited(audit, request, "list"):
            voices = registry.voices(search)
        return answers.VoicesAnswer.model_validate(
            {"total": len(voices), "voices": voices[offset : offset + limit]}, from_attributes=True
        )

    @router.get("/voice", openapi_extra=_takes("read"))
    def show_voice(request: Request, name: Name) -> answers.VoiceWithSessions:
        """Show one voice and its sessions."""
        with _audited(audit, request, "show", voice=name):
            return answers.VoiceWithSessions.model_validate(registry.voice(name))


def _add_changing(router: APIRouter, registry: Registry, reader: Reader, audit: Audit) -> None:
    """Enrol, rename, merge, remove."""

    @router.post("/voice", status_code=201, openapi_extra=_takes("write", RECORDINGS))
    def add_recordings(
        request: Request,
        name: Name,
        sent: Sent,
        session: Session = None,
        kind: Kind = None,
        join: Annotated[bool, Query(description="Add recordings to sessions that the voice has already.")] = False,
    ) -> answers.VoiceWithSessions:
        """Add recordings to a voice, which is new if there is none of this name.

        A session that the voice has already is an error without `join`: what is sent twice must not count twice.
        """
        received = reader.recordings(**sent)
        sessions = _one(session, received.session)
        kinds = _one(kind, received.kind)
        with _audited(audit, request, "add", changes=True, voice=name, recordings=len(received.X)):
            voice = registry.add(name, received.X, sessions, kinds, by=request.state.who, join=join)
        return answers.VoiceWithSessions.model_validate(voice)

    @router.patch("/voice", openapi_extra=_takes("write"))
    def rename_voice(
        request: Request, name: Name, to: Annotated[str, Query(description="The new name.", examples=["anna b"])]
    ) -> answers.VoiceWithSessions:
        """Give a voice another name."""
        with _audited(audit, request, "rename", changes=True, voice=name, to=to):
            voice = registry.rename(name, to, by=request.state.who)
        return answers.VoiceWithSessions.model_validate(voice)

    @router.post("/voice/merge", openapi_extra=_takes("write"))
    def merge_voices(
        request: Request, name: Name, into: Annotated[str, Query(description="The voice that gets the sessions.")]
    ) -> answers.VoiceWithSessions:
        """Put all sessions of a voice to those of another one, and remove the first."""
        with _audited(audit, request, "merge", changes=True, voice=name, to=into):
            voice = registry.merge(name, into, by=request.state.who)
        return answers.VoiceWithSessions.model_validate(voice)

    # Without `response_model`, FastAPI before 0.116 takes "None" of a late annotation for a body, which a 204 has not.
    @router.delete("/voice", status_code=204, response_model=None, openapi_extra=_takes("write"))
    def remove_voice(request: Request, name: Name) -> None:
        """Remove a voice and all that is known of it."""
        with _audited(audit, request, "remove", changes=True, voice=name):
            registry.remove(name, by=request.state.who)

    @router.delete("/voice/session", status_code=204, response_model=None, openapi_extra=_takes("write"))
    def remove_session(
        request: Request, name: Name, session: Annotated[str, Query(description="A session of the voice.")]
    ) -> None:
        """Remove one session of a voice, as if it had never been added."""
        with _audited(audit, request, "remove session", changes=True, voice=name, session=session):
            registry.remove_session(name, session, by=request.state.who)


def _add_asking(router: APIRouter, registry: Registry, reader: Reader, metrics: Metrics, audit: Audit) -> None:
    """Who is it?"""

    @router.post("/identify", openapi_extra=_takes("read", RECORDINGS))
    def identify(
        request: Request,
        sent: Sent,
        costs: Costing,
        session: Session = None,
        kind: Kind = None,
        k: Annotated[int, Query(ge=1, le=1000, description="How many candidates to name.")] = 5,
        known: Known = 0.5,
    ) -> answers.IdentificationAnswer:
        """Say who speaks in the recordings, which are all of one person."""
        received = reader.recordings(**sent)
        sessions = _one(session, received.session)
        kinds = _one(kind, received.kind)
        with _audited(audit, request, "identify", recordings=len(received.X)) as outcome:
            answer = registry.identify(received.X, sessions, k, known, costs=costs, kind=kinds)
            outcome.update(decision=answer.decision, voice=answer.name)
        metrics.decisions.labels(answer.decision).inc()
        return answers.IdentificationAnswer.model_validate(answer)

    @router.post("/verify", openapi_extra=_takes("read", RECORDINGS))
    def verify(
        request: Request,
        name: Name,
        sent: Sent,
        costs: Costing,
        session: Session = None,
        kind: Kind = None,
        prior: Annotated[float, Query(description="The probability, before listening, that it is this voice.")] = 0.5,
    ) -> answers.VerificationAnswer:
        """Say whether one voice speaks in the recordings."""
        received = reader.recordings(**sent)
        sessions = _one(session, received.session)
        kinds = _one(kind, received.kind)
        with _audited(audit, request, "verify", voice=name, recordings=len(received.X)) as outcome:
            answer = registry.verify(name, received.X, sessions, prior, costs, kind=kinds)
            outcome.update(decision=answer.decision)
        metrics.decisions.labels(answer.decision).inc()
        return answers.VerificationAnswer.model_validate(answer)

    @router.post("/name_speakers", openapi_extra=_takes("read", SPEAKERS))
    def name_speakers(
        request: Request,
        sent: Sent,
        costs: Costing,
        known: Known = 0.5,
        once: Annotated[bool, Query(description="No voice is two of the speakers.")] = True,
    ) -> answers.SpeakersAnswer:
        """Name the local speakers of one file together."""
        speakers = reader.speakers(**sent)
        with _audited(audit, request, "name speakers", recordings=sum(map(len, speakers.values()))):
            named = registry.name_speakers(speakers, known=known, costs=costs, once=once)
        for answer in named.values():
            metrics.decisions.labels(answer.decision).inc()
        return answers.SpeakersAnswer.model_validate({"speakers": named}, from_attributes=True)


def _add_watching(router: APIRouter, registry: Registry, reader: Reader, metrics: Metrics, tokens: bool) -> None:
    """Whether the service works."""

    @router.get("/health", openapi_extra=_takes(""))
    async def health() -> answers.HealthAnswer:
        """Say that the service runs."""
        return answers.HealthAnswer()

    @router.get("/ready", openapi_extra=_takes(""))
    def ready() -> answers.ReadyAnswer:
        """Say that the registry answers; else the answer is a problem."""
        len(registry)
        return answers.ReadyAnswer(
            tokens=tokens,
            dimension=reader.dimension,
            max_rows=reader.limits.max_rows,
            audio=reader.listen is not None,
        )

    @router.get("/metrics", openapi_extra=_takes("read"))
    def show_metrics() -> Response:
        """Counts and times for Prometheus."""
        return Response(metrics.text(), media_type=PROMETHEUS_TYPE)


def _one(query: str | None, body: Labels) -> Labels:
    """A label that may come in the query or in the body."""
    if query is not None and body is not None:
        raise Problem(422, "say it once: in the query or in the body")
    return body if query is None else query


@contextmanager
def _audited(
    audit: Audit, request: Request, action: str, *, changes: bool = False, **what: str | int
) -> Iterator[Fields]:
    """Write down what is done: a change before it is made and after it, so that none is without a line."""
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
