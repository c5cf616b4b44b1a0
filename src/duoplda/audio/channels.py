"""Simulated channels: one recording as it would sound in noise, on the telephone, in a room, or through a codec.

Each copy is of the same session as its original, so that a model with two levels can learn what channels do. The random
properties of a copy (levels, rooms, codecs) depend on its id and the seed alone: any order and any number of processes
give the same copies. libsndfile, which reads the audio anyway, has the codecs.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.signal import butter, fftconvolve, sosfilt

from duoplda.audio.listing import list_audio
from duoplda.audio.reading import read_audio
from duoplda.errors import DuopldaError
from duoplda.io.common import PathLike, need

Samples = NDArray[np.float32]
Generator = np.random.Generator

KINDS = ("clean", "noise", "telephone", "reverb", "codec")
SNR = (5.0, 15.0)  # dB, of copies in noise
REVERBERATION = (0.2, 0.9)  # seconds until an echo has fallen by 60 dB
DIRECT = (0.0, 12.0)  # dB between the direct sound and all echoes together
LEVEL = (-15.0, 0.0)  # dB of a copy relative to its recording: callers are near and far from their telephones
BABBLE_VOICES = 6  # voices in babble


class Channels:
    """Makes copies of recordings through simulated channels.

    - `clean`: the recording as it is.
    - `noise`: with noise 5 to 15 dB below the speech. The noise is a piece of a recording from the folder of noises;
      without a folder it is pink noise or babble (the rhythm and spectrum of six voices, without words) at random.
    - `telephone`: about 300 to 3,400 Hz at 8 kHz, through mu-law, A-law or GSM.
    - `reverb`: in a room with echoes that decay by 60 dB in 0.2 to 0.9 s, as noise with an exponential envelope.
    - `codec`: Opus or MP3 at 8 to about 24 kbit/s.

    A copy has as many samples as the recording, and is up to 15 dB quieter. Copies help a model that will meet such
    channels; they do not replace recordings through the real channel where these exist.

    Parameters
    ----------
    noises : a folder with recordings of noise, or a list of them, as `list_audio` takes them
    seed : another seed gives other copies

    Example
    -------
    >>> tone = np.sin(np.arange(16000) * 0.1).astype(np.float32)
    >>> channels = Channels()
    >>> noisy = channels.copy("utt1", tone, 16000, "noise")
    >>> len(noisy), bool((noisy == channels.copy("utt1", tone, 16000, "noise")).all())
    (16000, True)
    """

    def __init__(self, noises: PathLike | Sequence[PathLike] | None = None, seed: int = 0):
        self.noises = [] if noises is None else sorted(list_audio(noises), key=lambda file: file.id)
        self.seed = seed

    def copy(self, name: str, samples: Samples, rate: int, kind: str) -> Samples:
        """Return a copy of the recording with this id through a channel of this kind."""
        if kind not in KINDS:
            raise DuopldaError(f"copies are of the kinds {', '.join(KINDS)}, not {kind!r}")
        if kind == "clean" or not samples.any():
            return samples
        digest = hashlib.sha256(f"{self.seed}\0{kind}\0{name}".encode()).digest()
        rng = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "big")))
        through: dict[str, Callable[[Samples, int, Generator], NDArray[np.floating]]] = {
            "noise": self._noise,
            "telephone": _telephone,
            "reverb": _reverb,
            "codec": _codec,
        }
        heard = through[kind](samples, rate, rng)
        out = np.zeros(len(samples))
        out[: len(heard)] = heard[: len(samples)]
        gain = np.sqrt(np.mean(samples.astype(float) ** 2) / max(np.mean(out**2), 1e-20))
        gain *= 10 ** (rng.uniform(*LEVEL) / 20)
        return (out * min(gain, 1 / max(np.abs(out).max(), 1e-20))).astype(np.float32)

    def _noise(self, samples: Samples, rate: int, rng: Generator) -> NDArray[np.floating]:
        """The recording with noise added."""
        if self.noises:
            noise = self._piece(len(samples), rate, rng)
        else:
            noise = (_pink if rng.random() < 0.5 else _babble)(len(samples), rate, rng)
        loud = np.mean(samples.astype(float) ** 2) * 10 ** (-rng.uniform(*SNR) / 10)
        return samples + noise * np.sqrt(loud / max(np.mean(noise**2), 1e-20))

    def _piece(self, n: int, rate: int, rng: Generator) -> NDArray[np.floating]:
        """A piece of one of the user's noises, which is repeated if it is too short."""
        noise, _ = read_audio(self.noises[rng.integers(len(self.noises))].path, rate)
        return np.take(noise.astype(float), np.arange(n) + rng.integers(len(noise)), mode="wrap")


