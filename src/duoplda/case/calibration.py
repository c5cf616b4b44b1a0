"""Scale and offset in the structure of a case, with a prior that keeps few speakers near the model's own calibration.

With x the ratios by the model's own calibration, z = a x + b, and equal weight for each speaker (or pair of speakers),
the scale a and the offset b minimise

    Cllr(z) + lambda (ln^2 a + b^2 / 4),    lambda = PRIOR / M

for M speakers. Cllr is a mean, so that the prior counts for less the more speakers there are. Many such problems, which
differ in the weights of their trials because speakers are left out or resampled, are solved side by side.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from duoplda.data.labels import Ints

Floats = NDArray[np.float64]

# Chosen on speakers of the training data (`python examples/cases.py DATA_FOLDER --choose`): the strongest prior that
# costs about half a per cent on average. The stronger it is, the less can be lost where a structure has few speakers.
PRIOR = 1.0
# For the resamples that give the interval. The stronger prior above would hide how far the population alone is from the
# model's own calibration. The same program shows how often the intervals contain the truth.
RESAMPLED_PRIOR = 0.25
KNOTS = 1000  # points of the lattice on which resampled trials are summed up


class PopulationPairs(NamedTuple):
    """Pairs of sides of the population, with the ratios by the model's own calibration."""

    scores: Floats  # (n,)
    same: NDArray[np.bool_]
    a: Ints  # the speakers of the known and of the questioned side, 0 .. M - 1
    b: Ints
    M: int

    @property
    def weight(self) -> Floats:
        """(n,) weights by which each speaker counts as one, and each pair of speakers, whichever of them is known."""
        low = np.minimum(self.a, self.b)
        pair = low * self.M + np.maximum(self.a, self.b)
        return 1.0 / np.bincount(pair)[pair]

    def of(self, rows: NDArray[np.bool_]) -> PopulationPairs:
        """Return some of the trials; the speakers keep their numbers."""
        return PopulationPairs(self.scores[rows], self.same[rows], self.a[rows], self.b[rows], self.M)


def lambda_of(n_speakers: int, prior: float = PRIOR) -> float:
    """Return the weight of the prior where `n_speakers` calibrate.

    >>> lambda_of(25, 0.25)
    0.01
    """
    return prior / n_speakers


def learn(trials: PopulationPairs, n_speakers: int, prior: float = PRIOR) -> tuple[float, float]:
    """Return the scale and the offset that all trials give."""
    maps = solve(trials.scores, trials.same, trials.weight[None], np.array([lambda_of(n_speakers, prior)]))
    return float(maps[0, 0]), float(maps[0, 1])


def left_out(trials: PopulationPairs, group: Ints) -> tuple[Floats, Floats]:
    """Return (n,) scales and offsets for trials, by calibrations that saw no speaker of either side's groups.

    `group` (M,) divides the speakers 0 .. M - 1.
    """
    G = int(group.max()) + 1
    low = np.minimum(group[trials.a], group[trials.b])
    high = np.maximum(group[trials.a], group[trials.b])
    pairs, which = np.unique(low * G + high, return_inverse=True)
    weight = trials.weight
    weights = []
    for pair in pairs.tolist():
        out = np.isin(group, np.divmod(pair, G))
        weights.append(np.where(out[trials.a] | out[trials.b], 0.0, weight))
    sizes = [trials.M - int(np.isin(group, np.divmod(pair, G)).sum()) for pair in pairs.tolist()]
    maps = solve(trials.scores, trials.same, np.array(weights), PRIOR / np.array(sizes, float))
    return maps[which.reshape(-1), 0], maps[which.reshape(-1), 1]


