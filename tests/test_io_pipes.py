"""Lists that are packed with gzip, or come through a pipe or standard input, are read as plain files are."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np
import pytest

from cli_cases import QUICK, done, duoplda, make_folder, same_model
from duoplda.diarization import is_rttm, read_rttm, read_segments, read_uem
from duoplda.errors import DuopldaError
from duoplda.io import (
    Coded,
    embedding_shards,
    label_columns,
    read_embeddings,
    read_enrollment,
    read_labels,
    read_map,
    read_partition,
    read_quality,
    read_score_matrix,
    read_scores,
    read_sessions,
    read_trials,
    write_embeddings,
)
from io_cases import pipe_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes have names on POSIX")

TABLE = "id,speaker,session,channel\na,ann,1,mic\nb,bob,2,phone\n"
TURNS = "SPEAKER f 1 0.5 1.25 <NA> <NA> ann <NA> <NA>\n"
READERS: dict[str, tuple[str, Callable, str]] = {  # name of the case -> name of the file, reader, text
    "utt2spk": ("utt2spk", read_labels, "a ann\nb bob\n"),
    "spk2utt": ("spk2utt", read_labels, "ann a b\nbob c\n"),
    "table": ("table.csv", read_labels, TABLE),
    "tabs": ("table.tsv", read_labels, TABLE.replace(",", "\t")),
    "map": ("utt2sess", lambda path: read_map(path, "session"), "a monday\nb tuesday\n"),
    "columns": ("table.csv", lambda path: sorted(label_columns(path)), TABLE),
    "sessions": ("table.csv", read_sessions, TABLE),
    "partition": ("clusters.tsv", read_partition, "recording\tcluster\na\t1\nb\t2\n"),
    "trials": ("trials", read_trials, "m a target\nm b nontarget\n"),
    "trials of NIST": ("trials.tsv", read_trials, "modelid\tsegmentid\ttargettype\nm\ta\ttarget\n"),
    "enrolment": ("enroll", read_enrollment, "m a b\nk c\n"),
    "scores": ("scores.txt", read_scores, "m a 1.5\nm b -0.25\n"),
    "matrix": ("scores.csv", read_score_matrix, "modelid,segmentid,LLR\nm,a,1.5\nm,b,-0.25\n"),
    "quality": ("quality.csv", read_quality, "id,duration\na,3.5\nb,4\n"),
    "segments": ("segments", read_segments, "f-1 f 0.0 1.5\nf-2 f 1.5 2.5\n"),
    "turns": ("x.rttm", read_rttm, TURNS),
    "kind of file": ("x.rttm", is_rttm, TURNS),
    "regions": ("x.uem", read_uem, "f 1 0 60\n"),
}


@pytest.fixture
def piped() -> Iterator[Callable[[bytes], str]]:
    """A function that gives the name of a pipe, as the shell's `<(...)` does, from which bytes can be read once."""
    with ExitStack() as stack:
        yield lambda data: stack.enter_context(pipe_of(data))


@pytest.fixture
def given_as(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piped: Callable[[bytes], str]
) -> Callable[[str, str, bytes], str | Path]:
    """A function that brings bytes in one of the ways, and returns what a reader is to be told."""

    def bring(way: str, name: str, data: bytes) -> str | Path:
        data = gzip.compress(data, mtime=0) if "packed" in way else data
        if way == "standard input":
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
            return "-"
        if "pipe" in way:
            return piped(data)
        path = tmp_path / (name + ".gz" * (way == "packed"))
        path.write_bytes(data)
        return path

    return bring


WAYS = ("packed", "packed under another name", "pipe", "packed in a pipe", "standard input")


