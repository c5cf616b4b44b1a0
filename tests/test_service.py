"""The service: a real server on a loopback port, asked as its users ask it."""

from __future__ import annotations

import json
import re
import runpy
import signal
import socket
import threading
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import numpy as np
import pytest
from benchmarks.service import mutated
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli_cases import duoplda
from duoplda import Backend, DuopldaError
from duoplda.io.received import TooLarge, received_arrays
from duoplda.service.limits import Limits
from duoplda.service.tokens import read_tokens
from duoplda.voices import Registry
from service_cases import (
    HOSTILE,
    READ,
    STRANGE,
    WRITE,
    Client,
    address_of,
    log_of,
    make_service,
    npy,
    npz,
    raw,
    start_server,
    stopped,
    until,
)

ROOT = Path(__file__).parents[1]
SMALL = ("--max-body", "1", "--max-rows", "20", "--max-requests", "4")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """Two servers over one registry: one as it starts by itself, and one with tokens and narrow limits."""
    data = make_service(tmp_path_factory.mktemp("service"))
    open_, guarded = (
        start_server(data.at, *options)
        for options in ((), ("--token-file", data.at / "tokens", "--audit-log", data.at / "audit", *SMALL))
    )
    with stopped(open_), stopped(guarded):
        yield SimpleNamespace(
            **vars(data), open=open_, guarded=guarded, address=address_of(open_), narrow=address_of(guarded)
        )


@pytest.fixture
def client(running):
    with Client(running.address) as client:
        yield client


@pytest.fixture
def reader(running):
    with Client(running.narrow, READ) as client:
        yield client


@pytest.fixture
def office(running):
    with Client(running.narrow, WRITE) as client:
        yield client


# -- who is it


def test_answers_are_those_of_the_library(running, client):
    with Registry.open(running.at / "voices.db", running.chain) as registry:
        for i in (0, 7, 22):
            X = running.tests[i]
            answer = client.ask("POST", "/identify", {"embeddings": X.tolist()}, k=3, known=0.3, session="now").content
            found = registry.identify(X, "now", 3, 0.3)
            assert (answer["decision"], answer["name"]) == (found.decision, found.name)
            assert answer["someone_else"] == pytest.approx(found.someone_else, rel=1e-12)
            assert [c["name"] for c in answer["candidates"]] == [c.name for c in found.candidates]
            llr = [c["llr"] for c in answer["candidates"]]
            assert llr == pytest.approx([c.llr for c in found.candidates], rel=1e-12)
            verified = client.ask("POST", "/verify", X.tolist(), name="person 7", prior=0.1).content
            assert verified["llr"] == pytest.approx(registry.verify("person 7", X, prior=0.1).llr, rel=1e-12)
        both = {"A": running.tests[0], "B": running.tests[7]}
        answer = client.ask("POST", "/name_speakers", {"speakers": {k: v.tolist() for k, v in both.items()}}).content
        assert {k: v["name"] for k, v in answer["speakers"].items()} == {"A": "person 0", "B": "person 7"}
        assert answer["speakers"]["A"]["someone_else"] == pytest.approx(registry.name_speakers(both)["A"].someone_else)
        others = {str(i): running.tests[i].tolist() for i in (0, 2, 7)}  # of one speaker alone, all would be the room
        same = {"speakers": {"A": running.tests[4][:1].tolist(), "B": running.tests[4][1:].tolist(), **others}}
        for once, number in (("true", 1), ("false", 2)):
            answer = client.ask("POST", "/name_speakers", same, once=once).content
            assert [v["name"] for v in answer["speakers"].values()].count("person 4") == number
    assert client.ask("POST", "/identify", running.tests[0].tolist(), cost_unsure=0).content["decision"] == "unsure"


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", ["float16", "<f4", ">f8"])
def test_formats_say_the_same(running, client, dtype, order):
    X = np.asarray(running.tests[3].astype(dtype), order=order)
    session = np.array(["a", "a", "b"])
    lists = {"embeddings": X.astype(float).tolist(), "session": session.tolist()}
    expected = client.ask("POST", "/identify", lists)
    packed = client.ask("POST", "/identify", npz(X, session=session), "application/x-npz")
    assert packed.content == expected.content
    assert expected.status == 200
    same = client.ask("POST", "/identify", npy(X), "application/x-npy", session="a").content
    other = client.ask("POST", "/identify", {"embeddings": X.astype(float).tolist(), "session": "a"}).content
    assert same == other != expected.content  # recordings of one session are no independent evidence


