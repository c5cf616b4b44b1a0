"""What is in a model file or a file of enrolled speakers, and how far recordings are from its training data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from duoplda.errors import DuopldaError
from duoplda.estimators.backend import Backend
from duoplda.estimators.scoring import measure_recordings
from duoplda.io import read_container, read_map, read_quality, read_recordings
from duoplda.io.common import first_bytes
from duoplda.trials.side_files import fingerprint, read_enrolled
from duoplda.workflows import option
from duoplda.workflows._files import Columns, PathLike, file_hashes
from duoplda.workflows._quality import compare, ranges_of
from duoplda.workflows.option import refuse


def info(
    model: option.ModelToShow,
    *,
    embeddings: option.MeasuredEmbeddings = None,
    ids: option.Ids = None,
    columns: option.Columns = None,
    speakers: option.MeasuredSpeakers = None,
    quality: option.MeasuredQuality = None,
) -> dict[str, Any]:
    """The summary of a model; with `embeddings`, under `domain`, their distance from its training data and its limit.

    With `quality`, a table of measures, `quality` has the comparison of its recordings with those of the training by
    each measure. Without `speakers`, clusters of a sample of the recordings count as speakers. For a file of enrolled
    speakers or a registry of voices, there are `enrolled`, with the numbers of sessions and recordings of each, and
    `model`, the fingerprint of the model that enrolled them (of a registry: also of the steps before it). The SHA-256
    of a file is under `sha256`; a registry, which changes, has none.
    """
    without = embeddings is None and (ids is not None or speakers is not None)
    refuse(without, "`ids` and `speakers` are about recordings: give `embeddings`")
    compared = embeddings is not None or quality is not None
    cause = f"`embeddings` and `quality` are compared with a model, and {model}"
    if _is_registry(model):
        refuse(compared, f"{cause} is a registry of voices")
        return {"registry": os.fspath(model), **_about_registry(model)}
    sha256 = file_hashes([model]).get(os.fspath(model))
    if read_container(model, ["duoplda-backend", "duoplda-sides"])[1]["format"] == "duoplda-sides":
        refuse(compared, f"{cause} holds enrolled speakers")
        enrolled = read_enrolled(model)
        counts = zip(enrolled.sessions.tolist(), enrolled.recordings.tolist(), strict=True)
        each = ({"sessions": sessions, "recordings": n} for sessions, n in counts)
        voices = dict(zip(enrolled.ids.tolist(), each, strict=True))
        return {"sha256": sha256, "model": enrolled.model, "enrolled": voices}
    chain = Backend.load(model)
    summary = chain.summary() | {"sha256": sha256, "fingerprint": fingerprint(chain.plda_.ratio_model_)}
    if quality is not None:
        ranges = ranges_of(chain)
        if not ranges:
            cause = "was trained without `quality`, and does not know the quality of its recordings"
            raise DuopldaError(f"{model}: {cause}")
        summary["quality"] = [one._asdict() for one in compare(ranges, read_quality(quality))]
    if embeddings is not None:
        summary["domain"] = _distance(chain, embeddings, ids, columns, speakers)
    return summary


def _distance(
    chain: Backend, embeddings: PathLike, ids: str | None, columns: Columns, speakers: PathLike | None
) -> dict[str, Any]:
    """How far recordings are from the training data, and whether that is within the limit."""
    known = read_map(speakers, "speaker", columns)
    recordings = read_recordings(embeddings, ids=ids, columns=columns)
    measured = measure_recordings(chain, recordings, None if known is None else [*known], known)
    if measured is None:
        cause = f"is in {speakers}" if speakers else "can be summed up"
        raise DuopldaError(f"{embeddings}: no recording of it {cause}")
    return {**measured._asdict(), "within": measured.within}


def _is_registry(path: PathLike) -> bool:
    """Whether a file is a database of SQLite."""
    return Path(path).is_file() and first_bytes(path).startswith(b"SQLite format 3\0")


def _about_registry(path: PathLike) -> dict[str, Any]:
    """The voices of a registry, what it keeps of recordings, and the fingerprint of its model."""
    from duoplda.voices import Registry

    with Registry.open(path) as registry:
        counts = {v.name: {"sessions": v.n_sessions, "recordings": v.n_recordings} for v in registry.voices()}
        return {"model": registry.fingerprint, "keep": registry.keep, "enrolled": counts}
