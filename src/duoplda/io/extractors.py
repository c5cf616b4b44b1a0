"""Which extractor made embeddings: its name and the hash of its file, in the formats that have room for them.

They are one JSON text called `extractor`: an array of `.npz`, an attribute of HDF5, or metadata of Parquet.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass

from duoplda.errors import DuopldaError
from duoplda.io import hdf5, parquet
from duoplda.io.common import PathLike, content, guarded, installed
from duoplda.io.npz import load_text, names_in

KEY = "extractor"
LONGEST_EXTRACTOR = 4096  # characters of the JSON text that are read; a name of 255 characters and a hash need fewer


@dataclass(frozen=True)
class ExtractorName:
    """The name of an extractor's file, and the SHA-256 of its bytes.

    >>> ExtractorName("campplus.onnx", "ab" * 32).text()[:26]
    '{"name": "campplus.onnx", '
    """

    name: str
    sha256: str

    def text(self) -> str:
        """Return both as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parsed(cls, text: object) -> ExtractorName | None:
        """Read that JSON; None if it is something else, as other tools may use the name `extractor` too."""
        with suppress(ValueError, TypeError, KeyError):
            value = json.loads(str(text)[:LONGEST_EXTRACTOR])
            if re.fullmatch("[0-9a-f]{64}", value["sha256"]):
                return cls(str(value["name"])[:255], value["sha256"])
        return None


def read_extractor(path: PathLike) -> ExtractorName | None:
    """Return the extractor that made a file of embeddings; None if the file does not name one.

    Example
    -------
    >>> import tempfile
    >>> import numpy as np
    >>> from duoplda.io import write_embeddings
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made_by = ExtractorName("campplus.onnx", "ab" * 32)
    ...     write_embeddings(folder + "/x.npz", ["a"], np.eye(1, 2), extractor=made_by)
    ...     read_extractor(folder + "/x.npz").name
    'campplus.onnx'
    """
    try:
        kind = content(path)
    except DuopldaError:  # a folder, a pattern, or a list from a pipe, which name no extractor
        return None
    if kind == "zip" and KEY in names_in(path):
        return ExtractorName.parsed(load_text(path, KEY, LONGEST_EXTRACTOR))
    if kind == "parquet" and installed("pyarrow"):
        with parquet.opened(path) as file:
            metadata = file.schema_arrow.metadata or {}
        return ExtractorName.parsed(metadata.get(KEY.encode(), b"").decode("utf-8", "replace"))
    if kind == "hdf5" and installed("h5py"):
        with hdf5.opened(path) as file, guarded(path, "HDF5"):
            return ExtractorName.parsed(file.attrs.get(KEY, ""))
    return None
