"""What `calibrate --quality` adds: side information on the recordings, read, learnt from and applied."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli._common import missing, say, usage
from duoplda.cli._systems import read_matched, read_sides
from duoplda.errors import DuopldaError, error_prefix

Table = Annotated[Path | None, typer.Option(help="Side information: a table, a row for each recording of both sides.")]
Speakers = Annotated[Path | None, typer.Option(help="Speakers of the recordings (utt2spk), for cross-validation.")]
Enroll = Annotated[Path | None, typer.Option(help="Recordings of each model, for --quality.")]
Symmetric = Annotated[
    bool | None, typer.Option(help="Same coefficients for both sides.  [if there is no --enroll]", show_default=False)
]
HeldOut = Annotated[Path | None, typer.Option(help="Folder for the cross-validated scores: affine.txt, quality.txt.")]


@dataclass(frozen=True)
class Side:
    """The files of side information, and what is made of them."""

    quality: Path | None
    speakers: Path | None
    enroll: Path | None
    symmetric: bool | None
    held_out: Path | None
    force: bool = False

    def check(self, learning: bool, method: str | None, n_systems: int, others: list[Path | None]) -> None:
        """Refuse options that do not go together, and a folder that could not be written."""
        from duoplda.io import check_output

        for_learning = any((self.speakers, self.held_out, self.symmetric is not None))
        if self.quality is None and (for_learning or self.enroll):
            usage("--speakers, --enroll, --symmetric and --held-out go with --quality, the table of side information")
        if self.quality is not None and (method or n_systems > 1):
            usage("--quality is a method of its own, for one --scores; leave --method out")
        if for_learning and not learning:
            usage("--speakers, --symmetric and --held-out are for learning, from --scores and --trials")
        if self.held_out is not None:
            paths = [self.held_out / f"{name}.txt" for name in ("affine", "quality")]
            if any(other is not None and other.resolve() == path.resolve() for other in others for path in paths):
                usage(f"--held-out writes {paths[0]} and {paths[1]}; give other files other names")
            for path in paths if self.held_out.is_dir() else [self.held_out]:
                check_output(path, self.force, inputs=others)

    def load(self, source: Path) -> Any:
        """Read a calibration; one that goes by side information needs it, and no other takes it."""
        from duoplda.evaluation.calibration import QualityCalibration, load

        fitted = load(source)
        if isinstance(fitted, QualityCalibration) and self.quality is None:
            needs = ", ".join(dict.fromkeys(t.column for t in fitted.recipe.terms if t.column))
            raise DuopldaError(f"{source}: goes by side information; give --quality, a table with the columns {needs}")
        if not isinstance(fitted, QualityCalibration) and self.quality is not None:
            raise DuopldaError(f"{source}: is no calibration with side information; leave --quality out")
        return fitted

    def of(self, trials: Any, allow_missing: bool) -> tuple[Any, Any]:
        """The rows of trials that the table describes, and what it says of them."""
        import numpy as np

        from duoplda.evaluation.quality import described, trial_quality
        from duoplda.io import Trials, read_enrollment, read_quality

        table = read_quality(self.quality or "")
        models = read_enrollment(self.enroll) if self.enroll else None
        rows = np.arange(len(trials))
        if allow_missing:
            rows = np.flatnonzero(described(trials, table, models))
            if not len(rows):
                raise DuopldaError(f"{self.quality}: describes both sides of no trial; do the ids agree?")
            left_out = np.setdiff1d(np.arange(len(trials)), rows)
            pairs = zip(trials.enroll[left_out].values, trials.test[left_out].values, strict=True)
            missing("trials with a recording that the table lacks", [f"{e} {t}" for e, t in pairs], True)
        target = None if trials.target is None else trials.target[rows]
        with error_prefix(str(self.quality)):
            return rows, trial_quality(Trials(trials.enroll[rows], trials.test[rows], target), table, models)

    def learn(
        self, files: Sequence[Path], trials: Any, _: Any, p_target: float, ridge: Any, allow_missing: bool
    ) -> tuple[Any, dict[str, Any]]:
        """Fit scores and side information, and say what they make of Cllr; return the calibration and what was said."""
        from dataclasses import replace

        from duoplda.evaluation.calibration import QualityCalibration
        from duoplda.evaluation.metrics import cllr
        from duoplda.evaluation.quality import linked_sides
        from duoplda.io import Trials

        data = read_matched(files, trials, allow_missing)
        rows, quality = self.of(data.trials, allow_missing)
        kept = Trials(data.trials.enroll[rows], data.trials.test[rows], data.target[rows])
        s = next(iter(data.systems.values()))[rows]
        y = data.target[rows]
        symmetric = self.enroll is None if self.symmetric is None else self.symmetric
        options: dict[str, Any] = {"p_target": p_target, "symmetric": symmetric}
        options |= {} if ridge is None else {"ridge": ridge}
        with error_prefix(str(files[0])):
            fitted = QualityCalibration(**options).fit(s, y, quality=quality)
            sides = read_sides(replace(data, trials=kept), self.speakers, self.enroll) or linked_sides(kept)
            held = fitted.held_out(s, y, quality=quality, speakers=sides)
            bits = {"before": cllr(s, y), "affine": cllr(held.affine, y), "quality": cllr(held.quality, y)}
            same = cllr(fitted.transform(s, quality), y)
        if self.held_out is not None:
            self.write(kept, {"affine": held.affine, "quality": held.quality})
        found: dict[str, Any] = {"method": "quality", "trials": len(y), "speakers": held.n_speakers}
        found |= {"speakers_known": self.speakers is not None, "folds": held.n_folds, "cllr_cross_validated": bits}
        found |= {"cllr_same_trials": same, "p_target": p_target, "ridge": fitted.ridge_, "symmetric": symmetric}
        found |= {"scale": fitted.scale_, "offset": fitted.offset_, "ignored": fitted.ignored_}
        numbers = zip(fitted.recipe.terms, fitted.coefficients_, fitted.deviations_, strict=True)
        found["terms"] = [{"term": str(t), "coefficient": c, "deviation": d} for t, c, d in numbers]
        tell(found)
        return fitted, found

    def write(self, trials: Any, systems: Mapping[str, Any]) -> None:
        """Write cross-validated scores, one file for each system, for `evaluate` and `report`."""
        from duoplda.io import Scores, write_scores

        folder = self.held_out or Path()
        folder.mkdir(exist_ok=True)
        for name, score in systems.items():
            write_scores(folder / f"{name}.txt", Scores(trials.enroll, trials.test, score), force=self.force)
        say(f"{folder}: cross-validated scores, {' and '.join(f'{name}.txt' for name in systems)}")

    def apply(self, fitted: Any, systems: Mapping[str, Any], *, allow_missing: bool) -> Any:
        """Calibrate all scores of one system."""
        from duoplda.io import Scores, Trials

        (scores,) = systems.values()
        rows, quality = self.of(Trials(scores.enroll, scores.test), allow_missing)
        with error_prefix(str(self.quality)):
            ratios = fitted.transform(scores.score[rows], quality)
        return Scores(scores.enroll[rows], scores.test[rows], ratios)


def tell(found: Mapping[str, Any]) -> None:
    """Say what was learnt, for people."""
    bits = found["cllr_cross_validated"]
    speakers = f"{found['folds']} folds of {found['speakers']:,} speakers"
    if not found["speakers_known"]:
        speakers += " (--speakers is not given: ids that target trials link are taken for one)"
    say(f"quality on {found['trials']:,} trials, cross-validated by {speakers}:")
    say(f"Cllr {bits['before']:.4f} before, {bits['affine']:.4f} affine, {bits['quality']:.4f} with side information")
    say(f"on these same trials, with side information: Cllr {found['cllr_same_trials']:.4f}")
    rows = [("score", found["scale"], ""), ("offset", found["offset"], "")]
    rows += [(t["term"], t["coefficient"], f"  {t['coefficient'] * t['deviation']:+.3f}") for t in found["terms"]]
    width = max(len(name) for name, *_ in rows)
    say(f"{'':{width}}  coefficient, and for a change by one standard deviation")
    for name, value, change in rows:
        say(f"{name:{width}}  {value:+11.4f}{change}")
    for name, cause in found["ignored"].items():
        say(f"column {name!r} is ignored: {cause}")
