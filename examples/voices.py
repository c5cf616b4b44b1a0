"""Who is this? Open-set identification on real speech: right, wrong and open answers, and strangers who are named.

    python examples/voices.py DATA_FOLDER [--set so762] [--model voices.safetensors] [--draws 100] [--resamples 1000]
        [--picture FILE]

DATA_FOLDER holds SET_campp_train.npz and SET_campp_public.npz: embeddings with speaker, session and channel. The
model is the default back-end with kinds of channels, trained on the training part; `--model` keeps it in a file, and
reads it if it is there. Half of the public speakers, drawn anew each time, are enrolled with six sessions; the other
half are strangers. Tests are sessions 10-19 of all of them, which nobody is enrolled with.

For each form of enrolment and test it prints, in %, of the enrolled: right, wrong (another name) and open (no name),
and of the strangers: named, where a name is accepted above a posterior of .5, .9 and .99. The prior is the default one:
.5 that it is one of the voices. 95 % intervals are over speakers. Beside it stands the cosine with the sums of centred
vectors of unit length, whose threshold is the one with the fewest errors in the same experiment on training speakers.
Then follows how reliable posteriors are: the mean of the highest one, and the share that is right, by its size;
`--picture` draws that.

The first draw of each form is asked of a `Registry` in a file, too, which must answer alike.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from duoplda import Backend
from duoplda.trials.identification import identify
from duoplda.voices import Registry

Data = dict[str, np.ndarray]
LIMITS = (0.5, 0.9, 0.99)
BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0)


class Form(NamedTuple):
    """What is enrolled, and what a test is."""

    name: str
    clean: bool  # enrolment by the clean channel alone, else by all five
    sessions: int  # of a test, all through the same channel


FORMS = (
    Form("clean only, one recording", True, 1),
    Form("five channels, one recording", False, 1),
    Form("five channels, three sessions", False, 3),
)


class Trials(NamedTuple):
    """Scores of all tests and all speakers, and who speaks."""

    scores: np.ndarray  # (speakers, tests)
    speaker: np.ndarray  # (tests,)


def load(folder: Path, name: str, part: str) -> Data:
    with np.load(folder / f"{name}_campp_{part}.npz") as file:
        data = {name: file[name] for name in ("embeddings", "speaker", "session", "session_id", "channel")}
        return data | {"kind": file["channel_names"][data["channel"]]}


def model(train: Data, path: Path | None) -> Backend:
    """Trained, or read from a file."""
    if path is not None and path.exists():
        return Backend.load(path)
    backend = Backend().fit(train["embeddings"], train["speaker"], session=train["session_id"], channel=train["kind"])
    if path is not None:
        backend.save(path)
    return backend


def split(data: Data, form: Form) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows to enrol; rows of tests, and the test of each."""
    enrolled = np.flatnonzero((data["session"] < 6) & ((data["channel"] == 0) | (not form.clean)))
    rows = np.flatnonzero(data["session"] >= 10)
    if form.sessions == 1:
        return enrolled, rows, np.arange(len(rows))
    rows = rows[data["session"][rows] < 19]
    place = data["speaker"][rows].astype(int) * 10 + (data["session"][rows] - 10) // form.sessions
    return enrolled, rows, place * 10 + data["channel"][rows]


def ratios(backend: Backend, data: Data, form: Form) -> Trials:
    """Calibrated ratios."""
    enrolled, rows, test = split(data, form)

    def sides(which: np.ndarray, ids: np.ndarray):
        session = data["session_id"][which] if len(np.unique(ids)) < len(ids) else None
        return backend.enroll(data["embeddings"][which], ids, session, data["kind"][which])

    voices = sides(enrolled, data["speaker"][enrolled])
    tests = sides(rows, test)
    speaker = np.array([data["speaker"][rows[test == name][0]] for name in tests.ids])
    return Trials(np.asarray(backend.llr(voices, tests)), speaker)


