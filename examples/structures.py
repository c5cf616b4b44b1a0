"""Trials of many structures: what a calibration that knows the structure is worth on real speech.

    python examples/structures.py DATA_FOLDER [--set so762] [--without-kinds] [--resamples 100]

DATA_FOLDER holds SET_campp_train.npz, SET_campp_public.npz and SET_trials_public.npz for the sets so762 and amnist (see
`examples/real_speech.py`). Two back-ends are trained, with `PLDA(calibration="affine")` and "structure"; no public
speaker is seen. A structure is 1 or 3 sessions through one channel, or through all, against one recording: three such
sets of each public speaker from sessions 0 to 8, and recordings of sessions 10 to 17.

Printed are, for each structure, the ratio that the model expects of a target trial, Cllr with one map, with a map by
structure, and minCllr; their means, the greatest loss of a structure, each with a 95 % interval of the difference over
resamples of speakers; and Cllr of the list of trials, all conditions pooled.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from duoplda import PLDA, Backend, Sides
from duoplda.metrics import cllr, min_cllr

ENROLLED = ("clean", "codec", "telephone", "all")
TESTED = ("clean", "telephone", "codec", "noise")


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


def trained(data: dict[str, np.ndarray], kinds: bool, calibration: str) -> Backend:
    plda = PLDA(shrinkage="auto", random_state=0, calibration=calibration)
    channel = data["channel_names"][data["channel"]] if kinds else None
    return Backend(plda=plda).fit(data["embeddings"], data["speaker"], data["session_id"], channel)


def enrolled(backend: Backend, data: dict[str, np.ndarray], rows: np.ndarray, ids: np.ndarray, kinds: bool) -> Sides:
    channel = data["channel_names"][data["channel"][rows]] if kinds else None
    return backend.enroll(data["embeddings"][rows], ids, data["session_id"][rows], channel)


def structures(one: Backend, structured: Backend, data: dict[str, np.ndarray], kinds: bool) -> dict[str, Trials]:
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


def pooled(backend: Backend, data: dict[str, np.ndarray], lists: dict[str, np.ndarray], kinds: bool) -> float:
    """Cllr of the list of trials."""
    model, place = np.nonzero(lists["model_rows"] >= 0)
    models = enrolled(backend, data, lists["model_rows"][model, place], model, kinds)
    rows, test = np.unique(lists["trial_test_row"], return_inverse=True)
    tests = enrolled(backend, data, rows, np.arange(len(rows)), kinds)
    pairs = np.stack([models.find(lists["trial_model"]), test.reshape(-1)], axis=1)
    return float(cllr(backend.llr(models, tests, pairs), lists["trial_label"].astype(bool)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", default="so762", choices=("so762", "amnist"))
    parser.add_argument("--without-kinds", action="store_true", help="do not tell the model the kinds of channels")
    parser.add_argument("--resamples", type=int, default=100)
    options = parser.parse_args()
    kinds = not options.without_kinds
    parts = {name: dict(np.load(options.folder / f"{options.set}_campp_{name}.npz")) for name in ("train", "public")}
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
