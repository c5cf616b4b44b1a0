"""Diarisation: from embeddings of windows of files to RTTM, which says who speaks when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from duoplda import diarization
from duoplda.diarization.segments import lists_segments, segments_of_ids, within
from duoplda.io import Coded
from duoplda.io.common import TABLE_SUFFIXES, held
from duoplda.io.labels import write_table
from duoplda.io.recordings import unlabelled
from duoplda.report import write_diarization_report
from duoplda.trials.sides import Sides
from duoplda.workflows import option
from duoplda.workflows._audio import embedded_windows
from duoplda.workflows._files import (
    EmbeddedIds,
    Note,
    PathLike,
    Show,
    check_outputs,
    file_hashes,
    known_speakers,
    reader,
    segment_level,
    silent,
)
from duoplda.workflows.convert import load_model
from duoplda.workflows.option import refuse


def diarize(
    model: option.AnyModel,
    out: option.TurnsOut,
    *,
    embeddings: option.SegmentEmbeddings = None,
    audio: option.Audio = None,
    extractor: option.Extractor = None,
    segments: option.Segments = None,
    overlap: option.Overlap = None,
    transform: option.Transform = None,
    segments_are: option.SegmentsAre = None,
    start: option.Start = "ratios",
    hmm: option.Hmm = True,
    refine: option.RefineTurns = True,
    Fa: option.Fa = None,
    Fb: option.Fb = None,
    loop: option.Loop = None,
    discount: option.SegmentDiscount = None,
    prior: option.SegmentPrior = 0.25,
    speakers: option.SpeakersOfFile = None,
    min_speakers: option.FewestSpeakers = None,
    max_speakers: option.MostSpeakers = None,
    dimensions: option.Dimensions = None,
    link: option.Link = False,
    link_prior: option.LinkPrior = 0.02,
    cannot_link_within: option.CannotLinkWithin = False,
    speakers_known: option.SpeakersKnown = None,
    registry: option.KnownVoices = None,
    known_prior: option.KnownPrior = 0.5,
    confidence: option.Confidence = None,
    report: option.TurnsReport = None,
    ids: option.Ids = None,
    columns: option.Columns = None,
    allow_missing: option.AllowMissing = False,
    strict: option.Strict = False,
    domain_check: option.DomainCheck = True,
    force: option.Force = False,
    command: str = "",
    note: Note = silent,
    show: Show = silent,
) -> dict[str, Any]:
    """Find the speaker of each segment of files, write the turns, and return their numbers in total and by file.

    With `audio` and `extractor`, windows of speech are first found in the audio and embedded.
    """
    _check_recordings(embeddings, audio, extractor, segments, ids)
    refuse(not hmm and not refine, "without `refine` there is no HMM to leave out: give one of the two options")
    cause = "`speakers` is the number itself: leave out `min_speakers` and `max_speakers`"
    refuse(speakers is not None and (min_speakers is not None or max_speakers is not None), cause)
    known_or_linked = link or speakers_known is not None or registry is not None
    cause = "`cannot_link_within` has an effect only with `link`, or with known speakers"
    refuse(cannot_link_within and not known_or_linked, cause)
    _check_outputs(out, confidence, report)
    lists = ids, model, transform, segments, overlap, speakers_known, extractor, *(audio or [])
    check_outputs([out, confidence, report], force, [embeddings], lists)
    numbers: dict[str, dict[int, float]] = {}  # file -> the probability of each number of speakers
    with (
        embedded_windows(audio, extractor, embeddings, segments, note, show) as (embeddings, segments),
        reader("cpu", None, note, show, columns=columns, domain_check=domain_check) as (read, _),
    ):
        chain, _ = load_model(model, transform)
        level = segment_level(segments_are, chain, note)
        known = known_speakers(chain, speakers_known, registry)
        embedded = EmbeddedIds(embeddings, ids, columns, allow_missing, note)
        absent = partial(embedded.missing, "segments have no embedding")

        def unlisted(names: NDArray[Any]) -> None:
            unlabelled("embeddings have no segment", len(names), names, strict, note)

        windows = _windows(segments, embedded, unlisted)
        turns = diarization.diarize(
            chain,
            read(embeddings, ids, model=chain),
            windows,
            start=start,
            refine=("vbx" if hmm else "gmm") if refine else None,
            segments_are=level,
            Fa=Fa,
            Fb=Fb,
            loop=loop,
            discount=discount,
            prior=prior,
            n_speakers=speakers,
            min_speakers=min_speakers,
            max_speakers=max_speakers,
            n_dimensions=dimensions,
            link=link,
            link_prior=link_prior,
            cannot_link_within=cannot_link_within,
            known=known,
            known_prior=known_prior,
            overlap=None if overlap is None else diarization.read_regions(overlap),
            told=lambda file, labelled: numbers.update({file: labelled.numbers}),
            absent=absent,
            unlisted=unlisted,
        )
    diarization.write_rttm(out, turns, force=force)
    if confidence is not None:
        write_table(confidence, confidence_of(turns), force=force)
    if report is not None:
        origin: dict[str, Any] = {"commands": [command] if command else [], "hashes": file_hashes([model, segments])}
        write_diarization_report(report, turns, numbers=numbers, **origin, force=force)
    return _summary(turns, numbers, known)


def _check_recordings(
    embeddings: PathLike | None,
    audio: Sequence[PathLike] | None,
    extractor: PathLike | None,
    segments: PathLike | None,
    ids: str | None,
) -> None:
    """Refuse everything except embeddings alone, or audio with its extractor."""
    one_of_two = (embeddings is None) != (audio is None) and (audio is None) == (extractor is None)
    refuse(not one_of_two, "give either `embeddings`, or `audio` and `extractor`")
    cause = "`segments` and `ids` are for `embeddings`: in `audio`, windows are taken where speech is found"
    refuse(audio is not None and (segments is not None or ids is not None), cause)


def _check_outputs(out: PathLike, confidence: PathLike | None, report: PathLike | None) -> None:
    """Refuse a table of an unknown format, and two outputs with the same path."""
    no_table = confidence is not None and Path(confidence).suffix.lower() not in TABLE_SUFFIXES
    refuse(no_table, f"`confidence` {confidence}: the name of a table must end in {', '.join(TABLE_SUFFIXES)}")
    outputs = [Path(path).resolve() for path in (out, confidence, report) if path is not None]
    refuse(len({*outputs}) < len(outputs), "`out`, `confidence` and `report` must be different files")


def _summary(
    turns: diarization.Diarization, numbers: dict[str, dict[int, float]], known: Sides | None
) -> dict[str, Any]:
    """The numbers of speakers, of known speakers and of turns, and the same with the turns for each file."""
    files: dict[str, dict[str, Any]] = {}
    for code, name in enumerate(turns.file.names.tolist()):
        part = turns[turns.file.codes == code]
        n_speakers = len({*part.speaker.codes.tolist()})
        files[name] = {"speakers": n_speakers, "turns": len(part), "seconds": float(part.duration.sum())}
        files[name]["number_posterior"] = {str(k): p for k, p in numbers[name].items()}
        files[name]["confidence"] = _rows({k: v for k, v in confidence_of(part).items() if k != "file"})
    named = set() if known is None else {*known.ids.astype(str).tolist()} & {*turns.speaker.values.tolist()}
    counts = {"speakers": len({*turns.speaker.codes.tolist()}), "known": len(named), "turns": len(turns)}
    return {**counts, "files": files}


def _windows(
    segments: PathLike | None, embedded: EmbeddedIds, unlisted: Callable[[NDArray[Any]], None]
) -> diarization.Segments:
    """The windows of a list of segments, or those in the ids of embeddings, inside the regions of speech if given."""
    if segments is not None and lists_segments(segments := held(segments)):
        return diarization.read_segments(segments)
    windows = segments_of_ids(embedded.all_ids().astype(str))
    if segments is None:
        return windows
    spoken = within(windows, diarization.read_regions(segments))
    if not spoken.all():
        unlisted(windows.ids[~spoken])
    return windows[spoken]


def confidence_of(turns: diarization.Diarization) -> dict[str, Coded | NDArray[Any]]:
    """The columns of the table of turns: the probabilities of the speaker and of the second best, and the voice."""
    columns: dict[str, Coded | NDArray[Any]]
    columns = {"file": turns.file, "start": turns.start.round(6), "end": turns.end.round(6), "speaker": turns.speaker}
    columns |= {"posterior": turns.posterior.round(6), "second": turns.second}
    columns |= {"second_posterior": turns.second_posterior.round(6)}
    if turns.voice is not None and turns.voice_posterior is not None:
        columns |= {"voice": turns.voice, "voice_posterior": turns.voice_posterior.round(6)}
    return columns


def _rows(columns: dict[str, Coded | NDArray[Any]]) -> list[dict[str, Any]]:
    """A table as one dictionary for each row."""
    lists = [(column.values if isinstance(column, Coded) else column).tolist() for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]
