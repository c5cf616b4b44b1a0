"""BOSARIS HDF5: Ndx, Key and Scores, as the toolkit, SIDEKIT and hyperion store them.

ID/row_ids (m,)   ID/column_ids (s,)     models and test segments
trial_mask (m, s)                        Ndx: 1 where there is a trial (unsigned)
                                         Key: 1 target, -1 nontarget, 0 no trial (signed)
target_mask, nontarget_mask (m, s)       Key, older format
scores (m, s)  score_mask (m, s)         Scores: 1 where there is a score
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike

from duoplda.io._source import ROWS_PER_READ
from duoplda.io.common import PathLike, bad, listed, shown
from duoplda.io.hdf5 import Stored, check_texts, created, dataset, member, members, opened
from duoplda.io.ids import Coded

if TYPE_CHECKING:
    import h5py


def _axes(path: PathLike, f: h5py.File) -> tuple[np.ndarray, np.ndarray]:
    """Read the ids of rows and columns."""
    axes = []
    for name in ("ID/row_ids", "ID/column_ids"):
        d = dataset(path, f, name)
        if len([k for k in d.shape if k != 1]) > 1 or 0 in d.shape:
            raise bad(path, name, f"has shape {d.shape}", "give a list of ids")
        check_texts(d)
        ids = np.concatenate(list(d.texts(0, max(d.shape, default=1), ROWS_PER_READ)))
        if repeated := Coded.of(ids).repeated():
            raise bad(path, name, f"id {shown(repeated[0])} occurs twice", "ids must differ")
        axes.append(ids)
    return axes[0], axes[1]


def _matrix(path: PathLike, f: h5py.File, name: str, shape: tuple[int, int]) -> Stored:
    """Return a matrix of the file, which must have a row and a column for each id."""
    d = dataset(path, f, name)
    if d.shape != shape:
        raise bad(path, name, f"has shape {d.shape}, the ids ask for {shape}", "write the file again")
    if d.dtype.kind not in "iufb":
        raise bad(path, name, f"holds {d.dtype}, not numbers", "write the file again")
    return d


def read_bosaris_trials(path: PathLike) -> tuple[Coded, Coded, np.ndarray | None]:
    """Read models, segments and, of a Key, which trials are targets (None for an Ndx), row by row of the matrix."""
    with opened(path) as f:
        models, segments = _axes(path, f)
        shape = (len(models), len(segments))
        old = member(path, f, "target_mask") is not None
        mask = _matrix(path, f, "target_mask" if old else "trial_mask", shape)
        other = _matrix(path, f, "nontarget_mask", shape) if old else None
        keyed = old or mask.dtype.kind in "if" or member(path, f, "file_format") is not None
        trials = []
        rows = max(1, (1 << 24) // (shape[1] * mask.dtype.itemsize))  # 16 MB of the matrix at a time
        for first in range(0, shape[0], rows):
            cut = slice(first, min(first + rows, shape[0]))
            block = mask.read(cut).astype(np.float32)
            if other is not None:
                block = (block > 0.5).astype(np.float32) - (other.read(cut).astype(np.float32) > 0.5)
            i, j = np.nonzero(np.abs(block) > 0.5)
            trials.append(((i + first).astype(np.int32), j.astype(np.int32), block[i, j] > 0))
        enroll, test, target = map(np.concatenate, zip(*trials, strict=True))
        if not len(enroll):
            raise bad(path, "", "has no trials: its mask is empty")
        return Coded(models, enroll), Coded(segments, test), target if keyed else None


def write_bosaris_trials(out: Path, enroll: Coded, test: Coded, target: np.ndarray | None) -> None:
    """Write trials as a Key, or as an Ndx if it is not known which are targets."""
    mask = dense(out, enroll, test, np.uint8 if target is None else np.int8)
    mask[enroll.codes, test.codes] = 1 if target is None else np.where(target, 1, -1)
    version = {} if target is None else {"file_format": np.array([b"2.0"])}
    write_matrices(out, enroll.names, test.names, {"trial_mask": mask} | version)


def dense(path: PathLike, enroll: Coded, test: Coded, dtype: DTypeLike) -> np.ndarray:
    """Return a matrix of zeros with a cell for each pair of a list, in which no pair may occur twice."""
    cells = len(enroll.names) * len(test.names)
    # A mask of more cells would take more than two gigabytes. A large matrix with less than a cell in 64 filled is a
    # list that was not meant to be a matrix.
    if cells > 1 << 31 or (cells > 1 << 26 and cells > 64 * len(enroll)):
        cause = f"a matrix of {len(enroll.names)} x {len(test.names)} for {len(enroll)} pairs is too large"
        raise bad(path, "", cause, "write a list (.txt, .tsv, .parquet) instead")
    pairs = np.sort(enroll.codes.astype(np.int64) * len(test.names) + test.codes)
    twice = np.flatnonzero(pairs[1:] == pairs[:-1])
    if len(twice):
        i, j = divmod(int(pairs[twice[0]]), len(test.names))
        name = shown(f"{enroll.names[i]} {test.names[j]}")
        raise bad(path, "", f"the pair {name} occurs twice", "a matrix has one cell per pair: write a list")
    return np.zeros((len(enroll.names), len(test.names)), dtype)


def write_matrices(out: Path, rows: np.ndarray, columns: np.ndarray, data: dict[str, np.ndarray]) -> None:
    """Write the ids of rows and columns, and matrices by their names."""
    ids = {"ID/row_ids": np.char.encode(rows, "utf-8"), "ID/column_ids": np.char.encode(columns, "utf-8")}
    with created(out) as f:
        for name, array in (ids | data).items():
            f.create_dataset(name, data=array)


def read_bosaris_scores(path: PathLike) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Read the ids of rows and of columns, the scores (m, s), and which cells have a score (m, s)."""
    with opened(path) as f:
        rows, columns = _axes(path, f)
        shape = (len(rows), len(columns))
        if member(path, f, "scores") is None:
            remedy = f"it has {listed(sorted(members(path, f)))}: give a BOSARIS Scores file"
            raise bad(path, "", "has no scores", remedy)
        scores = _matrix(path, f, "scores", shape).read().astype(np.float64)
        if member(path, f, "score_mask") is None:
            return rows, columns, scores, np.ones(shape, bool)
        return rows, columns, scores, _matrix(path, f, "score_mask", shape).read() > 0.5
