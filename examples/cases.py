"""Mock cases: what a likelihood ratio is worth that is calibrated in the structure of its case, and how sure it is.

    python examples/cases.py DATA_FOLDER [--model so762.safetensors] [--divisions 12] [--resamples 100]
    python examples/cases.py DATA_FOLDER --adapted
    python examples/cases.py DATA_FOLDER --choose

DATA_FOLDER holds so762_campp_train.npz, so762_campp_public.npz and cvau_campp_public.npz (see
`examples/real_speech.py`). A default back-end with kinds of channels is trained on so762 (or read from --model, and
written there if it does not exist yet); no public speaker is seen.

1. so762 public, nine structures, populations of 25 and of 10 speakers. In each division of the 50 speakers, 25 (or 10
   of these) are the population, from which `duoplda.case` draws pairs, calibrates and bounds. Each pair of the 25
   others is a case: 3 known sets of each speaker from sessions 0 to 8, 8 questioned recordings from sessions 10 to 17.
   Printed are Cllr by the model's own calibration, by one calibration for all nine structures, in the structure of the
   case, of the stated ratios (kept within the bounds), and minCllr; the difference of the third and the first with its
   95 % interval over speakers; misleading ratios of one and of two speakers, cases whose ratio a bound cuts, and
   intervals that contain the ratio which the 25 other speakers would calibrate, all in %. As these others are a sample
   as well, intervals that are right contain it in about 83 of 100 cases, not in 95.
2. Drawn data, where the true ratio is known: bias (orders of magnitude) and coverage of the 95 % intervals.

--adapted prints the table of 1 for cases of another domain, cvau, where the model is adapted to the population and both
sides are of different days: five speakers are judged by the thirteen others, three times. --choose prints what led to
the constant PRIOR: the same as 1 for several of them and the first seven structures, on training speakers alone; three
models are trained, each without 50 speakers. All of 1 and 2 takes about three minutes of one core, --adapted four.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from duoplda import PLDA, Backend
from duoplda.calibration import AffineCalibration
from duoplda.case import calibration
from duoplda.case.calibration import PopulationPairs
from duoplda.case.material import Material
from duoplda.case.models import Models, ratios, sides_of
from duoplda.case.reference import Reference
from duoplda.case.structure import Pool, Shape
from duoplda.case.validation import expanded, support
from duoplda.data import Recordings
from duoplda.datasets import draw, make_recordings
from duoplda.evaluation.resampling import interval
from duoplda.metrics import cllr, min_cllr
from duoplda.model.parameters import Model

Data = dict[str, np.ndarray]
PRIORS = (0.0025, 0.1, 0.25, 0.5, 1.0, 2.0)  # among which --choose compares
ALL = ("clean", "codec", "noise", "reverb", "telephone")
STRUCTURES = {
    "1 clean : 1 clean": (1, ("clean",), "clean"),
    "1 clean : 1 codec": (1, ("clean",), "codec"),
    "3 clean : 1 codec": (3, ("clean",), "codec"),
    "3 clean : 1 telephone": (3, ("clean",), "telephone"),
    "3 x five channels : 1 telephone": (3, ALL, "telephone"),
    "3 codec : 1 codec": (3, ("codec",), "codec"),
    "3 clean : 1 noise": (3, ("clean",), "noise"),
    "1 telephone : 1 clean": (1, ("telephone",), "clean"),
    "3 x clean and telephone : 1 codec": (3, ("clean", "telephone"), "codec"),
}

TWO = Shape(((("", 1),),) * 2, ((("", 1),),))  # of drawn data: two sessions against one, without kinds


def load(folder: Path, name: str) -> Data:
    """Vectors with `who`, a number for each speaker, and `kind`, the name of each channel."""
    data = dict(np.load(folder / f"{name}.npz"))
    data["who"] = np.unique(data["speaker"], return_inverse=True)[1]
    data["kind"] = data["channel_names"][data["channel"]]
    return data


def trained(data: Data, rows: np.ndarray | None = None) -> Backend:
    """The default back-end, with kinds."""
    rows = np.arange(len(data["who"])) if rows is None else rows
    return Backend().fit(*(data[name][rows] for name in ("embeddings", "speaker", "session_id", "kind")))


def material(data: Data, rows: np.ndarray, occasions: bool = False) -> Material:
    """Some recordings with all their labels."""
    columns = [data[name][rows] for name in ("embeddings", "who", "session_id", "kind")]
    occasion = data["sitting_id"][rows] if occasions else None
    return Material.of(Recordings.from_arrays(*columns, occasion=occasion), "recordings")


def shape(name: str, occasions: int = 0) -> Shape:
    """The structure of a name, each side being of so many days (0: these are not known)."""
    n, known, questioned = STRUCTURES[name]
    return Shape((tuple((kind, 1) for kind in known),) * n, (((questioned, 1),),), occasions, occasions)


def cases(model: Backend, data: Data, name: str) -> PopulationPairs:
    """All cases of one structure: each speaker's known sets against everyone's questioned recordings."""
    n, known, questioned = STRUCTURES[name]
    first = np.flatnonzero((data["session"] < 3 * n) & np.isin(data["kind"], known))
    second = np.flatnonzero((data["session"] >= 10) & (data["session"] < 18) & (data["kind"] == questioned))
    sides = []
    for rows, ids in ((first, 3 * data["who"][first] + data["session"][first] // n), (second, np.arange(len(second)))):
        sides.append(model.enroll(data["embeddings"][rows], ids, data["session_id"][rows], data["kind"][rows]))
    llr = np.asarray(model.llr(*sides))
    a, b = (x.ravel() for x in np.broadcast_arrays((sides[0].ids // 3)[:, None], data["who"][second][sides[1].ids]))
    return PopulationPairs(llr.ravel(), a == b, a, b, int(data["who"].max()) + 1)


def together(parts: list[PopulationPairs]) -> PopulationPairs:
    """The trials of several structures of the same speakers as one list."""
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in ("scores", "same", "a", "b")]
    return PopulationPairs(*columns, parts[0].M)


class Outcome(NamedTuple):
    """One structure in one division: the cases of 25 speakers, by a population of others."""

    trials: PopulationPairs  # by the model's own calibration
    one: np.ndarray  # by one calibration for all structures
    within: np.ndarray  # in the structure of the case
    stated: np.ndarray  # the same, within the bounds
    covered: np.ndarray


def adapted(model: Backend, data: Data, resamples: int) -> Iterator[dict[str, Outcome]]:
    """For each third of the speakers who were recorded on several days, by the others, to whom the model is adapted."""
    days = np.array([len(np.unique(data["sitting_id"][data["who"] == who])) for who in range(data["who"].max() + 1)])
    several = np.flatnonzero(days > 1)
    for third in range(3):
        of_cases = np.isin(data["who"], several[third::3])
        people, others = (material(data, np.flatnonzero(rows), occasions=True) for rows in (~of_cases, of_cases))
        models = Models(model, people, True, 0)
        judge = Models(models.whole, others, False, 0)
        pairs = {name: Reference(Pool(others, 0), judge, shape(name, 1)).trials for name in STRUCTURES}
        references = {name: Reference(Pool(people, 0), models, shape(name, 1)) for name in STRUCTURES}
        one = calibration.learn(together([part.trials for part in references.values()]), len(people.speakers))
        yield {name: outcome(part, pairs[name], one, resamples) for name, part in references.items()}


def outcomes(model: Backend, data: Data, divisions: int, n: int, resamples: int) -> Iterator[dict[str, Outcome]]:
    """For each division, by a population of n speakers."""
    rng = np.random.default_rng(0)
    tests = {name: cases(model, data, name) for name in STRUCTURES}
    for _ in range(divisions):
        order = rng.permutation(data["who"].max() + 1)
        people = material(data, np.flatnonzero(np.isin(data["who"], order[:n])))
        models = Models(model, people, False, 0)
        references = {name: Reference(Pool(people, 0), models, shape(name)) for name in STRUCTURES}
        one = calibration.learn(together([part.trials for part in references.values()]), n)
        others = np.isin(np.arange(len(order)), order[25:])
        yield {
            name: outcome(part, tests[name].of(others[tests[name].a] & others[tests[name].b]), one, resamples)
            for name, part in references.items()
        }


def outcome(reference: Reference, trials: PopulationPairs, one: tuple[float, float], resamples: int) -> Outcome:
    """The cases of one structure, as `duoplda.case.assess` would state them by this population."""
    scale, offset = reference.map
    within = scale * trials.scores + offset
    bounds = support(reference)
    low, high = ends(reference, trials.scores, resamples)
    best = calibration.learn(trials, len(np.unique(trials.a)), prior=1e-6)
    target = best[0] * trials.scores + best[1]
    return Outcome(
        trials,
        one[0] * trials.scores + one[1],
        within,
        np.clip(within, bounds.lower, bounds.upper),
        (low <= target) & (target <= high),
    )


def ends(reference: Reference, scores: np.ndarray, resamples: int) -> np.ndarray:
    """(2, n) the ends of the 95 % intervals of calibrated scores; a few scores at a time, for their memory."""
    _, maps = reference.resampled(resamples, 0)
    scale, offset = reference.map
    parts = []
    for part in np.array_split(scores, max(1, len(scores) // 2000)):
        values = np.multiply.outer(maps[:, 0], part) + maps[:, 1:]
        parts.append(interval(scale * part + offset, values, expanded(0.95, reference.M)))
    return np.concatenate(parts, axis=1)


def differences(found: list[Outcome], resamples: int) -> np.ndarray:
    """Mean Cllr in the structure less the model's own, in resamples of the speakers."""
    rng = np.random.default_rng(1)
    M = found[0].trials.M
    values = []
    for _ in range(resamples):
        times = np.bincount(rng.integers(0, M, M), minlength=M)
        drawn = []
        for trials, _, within, *_ in found:
            weight = np.where(trials.same, times[trials.a], times[trials.a] * times[trials.b])
            drawn.append(cllr(within, trials.same, weight) - cllr(trials.scores, trials.same, weight))
        values.append(np.mean(drawn))
    return np.array(values)


