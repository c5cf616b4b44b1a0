"""Embeddings in all supported formats: one reader and one writer, both in chunks, and shards of files.

The modules of the formats open one file each; here the format is found, several files are read as one, and ids are
checked. Labels are joined with embeddings in `duoplda.io.recordings`.
"""

import glob
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from duoplda.data.labels import keys
from duoplda.errors import DuopldaError
from duoplda.io import ark, hdf5, npy, npz, parquet, scp
from duoplda.io._atomic import atomic_path, atomic_paths
from duoplda.io._source import ROWS_PER_READ, FilePart, IdsAndVectors, Source, check_count, label
from duoplda.io.common import (
    HDF5_SUFFIXES,
    PARQUET_SUFFIXES,
    HeldText,
    PathLike,
    bad,
    content,
    file_size,
    first_bytes,
    held,
    plain_name,
    refuse_audio,
    shown,
    system_error,
)
from duoplda.io.extractors import KEY as EXTRACTOR
from duoplda.io.extractors import ExtractorName
from duoplda.io.ids import IdList, as_ids, check_ids
from duoplda.io.labels import LabelColumns, read_own_labels

EMBEDDING_SUFFIXES = (".ark", ".scp", ".npz", ".npy", *HDF5_SUFFIXES, *PARQUET_SUFFIXES)


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Embeddings in one or more files, which can be read any number of times; one chunk is in memory at a time.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_embeddings(folder + "/x.npz", ["a", "b", "c"], np.eye(3))
    ...     embeddings = read_embeddings(folder + "/x.npz")
    ...     print(embeddings.format, embeddings.dim, embeddings.n, [len(ids) for ids, X in embeddings.chunks(2)])
    npz 3 3 [2, 1]
    """

    path: Path  # the file; the folder or pattern where there are several
    format: str  # the format that was found
    dim: int  # d, the dimension of the vectors
    dtype: np.dtype  # their float type, as in the file
    n: int | None  # the number of vectors, or None where only reading the file would tell
    ids_are_rows: bool  # the file has no ids, and row numbers "0", "1", ... stand in for them
    rows: int  # the number of rows of a chunk, unless `chunks` is given another
    sources: Sequence[Source] = field(repr=False)  # the open files, of one dimension and precision
    _starts: list[int] = field(repr=False, default_factory=list)  # the number of each file's first vector, once read

    @staticmethod
    def of(path: PathLike, sources: Sequence[Source], rows: int = ROWS_PER_READ) -> "Embeddings":
        """Make one object of open files."""
        names = " and ".join(dict.fromkeys(source.format or source.kind for source in sources))
        counts = [source.n for source in sources]
        return Embeddings(
            Path(path),
            names if len(sources) == 1 else f"{len(sources)} files, {names}",
            sources[0].dim,
            sources[0].dtype,
            None if None in counts else sum(n or 0 for n in counts),
            sources[0].ids_are_rows,
            rows,
            sources,
        )

    def chunks(self, rows: int | None = None) -> Iterator[IdsAndVectors]:
        """Yield `(ids (k,) of str, X (k, d))` with k <= rows; an id that occurs twice is an error at the end."""
        hashes = []
        for ids, X in self._read(rows):
            hashes.append(keys(ids))
            yield ids, X
        _refuse_repeated(self.path, hashes, self._ids, self.entry)

    def vectors(self, rows: int | None = None) -> Iterator[np.ndarray]:
        """Yield the vectors of the same chunks, which may be read-only; ids are neither read nor checked."""
        return (X for _, X in self._read(rows, "vectors"))

    def _read(self, rows: int | None = None, only: str = "") -> Iterator[tuple[Any, Any]]:
        """Read file after file, and check that each has as many vectors as it declares; `only` is as in `Reader`."""
        rows = self.rows if rows is None else rows
        if rows < 1:
            raise DuopldaError(f"a chunk needs at least one row, got rows={rows}")
        most = max(1, min(int(rows), (1 << 26) // (self.dim * self.dtype.itemsize)))  # 64 MB, whatever is asked for
        done = 0
        for i, source in enumerate(self.sources):
            self._starts[i:] = [done]
            for ids, X in source.read(most, only):
                done += len(X if ids is None else ids)
                yield ids, X
            path = self.path if len(self.sources) == 1 else source.path  # a shard's `path` says which part is read
            check_count(path, source.n, done - self._starts[i])

    def _ids(self) -> Iterator[np.ndarray]:
        """Yield the ids in blocks; vectors are read only where the format leaves no other way."""
        return (ids for ids, _ in self._read(ROWS_PER_READ, "ids"))

    def entry(self, number: int) -> str:
        """Return how messages name the vector of this number."""
        if len(self.sources) == 1:
            return f"entry {number}"
        i = bisect_right(self._starts, number) - 1
        return f"{Path(self.sources[i].path).name} entry {number - self._starts[i]}"

    def __iter__(self) -> Iterator[IdsAndVectors]:
        return self.chunks()

    def load(self) -> IdsAndVectors:
        """Read all ids and vectors at once: `(ids (n,), X (n, d))`."""
        ids, parts = zip(*self.chunks(), strict=True)
        return np.concatenate(ids), np.concatenate(parts)

    def ids(self) -> np.ndarray:
        """Read all ids, (n,); vectors are read only where the format leaves no other way (a Kaldi archive)."""
        return self.check_ids(np.concatenate([np.zeros(0, "U1"), *self._ids()]))

    def check_ids(self, ids: np.ndarray) -> np.ndarray:
        """Check that the ids (n,), which were read from the files before, are complete and all different."""
        check_count(self.path, self.n, len(ids))
        hashes = [keys(ids[i : i + ROWS_PER_READ]) for i in range(0, len(ids), ROWS_PER_READ)]
        _refuse_repeated(self.path, hashes, self._ids, self.entry)
        return ids


def read_embeddings(
    path: PathLike,
    ids: IdList = None,
    *,
    columns: Mapping[str, str] | None = None,
    chunk_size: int = ROWS_PER_READ,
) -> Embeddings:
    """Open one or more files of embeddings, whose format is found by their content, and else by their suffix.

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
    files = files_of(path)
    if len(files) > 1 and ids is not None:
        raise bad(
            path, "", f"is {len(files)} files, and ids= is for a single file", "put x.ids beside each x.npy instead"
        )
    sources: list[Source] = []
    for name in files:
        vectors_inside = Path(plain_name(name)).suffix in {*EMBEDDING_SUFFIXES} - {".scp"}
        file = name if vectors_inside else held(name)  # a list can be kept in memory
        source = _opened(_kind_of(file), file, ids, columns)
        if source.ids_are_rows and len(files) > 1:
            cause = "has no ids, and row numbers repeat from file to file"
            raise bad(file, "", cause, "store an array `ids` in each")
        sources.append(source)
        first = sources[0]
        if (source.dim, source.dtype) != (first.dim, first.dtype):
            cause = f"holds {source.dtype} vectors of dimension {source.dim}, {first.path} {first.dtype} of {first.dim}"
            raise bad(file, "", cause, "all files must be equal")
    return Embeddings.of(path if len(files) > 1 else sources[0].path, sources, chunk_size)


