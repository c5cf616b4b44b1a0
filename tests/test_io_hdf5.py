"""HDF5 as others write it, and damaged HDF5, which may neither hang nor crash nor fill the memory."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from duoplda.errors import DuopldaError
from duoplda.io import read_embeddings, read_trials
from io_cases import failure, vectors

IDS, X = vectors(300, 7)
STORAGE = {
    "whole": {},
    "chunks": {"chunks": True},
    "shuffle": {"chunks": True, "shuffle": True},
    "gzip and shuffle": {"chunks": True, "compression": "gzip", "shuffle": True},
    "lzf": {"chunks": True, "compression": "lzf"},
    "checksums": {"chunks": True, "fletcher32": True},
}


def put(f: h5py.Group, *, variable: bool = True, shape: tuple[int, ...] = (300,), **options: object) -> None:
    """A matrix and its ids in a file or group."""
    data = IDS.astype(object) if variable else np.array([i.encode() for i in IDS])
    f.create_dataset("embeddings", data=X)
    f.create_dataset("ids", data=data.reshape(shape), dtype=h5py.string_dtype() if variable else None, **options)


def check(path: Path, **options: object) -> None:
    """The vectors come with the right ids, in chunks, and so do the ids alone."""
    chunks = list(read_embeddings(path, **options).chunks(77))
    assert [i for ids, _ in chunks for i in ids.tolist()] == IDS.tolist()
    np.testing.assert_array_equal(np.concatenate([x for _, x in chunks]), X)
    assert read_embeddings(path, **options).ids().tolist() == IDS.tolist()


@pytest.mark.parametrize(
    ("how", "variable"), [(h, v) for h in STORAGE for v in (True, False) if (h, v) != ("checksums", True)]
)
def test_ids_in_any_storage(tmp_path: Path, how: str, variable: bool) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as f:
        put(f, variable=variable, **STORAGE[how])
    check(tmp_path / "x.h5")


@pytest.mark.parametrize("library", ["earliest", "latest"])
def test_old_and_new_versions_of_the_format(tmp_path: Path, library: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w", libver=library) as f:
        put(f)
    check(tmp_path / "x.h5")


@pytest.mark.parametrize("variable", [True, False])
@pytest.mark.parametrize("shape", [(300, 1), (1, 300)])
def test_ids_as_a_matrix_of_one_row_or_column(tmp_path: Path, shape: tuple[int, int], variable: bool) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as f:
        put(f, shape=shape, variable=variable)
    check(tmp_path / "x.h5")
    with h5py.File(tmp_path / "y.h5", "w") as f:
        put(f, shape=(150, 2), variable=variable)
    assert "ids: has shape (150, 2) for 300 vectors" in failure(tmp_path / "y.h5")


@pytest.mark.parametrize("size", [512, 2048, 4096, 1 << 20])
def test_user_blocks(tmp_path: Path, size: int) -> None:
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=size) as f:
        put(f)
    check(tmp_path / "x.h5")
    check((tmp_path / "x.h5").rename(tmp_path / "x"))  # by content alone


def test_a_matrix_in_a_group(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as f:
        put(f.create_group("a/b"))
        f["a/other"] = np.ones((4, 4))
    check(path)
    for name in ("a/b/embeddings", "/a/b/embeddings"):
        check(path, columns={"vector": name})
        check(path, columns={"vector": name, "id": "ids"})
        check(path, columns={"vector": name, "id": "a/b/ids"})
    assert "has no dataset a/embeddings; it has: a" in failure(path, columns={"vector": "a/embeddings"})
    check(path, columns={"vector": "a/b/embeddings", "id": "nowhere"})  # the name of another table's ids
    with h5py.File(path, "a") as f:
        f.move("a/b/ids", "a/b/mine")
    assert "has no dataset nowhere" in failure(path, columns={"vector": "a/b/embeddings", "id": "nowhere"})
    check(path, columns={"vector": "a/b/embeddings", "id": "mine"})
    assert "a/b: is not a dataset" in failure(path, columns={"vector": "a/b", "id": "a/b/ids"})


def test_ids_at_the_root_for_a_matrix_in_a_group(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as f:
        put(f)
        f.move("embeddings", "model/layer6")
    check(tmp_path / "x.h5", columns={"vector": "model/layer6"})


def test_several_matrices_in_groups(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as f:
        put(f.create_group("train"))
        put(f.create_group("test"))
    message = failure(tmp_path / "x.h5")
    assert message == "has 2 matrices: test/embeddings, train/embeddings; choose one: `columns` vector=NAME"
    check(tmp_path / "x.h5", columns={"vector": "train/embeddings"})


def test_a_dataset_per_recording_is_not_taken_for_a_matrix(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as f:
        for i, x in zip(IDS, X, strict=True):
            f[f"{i}/data"] = x[None]
    ids, got = read_embeddings(tmp_path / "x.h5").load()
    assert sorted(ids.tolist()) == sorted(f"{i}/data" for i in IDS)
    assert got.shape == X.shape


@pytest.mark.parametrize(
    ("text", "cause"),
    [("b" * 600, "is not an id"), ("", "the id is empty"), ("a\nb", "control characters"), (b"\xff", "is not UTF-8")],
)
def test_strings_that_are_no_ids(tmp_path: Path, text: str | bytes, cause: str) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f["embeddings"] = np.ones((3, 2))
        f.create_dataset("ids", data=np.array(["a", text, "c"], object), dtype=h5py.string_dtype())
    message = failure(tmp_path / "x.h5")
    assert "row 1" in message
    assert cause in message


def test_no_second_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as f:
        put(f)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    assert "needs another process to read strings of variable length" in failure(tmp_path / "x.h5")


def test_the_other_process_ends_with_the_reading(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as f:
        put(f)
    before = children()
    chunks = read_embeddings(tmp_path / "x.h5").chunks(10)
    next(chunks)
    assert len(children() - before) == 1
    chunks.close()
    assert children() - before == set()


def children() -> set[str]:
    """The processes that this one has started and that have not ended."""
    path = Path("/proc/self/task")
    if not path.exists():
        pytest.skip("/proc is Linux's")
    found: set[str] = set()
    for task in path.iterdir():
        # A thread that an earlier test left may end between the listing and the reading.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.update((task / "children").read_text().split())
    return found


# -- damage


def test_a_heap_that_makes_the_library_loop(tmp_path: Path) -> None:
    """The first object of the heap says that it has no bytes, so that the library never gets past it."""
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f["embeddings"], f["ids"] = np.ones((3, 2)), ["a", "b", "c"]
    data = bytearray((tmp_path / "x.h5").read_bytes())
    heap = data.find(b"GCOL")
    data[heap + 16 : heap + 32] = b"\0" * 16
    (tmp_path / "x.h5").write_bytes(data)
    before = os.times().children_user
    assert "strings cannot be read: the library failed, crashed or did not come" in failure(tmp_path / "x.h5")
    assert os.times().children_user - before < 30  # of the processor, however busy it is


def test_many_ids_that_share_one_long_string(tmp_path: Path) -> None:
    """20 MB of text, and 2,000 ids of 20 MB each for who follows the file: the other process may not have that much."""
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f["embeddings"] = np.ones((2000, 2))
        f.create_dataset("ids", data=["x" * (20 << 20)] + ["a"] * 1999, dtype=h5py.string_dtype())
        offset = f["ids"].id.get_offset()
    data = bytearray((tmp_path / "x.h5").read_bytes())
    data[offset : offset + 16 * 2000] = data[offset : offset + 16] * 2000
    (tmp_path / "x.h5").write_bytes(data)
    assert "ids, row 0 or after: strings cannot be read" in failure(tmp_path / "x.h5")


FUZZ = """if True:
    import sys
    import numpy as np
    from duoplda.errors import DuopldaError
    from duoplda.io import read_embeddings

    source, seeds, metadata = sys.argv[1], range(*map(int, sys.argv[2:4])), sys.argv[4] == "metadata"
    whole = open(source, "rb").read()
    heap = whole.find(b"GCOL")
    places = np.arange(len(whole)) if metadata else np.r_[np.arange(heap, heap + 400), np.arange(heap - 400, heap)]
    for seed in seeds:
        rng, data = np.random.default_rng(seed), bytearray(whole)
        for at in rng.choice(places, rng.integers(1, 5)):
            data[at] = rng.choice([0, 1, 127, 128, 255, rng.integers(256)])
        open(source + ".damaged", "wb").write(data)
        try:
            ids, X = read_embeddings(source + ".damaged").load()
            assert len(ids) == len(X)
        except DuopldaError as e:
            assert str(e).startswith(source), e
    print("done")
