"""Reading and writing scores: lists of (model, recording, score), and full matrices.

Kaldi text      enrol test score
.tsv, .csv      a header: modelid, segmentid, LLR (NIST, hyperion)
.parquet        the same columns
.h5             BOSARIS Scores
.npz            `scores` (m, s), `enroll_ids` (m,), `test_ids` (s,); NaN where there is none

In memory they are `Scores`, a `ScoreMatrix`, or a data frame with the columns of the tables.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from duoplda.errors import DuopldaError
from duoplda.io._atomic import atomic_path
from duoplda.io.bosaris import dense, read_bosaris_scores, write_matrices
from duoplda.io.common import HDF5_SUFFIXES, TABLE_SUFFIXES, PathLike, bad, content, held, listed, need, pick
from duoplda.io.ids import Coded, as_ids, check_ids
from duoplda.io.npz import load_array, names_in, write_arrays
from duoplda.io.text import is_table, read_header, read_list, read_table, write_columns
from duoplda.io.trials import TRIAL_COLUMNS

# Names that a column of scores may have, in lower case. Tables are written with those of NIST.
SCORE_COLUMNS = {"enroll": TRIAL_COLUMNS["enroll"], "test": TRIAL_COLUMNS["test"], "score": ("llr", "score", "scores")}
WRITTEN_COLUMNS = ("modelid", "segmentid", "LLR")


@dataclass(frozen=True, eq=False)
class Scores:
    """A list of n scores: `enroll` has the ids of models, `test` those of recordings, `score` is (n,) float64.

    >>> scores = Scores(Coded.of(["m", "m"]), Coded.of(["a", "b"]), np.array([4.6, -2.0]))
    >>> len(scores), str(scores.test.values[scores.score.argmax()])
    (2, 'a')
    """

    enroll: Coded
    test: Coded
    score: np.ndarray

    def __len__(self) -> int:
        return len(self.score)


@dataclass(frozen=True, eq=False)
class ScoreMatrix:
    """Scores of all models against all recordings: `score` (m, s), which is NaN where a pair was not scored.

    >>> matrix = ScoreMatrix(np.array(["m", "k"]), np.array(["a"]), np.array([[1.5], [np.nan]]))
    >>> scores = matrix.to_list()
    >>> scores.enroll.values.tolist(), scores.score.tolist()
    (['m'], [1.5])
    """

    enroll_ids: np.ndarray
    test_ids: np.ndarray
    score: np.ndarray

    def to_list(self, scored: np.ndarray | None = None) -> Scores:
        """Return the scored pairs as a list, row by row: those where the mask `scored` (m, s) is true, or not NaN."""
        i, j = np.nonzero(~np.isnan(self.score) if scored is None else scored)
        enroll = Coded(self.enroll_ids, i.astype(np.int32))
        test = Coded(self.test_ids, j.astype(np.int32))
        return Scores(enroll, test, self.score[i, j])


def read_scores(path: PathLike, *, columns: Mapping[str, str] | None = None) -> Scores:
    """Read scores of any format as a list.

    Parameters
    ----------
    path : the file
    columns : names of the columns of a table, e.g. {"enroll": "model", "test": "file", "score": "llr"}

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "scores").write_text("m1 a 1.5\\nm1 b -0.25\\n")
    ...     read_scores(folder + "/scores").score
    array([ 1.5 , -0.25])
    """
    path = held(path)
    if content(path) == "hdf5":
        *matrix, mask = read_bosaris_scores(path)
        return ScoreMatrix(*matrix).to_list(mask)
    if content(path) == "zip":
        return read_score_matrix(path).to_list()
    if is_table(path, SCORE_COLUMNS, tuple(SCORE_COLUMNS), columns):
        return Scores(**read_table(read_header(path, SCORE_COLUMNS, columns), numbers=("score",)))
    return Scores(*read_list(path, fields=(3,), numbers=(2,)))


def read_score_matrix(path: PathLike) -> ScoreMatrix:
    """Read scores of any format as a matrix, which is NaN where the file has no score.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_scores(folder + "/s.txt", Scores(Coded.of(["m", "k"]), Coded.of(["a", "b"]), np.array([1.5, 2.0])))
    ...     read_score_matrix(folder + "/s.txt").score.tolist()
    [[1.5, nan], [nan, 2.0]]
    """
    path = held(path)
    if content(path) == "hdf5":
        rows, columns, scores, mask = read_bosaris_scores(path)
        return ScoreMatrix(rows, columns, np.where(mask, scores, np.nan))
    if content(path) != "zip":
        return _matrix(path, read_scores(path))
    names = names_in(path)
    known_names = {
        "enroll ids": ("enroll_ids", "enroll", "rows", "row_ids", "models"),
        "test ids": ("test_ids", "test", "columns", "column_ids", "segments"),
        "scores": ("scores", "score", "matrix", "llr"),
    }
    arrays = []
    for what, known in known_names.items():
        name = pick(path, names, None, known, "array")
        if name is None:
            raise bad(path, "", f"has no {what}", f"save them as one of {', '.join(known)}")
        arrays.append(load_array(path, name))
    return _checked(path, ScoreMatrix(*arrays))


def _checked(path: PathLike, matrix: ScoreMatrix) -> ScoreMatrix:
    """Check that there is a row for each model and a column for each recording, and that no id occurs twice."""
    axes = []
    for values in (np.asarray(matrix.enroll_ids), np.asarray(matrix.test_ids)):
        if values.ndim != 1 or values.dtype.kind not in "USiu":
            raise bad(path, "", f"ids are {values.dtype} of shape {values.shape}", "give lists of strings")
        axes.append(as_ids(path, values.astype(values.dtype.newbyteorder("="))))
        if len(np.unique(axes[-1])) != len(values):
            raise bad(path, "", "an id occurs twice", "ids of rows and of columns must differ")
    scores = np.asarray(matrix.score)
    shape = (len(axes[0]), len(axes[1]))
    if scores.shape != shape or scores.dtype.kind not in "fiu":
        cause = f"scores are {scores.dtype} of shape {scores.shape} for {shape[0]} x {shape[1]} ids"
        raise bad(path, "scores", cause, "one row per model, one column per recording")
    return ScoreMatrix(axes[0], axes[1], scores.astype(np.float64, copy=False))


def _matrix(path: PathLike, scores: Scores | Iterable[Scores]) -> ScoreMatrix:
    """Put a list of scores, or the parts of one, into a matrix."""
    if not isinstance(scores, Scores):
        parts = list(scores)
        if not parts:
            raise bad(path, "", "there are no scores to write")
        enroll = Coded.of(np.concatenate([p.enroll.values for p in parts]))
        test = Coded.of(np.concatenate([p.test.values for p in parts]))
        scores = Scores(enroll, test, np.concatenate([p.score for p in parts]))
    matrix = dense(path, scores.enroll, scores.test, np.float64)
    matrix.fill(np.nan)
    matrix[scores.enroll.codes, scores.test.codes] = scores.score
    return ScoreMatrix(scores.enroll.names, scores.test.names, matrix)


def scores_frame(scores: Scores | ScoreMatrix | Iterable[Scores]) -> Any:
    """Return scores as a data frame of pandas with the columns `modelid`, `segmentid` and `LLR`, a row for each trial.

    `write_scores` accepts such a data frame, too. Pairs of a matrix that were not scored (NaN) are left out.

    Parameters
    ----------
    scores : a list, a matrix, or parts of a list. Ratios of all sides are
        `ScoreMatrix(enrolled.ids, tests.ids, backend.llr(enrolled, tests))`.

    Example
    -------
    >>> matrix = ScoreMatrix(np.array(["ann", "bob"]), np.array(["a.wav"]), np.array([[4.5], [-2.0]]))
    >>> frame = scores_frame(matrix)
    >>> frame[frame.LLR > 0].values.tolist()
    [['ann', 'a.wav', 4.5]]
    """
    parts = list(_batches("scores", scores, token=False))
    columns = [np.concatenate([np.asarray(getattr(p, name)) for p in parts]) for name in ("enroll", "test", "score")]
    try:
        return need("pyarrow").table(columns, WRITTEN_COLUMNS).to_pandas()
    except ImportError:
        raise DuopldaError("pandas is not installed; install it with: pip install pandas") from None


def _of_frame(path: PathLike, frame: Any) -> Scores:
    """Return the scores of a data frame, of pandas or of another library whose columns have `to_numpy`."""
    names = {str(name).lower(): name for name in frame.columns}
    columns = []
    for known in SCORE_COLUMNS.values():
        name = pick(path, list(names), None, known, "column")
        if name is None:
            raise bad(path, "", f"the data frame has no column {known[0]}", f"it has: {listed(list(names.values()))}")
        columns.append(frame[names[name]].to_numpy())
    enroll, test = (Coded.of(as_ids(path, column)) for column in columns[:2])
    try:
        return Scores(enroll, test, columns[2].astype(np.float64))
    except (TypeError, ValueError) as error:
        raise bad(path, "", f"scores of the data frame are no numbers: {error}") from None


def write_scores(path: PathLike, scores: Scores | ScoreMatrix | Iterable[Scores] | Any, *, force: bool = False) -> None:
    """Write scores in the format the suffix names, whole or not at all.

    The suffixes are `.tsv`, `.csv`, `.parquet`, `.h5` (BOSARIS) and `.npz` (a matrix); with any other, Kaldi's text is
    written. Text has the digits that are needed to read the same float64 back.

    Parameters
    ----------
    path : the file
    scores : a list, a matrix, a data frame as `scores_frame` gives it, or parts of a list one after the other (only
        one is in memory at a time, except for `.h5` and `.npz`)
    force : replace an existing file; otherwise it is an error

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_scores(folder + "/scores.txt", Scores(Coded.of(["m"]), Coded.of(["a"]), np.array([1.5])))
    ...     read_scores(folder + "/scores.txt").score.tolist()
    [1.5]
    """
    suffix = Path(path).suffix.lower()
    if hasattr(scores, "columns"):
        scores = _of_frame(path, scores)
    with atomic_path(path, force=force) as temporary:
        if suffix in HDF5_SUFFIXES or suffix == ".npz":
            m = scores if isinstance(scores, ScoreMatrix) else _matrix(path, scores)
            if not _checked(path, m).score.size:
                raise bad(path, "", "there are no scores to write")
            if suffix == ".npz":
                arrays = {"scores": m.score, "enroll_ids": m.enroll_ids, "test_ids": m.test_ids}
                write_arrays(temporary, {k: np.asarray(v) for k, v in arrays.items()})
            else:
                scored = ~np.isnan(m.score)
                data = {"scores": np.where(scored, m.score, 0.0), "score_mask": scored.astype(np.uint8)}
                write_matrices(temporary, m.enroll_ids, m.test_ids, data)
            return
        parts = _batches(path, scores, token=suffix not in TABLE_SUFFIXES)
        write_columns(temporary, suffix, ((p.enroll, p.test, p.score) for p in parts), WRITTEN_COLUMNS)


def _batches(path: PathLike, scores: Scores | ScoreMatrix | Iterable[Scores], *, token: bool) -> Iterator[Scores]:
    """Yield checked lists of at most a million scores, which take 16 MB, and about 50 MB as text."""
    most = 1 << 20
    if isinstance(scores, ScoreMatrix):  # some rows at a time
        m = ScoreMatrix(as_ids(path, scores.enroll_ids), as_ids(path, scores.test_ids), scores.score)
        step = max(1, most // max(1, len(scores.test_ids)))
        cuts = (slice(i, i + step) for i in range(0, len(m.enroll_ids), step))
        scores = (ScoreMatrix(m.enroll_ids[rows], m.test_ids, m.score[rows]).to_list() for rows in cuts)
    n = 0
    for part in [scores] if isinstance(scores, Scores) else scores:
        if not len(part.enroll) == len(part.test) == len(part.score):
            cause = f"{len(part.enroll)} models, {len(part.test)} recordings and {len(part.score)} scores"
            raise bad(path, "", cause, "there must be as many of each")
        for column in (part.enroll, part.test):
            check_ids(path, np.ascontiguousarray(column.names), token=token)
        for rows in (slice(i, i + most) for i in range(0, len(part), most)):
            yield Scores(part.enroll[rows], part.test[rows], np.asarray(part.score[rows], np.float64))
        n += len(part)
    if not n:
        raise bad(path, "", "there are no scores to write")
