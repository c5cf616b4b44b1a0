"""From wav files alone to likelihood ratios: copies are made, half of the speakers train models, the others are tested.

    python examples/from_audio.py ../shared/data/audio

The folder holds recordings, `utt2spk` (lines `recording speaker`) and an extractor of embeddings (*.onnx). Of each
recording there are five copies: as it is, in noise, over the telephone, in a room, and through a codec. Half of the
speakers train two models on all copies, once in each of several splits: `duoplda`, which knows which copies are of one
session, and `simplified`, which takes each copy for a session of its own. Whether vectors are whitened is chosen for
each of them by training speakers who are left out in turn. The other half are tested: a speaker is enrolled from all
copies of one recording (1x5) or from one of them (1x1), against one recording as it is.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from duoplda import Backend
from duoplda.audio import KINDS, Extractor, Pieces, embed_audio, list_audio
from duoplda.io import read_map
from duoplda.metrics import cllr, eer

FORMS = {"1x1": ("clean",), "1x5": KINDS}  # enrolment: one recording, by these copies of it


def embeddings(folder: Path, kinds: tuple[str, ...] = KINDS) -> dict[str, np.ndarray]:
    """Embeddings of all copies of the recordings, with their speakers, sessions and kinds."""
    (model,) = sorted(folder.glob("*.onnx"))[:1]
    speakers = read_map(folder / "utt2spk", "speaker")
    parts = defaultdict(list)
    for one in embed_audio(Extractor(model), list_audio(folder), Pieces(kinds=kinds)):
        parts["X"] += [*one.X]
        parts["speaker"] += [speakers[one.file.id]] * len(one.ids)
        parts["session"] += [*one.pieces]
        parts["kind"] += [*one.kinds]
    return {name: np.array(values) for name, values in parts.items()}


def trained(X: np.ndarray, speaker: np.ndarray, session: np.ndarray) -> Backend:
    """A back-end that whitens, or one that does not: the one whose ratios of held-out training speakers cost less."""
    backends = [Backend(whiten=whiten).fit(X, speaker, session=session) for whiten in (False, True)]
    return min(backends, key=lambda backend: backend.plda_.cost_)


def experiment(
    data: dict[str, np.ndarray], splits: int = 10, seed: int = 0
) -> tuple[dict[tuple[str, str], tuple[float, float]], Counter[str]]:
    """Cllr and EER of each model and form of enrolment over the trials of all splits, and how often each whitens."""
    rng = np.random.default_rng(seed)
    people = np.unique(data["speaker"])
    results = defaultdict(list)
    whitened = Counter[str]()
    for _ in range(splits):
        train = np.isin(data["speaker"], rng.permutation(people)[: len(people) // 2])
        for name in ("duoplda", "simplified"):
            session = data["session"] if name == "duoplda" else np.arange(len(train)).astype(str)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # so few speakers are worth one
                backend = trained(data["X"][train], data["speaker"][train], session[train])
                whitened[name] += backend.whiten
                for form, kinds in FORMS.items():
                    results[name, form].append(trials(backend, data, ~train, session, kinds))
    both = {key: [np.concatenate(column) for column in zip(*parts, strict=True)] for key, parts in results.items()}
    return {key: (cllr(*columns), eer(*columns)) for key, columns in both.items()}, whitened


def trials(
    backend: Backend, data: dict[str, np.ndarray], test: np.ndarray, session: np.ndarray, kinds: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Scores and truth of all pairs of two recordings of the test speakers, the first enrolled by these copies."""
    sides = []
    for rows in (test & np.isin(data["kind"], kinds), test & (data["kind"] == "clean")):
        sides.append(backend.enroll(data["X"][rows], data["session"][rows], session[rows]))
    speaker = dict(zip(data["session"].tolist(), data["speaker"].tolist(), strict=True))
    who = [np.array([speaker[name] for name in side.ids.tolist()]) for side in sides]
    different = sides[0].ids[:, None] != sides[1].ids  # a recording is not compared with itself
    return backend.llr(*sides)[different], (who[0][:, None] == who[1])[different]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="recordings, utt2spk, and an extractor")
    parser.add_argument("--splits", type=int, default=10, help="how often the speakers are dealt to training and test")
    given = parser.parse_args()
    data = embeddings(given.folder)
    print(f"{len(data['X']):,} embeddings of {len(np.unique(data['session']))} recordings", flush=True)
    results, whitened = experiment(data, given.splits)
    print(f"{'':12} " + " ".join(f"{form + ' Cllr':>10} {form + ' EER':>10}" for form in FORMS))
    for name in ("duoplda", "simplified"):
        cells = [f"{results[name, form][0]:10.3f} {100 * results[name, form][1]:8.2f} %" for form in FORMS]
        print(f"{name:12} {' '.join(cells)}   whitened in {whitened[name]} of {given.splits} splits")


if __name__ == "__main__":
    main()
