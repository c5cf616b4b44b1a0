"""Work that was interrupted goes on where it stopped, by a file beside the model.

Of a training it holds the state of EM, of an adaptation the results of the stages that are done.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from duoplda.data import Recordings
from duoplda.errors import DuopldaError
from duoplda.estimators.backend import Backend
from duoplda.estimators.plda import PLDA
from duoplda.io import read_container, write_container
from duoplda.model.em import State
from duoplda.trials.tables import packed, unpacked

KIND = "duoplda-resume"
Callback = Callable[..., Any]


def _ignore(*_: Any) -> None:
    """A callback that does nothing."""


def _hash(value: Any) -> str:
    """Of what JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@dataclass(eq=False, repr=False)
class Checkpoint:
    """The state of EM after its last finished iteration, in a file: a callback of `PLDA` that is offered each state."""

    path: Path  # the file, which belongs to the data and the options of one training
    options: Mapping[str, Any]  # of the training, as JSON has them
    data: Callable[[], Any]  # gives what tells the data apart, a hash for one; called after the data have been read
    callback: Callback = _ignore  # a further callback, such as one that shows progress
    note: Callback = _ignore  # gets messages for people
    written: bool = False
    _next: float = 0.0  # when to write again
    _last: State | None = None
    _read: tuple[dict[str, Any], dict[str, Any]] | None = None

    def _key(self) -> str:
        return _hash([self.options, self.data()])

    def open(self) -> None:
        """Read the file of an interrupted training, if there is one."""
        if self.path.exists():
            self._read = read_container(self.path, (KIND,))
        else:
            self.note(f"{self.path} is not there: training starts from the beginning")

    def start(self) -> State | None:
        """The state to go on from, once the data have been read; None: from the beginning."""
        if self._read is None:
            return None
        arrays, header = self._read
        if header.get("key") != self._key():
            remedy = "repeat those, or remove it and train anew"
            raise DuopldaError(f"{self.path} is of a training with other data or options: {remedy}")
        try:
            state = State.from_arrays(arrays, header["kinds"])
        except (KeyError, TypeError, ValueError) as error:
            raise DuopldaError(f"{self.path} is damaged ({error}): remove it and train anew") from None
        self.note(f"going on after iteration {len(state.trace) - 1}")
        return state

    def __call__(self, iteration: int, log_likelihood: float, model: Any) -> Any:
        return self.callback(iteration, log_likelihood, model)

    def held_out(self, done: int, folds: int) -> None:
        """Called after each fold of held-out speakers."""
        getattr(self.callback, "held_out", _ignore)(done, folds)

    def trials(self, step: int, cost: float) -> None:
        """Called after each step down the cost of held-out trials."""
        getattr(self.callback, "trials", _ignore)(step, cost)

    def state(self, state: State) -> None:
        """Called after each iteration; the file is written so often that it takes a twentieth of the time at most."""
        self._last = state
        if time.monotonic() >= self._next:
            begin = time.monotonic()
            self.write()
            self._next = time.monotonic() + 20 * (time.monotonic() - begin)

    def write(self) -> None:
        """Write the last state, if it has not been written."""
        if self._last is not None:
            header = {"key": self._key(), "kinds": self._last.model.kinds.tolist()}
            write_container(self.path, KIND, self._last.arrays(), header, force=True)
            self._last = None
            self.written = True


def fit(
    backend: Backend,
    data: Recordings,
    path: Path,
    *,
    resume: bool = False,
    device: str | None = None,
    callback: Callback = _ignore,
    note: Callback = _ignore,
    read: Callback = _ignore,
) -> Backend:
    """Train a back-end on recordings that know their `digest`, and keep the state of EM in a file until it is done.

    With `resume`, training goes on from that file; the result is the same as that of a training without interruption.
    `read()` is called when the recordings have been read for the last time.
    """
    plda = PLDA(shrinkage="auto", random_state=0) if backend.plda is None else backend.plda
    watched = clone(backend).set_params(plda=clone(plda))
    free = ("plda", "plda__tol", "plda__max_iter", "plda__callback")  # may change from one run to the next
    options = {name: value for name, value in watched.get_params().items() if name not in free}
    watch = Checkpoint(path, options, lambda: getattr(data, "digest", None), callback, note)
    watched.plda.callback = watch
    if resume:
        watch.open()

    def start() -> State | None:
        read()
        return watch.start()

    try:
        watched.fit(data, device=device, state=start)
    except BaseException:  # Ctrl-C above all: the last finished iteration is kept
        watch.write()
        if watch.written:
            note(f"to go on from {path}: the same command with --resume")
        raise
    watched.set_params(plda=plda)
    watched.plda_.set_params(callback=None)
    return watched


