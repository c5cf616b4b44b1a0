"""Files of embeddings that are damaged: one line with file, place, cause and remedy, and nothing else."""

from __future__ import annotations

import os
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duoplda.errors import DuopldaError
from duoplda.io import read_embeddings, write_embeddings
from io_cases import WRITERS, failure, vectors


def fv(key: bytes, values: list[float], dim: int | None = None) -> bytes:
    """One float vector as Kaldi writes it, with whatever dimension its header should claim."""
    head = struct.pack("<i", len(values) if dim is None else dim)
    return key + b" \0BFV \4" + head + np.array(values, "<f4").tobytes()


GOOD = fv(b"a", [1, 2])
ARK = {
    "empty": (b"", "is empty"),
    "no key": (b"\n\n", "byte 2: no key where an entry starts"),
    "garbage": (bytes(range(200, 256)) * 20, "byte 0: no key"),
    "zeros": (b"\0" * 2000, "byte 0: no key"),
    "long key": (b"k" * 2000, "byte 0: no key"),
    "key not UTF-8": (GOOD + fv(b"\xff\xfe", [1, 2]), "byte 20: key b'\\xff\\xfe' is not UTF-8"),
    "key with control": (GOOD + fv(b"x\x01", [1, 2]), "byte 20: key 'x\\x01' has control characters"),
    "cut in key": (GOOD + b"b", "byte 20: no key"),
    "cut in header": (GOOD + fv(b"b", [1, 2])[:8], "entry 'b' at byte 20: is cut short; the file is incomplete"),
    "cut in numbers": (GOOD + fv(b"b", [1, 2])[:-3], "entry 'b' at byte 20: is cut short by 3 bytes"),
    "other type": (b"a \0BXX \4\2\0\0\0", "entry 'a' at byte 0: holds b'XX ', not a float or double vector or matrix"),
    "compressed": (b"a \0BCM2\0\0\0\0\0\0\0\0\0", "is a compressed matrix; copy it with: copy-matrix --compress=false"),
    "wrong size byte": (b"a \0BFV \5\2\0\0\0" + b"\0" * 8, "has a damaged header"),
    "negative": (fv(b"a", [1], dim=-5), "dimension -5 is not in 1..262144"),
    "huge": (fv(b"a", [1], dim=2**31 - 1), "dimension 2147483647 is not in 1..262144"),
    "none": (fv(b"a", []), "dimension 0 is not in 1..262144"),
    "larger than the file": (fv(b"a", [1], dim=1 << 18), "is cut short by 1048572 bytes"),
    "mixed dimensions": (GOOD + fv(b"b", [1, 2, 3]), "entry 'b' at byte 20: has dimension 3, the first vector 2"),
    "mixed types": (GOOD + b"b \0BDV \4\2\0\0\0" + b"\0" * 16, "entry 'b' at byte 20: mixes float and double"),
    "matrix": (b"a \0BFM \4\2\0\0\0\4\1\0\0\0" + b"\0" * 8, "entry 'a' at byte 0: is a matrix of 2 rows"),
    "twice": (GOOD + fv(b"b", [1, 2]) + GOOD, "entry 2: id 'a' is there already as entry 0; ids must differ"),
    "gzip": (b"\x1f\x8b\x08\0", "byte 0: is compressed with gzip"),
    "pickle": (pickle.dumps({"a": 1}), "byte 0: is a pickle"),
    "pickled entry": (b"a \x80\x04K\x01.", "entry 'a' at byte 0: is a pickled entry, which is never loaded"),
    "text, no number": (b"a  [ 1 x ]\n", "entry 'a' at byte 0: holds something that is no number"),
    "text, no end": (b"a  [ 1 2 ]\nb  [ 1 2\n", "entry 'b' at byte 11: is cut short"),
    "text, matrix": (b"a  [\n 1 2\n 3 4 ]\n", "is a matrix of 2 rows"),
    "text, empty": (b"a  [ ]\n", "dimension 0 is not in"),
    "text, more after it": (b"a  [ 1 ] 2\n", "has something after ]"),
    "text, mixed": (b"a  [ 1 ]\nb  [ 1 2 ]\n", "entry 'b' at byte 9: has dimension 2, the first vector 1"),
}


