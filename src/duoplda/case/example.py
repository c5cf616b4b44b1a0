"""A case on drawn data, to try `duoplda case` before there are recordings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from duoplda.datasets import make_recordings
from duoplda.estimators.backend import Backend
from duoplda.estimators.plda import PLDA
from duoplda.io import write_embeddings
from duoplda.io.common import PathLike

CASE = """version = 1
title = "The call"
model = "model.safetensors"
seed = 3
resamples = 40

[propositions]
same = "The man in the call is Mr A."
different = "The man in the call is another man of his town."

[known]
speaker = "Mr A"
embeddings = "case.npz"
recordings = [
{known}]

[questioned]
embeddings = "case.npz"
recordings = [
{questioned}]

[population]
why = "They live in this town."
embeddings = "population.npz"
labels = "labels.csv"
"""


def write_example(folder: PathLike) -> Path:
    """Write a case on drawn data into a folder, and return the path of its case file.

    Beside `case.toml` there are a model, the embeddings of the case (two known sessions against one, with two
    recordings of each), and those of a population of 35 speakers with their labels. It replaces no file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = write_example(folder)
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['case.npz', 'case.toml', 'labels.csv', 'model.safetensors', 'population.npz']
    """
    folder = Path(folder)
    X, speaker, session, _ = make_recordings(70, 3, 2, n_dimensions=8, n_speaker_factors=3, n_session_factors=3, seed=2)
    X = X.astype(np.float32)
    number = np.unique(speaker, return_inverse=True)[1]
    ids = np.array([f"r{i:03}" for i in range(len(X))], dtype=object)
    session = session.astype(object)
    train, case, rest = number < 34, number == 34, number > 34
    ids[case] = ["k1", "k2", "k3", "k4", "q1", "q2"]
    session[case] = ["talk-1", "talk-1", "talk-2", "talk-2", "call", "call"]
    plda = PLDA(3, 3, shrinkage=None, max_iter=20)
    Backend(plda=plda).fit(X[train], speaker[train], session[train]).save(folder / "model.safetensors")
    write_embeddings(folder / "case.npz", ids[case].astype(str), X[case])
    write_embeddings(folder / "population.npz", ids[rest].astype(str), X[rest])
    lines = [f"{i},{s},{t}\n" for i, s, t in zip(ids[rest], speaker[rest], session[rest], strict=True)]
    (folder / "labels.csv").write_text("id,speaker,session\n" + "".join(lines), encoding="utf-8")
    sides = {"known": slice(4), "questioned": slice(4, 6)}
    texts = {name: _listed(ids[case][rows], session[case][rows]) for name, rows in sides.items()}
    path = folder / "case.toml"
    path.write_text(CASE.format(**texts), encoding="utf-8")
    return path


def _listed(ids: Iterable[str], sessions: Iterable[str]) -> str:
    """Lines of a list of recordings."""
    return "".join(f'  {{ id = "{i}", session = "{s}" }},\n' for i, s in zip(ids, sessions, strict=True))
