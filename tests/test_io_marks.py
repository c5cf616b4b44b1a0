"""A byte-order mark at the start of a text file belongs to no id."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from duoplda.io import (
    embedding_shards,
    read_embeddings,
    read_enrollment,
    read_labels,
    read_map,
    read_scores,
    read_trials,
    write_embeddings,
)
from io_cases import vectors

MARK = b"\xef\xbb\xbf"


def marked(path: Path) -> Path:
    path.write_bytes(MARK + path.read_bytes())
    return path


@pytest.mark.parametrize("name", ["x.scp", "x.npy"])
def test_lists_of_embeddings(tmp_path: Path, name: str) -> None:
    ids, X = vectors()
    write_embeddings(tmp_path / name, ids, X)
    marked(tmp_path / ("x.scp" if name == "x.scp" else "x.ids"))
    found = read_embeddings(tmp_path / name)
    assert found.ids().tolist() == ids.tolist()
    got_ids, got = found.load()
    assert got_ids.tolist() == ids.tolist()
    np.testing.assert_array_equal(got, X)
    shards = embedding_shards(tmp_path / name, bytes_each=8 * 7 * 10)
    assert len(shards) > 1
    assert [i for shard in shards for i in shard.ids().tolist()] == ids.tolist()
    np.testing.assert_array_equal(np.concatenate([shard.load()[1] for shard in shards]), X)


@pytest.mark.parametrize(
    ("name", "text", "first"),
    [
        ("utt2spk", "a s\nb t\n", lambda p: read_labels(p).ids[0]),
        ("spk2utt", "a s t\nb u\n", lambda p: read_labels(p).speaker[0]),
        ("auto", "a s t\nb u\n", lambda p: read_labels(p).speaker[0]),
        ("labels.csv", "a,speaker\n1,s\n", lambda p: read_labels(p, columns={"id": "a"}).ids[0].replace("1", "a")),
        ("map", "a s\nb t\n", lambda p: next(iter(read_map(p, "session")))),
        ("trials", "a s target\n", lambda p: read_trials(p).enroll.names[0]),
        ("voxceleb", "1 a s\n", lambda p: read_trials(p).enroll.names[0]),
        ("scores", "a s 1.5\n", lambda p: read_scores(p).enroll.names[0]),
        ("pairs", "a s\n", lambda p: read_enrollment(p).model.names[0]),
        ("enroll", "a s t\nb u\n", lambda p: read_enrollment(p).model.names[0]),
    ],
)
def test_lists(tmp_path: Path, name: str, text: str, first: Callable[[Path], str]) -> None:
    (tmp_path / name).write_text(text)
    assert str(first(marked(tmp_path / name))) == "a"
