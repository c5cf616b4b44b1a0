"""Does score normalisation help? A model of so762, in its own domain and in another one.

    python examples/normalization.py DATA_FOLDER [--model two.safetensors] [--system two-likelihood] [--top 300]

DATA_FOLDER has the files that `examples/real_speech.py` reads. The model is its "two-likelihood": two sources, and
shrinkage by the likelihood of held-out speakers, trained on so762's training part (`--system` names others); `--model`
keeps it in a file, and reads it if it is there.

Trials are so762's public ones, and cvau's across days, where each half of the speakers is shifted by what the other
half tells (see `examples/real_speech.py --set cvau`). Cohorts, in each of which a recording is a member:
- training: of each of the 150 training speakers of so762 four utterances, each through one of the five channels;
- other half (cvau only): one recording of each utterance of the speakers of the other half, shifted as those that are
  tested are, so that nothing is learnt from the speakers of the trials.

For each it prints EER in % and minDCF(0.01) of the scores as they are, and Cllr after an affine calibration that is
cross-validated by speakers: they are divided into five groups, and a trial is calibrated by all trials that have no
speaker of its groups. "within" are means over the conditions of enrolment, of trials of one condition each (their
calibration is the pooled one). Then follow the pooled figures less those without normalisation, with 95 % intervals by
bootstrap over speakers.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import real_speech as speech

from duoplda import Backend, score
from duoplda.calibration import AffineCalibration
from duoplda.metrics import bootstrap

METHODS = ("z", "t", "s", "as1", "as2")
GROUPS = 5


def model(data: speech.Data, path: Path | None, system: str = "two-likelihood", max_iter: int = 500) -> Backend:
    """Trained, or read from a file."""
    if path is not None and path.exists():
        return Backend.load(path)
    backend = speech.train(system, data, max_iter)
    if path is not None:
        backend.save(path)
    return backend


def one_of_each(data: speech.Data, most: int | None = None) -> np.ndarray:
    """Rows: of each utterance one channel, which takes turns; of the first `most` utterances of a speaker, if given."""
    turn = (data["speaker"].astype(int) + data["session"]) % len(data["channel_names"])
    return np.flatnonzero((data["channel"] == turn) & (True if most is None else data["session"] < most))


def scores(
    backend: Backend, public: speech.Data, trials: speech.Data, cohort: np.ndarray | None, method: str, top: int
) -> np.ndarray:
    """Scores of all trials, in their order; normalised, if there are vectors of a cohort (n, d)."""
    X = public["embeddings"]
    of, column = np.nonzero(trials["model_rows"] >= 0)
    rows = trials["model_rows"][of, column]
    models = backend.enroll(X[rows], of, public["session_id"][rows])
    options = {}
    if cohort is not None:
        members = backend.enroll(cohort, [f"member {i}" for i in range(len(cohort))])
        options = {"cohort": members, "normalize": method, "cohort_top": top}
    out = np.empty(len(trials["trial_label"]))
    for block in score(backend, models, X, trials=(trials["trial_model"], trials["trial_test_row"]), **options):
        out[block.rows] = block.scores
    return out


def in_halves(
    backend: Backend, raw: speech.Data, public: speech.Data, trials: speech.Data, method: str, top: int
) -> np.ndarray:
    """Scores of trials within halves of the speakers, each normalised with the other half."""
    speakers = np.unique(raw["speaker"])
    second = raw["speaker"] >= speakers[len(speakers) // 2]
    chosen, out = one_of_each(raw), np.empty(len(trials["trial_label"]))
    for own in (second, ~second):
        shift = (public["embeddings"] - raw["embeddings"])[own].mean(axis=0)
        cohort = raw["embeddings"][chosen[~own[chosen]]] + shift
        of = own[trials["trial_test_row"]]
        part = {**trials, **{name: trials[name][of] for name in ("trial_model", "trial_test_row", "trial_label")}}
        out[of] = scores(backend, public, part, cohort, method, top)
    return out


def calibrated(values: np.ndarray, label: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Each trial calibrated by those that have no speaker of its groups; a and b are the speakers of its sides."""
    rank = np.searchsorted(np.unique(np.concatenate([a, b])), np.stack([a, b])) % GROUPS
    out = np.empty(len(values))
    for g in range(GROUPS):
        for h in range(g, GROUPS):
            own = np.sort(rank, axis=0)
            own = (own[0] == g) & (own[1] == h)
            others = ~np.isin(rank, [g, h]).any(axis=0)
            if own.any():
                out[own] = AffineCalibration().fit(values[others], label[others]).transform(values[own])
    return out


