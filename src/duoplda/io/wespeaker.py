"""wespeaker's two-covariance PLDA: HDF5 with `mu` (d,), `transform` (d, d), `psi` (d,) and `offset` = -transform mu.

They mean what they mean in Kaldi. Newer files say in `normalize_length` and `subtract_train_set_mean` how wespeaker
preprocesses vectors, which is no part of the PLDA and is returned as notes. wespeaker reads Kaldi's format, too.
"""

import numpy as np

from duoplda.io.common import PathLike, bad
from duoplda.io.hdf5 import dataset, floats, members, opened
from duoplda.io.kaldi_plda import DiagonalModel, checked

WESPEAKER_ARRAYS = ("mu", "transform", "psi")
WESPEAKER_STEPS = {  # the steps of wespeaker's preprocessing, and what users are told if a file asks for them
    "normalize_length": "wespeaker normalises the length of vectors before and again inside the PLDA; normalise yours",
    "subtract_train_set_mean": "wespeaker subtracts the mean of the training vectors before; subtract it from yours",
}


def read_wespeaker(path: PathLike) -> tuple[DiagonalModel, list[str]]:
    """Read a model of wespeaker, and notes on the preprocessing of its vectors."""
    notes = []
    with opened(path) as f:
        names = members(path, f)
        arrays = {name: floats(path, f, name) for name in (*WESPEAKER_ARRAYS, "offset") if name in names}
        for name in (step for step in WESPEAKER_STEPS if step in names):
            d = dataset(path, f, name)
            if set(d.shape) - {1} or d.dtype.kind not in "iub":
                raise bad(path, name, f"is {d.dtype} of shape {d.shape}, not 0 or 1")
            if d.read().item():
                notes.append(WESPEAKER_STEPS[name])
    model = checked(path, *(arrays[name] for name in WESPEAKER_ARRAYS))
    expected = -model.transform @ model.mean
    offset = arrays.get("offset", expected).reshape(-1)
    close = 1e-4 * (np.abs(model.transform) @ np.abs(model.mean) + 1)
    if offset.shape != expected.shape or not (np.abs(offset - expected) <= close).all():
        raise bad(path, "offset", "is not -transform mu", "the file is of another kind, or damaged")
    return model, notes
