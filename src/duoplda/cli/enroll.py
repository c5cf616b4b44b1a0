"""`duoplda enroll`: speakers in one file, enrolled once and scored as often as one likes."""

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result_json

EXAMPLES = """duoplda enroll --model model.safetensors --embeddings eval.scp --enroll enroll --out voices.safetensors
duoplda enroll --model model.safetensors --audio recordings --extractor m.onnx --enroll enroll --out voices.safetensors
duoplda enroll --model model.safetensors --embeddings x.scp --enroll more --add-to voices.safetensors --out new
duoplda enroll --model model.safetensors --add-to voices.safetensors --remove anna --out fewer.safetensors"""


def enroll(run: Run) -> None:
    """Enroll speakers, or change a file of enrolled speakers.

    A speaker is summed up by a few numbers, whatever the number of recordings. With --add-to, recordings of a known
    speaker are added to these, and further recordings of a named session join it: the result is what enrolling all of
    them at once would give. Recordings are not remembered: do not add one twice.
    """
    voices = run("enrolling")
    n_sessions = int(voices.counts.sum())
    if run.json:
        result_json({"out": str(run.given["out"]), "speakers": len(voices), "sessions": n_sessions})
    else:
        run.note(f"{len(voices):,} speakers with {n_sessions:,} sessions: {run.given['out']}")
