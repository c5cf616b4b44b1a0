"""The mathematics of adaptation: what the target tells of each level, how covariances move, and what others do."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import eigh, sqrtm
from scipy.optimize import minimize, minimize_scalar
from scipy.special import entr, logit

import oracle
from duoplda import PLDA, DuopldaError, Recordings, Statistics
from duoplda.datasets import draw
from duoplda.model import adaptation as ad
from duoplda.model.adaptation import Levels, SessionShares, Shares, Target
from duoplda.model.parameters import Model, checked
from duoplda.selection.adaptation import OFFSET_LIMIT, SCALE_LIMITS, bounded, moves
from duoplda.selection.cost import best_offset, cost
from test_statistics import assert_equal_statistics

KINDS = np.array(["mic", "room", "tel"])
LEVELS = ("noise", "speaker", "session", "both", "below")
# dimensions, speaker factors, session factors, kinds
SHAPES = {"two-source": (5, 5, 5, 1), "low rank": (6, 2, 1, 1), "plain": (5, 4, 0, 1), "kinds": (4, 4, 4, 3)}
SHAPES |= {"plain kinds": (4, 3, 0, 2), "kinds of low rank": (5, 2, 2, 2)}


def model_of(p):
    K = len(p.mu)
    return checked(p.mu, p.V, p.U, p.W, KINDS[:K]) if K > 1 else checked(p.mu[0], p.V, p.U, p.W[0])


def statistics(data, K=1, **options):
    return Statistics.from_arrays(data.X, data.speaker, data.session, KINDS[data.kind] if K > 1 else None, **options)


def near(rng, p):
    """The model with means of its kinds that are not far from each other."""
    return replace(p, mu=p.mu[:1] + rng.normal(size=p.mu.shape))


def case(name, seed=0, n_speakers=7, **sizes):
    """A source, its levels and ragged data of another model of the same shape, far from 0 and from the source."""
    rng = np.random.default_rng(seed)
    d, ny, nx, K = SHAPES[name]
    source, other = (near(rng, oracle.random_model(rng, d, ny, nx, K)) for _ in range(2))
    data = oracle.random_data(rng, other, n_speakers, **sizes)
    priors = np.arange(1.0, K + 1) / sum(range(1, K + 1))
    return source, Levels(model_of(source), priors), data


# -- dense matrices, obviously right


def covariances(p):
    """B, S and the noises (K, d, d)."""
    return p.V @ p.V.T, p.U @ p.U.T, np.linalg.inv(p.W)


def root(A):
    """The symmetric square root; from a singular value decomposition, where there are directions without variance."""
    u, s, _ = np.linalg.svd(A)
    if s[-1] > 1e-10 * s[0]:
        return np.real(sqrtm(A))
    return (u * np.sqrt(np.where(s > 1e-10 * max(s[0], 1e-300), s, 0))) @ u.T


def through(new, old):
    """new^1/2 old^-1/2."""
    return root(new) @ np.linalg.pinv(root(old), rcond=1e-8)


def nearest(A):
    """The nearest covariance: (A + |A|) / 2."""
    return (A + np.real(root(A @ A))) / 2


def scatter(rows):
    return sum(np.outer(x, x) for x in rows)


def direct(data, K=1):
    """The analysis of variance, speaker by speaker and session by session; what is None cannot be told apart."""
    X, N, d = data.X.copy(), len(data.X), data.X.shape[1]
    for k in range(K):
        if (data.kind == k).any():
            X[data.kind == k] -= data.X[data.kind == k].mean(axis=0)
    within, session, speaker = np.zeros((3, d, d))
    a = b = e = 0.0
    speakers, sessions = np.unique(data.speaker), np.unique(data.session)
    for i in speakers:
        own = X[data.speaker == i]
        speaker += len(own) * np.outer(own.mean(axis=0), own.mean(axis=0))
        e += len(own) - len(own) ** 2 / N
        for j in np.unique(data.session[data.speaker == i]):
            rows = X[data.session == j]
            within += scatter(rows - rows.mean(axis=0))
            session += len(rows) * scatter([rows.mean(axis=0) - own.mean(axis=0)])
            a += len(rows) - len(rows) ** 2 / len(own)
            b += len(rows) ** 2 / len(own) - len(rows) ** 2 / N
    f, h, m = N - len(sessions), len(sessions) - len(speakers), len(speakers) - 1
    found = dict.fromkeys(LEVELS)
    found["total"] = scatter(X) / N
    if f:
        found["noise"] = within / f
        if h:
            found["session"] = nearest((session - h * within / f) / a)
        if h + m:
            found["both"] = nearest((session + speaker - (h + m) * within / f) / (a + b))
    elif h:
        found["below"] = session / h
    if h and m:
        rest = m * within / f + b * found["session"] if f else m * session / h
        found["speaker"] = nearest((speaker - rest) / e)
    return found


def assert_levels(target, wanted):
    for level, C in wanted.items():
        found = getattr(target, level)
        assert (found is None) == (C is None), level
        if C is not None:
            np.testing.assert_allclose(found, C, rtol=1e-8, atol=1e-9 * np.trace(wanted["total"]), err_msg=level)


# -- what the target tells


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_analysis_of_variance_of_the_target(name, seed):
    K = SHAPES[name][3]
    _, _, data = case(name, seed)
    target, wanted = Target.of(statistics(data, K)), direct(data, K)
    assert_levels(target, wanted)
    means = [data.X[data.kind == k].mean(axis=0) for k in range(K)]
    np.testing.assert_allclose(target.means, means, rtol=1e-12)
    assert target.counts.tolist() == np.bincount(data.kind, minlength=K).tolist()


def test_levels_that_labels_do_not_tell_apart():
    rng = np.random.default_rng(0)
    X, N = rng.normal(size=(24, 3)) + 50, np.arange(24)
    told = {
        "all": (N // 6, N // 2, {"noise", "session", "speaker", "both"}),
        "no copies": (N // 6, N, {"below", "speaker"}),
        "one session for each speaker": (N // 3, N // 3, {"noise", "both"}),
        "neither": (N, N, set()),
        "one speaker": (0 * N, N // 2, {"noise", "session", "both"}),
        "one speaker, no copies": (0 * N, N, {"below"}),
        "one session": (0 * N, 0 * N, {"noise"}),
    }
    for what, (speaker, session, levels) in told.items():
        data = oracle.Data(X, speaker, session, 0 * N)
        target = Target.of(statistics(data))
        assert {level for level in LEVELS if getattr(target, level) is not None} == levels, what
        assert_levels(target, direct(data))


def test_estimates_are_unbiased():
    """The mean over many draws is within four standard errors of the truth, entry by entry; nothing was clipped."""
    rng = np.random.default_rng(1)
    noise = np.array([[0.3, 0.1], [0.1, 0.2]])
    p = oracle.Params(np.array([[70.0, -40.0]]), np.array([[3.0, 0.5], [-1.0, 2.0]]), np.diag([1.5, 1.0]), np.zeros(0))
    model = checked(p.mu[0], p.V, p.U, np.linalg.inv(noise))
    labels = oracle.ragged_labels(rng, 24, (1, 4), (1, 4))
    found = {level: [] for level in ("speaker", "session", "noise", "both")}
    code = [np.unique(c, return_inverse=True)[1] for c in labels[:2]]
    for _ in range(400):
        y, x = rng.normal(size=(len(set(labels[0])), 2)), rng.normal(size=(len(set(labels[1])), 2))
        e = rng.multivariate_normal([0, 0], noise, len(labels[0]))
        X = model.mu[0] + y[code[0]] @ p.V.T + x[code[1]] @ p.U.T + e
        target = Target.of(statistics(oracle.Data(X, *labels)))
        for level, all_ in found.items():
            all_.append(getattr(target, level))
            assert np.linalg.eigvalsh(all_[-1])[0] > 0
    truth = {"speaker": p.V @ p.V.T, "session": p.U @ p.U.T, "noise": noise}
    for level, C in truth.items():
        off = np.mean(found[level], axis=0) - C
        assert (np.abs(off) < 4 * np.std(found[level], axis=0) / 20).all(), level
        assert np.std(found[level], axis=0).max() < 0.5 * np.trace(C), level  # so that the test can fail


def test_more_speakers_tell_more():
    rng = np.random.default_rng(2)
    p = oracle.random_model(rng, 6, 6, 6)
    errors = []
    for n in (40, 640):
        X, speaker, session, _ = draw(model_of(p), n, (1, 5), (1, 5), 3)
        target = Target.of(Statistics.from_arrays(X, speaker, session))
        B, S, N = covariances(p)
        pairs = ((target.speaker, B), (target.session, S), (target.noise, N[0]), (target.both, B + S))
        errors.append([np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs])
    assert (np.array(errors[1]) < np.array([0.15, 0.1, 0.05, 0.1])).all()
    assert (np.array(errors[1]) < 0.5 * np.array(errors[0])).all()


def test_numbers_of_speakers_and_usual_shares():
    _, _, data = case("two-source", 3)
    stats, d = statistics(data), 5
    sessions = [len(set(data.session[data.speaker == i])) for i in set(data.speaker)]
    M = sum(sessions) ** 2 / sum(n * n for n in sessions)
    assert ad.effective_speakers(stats) == pytest.approx(M, rel=1e-14)
    h, f = sum(sessions) - len(sessions), len(data) - sum(sessions)
    wanted = M / (M + 40), min(0.5, h / (h + d)), min(0.5, f / (f + d))
    assert ad.usual_shares(stats) == pytest.approx(wanted, rel=1e-14)
    few = statistics(data.rows(np.unique(data.session, return_index=True)[1]))  # no copies: noise is as sessions
    assert few.n_recordings == few.n_sessions
    shares = ad.usual_shares(few)
    assert shares.noise == shares.session > 0
    equal = Statistics.from_arrays(np.eye(6), np.arange(6) // 2)
    assert ad.effective_speakers(equal) == pytest.approx(3)


def test_levels_that_move_have_the_odds_of_the_usual_shares():
    _, _, data = case("two-source", 3)
    stats = statistics(data)
    usual = ad.usual_shares(stats)
    assert ad.Move(True, True, True).shares(stats) == pytest.approx(usual)
    assert ad.Move(False, True, False).shares(stats) == pytest.approx((0, usual.session, 0))
    for share, more in zip(usual, ad.Move(True, True, True, odds=4.0).shares(stats), strict=True):
        assert more / (1 - more) == pytest.approx(4 * share / (1 - share))
    sessions = ad.Move(True, True, True).session_shares(stats)
    assert sessions == pytest.approx((usual.noise, min(usual.speaker, 0.5) / 2))  # half as far above the noise


def test_levels_that_are_not_told_apart_move_together():
    N = np.arange(24)
    X = np.random.default_rng(0).normal(size=(24, 3))
    told = {
        "all": (N // 6, N // 2, {"000", "100", "010", "001", "110", "101", "011", "111"}),
        "no copies": (N // 6, N, {"000", "100", "011", "111"}),
        "one session for each speaker": (N // 3, N // 3, {"000", "110", "001", "111"}),
        "neither": (N, N, {"000", "111"}),
    }
    for what, (speaker, session, wanted) in told.items():
        found = moves(Target.of(statistics(oracle.Data(X, speaker, session, 0 * N))))
        assert found[0] == (False, False, False, 1.0)
        assert {"".join(str(int(level)) for level in move[:3]) for move in found} == wanted, what


def test_how_far_the_mean_goes():
    assert ad.centring(2.0, 0.1) == pytest.approx(1 - 1.4 * 0.05)
    assert ad.centring(1.0, 1.0) == 0.0 == ad.centring(0.0, 1.0)
    assert ad.centring(1e9, 1.0) > 0.999


def test_how_far_the_mean_of_a_few_speakers_scatters():
    """The weighted squares of their deviations estimate it without bias, however many recordings each has."""
    rng = np.random.default_rng(4)
    speaker = np.repeat(np.arange(6), [1, 2, 3, 4, 8, 2])
    estimates, means = [], []
    for _ in range(3000):
        X = 5 + rng.normal(size=(6, 1))[speaker] * 2 + 0.1 * rng.normal(size=(len(speaker), 1))
        deviations, weights = ad.scatter_of_mean(Statistics.from_arrays(X, speaker))
        estimates.append(weights @ (deviations**2)[:, 0])
        means.append(X.mean())
    assert np.mean(estimates) == pytest.approx(np.var(means), rel=0.1)


# -- how the covariances move


def noise_of(p, data, K, known):
    """What the source's noise would be of such recordings: the mean over the kinds that they have, or all of them."""
    N = np.linalg.inv(p.W)
    if known:
        return sum((data.kind == k).mean() * N[k] for k in range(K))
    priors = np.arange(1.0, K + 1) / sum(range(1, K + 1))
    mean = sum(priors[k] * p.mu[k] for k in range(K))
    return sum(priors[k] * (N[k] + np.outer(p.mu[k] - mean, p.mu[k] - mean)) for k in range(K))


