"""Clustering: the partition of sessions into speakers that has the highest posterior of all that the search finds.

`queue.py` merges clusters, `refine.py` moves items between them, `evidence.py` has exact and approximate evidence, and
`rounds.py` does all of this for very many items on a GPU. Here constraints become items, the steps of the search follow
each other, and the partition becomes an answer that says how sure it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from duoplda.arrays import Array, is_torch, namespace, reproducible, to_numpy
from duoplda.data import labels as lab
from duoplda.data.labels import Ints
from duoplda.errors import DuopldaError, MissingIds, some
from duoplda.model.ragged import Patterns, speakers
from duoplda.trials import optimum, rounds
from duoplda.trials.blocks import Scorer
from duoplda.trials.concentration import (
    LEAST_LN_ALPHA,
    best_on_path,
    learn,
    ln_alpha_of,
    most_ln_alpha,
    posterior_of_number,
)
from duoplda.trials.evidence import DiagonalEvidence, Floats
from duoplda.trials.queue import Items, Merge, Objective, Partition, Queue, every_pair_is_cheap, exact_pairs
from duoplda.trials.refine import SHARES_ON_PATH, Places, Splits, best_places, exact_gain
from duoplda.trials.refine import refine as improve
from duoplda.trials.sides import MOST_PATTERNS, Sides
from duoplda.trials.tables import as_text

# Up to so many items the search is more thorough: nearly all pairs are candidates, so that the best pair of all is
# merged at each step, and items are moved from several partitions on the path of merges.
MOST_FOR_THOROUGH_SEARCH = 4000


@dataclass(frozen=True, eq=False, repr=False)
class Clustering:
    """The speakers that clustering found, and how sure it is of them. Gains are nats of the posterior of the partition.

    A small `split`, or a `merge` just below 0, marks clusters that a person should listen to: e^gain is the odds of
    one partition against the other. The numbers hold under the model: on recordings unlike its training data they are
    too confident.

    Attributes
    ----------
    ids : (n,) the recordings (or sides) that were clustered
    labels : (n,) the cluster of each, an index into the following arrays (k,)
    names : (k,) of the clusters, in decreasing order of sessions: "spk1", ..., or the id of a known speaker
    known : (k,) whether a cluster is that of a known speaker
    sessions : (k,) the number of its sessions (those with which a known speaker was enrolled are not counted)
    support : (k,) ln likelihood ratio of its sessions being of one speaker, against each being of another
    split : (k,) what it would lose by being split where it is weakest; infinite for one session. It may be negative:
        clusters are merged and sessions moved for a gain, but clusters are not split
    nearest, merge : (k,) the cluster with which a merge would lose least (-1: there is none), and the gain of that
        merge
    item : (n,) the item of each recording: its session, or several sessions that must be together or are equal
    runner_up, margin : (m,) of items: the second-best cluster (-1: one of its own, or that of a known speaker of whom
        there is nothing else), and by how much it is worse
    merges : (t, 4) the two that are merged, the gain, and the sessions of both, before single items were moved. Items
        are 0 .. m - 1, known speakers follow, up to `leaves`, and row t makes cluster leaves + t.
    leaves : the number of items and known speakers
    log_posterior : of the partition, relative to each item being another speaker
    means : (k, ny) posterior means of the speaker factors
    prior : the probability that two random sessions are of one speaker, as it was given or learned
    number_posterior : {number of speakers: its probability}, where the prior was learned; else, and of many items on a
        GPU, it is empty. Numbers below one in a thousand are left out
    exact : whether `nearest`, `merge`, `runner_up` and `margin` are those of the best alternatives of all. They are
        where items are few, or all sessions of one type; else guesses choose the alternatives whose gains are computed,
        and margins of more than 3 nats are guesses themselves

    Of many items on a GPU (`duoplda.trials.rounds`) all of these are guesses, `merges` is empty, and `split` is what a
    cluster would lose with the item that fits least.

    Example
    -------
    >>> from duoplda import PLDA
    >>> plda = PLDA.from_parameters([0.0], [[3.0]], None, [[1.0]])
    >>> clusters = plda.cluster([[9.0], [9.1], [-5.0]], prior=0.5)
    >>> len(clusters), clusters.names[clusters.labels].tolist(), clusters.sessions.tolist()
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
    prior: float
    exact: bool
    number_posterior: dict[int, float] = field(default_factory=dict)

    def __len__(self) -> int:
        """The number of speakers that were found."""
        return len(self.names)

    def __repr__(self) -> str:
        speakers = f"{len(self):,} speakers, {self.known.sum():,} of them known"
        single = f"{(self.sessions == 1).sum():,} of one session"
        posterior = f"log posterior {self.log_posterior:.4g} nats"
        return f"<Clustering: {speakers}, {len(self.ids):,} recordings, {single}, {posterior}>"

    def linkage(self) -> Floats:
        """(leaves - 1, 4) the merges as SciPy's `dendrogram` takes them.

        The height of a merge is minus its gain, shifted to begin at 0, but no less than the height of a merge before
        it. The clusters that are left are joined last, 1 above the highest merge.
        """
        Z = self.merges.copy()
        m = self.leaves
        size = dict.fromkeys(range(m), 1)
        for t, (a, b) in enumerate(Z[:, :2].astype(int).tolist()):
            size[m + t] = size.pop(a) + size.pop(b)
            Z[t, 3] = size[m + t]
        heights = -Z[:, 2]
        Z[:, 2] = np.maximum.accumulate(heights - heights.min()) if len(Z) else heights
        top = Z[-1, 2] if len(Z) else 0.0
        node, *others = sorted(size)
        n = size[node]
        rows = []
        for t, other in enumerate(others):
            n += size[other]
            rows.append([node, other, top + 1.0, n])
            node = m + len(Z) + t
        return np.concatenate([Z, np.array(rows).reshape(-1, 4)])


