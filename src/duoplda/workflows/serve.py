"""The service over a registry of known voices."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from duoplda.audio import Extractor
from duoplda.errors import DuopldaError
from duoplda.estimators.backend import Backend
from duoplda.io import ExtractorName
from duoplda.service import app, bodies, limits, log, server, tokens
from duoplda.voices import Registry
from duoplda.workflows import option
from duoplda.workflows._files import Note, PathLike, silent


def serve(
    model: option.Model,
    registry: option.Registry,
    *,
    extractor: option.ServiceExtractor = None,
    host: option.Host = "127.0.0.1",
    port: option.Port = 8000,
    token_file: option.TokenFile = None,
    allow_host: option.AllowHost = (),
    audit_log: option.AuditLog = None,
    max_body: option.MaxBody = 8,
    max_rows: option.MaxRows = 2000,
    max_requests: option.MaxRequests = 32,
    timeout: option.Timeout = 30,
    device: option.Device = "cpu",
    started: Note = silent,
) -> None:
    """Answer requests until SIGTERM or Ctrl-C; `started` gets the address once requests are taken.

    With an `extractor`, an ONNX file, requests may also bring audio; with a `device`, a copy of the voices is there.
    """
    bounds = limits.Limits(max_body, max_rows, max_requests, timeout)
    known = () if token_file is None else tokens.read_tokens(token_file)
    with server.listening(host, port) as (listener, loopback):
        tokens.check_reach(loopback, host, known)
        chain = Backend.load(model)
        dimension = int(chain.n_features_in_)
        listen = None if extractor is None else _listener(extractor, chain, dimension)
        reader = bodies.Reader(bounds, dimension, listen)
        lines = log.open_log()
        with Registry.open(registry, chain, device=device) as voices, log.Audit(audit_log, lines) as audit:
            gate = app.application(
                voices,
                reader,
                tokens=known,
                hosts=app.hosts_of(host, loopback, allow_host),
                audit=audit,
                log=lines,
            )
            server.run(gate, listener, lambda: started(server.address_of(listener)))
            lines.info("all requests are answered, the service has ended")


def _listener(extractor: PathLike, chain: Backend, dimension: int) -> Callable[[bytes], NDArray[np.float32]]:
    """A function that embeds the audio of a request; an extractor that does not belong to the model is refused."""
    network = Extractor(extractor)
    trained = ExtractorName.parsed(json.dumps(chain.provenance_.get("extractor")))
    if network.dim != dimension:
        cause = f"its embeddings have {network.dim} dimensions, and the model takes {dimension}"
        raise DuopldaError(f"{extractor}: {cause}: give the extractor that the model was trained on")
    if trained is not None and trained.sha256 != network.sha256:
        cause = f"it is not {trained.name} (sha256 {trained.sha256[:12]}...), on whose embeddings the model was trained"
        raise DuopldaError(f"{extractor}: {cause}: give that extractor")
    return partial(bodies.embedding_of, network)
