"""Every option of every command, declared once: its type, its help, and the values that it may have.

The parameters of a workflow are the options of its command. Each is annotated with a name of this file, and its default
stands in the signature of the workflow:

    def cluster(model: option.Model, ..., *, weight: option.Weight = 1.0) -> ...

From these two `duoplda.cli` makes `--weight`. A parameter with any other annotation (`note: Note`) is no option. This
file imports next to nothing, because `duoplda cluster --help` imports it and must start at once; the help never
imports the workflow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal

from duoplda.errors import OptionsError
from duoplda.workflows import texts

PathLike = str | os.PathLike[str]
File = PathLike | None
Files = Sequence[PathLike] | None
Note = Callable[[str], None]  # gets a message for people
Show = Callable[[int | None, str], None]  # gets how much is done, if that is known, and a message


@dataclass(frozen=True)
class Option:
    """How the command line explains and reads a parameter; in an annotation, a text alone is an option's help."""

    help: str
    _: KW_ONLY
    name: str | None = None  # how it is typed, where that is not the name of the parameter
    argument: bool = False  # whether it is typed without a name
    metavar: str | None = None
    min: float | None = None
    max: float | None = None
    read: Callable[[str], Any] | None = None  # makes the value of what is typed; it may raise a ValueError
    must_be: str = ""  # for the error message if `read` raises: what has to be typed
    typed: str | None = None  # how the default is typed, where `str` of it is not what `read` takes


def refuse(wrong: object, message: str) -> None:
    """Raise an `OptionsError` if something is wrong; in the message, names of options stand in backticks."""
    if wrong:
        raise OptionsError(message)


# -- what is written, and how work is done

Force = Annotated[bool, "Replace an existing output."]
AllowMissing = Annotated[bool, "Leave out ids that are not found, and say how many; otherwise they are an error."]
Strict = Annotated[bool, "Refuse recordings that have no label in a list, instead of leaving them out."]
Resume = Annotated[bool, "Continue an interrupted run from OUT.resume."]
Device = Annotated[str, "Where to compute: cpu, or a device of torch such as cuda."]
Dask = Annotated[str | None, "Compute on a Dask cluster: the address of its scheduler, or `local` to start one."]
DomainCheck = Annotated[bool, "Warn if recordings are unlike the training data of the model."]
Seed = Annotated[int, Option("The seed of the resampling.", min=0)]

# -- models and recordings

Model = Annotated[PathLike, "The model, a file that `duoplda train` wrote."]
Ids = Annotated[str | None, "The ids of the rows of npy or npz files: a list of them, or `rows` to number them."]
Columns = Annotated[
    Mapping[str, str] | None,
    Option(
        "What the columns of tables are called, where their names do not tell: session=call_id,speaker=who,vector=xv; "
        "or their numbers if there is no header: id=1,speaker=2.",
        read=texts.pairs,
        must_be="meanings and names, several with commas: session=call_id,speaker=who",
        metavar="MEANING=NAME,...",
    ),
]
Audio = Annotated[
    Files,
    "Audio instead of embeddings: a file, a folder or a list wav.scp; repeat the option for more. Recordings get the "
    "names that `duoplda embed` gives them.",
]
Extractor = Annotated[
    File, "The network (ONNX) that embeds --audio: the one whose embeddings the model was trained on."
]
Sessions = Annotated[File, "The session of each recording (utt2sess); names must differ between speakers."]
Channels = Annotated[File, "The kind of channel of each recording (utt2channel); where none is given, it is inferred."]
Occasions = Annotated[
    File, "The day, call or file of each recording (utt2occasion): several sessions of one of these count for less."
]

# -- labels of training data: train, adapt, advise, split

Speakers = Annotated[File, "The speaker of each recording (utt2spk or spk2utt)."]
TrainingSessions = Annotated[File, "The session of each recording (utt2sess)."]
TrainingChannels = Annotated[File, "The kind of channel of each recording (utt2channel)."]
TrainingOccasions = Annotated[File, "The day, call or file of each recording (utt2occasion), if these are known."]
Labels = Annotated[
    File,
    "One table with the columns id, speaker, session, channel and occasion, instead of lists; the path of the "
    "embeddings if they have these columns.",
]

# -- train

