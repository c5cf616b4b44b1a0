"""docs/tutorial.md: its commands and its code run as they are printed, by each way in, and give what it shows.

The files that a reader is said to have are drawn here.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from cli_cases import done, duoplda
from duoplda import Backend
from duoplda.datasets import make_recordings
from duoplda.io import LabelColumns, read_labels, read_scores, write_embeddings, write_map
from duoplda.metrics import eer

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
WAYS = {"From a Kaldi folder": "scp", "From NumPy arrays": "npz", "From a Parquet table": "parquet"}
TROUBLE = "When something is wrong"
SUFFIXES = ("", "-noise", "-music", "-reverb")  # of augmented copies


class Block(NamedTuple):
    section: str
    language: str
    text: str


def blocks() -> list[Block]:
    """The fenced blocks, and the headings under which they stand."""
    found, section = [], ""
    for heading, language, text in re.findall(r"^(?:#+ ([^\n]+)|```(\w*)\n(.*?)^```)$", TEXT, re.DOTALL | re.MULTILINE):
        section = heading or section
        if not heading:
            found.append(Block(section, language, text))
    return found


def shell(line: str):
    """Run a line of a shell; duoplda in this process. Returns the exit code and what was printed."""
    if line.startswith("duoplda "):
        result = duoplda(*shlex.split(line)[1:])
        return result.exit_code, result.output
    result = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + result.stderr


def worded(line: str) -> str:
    """A line without its numbers and its spacing."""
    return " ".join(re.sub(r"-?\d[\d,.]*(e-?\d+)?", "#", line).split())


def numbers(line: str) -> list[float]:
    return [float(n.replace(",", "")) for n in re.findall(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?", line)]


def follow(way: str) -> tuple[list[tuple[Block, int, str]], dict]:
    """Do what the page says: blocks of commands, their exit codes and what they printed; the names that Python left."""
    told, names = [], {}
    for block in blocks():
        if block.section in WAYS and block.section != way:
            continue
        if block.section == TROUBLE and WAYS[way] != "scp":  # about lists and scp files
            continue
        own = block.section in WAYS or block.section == TROUBLE
        text = block.text if own else block.text.replace("xvectors.scp", f"xvectors.{WAYS[way]}")
        if block.language == "python":
            exec(compile(text, "docs/tutorial.md", "exec"), names)
        elif block.language == "":
            codes, output = zip(*(shell(line) for line in text.splitlines()), strict=True)
            told.append((block, max(codes), "".join(output)))
    return told, names


@pytest.fixture(scope="module")
def corpus():
    """120 speakers: ids as Kaldi's recipes name copies, vectors, speakers and sessions."""
    sizes = {"n_dimensions": 20, "n_speaker_factors": 12, "n_session_factors": 20}
    X, speaker, session, _ = make_recordings(120, (2, 4), (1, 4), seed=0, **sizes)
    starts = np.flatnonzero(np.append(True, session[1:] != session[:-1]))
    place = np.arange(len(X)) - np.repeat(starts, np.diff(np.append(starts, len(X))))
    # In single precision, as extractors write them: last digits of double precision hang on the release of NumPy.
    ids = np.array([s + SUFFIXES[k] for s, k in zip(session, place, strict=True)])
    return ids, X.astype(np.float32), speaker, session


@pytest.fixture(scope="module", params=WAYS, ids=WAYS.values())
def tutorial(request, corpus, tmp_path_factory):
    """The folder after the page was followed, which way it was, and what was printed."""
    ids, X, speaker, session = corpus
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("tutorial"))
        if WAYS[request.param] == "scp":
            write_embeddings("xvectors.scp", ids, X)
            write_map("utt2spk", ids, speaker)
            write_map("wrong_utt2spk", [f"{name}.wav" for name in ids], speaker)
            Path("moved.scp").write_text(re.sub("(?m) (?=xvectors.ark)", " old/", Path("xvectors.scp").read_text()))
            write_embeddings("other.scp", ids, 1.3 * X + 2 * np.random.default_rng(0).normal(size=X.shape[1]))
        elif WAYS[request.param] == "npz":
            for name, array in {"vectors": X, "speaker": speaker, "session": session}.items():
                np.save(f"{name}.npy", array)
        else:
            pytest.importorskip("pyarrow")
            write_embeddings("xvectors.parquet", ids, X, labels=LabelColumns(ids, speaker, session))
        yield Path.cwd(), request.param, *follow(request.param)


def test_there_is_something_to_run():
    found = blocks()
    assert [block.language for block in found].count("python") == 4
    commands = [
        line.split()[1] for b in found for line in b.text.splitlines() if line.startswith("duoplda ") and not b.language
    ]
    steps = ["split", "advise", "train", "score", "calibrate", "enroll", "score", "evaluate", "report"]
    assert commands[: len(steps)] == steps
    assert {block.language for block in found} == {"", "text", "python"}


def test_every_command_does_what_it_should(tutorial):
    told = tutorial[2]
    assert len(told) >= 6
    for block, code, output in told:
        shown = next_text(block)
        failure = shown.startswith("duoplda: error: ")
        assert (code != 0) == failure, (block.text, output)
        if failure and "no embedding" in shown:
            assert code == 3


def next_text(block: Block) -> str:
    """The text that the page shows right after a block, or nothing."""
    found = blocks()
    after = found[found.index(block) + 1 :][:1]
    return after[0].text if after and after[0].language == "text" else ""


