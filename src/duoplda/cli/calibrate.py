"""`duoplda calibrate`: learn to turn scores into log-likelihood ratios, and apply what was learnt."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from duoplda.cli import _options as options
from duoplda.cli._options import File, option
from duoplda.cli._terminal import Terminal, result, result_json, work_options
from duoplda.cli._words import bounds_line

EXAMPLES = """duoplda calibrate --scores dev.txt --trials dev_trials --out calibration.safetensors
duoplda calibrate --from calibration.safetensors --apply eval.txt --out eval_calibrated.txt
duoplda calibrate --scores dev.txt --trials dev_trials --bounds elub --model model.safetensors
duoplda calibrate --method fusion --scores a.txt --scores b.txt --trials key --out fused.txt
duoplda calibrate --scores dev.txt --trials key --quality table.tsv --speakers utt2spk --out calibration.safetensors"""

CalibrationMethod = StrEnum("CalibrationMethod", ["affine", "pav", "kde", "bootstrap", "fusion"])
CalibrationBounds = StrEnum("CalibrationBounds", ["none", "elub", "invariance"])


def calibrate(
    scores: Annotated[
        list[Path] | None, option("Scores to learn from; repeat the option for a fusion.", metavar="FILE")
    ] = None,
    trials: Annotated[File, option("The trials of --scores, with their truth.")] = None,
    method: Annotated[
        CalibrationMethod | None,
        option("What is learnt.  [affine, or fusion of several --scores]"),
    ] = None,
    bounds: Annotated[
        CalibrationBounds, option("Keep ratios within what the trials support (`duoplda evaluate --support`).")
    ] = CalibrationBounds.none,
    out: Annotated[File, option("The calibration (.safetensors) or the calibrated scores to write.")] = None,
    apply: Annotated[list[Path] | None, option("Scores to calibrate instead of --scores.", metavar="FILE")] = None,
    source: Annotated[File, option("A calibration that was learnt before.", "--from")] = None,
    model: Annotated[File, option("A model file in which to store the calibration.")] = None,
    p_target: Annotated[
        float, option("The prior of a target at which costs matter most (affine, bootstrap, fusion).")
    ] = 0.5,
    ridge: Annotated[float | None, option("The ridge on the scales.  [0; with --quality 0.01]")] = None,
    quality: Annotated[File, option("Side information: a table with a row for each recording of both sides.")] = None,
    speakers: Annotated[
        File, option("The speaker of each recording (utt2spk), for cross-validation and for bootstrap.")
    ] = None,
    enroll: Annotated[File, option("The recordings of each model, for --quality and --speakers.")] = None,
    symmetric: Annotated[
        bool | None,
        option("Use the same coefficients for both sides.  [if there is no --enroll]", show_default=False),
    ] = None,
    held_out: Annotated[File, option("A folder for cross-validated scores: affine.txt and quality.txt.")] = None,
    log10: options.Log10 = False,
    json: options.Json = False,
    columns: options.Columns = None,
    allow_missing: options.AllowMissing = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Learn a calibration on trials of known truth; write it, apply it to scores, or store it in a back-end.

    pav is any rising map, kde that of two densities (not always rising), bootstrap an affine map with intervals, which
    its file keeps; --bounds keeps ratios within what the trials support.

    --out NAME.safetensors gets the calibration; any other name gets calibrated scores: those of --apply, or --scores.
    With --quality the columns of a table (duration, number of sessions, kind, ...) of both sides are learnt from, too.
    """
    typed = work_options(locals())
    from duoplda.workflows import calibrate as workflow

    screen = Terminal(quiet)
    learnt = workflow.calibrate(**typed, note=screen.note)
    if learnt:
        screen.note("\n".join(learnt_lines(learnt)))
    if held_out is not None:
        screen.note(f"{held_out}: cross-validated scores, affine.txt and quality.txt")
    if model is not None and out is not None:
        screen.note(f"{model}: calibration stored")
    if json:
        result_json({**learnt, "out": out, "model": model})
    else:
        result(str(out if out is not None else model))


def learnt_lines(learnt: Mapping[str, Any]) -> Iterator[str]:
    """What was learnt, and how good it is."""
    if learnt["method"] != "quality":
        bits = ", ".join(f"{value:.4f} {when}" for when, value in learnt["cllr_same_trials"].items())
        yield f"{learnt['method']} on {learnt['trials']:,} trials: Cllr {bits}, on these same trials"
        if learnt["bounds"] != "none":
            yield bounds_line(learnt)
        return
    bits = learnt["cllr_cross_validated"]
    speakers = f"{learnt['folds']} folds of {learnt['speakers']:,} speakers"
    if not learnt["speakers_known"]:
        speakers += " (--speakers is not given: ids that target trials link are taken for one)"
    yield f"quality on {learnt['trials']:,} trials, cross-validated by {speakers}:"
    yield f"Cllr {bits['before']:.4f} before, {bits['affine']:.4f} affine, {bits['quality']:.4f} with side information"
    yield f"on these same trials, with side information: Cllr {learnt['cllr_same_trials']:.4f}"
    rows = [("score", learnt["scale"], ""), ("offset", learnt["offset"], "")]
    for term in learnt["terms"]:
        rows.append((term["term"], term["coefficient"], f"  {term['coefficient'] * term['deviation']:+.3f}"))
    width = max(len(name) for name, *_ in rows)
    yield f"{'':{width}}  coefficient, and for a change by one standard deviation"
    for name, value, change in rows:
        yield f"{name:{width}}  {value:+11.4f}{change}"
    for name, cause in learnt["ignored"].items():
        yield f"column {name!r} is ignored: {cause}"
