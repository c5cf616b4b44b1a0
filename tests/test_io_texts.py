"""Texts from files and names of files cannot steer the terminal that shows a message."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duoplda.errors import DuopldaError, printable, some
from duoplda.io import read_embeddings, read_enrollment, read_labels, read_trials, write_embeddings, write_map

STEERING = [
    *map(chr, range(32)),
    *map(chr, range(127, 160)),
    "\u061c",
    "\u200e",
    "\u200f",
    *map(chr, range(0x2028, 0x202F)),
    *map(chr, range(0x2066, 0x206A)),
    "\ud800",
    "\udfff",
]
HARMLESS = [" ", "~", "\xa0", "é", "\u200c", "\u200d", "א", "ع", "\U0001f600", "\u202f"]
IN_FILES = ["\x1b", "\x7f", "\x80", "\x9b", "\u061c", "\u200f", "\u202e", "\u2066", "\u2028"]


@pytest.mark.parametrize("character", STEERING, ids=ascii)
def test_steering_characters_are_written_out(character: str) -> None:
    assert printable(f"a{character}b") == f"a{ascii(character)[1:-1]}b"
    assert printable(f"a{character}b").isascii()
    assert printable(f"a{character}b", keep=character) == f"a{character}b"


@pytest.mark.parametrize("character", HARMLESS, ids=ascii)
def test_other_characters_stay(character: str) -> None:
    assert printable(f"a{character}b") == f"a{character}b"


def test_anything_can_be_shown() -> None:
    assert printable(Path("a\x1bb")) == "a\\x1bb"
    assert printable(b"\x1b") == "b'\\x1b'"

    class Loud:
        def __repr__(self) -> str:
            return "\x1b[31m"

    assert some([Loud(), "\x1b", 1, np.str_("\x9b")]) == "\\x1b[31m, '\\x1b', 1, '\\x9b'"


def message(read: object, *args: object, **options: object) -> str:
    with pytest.raises(DuopldaError) as e:
        read(*args, **options)  # type: ignore[operator]
    text = str(e.value)
    assert printable(text) == text
    return text


def stored(path: Path, ids: list[str]) -> None:
    """A file with these ids, whatever is in them."""
    X = np.ones((len(ids), 2))
    if path.suffix == ".npz":
        np.savez(path, embeddings=X, ids=ids)
    elif path.suffix == ".h5":
        with h5py.File(path, "w") as f:
            f["embeddings"], f["ids"] = X, np.array([i.encode() for i in ids])
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({"id": ids, "embedding": X.tolist()}), path)
    elif path.suffix == ".npy":
        np.save(path, X)
        path.with_suffix(".ids").write_text("".join(f"{i}\n" for i in ids), encoding="utf-8")
    else:
        lines = [f"{i}  [ 1 1 ]\n".encode() for i in ids]
        path.with_suffix(".ark").write_bytes(b"".join(lines))
        if path.suffix == ".scp":
            at = [sum(map(len, lines[:k])) + len(i.encode()) + 1 for k, i in enumerate(ids)]
            text = "".join(f"{i} {path.with_suffix('.ark')}:{o}\n" for i, o in zip(ids, at, strict=True))
            path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("character", [*IN_FILES, "é"], ids=ascii)
@pytest.mark.parametrize("suffix", [".npz", ".h5", ".parquet", ".ark", ".scp", ".npy"])
def test_such_ids_are_neither_written_nor_read(tmp_path: Path, character: str, suffix: str) -> None:
    path, ids = tmp_path / f"x{suffix}", ["a", f"b{character}c", "d"]
    stored(path, ids)
    if character == "é":
        assert read_embeddings(path).load()[0].tolist() == ids
        return
    assert "control characters" in message(lambda: read_embeddings(path).load())
    assert "control characters" in message(write_embeddings, path, ids, np.ones((3, 2)), force=True)


@pytest.mark.parametrize("character", IN_FILES, ids=ascii)
def test_such_ids_are_refused_in_lists(tmp_path: Path, character: str) -> None:
    path = tmp_path / "list"
    for text, read in (
        (f"a b{character}c\n", read_labels),
        (f"a b{character}c target\n", read_trials),
        (f"a b d{character}c\n", read_enrollment),
        (f"id,speaker\na,b{character}c\n", read_labels),
    ):
        path.write_text(text, encoding="utf-8")
        message(read, path)
    message(write_map, tmp_path / "map", ["a"], [f"b{character}c"])


def test_names_inside_an_scp(tmp_path: Path) -> None:
    (tmp_path / "x.scp").write_text("a no\x1b[31m\u202ewhere.ark:3\n")
    assert r"no\x1b[31m\u202ewhere.ark is neither here" in message(read_embeddings, tmp_path / "x.scp")


def test_names_of_files(tmp_path: Path) -> None:
    assert r"no\x1b[31mwhere\x9b" in message(read_embeddings, tmp_path / "no\x1b[31mwhere\x9b.npz")
