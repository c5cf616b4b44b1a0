"""A case from arrays: its structure, who calibrates and who judges whom, what is refused, and what a ratio rests on."""

from __future__ import annotations

import re
from itertools import combinations_with_replacement
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize

from duoplda import PLDA, Backend
from duoplda.calibration import AffineCalibration
from duoplda.case import CaseRefused, assess, calibration
from duoplda.case.basis import apart, from_the_middle
from duoplda.case.calibration import PopulationPairs
from duoplda.case.material import Material
from duoplda.case.models import Models, sides_of
from duoplda.case.reference import Reference
from duoplda.case.structure import Pool, Shape, expected_ratio, lacking, nearest
from duoplda.case.validation import expanded
from duoplda.data import Recordings
from duoplda.datasets import draw, make_recordings
from duoplda.errors import DuopldaError
from duoplda.metrics import cllr

ONE = (("", 1),)
TWO_TO_ONE = Shape((ONE, ONE), (ONE,))


@pytest.fixture(scope="module")
def truth():
    """The model that everything is drawn from."""
    return make_recordings(1, n_dimensions=8, n_speaker_factors=3, n_session_factors=3, channel_variance=0.5).model


@pytest.fixture(scope="module")
def model(truth):
    """A back-end with the true parameters, whose ratios are right."""
    return Backend.from_plda(PLDA.from_parameters(truth.mu[0], truth.V, truth.U, truth.W[0]))


def people(truth, n, sessions=4, copies=1, seed=0):
    """Drawn speakers: vectors, speakers and sessions as texts."""
    X, speaker, session, _ = draw(truth, n, sessions, copies, np.random.default_rng(seed))
    return X, speaker.astype(str), session.astype(str)


def recordings(X, speaker, session, rows=slice(None), **more):
    return Recordings.from_arrays(X[rows], speaker[rows], session[rows], **more)


@pytest.fixture(scope="module")
def case(truth):
    """The recordings of a case: two sessions of one speaker, another session of the same, and 30 people."""
    X, speaker, session = people(truth, 31)
    sides = [recordings(X, speaker, session, rows) for rows in (np.arange(2), np.arange(2, 3))]
    return *sides, recordings(X, speaker, session, np.arange(4, len(X)))


def drawn_trials(n_speakers=9, seed=0):
    """PopulationPairs of all pairs of some speakers, several of each."""
    rng = np.random.default_rng(seed)
    a, b = np.repeat([divmod(i, n_speakers) for i in range(n_speakers**2)], 3, axis=0).T
    same = a == b
    return PopulationPairs(rng.normal(np.where(same, 3.0, -4.0), 3.0), same, a, b, n_speakers)


# -- the calibration in a structure


def test_the_calibration_is_the_least_of_what_it_says():
    trials = drawn_trials()
    for prior in (1e-4, 0.25, 30.0):
        scale, offset = calibration.learn(trials, 9, prior)

        def cost(theta, prior=prior):
            u, b = theta
            z = np.exp(u) * trials.scores + b
            return cllr(z, trials.same, trials.weight) + prior / 9 * (u**2 + b**2 / 4)

        best = minimize(cost, [0.1, -0.1], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14})
        assert (np.log(scale), offset) == pytest.approx(tuple(best.x), abs=1e-5)
    assert calibration.learn(trials, 9, 1e6) == pytest.approx((1, 0), abs=1e-4)  # a strong prior keeps the model's own


def test_no_pair_is_calibrated_by_its_speakers():
    trials = drawn_trials()
    group = np.arange(9) % 4
    scale, offset = calibration.left_out(trials, group)
    for low, high in combinations_with_replacement(range(4), 2):
        of_pair = np.minimum(group[trials.a], group[trials.b]) == low
        of_pair &= np.maximum(group[trials.a], group[trials.b]) == high
        kept = ~np.isin(group, (low, high))
        expected = calibration.learn(trials.of(kept[trials.a] & kept[trials.b]), int(kept.sum()))
        np.testing.assert_allclose(scale[of_pair], expected[0], rtol=1e-6)
        np.testing.assert_allclose(offset[of_pair], expected[1], atol=1e-6)


def test_resamples_repeat_speakers():
    """A lattice stands for the trials; without it the same comes out, within a width of its lines."""
    trials = drawn_trials()
    times = np.random.default_rng(1).multinomial(9, np.full(9, 1 / 9), 5).astype(float)
    weights = np.where(trials.same, times[:, trials.a], times[:, trials.a] * times[:, trials.b]) * trials.weight
    ridge = np.full(5, calibration.lambda_of(9, calibration.RESAMPLED_PRIOR))
    exact = calibration.solve(trials.scores, trials.same, weights, ridge)
    np.testing.assert_allclose(calibration.resampled(trials, times), exact, atol=2e-3)
    assert np.ptp(exact, axis=0).min() > 0.01  # they do differ


