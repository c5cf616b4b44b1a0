"""Files appear whole or not at all, and an existing one is only replaced when asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from duoplda.errors import DuopldaError
from duoplda.io import (
    Coded,
    DiagonalModel,
    Scores,
    Transform,
    Trials,
    atomic_path,
    check_output,
    read_embeddings,
    write_embeddings,
    write_hyperion,
    write_pair,
    write_scores,
    write_trials,
)
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
        (".", "is a folder"),
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
        "    print('half', flush=True); time.sleep(300)\n"
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


# -- asked to end


ENDED = """if True:
    import signal, sys, threading, time
    import numpy as np
    from duoplda.io import write_embeddings, read_embeddings

    def parts():
        yield np.array(["a"]), np.ones((1, 3))
        print("half", flush=True)
        time.sleep(300)

    def write():
        write_embeddings(sys.argv[1], parts(), force=True)

    HOW
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize("name", ["x.ark", "x.scp", "x.npz", "x.npy", "x.h5", "x.parquet"])
def test_a_process_that_is_asked_to_end_removes_its_temporary_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("old")
    code = ENDED.replace("HOW", "write()")
    with subprocess.Popen([sys.executable, "-c", code, tmp_path / name], stdout=subprocess.PIPE) as p:
        assert p.stdout is not None
        assert p.stdout.readline() == b"half\n"
        p.send_signal(signal.SIGTERM)
    assert p.returncode == 128 + signal.SIGTERM
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "old"


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
def test_a_handler_of_the_program_decides(tmp_path: Path) -> None:
    how = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); write()"
    code = ENDED.replace("HOW", how)
    with subprocess.Popen([sys.executable, "-c", code, tmp_path / "x.ark"], stdout=subprocess.PIPE) as p:
        assert p.stdout is not None
        assert p.stdout.readline() == b"half\n"
        p.send_signal(signal.SIGTERM)
    assert p.returncode == 7
    assert os.listdir(tmp_path) == []


def test_handlers_are_as_they_were(tmp_path: Path) -> None:
    def mine(*_: object) -> None:
        pytest.fail("no signal was sent")

    before = signal.getsignal(signal.SIGTERM)
    try:
        for handler in (signal.SIG_DFL, signal.SIG_IGN, mine):
            signal.signal(signal.SIGTERM, handler)
            with atomic_path(tmp_path / "a", force=True) as one, atomic_path(tmp_path / "b", force=True) as two:
                assert (signal.getsignal(signal.SIGTERM) == handler) == (handler == signal.SIG_IGN)
                one.write_text("x")
                two.write_text("y")
            assert signal.getsignal(signal.SIGTERM) == handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_write_without_handlers(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def write() -> object:
        with atomic_path(tmp_path / "a") as temporary:
            temporary.write_text("x")
            return signal.getsignal(signal.SIGTERM)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(write).result() == before
    assert (tmp_path / "a").read_text() == "x"


# -- whatever is wrong with an output is found before the work


def refused(path: Path, force: bool = True, inputs: Sequence[Path | str | None] = ()) -> str:
    before = sorted(path.parent.glob("*")) if path.parent.is_dir() else None
    with pytest.raises(DuopldaError) as e:
        check_output(path, force, inputs)
    assert before is None or before == sorted(path.parent.glob("*"))
    return str(e.value).removeprefix(f"{path}: ")


def test_outputs_that_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "input").write_text("input")
    (tmp_path / "link").symlink_to(tmp_path / "not there yet")
    check_output(None)
    check_output(tmp_path / "new", inputs=[tmp_path / "input", None, tmp_path / "nowhere", f"{tmp_path}/*.ark"])
    check_output(tmp_path / "old", True, [tmp_path / "input"])
    check_output(tmp_path / "link")
    assert sorted(os.listdir(tmp_path)) == ["input", "link", "old"]
    with atomic_path(tmp_path / "link") as temporary:
        temporary.write_text("x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "not there yet").read_text() == "x"


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "a")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "exists already" in refused(tmp_path / "old", force=False)
    assert refused(tmp_path) == "is a folder; give the name of a file"
    assert refused(tmp_path / "nowhere" / "a").startswith("its folder does not exist; create it first: mkdir -p")
    message = refused(tmp_path / "dangling")
    assert message == f"its folder does not exist; create it first: mkdir -p {tmp_path / 'nowhere'}"
    assert "symbolic links" in refused(tmp_path / "loop")
    assert "not a directory" in refused(tmp_path / "old" / "a")
    assert "name too long" in refused(tmp_path / ("x" * 300))
    assert "null" in refused(tmp_path / "a\0b")
    assert "exists and is not a regular file" in refused(Path("/dev/null"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_a_folder_that_nobody_can_write_to() -> None:
    with pytest.raises(DuopldaError, match="/proc/self/model: "):
        check_output("/proc/self/model")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(0o500)
    assert "permission denied" in refused(tmp_path / "folder" / "a")


def test_an_input_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "input").write_text("precious")
    (tmp_path / "soft").symlink_to("input")
    os.link(tmp_path / "input", tmp_path / "hard")
    for name in ("input", "soft", "hard"):
        for source in ("input", "soft", "hard"):
            message = refused(tmp_path / name, True, [None, tmp_path / "elsewhere", tmp_path / source])
            assert message == f"is also read by this command, as {tmp_path / source}; give another name"
    monkeypatch.chdir(tmp_path)
    assert "is also read" in refused(tmp_path / "hard", True, ["./input"])


# -- the system refuses to write


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """No file may grow beyond this, as on a full disk."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 500])
@pytest.mark.parametrize("case", WRITERS)
def test_a_write_that_is_refused_names_the_file(tmp_path: Path, case: str, size: int) -> None:
    """HDF5 ended the process with a segmentation fault where it could not write what was left."""
    suffix, options = WRITERS[case]
    with pytest.raises(DuopldaError, match=rf"x{suffix}\b.*: .*file too large"), file_size_limit(size):
        write_embeddings(tmp_path / f"x{suffix}", *vectors(), **options)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("size", [0, 500])
@pytest.mark.parametrize("case", ["model", "scores", "trials"])
def test_so_does_every_other_writer_of_hdf5(tmp_path: Path, case: str, size: int) -> None:
    path = tmp_path / "x.h5"
    model = DiagonalModel(np.ones(40), np.eye(40), np.ones(40))
    ids = Coded.of(["a", "b"])
    write = {
        "model": lambda: write_hyperion(path, model),
        "scores": lambda: write_scores(path, Scores(ids, ids, np.ones(2))),
        "trials": lambda: write_trials(path, Trials(ids, ids)),
    }[case]
    with pytest.raises(DuopldaError, match=rf"^{path}: file too large"), file_size_limit(size):
        write()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("tool", "size", "name"), [
    ("vbx", 2000, "transform.h5"),
    ("vbx", 13000, "plda"),
    ("pyannote", 100, "xvec_transform.npz"),
    ("pyannote", 13000, "plda.npz"),
])  # fmt: skip
def test_of_a_pair_the_file_is_named_that_could_not_be_written(tmp_path: Path, tool: str, size: int, name: str) -> None:
    transform = Transform(np.zeros(2), np.eye(2, 40), np.zeros(40))  # less than 8,000 bytes, and a PLDA of 13,120
    model = DiagonalModel(np.ones(40), np.eye(40), np.ones(40))
    with pytest.raises(DuopldaError, match=rf"^{tmp_path}/pair/{name}: file too large"), file_size_limit(size):
        write_pair(tmp_path / "pair", transform, model, tool)
    assert os.listdir(tmp_path) == []
