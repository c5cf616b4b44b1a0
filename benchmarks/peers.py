"""`python -m benchmarks.peers`: duoplda beside other libraries that are installed, on the same data in the same run.

PLDA: SpeechBrain's and hyperion's, and scikit-learn's LDA. All get the same recordings, drawn from the model: speakers
with several sessions, several copies of a session. A trial is a session of four copies against one recording of another
session. Each system runs in a process of its own.

Single tasks that others do, too: the VB iterations with which pyannote finds the speakers of a file, and variance
components by maximum likelihood, of statsmodels, where recordings are single numbers.

Looked for on PyPI and in Debian, and not there (November 2026): VBx (pyannote.audio has its VB iterations, without the
HMM); wespeaker's PLDA (PyPI has wespeakerruntime and wespeaker-unofficial, both without it); Kaldi's binaries
(kaldi-native-io reads and writes its files, PyKaldi 0.0.1 is empty, and kalpy-kaldi is source that needs a Kaldi that
has been built; Debian has no package). lme4 is in Debian as r-cran-lme4, and statsmodels does the same without R.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import types
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import files, version
from pathlib import Path
from time import process_time as clock  # of one thread: others' work on the machine does not count
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import peak, save
from duoplda import PLDA, Statistics
from duoplda.datasets import make_recordings
from duoplda.metrics import cllr, eer, min_cllr
from duoplda.model import em
from duoplda.model.parameters import Model, checked

COPIES = 4  # recordings of an enrolled session
CLOSE = 1e-3  # nats per recording
LIMIT = 200  # iterations of a peer that has no criterion to stop by
After = Callable[[Callable[[], Model]], None]  # called at the end of each iteration with what gives its model


class Data(NamedTuple):
    X: np.ndarray  # (N, d) training, its mean taken off
    speaker: np.ndarray
    session: np.ndarray
    enrolled: np.ndarray  # (n, COPIES, d)
    tests: np.ndarray  # (m, d)


def draw(speakers: int, evaluated: int, d: int, rank: int) -> Data:
    """Centred: hyperion's SPLDA is wrong far from a mean of 0, and its recipes centre."""
    train = make_recordings(
        speakers,
        (2, 6),
        (1, 6),
        n_dimensions=d,
        n_speaker_factors=rank,
        n_session_factors=d,
        speaker_variance=0.2,
        session_variance=1.0,
    )
    new = make_recordings(evaluated, 2, COPIES, model=train.model, seed=1).X - train.X.mean(axis=0)
    new = new.reshape(evaluated, 2, COPIES, d)
    labels = [np.unique(ids, return_inverse=True)[1] for ids in (train.speaker, train.session)]
    return Data(train.X - train.X.mean(axis=0), labels[0], labels[1], new[:, 0], new[:, 1].reshape(-1, d))


# -- the systems


class System(ABC):
    package = ""  # on the package index
    treats: tuple[str, ...] = ("by the book", "averaged")  # an enrolment of several recordings; the first is timed
    sessions = False  # it knows which recordings are of one session
    calibrated = True  # its scores are ln likelihood ratios

    def __init__(self, data: Data, rank: int):
        self.data, self.rank = data, rank

    @property
    def ranks(self) -> tuple[int, int]:
        return self.rank, self.data.X.shape[1] if self.sessions else 0

    @abstractmethod
    def train(self, iterations: int | None, after: After) -> None:
        """Run `iterations` of plain EM; with None, run until it stops by itself, or up to `LIMIT`."""

    @abstractmethod
    def scores(self, treat: str) -> np.ndarray:
        """(models, tests)"""


class Simplified(System):
    package = "duoplda"

    def train(self, iterations: int | None, after: After) -> None:
        plain: dict[str, Any] = {} if iterations is None else {"accelerate": False, "tol": 0, "max_iter": iterations}
        plda = PLDA(*self.ranks, callback=lambda i, ln, model: after(lambda: model), **plain)
        self.plda = plda.fit(self.data.X, self.data.speaker, session=self.data.session if self.sessions else None)

    def scores(self, treat: str) -> np.ndarray:
        enrolled, tests = self.data.enrolled, self.data.tests
        if treat == "averaged":
            enrolled = enrolled.mean(axis=1, keepdims=True)
        side = np.repeat(np.arange(len(enrolled)), enrolled.shape[1])
        sides = self.plda.enroll(enrolled.reshape(len(side), -1), side, side if self.sessions else None)
        return self.plda.llr(sides, self.plda.enroll(tests, np.arange(len(tests))))


