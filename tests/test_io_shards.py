"""Several files as one, and files in pieces that other processes read."""

from __future__ import annotations

import dataclasses
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duoplda import PLDA, Backend
from duoplda.errors import DuopldaError
from duoplda.io import (
    LabelColumns,
    Shard,
    embedding_shards,
    read_embeddings,
    read_labels,
    read_recordings,
    write_embeddings,
)
from io_cases import WRITERS, by_id, drained, vectors

Pair = tuple[np.ndarray, np.ndarray]
CUT = {"scp", "scp text", "npz", "npy", "hdf5", "parquet"}  # the others are one shard
each_case = pytest.mark.parametrize("case", WRITERS)


def write(path: Path, ids: np.ndarray, X: np.ndarray, case: str = "npz", **options: object) -> None:
    """In chunks of 7: Parquet gets row groups."""
    chunks = ((ids[i : i + 7], X[i : i + 7]) for i in range(0, len(X), 7))
    write_embeddings(path, chunks, **(WRITERS[case][1] | options))


def spread(folder: Path, case: str, names: list[str]) -> Pair:
    """60 vectors in files of these names, one after the other."""
    ids, X = vectors(60)
    folder.mkdir(exist_ok=True)
    for name, (i, j) in zip(names, pairwise(np.linspace(0, 60, len(names) + 1).astype(int)), strict=True):
        write(folder / f"{name}{WRITERS[case][0]}", ids[i:j], X[i:j], case)
    return ids, X


def together(shards: list[Shard], rows: int = 3) -> Pair:
    chunks = [chunk for shard in shards for chunk in shard.chunks(rows)]
    assert all(len(ids) == len(X) <= rows for ids, X in chunks)
    return np.concatenate([ids for ids, _ in chunks]), np.concatenate([X for _, X in chunks])


def same(got: Pair, want: Pair) -> None:
    assert got[0].tolist() == want[0].tolist()
    assert got[1].dtype == want[1].dtype
    assert got[1].tobytes() == want[1].tobytes()


def message(read: Callable, *args: object, **options: object) -> str:
    with pytest.raises(DuopldaError) as e:
        read(*args, **options)
    assert "\n" not in str(e.value)
    return str(e.value)


def refused(*args: object) -> str:
    """What the reader and the cutter say, which is the same."""
    text = message(read_embeddings, *args)
    assert text == message(embedding_shards, *args)
    return text


# --- shards of one file ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@each_case
def test_shards_together_are_the_whole(tmp_path: Path, case: str, dtype: str) -> None:
    path = tmp_path / f"x{WRITERS[case][0]}"
    write(path, *vectors(dtype=dtype), case)
    whole = read_embeddings(path).load()
    assert read_embeddings(path).ids().tolist() == whole[0].tolist()
    for bytes_each, least in ((1, 8), (300, 4), (1 << 20, 1)):
        shards = embedding_shards(path, bytes_each=bytes_each)
        assert len(shards) >= least > 1 or len(shards) == 1
        assert (len(shards) > 1) == (case in CUT and least > 1)
        same(together(shards), whole)
        same(together(shards, 1000), whole)
        for shard in shards:
            ids, X = shard.load()
            assert shard.ids().tolist() == ids.tolist()
            assert shard.n == (None if case in ("ark", "ark text", "hdf5 each") else len(ids))
            assert (shard.dim, shard.dtype) == (5, X.dtype.name)
            assert len(pickle.dumps(shard)) < 1000
            assert pickle.loads(pickle.dumps(shard)) == shard