# -- voices


def test_a_voice_from_its_enrolment_to_its_removal(running, client):
    X = running.more[20]
    assert client.ask("GET", "/voice", name="new").status == 404
    added = client.enrol("new", X[0], session="one")
    assert (added.status, added.content["n_sessions"], added.content["n_recordings"]) == (201, 1, 3)
    again = client.enrol("new", X[0], session="one")
    assert (again.status, "already" in again.content["detail"]) == (422, True)
    assert client.enrol("new", X[1], session="one", join="true").content["n_recordings"] == 6
    assert client.enrol("new", X[1], session="two").content["n_sessions"] == 2
    assert client.ask("POST", "/identify", X[3].tolist()).content["name"] == "new"
    assert client.ask("PATCH", "/voice", name="new", to="newer").content["name"] == "newer"
    assert client.ask("PATCH", "/voice", name="newer", to="person 1").status == 422
    assert client.ask("DELETE", "/voice/session", name="newer", session="three").status == 404
    assert client.ask("DELETE", "/voice/session", name="newer", session="two").status == 204
    assert [s["name"] for s in client.get("/voice", name="newer")["sessions"]] == ["one"]
    client.enrol("copy", X[2], session="two")
    merged = client.ask("POST", "/voice/merge", name="copy", into="newer").content
    assert (merged["name"], merged["n_sessions"]) == ("newer", 2)
    assert client.ask("DELETE", "/voice", name="newer").status == 204
    assert client.ask("DELETE", "/voice", name="newer").status == 404
    assert client.get("/voices")["total"] == 20


def test_voices_are_searched_and_come_in_parts(running, client):
    everybody = client.get("/voices")
    assert not any("sessions" in voice for voice in everybody["voices"])  # that would be long; /voice has them
    assert (everybody["total"], len(everybody["voices"])) == (20, 20)
    part = client.get("/voices", offset=5, limit=3)
    assert (part["total"], part["voices"]) == (20, everybody["voices"][5:8])
    assert [v["name"] for v in client.get("/voices", search="PERSON 1", limit=2)["voices"]] == ["person 1", "person 10"]
    for name in (HOSTILE, STRANGE):
        voice = client.get("/voice", name=name)
        assert (voice["name"], voice["n_recordings"], voice["sessions"][0]["by"]) == (name, 9, "office")
    assert (client.get("/voices", search="<IMG")["total"], client.get("/voices", search="nobody")["total"]) == (1, 0)


# -- mistakes


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"[1, 2", 400, "not JSON"),
        (b"[1, NaN]", 400, "NaN"),
        (b"\xff\xfe", 400, "not JSON"),
        (b"[" * 100_000, 413, "recordings"),
        (b"7", 422, "list"),
        (b"{}", 422, "embeddings"),
        (b"[[1, 2], [3]]", 422, "recording 1 has 1 numbers"),
        (b'["1", "2"]', 422, "recording 0 is not a list of numbers"),
        (b"[1, 2]", 422, "2 dimensions, and the model 12"),
        (b"[true" + b", 0" * 11 + b"]", 422, "recording 0 is not a list of numbers"),
        (b"[1e999" + b", 0" * 11 + b"]", 422, "recording 0 has NaN or infinite"),
        (b"[1" + b"0" * 400 + b", 0" * 11 + b"]", 422, "beyond double precision"),
        (b"[" + b"9" * 5000 + b"]", 400, "not JSON"),
        (b'{"embeddings": [[' + b"0, " * 11 + b'0]], "session": ["a", "b"]}', 422, "2 labels for 1 recordings"),
        (b'{"embeddings": [[' + b"0, " * 11 + b'0]], "session": {"a": 1}}', 422, "`session` must be text"),
    ],
    ids=range(15),
)
def test_mistakes_are_problem_details_that_name_cause_and_place(client, body, status, words):
    answer = client.ask("POST", "/identify", body, "application/json")
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
    assert words.replace("`", "") in answer.content["detail"]
    assert (answer.content["status"], answer.content["type"]) == (status, "about:blank")
    assert answer.content["instance"] == f"urn:uuid:{answer.headers['x-request-id']}"


