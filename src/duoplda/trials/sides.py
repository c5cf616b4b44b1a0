"""Sides of trials.

A side is a set of recordings with sessions, summed up by (n, gamma, Lambda). With
Q = (gamma'Lambda^-1 gamma - ln|Lambda|) / 2 and sides that share no session,
Lambda_3 = Lambda_1 + Lambda_2 - I, gamma_3 = gamma_1 + gamma_2 and

    LLR = Q_3 - Q_1 - Q_2 = gamma_1'Lambda_3^-1 gamma_2 + a_1 + a_2
    a_s = gamma_s'(Lambda_3^-1 - Lambda_s^-1) gamma_s / 2
    (and the three ln|Lambda|, in a_2). Lambda depends on the counts of sessions by type only, the side's *pattern*.

Sides that share a session (one conversation through two microphones) hold parts of it: the whole has type c_1 + c_2 and
z_1 + z_2, which changes Lambda_3 and gamma_3, and its session term (`model.session_terms`) no longer cancels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Array, add_rows, namespace, segment_sums, take, zeros
from duoplda.data import labels as lab
from duoplda.data.labels import Ints, Labels
from duoplda.errors import DuopldaError, some
from duoplda.model.parameters import Model, Terms
from duoplda.model.posteriors import session_terms, sessions
from duoplda.model.ragged import Patterns, Speakers, speakers


@dataclass(frozen=True, eq=False)
class Sides:
    """Sets of recordings, each one side of trials: their ids (sorted, unless selected), sessions by type, and gamma."""

    ids: NDArray[Any]  # (n,)
    types: Ints  # (C, K) types of sessions: recordings by kind
    counts: Ints  # (n, C) sessions of each side by type
    gamma: Array  # (n, ny)
    model: Model
    # Named sessions of each side, to see when two sides share one; None where sessions have no names.
    session_ids: NDArray[Any] | None  # (names,) sorted
    session: Ints  # (h,) index into session_ids
    session_side: Ints  # (h,)
    session_type: Ints  # (h,)
    z: Array  # (h, nx)

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def terms(self) -> Terms:
        return Terms(self.model, self.types)

    @cached_property
    def patterns(self) -> Patterns:
        return Patterns(self.counts)

    @cached_property
    def posterior(self) -> Speakers:
        return speakers(self.terms.G, self.patterns, self.gamma)

    @cached_property
    def quadratic(self) -> Array:
        """(n,) gamma' Lambda^-1 gamma."""
        return namespace(self.gamma).sum(self.gamma * self.posterior.mean, axis=1)

    @cached_property
    def Q(self) -> Array:
        """(n,) (gamma' Lambda^-1 gamma - ln|Lambda|) / 2."""
        return (self.quadratic - take(self.posterior.ln_Lambda, self.patterns.index)) / 2

    def find(self, ids: Any) -> Ints:
        """Rows of sides by id."""
        wanted = np.asarray(ids).reshape(-1)
        if wanted.dtype.kind in "OT":
            place = {v: i for i, v in enumerate(self.ids.tolist())}
            unknown = list(dict.fromkeys(v for v in wanted.tolist() if v not in place))
            if unknown:
                raise DuopldaError(f"{len(unknown)} ids are not among the {len(self.ids)} enrolled: {some(unknown)}")
            return np.array([place[v] for v in wanted.tolist()], np.int64)
        order = np.argsort(self.ids, kind="stable")
        rows = np.minimum(np.searchsorted(self.ids, wanted, sorter=order), max(len(self.ids) - 1, 0))
        rows = order[rows] if len(order) else rows
        missing = np.unique(wanted[self.ids[rows] != wanted]) if len(self.ids) else np.unique(wanted)
        if len(missing):
            raise DuopldaError(f"{len(missing)} ids are not among the {len(self.ids)} enrolled: {some(missing)}")
        return rows

    def select(self, rows: Any) -> Sides:
        """Some of the sides (a slice, or row numbers in any order), their sessions with them.

        >>> from duoplda import PLDA
        >>> plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
        >>> plda.enroll([[1.0], [2.0], [3.0]], ["a", "b", "c"]).select([2, 0]).ids.tolist()
        ['c', 'a']
        """
        rows = np.ascontiguousarray(np.arange(len(self))[rows])
        first, end = np.searchsorted(self.session_side, [rows, rows + 1])
        n = end - first
        at = np.repeat(first - np.cumsum(n) + n, n) + np.arange(n.sum())  # sessions are in the order of their sides
        return replace(
            self,
            ids=self.ids[rows],
            counts=self.counts[rows],
            gamma=take(self.gamma, rows),
            session=self.session[at],
            session_side=np.repeat(np.arange(len(rows)), n),
            session_type=self.session_type[at],
            z=take(self.z, at),
        )