def test_names_and_plain_data(tmp_path: Path) -> None:
    names = []
    for case in ("ark", "scp", "npy", "parquet"):
        write(tmp_path / f"x{WRITERS[case][0]}", *vectors(16), case, force=True)
        for shard in embedding_shards(tmp_path / f"x{WRITERS[case][0]}", bytes_each=200):
            names.append(shard.name)
            leaves = dataclasses.asdict(shard)
            leaves |= leaves.pop("part") or {}
            assert {type(v) for v in leaves.values()} <= {str, int, type(None)}
    assert names[:3] == ["x.ark", "x.scp lines 1-10", "x.scp lines 11-16"]
    assert names[3:] == ["x.npy rows 0-9", "x.npy rows 10-15", "x.parquet rows 0-6", "x.parquet rows 7-15"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        shard.n = 3  # type: ignore[misc]
    assert "bytes_each must be at least 1, got 0" in message(embedding_shards, tmp_path / "x.ark", bytes_each=0)
    assert "is ark, which has its own ids" in refused(tmp_path / "x.ark", "rows")


def test_another_process_in_another_folder_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shards, wholes = [], []
    for case, (suffix, _) in WRITERS.items():
        Path(case).mkdir()
        write(Path(f"{case}/x{suffix}"), *vectors(), case)  # relative names, in the scp too
        shards += embedding_shards(f"{case}/x{suffix}", bytes_each=170)
        wholes.append(read_embeddings(f"{case}/x{suffix}").load())
    Path("elsewhere").mkdir()
    Path("shards.pickle").write_bytes(pickle.dumps(shards))
    code = """if True:
        import pickle, numpy as np
        with open("../shards.pickle", "rb") as f:
            shards = pickle.load(f)
        chunks = [c for s in shards for c in s.chunks(4)]
        ids, X = (np.concatenate([c[k] for c in chunks]) for k in (0, 1))
        assert np.concatenate([s.ids() for s in shards]).tolist() == ids.tolist()
        np.savez("../got.npz", ids=ids, X=X)
    """
    subprocess.run([sys.executable, "-c", code], cwd="elsewhere", check=True, timeout=300)
    with np.load("got.npz") as got:
        want = np.concatenate([w[0] for w in wholes]), np.concatenate([w[1] for w in wholes])
        same((got["ids"], got["X"]), want)


def test_an_scp_with_blank_lines_over_several_archives(tmp_path: Path) -> None:
    spread(tmp_path, "scp", ["0", "1", "2"])
    lines = "".join((tmp_path / f"{k}.scp").read_text() for k in range(3)).splitlines()
    order = np.random.default_rng(1).permutation(60)
    (tmp_path / "all.scp").write_text("\n\n" + "".join(lines[i] + "\n" * (1 + i % 3) for i in order) + "\n  ")
    for rows in (1, 7, 60):
        shards = embedding_shards(tmp_path / "all.scp", bytes_each=20 * rows)
        assert [s.n for s in shards] == [min(rows, 60 - i) for i in range(0, 60, rows)]
        same(together(shards), read_embeddings(tmp_path / "all.scp").load())


@pytest.mark.parametrize("order", ["C", "F"])
def test_ids_of_npy_from_a_list_or_by_number(tmp_path: Path, order: str) -> None:
    np.save(tmp_path / "x.npy", np.asarray(vectors()[1], order=order))
    (tmp_path / "list").write_text("".join(f"{'ü' * (i % 4)}u{i}\n" for i in range(50)).rstrip())
    for ids in ("rows", tmp_path / "list", str(tmp_path / "list")):
        shards = embedding_shards(tmp_path / "x.npy", ids, bytes_each=140)
        assert len(shards) == 8
        same(together(shards), read_embeddings(tmp_path / "x.npy", ids).load())
    text = message(embedding_shards, tmp_path / "x.npy", ["a"] * 50)
    assert text.endswith("x.npy: shards cannot have ids= in memory; write them to a file, one id per line")
    assert "has no list of ids" in refused(tmp_path / "x.npy")


def test_npz_of_others(tmp_path: Path) -> None:
    X, names = vectors()[1].astype(">f8"), np.array([f"u{i}".encode() for i in range(50)])
    (tmp_path / "list").write_text("\n".join(f"v{i}" for i in range(50)))
    np.savez(tmp_path / "x.npz", other=np.zeros(100), mine=X, who=names)
    np.savez_compressed(tmp_path / "small.npz", X=X, ids=names)
    np.savez(tmp_path / "bare.npz", X=X)
    own = {"columns": {"vector": "mine", "id": "who"}}
    for name, options, n in (("x", own, 5), ("bare", {}, 5), ("bare", {"ids": tmp_path / "list"}, 5), ("small", {}, 1)):
        shards = embedding_shards(tmp_path / f"{name}.npz", bytes_each=400, **options)
        assert [s.n for s in shards] == [50 // n] * n
        same(together(shards), read_embeddings(tmp_path / f"{name}.npz", **options).load())


def test_hdf5_and_parquet_of_others(tmp_path: Path) -> None:
    ids, X = vectors()
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f.create_dataset("group/mine", data=X, chunks=(13, 5), compression="gzip")
        f.create_dataset("ids", data=ids.astype(object), dtype=h5py.string_dtype(), chunks=(20,), compression="gzip")
    shards = embedding_shards(tmp_path / "x.h5", columns={"vector": "group/mine"}, bytes_each=300)
    assert [s.n for s in shards] == [15, 15, 15, 5]
    same(together(shards), (ids, X))
    table = pa.table({"utt": ids.tolist(), "vector": pa.array(X.tolist(), pa.list_(pa.float32()))})
    with pq.ParquetWriter(tmp_path / "x.parquet", table.schema) as w:
        for part in (table[:0], table[:30], table[:0], table[30:35], table[35:], table[:0]):
            w.write_table(part)
    for bytes_each, counts in ((1, [30, 5, 15]), (500, [30, 20]), (10**6, [50])):
        shards = embedding_shards(tmp_path / "x.parquet", bytes_each=bytes_each)
        assert [s.n for s in shards] == counts
        same(together(shards), (ids, X))


@each_case
def test_a_file_that_changes_or_goes_after_it_was_cut(tmp_path: Path, case: str) -> None:
    path = tmp_path / f"x{WRITERS[case][0]}"
    write(path, *vectors(), case)
    shard = embedding_shards(path, bytes_each=300)[-1]
    write(path, *vectors(49), case, force=True)
    for read in (shard.load, shard.ids, shard.labels, shard.chunks):
        assert message(read).startswith(f"{path}: has changed since it was cut into shards; cut it again")
    path.unlink()
    for read in (shard.load, shard.ids, shard.labels, shard.chunks):
        assert message(read) == f"{path}: no such file or directory; check the name"


def test_damage_is_told_with_its_place(tmp_path: Path) -> None:
    ids, X = vectors(60)
    write(tmp_path / "x.parquet", ids, X)
    shards = embedding_shards(tmp_path / "x.parquet", bytes_each=300)
    pages = pq.ParquetFile(tmp_path / "x.parquet").metadata.row_group(4).column(1)
    with open(tmp_path / "x.parquet", "r+b") as f:
        f.seek(pages.data_page_offset)
        f.write(b"\xff" * pages.total_compressed_size)
    same(together(shards[:2]), (ids[:28], X[:28]))
    assert message(shards[2].load).startswith(f"{tmp_path}/x.parquet rows 28-41: cannot be read as Parquet")
    write(tmp_path / "x.scp", ids, X, "scp")
    shards = embedding_shards(tmp_path / "x.scp", bytes_each=300)
    os.truncate(tmp_path / "x.ark", 1000)
    same(shards[0].load(), (ids[:15], X[:15]))
    assert message(shards[3].load).startswith(f"{tmp_path}/x.scp: line 46 (entry 'spk3-45', {tmp_path}/x.ark:")
    np.save(tmp_path / "x.npy", np.eye(6, 2))
    (tmp_path / "x.ids").write_text("a\nb\nc\nd\ne\nd\n")
    shards = embedding_shards(tmp_path / "x.npy", bytes_each=48)
    assert shards[0].ids().tolist() == ["a", "b", "c"]
    for read in (shards[1].load, shards[1].ids):
        assert message(read).endswith("x.npy rows 3-5: entry 2: id 'd' is there already as entry 0; ids must differ")


# --- folders and patterns -------------------------------------------------------------------------


@each_case
def test_folders_and_patterns_in_natural_order(tmp_path: Path, case: str) -> None:
    folder, suffix, names = tmp_path / "a folder", WRITERS[case][0], ["x.1", "x.2", "x.9", "x.10", "x.10b", "x.011"]
    ids, X = spread(folder, case, names)
    for name in ("notes.txt", f".hidden{suffix}", f"x{suffix}.bak"):
        (folder / name).write_text("something else\n")
    one = read_embeddings(folder / f"x.9*{suffix}")  # matches one file
    assert one.path == folder / f"x.9{suffix}"
    for path in (folder, f"{folder}/", folder / f"x*{suffix}", f"{tmp_path}/*/x.?*{suffix}"):
        e = read_embeddings(path)
        assert (e.format, e.dim, e.dtype) == (f"6 files, {one.format}", 5, one.dtype)
        assert e.n == (None if one.n is None else 60)
        got = drained(e, 4)
        assert by_id(got[0], got[1].astype("f4")) == by_id(ids, X)
        assert got[0].tolist() == e.ids().tolist()
        assert case == "hdf5 each" or got[0].tolist() == ids.tolist()
        shards = embedding_shards(path, bytes_each=100)
        assert list(dict.fromkeys(Path(s.path).stem for s in shards)) == names
        assert len(shards) >= (12 if case in CUT else 6)
        same(together(shards), got)


def test_lists_come_before_the_archives_they_name(tmp_path: Path) -> None:
    ids, X = spread(tmp_path, "scp", ["x.1", "x.2"])
    for path in (tmp_path, tmp_path / "x.*"):
        assert read_embeddings(path).format == "2 files, kaldi scp"
        same(read_embeddings(path).load(), (ids, X))
    assert read_embeddings(tmp_path / "*.ark").format == "2 files, kaldi ark"
    (tmp_path / "x.scp").write_text("".join((tmp_path / f"x.{k}.scp").read_text() for k in (1, 2)))
    text = message(read_embeddings(tmp_path).load)  # as Kaldi leaves it: the parts and their sum
    assert text == f"{tmp_path}: x.scp entry 0: id 'spk0-0' is there already as x.1.scp entry 0; ids must differ"


@pytest.mark.parametrize("name", ["x [1]", "x*", "what?", "[!a]", "**", "a b  c", "x.[0-9]"])
@each_case
def test_names_that_look_like_patterns(tmp_path: Path, case: str, name: str) -> None:
    ids, X = vectors(20)
    path, folder = tmp_path / f"{name}{WRITERS[case][0]}", tmp_path / f"{name} folder"
    folder.mkdir()
    write(path, ids[:10], X[:10], case)
    write(tmp_path / f"x.1{WRITERS[case][0]}", ids[10:], X[10:], case)
    write(folder / path.name, ids, X, case)
    for place, n in ((path, 10), (folder, 20)):
        assert set(read_embeddings(place).load()[0].tolist()) == set(ids[:n].tolist())
        assert set(together(embedding_shards(place, bytes_each=100))[0].tolist()) == set(ids[:n].tolist())


def test_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a b\n")
    text = refused(tmp_path)
    assert text.startswith(
        f"{tmp_path}: is a folder; give a file, or a folder of embeddings: no name in it ends in .ark"
    )
    remedy = "no file matches this pattern; check it, and the folder it starts from"
    for pattern in ("x.*.ark", "no/*/*.ark", "[.npz"):
        assert refused(tmp_path / pattern) == f"{tmp_path}/{pattern}: {remedy}"
    assert "null" in refused("a\0*.ark")
    assert refused(tmp_path / "x.ark").endswith("x.ark: no such file or directory; check the name")
    (tmp_path / "part.parquet").mkdir()
    assert refused(tmp_path) == f"{tmp_path}/part.parquet: is a folder; give a file"


@each_case
def test_a_damaged_file_among_others_is_named(tmp_path: Path, case: str) -> None:
    suffix = WRITERS[case][0]
    spread(tmp_path, case, ["x.1", "x.2", "x.3"])
    path = tmp_path / f"x.2{'.ark' if suffix == '.scp' else suffix}"
    os.truncate(path, path.stat().st_size - 9)
    assert message(lambda: read_embeddings(tmp_path).load()).startswith(f"{tmp_path}/x.2{suffix}")
    assert message(lambda: together(embedding_shards(tmp_path, bytes_each=50))).startswith(f"{tmp_path}/x.2{suffix}")
    for junk in (b"", b"\0" * 100):
        (tmp_path / f"x.2{suffix}").write_bytes(junk)
        assert refused(tmp_path).startswith(f"{tmp_path}/x.2{suffix}: ")


def test_files_that_do_and_do_not_go_together(tmp_path: Path) -> None:
    ids, X = vectors(30)
    for name, i in (("1.npz", 0), ("2.ark", 10), ("3.PARQUET", 20)):
        write(tmp_path / name, ids[i : i + 10], X[i : i + 10])
    assert read_embeddings(tmp_path).format == "3 files, npz and kaldi ark and parquet"
    same(read_embeddings(tmp_path).load(), (ids, X))
    same(together(embedding_shards(tmp_path)), (ids, X))
    write(tmp_path / "2.ark", ids[10:20], X[10:20, :4], force=True)
    cause = f"holds float32 vectors of dimension 4, {tmp_path}/1.npz float32 of 5; all files must be equal"
    assert refused(tmp_path) == f"{tmp_path}/2.ark: {cause}"
    write(tmp_path / "2.ark", ids[10:20], X[10:20].astype("f8"), force=True)
    assert "2.ark: holds float64 vectors of dimension 5" in refused(tmp_path)
    write(tmp_path / "2.ark", ids[[15, 3]], X[:2], force=True)
    for read in (read_embeddings(tmp_path).load, read_embeddings(tmp_path).ids):
        cause = "2.ark entry 1: id 'spk3-0003' is there already as 1.npz entry 3; ids must differ"
        assert message(read) == f"{tmp_path}: {cause}"
    np.savez(tmp_path / "2.npz", X=X)
    cause = "has no ids, and row numbers repeat from file to file; store an array `ids` in each"
    assert refused(tmp_path / "*.npz") == f"{tmp_path}/2.npz: {cause}"
    assert "is 2 files, and ids= is for a single file; put x.ids beside each x.npy" in refused(
        tmp_path / "*.npz", "rows"
    )
    assert read_embeddings(tmp_path / "2*.npz", "rows").ids().tolist() == [str(i) for i in range(30)]


# --- labels ---------------------------------------------------------------------------------------


def labelled(n: int = 50) -> LabelColumns:
    columns = (np.array([f"{kind}é {i % k}" for i in range(n)]) for kind, k in (("s", 7), ("t", 3), ("c", 2)))
    return LabelColumns(vectors(n)[0], *columns)


@pytest.mark.parametrize("drop", [(), ("session",), ("session", "channel")])
def test_labels_travel_with_the_vectors(tmp_path: Path, drop: tuple[str, ...]) -> None:
    labels = dataclasses.replace(labelled(), **dict.fromkeys(drop))
    write(tmp_path / "x.parquet", *vectors(), labels=labels)
    same(read_embeddings(tmp_path / "x.parquet").load(), vectors())
    parts = [s.labels() for s in embedding_shards(tmp_path / "x.parquet", bytes_each=300)]
    assert len(parts) == 4
    for field in ("ids", "speaker", "session", "channel"):
        want, got = getattr(labels, field), [getattr(p, field) for p in parts]
        assert got == [None] * 4 if want is None else np.concatenate(got).tolist() == want.tolist()
    assert read_labels(tmp_path / "x.parquet").speaker.tolist() == labels.speaker.tolist()


def test_label_columns_of_others(tmp_path: Path) -> None:
    ids, X = vectors()
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.reshape(-1)), 5)
    speaker = pa.array([f"s{i % 3}" for i in range(50)]).dictionary_encode()
    table = {"SpeakerID": speaker, "segmentid": ids.tolist(), "x": lists, "Sess": [i % 4 for i in range(50)]}
    pq.write_table(pa.table(table), tmp_path / "x.parquet", row_group_size=20)
    got = embedding_shards(tmp_path / "x.parquet", bytes_each=1)[1].labels()
    assert got.ids.tolist() == ids[20:40].tolist()
    assert got.speaker.tolist() == [f"s{i % 3}" for i in range(20, 40)]
    assert got.session.tolist() == [str(i % 4) for i in range(20, 40)]
    assert got.channel is None
    table["SpeakerID"] = [None if i == 33 else "a" for i in range(50)]
    pq.write_table(pa.table(table), tmp_path / "x.parquet", row_group_size=20)
    shard = embedding_shards(tmp_path / "x.parquet", bytes_each=1)[1]
    assert message(shard.labels) == f"{tmp_path}/x.parquet: row 33: a value is missing; fill the column"