@pytest.mark.parametrize("case", ARK)
def test_wrong_archives(tmp_path: Path, case: str) -> None:
    data, message = ARK[case]
    (tmp_path / "x.ark").write_bytes(data)
    tracemalloc.start()
    text = failure(tmp_path / "x.ark")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message in text
    assert peak < 2e6  # whatever the header claims


def test_a_large_archive_that_is_cut_or_damaged_late(tmp_path: Path) -> None:
    ids = np.array([f"{i:06d}" for i in range(5000)])
    write_embeddings(tmp_path / "x.ark", ids, np.ones((5000, 100), "f4"))
    data = (tmp_path / "x.ark").read_bytes()
    step = len(data) // 5000
    (tmp_path / "x.ark").write_bytes(data[:-1])
    assert failure(tmp_path / "x.ark").startswith(f"entry '004999' at byte {step * 4999}: is cut short by 1 bytes")
    damaged = bytearray(data)
    damaged[step * 4000 + 7] = ord("X")  # where \0 of \0B stands
    (tmp_path / "x.ark").write_bytes(damaged)
    assert failure(tmp_path / "x.ark").startswith(f"entry '004000' at byte {step * 4000}: starts with b'XBFV'")
    (tmp_path / "x.ark").write_bytes(data + data[:step])
    assert failure(tmp_path / "x.ark").startswith("entry 5000: id '000000' is there already as entry 0")


@pytest.mark.parametrize("text", [False, True])
def test_an_entry_of_the_largest_dimension_and_the_longest_key(tmp_path: Path, text: bool) -> None:
    X = np.full((2, 1 << 18), -1.2345678901234567e-308)
    ids = ["a" * 512, "b"]
    write_embeddings(tmp_path / "x.ark", ids, X, text=text)
    assert [len(block) for _, block in read_embeddings(tmp_path / "x.ark").chunks(1)] == [1, 1]
    assert (read_embeddings(tmp_path / "x.ark").load()[1] == X).all()


SCP = {
    "empty": ("", "is empty"),
    "blank": ("\n \n", "is empty"),
    "no file": ("a\n", "line 1: has no file name"),
    "command": ("a cat x.ark |\n", "line 1: holds a command, which is never run"),
    "command out": ("a | cat\n", "line 1: holds a command, which is never run"),
    "late command": ("a x.ark:2\nb copy-vector ark:x.ark ark:- |\n", "line 2: holds a command"),
    "range": ("a x.ark:2[0:3]\n", "line 1: asks for a range of rows"),
    "missing": ("a nowhere.ark:2\n", "line 1: nowhere.ark is neither here nor in"),
    "past the end": ("a x.ark:2000\n", "points past the end of the archive (20 bytes)"),
    "into the middle": ("a x.ark:5\n", "line 1 (entry 'a', x.ark:5): starts with b'V "),
    "far too far": ("a x.ark:999999999999999999999\n", "is neither here nor in"),
    "twice": ("a x.ark:2\na x.ark:2\n", "entry 1: id 'a' is there already as entry 0"),
    "control": ("a\x01 x.ark:2\n", "row 0: the id is empty or has control characters"),
}


@pytest.mark.parametrize("case", SCP)
def test_wrong_scp(tmp_path: Path, case: str) -> None:
    text, message = SCP[case]
    (tmp_path / "x.ark").write_bytes(GOOD)
    (tmp_path / "x.scp").write_text(text)
    assert message in failure(tmp_path / "x.scp")


