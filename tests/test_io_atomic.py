"""Files appear whole or not at all, and an existing one is only replaced when asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from duoplda.errors import DuopldaError
from duoplda.io import atomic_path, read_embeddings, write_embeddings, write_scores
from io_cases import WRITERS, vectors


def test_the_file_gets_its_name_at_the_end(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "a") as temporary:
        temporary.write_text("whole")
        assert not (tmp_path / "a").exists()
        assert temporary.parent == tmp_path
    assert (tmp_path / "a").read_text() == "whole"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_after_a_failure(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "a").write_text("old")

    def write() -> None:
        with atomic_path(tmp_path / "a", force=True) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        write()
    assert (tmp_path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_existing_files_are_kept_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    message = "exists already; give another name, or allow replacing"
    with pytest.raises(DuopldaError, match=message), atomic_path(tmp_path / "a"):
        pytest.fail("the block must not start")
    with atomic_path(tmp_path / "a", force=True) as temporary:
        temporary.write_text("new")
    assert (tmp_path / "a").read_text() == "new"


def test_a_file_that_appears_meanwhile_is_kept(tmp_path: Path) -> None:
    def write() -> None:
        with atomic_path(tmp_path / "a") as temporary:
            temporary.write_text("mine")
            (tmp_path / "a").write_text("theirs")

    with pytest.raises(DuopldaError, match="exists already"):
        write()
    assert (tmp_path / "a").read_text() == "theirs"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere/a", "its folder does not exist; create it first"),
        (".", "exists and is not a regular file"),
        ("a\0b", "null"),
        ("file/a", "not a directory"),
    ],
)
def test_places_that_cannot_be_written(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DuopldaError, match=message), atomic_path(f"{tmp_path}/{name}", force=True):
        pytest.fail("the block must not start")


def test_devices_are_not_replaced() -> None:
    with pytest.raises(DuopldaError, match="not a regular file"), atomic_path("/dev/null", force=True):
        pytest.fail("the block must not start")
    assert Path("/dev/null").is_char_device()


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    with atomic_path(tmp_path / "link", force=True) as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "a") as temporary:
        temporary.write_text("x")
    (tmp_path / "b").write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


@pytest.mark.parametrize("case", WRITERS)
def test_a_writer_that_fails_in_the_middle_leaves_nothing(tmp_path: Path, case: str) -> None:
    suffix, options = WRITERS[case]
    ids, X = vectors()

    def parts() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        yield ids, X
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_embeddings(tmp_path / f"x{suffix}", parts(), **options)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("case", WRITERS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("twice", r"x\.\w+: entry (50: id 'spk0-0' is there already as entry 0|'spk0-0': is there already)"),
        ("dimension", "row 50: has dimension 4, the first vector 5"),
        ("integers", "vectors are int64, not floats"),
        ("nothing", "there are no vectors to write"),
        ("count", r"2 ids and vectors of shape \(1, 5\) do not go together"),
        ("empty", "row 50: the id is empty"),
        ("control", "control characters"),
    ],
)
def test_what_cannot_be_read_back_is_not_written(tmp_path: Path, case: str, change: str, message: str) -> None:
    suffix, options = WRITERS[case]
    ids, X = vectors()
    more = {
        "twice": (ids[:1], X[:1]),
        "dimension": (np.array(["z"]), X[:1, :4]),
        "integers": (np.array(["z"]), np.ones((1, 5), int)),
        "count": (np.array(["y", "z"]), X[:1]),
        "empty": (np.array([""]), X[:1]),
        "control": (np.array(["a\nb"]), X[:1]),
    }
    parts = [(ids, X), more[change]] if change in more else []
    with pytest.raises(DuopldaError, match=message):
        write_embeddings(tmp_path / f"x{suffix}", iter(parts), **options)
    assert os.listdir(tmp_path) == []


def test_names_that_a_format_cannot_hold(tmp_path: Path) -> None:
    X = np.ones((2, 3))
    for suffix in (".ark", ".scp", ".npy"):
        with pytest.raises(DuopldaError, match="row 1: id 'b c' has a space"):
            write_embeddings(tmp_path / f"x{suffix}", ["a", "b c"], X)
    for ids in (["a", "a/b"], ["a", "/b"], ["a", ".."], ["a/b", "a"]):
        with pytest.raises(DuopldaError, match=r"x\.h5: entry .*(write one matrix instead|the folder of another)"):
            write_embeddings(tmp_path / "x.h5", ids, X, one_per_recording=True)
    with pytest.raises(DuopldaError, match=r"suffix '.xyz' names no format"):
        write_embeddings(tmp_path / "x.xyz", ["a", "b"], X)
    with pytest.raises(DuopldaError, match="text is for Kaldi archives"):
        write_embeddings(tmp_path / "x.npz", ["a", "b"], X, text=True)
    with pytest.raises(DuopldaError, match="cannot stand in an scp"):
        write_embeddings(tmp_path / "x\ny.scp", ["a", "b"], X)
    assert os.listdir(tmp_path) == []
    write_embeddings(tmp_path / "x.h5", ["a", "b c"], X)  # a table of ids holds it
    assert read_embeddings(tmp_path / "x.h5").load()[0].tolist() == ["a", "b c"]


def test_an_existing_list_beside_it_is_kept_too(tmp_path: Path) -> None:
    for name, beside in (("x.scp", "x.ark"), ("y.npy", "y.ids")):
        (tmp_path / beside).write_text("precious")
        with pytest.raises(DuopldaError, match=f"{beside}: exists already"):
            write_embeddings(tmp_path / name, ["a"], np.ones((1, 2)))
        assert (tmp_path / beside).read_text() == "precious"
    assert sorted(os.listdir(tmp_path)) == ["x.ark", "y.ids"]
    with pytest.raises(DuopldaError, match="exists already"):
        write_scores(tmp_path / "x.ark", [])


def test_a_killed_process_leaves_nothing_under_the_final_name(tmp_path: Path) -> None:
    code = (
        "import sys, time, numpy as np; from duoplda.io import write_embeddings\n"
        "def parts():\n"
        "    yield np.array(['a']), np.ones((1, 3))\n"
        "    print('half', flush=True); time.sleep(60)\n"
        "write_embeddings(sys.argv[1], parts())\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path / "x.ark"], stdout=subprocess.PIPE) as p:
        assert p.stdout is not None
        assert p.stdout.readline() == b"half\n"
        p.send_signal(signal.SIGKILL)
    assert p.returncode == -signal.SIGKILL
    assert not (tmp_path / "x.ark").exists()
    write_embeddings(tmp_path / "x.ark", ["a"], np.ones((1, 3)))  # and what is left is in nobody's way
    assert read_embeddings(tmp_path / "x.ark").load()[0].tolist() == ["a"]
