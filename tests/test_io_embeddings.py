"""Embeddings: every format round trip, and against the libraries other people write with."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import h5py
import kaldiio
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duoplda.errors import DuopldaError
from duoplda.io import read_embeddings, write_embeddings
from io_cases import WRITERS, by_id, drained, leftovers, vectors

SHARED = Path(__file__).parents[2] / "shared" / "data" / "amnist_campp_public.npz"


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("case", WRITERS)
def test_round_trip(tmp_path: Path, case: str, dtype: str) -> None:
    suffix, options = WRITERS[case]
    ids, X = vectors(dtype=dtype)
    path = tmp_path / f"x{suffix}"
    write_embeddings(path, ids, X, **options)
    e = read_embeddings(path)
    got_ids, got = e.load()
    assert got_ids.dtype.kind == "U"
    assert got.dtype == e.dtype == (np.float64 if "text" in case else dtype)
    assert e.dim == 5
    assert e.n in (None, 50)
    assert by_id(got_ids, got.astype(dtype)) == by_id(ids, X)
    if "each" not in case:
        assert got_ids.tolist() == ids.tolist()
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("rows", [1, 7, 50, 1000])
@pytest.mark.parametrize("case", WRITERS)
def test_chunks_keep_to_their_size_and_can_be_read_again(tmp_path: Path, case: str, rows: int) -> None:
    suffix, options = WRITERS[case]
    ids, X = vectors()
    write_embeddings(tmp_path / f"x{suffix}", ids, X, **options)
    e = read_embeddings(tmp_path / f"x{suffix}", chunk_size=3)
    assert max(len(c[0]) for c in e) == 3
    for _ in range(2):
        got_ids, got = drained(e, rows)
        assert by_id(got_ids, got.astype("f4")) == by_id(ids, X)


@pytest.mark.parametrize("case", WRITERS)
def test_chunks_are_written_like_a_whole(tmp_path: Path, case: str) -> None:
    suffix, options = WRITERS[case]
    ids, X = vectors()
    parts = [(ids[:0], X[:0]), (ids[:20], X[:20]), (ids[20:], X[20:])]
    write_embeddings(tmp_path / f"a{suffix}", iter(parts), **options)
    write_embeddings(tmp_path / f"b{suffix}", read_embeddings(tmp_path / f"a{suffix}"), **options)
    got_ids, got = read_embeddings(tmp_path / f"b{suffix}").load()
    assert by_id(got_ids, got.astype("f4")) == by_id(ids, X)


@pytest.mark.parametrize("case", ["ark", "scp", "npz", "npy", "hdf5", "hdf5 each"])
def test_memory_is_bounded_by_the_chunk(tmp_path: Path, case: str) -> None:
    suffix, options = WRITERS[case]
    n, dim, rows = (500, 4000, 16) if case == "hdf5 each" else (20000, 256, 256)
    ids = np.array([f"{i:06d}" for i in range(n)])
    write_embeddings(tmp_path / f"x{suffix}", ids, np.ones((n, dim), np.float32), **options)
    tracemalloc.start()
    total = sum(len(i) for i, _ in read_embeddings(tmp_path / f"x{suffix}").chunks(rows))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == n
    assert peak < 3.2e6  # the files have 8 and 20 MB


def test_content_decides_before_the_suffix(tmp_path: Path) -> None:
    ids, X = vectors()
    for case, kind in (
        ("ark", "kaldi ark"),
        ("ark text", "kaldi ark"),
        ("npz", "npz"),
        ("hdf5", "hdf5"),
        ("parquet", "parquet"),
    ):
        suffix, options = WRITERS[case]
        write_embeddings(tmp_path / f"x{suffix}", ids, X, force=True, **options)
        (tmp_path / f"x{suffix}").rename(tmp_path / "unnamed")
        e = read_embeddings(tmp_path / "unnamed")
        assert e.format == kind
        assert by_id(*e.load()).keys() == by_id(ids, X).keys()


def test_a_key_may_look_like_another_format(tmp_path: Path) -> None:
    X = np.eye(3, 4)
    write_embeddings(tmp_path / "x.ark", ["PAR1", "PK1", "[0:1]"], X)
    assert read_embeddings(tmp_path / "x.ark").load()[0].tolist() == ["PAR1", "PK1", "[0:1]"]


# --- against kaldiio ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("shape", [(5,), (1, 5)])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_kaldiio_writes_and_we_read(tmp_path: Path, dtype: str, shape: tuple[int, ...], text: bool) -> None:
    ids, X = vectors(dtype=dtype)
    data = {i: x.reshape(shape) for i, x in zip(ids.tolist(), X, strict=True)}
    kaldiio.save_ark(str(tmp_path / "k.ark"), data, scp=str(tmp_path / "k.scp"), text=text)
    for name in ("k.ark", "k.scp"):
        got_ids, got = read_embeddings(tmp_path / name).load()
        assert got_ids.tolist() == ids.tolist()
        assert got.dtype == ("f8" if text else dtype)
        np.testing.assert_array_equal(got.astype(dtype), X)


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_we_write_and_kaldiio_reads(tmp_path: Path, dtype: str, text: bool) -> None:
    ids, X = vectors(dtype=dtype)
    write_embeddings(tmp_path / "x.scp", ids, X, text=text)
    for data in (dict(kaldiio.load_ark(str(tmp_path / "x.ark"))), kaldiio.load_scp(str(tmp_path / "x.scp"))):
        assert sorted(data) == sorted(ids.tolist())
        for i, x in zip(ids.tolist(), X, strict=True):
            np.testing.assert_array_equal(data[i], x.astype("f4") if text else x)  # kaldiio reads text as float32


def test_blocks_of_equal_and_unequal_keys(tmp_path: Path) -> None:
    """More than one block, where runs of equally long keys start and stop, and vectors mix with matrices."""
    rng = np.random.default_rng(3)
    lengths = np.repeat(rng.integers(6, 12, 60), rng.integers(1, 200, 60))
    keys = [f"{i:0{k}d}" if i % 997 else f"ä{i:0{k}d}" for i, k in enumerate(lengths)]
    X = rng.standard_normal((len(keys), 100)).astype("f4")
    with open(tmp_path / "k.ark", "wb") as f:
        kaldiio.save_ark(f, {k: x if i % 1501 else x[None] for i, (k, x) in enumerate(zip(keys, X, strict=True))})
    assert (tmp_path / "k.ark").stat().st_size > 2 << 20
    for rows in (100, 1000, 10**6):
        ids, got = drained(read_embeddings(tmp_path / "k.ark"), rows)
        assert ids.tolist() == keys
        np.testing.assert_array_equal(got, X)


def test_a_long_text_entry_and_large_vectors(tmp_path: Path) -> None:
    X = np.random.default_rng(0).standard_normal((3, 150_000))
    write_embeddings(tmp_path / "x.ark", ["a", "b", "c"], X, text=True)
    write_embeddings(tmp_path / "y.ark", ["a", "b", "c"], X)
    for name in ("x.ark", "y.ark"):
        np.testing.assert_array_equal(read_embeddings(tmp_path / name).load()[1], X)


def test_text_archives_as_kaldi_prints_them(tmp_path: Path) -> None:
    (tmp_path / "x.ark").write_text("a  [ 1 2.5 -3e-2 ]\nb  [\n  nan inf 0 ]\n\n")
    ids, X = read_embeddings(tmp_path / "x.ark").load()
    assert ids.tolist() == ["a", "b"]
    np.testing.assert_array_equal(X, [[1, 2.5, -0.03], [np.nan, np.inf, 0]])


# --- scp ------------------------------------------------------------------------------------------


def test_scp_in_any_order_over_several_archives(tmp_path: Path) -> None:
    ids, X = vectors(300, 40)
    lines: list[str] = []
    for k in range(3):
        part = slice(100 * k, 100 * k + 100)
        write_embeddings(tmp_path / f"{k}.scp", ids[part], X[part])
        lines += (tmp_path / f"{k}.scp").read_text().splitlines()
    order = np.random.default_rng(1).permutation(300)
    order = np.concatenate([order[:200], np.sort(order[200:])])  # some at random, some close together
    (tmp_path / "all.scp").write_text("\n".join(lines[i] for i in order) + "\n\n")
    got_ids, got = drained(read_embeddings(tmp_path / "all.scp"), 64)
    assert got_ids.tolist() == ids[order].tolist()
    np.testing.assert_array_equal(got, X[order])


def test_scp_paths_relative_to_here_then_to_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lists").mkdir()
    write_embeddings(tmp_path / "lists" / "x.ark", ["a"], np.ones((1, 2)))
    (tmp_path / "lists" / "x.scp").write_text("a x.ark:2\n")
    monkeypatch.chdir(tmp_path)
    assert read_embeddings("lists/x.scp").load()[1][0, 0] == 1  # beside the list
    write_embeddings("x.ark", ["a"], np.full((1, 2), 2.0))
    assert read_embeddings("lists/x.scp").load()[1][0, 0] == 2  # from the current folder, as Kaldi does


def test_a_name_that_ends_like_an_offset_is_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`x:abc` is a file, `x:2` is byte 2 of the file x, whichever of them comes first."""
    monkeypatch.chdir(tmp_path)
    write_embeddings("x.ark", ["a"], np.full((1, 3), 1.0))
    write_embeddings("y.ark", ["b"], np.full((1, 3), 2.0))
    value = Path("y.ark").read_bytes()[2:]  # without its key: a file that an scp names as a whole
    Path("x.ark:abc").write_bytes(value)
    Path("list.scp").write_text("b x.ark:abc\na x.ark:2\n")
    ids, X = read_embeddings("list.scp").load()
    assert (ids.tolist(), X[:, 0].tolist()) == (["b", "a"], [2.0, 1.0])


