"""Does the session level help? Data drawn from the model; sets of 1, 5 and 10 recordings of one session on each side.

Three systems are trained on the same recordings:

    duoplda    two-source PLDA that knows which recordings are of one session
    by the book   simplified PLDA that takes every recording for a session of its own, in training and in trials
    averaged   the same training, but the recordings of a side are averaged before scoring

    python examples/copies_are_not_sessions.py [--speakers 400] [--seed 0]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from duoplda import PLDA
from duoplda.datasets import make_recordings
from duoplda.metrics import cllr, eer

SYSTEMS = ("duoplda", "by the book", "averaged")
SIZES = (1, 5, 10)


class Trials(NamedTuple):
    """All pairs of an enrolled and a tested set, by the speakers of the two sides; scores by system."""

    enrolled: np.ndarray  # (a,)
    tested: np.ndarray  # (b,)
    scores: dict[str, np.ndarray]  # (a, b) each


def trials(
    sizes: Iterable[tuple[int, int]], n_speakers: int = 400, n_test_speakers: int = 100, seed: int = 0
) -> Iterator[Trials]:
    """Trials between so many recordings of one session and so many of another, for each pair of sizes up to 10."""
    train = make_recordings(n_speakers, (2, 8), (1, 6), n_session_factors=32, session_variance=1.0, seed=seed)
    test = make_recordings(n_test_speakers, 4, 10, model=train.model, seed=seed + 1)
    two = PLDA().fit(train.X, train.speaker, session=train.session)
    plain = PLDA().fit(train.X, train.speaker)

    # Sessions 0 and 1 of a speaker enrol (one model each), 2 and 3 test; each recording's place in its session: 0 .. 9.
    number = np.array([int(s.rpartition("-")[2]) for s in test.session])
    place = np.arange(len(test.X)) % 10
    for n, m in sizes:
        a, b = (number < 2) & (place < n), (number >= 2) & (place < m)
        who = [np.array([s.rpartition("-")[0] for s in np.unique(test.session[side])]) for side in (a, b)]
        scores = {
            "duoplda": two.llr(*(two.enroll(test.X[s], test.session[s], test.session[s]) for s in (a, b))),
            "by the book": plain.llr(*(plain.enroll(test.X[s], test.session[s]) for s in (a, b))),
            "averaged": plain.llr(*(plain.enroll(*_averaged(test.X[s], test.session[s])) for s in (a, b))),
        }
        yield Trials(*who, scores)


def experiment(n_speakers: int = 400, n_test_speakers: int = 100, seed: int = 0) -> dict[tuple[int, int, str], tuple]:
    """{(enrolment recordings, test recordings, system): (EER in %, Cllr in bits)}"""
    sizes = list(product(SIZES, SIZES))
    table = {}
    for (n, m), (enrolled, tested, scores) in zip(sizes, trials(sizes, n_speakers, n_test_speakers, seed), strict=True):
        target = enrolled[:, None] == tested[None, :]
        for name, llr in scores.items():
            table[n, m, name] = (100 * eer(llr.ravel(), target.ravel()), cllr(llr.ravel(), target.ravel()))
    return table


def _averaged(X: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    names, index = np.unique(ids, return_inverse=True)
    return np.stack([X[index == i].mean(axis=0) for i in range(len(names))]), names


def show(table: dict[tuple[int, int, str], tuple]) -> str:
    lines = ["recordings of one session" + "".join(f"{s:>20}" for s in SYSTEMS)]
    lines.append("  enrolled x tested      " + "      EER %    Cllr  " * len(SYSTEMS))
    for n in SIZES:
        for m in SIZES:
            cells = "".join("{:11.2f}{:8.3f} ".format(*table[n, m, s]) for s in SYSTEMS)
            lines.append(f"{n:10} x {m:<12}" + cells)
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speakers", type=int, default=400, help="training speakers")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(show(experiment(arguments.speakers, seed=arguments.seed)))