def test_wrong_archives_behind_an_scp(tmp_path: Path) -> None:
    (tmp_path / "x.ark").write_bytes(GOOD + fv(b"b", [1, 2, 3]) + fv(b"c", [1, 2])[:-1])
    (tmp_path / "x.scp").write_text(f"a x.ark:2\nb x.ark:{len(GOOD) + 2}\n")
    assert "line 2 (entry 'b'): has dimension 3, the first vector 2" in failure(tmp_path / "x.scp")
    (tmp_path / "x.scp").write_text(f"a x.ark:2\nc x.ark:{len(GOOD) + 26}\n")
    assert "line 2 (entry 'c', x.ark:46): the archive is cut short there" in failure(tmp_path / "x.scp")
    (tmp_path / "x.scp").write_bytes(b"a x.ark:2\n\xff x.ark:2\n")
    assert "line 2: is not UTF-8" in failure(tmp_path / "x.scp")
    (tmp_path / "x.scp").write_text(f"a {tmp_path}\n")
    assert failure(tmp_path / "x.scp").endswith("is a folder; give a file")
    (tmp_path / "x.scp").write_bytes(b"a " + b"x" * 70000)
    assert "line 1: is longer than 65536 bytes" in failure(tmp_path / "x.scp")


def npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def test_wrong_npz(tmp_path: Path) -> None:
    p, X, ids = tmp_path / "x.npz", np.ones((3, 2)), np.array(["a", "b", "c"])
    assert "has no array named one of embeddings" in failure(npz(p, speakers=X))
    assert "has no array named 'other'; it has: embeddings" in failure(
        npz(p, embeddings=X), columns={"vector": "other"}
    )
    assert "embeddings: has shape (3,)" in failure(npz(p, embeddings=X[:, 0]))
    assert "embeddings: holds no vectors" in failure(npz(p, embeddings=X[:0]))
    assert "embeddings: dimension 0 is not in" in failure(npz(p, embeddings=X[:, :0]))
    assert "embeddings: holds int64" in failure(npz(p, embeddings=X.astype(int)))
    assert "ids: has shape (2,) for 3 vectors" in failure(npz(p, embeddings=X, ids=ids[:2]))
    assert "ids: holds float64, not ids" in failure(npz(p, embeddings=X, ids=X[:, 0]))
    assert "entry 2: id 'a' is there already" in failure(npz(p, embeddings=X, ids=np.array(["a", "b", "a"])))
    assert "row 1: the id is empty" in failure(npz(p, embeddings=X, ids=np.array(["a", "", "c"])))
    assert "row 1: id b'\\xff' is not UTF-8" in failure(npz(p, embeddings=X, ids=np.array([b"a", b"\xff", b"c"])))
    assert "stored by columns" in failure(npz(p, embeddings=np.asfortranarray(X)))
    assert "is npz, whose" not in failure(npz(p, embeddings=X), ids=["a"])
    wild = np.array(["a", "b", "c"])
    wild.view(np.uint32)[1] = 0x7FFFFFFF  # no character at all
    assert "row 1: the id is empty or has control characters" in failure(npz(p, embeddings=X, ids=wild))
    p.write_bytes(npz(p, embeddings=X, ids=ids).read_bytes()[:-40])
    assert "cannot be read as a NumPy .npz file" in failure(p)
    p.write_bytes(b"not a zip file")
    assert "byte 0: is named .npz but does not start as zip files do" in failure(p)
    with zipfile.ZipFile(p, "w") as z:
        z.writestr("data.pkl", b"x")
    assert "is a zip file without arrays (data.pkl)" in failure(p)


def test_pickles_in_numpy_files_are_never_loaded(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    class Bomb:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(ran),)

    bombs = np.array([[Bomb()]], dtype=object)
    np.savez(tmp_path / "x.npz", embeddings=bombs)
    assert "embeddings: holds pickled objects, which are never loaded" in failure(tmp_path / "x.npz")
    np.savez(tmp_path / "y.npz", embeddings=np.ones((1, 1)), ids=bombs[0])
    assert "ids: holds pickled objects, which are never loaded" in failure(tmp_path / "y.npz")
    np.save(tmp_path / "x.npy", bombs)
    assert "holds pickled objects, which are never loaded" in failure(tmp_path / "x.npy", ids="rows")
    (tmp_path / "x.pkl").write_bytes(pickle.dumps(Bomb()))
    assert "is a pickle, which can run code" in failure(tmp_path / "x.pkl")
    assert not ran.exists()


