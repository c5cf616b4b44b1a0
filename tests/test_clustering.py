"""Clustering: gains against a dense Gaussian, the queue against an exhaustive search, constraints, bad input."""

import copy
import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.cluster.hierarchy import is_valid_linkage
from scipy.special import gammaln

import oracle
from duoplda import PLDA, Backend, Recordings
from duoplda.datasets import make_recordings
from duoplda.errors import DuopldaError
from duoplda.trials import clustering
from duoplda.trials.evidence import BinnedSets, DiagonalEvidence, guessed_evidence, guessed_ratios
from duoplda.trials.exact import log_evidence

SIZES = {"n_dimensions": 24, "n_speaker_factors": 12, "n_session_factors": 20}


def drawn(n_speakers=12, sessions=(1, 8), recordings=(1, 4), seed=0, **sizes):
    return make_recordings(n_speakers, sessions, recordings, seed=seed, **(SIZES | sizes))


def fitted(data, ny=12, nx=20):
    """A model that is regular, whatever the data."""
    return PLDA(ny, nx, shrinkage=0.1).fit(data.X, data.speaker, session=data.session)


def plda_of(rng, d=5, ny=4, nx=3, K=1):
    p = oracle.random_model(rng, d, ny, nx, K)
    kinds = {} if K == 1 else {"channels": list(range(K))}
    mean, noise = (a[0] if K == 1 else a for a in (p.mu, p.W))
    return p, PLDA.from_parameters(mean, p.V, p.U, noise, **kinds)


def ln_prior(sessions_by_cluster, prior):
    """Of a partition, by the formula: alpha^k prod (m - 1)!, up to what all partitions share."""
    alpha = (1 - prior) / prior
    return sum(np.log(alpha) + gammaln(m) for m in sessions_by_cluster)


def numbers(labels, session):
    return [len(np.unique(session[labels == c])) for c in np.unique(labels)]


def posterior(plda, data, labels, prior):
    """ln P(X | labels) + ln P(labels), by the model's own dense-tested likelihood."""
    value = plda.partition_log_likelihood(data.X, labels, data.session, data.kind if len(plda.channels_) > 1 else None)
    return value + ln_prior(numbers(labels, data.session), prior)


# -- exact


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("nx", [0, 3])
def test_the_evidence_is_the_ratio(K, nx):
    rng = np.random.default_rng(10 * K + nx)
    p, plda = plda_of(rng, nx=nx, K=K)
    data = oracle.random_data(rng, p, 9, (1, 4), (1, 4))
    sides = plda.enroll(data.X, data.speaker, data.session, data.kind if K > 1 else None)
    e = DiagonalEvidence.of(sides)
    counts, gamma = sides.counts.astype(float), sides.gamma @ e.basis
    Q = e.exact(counts, gamma)
    np.testing.assert_allclose(Q, sides.Q, rtol=1e-10, atol=1e-9)
    a, b = np.triu_indices(len(sides), 1)
    both = e.exact(counts[a] + counts[b], gamma[a] + gamma[b])
    np.testing.assert_allclose(both - Q[a] - Q[b], plda.llr(sides, sides, np.stack([a, b], axis=1)), atol=1e-9)


