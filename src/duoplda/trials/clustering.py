"""Who is who: the partition of sessions into speakers with the highest posterior that is found.

`queue.py` merges clusters, `refine.py` moves items, `evidence.py` has the ratios. Here constraints become items, and
the partition becomes an answer that says how sure it is of its parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.special import gammaln

from duoplda.arrays import is_torch, namespace, reproducible, to_numpy
from duoplda.data import labels as lab
from duoplda.data.labels import Ints
from duoplda.errors import DuopldaError, some
from duoplda.trials import rounds
from duoplda.trials.blocks import Scorer
from duoplda.trials.evidence import DiagonalEvidence, Floats
from duoplda.trials.queue import Items, Merge, Partition, Queue, best_pairs, merge_all, neighbours, without_hubs
from duoplda.trials.refine import Places, refine
from duoplda.trials.sides import MOST_PATTERNS, Sides
from duoplda.trials.tables import as_text

Top = Callable[[Sides, int], tuple[Any, Any]]

FEW = 4000  # items: up to so many, merges are those of the algorithm that looks at all pairs, as far as was seen
# Neighbours of an item to begin with
CANDIDATES = 10
CANDIDATES_OF_FEW = 30
SLACK_OF_FEW = 5.0  # nats by which a guess at a gain may be too low
CLOSE = 3.0  # nats: smaller margins of items are exact
ROUNDS_FROM = 20_000  # items in tensors: fewer are merged one by one, on the host


@dataclass(frozen=True, eq=False, repr=False)
class Clustering:
    """Speakers that were found, and how sure that is. Gains are nats of the posterior of the partition.

    Attributes
    ----------
    ids : (n,) the recordings (or sides) that were clustered
    labels : (n,) the cluster of each, an index into what follows
    names : (k,) of the clusters, in decreasing order of sessions: "spk1", ..., or the id of a known speaker
    known : (k,) whether a cluster is that of a known speaker
    sessions : (k,) how many it has (those with which a known speaker was enrolled are not counted)
    support : (k,) ln likelihood ratio of its sessions being of one speaker, against each being of another
    split : (k,) what it would lose by being split where it is weakest; infinite for one session
    nearest, merge : (k,) the cluster with which a merge would lose least (-1: there is none), and the gain of that
    item : (n,) the item of each recording: its session, or several sessions that must be together or are equal
    runner_up, margin : (m,) of items: the second-best cluster (-1: one of its own, or that of a known speaker of whom
        there is nothing else), and by how much it is worse; margins of less than 3 nats are exact, others are guesses
    merges : (t, 4) the two that are merged, the gain, and sessions, up to where single items were moved. Items are
        0 .. m - 1, known speakers follow, up to `leaves`, and row t makes cluster leaves + t.
    leaves : items, and known speakers
    log_posterior : of the partition, relative to each item being another speaker
    means : (k, ny) posterior means of the speaker factors

    Of many items on a GPU (`duoplda.trials.rounds`) all of these are guesses, `merges` is empty, and `split` is what a
    cluster would lose with the item that fits least.

    Example
    -------
    >>> from duoplda import PLDA
    >>> plda = PLDA.from_parameters([0.0], [[3.0]], None, [[1.0]])
    >>> found = plda.cluster([[9.0], [9.1], [-5.0]], prior=0.5)
    >>> len(found), found.names[found.labels].tolist(), found.sessions.tolist()
    (2, ['spk1', 'spk1', 'spk2'], [2, 1])
    """

    ids: NDArray[Any]
    labels: Ints
    names: NDArray[Any]
    known: NDArray[np.bool_]
    sessions: Ints
    support: Floats
    split: Floats
    nearest: Ints
    merge: Floats
    item: Ints
    runner_up: Ints
    margin: Floats
    merges: Floats
    leaves: int
    log_posterior: float
    means: Floats

    def __len__(self) -> int:
        """How many speakers were found."""
        return len(self.names)

    def __repr__(self) -> str:
        speakers = f"{len(self):,} speakers, {self.known.sum():,} of them known"
        single = f"{(self.sessions == 1).sum():,} of one session"
        posterior = f"log posterior {self.log_posterior:.4g} nats"
        return f"<Clustering: {speakers}, {len(self.ids):,} recordings, {single}, {posterior}>"

    def linkage(self) -> Floats:
        """(leaves - 1, 4) the merges as SciPy's `dendrogram` takes them: heights grow, and what is left is joined last.

        The height of a merge is minus its gain, from 0 on, but no less than that of a merge before it.
        """
        Z = self.merges.copy()
        m = self.leaves
        size = dict.fromkeys(range(m), 1)
        for t, (a, b) in enumerate(Z[:, :2].astype(int).tolist()):
            size[m + t] = size.pop(a) + size.pop(b)
            Z[t, 3] = size[m + t]
        heights = -Z[:, 2]
        Z[:, 2] = np.maximum.accumulate(heights - heights.min()) if len(Z) else heights
        rest = sorted(size)
        top = Z[-1, 2] if len(Z) else 0.0
        rows = []
        at = rest[0]
        n = size[rest[0]]
        for t, other in enumerate(rest[1:]):
            n += size[other]
            rows.append([at, other, top + 1.0, n])
            at = m + len(Z) + t
        return np.concatenate([Z, np.array(rows).reshape(-1, 4)])


@reproducible()
def cluster(
    sides: Sides,
    *,
    prior: float = 0.02,
    n_speakers: int | None = None,
    min_speakers: int | None = None,
    max_speakers: int | None = None,
    must_link: Any = None,
    cannot_link: Any = None,
    known: Sides | None = None,
    weight: float = 1.0,
    discount: float = 1.0,
    refine: bool = True,
    candidates: int | None = None,
    top: Top = lambda sides, k: Scorer(sides).top(sides, k),
) -> Clustering:
    """The partition of sides into speakers; see `PLDA.cluster`.

    `top(sides, k)` gives the k sides that score highest with each (itself included), and their ratios: (n, k) twice.
    """
    prior, weight, discount = _checked(prior, weight, discount)
    if not len(sides):
        raise DuopldaError("there is nothing to cluster: give at least one recording")
    fewest, most = _numbers(n_speakers, min_speakers, max_speakers)
    every, owner = (sides, np.full(len(sides), -1)) if known is None else _with_known(sides, known)
    item, cannot = _constraints(sides, must_link, cannot_link)
    item = np.append(item, int(item.max()) + 1 + np.arange(len(every) - len(sides)))
    every = every.grouped(item)
    owner = owner[np.unique(item, return_index=True)[1]]
    evidence = DiagonalEvidence.of(every)
    ln_alpha = math.log((1 - prior) / prior)
    candidates = candidates or (CANDIDATES_OF_FEW if len(every) <= FEW else CANDIDATES)
    free = known is None and not cannot and (fewest, most) == _numbers(None, None, None) and discount == 1
    if free and len(every) >= ROUNDS_FROM and is_torch(namespace(every.gamma)):
        return _of_rounds(sides, item, rounds.find(every, evidence, ln_alpha, weight, candidates))
    items = _items(evidence, every, owner, cannot, discount)
    if fewest == 1 and not cannot and (twin := _twins(evidence, items, weight, ln_alpha)) is not None:
        item = twin[item]
        every = every.grouped(twin)
        owner = owner[np.unique(twin, return_index=True)[1]]
        items = _items(evidence, every, owner, cannot, discount)
    n_known = int((items.owner >= 0).sum())
    if fewest > len(items.m) - n_known and fewest > 1:
        what = f"{len(items.m) - n_known} items (sessions, or groups of them that must be together)"
        raise DuopldaError(f"at least {fewest} speakers are asked for, but there are {what}: ask for fewer")
    p = Partition(evidence, items, ln_alpha, weight)
    queue = Queue(p, SLACK_OF_FEW) if len(items.m) <= FEW else Queue(p)
    _start(queue, every, discount, candidates, top)
    merge_all(queue, fewest, most)
    if p.n_clusters > most:
        raise DuopldaError(
            f"cannot_link (or known speakers) leave no way to fewer than {p.n_clusters} speakers, and {most} are asked "
            "for: ask for more, or lift some constraints"
        )
    places = Places(p, items)
    tree = list(p.merges)
    for _ in range(5 if refine else 0):
        if not _refine(places, fewest, most):
            break
        before = len(p.merges)
        merge_all(Queue(p), fewest, most)
        if before == len(p.merges):
            break
        places = Places(p, items)
    return _answer(sides, known, items, item[: len(sides)], tree, places)


_refine = refine  # the parameter of `cluster` has its name


def _checked(prior: Any, weight: Any, discount: Any) -> tuple[float, float, float]:
    for name, value, high in (("prior", prior, 1.0), ("weight", weight, math.inf), ("discount", discount, math.inf)):
        if not isinstance(value, Real) or isinstance(value, bool) or not 0 < float(value) < high:
            what = "between 0 and 1" if high == 1 else "greater than 0"
            raise DuopldaError(f"{name}={value!r} must be a number {what}")
    return float(prior), float(weight), float(discount)


def _numbers(n: Any, low: Any, high: Any) -> tuple[int, int]:
    """The fewest and the most speakers."""
    for name, value in (("n_speakers", n), ("min_speakers", low), ("max_speakers", high)):
        if value is not None and (not isinstance(value, Integral) or isinstance(value, bool) or value < 1):
            raise DuopldaError(f"{name}={value!r} must be a whole number from 1 on, or None")
    if n is not None and (low is not None or high is not None):
        raise DuopldaError("n_speakers says it all: leave out min_speakers and max_speakers")
    fewest, most = (int(n), int(n)) if n is not None else (int(low or 1), int(high) if high else np.iinfo(np.int64).max)
    if fewest > most:
        raise DuopldaError(f"min_speakers={low} is more than max_speakers={high}")
    return fewest, most


# -- constraints


def pairs_of(pairs: Any, ids: NDArray[Any], name: str) -> Ints:
    """(k, 2) rows, of pairs of row numbers or of pairs of ids."""
    given = np.zeros((0, 2), np.int64) if pairs is None else np.asarray(pairs)
    if given.size == 0:
        return np.zeros((0, 2), np.int64)
    if given.ndim != 2 or given.shape[1] != 2:
        raise DuopldaError(f"{name} must be pairs, of shape (k, 2), got an array of shape {given.shape}")
    if given.dtype.kind in "iu" and ids.dtype.kind not in "iu":
        ids = np.arange(len(ids))
    order = np.argsort(ids, kind="stable")
    place = lab.places(given.reshape(-1), ids[order]) if given.dtype.kind in "iuU" else np.full(given.size, -1)
    unknown = list(dict.fromkeys(given.reshape(-1)[place < 0].tolist()))
    if unknown:
        raise DuopldaError(f"{name} names {len(unknown)} that are not among those to cluster: {some(unknown)}")
    return order[place].reshape(-1, 2)


def _constraints(sides: Sides, must_link: Any, cannot_link: Any) -> tuple[Ints, dict[int, set[int]]]:
    """The item of each side, and the items that are to be apart."""
    n = len(sides)
    must = pairs_of(must_link, sides.ids, "must_link")
    not_ = pairs_of(cannot_link, sides.ids, "cannot_link")
    links = coo_array((np.ones(len(must)), (must[:, 0], must[:, 1])), shape=(n, n))
    found = connected_components(links, directed=False)[1]
    _, first, item = np.unique(found, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))  # items in the order of their first sides
    item = rank[item.reshape(-1)]
    both = np.flatnonzero(item[not_[:, 0]] == item[not_[:, 1]])
    if len(both):
        a, b = sides.ids[not_[both[0]]].tolist()
        why = "is linked with itself" if a == b else f"and {b!r} are also linked by must_link, if by way of others"
        what = f"{len(both)} pairs of cannot_link contradict must_link"
        raise DuopldaError(f"{what}: {a!r} {why}; leave out one of the two")
    cannot: dict[int, set[int]] = {}
    for a, b in np.unique(item[not_], axis=0).tolist() if len(not_) else ():
        cannot.setdefault(a, set()).add(b)
        cannot.setdefault(b, set()).add(a)
    return item, cannot


def _with_known(sides: Sides, known: Sides) -> tuple[Sides, Ints]:
    """The sides, and known speakers behind them; the known speaker that each is, or -1."""
    if not isinstance(known, Sides):
        raise DuopldaError(f"known must be speakers of enroll, got {type(known).__name__}")
    refuse_shared(sides.session, known)
    names = [f"{i}" for i in range(len(sides))] + [f"known {i}" for i in range(len(known))]
    first = sides.unnamed(names[: len(sides)])
    second = known.unnamed(names[len(sides) :])
    return first.add(second), np.append(np.full(len(sides), -1), np.arange(len(known)))


def refuse_shared(session: NDArray[Any], known: Sides) -> None:
    """Refuse sessions of which known speakers have been enrolled."""
    common = np.intersect1d(as_text(np.asarray(session)), as_text(known.session))
    if len(common):
        raise DuopldaError(
            f"{len(common)} sessions are also sessions of known speakers, who would be found by them alone: "
            f"{some(common.tolist())}; leave them out"
        )


# -- items


def _items(
    evidence: DiagonalEvidence, sides: Sides, owner: Ints, cannot: dict[int, set[int]], discount: float
) -> Items:
    gamma = discount * (to_numpy(sides.gamma) @ evidence.basis)
    counts = discount * sides.counts.astype(np.float64)
    Q = to_numpy(sides.Q).copy() if discount == 1 else evidence.exact(counts, gamma)
    return Items(counts, gamma, sides.counts.sum(axis=1).astype(np.float64), Q, owner, cannot)


def _twins(evidence: DiagonalEvidence, items: Items, weight: float, ln_alpha: float) -> Ints | None:
    """One item for all that are equal to the last bit, where two of them gain by being together; None: there are none.

    Thousands of equal items would all be each other's best neighbours.
    """
    rows = np.ascontiguousarray(np.column_stack([items.gamma, items.counts, items.owner]))
    whole = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).reshape(-1)
    _, first, same, n = np.unique(whole, return_index=True, return_inverse=True, return_counts=True)
    if len(n) == len(whole):
        return None
    Q = evidence.exact(2 * items.counts[first], 2 * items.gamma[first])
    m = items.m[first]
    gain = weight * (Q - 2 * items.Q[first]) + gammaln(2 * m) - 2 * gammaln(m) - ln_alpha
    apart = (gain <= 0)[same] | (items.owner >= 0)
    key = np.where(apart, np.arange(len(whole)), first[same])
    return np.unique(key, return_inverse=True)[1].reshape(-1)


def _start(queue: Queue, sides: Sides, discount: float, candidates: int, top: Top) -> None:
    """The best neighbours of each item, by exact ratios where few patterns make these cheap, else by guesses."""
    p = queue.p
    n = len(sides)
    if discount != 1 or len(sides.groups) > MOST_PATTERNS:
        queue.look(-np.inf, candidates)
        return
    rows, ratios = (to_numpy(x) for x in top(sides, candidates + 1))
    a, b, ratio = neighbours(rows, ratios)
    keep = without_hubs(a, b, ratio, n)
    a = a[keep]
    b = b[keep]
    ratio = ratio[keep]
    queue.add(a, b, p.weight * ratio + p.prior(a, b), ratio + p.Q[a] + p.Q[b])


# -- the answer


def _answer(
    sides: Sides, known: Sides | None, items: Items, item: Ints, tree: list[Merge], places: Places
) -> Clustering:
    p = places.p
    real = items.owner < 0
    slots = p.slots
    inside = [[i for i in p.members[s] if real[i]] for s in slots.tolist()]
    sessions = np.array([int(items.m[own].sum()) if own else 0 for own in inside])
    first = np.array([min(own, default=len(real)) for own in inside])
    order = np.lexsort((first, -sessions))
    order = order[[bool(inside[k]) for k in order.tolist()]]
    slots = slots[order]
    sessions = sessions[order]
    index = np.full(len(p.m), -1)
    index[slots] = np.arange(len(slots))
    owner = p.owner[slots]
    names = _names(owner, known)
    support = np.array([float(p.Q[s] - items.Q[p.members[s]].sum()) for s in slots.tolist()])
    nearest, merge = _nearest(p, slots)
    runner_up, margin = _margins(places)
    split = _splits(p, items, tree, slots, margin)
    runner = np.where(runner_up >= 0, index[runner_up], -1)
    E = p.evidence
    means = np.stack([_mean(E, p.counts[s], p.gamma[s]) for s in slots.tolist()]) @ E.basis.T
    total = sum(p.weight * p.Q[s] for s in p.slots.tolist()) - p.weight * items.Q.sum()
    total += float((gammaln(p.m[p.slots])).sum() - gammaln(items.m).sum()) - p.ln_alpha * (len(items.m) - len(p.slots))
    n = int(real.sum())
    merges = np.array(tree).reshape(-1, 4)
    return Clustering(
        np.asarray(sides.ids), index[places.where[item]], names, owner >= 0, sessions, support, split, nearest, merge,
        item, runner[:n], margin[:n], merges, len(real), float(total), means,
    )  # fmt: skip


def _of_rounds(sides: Sides, item: Ints, found: rounds.Found) -> Clustering:
    """The answer of rounds on a GPU, in our order."""
    K = len(found.sessions)
    first = np.full(K, len(found.label))
    np.minimum.at(first, found.label, np.arange(len(found.label)))
    order = np.lexsort((first, -found.sessions))
    place = np.argsort(order)

    def moved(index: Ints) -> Ints:
        return np.where(index >= 0, place[index], -1)

    known = np.zeros(K, bool)
    return Clustering(
        np.asarray(sides.ids), place[found.label[item]], _names(np.full(K, -1), None), known, found.sessions[order],
        found.support[order], found.weakest[order], moved(found.nearest[order]), found.merge[order], item,
        moved(found.runner_up), found.margin, np.zeros((0, 4)), len(found.label),
        found.log_posterior, found.means[order],
    )  # fmt: skip


def _mean(evidence: DiagonalEvidence, counts: Floats, gamma: Floats) -> Floats:
    if evidence.is_diagonal:
        return gamma / (1 + counts @ evidence.diagonals)
    Lambda = np.eye(len(gamma)) + np.tensordot(counts, evidence.G, axes=1)
    return np.asarray(np.linalg.solve(Lambda, gamma), np.float64)


def _names(owner: Ints, known: Sides | None) -> NDArray[Any]:
    taken = set() if known is None else set(map(str, known.ids.tolist()))
    names = []
    n = 0
    for k in owner.tolist():
        if k >= 0 and known is not None:
            names.append(str(known.ids[k]))
            continue
        n += 1
        while f"spk{n}" in taken:
            n += 1
        names.append(f"spk{n}")
    return np.array(names)


def _nearest(p: Partition, slots: Ints) -> tuple[Ints, Floats]:
    """For each cluster the one with which a merge would gain most, by a guess, and the exact gain."""
    k = len(slots)
    nearest = np.full(k, -1)
    gain = np.full(k, -np.inf)
    if k < 2:
        return nearest, gain
    place = np.empty(len(p.m), np.int64)
    place[slots] = np.arange(k)
    for a, b, value in best_pairs(p, slots, 1):
        nearest[place[a]] = place[b]
        gain[place[a]] = value
    there = np.flatnonzero(np.isfinite(gain))
    nearest[~np.isfinite(gain)] = -1
    if len(there):
        gain[there] = p.gains(slots[there], slots[nearest[there]])[0]
    return nearest, gain


def _margins(places: Places) -> tuple[Ints, Floats]:
    """For each item the second-best cluster (its slot, -1: alone), and by how much it is worse: exact, where small."""
    stay, other, gain = places.known or places.best()
    stay = stay.copy()
    other = other.copy()
    gain = gain.copy()
    alone = places.p.m[places.where] - places.m <= 0
    gain = np.where(other >= 0, gain, np.where(alone, -np.inf, 0.0))
    close = np.flatnonzero((stay - gain < CLOSE) & (other >= 0) & ~places.fixed)
    for i in close.tolist() if not places.p.evidence.is_diagonal else ():
        stay[i] = places.exact(i, int(places.where[i]), True)[0]
        gain[i] = places.exact(i, int(other[i]), False)[0]
        if not alone[i] and gain[i] < 0:
            other[i] = -1
            gain[i] = 0.0
    lone = np.flatnonzero((stay - gain < CLOSE) & (other < 0) & ~alone & ~places.fixed)
    for i in lone.tolist() if not places.p.evidence.is_diagonal else ():
        stay[i] = places.exact(i, int(places.where[i]), True)[0]
    margin: Floats = stay - gain
    return other, margin


def _splits(p: Partition, items: Items, tree: list[Merge], slots: Ints, margin: Floats) -> Floats:
    """What each cluster would lose by being split at its last merge, or by losing the item that fits least."""
    children = {len(items.m) + t: (a, b) for t, (a, b, _, _) in enumerate(tree)}

    def below(node: int) -> set[int]:
        stack = [node]
        out = set()
        while stack:
            top = stack.pop()
            if top in children:
                stack += children[top]
            else:
                out.add(top)
        return out

    out = np.full(len(slots), np.inf)
    for k, slot in enumerate(slots.tolist()):
        own = set(p.members[slot])
        if len(own) < 2:
            continue
        parts = [{min(own, key=lambda i: (margin[i], i))}]
        node = int(p.name[slot])
        if node in children:
            parts.append(below(children[node][0]) & own)
        for part in parts:
            if part and part != own:
                rows = sorted(part)
                n, g, m = (x[rows].sum(axis=0) for x in (items.counts, items.gamma, items.m))
                Q = p.evidence.exact(np.stack([n, p.counts[slot] - n]), np.stack([g, p.gamma[slot] - g]))
                ratio = p.Q[slot] - Q.sum()
                prior = gammaln(p.m[slot]) - gammaln(m) - gammaln(p.m[slot] - m) - p.ln_alpha
                out[k] = min(out[k], float(p.weight * ratio + prior))
    return out