@each_case
def test_no_labels_in_the_file(tmp_path: Path, case: str) -> None:
    path = tmp_path / f"x{WRITERS[case][0]}"
    write(path, *vectors(), case)
    (shard,) = embedding_shards(path)
    cause = f"is {shard.kind}, which has no room for labels; give a list of labels beside it"
    if case == "parquet":
        cause = (
            "header: has no speaker column (speaker or spk or speaker_id or speakerid); name it: `columns` speaker=NAME"
        )
    assert message(shard.labels).startswith(f"{path}: {cause}")


def test_labels_that_do_not_fit(tmp_path: Path) -> None:
    ids, X = vectors()
    labels, changed = labelled(), dataclasses.replace
    for given, cause in (
        (labelled(48), "row 48: has no label: there are 48; one label per vector"),
        (labelled(60), "60 labels for 50 vectors; one label per vector, in the same order"),
        (changed(labels, ids=ids[::-1]), "row 0: has id 'spk0-0', its label 'spk0-é49'; put the labels in"),
        (changed(labels, session=ids[:9]), "column session: has 9 values for 50 ids; one for each id"),
        (changed(labels, speaker=np.array([""] * 50)), "row 0: the id is empty or has control characters"),
        (changed(labels, channel=np.ones(50)), "ids are float64, not text"),
    ):
        text = message(write, tmp_path / "x.parquet", ids, X, labels=given)
        assert text.startswith(f"{tmp_path}/x.parquet: {cause}")
        assert os.listdir(tmp_path) == []
    text = message(write, tmp_path / "x.npz", ids, X, labels=labels)
    assert text.endswith("x.npz: only Parquet has room for labels; name it .parquet, or use write_labels")


