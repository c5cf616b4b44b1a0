"""Whatever the bytes, only our own error comes out; what is read without one is well formed."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import kaldiio
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from duoplda.diarization import read_rttm, read_segments, read_uem
from duoplda.errors import DuopldaError
from duoplda.estimators.checkpoint import Checkpoint
from duoplda.io import (
    Coded,
    Scores,
    Trials,
    read_embeddings,
    read_enrollment,
    read_labels,
    read_scores,
    read_trials,
    write_embeddings,
    write_scores,
    write_trials,
)
from io_cases import WRITERS, pipe_of, vectors

fuzz = settings(deadline=None, max_examples=100, database=None)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One folder for all examples of a test."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def attempt(path: Path, data: bytes, read: Callable) -> object:
    """What `read` makes of the bytes: None where it raises our error, of one line that names the file."""
    path.write_bytes(data)
    message = ""
    try:
        return read(path)
    except DuopldaError as e:
        message = str(e)
    assert str(path) in message
    assert "\n" not in message
    return None


def load(path: Path) -> tuple[np.ndarray, np.ndarray]:
    ids, X = read_embeddings(path).load()
    assert X.shape == (len(ids), X.shape[1])
    assert len(set(ids.tolist())) == len(ids)
    assert all((i and i.isprintable()) or not i.isascii() for i in ids.tolist())
    return ids, X


# pieces of archives, so that more than garbage is met
piece = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(
        [b"a ", b"b ", b"\0B", b"FV ", b"DV ", b"FM ", b"CM ", b"\4\2\0\0\0", b"\4\1\0\0\0", b"\4\xff\xff\xff\x7f"]
    ),
    st.sampled_from([b"a  [ 1 2 ]\n", b"b  [\n 1 2 ]\n", b"[", b"]", b"\n", b" ", b"1.5 ", b"nan "]),
    st.sampled_from([b"k \0BFV \4\2\0\0\0" + b"\0" * 8, b"l \0BFV \4\2\0\0\0" + b"\1" * 8, b"\0\0\0\0"]),
)


@fuzz
@given(data=st.lists(piece, max_size=12).map(b"".join))
def test_archives_of_pieces(folder: Path, data: bytes) -> None:
    attempt(folder / "x.ark", data, load)


@fuzz
@given(data=st.binary(max_size=200))
@pytest.mark.parametrize("suffix", [".ark", ".scp", "", ".txt"])
def test_any_bytes_as_embeddings(folder: Path, suffix: str, data: bytes) -> None:
    attempt(folder / f"y{suffix}", data, load)


scp_piece = st.sampled_from(["a", "b", " ", "\n", "x.ark", ":2", ":", "|", "9", "[0]", "é", "/", "\r"])


@fuzz
@given(data=st.lists(scp_piece, max_size=12))
def test_scp_of_pieces(folder: Path, data: list[str]) -> None:
    write_embeddings(folder / "x.ark", ["a"], np.ones((1, 2)), force=True)
    attempt(folder / "x.scp", "".join(data).encode(), load)


edits = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=8)


def edited(data: bytes, changes: list[tuple[int, int]], cut: int | None) -> bytes:
    """Some bytes changed, and perhaps the end cut off."""
    out = bytearray(data)
    for at, value in changes:
        out[at % len(out)] = value
    return bytes(out[: cut % len(out)] if cut is not None else out)


cuts = st.one_of(st.none(), st.none(), st.integers(0, 10**6))


@pytest.fixture(scope="module")
def originals(folder: Path) -> dict[str, bytes]:
    """A sound file of every binary format."""
    ids, X = vectors(12, 3)
    trials = Trials(Coded.of(["m", "m", "n"]), Coded.of(["a", "b", "b"]), np.array([True, False, True]))
    for case, (suffix, options) in WRITERS.items():
        if suffix not in (".npy", ".scp"):
            write_embeddings(folder / f"{case}{suffix}", ids, X, **options)
    write_trials(folder / "key.h5", trials)
    write_trials(folder / "ndx.h5", Trials(trials.enroll, trials.test))
    write_trials(folder / "trials.parquet", trials)
    write_scores(folder / "scores.h5", Scores(trials.enroll, trials.test, np.ones(3)))
    write_scores(folder / "scores.npz", Scores(trials.enroll, trials.test, np.ones(3)))
    with h5py.File(folder / "strings.h5", "w") as f:  # ids of variable length, as MATLAB may write them
        f["ID/row_ids"], f["ID/column_ids"] = ["m", "n"], ["a", "b"]
        f["trial_mask"] = np.array([[1, -1], [0, 1]], "int8")
    files = [p for p in folder.iterdir() if p.suffix not in (".tmp",)]
    return {p.name: p.read_bytes() for p in files}


@pytest.mark.parametrize("name", ["key.h5", "ndx.h5", "trials.parquet"])
@fuzz
@given(changes=edits, cut=cuts)
def test_damaged_trials(folder: Path, originals: dict, name: str, changes: list, cut: int | None) -> None:
    check_trials(folder, originals, name, changes, cut)


@settings(fuzz, max_examples=30)  # each in a process of its own; test_io_hdf5.py damages more strings
@given(changes=edits, cut=cuts)
def test_damaged_trials_with_strings(folder: Path, originals: dict, changes: list, cut: int | None) -> None:
    check_trials(folder, originals, "strings.h5", changes, cut)


def check_trials(folder: Path, originals: dict, name: str, changes: list, cut: int | None) -> None:
    got = attempt(folder / f"z{Path(name).suffix}", edited(originals[name], changes, cut), read_trials)
    if isinstance(got, Trials):
        assert len(got.enroll.values) == len(got.test.values) == len(got)


@pytest.mark.parametrize("name", ["scores.h5", "scores.npz"])
@fuzz
@given(changes=edits, cut=cuts)
def test_damaged_scores(folder: Path, originals: dict, name: str, changes: list, cut: int | None) -> None:
    got = attempt(folder / f"z{Path(name).suffix}", edited(originals[name], changes, cut), read_scores)
    if isinstance(got, Scores):
        assert len(got.enroll.values) == len(got.test.values) == len(got.score)


@pytest.mark.parametrize("name", ["ark.ark", "ark text.ark", "npz.npz", "hdf5.h5", "hdf5 each.hdf5", "parquet.parquet"])
@fuzz
@given(changes=edits, cut=cuts)
def test_damaged_embeddings(folder: Path, originals: dict, name: str, changes: list, cut: int | None) -> None:
    attempt(folder / f"z{Path(name).suffix}", edited(originals[name], changes, cut), load)


def taken_up(path: Path) -> dict[str, dict[str, list[Any]]]:
    """The stages that an adaptation would go on from."""
    data = SimpleNamespace(digest="aa")
    checkpoint = Checkpoint(path, {"prior": 0.5}, data, resume=True)  # type: ignore[arg-type]
    stages = {name: checkpoint.stage(name) for name in ("partition", "shares")}
    return {name: {k: v.tolist() for k, v in arrays.items()} for name, arrays in stages.items() if arrays is not None}


@fuzz
@given(changes=edits, cut=cuts)
def test_damaged_checkpoints(folder: Path, changes: list, cut: int | None) -> None:
    """Work goes on from what was written, or not at all."""
    path = folder / "c.resume"
    path.unlink(missing_ok=True)
    sound = Checkpoint(path, {"prior": 0.5}, SimpleNamespace(digest="aa"))  # type: ignore[arg-type]
    sound.stage_done("partition", {"sessions": np.array(["s1", "s2"]), "speakers": np.array(["s1", "s1"])})
    sound.stage_done("shares", {"shares": np.array([0.25, 0.5])})
    written = taken_up(path)
    assert written["shares"] == {"shares": [0.25, 0.5]}
    got = attempt(path, edited(path.read_bytes(), changes, cut), taken_up)
    assert got is None or got == written


pieces = ["a", "b", "1", "0", "target", " ", "\t", "\n", "\r", ",", '"', "é", "\x85", "nan", "id,speaker\n"]
lines = st.lists(st.sampled_from(pieces), max_size=30)


@fuzz
@given(data=st.one_of(st.binary(max_size=60), lines.map(lambda parts: "".join(parts).encode())))
@pytest.mark.parametrize("read", [read_labels, read_trials, read_enrollment, read_scores])
@pytest.mark.parametrize("name", ["t", "t.csv"])
def test_any_bytes_as_lists(folder: Path, name: str, read: Callable, data: bytes) -> None:
    attempt(folder / name, data, read)


readers = st.sampled_from([read_labels, read_trials, read_enrollment, read_scores, read_rttm, read_uem, read_segments])


def outcome(path: str | Path, read: Callable) -> str:
    """What comes of reading: the columns as text, or the message without the name of the file."""
    try:
        return str([getattr(column, "values", column) for column in vars(read(path)).values()])
    except DuopldaError as e:
        return str(e).removeprefix(f"{path}: ")


@fuzz
@given(data=st.one_of(st.binary(max_size=60), lines.map(lambda parts: "".join(parts).encode())), read=readers)
def test_any_bytes_through_gzip_and_pipes(folder: Path, read: Callable, data: bytes) -> None:
    assume(not data.startswith(b"\x1f\x8b"))
    (folder / "p").write_bytes(data)
    (folder / "p.gz").write_bytes(gzip.compress(data))
    with pipe_of(data) as pipe, pipe_of(gzip.compress(data)) as packed:
        assert {outcome(path, read) for path in (folder / "p.gz", pipe, packed)} == {outcome(folder / "p", read)}


@fuzz
@given(changes=edits, cut=cuts, read=readers)
def test_damaged_gzip(folder: Path, changes: list, cut: int | None, read: Callable) -> None:
    data = edited(gzip.compress(b"".join(b"a%d ann\n" % i for i in range(20)), mtime=0), changes, cut)
    attempt(folder / "d.gz", data, read)
    with pipe_of(data) as pipe, suppress(DuopldaError):
        read(pipe)


word = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=8)


@fuzz
@given(
    keys=st.lists(word, min_size=1, max_size=20, unique=True),
    dim=st.integers(1, 4),
    dtype=st.sampled_from(["f4", "f8"]),
    matrix=st.booleans(),
    rows=st.integers(1, 25),
)
def test_we_read_what_kaldiio_reads(
    folder: Path, keys: list[str], dim: int, dtype: str, matrix: bool, rows: int
) -> None:
    X = np.random.default_rng(len(keys)).standard_normal((len(keys), dim)).astype(dtype)
    data = {k: x[None] if matrix else x for k, x in zip(keys, X, strict=True)}
    kaldiio.save_ark(str(folder / "k.ark"), data)
    chunks = list(read_embeddings(folder / "k.ark").chunks(rows))
    assert [i for ids, _ in chunks for i in ids.tolist()] == keys
    np.testing.assert_array_equal(np.concatenate([x for _, x in chunks]), X)
