"""One typed way to be told what a long job is doing: progress, the end of an iteration, what a checkpoint keeps.

An observer is given to the estimator and passed down, so that no lower room has to know who is watching.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duoplda.model.em import State
    from duoplda.model.parameters import Model

Arrays = Mapping[str, "NDArray[Any]"]  # the results of a stage by name


class Observer:
    """What training and adaptation report. A subclass overrides what it wants to know.

    What it does not override goes to the observer in `following`, if there is one, and to nobody otherwise.

    >>> class Progress(Observer):
    ...     def iteration(self, iteration, log_likelihood, model):
    ...         print(f"iteration {iteration} is done")
    ...         return iteration == 2  # that is enough
    >>> from duoplda import PLDA
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(30, seed=0)
    >>> plda = PLDA(4, 4).fit(X, speaker, session=session, observer=Progress())
    iteration 1 is done
    iteration 2 is done
    """

    following: Observer | None = None

    def training_begins(self) -> State | None:
        """No recording will be read again. Gives the state of EM to go on from; None: EM starts from the beginning."""
        return None if self.following is None else self.following.training_begins()

    def fold(self, done: int, folds: int) -> None:
        """The model without the speakers of one more fold has been trained."""
        if self.following is not None:
            self.following.fold(done, folds)

    def search(self, step: int, cost: float) -> None:
        """The search has scored the held-out trials at one more point."""
        if self.following is not None:
            self.following.search(step, cost)

    def state(self, state: State) -> None:
        """EM has finished an iteration: with this state as its start it goes on to the very same bits."""
        if self.following is not None:
            self.following.state(state)

    def iteration(self, iteration: int, log_likelihood: float, model: Model) -> bool:
        """EM has finished an iteration; True ends the training."""
        return self.following is not None and self.following.iteration(iteration, log_likelihood, model)

    def stage(self, name: str) -> Arrays | None:
        """A stage of an adaptation begins. Gives its results if an earlier run has finished it, otherwise None."""
        return None if self.following is None else self.following.stage(name)

    def stage_done(self, name: str, results: Arrays) -> None:
        """A stage of an adaptation has been computed."""
        if self.following is not None:
            self.following.stage_done(name, results)


SILENT = Observer()  # tells nobody


class WithCallback(Observer):
    """Also calls a function of the user after each iteration of EM; what is true of its answer ends the training."""

    def __init__(self, callback: Callable[[int, float, Model], object], following: Observer = SILENT):
        self.callback = callback
        self.following = following

    def iteration(self, iteration: int, log_likelihood: float, model: Model) -> bool:
        stop = super().iteration(iteration, log_likelihood, model)
        return bool(self.callback(iteration, log_likelihood, model)) or stop
