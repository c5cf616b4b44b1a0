"""How often the warning of another domain is right: draws of a few speakers and recordings, at home and abroad.

    python examples/domain_warning.py DATA_FOLDER [--draws 2000]

DATA_FOLDER is that of real_speech.py. A model is trained on so762_campp_train.npz (whitening, length normalisation,
`PLDA(shrinkage=0.1)`; the warning needs nothing of the PLDA). Then speakers are drawn, and as many recordings of each,
from parts that it has not seen: so762's public part, where a warning is a false alarm, and other corpora. Printed are
the squared distance D of all recordings of a part and its limit, and warnings in % of the draws, with recordings of all
five channels, and with recordings of one channel that is drawn too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import real_speech as speech

from duoplda import PLDA, Backend
from duoplda.estimators import domain

PARTS = ("so762_campp_public", "cvau_campp_public", "amnist_campp_public", "amnist_campp_train")
SIZES = ((5, 20), (10, 100))  # speakers and recordings


def warned(
    backend: Backend, part: speech.Data, speakers: int, recordings: int, one_channel: bool, rng: np.random.Generator
) -> bool:
    """Whether one draw is taken for another domain."""
    own = rng.choice(np.unique(part["speaker"]), speakers, replace=False)
    good = (
        part["channel"] == rng.choice(np.unique(part["channel"]))
        if one_channel
        else np.ones(len(part["channel"]), bool)
    )
    rows = [
        rng.choice(np.flatnonzero(good & (part["speaker"] == s)), recordings // speakers, replace=False) for s in own
    ]
    seen = domain.see(backend, part["embeddings"][np.concatenate(rows)])
    return not domain.measure(backend, seen, speakers).within


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--draws", type=int, default=2000)
    given = parser.parse_args()
    data = speech.read(given.folder, "so762_campp_train")
    backend = Backend(plda=PLDA(shrinkage=0.1)).fit(data["embeddings"], data["speaker"], session=data["session_id"])
    for name in PARTS:
        part = speech.read(given.folder, name)
        found = domain.measure(backend, domain.see(backend, part["embeddings"]), len(np.unique(part["speaker"])))
        cells = [f"D {found.distance:5.1f} limit {found.limit:5.1f}"]
        for speakers, recordings in SIZES:
            rng = np.random.default_rng(0)
            rates = [
                100 * np.mean([warned(backend, part, speakers, recordings, one, rng) for _ in range(given.draws)])
                for one in (False, True)
            ]
            cells.append(f"{speakers} speakers, {recordings} recordings: {rates[0]:.2f} / {rates[1]:.2f} %")
        print(f"{name:20} " + "   ".join(cells), flush=True)


if __name__ == "__main__":
    main()
