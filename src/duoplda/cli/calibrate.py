"""`duoplda calibrate`: learn to turn scores into log-likelihood ratios, and apply what was learnt."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli import _quality as side_information
from duoplda.cli._common import AllowMissing, Force, Json, Quiet, result, result_json, say, usage
from duoplda.cli._systems import read_matched
from duoplda.errors import DuopldaError, error_prefix

EXAMPLES = """duoplda calibrate --scores dev.txt --trials dev_trials --out calibration.safetensors
duoplda calibrate --from calibration.safetensors --apply eval.txt --out eval_calibrated.txt
duoplda calibrate --method fusion --scores a.txt --scores b.txt --trials key --out fused.txt
duoplda calibrate --scores dev.txt --trials key --quality table.tsv --speakers utt2spk --out calibration.safetensors"""
Several = list[Path] | None
Method = StrEnum("Method", ["affine", "pav", "fusion"])


def calibrate(
    scores: Annotated[Several, typer.Option(metavar="FILE", help="Scores to learn from; several for fusion.")] = None,
    trials: Annotated[Path | None, typer.Option(help="Trials of --scores, with their truth.")] = None,
    method: Annotated[Method | None, typer.Option(help="Default: affine, or fusion if --scores is repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="The calibration (.safetensors), or calibrated scores.")] = None,
    apply: Annotated[Several, typer.Option(metavar="FILE", help="Scores to calibrate instead of --scores.")] = None,
    source: Annotated[Path | None, typer.Option("--from", help="A calibration learnt before.")] = None,
    model: Annotated[Path | None, typer.Option(help="Model file in which to store the calibration.")] = None,
    p_target: Annotated[float, typer.Option(help="Prior for which costs matter most (affine, fusion).")] = 0.5,
    ridge: Annotated[float | None, typer.Option(help="Ridge on the scales.  [0; --quality: 0.01]")] = None,
    quality: side_information.Table = None,
    speakers: side_information.Speakers = None,
    enroll: side_information.Enroll = None,
    symmetric: side_information.Symmetric = None,
    held_out: side_information.HeldOut = None,
    json: Json = False,
    allow_missing: AllowMissing = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Learn a calibration on trials of known truth; write it, apply it to scores, or store it in a back-end.

    --out NAME.safetensors gets the calibration; any other name gets calibrated scores: those of --apply, or --scores.
    With --quality the columns of a table (duration, number of sessions, kind, ...) of both sides are learnt from, too.
    """
    from duoplda.evaluation.matching import calibrate_scores
    from duoplda.io import check_output, read_scores, write_scores

    own = out is not None and out.suffix.lower() == ".safetensors"
    if (source is None) == (scores is None) or (source is None) != (trials is not None):
        usage("give either --scores and --trials to learn from, or --from a calibration learnt before")
    if out is None and model is None:
        usage("say where the result goes: --out, --model, or both")
    if own and (apply or source):
        usage("--out with .safetensors gets the calibration itself; name a score file for the scores of --apply")
    if apply and out is None:
        usage("--apply needs --out for the calibrated scores")
    if source and not apply and out is not None:
        usage("--from needs --apply: the scores to calibrate")
    files = apply or scores or []
    side = side_information.Side(quality, speakers, enroll, symmetric, held_out, force)
    inputs = [*(scores or []), *files, trials, source, model, quality, speakers, enroll]
    side.check(source is None, method, max(len(scores or []), len(files)), [*inputs, out])
    check_output(out, force, inputs=inputs)
    given: Any = (scores or [], trials, method, p_target, ridge, allow_missing)
    fitted, found = (side.load(source), {}) if source else (side.learn if quality else learn)(*given)
    if model is not None:
        store(model, fitted, force)
        say(f"{model}: calibration stored")
    if out is not None and own:
        fitted.save(out, force=force)
    elif out is not None:
        systems = {str(path): read_scores(path) for path in files}
        made = (side.apply if quality else calibrate_scores)(fitted, systems, allow_missing=allow_missing)
        write_scores(out, made, force=force)
    if json:
        result_json(found | {"out": out, "model": model})
    else:
        result(str(out if out is not None else model))


def learn(files: Sequence[Path], trials: Any, method: Any, p_target: float, ridge: Any, allow: bool) -> tuple[Any, Any]:
    """Fit a calibration to the scores, and say what it makes of Cllr; return it, and what was said."""
    import numpy as np

    from duoplda.evaluation import calibration, metrics

    method = method or ("fusion" if len(files) > 1 else "affine")
    if method != "fusion" and len(files) > 1:
        usage(f"--method {method} takes one --scores; use --method fusion for {len(files)} systems")
    data = read_matched(files, trials, allow)
    columns = list(data.systems.values())
    x = np.stack(columns, axis=1) if method == "fusion" else columns[0]
    options: dict[str, Any] = {} if method == "pav" else {"p_target": p_target, "ridge": ridge or 0.0}
    with error_prefix(str(trials if len(files) > 1 else files[0])):
        fitted: Any = calibration.METHODS[method](**options).fit(x, data.target)
        bits = {} if method == "fusion" else {"before": metrics.cllr(x, data.target)}
        bits["after"] = metrics.cllr(fitted.transform(x), data.target)
    words = ", ".join(f"{value:.4f} {when}" for when, value in bits.items())
    say(f"{method} on {len(data.target):,} trials: Cllr {words}, on these same trials")
    state = {name.strip("_"): value for name, value in fitted.get_state().items()}
    return fitted, {"method": method, "trials": len(data.target), "cllr_same_trials": bits} | state


def store(model: Path, fitted: Any, force: bool) -> None:
    """Put a calibration into a back-end file, whose likelihood ratios are calibrated from then on."""
    from duoplda.estimators.backend import Backend
    from duoplda.evaluation.calibration import Fusion, QualityCalibration

    if isinstance(fitted, Fusion | QualityCalibration):
        cause = "a back-end is one system, without side information, and cannot hold a fusion or --quality"
        raise DuopldaError(f"{model}: {cause}; use affine or pav, or --out")
    backend: Any = Backend.load(model)
    if backend.calibration_ is not None and not force:
        cause = "has a calibration already, which may have changed the scores given here"
        raise DuopldaError(f"{model}: {cause}; score with --raw first, and replace the calibration with --force")
    backend.calibration_ = fitted
    backend.save(model)