def moved_noise(p, target, mean_noise, share):
    A = through(target["noise"], mean_noise)
    return np.stack([(1 - share) * N + share * A @ N @ A.T for N in np.linalg.inv(p.W)])


def assert_model(model, B, S, N, mu=None, rtol=1e-7):
    found = covariances(model)
    for what, a, b in zip("BSN", found, (B, S, N), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * 1e-2 * max(np.abs(b).max(), 1e-300), err_msg=what)
    if mu is not None:
        np.testing.assert_allclose(model.mu, mu, rtol=1e-12)


def fitted(levels, data, known=True):
    K = levels.model.K if known else 1
    return levels.fitting(statistics(data, K))


@pytest.mark.parametrize("known", [True, False], ids=["kinds known", "kinds not known"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("shares", [Shares(0.3, 0.4, 0.2), Shares(1, 1, 1), Shares(0, 0.5, 0), Shares(0.5, 0, 0.9)])
def test_labelled(name, known, shares):
    p, levels, data = case(name, 1)
    (_, _, nx, K), (B, S, N), k = SHAPES[name], covariances(p), 0.7
    stats = fitted(levels, data, known)
    model = ad.labelled(levels, Target.of(stats), shares, k)
    if not nx:  # each recording is a session
        data = replace(data, session=np.arange(len(data)))
    if not known:
        data = replace(data, kind=0 * data.kind)
    target, mean_noise = direct(data, K), noise_of(p, data, K, known and K > 1)
    wanted_B = (1 - shares.speaker) * B + shares.speaker * target["speaker"]
    if nx:
        wanted_S = (1 - shares.session) * S + shares.session * target["session"]
        wanted_N = moved_noise(p, target, mean_noise, shares.noise)
    else:  # what is below the speaker is the noise
        wanted_S = S
        A = through((1 - shares.noise) * mean_noise + shares.noise * target["below"], mean_noise)
        wanted_N = A @ N @ A.T
    assert_model(model, wanted_B, wanted_S, wanted_N, means(p, levels, data, K, known, k))
    if not shares.speaker:
        np.testing.assert_array_equal(model.V, levels.model.V)
    if nx and not shares.session:
        np.testing.assert_array_equal(model.U, levels.model.U)
    if not shares.noise:
        np.testing.assert_array_equal(model.W, levels.model.W)


def means(p, levels, data, K, known, k):
    if not known and K > 1:
        return p.mu + k * (data.X.mean(axis=0) - levels.priors @ p.mu)
    return np.stack([p.mu[i] + k * (data.X[data.kind == i].mean(axis=0) - p.mu[i]) for i in range(K)])


@pytest.mark.parametrize("known", [True, False], ids=["kinds known", "kinds not known"])
@pytest.mark.parametrize("name", ["two-source", "low rank", "kinds", "kinds of low rank"])
@pytest.mark.parametrize(("noise", "both"), [(0.5, 0.25), (0.0, 0.3), (0.4, 0.0), (1.0, 1.0)])
def test_sessions_alone(name, known, noise, both):
    """B + S is mixed with the target's sum, and each keeps its part of it."""
    p, levels, data = case(name, 2)
    K, (B, S, _), k = SHAPES[name][3], covariances(p), 0.4
    unknown = replace(data, speaker=data.session)  # whoever speaks: of each session nothing but its name is known
    stats = fitted(levels, unknown, known)
    model = ad.between(levels, Target.of(stats), SessionShares(noise, both), k)
    if not known:
        unknown = replace(unknown, kind=0 * data.kind)
    target, mean_noise = direct(unknown, K), noise_of(p, unknown, K, known and K > 1)
    mixed = (1 - both) * (B + S) + both * target["both"]
    A = through(mixed, B + S) if both else np.eye(len(B))
    wanted_N = moved_noise(p, target, mean_noise, noise)
    assert_model(model, A @ B @ A.T, A @ S @ A.T, wanted_N, means(p, levels, unknown, K, known, k))
    if name in ("two-source", "kinds"):  # of full rank: the two still add up
        np.testing.assert_allclose(model.V @ model.V.T + model.U @ model.U.T, mixed, rtol=1e-8, atol=1e-9)
    if not both:
        np.testing.assert_array_equal(model.V, levels.model.V)
        np.testing.assert_array_equal(model.U, levels.model.U)


@pytest.mark.parametrize("known", [True, False], ids=["kinds known", "kinds not known"])
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("share", [0.5, 1.0, 0.0])
def test_through_the_total_covariance(name, known, share):
    """All levels move by one map, and add up to the mixture. With share 1 this is CORAL: all is as in the target."""
    p, levels, data = case(name, 3)
    K, (B, S, N), k = SHAPES[name][3], covariances(p), 1.0
    model = ad.through_total(levels, Target.of(fitted(levels, data, known)), share, k)
    if not known:
        data = replace(data, kind=0 * data.kind)
    mean_noise = noise_of(p, data, K, known and K > 1)
    total = B + S + mean_noise
    mixed = (1 - share) * total + share * direct(data, K)["total"]
    A = through(mixed, total) if share else np.eye(len(B))
    assert_model(model, A @ B @ A.T, A @ S @ A.T, A @ N @ A.T, means(p, levels, data, K, known, k))
    new = replace_noise(model, levels, data, K, known)
    if share and (known or K == 1):
        np.testing.assert_allclose(new, mixed, rtol=1e-8, atol=1e-9)
    if not share:
        for name in ("V", "U", "W"):
            np.testing.assert_array_equal(getattr(model, name), getattr(levels.model, name))


def replace_noise(model, levels, data, K, known):
    B, S, N = covariances(model)
    shares = [(data.kind == k).mean() for k in range(K)] if known else levels.priors
    return B + S + sum(s * n for s, n in zip(shares, N, strict=True))


def grown_target(levels, *, session=1.0, noise=1.0, labels=True):
    """What an endless target would tell that has the model's levels, of which some have grown."""
    B, S, N = levels.B, session * levels.S, noise * levels.N[0]
    told = {"speaker": B, "session": S} if labels else {}
    return Target(levels.mu, np.ones(1), B + S + N, N, both=B + S, **told)


@pytest.mark.parametrize("labels", [True, False])
def test_levels_are_as_large_as_those_of_the_target(labels):
    """Where they are larger by more than chance; the speakers never are."""
    _, levels, _ = case("two-source", 5)
    grown = levels.grown(grown_target(levels, session=3.0, noise=4.0, labels=labels))
    np.testing.assert_allclose(grown.S, 3 * levels.S, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(grown.N, 4 * levels.N, rtol=1e-8, atol=1e-10)
    np.testing.assert_array_equal(grown.model.V, levels.model.V)
    smaller = grown_target(levels, session=1.9, noise=0.3, labels=labels)
    assert levels.grown(smaller) is levels


def test_where_only_the_total_is_known_sizes_go_halfway():
    _, levels, _ = case("two-source", 5)
    total = replace(grown_target(levels, session=3.0, noise=3.0, labels=False), noise=None, both=None)
    grown = levels.grown(total)
    np.testing.assert_allclose(grown.S, 2 * levels.S, rtol=1e-8, atol=1e-10)
    model = ad.through_growing_total(levels, total, 0.3, 0.0)
    B, S, N = covariances(model)
    assert np.trace(B) <= np.trace(levels.B) * (1 + 1e-9)
    assert np.trace(S) > 2 * np.trace(levels.S)
    assert np.trace(N[0]) > 2 * np.trace(levels.N[0])


def test_sessions_take_what_grows():
    """Where the sum of both levels grows, the speakers differ as before; where it shrinks, they differ less."""
    _, levels, _ = case("two-source", 6)
    more = np.random.default_rng(6).standard_normal((len(levels.B), 2))
    shares = SessionShares(0.0, 0.4)
    target = grown_target(levels, labels=False)
    target = replace(target, both=target.both + more @ more.T)
    B, S, _ = covariances(ad.between(levels, target, shares, 0.0, sessions_grow=True))
    np.testing.assert_allclose(B, levels.B, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(S, levels.S + 0.4 * more @ more.T, rtol=1e-7, atol=1e-9)
    assert np.trace(covariances(ad.between(levels, target, shares, 0.0))[0]) > 1.05 * np.trace(B)
    B, S, _ = covariances(ad.between(levels, replace(target, both=0.5 * levels.B), shares, 0.0, sessions_grow=True))
    np.testing.assert_allclose(B + S, 0.6 * (levels.B + levels.S) + 0.2 * levels.B, rtol=1e-7, atol=1e-9)
    assert np.trace(B) < np.trace(levels.B)
    B, S, _ = covariances(ad.below_growing(levels, replace(target, both=5 * target.both), shares, 0.0))
    assert np.trace(B) < 1.01 * np.trace(levels.B)
    assert np.trace(S) > 2 * np.trace(levels.S)


def test_what_labels_leave_together_moves_together():
    """Speakers with one session each; recordings without copies; and neither."""
    p, levels, data = case("two-source", 5, sessions=(3, 3), recordings=(2, 3))
    B, S, N = covariances(p)
    shares = Shares(0.6, 0.4, 0.3)
    first = np.isin(data.session, [data.session[data.speaker == i][0] for i in np.unique(data.speaker)])
    one = data.rows(first)
    model = ad.labelled(levels, Target.of(statistics(one)), shares, 0.0)
    target = direct(one)
    A = through(0.5 * (B + S) + 0.5 * target["both"], B + S)  # speakers count for half at most
    assert_model(model, A @ B @ A.T, A @ S @ A.T, 0.7 * N + 0.3 * target["noise"])

    single = data.rows(np.unique(data.session, return_index=True)[1])
    model = ad.labelled(levels, Target.of(statistics(single)), shares, 0.0)
    target = direct(single)
    A = through(0.6 * (S + N[0]) + 0.4 * target["below"], S + N[0])
    assert_model(model, 0.4 * B + 0.6 * target["speaker"], A @ S @ A.T, A @ N @ A.T)

    neither = data.rows(np.unique(data.speaker, return_index=True)[1])
    model = ad.labelled(levels, Target.of(statistics(neither)), shares, 0.0)
    T = B + S + N[0]
    A = through(0.5 * T + 0.5 * direct(neither)["total"], T)
    assert_model(model, A @ B @ A.T, A @ S @ A.T, A @ N @ A.T)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_kinds_that_the_target_does_not_have(missing):
    """They move as the others do on average, and their noise with them."""
    p, levels, data = case("kinds", 6)
    data = data.rows(np.flatnonzero(data.kind != missing))
    stats = levels.fitting(Statistics.from_arrays(data.X, data.speaker, data.session, KINDS[data.kind]))
    assert stats.kinds.tolist() == KINDS.tolist()
    assert stats.N[missing] == 0
    target = Target.of(stats)
    np.testing.assert_allclose(target.noise, direct(data, 3)["noise"], rtol=1e-8)
    model = ad.labelled(levels, target, Shares(0.2, 0.2, 0.5), 0.8)
    steps = {k: data.X[data.kind == k].mean(axis=0) - p.mu[k] for k in range(3) if k != missing}
    average = sum((data.kind == k).mean() * step for k, step in steps.items())
    mu = np.stack([p.mu[k] + 0.8 * steps.get(k, average) for k in range(3)])
    np.testing.assert_allclose(model.mu, mu, rtol=1e-12)
    N = np.linalg.inv(p.W)
    mean_noise = sum((data.kind == k).mean() * N[k] for k in steps)
    A = through(direct(data, 3)["noise"], mean_noise)
    np.testing.assert_allclose(np.linalg.inv(model.W), 0.5 * N + 0.5 * A @ N @ A.T, rtol=1e-7, atol=1e-9)


def test_kinds_of_other_names_are_one_kind():
    p, levels, data = case("kinds", 7)
    others = Statistics.from_arrays(data.X, data.speaker, data.session, np.array(["x", "mic", "y"])[data.kind])
    for stats in (others, statistics(data)):
        found = levels.fitting(stats)
        assert found.K == 1
        np.testing.assert_allclose(Target.of(found).total, np.cov(data.X.T, bias=True), rtol=1e-9)
    one = ad.fitted_to(levels.model, found, levels.priors)
    np.testing.assert_allclose(one.mu[0], levels.priors @ p.mu, rtol=1e-13)
    np.testing.assert_allclose(np.linalg.inv(one.W[0]), noise_of(p, data, 3, False), rtol=1e-9)
    same = ad.fitted_to(levels.model, levels.fitting(statistics(data, 3)), levels.priors)
    for name in ("mu", "V", "U", "W", "kinds"):
        np.testing.assert_array_equal(getattr(same, name), getattr(levels.model, name))


def test_the_target_of_another_dimension():
    _, levels, _ = case("two-source")
    with pytest.raises(DuopldaError, match="the target has 3 dimensions, the model 5"):
        levels.fitting(Statistics.from_arrays(np.eye(3), [1, 1, 2]))


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(*(st.integers(1, 4) for _ in range(2)), st.integers(0, 4), st.integers(1, 3)),
    st.tuples(*(st.integers(1, 5) for _ in range(3))),
    st.tuples(*(st.sampled_from([0.0, 0.2, 1.0]) for _ in range(3))),
    st.sampled_from(["", "a constant direction", "recordings all alike", "tiny", "huge"]),
    st.booleans(),
    st.integers(0, 9),
)
def test_always_positive_definite(shape, sizes, shares, what, known, seed):
    """Whatever the target: few recordings, none of them different, weight 1. Ratios are numbers, too."""
    rng = np.random.default_rng(seed)
    d, ny, nx, K = shape
    source = oracle.random_model(rng, d, min(ny, d), min(nx, d), K)
    data = oracle.random_data(rng, source, sizes[0], (1, sizes[1]), (1, sizes[2]))
    X = data.X + 20
    if what == "a constant direction":
        X[:, 0] = 7
    elif what == "recordings all alike":
        X[:] = X[0]
    elif what in ("tiny", "huge"):
        X *= 1e-4 if what == "tiny" else 1e4  # beyond a million either way the target is refused
    levels = Levels(model_of(source), np.full(K, 1 / K))
    target = Target.of(fitted(levels, replace(data, X=X), known))
    models = [
        ad.labelled(levels, target, Shares(*shares), 1.0),
        ad.between(levels, target, SessionShares(*shares[:2]), 1.0),
        ad.through_total(levels, target, shares[0], 1.0),
        ad.kaldi(levels, target, *shares),
    ]
    for model in models:
        for part in (model.mu, model.V, model.U, model.W):
            assert np.isfinite(part).all()
        for W in model.W:
            np.testing.assert_array_equal(W, W.T)
            assert np.linalg.eigvalsh(W / np.trace(W))[0] > 0
            np.linalg.cholesky(W)
        plda = PLDA.from_parameters(*(getattr(model, name) for name in ("mu", "V", "U", "W")), model.kinds)
        sides = plda.enroll(model.mu.mean(axis=0) + rng.normal(size=(4, d)), range(4), range(4))
        assert np.isfinite(plda.llr(sides, sides)).all()


# -- what others do


def kaldi(mu, B, W, X, within, between, scale):
    """Shares of excess variance, in the coordinates in which the covariance within speakers is I and B is diagonal."""
    psi, E = eigh(B, W)  # B E = W E psi, E'WE = I
    T = E.T / np.sqrt(1 + psi)[:, None]  # total covariance I
    m = X.mean(axis=0)
    variance = sum(np.outer(x - m, x - m) for x in X) / len(X) + scale * np.outer(m - mu, m - mu)
    s, P = np.linalg.eigh(T @ variance @ T.T)
    W_there, B_there = P.T @ np.diag(1 / (1 + psi)) @ P, P.T @ np.diag(psi / (1 + psi)) @ P
    for i, value in enumerate(s):
        if value > 1:
            W_there[i, i] += within * (value - 1)
            B_there[i, i] += between * (value - 1)
    back = np.linalg.inv(P.T @ T)
    return m, back @ B_there @ back.T, back @ W_there @ back.T


@pytest.mark.parametrize("ny", [5, 2])
@pytest.mark.parametrize("shares", [(0.3, 0.7, 1.0), (0.75, 0.25, 1.0), (0.3, 0.7, 0.0), (1.0, 0.0, 0.5), (0, 0, 1)])
def test_kaldi(ny, shares):
    rng = np.random.default_rng(8)
    p = oracle.random_model(rng, 5, ny, 0)
    other = oracle.random_model(rng, 5, 5, 0)
    data = oracle.random_data(rng, replace(other, mu=p.mu + rng.normal(size=5)), 12)
    B, _, N = covariances(p)
    levels = Levels(model_of(p), np.ones(1))
    model = ad.kaldi(levels, Target.of(fitted(levels, data)), *shares)
    mu, wanted_B, wanted_W = kaldi(p.mu[0], B, N[0], data.X, *shares)
    assert np.linalg.eigvalsh(np.linalg.solve(B + N[0], np.cov(data.X.T, bias=True)).T).min() < 1  # not all directions
    assert_model(model, wanted_B, np.zeros((5, 5)), wanted_W[None], mu[None], rtol=1e-9)

    factor = np.linalg.eigh(wanted_B)[1] * np.sqrt(np.maximum(np.linalg.eigvalsh(wanted_B), 0))
    q = oracle.Params(mu[None], factor, np.zeros((5, 0)), np.linalg.inv(wanted_W)[None])
    a, b = data.rows(np.arange(4)), data.rows(np.arange(4, 9))
    a, b = (
        replace(x, speaker=np.arange(len(x)), session=np.array([f"{i}{len(x)}" for i in range(len(x))])) for x in (a, b)
    )
    plda = PLDA.from_parameters(model.mu[0], model.V, None, model.W[0])
    found = plda.llr(plda.enroll(a.X, a.speaker), plda.enroll(b.X, b.speaker))
    np.testing.assert_allclose(found, oracle.llr_matrix(q, a, b), rtol=1e-9, atol=1e-9)
    whole = PLDA.from_parameters(p.mu[0], p.V, None, p.W[0]).adapt(data.X, method="kaldi", weights=shares)
    assert_model(whole.model_, wanted_B, np.zeros((5, 5)), wanted_W[None], mu[None], rtol=1e-9)


def test_kaldi_with_sessions_and_kinds():
    """What goes within is divided between sessions and noise as these were, and all adds up."""
    for name in ("two-source", "kinds"):
        p, levels, data = case(name, 9)
        K, (B, S, N) = SHAPES[name][3], covariances(p)
        model = ad.kaldi(levels, Target.of(fitted(levels, data)), 0.3, 0.6, 0.5)
        shares = [(data.kind == k).mean() for k in range(K)]
        below = S + sum(s * n for s, n in zip(shares, N, strict=True))
        step = sum(s * (data.X[data.kind == k].mean(axis=0) - p.mu[k]) for k, s in enumerate(shares))
        variance = direct(data, K)["total"] + 0.5 * np.outer(step, step)
        s, E = eigh(variance, B + below)  # E' (B + below) E = I
        back = np.linalg.inv(E.T)
        excess = back @ np.diag(np.maximum(s - 1, 0)) @ back.T
        A = through(below + 0.3 * excess, below)
        assert_model(model, B + 0.6 * excess, A @ S @ A.T, A @ N @ A.T, means(p, levels, data, K, True, 1.0))


# -- statistics


def test_of_kinds():
    _, _, data = case("kinds", 11)
    data = data.rows(np.flatnonzero(data.kind != 1))
    stats = statistics(data, 3, n_folds=3)
    assert stats.kinds.tolist() == ["mic", "tel"]
    wide = stats.of_kinds(KINDS)
    assert wide.kinds.tolist() == KINDS.tolist()
    assert wide.N.tolist() == [(data.kind == 0).sum(), 0, (data.kind == 2).sum()]
    for fold in wide.folds:
        assert fold.kinds.tolist() == KINDS.tolist()
    assert_equal_statistics(
        Statistics.sum([*(replace(f, sample=None) for f in wide.folds)]), replace(wide, folds=()), 1e-12
    )
    for k, of in enumerate((0, None, 1)):
        np.testing.assert_array_equal(wide.S[k], 0 * stats.S[0] if of is None else stats.S[of])


def test_regrouped():
    _, _, data = case("two-source", 12, n_speakers=40)
    stats = statistics(data, n_folds=16)
    seen = set()
    for turn in range(4):
        for n in (2, 3, 5):
            parts = stats.regrouped(n, turn)
            assert len(parts.folds) == n
            who = [f.speaker_ids.tolist() for f in parts.folds]
            assert sorted(chain(*who)) == stats.speaker_ids.tolist()
            sizes = [len(w) for w in who]
            assert max(sizes) - min(sizes) <= max(len(f.speaker_ids) for f in stats.folds)
            for fold in parts.folds:
                mine = np.isin(data.speaker, fold.speaker_ids)
                assert_equal_statistics(replace(fold, sample=None), statistics(data.rows(mine)), 1e-9)
                assert set(map(tuple, fold.sample.X.tolist())) <= set(map(tuple, data.X[mine].tolist()))
                assert len(np.unique(fold.sample.speaker)) == len(fold.speaker_ids)
            assert_equal_statistics(replace(parts, folds=()), replace(stats, folds=()), 1e-9)
            again = stats.regrouped(n, turn)
            assert [f.speaker_ids.tolist() for f in again.folds] == who
        seen.add(tuple(map(tuple, who)))
    assert len(seen) > 1  # there are several ways
    few = stats.regrouped(40)
    assert len(few.folds) == sum(len(f.speaker_ids) > 0 for f in stats.folds)


def test_unlabelled_after_a_transform():
    rng = np.random.default_rng(0)
    X, A = rng.normal(size=(300, 4)) + 1e4, rng.normal(size=(4, 3))
    ways = (Recordings.from_arrays(X), Recordings.from_chunks(lambda: np.array_split(X, 7), np.arange(300)))
    for recordings in ways:
        stats = Statistics.unlabelled(recordings, lambda rows: (rows - 1e4) @ A)
        target, Z = Target.of(stats), (X - 1e4) @ A
        np.testing.assert_allclose(target.means[0], Z.mean(axis=0), atol=1e-12)
        np.testing.assert_allclose(target.total, np.cov(Z.T, bias=True), rtol=1e-11)
        assert stats.n_recordings == 300
        folds = Statistics.unlabelled(recordings, lambda rows: (rows - 1e4) @ A, n_folds=3)
        assert_equal_statistics(
            Statistics.sum(folds.folds).folds or replace(folds, folds=()), replace(folds, folds=()), 1e-12
        )
        np.testing.assert_allclose(Target.of(folds).means[0], Z.mean(axis=0), atol=1e-12)


# -- the cost and the calibration


def direct_cost(tar, non, scale, offset, priors, weight):
    total = 0.0
    for p in priors:
        miss = np.mean([np.log1p(np.exp(-(scale * s + offset + logit(p)))) for s in tar])
        false = sum(w * np.log1p(np.exp(scale * s + offset + logit(p))) for s, w in zip(non, weight, strict=True))
        total += (p * miss + (1 - p) * false / sum(weight)) / (entr(p) + entr(1 - p))
    return total / len(priors)


def scores(seed=0, tar=3.0, non=-3.0, spread=2.0):
    rng = np.random.default_rng(seed)
    return rng.normal(tar, spread, 60), rng.normal(non, spread, 80), rng.uniform(0.1, 3, 80)


def test_cost_with_weights():
    tar, non, weight = scores()
    for scale, offset in ((1.0, 0.0), (0.3, -2.0), (2.0, 5.0)):
        for priors in ((0.5,), (0.5, 0.01)):
            wanted = direct_cost(tar, non, scale, offset, priors, weight)
            assert cost(tar, non, scale, offset, priors, weight) == pytest.approx(wanted, rel=1e-12)
    twice = cost(tar, np.r_[non, non[:9]], 0.5, 1.0)
    assert cost(tar, non, 0.5, 1.0, weight=np.r_[np.full(9, 2.0), np.ones(71)]) == pytest.approx(twice, rel=1e-12)
    assert cost(tar, non, 0.5, 1.0, weight=np.full(80, 7.0)) == pytest.approx(cost(tar, non, 0.5, 1.0))


@pytest.mark.parametrize("shift", [0.0, 30.0, -200.0])
def test_the_best_offset(shift):
    tar, non, weight = scores(1, 2.0 + shift, -1.0 + shift)
    found = best_offset(tar, non, (0.5, 0.01), weight)
    near = tar - shift, non - shift, 1.0
    best = minimize_scalar(lambda offset: direct_cost(*near, offset, (0.5, 0.01), weight), (-3, 3), tol=1e-10)
    assert found + shift == pytest.approx(best.x, abs=1e-5)


BOUNDED = {
    "within": scores(2, 4.0, -4.0, 4.0),
    "perfectly separated": scores(3, 3.0, -3.0, 0.5),
    "inverted": scores(4, -3.0, 3.0),
    "knows nothing": scores(5, 0.0, 0.0),
    "far above": scores(6, 30.0, 20.0),
    "far below": scores(7, -20.0, -30.0),
    "steep and shifted": scores(8, 400.0, -100.0, 150.0),
    "shifted a little": scores(9, 9.0, 3.0, 2.5),
    "all targets equal": (np.full(60, 2.0), np.full(80, -1.0), np.ones(80)),
    "one value": (np.full(60, 2.0), np.full(80, 2.0), np.ones(80)),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_of_the_calibration(name):
    """The lowest cost within the limits, found again from a grid of starts; never a NaN."""
    tar, non, weight = BOUNDED[name]
    priors = (0.5, 0.01)
    scale, offset, lowest = bounded(tar, non, priors, weight)
    assert SCALE_LIMITS[0] <= scale <= SCALE_LIMITS[1]
    assert abs(offset) <= OFFSET_LIMIT
    assert np.isfinite(lowest)
    assert lowest == pytest.approx(cost(tar, non, scale, offset, priors, weight), rel=1e-12)
    limits = (SCALE_LIMITS, (-OFFSET_LIMIT, OFFSET_LIMIT))
    best = min(
        minimize(lambda v: cost(tar, non, *v, priors, weight), (a, b), bounds=limits, tol=1e-12).fun
        for a in (0.1, 0.5, 1.0)
        for b in (-3.9, 0.0, 3.9)
    )
    assert lowest <= best + 1e-3 * best / len(tar) ** 0.5 + 1e-4  # a ridge keeps the scale from infinity


def test_some_calibrations_are_at_the_limits():
    at = {}
    for name, (tar, non, weight) in BOUNDED.items():
        scale, offset, _ = bounded(tar, non, (0.5, 0.01), weight)
        at[name] = (scale in SCALE_LIMITS, abs(offset) == OFFSET_LIMIT)
    assert at["within"] == (False, False)
    assert at["perfectly separated"] == at["inverted"] == (True, False)
    assert all(offset for name, (_, offset) in at.items() if name.startswith("far"))


@pytest.mark.parametrize("name", BOUNDED)
def test_clusters_lower_the_offset_no_more_than_the_scale(name):
    """The lowest cost among such calibrations, found again on a grid."""
    tar, non, weight = BOUNDED[name]
    priors = (0.5, 0.01)
    scale, offset, lowest = bounded(tar, non, priors, weight, of_clusters=True)
    assert SCALE_LIMITS[0] <= scale <= SCALE_LIMITS[1]
    assert scale - 1 <= offset <= OFFSET_LIMIT
    assert lowest == pytest.approx(cost(tar, non, scale, offset, priors, weight), rel=1e-12)
    for other_scale in np.linspace(*SCALE_LIMITS, 40):
        for other_offset in np.linspace(other_scale - 1, OFFSET_LIMIT, 40):
            other = cost(tar, non, other_scale, other_offset, priors, weight)
            assert lowest <= other + 1e-3 * other / len(tar) ** 0.5 + 1e-4  # a ridge keeps the scale from infinity


def test_the_limit_for_clusters_is_reached_and_not_always():
    offsets = {}
    for name, (tar, non, weight) in BOUNDED.items():
        scale, offset, _ = bounded(tar, non, (0.5, 0.01), weight, of_clusters=True)
        offsets[name] = offset - (scale - 1)
    assert offsets["shifted a little"] == 0
    assert offsets["far below"] > 0


def test_a_target_has_grown_where_its_recordings_vary_more():
    model = Model(np.zeros((1, 2)), np.eye(2), np.eye(2), np.eye(2)[None], np.array(["only"]))
    levels = Levels(model, np.ones(1))
    for noise, both, grown in ((1.0, 1.9, False), (0.5, 2.6, True), (3.5, 0.0, True)):
        target = Target(np.zeros((1, 2)), np.ones(1), 9 * np.eye(2), noise * np.eye(2), both=both * np.eye(2))
        assert levels.has_grown(target) is grown
    for total, grown in ((2.9, False), (3.1, True)):  # where sessions have one recording each
        target = Target(np.zeros((1, 2)), np.ones(1), total * np.eye(2), None)
        assert levels.has_grown(target) is grown
