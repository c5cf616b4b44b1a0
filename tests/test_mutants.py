"""The list of mutants is current: each changes one piece of text that is still there. `make mutants` runs them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parent.parent / "tools" / "mutants.py"
spec = importlib.util.spec_from_file_location("mutants", TOOL)
mutants = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutants)


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_still_applies(mutant):
    compile(mutants.mutated(mutant), mutant.file, "exec")
    files = [word for word in mutant.tests.split() if word.startswith("tests/")]
    assert files
    assert all((TOOL.parent.parent / name.split("::")[0]).exists() for name in files)


def test_there_are_enough_and_each_has_a_name_of_its_own():
    names = [mutant.name for mutant in mutants.MUTANTS]
    assert len(names) >= 20
    assert len(set(names)) == len(names)
