"""Who is it? Recordings that nobody has named are compared with the voices of a registry."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from duoplda.errors import DuopldaError
from duoplda.estimators.backend import Backend
from duoplda.voices import Costs, Registry
from duoplda.workflows import _files as files
from duoplda.workflows._files import Columns, Note, PathLike, silent
from duoplda.workflows.voices import vectors_of


def identify(
    model: PathLike,
    registry: PathLike,
    embeddings: PathLike,
    *,
    sessions: PathLike | None = None,
    channels: PathLike | None = None,
    ids: str | None = None,
    columns: Columns = None,
    prior: float = 0.5,
    top: int = 5,
    cost_wrong_name: float = 1.0,
    cost_missed: float = 1.0,
    cost_unsure: float = 0.5,
    strict: bool = False,
    note: Note = silent,
) -> dict[str, Any]:
    """Who each recording, or each session where these are given, is: by name, what `Registry.identify` answers."""
    labels = files.labels_by_id(sessions, channels, columns)
    embedded = files.EmbeddedIds(embeddings, ids, columns, False, note)
    vectors = vectors_of(embedded)
    lack = embedded.without_session(vectors, labels["session"], strict)
    tests: dict[str, list[str]] = {}
    for recording in vectors:
        if recording not in lack:
            tests.setdefault((labels["session"] or {}).get(recording, recording), []).append(recording)
    if not tests:
        raise DuopldaError(f"{embeddings}: there is no recording in it to identify")
    kinds = labels["channel"]
    costs = Costs(cost_wrong_name, cost_missed, cost_unsure)
    out = {}
    with Registry.open(registry, Backend.load(model)) as voices:
        for name, recordings in tests.items():
            X = np.stack([vectors[recording] for recording in recordings])
            kind = None if kinds is None else [kinds.get(recording) for recording in recordings]
            out[name] = asdict(voices.identify(X, name, top, prior, costs=costs, kind=kind))
    return out
