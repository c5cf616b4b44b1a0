"""NIST's file formats RTTM (turns of speakers) and UEM (regions that are scored).

RTTM    SPEAKER file channel start duration <NA> <NA> speaker <NA> [<NA>]
UEM     file channel start end

Times are in seconds. Lines that start with ;; are comments, and RTTM lines of other types (LEXEME, SPKR-INFO, ...) are
skipped. All lines about one audio file must have the same channel; its name does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from duoplda.errors import UNPRINTABLE, DuopldaError, some
from duoplda.io import Coded, atomic_path
from duoplda.io.common import PathLike, bad, content, held, open_lines, shown
from duoplda.io.ids import MAX_ID, check_ids
from duoplda.io.text import first_line

MAX_SECONDS = 1e9  # about 30 years; a later time is taken for an error in the file
OTHER_TYPES = b"SEGMENT NOSCORE NO_RT_METADATA LEXEME NON-LEX NON-SPEECH FILLER EDIT IP SU CB A/P SPKR-INFO".split()
NamesSeen = dict[bytes, tuple[int, int]]  # name as in the file -> its number, and the line in which it first occurs


@dataclass(frozen=True, eq=False)
class Turns:
    """Turns of speakers: in turn i, `speaker[i]` speaks in `file[i]` from `start[i]` for `duration[i]` seconds.

    Turns may overlap and may be in any order. Names of speakers that occur in two files stand for one person.

    Example
    -------
    >>> turns = Turns.of(["f", "f"], [0.0, 1.5], [2.0, 1.0], ["ann", "bob"])
    >>> turns.end.tolist(), turns[turns.start > 1].speaker.values.tolist()
    ([2.0, 2.5], ['bob'])
    """

    file: Coded
    start: np.ndarray  # (n,) float64, at least 0
    duration: np.ndarray  # (n,) float64, at least 0
    speaker: Coded

    def __post_init__(self) -> None:
        for name in ("start", "duration"):
            object.__setattr__(self, name, _times(getattr(self, name), name, len(self.file)))
        if len(self.speaker) != len(self.file):
            raise DuopldaError(f"{len(self.speaker)} speakers for {len(self.file)} turns: give one for each turn")

    @classmethod
    def of(
        cls, file: Iterable[str], start: Iterable[float], duration: Iterable[float], speaker: Iterable[str]
    ) -> Turns:
        """Make turns from four lists or arrays."""
        return cls(Coded.of(file), np.asarray(start), np.asarray(duration), Coded.of(speaker))

    @property
    def end(self) -> np.ndarray:
        """(n,) the end of each turn in seconds."""
        return self.start + self.duration

    def __len__(self) -> int:
        return len(self.file)

    def __getitem__(self, rows: slice | np.ndarray) -> Turns:
        """Return some of the turns."""
        return Turns(self.file[rows], self.start[rows], self.duration[rows], self.speaker[rows])


@dataclass(frozen=True, eq=False)
class Regions:
    """Stretches of files: region i is `file[i]` from `start[i]` to `end[i]` seconds. They may overlap.

    >>> regions = Regions(Coded.of(["f", "f"]), np.array([0.0, 5.0]), np.array([3.0, 6.0]))
    >>> (regions.end - regions.start).tolist()
    [3.0, 1.0]
    """

    file: Coded
    start: np.ndarray  # (n,) float64, at least 0
    end: np.ndarray  # (n,) float64, later than the start

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            object.__setattr__(self, name, _times(getattr(self, name), name, len(self.file)))
        if len(rows := np.flatnonzero(self.end <= self.start)):
            raise DuopldaError(f"regions do not end after they start, at rows {some(rows)}: give start < end")

    @classmethod
    def of(cls, file: Iterable[str], start: Iterable[float], end: Iterable[float]) -> Regions:
        """Make regions from three lists or arrays."""
        return cls(Coded.of(file), np.asarray(start), np.asarray(end))

    def __len__(self) -> int:
        return len(self.file)


def _times(values: np.ndarray, name: str, n: int) -> np.ndarray:
    """Check n times in seconds and return them as float64."""
    times = np.asarray(values)
    if times.shape != (n,) or (times.dtype.kind not in "fiu" and n):
        raise DuopldaError(f"{name} is {times.dtype} of shape {times.shape} for {n} files: give one number for each")
    times = times.astype(np.float64)
    if len(rows := np.flatnonzero(~((times >= 0) & (times <= MAX_SECONDS)))):
        raise DuopldaError(f"{name} is negative, NaN or too large at rows {some(rows)}: give seconds, from 0 on")
    return times


def is_rttm(path: PathLike) -> bool:
    """Whether a file looks like RTTM: it starts with a comment (;;), or with a line of an RTTM type and nine fields.

    Example
    -------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "utt2spk").write_text("a alice\\n")
    ...     is_rttm(folder + "/utt2spk")
    False
    """
    path = held(path)
    if content(path):
        return False
    fields = first_line(path).encode().split()
    return fields[0].startswith(b";;") or (len(fields) >= 9 and fields[0] in (b"SPEAKER", *OTHER_TYPES))


def read_rttm(path: PathLike) -> Turns:
    """Read the turns of an RTTM file, in the order of its lines.

    Lines have nine or ten fields. A turn without a speaker (`<NA>`) is an error, and so are two channels of one file.

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_rttm(folder + "/a.rttm", Turns.of(["f"], [0.5], [2.25], ["ann"]))
    ...     read_rttm(folder + "/a.rttm").end
    array([2.75])
    """
    path = held(path)
    files: NamesSeen = {}
    speakers: NamesSeen = {}
    channels: dict[bytes, bytes] = {}
    rows = []
    for number, fields in _lines(path):
        if fields[0] != b"SPEAKER":
            if fields[0] not in OTHER_TYPES:
                cause = f"{shown(fields[0].decode('utf-8', 'replace'))} is not a type of RTTM lines"
                raise bad(path, f"line {number}", cause, "lines are `SPEAKER file channel start duration ...`")
            continue
        if len(fields) not in (9, 10):
            remedy = "RTTM is `SPEAKER file channel start duration <NA> <NA> speaker <NA> <NA>`"
            raise bad(path, f"line {number}", f"has {len(fields)} fields, not 9 or 10", remedy)
        _, file, channel, start, duration, _, _, speaker, *_ = fields
        if speaker == b"<NA>":
            raise bad(path, f"line {number}", "has no speaker (<NA>)", "name the speaker")
        _check_channel(path, number, channels, file, channel)
        file_code, _ = files.setdefault(file, (len(files), number))
        speaker_code, _ = speakers.setdefault(speaker, (len(speakers), number))
        times = _seconds(path, number, "start", start), _seconds(path, number, "duration", duration)
        rows.append((file_code, *times, speaker_code))
    table = np.array(rows, np.float64).reshape(-1, 4)
    return Turns(_coded(path, files, table[:, 0]), table[:, 1], table[:, 2], _coded(path, speakers, table[:, 3]))


def read_uem(path: PathLike) -> Regions:
    """Read the regions of a UEM file: lines `file channel start end`.

    Example
    -------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.uem").write_text(";; the first minute\\nf 1 0 60\\n")
    ...     read_uem(folder + "/a.uem").end
    array([60.])
    """
    path = held(path)
    files: NamesSeen = {}
    channels: dict[bytes, bytes] = {}
    rows = []
    for number, fields in _lines(path):
        if len(fields) != 4:
            raise bad(path, f"line {number}", f"has {len(fields)} fields, not 4", "UEM is `file channel start end`")
        _check_channel(path, number, channels, fields[0], fields[1])
        code, _ = files.setdefault(fields[0], (len(files), number))
        start = _seconds(path, number, "start", fields[2])
        end = _seconds(path, number, "end", fields[3])
        if end <= start:
            raise bad(path, f"line {number}", f"ends at {end:g} s and starts at {start:g} s", "give start < end")
        rows.append((code, start, end))
    if not rows:
        raise bad(path, "", "has no regions", "UEM is `file channel start end`")
    table = np.array(rows, np.float64)
    return Regions(_coded(path, files, table[:, 0]), table[:, 1], table[:, 2])


def write_rttm(path: PathLike, turns: Turns, *, force: bool = False) -> None:
    """Write turns as RTTM, sorted by file, start, duration and speaker.

    The file is written whole or not at all, and replaces another only with `force`. Starts and ends are rounded to the
    microsecond, so that turns that touch still touch in the file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_rttm(folder + "/x.rttm", Turns.of(["f"], [0.5], [2.0], ["ann"]))
    ...     read_rttm(folder + "/x.rttm").speaker.values.tolist()
    ['ann']
    """
    for column in (turns.file, turns.speaker):
        check_ids(path, np.ascontiguousarray(column.names), token=True)
    if "<NA>" in turns.speaker.names.tolist():
        raise bad(path, "", "a speaker is called <NA>, which in RTTM means no speaker", "give the speaker another name")
    file, speaker = (np.argsort(np.argsort(c.names))[c.codes] for c in (turns.file, turns.speaker))
    ordered = turns[np.lexsort((speaker, turns.duration, turns.start, file))]
    start = np.rint(ordered.start * 1e6)
    duration = np.rint(ordered.end * 1e6) - start  # from the rounded end: a rounded duration could leave a gap
    columns = ordered.file.values.tolist(), start.tolist(), duration.tolist(), ordered.speaker.values
    lines = (
        f"SPEAKER {file} 1 {micro / 1e6:.6f} {length / 1e6:.6f} <NA> <NA> {name} <NA> <NA>\n"
        for file, micro, length, name in zip(*columns, strict=True)
    )
    with atomic_path(path, force=force) as temporary, open(temporary, "w", encoding="utf-8", newline="\n") as out:
        out.writelines(lines)


def _coded(path: PathLike, seen: NamesSeen, codes: np.ndarray) -> Coded:
    """The column with these codes; a name that is not printable or too long is an error that says the line."""
    names = []
    for raw, (_, number) in seen.items():
        try:
            text = raw.decode()
        except UnicodeDecodeError as e:
            raise bad(path, f"line {number}", f"{shown(raw)} is not UTF-8", "write the file in UTF-8") from e
        if len(text) > MAX_ID or UNPRINTABLE.search(text):
            cause = f"the name {shown(text)} is too long or has control characters in it"
            raise bad(path, f"line {number}", cause, f"names are printable, of at most {MAX_ID} characters")
        names.append(text)
    return Coded(np.array(names, dtype=str), codes.astype(np.int32))


def _lines(path: PathLike) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the number and the fields of each line that is neither blank nor a comment."""
    longest = 1 << 16  # bytes; a longer line means a binary file, which must not fill the memory
    first_line(path)  # if the file is not text, this raises an error that says why
    with open_lines(path) as f:
        for number, line in enumerate(iter(partial(f.readline, longest), b""), 1):
            if len(line) == longest:
                remedy = "give a text file, with a turn or a region in each line"
                raise bad(path, f"line {number}", f"is longer than {longest >> 10} kB", remedy)
            fields = line.split()
            if fields and not fields[0].startswith(b";;"):
                yield number, fields


def _check_channel(path: PathLike, number: int, channels: dict[bytes, bytes], file: bytes, channel: bytes) -> None:
    """Refuse a second channel of a file: its turns would be scored as if they were turns of the first channel."""
    if channels.setdefault(file, channel) != channel:
        cause = f"{shown(file.decode('utf-8', 'replace'))} has a second channel"
        raise bad(path, f"line {number}", cause, "give each channel a file name of its own")


def _seconds(path: PathLike, number: int, what: str, text: bytes) -> float:
    """Read a time in seconds from a field of line `number`."""
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not 0 <= value <= MAX_SECONDS or b"_" in text:  # Python reads 1_000 as a number
        cause = f"{what} {shown(text.decode('utf-8', 'replace'))} is not a time"
        raise bad(path, f"line {number}", cause, "give seconds, from 0 on")
    return value
