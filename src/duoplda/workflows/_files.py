"""What workflows share: recordings are opened, outputs are checked, ids that are missing are refused or told."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import on_device
from duoplda.data import Recordings
from duoplda.errors import DomainWarning, MissingIds
from duoplda.estimators.backend import Backend
from duoplda.io import (
    Coded,
    ExtractorName,
    LabelColumns,
    check_output,
    embedding_shards,
    read_embeddings,
    read_enrollment,
    read_extractor,
    read_map,
    read_recordings,
    source_files,
)
from duoplda.io.common import HeldText, file_sha256, held
from duoplda.io.recordings import missing, unlabelled
from duoplda.model.parameters import Model
from duoplda.observer import Observer
from duoplda.trials.sides import Sides
from duoplda.workflows.option import Note as Note
from duoplda.workflows.option import PathLike as PathLike
from duoplda.workflows.option import Show as Show
from duoplda.workflows.option import refuse

Read = Callable[..., Recordings]  # of a path, ids and labels
ById = Mapping[str, str]  # a label of recordings
Columns = Mapping[str, str] | None  # what columns of tables are called, by their meanings: {"session": "call_id"}


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
    columns: Columns = None,
    allow_missing: bool | None = False,
    strict: bool = False,
    hashed: bool | None = None,
    domain_check: bool = True,
) -> Iterator[tuple[Read, str | None]]:
    """Give the block a function that opens embeddings, and the device of torch that is to be used, if any.

    The function takes a path, ids and labels: a table, True (they are columns of the embeddings) or None; and the model
    that the recordings are for, where there is one: it warns of embeddings that another extractor made. Embeddings are
    read on this machine, or on a cluster of Dask that is left at the end of the block. Without `domain_check`,
    recordings that are unlike the training data give no warning inside the block.
    """
    both = dask is not None and device != "cpu"
    refuse(both, "`dask` works on the processors of a cluster: leave out `device`")
    options: dict[str, Any] = {"allow_missing": allow_missing, "strict": strict, "note": note, "show": show}
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        if not domain_check:
            warnings.simplefilter("ignore", DomainWarning)
        if dask is not None:
            from duoplda.engines.dask import connect, recordings

            client = stack.enter_context(connect(dask))

        def read(
            path: PathLike,
            ids: str | None = None,
            labels: LabelColumns | bool | None = None,
            model: Backend | None = None,
        ) -> Recordings:
            if model is not None:
                warn_of_extractor(path, model)
            if dask is not None:
                shards = embedding_shards(path, ids, columns=columns)
                if labels is True:
                    shards[0].labels()  # for the warnings, which nobody would hear from a worker
                return recordings(shards, labels, client=client, **options)
            if isinstance(labels, bool):
                return read_recordings(path, ids=ids, columns=columns, own_labels=labels, hashed=hashed, **options)
            return read_recordings(path, labels, ids=ids, columns=columns, hashed=hashed, **options)

        yield read, None if device == "cpu" else device


def warn_of_extractor(path: PathLike, model: Backend) -> None:
    """Warn if embeddings say that another extractor made them than those that the model was trained on."""
    trained = ExtractorName.parsed(json.dumps(model.provenance_.get("extractor")))
    made_by = read_extractor(path)
    if trained is not None and made_by is not None and trained.sha256 != made_by.sha256:
        mine, theirs = (f"{one.name} (sha256 {one.sha256[:12]}...)" for one in (trained, made_by))
        message = f"{os.fspath(path)}: was made by {theirs}, and the model was trained on embeddings of {mine}"
        warnings.warn(f"{message}: scores mean nothing; make them by the same extractor", UserWarning, stacklevel=3)


def only(ids: Iterable[str]) -> LabelColumns:
    """A table by which recordings with these ids are read, and no others."""
    names = np.array([*ids], str)
    return LabelColumns(names, None, names)


def labels_by_id(sessions: PathLike | None, channels: PathLike | None, columns: Columns) -> dict[str, Any]:
    """The session and the kind of channel of recordings, as the scoring of recordings takes them."""
    return {"session": read_map(sessions, "session", columns), "channel": read_map(channels, "channel", columns)}


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


def known_speakers(
    chain: Backend, enrolled: PathLike | None, registry: PathLike | None, device: str | None = None
) -> Sides | None:
    """Speakers who are known, of a file that `enroll` wrote or of a registry of voices; None: nobody is."""
    both = enrolled is not None and registry is not None
    refuse(both, "known speakers come from `speakers_known` or from `registry`: give one of them")
    if registry is None:
        return None if enrolled is None else chain.load_sides(enrolled, device=device)
    from duoplda.voices import Registry

    with Registry.open(registry, chain) as voices:
        return voices.sides().moved_to(chain.ratio_model_.like(on_device(np.zeros(1), device)))


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


def held_lists(*paths: PathLike | None) -> tuple[Any, ...]:
    """Lists that a workflow reads more than once, or reads and hashes, each of which may come through a pipe."""
    return tuple(path if path in (None, "rows") else held(path) for path in paths)


def file_hashes(paths: Iterable[PathLike | None]) -> dict[str, str]:
    """SHA-256 of the bytes of each file, as `sha256sum` prints it; models and reports say of what they were made.

    What is no file (a folder or a pattern of shards) has none; of a list through a pipe, they are the bytes that came.
    """
    hashes = {}
    for path in paths:
        if isinstance(path, HeldText):
            hashes[path.name] = path.sha256
        elif path is not None and Path(path).is_file():
            hashes[os.fspath(path)] = file_sha256(path)
    return hashes


@dataclass(frozen=True)
class EmbeddedIds:
    """The ids of embeddings, for messages on recordings of lists that have none."""

    path: PathLike
    ids: str | None
    columns: Columns
    allow_missing: bool
    note: Note

    def missing(self, what: str, names: Iterable[object], listed: Listed | None = None) -> None:
        """Refuse recordings without embeddings, or say that they are left out; `listed` may be the wrong way round."""
        absent = [str(name) for name in names]
        if listed is not None and len(absent) == len(listed.recordings.names):
            self.refuse_swapped(listed)
        known_ids = () if self.allow_missing else self.all_ids()
        missing(what, absent, self.allow_missing, self.note, ("the embeddings have", known_ids))

    def all_ids(self) -> NDArray[Any]:
        """All ids; they are read anew, as this is for messages alone."""
        return read_embeddings(self.path, self.ids, columns=self.columns).ids()

    def without_session(self, recordings: Iterable[str], session: ById | None, strict: bool) -> set[str]:
        """The recordings that have an embedding and no session, if a list says which; they are to be left out."""
        lack = [] if session is None else sorted(name for name in {*recordings} if name not in session)
        lack = [*map(str, np.intersect1d(lack, self.all_ids()))] if lack else []
        unlabelled("recordings have no session", len(lack), lack, strict, self.note)
        return {*lack}

    def labelled(self, pairs: tuple[Coded, Coded], session: ById | None, strict: bool) -> tuple[Coded, Coded]:
        """Pairs of a model and a recording, but for those whose recordings have no session."""
        model, recording = pairs
        lack = self.without_session(recording.values.tolist(), session, strict)
        keep = np.array([name not in lack for name in recording.names.tolist()], bool)[recording.codes]
        return model[keep], recording[keep]

    def refuse_swapped(self, listed: Listed) -> None:
        """Refuse a list whose second column should be recordings, where its first one is, as in utt2spk."""
        if 2 * np.isin(listed.models.names, self.all_ids()).sum() > len(listed.models.names):
            cause = "lines look like `recording speaker`, and `model recording` is expected"
            remedy = f"if the columns are the wrong way round, say `columns` {listed.swapped}"
            raise MissingIds(f"{os.fspath(listed.path)}: {cause}; {remedy}")


class Listed(NamedTuple):
    """The two columns of ids of an enrolment or of trials."""

    path: PathLike
    models: Coded
    recordings: Coded
    swapped: str  # what `columns` says where they are the wrong way round

    @classmethod
    def enrolment(cls, path: PathLike, columns: Columns) -> Listed:
        """Read whose recordings are whose."""
        enrollment = read_enrollment(path, columns=columns)
        return cls(path, enrollment.model, enrollment.recording, "model=2,recording=1")


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