def files_of(path: PathLike) -> list[PathLike]:
    """Return the files for a name: the file, or those in the folder, of that name, or else those that match it."""
    name = os.fspath(path)
    if os.path.isdir(name):
        try:
            members = os.listdir(name)
        except OSError as e:
            raise system_error(path, e) from e
        names = [n for n in members if not n.startswith(".") and Path(n).suffix.lower() in EMBEDDING_SUFFIXES]
        if not names:
            for member in members:
                refuse_audio(path, "", member)
            remedy = f"give a file, or a folder of embeddings: no name in it ends in {' '.join(EMBEDDING_SUFFIXES)}"
            raise bad(path, "", "is a folder", remedy)
        return _readable([os.path.join(name, n) for n in names])
    if os.path.lexists(name) or not glob.has_magic(name) or "\0" in name:
        return [path]  # if it cannot be opened, the error comes from the function that opens it
    files = _readable(glob.glob(name, recursive=True))
    if not files:
        raise bad(path, "", "no file matches this pattern", "check it, and the folder it starts from")
    return files


def _readable(names: list[str]) -> list[PathLike]:
    """Sort names in natural order; if there are scp lists, leave out archives, since the lists point to them."""
    if any(n.lower().endswith(".scp") for n in names):
        names = [n for n in names if not n.lower().endswith(".ark")]

    def natural(name: str) -> tuple[list[str | int], str]:
        """Return a key that sorts numbers in names by their values: x.2.ark before x.10.ark."""
        return [int(part) if i % 2 else part for i, part in enumerate(re.split("([0-9]+)", name))], name

    return [Path(n) for n in sorted(names, key=natural)]


