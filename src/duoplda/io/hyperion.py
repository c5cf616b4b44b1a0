"""hyperion's PLDA models: HDF5 with a JSON text `config` and a group of parameters that has the model's name.

    SPLDA     mu, V (ny, d), W        phi = mu + V'y + e,          W the precision of e, (d, d) or its diagonal (d,)
    PLDA      mu, V, U (nz, d), D     phi = mu + V'y + U'z + e,    D the diagonal of the precision of e, (d,)
    FRPLDA    mu, B, W (d, d)         phi = y + e, y ~ N(mu, B^-1), both precisions

hyperion's loadings are the transpose of ours, and its z is drawn for each recording, not for each session: U'U is part
of the noise of a recording, and is added to it here, so that every likelihood ratio stays as it was.
"""

from __future__ import annotations

import json

import numpy as np

from duoplda.io._atomic import atomic_path
from duoplda.io.common import PathLike, bad, listed, shown
from duoplda.io.hdf5 import created, dataset, floats, opened
from duoplda.io.kaldi_plda import DiagonalModel, Floats

HYPERION_ARRAYS = {"SPLDA": ("mu", "V", "W"), "PLDA": ("mu", "V", "U", "D"), "FRPLDA": ("mu", "B", "W")}


def read_hyperion(path: PathLike) -> tuple[tuple[Floats, Floats, Floats, Floats], str]:
    """Read a model of hyperion: its parameters, as `DiagonalModel.parameters` has them, and its class there."""
    with opened(path) as f:
        text = dataset(path, f, "config")
        if text.shape not in ((), (1,)) or text.dtype.kind != "S" or text.dtype.itemsize > 1 << 20:
            cause = f"is {text.dtype} of shape {text.shape}, not a JSON text"
            raise bad(path, "config", cause, "is it a hyperion model?")
        try:
            config = json.loads(bytes(text.read().reshape(-1)[0]))
            kind = config["class_name"]
            name = config.get("name")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            cause = "is not the JSON text of a model with a class_name"
            raise bad(path, "config", cause, "is it a hyperion model?") from e
        if kind not in HYPERION_ARRAYS:
            raise bad(path, "config", f"the model is {shown(kind)}", f"those read are {listed(list(HYPERION_ARRAYS))}")
        if name is not None and (not isinstance(name, str) or len(name) > 512 or "\0" in name):
            raise bad(path, "config", f"the name {shown(name)} is no name")
        prefix = f"{name}/" if name else ""
        arrays = {p: floats(path, f, prefix + p) for p in HYPERION_ARRAYS[kind]}
    mu = arrays["mu"]
    if mu.ndim != 1:
        raise bad(path, "mu", f"has shape {mu.shape}", "a mean is a vector")
    d = mu.size
    if kind == "FRPLDA":
        B = _precision(path, "B", arrays["B"], d)
        V = np.linalg.inv(np.linalg.cholesky(B)).T  # VV' = B^-1
    else:
        V = _loadings(path, "V", arrays["V"], d)
    if kind == "PLDA":
        U = _loadings(path, "U", arrays["U"], d)
        D = _precision(path, "D", arrays["D"], d)
        try:
            noise = np.linalg.inv(U @ U.T + np.linalg.inv(D))
        except np.linalg.LinAlgError as e:
            raise bad(path, "U", "leaves a within-class covariance that is singular", "train the model again") from e
        W = (noise + noise.T) / 2
    else:
        W = _precision(path, "W", arrays["W"], d)
    return (mu, V, np.zeros((d, 0)), W), kind


def write_hyperion(path: PathLike, model: DiagonalModel, *, force: bool = False) -> None:
    """Write an `SPLDA` of hyperion, whole or not at all, which its `SPLDA.load` and `NPModel.auto_load` read.

    Its ratios, by the book (`llr_1vs1`, `llr_NvsM_book`), are those of the model.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_hyperion(folder + "/plda.h5", DiagonalModel(np.zeros(2), np.eye(2), np.array([3.0, 0.0])))
    ...     (_, V, _, _), kind = read_hyperion(folder + "/plda.h5")
    >>> V.round(3).tolist(), kind
    ([[1.732], [0.0]], 'SPLDA')
    """
    mu, V, _, W = model.parameters()
    config = {"class_name": "SPLDA", "name": "SPLDA", "x_dim": len(mu), "y_dim": V.shape[1], "fullcov_W": True}
    config |= {"update_mu": True, "update_V": True, "update_W": True}  # what hyperion would update in further training
    with atomic_path(path, force=force) as temporary, created(temporary) as f:
        f.create_dataset("config", data=np.array(json.dumps(config), dtype="S"))
        for name, array in (("mu", mu), ("V", V.T), ("W", W)):
            f.create_dataset(f"SPLDA/{name}", data=array)


def _loadings(path: PathLike, name: str, array: Floats, d: int) -> Floats:
    """Check loadings of hyperion, and return them as ours are, with a column for each factor."""
    if array.ndim != 2 or array.shape[1] != d or array.shape[0] > d:
        raise bad(path, name, f"has shape {array.shape}", f"loadings have up to {d} rows of {d} numbers")
    return np.ascontiguousarray(array.T)


def _precision(path: PathLike, name: str, array: Floats, d: int) -> Floats:
    """Return a precision matrix (d, d), of which a file may have only the diagonal, if it is positive definite."""
    W = np.diag(array) if array.shape == (d,) else array
    # hyperion saves floats of 32 bits, so that the two halves of a symmetric matrix may differ by rounding.
    if W.shape != (d, d) or np.abs(W - W.T).max() > 1e-4 * np.abs(W).max():
        raise bad(path, name, f"is no symmetric {d} x {d} matrix (shape {array.shape})", "is it a precision?")
    W = (W + W.T) / 2
    low, high = np.linalg.eigvalsh(W)[[0, -1]]
    if not low > 1e-12 * high > 0:
        raise bad(path, name, f"is not positive definite (eigenvalues {low:.3g} to {high:.3g})", "is it a precision?")
    return W
