"""Kinds of channels learnt from recordings that have no labels of them.

Recordings of one session differ only by their channels: phi - (mean of the session) = eps less its mean. Clusters of
such differences, each with its own mean and covariance, are the start. They come from k-means, which finds kinds whose
means differ, or from the lengths of the differences, which tell kinds that differ in noise alone. Then, in turns, a
model is trained with the present kinds, and each recording gets a kind by its posterior, given the posterior mean of y
and the kinds of the other recordings of its session, with x integrated out. With U'W_k (phi - V y - mu_k) as z_k, and c
and z for the counts and the sum of z of the session if the recording is of kind k,

    ln P(k | phi, y, others) = ln pi_k + ln N(phi - V y; mu_k, W_k^-1) + (ln|P_c| + z'P_c z) / 2 + constant

At first the kind is drawn from this posterior, at last it is the likeliest. The likeliest alone stays near the start:
kinds that overlap keep what they have, as their covariances are those of what they were given.

Only sessions with several recordings can tell kinds apart.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from duoplda.arrays import reproducible, segment_sums
from duoplda.data.labels import Ints, Labels
from duoplda.errors import DuopldaError
from duoplda.model import posteriors as post
from duoplda.model.parameters import Model, Terms

STARTS = ("means", "lengths")  # what tells the first kinds apart
# Rounds, each of which trains a model. On drawn data, twice as many led to kinds with the same cost of held-out trials.
N_DRAWN = 6
N_LIKELIEST = 3
TYPES_AT_ONCE = 512  # of sessions: each takes a matrix of nx by nx, and nearly each recording may have its own


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
    rng = np.random.default_rng(seed)
    for turn in range(N_DRAWN + N_LIKELIEST):
        before = kind
        model = train(kind)
        speaker = post.posterior(model, X, replace(labels, kinds=np.arange(K), kind=kind)).speaker_mean
        without_speaker = X - speaker[labels.speaker] @ model.V.T
        kind = _by_posterior(model, without_speaker, labels.session, kind, rng if turn < N_DRAWN else None)
        if np.bincount(kind, minlength=K).min() == 0:
            return before
        if turn >= N_DRAWN and (kind == before).mean() > 0.999:
            break
    return kind


def _by_posterior(
    model: Model, X: NDArray[np.float64], session: Ints, kind: Ints, rng: np.random.Generator | None
) -> Ints:
    """Kinds of the recordings X less V y, from their posterior given `kind` of the others: drawn, or the likeliest."""
    n = np.bincount(session)
    order = np.argsort(session, kind="stable")
    start = np.cumsum(n) - n
    place = np.empty(len(X), np.int64)  # of a recording in its session
    place[order] = np.arange(len(X)) - np.repeat(start, n)
    share = np.maximum(np.bincount(kind, minlength=model.K) / len(X), 1e-12)
    ln_alone = post.kind_log_joint(model.noise_alone, X, share)
    z = np.stack([(X - mu) @ W @ model.U for mu, W in zip(model.mu, model.W, strict=True)])
    without_speaker = replace(model, V=model.V[:, :0])
    kind = kind.copy()
    for turn in range(2):  # every second recording, as of two that change at once each would make room for the other
        now = np.flatnonzero(place % 2 == turn)
        own = z[kind, np.arange(len(X))]
        z_others = segment_sums(own[order], start)[session[now]] - own[now]
        counts = np.bincount(session * model.K + kind, minlength=len(n) * model.K).reshape(-1, model.K)
        others = counts[session[now]] - np.eye(model.K, dtype=np.int64)[kind[now]]
        ln = ln_alone[now]
        for k, one in enumerate(np.eye(model.K, dtype=np.int64)):
            z_session = z_others + z[k, now]
            types, c = np.unique(others + one, axis=0, return_inverse=True)
            block, c = np.divmod(c.reshape(-1), TYPES_AT_ONCE)
            for i in np.unique(block).tolist():
                rows = np.flatnonzero(block == i)
                terms = Terms(without_speaker, types[i * TYPES_AT_ONCE : (i + 1) * TYPES_AT_ONCE])
                ln[rows, k] += post.session_terms(terms, c[rows], z_session[rows])
        if rng is not None:
            ln += rng.gumbel(size=ln.shape)  # the largest is then a draw from the posterior
        kind[now] = ln.argmax(axis=1)
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
        from sklearn.cluster import KMeans  # loading it takes a tenth of the time of importing duoplda

        # Directions in which recordings of a session differ more than sessions do: were all alike on the whole, those
        # in which the means of kinds lie apart would be no longer than any other.
        centred = (means - means.mean(axis=0)) @ (T[:, keep] / np.sqrt(s[keep]))
        between = (centred.T @ centred + d * np.eye(d)) / (len(centred) + d)
        relative = np.linalg.solve(np.linalg.cholesky(between), r.T).T
        with threadpool_limits(1, user_api="openmp"):  # the sums of k-means depend on the number of threads
            kind = KMeans(K, n_init=4, random_state=seed).fit(relative).labels_.astype(np.int64)
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