TrainingEmbeddings = Annotated[
    PathLike, "The training data: Kaldi ark or scp, npz, npy, HDF5, Parquet, a folder or 'x.*.ark'."
]
ModelOut = Annotated[PathLike, "The model to write, a safetensors file."]
TrainingQuality = Annotated[
    File, "Measures of the recordings (`duoplda embed --quality-out`): the model then warns of audio unlike them."
]
SpeakerFactors = Annotated[
    int | str | None,
    Option(
        "The rank of the speaker level: a number, full, or auto (held-out speakers choose).",
        read=texts.rank,
        must_be="a whole number from 0 on or full or auto",
        typed="full",
    ),
]
SessionFactors = Annotated[
    int | str | None,
    Option(
        "The rank of the session level: a number, full or auto; 0 leaves it out.",
        read=texts.rank,
        must_be="a whole number from 0 on or full or auto",
        typed="full",
    ),
]
Shrinkage = Annotated[
    str | float | tuple[float, ...] | None,
    Option(
        "How far covariances are shrunk, from 0 to 1: a, or a,b,c for speaker, session and noise; none; or auto "
        "(held-out speakers choose).",
        read=texts.shrinkage,
        must_be="none, auto, or one or three numbers from 0 to 1: a,b,c",
    ),
]
Criterion = Annotated[
    Literal["decision", "likelihood"],
    "What decides wherever auto is given: the cost of trials between held-out speakers, or their likelihood.",
]
HeldOutEnrolment = Annotated[
    Sequence[tuple[int, int | None]] | None,
    Option(
        "How speakers of held-out trials are enrolled: sessions x recordings, such as 1x1,3xall.",
        read=texts.enrolments,
        must_be="sessions x recordings, several with commas: 1x1,3x3,3xall",
    ),
]
HeldOutPriors = Annotated[
    Sequence[float],
    Option(
        "The prior probabilities of a target at which the cost of held-out trials is measured.",
        read=texts.probabilities,
        must_be="probabilities between 0 and 1, several with commas: 0.5,0.01",
        typed="0.5,0.01",
    ),
]
HeldOutCalibration = Annotated[
    Literal["affine", "structure"],
    "The calibration that held-out trials teach: one scale and offset, or those of each structure of trials.",
]
ModelType = Annotated[
    Literal["plain", "two-source", "kinds", "auto"] | None,
    "Which levels the model has.  [all that the labels allow]",
]
SessionsAre = Annotated[
    Literal["utterances", "files"] | None,
    "What a session is in these data; `duoplda diarize` and `duoplda link` will go by it.",
]
LearnChannels = Annotated[
    int | str | None,
    Option(
        "Learn kinds of channels that nobody labelled: their number, or auto.",
        read=texts.count,
        must_be="a whole number from 1 on or auto",
    ),
]
Preset = Annotated[Literal["vbx"] | None, "The chain of VBx: centre, length, LDA (128), centre, length, PLDA."]
Lda = Annotated[int | None, Option("The number of dimensions that LDA keeps.  [no LDA]", min=1)]
Whiten = Annotated[bool | None, "Map the total covariance to the identity.  [yes, unless a preset is given]"]
LengthNorm = Annotated[bool, "Normalise the lengths of vectors."]
CenterByChannel = Annotated[bool, "Subtract a mean for each kind of channel."]
Tolerance = Annotated[float, Option("EM stops when it gains less, in nats per recording.", min=0)]
MaxIterations = Annotated[int, Option("The largest number of EM iterations.", min=0)]
FoldSeed = Annotated[int, Option("The seed of the folds of held-out speakers.", min=0)]

# -- adapt

TargetEmbeddings = Annotated[PathLike, "Embeddings of the target: a file, a folder or 'x.*.ark'."]
AdaptationMethod = Annotated[
    Literal["auto", "labels", "clusters", "sessions", "total", "centre", "kaldi"],
    "How to adapt; auto goes by what is known, kaldi does what Kaldi does.",
]
Weights = Annotated[
    tuple[float, ...] | float | None,
    Option(
        "How much the target counts at each level, from 0 to 1, with commas.  [chosen by the method]",
        read=texts.numbers,
        must_be="numbers, several with commas: 0.5,0.2",
    ),
]
Centre = Annotated[
    float | None, Option("How far the mean moves to the target's.  [as far as the data allow]", min=0, max=1)
]
Prior = Annotated[float, "The probability that two sessions drawn at random are of one speaker."]

