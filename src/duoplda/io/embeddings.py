"""Embeddings in all formats that are supported: one reader and one writer, both in chunks."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from duoplda.errors import DuopldaError
from duoplda.io import ark, hdf5, npy, npz, parquet, scp
from duoplda.io._arrow import PARQUET
from duoplda.io._atomic import atomic_path, atomic_paths
from duoplda.io._files import files_of, joined
from duoplda.io._source import Part, Source, check_count
from duoplda.io.common import ROWS, Chunk, IdLog, PathLike, as_ids, bad, check_ids, content, magic, refuse_repeated
from duoplda.io.labels import LabelColumns
from duoplda.io.npy import Ids

HDF5 = (".h5", ".hdf5", ".hdf")
Opened = tuple[PathLike, str, Source]  # a file, what kind of file it is, and what reads it
SUFFIXES = (".ark", ".scp", ".npz", ".npy", *HDF5, *PARQUET)


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Embeddings in one or more files, read in chunks, as often as you like; one chunk is in memory at a time.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_embeddings(folder + "/x.npz", ["a", "b", "c"], np.eye(3))
    ...     found = read_embeddings(folder + "/x.npz")
    ...     print(found.format, found.dim, found.n, [len(ids) for ids, X in found.chunks(2)])
    npz 3 3 [2, 1]
    """

    path: Path  # the file; the folder or pattern where there are several
    format: str  # what it turned out to be
    dim: int  # d, the dimension of the vectors
    dtype: np.dtype  # their float type, as in the file
    n: int | None  # the number of vectors, or None where only reading the file would tell
    ids_are_rows: bool  # the file has no ids, and row numbers "0", "1", ... stand in for them
    rows: int  # the number of rows of a chunk, unless `chunks` is told another
    _source: Source = field(repr=False)

    def chunks(self, rows: int | None = None) -> Iterator[Chunk]:
        """Yield `(ids (k,) of str, X (k, d))` with k <= rows; a repeated id is an error at the end."""
        log = IdLog()
        n = 0
        for ids, X in self._source.read(self.rows if rows is None else rows):
            log.add(ids)
            n += len(ids)
            yield ids, X
        check_count(self.path, self.n, n)
        refuse_repeated(self.path, log, lambda: self._source.names(ROWS), self._source.entry)

    def vectors(self, rows: int | None = None) -> Iterator[np.ndarray]:
        """Yield the vectors of the same chunks, which may be read-only; ids are not looked at."""
        n = 0
        for X in self._source.bare(self.rows if rows is None else rows):
            n += len(X)
            yield X
        check_count(self.path, self.n, n)

    def __iter__(self) -> Iterator[Chunk]:
        return self.chunks()

    def load(self) -> Chunk:
        """Read all ids and vectors at once: `(ids (n,), X (n, d))`."""
        ids, parts = zip(*self.chunks(), strict=True)
        return np.concatenate(ids), np.concatenate(parts)

    def ids(self) -> np.ndarray:
        """Read all ids, (n,); vectors are read only where the format leaves no other way (a Kaldi archive)."""
        return self.check_ids(np.concatenate([np.zeros(0, "U1"), *self._source.names(ROWS)]))

    def check_ids(self, ids: np.ndarray) -> np.ndarray:
        """Check that the ids (n,), which were read from the files before, are all there and all different."""
        check_count(self.path, self.n, len(ids))
        log = IdLog()
        for i in range(0, len(ids), ROWS):
            log.add(ids[i : i + ROWS])
        refuse_repeated(self.path, log, lambda: self._source.names(ROWS), self._source.entry)
        return ids


def read_embeddings(
    path: PathLike, ids: Ids = None, *, vectors: str | None = None, ids_name: str | None = None, chunk_size: int = ROWS
) -> Embeddings:
    """Open a file of embeddings, or several; the content of a file decides what it is, then its suffix.

    These are read: Kaldi ark and scp, `.npy` with a list of ids, `.npz`, HDF5 (a matrix with ids, or a dataset
    per recording) and Parquet. Nothing is unpickled and no command is run.

    Several files are read one after another, in the order of their names (x.2.ark before x.10.ark). They must have one
    dimension and one precision, and no id may occur twice. Of a folder, files are read whose suffix names a format, but
    not those in folders below it. Where there are scp lists, archives are left out, as the lists point to them.

    Parameters
    ----------
    path : the file, a folder of such files, or a pattern such as `xvectors.*.ark`; a file or folder that
        is there under this very name comes before a pattern
    ids : for `.npy` and `.npz`: a text file with one id per line, a sequence of ids, or "rows"
    vectors, ids_name : names of the arrays (`.npz`), datasets (HDF5: "group/name") or columns (Parquet) that
        hold vectors and ids, where they are not among the usual ones (`embeddings`, `vectors`, `X`, ...;
        `ids`, `id`, `utt_id`, ...)
    chunk_size : rows of a chunk

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_embeddings(folder + "/x.ark", ["a", "b"], np.eye(2, 3))
    ...     for names, X in read_embeddings(folder + "/x.ark"):
    ...         print(names, X.shape)
    ['a' 'b'] (2, 3)
    """
    if chunk_size < 1:
        raise DuopldaError(f"chunk_size must be at least 1, got {chunk_size}")
    files = open_files(path, ids, vectors, ids_name)
    if len(files) == 1:
        return embeddings_of(files[0][0], files[0][2], chunk_size)
    return embeddings_of(path, joined([(file, source) for file, _, source in files]), chunk_size)


