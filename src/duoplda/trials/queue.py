"""Merging clusters while that raises the posterior of the partition.

The Ewens prior over partitions, with p the probability that two random sessions are of one speaker, makes a merge gain

    gain(a, b) = weight [Q(a + b) - Q(a) - Q(b)] + ln[Gamma(m_a + m_b) / (Gamma(m_a) Gamma(m_b))] - ln[(1 - p) / p]

where m counts sessions. The best pair is merged while its gain is positive: there is no threshold to tune. Pairs wait
in a heap by a guess at their gain; the exact one is computed when a pair comes to the top, and decides. Only pairs of
neighbours wait; when there are none left, all clusters are looked at once more for pairs that nobody had noticed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from duoplda.data.labels import Ints
from duoplda.trials.evidence import DiagonalEvidence, Floats

Merge = tuple[int, int, float, float]  # the names of two clusters, the gain, and the sessions of both

SLACK = 0.5  # nats by which a guess may be too low without a better pair being overlooked
NEAR = 3.0  # nats below 0 from which on a guess is not believed
NEIGHBOURS = 48  # of a cluster, at most
PAIRS = 4096  # that are guessed at a time
LOOK = 4  # neighbours that a look at all clusters adds to each


@dataclass(frozen=True, eq=False)
class Items:
    """What is put into clusters: sessions, or several of them that are known to be of one speaker."""

    counts: Floats  # (n, C)
    gamma: Floats  # (n, ny) in the basis of the evidence
    m: Floats  # (n,) sessions
    Q: Floats  # (n,) exact
    owner: Ints  # (n,) the known speaker that an item stands for, or -1
    cannot: dict[int, set[int]]  # items that are not to be together with an item


class Partition:
    """Clusters of items, which can be merged and from which items can be taken; each lives in a slot.

    Clusters with two known speakers are never merged, nor are those in each other's `apart`. A known speaker without
    items does not count as a cluster (`n_clusters`).
    """

    def __init__(self, evidence: DiagonalEvidence, items: Items, ln_alpha: float, weight: float):
        self.evidence = evidence
        self.ln_alpha = ln_alpha
        self.weight = weight
        n = len(items.m)
        self.counts = items.counts.copy()
        self.gamma = items.gamma.copy()
        self.m = items.m.copy()
        self.Q = items.Q.copy()
        self.owner = items.owner.copy()
        self.lam = self.counts @ evidence.diagonals
        self.guess = evidence.guess(self.gamma, self.lam)
        self.ln_gamma = gammaln(self.m)
        self.alive = np.ones(n, bool)
        self.version = np.zeros(n, np.int64)
        self.merges: list[Merge] = []
        # Of clusters in `merges`
        self.name = np.arange(n)
        self.next_name = n
        self.members: list[list[int]] = [[i] for i in range(n)]
        self.n_items = (items.owner < 0).astype(np.int64)  # of a cluster, known speakers not counted
        self.n_clusters = int(self.n_items.sum())
        self.set_apart(items.cannot)

    def set_apart(self, cannot: dict[int, set[int]]) -> None:
        """Keep clusters apart that have items which are not to be together."""
        self.apart: dict[int, set[int]] = {}
        if cannot:
            where = {i: slot for slot in self.slots.tolist() for i in self.members[slot]}
            for i, others in cannot.items():
                self.apart.setdefault(where[i], set()).update(where[j] for j in others)

    def prior(self, a: int | Ints, b: int | Ints) -> Floats:
        """What the prior adds to a gain."""
        return gammaln(self.m[a] + self.m[b]) - self.ln_gamma[a] - self.ln_gamma[b] - self.ln_alpha

    def guesses(self, a: int | Ints, b: Ints) -> Floats:
        """(k,) guesses at the gains of cluster a (or of each of some) and others."""
        Q = self.evidence.guess(self.gamma[a] + self.gamma[b], self.lam[a] + self.lam[b])
        return self.weight * (Q - self.guess[a] - self.guess[b]) + self.prior(a, b)

    def gains(self, a: Ints, b: Ints) -> tuple[Floats, Floats]:
        """(k,) exact gains of pairs, and Q of what they would become."""
        Q = self.evidence.exact(self.counts[a] + self.counts[b], self.gamma[a] + self.gamma[b])
        return self.weight * (Q - self.Q[a] - self.Q[b]) + self.prior(a, b), Q

    def may(self, a: int, b: int) -> bool:
        """Whether nothing forbids a merge."""
        both = self.owner[a] >= 0 and self.owner[b] >= 0
        return not both and (not self.apart or b not in self.apart.get(a, ()))

    def counts_as_one(self, a: int, b: int) -> bool:
        """Whether there is one cluster less when these are merged."""
        return bool(self.n_items[a] and self.n_items[b])

    def merge(self, a: int, b: int, gain: float, Q: float) -> None:
        """Cluster b becomes a part of a."""
        self.n_clusters -= self.counts_as_one(a, b)
        self.n_items[a] += self.n_items[b]
        self.n_items[b] = 0
        self.counts[a] += self.counts[b]
        self.gamma[a] += self.gamma[b]
        self.m[a] += self.m[b]
        self.merges.append((int(self.name[a]), int(self.name[b]), gain, float(self.m[a])))
        self.name[a], self.next_name = self.next_name, self.next_name + 1
        self.owner[a] = max(self.owner[a], self.owner[b])
        self.members[a] += self.members[b]
        self.members[b] = []
        self._changed(a, Q)
        self.alive[b] = False
        self.version[b] += 1
        if self.apart and (others := self.apart.pop(b, None)):
            for other in others:
                self.apart[other].discard(b)
                self.apart[other].add(a)
            self.apart.setdefault(a, set()).update(others)

    def open(self, slot: int) -> None:
        """An empty cluster in a slot where none lives."""
        self.counts[slot] = 0.0
        self.gamma[slot] = 0.0
        self.m[slot] = 0.0
        self.owner[slot] = -1
        self.alive[slot] = True
        self.members[slot] = []
        self.n_items[slot] = 0
        self.name[slot], self.next_name = self.next_name, self.next_name + 1

    def move(self, item: int, a: int, b: int, own: tuple[Floats, Floats, float], Q: tuple[float, float]) -> None:
        """Take an item with its counts, gamma and m from cluster a to b; Q are those of both, after that."""
        for slot, sign, after in ((a, -1.0, Q[0]), (b, 1.0, Q[1])):
            self.counts[slot] += sign * own[0]
            self.gamma[slot] += sign * own[1]
            self.m[slot] += sign * own[2]
            if self.m[slot] > 0:
                self._changed(slot, after)
        self.members[a].remove(item)
        self.members[b].append(item)
        self.n_clusters += int(self.n_items[b] == 0) - int(self.n_items[a] == 1)
        self.n_items[a] -= 1
        self.n_items[b] += 1
        if self.m[a] <= 0:
            self.alive[a] = False
            self.version[a] += 1

    def _changed(self, a: int, Q: float) -> None:
        self.lam[a] = self.counts[a] @ self.evidence.diagonals
        self.guess[a] = self.evidence.guess(self.gamma[a], self.lam[a])
        self.ln_gamma[a] = gammaln(self.m[a])
        self.Q[a] = Q
        self.version[a] += 1

    @property
    def slots(self) -> Ints:
        """The slots in which clusters live."""
        return np.flatnonzero(self.alive)


class Queue:
    """Pairs of clusters that wait to be merged, most promising first."""

    def __init__(self, partition: Partition, slack: float = SLACK):
        self.p = partition
        self.slack = 0.0 if partition.evidence.is_diagonal else slack
        self.near = 1e-9 if partition.evidence.is_diagonal else NEAR
        self.heap: list[tuple[float, int, int, int, int, float]] = []
        self.neighbours: list[set[int]] = [set() for _ in range(len(partition.m))]

    def add(self, a: Ints, b: Ints, gain: Floats, exact: Floats | None = None) -> None:
        """Pairs with guesses at their gains, or with exact ones and the Q that they lead to."""
        version = self.p.version
        Q = np.full(len(a), np.nan) if exact is None else exact
        for i, j, g, q in zip(a.tolist(), b.tolist(), gain.tolist(), Q.tolist(), strict=True):
            self.neighbours[i].add(j)
            self.neighbours[j].add(i)
            key = -g if exact is not None else -(g + self.slack)
            heapq.heappush(self.heap, (key, i, j, int(version[i]), int(version[j]), q))

    def _fresh(self, entry: tuple[float, int, int, int, int, float]) -> bool:
        _, i, j, of_i, of_j, _ = entry
        return bool(self.p.version[i] == of_i and self.p.version[j] == of_j)

    def run(self, fewest: int, most: int) -> None:
        """Merge while that gains, down to `fewest` clusters; on until there are `most`, whether it gains or not."""
        p = self.p
        batch = 1 if self.p.evidence.is_diagonal else 8
        while self.heap:
            if -self.heap[0][0] <= -self.near and p.n_clusters <= most:
                return
            entry = heapq.heappop(self.heap)
            if not self._fresh(entry) or not p.may(entry[1], entry[2]):
                continue
            key, i, j, _, _, Q = entry
            if np.isnan(Q):  # with a few more that are about as good
                some = [(i, j)]
                while len(some) < batch and self.heap and self.heap[0][0] < key + self.slack:
                    other = heapq.heappop(self.heap)
                    if not self._fresh(other) or not p.may(other[1], other[2]):
                        continue
                    if np.isnan(other[5]):
                        some.append((other[1], other[2]))
                    else:
                        heapq.heappush(self.heap, other)
                        break
                a, b = np.array(some).T
                gain, Qs = p.gains(a, b)
                self.add(a, b, gain, Qs)
                continue
            one = p.counts_as_one(i, j)
            if (-key > 0 and not (one and p.n_clusters <= fewest)) or (one and p.n_clusters > most):
                self._merge(i, j, -key, Q)

    def _merge(self, i: int, j: int, gain: float, Q: float) -> None:
        near = self.neighbours
        self.p.merge(i, j, gain, Q)
        both = (near[i] | near[j]) - {i, j}
        for x in near[j]:
            near[x].discard(j)
        near[j] = set()
        others = np.array(sorted(x for x in both if self.p.alive[x] and self.p.may(i, x)), np.int64)
        if not len(others):
            near[i] = set()
            return
        gains = self.p.guesses(i, others)
        if len(others) > NEIGHBOURS:
            keep = np.sort(np.argsort(-gains, kind="stable")[:NEIGHBOURS])
            others = others[keep]
            gains = gains[keep]
        for x in near[i].difference(others.tolist()):
            near[x].discard(i)
        near[i] = set()
        self.add(np.full(len(others), i), others, gains)

    def look(self, worst: float, k: int = LOOK) -> int:
        """Add the pairs of all clusters that may gain more than `worst`, by a guess; at most k for each.

        How many of them are no neighbours yet is returned.
        """
        p = self.p
        slots = self.p.slots
        found = 0
        for a, b, gain in best_pairs(p, slots, k):
            for part in range(0, len(a), PAIRS):
                i, j = (x[part : part + PAIRS][gain[part : part + PAIRS] > worst] for x in (a, b))
                near = zip(i.tolist(), j.tolist(), strict=True)
                new = np.array([y not in self.neighbours[x] and p.may(x, y) for x, y in near], bool)
                i = i[new]
                j = j[new]
                if len(i):
                    self.add(i, j, p.guesses(i, j))
                    found += len(i)
        return found

    def verify(self) -> bool:
        """Add the pairs that gain, exactly, among those of each cluster and the one that a guess finds the best.

        Where sizes of sessions differ and speakers are far apart, guesses may be wrong by tens of nats.
        """
        found = False
        for a, b, _ in best_pairs(self.p, self.p.slots, 1):
            may = np.array([self.p.may(i, j) for i, j in zip(a.tolist(), b.tolist(), strict=True)], bool)
            gain, Q = self.p.gains(a[may], b[may])
            good = gain > 0
            self.add(a[may][good], b[may][good], gain[good], Q[good])
            found = found or bool(good.any())
        return found


def best_pairs(p: Partition, slots: Ints, k: int) -> Iterator[tuple[Ints, Ints, Floats]]:
    """The k clusters with which each cluster gains most, by guesses: (a, b, gain), some of them at a time."""
    k = min(k, len(slots) - 1)
    if k < 1:
        return
    pairs = p.evidence.pairs(p.gamma[slots], p.lam[slots])
    slots = slots[pairs.order]
    for rows in pairs.blocks():
        a = slots[rows[0] : rows[1]]
        gain = p.weight * (pairs.block(rows) - p.guess[a][:, None] - p.guess[slots])
        gain += gammaln(p.m[a][:, None] + p.m[slots]) - p.ln_gamma[a][:, None] - p.ln_gamma[slots] - p.ln_alpha
        gain[np.arange(len(a)), np.arange(*rows)] = -np.inf
        if (p.owner[slots] >= 0).any():
            gain[(p.owner[a] >= 0)[:, None] & (p.owner[slots] >= 0)] = -np.inf
        best = np.argpartition(-gain, k - 1, axis=1)[:, :k]
        value = np.take_along_axis(gain, best, axis=1)
        yield np.repeat(a, k), slots[best].reshape(-1), value.reshape(-1)


def merge_all(queue: Queue, fewest: int, most: int) -> None:
    """Merge neighbours, look for pairs that were missed, and so on until there are none."""
    queue.run(fewest, most)
    for _ in range(100):
        needed = queue.p.n_clusters > most
        before = queue.p.n_clusters
        if not queue.look(-np.inf if needed else -NEAR):
            break
        queue.run(fewest, most)
        if before == queue.p.n_clusters and not needed:
            break
    while not queue.p.evidence.is_diagonal and queue.p.n_clusters > fewest and queue.verify():
        before = queue.p.n_clusters
        queue.run(fewest, most)
        if before == queue.p.n_clusters:
            break


def neighbours(rows: Ints, scores: Floats) -> tuple[Ints, Ints, Floats]:
    """Pairs (a < b) among the k best (n, k) of each item, each pair once, with its score."""
    n, k = rows.shape
    a = np.repeat(np.arange(n), k)
    b = rows.reshape(-1)
    s = scores.reshape(-1)
    other = a != b
    a = a[other]
    b = b[other]
    s = s[other]
    low = np.minimum(a, b)
    high = np.maximum(a, b)
    _, first = np.unique(low * n + high, return_index=True)
    return low[first], high[first], s[first]


def without_hubs(a: Ints, b: Ints, s: Floats, n: int, most: int = NEIGHBOURS) -> Ints:
    """Which pairs to keep: for each item those among its `most` best, from either side."""
    keep = np.ones(len(a), bool)
    for mine in (a, b):
        order = np.lexsort((-s, mine))
        rank = np.arange(len(a)) - np.searchsorted(mine[order], mine[order])
        keep[order[rank >= most]] = False
    return np.flatnonzero(keep)
