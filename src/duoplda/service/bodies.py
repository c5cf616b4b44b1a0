"""Reads the recordings in the body of a request, as the matrix and the labels that the registry takes.

    JSON      {"embeddings": [[...], ...], "session": "monday"}, or only the list of lists
    .npy      the matrix (n, d)
    .npz      `embeddings` (n, d), and `session` if the recordings are of several sessions
    audio     one recording in any format that libsndfile reads, if the service has an extractor; it is embedded as
              `duoplda embed` does it, and not stored

`session` is one name for all recordings, or one for each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.audio import EnergyDetector, Extractor, received_audio
from duoplda.audio.embedding import LEAST_SPEECH
from duoplda.errors import DuopldaError, error_prefix
from duoplda.io.ids import MAX_ID
from duoplda.io.received import TooLarge, received_arrays
from duoplda.service.limits import Limits
from duoplda.service.problems import Problem

JSON = "application/json"
ARRAYS = ("application/x-npy", "application/x-npz", "application/octet-stream")
AUDIO = "audio/*"  # any of these types: the format is recognised by the bytes of the body
MEDIA_TYPES = (JSON, *ARRAYS)
LONGEST_AUDIO = 300.0  # seconds: a few megabytes of a compressed format can hold days of silence
VECTORS = ("embeddings", "embedding", "xvectors", "X")  # names that the matrix may have

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Labels = str | list[str] | None


class Received(NamedTuple):
    """The recordings of a body, and their labels."""

    X: NDArray[np.floating]  # (n, d)
    session: Labels = None  # one for all recordings, or one for each
    kind: Labels = None


@dataclass(frozen=True)
class Reader:
    """Reads bodies, within the limits of the service."""

    limits: Limits
    dimension: int  # of the model's vectors
    listen: Callable[[bytes], NDArray[np.floating]] | None = None  # makes an embedding (1, d) of a body of audio

    def recordings(self, media_type: str, body: bytes) -> Received:
        """Read recordings with their sessions and kinds."""
        if _media_type(media_type).startswith("audio/"):
            if self.listen is None:
                raise Problem(415, "this service reads no audio: send embeddings, or start it with --extractor")
            return Received(self.listen(body))
        fields = self._fields(media_type, body)
        matrices = [name for name in VECTORS if name in fields] or [name for name in fields if name == ""]
        if not matrices:
            present = ", ".join(map(repr, fields)) or "nothing"
            raise Problem(422, f"the body has no array `embeddings`; it has {present}")
        X = self._matrix(matrices[0], fields[matrices[0]])
        if len(X) > self.limits.max_rows:
            raise self._too_many()
        session, kind = (_labels(name, fields.get(name), len(X)) for name in ("session", "kind"))
        return Received(X, session, kind)

    def speakers(self, media_type: str, body: bytes) -> dict[str, NDArray[np.floating]]:
        """Read the recordings of the speakers of one file: one matrix for each, by name."""
        fields = self._fields(media_type, body)
        inner = fields.get("speakers")
        fields = inner if isinstance(inner, dict) else fields
        if not fields or "" in fields:
            raise Problem(422, 'name each speaker: {"speakers": {"A": [[...], ...], "B": ...}}, or a .npz of matrices')
        speakers = {label: self._matrix(label, value) for label, value in fields.items()}
        if sum(map(len, speakers.values())) > self.limits.max_rows:
            raise self._too_many()
        return speakers

    def _fields(self, media_type: str, body: bytes) -> dict[str, object]:
        """The values of the body by name; a body without names has one value, whose name is ""."""
        kind = _media_type(media_type)
        if kind in ARRAYS:
            # Vectors in double precision take 8 bytes a number, and labels and headers may take as much again.
            return dict(received_arrays(body, 16 * self.limits.max_rows * self.dimension + (1 << 16)))
        if kind != JSON:
            cause = f"the body is of the type {kind}" if kind else "the request does not say of which type its body is"
            raise Problem(415, f"{cause}; send one of {', '.join(MEDIA_TYPES)}")
        value = self._json(body)
        return dict(value) if isinstance(value, dict) else {"": value}

    def _json(self, body: bytes) -> Json:
        """Parse JSON, if it has no more lists and values than the limits allow."""
        rows = self.limits.max_rows
        if body.count(b"[") + body.count(b"{") > 2 * rows + 10 or body.count(b",") > rows * (self.dimension + 2):
            raise self._too_many()
        try:
            return json.loads(body, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:  # bytes that are not UTF-8 are a ValueError, too
            raise Problem(400, f"the body is not JSON: {error}"[:200]) from None

    def _matrix(self, name: str, value: object) -> NDArray[np.floating]:
        """A matrix of recordings, from lists or from an array; one vector is one recording."""
        what = f"`{name}`" if name else "the body"
        X = value if isinstance(value, np.ndarray) else _from_lists(what, value)
        if X.dtype.kind != "f" or X.dtype.itemsize not in (2, 4, 8):
            raise DuopldaError(f"{what} holds {X.dtype}, not 16-, 32- or 64-bit floats")
        X = X[None] if X.ndim == 1 else X
        if X.ndim != 2 or not len(X):
            raise DuopldaError(f"{what} has shape {X.shape}: recordings are a matrix, one row for each")
        if X.shape[1] != self.dimension:
            raise DuopldaError(f"{what} has vectors of {X.shape[1]} dimensions, and the model {self.dimension}")
        finite = np.isfinite(X).all(1)
        if not finite.all():
            raise DuopldaError(f"{what}: recording {int(finite.argmin())} has NaN or infinite values")
        return X.astype(X.dtype.newbyteorder("="))

    def _too_many(self) -> TooLarge:
        return TooLarge(f"the body has more than {self.limits.max_rows} recordings; send fewer at a time")


def embedding_of(extractor: Extractor, body: bytes) -> NDArray[np.float32]:
    """Return the embedding (1, d) of a body of audio; a recording without speech is an error."""
    samples = received_audio(body, extractor.sample_rate, LONGEST_AUDIO)
    regions = EnergyDetector().regions(iter([samples]), extractor.sample_rate)
    with error_prefix("the body"):
        if float(np.diff(regions, axis=1).sum()) < LEAST_SPEECH:
            seconds = len(samples) / extractor.sample_rate
            raise DuopldaError(f"has no speech in its {seconds:.1f} s, so that nobody can be recognised in it")
        return extractor.embed(samples)[None]


def _media_type(header: str) -> str:
    """The media type of a Content-Type header, without its parameters."""
    return header.partition(";")[0].strip().lower()


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is not a number in JSON")


def _from_lists(what: str, value: object) -> NDArray[np.float64]:
    """A vector or a matrix from lists of numbers."""
    if not isinstance(value, list) or not value:
        raise DuopldaError(f"{what} is not a list of recordings, each a list of numbers")
    rows = value if isinstance(value[0], list) else [value]
    for number, row in enumerate(rows):
        if not isinstance(row, list) or not all(type(x) is float or type(x) is int for x in row):
            raise DuopldaError(f"{what}: recording {number} is not a list of numbers")
        if len(row) != len(rows[0]):
            raise DuopldaError(f"{what}: recording {number} has {len(row)} numbers, and the first has {len(rows[0])}")
    try:
        return np.array(rows, dtype=np.float64)
    except OverflowError:
        raise DuopldaError(f"{what} has a number beyond double precision") from None


def _labels(name: str, value: object, n: int) -> Labels:
    """One label, or one for each of n recordings."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "USiu" or value.shape not in ((), (n,)) or value.dtype.itemsize > 4 * MAX_ID:
            raise DuopldaError(f"`{name}` holds {value.dtype} of shape {value.shape}: give one text for each recording")
        value = value.tolist()
    if value is None:
        return None
    if not isinstance(value, list):
        return _text(name, value)
    if len(value) != n:
        raise DuopldaError(f"`{name}` has {len(value)} labels for {n} recordings")
    return [_text(name, item) for item in value]


def _text(name: str, value: object) -> str:
    """A label as text."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise DuopldaError(f"`{name}` must be text, or a list of texts")
    return str(value)
