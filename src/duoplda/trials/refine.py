"""Steps that raise the posterior of a partition after clusters have been merged.

Merging never takes an item out of a cluster again. Afterwards each item in turn is taken out of its cluster A and put
where it gains most: back, into another cluster B, or into one of its own (a gain of 0). Where the number of speakers is
limited, a cluster may be split while two others are merged. Gains are exact where that takes seconds; otherwise
guesses, which are matrix products, find the items whose exact gains are computed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from duoplda.data.labels import Ints
from duoplda.trials.evidence import Floats, guessed_evidence, guessed_joins
from duoplda.trials.queue import DOUBT, MOST_EXACT_WORK, Merge, Partition, Queue, exact_pairs

# Partitions on the path of merges from which items are moved besides the best one, by their numbers of clusters as
# shares of its own. On drawn data the highest posterior was most often reached from .9 or .8.
SHARES_ON_PATH = (0.9, 0.8, 0.65, 0.5)


class Places(NamedTuple):
    """The gains of items where they are and in their best other cluster, relative to a cluster of their own."""

    stay: Floats  # (n,) the gain of staying
    other: Ints  # (n,) the best other cluster: its slot, or -1 for one of its own
    gain: Floats  # (n,) the gain there
    exact: bool  # whether the gains are exact or guesses


class Split(NamedTuple):
    """A cluster in two parts, and what the partition loses by that."""

    loss: float  # infinite where a cluster cannot be split
    part: list[int]  # the items of one of the two parts, without known speakers
    Q_part: float
    Q_others: float


def best_places(p: Partition) -> Places:
    """The best other cluster of each item; -1 and 0 where none gains."""
    items = p.items
    n = len(items.m)
    slots = p.slots
    kinds, kind = np.unique(np.column_stack([items.counts, items.m]), axis=0, return_inverse=True)
    work = (len(kinds) * p.evidence.work_of_a_set + n * p.evidence.work_of_a_set ** (2 / 3)) * len(slots)
    exact = p.evidence.is_diagonal or work <= MOST_EXACT_WORK
    Q_of_clusters = p.Q if exact else p.guess
    Q_of_items = items.Q if exact else items.guess
    stay = np.zeros(n)
    m_without = p.m[p.where] - items.m
    i = np.flatnonzero(m_without > 0)
    if len(i):
        A = p.where[i]
        gamma = p.gamma[A] - items.gamma[i]
        if exact:
            without = p.evidence.exact(p.counts[A] - items.counts[i], gamma)
        else:
            without = guessed_evidence(gamma, np.maximum(p.lam[A] - items.lam[i], 0.0))
        stay[i] = p.objective.gain(Q_of_clusters[A] - without - Q_of_items[i], items.m[i], m_without[i])
    other = np.full(n, -1)
    gain = np.zeros(n)
    column = np.full(len(p.m), -1)
    column[slots] = np.arange(len(slots))
    cells = len(slots) * (items.gamma.shape[1] if exact and not p.evidence.is_diagonal else 1)
    rows_at_once = max(1, (1 << 22) // max(cells, 1))  # 32 MiB of gains, or of vectors
    for k in range(len(kinds)):  # items of one kind have the same counts, so that one product serves all
        rows = np.flatnonzero(kind.reshape(-1) == k)
        for start in range(0, len(rows), rows_at_once):
            part = rows[start : start + rows_at_once]
            if exact and not p.evidence.is_diagonal:
                Q = p.evidence.exact_joins(p.counts[slots], p.gamma[slots], items.gamma[part], items.counts[part[0]])
            else:
                Q = guessed_joins(p.gamma[slots], p.lam[slots], items.gamma[part], items.lam[part[0]])
            gains = p.objective.gain(Q - Q_of_clusters[slots] - Q_of_items[part][:, None], items.m[part[0]], p.m[slots])
            gains[np.arange(len(part)), column[p.where[part]]] = -np.inf
            for row, item in enumerate(part.tolist() if items.cannot else ()):
                gains[row, column[sorted(_barred(p, item))]] = -np.inf
            best = gains.argmax(axis=1)
            value = gains[np.arange(len(part)), best]
            # For an item that is alone, the best other cluster is its second choice, even if it loses there.
            is_place = (value > 0) | ((m_without[part] <= 0) & np.isfinite(value))
            other[part] = np.where(is_place, slots[best], -1)
            gain[part] = np.where(is_place, value, 0.0)
    return Places(stay, other, gain, exact)


def _barred(p: Partition, i: int) -> set[int]:
    """The clusters that hold an item with which item i must not be together."""
    return {int(p.where[j]) for j in p.items.cannot.get(i, ())}


def exact_gain(p: Partition, i: int, slot: int) -> tuple[float, float]:
    """The exact gain of item i in a cluster, and Q of that cluster without i if i is in it, otherwise with i."""
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
    return float(p.objective.gain(ratio, items.m[i], m_without)), Q


def _sweep(p: Partition, places: Places) -> int:
    """Move the items that gain by it, most promising first, and return how many moved."""
    _, _, fewest, most = p.objective
    moves = 0
    hope = np.maximum(places.gain, 0.0) - places.stay
    least = 1e-9 if places.exact else -DOUBT / 2
    promising = np.flatnonzero((hope > least) & (p.items.owner < 0))
    for i in promising[np.argsort(-hope[promising], kind="stable")].tolist():
        A = int(p.where[i])
        B = int(places.other[i])
        alone = p.m[A] - p.items.m[i] <= 0
        fewer = int(p.n_items[A] == 1)  # clusters, if this item leaves
        more = int(B < 0 or p.n_items[B] == 0)  # clusters, if it comes
        if (B < 0 and alone) or not fewest <= p.n_clusters + more - fewer <= most:
            continue
        if B >= 0 and (not p.alive[B] or B == A or B in _barred(p, i)):  # after the moves before this one
            continue
        gain_here, Q_without = exact_gain(p, i, A)
        gain_there, Q_with = exact_gain(p, i, B) if B >= 0 else (0.0, float(p.items.Q[i]))
        if B >= 0 and gain_there < 0.0 and not alone and p.n_clusters + 1 - fewer <= most:
            B = -1
            gain_there = 0.0
            Q_with = float(p.items.Q[i])
        if gain_there - gain_here > 1e-9:  # more than rounding
            p.move([i], B, Q_without, Q_with)
            moves += 1
    return moves


def best_split(p: Partition, slot: int, parent: dict[int, int]) -> Split:
    """The weakest place of a cluster: of the ways in which the tree of merges divides its items, that of least loss.

    `parent` is the node into which each node of the tree was merged. Of large clusters only the 32 ways that guesses
    find best are computed exactly.
    """
    items = p.items
    members = p.members[slot]
    below: dict[int, list[int]] = {}  # the items of the cluster below each node of the tree
    for i in members:
        node: int | None = i
        while node is not None:
            below.setdefault(node, []).append(i)
            node = parent.get(node)
    ways = {tuple(part) for part in below.values() if len(part) < len(members)}
    # The part that leaves is the one without the known speaker; a known speaker alone is no speaker that was found.
    parts = [part for part in sorted(ways) if (items.owner[list(part)] < 0).all()]
    if not parts:
        return Split(np.inf, [], 0.0, 0.0)
    inside = np.zeros((len(parts), len(members)))
    place = {i: k for k, i in enumerate(members)}
    for row, part in enumerate(parts):
        inside[row, [place[i] for i in part]] = 1.0
    counts = inside @ items.counts[members]
    gamma = inside @ items.gamma[members]
    m = inside @ items.m[members]
    chosen = np.arange(len(parts))
    if len(parts) > 32 and not p.evidence.is_diagonal:
        lam = inside @ items.lam[members]
        guess = guessed_evidence(gamma, lam) + guessed_evidence(p.gamma[slot] - gamma, p.lam[slot] - lam)
        loss = p.objective.gain(-guess, m, p.m[slot] - m)
        chosen = np.sort(np.argsort(loss, kind="stable")[:32])
    Q_part = p.evidence.exact(counts[chosen], gamma[chosen])
    Q_others = p.evidence.exact(p.counts[slot] - counts[chosen], p.gamma[slot] - gamma[chosen])
    loss = p.objective.gain(p.Q[slot] - Q_part - Q_others, m[chosen], p.m[slot] - m[chosen])
    best = int(loss.argmin())
    return Split(float(loss[best]), list(parts[chosen[best]]), float(Q_part[best]), float(Q_others[best]))


class Splits:
    """The best split of each cluster, computed again where the cluster has changed."""

    def __init__(self, p: Partition, tree: list[Merge]):
        self.p = p
        n = len(p.items.m)
        self.parent = {node: n + t for t, merge in enumerate(tree) for node in merge[:2]}
        self.computed: dict[int, tuple[int, Split]] = {}  # by slots, with the version of the cluster

    def __getitem__(self, slot: int) -> Split:
        version = int(self.p.version[slot])
        if slot not in self.computed or self.computed[slot][0] != version:
            self.computed[slot] = (version, best_split(self.p, slot, self.parent))
        return self.computed[slot][1]


def _split_and_merge(p: Partition, splits: Splits) -> bool:
    """Split a cluster and merge two others at once, where the number of speakers is at a limit, if that gains.

    Returns whether it did.
    Clusters are not split for a gain alone. On drawn data that found no better partitions than moves do; on real speech
    of another domain (cvau, all channels), where the model is too sure of itself, it lowered F from 94 to 87.
    """
    if p.objective.fewest < p.n_clusters < p.objective.most:
        return False
    order = sorted(p.slots.tolist(), key=lambda slot: (splits[slot].loss, slot))
    order = [slot for slot in order[:3] if splits[slot].part]  # one of three is neither of the two that merge
    best = (1e-9, -1, -1, -1, 0.0, 0.0)
    for a, b, gain, Q in exact_pairs(p, p.slots):
        one_less = (p.n_items[a] > 0) & (p.n_items[b] > 0)
        for k in np.flatnonzero(one_less).tolist():
            i = int(a[k])
            j = int(b[k])
            slot = next((s for s in order if s not in (i, j)), -1)
            if slot >= 0 and gain[k] - splits[slot].loss > best[0]:
                best = (float(gain[k] - splits[slot].loss), i, j, slot, float(gain[k]), float(Q[k]))
    _, i, j, slot, gain_of_merge, Q_of_both = best
    if slot < 0:
        return False
    split = splits[slot]
    p.move(split.part, -1, split.Q_others, split.Q_part)
    p.set_apart()
    p.merge(i, j, gain_of_merge, Q_of_both)
    return True


def _improve(p: Partition, splits: Splits) -> Places | None:
    """Move items until none gains by it, then merge clusters again, and so on until nothing changes.

    Returns the places of the items, or None where the last sweep moved some of them.
    """
    moved = False
    for _ in range(50):  # three or four sweeps are usual
        places = best_places(p)
        if _sweep(p, places):
            moved = True
            continue
        p.set_apart()
        before = len(p.merges)
        if moved:
            Queue(p).merge_all()
        if before == len(p.merges) and not _split_and_merge(p, splits):
            return places
        p.set_apart()
        moved = before == len(p.merges)
    p.set_apart()
    return None


def refine(
    path: Partition, n_merges: int, ln_alpha: float, shares: tuple[float, ...] = SHARES_ON_PATH
) -> tuple[Partition, Splits, Places]:
    """The partition with the highest posterior to which moves lead, its splits, and the places of its items.

    The moves begin at the best partition of a path of merges, which is that after `n_merges`, and at some that come
    after it: from a cluster that is too large, items can leave one by one, whereas two clusters that should be divided
    in another way keep their pieces, as no single move gains.
    """
    number = np.array([merge.n_clusters for merge in path.merges[n_merges:]])
    starts = {n_merges}
    k = path.after(n_merges, ln_alpha).n_clusters
    for share in shares:
        wanted = max(path.objective.fewest, min(round(share * k), k - 1))
        starts.update((n_merges + 1 + np.flatnonzero(number == wanted)[:1]).tolist())
    best: tuple[Partition, Splits, Places | None] | None = None
    for start in sorted(starts):
        p = path.after(start, ln_alpha)
        splits = Splits(p, p.merges)
        places = _improve(p, splits)
        if best is None or p.log_posterior > best[0].log_posterior + 1e-9:
            best = (p, splits, places)
    assert best is not None
    p, splits, places = best
    return p, splits, places or best_places(p)