def _kind_of(path: PathLike) -> str:
    """Find out what a file of embeddings is: ark, scp, npy, npz, hdf5 or parquet."""
    start = first_bytes(path)
    kind = content(path)
    suffix = Path(plain_name(path)).suffix
    if suffix in (".ark", ".scp") and kind in ("", "parquet"):  # the first key of an archive may start with PAR1
        return suffix[1:]
    if kind:
        return "npz" if kind == "zip" else kind
    named = {".npy": "NumPy", ".npz": "zip"}
    named |= dict.fromkeys(HDF5_SUFFIXES, "HDF5") | dict.fromkeys(PARQUET_SUFFIXES, "Parquet")
    if suffix in named:
        cause = f"is named {suffix} but does not start as {named[suffix]} files do"
        raise bad(path, "byte 0", cause, "it is damaged or misnamed")
    refuse_audio(path, "", os.path.basename(path), start)
    value = start.partition(b" ")[2].lstrip(b" ")  # in an archive, it follows a key and a space
    if value.startswith((b"\0B", b"[")):
        return "ark"
    if b"\0" not in start and len(start.split(b"\n")[0].split()) >= 2:
        return "scp"
    raise bad(path, "byte 0", "is no format known for embeddings", f"known suffixes: {' '.join(EMBEDDING_SUFFIXES)}")


def _opened(
    kind: str, path: PathLike, ids: IdList, columns: Mapping[str, str] | None, part: FilePart | None = None
) -> Source:
    """Open one file, or a part of it (a part of an scp is opened by `scp_part`)."""
    if ids is not None and kind not in ("npy", "npz"):
        raise bad(path, "", f"is {kind}, which has its own ids", "leave out ids=")
    vectors, ids_name = ((columns or {}).get(meaning) for meaning in ("vector", "id"))
    if vectors is not None and kind not in ("npz", "hdf5", "parquet"):
        raise bad(path, "", f"is {kind}, whose parts have no names", "leave `vector` out of `columns`")
    if kind == "ark":
        if isinstance(path, HeldText):
            raise bad(path, "", "is an archive, which is read more than once", "give a plain file")
        return ark.open_ark(path)
    if kind == "scp":
        return scp.open_scp(path)
    if isinstance(ids, str | os.PathLike) and ids != "rows":
        ids = held(ids)
    if kind == "npy":
        return npy.open_npy(path, ids, part=part)
    if kind == "npz":
        return npz.open_npz(path, ids, vectors=vectors, ids_name=ids_name, part=part)
    open_ = hdf5.open_hdf5 if kind == "hdf5" else parquet.open_parquet
    return open_(path, vectors=vectors, ids_name=ids_name, part=part)


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
        write = partial(parquet.write_parquet, labels=None if labels is None else labels.by_name, texts=texts)
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
    """Check that chunks have vectors of one dimension and ids that the format can hold, and cut them for writing."""
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
        hashes.append(keys(ids))
        seen.append(ids)
        n += len(X)
        for i in range(0, len(X), ROWS_PER_READ):  # a whole array is written in pieces, too
            rows = slice(i, i + ROWS_PER_READ)
            yield ids[rows], X[rows].astype(dtype, copy=False)
    if not n:
        raise bad(path, "", "there are no vectors to write")
    _refuse_repeated(path, hashes, lambda: seen)


def _refuse_repeated(
    path: PathLike,
    hashes: Sequence[np.ndarray],
    again: Callable[[], Iterable[np.ndarray]],
    entry: Callable[[int], str] = "entry {}".format,
) -> None:
    """Raise an error for the first id that occurs twice.

    Parameters
    ----------
    path : the file, for messages
    hashes : the hashes (`keys`) of all ids, in blocks, so that ids need not be kept in memory
    again : yields the ids once more; it is called only if two hashes are equal
    entry : returns how messages name the entry of a number
    """
    ordered = np.sort(np.concatenate([np.empty(0, np.uint64), *hashes]))
    suspects = ordered[1:][ordered[1:] == ordered[:-1]]  # two different ids share a hash with probability 2^-64
    seen: dict[str, int] = {}
    first = 0
    for ids in again() if suspects.size else ():
        for i in np.flatnonzero(np.isin(keys(ids), suspects)).tolist():
            name = str(ids[i])
            if name in seen:
                cause = f"id {shown(name)} is there already as {entry(seen[name])}"
                raise bad(path, entry(first + i), cause, "ids must differ")
            seen[name] = first + i
        first += len(ids)


# -- shards


