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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from duoplda.arrays import Array, namespace, take, to_numpy
from duoplda.data import Recordings
from duoplda.data import labels as lab
from duoplda.errors import DomainWarning, DuopldaError
from duoplda.estimators import checks
from duoplda.estimators.preprocessing import LDA, Center, Whiten
from duoplda.model.parameters import Model
from duoplda.model.summary import level_covariances
from duoplda.trials.sides import Seen, Sides, seen_together

__all__ = ["Domain", "Seen", "check", "check_sides", "distance", "limit", "look", "measure", "see"]

Floats = NDArray[np.float64]
FEWEST = 3  # models below which nothing can be said: the mean of one or two speakers is mostly these speakers
_WARNED: WeakSet[Any] = WeakSet()  # chains that have warned: once is enough, and no file or copy knows of it
_ROOTS: WeakKeyDictionary[Model, Floats] = WeakKeyDictionary()  # Cholesky factors of T


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


def see(chain: Any, X: Array, Z: Array | None = None, channel: Any = None) -> Seen | None:
    """Sum up recordings `X` (n, k), about the mean of a fitted `Backend`; `Z` are the same after its steps.

    Without `Z` they are made where they are needed. None: there are numbers too large to add up.

    >>> from duoplda import Backend, PLDA
    >>> chain = Backend.from_plda(PLDA.from_parameters([1.0], [[1.0]], None, [[1.0]]))
    >>> see(chain, np.array([[2.0], [5.0]]))
    Seen(n=2, sum=array([5.]))
    """
    n = X.shape[0]
    if _matrices(chain) is not None:
        rows = X
        shift = _means(next(iter(chain.steps_.values())), n, channel)
    else:
        rows = chain.transform(X, channel) if Z is None else Z
        shift = n * to_numpy(chain.plda_.mean_)
    with np.errstate(over="ignore", invalid="ignore"):
        total = to_numpy(namespace(rows).sum(rows, axis=0, dtype=namespace(rows).float64)) - shift
    return Seen(n, total) if np.isfinite(total).all() else None


def _means(center: Center, n: int, channel: Any) -> Floats:
    """(k,) the sum of the means that are subtracted from n recordings of these kinds of channels."""
    if not center.by_channel or channel is None:
        return n * center.mean_
    kind = lab.codes_among(channel, center.channels_, n)
    times = np.bincount(kind + 1, minlength=len(center.channels_) + 1)  # -1: the kind is not known
    return times[0] * center.mean_ + times[1:] @ center.channel_means_


def look(chain: Any, recordings: Recordings, wanted: Any = None) -> tuple[Seen, NDArray[Any]]:
    """Sum up recordings that need not fit in memory, and return the ids of those that were there.

    `wanted` are ids of recordings, where not all are meant.

    >>> from duoplda import Backend, PLDA
    >>> chain = Backend.from_plda(PLDA.from_parameters([1.0], [[1.0]], None, [[1.0]]))
    >>> look(chain, Recordings.from_arrays([[2.0], [5.0]], ids=["a", "b"]), ["b", "c"])
    (Seen(n=1, sum=array([4.])), array(['b'], dtype='<U1'))
    """
    found = Seen()
    ids = list[NDArray[Any]]()
    for names, seen in recordings.map(_Look(chain, None if wanted is None else frozenset(wanted))):
        ids.append(names)
        found = found + seen
    return found, np.concatenate(ids) if ids else np.zeros(0, "U1")


@dataclass(frozen=True, eq=False)
class _Look:
    """Sums up the recordings of a part, chunk by chunk; it can be sent to the workers of a cluster."""

    chain: Any
    wanted: frozenset[Any] | None  # ids

    def __call__(self, part: Recordings) -> Iterator[tuple[NDArray[Any], Seen]]:
        for chunk in part.chunks():
            X = chunk.X
            ids = chunk.names
            if self.wanted is not None:
                keep = np.flatnonzero([name in self.wanted for name in ids.tolist()])
                X = take(X, keep)
                ids = ids[keep]
            if not len(ids):
                continue
            if X.shape[1] != (d := self.chain.n_features_in_):
                raise DuopldaError(f"vectors have {X.shape[1]} dimensions, the model takes {d}")
            checks.finite(X, ids)
            if (seen := see(self.chain, X)) is not None:
                yield ids, seen


