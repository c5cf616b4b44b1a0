"""The service under load, under attack and killed: `python -m benchmarks.service [load|hostile|kills ...]`.

load     clients that mix questions and enrolments, in several processes, for some seconds: throughput beside the bare
         product over the same voices, the 99th percentile of the times, errors, and whether an acknowledged enrolment
         is missing in the end
hostile  mutated requests: the codes that were answered, the server's memory before and after, tracebacks in its log
kills    a server that is killed again and again while clients enrol: what was acknowledged and is not there afterwards

All of it runs on this machine's loopback address. The exit status is 1 where something was lost or went wrong.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import quote, urlsplit

import numpy as np

from benchmarks.common import save
from duoplda import PLDA
from duoplda.datasets import make_recordings
from duoplda.voices import Registry

NPZ = "application/x-npz"
NPY = "application/x-npy"
JSON = "application/json"
PATHS = ("/identify", "/verify?name=person%200", "/name_speakers", "/identify?k=3&known=.1&session=a")
BROKEN = (OSError, http.client.HTTPException)  # no answer, or a part of one
Request = tuple[str, str, bytes, str]  # method, path, body, media type


# -- hostile requests


def packed(X: np.ndarray, compress: bool = False) -> bytes:
    """The bytes of a .npz."""
    with io.BytesIO() as file:
        (np.savez_compressed if compress else np.savez)(file, embeddings=X, session=np.array(["a"] * len(X)))
        return file.getvalue()


def plain(X: np.ndarray) -> bytes:
    """The bytes of a .npy."""
    with io.BytesIO() as file:
        np.save(file, X)
        return file.getvalue()


def mutated(rng: np.random.Generator, X: np.ndarray) -> Request:
    """A question whose body was changed at random, in a few of many ways, and perhaps what is said about it."""
    kind = int(rng.integers(4))
    text = json.dumps({"embeddings": X.tolist(), "session": "a", "speakers": {"A": X.tolist()}}).encode()
    body, media_type = ((text, JSON), (plain(X), NPY), (packed(X), NPZ), (packed(X, True), NPZ))[kind]
    for _ in range(int(rng.integers(1, 4))):
        body = _mutation(rng, body)
    if rng.random() < 0.1:
        media_type = str(rng.choice([JSON, NPY, NPZ, "application/octet-stream", "text/html", "a" * 1000, "/;=,"]))
    path = str(rng.choice(PATHS))
    if rng.random() < 0.2:
        path += ("&" if "?" in path else "?") + quote(rng.bytes(int(rng.integers(30))), safe="&=%+")
    return "POST", path, body, media_type


def _mutation(rng: np.random.Generator, body: bytes) -> bytes:
    """A body with one change."""
    at, end = sorted(rng.integers(len(body) + 1, size=2).tolist())
    pieces = [b"9" * 400, b"-", b"NaN", b"1e999", b"null", b'"', b"\\u0000", b"[[", b"]", b"{", b"}", b",,", b"\x00"]
    pieces += [b"\xff\xff\xff\xff", b"PK\x01\x02", b"PK\x03\x04", b"'|O'", b"'<f8'", b"True", b"(9999999999,)", b"("]
    pieces += [b"\x93NUMPY\x01\x00"]
    how = int(rng.integers(7))
    if how == 0:  # bits
        changed = bytearray(body)
        for i in rng.integers(max(len(body), 1), size=min(len(body), int(rng.integers(1, 20)))):
            changed[i] ^= 1 << int(rng.integers(8))
        return bytes(changed)
    if how == 1:  # the end is missing
        return body[:at]
    if how == 2:  # a part is missing
        return body[:at] + body[end:]
    if how == 3:  # a part is there twice
        return body[:end] + body[at:]
    if how == 4:  # something that means something
        return body[:at] + pieces[int(rng.integers(len(pieces)))] + body[at:]
    if how == 5:  # the same, over what is there
        piece = pieces[int(rng.integers(len(pieces)))]
        return body[:at] + piece + body[at + len(piece) :]
    return body[:at] + rng.bytes(int(rng.integers(64))) + body[at:]


def attack(address: str, seeds: range, X: np.ndarray) -> Counter[int]:
    """Send a mutated request for each seed; count the codes."""
    codes: Counter[int] = Counter()
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    for seed in seeds:
        method, path, body, media_type = mutated(np.random.default_rng(seed), X)
        try:
            connection.request(method, path, body, {"Content-Type": media_type})
            response = connection.getresponse()
            response.read()
        except BROKEN:  # the connection was closed between two requests
            connection.close()
            codes[0] += 1
            continue
        codes[response.status] += 1
    return codes


def hostile(folder: Path, given: argparse.Namespace) -> dict[str, object]:
    """Mutated requests, from two processes."""
    X = make_service(folder, given.voices, given.dimensions)[:3]
    with server(folder) as (address, process), processes(2) as pool:
        attack(address, range(200), X)
        before = memory(process.pid)
        parts = [range(1000 + i * given.requests // 20, 1000 + (i + 1) * given.requests // 20) for i in range(20)]
        codes = sum(pool.map(attack, [address] * 20, parts, [X] * 20), Counter[int]())
        after = memory(process.pid)
    log = (folder / "log").read_text()
    wrong = sum(n for code, n in codes.items() if code != 200 and not 400 <= code < 500)
    wrong += log.count("Traceback")
    print(
        f"{sum(codes.values()):,} mutated requests: {dict(sorted(codes.items()))}; {log.count('Traceback')} tracebacks"
    )
    print(f"memory of the server: {before >> 20} MB after 200 of them, {after >> 20} MB in the end")
    return {"codes": dict(codes), "bytes_before": before, "bytes_after": after, "wrong": wrong}


# -- load


def work(address: str, clients: int, first: int, seconds: float, share: float, X: np.ndarray) -> list[tuple]:
    """Some clients in threads: each asks, and enrols now and then; (kind, seconds, code, name, session) of each."""

    def client(number: int) -> list[tuple]:
        rng = np.random.default_rng(number)
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
        rows: list[tuple] = []
        end = time.monotonic() + seconds
        while len(rows) < 2 or time.monotonic() < end:  # on a busy machine the time may be over before the first answer
            i = int(rng.integers(len(X)))
            name, session = f"client {number}", f"s{len(rows)}"
            writes = rng.random() < share
            path = f"/voice?name={quote(name)}&session={session}" if writes else "/identify?session=now"
            begin = time.perf_counter()
            try:
                connection.request("POST", path, plain(X[i : i + 1]), {"Content-Type": NPY})
                response = connection.getresponse()
                response.read()
                code = response.status
            except BROKEN:
                connection.close()
                code = 0
            rows.append(("write" if writes else "read", time.perf_counter() - begin, code, name, session))
            if not code:
                break
        return rows

    with ThreadPoolExecutor(clients) as pool:
        return [row for rows in pool.map(client, range(first, first + clients)) for row in rows]


def load(folder: Path, given: argparse.Namespace) -> dict[str, object]:
    """Clients that mix questions and enrolments."""
    X = make_service(folder, given.voices, given.dimensions)
    floor, alone = bare(folder, X)
    per = given.clients // given.processes
    with (
        server(folder, "--max-requests", str(2 * given.clients)) as (address, process),
        processes(given.processes) as pool,
    ):
        work(address, 4, 900_000, 1.0, 0.0, X)  # the first question reads all voices
        before = processor_seconds(process.pid)
        jobs = [
            pool.submit(work, address, per, i * per, given.seconds, given.writes, X) for i in range(given.processes)
        ]
        rows = [row for job in jobs for row in job.result()]
        busy = (processor_seconds(process.pid) - before) / len(rows)
        peak = memory(process.pid)
    lost = missing(
        folder, {(name, session) for kind, _, code, name, session in rows if kind == "write" and code == 201}
    )
    errors = Counter(code for _, _, code, _, _ in rows if code not in (200, 201))
    rate = len(rows) / given.seconds
    sizes = f"{given.voices:,} voices x {given.dimensions}"
    print(f"{given.clients} clients, {sizes}, {given.seconds:g} s: {rate:.0f} requests/s")
    print(f"processor time: {1e3 * busy:.2f} ms a request; of one question, {1e3 * alone:.2f} ms without the service,")
    print(f"and {1e3 * floor:.3f} ms the bare product: a request costs {busy / alone:.1f} times the one,")
    print(f"and {busy / floor:.0f} times the other")
    out: dict[str, object] = {"requests": len(rows), "rate": rate, "floor_s": floor, "bytes": peak, "lost": len(lost)}
    out |= {"request_s": busy, "alone_s": alone}
    for kind in ("read", "write"):
        seconds = np.array([row[1] for row in rows if row[0] == kind])
        median, p99 = np.quantile(seconds, [0.5, 0.99]) if len(seconds) else (np.nan, np.nan)
        print(f"{kind:6} {len(seconds):7,}  median {1e3 * median:.1f} ms, 99th percentile {1e3 * p99:.1f} ms")
        out[kind] = {"n": len(seconds), "median": median, "p99": p99}
    print(f"errors: {dict(errors) or 'none'}; lost: {len(lost)}; memory of the server: {peak >> 20} MB")
    return {**out, "errors": dict(errors), "wrong": len(lost) + sum(errors.values())}


def bare(folder: Path, X: np.ndarray) -> tuple[float, float]:
    """Processor seconds of the product of all voices' factors with one test, and of the registry's own answer."""
    plda = PLDA.load(folder / "model")
    factors = plda.speaker_loadings_.shape[1]
    rng = np.random.default_rng(0)
    with Registry.open(folder / "voices.db", plda) as registry:
        G, y = rng.standard_normal((len(registry), factors)), rng.standard_normal(factors)
        registry.identify(X[0], "now")
        return _seconds(lambda: G @ y, 500), _seconds(lambda: registry.identify(X[0], "now"), 50)


def _seconds(function: Callable[[], object], repeat: int) -> float:
    begin = time.process_time()
    for _ in range(repeat):
        function()
    return (time.process_time() - begin) / repeat


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- kills


def kills(folder: Path, given: argparse.Namespace) -> dict[str, object]:
    """Kill a server while clients enrol, at a random moment, again and again."""
    X = make_service(folder, 20, given.dimensions)
    rng = np.random.default_rng(0)
    acknowledged: set[tuple[str, str]] = set()
    done = 0
    while done < given.kills:
        with server(folder, dies=True) as (address, process):
            timer = threading.Timer(float(rng.uniform(0.2, 3.0)), process.kill)
            timer.start()
            rows = work(address, 4, 10_000 + 10 * done, 30, 1.0, X)
            process.wait()
        acknowledged |= {(name, session) for _, _, code, name, session in rows if code == 201}
        done += 1
    lost = missing(folder, acknowledged)
    print(f"{done} kills, {len(acknowledged):,} acknowledged enrolments, {len(lost)} lost")
    return {"kills": done, "acknowledged": len(acknowledged), "wrong": len(lost)}


# -- a service


def make_service(folder: Path, voices: int, dimensions: int) -> np.ndarray:
    """A model and a registry of that many voices; return recordings to ask with."""
    sizes = {"n_dimensions": dimensions, "n_speaker_factors": max(2, dimensions * 3 // 4), "n_session_factors": 2}
    data = make_recordings(voices, sessions=2, recordings=1, seed=0, **sizes)
    m = data.model
    plda = PLDA.from_parameters(m.mu[0], m.V, m.U, m.W[0])
    plda.save(folder / "model", force=True)
    X = data.X.reshape(voices, 2, -1)
    with Registry.create(folder / "voices.db", plda) as registry:
        for i in range(voices):
            registry.add(f"person {i}", X[i, :1], "one")
    return X[: min(voices, 200), 1]


@contextmanager
def server(folder: Path, *options: str, dies: bool = False) -> Iterator[tuple[str, subprocess.Popen]]:
    """A server in a process of its own."""
    files = ["--model", folder / "model", "--registry", folder / "voices.db", "--audit-log", folder / "audit"]
    command = [sys.executable, "-m", "duoplda", "serve", *files, "--port", "0", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(folder / "log", "a") as log:
        process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise SystemExit((folder / "log").read_text()[-2000:])
        yield address, process
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        process.stdout.close()
    if code and not dies:
        raise SystemExit(f"the server ended with {code}")


def processes(n: int) -> ProcessPoolExecutor:
    """Clients must not share the interpreter of anybody else."""
    return ProcessPoolExecutor(n, mp_context=get_context("spawn"))


def missing(folder: Path, acknowledged: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """What was acknowledged, and is not in the registry."""
    with Registry.open(folder / "voices.db", PLDA.load(folder / "model")) as registry:
        registry.sides()  # reads all sessions: a checksum that does not hold is an error
        kept = {(name, s.name) for name in {name for name, _ in acknowledged} for s in registry.voice(name).sessions}
    return acknowledged - kept


def memory(pid: int) -> int:
    """The most memory that a process has had, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=__doc__)
    parser.add_argument("what", nargs="*", choices=[[], "load", "hostile", "kills"], help="without a name, all")
    parser.add_argument("--voices", type=int, default=2000)
    parser.add_argument("--dimensions", type=int, default=192)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--processes", type=int, default=2, help="that the clients are in")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--writes", type=float, default=0.1, help="the share of enrolments")
    parser.add_argument("--requests", type=int, default=100_000, help="that are mutated")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--out", type=Path, help="the JSON file, instead of one in benchmarks/results/")
    given = parser.parse_args()
    results = {}
    for name in given.what or ["load", "hostile", "kills"]:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = {"load": load, "hostile": hostile, "kills": kills}[name](Path(folder), given)
    print(f"written: {save('service', results, given.out)}")
    sys.exit(any(result["wrong"] for result in results.values()))


if __name__ == "__main__":
    main()
