"""Known voices: a registry that keeps who is enrolled, and answers who it is, or that it is somebody else.

A `Registry` is one SQLite file, or tables of a PostgreSQL server, in which voices, their sessions and the sufficient
statistics of these lie (`pip install duoplda[voices]`). Several programs may read and write it at a time.
"""

from duoplda.trials.identification import Costs
from duoplda.voices.answers import Candidate, Identification, Session, Verification, Voice
from duoplda.voices.registry import Registry

__all__ = ["Candidate", "Costs", "Identification", "Registry", "Session", "Verification", "Voice"]