@dataclass(frozen=True)
class Shard:
    """A reference to a file of embeddings, or to a run of its vectors; it does not hold the vectors.

    It is small and can be sent to other processes and machines. The file is opened when the shard is read, and must
    still exist there under the same name, unchanged.

    >>> import tempfile
    >>> from duoplda.io import write_embeddings
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_embeddings(folder + "/x.npz", ["a", "b"], np.eye(2))
    ...     (shard,) = embedding_shards(folder + "/x.npz")
    ...     print(shard.kind, shard.dim, shard.n)
    npz 2 2
    """

    path: str  # the absolute path of the file
    kind: str  # ark, scp, npy, npz, hdf5 or parquet
    dim: int  # the dimension of the vectors
    dtype: str  # their float type
    n: int | None  # the number of vectors, or None where only reading the file would tell
    size: int  # bytes of the file when it was cut, by which a later change is noticed
    part: FilePart | None = None  # which vectors; None: all
    id_list: str | None = None  # the ids of npy and npz: a text file, or "rows"
    columns: Mapping[str, str] | None = None  # names inside the file, as for `read_embeddings`, and of its labels
    here: str = ""  # the folder in which an scp's relative names are looked for first

    @property
    def name(self) -> str:
        """The name for messages: x.parquet rows 0-4095."""
        return label(os.path.basename(self.path), self.part)

    def chunks(self, rows: int | None = None) -> Iterator[IdsAndVectors]:
        """Yield `(ids (k,) of str, X (k, d))` with k <= rows; an id that occurs twice is an error at the end."""
        return self._open().chunks(rows)

    def load(self) -> IdsAndVectors:
        """Read all ids and vectors at once: `(ids (n,), X (n, d))`."""
        return self._open().load()

    def ids(self) -> np.ndarray:
        """Read the ids, (n,); vectors are read only where the format leaves no other way (a Kaldi archive)."""
        return self._open().ids()

    def labels(self) -> LabelColumns:
        """Read the labels that are columns of the file itself: the speaker, and others that it has."""
        self._check_unchanged(file_size(self.path) == self.size)
        return read_own_labels(self.path, self.kind, self.columns, self.part)

    def _open(self) -> Embeddings:
        """Open the vectors of the shard."""
        self._check_unchanged(file_size(self.path) == self.size)
        dtype = np.dtype(self.dtype)
        if self.kind == "scp":
            source = scp.scp_part(held(self.path), self.dim, dtype, self.part, self.here)
        else:
            source = _opened(self.kind, self.path, self.id_list, self.columns, self.part)
        self._check_unchanged((source.dim, source.dtype) == (self.dim, dtype))
        return Embeddings.of(label(self.path, self.part), [source])

    def _check_unchanged(self, same: bool) -> None:
        """Raise an error if the file is not the same as when it was cut."""
        if not same:
            raise bad(self.path, "", "has changed since it was cut into shards", "cut it again with embedding_shards")


def embedding_shards(
    path: PathLike,
    ids: IdList = None,
    *,
    columns: Mapping[str, str] | None = None,
    bytes_each: int = 256 << 20,
) -> list[Shard]:
    """Cut what `read_embeddings` reads into shards, which hold the same vectors in the same order.

    Every file of a folder or pattern is cut by itself: an scp into runs of lines, Parquet into runs of row
    groups, matrices in npy, npz and HDF5 into runs of rows. Kaldi archives, compressed npz and HDF5 with a
    dataset per recording are one shard each. Only the beginnings of files are read, and lists of ids.

    A shard knows its own ids only: the caller must check that no id is in two shards.

    Parameters
    ----------
    path, ids, columns : as for `read_embeddings`; ids may not be a sequence. `columns` may also name labels that are
        columns of the files
    bytes_each : the approximate size of the vectors of a shard

    Example
    -------
    >>> import tempfile
    >>> from duoplda.io import write_embeddings
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_embeddings(folder + "/x.npy", ["a", "b", "c"], np.eye(3))
    ...     for shard in embedding_shards(folder + "/x.npy", bytes_each=48):
    ...         print(shard.name, shard.ids())
    x.npy rows 0-1 ['a' 'b']
    x.npy rows 2-2 ['c']
    """
    if bytes_each < 1:
        raise DuopldaError(f"bytes_each must be at least 1, got {bytes_each}")
    if ids is not None and not isinstance(ids, str | os.PathLike):
        raise bad(path, "", "shards cannot have ids= in memory", "write them to a file, one id per line")
    shards = []
    for source in read_embeddings(path, ids, columns=columns).sources:
        list_: PathLike | None = npy.ids_beside(source.path) if source.kind == "npy" and ids is None else ids
        for name in (source.path, list_):
            if name not in (None, "rows") and not os.path.isfile(name):
                raise bad(
                    name, "", "cannot be read again by other processes, as shards are", "write it to a file first"
                )
        id_list = None if list_ is None else "rows" if list_ == "rows" else os.path.abspath(list_)
        whole = Shard(
            os.path.abspath(source.path),
            source.kind,
            source.dim,
            source.dtype.name,
            source.n,
            file_size(os.fspath(source.path)),
            id_list=id_list,
            columns=columns,
            here=os.getcwd() if source.kind == "scp" else "",
        )
        parts = [] if source.cuts is None else source.cuts(bytes_each)
        shards += [replace(whole, n=part.n, part=part) for part in parts] or [whole]
    return shards