# -- adaptation


@dataclass(eq=False, repr=False)
class Stages:
    """Results of the finished stages of an adaptation, in a file: the `remember` of `Backend.adapt`."""

    path: Path  # the file, which belongs to the model, the data and the options of one adaptation
    options: Mapping[str, Any]  # what tells adaptations apart before data are read, as JSON has it
    data: Callable[[], Any]  # gives what tells the data apart; called after these have been read
    show: Callback = _ignore  # gets the name of each stage that begins
    note: Callback = _ignore  # gets messages for people
    written: bool = False
    done: dict[str, dict[str, NDArray[Any]]] = field(default_factory=dict)  # arrays by stage and name
    _of: str | None = None  # the data of which the file is

    def open(self) -> None:
        """Read the file of an interrupted adaptation, if there is one."""
        if not self.path.exists():
            self.note(f"{self.path} is not there: the adaptation starts from the beginning")
            return
        arrays, header = read_container(self.path, (KIND,))
        if header.get("adaptation") != _hash(self.options):
            raise self._other("another model, or other labels or options")
        try:
            self._of = str(header["data"])
            for stage, names in header["stages"].items():
                self.done[stage] = {name: unpacked(arrays[f"{stage}: {name}"]) for name in names}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DuopldaError(f"{self.path} is damaged ({error}): remove it and adapt anew") from None

    def _other(self, what: str) -> DuopldaError:
        return DuopldaError(f"{self.path} is of {what}: repeat the command that wrote it, or remove it and adapt anew")

    def __call__(self, stage: str, compute: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """The arrays of a stage by name: those of the file, or those that `compute()` gives, which are then kept."""
        if self._of is not None:
            if self._of != _hash(self.data()):
                self.done.clear()
                raise self._other("an adaptation to other recordings")
            self.note(f"going on after {len(self.done)} stages")
            self._of = None
        if stage not in self.done:
            self.show(None, stage)
            self.done[stage] = {name: np.asarray(value) for name, value in compute().items()}
            self._write()
        return self.done[stage]

    def _write(self) -> None:
        arrays = {f"{s}: {name}": packed(array) for s, own in self.done.items() for name, array in own.items()}
        header = {"adaptation": _hash(self.options), "data": _hash(self.data())}
        stages = {stage: list(own) for stage, own in self.done.items()}
        write_container(self.path, KIND, arrays, {**header, "stages": stages}, force=True)
        self.written = True


def adapt(
    backend: Backend,
    data: Recordings,
    path: Path,
    *,
    inputs: Any = None,
    resume: bool = False,
    device: str | None = None,
    show: Callback = _ignore,
    note: Callback = _ignore,
    **options: Any,
) -> Backend:
    """Adapt a back-end to recordings that know their `digest`, and keep finished stages in a file until all are done.

    With `resume`, the adaptation goes on from that file, to the same model. `inputs` tells the back-end and the labels
    apart from others, hashes of files for one; `options` are those of `Backend.adapt`, as JSON has them.
    """
    stages = Stages(path, {**options, "inputs": inputs}, lambda: getattr(data, "digest", None), show, note)
    if resume:
        stages.open()
    try:
        return backend.adapt(data, **options, device=device, remember=stages)
    except BaseException:  # Ctrl-C above all
        if stages.written or stages.done:
            note(f"to go on from {path}: the same command with --resume")
        raise
