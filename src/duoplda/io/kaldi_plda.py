r"""Kaldi's `Plda`, binary and text, and `DiagonalModel`, which VBx's and wespeaker's models are read as, too.

All three have a mean, a transform A and a vector psi, so that for a recording phi of some speaker

    A (phi - mean) has within-class covariance I and between-class covariance diag(psi):
    within = A^-1 A'^-1,   between = A^-1 diag(psi) A'^-1

which in our letters is V = A^-1 diag(psi)^1/2, no U, and the **precision** W = A'A (what Kaldi and wespeaker call W is
a covariance). There is no session level: `duoplda.model.collapse` adds the sessions' variance to the noise.

A binary file is `\0B<Plda> `, then the mean `DV \4 int32 d` and its numbers, the transform `DM \4 int32 d \4 int32 d`
and its numbers by rows, psi as the mean, and `</Plda> `; with `F` for `D` the numbers are floats. A text file is
`<Plda>`, the same three as `[ 1 2 ]`, rows of the matrix on lines of their own, and `</Plda>`.
"""

import math
import struct
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.io._atomic import atomic_path
from duoplda.io.ark import binary_header, skip_blanks
from duoplda.io.common import (
    MAX_FEATURES,
    PathLike,
    bad,
    check_dim,
    first_bytes,
    open_binary,
    shown,
)

Floats = NDArray[np.float64]
WRITE_AGAIN = "copy or write the file again"  # the remedy for a file that is cut short or damaged


