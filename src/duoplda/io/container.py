"""The one file format of duoplda: named arrays and a JSON header in a safetensors file.

Models, calibrations, enrolled speakers and checkpoints of a training are all written and read here. The header is one
JSON text under the metadata key `duoplda`; its `format` says which of them the file is, its `version` which layout.
Nothing in such a file is ever executed, and a file is written whole or not at all.
"""

import json
import os
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.io._atomic import atomic_path
from duoplda.io.common import PathLike, bad, open_binary

# The kinds of files: the version of the layout that is written and read, and what messages call such a file.
CONTAINER_KINDS = {
    "duoplda-backend": (2, "model"),
    "duoplda-calibration": (1, "calibration"),
    "duoplda-sides": (1, "file of enrolled speakers"),
    "duoplda-resume": (1, "checkpoint"),
    "duoplda-voices": (1, "export of known voices"),
}


def write_container(
    path: PathLike, kind: str, arrays: Mapping[str, NDArray[Any]], header: Mapping[str, Any], *, force: bool = False
) -> None:
    """Write arrays and a header, whole or not at all.

    Parameters
    ----------
    path : the new file
    kind : what the file holds, one of `CONTAINER_KINDS`; it is noted in the header with the version of its layout
    arrays : arrays of numbers by name
    header : whatever JSON can hold: texts, numbers, lists and dictionaries
    force : replace an existing file; otherwise it is an error

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_container(folder + "/c", "duoplda-calibration", {"scale": np.array([2.0])}, {"method": "affine"})
    ...     arrays, header = read_container(folder + "/c", ["duoplda-calibration"])
    >>> arrays["scale"], header["method"], header["version"]
    (array([2.]), 'affine', 1)
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save

    try:
        text = json.dumps({**header, "format": kind, "version": CONTAINER_KINDS[kind][0]})
        data = save({k: np.asarray(a, order="C") for k, a in arrays.items()}, {"duoplda": text})
    except (SafetensorError, TypeError) as e:
        raise bad(path, "", f"cannot hold this ({e})", "names are texts or numbers, arrays hold numbers") from e
    with atomic_path(path, force=force) as temporary:
        temporary.write_bytes(data)


def read_container(path: PathLike, kinds: Collection[str]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read the arrays and the header of a file of one of these kinds.

    The header has what `write_container` was given, and the kind as `format` and the layout as `version`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_container(folder + "/c", "duoplda-calibration", {"scale": np.array([2.0])}, {"method": "affine"})
    ...     arrays, header = read_container(folder + "/c", ["duoplda-calibration"])
    >>> arrays["scale"].tolist(), header["format"]
    ([2.0], 'duoplda-calibration')
    """
    from safetensors import SafetensorError, safe_open

    what = CONTAINER_KINDS[next(iter(kinds))][1]
    if os.path.isdir(path):
        raise bad(path, "", f"is a folder, not a {what}", "give a file")
    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get("duoplda", "null"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as e:
        raise bad(path, "", f"cannot read the {what}: {e.strerror or e}", "give the name of a plain file") from e
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        remedy = "remove it" if what == "checkpoint" else ""
        cause = f"is not a {what} of duoplda, or it is truncated or damaged ({str(e)[:200]})"
        raise bad(path, "", cause, remedy) from e
    kind = header.get("format") if isinstance(header, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        if isinstance(kind, str) and kind in CONTAINER_KINDS:
            raise bad(path, "", f"is a {CONTAINER_KINDS[kind][1]} of duoplda, not a {what}", "give another file")
        raise bad(path, "", f"is a safetensors file, but no {what} of duoplda", "give another file")
    version = header.get("version")
    readable = CONTAINER_KINDS[kind][0]
    if type(version) is not int or version != readable:
        cause = f"has format version {str(version)[:40]}, this duoplda reads version {readable}"
        raise bad(path, "", cause, "install the duoplda that wrote it")
    return arrays, header


def is_container(path: PathLike) -> bool:
    """Say whether a file starts as a safetensors file does, which is what this module writes.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_container(folder + "/c", "duoplda-calibration", {"scale": np.array([2.0])}, {})
    ...     _ = Path(folder, "utt2spk").write_text("a ann")
    ...     is_container(folder + "/c"), is_container(folder + "/utt2spk")
    (True, False)
    """
    with open_binary(path) as f:
        return f.read(9)[7:] == b"\0{"  # the highest byte of the length of the header, and the header itself
