"""Real speech: one utterance heard through five channels, and what each model makes of it.

    python examples/real_speech.py DATA_FOLDER [--set so762] [--system kinds-auto ...] [--resamples 200]

DATA_FOLDER holds SET_campp_train.npz, SET_campp_public.npz and SET_trials_public.npz: embeddings with speaker, session
and channel, and trials of enrolment models of 1 or 3 sessions through 1, 3 or 5 channels against single recordings. For
each system and enrolment condition it prints EER in % and raw Cllr; for all conditions pooled also 95 % intervals, by
bootstrap over speakers.
"""

from __future__ import annotations

import argparse
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from duoplda import PLDA, Backend
from duoplda.metrics import bootstrap, cllr, eer

# name: (options of the PLDA, sessions known, kinds used in training, kinds known at test)
SYSTEMS = {
    "cosine": ({"shrinkage": None, "max_iter": 0}, False, False, False),
    "plain-ml": ({"shrinkage": None}, False, False, False),
    "two-ml": ({"shrinkage": None}, True, False, False),
    "kinds-ml": ({"shrinkage": None}, True, True, True),
    "kinds-ml-inferred": ({"shrinkage": None}, True, True, False),
    "plain-auto": ({"shrinkage": "auto"}, False, False, False),
    "two-auto": ({"shrinkage": "auto"}, True, False, False),
    "kinds-auto": ({"shrinkage": "auto"}, True, True, True),
    "kinds-auto-inferred": ({"shrinkage": "auto"}, True, True, False),
    "kinds-auto-learned": ({"shrinkage": "auto", "n_channels": 5}, True, False, False),
}


def load(folder: Path, name: str):
    return [np.load(folder / f"{name}_{part}.npz") for part in ("campp_train", "campp_public", "trials_public")]


def train(system: str, data, max_iter: int = 500) -> Backend:
    options, sessions, kinds, _ = SYSTEMS[system]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return Backend(plda=PLDA(**{"max_iter": max_iter, **options})).fit(
            data["embeddings"],
            data["speaker"],
            session=data["session_id"] if sessions else None,
            channel=data["channel"] if kinds else None,
        )


def scores(backend: Backend, system: str, data, trials) -> np.ndarray:
    _, sessions, _, known = SYSTEMS[system]
    model, column = np.nonzero(trials["model_rows"] >= 0)
    rows = trials["model_rows"][model, column]
    X, channel = data["embeddings"], data["channel"] if known else None
    pairs = np.c_[trials["trial_model"], trials["trial_test_row"]]
    if system == "cosine":  # of the mean of the normalised vectors; a score, but no likelihood ratio
        Y = backend.transform(X)
        means = np.stack([Y[rows[model == m]].mean(axis=0) for m in range(len(trials["model_rows"]))])
        unit = [A / np.linalg.norm(A, axis=1, keepdims=True) for A in (means, Y)]
        return (unit[0][pairs[:, 0]] * unit[1][pairs[:, 1]]).sum(axis=1)
    enrolled = backend.enroll(
        X[rows],
        model,
        data["session_id"][rows] if sessions else None,
        channel[rows] if known else None,
    )
    tests = backend.enroll(X, np.arange(len(X)), None, channel)
    return backend.llr(enrolled, tests, pairs=pairs)


def evaluate(llr: np.ndarray, data, trials, resamples: int = 0) -> str:
    label, condition = trials["trial_label"].astype(bool), trials["model_condition"][trials["trial_model"]]
    cells = []
    for c in range(len(trials["condition_names"])):
        of = condition == c
        cells.append(f"{100 * eer(llr[of], label[of]):5.2f}/{cllr(llr[of], label[of]):.3f}")
    cells.append(f"{100 * eer(llr, label):5.2f}/{cllr(llr, label):.3f}")
    if resamples:
        who = data["speaker"][trials["model_rows"][trials["trial_model"], 0]], data["speaker"][trials["trial_test_row"]]
        for metric, scale, digits in ((partial(eer), 100, 2), (cllr, 1, 3)):
            r = bootstrap(metric, llr, label, *who, n_resamples=resamples)
            cells.append(f"[{scale * r.low:.{digits}f}, {scale * r.high:.{digits}f}]")
    return "  ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", default="so762")
    parser.add_argument("--system", nargs="*", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--resamples", type=int, default=200)
    arguments = parser.parse_args()
    data, public, trials = load(arguments.folder, arguments.set)
    names = [n.replace("sess_x_", "x").replace("ch", "") for n in trials["condition_names"].tolist()]
    print(
        f"{arguments.set}: {len(np.unique(data['speaker']))} training speakers, {len(trials['trial_label'])} trials of"
    )
    print(f"{len(np.unique(public['speaker']))} others; EER % / Cllr\n")
    print(f"{'':20} " + "  ".join(f"{n:>11}" for n in [*names, "pooled"]) + "  95 % of EER, Cllr; training")
    backends: dict[str, Backend] = {}
    for system in arguments.system:
        start = time.perf_counter()
        same = system.removesuffix("-inferred")
        if same not in backends:
            backends = {same: train(system, data)}
        spent = time.perf_counter() - start
        text = evaluate(scores(backends[same], system, public, trials), public, trials, arguments.resamples)
        amount = ", ".join(f"{a:g}" for a in backends[same].plda_.shrinkage_)
        print(f"{system:20} {text}  {spent:.0f} s, shrinkage ({amount})", flush=True)


if __name__ == "__main__":
    main()
