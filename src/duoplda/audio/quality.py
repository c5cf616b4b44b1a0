"""Measures of a recording's quality from its samples: speech, noise, clipping, bandwidth and loudness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

import numpy as np
from numpy.typing import NDArray

from duoplda.audio.speech import FRAME, QUIETEST, EnergyDetector, Floats, Samples, frames_of
from duoplda.io import QualityTable

FULL_SCALE = 0.99  # larger samples are taken to be clipped; it is less than 1, as resampling moves them a little
SNR_RANGE = (-10.0, 60.0)  # dB: the estimate says nothing beyond it
FAINT = 55.0  # dB below the loudest band: fainter bands have no speech, but traces of filters and rounding


@dataclass(frozen=True)
class AudioQuality:
    """Measures of a recording. Measures of speech are NaN if there is no speech.

    >>> quality = measure_quality(np.zeros(16000, np.float32), 16000)
    >>> quality.seconds, quality.speech, quality.silence
    (1.0, 0.0, 1.0)
    """

    seconds: float  # of audio
    speech: float  # seconds of speech
    silence: float  # the share of the time without speech
    snr: float  # dB between speech and noise, an estimate that is about right from 0 to 30
    clipping: float  # the share of samples at full scale
    bandwidth: float  # Hz up to which there is speech: 3,400 or 4,000 for a telephone call in a wide-band file
    loudness: float  # dB of the speech below full scale (root mean square)


def measure_quality(samples: Samples, rate: int, speech: Floats | None = None) -> AudioQuality:
    """Measure the quality of a recording.

    The noise is the tenth percentile of the power around each 10 ms, and the SNR compares the remaining power of the
    speech with it. So noise that is only there while somebody speaks is not measured. The bandwidth is the end of the
    spectrum of the speech, in steps of 250 Hz.

    Parameters
    ----------
    samples, rate : the samples (n,), and their number per second
    speech : regions of speech, (k, 2) in seconds; None: those that `EnergyDetector` finds

    Example
    -------
    >>> rng = np.random.default_rng(0)
    >>> voice = rng.normal(scale=0.1, size=32000) * (np.sin(np.arange(32000) / 2500) > 0)
    >>> noisy = (voice + rng.normal(scale=0.01, size=32000)).astype(np.float32)
    >>> quality = measure_quality(noisy, 16000)
    >>> bool(15 < quality.snr < 19), quality.bandwidth, round(quality.loudness)
    (True, 8000.0, -23)
    """
    if speech is None:
        speech = EnergyDetector().regions([samples], rate)
    seconds = len(samples) / rate
    spoken = float(np.diff(speech, axis=1).sum())
    silence = float(np.clip(1 - spoken / seconds, 0, 1)) if seconds else np.nan
    clipping = float((np.abs(samples) >= FULL_SCALE).mean()) if len(samples) else np.nan
    snr, bandwidth, loudness = _of_speech(samples, rate, speech)
    return AudioQuality(seconds, spoken, silence, snr, clipping, bandwidth, loudness)


def _of_speech(samples: Samples, rate: int, speech: Floats) -> tuple[float, float, float]:
    """SNR, bandwidth and loudness; NaN if there is no speech."""
    size = round(FRAME * rate)
    window = np.hanning(2 * size)
    powers = [np.zeros(0)]
    spectrum = np.zeros(size + 1)
    n_frames = 0
    for frames in frames_of([samples], size):
        energy = np.abs(np.fft.rfft(frames * window, axis=1)) ** 2 / (size * (window**2).sum())
        spoken = _inside(n_frames + np.arange(len(frames)), speech)
        spectrum += energy[spoken].sum(axis=0)
        powers.append(energy.sum(axis=1))
        n_frames += len(frames)
    power = np.concatenate(powers)
    spoken = _inside(np.arange(n_frames), speech)
    if not spoken.any():
        return np.nan, np.nan, np.nan
    level = power[spoken].mean()
    around = np.convolve(np.pad(power, 4, mode="edge"), np.full(9, 1 / 9), "valid")
    noise = max(np.percentile(around, 10), 10 ** (QUIETEST / 10))
    snr = np.clip(10 * np.log10(max(level - noise, 1e-12) / noise), *SNR_RANGE)
    return float(snr), _bandwidth(spectrum, rate), float(10 * np.log10(max(level, 1e-12)))


def _bandwidth(spectrum: Floats, rate: int) -> float:
    """The upper end of a spectrum (from 0 to half the rate), in steps of 250 Hz."""
    width = 250.0
    frequency = np.linspace(0, rate / 2, len(spectrum))
    band = np.minimum(frequency // width, rate / 2 // width - 1).astype(int)
    power = np.bincount(band, spectrum) / np.bincount(band)
    loud = power > power.max() * 10 ** (-FAINT / 10)
    return float((np.flatnonzero(loud)[-1] + 1) * width)


def _inside(frames: NDArray[np.int64], regions: Floats) -> NDArray[np.bool_]:
    """Whether the middle of each frame is in one of the regions, which are in order and do not overlap."""
    times = (frames + 1) * FRAME
    return np.asarray(np.searchsorted(regions[:, 0], times, "right") > np.searchsorted(regions[:, 1], times, "right"))


def quality_table(qualities: Mapping[str, AudioQuality]) -> QualityTable:
    """Make the table of measures that calibration takes, with a row for each recording.

    >>> table = quality_table({"a": AudioQuality(2.0, 1.5, 0.25, 20.0, 0.0, 8000.0, -26.0)})
    >>> table.numbers("speech").tolist(), sorted(table.columns)[:3]
    ([1.5], ['bandwidth', 'clipping', 'loudness'])
    """
    rows = [asdict(quality) for quality in qualities.values()]
    names = [one.name for one in fields(AudioQuality)]
    cells = {name: ["" if np.isnan(row[name]) else f"{row[name]:.6g}" for row in rows] for name in names}
    return QualityTable.of(qualities, cells)
