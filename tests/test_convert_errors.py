"""Models of other tools that are damaged, hostile or of another kind: one line, exit code 1, nothing left behind."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duoplda import PLDA
from duoplda.errors import DuopldaError
from duoplda.io.hyperion import read_hyperion
from duoplda.io.kaldi_plda import read_kaldi_plda
from test_convert import collapsed, run, write_hyperion


def attempt(path: Path, read: Callable[[], Any]) -> Any:
    """What `read` gives, or None where it raises our error, of one line that names the file."""
    message = ""
    try:
        return read()
    except DuopldaError as e:
        message = str(e)
    assert str(path) in message
    assert "\n" not in message
    return None


def changed(**arrays: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        model = {"mean": np.zeros(2), "transform": np.eye(2), "psi": np.ones(2)} | arrays
        np.savez(path.with_suffix(".npz"), mu=model["mean"], tr=model["transform"], psi=model["psi"])
        path.with_suffix(".npz").rename(path)

    return write


def torch_like(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("archive/data.pkl", b"\x80\x02.")


def hyperion_like(**config: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with h5py.File(path, "w") as f:
            f.create_dataset("config", data=np.array(json.dumps(config), dtype="S"))

    return write


def huge_hyperion(path: Path) -> None:
    write_hyperion(
        path, "PLDA", None, mu=np.zeros(20000), V=np.ones((1, 20000)), U=np.ones((1, 20000)), D=np.ones(20000)
    )


GOOD = b"\0B<Plda> DV \4\1\0\0\0" + struct.pack("<d", 0) + b"DM \4\1\0\0\0\4\1\0\0\0" + struct.pack("<d", 1)
GOOD += b"DV \4\1\0\0\0" + struct.pack("<d", 2) + b"</Plda> "
WRONG: dict[str, tuple[bytes | Callable[[Path], None], str]] = {
    "empty": (b"", "empty"),
    "other": (b"hello", "no model that duoplda knows"),
    "pickle": (b"\x80\x04\x95abc", "pickle"),
    "torch": (torch_like, "pickle"),
    "cut in the header": (GOOD[:14], "cut short"),
    "cut in the numbers": (GOOD[:22], "mean at byte 9: is cut short by 3 bytes"),
    "cut at the end": (GOOD[:-8], "</Plda> expected"),
    "something after": (GOOD + b"x", "after </Plda>"),
    "huge dimension": (GOOD.replace(b"DV \4\1\0\0\0", b"DV \4\xff\xff\xff\x7f"), "dimension 2147483647"),
    "negative dimension": (GOOD.replace(b"DV \4\1\0\0\0", b"DV \4\xff\xff\xff\xff"), "dimension -1"),
    "size byte": (GOOD.replace(b"DM \4", b"DM \x08"), "size byte"),
    "compressed": (GOOD.replace(b"DM ", b"CM "), "compressed"),
    "a vector for a matrix": (GOOD.replace(b"DM ", b"DV "), "transform"),
    "NaN": (GOOD.replace(struct.pack("<d", 2), struct.pack("<d", np.nan)), "psi: has NaN"),
    "negative psi": (GOOD.replace(struct.pack("<d", 2), struct.pack("<d", -2)), "psi"),
    "text, no number": (b"<Plda> [ 1 x ]\n [ 1 0\n 0 1 ]\n [ 1 1 ]\n</Plda> ", "no number"),
    "text, ragged": (b"<Plda> [ 1 1 ]\n [ 1 0\n 0 ]\n [ 1 1 ]\n</Plda> ", "transform"),
    "text, no end": (b"<Plda> [ 1 1 ]\n [ 1 0\n 0 1 ", "transform"),
    "singular": (changed(transform=np.ones((2, 2))), "inverted"),
    "not square": (changed(transform=np.ones((2, 3))), "transform: has shape"),
    "integers": (changed(psi=np.array([1, 2])), "psi"),
    "objects": (changed(psi=np.array([{}, 1.0], object)), "pickled"),
    "no psi": (lambda p: np.savez(p.open("wb"), mu=np.zeros(2), tr=np.eye(2)), "has no array psi"),
    "pyannote's other file": (lambda p: np.savez(p.open("wb"), mean1=np.zeros(2), lda=np.eye(2)), "plda.npz beside it"),
    "HDF5 of something else": (lambda p: h5py.File(p, "w").create_dataset("a", data=1).file.close(), "without a PLDA"),
    "precisions too small to compute with": (changed(transform=1e-60 * np.eye(2)), "largest value 1e-60"),
    "hyperion, other class": (hyperion_like(class_name="GMM", name="GMM"), "'GMM'"),
    "hyperion, no class": (hyperion_like(name="GMM"), "class_name"),
    "hyperion, no parameters": (hyperion_like(class_name="SPLDA", name="SPLDA"), "no dataset"),
    "hyperion, a precision too large to be made": (huge_hyperion, "dimension 20000"),
    "hyperion, not positive": (
        lambda p: write_hyperion(p, "SPLDA", "a", mu=np.zeros(2), V=np.ones((1, 2)), W=np.array([[1, 2], [2, 1.0]])),
        "positive definite",
    ),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_wrong_files_are_one_line_and_leave_nothing(tmp_path: Path, case: str) -> None:
    content, words = WRONG[case]
    path = tmp_path / "model"
    path.write_bytes(content) if isinstance(content, bytes) else content(path)
    done = run(path, tmp_path / "out.safetensors")
    assert done.exit_code == 1, done.output
    assert str(path) in done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model"]


def test_the_good_file_of_the_wrong_ones_is_good(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(GOOD)
    assert read_kaldi_plda(tmp_path / "model").psi.tolist() == [2.0]


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        done = run(path, tmp_path / "out")
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1)


TEXT = b"<Plda>  [ 1 2 ]\n [\n  1 0\n  0 1 ]\n [ 3 0 ]\n</Plda> "


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good file with a few bytes changed, or cut; or anything at all."""
    kind = draw(st.sampled_from(["binary", "text", "any"]))
    if kind == "any":
        return draw(st.sampled_from([b"", b"\0B<Plda> ", b"<Plda> [", b"\0B<Plda> DV \4\2\0\0\0"])) + draw(st.binary())
    data = bytearray(GOOD if kind == "binary" else TEXT)
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(len(data) // 2, len(data)))]) if draw(st.booleans()) else bytes(data)


@given(data=damaged())
@settings(deadline=None, max_examples=300, database=None)
def test_fuzz_only_our_error_comes_out(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed"
    path.write_bytes(data)
    model = attempt(path, lambda: read_kaldi_plda(path))
    if model is None:
        return
    d = len(model.mean)
    assert model.transform.shape == (d, d)
    assert np.isfinite(model.transform).all()
    assert (model.psi >= 0).all()
    plda = PLDA.from_parameters(*model.parameters())
    assert np.isfinite(collapsed(plda)[0].psi).all()


@given(data=st.binary(max_size=40), at=st.integers(0, 3000))
@settings(deadline=None, max_examples=60, database=None)
def test_fuzz_hyperion(tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.h5"
    write_hyperion(path, "SPLDA", "a", mu=np.zeros(2), V=np.ones((1, 2)), W=np.eye(2))
    whole = bytearray(path.read_bytes())
    whole[at : at + len(data)] = data
    path.write_bytes(whole)
    found = attempt(path, lambda: read_hyperion(path))
    parameters = PLDA.from_parameters(*found[0]) if found else None
    assert parameters is None or np.isfinite(parameters.noise_precision_).all()