def percent(values: list[np.ndarray]) -> str:
    return f"{100 * np.mean([x.mean() for x in values]):.1f}"


def structures(model: Backend, data: Data, divisions: int, n: int, resamples: int) -> None:
    """The table of the structures with populations of n speakers."""
    print(f"\nso762 public, {divisions} divisions, {n} speakers in the population\n")
    table(list(outcomes(model, data, divisions, n, max(resamples, 200))), resamples)


def table(found: list[dict[str, Outcome]], resamples: int) -> None:
    """The rows of all structures, means over the divisions; without resamples there are no intervals over speakers."""
    print(
        "| structure | own | one for all | in the structure | stated | minCllr | in the structure less own "
        "| misleading, one speaker | two speakers | bound | covered |\n" + "|---" * 11 + "|"
    )
    for name in STRUCTURES:
        parts = [division[name] for division in found]
        bits = [
            [cllr(x, part.trials.same) for x in (part.trials.scores, *part[1:4])]
            + [min_cllr(part.trials.scores, part.trials.same)]
            for part in parts
        ]
        mean = np.mean(bits, axis=0)
        cells = [f"{value:.3f}" for value in mean]
        cells.append(f"{mean[2] - mean[0]:+.3f}")
        if resamples:
            low, high = np.quantile(differences(parts, resamples), [0.025, 0.975])
            cells[-1] += f" ({low:+.3f} to {high:+.3f})"
        cells.append(percent([part.within[part.trials.same] < 0 for part in parts]))
        cells.append(percent([part.within[~part.trials.same] > 0 for part in parts]))
        cells.append(percent([part.within != part.stated for part in parts]))
        cells.append(percent([part.covered for part in parts]) if resamples else "")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


