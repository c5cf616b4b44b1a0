"""How many speakers does maximum likelihood need? Drawn data: ML, the two criteria of shrinkage="auto", and the truth.

    python examples/few_speakers.py [--speakers 30 100 1000 10000] [--dimensions 48] [--seeds 5] [--first-seed 0]

Each seed draws a model, training speakers and 500 test speakers. The first table has a line for each number of training
speakers: Cllr (bits, mean over seeds) of "three", three recordings of a session against three of another, and of "one",
single recordings of two sessions, for
- ML: maximum likelihood,
- likelihood, decision: `PLDA(shrinkage="auto", criterion=...)`,
- truth: the parameters that drew the data;
and by how much decision exceeds likelihood, with the standard error of that mean: each seed draws everything anew.

The second table has what "decision" chose for each seed: shrinkages, scales of VV' and UU', and the calibration. With
enough speakers there is nothing to mend, and the scales should be 1; the last line says whether they are.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np

from duoplda import PLDA
from duoplda.datasets import make_recordings
from duoplda.metrics import cllr

SYSTEMS = ("ML", "likelihood", "decision", "truth")
TRIALS = ("three", "one")


class Outcome(NamedTuple):
    """What one draw of the data gave."""

    bits: dict[str, dict[str, float]]  # Cllr by system and kind of trials
    decision: PLDA


def experiment(n_speakers: int, d: int = 48, seed: int = 0, n_test: int = 500) -> Outcome:
    train = make_recordings(
        n_speakers, (2, 5), (1, 4), n_dimensions=d, n_speaker_factors=d // 2, n_session_factors=d, seed=seed
    )
    test = make_recordings(n_test, 2, 3, model=train.model, seed=seed + 1)
    m = train.model
    systems = {
        "ML": PLDA(),
        "likelihood": PLDA(shrinkage="auto", criterion="likelihood"),
        "decision": PLDA(shrinkage="auto", criterion="decision"),
    }
    for plda in systems.values():
        plda.fit(train.X, train.speaker, session=train.session)
    systems["truth"] = PLDA.from_parameters(m.mu[0], m.V, m.U, m.W[0])
    bits = {name: {kind: cllr(*trials(plda, test, kind)) for kind in TRIALS} for name, plda in systems.items()}
    return Outcome(bits, systems["decision"])


def trials(plda: PLDA, test, kind: str) -> tuple[np.ndarray, ...]:
    """Ratios of the first sessions of speakers against the second ones, and whether they are targets."""
    sides = []
    for session in ("-0", "-1"):
        rows = np.flatnonzero(np.char.endswith(test.session, session))
        if kind == "one":
            rows = rows[np.unique(test.session[rows], return_index=True)[1]]
        sides.append(plda.enroll(test.X[rows], test.speaker[rows], test.session[rows]))
    return plda.llr(*sides).ravel(), (sides[0].ids[:, None] == sides[1].ids).ravel()


def row(n_speakers: int, outcomes: list[Outcome]) -> str:
    cells = [f"{np.mean([o.bits[s][kind] for o in outcomes]):10.4f}" for kind in TRIALS for s in SYSTEMS]
    for kind in TRIALS:
        excess = np.array([o.bits["decision"][kind] - o.bits["likelihood"][kind] for o in outcomes])
        error = np.std(excess, ddof=1) / np.sqrt(len(excess)) if len(excess) > 1 else float("nan")
        cells.append(f"{excess.mean():+9.5f} +- {error:.5f}")
    return f"{n_speakers:8} " + " ".join(cells)


def choice(n_speakers: int, seed: int, plda: PLDA) -> str:
    amounts = "  ".join(f"{a:10.3f}" for a in (*plda.shrinkage_[:3], *plda.scales_))
    return f"{n_speakers:8} {seed:4}  {amounts}  {plda.calibration_.scale_:10.3f}  {plda.calibration_.offset_:+10.3f}"


def verdict(n_speakers: int, outcomes: list[Outcome]) -> str:
    scales = np.array([o.decision.scales_ for o in outcomes])
    answer = "yes" if np.abs(scales - 1).max() <= 0.05 else "no"
    ends = (f"{name} {own.min():.3f} to {own.max():.3f}" for name, own in zip(("VV'", "UU'"), scales.T, strict=True))
    return f"At {n_speakers} speakers, are both scales within 5 % of 1? {answer} ({', '.join(ends)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speakers", type=int, nargs="+", default=[30, 100, 1000, 10000])
    parser.add_argument("--dimensions", type=int, default=48)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    arguments = parser.parse_args()
    found: dict[int, list[Outcome]] = {}
    print(f"{'':8} " + " ".join(f"{'Cllr, ' + kind:43}" for kind in TRIALS) + " decision - likelihood")
    print(f"{'speakers':>8} " + " ".join(f"{s:>10}" for _ in TRIALS for s in SYSTEMS) + f" {'three':>20} {'one':>20}")
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    for n in arguments.speakers:
        found[n] = [experiment(n, arguments.dimensions, seed) for seed in seeds]
        print(row(n, found[n]), flush=True)
    names = ("speaker", "session", "noise", "scale VV'", "scale UU'", "calib. a", "calib. b")
    print(f"\n{'speakers':>8} {'seed':>4}  " + "  ".join(f"{name:>10}" for name in names))
    for n, outcomes in found.items():
        print(*(choice(n, seed, o.decision) for seed, o in zip(seeds, outcomes, strict=True)), sep="\n")
    largest = max(found)
    print("\n" + verdict(largest, found[largest]))


if __name__ == "__main__":
    main()
