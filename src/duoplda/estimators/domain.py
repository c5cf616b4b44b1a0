"""How far recordings lie from those that a chain was trained on, and a warning where that is too far for its ratios.

    D = |mean of (x - m) M|^2

m is the mean of the training data and M (k, d) the matrices of the chain up to whitening, so that the total variance is
d. With `center_by_channel`, m is the mean of the recording's kind. A chain that does not whiten before it normalises
lengths (a PLDA alone, LDA alone, the chain of VBx), and an adapted model, are measured in the space of the PLDA, in
terms of the total covariance of the model:

    D = (mean of z - mu)' T^-1 (mean of z - mu),    T = B + S + N + C,    mu = sum_k p_k mu_k,
    B = VV',    S = UU',    N = sum_k p_k W_k^-1,    C = sum_k p_k (mu_k - mu)(mu_k - mu)'

Under the model the mean scatters by A = b B + S / n_sessions + N / n_recordings + C, as all may be of one kind. Here
1 / n is the sum of the squared shares of the recordings that each speaker (session, recording) has. With M training
speakers, b = (1 / n_speakers + 1 / M) / (1 - tr(T^-1 B) / M): the mean of the training data scatters, too, and new
speakers lie farther off than those from whom T was estimated. Where the mean of all recordings of a domain is at a
squared distance of .06 d, D is a sum of squares with mean .06 d + tr(T^-1 A) and variance 2 tr(T^-1 A T^-1 A) +
.24 tr(T^-1 A) + .2 (b tr(T^-1 B))^2 / n_speakers, about a gamma distribution. Too far is beyond its quantile of .99.

Only sums of vectors are needed: a `Seen`, which sides and blocks of scores carry. Who speaks is rarely known; models
are not speakers, as each recording of a few speakers may be a model. So speakers are counted in two ways, and the lower
limit holds. Clusters of a sample of the sides count as speakers; where speakers are hard to tell apart, or recordings
are far off and thus alike, there are too few of them. And the scatter of the sides gives each number of speakers a
probability (`duoplda.trials.scatter`), with which the distributions of D are mixed.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular
from scipy.optimize import brentq
from scipy.stats import gamma

from duoplda.arrays import Array, check_finite, namespace, take, to_numpy
from duoplda.data import Recordings
from duoplda.data import labels as lab
from duoplda.errors import DomainWarning, DuopldaError
from duoplda.estimators.preprocessing import LDA, Center, Whiten, through
from duoplda.model.parameters import Model
from duoplda.model.summary import level_covariances
from duoplda.trials.clustering import cluster
from duoplda.trials.scatter import NumberOfSpeakers, number_by_scatter
from duoplda.trials.sides import Seen, Sides, seen_together

if TYPE_CHECKING:
    from duoplda.estimators.plda import ScoresTrials

__all__ = [
    "Domain",
    "Seen",
    "Spread",
    "check",
    "check_sides",
    "distance",
    "limit",
    "look",
    "measure",
    "measure_sides",
    "see",
    "spread_of",
]

Floats = NDArray[np.float64]


MAX_SIDES = 150  # whose clusters are counted: some tenths of a second, and the mean of 150 speakers hardly varies


@dataclass(frozen=True, eq=False)
class WhiteLevels:
    """What the covariances B, S, N and C of a model are in terms of T."""

    model: Model
    factor: Floats  # (d, d) of Cholesky, of T
    traces: Floats  # (4,) of T^-1 B, ...
    products: Floats  # (4, 4) traces of T^-1 B T^-1 S, ...


@dataclass(eq=False)
class DomainMemory:
    """What a chain remembers: whether it has warned, since once is enough, and the levels of its last model."""

    warned: bool = False
    levels: WhiteLevels | None = None


class Spread(NamedTuple):
    """How many speakers, sessions and recordings a mean is of, as many as would make it vary as much if all had equally
    many recordings.

    >>> Spread.of([0, 0, 0, 1], [0, 0, 1, 2])
    Spread(n_speakers=1.6, n_sessions=2.6666666666666665, n_recordings=4.0)
    """

    n_speakers: float
    n_sessions: float
    n_recordings: float

    @staticmethod
    def of(speaker: ArrayLike, session: ArrayLike | None = None) -> Spread:
        """Of recordings whose speakers are known, and their sessions; without these each is a session of its own."""
        n = len(np.asarray(speaker))
        return Spread(_equal(_sizes(speaker)), float(n) if session is None else _equal(_sizes(session)), float(n))


def _sizes(labels: ArrayLike) -> Floats:
    return np.unique(np.asarray(labels), return_counts=True)[1].astype(float)


def _equal(sizes: NDArray[Any], n: NDArray[Any] | float = 1.0) -> float:
    """How many parts of one size have the sum of squared shares that parts of these sizes have, `n` of each size."""
    return float((n * sizes).sum() ** 2 / (n * sizes**2).sum())


class Domain(NamedTuple):
    """The distance of recordings from the training data, and what it is compared with.

    >>> Domain(distance=43.0, limit=16.9, n_dimensions=192, n_recordings=3150, n_speakers=18).within
    False
    """

    distance: float
    limit: float
    n_dimensions: int
    n_recordings: int
    n_speakers: int

    @property
    def within(self) -> bool:
        """Whether the distance is one that recordings of the same domain have."""
        return not self.distance > self.limit


def limit(chain: ScoresTrials, spread: Spread, number: NumberOfSpeakers | None = None) -> float:
    """The largest distance that does not count as another domain, for the mean of recordings with this spread.

    With `number`, the number of speakers is one of several, each with a probability, instead of that of the spread.

    >>> from duoplda import Backend, PLDA
    >>> chain = Backend.from_plda(PLDA.from_parameters([0.0, 0.0], np.eye(2), None, np.eye(2)))
    >>> [round(limit(chain, Spread(n, n, n)), 2) for n in (1, 10, 1000)]
    [9.96, 1.37, 0.18]
    """
    # What recordings at home may differ by, such as those of one channel of five. With .045, 5 to 8 % of draws of five
    # speakers and one channel of so762 were false alarms, and 2 % with .06.
    tolerance = 0.06
    # Real speakers lie near or far, more than those of a Gaussian do: so much more does their squared distance vary, as
    # a relative variance. With 0, one held-out training speaker of so762 was a false alarm in 8 to 18 % of draws, with
    # .2 in 0 to 5 %.
    uneven = 0.2
    exceeded = 0.01  # the share of cases
    levels = _levels(chain)
    n, probability = number or NumberOfSpeakers(np.array([spread.n_speakers]), np.ones(1))
    share = 1 / np.tile([*spread, 1.0], (len(n), 1))
    share[:, 0] = 1 / n
    n_trained = chain.counts_.get("speakers", 0)
    if n_trained:  # the mean of the training data scatters as well
        share[:, 0] += 1 / n_trained
        # T has been estimated from these speakers. Without speaker i, whose mean is b, it is T_i = T - bb' / M, and
        # b' T_i^-1 b = h / (1 - h / M) with h = b' T^-1 b: so far do new speakers lie from the mean.
        share[:, 0] /= max(1 - levels.traces[0] / n_trained, 0.1)
    scatter = share @ levels.traces
    mean = scatter + tolerance * len(levels.factor)
    variance = 2 * np.vecdot(share @ levels.products, share) + 4 * tolerance * scatter
    variance += uneven * (share[:, 0] * levels.traces[0]) ** 2 / n
    distribution = gamma(mean**2 / variance, scale=variance / mean)
    limits = distribution.isf(exceeded)
    low = 0.999 * float(limits.min())
    high = 1.001 * float(limits.max())
    return float(brentq(lambda D: probability @ distribution.sf(D) - exceeded, low, high, xtol=1e-12, rtol=1e-12))


def _levels(chain: ScoresTrials) -> WhiteLevels:
    """Of the chain's PLDA; they are kept, as each call of `llr` asks for them."""
    plda = chain.plda_
    memory = chain.domain_memory
    if memory.levels is None or memory.levels.model is not plda.model_:
        parts = plda.speaker_loadings_, plda.session_loadings_, plda.noise_precision_, plda.channel_priors_
        apart = (to_numpy(plda.channel_means_) - to_numpy(plda.mean_)) * np.sqrt(to_numpy(plda.channel_priors_))[
            :, None
        ]
        covariances = [*level_covariances(*parts), apart.T @ apart]
        L = np.linalg.cholesky(sum(covariances))
        white = [solve_triangular(L, solve_triangular(L, C, lower=True).T, lower=True) for C in covariances]
        products = np.array([[np.vdot(a, b) for b in white] for a in white])
        memory.levels = WhiteLevels(plda.model_, L, np.array([np.trace(a) for a in white]), products)
    return memory.levels