def plainly(value: object) -> object:
    """What can be compared of what a reader gives."""
    if isinstance(value, Coded):
        return value.values.tolist()
    if is_dataclass(value):
        return [plainly(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, tuple | list):
        return [plainly(item) for item in value]
    if isinstance(value, dict):
        return {name: plainly(item) for name, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", READERS)
def test_every_list(case: str, way: str, given_as: Callable) -> None:
    name, read, text = READERS[case]
    assert plainly(read(given_as(way, name, text.encode()))) == plainly(read(given_as("plain", name, text.encode())))


@pytest.mark.parametrize("way", WAYS)
def test_what_is_wrong_is_named_with_its_line(way: str, given_as: Callable) -> None:
    path = given_as(way, "utt2spk", b"a ann\n\nb bob\na bob\n")
    name = "standard input" if path == "-" else str(path)
    with pytest.raises(DuopldaError) as error:
        read_labels(path)
    assert str(error.value) == f"{name}: line 4: id 'a' is there already; each recording has one line"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gzip.compress(b"a ann\n" * 100)[:-12], "cannot be read as gzip .*cut short"),
        (gzip.compress(b"a ann\n")[:-5] + b"12345", "cannot be read as gzip"),
        (gzip.compress(gzip.compress(b"a ann\n")), "is compressed with gzip; decompress it first"),
        (gzip.compress(b""), "is empty"),
        (gzip.compress(b"PAR1"), "is parquet, which .* cannot come through gzip or a pipe; give a plain file"),
        (gzip.compress(b"\x89HDF\r\n\x1a\n"), "is hdf5, which .* cannot come through gzip or a pipe"),
        (b"\x1f\x8b\x08\0", "cannot be read as gzip"),
    ],
    ids=[
        "cut short",
        "a wrong sum",
        "packed twice",
        "empty",
        "parquet",
        "hdf5",
        "a head alone",
    ],  # gzip writes the time
)
def test_what_gzip_cannot_give(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "list.gz").write_bytes(data)
    for read in (read_labels, read_trials, read_enrollment, read_scores):
        with pytest.raises(DuopldaError, match=rf"^{tmp_path}/list.gz: .*{message}"):
            read(tmp_path / "list.gz")


@pytest.mark.parametrize(
    ("tool", "data"),
    [("xz", lzma.compress(b"a ann\n")), ("bzip2", bz2.compress(b"a ann\n")), ("zstd", b"\x28\xb5\x2f\xfd\x04\0")],
    ids=["xz", "bzip2", "zstd"],
)
def test_other_packers_are_named(tmp_path: Path, tool: str, data: bytes) -> None:
    (tmp_path / "list").write_bytes(data)
    for read in (read_labels, read_trials, read_rttm):
        with pytest.raises(DuopldaError, match=f"is compressed with {tool}; lists may come through pipes: <.{tool}"):
            read(tmp_path / "list")


def test_several_members_are_one_list(tmp_path: Path) -> None:
    (tmp_path / "utt2spk.gz").write_bytes(gzip.compress(b"a ann\n") + gzip.compress(b"b bob\n"))
    assert read_labels(tmp_path / "utt2spk.gz").ids.tolist() == ["a", "b"]


def test_closed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DuopldaError, match="standard input: is closed; give a file"):
        read_labels("-")


# -- embeddings: lists that point to them, and lists of ids


