"""How often the warning of another domain is right: draws of a few speakers and recordings, at home and abroad.

    python examples/domain_warning.py [--draws 10] [--dimensions 8 32 100 192] [--jobs 1]
    python examples/domain_warning.py DATA_FOLDER [--draws 2000]

Without a folder, data are drawn: a model is trained on 300 speakers, who have 20, 40 or 77 % of the variance. Then some
speakers of the same kind are drawn, and as many recordings of each, and **each recording is a model** of its own. They
are looked at as they are, where a warning is a false alarm, and shifted by D = .25 d in a random direction. For each
number of speakers are printed, in % of the draws (with 1, 10 and 100 recordings of each speaker, at most 1,000 in all):
- old: false alarms of a limit that takes models for speakers, d (.06 + .5 / models + 1 / recordings),
- false: false alarms, by trials between all recordings, and by `cluster` (of at most 100 recordings),
- seen: shifts that are noticed, and `known`: those that would be noticed if it were known who speaks.

DATA_FOLDER is that of real_speech.py. A model is trained on so762_campp_train.npz (whitening, length normalisation,
`PLDA(shrinkage=0.1)`). Then speakers are drawn, and as many recordings of each, from parts that it has not seen:
so762's public part, where a warning is a false alarm, and other corpora. Printed are the squared distance D of all
recordings of a part and its limit, and warnings in % of the draws, with recordings of all five channels, and with
recordings of one channel that is drawn too.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from concurrent.futures import ProcessPoolExecutor
from copy import copy
from functools import partial
from pathlib import Path

import numpy as np
import real_speech as speech

from duoplda import PLDA, Backend, DomainWarning
from duoplda.datasets import make_recordings
from duoplda.estimators import domain

PARTS = ("so762_campp_public", "cvau_campp_public", "amnist_campp_public", "amnist_campp_train")
SIZES = ((1, 10), (2, 20), (5, 20), (10, 100))  # speakers and recordings
SHARES = (0.2, 0.4, 0.77)  # of the speakers in the variance
SPEAKERS = (1, 2, 3, 5, 10, 20, 50)
RECORDINGS = (1, 10, 100)  # of each speaker


# -- drawn data


def warns(function, *args) -> bool:
    """Whether a call gives a warning of another domain."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DomainWarning)
        function(*args)
    return any(w.category is DomainWarning for w in caught)


def drawn(draws: int, cell: tuple[int, float]) -> list[str]:
    """The lines of one number of dimensions and one share of the speakers."""
    d, share = cell
    rest = (1 - share) / 2
    sizes = {"n_dimensions": d, "n_speaker_factors": d, "n_session_factors": d // 2}
    variances = {"speaker_variance": share, "session_variance": rest, "channel_variance": rest}
    train = make_recordings(300, (2, 4), (1, 3), **sizes, **variances, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        chain = Backend(length_norm=False, plda=PLDA(shrinkage=0.1, tol=1e-4)).fit(
            train.X, train.speaker, session=train.session
        )
    root = np.linalg.cholesky(np.cov(train.X.T))
    lines = []
    for n in SPEAKERS:
        found = []
        for m, seed in itertools.product([m for m in RECORDINGS if m * n <= 1000], range(draws)):
            data = make_recordings(n, m, 1, model=train.model, seed=1000 * seed + 10 * n + m)
            direction = np.random.default_rng(seed).normal(size=d)
            shift = root @ direction * np.sqrt(0.25 * d) / np.linalg.norm(direction)
            found.append([*looked_at(chain, data.X, data.speaker), *looked_at(chain, data.X + shift, data.speaker)])
        old, false, clusters, _, _, seen, _, known = 100 * np.nanmean(np.array(found, float), axis=0)
        cells = f"{old:8.1f} {false:8.1f} {clusters:8.1f} {seen:8.1f} {known:8.1f}"
        lines.append(f"{d:10} {100 * share:8.0f} {n:8} {len(found):6} {cells}")
    return lines


def looked_at(chain: Backend, X: np.ndarray, speaker: np.ndarray) -> list[float]:
    """Whether the old limit, trials, clusters, and trials of known speakers warn; NaN: too many to be clustered."""
    sides = chain.enroll(X, np.arange(len(X)))
    d = X.shape[1]
    distance = domain.distance(chain, sides.seen)
    return [
        distance > d * (0.06 + 1.5 / len(X)),
        warns(domain.check_sides, copy(chain), sides, sides),
        warns(copy(chain).cluster, X) if len(X) <= 100 else np.nan,
        not domain.measure(chain, sides.seen, domain.Spread.of(speaker)).within,
    ]


def tables(draws: int, dimensions: list[int], jobs: int) -> None:
    heads = ("speakers %", "speakers", "draws", "old", "false", "cluster", "seen", "known")
    print(f"{'dimensions':>10} " + " ".join(f"{h:>{w}}" for h, w in zip(heads, (8, 8, 6, 8, 8, 8, 8, 8), strict=True)))
    cells = list(itertools.product(dimensions, SHARES))
    with ProcessPoolExecutor(jobs) as pool:
        for lines in pool.map(partial(drawn, draws), cells):
            print(*lines, sep="\n", flush=True)


# -- real speech


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


def real(folder: Path, draws: int) -> None:
    data = speech.read(folder, "so762_campp_train")
    backend = Backend(plda=PLDA(shrinkage=0.1)).fit(data["embeddings"], data["speaker"], session=data["session_id"])
    for name in PARTS:
        part = speech.read(folder, name)
        spread = domain.Spread.of(part["speaker"], part["session_id"])
        found = domain.measure(backend, domain.see(backend, part["embeddings"]), spread)
        cells = [f"D {found.distance:5.1f} limit {found.limit:5.1f}"]
        for speakers, recordings in SIZES:
            rng = np.random.default_rng(0)
            rates = [
                100 * np.mean([warned(backend, part, speakers, recordings, one, rng) for _ in range(draws)])
                for one in (False, True)
            ]
            cells.append(f"{speakers} speakers, {recordings} recordings: {rates[0]:.2f} / {rates[1]:.2f} %")
        print(f"{name:20} " + "   ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--draws", type=int)
    parser.add_argument("--dimensions", type=int, nargs="+", default=[8, 32, 100, 192])
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    if given.folder is None:
        tables(given.draws or 10, given.dimensions, given.jobs)
    else:
        real(given.folder, given.draws or 2000)


if __name__ == "__main__":
    main()
