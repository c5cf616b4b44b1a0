"""Trials of held-out speakers, their cost, and what they choose: shrinkage, scales and a calibration."""

import warnings
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, logit
from threadpoolctl import threadpool_limits

import oracle
from duoplda import PLDA, Backend, DuopldaError, Statistics
from duoplda.data import labels as lab
from duoplda.datasets import make_recordings
from duoplda.io import LabelColumns, read_labels, read_recordings, write_embeddings, write_labels
from duoplda.metrics import cllr
from duoplda.model.sample import Sample
from duoplda.model.shrinkage import Scales, Shrinkage, scaled
from duoplda.selection import decision
from duoplda.selection.cost import calibrate, cost, cost_expansion, gains_more_than_chance, share_kept
from duoplda.selection.decision import HeldOutCost, TrialOptions
from duoplda.selection.held_out import guess_shrinkage, hold_out
from duoplda.selection.search import Search
from duoplda.selection.trials import DEFAULT_ENROLMENT, make_trials, select_nontargets

PRIORS = (0.5, 0.01)


def drawn(n=40, d=8, sessions=(2, 5), recordings=(1, 4), seed=0, **more):
    options = {"n_dimensions": d, "n_speaker_factors": d // 2, "n_session_factors": d, "mean": 20.0, **more}
    return make_recordings(n, sessions, recordings, seed=seed, **options)


# -- the cost


def scores(seed=0, n=(60, 300), apart=2.0):
    rng = np.random.default_rng(seed)
    return rng.normal(apart, 1.5, n[0]) + 3, rng.normal(-apart, 1.5, n[1]) + 3


def by_the_formula(tar, non, scale, offset, priors):
    total = 0.0
    for p in priors:
        at = np.log(p / (1 - p))
        hits = sum(np.log2(1 + np.exp(-(scale * s + offset + at))) for s in tar) / len(tar)
        false = sum(np.log2(1 + np.exp(scale * s + offset + at)) for s in non) / len(non)
        total += (p * hits + (1 - p) * false) / -(p * np.log2(p) + (1 - p) * np.log2(1 - p))
    return total / len(priors)


@pytest.mark.parametrize("priors", [PRIORS, (0.5,), (0.1, 0.3, 0.001)])
@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (0.3, -2.0), (-0.5, 1.0), (4.0, -12.0)])
def test_the_cost_is_the_formula(priors, scale, offset):
    tar, non = scores(n=(30, 50))
    assert cost(tar, non, scale, offset, priors) == pytest.approx(
        by_the_formula(tar, non, scale, offset, priors), rel=1e-12
    )


def test_at_even_odds_the_cost_is_cllr():
    tar, non = scores()
    bits = cllr(np.concatenate([tar, non]), np.arange(len(tar) + len(non)) < len(tar))
    assert cost(tar, non, 1.0, 0.0, (0.5,)) == pytest.approx(bits, rel=1e-12)


def test_scores_far_out_cost_what_they_should():
    """No overflow: a wrong score of 1e5 costs about 1e5 nats."""
    with np.errstate(all="raise", under="ignore"):
        assert cost(np.array([1e5]), np.array([-1e5]), 1.0, 0.0) == 0
        wrong = cost(np.array([-1e5]), np.array([-1e5]), 1.0, 0.0, (0.5,))
    assert wrong == pytest.approx(0.5 * 1e5 / np.log(2), rel=1e-12)


def test_scores_without_information_cost_one():
    for same in (np.zeros(20), np.full(20, 7.0), np.random.default_rng(0).normal(size=5000) * 9 + 100):
        value, (scale, offset) = calibrate(same, np.tile(same, 3))
        assert value == pytest.approx(1.0, abs=1e-6)
        assert scale * same + offset == pytest.approx(0.0, abs=1e-2)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("priors", [PRIORS, (0.2,)])
def test_calibrate_finds_the_minimum(seed, priors):
    tar, non = scores(seed, apart=0.8)
    tar, non = tar * 10 + 50, non * 10 + 50
    value, (scale, offset) = calibrate(tar, non, priors)
    ridge = 0.5 / len(tar)

    def at(v):
        return cost(tar, non, *v, priors) + ridge * (v[0] - 1) ** 2

    best = minimize(at, [0.1, -5.0], method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-15, "maxiter": 4000})
    assert at((scale, offset)) <= best.fun + 1e-10
    np.testing.assert_allclose((scale, offset), best.x, rtol=1e-4)
    assert value == pytest.approx(cost(tar, non, scale, offset, priors), rel=1e-12)


def test_calibrate_does_not_object_to_an_offset():
    tar, non = scores()
    value, (scale, offset) = calibrate(tar, non)
    moved, (same, other) = calibrate(tar + 40, non + 40)
    assert (moved, same, other) == pytest.approx((value, scale, offset - 40 * scale), rel=1e-6)


