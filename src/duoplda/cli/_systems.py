"""What `evaluate`, `calibrate` and `report` share: options about scores and trials, and reading them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duoplda.cli._common import say
from duoplda.errors import DuopldaError

if TYPE_CHECKING:
    from duoplda.evaluation.matching import Matched

ScoreFiles = Annotated[list[Path], typer.Option("--scores", metavar="FILE", help="Scores; repeat for more systems.")]
TrialFile = Annotated[Path, typer.Option("--trials", help="Trials with their truth: model test target|nontarget, ...")]
CostMiss = Annotated[float, typer.Option(help="Cost of a miss.")]
CostAlarm = Annotated[float, typer.Option(help="Cost of a false alarm.")]
Speakers = Annotated[Path | None, typer.Option(help="Speakers of the test recordings (utt2spk), for intervals.")]
Enroll = Annotated[Path | None, typer.Option(help="Recordings of each model, whose speaker is the model's.")]
Resamples = Annotated[int, typer.Option(min=0, help="How often speakers are resampled for the intervals; 0: never.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the resamples.")]


def read_matched(scores: Sequence[Path], trials: Path, allow_missing: bool) -> "Matched":
    """Read and match scores and trials, and say what was left out."""
    from duoplda.evaluation.matching import match_files

    data = match_files(trials, scores, allow_missing=allow_missing)
    for path, missing, unused in zip(scores, data.missing.values(), data.unused.values(), strict=True):
        if missing:
            say(f"{path}: {missing:,} trials without a score are left out")
        if unused:
            say(f"{path}: {unused:,} scores belong to no trial and are not used")
    return data


def read_sides(data: "Matched", speakers: Path | None, enroll: Path | None) -> tuple[Any, Any] | None:
    """The speakers of both sides of the trials, where a file gives the speakers of the recordings."""
    from duoplda.evaluation.matching import speaker_sides
    from duoplda.io import read_enrollment, read_map

    known = read_map(speakers, "speaker")
    return speaker_sides(data.trials, known, read_enrollment(enroll) if enroll else None) if known else None


def domain_of(chain: Any, recordings: Any, trials: Any, enroll: Path | None) -> dict[str, str]:
    """How far the recordings of trials are from the training data of a chain, in words."""
    from duoplda.estimators import domain, scoring
    from duoplda.io import read_enrollment

    models = trials.enroll.names
    members = models if enroll is None else scoring.members(read_enrollment(enroll), trials)[1].values
    seen, _ = domain.look(chain, recordings, [*members.tolist(), *trials.test.names.tolist()])
    if not seen.n:
        raise DuopldaError("--embeddings has none of the recordings of the trials: do the ids agree?")
    found = domain.measure(chain, seen, len(models))
    end = "within it" if found.within else "beyond it: ratios may mislead, see duoplda adapt"
    said = f"{found.distance:.4g}, limit {found.limit:.4g} for {seen.n:,} recordings: {end}"
    return {"squared distance from the training data": said}
