"""The array library of the input (NumPy, torch, or any of the array API standard), and moving arrays between libraries.

The input decides where the work is done and what comes out: `namespace(X)` gives the library `xp`, and the numeric
rooms call `xp.*`. Labels, ids and counts are always arrays of NumPy, on the host.
"""

import importlib
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.errors import DuopldaError, some

Array = Any  # an array of NumPy, torch or another library of the array API standard
Device = Any  # a device of torch, or its name ("cuda:1"); None: arrays stay where they are


def namespace(*arrays: object) -> Any:
    """Return the library of the first argument that is an array of another library than NumPy; else NumPy."""
    for array in arrays:
        if isinstance(array, np.ndarray):
            continue
        if type(array).__module__.partition(".")[0] == "torch":
            return _torch()
        if hasattr(array, "__array_namespace__"):
            return array.__array_namespace__()
    return np


@cache
def _torch() -> Any:
    """Return torch with the names of the standard. It is large, so it is imported when the first tensor comes."""
    try:
        return importlib.import_module("array_api_compat.torch")  # torch with the names of the standard
    except ImportError:
        raise DuopldaError("tensors of torch need array-api-compat: pip install 'duoplda[torch]'") from None


def is_torch(xp: Any) -> bool:
    """Say whether a library is torch, which has operations that the standard lacks, such as additions in place."""
    return "torch" in xp.__name__


def to_numpy(array: Array) -> NDArray[Any]:
    """Return any array as one of NumPy on the host, without a copy if possible; no entry may be masked."""
    if isinstance(array, np.ma.MaskedArray):
        mask = np.atleast_1d(np.ma.getmaskarray(array))
        masked = np.flatnonzero(mask.any(axis=tuple(range(1, mask.ndim))))
        if len(masked):
            raise DuopldaError(f"the array has masked entries in rows {some(masked)}: remove these rows first")
        return array.data
    if isinstance(array, np.matrix):
        raise DuopldaError("np.matrix is not taken, since its products are not those of an array: give np.asarray(...)")
    if isinstance(array, np.ndarray):
        return array
    if hasattr(array, "detach"):
        array = array.detach().cpu()
    try:
        return np.asarray(array)
    except (TypeError, RuntimeError):  # an array of another library that is on a device
        if not hasattr(array, "__dlpack__"):
            raise
        return np.from_dlpack(array, device="cpu")


def to_float(array: Array, xp: Any) -> Array:
    """Return an array in double precision, in its library and on its device; lists and NumPy's arrays become `xp`'s."""
    if xp is np:
        return np.asarray(array, dtype=np.float64)
    if namespace(array) is np:
        return xp.asarray(np.asarray(array, dtype=np.float64))
    if is_torch(xp):
        array = array.detach()  # with gradients, torch would keep the intermediate results of all iterations of EM
    return xp.astype(array, xp.float64, copy=False)


def put(host: Array, like: Array) -> Array:
    """Return a host array as doubles or 64-bit integers where `like` is; tensors of its library are not changed."""
    xp = namespace(like)
    if xp is not np and namespace(host) is xp:
        return host
    host = to_numpy(host)
    host = host.astype(np.int64 if host.dtype.kind in "biu" else np.float64, copy=False)
    if getattr(like, "is_cuda", False):  # from other than pinned memory, a copy would wait for the GPU's queued work
        dtype = xp.int64 if host.dtype == np.int64 else xp.float64
        pinned = xp.empty(host.shape, dtype=dtype, pin_memory=True)
        pinned.numpy()[...] = host
        return pinned.to(like.device, non_blocking=True)
    return host if xp is np else xp.asarray(host, device=like.device)


def on_device(X: Array, device: Device) -> Array:
    """Return rows as a tensor on a device of torch; as they are, if it is None or "cpu", or if they are a tensor."""
    if device is None or str(device) == "cpu" or namespace(X) is not np:
        return X
    try:
        import torch
    except ImportError:
        raise DuopldaError(f"device {device!r} needs torch: pip install 'duoplda[torch]'") from None
    try:
        torch.zeros(1, dtype=torch.float64, device=device).cpu()  # not every device has doubles, or gives data back
        return torch.tensor(to_numpy(X), device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise DuopldaError(f"device {device!r} cannot be used: {cause}") from None


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    """Return zeros in double precision, in the library and on the device of `like`."""
    xp = namespace(like)
    return np.zeros(shape) if xp is np else xp.zeros(shape, dtype=xp.float64, device=like.device)


def arange(n: int, like: Array) -> Array:
    """Return 0 .. n-1, in the library and on the device of `like`."""
    xp = namespace(like)
    return np.arange(n) if xp is np else xp.arange(n, dtype=xp.int64, device=like.device)


def eye(n: int, like: Array) -> Array:
    """Return the identity (n, n), in the library and on the device of `like`."""
    xp = namespace(like)
    return np.eye(n) if xp is np else xp.eye(n, dtype=xp.float64, device=like.device)