# -- what is summed up


def see(chain: ScoresTrials, X: Array, Z: Array | None = None, channel: ArrayLike | None = None) -> Seen | None:
    """Sum up recordings `X` (n, k), about the mean of a fitted `Backend`; `Z` are the same after its steps.

    Without `Z` they are made where they are needed. None: there are numbers too large to add up.

    >>> from duoplda import Backend, PLDA
    >>> chain = Backend.from_plda(PLDA.from_parameters([1.0], [[1.0]], None, [[1.0]]))
    >>> see(chain, np.array([[2.0], [5.0]]))
    Seen(n=2, sum=array([5.]), inside=True)
    """
    n = X.shape[0]
    inside = not whitens(chain)
    if not inside:
        rows = X
        center = next(iter(chain.steps_.values()))
        shift = n * center.mean_
        if center.by_channel and channel is not None:
            kind = lab.codes_among(channel, center.channels_, n)
            times = np.bincount(kind + 1, minlength=len(center.channels_) + 1)  # -1: the kind is not known
            shift = times[0] * center.mean_ + times[1:] @ center.channel_means_
    else:
        rows = through(chain.steps_, X, channel) if Z is None else Z
        shift = n * to_numpy(chain.plda_.mean_)
    with np.errstate(over="ignore", invalid="ignore"):
        total = to_numpy(namespace(rows).sum(rows, axis=0, dtype=namespace(rows).float64)) - shift
    return Seen(n, total, inside) if np.isfinite(total).all() else None