@dataclass(frozen=True, eq=False)
class DiagonalModel:
    """A model without a session level, in Kaldi's parameters: `mean` (d,), `transform` (d, d), `psi` (d,).

    >>> mean, V, U, W = DiagonalModel(np.zeros(1), np.array([[2.0]]), np.array([9.0])).parameters()
    >>> V.tolist(), U.shape, W.tolist()  # standard deviations: between speakers 3 / 2, within them 1 / 2
    ([[1.5]], (1, 0), [[4.0]])
    """

    mean: Floats
    transform: Floats
    psi: Floats

    def parameters(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Return mean (d,), speaker loadings (d, ny), session loadings (d, 0) and noise precision (d, d).

        A direction without speaker variance gets no factor.
        """
        used = np.flatnonzero(self.psi > 0)
        V = np.linalg.solve(self.transform, np.diag(np.sqrt(self.psi))[:, used])
        return self.mean, V, np.zeros((len(self.mean), 0)), self.transform.T @ self.transform


def checked(path: PathLike, *arrays: ArrayLike) -> DiagonalModel:
    """Check the mean, the transform and the psi of a file, and return them as a model."""
    mean, transform, psi = (np.array(a, np.float64) for a in arrays)
    mean, psi = (a.reshape(-1) if a.ndim == 2 and 1 in a.shape else a for a in (mean, psi))
    d = check_dim(path, "mean", mean.size, MAX_FEATURES)
    for place, array, shape in (("mean", mean, (d,)), ("transform", transform, (d, d)), ("psi", psi, (d,))):
        if array.shape != shape:
            raise bad(path, place, f"has shape {array.shape}, not {shape}, as the mean has {d} dimensions", WRITE_AGAIN)
        if not np.isfinite(array).all():
            raise bad(path, place, "has NaN or infinity in it", "train the model again")
    low = float(psi.min())
    high = float(psi.max())
    if not high > 0 or low < -1e-6 * high:
        cause = f"has values from {low:.3g} to {high:.3g}"
        raise bad(path, "psi", cause, "between-class variances are not negative, and some are positive")
    scale = float(np.abs(transform).max())
    condition = np.inf
    # A decomposition of numbers whose squares overflow or underflow may never return. The precision has the squares of
    # singular values from `scale` down to scale / 1e7, which must be within what a model may have (1e-100 to 1e100).
    if 1e-40 < scale < 1e40 and high < 1e100 and np.abs(mean).max() < 1e100:
        with np.errstate(all="ignore"), suppress(np.linalg.LinAlgError):
            condition = float(np.linalg.cond(transform))
    # The condition of W is the square of this; at 1e14, double precision leaves two correct digits.
    if not condition < 1e7:
        cause = f"cannot be inverted in double precision (condition {condition:.3g}, largest value {scale:.3g})"
        raise bad(path, "transform", cause, "the model is singular, or the file is damaged")
    return DiagonalModel(mean, transform, psi.clip(0.0))


def is_kaldi_plda(start: bytes) -> bool:
    """Say whether a file is a Kaldi `Plda`, by its first bytes."""
    return start.removeprefix(b"\0B").lstrip(b" \t\r\n").startswith(b"<Plda>")


def read_kaldi_plda(path: PathLike) -> DiagonalModel:
    """Read a Kaldi `Plda`, binary or text; `duoplda.io.read_model` has an example."""
    if not is_kaldi_plda(first_bytes(path)):
        raise bad(path, "byte 0", "does not start with <Plda>", "give a Kaldi Plda, as ivector-compute-plda writes it")
    most = 1 << 30  # bytes; a Plda of 8192 dimensions has half of that
    with open_binary(path) as f:
        buf = bytearray(f.read(most + 1))
    if len(buf) > most:
        raise bad(path, "", f"has more than {most} bytes, and no Plda has", "is it another file?")
    binary = buf[:2] == b"\0B"
    read = _binary if binary else _text
    pos = _token(path, buf, 2 if binary else 0, b"<Plda>")
    mean, pos = read(path, buf, pos, "mean", 1)
    transform, pos = read(path, buf, pos, "transform", 2)
    psi, pos = read(path, buf, pos, "psi", 1)
    pos = _token(path, buf, pos, b"</Plda>")
    if buf[pos:].strip():
        raise bad(path, f"byte {pos}", "there is something after </Plda>", "the file may be damaged")
    return checked(path, mean, transform, psi)


def _token(path: PathLike, buf: bytearray, pos: int, token: bytes) -> int:
    """Skip white space, a token, which must be there, and the blank after it; return where that ends."""
    pos = skip_blanks(buf, pos, len(buf))
    end = pos + len(token)
    if buf[pos:end] != token or buf[end : end + 1] not in (b"", b" ", b"\n", b"\r", b"\t"):
        cause = f"{token.decode()} expected, found {shown(bytes(buf[pos : pos + 12]))}"
        raise bad(path, f"byte {pos}", cause, "the file is cut short or damaged")
    return end + 1


def _binary(path: PathLike, buf: bytearray, pos: int, place: str, ndim: int) -> tuple[np.ndarray, int]:
    """Return the vector or matrix that starts at `buf[pos]`, and where it ends."""
    where = f"{place} at byte {pos}"
    header = binary_header(path, buf, pos, len(buf), where)
    if header is None:
        raise bad(path, where, "is cut short", WRITE_AGAIN)
    dtype, shape, data = header
    if len(shape) != ndim:
        names = {1: "vector", 2: "matrix"}
        raise bad(path, where, f"is a {names[len(shape)]}, not a {names[ndim]}", WRITE_AGAIN)
    for n in shape:
        check_dim(path, where, n, MAX_FEATURES)
    count = math.prod(shape)
    end = data + count * dtype.itemsize
    if end > len(buf):
        raise bad(path, where, f"is cut short by {end - len(buf)} bytes", WRITE_AGAIN)
    return np.frombuffer(buf, dtype, count, data).reshape(shape), end


def _text(path: PathLike, buf: bytearray, pos: int, place: str, ndim: int) -> tuple[np.ndarray, int]:
    """Return the vector or matrix `[ 1 2 ]` that follows `buf[pos]`, and where it ends."""
    pos = skip_blanks(buf, pos, len(buf))
    where = f"{place} at byte {pos}"
    close = buf.find(b"]", pos)
    if buf[pos : pos + 1] != b"[" or close < 0:
        raise bad(path, where, "is not of the form [ ... ]", "the file is cut short or damaged")
    rows = [r.split() for r in bytes(buf[pos + 1 : close]).replace(b";", b"\n").split(b"\n") if r.strip()]
    if not rows or len({len(r) for r in rows}) != 1 or (ndim == 1 and len(rows) > 1):
        raise bad(path, where, f"has {len(rows)} rows of unequal length, or too many", WRITE_AGAIN)
    check_dim(path, where, len(rows[0]), MAX_FEATURES)
    try:
        values = np.array([float(v) for r in rows for v in r], np.float64).reshape(len(rows), -1)
    except ValueError as e:
        raise bad(path, where, f"holds something that is no number ({e})", WRITE_AGAIN) from e
    return (values if ndim == 2 else values[0]), close + 1


def write_kaldi_plda(path: PathLike, model: DiagonalModel, *, text: bool = False, force: bool = False) -> None:
    """Write a Kaldi `Plda` of doubles, whole or not at all; text has the digits that keep the doubles the same.

    >>> import tempfile
    >>> from duoplda.io import read_model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_kaldi_plda(folder + "/plda", DiagonalModel(np.zeros(1), np.eye(1), np.array([4.0])))
    ...     read_model(folder + "/plda").speaker_loadings.tolist()
    [[2.0]]
    """
    parts = []
    for array in (model.mean, model.transform, model.psi):
        if text:
            lines = [" ".join(repr(v) for v in row) for row in np.atleast_2d(array).tolist()]
            parts.append((" [\n  " + "\n  ".join(lines) if array.ndim == 2 else f" [ {lines[0]}").encode() + b" ]\n")
        else:
            sizes = b"".join(struct.pack("<bi", 4, n) for n in array.shape)
            parts.append((b"DV ", b"DM ")[array.ndim - 1] + sizes + np.ascontiguousarray(array, "<f8").tobytes())
    with atomic_path(path, force=force) as temporary:
        temporary.write_bytes((b"" if text else b"\0B") + b"<Plda> " + b"".join(parts) + b"</Plda> ")
