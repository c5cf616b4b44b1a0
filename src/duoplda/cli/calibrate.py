"""`duoplda calibrate`: learn to turn scores into log-likelihood ratios, and apply what was learnt."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli._common import AllowMissing, Force, Quiet, missing, refuse_existing, result, say, usage
from duoplda.cli.evaluate import Matched, lookup, matched, named
from duoplda.errors import DuopldaError

EXAMPLE = """\b
Example:
  duoplda calibrate --scores dev.txt --trials dev_trials --out calibration.safetensors
  duoplda calibrate --from calibration.safetensors --apply eval.txt --out eval_calibrated.txt
  duoplda calibrate --method fusion --scores a.txt --scores b.txt --trials key --out fused.txt
"""
FORMAT, VERSION = "duoplda-calibration", 1
Several = partial(typer.Option, metavar="FILE")
ARRAYS = ("scales_", "low_", "high_", "llr_")  # the rest of a state are numbers


class Method(StrEnum):
    """How scores become log-likelihood ratios."""

    affine = "affine"
    pav = "pav"
    fusion = "fusion"


def calibrate(
    scores: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Scores to learn from; several for fusion.")
    ] = None,
    trials: Annotated[Path | None, typer.Option(help="Their trials with the truth.")] = None,
    method: Annotated[Method | None, typer.Option(help="affine; fusion where --scores is repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="The calibration (.safetensors), or calibrated scores.")] = None,
    apply: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Scores to calibrate instead of --scores.")
    ] = None,
    source: Annotated[Path | None, typer.Option("--from", help="A calibration learnt before; no --trials.")] = None,
    model: Annotated[Path | None, typer.Option(help="Model in which to store the calibration.")] = None,
    p_target: Annotated[float, typer.Option(help="Prior that matters most (affine, fusion).")] = 0.5,
    ridge: Annotated[float, typer.Option(help="Ridge on the scales (affine, fusion).")] = 0.0,
    allow_missing: AllowMissing = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Learn a calibration on trials of known truth; write it, apply it to scores, or store it in a back-end.

    --out NAME.safetensors gets the calibration; any other name gets calibrated scores: those of --apply, or --scores.
    """
    if (source is None) == (scores is None) or (source is None) != (trials is not None):
        usage("give either --scores and --trials to learn from, or --from a calibration learnt before")
    if out is None and model is None:
        usage("say where the result goes: --out, --model, or both")
    own = out is not None and out.suffix.lower() == ".safetensors"
    if own and (apply or source):
        usage("--out with .safetensors gets the calibration itself; name a score file for the scores of --apply")
    if apply and out is None:
        usage("--apply needs --out for the calibrated scores")
    if source and not apply and out is not None:
        usage("--from needs --apply: the scores to calibrate")
    refuse_existing(out, force)
    fitted = (
        read_calibration(source) if source else _learn(scores or [], trials, method, p_target, ridge, allow_missing)
    )
    if model is not None:
        store(model, fitted, force)
        say(f"{model}: calibration stored")
    if out is not None and own:
        write_calibration(out, fitted, force=force)
    elif out is not None:
        _apply(fitted, apply or scores or [], out, allow_missing, force)
    result(str(out if out is not None else model))


def _learn(
    files: Sequence[Path], trials: Path | None, method: Method | None, p_target: float, ridge: float, allow: bool
) -> Any:
    import numpy as np

    from duoplda.evaluation import calibration, metrics

    assert trials is not None
    method = method or (Method.fusion if len(files) > 1 else Method.affine)
    if method is not Method.fusion and len(files) > 1:
        usage(f"--method {method} takes one --scores; use --method fusion for {len(files)} systems")
    data: Matched = matched(files, trials, allow)
    columns = list(data.systems.values())
    with named(trials if len(files) > 1 else files[0]):
        if method is Method.fusion:
            before, x = None, np.stack(columns, axis=1)
            fitted: Any = calibration.Fusion(p_target, ridge).fit(x, data.target)
        else:
            x = columns[0]
            before = metrics.cllr(x, data.target)
            affine = calibration.AffineCalibration(p_target, ridge)
            fitted = (affine if method is Method.affine else calibration.PAVCalibration()).fit(x, data.target)
        after = metrics.cllr(fitted.transform(x), data.target)
    was = f"{before:.4f} before, " if before is not None else ""
    say(f"{method} on {len(data.target):,} trials: Cllr {was}{after:.4f} after, on these same trials")
    return fitted