def embeddings_of(path: PathLike, source: Source, rows: int = ROWS) -> Embeddings:
    """Make the user's view of an open file."""
    return Embeddings(Path(path), source.format, source.dim, source.dtype, source.n, source.ids_are_rows, rows, source)


def open_files(path: PathLike, ids: Ids, vectors: str | None, ids_name: str | None) -> list[Opened]:
    """Open the file, or the files of a folder or pattern, which must have one dimension and precision."""
    files = files_of(path, SUFFIXES)
    if len(files) > 1 and ids is not None:
        raise bad(path, "", f"is {len(files)} files, and ids= goes with one", "put x.ids beside each x.npy instead")
    found: list[Opened] = []
    for file in files:
        kind = sniff(file)
        if ids is not None and kind not in ("npy", "npz"):
            raise bad(file, "", f"is {kind}, which has its own ids", "leave out ids=")
        if (vectors or ids_name) and kind not in ("npz", "hdf5", "parquet"):
            raise bad(file, "", f"is {kind}, whose parts have no names", "leave out vectors= and ids_name=")
        source = open_source(kind, file, ids, vectors, ids_name)
        if source.ids_are_rows and len(files) > 1:
            cause = "has no ids, and row numbers repeat from file to file"
            raise bad(file, "", cause, "store an array `ids` in each")
        first, _, model = found[0] if found else (file, kind, source)
        if (source.dim, source.dtype) != (model.dim, model.dtype):
            cause = f"holds {source.dtype} vectors of dimension {source.dim}, {first} {model.dtype} of {model.dim}"
            raise bad(file, "", cause, "all files must be equal")
        found.append((file, kind, source))
    return found


def open_source(
    kind: str, path: PathLike, ids: Ids, vectors: str | None, ids_name: str | None, part: Part | None = None
) -> Source:
    """Open one file, or a part of it (a part of an scp is opened by `scp_part`)."""
    if kind in ("ark", "scp"):
        return ark.open_ark(path) if kind == "ark" else scp.open_scp(path)
    if kind == "npy":
        return npy.open_npy(path, ids, part=part)
    if kind == "npz":
        return npz.open_npz(path, ids, vectors=vectors, ids_name=ids_name, part=part)
    open_ = hdf5.open_hdf5 if kind == "hdf5" else parquet.open_parquet
    return open_(path, vectors=vectors, ids_name=ids_name, part=part)


def sniff(path: PathLike) -> str:
    """Find out what a file of embeddings is: ark, scp, npy, npz, hdf5 or parquet."""
    start = magic(path)
    found = content(path)
    suffix = Path(path).suffix.lower()
    if suffix in (".ark", ".scp") and found in ("", "parquet"):  # a key may start with PAR1
        return suffix[1:]
    if found:
        return {"zip": "npz"}.get(found, found)
    for suffixes, kind in (((".npy",), "NumPy"), ((".npz",), "zip"), (HDF5, "HDF5"), (PARQUET, "Parquet")):
        if suffix in suffixes:
            cause = f"is named {suffix} but does not start as {kind} files do"
            raise bad(path, "byte 0", cause, "it is damaged or misnamed")
    rest = start.partition(b" ")[2].lstrip(b" ")
    if rest.startswith((b"\0B", b"[")):
        return "ark"
    if b"\0" not in start and len(start.split(b"\n")[0].split()) >= 2:
        return "scp"
    raise bad(path, "byte 0", "is no format known for embeddings", f"known suffixes: {' '.join(SUFFIXES)}")


