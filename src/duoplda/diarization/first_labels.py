"""First labels of the windows of a file, from which the VB-HMM starts: by likelihood ratios, or as VBx or pyannote do.

All three merge windows step by step, so that the number of speakers is found. What they stop at differs: the posterior
of the partition (`ratio_labels`), a threshold that is found on the file (`cosine_labels`), a fixed distance
(`centroid_labels`).
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
    """(T,) labels by merging windows, or groups of them, by exact likelihood ratios (`PLDA.cluster`).

    A window counts as the share rho of an independent one, for the evidence and for the prior:

        gain of a merge = Q(rho a + rho b) - Q(rho a) - Q(rho b) + rho (gain of the prior)

    Single windows are not moved between clusters afterwards, which is left to the HMM.

    Parameters
    ----------
    rows, phi : (T, d), (d,) of `latent`
    discount : the share rho
    prior : the probability that two windows of a file are of one speaker
    groups : (T,) windows of one group, 0, 1, ..., stay together, and the answer has a label for each group
    min_speakers, max_speakers : limits to the number of labels

    Example
    -------
    >>> ratio_labels(np.array([[3.0], [-3.0], [3.1]]), np.array([9.0]), discount=1.0, prior=0.25).tolist()
    [0, 1, 0]
    """
    differ = np.flatnonzero(phi > 1e-12 * phi.max(initial=0))  # a dimension in which speakers are alike says nothing
    if not len(differ):
        raise DuopldaError("the model has no variance between speakers: there is nothing to tell them apart by")
    k = len(differ)
    plda = PLDA.from_parameters(np.zeros(k), np.diag(np.sqrt(phi[differ])), None, np.eye(k))
    items = plda.enroll(rows[:, differ], np.arange(len(rows)) if groups is None else groups)
    return cluster(  # and not `PLDA.cluster`, which compares the items with training data that this model never had
        items,
        prior=prior,
        min_speakers=min_speakers,
        max_speakers=max_speakers,
        weight=1 / discount,
        discount=discount,
        refine=False,
    ).labels


def cosine_labels(X: ArrayLike, bias: float = 0.0) -> Ints:
    """(T,) labels by agglomerative clustering of cosine similarities with average linkage, as VBx starts.

    Clusters merge while their mean similarity is `threshold_between(similarities)` + `bias` or more: VBx's
    `--threshold` is this bias. All T (T - 1) / 2 similarities are held in memory.

    >>> cosine_labels([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0], [0.0, 2.0]]).tolist()
    [0, 0, 1, 1, 1]
    """
    directions = _directions(X)
    if not np.isfinite(bias):
        raise DuopldaError(f"bias={bias!r} must be a number")
    T = len(directions)
    if T == 1:
        return np.zeros(1, np.int64)
    pairs = np.empty(T * (T - 1) // 2)  # above the diagonal, row by row, as `linkage` takes them
    begin = 0
    for i in range(T - 1):
        end = begin + T - 1 - i
        np.matmul(directions[i + 1 :], directions[i], out=pairs[begin:end])
        begin = end
    least = threshold_between(pairs, T) + bias
    np.clip(np.subtract(1, pairs, out=pairs), 0, None, out=pairs)  # rounding may leave -1e-16
    return _cut(linkage(pairs, "average"), 1 - least)


def threshold_between(similarities: ArrayLike, n_rows: int, n_iter: int = 20) -> float:
    """Return the similarity at which two rows are as likely of one speaker as of two.

    Two Gaussians with one variance are fitted by EM to the whole matrix of similarities, its diagonal included:
    m_0 for pairs of two speakers and m_1 for pairs of one, with weights w. They are equally probable at

        (m_0 + m_1)/2 - variance ln(w_1 / w_0) / (m_1 - m_0)

    Parameters
    ----------
    similarities : (n_rows (n_rows - 1) / 2,) cosine similarities of the pairs of rows; those on the diagonal are 1
    n_iter : iterations of EM; VBx has 20

    Example
    -------
    >>> round(threshold_between([0.9, 0.1, 0.2, 0.1, 0.2, 0.8], 4), 2)
    0.54
    """
    s = np.asarray(similarities, np.float64)
    if s.shape != (n_rows * (n_rows - 1) // 2,) or not len(s):
        raise DuopldaError(f"{s.shape} similarities, and {n_rows} rows have {n_rows * (n_rows - 1) // 2} pairs")
    # Sums over the whole matrix: each pair counts twice, and the diagonal adds n_rows times 1.
    n = n_rows**2
    total = n_rows + 2 * float(s.sum())
    squares = n_rows + 2 * float(s @ s)
    mean = total / n
    least = 1e-12  # a smaller variance is that of similarities which differ by rounding only
    variance = squares / n - mean**2
    if variance < least:  # all rows point one way: one speaker
        return float(s.min()) - 1e-6
    low = mean - np.sqrt(variance)
    high = mean + np.sqrt(variance)
    w = 0.5  # weight of the upper Gaussian
    block = 1 << 20  # similarities that are looked at in one go: 8 MB for each array that is made of them
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
        variance = max(squares / n - w * high**2 - (1 - w) * low**2, least)
    return float((low + high) / 2 - variance * np.log(w / (1 - w)) / (high - low))


def centroid_labels(X: ArrayLike, threshold: float) -> Ints:
    """(T,) labels by clustering unit vectors with centroid linkage up to a Euclidean distance, as pyannote 4 starts.

    Parameters
    ----------
    X : (T, d) embeddings as the network gives them, before any preprocessing; their lengths do not matter
    threshold : distance between centroids up to which clusters merge; pyannote's community pipeline has 0.6

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
    """Labels 0, 1, ... in the order in which they first come.

    >>> numbered(["b", "a", "b"]).tolist()
    [0, 1, 0]
    """
    _, first, codes = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[codes]


def _cut(tree: Floats, distance: float) -> Ints:
    """Labels of the clusters that are joined below a distance."""
    return numbered(fcluster(tree, distance, "distance"))


def _directions(X: ArrayLike) -> Floats:
    """Rows of length 1; a row of length 0 is an error."""
    rows = finite_rows(X)
    scale = np.abs(rows).max(axis=1, keepdims=True)
    zero = np.flatnonzero(scale == 0)
    if len(zero):
        raise DuopldaError(f"rows of length 0 have no direction: {some(zero)}. Remove them (empty or silent audio?)")
    rows = rows / scale  # so that no square overflows or vanishes
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
