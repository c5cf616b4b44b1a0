"""The best partition of a few items, by comparing all partitions.

With f(S) what a cluster of the items S adds to the log posterior, the best partition of S into c clusters has

    F(c, S) = max over subsets T of S of  F(c - 1, S - T) + f(T)

so that n items take 2^n evidences and 3^n additions. Sets are numbers whose bits are items.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from duoplda.data.labels import Ints
from duoplda.trials.evidence import Floats
from duoplda.trials.queue import Items, Objective, Partition

# Twelve items take less than a second with 200 speaker factors; each further item makes it three times as long.
MOST_ITEMS = 12
MOST_SETS = 1 << 13  # whose evidence is computed: the sets of items, alone and with each known speaker


def is_affordable(items: Items) -> bool:
    """Whether there are few enough items and known speakers to compare all partitions."""
    n_items = int((items.owner < 0).sum())
    n_known = len(items.m) - n_items
    return n_items <= MOST_ITEMS and (1 + n_known) << n_items <= MOST_SETS


def best_of_all(items: Items, objective: Objective) -> Partition | None:
    """The partition with the highest posterior within the limits; None: constraints allow none."""
    ln_alpha, weight, fewest, most = objective
    free = np.flatnonzero(items.owner < 0)
    known = np.flatnonzero(items.owner >= 0)
    n = len(free)
    inside = ((np.arange(1 << n)[:, None] >> np.arange(n)) & 1).astype(bool)  # the items of each set
    barred = np.zeros(1 << n, bool)
    for i, others in items.cannot.items():
        for j in others:
            barred |= inside[:, i] & inside[:, j]
    counts = inside @ items.counts[free]
    gamma = inside @ items.gamma[free]
    m = inside @ items.m[free]
    value = np.full((1 + len(known), 1 << n), -np.inf)  # of clusters without a known speaker, and with each of them
    value[0, 1:] = weight * items.evidence.exact(counts[1:], gamma[1:]) + gammaln(m[1:]) + ln_alpha
    for row, k in enumerate(known.tolist(), start=1):
        Q = items.evidence.exact(counts + items.counts[k], gamma + items.gamma[k])
        value[row] = weight * Q + gammaln(m + items.m[k]) + ln_alpha
    value[:, barred] = -np.inf
    parts = _best_sets(value, fewest, most)
    if parts is None:
        return None
    p = Partition(items, objective)
    for row, chosen in parts:
        members = free[inside[chosen]].tolist()
        if row > 0:
            members.insert(0, int(known[row - 1]))
        for i in members[1:]:
            a = members[0]
            gain, Q = p.gains(np.array([a]), np.array([i]))
            p.merge(a, i, float(gain[0]), float(Q[0]))
    return p


def _best_sets(value: Floats, fewest: int, most: int) -> list[tuple[int, int]] | None:
    """The clusters of the best partition, each as the row of `value` that it is of, and its set of items.

    Row 0 may have any number of sets, the others have one each, which may be empty and then is no cluster.
    """
    n_sets = value.shape[1]
    n = n_sets.bit_length() - 1
    subsets = [np.zeros(1, np.int64)]
    for whole in range(1, n_sets):
        lowest = whole & -whole
        without = subsets[whole ^ lowest]
        subsets.append(np.concatenate([without, without | lowest]))
    total = np.full((n + 1, n_sets), -np.inf)  # by the number of clusters, and the items that are in them
    total[0, 0] = 0.0
    choices: list[Ints] = []
    for row in value[1:]:
        total, choice = _with_one_more(total, row, subsets)
        choices.append(choice)
    choice = np.zeros((n + 1, n_sets), np.int64)
    for whole in range(1, n_sets):  # sets in this order come after all of their subsets
        sets = subsets[whole][1:]
        sums = total[:-1, whole ^ sets] + value[0, sets]
        best = sums.argmax(axis=1)
        highest = sums[np.arange(n), best]
        better = highest > total[1:, whole]
        total[1:, whole] = np.where(better, highest, total[1:, whole])
        choice[1:, whole] = np.where(better, sets[best], 0)
    allowed = (np.arange(n + 1) >= fewest) & (np.arange(n + 1) <= most)
    final = np.where(allowed, total[:, -1], -np.inf)
    k = int(final.argmax())
    if not np.isfinite(final[k]):
        return None
    parts = []
    left = n_sets - 1
    while chosen := int(choice[k, left]):
        parts.append((0, chosen))
        left ^= chosen
        k -= 1
    for row in range(len(choices), 0, -1):
        chosen = int(choices[row - 1][k, left])
        if chosen:
            parts.append((row, chosen))
            k -= 1
        left ^= chosen
    return parts


def _with_one_more(total: Floats, value: Floats, subsets: list[Ints]) -> tuple[Floats, Ints]:
    """The totals once a known speaker has taken the best set of items, which may be empty; and that set."""
    best_total = total + value[0]
    choice = np.zeros(total.shape, np.int64)
    for whole in range(1, len(subsets)):
        sets = subsets[whole][1:]
        sums = total[:-1, whole ^ sets] + value[sets]
        best = sums.argmax(axis=1)
        highest = sums[np.arange(len(sums)), best]
        better = highest > best_total[1:, whole]
        best_total[1:, whole] = np.where(better, highest, best_total[1:, whole])
        choice[1:, whole] = np.where(better, sets[best], 0)
    return best_total, choice
