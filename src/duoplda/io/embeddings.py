"""Embeddings in all formats that are supported: one reader and one writer, both in chunks."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from duoplda.errors import DuopldaError
from duoplda.io import ark, hdf5, npy, npz, parquet
from duoplda.io._atomic import atomic_path, atomic_paths
from duoplda.io._files import EMBEDDING_SUFFIXES, open_files
from duoplda.io._source import ROWS_PER_READ, IdsAndVectors, Source, check_count, joined
from duoplda.io.common import HDF5_SUFFIXES, PARQUET_SUFFIXES, PathLike, bad
from duoplda.io.extractors import KEY as EXTRACTOR
from duoplda.io.extractors import ExtractorName
from duoplda.io.ids import IdList, as_ids, check_ids, id_hashes, refuse_repeated
from duoplda.io.labels import LabelColumns


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Embeddings in one or more files, read in chunks, as often as you like; one chunk is in memory at a time.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_embeddings(folder + "/x.npz", ["a", "b", "c"], np.eye(3))
    ...     embeddings = read_embeddings(folder + "/x.npz")
    ...     print(embeddings.format, embeddings.dim, embeddings.n, [len(ids) for ids, X in embeddings.chunks(2)])
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

    def chunks(self, rows: int | None = None) -> Iterator[IdsAndVectors]:
        """Yield `(ids (k,) of str, X (k, d))` with k <= rows; an id that occurs twice is an error at the end."""
        hashes = []
        n = 0
        for ids, X in self._source.chunks(self.rows if rows is None else rows):
            hashes.append(id_hashes(ids))
            n += len(ids)
            yield ids, X
        check_count(self.path, self.n, n)
        refuse_repeated(self.path, hashes, partial(self._source.ids, ROWS_PER_READ), self._source.entry)

    def vectors(self, rows: int | None = None) -> Iterator[np.ndarray]:
        """Yield the vectors of the same chunks, which may be read-only; ids are neither read nor checked."""
        n = 0
        for X in self._source.vectors(self.rows if rows is None else rows):
            n += len(X)
            yield X
        check_count(self.path, self.n, n)

    def entry(self, number: int) -> str:
        """Name a vector for messages, by its number."""
        return self._source.entry(number)

    def __iter__(self) -> Iterator[IdsAndVectors]:
        return self.chunks()

    def load(self) -> IdsAndVectors:
        """Read all ids and vectors at once: `(ids (n,), X (n, d))`."""
        ids, parts = zip(*self.chunks(), strict=True)
        return np.concatenate(ids), np.concatenate(parts)

    def ids(self) -> np.ndarray:
        """Read all ids, (n,); vectors are read only where the format leaves no other way (a Kaldi archive)."""
        return self.check_ids(np.concatenate([np.zeros(0, "U1"), *self._source.ids(ROWS_PER_READ)]))

    def check_ids(self, ids: np.ndarray) -> np.ndarray:
        """Check that the ids (n,), which were read from the files before, are complete and all different."""
        check_count(self.path, self.n, len(ids))
        hashes = [id_hashes(ids[i : i + ROWS_PER_READ]) for i in range(0, len(ids), ROWS_PER_READ)]
        refuse_repeated(self.path, hashes, partial(self._source.ids, ROWS_PER_READ), self._source.entry)
        return ids


def read_embeddings(
    path: PathLike,
    ids: IdList = None,
    *,
    columns: Mapping[str, str] | None = None,
    chunk_size: int = ROWS_PER_READ,
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
    columns : names of the arrays (`.npz`), datasets (HDF5: "group/name") or columns (Parquet) that hold vectors and
        ids, where they are not among the usual ones (`embeddings`, `xvector`, `X`, ...; `ids`, `utt_id`, ...), e.g.
        {"vector": "layer6", "id": "who"}
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
    files = open_files(path, ids, columns)
    if len(files) == 1:
        return embeddings_of(files[0][0], files[0][2], chunk_size)
    return embeddings_of(path, joined([(file, source) for file, _, source in files]), chunk_size)


def embeddings_of(path: PathLike, source: Source, rows: int = ROWS_PER_READ) -> Embeddings:
    """Make the user's view of an open file."""
    return Embeddings(Path(path), source.format, source.dim, source.dtype, source.n, source.ids_are_rows, rows, source)