def test_scp_of_whole_files(tmp_path: Path) -> None:
    kaldiio.save_mat(str(tmp_path / "a.vec"), np.arange(3, dtype="f4"))
    (tmp_path / "x.scp").write_text(f"a {tmp_path}/a.vec\n")
    np.testing.assert_array_equal(read_embeddings(tmp_path / "x.scp").load()[1], [[0, 1, 2]])


def test_commands_are_refused_and_not_run(tmp_path: Path) -> None:
    for line in (f"a touch {tmp_path}/ran |", f"a | touch {tmp_path}/ran"):
        (tmp_path / "x.scp").write_text(line + "\n")
        with pytest.raises(DuopldaError, match="line 1: holds a command, which is never run"):
            read_embeddings(tmp_path / "x.scp")
    assert not (tmp_path / "ran").exists()


# --- NumPy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("ids_as", ["U", "S", "int"])
def test_npz_of_others(tmp_path: Path, save: object, ids_as: str) -> None:
    X = vectors()[1].astype(">f4")
    ids = np.arange(50) if ids_as == "int" else np.array([f"u{i}" for i in range(50)], dtype=ids_as)
    save(tmp_path / "x.npz", X=X, utt_id=ids, other=np.zeros(3))  # type: ignore[operator]
    got_ids, got = drained(read_embeddings(tmp_path / "x.npz"), 16)
    assert got_ids.tolist() == [str(i) if ids_as == "int" else f"u{i}" for i in range(50)]
    assert got.dtype == np.dtype("f4")
    np.testing.assert_array_equal(got, X)


