"""Calibration: learn to turn scores into log-likelihood ratios, and apply what was learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.errors import DuopldaError, OptionsError, error_prefix
from duoplda.estimators.backend import Backend
from duoplda.evaluation import calibration, metrics
from duoplda.evaluation.calibration import Fusion, QualityCalibration
from duoplda.evaluation.matching import Matched, calibrate_scores
from duoplda.evaluation.metrics import Floats
from duoplda.evaluation.quality import TrialQuality, described, linked_sides, trial_quality
from duoplda.io import Scores, Trials, check_output, read_enrollment, read_quality, read_scores, write_scores
from duoplda.workflows._files import Note, PathLike, missing, silent
from duoplda.workflows._matched import read_matched, read_speaker_sides


def calibrate(
    *,
    scores: Sequence[PathLike] = (),
    trials: PathLike | None = None,
    method: str | None = None,
    out: PathLike | None = None,
    apply: Sequence[PathLike] = (),
    source: PathLike | None = None,
    model: PathLike | None = None,
    p_target: float = 0.5,
    ridge: float | None = None,
    quality: PathLike | None = None,
    speakers: PathLike | None = None,
    enroll: PathLike | None = None,
    symmetric: bool | None = None,
    held_out: PathLike | None = None,
    allow_missing: bool = False,
    force: bool = False,
    note: Note = silent,
) -> dict[str, Any]:
    """Learn a calibration, or read one; write it, apply it to scores, or store it in a model.

    Parameters
    ----------
    scores, trials : scores of one system (of several, for a fusion) to learn from, and their trials with the truth
    source : a calibration learnt before, instead of the two
    method : "affine", "pav" or "fusion"; unless given, by the number of systems
    out : with the suffix .safetensors the calibration; else the calibrated scores of `apply`, or of `scores`
    model : a model file in which to store the calibration
    p_target, ridge : as for the classes of `duoplda.calibration`
    quality, enroll : a table of side information on recordings, and the recordings of each model
    speakers, symmetric, held_out : with `quality`: who speaks in each recording, whether both sides share
        coefficients, and a folder for cross-validated scores

    Returns
    -------
    what was learnt, and how good it is: numbers and texts by name; nothing where a calibration was read
    """
    writes_calibration = out is not None and Path(out).suffix.lower() == ".safetensors"
    if (source is None) == (not scores) or (source is None) != (trials is not None):
        raise OptionsError("give either `scores` and `trials` to learn from, or `source`, a calibration learnt before")
    if out is None and model is None:
        raise OptionsError("say where the result goes: `out`, `model`, or both")
    if writes_calibration and (apply or source):
        raise OptionsError(
            "`out` with .safetensors gets the calibration itself; name a score file for those of `apply`"
        )
    if apply and out is None:
        raise OptionsError("`apply` needs `out` for the calibrated scores")
    if source and not apply and out is not None:
        raise OptionsError("`source` needs `apply`: the scores to calibrate")
    if method not in (None, "fusion") and len(scores) > 1:
        raise OptionsError(f"`method` {method} takes one file of `scores`; fusion is for {len(scores)} systems")
    files = apply or scores
    inputs = [*scores, *files, trials, source, model, quality, speakers, enroll]
    for_learning = speakers is not None or held_out is not None or symmetric is not None
    if quality is None and (for_learning or enroll is not None):
        names = "`speakers`, `enroll`, `symmetric` and `held_out`"
        raise OptionsError(f"{names} go with `quality`, the table of side information")
    if quality is not None and (method is not None or max(len(scores), len(files)) > 1):
        raise OptionsError("`quality` is a method of its own, for one file of `scores`; leave `method` out")
    if for_learning and source is not None:
        raise OptionsError("`speakers`, `symmetric` and `held_out` are for learning, from `scores` and `trials`")
    if held_out is not None:
        _check_folder(Path(held_out), force, [*inputs, out])
    check_output(out, force, inputs=inputs)
    learnt: dict[str, Any] = {}
    if source is not None:
        fitted = _load(source, quality)
    else:
        matched = read_matched(scores, trials or "", allow_missing, note)
        name = str(trials if len(scores) > 1 else scores[0])
        if quality is None:
            fitted, learnt = _learn(
                name, matched, method or ("fusion" if len(scores) > 1 else "affine"), p_target, ridge
            )
        else:
            rows, sides = _side_information(matched.trials, quality, enroll, allow_missing, note)
            chosen = replace(matched, trials=_some(matched.trials, rows))
            fitted = QualityCalibration(
                p_target,
                **({} if ridge is None else {"ridge": ridge}),
                symmetric=enroll is None if symmetric is None else symmetric,
            )
            learnt, ratios = _learn_with_quality(
                name, fitted, next(iter(matched.systems.values()))[rows], chosen, sides, speakers, enroll
            )
            if held_out is not None:
                _write_held_out(Path(held_out), chosen.trials, ratios, force)
    if model is not None:
        _store(model, fitted, force)
    if out is not None and writes_calibration:
        fitted.save(out, force=force)
    elif out is not None:
        systems = {str(path): read_scores(path) for path in files}
        if quality is None:
            calibrated = calibrate_scores(fitted, systems, allow_missing=allow_missing)
        else:
            (values,) = systems.values()
            rows, sides = _side_information(Trials(values.enroll, values.test), quality, enroll, allow_missing, note)
            with error_prefix(str(quality)):
                ratios_of_rows = fitted.transform(values.score[rows], sides)
            calibrated = Scores(values.enroll[rows], values.test[rows], ratios_of_rows)
        write_scores(out, calibrated, force=force)
    return learnt


def _learn(
    name: str, matched: Matched, method: str, p_target: float, ridge: float | None
) -> tuple[Any, dict[str, Any]]:
    """Fit a calibration to scores alone; return it, and what it makes of Cllr."""
    columns = list(matched.systems.values())
    x = np.stack(columns, axis=1) if method == "fusion" else columns[0]
    options: dict[str, Any] = {} if method == "pav" else {"p_target": p_target, "ridge": ridge or 0.0}
    with error_prefix(name):
        fitted: Any = calibration.CALIBRATIONS[method](**options).fit(x, matched.target)
        bits = {} if method == "fusion" else {"before": metrics.cllr(x, matched.target)}
        bits["after"] = metrics.cllr(fitted.transform(x), matched.target)
    learnt = {"method": method, "trials": len(matched.target), "cllr_same_trials": bits}
    return fitted, learnt | {name.strip("_"): value for name, value in fitted.get_state().items()}


def _learn_with_quality(
    name: str,
    fitted: QualityCalibration,
    scores: Floats,
    chosen: Matched,
    quality: TrialQuality,
    speakers: PathLike | None,
    enroll: PathLike | None,
) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Fit a calibration to scores and side information; return what it makes of Cllr, and cross-validated ratios."""
    y = chosen.target
    with error_prefix(name):
        fitted.fit(scores, y, quality=quality)
        sides = read_speaker_sides(chosen, speakers, enroll) or linked_sides(chosen.trials)
        held = fitted.held_out(scores, y, quality=quality, speakers=sides)
        ratios = {"affine": held.affine, "quality": held.quality}
        bits = {"before": metrics.cllr(scores, y)} | {way: metrics.cllr(values, y) for way, values in ratios.items()}
        same = metrics.cllr(fitted.transform(scores, quality), y)
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
    }, ratios


