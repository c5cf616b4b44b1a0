"""Matching scores with trials: score lists in any order are brought into the order of the trials.

matched = match_scores(trials, {"ours": read_scores("a.txt"), "cosine": read_scores("b.txt")})
measure_systems(matched.systems, matched.target)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from duoplda.data.labels import places
from duoplda.errors import DuopldaError, MissingIds, error_prefix, some
from duoplda.evaluation.calibration import Bounded, Fusion
from duoplda.evaluation.calibration_base import OfScores
from duoplda.evaluation.checks import Booleans, Floats, Indices
from duoplda.evaluation.quality import truth_of
from duoplda.io import Coded, Enrollment, Scores, Trials, read_scores, read_trials

__all__ = ["Matched", "calibrate_scores", "lookup", "match_files", "match_scores", "speaker_sides"]


@dataclass(frozen=True, eq=False)
class Matched:
    """Scores of one or several systems for the same n trials.

    >>> trials = Trials(Coded.of(["m", "m"]), Coded.of(["a", "b"]), np.array([True, False]))
    >>> scores = Scores(Coded.of(["m", "m"]), Coded.of(["b", "a"]), np.array([-1.5, 2.5]))
    >>> matched = match_scores(trials, {"dev": scores})
    >>> matched.systems["dev"].tolist(), matched.n_left_out
    ([2.5, -1.5], 0)
    """

    trials: Trials  # those that every system has scored
    systems: dict[str, Floats]  # name -> (n,)
    missing: dict[str, int]  # name -> number of trials without a score of this system
    unused: dict[str, int]  # name -> number of its scores that belong to no trial
    n_left_out: int  # trials without a score of some system

    @property
    def target(self) -> Booleans:
        """Whether each trial is a target trial, (n,)."""
        return truth_of(self.trials)


def match_scores(trials: Trials, systems: Mapping[str, Scores], *, allow_missing: bool = False) -> Matched:
    """Give each trial its score in every system.

    `systems` maps names to scores in any order; scores of other pairs are counted and not used. Trials that some system
    has not scored raise `MissingIds`, or are left out if `allow_missing` is true.

    >>> trials = Trials(Coded.of(["m1", "m1"]), Coded.of(["a", "b"]), np.array([True, False]))
    >>> scores = Scores(Coded.of(["m1", "m1"]), Coded.of(["b", "a"]), np.array([-1.0, 2.0]))
    >>> match_scores(trials, {"ours": scores}).systems["ours"].tolist()
    [2.0, -1.0]
    """
    rows = {}
    missing = {}
    unused = {}
    for name, scores in systems.items():
        with error_prefix(name):
            rows[name] = lookup(scores, trials.enroll, trials.test)
            absent = np.flatnonzero(rows[name] < 0)
            if len(absent) and not allow_missing:
                pairs = some(_pairs(trials.enroll[absent[:10]], trials.test[absent[:10]]))
                remedy = "leave them out with --allow-missing (allow_missing=True)"
                raise MissingIds(f"{len(absent):,} trials without a score, such as {pairs}; {remedy}")
        missing[name] = len(absent)
        unused[name] = len(scores) - len(np.unique(rows[name][rows[name] >= 0]))
    kept = np.flatnonzero(np.all([row >= 0 for row in rows.values()], axis=0))
    if not len(kept):
        raise DuopldaError("no trial has a score in every system; do the ids of the trials and the scores agree?")
    target = None if trials.target is None else trials.target[kept]
    conditions = {name: column[kept] for name, column in trials.conditions.items()}
    scored = Trials(trials.enroll[kept], trials.test[kept], target, conditions)
    columns = {name: systems[name].score[row[kept]] for name, row in rows.items()}
    return Matched(scored, columns, missing, unused, len(trials) - len(kept))


def match_files(
    trials: str | Path,
    scores: Sequence[str | Path],
    *,
    columns: Mapping[str, str] | None = None,
    allow_missing: bool = False,
) -> Matched:
    """Read a key and score files and match them; a system has the shortest name that tells its file from the others.

    `columns` names columns of tables, as for `read_trials` and `read_scores`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "trials").write_text("m a target\\nm b nontarget\\n")
    ...     _ = Path(folder, "dev.txt").write_text("m b -1.5\\nm a 2.5\\n")
    ...     matched = match_files(folder + "/trials", [folder + "/dev.txt"])
    >>> matched.target.tolist(), matched.systems["dev"].tolist()
    ([True, False], [2.5, -1.5])
    """
    plain = [Path(path).name.removesuffix(".gz") for path in scores]
    choices = [Path(name).stem for name in plain], plain, [str(path) for path in scores]
    names = next((names for names in choices if len(set(names)) == len(names)), None)
    if names is None:
        raise DuopldaError("the same score file is given twice; give each system once")
    key = read_trials(trials, columns=columns)
    with error_prefix(str(trials)):
        truth_of(key)
    matched = match_scores(
        key, {str(path): read_scores(path, columns=columns) for path in scores}, allow_missing=allow_missing
    )
    return replace(matched, systems=dict(zip(names, matched.systems.values(), strict=True)))


def lookup(scores: Scores, enroll: Coded, test: Coded) -> Indices:
    """Return the row of `scores` that holds each pair (enroll, test), -1 where there is none; a pair has one score.

    >>> scores = Scores(Coded.of(["m", "m"]), Coded.of(["b", "a"]), np.array([-1.5, 2.5]))
    >>> lookup(scores, Coded.of(["m", "m"]), Coded.of(["a", "c"])).tolist()
    [1, -1]
    """
    width = max(1, len(test.names))

    def codes(column: Coded, names: NDArray[np.str_]) -> Indices:
        """The places of a column's values among names, -1 where there is none."""
        place = {name: i for i, name in enumerate(names.tolist())}
        return np.array([place.get(name, -1) for name in column.names.tolist()], np.intp)[column.codes]

    e = codes(scores.enroll, enroll.names)
    t = codes(scores.test, test.names)
    keys = np.where((e >= 0) & (t >= 0), e * width + t, -1)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    twice = np.flatnonzero((keys[1:] == keys[:-1]) & (keys[1:] >= 0))
    if len(twice):
        row = order[twice[:1] + 1]
        (pair,) = _pairs(scores.enroll[row], scores.test[row])
        raise DuopldaError(f"score {row[0] + 1}: {pair!r} has a score already; give one for each trial")
    wanted = enroll.codes.astype(np.intp) * width + test.codes
    return np.append(order, -1)[places(wanted, keys)]


