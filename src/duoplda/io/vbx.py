"""The model files of VBx, pyannote 4 and DiariZen: one of a PLDA, and one of the transform of vectors before it.

The PLDA has `mu` (k,), `tr` (k, k) and `psi` (k,), which mean what they mean in Kaldi. The transform has `mean1` (d,),
`lda` (d, k) and `mean2` (k,): two centrings and length normalisations with an LDA between them. The tools differ in
the lengths. With unit(x) = x / |x|, a vector becomes

    pyannote 4, DiariZen    sqrt(k) unit( sqrt(d) unit(x - mean1) lda - mean2 )     xvec_transform.npz and plda.npz
    VBx                     unit( unit(x - mean1) lda - mean2 )                     transform.h5 and a Kaldi Plda

pyannote's lengths are ours, and a pair is read into them: of VBx's pair, `mean2` is multiplied by sqrt(d), `mu` by
sqrt(k), and `tr` is divided by sqrt(k). Nothing else changes, and no likelihood ratio does. (d and k are the numbers of
rows and columns of `lda`; no tool prescribes them.)
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from duoplda.errors import DuopldaError
from duoplda.io._atomic import atomic_path, atomic_paths, check_output, writing
from duoplda.io.common import PathLike, bad, content, listed, model_array, need, system_error
from duoplda.io.hdf5 import created, floats, members, opened
from duoplda.io.kaldi_plda import DiagonalModel, Floats, checked, write_kaldi_plda
from duoplda.io.npz import load_array, names_in, write_arrays

VBX_ARRAYS = ("mu", "tr", "psi")
TRANSFORM_ARRAYS = ("mean1", "lda", "mean2")


@dataclass(frozen=True, eq=False)
class Transform:
    """The preprocessing of vectors before the PLDA: x -> sqrt(k) unit( sqrt(d) unit(x - mean1) lda - mean2 ).

    >>> transform = Transform(np.zeros(3), np.eye(3)[:, :2], np.zeros(2))
    >>> x = np.array([[3.0, 4.0, 0.0]]) - transform.mean1
    >>> x = 3**0.5 * x / np.linalg.norm(x) @ transform.lda - transform.mean2
    >>> (2**0.5 * x / np.linalg.norm(x)).round(3).tolist()
    [[0.849, 1.131]]
    """

    mean1: Floats  # (d,)
    lda: Floats  # (d, k)
    mean2: Floats  # (k,)


def read_vbx(path: PathLike) -> DiagonalModel:
    """Read a `plda.npz`, in its own scale."""
    names = names_in(path)
    if {"mean1", "lda"} <= set(names):
        cause = "is the preprocessing (mean1, lda, mean2) and not the PLDA"
        raise bad(path, "", cause, "give the plda.npz beside it, and this file as --transform (transform=)")
    _check_names(path, "plda.npz", VBX_ARRAYS, names)
    return checked(path, *(model_array(path, name, load_array(path, name)) for name in VBX_ARRAYS))


def write_vbx(path: PathLike, model: DiagonalModel, *, force: bool = False) -> int:
    """Write a `plda.npz`, whole or not at all; return how many values of psi were raised.

    VBx and pyannote divide by every psi, so that none may be 0: values below 1e-6 of the largest are raised to that.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_vbx(folder + "/plda.npz", DiagonalModel(np.zeros(2), np.eye(2), np.array([3.0, 0.0])))
    1
    """
    model, raised = _raised(model)
    with atomic_path(path, force=force) as temporary:
        _write_plda(temporary, model)
    return raised


def read_transform(path: PathLike) -> tuple[Transform, str]:
    """Read a `transform.h5` of VBx or an `xvec_transform.npz` of pyannote, and scale it for vectors of our length.

    Returns
    -------
    transform : in our scale
    tool : "vbx" or "pyannote"

    Example
    -------
    >>> import tempfile
    >>> model = DiagonalModel(np.ones(2), np.eye(2), np.ones(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths, _ = write_pair(folder, Transform(np.zeros(3), np.eye(3)[:, :2], np.zeros(2)), model, "pyannote")
    ...     transform, tool = read_transform(paths[0])
    >>> transform.lda.shape, tool
    ((3, 2), 'pyannote')
    """
    tool = {"hdf5": "vbx", "zip": "pyannote"}.get(content(path))
    if tool is None:
        raise bad(path, "byte 0", "is no transform that duoplda knows", "known: transform.h5, xvec_transform.npz")
    with opened(path) if tool == "vbx" else nullcontext() as f:
        names = names_in(path) if f is None else members(path, f)
        if set(VBX_ARRAYS) <= set(names) and "lda" not in names:
            remedy = "give the file with mean1, lda, mean2"
            raise bad(path, "", "is the PLDA (mu, tr, psi) and not the transform", remedy)
        _check_names(path, "transform", TRANSFORM_ARRAYS, names)
        arrays = [
            model_array(path, name, load_array(path, name)) if f is None else floats(path, f, name)
            for name in TRANSFORM_ARRAYS
        ]
    mean1, lda, mean2 = arrays
    if lda.ndim != 2 or mean1.size != lda.shape[0] or mean2.size != lda.shape[1]:
        shapes = ", ".join(f"{name} {a.shape}" for name, a in zip(TRANSFORM_ARRAYS, arrays, strict=True))
        raise bad(path, "lda", f"the shapes do not fit: {shapes}", "mean1 has lda's rows, mean2 its columns")
    if not lda.any(axis=0).all():
        raise bad(path, "lda", "has columns of zeros", "train the transform again")
    mean2 = mean2.reshape(-1) * (np.sqrt(len(lda)) if tool == "vbx" else 1.0)
    return Transform(mean1.reshape(-1), lda, mean2), tool


def write_pair(
    folder: PathLike,
    transform: Transform,
    model: DiagonalModel,
    tool: str,
    *,
    force: bool = False,
    inputs: Iterable[PathLike | None] = (),
) -> tuple[list[Path], int]:
    """Write the two files of "pyannote" (for DiariZen too) or "vbx" into a folder, which is made if it is not there.

    Parameters
    ----------
    folder : xvec_transform.npz and plda.npz, or transform.h5 and plda, are written there
    transform, model : for vectors of our length; small values of psi are raised, as by `write_vbx`
    force : replace existing files; otherwise they are an error
    inputs : files that are never replaced

    Returns
    -------
    paths : the two files
    raised : how many values of psi were raised

    Example
    -------
    >>> import tempfile
    >>> transform = Transform(np.zeros(3), np.eye(3)[:, :2], np.zeros(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths, _ = write_pair(folder, transform, DiagonalModel(np.ones(2), np.eye(2), np.ones(2)), "pyannote")
    ...     read_vbx(paths[1]).mean.tolist()
    [1.0, 1.0]
    """
    d, k = transform.lda.shape
    if len(model.mean) != k:
        raise DuopldaError(f"the transform gives {k} dimensions, the PLDA has {len(model.mean)}")
    model, raised = _raised(model)
    if tool == "vbx":
        transform = Transform(transform.mean1, transform.lda, transform.mean2 / np.sqrt(d))
        model = scaled(model, 1 / np.sqrt(k))
    steps = {name: np.ascontiguousarray(getattr(transform, name)) for name in TRANSFORM_ARRAYS}
    names = {"pyannote": ("xvec_transform.npz", "plda.npz"), "vbx": ("transform.h5", "plda")}
    paths = [Path(folder, name) for name in names[tool]]
    if tool == "vbx":
        need("h5py")
    for path in paths if os.path.isdir(folder) else ():
        check_output(path, force, inputs)
    with _made_folder(folder), atomic_paths(*paths, force=force) as (first, second):
        with writing(paths[0]):
            if tool == "pyannote":
                write_arrays(first, steps)
            else:
                with created(first) as f:
                    for name, array in steps.items():
                        f.create_dataset(name, data=array)
        with writing(paths[1]):
            if tool == "pyannote":
                _write_plda(second, model)
            else:
                write_kaldi_plda(second, model, force=True)
    return paths, raised


@contextmanager
def _made_folder(path: PathLike) -> Iterator[None]:
    """Make a folder if it does not exist, and remove it again where nothing could be written to it."""
    made = False
    try:
        os.mkdir(path)
        made = True
    except FileExistsError:
        if not os.path.isdir(path):
            raise bad(path, "", "is a file", "two files are written: give the name of a folder") from None
    except FileNotFoundError as e:
        parent = os.path.dirname(os.path.abspath(path))
        raise bad(path, "", "its folder does not exist", f"create it first: mkdir -p {parent}") from e
    except (OSError, ValueError) as e:
        raise system_error(path, e) from e
    try:
        yield
    except BaseException:
        if made:
            with suppress(OSError):  # another process may have put something there
                os.rmdir(path)
        raise


def _check_names(path: PathLike, what: str, wanted: tuple[str, str, str], names: list[str]) -> None:
    """Check that a file has the three arrays that it should have."""
    absent = [name for name in wanted if name not in names]
    if absent:
        remedy = f"a {what} has {wanted[0]}, {wanted[1]} and {wanted[2]}; this has {listed(sorted(names))}"
        raise bad(path, "", f"has no array {listed(absent)}", remedy)


def _raised(model: DiagonalModel) -> tuple[DiagonalModel, int]:
    """Raise small values of psi, by which both tools divide; return how many there were."""
    least = 1e-6 * model.psi.max()
    return DiagonalModel(model.mean, model.transform, np.maximum(model.psi, least)), int((model.psi < least).sum())


def scaled(model: DiagonalModel, factor: float) -> DiagonalModel:
    """Return the model for vectors that are `factor` times as long."""
    return DiagonalModel(model.mean * factor, model.transform / factor, model.psi)


def _write_plda(out: Path, model: DiagonalModel) -> None:
    """Write the arrays of a `plda.npz`."""
    write_arrays(out, {"mu": model.mean, "tr": np.ascontiguousarray(model.transform), "psi": model.psi})