def test_nested_lists_are_refused_however_deep_this_python_reads_them(client):
    for depth in (10, 1500):
        answer = client.ask("POST", "/identify", b"[" * depth + b"]" * depth, "application/json")
        assert answer.status in (400, 422)
        assert answer.headers["content-type"] == "application/problem+json"


def test_other_mistakes_are_problem_details_too(running, client):
    X = running.tests[0].tolist()
    for status, method, path, query in (
        (404, "GET", "/nothing", {}),
        (405, "PUT", "/voice", {}),
        (422, "GET", "/voice", {}),
        (422, "GET", "/voices", {"limit": 0}),
        (422, "POST", "/identify", {"known": 2}),
        (422, "POST", "/identify", {"k": "many"}),
        (422, "POST", "/voice", {"name": ""}),
        (422, "POST", "/voice", {"name": "a\x00b"}),
        (422, "POST", "/voice", {"name": "x" * 1000}),
        (404, "POST", "/verify", {"name": "nobody"}),
        (400, "GET", "/voice?name=%ff", {}),
    ):
        answer = client.ask(method, path, X if method == "POST" else None, **query)
        assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json"), (path, query)
    answer = client.ask("POST", "/identify", b"[1]", "text/plain")
    assert (answer.status, "application/json" in answer.content["detail"]) == (415, True)


def test_arrays_that_came_over_a_network_are_bounded():
    with pytest.raises(DuopldaError, match="pickled"):
        received_arrays(npy(np.array([{}], dtype=object)), 1000)
    for bomb in (npy(np.zeros(1000)), npz(np.zeros(1000))):
        with pytest.raises(TooLarge):
            received_arrays(bomb, 7999)
        assert all(len(X) == 1000 for X in received_arrays(bomb, 8000).values())
    with pytest.raises(TooLarge, match="1000 arrays"):
        received_arrays(npz(np.zeros(1), **{f"a{i}": np.zeros(1) for i in range(1000)}), 1 << 20)
    with pytest.raises(DuopldaError, match="neither"):
        received_arrays(b"", 1000)
    for header in (
        b"-" * 9000 + b"1",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (0, 9999999999999999999999)}",
    ):
        with pytest.raises(DuopldaError, match="header"):
            received_arrays(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header, 1000)


# -- hostile requests


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 60))
def test_hostile_requests_get_4xx(running, seed):
    method, path, body, media_type = mutated(np.random.default_rng(seed), running.tests[0])
    with Client(running.address) as client:
        answer = client.ask(method, path, body, media_type)
    assert answer.status in {200, 400, 404, 405, 413, 415, 422}, (path, body)
    if answer.status != 200:
        assert answer.content["detail"]


def test_hostile_requests_left_no_traceback(running):
    lines = log_of(running.open)
    assert len(lines) > 500
    assert [
        line for line in lines if line["level"] != "info" and line["event"] != "Invalid HTTP request received."
    ] == []


# -- who may ask


