"""Calibration: learn to turn scores into log-likelihood ratios, and apply what was learnt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.errors import DuopldaError, OptionsError, error_prefix
from duoplda.estimators.backend import Backend
from duoplda.evaluation import calibration, metrics
from duoplda.evaluation.around import Around
from duoplda.evaluation.calibration import Bounded, Fusion, QualityCalibration
from duoplda.evaluation.matching import Matched, calibrate_scores
from duoplda.evaluation.quality import TrialQuality, described, linked_sides, trial_quality
from duoplda.io import Scores, Trials, check_output, read_enrollment, read_quality, read_scores, write_scores
from duoplda.io.recordings import missing
from duoplda.workflows import option
from duoplda.workflows._files import Columns, Note, PathLike, held_lists, silent
from duoplda.workflows._matched import in_log10, in_nats, read_matched, read_speaker_sides
from duoplda.workflows.option import refuse


def calibrate(
    *,
    scores: option.LearntScores = (),
    trials: option.LearntTrials = None,
    method: option.CalibrationMethod = None,
    bounds: option.CalibrationBounds = "none",
    out: option.CalibratedOut = None,
    apply: option.ScoresToCalibrate = (),
    source: option.LearntBefore = None,
    model: option.ModelToCalibrate = None,
    p_target: option.PriorOfCosts = 0.5,
    ridge: option.Ridge = None,
    quality: option.SideInformation = None,
    speakers: option.LearntSpeakers = None,
    enroll: option.LearntEnrolment = None,
    symmetric: option.Symmetric = None,
    held_out: option.HeldOut = None,
    log10: option.Log10 = False,
    columns: option.Columns = None,
    allow_missing: option.AllowMissing = False,
    force: option.Force = False,
    note: Note = silent,
) -> dict[str, Any]:
    """Learn a calibration, or read one; write it, apply it to scores, or store it in a model.

    With `log10`, all scores that are read and written are log10 ratios; what is learnt is about natural ones.

    Returns what was learnt, and how good it is: numbers and texts by name; nothing where a calibration was read.
    """
    _check_goals(scores, trials, source, out, apply, model)
    _check_methods(scores, apply, source, method, bounds, quality)
    _check_labels(source, method, quality, speakers, enroll, symmetric, held_out)
    scores = held_lists(*scores)  # they are read to learn from, and again to be calibrated
    apply = held_lists(*apply)
    quality, enroll = held_lists(quality, enroll)
    inputs = [*scores, *apply, trials, source, model, quality, speakers, enroll]
    _check_folder(held_out, force, [*inputs, out])
    check_output(out, force, inputs=inputs)
    table = None if quality is None else SideInformation(quality, enroll, columns, allow_missing, note)
    learnt: dict[str, Any] = {}
    if source is not None:
        fitted = _load(source, quality)
    else:
        matched = read_matched(scores, trials or "", columns, allow_missing, note, log10)
        name = str(trials if len(scores) > 1 else scores[0])
        if table is None:
            method = method or ("fusion" if len(scores) > 1 else "affine")
            fitted = _unfitted(method, bounds, p_target, ridge)
            sides = read_speaker_sides(matched, speakers, enroll, columns)
            learnt = {"method": method, "bounds": bounds, **_learn(name, fitted, matched, sides)}
        else:
            options: dict[str, Any] = {} if ridge is None else {"ridge": ridge}
            options["symmetric"] = enroll is None if symmetric is None else symmetric
            fitted = QualityCalibration(p_target, **options)
            learnt = _learn_with_quality(name, fitted, matched, table, speakers, held_out, log10, force)
    if model is not None:
        _store(model, fitted, force)
    if out is not None and _is_calibration(out):
        fitted.save(out, force=force)
    elif out is not None:
        systems = {str(path): in_nats(read_scores(path, columns=columns), log10) for path in apply or scores}
        if table is None:
            calibrated = calibrate_scores(fitted, systems, allow_missing=allow_missing)
        else:
            (values,) = systems.values()
            rows, information = table.of(Trials(values.enroll, values.test))
            with error_prefix(str(quality)):
                ratios = fitted.transform(values.score[rows], information)
            calibrated = Scores(values.enroll[rows], values.test[rows], ratios)
        write_scores(out, in_log10(calibrated, log10), force=force)
    return learnt


def _check_goals(
    scores: Sequence[PathLike],
    trials: PathLike | None,
    source: PathLike | None,
    out: PathLike | None,
    apply: Sequence[PathLike],
    model: PathLike | None,
) -> None:
    """Refuse a calibration that comes from nowhere or from two places, and results that go nowhere."""
    cause = "give either `scores` and `trials` to learn from, or `source`, a calibration learnt before"
    refuse((source is None) == (not scores) or (source is None) != (trials is not None), cause)
    cause = "say where the result goes: `out` for scores of `apply`, `model`, or both"
    refuse(out is None and (model is None or apply), cause)
    cause = "`out` with .safetensors gets the calibration itself; name a score file for those of `apply`"
    refuse(_is_calibration(out) and (apply or source), cause)
    refuse(source and not apply and out is not None, "`source` needs `apply`: the scores to calibrate")


def _check_methods(
    scores: Sequence[PathLike],
    apply: Sequence[PathLike],
    source: PathLike | None,
    method: str | None,
    bounds: str,
    quality: PathLike | None,
) -> None:
    """Refuse methods that do not go together, or that are not for this number of systems."""
    cause = f"`method` {method} takes one file of `scores`; fusion is for {len(scores)} systems"
    refuse(method not in (None, "fusion") and len(scores) > 1, cause)
    other_method = method is not None or bounds != "none" or max(len(scores), len(apply)) > 1
    cause = "`quality` is a method of its own, for one file of `scores`; leave `method` and `bounds` out"
    refuse(quality is not None and other_method, cause)
    cause = "`bounds` are learnt, from `scores` and `trials`; a calibration of `source` has its own"
    refuse(source is not None and bounds != "none", cause)


def _check_labels(
    source: PathLike | None,
    method: str | None,
    quality: PathLike | None,
    speakers: PathLike | None,
    enroll: PathLike | None,
    symmetric: bool | None,
    held_out: PathLike | None,
) -> None:
    """Refuse options about speakers and side information where nothing is learnt from these."""
    cause = "`symmetric` and `held_out` go with `quality`, the table of side information"
    refuse(quality is None and (held_out is not None or symmetric is not None), cause)
    about_speakers = speakers is not None or enroll is not None
    cause = "`speakers` and `enroll` go with `quality`, or with `method` bootstrap"
    refuse(quality is None and method != "bootstrap" and about_speakers, cause)
    for_learning = speakers is not None or held_out is not None or symmetric is not None
    cause = "`speakers`, `symmetric` and `held_out` are for learning, from `scores` and `trials`"
    refuse(for_learning and source is not None, cause)


def _is_calibration(out: PathLike | None) -> bool:
    """Whether the output is the calibration, and not scores."""
    return out is not None and Path(out).suffix.lower() == ".safetensors"


@dataclass(frozen=True)
class SideInformation:
    """A table of side information on recordings, and the recordings of each model."""

    quality: PathLike
    enroll: PathLike | None
    columns: Columns
    allow_missing: bool
    note: Note

    def of(self, trials: Trials) -> tuple[NDArray[np.intp], TrialQuality]:
        """The rows of the trials that the table describes, and the side information of these."""
        table = read_quality(self.quality, self.columns)
        models = read_enrollment(self.enroll, columns=self.columns) if self.enroll else None
        rows = np.arange(len(trials))
        if self.allow_missing:
            known = described(trials, table, models)
            rows = np.flatnonzero(known)
            if not len(rows):
                raise DuopldaError(f"{self.quality}: does not describe both sides of any trial; do the ids agree?")
            pairs = zip(trials.enroll[~known].values, trials.test[~known].values, strict=True)
            names = [f"{e} {t}" for e, t in pairs]
            missing("trials with a recording that the table lacks", names, self.allow_missing, self.note)
        with error_prefix(str(self.quality)):
            return rows, trial_quality(_some(trials, rows), table, models)


def _unfitted(method: str, bounds: str, p_target: float, ridge: float | None) -> Any:
    """The unfitted calibration that the options name. A bootstrap also learns the bounds of each resample."""
    if method == "bootstrap":
        return calibration.BootstrapCalibration(_unfitted("affine", bounds, p_target, ridge))
    options: dict[str, Any] = {"p_target": p_target, "ridge": ridge or 0.0} if method in ("affine", "fusion") else {}
    inner = calibration.CALIBRATIONS[method](**options)
    return inner if bounds == "none" else Bounded(inner, bounds)


def _learn(name: str, fitted: Any, matched: Matched, sides: tuple[Any, Any] | None) -> dict[str, Any]:
    """Fit a calibration to scores alone; return what was learnt, and Cllr before and after it."""
    columns = list(matched.systems.values())
    x = np.stack(columns, axis=1) if len(columns) > 1 or _is_fusion(fitted) else columns[0]
    with error_prefix(name):
        fitted.fit(x, matched.target, **({} if sides is None else {"speakers": sides}))
        bits = {} if _is_fusion(fitted) else {"before": metrics.cllr(x, matched.target)}
        bits["after"] = metrics.cllr(fitted.transform(x), matched.target)
    inner = fitted
    while isinstance(inner, Around):
        inner = inner.calibration_
    state = {name.strip("_"): value for name, value in (inner.get_state() | fitted.summary()).items()}
    return {"trials": len(matched.target), "cllr_same_trials": bits, **state}


def _is_fusion(fitted: Any) -> bool:
    """Whether a calibration takes the scores of several systems."""
    return isinstance(fitted.calibration if isinstance(fitted, Bounded) else fitted, Fusion)


def _learn_with_quality(
    name: str,
    fitted: QualityCalibration,
    matched: Matched,
    table: SideInformation,
    speakers: PathLike | None,
    held_out: PathLike | None,
    log10: bool,
    force: bool,
) -> dict[str, Any]:
    """Fit a calibration to scores and side information, write cross-validated ratios; return what was learnt."""
    rows, quality = table.of(matched.trials)
    chosen = replace(matched, trials=_some(matched.trials, rows))
    scores = next(iter(matched.systems.values()))[rows]
    y = chosen.target
    with error_prefix(name):
        fitted.fit(scores, y, quality=quality)
        sides = read_speaker_sides(chosen, speakers, table.enroll, table.columns) or linked_sides(chosen.trials)
        held = fitted.held_out(scores, y, quality=quality, speakers=sides)
        ratios = {"affine": held.affine, "quality": held.quality}
        bits = {"before": metrics.cllr(scores, y)} | {way: metrics.cllr(values, y) for way, values in ratios.items()}
        same = metrics.cllr(fitted.transform(scores, quality), y)
    if held_out is not None:
        Path(held_out).mkdir(exist_ok=True)
        for path, values in zip(_held_out_files(held_out), ratios.values(), strict=True):
            held_scores = Scores(chosen.trials.enroll, chosen.trials.test, values)
            write_scores(path, in_log10(held_scores, log10), force=force)
    numbers = zip(fitted.recipe.terms, fitted.coefficients_, fitted.deviations_, strict=True)
    return {
        "method": "quality",
        "trials": len(y),
        "speakers": held.n_speakers,
        "speakers_known": speakers is not None,
        "folds": held.n_folds,
        "cllr_cross_validated": bits,
        "cllr_same_trials": same,
        "p_target": fitted.p_target,
        "ridge": fitted.ridge_,
        "symmetric": fitted.symmetric,
        "scale": fitted.scale_,
        "offset": fitted.offset_,
        "ignored": fitted.ignored_,
        "terms": [{"term": str(t), "coefficient": c, "deviation": d} for t, c, d in numbers],
    }


def _load(source: PathLike, quality: PathLike | None) -> Any:
    """Read a calibration; refuse one with side information without the table, and one without it beside a table."""
    fitted = calibration.load(source)
    if isinstance(fitted, QualityCalibration) and quality is None:
        needs = ", ".join(dict.fromkeys(term.column for term in fitted.recipe.terms if term.column))
        raise DuopldaError(f"{source}: uses side information; give `quality`, a table with the columns {needs}")
    if not isinstance(fitted, QualityCalibration) and quality is not None:
        raise DuopldaError(f"{source}: is not a calibration with side information; leave `quality` out")
    return fitted


def _store(model: PathLike, fitted: Any, force: bool) -> None:
    """Put a calibration into a model file, whose likelihood ratios are calibrated from then on."""
    if isinstance(fitted, QualityCalibration) or _is_fusion(fitted):
        cause = "a back-end is one system, without side information, and cannot hold a fusion or `quality`"
        raise DuopldaError(f"{model}: {cause}; use affine or pav, or `out`")
    backend = Backend.load(model)
    if backend.calibration_ is not None and not force:
        cause = "has a calibration already, which may have changed the scores given here"
        raise DuopldaError(f"{model}: {cause}; score with --raw first, and replace the calibration with `force`")
    backend.calibration_ = fitted
    backend.save(model, force=True)


def _some(trials: Trials, rows: NDArray[np.intp]) -> Trials:
    target = None if trials.target is None else trials.target[rows]
    return Trials(trials.enroll[rows], trials.test[rows], target)


def _held_out_files(folder: PathLike) -> list[Path]:
    """The files of cross-validated scores, which `evaluate` and `report` compare."""
    return [Path(folder, "affine.txt"), Path(folder, "quality.txt")]


def _check_folder(held_out: PathLike | None, force: bool, others: Sequence[PathLike | None]) -> None:
    """Refuse a folder for cross-validated scores that cannot be written, or whose files would replace inputs."""
    if held_out is None:
        return
    paths = _held_out_files(held_out)
    known = [Path(path).resolve() for path in others if path is not None]
    if any(path.resolve() in known for path in paths):
        raise OptionsError(f"`held_out` writes {paths[0]} and {paths[1]}: name the other files differently")
    for path in paths if Path(held_out).is_dir() else [Path(held_out)]:
        check_output(path, force, inputs=others)
