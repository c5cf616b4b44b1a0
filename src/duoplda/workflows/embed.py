"""Embeddings of audio: from audio files to embeddings, labels, measures of quality, and regions of speech."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from duoplda.audio import (
    KINDS,
    AudioFile,
    Channels,
    Embedded,
    EnergyDetector,
    Extractor,
    Journal,
    Pieces,
    SileroDetector,
    SpeechDetector,
    embed_audio,
    list_audio,
    quality_table,
)
from duoplda.diarization import Segments, Turns, read_regions, read_segments, write_rttm, write_segments
from duoplda.diarization.segments import lists_segments
from duoplda.errors import DuopldaError, MissingIds
from duoplda.io import (
    Coded,
    ExtractorName,
    LabelColumns,
    QualityTable,
    atomic_path,
    check_output,
    read_map,
    write_embeddings,
    write_labels,
)
from duoplda.io.common import TABLE_SUFFIXES, held
from duoplda.io.ids import check_ids
from duoplda.io.labels import write_table
from duoplda.workflows import option
from duoplda.workflows._files import ById, Note, PathLike, Show, file_hashes, silent
from duoplda.workflows.option import refuse

MOST_NAMED = 20  # the largest number of files that an error names
WORDS = ("folders", "names")  # values of `speakers` that are not a list


def embed(
    extractor: option.AnyExtractor,
    audio: option.AudioFiles,
    out: option.EmbeddingsOut,
    *,
    labels_out: option.LabelsOut = None,
    quality_out: option.QualityOut = None,
    speech_out: option.SpeechOut = None,
    segments_out: option.SegmentsOut = None,
    speakers: option.AudioSpeakers = None,
    sessions: option.AudioSessions = None,
    segments: option.AudioParts = None,
    windows: option.Windows = None,
    hop: option.Hop = None,
    copies: option.Copies = None,
    noises: option.Noises = None,
    silero: option.Silero = None,
    channel: option.AudioChannel = None,
    longest: option.Longest = 300.0,
    metadata: option.ExtractorMetadata = None,
    seed: option.CopySeed = 0,
    resume: option.Resume = False,
    force: option.Force = False,
    note: Note = silent,
    show: Show = silent,
) -> dict[str, Any]:
    """Make embeddings of audio, write them and the other outputs, and return how many there are.

    Files that cannot be read are named in an error at the end, after everything else has been written. Until then,
    `<out>.resume` holds what has been embedded so far.
    """
    kinds = _kinds(copies)
    refuse(hop is not None and windows is None, "`hop` is for `windows`")
    refuse(segments_out is not None and windows is None, "`segments_out` is for `windows`")
    refuse(noises is not None and "noise" not in kinds, "`noises` is for `copies`")
    outputs = _Outputs(out, labels_out, quality_out, speech_out, segments_out, force)
    files = list_audio(audio)
    lists = [segments, silero, extractor, noises, None if str(speakers) in WORDS else speakers, sessions]
    outputs.check([*lists, *audio, *(file.path for file in files)])
    parts = None if segments is None else _by_file(_parts(segments), files)
    files = files if parts is None else [file for file in files if file.id in parts]
    named = parts if windows is None else None  # windows are named after their files
    _check_names(out, files, named, kinds)
    labels = _Labels.read(files, named, speakers, sessions)
    pieces = Pieces(windows, hop or 0.25, parts, kinds, longest, channel, quality_out is not None)
    detector = EnergyDetector() if silero is None else SileroDetector(silero)
    network = Extractor(extractor, metadata or {})
    noise = Channels(noises, seed)
    work = partial(embed_audio, network, pieces=pieces, detector=detector, channels=noise)
    done = _Done(len(files), note, show)
    with _journal(out, _job(network, pieces, detector, noise), resume, force, note) as journal:
        try:
            outputs.write(done, journal.through(files, work), labels, ExtractorName(network.name, network.sha256))
        except BaseException:  # Ctrl-C above all
            if any(one.ids for one in done.embedded):
                note(f"to go on from {journal.path}: the same command with --resume")
            else:
                journal.remove()
            raise
        if not done.problems:
            journal.remove()
    remedy = "repair these, and run it again with `resume` and `force`"
    done.refuse_problems(f"all others are in {os.fspath(out)}; {remedy}")
    return {**done.counts(), "speech_by": "energy" if silero is None else Path(silero).name}


@contextmanager
def _journal(out: PathLike, job: dict[str, object], resume: bool, force: bool, note: Note) -> Iterator[Journal]:
    """Give the block the journal of files that are done, from which an interrupted run goes on."""
    state = Path(f"{os.fspath(out)}.resume")
    if state.exists() and not resume and not force:
        remedy = "go on with `resume`, or begin again with `force`"
        raise DuopldaError(f"{os.fspath(state)} holds what an interrupted run has embedded: {remedy}")
    if resume and not state.exists():
        note(f"{state} is not there: all files are embedded")
    with Journal(state, job, resume=resume) as journal:
        if len(journal):
            note(f"going on after {len(journal):,} files")
        yield journal


def embed_for(
    extractor: PathLike,
    audio: Sequence[PathLike],
    out: PathLike,
    *,
    segments_out: PathLike | None = None,
    windows: float | None = None,
    quality: bool = False,
    allow_missing: bool = False,
    note: Note = silent,
    show: Show = silent,
) -> QualityTable:
    """Embed audio for another command. Files that cannot be read are an error, or with `allow_missing` a note.

    With `quality`, the table that is returned has a row for each embedding; otherwise it is empty.
    """
    files = list_audio(audio)
    network = Extractor(extractor)
    done = _Done(len(files), note, show)
    results = embed_audio(network, files, Pieces(windows, quality=quality))
    write_embeddings(out, done.chunks(results), extractor=ExtractorName(network.name, network.sha256))
    if not allow_missing:
        done.refuse_problems()
    for problem in done.problems:
        note(f"left out: {problem}")
    if segments_out is not None:
        write_segments(segments_out, done.segments())
    return quality_table({i: one.qualities[i] for one in done.embedded for i in one.ids if quality})


def _job(network: Extractor, pieces: Pieces, detector: SpeechDetector, channels: Channels) -> dict[str, object]:
    """Everything besides the audio that embeddings depend on: an interrupted run goes on only if it is the same."""
    parts = {} if pieces.segments is None else pieces.segments
    of_file = {
        name: [segments.ids.tolist(), segments.start.tolist(), segments.end.tolist()]
        for name, segments in parts.items()
    }
    silero = file_hashes([detector.path]) if isinstance(detector, SileroDetector) else None
    return {
        "extractor": network.sha256,
        "pieces": repr(replace(pieces, segments=None)),
        "segments": hashlib.sha256(json.dumps(of_file).encode()).hexdigest(),
        "detector": [repr(detector), silero],
        "copies": [channels.seed, [[file.id, file.path] for file in channels.noises]],
    }


@dataclass
class _Done:
    """The results for the files so far, without the embeddings, which have been written."""

    n_files: int
    note: Note
    show: Show
    embedded: list[Embedded] = field(default_factory=list)  # without their vectors
    problems: list[str] = field(default_factory=list)
    n_without: int = 0

    def chunks(self, results: Iterable[Embedded]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield ids and embeddings of one file after another."""
        n = 0
        for i, one in enumerate(results, 1):
            self.show(i, f"{i:,} of {self.n_files:,} files")
            for text in one.notes:
                self.note(text)
            self.n_without += len(one.notes)
            self.problems += one.problems
            self.embedded.append(one.without_vectors())
            if len(one.ids):
                n += len(one.ids)
                yield np.array(one.ids), one.X
        if not n:
            self.refuse_problems()
            raise DuopldaError(f"none of the {self.n_files:,} files has speech in it: there is nothing to write")

    def refuse_problems(self, rest: str = "") -> None:
        """Raise an error that names the files that could not be read; `rest` says what became of the others."""
        if not self.problems:
            return
        more = f"; and {len(self.problems) - MOST_NAMED:,} more" * (len(self.problems) > MOST_NAMED)
        named = "; ".join(self.problems[:MOST_NAMED]) + more
        count = f"{len(self.problems):,} of {self.n_files:,} files gave no embedding"
        raise DuopldaError(f"{count}{f' ({rest})' if rest else ''}: {named}")

    def segments(self) -> Segments:
        """The windows, as segments of their files."""
        rows = [(i, one.file.id, *span) for one in self.embedded for i, span in zip(one.ids, one.spans, strict=True)]
        ids, names, start, end = zip(*rows, strict=True)
        return Segments(np.array(ids), Coded.of(names), np.array(start, float), np.array(end, float))

    def counts(self) -> dict[str, Any]:
        """The numbers of files and embeddings, and the seconds of speech."""
        speech = sum(float(np.diff(one.speech, axis=1).sum()) for one in self.embedded)
        n = sum(len(one.ids) for one in self.embedded)
        return {"files": self.n_files, "embeddings": n, "left_out": self.n_without, "seconds_of_speech": speech}


