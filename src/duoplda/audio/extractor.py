"""Extractors of speaker embeddings: ONNX files with the metadata of sherpa-onnx, which runs them."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.audio.onnx import metadata_fields, read_ends, read_metadata
from duoplda.errors import DuopldaError
from duoplda.io.common import PathLike, bad, need, open_binary, shown

Samples = NDArray[np.float32]

# The metadata that sherpa-onnx needs for each kind of extractor. If one is absent or wrong, it ends the whole process.
_NUMBERS: dict[str, tuple[str, ...]] = {"wespeaker": ("sample_rate", "output_dim", "normalize_samples")}
_NUMBERS["3d-speaker"] = _NUMBERS["wespeaker"]
_NUMBERS["nemo"] = ("sample_rate", "output_dim", "feat_dim", "window_size_ms", "window_stride_ms")
_ENDS = {"wespeaker": (1, 1), "3d-speaker": (1, 1), "nemo": (2, 2)}  # the least numbers of inputs and outputs
_NORMALIZE = {"wespeaker": "global-mean", "3d-speaker": "global-mean", "nemo": "per_feature"}  # or an empty text
_LARGEST = {"sample_rate": 192_000, "output_dim": 1 << 16, "normalize_samples": 1, "feat_dim": 1 << 12}
WHERE = "extractors with it are published at github.com/k2-fsa/sherpa-onnx (releases, speaker-recognition models)"
SAY_IT = f"say it (duoplda embed --metadata NAME=TEXT,...); {WHERE}"
SHORTEST_SOUND = 0.025  # seconds: with less than one frame of features, embeddings are NaN


@dataclass(frozen=True, eq=False)
class Extractor:
    """An extractor of speaker embeddings in an ONNX file, as WeSpeaker, 3D-Speaker, NeMo and sherpa-onnx publish them.

    sherpa-onnx computes features and embeddings, as the file's metadata tell it. It uses one thread for a recording,
    because the last digits depend on the number of threads: so the same samples always give the same bits. Embeddings
    of different extractors cannot be compared.

    Parameters
    ----------
    path : the ONNX file
    lacking : metadata that the file lacks, such as `{"framework": "wespeaker", "sample_rate": "16000", ...}`. They
        count as part of the file, also in `sha256`: a file with other metadata is another extractor

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "x.onnx").write_bytes(b"\\x08\\x08")  # a version, and nothing else
    ...     try:
    ...         Extractor(folder + "/x.onnx")
    ...     except DuopldaError as error:
    ...         print("has no metadata 'framework'" in str(error))
    True
    """

    path: PathLike
    lacking: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(init=False, repr=False)
    sha256: str = field(init=False)  # of the file together with the metadata that it lacked
    sample_rate: int = field(init=False)  # samples a second that it takes
    dim: int = field(init=False)  # the dimension of its embeddings
    _network: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        metadata = _checked(self.path, _together(self.path, self.lacking))
        sherpa = need("sherpa_onnx")
        with _whole(self.path, self.lacking) as path:
            try:
                config = sherpa.SpeakerEmbeddingExtractorConfig(model=os.fspath(path), num_threads=1)
                network = sherpa.SpeakerEmbeddingExtractor(config)
            except (RuntimeError, UnicodeDecodeError) as error:  # the latter if its message quotes bytes of the file
                cause = f"sherpa-onnx cannot load it ({' '.join(str(error).split())[:160]})"
                raise bad(self.path, "", cause) from error
            with open_binary(path) as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        values = {"metadata": metadata, "sha256": sha256, "sample_rate": int(metadata["sample_rate"])}
        for name, value in {**values, "dim": int(network.dim), "_network": network}.items():
            object.__setattr__(self, name, value)

    @property
    def name(self) -> str:
        """The name of the file."""
        return Path(self.path).name

    def embed(self, samples: Samples) -> NDArray[np.float32]:
        """Return the embedding (dim,) of samples (n,) at the extractor's rate, between -1 and 1."""
        least = round(SHORTEST_SOUND * self.sample_rate)
        if len(samples) < least:
            raise DuopldaError(f"is {len(samples) / self.sample_rate:.3f} s long, less than {SHORTEST_SOUND} s")
        stream = self._network.create_stream()
        try:
            stream.accept_waveform(sample_rate=self.sample_rate, waveform=samples)
            stream.input_finished()
            embedding = np.array(self._network.compute(stream), np.float32)
        except (RuntimeError, UnicodeDecodeError) as error:
            raise bad(self.path, "", f"sherpa-onnx cannot run it ({' '.join(str(error).split())[:160]})") from error
        if not np.isfinite(embedding).all():
            raise DuopldaError("has an embedding with NaN or infinity in it; are its samples between -1 and 1?")
        return embedding


def _together(path: PathLike, lacking: Mapping[str, str]) -> dict[str, str]:
    """The metadata of a file together with those that it lacks."""
    metadata = read_metadata(path)
    for name, text in lacking.items():
        if metadata.get(name, text) != text:
            cause = f"has metadata of its own: its {name} is {shown(metadata[name])}, not {shown(text)}"
            raise bad(path, "", cause, "give only the metadata that it lacks")
    return {**metadata, **lacking}


@contextmanager
def _whole(path: PathLike, lacking: Mapping[str, str]) -> Iterator[PathLike]:
    """The file, or a temporary copy that has the lacking metadata: sherpa-onnx reads them only from the file."""
    if not lacking:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "whole.onnx")
        shutil.copyfile(path, copy)
        with open(copy, "ab") as file:
            file.write(metadata_fields(lacking))
        yield copy


def _checked(path: PathLike, metadata: dict[str, str]) -> dict[str, str]:
    """Refuse metadata with which sherpa-onnx would end the process."""
    framework = metadata.get("framework", "")
    if framework not in _NUMBERS:
        cause = f"has the framework {shown(framework)}" if framework else "has no metadata 'framework'"
        raise bad(path, "", f"{cause}: it must be one of {', '.join(_NUMBERS)}", WHERE if framework else SAY_IT)
    needed = (*_NUMBERS[framework], "language")
    if lacking := [name for name in needed if not metadata.get(name)]:
        raise bad(path, "", f"lacks the metadata {', '.join(lacking)}", SAY_IT)
    for name in _NUMBERS[framework]:
        text = metadata[name]
        if not (text.isascii() and text.isdecimal() and len(text) < 8):
            raise bad(path, "", f"metadata {name} is {shown(text)}, not a whole number", WHERE)
        smallest = 0 if name == "normalize_samples" else 4000 if name == "sample_rate" else 1
        if not smallest <= int(text) <= _LARGEST.get(name, 10_000):
            raise bad(path, "", f"metadata {name} is {text}, which is out of range", WHERE)
    if (kind := metadata.get("feature_normalize_type", "")) not in ("", _NORMALIZE[framework]):
        raise bad(path, "", f"metadata feature_normalize_type is {shown(kind)}, which sherpa-onnx does not know", WHERE)
    inputs, outputs = (len(names) for names in read_ends(path))
    least = _ENDS[framework]
    if inputs < least[0] or outputs < least[1]:
        cause = f"has {inputs} inputs and {outputs} outputs, and {framework} has {least[0]} and {least[1]}"
        raise bad(path, "", cause, "give an extractor of speaker embeddings")
    return metadata
