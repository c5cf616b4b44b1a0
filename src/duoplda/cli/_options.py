"""Options that several commands take, each declared once."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from duoplda.cli import _parse as parse

File = Path | None


def option(text: str, *names: str, **more: Any) -> Any:
    """An option with its help text; a name is given where the usual one, or its negation `--no-...`, is not wanted."""
    return typer.Option(*names, help=text, **more)


# -- what is printed and written

Quiet = Annotated[bool, option("Print no notes and no progress; warnings and errors stay.", "--quiet", "-q")]
Force = Annotated[bool, option("Replace an existing output.", "--force")]
Json = Annotated[bool, option("Print the result as JSON on standard output.", "--json")]
AllowMissing = Annotated[bool, option("Leave out ids that are missing, and count them.", "--allow-missing")]
Strict = Annotated[bool, option("Refuse recordings that a list gives no label; else they are left out.", "--strict")]
Resume = Annotated[bool, option("Continue an interrupted run from OUT.resume.", "--resume")]

# -- models and recordings

Model = Annotated[Path, option("The model, a file that `duoplda train` wrote.")]
Registry = Annotated[
    str, option("Known voices: a SQLite file, or the URL of a PostgreSQL database (postgresql+psycopg://...).")
]
KnownVoices = Annotated[
    str | None, option("A registry of known voices (`duoplda voices`), as --speakers-known.", "--registry")
]
Audio = Annotated[
    list[Path] | None,
    option(
        "Audio instead of embeddings: a file, a folder or a list wav.scp, repeat the option for more; recordings are "
        "called as `duoplda embed` calls them."
    ),
]
Extractor = Annotated[File, option("The extractor (ONNX) of --audio, the one that the model was trained on.")]
Ids = Annotated[str | None, option("Ids of the rows of npy or npz: a file, or `rows` to number them.")]
Columns = Annotated[
    Any,
    option(
        "What columns of tables are called, where it is not guessed: session=call_id,speaker=who,vector=xv; their "
        "numbers if there is no header: id=1,speaker=2.",
        parser=parse.columns,
        metavar="MEANING=NAME,...",
    ),
]
Sessions = Annotated[
    File,
    option("The session of each recording (utt2sess); names must differ between speakers."),
]
Channels = Annotated[
    File,
    option("The kind of channel of recordings (utt2channel); where it is not given it is inferred."),
]
Occasions = Annotated[
    File,
    option("The day, call or file of recordings (utt2occasion); sessions of one occasion count for less."),
]
SpeakersKnown = Annotated[File, option("Speakers that `duoplda enroll` wrote; a cluster may be one of them.")]
Enrolment = Annotated[File, option("The recordings of each model, which have the model's speaker.")]

# -- labels of training data

Speakers = Annotated[File, option("The speaker of each recording (utt2spk or spk2utt).")]
TrainingSessions = Annotated[File, option("The session of each recording (utt2sess).")]
TrainingChannels = Annotated[File, option("The kind of channel of each recording (utt2channel).")]
TrainingOccasions = Annotated[
    File, option("The day, call or file of each recording (utt2occasion), if these are known.")
]
Labels = Annotated[
    File,
    option(
        "One table with the columns id, speaker, session, channel and occasion, instead of lists; the path of the "
        "embeddings if they have these columns."
    ),
]

# -- clusters

Prior = Annotated[float, option("The probability that two sessions drawn at random are of one speaker.")]
Weight = Annotated[
    float, option("A factor on all log-likelihood ratios; below 1, they are trusted less than the prior.")
]
SegmentLevel = StrEnum("SegmentLevel", ["sessions", "recordings"])
SegmentsAre = Annotated[
    SegmentLevel | None,
    option("What segments are to the model.  [what it was trained with, else sessions]"),
]
CannotLinkWithin = Annotated[bool, option("Never link two speakers of the same file.", "--cannot-link-within")]

# -- where and how work is done

Device = Annotated[str, option("Where to compute: cpu, or a device of torch such as cuda.")]
Dask = Annotated[str | None, option("Work on a Dask cluster: the address of its scheduler, or `local` to start one.")]
DomainCheck = Annotated[bool, option("Warn if recordings are unlike the training data of the model.")]

# -- scores

ScoreFile = option("A score file; repeat the option for further systems.", "--scores", metavar="FILE")
Log10 = Annotated[
    bool, option("Scores are log10 ratios, as forensic science writes them, not natural logarithms.", "--log10")
]
TRIALS_HELP = "Trials with their truth: lines `model test target|nontarget`, or another format of trials."
CostMiss = Annotated[float, option("The cost of a miss.")]
CostFalseAlarm = Annotated[float, option("The cost of a false alarm.")]
TestSpeakers = Annotated[File, option("The speaker of each test recording (utt2spk), which gives intervals.")]
Resamples = Annotated[int, option("How often speakers are resampled for the intervals; 0 gives no intervals.", min=0)]
Seed = Annotated[int, option("The seed of the resampling.", min=0)]
