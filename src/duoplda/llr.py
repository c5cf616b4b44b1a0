"""Sides of trials and the likelihood ratio between them.

A side is a set of recordings with sessions, summed up by (n, gamma, Lambda). With
Q = (gamma'Lambda^-1 gamma - ln|Lambda|) / 2 and sides that share no session,
Lambda_3 = Lambda_1 + Lambda_2 - I, gamma_3 = gamma_1 + gamma_2 and

    LLR = Q_3 - Q_1 - Q_2 = gamma_1'Lambda_3^-1 gamma_2 + a_1 + a_2
    a_s = gamma_s'(Lambda_3^-1 - Lambda_s^-1) gamma_s / 2
    (and the three ln|Lambda|, in a_1). Lambda depends on the counts of sessions by type only, the side's *pattern*.

Between sides of one pattern and sides of patterns p = 1 .. P this is one matrix product, of inner size ny + 1 + P:

    [Lambda_3^-1 gamma_1, a_1, e_p] . [gamma_2, 1, a_21 .. a_2P],    e_p the unit vector of the first side's pattern.

Sides that share a session (one conversation through two microphones) hold parts of it: the whole has type c_1 + c_2 and
z_1 + z_2, which changes Lambda_3 and gamma_3, and its session term (`model.session_terms`) no longer cancels.
"""

from __future__ import annotations

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
    is_torch,
    namespace,
    put,
    segment_sums,
    set_rows,
    spd_inverse,
    take,
    to_numpy,
    zeros,
)
from duoplda.errors import DuopldaError
from duoplda.labels import Ints, Labels, some
from duoplda.model import Model, Terms, session_terms, sessions
from duoplda.ragged import Patterns, Speakers, speakers
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
        if wanted.dtype.kind in "OT":
            place = {v: i for i, v in enumerate(self.ids.tolist())}
            unknown = list(dict.fromkeys(v for v in wanted.tolist() if v not in place))
            if unknown:
                raise DuopldaError(f"{len(unknown)} ids are not among the {len(self.ids)} enrolled: {some(unknown)}")
            return np.array([place[v] for v in wanted.tolist()], np.int64)
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


MOST_PATTERNS = 64  # of one side in one product


def matrix(a: Sides, b: Sides) -> Array:
    """(len(a), len(b)) ln likelihood ratios: one product for each pattern of the rows, or one if columns have one.

    (Rows of a block are copied to their places in no time, columns are not; so rows are the ones to be split.)
    """
    xp = namespace(a.gamma)
    out = np.empty((len(a), len(b))) if xp is np else zeros((len(a), len(b)), a.gamma)
    flip = len(b.patterns) > 1
    many, one = (b, a) if flip else (a, b)
    for q in range(len(one.patterns)):
        columns = _members(one, q, q + 1)
        for p in range(0, len(many.patterns), MOST_PATTERNS):
            rows = _members(many, p, p + MOST_PATTERNS)
            left, right = _factors(many, p, rows, one, q, columns)
            if flip:
                _product(out, columns, rows, right, left)
            else:
                _product(out, rows, columns, left, right)
    shared = _shared(a, b)
    if shared is not None:
        _set_cells(out, *shared)
    return out


