"""Options that several commands take, each declared once."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

# -- what is printed and written

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print no notes and no progress; warnings and errors stay.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
AllowMissing = Annotated[bool, typer.Option("--allow-missing", help="Leave out ids that are missing, and count them.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run from OUT.resume.")]

# -- models and recordings

Model = Annotated[Path, typer.Option(help="The model, a file that `duoplda train` wrote.")]
Ids = Annotated[str | None, typer.Option(help="Ids of the rows of npy or npz: a file, or `rows` to number them.")]
Sessions = Annotated[
    Path | None,
    typer.Option(help="The session of each recording (utt2sess); names must differ between speakers."),
]
Channels = Annotated[
    Path | None,
    typer.Option(help="The kind of channel of recordings (utt2channel); where it is not given it is inferred."),
]
SpeakersKnown = Annotated[
    Path | None, typer.Option(help="Speakers that `duoplda enroll` wrote; a cluster may be one of them.")
]
Enrolment = Annotated[Path | None, typer.Option(help="The recordings of each model, which have the model's speaker.")]

# -- labels of training data

Speakers = Annotated[Path | None, typer.Option(help="The speaker of each recording (utt2spk or spk2utt).")]
TrainingSessions = Annotated[Path | None, typer.Option(help="The session of each recording (utt2sess).")]
TrainingChannels = Annotated[Path | None, typer.Option(help="The kind of channel of each recording (utt2channel).")]
Labels = Annotated[
    Path | None,
    typer.Option(
        help="One table with the columns id, speaker, session and channel, instead of lists; the path of the "
        "embeddings if they have these columns."
    ),
]

# -- clusters

Prior = Annotated[float, typer.Option(help="The probability that two sessions drawn at random are of one speaker.")]
Weight = Annotated[
    float, typer.Option(help="A factor on all log-likelihood ratios; below 1, they are trusted less than the prior.")
]
SegmentLevel = StrEnum("SegmentLevel", ["sessions", "recordings"])
SegmentsAre = Annotated[
    SegmentLevel | None,
    typer.Option(help="What segments are to the model.  [what it was trained with, else sessions]"),
]
CannotLinkWithin = Annotated[
    bool, typer.Option("--cannot-link-within", help="Never link two speakers of the same file.")
]

# -- where and how work is done

Device = Annotated[str, typer.Option(help="Where to compute: cpu, or a device of torch such as cuda.")]
Dask = Annotated[
    str | None, typer.Option(help="Work on a Dask cluster: the address of its scheduler, or `local` to start one.")
]
DomainCheck = Annotated[bool, typer.Option(help="Warn if recordings are unlike the training data of the model.")]

# -- scores

ScoreFile = typer.Option("--scores", metavar="FILE", help="A score file; repeat the option for further systems.")
TRIALS_HELP = "Trials with their truth: lines `model test target|nontarget`, or another format of trials."
CostMiss = Annotated[float, typer.Option(help="The cost of a miss.")]
CostFalseAlarm = Annotated[float, typer.Option(help="The cost of a false alarm.")]
TestSpeakers = Annotated[
    Path | None, typer.Option(help="The speaker of each test recording (utt2spk), which gives intervals.")
]
Resamples = Annotated[
    int, typer.Option(min=0, help="How often speakers are resampled for the intervals; 0 gives no intervals.")
]
Seed = Annotated[int, typer.Option(min=0, help="The seed of the resampling.")]