def _pink(n: int, rate: int, rng: Generator) -> NDArray[np.floating]:
    """Noise with the same power in each octave."""
    return _shaped(n, rate, rng, lambda frequency: 1 / np.sqrt(np.maximum(frequency, 50)))


def _shaped(n: int, rate: int, rng: Generator, gain: Callable[[NDArray], NDArray]) -> NDArray[np.floating]:
    """Noise of variance 1 with the spectrum `gain`."""
    size = next_fast_len(n, real=True)
    spectrum = rfft(rng.normal(size=size)) * gain(np.fft.rfftfreq(size, 1 / rate))
    noise = irfft(spectrum, size)[:n]
    return noise / max(noise.std(), 1e-20)


def _babble(n: int, rate: int, rng: Generator) -> NDArray[np.floating]:
    """Several voices at once: noise with the long-term spectrum of speech, and a level that varies as syllables do."""

    def spectrum(frequency: NDArray) -> NDArray:
        """Flat up to 500 Hz, then falling by 9 dB an octave, like averages over many talkers; nothing below 100 Hz."""
        return (frequency > 100) / np.maximum(frequency / 500, 1) ** 1.5

    voices = []
    for _ in range(BABBLE_VOICES):
        # About four syllables come in a second; their levels have a standard deviation of about 6 dB.
        syllables = rng.normal(scale=0.7, size=int(n / rate * 2 * rng.uniform(3, 5)) + 4)
        envelope = np.exp(np.interp(np.linspace(0, len(syllables) - 1, n), np.arange(len(syllables)), syllables))
        voices.append(envelope * _shaped(n, rate, rng, spectrum))
    return np.sum(voices, axis=0)


def _reverb(samples: Samples, rate: int, rng: Generator) -> NDArray[np.floating]:
    """The recording with echoes: noise that decays exponentially (Polack's model of a room's late response)."""
    decay = rng.uniform(*REVERBERATION)
    n = round(decay * rate)
    echoes = rng.normal(size=n) * 10 ** (-3 * np.arange(n) / n)
    echoes[: round(0.002 * rate)] = 0  # the nearest wall is half a metre away
    echoes *= 10 ** (-rng.uniform(*DIRECT) / 20) / np.sqrt((echoes**2).sum())
    echoes[0] = 1
    return fftconvolve(samples, echoes)[: len(samples)]


def _telephone(samples: Samples, rate: int, rng: Generator) -> NDArray[np.floating]:
    """The recording as a telephone call: band, rate and coding."""
    edges = [rng.uniform(200, 400), rng.uniform(3000, 3600)]
    narrow = sosfilt(butter(4, edges, "bandpass", fs=8000, output="sos"), _resampled(samples, rate, 8000))
    coding = ("ULAW", "ALAW", "GSM610")[rng.integers(3)]
    return _resampled(_coded(narrow, 8000, "WAV", coding), 8000, rate)


def _codec(samples: Samples, rate: int, rng: Generator) -> NDArray[np.floating]:
    """The recording through a codec at a low rate: Opus at 8 to about 20 kbit/s, or MP3 at 16 to about 24."""
    format_, coding, low, high = (("OGG", "OPUS", 0.95, 1.0), ("MP3", "MPEG_LAYER_III", 0.85, 0.99))[rng.integers(2)]
    coded = _coded(_resampled(samples, rate, 16_000), 16_000, format_, coding, compression_level=rng.uniform(low, high))
    return _resampled(coded, 16_000, rate)


def _resampled(samples: NDArray[np.floating], old: int, new: int) -> NDArray[np.floating]:
    """The samples at another rate."""
    return samples if old == new else need("soxr").resample(samples, old, new)


def _coded(samples: NDArray, rate: int, format_: str, coding: str, **options: float) -> NDArray[np.floating]:
    """The samples after they were written in a format of libsndfile and read again."""
    soundfile = need("soundfile")
    store = io.BytesIO()
    loudest = max(1.0, float(np.abs(samples).max()))
    soundfile.write(store, samples / loudest, rate, format=format_, subtype=coding, **options)
    store.seek(0)
    return np.asarray(soundfile.read(store)[0]) * loudest
