"""Known voices: the actions that change or show a registry."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.errors import MissingIds, OptionsError
from duoplda.estimators.backend import Backend
from duoplda.io import read_embeddings
from duoplda.voices import Registry, Voice
from duoplda.workflows import _files as files
from duoplda.workflows import option
from duoplda.workflows._audio import check_audio, embedded_recordings
from duoplda.workflows._files import Note, PathLike, Show, silent
from duoplda.workflows.option import refuse

ABOUT_RECORDINGS = ("enroll", "sessions", "channels", "ids", "columns")
# For each action, the smallest and the largest number of names, and its options besides the registry and `by`
ACTIONS = {
    "add": (0, 1, {"model", "embeddings", "audio", "extractor", *ABOUT_RECORDINGS, "keep", "join"}),
    "list": (0, 0, {"search"}),
    "show": (1, 1, set[str]()),
    "remove": (1, None, {"session"}),
    "merge": (2, 2, {"model"}),
    "rename": (2, 2, set[str]()),
    "migrate": (0, 0, {"model"}),
    "snapshot": (0, 0, {"model"}),
    "export": (0, 0, {"out", "force"}),
    "import": (0, 0, {"model", "file"}),
}
OF_ACTIONS = set[str]().union(*(options for _, _, options in ACTIONS.values()))
NEEDED = {
    "add": ("model",),
    "migrate": ("model",),
    "snapshot": ("model",),
    "export": ("out",),
    "import": ("model", "file"),
}


def voices(
    action: option.Action,
    names: option.VoiceNames = (),
    *,
    registry: option.Registry,
    model: option.EnrollingModel = None,
    embeddings: option.VoiceEmbeddings = None,
    audio: option.Audio = None,
    extractor: option.Extractor = None,
    enroll: option.VoiceList = None,
    sessions: option.SessionsOfSpeaker = None,
    channels: option.Channels = None,
    ids: option.Ids = None,
    columns: option.Columns = None,
    keep: option.Keep = None,
    join: option.Join = False,
    session: option.SessionToRemove = None,
    search: option.Search = None,
    out: option.ExportOut = None,
    file: option.ImportFile = None,
    by: option.By = None,
    allow_missing: option.AllowMissing = False,
    strict: option.Strict = False,
    force: option.Force = False,
    note: Note = silent,
    show: Show = silent,
) -> dict[str, Any]:
    """Change or show a registry of known voices, and return the voices that the action was about, under `voices`."""
    given = {name for name, value in locals().items() if value not in (None, False)}
    _check_options(action, names, given & OF_ACTIONS)
    chain = None if model is None else Backend.load(model)
    if action == "add":
        assert chain is not None
        check_audio(audio, extractor, embeddings, ids)
        labels = files.labels_by_id(sessions, channels, columns)
        with embedded_recordings(audio, extractor, embeddings, model, allow_missing, note, show) as path:
            files.warn_of_extractor(path, chain)
            embedded = files.EmbeddedIds(path, ids, columns, allow_missing, note)
            additions = _additions(names, enroll, embedded, labels, strict)
        with _opened_or_made(registry, chain, keep, by, note) as there:
            there.add_all(*additions, join=join)
            return _told(there.voice(name) for name in additions[0])
    if action == "import":
        assert file is not None
        assert chain is not None
        with Registry.import_(file, registry, chain, by=by) as made:
            return _told(made.voices())
    with Registry.open(registry, None if action == "migrate" else chain, by) as there:
        if action == "migrate":
            assert chain is not None
            there.migrate(chain)
        elif action == "snapshot":
            there.snapshot()
            return _told([])
        elif action == "export":
            assert out is not None
            there.export(out, force=force)
        elif action == "remove" and session is None:
            there.remove(names)
            return _told([])
        elif action == "remove":
            return _told([there.remove_session(names[0], str(session))])
        elif action == "show":
            return _told([there.voice(names[0])])
        elif action in ("merge", "rename"):
            return _told([(there.merge if action == "merge" else there.rename)(*names)])
        return _told(there.voices(search))


def _told(voices: Iterable[Voice]) -> dict[str, Any]:
    """Voices as dictionaries, with dates as texts."""
    return {"voices": [json.loads(json.dumps(asdict(voice), default=str)) for voice in voices]}


def _check_options(action: str, names: Sequence[str], given: set[str]) -> None:
    """Refuse options, or a number of names, that the action does not take."""
    refuse(action not in ACTIONS, f"there is no action {action!r}: there are {', '.join(ACTIONS)}")
    least, most, allowed = ACTIONS[action]
    if len(names) < least or (most is not None and len(names) > most):
        counts = "no name" if most == 0 else "at most one name" if least == 0 else f"{least} name{'s' * (least > 1)}"
        counts += " or more" if most is None else ""
        raise OptionsError(f"{action} takes {counts}, and {len(names)} are given")
    for name in sorted(given):
        refuse(name not in allowed, f"`{name}` is not for {action}")
    for name in NEEDED.get(action, ()):
        refuse(name not in given, f"{action} needs `{name}`")
    whose = action == "add" and (len(names) == 1) == ("enroll" in given)
    refuse(whose, "give the name of the voice whose recordings these are, or `enroll`, a list that says it")
    several = action == "remove" and "session" in given and len(names) != 1
    refuse(several, "`session` is of one voice: give one name")


def _opened_or_made(location: PathLike, chain: Backend, keep: str | None, by: str | None, note: Note) -> Registry:
    """Open the registry, or make it if there is none."""
    if "://" in str(location) or Path(location).exists():
        refuse(keep is not None, f"`keep` is for a new registry, and {location} is there already")
        return Registry.open(location, chain, by)
    note(f"a new registry: {location}")
    return Registry.create(location, chain, keep or "statistics", by=by)


Additions = tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any] | None]


def _additions(
    names: Sequence[str], enroll: PathLike | None, embedded: files.EmbeddedIds, labels: dict[str, Any], strict: bool
) -> Additions:
    """The recordings of each voice, with their sessions and kinds as far as these are known."""
    listed = None
    if enroll is None:
        recordings = embedded.all_ids().tolist()
        lack = embedded.without_session(recordings, labels["session"], strict)
        pairs = [(names[0], recording) for recording in recordings if recording not in lack]
    else:
        listed = files.Listed.enrolment(enroll, embedded.columns)
        voice, recording = embedded.labelled((listed.models, listed.recordings), labels["session"], strict)
        pairs = [*zip(voice.values.tolist(), recording.values.tolist(), strict=True)]
    vectors = vectors_of(embedded, {recording for _, recording in pairs})
    absent = {recording for _, recording in pairs} - {*vectors}
    if absent:
        embedded.missing("recordings of voices have no embedding", sorted(absent), listed)
    by_voice: dict[str, list[str]] = {}
    for name, recording in dict.fromkeys(pairs):
        if recording in vectors:
            by_voice.setdefault(name, []).append(recording)
    if not by_voice:
        raise MissingIds(f"{embedded.path}: it has no recording of a voice")

    def told(what: str) -> dict[str, Any] | None:
        known = labels[what]
        if known is None:
            return None
        return {name: [known.get(i) for i in recordings] for name, recordings in by_voice.items()}

    X = {name: np.stack([vectors[i] for i in recordings]) for name, recordings in by_voice.items()}
    return X, told("session"), told("channel")


def vectors_of(embedded: files.EmbeddedIds, wanted: set[str] | None = None) -> dict[str, NDArray[Any]]:
    """The embeddings that are wanted, in memory, by id."""
    out: dict[str, NDArray[Any]] = {}
    for ids, X in read_embeddings(embedded.path, embedded.ids, columns=embedded.columns):
        names = ids.tolist()
        out.update((name, x.copy()) for name, x in zip(names, X, strict=True) if wanted is None or name in wanted)
    return out
