"""How many speakers does maximum likelihood need? Drawn data: ML, shrinkage="auto", and the true parameters.

    python examples/few_speakers.py [--speakers 30 100 1000 10000] [--dimensions 48]

For each number of training speakers it prints the mean log-likelihood per recording (nats) and Cllr (bits) on 500 new
speakers: trials of three recordings of a session against three of another.
"""

from __future__ import annotations

import argparse

import numpy as np

from duoplda import PLDA
from duoplda.datasets import make_recordings
from duoplda.metrics import cllr


def experiment(n_speakers: int, d: int = 48, seed: int = 0, n_test: int = 500) -> dict[str, tuple[float, float, tuple]]:
    """{system: (log-likelihood per recording, Cllr, shrinkage)}"""
    train = make_recordings(
        n_speakers, (2, 5), (1, 4), n_dimensions=d, n_speaker_factors=d // 2, n_session_factors=d, seed=seed
    )
    test = make_recordings(n_test, 2, 3, model=train.model, seed=seed + 1)
    m = train.model
    systems = {
        "ML": PLDA().fit(train.X, train.speaker, session=train.session),
        "auto": PLDA(shrinkage="auto").fit(train.X, train.speaker, session=train.session),
        "truth": PLDA.from_parameters(m.mu[0], m.V, m.U, m.W[0]),
    }
    first = np.char.endswith(test.session, "-0")
    out = {}
    for name, plda in systems.items():
        a, b = (plda.enroll(test.X[of], test.speaker[of], test.session[of]) for of in (first, ~first))
        same = a.ids[:, None] == b.ids[None, :]
        bits = cllr(plda.llr(a, b).ravel(), same.ravel())
        amount = tuple(plda.shrinkage_)[:3] if name == "auto" else ()
        out[name] = (plda.score(test.X, test.speaker, test.session), bits, amount)
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speakers", type=int, nargs="*", default=[30, 100, 1000, 10000])
    parser.add_argument("--dimensions", type=int, default=48)
    arguments = parser.parse_args()
    print(f"{'speakers':>8}  " + "  ".join(f"{s:>18}" for s in ("ML", "auto", "truth")) + "  chosen shrinkage")
    for n in arguments.speakers:
        result = experiment(n, arguments.dimensions)
        cells = "  ".join(f"{ln:10.3f} / {c:.3f}" for ln, c, _ in result.values())
        print(f"{n:8}  {cells}  {result['auto'][2]}", flush=True)
