"""The number of speakers behind some sides, from how far the sides scatter, without telling the speakers apart.

Side a, with the share w_a of all recordings, estimates its speaker's factor in each direction by
y_a = gamma_a / lambda_a, with a variance of 1 / lambda_a (see
`duoplda.trials.evidence`). If n speakers are equally frequent,

    E sum_a w_a (y_a - y)^2 = v (1 - 1/n) + s sum_a w_a (1 - w_a) / lambda_a,    y = sum_a w_a y_a

v is the variance of speakers, 1 under the model. s says how much more recordings scatter than those that the model was
trained on. It is unknown, but the same in all directions, whereas many speakers scatter most in the directions in which
speakers differ most. The sums are approximately gamma distributed, and do not depend on where the mean y is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import softmax
from scipy.stats import gamma

from duoplda.arrays import to_numpy
from duoplda.trials.evidence import DiagonalEvidence, Floats
from duoplda.trials.sides import Sides

MOST_SIDES = 1000  # that are used: with more, the scatter hardly changes
# Values of s: recordings of one channel of so762 scatter half to twice as much as those of all five.
NOISE = np.exp(np.linspace(-0.7, 0.7, 15))
STEP = 1.25  # from one number of speakers to the next


class NumberOfSpeakers(NamedTuple):
    """Numbers of speakers, as if all occurred equally often, and the probability of each."""

    n: Floats
    probability: Floats


def number_by_scatter(sides: Sequence[Sides], variance: float = 1.0) -> NumberOfSpeakers:
    """The probabilities of numbers of speakers behind sides, each of which is of one speaker.

    The numbers grow by a quarter from one to the next, and all are equally probable beforehand, so that small numbers
    are preferred. `variance` is v, that of speakers relative to the model.

    >>> from duoplda import PLDA
    >>> plda = PLDA.from_parameters([0.0], [[10.0]], None, [[1.0]])
    >>> guess = number_by_scatter([plda.enroll([[9.0], [9.1], [8.9]], range(3))])
    >>> guess.n.tolist(), guess.probability.round(2).tolist()
    ([1.0, 2.0, 3.0], [0.98, 0.02, 0.01])
    """
    evidence = DiagonalEvidence.of(*sides)
    counts = np.concatenate([evidence.counts(side) for side in sides])
    vectors = np.concatenate([to_numpy(side.gamma) for side in sides]) @ evidence.basis
    full = np.flatnonzero(counts.any(axis=1))
    chosen = full[np.random.default_rng(0).permutation(len(full))[:MOST_SIDES]]
    n_sides = len(chosen)
    if n_sides < 2:
        return NumberOfSpeakers(np.ones(1), np.ones(1))
    lam = counts[chosen] @ evidence.diagonals
    informative = lam.min(axis=0, initial=np.inf) > 1e-3
    lam = lam[:, informative]
    y = vectors[chosen][:, informative] / lam
    recordings = counts[chosen] @ evidence.types.sum(axis=1)
    w = recordings / recordings.sum()
    scatter = w @ (y - w @ y) ** 2
    noise_of_mean = w**2 @ (1 / lam)
    noise = w @ (1 / lam) - noise_of_mean
    noise_squared = 2 * (w**2 @ (1 / lam**2))

    steps = int(np.ceil(np.log(n_sides) / np.log(STEP)))
    numbers = np.unique(np.round(np.geomspace(1, n_sides, steps + 1)))
    n = numbers[:, None, None]
    s = NOISE[:, None]
    mean = variance * (1 - 1 / n) + s * noise  # (numbers, noises, directions)
    of_speakers = 2 * (n - 1) / n**2 * (variance + n * s * noise_of_mean) ** 2
    spread = of_speakers + s**2 * noise_squared * (1 - n / n_sides)
    # The density of a few speakers grows without a limit near 0, where copies of one recording lie.
    likelihood = gamma.logpdf(np.maximum(scatter, 0.1 * mean), mean**2 / spread, scale=spread / mean).sum(axis=2)
    return NumberOfSpeakers(numbers, softmax(likelihood).sum(axis=1))
