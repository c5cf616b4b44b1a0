"""The server below the service: a socket, HTTP by uvicorn, and a shutdown in which no request is lost."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from duoplda.errors import DuopldaError
from duoplda.service.gate import Gate

HEADER_SECONDS = 10  # for the headers of a request, from their first byte, and for a new connection to begin a request
MOST_HEADERS = 1 << 15  # bytes
MOST_CONNECTIONS = 512


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection which sends no request; uvicorn would wait for its headers forever."""

    waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        asked = self.cycle is not None and not self.cycle.response_complete
        if asked and self.waiting is not None:
            self.waiting.cancel()
            self.waiting = None
        elif not asked:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.waiting is not None:
            self.waiting.cancel()
        super().connection_lost(exc)

    def _wait(self) -> None:
        """Start the timer that closes the connection, unless it runs already."""
        if self.waiting is None and not self.transport.is_closing():
            self.waiting = self.loop.call_later(HEADER_SECONDS, self.transport.close)


@contextmanager
def listening(host: str, port: int) -> Iterator[tuple[socket.socket, bool]]:
    """Open the socket on which the service listens, and say whether only this machine can reach it."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise DuopldaError(f"`host` {host!r} is not an address of this machine ({error})") from None
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            text = (error.strerror or str(error)).lower()
            raise DuopldaError(f"cannot listen on {host}, port {port}: {text}; give another `port` or `host`") from None
        yield listener, ipaddress.ip_address(address[0]).is_loopback


def address_of(listener: socket.socket) -> str:
    """Return the address to type into a browser."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(gate: Gate, listener: socket.socket, started: Callable[[], None]) -> None:
    """Answer requests until SIGTERM or Ctrl-C, and then those that have come in already."""
    config = uvicorn.Config(
        gate,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_CONNECTIONS,
        h11_max_incomplete_event_size=MOST_HEADERS,
        timeout_keep_alive=HEADER_SECONDS,
        timeout_graceful_shutdown=2 * gate.limits.timeout + 5,  # a body may take as long, and its answer again
    )
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn sends it again when all is done
    try:
        asyncio.run(_Server(config, gate, started).serve([listener]))
    finally:
        signal.signal(signal.SIGTERM, before)


class _Server(uvicorn.Server):
    """A server that says when it has started, and ends when all work is done."""

    def __init__(self, config: uvicorn.Config, gate: Gate, started: Callable[[], None]):
        super().__init__(config)
        self.gate = gate
        self.tell = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to take requests."""
        await super().startup(sockets)
        if self.started:
            self.tell()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests, and wait for those in work, also for those whose time to be answered is over."""
        await super().shutdown(sockets)
        if self.gate.running:
            await asyncio.wait(self.gate.running, timeout=self.gate.limits.timeout)
