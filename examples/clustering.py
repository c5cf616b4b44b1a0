"""Who is who on real speech: clusters of sessions by exact likelihood ratios, beside what others do.

    python examples/clustering.py DATA_FOLDER [--set so762|cvau] [--system two kinds ...] [--condition one ...]
                                  [--resamples 200] [--held-out 0|1|2] [--models FOLDER]
                                  [--prior .02] [--less averaged spectral ...]

DATA_FOLDER is that of real_speech.py. Systems are trained on so762_campp_train.npz and tested on speakers that are not
in it. A session is one utterance through five channels. Conditions:
- all: every session through all of its channels;
- one: every session through one channel, the channels in turn from session to session;
- ragged: 1 to 20 sessions of each speaker, each through 1 to 5 of its channels, all numbers equally likely; five draws,
  and their mean is printed.

For each system it prints B-cubed precision, recall and F in %, with 95 % intervals by bootstrap over speakers; how many
speakers were found, and how many there are; the NMI in %; the seconds of the clustering alone, on one core if
OMP_NUM_THREADS=1; and what was tuned. Sessions count alike in all measures, however many recordings they have.

Everything that is learnt or chosen comes from the training part. Systems that cluster by the posterior of the partition
have nothing to tune: the prior that two random sessions share a speaker is learned, unless `--prior` gives it. For the
rivals the choices on the right are those with the highest mean F on the thirds of the *training* speakers, in the same
condition; the speakers that are tested are never looked at, except for the one number that "spectral-given" is told. In
"all" and "one" every speaker of so762 has 20 sessions, in training too, so that choices to do with the size of clusters
are tuned to the very size that is tested; in "ragged" there is no such size.

- two: two-source PLDA, kinds of channels unlabelled; kinds: a noise for each kind of channel, which is known at test;
  "kinds-inferred": only in training. "-unrefined": merges only, no sessions are reassigned after them; "-weight-.6":
  log ratios times .6. Shrinkage is chosen by the cost of held-out trials; "-likelihood": by held-out likelihood.
- plain: simplified PLDA, by the book. Each recording is a session, in training and here, so that copies of an utterance
  count as evidence, and may even part. "plain-linked": here the copies of a session must be in one cluster.
- averaged: simplified PLDA of the means of sessions, trained in the same condition.
- averaged-linkage: average linkage of the ratios of these means, cut at a tuned threshold, as recipes have it. While it
  is tuned on a third of the training speakers, the PLDA is trained on the others.
- cosine: average linkage of the cosines of the means of sessions, cut at a tuned threshold.
- hdbscan, spectral: of scikit-learn, on the same means. What HDBSCAN calls noise counts as speakers of one session
  each. Spectral clustering of the graph of nearest neighbours takes the number of speakers from the largest gap between
  eigenvalues of the Laplacian; "spectral-given" is told the true number, which nobody knows in practice.
Vectors of these three are centred and of length one; that they are whitened before or not is tuned too.

`--set cvau` is another domain without a training part, recentred as in real_speech.py. Two halves of the speakers have
shifts of their own there, so each half is clustered by itself and measures are of both. With `--held-out` two thirds of
the training speakers train and the other third is tested: this is for choices among our own systems. `--less` prints
how much higher the F of "two" and "kinds" is than that of other systems, with the interval of the difference over the
same resamples of speakers.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from real_speech import DECISION, LIKELIHOOD, Data, read, recentred
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse.csgraph import laplacian
from scipy.spatial.distance import squareform
from sklearn.cluster import HDBSCAN, spectral_clustering
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import kneighbors_graph
from sklearn.pipeline import make_pipeline

from duoplda import PLDA, Backend
from duoplda.metrics import BootstrapResult, b_cubed, partition_metrics
from duoplda.preprocessing import Center, LengthNorm, Whiten

MOST_SESSIONS, SEEDS, GROUPS = 20, range(5), 3  # of a speaker, of draws, of training speakers
COLUMNS = ("embeddings", "speaker", "session_id", "channel", "pool")
CONDITIONS = ("all", "one", "ragged")
MEASURES = ("b_cubed_precision", "b_cubed_recall", "b_cubed_f", "clusters", "speakers", "nmi")


class Model(NamedTuple):
    """What a back-end is trained with."""

    options: dict[str, Any]  # of the PLDA
    sessions: bool = True
    kinds: bool = False


class System(NamedTuple):
    """What a system that clusters by the posterior of the partition is given."""

    model: str
    options: Mapping[str, Any] = MappingProxyType({})  # of `cluster`
    kinds: bool = False  # known
    linked: bool = False  # copies of a session, where the model has no sessions


MODELS = {
    "two": Model(DECISION),
    "two-likelihood": Model(LIKELIHOOD),
    "kinds": Model(DECISION, kinds=True),
    "kinds-likelihood": Model(LIKELIHOOD, kinds=True),
    "plain": Model(LIKELIHOOD, sessions=False),
}
SYSTEMS = {
    "two": System("two"),
    "two-unrefined": System("two", {"refine": False}),
    "two-likelihood": System("two-likelihood"),
    "kinds": System("kinds", kinds=True),
    "kinds-unrefined": System("kinds", {"refine": False}, kinds=True),
    "kinds-weight-.6": System("kinds", {"weight": 0.6}, kinds=True),
    "kinds-inferred": System("kinds"),
    "kinds-likelihood": System("kinds-likelihood", kinds=True),
    "plain": System("plain"),
    "plain-linked": System("plain", linked=True),
}
SPACES = {"centred": (Center(), LengthNorm()), "whitened": (Center(), Whiten(), LengthNorm())}


# -- rivals: the labels (m,) of points (m, d) for every choice


def cut(D: np.ndarray, thresholds: Iterable[float]) -> list[np.ndarray]:
    """Average linkage of distances D (m, m), cut at thresholds."""
    D = (D + D.T) / 2
    low = D.min()  # distances must not be negative
    np.fill_diagonal(D, low)
    tree = linkage(squareform(D - low, checks=False), "average")
    return [fcluster(tree, t - low, "distance") for t in thresholds]


def cosine(Y: np.ndarray, k: int, choices: Iterable[float]) -> list[np.ndarray]:
    return cut(-Y @ Y.T / Y.shape[1], [-c for c in choices])


def hdbscan(Y: np.ndarray, k: int, choices: Iterable[tuple[str, int, int]]) -> list[np.ndarray]:
    found = []
    for how, smallest, neighbours in choices:
        options = {"min_cluster_size": smallest, "min_samples": neighbours, "cluster_selection_method": how}
        labels = HDBSCAN(**options, copy=True).fit_predict(Y)
        alone = labels < 0
        found.append(np.where(alone, labels.max() + np.cumsum(alone), labels))
    return found


def spectral(Y: np.ndarray, k: int | None, choices: Iterable[int]) -> list[np.ndarray]:
    """Spectral clustering to k clusters; None: the largest gap between eigenvalues says how many."""
    found = []
    for neighbours in choices:
        graph = kneighbors_graph(Y, min(neighbours, len(Y) - 1)).toarray()
        graph = np.maximum(graph, graph.T) * (1 + Y @ Y.T / Y.shape[1]) / 2 + 1e-6  # so little connects all
        n = k
        if n is None:
            values = np.linalg.eigvalsh(laplacian(graph, normed=True))[: len(Y) // 2 + 1]
            n = int(np.diff(values).argmax()) + 1
        found.append(spectral_clustering(graph, n_clusters=n, random_state=0))
    return found


NEIGHBOURS = (5, 10, 15, 20, 30)
RIVALS: dict[str, tuple[Any, list[Any]]] = {
    "averaged-linkage": (None, [float(t) for t in range(-40, 41, 2)]),
    "cosine": (cosine, np.arange(0, 0.8, 0.01).round(2).tolist()),
    "hdbscan": (hdbscan, [(how, n, m) for how in ("eom", "leaf") for n in (2, 3, 5, 8, 12) for m in (1, 2, 4)]),
    "spectral": (spectral, list(NEIGHBOURS)),
    "spectral-given": (spectral, list(NEIGHBOURS)),
}
NAMES = [*SYSTEMS, "averaged", *RIVALS]


# -- data


def load(folder: Path, name: str, held_out: int | None = None) -> tuple[Data, Data]:
    """The training part, and recordings of other speakers with the `pool` in which each is clustered."""
    data = read(folder, "so762_campp_train")
    if held_out is not None:
        part = thirds(data) == held_out
        data, public = taken(data, np.flatnonzero(~part)), taken(data, np.flatnonzero(part))
        return data, {**public, "pool": np.zeros(len(public["speaker"]), int)}
    if name == "cvau":
        public = read(folder, "cvau_campp_public")
        public = recentred(data, public, read(folder, "cvau_trials_cross_public"))[0]
        speakers = np.unique(public["speaker"])
        return data, {**public, "pool": (public["speaker"] >= speakers[len(speakers) // 2]).astype(int)}
    public = read(folder, f"{name}_campp_public")
    return data, {**public, "pool": np.zeros(len(public["speaker"]), int)}


def taken(data: Data, rows: np.ndarray) -> Data:
    """Some recordings, with what is known of each."""
    return {
        name: data[name][rows] for name in ("embeddings", "speaker", "session_id", "channel", "pool") if name in data
    }


def thirds(data: Data) -> np.ndarray:
    """The third of the speakers to which each recording belongs, at random."""
    names, speaker = np.unique(data["speaker"], return_inverse=True)
    return np.random.default_rng(0).permutation(np.arange(len(names)) % GROUPS)[speaker]


def drawn(data: Data, condition: str, seed: int = 0) -> Data:
    """The recordings of one draw of a condition."""
    rng = np.random.default_rng(seed)
    order = np.lexsort((data["channel"], data["session_id"]))
    starts = np.flatnonzero(np.diff(data["session_id"][order], prepend=-1))
    sessions = np.split(order, starts[1:])  # rows of each
    if condition == "one":
        return taken(data, np.array([rows[i % len(rows)] for i, rows in enumerate(sessions)]))
    if condition == "ragged":
        speakers = defaultdict(list)
        for rows in sessions:
            speakers[data["speaker"][rows[0]]].append(rng.permutation(rows)[: rng.integers(len(rows)) + 1])
        some = [(own, rng.permutation(len(own))) for own in speakers.values()]
        kept = [own[i] for own, turn in some for i in turn[: rng.integers(min(len(own), MOST_SESSIONS)) + 1]]
        order = np.sort(np.concatenate(kept))
    return taken(data, order)


def averages(Y: np.ndarray, session: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The means of sessions, as long as recordings are, (m, d), and the session of each recording, (n,)."""
    names, of = np.unique(session, return_inverse=True)
    sums = np.zeros((len(names), Y.shape[1]))
    np.add.at(sums, of, Y)
    return LengthNorm().fit_transform(sums), of


