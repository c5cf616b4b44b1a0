"""Our own mistakes come out as what they are; only what another library says of a file makes the file damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from duoplda.errors import DuopldaError
from duoplda.io import (
    Coded,
    Trials,
    hdf5,
    npy,
    npz,
    parquet,
    read_embeddings,
    read_trials,
    write_embeddings,
    write_trials,
)
from duoplda.io.common import guarded
from io_cases import WRITERS, vectors

MODULES = {"npz": npz, "npy": npy, "hdf5": hdf5, "hdf5 each": hdf5, "parquet": parquet}


@pytest.mark.parametrize("error", [TypeError, ValueError, KeyError, MemoryError, RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("case", MODULES)
def test_a_mistake_while_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, error: type[BaseException]
) -> None:
    suffix, options = WRITERS[case]
    path = tmp_path / f"x{suffix}"
    write_embeddings(path, *vectors(), **options)

    def broken(*args: object, **kwargs: object) -> None:
        raise error("our own mistake")

    monkeypatch.setattr(MODULES[case], "texts_of" if case == "parquet" else "as_ids", broken)
    with pytest.raises(error, match="our own mistake") as e:
        read_embeddings(path).load()
    assert not isinstance(e.value, DuopldaError)


def test_a_mistake_while_reading_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_trials(tmp_path / "t.h5", Trials(Coded.of(["m"]), Coded.of(["a"]), np.array([True])))

    def broken(*args: object) -> None:
        raise TypeError("our own mistake")

    monkeypatch.setattr(hdf5, "as_ids", broken)
    with pytest.raises(TypeError, match="our own mistake"):
        read_trials(tmp_path / "t.h5")


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, NameError, AssertionError])
def test_what_no_parser_says_of_a_file(error: type[BaseException]) -> None:
    with pytest.raises(error), guarded("x", "HDF5"):
        raise error("out of memory")


@pytest.mark.parametrize("error", [OSError, ValueError, KeyError, EOFError, RuntimeError, OverflowError])
def test_what_a_parser_says_of_a_file(error: type[Exception]) -> None:
    with pytest.raises(DuopldaError, match=r"x: cannot be read as HDF5 \(\w+: '?heap at 17'?\)"), guarded("x", "HDF5"):
        raise error("heap at 17")
