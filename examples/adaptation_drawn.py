"""What adaptation is worth where the truth is known: drawn data, thirteen shifts of the domain, few and many speakers.

    python examples/adaptation_drawn.py [--shift "U rotated" ...] [--speakers 3 20 ...] [--known labels ...]
                                        [--seeds 10] [--first-seed 0] [--jobs 1] [--table FILE] [--from FILE ...]

Each seed draws a model of 20 dimensions, a training set of 200 speakers, and directions in which the domain changes.
A PLDA is trained once for each seed, and adapted to 3 to 100 speakers of the other domain whose speakers are known
("labels"), whose sessions alone are known ("sessions"), or of which nothing is known ("nothing"). Speakers of a target
have 2 to 6 sessions of 1 to 4 recordings. All models are tested on the same 100 fresh speakers of the other domain:
single recordings of two sessions, all pairs.

Printed are tables in Markdown: the mean Cllr over seeds of no adaptation, of each adaptation, and of the model that
drew the target. A cell is marked
- `!` where an adaptation is worse than none by more than 1 % and by more than .003;
- `~` where at least 20 labelled speakers leave more than half of what no adaptation loses to the true model (on a log
  scale of that loss, an adaptation that halves it has gone one step of two).
`--table` writes what was measured, and `--from` prints such files together. The last line tells the processor time:
the whole table takes half an hour of it, so two to four minutes with `--jobs 16` on 16 cores.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from duoplda import PLDA
from duoplda.datasets import Dataset, make_recordings
from duoplda.metrics import cllr
from duoplda.model.parameters import Model

D = 20
TRAINING_SPEAKERS = 200
TEST_SPEAKERS = 100
SIZES = (3, 5, 10, 20, 50, 100)
KNOWN = ("labels", "sessions", "nothing")
# What becomes of the mean (in standard deviations of a recording), of the variances of the three levels, and which
# levels have their directions rotated.
SHIFTS: dict[str, dict] = {
    "none": {},
    "mean .5": {"mean": 0.5},
    "mean 2": {"mean": 2.0},
    "noise x3": {"W": 3.0},
    "noise x.3": {"W": 0.3},
    "sessions x3": {"U": 3.0},
    "speakers x.5": {"V": 0.5},
    "speakers x2": {"V": 2.0},
    "U rotated": {"rotated": "U"},
    "V rotated": {"rotated": "V"},
    "W rotated": {"rotated": "W"},
    "all rotated": {"rotated": "UVW"},
    "mean, noise, sessions": {"mean": 0.5, "W": 3.0, "U": 3.0},
}


class Case(NamedTuple):
    """One cell of the table, in one draw."""

    shift: str
    speakers: int
    seed: int


class Outcome(NamedTuple):
    """Cllr of a case, by what is known; "none" is without adaptation, "true" that of the model that drew the target."""

    case: Case
    bits: dict[str, float]
    seconds: float = 0.0  # of processor time


def shifted(model: Model, seed: int, mean: float = 0.0, rotated: str = "", **factors: float) -> Model:
    """The model of the other domain."""
    rng = np.random.default_rng((seed, 7))
    direction = rng.standard_normal(D)
    rotations = {name: np.linalg.qr(rng.standard_normal((D, D)))[0] for name in "UVW"}
    for name in rotated:
        Q = rotations[name]
        turned = Q @ getattr(model, name)
        model = replace(model, **{name: turned @ Q.T if name == "W" else turned})
    deviation = np.sqrt(np.trace(model.V @ model.V.T + model.U @ model.U.T + np.linalg.inv(model.W[0])) / D)
    loadings = {name: getattr(model, name) * factors.get(name, 1.0) ** 0.5 for name in "VU"}
    step = mean * deviation * direction / np.sqrt(np.mean(direction**2))
    return replace(model, mu=model.mu + step, W=model.W / factors.get("W", 1.0), **loadings)


@lru_cache(maxsize=1)
def source(seed: int) -> tuple[Model, PLDA]:
    """The model of the training data, and a PLDA that was trained on them."""
    data = make_recordings(TRAINING_SPEAKERS, (2, 6), (1, 4), n_dimensions=D, seed=seed)
    return data.model, PLDA().fit(data.X, data.speaker, session=data.session)


def tested(plda: PLDA, data: Dataset) -> float:
    """Cllr of the first recording of each speaker against those of three further sessions, of all speakers."""
    enrolled = np.char.endswith(data.session, "-0")
    sides = plda.enroll(data.X[enrolled], data.speaker[enrolled])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the domain is another one is the point
        ratios = plda.llr(sides, plda.enroll(data.X[~enrolled], np.arange((~enrolled).sum())))
    return float(cllr(ratios.ravel(), (sides.ids[:, None] == data.speaker[~enrolled]).ravel()))


def measured(case: Case, known: Iterable[str] = KNOWN) -> Outcome:
    """Draw a target, adapt to it, and test."""
    start = time.process_time()
    model, plda = source(case.seed)
    target = shifted(model, case.seed, **SHIFTS[case.shift])
    data = make_recordings(case.speakers, (2, 6), (1, 4), model=target, seed=1000 + case.seed)
    fresh = make_recordings(TEST_SPEAKERS, 4, 1, model=target, seed=2000 + case.seed)
    truth = PLDA.from_parameters(target.mu[0], target.V, target.U, target.W[0])
    labels = {
        "labels": {"speaker": data.speaker, "session": data.session},
        "sessions": {"session": data.session},
        "nothing": {},
    }
    bits = {"none": tested(plda, fresh), "true": tested(truth, fresh)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bits |= {name: tested(plda.adapt(data.X, **labels[name]), fresh) for name in known}
    return Outcome(case, bits, time.process_time() - start)


def mark(bits: dict[str, float], name: str, speakers: int) -> str:
    """What a cell fails in."""
    worse = bits[name] - bits["none"]
    if worse > max(0.003, 0.01 * bits["none"]):
        return " !"
    few = name != "labels" or speakers < 20
    return "" if few or bits[name] - bits["true"] <= (bits["none"] - bits["true"]) / 2 else " ~"


def table(outcomes: Iterable[Outcome]) -> str:
    """The means over seeds, in Markdown."""
    cells = defaultdict(list)
    for outcome in outcomes:
        cells[outcome.case.shift, outcome.case.speakers].append(outcome.bits)
    names = [name for name in KNOWN if all(name in bits for draws in cells.values() for bits in draws)]
    head = ["shift", "speakers", "none", *names, "true model"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    marks = defaultdict(int)
    for shift, size in sorted(cells, key=lambda cell: (list(SHIFTS).index(cell[0]), cell[1])):
        draws = cells[shift, size]
        mean = {name: float(np.mean([bits[name] for bits in draws])) for name in ("none", *names, "true")}
        texts = []
        for name in names:
            sign = mark(mean, name, size)
            marks[sign.strip()] += 1
            texts.append(f"{mean[name]:.3f}{sign}")
        row = [shift, str(size), f"{mean['none']:.3f}", *texts, f"{mean['true']:.3f}"]
        lines.append(f"| {' | '.join(row)} |")
    lines.append(
        f"\n{sum(marks.values())} cells: {marks['!']} worse than none (`!`), {marks['~']} less than half (`~`)"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shift", choices=tuple(SHIFTS), nargs="+", default=list(SHIFTS))
    parser.add_argument("--speakers", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--known", choices=KNOWN, nargs="+", default=list(KNOWN))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--table", type=Path, help="write what was measured to this file")
    parser.add_argument("--from", dest="files", type=Path, nargs="+", help="measure nothing, print these files")
    options = parser.parse_args()
    if options.files:
        lines = [line for file in options.files for line in file.read_text().splitlines()]
        report([Outcome(Case(*case), *measured) for case, *measured in map(json.loads, lines)])
        return
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    # One after the other, cases of a seed share its model.
    cases = [Case(shift, size, seed) for seed in seeds for shift in options.shift for size in options.speakers]
    known = [tuple(options.known)] * len(cases)
    outcomes = []
    # Each process has one thread: as many processes as cores keep these busy, and what is printed is the same for any.
    with ProcessPoolExecutor(options.jobs, initializer=threadpool_limits, initargs=(1,)) as pool:
        for outcome in pool.map(measured, cases, known):
            outcomes.append(outcome)
            if options.table:  # as it comes: what was measured is not lost when the program is ended
                options.table.write_text("".join(json.dumps(done) + "\n" for done in outcomes))
    report(outcomes)


def report(outcomes: list[Outcome]) -> None:
    """The table, and what it has cost."""
    print(table(outcomes))
    seconds = defaultdict(float)
    for outcome in outcomes:
        seconds[outcome.case.speakers] += outcome.seconds
    by_size = ", ".join(f"{size} speakers {total:.0f}" for size, total in sorted(seconds.items()))
    print(f"seconds of processor time: {sum(seconds.values()):.0f} ({by_size})")


if __name__ == "__main__":
    main()
