"""Side information on the two sides of trials: the columns of a table of recordings as those of a linear model.

A side is one recording, or the recordings of an enrolled model. The value of a side is the mean over its recordings of

    x        a column of numbers
    log x    a column of durations or counts, known by its name (`LOG_COLUMNS`): their effect on a score levels off
    [x = k]  for each word k but the most common one, for a column of words: the share of its recordings that are k

and, one number for the whole side, the log of its number of recordings, and of its number of sessions where the table
has a column of session names. With e_q and t_q for these values of the enrolment and the test, they add to the ratio

    sum_q (c_q e_q + d_q t_q) + sum over columns of words of h (1 - sum_k e_k t_k)

whose last term is the probability that a recording of the enrolment and one of the test differ in kind; there k runs
over all words. The two sides of a trial may play different parts (several recordings against one), and then have
coefficients of their own. If they do not, a trial must get the same ratio with its sides exchanged: c_q = d_q.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from duoplda.errors import DuopldaError, MissingIds, some
from duoplda.evaluation.checks import Booleans, Floats, Indices, refuse_rows
from duoplda.io import Coded, Enrollment, QualityTable, Trials
from duoplda.io.labels import LABEL_COLUMNS

__all__ = ["Recipe", "Term", "TrialQuality", "choose", "described", "design", "linked_sides", "trial_folds"]
__all__ += ["trial_quality"]

LOG_COLUMNS = (  # names of columns of durations and counts
    *("duration", "durations", "dur", "seconds", "speech", "length", "frames", "n_frames", "num_frames"),
    *("sessions", "n_sessions", "num_sessions", "recordings", "n_recordings", "num_recordings"),
    *("utterances", "n_utterances", "num_utts", "words", "n_words"),
)


@dataclass(frozen=True, eq=False)
class Members:
    """The k different models of n trials, or their k test recordings, and the r rows of a table that describe them."""

    ids: NDArray[np.str_]  # (k,)
    codes: Indices  # (n,) the model, or the test recording, of each trial
    owner: Indices  # (r,) the one of the k that a row belongs to
    row: Indices  # (r,) the row of the table, -1 where the table has none

    def mean(self, values: Floats) -> Floats:
        """The mean of a column of the table over each side, (k,)."""
        k = len(self.ids)
        return np.bincount(self.owner, values[self.row], k) / np.bincount(self.owner, minlength=k)


@dataclass(frozen=True, eq=False)
class TrialQuality:
    """The rows of a table that describe the two sides of n trials; `trial_quality` finds them.

    >>> trials = Trials(Coded.of(["a", "a"]), Coded.of(["b", "c"]))
    >>> quality = trial_quality(trials, QualityTable.of("abc", {"duration": [1.0, 2.0, 3.0]}))
    >>> len(quality), quality.test.mean(quality.table.numbers("duration")).tolist()
    (2, [2.0, 3.0])
    """

    table: QualityTable
    enroll: Members
    test: Members

    def __len__(self) -> int:
        return len(self.enroll.codes)

    @property
    def sides(self) -> tuple[Members, Members]:
        """Both sides, enrolment and test."""
        return self.enroll, self.test

    @property
    def used(self) -> Indices:
        """The rows of the table that the trials use, as often as sides use them."""
        return np.concatenate((self.enroll.row, self.test.row))


@dataclass(frozen=True)
class Term:
    """One column of the linear model: how it is made, of which column of the table, of which side.

    >>> str(Term("log", "duration", "test")), str(Term("differ", "kind"))
    ('log duration, test', 'kind differs')
    """

    use: str  # "number", "log", "word", "differ", "sessions" or "recordings"
    column: str = ""
    side: str = "both"  # "enrolment", "test" or "both"
    word: str = ""

    def __str__(self) -> str:
        if self.use == "differ":
            return f"{self.column} differs"
        what = {"number": self.column, "log": f"log {self.column}", "word": f"{self.column} = {self.word}"}
        what |= {"sessions": "log number of sessions", "recordings": "log number of recordings"}
        return f"{what[self.use]}, {self.side if self.side != 'both' else 'both sides'}"


@dataclass(frozen=True)
class Recipe:
    """The terms of a linear model, the words that each column of words may have, and the columns that were ignored.

    >>> Recipe.of([["log", "duration", "test", ""]], {}).terms
    (Term(use='log', column='duration', side='test', word=''),)
    """

    terms: tuple[Term, ...]
    kinds: Mapping[str, tuple[str, ...]]
    ignored: Mapping[str, str] = field(default_factory=dict)  # column -> why

    @classmethod
    def of(cls, terms: Any, kinds: Any) -> Recipe:
        """Check and take back what a file has kept: lists of four texts, and a dictionary of lists of texts.

        A file may hold anything, so nothing is taken for granted about the two arguments.
        """
        uses = ("number", "log", "word", "differ", "sessions", "recordings")
        sides = ("enrolment", "test", "both")
        lists = [*terms, *kinds.values()] if isinstance(terms, list | tuple) and isinstance(kinds, dict) else [None]
        texts = all(isinstance(one, list | tuple) and all(isinstance(text, str) for text in one) for one in lists)
        if not texts or not all(len(t) == 4 and t[0] in uses and t[2] in sides for t in terms):
            raise DuopldaError("the terms of the side information are damaged; learn the calibration again")
        checked = tuple(Term(*t) for t in terms)
        if not all(t.column in kinds for t in checked if t.use in ("word", "differ")):
            raise DuopldaError("the words of the side information are damaged; learn the calibration again")
        return cls(checked, {str(name): tuple(words) for name, words in kinds.items()})


def trial_quality(trials: Trials, table: QualityTable, enrollment: Enrollment | None = None) -> TrialQuality:
    """Find the rows of a table that belong to both sides of trials.

    `enrollment` has the recordings of each model. A model that it does not have is taken for one recording, whose row
    has the name of the model. Recordings without a row raise `MissingIds`; `described` finds the trials without any.

    >>> trials = Trials(Coded.of(["m", "m"]), Coded.of(["c", "d"]), np.array([True, False]))
    >>> table = QualityTable.of("abcd", {"duration": [1.0, 3.0, 5.0, 7.0]})
    >>> quality = trial_quality(trials, table, Enrollment(Coded.of(["m", "m"]), Coded.of(["a", "b"])))
    >>> quality.enroll.mean(table.numbers("duration")).tolist(), quality.test.mean(table.numbers("duration")).tolist()
    ([2.0], [5.0, 7.0])
    """
    (enroll, absent_enroll), (test, absent_test) = _members(trials, table, enrollment)
    absent = list(dict.fromkeys(absent_enroll + absent_test))
    if absent:
        remedy = "add them; models of other recordings need the enrolment map"
        raise MissingIds(f"the table has no row for {len(absent):,} recordings: {some(absent)}; {remedy}")
    return TrialQuality(table, enroll, test)


def described(trials: Trials, table: QualityTable, enrollment: Enrollment | None = None) -> Booleans:
    """Say which trials have a row of the table for each of their recordings, (n,).

    >>> trials = Trials(Coded.of(["a", "a"]), Coded.of(["b", "c"]))
    >>> described(trials, QualityTable.of("ab", {"rate": [1.0, 2.0]})).tolist()
    [True, False]
    """
    whole = np.ones(len(trials), bool)
    for members, _ in _members(trials, table, enrollment):
        whole &= (np.bincount(members.owner, members.row < 0, len(members.ids)) == 0)[members.codes]
    return whole


def _members(trials: Trials, table: QualityTable, enrollment: Enrollment | None) -> list[tuple[Members, list[str]]]:
    """The models and the test recordings of the trials, each with the names of recordings that the table lacks."""
    models: dict[str, list[str]] = {}
    if enrollment is not None:
        pairs = (column.values.tolist() for column in (enrollment.model, enrollment.recording))
        for model, recording in zip(*pairs, strict=True):
            models.setdefault(model, []).append(recording)
    hands: tuple[tuple[Coded, dict[str, list[str]]], ...] = ((trials.enroll, models), (trials.test, {}))
    sides = []
    for column, recordings_of in hands:
        present, codes = np.unique(column.codes, return_inverse=True)
        ids = column.names[present]
        owned = [recordings_of.get(name, [name]) for name in ids.tolist()]
        names = [name for recordings in owned for name in recordings]
        row = np.array([table.rows.get(name, -1) for name in names], np.intp)
        owner = np.repeat(np.arange(len(ids)), [len(recordings) for recordings in owned])
        absent = [names[i] for i in np.flatnonzero(row < 0)]
        sides.append((Members(ids, codes.reshape(-1), owner, row), absent))
    return sides


def choose(quality: TrialQuality, symmetric: bool = False) -> Recipe:
    """Choose the terms that the columns of a table can give on these trials, and say why others cannot.

    No label is looked at, so the choice is fair to use on held-out trials. A column is ignored if it names
    speakers, if a value is missing, if it has too many different words to be a kind, or if it is the same for all
    trials.

    >>> trials = Trials(Coded.of(["a", "a"]), Coded.of(["b", "c"]))
    >>> table = QualityTable.of("abc", {"duration": [1, 2, 3], "rate": [8, 8, 8], "kind": ["x", "x", "y"]})
    >>> recipe = choose(trial_quality(trials, table))
    >>> [str(term) for term in recipe.terms], dict(recipe.ignored)
    (['log duration, test', 'kind = y, test'], {'rate': 'it is the same for all trials'})
    """
    sides = ("both",) if symmetric else ("enrolment", "test")
    terms = [t for t in (Term("recordings", side=side) for side in sides) if _varies(_column(quality, t, {}))]
    kinds: dict[str, tuple[str, ...]] = {}
    ignored: dict[str, str] = {}
    for name in quality.table.columns:
        words, cause = _words(quality, name)
        forms = [Term("word", name, word=word) for word in words[1:]] if words else [_number_term(name)]
        cause = cause or _gaps(quality, forms)
        usable = [] if cause else [Term(form.use, name, side, form.word) for form in forms for side in sides]
        usable = [t for t in usable if _varies(_column(quality, t, {}))]
        if words and usable:
            kinds[name] = words
            both = all(any(_varies(_value(quality, m, form)[m.codes]) for form in forms) for m in quality.sides)
            differ = Term("differ", name)
            usable += [differ] if both and _varies(_column(quality, differ, kinds)) else []
        if not usable:
            ignored[name] = cause or "it is the same for all trials"
        terms += usable
    return Recipe(tuple(terms), kinds, ignored)


def design(quality: TrialQuality, recipe: Recipe) -> Floats:
    """The columns of the linear model, (n, number of terms).

    A column that the table lacks, a missing value, and a word that `choose` has not seen are errors.

    >>> trials = Trials(Coded.of(["a", "a"]), Coded.of(["b", "c"]))
    >>> quality = trial_quality(trials, QualityTable.of("abc", {"rate": [1.0, 2.0, 4.0]}))
    >>> design(quality, choose(quality)).tolist()
    [[2.0], [4.0]]
    """
    for name in dict.fromkeys(t.column for t in recipe.terms if t.column):
        if name not in quality.table.columns:
            has = some(quality.table.columns)
            raise DuopldaError(f"the table has no column {name!r}, by which the calibration goes; it has {has}")
        forms = [t for t in recipe.terms if t.column == name and t.use != "differ"] or [Term("word", name)]
        if forms[0].use in ("number", "log") and quality.table.numbers(name) is None:
            raise DuopldaError(f"column {name!r} has cells that are no numbers, which the calibration needs")
        if cause := _gaps(quality, forms[:1]):
            raise DuopldaError(f"column {name!r} cannot be used here: {cause}; fill it, or leave these trials out")
        if name in recipe.kinds:
            used = quality.used
            new = used[~np.isin(quality.table.words(name)[used], recipe.kinds[name])]
            if len(new):
                which = some(dict.fromkeys(quality.table.ids[new].tolist()))
                known = f"the calibration has learnt {some(recipe.kinds[name])}"
                raise DuopldaError(f"column {name!r} has another word for the recordings {which}; {known}")
    columns = [_column(quality, term, recipe.kinds) for term in recipe.terms]
    return np.stack(columns, axis=1) if columns else np.empty((len(quality), 0))


def _column(quality: TrialQuality, term: Term, kinds: Mapping[str, tuple[str, ...]]) -> Floats:
    """One column of the linear model, (n,)."""
    enroll, test = quality.sides
    if term.use == "differ":
        same = np.zeros(len(quality))
        for word in kinds[term.column]:
            e, t = (_value(quality, members, Term("word", term.column, word=word)) for members in (enroll, test))
            same += e[enroll.codes] * t[test.codes]
        return 1 - same
    parts = {"enrolment": (enroll,), "test": (test,), "both": (enroll, test)}[term.side]
    return np.sum([_value(quality, members, term)[members.codes] for members in parts], axis=0)


def _value(quality: TrialQuality, members: Members, term: Term) -> Floats:
    """The value of a term for each of the k members, (k,): not finite where a value is missing."""
    table = quality.table
    k = len(members.ids)
    if term.use == "recordings":
        return np.log(np.bincount(members.owner, minlength=k))
    if term.use in ("number", "log"):
        x = table.numbers(term.column)
        if x is None:
            raise DuopldaError(f"column {term.column!r} has cells that are no numbers")
        return members.mean(np.log(np.where(x > 0, x, np.nan)) if term.use == "log" else x)
    words = table.words(term.column)
    if term.use == "word":
        return members.mean(np.where(words == "", np.nan, words == term.word))
    codes = np.unique(words, return_inverse=True)[1].reshape(-1)[members.row]
    owners = np.unique(np.stack((members.owner, codes), axis=1), axis=0)[:, 0]
    count = np.log(np.bincount(owners, minlength=k))
    count[members.owner[words[members.row] == ""]] = np.nan
    return count


def _number_term(name: str) -> Term:
    """The term for a column without words: the number of its sessions, its logarithm, or the number itself."""
    plain = name.strip().lower()
    use = "sessions" if plain in LABEL_COLUMNS["session"] else "log" if plain in LOG_COLUMNS else "number"
    return Term(use, name)


def _words(quality: TrialQuality, name: str) -> tuple[tuple[str, ...], str]:
    """The words of a column of kinds, the most common one first, and why the column is unusable, or "".

    Columns of numbers and of sessions have no words.
    """
    most = 32  # kinds; a column with more different words is taken for names
    plain = name.strip().lower()
    if plain in LABEL_COLUMNS["speaker"]:
        return (), "it names speakers"
    if plain in LABEL_COLUMNS["session"] or quality.table.numbers(name) is not None:
        return (), ""
    words, counts = np.unique(quality.table.words(name)[quality.used], return_counts=True)
    if len(words) > most:
        odd = next(w for w in words.tolist() if QualityTable.of(["a"], {"x": [w]}).numbers("x") is None)
        cause = f"it has {len(words):,} different texts, such as {some([odd])}: neither numbers nor kinds"
        return (), f"{cause} (at most {most})"
    first = int(counts.argmax())
    return (str(words[first]), *np.delete(words, first).tolist()), ""


def _gaps(quality: TrialQuality, forms: list[Term]) -> str:
    """Why a column cannot be used for lack of values, or "" where each side has one."""
    bad: list[str] = []
    for members in quality.sides if forms else ():
        bad += members.ids[~np.isfinite(_value(quality, members, forms[0]))].tolist()
    if not bad:
        return ""
    what = (
        "missing, infinite, or not positive (a logarithm is taken)" if forms[0].use == "log" else "missing or infinite"
    )
    return f"a value is {what} for {some(dict.fromkeys(bad), 5)}"


def _varies(x: Floats) -> bool:
    """Whether a column differs between trials by more than rounding."""
    return bool(len(x)) and bool(np.ptp(x) > 1e-12 * np.abs(x).max())


def linked_sides(trials: Trials) -> tuple[Indices, Indices]:
    """Stand-ins for the speakers of both sides of trials, two (n,): ids that target trials link are one speaker.

    For keys without a list of speakers. A speaker whose ids no chain of target trials connects counts as several.

    >>> trials = Trials(Coded.of(["m", "m", "k"]), Coded.of(["a", "b", "b"]), np.array([True, False, True]))
    >>> a, b = linked_sides(trials)
    >>> (a == b).tolist()
    [True, False, True]
    """
    target = truth_of(trials)
    names: dict[str, int] = {}
    sides = []
    for column in (trials.enroll, trials.test):
        codes = [names.setdefault(name, len(names)) for name in column.names.tolist()]
        sides.append(np.array(codes, np.intp)[column.codes])
    a, b = sides
    links = a[target], b[target]
    group = connected_components(coo_array((np.ones(len(links[0])), links), (len(names),) * 2), directed=False)[1]
    return group[a], group[b]


def truth_of(trials: Trials) -> Booleans:
    """Whether each trial is a target trial, (n,), or an error where that is not known."""
    if trials.target is None:
        raise DuopldaError("the trials have no truth (target or nontarget); give the key")
    return trials.target


def trial_folds(
    speakers: tuple[ArrayLike, ArrayLike], labels: Booleans, n_folds: int = 5, seed: int = 0
) -> Iterator[tuple[Booleans, Booleans]]:
    """Yield (held out, learn from), two (n,) each, so that each trial is held out once, and with it both its speakers.

    The speakers are dealt into folds. The trials between folds i and j are held out from all trials of speakers that
    are in neither.

    >>> a, b = np.repeat(range(6), 6), np.tile(range(6), 6)
    >>> held = [h for h, learn in trial_folds((a, b), a == b, 3) if not set(a[h]) & {*a[learn], *b[learn]}]
    >>> len(held), np.sum(held, axis=0).tolist() == [1] * 36
    (6, True)
    """
    a, b = (np.asarray(side) for side in speakers)
    names, index = np.unique(np.concatenate((a, b)), return_inverse=True)
    a, b = index[: len(a)], index[len(a) :]
    remedy = "a target trial has the same speaker on both sides"
    refuse_rows(labels & (a != b), "labels", "at odds with the speakers", remedy)
    n = min(n_folds, len(names))
    if n < 3:
        raise DuopldaError(f"{len(names)} speakers in {n_folds} folds: cross-validation needs 3 of both, or more")
    fold = np.empty(len(names), np.intp)
    fold[np.random.default_rng(seed).permutation(len(names))] = np.arange(len(names)) % n
    a = fold[a]
    b = fold[b]
    for i, j in combinations_with_replacement(range(n), 2):
        held = ((a == i) & (b == j)) | ((a == j) & (b == i))
        learn = ~np.isin(a, (i, j)) & ~np.isin(b, (i, j))
        if held.any():
            if not labels[learn].any() or labels[learn].all():
                raise DuopldaError(f"{len(names)} speakers are too few: a fold leaves no target or no non-target trial")
            yield held, learn