def look(
    chain: ScoresTrials, recordings: Recordings, wanted: Collection[Any] | None = None
) -> tuple[Seen, NDArray[Any]]:
    """Sum up recordings that need not fit in memory, and return the ids of those that were summed up.

    `wanted` are ids of recordings, where not all are meant; those that do not exist are passed over.

    >>> from duoplda import Backend, PLDA
    >>> chain = Backend.from_plda(PLDA.from_parameters([1.0], [[1.0]], None, [[1.0]]))
    >>> look(chain, Recordings.from_arrays([[2.0], [5.0]], ids=["a", "b"]), ["b", "c"])
    (Seen(n=1, sum=array([4.]), inside=True), array(['b'], dtype='<U1'))
    """
    total = Seen()
    ids = list[NDArray[Any]]()
    for names, seen in recordings.map(partial(_look_at, chain, None if wanted is None else frozenset(wanted))):
        ids.append(names)
        total = total + seen
    return total, np.concatenate(ids) if ids else np.zeros(0, "U1")


def _look_at(
    chain: ScoresTrials, wanted: frozenset[Any] | None, part: Recordings
) -> Iterator[tuple[NDArray[Any], Seen]]:
    """Ids and sums of one part of recordings, chunk by chunk; a function that can be sent to workers of a cluster."""
    d = chain.n_features_in_
    for chunk in part.chunks():
        X = chunk.X
        ids = chunk.names
        if wanted is not None:
            keep = np.flatnonzero([name in wanted for name in ids.tolist()])
            X = take(X, keep)
            ids = ids[keep]
        if not len(ids):
            continue
        if X.shape[1] != d:
            raise DuopldaError(f"vectors have {X.shape[1]} dimensions, the model takes {d}")
        check_finite(X, ids)
        seen = see(chain, X)
        if seen is not None:
            yield ids, seen


# -- what is made of the sums


def _matrices(chain: ScoresTrials) -> list[Floats] | None:
    """The matrices that follow the centre, up to whitening; None where a length or the PLDA comes before that.

    None for an adapted model, too: its whitening is that of the source, its total covariance that of the target.
    """
    if chain.plda_.adapted_ is not None:
        return None
    steps = list(chain.steps_.values())
    matrices = list[Floats]()
    for step in steps[1:] if steps and isinstance(steps[0], Center) else ():
        if not isinstance(step, (LDA, Whiten)):
            break
        matrices.append(step.matrix_)
        if isinstance(step, Whiten):
            return matrices
    return None


