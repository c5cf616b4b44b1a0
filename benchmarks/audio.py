"""Embeddings of audio beside sherpa-onnx's own loop, and beside real time: `python -m benchmarks.audio MODEL FOLDER`.

MODEL is an extractor as ONNX, FOLDER has recordings. The floor reads each recording with soundfile and embeds it with
sherpa-onnx, one after another on one thread. Ours looks for speech, too. Times are the processor's, so that others'
work on the machine does not count.

With `--hostile 10000` as many files are read whose headers were changed at random, and ten hours of silence are
embedded: what came of them, and the memory that it took. The exit status is 1 where one was anything but read or
refused in a line.

With `--speech`, the detector of speech hears 300 drawn noises of each colour, and the recordings made quiet, and in
noise.
"""

from __future__ import annotations

import argparse
import io
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.common import Row, interleaved, table
from duoplda import DuopldaError
from duoplda.audio import (
    KINDS,
    AudioFile,
    EnergyDetector,
    Extractor,
    Pieces,
    audio_blocks,
    audio_rate,
    embed_audio,
    list_audio,
    read_audio,
)

RATE = 16_000
HEADER = 128  # bytes at the beginning that are changed
FORMATS = {"WAV": ("PCM_16", "PCM_24", "ULAW", "FLOAT"), "FLAC": ("PCM_16",), "OGG": ("VORBIS", "OPUS")}
FORMATS |= {"MP3": ("MPEG_LAYER_III",), "AU": ("ULAW",), "AIFF": ("PCM_16",), "NIST": ("PCM_16",), "CAF": ("PCM_16",)}


# -- speed


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


def ours(extractor: Extractor, files: list[AudioFile], pieces: Pieces) -> None:
    """All embeddings, on one thread."""
    with threadpool_limits(1):
        for one in embed_audio(extractor, files, pieces):
            assert not one.problems


def rows(model: Path, folder: Path) -> list[Row]:
    """What is measured."""
    extractor, files = Extractor(model), list_audio(folder)
    seconds = sum(len(read_audio(file.path)[0]) / audio_rate(file.path) for file in files)
    ways = {
        "embeddings": Pieces(),
        "embeddings and quality": Pieces(quality=True),
        f"embeddings of {len(KINDS)} copies": Pieces(kinds=KINDS),
    }
    functions = [by_hand(model, files), *(partial(ours, extractor, files, pieces) for pieces in ways.values())]
    floor, *times = interleaved(*functions, repeat=3, clock=time.process_time)
    size = f"{len(files)} files, {seconds:.0f} s"
    goals = (1.1, None, None)
    beside = [Row(what, size, took, floor, goal) for what, took, goal in zip(ways, times, goals, strict=True)]
    return [*beside, Row("embeddings, beside real time", size, times[0], seconds, None)]


# -- hostile files


def whole_files(samples: np.ndarray) -> list[bytes]:
    """The same samples in each format."""
    import soundfile

    files = []
    for kind, codings in FORMATS.items():
        for coding in codings:
            with io.BytesIO() as file:
                soundfile.write(file, samples, RATE, format=kind, subtype=coding)
                files.append(file.getvalue())
    return files


def mutated(rng: np.random.Generator, whole: bytes) -> bytes:
    """A file with up to five other bytes in its header; of every fifth, the end is missing."""
    content = bytearray(whole)
    for place in rng.integers(min(len(whole), HEADER), size=rng.integers(1, 6)):
        content[place] = rng.integers(256)
    return bytes(content[: rng.integers(1, len(whole))] if rng.random() < 0.2 else content)


def outcome(path: Path) -> str:
    """What comes of reading a file."""
    try:
        n = sum(len(block) for block in audio_blocks(path, RATE))
    except DuopldaError as error:
        return "refused" if "\n" not in str(error) else "refused in several lines"
    except Exception as error:
        return f"raised {type(error).__name__}"
    return "read" if n else "read, and has no samples"


def hostile(n: int, folder: Path) -> Counter[str]:
    """What came of n files whose headers were changed."""
    rng = np.random.default_rng(0)
    files = whole_files(0.1 * rng.normal(size=8000))
    path = folder / "mutated"
    outcomes = Counter[str]()
    for i in range(n):
        path.write_bytes(mutated(rng, files[i % len(files)]))
        outcomes[outcome(path)] += 1
    return outcomes


