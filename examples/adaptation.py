"""A model of one corpus used on another: what adaptation makes of it, with labels, with sessions, or with nothing.

    python examples/adaptation.py DATA_FOLDER [--set cvau|amnist|so762] [--system two kinds] [--models FOLDER]
                                  [--method labels clusters ...] [--curve 3 5 9] [--occasions] [--resamples 200]

DATA_FOLDER is that of real_speech.py. Models are trained on so762_campp_train.npz ("two-decision" and "kinds-decision"
of real_speech.py); `--models` keeps them in a folder, and reads them if they are there. Targets:
- cvau: public speakers with even numbers, tested on those with odd ones across days, and the other way round;
- amnist: its training speakers, tested on its public ones;
- so762: even public speakers, tested on odd ones, and the other way round: the target is like the source, and nothing
  should change.
No speaker who is tested is ever adapted to. For each method it prints, for each direction and their mean, the pooled
EER in %, and Cllr of raw and of calibrated ratios (by the source's calibration where a method has none); and 95 %
intervals of EER and calibrated Cllr, by bootstrap over speakers, for each direction.

Methods: "labels" (L) knows speakers and sessions of the target, "clusters" (P) and "sessions" (U) the sessions, the
others nothing; kinds of channels are known to the first three, where the model has kinds. "total" is what `adapt` does
without any label: "half-coral", unless the target is like the source. "coral" moves all levels with the total
covariance, all the way. "coral+" is below: no method of the library, but a few lines on top of it. "kaldi" has the
shares that are the default of Kaldi's program, "kaldi-sre16" those of its recipe for SRE16. `--curve` adapts with
labels to some of the target's speakers only, drawn five times. `--occasions` adapts with labels to cvau, whose
enrolments are of one sitting, and prints EER in % and calibrated Cllr for each condition of enrolment (utterances x
channels), mean of both directions: where nobody names sittings, where they are named in enrolment alone (kappa = .1),
and where they are named in adaptation as well, which learns kappa by trials across sittings.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import real_speech as speech

from duoplda import Backend, DomainWarning
from duoplda.metrics import bootstrap

SETS = ("cvau", "amnist", "so762")
METHODS: dict[str, dict[str, Any] | None] = {
    "nothing": None,
    "centre": {"method": "centre"},
    "coral": {"method": "total", "weights": 1},
    "half-coral": {"method": "total", "weights": 0.5},
    "total": {"method": "total"},
    "coral+": {},
    "kaldi": {"method": "kaldi"},
    "kaldi-sre16": {"method": "kaldi", "weights": (0.75, 0.25)},
    "sessions": {"method": "sessions"},
    "clusters": {"method": "clusters"},
    "labels": {"method": "labels"},
}
DRAWS = 5


class Direction(NamedTuple):
    """What to adapt to, and what to test."""

    target: speech.Data
    public: speech.Data
    trials: speech.Data


def directions(folder: Path, name: str) -> list[Direction]:
    """One or two of them; trials are those between speakers that are not adapted to."""
    public = speech.read(folder, f"{name}_campp_public")
    trials = speech.read(folder, f"{name}_trials_cross_public" if name == "cvau" else f"{name}_trials_public")
    if name == "amnist":
        return [Direction(speech.read(folder, "amnist_campp_train"), public, trials)]
    rank = np.unique(public["speaker"], return_inverse=True)[1]
    found = []
    for own in (rank % 2 == 0, rank % 2 == 1):
        tested = ~own[trials["model_rows"][trials["trial_model"], 0]] & ~own[trials["trial_test_row"]]
        kept = {key: trials[key][tested] for key in ("trial_model", "trial_test_row", "trial_label")}
        found.append(Direction(rows_of(public, own), public, {**trials, **kept}))
    return found


def rows_of(data: speech.Data, which: np.ndarray) -> speech.Data:
    """Some of the recordings."""
    return {key: value[which] if np.shape(value)[:1] == which.shape else value for key, value in data.items()}


def power(A: np.ndarray, exponent: float) -> np.ndarray:
    """A covariance to a power; directions without variance stay without."""
    values, directions = np.linalg.eigh(A)
    kept = values > 1e-12 * values[-1]
    return (directions[:, kept] * values[kept] ** exponent) @ directions[:, kept].T


def coral_plus(backend: Backend, X: np.ndarray) -> Backend:
    """CORAL+ (Lee, Wang and Koshinaka, ICASSP 2019): as CORAL, but no covariance becomes smaller in any direction.

    With T the total covariance of the model, T_t that of the target and A = T_t^1/2 T^-1/2, each covariance C becomes
    C + Q'^-1 max(0, E - I) Q^-1, where Q'CQ = I and Q'(A C A')Q = E. The mean goes all the way to the target's.
    """
    new = copy.deepcopy(backend.adapt(X, method="centre", centre=1))
    plda = new.plda_
    means = plda.channel_means_ - plda.mean_
    noises = np.linalg.inv(plda.noise_precision_).reshape(-1, X.shape[1], X.shape[1])
    speaker, session = (L @ L.T for L in (plda.speaker_loadings_, plda.session_loadings_))
    noise = np.tensordot(plda.channel_priors_, noises, 1) + (plda.channel_priors_[:, None] * means).T @ means
    A = power(np.cov(new.transform(X).T, bias=True), 0.5) @ power(speaker + session + noise, -0.5)

    def grown(C: np.ndarray) -> np.ndarray:
        inverse = power(C, -0.5)
        values, directions = np.linalg.eigh(inverse @ A @ C @ A.T @ inverse)
        basis = power(C, 0.5) @ directions
        return C + (basis * np.maximum(values - 1, 0)) @ basis.T

    plda.speaker_loadings_ = power(grown(speaker), 0.5)
    plda.session_loadings_ = power(grown(session), 0.5)
    plda.noise_precision_ = np.linalg.inv([grown(C) for C in noises]).reshape(plda.noise_precision_.shape)
    return new


def adapted(backend: Backend, method: str, target: speech.Data) -> Backend:
    """The model after adaptation; it is told what the method may know."""
    options = METHODS[method]
    if options is None:
        return backend
    if method == "coral+":
        return coral_plus(backend, target["embeddings"])
    speaker = target["speaker"] if method == "labels" else None
    session = target["session_id"] if method in ("labels", "clusters", "sessions") else None
    channel = target["channel"] if session is not None and len(backend.plda_.channels_) > 1 else None
    return backend.adapt(target["embeddings"], speaker, session, channel, **options)


def scores(backend: Backend, system: str, to: Direction) -> np.ndarray:
    """(2, n) raw and calibrated ratios of the trials."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DomainWarning)  # that is the point
        calibration, backend.calibration_ = backend.calibration_, None
        raw = speech.scores(backend, system, to.public, to.trials)
        backend.calibration_ = calibration
    return np.stack([raw, raw if calibration is None else calibration.apply(raw)])


