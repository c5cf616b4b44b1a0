"""Enrolment: speakers in one file, enrolled once and scored as often as one likes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from duoplda.errors import OptionsError
from duoplda.estimators.backend import Backend
from duoplda.estimators.scoring import enroll_recordings
from duoplda.io import read_enrollment
from duoplda.trials.sides import Sides
from duoplda.workflows._files import Note, PathLike, Show, check_outputs, labels_by_id, missing, reader, silent


def enroll(
    model: PathLike,
    out: PathLike,
    *,
    embeddings: PathLike | None = None,
    enroll: PathLike | None = None,
    sessions: PathLike | None = None,
    channels: PathLike | None = None,
    ids: str | None = None,
    add_to: PathLike | None = None,
    remove: Sequence[str] = (),
    device: str = "cpu",
    dask: str | None = None,
    allow_missing: bool = False,
    force: bool = False,
    note: Note = silent,
    show: Show = silent,
) -> Sides:
    """Enroll speakers, or change a file of enrolled speakers; write them, and return them."""
    if (embeddings is None) != (enroll is None):
        raise OptionsError("`embeddings` and `enroll` go together: vectors, and whose they are")
    if add_to is None and (remove or enroll is None):
        raise OptionsError("give `embeddings` and `enroll`, or `add_to` for a file that is to be changed")
    check_outputs([out], force, [embeddings], [ids, model, enroll, sessions, channels, add_to])
    with reader(device, dask, note, show) as (read, place):
        chain = Backend.load(model)
        voices = None if add_to is None else chain.load_sides(add_to, device=place)
        if voices is not None and remove:
            unknown = [name for name, row in zip(remove, voices.rows(remove), strict=True) if row < 0]
            missing("speakers to be removed are not enrolled", unknown, allow_missing, note)
            voices.remove([name for name in remove if name not in unknown])
        if embeddings is not None and enroll is not None:
            table = read_enrollment(enroll)
            absent = partial(
                missing, "recordings of the enrolment have no embedding", allow_missing=allow_missing, note=note
            )
            labels = labels_by_id(sessions, channels)
            pairs = table.model, table.recording
            new = enroll_recordings(chain, read(embeddings, ids), *pairs, **labels, device=place, absent=absent)
            voices = new if voices is None else voices.add(new)
    assert voices is not None
    voices.save(out, force=force)
    return voices
