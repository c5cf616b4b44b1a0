"""`duoplda enroll`: speakers in one file, enrolled once and scored as often as one likes."""

from pathlib import Path
from typing import Annotated

from duoplda.cli import _options as options
from duoplda.cli._options import File, option
from duoplda.cli._terminal import result_json, terminal, work_options

EXAMPLES = """duoplda enroll --model model.safetensors --embeddings eval.scp --enroll enroll --out voices.safetensors
duoplda enroll --model model.safetensors --audio recordings --extractor m.onnx --enroll enroll --out voices.safetensors
duoplda enroll --model model.safetensors --embeddings x.scp --enroll more --add-to voices.safetensors --out new
duoplda enroll --model model.safetensors --add-to voices.safetensors --remove anna --out fewer.safetensors"""


def enroll(
    model: options.Model,
    out: Annotated[Path, option("The file of enrolled speakers to write, in safetensors format.")],
    embeddings: Annotated[
        File, option("Embeddings of the recordings that --enroll names; others are not used.")
    ] = None,
    audio: options.Audio = None,
    extractor: options.Extractor = None,
    enroll: Annotated[
        File, option("The recordings of each speaker: lines `speaker recording ...`, or a table.")
    ] = None,
    sessions: options.Sessions = None,
    channels: options.Channels = None,
    occasions: options.Occasions = None,
    ids: options.Ids = None,
    columns: options.Columns = None,
    add_to: Annotated[File, option("A file of enrolled speakers to start from.")] = None,
    remove: Annotated[
        list[str] | None, option("A speaker of --add-to to leave out; repeat the option for more.")
    ] = None,
    device: options.Device = "cpu",
    dask: options.Dask = None,
    allow_missing: options.AllowMissing = False,
    strict: options.Strict = False,
    force: options.Force = False,
    quiet: options.Quiet = False,
    json: options.Json = False,
) -> None:
    """Enroll speakers, or change a file of enrolled speakers.

    A speaker is summed up by a few numbers, whatever the number of recordings. With --add-to, recordings of a known
    speaker are added to these, and further recordings of a named session join it: the result is what enrolling all of
    them at once would give. Recordings are not remembered: do not add one twice.
    """
    typed = work_options(locals())
    from duoplda.workflows import enroll as workflow

    with terminal("enrolling", quiet) as screen:
        voices = workflow.enroll(**typed, note=screen.note, show=screen.show)
    n_sessions = int(voices.counts.sum())
    if json:
        result_json({"out": str(out), "speakers": len(voices), "sessions": n_sessions})
    else:
        screen.note(f"{len(voices):,} speakers with {n_sessions:,} sessions: {out}")