def test_one_type_of_session_needs_no_guess():
    data = drawn(8, 5, 3)
    plda = fitted(data)
    e = DiagonalEvidence.of(plda.enroll(data.X, data.session, data.session))
    assert e.is_diagonal
    full = replace(e, is_diagonal=False)
    rng = np.random.default_rng(0)
    counts, gamma = rng.integers(1, 5, (6, 1)).astype(float), rng.normal(size=(6, len(e.mean))) * 5
    np.testing.assert_allclose(e.exact(counts, gamma), full.exact(counts, gamma), rtol=1e-10)


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("refine", [False, True])
def test_gains_add_up_to_the_difference_of_log_likelihoods(K, refine):
    """Merges, moves and the prior, against the dense likelihood of the whole partition."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        p, plda = plda_of(rng, 6, 4, 3, K)
        data = oracle.random_data(rng, p, 8, (1, 5), (1, 3))
        found = plda.cluster(data.X, data.session, data.kind if K > 1 else None, prior=0.1, refine=refine)
        alone = oracle.partition_log_likelihood(p, data, data.session)
        want = oracle.partition_log_likelihood(p, data, found.labels) - alone
        want += ln_prior(numbers(found.labels, data.session), 0.1) - ln_prior(numbers(data.session, data.session), 0.1)
        assert found.log_posterior == pytest.approx(want, abs=1e-9 * max(1, abs(alone)))
        if not refine:
            assert found.merges[:, 2].sum() == pytest.approx(want, abs=1e-9 * max(1, abs(alone)))


def test_each_gain_is_the_ratio_of_the_sides_that_are_merged():
    data = drawn(10)
    plda = fitted(data)
    found = plda.cluster(data.X, data.session, refine=False, prior=0.02)
    session, code = np.unique(data.session, return_inverse=True)
    inside = {i: [i] for i in range(len(session))}
    for t, (a, b, gain, m) in enumerate(found.merges.tolist()):
        one, two = inside[int(a)], inside[int(b)]
        inside[len(session) + t] = one + two
        rows = [np.flatnonzero(np.isin(code, part)) for part in (one, two)]
        sides = [plda.enroll(data.X[r], np.zeros(len(r)), data.session[r]) for r in rows]
        prior = gammaln(len(one) + len(two)) - gammaln(len(one)) - gammaln(len(two)) - np.log(0.98 / 0.02)
        assert gain == pytest.approx(float(plda.llr(*sides)[0, 0]) + prior, abs=1e-9)
        assert m == len(one) + len(two)


def greedy(sides, ln_alpha):
    """The dense exact algorithm: the best of all gains, all of which are exact at every step.

    Merging goes on as long as it gains with a concentration of .01. The most that is gained on the way is returned.
    """
    least = np.log(0.01)
    counts, gamma, m = sides.counts.astype(float), sides.gamma.copy(), sides.counts.sum(axis=1).astype(float)
    Q = log_evidence(sides.terms.G, counts, gamma)

    def gains(a, b):
        both = log_evidence(sides.terms.G, counts[a] + counts[b], gamma[a] + gamma[b])
        prior = gammaln(m[a] + m[b]) - gammaln(m[a]) - gammaln(m[b]) - least
        return both - Q[a] - Q[b] + prior

    n = len(m)
    M = np.full((n, n), -np.inf)
    a, b = np.triu_indices(n, 1)
    M[a, b] = M[b, a] = gains(a, b)
    alive, total, most = np.ones(n, bool), 0.0, 0.0
    while M.max() > 0:
        i, j = map(int, np.unravel_index(M.argmax(), M.shape))
        total += M[i, j] + least - ln_alpha
        most = max(most, total)
        counts[i], gamma[i], m[i], alive[j] = counts[i] + counts[j], gamma[i] + gamma[j], m[i] + m[j], False
        Q[i] = log_evidence(sides.terms.G, counts[[i]], gamma[[i]])[0]
        M[j], M[:, j] = -np.inf, -np.inf
        rest = np.flatnonzero(alive & (np.arange(n) != i))
        M[i, rest] = M[rest, i] = gains(np.full(len(rest), i), rest)
    return most


@pytest.mark.parametrize("recordings", [3, (1, 5)])
@pytest.mark.parametrize("seed", range(4))
def test_the_queue_reaches_what_the_dense_algorithm_reaches(recordings, seed):
    data = drawn(60, (1, 19), recordings, seed=seed, n_dimensions=12, n_speaker_factors=9, n_session_factors=9)
    plda = fitted(data, 9, 9)
    sides = plda.enroll(data.X, data.session, data.session).unnamed()
    sides = sides.select(slice(0, 600)) if len(sides) > 600 else sides
    assert len(sides) > 500
    found = clustering.cluster(sides, refine=False, prior=0.02)
    assert found.log_posterior == pytest.approx(greedy(sides, np.log(0.98 / 0.02)), abs=1e-9)


def partitions(items):
    """All partitions of a list."""
    if not items:
        yield []
        return
    first, *rest = items
    for k in range(len(rest) + 1):
        for others in itertools.combinations(rest, k):
            left = [x for x in rest if x not in others]
            for more in partitions(left):
                yield [[first, *others], *more]


def mixed(seed, n=6, known=0):
    """Sessions as sides, of a random model and of types that differ, and known speakers, who may be among them."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 25))
    _, plda = plda_of(rng, d, int(rng.integers(1, d + 1)), int(rng.integers(0, d + 1)))
    X, _, session = plda.sample(4, (1, 6), (1, 6), random_state=seed)
    rows = np.isin(session, rng.permutation(np.unique(session))[:n])
    sides = plda.enroll(X[rows], session[rows], session[rows])
    if not known:
        return plda, sides, None
    Y, who, day = plda.sample(known, (1, 2), (1, 3), random_state=seed + 1)
    return plda, sides, plda.enroll(Y, [f"known {s}" for s in who.tolist()], [f"day {s}" for s in day.tolist()])


def value_of(sides, parts, ln_alpha, known=None):
    """ln P(sides | parts) + ln P(parts), up to what all partitions share: `parts` are lists of rows.

    With known speakers, the first parts are theirs, and may be empty.
    """
    total = 0.0
    for k, part in enumerate(parts):
        side = [sides.select(part)] if part else []
        side += [known.select([k])] if known is not None and k < len(known) else []
        if not side:
            continue
        counts = [np.asarray(s.counts, float).sum(axis=0) for s in side]
        Lambda = np.eye(side[0].gamma.shape[1])
        Lambda += sum(np.tensordot(c, s.terms.G, axes=1) for c, s in zip(counts, side, strict=True))
        gamma = sum(s.gamma.sum(axis=0) for s in side)
        total += (gamma @ np.linalg.solve(Lambda, gamma) - np.linalg.slogdet(Lambda)[1]) / 2
        total += ln_alpha + gammaln(sum(c.sum() for c in counts))
    return total


