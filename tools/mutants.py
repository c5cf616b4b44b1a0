"""Break the code on purpose, one line at a time, and see whether the tests notice.

    make mutants                                   all of them
    python tools/mutants.py NAME ...               those whose names contain one of the words
    python tools/mutants.py --list                 their names

Each mutant replaces a piece of text, which must occur exactly once in its file, in a copy of the package, and runs the
tests that should notice. A mutant that survives is a hole in the tests. `tests/test_mutants.py` checks that every piece
of text is still there, so that the list stays current; it does not run them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "duoplda"


class Mutant(NamedTuple):
    """One change for the worse."""

    name: str
    file: str  # in the package
    before: str
    after: str
    tests: str  # arguments of pytest, separated by spaces


MUTANTS: list[Mutant] = [
    Mutant(
        "adaptation: a target with more noise is still like the source",
        "selection/adaptation.py",
        "LIKE_SOURCE = 0.25",
        "LIKE_SOURCE = 0.35",
        "tests/test_adapt_backend.py -k like_the_source",
    ),
    Mutant(
        "adaptation: partitions that leave most sessions alone compete",
        "selection/adaptation.py",
        "covered >= 0.75 * most",
        "covered >= 0 * most",
        "tests/test_adapt_backend.py -k lowest_cost_wins",
    ),
    Mutant(
        "adaptation: what is above the noise moves as far as the noise",
        "selection/adaptation.py",
        "SessionShares(share, share / 2)",
        "SessionShares(share, share * 1)",
        "tests/test_adapt_backend.py -k half_as_far",
    ),
]


def mutated(mutant: Mutant) -> str:
    """The text of the mutant's file, with the change."""
    text = (PACKAGE / mutant.file).read_text(encoding="utf-8")
    if text.count(mutant.before) != 1:
        raise ValueError(f"{mutant.name}: {mutant.before!r} occurs {text.count(mutant.before)} times in {mutant.file}")
    return text.replace(mutant.before, mutant.after)


def is_noticed(mutant: Mutant) -> bool:
    """Run the mutant's tests on a copy of the package with the change."""
    text = mutated(mutant)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "duoplda"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / mutant.file).write_text(text, encoding="utf-8")
        # The copy comes before the installed package, in the tests and in the commands that they start.
        environment = os.environ | {"PYTHONPATH": folder, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests.split()]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):  # 1: tests failed, as they should; others: pytest could not run them
        said = done.stdout[-2000:] + done.stderr[-2000:]
        raise RuntimeError(f"{mutant.name}: pytest exits with {done.returncode}\n{said}")
    return done.returncode == 1


def main(words: list[str]) -> int:
    """Run the mutants whose names contain one of the words; the exit status is 1 if one survives."""
    if words == ["--list"]:
        print(*(mutant.name for mutant in MUTANTS), sep="\n")
        return 0
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    survivors = []
    for mutant in chosen:
        noticed = is_noticed(mutant)
        print(f"{'noticed ' if noticed else 'SURVIVES'}  {mutant.name}", flush=True)
        if not noticed:
            survivors.append(mutant.name)
    print(f"{len(chosen)} mutants, {len(survivors)} survive")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
