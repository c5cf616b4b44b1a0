"""wespeaker's two-covariance PLDA: HDF5 with `mu` (d,), `transform` (d, d), `psi` (d,) and `offset` = -transform mu.

They mean what they mean in Kaldi. Newer files say in `normalize_length` and `subtract_train_set_mean` what wespeaker
does with a vector before; that is no part of the PLDA and is handed on as notes. wespeaker reads Kaldi's format too.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection
from typing import Any

import numpy as np

from duoplda.io._common import PARSER_ERRORS, PathLike, bad, check_float, open_binary
from duoplda.io.hdf5 import dataset, members, opened
from duoplda.io.kaldi_plda import DiagonalModel, check_features, checked

NAMES = ("mu", "transform", "psi")
STEPS = {
    "normalize_length": "wespeaker normalises the length of vectors before and again inside the PLDA; normalise yours",
    "subtract_train_set_mean": "wespeaker subtracts the mean of the training vectors before; subtract it from yours",
}


def is_wespeaker(names: Collection[str]) -> bool:
    """Is a file with these names in it a model of wespeaker?"""
    return set(NAMES) <= set(names)


def read_wespeaker(path: PathLike) -> tuple[DiagonalModel, list[str]]:
    """Read a model of wespeaker, and notes on what its vectors went through before."""
    with opened(path) as f:
        arrays = []
        for name in NAMES:
            d = dataset(path, f, name)
            check_float(path, name, d.dtype)
            check_features(path, name, max(d.shape, default=0))
            arrays.append(d.read())
        names = members(path, f)
        offset = _offset(path, f, arrays[0].shape) if "offset" in names else None
        notes = [text for name, text in STEPS.items() if name in names and _flag(path, f, name)]
    model = checked(path, *arrays)
    if offset is not None:
        expected = -model.transform @ model.mean
        close = 1e-4 * (np.abs(model.transform) @ np.abs(model.mean) + 1)
        if not (np.abs(offset.reshape(-1) - expected) <= close).all():
            raise bad(path, "offset", "is not -transform mu", "the file is of another kind, or damaged")
    return model, notes


def _offset(path: PathLike, f: Any, shape: tuple[int, ...]) -> Any:
    d = dataset(path, f, "offset")
    check_float(path, "offset", d.dtype)
    if d.shape != shape:
        raise bad(path, "offset", f"has shape {d.shape}, the mean {shape}", "they must agree")
    return d.read()


def _flag(path: PathLike, f: Any, name: str) -> bool:
    d = dataset(path, f, name)
    if d.size != 1 or d.dtype.kind not in "iub":
        raise bad(path, name, f"is {d.dtype} of shape {d.shape}, not 0 or 1")
    return bool(d.read().item())


def refuse_torch(path: PathLike) -> None:
    """A zip file that torch.save wrote is a pickle in disguise."""
    with open_binary(path) as f:
        try:
            with zipfile.ZipFile(f) as z:
                pickled = any(name.endswith("data.pkl") for name in z.namelist())
        except PARSER_ERRORS:  # not a sound zip file: the reader of zip files says what is wrong
            return
    if pickled:
        cause = "is a torch checkpoint, that is a pickle, which can run code when it is loaded"
        raise bad(path, "", cause, "save the PLDA by wespeaker's save_model (HDF5)")
