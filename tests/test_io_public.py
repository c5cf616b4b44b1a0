"""The room's public names, and the examples in its docstrings."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys

import pytest

import duoplda.io

MODULES = ["_atomic", "embeddings", "ids", "labels", "recordings", "scores", "trials"]


def test_public_names() -> None:
    assert duoplda.io.__all__ == sorted(duoplda.io.__all__)
    for name in duoplda.io.__all__:
        assert getattr(duoplda.io, name).__doc__
    assert {"read_embeddings", "write_embeddings", "read_labels", "read_trials", "read_scores"} <= set(
        duoplda.io.__all__
    )


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    module = importlib.import_module(f"duoplda.io.{name}")
    assert doctest.testmod(module).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = [importlib.import_module(f"duoplda.io.{name}") for name in MODULES]
    tried = {t.name.rpartition(".")[2] for m in modules for t in finder.find(m) if t.examples}
    assert {"read_embeddings", "read_labels", "read_trials", "read_enrollment", "read_scores", "atomic_path"} <= tried
    assert "embedding_shards" in tried


def test_importing_the_room_imports_no_optional_library() -> None:
    code = (
        "import sys, duoplda; before = set(sys.modules)\n"
        "import duoplda.io; print(sorted({'h5py', 'pyarrow', 'kaldiio', 'pandas'} & (set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
