"""Opening embeddings: which files a folder or a pattern means, what format each of them has, and its reader."""

import glob
import os
import re
from collections.abc import Mapping
from pathlib import Path

from duoplda.io import ark, hdf5, npy, npz, parquet, scp
from duoplda.io._source import FilePart, Source
from duoplda.io.common import (
    HDF5_SUFFIXES,
    PARQUET_SUFFIXES,
    HeldText,
    PathLike,
    bad,
    content,
    first_bytes,
    held,
    plain_name,
    refuse_audio,
    system_error,
)
from duoplda.io.ids import IdList

EMBEDDING_SUFFIXES = (".ark", ".scp", ".npz", ".npy", *HDF5_SUFFIXES, *PARQUET_SUFFIXES)


def files_of(path: PathLike) -> list[PathLike]:
    """Return the files that a name means: what is there under it, or else what matches it as a pattern."""
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
        return [path]  # whatever is wrong with it is said when it is opened
    files = _readable(glob.glob(name, recursive=True))
    if not files:
        raise bad(path, "", "no file matches this pattern", "check it, and the folder it starts from")
    return files


def _readable(names: list[str]) -> list[PathLike]:
    """Sort names in natural order, and leave out archives where there are lists, which point to them."""
    if any(n.lower().endswith(".scp") for n in names):
        names = [n for n in names if not n.lower().endswith(".ark")]

    def natural(name: str) -> tuple[list[str | int], str]:
        """Return a key that sorts numbers in names by their values: x.2.ark before x.10.ark."""
        return [int(part) if i % 2 else part for i, part in enumerate(re.split("([0-9]+)", name))], name

    return [Path(n) for n in sorted(names, key=natural)]


def format_of(path: PathLike) -> str:
    """Find out what a file of embeddings is: ark, scp, npy, npz, hdf5 or parquet."""
    start = first_bytes(path)
    kind = content(path)
    suffix = Path(plain_name(path)).suffix
    if suffix in (".ark", ".scp") and kind in ("", "parquet"):  # the key of an archive may start with PAR1
        return suffix[1:]
    if kind:
        return "npz" if kind == "zip" else kind
    named = {".npy": "NumPy", ".npz": "zip"}
    named |= dict.fromkeys(HDF5_SUFFIXES, "HDF5") | dict.fromkeys(PARQUET_SUFFIXES, "Parquet")
    if suffix in named:
        cause = f"is named {suffix} but does not start as {named[suffix]} files do"
        raise bad(path, "byte 0", cause, "it is damaged or misnamed")
    refuse_audio(path, "", os.path.basename(path), start)
    value = start.partition(b" ")[2].lstrip(b" ")  # of an archive, which starts with a key and a space
    if value.startswith((b"\0B", b"[")):
        return "ark"
    if b"\0" not in start and len(start.split(b"\n")[0].split()) >= 2:
        return "scp"
    raise bad(path, "byte 0", "is no format known for embeddings", f"known suffixes: {' '.join(EMBEDDING_SUFFIXES)}")


def open_source(
    kind: str, path: PathLike, ids: IdList, columns: Mapping[str, str] | None, part: FilePart | None = None
) -> Source:
    """Open one file, or a part of it (a part of an scp is opened by `scp_part`)."""
    vectors, ids_name = ((columns or {}).get(meaning) for meaning in ("vector", "id"))
    if kind == "ark":
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


def open_files(path: PathLike, ids: IdList, columns: Mapping[str, str] | None) -> list[tuple[PathLike, str, Source]]:
    """Open the file, or the files of a folder or pattern, which must have one dimension and precision.

    Returns the path, the format and the source of each.
    """
    files = files_of(path)
    if len(files) > 1 and ids is not None:
        raise bad(path, "", f"is {len(files)} files, and ids= goes with one", "put x.ids beside each x.npy instead")
    sources: list[tuple[PathLike, str, Source]] = []
    for name in files:
        vectors_inside = Path(plain_name(name)).suffix in {*EMBEDDING_SUFFIXES} - {".scp"}
        file = name if vectors_inside else held(name)  # a list can be kept in memory
        kind = format_of(file)
        if kind == "ark" and isinstance(file, HeldText):
            raise bad(file, "", "is an archive, which is read more than once", "give a plain file")
        if ids is not None and kind not in ("npy", "npz"):
            raise bad(file, "", f"is {kind}, which has its own ids", "leave out ids=")
        if "vector" in (columns or {}) and kind not in ("npz", "hdf5", "parquet"):
            raise bad(file, "", f"is {kind}, whose parts have no names", "leave `vector` out of `columns`")
        source = open_source(kind, file, ids, columns)
        if source.ids_are_rows and len(files) > 1:
            cause = "has no ids, and row numbers repeat from file to file"
            raise bad(file, "", cause, "store an array `ids` in each")
        sources.append((file, kind, source))
        first, _, model = sources[0]
        if (source.dim, source.dtype) != (model.dim, model.dtype):
            cause = f"holds {source.dtype} vectors of dimension {source.dim}, {first} {model.dtype} of {model.dim}"
            raise bad(file, "", cause, "all files must be equal")
    return sources
