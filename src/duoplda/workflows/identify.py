"""Identification: recordings of unknown people are compared with the voices of a registry."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from duoplda.errors import DuopldaError
from duoplda.estimators.backend import Backend
from duoplda.voices import Costs, Registry
from duoplda.workflows import _files as files
from duoplda.workflows import option
from duoplda.workflows._audio import check_audio, embedded_recordings
from duoplda.workflows._files import Note, Show, silent
from duoplda.workflows.voices import vectors_of


def identify(
    model: option.Model,
    registry: option.Registry,
    embeddings: option.IdentifyEmbeddings = None,
    *,
    audio: option.Audio = None,
    extractor: option.Extractor = None,
    sessions: option.IdentifySessions = None,
    channels: option.Channels = None,
    ids: option.Ids = None,
    columns: option.Columns = None,
    prior: option.PriorOfKnown = 0.5,
    top: option.TopVoices = 5,
    cost_wrong_name: option.CostWrongName = 1.0,
    cost_missed: option.CostMissedName = 1.0,
    cost_unsure: option.CostUnsure = 0.5,
    device: option.Device = "cpu",
    strict: option.Strict = False,
    note: Note = silent,
    show: Show = silent,
) -> dict[str, Any]:
    """The answer of `Registry.identify` for each recording, or for each session if sessions are given, by its name."""
    check_audio(audio, extractor, embeddings, ids)
    labels = files.labels_by_id(sessions, channels, columns)
    chain = Backend.load(model)
    with embedded_recordings(audio, extractor, embeddings, model, False, note, show) as path:
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
