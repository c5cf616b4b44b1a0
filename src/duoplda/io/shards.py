"""Embeddings in parts that can be read independently, by other processes and on other machines."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from duoplda.errors import DuopldaError
from duoplda.io._files import open_files, open_source
from duoplda.io._source import FilePart, IdsAndVectors, label
from duoplda.io.common import PathLike, bad, file_size, held
from duoplda.io.embeddings import Embeddings, embeddings_of
from duoplda.io.ids import IdList
from duoplda.io.labels import LabelColumns
from duoplda.io.npy import ids_beside
from duoplda.io.parquet import read_label_columns
from duoplda.io.scp import scp_part


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

    path: str  # the file, from the root
    kind: str  # ark, scp, npy, npz, hdf5 or parquet
    dim: int  # the dimension of the vectors
    dtype: str  # their float type
    n: int | None  # the number of vectors, or None where only reading the file would tell
    size: int  # bytes of the file when it was cut
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
        """Read the labels that are columns of the file itself: speaker and, if they are there, further ones."""
        self._check_unchanged(file_size(self.path) == self.size)
        if self.kind != "parquet" or self.part is None:
            remedy = "give a list of labels beside it, or write Parquet with labels= of write_embeddings"
            raise bad(self.path, "", f"is {self.kind}, which has no room for labels", remedy)
        return read_label_columns(self.path, self.part, self.columns)

    def _open(self) -> Embeddings:
        """Open the vectors of the shard."""
        self._check_unchanged(file_size(self.path) == self.size)
        dtype = np.dtype(self.dtype)
        if self.kind == "scp":
            source = scp_part(held(self.path), self.dim, dtype, self.part, self.here)
        else:
            source = open_source(self.kind, self.path, self.id_list, self.columns, self.part)
        self._check_unchanged((source.dim, source.dtype) == (self.dim, dtype))
        return embeddings_of(label(self.path, self.part), source)

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
        raise bad(path, "", "ids= in memory do not go with shards", "write them to a file, one id per line")
    shards = []
    for file, kind, source in open_files(path, ids, columns):
        list_: PathLike | None = ids_beside(file) if kind == "npy" and ids is None else ids
        for name in (file, list_):
            if name not in (None, "rows") and not os.path.isfile(name):
                raise bad(name, "", "cannot be read again by others, as shards are", "write it to a file first")
        id_list = None if list_ is None else "rows" if list_ == "rows" else os.path.abspath(list_)
        whole = Shard(
            os.path.abspath(file),
            kind,
            source.dim,
            source.dtype.name,
            source.n,
            file_size(os.fspath(file)),
            id_list=id_list,
            columns=columns,
            here=os.getcwd() if kind == "scp" else "",
        )
        parts = [] if source.cuts is None else source.cuts(bytes_each)
        shards += [replace(whole, n=part.n, part=part) for part in parts] or [whole]
    return shards