def test_tokens_and_their_scopes(running, office):
    X = running.tests[1].tolist()
    for token, reading, writing in ((None, 401, 401), ("x" * 32, 401, 401), (READ, 200, 403), (WRITE, 200, 201)):
        with Client(running.narrow, token) as client:
            assert client.ask("GET", "/voices").status == reading
            assert client.ask("POST", "/identify", X).status == reading
            assert client.ask("GET", "/metrics").status == reading
            assert client.ask("POST", "/voice", X, name="scoped").status == writing
            assert [client.ask("GET", path).status for path in ("/", "/page.js", "/health", "/ready")] == [200] * 4
    with Client(running.narrow) as client:
        answer = client.ask("GET", "/voices")
        assert (answer.headers["www-authenticate"], answer.content["title"]) == ("Bearer", "Unauthorized")
        assert client.ask("GET", "/voices", headers={"Authorization": f"Basic {READ}"}).status == 401
    assert [session["by"] for session in office.get("/voice", name="scoped")["sessions"]] == ["office"] * 3
    assert office.ask("DELETE", "/voice", name="scoped").status == 204


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]"}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example:8000"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_pages_of_other_sites_are_refused(client, headers, status):
    answer = client.ask("GET", "/voices", headers=headers)
    assert answer.status == status
    assert "access-control-allow-origin" not in answer.headers
    assert client.ask("OPTIONS", "/voice", headers={"Origin": f"http://{client.place}"}).status == 405


def test_the_page_may_be_opened_from_a_link_elsewhere(client):
    answer = client.ask("GET", "/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})
    assert answer.status == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert (answer.headers["x-content-type-options"], answer.headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert client.ask("GET", "/voices").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("", 0o600, "no token"),
        (f"a read {READ}", 0o604, "others"),
        (f"a read {READ}", 0o660, "others"),
        (f"a admin {READ}", 0o600, "line 1"),
        ("a read short", 0o600, "fewer than 32"),
        (f"a read {READ}\na write {WRITE}", 0o600, "line 2"),
    ],
)
def test_token_files_that_are_refused(tmp_path, text, mode, words):
    (tmp_path / "tokens").write_text(text)
    (tmp_path / "tokens").chmod(mode)
    with pytest.raises(DuopldaError, match=words) as error:
        read_tokens(tmp_path / "tokens")
    assert READ not in str(error.value)


def test_what_does_not_start(running, tmp_path):
    files = ("serve", "--model", running.at / "model", "--registry")
    for options, code, words in (
        ((running.at / "voices.db", "--host", "0.0.0.0"), 1, "--token-file"),
        ((running.at / "voices.db", "--host", "no.such.host.invalid"), 1, "--host"),
        ((running.at / "voices.db", "--port", urlsplit(running.address).port), 1, "--port"),
        ((running.at / "voices.db", "--token-file", tmp_path / "none"), 1, "none"),
        ((tmp_path / "none.db",), 1, "no such registry"),
        ((running.at / "model",), 1, "model"),
        ((running.at / "voices.db", "--max-rows", "0"), 2, "--max-rows"),
    ):
        result = duoplda(*files, *options)
        assert (result.exit_code, words in result.stderr) == (code, True), result.stderr
        assert "Traceback" not in result.stderr
    with pytest.raises(DuopldaError, match="max_body"):
        Limits(max_body=0)


# -- limits


def test_bodies_and_rows_are_bounded(running, reader):
    X = np.zeros((21, 12))
    for body, media_type in ((npy(X), "application/x-npy"), (npz(X), "application/x-npz"), (X.tolist(), None)):
        answer = reader.ask("POST", "/identify", body, media_type)
        assert (answer.status, "recordings" in answer.content["detail"]) == (413, True)
    head = f"POST /identify HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {READ}\r\n".encode()
    large = b"x" * ((1 << 20) + 1)
    for sent in (
        b"Content-Length: %d\r\n\r\n%s" % (len(large), large),
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(large), large),
        b"Content-Length: 99999999999999\r\n\r\n",
    ):
        assert raw(running.narrow, head + sent).startswith(b"HTTP/1.1 413 ")


def test_slow_bodies_end(running):
    head = b"POST /identify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
    with stopped(start_server(running.at, "--timeout", "1")) as process:
        assert raw(address_of(process), head + b"slow", 60).startswith(b"HTTP/1.1 408 ")


