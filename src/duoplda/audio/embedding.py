"""Embeddings of audio files: of whole recordings, segments, windows inside speech, and copies of these."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import in_order
from duoplda.audio.channels import Channels
from duoplda.audio.extractor import Extractor
from duoplda.audio.listing import AudioFile
from duoplda.audio.quality import AudioQuality, measure_quality
from duoplda.audio.reading import Samples, audio_blocks, audio_spans
from duoplda.audio.speech import EnergyDetector, Floats, SpeechDetector
from duoplda.diarization import Segments
from duoplda.errors import DuopldaError, error_prefix

LEAST_SPEECH = 0.1  # seconds: a segment with less has no embedding
SHORTEST_WINDOW = 0.5  # seconds: shorter regions of speech have no windows


@dataclass(frozen=True)
class Pieces:
    """The parts of recordings that are embedded.

    Parameters
    ----------
    windows : the length in seconds of windows inside speech; None: whole recordings
    hop : seconds from the start of one window to the start of the next
    segments : file id -> the segments that are embedded; with `windows`, windows inside these segments
    kinds : kinds of copies, as `Channels` makes them; the copy of `utt1` of kind `noise` has the id `utt1-noise`
    longest : the most seconds of a recording or segment that are embedded, which bounds the memory
    channel : the channel to read of files with several, from 1 on; None: the mean of all
    quality : whether the quality of each copy is measured

    Example
    -------
    >>> Pieces(windows=1.5).kinds
    ('clean',)
    """

    windows: float | None = None
    hop: float = 0.25
    segments: Mapping[str, Segments] | None = None
    kinds: Sequence[str] = ("clean",)
    longest: float = 300.0
    channel: int | None = None
    quality: bool = False

    def __post_init__(self) -> None:
        for name, least in (("windows", SHORTEST_WINDOW), ("hop", 0.01), ("longest", 1.0)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise DuopldaError(f"{name}={value:g} is too short: give at least {least:g} s")


@dataclass(frozen=True, eq=False)
class Embedded:
    """The result for one file: n embeddings of its pieces and of their copies, or the reason why there are none.

    >>> Embedded(AudioFile("a", "a.wav"), problems=("a.wav: is empty",)).ids
    ()
    """

    file: AudioFile
    ids: tuple[str, ...] = ()
    X: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))  # (n, d)
    pieces: tuple[str, ...] = ()  # the id of the piece of which each is a copy; for whole recordings the id of the file
    kinds: tuple[str, ...] = ()  # the kind of each copy
    spans: tuple[tuple[float, float], ...] = ()  # the start and the end of each piece in the file, in seconds
    qualities: Mapping[str, AudioQuality] = field(default_factory=dict)  # by id; copies without speech have them, too
    speech: Floats = field(default_factory=lambda: np.zeros((0, 2)))  # regions of speech, in seconds
    notes: tuple[str, ...] = ()  # the pieces that were left out, and why
    problems: tuple[str, ...] = ()  # why the file could not be read

    def without_vectors(self) -> Embedded:
        """Return the same without `X`, to save memory where the vectors are on the disk already."""
        return replace(self, X=np.zeros((0, 0), np.float32))


def embed_audio(
    extractor: Extractor,
    files: Sequence[AudioFile],
    pieces: Pieces | None = None,
    *,
    detector: SpeechDetector | None = None,
    channels: Channels | None = None,
) -> Iterator[Embedded]:
    """Yield the embeddings of each file, in the order of the files.

    A file that cannot be read has `problems` and no embeddings. Pieces without speech get no embedding, and are named
    in `notes`. Files are shared among as many threads as BLAS may use (OMP_NUM_THREADS); their number does not change
    the result.

    Parameters
    ----------
    extractor : the network
    files : files of audio, as `list_audio` lists them
    pieces : the parts of the recordings that are embedded; None: whole recordings
    detector : finds speech; None: an `EnergyDetector`
    channels : makes the copies; None: `Channels()`, with noises of its own

    Example
    -------
    >>> def embeddings(model, folder):
    ...     for embedded in embed_audio(Extractor(model), list_audio(folder)):
    ...         yield from zip(embedded.ids, embedded.X)
    """
    job = _Job(extractor, pieces or Pieces(), detector or EnergyDetector(), channels or Channels())
    return in_order(job, files, flops=1e12)  # `in_order` uses threads for enough work only; a file is always enough


class _Piece(NamedTuple):
    """A part of a file that is embedded."""

    id: str
    start: float  # seconds
    end: float


@dataclass(frozen=True, eq=False)
class _Job:
    """The work on each file."""

    extractor: Extractor
    pieces: Pieces
    detector: SpeechDetector
    channels: Channels

    def __call__(self, file: AudioFile) -> Embedded:
        """Find the speech of a file, then read and embed its pieces."""
        ids: list[str] = []
        vectors: list[NDArray[np.float32]] = []
        copied: list[tuple[_Piece, str]] = []
        qualities: dict[str, AudioQuality] = {}
        notes: list[str] = []
        try:
            speech, seconds, kept = self._speech(file)
            pieces = self._pieces(file, speech, seconds, notes)
            for piece, samples in self._samples(file, pieces, kept):
                spoken = _overlap(speech, piece)
                if spoken < LEAST_SPEECH:
                    length = seconds if piece.id == file.id else min(piece.end, seconds) - piece.start
                    notes.append(f"{_name(file, piece)} has no speech in its {max(0, length):.1f} s, and no embedding")
                for kind in self.pieces.kinds:
                    name = piece.id if kind == "clean" else f"{piece.id}-{kind}"
                    with error_prefix(_name(file, piece)):
                        copy = self.channels.copy(piece.id, samples, self.extractor.sample_rate, kind)
                        if self.pieces.quality:
                            qualities[name] = measure_quality(copy, self.extractor.sample_rate)
                        if spoken >= LEAST_SPEECH:
                            vectors.append(self.extractor.embed(copy))
                            ids.append(name)
                            copied.append((piece, kind))
        except DuopldaError as error:
            # A file is embedded as a whole or not at all: half of the windows of a damaged file are of no use.
            return Embedded(file, problems=(str(error),))
        X = np.stack(vectors) if vectors else np.zeros((0, self.extractor.dim), np.float32)
        kinds = tuple(kind for _, kind in copied)
        spans = tuple((piece.start, min(piece.end, seconds)) for piece, _ in copied)
        pieces_of = tuple(piece.id for piece, _ in copied)
        return Embedded(file, tuple(ids), X, pieces_of, kinds, spans, qualities, speech, tuple(notes))

    def _speech(self, file: AudioFile) -> tuple[Floats, float, list[Samples]]:
        """Regions of speech, the length of the file in seconds, and its blocks if it is short enough to be kept."""
        rate = self.detector.sample_rate or self.extractor.sample_rate
        most = self.pieces.longest * rate if rate == self.extractor.sample_rate else 0
        n = 0
        kept: list[Samples] = []

        def blocks() -> Iterator[Samples]:
            nonlocal n
            for block in audio_blocks(file.path, rate, self.pieces.channel):
                n += len(block)
                kept.append(block)
                if n > most:
                    kept.clear()
                yield block

        regions = self.detector.regions(blocks(), rate)
        return regions, n / rate, kept

    def _pieces(self, file: AudioFile, speech: Floats, seconds: float, notes: list[str]) -> list[_Piece]:
        """The parts of a file that are embedded, in the order of their beginnings."""
        if self.pieces.windows is not None:
            regions = speech if self.pieces.segments is None else _joined(self.pieces.segments[file.id])
            regions = regions[regions[:, 0] < seconds].clip(max=seconds)
            windows = _windows(file.id, regions, self.pieces.windows, self.pieces.hop)
            if not windows:
                notes.append(f"{file.path} has no speech in its {seconds:.1f} s, and no embedding")
            return windows
        if self.pieces.segments is None:
            late = len(speech) and seconds > self.pieces.longest  # a recording that is cut begins where speech begins
            wanted = [_Piece(file.id, float(speech[0, 0]) if late else 0.0, seconds)]
        else:
            segments = self.pieces.segments[file.id]
            times = zip(segments.ids.tolist(), segments.start.tolist(), segments.end.tolist(), strict=True)
            wanted = sorted(itertools.starmap(_Piece, times), key=lambda piece: piece.start)
        short = []
        for piece in wanted:
            if len(speech) and min(piece.end, seconds) - piece.start > self.pieces.longest:
                notes.append(f"{_name(file, piece)}: only the first {self.pieces.longest:g} s with speech are embedded")
            short.append(piece._replace(end=min(piece.end, piece.start + self.pieces.longest)))
        return short

    def _samples(
        self, file: AudioFile, pieces: Sequence[_Piece], kept: list[Samples]
    ) -> Iterator[tuple[_Piece, Samples]]:
        """The samples of each piece."""
        if not pieces:
            return
        rate = self.extractor.sample_rate
        spans = [(round(piece.start * rate), round(piece.end * rate)) for piece in pieces]
        parts = audio_spans(kept or audio_blocks(file.path, rate, self.pieces.channel), spans)
        yield from zip(pieces, parts, strict=True)


def _name(file: AudioFile, piece: _Piece) -> str:
    """The name of a piece for messages."""
    return file.path if piece.id == file.id else f"{file.path}: {piece.id}"


def _overlap(speech: Floats, piece: _Piece) -> float:
    """Seconds of speech in a piece."""
    inside = np.clip(speech, piece.start, piece.end)
    return float(np.diff(inside, axis=1).sum())


def _joined(segments: Segments) -> Floats:
    """Segments as regions (n, 2) in order; segments that overlap or touch are one region."""
    regions: list[list[float]] = []
    for start, end in sorted(zip(segments.start.tolist(), segments.end.tolist(), strict=True)):
        if regions and start <= regions[-1][1]:
            regions[-1][1] = max(end, regions[-1][1])
        else:
            regions.append([start, end])
    return np.array(regions, float).reshape(-1, 2)


def _windows(name: str, speech: Floats, length: float, hop: float) -> list[_Piece]:
    """Windows inside regions of speech. A region shorter than a window is one window; the last ends with its region."""
    spans: list[tuple[float, float]] = []
    for start, end in speech.tolist():
        if end - start < SHORTEST_WINDOW:
            continue
        n = max(0, int((end - start - length) / hop + 1e-9) + 1)
        spans += [(start + k * hop, start + k * hop + length) for k in range(n)]
        if not n or spans[-1][1] < end - 1e-6:
            spans.append((max(start, end - length), end))
    return [_Piece(f"{name}-{k:05d}", round(start, 3), round(end, 3)) for k, (start, end) in enumerate(spans)]