def test_headers_that_lie_about_sizes_allocate_nothing(tmp_path: Path) -> None:
    def header(shape: str) -> bytes:
        text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()

    tracemalloc.start()
    for shape in ("(1000000000, 200)", "(3, 100000000000)", "(-1, 3)", "3", "(2**70, 1)"):
        (tmp_path / "x.npy").write_bytes(header(shape) + b"\0" * 100)
        assert failure(tmp_path / "x.npy", ids="rows")
        with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as z:
            z.writestr("embeddings.npy", header(shape) + b"\0" * 1000)
        assert "bytes that are not there" in failure(tmp_path / "x.npz") or shape in ("(-1, 3)", "3", "(2**70, 1)")
    with h5py.File(tmp_path / "x.h5", "w") as f:  # declared, never stored
        f.create_dataset("embeddings", (10**9, 200), "f8")
        f.create_dataset("ids", (10**9,), "S8")
    assert "declares 1600000000000 bytes and stores 0" in failure(tmp_path / "x.h5")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6


def test_wrong_npy(tmp_path: Path) -> None:
    p = tmp_path / "x.npy"
    np.save(p, np.ones((3, 2)))
    for text, message in (
        ("a\nb\n", "has 2 ids for the 3 rows"),
        ("a\nb c\nd\n", "line 2: .* is not one id"),
        ("a\n\nd\n", "line 2: .* is not one id"),
        ("a\nb c\n\n", "line 2: .* is not one id"),
        ("a\nb\na\n", "entry 2: id 'a' is there already"),
    ):
        (tmp_path / "x.txt").write_text(text)
        with pytest.raises(DuopldaError, match=message):
            read_embeddings(p).load()
    (tmp_path / "x.txt").write_bytes(b"a\n\xff\nc\n")
    with pytest.raises(DuopldaError, match=r"x\.txt: row 1: id .* is not UTF-8"):
        read_embeddings(p).load()
    assert "has 3 rows, but 2 ids were given" in failure(p, ids=["a", "b"])
    p.write_bytes(p.read_bytes()[:-1])
    assert "ends in row 2 of 3" in failure(p, ids="rows")
    p.write_bytes(p.read_bytes()[:20])
    assert "cannot be read as a NumPy array" in failure(p, ids="rows")
    np.save(p, np.zeros(3))
    assert "has shape (3,)" in failure(p, ids="rows")


def test_wrong_hdf5(tmp_path: Path) -> None:
    p = tmp_path / "x.h5"

    def made(**data: object) -> Path:
        with h5py.File(p, "w") as f:
            for name, value in data.items():
                f[name] = value
        return p

    X, ids = np.ones((3, 2)), np.array([b"a", b"b", b"c"])
    assert "holds no datasets" in failure(made())
    assert "has no ids dataset beside embeddings" in failure(made(embeddings=X))
    assert "ids: has shape (2,) for 3 vectors" in failure(made(embeddings=X, ids=ids[:2]))
    assert "entry 2: id 'a' is there already" in failure(made(embeddings=X, ids=np.array([b"a", b"b", b"a"])))
    assert "embeddings: holds int64" in failure(made(embeddings=X.astype(int), ids=ids))
    assert "row 1: id b'\\xff' is not UTF-8" in failure(made(embeddings=X, ids=np.array([b"a", b"\xff", b"c"])))
    assert "entry 'b': holds 3 float64, the first entry 2 float64" in failure(made(a=np.ones(2), b=np.ones(3)))
    assert "entry 'b': has shape (2, 2)" in failure(made(a=np.ones(2), b=np.ones((2, 2))))
    assert "entry 'a': holds int64" in failure(made(a=np.ones(2, int)))
    assert "entry 'a': has shape ()" in failure(made(a=1.5))
    with h5py.File(made(a=np.ones(2)), "a") as f:
        f["a"].attrs["data_format"] = 1
    assert "is compressed as hyperion compresses features" in failure(p)
    with h5py.File(made(a=np.ones(2)), "a") as f:
        f["loop"] = h5py.SoftLink("/")
    assert "entry 'loop': is a link" in failure(p)
    p.write_bytes(made(embeddings=X, ids=ids).read_bytes()[:-10])
    assert "cannot be read as HDF5" in failure(p)
    p.write_bytes(b"not HDF5 at all")
    assert "is named .h5 but does not start as HDF5 files do" in failure(p)