# -- the choice of the prior


def choose(data: Data, divisions: int) -> None:
    """Mean Cllr over the structures by priors, on training speakers whom the model has not seen."""
    rng = np.random.default_rng(0)
    folds = np.array_split(rng.permutation(data["who"].max() + 1), 3)
    table: dict[tuple[int, float], list[np.ndarray]] = {(n, prior): [] for n in (25, 10) for prior in PRIORS}
    own = []
    for fold in folds:
        inside = np.isin(data["who"], fold)
        model = trained(data, np.flatnonzero(~inside))
        part = {name: data[name][inside] for name in ("embeddings", "session", "session_id", "kind")}
        part["who"] = np.unique(data["who"][inside], return_inverse=True)[1]
        people = material(part, np.arange(inside.sum()))
        pool = Pool(people, 0)
        numbers = people.speakers.astype(int)  # they are sorted as texts
        for name in list(STRUCTURES)[:7]:  # two more came when PRIOR was settled
            reference = Reference(pool, Models(model, people, False, 0), shape(name)).trials
            drawn = reference._replace(a=numbers[reference.a], b=numbers[reference.b])
            tests = cases(model, part, name)
            rows = {key: [] for key in table}
            before = []
            divided = np.random.default_rng(1)
            for _ in range(divisions):
                order = divided.permutation(len(fold))
                others = np.isin(np.arange(len(fold)), order[25:])
                these = tests.of(others[tests.a] & others[tests.b])
                before.append(cllr(these.scores, these.same))
                for n, prior in table:
                    inside_n = np.isin(np.arange(len(fold)), order[:n])
                    scale, offset = calibration.learn(drawn.of(inside_n[drawn.a] & inside_n[drawn.b]), n, prior)
                    rows[n, prior].append(cllr(scale * these.scores + offset, these.same))
            own.append(np.mean(before))
            for key, values in rows.items():
                table[key].append(np.mean(values))
    print("| prior | 25 speakers | greatest loss | 10 speakers | greatest loss |\n|---|---|---|---|---|")
    print(f"| (own) | {np.mean(own):.4f} | | {np.mean(own):.4f} | |")
    for prior in PRIORS:
        cells = []
        for n in (25, 10):
            # Of each structure, over the three models.
            loss = (np.array(table[n, prior]) - own).reshape(len(folds), -1).mean(axis=0)
            cells += [f"{np.mean(table[n, prior]):.4f}", f"{loss.max():+.4f}"]
        print(f"| {prior:g} | {' | '.join(cells)} |")