@reproducible()
def cluster(
    sides: Sides,
    *,
    prior: float | None = None,
    n_speakers: int | None = None,
    min_speakers: int | None = None,
    max_speakers: int | None = None,
    must_link: ArrayLike | None = None,
    cannot_link: ArrayLike | None = None,
    known: Sides | None = None,
    weight: float = 1.0,
    discount: float = 1.0,
    refine: bool = True,
    candidates: int | None = None,
    rounds_from: int = 20_000,
    top: Callable[[Sides, int], tuple[Array, Array]] = lambda sides, k: Scorer(sides).top(sides, k),
) -> Clustering:
    """The partition of sides into speakers; see `PLDA.cluster`.

    Parameters
    ----------
    candidates : the neighbours of each item at the beginning; None: 30, or 10 if there are many items
    rounds_from : tensors of at least this many items are clustered by guesses on their device
        (`duoplda.trials.rounds`). Fewer are clustered on the host, where gains are exact and many items take minutes
    top : top(sides, k) gives the k sides that score highest with each (itself included), and their ratios: (n, k) twice
    """
    _check_numbers(weight, discount, prior)
    if not len(sides):
        raise DuopldaError("there is nothing to cluster: give at least one recording")
    limits = _speaker_limits(n_speakers, min_speakers, max_speakers)
    # Where the prior is to be learned, merging goes down to the least concentration.
    objective = Objective(LEAST_LN_ALPHA if prior is None else math.log((1 - prior) / prior), weight, *limits)
    item, cannot = _constraints(sides, must_link, cannot_link)
    everyone, owner, item = _with_known(sides, known, item)
    evidence = DiagonalEvidence.of(everyone)
    n_sessions = float(everyone.n_sessions.sum())
    few = len(everyone) <= MOST_FOR_THOROUGH_SEARCH
    candidates = candidates or (30 if few else 10)
    unlimited = limits[0] == 1 and limits[1] >= len(everyone)
    unconstrained = known is None and not cannot and unlimited and discount == 1
    if unconstrained and len(everyone) >= rounds_from and is_torch(namespace(everyone.gamma)):
        return _by_rounds(sides, everyone, evidence, item, objective, prior is None, candidates)

    items = Items.of(evidence, everyone, owner, cannot, discount)
    # Equal items are one where they gain by a merge, whatever prior is learned later.
    surest = objective._replace(ln_alpha=most_ln_alpha(n_sessions)) if prior is None else objective
    if limits[0] == 1 and not cannot and (twin := _twins(items, surest)) is not None:
        item = twin[item]
        everyone, owner = _grouped(everyone, owner, twin)
        items = Items.of(evidence, everyone, owner, cannot, discount)
    n_items = int((items.owner < 0).sum())
    if limits[0] > max(n_items, 1):
        what = f"{n_items} items (sessions, or groups of them that must be together)"
        raise DuopldaError(f"at least {limits[0]} speakers are asked for, but there are {what}: ask for fewer")
    neighbours = None
    # Exact ratios of all pairs are products where few patterns occur; otherwise guesses find the neighbours.
    if discount == 1 and len(everyone.groups) <= MOST_PATTERNS:
        rows, ratios = top(everyone, candidates + 1)
        neighbours = to_numpy(rows), to_numpy(ratios)
    path = _merged(items, objective, few, candidates, neighbours)

    n_clusters = np.array([n_items, *(merge.n_clusters for merge in path.merges)])
    allowed = (n_clusters >= limits[0]) & (n_clusters <= limits[1])
    pulls = np.array([merge.gain + path.objective.ln_alpha for merge in path.merges])
    number_posterior: dict[int, float] = {}
    if prior is None and allowed.any():
        number_posterior = posterior_of_number(pulls, len(items.m), n_sessions, n_clusters, allowed)
        ln_alpha, n_merges = learn(pulls, len(items.m), n_sessions, allowed)
        objective = objective._replace(ln_alpha=ln_alpha)
    else:
        n_merges = best_on_path(pulls, objective.ln_alpha, allowed)
    tree = path.after(n_merges, objective.ln_alpha).merges
    p, splits, places = _improved(path, n_merges, objective, allowed, refine, few)
    return _answer(sides, known, item[: len(sides)], tree, p, places, splits, number_posterior)