class TwoSources(Simplified):
    treats, sessions = ("one session",), True


class SimplifiedFullRank(Simplified):
    def __init__(self, data: Data, rank: int):
        super().__init__(data, data.X.shape[1])


class SpeechBrain(System):
    package, treats = "speechbrain", ("averaged",)

    def __init__(self, data: Data, rank: int):
        super().__init__(data, rank)
        without_init("speechbrain", "speechbrain.processing")
        self.module: Any = importlib.import_module("speechbrain.processing.PLDA_LDA")
        self.train_set = self.stat(data.X, data.speaker)
        self.enrol_set = self.stat(data.enrolled.reshape(-1, data.X.shape[1]), np.arange(len(data.enrolled)), COPIES)
        self.test_set = self.stat(data.tests, np.arange(len(data.tests)))
        self.trials = self.module.Ndx()  # all of them: Ndx(models, segments) would pair the two lists one to one
        self.trials.modelset, self.trials.segset = np.unique(self.enrol_set.modelset), self.test_set.segset
        self.trials.trialmask = np.ones((len(data.enrolled), len(data.tests)), bool)

    def stat(self, X: np.ndarray, ids: np.ndarray, copies: int = 1) -> Any:
        model = np.array([f"{i:07}" for i in np.repeat(ids, copies)], object)  # by name as by number
        segment, none = np.array([f"{i:07}" for i in range(len(X))], object), np.full(len(X), None)
        return self.module.StatObject_SB(model, segment, none, none, np.ones((len(X), 1)), X)

    def train(self, iterations: int | None, after: After) -> None:
        base, written = self.module.PLDA, []

        class Traced(base):  # type: ignore[misc, valid-type]
            def __setattr__(self, name: str, value: Any) -> None:
                super().__setattr__(name, value)
                written.append(name)  # Sigma, then F: the start (F's second value), then the end of each iteration
                if written[-2:] == ["Sigma", "F"] and written.count("F") > 2:
                    after(lambda: without_sessions(self.mean, self.F, np.linalg.inv(self.Sigma)))

        self.plda = Traced(rank_f=self.rank, nb_iter=iterations or LIMIT)
        self.plda.plda(self.train_set)

    def scores(self, treat: str) -> np.ndarray:
        # check_missing fails on what mean_stat_per_model gives
        sets = self.enrol_set.mean_stat_per_model(), self.test_set, self.trials
        p = self.plda
        return self.module.fast_PLDA_scoring(*sets, p.mean, p.F, p.Sigma, check_missing=False).scoremat


class Hyperion(System):
    package, kind = "hyperion-ml", "SPLDA"

    def __init__(self, data: Data, rank: int):
        super().__init__(data, rank)
        vars(np).setdefault("str", str)  # 0.3.2 was written for NumPy before 1.24
        without_init("hyperion")
        self.base: Any = getattr(importlib.import_module("hyperion.pdfs.plda"), self.kind)
        self.arguments = {"y_dim": rank}

    def parameters(self, model: Any) -> Model:
        return without_sessions(model.mu, model.V.T, model.W)

    def train(self, iterations: int | None, after: After) -> None:
        base, parameters = self.base, self.parameters

        class Traced(base):  # type: ignore[misc, valid-type]
            def MstepMD(self, stats: Any) -> None:
                super().MstepMD(stats)  # the end of an iteration
                after(lambda: parameters(self))

        self.plda = Traced(**self.arguments)
        self.plda.fit(self.data.X, self.data.speaker, epochs=iterations or LIMIT)

    def scores(self, treat: str) -> np.ndarray:
        enrolled = self.data.enrolled.reshape(-1, self.data.X.shape[1])
        ids = np.repeat(np.arange(len(self.data.enrolled)), COPIES)
        method = {"by the book": "book", "averaged": "vavg"}[treat]
        return self.plda.llr_Nvs1(enrolled, self.data.tests, ids, method=method)


class HyperionFullRank(Hyperion):
    kind = "FRPLDA"

    def __init__(self, data: Data, rank: int):
        super().__init__(data, data.X.shape[1])
        self.arguments = {}

    def parameters(self, model: Any) -> Model:
        return without_sessions(model.mu, np.linalg.cholesky(np.linalg.inv(model.B)), model.W)


class SklearnLDA(System):
    package, treats, calibrated = "scikit-learn", ("averaged",), False

    def train(self, iterations: int | None, after: After) -> None:
        from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

        self.lda = LinearDiscriminantAnalysis(n_components=self.rank).fit(self.data.X, self.data.speaker)

    def scores(self, treat: str) -> np.ndarray:
        a, b = (self.lda.transform(x) for x in (self.data.enrolled.mean(axis=1), self.data.tests))
        a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
        return a @ b.T


