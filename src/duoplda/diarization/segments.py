"""Segments of recordings: Kaldi's `segments` and the `.seg` of VBx, lines `segment file start end`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from duoplda.data.labels import Ints
from duoplda.diarization.rttm import MAX_SECONDS, Regions
from duoplda.errors import DuopldaError
from duoplda.io import Coded
from duoplda.io.common import PathLike, bad, shown
from duoplda.io.text import line_of, read_list


@dataclass(frozen=True, eq=False)
class Segments:
    """Stretches of audio files that have names: segment `ids[i]` is `file[i]` from `start[i]` to `end[i]` seconds.

    They may overlap, as the windows do that a network takes embeddings of.

    >>> segments = Segments(np.array(["w1", "w2"]), Coded.of(["f", "f"]), np.array([0.0, 0.24]), np.array([1.44, 1.68]))
    >>> len(segments), segments.file.values.tolist()
    (2, ['f', 'f'])
    """

    ids: np.ndarray  # (n,) of str, each once
    file: Coded
    start: np.ndarray  # (n,) float64, at least 0
    end: np.ndarray  # (n,) float64, later than the start

    def __post_init__(self) -> None:
        Regions(self.file, self.start, self.end)  # checks the times
        if np.shape(self.ids) != (len(self.file),):
            raise DuopldaError(f"{np.size(self.ids)} ids for {len(self.file)} segments: give one for each segment")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: slice | np.ndarray) -> Segments:
        """Return some of the segments."""
        return Segments(self.ids[rows], self.file[rows], self.start[rows], self.end[rows])


def rows_by_name(column: Coded) -> dict[str, Ints]:
    """The rows of a column that have each of its names, in the order of `names`; names that no row has are left out.

    >>> {name: rows.tolist() for name, rows in rows_by_name(Coded.of(["g", "f", "g"])).items()}
    {'g': [0, 2], 'f': [1]}
    """
    order = np.argsort(column.codes, kind="stable")
    edges = np.searchsorted(column.codes[order], np.arange(len(column.names) + 1))
    names = column.names.tolist()
    return {names[k]: order[edges[k] : edges[k + 1]] for k in np.flatnonzero(np.diff(edges))}


def read_segments(path: PathLike) -> Segments:
    """Read segments: lines `segment file start end`, times in seconds. No two segments may have the same name.

    Example
    -------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "segments").write_text("f-1 f 0.0 1.5\\nf-2 f 1.5 2.5\\n")
    ...     segments = read_segments(folder + "/segments")
    >>> segments.ids.tolist(), segments.file.values.tolist(), (segments.end - segments.start).tolist()
    (['f-1', 'f-2'], ['f', 'f'], [1.5, 1.0])
    """
    ids, file, start, end = read_list(path, fields=(4,), numbers=(2, 3))
    wrong = ~((start >= 0) & (start < end) & (end <= MAX_SECONDS))
    if wrong.any():
        row = int(wrong.argmax())
        cause = f"goes from {start[row]:g} to {end[row]:g}"
        raise bad(path, line_of(path, row), cause, "lines are `segment file start end`, in seconds, 0 <= start < end")
    if len(ids.names) != len(ids):
        code = int(np.flatnonzero(np.bincount(ids.codes) > 1)[0])
        place = line_of(path, int(np.flatnonzero(ids.codes == code)[1]))
        raise bad(path, place, f"segment {shown(str(ids.names[code]))} has a line already", "ids must differ")
    return Segments(ids.values, file, start, end)