def _check_numbers(weight: object, discount: object, prior: object) -> None:
    for name, value, high in (("weight", weight, math.inf), ("discount", discount, math.inf), ("prior", prior, 1.0)):
        if name == "prior" and value is None:
            continue
        if not isinstance(value, Real) or isinstance(value, bool) or not 0 < float(value) < high:
            what = "between 0 and 1" if high == 1 else "greater than 0"
            raise DuopldaError(f"{name}={value!r} must be a number {what}")


def _speaker_limits(n: int | None, low: int | None, high: int | None) -> tuple[int, int]:
    """The fewest and the most speakers that these options allow."""
    for name, value in (("n_speakers", n), ("min_speakers", low), ("max_speakers", high)):
        if value is not None and (not isinstance(value, Integral) or isinstance(value, bool) or value < 1):
            raise DuopldaError(f"{name}={value!r} must be a whole number from 1 on, or None")
    if n is not None:
        if low is not None or high is not None:
            raise DuopldaError("n_speakers fixes the number of speakers: leave out min_speakers and max_speakers")
        return int(n), int(n)
    fewest = int(low or 1)
    most = int(high or np.iinfo(np.int64).max)
    if fewest > most:
        raise DuopldaError(f"min_speakers={low} is more than max_speakers={high}")
    return fewest, most


# -- constraints


