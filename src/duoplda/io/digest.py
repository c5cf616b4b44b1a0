"""A fingerprint of recordings, by which a checkpoint or a report says what it was made of; and the hash of a file."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from duoplda.io.common import PathLike


def file_sha256(path: PathLike) -> str:
    """Return the SHA-256 of the bytes of a file, as `sha256sum` prints it."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Digest(ThreadPoolExecutor):
    """A hash of ids and vectors, whatever the format and the chunks; a thread of its own computes it.

    It is called a fingerprint wherever people see it: `sha256sum` of the file gives another. `states` are hashes of the
    vectors up to the end of each chunk. With those of an `earlier` pass, `changed` is the number of the first chunk
    whose vectors are not the same, as far as is known by now.
    """

    def __init__(self, earlier: list[bytes] | None = None) -> None:
        super().__init__(1)
        self.states: list[bytes] = []
        self.changed: int | None = None
        self._earlier = earlier
        self._ids = hashlib.sha256()
        self._vectors = hashlib.sha256()
        self._last = self.submit(lambda: None)

    def add(self, ids: np.ndarray, X: np.ndarray) -> None:
        """Add ids (k,) and vectors (k, d); either may be empty, as they need not come together."""
        self._last.result()  # one chunk waits at a time, so that memory stays bounded
        self._last = self.submit(self._update, ids, X)

    def _update(self, ids: np.ndarray, X: np.ndarray) -> None:
        """Add a chunk, in the other thread."""
        self._ids.update("".join([f"{i}\n" for i in ids.tolist()]).encode())
        if not len(X):
            return
        self._vectors.update(np.ascontiguousarray(X, X.dtype.newbyteorder("<")).data)
        self.states.append(self._vectors.copy().digest())
        n = len(self.states)
        if self._earlier is not None and self.changed is None and self._earlier[n - 1 : n] != self.states[-1:]:
            self.changed = n - 1

    def value(self) -> str:
        """Return the digest of all that was added."""
        self._last.result()
        if self._earlier is not None and self.changed is None and len(self.states) < len(self._earlier):
            self.changed = len(self.states)
        return hashlib.sha256(self._ids.digest() + self._vectors.digest()).hexdigest()
