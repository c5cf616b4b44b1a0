"""What the array API standard lacks: libraries and devices, rows, inverses, threads; one file for each."""

from duoplda.arrays.inverses import (
    NotPositiveDefinite,
    SpdInverse,
    cholesky,
    logdet_cholesky,
    solve,
    spd_inverse,
    symmetric,
)
from duoplda.arrays.libraries import Array, arange, eye, is_torch, namespace, on_device, put, to_float, to_numpy, zeros
from duoplda.arrays.rows import (
    add_rows,
    add_segments,
    bincount,
    check_finite,
    check_rows,
    ranked,
    segment_sums,
    set_rows,
    take,
)
from duoplda.arrays.streams import Arriving, streamed
from duoplda.arrays.threads import (
    gram,
    in_order,
    one_blas_thread,
    reproducible,
    row_blocks,
    tall_product,
)

__all__ = [
    "Array",
    "Arriving",
    "NotPositiveDefinite",
    "SpdInverse",
    "add_rows",
    "add_segments",
    "arange",
    "bincount",
    "check_finite",
    "check_rows",
    "cholesky",
    "eye",
    "gram",
    "in_order",
    "is_torch",
    "logdet_cholesky",
    "namespace",
    "on_device",
    "one_blas_thread",
    "put",
    "ranked",
    "reproducible",
    "row_blocks",
    "segment_sums",
    "set_rows",
    "solve",
    "spd_inverse",
    "streamed",
    "symmetric",
    "take",
    "tall_product",
    "to_float",
    "to_numpy",
    "zeros",
]
