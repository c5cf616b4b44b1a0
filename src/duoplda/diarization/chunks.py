"""Turns from the local speakers of chunks, as pyannote's segmentation finds them.

A network takes overlapping chunks of a file (10 s every second), and says in which frames of a chunk each of up to S
local speakers is active. The embedding of a local speaker comes from the frames in which that speaker is active. Local
speakers of one chunk are different people and may speak at the same time, so turns can overlap.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from duoplda.arrays import to_numpy
from duoplda.diarization.diarizer import Diarizer
from duoplda.diarization.rttm import Turns
from duoplda.errors import DuopldaError
from duoplda.estimators.backend import Backend
from duoplda.estimators.plda import PLDA
from duoplda.estimators.scoring import chain_of


def diarize_chunks(
    model: Backend | PLDA,
    embeddings: ArrayLike,
    activity: ArrayLike,
    *,
    step: float,
    duration: float,
    file: str = "file",
    threshold: float = 0.5,
    **options: Any,
) -> Turns:
    """Find who speaks when from the local speakers of chunks; overlapped speech gets two speakers.

    Use it if you have the output of a segmentation network, and `diarize` if you have windows. Local speakers are
    clustered as in pyannote 4 (with its first labels, and VBx's model without the order of time), unless `options` say
    otherwise. Two local speakers of one chunk are always two people. Local speakers who are never active, or have no
    embedding, are left out.

    Parameters
    ----------
    model : the `Backend`, or a `PLDA` for embeddings that need no preprocessing
    embeddings : (C, S, d) embeddings of S local speakers in each of C chunks; NaN where a chunk has fewer
    activity, step, duration, file, threshold : as for `turns_of_chunks`
    options : parameters of `Diarizer`

    Example
    -------
    >>> plda = PLDA.from_parameters(np.zeros(2), 5 * np.eye(2), None, np.eye(2))
    >>> X = [[[9.0, 1.0], [-3.0, 7.0]], [[-2.5, 6.5], [9.2, 0.8]]]
    >>> activity = np.zeros((2, 4, 2))
    >>> activity[0, :, 0] = activity[0, 2:, 1] = activity[1, :2, 0] = activity[1, :, 1] = 1
    >>> turns = diarize_chunks(plda, X, activity, step=2, duration=4)
    >>> list(zip(turns.speaker.values.tolist(), turns.start.tolist(), turns.end.tolist()))
    [('file-1', 0.0, 6.0), ('file-2', 2.0, 4.0)]
    """
    X = np.asarray(embeddings, float)
    A = np.asarray(activity, float)
    if X.ndim != 3 or A.ndim != 3 or X.shape[:2] != (A.shape[0], A.shape[2]):
        cause = f"embeddings of shape {X.shape} and activity of shape {A.shape}"
        raise DuopldaError(f"{cause}: give (C, S, d) and (C, F, S)")
    active = (threshold < A).any(axis=1) & np.isfinite(X).all(axis=2)
    chunk, local = np.nonzero(active)
    if not len(chunk):
        raise DuopldaError("no local speaker is active and has an embedding; is the threshold too high?")
    chain = chain_of(model)
    defaults: dict[str, Any] = {"start": "pyannote", "refine": "gmm", "Fa": 0.07, "Fb": 0.8}  # those of pyannote 4
    diarizer = Diarizer(**(defaults | options))
    diagonal, _ = chain.collapsed(one_session=diarizer.segments_are == "recordings")
    rows = X[chunk, local]
    begin = (chunk * step).astype(np.float64)
    labelled = diarizer(diagonal, to_numpy(chain.transform(rows)), rows, begin, begin + duration)
    speaker = speakers_of_chunks(labelled.posterior, chunk, local, active.shape)
    return turns_of_chunks(A, speaker, step=step, duration=duration, file=file, threshold=threshold)


def turns_of_chunks(
    activity: ArrayLike, speaker: ArrayLike, *, step: float, duration: float, file: str = "file", threshold: float = 0.5
) -> Turns:
    """The turns of a file from the local speakers of its chunks, as pyannote's pipelines make them; turns may overlap.

    The number of people who speak in a frame is the number of local speakers who are active in it, averaged over the
    chunks that contain the frame and rounded. The speakers with the largest sums of activities are taken.

    Parameters
    ----------
    activity : (C, F, S) how active each of S local speakers is in the F frames of a chunk, from 0 to 1, as pyannote's
        segmentation gives it
    speaker : (C, S) which speaker of the file, 0, 1, ..., each local speaker is, and -1 where there is none
        (`speakers_of_chunks`)
    step, duration : seconds from the start of one chunk to that of the next, and the length of a chunk in seconds
    file : the name of the file
    threshold : a local speaker with an activity above this is active

    Example
    -------
    >>> activity = np.zeros((1, 4, 2))
    >>> activity[0, :3, 0] = activity[0, 2:, 1] = 1
    >>> turns = turns_of_chunks(activity, [[0, 1]], step=1, duration=4)
    >>> list(zip(turns.speaker.values.tolist(), turns.start.tolist(), turns.end.tolist()))
    [('file-1', 0.0, 3.0), ('file-2', 2.0, 4.0)]
    """
    A = np.asarray(activity, float)
    codes = np.asarray(speaker)
    if A.ndim != 3 or codes.shape != (A.shape[0], A.shape[2]) or not np.isfinite(A).all():
        cause = f"activity of shape {A.shape} and speakers of shape {codes.shape}"
        raise DuopldaError(f"{cause}: give (C, F, S) finite numbers and (C, S)")
    C, F, _ = A.shape
    frame = duration / F
    first = np.rint(np.arange(C) * step / frame).astype(int)
    n = int(first[-1]) + F
    K = int(codes.max()) + 1
    n_chunks = np.zeros(n)  # that contain a frame
    n_active = np.zeros(n)  # local speakers in all of these chunks
    total = np.zeros((n, K))
    for c in range(C):
        rows = slice(int(first[c]), int(first[c]) + F)
        n_chunks[rows] += 1
        n_active[rows] += (A[c] > threshold).sum(axis=1)
        for k in np.unique(codes[c][codes[c] >= 0]).tolist():
            total[rows, k] += A[c][:, codes[c] == k].max(axis=1)
    speaking = np.rint(n_active / np.maximum(n_chunks, 1)).astype(int)
    rank = np.argsort(np.argsort(-total, axis=1, kind="stable"), axis=1)
    active = (rank < speaking[:, None]) & (total > 0)
    columns: list[tuple[str, float, float, str]] = []
    for k in range(K):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], active[:, k], [0]]).astype(int)))
        for a, b in edges.reshape(-1, 2).tolist():
            columns.append((file, a * frame, (b - a) * frame, f"{file}-{k + 1}"))
    columns.sort(key=lambda turn: turn[1:3])
    return Turns.of(*zip(*columns, strict=True)) if columns else Turns.of([], [], [], [])


def speakers_of_chunks(
    posterior: ArrayLike, chunk: ArrayLike, local: ArrayLike, shape: tuple[int, int]
) -> NDArray[Any]:
    """(C, S) the speaker that each local speaker is, such that two of one chunk are two people; -1 where there is none.

    Within a chunk, local speakers are matched with speakers such that the sum of their probabilities is largest.

    Parameters
    ----------
    posterior : (n, K) the probability that each of n local speakers is each of K speakers
    chunk, local : (n,) the chunks of the local speakers, and their columns 0, 1, ..., S - 1 there
    shape : (C, S), the number of chunks and the largest number of local speakers in a chunk

    Example
    -------
    >>> speakers_of_chunks([[0.9, 0.1], [0.8, 0.2]], [0, 0], [0, 1], (1, 3)).tolist()
    [[0, 1, -1]]
    """
    P = np.asarray(posterior, float)
    chunk = np.asarray(chunk)
    local = np.asarray(local)
    speaker = np.full(shape, -1)
    for c in np.unique(chunk).tolist():
        rows = np.flatnonzero(chunk == c)
        matched, match = linear_sum_assignment(-P[rows])
        speaker[c, local[rows[matched]]] = match
    return speaker
