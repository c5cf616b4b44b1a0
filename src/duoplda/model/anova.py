"""Analysis of variance from the statistics: scatters by level, and what can be learnt from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from duoplda.arrays import Array, add_rows, gram, namespace, put, to_numpy, zeros
from duoplda.errors import DuopldaError, some
from duoplda.model.statistics import Statistics


def by_kind(stats: Statistics, stacked: list[Array]) -> Array:
    """(K, d) sums over types of stacked vectors."""
    out = zeros((stats.K, stats.d), stats.offset)
    for b, f in zip(stats.blocks, stacked, strict=True):
        for at, k in enumerate(b.present.tolist()):
            out[k, ...] += f[at * stats.d : (at + 1) * stats.d]
    return out


@dataclass(frozen=True, eq=False)
class Scatters:
    """Analysis of variance of nested, ragged data: scatters, degrees of freedom, and what they are expected to hold.

    E[session] = df_session W^-1 + a UU',   E[speaker] = df_speaker W^-1 + b UU' + e VV'
    """

    within: Array  # (d, d) of recordings about their session
    session: Array  # (d, d) of sessions about their speaker
    speaker: Array  # (d, d) of speakers about the mean
    df: tuple[float, float, float]
    a: float
    b: float
    e: float


def scatters(stats: Statistics) -> Scatters:
    """All kinds together, each about its own mean."""
    f = by_kind(stats, stats.f)
    xp = namespace(f)
    means = f / put(np.maximum(stats.N, 1e-300), f)[:, None]
    sizes = stats.types.sum(axis=1)
    Q = zeros((stats.d, stats.d), f)  # sum F F' / L over sessions
    within = xp.sum(stats.within, axis=0)
    total_sums = zeros((len(stats.speaker_ids), stats.d), f)
    for b, fc, H in zip(stats.blocks, stats.f, stats.H, strict=True):
        d, n = stats.d, len(b.present)
        m = xp.concat([int(b.counts[k]) * means[k, ...] for k in b.present.tolist()])
        T = b.T - fc[:, None] * m[None, :] - m[:, None] * fc[None, :] + float(H) * m[:, None] * m[None, :]
        parts = [[T[i * d : (i + 1) * d, j * d : (j + 1) * d] for j in range(n)] for i in range(n)]
        whole = sum(sum(row) for row in parts)
        within = within + sum(parts[i][i] / int(b.counts[k]) for i, k in enumerate(b.present.tolist())) - whole / b.size
        Q = Q + whole / b.size
        A = b.A - put(b.n.astype(float), f)[:, None] * m[None, :]
        add_rows(total_sums, b.speaker, sum(A[:, i * d : (i + 1) * d] for i in range(n)))
    n_i = np.maximum(stats.counts @ sizes, 1e-300)
    squares = stats.counts @ sizes**2
    w = stats.weights
    means_i = put(np.sqrt(w / n_i), f)[:, None] * total_sums
    B = gram(means_i)
    N, H, M = stats.n_recordings, stats.n_sessions, stats.n_speakers
    b_ = float(np.sum(w * squares / n_i))
    return Scatters(
        within,
        Q - B,
        B,  # about the mean: kinds are centred already
        (N - H, H - M, M - 1),
        N - b_,
        b_ - float(np.sum(w * squares)) / N,
        N - float(np.sum(w * n_i**2)) / N,
    )


def total_covariance(stats: Statistics) -> Array:
    """(d, d) covariance of all recordings, each kind about its mean."""
    s = scatters(stats)
    return (s.within + s.session + s.speaker) / stats.n_recordings


def check_identifiable(stats: Statistics, ny: int, nx: int) -> None:
    """Refuse data from which the asked-for parameters cannot be told apart, with the counts and what to do."""
    M, H, N, counts = _counts(stats)
    if nx and N == H:
        raise DuopldaError(
            f"{counts}: no session has two recordings, so session factors and channel noise cannot be told apart. Use "
            "n_session_factors=0 (or None), or label the recordings of one conversation with one session"
        )
    if nx and H == M:
        raise DuopldaError(
            f"{counts}: no speaker has two sessions, so speaker and session factors cannot be told apart. Use "
            "n_session_factors=0 to count sessions as part of the speaker, or add speakers with several sessions"
        )
    if M < 2:
        raise DuopldaError(f"{counts}: at least 2 speakers are needed to learn how speakers differ (one class only)")


def singular(stats: Statistics, ny: int, nx: int) -> str | None:
    """Why maximum likelihood has no answer for these data: the noise covariance would be singular. None if it has."""
    M, H, N, counts = _counts(stats)
    if ny and N == M:
        return (
            f"{counts}: no speaker has two recordings, so speaker factors and noise cannot be told apart. "
            "Check the speaker labels: the same id must stand for every recording of a speaker"
        )
    s = scatters(stats)
    total = to_numpy(s.within + s.session + s.speaker)
    noise, df, where = (s.within, N - H, "sessions") if nx else (s.within + s.session, N - M, "speakers")
    noise, scale = to_numpy(noise), np.sqrt(np.diagonal(total))
    size = np.abs(to_numpy(stats.offset)) + scale / max(N, 1) ** 0.5
    constant = np.flatnonzero(scale <= 1e-12 * size * N**0.5)
    if len(constant):
        return f"columns {some(constant)} are constant: remove them"
    if df < stats.d:
        return (
            f"{counts}: within {where} there are only {df} differences between recordings to learn a noise "
            f"covariance of {stats.d} dimensions from, which needs at least {stats.d}"
        )
    values, vectors = np.linalg.eigh(noise / np.outer(scale, scale))
    if values[0] > 1e-13 * stats.d:
        return None
    correlation = np.abs(total / np.outer(scale, scale))
    pairs = np.argwhere(np.triu(correlation > 1 - 1e-12, 1)).tolist()
    if pairs:
        return f"columns {some(map(tuple, pairs), 5)} are copies of each other: keep one"
    most = np.argsort(-np.abs(vectors[:, 0]))[:5]
    return (
        f"within {where}, recordings do not differ in {int((values <= 1e-13 * stats.d).sum())} of {stats.d} "
        f"directions (mostly columns {some(most)}): duplicated recordings, or dependent columns"
    )


def _counts(stats: Statistics) -> tuple[int, int, int, str]:
    M, H = len(stats.speaker_ids), int(stats.counts.sum())
    N = int((stats.counts @ stats.types.sum(axis=1)).sum())
    return M, H, N, f"{N} recordings in {H} sessions of {M} speakers"


def session_rank(stats: Statistics, n_session_factors: int | None) -> int:
    """The number of session factors; None: full rank if they can be told from noise and speakers, otherwise none."""
    if n_session_factors is not None:
        return n_session_factors
    sessions = int(stats.counts.sum())
    recordings = int((stats.counts @ stats.types.sum(axis=1)).sum())
    return stats.d if recordings > sessions > len(stats.speaker_ids) else 0