class _Outputs(NamedTuple):
    """The files to write: the embeddings, and the other outputs that are asked for."""

    embeddings: PathLike
    labels: PathLike | None
    quality: PathLike | None
    speech: PathLike | None
    segments: PathLike | None
    force: bool

    def check(self, inputs: Sequence[PathLike | None]) -> None:
        """Before any work is done, refuse outputs that cannot be written, that have one name, or that are inputs."""
        for table in (self.labels, self.quality):
            other = table is not None and Path(table).suffix.lower() not in TABLE_SUFFIXES
            refuse(other, f"{table} must be a table: name it .csv, .tsv or .parquet")
        outputs = [path for path in self[:-1] if path is not None]
        refuse(len({os.path.realpath(path) for path in outputs}) != len(outputs), "two outputs have the same name")
        for path in outputs:
            check_output(path, self.force, inputs=inputs)

    def write(self, done: _Done, results: Iterable[Embedded], labels: _Labels, made_by: ExtractorName) -> None:
        """Write embeddings while they are made, and then the other outputs."""
        write_embeddings(self.embeddings, done.chunks(results), force=self.force, extractor=made_by)
        if self.labels is not None:
            write_labels(self.labels, labels.table(done.embedded), force=self.force)
        if self.quality is not None:
            table = quality_table({name: row for one in done.embedded for name, row in one.qualities.items()})
            write_table(self.quality, {"id": Coded.of(table.ids), **table.columns}, force=self.force)
        if self.speech is not None:
            _write_speech(self.speech, done.embedded, self.force)
        if self.segments is not None:
            write_segments(self.segments, done.segments(), force=self.force)


