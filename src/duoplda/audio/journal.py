"""A journal on the disk of the files that have been embedded, from which an interrupted run can continue.

It is a text file: the first line describes the run, and then each audio file that is done has one line of JSON. A line
that was being written when the run ended is cut off, and its file is embedded anew.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np

from duoplda.audio.embedding import Embedded
from duoplda.audio.listing import AudioFile
from duoplda.audio.quality import AudioQuality
from duoplda.io.common import PathLike, bad, system_error

Entries = dict[str, tuple[int, list[Any]]]  # id of a file -> where its line begins, and the identity of the file


class Journal:
    """The files that have been embedded so far, on the disk.

    Parameters
    ----------
    path : the file of the journal; it is replaced unless `resume` is given
    job : a description of the run (the extractor and all options); a journal of another run is an error
    resume : continue from the file, if it exists

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = AudioFile("a", folder + "/a.wav")
    ...     _ = Path(file.path).write_bytes(b"RIFF")
    ...     for run in ("first", "second"):
    ...         with Journal(folder + "/x", {}, resume=run == "second") as journal:
    ...             results = list(journal.through([file], lambda rest: [Embedded(one) for one in rest]))
    ...             print(run, len(results), len(journal))
    first 1 1
    second 1 1
    """

    def __init__(self, path: PathLike, job: Mapping[str, object], *, resume: bool = False):
        self.path = Path(path)
        header = json.dumps({"format": "duoplda-embed", "job": job}, sort_keys=True, default=str)
        with self._writing():
            self._file: IO[bytes] = open(self.path, "r+b" if resume and self.path.exists() else "w+b")  # noqa: SIM115
        try:
            self._entries = self._read(header)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._entries)

    def remove(self) -> None:
        """Remove the file, after a run that has ended well or that has written nothing."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def through(
        self, files: Sequence[AudioFile], embed: Callable[[Sequence[AudioFile]], Iterator[Embedded] | list[Embedded]]
    ) -> Iterator[Embedded]:
        """Yield the result of each file: from the journal or, if it has none, from `embed`, and it is then written."""
        ready = {file.id for file in files if self._entries.get(file.id, (0, None))[1] == _identity(file)}
        fresh = iter(embed([file for file in files if file.id not in ready]))
        for file in files:
            if file.id in ready:
                yield self._load(file)
                continue
            one = next(fresh)
            if not one.problems:  # a file that could not be read is tried again by the next run
                self._write(one)
            yield one

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn an error of the system, such as a full disk, into an error that names this file."""
        try:
            yield
        except OSError as error:
            raise system_error(self.path, error) from error

    def _read(self, header: str) -> Entries:
        """Find the lines of the file, and cut off what follows the last whole one."""
        first = self._file.readline()
        if not first.endswith(b"\n"):  # a new file, or one that ended in its first line
            self._truncate(0)
            self._append(header)
            return {}
        if first.decode("utf-8", "replace").rstrip("\n") != header:
            cause = "is of a run with other options, another extractor or other noises, or is not a journal of a run"
            raise bad(self.path, "", cause, "repeat the options of that run, or leave out `resume`")
        entries: Entries = {}
        end = self._file.tell()
        for line in self._file:
            entry = _parsed(line)
            if entry is None:
                break
            entries[entry["file"][0]] = end, entry["file"]
            end += len(line)
        self._truncate(end)
        return entries

    def _truncate(self, size: int) -> None:
        with self._writing():
            self._file.seek(size)
            self._file.truncate()

    def _append(self, line: str) -> int:
        """Write a line at the end, and return where it begins."""
        with self._writing():
            start = self._file.seek(0, os.SEEK_END)
            self._file.write(line.encode("utf-8") + b"\n")
            self._file.flush()
        return start

    def _write(self, one: Embedded) -> None:
        identity = _identity(one.file)
        entry: dict[str, object] = {
            "file": identity,
            "shape": one.X.shape,
            "X": base64.b64encode(one.X.tobytes()).decode("ascii"),
        }
        entry |= {"ids": one.ids, "pieces": one.pieces, "kinds": one.kinds, "spans": one.spans, "notes": one.notes}
        entry["qualities"] = {name: asdict(quality) for name, quality in one.qualities.items()}
        entry["speech"] = one.speech.tolist()
        self._entries[one.file.id] = self._append(json.dumps(entry)), identity

    def _load(self, file: AudioFile) -> Embedded:
        start, _ = self._entries[file.id]
        self._file.seek(start)
        try:
            return _embedded(file, json.loads(self._file.readline()))
        except (ValueError, KeyError, TypeError) as error:
            raise bad(self.path, "", f"its line for {file.id} is damaged", "leave out `resume`") from error


def _embedded(file: AudioFile, entry: dict[str, Any]) -> Embedded:
    """The result for a file, from its line."""
    ids, pieces, kinds, notes = (tuple(entry[name]) for name in ("ids", "pieces", "kinds", "notes"))
    X = np.frombuffer(base64.b64decode(entry["X"]), np.float32).reshape(entry["shape"])
    spans = tuple((start, end) for start, end in entry["spans"])
    qualities = {name: AudioQuality(**values) for name, values in entry["qualities"].items()}
    speech = np.array(entry["speech"], float).reshape(-1, 2)
    return Embedded(file, ids, X, pieces, kinds, spans, qualities, speech, notes)


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The contents of a line; None if the line is not whole."""
    with suppress(ValueError, KeyError, IndexError, TypeError):
        entry = json.loads(line)
        return entry if line.endswith(b"\n") and isinstance(entry["file"][0], str) else None
    return None


def _identity(file: AudioFile) -> list[Any]:
    """The identity of a file by its name, size and time of change: a file that has changed is embedded anew."""
    try:
        status = os.stat(file.path)
    except (OSError, ValueError):
        return [file.id, file.path]
    return [file.id, file.path, status.st_size, status.st_mtime_ns]
