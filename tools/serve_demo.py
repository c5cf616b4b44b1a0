"""Known voices to try the service with: `python tools/serve_demo.py FOLDER` (`make serve-demo`).

It makes a model, a registry of 24 voices, and recordings of a day that is not enrolled: files of known people and of
strangers, to be dropped on the page. A folder that has a registry already is left as it is.
"""

import sys
from pathlib import Path

import numpy as np

from duoplda import Backend
from duoplda.datasets import make_recordings
from duoplda.io import write_embeddings
from duoplda.voices import Registry

NAMES = ["Ada", "Bela", "Chen", "Dana", "Emil", "Fatou", "Greta", "Hiro", "Ines", "Jonas", "Kofi", "Lena"]
NAMES += ["Malik", "Nora", "Omar", "Priya", "Quinn", "Rosa", "Sami", "Tove", "Ugo", "Vera", "Wanda", "Yusuf"]
DAYS = ("monday", "tuesday", "wednesday")
SIZES = {"n_dimensions": 40, "n_speaker_factors": 20, "n_session_factors": 20, "speaker_variance": 2.0}


def main(folder: Path) -> None:
    if (folder / "voices.db").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    train = make_recordings(150, seed=0, **SIZES)
    chain = Backend().fit(train.X, train.speaker, session=train.session)
    chain.save(folder / "model.safetensors", force=True)
    people = make_recordings(30, sessions=4, recordings=3, model=train.model, seed=1).X.reshape(30, 4, 3, -1)
    for i in (0, 7, 15, 24, 25, 26):
        name = f"{NAMES[i].lower()}-thursday" if i < len(NAMES) else f"stranger-{i - 23}"
        write_embeddings(folder / f"{name}.npz", [f"{name}-{k}" for k in range(3)], people[i, 3], force=True)
    with Registry.create(folder / "voices.db", chain, by="demo") as registry:
        for name, sessions in zip(NAMES, people, strict=False):
            registry.add(name, sessions[:3].reshape(9, -1), np.repeat(DAYS, 3))
    files = ", ".join(sorted(path.name for path in folder.glob("*.npz")))
    print(f"{len(NAMES)} voices; files to ask with: {files}, in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