def test_a_damaged_heap_of_strings_neither_hangs_nor_crashes(tmp_path: Path) -> None:
    """The library never comes back from some of these."""
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f["embeddings"] = np.ones((3, 2))
        f["ids"] = ["a", "b", "c"]
    data = bytearray((tmp_path / "x.h5").read_bytes())
    heap = data.find(b"GCOL")
    for at, value in ((16, b"\0" * 16), (0, b"HEAP"), (8, b"\xff" * 8), (24, b"\xff" * 8), (16, b"\7")):
        damaged = data.copy()
        damaged[heap + at : heap + at + len(value)] = value
        (tmp_path / "x.h5").write_bytes(damaged)
        assert "the file is damaged" in failure(tmp_path / "x.h5")


def test_an_entry_of_hdf5_that_is_listed_and_not_there(tmp_path: Path) -> None:
    """A name that was changed in place is out of order, and a search does not find it."""
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f["first"], f["second"], f["third"] = np.ones(2), np.ones(2), np.ones(2)
    data = (tmp_path / "x.h5").read_bytes()
    assert data.count(b"second\0") == 1
    (tmp_path / "x.h5").write_bytes(data.replace(b"second\0", b"zecond\0"))
    assert "entry 'zecond': is not a dataset" in failure(tmp_path / "x.h5")


def test_wrong_parquet(tmp_path: Path) -> None:
    p = tmp_path / "x.parquet"

    def made(**columns: object) -> Path:
        pq.write_table(pa.table(columns), p)
        return p

    X, ids = pa.array([[1.0, 2.0]] * 3), pa.array(["a", "b", "c"])
    assert "has no known vector column; name it: `columns` vector=NAME; it has id, v" in failure(made(id=ids, v=X))
    assert "has no known id column" in failure(made(vector=X))
    assert "column vector: holds double, not lists of floats" in failure(made(id=ids, vector=pa.array([1.0] * 3)))
    assert "not lists of floats" in failure(made(id=ids, vector=pa.array([[1]] * 3)))
    assert "row 2: has a vector of dimension 1, the first row dimension 2" in failure(
        made(id=ids, vector=pa.array([[1.0, 2.0], [1.0, 2.0], [1.0]]))
    )
    assert "row 1: has no vector" in failure(made(id=ids, vector=pa.array([[1.0], None, [1.0]])))
    assert "a vector has a missing number" in failure(made(id=ids, vector=pa.array([[1.0], [None], [1.0]])))
    assert "row 1: a value is missing" in failure(made(id=pa.array(["a", None, "c"]), vector=X))
    assert "entry 1: id 'a' is there already" in failure(made(id=pa.array(["a", "a", "c"]), vector=X))
    assert "holds no rows" in failure(made(id=ids[:0], vector=X[:0]))
    p.write_bytes(made(id=ids, vector=X).read_bytes()[:-20])
    assert "cannot be read as Parquet" in failure(p)
    p.write_bytes(b"nothing")
    assert "does not start as Parquet files do" in failure(p)


@pytest.mark.parametrize("case", WRITERS)
def test_every_format_cut_anywhere(tmp_path: Path, case: str) -> None:
    """A file cut at any of many places is an error, never a shorter file: only whole archive entries may end it."""
    suffix, options = WRITERS[case]
    ids, X = vectors(20, 3)
    path = tmp_path / f"x{suffix}"
    write_embeddings(path, ids, X, **options)
    data = path.read_bytes()
    for cut in np.unique(np.linspace(0, len(data) - 1, 60).astype(int)):
        path.write_bytes(data[:cut])
        try:
            got, _ = read_embeddings(path).load()
        except DuopldaError:
            continue
        assert suffix in (".ark", ".scp")
        assert got.tolist() == ids[: len(got)].tolist()