# -- systems


@dataclass
class Bench:
    """The training part, what was trained on it, and what was tuned on it."""

    data: Data
    prefix: Path | None = None  # of the files that keep trained models
    prior: float | None = None
    backends: dict[str, Backend] = field(default_factory=dict)
    means: dict[Any, PLDA] = field(default_factory=dict)
    tuned: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.thirds = thirds(self.data)
        self.spaces = {name: make_pipeline(*steps).fit(self.data["embeddings"]) for name, steps in SPACES.items()}

    def prepare(self, system: str, condition: str) -> None:
        """Train and tune, so that `labels` has nothing left to do but to cluster."""
        if system in SYSTEMS:
            self.backend(SYSTEMS[system].model)
        elif system in RIVALS and (system, condition) not in self.tuned:
            self.tuned[system, condition] = self.best(system, condition)
        if system.startswith("averaged"):
            self.of_means(condition)

    def labels(self, system: str, data: Data, condition: str) -> np.ndarray:
        """The cluster of each recording; pools are clustered one by one."""
        found = np.zeros(len(data["speaker"]), int)
        for pool in np.unique(data["pool"]):
            rows = np.flatnonzero(data["pool"] == pool)
            own = self.pool_labels(system, taken(data, rows), condition)
            found[rows] = found.max() + 1 + np.unique(own, return_inverse=True)[1]
        return found

    def pool_labels(self, system: str, data: Data, condition: str) -> np.ndarray:
        if system in RIVALS:
            choice = self.tuned[system, condition]
            return self.tried(system, data, condition, [choice])[choice]
        if system == "averaged":
            means, of = averages(self.spaces["whitened"].transform(data["embeddings"]), data["session_id"])
            return self.of_means(condition).cluster(means, prior=self.prior).labels[of]
        s = SYSTEMS[system]
        options = {"prior": self.prior, **s.options}
        if s.linked:
            order = np.argsort(data["session_id"], kind="stable")
            same = np.diff(data["session_id"][order]) == 0
            options["must_link"] = np.c_[order[:-1][same], order[1:][same]]
        session = data["session_id"] if MODELS[s.model].sessions else None
        channel = data["channel"] if s.kinds else None
        return self.backend(s.model).cluster(data["embeddings"], session, channel, **options).labels

    # -- training

    def backend(self, name: str) -> Backend:
        """A trained back-end: from memory, from its file, or trained now."""
        path = None if self.prefix is None else self.prefix.with_name(f"{self.prefix.name}-{name}.safetensors")
        if name not in self.backends and path is not None and path.is_file():
            self.backends[name] = Backend.load(path)
        if name not in self.backends:
            m, data = MODELS[name], self.data
            session, channel = data["session_id"] if m.sessions else None, data["channel"] if m.kinds else None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                backend = Backend(plda=PLDA(**m.options))
                self.backends[name] = backend.fit(data["embeddings"], data["speaker"], session=session, channel=channel)
            if path is not None:
                backend.save(path)
        return self.backends[name]

    def of_means(self, condition: str, without: int | None = None) -> PLDA:
        """Simplified PLDA of the means of sessions in a condition, without a third of the speakers."""
        if (condition, without) not in self.means:
            data = taken(self.data, np.flatnonzero(self.thirds != (-1 if without is None else without)))
            data = drawn(data, condition)
            means, of = averages(self.spaces["whitened"].transform(data["embeddings"]), data["session_id"])
            speaker = data["speaker"][np.unique(of, return_index=True)[1]]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                self.means[condition, without] = PLDA(**LIKELIHOOD).fit(means, speaker)
        return self.means[condition, without]

    # -- tuning

    def best(self, rival: str, condition: str) -> Any:
        """The choice of the highest mean F over the thirds of the training speakers."""
        total: dict[Any, float] = defaultdict(float)
        for group in range(GROUPS):
            data = drawn(taken(self.data, np.flatnonzero(self.thirds == group)), condition, group)
            for choice, labels in self.tried(rival, data, condition, None, group).items():
                total[choice] += b_cubed(labels, data["speaker"], weights(data)).f
        return max(total, key=total.__getitem__)

    def tried(
        self, rival: str, data: Data, condition: str, choices: Any, without: int | None = None
    ) -> dict[Any, np.ndarray]:
        """The cluster of each recording for some choices, each with its space; None: for all."""
        function, grid = RIVALS[rival]
        if choices is None:
            choices = [(space, c) for space in (SPACES if function else ["whitened"]) for c in grid]
        k = None if rival == "spectral" else len(np.unique(data["speaker"]))
        found = {}
        for space in SPACES:
            own = [c for of, c in choices if of == space]
            if not own:
                continue
            Y, of = averages(self.spaces[space].transform(data["embeddings"]), data["session_id"])
            if function is None:
                plda = self.of_means(condition, without)
                sides = plda.enroll(Y, np.arange(len(Y)))
                partitions = cut(-plda.llr(sides, sides), [-c for c in own])
            else:
                partitions = function(Y, k, own)
            found |= {(space, c): labels[of] for c, labels in zip(own, partitions, strict=True)}
        return found