# -- vectors without ids


@each_case
def test_vectors_alone_are_those_of_the_chunks(tmp_path: Path, case: str) -> None:
    ids, _ = spread(tmp_path / "f", case, ["a", "b", "c"])
    for path in (tmp_path / "f", tmp_path / "f" / f"a{WRITERS[case][0]}"):
        found = read_embeddings(path)
        for rows in (3, 1000):
            blocks = list(found.vectors(rows))
            assert max(map(len, blocks)) <= rows
            same((ids[:0], np.concatenate(blocks)), (ids[:0], np.concatenate([x for _, x in found.chunks(rows)])))


def test_vectors_alone_are_checked_too(tmp_path: Path) -> None:
    lists = [[1.0, 2.0], [1.0, 2.0, 3.0]], [[1.0, 2.0], None], [[1.0, 2.0], [1.0, None]]
    kinds = pa.list_(pa.float32()), pa.list_(pa.float32()), pa.list_(pa.float32(), 2)
    for values, kind, said in zip(lists, kinds, ("dimension 3", "no vector", "missing number"), strict=True):
        table = pa.table({"id": ["a", "b"], "embedding": pa.array(values, kind)})
        pq.write_table(table, tmp_path / "x.parquet")
        for way in ("vectors", "chunks"):
            assert said in message(lambda way=way: list(getattr(read_embeddings(tmp_path / "x.parquet"), way)()))


