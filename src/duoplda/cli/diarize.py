"""`duoplda diarize`: find who speaks when, from embeddings of windows of files, or from audio."""

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result_json

EXAMPLES = """\
duoplda diarize --model model.safetensors --audio meeting.wav --extractor campplus.onnx --out meeting.rttm
duoplda diarize --model model.safetensors --embeddings x.ark --segments x.seg --out x.rttm
duoplda diarize --model plda --transform transform.h5 --embeddings x.ark --segments x.seg --start vbx --out x.rttm
duoplda diarize --model model.safetensors --embeddings all.scp --segments segments --link --out all.rttm
duoplda diarize --model model.safetensors --embeddings x.ark --segments x.seg --speakers-known voices --out x.rttm"""


def diarize(run: Run) -> None:
    """Find who speaks when: assign segments of files to speakers, and join them to turns.

    First labels are found by exact likelihood ratios (or as in VBx or pyannote). From them VBx's HMM finds the speakers
    and their changes. The number of speakers may be wrong: give --speakers if you know it. If sessions were utterances
    in training, each segment is a session; if sessions were files, the segments of a speaker in one file are recordings
    of one session. Speakers are named after their file. With --link a speaker of several files has the same name in all
    of them. Speakers who are one of --speakers-known or --registry get that name.
    """
    counts = run("reading embeddings")
    if run.json:
        result_json({"out": str(run.given["out"]), **counts})
    else:
        whose = "linked across files" if run.given["link"] else "each of one file"
        known = f", {counts['known']:,} of them known" if run.given["speakers_known"] or run.given["registry"] else ""
        speakers_of = f"{len(counts['files']):,} files, {counts['speakers']:,} speakers ({whose}{known})"
        run.note(f"{speakers_of}, {counts['turns']:,} turns: {run.given['out']}")
