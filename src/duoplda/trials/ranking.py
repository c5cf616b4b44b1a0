"""The highest-scoring of very many enrolled sides: single precision finds the candidates, double precision scores them.

With the letters of `duoplda.trials.sides`, the ratio of a side of pattern p and a test of pattern q is

    gamma_1'r + a_1 + b,    r = Lambda_3^-1 gamma_2,    a_1 = gamma_1'(Lambda_3^-1 - Lambda_1^-1) gamma_1 / 2,

where b depends on the test and on p alone. A `Ranking` keeps gamma_1 once more, in single precision and in the order of
patterns, and a_1 for the patterns of tests that it has met. A product of n numbers in single precision is off by at
most about n u |gamma_1||r|, u = 2^-24: a side that is below the k-th highest by more than twice that cannot be among
the k highest. The few sides that are left are scored again in double precision. So the result is exact, and it is the
same for any number of threads.

A ranking takes half of the memory of the sides, besides theirs. A side that is added or changed costs O(ny), and
O(ny^2) when the next test of each known pattern comes; nothing else is computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import SpdInverse, in_order, reproducible
from duoplda.data.labels import Ints
from duoplda.model.parameters import Terms
from duoplda.trials.ratios import KEPT_BYTES, run
from duoplda.trials.sides import Sides

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Pattern = tuple[tuple[tuple[int, ...], float], ...]  # types of sessions (recordings of each kind), and how many of each

FEWEST = 1 << 8  # sides: for fewer, a ranking is not worth while
MOST_INVERSES = 1024  # patterns of sides: of more, inverses take longer than products
KEPT_PATTERNS = 8  # of tests, for which a_1 is kept
SAMPLE = 1 << 13  # sides whose scores give a lower bound of the k highest
LARGEST_SAMPLE = 1 / 8  # of all sides in that sample, as its scores are computed twice
CELLS = 1 << 18  # of a product, so that it stays in the caches


class Block:
    """Sides of one pattern: their rows and their gamma in single precision, with room for more."""

    def __init__(self, ny: int):
        self.n = 0
        self.rows: Ints = np.zeros(0, np.int64)
        self.single: Singles = np.zeros((0, ny), np.float32)
        self.length = 0.0  # of the longest gamma that has been here
        self.alone: dict[Pattern, Alone] = {}

    def append(self, rows: Ints, gamma: Floats) -> Ints:
        """Add sides, and return their places in the block."""
        n = self.n + len(rows)
        if n > len(self.rows):
            room = n if not self.n else max(n, self.n + self.n // 8 + 64)
            self.rows = np.resize(self.rows[: self.n], room) if self.n else np.zeros(room, np.int64)
            single = np.empty((room, self.single.shape[1]), np.float32)
            single[: self.n] = self.single[: self.n]
            self.single = single
        self.rows[self.n : n] = rows
        self.single[self.n : n] = gamma
        for start in range(0, len(rows), 1 << 14):
            part = gamma[start : start + (1 << 14)]
            self.length = max(self.length, float(np.sqrt(np.vecdot(part, part).max(initial=0.0))))
        places = np.arange(self.n, n)
        self.n = n
        return places

    def drop(self, place: int) -> int:
        """Remove a side, and return the row of the side that takes its place, or its own row where it was the last."""
        last = self.n - 1
        row = int(self.rows[last])
        self.rows[place] = row
        self.single[place] = self.single[last]
        for alone in self.alone.values():
            if alone.n > place:
                alone.values[place] = alone.values[last] if alone.n > last else np.nan
            alone.n = min(alone.n, last) if alone.n > last else min(alone.n, place)
        self.n = last
        return row


class Alone:
    """For sides of one pattern and tests of another: a_1 of the first n sides of a block, and the constants.

    M3 = Lambda_3^-1, D = (Lambda_3^-1 - Lambda_1^-1) / 2 and ln = (ln|Lambda_1| - ln|Lambda_3|) / 2.
    """

    def __init__(self, Lambda_1: Floats, Lambda_3: Floats):
        stack = np.stack([Lambda_1, Lambda_3])
        ln_1, ln_3 = SpdInverse()(stack)
        self.M3: Floats = stack[1]
        self.D: Floats = (stack[1] - stack[0]) / 2
        self.ln = float(ln_1 - ln_3) / 2
        self.n = 0
        self.values: Floats = np.zeros(0)
        self.largest = 0.0

    def extend(self, block: Block, gamma: Floats) -> None:
        """Compute a_1 of the sides of a block that have none yet."""
        if len(self.values) < block.n:
            values = np.empty(len(block.rows))
            values[: self.n] = self.values[: self.n]
            self.values = values
        missing = range(self.n, block.n, 4096)

        def work(start: int) -> None:
            part = slice(start, min(start + 4096, block.n))
            g = gamma[block.rows[part]]
            self.values[part] = np.vecdot(g @ self.D, g)

        run(work, missing, 2.0 * (block.n - self.n) * gamma.shape[1] ** 2)
        if self.n < block.n:
            self.largest = max(self.largest, float(np.abs(self.values[self.n : block.n]).max()))
            self.n = block.n


class TestPart(NamedTuple):
    """A block of sides, and some tests of one pattern with their r and b."""

    block: Block
    alone: Alone
    right: Floats  # (T, ny)
    b: Floats  # (T,)


class Ranking:
    """A copy of enrolled sides in single precision, which `update` keeps current when sides change."""

    def __init__(self, sides: Sides):
        self.sides = sides
        self.blocks: dict[Pattern, Block] = {}
        self.pattern_of: list[Pattern] = []
        self.block_of: Ints = np.zeros(0, np.int64)
        self.place_of: Ints = np.zeros(0, np.int64)
        self.met: list[Pattern] = []  # patterns of tests, the last one last
        self.update(np.arange(len(sides)))

    # -- changes

    def update(self, rows: Ints) -> None:
        """Take over sides that are new, or whose gamma or counts have changed."""
        sides = self.sides
        if len(sides) > len(self.block_of):
            room = max(len(sides), 2 * len(self.block_of))
            old = self.block_of
            self.block_of = np.full(room, -1)
            self.block_of[: len(old)] = old
            self.place_of = np.resize(self.place_of, room) if len(old) else np.zeros(room, np.int64)
        for row in rows[self.block_of[rows] >= 0].tolist():
            block = self.blocks[self.pattern_of[self.block_of[row]]]
            place = int(self.place_of[row])
            self.place_of[block.drop(place)] = place
        counts, index = np.unique(sides.counts[rows], axis=0, return_inverse=True)
        index = index.reshape(-1)
        for p, pattern in enumerate(patterns(sides.types, counts)):
            if pattern not in self.blocks:
                self.blocks[pattern] = Block(sides.gamma.shape[1])
                self.pattern_of.append(pattern)
            these = rows[index == p] if len(counts) > 1 else rows
            gamma = sides.gamma if len(these) == len(sides) else sides.gamma[these]
            self.place_of[these] = self.blocks[pattern].append(these, gamma)
            self.block_of[these] = self.pattern_of.index(pattern)

    # -- questions

    @reproducible()
    def top(self, tests: Sides, k: int) -> tuple[Ints, Floats]:
        """The k highest-scoring rows of each test and their ratios, highest (or of equal ones the lower row) first."""
        rows = np.empty((len(tests), k), np.int64)
        ratios = np.empty((len(tests), k))
        for which, parts in self._parts(tests):
            # (T,) how far ratios in single precision may be from exact ones: errors of the product, and of a_1 and b
            bounds = [
                (part.right.shape[1] + 8) * np.sqrt(np.vecdot(part.right, part.right)) * part.block.length
                + 6 * (part.alone.largest + np.abs(part.b))
                for part in parts
            ]
            error = 2.0**-24 * np.max(bounds, axis=0)
            least = self._least(parts, k) - 2 * error
            near: list[list[tuple[int, Ints, Singles]]] = [[] for _ in which]
            for p, part in enumerate(parts):
                for test, place, score in above(part, (least - part.b).astype(np.float32)):
                    for t in np.unique(test).tolist():
                        of_test = test == t
                        near[t].append((p, place[of_test], score[of_test] + np.float32(part.b[t])))
            for t, row in enumerate(which.tolist()):
                rows[row], ratios[row] = self._exact(parts, near[t], t, k, 2 * float(error[t]))
        return rows, ratios

    @reproducible()
    def ratios(self, tests: Sides, precise: bool = True) -> Floats:
        """(tests, sides) all ratios: products, and the a_1 that are kept of sides that have not changed.

        Unless `precise`, products are in single precision: they are off by some hundredths at most where gamma is not
        large.
        """
        out = np.empty((len(tests), len(self.sides)))
        for which, parts in self._parts(tests):
            for part in parts:
                block = part.block
                for places in chunks(block.n, 64 if precise else len(which)):
                    rows = block.rows[places]
                    if precise:
                        values = part.right @ self.sides.gamma[rows].T + part.alone.values[places]
                    else:
                        values = scored(part, places)
                    out[which[:, None], rows] = values + part.b[:, None]
        return out

    def _parts(self, tests: Sides) -> Iterator[tuple[Ints, list[TestPart]]]:
        """For the tests of one pattern after another: their rows, and their part in the ratios with each block."""
        counts, index = np.unique(tests.counts, axis=0, return_inverse=True)
        for q, pattern in enumerate(patterns(tests.types, counts)):
            which = np.flatnonzero(index.reshape(-1) == q)
            g2 = tests.gamma[which]
            quadratic = tests.quadratic[which]
            ln_2 = tests.posterior.ln_Lambda[tests.patterns.index[which[0]]]
            self._meet(pattern)
            parts = []
            for pattern_of_block, block in self.blocks.items():
                if not block.n:
                    block.alone.clear()
                    continue
                if pattern not in block.alone:
                    Lambda_3 = self._Lambda(pattern_of_block + pattern)
                    block.alone[pattern] = Alone(self._Lambda(pattern_of_block), Lambda_3)
                alone = block.alone[pattern]
                alone.extend(block, self.sides.gamma)
                right = g2 @ alone.M3
                b = (np.vecdot(right, g2) - quadratic + ln_2) / 2 + alone.ln
                parts.append(TestPart(block, alone, right, b))
            yield which, parts

    def _meet(self, pattern: Pattern) -> None:
        """Note a pattern of tests, and forget what is kept for patterns that have not come for long."""
        self.met = [*(p for p in self.met if p != pattern), pattern]
        of_one = 16 * self.sides.gamma.shape[1] ** 2 * len(self.blocks)  # bytes of M3 and D
        while len(self.met) > max(1, min(KEPT_PATTERNS, KEPT_BYTES // max(of_one, 1))):
            forgotten = self.met.pop(0)
            for block in self.blocks.values():
                block.alone.pop(forgotten, None)

    def _Lambda(self, pattern: Pattern) -> Floats:
        """Lambda of a side of this pattern."""
        types = np.array([t for t, _ in pattern], np.int64).reshape(-1, self.sides.types.shape[1])
        times = np.array([n for _, n in pattern], float)
        ny = self.sides.gamma.shape[1]
        G = np.asarray(Terms(self.sides.model, types).G)
        return np.eye(ny) + np.tensordot(times, G, axes=1)

    def _least(self, parts: list[TestPart], k: int) -> Floats:
        """(T,) a bound that k of the sides reach in single precision: the k-th highest of some of them."""
        n = sum(part.block.n for part in parts)
        share = min(1.0, max(min(SAMPLE / n, LARGEST_SAMPLE), 16 * k / n))
        scores = []
        for part in parts:  # the first ones, which lie together: to gather others would take longer than their product
            rows = slice(0, int(np.ceil(share * part.block.n)))
            scores.append(scored(part, rows) + part.b[:, None].astype(np.float32))
        every = np.concatenate(scores, axis=1)
        return np.partition(every, every.shape[1] - k, axis=1)[:, every.shape[1] - k].astype(float)

    def _exact(
        self, parts: list[TestPart], near: list[tuple[int, Ints, Singles]], t: int, k: int, margin: float
    ) -> tuple[Ints, Floats]:
        """The k highest of the candidates `near`, in double precision."""
        guesses = np.concatenate([score for _, _, score in near])
        least = np.partition(guesses, len(guesses) - k)[len(guesses) - k] - margin
        rows = []
        ratios = []
        for p, place, score in near:
            part = parts[p]
            place = place[score >= least]
            row = part.block.rows[place]
            rows.append(row)
            ratios.append(self.sides.gamma[row] @ part.right[t] + part.alone.values[place] + part.b[t])
        row = np.concatenate(rows)
        ratio = np.concatenate(ratios)
        first = np.lexsort((row, -ratio))[:k]
        return row[first], ratio[first]


def patterns(types: Ints, counts: Ints) -> list[Pattern]:
    """Rows of counts of sessions by type, whatever the order of the types."""
    names = [*map(tuple, types.tolist())]
    return [tuple(sorted((names[c], row[c].item()) for c in np.flatnonzero(row))) for row in counts]


def chunks(n: int, T: int) -> list[slice]:
    """Ranges of n rows whose products with T tests stay in the caches."""
    step = max(256, min(1 << 15, CELLS // T))
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def scored(part: TestPart, rows: slice) -> Singles:
    """(T, rows) gamma_1'r + a_1 in single precision."""
    single = part.block.single[rows]
    right = part.right.astype(np.float32)
    scores = (single @ right[0])[None] if len(right) == 1 else right @ single.T
    scores += part.alone.values[rows].astype(np.float32)
    return scores


def above(part: TestPart, limit: Singles) -> Iterator[tuple[Ints, Ints, Singles]]:
    """Tests, places in the block and scores of those above the limits (T,) of the tests, some places at a time."""

    def work(rows: slice) -> tuple[Ints, Ints, Singles] | None:
        scores = scored(part, rows)
        hit = scores > limit[:, None]
        if not hit.any():
            return None
        test, place = np.nonzero(hit)
        return test, place + rows.start, scores[test, place]

    flops = 2.0 * part.right.size * part.block.n
    yield from filter(None, in_order(work, chunks(part.block.n, len(limit)), flops))


def ranking_of(sides: Sides) -> Ranking | None:
    """The ranking of sides, made once and kept with them; None where another way is better."""
    if len(sides) < FEWEST or not isinstance(sides.gamma, np.ndarray) or sides.gamma.shape[1] == 0:
        return None
    if sides.ranking is None:
        if len(np.unique(sides.counts, axis=0)) > MOST_INVERSES:
            return None
        sides.ranking = Ranking(sides)
    return sides.ranking if len(sides.ranking.blocks) <= 2 * MOST_INVERSES else None
