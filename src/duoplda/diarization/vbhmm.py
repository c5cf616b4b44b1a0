"""VBx: speakers of one file by variational Bayes in a hidden Markov model (Landini et al. 2022, Diez et al. 2019).

A file is a sequence of rows x_t, in the space where the within-class covariance is I and the between-class covariance
diag(phi) (`latent`). Speaker s has a vector y_s, and the states z_t of the chain are speakers:

    y_s ~ N(0, I),    x_t | z_t = s ~ N(phi^1/2 y_s, I),    p(z_1 = s) = pi_s,
    p(z_t = s | z_{t-1} = r) = loop [s = r] + (1 - loop) pi_s

The posterior is sought in the form q(z) q(y). F_a scales the evidence of a row, since neighbouring rows overlap, and
F_b the cost of a speaker. With the responsibilities g_ts = q(z_t = s), both factors and the priors pi have their best
value given the others in closed form, and each of these steps can only raise the lower bound E:

    q(y_s) = N(a_s, diag(v_s)),  1/v_s = 1 + (F_a/F_b) (sum_t g_ts) phi,  a_s = (F_a/F_b) v_s sum_t g_ts phi^1/2 x_t
    ln p_t(s) = F_a E[ln N(x_t; phi^1/2 y_s, I)] = F_a (x_t' phi^1/2 a_s - phi'(v_s + a_s^2)/2 - x_t'x_t/2 - d/2 ln 2pi)
    g by forward-backward over exp(ln p_t),    pi_s ~ expected number of times that s is drawn from pi
    E = ln sum_z p(z) prod_t p_t(z_t) + F_b/2 sum_s sum_d (ln v_s - v_s - a_s^2 + 1)_d

A step of the chain either stays, or draws anew from pi: what comes from the other states is one sum, and a step costs
O(S) for S speakers, not O(S^2). With loop = 0 the rows are independent, the mixture that pyannote 4 uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.special import expit, logsumexp, softmax

from duoplda.arrays import check_finite, check_rows, to_numpy
from duoplda.errors import DuopldaError, some
from duoplda.io import DiagonalModel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BLOCK = 1 << 20  # similarities that are looked at in one go
TOUCH = 1e-6  # seconds; windows with a smaller gap between them follow each other without a pause


@dataclass(frozen=True, eq=False)
class Diarized:
    """What `vb_hmm` found; T rows, S speakers, d dimensions.

    >>> found = vb_hmm([[3.0], [3.1], [-3.0], [-2.9]], [9.0], smoothed([0, 0, 1, 1]), Fa=1, Fb=1)
    >>> found.responsibilities.shape, found.labels.tolist()
    ((4, 2), [0, 0, 1, 1])
    """

    responsibilities: Floats  # (T, S) probabilities of the speakers of each row
    priors: Floats  # (S,) learnt; those of speakers that are not needed go to 0
    elbo: Floats  # (iterations,) the lower bound E, which never falls
    means: Floats  # (S, d) of the speakers' rows, phi^1/2 a_s
    converged: bool  # the last iteration raised E by less than `tol`

    @property
    def labels(self) -> Ints:
        """(T,) the most probable speaker of each row."""
        return self.responsibilities.argmax(axis=1)


class Spans(NamedTuple):
    """The turns of one file in the order of time; none overlaps the next.

    >>> found = turns([0.0, 1.0, 2.0], [1.0, 2.0, 3.0], ["ann", "ann", "bob"])
    >>> found.start.tolist(), found.end.tolist(), found.label.tolist()
    ([0.0, 2.0], [2.0, 3.0], ['ann', 'bob'])
    """

    start: Floats  # (n,) seconds
    end: Floats  # (n,) seconds
    label: NDArray[Any]  # (n,)


# -- the model


def latent(X: Any, model: DiagonalModel, n_dimensions: int | None = None) -> tuple[Floats, Floats]:
    """Return rows A(x - mean) (T, k), whose within-class covariance is I, and their between-class variances phi (k,).

    Parameters
    ----------
    X : (T, d) recordings as the PLDA takes them, after all preprocessing
    model : a PLDA without session level, as `duoplda.model.collapse.collapse` gives it
    n_dimensions : keep the k dimensions of the largest variance; None: all

    Example
    -------
    >>> rows, phi = latent([[1.0, 2.0]], DiagonalModel(np.ones(2), np.diag([1.0, 3.0]), np.array([1.0, 5.0])), 1)
    >>> rows.tolist(), phi.tolist()
    ([[3.0]], [5.0])
    """
    X = _rows(X)
    d = len(model.mean)
    if X.shape[1] != d:
        raise DuopldaError(f"recordings have {X.shape[1]} dimensions, the model has {d}: do its preprocessing first")
    if n_dimensions is not None and not 1 <= n_dimensions <= d:
        raise DuopldaError(f"n_dimensions={n_dimensions!r} must lie between 1 and {d}, the dimensions of the model")
    order = np.argsort(-model.psi, kind="stable")[:n_dimensions]
    return (X - model.mean) @ model.transform[order].T, model.psi[order]


def vb_hmm(
    X: Any,
    phi: Any,
    start: Any,
    *,
    Fa: float = 0.3,
    Fb: float = 17.0,
    loop: float | None = 0.99,
    max_iter: int = 40,
    tol: float = 1e-6,
) -> Diarized:
    """Find the speakers of a sequence of rows, from a first guess at them.

    Parameters
    ----------
    X : (T, d) rows with within-class covariance I, in the order of time (`latent`)
    phi : (d,) between-class variances
    start : (T, S) first responsibilities; each row sums to 1 (`smoothed`). No more than S speakers are found
    Fa, Fb : scale of a row's evidence and cost of a speaker; the defaults are those of VBx's own example
    loop : probability to stay with the speaker; None or 0: rows are independent, as in pyannote 4
    max_iter, tol : iterations at most; stop where one raises the lower bound by less than `tol` nats

    Example
    -------
    >>> X = np.repeat([[3.0, 0.0], [-3.0, 1.0]], 20, axis=0) + np.random.default_rng(0).normal(size=(40, 2))
    >>> found = vb_hmm(X, [9.0, 1.0], smoothed(np.arange(40) // 10), Fa=1, Fb=1)
    >>> int((found.priors > 0.01).sum()), len(set(found.labels[:20])), len(set(found.labels[20:]))
    (2, 1, 1)
    """
    X, phi, g = _inputs(X, phi, start)
    stay = _scales(Fa, Fb, loop, max_iter, tol)
    d = X.shape[1]
    # (T, d)
    rho = X * np.sqrt(phi)
    ratio = Fa / Fb
    own = -0.5 * (np.einsum("td,td->t", X, X) + d * np.log(2 * np.pi))[:, None]  # (T, 1)
    pi = np.full(g.shape[1], 1 / g.shape[1])
    trace: list[float] = []
    while not trace or (len(trace) < max_iter and not _settled(trace, tol)):
        v = 1 / (1 + ratio * g.sum(axis=0)[:, None] * phi)  # (S, d)
        a = ratio * v * (g.T @ rho)  # (S, d)
        evidence = Fa * (rho @ a.T - 0.5 * ((v + a**2) @ phi) + own)  # (T, S) ln p_t(s)
        g, drawn, total = posterior(evidence, pi, stay)
        trace.append(total + 0.5 * Fb * float((np.log(v) - v - a**2 + 1).sum()))
        pi = drawn / drawn.sum()
    return Diarized(g, pi, np.array(trace), np.sqrt(phi) * a, _settled(trace, tol))


def posterior(evidence: Any, priors: Any, loop: float) -> tuple[Floats, Floats, float]:
    """Probabilities of the states of the chain, by forward-backward sums in logarithms.

    Parameters
    ----------
    evidence : (T, S) ln p_t(s)
    priors : (S,) pi
    loop : probability to stay

    Returns
    -------
    responsibilities : (T, S)
    drawn : (S,) expected number of times that each state is drawn from pi: at the start, and wherever the chain does
        not stay
    total : ln sum_z p(z) prod_t p_t(z_t)

    Example
    -------
    >>> g, drawn, total = posterior(np.log([[0.9, 0.1], [0.5, 0.5]]), [0.5, 0.5], loop=1.0)
    >>> g.round(6).tolist(), drawn.round(6).tolist(), round(float(np.exp(total)), 6)
    ([[0.9, 0.1], [0.9, 0.1]], [0.9, 0.1], 0.25)
    """
    e = np.asarray(evidence, np.float64)
    with np.errstate(divide="ignore"):  # ln 0 = -inf is meant
        first = np.log(priors)
        stay = np.log(loop)
        draw = np.log1p(-loop) + np.log(priors)
    if loop == 0:
        joint = e + first
        totals = logsumexp(joint, axis=1, keepdims=True)
        g = np.exp(joint - totals)
        return g, g.sum(axis=0), float(totals.sum())
    # forward: f_t(s) = ln p(z_t = s | x_1 .. x_t), c_t = ln p(x_t | x_1 .. x_{t-1})
    T = len(e)
    f = np.empty_like(e)
    c = np.empty(T)
    now = e[0] + first
    for t in range(T):
        if t:
            np.add(stay, f[t - 1], out=now)
            np.logaddexp(now, draw, out=now)
            np.add(now, e[t], out=now)
        c[t] = np.logaddexp.reduce(now)
        np.subtract(now, c[t], out=f[t])
    # backward: b_t(s) = ln p(x_{t+1} .. x_T | z_t = s) - sum_{u > t} c_u;  w_t = b_t + ln p_t - c_t
    b = np.zeros_like(e)
    w = np.empty_like(e)
    scaled = e - c[:, None]
    for t in range(T - 1, 0, -1):
        np.add(scaled[t], b[t], out=w[t])
        np.logaddexp(stay + w[t], np.logaddexp.reduce(draw + w[t]), out=b[t - 1])
    g = np.exp(f + b)
    return g, g[0] + np.exp(draw + w[1:]).sum(axis=0), float(c.sum())


def _settled(trace: list[float], tol: float) -> bool:
    return len(trace) > 1 and trace[-1] - trace[-2] < tol


# -- where to start


def smoothed(labels: Any, amount: float = 5.0) -> Floats:
    """(T, S) responsibilities of labels (T,): the softmax of `amount` for a row's own speaker and 0 for the others.

    VBx has an amount of 5, pyannote one of 7. Speakers are numbered in the order of their labels.

    >>> smoothed([0, 1], np.log(3.0)).round(6).tolist()
    [[0.75, 0.25], [0.25, 0.75]]
    """
    if not np.isfinite(amount) or amount < 0:
        raise DuopldaError(f"amount={amount!r} must be a number of 0 or more: 5 leaves little doubt, 0 nothing else")
    names = np.asarray(labels)
    if names.ndim != 1 or not len(names):
        raise DuopldaError(f"labels must be a list, one label for each row, got shape {names.shape}")
    known, codes = np.unique(names, return_inverse=True)
    return softmax(amount * np.eye(len(known))[codes], axis=1)


def cosine_labels(X: Any, bias: float = 0.0) -> Ints:
    """(T,) labels by agglomerative clustering of cosine similarities with average linkage, as VBx starts.

    Clusters merge while their mean similarity is `threshold_between(similarities)` + `bias` or more: VBx's
    `--threshold` is this bias. Memory is that of T^2 numbers.

    >>> cosine_labels([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0], [0.0, 2.0]]).tolist()
    [0, 0, 1, 1, 1]
    """
    X = _unit(_rows(X))
    if not np.isfinite(bias):
        raise DuopldaError(f"bias={bias!r} must be a number")
    T = len(X)
    if T == 1:
        return np.zeros(1, np.int64)
    pairs = np.empty(T * (T - 1) // 2)  # above the diagonal, row by row
    at = 0
    for i in range(T - 1):
        at += np.matmul(X[i + 1 :], X[i], out=pairs[at : at + T - 1 - i]).shape[0]
    least = threshold_between(pairs, T) + bias
    np.clip(np.subtract(1, pairs, out=pairs), 0, None, out=pairs)  # rounding may leave -1e-16
    return _cut(linkage(pairs, "average"), 1 - least)


def threshold_between(similarities: Any, n_rows: int, n_iter: int = 20) -> float:
    """Return the similarity at which two rows are as likely of one speaker as of two.

    Two Gaussians with one variance are fitted by EM to the whole matrix of similarities, its diagonal included:
    m_0 for pairs of two speakers and m_1 for pairs of one, with weights w. They are equally probable at

        (m_0 + m_1)/2 - variance ln(w_1 / w_0) / (m_1 - m_0)

    Parameters
    ----------
    similarities : (n_rows (n_rows - 1) / 2,) cosine similarities of the pairs of rows; those on the diagonal are 1
    n_iter : iterations of EM

    Example
    -------
    >>> round(threshold_between([0.9, 0.1, 0.2, 0.1, 0.2, 0.8], 4), 2)
    0.54
    """
    s = np.asarray(similarities, np.float64)
    if s.shape != (n_rows * (n_rows - 1) // 2,) or not len(s):
        raise DuopldaError(f"{s.shape} similarities, and {n_rows} rows have {n_rows * (n_rows - 1) // 2} pairs")
    # of the whole matrix: each pair counts twice, and the diagonal adds n_rows times 1
    n = n_rows**2
    total = n_rows + 2 * float(s.sum())
    squares = n_rows + 2 * float(s @ s)
    mean = total / n
    least = 1e-12  # variance of similarities that differ by rounding only
    variance = squares / n - mean**2
    if variance < least:  # all rows point one way: one speaker
        return float(s.min()) - 1e-6
    low = mean - np.sqrt(variance)
    high = mean + np.sqrt(variance)
    w = 0.5  # weight of the upper one
    for _ in range(n_iter):
        slope = (high - low) / variance
        offset = np.log(w / (1 - w)) - slope * (low + high) / 2
        own = float(expit(slope + offset))
        count = n_rows * own
        upper = n_rows * own
        for i in range(0, len(s), BLOCK):
            part = s[i : i + BLOCK]
            g = expit(slope * part + offset)
            count = count + 2 * float(g.sum())
            upper = upper + 2 * float(g @ part)
        if not 1e-9 * n < count < (1 - 1e-9) * n:  # one of the two has died out
            break
        w = count / n
        high = upper / count
        low = (total - upper) / (n - count)
        variance = max(squares / n - w * high**2 - (1 - w) * low**2, least)
    return float((low + high) / 2 - variance * np.log(w / (1 - w)) / (high - low))


def centroid_labels(X: Any, threshold: float) -> Ints:
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
    X = _unit(_rows(X))
    if not threshold >= 0:
        raise DuopldaError(f"threshold={threshold!r} must be a distance of 0 or more")
    return _cut(linkage(X, "centroid"), threshold) if len(X) > 1 else np.zeros(1, np.int64)


def _cut(tree: Floats, distance: float) -> Ints:
    """Labels 0, 1, ... of the clusters below a distance, in the order of their first rows."""
    _, first, codes = np.unique(fcluster(tree, distance, "distance"), return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[codes].astype(np.int64)


# -- where to stop


def turns(start: Any, end: Any, label: Any) -> Spans:
    """Make turns of labelled windows, which may overlap.

    Windows of one label that overlap or follow each other without a pause become one turn. Where turns of two labels
    overlap, each gets half of the overlap.

    Parameters
    ----------
    start, end : (T,) seconds. Windows may come in any order, but none may lie within another
    label : (T,) numbers or texts

    Example
    -------
    >>> [a.tolist() for a in turns([0.0, 1.0, 2.0, 9.0], [2.0, 3.0, 4.0, 10.0], [7, 7, 8, 8])]
    [[0.0, 2.5, 9.0], [2.5, 4.0, 10.0], [7, 8, 8]]
    """
    start, end, label = (np.asarray(a) for a in (start, end, label))
    if start.ndim != 1 or not start.shape == end.shape == label.shape:
        raise DuopldaError(
            f"start, end and label must be lists of one length: {start.shape}, {end.shape}, {label.shape}"
        )
    start = start.astype(np.float64)
    end = end.astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(start) & np.isfinite(end) & (start <= end)))
    if len(wrong):
        raise DuopldaError(f"windows must start before they end, at finite times; rows {some(wrong)} do not")
    if not len(start):
        return Spans(start, end, label)
    order = np.lexsort((end, start))
    start = start[order]
    end = end[order]
    label = label[order]
    inside = np.flatnonzero(np.diff(end) < 0)
    if len(inside):
        raise DuopldaError(f"windows lie within others, rows {some(order[inside + 1])}: give windows of one length")
    new = np.flatnonzero((start[1:] - end[:-1] > TOUCH) | (label[1:] != label[:-1])) + 1
    firsts = np.append(0, new)
    lasts = np.append(new - 1, len(start) - 1)
    start = start[firsts]
    end = end[lasts]
    label = label[firsts]
    both = np.flatnonzero(start[1:] < end[:-1])
    end[both] = start[both + 1] = (end[both] + start[both + 1]) / 2
    return Spans(start, end, label)


# -- checks


def _rows(X: Any) -> Floats:
    X, _ = check_rows(X)
    check_finite(X)
    return to_numpy(X).astype(np.float64, copy=False)


def _unit(X: Floats) -> Floats:
    scale = np.abs(X).max(axis=1, keepdims=True)
    zero = np.flatnonzero(scale == 0)
    if len(zero):
        raise DuopldaError(f"rows of length 0 have no direction: {some(zero)}. Remove them (empty or silent audio?)")
    X = X / scale  # so that no square overflows or vanishes
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def _inputs(X: Any, phi: Any, start: Any) -> tuple[Floats, Floats, Floats]:
    X = _rows(X)
    phi = to_numpy(phi).astype(np.float64)
    start = to_numpy(start).astype(np.float64)
    if phi.shape != (X.shape[1],) or not (np.isfinite(phi) & (phi >= 0)).all():
        cause = f"phi must have {X.shape[1]} between-class variances of 0 or more, one for each dimension"
        raise DuopldaError(f"{cause}; it has shape {phi.shape}" + (f": {some(phi)}" if phi.ndim == 1 else ""))
    if start.ndim != 2 or len(start) != len(X) or not start.shape[1]:
        raise DuopldaError(f"start must have a row for each of the {len(X)} rows of X, it has shape {start.shape}")
    wrong = np.flatnonzero(~((start >= 0).all(axis=1) & (np.abs(start.sum(axis=1) - 1) < 1e-6)))
    if len(wrong):
        raise DuopldaError(f"rows of start must be probabilities that sum to 1; rows {some(wrong)} do not")
    return X, phi, start


def _scales(Fa: float, Fb: float, loop: float | None, max_iter: int, tol: float) -> float:
    """Check the numbers; return the probability to stay."""
    for name, value in (("Fa", Fa), ("Fb", Fb)):
        if not 0 < value < float("inf"):
            raise DuopldaError(f"{name}={value!r} must be a positive number")
    if loop is not None and not 0 <= loop <= 1:
        raise DuopldaError(f"loop={loop!r} must be a probability, or None where rows are independent")
    if max_iter < 1 or not tol >= 0:
        raise DuopldaError(
            f"max_iter={max_iter!r} and tol={tol!r}: at least one iteration, and a tolerance of 0 or more"
        )
    return float(loop or 0.0)
