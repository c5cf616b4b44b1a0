"""PLDA with two sources of inter-session variability: speaker, session, channel."""

from duoplda.errors import DuopldaError
from duoplda.estimator import PLDA
from duoplda.llr import Sides
from duoplda.model import Posterior
from duoplda.statistics import Statistics

__version__ = "0.1.0"

__all__ = ["PLDA", "DuopldaError", "Posterior", "Sides", "Statistics", "__version__"]