# -- results


def weights(data: Data) -> np.ndarray:
    """Of recordings, so that sessions weigh alike."""
    _, of, sizes = np.unique(data["session_id"], return_inverse=True, return_counts=True)
    return 1 / sizes[of]


class Result(NamedTuple):
    """The measures of a system in a condition, means over draws."""

    measures: dict[str, BootstrapResult]
    seconds: float


def measured(bench: Bench, system: str, public: Data, condition: str, resamples: int = 0) -> Result:
    """Draw, cluster and measure. Every speaker is in every draw, so that one resample of speakers serves all draws."""
    bench.prepare(system, condition)
    found, seconds = [], []
    for seed in SEEDS if condition == "ragged" else [0]:
        data = drawn(public, condition, seed)
        start = time.perf_counter()
        labels = bench.labels(system, data, condition)
        seconds.append(time.perf_counter() - start)
        found.append(partition_metrics(labels, data["speaker"], weight=weights(data), n_resamples=resamples))
    measures = {}
    for name in MEASURES:
        estimate = float(np.mean([draw[name].estimate for draw in found]))
        values = np.mean([draw[name].values for draw in found], axis=0)
        low, high = np.quantile(values, [0.025, 0.975]).tolist() if len(values) else (None, None)
        measures[name] = BootstrapResult(estimate, low, high, values)
    return Result(measures, float(np.mean(seconds)))


