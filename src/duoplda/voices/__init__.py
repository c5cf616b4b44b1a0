"""Known voices: a registry of enrolled voices, which says who speaks in new recordings, or that nobody of them does.

A `Registry` is one SQLite file, or tables of a PostgreSQL server, with the voices, their sessions and the sufficient
statistics of these (`pip install duoplda[voices]`). Several programs may read and write it at a time.
"""

from duoplda.trials.identification import Costs
from duoplda.voices.answers import Candidate, Identification, Session, Verification, Voice
from duoplda.voices.registry import Registry

__all__ = ["Candidate", "Costs", "Identification", "Registry", "Session", "Verification", "Voice"]
