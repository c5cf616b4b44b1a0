"""The service with an extractor: audio in the body of a request, and on the page."""

from __future__ import annotations

import io
from types import SimpleNamespace

import numpy as np
import pytest

from audio_cases import RATE, voice, wav_bytes, write_extractor
from cli_cases import duoplda
from duoplda import PLDA
from duoplda.audio import AudioFile, Extractor, embed_audio
from duoplda.voices import Registry
from service_cases import Client, address_of, log_of, npy, start_server, stopped
from test_report import browser, look  # noqa: F401 (a fixture)
from test_service_page import Page

soundfile = pytest.importorskip("soundfile", reason="needs the extra audio")
pytest.importorskip("sherpa_onnx", reason="needs the extra audio")

D = 24  # of the tiny extractor


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A server that knows three voices, which were enrolled from the same audio as its files."""
    at = tmp_path_factory.mktemp("audio")
    extractor = Extractor(write_extractor(at / "tiny.onnx"))
    sounds = [voice(i) for i in range(3)]
    for i, sound in enumerate(sounds):
        (at / f"{i}.wav").write_bytes(wav_bytes(sound))
    files = [AudioFile(str(i), str(at / f"{i}.wav")) for i in range(3)]
    X = np.concatenate([embedded.X for embedded in embed_audio(extractor, files)])
    noise = np.eye(D) / np.var(X)
    plda = PLDA.from_parameters(X.mean(axis=0), 3 * np.std(X) * np.eye(D), None, 4 * noise)
    plda.save(at / "model")
    with Registry.create(at / "voices.db", plda) as registry:
        registry.add_all({f"voice {i}": x for i, x in enumerate(X)})
    with stopped(start_server(at, "--extractor", at / "tiny.onnx")) as process:
        yield SimpleNamespace(at=at, X=X, plda=plda, sounds=sounds, process=process, address=address_of(process))


@pytest.fixture
def client(running):
    with Client(running.address) as client:
        yield client


def packed(sound, kind, rate=RATE):
    with io.BytesIO() as file:
        soundfile.write(file, sound, rate, format=kind)
        return file.getvalue()


def test_audio_is_answered_as_its_embedding(running, client):
    assert client.get("/ready")["audio"] is True
    for i in range(3):
        body = (running.at / f"{i}.wav").read_bytes()
        answer = client.ask("POST", "/identify", body, "audio/wav").content
        assert answer == client.ask("POST", "/identify", npy(running.X[i]), "application/x-npy").content
        assert answer["candidates"][0]["name"] == f"voice {i}"
    verified = client.ask("POST", "/verify", packed(running.sounds[1], "FLAC"), "audio/flac", name="voice 1")
    assert verified.content["llr"] > client.ask("POST", "/verify", body, "audio/x-wav", name="voice 1").content["llr"]


def test_a_voice_is_enrolled_from_audio(running, client):
    body = packed(voice(7), "OGG")
    added = client.ask("POST", "/voice", body, "audio/ogg; codecs=vorbis", name="new", session="call")
    assert (added.status, added.content["n_recordings"]) == (201, 1)
    assert client.ask("POST", "/identify", body, "audio/ogg").content["candidates"][0]["name"] == "new"
    assert client.ask("DELETE", "/voice", name="new").status == 204


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (lambda: b"", 422, "empty"),
        (lambda: b"no audio at all", 422, "cannot be read as audio"),
        (lambda: wav_bytes(voice(0))[:-1000], 422, "cut short"),
        (lambda: wav_bytes(np.zeros(2 * RATE)), 422, "the body: has no speech in its 2.0 s"),
        (lambda: wav_bytes(voice(0)[:160]), 422, "the body: "),
        (lambda: packed(np.zeros(301 * 8000), "FLAC", 8000), 413, "longer than 300 s"),
    ],
    ids=["empty", "text", "cut", "silence", "short", "long"],
)
def test_mistakes_are_told_in_words(client, body, status, words):
    answer = client.ask("POST", "/identify", body(), "audio/wav")
    assert (answer.status, words in answer.content["detail"]) == (status, True), answer.content
    assert "/dev" not in answer.content["detail"]


def test_hostile_audio_gets_4xx(running, client):
    """Bytes of all formats, changed at random: the answer is an embedding's or a problem, and the server lives on."""
    sounds = [packed(voice(0, 1.0), kind) for kind in ("WAV", "FLAC", "OGG", "MP3", "AIFF")]
    for seed in range(150):
        rng = np.random.default_rng(seed)
        body = bytearray(sounds[seed % len(sounds)])
        for place in rng.integers(min(len(body), 400 if seed % 2 else len(body)), size=rng.integers(1, 20)):
            body[place] = rng.integers(256)
        answer = client.ask("POST", "/identify", bytes(body[: rng.integers(1, len(body) + 1)]), "audio/any")
        assert answer.status in {200, 413, 422}, (seed, answer.content)
    log = log_of(running.process, end=True)  # not all of it is JSON: a decoder below libsndfile has words of its own
    assert log.count('"event": "request"') >= 150
    assert "Traceback" not in log
    assert '"level": "error"' not in log


def test_speakers_of_a_file_are_no_audio(running, client):
    assert client.ask("POST", "/name_speakers", wav_bytes(running.sounds[0]), "audio/wav").status == 415


def test_an_extractor_of_another_model_is_refused(running, tmp_path):
    rng = np.random.default_rng(0)
    other = PLDA.from_parameters(np.zeros(12), rng.normal(size=(12, 4)), None, np.eye(12))
    other.save(tmp_path / "m")
    Registry.create(tmp_path / "v.db", other).close()
    files = ["--model", tmp_path / "m", "--registry", tmp_path / "v.db", "--port", "0"]
    result = duoplda("serve", *files, "--extractor", running.at / "tiny.onnx")
    assert (result.exit_code, "24 dimensions, and the model takes 12" in result.stderr) == (1, True), result.stderr


def test_audio_is_dropped_on_the_page(running, browser):  # noqa: F811
    look(browser, 390)
    page = Page(browser)
    page.open(running.address)
    assert "audio" in page.text("#file-hint")
    page.choose(running.at / "2.wav")
    assert "voice 2" in page.text(".bars tbody th")
    assert not page.one("#message").is_displayed()
    assert page.script("return document.documentElement.scrollWidth") <= 390
