"""The service over a registry of known voices."""

from __future__ import annotations

from collections.abc import Sequence

from duoplda.estimators.backend import Backend
from duoplda.service import app, limits, log, server, tokens
from duoplda.voices import Registry
from duoplda.workflows._files import Note, PathLike, silent


def serve(
    model: PathLike,
    registry: PathLike,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: PathLike | None = None,
    allow_host: Sequence[str] = (),
    audit_log: PathLike | None = None,
    max_body: int = 8,
    max_rows: int = 2000,
    max_requests: int = 32,
    timeout: int = 30,
    started: Note = silent,
) -> None:
    """Answer requests until SIGTERM or Ctrl-C; `started` is told the address once they are taken."""
    bounds = limits.Limits(max_body, max_rows, max_requests, timeout)
    known = () if token_file is None else tokens.read_tokens(token_file)
    with server.listening(host, port) as (listener, loopback):
        tokens.check_reach(loopback, host, known)
        chain = Backend.load(model)
        lines = log.open_log()
        with Registry.open(registry, chain) as voices, log.Audit(audit_log, lines) as audit:
            gate = app.application(
                voices,
                int(next(iter(chain.steps_.values()), chain.plda_).n_features_in_),
                limits=bounds,
                tokens=known,
                hosts=app.hosts_of(host, loopback, allow_host),
                audit=audit,
                log=lines,
            )
            server.run(gate, listener, lambda: started(server.address_of(listener)))
            lines.info("all requests are answered, the service has ended")
