"""Reads and checks the recordings that a case file names: what may not be compared is an error before any ratio."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.case.file import CaseFile, Place, SourceFiles
from duoplda.case.material import same_vectors
from duoplda.data import Recordings
from duoplda.errors import MissingIds, some
from duoplda.io import (
    ExtractorName,
    LabelColumns,
    label_columns,
    read_embeddings,
    read_extractor,
    read_labels,
    read_map,
)

if TYPE_CHECKING:
    from duoplda.estimators.backend import Backend

LEVELS = ("session", "channel", "occasion")
Floats = NDArray[np.floating]
ById = dict[str, str]


@dataclass(frozen=True, eq=False)
class Side:
    """Recordings with their labels, all (n,); a level that nobody labelled is None."""

    ids: NDArray[np.str_]
    X: Floats  # (n, d)
    speaker: NDArray[np.str_] | None
    session: NDArray[np.str_] | None
    channel: NDArray[np.str_] | None
    occasion: NDArray[np.str_] | None

    @property
    def recordings(self) -> Recordings:
        """The same recordings in the form that `assess` takes."""
        return Recordings.from_arrays(
            self.X, self.speaker, self.session, self.channel, self.ids, occasion=self.occasion
        )


class CaseRecordings(NamedTuple):
    """The recordings of both sides of a case, and of its population."""

    known: Side
    questioned: Side
    population: Side


def read_case_recordings(case: CaseFile, model: Backend) -> CaseRecordings:
    """Read the recordings of a case, and refuse what may not be compared.

    These are errors: sides that are swapped; a recording or a session that is on both sides; two recordings with one id
    or with one vector; the known speaker, or a recording of the case, in the population; vectors that contain NaN, have
    another width than the model takes or come from another extractor; recordings without a session; unknown kinds of
    channels.
    """
    _refuse_other_extractors(case, model)
    sides = CaseRecordings(_side(case, "known"), _side(case, "questioned"), _population(case))
    for name, side in sides._asdict().items():
        _refuse_vectors(case, name, side, int(model.n_features_in_))
    _refuse_both_sides(case, sides)
    _refuse_in_population(case, sides)
    _refuse_kinds(case, sides, model)
    return sides


# -- reading


def _side(case: CaseFile, name: str) -> Side:
    """The recordings of one side, with their labels."""
    source: SourceFiles = getattr(case, name)
    listed = source.recordings
    wanted = None if listed is None else [recording.id for recording in listed]
    ids, X = _vectors(case, name, wanted)
    inline = {recording.id: recording for recording in listed or ()}
    labels: dict[str, NDArray[np.str_] | None] = {}
    for level in LEVELS:
        values = _labels_by_id(source, level)
        values |= {id: text for id, r in inline.items() if (text := getattr(r, level)) is not None}
        lack = [id for id in ids.tolist() if id not in values]
        labels[level] = None
        if len(lack) < len(ids):
            if lack:
                remedy = f"say the {level} of each recording, or of none"
                raise case.error((name, "recordings"), f"no {level} is given for {some(lack, 4)}", remedy)
            labels[level] = np.array([values[id] for id in ids.tolist()])
    if labels["session"] is None:
        remedy = "name the conversation of each recording: two copies of one conversation must not count twice"
        raise case.error((name,), "no sessions are given", remedy)
    _refuse_swapped(case, name, ids)
    return Side(ids, X, None, **labels)


def _labels_by_id(source: SourceFiles, level: str) -> ById:
    """The labels of recordings at one level, from lists or from a table."""
    path = getattr(source, f"{level}s")
    if path is None and source.labels is not None and level in label_columns(source.labels, source.columns):
        path = source.labels
    return read_map(path, level, source.columns) or {}


def _vectors(case: CaseFile, name: str, wanted: Sequence[str] | None) -> tuple[NDArray[np.str_], Floats]:
    """Read the ids and vectors of a side: those that are wanted, in their order, or all of its files."""
    source: SourceFiles = getattr(case, name)
    vector_of: dict[str, Floats] = {}
    keep = None if wanted is None else frozenset(wanted)
    all_ids: list[str] = []
    for path in source.embeddings:
        for ids, X in read_embeddings(path, source.ids, columns=source.columns):
            for id, vector in zip(ids.tolist(), X, strict=True):
                if keep is not None and id not in keep:
                    all_ids += [id] * (len(all_ids) < 4)
                    continue
                if id in vector_of:
                    remedy = "two recordings need two ids"
                    raise case.error((name, "embeddings"), f"several files have a recording {id!r}", remedy)
                vector_of[id] = np.array(vector)
    if wanted is not None and (lack := [id for id in wanted if id not in vector_of]):
        cause = f"{len(lack)} recordings have no embedding: {some(lack, 4)}"
        error = case.error((name, "recordings"), cause, f"the embeddings have {some(all_ids[:3])}, for example")
        raise MissingIds(str(error))
    order = list(vector_of) if wanted is None else list(wanted)
    widths = {len(vector_of[id]) for id in order}
    if len(widths) > 1:
        raise case.error((name, "embeddings"), f"vectors have {some(sorted(widths))} numbers", "take one extractor")
    return np.array(order), np.stack([vector_of[id] for id in order])


def _population(case: CaseFile) -> Side:
    """Read the recordings of the population that have both an embedding and labels."""
    source = case.population
    first = source.labels or source.speakers
    assert first is not None  # the case file has one of them
    table = read_labels(first, source.sessions, source.channels, occasions=source.occasions, columns=source.columns)
    if table.session is None:
        remedy = "name the conversation of each recording, in a column `session` or a list `sessions`"
        raise case.error(("population",), "no sessions are given, so copies would be compared with one another", remedy)
    parts: list[tuple[NDArray[np.str_], Floats]] = []
    labelled = frozenset(table.ids.tolist())
    for path in source.embeddings:
        for ids, X in read_embeddings(path, source.ids, columns=source.columns):
            rows = np.flatnonzero([id in labelled for id in ids.tolist()])
            parts.append((ids[rows], np.array(X[rows])))
    ids = np.concatenate([part for part, _ in parts])
    if not len(ids):
        remedy = f"the labels have {some(table.ids[:3])}: do the ids agree?"
        raise MissingIds(str(case.error(("population", "embeddings"), "none of the recordings has a label", remedy)))
    names, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        remedy = "two recordings need two ids"
        raise case.error(("population", "embeddings"), f"several files have {some(names[counts > 1], 4)}", remedy)
    row = {id: number for number, id in enumerate(table.ids.tolist())}
    return _labelled(ids, np.concatenate([X for _, X in parts]), table[np.array([row[id] for id in ids.tolist()])])


def _labelled(ids: NDArray[np.str_], X: Floats, table: LabelColumns) -> Side:
    """Make a side of the population; where two speakers use one name for a session, these are two sessions."""
    assert table.speaker is not None  # `read_labels` reads no table without speakers
    assert table.session is not None  # `_population` refuses one
    pairs = zip(table.speaker.tolist(), table.session.tolist(), strict=True)
    session = np.array([f"{speaker} {name}" for speaker, name in pairs])
    return Side(ids, X, table.speaker, session, table.channel, table.occasion)


# -- what is refused


def _refuse_other_extractors(case: CaseFile, model: Backend) -> None:
    """Refuse embeddings of another extractor than that of the model's training, where the files name both."""
    trained = ExtractorName.parsed(json.dumps(model.provenance_.get("extractor")))
    for name in ("known", "questioned", "population"):
        for path in getattr(case, name).embeddings:
            made_by = read_extractor(path)
            if trained is not None and made_by is not None and trained.sha256 != made_by.sha256:
                cause = f"{path.name} was made by {made_by.name}, and the model was trained on embeddings of "
                cause += trained.name
                raise case.error((name, "embeddings"), cause, "make the embeddings with the extractor of the model")


