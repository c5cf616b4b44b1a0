"""Items change clusters while that raises the posterior of the partition.

Merging never takes an item away from where it once went. Afterwards each item in turn is taken out of its cluster A
and put where it gains most: back, into another cluster B, or into one of its own (a gain of 0). Guesses for all items
and all clusters are matrix products; where they leave any doubt, exact gains decide.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from duoplda.data.labels import Ints
from duoplda.trials.evidence import Floats
from duoplda.trials.queue import NEAR, Items, Partition

SWEEPS = 10
ROWS = 1 << 22  # cells of a block of guesses


class Places:
    """Where items are, and where they might be."""

    def __init__(self, p: Partition, items: Items):
        self.p = p
        self.fixed = items.owner >= 0
        self.cannot = items.cannot
        self.counts = items.counts
        self.gamma = items.gamma
        self.m = items.m
        self.Q = items.Q
        self.lam = items.counts @ p.evidence.diagonals
        self.guess = p.evidence.guess(items.gamma, self.lam)
        _, kind = np.unique(np.column_stack([items.counts, items.m]), axis=0, return_inverse=True)
        self.kind: Ints = kind.reshape(-1)  # items of one kind have the same counts
        self.known: tuple[Floats, Ints, Floats] | None = None  # the last result of `best`, while it holds
        self.where = np.empty(len(items.m), np.int64)
        for slot in p.slots.tolist():
            self.where[p.members[slot]] = slot

    def prior(self, i: int | Ints, rest: Floats) -> Floats:
        """What the prior adds when item i joins a cluster of `rest` sessions."""
        return gammaln(self.m[i] + rest) - gammaln(rest) - gammaln(self.m[i]) - self.p.ln_alpha

    def best(self) -> tuple[Floats, Ints, Floats]:
        """(n,) guesses: the gain of staying, the best other cluster (-1: alone) and the gain there."""
        p = self.p
        n = len(self.m)
        slots = self.p.slots
        stay = np.zeros(n)
        other = np.full(n, -1)
        gain = np.zeros(n)
        column = np.full(len(p.m), -1)
        column[slots] = np.arange(len(slots))
        rest = p.m[self.where] - self.m
        lone = rest <= 0
        A = self.where[~lone]
        i = np.flatnonzero(~lone)
        if len(i):
            Q = p.evidence.guess(p.gamma[A] - self.gamma[i], np.maximum(p.lam[A] - self.lam[i], 0.0))
            stay[i] = p.weight * (p.guess[A] - Q - self.guess[i]) + self.prior(i, rest[i])
        for kind in range(int(self.kind.max()) + 1):
            of = np.flatnonzero(self.kind == kind)
            step = max(1, ROWS // max(len(slots), 1))
            for rows in (of[t : t + step] for t in range(0, len(of), step)):
                joined = p.evidence.joined(p.gamma[slots], p.lam[slots], self.gamma[rows], self.lam[rows[0]]).T
                value = p.weight * (joined - p.guess[slots] - self.guess[rows][:, None])
                value += self.prior(rows[0], p.m[slots])[None, :]
                value[np.arange(len(rows)), column[self.where[rows]]] = -np.inf
                for row, i in enumerate(rows.tolist() if self.cannot else ()):
                    value[row, column[sorted(self._barred(i))]] = -np.inf
                top = value.argmax(axis=1)
                best = value[np.arange(len(rows)), top]
                better = best > 0
                other[rows[better]] = slots[top[better]]
                gain[rows[better]] = best[better]
                if len(slots) > 1:  # the runner-up of an item that is best on its own is where it would go else
                    alone = lone[rows] & ~better
                    other[rows[alone]] = slots[top[alone]]
                    gain[rows[alone]] = best[alone]
        return stay, other, gain

    def _barred(self, i: int) -> set[int]:
        """The clusters that hold an item which i must not be with."""
        return {int(self.where[j]) for j in self.cannot.get(i, ())}

    def exact(self, i: int, slot: int, inside: bool) -> tuple[float, float]:
        """The exact gain of item i in a cluster that has it (`inside`), or not; and the Q of the other state of it."""
        p = self.p
        sign = -1.0 if inside else 1.0
        rest = float(p.m[slot] - self.m[i]) if inside else float(p.m[slot])
        if rest <= 0:
            return 0.0, 0.0
        counts = p.counts[slot] + sign * self.counts[i]
        gamma = p.gamma[slot] + sign * self.gamma[i]
        Q = float(p.evidence.exact(counts[None], gamma[None])[0])
        ratio = sign * (Q - p.Q[slot]) - self.Q[i]
        return p.weight * ratio + float(self.prior(i, np.array(rest))), Q

    def sweep(self, fewest: int, most: int) -> int:
        """Move the items that gain by it; how many did."""
        p = self.p
        moved = 0
        stay, other, gain = self.known = self.best()
        doubt = np.maximum(gain, 0.0) - stay
        limit = 1e-9 if p.evidence.is_diagonal else -NEAR / 2
        order = np.flatnonzero((doubt > limit) & ~self.fixed)
        for i in order[np.argsort(-doubt[order], kind="stable")].tolist():
            A = int(self.where[i])
            B = int(other[i])
            lone = p.m[A] - self.m[i] <= 0
            fewer = int(p.n_items[A] == 1)  # one cluster, if this item leaves it
            more = int(B < 0 or p.n_items[B] == 0)  # one, if it goes there
            if (B < 0 and lone) or not fewest <= p.n_clusters + more - fewer <= most:
                continue
            if B >= 0 and (not p.alive[B] or B == A or B in self._barred(i)):
                continue
            here, without = self.exact(i, A, True)
            there, together = self.exact(i, B, False) if B >= 0 else (0.0, 0.0)
            if B >= 0 and there < 0.0 and not lone and p.n_clusters + 1 - fewer <= most:
                B = -1
                there = 0.0
            if there - here > 1e-9:
                self._move(i, A, B, without, together)
                moved += 1
        if moved:
            self.known = None
        return moved

    def _move(self, i: int, A: int, B: int, without: float, together: float) -> None:
        p = self.p
        if B < 0:
            B = int(np.flatnonzero(~p.alive)[0])
            together = float(self.Q[i])
            p.open(B)
        p.move(i, A, B, (self.counts[i], self.gamma[i], float(self.m[i])), (without, together))
        self.where[i] = B


def refine(places: Places, fewest: int, most: int) -> int:
    """Sweeps until nothing moves; how many moves there were."""
    total = 0
    for _ in range(SWEEPS):
        moved = places.sweep(fewest, most)
        total += moved
        if not moved:
            break
    places.p.set_apart(places.cannot)
    return total
