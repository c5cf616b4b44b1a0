"""Audio in the body of a request: embedded by the extractor that the service was started with, and kept nowhere.

A body is one recording, in any format that libsndfile reads. Its embedding is that which `duoplda embed` makes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from duoplda.audio import EnergyDetector, Extractor, received_audio
from duoplda.audio.embedding import LEAST_SPEECH
from duoplda.errors import DuopldaError, error_prefix

LONGEST = 300.0  # seconds: a few megabytes of a format that compresses can hold days of silence


def embedding_of(extractor: Extractor, body: bytes) -> NDArray[np.float32]:
    """Return the embedding (1, d) of a body of audio, which has speech in it."""
    samples = received_audio(body, extractor.sample_rate, LONGEST)
    regions = EnergyDetector().regions(iter([samples]), extractor.sample_rate)
    with error_prefix("the body"):
        if float(np.diff(regions, axis=1).sum()) < LEAST_SPEECH:
            seconds = len(samples) / extractor.sample_rate
            raise DuopldaError(f"has no speech in its {seconds:.1f} s, so that nobody can be recognised in it")
        return extractor.embed(samples)[None]