def test_each_pair_of_speakers_counts_once():
    trials = drawn_trials()
    more = np.r_[np.arange(len(trials.same)), np.flatnonzero((trials.a == 1) & (trials.b == 2))]
    doubled = PopulationPairs(*(column[more] for column in trials[:4]), trials.M)
    for part in (trials, doubled):
        assert part.weight[part.same].sum() == pytest.approx(9)
        assert part.weight[~part.same].sum() == pytest.approx(36)


def test_few_speakers_need_longer_intervals():
    """Means of ten normal numbers: plain quantiles of resamples miss too often, the expanded ones hold."""
    rng = np.random.default_rng(0)
    samples = rng.normal(size=(3000, 10))
    means = samples @ rng.multinomial(10, np.full(10, 0.1), 500).T / 10
    for confidence, low, high in ((0.95, 0.85, 0.92), (expanded(0.95, 10), 0.93, 0.97)):
        ends = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2], axis=1)
        assert low < np.mean((ends[0] < 0) & (ends[1] > 0)) < high


# -- the structure of a case


@pytest.fixture(scope="module")
def labelled():
    """Twelve speakers with six sessions on three occasions; one recording of each of two kinds in a session."""
    rows = [(p, s, k) for p in range(12) for s in range(6) for k in ("clean", "phone")]
    speaker = np.array([f"p{p:02}" for p, _, _ in rows])
    session = np.array([f"p{p:02}-{s}" for p, s, _ in rows])
    occasion = np.array([f"p{p:02}-{s // 2}" for p, s, _ in rows])
    X = np.random.default_rng(0).normal(size=(len(rows), 4))
    kind = np.array([k for _, _, k in rows])
    return Material.of(Recordings.from_arrays(X, speaker, session, kind, occasion=occasion), "population")


def test_pairs_are_built_like_the_case(labelled):
    both = (("clean", 1), ("phone", 1))
    shape = Shape((both, (("clean", 1),)), ((("phone", 1),),), 1, 1)
    reference = Reference(Pool(labelled, 0), SimpleNamespace(group=np.arange(12), turn=lambda a, b: a * 0), shape)
    assert reference.M == 12
    for i, r, j, s in reference.pairs.tolist():
        known, questioned = reference.drawn[i][r].known, reference.drawn[j][s].questioned
        of_session = [known[labelled.session[known] == name] for name in set(labelled.session[known])]
        kinds = [sorted(labelled.kind[rows]) for rows in of_session]
        assert sorted(kinds, key=len) == [["clean"], ["clean", "phone"]]
        assert labelled.kind[questioned].tolist() == ["phone"]
        assert len(set(labelled.occasion[known])) == 1
        assert not set(labelled.occasion[known]) & set(labelled.occasion[questioned])
        assert set(labelled.speaker[known]) == {reference.speakers[i]}
        assert set(labelled.speaker[questioned]) == {reference.speakers[j]}
    same = reference.pairs[:, 0] == reference.pairs[:, 2]
    assert len(set(reference.pairs[same, 0].tolist())) == 12
    assert len({tuple(sorted(pair)) for pair in reference.pairs[~same][:, [0, 2]].tolist()}) == 66


def test_what_is_drawn_of_a_speaker_does_not_depend_on_others(labelled):
    shape = Shape(((("clean", 1),),) * 2, ((("phone", 1),),))
    some = labelled.rows(np.flatnonzero(labelled.speaker > "p05"))
    for name in some.speakers.tolist():
        both = [(pool.material, pool.draw(name, shape, 4)) for pool in (Pool(labelled, 3), Pool(some, 3))]
        rows = [[material.ids[np.concatenate(way)] for way in ways] for material, ways in both]
        vectors = [[material.X[np.concatenate(way)] for way in ways] for material, ways in both]
        assert len(rows[0]) > 1
        np.testing.assert_array_equal(*vectors)


