"""`duoplda embed`: from audio to embeddings, with their labels and quality."""

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result_json

EXAMPLES = """\
duoplda embed --extractor campplus.onnx --audio wav.scp --out x.ark
duoplda embed --extractor campplus.onnx --audio recordings --copies clean,noise,reverb --out x.npz --labels-out x.csv
duoplda embed --extractor campplus.onnx --audio meeting.wav --windows 1.5 --out x.ark --segments-out segments"""


def embed(run: Run) -> None:
    """Make embeddings of audio: of whole recordings, of segments, of windows where speech is, and of copies.

    Audio may have any format and rate that libsndfile reads. Recordings without speech get no embedding, and a note
    names them. Files that cannot be read are named at the end, with exit code 1; all others are in the output, and when
    the files are repaired, --resume --force embeds only these. The number of threads (OMP_NUM_THREADS) changes only the
    time. This needs: pip install 'duoplda[audio]'.
    """
    counts = run("embedding")
    if run.json:
        result_json({"out": str(run.given["out"]), **counts})
    else:
        of = f"{counts['embeddings']:,} embeddings of {counts['files']:,} files"
        speech = f"{counts['seconds_of_speech']:,.1f} s of speech (found by {counts['speech_by']})"
        run.note(f"{of}, {speech}: {run.given['out']}")
