"""`duoplda evaluate`: how good scores are, and the matching of scores with trials that its neighbours use too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duoplda.cli._common import AllowMissing, Force, Json, Quiet, missing, refuse_existing, result, result_json, say
from duoplda.errors import DuopldaError

if TYPE_CHECKING:
    import numpy as np

    from duoplda.io import Coded, Scores, Trials

EXAMPLE = """\b
Example:
  duoplda evaluate --scores scores.txt --trials trials --plot det.pdf
  duoplda evaluate --scores a.txt --scores b.txt --trials trials --p-target 0.01 --p-target 0.5 --json
"""

ScoreFiles = Annotated[list[Path], typer.Option("--scores", metavar="FILE", help="Scores; repeat it for more systems.")]
TrialFile = Annotated[Path, typer.Option("--trials", help="Trials with their truth: enrol test target|nontarget, ...")]
Speakers = Annotated[Path | None, typer.Option(help="utt2spk of the test recordings (and models): gives intervals.")]
Enroll = Annotated[Path | None, typer.Option(help="Enrolment map: a model has the speaker of its recordings.")]
Resamples = Annotated[int, typer.Option(min=0, help="Resamples of the speakers for the intervals; 0: none.")]
Seed = Annotated[int, typer.Option(help="Seed of the resamples.")]


class Definition(StrEnum):
    """Of the EER, as `duoplda.metrics.eer` names them."""

    rocch = "rocch"
    interpolated = "interpolated"
    nearest = "nearest"


@dataclass(frozen=True, eq=False)
class Matched:
    """Scores of several systems for the same n trials."""

    trials: Trials  # those that all systems scored
    systems: dict[str, np.ndarray]  # name -> (n,)
    files: dict[str, Path]
    n_missing: int  # trials left out

    @property
    def target(self) -> np.ndarray:
        assert self.trials.target is not None
        return self.trials.target


def evaluate(
    scores: ScoreFiles,
    trials: TrialFile,
    p_target: Annotated[
        list[float] | None, typer.Option(metavar="PRIOR", help="Prior of a target; may be repeated.  [default: 0.01]")
    ] = None,
    c_miss: Annotated[float, typer.Option(help="Cost of a miss.")] = 1.0,
    c_fa: Annotated[float, typer.Option(help="Cost of a false alarm.")] = 1.0,
    eer: Annotated[Definition, typer.Option(help="Definition of the EER.")] = Definition.rocch,
    speakers: Speakers = None,
    enroll: Enroll = None,
    bootstrap: Resamples = 200,
    seed: Seed = 0,
    plot: Annotated[Path | None, typer.Option(help="DET curves: .pdf, .png or .svg.")] = None,
    json: Json = False,
    allow_missing: AllowMissing = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """EER, minDCF, actDCF, Cllr, minCllr and calibration loss of natural-log likelihood ratios.

    With the speakers of both sides, 95 % intervals by resampling speakers. All systems are compared on the same trials.
    """
    import numpy as np

    from duoplda.evaluation import metrics

    priors = p_target or [0.01]
    refuse_existing(plot, force)
    data = matched(scores, trials, allow_missing)
    sides = speaker_sides(data.trials, speakers, enroll) if speakers and bootstrap else None
    names = ["eer", *(f"{kind}_dcf({p:g})" for p in priors for kind in ("min", "act"))]
    names += ["cllr", "min_cllr", "calibration_loss"]

    def measure(s: Any, y: Any, weights: Any = None) -> Any:
        low, act = (f(s, y, priors, c_miss, c_fa, weights=weights) for f in (metrics.min_dcf, metrics.act_dcf))
        all_, least = metrics.cllr(s, y, weights=weights), metrics.min_cllr(s, y, weights=weights)
        costs = np.stack((low, act), axis=1).ravel()
        return np.array([metrics.eer(s, y, eer, weights), *costs, all_, least, max(0.0, all_ - least)])

    values, intervals = {}, {}
    for name, s in data.systems.items():
        with named(data.files[name]):
            values[name] = measure(s, data.target)
            if sides:
                drawn = metrics.bootstrap(measure, s, data.target, *sides, bootstrap, seed=seed, progress=not quiet)
                intervals[name] = np.stack((drawn.low, drawn.high), axis=1)
    if plot:
        from duoplda.report import plots

        points = [(p, c_miss, c_fa) for p in priors]
        plots.save(plots.det({k: (s, data.target) for k, s in data.systems.items()}, points), plot, force=force)
        say(f"{plot}: DET of {len(values)} system{'s' * (len(values) > 1)}")
    if json:
        n = len(data.target)
        counts = {"trials": n, "targets": int(data.target.sum()), "nontargets": int(n - data.target.sum())}
        systems = {
            name: {"file": str(data.files[name]), **dict(zip(names, row, strict=True))}
            | ({"intervals": dict(zip(names, intervals[name], strict=True))} if sides else {})
            for name, row in values.items()
        }
        costs = {"p_target": priors, "c_miss": c_miss, "c_fa": c_fa}
        result_json(counts | {"missing": data.n_missing, "eer_definition": eer.value, **costs, "systems": systems})
    else:
        result("\n".join(table(names, values, intervals, data.target, eer, bootstrap if sides else 0)))


def table(
    names: Sequence[str],
    values: Mapping[str, Any],
    intervals: Mapping[str, Any],
    target: Any,
    definition: str,
    resamples: int,
) -> list[str]:
    """Lines for people: a system in each, its intervals below."""
    heads = {"eer": f"EER % ({definition})", "cllr": "Cllr", "min_cllr": "minCllr", "calibration_loss": "calib. loss"}
    head = ["system", *(heads.get(n, n.replace("_dcf", "DCF")) for n in names)]
    rows = [head]
    for system, row in values.items():
        scale = [100.0] + [1.0] * (len(row) - 1)
        digits = [2] + [4] * (len(row) - 1)
        rows.append([system, *(f"{k * v:.{n}f}" for k, v, n in zip(scale, row, digits, strict=True))])
        if system in intervals:
            ends = zip(scale, intervals[system], digits, strict=True)
            rows.append(["", *(f"{k * a:.{n}f}..{k * b:.{n}f}" for k, (a, b), n in ends)])
    widths = [max(len(r[k]) for r in rows) for k in range(len(head))]
    lines = [f"{len(target):,} trials: {int(target.sum()):,} target, {int((~target).sum()):,} non-target"]
    for r in rows:
        lines.append(
            "  ".join(c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(r, widths, strict=True)))
        )
    if resamples:
        lines.append(f"below each value: 95 % interval, {resamples} resamples of the speakers")
    return lines


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Errors about scores say whose scores."""
    try:
        yield
    except DuopldaError as error:
        raise DuopldaError(f"{path}: {error}") from None


