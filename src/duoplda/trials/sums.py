"""Ratios of the same pairs of sides under one model after another.

The gamma of a side needs sums of its recordings that depend on no model: over its sessions of one type c, the sum of
the recordings of each kind k. With n recordings in a sum F,

    gamma = sum over (c, k) of  (F - n mu_k)' W_k V - (F - n mu_k)' W_k U P_c J_c

so that recordings are added up once, and each model costs the products with its own matrices. Which Lambda have to be
inverted is worked out once, too. `duoplda.trials.ratios` has the same products for one model and any tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import (
    Array,
    SpdInverse,
    add_rows,
    namespace,
    put,
    reproducible,
    segment_sums,
    set_rows,
    take,
    tall_product,
    zeros,
)
from duoplda.data.labels import Ints, Labels
from duoplda.model.occasions import session_weight
from duoplda.model.parameters import Model, Terms
from duoplda.model.ragged import Patterns, at_once, inverses
from duoplda.trials.ratios import dots, run
from duoplda.trials.structure import Structure, log_determinants
from duoplda.trials.tables import empty


class SideSums:
    """Recordings X (n, d) of kinds (n,), 0 .. K - 1, summed up for sides (n,), 0 .. S - 1.

    A session (n,) is one whole; None: each recording is a session of its own. With `kappa`, the sessions of each side
    are of one occasion, and count for less (`duoplda.trials.occasions`).
    """

    def __init__(self, X: Array, side: Ints, session: Ints | None, kind: Ints, K: int, kappa: float = 0.0):
        cell = np.arange(len(side))
        if session is not None:
            cell = np.unique(side * (int(session.max()) + 1) + session, return_inverse=True)[1].reshape(-1)
        n_sides = int(side.max()) + 1
        n_cells = int(cell.max()) + 1
        labels = Labels(np.arange(n_sides), np.arange(n_cells), np.arange(K), side, cell, kind)
        self.types, type_, _ = labels.types
        C = len(self.types)
        self.counts: Ints = np.bincount(labels.session_speaker * C + type_, minlength=n_sides * C).reshape(n_sides, C)
        rho = session_weight(self.counts.sum(axis=1), kappa)  # (n_sides,)
        if kappa:
            self.counts = np.round(self.counts * rho[:, None], 12)  # rounded, so that equal products are one pattern
        self.patterns = Patterns(self.counts)
        place = (kind * C + type_[cell]) * n_sides + side
        order = np.argsort(place, kind="stable")
        starts = np.flatnonzero(np.diff(place[order], prepend=-1))
        self.F = segment_sums(take(X, order), starts)  # (R, d) by kind, then type, then side
        self.n = put(np.diff(np.append(starts, len(place))).astype(np.float64)[:, None], X)  # (R, 1)
        kind_and_type, self.side = np.divmod(place[order][starts], n_sides)  # (R,) of each sum
        if kappa:
            of_sum = put(rho[self.side, None], X)
            self.F = self.F * of_sum
            self.n = self.n * of_sum
        edges = pairwise([*np.flatnonzero(np.diff(kind_and_type, prepend=-1)).tolist(), len(starts)])
        self.parts = [(*divmod(int(kind_and_type[a]), C), slice(a, b)) for a, b in edges]  # kind, type, rows

    def __len__(self) -> int:
        return len(self.counts)

    def gamma(self, model: Model, terms: Terms, place: Ints) -> Array:
        """(S, ny) under a model with these kinds of channels; our types are at these places among those of `terms`."""
        out = zeros((len(self), model.ny), model.V)
        for k, c, rows in self.parts:
            WV = terms.WV[k, ...]
            WU = terms.WU[k, ...]
            PJ = terms.PJ[int(place[c]), ...]
            F = self.F[rows, :] - self.n[rows, :] * model.mu[k, ...]
            few = F.shape[0] * (model.d + model.ny) < model.d * model.ny  # two thin products, or one of matrices first
            add_rows(out, self.side[rows], F @ WV - (F @ WU) @ PJ if few else F @ (WV - WU @ PJ))
        return out


class ModelRatios:
    """Ratios of enrolled sides and tests, which share no session, under one model after another.

    With the letters of `duoplda.trials.sides`, for a side of pattern p and a test of pattern q:

        gamma_1'Lambda_3^-1 gamma_2 + gamma_1'(Lambda_3^-1 - Lambda_1^-1) gamma_1 / 2
            + (gamma_2'(Lambda_3^-1 - Lambda_2^-1) gamma_2 + ln|Lambda_1| + ln|Lambda_2| - ln|Lambda_3|) / 2

    The second term is one number for a side and q, the third is one for a test and p. Equal counts of sessions (of a
    side, of a test, or of both together) have one Lambda, which is inverted once.
    """

    def __init__(self, enrolled: SideSums, tests: SideSums):
        self.sums = (enrolled, tests)
        self.shape = (len(enrolled), len(tests))
        self.types, place = np.unique(np.concatenate([s.types for s in self.sums]), axis=0, return_inverse=True)
        self.places = np.split(place.reshape(-1), [len(enrolled.types)])
        rows = [np.zeros((len(s.patterns), len(self.types)), s.counts.dtype) for s in self.sums]
        for counts, sums, columns in zip(rows, self.sums, self.places, strict=True):
            counts[:, columns] = sums.patterns.rows
        # The rows of each pattern, where sides and tests are in the order of their patterns
        self.sides_of, self.tests_of = (
            [slice(*edges) for edges in pairwise(s.patterns.start.tolist())] for s in self.sums
        )
        both = rows[0][:, None, :] + rows[1]  # (P, Q, C)
        every = np.concatenate([*rows, both.reshape(-1, len(self.types))])
        self.counts, index = np.unique(every, axis=0, return_inverse=True)
        self.of_p, self.of_q, both = np.split(index.reshape(-1), np.cumsum([len(r) for r in rows]))
        self.of_both: Ints = both.reshape(len(rows[0]), len(rows[1]))
        uses = [*((p, -1) for p in range(len(rows[0]))), *((-1, q) for q in range(len(rows[1])))]
        uses += np.ndindex(self.of_both.shape)
        self.uses: list[list[tuple[int, int]]] = [[] for _ in self.counts]  # of each Lambda: p, q or both
        for s, use in zip(index.reshape(-1).tolist(), uses, strict=True):
            self.uses[s].append(use)

    @reproducible()
    def matrix(self, model: Model) -> Array:
        """(S, T) the ratios of all pairs."""
        first, second = (s.patterns for s in self.sums)
        blocks = []
        for left, right, of_side, of_test in self._factors(model):
            block = tall_product(left, right.T)
            block += of_side[:, None]
            for p, rows in enumerate(self.sides_of):
                block[rows, :] += of_test[p, :]
            blocks.append(block)
        if len(blocks) == 1:
            return take(blocks[0], np.argsort(first.speakers))
        out = take(namespace(model.V).concat(blocks, axis=1), np.argsort(first.speakers))
        return take(out.T, np.argsort(second.speakers)).T

    @reproducible()
    def structure(self, model: Model) -> tuple[Structure, Ints, Ints]:
        """(P, Q) of pairs of patterns, and the pattern of each side (S,) and of each test (T,)."""
        ln = log_determinants(Terms(model, self.types).G, self.counts)
        expected = (ln[self.of_p][:, None] + ln[self.of_q] - ln[self.of_both]) / 2
        kinds = ((self.counts[rows] @ self.types).astype(float) for rows in (self.of_p, self.of_q))
        alike_p, alike_q = (n / n.sum(axis=1, keepdims=True) for n in kinds)
        first, second = (s.patterns.index for s in self.sums)
        return Structure(expected, alike_p @ alike_q.T), first, second

    def select(self, cells: Ints | NDArray[np.int32]) -> None:
        """Choose the pairs (n,), each of which is side * T + test, whose ratios `listed` gives.

        For the pairs whose tests have one pattern it keeps, for all models, what depends on no model: their places in
        the list; the side, and the test among those of the pattern; and pattern of the side * tests of the pattern +
        test.
        """
        side, test = np.divmod(cells.astype(np.int64), self.shape[1])
        first, second = (s.patterns for s in self.sums)
        i = np.argsort(first.speakers)[side]
        j = np.argsort(second.speakers)[test]
        self.n_listed = len(cells)
        self.cells = []
        for q, tests in enumerate(self.tests_of):
            where = np.flatnonzero(second.index[test] == q)
            inside = j[where] - tests.start
            cell = first.index[side[where]] * (tests.stop - tests.start) + inside
            self.cells.append((where, i[where], inside, cell))

    @reproducible()
    def listed(self, model: Model) -> Array:
        """(n,) the ratios of the listed pairs."""
        xp = namespace(model.V)
        out = zeros((self.n_listed,), model.V)
        for (where, i, j, cell), (left, right, of_side, of_test) in zip(self.cells, self._factors(model), strict=True):
            n = left.shape[0]
            m = right.shape[0]
            # Up to a million pairs, or where a quarter are listed, all are multiplied faster than some are gathered.
            if n * m <= 1 << 20 or 4 * len(i) > n * m:
                values = take(xp.reshape(tall_product(left, right.T), (-1,)), i * m + j)
            else:
                values = dots(left, right, i, j)
            set_rows(out, where, values + take(of_side, i) + take(xp.reshape(of_test, (-1,)), cell))
        return out

    def _factors(self, model: Model) -> Iterator[tuple[Array, Array, Array, Array]]:
        """For each q: Lambda_3^-1 gamma_1 (S, ny), gamma_2 (T_q, ny), the second term (S,) and the third (P, T_q).

        Sides and tests are in the order of their patterns.
        """
        terms = Terms(model, self.types)
        xp = namespace(model.V)
        P, Q = self.of_both.shape
        n, m = self.shape
        g1, g2 = (
            take(s.gamma(model, terms, place), s.patterns.speakers)
            for s, place in zip(self.sums, self.places, strict=True)
        )
        left = empty((Q, *g1.shape), g1)
        ln = empty((len(self.counts),), g1)
        # gamma'Lambda^-1 gamma of sides, of tests, and of tests with the Lambda_3 of a side's pattern
        form_1 = empty((n,), g1)
        form_2 = empty((m,), g1)
        form_3 = empty((P, m), g1)

        def work(batch: slice, invert: SpdInverse) -> None:
            M, ln[batch] = inverses(terms.G, self.counts[batch], invert)
            for u, uses in enumerate(self.uses[batch]):
                for p, q in uses:
                    a = self.sides_of[p]
                    b = self.tests_of[q]
                    if q < 0:
                        form_1[a] = xp.vecdot(g1[a, :] @ M[u, ...], g1[a, :])
                        continue
                    form = xp.vecdot(g2[b, :] @ M[u, ...], g2[b, :])
                    if p < 0:
                        form_2[b] = form
                    else:
                        form_3[p, b] = form
                        left[q, a, :] = g1[a, :] @ M[u, ...]

        size = at_once(terms.G)
        batches = [slice(s, min(s + size, len(self.counts))) for s in range(0, len(self.counts), size)]
        cost = len(self.counts) * model.ny**3 + 2.0 * (P * m + Q * n) * model.ny**2
        run(work, batches, cost if xp is np else 0, SpdInverse)
        of_both = xp.reshape(take(ln, self.of_both.reshape(-1)), (P, Q))
        lns = take(ln, self.of_p)[:, None] + take(ln, self.of_q) - of_both
        for q, b in enumerate(self.tests_of):
            of_side = (xp.vecdot(left[q, ...], g1) - form_1) / 2
            yield left[q, ...], g2[b, :], of_side, (form_3[:, b] - form_2[b] + lns[:, q][:, None]) / 2
