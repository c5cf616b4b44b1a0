"""Kinds of channels learnt from recordings that have no labels of them.

Recordings of one session differ only by their channels: phi - (mean of the session) = eps less its mean. Clusters of
such differences, each with its own mean and covariance, are the start. They come from k-means, which finds kinds whose
means differ, or from the lengths of the differences, which tell kinds that differ in noise alone. Then, in turns, a
model is trained with the present kinds, and each recording gets the kind that best explains what the posterior means of
y and x leave of it:

    argmax_k  ln pi_k + ln N(phi - V y - U x; mu_k, W_k^-1)

Only sessions with several recordings can tell kinds apart.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from duoplda.arrays import reproducible, segment_sums
from duoplda.data.labels import Ints, Labels
from duoplda.errors import DuopldaError
from duoplda.model import posteriors as post
from duoplda.model.parameters import Model

STARTS = ("means", "lengths")  # what kinds differ in at first


@reproducible()
def learn(
    X: NDArray[np.float64], labels: Labels, K: int, train: Callable[[Ints], Model], seed: int = 0, start: str = "means"
) -> Ints:
    """The kind of each recording, from 0 to K - 1; `train` fits a model to the recordings with the kinds it gets."""
    labels = labels.filled
    several = labels.counts.sum(axis=1)[labels.session] > 1
    if several.sum() < 2 * K:
        few = f"only {int(several.sum())} of {len(X)} recordings share their session with others"
        why = "only recordings of one session differ by their channel alone. Label the kinds"
        raise DuopldaError(f"{few}, too few to tell {K} kinds of channels apart: {why}")
    kind = _start(X, labels, several, K, seed, start)
    for _ in range(4):  # most recordings have their kind after two rounds, and each trains a model
        before = kind
        model = train(kind)
        hidden = post.posterior(model, X, replace(labels, kinds=np.arange(K), kind=kind))
        noise = X - hidden.speaker_mean[labels.speaker] @ model.V.T - hidden.session_mean[labels.session] @ model.U.T
        share = np.maximum(np.bincount(kind, minlength=model.K) / len(X), 1e-12)
        kind = post.kind_log_posterior(model.noise_alone, noise, share).argmax(axis=1)
        if np.bincount(kind, minlength=K).min() == 0:
            return before
        if (kind == before).mean() > 0.999:
            break
    return kind


def _start(X: NDArray[np.float64], labels: Labels, several: NDArray[np.bool_], K: int, seed: int, start: str) -> Ints:
    """Clusters of differences from the session's mean: by one of `STARTS`, then Gaussians with a covariance each."""
    rows = np.flatnonzero(several)
    _, session = np.unique(labels.session[rows], return_inverse=True)
    order = np.argsort(session, kind="stable")
    n = np.bincount(session)
    means = segment_sums(X[rows[order]], np.cumsum(n) - n) / n[:, None]
    # Differences from the mean of n recordings have (n - 1) / n of the variance.
    r = (X[rows] - means[session]) * np.sqrt(n / np.maximum(n - 1, 1))[session][:, None]
    pooled = np.cov(r.T).reshape(r.shape[1], -1)
    s, T = np.linalg.eigh(pooled)
    keep = s > 1e-10 * s[-1]
    r = r @ (T[:, keep] / np.sqrt(s[keep]))  # white on the whole
    d = r.shape[1]
    if start == "means":
        with threadpool_limits(1, user_api="openmp"):  # the sums of k-means depend on the number of threads
            kind = KMeans(K, n_init=4, random_state=seed).fit(r).labels_.astype(np.int64)
    else:
        squares = np.einsum("ij,ij->i", r, r)
        kind = np.searchsorted(np.quantile(squares, np.arange(1, K) / K), squares)
    ln = np.empty((len(r), K))
    e = np.empty_like(r)
    for _ in range(20):  # it is only a start: what is left to do, the rounds of training do
        for k in range(K):
            members = r[kind == k]
            mean = members.mean(axis=0)
            members -= mean
            covariance = (members.T @ members + d * np.eye(d)) / (len(members) + d)
            C = np.linalg.cholesky(covariance)
            whiten = np.linalg.inv(C).T
            np.matmul(r, whiten, out=e)
            e -= mean @ whiten
            ln[:, k] = np.log(len(members)) - np.einsum("ij,ij->i", e, e) / 2 - np.log(np.diagonal(C)).sum()
        new = ln.argmax(axis=1)
        if np.bincount(new, minlength=K).min() == 0 or (new == kind).all():
            break
        kind = new
    out = np.full(len(X), np.bincount(kind).argmax(), np.int64)  # a recording alone in its session: the commonest
    out[rows] = kind
    return out