def system_names(paths: Sequence[Path]) -> list[str]:
    """The shortest names that tell files apart: `a` for a.txt, then a.txt, then the whole path."""
    for names in ([p.stem for p in paths], [p.name for p in paths], [str(p) for p in paths]):
        if len(set(names)) == len(paths):
            return names
    raise DuopldaError("the same score file is given twice; give each system once")


def matched(files: Sequence[Path], trials: Path, allow_missing: bool) -> Matched:
    """Read trials and scores, and give each trial its score in every system; trials without one are missing ids."""
    import numpy as np

    from duoplda.io import Trials, read_scores, read_trials

    names = system_names(files)
    read = read_trials(trials)
    if read.target is None:
        raise DuopldaError(f"{trials}: has no truth (target or nontarget) beside the trials; give the key")
    columns, there = {}, np.ones(len(read), bool)
    for name, path in zip(names, files, strict=True):
        columns[name], found = lookup(path, read_scores(path), read.enroll, read.test)
        missing(f"trials without a score in {path}", _pairs(read.enroll, read.test, ~found), allow_missing)
        there &= found
    if not there.any():
        raise DuopldaError(f"{trials}: no trial has a score")
    rows = np.flatnonzero(there)
    kept = Trials(
        read.enroll[rows], read.test[rows], read.target[rows], {k: c[rows] for k, c in read.conditions.items()}
    )
    systems = {name: column[rows] for name, column in columns.items()}
    return Matched(kept, systems, dict(zip(names, files, strict=True)), len(read) - len(rows))


