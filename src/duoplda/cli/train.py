"""`duoplda train`: from embeddings and labels to a model."""

from __future__ import annotations

import ctypes
import hashlib
import json as json_
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duoplda.cli._common import (
    AllowMissing,
    Force,
    Json,
    Quiet,
    command_line,
    files_hash,
    missing,
    progress,
    refuse_existing,
    result_json,
    say,
    usage,
)
from duoplda.errors import DuopldaError

if TYPE_CHECKING:
    from duoplda.data.labels import Labels
    from duoplda.io import Embeddings
    from duoplda.io import Labels as Table
    from duoplda.model.parameters import Model

EXAMPLE = """\b
Example:
  duoplda train --embeddings xvectors.scp --speakers utt2spk --sessions utt2sess --out model.safetensors
  duoplda train --embeddings x.parquet --labels table.csv --lda 150 --out model.safetensors --resume
  duoplda train --embeddings shards/ --labels shards/ --dask tcp://scheduler:8786 --out model.safetensors
"""
RESUME = "duoplda-resume"
ROWS = 4096  # of a chunk: the same for all formats, so that they give the same model


def train(
    embeddings: Annotated[Path, typer.Option(help="Kaldi ark or scp, npz, npy, HDF5, Parquet; a folder or 'x.*.ark'.")],
    out: Annotated[Path, typer.Option(help="The model, a safetensors file.")],
    speakers: Annotated[Path | None, typer.Option(help="utt2spk or spk2utt.")] = None,
    sessions: Annotated[Path | None, typer.Option(help="utt2sess: the session of each recording.")] = None,
    channels: Annotated[Path | None, typer.Option(help="utt2channel: the kind of channel of each recording.")] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Or one table: id, speaker, session, channel; EMBEDDINGS again: its own columns."),
    ] = None,
    ids: Annotated[str | None, typer.Option(help="Of the rows of npy and npz: a list, or `rows` to number.")] = None,
    speaker_factors: Annotated[str, typer.Option(help="A number, full, or auto (by held-out speakers).")] = "full",
    session_factors: Annotated[str, typer.Option(help="A number, full, or auto; 0: none.")] = "full",
    shrinkage: Annotated[str, typer.Option(help="none, auto, a, or a,b,c: speaker, session, noise.")] = "auto",
    lda: Annotated[int | None, typer.Option(min=1, help="Dimensions to keep; without it, all.")] = None,
    whiten: Annotated[bool, typer.Option(help="Make the total covariance the identity.")] = True,
    no_length_norm: Annotated[bool, typer.Option("--no-length-norm", help="Keep the lengths as they are.")] = False,
    center_by_channel: Annotated[bool, typer.Option("--center-by-channel", help="A mean for each kind.")] = False,
    tol: Annotated[float, typer.Option(min=0, help="EM stops at a smaller gain, in nats per recording.")] = 1e-6,
    max_iter: Annotated[int, typer.Option(min=0, help="The most iterations of EM.")] = 500,
    seed: Annotated[int, typer.Option(help="Of the folds of held-out speakers.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, or a device of torch such as cuda.")] = "cpu",
    dask: Annotated[str | None, typer.Option(help="Read on a cluster: a scheduler's address, or local.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from OUT.resume after an interruption.")] = False,
    allow_missing: AllowMissing = False,
    force: Force = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train a model; read embeddings in chunks, write the model whole or not at all."""
    if (speakers is None) == (labels is None):
        usage("give either --speakers (with --sessions) or --labels")
    if labels is not None and (sessions is not None or channels is not None):
        usage("--labels has the sessions and channels: leave out --sessions and --channels")
    if dask is not None and device != "cpu":
        usage("--dask reads on the workers' processors: leave out --device")
    options: dict[str, Any] = {
        "lda": lda,
        "whiten": whiten,
        "length_norm": not no_length_norm,
        "center_by_channel": center_by_channel,
        "n_speaker_factors": _factors("--speaker-factors", speaker_factors),
        "n_session_factors": _factors("--session-factors", session_factors),
        "shrinkage": _shrinkage(shrinkage),
        "tol": tol,
        "max_iter": max_iter,
        "random_state": seed,
    }
    refuse_existing(out, force)

    from duoplda.estimators.backend import Backend
    from duoplda.io import embedding_shards, read_embeddings, read_labels

    source = read_embeddings(embeddings, ids=ids)
    own = labels is not None and labels == embeddings  # labels are columns of the embeddings
    shards = embedding_shards(embeddings, ids=ids) if own or dask is not None else []
    if not own:
        table = read_labels(speakers if speakers is not None else labels, sessions, channels)  # type: ignore[arg-type]
    elif dask is None:
        table = _own_labels(shards)
    else:
        table = None
    if table is not None and table.session is None:
        say("no sessions given: each recording is taken for a session of its own")
    listed = None if ids == "rows" else ids
    lists = [listed, speakers, sessions, channels, None if own else labels]
    files = _embedding_files(embeddings)
    inputs = {**(files_hash(files) if dask is None else _files_seen(files)), **files_hash(lists)}
    checkpoint = Checkpoint(Path(f"{out}.resume"), options, list(inputs.values()))
    start, trace = checkpoint.read() if resume else (None, [])
    backend = Backend(**options)
    try:
        with progress("training") as show:
            if dask is None:
                data = Rows(source, table, allow_missing)  # type: ignore[arg-type]
                data.show = show
                del table
                _give_back()
                backend.set_params(callback=Watch(data.n, trace, checkpoint, show))
                backend.fit_chunks(data.chunks, data.labels, start=start, trace=trace, device=device)
            else:
                from duoplda.cli._cluster import dask_client
                from duoplda.engines.dask import Cluster

                with dask_client(dask) as client:
                    there = Cluster.of_shards(shards, table, client, show)
                    n = sum(found.n for found in there.found)
                    if table is not None:
                        missing("labelled recordings have no embedding", there.missing(table), allow_missing)
                    backend.set_params(callback=Watch(n, trace, checkpoint, show))
                    backend.fit_passes(there, start=start, trace=trace)
    except BaseException:  # Ctrl-C above all: the last finished iteration is kept
        checkpoint.write()
        if checkpoint.written:
            say(f"to go on from {checkpoint.path}: the same command with --resume")
        raise
    backend.set_params(callback=None)
    backend.plda_.set_params(callback=None)
    backend.save(out, command=command_line(), inputs=inputs)
    checkpoint.path.unlink(missing_ok=True)
    summary = backend.summary()
    if json:
        result_json({"model": str(out), **summary})
    else:
        from duoplda.cli.info import words

        brief = {**summary, "provenance": {}}
        say("\n".join([*words(brief), f"model: {out}"]))


def _own_labels(shards: list[Any]) -> Table:
    """Labels that are columns of the embeddings themselves."""
    import numpy as np

    from duoplda.io import Labels

    parts = [shard.labels() for shard in shards]
    columns: dict[str, Any] = {}
    for name in ("ids", "speaker", "session", "channel"):
        values = [getattr(part, name) for part in parts]
        if any(v is None for v in values) and not all(v is None for v in values):
            raise DuopldaError(f"some of the files have a column of the {name} and some have none")
        columns[name] = None if values[0] is None else np.concatenate(values)
    return Labels(**columns)


class Rows:
    """The recordings that have labels, in the order of the embeddings; ids are looked up in the first pass.

    A million labels as strings are hundreds of megabytes: they are coded at once, and ids are given up when found.
    """

    def __init__(self, source: Embeddings, table: Table, allow_missing: bool):
        import numpy as np

        from duoplda.data import labels as lab

        self.source, self.allow_missing = source, allow_missing
        self.n = len(table)
        self.order: Any = np.argsort(table.ids, kind="stable").astype(np.int32)
        self.sorted_ids: Any = table.ids[self.order]
        self.columns = {}
        for name in ("speaker", "session", "channel"):
            values = getattr(table, name)
            if values is not None:
                names, codes = lab.codes(values, name)
                self.columns[name] = (names, codes.astype(np.int32))
        self.found: Any = None  # (N,) rows of the table, in the order of the embeddings
        self.used: Any = None  # (rows of the file,) which of them these are; None: all
        self.show: Any = lambda done=None, note="": None

    def _find(self, ids: Any) -> Any:
        """Rows of the table, -1 where an id is not there."""
        import numpy as np

        place = np.minimum(np.searchsorted(self.sorted_ids, ids), len(self.sorted_ids) - 1)
        return np.where(self.sorted_ids[place] == ids, self.order[place], -1)

    def chunks(self) -> Iterator[Any]:
        """One pass: chunks of exactly ROWS rows, whatever the format's own are."""
        import numpy as np

        first, rows, held, n, read = self.found is None, [], [], 0, 0
        for ids, X in self.source.chunks(ROWS):
            if first:
                rows.append(self._find(ids).astype(np.int32))
                keep = rows[-1] >= 0
            else:
                keep = None if self.used is None else self.used[read : read + len(ids)]
            read += len(ids)
            self.show(read, f"{read:,} vectors")
            X = X if keep is None or keep.all() else X[keep]
            if not len(X):
                continue
            held.append(X)
            n += len(X)
            while n >= ROWS:
                whole = held[0] if len(held) == 1 else np.concatenate(held)
                yield whole[:ROWS]
                held = [whole[ROWS:]]
                n -= ROWS
        if n:
            yield held[0] if len(held) == 1 else np.concatenate(held)
        if first:
            self._keep(rows)

    def _keep(self, parts: list[Any]) -> None:
        """What the first pass has found; missing ids come to light here."""
        import numpy as np

        rows = np.concatenate(parts) if parts else np.zeros(0, np.int32)
        used = rows >= 0
        self.found = rows[used]
        seen = np.zeros(self.n, bool)
        seen[self.found] = True
        missing("labelled recordings have no embedding", self.sorted_ids[~seen[self.order]], self.allow_missing)
        self.sorted_ids = self.order = None
        if not used.all():
            self.used = used
            say(f"{int((~used).sum()):,} embeddings have no label, and are not used")
        if not len(self.found):
            raise DuopldaError(f"{self.source.path}: none of its ids has a label")

    def labels(self) -> Labels:
        """Labels in the order of the embeddings; reads the ids first if no pass has been made."""
        import numpy as np

        from duoplda.data import labels as lab

        if self.found is None:
            self._keep([self._find(ids).astype(np.int32) for ids, _ in self.source.chunks(ROWS)])

        def column(name: str) -> tuple[Any, Any]:
            names, codes = self.columns[name]
            there, index = np.unique(codes[self.found], return_inverse=True)
            return names[there], index.reshape(-1)

        speaker_ids, speaker = column("speaker")
        session_ids, session = None, np.arange(len(self.found))
        if "session" in self.columns:
            names, own = column("session")
            pairs, session = np.unique(own * len(speaker_ids) + speaker, return_inverse=True)
            session_ids, whose = names[pairs // len(speaker_ids)], speaker_ids[pairs % len(speaker_ids)]
            session = session.reshape(-1)
            if len(pairs) > len(names):
                say("names of sessions repeat from speaker to speaker: each speaker's are taken for their own")
                session_ids = np.array([f"{s} {n}" for s, n in zip(whose, session_ids, strict=True)])
        kinds, kind = (lab.NO_KIND, np.zeros(len(self.found), np.int64))
        if "channel" in self.columns:
            kinds, kind = column("channel")
        self.columns = {}
        return lab.Labels(speaker_ids, session_ids, kinds, speaker, session, kind)


class Checkpoint:
    """The model of the last finished iteration, in OUT.resume; it belongs to data and options."""

    def __init__(self, path: Path, options: dict[str, Any], hashes: list[str]):
        what = {k: v for k, v in options.items() if k not in ("tol", "max_iter")}
        self.key = hashlib.sha256(json_.dumps([what, hashes], sort_keys=True).encode()).hexdigest()
        self.path = path
        self.next, self.written = 0.0, False
        self.last: tuple[Model, list[float]] | None = None

    def offer(self, model: Model, trace: list[float]) -> None:
        """Called after each iteration: written so often that it takes a twentieth of the time at most."""
        self.last = (model, trace)
        if time.monotonic() >= self.next:
            begin = time.monotonic()
            self.write()
            self.next = time.monotonic() + 20 * (time.monotonic() - begin)

    def write(self) -> None:
        if self.last is None:
            return
        import numpy as np

        from duoplda.arrays import to_numpy
        from duoplda.io import container as modelfile

        model, trace = self.last
        arrays = {name: to_numpy(getattr(model, name)) for name in ("mu", "V", "U", "W")}
        header = {"format": RESUME, "key": self.key, "kinds": model.kinds.tolist()}
        modelfile.write(self.path, {**arrays, "trace": np.array(trace)}, header)
        self.last, self.written = None, True

    def read(self) -> tuple[Model | None, list[float]]:
        """The model to go on from, and the log-likelihoods so far; (None, []) where there is none."""
        import numpy as np

        from duoplda.estimators.files import read_parts
        from duoplda.model.parameters import checked

        if not self.path.exists():
            say(f"{self.path} is not there: training starts from the beginning")
            return None, []
        arrays, header = read_parts(self.path, (RESUME,))
        if header.get("key") != self.key:
            raise DuopldaError(
                f"{self.path} is of a training with other data or options: repeat those, or remove it and train anew"
            )
        try:
            model = checked(arrays["mu"], arrays["V"], arrays["U"], arrays["W"], np.array(header["kinds"]))
            trace = arrays["trace"].tolist()
        except (KeyError, TypeError, ValueError) as error:
            raise DuopldaError(f"{self.path} is damaged ({error}): remove it and train anew") from None
        say(f"going on after iteration {len(trace) - 1}")
        return model, trace


class Watch:
    """The callback of EM: it shows the likelihood and offers the model to the checkpoint."""

    def __init__(self, n: int, trace: list[float], checkpoint: Checkpoint, show: Any):
        self.n, self.checkpoint, self.show = n, checkpoint, show
        self.trace = list(trace) or [float("nan")]  # that of the start is not told

    def held_out(self, done: int, folds: int) -> None:
        """After each fold of held-out speakers."""
        self.show(None, f"held-out speakers: fold {done} of {folds}")

    def __call__(self, iteration: int, log_likelihood: float, model: Model) -> None:
        self.trace.append(log_likelihood)
        done = len(self.trace) - 1
        self.show(done, f"iteration {done}: {log_likelihood / self.n:.5f} nats per recording")
        self.checkpoint.offer(model, self.trace)


def _give_back() -> None:
    """Memory that Arrow keeps for later: the lists have been read.

    On Linux, from now on, freed blocks of more than 4 MB go back to the system too; glibc would keep those up to 32 MB,
    and the sums of a million recordings would take a gigabyte.
    """
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is not None:
        pyarrow.default_memory_pool().release_unused()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(-3, 1 << 22)  # M_MMAP_THRESHOLD


def _factors(name: str, text: str) -> int | str | None:
    if text == "auto":
        return "auto"
    if text in ("full", "none"):
        return None
    if not text.isdecimal():
        usage(f"{name} {text!r} must be a number, full or auto")
    return int(text)


def _shrinkage(text: str) -> Any:
    if text in ("none", "auto"):
        return None if text == "none" else text
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) not in (1, 3, 4) or not all(0 <= a <= 1 for a in numbers):
        usage(f"--shrinkage {text!r} must be none, auto, or one or three numbers from 0 to 1: a,b,c")
    return numbers[0] if len(numbers) == 1 else numbers


def _embedding_files(path: Path) -> list[Path]:
    """The files, and the archives that an scp names."""
    from duoplda.io._files import files_of
    from duoplda.io.embeddings import SUFFIXES, sniff

    out: list[Path] = []
    for one in map(Path, files_of(path, SUFFIXES)):
        out.append(one)
        if sniff(one) == "scp":
            with open(one, encoding="utf-8") as file:
                entries = (line.split(None, 1) for line in file)
                archives = {parts[1].strip().rpartition(":")[0] for parts in entries if len(parts) == 2}
            out += [Path(a) for a in sorted(archives) if a and Path(a).is_file()]
    return out


def _files_seen(paths: list[Path]) -> dict[str, str]:
    """Size and time of each file: what a cluster is for is not read here to be hashed."""
    return {str(p): f"{p.stat().st_size} bytes, {p.stat().st_mtime_ns} ns" for p in paths}
