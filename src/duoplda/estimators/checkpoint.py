"""Work that was interrupted goes on where it stopped, by a file beside the model.

Of a training the file holds the state of EM, of an adaptation the results of the stages that are done.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from duoplda.data import Recordings
from duoplda.errors import DuopldaError, printable
from duoplda.estimators.backend import Backend
from duoplda.estimators.plda import PLDA
from duoplda.io import read_container, write_container
from duoplda.model.em import State
from duoplda.observer import SILENT, Arrays, Observer
from duoplda.trials.tables import packed, unpacked

RESUME_FILE = "duoplda-resume"  # the kind of the file, as its header names it

Note = Callable[[str], None]  # prints a message for people


def _say_nothing(message: str) -> None:
    """Messages go nowhere unless somebody asks for them."""


def _hash(value: object) -> str:
    """A hash of what JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _write(path: Path, arrays: Arrays, header: dict[str, Any]) -> None:
    """Write a checkpoint with a checksum over all that it holds."""
    write_container(path, RESUME_FILE, arrays, {**header, "checksum": _checksum(arrays, header)}, force=True)


def _read(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """Read a checkpoint, if it is what was written: work that went on from anything else would end in another model."""
    arrays, header = read_container(path, (RESUME_FILE,))
    content = {name: value for name, value in header.items() if name not in ("format", "version", "checksum")}
    if header.get("checksum") != _checksum(arrays, content):
        raise _damaged(path, "its checksum is not that of its content")
    return arrays, content


def _damaged(path: Path, cause: object) -> DuopldaError:
    return DuopldaError(printable(f"{path} is damaged: remove it, and start anew ({cause})"))


def _checksum(arrays: Arrays, header: dict[str, Any]) -> str:
    """The SHA-256 of arrays and a header."""
    digest = hashlib.sha256(_hash(header).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode() + array.tobytes())
    return digest.hexdigest()


class Checkpoint(Observer):
    """Keeps the state of EM after its last finished iteration in a file.

    Parameters
    ----------
    path : the file, which belongs to the data and the options of one training
    options : of the training, as JSON has them
    recordings : they know their `digest` once they have been read
    resume : whether training goes on from the file
    observer : is told everything, too
    note : gets messages for people
    """

    def __init__(
        self,
        path: Path,
        options: Mapping[str, Any],
        recordings: Recordings,
        *,
        resume: bool = False,
        observer: Observer = SILENT,
        note: Note = _say_nothing,
    ):
        self.following = observer
        self.path = path
        self.options = options
        self.recordings = recordings
        self.note = note
        self.written = False
        self._next_time = 0.0
        self._unwritten: State | None = None
        self._unused: tuple[Arrays, dict[str, Any]] | None = None  # what the file holds, until training begins
        if resume and path.exists():
            self._unused = _read(path)
        elif resume:
            note(f"{path} is not there: training starts from the beginning")

    def _key(self) -> str:
        return _hash([self.options, getattr(self.recordings, "digest", None)])

    def training_begins(self) -> State | None:
        super().training_begins()
        if self._unused is None:
            return None
        arrays, header = self._unused
        self._unused = None
        if header.get("key") != self._key():
            remedy = "repeat those, or remove it and train anew"
            raise DuopldaError(f"{self.path} is of a training with other data or options: {remedy}")
        try:
            state = State.from_arrays(arrays, header["kinds"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise _damaged(self.path, error) from None
        self.note(f"going on after iteration {len(state.trace) - 1}")
        return state

    def state(self, state: State) -> None:
        """Write the state, but only so often that writing takes a twentieth of the time at most."""
        super().state(state)
        self._unwritten = state
        if time.monotonic() >= self._next_time:
            begin = time.monotonic()
            self.write()
            self._next_time = time.monotonic() + 20 * (time.monotonic() - begin)

    def write(self) -> None:
        """Write the last state, if it has not been written."""
        if self._unwritten is not None:
            header = {"key": self._key(), "kinds": self._unwritten.model.kinds.tolist()}
            _write(self.path, self._unwritten.arrays(), header)
            self._unwritten = None
            self.written = True


def fit(
    backend: Backend,
    recordings: Recordings,
    path: Path,
    *,
    resume: bool = False,
    device: str | None = None,
    observer: Observer = SILENT,
    note: Note = _say_nothing,
) -> Backend:
    """Train a back-end on recordings that know their `digest`, and keep the state of EM in a file until it is done.

    With `resume`, training goes on from that file; the result is the same as that of a training without interruption.
    """
    plda = PLDA(shrinkage="auto", random_state=0) if backend.plda is None else backend.plda
    trained = clone(backend)
    trained.set_params(plda=plda)
    may_differ = ("plda", "plda__tol", "plda__max_iter", "plda__callback")  # from one run to the next
    options = {name: value for name, value in trained.get_params().items() if name not in may_differ}
    checkpoint = Checkpoint(path, options, recordings, resume=resume, observer=observer, note=note)
    try:
        trained.fit(recordings, device=device, observer=checkpoint)
    except BaseException:  # Ctrl-C above all: the last finished iteration is kept
        checkpoint.write()
        if checkpoint.written:
            note(f"to go on from {path}: the same command with --resume")
        raise
    return trained


class StageCheckpoint(Observer):
    """Keeps the results of the finished stages of an adaptation in a file.

    Parameters
    ----------
    path : the file, which belongs to the model, the data and the options of one adaptation
    options : what tells adaptations apart before data are read, as JSON has it
    recordings, resume, observer, note : as for `Checkpoint`
    """

    def __init__(
        self,
        path: Path,
        options: Mapping[str, Any],
        recordings: Recordings,
        *,
        resume: bool = False,
        observer: Observer = SILENT,
        note: Note = _say_nothing,
    ):
        self.following = observer
        self.path = path
        self.options = _hash(options)
        self.recordings = recordings
        self.note = note
        self.written = False
        self.results: dict[str, Arrays] = {}  # by stage
        self._digest: str | None = None  # of the data that the file is of, until it has been compared
        if resume and path.exists():
            self._open()
        elif resume:
            note(f"{path} is not there: the adaptation starts from the beginning")

    def _open(self) -> None:
        arrays, header = _read(self.path)
        if header.get("adaptation") != self.options:
            raise self._refusal("another model, or other labels or options")
        try:
            self._digest = str(header["data"])
            for stage, names in header["stages"].items():
                self.results[stage] = {name: unpacked(arrays[f"{stage}: {name}"]) for name in names}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(self.path, error) from None

    def _refusal(self, what: str) -> DuopldaError:
        return DuopldaError(f"{self.path} is of {what}: repeat the command that wrote it, or remove it and adapt anew")

    def _data(self) -> str:
        return _hash(getattr(self.recordings, "digest", None))

    def stage(self, name: str) -> Arrays | None:
        if self._digest is not None:  # the first stage: the recordings have been read
            if self._digest != self._data():
                self.results.clear()
                raise self._refusal("an adaptation to other recordings")
            self.note(f"going on after {len(self.results)} stages")
            self._digest = None
        if name not in self.results:
            super().stage(name)
        return self.results.get(name)

    def stage_done(self, name: str, results: Arrays) -> None:
        super().stage_done(name, results)
        self.results[name] = results
        arrays: dict[str, NDArray[Any]] = {}
        for stage, by_name in self.results.items():
            arrays |= {f"{stage}: {key}": packed(array) for key, array in by_name.items()}
        stages = {stage: list(by_name) for stage, by_name in self.results.items()}
        header = {"adaptation": self.options, "data": self._data(), "stages": stages}
        _write(self.path, arrays, header)
        self.written = True


def adapt(
    backend: Backend,
    recordings: Recordings,
    path: Path,
    *,
    inputs: list[str] | None = None,
    resume: bool = False,
    device: str | None = None,
    observer: Observer = SILENT,
    note: Note = _say_nothing,
    **options: Any,
) -> Backend:
    """Adapt a back-end to recordings that know their `digest`, and keep finished stages in a file until all are done.

    With `resume`, the adaptation goes on from that file, to the same model. `inputs` tells the back-end and the labels
    apart from others, hashes of files for one; `options` are those of `Backend.adapt`, as JSON has them.
    """
    identity = {**options, "inputs": inputs}
    checkpoint = StageCheckpoint(path, identity, recordings, resume=resume, observer=observer, note=note)
    try:
        return backend.adapt(recordings, **options, device=device, observer=checkpoint)
    except BaseException:  # Ctrl-C above all
        if checkpoint.written or checkpoint.results:
            note(f"to go on from {path}: the same command with --resume")
        raise
