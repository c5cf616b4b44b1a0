"""How far recordings are from the training data of a chain, and a warning where its ratios may mislead.

    D = |mean of (x - m) M|^2

m is the mean of the training data and M (k, d) the matrices of the chain up to whitening, so that the total variance is
d. With `center_by_channel`, m is the mean of the recording's kind. A chain that does not whiten before it normalises
lengths (a PLDA alone, LDA alone, the chain of VBx), and an adapted model, are measured in the space of the PLDA, in
terms of the total covariance of the model:

    D = (mean of z - mu)' T^-1 (mean of z - mu),    T = B + S + N + C,    mu = sum_k p_k mu_k,
    B = VV',    S = UU',    N = sum_k p_k W_k^-1,    C = sum_k p_k (mu_k - mu)(mu_k - mu)'

Under the model, the mean of some recordings has the covariance A = b B + S / n_sessions + N / n_recordings + C, where C
is not divided, as all recordings may be of one kind. Here 1 / n is the sum of the squared shares of the recordings that
each speaker (session, recording) has. With M training speakers, b = (1 / n_speakers + 1 / M) / (1 - tr(T^-1 B) / M):
the mean of the training data scatters as well, and new speakers are farther away than those from whom T was estimated.
If the mean of all recordings of a domain is at a squared distance of .06 d, D is a sum of squares with mean .06 d +
tr(T^-1 A) and variance 2 tr(T^-1 A T^-1 A) + .24 tr(T^-1 A) + .2 (b tr(T^-1 B))^2 / n_speakers, which has about a gamma
distribution. A distance beyond the .99 quantile of that distribution is too far.

Only sums of vectors are needed: a `Seen`, which sides and blocks of scores carry. Who speaks is rarely known, and
models are not speakers, as each recording of a few speakers may be a model. So speakers are counted in two ways, and
the lower limit holds. In one, clusters of a sample of the sides count as speakers; these are too few where speakers are
hard to tell apart, or where recordings are so far away that they look alike. In the other, the scatter of the sides
gives each number of speakers a probability (`duoplda.trials.scatter`), by which the distributions of D are mixed.
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


MAX_SIDES = 150  # whose clusters are counted: it takes some tenths of a second, and a mean of 150 hardly varies


@dataclass(frozen=True, eq=False)
class WhiteLevels:
    """The covariances B, S, N and C of a model, relative to T."""

    model: Model
    factor: Floats  # (d, d) of Cholesky, of T
    traces: Floats  # (4,) of T^-1 B, ...
    products: Floats  # (4, 4) traces of T^-1 B T^-1 S, ...


@dataclass(eq=False)
class DomainMemory:
    """What a chain remembers: whether it has warned, as it does so once, and the levels of its last model."""

    warned: bool = False
    levels: WhiteLevels | None = None


class Spread(NamedTuple):
    """The effective numbers of speakers, sessions and recordings of a mean: it varies as much as the mean of this many
    speakers (sessions, recordings) with equally many recordings each.

    >>> Spread.of([0, 0, 0, 1], [0, 0, 1, 2])
    Spread(n_speakers=1.6, n_sessions=2.6666666666666665, n_recordings=4.0)
    """

    n_speakers: float
    n_sessions: float
    n_recordings: float

    @staticmethod
    def of(speaker: ArrayLike, session: ArrayLike | None = None) -> Spread:
        """The spread of recordings of known speakers and sessions; without these, each recording is a session."""
        n = len(np.asarray(speaker))
        return Spread(_equal(_sizes(speaker)), float(n) if session is None else _equal(_sizes(session)), float(n))


def _sizes(labels: ArrayLike) -> Floats:
    return np.unique(np.asarray(labels), return_counts=True)[1].astype(float)


def _equal(sizes: NDArray[Any], n: NDArray[Any] | float = 1.0) -> float:
    """The number of equal parts whose squared shares have the same sum as those of `n` parts of each of these sizes."""
    return float((n * sizes).sum() ** 2 / (n * sizes**2).sum())


class Domain(NamedTuple):
    """The distance of recordings from the training data, and its limit. Beyond the limit, ratios may mislead.

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
        """Whether the distance is one that recordings like the training data may have."""
        return not self.distance > self.limit