def lookup(path: Path, scores: Scores, enroll: Coded, test: Coded) -> tuple[np.ndarray, np.ndarray]:
    """The score of each pair (NaN where there is none) and whether there is one; a pair has one score."""
    import numpy as np

    width = max(1, len(test.names))

    def renamed(column: Coded, names: np.ndarray) -> np.ndarray:
        place = {name: i for i, name in enumerate(names.tolist())}
        return np.array([place.get(name, -1) for name in column.names.tolist()], np.int64)[column.codes]

    e, t = renamed(scores.enroll, enroll.names), renamed(scores.test, test.names)
    used = np.flatnonzero((e >= 0) & (t >= 0))
    keys = e[used] * width + t[used]
    order = np.argsort(keys, kind="stable")
    keys, used = keys[order], used[order]
    twice = np.flatnonzero(keys[1:] == keys[:-1])
    if len(twice):
        row = int(used[twice[0] + 1])
        pair = f"{scores.enroll.names[scores.enroll.codes[row]]} {scores.test.names[scores.test.codes[row]]}"
        raise DuopldaError(f"{path}: score {row + 1}: {pair!r} has a score already; give one for each trial")
    wanted = enroll.codes.astype(np.int64) * width + test.codes
    if not len(keys):
        return np.full(len(wanted), np.nan), np.zeros(len(wanted), bool)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    found = keys[at] == wanted
    unused = len(scores) - len(np.unique(at[found]))
    if unused:
        say(f"{path}: {unused:,} scores belong to no trial and are not used")
    return np.where(found, scores.score[used[at]], np.nan), found


def _pairs(enroll: Coded, test: Coded, where: np.ndarray) -> list[str]:
    rows = where.nonzero()[0]
    return [f"{e} {t}" for e, t in zip(enroll[rows].values.tolist(), test[rows].values.tolist(), strict=True)]


def speaker_sides(trials: Trials, speakers: Path, enroll: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """The speaker of both sides of each trial.

    A model's speaker is that of its recordings (`enroll`), or the one `speakers` gives its id, or itself where it is
    the name of a speaker.
    """
    import numpy as np

    from duoplda.io import read_enrollment, read_labels

    labels = read_labels(speakers)
    of = dict(zip(labels.ids.tolist(), labels.speaker.tolist(), strict=True))
    models = {name: name for name in set(of.values())} | of
    if enroll:
        made: dict[str, set[str]] = {}
        members = read_enrollment(enroll)
        for model, recording in zip(members.model.values.tolist(), members.recording.values.tolist(), strict=True):
            if recording in of:
                made.setdefault(model, set()).add(of[recording])
        mixed = sorted(model for model, who in made.items() if len(who) > 1)
        if mixed:
            raise DuopldaError(f"{enroll}: model {mixed[0]!r} has recordings of several speakers: intervals need one")
        models |= {model: who.pop() for model, who in made.items()}
    sides = []
    for what, column, known in (("models", trials.enroll, models), ("recordings", trials.test, of)):
        present = np.unique(column.codes)
        absent = [name for name in column.names[present].tolist() if name not in known]
        missing(f"{what} whose speaker {speakers} does not know", absent, False)
        sides.append(np.array([known.get(name, "") for name in column.names.tolist()])[column.codes])
    return sides[0], sides[1]