# -- what is made of the sums


def _matrices(chain: Any) -> list[Floats] | None:
    """The matrices that follow the centre, up to whitening; None where a length or the PLDA comes before that.

    None for an adapted model, too: its whitening is that of the source, its total covariance that of the target.
    """
    if chain.plda_.adapted_ is not None:
        return None
    steps = list(chain.steps_.values())
    found = list[Floats]()
    for step in steps[1:] if steps and isinstance(steps[0], Center) else ():
        if not isinstance(step, (LDA, Whiten)):
            break
        found.append(step.matrix_)
        if isinstance(step, Whiten):
            return found
    return None


def whitens(chain: Any) -> bool:
    """Whether distances are measured where the chain whitens; else they are in the space of its PLDA."""
    return _matrices(chain) is not None


def _root(plda: Any) -> Floats:
    """(d, d) the lower Cholesky factor of T."""
    if plda.model_ not in _ROOTS:
        parts = plda.speaker_loadings_, plda.session_loadings_, plda.noise_precision_, plda.channel_priors_
        _ROOTS[plda.model_] = np.linalg.cholesky(sum(level_covariances(*parts)))
    return _ROOTS[plda.model_]


def distance(chain: Any, seen: Seen) -> float:
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
    if matrices is None:
        mean = solve_triangular(_root(chain.plda_), mean, lower=True)
    else:
        for M in matrices:
            mean = mean @ M
    return float(mean @ mean)


def measure(chain: Any, seen: Seen, n_speakers: int) -> Domain:
    """The distance of recordings that were summed up with this fitted `Backend`, and its limit.

    >>> from duoplda import Backend, PLDA
    >>> chain = Backend.from_plda(PLDA.from_parameters([1.0], [[1.0]], None, [[1.0]]))
    >>> found = measure(chain, see(chain, np.array([[2.0], [5.0]])), n_speakers=2)
    >>> round(found.distance, 3), round(found.limit, 3), found.within
    (3.125, 0.81, False)
    """
    matrices = _matrices(chain)
    d = int(chain.plda_.n_features_in_ if matrices is None else matrices[-1].shape[1])
    return Domain(distance(chain, seen), limit(d, n_speakers, seen.n), d, seen.n, n_speakers)


def check(chain: Any, seen: Seen | None, n_speakers: int, stacklevel: int = 4, fewest: int = FEWEST) -> None:
    """Warn, once for each chain, if recordings are too far from its training data; silent below `fewest` speakers.

    `warnings.filterwarnings("ignore", category=duoplda.DomainWarning)` silences it. A PLDA outside a `Backend` is not
    checked, and neither are sides of which it is not known what they have seen.

    >>> from duoplda import Backend, PLDA
    >>> chain = Backend.from_plda(PLDA.from_parameters([1.0], [[1.0]], None, [[1.0]]))
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     for n_speakers in (2, 3, 3):
    ...         check(chain, see(chain, np.array([[4.0], [5.0], [6.0]])), n_speakers)
    >>> [w.category.__name__ for w in caught]
    ['DomainWarning']
    """
    if seen is None or not seen.n or n_speakers < fewest or not hasattr(chain, "steps_") or chain in _WARNED:
        return
    if len(seen.sum) != (chain.plda_ if _matrices(chain) is None else chain).n_features_in_:
        return
    found = measure(chain, seen, n_speakers)
    if found.within:
        return
    _WARNED.add(chain)
    usual = f"up to {found.limit:.3g} is usual for {found.n_speakers:,} speakers and {found.n_recordings:,} recordings"
    warnings.warn(
        f"these recordings are not like those that the model was trained on: their mean is at a squared distance of "
        f"{found.distance:.3g} from it, {usual}. Ratios may mislead: adapt the model to such recordings with "
        "`duoplda adapt` or Backend.adapt",
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
