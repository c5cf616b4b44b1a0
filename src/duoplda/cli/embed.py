"""`duoplda embed`: from audio to embeddings, with their labels and quality."""

from pathlib import Path
from typing import Annotated, Any

from duoplda.cli import _options as options
from duoplda.cli import _parse as parse
from duoplda.cli._options import File, option
from duoplda.cli._terminal import result_json, terminal, work_options

EXAMPLES = """\
duoplda embed --extractor campplus.onnx --audio wav.scp --out x.ark
duoplda embed --extractor campplus.onnx --audio recordings --copies clean,noise,reverb --out x.npz --labels-out x.csv
duoplda embed --extractor campplus.onnx --audio meeting.wav --windows 1.5 --out x.ark --segments-out segments"""


def embed(
    extractor: Annotated[Path, option("The extractor of embeddings: an ONNX file with the metadata of sherpa-onnx.")],
    audio: Annotated[
        list[Path], option("Audio: a file, a folder of files, or a list wav.scp; repeat the option for more.")
    ],
    out: Annotated[Path, option("The embeddings to write: .ark, .scp, .npz, .npy, .h5 or .parquet.")],
    labels_out: Annotated[File, option("A table of labels to write: id, speaker, session, channel.")] = None,
    quality_out: Annotated[
        File, option("A table of quality to write: seconds, speech, snr, clipping, bandwidth, loudness.")
    ] = None,
    speech_out: Annotated[File, option("Where speech is, to write: RTTM (.rttm), or lines `file start end`.")] = None,
    segments_out: Annotated[File, option("The windows to write, as segments for `duoplda diarize`.")] = None,
    speakers: Annotated[
        File,
        option(
            "The speaker of each recording (utt2spk), or a word, folders: files lie in folders of speakers; names: "
            "the names of files begin with the speaker, up to the first - or _."
        ),
    ] = None,
    sessions: Annotated[File, option("The session of each recording (utt2sess).  [each file is one]")] = None,
    segments: Annotated[
        File, option("Embed these parts of files: lines `segment file start end`, or regions (RTTM, .lab).")
    ] = None,
    windows: Annotated[
        float | None, option("Embed windows of so many seconds: where speech is, or inside of --segments.")
    ] = None,
    hop: Annotated[float | None, option("Seconds from one window to the next.  [0.25]")] = None,
    copies: Annotated[
        Any,
        option(
            "Embed copies of each recording, too, which are of its session: clean,noise,telephone,reverb,codec.",
            parser=parse.words,
            metavar="KIND,...",
        ),
    ] = None,
    noises: Annotated[File, option("A folder of noises for copies.  [pink noise and babble that is made]")] = None,
    silero: Annotated[File, option("Silero's network (ONNX), to find speech.  [by energy]")] = None,
    channel: Annotated[
        int | None, option("The channel of files with several, from 1 on.  [the mean of all]", min=1)
    ] = None,
    longest: Annotated[float, option("Seconds of a recording that are embedded at most.")] = 300.0,
    metadata: Annotated[
        Any,
        option(
            "What the extractor's file does not say: framework=wespeaker,language=English,sample_rate=16000,"
            "output_dim=192,normalize_samples=1.",
            parser=parse.metadata,
            metavar="NAME=TEXT,...",
        ),
    ] = None,
    seed: Annotated[int, option("The seed of the copies.", min=0)] = 0,
    resume: options.Resume = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Make embeddings of audio: of whole recordings, of segments, of windows where speech is, and of copies.

    Any format and rate that libsndfile reads is taken. Recordings without speech get no embedding, and are named. Files
    that cannot be read are named at the end, with exit code 1; all others are in the output, and once they are mended,
    --resume --force embeds them alone. The number of threads (OMP_NUM_THREADS) changes nothing but the time. This
    needs: pip install 'duoplda[audio]'.
    """
    typed = work_options(locals())
    from duoplda.workflows import embed as workflow

    with terminal("embedding", quiet) as screen:
        counts = workflow.embed(**typed, note=screen.note, show=screen.show)
    if json:
        result_json({"out": str(out), **counts})
    else:
        of = f"{counts['embeddings']:,} embeddings of {counts['files']:,} files"
        speech = f"{counts['seconds_of_speech']:,.1f} s of speech (found by {counts['speech_by']})"
        screen.note(f"{of}, {speech}: {out}")
