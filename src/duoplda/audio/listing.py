"""Lists the audio to be read: files, folders of them, and Kaldi's wav.scp."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from duoplda.io.common import PathLike, bad, open_lines, shown

# In folders, files with these endings are read; a file that is given by name, or in a list, may have any ending.
SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".sph", ".aif", ".aiff", ".au", ".caf", ".w64", ".rf64")
LONGEST_LINE = 1 << 16  # bytes of a line in a list; a longer line is taken for damage


@dataclass(frozen=True)
class AudioFile:
    """A file of audio, and its id.

    >>> AudioFile("ann/1", "audio/ann/1.wav").folder
    'ann'
    """

    id: str
    path: str

    @property
    def folder(self) -> str:
        """The first part of an id with slashes, which is a folder for files of a folder; otherwise an empty text."""
        return self.id.rpartition("/")[0].partition("/")[0]

    @property
    def first_word(self) -> str:
        """The name up to its first `-` or `_`, such as `ann` for `ann-call1` and `ann_1`; otherwise an empty text."""
        match = re.match("([^-_]+)[-_]", self.id.rpartition("/")[2])
        return match[1] if match else ""


def list_audio(sources: PathLike | Sequence[PathLike]) -> list[AudioFile]:
    """List files of audio, each with an id.

    Parameters
    ----------
    sources : one or several sources. A file has its name without the ending as its id. Of a folder, and of folders in
        it, all files are read that end in .wav, .flac, .mp3 and the like, with ids such as `ann/call1`. A list like
        Kaldi's `wav.scp` (its name ends in .scp) has lines `id file`. Commands are never run: a list with pipes is an
        error.

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, "ann").mkdir()
    ...     Path(folder, "ann", "call1.wav").touch()
    ...     [file.id for file in list_audio(folder)]
    ['ann/call1']
    """
    paths = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    files = [file for source in paths for file in _files(source)]
    _check_ids(files)
    return files


def _files(source: PathLike) -> Iterable[AudioFile]:
    """The files of one source."""
    if os.path.isdir(source):
        return _of_folder(Path(source))
    if os.fspath(source).lower().endswith(".scp"):
        return [*_listed(source)]
    return [AudioFile(Path(source).stem, os.fspath(source))]


def _of_folder(folder: Path) -> list[AudioFile]:
    """The audio files of a folder, and of folders in it, in the order of their ids."""
    files = []
    for path, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                whole = Path(path, name)
                files.append(AudioFile(whole.relative_to(folder).with_suffix("").as_posix(), str(whole)))
    if not files:
        raise bad(folder, "", "has no audio files", f"files that end in {' '.join(SUFFIXES)} are read")
    return sorted(files, key=lambda file: file.id)


def _listed(path: PathLike) -> Iterator[AudioFile]:
    """The files in the lines of a wav.scp."""
    n = 0
    with open_lines(path) as lines:
        for number, line in enumerate(iter(lambda: lines.readline(LONGEST_LINE), b""), 1):
            place = f"line {number}"
            if line.isspace():
                continue
            n += 1
            try:
                fields = line.decode("utf-8").split(None, 1)
            except UnicodeDecodeError:
                raise bad(path, place, "is not UTF-8", "lines are `id file`") from None
            if len(fields) != 2 or len(line) == LONGEST_LINE:
                raise bad(path, place, "is not an id and a file", "lines are `id file`")
            name, file = fields[0], fields[1].rstrip("\r\n \t")
            if file.endswith("|") or file.startswith("|"):
                remedy = "run it yourself, and list the file that it writes"
                raise bad(path, place, f"holds a command, and commands are never run: {shown(file)}", remedy)
            yield AudioFile(name, _beside(path, file))
    if not n:
        raise bad(path, "", "is empty")


def _beside(path: PathLike, file: str) -> str:
    """The path of a relative name: from the current folder, as in Kaldi, or from the folder of the list."""
    beside = Path(path).parent / file
    return str(beside) if not os.path.exists(file) and beside.exists() else file


def _check_ids(files: Sequence[AudioFile]) -> None:
    """Refuse two files with one id."""
    first: dict[str, str] = {}
    for file in files:
        if file.id in first:
            remedy = "list them with ids of their own in a wav.scp, or give the folder above them"
            raise bad(file.path, "", f"has the same id as {first[file.id]}: {shown(file.id)}", remedy)
        first[file.id] = file.path