@pytest.mark.parametrize("gap", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("n", [(1, 1), (3, 40), (50, 1)])
def test_trials_that_a_threshold_separates_keep_a_finite_scale(gap, n):
    rng = np.random.default_rng(0)
    tar, non = gap * (1 + rng.random(n[0])), -gap * (1 + rng.random(n[1]))
    value, (scale, offset) = calibrate(tar, non)
    assert np.isfinite([value, scale, offset]).all()
    assert 0 <= value <= cost(tar, non, 0.0, 0.0) + 1e-12
    assert 0 < scale < 1 + 100 / gap


def test_gradient_and_curvature_of_the_cost():
    rng = np.random.default_rng(1)
    both, v, h = (rng.normal(size=(4, 20)), rng.normal(size=(4, 50))), rng.normal(size=4), 1e-5
    _, gradient, curvature = cost_expansion(*both, v, PRIORS)
    for i, e in enumerate(h * np.eye(4)):
        up, down = (cost_expansion(*both, v + s * e, PRIORS) for s in (1, -1))
        assert gradient[i] == pytest.approx((up[0] - down[0]) / (2 * h), rel=1e-7, abs=1e-9)
        np.testing.assert_allclose(curvature[i], (up[1] - down[1]) / (2 * h), rtol=1e-7, atol=1e-9)


def test_many_trials_cost_what_their_parts_do():
    """They are added up in blocks, some of which are skipped, as all of their scores are far on the right side."""
    rng = np.random.default_rng(2)
    tar, non = (np.sort(rng.normal(s * 30, 20, (2, n)), axis=1) for s, n in ((1, 300), (-1, 50_000)))
    v, weight = np.array([0.8, 0.4]), rng.random(50_000)
    whole = cost_expansion(tar, non, v, PRIORS, weight)
    bits = [cost_expansion(tar, non[:, i::50], v, PRIORS, weight[i::50]) for i in range(50)]
    shares = [weight[i::50].sum() / weight.sum() for i in range(50)]
    for found, parts in zip(whole, zip(*bits, strict=True), strict=True):
        want = sum(share * part for share, part in zip(shares, parts, strict=True))
        np.testing.assert_allclose(found, want, rtol=1e-10)


# -- the search


def linear(seed=0, n=(80, 200), k=3):
    rng = np.random.default_rng(seed)
    weights, base = rng.normal(size=k), rng.normal(size=k + 1)
    F = [rng.normal(size=(m, k)) + s * 0.4 * weights for m, s in zip(n, (1, -1), strict=True)]
    bases = [f @ base[1:] * 0.3 + rng.normal(size=len(f)) + s for f, s in zip(F, (0.5, -0.5), strict=True)]
    return lambda theta: tuple(b + f @ theta for b, f in zip(bases, F, strict=True))


def each(at):
    """Scores at several points."""
    return lambda points: [at(theta) for theta in points]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("penalty", [1e-4, 1e-2])
def test_the_search_finds_the_lowest_point_where_scores_are_linear(seed, penalty):
    at = linear(seed)
    start = np.array([0.2, 0.0, -0.1])
    weights = np.array([1.0, 1.0, 10.0])

    def value(theta):
        return calibrate(*at(theta), PRIORS)[0] + penalty * weights @ (theta - start) ** 2

    found = Search(each(at), np.full(3, 6.0), PRIORS, penalty * weights)(start)[0]
    best = minimize(value, start, method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-12, "maxiter": 4000})
    assert np.abs(best.x).max() < 6
    assert value(found) <= best.fun + 1e-4
    assert value(found) < value(start)


@pytest.mark.parametrize("limit", [0.1, 0.3])
def test_the_search_stays_within_its_limits(limit):
    tried, at = [], linear(1)

    def watched(theta):
        tried.append(theta)
        return at(theta)

    search = Search(each(watched), np.full(3, limit), PRIORS, np.full(3, 1e-6))
    found, _, _ = search(np.zeros(3))
    assert np.abs(found).max() == pytest.approx(limit)  # the lowest point lies outside
    assert np.abs(tried).max() <= limit + 1e-12
    assert search.tried[0][1] == calibrate(*at(np.zeros(3)))[0]
    assert len(tried) < 20  # evaluations are what a search costs


def test_the_search_stays_where_nothing_changes_the_scores():
    tar, non = scores()
    start = np.array([0.5, -0.5])
    search = Search(each(lambda theta: (tar, non)), np.full(2, 6.0), PRIORS, np.full(2, 1e-4))
    np.testing.assert_array_equal(search(start)[0], start)


# -- trials


def sample_of(n_speakers=30, sessions=6, recordings=4, kinds=3, seed=0):
    """Recordings of one dimension, as a fold keeps them; the vector is the number of the recording."""
    rng = np.random.default_rng(seed)
    speaker, session, kind = [], [], []
    for i in range(n_speakers):
        for _ in range(rng.integers(1, sessions + 1) if i % 3 else sessions):
            n = rng.integers(1, recordings + 1)
            session += [len(set(session))] * n
            speaker += [i] * n
            kind += rng.integers(0, kinds, n).tolist()
    n = len(speaker)
    hashes = rng.permutation(1 << 20)[:n].astype(np.uint64)
    columns = (np.array(c, np.uint64) for c in (speaker, session))
    kinds = np.array(list("abc"))[kind]
    return Sample.join([Sample(np.arange(n)[:, None] * 1.0, kinds, *columns, hashes, max_recordings=n)])


