"""`duoplda calibrate`: learn to turn scores into log-likelihood ratios, and apply what was learnt."""

from collections.abc import Iterator, Mapping
from typing import Any

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result, result_json
from duoplda.cli._words import bounds_line

EXAMPLES = """duoplda calibrate --scores dev.txt --trials dev_trials --out calibration.safetensors
duoplda calibrate --from calibration.safetensors --apply eval.txt --out eval_calibrated.txt
duoplda calibrate --scores dev.txt --trials dev_trials --bounds elub --model model.safetensors
duoplda calibrate --method fusion --scores a.txt --scores b.txt --trials key --out fused.txt
duoplda calibrate --scores dev.txt --trials key --quality table.tsv --speakers utt2spk --out calibration.safetensors"""


def calibrate(run: Run) -> None:
    """Learn to turn scores into likelihood ratios, on trials of known truth; write, apply or store the calibration.

    Learn on trials of speakers who were not in the training, recorded as in use: the calibration holds for such trials
    only. affine is a scale and an offset; pav any rising map, for many trials; kde the ratio of two densities, which
    need not rise; bootstrap an affine map with intervals, which its file keeps; fusion joins the scores of several
    systems. --bounds keeps ratios within what the trials support.

    If --out ends in .safetensors, the calibration is written there; otherwise the calibrated scores, those of --apply
    or else of --scores. With --quality, the columns of a table about both sides (duration, number of sessions, kind,
    ...) are used as well.
    """
    learnt = run()
    if learnt:
        run.note("\n".join(learnt_lines(learnt)))
    if run.given["held_out"] is not None:
        run.note(f"{run.given['held_out']}: cross-validated scores, affine.txt and quality.txt")
    if run.given["model"] is not None and run.given["out"] is not None:
        run.note(f"{run.given['model']}: calibration stored")
    if run.json:
        result_json({**learnt, "out": run.given["out"], "model": run.given["model"]})
    else:
        result(str(run.given["out"] if run.given["out"] is not None else run.given["model"]))


def learnt_lines(learnt: Mapping[str, Any]) -> Iterator[str]:
    """The lines on what was learnt, and how good it is."""
    if learnt["method"] != "quality":
        bits = ", ".join(f"{value:.4f} {when}" for when, value in learnt["cllr_same_trials"].items())
        yield f"{learnt['method']} on {learnt['trials']:,} trials: Cllr {bits}, on these same trials"
        if learnt["bounds"] != "none":
            yield bounds_line(learnt)
        return
    bits = learnt["cllr_cross_validated"]
    speakers = f"{learnt['folds']} folds of {learnt['speakers']:,} speakers"
    if not learnt["speakers_known"]:
        speakers += " (--speakers is not given: ids that target trials link count as one speaker)"
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
