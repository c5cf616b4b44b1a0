"""Diarisation: who speaks when, from embeddings of the windows of files to RTTM."""

from __future__ import annotations

from functools import partial
from typing import Any

from duoplda import diarization
from duoplda.errors import OptionsError
from duoplda.workflows._files import Note, PathLike, Show, check_outputs, missing, reader, segment_level, silent
from duoplda.workflows.convert import load_model


def diarize(
    model: PathLike,
    embeddings: PathLike,
    segments: PathLike,
    out: PathLike,
    *,
    transform: PathLike | None = None,
    segments_are: str | None = None,
    hmm: bool = True,
    refine: bool = True,
    speakers: int | None = None,
    min_speakers: int | None = None,
    max_speakers: int | None = None,
    dimensions: int | None = None,
    link: bool = False,
    cannot_link_within: bool = False,
    ids: str | None = None,
    allow_missing: bool = False,
    force: bool = False,
    note: Note = silent,
    show: Show = silent,
    **options: Any,
) -> dict[str, Any]:
    """Give the segments of files to speakers, write their turns, and return how many there are, in all and by file."""
    if not hmm and not refine:
        raise OptionsError("`hmm` is about the refinement: leave out either of the two")
    if speakers is not None and (min_speakers is not None or max_speakers is not None):
        raise OptionsError("`speakers` is the number itself: leave out `min_speakers` and `max_speakers`")
    if cannot_link_within and not link:
        raise OptionsError("`cannot_link_within` is for `link`")
    check_outputs([out], force, [embeddings], [ids, model, transform, segments])
    options |= {"n_speakers": speakers, "min_speakers": min_speakers, "max_speakers": max_speakers}
    options["n_dimensions"] = dimensions
    options |= {"link": link, "cannot_link_within": cannot_link_within}
    options["refine"] = ("vbx" if hmm else "gmm") if refine else None
    with reader("cpu", None, note, show) as (read, _):
        chain, _ = load_model(model, transform)
        options["segments_are"] = segment_level(segments_are, chain, note)
        absent = partial(missing, allow_missing=allow_missing, note=note)
        windows = diarization.read_segments(segments)
        turns = diarization.diarize(chain, read(embeddings, ids), windows, absent=absent, **options)
    diarization.write_rttm(out, turns, force=force)
    files = {}
    for code, name in enumerate(turns.file.names.tolist()):
        part = turns[turns.file.codes == code]
        n_speakers = len({*part.speaker.codes.tolist()})
        files[name] = {"speakers": n_speakers, "turns": len(part), "seconds": float(part.duration.sum())}
    return {"speakers": len({*turns.speaker.codes.tolist()}), "turns": len(turns), "files": files}