def three(both: np.ndarray, label: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """EER in %, Cllr of raw and of calibrated ratios."""
    found = [speech.three(values, label, weights) for values in both]
    return np.array([found[1][0], found[0][2], found[1][2]])


def interval(both: np.ndarray, to: Direction, resamples: int) -> str:
    """Of EER and calibrated Cllr."""
    label = to.trials["trial_label"].astype(bool)
    found = bootstrap(
        lambda at, of, weights: three(both[:, at.astype(int)], of, weights)[[0, 2]],
        *(np.arange(len(label), dtype=float), label, *speech.speakers_of(to.public, to.trials)),
        n_resamples=resamples,
    )
    (e0, c0), (e1, c1) = found.low, found.high
    return f"[{e0:.1f}, {e1:.1f}] [{c0:.2f}, {c1:.2f}]"


def model(data: speech.Data, system: str, folder: Path | None) -> Backend:
    """Trained, or read from a folder."""
    path = None if folder is None else folder / f"{system}.safetensors"
    if path is not None and path.exists():
        return Backend.load(path)
    backend = speech.train(system, data)
    if path is not None:
        backend.save(path)
    return backend


def told(backend: Backend) -> str:
    """What was done, in a few words."""
    story = backend.adapted_
    if story is None:
        return ""
    parts = [f"mean {story['centre']:.2f}"]
    parts += [f"{name} {share:.2f}" for name, share in story["shares"].items()]
    parts += [f"{n} {what}" for what, n in story["target"].items() if what in ("speakers", "clusters")]
    if "scale" in story["calibration"]:
        parts.append(f"calibration {story['calibration']['scale']:.2f} s {story['calibration']['offset']:+.2f}")
    return ", ".join([*parts, *story["notes"]])


def table(backend: Backend, system: str, methods: list[str], ways: list[Direction], resamples: int) -> None:
    """A row for each method."""
    for method in methods:
        cells, notes, start = [], [], time.perf_counter()
        for to in ways:
            new = adapted(backend, method, to.target)
            both = scores(new, system, to)
            cells.append(three(both, to.trials["trial_label"].astype(bool)))
            notes.append((interval(both, to, resamples) + " " if resamples else "") + told(new))
        text = "   ".join(f"{e:5.2f} {raw:.3f} {bits:.3f}" for e, raw, bits in [*cells, np.mean(cells, axis=0)])
        print(f"{method:12} {text}   ({time.perf_counter() - start:.0f} s)", flush=True)
        for note in notes:
            print(f"{'':12}   {note}")


def curve(backend: Backend, system: str, sizes: list[int], ways: list[Direction]) -> None:
    """Few labelled speakers: means over draws and directions."""
    for size in sizes:
        found = []
        for to in ways:
            label, speakers = to.trials["trial_label"].astype(bool), np.unique(to.target["speaker"])
            draws = 1 if size >= len(speakers) else DRAWS
            for seed in range(draws):
                own = np.random.default_rng(seed).permutation(speakers)[:size]
                new = adapted(backend, "labels", rows_of(to.target, np.isin(to.target["speaker"], own)))
                found.append(three(scores(new, system, to), label))
        e, raw, bits = np.mean(found, axis=0)
        print(f"{size:3} labelled speakers   {e:5.2f} {raw:.3f} {bits:.3f}", flush=True)


def enrolled(backend: Backend, to: Direction, sittings: bool) -> np.ndarray:
    """(n,) calibrated ratios of the trials, with enrolments whose sittings are named, or are not."""
    X, public, trials = to.public["embeddings"], to.public, to.trials
    model, column = np.nonzero(trials["model_rows"] >= 0)
    rows = trials["model_rows"][model, column]
    channel = public["channel"] if len(backend.plda_.channels_) > 1 else None
    of_rows = None if channel is None else channel[rows]
    occasion = public["sitting_id"][rows] if sittings else None
    sides = backend.enroll(X[rows], model, public["session_id"][rows], of_rows, occasion)
    tests = backend.enroll(X, np.arange(len(X)), None, channel)
    return backend.llr(sides, tests, pairs=np.c_[trials["trial_model"], trials["trial_test_row"]])


def occasions(backend: Backend, ways: list[Direction]) -> None:
    """A row without occasions, a row with those of enrolments, and a row with those of adaptation as well."""
    conditions = [*ways[0].trials["condition_names"].tolist(), "pooled"]
    print("EER % / Cllr          " + "  ".join(f"{name:>11}" for name in conditions))
    for name, in_adaptation, in_enrolment in (("none", 0, 0), ("enrolment", 0, 1), ("adaptation, too", 1, 1)):
        found, kappas = [], []
        for to in ways:
            target = to.target
            channel = target["channel"] if len(backend.plda_.channels_) > 1 else None
            known = {"occasion": target["sitting_id"]} if in_adaptation else {}
            new = backend.adapt(target["embeddings"], target["speaker"], target["session_id"], channel, **known)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DomainWarning)
                llr = enrolled(new, to, bool(in_enrolment))
            kappas.append(new.plda_.occasion_correlation_)
            label = to.trials["trial_label"].astype(bool)
            condition = to.trials["model_condition"][to.trials["trial_model"]]
            parts = [condition == c for c in range(len(conditions) - 1)] + [label | ~label]
            found.append([speech.three(llr[part], label[part])[[0, 2]] for part in parts])
        cells = "  ".join(f"{e:5.2f}/{bits:.3f}" for e, bits in np.mean(found, axis=0))
        print(f"{name:20}  {cells}" + f"   kappa {kappas}" * in_adaptation, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", choices=SETS, nargs="+", default=list(SETS))
    parser.add_argument("--system", choices=("two", "kinds"), nargs="+", default=["two", "kinds"])
    parser.add_argument("--method", choices=tuple(METHODS), nargs="+", default=list(METHODS))
    parser.add_argument("--models", type=Path)
    parser.add_argument("--curve", type=int, nargs="+", default=[])
    parser.add_argument("--occasions", action="store_true")
    parser.add_argument("--resamples", type=int, default=200)
    given = parser.parse_args()
    data = speech.read(given.folder, "so762_campp_train")
    for name in given.system:
        system = f"{name}-decision"
        backend = model(data, system, given.models)
        for which in given.set:
            ways = directions(given.folder, which)
            if given.occasions and which == "cvau":
                print(f"\n{system} of so762 on {which}, adapted with labels; mean of {len(ways)} directions")
                occasions(backend, ways)
                continue
            print(f"\n{system} of so762 on {which}: EER %, raw Cllr, calibrated Cllr; {len(ways)} directions, mean")
            table(backend, system, given.method, ways, given.resamples)
            if which == "cvau":
                curve(backend, system, given.curve, ways)


if __name__ == "__main__":
    main()
