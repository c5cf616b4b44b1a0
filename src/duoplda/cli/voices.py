"""`duoplda voices`: who is in a registry of known voices, and changes of it."""

from enum import StrEnum
from typing import Annotated

import typer

from duoplda.cli import _options as options
from duoplda.cli._options import File, option
from duoplda.cli._terminal import terminal, work_options
from duoplda.cli._words import present_voices

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

Action = StrEnum(
    "Action", ["add", "list", "show", "remove", "merge", "rename", "migrate", "snapshot", "export", "import"]
)
Keep = StrEnum("Keep", ["statistics", "embeddings"])


def voices(
    action: Annotated[Action, typer.Argument(help="What to do.")],
    registry: options.Registry,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="The voice to add to, to show, to remove or to rename; of merge, the two voices."),
    ] = None,
    model: Annotated[File, option("The model that enrolls; of migrate, the new one.")] = None,
    embeddings: Annotated[File, option("Embeddings of the recordings to add.")] = None,
    audio: options.Audio = None,
    extractor: options.Extractor = None,
    enroll: Annotated[File, option("The recordings of each voice: lines `voice recording ...`, or a table.")] = None,
    sessions: Annotated[File, option("The session of each recording (utt2sess); names count within a voice.")] = None,
    channels: options.Channels = None,
    ids: options.Ids = None,
    columns: options.Columns = None,
    keep: Annotated[
        Keep | None, option("What a new registry keeps: statistics, or embeddings, too.  [statistics]")
    ] = None,
    join: Annotated[
        bool, option("Add recordings to sessions that a voice has already; else these are refused.", "--join")
    ] = False,
    session: Annotated[str | None, option("Remove this session alone.")] = None,
    search: Annotated[str | None, option("List the voices whose name has this in it.")] = None,
    out: Annotated[File, option("The file of all voices that export writes.")] = None,
    file: Annotated[File, option("The file that export wrote, for import.")] = None,
    by: Annotated[str | None, option("Who makes the change, which is noted.")] = None,
    allow_missing: options.AllowMissing = False,
    strict: options.Strict = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """List the known voices of a registry, or change them: one SQLite file, or a PostgreSQL database.

    add makes the registry where there is none. What is removed is gone from the file, too. Several programs may use a
    registry at a time. With `--keep embeddings`, voices can later be enrolled anew under another model (migrate). From
    a snapshot of very many voices programs start faster.
    """
    typed = work_options(locals())
    from duoplda.workflows import voices as workflow

    with terminal("voices", quiet) as screen:
        summary = workflow.voices(**typed, note=screen.note, show=screen.show)
    present_voices(summary["voices"], action.value, json, screen)
