"""First labels of the windows of a file, from which the VB-HMM starts: by likelihood ratios, or as in VBx or pyannote.

All three ways merge windows step by step, and the step at which merging stops gives the number of speakers. They stop
where the posterior of the partition is highest (`ratio_labels`), at a threshold that is found on the file
(`cosine_labels`), or at a fixed distance (`centroid_labels`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.special import expit

from duoplda.diarization.vbhmm import Floats, Ints, finite_rows
from duoplda.errors import DuopldaError, some
from duoplda.estimators.plda import PLDA
from duoplda.trials.clustering import cluster


def ratio_labels(
    rows: Floats,
    phi: Floats,
    discount: float,
    prior: float,
    groups: Ints | None = None,
    *,
    min_speakers: int = 1,
    max_speakers: int | None = None,
) -> Ints:
    """Labels of windows, or of groups of windows, which are merged by exact likelihood ratios as in `PLDA.cluster`.

    Windows that overlap repeat each other. A window counts as the share rho of an independent one, for the evidence and
    for the prior:

        gain of a merge = Q(rho a + rho b) - Q(rho a) - Q(rho b) + rho (gain of the prior)

    Single windows are not moved between clusters afterwards: the HMM does that.

    Parameters
    ----------
    rows, phi : (T, d), (d,) the windows and the between-class variances, as `latent` returns them
    discount : the share rho
    prior : the probability that two windows of a file are of one speaker
    groups : (T,) the group of each window, 0, 1, ...; windows of one group are not separated. None: each window is a
        group
    min_speakers, max_speakers : limits to the number of labels

    Returns
    -------
    labels : one for each group, 0, 1, ...

    Example
    -------
    >>> ratio_labels(np.array([[3.0], [-3.0], [3.1]]), np.array([9.0]), discount=1.0, prior=0.25).tolist()
    [0, 1, 0]
    """
    differ = np.flatnonzero(phi > 1e-12 * phi.max(initial=0))  # in other dimensions speakers are alike
    if not len(differ):
        raise DuopldaError("the model has no variance between speakers, so it cannot tell speakers apart")
    k = len(differ)
    plda = PLDA.from_parameters(np.zeros(k), np.diag(np.sqrt(phi[differ])), None, np.eye(k))
    items = plda.enroll(rows[:, differ], np.arange(len(rows)) if groups is None else groups)
    return cluster(  # not `PLDA.cluster`: it compares the items with training data, and this model has none
        items,
        prior=prior,
        min_speakers=min_speakers,
        max_speakers=max_speakers,
        weight=1 / discount,
        discount=discount,
        refine=False,
    ).labels


def cosine_labels(X: ArrayLike, bias: float = 0.0) -> Ints:
    """(T,) labels by agglomerative clustering of cosine similarities with average linkage, the first labels of VBx.

    Clusters merge while their mean similarity is at least `threshold_between(similarities)` + `bias`; the bias is VBx's
    `--threshold`. All T (T - 1) / 2 similarities are held in memory, so that long files need much of it.

    >>> cosine_labels([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0], [0.0, 2.0]]).tolist()
    [0, 0, 1, 1, 1]
    """
    directions = _directions(X)
    if not np.isfinite(bias):
        raise DuopldaError(f"bias={bias!r} must be a number")
    T = len(directions)
    if T == 1:
        return np.zeros(1, np.int64)
    pairs = np.empty(T * (T - 1) // 2)  # above the diagonal, row by row: the order in which `linkage` takes them
    begin = 0
    for i in range(T - 1):
        end = begin + T - 1 - i
        np.matmul(directions[i + 1 :], directions[i], out=pairs[begin:end])
        begin = end
    threshold = threshold_between(pairs, T) + bias
    np.clip(np.subtract(1, pairs, out=pairs), 0, None, out=pairs)  # rounding can make distances of -1e-16
    return _cut(linkage(pairs, "average"), 1 - threshold)


def threshold_between(similarities: ArrayLike, n_rows: int, n_iter: int = 20) -> float:
    """The similarity at which two rows are as likely to be of one speaker as of two.

    Two Gaussians with the same variance are fitted by EM to the whole matrix of similarities, diagonal included. The
    one with mean m_0 and weight w_0 is for pairs of two speakers, that with m_1 and w_1 for pairs of one. They are
    equally probable at

        (m_0 + m_1)/2 - variance ln(w_1 / w_0) / (m_1 - m_0)

    Parameters
    ----------
    similarities : (n_rows (n_rows - 1) / 2,) cosine similarities of the pairs of rows, without the diagonal
    n_rows : the number of rows
    n_iter : iterations of EM; VBx has 20

    Example
    -------
    >>> round(threshold_between([0.9, 0.1, 0.2, 0.1, 0.2, 0.8], 4), 2)
    0.54
    """
    s = np.asarray(similarities, np.float64)
    if s.shape != (n_rows * (n_rows - 1) // 2,) or not len(s):
        pairs = f"{n_rows} rows have {n_rows * (n_rows - 1) // 2} pairs"
        raise DuopldaError(f"{pairs}, but similarities have shape {s.shape}: give one for each pair")
    # Sums over the whole matrix: each pair counts twice, and the n_rows similarities on the diagonal are 1.
    n = n_rows**2
    total = n_rows + 2 * float(s.sum())
    squares = n_rows + 2 * float(s @ s)
    mean = total / n
    smallest_variance = 1e-12  # below this, similarities differ by nothing but rounding
    variance = squares / n - mean**2
    if variance < smallest_variance:  # all rows have the same direction, so they are of one speaker
        return float(s.min()) - 1e-6
    low = mean - np.sqrt(variance)
    high = mean + np.sqrt(variance)
    w = 0.5  # weight of the upper Gaussian
    block = 1 << 20  # similarities that are processed together, so that temporary arrays have 8 MB
    for _ in range(n_iter):
        slope = (high - low) / variance
        offset = np.log(w / (1 - w)) - slope * (low + high) / 2
        diagonal = float(expit(slope + offset))
        count = n_rows * diagonal
        upper = n_rows * diagonal
        for i in range(0, len(s), block):
            part = s[i : i + block]
            g = expit(slope * part + offset)
            count = count + 2 * float(g.sum())
            upper = upper + 2 * float(g @ part)
        if not 1e-9 * n < count < (1 - 1e-9) * n:  # one of the two Gaussians has died out
            break
        w = count / n
        high = upper / count
        low = (total - upper) / (n - count)
        variance = max(squares / n - w * high**2 - (1 - w) * low**2, smallest_variance)
    return float((low + high) / 2 - variance * np.log(w / (1 - w)) / (high - low))


def centroid_labels(X: ArrayLike, threshold: float) -> Ints:
    """(T,) labels by centroid linkage of unit vectors up to a Euclidean distance, the first labels of pyannote 4.

    Parameters
    ----------
    X : (T, d) embeddings as the network gives them, before any preprocessing; their lengths do not matter
    threshold : clusters merge while the distance of their centroids is at most this; pyannote's community pipeline has
        0.6

    Example
    -------
    >>> centroid_labels([[1.0, 0.0], [5.0, 0.5], [0.0, 1.0], [0.1, 1.0]], 0.6).tolist()
    [0, 0, 1, 1]
    """
    directions = _directions(X)
    if not threshold >= 0:
        raise DuopldaError(f"threshold={threshold!r} must be a distance of 0 or more")
    if len(directions) == 1:
        return np.zeros(1, np.int64)
    return _cut(linkage(directions, "centroid"), threshold)


def numbered(labels: ArrayLike) -> Ints:
    """Labels renumbered as 0, 1, ..., in the order in which they first occur.

    >>> numbered(["b", "a", "b"]).tolist()
    [0, 1, 0]
    """
    _, first, codes = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[codes]


def _cut(tree: Floats, distance: float) -> Ints:
    """Labels of the clusters that remain if the tree is cut at a distance."""
    return numbered(fcluster(tree, distance, "distance"))


def _directions(X: ArrayLike) -> Floats:
    """The rows divided by their lengths; a row of length 0 is an error."""
    rows = finite_rows(X)
    scale = np.abs(rows).max(axis=1, keepdims=True)
    zero = np.flatnonzero(scale == 0)
    if len(zero):
        raise DuopldaError(f"rows of length 0 have no direction: {some(zero)}. Remove them (empty or silent audio?)")
    rows = rows / scale  # without this, squares of very large or very small entries overflow or become 0
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
