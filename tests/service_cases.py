"""What the tests of the service share: a model and a registry, servers in processes of their own, and asking them."""

from __future__ import annotations

import http.client
import io
import json
import os
import socket
import time
from contextlib import contextmanager
from types import SimpleNamespace
from urllib.parse import quote, urlencode, urlsplit

import numpy as np

from cli_cases import start
from duoplda import Backend
from duoplda.datasets import make_recordings
from duoplda.voices import Registry

SIZES = {"n_dimensions": 12, "n_speaker_factors": 6, "n_session_factors": 4, "speaker_variance": 4.0}
HOSTILE = '<img src=x onerror="window.hacked=1">'
STRANGE = "../a/b?c=d&e#f %41 +"
READ = "r" * 32
WRITE = "w" * 32


def make_service(at):
    """A model, and a registry of 20 voices with 3 sessions of 3 recordings; 3 more recordings of each, and of 5 others.

    The voices are called `person 0` and so on, but two have names that make trouble where they are taken for HTML, or
    for a part of an address.
    """
    data = make_recordings(100, seed=0, **SIZES)
    chain = Backend().fit(data.X, data.speaker, session=data.session)
    chain.save(at / "model")
    more = make_recordings(25, sessions=4, recordings=3, model=data.model, seed=1)
    X = more.X.reshape(25, 4, 3, -1)
    names = [f"person {i}" for i in range(18)] + [HOSTILE, STRANGE]
    with Registry.create(at / "voices.db", chain) as registry:
        for name, own in zip(names, X, strict=False):
            registry.add(name, own[:3].reshape(9, -1), np.repeat(["monday", "tuesday", "friday"], 3), by="office")
    (at / "tokens").write_text(f"# who may do what\nreception read {READ}\noffice write {WRITE}\n")
    (at / "tokens").chmod(0o600)
    return SimpleNamespace(at=at, chain=chain, names=names, tests=X[:, 3], more=X)


def start_server(folder, *options):
    """A server on a port that the system chooses."""
    log = folder / f"log-{os.urandom(4).hex()}"
    files = ["--model", folder / "model", "--registry", folder / "voices.db"]
    with open(log, "w") as errors:
        process = start("serve", *files, "--port", "0", *options, stderr=errors)
    process.log = log
    return process


class Client:
    """Asks a server, over one connection for all requests."""

    def __init__(self, address, token=None):
        self.address = address
        self.place = urlsplit(address).netloc
        self.token = token
        self.connection = http.client.HTTPConnection(self.place, timeout=60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def ask(self, method, path, body=None, media_type=None, headers=None, **query):
        """Status, headers and content of the answer: JSON where it is JSON, else bytes."""
        given = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        if isinstance(body, dict | list):
            body = json.dumps(body).encode()
            media_type = media_type or "application/json"
        if media_type is not None:
            given["Content-Type"] = media_type
        address = path + (f"?{urlencode(query, quote_via=quote)}" if query else "")
        self.connection.request(method, address, body, {**given, **(headers or {})})
        response = self.connection.getresponse()
        content = response.read()
        if content and "json" in (response.headers["content-type"] or ""):
            content = json.loads(content)
        return SimpleNamespace(status=response.status, headers=response.headers, content=content)

    def get(self, path, **query):
        answer = self.ask("GET", path, **query)
        assert answer.status == 200, answer.content
        return answer.content

    def enrol(self, name, X, **query):
        return self.ask("POST", "/voice", npz(X), "application/x-npz", name=name, **query)


def npz(X, **more):
    with io.BytesIO() as file:
        np.savez(file, embeddings=X, **more)
        return file.getvalue()


def npy(X):
    with io.BytesIO() as file:
        np.save(file, X)
        return file.getvalue()


def address_of(process):
    """The address that a server prints once it takes requests."""
    line = process.stdout.readline().strip()
    assert line.startswith("http://127.0.0.1:"), log_of(process, end=True)
    return line


@contextmanager
def stopped(process):
    """Stop a server after the block, as systemd does: with SIGTERM, upon which it ends with 0."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            code = process.wait(90)
        finally:
            process.kill()
            process.stdout.close()
    assert code == 0, log_of(process, end=True)


def until(condition, seconds=60):
    """Wait for something that happens at once, and on a busy machine later; fail where it does not happen."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it has not happened after {seconds} s"
        time.sleep(0.02)


def log_of(process, end=False):
    """The lines of a server's log so far; the whole of it and its end, where it must not be JSON."""
    text = process.log.read_text()
    return text if end else [json.loads(line) for line in text.splitlines()]


def raw(address, data, seconds=60):
    """Send bytes, and read until the server closes the connection."""
    host, port = urlsplit(address).netloc.split(":")
    with socket.create_connection((host, int(port)), timeout=seconds) as connection:
        connection.sendall(data)
        out = b""
        while block := connection.recv(1 << 16):
            out += block
        return out
