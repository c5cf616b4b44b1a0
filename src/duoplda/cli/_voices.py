"""What `duoplda enroll` and `duoplda score` share: options, how recordings are opened, how scores are written."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duoplda.cli._common import progress, usage
from duoplda.errors import DomainWarning, DuopldaError, printable

if TYPE_CHECKING:
    from duoplda.data import Recordings

Sessions = Annotated[Path | None, typer.Option(help="utt2sess; names must differ between speakers.")]
Channels = Annotated[Path | None, typer.Option(help="utt2channel; kinds not given are inferred.")]
Ids = Annotated[str | None, typer.Option(help="The ids of npy or npz rows: a list, or `rows` to number them.")]
Device = Annotated[str, typer.Option(help="cpu, or a device of torch such as cuda.")]
Dask = Annotated[str | None, typer.Option(help="Work on a cluster: a scheduler's address, or local.")]

NoDomainCheck = Annotated[
    bool, typer.Option("--no-domain-check", help="No warning where recordings are unlike the training data.")
]


def domain_check(skipped: bool) -> None:
    """Silence the warning until the command ends, if that is wanted."""
    if skipped:
        warnings.simplefilter("ignore", DomainWarning)


def check_files(
    out: Path | None, force: bool, embeddings: Iterable[Path | None], ids: Iterable[str | None], *lists: Path | None
) -> None:
    """Before any work is done: the output can be written, and is none of the files that the command reads."""
    from duoplda.io import check_output, source_files

    found = [file for path in embeddings if path and out and out.exists() for file in source_files(path)]
    check_output(out, force, inputs=[*found, *(i for i in ids if i != "rows"), *lists])


def labels_of(sessions: Path | None, channels: Path | None) -> dict[str, Any]:
    """Sessions and kinds of channels by recording."""
    from duoplda.io import read_map

    return {"session": read_map(sessions, "session"), "channel": read_map(channels, "channel")}


def reader(
    stack: ExitStack, what: str, device: str, dask: str | None
) -> tuple[Callable[[Path, str | None], Recordings], str | None]:
    """A function that opens embeddings, given their ids, and a device of torch, if there is one.

    Embeddings are read on this machine, or on a cluster that ends with the stack.
    """
    if dask is not None and device != "cpu":
        usage("--dask works on the processors of a cluster: leave out --device")
    from duoplda.io import embedding_shards, read_recordings

    show = stack.enter_context(progress(what))
    if dask is None:
        return lambda path, ids: read_recordings(path, ids=ids, show=show), None if device == "cpu" else device
    from duoplda.engines.dask import connect, recordings

    client = stack.enter_context(connect(dask))
    return lambda path, ids: recordings(embedding_shards(path, ids), client=client, show=show), None


def write_counted(scores: Any, out: Path | None, force: bool, counts: dict[str, int]) -> None:
    """Write a matrix, or parts of a list, and count the scores."""
    import numpy as np

    from duoplda.io import ScoreMatrix, write_scores

    def counted() -> Iterator[Any]:
        for part in scores:
            counts["scores"] += len(part)
            counts["tests"] += int(np.count_nonzero(np.bincount(part.test.codes)))
            yield part
        if not counts["scores"]:
            raise DuopldaError("there is nothing to score: no test recording has an embedding")

    if isinstance(scores, ScoreMatrix):
        counts |= {"scores": scores.score.size, "tests": len(scores.test_ids)}
    if out is not None:
        write_scores(out, scores if isinstance(scores, ScoreMatrix) else counted(), force=force)
        return
    for part in counted():
        for row in zip(part.enroll.values, part.test.values, part.score.tolist(), strict=True):
            print(*map(printable, row))
