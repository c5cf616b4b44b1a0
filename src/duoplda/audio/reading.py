"""Audio files as samples: any format that libsndfile reads, at the rate that is asked for, in blocks.

soundfile reads and soxr resamples. The samples do not depend on the size of the blocks, to the last bit.
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
Span = tuple[int, int]  # of samples: from the first to before the second

RATES = (4_000, 768_000)  # of files, in Hz; another is taken for damage
BLOCK = 1 << 18  # samples that are read at once, of all channels together
UNKNOWN = 1 << 60  # frames: libsndfile says so, or more, where only reading to the end would tell
UNKNOWN_BYTES = 0x7FFF0000  # of RIFF: programs that write into a pipe declare so much, or more


def read_audio(path: PathLike, rate: int | None = None, channel: int | None = None) -> tuple[Samples, int]:
    """Read a whole file: samples (n,) between -1 and 1, and their rate.

    Parameters
    ----------
    path : the file, in any format that libsndfile reads: WAV, FLAC, OGG, MP3, NIST SPHERE, ...
    rate : samples a second; those of a file with another rate are resampled. None: as in the file
    channel : which channel, from 1 on; None: the mean of all

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
    """Return how many samples a second a file has.

    >>> import tempfile, soundfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     soundfile.write(folder + "/x.wav", np.zeros(8), 8000)
    ...     audio_rate(folder + "/x.wav")
    8000
    """
    with _opened(path) as file:
        return int(file.samplerate)


def audio_blocks(path: PathLike, rate: int, channel: int | None = None) -> Iterator[Samples]:
    """Yield the samples of a file at a rate, in blocks; the parameters are those of `read_audio`.

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
    """Read a recording that came over a network as the bytes of a file, at a rate; the mean of its channels.

    Parameters
    ----------
    longest : seconds; a recording is refused as soon as more of it has been unpacked

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
    """Yield the samples of each span, in the order of their first samples; blocks are held only while they are needed.

    Beyond the end of the blocks there is nothing: a span may come out shorter, or empty.

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
            if n <= start:  # nothing of it, or of what was kept, is needed
                parts = [block[:0]]
                first = n
            else:
                parts.append(block)
        kept = np.concatenate(parts) if len(parts) > 1 else parts[0]
        kept = kept[max(0, start - first) :]
        first = max(first, start)
        yield kept[: max(0, stop - first)]


def _one_channel(block: Samples, channel: int | None) -> Samples:
    """Of samples (n, channels), those of one channel, or their mean."""
    if block.shape[1] == 1:
        return block[:, 0]
    return block.mean(axis=1, dtype=np.float32) if channel is None else np.ascontiguousarray(block[:, channel - 1])


def _check_samples(path: PathLike, samples: Samples, n: int, rate: int) -> None:
    """Refuse samples that are no numbers."""
    wrong = ~np.isfinite(samples)
    if wrong.any():
        seconds = (n + int(wrong.argmax())) / rate
        raise bad(path, f"at {seconds:.3f} s", "has samples that are NaN or infinite", "write it anew")


def _check_length(path: PathLike, n: int, declared: int, rate: int) -> None:
    """Refuse a file that has no samples, or fewer than it says."""
    if n == 0:
        raise bad(path, "", "holds no samples")
    if declared < UNKNOWN and n < declared:
        cause = f"ends after {n / rate:.2f} of {declared / rate:.2f} s"
        raise bad(path, "", cause, "it is cut short, or damaged")


@contextmanager
def _opened(path: PathLike) -> Iterator[Any]:
    """Open a file of audio, after a look at whether it can be one."""
    soundfile = need("soundfile")
    _check_riff(path)
    with _reading(path):
        file = soundfile.SoundFile(io.BytesIO(path.data) if isinstance(path, HeldText) else os.fspath(path))
    with file:
        if not RATES[0] <= file.samplerate <= RATES[1]:
            raise bad(path, "", f"has {file.samplerate} samples a second", "the file may be damaged")
        yield file


@contextmanager
def _reading(path: PathLike) -> Iterator[None]:
    """Turn what soundfile raises on a damaged file into our error; its message would name the file once more."""
    soundfile = need("soundfile")
    with guarded(path, "audio"):
        try:
            yield
        except soundfile.LibsndfileError as error:
            cause = f"cannot be read as audio ({' '.join(error.error_string.split()).rstrip('.')})"
            raise bad(path, "", cause, "it may be damaged, or of a format that libsndfile does not know") from error


def _check_riff(path: PathLike) -> None:
    """Refuse a WAV file whose samples are fewer than its header says: libsndfile reads what there is, and is silent."""
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