def pairs_of(pairs: ArrayLike | None, ids: NDArray[Any], name: str) -> Ints:
    """Pairs of row numbers, or of ids, as pairs (k, 2) of rows."""
    array = np.zeros((0, 2), np.int64) if pairs is None else np.asarray(pairs)
    if array.size == 0:
        return np.zeros((0, 2), np.int64)
    if array.ndim != 2 or array.shape[1] != 2:
        raise DuopldaError(f"`{name}` must be pairs, of shape (k, 2), got an array of shape {array.shape}")
    if array.dtype.kind in "iu" and ids.dtype.kind not in "iu":
        ids = np.arange(len(ids))
    order = np.argsort(ids, kind="stable")
    place = lab.places(array.reshape(-1), ids[order]) if array.dtype.kind in "iuU" else np.full(array.size, -1)
    unknown = list(dict.fromkeys(array.reshape(-1)[place < 0].tolist()))
    if unknown:
        remedy = "leave these pairs out, or give their embeddings"
        raise MissingIds(f"`{name}` names {len(unknown)} ids that are not to be clustered: {some(unknown)}; {remedy}")
    return order[place].reshape(-1, 2)


def _constraints(
    sides: Sides, must_link: ArrayLike | None, cannot_link: ArrayLike | None
) -> tuple[Ints, dict[int, set[int]]]:
    """The item of each side, and for each item those that must be in other clusters."""
    n = len(sides)
    together = pairs_of(must_link, sides.ids, "must_link")
    apart = pairs_of(cannot_link, sides.ids, "cannot_link")
    links = coo_array((np.ones(len(together)), (together[:, 0], together[:, 1])), shape=(n, n))
    component = connected_components(links, directed=False)[1]
    _, first, item = np.unique(component, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))  # items in the order of their first sides
    item = rank[item.reshape(-1)]
    both = np.flatnonzero(item[apart[:, 0]] == item[apart[:, 1]])
    if len(both):
        a, b = sides.ids[apart[both[0]]].tolist()
        why = (
            "is linked with itself"
            if a == b
            else f"and {b!r} are also linked by `must_link`, directly or through others"
        )
        what = f"{len(both)} pairs of `cannot_link` contradict `must_link`"
        raise DuopldaError(f"{what}: {a!r} {why}; leave out one of the two")
    cannot: dict[int, set[int]] = {}
    for a, b in item[apart].tolist():
        cannot.setdefault(a, set()).add(b)
        cannot.setdefault(b, set()).add(a)
    return item, cannot


def refuse_shared(session: NDArray[Any], known: Sides) -> None:
    """Refuse sessions with which known speakers have been enrolled."""
    common = np.intersect1d(as_text(np.asarray(session)), as_text(known.session))
    if len(common):
        raise DuopldaError(
            f"{len(common)} sessions are also sessions of known speakers, who would be recognised by these alone: "
            f"{some(common.tolist())}; leave them out"
        )


# -- items


def _with_known(sides: Sides, known: Sides | None, item: Ints) -> tuple[Sides, Ints, Ints]:
    """Items as sides, the known speaker that each of them stands for (-1: none), and the item of each side.

    `item` (n,) are the items of `sides`; each known speaker is a further item, and a further side, behind them.
    """
    everyone = sides
    owner = np.full(len(sides), -1)
    if known is not None:
        if not isinstance(known, Sides):
            raise DuopldaError(f"known must be speakers from `enroll`, got {type(known).__name__}")
        refuse_shared(sides.session, known)
        everyone = sides.unnamed([f"{i}" for i in range(len(sides))])
        everyone.add(known.unnamed([f"known {i}" for i in range(len(known))]))
        owner = np.append(owner, np.arange(len(known)))
        item = np.append(item, int(item.max()) + 1 + np.arange(len(known)))
    return *_grouped(everyone.weighed, owner, item), item


def _grouped(sides: Sides, owner: Ints, item: Ints) -> tuple[Sides, Ints]:
    """Items as sides, and the known speaker that each of them stands for (-1: none)."""
    return sides.grouped(item), owner[np.unique(item, return_index=True)[1]]


