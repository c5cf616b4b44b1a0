"""VBx and pyannote: `plda.npz` with `mu` (d,), `tr` (d, d) and `psi` (d,), which mean what they mean in Kaldi.

pyannote keeps a second file beside it, `xvec_transform.npz` (`mean1`, `lda`, `mean2`): two centrings and length
normalisations with an LDA between them. It belongs to the preprocessing and is refused here with a word on that.
"""

import numpy as np

from duoplda.io._atomic import atomic_path
from duoplda.io._common import PathLike, bad, check_float, listed
from duoplda.io.kaldi_plda import DiagonalModel, checked
from duoplda.io.npz import load_array, names_in, write_arrays

NAMES = ("mu", "tr", "psi")
FLOOR = 1e-6  # of the largest psi: both readers divide by every psi


def read_vbx(path: PathLike) -> DiagonalModel:
    """Read a `plda.npz`."""
    names = names_in(path)
    if {"mean1", "lda"} <= set(names):
        cause = "is the preprocessing (mean1, lda, mean2) and not the PLDA"
        raise bad(path, "", cause, "give the plda.npz beside it")
    absent = [name for name in NAMES if name not in names]
    if absent:
        remedy = f"a plda.npz has mu, tr and psi; this has {listed(names)}"
        raise bad(path, "", f"has no array {listed(absent)}", remedy)
    arrays = {name: load_array(path, name) for name in NAMES}
    for name, array in arrays.items():
        check_float(path, name, array.dtype)
    return checked(path, *arrays.values())


def write_vbx(path: PathLike, model: DiagonalModel, *, force: bool = False) -> int:
    """Write a `plda.npz`, whole or not at all; return how many values of psi were raised.

    Both VBx and pyannote divide by every psi, so that none may be 0: the least is FLOOR of the largest.
    """
    least = FLOOR * model.psi.max()
    arrays = {"mu": model.mean, "tr": np.ascontiguousarray(model.transform), "psi": np.maximum(model.psi, least)}
    with atomic_path(path, force=force) as temporary:
        write_arrays(temporary, arrays)
    return int((model.psi < least).sum())
