"""Segments of audio files: Kaldi's `segments` and the `.seg` of VBx, lines `segment file start end`.

Without such a list, the ids of embeddings may contain the file and the times (`segments_of_ids`). RTTM, `.lab` files
and lists of `file start end` have regions of files, such as those with speech or with overlapped speech
(`read_regions`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from duoplda.data.labels import Ints
from duoplda.diarization.rttm import MAX_SECONDS, Regions, is_rttm, read_rttm
from duoplda.errors import DuopldaError, some
from duoplda.io import Coded, atomic_path
from duoplda.io.common import PathLike, bad, held, shown
from duoplda.io.ids import check_ids
from duoplda.io.text import first_line, line_of, read_list, write_columns


@dataclass(frozen=True, eq=False)
class Segments:
    """Parts of audio files that have ids: segment `ids[i]` is `file[i]` from `start[i]` to `end[i]` seconds.

    Segments may overlap, as windows do from which embeddings are computed.

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
    """The rows of a column with each of its names, in the order of `names`; names without a row are left out.

    >>> {name: rows.tolist() for name, rows in rows_by_name(Coded.of(["g", "f", "g"])).items()}
    {'g': [0, 2], 'f': [1]}
    """
    order = np.argsort(column.codes, kind="stable")
    edges = np.searchsorted(column.codes[order], np.arange(len(column.names) + 1))
    names = column.names.tolist()
    return {names[k]: order[edges[k] : edges[k + 1]] for k in np.flatnonzero(np.diff(edges))}


def read_segments(path: PathLike) -> Segments:
    """Read segments: lines `segment file start end`, with times in seconds. No two segments may have the same id.

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
    path = held(path)
    ids, file, start, end = read_list(path, fields=(4,), numbers=(2, 3))
    wrong = ~((start >= 0) & (start < end) & (end <= MAX_SECONDS))
    if wrong.any():
        row = int(wrong.argmax())
        cause = f"goes from {start[row]:g} to {end[row]:g}"
        raise bad(path, line_of(path, row), cause, "lines are `segment file start end` in seconds, 0 <= start < end")
    if len(ids.names) != len(ids):
        code = int(np.flatnonzero(np.bincount(ids.codes) > 1)[0])
        line = line_of(path, int(np.flatnonzero(ids.codes == code)[1]))
        raise bad(path, line, f"segment {shown(str(ids.names[code]))} has a line already", "ids must differ")
    return Segments(ids.values, file, start, end)


def write_segments(path: PathLike, segments: Segments, *, force: bool = False) -> None:
    """Write segments as lines `segment file start end`, as in Kaldi.

    The file is written whole or not at all, and replaces another only with `force`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_segments(folder + "/x", Segments(np.array(["w"]), Coded.of(["f"]), np.array([0.5]), np.array([2.0])))
    ...     read_segments(folder + "/x").end.tolist()
    [2.0]
    """
    for names in (segments.ids, segments.file.names):
        check_ids(path, np.ascontiguousarray(names), token=True)
    with atomic_path(path, force=force) as temporary:
        write_columns(temporary, "", [[Coded.of(segments.ids), segments.file, segments.start, segments.end]])


def segments_of_ids(ids: np.ndarray) -> Segments:
    """The segments of embeddings with ids like `file-start-end` or `file_start_end`.

    Times with a decimal point are seconds. Whole numbers are hundredths of a second, as in Kaldi's ids.

    >>> segments = segments_of_ids(np.array(["mon-0000150-0000300", "tue_0.00_1.50"]))
    >>> segments.file.values.tolist(), segments.start.tolist(), segments.end.tolist()
    (['mon', 'tue'], [1.5, 0.0], [3.0, 1.5])
    """
    time = r"\d{1,12}(?:\.\d{1,9})?"
    parts = [re.fullmatch(rf"(.+)[-_]({time})[-_]({time})", name) for name in ids.tolist()]
    times = [[float(t) / (1 if "." in t else 100) for t in m.groups()[1:]] if m else [0.0, 0.0] for m in parts]
    wrong = [name for name, (start, end) in zip(ids.tolist(), times, strict=True) if not start < end <= MAX_SECONDS]
    if wrong:
        cause = f"{len(wrong)} ids of embeddings are not like `file-start-end`: {some(wrong)}"
        raise DuopldaError(f"{cause}; give a list of segments, with lines `segment file start end`")
    start, end = np.array(times).reshape(-1, 2).T
    return Segments(ids, Coded.of([m[1] for m in parts if m]), start, end)


def read_regions(path: PathLike) -> Regions:
    """Read regions of audio files: from RTTM, from lines `file start end`, or from a `.lab`, lines `start end label`.

    A `.lab` is about one audio file, whose name is that of the `.lab` without its suffix.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "mon.lab").write_text("0.5 8.25 sp\\n")
    ...     regions = read_regions(folder + "/mon.lab")
    >>> regions.file.values.tolist(), regions.start.tolist(), regions.end.tolist()
    (['mon'], [0.5], [8.25])
    """
    path = held(path)
    if is_rttm(path):
        turns = read_rttm(path)
        return Regions(turns.file, turns.start, turns.end)
    fields = first_line(path).split()
    try:
        lab = len(fields) == 3 and float(fields[1]) > float(fields[0]) >= 0
    except ValueError:
        lab = False
    if lab:
        start, end, _ = read_list(path, fields=(3,), numbers=(0, 1))
        file = Coded.of([Path(str(path)).stem] * len(start))
    else:
        file, start, end = read_list(path, fields=(3,), numbers=(1, 2))
    wrong = ~((start >= 0) & (start < end) & (end <= MAX_SECONDS))
    if wrong.any():
        row = int(wrong.argmax())
        cause = f"goes from {start[row]:g} to {end[row]:g}"
        raise bad(path, line_of(path, row), cause, "lines are `file start end` in seconds, 0 <= start < end")
    return Regions(file, start, end)


def lists_segments(path: PathLike) -> bool:
    """Whether a list has segments with ids, and not regions (RTTM, `.lab`, `file start end`).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "segments").write_text("f-1 f 0.0 1.5\\n")
    ...     lists_segments(folder + "/segments")
    True
    """
    return not is_rttm(path) and len(first_line(held(path)).split()) != 3


def within(segments: Segments, regions: Regions) -> np.ndarray:
    """(n,) whether the middle of each segment lies in a region of its file.

    >>> segments = Segments(np.array(["a", "b"]), Coded.of(["f", "f"]), np.array([0.0, 5.0]), np.array([2.0, 7.0]))
    >>> within(segments, Regions.of(["f"], [0.5], [3.0])).tolist()
    [True, False]
    """
    inside = np.zeros(len(segments), bool)
    regions_of = rows_by_name(regions.file)
    for name, rows in rows_by_name(segments.file).items():
        in_file = regions_of.get(name, np.zeros(0, np.int64))
        middle = (segments.start[rows] + segments.end[rows]) / 2
        opened = np.searchsorted(np.sort(regions.start[in_file]), middle, "right")
        closed = np.searchsorted(np.sort(regions.end[in_file]), middle, "right")
        inside[rows] = opened > closed
    return inside
