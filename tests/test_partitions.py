"""Measures of partitions: against sums over items that are written out, scikit-learn, and what must hold of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score

import duoplda.metrics
from duoplda.errors import DuopldaError
from duoplda.metrics import b_cubed, coverage, nmi, partition_metrics, purity

MEASURES = ("b_cubed_precision", "b_cubed_recall", "b_cubed_f", "purity", "coverage", "nmi")


def by_hand(labels: Any, reference: Any, weight: Any, times: Any = None) -> dict[str, float]:
    """Every measure as a mean over items; the items of speaker k count `times[k]` times in the means only."""
    c, k, w = (np.asarray(x) for x in (labels, reference, weight))
    m = np.array([1.0 if times is None else times[who] for who in k.tolist()])
    precision, recall, pure, covered, information, entropy = np.zeros((6, len(c)))
    clusters = lost = 0.0
    for i in range(len(c)):
        n_c, n_k, n = w[c == c[i]].sum(), w[k == k[i]].sum(), w[(c == c[i]) & (k == k[i])].sum()
        precision[i], recall[i] = n / n_c, n / n_k
        in_cluster = np.array([w[(c == c[i]) & (k == who)].sum() for who in np.unique(k)])
        by_cluster = np.array([w[(c == b) & (k == k[i])].sum() for b in np.unique(c)])
        pure[i] = (n == in_cluster.max()) / (in_cluster == in_cluster.max()).sum()
        covered[i] = by_cluster.max() / n_k  # of all items of the speaker, so many are in its largest cluster
        information[i] = np.log(w.sum() * n / (n_c * n_k))
        entropy[i] = -(np.log(n_c / w.sum()) + np.log(n_k / w.sum())) / 2
        clusters += m[i] * w[i] / n_c
        for j in np.flatnonzero((c == c[i]) & (k != k[i])):  # more of item j, less precision of item i
            lost += (m[j] - 1) * w[j] * w[i] * n / n_c**2

    def mean(x: Any) -> float:
        return float((x * w * m).sum() / (w * m).sum())

    p, r = mean(precision) - lost / (w * m).sum(), mean(recall)
    p = min(1.0, max(0.0, p))
    shared = mean(information) / mean(entropy) if mean(entropy) > 0 else 1.0
    values = [p, r, 2 * p * r / (p + r), mean(pure), mean(covered), max(0.0, shared)]
    return dict(zip(MEASURES, values, strict=True)) | {"clusters": clusters}


def by_functions(labels: Any, reference: Any, weight: Any = None) -> dict[str, float]:
    values = [*b_cubed(labels, reference, weight)]
    values += [measure(labels, reference, weight) for measure in (purity, coverage, nmi)]
    return dict(zip(MEASURES, values, strict=True))


items = st.lists(
    st.tuples(st.integers(-2, 3), st.sampled_from("abcd"), st.integers(1, 8).map(lambda n: n / 4)),
    min_size=1,
    max_size=25,
)


@given(items)
def test_all_measures_are_those_of_sums_over_items(rows: list[tuple[int, str, float]]) -> None:
    labels, reference, weight = zip(*rows, strict=True)
    expected = by_hand(labels, reference, weight)
    assert expected.pop("clusters") == pytest.approx(len(set(labels)))
    assert by_functions(labels, reference, weight) == pytest.approx(expected, abs=1e-12)
    ones = by_hand(labels, reference, np.ones(len(rows)))
    del ones["clusters"]
    assert by_functions(labels, reference) == pytest.approx(ones, abs=1e-12)
    assert nmi(labels, reference) == pytest.approx(normalized_mutual_info_score(reference, labels), abs=1e-10)


@given(items, st.integers(0, 3))
def test_resampled_values_are_those_of_sums_over_items(rows: list[tuple[int, str, float]], seed: int) -> None:
    """Speakers are drawn in the order of their names, and their items count as often as they were drawn."""
    labels, reference, weight = zip(*rows, strict=True)
    found = partition_metrics(labels, reference, weight=weight, n_resamples=5, seed=seed)
    names, rng = sorted(set(reference)), np.random.default_rng(seed)
    for draw in range(5):
        drawn = rng.integers(len(names), size=len(names)).tolist()
        expected = by_hand(labels, reference, weight, {who: drawn.count(i) for i, who in enumerate(names)})
        assert {name: found[name].values[draw] for name in expected} == pytest.approx(expected, abs=1e-12)
    for name in expected:
        assert found[name].low - 1e-9 <= found[name].estimate <= found[name].high + 1e-9


@given(items, st.randoms(use_true_random=False))
def test_names_order_and_copies_do_not_matter(rows: list[tuple[int, str, float]], random: Any) -> None:
    labels, reference, weight = zip(*rows, strict=True)
    expected = by_functions(labels, reference, weight)
    mixed = random.sample(rows, len(rows))
    other = [f"cluster {c}" for c, _, _ in mixed], [ord(k) for _, k, _ in mixed], [w for *_, w in mixed]
    assert by_functions(*other) == pytest.approx(expected, abs=1e-12)
    copies = [(c, k) for c, k, w in rows for _ in range(round(4 * w))]  # a weight stands for so many equal items
    assert by_functions(*zip(*copies, strict=True)) == pytest.approx(expected, abs=1e-12)
    swapped = by_functions(reference, labels, weight)
    for one, two in (("b_cubed_precision", "b_cubed_recall"), ("purity", "coverage"), ("nmi", "nmi")):
        assert swapped[one] == pytest.approx(expected[two], abs=1e-12)


def test_known_cases() -> None:
    truth = ["a", "a", "b", "b", "c", "c"]
    assert set(by_functions(truth, truth).values()) == {1.0}
    assert set(by_functions([1] * 6, ["x"] * 6).values()) == {1.0}
    each = by_functions(range(6), truth)
    assert each["b_cubed_precision"] == each["purity"] == 1
    assert each["b_cubed_recall"] == each["coverage"] == 0.5
    whole = by_functions([0] * 6, truth)
    assert whole["b_cubed_precision"] == pytest.approx(1 / 3)
    assert whole["purity"] == pytest.approx(1 / 3)
    assert whole["nmi"] == 0
    assert b_cubed([1, 1, 2], ["a", "b", "b"], [1, 0, 2]) == (1, 1, 1)  # an item of weight 0 is none


def noisy(n_speakers: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Speakers of 2 to 9 items, each with a share of its own of items that went to some other cluster."""
    reference = np.repeat(np.arange(n_speakers), rng.integers(2, 10, n_speakers))
    wrong = rng.random(len(reference)) < (0.5 * rng.random(n_speakers))[reference]
    return np.where(wrong, rng.integers(n_speakers, size=len(reference)), reference), reference