@dataclass(frozen=True)
class _Labels:
    """Speakers and sessions by the id of a piece or of its file."""

    speaker: ById | None
    session: ById

    @classmethod
    def read(
        cls,
        files: Sequence[AudioFile],
        parts: dict[str, Segments] | None,
        speakers: PathLike | None,
        sessions: PathLike | None,
    ) -> _Labels:
        """Read labels; refuse files or segments that have none."""
        owner = {file.id: file.id for file in files}
        if parts is not None:
            owner = {piece: name for name, segments in parts.items() for piece in segments.ids.tolist()}
        if str(speakers) == "folders":
            speaker: ById | None = {file.id: file.folder for file in files if file.folder}
        elif str(speakers) == "names":
            speaker = {file.id: file.first_word for file in files if file.first_word}
        else:
            speaker = read_map(speakers, "speaker")
        if speaker is not None:
            speaker = _of_pieces(f"speaker in {speakers}", speaker, owner)
        session = read_map(sessions, "session")
        return cls(speaker, owner if session is None else _of_pieces(f"session in {sessions}", session, owner))

    def table(self, embedded: Iterable[Embedded]) -> LabelColumns:
        """The labels of all embeddings: a copy has the session of its original, and a kind of channel of its own."""
        rows = [
            (name, one.file.id, piece, kind)
            for one in embedded
            for name, piece, kind in zip(one.ids, one.pieces, one.kinds, strict=True)
        ]
        ids, _, _, kinds = zip(*rows, strict=True)

        def of(labels: ById) -> np.ndarray:
            return np.array([labels.get(piece) or labels[file] for _, file, piece, _ in rows], str)

        speaker = None if self.speaker is None else of(self.speaker)
        return LabelColumns(np.array(ids), speaker, of(self.session), np.array(kinds))


