"""Reads audio files in any format of libsndfile as blocks of samples, resampled to a given rate.

soundfile reads and soxr resamples. The samples are the same to the last bit whatever the size of the blocks.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.errors import DuopldaError
from duoplda.io.common import HeldText, PathLike, bad, file_size, guarded, need, open_binary
from duoplda.io.received import TooLarge

Samples = NDArray[np.float32]
Span = tuple[int, int]  # numbers of samples: the first one, and the one after the last

FILE_RATES = (4_000, 768_000)  # the range of the rates of files, in Hz; another rate is taken for damage
BLOCK = 1 << 18  # samples that are read at once, in all channels together
UNKNOWN = 1 << 60  # libsndfile declares at least this number of frames if it would have to read to the end to know
UNKNOWN_BYTES = 0x7FFF0000  # programs that write RIFF into a pipe declare at least this number of bytes


def read_audio(path: PathLike, rate: int | None = None, channel: int | None = None) -> tuple[Samples, int]:
    """Read a whole file: samples (n,) between -1 and 1, and their rate. For long files, use `audio_blocks`.

    Parameters
    ----------
    path : the file, in any format that libsndfile reads: WAV, FLAC, OGG, MP3, NIST SPHERE, ...
    rate : samples per second; a file with another rate is resampled. None: the rate of the file
    channel : the number of the channel, from 1 on; None: the mean of all

    Example
    -------
    >>> import tempfile, soundfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     soundfile.write(folder + "/x.wav", np.zeros((800, 2)), 8000)
    ...     samples, rate = read_audio(folder + "/x.wav", rate=16000)
    >>> samples.shape, rate
    ((1600,), 16000)
    """
    rate = audio_rate(path) if rate is None else rate
    blocks = [np.zeros(0, np.float32), *audio_blocks(path, rate, channel)]
    return np.concatenate(blocks), rate


def audio_rate(path: PathLike) -> int:
    """Return the rate of a file, in samples per second.

    >>> import tempfile, soundfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     soundfile.write(folder + "/x.wav", np.zeros(8), 8000)
    ...     audio_rate(folder + "/x.wav")
    8000
    """
    with _opened(path) as file:
        return int(file.samplerate)


def audio_blocks(path: PathLike, rate: int, channel: int | None = None) -> Iterator[Samples]:
    """Yield the samples of a file in blocks, resampled to a rate; the parameters are those of `read_audio`.

    >>> import tempfile, soundfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     soundfile.write(folder + "/x.wav", np.zeros(500_000), 16000)
    ...     print([len(block) for block in audio_blocks(folder + "/x.wav", 16000)])
    [262144, 237856]
    """
    with _opened(path) as file:
        if channel is not None and not 1 <= channel <= file.channels:
            raise bad(path, "", f"has {file.channels} channels, and no channel {channel}", "channels count from 1")
        resampler = None
        if file.samplerate != rate:
            resampler = need("soxr").ResampleStream(file.samplerate, rate, 1, dtype="float32")
        frames = max(1, BLOCK // file.channels)
        n = 0
        last = False
        while not last:
            with _reading(path):
                block = file.read(frames, dtype="float32", always_2d=True)
            last = len(block) < frames
            samples = _one_channel(block, channel)
            _check_samples(path, samples, n, file.samplerate)
            n += len(samples)
            if last:
                _check_length(path, n, file.frames, file.samplerate)
            if resampler is not None:
                samples = resampler.resample_chunk(samples, last=last)
            if len(samples):
                yield samples


def received_audio(data: bytes, rate: int, longest: float) -> Samples:
    """Read a recording from the bytes of a file that came over a network: the mean of its channels, at a rate.

    Parameters
    ----------
    data : the bytes of the file
    rate : samples per second
    longest : the most seconds; a longer recording is an error as soon as that much of it has been decoded

    Example
    -------
    >>> import soundfile
    >>> with io.BytesIO() as file:
    ...     soundfile.write(file, np.zeros(8000), 8000, format="FLAC")
    ...     received_audio(file.getvalue(), 16000, longest=60.0).shape
    (16000,)
    """
    blocks = []
    n = 0
    for block in audio_blocks(HeldText("the body", data, ""), rate):
        blocks.append(block)
        n += len(block)
        if n > longest * rate:
            raise TooLarge(f"the body: is longer than {longest:g} s; send a part of it")
    return np.concatenate(blocks)


def audio_spans(blocks: Iterable[Samples], spans: Iterable[Span]) -> Iterator[Samples]:
    """Yield the samples of each span; spans must be in the order of their first samples.

    Blocks are held only while they are needed. A span that reaches beyond the end of the blocks is shorter, or empty.

    >>> [part.tolist() for part in audio_spans([np.arange(3.0), np.arange(3.0, 6)], [(1, 4), (2, 3), (5, 9)])]
    [[1.0, 2.0, 3.0], [2.0], [5.0]]
    """
    coming = iter(blocks)
    kept = np.zeros(0, np.float32)
    first = 0  # the number of the first sample that is kept
    for start, stop in spans:
        if start < first:
            raise DuopldaError(f"span ({start}, {stop}) begins before one that has been given")
        parts = [kept]
        n = first + len(kept)
        while n < stop and (block := next(coming, None)) is not None:
            n += len(block)
            if n <= start:  # neither this block nor the samples that were kept are needed
                parts = [block[:0]]
                first = n
            else:
                parts.append(block)
        kept = np.concatenate(parts) if len(parts) > 1 else parts[0]
        kept = kept[max(0, start - first) :]
        first = max(first, start)
        yield kept[: max(0, stop - first)]


def _one_channel(block: Samples, channel: int | None) -> Samples:
    """The samples of one channel, or the mean of all, from samples (n, channels)."""
    if block.shape[1] == 1:
        return block[:, 0]
    return block.mean(axis=1, dtype=np.float32) if channel is None else np.ascontiguousarray(block[:, channel - 1])


def _check_samples(path: PathLike, samples: Samples, n: int, rate: int) -> None:
    """Refuse samples that are NaN or infinite."""
    wrong = ~np.isfinite(samples)
    if wrong.any():
        seconds = (n + int(wrong.argmax())) / rate
        raise bad(path, f"at {seconds:.3f} s", "has samples that are NaN or infinite", "write it anew")


def _check_length(path: PathLike, n: int, declared: int, rate: int) -> None:
    """Refuse a file that has no samples, or fewer than it declares."""
    if n == 0:
        raise bad(path, "", "holds no samples")
    if declared < UNKNOWN and n < declared:
        cause = f"ends after {n / rate:.2f} of {declared / rate:.2f} s"
        raise bad(path, "", cause, "it is cut short, or damaged")


@contextmanager
def _opened(path: PathLike) -> Iterator[Any]:
    """Open a file of audio, after a check of its header and before one of its rate."""
    soundfile = need("soundfile")
    _check_riff(path)
    with _reading(path):
        file = soundfile.SoundFile(io.BytesIO(path.data) if isinstance(path, HeldText) else os.fspath(path))
    with file:
        if not FILE_RATES[0] <= file.samplerate <= FILE_RATES[1]:
            raise bad(path, "", f"has {file.samplerate} samples a second", "the file may be damaged")
        yield file


@contextmanager
def _reading(path: PathLike) -> Iterator[None]:
    """Turn an error of soundfile on a damaged file into ours, without the name of the file in its message."""
    soundfile = need("soundfile")
    with guarded(path, "audio"):
        try:
            yield
        except soundfile.LibsndfileError as error:
            cause = f"cannot be read as audio ({' '.join(error.error_string.split()).rstrip('.')})"
            raise bad(path, "", cause, "it may be damaged, or of a format that libsndfile does not know") from error


def _check_riff(path: PathLike) -> None:
    """Refuse a WAV file with fewer samples than its header declares: libsndfile would read it without an error."""
    size = len(path.data) if isinstance(path, HeldText) else file_size(path)
    if not size:
        raise bad(path, "", "is empty")
    with open_binary(path) as file:
        head = file.read(12)
        if len(head) < 12 or head[:4] != b"RIFF" or head[8:] != b"WAVE":
            return
        while len(chunk := file.read(8)) == 8:
            name, length = chunk[:4], struct.unpack("<I", chunk[4:])[0]
            left = size - file.tell()
            if name == b"data":
                if left < length < UNKNOWN_BYTES:
                    cause = f"holds {left:,} bytes of samples, and its header says {length:,}"
                    raise bad(path, "", cause, "it is cut short, or damaged")
                return
            file.seek(min(length + length % 2, left), os.SEEK_CUR)