def speaker_sides(
    trials: Trials, speakers: Mapping[str, str], enrollment: Enrollment | None = None
) -> tuple[NDArray[np.str_], NDArray[np.str_]]:
    """Return the speaker of both sides of each trial, two (n,) of str; `speakers` maps recordings to them.

    `enrollment` has the recordings of each model, whose speaker is the model's. Without it, or for other models, a
    model has the speaker that `speakers` gives its id, or is named after its speaker.

    >>> trials = Trials(Coded.of(["m", "m"]), Coded.of(["a", "b"]))
    >>> enrollment = Enrollment(Coded.of(["m"]), Coded.of(["e"]))
    >>> one, two = speaker_sides(trials, {"a": "ann", "b": "bob", "e": "ann"}, enrollment)
    >>> one.tolist(), two.tolist()
    (['ann', 'ann'], ['ann', 'bob'])
    """
    models = {name: name for name in speakers.values()} | dict(speakers)
    if enrollment is not None:
        enrolled: dict[str, set[str]] = {}
        for model, recording in zip(enrollment.model.values, enrollment.recording.values, strict=True):
            if recording in speakers:
                enrolled.setdefault(str(model), set()).add(speakers[recording])
        mixed = sorted(model for model, who in enrolled.items() if len(who) > 1)
        if mixed:
            raise DuopldaError(f"model {mixed[0]!r} has recordings of several speakers: intervals need one speaker")
        models |= {model: who.pop() for model, who in enrolled.items()}
    sides = []
    for what, column, known in (("models", trials.enroll, models), ("recordings", trials.test, speakers)):
        absent = [name for name in column.names[np.unique(column.codes)].tolist() if name not in known]
        if absent:
            remedy = "label them, or give the enrolment map" if what == "models" else "label them"
            raise MissingIds(f"{len(absent):,} {what} whose speaker is not known: {some(absent)}; {remedy}")
        sides.append(np.array([known.get(name, "") for name in column.names.tolist()])[column.codes])
    return sides[0], sides[1]


def calibrate_scores(fitted: OfScores, systems: Mapping[str, Scores], *, allow_missing: bool = False) -> Scores:
    """Apply a calibration to all scores of one system, or a fusion to those of several for the pairs of the first.

    A pair that another system of a fusion has not scored raises `MissingIds`, or is left out with `allow_missing`.

    >>> from duoplda.calibration import AffineCalibration
    >>> scores = Scores(Coded.of(["m"]), Coded.of(["a"]), np.array([2.0]))
    >>> calibrate_scores(AffineCalibration.of(0.5, -1.0), {"dev": scores}).score.tolist()
    [0.0]
    """
    inner = fitted.calibration_ if isinstance(fitted, Bounded) else fitted
    n = len(inner.scales_) if isinstance(inner, Fusion) else 1
    if len(systems) != n:
        raise DuopldaError(f"the calibration is for {n} system{'s' * (n > 1)}, and {len(systems)} are given")
    name, first = next(iter(systems.items()))
    pairs = Trials(first.enroll, first.test)
    x = first.score
    if isinstance(inner, Fusion):
        matched = match_scores(pairs, systems, allow_missing=allow_missing)
        pairs = matched.trials
        x = np.stack(list(matched.systems.values()), axis=1)
    with error_prefix(name):
        return Scores(pairs.enroll, pairs.test, fitted.transform(x))


def _pairs(enroll: Coded, test: Coded) -> list[str]:
    """The ids of both sides of trials, as messages show them."""
    return [f"{e} {t}" for e, t in zip(enroll.values.tolist(), test.values.tolist(), strict=True)]