def resampled(trials: PopulationPairs, times: Floats) -> Floats:
    """Return (R, 2) scales and offsets where speaker i is taken times[r, i] times, for `times` (R, M).

    The trials are first summed up on a lattice, each shared between its two neighbours. That keeps their number and
    their mean, and changes a ratio by less than the width of a line in a picture.
    """
    low = float(trials.scores.min())
    width = max(float(trials.scores.max()) - low, 1e-9) / (KNOTS - 1)
    place = np.minimum(((trials.scores - low) / width).astype(np.int64), KNOTS - 2)
    share = (trials.scores - low) / width - place
    knots = low + width * np.arange(KNOTS)
    pair = trials.a * trials.M + trials.b
    present, which = np.unique(pair, return_inverse=True)
    table = np.zeros((len(present), KNOTS))
    weight = trials.weight
    np.add.at(table, (which.reshape(-1), place), weight * (1 - share))
    np.add.at(table, (which.reshape(-1), place + 1), weight * share)
    a, b = np.divmod(present, trials.M)
    same = a == b
    # A speaker who is drawn twice gives no pairs of two speakers with himself or herself.
    of_same = times[:, a[same]] @ table[same]
    of_different = (times[:, a[~same]] * times[:, b[~same]]) @ table[~same]
    classes = np.repeat([True, False], KNOTS)
    weights = np.concatenate([of_same, of_different], axis=1)
    usable = (of_same.sum(axis=1) > 0) & (of_different.sum(axis=1) > 0)
    ridge = np.full(int(usable.sum()), RESAMPLED_PRIOR / trials.M)
    return solve(np.tile(knots, 2), classes, weights[usable], ridge)


def solve(x: Floats, same: NDArray[np.bool_], weights: Floats, ridge: Floats) -> Floats:
    """Return (R, 2) the scale a and the offset b for each row of `weights` (R, n), which need not be normalised.

    `ridge` (R,) is lambda. Newton's method on (ln a, b) uses the exact second derivatives where these are convex, and
    Fisher's elsewhere; a step that does not lower the cost is halved.
    """
    sign = np.where(same, -1.0, 1.0)
    share = np.where(same, weights, 0.0)
    share /= 2 * np.log(2) * share.sum(axis=1, keepdims=True)
    other = np.where(same, 0.0, weights)
    share += other / (2 * np.log(2) * other.sum(axis=1, keepdims=True))  # Cllr in bits

    def cost(theta: Floats, rows: Ints) -> Floats:
        u, b = theta.T
        z = np.exp(u)[:, None] * x + b[:, None]
        total = np.vecdot(share[rows], np.logaddexp(0.0, sign * z))
        return np.asarray(total + ridge[rows] * (u**2 + b**2 / 4))

    theta = np.zeros((len(weights), 2))
    active = np.arange(len(weights))
    here = cost(theta, active)
    for _ in range(60):
        if not len(active):
            break
        step, decrease = _newton(x, sign, share[active], ridge[active], theta[active])
        length = np.ones(len(active))
        while True:
            trial = theta[active] + length[:, None] * step
            costs = cost(trial, active)
            worse = ~(costs <= here[active] - 1e-4 * length * decrease) & (length > 1e-8) & (decrease > 1e-14)
            if not worse.any():
                break
            length[worse] /= 2
        theta[active] = trial
        here[active] = costs
        active = active[decrease > 1e-14]
    return np.stack([np.exp(theta[:, 0]), theta[:, 1]], axis=1)


def _newton(x: Floats, sign: Floats, share: Floats, ridge: Floats, theta: Floats) -> tuple[Floats, Floats]:
    """A step (R, 2) for each row, and the decrease of the cost (R,) that the gradient predicts for it."""
    u, b = theta.T
    stretched = np.exp(u)[:, None] * x  # dz / du, and d2z / du2
    error = expit(sign * (stretched + b[:, None]))
    slope = share * sign * error
    curve = share * error * (1 - error)
    gradient = np.stack([np.vecdot(slope, stretched) + 2 * ridge * u, slope.sum(axis=1) + ridge * b / 2], axis=1)
    uu = np.vecdot(curve, stretched**2) + 2 * ridge
    ub = np.vecdot(curve, stretched)
    bb = curve.sum(axis=1) + ridge / 2
    exact = uu + np.vecdot(slope, stretched)
    uu = np.where(exact * bb - ub**2 > 1e-3 * uu * bb, exact, uu)
    determinant = uu * bb - ub**2
    step_u = -(bb * gradient[:, 0] - ub * gradient[:, 1]) / determinant
    step_b = -(uu * gradient[:, 1] - ub * gradient[:, 0]) / determinant
    step = np.clip(np.stack([step_u, step_b], axis=1), -4.0, 4.0)
    return step, -np.vecdot(step, gradient)
