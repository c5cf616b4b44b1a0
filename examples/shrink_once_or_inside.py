"""Shrink the covariances once after EM, or inside every M-step (MAP)? Both on real speech, with the same amounts.

    python examples/shrink_once_or_inside.py DATA_FOLDER

MAP puts inverse-Wishart priors on B = VV', S = UU' and W^-1, centred on the total covariance T times the size that
maximum likelihood found, worth nu pseudo-speakers, -sessions and -recordings with a = nu / (nu + n); its M-step is

    B = (V sum E[yy'] V' + nu b T) / (M + nu),   and likewise for S and W^-1,

which never lowers the posterior. DATA_FOLDER is as in examples/real_speech.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from real_speech import evaluate, load
from sklearn.pipeline import make_pipeline

from duoplda import PLDA, Statistics
from duoplda.model import em
from duoplda.model.parameters import Model
from duoplda.model.shrinkage import Shrinkage, Shrinker, target
from duoplda.preprocessing import Center, LengthNorm, Whiten

AMOUNTS = {"so762": [(0.9, 0.2, 0.02), (0.5, 0.1, 0.1)], "amnist": [(0.95, 0.5, 0.1), (0.7, 0.1, 0.1)]}


def map_em(stats: Statistics, ml: Model, a: Shrinkage, tol: float = 1e-5) -> Model:
    T, d = target(stats), stats.d
    n = (stats.n_speakers, stats.n_sessions, stats.n_recordings)
    nu = [x / (1 - x) * count for x, count in zip(a[:3], n, strict=True)]
    prior = [
        v * np.trace(np.linalg.solve(T, A)) / d * T
        for v, A in zip(nu, (ml.V @ ml.V.T, ml.U @ ml.U.T, np.linalg.inv(ml.W[0])), strict=True)
    ]
    model, e_step, before = Shrinker(ml, T, stats.N)(a), em.EStep(stats), -np.inf
    while True:
        m = e_step(model)
        value = m.ln_likelihood
        for A, v, P in zip(
            (model.V @ model.V.T, model.U @ model.U.T, np.linalg.inv(model.W[0])), nu, prior, strict=True
        ):
            value -= (v * np.linalg.slogdet(A)[1] + np.trace(np.linalg.solve(A, P))) / 2
        assert value > before - 1e-9 * abs(value), "the posterior fell"
        if value - before < tol * stats.n_recordings:
            return model
        before, R, C = value, m.R[0], m.C[0]
        Z = np.c_[model.V, model.U]
        mu = (C[:, -1] - Z @ R[:-1, -1]) / n[2]
        Z = np.c_[Z, mu]
        CZ = C @ Z.T
        sums = (
            model.V @ m.yy @ model.V.T,
            model.U @ m.rho[model.ny : -1, model.ny : -1] @ model.U.T,
            stats.S[0] - CZ - CZ.T + Z @ R @ Z.T,
        )
        B, S, E = ((A + A.T + P + P.T) / 2 / (v + c) for A, P, v, c in zip(sums, prior, nu, n, strict=True))
        model = Model((mu + stats.offset)[None], *map(np.linalg.cholesky, (B, S)), np.linalg.inv(E)[None], model.kinds)


def main(folder: Path) -> None:
    for name, amounts in AMOUNTS.items():
        data, public, trials = load(folder, name)
        front = make_pipeline(Center(), Whiten(), LengthNorm()).fit(data["embeddings"])
        X, Y = front.transform(data["embeddings"]), front.transform(public["embeddings"])
        stats = Statistics.from_arrays(X, data["speaker"], data["session_id"])
        ml = em.fit(stats, em.moment_start(stats, stats.d, stats.d)).model
        model, column = np.nonzero(trials["model_rows"] >= 0)
        rows = trials["model_rows"][model, column]
        pairs = np.c_[trials["trial_model"], trials["trial_test_row"]]
        for amount in amounts:
            a = Shrinkage(*amount)
            for way, m in (("once", Shrinker(ml, target(stats), stats.N)(a)), ("inside", map_em(stats, ml, a))):
                plda = PLDA.from_parameters(m.mu[0], m.V, m.U, m.W[0])
                sides = plda.enroll(Y[rows], model, public["session_id"][rows]), plda.enroll(Y, np.arange(len(Y)))
                ln = plda.score(Y, public["speaker"], public["session_id"])
                text = evaluate(plda.llr(*sides, pairs=pairs), public, trials)
                print(f"{name} {amount} {way:7} {text}  public speakers: {ln:.3f} nats per recording", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
