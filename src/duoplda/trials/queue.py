"""Merging clusters while that raises the posterior of the partition.

The Ewens prior over partitions, with p the probability that two random sessions are of one speaker, makes a merge gain

    gain(a, b) = weight [Q(a + b) - Q(a) - Q(b)] + ln[Gamma(m_a + m_b) / (Gamma(m_a) Gamma(m_b))] - ln[(1 - p) / p]

where m counts sessions. The best pair is merged while its gain is positive: there is no threshold to tune. Pairs wait
in a heap by a guess at their gain; the exact one is computed when a pair comes to the top, and decides. Only pairs of
neighbours wait. When no pair is left that gains, all clusters are compared again, for pairs that were missed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from duoplda.arrays import to_numpy
from duoplda.data.labels import Ints
from duoplda.trials.evidence import BinnedSets, DiagonalEvidence, Floats, guessed_evidence, guessed_ratios
from duoplda.trials.sides import Sides

# Guesses at gains near the decision are wrong by at most this many nats: pairs whose guess is below minus this are not
# computed exactly.
DOUBT = 3.0
# Neighbours that a cluster has at most. Without a limit, large clusters would be neighbours of nearly all others.
MOST_NEIGHBOURS = 48
# Multiplications for which all exact gains of a kind are computed, instead of those that guesses find promising: a few
# seconds of one core, which a person who waits for the clusters of a thousand sessions does not notice.
MOST_EXACT_WORK = 1e10


class Objective(NamedTuple):
    """The log posterior of partitions, which clustering raises, and limits on the number of speakers."""

    ln_alpha: float  # ln[(1 - p) / p]
    weight: float  # of the log likelihood ratios
    fewest: int  # speakers
    most: int

    def gain(self, ratio: Floats | float, m: Floats | float, n: Floats | float) -> Floats:
        """The gain of joining sets of m and n sessions, whose ln likelihood ratio is `ratio`."""
        prior = np.asarray(gammaln(m + n) - gammaln(m) - gammaln(n) - self.ln_alpha)
        return np.asarray(self.weight * ratio + prior)


class Merge(NamedTuple):
    """Two clusters that became one."""

    first: int  # an item, or len(items) + t for the cluster that merge t made; so is second
    second: int
    gain: float
    sessions: float
    a: int  # the slots of the two, the first of which has both
    b: int
    Q: float
    n_clusters: int  # that are left


@dataclass(frozen=True, eq=False)
class Items:
    """The items that are put into clusters: sessions, or groups of sessions that are known to be of one speaker."""

    evidence: DiagonalEvidence
    counts: Floats  # (n, C)
    gamma: Floats  # (n, ny) in the basis of the evidence
    lam: Floats  # (n, ny)
    Q: Floats  # (n,) exact
    guess: Floats  # (n,) guesses at Q
    m: Floats  # (n,) sessions
    owner: Ints  # (n,) the known speaker that an item stands for, or -1
    cannot: dict[int, set[int]]  # items that are not to be together with an item

    @staticmethod
    def of(
        evidence: DiagonalEvidence, sides: Sides, owner: Ints, cannot: dict[int, set[int]], discount: float
    ) -> Items:
        """Each side as an item with the evidence Q(discount n, discount gamma)."""
        counts = discount * evidence.counts(sides)
        gamma = discount * (to_numpy(sides.gamma) @ evidence.basis)
        lam = counts @ evidence.diagonals
        m = sides.n_sessions.astype(np.float64)  # not discounted: the prior counts sessions
        guess = guessed_evidence(gamma, lam)
        return Items(evidence, counts, gamma, lam, evidence.exact(counts, gamma), guess, m, owner, cannot)


class Partition:
    """Clusters of items, which can be merged and from which items can be taken; each lives in a slot.

    Clusters of two known speakers are never merged, nor are those in each other's `apart`. A known speaker without
    items does not count as a cluster (`n_clusters`).
    """

    def __init__(self, items: Items, objective: Objective):
        n = len(items.m)
        self.items = items
        self.evidence = items.evidence
        self.objective = objective
        self.counts = items.counts.copy()
        self.gamma = items.gamma.copy()
        self.m = items.m.copy()
        self.Q = items.Q.copy()
        self.lam = items.lam.copy()
        self.guess = items.guess.copy()
        self.owner = items.owner.copy()
        self.alive = np.ones(n, bool)
        self.version = np.zeros(n, np.int64)  # changes whenever a cluster does, so that old guesses are recognised
        self.members: list[list[int]] = [[i] for i in range(n)]
        self.where = np.arange(n)  # the slot of each item
        self.n_items = (items.owner < 0).astype(np.int64)  # of a cluster, known speakers not counted
        self.n_clusters = int(self.n_items.sum())
        self.merges: list[Merge] = []
        self.name = np.arange(n)  # of the clusters in `merges`
        self.set_apart()

    def set_apart(self) -> None:
        """Keep clusters apart that have items which are not to be together."""
        self.apart: dict[int, set[int]] = {}
        for i, others in self.items.cannot.items():
            self.apart.setdefault(int(self.where[i]), set()).update(self.where[list(others)].tolist())

    @property
    def slots(self) -> Ints:
        """The slots in which clusters live."""
        return np.flatnonzero(self.alive)

    @property
    def log_posterior(self) -> float:
        """Of the partition, relative to each item being another speaker."""
        slots = self.slots
        evidence = self.objective.weight * (self.Q[slots].sum() - self.items.Q.sum())
        prior = gammaln(self.m[slots]).sum() - gammaln(self.items.m).sum()
        return float(evidence + prior - self.objective.ln_alpha * (len(self.items.m) - len(slots)))

    def guesses(self, a: int | Ints, b: Ints) -> Floats:
        """(k,) guesses at the gains of cluster a (or of each of some) and others."""
        Q = guessed_evidence(self.gamma[a] + self.gamma[b], self.lam[a] + self.lam[b])
        return self.objective.gain(Q - self.guess[a] - self.guess[b], self.m[a], self.m[b])

    def gains(self, a: Ints, b: Ints) -> tuple[Floats, Floats]:
        """(k,) exact gains of pairs, and Q of what they would become."""
        Q = self.evidence.exact(self.counts[a] + self.counts[b], self.gamma[a] + self.gamma[b])
        return self.objective.gain(Q - self.Q[a] - self.Q[b], self.m[a], self.m[b]), Q

    def may_merge(self, a: int, b: int) -> bool:
        both_known = self.owner[a] >= 0 and self.owner[b] >= 0
        return not both_known and b not in self.apart.get(a, ())

    def merge(self, a: int, b: int, gain: float, Q: float) -> None:
        """Cluster b becomes a part of a; both together have the evidence Q."""
        self.n_clusters -= int(self.n_items[a] > 0 and self.n_items[b] > 0)
        self.n_items[a] += self.n_items[b]
        self.n_items[b] = 0
        self.counts[a] += self.counts[b]
        self.gamma[a] += self.gamma[b]
        self.m[a] += self.m[b]
        names = int(self.name[a]), int(self.name[b])
        self.merges.append(Merge(*names, gain, float(self.m[a]), a, b, Q, self.n_clusters))
        self.name[a] = len(self.name) + len(self.merges) - 1
        self.owner[a] = max(self.owner[a], self.owner[b])
        self.where[self.members[b]] = a
        self.members[a] += self.members[b]
        self.members[b] = []
        self._changed(a, Q)
        self.alive[b] = False
        self.version[b] += 1
        for other in self.apart.pop(b, ()):
            self.apart[other].discard(b)
            self.apart[other].add(a)
            self.apart.setdefault(a, set()).add(other)

    def after(self, n_merges: int, ln_alpha: float) -> Partition:
        """The partition after the first `n_merges` merges, with another prior."""
        p = Partition(self.items, self.objective._replace(ln_alpha=ln_alpha))
        for merge in self.merges[:n_merges]:
            p.merge(merge.a, merge.b, merge.gain + self.objective.ln_alpha - ln_alpha, merge.Q)
        return p

    def move(self, part: list[int], b: int, Q_without: float, Q_with: float) -> None:
        """Take items from their cluster to cluster b, or to a new one if b is -1; then the two have these Q.

        `apart` is not kept up to date: `set_apart` does that after all moves.
        """
        a = int(self.where[part[0]])
        if b < 0:
            b = int(np.flatnonzero(~self.alive)[0])
        self.fill(a, [i for i in self.members[a] if i not in part], Q_without)
        self.fill(b, self.members[b] + part, Q_with)

    def fill(self, slot: int, members: list[int], Q: float) -> None:
        """Make a cluster of these items, which have the evidence Q together."""
        items = self.items
        n_items = int((items.owner[members] < 0).sum())
        self.n_clusters += int(n_items > 0) - int(self.n_items[slot] > 0)
        self.n_items[slot] = n_items
        self.members[slot] = members
        self.where[members] = slot
        self.owner[slot] = items.owner[members].max(initial=-1)
        self.counts[slot] = items.counts[members].sum(axis=0)
        self.gamma[slot] = items.gamma[members].sum(axis=0)
        self.m[slot] = items.m[members].sum()
        self.alive[slot] = len(members) > 0
        self._changed(slot, Q)

    def _changed(self, slot: int, Q: float) -> None:
        self.lam[slot] = self.counts[slot] @ self.evidence.diagonals
        self.guess[slot] = guessed_evidence(self.gamma[slot], self.lam[slot])
        self.Q[slot] = Q
        self.version[slot] += 1


class PossibleMerge(NamedTuple):
    """Two clusters that wait to be merged. The heap takes the lowest key first."""

    key: float  # minus the gain: the exact one, or a guess that is too high rather than too low
    a: int
    b: int
    version_a: int
    version_b: int
    Q: float  # of both together; NaN: the gain is a guess


class Queue:
    """Pairs of clusters that wait to be merged, most promising first.

    `slack` is added to guesses: a pair whose guess is too low by no more than that is not overtaken by a worse one.
    """

    def __init__(self, partition: Partition, slack: float = 0.5):
        self.p = partition
        exact = partition.evidence.is_diagonal
        self.slack = 0.0 if exact else slack
        self.doubt = 1e-9 if exact else DOUBT
        self.heap: list[PossibleMerge] = []
        self.neighbours: list[set[int]] = [set() for _ in range(len(partition.m))]

    def add(self, a: Ints, b: Ints, gain: Floats, exact: Floats | None = None) -> None:
        """Add pairs with guesses at their gains, or with exact gains and the Q of both clusters together."""
        version = self.p.version
        Q = np.full(len(a), np.nan) if exact is None else exact
        keys = -(gain + self.slack) if exact is None else -gain
        for i, j, key, q in zip(a.tolist(), b.tolist(), keys.tolist(), Q.tolist(), strict=True):
            self.neighbours[i].add(j)
            self.neighbours[j].add(i)
            heapq.heappush(self.heap, PossibleMerge(key, i, j, int(version[i]), int(version[j]), q))

    def add_best(self, rows: Ints, ratios: Floats) -> None:
        """Add the pairs of each item with the k that score highest with it, (n, k), and their exact ratios.

        An item may be among the best of very many others: then the MOST_NEIGHBOURS best of its pairs are kept.
        """
        p = self.p
        n = len(rows)
        a = np.minimum(np.arange(n)[:, None], rows).reshape(-1)
        b = np.maximum(np.arange(n)[:, None], rows).reshape(-1)
        _, first = np.unique(a * n + b, return_index=True)
        first = first[a[first] != b[first]]
        a = a[first]
        b = b[first]
        ratio = ratios.reshape(-1)[first]
        keep = np.ones(len(a), bool)
        for item in (a, b):
            order = np.lexsort((-ratio, item))
            rank = np.arange(len(a)) - np.searchsorted(item[order], item[order])
            keep[order[rank >= MOST_NEIGHBOURS]] = False
        a = a[keep]
        b = b[keep]
        self.add(a, b, p.objective.gain(ratio[keep], p.m[a], p.m[b]), ratio[keep] + p.Q[a] + p.Q[b])

    def merge_all(self) -> None:
        """Merge while that gains, down to the fewest speakers, and while there are too many, gain or no gain."""
        _, _, fewest, most = self.p.objective
        self._merge_waiting()
        for _ in range(100):  # three or four times are usual
            too_many = self.p.n_clusters > most
            before = self.p.n_clusters
            if not self.look(-np.inf if too_many else -DOUBT):
                break
            self._merge_waiting()
            if before == self.p.n_clusters and not too_many:
                break
        while not self.p.evidence.is_diagonal and self.p.n_clusters > fewest and self._add_pairs_that_gain():
            before = self.p.n_clusters
            self._merge_waiting()
            if before == self.p.n_clusters:
                break

    def look(self, least: float, k: int = 4) -> bool:
        """Add the k best pairs of each cluster, by guesses, as far as these gain more than `least`.

        Pairs of neighbours are not added again. Returns whether any pair was added.
        """
        p = self.p
        added = False
        for a, b, gain in best_pairs(p, p.slots, k):
            good = np.flatnonzero(gain > least)
            pairs = zip(a[good].tolist(), b[good].tolist(), strict=True)
            new = good[[y not in self.neighbours[x] and p.may_merge(x, y) for x, y in pairs]]
            if len(new):
                self.add(a[new], b[new], p.guesses(a[new], b[new]))
                added = True
        return added

    def _add_pairs_that_gain(self) -> bool:
        """Add the pairs whose exact gain is positive, and return whether there were any.

        Where sizes of sessions differ and speakers are far apart, guesses may be wrong by tens of nats.
        """
        added = False
        for a, b, gain, Q in exact_pairs(self.p, self.p.slots):
            good = gain > 0
            self.add(a[good], b[good], gain[good], Q[good])
            added = added or bool(good.any())
        return added

    def _merge_waiting(self) -> None:
        """Merge the pairs that wait, as long as one may gain or there are too many clusters."""
        p = self.p
        _, _, fewest, most = p.objective
        while best := self._pop(np.inf if p.n_clusters > most else self.doubt):
            if np.isnan(best.Q):
                # The exact gain replaces the guess. Some guesses that are about as good go with it: several at a time
                # cost less than one by one, and most of them would come to the top next anyway.
                batch = [best]
                while len(batch) < 8 and (pair := self._pop(best.key + self.slack)):
                    if not np.isnan(pair.Q):
                        heapq.heappush(self.heap, pair)
                        break
                    batch.append(pair)
                a = np.array([pair.a for pair in batch])
                b = np.array([pair.b for pair in batch])
                self.add(a, b, *p.gains(a, b))
                continue
            one_less = p.n_items[best.a] > 0 and p.n_items[best.b] > 0
            gains = -best.key > 0 and not (one_less and p.n_clusters <= fewest)
            if gains or (one_less and p.n_clusters > most):
                self._merge(best)

    def _pop(self, limit: float) -> PossibleMerge | None:
        """The first pair with a key below a limit that is up to date and allowed; those before it are forgotten."""
        version = self.p.version
        while self.heap and self.heap[0].key < limit:
            pair = heapq.heappop(self.heap)
            current = version[pair.a] == pair.version_a and version[pair.b] == pair.version_b
            if current and self.p.may_merge(pair.a, pair.b):
                return pair
        return None

    def _merge(self, pair: PossibleMerge) -> None:
        """Merge two clusters. The new one has the neighbours of both, or if these are many the most promising."""
        near = self.neighbours
        i = pair.a
        j = pair.b
        self.p.merge(i, j, -pair.key, pair.Q)
        both = (near[i] | near[j]) - {i, j}
        for x in near[j]:
            near[x].discard(j)
        near[j] = set()
        others = np.array(sorted(x for x in both if self.p.alive[x] and self.p.may_merge(i, x)), np.int64)
        gains = self.p.guesses(i, others)
        if len(others) > MOST_NEIGHBOURS:
            keep = np.sort(np.argsort(-gains, kind="stable")[:MOST_NEIGHBOURS])
            others = others[keep]
            gains = gains[keep]
        for x in near[i].difference(others.tolist()):
            near[x].discard(i)
        near[i] = set()
        self.add(np.full(len(others), i), others, gains)


def best_pairs(p: Partition, slots: Ints, k: int) -> Iterator[tuple[Ints, Ints, Floats]]:
    """The k clusters with which each cluster gains most, by guesses: (a, b, gain), some of them at a time."""
    k = min(k, len(slots) - 1)
    if k < 1:
        return
    binned = BinnedSets(p.gamma[slots], p.lam[slots], p.evidence.mean)
    slots = slots[binned.order]
    known = p.owner[slots] >= 0
    for rows, ratios in guessed_ratios(binned, binned):
        a = slots[rows]
        gain = p.objective.gain(ratios, p.m[a][:, None], p.m[slots])
        gain[np.arange(len(a)), np.arange(rows.start, rows.stop)] = -np.inf
        gain[known[rows, None] & known] = -np.inf
        best = np.argpartition(-gain, k - 1, axis=1)[:, :k]
        value = np.take_along_axis(gain, best, axis=1)
        yield np.repeat(a, k), slots[best].reshape(-1), value.reshape(-1)


def every_pair_is_cheap(p: Partition, n_clusters: int) -> bool:
    """Whether the exact gains of all pairs of `n_clusters` clusters can be computed in seconds."""
    return n_clusters**2 / 2 * p.evidence.work_of_a_set <= MOST_EXACT_WORK


def exact_pairs(p: Partition, slots: Ints) -> Iterator[tuple[Ints, Ints, Floats, Floats]]:
    """Pairs of clusters that may be merged, with their exact gains and Q of both: (a, b, gain, Q), some at a time.

    Of few clusters these are all pairs, and of many those of each cluster with the 8 that guesses find the best.
    """
    k = len(slots)
    blocks: Iterator[tuple[Ints, Ints]]
    if every_pair_is_cheap(p, k):
        blocks = ((np.full(k - i - 1, slots[i]), slots[i + 1 :]) for i in range(k - 1))
    else:
        blocks = ((a, b) for a, b, guess in best_pairs(p, slots, 8))
    for a, b in blocks:
        allowed = [p.may_merge(i, j) for i, j in zip(a.tolist(), b.tolist(), strict=True)]
        a = a[allowed]
        b = b[allowed]
        gain, Q = p.gains(a, b)
        yield a, b, gain, Q