# -- advise, split

LookedAtEmbeddings = Annotated[File, "Embeddings, whose number of dimensions is used; vectors are not read."]
WriteSessions = Annotated[
    File, "Write the sessions that the ids seem to name to this file: lines `recording session`, or .csv, .tsv."
]
SplitOut = Annotated[PathLike, "The folder to write into; it is made where it is missing."]
SHARE: Any = {
    "read": texts.share,
    "must_be": "a whole number (30) or a fraction (0.25)",
    "metavar": "NUMBER|FRACTION",
}
TrainShare = Annotated[float | None, Option("How many speakers to train on.  [all others]", **SHARE)]
DevShare = Annotated[float, Option("How many speakers are kept for development; 0: none.", **SHARE)]
EvalShare = Annotated[float, Option("How many speakers are kept for the final test; 0: none.", **SHARE)]
EnrollSessions = Annotated[int, Option("How many sessions of each speaker are enrolled.", min=1)]
CrossChannel = Annotated[bool, "Make only trials between different kinds of channels."]
Nontargets = Annotated[
    int | None, Option("The largest number of non-target trials of each model, drawn at random.  [all]", min=1)
]
SplitSeed = Annotated[int, Option("The seed; the same one gives the same parts.", min=0, max=(1 << 32) - 1)]

# -- enroll

EnrolledOut = Annotated[PathLike, "The file of enrolled speakers to write, in safetensors format."]
EnrollEmbeddings = Annotated[File, "Embeddings of the recordings that --enroll names; others are not used."]
EnrollList = Annotated[File, "The recordings of each speaker: lines `speaker recording ...`, or a table."]
AddTo = Annotated[File, "A file of enrolled speakers to start from."]
Remove = Annotated[Sequence[str], "A speaker of --add-to to leave out; repeat the option for more."]

# -- score

ScoreEmbeddings = Annotated[File, "Embeddings of the enrolment, and of the tests if --test-embeddings is not given."]
TestEmbeddings = Annotated[File, "Embeddings of the tests."]
ModelRecordings = Annotated[File, "The recordings of each model.  [each model of the trials is a recording]"]
Enrolled = Annotated[File, "Models that `duoplda enroll` wrote."]
TrialList = Annotated[File, "The trials, in the format of Kaldi, VoxCeleb, NIST, hyperion, Parquet or BOSARIS."]
ScoresOut = Annotated[File, "The scores to write: Kaldi's text, .tsv, .csv, .parquet, .h5 or .npz.  [standard output]"]
TestIds = Annotated[str | None, "The same as --ids, for --test-embeddings."]
TopModels = Annotated[int | None, Option("Give the TOP highest-scoring models of each test recording.", min=1)]
Matrix = Annotated[bool, "Score all models against all test recordings."]
Cosine = Annotated[bool, "Give cosines of mean vectors instead of likelihood ratios."]
Raw = Annotated[bool, "Do not apply the calibration of the model."]
Log10 = Annotated[bool, "Scores are log10 ratios, as forensic science writes them, not natural logarithms."]
CohortFile = Annotated[File, "Normalise scores with these embeddings, or with a file of `duoplda enroll`."]
CohortIds = Annotated[str | None, "The same as --ids, for --cohort."]
CohortSessions = Annotated[File, "The session of each recording of the cohort.  [as in --sessions]"]
CohortSpeakers = Annotated[File, "The speakers of cohort and trials (utt2spk), none of whom may be in both."]
Normalize = Annotated[Literal["z", "t", "s", "as1", "as2"] | None, "How scores are normalised with --cohort.  [as1]"]
CohortTop = Annotated[int | None, Option("How many members of the cohort a side selects in as1 and as2.  [300]", min=2)]

# -- voices and identify

