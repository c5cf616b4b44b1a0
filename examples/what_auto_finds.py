"""What model="auto" and n_channels="auto" find in drawn data whose truth is known.

    python examples/what_auto_finds.py [--part model kinds] [--draws 4]

- model: data of 60 speakers and 16 dimensions without sessions, with them, and with kinds of channels that differ in
  noise; the model that is chosen in each draw, and the one whose held-out trials cost least.
- kinds: data of 60 speakers and 12 dimensions with some kinds of channels that nobody labelled; how many are found in
  each draw, and the costs of each number that was tried in the first draw.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np

from duoplda import PLDA
from duoplda.datasets import make_recordings

KINDS = ((1, "", 0.0), (2, "noise", 1.0), (2, "noise", 2.0), (2, "mean", 1.0), (3, "noise", 2.0))


def model(draws: int) -> None:
    for truth in ("plain", "two-source", "kinds"):
        variance = 0.0 if truth == "plain" else 0.7
        chosen, cheapest = [], []
        for seed in range(draws):
            sizes = {"n_dimensions": 16, "n_speaker_factors": 8, "n_session_factors": 8}
            data = make_recordings(60, (2, 5), (1, 4), **sizes, session_variance=variance, seed=seed)
            noisy = np.random.default_rng(seed).random(len(data.X)) >= 0.5
            X = data.X.copy()
            if truth == "kinds":
                X[noisy] += np.random.default_rng(seed).normal(size=X[noisy].shape)
            plda = PLDA(model="auto", shrinkage="auto", random_state=0)
            plda.fit(X, data.speaker, session=data.session, channel=np.where(noisy, "b", "a"))
            chosen.append(next(iter(plda.model_costs_)))
            cheapest.append(min(plda.model_costs_, key=lambda name: plda.model_costs_[name]))
        right = [sum(name == truth for name in names) for names in (chosen, cheapest)]
        print(f"{truth:10} chosen {right[0]} of {draws}, cheapest {right[1]} of {draws}", flush=True)


def kinds(draws: int) -> None:
    for K, what, size in KINDS:
        found = []
        for seed in range(draws):
            sizes = {"n_dimensions": 12, "n_speaker_factors": 6, "n_session_factors": 6}
            data = make_recordings(60, (2, 4), (3, 5), **sizes, seed=seed)
            rng = np.random.default_rng(seed)
            kind = rng.integers(0, K, len(data.X))[:, None]
            X = data.X
            if what == "noise":
                X = X + rng.normal(size=X.shape) * size * kind
            if what == "mean":
                X = X + kind * size * rng.normal(size=12)
            plda = PLDA(n_channels="auto", shrinkage=(0.1, 0.1, 0.1), random_state=0)
            found.append(plda.fit(X, data.speaker, session=data.session))
        costs = ", ".join(f"{k}: {cost:.4f}" for k, cost in found[0].channel_costs_.items())
        print(f"{K} kinds {what:5} {size}: found {[len(p.channels_) for p in found]}, costs {costs}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", default=["model", "kinds"])
    parser.add_argument("--draws", type=int, default=4)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for part in given.part:
        {"model": model, "kinds": kinds}[part](given.draws)