def test_npz_names_and_ids_from_elsewhere(tmp_path: Path) -> None:
    X = vectors()[1]
    names = np.array([f"u{i}" for i in range(50)])
    np.savez(tmp_path / "x.npz", embeddings=X, mine=2 * X, who=names)
    e = read_embeddings(tmp_path / "x.npz")
    assert e.ids_are_rows
    assert e.load()[0].tolist() == [str(i) for i in range(50)]
    e = read_embeddings(tmp_path / "x.npz", columns={"vector": "mine", "id": "who"})
    assert not e.ids_are_rows
    assert e.load()[0].tolist() == names.tolist()
    np.testing.assert_array_equal(e.load()[1], 2 * X)
    assert read_embeddings(tmp_path / "x.npz", ids=names).load()[0].tolist() == names.tolist()


@pytest.mark.skipif(not SHARED.exists(), reason="the shared data are not here")
def test_the_shared_data_through_every_format(tmp_path: Path) -> None:
    e = read_embeddings(SHARED)
    assert e.ids_are_rows
    assert e.dim == 192
    ids, X = e.load()
    np.testing.assert_array_equal(X, np.load(SHARED)["embeddings"])
    for case, (suffix, options) in WRITERS.items():
        path = tmp_path / case.replace(" ", "_") / f"x{suffix}"
        path.parent.mkdir()
        write_embeddings(path, e, **options)
        got_ids, got = read_embeddings(path).load()
        assert by_id(got_ids, got.astype("f4")) == by_id(ids, X)