def _refuse_vectors(case: CaseFile, name: str, side: Side, width: int) -> None:
    """Refuse vectors that do not fit the model, are not finite, or occur twice on one side."""
    place: Place = (name, "embeddings")
    if side.X.shape[1] != width:
        cause = f"vectors have {side.X.shape[1]} numbers, and the model takes {width}"
        raise case.error(place, cause, "take embeddings of the extractor that the model was trained on")
    broken = ~np.isfinite(side.X).all(axis=1)
    if broken.any():
        cause = f"the vectors of {some(side.ids[broken], 4)} have NaN or infinity in them"
        raise case.error(place, cause, "make these embeddings anew, or leave the recordings out")
    if name != "population":
        for i, j in same_vectors(side.X, side.X):
            if i != j:
                first, second = side.ids[[i, j]].tolist()
                cause = f"{first!r} and {second!r} have the very same vector: one recording under two ids"
                raise case.error((name, "recordings"), cause, "leave one of them out")


def _refuse_swapped(case: CaseFile, name: str, ids: NDArray[np.str_]) -> None:
    """Refuse sides whose labels name the wrong speaker: known recordings are of the known speaker, others are not."""
    source: SourceFiles = getattr(case, name)
    if source.labels is None or "speaker" not in label_columns(source.labels, source.columns):
        return
    speaker = read_map(source.labels, "speaker", source.columns) or {}
    of_known = np.array([speaker.get(id) == case.speaker for id in ids.tolist()])
    wrong = ids[of_known] if name == "questioned" else ids[~of_known]
    if len(wrong):
        what = f"is labelled as the known speaker, {case.speaker!r}"
        if name == "known":
            what = f"is labelled as {speaker.get(str(wrong[0]))!r}, and the known speaker is {case.speaker!r}"
        remedy = "are the two sides swapped? Known recordings belong into [known], those in question into [questioned]"
        raise case.error((name, "labels"), f"recording {str(wrong[0])!r} {what}", remedy)