def enroll(model: Model, X: Array, ids: Any, session: Any = None, channel: Any = None) -> Sides:
    """Sum up sets of recordings. A session may be in several sets: sets are not assumed to be different speakers."""
    side_ids, side = lab.codes(ids, "speaker", X.shape[0])
    names = None
    if session is None:
        cell, cell_name = np.arange(len(side)), np.zeros(0, np.int64)
    else:
        names, name = lab.codes(session, "session", X.shape[0])
        cells, cell = np.unique(side * len(names) + name, return_inverse=True)
        cell, cell_name = cell.reshape(-1), cells % len(names)
    kind = np.zeros(len(side), np.int64) if channel is None else channel
    n_cells = len(side) if names is None else len(cell_name)
    labels = Labels(side_ids, np.arange(n_cells), model.kinds, side, cell, kind)
    s = sessions(model, X, labels)
    keep = slice(None) if names is not None else slice(0, 0)
    return Sides(
        side_ids,
        s.types,
        s.counts,
        s.gamma(Terms(model, s.types)),
        model,
        names,
        cell_name,
        labels.session_speaker[keep],
        s.type[keep],
        s.z[keep, :],
    )


def shared(a: Sides, b: Sides, only: Ints | None = None) -> tuple[Ints, Ints, Array] | None:
    """Trials whose sides share a session: rows, columns and their ln likelihood ratios."""
    names_a, names_b = a.session_ids, b.session_ids
    if names_a is None or names_b is None or (names_a.dtype.kind in "biuf") != (names_b.dtype.kind in "biuf"):
        return None
    if names_a.dtype.kind not in "biuf":
        names_a, names_b = names_a.astype(str), names_b.astype(str)  # bytes are text too
    common = np.intersect1d(names_a, names_b, assume_unique=True)
    if not len(common):
        return None
    place = np.full(len(names_b), -1)
    place[np.searchsorted(names_b, common)] = np.searchsorted(names_a, common)
    name_b = place[b.session]  # the session's name in a's numbering, -1 if it is not there
    cells_b = np.flatnonzero(name_b >= 0)
    cells_b = cells_b[np.argsort(name_b[cells_b], kind="stable")]
    low = np.searchsorted(name_b[cells_b], a.session, side="left")
    count = np.searchsorted(name_b[cells_b], a.session, side="right") - low
    ca = np.repeat(np.arange(len(a.session)), count)
    cb = cells_b[np.repeat(low, count) + np.arange(len(ca)) - np.repeat(np.cumsum(count) - count, count)]
    trial = a.session_side[ca] * len(b) + b.session_side[cb]
    if only is not None:
        listed = np.isin(trial, only[:, 0] * len(b) + only[:, 1])
        ca, cb, trial = ca[listed], cb[listed], trial[listed]
    if not len(trial):
        return None
    xp = namespace(a.gamma)
    # Merged types: one for each pair of types that meet.
    meet, which = np.unique(a.session_type[ca] * len(b.types) + b.session_type[cb], return_inverse=True)
    which = which.reshape(-1)
    ta, tb = meet // len(b.types), meet % len(b.types)
    merged = Terms(a.model, a.types[ta] + b.types[tb])
    trials, at = np.unique(trial, return_inverse=True)
    at = at.reshape(-1)
    i, j = trials // len(b), trials % len(b)
    za, zb = take(a.z, ca), take(b.z, cb)
    gain = (
        session_terms(merged, which, za + zb)
        - session_terms(a.terms, a.session_type[ca], za)
        - session_terms(b.terms, b.session_type[cb], zb)
    )[:, None]
    shift = zeros((len(ca), a.gamma.shape[1]), a.gamma)
    for t in range(len(meet)):
        of = np.flatnonzero(which == t)
        x, y = take(za, of), take(zb, of)
        change = x @ a.terms.PJ[int(ta[t]), ...] + y @ b.terms.PJ[int(tb[t]), ...] - (x + y) @ merged.PJ[t, ...]
        add_rows(shift, of, change)
    order = np.argsort(at, kind="stable")
    starts = np.flatnonzero(np.diff(at[order], prepend=-1))
    gain, shift = segment_sums(take(gain, order), starts)[:, 0], segment_sums(take(shift, order), starts)
    gamma = take(a.gamma, i) + take(b.gamma, j) + shift
    met = np.bincount(at * len(meet) + which, minlength=len(trials) * len(meet)).reshape(len(trials), -1)
    G = xp.concat([a.terms.G, b.terms.G, merged.G - take(a.terms.G, ta) - take(b.terms.G, tb)])
    patterns = Patterns(np.concatenate([a.counts[i], b.counts[j], met], axis=1))
    both = speakers(G, patterns, gamma)

    Q3 = (xp.sum(gamma * both.mean, axis=1) - take(both.ln_Lambda, patterns.index)) / 2
    return i, j, gain + Q3 - take(a.Q, i) - take(b.Q, j)
