"""Inverses, factors and determinants of symmetric positive definite matrices, in any array library."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays.libraries import Array, is_torch, namespace, zeros


def symmetric(matrix: Array) -> Array:
    """Return the symmetric part of matrices, which removes an asymmetry that comes from rounding."""
    return (matrix + matrix.mT) / 2


def logdet_cholesky(factor: Array) -> Array:
    """Return ln|CC'| for triangular factors C (..., n, n)."""
    xp = namespace(factor)
    return 2 * xp.sum(xp.log(xp.linalg.diagonal(factor)), axis=-1)


class NotPositiveDefinite(ArithmeticError):
    """Raised where a matrix should be positive definite and, in double precision, is not."""


def _checked(function: Callable[..., Array], *matrices: Array) -> Array:
    """Call a function of linear algebra, and raise NotPositiveDefinite where it fails in the way of its library."""
    xp = namespace(*matrices)
    library = sys.modules["torch"] if is_torch(xp) else np
    try:
        result = function(*matrices)
    except library.linalg.LinAlgError as error:
        raise NotPositiveDefinite(str(error)) from None
    if not bool(xp.all(xp.isfinite(result))):  # libraries that raise no error return NaN
        raise NotPositiveDefinite("the result is not finite")
    return result


def cholesky(matrices: Array) -> Array:
    """Return lower triangular C with CC' = A for symmetric positive definite matrices A (..., n, n)."""
    return _checked(namespace(matrices).linalg.cholesky, matrices)


def solve(matrices: Array, rhs: Array) -> Array:
    """Return A^-1 B for regular matrices A (..., n, n) and B (..., n, m)."""
    return _checked(namespace(matrices, rhs).linalg.solve, matrices, rhs)


def spd_inverse(matrices: Array) -> tuple[Array, Array]:
    """Return the inverses and ln-determinants of symmetric positive definite matrices (..., n, n)."""
    xp = namespace(matrices)
    n = matrices.shape[-1]
    if n == 0:
        return matrices, zeros(matrices.shape[:-2], matrices)
    if xp is np:
        out = np.array(matrices, dtype=np.float64, order="C")
        ln = SpdInverse()(out.reshape(-1, n, n))
        return out, ln.reshape(matrices.shape[:-2])
    factor = cholesky(matrices)
    inverse = xp.cholesky_inverse(factor) if is_torch(xp) else symmetric(_checked(xp.linalg.inv, matrices))
    return inverse, logdet_cholesky(factor)


class SpdInverse:
    """Inverts stacks (m, n, n) of symmetric positive definite matrices in place, and returns their ln-determinants.

    It works by block elimination: with M = [A B'; B C], X = B A^-1 and S = C - X B',

        M^-1 = [A^-1 + X'S^-1 X, -X'S^-1; -S^-1 X, S^-1],   ln|M| = ln|A| + ln|S|,

    down to blocks of 32 or fewer rows, which are inverted by Cholesky factors (other sizes were no faster). Most of the
    work is then products of stacks, during which Python's other threads run. SciPy's potrf and potri would need fewer
    operations, but they belong to another BLAS than NumPy's products, and the threads of the two wait for each other
    (an iteration of EM was five times slower). Buffers are kept between calls, because half of the time would otherwise
    go into new pages from the operating system. An object must not be used by two threads at once.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, ...], NDArray[Any]] = {}

    def buffer(self, use: int, m: int, rows: int, columns: int) -> NDArray[Any]:
        """Return a stack (m, rows, columns), which is 0 at first, and the same memory whenever `use` is the same.

        This class uses numbers from 0 on; callers use negative ones.
        """
        kept = self._buffers.get((use, rows, columns))
        if kept is None or len(kept) < m:
            kept = self._buffers[use, rows, columns] = np.zeros((m, rows, columns))
        return kept[:m]

    def __call__(self, M: NDArray[Any]) -> NDArray[Any]:
        diagonal = _checked(self._invert, M, self.buffer(0, 1, *M.shape[:2])[0])
        ln: NDArray[Any] = 2.0 * np.log(diagonal).sum(axis=1)
        return ln

    def _invert(self, M: NDArray[Any], diagonal: NDArray[Any]) -> NDArray[Any]:
        """Invert the stack in place; write the diagonals (m, n) of its Cholesky factors, and return them."""
        m, n = M.shape[:2]
        h = n // 2
        if n <= 32:
            factor = np.linalg.cholesky(M)
            diagonal[...] = np.diagonal(factor, axis1=1, axis2=2)
            inverse = self._lower(factor) if m >= 8 and n else np.linalg.inv(factor)
            # Half of the factor is 0, so half of the product can be left out. A single product L'L would be done by
            # BLAS's syrk, which is slow for small matrices.
            np.matmul(inverse.mT, inverse[:, :, :h], out=M[:, :, :h])
            np.matmul(inverse[:, h:].mT, inverse[:, h:, h:], out=M[:, :, h:])
            return diagonal
        A = M[:, :h, :h]
        B = M[:, h:, :h]
        C = M[:, h:, h:]
        self._invert(A, diagonal[:, :h])
        X = np.matmul(B, A, out=self.buffer(1, m, n - h, h))
        np.negative(X, out=X)
        C += np.matmul(X, M[:, :h, h:], out=self.buffer(2, m, n - h, n - h))
        self._invert(C, diagonal[:, h:])
        np.matmul(C, X, out=B)
        A += np.matmul(X.mT, B, out=self.buffer(2, m, h, h))
        M[:, :h, h:] = B.mT
        return diagonal

    def _lower(self, L: NDArray[Any]) -> NDArray[Any]:
        """Return L^-1 for lower triangular L (m, n, n): its blocks of 5 on the diagonal, then row after row of blocks.

        The entries at one place of all diagonal blocks are contiguous in memory, so that a few calls of NumPy invert
        all blocks. A smaller last block is filled up with the identity. Above the diagonal the buffers stay 0.
        """
        m, n = L.shape[:2]
        b = 5
        starts = range(0, n, b)
        D, X, terms = (self.buffer(use, b, b, m * len(starts)) for use in (3, 4, 5))
        blocks = D.reshape(b, b, len(starts), m)
        blocks[:, :, -1] = np.eye(b)[:, :, None]
        for j, a in enumerate(starts):
            size = min(b, n - a)
            blocks[:size, :size, j] = L[:, a : a + size, a : a + size].transpose(1, 2, 0)
        for i in range(b):
            np.divide(1.0, D[i, i], out=X[i, i])
            np.multiply(D[i, :i, None], X[:i, :i], out=terms[:i, :i])
            X[i, :i] = terms[:i, :i].sum(axis=0)
            X[i, :i] *= -X[i, i]
        inverted = X.reshape(b, b, len(starts), m).transpose(2, 3, 0, 1)
        out = self.buffer(6, m, n, n)
        for j, a in enumerate(starts):
            stop = min(a + b, n)
            out[:, a:stop, a:stop] = inverted[j, :, : stop - a, : stop - a]
            np.matmul(out[:, a:stop, a:stop], -L[:, a:stop, :a] @ out[:, :a, :a], out=out[:, a:stop, :a])
        return out
