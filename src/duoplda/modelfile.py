"""The model file: safetensors with a format version and no pickle; written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.errors import DuopldaError

FORMAT, VERSION = "duoplda-plda", 1


def write(path: str | os.PathLike[str], arrays: dict[str, NDArray[Any]], header: dict[str, Any]) -> None:
    """Write arrays and a JSON header to a temporary file beside `path`, then rename it: all or nothing."""
    from safetensors.numpy import save

    header = {"format": FORMAT, "version": VERSION, **header}
    data = save({k: np.ascontiguousarray(a) for k, a in arrays.items()}, {"duoplda": json.dumps(header)})
    path = Path(path)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=path.name + ".", suffix=".part", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise DuopldaError(f"cannot write the model {path}: {error.strerror or error}") from error
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read(path: str | os.PathLike[str]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and header of a model file, or a clear word on why it is none."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get("duoplda", "null"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (
        SafetensorError,
        json.JSONDecodeError,
        UnicodeDecodeError,
        ValueError,
        TypeError,
        KeyError,
    ) as error:
        raise DuopldaError(f"{path} is not a model of duoplda, or it is truncated or damaged: {error}") from None
    except OSError as error:
        raise DuopldaError(f"cannot read the model {path}: {error.strerror or error}") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise DuopldaError(f"{path} is a safetensors file, but no model of duoplda")
    if header.get("version") != VERSION:
        raise DuopldaError(
            f"{path} has format version {header.get('version')}, this duoplda reads version {VERSION}: "
            "use the duoplda that wrote it, or a newer one"
        )
    return arrays, header
