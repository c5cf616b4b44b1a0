"""Preprocessing that has seen the held-out speakers: how much do their trials learn from it?

    python examples/what_leaks.py [DATA_FOLDER]

First drawn data whose labels were shuffled between sessions: the cost of held-out trials should be 1, and what it
falls below 1 has leaked. Then, where DATA_FOLDER has SET_campp_train.npz, real speech: the cost and the choice with the
length of a held-out recording as the steps without its fold give it (as `Backend` does), and as all data give it.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np

from duoplda import PLDA, Backend
from duoplda.datasets import make_recordings


def careless(chain: Backend, X: np.ndarray, speaker: np.ndarray, session: np.ndarray) -> PLDA:
    """Train on recordings that keep the lengths of steps which have seen them all, those held out included."""
    rows = chain.fit(X, speaker, session=session).transform(X)
    return PLDA(shrinkage="auto", random_state=0).fit(rows, speaker, session=session)


def careful(chain: Backend, X: np.ndarray, speaker: np.ndarray, session: np.ndarray) -> PLDA:
    """Train as `Backend` does: a held-out recording has the length that the steps without its fold give it."""
    return chain.fit(X, speaker, session=session).plda_


def shuffled(n_speakers: int, seed: int):
    """Recordings in 48 dimensions whose sessions were given to speakers at random."""
    sizes = {"n_dimensions": 48, "n_speaker_factors": 24, "n_session_factors": 48}
    data = make_recordings(n_speakers, (3, 6), (1, 4), seed=seed, **sizes)
    names, first = np.unique(data.session, return_index=True)
    speaker = np.random.default_rng(seed).permutation(data.speaker[first])[np.searchsorted(names, data.session)]
    return data.X, speaker, data.session


def main() -> None:
    warnings.simplefilter("ignore")
    print("shuffled labels, 48 dimensions, three seeds: the cost of held-out trials (1: nothing leaks)")
    for n_speakers in (60, 200):
        for name, (train, chain) in {
            "no preprocessing": (careful, Backend(whiten=False, length_norm=False)),
            "whitening, length of all data": (careless, Backend()),
            "whitening, length without the fold": (careful, Backend()),
            "LDA to 16 dimensions": (careful, Backend(lda=16)),
        }.items():
            costs = [train(chain, *shuffled(n_speakers, seed)).cost_ for seed in range(3)]
            print(f"{n_speakers:4} speakers, {name:36} " + "  ".join(f"{c:.3f}" for c in costs), flush=True)
    for path in sorted(Path(sys.argv[1]).glob("*_campp_train.npz")) if len(sys.argv) > 1 else ():
        data = np.load(path)
        print(f"\n{path.name}: two-source model, true labels")
        for name, train in {"length of all data": careless, "length without the fold": careful}.items():
            plda = train(Backend(), data["embeddings"], data["speaker"], data["session_id"])
            c = plda.calibration_
            amounts = ", ".join(f"{a:g}" for a in (*plda.shrinkage_[:3], *plda.scales_))
            print(f"{name:24} cost {plda.cost_:.4f}; ({amounts}); {c.scale_:.3f} LLR {c.offset_:+.3f}", flush=True)


if __name__ == "__main__":
    main()
