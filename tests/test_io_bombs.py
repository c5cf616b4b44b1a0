"""Small files that would unpack to gigabytes are read in bounded memory, or refused; real files are read."""

from __future__ import annotations

import gzip
import subprocess
import sys
import zlib
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duoplda.io import read_embeddings
from io_cases import by_id, drained, vectors

MEASURE = """if True:
    import resource, sys
    import h5py, pyarrow.parquet
    from duoplda.errors import DuopldaError
    from duoplda.io import read_embeddings, read_labels
    before, message = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "read"
    try:
        if sys.argv[2] == "labels":
            read_labels(sys.argv[1])
        else:
            for _ in read_embeddings(sys.argv[1]):
                pass
    except DuopldaError as e:
        message = str(e)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> (20 if sys.platform == "darwin" else 10))
    print(message)
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="memory is measured as POSIX does")


def measured(path: Path, what: str = "embeddings") -> tuple[int, str]:
    """The megabytes that reading takes, and how it ends; in a process of its own."""
    assert path.stat().st_size < 2 << 20
    command = [sys.executable, "-c", MEASURE, str(path), what]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    most, message = done.stdout.splitlines()
    return int(most), message


def table(path: Path, rows: int, dim: int, ids: pa.Array | None = None, **options: object) -> Path:
    """Zeros, all in one row group."""
    numbers = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * dim)), dim)
    names = pa.array([str(i) for i in range(rows)]) if ids is None else ids
    pq.write_table(pa.table({"id": names, "embedding": numbers}), path, row_group_size=rows, **options)
    return path


def test_zeros_without_end_in_a_row_group(tmp_path: Path) -> None:
    most, message = measured(table(tmp_path / "x.parquet", 700, 100_000))
    assert message == "read"
    assert most < 600


def test_one_page_that_unpacks_to_hundreds_of_megabytes(tmp_path: Path) -> None:
    options = {"use_dictionary": False, "compression": "zstd", "data_page_size": 1 << 30}
    most, message = measured(table(tmp_path / "x.parquet", 700, 100_000, **options))
    assert "a row group unpacks to 5600" in message
    assert "write the file again, in smaller row groups" in message
    assert most < 100


@pytest.mark.parametrize("what", ["embeddings", "labels"])
def test_ids_of_many_megabytes_in_parquet(tmp_path: Path, what: str) -> None:
    texts = pa.array([c * 30_000_000 for c in "abc"])
    path = tmp_path / "x.parquet"
    if what == "embeddings":
        table(path, 3, 2, texts, compression="zstd")
    else:
        pq.write_table(pa.table({"id": texts, "speaker": ["x", "y", "z"]}), path, compression="zstd")
    most, message = measured(path, what)
    assert "a row group unpacks to 900" in message
    assert most < 100


def test_many_rows_with_one_long_id(tmp_path: Path) -> None:
    """A dictionary of one text of 10 MB, and 10,000 rows that have it: 100 GB as an array of ids."""
    code = pa.dictionary(pa.int32(), pa.string())
    texts = pa.array(["a" * 10_000_000, "b"])
    ids = pa.DictionaryArray.from_arrays(pa.array([0] * 9_999 + [1], pa.int32()), texts)
    path = table(tmp_path / "x.parquet", 10_000, 2, ids.cast(code), compression="zstd", store_schema=False)
    most, message = measured(path)
    assert "row 0 or after: an id is too long" in message
    assert most < 200


@pytest.mark.parametrize("data", [b"\n" * (1 << 27), b"a b\n" * (1 << 25)], ids=["blanks", "lines"])
def test_a_packed_list_of_nothing(tmp_path: Path, data: bytes) -> None:
    """A hundred megabytes in a hundred kilobytes."""
    (tmp_path / "utt2spk.gz").write_bytes(gzip.compress(data, 6))
    most, message = measured(tmp_path / "utt2spk.gz", "labels")
    assert "utt2spk.gz: holds more than 64 MB; if it is a list after all, unpack it first: gunzip" in message
    assert most < 200


def packed(path: Path, rows: int, dim: int) -> Path:
    """A matrix of zeros in one gzip chunk."""
    with h5py.File(path, "w") as f:
        d = f.create_dataset("embeddings", (rows, dim), "f4", chunks=(rows, dim), compression="gzip")
        d.id.write_direct_chunk((0, 0), zlib.compress(bytes(4 * rows * dim), 1))
        f["ids"] = np.array([str(i).encode() for i in range(rows)])
    return path


def test_one_huge_chunk_in_hdf5(tmp_path: Path) -> None:
    most, message = measured(packed(tmp_path / "x.h5", 700, 100_000))
    assert "embeddings: is packed in chunks of 280000000 bytes" in message
    assert "write it with smaller chunks" in message
    assert most < 100


def test_the_largest_chunk_in_hdf5_that_is_read(tmp_path: Path) -> None:
    most, message = measured(packed(tmp_path / "x.h5", 600, 100_000))
    assert message == "read"
    assert most < 1000


# -- what real files look like


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False, "compression": "zstd"}])
def test_a_large_row_group_of_real_numbers(tmp_path: Path, options: dict) -> None:
    """80 MB in one row group, more than may be unpacked of data that are suspiciously well packed."""
    X = np.random.default_rng(0).standard_normal((50_000, 400), np.float32)
    lists = pa.ListArray.from_arrays(pa.array(np.arange(0, X.size + 1, 400, np.int32)), pa.array(X.reshape(-1)))
    names = pa.array([str(i) for i in range(len(X))])
    pq.write_table(pa.table({"id": names, "embedding": lists}), tmp_path / "x.parquet", **options)
    assert pq.ParquetFile(tmp_path / "x.parquet").metadata.row_group(0).total_byte_size > 1 << 26
    ids, read = read_embeddings(tmp_path / "x.parquet").load()
    assert ids.tolist() == names.to_pylist()
    assert (read == X).all()


STORAGE = [{}, {"chunks": True}, {"compression": "gzip"}, {"chunks": (50, 100), "compression": "lzf"}]


@pytest.mark.parametrize("options", STORAGE)
def test_chunks_of_hdf5(tmp_path: Path, options: dict) -> None:
    ids, X = vectors(2000, 100)
    with h5py.File(tmp_path / "x.h5", "w") as f:
        f.create_dataset("embeddings", data=X, **options)
        f["ids"] = np.array([i.encode() for i in ids])
    assert by_id(*drained(read_embeddings(tmp_path / "x.h5"), 300)) == by_id(ids, X)