def write_embeddings(
    path: PathLike,
    ids: Iterable[str] | np.ndarray | Iterable[IdsAndVectors],
    X: np.ndarray | None = None,
    *,
    force: bool = False,
    text: bool = False,
    one_per_recording: bool = False,
    labels: LabelColumns | None = None,
    extractor: ExtractorName | None = None,
) -> None:
    """Write embeddings in the format the suffix names, whole or not at all.

    `x.ark`; `x.scp` (and x.ark beside it); `x.npz`; `x.npy` (and x.ids beside it); `x.h5`; `x.parquet`.

    Parameters
    ----------
    path : the file
    ids, X : ids (n,) and vectors (n, d); or, without X, an iterable of such pairs, for example `Embeddings`
    force : replace existing files; otherwise they are an error
    text : write Kaldi archives as text, with as few digits as it takes to read the same numbers again
    one_per_recording : write HDF5 as hyperion does, with one dataset per recording
    labels : the labels of these recordings, in this order: Parquet gets columns speaker, session, channel and
        occasion, in which `Shard.labels` and `read_labels` find them
    extractor : what made the embeddings; `.npz`, HDF5 and Parquet keep it for `read_extractor`, other formats cannot

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_embeddings(folder + "/x.npz", ["a", "b"], np.eye(2))
    ...     ids, X = read_embeddings(folder + "/x.npz").load()
    >>> ids.tolist(), X.tolist()
    (['a', 'b'], [[1.0, 0.0], [0.0, 1.0]])
    """
    pairs: Iterable[IdsAndVectors] = ids if X is None else [(np.asarray(ids), np.asarray(X))]  # type: ignore[assignment]
    final = Path(path)
    suffix = final.suffix.lower()
    if suffix not in EMBEDDING_SUFFIXES:
        remedy = f"use one of {' '.join(EMBEDDING_SUFFIXES)}"
        raise bad(path, "", f"suffix {suffix!r} names no format for embeddings", remedy)
    if (text and suffix not in (".ark", ".scp")) or (one_per_recording and suffix not in HDF5_SUFFIXES):
        raise bad(path, "", "text is for Kaldi archives, one_per_recording for HDF5", "leave the option out")
    if labels is not None and suffix not in PARQUET_SUFFIXES:
        raise bad(path, "", "only Parquet has room for labels", "name it .parquet, or use write_labels")
    chunks = _checked(final, pairs, token=suffix in (".ark", ".scp", ".npy"))
    if suffix in (".ark", ".scp"):
        _write_kaldi(final, chunks, text, force)
        return
    if suffix == ".npy":
        with atomic_paths(final, final.with_suffix(".ids"), force=force) as (data, list_), open(list_, "wb") as out:
            for names in npy.write_npy(data, chunks):
                out.write("".join(f"{name}\n" for name in names.tolist()).encode("utf-8"))
        return
    texts = {} if extractor is None else {EXTRACTOR: extractor.text()}
    write: Callable[[Path, Iterable[IdsAndVectors]], None] = partial(npz.write_npz, texts=texts)
    if suffix in HDF5_SUFFIXES:
        write = hdf5.write_hdf5_each if one_per_recording else partial(hdf5.write_hdf5, texts=texts)
    elif suffix in PARQUET_SUFFIXES:
        write = partial(parquet.write_parquet, labels=labels, texts=texts)
    with atomic_path(path, force=force) as temporary:
        write(temporary, chunks)


def _write_kaldi(final: Path, chunks: Iterable[IdsAndVectors], text: bool, force: bool) -> None:
    """Write an archive and, where the name ends in .scp, the list that points into it."""
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


def _checked(path: Path, chunks: Iterable[IdsAndVectors], *, token: bool) -> Iterator[IdsAndVectors]:
    """Check chunks before they are written: they have vectors of one dimension, and ids that the format can hold."""
    hashes = []
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
        hashes.append(id_hashes(ids))
        seen.append(ids)
        n += len(X)
        for i in range(0, len(X), ROWS_PER_READ):  # a whole array is written in pieces, too
            rows = slice(i, i + ROWS_PER_READ)
            yield ids[rows], X[rows].astype(dtype, copy=False)
    if not n:
        raise bad(path, "", "there are no vectors to write")
    refuse_repeated(path, hashes, lambda: seen)
