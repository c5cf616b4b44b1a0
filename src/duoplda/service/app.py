"""The application: the routes, the files of the page, and the gate that every request passes first."""

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
DESCRIPTION = """Who speaks? The service compares recordings with known voices, and answers with calibrated
log-likelihood ratios (in nats), probabilities and a decision.

Recordings are sent as vectors of the model's extractor: JSON, `.npy` or `.npz` (no pickle), one row for each recording.
Where `/ready` says so, audio may be sent as well, with one recording in each request.
Names of voices are query parameters and not part of a path, so that any text can be a name. Errors are problem details
as in RFC 9457."""


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
    registry : a registry of known voices, opened with its model
    reader : reads the bodies of requests; its limits are those of the gate, too
    tokens, audit, log : the tokens that are accepted, the audit log, and the log of requests
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
    """Return the names that Host headers may give; None for any, if other machines can reach the service."""
    local = LOCAL_NAMES | {f"[{host}]" if ":" in host else host.lower()} if loopback else frozenset[str]()
    return local | frozenset(map(str.lower, more)) or None


def _file(name: str, kind: str) -> Callable[[], Response]:
    """A route that sends one file of the package."""
    content = (files("duoplda.service") / "page" / name).read_bytes()
    return lambda: Response(content, media_type=kind, headers={"cache-control": "no-cache"})


async def _answer_to(request: Request, error: Exception) -> Response:
    """Problem details for an error of a route, or of FastAPI before it."""
    status = getattr(error, "status_code", None)
    if status == 404:
        problem = Problem(404, "this path does not exist; /openapi.json lists all paths")
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