# A registry is a text, not a path: a path would make one slash of the two in `postgresql://`.
Registry = Annotated[
    PathLike,
    Option("Known voices: a SQLite file, or the URL of a PostgreSQL database (postgresql+psycopg://...).", read=str),
]
Action = Annotated[
    Literal["add", "list", "show", "remove", "merge", "rename", "migrate", "snapshot", "export", "import"],
    Option("What to do.", argument=True),
]
VoiceNames = Annotated[
    Sequence[str],
    Option(
        "The voice to add to, show, remove or rename; rename also takes the new name, and merge takes two voices.",
        argument=True,
    ),
]
EnrollingModel = Annotated[File, "The model that enrolls; for migrate, the new one."]
VoiceEmbeddings = Annotated[File, "Embeddings of the recordings to add."]
VoiceList = Annotated[File, "The recordings of each voice: lines `voice recording ...`, or a table."]
Keep = Annotated[
    Literal["statistics", "embeddings"] | None,
    "What a new registry keeps: statistics, or also embeddings, which `migrate` needs.  [statistics]",
]
Join = Annotated[bool, "Let recordings join a session that a voice has already; otherwise they are refused."]
SessionToRemove = Annotated[str | None, "Remove only this session of the voice."]
Search = Annotated[str | None, "List only the voices whose names contain this text."]
ExportOut = Annotated[File, "The file of all voices that export writes."]
ImportFile = Annotated[File, "The file that export wrote, for import."]
By = Annotated[str | None, "Who makes the change; the registry notes it."]

IdentifyEmbeddings = Annotated[File, "Embeddings of the recordings to identify."]
IdentifySessions = Annotated[
    File, "The session of each recording (utt2sess): those of one session are asked about together."
]
PriorOfKnown = Annotated[
    float, Option("The prior probability that it is one of the voices; each has an equal part of it.", min=0, max=1)
]
TopVoices = Annotated[int, Option("How many voices to name for each recording, the most probable first.", min=1)]
CostWrongName = Annotated[float, Option("The cost of answering a wrong name.", min=0)]
CostMissedName = Annotated[float, Option("The cost of answering `nobody` where it is a known voice.", min=0)]
CostUnsure = Annotated[float, Option("The cost of answering `unsure`.", min=0)]

# -- serve

ServiceExtractor = Annotated[File, "Also take audio: the network (ONNX) on whose embeddings the model was trained."]
Host = Annotated[str, "The address to listen on; other machines can reach every address but 127.0.0.1 and the like."]
Port = Annotated[int, Option("The port to listen on; 0 takes a free one.", min=0, max=65535)]
TokenFile = Annotated[
    File, "Who may do what: lines `NAME read|write TOKEN`; it is needed where other machines can reach the host."
]
AllowHost = Annotated[
    Sequence[str], "A host name that requests may be addressed to, such as that of a proxy; repeat the option for more."
]
AuditLog = Annotated[File, "A file to which is appended who did what to which voice, and when.  [standard error]"]
MaxBody = Annotated[int, Option("The largest size of a request, in megabytes.", min=1)]
MaxRows = Annotated[int, Option("The largest number of recordings in a request.", min=1)]
MaxRequests = Annotated[
    int, Option("The largest number of requests at a time; further ones are told to try again.", min=1)
]
Timeout = Annotated[int, Option("The longest time for a request to come in, and to be answered, in seconds.", min=1)]

# -- cluster, link and diarize

ClusterEmbeddings = Annotated[PathLike, "Embeddings of the recordings, all of which are clustered."]
ClustersOut = Annotated[PathLike, "The clusters to write: .tsv, .csv or .parquet, else Kaldi's utt2spk."]
ClusterSessions = Annotated[File, "The session of each recording (utt2sess); a session is of one speaker."]
ClusterLabels = Annotated[File, "One table with the columns id, session and channel, instead of the two lists."]
ClusterPrior = Annotated[
    float | None,
    "The probability that two sessions drawn at random are of one speaker; without it, it is learned.",
]
NumberOfSpeakers = Annotated[int | None, Option("The number of speakers, if it is known.", min=1)]
SpeakersOfFile = Annotated[int | None, Option("The number of speakers of each file, if it is known.", min=1)]
FewestSpeakers = Annotated[int | None, Option("The smallest number of speakers.", min=1)]
MostSpeakers = Annotated[int | None, Option("The largest number of speakers.", min=1)]
SpeakersKnown = Annotated[File, "Known speakers, from `duoplda enroll`: whoever is one of them gets that name."]
KnownVoices = Annotated[
    File, Option("A registry of known voices (`duoplda voices`), instead of --speakers-known.", read=str)
]
MustLink = Annotated[File, "Pairs of recordings of the same speaker, one pair in each line."]
CannotLink = Annotated[File, "Pairs of recordings of different speakers, one pair in each line."]
Weight = Annotated[float, "A factor on all log-likelihood ratios; below 1, they count for less against the prior."]
SegmentsAre = Annotated[
    Literal["sessions", "recordings"] | None,
    "What a segment is to the model: a session, or one of the recordings of a session.  [as in its training, if "
    "that is known, else sessions]",
]
Refine = Annotated[bool, "After the merges, move single sessions where that makes the clusters more probable."]
ClusterReport = Annotated[File, "An HTML page about the clusters to write."]
Merges = Annotated[File, "The tree of merges to write: .tsv, .csv or .parquet."]
CannotLinkWithin = Annotated[bool, "Never take two speakers of one file for the same person."]