def write_embeddings(
    path: PathLike,
    ids: Iterable[str] | np.ndarray | Iterable[Chunk],
    X: np.ndarray | None = None,
    *,
    force: bool = False,
    text: bool = False,
    one_per_recording: bool = False,
    labels: LabelColumns | None = None,
) -> None:
    """Write embeddings in the format the suffix names, whole or not at all.

    `x.ark`; `x.scp` (and x.ark beside it); `x.npz`; `x.npy` (and x.ids beside it); `x.h5`; `x.parquet`.

    Parameters
    ----------
    path : the file
    ids, X : ids (n,) and vectors (n, d); or, without X, an iterable of such pairs, `Embeddings` for one
    force : replace what is there
    text : Kaldi archives as text; numbers are as short as reads back the same
    one_per_recording : HDF5 as hyperion writes it, one dataset per recording
    labels : of these recordings, in this order: Parquet gets columns speaker, session and channel, which
        `Shard.labels` and `read_labels` find there

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_embeddings(folder + "/x.npz", ["a", "b"], np.eye(2))
    ...     ids, X = read_embeddings(folder + "/x.npz").load()
    >>> ids.tolist(), X.tolist()
    (['a', 'b'], [[1.0, 0.0], [0.0, 1.0]])
    """
    pairs: Iterable[Chunk] = ids if X is None else [(np.asarray(ids), np.asarray(X))]  # type: ignore[assignment]
    final = Path(path)
    suffix = final.suffix.lower()
    if suffix not in SUFFIXES:
        raise bad(path, "", f"suffix {suffix!r} names no format for embeddings", f"use one of {' '.join(SUFFIXES)}")
    if (text and suffix not in (".ark", ".scp")) or (one_per_recording and suffix not in HDF5):
        raise bad(path, "", "text is for Kaldi archives, one_per_recording for HDF5", "leave the option out")
    if labels is not None and suffix not in PARQUET:
        raise bad(path, "", "only Parquet has room for labels", "name it .parquet, or use write_labels")
    chunks = _checked(final, pairs, token=suffix in (".ark", ".scp", ".npy"))
    if suffix in (".ark", ".scp"):
        _write_kaldi(final, chunks, text, force)
    elif suffix == ".npy":
        _write_npy(final, chunks, force)
    else:
        write = npz.write_npz if suffix == ".npz" else partial(parquet.write_parquet, labels=labels)
        if suffix in HDF5:
            write = hdf5.write_hdf5_each if one_per_recording else hdf5.write_hdf5
        with atomic_path(path, force=force) as temporary:
            write(temporary, chunks)


def _write_kaldi(final: Path, chunks: Iterable[Chunk], text: bool, force: bool) -> None:
    archive = final.with_suffix(".ark")
    if str(archive).split("\n")[0].strip(" \t|") != str(archive):
        cause = "a name with a line break, or with | or a space at its ends, cannot stand in an scp"
        raise bad(final, "", cause, "rename it")
    if final.suffix.lower() == ".ark":
        with atomic_path(final, force=force) as temporary, open(temporary, "wb") as out:
            for _ in ark.write_ark(out, chunks, text=text):
                pass
        return
    with atomic_paths(final, archive, force=force) as (list_, data), open(data, "wb") as out, open(list_, "wb") as f:
        for ids, offsets in ark.write_ark(out, chunks, text=text):
            lines = [f"{i} {archive}:{o}\n" for i, o in zip(ids.tolist(), offsets, strict=True)]
            f.write("".join(lines).encode("utf-8"))


def _write_npy(final: Path, chunks: Iterable[Chunk], force: bool) -> None:
    with atomic_paths(final, final.with_suffix(".ids"), force=force) as (data, list_), open(list_, "wb") as out:
        for ids in npy.write_npy(data, chunks):
            out.write("".join(f"{i}\n" for i in ids.tolist()).encode("utf-8"))


def _checked(path: Path, chunks: Iterable[Chunk], *, token: bool) -> Iterator[Chunk]:
    """Check chunks before they are written: they have vectors of one dimension, and ids that the format can hold."""
    log = IdLog()
    seen = []
    dim = 0
    n = 0
    dtype: np.dtype = np.dtype(np.float32)
    for names, block in chunks:
        X = np.asarray(block)
        ids = as_ids(path, names, n)
        if X.ndim != 2 or ids.shape != (len(X),):
            cause = f"{len(ids)} ids and vectors of shape {X.shape} do not go together"
            raise bad(path, f"row {n}", cause, "give (n,) ids and (n, d) vectors")
        if not len(X):
            continue
        if X.dtype.kind != "f":
            raise bad(path, f"row {n}", f"vectors are {X.dtype}, not floats", "convert them to float32 or float64")
        if not n:
            dim = X.shape[1]
            dtype = np.dtype(np.float64 if X.dtype.itemsize >= 8 else np.float32)
        if X.shape[1] != dim or not dim:
            raise bad(path, f"row {n}", f"has dimension {X.shape[1]}, the first vector {dim}", "all must be equal")
        check_ids(path, ids, n, token=token)
        log.add(ids)
        seen.append(ids)
        n += len(X)
        for i in range(0, len(X), ROWS):  # a whole array is written in pieces, too
            yield ids[i : i + ROWS], X[i : i + ROWS].astype(dtype, copy=False)
    if not n:
        raise bad(path, "", "there are no vectors to write")
    refuse_repeated(path, log, lambda: iter(seen))