def _apply(fitted: Any, files: Sequence[Path], out: Path, allow: bool, force: bool) -> None:
    """Calibrate every score of the first file (with those of the same trials in the others, for a fusion)."""
    import numpy as np

    from duoplda.io import Scores, read_scores, write_scores

    k = len(fitted.scales_) if hasattr(fitted, "scales_") else 1
    if len(files) != k:
        usage(f"the calibration is for {k} system{'s' * (k > 1)}, and {len(files)} are given")
    first = read_scores(files[0])
    x, there = [first.score], np.ones(len(first), bool)
    for path in files[1:]:
        column, found = lookup(path, read_scores(path), first.enroll, first.test)
        rows = np.flatnonzero(~found)
        pairs = zip(first.enroll[rows].values.tolist(), first.test[rows].values.tolist(), strict=True)
        missing(f"trials of {files[0]} without a score in {path}", [f"{e} {t}" for e, t in pairs], allow)
        x.append(column)
        there &= found
    rows = np.flatnonzero(there)
    with named(files[0]):
        llr = fitted.transform(np.stack(x, axis=1)[rows] if hasattr(fitted, "scales_") else x[0])
    write_scores(out, Scores(first.enroll[rows], first.test[rows], llr), force=force)


# -- the calibration's file


def write_calibration(path: Path, fitted: Any, *, force: bool = False) -> None:
    """Write a fitted calibration as safetensors, whole or not at all."""
    import numpy as np
    from safetensors.numpy import save

    from duoplda.io import atomic_path

    arrays = {name: np.atleast_1d(np.asarray(v, np.float64)) for name, v in fitted.get_state().items()}
    header = {"format": FORMAT, "version": VERSION, "class": type(fitted).__name__}
    with atomic_path(path, force=force) as temporary:
        temporary.write_bytes(save(arrays, {"duoplda": json.dumps(header)}))


def read_calibration(path: Path) -> Any:
    """Read what `write_calibration` wrote."""
    import numpy as np
    from safetensors import SafetensorError, safe_open

    from duoplda.evaluation import calibration
    from duoplda.io._common import bad, open_binary

    open_binary(path).close()
    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get("duoplda", "null"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, TypeError, KeyError, RecursionError, OSError) as e:
        raise bad(path, "", "is no calibration of duoplda, or it is damaged", "write it again") from e
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise bad(path, "", "is a safetensors file, but no calibration of duoplda", "write one with duoplda calibrate")
    if header.get("version") != VERSION:
        raise bad(
            path, "", f"has version {header.get('version')!r}, this duoplda reads {VERSION}", "use a newer duoplda"
        )
    classes = {c.__name__: c for c in (calibration.AffineCalibration, calibration.PAVCalibration, calibration.Fusion)}
    kind = classes.get(str(header.get("class")))
    if kind is None:
        raise bad(path, "", f"holds {header.get('class')!r}", f"known: {', '.join(classes)}")
    sizes = {a.size for n, a in arrays.items() if n in ARRAYS}
    for name, a in arrays.items():
        wrong = a.ndim != 1 or not a.size or (name not in ARRAYS and a.size != 1)
        if wrong or a.dtype != np.float64 or np.isnan(a).any() or (name != "llr_" and not np.isfinite(a).all()):
            raise bad(path, name, f"is {a.dtype} of shape {a.shape}, or not finite", "the file is damaged")
    if len(sizes) > 1:
        raise bad(path, "", "has arrays of different lengths", "the file is damaged")
    try:
        return kind.from_state({n: a if n in ARRAYS else a[0] for n, a in arrays.items()})
    except DuopldaError as e:
        raise bad(path, "", str(e)) from None


def store(model: Path, fitted: Any, force: bool) -> None:
    """Put a calibration into a back-end file, whose likelihood ratios are calibrated from then on."""
    from duoplda.estimators.backend import Backend
    from duoplda.evaluation.calibration import Fusion

    if isinstance(fitted, Fusion):
        raise DuopldaError(f"{model}: a back-end has one system, so no fusion fits in; use affine or pav, or --out")
    backend: Any = Backend.load(model)
    if backend.calibration_ is not None and not force:
        cause = "has a calibration already, by which the scores may have gone"
        raise DuopldaError(f"{model}: {cause}; score without it, and replace it with --force")
    backend.calibration_ = fitted
    backend.save(model)