LinkEmbeddings = Annotated[PathLike, "Embeddings of the segments, or of the recordings of --local."]
LinkedOut = Annotated[PathLike, "Turns to write (.rttm), or a list of recordings: .tsv, .csv, .parquet, else utt2spk."]
TurnFiles = Annotated[Sequence[PathLike], "The turns of one or several files (RTTM); repeat the option for more."]
LinkSegments = Annotated[File, "The segments of files: lines `segment file start end`; --rttm needs them."]
LocalSpeakers = Annotated[File, "The local speaker of each recording (utt2spk), instead of --rttm."]
SessionsOfSpeaker = Annotated[File, "The session of each recording (utt2sess); names count within a speaker."]
LinkDiscount = Annotated[float, "How much each segment counts; give less than 1 if segments overlap."]

AnyModel = Annotated[PathLike, "The model: a file of `duoplda train`, or the PLDA of VBx, pyannote, Kaldi and others."]
TurnsOut = Annotated[PathLike, "The turns of all files to write, as RTTM."]
SegmentEmbeddings = Annotated[File, "Embeddings of the segments (windows of the files)."]
Segments = Annotated[
    File,
    "The segments of files: lines `segment file start end`. Not needed where ids of embeddings are "
    "`file-start-end`; regions of speech (RTTM, .lab, `file start end`) may then be given.  [by the ids]",
]
Overlap = Annotated[File, "Regions where two people speak, which get a second speaker: RTTM, .lab, `file start end`."]
Transform = Annotated[File, "The file transform.h5 or xvec_transform.npz that belongs to the model."]
Start = Annotated[
    Literal["ratios", "vbx", "pyannote"],
    "How first labels are found: by exact likelihood ratios, or as VBx or pyannote does.",
]
Hmm = Annotated[bool, "Refine with a hidden Markov model; without it, refine as if segments had no order in time."]
RefineTurns = Annotated[bool, "Refine the first labels; without this, the first labels are the result."]
Fa = Annotated[float | None, "The factor on the evidence of each segment (Fa of VBx).  [by the file]"]
Fb = Annotated[float | None, "The factor on the cost of a speaker (Fb of VBx).  [by the model and the file]"]
Loop = Annotated[float | None, "The probability that the next segment is of the same speaker.  [by the file]"]
SegmentDiscount = Annotated[float | None, "How much each segment counts, at most 1.  [by how far segments overlap]"]
SegmentPrior = Annotated[float, "The probability that two segments of a file are of one speaker."]
Dimensions = Annotated[
    int | None, Option("The number of dimensions to use, those where speakers differ most.  [all]", min=1)
]
Link = Annotated[bool, "Find the same people in several files, and give them the same names."]
LinkPrior = Annotated[float, "The probability that two speakers of different files are one person."]
KnownPrior = Annotated[float, "The probability that a speaker is one of the known voices."]
Confidence = Annotated[File, "A table (.tsv, .csv, .parquet) to write: the probability of the speaker of each turn."]
TurnsReport = Annotated[File, "An HTML page to write: a timeline of each file, and the most doubtful turns."]

# -- embed

