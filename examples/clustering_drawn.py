"""Clusters of drawn data whose truth is known: is the best partition found, are doubts right, how many speakers?

    python examples/clustering_drawn.py [--part optimum doubts number posterior] [--draws 200]

- optimum: random models of 2 to 30 dimensions, 3 to 7 sessions of 1 to 6 recordings. All partitions are looked at, by
  dynamic programming over sets of sessions. Printed: in how many draws the best one was found, and the largest gap in
  nats, free, with a smallest and a largest number of speakers, and with known speakers; also for 10 and 11 sessions,
  and for 13, where the program no longer looks at all partitions itself.
- doubts: the same models with 3 to 14 sessions. Margins are compared with every move of a session, nearest clusters
  with every merge of two; and so are those of 400 speakers, where guesses choose what is computed exactly.
- number: speakers found / speakers there are, and B-cubed F in %, for the prior that is learned and for .02. Data are
  those of `make_recordings`, clustered with the model that drew them; "a-b sessions" is any number between them.
- posterior: what `number_posterior` says of the number of speakers, and how often it is right, for 1 to 30 speakers in
  16, 20 and 40 dimensions: the most probable number, those that together have 90 %, and all that have about so much.
"""

from __future__ import annotations

import argparse
import itertools
import math

import numpy as np
from scipy.special import gammaln

from duoplda import PLDA
from duoplda.datasets import make_recordings
from duoplda.metrics import b_cubed


class Case:
    """Sessions of a random model, and known speakers, who may be among them."""

    def __init__(self, seed: int, fewest: int, most: int, known: bool = False):
        rng = np.random.default_rng(seed)
        d = int(rng.integers(2, 31))
        spread = math.exp(0.7 * rng.normal())
        V = rng.normal(size=(d, int(rng.integers(1, d + 1)))) * spread
        U = rng.normal(size=(d, int(rng.integers(0, d + 1))))
        noise = rng.normal(size=(d, 2 * d)) / math.sqrt(2 * d)
        self.plda = PLDA.from_parameters(5 * rng.normal(size=d), V, U, np.linalg.inv(noise @ noise.T))
        self.prior = float(rng.choice([0.02, 0.1, 0.3, 0.5, 0.8]))
        n = int(rng.integers(fewest, most + 1))
        X, _, session = self.plda.sample(int(rng.integers(1, n + 1)), (n, n + 1), (1, 6), random_state=seed)
        self.sessions = rng.permutation(np.unique(session))[:n]
        rows = np.isin(session, self.sessions)
        self.X = X[rows]
        self.session = session[rows].astype(str)
        self.sessions = self.sessions.astype(str)
        self.known = []  # (recordings, sessions) of each known speaker: one session of somebody who may be among them
        if known:
            others = rng.permutation(np.unique(session[~rows]))[:3]
            for k, name in enumerate(others.tolist()):
                mine = session == name
                self.known.append((X[mine], np.array([f"known {k}"] * int(mine.sum()))))

    def enrolled(self):
        if not self.known:
            return None
        X, session = (np.concatenate(part) for part in zip(*self.known, strict=True))
        return self.plda.enroll(X, session, session)

    def value(self, members: np.ndarray, known: int | None = None) -> float:
        """What a cluster of some sessions (and of a known speaker) adds to the log posterior."""
        rows = np.isin(self.session, members)
        X = self.X[rows]
        session = self.session[rows]
        if known is not None:
            X = np.concatenate([X, self.known[known][0]])
            session = np.concatenate([session, self.known[known][1]])
        likelihood = self.plda.partition_log_likelihood(X, np.zeros(len(X)), session)
        m = len(members) + (known is not None)
        return float(likelihood + gammaln(m) + math.log((1 - self.prior) / self.prior))

    def best(self, fewest: int, most: int) -> float:
        """The log posterior of the best partition, relative to each session being of another speaker."""
        n = len(self.sessions)
        sets = range(1 << n)
        members = [self.sessions[[i for i in range(n) if s >> i & 1]] for s in sets]
        free = [self.value(members[s]) if s else -np.inf for s in sets]
        total = {(0, 0): 0.0}  # by the number of clusters and the sessions that are in them
        alone = sum(free[1 << i] for i in range(n))
        for k in range(len(self.known)):
            values = [self.value(members[s], k) for s in sets]
            alone += values[0]
            after: dict[tuple[int, int], float] = {}
            for (c, taken), value in total.items():
                for s in subsets(~taken & (1 << n) - 1):
                    key = (c + (s > 0), taken | s)
                    after[key] = max(after.get(key, -np.inf), value + values[s])
            total = after
        best = np.full((n + 1, 1 << n), -np.inf)
        for (c, taken), value in total.items():
            best[c, taken] = value
        for whole in sets:
            for s in subsets(whole):
                if s:
                    best[1:, whole] = np.maximum(best[1:, whole], best[:-1, whole ^ s] + free[s])
        return float(best[fewest : most + 1, -1].max() - alone)