class Table:
    """Prints a row for each system, and by how much it differs from the first."""

    def __init__(self, public: speech.Data, trials: speech.Data, resamples: int):
        self.label, self.resamples = trials["trial_label"].astype(bool), resamples
        self.condition = trials["model_condition"][trials["trial_model"]]
        self.speakers = speech.speakers_of(public, trials)
        self.first: tuple[np.ndarray, np.ndarray | None] | None = None

    def three(self, both: np.ndarray, label: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """EER in %, minDCF(0.01) of scores (n,) and Cllr of calibrated ones (n,)."""
        return np.append(speech.three(both[0], label, weights)[:2], speech.three(both[1], label, weights)[2])

    def add(self, name: str, values: np.ndarray) -> None:
        both = np.stack([values, calibrated(values, self.label, *self.speakers)])
        parts = [self.condition == c for c in np.unique(self.condition)]
        within = np.mean([self.three(both[:, of], self.label[of]) for of in parts], axis=0)
        pooled, drawn = self.three(both, self.label), None
        if self.resamples:
            trial = np.arange(len(values), dtype=float)
            found = bootstrap(
                lambda at, label, weights: self.three(both[:, at.astype(int)], label, weights),
                *(trial, self.label, *self.speakers),
                n_resamples=self.resamples,
            )
            drawn = found.values
        cells = [f"{e:5.2f}/{dcf:.3f}/{bits:.3f}" for e, dcf, bits in (pooled, within)]
        if self.first is None:
            self.first = pooled, drawn
        elif drawn is not None and self.first[1] is not None:
            low, high = np.quantile(drawn - self.first[1], [0.025, 0.975], axis=0)
            found = zip(speech.DIGITS.values(), pooled - self.first[0], low, high, strict=True)
            cells += [f"{m:+.{n}f} [{le:+.{n}f}, {h:+.{n}f}]" for n, m, le, h in found]
        print(f"{name:18} " + "  ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--system", default="two-likelihood", choices=["two-likelihood", "two-decision"])
    parser.add_argument("--top", type=int, default=300)
    parser.add_argument("--resamples", type=int, default=100)
    parser.add_argument("--set", nargs="*", default=["so762", "cvau"])
    arguments = parser.parse_args()
    for name in arguments.set:
        data, public, trials = speech.load(arguments.folder, name)
        backend = model(data, arguments.model, arguments.system)
        cohort = data["embeddings"][one_of_each(data, most=4)]
        print(f"\n{name}: {len(trials['trial_label'])} trials; training cohort of {len(cohort)}; top {arguments.top}")
        print(
            f"EER % / minDCF(0.01) / Cllr\n{'':18} {'pooled':17}  {'within':17}  EER, minDCF, Cllr less those of none"
        )
        table = Table(public, trials, arguments.resamples)
        table.add("none", scores(backend, public, trials, None, "", 0))
        for method in METHODS:
            table.add(f"{method}, training", scores(backend, public, trials, cohort, method, arguments.top))
        if name == "cvau":
            raw = speech.read(arguments.folder, "cvau_campp_public")
            for method in METHODS:
                table.add(f"{method}, other half", in_halves(backend, raw, public, trials, method, arguments.top))


if __name__ == "__main__":
    main()