SYSTEMS: dict[str, type[System]] = {
    "duoplda, two sources": TwoSources,
    "duoplda, simplified": Simplified,
    "duoplda, simplified, full rank": SimplifiedFullRank,
    "SpeechBrain PLDA": SpeechBrain,
    "hyperion SPLDA": Hyperion,
    "hyperion FRPLDA, full rank": HyperionFullRank,
    "scikit-learn LDA, cosine": SklearnLDA,
}
MODULES = {"hyperion-ml": "hyperion", "scikit-learn": "sklearn"}


def installed(package: str) -> bool:
    """Whether a package of the index is there; it is not imported."""
    with suppress(ModuleNotFoundError):  # of what it is a part of
        return importlib.util.find_spec(MODULES.get(package, package)) is not None
    return False


def without_init(*packages: str) -> None:
    """Make a package's modules importable one by one: its own __init__ wants torch, audio libraries or an old SciPy."""
    if packages[0] in sys.modules:
        return
    spec = importlib.util.find_spec(packages[0])
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"no package {packages[0]}")
    root = Path(spec.submodule_search_locations[0]).parent
    for name in packages:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(root.joinpath(*name.split(".")))]


def without_sessions(mu: np.ndarray, V: np.ndarray, W: np.ndarray) -> Model:
    return checked(mu, V, np.zeros((len(mu), 0)), (W + W.T) / 2)


# -- measurement, in a process for each system


class Trace:
    """The times at which iterations end, and the likelihood of the training recordings then, which is not timed."""

    def __init__(self, ln_likelihood: Callable[[Model], float] | None = None):
        self.ln_likelihood, self.times, self.values = ln_likelihood, list[float](), list[float]()
        self.start = clock()

    def __call__(self, model: Callable[[], Model]) -> None:
        self.times.append(clock() - self.start)
        if self.ln_likelihood is not None:
            self.values.append(self.ln_likelihood(model()))
        self.start = clock() - self.times[-1]


def measure(name: str, data: Data, factors: int, iterations: int, repeat: int) -> dict[str, Any]:
    system = SYSTEMS[name](data, factors)
    before = peak()
    steps = []
    for _ in range(repeat):
        system.train(iterations, trace := Trace())
        steps += np.diff(trace.times).tolist()  # all do the same work: the best is what it costs
    scores = best(lambda: system.scores(system.treats[0]), repeat)
    most = peak()
    row = {"version": version(system.package), "MiB_before": before, "MiB_peak": most, "MiB_used": most - before}
    row |= {"s_iteration": min(steps, default=None), "s_scores": scores}
    if steps:
        row |= converge(system)
    else:  # no iterations
        row |= {"s_converged": best(lambda: system.train(None, Trace()), repeat)}
    return row | {"results": [results(system, treat) for treat in system.treats]}


