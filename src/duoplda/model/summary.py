"""How much of the variance a model gives to the speaker, to the session and to the channel.

    B = V V',   S = U U',   N = sum_k p_k W_k^-1,   T = B + S + N

p_k is the prior of kind k of channels; with one kind, N is W^-1.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh

from duoplda.arrays import Array, spd_inverse, to_numpy
from duoplda.errors import DuopldaError

Floats = NDArray[np.float64]


class VarianceShares(NamedTuple):
    """Shares of the variance along each direction, and over all: they add up to 1.

    >>> shares = variance_directions(np.diag([3.0, 1.0]), np.eye(2), np.eye(2))
    >>> shares.speaker.round(3).tolist(), shares.total
    ([0.6, 0.333], (0.5, 0.25, 0.25))
    """

    speaker: Floats  # (d,), falling
    session: Floats  # (d,)
    channel: Floats  # (d,)
    total: tuple[float, ...]  # shares of the traces: speaker, session, channel


def level_covariances(V: Array, U: Array, W: Array, priors: Array) -> tuple[Floats, Floats, Floats]:
    """B, S and N, each (d, d), of the loadings V (d, ny), U (d, nx), precisions W (d, d) or (K, d, d), priors (K,)."""
    V, U, p = (to_numpy(a).astype(np.float64) for a in (V, U, priors))
    return V @ V.T, U @ U.T, np.tensordot(p, _noise(W), 1)


def variance_shares(B: ArrayLike, S: ArrayLike, N: ArrayLike) -> dict[str, float]:
    """The share of each level in the trace of T.

    >>> variance_shares(np.diag([1.0, 0.0]), np.diag([0.0, 1.0]), np.eye(2))
    {'speaker': 0.25, 'session': 0.25, 'channel': 0.5}
    """
    traces = [float(np.trace(np.asarray(a))) for a in (B, S, N)]
    return {name: trace / sum(traces) for name, trace in zip(VarianceShares._fields, traces, strict=False)}


def channel_noise(V: Array, U: Array, W: Array, priors: Array) -> list[list[float]]:
    """For each kind of channel: its prior, and the share of the noise in the variance of its recordings."""
    common = sum(float((to_numpy(a) ** 2).sum()) for a in (V, U))
    noise = np.trace(_noise(W), axis1=1, axis2=2)
    return [[float(p), float(n / (n + common))] for p, n in zip(to_numpy(priors), noise, strict=True)]


def variance_directions(B: Any, S: ArrayLike | None = None, N: ArrayLike | None = None) -> VarianceShares:
    """The shares of speaker, session and channel in the variance, direction by direction.

    Give the covariances B, S, N, each (d, d), or a fitted PLDA. The directions v solve B v = lambda T v with v'Tv = 1.
    Along v the speaker's share is v'Bv = lambda, the session's v'Sv and the channel's v'Nv. Directions are ordered by
    falling lambda; where lambda is 0 they solve S v = lambda T v instead, which makes them well defined.

    >>> s = variance_directions(np.diag([1.0, 0.0]), np.diag([0.0, 3.0]), np.eye(2))
    >>> s.speaker.round(3).tolist(), s.session.round(3).tolist(), s.channel.round(3).tolist()
    ([0.5, 0.0], [0.0, 0.75], [0.5, 0.25])
    """
    if hasattr(B, "speaker_loadings_"):
        B, S, N = level_covariances(B.speaker_loadings_, B.session_loadings_, B.noise_precision_, B.channel_priors_)
    if S is None or N is None:
        raise DuopldaError("give a fitted PLDA, or the speaker, the session and the noise covariance")
    levels = [np.asarray(a, dtype=np.float64) for a in (B, S, N)]
    shapes = [a.shape for a in levels]
    if levels[0].ndim != 2 or shapes[0][0] != shapes[0][1] or len(set(shapes)) > 1:
        raise DuopldaError(f"the covariances have shapes {', '.join(map(str, shapes))}; each must be (d, d)")
    try:
        values, v = eigh(levels[0], levels[0] + levels[1] + levels[2])
    except np.linalg.LinAlgError:
        raise DuopldaError("the sum of the covariances is not positive definite") from None
    v = v[:, ::-1]
    idle = v[:, values[::-1] < 1e-9]  # directions in which speakers do not differ
    v[:, v.shape[1] - idle.shape[1] :] = idle @ np.linalg.eigh(idle.T @ levels[1] @ idle)[1][:, ::-1]
    shares = np.array([np.einsum("ik,ij,jk->k", v, a, v, optimize=True) for a in levels]).clip(0, 1)
    shares /= shares.sum(axis=0)
    return VarianceShares(shares[0], shares[1], shares[2], tuple(variance_shares(*levels).values()))


def _noise(W: Array) -> Floats:
    """Covariances (K, d, d) of precisions (d, d) or (K, d, d)."""
    W = to_numpy(W).astype(np.float64)
    return spd_inverse(W.reshape(-1, *W.shape[-2:]))[0]