def _twins(items: Items, objective: Objective) -> Ints | None:
    """One item for all that are equal to the last bit, where two of these gain by a merge; None: there are no such.

    Thousands of equal items would all be each other's best neighbours. Known speakers stay apart: two of them who were
    enrolled with the same recordings are still two people.
    """
    rows = np.ascontiguousarray(np.column_stack([items.gamma, items.counts]))
    whole = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).reshape(-1)
    _, first, same, n = np.unique(whole, return_index=True, return_inverse=True, return_counts=True)
    if len(n) == len(whole):
        return None
    Q = items.evidence.exact(2 * items.counts[first], 2 * items.gamma[first])
    gain = objective.gain(Q - 2 * items.Q[first], items.m[first], items.m[first])
    single = (gain <= 0)[same] | (items.owner >= 0)
    key = np.where(single, np.arange(len(whole)), first[same])
    return np.unique(key, return_inverse=True)[1].reshape(-1)


# -- the search


def _merged(
    items: Items, objective: Objective, few: bool, candidates: int, neighbours: tuple[Ints, Floats] | None
) -> Partition:
    """The path of merges, from each item alone to beyond the best partition.

    `neighbours` are the items that score highest with each, and their exact ratios, (n, k) twice; without them guesses
    choose `candidates` for each.
    """
    # Merging goes on to where the least concentration would stop, so that a prior can be learned from the path.
    path = Partition(items, objective._replace(ln_alpha=min(objective.ln_alpha, LEAST_LN_ALPHA)))
    queue = Queue(path, slack=5.0) if few else Queue(path)  # nats: with few items there is time to look at more pairs
    if neighbours is None:
        queue.look(-np.inf, candidates)
    else:
        queue.add_best(*neighbours)
    queue.merge_all()
    return path


def _improved(
    path: Partition, n_merges: int, objective: Objective, allowed: NDArray[np.bool_], refine: bool, few: bool
) -> tuple[Partition, Splits, Places]:
    """The best partition that is found from a path of merges, of which the first `n_merges` lead to the best on it.

    `allowed` (t + 1,) says which partitions on the path keep to the limits. Of a few items all partitions are compared.
    """
    items = path.items
    best = optimum.best_of_all(items, objective) if optimum.is_affordable(items) else None
    if not allowed.any() and best is None:
        raise DuopldaError(
            f"cannot_link (or known speakers) leave no way to fewer than {path.n_clusters} speakers, and "
            f"{objective.most} are asked for: ask for more, or lift some constraints"
        )
    p = path.after(n_merges, objective.ln_alpha)
    if best is not None and (refine or not allowed.any()):
        return best, Splits(best, p.merges), best_places(best)
    if refine:  # of many items the moves take most of the time: they begin at the best partition alone
        return improve(path, n_merges, objective.ln_alpha, SHARES_ON_PATH if few else ())
    return p, Splits(p, p.merges), best_places(p)


def _by_rounds(
    sides: Sides,
    everyone: Sides,
    evidence: DiagonalEvidence,
    item: Ints,
    objective: Objective,
    learned: bool,
    candidates: int,
) -> Clustering:
    """The answer for very many items on a device; with `learned`, the prior follows from a first clustering."""
    if learned:  # merging in rounds has no path: the number of clusters that .02 leaves tells how many to expect
        first = rounds.find(everyone, evidence, objective._replace(ln_alpha=math.log(0.98 / 0.02)), candidates)
        ln_alpha = ln_alpha_of(len(first["sessions"]), float(everyone.n_sessions.sum()))
        objective = objective._replace(ln_alpha=ln_alpha)
    answer = rounds.find(everyone, evidence, objective, candidates)
    owner = np.full(len(answer["sessions"]), -1)  # no cluster is that of a known speaker
    return Clustering(
        ids=np.asarray(sides.ids),
        labels=answer.pop("labels")[item],
        names=_names(owner, None),
        known=owner >= 0,
        item=item,
        merges=np.zeros((0, 4)),
        leaves=len(everyone),
        prior=1 / (1 + math.exp(objective.ln_alpha)),
        exact=False,
        **answer,
    )


