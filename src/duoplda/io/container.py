"""The model file: safetensors with a format version and no pickle; written whole or not at all."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.errors import DuopldaError

FORMAT, VERSION = "duoplda-plda", 1


def write(path: str | os.PathLike[str], arrays: dict[str, NDArray[Any]], header: dict[str, Any]) -> None:
    """Write arrays and a JSON header: all or nothing."""
    from safetensors.numpy import save

    from duoplda.io._atomic import atomic_path

    header = {"format": FORMAT, "version": VERSION, **header}
    data = save({k: np.ascontiguousarray(a) for k, a in arrays.items()}, {"duoplda": json.dumps(header)})
    with atomic_path(path, force=True) as temporary:
        temporary.write_bytes(data)


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
