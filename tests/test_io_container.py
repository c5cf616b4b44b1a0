"""The file format of models and of everything else we keep: what was written comes back, and nothing else is taken."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from duoplda.errors import DuopldaError
from duoplda.io import read_container, write_container

KIND = "duoplda-sides"
ARRAYS = {
    "matrix": np.arange(12.0).reshape(3, 4),
    "by columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "every second": np.arange(10)[::2],
    "big-endian": np.arange(4, dtype=">i4"),
    "single": np.array(2.5, np.float32),
    "none": np.zeros((0, 5)),
    "flags": np.array([True, False]),
}
HEADER = {"names": ["a", "é", "\u202e"], "nested": {"x": [1, 2.5, None, True]}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_container(tmp_path / "c", KIND, ARRAYS, HEADER)
    return tmp_path / "c"


def refusal(path: Path, kind: str = KIND) -> str:
    """The error that reading raises: one printable line that starts with the name of the file."""
    with pytest.raises(DuopldaError) as e:
        read_container(path, [kind])
    text = str(e.value)
    assert text.startswith(f"{path}: ")
    assert text.isprintable()
    return text.removeprefix(f"{path}: ")


def described(path: Path, text: str) -> Path:
    """A file whose header is `text`."""
    save_file({"a": np.zeros(2)}, path, {"duoplda": text})
    return path


def test_what_is_written_comes_back(path: Path) -> None:
    arrays, header = read_container(path, ["duoplda-calibration", KIND])
    assert header == {**HEADER, "format": KIND, "version": 1}
    assert set(arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array, strict=array.dtype.isnative)


def test_the_kind_is_not_taken_from_the_header(tmp_path: Path) -> None:
    write_container(tmp_path / "c", KIND, {}, {"format": "other", "version": 99})
    assert read_container(tmp_path / "c", [KIND])[1] == {"format": KIND, "version": 1}


def test_existing_files_are_kept_unless_forced(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(DuopldaError, match="exists already"):
        write_container(path, KIND, {}, {})
    assert path.read_bytes() == before
    write_container(path, KIND, {}, {}, force=True)
    assert read_container(path, [KIND])[0] == {}


@pytest.mark.parametrize(
    ("arrays", "header"),
    [
        ({"a": np.array(["text"])}, {}),
        ({"a": np.array([object()])}, {}),
        ({"a": np.zeros(2, complex)}, {}),
        ({}, {"a": object()}),
        ({}, {(1, 2): 3}),
    ],
)
def test_what_a_file_cannot_hold(tmp_path: Path, arrays: dict, header: dict) -> None:
    with pytest.raises(DuopldaError, match=r"c: cannot hold this \("):
        write_container(tmp_path / "c", KIND, arrays, header)
    assert not list(tmp_path.iterdir())


def test_cut_short_at_every_length(path: Path) -> None:
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 17), len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert "truncated or damaged" in refusal(path)
    path.write_bytes(whole + b"\0")
    assert "truncated or damaged" in refusal(path)


@pytest.mark.parametrize("seed", range(5))
def test_damaged_headers(path: Path, seed: int) -> None:
    """Every change of a byte is either seen or changes a name or a text and nothing else."""
    whole, rng = path.read_bytes(), np.random.default_rng(seed)
    end = 8 + struct.unpack("<Q", whole[:8])[0]
    for _ in range(60):
        data = bytearray(whole)
        data[rng.integers(end)] = rng.integers(256)
        path.write_bytes(data)
        message = ""
        try:
            arrays, header = read_container(path, [KIND])
            assert len(arrays) == len(ARRAYS)
            assert header["format"] == KIND
        except DuopldaError as e:
            message = str(e)
        assert message.isprintable()
        assert message.startswith(f"{path}: " * bool(message))


def test_deeply_nested_headers(tmp_path: Path) -> None:
    nested = "[" * 200_000 + "]" * 200_000
    path = described(tmp_path / "c", f'{{"format": "duoplda-sides", "version": 1, "x": {nested}}}')
    assert "is not a file of enrolled speakers of duoplda, or it is truncated or damaged" in refusal(path)


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}, {"duoplda": "null"}, {"duoplda": "[1]"}])
def test_safetensors_from_elsewhere(tmp_path: Path, metadata: dict | None) -> None:
    save_file({"a": np.zeros(2)}, tmp_path / "c", metadata)
    assert "is a safetensors file, but no file of enrolled speakers of duoplda" in refusal(tmp_path / "c")


@pytest.mark.parametrize("value", [1, None, ["x"], {"a": "b"}, 1.5])
def test_metadata_that_is_no_text(tmp_path: Path, value: object) -> None:
    header = json.dumps({"__metadata__": {"duoplda": value}}).encode()
    (tmp_path / "c").write_bytes(struct.pack("<Q", len(header)) + header)
    assert "truncated or damaged" in refusal(tmp_path / "c")


def test_another_kind_of_ours(path: Path) -> None:
    message = refusal(path, "duoplda-backend")
    assert message == "is a file of enrolled speakers of duoplda, not a model; give another file"


@pytest.mark.parametrize("kind", ['"\\u001b[31m"', "[1]", '{"a": 1}', "7"])
def test_kinds_nobody_knows(tmp_path: Path, kind: str) -> None:
    path = described(tmp_path / "c", f'{{"format": {kind}, "version": 1}}')
    assert "is a safetensors file, but no file of enrolled speakers" in refusal(path)


@pytest.mark.parametrize("version", ["0", "2", "-1", "true", "1.0", '"1"', "null", '"\\u001b[31mred"', "1e400", "[[]]"])
def test_versions_that_are_not_read(tmp_path: Path, version: str) -> None:
    path = described(tmp_path / "c", f'{{"format": "duoplda-sides", "version": {version}}}')
    assert "this duoplda reads version 1; install the duoplda that wrote it" in refusal(path)


@pytest.mark.parametrize("version", [1, 3])
def test_one_version_of_a_model_is_read(tmp_path: Path, version: int) -> None:
    path = described(tmp_path / "c", f'{{"format": "duoplda-backend", "version": {version}}}')
    assert f"has format version {version}, this duoplda reads version 2" in refusal(path, "duoplda-backend")


def test_no_file_and_no_regular_file(tmp_path: Path) -> None:
    assert "cannot read the file of enrolled speakers" in refusal(tmp_path / "nowhere")
    assert refusal(tmp_path) == "is a folder, not a file of enrolled speakers; give a file"


def test_names_of_files_are_shown_printably(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31mb\u202ec"
    path.write_bytes(b"no model")
    with pytest.raises(DuopldaError, match=r"a\\x1b\[31mb\\u202ec: is not a model of duoplda"):
        read_container(path, ["duoplda-backend"])
