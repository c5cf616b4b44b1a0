"""The structure of trials, known without their vectors: how large a ratio to expect, and how alike the two sides are.

With the letters of `duoplda.trials.sides`, for sides that share no session,

    c0 = (ln|Lambda_1| + ln|Lambda_2| - ln|Lambda_3|) / 2

is the constant term of the ratio, and the mutual information of the two sides of a target trial: the mean of its ratio,
if the model is right. `alike` is the share of pairs of recordings, one of each side, that are of one kind of channels.
Both depend on the patterns of the two sides alone.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import Array, reproducible, to_numpy, zeros
from duoplda.data.labels import Ints
from duoplda.trials.evidence import DiagonalEvidence
from duoplda.trials.exact import log_evidence
from duoplda.trials.ratios import common_counts
from duoplda.trials.sides import Groups, Sides

Floats = NDArray[np.float64]


class Structure(NamedTuple):
    """The structure of trials; each cell of the two arrays is a trial, or a pair of patterns."""

    expected: Floats  # the mean ratio of target trials, in nats, by the model
    alike: Floats  # the share of pairs of recordings that are of one kind


def log_determinants(G: Array, counts: Ints) -> Floats:
    """(S,) ln|Lambda| of counts (S, C) of sessions by type, no two of which are equal."""
    nothing = zeros((len(counts), G.shape[-1]), G)  # with gamma = 0, Q is -ln|Lambda| / 2
    return -2 * to_numpy(log_evidence(G, counts, nothing, np.arange(len(counts))))


class Structures:
    """The structure of trials between some enrolled sides and any tests; each pair of patterns is computed once."""

    def __init__(self, enrolled: Sides):
        self.enrolled = enrolled
        self.version = enrolled.version
        self.lock = Lock()
        self.tables: OrderedDict[tuple[object, ...], Floats] = (
            OrderedDict()
        )  # (P, Q) c0; NaN where it is not computed yet

    def of_pairs(self, tests: Sides, i: Ints, j: Ints) -> Structure:
        """The structure (n,) of pairs of rows i of the enrolled and j of the tests."""
        tests = tests.weighed
        return self._of_patterns(tests, self.enrolled.weighed.groups.index[i], tests.groups.index[j])

    def of_columns(self, tests: Sides, part: slice) -> tuple[Structure, Ints]:
        """The structure (P, q) of patterns of the enrolled and of the tests in a slice, and the column of each test."""
        tests = tests.weighed
        present, column = np.unique(tests.groups.index[part], return_inverse=True)
        P = len(self.enrolled.weighed.groups)
        cells = self._of_patterns(tests, np.repeat(np.arange(P), len(present)), np.tile(present, P))
        return Structure(*(values.reshape(P, len(present)) for values in cells)), column.reshape(-1)

    @reproducible()
    def _of_patterns(self, tests: Sides, p: Ints, q: Ints) -> Structure:
        most_cells = 1 << 22  # that are kept of one table: 32 MiB
        most_tables = 8
        ours = self.enrolled.weighed.groups
        theirs = tests.groups
        shares = [_shares(groups) for groups in (ours, theirs)]
        kinds = np.vecdot(shares[0][p], shares[1][q])
        if len(ours) * len(theirs) > most_cells:
            return Structure(_expected(ours, theirs, p, q), kinds)
        with self.lock:
            if self.version != self.enrolled.version:
                self.tables.clear()
                self.version = self.enrolled.version
            table = self.tables.setdefault(theirs.key, np.full((len(ours), len(theirs)), np.nan))
            self.tables.move_to_end(theirs.key)
            while len(self.tables) > most_tables:
                self.tables.popitem(last=False)
            missing = np.isnan(table[p, q])
            if missing.any():
                rows, columns = np.divmod(np.unique(p[missing] * len(theirs) + q[missing]), len(theirs))
                table[rows, columns] = _expected(ours, theirs, rows, columns)
            return Structure(table[p, q], kinds)


def of_sides(a: Sides, b: Sides) -> Structure:
    """(n, m) of all pairs of sides."""
    table, column = Structures(a).of_columns(b, slice(0, len(b)))
    return Structure(*(values[a.weighed.groups.index][:, column] for values in table))


def guessed(a: Sides, b: Sides) -> Structure:
    """(n, m) approximations of the structure of all pairs of sides, without a factorisation for each pair of patterns.

    Each side counts as the number of average sessions that its sessions are worth together. c0 is exact where all
    sessions are of one type.
    """
    evidence = DiagonalEvidence.of(a, b)
    worth = [
        evidence.counts(side) @ evidence.diagonals.sum(axis=1) / max(evidence.mean.sum(), 1e-300) for side in (a, b)
    ]
    most = max(float(worth[0].max() + worth[1].max()), 1e-9)
    # Evenly spaced in ln(1 + n): a straight line between neighbours is within 1e-5 nats.
    knots = np.expm1(np.linspace(0.0, np.log1p(most), 1 << 13))
    information = np.log1p(knots[:, None] * evidence.mean).sum(axis=1) / 2
    of_a, of_b = (np.interp(n, knots, information) for n in worth)
    both = np.interp(worth[0][:, None] + worth[1], knots, information)
    kinds_a, kinds_b = (_shares(side.groups)[side.groups.index] for side in (a, b))
    return Structure(of_a[:, None] + of_b - both, kinds_a @ kinds_b.T)


def _shares(groups: Groups) -> Floats:
    """(P, K) of the kinds of channels among the recordings of patterns."""
    n = (groups.rows @ groups.types).astype(float)
    return np.asarray(n / np.maximum(n.sum(axis=1, keepdims=True), 1.0))


def _expected(a: Groups, b: Groups, p: Ints, q: Ints) -> Floats:
    """(n,) c0 of pairs of patterns; equal sums of counts have one Lambda_3."""
    pairs_at_once = 1 << 16
    G, counts_a, counts_b = common_counts(a, b)
    apart = to_numpy(a.ln_Lambda)[p] + to_numpy(b.ln_Lambda)[q]
    together = np.empty(len(p))
    for start in range(0, len(p), pairs_at_once):
        these = slice(start, start + pairs_at_once)
        sums, place = np.unique(counts_a[p[these]] + counts_b[q[these]], axis=0, return_inverse=True)
        together[these] = log_determinants(G, sums)[place.reshape(-1)]
    return np.asarray((apart - together) / 2)
