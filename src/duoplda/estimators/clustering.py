"""Recordings on their way into a clustering: their sessions are summed up, wherever they lie, and put into clusters."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import to_numpy
from duoplda.data import labels as lab
from duoplda.data.copies import suggests_copies
from duoplda.data.labels import Ints
from duoplda.data.recordings import ROWS, Recordings
from duoplda.errors import DuopldaError, some
from duoplda.estimators import domain
from duoplda.estimators.sessions import SessionSides
from duoplda.model.collapse import in_common
from duoplda.model.shrinkage import Scales
from duoplda.trials.blocks import Scorer
from duoplda.trials.clustering import Clustering, cluster, pairs_of, refuse_shared
from duoplda.trials.sides import Sides


def unscaled(chain: Any) -> Any:
    """A copy of a PLDA or of the chain around it that sums up recordings with `model_`, not with the scaled one.

    The scales are chosen for trials; partitions are better without them (measured on so762).

    >>> from duoplda import PLDA
    >>> plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
    >>> unscaled(plda).ratio_model_ is plda.model_
    True
    """
    chain = copy(chain)
    if hasattr(chain, "plda_"):
        chain.plda_ = unscaled(chain.plda_)
    else:
        chain.scales_ = Scales()
    return chain


def of_one_session(chain: Any) -> Any:
    """A copy whose speakers differ by VV' + UU' and recordings by the noise: what they do inside one session."""
    chain, plda = copy(chain), getattr(chain, "plda_", chain)
    V = in_common(to_numpy(plda.speaker_loadings_), to_numpy(plda.session_loadings_))
    kinds = {} if len(plda.channels_) == 1 else {"channels": plda.channels_, "channel_priors": plda.channel_priors_}
    mean = plda.mean_ if not kinds else plda.channel_means_
    noise = plda.noise_precision_
    inside = type(plda).from_parameters(mean, V, None, noise, **kinds)
    if plda is getattr(chain, "plda_", None):
        chain.plda_ = inside
        return chain
    return inside


@dataclass(frozen=True, eq=False)
class TopOf:
    """The k sides that score highest with each of some of them; it can be sent to the workers of a cluster."""

    sides: Sides
    k: int

    def __getstate__(self) -> dict[str, Any]:
        return {"sides": self.sides, "k": self.k}  # not what has been computed from them

    @cached_property
    def scorer(self) -> Scorer:
        return Scorer(self.sides)

    def __call__(self, part: slice) -> tuple[NDArray[Any], NDArray[Any]]:
        rows, ratios = self.scorer.top(self.sides.select(part), self.k)
        return to_numpy(rows), to_numpy(ratios)


def _spread(recordings: Recordings, sides: Sides, k: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """`Scorer.top` of all sides, computed where the recordings lie."""
    parts = [slice(i, min(i + ROWS, len(sides))) for i in range(0, len(sides), ROWS)]
    rows, ratios = zip(*recordings.spread(TopOf(sides, k), parts), strict=True)
    return np.concatenate(rows), np.concatenate(ratios)


def cluster_recordings(
    chain: Any, X: Any, session: Any, channel: Any, device: Any, within_session: bool, **options: Any
) -> Clustering:
    """`PLDA.cluster` for arrays, recordings of the one door, or enrolled sides.

    What is clustered is compared with the training data of a back-end (`domain.check`), with clusters as speakers, be
    they ever so few: recordings that are far off fall into one. Not within a session, whose recordings share a room and
    a line, for which the limit does not allow.
    """
    known = options.get("known")
    source = chain
    if within_session:
        if session is not None or known is not None or isinstance(X, Sides):
            raise DuopldaError("within_session: all recordings are of one session; leave out session, known and sides")
        chain = of_one_session(chain)
    if isinstance(X, Sides):
        clusters = _sides(chain, X, session, channel, options)
        domain.check(source, X.seen, len(clusters), fewest=1)
        return clusters
    if known is None:
        chain = unscaled(chain)
    else:
        chain.check_sides(known)
    if isinstance(X, Recordings):
        for name, given in (("session", session), ("channel", channel)):
            if given is not None and not isinstance(given, Mapping):
                raise DuopldaError(f"{name} must be a mapping from the ids of recordings, got {type(given).__name__}")
        sides = None
        found = []
        for *own, part in X.map(SessionSides(chain, session, channel, device=device)):
            sides = part if sides is None else sides.add(part)
            found.append(own)
        if sides is None:
            raise DuopldaError("there is nothing to cluster: give at least one recording")
        ids, names = (np.concatenate(parts) for parts in zip(*found, strict=True))
        if session is None and (example := suggests_copies(ids)):
            warnings.warn(
                f"no sessions are given, but ids such as {example} look like copies of one recording, which would then "
                "count as evidence several times: give the session of each recording",
                UserWarning,
                stacklevel=4,
            )
        _twice(ids)
        row = sides.rows(names)
        options["top"] = partial(_spread, X)
        named = [] if session is None else [session[i] for i in ids.tolist() if i in session]
    else:
        n = getattr(X, "shape", [len(X)])[0]
        if not n:
            raise DuopldaError("there is nothing to cluster: give at least one recording")
        labels, row = lab.codes(session, "session", n) if session is not None else (np.arange(n), np.arange(n))
        sides = chain.enroll(X, row, row, channel, device=device)
        ids = np.arange(n)
        names = np.array([f"{'row' if session is None else 'session'} {name}" for name in labels.tolist()])
        named = [] if session is None else session
    seen = sides.seen
    if known is not None and len(known):
        refuse_shared(np.asarray(named), known)
        sides = sides.moved_to(known.model)
    for name in ("must_link", "cannot_link"):
        options[name] = _of_sessions(options.get(name), ids, row, name)
    of_sides = sides.ids if isinstance(X, Recordings) else names
    clusters = cluster(sides.unnamed(of_sides), **options)
    if not within_session:
        domain.check(source, seen, len(clusters), fewest=1)
    return _of_recordings(clusters, ids, row)


def _sides(chain: Any, sides: Sides, session: Any, channel: Any, options: dict[str, Any]) -> Clustering:
    if session is not None or channel is not None:
        raise DuopldaError("sides have their sessions already: leave out session and channel")
    chain.check_sides(sides, *([options["known"]] if options.get("known") is not None else []))
    names, n = np.unique(sides.session, return_counts=True)
    if (n > 1).any():
        raise DuopldaError(
            f"{int((n > 1).sum())} sessions are in several sides, which would find each other by them alone: "
            f"{some(names[n > 1].tolist())}; cluster recordings instead, or give each session to one side"
        )
    return cluster(sides, **options)


def _twice(ids: NDArray[Any]) -> None:
    names, n = np.unique(ids, return_counts=True)
    if (n > 1).any():
        raise DuopldaError(f"{int((n > 1).sum())} recordings are there twice: {some(names[n > 1].tolist())}")


def _of_sessions(pairs: Any, ids: NDArray[Any], row: Ints, name: str) -> Ints:
    """Pairs of recordings as pairs of their sessions."""
    rows = pairs_of(pairs, ids, name)
    found = row[rows]
    inside = np.flatnonzero(found[:, 0] == found[:, 1])
    if name == "cannot_link" and len(inside):
        a, b = ids[rows[inside[0]]].tolist()
        what = f"{len(inside)} pairs of cannot_link are of one session"
        raise DuopldaError(f"{what}: {a!r} and {b!r}; a session has one speaker")
    return found


def _of_recordings(found: Clustering, ids: NDArray[Any], row: Ints) -> Clustering:
    return replace(found, ids=ids, labels=found.labels[row], item=found.item[row])
