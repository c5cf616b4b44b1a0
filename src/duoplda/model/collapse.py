"""A model without the session level and with one kind of channel, the only model that other tools can hold."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from duoplda.arrays import spd_inverse
from duoplda.io import DiagonalModel

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Loss:
    """What `collapse` gives up: shares of the within-class variance tr(T^-1 within), T the total covariance.

    Where sessions have become part of what tells speakers apart, `session` is a share of tr(T^-1 between).
    """

    session: float  # the share of UU', which recordings of a session no longer share
    kinds: float  # the share of the differences between the means of the kinds of channels
    n_kinds: int
    one_session: bool = False  # UU' is now part of what is between classes

    @property
    def lossless(self) -> bool:
        """Whether nothing is given up."""
        return self.session == 0 and self.n_kinds == 1

    def sentence(self, copies: int = 5) -> str:
        """The loss in words, with the example of `copies` recordings of one session."""
        if self.lossless:
            return "nothing is lost: the model has no session factors and one kind of channel"
        parts = []
        if self.session and self.one_session:
            share = f"{100 * self.session:.1f} % of the between-class variance is the sessions'"
            parts.append(f"{share}: this is right inside one session, and wrong for a speaker who is in several")
        elif self.session:
            share = f"{100 * self.session:.1f} % of the within-class variance is the sessions'"
            effect = f"{copies} recordings of one session are taken for {1 + (copies - 1) * self.session:.2f} times"
            noise = "noise of each recording: copies of a session will be counted as independent"
            parts.append(f"{share} and is now {noise}, so that {effect} as precise as they are")
        if self.n_kinds > 1:
            means = f"their means made {100 * self.kinds:.1f} % of the within-class variance"
            parts.append(f"{self.n_kinds} kinds of channels became one mean noise ({means})")
        return "this is lossy: " + "; ".join(parts)


def collapse(
    means: Floats, V: Floats, U: Floats, W: Floats, priors: Floats, *, one_session: bool = False
) -> tuple[DiagonalModel, Loss]:
    """Merge the session level and the kinds of channels into the noise of one recording; return what that loses, too.

        between = VV',   within = UU' + sum_k pi_k (W_k^-1 + (mu_k - mean)(mu_k - mean)'),   mean = sum_k pi_k mu_k

    are the covariances of one recording of unknown kind; with one kind, within is UU' + W^-1. Both are diagonalised by
    one matrix A. Where all recordings of a speaker are of one session, they share VV' + UU': with `one_session`, UU' is
    part of the covariance between classes.

    Parameters
    ----------
    means : (K, d) of the kinds of channels
    V, U : (d, ny), (d, nx) loadings
    W : (K, d, d) precisions of the noise; (d, d) where there is one kind
    priors : (K,) shares of the kinds
    one_session : for comparisons inside one session only, as in the diarisation of a file if files were the sessions

    Example
    -------
    >>> model, loss = collapse(np.zeros((1, 1)), np.array([[2.0]]), np.ones((1, 1)), np.ones((1, 1)), np.ones(1))
    >>> model.psi.round(6).tolist(), round(loss.session, 6)
    ([2.0], 0.5)
    """
    d = means.shape[1]
    mean = priors @ means
    W = W.reshape(-1, d, d)
    spread = np.sqrt(priors)[:, None] * (means - mean) if len(W) > 1 else np.zeros((0, d))
    V, inside = (np.hstack([V, U]), 0 * U) if one_session else (V, U)
    within = inside @ inside.T + spread.T @ spread + np.tensordot(priors, spd_inverse(W)[0], 1)
    C = np.linalg.cholesky((within + within.T) / 2)
    left, s, _ = np.linalg.svd(np.linalg.solve(C, V))  # (d, d), (min(d, ny),)
    A = np.linalg.solve(C.T, left).T  # left' C^-1
    psi = np.zeros(d)
    psi[: len(s)] = s**2
    total = 1 + psi  # of A (phi - mean)
    session, kinds = (float(((A @ x) ** 2 / total[:, None]).sum() / (1 / total).sum()) for x in (U, spread.T))
    if one_session:
        session *= float((1 / total).sum() / (psi / total).sum())
    return DiagonalModel(mean, A, psi), Loss(session, kinds, len(W), one_session)
