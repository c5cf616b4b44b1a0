"""Score normalisation: where a score lies among those that the two sides of a trial get with a cohort of other people.

For an enrolled side e, a test t and a cohort E, let S_e(A) be the scores of e with the members of A, a part of E, and
S_t(A) those of t; mu and sigma are their mean and their standard deviation (that of the set itself, divided by n). E_e
are the members, `top` of them, that score highest with e, and E_t those that score highest with t (of equal ones, those
that come first). With the score r of e and t,

    z    = (r - mu(S_e(E))) / sigma(S_e(E))
    t    = (r - mu(S_t(E))) / sigma(S_t(E))
    s    = (z + t) / 2
    as1  = [ (r - mu(S_e(E_e))) / sigma(S_e(E_e)) + (r - mu(S_t(E_t))) / sigma(S_t(E_t)) ] / 2
    as2  = [ (r - mu(S_e(E_t))) / sigma(S_e(E_t)) + (r - mu(S_t(E_e))) / sigma(S_t(E_e)) ] / 2

The last two are adaptive s-norm 1 and 2 of Matejka et al., "Analysis of Score Normalization in Multilingual Speaker
Recognition", Interspeech 2017: in the first each side selects its own part of the cohort, in the second each side is
compared with the part that the other one selects. A normalised score is no log-likelihood ratio: it must be calibrated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.arrays import Array, namespace, put, set_rows, take, to_numpy
from duoplda.data.labels import Ints
from duoplda.errors import DuopldaError, some
from duoplda.trials.blocks import SCORES_PER_BLOCK, Scorer, best
from duoplda.trials.ratios import put_cells
from duoplda.trials.sides import Sides
from duoplda.trials.tables import as_text, empty

NORMALIZATIONS = ("z", "t", "s", "as1", "as2")
COHORT_TOP = 300  # members of the cohort that a side selects, the order of size that the literature uses


@dataclass(frozen=True, eq=False)
class Cohort:
    """Recordings or enrolled sets of people who are in none of the trials, and how scores are normalised with them.

    Normalised scores say how much higher a trial scores than its two sides do with other people. They are no
    log-likelihood ratios: calibrate them before anybody decides by them. With recordings like those of the training the
    ratios of a PLDA seldom gain by it (docs/normalization.md): measure it on trials of your own.

    Parameters
    ----------
    sides : the members, enrolled by the model that scores: recordings, each a side of its own, or sets
    normalize : "z", "t", "s", "as1" or "as2" (see the formulas of this module)
    top : how many members a side selects in "as1" and "as2"; all of them, where there are fewer
    speaker : a mapping from the ids of members, models and test recordings to speakers, as far as they are known. An id
        that is not in it stands for itself, as an enrolled speaker's id often is the name.

    Examples
    --------
    >>> from duoplda import PLDA
    >>> plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
    >>> others = plda.enroll([[-1.0], [0.5], [2.0]], ["x", "y", "z"])
    >>> scorer = NormalizedScorer(plda.enroll([[1.0]], ["ann"]), Cohort(others, "s"))
    >>> (scorer.columns(plda.enroll([[1.0], [-1.0]], [0, 1])) > 0).tolist()  # above the mean of the cohort?
    [[True, False]]
    """

    sides: Sides
    normalize: str = "as1"
    top: int = COHORT_TOP
    speaker: Mapping[Any, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.sides, Sides):
            raise DuopldaError(f"the cohort must come from enroll, got {type(self.sides).__name__}")
        if self.normalize not in NORMALIZATIONS:
            raise DuopldaError(f"normalize={self.normalize!r} must be one of {', '.join(NORMALIZATIONS)}")
        if not isinstance(self.top, Integral) or isinstance(self.top, bool) or self.top < 2:
            raise DuopldaError(f"top={self.top!r} must be a whole number from 2 on: one score has no deviation")
        if len(self.sides) < 2:
            raise DuopldaError(f"the cohort has {len(self.sides)} members: give at least 2, better some hundreds")
        xp = namespace(self.sides.gamma)
        bad = ~to_numpy(xp.all(xp.isfinite(self.sides.gamma), axis=1))
        if bad.any():
            names = some(self.sides.ids[bad])
            raise DuopldaError(f"{int(bad.sum())} members of the cohort have NaN or infinity in them: {names}")
        if self.speaker is not None and not isinstance(self.speaker, Mapping):
            raise DuopldaError(f"speaker must be a mapping from ids, got {type(self.speaker).__name__}")

    def refuse_shared(self, what: str, ids: ArrayLike = (), session: ArrayLike = ()) -> None:
        """Refuse trials whose speakers, recordings or sessions are also in the cohort, as far as names tell.

        Parameters
        ----------
        what : what the ids are of, for the message
        ids : of models or recordings
        session : names of sessions
        """
        ids = np.asarray(ids).reshape(-1)
        session = np.asarray(session).reshape(-1)
        shared = self.sides.rows(ids) >= 0
        if self.speaker is not None:
            theirs, ours = (
                as_text(np.array([self.speaker.get(i, i) for i in names.tolist()], dtype=object))
                for names in (ids, self.sides.ids)
            )
            shared |= np.isin(theirs, ours)
        for kind, common in (
            ("speakers or recordings", ids[shared]),
            ("sessions", session[self.sides.named.last(session) >= 0]),
        ):
            names = list(dict.fromkeys(common.tolist()))
            if names:
                cause = f"the cohort shares {len(names)} {kind} with the {what}: {some(names)}"
                remedy = "Leave them out of the cohort; if they are others, give them other names"
                raise DuopldaError(f"{cause}. A cohort must be of people who are in no trial. {remedy}")


class CohortScores(NamedTuple):
    """The scores of n sides with the cohort, as far as a method of normalisation needs them; otherwise None."""

    largest: Array = None  # (n,) the largest absolute score
    mean: Array = None  # (n,) of the scores that count
    deviation: Array = None  # (n,)
    scores: Array = None  # (C, n) all of them; only for "as2", as the following
    nearest: Array = None  # (n, top) the members that score highest, on the host


class NormalizedScorer(Scorer):
    """Normalised scores of enrolled sides and any number of sets of test sides, computed as `Scorer` does.

    The scores of the enrolled sides with the cohort are computed once (and again when sides are added or removed);
    those of tests, for one block of them after another. Kept are two numbers for each enrolled side, except for "as2",
    which keeps all (members, enrolled) scores.
    """

    def __init__(self, enrolled: Sides, cohort: Cohort, cosine: bool = False, scores_at_once: int = SCORES_PER_BLOCK):
        super().__init__(enrolled, cosine)
        self.cohort = cohort
        self.against = Scorer(cohort.sides, cosine)
        self.scores_at_once = scores_at_once  # of sides with the cohort
        self._versions: tuple[int, int] | None = None
        self._models = CohortScores()

    @property
    def models(self) -> CohortScores:
        """The scores of the enrolled sides with the cohort."""
        with self.lock:
            versions = self.enrolled.version, self.cohort.sides.version
            if self._versions != versions:
                parts = list(self._parts(len(self.a))) or [slice(0, 0)]
                scores = [self._against_cohort(self.a, part, "models") for part in parts]
                columns = []
                for name, arrays in zip(CohortScores._fields, zip(*scores, strict=True), strict=True):
                    axis = 1 if name == "scores" else 0
                    columns.append(None if arrays[0] is None else namespace(arrays[0]).concat(arrays, axis=axis))
                self._models = CohortScores(*columns)
                self._versions = versions
            return self._models

    def columns(self, tests: Sides, part: slice | None = None) -> Array:
        part = part or slice(0, len(tests))
        out = super().columns(tests, part)
        ours = self.models
        for some_tests in self._parts(part.stop, part.start):
            columns = slice(some_tests.start - part.start, some_tests.stop - part.start)
            theirs = self._against_cohort(tests, some_tests, "tests")
            if self.cohort.normalize != "as2":
                left = None if ours.mean is None else (ours.mean[:, None], ours.deviation[:, None])
                right = None if theirs.mean is None else (theirs.mean, theirs.deviation)
                out[:, columns] = _normalized(out[:, columns], left, right)
                continue
            for rows in self._parts(len(self.a)):
                of_models = selected_moments(ours.scores[:, rows], theirs.nearest)  # (m, k) twice
                of_tests = selected_moments(theirs.scores, ours.nearest[rows])  # (k, m) twice
                _check(of_models[1], ours.largest[rows][:, None], self.a.ids[rows], "models")
                _check(of_tests[1], theirs.largest[:, None], tests.ids[some_tests], "tests")
                out[rows, columns] = _normalized(out[rows, columns], of_models, (of_tests[0].T, of_tests[1].T))
        return out

    def pairs(self, tests: Sides, index: ArrayLike, expected: int = 0) -> Array:
        out = super().pairs(tests, index, expected)
        index = to_numpy(index)
        order = np.argsort(index[:, 1], kind="stable")
        used, start = np.unique(index[order, 1], return_index=True)
        start = np.append(start, len(order))
        if len(used) < len(tests):
            tests = tests.select(used)
        ours = self.models
        for part in self._parts(len(used)):
            which = order[start[part.start] : start[part.stop]]
            i = index[which, 0]
            j = np.searchsorted(used[part], index[which, 1])
            theirs = self._against_cohort(tests, part, "tests")
            if self.cohort.normalize != "as2":
                left = None if ours.mean is None else (take(ours.mean, i), take(ours.deviation, i))
                right = None if theirs.mean is None else (take(theirs.mean, j), take(theirs.deviation, j))
            else:
                left = _gathered(ours.scores, i, theirs.nearest[j])
                right = _gathered(theirs.scores, j, ours.nearest[i])
                _check(left[1], take(ours.largest, i), self.a.ids[i], "models")
                _check(right[1], take(theirs.largest, j), tests.ids[part][j], "tests")
            set_rows(out, which, _normalized(take(out, which), left, right))
        return out

    def guesses(self, tests: Sides, index: ArrayLike | None = None) -> Array:
        raise DuopldaError("approximate ratios cannot be normalised: leave out the cohort, or approximate")

    # -- inside

    def _parts(self, stop: int, start: int = 0) -> Iterator[slice]:
        """Ranges of sides whose scores with the cohort are held at a time."""
        step = max(1, self.scores_at_once // len(self.cohort.sides))
        return (slice(i, min(i + step, stop)) for i in range(start, stop, step))

    def _against_cohort(self, sides: Sides, part: slice, what: str) -> CohortScores:
        """The scores of some sides with the cohort, as far as the method needs them."""
        method = self.cohort.normalize
        if method == ("t" if what == "models" else "z"):
            return CohortScores()
        S = self.against.columns(sides, part)  # (C, n)
        xp = namespace(S)
        largest = xp.max(xp.abs(S), axis=0)
        k = min(int(self.cohort.top), S.shape[0]) if method in ("as1", "as2") else S.shape[0]
        if method == "as2":
            return CohortScores(largest, scores=S, nearest=best(S, k)[0])
        if k < S.shape[0]:
            S = xp.sort(S, axis=0)[S.shape[0] - k :, :]
        mean = xp.mean(S, axis=0)
        deviation = xp.sqrt(xp.mean((S - mean) ** 2, axis=0))
        _check(deviation, largest, sides.ids[part], what)
        return CohortScores(largest, mean, deviation)


def _normalized(scores: Array, *moments: tuple[Array, Array] | None) -> Array:
    """The mean of (s - mean) / deviation over the sides that count, each a pair of mean and deviation, or None."""
    parts = [(scores - mean) / deviation for mean, deviation in filter(None, moments)]
    return parts[0] if len(parts) == 1 else (parts[0] + parts[1]) / 2


def _check(deviation: Array, largest: Array, ids: NDArray[Any], what: str) -> None:
    """Refuse deviations (n,) or (n, k) that are not numbers, or no larger than rounding makes them."""
    good = to_numpy(deviation > 1e-9 * largest)  # rounding of scores and of their mean is some 1e-13 of the largest
    good &= np.isfinite(to_numpy(deviation))
    bad = ~good.reshape(len(ids), -1).all(axis=1) if len(ids) else np.zeros(0, bool)
    if bad.any():
        names = np.unique(ids[bad])
        cause = f"the scores of {len(names)} {what} with the cohort are all equal, or not finite: {some(names)}"
        raise DuopldaError(f"{cause}. Give a cohort of different recordings, and of more of them")


def selected_moments(A: Array, nearest: Ints) -> tuple[Array, Array]:
    """Means and deviations (n, m) of the scores of n sides with the members `nearest` (m, top) that others select.

    `A` (C, n) are the scores of the sides with all members. Sums over selected members are products with a matrix of 0
    and 1, of scores less each side's mean, and of their squares. Where the variance is a small difference of these, it
    has lost digits, and is computed again from the scores of the members.
    """
    m, top = nearest.shape
    xp = namespace(A)
    marks = np.zeros((A.shape[0], m))
    np.put_along_axis(marks, nearest.T, 1.0, axis=0)
    E = put(marks, A)  # (C, m)
    centre = xp.mean(A, axis=0)
    D = A - centre
    shift = D.T @ E / top  # (n, m)
    square = (D * D).T @ E / top
    mean = shift + centre[:, None]
    variance = square - shift**2
    doubtful = variance <= 1e-4 * square  # four digits of the difference are lost, and more where it is smaller
    i, j = np.nonzero(to_numpy(doubtful))
    deviation = xp.sqrt(xp.where(doubtful, xp.zeros_like(variance), variance))
    if len(i):
        for array, values in zip((mean, deviation), _gathered(A, i, nearest[j]), strict=True):
            put_cells(array, i, j, values)
    return mean, deviation


def _gathered(A: Array, column: Ints, rows: Ints) -> tuple[Array, Array]:
    """Means and deviations (p,) of `A[rows[i], column[i]]`, with `rows` (p, top)."""
    xp = namespace(A)
    C, n = A.shape
    p, top = rows.shape
    flat = xp.reshape(A, (C * n,))
    step = max(1, SCORES_PER_BLOCK // top)
    mean = empty((p,), A)
    deviation = empty((p,), A)
    for i in range(0, p, step):
        part = slice(i, min(i + step, p))
        cell = rows[part] * n + column[part, None]
        values = xp.reshape(take(flat, cell.reshape(-1)), cell.shape)
        centre = xp.mean(values, axis=1, keepdims=True)
        mean[part] = centre[:, 0]
        deviation[part] = xp.sqrt(xp.mean((values - centre) ** 2, axis=1))
    return mean, deviation
