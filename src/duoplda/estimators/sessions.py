"""Recordings on their way to sides, for scoring, clustering and adaptation.

There is one policy for sessions that are not known: a recording whose session has no name is a session of its own,
which shares nothing with any other recording.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.arrays import Array, Device, check_finite, take, to_numpy
from duoplda.data.recordings import ROWS, Recordings
from duoplda.trials.sides import Sides

ById = Mapping[Any, Any] | None  # labels of recordings by id; recordings that are not in it have none


class Enrolls(Protocol):
    """A PLDA, or a chain around one, that sums up recordings as sides."""

    def enroll(
        self,
        X: Array,
        ids: ArrayLike,
        session: ArrayLike | None = None,
        channel: ArrayLike | None = None,
        occasion: ArrayLike | None = None,
        *,
        device: Device = None,
    ) -> Sides:
        """Sets of recordings, those with the same one of the ids, as sides."""


def known_labels(labels: ById, ids: NDArray[Any]) -> NDArray[Any] | None:
    """The labels of recordings (n,) as objects, None where one is not known; None if there are no labels at all."""
    return None if labels is None else np.fromiter((labels.get(i) for i in ids.tolist()), object, len(ids))


def enroll_sides(
    model: Enrolls,
    X: Array,
    ids: NDArray[Any],
    session: NDArray[Any] | None,
    channel: NDArray[Any] | None,
    occasion: NDArray[Any] | None = None,
    device: Device = None,
) -> Sides:
    """Recordings `X` (n, d) as sides with these ids (n,), where some or all sessions may be unknown.

    Parameters
    ----------
    session : (n,) names of sessions, None where one is not known: that recording is a session of its own, without a
        name. Recordings of one side and one session count as one session, also when sides are added later.
    channel : (n,) kinds of channels, None where one is not known: it is then inferred
    occasion : (n,) the day, the call or the file of each, None where it is not known: its session is then alone

    Examples
    --------
    >>> from duoplda import PLDA
    >>> plda = PLDA.from_parameters([0.0], [[1.0]], [[1.0]], [[1.0]])
    >>> X = np.array([[1.0], [1.5], [2.0], [2.5]])
    >>> sides = enroll_sides(plda, X, np.array(["a"] * 4), np.array(["s", "s", None, None], object), None)
    >>> int(sides.counts.sum()), sides.session.tolist()
    (3, ['s'])
    """
    parts = []
    of_each = [(None,) if labels is None else (labels, None) for labels in (session, occasion)]
    for with_session, with_occasion in product(*of_each):
        rows = np.flatnonzero(_known(session, with_session, len(ids)) & _known(occasion, with_occasion, len(ids)))
        if len(rows):
            vectors = X if len(rows) == len(ids) else take(X, rows)
            kinds = None if channel is None else channel[rows]
            labels = _of_rows(with_session, rows), kinds, _of_rows(with_occasion, rows)
            parts.append(model.enroll(vectors, ids[rows], *labels, device=device))
    return reduce(Sides.add, parts)


def _known(labels: NDArray[Any] | None, wanted: NDArray[Any] | None, n: int) -> NDArray[np.bool_]:
    """Which of n recordings have one of the labels, or where none is `wanted`, have none."""
    known = np.zeros(n, bool) if labels is None else np.array([name is not None for name in labels])
    return known if wanted is not None else ~known


def _of_rows(labels: NDArray[Any] | None, rows: NDArray[Any]) -> Any:
    """Labels of some rows. Only an array of objects may have held None; others stay as they are, of bytes for one."""
    if labels is None:
        return None
    return labels[rows].tolist() if labels.dtype == object else labels[rows]


@dataclass(frozen=True, eq=False)
class SessionSides:
    """A job that sums up the sessions of recordings, each as one side; it can be sent to the workers of a cluster.

    `recordings.map(SessionSides(model))` yields, for one chunk after another, the ids (n,) of its recordings, the id of
    the side that each belongs to (n,), and the sides. A session may have recordings in several chunks: `Sides.add`
    joins what belongs together.

    Attributes
    ----------
    model : the PLDA or the chain that enrolls
    session, channel : names of sessions and kinds of channels by the ids of recordings. The side of a named session is
        called "session ..."; a recording that has no session is a side of its own, called "recording ...".
    labelled : take sessions and kinds from the labels of the recordings instead, by whose names sides then are called.
        Where these have no sessions, sides are called by the ids of recordings.
    device : of torch, where the sides then are
    """

    model: Enrolls
    session: ById = None
    channel: ById = None
    labelled: bool = False
    device: Device = None

    def __call__(self, part: Recordings) -> Iterator[tuple[NDArray[Any], NDArray[Any], Sides]]:
        labels = part.labels() if self.labelled else None
        for chunk in part.chunks(ROWS):
            ids = chunk.names
            check_finite(chunk.X, ids)
            if labels is None:
                session = known_labels(self.session, ids)
                channel = known_labels(self.channel, ids)
                # No session is to be taken for a recording of the same name.
                pairs = zip(ids.tolist(), [None] * len(ids) if session is None else session.tolist(), strict=True)
                names = np.array([f"recording {i}" if name is None else f"session {name}" for i, name in pairs])
            else:
                channel = labels.kinds[to_numpy(labels.kind)[chunk.index]]
                session = None
                if labels.session_ids is not None:
                    session = labels.session_ids[to_numpy(labels.session)[chunk.index]]
                names = ids if session is None else session
            yield ids, names, enroll_sides(self.model, chunk.X, names, session, channel, device=self.device)