AnyExtractor = Annotated[PathLike, "The extractor of embeddings: an ONNX file with the metadata of sherpa-onnx."]
AudioFiles = Annotated[
    Sequence[PathLike], "Audio: a file, a folder of files, or a list wav.scp; repeat the option for more."
]
EmbeddingsOut = Annotated[PathLike, "The embeddings to write: .ark, .scp, .npz, .npy, .h5 or .parquet."]
LabelsOut = Annotated[File, "A table of labels to write: id, speaker, session, channel."]
QualityOut = Annotated[File, "A table of quality to write: seconds, speech, snr, clipping, bandwidth, loudness."]
SpeechOut = Annotated[File, "Where speech is, to write: RTTM (.rttm), or lines `file start end`."]
SegmentsOut = Annotated[File, "The windows to write, as segments for `duoplda diarize`."]
AudioSpeakers = Annotated[
    File,
    "The speaker of each recording (utt2spk), or a word, folders: files lie in folders of speakers; names: "
    "the names of files begin with the speaker, up to the first - or _.",
]
AudioSessions = Annotated[File, "The session of each recording (utt2sess).  [each file is one]"]
AudioParts = Annotated[File, "Embed these parts of files: lines `segment file start end`, or regions (RTTM, .lab)."]
Windows = Annotated[float | None, "Embed windows of this many seconds: where speech is, or inside of --segments."]
Hop = Annotated[float | None, "Seconds from one window to the next.  [0.25]"]
Copies = Annotated[
    Sequence[str] | None,
    Option(
        "Also embed copies of each recording, which are of its session: clean,noise,telephone,reverb,codec.",
        read=texts.words,
        metavar="KIND,...",
    ),
]
Noises = Annotated[File, "A folder of noises for copies.  [pink noise and babble that is made]"]
Silero = Annotated[File, "Silero's network (ONNX), to find speech.  [by energy]"]
AudioChannel = Annotated[int | None, Option("The channel of files with several, from 1 on.  [the mean of all]", min=1)]
Longest = Annotated[float, "The largest number of seconds of a recording that are embedded."]
ExtractorMetadata = Annotated[
    Mapping[str, str] | None,
    Option(
        "What the extractor's file does not say: framework=wespeaker,language=English,sample_rate=16000,"
        "output_dim=192,normalize_samples=1.",
        read=texts.pairs,
        must_be="names and texts, several with commas: framework=wespeaker,output_dim=192",
        metavar="NAME=TEXT,...",
    ),
]
CopySeed = Annotated[int, Option("The seed of the copies.", min=0)]

# -- evaluate, calibrate and report

ScoreFiles = Annotated[
    Sequence[PathLike], Option("A score file; repeat the option for further systems.", metavar="FILE")
]
TrialsWithTruth = Annotated[
    File, "Trials with their truth: lines `model test target|nontarget`, or another format of trials."
]
Priors = Annotated[
    Sequence[float], Option("The prior probability of a target; repeat the option for more.  [0.01]", metavar="PRIOR")
]
CostMiss = Annotated[float, "The cost of a miss."]
CostFalseAlarm = Annotated[float, "The cost of a false alarm."]
EerDefinition = Annotated[
    Literal["rocch", "interpolated", "nearest"],
    "Which definition of the EER is used; rocch is that on the convex hull.",
]
TestSpeakers = Annotated[File, "The speaker of each test recording (utt2spk); with it, values get intervals."]
Enrolment = Annotated[File, "The recordings of each model, by which the speaker of the model is known."]
Resamples = Annotated[int, Option("How often speakers are resampled for the intervals; 0 gives no intervals.", min=0)]
Compare = Annotated[
    tuple[str, str] | None,
    Option("Two systems, by their names in the table, whose differences are tested over speakers.", metavar="A B"),
]
Support = Annotated[bool, "Also print which ratios the trials support: bounds, devPAV, misleading evidence, ECE."]
Clusters = Annotated[File, "Clusters to evaluate instead of scores: recording and cluster (utt2spk), or RTTM."]
Reference = Annotated[File, "The truth about --clusters: recording and speaker (utt2spk), or RTTM."]
Collar = Annotated[float, Option("Seconds that are not scored on both sides of a boundary of the reference.", min=0)]
SkipOverlap = Annotated[bool, "Score turns only where no two people speak at the same time."]
Uem = Annotated[File, "Score turns in these regions only: lines `file channel start end`."]
Plot = Annotated[File, "A picture of the DET curves to write: .pdf, .png or .svg."]

