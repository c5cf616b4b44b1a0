"""Built-in data: labelled recordings drawn from a documented two-source model, ragged on purpose."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import to_numpy
from duoplda.data.labels import Ints
from duoplda.errors import DuopldaError
from duoplda.model.parameters import Model, checked


class Recordings(NamedTuple):
    """Recordings `X` (N, d), with the speaker and the session of each, and the model they were drawn from."""

    X: NDArray[np.float64]
    speaker: NDArray[Any]
    session: NDArray[Any]
    model: Model


def make_recordings(
    n_speakers: int = 100,
    sessions: int | tuple[int, int] = (1, 8),
    recordings: int | tuple[int, int] = (1, 6),
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
    kind: Callable[[np.random.Generator, int], NDArray[np.int64]] | None = None,
) -> Recordings:
    """Draw speakers, sessions and channels from phi = mu + V y + U x + eps.

    The loadings are drawn from N(0, 1) and scaled so that VV', UU' and W^-1 have the given mean variance per dimension;
    W^-1 is full, with eigenvalues spread over a factor of ten; mu is drawn with standard deviation `mean`.

    Parameters
    ----------
    sessions, recordings : int or (low, high)
        Sessions of a speaker and recordings of a session; a range is drawn from uniformly.
    model : draws from this model instead of a new one (for test sets).
    kind : draws the kinds of channels of n recordings, where the model has several; without it all are of the first.

    >>> data = make_recordings(3, sessions=2, recordings=(1, 3), seed=1)
    >>> data.X.shape[1], str(data.speaker[0]), str(data.session[0])
    (32, 'spk0', 'spk0-0')
    """
    rng = np.random.default_rng(seed)
    if not isinstance(n_speakers, Integral) or n_speakers < 0:
        raise DuopldaError(f"n_speakers={n_speakers!r} must be a whole number from 0 on")
    for name, value in (("speaker_variance", speaker_variance), ("session_variance", session_variance)):
        if not value >= 0:
            raise DuopldaError(f"{name}={value!r} must be a number from 0 on")
    if not channel_variance > 0:
        raise DuopldaError(f"channel_variance={channel_variance!r} must be a positive number")
    if model is None:
        d = n_dimensions
        if not (0 <= n_speaker_factors <= d and 0 <= n_session_factors <= d):
            raise DuopldaError(
                f"factors ({n_speaker_factors}, {n_session_factors}) must lie between 0 and {d} dimensions"
            )
        loadings = [
            _scaled(rng.standard_normal((d, n)), variance)
            for n, variance in ((n_speaker_factors, speaker_variance), (n_session_factors, session_variance))
        ]
        Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
        eigenvalues = np.geomspace(1, 10, d)
        precision = (Q / (eigenvalues * channel_variance / eigenvalues.mean())) @ Q.T
        V, U = loadings
        model = checked(rng.standard_normal(d) * mean, V, U, (precision + precision.T) / 2)
    per_speaker = _draw(rng, sessions, n_speakers, "sessions")
    per_session = _draw(rng, recordings, int(per_speaker.sum()), "recordings")
    drawn = None if kind is None else kind(rng, int(per_session.sum()))
    X, speaker, session = sample(model, rng, per_speaker, per_session, drawn)
    within = np.concatenate([np.arange(n) for n in per_speaker]) if n_speakers else np.zeros(0, int)
    names = np.array([f"spk{i}" for i in range(n_speakers)])
    session_names = np.array(
        [f"spk{i}-{j}" for i, j in zip(np.repeat(np.arange(n_speakers), per_speaker), within, strict=True)]
    )
    return Recordings(X, names[speaker], session_names[session], model)


def sample(
    model: Model,
    rng: np.random.Generator,
    sessions_per_speaker: NDArray[Any],
    recordings_per_session: NDArray[Any],
    kind: Ints | None = None,
) -> tuple[NDArray[np.float64], Ints, Ints]:
    """Recordings, their speakers and their sessions (integers); `recordings_per_session` has a row of each session."""
    mu, V, U = to_numpy(model.mu), to_numpy(model.V), to_numpy(model.U)
    session_speaker = np.repeat(np.arange(len(sessions_per_speaker)), sessions_per_speaker)
    session = np.repeat(np.arange(len(session_speaker)), recordings_per_session)
    speaker = session_speaker[session]
    y = rng.standard_normal((len(sessions_per_speaker), V.shape[1]))
    x = rng.standard_normal((len(session_speaker), U.shape[1]))
    kind = np.zeros(len(session), np.int64) if kind is None else kind
    X = mu[kind] + (y @ V.T)[speaker] + (x @ U.T)[session]
    for k in range(model.K):
        of = kind == k
        noise = rng.standard_normal((int(of.sum()), model.d))
        # W = CC', so C'^-1 e has covariance W^-1
        X[of] += np.linalg.solve(to_numpy(model.W_factor[k, ...]).T, noise.T).T
    return X, speaker, session


def _scaled(loadings: NDArray[np.float64], variance: float) -> NDArray[np.float64]:
    """Loadings with the given mean variance of a dimension."""
    power = (loadings**2).sum(axis=1).mean()
    return loadings * (variance / power) ** 0.5 if power else loadings


def _draw(rng: np.random.Generator, counts: int | tuple[int, int], n: int, name: str) -> NDArray[np.int64]:
    ends = np.asarray(counts if np.ndim(counts) else [counts, counts])
    low, high = ends.tolist() if ends.shape == (2,) and ends.dtype.kind in "iu" else (0, 0)
    if not 1 <= low <= high:
        raise DuopldaError(f"{name} must be a positive number or a range (low, high), got {counts!r}")
    return rng.integers(low, high + 1, n)
