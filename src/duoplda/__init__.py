"""PLDA with two sources of inter-session variability: speaker, session, channel."""

import importlib
from typing import TYPE_CHECKING, Any

from duoplda.errors import DomainWarning, DuopldaError

if TYPE_CHECKING:
    from duoplda.data.recordings import Recordings
    from duoplda.estimators.advice import advise
    from duoplda.estimators.backend import Backend
    from duoplda.estimators.plda import PLDA
    from duoplda.estimators.scoring import enroll_recordings, score
    from duoplda.evaluation.splitting import split
    from duoplda.model.posteriors import Posterior
    from duoplda.model.statistics import Statistics
    from duoplda.trials.sides import Sides

__version__ = "0.1.0"

__all__ = ["PLDA", "Backend", "DomainWarning", "DuopldaError", "Posterior", "Recordings", "Sides", "Statistics"]
__all__ += ["__version__", "advise", "enroll_recordings", "score", "split"]

# Each is imported on first use, because the help of the command line must not wait for SciPy and scikit-learn.
_ROOMS = {
    "PLDA": "estimators.plda",
    "Backend": "estimators.backend",
    "Recordings": "data.recordings",
    "Sides": "trials.sides",
    "Posterior": "model.posteriors",
    "Statistics": "model.statistics",
    "advise": "estimators.advice",
    "enroll_recordings": "estimators.scoring",
    "score": "estimators.scoring",
    "split": "evaluation.splitting",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return getattr(importlib.import_module(f"duoplda.{_ROOMS[name]}"), name)
    raise AttributeError(f"module 'duoplda' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