LearntScores = Annotated[
    Sequence[PathLike], Option("Scores to learn from; repeat the option for a fusion.", metavar="FILE")
]
LearntTrials = Annotated[File, "The trials of --scores, with their truth."]
CalibrationMethod = Annotated[
    Literal["affine", "pav", "kde", "bootstrap", "fusion"] | None,
    "What is learnt.  [affine, or fusion of several --scores]",
]
CalibrationBounds = Annotated[
    Literal["none", "elub", "invariance"],
    "Keep ratios within what the trials support (`duoplda evaluate --support`).",
]
CalibratedOut = Annotated[File, "The calibration (.safetensors) or the calibrated scores to write."]
ScoresToCalibrate = Annotated[Sequence[PathLike], Option("Scores to calibrate instead of --scores.", metavar="FILE")]
LearntBefore = Annotated[File, Option("A calibration that was learnt before.", name="from")]
ModelToCalibrate = Annotated[File, "A model file in which to store the calibration."]
PriorOfCosts = Annotated[
    float, "The prior probability of a target at which costs matter most (affine, bootstrap, fusion)."
]
Ridge = Annotated[float | None, "The ridge penalty on the scales.  [0; with --quality 0.01]"]
SideInformation = Annotated[File, "Side information: a table with a row for each recording of both sides."]
LearntSpeakers = Annotated[File, "The speaker of each recording (utt2spk), for cross-validation and for bootstrap."]
LearntEnrolment = Annotated[File, "The recordings of each model, for --quality and --speakers."]
Symmetric = Annotated[bool | None, "Use the same coefficients for both sides.  [yes, if there is no --enroll]"]
HeldOut = Annotated[File, "A folder for cross-validated scores: affine.txt and quality.txt."]

ReportTrials = Annotated[
    PathLike, "Trials with their truth: lines `model test target|nontarget`, or another format of trials."
]
PageOut = Annotated[PathLike, "The page to write, e.g. report.html."]
ShownModel = Annotated[File, "The model, whose sizes and shares of variance are shown."]
ComparedEmbeddings = Annotated[File, "Embeddings of the trials, which are compared with the model's training data."]
Title = Annotated[str, "The title of the page."]
SliderPrior = Annotated[float, "The prior probability of a target at which the sliders start."]

# -- info, convert, case and demo

ModelToShow = Annotated[
    PathLike,
    Option("A model of `duoplda train`, enrolled speakers of `duoplda enroll`, or a registry.", argument=True),
]
MeasuredEmbeddings = Annotated[File, "Recordings, which are compared with the training data of the model."]
MeasuredSpeakers = Annotated[File, "The speaker of each recording; the limit is higher for few speakers."]
MeasuredQuality = Annotated[File, "Measures of recordings, which are compared with those of `duoplda train --quality`."]
ModelToConvert = Annotated[
    PathLike,
    Option("A model of Kaldi, VBx, pyannote, hyperion, wespeaker or duoplda.", argument=True, metavar="IN"),
]
ConvertedOut = Annotated[
    PathLike, Option("The file to write; a folder for vbx and pyannote.", argument=True, metavar="OUT")
]
Format = Annotated[  # those that can be written
    Literal["kaldi", "vbx", "pyannote", "hyperion", "duoplda"] | None, "The format of OUT.  [by its suffix]"
]
OneSession = Annotated[bool, "Write a model for comparisons inside one session."]
Text = Annotated[bool, "Write Kaldi's text format instead of the binary one."]
CaseFile = Annotated[PathLike, Option("The case file, such as case.toml.", argument=True, metavar="CASE")]
CaseOut = Annotated[File, "The folder for case.html and case.json; it is made where it is missing."]
NewCase = Annotated[bool, "Write a template of a case file, to be filled in, and end."]
DemoOut = Annotated[PathLike, "The folder to write."]
DemoAudio = Annotated[
    File, "Show it on this audio instead: a folder that holds a folder of recordings for each speaker."
]
DemoExtractor = Annotated[File, "The extractor of embeddings (ONNX) for --audio."]
DemoSpeakers = Annotated[File, "Who speaks in --audio: a list (utt2spk), folders, or names.  [folders]"]
