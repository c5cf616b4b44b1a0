"""Arrays in bytes that were received over a network, as `.npy` or `.npz`, in bounded memory and without pickles."""

import io
import zipfile

import numpy as np

from duoplda.errors import DuopldaError
from duoplda.io.common import HeldText, bad, guarded
from duoplda.io.npy import header, whole_array
from duoplda.io.npz import load_array, names_in

ENTRY = b"PK\1\2"  # the first bytes of each entry in the table of contents of a zip file


class TooLarge(DuopldaError):
    """Raised for more data than the receiver accepts; fewer or smaller arrays may be accepted."""


def received_arrays(data: bytes, most: int, members: int = 1000) -> dict[str, np.ndarray]:
    """Read the arrays of a `.npz` by their names, or the array of a `.npy` under the name "".

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
    arrays: dict[str, np.ndarray] = {}
    try:
        if data.startswith(b"\x93NUMPY"):
            stream = io.BytesIO(data)
            shape, fortran, dtype = header(body, stream, "header")
            if dtype.hasobject or not dtype.itemsize:
                cause = f"holds {dtype}, not numbers (pickled objects are never loaded)"
                raise bad(body, "", cause, "save a float array")
            return {"": whole_array(body, "", stream, shape, fortran, dtype, most)}
        if not data.startswith((b"PK\3\4", b"PK\5\6")):
            raise bad(body, "", "is neither .npy nor .npz", "save it with numpy.save or numpy.savez")
        if data.count(ENTRY) > members:
            raise TooLarge(f"the body: has more than {members} arrays; send them in several requests")
        with guarded(body, "a NumPy .npz file"), zipfile.ZipFile(io.BytesIO(data)) as z:
            packing = {info.compress_type for info in z.infolist()}
        if packing - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:  # others may unpack to far more, or need much memory
            raise bad(body, "", "is packed in an unusual way", "save it with numpy.savez or numpy.savez_compressed")
        left = most
        for name in names_in(body):
            if name in arrays:
                raise bad(body, name, "is there twice", "give each array a name of its own")
            arrays[name] = load_array(body, name, left)
            left -= arrays[name].nbytes
    except OverflowError:
        cause = f"its arrays have more than {most:,} bytes"
        raise TooLarge(f"the body: {cause}; send fewer recordings at a time") from None
    return arrays
