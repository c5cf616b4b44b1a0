"""The application: the routes, the files of the page, and the gate before both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from importlib.resources import files

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError

from duoplda.errors import DuopldaError, printable
from duoplda.service.bodies import Reader
from duoplda.service.gate import LOCAL_NAMES, Gate
from duoplda.service.log import Audit
from duoplda.service.metrics import Metrics
from duoplda.service.problems import PROBLEM_TYPE, Problem, ProblemDetails, problem_of
from duoplda.service.routes import Parts, router, scopes
from duoplda.service.tokens import Token
from duoplda.voices import Registry

PAGE = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
DESCRIPTION = """Who is this? Known voices, and calibrated answers in nats.

Recordings are sent as vectors of the model's extractor: JSON, `.npy` or `.npz` (no pickle), one row for each recording;
where `/ready` says so, also as audio, one recording in each request.
Names of voices are parameters and no part of a path, so that any text can be one. Errors are problem details as in
RFC 9457."""


def application(
    registry: Registry,
    reader: Reader,
    *,
    tokens: tuple[Token, ...],
    hosts: frozenset[str] | None,
    audit: Audit,
    log: logging.Logger,
) -> Gate:
    """Make the ASGI application.

    Parameters
    ----------
    registry : of known voices, open with its model
    reader : reads the bodies of requests, within its limits, which are those of the gate, too
    tokens, audit, log : who may ask, and what is written down
    hosts : the names that Host headers may give; None: any
    """
    metrics = Metrics()
    app = FastAPI(title="duoplda", description=DESCRIPTION, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.parts = Parts(registry, reader, metrics, audit, bool(tokens))
    problems = {"model": ProblemDetails, "content": {PROBLEM_TYPE: {}}, "description": "What is wrong."}
    app.include_router(router, responses={"4XX": problems})
    for path, (name, kind) in PAGE.items():
        app.add_api_route(path, _file(name, kind), methods=["GET"], include_in_schema=False)
    needed = scopes() | {("GET", path): "" for path in (*PAGE, "/openapi.json")}
    for error in (404, 405, DuopldaError, Problem, RequestValidationError, Exception):
        app.add_exception_handler(error, _answer_to)
    return Gate(app, limits=reader.limits, tokens=tokens, hosts=hosts, scopes=needed, metrics=metrics, log=log)


def hosts_of(host: str, loopback: bool, more: Sequence[str]) -> frozenset[str] | None:
    """The names under which the service may be asked for; None for any, where it is not this machine's alone."""
    local = LOCAL_NAMES | {f"[{host}]" if ":" in host else host.lower()} if loopback else frozenset[str]()
    return local | frozenset(map(str.lower, more)) or None


def _file(name: str, kind: str) -> Callable[[], Response]:
    """A route that gives one file of the package."""
    content = (files("duoplda.service") / "page" / name).read_bytes()
    return lambda: Response(content, media_type=kind, headers={"cache-control": "no-cache"})


async def _answer_to(request: Request, error: Exception) -> Response:
    """Problem details for whatever a route raised, or FastAPI before it."""
    status = getattr(error, "status_code", None)
    if status == 404:
        problem = Problem(404, "there is nothing here; /openapi.json lists what there is")
    elif status == 405:
        allowed = dict(getattr(error, "headers", None) or {})
        problem = Problem(405, "this path takes other methods; /openapi.json lists them", allowed)
    elif isinstance(error, RequestValidationError):
        problem = Problem(422, "; ".join(f"{e['loc'][-1]}: {e['msg'].lower()}" for e in error.errors()))
        problem.detail = printable(problem.detail)
    else:
        problem = problem_of(error)
    body = problem.body(request.state.request_id)
    return Response(body, problem.status, problem.headers, PROBLEM_TYPE)
