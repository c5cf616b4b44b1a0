"""`duoplda voices` and `duoplda identify`, and commands that take a registry for known speakers."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")

from cli_cases import QUICK, done, duoplda, lines, recordings, training
from duoplda import Backend
from duoplda.io import write_embeddings, write_map
from duoplda.voices import Registry


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, and of six of its speakers a list of recordings to enrol and others to identify."""
    at = tmp_path_factory.mktemp("voices")
    X, ids, speaker, session = recordings(at)
    done(*training(at), *QUICK, "--out", at / "m", "--quiet")
    who = np.unique(speaker)[:6]
    first = {s: np.unique(session[speaker == s])[0] for s in who}
    known = np.isin(speaker, who)
    test = known & np.array([s == first.get(w) for s, w in zip(session, speaker, strict=True)])
    write_map(at / "enroll", speaker[known & ~test], ids[known & ~test])
    write_embeddings(at / "tests.npz", ids[test], X[test])
    write_map(at / "tests2sess", ids[test], session[test])
    return at


@pytest.fixture
def registry(folder, tmp_path):
    at = tmp_path / "voices.db"
    add(folder, at)
    return at


def add(folder, at, *more):
    named = ["--embeddings", folder / "x.npz", "--enroll", folder / "enroll", "--sessions", folder / "utt2sess"]
    return done("voices", "add", "--registry", at, "--model", folder / "m", *named, "--by", "ann", *more)


def listed(registry):
    return json.loads(done("voices", "list", "--registry", registry, "--json").stdout)["voices"]


def test_voices_are_enrolled_and_recognised(folder, registry):
    voices = listed(registry)
    assert [v["name"] for v in voices] == sorted({line[0] for line in lines(folder / "enroll")})
    assert sum(v["n_recordings"] for v in voices) == len(lines(folder / "enroll"))
    command = ["identify", "--registry", registry, "--model", folder / "m", "--embeddings", folder / "tests.npz"]
    command += ["--sessions", folder / "tests2sess"]
    answers = json.loads(done(*command, "--json").stdout)
    assert {test: answer["candidates"][0]["name"] for test, answer in answers.items()} == {
        line[1]: line[1].partition("-")[0] for line in lines(folder / "tests2sess")
    }
    with Registry.open(registry, Backend.load(folder / "m")) as known:
        tests = np.load(folder / "tests.npz")
        mapped = dict(lines(folder / "tests2sess"))
        one = next(iter(answers))
        X = tests["embeddings"][[mapped[i] == one for i in tests["ids"].tolist()]]
        assert known.identify(X, "s").candidates[0].llr == pytest.approx(answers[one]["candidates"][0]["llr"])
    text = done(*command).stdout.splitlines()
    assert len(text) == len(answers)
    assert text[0].split("\t")[0] == one
    strict = json.loads(done(*command, "--json", "--cost-wrong-name", "1e12").stdout)
    assert not any(answer["decision"] == "accept" for answer in strict.values())


def test_actions(folder, registry, tmp_path):
    names = [v["name"] for v in listed(registry)]
    at = ["--registry", registry]
    n = {v["name"]: v["n_sessions"] for v in listed(registry)}
    done("voices", "rename", names[0], "Ann Smith", *at, "--by", "bob")
    done("voices", "merge", names[1], "Ann Smith", *at, "--model", folder / "m")
    (voice,) = json.loads(done("voices", "show", "Ann Smith", *at, "--json").stdout)["voices"]
    assert voice["n_sessions"] == n[names[0]] + n[names[1]] == len(voice["sessions"])
    done("voices", "remove", "Ann Smith", "--session", voice["sessions"][0]["name"], *at)
    done("voices", "remove", *names[2:4], *at)
    assert [v["name"] for v in listed(registry)] == ["Ann Smith", *names[4:]]
    found = done("voices", "list", "--search", "sMITH", *at).stdout.splitlines()
    assert [line.split()[0] for line in found] == ["voice", "Ann"]
    assert "session" in done("voices", "show", "Ann Smith", *at).stdout
    done("voices", "snapshot", *at, "--model", folder / "m")
    done("identify", *at, "--model", folder / "m", "--embeddings", folder / "tests.npz")
    done("voices", "export", *at, "--out", tmp_path / "all")
    new = tmp_path / "new.db"
    done("voices", "import", "--registry", new, "--model", folder / "m", "--file", tmp_path / "all")
    assert listed(new) == listed(registry)
    one = ["--embeddings", folder / "tests.npz", "--model", folder / "m"]
    done("voices", "add", "somebody", "--registry", new, *one)
    counts = {v["name"]: v["n_recordings"] for v in listed(new)}
    assert counts["somebody"] == len(lines(folder / "tests2sess"))