def pairs(a: Sides, b: Sides, index: Any) -> Array:
    """(n,) ln likelihood ratios of listed pairs (n, 2) of rows of a and of b."""
    try:
        index = to_numpy(index)
    except ValueError:
        raise DuopldaError("pairs must be integers of shape (n, 2), got rows of different lengths") from None
    if index.ndim != 2 or index.shape[1] != 2 or index.dtype.kind not in "iu":
        raise DuopldaError(f"pairs must be integers of shape (n, 2), got {index.dtype} of shape {index.shape}")
    index = index.astype(np.int64, copy=False)  # row * columns + column must not wrap round
    for column, side in ((0, a), (1, b)):
        bad = np.flatnonzero((index[:, column] < 0) | (index[:, column] >= len(side)))
        if len(bad):
            raise DuopldaError(
                f"{len(bad)} pairs name rows that are not there (side {column + 1} has {len(side)}): {some(bad)}"
            )
    xp = namespace(a.gamma)
    out = zeros((len(index),), a.gamma)
    flip = len(a.patterns) < len(b.patterns)
    (many, i), (one, j) = ((b, index[:, 1]), (a, index[:, 0])) if flip else ((a, index[:, 0]), (b, index[:, 1]))
    key = one.patterns.index[j] * len(many.patterns) + many.patterns.index[i] // MOST_PATTERNS * MOST_PATTERNS
    keys = np.unique(key).tolist()
    for value in keys:
        q, p = divmod(value, len(many.patterns))
        of = np.arange(len(index)) if len(keys) == 1 else np.flatnonzero(key == value)
        (rows, at_row), (columns, at_column) = _used(i[of], len(many)), _used(j[of], len(one))
        left, right = _factors(many, p, rows, one, q, columns)
        step = max(1, CHUNK_BYTES // (32 * left.shape[1]))
        for t in range(0, len(of), step):
            part = slice(t, t + step)
            set_rows(out, of[part], xp.vecdot(take(left, at_row[part]), take(right, at_column[part])))
    shared = _shared(a, b, index)
    if shared is not None:
        i, j, values = shared  # sorted by trial
        trial, cell = i * len(b) + j, index[:, 0] * len(b) + index[:, 1]
        place = np.minimum(np.searchsorted(trial, cell), len(trial) - 1)
        hit = np.flatnonzero(trial[place] == cell)
        set_rows(out, hit, take(values, place[hit]))
    return out


def _members(side: Sides, first: int, end: int) -> Ints:
    """Rows of the sides with a range of patterns, increasing."""
    s = side.patterns.start
    return np.sort(side.patterns.speakers[s[first] : s[min(end, len(side.patterns))]])


def _used(index: Ints, n: int) -> tuple[Ints, Ints]:
    """The rows that are used, and each entry's place among them."""
    used = np.zeros(n, bool)
    used[index] = True
    return np.flatnonzero(used), (np.cumsum(used) - 1)[index]


def _factors(many: Sides, first: int, rows: Ints, one: Sides, q: int, columns: Ints) -> tuple[Array, Array]:
    """[Lambda_3^-1 gamma_1, a_1, e_p] and [gamma_2, 1, a_2p ...]: patterns p from `first` on against pattern q."""
    xp, ny = namespace(one.gamma), one.gamma.shape[1]
    patterns = range(first, min(first + MOST_PATTERNS, len(many.patterns)))
    Lambda = [many.Lambda(p) + one.Lambda(q) - eye(ny, one.gamma) for p in patterns]
    inverse, ln_3 = spd_inverse(xp.stack(Lambda))
    ln = xp.stack([many.posterior.ln_Lambda[p] for p in patterns]) + one.posterior.ln_Lambda[q] - ln_3
    g, pattern = take(many.gamma, rows), many.patterns.index[rows] - first
    left = zeros((len(rows), ny + 1 + len(patterns)), g)
    right = zeros((len(columns), ny + 1 + len(patterns)), g)
    right[:, :ny] = take(one.gamma, columns)
    right[:, ny] = 1.0
    for p in range(len(patterns)):
        of = np.flatnonzero(pattern == p)
        mine = g if len(of) == len(rows) else take(g, of)
        half = mine @ inverse[p, ...]
        own = (xp.vecdot(half, mine) - take(many.quadratic, rows[of]) + ln[p]) / 2
        unit = zeros((len(of), len(patterns)), g)
        unit[:, p] = 1.0
        set_rows(left, of, xp.concat([half, own[:, None], unit], axis=1))
        other = right[:, :ny]
        right[:, ny + 1 + p] = (xp.vecdot(other @ inverse[p, ...], other) - take(one.quadratic, columns)) / 2
    return left, right


def _product(out: Array, rows: Ints, columns: Ints, left: Array, right: Array) -> None:
    """out[rows, columns] = left right'."""
    if not isinstance(out, np.ndarray):
        if is_torch(namespace(out)) and (len(rows), len(columns)) == tuple(out.shape):
            import torch

            torch.matmul(left, right.T, out=out)
            return
        block = left @ right.T
        if len(columns) == out.shape[1]:
            set_rows(out, rows, block)
        else:
            _set_cells(
                out, np.repeat(rows, len(columns)), np.tile(columns, len(rows)), namespace(out).reshape(block, (-1,))
            )
    elif len(rows) == out.shape[0] and len(columns) == out.shape[1]:
        np.matmul(left, right.T, out=out)
    else:
        step = max(1, CHUNK_BYTES // (8 * len(columns)))
        buffer = np.empty((min(step, len(rows)), len(columns)))
        for at in range(0, len(rows), step):
            part = rows[at : at + step]
            block = np.matmul(left[at : at + step], right.T, out=buffer[: len(part)])
            if len(columns) == out.shape[1]:
                out[part] = block
            elif part[-1] - part[0] == len(part) - 1:
                out[part[0] : part[-1] + 1, columns] = block
            else:
                out[part[:, None], columns] = block


def _set_cells(out: Array, i: Ints, j: Ints, values: Array) -> None:
    if isinstance(out, np.ndarray):
        out[i, j] = values
    else:
        for t, (r, c) in enumerate(zip(i.tolist(), j.tolist(), strict=True)):
            out[r, c] = values[t]


def _shared(a: Sides, b: Sides, only: Ints | None = None) -> tuple[Ints, Ints, Array] | None:
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
