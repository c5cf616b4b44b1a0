"""PLDA models of other tools: their format is found by content, and they are read as plain arrays.

Each format has a module of its own. Our own models are read in `duoplda.estimators.files`.
"""

from dataclasses import dataclass

from duoplda.io.common import PathLike, bad, content, first_bytes, listed
from duoplda.io.hdf5 import members, opened
from duoplda.io.hyperion import read_hyperion
from duoplda.io.kaldi_plda import Floats, is_kaldi_plda, read_kaldi_plda
from duoplda.io.vbx import TRANSFORM_ARRAYS, Transform, read_transform, read_vbx, scaled
from duoplda.io.wespeaker import WESPEAKER_ARRAYS, read_wespeaker


@dataclass(frozen=True, eq=False)
class ForeignModel:
    """The PLDA of another tool, in our parameters: the first four are the arguments of `PLDA.from_parameters`.

    >>> import tempfile
    >>> import numpy as np
    >>> from duoplda import PLDA
    >>> from duoplda.io import DiagonalModel, write_kaldi_plda
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_kaldi_plda(folder + "/plda", DiagonalModel(np.zeros(2), np.eye(2), np.ones(2)))
    ...     model = read_model(folder + "/plda")
    >>> plda = PLDA.from_parameters(model.mean, model.speaker_loadings, model.session_loadings, model.noise_precision)
    >>> model.format, plda.noise_precision_.tolist()
    ('a Kaldi Plda', [[1.0, 0.0], [0.0, 1.0]])
    """

    mean: Floats  # (d,)
    speaker_loadings: Floats  # (d, ny)
    session_loadings: Floats  # (d, 0): none of these tools has a session level
    noise_precision: Floats  # (d, d), a precision and not a covariance
    format: str  # the format that was found, such as "a Kaldi Plda"
    notes: tuple[str, ...] = ()  # sentences on the preprocessing of vectors that the file asks for
    transform: Transform | None = None  # the preprocessing of vectors, if a second file has it

    @property
    def parameters(self) -> tuple[Floats, Floats, Floats, Floats]:
        """The four arrays that `PLDA.from_parameters` takes."""
        return self.mean, self.speaker_loadings, self.session_loadings, self.noise_precision


def read_model(path: PathLike, transform: PathLike | None = None) -> ForeignModel:
    r"""Read a Kaldi Plda (binary or text), a plda.npz of VBx or pyannote, or the HDF5 of hyperion or wespeaker.

    Models of our own are read by `PLDA.load` and `Backend.load`.

    Parameters
    ----------
    path : the PLDA
    transform : the second file of a pair: transform.h5 for VBx's Kaldi Plda, xvec_transform.npz for pyannote's or
        DiariZen's plda.npz. The PLDA is then for vectors of the length sqrt(dimensions), as ours are.

    Example
    -------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "plda")
    ...     _ = file.write_text("<Plda>  [ 1 2 ]\n [\n  1 0\n  0 1 ]\n [ 3 0 ]\n</Plda> ")
    ...     model = read_model(file)
    >>> model.format, model.mean.tolist(), model.speaker_loadings.round(3).tolist()
    ('a Kaldi Plda', [1.0, 2.0], [[1.732], [0.0]])
    """
    if transform is not None:
        return _read_pair(path, transform)
    if is_kaldi_plda(first_bytes(path)):
        return ForeignModel(*read_kaldi_plda(path).parameters(), "a Kaldi Plda")
    kind = content(path)
    if kind == "zip":
        return ForeignModel(*read_vbx(path).parameters(), "a plda.npz of VBx or pyannote")
    if kind != "hdf5":
        raise bad(path, "byte 0", "is no model that duoplda knows", "known: Kaldi Plda, plda.npz, HDF5, safetensors")
    with opened(path) as f:
        names = members(path, f)
    if set(WESPEAKER_ARRAYS) <= set(names):
        model, notes = read_wespeaker(path)
        return ForeignModel(*model.parameters(), "wespeaker's HDF5", tuple(notes))
    if "config" in names:
        parameters, class_name = read_hyperion(path)
        return ForeignModel(*parameters, f"hyperion's {class_name}")
    if set(TRANSFORM_ARRAYS) <= set(names):
        cause = "is the preprocessing (mean1, lda, mean2) and not the PLDA"
        raise bad(path, "", cause, "give the Kaldi plda beside it, and this file as --transform (transform=)")
    remedy = "wespeaker's or hyperion's is read"
    raise bad(path, "", f"is HDF5 without a PLDA in it (it has: {listed(sorted(names))})", remedy)


def _read_pair(path: PathLike, transform: PathLike) -> ForeignModel:
    """Read the two files of VBx, or of pyannote."""
    steps, tool = read_transform(transform)
    kaldi = is_kaldi_plda(first_bytes(path))
    if kaldi != (tool == "vbx") or not (kaldi or content(path) == "zip"):
        pairs = "a Kaldi Plda with transform.h5 (VBx), a plda.npz with xvec_transform.npz (pyannote, DiariZen)"
        cause = f"and {transform} are no pair: they are for vectors of different lengths"
        raise bad(path, "", cause, f"pairs are: {pairs}")
    model = read_kaldi_plda(path) if kaldi else read_vbx(path)
    if tool == "vbx":  # its vectors have the length 1, and ours have the length sqrt(k)
        model = scaled(model, len(model.mean) ** 0.5)
    if len(model.mean) != len(steps.mean2):
        cause = f"has {len(model.mean)} dimensions, and {transform} gives {len(steps.mean2)}"
        raise bad(path, "", cause, "give two files of one model")
    name = "a pair of VBx" if tool == "vbx" else "a pair of pyannote or DiariZen"
    return ForeignModel(*model.parameters(), name, transform=steps)
