"""Linking: gives the speakers of several files names that hold in all of these files."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from duoplda.diarization import Segments, Turns, read_segments, write_rttm
from duoplda.diarization.known import known_voices
from duoplda.diarization.linking import pairs_within
from duoplda.diarization.local_speakers import (
    LocalSpeaker,
    overlap_of_segments,
    read_turns,
    renamed,
    speakers_by_overlap,
)
from duoplda.errors import DuopldaError, some
from duoplda.estimators.backend import Backend
from duoplda.estimators.clustering import unscaled
from duoplda.estimators.scoring import enroll_recordings
from duoplda.io import read_map, read_partition, write_partition
from duoplda.io.recordings import missing, unlabelled
from duoplda.workflows import _files as files
from duoplda.workflows import option
from duoplda.workflows._files import Columns, Note, PathLike, Show, silent
from duoplda.workflows.cluster import summarized
from duoplda.workflows.option import refuse


def link(
    model: option.Model,
    embeddings: option.LinkEmbeddings,
    out: option.LinkedOut,
    *,
    rttm: option.TurnFiles = (),
    segments: option.LinkSegments = None,
    local: option.LocalSpeakers = None,
    segments_are: option.SegmentsAre = None,
    sessions: option.SessionsOfSpeaker = None,
    channels: option.Channels = None,
    occasions: option.Occasions = None,
    ids: option.Ids = None,
    columns: option.Columns = None,
    prior: option.Prior = 0.02,
    weight: option.Weight = 1.0,
    discount: option.LinkDiscount = 1.0,
    speakers_known: option.SpeakersKnown = None,
    registry: option.KnownVoices = None,
    cannot_link_within: option.CannotLinkWithin = False,
    device: option.Device = "cpu",
    dask: option.Dask = None,
    domain_check: option.DomainCheck = True,
    allow_missing: option.AllowMissing = False,
    strict: option.Strict = False,
    force: option.Force = False,
    note: Note = silent,
    show: Show = silent,
) -> dict[str, Any]:
    """Find the same people among the local speakers of several files, and write turns or recordings with names."""
    as_turns = Path(out).suffix.lower() == ".rttm"
    either = (not rttm) == (local is None) or (rttm and segments is None)
    refuse(either, "give either `rttm` with `segments`, or `local`")
    cause = "turns can be written only if turns are read: give `rttm`, or an `out` that does not end in .rttm"
    refuse(as_turns and not rttm, cause)
    cause = "`cannot_link_within` needs `segments`, which say which file each segment is of"
    refuse(cannot_link_within and segments is None, cause)
    lists = *rttm, segments, local, model, sessions, channels, occasions, speakers_known
    files.check_outputs([out], force, [embeddings], [ids, *lists])
    reading: dict[str, Any] = {"columns": columns, "allow_missing": None, "strict": strict, "hashed": False}
    with files.reader(device, dask, note, show, **reading, domain_check=domain_check) as (read, place):
        cuts = None if segments is None else read_segments(segments)
        if cuts is not None and discount == 1 and (overlap := overlap_of_segments(cuts)) > 1.5:
            cause = f"a second of speech is in {overlap:.1f} segments on average, and counts as often"
            warnings.warn(f"{cause}; give `discount` {1 / overlap:.2f}", UserWarning, stacklevel=2)
        turns = read_turns(rttm) if rttm else None
        who = _local_speakers(turns, cuts, local, columns, allow_missing, strict, note)
        labels = files.labels_by_id(sessions, channels, columns)
        labels["occasion"] = read_map(occasions, "occasion", columns)
        embedded = files.EmbeddedIds(embeddings, ids, columns, allow_missing, note)
        lack = embedded.without_session(who, labels["session"], strict)
        who = {name: person for name, person in who.items() if name not in lack}
        people = sorted({*who.values()})
        row = {person: k for k, person in enumerate(people)}
        chain = Backend.load(model)
        if labels["session"] is not None or files.segment_level(segments_are, chain, note) == "recordings":
            session = labels["session"] or dict.fromkeys(who, "")  # without a list, a local speaker has one session
            labels["session"] = {i: " ".join([*person, session[i]]) for i, person in who.items() if i in session}
        known = files.known_speakers(chain, speakers_known, registry, place)
        if known is None:
            chain = unscaled(chain)
        absent = partial(embedded.missing, "segments have no embedding")
        pairs = [row[person] for person in who.values()], [*who]
        sides = enroll_recordings(
            chain, read(embeddings, ids, files.only(who)), *pairs, **labels, device=place, absent=absent
        )
        options: dict[str, Any] = {"prior": prior, "weight": weight, "discount": discount}
        if cannot_link_within:
            rows = sides.ids.tolist()
            options["cannot_link"] = pairs_within(rows, [people[k][0] for k in rows])
        clustering = chain.cluster(sides, **options)
        if known is not None:
            file = None if cuts is None else [people[k][0] for k in sides.ids.tolist()]
            person: dict[str, Any] = {"person": clustering.labels, "discount": discount, "apart": cannot_link_within}
            voices = known_voices(chain, sides, known, file, **person)
            clustering = replace(clustering, names=voices.names(clustering.names.astype(str)), known=voices.named)
    names = clustering.names[clustering.labels].astype(str).tolist()
    name = {people[k]: linked for k, linked in zip(clustering.ids.tolist(), names, strict=True)}
    if turns is not None and as_turns:
        _write_turns(out, turns, name, force)
    else:
        listed = {recording: person for recording, person in who.items() if person in name}
        local_names = [person[1] for person in listed.values()]
        write_partition(out, listed, [name[person] for person in listed.values()], force=force, local=local_names)
    counts = {"segments": len(who), "local speakers": len(sides), "speakers": len(clustering)}
    return summarized(clustering, counts)


def _write_turns(out: PathLike, turns: Turns, name: Mapping[LocalSpeaker, str], force: bool) -> None:
    """Write the turns with the new names of their speakers."""
    linked_turns, unnamed = renamed(turns, name)
    if unnamed:
        said = f"{len(unnamed)} local speakers have no segment, and get names of their own"
        warnings.warn(f"{said}: {some(map('_'.join, unnamed))}", UserWarning, stacklevel=3)
    write_rttm(out, linked_turns, force=force)


def _local_speakers(
    turns: Turns | None,
    segments: Segments | None,
    local: PathLike | None,
    columns: Columns,
    allow_missing: bool,
    strict: bool,
    note: Note,
) -> dict[str, LocalSpeaker]:
    """The local speaker of each segment or recording, by turns or by a list."""
    if turns is not None and segments is not None:
        speakers = speakers_by_overlap(segments, turns)
        lack = [name for name in segments.ids.tolist() if name not in speakers]
        unlabelled("segments overlap no turn", len(lack), lack, strict, note)
    else:
        names = read_partition(local or "", "speaker", columns)
        file = dict.fromkeys(names, "")
        if segments is not None:  # names count within a file
            file = dict(zip(segments.ids.tolist(), segments.file.values.tolist(), strict=True))
            unknown = [recording for recording in names if recording not in file]
            missing(f"recordings of {local} are not among the segments", unknown, allow_missing, note)
        speakers = {recording: (file[recording], name) for recording, name in names.items() if recording in file}
    if not speakers:
        raise DuopldaError("no local speaker has a segment: do the names of the files agree?")
    return speakers
