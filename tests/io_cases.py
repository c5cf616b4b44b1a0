"""Small data that the tests of the io room share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from duoplda.errors import DuopldaError
from duoplda.io import Embeddings, read_embeddings

# every way to write embeddings: name of the case -> (suffix, options)
WRITERS = {
    "ark": (".ark", {}),
    "ark text": (".ark", {"text": True}),
    "scp": (".scp", {}),
    "scp text": (".scp", {"text": True}),
    "npz": (".npz", {}),
    "npy": (".npy", {}),
    "hdf5": (".h5", {}),
    "hdf5 each": (".hdf5", {"one_per_recording": True}),
    "parquet": (".parquet", {}),
}


def vectors(n: int = 50, dim: int = 5, dtype: str = "f4", seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ids of different lengths, some beyond ASCII, and numbers that need all their digits."""
    X = np.random.default_rng(seed).standard_normal((n, dim)).astype(dtype)
    ids = np.array([f"spk{i % 7}-{'é' * (i % 3 == 1)}{i:0{1 + i % 4}d}" for i in range(n)])
    return ids, X


def by_id(ids: np.ndarray, X: np.ndarray) -> dict[str, bytes]:
    """What a file holds, whatever its order."""
    return {i: x.tobytes() for i, x in zip(ids.tolist(), X, strict=True)}


def drained(embeddings: Embeddings, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """All chunks together, each of which must keep to `rows`."""
    chunks = list(embeddings.chunks(rows))
    assert all(len(ids) == len(X) <= rows for ids, X in chunks)
    return np.concatenate([ids for ids, _ in chunks]), np.concatenate([X for _, X in chunks])


@contextmanager
def pipe_of(data: bytes) -> Iterator[str]:
    """The name of a pipe, as the shell's `<(...)` gives it, from which these bytes can be read once."""
    reading, writing = os.pipe()
    try:
        os.write(writing, data)  # less than a pipe holds
        os.close(writing)
        yield f"/dev/fd/{reading}"
    finally:
        os.close(reading)


def leftovers(folder: Path) -> list[str]:
    """Temporary files that should not be there."""
    return [p.name for p in folder.iterdir() if p.name.startswith(".") or p.suffix == ".tmp"]


def failure(path: Path, **options: object) -> str:
    """The message of the error that reading the whole file raises."""
    with pytest.raises(DuopldaError) as e:
        read_embeddings(path, **options).load()
    text = str(e.value)
    assert text.startswith(str(path.parent))
    assert "\n" not in text
    return text.removeprefix(str(path) + ": ")
