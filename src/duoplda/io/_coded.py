"""A column of strings, kept as codes into the list of its different values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Coded:
    """A column of n strings, few of which differ: it stands for `names[codes]` and takes 4 bytes for each.

    Example
    -------
    >>> Coded.of(["b", "a", "b"]).codes
    array([0, 1, 0], dtype=int32)
    """

    names: np.ndarray  # (k,) of str, each value once, in order of first appearance where it was read from a list
    codes: np.ndarray  # (n,) int32, rows of `names`

    @classmethod
    def of(cls, values: Iterable[str] | np.ndarray) -> Coded:
        """Code an array or list of strings."""
        seen: dict[str, int] = {}
        items = values.tolist() if isinstance(values, np.ndarray) else list(values)
        codes = np.fromiter((seen.setdefault(v, len(seen)) for v in items), np.int32, len(items))
        return cls(np.array(list(seen), dtype=str), codes)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice | np.ndarray) -> Coded:
        """Return some of the rows, with the same names."""
        return Coded(self.names, self.codes[rows])

    def __array__(self, dtype: np.typing.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.names[self.codes], dtype)

    @property
    def values(self) -> np.ndarray:
        """The strings themselves, (n,)."""
        return self.names[self.codes]
