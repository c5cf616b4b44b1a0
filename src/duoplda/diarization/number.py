"""The number of speakers of a file: merges groups of windows, and gives each number of speakers a probability.

A group has the windows of one speaker whom the HMM has found. Group j has N_j windows, and s(j) is its true speaker. In
the space of `latent` its mean is

    m_j = o + phi^1/2 y_s(j) + e_j,    o ~ N(0, I / 3),    y ~ N(0, I),    e_j ~ N(0, I / n_j)

o is what all windows of a file have in common, such as the room and the channel. In the model it is part of the noise,
whose variance is 1. On files with known speakers a third of the noise is common to the file; the variance w of the rest
is measured in each file. Windows of one group are not independent. N overlapping windows of one turn count as
q = F_a N. Windows of one turn also share more (the words, the breath, the distance to the microphone) than windows of
two turns, which still share the day. As for sessions of one occasion, the group therefore counts as

    c = sum over turns of q / (1 + (q - 1) .3),    n = c / (w (1 + (c - 1) .05))

so that a speaker who is heard in one turn is less certain than one who is heard for the same time in ten. The two
shares .3 and .05 were chosen with a look at the conversations of `examples/diarization.py`: whole files keep the
numbers of their speakers with any from .2 to .5 and from .02 to .05. In the prior each further speaker has a
probability of 1 / (sum of q): a group that stands out was picked as the most unusual among all windows, and most files
have few speakers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import softmax

from duoplda.diarization.vbhmm import Floats, Ints
from duoplda.model.occasions import independent_count

IN_TURN = 0.3  # the share of the noise that windows of one turn have in common
IN_FILE = 0.05  # the share of the noise that different turns of one speaker have in common
OFFSET = 1 / 3  # the variance of what all windows of a file have in common, as a share of the noise of the model


class Merged(NamedTuple):
    """One step on the path from all groups to one speaker: `speaker` (S,) of each group, and the ln posterior."""

    speaker: Ints
    log_posterior: float


def groups_of(rows: Floats, phi: Floats, labels: Ints, Fa: float) -> tuple[Floats, Floats]:
    """(S,), (S, d) n and the mean of each group 0, 1, ... of windows; the windows are in the order of time."""
    N = np.bincount(labels).astype(float)
    mean = np.zeros((len(N), rows.shape[1]))
    np.add.at(mean, labels, rows)
    mean /= N[:, None]
    first = np.flatnonzero(np.diff(labels, prepend=-1))  # the first window of each turn
    length = np.diff(np.append(first, len(labels)))
    turns = np.bincount(labels[first], independent_count(Fa * length, IN_TURN), len(N))
    count = Fa * N
    left = max(float(np.maximum(count - 1, 0).sum() / count.sum()), 0.5)  # of the variance remains about the means
    weights = phi / phi.sum()  # dimensions in which speakers are alike do not tell speakers apart
    w = float(((rows - mean[labels]) ** 2).mean(axis=0) @ weights) / left
    return independent_count(turns, IN_FILE) / max(w, 0.1), mean  # a smaller w means that windows are repeated


def merges(n: Floats, mean: Floats, phi: Floats, prior: float, offset: float = OFFSET) -> list[Merged]:
    """Merge the two groups whose merge gains most, again and again until one speaker is left.

    Parameters
    ----------
    n, mean : (S,), (S, d) the groups, as `groups_of` returns them
    phi : (d,) between-class variances
    prior : the probability of a further speaker
    offset : the variance of what all windows of the file have in common

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
    """The gain of the best merge of each group i with an earlier group j, i and j; for all groups but the first.

    Given o, the means are independent with distribution N(o, phi + 1/n). The integral over o is that of a Gaussian with
    precision A.
    """
    a, b, c = _terms(n, mean, phi)
    A = a.sum(axis=0) + 1 / offset
    B = b.sum(axis=0)
    best = []
    for i in range(1, len(n)):
        together = n[i] + n[:i]
        centre = (n[i] * mean[i] + n[:i, None] * mean[:i]) / together[:, None]
        precision = (n[i] * n[:i] / together)[:, None]  # of the difference of two means of one speaker
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
    """(S, d) each: the precision a of a mean about o, a m, and the part of ln p(m | o) that does not depend on o."""
    a = 1 / (phi + 1 / n[:, None])
    return a, a * mean, (np.log(a) - a * mean**2) / 2


def number_posterior(steps: list[Merged], low: int, high: float) -> dict[int, float]:
    """The probability of each number of speakers from `low` to `high` that occurs on the path of merges.

    >>> number_posterior([Merged(np.array([0, 1]), 0.0), Merged(np.array([0, 0]), np.log(3.0))], 1, np.inf)
    {1: 0.75, 2: 0.25}
    """
    numbers = {len(np.unique(step.speaker)): step.log_posterior for step in reversed(steps)}
    allowed = {k: ln for k, ln in numbers.items() if low <= k <= high}
    shares = softmax(np.array([*allowed.values()]))
    return {k: round(float(p), 12) for k, p in zip(allowed, shares, strict=True)}