@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_with_ids_beside_it_or_given(tmp_path: Path, order: str) -> None:
    X = np.asarray(vectors()[1], order=order)
    names = [f"u{i}" for i in range(50)]
    np.save(tmp_path / "x.npy", X)
    with pytest.raises(DuopldaError, match=r"has no list of ids; put x\.txt or x\.ids beside it"):
        read_embeddings(tmp_path / "x.npy")
    (tmp_path / "list").write_text("\n".join(names))
    for given in (names, tmp_path / "list", str(tmp_path / "list")):
        assert read_embeddings(tmp_path / "x.npy", ids=given).load()[0].tolist() == names
    assert read_embeddings(tmp_path / "x.npy", ids="rows").load()[0].tolist() == [str(i) for i in range(50)]
    for suffix in (".ids", ".txt"):
        (tmp_path / f"x{suffix}").write_text("\n".join(suffix[1:] + n for n in names) + "\n")
        got_ids, got = drained(read_embeddings(tmp_path / "x.npy"), 16)
        assert got_ids[0] == suffix[1:] + "u0"
        np.testing.assert_array_equal(got, X)
    write_embeddings(tmp_path / "y.npy", names, X)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy", mmap_mode="r"), X)


# --- HDF5 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids_as", ["variable", "variable chunks", "variable gzip", "fixed"])
def test_h5py_writes_a_matrix_and_we_read(tmp_path: Path, ids_as: str) -> None:
    ids, X = vectors(3000, 7)
    ids[5] = "x" * 100
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=512 if ids_as == "variable" else 0) as f:
        f.create_dataset("xvectors", data=X, chunks=(13, 7), compression="gzip")
        options = {"chunks": (100,)} if "chunks" in ids_as else {}
        options |= {"chunks": (100,), "compression": "gzip"} if "gzip" in ids_as else {}
        data = np.array([i.encode() for i in ids.tolist()]) if ids_as == "fixed" else ids.astype(object)
        f.create_dataset("utt_ids", data=data, dtype=None if ids_as == "fixed" else h5py.string_dtype(), **options)
    (tmp_path / "x.h5").rename(tmp_path / "x")  # by content alone, after a user block, too
    got_ids, got = drained(read_embeddings(tmp_path / "x"), 130)
    assert got_ids.tolist() == ids.tolist()
    np.testing.assert_array_equal(got, X)


def test_hyperion_writes_a_dataset_per_recording(tmp_path: Path) -> None:
    ids, X = vectors()
    with h5py.File(tmp_path / "x.h5", "w") as f:
        for k, (i, x) in enumerate(zip(ids.tolist(), X, strict=True)):
            f.create_dataset(f"dir{k % 2}/{i}", data=x if k % 3 else x[None])  # keys with / become groups
    got_ids, got = drained(read_embeddings(tmp_path / "x.h5"), 8)
    assert by_id(got_ids, got) == by_id(np.array([f"dir{k % 2}/{i}" for k, i in enumerate(ids.tolist())]), X)


