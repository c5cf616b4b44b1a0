"""What the tests of cases share: a folder with a small case on drawn data, whose case file tests change."""

from pathlib import Path

import numpy as np

from duoplda import PLDA, Backend
from duoplda.datasets import make_recordings
from duoplda.io import write_embeddings

TEMPLATE = """version = 1
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


def listed(ids, sessions) -> str:
    """Lines of a list of recordings."""
    return "".join(f'  {{ id = "{i}", session = "{s}" }},\n' for i, s in zip(ids, sessions, strict=True))


def make_case(at: Path) -> Path:
    """Write a case of one speaker, two known sessions against one, into a folder, and return the path of its file."""
    X, speaker, session, _ = make_recordings(70, 3, 2, n_dimensions=8, n_speaker_factors=3, n_session_factors=3, seed=2)
    X = X.astype(np.float32)
    number = np.unique(speaker, return_inverse=True)[1]
    ids = np.array([f"r{i:03}" for i in range(len(X))], dtype=object)
    session = session.astype(object)
    train, case, rest = number < 34, number == 34, number > 34
    ids[case] = ["k1", "k2", "k3", "k4", "q1", "q2"]
    session[case] = ["talk-1", "talk-1", "talk-2", "talk-2", "call", "call"]
    plda = PLDA(3, 3, shrinkage=None, max_iter=20)
    Backend(plda=plda).fit(X[train], speaker[train], session[train]).save(at / "model.safetensors")
    write_embeddings(at / "case.npz", ids[case].astype(str), X[case])
    write_embeddings(at / "population.npz", ids[rest].astype(str), X[rest])
    lines = [f"{i},{s},{t}\n" for i, s, t in zip(ids[rest], speaker[rest], session[rest], strict=True)]
    (at / "labels.csv").write_text("id,speaker,session\n" + "".join(lines))
    sides = {"known": slice(4), "questioned": slice(4, 6)}
    texts = {name: listed(ids[case][rows], session[case][rows]) for name, rows in sides.items()}
    path = at / "case.toml"
    path.write_text(TEMPLATE.format(**texts))
    return path


def changed(path: Path, *changes: tuple[str, str], name: str = "changed.toml") -> Path:
    """Write a case file beside another with texts of it replaced, each of which must be there."""
    text = path.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    other = path.with_name(name)
    other.write_text(text)
    return other