def silence(extractor: Extractor, folder: Path, hours: int = 10) -> str:
    """What is said of hours of silence."""
    import soundfile

    path = folder / "silence.flac"
    with soundfile.SoundFile(path, "w", RATE, 1) as file:
        for _ in range(60 * hours):
            file.write(np.zeros(60 * RATE, np.float32))
    (one,) = embed_audio(extractor, list_audio(path))
    return "; ".join([*one.notes, *one.problems])


def peak() -> str:
    """The largest memory that this process had until now."""
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB"


def attack(model: Path, n: int) -> bool:
    """Print what came of hostile files; true if none was worse than refused."""
    with tempfile.TemporaryDirectory() as name:
        outcomes = hostile(n, Path(name))
        print(f"{n:,} files with changed headers: {dict(outcomes)}; memory at most {peak()}", flush=True)
        begin = time.perf_counter()
        said = silence(Extractor(model), Path(name)).replace(f"{name}/", "")
        print(f"{said}: {time.perf_counter() - begin:.0f} s; memory at most {peak()}, the extractor included")
    return {*outcomes} <= {"read", "refused"}


# -- where speech is


def coloured(rng: np.random.Generator, n: int, slope: float) -> np.ndarray:
    """Noise of variance 1 whose amplitudes go with this power of the frequency: 0 white, -0.5 pink, -1 brown."""
    frequency = np.maximum(np.fft.rfftfreq(n, 1 / RATE), 20.0)
    noise = np.fft.irfft(np.fft.rfft(rng.normal(size=n)) * frequency**slope, n)
    return noise / noise.std()


def heard(samples: np.ndarray) -> float:
    """Seconds of speech that are found."""
    return float(np.diff(EnergyDetector().regions([samples.astype(np.float32)], RATE), axis=1).sum())


def speech(folder: Path, n: int = 100) -> Iterator[str]:
    """In how many drawn noises there is said to be speech, and what is found of recordings in noise."""
    rng = np.random.default_rng(1)
    for colour, slope in (("white", 0.0), ("pink", -0.5), ("brown", -1.0)):
        noises = [
            10 ** rng.uniform(-3, -0.5) * coloured(rng, seconds * RATE, slope)
            for seconds in (1, 3, 10)
            for _ in range(n)
        ]
        wrong = sum(heard(noise) > 0 for noise in noises)
        yield f"{colour} noise of 1, 3 and 10 s: speech is found in {wrong} of {len(noises)}"
    recordings = [read_audio(file.path, RATE)[0] for file in list_audio(folder)]
    clean = np.array([heard(samples) for samples in recordings])
    yield f"as recorded: speech is found in {np.count_nonzero(clean)} of {len(recordings)} recordings"
    for level in (-40, -50, -60, -70):
        quiet = [samples * 10 ** (level / 20) / np.sqrt(np.mean(samples**2)) for samples in recordings]
        n_heard = sum(heard(np.round(32768 * samples) / 32768) > 0 for samples in quiet)
        yield f"{-level} dB below full scale, in 16 bits: speech is found in {n_heard} of {len(quiet)}"
    for snr in (20, 10, 5, 0, -5):
        levels = [np.sqrt(np.mean(samples**2) / 10 ** (snr / 10)) for samples in recordings]
        noisy = [heard(s + level * coloured(rng, len(s), -0.5)) for s, level in zip(recordings, levels, strict=True)]
        share = sum(noisy) / clean.sum()
        yield f"pink noise, SNR {snr} dB: in {np.count_nonzero(noisy)} of {len(noisy)}, {100 * share:.0f} % of the time"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audio", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hostile", type=int, metavar="N", help="files with changed headers, instead of the times")
    parser.add_argument("--speech", action="store_true", help="what the detector of speech finds, instead of the times")
    given = parser.parse_args()
    if given.speech:
        print(*speech(given.folder), sep="\n")
    elif given.hostile is None:
        print(table(rows(given.model, given.folder)))
    else:
        sys.exit(not attack(given.model, given.hostile))


if __name__ == "__main__":
    main()