def _refuse_both_sides(case: CaseFile, sides: CaseRecordings) -> None:
    """Refuse a recording or a session on both sides: it would support the first proposition whoever speaks."""
    place: Place = ("questioned", "recordings")
    known, questioned = sides.known, sides.questioned
    of_known = set(known.ids.tolist())
    for id in questioned.ids.tolist():
        if id in of_known:
            raise case.error(place, f"recording {id!r} is on both sides", "leave it out of one of them")
    for i, j in same_vectors(known.X, questioned.X):
        cause = f"{str(questioned.ids[j])!r} has the very same vector as {str(known.ids[i])!r} of the known speaker"
        raise case.error(place, f"{cause}: one recording on both sides", "leave it out of one of them")
    assert known.session is not None  # `_side` refuses recordings without sessions
    assert questioned.session is not None
    if shared := sorted({*known.session.tolist()} & {*questioned.session.tolist()}):
        remedy = "leave it out of one of them, or give the sessions names of their own if they are two conversations"
        raise case.error(place, f"session {shared[0]!r} is on both sides", remedy)


def _refuse_in_population(case: CaseFile, sides: CaseRecordings) -> None:
    """Refuse a population with the known speaker, or with a recording of the case, in it."""
    population = sides.population
    assert population.speaker is not None  # labels of a population have speakers
    if case.speaker in set(population.speaker.tolist()):
        cause = f"the known speaker, {case.speaker!r}, is a speaker of the population"
        raise case.error(("population",), cause, "take this person's recordings out of its labels")
    population_ids = set(population.ids.tolist())
    remedy = "take the recordings of the case, and all others of their speakers, out of its labels"
    for name in ("known", "questioned"):
        side = getattr(sides, name)
        for id in side.ids.tolist():
            if id in population_ids:
                cause = f"recording {id!r} of [{name}] is among those of the population"
                raise case.error(("population",), cause, remedy)
        for i, j in same_vectors(side.X, population.X):
            id, other = str(side.ids[i]), str(population.ids[j])
            cause = f"recording {id!r} of [{name}] is among those of the population, as {other!r}"
            raise case.error(("population",), f"{cause}: its vector is the same", remedy)


def _refuse_kinds(case: CaseFile, sides: CaseRecordings, model: Backend) -> None:
    """Refuse kinds of channels that are unknown, or that only some of the recordings have."""
    channels = {name: side.channel for name, side in sides._asdict().items()}
    lack = [f"[{name}]" for name, channel in channels.items() if channel is None]
    if lack and len(lack) < len(channels):
        remedy = "say the channel of every recording, of the case and of the population, or of none"
        raise case.error((), f"kinds of channels are given, but not in {' and '.join(lack)}", remedy)
    of_model = [str(kind) for kind in model.plda_.channels_.tolist()]
    for name in ("known", "questioned"):
        channel, population_kinds = channels[name], channels["population"]
        if channel is None or population_kinds is None:
            continue
        kinds = of_model if len(of_model) > 1 else sorted({*population_kinds.tolist()})
        if unknown := sorted({*channel.tolist()} - {*kinds}):
            whose = "the model" if len(of_model) > 1 else "the population"
            cause = f"channel {unknown[0]!r} is not a kind that {whose} has"
            raise case.error((name, "recordings"), cause, f"its kinds are: {', '.join(kinds)}")
