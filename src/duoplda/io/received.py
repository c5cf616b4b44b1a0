"""Arrays in bytes that came over a network, as `.npy` or `.npz`: nothing is unpickled, and memory is bounded."""

import io
import zipfile
from math import prod

import numpy as np

from duoplda.errors import DuopldaError
from duoplda.io.common import HeldText, bad, guarded
from duoplda.io.npy import header
from duoplda.io.npz import load_array, names_in

ENTRY = b"PK\1\2"  # what each entry of a zip file's table of contents begins with


class TooLarge(DuopldaError):
    """More than the receiver takes: fewer or smaller arrays may do."""


def received_arrays(data: bytes, most: int, members: int = 1000) -> dict[str, np.ndarray]:
    """Read the arrays in the bytes of a `.npz`, by name, or the one in those of a `.npy`, whose name is "".

    Parameters
    ----------
    most : bytes of all arrays together, unpacked; more is refused before it is unpacked
    members : arrays of a `.npz`; more are refused before their names are read

    Example
    -------
    >>> with io.BytesIO() as file:
    ...     np.save(file, np.eye(2))
    ...     received_arrays(file.getvalue(), most=32)
    {'': array([[1., 0.],
           [0., 1.]])}
    """
    body = HeldText("the body", data, "")
    if data.startswith(b"\x93NUMPY"):
        return {"": _npy(body, most)}
    if not data.startswith((b"PK\3\4", b"PK\5\6")):
        raise bad(body, "", "is neither .npy nor .npz", "save it with numpy.save or numpy.savez")
    if data.count(ENTRY) > members:
        raise TooLarge(f"the body: has more than {members} arrays; send them in several requests")
    with guarded(body, "a NumPy .npz file"), zipfile.ZipFile(io.BytesIO(data)) as z:
        packing = {info.compress_type for info in z.infolist()}
    if packing - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:  # others may unpack far more, or ask for much memory
        raise bad(body, "", "is packed in an unusual way", "save it with numpy.savez or numpy.savez_compressed")
    arrays: dict[str, np.ndarray] = {}
    left = most
    for name in names_in(body):
        if name in arrays:
            raise bad(body, name, "is there twice", "give each array a name of its own")
        try:
            arrays[name] = load_array(body, name, left)
        except OverflowError:
            raise _too_large(most) from None
        left -= arrays[name].nbytes
    return arrays


def _npy(body: HeldText, most: int) -> np.ndarray:
    """Read the one array of a `.npy`."""
    stream = io.BytesIO(body.data)
    shape, fortran, dtype = header(body, stream, "header")
    if dtype.hasobject or not dtype.itemsize:
        raise bad(body, "", f"holds {dtype}, not numbers (pickled objects are never loaded)", "save a float array")
    nbytes = dtype.itemsize * prod(shape)
    if nbytes > most:
        raise _too_large(most)
    start = stream.tell()
    if nbytes > len(body.data) - start:
        raise bad(body, "", f"is cut short: {nbytes} bytes are declared", "save and send it again")
    return np.frombuffer(body.data[start : start + nbytes], dtype).reshape(shape, order="F" if fortran else "C")


def _too_large(most: int) -> TooLarge:
    """Make the error for arrays that are too large together."""
    return TooLarge(f"the body: its arrays have more than {most:,} bytes; send fewer recordings at a time")