def test_garbage_ends(running):
    assert raw(running.narrow, b"\x16\x03\x01\x00\xa5\x01\x00\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    long = b"GET /" + b"a" * (1 << 17) + b" HTTP/1.1\r\n\r\n"
    with suppress(ConnectionError):  # it is not read to its end: reset, or a broken pipe where it was closed before
        assert raw(running.narrow, long).startswith(b"HTTP/1.1 400 ")


def test_too_many_requests_at_a_time_are_told_to_come_again(running, reader):
    """Four bodies are under way when the fifth request comes; they are no reason not to say that the service lives."""
    host, port = urlsplit(running.narrow).netloc.split(":")
    X = json.dumps(running.tests[2].tolist()).encode()
    head = f"POST /identify HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {READ}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(X)}\r\n\r\n"
    waiting = [socket.create_connection((host, int(port)), timeout=60) for _ in range(4)]
    try:
        for connection in waiting:
            connection.sendall(head.encode() + X[:5])
        until(lambda: reader.ask("GET", "/voices").status == 429)  # the server has seen the beginning of all four
        answer = reader.ask("GET", "/voices")
        assert (answer.status, answer.headers["retry-after"]) == (429, "1")
        assert reader.ask("GET", "/health").status == 200
        for connection in waiting:
            connection.sendall(X[5:])
        assert [connection.recv(100)[:12] for connection in waiting] == [b"HTTP/1.1 200"] * 4
    finally:
        for connection in waiting:
            connection.close()
    assert reader.ask("GET", "/voices").status == 200


# -- what is written down


def test_audit_log_says_who_did_what_and_has_no_vectors(running, office):
    office.enrol("audited", running.more[21, 0], session="s")
    office.ask("POST", "/identify", running.tests[21].tolist())
    office.ask("DELETE", "/voice", name="audited")
    office.ask("DELETE", "/voice", name="audited")
    lines = [json.loads(line) for line in (running.at / "audit").read_text().splitlines()]
    mine = [(x["who"], x["action"], x["outcome"]) for x in lines if x.get("voice") == "audited"]
    assert mine == [
        ("office", "add", "begun"),
        ("office", "add", "done"),
        ("office", "identify", "done"),
        ("office", "remove", "begun"),
        ("office", "remove", "done"),
        ("office", "remove", "begun"),
        ("office", "remove", "failed"),
    ]
    known = {
        "time",
        "who",
        "client",
        "request",
        "action",
        "voice",
        "to",
        "session",
        "recordings",
        "outcome",
        "decision",
    }
    assert all(set(line) <= known for line in lines)
    assert not any(isinstance(value, list | float) for line in lines for value in line.values())
    assert (running.at / "audit").stat().st_mode & 0o077 == 0


def test_the_log_has_a_line_for_each_request_and_no_names(running, client):
    answer = client.ask("GET", "/voice", name="no such voice")
    requests = [line for line in log_of(running.open) if line["event"] == "request"]
    (own,) = (line for line in requests if line["request"] == answer.headers["x-request-id"])  # before its answer
    assert (own["method"], own["route"], own["status"], own["client"]) == ("GET", "/voice", 404, "127.0.0.1")
    assert not any("no such voice" in json.dumps(line) for line in requests)
    assert not any(token in running.guarded.log.read_text() for token in (READ, WRITE))


def test_metrics_and_description(running, client):
    client.ask("POST", "/identify", running.tests[0].tolist())
    text = client.get("/metrics").decode()
    assert re.search(r'duoplda_requests_total\{method="POST",route="/identify",status="200"\} [1-9]', text)
    assert re.search(r'duoplda_request_seconds_bucket\{le="1.0",route="/identify"\} [1-9]', text)
    assert re.search(r'duoplda_decisions_total\{decision="accept"\} [1-9]', text)
    assert "person" not in text
    api = client.get("/openapi.json")
    paths = {"/voices", "/voice", "/voice/merge", "/voice/session", "/identify", "/verify", "/name_speakers"}
    assert set(api["paths"]) == paths | {"/health", "/ready", "/metrics"}
    assert api["components"]["schemas"]["Candidate"]["properties"]["llr"]["description"]
    for path in ("/identify", "/verify", "/name_speakers"):
        assert api["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"]
    assert client.get("/ready") == {
        "status": "ready",
        "tokens": False,
        "dimension": 12,
        "max_rows": 2000,
        "audio": False,
    }
    answer = client.ask("POST", "/identify", b"RIFF", "audio/wav")
    assert (answer.status, "--extractor" in answer.content["detail"]) == (415, True)


# -- what comes with it


def test_the_demonstration_knows_its_people(tmp_path):
    runpy.run_path(str(ROOT / "tools" / "serve_demo.py"))["main"](tmp_path)
    with Registry.open(tmp_path / "voices.db", Backend.load(tmp_path / "model.safetensors")) as registry:
        for path in tmp_path.glob("*.npz"):
            answer = registry.identify(np.load(path)["embeddings"], "thursday")
            name = path.stem.partition("-")[0]
            assert (answer.name or "stranger").lower() == name


@pytest.mark.parametrize("file", ["Dockerfile", "duoplda.service"])
def test_deployment_gives_options_that_there_are(file):
    text = (ROOT / "deploy" / file).read_text()
    typed = re.findall(r"^(?:ExecStart=|ENTRYPOINT|CMD|  ).*", text, re.MULTILINE)
    options = set(re.findall(r"--[a-z-]+", " ".join(line for line in typed if "useradd" not in line)))
    assert options >= {"--model", "--registry", "--token-file", "--audit-log"}
    known = duoplda("serve", "--help").stdout
    assert [option for option in sorted(options) if option not in known] == []


# -- the end


def in_work(address):
    """How many requests a server has in work beside ours."""
    with Client(address) as client:
        (number,) = re.findall(r"duoplda_requests_in_flight (\d+)", client.get("/metrics").decode())
    return int(number) - 1


def is_closed(address):
    """Whether a server takes no more connections."""
    try:
        with Client(address) as client:
            client.get("/health")
    except (ConnectionError, HTTPException):  # refused, or closed before it was answered
        return True
    return False


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["SIGTERM", "Ctrl-C"])
def test_requests_that_have_come_in_are_answered_before_the_end(running, number, code):
    with start_server(running.at) as process:
        address = address_of(process)
        host, port = urlsplit(address).netloc.split(":")
        body = json.dumps(running.tests[5].tolist()).encode()
        name = f"last{code}"
        head = f"POST /voice?name={name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(head.encode() + body[:10])
            until(lambda: in_work(address) == 1)
            process.send_signal(number)
            until(lambda: is_closed(address))
            connection.sendall(body[10:])
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 201 ")
        assert process.wait(60) == code
    with Registry.open(running.at / "voices.db", running.chain) as registry:
        assert registry.voice(name).n_recordings == 3
        registry.remove(name)
    assert "Traceback" not in process.log.read_text()


def test_a_killed_server_has_lost_nothing_that_it_acknowledged(running):
    acknowledged = []

    def enrol(who, address):
        with Client(address) as client, suppress(OSError, HTTPException):
            for i in range(10_000):
                if client.enrol(f"killed {who}", running.tests[who], session=f"s{i}").status == 201:
                    acknowledged.append((f"killed {who}", f"s{i}"))

    with start_server(running.at) as process:
        address = address_of(process)
        threads = [threading.Thread(target=enrol, args=(who, address)) for who in range(4)]
        for thread in threads:
            thread.start()
        try:
            until(lambda: len(acknowledged) >= 20)
        finally:
            process.kill()
            for thread in threads:
                thread.join()
    with Registry.open(running.at / "voices.db", running.chain) as registry:
        kept = {(n, s.name) for n in {n for n, _ in acknowledged} for s in registry.voice(n).sessions}
        assert set(acknowledged) <= kept
        registry.remove(sorted({name for name, _ in kept}))
