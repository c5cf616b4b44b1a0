"""Recordings as the rest of the package reads them: labels as integers, and vectors in chunks."""

from duoplda.data.labels import Labels
from duoplda.data.recordings import ROWS, Chunk, Recordings, as_recordings

__all__ = ["ROWS", "Chunk", "Labels", "Recordings", "as_recordings"]