def cosines(data: Data, form: Form, mean: np.ndarray) -> Trials:
    """Cosines of sums of centred vectors of unit length."""
    enrolled, rows, test = split(data, form)
    X = data["embeddings"] - mean
    X = X / np.linalg.norm(X, axis=1, keepdims=True)

    def sums(which: np.ndarray, ids: np.ndarray) -> np.ndarray:
        _, place = np.unique(ids, return_inverse=True)
        total = np.zeros((place.max() + 1, X.shape[1]))
        np.add.at(total, place, X[which])
        return total / np.linalg.norm(total, axis=1, keepdims=True)

    scores = sums(enrolled, data["speaker"][enrolled]) @ sums(rows, test).T
    return Trials(scores, data["speaker"][rows[np.unique(test, return_index=True)[1]]])


def draws(n_speakers: int, number: int) -> list[np.ndarray]:
    """Who is enrolled: half of the speakers, `number` times."""
    rng = np.random.default_rng(0)
    return [np.sort(rng.permutation(n_speakers)[: n_speakers // 2]) for _ in range(number)]


def counts(trials: Trials, enrolled: list[np.ndarray], best: list[tuple[np.ndarray, np.ndarray]], limit: float):
    """(speakers, 5): tests of the enrolled, right, wrong; tests of strangers, and those who are named."""
    speakers = np.unique(trials.speaker)
    out = np.zeros((len(speakers), 5))
    row = np.searchsorted(speakers, trials.speaker)
    for known, (name, value) in zip(enrolled, best, strict=True):
        there = np.isin(row, known)
        named = value > limit
        right = named & (name == row)
        for column, hit in enumerate((there, there & right, there & named & ~right, ~there, ~there & named)):
            np.add.at(out, (row[hit], column), 1)
    return out


def nearest(trials: Trials, enrolled: list[np.ndarray], posterior: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each draw: the voice that is most probable, or nearest, and its posterior or score."""
    out = []
    for known in enrolled:
        values = trials.scores[known].T
        values = identify(values).voices if posterior else values
        place = values.argmax(axis=1)
        out.append((known[place], values[np.arange(len(place)), place]))
    return out


def shares(table: np.ndarray) -> np.ndarray:
    """Right, wrong and open of the enrolled, and strangers named, in %."""
    n, right, wrong, strangers, named = table.sum(axis=0)
    return 100 * np.array([right / n, wrong / n, 1 - (right + wrong) / n, named / strangers])


def line(label: str, table: np.ndarray, resamples: int) -> str:
    rng = np.random.default_rng(1)
    drawn = [shares(table[rng.integers(len(table), size=len(table))]) for _ in range(resamples)]
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0) if resamples else (shares(table),) * 2
    cells = [f"{value:5.1f} [{a:4.1f}, {b:5.1f}]" for value, a, b in zip(shares(table), low, high, strict=True)]
    return f"{label:42}" + "  ".join(cells)


def threshold(trials: Trials, number: int) -> float:
    """The score with the fewest errors: enrolled who are not named or named wrongly, strangers who are named."""
    enrolled = draws(len(np.unique(trials.speaker)), number)
    best = nearest(trials, enrolled, posterior=False)
    values = np.quantile(np.concatenate([value for _, value in best]), np.linspace(0.01, 0.99, 99))
    errors = []
    for value in values:
        n, right, _, strangers, named = counts(trials, enrolled, best, value).sum(axis=0)
        errors.append((n - right + named) / (n + strangers))
    return float(values[int(np.argmin(errors))])


def reliability(trials: Trials, best: list[tuple[np.ndarray, np.ndarray]]) -> list[tuple[float, float, int]]:
    """The mean of the highest posterior, the share that is right, and the number of answers, by its size."""
    row = np.searchsorted(np.unique(trials.speaker), trials.speaker)
    value = np.concatenate([value for _, value in best])
    right = np.concatenate([name == row for name, _ in best])
    cells = []
    for low, high in pairwise(BINS):
        hit = (value > low) & (value <= high)
        if hit.sum() >= 20:
            cells.append((float(value[hit].mean()), float(right[hit].mean()), int(hit.sum())))
    return cells


def draw(path: Path, lines: dict[str, list[tuple[float, float, int]]]) -> None:
    """The share that is right against the mean of the highest posterior, which means what it says on the diagonal.

    The more answers, the larger is a point.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "voices", "font.family": "sans-serif"})
    figure = Figure(figsize=(5, 4), layout="constrained")
    ax = figure.subplots()
    ax.plot([0, 1], [0, 1], color="0.6", linewidth=1)
    for (name, cells), marker, colour in zip(lines.items(), "os^", ("#d55e00", "#0072b2", "#00805d"), strict=True):
        means, shares, numbers = map(np.array, zip(*cells, strict=True))
        ax.plot(means, shares, color=colour, linewidth=1)
        ax.scatter(means, shares, 150 * np.sqrt(numbers / numbers.sum()), color=colour, marker=marker, label=name)
    ax.set(xlabel="Highest posterior (mean)", ylabel="Share of answers that are right", xlim=(0, 1.02), ylim=(0, 1.02))
    for handle in ax.legend(frameon=False, loc="lower right").legend_handles:
        handle.set_sizes([30])
    figure.savefig(path, metadata={"Date": None})


def ask_registry(backend: Backend, data: Data, form: Form, known: np.ndarray, trials: Trials) -> None:
    """The same answers from a registry in a file, for some of the tests."""
    enrolled, rows, test = split(data, form)
    speakers = np.unique(data["speaker"])
    with tempfile.TemporaryDirectory() as folder, Registry.create(Path(folder, "voices.db"), backend) as registry:
        own = {s: enrolled[data["speaker"][enrolled] == speakers[s]] for s in known.tolist()}
        registry.add_all(
            {f"speaker {s:03}": data["embeddings"][which] for s, which in own.items()},
            {f"speaker {s:03}": data["session_id"][which] for s, which in own.items()},
            {f"speaker {s:03}": data["kind"][which] for s, which in own.items()},
        )
        names = np.unique(test)
        for place in np.linspace(0, len(names) - 1, 40).astype(int):
            which = rows[test == names[place]]
            answer = registry.identify(data["embeddings"][which], data["session_id"][which], kind=data["kind"][which])
            P = identify(trials.scores[known, place])
            expected = f"speaker {known[P.voices.argmax()]:03}"
            assert answer.candidates[0].name == expected
            assert abs(answer.candidates[0].posterior - P.voices.max()) < 1e-9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", default="so762")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--picture", type=Path, help="draw how reliable posteriors are (an .svg, needs matplotlib)")
    given = parser.parse_args()
    train, public = load(given.folder, given.set, "train"), load(given.folder, given.set, "public")
    backend = model(train, given.model)
    mean = train["embeddings"].mean(axis=0)
    enrolled = draws(len(np.unique(public["speaker"])), given.draws)
    header = ["right", "wrong", "open", "strangers named"]
    print(f"{'in %, with 95 % intervals over speakers':42}" + "  ".join(f"{cell:20}" for cell in header))
    reliable = {}
    for form in FORMS:
        print(form.name)
        trials = ratios(backend, public, form)
        best = nearest(trials, enrolled, posterior=True)
        for limit in LIMITS:
            print(line(f"  posterior > {limit}", counts(trials, enrolled, best, limit), given.resamples))
        cosine = cosines(public, form, mean)
        limit = threshold(cosines(train, form, mean), given.draws)
        table = counts(cosine, enrolled, nearest(cosine, enrolled, posterior=False), limit)
        print(line(f"  cosine > {limit:.2f} (training speakers)", table, given.resamples))
        reliable[form.name] = reliability(trials, best)
        ask_registry(backend, public, form, enrolled[0], trials)
    print("\nhighest posterior: share right (answers)")
    for name, cells in reliable.items():
        print(f"  {name}:", "  ".join(f"{mean:.2f}: {share:.2f} ({n})" for mean, share, n in cells))
    if given.picture is not None:
        draw(given.picture, reliable)


if __name__ == "__main__":
    main()