def test_what_is_shown_is_what_comes_out(tutorial):
    """The words in full, and the numbers nearly: other libraries round otherwise."""
    told = tutorial[2]
    compared = 0
    for block, _, output in told:
        lines = {worded(line): line for line in output.splitlines()}
        for line in next_text(block).splitlines():
            assert worded(line) in lines, f"{line}\n--- is not in\n{output}"
            if block.section != TROUBLE:
                a, b = numbers(line), numbers(lines[worded(line)])
                np.testing.assert_allclose(a, b, rtol=0.1, atol=0.05, err_msg=line)
                compared += len(a)
    assert compared > 40


def test_the_labels_are_those_of_the_corpus(tutorial, corpus):
    folder, way, _, _ = tutorial
    labels = read_labels(folder / "labels.csv")
    assert labels.session is not None
    assert len(labels.ids) == len(corpus[0])
    if WAYS[way] != "npz":
        assert labels.ids.tolist() == corpus[0].tolist()
    assert labels.speaker.tolist() == corpus[2].tolist()
    assert labels.session.tolist() == corpus[3].tolist()


def test_no_speaker_is_in_two_parts(tutorial):
    folder = tutorial[0]
    parts = [set(read_labels(folder / f"{part}.csv").speaker) for part in ("train", "dev", "eval")]
    assert [len(part) for part in parts] == [60, 30, 30]
    assert len(set.union(*parts)) == 120


def test_the_model_is_calibrated_by_the_development_trials(tutorial):
    folder = tutorial[0]
    first, second = (Backend.load(folder / f"{name}.safetensors") for name in ("model", "calibrated"))
    assert first.calibration_.scale_ != second.calibration_.scale_
    np.testing.assert_array_equal(first.plda_.noise_precision_, second.plda_.noise_precision_)


def test_python_and_the_commands_agree(tutorial):
    folder, _, told, names = tutorial
    listed = {(e, t): s for e, t, s in zip(*columns(read_scores(folder / "scores.txt")), strict=True)}
    np.testing.assert_allclose(sorted(listed.values()), np.sort(names["llr"]), rtol=1e-4, atol=1e-4)
    rate = next(output for block, _, output in told if block.text.startswith("duoplda evaluate"))
    assert f"{100 * eer(names['llr'], names['target']):.2f}" in rate
    assert Backend.load(folder / "from_python.safetensors").calibration_ is not None


def columns(scores):
    return scores.enroll.values, scores.test.values, scores.score.tolist()


def test_the_report_has_the_parts_that_are_named(tutorial):
    page = (tutorial[0] / "report.html").read_text(encoding="utf-8")
    part = TEXT[TEXT.index("in this order:") : TEXT.index("## The same in Python")]
    named = re.findall(r"\*\*(.+?)\*\*", part)
    assert len(named) == 8
    for name in named:
        assert f">{name}</h2>" in page, name


# -- remedies, which are for lists and scp files

kaldi_only = pytest.mark.parametrize("tutorial", ["From a Kaldi folder"], indirect=True, ids=["scp"])


@pytest.fixture
def kaldi(tutorial, monkeypatch, tmp_path):
    """A copy of the folder of the first way."""
    shutil.copytree(tutorial[0], tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")


@kaldi_only
def test_remedies_of_names_and_paths(kaldi):
    before = {name: Path(name).read_text() for name in ("utt2spk", "xvectors.scp")}
    commands = re.findall(r"`(sed [^`]+)`", TEXT)
    assert len(commands) == 2
    for command in commands:
        assert shell(command) == (0, "")
    assert before == {name: Path(name).read_text() for name in before}
    done(
        "train",
        "--embeddings",
        "xvectors.ark",
        "--labels",
        "train.csv",
        "--out",
        "of_ark.safetensors",
        "--shrinkage",
        "0.1",
    )


@kaldi_only
def test_adaptation_is_a_remedy(kaldi):
    rates = []
    for name in ("other", "adapted"):
        output = done("evaluate", "--scores", f"{name}.txt", "--trials", "eval_trials", "--json").output
        rates.append(float(re.search(r'"cllr"[^\d]*([\d.]+)', output, re.IGNORECASE)[1]))
    assert rates[1] < 0.5 < 1 < rates[0]


@kaldi_only
def test_nothing_is_overwritten(kaldi):
    result = duoplda("train", "--embeddings", "xvectors.scp", "--labels", "train.csv", "--out", "model.safetensors")
    assert (result.exit_code, "exists already" in result.output) == (1, True)
    assert "`exists already`" in TEXT


@kaldi_only
def test_missing_sessions_are_told(kaldi):
    words = "no sessions given: each recording is taken for a session of its own"
    assert f"`{words}`" in TEXT
    assert (
        words in duoplda("train", "--embeddings", "xvectors.scp", "--speakers", "wrong_utt2spk", "--out", "x.st").output
    )


@kaldi_only
def test_too_few_differences_are_told(kaldi):
    assert "a warning on differences within sessions, fewer than dimensions" in TEXT
    labels = read_labels("train.csv")
    few = np.isin(labels.speaker, np.unique(labels.speaker)[:2])
    write_map("few", labels.ids[few], labels.speaker[few])
    write_map("few_sessions", labels.ids[few], labels.session[few])
    lists = ["--speakers", "few", "--sessions", "few_sessions"]
    output = done("train", "--embeddings", "xvectors.scp", *lists, "--out", "few.safetensors").output
    assert "differences between recordings" in output
