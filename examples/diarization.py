"""Who speaks when, on eight conversations with truth and on the example of VBx.

    python examples/diarization.py DATA_FOLDER [--system two kinds vbx]

DATA_FOLDER has so762_campp_train.npz, on which the models are trained, and the folders diarization/conversations and
diarization/vbx. For each model (two-source PLDA; with kinds of channels; the preset vbx) it prints the DER in % with
a collar of .25 s and without one, and in how many files the number of speakers is right: of whole files, of their
first 30, 60 and 120 s, and with a window every .5, .75 and 1.5 s; of whole files with VBx's start, and with cosines
and average linkage alone, with the true number given, and as a stream (20 s late at most, or 10 s late with a memory
of 60 s) after all corrections; how alike neighbouring windows are, and how many of the speakers are split when each
is alone; and how many are named when half of the voices, drawn 40 times, are enrolled with six utterances each: by
all windows, by the means of turns, and by one mean of each speaker, which counts for one session or for ten; and, of
windows and of one mean, if what the speakers of a file have in common is kept. Before that come two that need no
model, on embeddings that are centred by file and of length one: average linkage of cosines, up to the threshold
between two Gaussians; and spectral clustering whose numbers of neighbours and of speakers are those with the largest
gap between eigenvalues (NME-SC; Park et al. 2020). For ES2005a it prints the DER without overlapped speech, with
every constant of the HMM 25 % lower and higher, too.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse.csgraph import laplacian
from sklearn.cluster import KMeans

from duoplda import Backend
from duoplda.diarization import (
    Online,
    Regions,
    Segments,
    Turns,
    as_turns,
    cosine_labels,
    der,
    diarize,
    latent,
    new_share,
    read_rttm,
    read_segments,
)
from duoplda.diarization.diarizer import constants_of
from duoplda.diarization.known import known_voices
from duoplda.diarization.local_speakers import speakers_by_overlap
from duoplda.diarization.online import final_labels
from duoplda.diarization.windows import correlation_of_neighbours
from duoplda.io import Coded, read_embeddings, read_model

COLLAR = 0.25


def arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return dict(file)


def trained(folder: Path, system: str) -> Backend:
    data = arrays(folder / "so762_campp_train.npz")
    backend = Backend.preset("vbx") if system == "vbx" else Backend()
    kinds = data["channel"] if system == "kinds" else None
    return backend.fit(data["embeddings"], data["speaker"], session=data["session_id"], channel=kinds)


class Conversations:
    """The windows and the truth of all conversations."""

    def __init__(self, folder: Path):
        windows = arrays(folder / "windows.npz")
        self.X = windows["embeddings"]
        file = Coded.of(windows["recording"].tolist())
        self.segments = Segments(windows["ids"], file, windows["start"], windows["end"])
        self.enrolled = arrays(folder / "enrol.npz")
        self.truth = read_rttm(folder / "reference.rttm")

    def chosen(self, until: float = np.inf, every: int = 1) -> np.ndarray:
        """Windows that end before a moment, every so many of each stretch of speech."""
        s = self.segments
        file = s.file.codes
        begins = np.append(True, (file[1:] != file[:-1]) | (s.start[1:] - s.end[:-1] > 1e-6))
        rows = np.arange(len(s))
        place = rows - np.maximum.accumulate(np.where(begins, rows, 0))
        return np.flatnonzero((place % every == 0) & (s.end <= until))

    def show(self, name: str, found: Turns, until: float = np.inf) -> None:
        """Print the DER in % up to a moment, with and without a collar, and in how many files the number is right."""
        files = self.truth.file.names.tolist()
        kept = self.truth[self.truth.start < until]
        regions = Regions.of(files, [0.0] * len(files), [min(until, 1e6)] * len(files))
        right = sum(speakers(found, file) == speakers(kept, file) for file in files)
        rates = [100 * der(found, self.truth, collar=collar, regions=regions).rate for collar in (COLLAR, 0.0)]
        print(f"  {name:24}{rates[0]:6.2f}{rates[1]:8.2f}   number right in {right} of {len(files)}", flush=True)

    def alone(self) -> list[np.ndarray]:
        """For each speaker, the windows that lie inside their turns."""
        s = self.segments
        groups = []
        for speaker in sorted(self.truth.speaker.names.tolist()):
            turns = self.truth[self.truth.speaker.values == speaker]
            rows = np.flatnonzero(s.file.values == turns.file.values[0])
            inside = (s.start[rows, None] >= turns.start - 1e-6) & (s.end[rows, None] <= turns.end + 1e-6)
            groups.append(rows[inside.any(axis=1)])
        return [rows for rows in groups if len(rows) > 1]


def speakers(turns: Turns, file: str) -> int:
    return len({*turns.speaker.values[turns.file.values == file].tolist()})


def spectral(X: np.ndarray, most: int = 10) -> np.ndarray:
    """Labels of rows of length one, in as many clusters as the largest gap between eigenvalues says, up to `most`."""
    n = len(X)
    nearest = np.argsort(-X @ X.T, axis=1)
    tried = []
    for neighbours in np.unique(np.geomspace(3, max(n // 4, 3), 6).astype(int)).tolist():
        graph = np.zeros((n, n))
        np.put_along_axis(graph, nearest[:, :neighbours], 1.0, axis=1)
        values, vectors = np.linalg.eigh(laplacian((graph + graph.T) / 2))
        gaps = np.diff(values[: most + 1])
        tried.append((neighbours * values[-1] / max(gaps.max(), 1e-10), int(gaps.argmax()) + 1, vectors))
    _, k, vectors = min(tried, key=lambda found: found[0])
    return KMeans(k, n_init=10, random_state=0).fit_predict(vectors[:, :k])


def without_model(data: Conversations) -> None:
    s = data.segments
    for name, cluster in (("cosines", cosine_labels), ("spectral clustering", spectral)):
        speaker = np.empty(len(s), object)
        for file in data.truth.file.names.tolist():
            rows = np.flatnonzero(s.file.values == file)
            X = data.X[rows] - data.X[rows].mean(axis=0)
            speaker[rows] = [f"{file} {k}" for k in cluster(X / np.linalg.norm(X, axis=1, keepdims=True))]
        data.show(name, as_turns(s, speaker.astype(str)))


def table(data: Conversations, chain: Backend) -> None:
    def cell(name: str, until: float = np.inf, every: int = 1, **options: Any) -> None:
        rows = data.chosen(until, every)
        data.show(name, diarize(chain, data.X[rows], data.segments[rows], **options), until)

    cell("whole")
    for seconds in (30, 60, 120):
        cell(f"first {seconds} s", until=seconds)
    for every in (2, 3, 6):
        cell(f"a window every {every / 4:g} s", every=every)
    cell("whole, VBx's start", start="vbx")
    cell("whole, cosines alone", start="vbx", refine=None)
    data.show("a stream, 20 s late", streamed(data, chain, delay=20.0))
    data.show("10 s late, 60 s memory", streamed(data, chain, delay=10.0, memory=60.0))
    parts = []
    for file in data.truth.file.names.tolist():
        rows = np.flatnonzero(data.segments.file.values == file)
        parts.append(diarize(chain, data.X[rows], data.segments[rows], n_speakers=speakers(data.truth, file)))
    columns = ([np.asarray(getattr(part, name)) for part in parts] for name in ("file", "start", "duration", "speaker"))
    data.show("the true number given", Turns.of(*map(np.concatenate, columns)))
    neighbours(data, chain)
    groups = data.alone()
    split = [len(diarize(chain, data.X[rows], data.segments[rows]).speaker.names) > 1 for rows in groups]
    print(f"  {'one speaker alone':24}{sum(split):6} of {len(groups)} are split")
    naming(data, chain)


def neighbours(data: Conversations, chain: Backend) -> None:
    """Print how alike neighbouring windows are: in files, of speakers alone, and if their vectors are shuffled."""
    s = data.segments
    rng = np.random.default_rng(0)
    files = [np.flatnonzero(s.file.codes == k) for k in range(len(s.file.names))]
    cases = {f"every {every / 4:g} s": [rows[::every] for rows in files] for every in (1, 2, 3)}
    Z = np.asarray(chain.transform(data.X))
    for name, groups in (cases | {"alone": data.alone()}).items():
        given, shuffled = (
            [correlation_of_neighbours(Z[order(rows)], s.start[rows], s.end[rows])[0] for rows in groups]
            for order in (np.asarray, rng.permutation)
        )
        ranges = (f"{min(values):.2f} to {max(values):.2f}" for values in (given, shuffled))
        print(f"  {'neighbours, ' + name:30}correlation {next(ranges)}; shuffled {next(ranges)}", flush=True)


def streamed(data: Conversations, chain: Backend, **options: float) -> Turns:
    """The turns of all files as streams, after the corrections."""
    s = data.segments
    speaker = np.empty(len(s), object)
    for file in data.truth.file.names.tolist():
        online = Online(chain, **options)
        rows = np.flatnonzero(s.file.values == file)
        labels: dict[tuple[float, float], str] = {}
        for row in rows:
            labels |= final_labels(online.add(data.X[row], s.start[row], s.end[row]))
        labels |= final_labels(online.finish())
        speaker[rows] = [f"{file} {labels[s.start[row], s.end[row]]}" for row in rows]
    return as_turns(s, speaker.astype(str))


def naming(data: Conversations, chain: Backend, draws: int = 40) -> None:
    """Print how often enrolled speakers are named right, and wrong, and how often the others are named."""
    s = data.segments
    local = speakers_by_overlap(s, diarize(chain, data.X, s))
    true = speakers_by_overlap(s, data.truth)
    row_of = {name: row for row, name in enumerate(s.ids.tolist())}
    rows: dict[str, list[int]] = {}  # of each local speaker, in the order of time
    who: dict[str, list[str]] = {}
    for name in s.ids.tolist():
        if name in local and name in true:
            rows.setdefault(local[name][1], []).append(row_of[name])
            who.setdefault(local[name][1], []).append(true[name][1])
    truth = np.array([max(sorted({*names}), key=names.count) for names in who.values()])
    share = new_share(s.start[s.file.codes == 0], s.end[s.file.codes == 0])
    ways = {
        "windows": (_windows, share, True),
        "turns": (_turns, 1.0, True),
        "one mean": (_mean, 1.0, True),
        "one mean, 10": (_mean, 10.0, True),
        "windows, room kept": (_windows, share, False),
        "one mean, room kept": (_mean, 1.0, False),
    }
    rng = np.random.default_rng(0)
    voices = np.unique(data.enrolled["speaker"])
    halves = [np.sort(rng.choice(voices, len(voices) // 2, replace=False)) for _ in range(draws)]
    for way, (summed, discount, by_file) in ways.items():
        X = {label: summed(data.X, np.array(r)) for label, r in rows.items()}
        print(f"  {'names by ' + way:30}" + _named(data, chain, X, truth, halves, discount, by_file), flush=True)


def _windows(X: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return X[rows]


def _turns(X: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.stack([X[turn].mean(axis=0) for turn in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1)])


def _mean(X: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return X[rows].mean(axis=0)[None]


def _named(
    data: Conversations,
    chain: Backend,
    X: dict[str, np.ndarray],
    truth: np.ndarray,
    halves: list[np.ndarray],
    discount: float,
    by_file: bool,
) -> str:
    heard = chain.enroll(np.concatenate([*X.values()]), np.repeat([*X], [len(x) for x in X.values()]))
    truth = dict(zip(X, truth.tolist(), strict=True))
    true = np.array([truth[label] for label in heard.ids.tolist()])
    file = [label.rpartition("-")[0] for label in heard.ids.tolist()] if by_file else None
    everyone = chain.enroll(data.enrolled["embeddings"], data.enrolled["speaker"])
    counts = np.zeros(5)
    for half in halves:
        known = everyone.select(np.flatnonzero(np.isin(everyone.ids, half)))
        found = known_voices(chain, heard, known, file, discount=discount)
        enrolled = np.isin(true, half)
        right = found.named & (found.voice == true)
        wrong = found.named & enrolled & ~right
        counts += [enrolled.sum(), right.sum(), wrong.sum(), (~enrolled).sum(), (found.named & ~enrolled).sum()]
    of_enrolled = f"{100 * counts[1] / counts[0]:6.1f} % named right, {100 * counts[2] / counts[0]:.1f} % wrong"
    return f"{of_enrolled}; of strangers {100 * counts[4] / counts[3]:.1f} % named"


def vbx_example(folder: Path) -> None:
    chain = Backend.from_foreign(read_model(folder / "plda", folder / "transform.h5"))
    _, X = read_embeddings(folder / "ES2005a.ark").load()
    segments = read_segments(folder / "ES2005a.seg")
    truth = read_rttm(folder / "ES2005a.reference.rttm")
    _, phi = latent(chain.transform(X), chain.collapsed()[0])
    constants = constants_of(phi, segments.start, segments.end)._asdict()
    cases: dict[str, dict[str, Any]] = {"default": {}, "VBx's start": {"start": "vbx"}, "4 given": {"n_speakers": 4}}
    for factor in (0.75, 1.25):
        cases |= {f"{name} x {factor}": {name: min(1.0, constants[name] * factor)} for name in ("Fa",)}
        cases |= {
            f"Fb x {factor}": {"Fb": constants["Fb"] * factor},
            f"stay x {factor}": {"loop": constants["loop"] ** factor},
        }
    for name, options in cases.items():
        found = diarize(chain, X, segments, **options)
        rate = der(found, truth, collar=COLLAR, skip_overlap=True).rate
        print(f"  {name:24}{100 * rate:6.2f}   {len(found.speaker.names)} speakers", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--system", nargs="+", default=["two", "kinds", "vbx"], choices=["two", "kinds", "vbx"])
    arguments = parser.parse_args()
    data = Conversations(arguments.folder / "diarization" / "conversations")
    print(f"{'':26}DER %   no collar")
    without_model(data)
    for system in arguments.system:
        print(system, flush=True)
        table(data, trained(arguments.folder, system))
    print("ES2005a")
    vbx_example(arguments.folder / "diarization" / "vbx")


if __name__ == "__main__":
    main()
