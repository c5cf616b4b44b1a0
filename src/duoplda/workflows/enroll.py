"""Enrolment: speakers in one file, enrolled once and scored as often as one likes."""

from __future__ import annotations

from functools import partial

from duoplda.errors import OptionsError
from duoplda.estimators.backend import Backend
from duoplda.estimators.scoring import enroll_recordings
from duoplda.io import read_enrollment, read_map
from duoplda.io.label_index import missing
from duoplda.trials.sides import Sides
from duoplda.workflows import option
from duoplda.workflows._audio import check_audio, embedded_recordings
from duoplda.workflows._files import (
    EmbeddedIds,
    ListedColumns,
    Note,
    Show,
    check_outputs,
    labels_by_id,
    reader,
    silent,
)


def enroll(
    model: option.Model,
    out: option.EnrolledOut,
    *,
    embeddings: option.EnrollEmbeddings = None,
    audio: option.Audio = None,
    extractor: option.Extractor = None,
    enroll: option.EnrollList = None,
    sessions: option.Sessions = None,
    channels: option.Channels = None,
    occasions: option.Occasions = None,
    ids: option.Ids = None,
    columns: option.Columns = None,
    add_to: option.AddTo = None,
    remove: option.Remove = (),
    device: option.Device = "cpu",
    dask: option.Dask = None,
    allow_missing: option.AllowMissing = False,
    strict: option.Strict = False,
    force: option.Force = False,
    note: Note = silent,
    show: Show = silent,
) -> Sides:
    """Enroll speakers, or change a file of enrolled speakers; write them, and return them."""
    check_audio(audio, extractor, embeddings, ids, needed=False)
    if (embeddings is None and audio is None) != (enroll is None):
        raise OptionsError("`embeddings` (or `audio`) and `enroll` go together: vectors, and whose they are")
    if add_to is None and (remove or enroll is None):
        raise OptionsError("give `embeddings` and `enroll`, or `add_to` for a file that is to be changed")
    lists = [ids, model, enroll, sessions, channels, occasions, add_to, extractor, *(audio or [])]
    check_outputs([out], force, [embeddings], lists)
    with (
        embedded_recordings(
            audio, extractor, embeddings, model=model, allow_missing=allow_missing, note=note, show=show
        ) as embeddings,
        reader(device, dask, note, show, columns=columns) as (read, place),
    ):
        chain = Backend.load(model)
        voices = None if add_to is None else chain.load_sides(add_to, device=place)
        if voices is not None and remove:
            unknown = [name for name, row in zip(remove, voices.rows(remove), strict=True) if row < 0]
            there = "enrolled are", voices.ids
            missing("speakers to be removed are not enrolled", unknown, allow_missing, note, there)
            voices.remove([name for name in remove if name not in unknown])
        if embeddings is not None and enroll is not None:
            table = read_enrollment(enroll, columns=columns)
            listed = ListedColumns(enroll, table.model.names, table.recording.names, "model=2,recording=1")
            embedded = EmbeddedIds(embeddings, ids, columns, allow_missing, note)
            absent = partial(embedded.missing, "recordings of the enrolment have no embedding", listed=listed)
            labels = labels_by_id(sessions, channels, columns) | {"occasion": read_map(occasions, "occasion", columns)}
            pairs = embedded.labelled(table.model, table.recording, labels["session"], strict)
            new = enroll_recordings(
                chain, read(embeddings, ids, model=chain), *pairs, **labels, device=place, absent=absent
            )
            voices = new if voices is None else voices.add(new)
    assert voices is not None
    voices.save(out, force=force)
    return voices