def test_we_write_and_h5py_reads(tmp_path: Path) -> None:
    ids, X = vectors()
    write_embeddings(tmp_path / "m.h5", ids, X)
    with h5py.File(tmp_path / "m.h5") as f:
        np.testing.assert_array_equal(f["embeddings"][()], X)
        assert [i.decode() for i in f["ids"][()]] == ids.tolist()
    write_embeddings(tmp_path / "each.h5", ids, X, one_per_recording=True)
    with h5py.File(tmp_path / "each.h5") as f:
        assert all((f[i][()] == x).all() for i, x in zip(ids.tolist(), X, strict=True))
        assert len(f) == 50


def test_hdf5_datasets_in_other_files_are_refused(tmp_path: Path) -> None:
    write_embeddings(tmp_path / "real.h5", *vectors())
    with h5py.File(tmp_path / "link.h5", "w") as f:
        f["embeddings"] = h5py.ExternalLink(str(tmp_path / "real.h5"), "/embeddings")
        f["ids"] = np.array([b"a"] * 50)
    with pytest.raises(DuopldaError, match="entry 'embeddings': is a link"):
        read_embeddings(tmp_path / "link.h5")
    (tmp_path / "secret").write_bytes(b"\0" * 400)
    with h5py.File(tmp_path / "ext.h5", "w") as f:
        f.create_dataset("embeddings", (50, 2), "f4", external=[(str(tmp_path / "secret"), 0, 400)])
        f["ids"] = np.array([b"a"] * 50)
    with pytest.raises(DuopldaError, match="keeps its data in other files"):
        read_embeddings(tmp_path / "ext.h5")


# --- Parquet --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 5)])
def test_pyarrow_writes_and_we_read(tmp_path: Path, kind: pa.DataType) -> None:
    ids, X = vectors()
    table = pa.table({"n": list(range(50)), "utt": ids.tolist(), "vector": pa.array(X.tolist(), kind)})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=17)
    got_ids, got = drained(read_embeddings(tmp_path / "x.parquet"), 20)
    assert got_ids.tolist() == ids.tolist()
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, X)
    named = read_embeddings(tmp_path / "x.parquet", columns={"vector": "vector", "id": "n"})
    assert named.load()[0].tolist() == [str(i) for i in range(50)]


def test_we_write_and_pyarrow_reads(tmp_path: Path) -> None:
    ids, X = vectors()
    write_embeddings(tmp_path / "x.parquet", ids, X)
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 5)
    assert table["id"].to_pylist() == ids.tolist()
    np.testing.assert_array_equal(np.array(table["embedding"].to_pylist(), "f4"), X)
    column = pq.ParquetFile(tmp_path / "x.parquet").metadata.row_group(0).column(1)
    assert "BYTE_STREAM_SPLIT" in column.encodings
    assert not any("DICTIONARY" in e for e in column.encodings)


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_a_flipped_bit_is_noticed(tmp_path: Path, suffix: str) -> None:
    """Where the format has checksums of the vectors; Kaldi's and npy have none."""
    ids, X = vectors()
    write_embeddings(tmp_path / f"x.{suffix}", ids, X)
    data = (tmp_path / f"x.{suffix}").read_bytes()
    rng = np.random.default_rng(0)
    noticed = 0
    for place in rng.integers(len(data), size=40):
        changed = bytearray(data)
        changed[place] ^= 1 << int(rng.integers(8))
        (tmp_path / f"y.{suffix}").write_bytes(changed)
        try:
            names, read = read_embeddings(tmp_path / f"y.{suffix}").load()
        except DuopldaError:
            noticed += 1
        else:  # in what no reader looks at, or in the name of the array of ids, so that rows are numbered
            assert names.tolist() in (ids.tolist(), [str(i) for i in range(len(X))])
            np.testing.assert_array_equal(read, X)
    assert noticed > 20