"""


@pytest.mark.parametrize(("where", "seeds"), [("heap", 40), ("metadata", 300)])
@pytest.mark.parametrize("how", ["whole", "gzip and shuffle"])
def test_damage_of_any_kind(tmp_path: Path, where: str, seeds: int, how: str) -> None:
    """In a process of its own, which a crash would end: changed bytes of the heap of strings, or anywhere."""
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f["embeddings"] = X[:12]
        variable = {"data": IDS[:12].astype(object), "dtype": h5py.string_dtype()}
        fixed = {"data": np.array([i.encode() for i in IDS[:12]])}
        f.create_dataset("ids", **(variable if where == "heap" else fixed), **STORAGE[how])
    command = [sys.executable, "-c", FUZZ, str(tmp_path / "x.h5"), "0", str(seeds), where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "done\n", done.stderr


def test_damaged_trials(tmp_path: Path) -> None:
    """BOSARIS files with strings of variable length, as MATLAB writes them."""
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f["ID/row_ids"], f["ID/column_ids"] = ["m", "n"], [["a", "b"]]
        f["trial_mask"] = np.array([[1, -1], [0, 1]], "int8")
    trials = read_trials(tmp_path / "x.h5")
    assert trials.enroll.values.tolist() == ["m", "m", "n"]
    assert trials.test.values.tolist() == ["a", "b", "b"]
    data = bytearray((tmp_path / "x.h5").read_bytes())
    heap = data.find(b"GCOL")
    data[heap + 16 : heap + 32] = b"\0" * 16
    (tmp_path / "x.h5").write_bytes(data)
    with pytest.raises(DuopldaError, match=r"x\.h5: ID/row_ids, row 0 or after: strings cannot be read"):
        read_trials(tmp_path / "x.h5")
