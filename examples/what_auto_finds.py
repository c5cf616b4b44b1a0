"""What model="auto" and n_channels="auto" find in drawn data whose truth is known.

    python examples/what_auto_finds.py [--part model kinds] [--draws 10] [--speakers 40 200]

- model: data of 60 speakers and 16 dimensions without sessions, with them, and with kinds of channels that differ in
  noise; the model that is chosen in each draw, and the one whose held-out trials cost least.
- kinds: data with one, two or three kinds of channels that nobody labelled, of 40 speakers and 6 dimensions, and
  of 200 and 12. Printed for each truth: in how many draws each number of kinds was found, the cost of trials of 150
  other speakers with the number that is found, with one kind, and with the true number; and the mean of found less one
  with its standard error over draws, and the largest. Kinds are labelled neither in training nor in these trials.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from typing import NamedTuple

import numpy as np

from duoplda import PLDA
from duoplda.datasets import Dataset, make_recordings
from duoplda.selection.cost import cost

DIMENSIONS = {40: 6, 200: 12}  # by the number of speakers


class Truth(NamedTuple):
    """How kinds of channels differ."""

    n_kinds: int
    noise: float = 0.0  # standard deviation that the second kind has more than the first, and the third twice as much
    mean: float = 0.0  # standard deviation of the means of kinds in each dimension


TRUTHS = {
    "one kind": Truth(1),
    "two, a small difference of noise": Truth(2, noise=1.0),
    "two, noise": Truth(2, noise=2.0),
    "two, means": Truth(2, mean=1.0),
    "two, means far apart": Truth(2, mean=2.0),
    "two, noise and means": Truth(2, noise=1.0, mean=1.0),
    "three, noise": Truth(3, noise=2.0),
    "three, means far apart": Truth(3, mean=2.0),
    "three, noise and means": Truth(3, noise=1.0, mean=1.0),
}


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


def kinds(draws: int, speakers: list[int]) -> None:
    print("speakers dimensions truth                            found          found    one     true  found less one")
    for n, (name, truth) in itertools.product(speakers, TRUTHS.items()):
        found, costs = zip(*(counted(truth, n, DIMENSIONS[n], seed) for seed in range(draws)), strict=True)
        counts = ", ".join(f"{K}: {found.count(K)}" for K in sorted(set(found)))
        less = np.array([row[0] - row[1] for row in costs])
        error = less.std() / max(len(less) - 1, 1) ** 0.5
        means = " ".join(f"{value:7.4f}" for value in np.mean(costs, axis=0))
        gain = f"{less.mean():+.4f} +- {error:.4f}, at most {less.max():+.4f}"
        print(f"{n:8} {DIMENSIONS[n]:10} {name:32} {counts:12} {means}  {gain}", flush=True)


def counted(truth: Truth, n_speakers: int, n_dimensions: int, seed: int) -> tuple[int, tuple[float, float, float]]:
    """The number of kinds that is found, and costs of trials of others with it, with one kind, with the true number."""
    rng = np.random.default_rng([seed, n_speakers, truth.n_kinds])
    means = truth.mean * rng.normal(size=(truth.n_kinds, n_dimensions))
    sizes = {"n_dimensions": n_dimensions, "n_speaker_factors": n_dimensions // 2}
    data = make_recordings(n_speakers, (2, 4), (3, 5), **sizes, n_session_factors=n_dimensions // 2, seed=seed)
    others = make_recordings(150, (2, 4), (3, 5), seed=1000 + seed, model=data.model)
    data = through_channels(rng, data, truth, means)
    others = through_channels(rng, others, truth, means)
    options = {"shrinkage": "auto", "random_state": 0}
    found = PLDA(n_channels="auto", **options).fit(data.X, data.speaker, session=data.session)
    n_found = len(found.channels_)
    cost_with = {n_found: cost_of_trials(found, others)}
    for K in {1, truth.n_kinds} - {n_found}:
        plda = PLDA(n_channels=K, **options).fit(data.X, data.speaker, session=data.session)
        cost_with[K] = cost_of_trials(plda, others)
    return n_found, (cost_with[n_found], cost_with[1], cost_with[truth.n_kinds])


def through_channels(rng: np.random.Generator, data: Dataset, truth: Truth, means: np.ndarray) -> Dataset:
    """The recordings through channels of these kinds."""
    kind = rng.integers(0, truth.n_kinds, len(data.X))
    noise = truth.noise * kind[:, None] * rng.normal(size=data.X.shape)
    return data._replace(X=data.X + means[kind] + noise)


def cost_of_trials(plda: PLDA, data: Dataset) -> float:
    """The mean cost of enrolments of a whole session, and of single recordings of it, against single recordings."""
    rng = np.random.default_rng(0)
    first = np.char.endswith(data.session, "-0")
    rows = np.flatnonzero(first)
    tests = np.sort(rng.permutation(np.flatnonzero(~first))[:1500])
    tested = plda.enroll(data.X[tests], tests)
    values = []
    for name in (data.speaker[rows], rows):  # a session each, a recording each
        llr = plda.llr(plda.enroll(data.X[rows], name, data.session[rows]), tested)
        speaker = data.speaker[rows][np.unique(name, return_index=True)[1]]
        same = speaker[:, None] == data.speaker[tests]
        values.append(cost(llr[same], llr[~same], 1.0, 0.0))
    return float(np.mean(values))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", default=["model", "kinds"])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--speakers", type=int, nargs="+", default=list(DIMENSIONS), choices=DIMENSIONS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if "model" in given.part:
        model(given.draws)
    if "kinds" in given.part:
        kinds(given.draws, given.speakers)