def test_what_the_population_lacks_is_named(labelled, model):
    kind = (("radio", 1),)
    many = Shape((kind,) * 9, (kind,))
    pool = Pool(labelled, 0)
    drawn = nearest(pool, many, model.ratio_model_)
    text = " ".join(lacking(pool, many, drawn))
    assert "The population has no recordings of the kind radio." in text
    assert "Only 0 of the 12 speakers have recordings for both sides as in the case." in text
    assert re.search(
        r"The known sides that were drawn have \d sessions of (clean|phone) instead of 9 sessions of radio", text
    )
    assert len(drawn.known) == 5  # of six sessions one is the questioned one
    exact = Shape(((("clean", 1),),), ((("phone", 1),),))
    assert nearest(pool, exact, model.ratio_model_) == exact
    assert lacking(pool, exact, exact) == ()


def test_the_expected_ratio_is_the_mean_of_one_speaker(truth, model):
    """That of 20,000 speakers, within five standard errors."""
    n = 20_000
    X, speaker, session = draw(truth, n, 3, 1, np.random.default_rng(0))[:3]
    known = np.tile([True, True, False], n)
    sides = [model.enroll(X[rows], speaker[rows], session[rows]) for rows in (known, ~known)]
    ratios = model.llr(*sides, np.tile(np.arange(n)[:, None], 2))
    error = ratios.std() / np.sqrt(n)
    assert abs(ratios.mean() - expected_ratio(model.ratio_model_, TWO_TO_ONE)) < 5 * error


# -- who judges whom


def test_no_pair_is_judged_by_a_model_that_saw_its_speakers(truth):
    X, speaker, session = people(truth, 20, 2)
    population = Material.of(recordings(X, speaker, session), "population")

    class Adapted:
        """A model that tells who it was adapted to."""

        def adapt(self, target):
            self.calls = getattr(self, "calls", 0) + 1
            return set(target.labels().filled.speaker_ids[target.labels().filled.speaker].tolist())

    source = Adapted()
    models = Models(source, population, True, 0)
    assert models.whole == set(population.speakers.tolist())
    a, b = (x.ravel() for x in np.indices((20, 20)))
    turn = models.turn(models.group[a], models.group[b])
    judged = set()
    for i, j, number in zip(a.tolist(), b.tolist(), turn.tolist(), strict=True):
        if number >= 0:
            assert not models.left_out(number) & {*population.speakers[[i, j]].tolist()}
            judged.add((i, j))
    assert all((i, i) in judged for i in range(20))
    assert len(judged) > 200
    assert source.calls == 6


# -- refusals


def test_refusals(model, case, truth):
    known, questioned, population = case
    X, speaker, session = people(truth, 31)
    rest = np.arange(4, len(X))

    def reason(*sides):
        with pytest.raises(CaseRefused) as refused:
            assess(model, *sides, n_resamples=5)
        return refused.value.reason, str(refused.value)

    few = recordings(X, speaker, session, rest[:32])
    assert reason(known, questioned, few)[0] == "population"
    same = Recordings.from_arrays(X[2:3], session=session[:1])
    why, message = reason(known, same, population)
    assert (why, f"session '{session[0]}' is on both sides" in message) == ("both sides", True)
    copy = Recordings.from_arrays(X[:1], session=["other"])
    assert "the same vector" in reason(known, copy, population)[1]
    of_another = Recordings.from_arrays(X[8:9], session=["other"])
    why, message = reason(known, of_another, population)
    assert (why, "leave out all recordings of this speaker there" in message) == ("in population", True)
    far = Recordings.from_arrays(X[rest] + 9, speaker[rest], session[rest])
    why, message = reason(known, questioned, far)
    assert (why, "adapt = true" in message) == ("domain", True)
    unnamed = Recordings.from_arrays(X[rest], session=session[rest])
    assert "the speakers of the population are not known" in reason(known, questioned, unnamed)[1]
    with pytest.raises(DuopldaError, match="known: NaN or infinity"):
        assess(model, Recordings.from_arrays(X[:2] * [[1], [np.nan]]), questioned, population)
    with pytest.raises(DuopldaError, match="vectors have 3 dimensions, the model takes 8"):
        assess(model, Recordings.from_arrays(X[:2, :3]), questioned, population)
    with pytest.raises(DuopldaError, match="n_resamples >= 1"):
        assess(model, known, questioned, population, n_resamples=0)


# -- the result


@pytest.fixture(scope="module")
def result(model, case):
    return assess(model, *case, n_resamples=60)


def test_the_ratio_is_within_its_interval_and_its_bounds(result):
    ratio = result.ratio
    assert ratio.low <= ratio.calibrated <= ratio.high
    assert ratio.calibrated == pytest.approx(ratio.scale * ratio.own + ratio.offset)
    assert ratio.support.lower <= ratio.stated_low <= ratio.stated <= ratio.stated_high <= ratio.support.upper
    assert ratio.support.lower <= 0 <= ratio.support.upper
    for pair in (ratio.support.elub, ratio.support.invariance):
        assert pair[0] <= ratio.support.lower
        assert ratio.support.upper <= pair[1]
    for name in ("cllr", "min_cllr", "eer", "dev_pav"):
        estimate = getattr(result.validation, name)
        assert estimate.low <= estimate.value <= estimate.high