def test_labels_beside_the_vectors_need_no_ids_to_be_looked_up(tmp_path: Path) -> None:
    ids, X = vectors(60)
    labels = LabelColumns(ids, np.array([f"s{i // 9}" for i in range(60)]), np.array([f"{i // 4}" for i in range(60)]))
    path = tmp_path / "x.parquet"
    write_embeddings(path, ids, X, labels=labels)
    passes = {}
    for way in ("vectors", "chunks"):
        for name, options in {"own": {"own_labels": True}, "list": {"labels": labels}}.items():
            found = read_recordings(path, **options)
            for again in range(2):
                chunks = list(getattr(found, way)(7))
                assert [len(c.X) for c in chunks] == [7] * 8 + [4]
                named = way == "chunks" or (name == "list" and not again)  # the first pass must find the labels
                assert all((c.ids is not None) == named for c in chunks)
                assert np.concatenate([c.names for c in chunks]).tolist() == (
                    ids.tolist() if named else list(range(60))
                )
                same((ids, np.concatenate([c.X for c in chunks])), (ids, X))
                assert np.concatenate([c.index for c in chunks]).tolist() == list(range(60))
            passes[way, name] = found.digest
            assert found.labels().session_ids.tolist() == read_recordings(path, labels).labels().session_ids.tolist()
    assert len(set(passes.values())) == 1
    assert None not in passes.values()


