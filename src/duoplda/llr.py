"""Sides of trials and the likelihood ratio between them.

A side is a set of recordings with sessions, summed up by (n, gamma, Lambda). With
Q = (gamma'Lambda^-1 gamma - ln|Lambda|) / 2 and sides that share no session, Lambda_3 = Lambda_1 + Lambda_2 - I, gamma_3 = gamma_1 + gamma_2 and

    LLR = Q_3 - Q_1 - Q_2 = [C^-1 gamma_1, a_1, 1] . [C^-1 gamma_2, 1, a_2],   Lambda_3 = C C'
    a_s = gamma_s'(Lambda_3^-1 - Lambda_s^-1) gamma_s / 2 + (ln|Lambda_s| - ln|Lambda_3|/2) / 2

so that all sides with the same counts of sessions by type are scored by one matrix product.

Sides that share a session (one conversation through two microphones) hold parts of it: the whole has type c_1 + c_2 and
z_1 + z_2, which changes Lambda_3 and gamma_3, and its session term (`model.session_terms`) no longer cancels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda import labels as lab
from duoplda._array import (
    Array,
    add_rows,
    eye,
    logdet_cholesky,
    namespace,
    put,
    segment_sums,
    set_rows,
    solve_triangular,
    take,
    zeros,
)
from duoplda.errors import DuopldaError
from duoplda.labels import Ints, Labels, some
from duoplda.model import Model, Patterns, Speakers, Terms, session_terms, sessions, speakers
from duoplda.statistics import CHUNK_BYTES


@dataclass(frozen=True, eq=False)
class Sides:
    """Sets of recordings, each one side of trials: their ids (sorted), sessions by type, and gamma."""

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

    def Lambda(self, pattern: int) -> Array:
        G = self.terms.G
        n = put(self.patterns.rows[pattern].astype(float), G)
        return eye(G.shape[-1], G) + namespace(G).tensordot(n, G, axes=1)

    def find(self, ids: Any) -> Ints:
        """Rows of sides by id."""
        wanted = np.asarray(ids).reshape(-1)
        rows = np.minimum(np.searchsorted(self.ids, wanted), max(len(self.ids) - 1, 0))
        missing = np.unique(wanted[self.ids[rows] != wanted]) if len(self.ids) else np.unique(wanted)
        if len(missing):
            raise DuopldaError(f"{len(missing)} ids are not among the {len(self.ids)} enrolled: {some(missing)}")
        return rows


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


def matrix(a: Sides, b: Sides) -> Array:
    """(len(a), len(b)) ln likelihood ratios: one product for each pair of patterns."""
    xp = namespace(a.gamma)
    n, m = len(a), len(b)
    out = np.empty((n, m)) if xp is np else zeros((n, m), a.gamma)
    order = b.patterns.speakers
    in_order = len(b.patterns) == 1 or bool((np.diff(order) == 1).all())
    back = np.argsort(order)
    for p in range(len(a.patterns)):
        rows = _members(a, p)
        right = _Right(a, b, p)
        straight = bool(rows[-1] - rows[0] == len(rows) - 1) and in_order
        step = len(rows) if straight else max(1, CHUNK_BYTES // (8 * m))
        for at in range(0, len(rows), step):
            part = rows[at : at + step]
            if straight and xp is np:
                block = out[part[0] : part[-1] + 1]
            else:
                block = np.empty((len(part), m)) if xp is np else zeros((len(part), m), a.gamma)
            for q, columns in right.columns():
                left, transposed = right.left(q, part), right.right(q).T
                if xp is np:
                    np.matmul(left, transposed, out=block[:, columns])
                else:
                    block[:, columns] = left @ transposed
            if not straight or xp is not np:
                set_rows(out, part, block if in_order else take(block.T, back).T)
    shared = _shared(a, b)
    if shared is not None:
        _set_cells(out, *shared)
    return out


def pairs(a: Sides, b: Sides, index: Any) -> Array:
    """(n,) ln likelihood ratios of listed pairs (n, 2) of rows of a and of b."""
    index = np.asarray(index)
    if index.ndim != 2 or index.shape[1] != 2 or index.dtype.kind not in "iu":
        raise DuopldaError(f"pairs must be integers of shape (n, 2), got {index.dtype} of shape {index.shape}")
    for column, side in ((0, a), (1, b)):
        bad = np.flatnonzero((index[:, column] < 0) | (index[:, column] >= len(side)))
        if len(bad):
            raise DuopldaError(
                f"{len(bad)} pairs name rows that are not there (side {column + 1} has {len(side)}): {some(bad)}"
            )
    xp = namespace(a.gamma)
    out = zeros((len(index), 1), a.gamma)
    key = a.patterns.index[index[:, 0]] * len(b.patterns) + b.patterns.index[index[:, 1]]
    order = np.argsort(key, kind="stable")
    edges = np.flatnonzero(np.diff(key[order], prepend=-1, append=-1)).tolist()
    step = max(1, CHUNK_BYTES // (8 * (a.gamma.shape[1] + 2)))
    for s, e in itertools.pairwise(edges):
        of = order[s:e]
        p, q = divmod(int(key[of[0]]), len(b.patterns))
        rows_a, at_a = np.unique(index[of, 0], return_inverse=True)
        rows_b, at_b = np.unique(index[of, 1], return_inverse=True)
        both = _Right(a, b, p)
        left, right = both.left(q, rows_a), both.right(q, rows_b)
        for t in range(0, len(of), step):
            x, y = take(left, at_a[t : t + step]), take(right, at_b[t : t + step])
            add_rows(out, of[t : t + step], xp.sum(x * y, axis=1)[:, None])
    out = out[:, 0]
    shared = _shared(a, b, index)
    if shared is not None:
        i, j, values = shared  # sorted by trial
        trial, cell = i * len(b) + j, index[:, 0] * len(b) + index[:, 1]
        place = np.minimum(np.searchsorted(trial, cell), len(trial) - 1)
        hit = np.flatnonzero(trial[place] == cell)
        set_rows(out, hit, take(values, place[hit]))
    return out


class _Right:
    """The two factors of the scores between pattern p of one side and each pattern q of the other."""

    def __init__(self, a: Sides, b: Sides, p: int):
        self.a, self.b, self.p = a, b, p
        self.Lambda = a.Lambda(p)
        self.made: dict[int, tuple[Array, Array]] = {}
        self.rights: dict[int, Array] = {}

    def columns(self) -> Iterator[tuple[int, slice]]:
        start = self.b.patterns.start.tolist()
        for q in range(len(self.b.patterns)):
            yield q, slice(start[q], start[q + 1])

    def _factor(self, q: int) -> tuple[Array, Array]:
        if q not in self.made:
            both = self.Lambda + self.b.Lambda(q) - eye(self.Lambda.shape[-1], self.Lambda)
            C = namespace(both).linalg.cholesky(both)
            self.made[q] = C, logdet_cholesky(C) / 2
        return self.made[q]

    def _half(self, side: Sides, pattern: int, q: int, rows: Ints, one_first: bool) -> Array:
        C, ln_3 = self._factor(q)
        xp = namespace(C)
        half = solve_triangular(C, take(side.gamma, rows).T).T
        own = (side.posterior.ln_Lambda[pattern] - ln_3) / 2
        a = (xp.sum(half**2, axis=1) - take(side.quadratic, rows)) / 2 + own
        ones = xp.ones_like(a)
        return xp.concat([half, *([ones[:, None], a[:, None]] if one_first else [a[:, None], ones[:, None]])], axis=1)

    def left(self, q: int, rows: Ints) -> Array:
        return self._half(self.a, self.p, q, rows, one_first=False)

    def right(self, q: int, rows: Ints | None = None) -> Array:
        if rows is not None:
            return self._half(self.b, q, q, rows, one_first=True)
        if q not in self.rights:
            self.rights[q] = self._half(self.b, q, q, _members(self.b, q), one_first=True)
        return self.rights[q]


def _members(side: Sides, pattern: int) -> Ints:
    s = side.patterns.start
    return side.patterns.speakers[s[pattern] : s[pattern + 1]]


def _set_cells(out: Array, i: Ints, j: Ints, values: Array) -> None:
    if isinstance(out, np.ndarray):
        out[i, j] = values
    else:
        for t, (r, c) in enumerate(zip(i.tolist(), j.tolist(), strict=True)):
            out[r, c] = values[t]


def _shared(a: Sides, b: Sides, only: Ints | None = None) -> tuple[Ints, Ints, Array] | None:
    """Trials whose sides share a session: rows, columns and their ln likelihood ratios."""
    if a.session_ids is None or b.session_ids is None or a.session_ids.dtype.kind != b.session_ids.dtype.kind:
        return None
    common = np.intersect1d(a.session_ids, b.session_ids, assume_unique=True)
    if not len(common):
        return None
    place = np.full(len(b.session_ids), -1)
    place[np.searchsorted(b.session_ids, common)] = np.searchsorted(a.session_ids, common)
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