def whitens(chain: ScoresTrials) -> bool:
    """Whether distances are measured where the chain whitens; else they are in the space of its PLDA."""
    return _matrices(chain) is not None


def distance(chain: ScoresTrials, seen: Seen) -> float:
    """D of recordings that were summed up with this fitted `Backend`.

    >>> from duoplda import Backend, PLDA
    >>> from duoplda.datasets import make_recordings
    >>> X, speaker, session, _ = make_recordings(60, seed=0)
    >>> chain = Backend(plda=PLDA(8, 8)).fit(X, speaker, session=session)
    >>> distance(chain, see(chain, X)) < 1e-12, distance(chain, see(chain, X + 1)) > 10
    (True, True)
    """
    mean = seen.sum / seen.n
    matrices = _matrices(chain)
    if matrices is not None:
        for M in matrices:
            mean = mean @ M
        with np.errstate(over="ignore"):  # then the distance is infinite
            return float(mean @ mean)
    mean = solve_triangular(_levels(chain).factor, mean, lower=True)
    with np.errstate(over="ignore"):  # infinitely far
        return float(mean @ mean)


def measure(chain: ScoresTrials, seen: Seen, spread: Spread | int) -> Domain:
    """The distance of recordings that were summed up with this fitted `Backend`, and its limit.

    `spread` may be a number of speakers, with equally many recordings each in as many sessions. It looks at the mean
    alone: recordings whose covariances are not those of the training data go unnoticed.

    >>> from duoplda import Backend, PLDA
    >>> chain = Backend.from_plda(PLDA.from_parameters([1.0], [[1.0]], None, [[1.0]]))
    >>> measured = measure(chain, see(chain, np.array([[5.0], [5.0]])), 2)
    >>> round(measured.distance, 3), round(measured.limit, 3), measured.within
    (8.0, 3.712, False)
    """
    if not isinstance(spread, Spread):
        spread = Spread(spread, seen.n, seen.n)
    d = len(_levels(chain).factor)
    return Domain(distance(chain, seen), limit(chain, spread), d, seen.n, round(spread.n_speakers))


def measure_sides(chain: ScoresTrials, seen: Seen, spread: Spread, sides: Sequence[Sides]) -> Domain:
    """`measure`, or the same with a number of speakers that the scatter of sides tells, whichever limit is lower.

    >>> from duoplda import Backend, PLDA
    >>> chain = Backend.from_plda(PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]]))
    >>> sides = chain.enroll(2 * np.arange(-1.0, 4.0)[:, None], range(5))
    >>> one = Spread(1, 5, 5)  # for all are alike
    >>> round(measure(chain, sides.seen, one).limit, 2), round(measure_sides(chain, sides.seen, one, [sides]).limit, 2)
    (4.5, 2.16)
    """
    found = measure(chain, seen, spread)
    # Sides are summed up with the model that serves ratios, whose speakers may be scaled.
    of_sides = np.sum(to_numpy(sides[0].model.V) ** 2)
    if not found.within or not of_sides:  # where speakers do not differ, nothing scatters with their number
        return found
    variance = float(np.sum(to_numpy(chain.plda_.speaker_loadings_) ** 2) / of_sides)
    number = number_by_scatter(sides, variance)
    by_scatter = limit(chain, spread, number)
    if by_scatter >= found.limit:
        return found
    speakers = 1 / float(number.probability @ (1 / number.n))
    return found._replace(limit=by_scatter, n_speakers=round(speakers))


def spread_of(sides: Sequence[Sides]) -> Spread:
    """The spread of all recordings of some sides, where clusters of at most `MAX_SIDES` of them count as speakers.

    >>> from duoplda import PLDA
    >>> plda = PLDA.from_parameters([0.0], [[10.0]], None, [[1.0]])
    >>> spread_of([plda.enroll([[9.0], [9.1], [-8.0], [-8.1]], range(4))])
    Spread(n_speakers=2.0, n_sessions=4.0, n_recordings=4.0)
    """
    sessions = _sessions(sides)
    n_recordings = sum(float(side.counts.sum(axis=0) @ side.types.sum(axis=1)) for side in sides)
    total = sum(len(side) for side in sides)
    chosen = np.sort(np.random.default_rng(0).permutation(total)[:MAX_SIDES])
    sample: Sides | None = None
    start = 0
    for side in sides:
        rows = chosen[(chosen >= start) & (chosen < start + len(side))]
        part = side.select(rows - start).unnamed(rows)
        sample = part if sample is None else sample.add(part)
        start += len(side)
    assert sample is not None
    sample = sample.select(sample.counts.any(axis=1))
    size = sample.counts @ sample.types.sum(axis=1)
    speakers = np.bincount(cluster(sample).labels, size)
    return Spread(_equal(speakers), _equal(*sessions), n_recordings)


