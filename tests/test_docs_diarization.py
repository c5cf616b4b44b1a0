"""The commands and the code of docs/diarization.md, on drawn files; other tools are replaced by their interfaces."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from cli_cases import done
from duoplda import Backend
from duoplda.datasets import make_recordings
from duoplda.diarization import read_rttm
from duoplda.io import read_embeddings, write_embeddings, write_map
from test_docs_pages import text
from test_examples import code, run

PAGE = "docs/diarization.md"
SIZES = {"n_dimensions": 12, "n_speaker_factors": 8, "n_session_factors": 4}
SIZES |= {"session_variance": 0.2, "channel_variance": 0.2}
PEOPLE = ["ann", "bob", "cid"]  # of whom the first two are enrolled


def commands() -> list[list[str]]:
    """The commands of the page, some of which go on in the next line."""
    typed = re.findall(r"^duoplda (?:.*\\\n)*.*", text(PAGE), re.MULTILINE)
    return [shlex.split(command.replace("\\\n", " "))[1:] for command in typed]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files that the page names: a model, voices to enrol, and a meeting whose windows are side by side."""
    pytest.importorskip("h5py")
    pytest.importorskip("sqlalchemy")
    monkeypatch.chdir(tmp_path)
    train = make_recordings(60, (2, 4), (1, 3), seed=0, **SIZES)
    backend = Backend.preset("vbx", lda=10).fit(train.X, train.speaker, session=train.session)
    backend.save("model.safetensors")
    done("convert", "model.safetensors", "vbx", "--to", "vbx", "--quiet")
    shutil.copy("vbx/plda", "plda")
    shutil.copy("vbx/transform.h5", "transform.h5")

    new = make_recordings(3, 40, 1, model=train.model, seed=1)
    of_person = new.X.reshape(3, 40, -1)
    enrolled = [f"{name}-{i}" for name in PEOPLE[:2] for i in range(6)]
    write_embeddings("enrol.scp", np.array(enrolled), of_person[:2, :6].reshape(12, -1))
    Path("enroll").write_text("".join(f"{name.split('-')[0]} {name}\n" for name in enrolled))
    write_map("utt2sess", enrolled, enrolled)

    person = np.tile([0, 1, 2], 3).repeat(6)
    X = np.array([of_person[k, 6 + i % 30] for i, k in enumerate(person)])
    ids = np.array([f"meeting-{i}.0-{i + 1}.0" for i in range(len(person))])
    listed = "".join(f"{name} meeting {i}.0 {i + 1}.0\n" for i, name in enumerate(ids))
    truth = "".join(f"SPEAKER meeting 1 {i}.0 1.0 <NA> <NA> {PEOPLE[k]} <NA> <NA>\n" for i, k in enumerate(person))
    for name in ("x", "ES2005a"):
        write_embeddings(f"{name}.ark", ids, X)
        Path(f"{name}.seg").write_text(listed)
    write_embeddings("all.scp", ids, X)
    Path("segments").write_text(listed)
    Path("truth.rttm").write_text(truth)
    Path("ES2005a.reference.rttm").write_text(truth)
    Path("pred_rttms").mkdir()
    numbered = re.sub("|".join(PEOPLE), lambda name: f"speaker_{PEOPLE.index(name[0])}", truth)
    Path("pred_rttms/meeting.rttm").write_text(numbered)
    return SimpleNamespace(X=X, ids=ids, person=person, of_person=of_person, backend=backend)


def test_commands(folder):
    typed = commands()
    assert [command[0] for command in typed].count("diarize") == 4
    for command in typed:
        done(*command, *(["--force"] if "--out" in command else []))
    for path in ("x.rttm", "linked.rttm"):
        assert {*PEOPLE[:2]} < {*read_rttm(path).speaker.values.tolist()}


def fake(monkeypatch, name, **contents):
    """A module in place of one that is not installed, and its packages."""
    parts = name.split(".")
    for n in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:n]))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update(contents)


def test_code(folder, monkeypatch, request):
    pandas = pytest.importorskip("pandas")
    blocks = code(PAGE)
    assert run(blocks[0])["turns"].duration.sum() == pytest.approx(54)

    add = ["voices", "add", "--registry", "voices.db", "--model", "model.safetensors", "--embeddings", "enrol.scp"]
    done(*add, "--enroll", "enroll", "--quiet")
    names = run(blocks[1])
    request.addfinalizer(names["registry"].close)
    means = [folder.of_person[k, 6:].mean(axis=0) for k in range(3)]

    labels = [f"SPEAKER_{k:02}" for k in range(4)]
    renamed: dict[str, str] = {}
    annotation = SimpleNamespace(labels=lambda: labels, rename_labels=lambda mapping: renamed.update(mapping))
    output = SimpleNamespace(speaker_diarization=annotation, speaker_embeddings=np.array([*means, np.zeros(12)]))
    loaded = SimpleNamespace(from_pretrained=lambda name, token: lambda audio: output)
    fake(monkeypatch, "pyannote.audio", Pipeline=loaded)
    run(blocks[2], names)
    assert renamed == dict(zip(labels, ["ann", "bob", *labels[2:]], strict=True))

    segments = pandas.DataFrame({"start": [0.0, 1.0, 2.0], "end": [1.0, 2.0, 3.0], "speaker": labels[:3]})
    given = {label: x.tolist() for label, x in zip(labels, output.speaker_embeddings, strict=True)}
    pipeline = lambda token: lambda audio, return_embeddings: (segments, given)  # noqa: E731
    fake(monkeypatch, "whisperx.diarize", DiarizationPipeline=pipeline)
    run(blocks[3], names)
    assert names["segments"]["speaker"].tolist() == ["ann", "bob", "SPEAKER_02"]

    class Network:
        """The network whose embedding of a second of audio is the window that begins there."""

        from_pretrained = staticmethod(lambda name: Network())

        def infer_segment(self, samples):
            x = folder.X[int(samples[0])]
            return [SimpleNamespace(cpu=lambda: SimpleNamespace(numpy=lambda: x))], None

    fake(monkeypatch, "nemo.collections.asr.models", EncDecSpeakerLabelModel=Network)
    fake(monkeypatch, "soundfile", read=lambda path, dtype: (np.repeat(np.arange(54), 16000), 16000))
    run(blocks[4], names)
    assert read_rttm("named.rttm").speaker.values.tolist()[:18:6] == ["ann", "bob", "speaker_2"]


def test_code_of_chunks_and_streams(folder, capsys):
    *_, chunks, stream = code(PAGE)
    activity = np.zeros((2, 10, 2))
    activity[:, :5, 0] = activity[:, 5:, 1] = 1
    embeddings = np.stack([folder.of_person[:2, 6 + c] for c in range(2)])
    given = {"model": folder.backend, "embeddings": embeddings, "activity": activity}
    assert len(run(chunks, given)["turns"])

    ids, X = read_embeddings("enrol.scp").load()
    voices = folder.backend.enroll(X, [name.split("-")[0] for name in ids.tolist()])
    windows = zip(folder.X, np.arange(54.0), np.arange(1.0, 55.0), strict=True)
    last = run(stream, {"model": folder.backend, "voices": voices, "stream": windows})["last"]
    assert last
    assert {"ann", "bob"} <= {line.split()[2] for line in capsys.readouterr().out.splitlines()}
