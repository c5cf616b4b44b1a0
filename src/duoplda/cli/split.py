"""`duoplda split`: divide speakers into training, development and evaluation, with enrolments and trials."""

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result, result_json, table

EXAMPLES = """\
duoplda split --labels labels.csv --out data
duoplda split --speakers utt2spk --sessions utt2sess --train 0.8 --dev 0 --eval 0.2 --seed 1 --out data
duoplda split --labels labels.csv --dev 40 --eval 40 --enroll-sessions 2 --cross-channel --nontargets 500 --out data"""
COLUMNS = ("speakers", "sessions", "recordings", "models", "trials", "targets")


def split(run: Run) -> None:
    """Deal speakers to training, development and evaluation, and make enrolments and trials of the latter two.

    No speaker is in two parts, and no session on both sides of a trial: some sessions of each speaker are enrolled, and
    all recordings of the others are tested against all models. The folder gets train.csv, dev.csv and eval.csv, for
    --labels, --sessions and --speakers of other commands, and the lists dev_enroll, dev_trials, eval_enroll and
    eval_trials. The size of a part is a number of speakers (40) or a fraction of all (0.25). Speakers who can have no
    target trial, such as those with one session, are only in train.csv.
    """
    counts = run()
    if run.json:
        result_json({"out": str(run.given["out"]), "parts": counts})
    else:
        result(parts_table(counts))


def parts_table(counts: dict[str, dict[str, int]]) -> str:
    """The numbers of each part, one line for each."""
    rows = [[name, *(f"{numbers[c]:,}" if c in numbers else "-" for c in COLUMNS)] for name, numbers in counts.items()]
    return table([["part", *COLUMNS], *rows])
