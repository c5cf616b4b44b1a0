"""The gate that every request passes before a route: it checks hosts, origins, tokens and limits, and logs the request.

A request that is refused is answered before its body is read. The body of a request that is accepted is read here as a
whole, in bounded time and memory, so that a route never waits for the network.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any
from urllib.parse import unquote_to_bytes

from duoplda.service.limits import Limits
from duoplda.service.metrics import Metrics
from duoplda.service.problems import PROBLEM_TYPE, Problem, problem_of
from duoplda.service.tokens import Token, token_of

Message = MutableMapping[str, Any]  # of ASGI
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADERS = {
    # The page loads its own two files and talks to this service. Nothing comes from elsewhere, and no code is inline.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",  # answers are about people, so nothing on the way may keep them
}
LOCAL_NAMES = frozenset(("localhost", "127.0.0.1", "[::1]"))
DRAINED = 1 << 24  # bytes of a refused body that are read and dropped, so that the client gets to read the answer


class Reply:
    """The answer to one request. It is sent at most once, and gets the headers of all answers."""

    def __init__(self, send: Send, request_id: str, begun: Callable[[int], None]):
        self.send = send
        self.request_id = request_id
        self.begun = begun  # is called with the status before the first byte is sent
        self.status = 0  # 0 until the answer has begun
        self.closed = False  # whether the rest of the answer is dropped

    async def __call__(self, message: Message) -> None:
        """Send a message of ASGI, with the headers of all answers where it begins one."""
        if self.closed:
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.begun(self.status)
            present = {name.lower() for name, _ in message["headers"]}
            more = {**HEADERS, "x-request-id": self.request_id}
            extra = [(name.encode(), value.encode()) for name, value in more.items() if name.encode() not in present]
            message = {**message, "headers": [*message["headers"], *extra]}
        await self.send(message)

    async def problem(self, problem: Problem, rest: Receive | None = None) -> None:
        """Send problem details, unless the answer has begun; `rest` receives the body of a refused request."""
        if self.status:
            return
        body = problem.body(self.request_id)
        headers = {"content-type": PROBLEM_TYPE, "content-length": str(len(body)), **problem.headers}
        if rest is not None:
            headers["connection"] = "close"
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self({"type": "http.response.start", "status": problem.status, "headers": pairs})
        await self({"type": "http.response.body", "body": body, "more_body": rest is not None})
        if rest is not None:
            await _drain(rest)
            await self({"type": "http.response.body", "body": b""})


class Gate:
    """An ASGI application around another one, which sees only the requests that pass."""

    def __init__(
        self,
        app: App,
        *,
        limits: Limits,
        tokens: tuple[Token, ...],
        hosts: frozenset[str] | None,
        scopes: dict[tuple[str, str], str],
        metrics: Metrics,
        log: logging.Logger,
    ):
        self.app = app
        self.limits = limits
        self.tokens = tokens
        self.hosts = hosts  # names in Host headers that are accepted; None: all
        self.scopes = scopes  # (method, path) -> what a token must allow: "", "read" or "write"
        self.paths = frozenset(path for _, path in scopes)
        self.metrics = metrics
        self.log = log
        self.turns = asyncio.Semaphore(limits.threads)
        self.in_flight = 0
        self.running = set[asyncio.Task[None]]()  # requests on which a route is working

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._request(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens, and log it.

        The request is counted and logged before its answer is sent, so that a client that has an answer finds both.
        """
        begin = time.perf_counter()
        request_id = str(uuid.uuid4())
        scope["state"] = {**scope.get("state", {}), "request_id": request_id, "who": None}
        reply = Reply(send, request_id, lambda status: self._note(scope, status, time.perf_counter() - begin))
        try:
            await self._pass(scope, receive, reply)
        except _Gone:
            self._note(scope, 499, time.perf_counter() - begin)  # the status that nginx logs for a client that hung up

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a request and log it."""
        route = scope["path"] if scope["path"] in self.paths else "other"
        method = scope["method"] if (scope["method"], route) in self.scopes else "other"
        self.metrics.requests.labels(method, route, str(status)).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        client = scope.get("client")
        fields = {"method": method, "route": route, "status": status, "seconds": round(seconds, 4)}
        state = scope["state"]
        more = {"request": state["request_id"], "who": state["who"], "client": client[0] if client else None}
        self.log.info("request", extra={"fields": {**fields, **more}})

    async def _pass(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        """Check a request, read its body, and hand it to its route."""
        headers = dict(scope["headers"])
        has_body = b"content-length" in headers or b"transfer-encoding" in headers
        try:
            self._check(scope, headers)
            with self._counted():
                body = await self._body(headers, receive) if has_body else b""
        except Problem as problem:
            await reply.problem(problem, receive if has_body else None)
            return
        task = asyncio.create_task(self._work(scope, body, receive, reply))
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        done, _ = await asyncio.wait({task}, timeout=self.limits.timeout)
        if not done:
            detail = (
                f"the request was not done after {self.limits.timeout} s; a change may still be made: check whether "
            )
            detail += "it was before you repeat it"
            await reply.problem(Problem(503, detail, {"retry-after": "5"}))
            reply.closed = True  # the thread cannot be stopped, so the answer that it gives in the end is dropped

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count a request as in flight, while its body comes and while a route works on it."""
        self.in_flight += 1
        self.metrics.in_flight.set(self.in_flight)
        try:
            yield
        finally:
            self.in_flight -= 1
            self.metrics.in_flight.set(self.in_flight)

    async def _work(self, scope: Scope, body: bytes, receive: Receive, reply: Reply) -> None:
        """Run the route, and answer the errors that it raises."""
        parts = [body]

        async def whole() -> Message:
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": False}
            return await receive()

        try:
            with self._counted():
                async with self.turns if self._needed(scope) else nullcontext():
                    await self.app(scope, whole, reply)
        except Exception as error:
            problem = problem_of(error)
            if problem.status == 500:
                self.log.error("failure", exc_info=error, extra={"fields": {"request": reply.request_id}})
            await reply.problem(problem)

    # -- checks

    def _needed(self, scope: Scope) -> str:
        """What a token must allow: "read", "write", or "" for the page and for checks of health."""
        return self.scopes.get((scope["method"], scope["path"]), "read")

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Refuse a request that must not pass, before its body is read."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self.hosts is not None and re.sub(r":\d+$", "", host) not in self.hosts:
            # A page of another site can let its own name point to 127.0.0.1 (DNS rebinding), but that name stands here.
            raise Problem(421, "the Host header does not name this service: ask for localhost or 127.0.0.1")
        needed = self._needed(scope)
        if needed and _from_another_site(headers, host):
            raise Problem(403, "pages of other sites may not use this service")
        try:
            for part in (scope.get("raw_path", b""), scope["query_string"]):
                unquote_to_bytes(part.replace(b"+", b" ")).decode("utf-8")
        except UnicodeDecodeError:
            raise Problem(400, "the address is not UTF-8") from None
        if self.tokens and needed:
            token = token_of(headers.get(b"authorization"), self.tokens)
            if token is None:
                raise Problem(401, "send a token: Authorization: Bearer TOKEN", {"www-authenticate": "Bearer"})
            scope["state"]["who"] = token.name
            if needed == "write" and token.scope != "write":
                raise Problem(403, f"the token {token.name} may read, but not change voices")
        if needed and self.in_flight >= self.limits.max_requests:
            detail = f"the service is working on {self.limits.max_requests} requests already; try again later"
            raise Problem(429, detail, {"retry-after": "1"})

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """Read the body in bounded time and memory."""
        most = self.limits.max_body << 20
        large = Problem(413, f"the body has more than {self.limits.max_body} MB; send fewer recordings at a time")
        if int(headers.get(b"content-length", b"0")) > most:
            raise large
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Gone
                    body += message.get("body", b"")
                    if len(body) > most:
                        raise large
                    if not message.get("more_body"):
                        return bytes(body)
        except TimeoutError:
            raise Problem(408, f"the body did not come within {self.limits.timeout} s") from None


def _from_another_site(headers: dict[bytes, bytes], host: str) -> bool:
    """Whether the browser says that the request is from a page of another site, or of another port of this machine."""
    if headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
        return True
    origin = headers.get(b"origin")
    return origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host


class _Gone(Exception):
    """The client closed the connection before its request was whole."""


async def _drain(receive: Receive) -> None:
    """Read and drop what a client still sends, for a while: if the connection broke, it would not see the answer."""
    left = DRAINED
    with suppress(TimeoutError):
        async with asyncio.timeout(2):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body"):
                    return
