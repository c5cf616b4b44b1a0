"""Built-in data: labelled recordings drawn from a two-source model, with numbers of sessions and copies that vary."""

from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import symmetric, to_numpy
from duoplda.data.labels import Ints
from duoplda.errors import DuopldaError
from duoplda.model.parameters import Model, checked

__all__ = ["Dataset", "make_recordings"]

Counts = int | tuple[int, int]  # a number, or a range (low, high) from which numbers are drawn uniformly
Seed = int | np.random.Generator | None


class Dataset(NamedTuple):
    """Recordings `X` (N, d), the speaker and the session of each, and the model that they were drawn from.

    Data that were drawn from the model suit it perfectly, which no speech does: they show how to call a function, and
    that it finds what is there, but not how well it works on speech.

    >>> X, speaker, session, model = make_recordings(2, sessions=1, recordings=2)
    >>> speaker.tolist(), session.tolist()
    (['spk0', 'spk0', 'spk1', 'spk1'], ['spk0-0', 'spk0-0', 'spk1-0', 'spk1-0'])
    """

    X: NDArray[np.float64]
    speaker: NDArray[Any]
    session: NDArray[Any]
    model: Model


def make_recordings(
    n_speakers: int = 100,
    sessions: Counts = (1, 8),
    recordings: Counts = (1, 6),
    *,
    n_dimensions: int = 32,
    n_speaker_factors: int = 16,
    n_session_factors: int = 12,
    speaker_variance: float = 1.0,
    session_variance: float = 0.7,
    channel_variance: float = 0.5,
    mean: float = 5.0,
    seed: int | None = 0,
    model: Model | None = None,
) -> Dataset:
    """Draw speakers, sessions and channels from phi = mu + V y + U x + eps.

    The loadings are drawn from N(0, 1) and scaled so that VV', UU' and W^-1 have the given mean variance per dimension;
    W^-1 is full, with eigenvalues spread over a factor of ten; mu is drawn with standard deviation `mean`.

    Parameters
    ----------
    sessions, recordings : int or (low, high)
        The number of sessions of a speaker and of recordings of a session; from a range it is drawn uniformly.
    model : a model to draw from (for test sets); None: a new one is drawn.

    >>> data = make_recordings(3, sessions=2, recordings=(1, 3), seed=1)
    >>> data.X.shape[1], str(data.speaker[0]), str(data.session[0])
    (32, 'spk0', 'spk0-0')
    """
    rng = _generator(seed)
    variances = {"speaker_variance": speaker_variance, "session_variance": session_variance}
    for name, value in variances.items():
        if not (isinstance(value, Real) and value >= 0):
            raise DuopldaError(f"{name}={value!r} must be a number from 0 on")
    if not (isinstance(channel_variance, Real) and channel_variance > 0):
        raise DuopldaError(f"channel_variance={channel_variance!r} must be a positive number")
    if model is None:
        factors = {"n_speaker_factors": n_speaker_factors, "n_session_factors": n_session_factors}
        for name, n in factors.items():
            if not 0 <= n <= n_dimensions:
                raise DuopldaError(f"{name}={n} must lie between 0 and {n_dimensions} dimensions")
        V, U = (rng.standard_normal((n_dimensions, n)) for n in factors.values())
        V, U = (
            loadings * (variance / max((loadings**2).sum(axis=1).mean(), 1e-300)) ** 0.5
            for loadings, variance in zip((V, U), variances.values(), strict=True)
        )
        Q = np.linalg.qr(rng.standard_normal((n_dimensions, n_dimensions)))[0]
        eigenvalues = np.geomspace(1, 10, n_dimensions)
        precision = (Q / (eigenvalues * channel_variance / eigenvalues.mean())) @ Q.T
        model = checked(rng.standard_normal(n_dimensions) * mean, V, U, symmetric(precision))
    return Dataset(*draw(model, n_speakers, sessions, recordings, rng)[:3], model)


def draw(
    model: Model,
    n_speakers: int,
    sessions: Counts,
    recordings: Counts,
    seed: Seed = None,
    priors: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[Any], NDArray[Any], Ints]:
    """Recordings of a model, their speakers and sessions by name, and their kinds, drawn by `priors` (K,) if given."""
    rng = _generator(seed)
    if not isinstance(n_speakers, Integral) or n_speakers < 0:
        raise DuopldaError(f"n_speakers={n_speakers!r} must be a whole number from 0 on")
    per_speaker = _counts(rng, sessions, n_speakers, "sessions")
    per_session = _counts(rng, recordings, int(per_speaker.sum()), "recordings")
    n = int(per_session.sum())
    kind = np.zeros(n, np.int64) if priors is None or model.K == 1 else rng.choice(model.K, n, p=priors)
    X, speaker, session = sample(model, rng, per_speaker, per_session, kind)
    names = np.array([f"spk{i}" for i in range(n_speakers)])
    session_names = np.array([f"spk{i}-{j}" for i, n in enumerate(per_speaker) for j in range(n)])
    return X, names[speaker], session_names[session], kind


def _generator(seed: Seed) -> np.random.Generator:
    """The generator of a seed, or a generator as it is."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise DuopldaError(f"seed={seed!r} must be None or a whole number from 0 on: {error}") from None


def sample(
    model: Model, rng: np.random.Generator, per_speaker: Ints, per_session: Ints, kind: Ints | None = None
) -> tuple[NDArray[np.float64], Ints, Ints]:
    """Draw recordings, their speakers and sessions, by counts of sessions (M,) and recordings (H,), and kinds (N,)."""
    mu = to_numpy(model.mu)
    V = to_numpy(model.V)
    U = to_numpy(model.U)
    session_speaker = np.repeat(np.arange(len(per_speaker)), per_speaker)
    session = np.repeat(np.arange(len(session_speaker)), per_session)
    speaker = session_speaker[session]
    y = rng.standard_normal((len(per_speaker), V.shape[1]))
    x = rng.standard_normal((len(session_speaker), U.shape[1]))
    kind = np.zeros(len(session), np.int64) if kind is None else kind
    X = mu[kind] + (y @ V.T)[speaker] + (x @ U.T)[session]
    for k in range(model.K):
        noise = rng.standard_normal((int((kind == k).sum()), model.d))
        # W = CC', so C'^-1 e has covariance W^-1
        X[kind == k] += np.linalg.solve(to_numpy(model.W_factor[k, ...]).T, noise.T).T
    return X, speaker, session


def _counts(rng: np.random.Generator, counts: Counts, n: int, name: str) -> NDArray[np.int64]:
    """(n,) numbers of sessions or recordings, drawn from their range."""
    ends = np.asarray(counts if np.ndim(counts) else [counts, counts])
    low, high = ends.tolist() if ends.shape == (2,) and ends.dtype.kind in "iu" else (0, 0)
    if not 1 <= low <= high:
        raise DuopldaError(f"{name} must be a positive number or a range (low, high), got {counts!r}")
    return rng.integers(low, high + 1, n)