@pytest.mark.parametrize(
    ("suffix", "own"), [("ark", False), ("npz", False), ("h5", False), ("parquet", False), ("parquet", True)]
)
def test_a_file_that_is_replaced_between_passes_is_named(tmp_path: Path, suffix: str, own: bool) -> None:
    """By another of the same ids and the same size."""
    ids, X = vectors(60)
    speaker, session = np.array([f"s{i // 9}" for i in range(60)]), np.array([f"{i // 3}" for i in range(60)])
    labels = LabelColumns(ids, speaker, session)
    files = [tmp_path / f"{name}.{suffix}" for name in "ab"]

    def write(file: Path, rows: slice, scale: float) -> None:
        given = {"labels": LabelColumns(ids[rows], speaker[rows], session[rows])} if own else {}
        write_embeddings(file, ids[rows], scale * X[rows], **given, force=True)

    def replaced_in(reads: int, way: str) -> str:
        """What is said of two passes, if the second file is replaced after so many reports of vectors read."""
        for file, rows in zip(files, (slice(0, 40), slice(40, 60)), strict=True):
            write(file, rows, 1.0)
        reports = []

        def show(done: int, text: str) -> None:
            reports.append(done)
            if len(reports) == reads:
                write(files[1], slice(40, 60), -1.0)

        options = {"own_labels": True} if own else {"labels": labels}
        recordings = read_recordings(tmp_path, **options, show=show)
        assert len(np.concatenate([chunk.X for chunk in recordings.chunks()])) == 60
        return message(lambda: list(getattr(recordings, way)()))

    for way in ("chunks", "vectors"):
        said = replaced_in(2, way)
        assert said.startswith(f"{tmp_path}: at b.{suffix} ")
        assert said.endswith(
            "has changed since the first pass over it; leave the files alone while they are used, and start again"
        )
    (tmp_path / f"b.{suffix}").unlink()
    write(files[0], slice(0, 60), 1.0)
    trained = Backend(plda=PLDA(2, 0))
    recordings = read_recordings(files[0], **({"own_labels": True} if own else {"labels": labels}))
    trained.fit(recordings)
    write(files[0], slice(0, 60), -1.0)
    assert f"{files[0]}: at " in message(trained.fit, recordings)


