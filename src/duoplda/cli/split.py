"""`duoplda split`: speakers for training, development and evaluation, with enrolments and trials."""

from pathlib import Path
from typing import Annotated, Any

from duoplda.cli import _options as options
from duoplda.cli._options import option
from duoplda.cli._parse import share
from duoplda.cli._terminal import Terminal, result, result_json, table, work_options

EXAMPLES = """\
duoplda split --labels labels.csv --out data
duoplda split --speakers utt2spk --sessions utt2sess --train 0.8 --dev 0 --eval 0.2 --seed 1 --out data
duoplda split --labels labels.csv --dev 40 --eval 40 --enroll-sessions 2 --cross-channel --nontargets 500 --out data"""

SHARE = {"parser": share, "metavar": "NUMBER|FRACTION"}
COLUMNS = ("speakers", "sessions", "recordings", "models", "trials", "targets")


def split(
    out: Annotated[Path, option("The folder to write into; it is made where it is missing.")],
    labels: options.Labels = None,
    speakers: options.Speakers = None,
    sessions: options.TrainingSessions = None,
    channels: options.TrainingChannels = None,
    columns: options.Columns = None,
    train: Annotated[Any, option("Speakers to train on.  [all others]", **SHARE)] = None,
    dev: Annotated[Any, option("Speakers for development; 0: none.  [0.25]", **SHARE)] = None,
    eval: Annotated[Any, option("Speakers for the last test; 0: none.  [0.25]", **SHARE)] = None,
    enroll_sessions: Annotated[int, option("How many sessions of each speaker are enrolled.", min=1)] = 1,
    cross_channel: Annotated[
        bool, option("Make trials between different kinds of channels alone.", "--cross-channel")
    ] = False,
    nontargets: Annotated[
        int | None, option("At most so many non-target trials of each model, drawn at random.  [all]", min=1)
    ] = None,
    seed: Annotated[int, option("The seed; the same one gives the same parts.", min=0, max=(1 << 32) - 1)] = 0,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Deal speakers to training, development and evaluation, and make enrolments and trials of the latter two.

    No speaker is in two parts, and no session on both sides of a trial: some sessions of each speaker are enrolled, and
    all recordings of the others are tested against all models. The folder gets train.csv, dev.csv and eval.csv, for
    --labels, --sessions and --speakers of other commands, and the lists dev_enroll, dev_trials, eval_enroll and
    eval_trials. Parts are numbers of speakers (40) or fractions of all (0.25). Speakers who could have no target trial,
    such as those with one session, are in train.csv alone.
    """
    typed = work_options(locals())
    from duoplda.workflows import split as workflow

    counts = workflow.split(**typed, note=Terminal(quiet).note)
    if json:
        result_json({"out": str(out), "parts": counts})
    else:
        result(parts_table(counts))


def parts_table(counts: dict[str, dict[str, int]]) -> str:
    """The numbers of each part, one line for each."""
    rows = [[name, *(f"{numbers[c]:,}" if c in numbers else "-" for c in COLUMNS)] for name, numbers in counts.items()]
    return table([["part", *COLUMNS], *rows])
