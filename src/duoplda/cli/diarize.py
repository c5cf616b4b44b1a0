"""`duoplda diarize`: who speaks when, from embeddings of the windows of files to RTTM."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from duoplda.cli import _options as options
from duoplda.cli._options import File, option
from duoplda.cli._terminal import command_line, result_json, terminal, work_options

EXAMPLES = """\
duoplda diarize --model model.safetensors --audio meeting.wav --extractor campplus.onnx --out meeting.rttm
duoplda diarize --model model.safetensors --embeddings x.ark --segments x.seg --out x.rttm
duoplda diarize --model plda --transform transform.h5 --embeddings x.ark --segments x.seg --start vbx --out x.rttm
duoplda diarize --model model.safetensors --embeddings all.scp --segments segments --link --out all.rttm
duoplda diarize --model model.safetensors --embeddings x.ark --segments x.seg --speakers-known voices --out x.rttm"""

Start = StrEnum("Start", ["ratios", "vbx", "pyannote"])


def diarize(
    model: Annotated[
        Path, option("The model: a file of `duoplda train`, or the PLDA of VBx, pyannote, Kaldi and others.")
    ],
    out: Annotated[Path, option("The turns of all files to write, as RTTM.")],
    embeddings: Annotated[File, option("Embeddings of the segments.")] = None,
    audio: Annotated[
        list[Path] | None, option("Audio instead of embeddings: a file, a folder, or a wav.scp; repeat it for more.")
    ] = None,
    extractor: Annotated[File, option("The extractor of embeddings (ONNX) that the model was trained on.")] = None,
    segments: Annotated[
        File,
        option(
            "The segments of files: lines `segment file start end`. Or regions of speech (RTTM, .lab, `file start "
            "end`), where ids are `file-start-end`.  [by the ids]"
        ),
    ] = None,
    overlap: Annotated[
        File, option("Regions where two people speak (RTTM, .lab, `file start end`): they get a second speaker.")
    ] = None,
    transform: Annotated[File, option("The file transform.h5 or xvec_transform.npz that belongs to the model.")] = None,
    segments_are: options.SegmentsAre = None,
    start: Annotated[
        Start, option("How first labels are found: by exact likelihood ratios, or as VBx or pyannote does.")
    ] = Start.ratios,
    hmm: Annotated[
        bool, option("Refine with a hidden Markov model, in which segments follow each other in time.")
    ] = True,
    refine: Annotated[bool, option("Refine the first labels; without it they are the result.")] = True,
    Fa: Annotated[
        float | None, option("The factor on the evidence of each segment (Fa of VBx).  [by the file]", "--Fa")
    ] = None,
    Fb: Annotated[
        float | None,
        option("The factor on the cost of each speaker (Fb of VBx).  [by the model and the file]", "--Fb"),
    ] = None,
    loop: Annotated[
        float | None, option("The probability that the next segment is of the same speaker.  [by the file]")
    ] = None,
    discount: Annotated[float | None, option("How much each segment counts.  [by their overlap]")] = None,
    prior: Annotated[float, option("The probability that two segments of a file are of one speaker.")] = 0.25,
    speakers: Annotated[int | None, option("The number of speakers of each file.", min=1)] = None,
    min_speakers: Annotated[int | None, option("The smallest number of speakers of a file.", min=1)] = None,
    max_speakers: Annotated[int | None, option("The largest number of speakers of a file.", min=1)] = None,
    dimensions: Annotated[
        int | None, option("The number of dimensions to use, those where speakers differ most.  [all]", min=1)
    ] = None,
    link: Annotated[bool, option("Find the same people in several files.", "--link")] = False,
    link_prior: Annotated[float, option("The probability that two speakers of different files are one person.")] = 0.02,
    cannot_link_within: options.CannotLinkWithin = False,
    speakers_known: options.SpeakersKnown = None,
    registry: options.KnownVoices = None,
    known_prior: Annotated[
        float, option("The probability that a speaker is one of --speakers-known.", "--known-prior")
    ] = 0.5,
    confidence: Annotated[
        File, option("A table (.tsv, .csv, .parquet) to write: how sure the speaker of each turn is.")
    ] = None,
    report: Annotated[
        File, option("An HTML page to write: a timeline of each file, and the turns that are doubtful.")
    ] = None,
    ids: options.Ids = None,
    columns: options.Columns = None,
    allow_missing: options.AllowMissing = False,
    strict: options.Strict = False,
    domain_check: options.DomainCheck = True,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Find who speaks when: segments of files go to speakers, and become turns.

    First labels come from exact likelihood ratios (or as VBx or pyannote finds them), then the HMM of VBx finds
    speakers and changes. If sessions were utterances in training, segments are sessions: each counts as one of its own.
    If sessions were files, segments are recordings: those of a speaker in one file are of one session.
    Speakers are named after their file, or with --link alike in all files. Those of --speakers-known keep their names.
    """
    typed = work_options(locals())
    from duoplda.workflows import diarize as workflow

    with terminal("reading embeddings", quiet) as screen:
        counts = workflow.diarize(**typed, command=command_line(), note=screen.note, show=screen.show)
    if json:
        result_json({"out": str(out), **counts})
    else:
        whose = "linked across files" if link else "each of one file"
        known = f", {counts['known']:,} of them known" if speakers_known or registry else ""
        speakers_of = f"{len(counts['files']):,} files, {counts['speakers']:,} speakers ({whose}{known})"
        screen.note(f"{speakers_of}, {counts['turns']:,} turns: {out}")