def test_a_ratio_beyond_a_bound_is_stated_as_the_bound(truth, model, case):
    """A questioned recording that is far out, where the known ones are."""
    X, _, session = people(truth, 31)
    out = 3.6 * np.linalg.svd(truth.V)[0][:, 0] * np.linalg.norm(truth.V, 2)
    known = Recordings.from_arrays(X[:2] + out, session=session[:2])
    questioned = Recordings.from_arrays(X[2:3] + out, session=session[2:3])
    ratio = assess(model, known, questioned, case[2], n_resamples=5).ratio
    assert ratio.calibrated > ratio.support.upper == ratio.stated
    assert (ratio.relation, ratio.bound_by in ("elub", "invariance")) == ("at least", True)


def test_the_order_of_recordings_does_not_matter(model, case, result):
    rng = np.random.default_rng(0)
    shuffled = []
    for side in case:
        chunk = next(iter(side.chunks()))
        labels = side.labels().filled
        order = rng.permutation(len(chunk.X))
        speaker = labels.speaker_ids[labels.speaker][order]
        shuffled.append(Recordings.from_arrays(chunk.X[order], speaker, labels.session_ids[labels.session][order]))
    again = assess(model, *shuffled, n_resamples=60)
    assert again.ratio == result.ratio
    assert again.validation.cllr == result.validation.cllr


def test_a_share_is_what_the_ratio_loses_without_the_session(truth, model, result):
    X, speaker, session = people(truth, 31)
    first, second, alone = result.sessions
    assert (alone.side, alone.without, alone.share) == ("questioned", None, None)
    for share, row in ((first, 1), (second, 0)):
        sides = [Recordings.from_arrays(X[[k]], session=session[[k]]) for k in (row, 2)]
        without = assess(model, *sides, recordings(X, speaker, session, np.arange(4, len(X))), n_resamples=5).ratio
        assert share.without == pytest.approx(without.calibrated)
        assert share.share == pytest.approx(result.ratio.calibrated - without.calibrated)


def test_sensitivity_tells_what_else_it_could_have_been(result):
    groups = [s.group for s in result.sensitivity]
    assert groups == ["population", "population", "calibration"]
    halves = result.sensitivity[:2]
    assert sum(s.n_speakers for s in halves) == result.validation.n_speakers
    assert halves[0].calibrated != halves[1].calibrated
    assert result.sensitivity[2].calibrated == result.ratio.own


def test_a_wrong_scale_is_mended_by_the_population(truth, case):
    stretched = Backend.from_plda(PLDA.from_parameters(truth.mu[0], truth.V, truth.U, truth.W[0]))
    stretched.calibration_ = AffineCalibration.of(2.5, -3.0)
    validation = assess(stretched, *case, n_resamples=20).validation
    assert validation.cllr.value < validation.own_cllr - 0.1


def test_distances_are_1_on_average(truth, model):
    n = 3000
    X = draw(truth, n, 3, 1, np.random.default_rng(1))[0]
    ids = np.array([f"{i:05}" for i in range(3 * n)])
    material = Material.of(Recordings.from_arrays(X, np.repeat(ids[:n], 3), ids), "drawn")
    known = sides_of(model, material, list(np.arange(3 * n).reshape(n, 3)[:, :2]))
    questioned = sides_of(model, material, list(np.arange(3 * n).reshape(n, 3)[:, 2:]))
    for side in (known, questioned):
        assert from_the_middle(side).mean() == pytest.approx(1, abs=0.05)
    pairs = np.tile(np.arange(n)[:, None], 2)
    one = apart(known, questioned, pairs)
    assert one.mean() == pytest.approx(1, abs=0.05)
    assert apart(known, questioned, (pairs + np.array([0, 1])) % n).mean() > 2


def test_kinds_that_are_not_known_of_all_are_said(model, truth, case):
    known, questioned, _ = case
    X, speaker, session = people(truth, 31)
    rows = np.arange(4, len(X))
    labelled = Recordings.from_arrays(X[rows], speaker[rows], session[rows], np.full(len(rows), "phone"))
    noted = assess(model, known, questioned, labelled, n_resamples=5)
    assert "The kinds of channels of the known side and the questioned side are not labelled" in noted.notes[0]
