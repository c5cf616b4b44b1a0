"""Analysis of variance of nested, ragged data, from their statistics: scatters by level, and what they can tell apart.

With M speakers, H sessions and N recordings, F_ij the sum of the L_ij recordings of a session and F_i of the N_i of a
speaker, all about the means of their kinds of channels:

    within  = sum phi phi' - sum_ij F_ij F_ij' / L_ij      E[within]  = (N - H) W^-1
    session = sum_ij F_ij F_ij' / L_ij - sum_i F_i F_i' / N_i    E[session] = (H - M) W^-1 + a UU'
    speaker = sum_i F_i F_i' / N_i                         E[speaker] = (M - 1) W^-1 + b UU' + e VV'

    a = N - sum_ij L_ij^2 / N_i,   b = sum_ij L_ij^2 / N_i - sum_ij L_ij^2 / N,   e = N - sum_i N_i^2 / N
"""

from dataclasses import dataclass

import numpy as np

from duoplda.arrays import Array, add_rows, gram, namespace, put, reproducible, to_numpy, zeros
from duoplda.errors import DuopldaError, some
from duoplda.model.accumulate import LARGEST_SUM
from duoplda.model.statistics import Statistics


@dataclass(frozen=True, eq=False)
class Scatters:
    """The scatter of each level, its degrees of freedom, and the factors a, b and e of the formulas above."""

    within: Array  # (d, d) of recordings about their session
    session: Array  # (d, d) of sessions about their speaker
    speaker: Array  # (d, d) of speakers about the mean
    df: tuple[float, float, float]  # degrees of freedom within, between sessions, between speakers
    a: float
    b: float
    e: float


@reproducible()
def scatters(stats: Statistics) -> Scatters:
    """The scatters of recordings of all kinds of channels together, each about the mean of its kind."""
    means = stats.kind_means
    d = stats.d
    within = namespace(means).sum(stats.within, axis=0)
    sessions = zeros((d, d), means)  # sum F F' / L over sessions
    F = zeros((len(stats.speaker_ids), d), means)  # of speakers
    for b in stats.shifted(-means):
        kinds = [columns for _, _, columns in b.parts]
        whole = sum(b.T[i, j] for i in kinds for j in kinds) / b.size
        within = within - whole + sum(b.T[i, i] / n for _, n, i in b.parts)
        sessions = sessions + whole
        add_rows(F, b.speaker, sum(b.A[:, i] for i in kinds))
    w = stats.weights
    sizes = stats.types.sum(axis=1)
    N_i = np.maximum(stats.counts @ sizes, 1e-300)
    squares = stats.counts @ sizes**2
    speaker = gram(put(np.sqrt(w / N_i), F)[:, None] * F)
    N = stats.n_recordings
    H = stats.n_sessions
    M = stats.n_speakers
    shared = float(np.sum(w * squares / N_i))
    a = N - shared
    b_factor = shared - float(np.sum(w * squares)) / N
    e = N - float(np.sum(w * N_i**2)) / N
    return Scatters(within, sessions - speaker, speaker, (N - H, H - M, M - 1), a, b_factor, e)


def total_covariance(stats: Statistics) -> Array:
    """(d, d) covariance of all recordings, each about the mean of its kind."""
    s = scatters(stats)
    return (s.within + s.session + s.speaker) / stats.n_recordings


def _counts(stats: Statistics) -> tuple[int, int, int, str]:
    """The unweighted numbers of speakers, sessions and recordings, and a phrase that names them."""
    M = len(stats.speaker_ids)
    H = int(stats.counts.sum())
    N = int((stats.counts @ stats.types.sum(axis=1)).sum())
    return M, H, N, f"{N} recordings in {H} sessions of {M} speakers"


def session_rank(stats: Statistics) -> int:
    """The largest number of session factors: full rank if they can be told from noise and speakers, otherwise none."""
    M, H, N, _ = _counts(stats)
    return stats.d if N > H > M else 0


def single_sessions(stats: Statistics) -> str | None:
    """A warning if sessions have several recordings, but no speaker has two sessions; None if some speaker has."""
    M, H, N, counts = _counts(stats)
    if N == H or H > M:
        return None
    follows = "a speaker in another session will look like another speaker"
    remedy = "Add speakers with several sessions, or say n_session_factors=0 if that is what you want"
    return f"{counts}: no speaker has two sessions, so that sessions count as part of the speaker: {follows}. {remedy}"


def check_identifiable(stats: Statistics, ny: int, nx: int) -> None:
    """Refuse data from which the parameters asked for cannot be told apart, with the counts and what to do."""
    M, H, N, counts = _counts(stats)
    if nx and N == H:
        cause = "no session has two recordings, so session factors and channel noise cannot be told apart"
        remedy = "Use n_session_factors=0 (or None), or label the recordings of one conversation with one session"
        raise DuopldaError(f"{counts}: {cause}. {remedy}")
    if nx and H == M:
        cause = "no speaker has two sessions, so speaker and session factors cannot be told apart"
        remedy = "n_session_factors=0 to count sessions as part of the speaker, or add speakers with several sessions"
        raise DuopldaError(f"{counts}: {cause}. Use {remedy}")
    if M < 2:
        raise DuopldaError(f"{counts}: at least 2 speakers are needed to learn how speakers differ (one class only)")
    variance = float(np.trace(to_numpy(total_covariance(stats)))) / stats.d
    if 0 < variance * LARGEST_SUM < 1:
        cause = f"the recordings have a variance of {variance:.3g}, whose inverse is too large to compute with"
        raise DuopldaError(f"{counts}: {cause}. Give them in another unit, multiplied by {variance**-0.5:.0e}")


@reproducible()
def singular(stats: Statistics, ny: int, nx: int) -> str | None:
    """Why the noise covariance of maximum likelihood would be singular for these data; None if it would not be."""
    M, H, N, counts = _counts(stats)
    d = stats.d
    if ny and N == M:
        cause = "no speaker has two recordings, so speaker factors and noise cannot be told apart"
        remedy = "Check the speaker labels: the same id must stand for every recording of a speaker"
        return f"{counts}: {cause}. {remedy}"
    s = scatters(stats)
    total = to_numpy(s.within + s.session + s.speaker)
    noise, df, where = (s.within, N - H, "sessions") if nx else (s.within + s.session, N - M, "speakers")
    noise = to_numpy(noise)
    scale = np.sqrt(np.diagonal(total))
    size = np.abs(to_numpy(stats.offset)) + scale / max(N, 1) ** 0.5
    constant = np.flatnonzero(scale <= 1e-12 * size * N**0.5)  # constant but for the rounding of sums
    if len(constant):
        return f"columns {some(constant)} are constant: remove them"
    if df < d:
        have = f"within {where} there are only {df} differences between recordings"
        return f"{counts}: {have} to learn a noise covariance of {d} dimensions from, which needs at least {d}"
    values, vectors = np.linalg.eigh(noise / np.outer(scale, scale))
    flat = int((values <= 1e-13 * d).sum())
    if not flat:
        return None
    correlation = np.abs(total / np.outer(scale, scale))
    pairs = np.argwhere(np.triu(correlation > 1 - 1e-12, 1)).tolist()
    if pairs:
        return f"columns {some(map(tuple, pairs), 5)} are copies of each other: keep one"
    columns = f"mostly columns {some(np.argsort(-np.abs(vectors[:, 0]))[:5])}"
    problem = f"within {where}, recordings do not differ in {flat} of {d} directions ({columns})"
    return f"{problem}: duplicated recordings, or dependent columns"