# -- drawn data


class Drawn(NamedTuple):
    """Cases by one population of drawn speakers."""

    same: np.ndarray
    true: np.ndarray  # the ratio by the model that all was drawn from
    limit: np.ndarray  # what a population of very many speakers would calibrate
    own: np.ndarray
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    right: np.ndarray  # whether the statement is true, where a bound cuts the ratio


def sampled(truth: Model, n: int, sessions: int, rng: np.random.Generator) -> Material:
    """Speakers who are drawn from a model, with one recording a session."""
    X, speaker, session, _ = draw(truth, n, sessions, 1, rng)
    return Material.of(Recordings.from_arrays(X, speaker, session), "drawn")


def of_drawn(
    model: Backend, true: Backend, limit: tuple[float, float], n: int, resamples: int, rng: np.random.Generator
) -> Drawn:
    """Cases of ten speakers, 2 sessions against 1, by a population of n others."""
    truth = true.ratio_model_
    population = sampled(truth, n, 6, rng)
    reference = Reference(Pool(population, 0), Models(model, population, False, 0), TWO)
    people = sampled(truth, 10, 3, rng)
    rows = np.arange(30).reshape(10, 3)  # they are sorted by speaker
    pairs = np.array([[i, (i + step) % 10] for step in (0, 1) for i in range(10)])
    found = []
    for judge in (model, true):
        sides = [sides_of(judge, people, list(part)) for part in (rows[:, :2], rows[:, 2:])]
        found.append(ratios(judge, *sides, pairs, True))
    own, truly = found
    scale, offset = reference.map
    value = scale * own + offset
    low, high = ends(reference, own, resamples)
    bounds = support(reference)
    right = np.where(value > bounds.upper, truly >= bounds.upper, truly <= bounds.lower)
    cut = (value > bounds.upper) | (value < bounds.lower)
    same = pairs[:, 0] == pairs[:, 1]
    best = limit[0] * own + limit[1]
    return Drawn(same, truly, best, own, value, low, high, np.where(cut, right, np.nan))


