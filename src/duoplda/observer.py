"""One typed way to be told what a long job is doing: progress, the end of an iteration, what a checkpoint keeps.

An observer is given to the estimator and passed down, so that no lower room has to know who is watching.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duoplda.model.em import State
    from duoplda.model.parameters import Model

Arrays = Mapping[str, "NDArray[Any]"]  # the results of a stage by name


class Observer(Protocol):
    """What training and adaptation report. A subclass overrides what it wants to know; the rest does nothing.

    >>> class Progress(Observer):
    ...     def iteration(self, iteration, log_likelihood, model):
    ...         print(iteration, round(log_likelihood))
    ...         return iteration == 2  # that is enough
    >>> from duoplda import PLDA
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(30, seed=0)
    >>> plda = PLDA(4, 4).fit(X, speaker, session=session, observer=Progress())
    1 -22049
    2 -21943
    """

    def training_begins(self) -> State | None:
        """No recording will be read again. Gives the state of EM to go on from; None: EM starts from the beginning."""
        return None

    def fold(self, done: int, folds: int) -> None:
        """The model without the speakers of one more fold has been trained."""
        return

    def search(self, step: int, cost: float) -> None:
        """The search has scored the held-out trials at one more point."""
        return

    def state(self, state: State) -> None:
        """EM has finished an iteration: with this state as its start it goes on to the very same bits."""
        return

    def iteration(self, iteration: int, log_likelihood: float, model: Model) -> bool:
        """EM has finished an iteration; True ends the training."""
        return False

    def stage(self, name: str) -> Arrays | None:
        """A stage of an adaptation begins. Gives its results if an earlier run has finished it, otherwise None."""
        return None

    def stage_done(self, name: str, results: Arrays) -> None:
        """A stage of an adaptation has been computed."""
        return


class Silent(Observer):
    """Tells nobody."""


SILENT = Silent()  # for default arguments


class Forwarding(Observer):
    """Passes everything on to another observer; subclasses change some of it on the way."""

    def __init__(self, observer: Observer):
        self.observer = observer

    def training_begins(self) -> State | None:
        return self.observer.training_begins()

    def fold(self, done: int, folds: int) -> None:
        self.observer.fold(done, folds)

    def search(self, step: int, cost: float) -> None:
        self.observer.search(step, cost)

    def state(self, state: State) -> None:
        self.observer.state(state)

    def iteration(self, iteration: int, log_likelihood: float, model: Model) -> bool:
        return self.observer.iteration(iteration, log_likelihood, model)

    def stage(self, name: str) -> Arrays | None:
        return self.observer.stage(name)

    def stage_done(self, name: str, results: Arrays) -> None:
        self.observer.stage_done(name, results)


class WithCallback(Forwarding):
    """Also calls a function of the user after each iteration of EM; what is true of its answer ends the training."""

    def __init__(self, callback: Callable[[int, float, Model], object], observer: Observer):
        super().__init__(observer)
        self.callback = callback

    def iteration(self, iteration: int, log_likelihood: float, model: Model) -> bool:
        stop = self.observer.iteration(iteration, log_likelihood, model)
        return bool(self.callback(iteration, log_likelihood, model)) or stop
