"""Clusters of a million sessions on a GPU: many merges at a time.

As in `duoplda.trials.queue`, with two differences. In each round all pairs are merged that are each other's best and
gain more than a share of what the best pair of all gains. And guesses decide (`duoplda.trials.evidence`): they are
exact where all sessions are of one type, and else some tenths of a nat away near the decision.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from duoplda.arrays import put, to_numpy
from duoplda.data.labels import Ints
from duoplda.trials.evidence import NODES, DiagonalEvidence, Floats, lagrange
from duoplda.trials.sides import Sides

SHARE = 0.3  # of the best gain that a merge must have to be in a round
BYTES = 1 << 32  # of a block of guesses
EDGES = 1 << 19  # that are guessed at a time
LOOK = 6  # neighbours that a look at all clusters adds to each
ROUNDS = 10_000
GROUP = 64  # columns whose maximum is taken first
NEVER = -1e9


@contextmanager
def _tensor_cores() -> Iterator[None]:
    """Products of single precision may be rounded to ten bits: they only find neighbours."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Rounds:
    """Clusters in tensors: gamma and lambda (n, ny) in the basis of the evidence, m (n,) sessions."""

    def __init__(self, sides: Sides, evidence: DiagonalEvidence, ln_alpha: float, weight: float):
        import torch

        self.torch = torch
        self.ln_alpha = ln_alpha
        self.weight = weight
        like = sides.gamma
        self.gamma = (like @ put(evidence.basis, like)).float()
        self.counts = put(sides.counts.astype(np.float32), like).float()
        self.diagonals, self.g = (put(x, like).float() for x in (evidence.diagonals, evidence.mean))
        self.m = self.counts.sum(dim=1)
        self.label = torch.arange(len(self.m), device=like.device)  # the cluster of each item
        self.n_items = len(self.m)

    # -- guesses

    def guess(self, gamma: Any, lam: Any) -> Any:
        s = 1.0 + lam
        return ((gamma * gamma / s) - s.log()).sum(dim=1) / 2

    def gains(self, a: Any, b: Any) -> Any:
        """(k,) guesses at the gains of pairs."""
        out = []
        for i, j in zip(a.split(EDGES), b.split(EDGES), strict=True):
            counts = self.counts[i] + self.counts[j]
            Q = self.guess(self.gamma[i] + self.gamma[j], counts @ self.diagonals)
            out.append(self.weight * (Q - self.Q[i] - self.Q[j]))
        m = self.m[a].double()
        n = self.m[b].double()
        prior = (m + n).lgamma() - m.lgamma() - n.lgamma() - self.ln_alpha
        return self.torch.cat(out) + prior.float()

    def refresh(self) -> None:
        """Q of all clusters, after a change."""
        parts = zip(self.gamma.split(EDGES), self.counts.split(EDGES), strict=True)
        self.Q = self.torch.cat([self.guess(g, c @ self.diagonals) for g, c in parts])

    # -- neighbours

    def look(self, k: int) -> tuple[Any, Any]:
        """GuessedPairs of each cluster and the k with which it gains most, by the products of `evidence.GuessedPairs`.

        The terms of a alone are columns of the same product, a few for each bin of b. Terms that are the same for all
        b are left out.
        """
        torch = self.torch
        n = len(self.m)
        k = min(k, n - 1)
        lam = self.counts @ self.diagonals
        s = (lam.sum(dim=1) / self.g.sum()).clamp(min=1e-12)
        order = s.argsort()
        gamma, lam, s, Q, m = (x[order] for x in (self.gamma, lam, s, self.Q, self.m))
        level, size = torch.unique_consecutive(s.log2().floor(), return_counts=True)
        edges = np.append(0, np.cumsum(to_numpy(size))).tolist()
        t = np.cos(np.pi * (np.arange(NODES) + 0.5) / NODES)
        nodes = [2.0**x * (1.5 + 0.5 * t) for x in level.tolist()]
        a = []
        b = []
        for own, (start, stop) in enumerate(pairwise(edges)):
            right = self._right(gamma, lam, s, Q, nodes, edges, own)
            step = max(1, BYTES // (4 * len(right)))
            for i in range(start, stop, step):
                rows = slice(i, min(i + step, stop))
                out = self._left(gamma[rows], lam[rows], s[rows], nodes, own) @ right.T
                self._add_prior(out, m[rows], m)
                out[torch.arange(len(out)), torch.arange(rows.start, rows.stop)] = -torch.inf
                a.append(order[rows].repeat_interleave(k))
                b.append(order[highest(out, k).reshape(-1)])
        return torch.cat(a), torch.cat(b)

    def _right(self, gamma: Any, lam: Any, s: Any, Q: Any, nodes: Any, edges: Any, own: int) -> Any:
        """Of all b, for the nodes of a's bin; behind them are rows for nobody, to fill the last group."""
        torch = self.torch
        parts = []
        alone = []
        for x in nodes[own]:
            D = 1 / (1.0 + float(x) * self.g + lam)
            parts.append(gamma * D)
            alone.append((gamma * gamma * D + D.log()).sum(dim=1) / 2 - Q)
        of_a = torch.zeros((len(s), NODES * len(nodes)), device=s.device)
        for j, others in enumerate(nodes):
            of = slice(edges[j], edges[j + 1])
            of_a[of, NODES * j : NODES * (j + 1)] = torch.stack(lagrange(s[of], others), dim=1)
        out = torch.cat([*parts, torch.stack(alone, dim=1), of_a], dim=1)
        nobody = torch.zeros((-len(out) % GROUP, out.shape[1]), device=out.device)
        nobody[:, len(parts) * gamma.shape[1] :][:, :NODES] = NEVER
        return torch.cat([out, nobody])

    def _left(self, gamma: Any, lam: Any, s: Any, nodes: Any, own: int) -> Any:
        torch = self.torch
        seen = self.g > 1e-9 * self.g.max()
        worth = torch.where(seen, lam / torch.where(seen, self.g, 1.0), s[:, None])
        parts = [x * gamma for x in lagrange(worth, nodes[own])]
        alone = [(gamma * gamma / (1.0 + float(x) * self.g + lam)).sum(dim=1) / 2 for of in nodes for x in of]
        return torch.cat([*parts, torch.stack([*lagrange(s, nodes[own]), *alone], dim=1)], dim=1)

    def _add_prior(self, out: Any, m: Any, others: Any) -> None:
        """What depends on b: ln Gamma(m_a + m_b) - ln Gamma(m_b), where some cluster has more than one session."""
        torch = self.torch
        if float(others.max()) <= 1 and self.weight == 1:
            return
        out *= self.weight
        n = others.double()
        for mine in torch.unique(m).tolist():
            which = (m == mine).nonzero()[:, 0]
            out[which, : len(n)] += ((n + mine).lgamma() - n.lgamma()).float()

    # -- rounds

    def run(self, a: Any, b: Any) -> None:
        """Merge neighbours in rounds until none of them gains."""
        torch = self.torch
        n = len(self.m)
        a, b = self._pairs(a, b, n)
        gain = self.gains(a, b)
        for _ in range(ROUNDS):
            good = gain > 0
            a = a[good]
            b = b[good]
            gain = gain[good]
            if not len(a):
                return
            best = torch.full((n,), -torch.inf, device=gain.device)
            best.scatter_reduce_(0, a, gain, "amax")
            best.scatter_reduce_(0, b, gain, "amax")
            mutual = (gain == best[a]) & (gain == best[b]) & (gain > SHARE * gain.max())
            where = mutual.nonzero()[:, 0]
            first = torch.full((n,), len(gain), device=gain.device)  # where gains are equal, the first pair
            first.scatter_reduce_(0, a[where], where, "amin")
            first.scatter_reduce_(0, b[where], where, "amin")
            where = where[(first[a[where]] == where) & (first[b[where]] == where)]
            i = a[where]
            j = b[where]
            self.gamma[i] += self.gamma[j]
            self.counts[i] += self.counts[j]
            self.m[i] += self.m[j]
            self.Q[i] = self.guess(self.gamma[i], self.counts[i] @ self.diagonals)
            to = torch.arange(n, device=a.device)
            to[j] = i
            changed = torch.zeros(n, dtype=torch.bool, device=a.device)
            changed[i] = True
            self.label = to[self.label]
            stale = changed[to[a]] | changed[to[b]]
            x, y = self._pairs(to[a[stale]], to[b[stale]], n)
            rest = ~stale
            a = torch.cat([a[rest], x])
            b = torch.cat([b[rest], y])
            gain = torch.cat([gain[rest], self.gains(x, y)])

    def _pairs(self, a: Any, b: Any, n: int) -> tuple[Any, Any]:
        """Each pair once, and no cluster with itself."""
        torch = self.torch
        key = torch.unique((torch.minimum(a, b) * n + torch.maximum(a, b))[a != b])
        return torch.div(key, n, rounding_mode="floor"), key % n

    def places(self, gamma: Any, counts: Any, m: Any, Q: Any) -> tuple[Any, Any, Any]:
        """Of items (n,): the gain of being in their cluster, the best other one, and the gain there."""
        torch = self.torch
        n = len(m)
        lam = self.counts @ self.diagonals
        own = self.label
        rest = self.m[own] - m
        without = self.guess(self.gamma[own] - gamma, ((self.counts[own] - counts) @ self.diagonals).clamp(min=0.0))
        stay = self.weight * (self.Q[own] - without - Q) + self._prior(m, rest)
        stay = torch.where(rest > 0, stay, 0.0)
        other = torch.full((n,), -1, device=Q.device)
        gain = torch.full((n,), -torch.inf, device=Q.device)
        kinds, which = torch.unique(torch.cat([counts, m[:, None]], dim=1), dim=0, return_inverse=True)
        for kind in range(len(kinds)):
            D = 1 / (1.0 + lam + kinds[kind, :-1] @ self.diagonals)
            right = torch.cat([self.gamma * D, D / 2], dim=1)
            alone = (self.gamma * self.gamma * D + D.log()).sum(dim=1) / 2 - self.Q
            alone = self.weight * alone + self._prior(kinds[kind, -1], self.m)
            for rows in (which == kind).nonzero()[:, 0].split(max(1, BYTES // (4 * len(self.m)))):
                value = self.weight * (torch.cat([gamma[rows], gamma[rows] ** 2], dim=1) @ right.T) + alone
                value[torch.arange(len(rows)), own[rows]] = -torch.inf
                best = value.max(dim=1)
                other[rows] = best.indices
                gain[rows] = best.values - self.weight * Q[rows]
        return stay, other, gain

    def _prior(self, m: Any, rest: Any) -> Any:
        a = m.double()
        b = rest.double()
        return ((a + b).lgamma() - a.lgamma() - b.lgamma() - self.ln_alpha).float()

    def compact(self) -> None:
        """Forget the clusters that have become part of others."""
        used, self.label = self.torch.unique(self.label, return_inverse=True)
        self.gamma = self.gamma[used]
        self.counts = self.counts[used]
        self.m = self.m[used]


def highest(out: Any, k: int) -> Any:
    """(n, k) the columns of the k highest values of each row: those of groups first, then inside the best groups."""
    if out.shape[1] <= 2 * k * GROUP:
        return out.topk(k, dim=1).indices
    groups = out.view(len(out), -1, GROUP)
    best = groups.amax(dim=2).topk(k, dim=1).indices  # (n, k)
    inside = groups.gather(1, best[:, :, None].expand(-1, -1, GROUP)).reshape(len(out), -1)
    top = inside.topk(k, dim=1).indices
    return best.gather(1, top // GROUP) * GROUP + top % GROUP


@dataclass(frozen=True, eq=False)
class Found:
    """What rounds find, on the host; clusters are 0 .. k - 1."""

    log_posterior: float
    label: Ints  # (n,) the cluster of each item
    sessions: Ints  # (k,)
    support: Floats  # (k,)
    weakest: Floats  # (k,) what a cluster would lose with the item that fits least; infinite for one item
    nearest: Ints  # (k,) the cluster with which a merge gains most, -1: none
    merge: Floats  # (k,) that gain
    runner_up: Ints  # (n,) the second-best cluster of each item, -1: one of its own
    margin: Floats  # (n,) by how much that is worse
    means: Floats  # (k, ny) of the speaker factors


def find(sides: Sides, evidence: DiagonalEvidence, ln_alpha: float, weight: float, candidates: int) -> Found:
    """Merge sides, the items, in rounds until no pair of clusters gains."""
    with _tensor_cores():
        rounds = Rounds(sides, evidence, ln_alpha, weight)
        rounds.refresh()
        items = rounds.gamma.clone(), rounds.counts.clone(), rounds.m.clone(), rounds.Q.clone()
        for k in [candidates, *[LOOK] * 20]:
            before = len(rounds.m)
            rounds.run(*rounds.look(k))
            rounds.compact()
            rounds.refresh()
            if len(rounds.m) in (before, 1):
                break
        return _answer(rounds, evidence, *items)


def _answer(r: Rounds, evidence: DiagonalEvidence, gamma: Any, counts: Any, m: Any, Q: Any) -> Found:
    torch = r.torch
    K = len(r.m)
    n = len(m)
    inside = torch.zeros(K, device=Q.device, dtype=torch.float64).index_add_(0, r.label, Q.double())
    support = r.Q.double() - inside
    nearest = torch.full((K,), -1, device=Q.device)
    merge = torch.full((K,), -torch.inf, device=Q.device)
    if K > 1:
        a, b = r.look(1)
        nearest[a] = b
        merge[a] = r.gains(a, b)
    stay, other, gain = r.places(gamma, counts, m, Q)
    alone = r.m[r.label] == m
    second = torch.where(gain > 0, gain, torch.where(alone, gain, 0.0))
    other = torch.where((gain > 0) | alone, other, -1)
    weakest = torch.full((K,), torch.inf, device=Q.device)
    weakest.scatter_reduce_(0, r.label[~alone], stay[~alone], "amin")
    means = (r.gamma / (1.0 + r.counts @ r.diagonals)).double() @ put(evidence.basis.T.copy(), r.gamma.double())
    total = r.weight * float(support.sum()) + float(r.m.double().lgamma().sum() - m.double().lgamma().sum())
    total -= r.ln_alpha * (n - K)
    of_clusters = (r.m.long(), support, weakest.double(), nearest, merge.double())
    found = (r.label, *of_clusters, other, (stay - second).double(), means)
    return Found(total, *map(to_numpy, found))