def percent(of: BootstrapResult) -> str:
    interval = "" if of.low is None else f" [{100 * of.low:5.1f}, {100 * of.high:5.1f}]"
    return f"{100 * of.estimate:5.1f}{interval}"


def table_row(system: str, result: Result, choice: Any = None) -> str:
    precision, recall, f, found, true, nmi = (result.measures[name] for name in MEASURES)
    speakers = f"{found.estimate:6.1f} / {true.estimate:.0f} = {found.estimate / true.estimate:.2f}"
    cells = [percent(precision), percent(recall), percent(f), speakers, f"{100 * nmi.estimate:5.1f}"]
    tuned = "" if choice is None else f"  {choice[0]}, {choice[1]}"
    return f"{system:18} " + "   ".join(cells) + f"  {result.seconds:6.2f}" + tuned


def run(bench: Bench, systems: list[str], conditions: list[str], public: Data, resamples: int) -> dict[Any, Result]:
    """Train, tune, cluster and print the systems one after another."""
    results, width = {}, 21 if resamples else 5
    for condition in conditions:
        head = "   ".join([*(f"{name:{width}}" for name in ("    P", "    R", "    F")), "found / speakers", "  NMI"])
        print(f"\n{condition:18} {head}  seconds")
        for system in systems:
            results[system, condition] = measured(bench, system, public, condition, resamples)
            print(table_row(system, results[system, condition], bench.tuned.get((system, condition))), flush=True)
    return results


