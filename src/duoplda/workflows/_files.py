"""What workflows share: they open recordings, check outputs, and refuse or report ids that are missing."""

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
from duoplda.diarization.linking import level_of_segments
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

Read = Callable[..., Recordings]  # opens embeddings: takes a path, ids and labels
ById = Mapping[str, str]  # a label by the id of the recording
Columns = Mapping[str, str] | None  # what columns of tables are called, by their meanings: {"session": "call_id"}


def silent(*_: object) -> None:
    """A `note` or a `show` that does nothing."""


class Progress(Observer):
    """Shows how far a training or an adaptation is, and frees memory that only the reading of recordings needed."""

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
    """Give the block a function that opens embeddings, and the device of torch to compute on, or None for the CPU.

    The function takes a path, ids, and labels: a table, True (they are columns of the embeddings) or None. If it also
    gets the model that the recordings are for, it warns of embeddings that another extractor made. Embeddings are read
    on this machine, or on a Dask cluster, which is left at the end of the block. Without `domain_check`, there is no
    warning inside the block of recordings that are unlike the training data.
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
                    shards[0].labels()  # warnings about labels are given here: those of a worker would be lost
                return recordings(shards, labels, client=client, **options)
            if isinstance(labels, bool):
                return read_recordings(path, ids=ids, columns=columns, own_labels=labels, hashed=hashed, **options)
            return read_recordings(path, labels, ids=ids, columns=columns, hashed=hashed, **options)

        yield read, None if device == "cpu" else device


def warn_of_extractor(path: PathLike, model: Backend) -> None:
    """Warn if the embeddings and those of the training name different extractors."""
    trained = ExtractorName.parsed(json.dumps(model.provenance_.get("extractor")))
    made_by = read_extractor(path)
    if trained is not None and made_by is not None and trained.sha256 != made_by.sha256:
        mine, theirs = (f"{one.name} (sha256 {one.sha256[:12]}...)" for one in (trained, made_by))
        message = f"{os.fspath(path)}: was made by {theirs}, and the model was trained on embeddings of {mine}"
        warnings.warn(
            f"{message}: scores mean nothing; make embeddings by the same extractor", UserWarning, stacklevel=3
        )


def only(ids: Iterable[str]) -> LabelColumns:
    """A table of labels that makes a reader take the recordings with these ids, and no others."""
    names = np.array([*ids], str)
    return LabelColumns(names, None, names)


def labels_by_id(sessions: PathLike | None, channels: PathLike | None, columns: Columns) -> dict[str, Any]:
    """The session and the kind of channel of recordings, as keyword arguments of `estimators.scoring`."""
    return {"session": read_map(sessions, "session", columns), "channel": read_map(channels, "channel", columns)}


def segment_level(segments_are: str | None, chain: Any, note: Note) -> str:
    """Whether a model is to take segments as "sessions" or as "recordings"; unless given, the model decides."""
    if segments_are is not None:
        return segments_are
    if chain.provenance_.get("sessions_are") is None and chain.plda_.session_loadings_.shape[1]:
        note("segments are taken for sessions; if sessions were whole files in training: --segments-are recordings")
    return level_of_segments(chain)


def known_speakers(
    chain: Backend, enrolled: PathLike | None, registry: PathLike | None, device: str | None = None
) -> Sides | None:
    """The known speakers, from a file that `enroll` wrote or from a registry of voices; None if neither is given."""
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
    """Refuse outputs that cannot be written, or that are files to be read, before any work is done.

    Among `lists` may be the word "rows" in the place of a file of ids: the ids are then the numbers of rows.
    """
    files = [path for path in lists if path != "rows"]
    for out in outputs:
        if out is not None:
            exists = Path(out).exists()  # only then can it be one of the embeddings, whose listing may take long
            sources = [file for path in embeddings if path is not None and exists for file in source_files(path)]
            check_output(out, force, inputs=[*sources, *files])


def held_lists(*paths: PathLike | None) -> tuple[Any, ...]:
    """Lists that a workflow reads more than once, or reads and hashes: what comes through a pipe is kept in memory."""
    return tuple(path if path in (None, "rows") else held(path) for path in paths)


def file_hashes(paths: Iterable[PathLike | None]) -> dict[str, str]:
    """The SHA-256 of each file, as `sha256sum` prints it; models and reports record which files they were made from.

    A folder or a pattern of shards has none; the hash of a list through a pipe is that of the bytes that came.
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
        """Refuse recordings without embeddings, or report that they are left out.

        Where all of them are missing, the columns of `listed` may be the wrong way round, which is then the error.
        """
        absent = [str(name) for name in names]
        if listed is not None and len(absent) == len(listed.recordings.names):
            self.refuse_swapped(listed)
        known_ids = () if self.allow_missing else self.all_ids()
        missing(what, absent, self.allow_missing, self.note, ("the embeddings have", known_ids))

    def all_ids(self) -> NDArray[Any]:
        """All ids; each call reads them anew."""
        return read_embeddings(self.path, self.ids, columns=self.columns).ids()

    def without_session(self, recordings: Iterable[str], session: ById | None, strict: bool) -> set[str]:
        """The recordings that have an embedding, and no session in the list of sessions: they are left out."""
        lack = [] if session is None else sorted(name for name in {*recordings} if name not in session)
        lack = [*map(str, np.intersect1d(lack, self.all_ids()))] if lack else []
        unlabelled("recordings have no session", len(lack), lack, strict, self.note)
        return {*lack}

    def labelled(self, pairs: tuple[Coded, Coded], session: ById | None, strict: bool) -> tuple[Coded, Coded]:
        """Pairs of a model and a recording, without those whose recordings have no session."""
        model, recording = pairs
        lack = self.without_session(recording.values.tolist(), session, strict)
        keep = np.array([name not in lack for name in recording.names.tolist()], bool)[recording.codes]
        return model[keep], recording[keep]

    def refuse_swapped(self, listed: Listed) -> None:
        """Refuse a list whose first column has the recordings, as in utt2spk, where the second one should."""
        if 2 * np.isin(listed.models.names, self.all_ids()).sum() > len(listed.models.names):
            cause = "lines look like `recording speaker`, and `model recording` is expected"
            remedy = f"if the columns are the wrong way round, say `columns` {listed.swapped}"
            raise MissingIds(f"{os.fspath(listed.path)}: {cause}; {remedy}")


class Listed(NamedTuple):
    """The two columns of ids of an enrolment or of trials."""

    path: PathLike
    models: Coded
    recordings: Coded
    swapped: str  # the option `columns` for a file with the two columns in the other order

    @classmethod
    def enrolment(cls, path: PathLike, columns: Columns) -> Listed:
        """Read an enrolment: models and their recordings."""
        enrollment = read_enrollment(path, columns=columns)
        return cls(path, enrollment.model, enrollment.recording, "model=2,recording=1")


# -- memory


def release_memory(least: int = 1 << 22) -> None:
    """Return to the system the memory that Arrow keeps for later, once the lists have been read.

    On Linux, freed blocks of at least `least` bytes also go back to the system from then on: glibc would keep those of
    up to 32 MB, and the sums of a million recordings would take a gigabyte.
    """
    if pyarrow := sys.modules.get("pyarrow"):
        pyarrow.default_memory_pool().release_unused()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None)
            libc.mallopt(-3, least)  # M_MMAP_THRESHOLD
            libc.malloc_trim(0)