def best(function: Callable[[], Any], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = clock()
        function()
        times.append(clock() - start)
    return min(times)


def converge(system: System) -> dict[str, Any]:
    data = system.data
    stats = Statistics.from_arrays(data.X, data.speaker, data.session if system.sessions else None)
    system.train(None, trace := Trace(em.EStep(stats).ln_likelihood))
    values = np.array(trace.values) / len(data.X)
    far = np.flatnonzero(np.abs(values - values[-1]) > CLOSE)
    close = int(far[-1]) + 1 if len(far) else 0  # it stays close from here on
    highest = em.fit(stats, em.moment_start(stats, *system.ranks), tol=1e-7, max_iter=2000).log_likelihoods[-1]
    short = float(highest / len(data.X) - values[-1])
    row = {"iterations": close + 1, "s_converged": trace.times[close], "nats_short": short}
    return row | {"iterations_in_all": len(values), "ln_likelihoods": values.tolist()}


def results(system: System, treat: str) -> dict[str, Any]:
    who = np.arange(len(system.data.enrolled))
    trials = system.scores(treat).ravel(), (who[:, None] == np.repeat(who, COPIES)[None, :]).ravel()
    bits = cllr(*trials) if system.calibrated else None
    return {"enrolment": treat, "EER": 100 * eer(*trials), "Cllr": bits, "min_Cllr": min_cllr(*trials)}


# -- single tasks: ours, and another library's, in one process


class Task(NamedTuple):
    package: str
    run: Callable[[argparse.Namespace], dict[str, Any]]  # its size, seconds of both, and how far they are apart


def vb_iterations(given: argparse.Namespace) -> dict[str, Any]:
    """Ten iterations on windows of four speakers, from random labels of twenty; rows are independent."""
    from duoplda.diarization import smoothed, vb_hmm

    found = next(f for f in files("pyannote.audio") or () if f.as_posix() == "pyannote/audio/utils/vbx.py")
    spec = importlib.util.spec_from_file_location("vbx", str(found.locate()))  # without its package, which wants torch
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    T, d, rng = 4 * given.evaluated, given.dimensions, np.random.default_rng(0)
    phi = np.linspace(8.0, 0.1, d)
    X = (rng.standard_normal((4, d)) * np.sqrt(phi))[rng.integers(0, 4, T)] + rng.standard_normal((T, d))
    start, scales = smoothed(np.append(rng.integers(0, 20, T - 1), 19), 7.0), {"Fa": 0.07, "Fb": 0.8}
    ours = vb_hmm(X, phi, start, loop=None, max_iter=10, tol=0, **scales)
    n = len(ours.elbo)

    def theirs() -> Any:
        return module.VBx(X, phi, pi=start.shape[1], gamma=start, maxIters=n, epsilon=-np.inf, **scales)

    gamma, _, trace = theirs()
    row = {"size": f"{T} windows x {d}, 20 speakers, {n} iterations"}
    row["s_ours"] = best(lambda: vb_hmm(X, phi, start, loop=None, max_iter=n, tol=0, **scales), given.repeat)
    row |= {"s_theirs": best(theirs, given.repeat), "nats": float(ours.elbo[-1] - trace[-1][0])}
    return row | {"difference": float(np.abs(gamma - ours.responsibilities).max())}


def variance_components(given: argparse.Namespace) -> dict[str, Any]:
    """phi ~ 1 + (1 | speaker) + (1 | speaker:session) by maximum likelihood."""
    import pandas as pd
    from statsmodels.regression.mixed_linear_model import MixedLM

    one = {"n_dimensions": 1, "n_speaker_factors": 1, "n_session_factors": 1}
    data = make_recordings(max(given.speakers // 10, 30), (2, 4), (1, 4), seed=0, **one)
    table = pd.DataFrame({"phi": data.X[:, 0], "speaker": data.speaker, "session": data.session})

    def theirs() -> Any:
        terms = {"re_formula": "1", "vc_formula": {"session": "0 + C(session)"}}
        return MixedLM.from_formula("phi ~ 1", groups="speaker", data=table, **terms).fit(reml=False)

    def ours() -> PLDA:
        return PLDA(tol=1e-10).fit(data.X, data.speaker, session=data.session)

    a, b = ours(), theirs()
    own = [a.speaker_loadings_[0, 0] ** 2, a.session_loadings_[0, 0] ** 2, 1 / a.noise_precision_[0, 0]]
    other = [b.cov_re.iloc[0, 0], b.vcomp[0], b.scale]
    row = {
        "size": f"{len(data.X)} numbers, {len(np.unique(data.speaker))} speakers",
        "s_ours": best(ours, given.repeat),
    }
    row |= {"s_theirs": best(theirs, given.repeat), "nats": float(a.log_likelihoods_[-1] - b.llf)}
    return row | {"difference": float(np.abs(np.array(own) / other - 1).max())}


TASKS = {
    "VB iterations, pyannote": Task("pyannote.audio", vb_iterations),
    "variance components, statsmodels": Task("statsmodels", variance_components),
}


def tasks_table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'task':34} {'size':46} {'s ours':>9} {'s theirs':>9} {'ratio':>7} {'nats':>9} {'difference':>10}"]
    for r in rows:
        times = f"{r['s_ours']:9.4f} {r['s_theirs']:9.4f} {r['s_ours'] / r['s_theirs']:7.3f}"
        lines.append(f"{r['task']:34} {r['size']:46} {times} {r['nats']:9.1e} {r['difference']:10.1e}")
    said = "nats: by how much our likelihood (VB: lower bound) is higher; difference: the largest of responsibilities,"
    return "\n".join([*lines, said, "  or the largest relative one of variances."])


# -- the table

COLUMNS = (  # heading, key, format
    ("s/iteration", "s_iteration", ".4f"),
    ("iterations", "iterations", "d"),
    ("s to converge", "s_converged", ".2f"),
    ("nats short", "nats_short", ".5f"),
    ("s scores", "s_scores", ".3f"),
    ("MiB peak", "MiB_peak", ".0f"),
    ("MiB used", "MiB_used", ".0f"),
    ("EER %", "EER", ".2f"),
    ("Cllr", "Cllr", ".3f"),
    ("min Cllr", "min_Cllr", ".3f"),
)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'system':30} {'enrolment':11} " + " ".join(f"{h:>{max(len(h), 7)}}" for h, _, _ in COLUMNS)]
    for row in rows:
        for i, result in enumerate(row["results"]):
            cells = {**(row if i == 0 else {}), **result}
            texts = [
                f"{'' if cells.get(key) is None else format(cells[key], form):>{max(len(h), 7)}}"
                for h, key, form in COLUMNS
            ]
            lines.append(f"{row['system'] if i == 0 else '':30} {result['enrolment']:11} " + " ".join(texts))
    return "\n".join(lines)


def legend(data: Data, factors: int, iterations: int, repeat: int) -> str:
    (N, d), speakers = data.X.shape, int(data.speaker.max()) + 1
    return f"""
{N} recordings of {speakers} speakers x {d}, 2-6 sessions of 1-6 copies; {factors} speaker factors.
s: seconds of processor time, one thread. s/iteration: plain EM, the fastest of {repeat} x {iterations} iterations.
iterations, s to converge: until ln P(training recordings) stays within {CLOSE:g} nats per recording of where the system
  ends, statistics included. duoplda (accelerated EM) ends by its own tolerance; peers have none: after {LIMIT}.
  duoplda computes this likelihood for all, outside the clock.
nats short: how far a system ends below the highest likelihood that its kind of model can reach, per recording.
s scores: {len(data.enrolled)} enrolments of {COPIES} recordings x {len(data.tests)} tests, from recordings to matrix.
MiB used: the peak, without what libraries and data took before. Cosine is no likelihood ratio and has no Cllr."""


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    for name, default in (("speakers", 2000), ("evaluated", 1000), ("dimensions", 128), ("factors", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--iterations", type=int, default=20, help="EM iterations that are timed")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", action="append", choices=[*SYSTEMS, *TASKS], help="only this; can be repeated")
    parser.add_argument("--out", type=Path, help="JSON; by default in benchmarks/results/")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)  # a system, and a folder with the data
    given = parser.parse_args(arguments)
    options = {k: getattr(given, k) for k in ("factors", "iterations", "repeat")}
    if given.child:
        name, folder = given.child
        warnings.simplefilter("ignore")  # of peers; of ours, that so few iterations are not enough
        if name in TASKS:
            row = {"version": version(TASKS[name].package), **TASKS[name].run(given)}
            Path(folder, "row.json").write_text(json.dumps(row))
            return
        data = Data(*(np.load(Path(folder, f"{field}.npy")) for field in Data._fields))
        try:
            row = measure(name, data, **options)
        except ImportError as error:
            row = {"skipped": f"cannot be imported ({error})"}
        Path(folder, "row.json").write_text(json.dumps(row))
        return

    data = draw(given.speakers, given.evaluated, given.dimensions, given.factors)
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    sizes = {k: v for k, v in vars(given).items() if k not in ("only", "out", "child")}
    rows, tasks, skipped = [], [], {}
    with tempfile.TemporaryDirectory() as folder:
        for field, array in zip(Data._fields, data, strict=True):
            np.save(Path(folder, f"{field}.npy"), array)
        for name in given.only or [*SYSTEMS, *TASKS]:
            package = TASKS[name].package if name in TASKS else SYSTEMS[name].package
            if not installed(package):
                row = {"skipped": f"not installed (pip install {package})"}
            else:
                command = [sys.executable, "-m", "benchmarks.peers", *(f"--{k}={v}" for k, v in sizes.items())]
                command += ["--child", name, folder]
                subprocess.run(command, check=True, env=environment, cwd=Path(__file__).parents[1])
                row = json.loads(Path(folder, "row.json").read_text())
            if "skipped" in row:
                skipped[name] = row["skipped"]
                print(f"{name}: {row['skipped']}, skipped", flush=True)
                continue
            if name in TASKS:
                tasks.append({"task": name, **row})
            else:
                rows.append({"system": name, **row})
            print(f"{name}: measured ({package} {row['version']})", flush=True)
    if rows:
        print("\n" + table(rows) + "\n" + legend(data, **options))
    if tasks:
        print("\n" + tasks_table(tasks))
    content = {"sizes": sizes, "close": CLOSE, "skipped": skipped, "rows": rows, "tasks": tasks}
    print(f"\nwritten: {save('peers-', content, given.out)}")


if __name__ == "__main__":
    main()