def differences(results: dict[Any, Result], others: Iterable[str], conditions: Iterable[str]) -> Iterator[str]:
    """How much higher the F of our systems is than that of others, in points, over the same resamples of speakers."""
    for condition in conditions:
        for ours, other in product(("two", "kinds"), others):
            if (ours, condition) in results and (other, condition) in results and ours != other:
                a, b = (results[name, condition].measures["b_cubed_f"] for name in (ours, other))
                e, values = a.estimate - b.estimate, a.values - b.values
                low, high = 100 * np.quantile(values, [0.025, 0.975]) if len(values) else (np.nan, np.nan)
                yield f"{condition:8} {ours:8} less {other:18} {100 * e:+5.1f} [{low:+5.1f}, {high:+5.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", default="so762", choices=["so762", "cvau"])
    parser.add_argument("--system", nargs="*", choices=NAMES, default=NAMES, help="all unless asked")
    parser.add_argument("--condition", nargs="*", choices=CONDITIONS, default=CONDITIONS, help="all unless asked")
    parser.add_argument("--resamples", type=int, default=200, help="of the bootstrap; 0: no intervals")
    parser.add_argument("--held-out", type=int, choices=range(GROUPS), help="test this third of the training speakers")
    parser.add_argument("--prior", type=float, help="that two random sessions share a speaker")
    parser.add_argument("--less", nargs="*", choices=NAMES, default=(), help="differences to these systems, paired")
    parser.add_argument("--models", type=Path, help="a folder that keeps trained models from one run to the next")
    a = parser.parse_args()
    if a.held_out is not None and a.set != "so762":
        parser.error("--held-out is for so762, which has a training part")
    if a.models is not None:
        a.models.mkdir(parents=True, exist_ok=True)
    data, public = load(a.folder, a.set, a.held_out)
    part = "all" if a.held_out is None else f"without-{a.held_out}"
    bench = Bench(data, None if a.models is None else a.models / part, a.prior)
    n_train, n_test = (len(np.unique(of["speaker"])) for of in (data, public))
    tested = "" if a.held_out is None else ", all from the training part"
    print(f"{a.set}: {n_train} training speakers, {n_test} others are clustered{tested}; measures in %")
    results = run(bench, a.system, a.condition, public, a.resamples)
    for line in differences(results, a.less, a.condition):
        print(line)


if __name__ == "__main__":
    main()
