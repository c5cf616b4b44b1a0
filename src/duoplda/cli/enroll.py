"""`duoplda enroll`: speakers in one file, enrolled once and scored as often as one likes."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from duoplda.cli._common import AllowMissing, Force, Json, Quiet, missing, result_json, say, usage
from duoplda.cli._voices import Channels, Dask, Device, Ids, Sessions, check_files, labels_of, reader

EXAMPLES = """duoplda enroll --model model.safetensors --embeddings eval.scp --enroll enroll --out voices.safetensors
duoplda enroll --model model.safetensors --embeddings x.scp --enroll more --add-to voices.safetensors --out new
duoplda enroll --model model.safetensors --add-to voices.safetensors --remove anna --out fewer.safetensors"""


def enroll(
    model: Annotated[Path, typer.Option(help="A model that `duoplda train` wrote.")],
    out: Annotated[Path, typer.Option(help="The enrolled speakers, a safetensors file.")],
    embeddings: Annotated[Path | None, typer.Option(help="Embeddings of the recordings, among others.")] = None,
    enroll: Annotated[Path | None, typer.Option(help="Lines `speaker recording ...`, or a table.")] = None,
    sessions: Sessions = None,
    channels: Channels = None,
    ids: Ids = None,
    add_to: Annotated[Path | None, typer.Option(help="Start from the speakers of this file.")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="A speaker of --add-to to leave out; repeatable.")] = None,
    device: Device = "cpu",
    dask: Dask = None,
    allow_missing: AllowMissing = False,
    force: Force = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Enroll speakers, or change a file of enrolled speakers.

    A speaker is summed up by a few numbers, whatever the number of recordings. With --add-to, recordings of a known
    speaker are added to these, and further recordings of a named session join it: the result is what enrolling all of
    them at once would give. Recordings are not remembered: do not add one twice.
    """
    if (embeddings is None) != (enroll is None):
        usage("--embeddings and --enroll go together: vectors, and whose they are")
    if add_to is None and (remove or enroll is None):
        usage("give --embeddings and --enroll, or --add-to for a file that is to be changed")

    from duoplda.estimators.backend import Backend
    from duoplda.estimators.scoring import enroll_recordings
    from duoplda.io import read_enrollment

    check_files(out, force, [embeddings], [ids], model, enroll, sessions, channels, add_to)
    with ExitStack() as stack:
        read, place = reader(stack, "enrolling", device, dask)
        chain = Backend.load(model)
        voices = None if add_to is None else chain.load_sides(add_to, device=place)
        if voices is not None and remove:
            unknown = [name for name, row in zip(remove, voices.rows(remove), strict=True) if row < 0]
            missing("speakers to be removed are not enrolled", unknown, allow_missing)
            voices.remove([name for name in remove if name not in unknown])
        if embeddings is not None and enroll is not None:
            table = read_enrollment(enroll)
            labels = labels_of(sessions, channels)
            absent = partial(missing, "recordings of the enrolment have no embedding", allow=allow_missing)
            pairs = read(embeddings, ids), table.model, table.recording
            new = enroll_recordings(chain, *pairs, **labels, device=place, absent=absent)
            voices = new if voices is None else voices.add(new)
    assert voices is not None
    voices.save(out, force=force)
    counts = {"speakers": len(voices), "sessions": int(voices.counts.sum())}
    if json:
        result_json({"out": str(out), **counts})
    else:
        say(f"{counts['speakers']:,} speakers with {counts['sessions']:,} sessions: {out}")