def subsets(whole: int):
    """All subsets of a set of bits."""
    part = whole
    while True:
        yield part
        if not part:
            return
        part = (part - 1) & whole


def optimum(draws: int) -> None:
    print("optimum      sessions   best found    largest gap (nats)")
    for row, fewest, most in itertools.chain(
        itertools.product(["free", "limits", "known"], [3], [7]),
        itertools.product(["free", "limits", "known"], [10], [11]),
        itertools.product(["free", "limits"], [13], [13]),
    ):
        gaps = []
        for seed in range(draws if most < 10 else draws // 10):
            case = Case(seed, fewest, most, row == "known")
            n = len(case.sessions)
            rng = np.random.default_rng([seed, 1])
            low = int(rng.integers(1, n + 1)) if row == "limits" else 1
            high = int(rng.integers(low, n + 1)) if row == "limits" else n
            options = {"min_speakers": low, "max_speakers": high, "known": case.enrolled()}
            found = case.plda.cluster(case.X, case.session, prior=case.prior, **options)
            gaps.append(case.best(low, high) - found.log_posterior)
        if not gaps:
            continue
        share = np.mean(np.array(gaps) < 1e-6)
        print(f"{row:12} {fewest:3}-{most:<5} {share:10.1%} of {len(gaps):<5} {max(gaps):10.2f}", flush=True)


def doubts(draws: int) -> None:
    wrong = {"margins": 0, "nearest clusters": 0}
    number = dict.fromkeys(wrong, 0)
    for seed in range(draws):
        case = Case(seed, 3, 14)
        found = case.plda.cluster(case.X, case.session, prior=case.prior)
        label = {s: int(found.labels[np.flatnonzero(case.session == s)[0]]) for s in case.sessions.tolist()}
        item = {s: int(found.item[np.flatnonzero(case.session == s)[0]]) for s in case.sessions.tolist()}
        clusters = [np.array([s for s in label if label[s] == c]) for c in range(len(found))]
        values = [case.value(c) for c in clusters]
        for s, c in label.items():
            without = case.value(clusters[c][clusters[c] != s]) if len(clusters[c]) > 1 else 0.0
            stay = values[c] - without
            places = [case.value(np.append(clusters[b], s)) - values[b] for b in range(len(found)) if b != c]
            places += [case.value(np.array([s]))] if len(clusters[c]) > 1 else []
            if places:
                number["margins"] += 1
                wrong["margins"] += abs(stay - max(places) - found.margin[item[s]]) > 1e-6
        for a in range(len(found) if len(found) > 1 else 0):
            merges = [
                case.value(np.append(clusters[a], clusters[b])) - values[a] - values[b]
                for b in range(len(found))
                if b != a
            ]
            number["nearest clusters"] += 1
            wrong["nearest clusters"] += abs(max(merges) - found.merge[a]) > 1e-6
    for name in wrong:
        print(f"doubts: {wrong[name]} of {number[name]} {name} are wrong")
    estimates(draws // 200)


def estimates(draws: int) -> None:
    """Doubts about clusters so many that not all alternatives are computed exactly, beside exact ratios of all."""
    sizes = {"n_dimensions": 100, "n_speaker_factors": 90, "n_session_factors": 60, "speaker_variance": 0.1}
    errors = {"margins": [], "margins below 3": [], "nearest clusters": []}
    for seed in range(draws):
        X, _, session, m = make_recordings(400, (1, 3), (1, 12), session_variance=1.5, seed=seed, **sizes)
        plda = PLDA.from_parameters(m.mu[0], m.V, m.U, m.W[0])
        found = plda.cluster(X, session, prior=0.0025)
        assert not found.exact
        first = np.unique(found.item, return_index=True)[1]
        sessions = plda.enroll(X, found.item, session)
        clusters = plda.enroll(X, found.labels, session)
        label = found.labels[first]
        size = found.sessions.astype(float)
        ln_alpha = math.log(1 / found.prior - 1)
        merge = plda.llr(clusters, clusters) + gammaln(size[:, None] + size) - gammaln(size)[:, None] - gammaln(size)
        np.fill_diagonal(merge, -np.inf)
        errors["nearest clusters"].append(merge.max(axis=1) - ln_alpha - found.merge)
        move = plda.llr(sessions, clusters) + np.log(size) - ln_alpha
        move[np.arange(len(first)), label] = -np.inf
        several = size[label] > 1
        stay = np.zeros(len(first))
        for i in np.flatnonzero(several):
            rows = (found.labels == label[i]) & (found.item != i)
            others = plda.enroll(X[rows], np.zeros(rows.sum()), session[rows])
            stay[i] = plda.llr(sessions.select([i]), others)[0, 0] + math.log(size[label[i]] - 1) - ln_alpha
        margin = stay - np.where(several, np.maximum(move.max(axis=1), 0.0), move.max(axis=1))
        errors["margins"].append(found.margin - margin)
        errors["margins below 3"].append((found.margin - margin)[found.margin < 3])
    for name, parts in errors.items() if draws else ():
        error = np.abs(np.concatenate(parts))
        wrong = f"{np.mean(error > 1e-6):.1%} of {len(error)} {name} are not exact"
        print(f"doubts, many speakers: {wrong}; the largest error is {error.max():.2f}")


def number(draws: int) -> None:
    rows = list(itertools.product([1, 2, 5, 20, 50, 200], [(5, 5), (20, 20), (1, 20)]))
    rows += [(5, (2, 2)), (20, (2, 2)), (200, (1, 2)), (200, (1, 3)), (20, (1, 1)), (100, (1, 1))]
    print("found / true, F: a learned prior and one of .02")
    print("dimensions speakers sessions      learned            .02")
    for d, (n, sessions) in itertools.product([20, 64], rows):
        if n * sum(sessions) / 2 > 1000:
            continue
        cells = []
        for seed in range(max(2, draws // 10)):
            X, speaker, session, m = make_recordings(n, sessions, 1, n_dimensions=d, seed=seed)
            plda = PLDA.from_parameters(m.mu[0], m.V, m.U, m.W[0])
            for prior in (None, 0.02):
                found = plda.cluster(X, session, prior=prior)
                cells.append((len(found) / n, 100 * b_cubed(found.labels, speaker).f))
        (learned, F), (fixed, F_fixed) = (np.mean(cells[k::2], axis=0) for k in (0, 1))
        a, b = sessions
        span = f"{a}" if a == b else f"{a}-{b}"
        print(f"{d:10} {n:8} {span:>8} {learned:8.2f} {F:8.1f} {fixed:8.2f} {F_fixed:8.1f}", flush=True)


def posterior(draws: int) -> None:
    rows = [(1, 5), (1, (1, 20)), (2, 5), (2, 20), (3, (1, 20)), (5, 5), (5, 2), (5, (1, 20)), (8, 5), (12, (1, 10))]
    rows += [(20, 5), (20, 2), (20, (1, 10)), (30, 3)]
    said, right = [], []
    print("dimensions   most probable: its probability, how often it is right; the truth is among 90 %")
    for d in (16, 20, 40):
        cells = []
        for (n, sessions), seed in itertools.product(rows, range(max(2, draws // 20))):
            X, _, session, m = make_recordings(n, sessions, 1, n_dimensions=d, seed=seed)
            numbers = PLDA.from_parameters(m.mu[0], m.V, m.U, m.W[0]).cluster(X, session).number_posterior
            order = sorted(numbers, key=lambda k: -numbers[k])
            before = np.cumsum([0.0, *(numbers[k] for k in order)])[: len(order)]
            likely = [k for k, p in zip(order, before, strict=True) if p < 0.9]
            cells.append((numbers[order[0]], order[0] == n, n in likely))
            said += numbers.values()
            right += [k == n for k in numbers]
        print("{:10} {:28.2f} {:26.2f} {:29.2f}".format(d, *np.mean(cells, axis=0)), flush=True)
    edges = [0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.01]
    print("said to be   on average     is right     numbers")
    for low, high in itertools.pairwise(edges):
        chosen = [(p, r) for p, r in zip(said, right, strict=True) if low <= p < high]
        if chosen:
            p, r = np.mean(chosen, axis=0)
            print(f"{low:.2f}-{min(high, 1):.2f} {p:14.2f} {r:12.2f} {len(chosen):11}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", default=["optimum", "doubts", "number", "posterior"])
    parser.add_argument("--draws", type=int, default=200)
    a = parser.parse_args()
    for part in a.part:
        {"optimum": optimum, "doubts": doubts, "number": number, "posterior": posterior}[part](a.draws)