def limit(chain: ScoresTrials, spread: Spread, number: NumberOfSpeakers | None = None) -> float:
    """The largest distance that does not count as another domain, for the mean of recordings with this spread.

    With `number`, the number of speakers is one of several, each with a probability, instead of that of the spread.

    >>> from duoplda import Backend, PLDA
    >>> chain = Backend.from_plda(PLDA.from_parameters([0.0, 0.0], np.eye(2), None, np.eye(2)))
    >>> [round(limit(chain, Spread(n, n, n)), 2) for n in (1, 10, 1000)]
    [9.96, 1.37, 0.18]
    """
    # How far recordings of the same domain may be, such as those of one channel of five. With .045, 5 to 8 % of draws
    # of five speakers and one channel of so762 were false alarms; with .06, 2 %.
    tolerance = 0.06
    # The squared distances of real speakers vary more than those of a Gaussian; this is the additional relative
    # variance. With 0, one held-out training speaker of so762 was a false alarm in 8 to 18 % of draws; with .2, in 0 to
    # 5 %.
    uneven = 0.2
    exceeded = 0.01  # the share of recordings of the same domain that are beyond the limit
    levels = _levels(chain)
    n, probability = number or NumberOfSpeakers(np.array([spread.n_speakers]), np.ones(1))
    share = 1 / np.tile([*spread, 1.0], (len(n), 1))
    share[:, 0] = 1 / n
    n_trained = chain.counts_.get("speakers", 0)
    if n_trained:  # the mean of the training data scatters as well
        share[:, 0] += 1 / n_trained
        # T has been estimated from these speakers. Without speaker i, whose mean is b, it is T_i = T - bb' / M, and
        # b' T_i^-1 b = h / (1 - h / M) with h = b' T^-1 b: this is how far a new speaker is from the mean.
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
    """The levels of the chain's PLDA; they are kept, as each call of `llr` needs them."""
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
    """Sum up recordings `X` (n, k) about the mean of a fitted chain; `Z` are the same recordings after its steps.

    If `Z` is not given, it is computed where it is needed. The result is None where numbers are too large to add up.

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

    `wanted` are ids of the recordings to sum up, if not all; ids that do not exist are ignored.

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
    """Ids and sums of one part of recordings, chunk by chunk; it can be sent to the workers of a cluster."""
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
    """The matrices after the centring, up to whitening; None if a length normalisation or the PLDA comes before that.

    It is also None for an adapted model, whose whitening is that of the source, and not of the target.
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
    """Whether distances are measured after the whitening of the chain, and not in the space of its PLDA."""
    return _matrices(chain) is not None


def distance(chain: ScoresTrials, seen: Seen) -> float:
    """The squared distance D of recordings that were summed up with this fitted chain.

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
    """The distance of recordings that were summed up with this fitted chain, and its limit.

    `spread` may be a number of speakers, each with equally many recordings in as many sessions. Only the mean is
    compared: recordings with the mean of the training data and other covariances are not noticed.

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
    """`measure` with the number of speakers of the spread, or as the scatter of sides tells: the lower limit holds.

    >>> from duoplda import Backend, PLDA
    >>> chain = Backend.from_plda(PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]]))
    >>> sides = chain.enroll(2 * np.arange(-1.0, 4.0)[:, None], range(5))
    >>> one = Spread(1, 5, 5)  # for all are alike
    >>> round(measure(chain, sides.seen, one).limit, 2), round(measure_sides(chain, sides.seen, one, [sides]).limit, 2)
    (4.5, 2.16)
    """
    measured = measure(chain, seen, spread)
    # Sides are made with `ratio_model_`, in which the speaker level may be scaled.
    of_sides = np.sum(to_numpy(sides[0].model.V) ** 2)
    if not measured.within or not of_sides:  # if speakers do not differ, the scatter does not tell their number
        return measured
    variance = float(np.sum(to_numpy(chain.plda_.speaker_loadings_) ** 2) / of_sides)
    number = number_by_scatter(sides, variance)
    by_scatter = limit(chain, spread, number)
    if by_scatter >= measured.limit:
        return measured
    speakers = 1 / float(number.probability @ (1 / number.n))
    return measured._replace(limit=by_scatter, n_speakers=round(speakers))


def spread_of(sides: Sequence[Sides]) -> Spread:
    """The spread of all recordings of some sides, with clusters of at most `MAX_SIDES` of these as speakers.

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

    If it is not known who speaks, `sides` are those of all recordings or of a sample of them, and their scatter tells
    how many speakers there may be. Without a `spread`, their clusters are counted as well, but only if the distance is
    too large for as many speakers as there are sides. If `seen` is None, there is no warning: what the sides are made
    of is not known. `warnings.filterwarnings("ignore", category=duoplda.DomainWarning)` silences the warning.

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
        return  # they were summed up by another chain, with other steps
    if spread is None:
        most = Spread(sum(len(side) for side in sides), _equal(*_sessions(sides)), seen.n)
        if measure(chain, seen, most).within:
            return
        spread = spread_of(sides)._replace(n_recordings=seen.n)
    measured = measure_sides(chain, seen, spread, sides) if sides else measure(chain, seen, spread)
    if measured.within:
        return
    memory.warned = True
    speakers = "one speaker" if measured.n_speakers == 1 else f"about {measured.n_speakers:,} speakers"
    counts = "one recording" if seen.n == 1 else f"{seen.n:,} recordings of {speakers}"
    warnings.warn(
        f"these recordings are not like those that the model was trained on: their mean is at a squared distance of "
        f"{measured.distance:.3g} from it, up to {measured.limit:.3g} is usual for {counts}. Ratios may mislead: adapt "
        "the model to such recordings with `duoplda adapt` or Backend.adapt",
        DomainWarning,
        stacklevel=stacklevel,
    )


def check_sides(chain: ScoresTrials, enrolled: Sides, tests: Sides, *, may_be_copies: bool = False) -> None:
    """Warn, as `check` does, if all recordings of both sides of trials together are too far from the training data.

    With `may_be_copies`, the recordings of one speaker count as one, as nobody knows whether they are copies.

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
