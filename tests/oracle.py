"""Dense Gaussians, too slow and obviously right: what every number of the model is compared with.

    phi = mu_k + V y_speaker + U x_session + eps,   y, x ~ N(0, I),   eps ~ N(0, W_k^-1),   k the recording's kind

The covariance of any set of recordings is written down pair by pair, and then it is one big Gaussian. Nothing here is
grouped, and nothing is imported from duoplda. At the end stands EM as the source prints it, with its errata applied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve


@dataclass(frozen=True)
class Params:
    mu: np.ndarray  # (K, d)
    V: np.ndarray  # (d, ny)
    U: np.ndarray  # (d, nx)
    W: np.ndarray  # (K, d, d) precisions


@dataclass(frozen=True)
class Data:
    """Labelled recordings; `kind` holds integers."""

    X: np.ndarray
    speaker: np.ndarray
    session: np.ndarray
    kind: np.ndarray

    def __len__(self):
        return len(self.X)

    def rows(self, index):
        return Data(self.X[index], self.speaker[index], self.session[index], self.kind[index])


# -- models and data to try things on ----------------------------------------------------------------------------------


def random_model(rng, d, ny, nx, K=1):
    """Loadings and noise of order one, every kind with a noise of its own, and means of 30 to 100 either way."""
    mu = rng.uniform(30, 100, (K, d)) * rng.choice([-1, 1], (K, d))
    V = rng.normal(size=(d, ny))
    U = 0.8 * rng.normal(size=(d, nx))
    W = np.empty((K, d, d))
    for k in range(K):
        Q = np.linalg.qr(rng.normal(size=(d, d)))[0]
        W[k] = Q @ np.diag(rng.uniform(0.4, 4.0, d)) @ Q.T
        W[k] = (W[k] + W[k].T) / 2
    return Params(mu, V, U, W)


def ragged_labels(rng, n_speakers, sessions=(1, 4), recordings=(1, 9), K=1):
    """Speaker, session and kind of recordings in random order; ids do not sort in the order in which they are made.

    The first speaker has one session only, and the first session one recording only, if the ranges allow it.
    """
    speaker, session = [], []
    names = rng.permutation(n_speakers)
    made = 0
    for i in range(n_speakers):
        for _ in range(sessions[0] if i == 0 else rng.integers(sessions[0], sessions[1] + 1)):
            size = recordings[0] if made == 0 else rng.integers(recordings[0], recordings[1] + 1)
            speaker += [f"speaker{names[i]}"] * size
            session += [f"{(made * 7919) % 1009}-of-{names[i]}"] * size
            made += 1
    order = rng.permutation(len(speaker))
    return np.array(speaker)[order], np.array(session)[order], rng.integers(0, K, len(speaker))


def draw(rng, p, speaker, session, kind=None):
    """Recordings of given labels, one after the other."""
    kind = np.zeros(len(speaker), int) if kind is None else kind
    y = {s: rng.normal(size=p.V.shape[1]) for s in np.unique(speaker).tolist()}
    x = {s: rng.normal(size=p.U.shape[1]) for s in np.unique(session).tolist()}
    X = []
    for i, j, k in zip(speaker.tolist(), session.tolist(), kind.tolist(), strict=True):
        noise = rng.multivariate_normal(np.zeros(p.V.shape[0]), np.linalg.inv(p.W[k]))
        X.append(p.mu[k] + p.V @ y[i] + p.U @ x[j] + noise)
    return Data(np.array(X), speaker, session, kind)


def random_data(rng, p, n_speakers, sessions=(1, 4), recordings=(1, 9)):
    return draw(rng, p, *ragged_labels(rng, n_speakers, sessions, recordings, len(p.mu)))


# -- one big Gaussian --------------------------------------------------------------------------------------------------


def mean_and_covariance(p, speaker, session, kind):
    """Of all recordings at once, one below the other: (N d,), (N d, N d)."""
    N, d = len(speaker), p.V.shape[0]
    mean = np.concatenate([p.mu[k] for k in kind])
    VV, UU, noise = p.V @ p.V.T, p.U @ p.U.T, np.linalg.inv(p.W)
    covariance = np.zeros((N, d, N, d))
    for a in range(N):
        for b in range(N):
            if speaker[a] == speaker[b]:
                covariance[a, :, b, :] += VV
            if session[a] == session[b]:
                covariance[a, :, b, :] += UU
            if a == b:
                covariance[a, :, b, :] += noise[kind[a]]
    return mean, covariance.reshape(N * d, N * d)


def ln_gaussian(x, mean, covariance):
    C = np.linalg.cholesky(covariance)
    e = np.linalg.solve(C, x - mean)
    return -0.5 * (e @ e) - np.log(np.diagonal(C)).sum() - 0.5 * len(x) * np.log(2 * np.pi)


def ln_density(p, data):
    """ln P of all recordings."""
    return ln_gaussian(data.X.ravel(), *mean_and_covariance(p, data.speaker, data.session, data.kind))


def log_likelihoods(p, data):
    """ln P(Phi_i) of each speaker, ids sorted."""
    return np.array([ln_density(p, data.rows(data.speaker == s)) for s in np.unique(data.speaker)])


def partition_log_likelihood(p, data, labels):
    return ln_density(p, Data(data.X, np.asarray(labels), data.session, data.kind))


def conditional_log_likelihoods(p, data, y, x):
    """ln P(Phi_i | y_i, X_i); rows of y and x go with the sorted ids."""
    speakers, sessions = np.unique(data.speaker), np.unique(data.session)
    out = np.zeros(len(speakers))
    for row, i, j, k in zip(data.X, data.speaker, data.session, data.kind, strict=True):
        at = np.searchsorted(speakers, i)
        mean = p.mu[k] + p.V @ y[at] + p.U @ x[np.searchsorted(sessions, j)]
        out[at] += ln_gaussian(row, mean, np.linalg.inv(p.W[k]))
    return out


@dataclass(frozen=True)
class Hidden:
    """The joint posterior of all hidden variables, y of the sorted speakers first, then x of the sorted sessions."""

    mean: np.ndarray
    covariance: np.ndarray
    n_speakers: int
    ny: int
    nx: int

    def at_y(self, i):
        return slice(i * self.ny, (i + 1) * self.ny)

    def at_x(self, j):
        start = self.n_speakers * self.ny
        return slice(start + j * self.nx, start + (j + 1) * self.nx)

    def y(self, i):
        return self.mean[self.at_y(i)], self.covariance[self.at_y(i), self.at_y(i)]

    def x(self, j):
        return self.mean[self.at_x(j)], self.covariance[self.at_x(j), self.at_x(j)]

    def x_given_y(self, j, i, y):
        """Mean and covariance of x_j given y_i = y."""
        a, b = self.at_x(j), self.at_y(i)
        S = self.covariance
        slope = np.linalg.solve(S[b, b], S[b, a]).T
        return self.mean[a] + slope @ (y - self.mean[b]), S[a, a] - slope @ S[b, a]


def posterior(p, data):
    """Condition the joint Gaussian of hidden variables and recordings on the recordings."""
    speakers, sessions = np.unique(data.speaker), np.unique(data.session)
    N, (d, ny), nx = len(data), p.V.shape, p.U.shape[1]
    hidden = Hidden(np.zeros(0), np.zeros(0), len(speakers), ny, nx)
    n_hidden = len(speakers) * ny + len(sessions) * nx
    cross = np.zeros((n_hidden, N, d))  # cov(hidden, recordings)
    for n in range(N):
        cross[hidden.at_y(np.searchsorted(speakers, data.speaker[n])), n, :] = p.V.T
        cross[hidden.at_x(np.searchsorted(sessions, data.session[n])), n, :] = p.U.T
    cross = cross.reshape(n_hidden, N * d)
    mean, covariance = mean_and_covariance(p, data.speaker, data.session, data.kind)
    gain = cho_solve(cho_factor(covariance), cross.T).T
    return Hidden(gain @ (data.X.ravel() - mean), np.eye(n_hidden) - gain @ cross.T, len(speakers), ny, nx)


def join(a, b):
    """Recordings of two sets together; a session of the same name is the same session."""
    return Data(*(np.concatenate([getattr(a, f), getattr(b, f)]) for f in ("X", "speaker", "session", "kind")))


def one_speaker(data):
    return Data(data.X, np.zeros(len(data), int), data.session, data.kind)


def llr(p, a, b):
    """ln P(a and b of one speaker) - ln P(a) - ln P(b), whatever the speaker labels say."""
    return ln_density(p, one_speaker(join(a, b))) - ln_density(p, one_speaker(a)) - ln_density(p, one_speaker(b))


def llr_matrix(p, a, b):
    """Sides are the ids in `speaker`, sorted."""
    return np.array(
        [
            [llr(p, a.rows(a.speaker == i), b.rows(b.speaker == j)) for j in np.unique(b.speaker)]
            for i in np.unique(a.speaker)
        ]
    )


# -- EM, loop by loop, as the source prints it ------------------------------------------------------------------------


def em_iteration(p, data, minimum_divergence=True):
    """One iteration of the source's section 3 (one kind of channel), session by session, errata applied.

    Errata: the precision is W throughout; posterior means are Lambda^-1 gamma; the MD transform has +1/2 in place of
    -1/2. Both M-steps use the expectations of one E-step.
    """
    mu, V, U, W = p.mu[0], p.V, p.U, p.W[0]
    d, ny, nx = len(mu), V.shape[1], U.shape[1]
    speakers = np.unique(data.speaker)
    M, H, N = len(speakers), len(np.unique(data.session)), len(data)
    J = U.T @ W @ V

    R_y, R_xy, R_x = np.zeros((ny, ny)), np.zeros((nx, ny)), np.zeros((nx, nx))
    R_y1, R_x1 = np.zeros(ny), np.zeros(nx)
    rho_y, rho_xy, rho_x = np.zeros((ny, ny)), np.zeros((nx, ny)), np.zeros((nx, nx))
    rho_y1, rho_x1 = np.zeros(ny), np.zeros(nx)
    C_y, C_x = np.zeros((d, ny)), np.zeros((d, nx))
    sum_y, sum_yy = np.zeros(ny), np.zeros((ny, ny))
    S, F = np.zeros((d, d)), np.zeros(d)
    for row in data.X:
        S += np.outer(row, row)
        F += row

    for i in speakers:
        of_i = data.speaker == i
        sessions = np.unique(data.session[of_i])
        N_i, F_i = of_i.sum(), data.X[of_i].sum(axis=0)
        H_i = len(sessions)
        Lambda = np.eye(ny) + N_i * V.T @ W @ V
        gamma = V.T @ W @ (F_i - N_i * mu)
        for j in sessions:
            L, F_ij = (data.session == j).sum(), data.X[data.session == j].sum(axis=0)
            inverse_Lx = np.linalg.inv(np.eye(nx) + L * U.T @ W @ U)
            zeta = U.T @ W @ (F_ij - L * mu)
            Lambda = Lambda - L**2 * J.T @ inverse_Lx @ J
            gamma = gamma - L * J.T @ inverse_Lx @ zeta
        inverse_Ly = np.linalg.inv(Lambda)
        y = inverse_Ly @ gamma
        yy = inverse_Ly + np.outer(y, y)

        sum_y += y
        sum_yy += yy
        C_y += np.outer(F_i, y)
        R_y1 += N_i * y
        R_y += N_i * yy
        rho_y1 += H_i * y
        rho_y += H_i * yy
        for j in sessions:
            L, F_ij = (data.session == j).sum(), data.X[data.session == j].sum(axis=0)
            inverse_Lx = np.linalg.inv(np.eye(nx) + L * U.T @ W @ U)
            zeta = U.T @ W @ (F_ij - L * mu)
            x = inverse_Lx @ (zeta - L * J @ y)
            xy = inverse_Lx @ (np.outer(zeta, y) - L * J @ yy)
            inner = np.outer(zeta, zeta) - L * np.outer(zeta, y) @ J.T - L * J @ np.outer(y, zeta) + L**2 * J @ yy @ J.T
            xx = inverse_Lx + inverse_Lx @ inner @ inverse_Lx
            C_x += np.outer(F_ij, x)
            R_x1 += L * x
            R_xy += L * xy
            R_x += L * xx
            rho_x1 += x
            rho_xy += xy
            rho_x += xx

    # M-step ML
    R = np.block(
        [
            [R_y, R_xy.T, R_y1[:, None]],
            [R_xy, R_x, R_x1[:, None]],
            [R_y1[None, :], R_x1[None, :], np.array([[N]])],
        ]
    )
    C = np.column_stack([C_y, C_x, F])
    V_tilde = C @ np.linalg.inv(R)
    covariance = (S - V_tilde @ C.T) / N
    covariance = (covariance + covariance.T) / 2
    V, U, mu = V_tilde[:, :ny], V_tilde[:, ny : ny + nx], V_tilde[:, -1]

    # M-step MD
    if minimum_divergence:
        mu_y = sum_y / M
        Sigma_y = sum_yy / M - np.outer(mu_y, mu_y)
        slope = (rho_xy - np.outer(rho_x1, rho_y1) / H) @ np.linalg.inv(rho_y - np.outer(rho_y1, rho_y1) / H)
        mu_x = (rho_x1 - slope @ rho_y1) / H
        Sigma_x = (
            rho_x
            - rho_xy @ slope.T
            - slope @ rho_xy.T
            + slope @ rho_y @ slope.T
            - np.outer(rho_x1 - slope @ rho_y1, mu_x)
        ) / H
        mu = mu + (V + U @ slope) @ mu_y + U @ mu_x
        V = (V + U @ slope) @ np.linalg.cholesky((Sigma_y + Sigma_y.T) / 2)
        U = U @ np.linalg.cholesky((Sigma_x + Sigma_x.T) / 2) if nx else U
    return Params(mu[None], V, U, np.linalg.inv(covariance)[None])


def em_iteration_kinds(p, data, minimum_divergence=True, nu=0.0):
    """The same for kinds of channels (MODEL.md 7), from the dense posterior of all hidden variables of a speaker.

    The loadings solve one linear system in all their entries at once; then come the means, then each kind's noise,
    towards which nu recordings are added that have the covariance (mean of W)^-1.
    """
    K, d = p.mu.shape
    ny, nx = p.V.shape[1], p.U.shape[1]
    n = ny + nx
    speakers = np.unique(data.speaker)
    M, H = len(speakers), len(np.unique(data.session))
    R, r = np.zeros((K, n, n)), np.zeros((K, n))  # sums over recordings of E[h h'], E[h], with h = [y; x]
    C = np.zeros((K, d, n))  # sums over recordings of phi E[h]'
    S, F, N = np.zeros((K, d, d)), np.zeros((K, d)), np.zeros(K)
    rho, rho1 = np.zeros((n, n)), np.zeros(n)  # sums over sessions
    sum_y, sum_yy = np.zeros(ny), np.zeros((ny, ny))
    for i in speakers:
        own = data.rows(data.speaker == i)
        hidden = posterior(p, own)
        y, cov_y = hidden.y(0)
        sum_y += y
        sum_yy += cov_y + np.outer(y, y)
        for j, name in enumerate(np.unique(own.session)):
            at = np.r_[np.arange(ny), np.arange(*hidden.at_x(j).indices(len(hidden.mean)))]
            h = hidden.mean[at]
            hh = hidden.covariance[np.ix_(at, at)] + np.outer(h, h)
            rho += hh
            rho1 += h
            for row, k in zip(own.X[own.session == name], own.kind[own.session == name], strict=True):
                R[k] += hh
                r[k] += h
                C[k] += np.outer(row, h)
                S[k] += np.outer(row, row)
                F[k] += row
                N[k] += 1
    left, right = np.zeros((d * n, d * n)), np.zeros((d, n))
    for k in range(K):
        Rc = R[k] - np.outer(r[k], r[k]) / N[k]
        Cc = C[k] - np.outer(F[k], r[k]) / N[k]
        left += np.kron(p.W[k], Rc)  # row-major entries of W Z R
        right += p.W[k] @ Cc
    Z = np.linalg.solve(left, right.ravel()).reshape(d, n)
    mu, W = np.empty((K, d)), np.empty((K, d, d))
    for k in range(K):
        mu[k] = (F[k] - Z @ r[k]) / N[k]
        T, t = np.column_stack([Z, mu[k]]), np.block([[R[k], r[k][:, None]], [r[k][None, :], N[k]]])
        CT = np.column_stack([C[k], F[k]]) @ T.T
        scatter = S[k] - CT - CT.T + T @ t @ T.T + nu * np.linalg.inv(p.W.mean(axis=0))
        W[k] = np.linalg.inv(scatter / (N[k] + nu))
    V, U = Z[:, :ny], Z[:, ny:]
    if minimum_divergence:
        mean_y = sum_y / M
        slope = np.linalg.solve(
            rho[:ny, :ny] - np.outer(rho1[:ny], rho1[:ny]) / H, rho[:ny, ny:] - np.outer(rho1[:ny], rho1[ny:]) / H
        ).T
        mean_x = (rho1[ny:] - slope @ rho1[:ny]) / H
        residual = np.column_stack([-slope, np.eye(nx)])  # x - slope y
        Sigma_x = residual @ rho @ residual.T / H - np.outer(mean_x, mean_x)
        mu = mu + (V + U @ slope) @ mean_y + U @ mean_x
        V = (V + U @ slope) @ np.linalg.cholesky(sum_yy / M - np.outer(mean_y, mean_y))
        U = U @ np.linalg.cholesky(Sigma_x)
    return Params(mu, V, U, W)
