"""A fingerprint of recordings, by which a checkpoint or a report says what it was made of."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np


class Digest(ThreadPoolExecutor):
    """The SHA-256 of ids and vectors, whatever the format and the chunks; a thread of its own computes it."""

    def __init__(self) -> None:
        super().__init__(1)
        self._ids = hashlib.sha256()
        self._vectors = hashlib.sha256()
        self._last = self.submit(self._update, np.zeros(0), np.zeros(0))

    def add(self, ids: np.ndarray, X: np.ndarray) -> None:
        """Add ids (k,) and vectors (k, d); either may be empty, as they need not come together."""
        self._last.result()  # one chunk waits at a time, so that memory stays bounded
        self._last = self.submit(self._update, ids, X)

    def _update(self, ids: np.ndarray, X: np.ndarray) -> None:
        """Add a chunk, in the other thread."""
        self._ids.update("".join([f"{i}\n" for i in ids.tolist()]).encode())
        self._vectors.update(np.ascontiguousarray(X, X.dtype.newbyteorder("<")).data)

    def value(self) -> str:
        """Return the digest of all that was added."""
        self._last.result()
        return "sha256:" + hashlib.sha256(self._ids.digest() + self._vectors.digest()).hexdigest()
