"""From recordings to clusters: their sessions are enrolled as sides, on this machine or a cluster, and clustered."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.arrays import check_index, to_numpy
from duoplda.data import labels as lab
from duoplda.data.copies import suggests_copies
from duoplda.data.labels import Ints
from duoplda.data.recordings import ROWS, Recordings
from duoplda.errors import DuopldaError, some
from duoplda.estimators import checks, domain
from duoplda.estimators.sessions import SessionSides
from duoplda.model.parameters import loadings_of
from duoplda.model.shrinkage import Scales
from duoplda.trials.blocks import Scorer
from duoplda.trials.clustering import Clustering, cluster, pairs_of, refuse_shared
from duoplda.trials.sides import Sides

if TYPE_CHECKING:
    from duoplda.estimators.plda import ScoresTrials

SessionNames = ArrayLike | Mapping[Any, Any] | None  # labels of recordings, in their order or by their ids


def unscaled(chain: ScoresTrials) -> Any:
    """A copy of a PLDA, or of the chain around it, that enrolls recordings with `model_`, not with the scaled model.

    The scales are chosen for trials; partitions are better without them (measured on so762).

    >>> from duoplda import PLDA
    >>> plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
    >>> unscaled(plda).ratio_model_ is plda.model_
    True
    """
    plda = copy(chain.plda_)
    plda.scales_ = Scales()
    return chain.with_plda(plda)


def of_one_session(chain: ScoresTrials) -> Any:
    """A copy for recordings of one session, whose speakers differ by VV' + UU', and recordings by the noise alone."""
    plda = chain.plda_
    V = to_numpy(plda.speaker_loadings_)
    U = to_numpy(plda.session_loadings_)
    V = loadings_of(V @ V.T + U @ U.T)
    if len(plda.channels_) == 1:
        inside = type(plda).from_parameters(plda.mean_, V, None, plda.noise_precision_)
    else:
        kinds = {"channels": plda.channels_, "channel_priors": plda.channel_priors_}
        inside = type(plda).from_parameters(plda.channel_means_, V, None, plda.noise_precision_, **kinds)
    return chain.with_plda(inside)


@dataclass(frozen=True, eq=False)
class TopOf:
    """Finds the k sides that score highest with each of some sides; it can be sent to the workers of a cluster."""

    sides: Sides
    k: int

    def __getstate__(self) -> dict[str, Any]:
        return {"sides": self.sides, "k": self.k}  # each worker makes its own scorer

    @cached_property
    def scorer(self) -> Scorer:
        return Scorer(self.sides)

    def __call__(self, part: slice) -> tuple[NDArray[Any], NDArray[Any]]:
        rows, ratios = self.scorer.top(self.sides.select(part), self.k)
        return to_numpy(rows), to_numpy(ratios)


def _top(recordings: Recordings, sides: Sides, k: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """`Scorer.top` of all sides; if the recordings are on a cluster, all of its workers compute it."""
    parts = [slice(i, min(i + ROWS, len(sides))) for i in range(0, len(sides), ROWS)]
    rows, ratios = zip(*recordings.spread(TopOf(sides, k), parts), strict=True)
    return np.concatenate(rows), np.concatenate(ratios)


def cluster_recordings(
    chain: ScoresTrials,
    X: ArrayLike | Recordings | Sides,
    session: SessionNames,
    channel: SessionNames,
    device: Any,
    within_session: bool,
    **options: Any,
) -> Clustering:
    """`PLDA.cluster` for arrays, `Recordings`, or enrolled sides.

    It warns if the recordings are far from the training data (`domain.check`). Clusters count as speakers there, unless
    the scatter says that there are more. Recordings within one session share a room and a line: they count as one.
    """
    known = options.get("known")
    if within_session and (session is not None or known is not None or isinstance(X, Sides)):
        raise DuopldaError("within_session: all recordings are of one session; leave out session, known and sides")
    if isinstance(X, Sides):
        if session is not None or channel is not None:
            raise DuopldaError("sides have their sessions already: leave out session and channel")
        _check_sides(chain, X, known)
        clusters = cluster(X, **options)
        speaker = np.repeat(clusters.labels, X.counts @ X.types.sum(axis=1))
        domain.check(chain, X.seen, domain.Spread.of(speaker), sides=[X])
        return clusters
    if known is None:
        model = unscaled(of_one_session(chain) if within_session else chain)
    else:
        model = chain
        model.check_sides(known)
    if isinstance(X, Recordings):
        sides, ids, row = _sessions_of_recordings(model, X, session, channel, device)
        names = sides.ids
        options["top"] = partial(_top, X)
    else:
        sides, names, row = _sessions_of_rows(model, X, session, channel, device)
        ids = np.arange(len(row))
    seen = sides.seen
    if known is not None and len(known):
        named = [session[i] for i in ids.tolist() if i in session] if isinstance(session, Mapping) else session
        refuse_shared(np.zeros(0, "U1") if named is None else np.asarray(named), known)
        sides = sides.moved_to(known.model)
    for name in ("must_link", "cannot_link"):
        options[name] = _pairs_of_sessions(options.get(name), ids, row, name)
    clusters = cluster(sides.unnamed(names), **options)
    one = np.zeros(len(row), np.int64)
    spread = domain.Spread.of(clusters.labels[row], one if within_session else row)
    domain.check(chain, seen, spread, sides=[] if within_session else [sides])
    return replace(clusters, ids=ids, labels=clusters.labels[row], item=clusters.item[row])


def _check_sides(chain: ScoresTrials, sides: Sides, known: Sides | None) -> None:
    """Refuse sides of another model, and sides that share a session."""
    chain.check_sides(sides, *([] if known is None else [known]))
    names, n = np.unique(sides.session, return_counts=True)
    if (n > 1).any():
        raise DuopldaError(
            f"{int((n > 1).sum())} sessions are in several sides, which would be put into one cluster only for that: "
            f"{some(names[n > 1].tolist())}; cluster recordings instead, or give each session to one side"
        )


def _sessions_of_recordings(
    chain: Any, recordings: Recordings, session: SessionNames, channel: SessionNames, device: Any
) -> tuple[Sides, NDArray[Any], Ints]:
    """The sessions as sides, the ids of the recordings, and the row of the side of each."""
    for name, labels in (("session", session), ("channel", channel)):
        if labels is not None and not isinstance(labels, Mapping):
            raise DuopldaError(f"{name} must be a mapping from the ids of recordings, got {type(labels).__name__}")
    sides = None
    ids_of_chunks = []
    names_of_chunks = []
    for ids, names, part in recordings.map(SessionSides(chain.enroll, session, channel, device=device)):  # type: ignore[arg-type]
        sides = part if sides is None else sides.add(part)
        ids_of_chunks.append(ids)
        names_of_chunks.append(names)
    if sides is None:
        raise DuopldaError("there is nothing to cluster: give at least one recording")
    ids = np.concatenate(ids_of_chunks)
    if session is None and (example := suggests_copies(ids)):
        warnings.warn(
            f"no sessions are given, but ids such as {example} look like copies of one recording, which would then "
            "count as evidence several times: give the session of each recording",
            UserWarning,
            stacklevel=4,
        )
    checks.no_repeats(ids)
    return sides, ids, sides.rows(np.concatenate(names_of_chunks))


def _sessions_of_rows(
    chain: Any, X: ArrayLike, session: SessionNames, channel: SessionNames, device: Any
) -> tuple[Sides, NDArray[Any], Ints]:
    """The sessions as sides, their names, and the row of the side of each row of X."""
    check_index(X=X, session=session, channel=channel)
    n = X.shape[0] if hasattr(X, "shape") else len(X)  # type: ignore[arg-type]
    if not n:
        raise DuopldaError("there is nothing to cluster: give at least one recording")
    if session is None:
        row = np.arange(n)
        names = np.array([f"row {i}" for i in range(n)])
    else:
        labels, row = lab.codes(session, "session", n)
        names = np.array([f"session {name}" for name in labels.tolist()])
    return chain.enroll(X, row, row, channel, device=device), names, row


def _pairs_of_sessions(pairs: ArrayLike | None, ids: NDArray[Any], row: Ints, name: str) -> Ints:
    """Pairs of recordings as pairs of their sessions."""
    recordings = pairs_of(pairs, ids, name)
    sessions = row[recordings]
    inside = np.flatnonzero(sessions[:, 0] == sessions[:, 1])
    if name == "cannot_link" and len(inside):
        a, b = ids[recordings[inside[0]]].tolist()
        what = f"{len(inside)} pairs of cannot_link are of one session"
        raise DuopldaError(f"{what}: {a!r} and {b!r}; a session has one speaker")
    return sessions
