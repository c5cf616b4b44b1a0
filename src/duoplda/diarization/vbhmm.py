"""VBx: finds the speakers of one file by variational Bayes in a hidden Markov model.

The equations are those of Landini et al. (2022) and Diez et al. (2019). A file is a sequence of rows x_t, in the space
where the within-class covariance is I and the between-class covariance is diag(phi) (`latent`). Speaker s has a vector
y_s, and the states z_t of the Markov chain are speakers:

    y_s ~ N(0, I),    x_t | z_t = s ~ N(phi^1/2 y_s, I),    p(z_1 = s) = pi_s,
    p(z_t = s | z_{t-1} = r) = loop [s = r] + (1 - loop) pi_s

The posterior is approximated by q(z) q(y). F_a scales the evidence of a row, because neighbouring rows overlap, and F_b
scales the cost of a speaker. With the responsibilities g_ts = q(z_t = s), the best value of each factor and of the
priors pi, given the others, has a closed form. None of these steps lowers the lower bound E:

    q(y_s) = N(a_s, diag(v_s)),  1/v_s = 1 + (F_a/F_b) (sum_t g_ts) phi,  a_s = (F_a/F_b) v_s sum_t g_ts phi^1/2 x_t
    ln p_t(s) = F_a E[ln N(x_t; phi^1/2 y_s, I)] = F_a (x_t' phi^1/2 a_s - phi'(v_s + a_s^2)/2 - x_t'x_t/2 - d/2 ln 2pi)
    g by forward-backward over p_t,    pi_s proportional to the expected number of times that s is drawn from pi
    E = ln sum_z p(z) prod_t p_t(z_t) + F_b/2 sum_s sum_d (ln v_s - v_s - a_s^2 + 1)_d

At each step the chain either stays in its state or draws a new one from pi. What comes from other states is thus one
sum for all, and a step costs O(S) for S speakers, not O(S^2). With loop = 0 the rows are independent, which is the
mixture that pyannote 4 uses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, softmax

from duoplda.arrays import check_finite, check_rows, to_numpy
from duoplda.errors import DuopldaError, some
from duoplda.io import DiagonalModel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Diarized:
    """The result of `vb_hmm` for T rows, S speakers and d dimensions.

    S is the number of speakers at the start, and includes those whom the HMM has dropped. To count the speakers who are
    left, count those in `labels`.

    >>> result = vb_hmm([[3.0], [3.1], [-3.0], [-2.9]], [9.0], smoothed([0, 0, 1, 1]), Fa=1, Fb=1)
    >>> result.responsibilities.shape, result.labels.tolist()
    ((4, 2), [0, 0, 1, 1])
    """

    responsibilities: Floats  # (T, S) probabilities of the speakers of each row
    priors: Floats  # (S,) pi after learning; the prior of a speaker who is not needed goes to 0
    elbo: Floats  # (iterations,) the lower bound E after each iteration, which never falls
    means: Floats  # (S, d) the expected row of each speaker, phi^1/2 a_s
    converged: bool  # whether the last iteration raised E by less than `tol`

    @property
    def labels(self) -> Ints:
        """(T,) the most probable speaker of each row."""
        return self.responsibilities.argmax(axis=1)


def latent(X: ArrayLike, model: DiagonalModel, n_dimensions: int | None = None) -> tuple[Floats, Floats]:
    """Rows A(x - mean) (T, k), whose within-class covariance is I, and their between-class variances phi (k,).

    Parameters
    ----------
    X : (T, d) recordings as the PLDA takes them, after all preprocessing
    model : a PLDA without session level, as `Backend.collapsed` gives it
    n_dimensions : keep the k dimensions with the largest between-class variances; None keeps all

    Example
    -------
    >>> rows, phi = latent([[1.0, 2.0]], DiagonalModel(np.ones(2), np.diag([1.0, 3.0]), np.array([1.0, 5.0])), 1)
    >>> rows.tolist(), phi.tolist()
    ([[3.0]], [5.0])
    """
    rows = finite_rows(X)
    d = len(model.mean)
    if rows.shape[1] != d:
        raise DuopldaError(f"recordings have {rows.shape[1]} dimensions, the model {d}: apply its preprocessing first")
    if n_dimensions is not None and not 1 <= n_dimensions <= d:
        raise DuopldaError(f"n_dimensions={n_dimensions!r} must lie between 1 and {d}, the dimensions of the model")
    order = np.argsort(-model.psi, kind="stable")[:n_dimensions]
    return (rows - model.mean) @ model.transform[order].T, model.psi[order]


def smoothed(labels: ArrayLike, amount: float = 5.0) -> Floats:
    """(T, S) first responsibilities from labels (T,): the softmax of `amount` for a row's label and 0 for the others.

    With a large amount the labels are taken for nearly certain. VBx has 5, pyannote 7. The columns are the labels in
    sorted order.

    >>> smoothed([0, 1], np.log(3.0)).round(6).tolist()
    [[0.75, 0.25], [0.25, 0.75]]
    """
    if not np.isfinite(amount) or amount < 0:
        raise DuopldaError(f"amount={amount!r} must be 0 or more: 0 ignores the labels, 5 leaves little doubt of them")
    names = np.asarray(labels)
    if names.ndim != 1 or not len(names):
        raise DuopldaError(f"labels must be a list with one label for each row, got shape {names.shape}")
    speakers, codes = np.unique(names, return_inverse=True)
    return softmax(amount * np.eye(len(speakers))[codes], axis=1)


def vb_hmm(
    X: ArrayLike,
    phi: ArrayLike,
    start: ArrayLike,
    *,
    Fa: float = 0.3,
    Fb: float = 17.0,
    loop: float | None = 0.99,
    max_iter: int = 40,
    tol: float = 1e-6,
) -> Diarized:
    """Find the speakers of a sequence of rows by VBx's HMM, starting from first responsibilities.

    Speakers can be dropped and rows can change their speaker, but no speaker is added: start with too many speakers
    rather than too few. The responsibilities are probabilities within the model, and are too certain where the model
    does not fit the recording. `diarize` is the whole way from embeddings to turns.

    Parameters
    ----------
    X : (T, d) rows with within-class covariance I, in the order of time (`latent`)
    phi : (d,) between-class variances
    start : (T, S) first responsibilities (`smoothed`); each row sums to 1
    Fa, Fb : the factor on the evidence of a row, and the one on the cost of a speaker: a larger Fb gives fewer
        speakers. The defaults are those of VBx's example
    loop : the probability to stay with the same speaker; with None or 0 rows are independent, as in pyannote 4
    max_iter : the largest number of iterations
    tol : iterations stop after the first that raises the lower bound by less than this, in nats

    Example
    -------
    >>> X = np.repeat([[3.0, 0.0], [-3.0, 1.0]], 20, axis=0) + np.random.default_rng(0).normal(size=(40, 2))
    >>> result = vb_hmm(X, [9.0, 1.0], smoothed(np.arange(40) // 10), Fa=1, Fb=1)
    >>> int((result.priors > 0.01).sum()), len(set(result.labels[:20])), len(set(result.labels[20:]))
    (2, 1, 1)
    """
    rows, phi, g = _checked(X, phi, start)
    _check_options(Fa, Fb, loop, max_iter, tol)
    d = rows.shape[1]
    rho = rows * np.sqrt(phi)  # (T, d)
    ratio = Fa / Fb
    constant = -0.5 * (np.einsum("td,td->t", rows, rows) + d * np.log(2 * np.pi))[:, None]  # (T, 1), the same for all s
    pi = np.full(g.shape[1], 1 / g.shape[1])
    bounds: list[float] = []
    converged = False
    while len(bounds) < max_iter and not converged:
        v = 1 / (1 + ratio * g.sum(axis=0)[:, None] * phi)  # (S, d)
        a = ratio * v * (g.T @ rho)  # (S, d)
        evidence = Fa * (rho @ a.T - 0.5 * ((v + a**2) @ phi) + constant)  # (T, S) ln p_t(s)
        g, drawn, total = posterior(evidence, pi, float(loop or 0.0))
        bounds.append(total + 0.5 * Fb * float((np.log(v) - v - a**2 + 1).sum()))
        converged = len(bounds) > 1 and bounds[-1] - bounds[-2] < tol
        pi = drawn / drawn.sum()
    return Diarized(g, pi, np.array(bounds), np.sqrt(phi) * a, converged)


def posterior(evidence: ArrayLike, priors: ArrayLike, loop: float) -> tuple[Floats, Floats, float]:
    """Posteriors of the states of the chain, by the forward-backward algorithm in logarithms.

    Parameters
    ----------
    evidence : (T, S) ln p_t(s)
    priors : (S,) pi
    loop : the probability to stay

    Returns
    -------
    responsibilities : (T, S) the probability of each state in each row
    drawn : (S,) the expected number of times that each state is drawn from pi, which happens in the first row and
        wherever the chain does not stay
    total : ln sum_z p(z) prod_t p_t(z_t)

    Example
    -------
    >>> g, drawn, total = posterior(np.log([[0.9, 0.1], [0.5, 0.5]]), [0.5, 0.5], loop=1.0)
    >>> g.round(6).tolist(), drawn.round(6).tolist(), round(float(np.exp(total)), 6)
    ([[0.9, 0.1], [0.9, 0.1]], [0.9, 0.1], 0.25)
    """
    e = np.asarray(evidence, np.float64)
    with np.errstate(divide="ignore"):  # the logarithm of a prior or loop of 0 is -inf, which is right in the sums
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
    current = e[0] + first  # ln p(x_t, z_t = s | x_1 .. x_{t-1})
    for t in range(T):
        if t:  # in place, because making new arrays for each row takes longer than the sums
            np.add(stay, f[t - 1], out=current)
            np.logaddexp(current, draw, out=current)
            np.add(current, e[t], out=current)
        c[t] = np.logaddexp.reduce(current)
        np.subtract(current, c[t], out=f[t])
    # backward: b_t(s) = ln p(x_{t+1} .. x_T | z_t = s) - sum_{u > t} c_u;  w_t = b_t + ln p_t - c_t
    b = np.zeros_like(e)
    w = np.empty_like(e)
    scaled = e - c[:, None]
    for t in range(T - 1, 0, -1):
        np.add(scaled[t], b[t], out=w[t])
        np.logaddexp(stay + w[t], np.logaddexp.reduce(draw + w[t]), out=b[t - 1])
    g = np.exp(f + b)
    return g, g[0] + np.exp(draw + w[1:]).sum(axis=0), float(c.sum())


def finite_rows(X: ArrayLike) -> Floats:
    """The rows (T, d) as float64 in NumPy; NaN and infinity are errors."""
    rows, _ = check_rows(X)
    check_finite(rows)
    return to_numpy(rows).astype(np.float64, copy=False)


def _checked(X: ArrayLike, phi: ArrayLike, start: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """The three arrays of `vb_hmm` as float64; if one does not fit, an error says which."""
    rows = finite_rows(X)
    phi = to_numpy(phi).astype(np.float64)
    start = to_numpy(start).astype(np.float64)
    if phi.shape != (rows.shape[1],) or not (np.isfinite(phi) & (phi >= 0)).all():
        cause = f"phi must have {rows.shape[1]} between-class variances of 0 or more, one for each dimension"
        raise DuopldaError(f"{cause}; it has shape {phi.shape}" + (f": {some(phi)}" if phi.ndim == 1 else ""))
    if start.ndim != 2 or len(start) != len(rows) or not start.shape[1]:
        raise DuopldaError(f"start must have a row for each of the {len(rows)} rows of X, but has shape {start.shape}")
    wrong = np.flatnonzero(~((start >= 0).all(axis=1) & (np.abs(start.sum(axis=1) - 1) < 1e-6)))
    if len(wrong):
        raise DuopldaError(f"rows of start must be probabilities that sum to 1; rows {some(wrong)} do not")
    return rows, phi, start


def _check_options(Fa: float, Fb: float, loop: float | None, max_iter: int, tol: float) -> None:
    for name, value in (("Fa", Fa), ("Fb", Fb)):
        if not 0 < value < float("inf"):
            raise DuopldaError(f"{name}={value!r} must be a positive number")
    if loop is not None and not 0 <= loop <= 1:
        raise DuopldaError(f"loop={loop!r} must be a probability, or None if rows are independent")
    if max_iter < 1 or not tol >= 0:
        cause = f"max_iter={max_iter!r} and tol={tol!r}"
        raise DuopldaError(f"{cause}: give at least one iteration, and a tolerance of 0 or more")