@pytest.mark.parametrize("way", WAYS)
def test_lists_of_embeddings(way: str, tmp_path: Path, given_as: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ids, X = ["a", "b", "c"], np.eye(3, 2)
    write_embeddings("x.scp", ids, X)
    np.save("y.npy", X)
    source = given_as(way, "x.scp", Path("x.scp").read_bytes())
    embeddings = read_embeddings(source)
    for _ in range(2):  # a second pass reads the list again
        names, vectors = embeddings.load()
        assert names.tolist() == ids
        np.testing.assert_array_equal(vectors, X)
    names, vectors = read_embeddings("y.npy", given_as(way, "y.lst", b"a\nb\nc\n")).load()
    assert names.tolist() == ids
    np.testing.assert_array_equal(vectors, X)


def test_vectors_do_not_come_through_pipes(tmp_path: Path, given_as: Callable) -> None:
    for name in ("x.ark", "x.npz", "x.npy"):
        write_embeddings(tmp_path / name, ["a"], np.eye(1, 2))
        data = (tmp_path / name).read_bytes()
        for way in ("packed", "pipe"):
            with pytest.raises(DuopldaError, match=r"give a plain file|decompress it first"):
                read_embeddings(given_as(way, name, data))


def test_shards_of_packed_lists(tmp_path: Path, given_as: Callable) -> None:
    ids, X = [f"u{i}" for i in range(6)], np.arange(12.0).reshape(6, 2)
    write_embeddings(tmp_path / "x.scp", ids, X)
    np.save(tmp_path / "y.npy", X)
    packed = given_as("packed", "x.scp", (tmp_path / "x.scp").read_bytes())
    names = given_as("packed", "y.lst", "\n".join(ids).encode())
    for shards in (embedding_shards(packed, bytes_each=32), embedding_shards(tmp_path / "y.npy", names, bytes_each=32)):
        assert len(shards) == 3
        assert np.concatenate([shard.ids() for shard in shards]).tolist() == ids
        np.testing.assert_array_equal(np.concatenate([shard.load()[1] for shard in shards]), X)
    with pytest.raises(
        DuopldaError, match="cannot be read again by other processes, as shards are; write it to a file first"
    ):
        embedding_shards(given_as("pipe", "x.scp", (tmp_path / "x.scp").read_bytes()))


# -- commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pipes")
    make_folder(path)
    model = ["--model", path / "model.safetensors", "--embeddings", path / "x.npz"]
    lists = ["--enroll", path / "enroll", "--trials", path / "trials", "--sessions", path / "utt2sess"]
    done("score", *model, *lists, "--out", path / "scores")
    others = np.random.default_rng(0).normal(size=(20, 12))
    write_embeddings(path / "others.npz", [f"other{i}" for i in range(20)], others)
    (path / "others2sess").write_text("".join(f"other{i} session{i // 2}\n" for i in range(20)))
    (path / "pairs").write_text("utt00000 utt00001\n")
    (path / "segments").write_text("".join(f"utt{i:05} f{i // 20} {i % 20} {i % 20 + 1}\n" for i in range(60)))
    (path / "local.rttm").write_text(TURNS.replace(" f ", " f0 ") + TURNS.replace(" f ", " f1 "))
    rows = read_map(path / "utt2spk", "speaker") or {}
    (path / "quality.csv").write_text("id,seconds\n" + "".join(f"{name},{1 + i % 7}\n" for i, name in enumerate(rows)))
    (path / "turns.rttm").write_text(TURNS)
    (path / "all.uem").write_text("f 1 0 60\n")
    return path


COMMANDS = {  # the lists of a command stand in braces
    "advise": "advise --speakers {utt2spk} --sessions {utt2sess}",
    "split": "split --speakers {utt2spk} --sessions {utt2sess} --channels {utt2chan} --json --out OUT",
    "train": "train --embeddings x.npz --speakers {utt2spk} --sessions {utt2sess} --channels {utt2chan} --out OUT",
    "adapt": "adapt --model model.safetensors --embeddings x.npz --speakers {utt2spk} --sessions {utt2sess} --out OUT",
    "enroll": "enroll --model model.safetensors --embeddings x.npz --enroll {enroll} --sessions {utt2sess} --out OUT",
    "score": "score --model model.safetensors --embeddings x.npz --enroll {enroll} --trials {trials} "
    "--sessions {utt2sess} --channels {utt2chan} --out OUT",
    "cohort": "score --model model.safetensors --embeddings x.npz --enroll {enroll} --trials {trials} "
    "--cohort others.npz --cohort-sessions {others2sess} --cohort-top 10 --out OUT",
    "cluster": "cluster --model model.safetensors --embeddings x.npz --sessions {utt2sess} --must-link {pairs} "
    "--report REPORT --out OUT",
    "link": "link --model model.safetensors --embeddings x.npz --local {utt2spk} --sessions {utt2sess} --out OUT",
    "turns": "link --model model.safetensors --embeddings x.npz --rttm {local.rttm} --segments {segments} --out OUT",
    "diarize": "diarize --model model.safetensors --embeddings x.npz --segments {segments} --allow-missing --out OUT",
    "quality": "calibrate --scores {scores} --trials {trials} --quality {quality.csv} --enroll {enroll} --out OUT",
    "evaluate": "evaluate --scores {scores} --trials {trials} --speakers {utt2spk} --enroll {enroll} --json",
    "evaluate clusters": "evaluate --clusters {utt2spk} --reference {utt2sess} --json",
    "evaluate turns": "evaluate --clusters {turns.rttm} --reference {turns.rttm} --uem {all.uem} --json",
    "calibrate": "calibrate --scores {scores} --trials {trials} --out OUT",
    "report": "report --scores {scores} --trials {trials} --speakers {utt2spk} --enroll {enroll} --out OUT",
    "info": "info model.safetensors --embeddings x.npz --speakers {utt2spk}",
}


def numbers(words: str, lists: Callable[[str], str], **more: object) -> list[str]:
    """The numbers that a command prints."""
    typed = [lists(word[1:-1]) if word.startswith("{") else word for word in words.split()]
    typed += [] if "--json" in words or words.startswith(("info", "advise", "report")) else ["--quiet"]
    typed += QUICK if words.startswith("train") else []
    output = done(*typed, **more).output
    return re.findall(r"(?<=[ \[])\d[\d.]*", output)


@pytest.mark.parametrize("case", COMMANDS)
def test_every_command(
    case: str, folder: Path, piped: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One of its lists is standard input, one is packed, and the others are pipes."""
    monkeypatch.chdir(tmp_path)
    for path in folder.iterdir():
        os.link(path, tmp_path / path.name)
    words = COMMANDS[case]
    expected = numbers(words, str)
    if "OUT" in words:
        Path("OUT").rename("EXPECTED")
        Path("REPORT").unlink(missing_ok=True)
    used: list[str] = []

    def brought(name: str) -> str:
        used.append(name)
        if len(used) == 1:
            return "-"
        data = Path(name).read_bytes()
        if len(used) == 2:
            Path(f"{name}.gz").write_bytes(gzip.compress(data))
            return f"{name}.gz"
        return piped(data)

    first = words[words.index("{") + 1 : words.index("}")]
    assert numbers(words, brought, stdin=Path(first).read_bytes()) == expected
    assert (len(expected) > 5) == ("--json" in words or "OUT" not in words)
    if case in ("train", "adapt"):
        assert same_model("EXPECTED", "OUT")
    elif case == "split":
        assert [p.read_bytes() for p in sorted(Path("OUT").iterdir())] == [
            p.read_bytes() for p in sorted(Path("EXPECTED").iterdir())
        ]
    elif "OUT" in words and case != "report":  # which names the lists
        assert Path("OUT").read_bytes() == Path("EXPECTED").read_bytes()


def test_two_options_cannot_read_the_same_pipe(folder: Path, tmp_path: Path) -> None:
    result = duoplda("advise", "--speakers", "-", "--sessions", "-", stdin=b"a b\n")
    assert result.exit_code == 2
    assert "--speakers and --sessions cannot both read -: write one to a file" in result.output
    os.mkfifo(tmp_path / "pipe")
    pipe = tmp_path / "pipe"
    result = duoplda("evaluate", "--scores", pipe, "--scores", pipe, "--trials", folder / "trials")
    assert result.exit_code == 2
    assert "--scores and --scores cannot both read" in result.output


@pytest.mark.parametrize("option", ["--model", "--enrolled"])
def test_models_do_not_come_through_pipes(folder: Path, option: str, piped: Callable[[bytes], str]) -> None:
    model = folder / "model.safetensors"
    for source in ("-", piped(model.read_bytes()[:5000])):
        typed = ["score", "--model", model, "--embeddings", folder / "x.npz", "--trials", folder / "trials"]
        result = duoplda(*typed, option, source, "--out", folder / "none", stdin=model.read_bytes())
        assert result.exit_code == 1
        assert "give the name of a plain file" in result.output


def test_nothing_is_packed_on_the_way_out(folder: Path) -> None:
    typed = ["score", "--model", folder / "model.safetensors", "--embeddings", folder / "x.npz", "--trials"]
    result = duoplda(*typed, folder / "trials", "--enroll", folder / "enroll", "--out", folder / "scores.tsv.gz")
    assert (result.exit_code, (folder / "scores.tsv.gz").exists()) == (1, False)
    assert "scores.tsv.gz: ends in .gz, and nothing is packed here; leave .gz out" in result.output
