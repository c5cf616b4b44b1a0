"""Trials of many structures: what a calibration that knows the structure is worth on real speech.

    python examples/structures.py DATA_FOLDER [--set so762] [--without-kinds] [--resamples 100]
    python examples/structures.py DATA_FOLDER --elsewhere

DATA_FOLDER holds SET_campp_train.npz, SET_campp_public.npz and SET_trials_public.npz for the sets so762 and amnist (see
`examples/real_speech.py`). Two back-ends are trained, with `PLDA(calibration="affine")` and "structure"; no public
speaker is seen. A structure is 1 or 3 sessions through one channel, or through all, against one recording: three such
sets of each public speaker from sessions 0 to 8, and recordings of sessions 10 to 17.

Printed are, for each structure, the ratio that the model expects of a target trial, Cllr with one map, with a map by
structure, and minCllr; their means, the greatest loss of a structure, each with a 95 % interval of the difference over
resamples of speakers; and Cllr of the list of trials, all conditions pooled.

`--elsewhere` asks the same where no public speaker is: each half of the training speakers of so762 and amnist, by the
other half, and speakers drawn from a model, which is right about them, by 10 to 200 others. A row has the means, the
greatest loss of a structure, and how many of them lose more than .003.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from duoplda import PLDA, Backend, Sides
from duoplda.calibration import StructureCalibration
from duoplda.metrics import cllr, min_cllr

ENROLLED = ("clean", "codec", "telephone", "all")
TESTED = ("clean", "telephone", "codec", "noise")

Data = dict[str, np.ndarray]
System = Backend | PLDA


class Trials(NamedTuple):
    """The trials of one structure: ratios (n, m), and the speaker of each side."""

    expected: float
    one: np.ndarray
    structured: np.ndarray
    raw: np.ndarray
    enrolled: np.ndarray
    tested: np.ndarray

    @property
    def target(self) -> np.ndarray:
        return self.enrolled[:, None] == self.tested

    def difference(self, times: np.ndarray) -> float:
        """Cllr by structure less that of one map, each speaker taken so many times."""
        weight = np.outer(times[self.enrolled], times[self.tested]).ravel()
        by_structure, one = (cllr(x.ravel(), self.target.ravel(), weights=weight) for x in (self.structured, self.one))
        return by_structure - one


def trained(data: Data, kinds: bool, calibration: str, chain: bool = True) -> System:
    plda = PLDA(shrinkage="auto", random_state=0, calibration=calibration)
    channel = data["channel_names"][data["channel"]] if kinds else None
    system = Backend(plda=plda) if chain else plda
    return system.fit(data["embeddings"], data["speaker"], session=data["session_id"], channel=channel)


def enrolled(backend: System, data: Data, rows: np.ndarray, ids: np.ndarray, kinds: bool) -> Sides:
    channel = data["channel_names"][data["channel"][rows]] if kinds else None
    return backend.enroll(data["embeddings"][rows], ids, data["session_id"][rows], channel)


def structures(one: System, structured: System, data: Data, kinds: bool) -> dict[str, Trials]:
    """The trials of each structure, by its name."""
    words = data["channel_names"].tolist()
    code = {
        word: next(i for i, name in enumerate(words) if name.startswith(word[:3])) for word in (*TESTED, *ENROLLED[:3])
    }
    speaker = np.unique(data["speaker"], return_inverse=True)[1]
    session, channel = data["session"], data["channel"]
    found = {}
    for n, known, questioned in product((1, 3), ENROLLED, TESTED):
        used = (session < 3 * n) & ((channel == code[known]) if known != "all" else True)
        rows = np.flatnonzero(used)
        ids = speaker[rows] * 3 + session[rows] // n
        tests = np.flatnonzero((session >= 10) & (session < 18) & (channel == code[questioned]))
        sides = [enrolled(one, data, *side, kinds) for side in ((rows, ids), (tests, np.arange(len(tests))))]
        other = [enrolled(structured, data, *side, kinds) for side in ((rows, ids), (tests, np.arange(len(tests))))]
        found[f"{n} x {known} : {questioned}"] = Trials(
            float(one.structure(*sides).expected.mean()),
            one.llr(*sides),
            structured.llr(*other),
            one.llr(*sides, calibrated=False),
            sides[0].ids // 3,
            speaker[tests],
        )
    return found


def pooled(backend: System, data: Data, lists: Data, kinds: bool) -> float:
    """Cllr of the list of trials."""
    model, place = np.nonzero(lists["model_rows"] >= 0)
    models = enrolled(backend, data, lists["model_rows"][model, place], model, kinds)
    rows, test = np.unique(lists["trial_test_row"], return_inverse=True)
    tests = enrolled(backend, data, rows, np.arange(len(rows)), kinds)
    pairs = np.stack([models.find(lists["trial_model"]), test.reshape(-1)], axis=1)
    return float(cllr(backend.llr(models, tests, pairs), lists["trial_label"].astype(bool)))


def read(folder: Path, corpus: str, part: str) -> Data:
    return dict(np.load(folder / f"{corpus}_campp_{part}.npz"))


def halves(data: Data) -> list[Data]:
    """The recordings of either half of the speakers."""
    speaker = np.unique(data["speaker"], return_inverse=True)[1]
    half = (np.random.default_rng(1).permutation(speaker.max() + 1) % 2)[speaker]
    return [{name: x[half == h] if len(x) == len(half) else x for name, x in data.items()} for h in (0, 1)]


def drawn(n_speakers: int, kinds: bool, seed: int, model: int = 0, d: int = 24) -> Data:
    """Speakers of a model, with 20 sessions through four channels; with `kinds`, these differ in mean and in noise."""
    rng = np.random.default_rng(model)
    V = rng.standard_normal((d, d // 2)) / np.sqrt(d // 2)
    U = rng.standard_normal((d, d)) * np.sqrt(0.7 / d)
    mean = kinds * rng.standard_normal((4, d))
    A = rng.standard_normal((4 if kinds else 1, d, 2 * d)) / np.sqrt(2 * d)
    variance = np.array([0.3, 0.8, 1.5, 0.5] if kinds else [0.5])
    root = np.linalg.cholesky(variance[:, None, None] * (A @ A.transpose(0, 2, 1)))
    rng = np.random.default_rng((model, seed, n_speakers))
    speaker, session, channel = (x.ravel() for x in np.indices((n_speakers, 20, 4)))
    y = rng.standard_normal((n_speakers, d // 2)) @ V.T
    x = rng.standard_normal((n_speakers * 20, d)) @ U.T
    noise = np.einsum("nij,nj->ni", root[kinds * channel], rng.standard_normal((len(speaker), d)))
    X = mean[channel] + y[speaker] + x[speaker * 20 + session] + noise
    labels = {"speaker": speaker, "session": session, "session_id": speaker * 20 + session, "channel": channel}
    return {"embeddings": X, "channel_names": np.array(["clean", "telephone", "codec", "noise"]), **labels}


def row(name: str, train: Data, test: Data, kinds: bool, chain: bool) -> None:
    """Train on some speakers and test on others: a line of the table."""
    structured = trained(train, kinds, "structure", chain)
    plda = structured.plda_ if chain else structured
    taken = isinstance(plda.calibration_, StructureCalibration)
    one = trained(train, kinds, "affine", chain) if taken else structured
    costs = []
    for part in structures(one, structured, test, kinds).values():
        costs.append([cllr(x.ravel(), part.target.ravel()) for x in (part.one, part.structured)])
    before, after = np.array(costs).T
    lost = after - before
    cells = f"{before.mean():.4f} | {after.mean():.4f} | {lost.max():+.4f} | {(lost > 0.003).sum()}"
    print(f"| {name} | {'yes' if taken else 'no'} | {cells} |", flush=True)


def elsewhere(folder: Path) -> None:
    """The table of speakers who are not public."""
    print("| speakers | taken | one map | by structure | greatest loss | lose more than .003 |")
    print("|---|---|---|---|---|---|")
    for corpus, kinds in product(("so762", "amnist"), (True, False)):
        parts = halves(read(folder, corpus, "train"))
        for h in (0, 1):
            name = f"{corpus}, half {h + 1}, {'kinds' if kinds else 'without kinds'}"
            row(name, parts[h], parts[1 - h], kinds, chain=True)
    for n, kinds, model in product((10, 20, 50, 200), (True, False), range(2)):
        name = f"drawn, {n}, {'kinds' if kinds else 'without kinds'}, model {model + 1}"
        row(name, drawn(n, kinds, 0, model), drawn(50, kinds, 1, model), kinds, chain=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", default="so762", choices=("so762", "amnist"))
    parser.add_argument("--without-kinds", action="store_true", help="do not tell the model the kinds of channels")
    parser.add_argument("--resamples", type=int, default=100)
    parser.add_argument("--elsewhere", action="store_true", help="speakers who are not public")
    options = parser.parse_args()
    if options.elsewhere:
        elsewhere(options.folder)
        return
    kinds = not options.without_kinds
    parts = {name: read(options.folder, options.set, name) for name in ("train", "public")}
    one, structured = (trained(parts["train"], kinds, name) for name in ("affine", "structure"))
    print(f"calibration by structure: {structured.summary()['calibration_values']}\n")
    trials = structures(one, structured, parts["public"], kinds)

    print("| structure | expected | one map | by structure | minCllr |\n|---|---|---|---|---|")
    table = []
    for name, part in trials.items():
        y = part.target.ravel()
        row = [*(cllr(x.ravel(), y) for x in (part.one, part.structured)), min_cllr(part.raw.ravel(), y)]
        table.append(row)
        print(f"| {name} | {part.expected:.1f} | {' | '.join(f'{value:.3f}' for value in row)} |")
    mean = np.mean(table, axis=0)
    print(f"| **mean** | | {' | '.join(f'**{value:.4f}**' for value in mean)} |")

    rng = np.random.default_rng(0)
    n = 1 + max(int(part.enrolled.max()) for part in trials.values())
    drawn = [np.bincount(rng.integers(0, n, n), minlength=n) for _ in range(options.resamples)]
    drawn = np.array([[part.difference(times) for part in trials.values()] for times in drawn])
    low, high = np.quantile(drawn.mean(axis=1), [0.025, 0.975])
    print(f"\nmean, by structure less one map: {mean[1] - mean[0]:+.4f} ({low:+.4f} to {high:+.4f})")
    loss = np.subtract(*np.array(table).T[[1, 0]])
    worst = int(loss.argmax())
    low, high = np.quantile(drawn[:, worst], [0.025, 0.975])
    print(f"greatest loss: {list(trials)[worst]}, {loss[worst]:+.4f} ({low:+.4f} to {high:+.4f})")
    lists = dict(np.load(options.folder / f"{options.set}_trials_public.npz"))
    found = [pooled(backend, parts["public"], lists, kinds) for backend in (one, structured)]
    print(f"list of trials, pooled: {found[0]:.4f} with one map, {found[1]:.4f} by structure")


if __name__ == "__main__":
    main()
