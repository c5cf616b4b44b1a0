"""Embeddings of audio beside sherpa-onnx's own loop, and beside real time: `python -m benchmarks.audio MODEL FOLDER`.

MODEL is an extractor as ONNX, FOLDER has recordings. The floor reads each recording with soundfile and embeds it with
sherpa-onnx, one after another on one thread. Ours looks for speech, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.common import Row, interleaved, table
from duoplda.audio import KINDS, AudioFile, Extractor, Pieces, audio_rate, embed_audio, list_audio, read_audio


def by_hand(model: Path, files: list[AudioFile]) -> Callable[[], None]:
    """The loop of sherpa-onnx's examples."""
    import sherpa_onnx
    import soundfile

    extractor = sherpa_onnx.SpeakerEmbeddingExtractor(sherpa_onnx.SpeakerEmbeddingExtractorConfig(model=str(model)))

    def run() -> None:
        for file in files:
            samples, rate = soundfile.read(file.path, dtype="float32")
            stream = extractor.create_stream()
            stream.accept_waveform(sample_rate=rate, waveform=samples)
            stream.input_finished()
            np.array(extractor.compute(stream))

    return run


def ours(extractor: Extractor, files: list[AudioFile], pieces: Pieces, threads: int) -> None:
    """All embeddings, by so many threads."""
    with threadpool_limits(threads):
        for one in embed_audio(extractor, files, pieces):
            assert not one.problems


def rows(model: Path, folder: Path) -> list[Row]:
    """What is measured."""
    extractor, files = Extractor(model), list_audio(folder)
    seconds = sum(len(read_audio(file.path)[0]) / audio_rate(file.path) for file in files)
    ways = {
        "embeddings, 1 thread": (Pieces(), 1),
        "embeddings and quality, 1 thread": (Pieces(quality=True), 1),
        "embeddings, 2 threads": (Pieces(), 2),
        f"embeddings of {len(KINDS)} copies, 1 thread": (Pieces(kinds=KINDS), 1),
    }
    floor, *times = interleaved(
        by_hand(model, files), *(partial(ours, extractor, files, *way) for way in ways.values()), repeat=3
    )
    size = f"{len(files)} files, {seconds:.0f} s"
    goals = (1.1, None, None, None)
    beside = [Row(what, size, took, floor, goal) for what, took, goal in zip(ways, times, goals, strict=True)]
    return [*beside, Row("embeddings, 1 thread, beside real time", size, times[0], seconds, None)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audio", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    print(table(rows(given.model, given.folder)))


if __name__ == "__main__":
    main()
