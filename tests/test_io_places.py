"""Files that are not there, options that do not fit, libraries that are missing, ids that are compared."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from duoplda.data.labels import keys
from duoplda.errors import DuopldaError
from duoplda.io import read_embeddings, read_enrollment, read_labels, read_scores, read_trials, write_embeddings
from io_cases import failure, vectors

READERS: list[Callable] = [lambda p: read_embeddings(p).load(), read_labels, read_trials, read_enrollment, read_scores]


@pytest.mark.parametrize("read", READERS)
def test_places_where_no_file_is(tmp_path: Path, read: Callable) -> None:
    (tmp_path / "empty").write_bytes(b"")
    for name, message in (
        ("nowhere", "nowhere: no such file or directory; check the name"),
        (".", "is a folder; give a file"),
        ("empty", "is empty"),
        ("empty/x", "not a directory"),
        ("a\0b", "null"),
    ):
        with pytest.raises(DuopldaError, match=message) as e:
            read(f"{tmp_path}/{name}")
        assert "\n" not in str(e.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("read", READERS)
def test_a_file_without_permission(tmp_path: Path, read: Callable) -> None:
    (tmp_path / "x").write_text("a b\n")
    (tmp_path / "x").chmod(0)
    with pytest.raises(DuopldaError, match="permission denied"):
        read(tmp_path / "x")


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    write_embeddings(tmp_path / "x.ark", *vectors())
    assert "is ark, which has its own ids" in failure(tmp_path / "x.ark", ids=["a"])
    assert "is ark, whose parts have no names" in failure(tmp_path / "x.ark", columns={"vector": "X"})
    with pytest.raises(DuopldaError, match="chunk_size must be at least 1, got 0"):
        read_embeddings(tmp_path / "x.ark", chunk_size=0)
    with pytest.raises(DuopldaError, match="at least one row, got rows=0"):
        next(read_embeddings(tmp_path / "x.ark").chunks(0))
    (tmp_path / "x").write_bytes(b"justoneword")
    assert "is no format known for embeddings; known suffixes: .ark .scp" in failure(tmp_path / "x")


def test_hashes_of_ids_do_not_depend_on_width() -> None:
    short, wide = np.array(["a", "bc"]), np.array(["a", "bc"], dtype="U9")
    np.testing.assert_array_equal(keys(short), keys(wide))
    many = np.array([f"{i}" for i in range(20000)])
    assert len(np.unique(keys(many))) == 20000


def test_a_missing_library_is_named_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "x.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + b"\0" * 100)
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    code = """if True:
        import sys
        import duoplda.io as io
        sys.modules["h5py"] = sys.modules["pyarrow"] = None
        for name, path in (("read_embeddings", "x.h5"), ("read_trials", "x.h5"), ("read_embeddings", "x.parquet"),
                           ("read_labels", "x.parquet")):
            try:
                getattr(io, name)(path)
            except io.embeddings.DuopldaError as e:
                print(e)
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    expected = [f"{m} is not installed; install it with: pip install duoplda[files]" for m in ("h5py", "pyarrow")]
    assert done.stdout.splitlines() == [expected[0]] * 2 + [expected[1]] * 2
