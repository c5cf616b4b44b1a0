"""Files of enrolled sides: their arrays and how they are checked. `Sides.save` writes them, `sides.load` reads them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import to_numpy
from duoplda.data.labels import Ints
from duoplda.errors import DuopldaError
from duoplda.io import read_container
from duoplda.model.parameters import LARGEST, Model
from duoplda.trials.tables import unpacked

SIDES_FILE = "duoplda-sides"  # what the header of a file says that it holds
MOST_RECORDINGS = 10**8  # of a session in a file, and sessions of a side: larger numbers are damage, and sums overflow
REAL = ("gamma", "z", "occasion_gamma", "kappa", "seen", "seen_inside")  # arrays of files that hold real numbers


def fingerprint(model: Model) -> str:
    """A hash of all parameters of a model, the names of its kinds of channels included."""
    digest = hashlib.sha256(json.dumps(model.kinds.tolist()).encode())
    for array in (model.mu, model.V, model.U, model.W):
        numbers = to_numpy(array).astype("<f8")
        digest.update(str(numbers.shape).encode() + numbers.tobytes())
    return digest.hexdigest()


class Enrolled(NamedTuple):
    """Who is enrolled in a file, as far as the file tells it without the model."""

    ids: NDArray[Any]  # (n,)
    sessions: Ints  # (n,) how many
    recordings: Ints  # (n,) how many
    model: str  # the fingerprint of the model


def read_enrolled(path: str | os.PathLike[str]) -> Enrolled:
    """Read who is enrolled in a file that `Sides.save` wrote."""
    arrays, header = read_container(path, [SIDES_FILE])
    ids, _ = checked(path, arrays)
    recordings = arrays["counts"] @ arrays["types"].sum(axis=1)
    return Enrolled(ids, arrays["counts"].sum(axis=1), recordings, str(header.get("model")))


def checked(
    path: str | os.PathLike[str], arrays: dict[str, NDArray[Any]], model: Model | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The ids and the names of sessions in a file of sides, or an error where its arrays do not fit together.

    Without a model the numbers of kinds and of factors are taken as they are.
    """
    try:
        ids = unpacked(arrays["ids"])
        session = unpacked(arrays["session"])
        n = len(ids)
        h = len(session)
        C = len(arrays["types"])
        widths = [arrays[name].shape[-1] for name in ("types", "gamma", "z")]
        K, ny, nx = widths if model is None else (model.K, model.ny, model.nx)
        shapes: dict[str, tuple[int, ...]] = {"types": (C, K), "counts": (n, C), "gamma": (n, ny), "z": (h, nx)}
        shapes |= {"session_side": (h,), "session_type": (h,)}
        if "occasion" in arrays:
            o = len(unpacked(arrays["occasion"]))
            shapes |= {"occasion_side": (o,), "occasion_counts": (o, C), "occasion_gamma": (o, ny)}
            shapes |= {"session_occasion": (h,), "kappa": (1,)}
        for name in ("seen", "seen_inside"):
            if name in arrays:
                shapes |= {"n_seen": (1,), name: (max(1, arrays[name].size),)}
        check_numbers(arrays, shapes)
        cell = arrays["session_side"] * C + arrays["session_type"]
        if (arrays["session_side"] >= n).any() or (arrays["session_type"] >= C).any():
            raise ValueError("its sessions name speakers, or types, that it does not hold")
        if (np.bincount(cell, minlength=n * C).reshape(n, C) > arrays["counts"]).any():
            raise ValueError("it has more named sessions than sessions")
        if "occasion" in arrays:
            side = arrays["occasion_side"]
            if (side >= n).any() or (arrays["session_occasion"] > o).any() or not 0 <= arrays["kappa"][0] <= 1:
                raise ValueError("its occasions name speakers, or its sessions occasions, that it does not hold")
            counts = np.zeros_like(arrays["counts"])
            np.add.at(counts, side, arrays["occasion_counts"])
            if (counts > arrays["counts"]).any():
                raise ValueError("it has more sessions in occasions than sessions")
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise DuopldaError(f"{path}: is damaged: {error}") from None
    return ids, session


def check_numbers(arrays: Mapping[str, NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse arrays of a file that have other shapes, or numbers that no enrolled sides have.

    The arrays named in `REAL` hold real numbers, the others counts or row numbers. Counts are added up and multiplied
    later, which must not overflow.
    """
    for name, shape in shapes.items():
        array = arrays[name]
        real = name in REAL
        if array.shape != shape or array.dtype != (np.float64 if real else np.int64):
            raise ValueError(f"{name} is {array.dtype} of shape {array.shape}, expected {shape}")
        # Comparisons with NaN are false.
        most = LARGEST if real else 2**62 if name == "n_seen" else MOST_RECORDINGS
        if not (np.abs(array) <= most if real else (array >= 0) & (array <= most)).all():
            allowed = f"finite numbers up to {most:g}" if real else f"numbers from 0 to {most:,}"
            raise ValueError(f"{name} is an array with other numbers than {allowed}")
