"""Items change clusters while that raises the posterior of the partition.

Merging never takes an item away from where it once went. Afterwards each item in turn is taken out of its cluster A
and put where it gains most: back, into another cluster B, or into one of its own (a gain of 0). Guesses for all items
and all clusters are matrix products; where they leave any doubt, exact gains decide.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from duoplda.data.labels import Ints
from duoplda.trials.evidence import Floats, guessed_evidence, guessed_joins
from duoplda.trials.queue import DOUBT, Partition, Queue, prior_gain


class Places(NamedTuple):
    """Where items are, and where they might be: guesses at gains, compared with items of their own."""

    stay: Floats  # (n,) the gain of staying
    other: Ints  # (n,) the best other cluster: its slot, or -1 for one of its own
    gain: Floats  # (n,) the gain there


def best_places(p: Partition) -> Places:
    """The best other cluster of each item, by guesses; -1 and 0 where none gains."""
    items = p.items
    n = len(items.m)
    stay = np.zeros(n)
    m_without = p.m[p.where] - items.m
    i = np.flatnonzero(m_without > 0)
    if len(i):
        A = p.where[i]
        without = guessed_evidence(p.gamma[A] - items.gamma[i], np.maximum(p.lam[A] - items.lam[i], 0.0))
        prior = prior_gain(items.m[i], m_without[i], p.ln_alpha)
        stay[i] = p.weight * (p.guess[A] - without - items.guess[i]) + prior
    other = np.full(n, -1)
    gain = np.zeros(n)
    slots = p.slots
    column = np.full(len(p.m), -1)
    column[slots] = np.arange(len(slots))
    rows_at_once = max(1, (1 << 22) // max(len(slots), 1))  # 32 MiB of guesses
    _, kind = np.unique(np.column_stack([items.counts, items.m]), axis=0, return_inverse=True)
    for k in range(int(kind.max()) + 1):  # items of one kind have the same counts, so that one product serves all
        rows = np.flatnonzero(kind.reshape(-1) == k)
        for start in range(0, len(rows), rows_at_once):
            part = rows[start : start + rows_at_once]
            Q = guessed_joins(p.gamma[slots], p.lam[slots], items.gamma[part], items.lam[part[0]])
            gains = p.weight * (Q - p.guess[slots] - items.guess[part][:, None])
            gains += prior_gain(items.m[part[0]], p.m[slots], p.ln_alpha)
            gains[np.arange(len(part)), column[p.where[part]]] = -np.inf
            for row, item in enumerate(part.tolist() if items.cannot else ()):
                gains[row, column[sorted(_barred(p, item))]] = -np.inf
            best = gains.argmax(axis=1)
            value = gains[np.arange(len(part)), best]
            # For an item that is alone, the best other cluster is told also where it loses, as the runner-up.
            told = (value > 0) | ((m_without[part] <= 0) & (len(slots) > 1))
            other[part] = np.where(told, slots[best], -1)
            gain[part] = np.where(told, value, 0.0)
    return Places(stay, other, gain)


def _barred(p: Partition, i: int) -> set[int]:
    """The clusters that hold an item which i must not be with."""
    return {int(p.where[j]) for j in p.items.cannot.get(i, ())}


def exact_gain(p: Partition, i: int, slot: int) -> tuple[float, float]:
    """The exact gain of item i in a cluster, and Q of that cluster without i, if i is in it, or else with i."""
    items = p.items
    inside = p.where[i] == slot
    sign = -1.0 if inside else 1.0
    m_without = float(p.m[slot] - items.m[i]) if inside else float(p.m[slot])
    if m_without <= 0:
        return 0.0, 0.0
    counts = p.counts[slot] + sign * items.counts[i]
    gamma = p.gamma[slot] + sign * items.gamma[i]
    Q = float(p.evidence.exact(counts[None], gamma[None])[0])
    ratio = sign * (Q - p.Q[slot]) - items.Q[i]
    return p.weight * ratio + float(prior_gain(items.m[i], m_without, p.ln_alpha)), Q


def _sweep(p: Partition, places: Places, fewest: int, most: int) -> int:
    """Move the items that gain by it, most promising first; how many did."""
    moves = 0
    hope = np.maximum(places.gain, 0.0) - places.stay
    least = 1e-9 if p.evidence.is_diagonal else -DOUBT / 2
    promising = np.flatnonzero((hope > least) & (p.items.owner < 0))
    for i in promising[np.argsort(-hope[promising], kind="stable")].tolist():
        A = int(p.where[i])
        B = int(places.other[i])
        alone = p.m[A] - p.items.m[i] <= 0
        fewer = int(p.n_items[A] == 1)  # clusters, if this item leaves
        more = int(B < 0 or p.n_items[B] == 0)  # clusters, if it comes
        if (B < 0 and alone) or not fewest <= p.n_clusters + more - fewer <= most:
            continue
        if B >= 0 and (not p.alive[B] or B == A or B in _barred(p, i)):  # as moves before this one have made it
            continue
        gain_here, Q_without = exact_gain(p, i, A)
        gain_there, Q_with = exact_gain(p, i, B) if B >= 0 else (0.0, float(p.items.Q[i]))
        if B >= 0 and gain_there < 0.0 and not alone and p.n_clusters + 1 - fewer <= most:
            B = -1
            gain_there = 0.0
            Q_with = float(p.items.Q[i])
        if gain_there - gain_here > 1e-9:  # more than rounding
            p.move(i, B, Q_without, Q_with)
            moves += 1
    return moves


def refine(p: Partition, fewest: int, most: int) -> Places | None:
    """Move items until none gains by it, then merge clusters again, and so on until nothing changes.

    Where items might be after that is returned; None where the last sweep moved some.
    """
    moved = False
    for _ in range(50):  # three or four sweeps are usual
        places = best_places(p)
        if _sweep(p, places, fewest, most):
            moved = True
            continue
        p.set_apart()
        before = len(p.merges)
        if moved:
            Queue(p).merge_all(fewest, most)
        if before == len(p.merges):
            return places
        moved = False
    p.set_apart()
    return None