def test_migration(folder, registry, tmp_path):
    kept = tmp_path / "kept.db"
    add(folder, kept, "--keep", "embeddings")
    done(*training(folder), "--shrinkage", "0.2,0.2,0.2", "--tol", "1e-3", "--out", tmp_path / "new", "--quiet")
    done("voices", "migrate", "--registry", kept, "--model", tmp_path / "new")
    tests = ["--embeddings", folder / "tests.npz"]
    done("identify", "--registry", kept, "--model", tmp_path / "new", *tests)
    for location, words in ((kept, "`migrate`"), (registry, "embeddings were not kept")):
        model = folder / "m" if location == kept else tmp_path / "new"
        result = duoplda("identify", "--registry", location, "--model", model, *tests)
        assert result.exit_code == 1
        assert words in result.stderr
    assert "kept: embeddings" in done("info", kept).stdout


def test_a_registry_serves_as_known_speakers(folder, registry, tmp_path):
    named = ["--embeddings", folder / "x.npz", "--enroll", folder / "enroll", "--sessions", folder / "utt2sess"]
    done("enroll", "--model", folder / "m", *named, "--out", tmp_path / "sides")
    common = ["--model", folder / "m", "--embeddings", folder / "tests.npz", "--quiet"]
    for command, more in (
        ("cluster", ["--sessions", folder / "tests2sess"]),
        ("link", ["--local", folder / "tests2sess"]),
    ):
        for option, value in (("--speakers-known", tmp_path / "sides"), ("--registry", registry)):
            done(command, *common, *more, option, value, "--out", tmp_path / f"{command}{option}.tsv")
        a, b = ((tmp_path / f"{command}{o}.tsv").read_text() for o in ("--registry", "--speakers-known"))
        assert a == b
        both = duoplda(
            command, *common, *more, "--registry", registry, "--speakers-known", tmp_path / "sides", "--out", "o"
        )
        assert both.exit_code == 2
        assert "--speakers-known or from --registry" in both.stderr
    info = json.loads(done("info", registry, "--json").stdout)
    assert set(info["enrolled"]) == {line[0] for line in lines(folder / "enroll")}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("add a --model M --embeddings X --enroll E", "name of the voice"),
        ("add --model M --embeddings X", "name of the voice"),
        ("add a --embeddings X", "add needs --model"),
        ("list a", "list takes no name, and 1 are given"),
        ("merge a", "merge takes 2 names, and 1 are given"),
        ("show", "show takes 1 name, and 0 are given"),
        ("rename a b --search x", "--search is not for rename"),
        ("remove a b --session 1", "--session is of one voice"),
        ("import", "import needs --model"),
        ("export", "export needs --out"),
        ("snapshot", "snapshot needs --model"),
        ("forget", "Invalid value"),
    ],
)
def test_options_that_do_not_go_together(folder, registry, arguments, words):
    files = {"M": folder / "m", "X": folder / "x.npz", "E": folder / "enroll"}
    typed = [files.get(word, word) for word in arguments.split()]
    result = duoplda("voices", *typed, "--registry", registry)
    assert result.exit_code == 2
    assert words in result.stderr


def test_mistakes_are_told_and_change_nothing(folder, registry):
    before = listed(registry)
    again = duoplda(
        *["voices", "add", "--registry", registry, "--model", folder / "m", "--embeddings", folder / "x.npz"],
        *["--enroll", folder / "enroll", "--sessions", folder / "utt2sess"],
    )
    assert again.exit_code == 1
    assert "of these sessions already" in again.stderr
    assert "or --join them" in again.stderr
    assert listed(registry) == before
    missing = duoplda("voices", "remove", "nobody", "--registry", registry)
    assert missing.exit_code != 0
    assert "no voice 'nobody'" in missing.stderr


def test_the_page_on_known_voices(tmp_path, monkeypatch):
    """docs/voices.md: its commands and its Python run as they are printed."""
    text = (Path(__file__).parents[1] / "docs" / "voices.md").read_text()
    monkeypatch.chdir(tmp_path)
    X, ids, speaker, _ = recordings(tmp_path)
    done(*training(tmp_path), *QUICK, "--out", "model.safetensors", "--quiet")
    who = np.isin(speaker, np.unique(speaker)[:3])
    names = dict(zip(np.unique(speaker)[:3].tolist(), ("ann", "bob", "cid"), strict=True))
    write_embeddings("enrol.npz", ids[who], X[who])
    write_map("enroll", [names[s] for s in speaker[who].tolist()], ids[who])
    write_embeddings("new.npz", ids[:12], X[:12])
    commands = re.findall(r"^duoplda .*", text, re.MULTILINE)
    assert len(commands) == 11
    for command in commands:
        done(*shlex.split(command)[1:])
    with Registry.open("copy.db") as registry:
        assert [voice.name for voice in registry.voices()] == ["Ann Smith"]
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    exec(compile(block, "docs/voices.md", "exec"), {})