@pytest.mark.parametrize("seed", range(8))
def test_the_best_partition_of_few_sessions_is_found(seed):
    """By looking at every partition of six sessions (203 of them), with limits and without."""
    _, sides, _ = mixed(seed)
    n = len(sides)
    ln_alpha = np.log(0.8 / 0.2)
    values = [(len(parts), value_of(sides, parts, ln_alpha)) for parts in partitions(list(range(n)))]
    alone = value_of(sides, [[i] for i in range(n)], ln_alpha)
    for limits in ({}, {"n_speakers": 2}, {"min_speakers": n - 1}, {"max_speakers": 2}):
        low = limits.get("min_speakers", limits.get("n_speakers", 1))
        high = limits.get("max_speakers", limits.get("n_speakers", n))
        best = max(value for k, value in values if low <= k <= high)
        assert clustering.cluster(sides, prior=0.2, **limits).log_posterior == pytest.approx(best - alone, abs=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_the_best_partition_with_known_speakers_is_found(seed):
    _, sides, known = mixed(seed, 4, known=2)
    n = len(sides)
    ln_alpha = np.log(0.7 / 0.3)
    best = -np.inf
    for owner in itertools.product([-1, 0, 1], repeat=n):
        of_known = [[i for i in range(n) if owner[i] == k] for k in range(len(known))]
        for parts in partitions([i for i in range(n) if owner[i] < 0]):
            best = max(best, value_of(sides, [*of_known, *parts], ln_alpha, known))
    alone = value_of(sides, [*([] for _ in range(len(known))), *([i] for i in range(n))], ln_alpha, known)
    found = clustering.cluster(sides, prior=0.3, known=known)
    assert found.log_posterior == pytest.approx(best - alone, abs=1e-8)


@pytest.mark.parametrize("seed", range(6))
def test_the_best_alternatives_are_told_exactly(seed):
    """Every move of a session and every merge of two clusters: the least that each loses."""
    _, sides, _ = mixed(seed, 14)
    ln_alpha = np.log(0.8 / 0.2)
    found = clustering.cluster(sides, prior=0.2)
    assert found.exact
    labels = found.labels

    def loss(changed):
        parts = [np.flatnonzero(changed == c).tolist() for c in np.unique(changed)]
        return value - value_of(sides, parts, ln_alpha)

    value = 0.0
    value = -loss(labels)
    for i in range(len(labels)):
        others = [c for c in range(len(found)) if c != labels[i]]
        others += [len(found)] if (labels == labels[i]).sum() > 1 else []
        losses = {c: loss(np.where(np.arange(len(labels)) == i, c, labels)) for c in others}
        if losses:
            assert found.margin[i] == pytest.approx(min(losses.values()), abs=1e-8)
            assert losses[found.runner_up[i] if found.runner_up[i] >= 0 else len(found)] == min(losses.values())
    for a in range(len(found)):
        losses = [loss(np.where(labels == a, b, labels)) for b in range(len(found)) if b != a]
        if losses:
            assert -found.merge[a] == pytest.approx(min(losses), abs=1e-8)
            assert loss(np.where(labels == a, found.nearest[a], labels)) == pytest.approx(min(losses), abs=1e-8)
        alone = [loss(np.where(np.arange(len(labels)) == i, len(found), labels)) for i in np.flatnonzero(labels == a)]
        assert found.split[a] <= min(alone) + 1e-8 or len(alone) == 1
    assert (found.merge < 0).all()


@pytest.mark.parametrize("k", [6, 8, 9])
def test_with_a_given_number_no_merge_gains_while_a_session_leaves_a_third_cluster(k):
    """Single steps would change the number of speakers: a merge and a session of its own are taken at once."""
    _, sides, _ = mixed(7, 14)
    labels = clustering.cluster(sides, prior=0.2, n_speakers=k).labels
    clusters = [np.flatnonzero(labels == c).tolist() for c in range(k)]
    values = [value_of(sides, [part], 0.0) for part in clusters]
    for a, b in itertools.combinations(range(k), 2):
        merge = value_of(sides, [clusters[a] + clusters[b]], 0.0) - values[a] - values[b]
        for c in set(range(k)) - {a, b}:
            for i in clusters[c] if len(clusters[c]) > 1 else []:
                parts = [[i], [j for j in clusters[c] if j != i]]
                assert merge + value_of(sides, parts, 0.0) - values[c] < 1e-8


@pytest.mark.parametrize("seed", [1, 2, 3, 5])
def test_no_merge_is_left_that_gains(seed):
    """Sessions of many sizes and speakers who are far apart: guesses at gains are wrong by tens of nats."""
    rng = np.random.default_rng(seed)
    V, U, noise = 5 * rng.normal(size=(6, 6)), rng.normal(size=(6, 6)), np.cov(rng.normal(size=(6, 20)))
    plda = PLDA.from_parameters(np.full(6, 3.0), V, U, np.linalg.inv(noise))
    X, _, session = plda.sample(12, (1, 6), (1, 9), random_state=seed)
    assert plda.cluster(X, session).merge.max() <= 0


def test_guesses_of_all_pairs_are_near_the_guess_of_one():
    rng = np.random.default_rng(0)
    g = rng.uniform(0.1, 3, 20)
    n = np.exp(rng.uniform(0, np.log(60), 80))
    lam = n[:, None] * g * rng.uniform(0.9, 1.1, (80, 20))
    gamma = rng.normal(size=(80, 20)) * np.sqrt(lam + lam**2)
    binned = BinnedSets(gamma, lam, g)
    rows, blocks = zip(*guessed_ratios(binned, binned, cells=400), strict=True)
    gamma, lam = gamma[binned.order], lam[binned.order]
    want = guessed_evidence(gamma[:, None] + gamma[None], lam[:, None] + lam[None])
    want -= guessed_evidence(gamma, lam)[:, None] + guessed_evidence(gamma, lam)
    assert np.sqrt(np.mean((np.concatenate(blocks) - want) ** 2)) < 0.02 * np.std(want)
    assert list(itertools.chain(*(range(part.start, part.stop) for part in rows))) == list(range(80))


def test_ratios_of_ragged_sides_are_about_right_where_that_is_asked_for():
    """The products, against the formula with diagonals; and against exact ratios where diagonals are all there is."""
    data = drawn(150, (2, 9), (1, 5))
    plda = fitted(data)
    odd = np.unique(data.session, return_inverse=True)[1] % 2 == 1  # speakers are on both sides, sessions are not
    one, two = (plda.enroll(data.X[of], data.speaker[of], data.session[of]) for of in (odd, ~odd))
    e, found = DiagonalEvidence.of(one, two), plda.llr(one, two, approximate=True)
    place = {tuple(t): c for c, t in enumerate(e.types.tolist())}
    gamma, lam = [], []
    for sides in (one, two):
        gamma.append(sides.gamma @ e.basis)
        lam.append(sides.counts @ e.diagonals[[place[tuple(t)] for t in sides.types.tolist()]])
    Q = [guessed_evidence(g, x) for g, x in zip(gamma, lam, strict=True)]
    both = guessed_evidence(gamma[0][:, None] + gamma[1], lam[0][:, None] + lam[1])
    want = both - Q[0][:, None] - Q[1]
    assert np.sqrt(np.mean((found - want) ** 2)) < 0.01 * np.std(want)
    np.testing.assert_allclose(plda.llr(one, two, [[3, 4]], approximate=True), found[3, [4]])
    pairs = data.X[: 2 * (len(data.X) // 2)]
    even = (
        plda.enroll(pairs[::2], np.arange(len(pairs) // 2) // 3),
        plda.enroll(pairs[1::2], np.arange(len(pairs) // 2)),
    )
    exact = plda.llr(*even)
    np.testing.assert_allclose(plda.llr(*even, approximate=True), exact, atol=0.01 * np.std(exact))
    with pytest.raises(DuopldaError, match="share"):
        plda.llr(one, one, approximate=True)


# -- what it finds


def test_speakers_are_found_again():
    data = drawn(20, (2, 6), (1, 4), n_dimensions=60, n_speaker_factors=50, n_session_factors=50)
    plda = fitted(data, 50, 50)
    found = plda.cluster(data.X, data.session)
    assert len(found) == 20
    pairs = set(zip(found.labels.tolist(), data.speaker.tolist(), strict=True))
    assert len(pairs) == 20
    assert (np.diff(found.sessions) <= 0).all()
    assert found.sessions.sum() == len(np.unique(data.session))
    assert (found.support[found.sessions > 1] > 0).all()
    assert (found.merge < 0).all()
    assert (found.margin > 0).all()
    assert is_valid_linkage(found.linkage())


def test_the_chain_clusters_as_its_pieces_do():
    data = drawn(15, n_dimensions=30, n_speaker_factors=20, n_session_factors=20)
    backend = Backend(plda=PLDA(20, 20)).fit(data.X, data.speaker, session=data.session)
    Z = backend.transform(data.X)
    a, b = backend.cluster(data.X, data.session), backend.plda_.cluster(Z, data.session)
    np.testing.assert_array_equal(a.labels, b.labels)
    ids = np.array([f"r{i:04}" for i in range(len(data.X))])
    recordings = Recordings.from_arrays(data.X, ids=ids)
    c = backend.cluster(recordings, dict(zip(ids.tolist(), data.session.tolist(), strict=True)))
    assert c.ids.tolist() == ids.tolist()
    assert len(set(zip(a.labels.tolist(), c.labels.tolist(), strict=True))) == len(a) == len(c)
    assert c.log_posterior == pytest.approx(a.log_posterior)


def test_scales_that_serve_trials_do_not_serve_partitions():
    data = drawn(15)
    plda = fitted(data)
    want = plda.cluster(data.X, data.session)
    plda.scales_ = type(plda.scales_)(3.0, 0.2)
    assert plda.cluster(data.X, data.session).log_posterior == want.log_posterior
    known = plda.enroll(data.X[:5], data.speaker[:5], data.session[:5])
    rest = ~np.isin(data.session, data.session[:5])
    assert plda.cluster(data.X[rest], data.session[rest], known=known).log_posterior != want.log_posterior


@pytest.mark.parametrize(("dims", "prior", "seed"), [((8, 5, 6), 0.3, 5), ((12, 9, 9), 0.6, 3), ((6, 3, 4), 0.3, 8)])
def test_the_tree_of_merges_ends_where_sessions_are_moved(dims, prior, seed):
    """On data so hard that after moves there are pairs to be merged once more."""
    sizes = dict(zip(SIZES, dims, strict=True))
    data = drawn(40, (1, 9), (1, 4), seed=seed, **sizes)
    plda = fitted(data, *dims[1:])
    found, plain = (plda.cluster(data.X, data.session, prior=prior, refine=r) for r in (True, False))
    assert is_valid_linkage(found.linkage())
    np.testing.assert_array_equal(found.merges, plain.merges)
    assert found.log_posterior > plain.log_posterior


def test_margins_are_what_the_likelihood_says():
    for seed in range(3):
        data = drawn(25, (1, 6), (1, 4), seed=seed)
        plda = fitted(data)
        found = plda.cluster(data.X, data.session)
        assert (found.margin > -1e-6).all()
        close = np.flatnonzero(found.margin < 2)[:5]
        best = found.log_posterior
        for i in close.tolist():
            labels = found.labels.copy()
            labels[found.item == i] = found.runner_up[i] if found.runner_up[i] >= 0 else labels.max() + 1
            alone = plda.partition_log_likelihood(data.X, data.session, data.session)
            value = plda.partition_log_likelihood(data.X, labels, data.session) - alone
            value += ln_prior(numbers(labels, data.session), found.prior)
            value -= ln_prior(numbers(data.session, data.session), found.prior)
            assert best - value == pytest.approx(found.margin[i], abs=1e-6)


@pytest.mark.parametrize("K", [1, 2])
def test_inside_one_session_speakers_differ_by_both_levels(K):
    """Against a dense Gaussian: VV' + UU' between speakers, the noise within."""
    rng = np.random.default_rng(K)
    p, plda = plda_of(rng, 6, 3, 2, K)
    data = oracle.random_data(rng, p, 5, (1, 1), (2, 4))
    kind = data.kind if K > 1 else None
    found = plda.cluster(data.X, channel=kind, prior=0.2, within_session=True)
    inside = replace(p, V=np.concatenate([p.V, p.U], axis=1), U=np.zeros((6, 0)))
    alone = np.arange(len(data.X))
    apart = replace(data, session=alone)
    want = oracle.partition_log_likelihood(inside, apart, found.labels)
    want -= oracle.partition_log_likelihood(inside, apart, alone)
    want += ln_prior(numbers(found.labels, alone), 0.2) - ln_prior(numbers(alone, alone), 0.2)
    assert found.log_posterior == pytest.approx(want, abs=1e-8)
    assert found.log_posterior != pytest.approx(plda.cluster(data.X, channel=kind, prior=0.2).log_posterior)
    with pytest.raises(DuopldaError, match="one session; leave out"):
        plda.cluster(data.X, data.session, within_session=True)


def test_the_order_of_recordings_does_not_matter():
    data = drawn(20, seed=3)
    plda = fitted(data)
    a = plda.cluster(data.X, data.session)
    order = np.random.default_rng(0).permutation(len(data.X))
    b = plda.cluster(data.X[order], data.session[order])
    assert b.log_posterior == pytest.approx(a.log_posterior, abs=1e-8)
    assert len(set(zip(a.labels[order].tolist(), b.labels.tolist(), strict=True))) == len(a) == len(b)


def test_weight_and_prior_change_the_number_of_speakers():
    data = drawn(20, (2, 6), (1, 3), seed=1)
    plda = fitted(data)
    few, many = (len(plda.cluster(data.X, data.session, prior=p)) for p in (0.5, 1e-6))
    assert few < many
    soft = plda.cluster(data.X, data.session, weight=0.3, prior=0.02)
    assert len(soft) >= 1


def test_a_discount_is_the_evidence_of_part_of_a_session():
    """Q(rho n, rho gamma): with rho = 2 each recording counts as two copies of the same session would, as sessions."""
    rng = np.random.default_rng(0)
    p, plda = plda_of(rng, 6, 4, 0)
    X = oracle.random_data(rng, p, 4, (3, 3), (1, 1)).X
    twice = plda.enroll(np.repeat(X, 2, axis=0), np.repeat(np.arange(12), 2))
    once = plda.enroll(X, np.arange(12))
    a = clustering.cluster(once, discount=2.0, prior=0.3, refine=False)
    e = DiagonalEvidence.of(twice)
    Q = e.exact(e.counts(twice), twice.gamma @ e.basis)
    np.testing.assert_allclose(Q, twice.Q, atol=1e-9)
    i, j, gain, _ = a.merges[0]
    ratio = float(plda.llr(twice.select([int(i)]), twice.select([int(j)]))[0, 0])
    assert gain == pytest.approx(ratio - np.log(0.7 / 0.3), abs=1e-9)


# -- how many, and who must or must not be together


@pytest.mark.parametrize("n", [1, 2, 5, 20])
def test_as_many_speakers_are_found_as_there_are(n):
    """Of speakers who are hard to tell apart; a prior of .02 finds up to twice as many."""
    found = []
    with_50 = []
    for seed in range(6):
        X, _, session, m = make_recordings(n, 5, 1, n_dimensions=20, seed=seed)
        plda = PLDA.from_parameters(m.mu[0], m.V, m.U, m.W[0])
        found.append(len(plda.cluster(X, session)) / n)
        with_50.append(len(plda.cluster(X, session, prior=0.02)) / n)
    assert 0.8 <= np.mean(found) <= 1.3
    assert np.mean(with_50) > 1.3


def test_speakers_of_a_few_sessions_are_put_together():
    """200 speakers with one to three sessions each: 1.38 times as many without several starts."""
    found = []
    for seed in range(4):
        X, _, session, m = make_recordings(200, (1, 3), 1, n_dimensions=20, seed=seed)
        found.append(len(PLDA.from_parameters(m.mu[0], m.V, m.U, m.W[0]).cluster(X, session)) / 200)
    assert 0.8 <= np.mean(found) <= 1.3


def test_the_number_of_speakers_is_as_sure_as_it_says():
    """How probable the most probable number is, and how often it is right: speakers who are hard to tell apart."""
    said = []
    right = []
    among = []
    for n, seed in itertools.product([1, 2, 3, 5, 8, 12], range(5)):
        X, _, session, m = make_recordings(n, 5, 1, n_dimensions=18, seed=seed)
        numbers = PLDA.from_parameters(m.mu[0], m.V, m.U, m.W[0]).cluster(X, session).number_posterior
        assert sum(numbers.values()) == pytest.approx(1)
        best = max(numbers, key=numbers.__getitem__)
        said.append(numbers[best])
        right.append(best == n)
        among.append(n in numbers)
    assert 0.4 < np.mean(said) < 0.95
    assert np.mean(said) == pytest.approx(np.mean(right), abs=0.15)
    assert np.mean(among) >= 0.9


def test_the_posterior_of_the_number_knows_what_is_given():
    data = drawn(8, (3, 5), seed=4)
    plda = fitted(data)
    assert plda.cluster(data.X, data.session, prior=0.1).number_posterior == {}
    numbers = plda.cluster(data.X, data.session, min_speakers=9, max_speakers=11).number_posterior
    assert set(numbers) <= {9, 10, 11}
    assert plda.cluster(data.X, data.session, n_speakers=6).number_posterior == {6: pytest.approx(1)}
    assert plda.cluster(data.X[:1]).number_posterior == {1: pytest.approx(1)}


def test_the_prior_that_is_learned_expects_what_is_found():
    data = drawn(30, (1, 9), seed=5)
    plda = fitted(data)
    found = plda.cluster(data.X, data.session, refine=False)
    alpha = 1 / found.prior - 1
    sessions = np.arange(found.sessions.sum())
    assert (alpha / (alpha + sessions)).sum() == pytest.approx(len(found), abs=1e-6)
    again = plda.cluster(data.X, data.session, prior=found.prior, refine=False)
    np.testing.assert_array_equal(again.labels, found.labels)
    np.testing.assert_allclose(again.merges, found.merges, atol=1e-9)
    assert again.log_posterior == pytest.approx(found.log_posterior, abs=1e-8)


def test_a_learned_prior_keeps_limits_and_constraints():
    data = drawn(8, (3, 5), seed=4)
    plda = fitted(data)
    for limits in ({"n_speakers": 5}, {"min_speakers": 12, "max_speakers": 14}, {"max_speakers": 3}):
        found = plda.cluster(data.X, data.session, **limits)
        low = limits.get("min_speakers", limits.get("n_speakers", 1))
        assert low <= len(found) <= limits.get("max_speakers", limits.get("n_speakers", 99))
    first = np.unique(data.session, return_index=True)[1][:3].tolist()
    found = plda.cluster(data.X, data.session, cannot_link=list(itertools.combinations(first, 2)))
    assert len(set(found.labels[first].tolist())) == 3
    one = plda.cluster(data.X[:1])
    assert len(one) == 1


@pytest.mark.parametrize("k", [1, 3, 12, 20])
def test_the_number_of_speakers_may_be_given(k):
    data = drawn(12, (2, 5), seed=2)
    plda = fitted(data)
    assert len(plda.cluster(data.X, data.session, n_speakers=k)) == k
    natural = len(plda.cluster(data.X, data.session))
    assert len(plda.cluster(data.X, data.session, min_speakers=natural + 2)) == natural + 2
    assert len(plda.cluster(data.X, data.session, max_speakers=max(1, natural - 2))) == max(1, natural - 2)
    assert len(plda.cluster(data.X, data.session, min_speakers=1, max_speakers=100)) == natural


def test_constraints_are_kept():
    data = drawn(8, (3, 5), seed=4)
    plda = fitted(data)
    rng = np.random.default_rng(0)
    for _ in range(5):
        must, cannot = rng.integers(0, len(data.X), (2, 6, 2))
        same = data.session[cannot[:, 0]] == data.session[cannot[:, 1]]
        links = {"must_link": must, "cannot_link": cannot[~same]}
        whole = plda.cluster(data.X, data.session, must_link=must)  # items are what must_link makes
        if (whole.item[links["cannot_link"][:, 0]] == whole.item[links["cannot_link"][:, 1]]).any():
            with pytest.raises(DuopldaError, match="contradict"):
                plda.cluster(data.X, data.session, **links)
            continue
        found = plda.cluster(data.X, data.session, **links)
        assert (found.labels[must[:, 0]] == found.labels[must[:, 1]]).all()
        assert (found.labels[cannot[~same][:, 0]] != found.labels[cannot[~same][:, 1]]).all()


def test_cannot_link_keeps_the_sessions_of_one_speaker_apart():
    data = drawn(4, 4, 2, n_dimensions=60, n_speaker_factors=50, n_session_factors=50)
    plda = fitted(drawn(60, 4, 2, n_dimensions=60, n_speaker_factors=50, n_session_factors=50), 50, 50)
    rows = np.flatnonzero(data.speaker == data.speaker[0])
    first = rows[np.unique(data.session[rows], return_index=True)[1]]
    pairs = list(itertools.combinations(first.tolist(), 2))
    found = plda.cluster(data.X, data.session, cannot_link=pairs)
    assert len(set(found.labels[first].tolist())) == len(first)
    with pytest.raises(DuopldaError, match="leave no way to fewer than"):
        plda.cluster(data.X, data.session, cannot_link=pairs, n_speakers=2)


def test_known_speakers_give_their_names_and_force_nobody():
    data = drawn(10, 6, 2, n_dimensions=60, n_speaker_factors=50, n_session_factors=50)
    plda = fitted(data, 50, 50)
    who = np.unique(data.speaker)
    names = {s: f"name {s}" for s in who[:6].tolist()}
    enrol = np.isin(data.session, [data.session[np.flatnonzero(data.speaker == s)[0]] for s in who[:6]])
    known = plda.enroll(data.X[enrol], [names[s] for s in data.speaker[enrol].tolist()], data.session[enrol])
    rest = ~enrol & np.isin(data.speaker, who[2:])  # of two known speakers nothing is there, four are not known
    found = plda.cluster(data.X[rest], data.session[rest], known=known)
    assert len(found) == 8
    assert found.known.sum() == 4
    for s in who[2:].tolist():
        of = np.unique(found.labels[data.speaker[rest] == s])
        assert len(of) == 1
        assert (found.names[of[0]] == names.get(s)) == (s in names)
    assert len(set(found.names.tolist())) == len(found)
    assert is_valid_linkage(found.linkage())
    with pytest.raises(DuopldaError, match="also sessions of known speakers"):
        clustering.cluster(plda.enroll(data.X, data.session, data.session), known=known)
    with pytest.raises(DuopldaError, match="also sessions of known speakers"):
        plda.cluster(data.X, data.session, known=known)
    ids = np.array([f"r{i}" for i in range(len(data.X))])
    sessions = dict(zip(ids.tolist(), data.session.tolist(), strict=True))
    with pytest.raises(DuopldaError, match="also sessions of known speakers"):
        plda.cluster(Recordings.from_arrays(data.X, ids=ids), sessions, known=known)


def test_known_speakers_are_never_merged():
    data = drawn(3, 4, 2)
    plda = fitted(drawn(30, 4, 2))
    known = plda.enroll(data.X, [f"k{i % 2}" for i in range(len(data.X))])
    with pytest.raises(DuopldaError, match=r"known speakers.* leave no way to fewer than 2"):
        plda.cluster(data.X + 1e-3, known=known, n_speakers=1)
    for n in (2, 3, 8):
        found = plda.cluster(data.X + 1e-3, known=known, n_speakers=n)
        assert len(found) == n
        assert len(set(found.names.tolist())) == len(found)
    far = plda.cluster(data.X + 1e-3, known=known, min_speakers=5, max_speakers=6)
    assert 5 <= len(far) <= 6


def test_known_speakers_with_the_same_recordings_stay_two():
    """Equal items are taken together before the search begins; two known speakers are two people all the same."""
    data = drawn(3, 4, 2)
    plda = fitted(drawn(30, 4, 2))
    first = data.speaker == data.speaker[0]
    X = data.X[first]
    enrolled = [X[0], X[0] + 0.1]
    ann = plda.enroll(enrolled, ["ann", "ann"], ["day 1", "day 2"])
    bob = plda.enroll(enrolled, ["bob", "bob"], ["day 3", "day 4"])
    # The last rows of a product of matrices may differ in the last bit from equal rows before: others come after them.
    others = plda.enroll(data.X[~first], data.session[~first], data.session[~first])
    one, two = (
        plda.cluster(X[1:], known=known, prior=0.02)
        for known in (copy.copy(ann).add(others), copy.copy(ann).add(bob).add(others))
    )
    assert one.known.any()
    assert two.leaves == one.leaves + 1  # each known speaker is a leaf of the tree
    assert two.log_posterior == pytest.approx(one.log_posterior, rel=1e-9)  # nobody has the evidence of both
    np.testing.assert_allclose(two.means, one.means)
    assert set(two.names.tolist()) - {"bob"} <= {"ann", "spk1"}


def test_sides_are_clustered_as_they_are():
    data = drawn(12, 6, 2, n_dimensions=60, n_speaker_factors=50, n_session_factors=50)
    plda = fitted(data, 50, 50)
    code = np.unique(data.session, return_inverse=True)[1]
    local = np.array([f"{s} {c % 2}" for s, c in zip(data.speaker.tolist(), code.tolist(), strict=True)])
    sides = plda.enroll(data.X, local, data.session)
    found = plda.cluster(sides)
    assert found.ids.tolist() == sides.ids.tolist()
    assert len(found) == 12
    assert found.sessions.tolist() == [6] * 12
    linked = plda.cluster(sides, cannot_link=[[sides.ids[0], sides.ids[1]]])
    assert len(linked) == 13


# -- hard to break


def test_what_is_refused():
    data = drawn(5)
    plda = fitted(data)
    X, session = data.X, data.session
    for options, message in [
        ({"prior": 0}, "prior=0 must be a number between 0 and 1"),
        ({"prior": 1.0}, "between 0 and 1"),
        ({"weight": -1}, "greater than 0"),
        ({"discount": float("nan")}, "greater than 0"),
        ({"n_speakers": 0}, "whole number from 1 on"),
        ({"n_speakers": 2.5}, "whole number from 1 on"),
        ({"n_speakers": 2, "max_speakers": 3}, "n_speakers fixes the number"),
        ({"min_speakers": 4, "max_speakers": 3}, "is more than max_speakers"),
        ({"n_speakers": 10_000}, "ask for fewer"),
        ({"must_link": [1, 2]}, "must be pairs"),
        ({"must_link": [[0, 10**6]]}, "not to be clustered"),
        ({"cannot_link": [["a", "b"]]}, "not to be clustered|use one kind"),
        ({"cannot_link": [[0, 0]]}, "one session"),
        ({"known": 3}, "sides must come from enroll or from a file of sides, got int"),
    ]:
        with pytest.raises(DuopldaError, match=message):
            plda.cluster(X, session, **options)
    a, b = np.flatnonzero(session != session[0])[0], 0
    with pytest.raises(
        DuopldaError, match=f"contradict `must_link`: 'session {session[b]}' and 'session {session[a]}'"
    ):
        plda.cluster(X, session, must_link=[[a, b]], cannot_link=[[b, a]])
    with pytest.raises(DuopldaError, match="NaN"):
        plda.cluster(np.where(np.arange(len(X))[:, None] == 3, np.nan, X), session)
    with pytest.raises(DuopldaError, match=r"nothing to cluster|at least"):
        plda.cluster(X[:0], session[:0])
    with pytest.raises(DuopldaError, match="in several sides"):
        plda.cluster(plda.enroll(X, np.arange(len(X)), np.zeros(len(X))))
    with pytest.raises(DuopldaError, match="leave out session"):
        plda.cluster(plda.enroll(X, np.arange(len(X))), session)


def test_the_smallest_cases():
    data = drawn(5)
    plda = fitted(data)
    one = plda.cluster(data.X[:1])
    assert (one.labels.tolist(), one.names.tolist(), one.nearest.tolist()) == ([0], ["spk1"], [-1])
    assert np.isinf(one.split[0])
    same = plda.cluster(data.X, np.zeros(len(data.X)))
    assert (len(same), same.labels.max(), same.log_posterior) == (1, 0, 0.0)
    two = plda.cluster(data.X[[0, 0]], prior=0.9)
    assert len(two) in (1, 2)


def test_many_identical_vectors_and_many_links():
    data = drawn(5)
    plda = fitted(data)
    n = 3000
    far = np.repeat(data.X[:1] + 3 * data.X[:1].std(), n, axis=0)
    found = plda.cluster(far)
    assert len(found) == 1
    pairs = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    linked = plda.cluster(far, must_link=np.repeat(pairs, 100, axis=0))
    assert (len(linked), len(linked.margin)) == (1, 1)


def test_the_answer_is_the_same_for_any_number_of_threads():
    from threadpoolctl import threadpool_limits

    data = drawn(30, seed=5)
    plda = fitted(data)
    found = []
    for n in (1, 2, 4):
        with threadpool_limits(n):
            found.append(plda.cluster(data.X, data.session))
    assert len({(f.log_posterior, f.labels.tobytes(), f.merges.tobytes()) for f in found}) == 1
