"""Real speech: one utterance heard through five channels, and what each model makes of it.

    python examples/real_speech.py DATA_FOLDER [--set so762] [--system kinds-decision ...] [--resamples 200]

DATA_FOLDER holds SET_campp_train.npz, SET_campp_public.npz and SET_trials_public.npz for the sets so762 and amnist:
embeddings with speaker, session and channel, and trials of enrolment models of 1 or 3 sessions through 1, 3 or 5
channels against single recordings. Everything that is learnt or chosen comes from the training part.

For each system it prints
- EER in %, minDCF(0.01) and raw Cllr for each enrolment condition and for all pooled;
- 95 % intervals of the pooled three, by bootstrap over speakers; the time of training, and what training chose;
and at the end, from the systems that were run,
- `kinds-decision` less each simpler system: pooled differences, with 95 % intervals from resamples of speakers that are
  the same for both;
- whether `kinds-decision` is no worse than the best of the simple systems in each condition: yes or no, by the numbers
  themselves, with no regard to their intervals.

Names of systems: "plain" is simplified PLDA, which takes every recording for a session; "averaged" is the same, but the
recordings of an enrolment are averaged into one; "two" has the session level, with 50 session factors where its rank is
"low"; "kinds" also has a noise for each kind of channel, which at test is known, or "inferred"; with "learned" and
"counted" the kinds are not labelled in training either, and with "counted" not even their number is given; "auto-model"
chooses between plain, two and kinds. "ml" is maximum likelihood; "likelihood" and "decision" are what chooses the
shrinkage (`criterion`). "plain-decision" takes copies of one utterance for sessions in its held-out trials too, which
misleads it; "plain-decision-sessions" is the fairer rival: a model without the session level, but no utterance is on
both sides of a held-out trial.

`--set cvau` is another domain without a training part: cvau_campp_public.npz and cvau_trials_cross_public.npz, other
days of the same speakers. Systems are trained on so762. The speakers are halved, in sorted order; each half is shifted
as a whole, so that the mean of the *other* half would come to the mean of so762's training part: nothing is learnt from
the speakers that are tested. Trials are those within a half. A session is one utterance through five channels
(`session_id`); that the utterances of an enrolment all come from one day is something that no system here is told.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from duoplda import PLDA, Backend
from duoplda.metrics import BootstrapResult, bootstrap, measure, metric_names
from duoplda.preprocessing import LengthNorm

Data = dict[str, np.ndarray]
ML: dict[str, Any] = {"shrinkage": None}
LIKELIHOOD = {"shrinkage": "auto", "criterion": "likelihood"}
DECISION = {"shrinkage": "auto", "criterion": "decision"}


class System(NamedTuple):
    """What a system is given."""

    options: dict[str, Any]  # of the PLDA
    sessions: bool = True
    kinds: bool = False  # of channels, in training
    known: bool = False  # kinds at test
    average: bool = False  # the recordings of an enrolment

    @property
    def training(self) -> str:
        """The same for systems that can share a trained back-end."""
        return repr((self.options, self.sessions, self.kinds))


SYSTEMS = {
    "cosine": System({**ML, "max_iter": 0}, sessions=False, average=True),
    "plain-ml": System(ML, sessions=False),
    "two-ml": System(ML),
    "two-ml-low-rank": System({**ML, "n_session_factors": 50}),
    "kinds-ml": System(ML, kinds=True, known=True),
    "kinds-ml-inferred": System(ML, kinds=True),
    "plain-likelihood": System(LIKELIHOOD, sessions=False),
    "averaged-likelihood": System(LIKELIHOOD, sessions=False, average=True),
    "two-likelihood": System(LIKELIHOOD),
    "kinds-likelihood": System(LIKELIHOOD, kinds=True, known=True),
    "kinds-likelihood-inferred": System(LIKELIHOOD, kinds=True),
    "kinds-likelihood-learned": System({**LIKELIHOOD, "n_channels": 5}),
    "plain-decision": System(DECISION, sessions=False),
    "plain-decision-sessions": System({**DECISION, "n_session_factors": 0}),
    "two-decision": System(DECISION),
    "kinds-decision": System(DECISION, kinds=True, known=True),
    "kinds-decision-inferred": System(DECISION, kinds=True),
    "kinds-decision-learned": System({**DECISION, "n_channels": 5}),
    "kinds-decision-counted": System({**DECISION, "n_channels": "auto"}),
    "auto-model": System({**DECISION, "model": "auto"}, kinds=True, known=True),
}
OURS = ("kinds-decision", "kinds-decision-inferred")
SIMPLE = ("plain-likelihood", "averaged-likelihood", "two-likelihood")
COMPARED = (*SIMPLE, "kinds-likelihood", "plain-decision-sessions", "two-decision")
OTHER_DOMAIN = ("plain-likelihood", "two-likelihood", "kinds-likelihood", "kinds-decision")  # on cvau, unless asked
DIGITS = {"EER %": 2, "minDCF": 3, "Cllr": 3}


# -- data


def load(folder: Path, name: str) -> tuple[Data, Data, Data]:
    """The training part, the recordings of other speakers, and trials of these."""
    if name == "cvau":
        data, public = read(folder, "so762_campp_train"), read(folder, "cvau_campp_public")
        return data, *recentred(data, public, read(folder, "cvau_trials_cross_public"))
    return tuple(read(folder, f"{name}_{part}") for part in ("campp_train", "campp_public", "trials_public"))


def read(folder: Path, name: str) -> Data:
    with np.load(folder / f"{name}.npz") as arrays:
        return {key: arrays[key] for key in arrays.files}


def recentred(data: Data, public: Data, trials: Data) -> tuple[Data, Data]:
    """Each half of the speakers shifted by what the other half tells, and the trials within the halves."""
    speakers = np.unique(public["speaker"])
    second = public["speaker"] >= speakers[len(speakers) // 2]
    X, wanted = public["embeddings"].astype(float), data["embeddings"].mean(axis=0, dtype=float)
    shifts = np.stack([wanted - X[other].mean(axis=0) for other in (second, ~second)])  # of the first, of the second
    first_row = trials["model_rows"][trials["trial_model"], 0]
    within = second[first_row] == second[trials["trial_test_row"]]
    kept = {name: trials[name][within] for name in ("trial_model", "trial_test_row", "trial_label")}
    return {**public, "embeddings": X + shifts[second.astype(int)]}, {**trials, **kept}


def speakers_of(data: Data, trials: Data) -> tuple[np.ndarray, np.ndarray]:
    """The speakers of the two sides of each trial."""
    return data["speaker"][trials["model_rows"][trials["trial_model"], 0]], data["speaker"][trials["trial_test_row"]]


# -- systems


def train(system: str, data: Data, max_iter: int = 500) -> Backend:
    s = SYSTEMS[system]
    session, channel = data["session_id"] if s.sessions else None, data["channel"] if s.kinds else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        backend = Backend(plda=PLDA(**{"max_iter": max_iter, **s.options}))
        return backend.fit(data["embeddings"], data["speaker"], session=session, channel=channel)


def scores(backend: Backend, system: str, data: Data, trials: Data) -> np.ndarray:
    s, X, pairs = SYSTEMS[system], data["embeddings"], np.c_[trials["trial_model"], trials["trial_test_row"]]
    if s.average:
        return scores_of_averages(backend, system == "cosine", X, trials["model_rows"], pairs)
    model, column = np.nonzero(trials["model_rows"] >= 0)
    rows = trials["model_rows"][model, column]
    session, channel = data["session_id"] if s.sessions else None, data["channel"] if s.known else None
    own = [None if of is None else of[rows] for of in (session, channel)]
    enrolled = backend.enroll(X[rows], model, *own)
    return backend.llr(enrolled, backend.enroll(X, np.arange(len(X)), None, channel), pairs=pairs)


def scores_of_averages(backend: Backend, cosine: bool, X: np.ndarray, model_rows: np.ndarray, pairs: np.ndarray):
    """Of an enrolment's mean of normalised vectors, which is normalised again and taken for one recording."""
    tests = backend.transform(X)
    means = LengthNorm().fit_transform(np.stack([tests[rows[rows >= 0]].mean(axis=0) for rows in model_rows]))
    if cosine:  # a score, but no likelihood ratio
        return (means[pairs[:, 0]] * tests[pairs[:, 1]]).mean(axis=1)
    sides = [backend.plda_.enroll(Y, np.arange(len(Y))) for Y in (means, tests)]
    return backend.llr(*sides, pairs=pairs)


