"""`duoplda enroll`: write a file of enrolled speakers, who can then be scored any number of times."""

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result_json

EXAMPLES = """duoplda enroll --model model.safetensors --embeddings eval.scp --enroll enroll --out voices.safetensors
duoplda enroll --model model.safetensors --audio recordings --extractor m.onnx --enroll enroll --out voices.safetensors
duoplda enroll --model model.safetensors --embeddings x.scp --enroll more --add-to voices.safetensors --out new
duoplda enroll --model model.safetensors --add-to voices.safetensors --remove anna --out fewer.safetensors"""


def enroll(run: Run) -> None:
    """Enroll speakers, or change a file of enrolled speakers.

    The file keeps a few numbers of each speaker, whatever the number of recordings. With --add-to, recordings of an
    enrolled speaker are added to these, and further recordings of a named session join it: the result is that of
    enrolling all of them at once. The file does not know which recordings it has: do not add one twice, as it would
    count as new evidence.
    """
    voices = run("enrolling")
    n_sessions = int(voices.counts.sum())
    if run.json:
        result_json({"out": str(run.given["out"]), "speakers": len(voices), "sessions": n_sessions})
    else:
        run.note(f"{len(voices):,} speakers with {n_sessions:,} sessions: {run.given['out']}")
