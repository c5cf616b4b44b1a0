"""Model files with absurd numbers in them: refused in one line that names the file, or a model that can be used."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duoplda import PLDA, Backend
from duoplda.datasets import make_recordings
from duoplda.errors import DuopldaError
from duoplda.io import DiagonalModel, read_container, write_container, write_kaldi_plda
from duoplda.workflows.convert import load_model

pytestmark = pytest.mark.filterwarnings("ignore::duoplda.DomainWarning")
fuzz = settings(deadline=None, max_examples=40, database=None)
options = {"n_dimensions": 4, "n_speaker_factors": 2, "n_session_factors": 2}
X, SPEAKER, SESSION, _ = make_recordings(20, (2, 3), 2, **options, seed=0)
Write = Callable[[Path, dict[str, Any]], None]

NUMBERS = [0.0, -1.0, 5e-324, 1e-310, 1e-200, 1e-155, 1e-60, 1e-20, 1e-8, 1e5, 1e8, 1e12, 1e20, 1e60, 1e101]
NUMBERS += [1e150, 1e155, 1e200, 1e307, 1.7e308, -1e155, -1.7e308, np.inf, -np.inf, np.nan]


def diagonal(write: Callable[[Path, DiagonalModel], None]) -> tuple[dict[str, Any], Write]:
    rng = np.random.default_rng(1)
    arrays = {"mean": rng.normal(size=4), "transform": rng.normal(size=(4, 4)) + 3 * np.eye(4), "psi": np.arange(4.0)}
    return arrays, lambda path, changed: write(path, DiagonalModel(**changed))


def npz(path: Path, model: DiagonalModel) -> None:
    with path.open("wb") as file:
        np.savez(file, mu=model.mean, tr=model.transform, psi=model.psi)


def wespeaker(path: Path, model: DiagonalModel) -> None:
    with h5py.File(path, "w") as file, np.errstate(all="ignore"):
        for name, array in {"mu": model.mean, "transform": model.transform, "psi": model.psi}.items():
            file.create_dataset(name, data=array)
        file.create_dataset("offset", data=-model.transform @ model.mean)


def hyperion(kind: str) -> tuple[dict[str, Any], Write]:
    V = np.random.default_rng(2).normal(size=(2, 4))
    arrays = {
        "SPLDA": {"mu": np.ones(4), "V": V, "W": 2 * np.eye(4) + 1},
        "PLDA": {"mu": np.ones(4), "V": V, "U": V[::-1], "D": np.ones(4)},
        "FRPLDA": {"mu": np.ones(4), "B": np.eye(4) + 1, "W": 2 * np.eye(4) + 1},
    }[kind]

    def write(path: Path, changed: dict[str, Any]) -> None:
        with h5py.File(path, "w") as file:
            file.create_dataset("config", data=np.array(json.dumps({"class_name": kind}), dtype="S"))
            for name, array in changed.items():
                file.create_dataset(name, data=array)

    return arrays, write


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture(scope="module")
def formats(folder: Path) -> dict[str, tuple[dict[str, Any], Write]]:
    """Of each format the arrays of a sound model, and how they are written."""
    plda = PLDA(2, 2, tol=1e-2)
    one = Backend(lda=3, plda=plda).fit(X, SPEAKER, session=SESSION)
    one.calibrate([-3.0, 1.0, -1.0, 3.0], [False, False, True, True]).save(folder / "one")
    kind = np.array(["a", "b"])[np.arange(len(X)) % 2]
    by_kind = Backend(plda=plda, center_by_channel=True, whiten=False, length_norm=False)
    by_kind.fit(X, SPEAKER, session=SESSION, channel=kind).save(folder / "kinds")
    all_formats = {f"hyperion {kind}": hyperion(kind) for kind in ("SPLDA", "PLDA", "FRPLDA")}
    for name, write in {"Kaldi": write_plda, "npz": npz, "wespeaker": wespeaker}.items():
        all_formats[name] = diagonal(write)
    for name in ("one", "kinds"):
        arrays, header = read_container(folder / name, ["duoplda-backend"])
        all_formats[name] = arrays, ours(header)
    return all_formats


def write_plda(path: Path, model: DiagonalModel) -> None:
    write_kaldi_plda(path, model, force=True)


def ours(header: dict[str, Any]) -> Write:
    return lambda path, changed: write_container(path, "duoplda-backend", changed, header, force=True)


def use(backend: Backend) -> None:
    """Score, sum up and convert recordings; what comes out is finite."""
    rows = np.random.default_rng(0).normal(size=(5, backend.n_features_in_))
    enrolled = backend.enroll(rows, ["a", "a", "b", "b", "c"], ["1", "2", "3", "3", "4"])
    assert np.isfinite(backend.llr(enrolled, backend.enroll(rows[::-1], np.arange(5)))).all()
    assert np.isfinite(backend.cluster(rows).log_posterior)
    model, _ = backend.collapsed()
    assert np.isfinite(model.transform).all()
    assert backend.summary()["n_dimensions"] == len(model.mean)


FORMATS = ["one", "kinds", "Kaldi", "npz", "wespeaker", "hyperion SPLDA", "hyperion PLDA", "hyperion FRPLDA"]


@pytest.mark.parametrize("name", FORMATS)
@fuzz
@given(data=st.data())
def test_absurd_numbers(folder: Path, formats: dict[str, Any], name: str, data: st.DataObject) -> None:
    """Nothing hangs, and nothing but our error comes out, at loading or later."""
    arrays, write = formats[name]
    array = data.draw(st.sampled_from(sorted(key for key, array in arrays.items() if array.size)))
    number = data.draw(st.sampled_from(NUMBERS))
    changed = np.array(arrays[array], float)
    if data.draw(st.booleans()):
        with np.errstate(all="ignore"):
            changed *= number
    else:
        changed.reshape(-1)[data.draw(st.integers(0, changed.size - 1))] = number
    path = folder / "changed"
    write(path, {**arrays, array: changed})
    loaded = False
    message = ""
    try:
        backend, _ = load_model(path)
        loaded = True
        use(backend)
    except DuopldaError as error:
        message = str(error)
    assert loaded or str(path) in message
    assert "\n" not in message


@pytest.mark.parametrize("name", FORMATS)
def test_the_sound_models_are_used(folder: Path, formats: dict[str, Any], name: str) -> None:
    arrays, write = formats[name]
    write(folder / "sound", arrays)
    use(load_model(folder / "sound")[0])