def chosen(plda: PLDA) -> str:
    """What training chose, in words."""
    parts = [f"shrinkage ({', '.join(f'{a:g}' for a in plda.shrinkage_)})"]
    if plda.cost_ is not None:
        a, b = plda.calibration_.scale_, plda.calibration_.offset_
        parts.append(f"scales ({', '.join(f'{a:g}' for a in plda.scales_)}), calibration {a:.3f} s {b:+.3f}")
        parts.append(f"cost {plda.cost_:.4f}")
    if len(plda.channels_) > 1:
        parts.append(f"{len(plda.channels_)} kinds")
    for what in ("model", "channel"):  # costs of what was tried, where "auto" chose
        if costs := getattr(plda, f"{what}_costs_", None):
            parts.append(f"{what} costs: " + ", ".join(f"{name} {cost:.4f}" for name, cost in costs.items()))
    return ", ".join(parts)


# -- results


class Result(NamedTuple):
    """EER in %, minDCF(0.01) and Cllr of a system."""

    cells: np.ndarray  # (conditions + 1, 3), the last row pooled
    pooled: BootstrapResult | None  # the same three, and their resamples; None: not asked for


def three(llr: np.ndarray, label: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """EER in %, minDCF(0.01) and Cllr."""
    names = metric_names(0.01)
    found = measure(llr, label, weights, p_target=0.01)
    return found[[names.index(name) for name in ("eer", "min_dcf(0.01)", "cllr")]] * [100, 1, 1]


def measured(llr: np.ndarray, data: Data, trials: Data, resamples: int = 0) -> Result:
    label, condition = trials["trial_label"].astype(bool), trials["model_condition"][trials["trial_model"]]
    parts = [condition == c for c in range(len(trials["condition_names"]))]
    cells = np.stack([*(three(llr[of], label[of]) for of in parts), three(llr, label)])
    if not resamples:
        return Result(cells, None)
    return Result(cells, bootstrap(three, llr, label, *speakers_of(data, trials), n_resamples=resamples))


def table_row(cells: np.ndarray) -> str:
    return "  ".join(f"{e:5.2f}/{dcf:.3f}/{bits:.3f}" for e, dcf, bits in cells)


def evaluate(llr: np.ndarray, data: Data, trials: Data) -> str:
    return table_row(measured(llr, data, trials).cells)


def intervals(pooled: BootstrapResult) -> str:
    ends = zip(DIGITS.items(), pooled.low, pooled.high, strict=True)
    return ", ".join(f"{name} {low:.{digits}f} to {high:.{digits}f}" for (name, digits), low, high in ends)


def differences(results: dict[str, Result]) -> list[str]:
    """Lines: ours less each simpler system, pooled. Resamples are the same for all systems, so they can be paired."""
    lines = []
    for a in OURS:
        for b in COMPARED:
            if not {a, b} <= set(results) or results[a].pooled is None:
                continue
            low, high = np.quantile(results[a].pooled.values - results[b].pooled.values, [0.025, 0.975], axis=0)
            middle = results[a].cells[-1] - results[b].cells[-1]
            found = zip(DIGITS.values(), middle, low, high, strict=True)
            cells = [f"{m:+.{n}f} [{le:+.{n}f}, {h:+.{n}f}]" for n, m, le, h in found]
            lines.append(f"{a + ' - ' + b:50} " + "  ".join(f"{cell:24}" for cell in cells).rstrip())
    return lines


def no_worse(results: dict[str, Result], conditions: list[str]) -> list[str]:
    """Lines: is ours no worse than the best of the simple systems, in each condition?"""
    lines, simple = [], [name for name in SIMPLE if name in results]
    for name in OURS:
        if name not in results or not simple:
            continue
        for c, condition in enumerate(conditions):
            answers = []
            for i, (metric, digits) in enumerate(DIGITS.items()):
                if metric == "minDCF":
                    continue
                best = min(simple, key=lambda system: results[system].cells[c, i])
                ours, theirs = results[name].cells[c, i], results[best].cells[c, i]
                answer = "yes" if ours <= theirs else "no"
                answers.append(f"{metric} {answer:3} ({ours:.{digits}f}; {best} {theirs:.{digits}f})")
            lines.append(f"{name:25} {condition:8} " + "   ".join(f"{a:45}" for a in answers).rstrip())
    return lines


def run(systems: list[str], data: Data, public: Data, trials: Data, resamples: int) -> dict[str, Result]:
    """Train, score and print the systems one after another."""
    backends: dict[str, Backend] = {}
    results = {}
    for system in systems:
        training, start, done = SYSTEMS[system].training, time.perf_counter(), "trained before"
        if training not in backends:
            backends[training] = train(system, data)
            done = f"{time.perf_counter() - start:.0f} s of training"
        backend = backends[training]
        results[system] = measured(scores(backend, system, public, trials), public, trials, resamples)
        print(f"{system:25} {table_row(results[system].cells)}")
        said = [] if results[system].pooled is None else [f"95 % of pooled: {intervals(results[system].pooled)}"]
        print("    " + "; ".join([*said, done, chosen(backend.plda_)]), flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", default="so762")
    parser.add_argument("--system", nargs="*", choices=list(SYSTEMS), help="all; on cvau " + ", ".join(OTHER_DOMAIN))
    parser.add_argument("--resamples", type=int, default=200, help="of the bootstrap; 0: no intervals")
    arguments = parser.parse_args()
    data, public, trials = load(arguments.folder, arguments.set)
    systems = arguments.system or list(OTHER_DOMAIN if arguments.set == "cvau" else SYSTEMS)
    conditions = [n.replace("sess_x_", "x").replace("ch", "") for n in trials["condition_names"].tolist()]
    n_train, n_test = len(np.unique(data["speaker"])), len(np.unique(np.stack(speakers_of(public, trials))))
    print(f"{arguments.set}: {n_train} training speakers, {len(trials['trial_label'])} trials of {n_test} others")
    print("EER % / minDCF(0.01) / Cllr\n")
    print(f"{'':25} " + "  ".join(f"{n:>17}" for n in [*conditions, "pooled"]))
    results = run(systems, data, public, trials, arguments.resamples)
    if lines := differences(results):
        head = "  ".join(f"{name:24}" for name in DIGITS).rstrip()
        print(f"\n{'Pooled differences, with 95 % intervals':50} {head}", *lines, sep="\n")
    if lines := no_worse(results, conditions):
        simple = ", ".join(name for name in SIMPLE if name in results)
        print(f"\nNo worse than the best of {simple}?", *lines, sep="\n")


if __name__ == "__main__":
    main()
