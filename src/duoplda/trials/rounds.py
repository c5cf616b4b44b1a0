"""Clusters of a million sessions on a GPU: many merges at a time.

As in `duoplda.trials.queue`, with two differences. In each round all pairs are merged that are each other's best and
gain more than a share of what the best pair of all gains. And guesses decide (`duoplda.trials.evidence`): they are
exact where all sessions are of one type, and else perhaps several nats away.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from duoplda.arrays import Array, put, to_numpy
from duoplda.trials.evidence import (
    BinnedSets,
    DiagonalEvidence,
    guessed_evidence,
    guessed_joins,
    guessed_ratios,
)
from duoplda.trials.queue import Objective
from duoplda.trials.sides import Sides

# Guesses of a block: 4 GiB in single precision. Products of fewer rows do not keep a large GPU busy.
GUESSES_AT_ONCE = 1 << 30
# Sets whose gamma and lambda are in memory at a time: 400 MB for 200 speaker factors
SETS_AT_ONCE = 1 << 19
# Columns of a block whose maximum is taken first; also what the columns are a multiple of, for faster products
COLUMNS_IN_GROUP = 64


class Rounds:
    """Items and clusters in tensors of single precision: gamma (n, ny) in the basis of the evidence, counts (n, C).

    At the beginning each item is a cluster.
    """

    def __init__(self, sides: Sides, evidence: DiagonalEvidence, objective: Objective):
        import torch

        self.torch = torch
        self.ln_alpha = objective.ln_alpha
        self.weight = objective.weight
        like = sides.gamma
        self.basis = put(evidence.basis, like)
        self.diagonals = put(evidence.diagonals, like).float()
        self.session_lam = put(evidence.mean, like).float()
        self.item_gamma = (like @ self.basis).float()
        self.item_counts = put(evidence.counts(sides), like).float()
        self.item_m = put(sides.n_sessions, like).float()
        self.gamma = self.item_gamma.clone()
        self.counts = self.item_counts.clone()
        self.m = self.item_m.clone()
        self.label = torch.arange(len(self.m), device=like.device)  # the cluster of each item
        self.item_Q = self.guess(self.gamma, self.counts)
        self.Q = self.item_Q.clone()

    def guess(self, gamma: Array, counts: Array) -> Array:
        """(k,) guesses at Q."""
        parts = zip(gamma.split(SETS_AT_ONCE), counts.split(SETS_AT_ONCE), strict=True)
        return self.torch.cat([guessed_evidence(g, c @ self.diagonals) for g, c in parts])

    def prior(self, m: Array, n: Array) -> Array:
        """What the prior adds to the gains of joining m and n sessions, as in `queue.Objective.gain`."""
        m = m.double()
        n = n.double()
        return ((m + n).lgamma() - m.lgamma() - n.lgamma() - self.ln_alpha).float()

    def gains(self, a: Array, b: Array) -> Array:
        """(k,) guesses at the gains of pairs."""
        ratios = [
            self.guess(self.gamma[i] + self.gamma[j], self.counts[i] + self.counts[j]) - self.Q[i] - self.Q[j]
            for i, j in zip(a.split(SETS_AT_ONCE), b.split(SETS_AT_ONCE), strict=True)
        ]
        return self.weight * self.torch.cat(ratios) + self.prior(self.m[a], self.m[b])

    def look(self, k: int) -> tuple[Array, Array]:
        """Pairs of each cluster and the k with which it gains most, by the products of `guessed_ratios`."""
        torch = self.torch
        n = len(self.m)
        k = min(k, n - 1)
        binned = BinnedSets(self.gamma, self.counts @ self.diagonals, self.session_lam)
        order = put(binned.order, self.gamma)
        m = self.m[order]
        a = []
        b = []
        for rows, gains in guessed_ratios(binned, binned, GUESSES_AT_ONCE, COLUMNS_IN_GROUP):
            # Apart from terms that are the same for all b, the prior adds ln Gamma(m_a + m_b) - ln Gamma(m_b), which is
            # 0 as long as each cluster has one session.
            if float(m.max()) > 1 or self.weight != 1:
                gains *= self.weight
                sessions = m.double()
                for size in torch.unique(m[rows]).tolist():
                    equal = (m[rows] == size).nonzero()[:, 0]
                    gains[equal, :n] += ((sessions + size).lgamma() - sessions.lgamma()).float()
            gains[:, n:] = -torch.inf
            gains[torch.arange(len(gains)), torch.arange(rows.start, rows.stop)] = -torch.inf
            a.append(order[rows].repeat_interleave(k))
            b.append(order[highest(gains, k).reshape(-1)])
        return torch.cat(a), torch.cat(b)

    def merge(self, a: Array, b: Array) -> None:
        """Merge pairs of neighbours in rounds until none of them gains, then drop clusters that are empty."""
        torch = self.torch
        n = len(self.m)
        a, b = _each_once(a, b, n)
        gain = self.gains(a, b)
        while True:
            good = gain > 0
            a = a[good]
            b = b[good]
            gain = gain[good]
            if not len(a):
                break
            best = self._best_of_each_other(a, b, gain)
            i = a[best]
            j = b[best]
            self.gamma[i] += self.gamma[j]
            self.counts[i] += self.counts[j]
            self.m[i] += self.m[j]
            self.Q[i] = self.guess(self.gamma[i], self.counts[i])
            to = torch.arange(n, device=a.device)
            to[j] = i
            self.label = to[self.label]
            changed = torch.zeros(n, dtype=torch.bool, device=a.device)
            changed[i] = True
            outdated = changed[to[a]] | changed[to[b]]
            new_a, new_b = _each_once(to[a[outdated]], to[b[outdated]], n)
            a = torch.cat([a[~outdated], new_a])
            b = torch.cat([b[~outdated], new_b])
            gain = torch.cat([gain[~outdated], self.gains(new_a, new_b)])
        used, self.label = torch.unique(self.label, return_inverse=True)
        self.gamma = self.gamma[used]
        self.counts = self.counts[used]
        self.m = self.m[used]
        self.Q = self.guess(self.gamma, self.counts)

    def _best_of_each_other(self, a: Array, b: Array, gain: Array) -> Array:
        """The pairs to merge in a round; no cluster is in two of them."""
        torch = self.torch
        best = torch.full((len(self.m),), -torch.inf, device=gain.device)
        best.scatter_reduce_(0, a, gain, "amax")
        best.scatter_reduce_(0, b, gain, "amax")
        # Pairs that gain much less wait: had they been merged with the others, F would be 1 to 2 points lower.
        mutual = (gain == best[a]) & (gain == best[b]) & (gain > 0.3 * gain.max())
        pairs = mutual.nonzero()[:, 0]
        first = torch.full((len(self.m),), len(gain), device=gain.device)  # where gains are equal, the first pair
        first.scatter_reduce_(0, a[pairs], pairs, "amin")
        first.scatter_reduce_(0, b[pairs], pairs, "amin")
        return pairs[(first[a[pairs]] == pairs) & (first[b[pairs]] == pairs)]

    def places(self) -> tuple[Array, Array, Array]:
        """For each item: the gain of being in its cluster, the best other cluster, and the gain there, (n,) each."""
        torch = self.torch
        n = len(self.item_m)
        lam = self.counts @ self.diagonals
        label = self.label
        m_without = self.m[label] - self.item_m
        without = self.guess(
            self.gamma[label] - self.item_gamma, (self.counts[label] - self.item_counts).clamp(min=0.0)
        )
        stay = self.weight * (self.Q[label] - without - self.item_Q) + self.prior(self.item_m, m_without)
        stay = torch.where(m_without > 0, stay, 0.0)
        other = torch.full((n,), -1, device=label.device)
        gain = torch.full((n,), -torch.inf, device=label.device)
        kinds, kind = torch.unique(
            torch.cat([self.item_counts, self.item_m[:, None]], dim=1), dim=0, return_inverse=True
        )
        for k in range(len(kinds)):  # items of one kind have the same counts, so that one product serves all
            of_clusters = self.prior(kinds[k, -1], self.m) - self.weight * self.Q
            item_lam = kinds[k, :-1] @ self.diagonals
            for rows in (kind == k).nonzero()[:, 0].split(max(1, GUESSES_AT_ONCE // len(self.m))):
                value = guessed_joins(self.gamma, lam, self.item_gamma[rows], item_lam)
                value *= self.weight
                value += of_clusters
                value[torch.arange(len(rows)), label[rows]] = -torch.inf
                best = value.max(dim=1)
                other[rows] = best.indices
                gain[rows] = best.values - self.weight * self.item_Q[rows]
        return stay, other, gain


def _each_once(a: Array, b: Array, n: int) -> tuple[Array, Array]:
    """Each pair of different clusters once."""
    import torch

    key = torch.unique((torch.minimum(a, b) * n + torch.maximum(a, b))[a != b])
    return torch.div(key, n, rounding_mode="floor"), key % n


def highest(values: Array, k: int) -> Array:
    """(n, k) the columns of the k highest values of each row: those of groups first, then inside the best groups."""
    size = COLUMNS_IN_GROUP
    if values.shape[1] <= 2 * k * size:
        return values.topk(k, dim=1).indices
    groups = values.view(len(values), -1, size)
    best = groups.amax(dim=2).topk(k, dim=1).indices  # (n, k)
    inside = groups.gather(1, best[:, :, None].expand(-1, -1, size)).reshape(len(values), -1)
    top = inside.topk(k, dim=1).indices
    return best.gather(1, top // size) * size + top % size


def find(sides: Sides, evidence: DiagonalEvidence, objective: Objective, candidates: int) -> dict[str, Any]:
    """Merge sides in rounds until no pair of clusters gains; the result are the attributes of a `Clustering`."""
    import torch

    before_precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # products may be rounded to ten bits: they only find neighbours
    try:
        rounds = Rounds(sides, evidence, objective)
        # All clusters are then compared again, for pairs that were missed (3 points of F on a million sessions).
        for k in [candidates, *[6] * 20]:
            before = len(rounds.m)
            rounds.merge(*rounds.look(k))
            if len(rounds.m) in (before, 1):
                break
        return _answer(rounds)
    finally:
        torch.set_float32_matmul_precision(before_precision)


def _answer(r: Rounds) -> dict[str, Any]:
    """The attributes on the host; clusters with more sessions come first, then those with earlier items."""
    torch = r.torch
    n = len(r.item_m)
    k = len(r.m)
    device = r.Q.device
    within = torch.zeros(k, device=device, dtype=torch.float64).index_add_(0, r.label, r.item_Q.double())
    support = r.Q.double() - within
    nearest = torch.full((k,), -1, device=device)
    merge = torch.full((k,), -torch.inf, device=device)
    if k > 1:
        a, b = r.look(1)
        nearest[a] = b
        merge[a] = r.gains(a, b)
    stay, other, gain = r.places()
    alone = r.m[r.label] == r.item_m
    second = torch.where((gain > 0) | alone, gain, 0.0)
    other = torch.where((gain > 0) | alone, other, -1)
    weakest = torch.full((k,), torch.inf, device=device)
    weakest.scatter_reduce_(0, r.label[~alone], stay[~alone], "amin")
    means = (r.gamma / (1.0 + r.counts @ r.diagonals)).double() @ r.basis.T
    prior = float(r.m.double().lgamma().sum() - r.item_m.double().lgamma().sum()) - r.ln_alpha * (n - k)
    log_posterior = r.weight * float(support.sum()) + prior
    label = to_numpy(r.label)
    sessions = to_numpy(r.m.long())
    first = np.full(k, n)
    np.minimum.at(first, label, np.arange(n))
    order = np.lexsort((first, -sessions))
    index = np.append(np.argsort(order), -1)  # the last one is for -1, no cluster
    return {
        "labels": index[label],
        "sessions": sessions[order],
        "support": to_numpy(support)[order],
        "split": to_numpy(weakest.double())[order],
        "nearest": index[to_numpy(nearest)[order]],
        "merge": to_numpy(merge.double())[order],
        "runner_up": index[to_numpy(other)],
        "margin": to_numpy((stay - second).double()),
        "log_posterior": log_posterior,
        "means": to_numpy(means)[order],
    }