def drawn(populations: int, resamples: int) -> None:
    """Bias and coverage where the true ratio is known."""
    truth = make_recordings(1, n_dimensions=16, n_speaker_factors=8, n_session_factors=6, channel_variance=1.5).model
    parameters = (truth.mu[0], truth.V, truth.U, truth.W[0])
    true, stretched = (Backend.from_plda(PLDA.from_parameters(*parameters)) for _ in range(2))
    stretched.calibration_ = AffineCalibration.of(1.5, -1.0)
    rng = np.random.default_rng(0)
    X, speaker, session, _ = draw(truth, 150, 6, 2, rng)
    fitted = Backend(plda=PLDA(8, 6), whiten=False, length_norm=False).fit(X, speaker, session)
    print(f"\ndrawn data, {populations} populations, 20 cases by each; bias and error in orders of magnitude\n")
    print(
        '| model | speakers | target | bias, one speaker | two speakers | error | covered | "at least" is true |\n'
        + "|---" * 8
        + "|"
    )
    for name, model in (("true one, stretched", stretched), ("trained on 150 speakers", fitted)):
        many = sampled(truth, 1000, 6, rng)
        limit = calibration.learn(Reference(Pool(many, 0), Models(model, many, False, 0), TWO).trials, 1000, 1e-6)
        for n in (25, 10):
            parts = [of_drawn(model, true, limit, n, resamples, rng) for _ in range(populations)]
            for target in ("true", "limit"):
                print(f"| {name} | {n} | {target} | {' | '.join(summary(parts, target))} |", flush=True)


def summary(parts: list[Drawn], target: str) -> list[str]:
    """Bias, error and coverage of a target, with 95 % intervals over populations."""
    error = [(part.value - getattr(part, target)) / np.log(10) for part in parts]
    cells = []
    for wanted in (True, False):
        means = np.array([x[part.same == wanted].mean() for x, part in zip(error, parts, strict=True)])
        cells.append(f"{means.mean():+.2f} ± {1.96 * means.std() / len(means) ** 0.5:.2f}")
    cells.append(f"{np.mean(np.abs(error)):.2f}")
    covered = np.array([((x.low <= getattr(x, target)) & (getattr(x, target) <= x.high)).mean() for x in parts])
    cells.append(f"{100 * covered.mean():.1f} ± {196 * covered.std() / len(covered) ** 0.5:.1f}")
    stated = np.concatenate([part.right for part in parts])
    stated = stated[~np.isnan(stated)]
    cells.append(f"{100 * stated.mean():.1f} of {len(stated)}" if target == "true" and len(stated) else "")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="without it, drawn data alone")
    parser.add_argument("--model", type=Path, help="a model of so762's training part; it is written if it is not there")
    parser.add_argument("--divisions", type=int, default=12)
    parser.add_argument("--resamples", type=int, default=100)
    parser.add_argument("--populations", type=int, default=100, help="of drawn data")
    parser.add_argument("--adapted", action="store_true", help="cases of cvau instead")
    parser.add_argument("--choose", action="store_true", help="the choice of PRIOR instead")
    options = parser.parse_args()
    if options.choose:
        choose(load(options.folder, "so762_campp_train"), options.divisions)
        return
    if options.folder is not None:
        if options.model is not None and options.model.exists():
            model = Backend.load(options.model)
        else:
            model = trained(load(options.folder, "so762_campp_train"))
            if options.model is not None:
                model.save(options.model)
        if options.adapted:
            print("\ncvau, 3 times 5 speakers, 13 in the population, 10 of them on several days\n")
            table(list(adapted(model, load(options.folder, "cvau_campp_public"), 20)), 0)
            return
        for n in (25, 10):
            structures(model, load(options.folder, "so762_campp_public"), options.divisions, n, options.resamples)
    if options.populations:
        drawn(options.populations, max(options.resamples, 200))


if __name__ == "__main__":
    main()
