"""The observer, to which training and adaptation report progress, iterations of EM and what a checkpoint keeps.

An observer is given to the estimator and passed down, so that no lower room has to know who is watching.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duoplda.model.em import State
    from duoplda.model.parameters import Model

Arrays = Mapping[str, "NDArray[Any]"]  # the results of a stage, by name


class Observer:
    """Receives what training and adaptation report. A subclass overrides the methods that it needs.

    A method that is not overridden passes the report on to the observer in `following`, if there is one.

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
        """Called before EM, when no recording will be read again.

        Returns the state from which EM continues, or None if it starts from the beginning.
        """
        return None if self.following is None else self.following.training_begins()

    def fold(self, done: int, folds: int) -> None:
        """Called when the model without the speakers of one more fold has been trained."""
        if self.following is not None:
            self.following.fold(done, folds)

    def search(self, step: int, cost: float) -> None:
        """Called when the search has scored the held-out trials at one more point."""
        if self.following is not None:
            self.following.search(step, cost)

    def state(self, state: State) -> None:
        """Called after each iteration of EM. EM that continues from this state gives bit-identical results."""
        if self.following is not None:
            self.following.state(state)

    def iteration(self, iteration: int, log_likelihood: float, model: Model) -> bool:
        """Called after each iteration of EM. Returning True ends the training."""
        return self.following is not None and self.following.iteration(iteration, log_likelihood, model)

    def stage(self, name: str) -> Arrays | None:
        """Called when a stage of an adaptation begins. Returns its results if an earlier run finished it, else None."""
        return None if self.following is None else self.following.stage(name)

    def stage_done(self, name: str, results: Arrays) -> None:
        """Called when a stage of an adaptation has been computed."""
        if self.following is not None:
            self.following.stage_done(name, results)


SILENT = Observer()  # ignores every report


class WithCallback(Observer):
    """Also calls the user's function after each iteration of EM, and ends the training if it returns a true value."""

    def __init__(self, callback: Callable[[int, float, Model], object], following: Observer = SILENT):
        self.callback = callback
        self.following = following

    def iteration(self, iteration: int, log_likelihood: float, model: Model) -> bool:
        stop = super().iteration(iteration, log_likelihood, model)
        return bool(self.callback(iteration, log_likelihood, model)) or stop
