"""The same examples in every run, and one fixture that runs a numeric test on every array library.

`pytest --hypothesis-profile=default` draws new examples. `make test` has NumPy and array-api-strict; `make test-torch`
runs the files that use `library` in an environment that has torch as well.
"""

from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import settings

from duoplda.arrays import Array

# No example has a deadline: on a busy machine the first one of a test may take a second.
settings.register_profile("same", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("same")

LIBRARIES = ["numpy", "array_api_strict", *(["torch"] if find_spec("torch") else [])]


class Library:
    """An array library, and how to go in and out of it."""

    def __init__(self, name: str):
        self.name = name
        self.xp = np if name == "numpy" else pytest.importorskip(name)
        self.array_type = type(self.xp.asarray([0.0]))

    def put(self, array: Array, dtype: str = "float64") -> Array:
        return self.xp.asarray(np.asarray(array), dtype=getattr(self.xp, dtype))

    def get(self, array: Array) -> np.ndarray:
        """As NumPy, after looking at the type: what goes in decides what comes out, in double precision."""
        assert type(array) is self.array_type, f"{type(array)} came out of {self.name}"
        assert array.dtype == self.xp.float64
        return np.asarray(array)


@pytest.fixture(params=LIBRARIES)
def library(request):
    """NumPy, array-api-strict and, where it is installed, torch: each test that asks for it runs once on each."""
    return Library(request.param)