def sets(trials):
    return [trials.row[trials.side == i] for i in range(trials.side.max() + 1)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("enrolment", [DEFAULT_ENROLMENT, ((1, 1),), ((2, 1), (4, None))])
def test_trials_are_between_sessions_of_their_speakers(seed, enrolment):
    s = sample_of(seed=seed)
    trials = make_trials(s, enrolment)
    enrol = sets(trials)
    assert all(len(set(s.speaker[rows])) == 1 and len(set(rows)) == len(rows) for rows in enrol)
    own = np.array([s.speaker[rows[0]] for rows in enrol])
    theirs = s.speaker[trials.test]
    side, test = trials.pairs.T
    assert (own[side[: trials.n_targets]] == theirs[test[: trials.n_targets]]).all()
    assert (own[side[trials.n_targets :]] != theirs[test[trials.n_targets :]]).all()
    assert trials.n_targets == (own[:, None] == theirs).sum()  # all of them
    assert len(set(map(tuple, trials.pairs.tolist()))) == len(trials.pairs)
    assert not set(s.session[trials.row]) & set(s.session[trials.test])
    assert len(set(trials.test)) == len(trials.test)
    a, b = np.unique(trials.session, return_inverse=True)[1], np.unique(s.session[trials.row], return_inverse=True)[1]
    np.testing.assert_array_equal(a, b)  # sessions are told apart as the sample does


def shapes(s, trials):
    """Sessions of each set, with the recordings of each."""
    return [np.unique(s.session[rows], return_counts=True)[1] for rows in sets(trials)]


def test_sets_have_the_form_that_is_asked_for():
    s = sample_of()
    half = {who: len(set(s.session[s.speaker == who])) // 2 for who in set(s.speaker)}
    for n, m in ((1, 1), (2, 1), (2, 2), (3, None)):
        trials = make_trials(s, ((n, m),))
        assert len(sets(trials)) > 10
        for rows, counts in zip(sets(trials), shapes(s, trials), strict=True):
            assert len(counts) == min(n, half[s.speaker[rows[0]]])  # all there are, where there are not so many
            for session, count in zip(np.unique(s.session[rows]), counts, strict=True):
                there = (s.session == session).sum()
                assert count == (there if m is None else min(m, there))
    six = make_trials(sample_of(sessions=6, recordings=1), ((2, 1),))
    assert {len(rows) for rows in sets(six)} == {1, 2}


def test_the_usual_mixture_has_all_its_forms():
    s = sample_of(60, 10, 5)
    found = {tuple(c.tolist()) for c in shapes(s, make_trials(s))}
    assert {(1,), (5,), (1, 1, 1)} <= found
    assert any(len(c) == 3 and max(c) == 3 for c in found)
    assert any(len(c) == 3 and max(c) > 3 for c in found)


@pytest.mark.parametrize("n_speakers", [3, 700, 1000, 1500])
def test_trials_keep_their_limits(n_speakers):
    s = sample_of(n_speakers, 8, 5)
    trials = make_trials(s)
    trials, _ = select_nontargets(trials, np.zeros(len(trials.pairs)), 10_000)
    enrol = sets(trials)
    assert len(set(s.speaker[trials.test])) == min(n_speakers, 1000)  # whoever is there takes part
    assert len(enrol) <= 3000
    assert len(trials.test) <= 3000
    assert len(trials.pairs) - trials.n_targets <= 10_000
    patterns = set()
    for rows in enrol:
        of = [tuple(sorted(s.kind[rows[s.session[rows] == c]].tolist())) for c in set(s.session[rows])]
        patterns.add(tuple(sorted(of)))
    assert len(patterns) <= 40


@pytest.mark.parametrize("most", [1, 7, 100])
def test_nontargets_are_as_many_as_are_allowed(most):
    s = sample_of(8)
    every = make_trials(s)
    n, scores = len(every.weight), np.random.default_rng(0).normal(size=len(every.pairs))
    trials, known = select_nontargets(every, scores, most)
    assert len(trials.pairs) - trials.n_targets == len(trials.weight) == min(most, n)
    assert trials.weight.sum() == pytest.approx(most)
    assert trials.pairs[: trials.n_targets].tolist() == every.pairs[: trials.n_targets].tolist()
    of = {tuple(pair): x for pair, x in zip(every.pairs.tolist(), scores, strict=True)}
    assert known.tolist() == [of[tuple(pair)] for pair in trials.pairs.tolist()]
    kept = sorted(known[trials.n_targets :])
    top = sorted(scores[every.n_targets :])[n - 2 * most // 3 :]
    assert kept[len(kept) - len(top) :] == top


def test_the_cost_of_selected_trials_is_that_of_all():
    rng = np.random.default_rng(0)
    every = make_trials(sample_of(40, 8, 3))
    x = rng.normal(-3, 2, len(every.pairs))
    tar, non = x[: every.n_targets] + 6, x[every.n_targets :]
    place = {tuple(pair): i for i, pair in enumerate(every.pairs.tolist())}
    trials, _ = select_nontargets(every, x + 0.1 * rng.normal(size=len(x)), len(non) // 8)
    chosen = x[[place[tuple(pair)] for pair in trials.pairs[trials.n_targets :].tolist()]]
    for found, want in zip(calibrate(tar, chosen, weight=trials.weight), calibrate(tar, non), strict=True):
        np.testing.assert_allclose(found, want, atol=2e-3)


def test_no_trials_where_there_can_be_none():
    s = sample_of()
    assert make_trials(None) is None
    assert make_trials(s.rows(np.zeros(0, np.int64))) is None
    assert make_trials(sample_of(sessions=1)) is None  # no speaker has two sessions
    assert make_trials(s.rows(np.flatnonzero(s.speaker == 0))) is None  # one speaker
    two = make_trials(s.rows(np.flatnonzero(s.speaker < 2)))
    assert 0 < two.n_targets < len(two.pairs)


# -- scores of held-out trials


def held_out_trials(stats, options=None):
    """Held-out trials as training makes them, by models of the other folds that have not been shrunk."""
    train = PLDA(shrinkage=0.0, tol=1e-4)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*no speaker has two sessions")  # in the other folds together
        folds = hold_out(stats, lambda part: train.fit_statistics(part).model_)
    return HeldOutCost(folds, guess_shrinkage(stats), options or TrialOptions())


def moved(plda, T, N, a, scales):
    """The parameters of a model after shrinking and scaling, by the formulas."""
    d = len(T)

    def size(A):
        return np.trace(np.linalg.solve(T, A)) / d

    loadings = []
    for L, share, scale in zip(
        (plda.speaker_loadings_, plda.session_loadings_), (a.speaker, a.session), scales, strict=True
    ):
        A = L @ L.T
        loadings.append(np.linalg.cholesky(scale * ((1 - share) * A + share * size(A) * T)))
    noise = np.linalg.inv(plda.noise_precision_).reshape(-1, d, d)
    mean = np.einsum("k,kij->ij", N / N.sum(), noise)
    for k in range(len(noise)):
        c = a.channel / (a.channel + (1 - a.channel) * N[k] / N.mean()) if len(noise) > 1 else 0.0
        noise[k] = (1 - c) * noise[k] + c * mean
        noise[k] = (1 - a.noise) * noise[k] + a.noise * size(noise[k]) * T
    return oracle.Params(plda.channel_means_, *loadings, np.linalg.inv(noise))


@pytest.mark.parametrize("K", [1, 2, 3])
def test_scores_are_dense_ratios_under_the_models_of_the_other_folds(K):
    rng = np.random.default_rng(K)
    data = oracle.random_data(rng, oracle.random_model(rng, 4, 3, 3, K), 24, (1, 5), (1, 4))
    a, scales = Shrinkage(0.4, 0.25, 0.15, 0.3 if K > 1 else 0.0), Scales(0.7, 1.6)
    stats = Statistics.from_arrays(data.X, data.speaker, data.session, data.kind, n_folds=3)
    found = held_out_trials(stats)
    tar, non = found.scores(lambda shrinker: scaled(shrinker(a), scales))[0]
    place = {x.tobytes(): i for i, x in enumerate(data.X)}
    at = [0, 0]
    for fold, trials in zip(stats.folds, [fold.trials for fold in found.trials.folds], strict=True):
        seen = ~np.isin(data.speaker, fold.speaker_ids)
        rest = data.rows(seen)
        plda = PLDA(shrinkage=0.0, tol=1e-4).fit(rest.X, rest.speaker, session=rest.session, channel=rest.kind)
        N = np.bincount(rest.kind, minlength=K).astype(float)
        about = rest.X - np.array([rest.X[rest.kind == k].mean(axis=0) for k in range(K)])[rest.kind]
        p = moved(plda, about.T @ about / len(about), N, a, scales)
        index = np.array([place[x.tobytes()] for x in fold.sample.X.astype(np.float64)])
        n = trials.n_targets
        for of_fold, values, pairs in ((0, tar, trials.pairs[:n]), (1, non, trials.pairs[n:])):
            for i in rng.choice(len(pairs), min(len(pairs), 15), replace=False):
                side, test = pairs[i]
                both = data.rows(np.append(index[trials.row[trials.side == side]], index[trials.test[test]]))
                assert len(set(both.speaker)) == 1 + of_fold
                assert both.session[-1] not in both.session[:-1]
                one = oracle.partition_log_likelihood(p, both, np.zeros(len(both)))
                two = oracle.partition_log_likelihood(p, both, np.arange(len(both)) == len(both) - 1)
                assert values[at[of_fold] + i] == pytest.approx(one - two, rel=1e-8, abs=1e-8)
            at[of_fold] += len(pairs)
    assert at == [len(tar), len(non)]
    assert found.cost(lambda shrinker: scaled(shrinker(a), scales)) == calibrate(tar, non)[0]


def test_kinds_that_are_inferred_do_not_shape_the_trials():
    """Models with more kinds or fewer are compared by the same trials; kinds that are known do shape them."""
    made = drawn(24, 5, seed=1)
    found = []
    for K, infer in ((1, True), (2, True), (3, True), (3, False)):
        stats = Statistics.from_arrays(made.X, made.speaker, made.session, np.arange(len(made.X)) % K, n_folds=2)
        trials = held_out_trials(stats, TrialOptions(infer_kinds=infer)).trials
        made_of = [(fold.trials.row, fold.trials.side, fold.trials.test, fold.trials.cells) for fold in trials.folds]
        found.append([[array.tolist() for array in fold] for fold in made_of])
    assert found[0] == found[1] == found[2] != found[3]


@pytest.fixture(scope="module")
def data():
    """Ragged sessions in random order, of three kinds of channels, far from 0."""
    made = drawn(45, 5, (1, 5), (1, 5), seed=2)
    rng = np.random.default_rng(0)
    order, channel = rng.permutation(len(made.X)), rng.choice(["mic", "tel", "web"], len(made.X), p=[0.5, 0.3, 0.2])
    shift = {"mic": 0.0, "tel": 3.0, "web": -2.0}
    X = (made.X + np.array([shift[c] for c in channel])[:, None]).astype(np.float32).astype(np.float64)
    return X[order], made.speaker[order], made.session[order], channel[order]


@pytest.fixture(scope="module")
def fitted(data):
    return PLDA(shrinkage="auto").fit(*data)


@pytest.fixture
def as_chosen(monkeypatch):
    """Nothing is taken back of what few speakers choose."""
    monkeypatch.setattr(decision, "share_kept", lambda errors: 1.0)


def test_what_is_chosen_is_what_the_trials_say(data, as_chosen):
    """Cost and calibration are those of the amounts that are kept, and these cost less than the start."""
    fitted = PLDA(shrinkage="auto").fit(*data)
    found = held_out_trials(Statistics.from_arrays(*data, n_folds=5))
    (scores,) = found.scores(lambda fold: scaled(fold(fitted.shrinkage_), fitted.scales_))
    value, (scale, offset) = calibrate(*scores, found.priors, found.trials.weight)
    assert fitted.cost_ == pytest.approx(value, abs=1e-9)
    assert (fitted.calibration_.scale_, fitted.calibration_.offset_) == pytest.approx((scale, offset), abs=1e-7)
    assert fitted.cost_ < found.cost(lambda fold: fold(found.start))
    assert fitted.cost_ < found.cost(lambda fold: fold.model)
    *_, (last, cost) = fitted.shrinkage_path_.items()
    assert (last, cost) == ((*fitted.shrinkage_, *fitted.scales_), fitted.cost_)
    assert all(a == round(a, 3) for a in last)


@pytest.mark.parametrize(("n", "d", "seed"), [(60, 8, 0), (45, 5, 2)])
def test_what_is_chosen_costs_least_with_the_penalty_for_going_far(n, d, seed, as_chosen):
    """The cost, and 0.015 / speakers times the squared distance from the guess in logits, ten times that in scales."""
    made = drawn(n, d, seed=seed)
    found = held_out_trials(Statistics.from_arrays(made.X, made.speaker, made.session, n_folds=3))
    choice = found.shrinkage(("speaker", "session", "noise"))
    start = np.append(logit(found.start[:3]), [0.0, 0.0])

    def value(theta):
        a, scales = Shrinkage(*expit(theta[:3]).tolist()), Scales(*np.exp(theta[3:]).tolist())
        far = np.array([0.015, 0.015, 0.015, 0.15, 0.15]) / n @ (theta - start) ** 2
        return found.cost(lambda shrinker: scaled(shrinker(a), scales)) + far

    chosen = np.append(logit(choice.shrinkage[:3]), np.log(choice.scales))
    best = minimize(value, chosen, method="Nelder-Mead", options={"xatol": 0.02, "fatol": 1e-6, "maxiter": 400})
    assert value(chosen) < best.fun + 2e-4  # with a penalty that is ten times as large: 9e-4
    assert choice.cost < found.cost(lambda shrinker: shrinker(found.start)) - 2e-3


def test_few_speakers_choose_little(data, fitted, monkeypatch):
    """Scales and calibration are kept as far as they gain more than a standard error, the shrinkages wholly."""
    errors = []
    monkeypatch.setattr(decision, "share_kept", lambda e: errors.append(e) or 1.0)
    whole = PLDA(shrinkage="auto").fit(*data)
    kept = share_kept(errors[0])
    assert 0 < kept < 1
    assert fitted.shrinkage_ == whole.shrinkage_
    assert np.log(fitted.scales_) == pytest.approx(kept * np.log(whole.scales_), abs=1e-3)
    assert np.log(fitted.calibration_.scale_) == pytest.approx(kept * np.log(whole.calibration_.scale_))
    assert fitted.calibration_.offset_ == pytest.approx(kept * whole.calibration_.offset_)


# -- nothing is found where nothing is


def shuffled(made, seed, among=None):
    """Speakers of the recordings after sessions (of the speakers in `among`) have been given out anew."""
    names, first = np.unique(made.session, return_index=True)
    owner = made.speaker[first]
    rows = np.arange(len(names)) if among is None else np.flatnonzero(np.isin(owner, among))
    owner[rows] = owner[np.random.default_rng(seed).permutation(rows)]
    return owner[np.searchsorted(names, made.session)]


@pytest.mark.filterwarnings("ignore:trials of held-out speakers cost")
@pytest.mark.parametrize("seed", range(3))
def test_labels_without_information_cost_one(seed):
    made = drawn(60, 6, seed=seed)
    plda = PLDA(shrinkage="auto").fit(made.X, shuffled(made, seed), session=made.session)
    assert 0.98 < plda.cost_ < 1.001
    assert PLDA(shrinkage="auto").fit(made.X, made.speaker, session=made.session).cost_ < 0.8


@pytest.mark.parametrize("fold", range(3))
def test_a_fold_whose_labels_are_shuffled_scores_nothing(fold):
    made = drawn(100, 8, seed=fold)
    folds = Statistics.from_arrays(made.X, made.speaker, made.session, n_folds=3).folds
    speaker = shuffled(made, fold, folds[fold].speaker_ids)
    found = held_out_trials(Statistics.from_arrays(made.X, speaker, made.session, n_folds=3))
    tar, non = found.scores(lambda shrinker: shrinker(Shrinkage(0.3, 0.1, 0.05)))[0]
    n_tar = np.cumsum([each.trials.n_targets for each in found.trials.folds])[:-1]
    n_non = np.cumsum([len(each.trials.weight) for each in found.trials.folds])[:-1]
    costs = [calibrate(*both)[0] for both in zip(np.split(tar, n_tar), np.split(non, n_non), strict=True)]
    assert costs[fold] > 0.98
    assert max(costs[:fold] + costs[fold + 1 :]) < 0.85


# -- where there are few speakers or sessions


def named(n_each, n_folds=5):
    """Names of speakers, so many in each fold."""
    names = np.array([f"s{i}" for i in range(400)])
    fold = lab.folds(names, n_folds)
    return np.concatenate([names[fold == i][:n] for i, n in enumerate(n_each)])


def of_speakers(names, sessions, recordings=2, d=3, seed=0):
    """Recordings of speakers with given numbers of sessions."""
    rng = np.random.default_rng(seed)
    p = oracle.random_model(rng, d, d, d)
    speaker = np.repeat(names, np.asarray(sessions) * recordings)
    session = np.char.add(speaker, np.array([f"-{i // recordings}" for i in range(len(speaker))]))
    return oracle.draw(rng, p, speaker, session)


def warned(made, **options):
    """The model, and the lines that it warns with."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        plda = PLDA(shrinkage="auto", **options).fit(made.X, made.speaker, session=made.session)
    return plda, [str(w.message) for w in found]


def assert_by_likelihood(made, *before, **options):
    """`before`: what any training of these data warns of."""
    plda, lines = warned(made, **options)
    *first, line = lines
    assert all(text in said for text, said in zip(before, first, strict=True))
    assert "no trials can be made of held-out speakers" in line
    assert "\n" not in line
    assert (plda.calibration_, plda.cost_, plda.scales_) == (None, None, Scales())
    other, lines = warned(made, criterion="likelihood", **options)
    assert lines == first
    assert plda.shrinkage_ == other.shrinkage_
    np.testing.assert_array_equal(plda.speaker_loadings_, other.speaker_loadings_)


def test_speakers_with_one_session_leave_the_choice_to_likelihood():
    assert_by_likelihood(drawn(30, 4, 1, 3), "no speaker has two sessions")


def test_a_speaker_in_each_fold_leaves_the_choice_to_likelihood():
    """There are no non-targets: a trial is between speakers of one fold."""
    assert_by_likelihood(of_speakers(named([1] * 5), 4))


@pytest.mark.parametrize("singles", [[0], [0, 3], [1, 2, 3, 4]])
def test_folds_without_trials_are_left_out(singles):
    names = named([4] * 5)
    fold = lab.folds(names, 5)
    plda, lines = warned(made := of_speakers(names, np.where(np.isin(fold, singles), 1, 4)))
    assert lines == []
    assert plda.cost_ < 1
    found = held_out_trials(Statistics.from_arrays(made.X, made.speaker, made.session, n_folds=5))
    assert len(found.trials.folds) == 5 - len(singles)
    assert found.trials.n_speakers == 4 * len(found.trials.folds)


def test_empty_folds_and_folds_of_one_speaker():
    plda, lines = warned(of_speakers(named([3, 0, 1, 0, 2]), 4))
    assert lines == []
    assert np.isfinite(plda.cost_)


@pytest.mark.parametrize("n_each", [[1, 1], [2, 0], [1, 0, 0, 0, 1]])
def test_two_speakers_are_too_few(n_each):
    plda, (line,) = warned(of_speakers(named(n_each, len(n_each)), 4), n_folds=len(n_each))
    assert line.startswith("too few speakers (2) to hold some out")
    assert (plda.calibration_, plda.cost_, plda.scales_) == (None, None, Scales())


@pytest.mark.parametrize("n_each", [[2, 2], [2, 1]])
def test_two_speakers_in_a_fold(n_each):
    made = of_speakers(named(n_each, 2), 6, recordings=3)
    plda, lines = warned(made, n_folds=2)
    if sum(n_each) < 4:
        assert lines[0].startswith("too few speakers (3)")
    else:
        assert lines == []
        assert np.isfinite([plda.cost_, plda.calibration_.scale_]).all()


def test_no_session_factors_leave_the_second_scale_alone():
    plda = PLDA(shrinkage="auto").fit(*drawn(30, 4, (2, 5), 1)[:3])
    assert plda.scales_.session == 1
    assert plda.shrinkage_.session == 0
    assert plda.cost_ < 1


# -- the same choice, however the recordings come


def assert_same_choice(one, other, bits=False):
    assert (one.shrinkage_, one.scales_) == (other.shrinkage_, other.scales_)
    a, b = ((p.calibration_.scale_, p.calibration_.offset_, p.cost_) for p in (one, other))
    assert a == b if bits else a == pytest.approx(b, abs=1e-7)


@pytest.mark.parametrize("seed", range(2))
def test_rows_in_any_order(data, fitted, seed):
    order = np.random.default_rng(seed).permutation(len(data[0]))
    assert_same_choice(PLDA(shrinkage="auto").fit(*(c[order] for c in data)), fitted)


def test_shards_that_cut_through_sessions(data, fitted):
    parts = np.array_split(np.random.default_rng(5).permutation(len(data[0])), 4)
    shards = [Statistics.from_arrays(*(c[p] for c in data), n_folds=5, close=False) for p in parts]
    assert_same_choice(PLDA(shrinkage="auto").fit_statistics(sum(shards).close()), fitted)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, data):
    """The recordings as archives and in one file, not in the order of the arrays, and their labels in a third one."""
    here = tmp_path_factory.mktemp("recordings")
    X, speaker, session, channel = data
    ids = np.array([f"utt{i:05}" for i in range(len(X))])
    write_labels(here / "labels.csv", LabelColumns(ids, speaker, session, channel))
    order = np.random.default_rng(7).permutation(len(X))
    write_embeddings(here / "x.npz", ids[order], X[order])
    (here / "arks").mkdir()
    for i, rows in enumerate(np.array_split(order[::-1], 3)):
        write_embeddings(here / f"arks/x.{i}.ark", ids[rows], X[rows])
    return here


@pytest.mark.parametrize("where", ["x.npz", "arks"])
def test_files(folder, fitted, where):
    recordings = read_recordings(folder / where, read_labels(folder / "labels.csv"))
    assert_same_choice(PLDA(shrinkage="auto").fit(recordings), fitted)


CHAINS = [{}, {"lda": 4, "center_by_channel": True}, {"length_norm": False}]


@pytest.mark.parametrize("options", CHAINS)
def test_a_chain_chooses_the_same_from_files_and_in_any_order(data, folder, options):
    backend = Backend(**options).fit(*data)
    order = np.random.default_rng(3).permutation(len(data[0]))
    assert_same_choice(Backend(**options).fit(*(c[order] for c in data)).plda_, backend.plda_)
    recordings = read_recordings(folder / "arks", read_labels(folder / "labels.csv"))
    assert_same_choice(Backend(**options).fit(recordings).plda_, backend.plda_)


def write_labels_without_channels(folder):
    """The labels, but for the kinds of channels."""
    lines = (folder / "labels.csv").read_text().splitlines()
    place = lines[0].split(",").index("channel")
    rest = [",".join(c for i, c in enumerate(line.split(",")) if i != place) for line in lines]
    (folder / "unlabelled.csv").write_text("\n".join(rest) + "\n")
    return read_labels(folder / "unlabelled.csv")


def test_a_cluster(data, folder, fitted):
    pytest.importorskip("distributed")
    from distributed import Client, LocalCluster

    from duoplda.engines import dask as engine

    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with LocalCluster(**options, silence_logs=50) as cluster, Client(cluster, set_as_default=False) as client:
        there = engine.recordings(folder / "arks", read_labels(folder / "labels.csv"), client=client)
        assert_same_choice(PLDA(shrinkage="auto").fit(there), fitted)
        assert_same_choice(Backend().fit(there).plda_, Backend().fit(*data).plda_)
        unlabelled = write_labels_without_channels(folder)
        there = engine.recordings(folder / "arks", unlabelled, client=client)
        learn = PLDA(shrinkage="auto", n_channels=2)
        assert_same_choice(replace(learn).fit(there), replace(learn).fit(*data[:3]))


def test_any_number_of_threads_chooses_the_same_bits():
    made = drawn(500, 64, (2, 4), (1, 3))
    stats = Statistics.from_arrays(made.X, made.speaker, made.session, n_folds=3)
    found = []
    for threads in (1, 3):
        with threadpool_limits(threads, user_api="blas"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has not converged, and there are few data
            found.append(PLDA(shrinkage="auto", max_iter=2).fit_statistics(replace(stats)))
    for other in found[1:]:
        assert_same_choice(other, found[0], bits=True)
        for name in ("mu", "V", "U", "W"):
            np.testing.assert_array_equal(getattr(other.ratio_model_, name), getattr(found[0].ratio_model_, name))


# -- what is chosen serves ratios only


def two_sides(plda, data, n=40):
    X, speaker, session, channel = data
    a, b = slice(0, n), slice(n, 2 * n)
    return plda.enroll(X[a], speaker[a], session[a], channel[a]), plda.enroll(X[b], np.arange(n), None, channel[b])


def unscaled(plda, speaker=1.0, session=1.0):
    """A model of the same parameters, with VV' and UU' scaled by hand."""
    loadings = plda.speaker_loadings_ * np.sqrt(speaker), plda.session_loadings_ * np.sqrt(session)
    return PLDA.from_parameters(
        plda.channel_means_, *loadings, plda.noise_precision_, plda.channels_, plda.channel_priors_
    )


def test_ratios_are_those_of_scaled_loadings(data, fitted):
    assert fitted.scales_ != Scales()
    hand = unscaled(fitted, *fitted.scales_)
    want = hand.llr(*two_sides(hand, data))
    sides = two_sides(fitted, data)
    np.testing.assert_allclose(fitted.llr(*sides, calibrated=False), want, rtol=1e-9, atol=1e-9)
    scale, offset = fitted.calibration_.scale_, fitted.calibration_.offset_
    np.testing.assert_allclose(fitted.llr(*sides), scale * want + offset, rtol=1e-9, atol=1e-9)
    pairs = np.array([[0, 3], [5, 7]])
    np.testing.assert_allclose(fitted.llr(*sides, pairs), (scale * want + offset)[*pairs.T], rtol=1e-9, atol=1e-9)
    _, best = fitted.top(*sides, 2, calibrated=False)
    np.testing.assert_allclose(best, np.sort(want, axis=0)[::-1][:2].T, rtol=1e-9, atol=1e-9)
    blocks = [block for _, block in fitted.llr_blocks(*sides, cells=100, calibrated=False)]
    np.testing.assert_allclose(np.concatenate(blocks, axis=1), want, rtol=1e-9, atol=1e-9)
    plain = unscaled(fitted)
    assert np.abs(plain.llr(*two_sides(plain, data)) - want).max() > 0.01


def test_densities_and_posteriors_are_without_scales(data, fitted):
    plain = unscaled(fitted)
    X, speaker, session, channel = data
    np.testing.assert_array_equal(fitted.log_likelihood(*data)[1], plain.log_likelihood(*data)[1])
    a, b = fitted.posterior(*data), plain.posterior(*data)
    np.testing.assert_array_equal(a.speaker_mean, b.speaker_mean)
    np.testing.assert_array_equal(a.session_mean, b.session_mean)
    np.testing.assert_array_equal(fitted.channel_posterior(X), plain.channel_posterior(X))
    np.testing.assert_array_equal(fitted.transform(X, channel), plain.transform(X, channel))
    np.testing.assert_array_equal(fitted.score(X, speaker, session, channel), plain.score(*data))


def test_given_shrinkage_and_likelihood_leave_ratios_as_they_are(data):
    for options in ({"shrinkage": 0.1}, {"shrinkage": "auto", "criterion": "likelihood"}, {}):
        plda = PLDA(**options).fit(*data)
        assert (plda.scales_, plda.calibration_, plda.cost_) == (Scales(), None, None)
        assert plda.ratio_model_ is plda.model_


def test_files_keep_what_was_chosen(data, fitted, tmp_path):
    backend = Backend().fit(*data)
    fitted.save(tmp_path / "plda")
    backend.save(tmp_path / "chain")
    for old, new in (
        (fitted, PLDA.load(tmp_path / "plda")),
        (fitted, Backend.load(tmp_path / "plda")),
        (backend, Backend.load(tmp_path / "chain")),
    ):
        a, b = (getattr(m, "plda_", m) for m in (old, new))
        assert a.cost_ is not None
        assert (a.shrinkage_, a.scales_, a.cost_) == (b.shrinkage_, b.scales_, b.cost_)
        assert isinstance(b.scales_, Scales)
        assert vars(a.calibration_) == vars(b.calibration_)
        for calibrated in (True, False):
            np.testing.assert_array_equal(*(m.llr(*two_sides(m, data), calibrated=calibrated) for m in (old, new)))
        old.llr(*two_sides(new, data))  # sides of the one are sides of the other


def test_sides_of_old_parameters_are_refused(data, fitted, tmp_path):
    fitted.save(tmp_path / "plda")
    plda = PLDA.load(tmp_path / "plda")
    sides = two_sides(plda, data)
    plda.llr(*sides)
    plda.speaker_loadings_ = plda.speaker_loadings_ * 1.01
    with pytest.raises(DuopldaError, match="different models"):
        plda.llr(*sides)
    hand = unscaled(plda, *plda.scales_)
    want = hand.llr(*two_sides(hand, data))
    np.testing.assert_allclose(plda.llr(*two_sides(plda, data), calibrated=False), want, rtol=1e-9, atol=1e-9)
    sides = two_sides(plda, data)
    plda.scales_ = Scales(2.0, 0.5)
    with pytest.raises(DuopldaError, match="different models"):
        plda.llr(*sides)


def test_a_calibration_of_ones_own_takes_the_place(data, fitted, tmp_path):
    fitted.save(tmp_path / "plda")
    plda = PLDA.load(tmp_path / "plda")
    tar, non = scores()
    plda.calibrate(np.concatenate([tar, non]), np.arange(len(tar) + len(non)) < len(tar))
    sides = two_sides(plda, data)
    raw = plda.llr(*sides, calibrated=False)
    np.testing.assert_allclose(plda.llr(*sides), plda.calibration_.transform(raw), rtol=1e-12)
    np.testing.assert_array_equal(raw, fitted.llr(*two_sides(fitted, data), calibrated=False))


# -- parameters


@pytest.mark.parametrize(
    "wrong",
    [
        *({"criterion": value} for value in ("cost", None, 1)),
        *({"enrolment": value} for value in ((), 3, (1, 1), ((0, 1),), ((1, 0),), ((1.5, 1),), ((1, 1, 1),), "auto")),
        *({"enrolment": value} for value in (((None, 1),), ((True, 1),), ((1, "all"),))),
        *({"priors": value} for value in ((), 0.0, 1, (0.5, 1.0), (0.5, float("nan")), "half", None, ((0.5,),))),
    ],
)
@pytest.mark.parametrize("shrinkage", ["auto", None])
def test_wrong_parameters_are_named(data, wrong, shrinkage):
    (name,) = wrong
    with pytest.raises(DuopldaError, match=f"^{name}="):
        PLDA(shrinkage=shrinkage, **wrong).fit(*data)
    with pytest.raises(DuopldaError, match=f"^{name}="):
        Backend(plda=PLDA(shrinkage=shrinkage, **wrong)).fit(*data)


def test_parameters_reach_the_trials(data, fitted):
    one = PLDA(shrinkage="auto", enrolment=[[1, 1]], priors=0.1).fit(*data)
    stats = Statistics.from_arrays(*data, n_folds=5)
    found = held_out_trials(stats, TrialOptions(((1, 1),), (0.1,)))
    assert one.cost_ == pytest.approx(found.cost(lambda fold: scaled(fold(one.shrinkage_), one.scales_)), abs=1e-9)
    assert one.cost_ != pytest.approx(fitted.cost_, abs=1e-3)


# -- what it is for


def test_few_speakers_are_told_apart_better_than_by_likelihood():
    """Cllr of new speakers, three recordings of a session against one of another."""
    bits = []
    for seed in range(3):
        train = drawn(30, 24, seed=seed)
        test = make_recordings(200, 2, 3, model=train.model, seed=seed + 100)
        first, second = (np.char.endswith(test.session, end) for end in ("-0", "-1"))
        found = []
        for criterion in ("decision", "likelihood"):
            plda = PLDA(shrinkage="auto", criterion=criterion).fit(train.X, train.speaker, session=train.session)
            a = plda.enroll(test.X[first], test.speaker[first], test.session[first])
            b = plda.enroll(test.X[second], np.arange(second.sum()))
            same = a.ids[:, None] == test.speaker[second][b.ids]
            found.append(cllr(plda.llr(a, b).ravel(), same.ravel()))
        bits.append(found)
    assert np.mean(bits, axis=0)[0] < 0.98 * np.mean(bits, axis=0)[1]


def even(n, sessions=8, recordings=2):
    speaker = np.repeat(np.arange(n), sessions * recordings).astype(np.uint64)
    session = np.repeat(np.arange(n * sessions), recordings).astype(np.uint64)
    hashes = np.random.default_rng(0).permutation(len(speaker)).astype(np.uint64)
    return Sample(np.zeros((len(speaker), 1)), np.full(len(speaker), ""), speaker, session, hashes, len(speaker))


@pytest.mark.parametrize("criterion", ["decision", "likelihood"])
def test_lda_to_as_many_dimensions_as_all_speakers_allow(criterion):
    """Without a fold there are too few speakers for it: trials between them are then no test, and that is said."""
    made = make_recordings(20, (2, 5), (2, 4), n_dimensions=24, n_speaker_factors=12, n_session_factors=20, seed=1)
    for lda in (12, 16):
        backend = Backend(lda=lda, plda=PLDA(shrinkage="auto", criterion=criterion))
        told = criterion == "decision" and lda == 16
        words = "without the speakers of one fold, .* steps before held-out trials have seen their speakers"
        with pytest.warns(UserWarning, match=words) if told else nullcontext():
            backend.fit(made.X, made.speaker, session=made.session)


def test_a_kind_that_one_fold_has_alone():
    made = make_recordings(30, (2, 5), (2, 4), n_dimensions=8, n_speaker_factors=5, n_session_factors=6, seed=1)
    first = Statistics.from_arrays(made.X, made.speaker, made.session, n_folds=5).folds[0].speaker_ids
    rare = np.isin(made.speaker, first) & (np.arange(len(made.X)) % 3 == 0)
    channel = np.where(rare, "rare", "usual")
    plda = PLDA(shrinkage="auto").fit(made.X + 30 * rare[:, None], made.speaker, session=made.session, channel=channel)
    assert plda.calibration_.scale_ > 0.5  # 1.18 where the kinds have one mean; 0.011 here


@pytest.mark.parametrize("n", [200, 1000])
def test_nontargets_take_all_tests_in_turn(n):
    trials = make_trials(even(n))
    trials, _ = select_nontargets(trials, np.zeros(len(trials.pairs)), 30_000)
    assert len(np.unique(trials.pairs[trials.n_targets :, 1])) == len(trials.test)


def test_a_calibration_does_not_turn_ratios_around():
    made = make_recordings(60, (2, 4), (1, 3), n_dimensions=4, n_speaker_factors=3, n_session_factors=3, seed=0)
    with pytest.warns(UserWarning, match="are the labels of speakers right"):
        plda = PLDA(shrinkage="auto").fit(made.X, shuffled(made, 1), session=made.session)
    assert plda.calibration_.scale_ >= 0
    assert plda.cost_ == pytest.approx(1, abs=0.02)


def test_a_gain_of_one_and_a_half_standard_errors_is_chance():
    """It is common where nothing is gained; beyond two standard errors over the speakers it is not."""
    scatter = np.tile([-1.0, 1.0], 50)  # the gains of 100 speakers, whose sum has a standard error of 10
    for errors, more in ((-3.0, False), (0.5, False), (1.5, False), (2.5, True)):
        gains = scatter + errors / 10
        assert gains_more_than_chance(np.zeros(100), -gains) is more
