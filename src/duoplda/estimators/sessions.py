"""Recordings on their way to sides, for scoring, clustering and adaptation.

There is one rule for sessions that are not known: a recording without the name of a session is a session of its own,
which it shares with no other recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Array, Device, check_finite, take, to_numpy
from duoplda.data.labels import Ints
from duoplda.data.recordings import ROWS, Recordings
from duoplda.trials.sides import Sides

ById = Mapping[Any, Any] | None  # labels of recordings by id; recordings that are not in it have none
Enroll = Callable[..., Sides]  # `enroll` of a PLDA, or of a chain around one


def known_labels(labels: ById, ids: NDArray[Any]) -> NDArray[Any] | None:
    """The labels of recordings (n,) as objects, None where one is not known; None if there are no labels at all."""
    return None if labels is None else np.fromiter((labels.get(i) for i in ids.tolist()), object, len(ids))


def enroll_sides(
    enroll: Enroll,
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
        name. Recordings of one side and one named session count as one session, even if sides are added later.
    channel : (n,) kinds of channels, None where one is not known: it is then inferred
    occasion : (n,) the day, the call or the file of each, None where it is not known: its session then shares its
        occasion with no other

    Examples
    --------
    >>> from duoplda import PLDA
    >>> plda = PLDA.from_parameters([0.0], [[1.0]], [[1.0]], [[1.0]])
    >>> X = np.array([[1.0], [1.5], [2.0], [2.5]])
    >>> sides = enroll_sides(plda.enroll, X, np.array(["a"] * 4), np.array(["s", "s", None, None], object), None)
    >>> int(sides.counts.sum()), sides.session.tolist()
    (3, ['s'])
    """
    known_session, known_occasion = (
        np.zeros(len(ids), bool) if labels is None else np.array([name is not None for name in labels])
        for labels in (session, occasion)
    )
    parts = []
    for with_session, with_occasion in product((True, False), repeat=2):
        rows = np.flatnonzero((known_session == with_session) & (known_occasion == with_occasion))
        if not len(rows):
            continue
        vectors = X if len(rows) == len(ids) else take(X, rows)
        kinds = None if channel is None else channel[rows]
        sessions = _of_rows(session, rows) if with_session else None
        occasions = _of_rows(occasion, rows) if with_occasion else None
        parts.append(enroll(vectors, ids[rows], sessions, kinds, occasions, device=device))
    return reduce(Sides.add, parts)


def _of_rows(labels: Any, rows: Ints) -> Any:
    """Labels of some rows, as a list if they are objects, which only they are where some labels are None."""
    return labels[rows].tolist() if labels.dtype == object else labels[rows]


@dataclass(frozen=True, eq=False)
class SessionSides:
    """A job that enrolls each session of some recordings as one side; it can be sent to the workers of a cluster.

    `recordings.map(SessionSides(model.enroll))` yields, for one chunk after another, the ids (n,) of its recordings,
    the id of the side that each belongs to (n,), and the sides. A session may have recordings in several chunks:
    `Sides.add` joins what belongs together.

    Attributes
    ----------
    enroll : the method of the PLDA or of the chain
    session, channel : names of sessions and kinds of channels by the ids of recordings. The side of a named session is
        called "session ..."; a recording that has no session is a side of its own, called "recording ...".
    labelled : whether sessions and kinds come from the labels of the recordings instead. Sides are then called as their
        sessions are, or as their recordings are if the labels have no sessions.
    device : the device of torch on which the sides are made
    """

    enroll: Enroll
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
                # The first word keeps a session and a recording of the same name apart.
                pairs = zip(ids.tolist(), [None] * len(ids) if session is None else session.tolist(), strict=True)
                names = np.array([f"recording {i}" if name is None else f"session {name}" for i, name in pairs])
            else:
                channel = labels.kinds[to_numpy(labels.kind)[chunk.index]]
                session = None
                if labels.session_ids is not None:
                    session = labels.session_ids[to_numpy(labels.session)[chunk.index]]
                names = ids if session is None else session
            yield ids, names, enroll_sides(self.enroll, chunk.X, names, session, channel, device=self.device)
