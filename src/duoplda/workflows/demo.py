"""The data of the demonstration: labelled recordings to train on, and trials of other speakers."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from duoplda.datasets import make_recordings
from duoplda.errors import DuopldaError
from duoplda.io import Coded, Trials, write_embeddings, write_map, write_trials
from duoplda.workflows import option
from duoplda.workflows.option import refuse


def demo(
    out: option.DemoOut = "demo",
    *,
    audio: option.DemoAudio = None,
    extractor: option.DemoExtractor = None,
    speakers: option.DemoSpeakers = None,
    force: option.Force = False,
) -> str:
    """Write embeddings (ark and scp), labels, an enrolment and trials into a folder, and return a line on its files.

    With `audio`, the folder stays empty: the commands of the demonstration fill it.
    """
    cause = "`audio` and `extractor` go together: recordings, and the network that embeds them"
    refuse((audio is None) != (extractor is None), cause)
    refuse(speakers is not None and audio is None, "`speakers` is for `audio`")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise DuopldaError(f"{folder}: exists and is not a folder; give another name")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise DuopldaError(f"{folder}: exists already; give another name, or allow writing into it with `force`")
    folder.mkdir(parents=True, exist_ok=True)
    if audio is not None:
        return f"audio: {audio}\n"
    sizes: dict[str, Any] = {"n_dimensions": 40, "n_speaker_factors": 20, "n_session_factors": 40}
    sizes |= {"speaker_variance": 1.0, "session_variance": 1.2, "channel_variance": 1.0}
    train = make_recordings(300, sessions=(2, 8), recordings=(1, 6), seed=20, **sizes)
    test = make_recordings(50, sessions=7, recordings=5, seed=21, model=train.model)
    sessions: list[tuple[str, str]] = []
    for part, data, labels in (("train", train, "utt2spk"), ("eval", test, "utt2spk_eval")):
        speaker, session = ([f"{part}-{name}" for name in column] for column in (data.speaker, data.session))
        # Recordings of a session are next to each other, so that `groupby` finds each session once.
        names = [f"{s}-{k}" for s, group in groupby(session) for k, _ in enumerate(group)]
        write_embeddings(folder / f"{part}.scp", names, data.X.astype(np.float32), force=True)
        write_map(folder / labels, names, speaker, force=True)
        sessions += zip(names, session, strict=True)
    write_map(folder / "utt2sess", *zip(*sessions, strict=True), force=True)
    _write_trials(folder, np.array(names).reshape(50, 7, 5))
    return f"data: {folder}/train.scp, eval.scp (Kaldi), utt2spk, utt2sess, enroll, trials.tsv\n"


def _write_trials(folder: Path, ids: np.ndarray) -> None:
    """Write models of three sizes of every speaker, and trials against one recording of each other session.

    `ids` are those of the test recordings: (speaker, session, recording).
    """
    conditions = {"1 session x 1": (1, 1), "1 session x 5": (1, 5), "3 sessions x 5": (3, 5)}  # sessions, recordings
    models = [
        (f"model{who}-{number}", who, name, ids[who, :n_sessions, :n_recordings].ravel().tolist())
        for number, (name, (n_sessions, n_recordings)) in enumerate(conditions.items())
        for who in range(len(ids))
    ]
    members = [(model, recording) for model, _, _, recordings in models for recording in recordings]
    write_map(folder / "enroll", *zip(*members, strict=True), force=True)
    tests = [(other, str(t)) for other in range(len(ids)) for t in ids[other, 3:, 0]]
    rows = [(model, t, who == other, name) for model, who, name, _ in models for other, t in tests]
    left, right, target, condition = zip(*rows, strict=True)
    trials = Trials(Coded.of(left), Coded.of(right), np.array(target), {"enrolment": Coded.of(condition)})
    write_trials(folder / "trials.tsv", trials, force=True)