def test_intervals_hold_the_value_of_many_speakers() -> None:
    """Of 60 samples of 150 speakers, nearly all 95 % intervals hold what 30,000 speakers give."""
    rng = np.random.default_rng(1)
    truth = partition_metrics(*noisy(30000, rng), n_resamples=0)
    inside = dict.fromkeys(MEASURES[:5], 0)  # the NMI of few speakers is another quantity
    for seed in range(60):
        found = partition_metrics(*noisy(150, rng), n_resamples=100, seed=seed)
        for name in inside:
            assert found[name].low <= found[name].estimate <= found[name].high
            inside[name] += found[name].low <= truth[name].estimate <= found[name].high
    assert min(inside.values()) >= 51, inside
    assert truth["purity"].low is None


def test_intervals_repeat_and_count() -> None:
    labels, reference = noisy(40, np.random.default_rng(2))
    a, b, c = (partition_metrics(labels, reference, n_resamples=40, seed=s) for s in (3, 3, 4))
    assert all(np.array_equal(a[name].values, b[name].values) for name in a)
    assert not np.array_equal(a["nmi"].values, c["nmi"].values)
    assert (a["clusters"].estimate, a["speakers"].estimate) == (len(set(labels.tolist())), 40)
    ranked = np.sort(a["b_cubed_f"].values)
    assert (a["b_cubed_f"].low, a["b_cubed_f"].high) == (ranked[1], ranked[-2])


@pytest.mark.parametrize(
    ("labels", "reference", "weight", "words"),
    [
        ([1, 2], ["a"], None, "2 cluster labels for 1 speakers"),
        ([1, 2], ["a", None], None, "speaker labels are missing .* rows 1"),
        ([1.0, np.nan], ["a", "b"], None, "cluster labels are NaN .* rows 1"),
        ([], [], None, "no items"),
        ([1], ["a"], [0.0], "no items"),
        ([1, 2], ["a", "b"], [1.0], r"weight .* shape \(1,\) for 2 items"),
        ([1, 2], ["a", "b"], [1.0, -1.0], "weight: 1 of 2 are negative or not finite .rows 1"),
        ([1, 2], ["a", "b"], [np.nan, 1.0], "rows 0"),
        ([1, 2], ["a", "b"], ["x", "y"], "weight is <U1"),
        ([[1, 2]], ["a", "b"], None, "one-dimensional"),
    ],
)
def test_wrong_items_are_named(labels: Any, reference: Any, weight: Any, words: str) -> None:
    for measure in (b_cubed, purity, coverage, nmi):
        with pytest.raises(DuopldaError, match=words):
            measure(labels, reference, weight)
    with pytest.raises(DuopldaError, match=words):
        partition_metrics(labels, reference, weight=weight)


@pytest.mark.parametrize("wrong", [{"n_resamples": -1}, {"confidence": 1.0}, {"seed": -1}])
def test_wrong_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(DuopldaError, match="partition_metrics needs"):
        partition_metrics([1], ["a"], **wrong)


def test_a_million_items_take_seconds() -> None:
    rng = np.random.default_rng(5)
    reference = rng.integers(50_000, size=1_000_000)
    labels = np.where(rng.random(len(reference)) < 0.9, reference, rng.integers(50_000, size=len(reference)))
    found = partition_metrics(labels, reference, n_resamples=100)
    assert found["b_cubed_f"].low < found["b_cubed_f"].estimate < found["b_cubed_f"].high


def test_the_flat_module_has_them() -> None:
    for room in ("metrics", "partitions"):
        module = __import__(f"duoplda.evaluation.{room}", fromlist=["__all__"])
        assert set(module.__all__) <= set(duoplda.metrics.__all__)
        assert all(getattr(duoplda.metrics, name) is getattr(module, name) for name in module.__all__)
