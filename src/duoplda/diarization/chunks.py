"""Local speakers of the chunks of a file, as pyannote's segmentation finds them: who they are, and the turns they make.

A network looks at chunks of a file (10 s every second), and says in which frames each of up to S local speakers is
active; an embedding of each local speaker comes from the frames in which they are. Local speakers of one chunk are
different people and may speak at once, so that turns overlap.
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
    """Who speaks when, from the local speakers of chunks: overlapped speech goes to two speakers.

    Local speakers are clustered as pyannote 4 does (its start, and the model of VBx without the order of time), unless
    `options` say otherwise; two of one chunk are two people.

    Parameters
    ----------
    model : the chain, or the PLDA
    embeddings : (C, S, d) of S local speakers in each of C chunks; NaN where there is none
    activity, step, duration, file, threshold : as for `turns_of_chunks`
    options : parameters of `Diarizer`

    Local speakers who are active nowhere, or have no embedding, are nobody.

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
        raise DuopldaError(f"embeddings of shape {X.shape} and activity {A.shape}: give (C, S, d) and (C, F, S)")
    active = (threshold < A).any(axis=1) & np.isfinite(X).all(axis=2)
    chunk, local = np.nonzero(active)
    if not len(chunk):
        raise DuopldaError("no local speaker is active and has an embedding: is the threshold too high?")
    chain = chain_of(model)
    usual: dict[str, Any] = {"start": "pyannote", "refine": "gmm", "Fa": 0.07, "Fb": 0.8}  # of pyannote 4
    diarizer = Diarizer(**(usual | options))
    diagonal, _ = chain.collapsed(one_session=diarizer.segments_are == "recordings")
    rows = X[chunk, local]
    begin = (chunk * step).astype(np.float64)
    labelled = diarizer(diagonal, to_numpy(chain.transform(rows)), rows, begin, begin + duration)
    speaker = speakers_of_chunks(labelled.posterior, chunk, local, active.shape)
    return turns_of_chunks(A, speaker, step=step, duration=duration, file=file, threshold=threshold)


def turns_of_chunks(
    activity: ArrayLike, speaker: ArrayLike, *, step: float, duration: float, file: str = "file", threshold: float = 0.5
) -> Turns:
    """The turns of a file whose chunks have local speakers, in the way of pyannote's pipelines; they may overlap.

    In each frame as many speakers speak as the chunks that hold it have active local speakers, on average and rounded;
    they are those with the largest sum of activities.

    Parameters
    ----------
    activity : (C, F, S) of S local speakers in F frames of each chunk, from 0 to 1, as of pyannote's segmentation
    speaker : (C, S) the number of each local speaker, 0, 1, ..., -1 for nobody (`speakers_of_chunks`)
    step, duration : seconds from one chunk to the next, and of a chunk
    threshold : above which a local speaker is active

    >>> activity = np.zeros((1, 4, 2))
    >>> activity[0, :3, 0] = activity[0, 2:, 1] = 1
    >>> turns = turns_of_chunks(activity, [[0, 1]], step=1, duration=4)
    >>> list(zip(turns.speaker.values.tolist(), turns.start.tolist(), turns.end.tolist()))
    [('file-1', 0.0, 3.0), ('file-2', 2.0, 4.0)]
    """
    A = np.asarray(activity, float)
    who = np.asarray(speaker)
    if A.ndim != 3 or who.shape != (A.shape[0], A.shape[2]) or not np.isfinite(A).all():
        raise DuopldaError(f"activity of shape {A.shape} and speakers {who.shape}: give (C, F, S) numbers and (C, S)")
    C, F, _ = A.shape
    frame = duration / F
    first = np.rint(np.arange(C) * step / frame).astype(int)
    n = int(first[-1]) + F
    K = int(who.max()) + 1
    heard = np.zeros(n)
    count = np.zeros(n)
    total = np.zeros((n, K))
    for c in range(C):
        rows = slice(int(first[c]), int(first[c]) + F)
        heard[rows] += 1
        count[rows] += (A[c] > threshold).sum(axis=1)
        for k in np.unique(who[c][who[c] >= 0]).tolist():
            total[rows, k] += A[c][:, who[c] == k].max(axis=1)
    speaking = np.rint(count / np.maximum(heard, 1)).astype(int)
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
    """(C, S) the speaker of each local speaker, where two of one chunk are two people; -1 where there is none.

    Parameters
    ----------
    posterior : (n, K) of the speakers of n local speakers
    chunk, local : (n,) which these are: their chunks, and their numbers there

    >>> speakers_of_chunks([[0.9, 0.1], [0.8, 0.2]], [0, 0], [0, 1], (1, 3)).tolist()
    [[0, 1, -1]]
    """
    P = np.asarray(posterior, float)
    chunk = np.asarray(chunk)
    local = np.asarray(local)
    speaker = np.full(shape, -1)
    for c in np.unique(chunk).tolist():
        rows = np.flatnonzero(chunk == c)
        mine, theirs = linear_sum_assignment(-P[rows])
        speaker[c, local[rows[mine]]] = theirs
    return speaker