# -- the answer


def _answer(
    sides: Sides,
    known: Sides | None,
    item: Ints,
    tree: list[Merge],
    p: Partition,
    places: Places,
    splits: Splits,
    number_posterior: dict[int, float],
) -> Clustering:
    items = p.items
    n = int((items.owner < 0).sum())  # known speakers are the last items
    sessions = np.bincount(p.where[:n], items.m[:n], len(p.m))
    slots, first = np.unique(p.where[:n], return_index=True)
    slots = slots[np.lexsort((first, -sessions[slots]))]  # with more sessions first, then with the first items
    index = np.full(len(p.m) + 1, -1)  # the last one is for -1, no cluster
    index[slots] = np.arange(len(slots))
    owner = p.owner[slots]
    within = np.bincount(p.where, items.Q, len(p.m))
    nearest = np.full(len(slots), -1)
    merge = np.full(len(slots), -np.inf)
    for a, b, gain, _ in exact_pairs(p, slots):
        for row, other, value in ((index[a], index[b], gain), (index[b], index[a], gain)):
            order = np.argsort(value, kind="stable")  # of several in one row, the last and highest is kept
            order = order[value[order] > merge[row[order]]]
            nearest[row[order]] = other[order]
            merge[row[order]] = value[order]
    runner_up, margin = _margins(p, places)
    posterior = speakers(p.evidence.G, Patterns(p.counts[slots]), p.gamma[slots])
    return Clustering(
        ids=np.asarray(sides.ids),
        labels=index[p.where[item]],
        names=_names(owner, known),
        known=owner >= 0,
        sessions=sessions[slots].astype(np.int64),
        support=(p.Q - within)[slots],
        split=np.array([splits[slot].loss for slot in slots.tolist()]),
        nearest=nearest,
        merge=merge,
        item=item,
        runner_up=index[runner_up[:n]],
        margin=margin[:n],
        merges=np.array([merge[:4] for merge in tree]).reshape(-1, 4),
        leaves=len(items.m),
        log_posterior=p.log_posterior,
        means=posterior.mean @ p.evidence.basis.T,
        prior=1 / (1 + math.exp(p.objective.ln_alpha)),
        number_posterior=number_posterior,
        exact=places.exact and every_pair_is_cheap(p, len(slots)),
    )


def _names(owner: Ints, known: Sides | None) -> NDArray[Any]:
    """The ids of known speakers, and for others spk1, spk2, ..., without names that a known speaker has."""
    ids = [] if known is None else [str(name) for name in known.ids.tolist()]
    taken = set(ids)
    numbered = (f"spk{n}" for n in itertools.count(1))
    free = (name for name in numbered if name not in taken)
    return np.array([ids[k] if k >= 0 else next(free) for k in owner.tolist()])


def _margins(p: Partition, places: Places) -> tuple[Ints, Floats]:
    """For each item the second-best cluster (its slot, -1: alone), and how much worse it is: exact if small."""
    small = 3.0  # nats, as the documentation of `Clustering` says
    stay = places.stay.copy()
    other = places.other.copy()
    alone = p.m[p.where] - p.items.m <= 0
    gain = np.where(other >= 0, places.gain, np.where(alone, -np.inf, 0.0))
    if places.exact:
        return other, stay - gain
    for i in np.flatnonzero((stay - gain < small) & (p.items.owner < 0)).tolist():
        stay[i] = exact_gain(p, i, int(p.where[i]))[0]
        if other[i] >= 0:
            gain[i] = exact_gain(p, i, int(other[i]))[0]
            if not alone[i] and gain[i] < 0:
                other[i] = -1
                gain[i] = 0.0
    return other, stay - gain
