"""Enrolment: a file of speakers, who are enrolled once and can be scored any number of times."""

from __future__ import annotations

from functools import partial

from duoplda.estimators.backend import Backend
from duoplda.estimators.scoring import enroll_recordings
from duoplda.io import read_map
from duoplda.io.recordings import missing
from duoplda.trials.sides import Sides
from duoplda.workflows import _files as files
from duoplda.workflows import option
from duoplda.workflows._audio import check_audio, embedded_recordings
from duoplda.workflows._files import Note, Show, silent
from duoplda.workflows.option import refuse


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
    cause = "`embeddings` (or `audio`) and `enroll` go together: recordings, and a list that says whose they are"
    refuse((embeddings is None and audio is None) != (enroll is None), cause)
    cause = "give `embeddings` and `enroll`, or `add_to`, a file to change"
    refuse(add_to is None and (remove or enroll is None), cause)
    lists = [ids, model, enroll, sessions, channels, occasions, add_to, extractor, *(audio or [])]
    files.check_outputs([out], force, [embeddings], lists)
    with files.reader(device, dask, note, show, columns=columns) as (read, place):
        chain = Backend.load(model)
        voices = None if add_to is None else chain.load_sides(add_to, device=place)
        if voices is not None and remove:
            unknown = [name for name, row in zip(remove, voices.rows(remove), strict=True) if row < 0]
            there = "enrolled are", voices.ids
            missing("speakers to be removed are not enrolled", unknown, allow_missing, note, there)
            voices.remove([name for name in remove if name not in unknown])
        if enroll is not None:
            with embedded_recordings(audio, extractor, embeddings, model, allow_missing, note, show) as path:
                embedded = files.EmbeddedIds(path, ids, columns, allow_missing, note)
                listed = files.Listed.enrolment(enroll, columns)
                labels = files.labels_by_id(sessions, channels, columns)
                new = enroll_recordings(
                    chain,
                    read(path, ids, model=chain),
                    *embedded.labelled((listed.models, listed.recordings), labels["session"], strict),
                    **labels,
                    occasion=read_map(occasions, "occasion", columns),
                    device=place,
                    absent=partial(embedded.missing, "recordings of the enrolment have no embedding", listed=listed),
                )
            voices = new if voices is None else voices.add(new)
    assert voices is not None
    voices.save(out, force=force)
    return voices
