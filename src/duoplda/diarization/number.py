"""How many people speak in a file: groups of windows are merged, and every number of speakers gets a probability.

Group j has N_j windows. In the space of `latent` its mean is, with s(j) the speaker,

    m_j = o + phi^1/2 y_s(j) + e_j,    o ~ N(0, I / 3),    y ~ N(0, I),    e_j ~ N(0, I / n_j)

o is what all windows of a file have in common, its room and its channel. To the model it is a part of the noise, whose
variance is 1: on files with known speakers a third of it is common to the file, and the rest is w, which is measured in
the file. Windows of one group are not independent. N of them in one turn count as q = F_a N, and those of a turn share
more (the words, the breath, the distance to the microphone) than those of two turns, which still share the day:

    c = sum over turns of q / (1 + (q - 1) .3),    n = c / (w (1 + (c - 1) .05))

as sessions of one occasion do. So a speaker who is heard in one turn is less sure than one who is heard as long in ten.
The two shares were looked at on the conversations of `examples/diarization.py`: whole files keep the numbers of their
speakers with any from .2 to .5 and from .02 to .05. In the prior each further speaker has a probability of
1 / (sum of q): a group that stands out is the one among all windows that stands out most, and most files have few.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from duoplda.diarization.vbhmm import Floats, Ints
from duoplda.model.occasions import independent_count

IN_TURN = 0.3  # what windows of one turn have in common beside the voice, as a share of the noise
IN_FILE = 0.05  # and what different turns of one speaker have
OFFSET = 1 / 3  # the variance of what a file has in common, as a share of the noise of the model


class Merged(NamedTuple):
    """One step on the way from all groups to one speaker: `speaker` (S,) of each group, and the ln posterior."""

    speaker: Ints
    log_posterior: float


def groups_of(rows: Floats, phi: Floats, labels: Ints, Fa: float) -> tuple[Floats, Floats]:
    """(S,), (S, d): n and the mean of each group 0, 1, ... of windows, which are in the order of time."""
    N = np.bincount(labels).astype(float)
    mean = np.zeros((len(N), rows.shape[1]))
    np.add.at(mean, labels, rows)
    mean /= N[:, None]
    first = np.flatnonzero(np.diff(labels, prepend=-1))  # of turns
    length = np.diff(np.append(first, len(labels)))
    turns = np.bincount(labels[first], independent_count(Fa * length, IN_TURN), len(N))
    count = Fa * N
    left = max(float(np.maximum(count - 1, 0).sum() / count.sum()), 0.5)  # of the variance, after the means are taken
    weights = phi / phi.sum()  # dimensions in which speakers are alike say nothing about them
    w = float(((rows - mean[labels]) ** 2).mean(axis=0) @ weights) / left
    return independent_count(turns, IN_FILE) / max(w, 0.1), mean  # less noise than that is a repeated window


def merges(n: Floats, mean: Floats, phi: Floats, prior: float, offset: float = OFFSET) -> list[Merged]:
    """Merge the best pair of groups, again and again, down to one speaker.

    Parameters
    ----------
    n, mean : (S,), (S, d) of `groups_of`
    phi : (d,) between-class variances
    prior : the probability of a further speaker
    offset : the variance of what the file has in common

    Example
    -------
    >>> far = merges(np.full(3, 4.0), np.array([[3.0], [3.2], [-3.0]]), np.array([9.0]), prior=0.1)
    >>> [step.speaker.tolist() for step in far], int(np.argmax([step.log_posterior for step in far]))
    ([[0, 1, 2], [0, 0, 2], [0, 0, 0]], 1)
    """
    n = np.array(n, float)
    mean = np.array(mean, float)
    speaker = np.arange(len(n))
    steps = [Merged(speaker, 0.0)]
    while len(left := np.unique(speaker)) > 1:
        gain, i, j = max(_best_pairs(n[left], mean[left], phi, offset))
        a = left[i]
        b = left[j]
        mean[b] = (n[a] * mean[a] + n[b] * mean[b]) / (n[a] + n[b])
        n[b] += n[a]
        speaker = np.where(speaker == a, b, speaker)
        steps.append(Merged(speaker, steps[-1].log_posterior + gain - np.log(prior)))
    return steps


def _best_pairs(n: Floats, mean: Floats, phi: Floats, offset: float) -> list[tuple[float, int, int]]:
    """For each group i but the first: what its best merge with an earlier group j gains, i and j.

    Given o, means are independent, N(o, phi + 1/n); the integral over o is that of a Gaussian with precision A.
    """
    a, b, c = _terms(n, mean, phi)
    A = a.sum(axis=0) + 1 / offset
    B = b.sum(axis=0)
    best = []
    for i in range(1, len(n)):
        together = n[i] + n[:i]
        centre = (n[i] * mean[i] + n[:i, None] * mean[:i]) / together[:, None]
        precision = (n[i] * n[:i] / together)[:, None]  # of the difference of the two means, if they are of one speaker
        a_both, b_both, c_both = _terms(together, centre, phi)
        A_both = A - a[i] - a[:i] + a_both
        B_both = B - b[i] - b[:i] + b_both
        evidence = c_both - c[i] - c[:i] + (B_both**2 / A_both - np.log(A_both) - B**2 / A + np.log(A)) / 2
        evidence += (np.log(precision) - precision * (mean[i] - mean[:i]) ** 2) / 2
        gains = evidence.sum(axis=1)
        j = int(gains.argmax())
        best.append((float(gains[j]), i, j))
    return best


def _terms(n: Floats, mean: Floats, phi: Floats) -> tuple[Floats, Floats, Floats]:
    """(S, d) each: the precision a of a mean about o, a m, and the ln density of m without what depends on o."""
    a = 1 / (phi + 1 / n[:, None])
    return a, a * mean, (np.log(a) - a * mean**2) / 2


def number_posterior(steps: list[Merged], low: int, high: float) -> dict[int, float]:
    """The probability of each number of speakers from `low` to `high` that merging leads to.

    >>> number_posterior([Merged(np.array([0, 1]), 0.0), Merged(np.array([0, 0]), np.log(3.0))], 1, np.inf)
    {1: 0.75, 2: 0.25}
    """
    numbers = {len(np.unique(step.speaker)): step.log_posterior for step in reversed(steps)}
    allowed = {k: ln for k, ln in numbers.items() if low <= k <= high}
    shares = softmax(np.array([*allowed.values()]))
    return {k: round(float(p), 12) for k, p in zip(allowed, shares, strict=True)}
