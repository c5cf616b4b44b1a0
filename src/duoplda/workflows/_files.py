"""What workflows share: recordings are opened, outputs are checked, ids that are missing are refused or told."""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from duoplda.data import Recordings
from duoplda.errors import DomainWarning, MissingIds, OptionsError
from duoplda.io import LabelColumns, check_output, embedding_shards, read_map, read_recordings, source_files
from duoplda.model.parameters import Model
from duoplda.observer import Observer

PathLike = str | os.PathLike[str]
Note = Callable[[str], None]  # gets a message for people
Show = Callable[[int | None, str], None]  # gets how much is done, if that is known, and a message
Read = Callable[..., Recordings]  # of a path, ids and labels


def silent(*_: object) -> None:
    """A `note` or a `show` that does nothing."""


class Progress(Observer):
    """Shows how far a training or an adaptation is, and gives back what only the reading of recordings needed."""

    def __init__(self, show: Show, recordings: Recordings | None = None):
        self.show = show
        self.recordings = recordings

    def training_begins(self) -> None:
        if self.recordings is not None:
            self.recordings.forget()
        release_memory(1 << 20)  # EM has many matrices at once, and frees them

    def fold(self, done: int, folds: int) -> None:
        self.show(None, f"held-out speakers: fold {done} of {folds}")

    def search(self, step: int, cost: float) -> None:
        self.show(None, f"held-out trials: step {step}, cost {cost:.4f}")

    def iteration(self, iteration: int, log_likelihood: float, model: Model) -> bool:
        self.show(iteration, f"iteration {iteration}: log-likelihood {log_likelihood:.6g} nats")
        return False

    def stage(self, name: str) -> None:
        self.show(None, name)


# -- recordings


@contextmanager
def reader(
    device: str,
    dask: str | None,
    note: Note,
    show: Show,
    *,
    allow_missing: bool = False,
    hashed: bool | None = None,
    domain_check: bool = True,
) -> Iterator[tuple[Read, str | None]]:
    """Give the block a function that opens embeddings, and the device of torch that is to be used, if any.

    The function takes a path, ids and labels: a table, True (they are columns of the embeddings) or None. Embeddings
    are read on this machine, or on a cluster of Dask that is left at the end of the block. Without `domain_check`,
    recordings that are unlike the training data give no warning inside the block.
    """
    if dask is not None and device != "cpu":
        raise OptionsError("`dask` works on the processors of a cluster: leave out `device`")
    options: dict[str, Any] = {"allow_missing": allow_missing, "note": note, "show": show}
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        if not domain_check:
            warnings.simplefilter("ignore", DomainWarning)
        if dask is not None:
            from duoplda.engines.dask import connect, recordings

            client = stack.enter_context(connect(dask))

        def read(path: PathLike, ids: str | None = None, labels: LabelColumns | bool | None = None) -> Recordings:
            if dask is not None:
                return recordings(embedding_shards(path, ids), labels, client=client, **options)
            if isinstance(labels, bool):
                return read_recordings(path, ids=ids, own_labels=labels, hashed=hashed, **options)
            return read_recordings(path, labels, ids=ids, hashed=hashed, **options)

        yield read, None if device == "cpu" else device


def labels_by_id(sessions: PathLike | None, channels: PathLike | None) -> dict[str, Any]:
    """The session and the kind of channel of recordings, as the scoring of recordings takes them."""
    return {"session": read_map(sessions, "session"), "channel": read_map(channels, "channel")}


def segment_level(segments_are: str | None, chain: Any, note: Note) -> str:
    """What segments are to a model, "sessions" or "recordings"; unless given, as `sessions_are` of its training says.

    A model whose sessions were files in training knows how recordings of one file differ; to it, segments of a file are
    recordings. A model whose sessions were utterances has never seen two segments of one session.
    """
    if segments_are is not None:
        return segments_are
    kept = chain.provenance_.get("sessions_are")
    if kept is None and chain.plda_.session_loadings_.shape[1]:
        note("segments are taken for sessions; if sessions were whole files in training: --segments-are recordings")
    return "recordings" if kept == "files" else "sessions"


# -- outputs and inputs


def check_outputs(
    outputs: Sequence[PathLike | None], force: bool, embeddings: Iterable[PathLike | None], lists: Iterable[Any]
) -> None:
    """Before any work is done: each output can be written, and is none of the files that are read.

    Among `lists` may be the word "rows", which stands for ids that are the numbers of rows.
    """
    files = [path for path in lists if path != "rows"]
    for out in outputs:
        if out is not None:
            exists = Path(out).exists()  # else none of the embeddings can be meant, and a folder of them may be long
            sources = [file for path in embeddings if path is not None and exists for file in source_files(path)]
            check_output(out, force, inputs=[*sources, *files])


def file_hashes(paths: Iterable[PathLike | None]) -> dict[str, str]:
    """SHA-256 of each file, read in pieces; of which models and reports say that they were made."""
    hashes = {}
    for path in paths:
        if path is not None:
            with open(path, "rb") as file:
                hashes[os.fspath(path)] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def missing(what: str, ids: Iterable[Any], allow_missing: bool, note: Note) -> None:
    """Refuse ids that are not there (their number, the first ten), or say that they are left out."""
    names = [str(name) for name in ids]
    if not names:
        return
    shown = ", ".join(names[:10]) + ", ..." * (len(names) > 10)
    if not allow_missing:
        raise MissingIds(f"{len(names)} {what}: {shown} (`allow_missing` goes on without them)")
    note(f"{len(names)} {what}, left out: {shown}")


# -- memory


def release_memory(least: int = 1 << 22) -> None:
    """Give back memory that Arrow keeps for later, once the lists have been read.

    On Linux, from then on, freed blocks of at least `least` bytes go back to the system too: glibc would keep those of
    up to 32 MB, and the sums of a million recordings would take a gigabyte.
    """
    if pyarrow := sys.modules.get("pyarrow"):
        pyarrow.default_memory_pool().release_unused()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None)
            libc.mallopt(-3, least)  # M_MMAP_THRESHOLD
            libc.malloc_trim(0)
