"""`duoplda voices`: show and change a registry of known voices."""

from duoplda.cli._commands import Run
from duoplda.cli._terminal import result, result_json
from duoplda.cli._words import change_line, registry_lines

EXAMPLES = """\
duoplda voices add --registry voices.db --model model.safetensors --embeddings x.npz --enroll enroll
duoplda voices add ann --registry voices.db --model model.safetensors --embeddings ann.npz --sessions utt2sess
duoplda voices add ann --registry voices.db --model model.safetensors --audio ann.wav --extractor campplus.onnx
duoplda voices list --registry voices.db --search ann
duoplda voices show ann --registry voices.db
duoplda voices remove ann --registry voices.db --session call-17
duoplda voices merge anne ann --registry voices.db
duoplda voices rename ann "Ann Smith" --registry voices.db
duoplda voices migrate --registry voices.db --model adapted.safetensors
duoplda voices snapshot --registry voices.db --model model.safetensors
duoplda voices export --registry voices.db --out all.safetensors
duoplda voices import --registry postgresql+psycopg://host/voices --model m --file all.safetensors"""


def voices(run: Run) -> None:
    """List the known voices of a registry, or change them: one SQLite file, or a PostgreSQL database.

    add makes the registry if there is none. What is removed is also erased from the file. Several programs may use a
    registry at the same time. With `--keep embeddings`, voices can later be enrolled anew with another model (migrate).
    With very many voices, programs start faster from a snapshot.
    """
    told = run("voices")["voices"]
    if run.json:
        result_json({"voices": told})
    elif run.given["action"] in ("list", "show"):
        result("\n".join(registry_lines(told)))
    else:
        run.note(change_line(run.given["action"], told))