def _load(source: PathLike, quality: PathLike | None) -> Any:
    """Read a calibration; one that goes by side information needs it, and no other takes it."""
    fitted = calibration.load(source)
    if isinstance(fitted, QualityCalibration) and quality is None:
        needs = ", ".join(dict.fromkeys(term.column for term in fitted.recipe.terms if term.column))
        raise DuopldaError(f"{source}: goes by side information; give `quality`, a table with the columns {needs}")
    if not isinstance(fitted, QualityCalibration) and quality is not None:
        raise DuopldaError(f"{source}: is no calibration with side information; leave `quality` out")
    return fitted


def _store(model: PathLike, fitted: Any, force: bool) -> None:
    """Put a calibration into a model file, whose likelihood ratios are calibrated from then on."""
    if isinstance(fitted, Fusion | QualityCalibration):
        cause = "a back-end is one system, without side information, and cannot hold a fusion or `quality`"
        raise DuopldaError(f"{model}: {cause}; use affine or pav, or `out`")
    backend = Backend.load(model)
    if backend.calibration_ is not None and not force:
        cause = "has a calibration already, which may have changed the scores given here"
        raise DuopldaError(f"{model}: {cause}; score with --raw first, and replace the calibration with `force`")
    backend.calibration_ = fitted
    backend.save(model)


def _side_information(
    trials: Trials, quality: PathLike, enroll: PathLike | None, allow_missing: bool, note: Note
) -> tuple[NDArray[np.intp], TrialQuality]:
    """The rows of trials that the table describes, and what it says of them."""
    table = read_quality(quality)
    models = read_enrollment(enroll) if enroll else None
    rows = np.arange(len(trials))
    if allow_missing:
        known = described(trials, table, models)
        rows = np.flatnonzero(known)
        if not len(rows):
            raise DuopldaError(f"{quality}: describes both sides of no trial; do the ids agree?")
        pairs = zip(trials.enroll[~known].values, trials.test[~known].values, strict=True)
        missing("trials with a recording that the table lacks", [f"{e} {t}" for e, t in pairs], True, note)
    with error_prefix(str(quality)):
        return rows, trial_quality(_some(trials, rows), table, models)


def _some(trials: Trials, rows: NDArray[np.intp]) -> Trials:
    target = None if trials.target is None else trials.target[rows]
    return Trials(trials.enroll[rows], trials.test[rows], target)


def _held_out_files(folder: Path) -> dict[str, Path]:
    """The files of cross-validated scores, which `evaluate` and `report` compare."""
    return {name: folder / f"{name}.txt" for name in ("affine", "quality")}


def _check_folder(folder: Path, force: bool, others: Sequence[PathLike | None]) -> None:
    """Refuse a folder for cross-validated scores that could not be written, or whose files are other ones too."""
    paths = list(_held_out_files(folder).values())
    known = [Path(path).resolve() for path in others if path is not None]
    if any(path.resolve() in known for path in paths):
        raise OptionsError(f"`held_out` writes {paths[0]} and {paths[1]}; give other files other names")
    for path in paths if folder.is_dir() else [folder]:
        check_output(path, force, inputs=others)


def _write_held_out(folder: Path, trials: Trials, ratios: Mapping[str, Floats], force: bool) -> None:
    folder.mkdir(exist_ok=True)
    for name, path in _held_out_files(folder).items():
        write_scores(path, Scores(trials.enroll, trials.test, ratios[name]), force=force)
