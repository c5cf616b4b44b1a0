"""How far recordings lie from those that a chain was trained on, and a warning where that is too far for its ratios.

    D = |mean of (x - m) M|^2,    too far: D > d (.06 + .5 / n_speakers + 1 / n_recordings)

m is the mean of the training data and M (k, d) the matrices of the chain up to whitening, so that the total variance is
d. With `center_by_channel`, m is the mean of the recording's kind. The limit allows for what the mean of so many
speakers and recordings varies by itself. A chain that does not whiten before it normalises lengths (a PLDA alone, LDA
alone, the chain of VBx), and an adapted model, are measured in the space of the PLDA, in terms of the total covariance
of the model:

    D = (mean of z - mu)' T^-1 (mean of z - mu),    T = VV' + UU' + sum_k p_k W_k^-1,    mu = sum_k p_k mu_k

Only sums of vectors are needed: a `Seen`, which sides and blocks of scores carry.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular

from duoplda.arrays import Array, namespace, take, to_numpy
from duoplda.data import Recordings
from duoplda.data import labels as lab
from duoplda.errors import DomainWarning, DuopldaError
from duoplda.estimators import checks
from duoplda.estimators.preprocessing import LDA, Center, Whiten, through
from duoplda.model.parameters import Model
from duoplda.model.summary import level_covariances
from duoplda.trials.sides import Seen, Sides, seen_together

__all__ = ["Domain", "Seen", "check", "check_sides", "distance", "limit", "look", "measure", "see"]

Floats = NDArray[np.float64]


@dataclass(eq=False)
class DomainMemory:
    """What a chain remembers: whether it has warned, since once is enough, and the last Cholesky factor of T."""

    warned: bool = False
    model: Model | None = None  # whose factor it is
    factor: Floats | None = None


class MeasuredChain(Protocol):
    """A fitted `Backend`, or what adaptation makes of one."""

    @property
    def plda_(self) -> Any:
        """The fitted PLDA."""

    @property
    def steps_(self) -> dict[str, Any]:
        """The fitted steps before it, by name."""

    @property
    def domain_memory(self) -> DomainMemory:
        """What this very chain remembers; copies and files of it start anew."""


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


def limit(d: int, n_speakers: int, n_recordings: int) -> float:
    """The largest distance that does not count as another domain: d (.06 + .5 / n_speakers + 1 / n_recordings).

    >>> limit(200, 10, 100)
    24.0
    """
    return d * (0.06 + 0.5 / n_speakers + 1 / n_recordings)


# -- what is summed up


def see(chain: MeasuredChain, X: Array, Z: Array | None = None, channel: ArrayLike | None = None) -> Seen | None:
    """Sum up recordings `X` (n, k), about the mean of a fitted `Backend`; `Z` are the same after its steps.

    Without `Z` they are made where they are needed. None: there are numbers too large to add up.

    >>> from duoplda import Backend, PLDA
    >>> chain = Backend.from_plda(PLDA.from_parameters([1.0], [[1.0]], None, [[1.0]]))
    >>> see(chain, np.array([[2.0], [5.0]]))
    Seen(n=2, sum=array([5.]))
    """
    n = X.shape[0]
    if whitens(chain):
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
    return Seen(n, total) if np.isfinite(total).all() else None


def look(
    chain: MeasuredChain, recordings: Recordings, wanted: Collection[Any] | None = None
) -> tuple[Seen, NDArray[Any]]:
    """Sum up recordings that need not fit in memory, and return the ids of those that were summed up.

    `wanted` are ids of recordings, where not all are meant; those that do not exist are passed over.

    >>> from duoplda import Backend, PLDA
    >>> chain = Backend.from_plda(PLDA.from_parameters([1.0], [[1.0]], None, [[1.0]]))
    >>> look(chain, Recordings.from_arrays([[2.0], [5.0]], ids=["a", "b"]), ["b", "c"])
    (Seen(n=1, sum=array([4.])), array(['b'], dtype='<U1'))
    """
    total = Seen()
    ids = list[NDArray[Any]]()
    for names, seen in recordings.map(partial(_look_at, chain, None if wanted is None else frozenset(wanted))):
        ids.append(names)
        total = total + seen
    return total, np.concatenate(ids) if ids else np.zeros(0, "U1")


def _look_at(
    chain: MeasuredChain, wanted: frozenset[Any] | None, part: Recordings
) -> Iterator[tuple[NDArray[Any], Seen]]:
    """Ids and sums of one part of recordings, chunk by chunk; a function that can be sent to workers of a cluster."""
    d = _n_features_in(chain)
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
        checks.finite(X, ids)
        seen = see(chain, X)
        if seen is not None:
            yield ids, seen


# -- what is made of the sums


def _n_features_in(chain: MeasuredChain) -> int:
    """The dimensions of recordings before the first step."""
    return int(next(iter(chain.steps_.values()), chain.plda_).n_features_in_)


def _matrices(chain: MeasuredChain) -> list[Floats] | None:
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


def whitens(chain: MeasuredChain) -> bool:
    """Whether distances are measured where the chain whitens; else they are in the space of its PLDA."""
    return _matrices(chain) is not None


def distance(chain: MeasuredChain, seen: Seen) -> float:
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
        return float(mean @ mean)
    plda = chain.plda_
    memory = chain.domain_memory
    if memory.factor is None or memory.model is not plda.model_:  # the factor is kept: each call of `llr` asks for it
        parts = plda.speaker_loadings_, plda.session_loadings_, plda.noise_precision_, plda.channel_priors_
        memory.factor = np.linalg.cholesky(sum(level_covariances(*parts)))
        memory.model = plda.model_
    mean = solve_triangular(memory.factor, mean, lower=True)
    return float(mean @ mean)


def measure(chain: MeasuredChain, seen: Seen, n_speakers: int) -> Domain:
    """The distance of recordings that were summed up with this fitted `Backend`, and its limit.

    It looks at the mean alone: recordings whose covariances are not those of the training data go unnoticed.

    >>> from duoplda import Backend, PLDA
    >>> chain = Backend.from_plda(PLDA.from_parameters([1.0], [[1.0]], None, [[1.0]]))
    >>> measured = measure(chain, see(chain, np.array([[2.0], [5.0]])), n_speakers=2)
    >>> round(measured.distance, 3), round(measured.limit, 3), measured.within
    (3.125, 0.81, False)
    """
    matrices = _matrices(chain)
    d = int(chain.plda_.n_features_in_ if matrices is None else matrices[-1].shape[1])
    return Domain(distance(chain, seen), limit(d, n_speakers, seen.n), d, seen.n, n_speakers)


def check(chain: Any, seen: Seen | None, n_speakers: int, stacklevel: int = 4, fewest: int = 3) -> None:
    """Warn, once for each chain, if recordings are too far from its training data; silent below `fewest` speakers.

    The mean of one or two speakers is mostly these speakers, of which nothing can be said. A PLDA outside a `Backend`
    is not checked (its `domain_memory` is None), and neither are sides of which it is not known what they have seen.
    `warnings.filterwarnings("ignore", category=duoplda.DomainWarning)` silences the warning.

    >>> from duoplda import Backend, PLDA
    >>> chain = Backend.from_plda(PLDA.from_parameters([1.0], [[1.0]], None, [[1.0]]))
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     for n_speakers in (2, 3, 3):
    ...         check(chain, see(chain, np.array([[4.0], [5.0], [6.0]])), n_speakers)
    >>> [w.category.__name__ for w in caught]
    ['DomainWarning']
    """
    memory = chain.domain_memory
    if seen is None or not seen.n or n_speakers < fewest or memory is None or memory.warned:
        return
    if len(seen.sum) != (_n_features_in(chain) if whitens(chain) else chain.plda_.n_features_in_):
        return  # another chain, with other steps, has seen them
    measured = measure(chain, seen, n_speakers)
    if measured.within:
        return
    memory.warned = True
    counts = f"{measured.n_speakers:,} speakers and {measured.n_recordings:,} recordings"
    warnings.warn(
        f"these recordings are not like those that the model was trained on: their mean is at a squared distance of "
        f"{measured.distance:.3g} from it, up to {measured.limit:.3g} is usual for {counts}. Ratios may mislead: adapt "
        "the model to such recordings with `duoplda adapt` or Backend.adapt",
        DomainWarning,
        stacklevel=stacklevel,
    )


def check_sides(chain: Any, enrolled: Sides, tests: Sides) -> None:
    """`check` for all recordings of both sides of trials.

    >>> from duoplda import Backend, PLDA
    >>> chain = Backend.from_plda(PLDA.from_parameters([1.0], [[1.0]], None, [[1.0]]))
    >>> sides = chain.enroll([[0.0], [2.0], [1.5], [0.5]], ["a", "b", "c", "d"])
    >>> check_sides(chain, sides, sides)  # no warning: their mean is that of the model
    """
    seen = enrolled.seen if tests is enrolled else seen_together(enrolled.seen, tests.seen)
    check(chain, seen, len(enrolled), 5)
