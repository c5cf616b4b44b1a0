"""Interrupted work goes on where it stopped, with the help of a file beside the model.

For a training, the file holds the state of EM after its last finished iteration; for an adaptation, the results of the
stages that are done.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
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
EM = "EM"  # the stage whose results are a state of EM

Note = Callable[[str], None]  # prints a message for people


def _say_nothing(message: str) -> None:
    """Messages go nowhere unless somebody asks for them."""


def _hash(value: object) -> str:
    """A hash of what JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _checksum(arrays: Arrays, header: dict[str, Any]) -> str:
    """The SHA-256 of arrays and a header."""
    digest = hashlib.sha256(_hash(header).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode() + array.tobytes())
    return digest.hexdigest()


class Checkpoint(Observer):
    """Keeps the state of EM of a training, or the finished stages of an adaptation, in a file.

    Parameters
    ----------
    path : the file, which belongs to the data and the options of one job
    options : what distinguishes this job from others before data are read, as a dictionary that JSON can hold
    recordings : recordings that have a `digest` once they have been read
    resume : whether to go on from the file
    observer : receives everything that this observer receives
    note : receives messages for people
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
        self.holds_work = False  # whether the file has work of this job
        self.stages: dict[str, Arrays] = {}  # results by stage
        self._kinds: list[Any] = []
        self._data: str | None = None  # a hash of the data that the file is of, until it has been compared
        self._next_time = 0.0
        self._unwritten: State | None = None
        if resume and path.exists():
            self._open()
        elif resume:
            note(f"{path} is not there: the work starts from the beginning")

    def _open(self) -> None:
        """Read the file, and refuse any but the one that this job wrote: another one would lead to another result."""
        arrays, header = read_container(self.path, (RESUME_FILE,))
        content = {name: value for name, value in header.items() if name not in ("format", "version", "checksum")}
        if header.get("checksum") != _checksum(arrays, content):
            raise self._damaged("its checksum is not that of its content")
        if header.get("options") != self.options:
            raise self._refusal("another model, or of other labels or options")
        try:
            self._data = str(header["data"])
            self._kinds = list(header["kinds"])
            for stage, names in header["stages"].items():
                self.stages[stage] = {name: arrays[f"{stage}: {name}"] for name in names}
                if stage != EM:
                    self.stages[stage] = {name: unpacked(array) for name, array in self.stages[stage].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._damaged(error) from None

    def _damaged(self, cause: object) -> DuopldaError:
        return DuopldaError(printable(f"{self.path} is damaged: remove it, and start anew ({cause})"))

    def _refusal(self, what: str) -> DuopldaError:
        return DuopldaError(f"{self.path} is of {what}: repeat the command that wrote it, or remove it and start anew")

    def _data_now(self) -> str:
        return _hash(getattr(self.recordings, "digest", None))

    def _check_data(self) -> None:
        """Refuse results of other recordings than those that have now been read."""
        if self._data is not None and self._data != self._data_now():
            self.stages.clear()
            raise self._refusal("other recordings")
        self._data = None
        self.holds_work = bool(self.stages)

    def training_begins(self) -> State | None:
        super().training_begins()
        self._check_data()
        arrays = self.stages.pop(EM, None)
        if arrays is None:
            return None
        try:
            state = State.from_arrays(arrays, self._kinds)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise self._damaged(error) from None
        self.note(f"going on after iteration {len(state.trace) - 1}")
        return state

    def state(self, state: State) -> None:
        """Write the state, but only so often that writing takes at most a twentieth of the time."""
        super().state(state)
        self._unwritten = state
        if time.monotonic() >= self._next_time:
            begin = time.monotonic()
            self.write_state()
            self._next_time = time.monotonic() + 20 * (time.monotonic() - begin)

    def write_state(self) -> None:
        """Write the last state of EM, if it has not been written."""
        if self._unwritten is not None:
            self._write({EM: self._unwritten.arrays()}, self._unwritten.model.kinds.tolist())
            self._unwritten = None

    def stage(self, name: str) -> Arrays | None:
        if self._data is not None:  # at the first stage; the recordings have been read by now
            self._check_data()
            self.note(f"going on after {len(self.stages)} stages")
        if name not in self.stages:
            super().stage(name)
        return self.stages.get(name)

    def stage_done(self, name: str, results: Arrays) -> None:
        super().stage_done(name, results)
        self.stages[name] = results
        packed_stages = {}
        for stage, by_name in self.stages.items():
            packed_stages[stage] = {key: packed(array) for key, array in by_name.items()}
        self._write(packed_stages, [])

    def _write(self, stages: Mapping[str, Arrays], kinds: list[Any]) -> None:
        """Write results by stage and the names of kinds of channels, with a checksum over all of it."""
        arrays = {f"{stage}: {key}": array for stage, by_name in stages.items() for key, array in by_name.items()}
        header: dict[str, Any] = {"options": self.options, "data": self._data_now(), "kinds": kinds}
        header["stages"] = {stage: list(by_name) for stage, by_name in stages.items()}
        write_container(self.path, RESUME_FILE, arrays, {**header, "checksum": _checksum(arrays, header)}, force=True)
        self.holds_work = True

    @contextmanager
    def kept(self) -> Iterator[None]:
        """If the block is interrupted, for one by Ctrl-C, keep what it has done and say how to go on."""
        try:
            yield
        except BaseException:
            self.write_state()
            if self.holds_work:
                self.note(f"to go on from {self.path}: the same command with --resume")
            raise


def fit(
    backend: Backend,
    recordings: Recordings,
    path: Path,
    *,
    device: str | None = None,
    **options: Any,
) -> Backend:
    """Train a back-end on recordings that know their `digest`, and keep the state of EM in a file until it is done.

    The `options` are those of `Checkpoint`. With `resume`, training goes on from that file, to the same result as that
    of a training without interruption.
    """
    plda = PLDA(shrinkage="auto", random_state=0) if backend.plda is None else backend.plda
    trained = clone(backend)
    trained.set_params(plda=plda)
    may_differ = ("plda", "plda__tol", "plda__max_iter", "plda__callback")  # between the runs of one training
    parameters = {name: value for name, value in trained.get_params().items() if name not in may_differ}
    checkpoint = Checkpoint(path, parameters, recordings, **options)
    with checkpoint.kept():
        return trained.fit(recordings, device=device, observer=checkpoint)


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

    With `resume`, the adaptation goes on from that file, to the same model. `inputs` identify the back-end and the
    labels, for example by hashes of files; `options` are those of `Backend.adapt`, as JSON can hold them.
    """
    identity = {**options, "inputs": inputs}
    checkpoint = Checkpoint(path, identity, recordings, resume=resume, observer=observer, note=note)
    with checkpoint.kept():
        return backend.adapt(recordings, **options, device=device, observer=checkpoint)
