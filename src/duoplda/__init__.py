"""PLDA with two sources of inter-session variability: speaker, session, channel."""

from duoplda.errors import DuopldaError

__version__ = "0.1.0"

__all__ = ["DuopldaError", "__version__"]