def _sessions(sides: Sequence[Sides]) -> tuple[Floats, Floats]:
    """(C,) the numbers of recordings of sessions by type, and how many sessions there are of each type."""
    sizes = np.concatenate([side.types.sum(axis=1) for side in sides])
    return sizes.astype(float), np.concatenate([side.counts.sum(axis=0) for side in sides]).astype(float)


def check(
    chain: ScoresTrials, seen: Seen | None, spread: Spread | None, stacklevel: int = 4, sides: Sequence[Sides] = ()
) -> None:
    """Warn, once for each chain, if recordings are too far from its training data.

    Where it is not known who speaks, `sides` are those of all recordings, or of a sample of them. Their scatter tells
    of the number of speakers, and without a `spread` their clusters are counted, if the distance is too large for as
    many speakers as there are sides. Nothing is said of sides of which it is not known what they have seen.
    `warnings.filterwarnings("ignore", category=duoplda.DomainWarning)` silences the warning.

    >>> from duoplda import Backend, PLDA
    >>> chain = Backend.from_plda(PLDA.from_parameters([1.0], [[1.0]], None, [[1.0]]))
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     for n_speakers in (1, 3, 3):
    ...         check(chain, see(chain, np.array([[4.0], [5.0], [3.0]])), Spread(n_speakers, 3, 3))
    >>> [w.category.__name__ for w in caught]
    ['DomainWarning']
    """
    memory = chain.domain_memory
    if seen is None or not seen.n or memory.warned or seen.inside is whitens(chain):
        return
    if len(seen.sum) != (chain.plda_.n_features_in_ if seen.inside else chain.n_features_in_):
        return  # another chain, with other steps, has seen them
    if spread is None:
        most = Spread(sum(len(side) for side in sides), _equal(*_sessions(sides)), seen.n)
        if measure(chain, seen, most).within:
            return
        spread = spread_of(sides)._replace(n_recordings=seen.n)
    found = measure_sides(chain, seen, spread, sides) if sides else measure(chain, seen, spread)
    if found.within:
        return
    memory.warned = True
    speakers = "one speaker" if found.n_speakers == 1 else f"about {found.n_speakers:,} speakers"
    counts = "one recording" if seen.n == 1 else f"{seen.n:,} recordings of {speakers}"
    warnings.warn(
        f"these recordings are not like those that the model was trained on: their mean is at a squared distance of "
        f"{found.distance:.3g} from it, up to {found.limit:.3g} is usual for {counts}. Ratios may mislead: adapt "
        "the model to such recordings with `duoplda adapt` or Backend.adapt",
        DomainWarning,
        stacklevel=stacklevel,
    )


def check_sides(chain: ScoresTrials, enrolled: Sides, tests: Sides, *, may_be_copies: bool = False) -> None:
    """`check` for all recordings of both sides of trials.

    Where nothing is known of the recordings, those of one speaker may all be copies of one of them.

    >>> from duoplda import Backend, PLDA
    >>> chain = Backend.from_plda(PLDA.from_parameters([1.0], [[1.0]], None, [[1.0]]))
    >>> sides = chain.enroll([[0.0], [2.0], [1.5], [0.5]], ["a", "b", "c", "d"])
    >>> check_sides(chain, sides, sides)  # no warning: their mean is that of the model
    """
    both = [enrolled] if tests is enrolled else [enrolled, tests]
    seen = enrolled.seen if tests is enrolled else seen_together(enrolled.seen, tests.seen)
    spread = None
    if may_be_copies and seen is not None and seen.n:
        n = spread_of(both).n_speakers
        spread = Spread(n, n, n)
    check(chain, seen, spread, 5, both)
