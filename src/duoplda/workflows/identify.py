"""Who is it? Recordings that nobody has named are compared with the voices of a registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from duoplda.errors import DuopldaError
from duoplda.estimators.backend import Backend
from duoplda.voices import Costs, Registry
from duoplda.workflows import _files as files
from duoplda.workflows._audio import check_audio, embedded_recordings
from duoplda.workflows._files import Columns, Note, PathLike, Show, silent
from duoplda.workflows.voices import vectors_of


def identify(
    model: PathLike,
    registry: PathLike,
    embeddings: PathLike | None = None,
    *,
    audio: Sequence[PathLike] | None = None,
    extractor: PathLike | None = None,
    sessions: PathLike | None = None,
    channels: PathLike | None = None,
    ids: str | None = None,
    columns: Columns = None,
    prior: float = 0.5,
    top: int = 5,
    cost_wrong_name: float = 1.0,
    cost_missed: float = 1.0,
    cost_unsure: float = 0.5,
    device: str = "cpu",
    strict: bool = False,
    note: Note = silent,
    show: Show = silent,
) -> dict[str, Any]:
    """Who each recording, or each session where these are given, is: by name, what `Registry.identify` answers."""
    check_audio(audio, extractor, embeddings, ids)
    labels = files.labels_by_id(sessions, channels, columns)
    chain = Backend.load(model)
    with embedded_recordings(audio, extractor, embeddings, model=model, note=note, show=show) as path:
        assert path is not None
        files.warn_of_extractor(path, chain)
        embedded = files.EmbeddedIds(path, ids, columns, False, note)
        vectors = vectors_of(embedded)
        lack = embedded.without_session(vectors, labels["session"], strict)
    tests: dict[str, list[str]] = {}
    for recording in vectors:
        if recording not in lack:
            tests.setdefault((labels["session"] or {}).get(recording, recording), []).append(recording)
    if not tests:
        raise DuopldaError(f"{path}: there is no recording in it to identify")
    kinds = labels["channel"]
    costs = Costs(cost_wrong_name, cost_missed, cost_unsure)
    out = {}
    with Registry.open(registry, chain, device=device) as voices:
        for name, recordings in tests.items():
            X = np.stack([vectors[recording] for recording in recordings])
            kind = None if kinds is None else [kinds.get(recording) for recording in recordings]
            out[name] = asdict(voices.identify(X, name, top, prior, costs=costs, kind=kind))
    return out