def test_a_repeated_id_with_labels_beside_the_vectors(tmp_path: Path) -> None:
    for name, own in {"a": ["x", "y"], "b": ["z", "y"]}.items():
        write_embeddings(
            tmp_path / f"{name}.parquet", own, np.eye(2), labels=LabelColumns(np.array(own), np.array(own))
        )
    said = message(read_recordings, tmp_path, own_labels=True)
    assert "b.parquet entry 1: id 'y' is there already as a.parquet entry 1" in said


def test_ids_of_many_row_groups(tmp_path: Path) -> None:
    """pyarrow's dictionary of a column grows with the file: each chunk takes its own ids from it."""
    ids, X = vectors(200)
    write(tmp_path / "x.parquet", ids, X)
    same(drained(read_embeddings(tmp_path / "x.parquet"), 3), (ids, X))
    ids[::2] = "again"  # fewer texts than rows, and an odd one among them
    for at, bad in ((150, ""), (151, "a\tb")):
        ids[at] = bad
        pq.write_table(pa.table({"id": ids.tolist(), "embedding": X.tolist()}), tmp_path / "odd.parquet")
        for rows in (3, 500):
            assert f"row {at}: the id is empty" in message(
                lambda rows=rows: drained(read_embeddings(tmp_path / "odd.parquet"), rows)
            )
        ids[at] = "good"
