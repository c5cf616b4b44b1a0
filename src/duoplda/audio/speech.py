"""Finds speech in a recording, by its energy or, if the user has its ONNX file, by Silero's network."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from duoplda.audio.onnx import read_ends
from duoplda.errors import DuopldaError
from duoplda.io.common import PathLike, bad, listed, need

Floats = NDArray[np.float64]
Samples = NDArray[np.float32]

FRAME = 0.01  # seconds
QUIETEST = -120.0  # dB: the level of digital silence
SILERO = ((["c", "h", "input", "sr"], ["cn", "hn", "output"]), (["input", "sr", "state"], ["output", "stateN"]))
BANDS = np.geomspace(150.0, 3800.0, 9)  # Hz: the edges of eight bands, which telephones transmit as well


class SpeechDetector(Protocol):
    """Anything that finds regions of speech in the samples of a recording, which are given in blocks.

    >>> class Everything:
    ...     sample_rate = None
    ...
    ...     def regions(self, blocks, rate):
    ...         return np.array([[0.0, sum(map(len, blocks)) / rate]])
    >>> detector: SpeechDetector = Everything()
    """

    @property
    def sample_rate(self) -> int | None:
        """The rate of the samples that it takes; None: any rate."""

    def regions(self, blocks: Iterable[Samples], rate: int) -> Floats:
        """Return the starts and ends of speech, (n, 2) in seconds, in order and without overlap."""


@dataclass(frozen=True)
class EnergyDetector:
    """Finds speech by its level above the noise of the recording.

    In each of eight bands from 150 to 3,800 Hz the level of every 10 ms is compared with the noise of that band, a low
    percentile over the recording. A frame is speech if the bands are `threshold` dB above their noise on average. A
    recording whose level hardly changes, or that is silent, has no speech.

    It is for quiet recordings and steady noise. It takes music, voices in the background, and noise that becomes louder
    in the middle of a recording for speech.

    Parameters
    ----------
    threshold : dB above the noise at which a frame is speech; steady noise reaches 2.4
    peak : dB above the noise that a region must reach somewhere; speech reaches 4.8 in noise 5 dB louder than itself
    depth : the noise is taken to lie at most this many dB below the loudest band, so that digital silence does not
        count as noise
    quietest : dB below full scale; quieter sounds are not speech
    longest_pause : seconds; shorter pauses belong to the speech around them
    shortest : seconds; shorter sounds are not speech

    Example
    -------
    >>> rng = np.random.default_rng(0)
    >>> noise = rng.normal(scale=1e-3, size=32000).astype(np.float32)
    >>> noise[8000:24000] *= 100  # from 0.5 to 1.5 s; regions are a little longer
    >>> EnergyDetector().regions([noise], 16000).round(1).tolist()
    [[0.4, 1.6]]
    """

    threshold: float = 3.0
    peak: float = 4.5
    depth: float = 50.0
    quietest: float = -70.0
    longest_pause: float = 0.5
    shortest: float = 0.1

    sample_rate: ClassVar[int | None] = None

    def regions(self, blocks: Iterable[Samples], rate: int) -> Floats:
        """Return the starts and ends of speech, (n, 2) in seconds."""
        levels = band_levels(blocks, rate)
        if not len(levels):
            return np.zeros((0, 2))
        above = self._above_noise(levels)
        regions = _filled(above > self.threshold, round(self.longest_pause / FRAME))
        reached = [above[start:end].max() >= self.peak for start, end in regions]
        long = regions[:, 1] - regions[:, 0] >= round(self.shortest / FRAME)
        # Frames are 20 ms long: the last one ends where the recording does.
        return (regions[long & np.array(reached, bool)] + np.array([0, 1])) * FRAME

    def _above_noise(self, levels: NDArray[np.float32]) -> Floats:
        """(n,) how many dB the bands are above their noise on average."""
        smooth = [
            _smoothed(band).astype(np.float32) for band in levels.T
        ]  # band by band, as there may be hours of audio
        loudest = max(float(np.percentile(band, 98)) for band in smooth)
        above = np.zeros(len(levels))
        for band in smooth:
            noise = max(float(np.percentile(band, 5)), loudest - self.depth, self.quietest)
            # One band far above its noise (a whistle) must not decide alone, so a band counts at most 20 dB.
            above += np.clip(band - noise, 0, 20) / len(smooth)
        return above


@dataclass(frozen=True)
class SileroDetector:
    """Silero's voice activity detector, run by sherpa-onnx; its ONNX file is published with sherpa-onnx's models.

    Parameters
    ----------
    path : the file silero_vad.onnx
    threshold : the probability of speech above which a sound is taken for speech

    Example
    -------
    >>> SileroDetector("silero_vad.onnx").sample_rate
    16000
    """

    path: PathLike
    threshold: float = 0.5

    sample_rate: ClassVar[int] = 16000

    def regions(self, blocks: Iterable[Samples], rate: int) -> Floats:
        """Return the starts and ends of speech, (n, 2) in seconds."""
        if rate != self.sample_rate:
            raise DuopldaError(f"Silero's detector takes {self.sample_rate} samples a second, not {rate}")
        inputs, outputs = read_ends(self.path)
        if (sorted(inputs), sorted(outputs)) not in SILERO:  # sherpa-onnx would end the process
            cause = f"has the inputs {listed(inputs)} and the outputs {listed(outputs)}"
            raise bad(self.path, "", cause, "give silero_vad.onnx, as it is published with sherpa-onnx's models")
        sherpa = need("sherpa_onnx")
        try:
            silero = sherpa.SileroVadModelConfig(model=str(self.path), threshold=self.threshold)
            detector = sherpa.VoiceActivityDetector(sherpa.VadModelConfig(silero_vad=silero, sample_rate=rate))
            ends = [*self._ends(detector, blocks)]
        except (RuntimeError, UnicodeDecodeError) as error:
            raise bad(self.path, "", f"is not Silero's network ({' '.join(str(error).split())[:160]})") from error
        return np.array(ends, float).reshape(-1, 2) / rate

    def _ends(self, detector: object, blocks: Iterable[Samples]) -> Iterator[tuple[int, int]]:
        """Yield the first sample of each region, and the sample after its last one."""
        for block in blocks:
            for i in range(0, len(block), self.sample_rate):  # its buffer holds a minute
                detector.accept_waveform(block[i : i + self.sample_rate])  # type: ignore[attr-defined]
                yield from _waiting(detector)
        detector.flush()  # type: ignore[attr-defined]
        yield from _waiting(detector)


def _waiting(detector: object) -> Iterator[tuple[int, int]]:
    """The regions that a detector of sherpa-onnx has finished."""
    while not detector.empty():  # type: ignore[attr-defined]
        region = detector.front  # type: ignore[attr-defined]
        yield region.start, region.start + len(region.samples)
        detector.pop()  # type: ignore[attr-defined]


def band_levels(blocks: Iterable[Samples], rate: int) -> NDArray[np.float32]:
    """Return (n, 8) the level of eight bands around each 10 ms, in dB relative to full scale.

    The levels do not depend on how the samples are cut into blocks. An hour takes 12 MB.

    >>> tone = np.sin(np.arange(16000) * 0.1).astype(np.float32)  # 255 Hz
    >>> band_levels([tone[:5000], tone[5000:]], 16000).shape, int(band_levels([tone], 16000)[50].argmax())
    ((99, 8), 1)
    """
    size = round(FRAME * rate)
    window = np.hanning(2 * size)
    frequency = np.fft.rfftfreq(2 * size, 1 / rate)
    bins = [(frequency >= low) & (frequency < high) for low, high in itertools.pairwise(BANDS)]
    # A sine of amplitude 1 in one band has half its power, -3 dB, in that band.
    scale = 2 / (2 * size * (window**2).sum())
    parts = [np.zeros((0, len(bins)), np.float32)]
    for samples in frames_of(blocks, size):
        power = np.abs(np.fft.rfft(samples * window, axis=1)) ** 2 * scale
        level = [10 * np.log10(np.maximum(power[:, band].sum(axis=1), 10 ** (QUIETEST / 10))) for band in bins]
        parts.append(np.stack(level, axis=1).astype(np.float32))
    return np.concatenate(parts)


def frames_of(blocks: Iterable[Samples], size: int, most: int = 4096) -> Iterator[NDArray[np.float32]]:
    """Yield overlapping frames (n, 2 size), one every `size` samples, without a last frame that is not full."""
    left = np.zeros(0, np.float32)
    for block in blocks:
        left = np.concatenate([left, block])
        n = max(0, len(left) // size - 1)
        for i in range(0, n, most):
            last = min(i + most, n)
            yield np.lib.stride_tricks.sliding_window_view(left[i * size : (last + 1) * size], 2 * size)[::size]
        left = left[n * size :]


def _smoothed(levels: NDArray[np.float32], width: int = 9) -> Floats:
    """The mean power of each frame and its neighbours, in dB."""
    power = np.pad(10 ** (levels.astype(float) / 10), width // 2, mode="edge")
    return 10 * np.log10(np.convolve(power, np.full(width, 1 / width), "valid"))


def _filled(speech: NDArray[np.bool_], longest_pause: int) -> NDArray[np.int64]:
    """Regions of speech with short pauses filled, (n, 2): the first frame, and the one after the last."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], speech, [False]]).astype(np.int8)))
    starts, ends = edges[::2], edges[1::2]
    pause = starts[1:] - ends[:-1] > longest_pause
    first = np.concatenate([[True], pause])[: len(starts)]
    last = np.concatenate([pause, [True]])[: len(ends)]
    return np.stack([starts[first], ends[last]], axis=1)