def _of_pieces(what: str, known: ById, owner: ById) -> ById:
    """The label of each piece: its own, or else that of its file."""
    labels = {
        piece: known[piece if piece in known else name] for piece, name in owner.items() if {piece, name} & {*known}
    }
    if lacking := [piece for piece in owner if piece not in labels]:
        cause = f"{len(lacking)} recordings have no {what}: {', '.join(lacking[:10])}"
        raise MissingIds(f"{cause}; label them, or leave them out of the audio")
    return labels


def _kinds(copies: Sequence[str] | None) -> tuple[str, ...]:
    """The kinds of copies."""
    kinds = tuple(copies or ("clean",))
    unknown = [kind for kind in kinds if kind not in KINDS]
    refuse(unknown, f"`copies` are {', '.join(KINDS)}, not {', '.join(unknown)}")
    refuse(len({*kinds}) != len(kinds), "`copies` names a kind twice")
    return kinds


def _parts(path: PathLike) -> Segments:
    """Parts of files: a list of segments, or regions (RTTM, .lab), which get the id `file-start-end` (in 10 ms)."""
    path = held(path)
    if lists_segments(path):
        return read_segments(path)
    regions = read_regions(path)
    rows = dict[str, tuple[str, float, float]]()  # where two people speak at the same time, there is one segment
    times = zip(regions.file.values.tolist(), regions.start.tolist(), regions.end.tolist(), strict=True)
    for name, start, end in times:
        rows[f"{name}-{round(100 * start):07d}-{round(100 * end):07d}"] = name, start, end
    names, starts, ends = zip(*rows.values(), strict=True)
    return Segments(np.array([*rows]), Coded.of(names), np.array(starts), np.array(ends))


def _by_file(segments: Segments, files: Sequence[AudioFile]) -> dict[str, Segments]:
    """The segments of each file; all of them must be of files that are there."""
    names = segments.file.names.tolist()
    if lacking := sorted({*names} - {file.id for file in files}):
        raise MissingIds(f"segments are of {len(lacking)} files that are not in the audio: {', '.join(lacking[:10])}")
    return {name: segments[segments.file.codes == code] for code, name in enumerate(names)}


def _check_names(
    out: PathLike, files: Sequence[AudioFile], parts: dict[str, Segments] | None, kinds: Sequence[str]
) -> None:
    """Before any work is done, refuse ids that cannot be written, or that copies of other recordings would get."""
    ids = [file.id for file in files]
    if parts is not None:
        ids = [name for segments in parts.values() for name in segments.ids.tolist()]
    token = Path(out).suffix.lower() in (".ark", ".scp", ".npy")
    check_ids(out, np.array(ids, str), token=token)
    names = {*ids}
    if taken := [name for name in ids for kind in kinds if kind != "clean" and f"{name}-{kind}" in names]:
        raise DuopldaError(f"{taken[0]} and a copy of it would have one id; rename recordings that end in -KIND")


def _write_speech(path: PathLike, embedded: Sequence[Embedded], force: bool) -> None:
    """Write regions of speech: as RTTM if the name ends in .rttm, or else as lines `file start end`."""
    rows = [(one.file.id, start, end) for one in embedded for start, end in one.speech.tolist()]
    if Path(path).suffix.lower() == ".rttm":
        names, start, end = zip(*rows, strict=True)
        durations = np.array(end) - np.array(start)
        write_rttm(path, Turns.of(names, np.array(start), durations, ["speech"] * len(rows)), force=force)
        return
    with atomic_path(path, force=force) as temporary:
        text = "".join(f"{name} {start:.3f} {end:.3f}\n" for name, start, end in rows)
        temporary.write_text(text, encoding="utf-8")
