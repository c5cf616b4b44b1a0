"""One pass over the data: direct sums, shards in any order, weights, chunks cut anywhere."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

import oracle
from chunked import accumulate
from duoplda import DuopldaError, Recordings, Statistics
from duoplda.arrays import to_numpy
from duoplda.data import labels
from duoplda.model import em
from duoplda.model.accumulate import SessionSums
from duoplda.model.parameters import Model

exhaust = settings(max_examples=30, derandomize=True, deadline=None, database=None)


def make(seed=0, d=3, K=1, n_speakers=5, **ranges):
    rng = np.random.default_rng(seed)
    p = oracle.random_model(rng, d, min(d, 2), min(d, 2), K)
    return p, oracle.random_data(rng, p, n_speakers, **ranges)


def gather(data, rows=slice(None), named=True, K=1, put=np.asarray):
    data = data.rows(rows)
    channel = data.kind if K > 1 else None
    return Statistics.from_arrays(put(data.X), data.speaker, data.session if named else None, channel)


def model_of(p):
    return Model(p.mu, p.V, p.U, p.W)


def ln_likelihood(stats, p):
    return em.EStep(stats)(model_of(p)).ln_likelihood


def direct(data, K, c):
    """The table of MODEL.md 3, about c, from the recordings one by one."""
    n, A, T = {}, {}, {}
    d = data.X.shape[1]
    within = np.zeros((K, d, d))
    S, N, f = np.zeros((K, d, d)), np.zeros(K), np.zeros((K, d))
    for i in np.unique(data.speaker).tolist():
        for j in np.unique(data.session[data.speaker == i]).tolist():
            of = (data.speaker == i) & (data.session == j)
            sums = []
            for k in range(K):
                rows = data.X[of & (data.kind == k)] - c
                if len(rows):
                    sums.append(rows.sum(axis=0))
                    within[k] += (rows - rows.mean(axis=0)).T @ (rows - rows.mean(axis=0))
                    S[k] += rows.T @ rows
                    N[k] += len(rows)
                    f[k] += rows.sum(axis=0)
            F, type_ = np.concatenate(sums), tuple(np.bincount(data.kind[of], minlength=K).tolist())
            n[type_, i] = n.get((type_, i), 0) + 1
            A[type_, i] = A.get((type_, i), 0) + F
            T[type_] = T.get(type_, 0) + np.outer(F, F)
    return n, A, T, within, S, N, f


def as_table(stats, c):
    """The same from statistics, moved from their offset to c (A and T weighted as they are)."""
    n, A, T = {}, {}, {}
    offset, within, S = (to_numpy(a) for a in (stats.offset, stats.within, stats.S))
    S, f = S.copy(), np.zeros((stats.K, stats.d))
    for b in stats.blocks:
        type_ = tuple(b.counts.tolist())
        delta = np.concatenate([b.counts[k] * (offset - c) for k in b.present])
        rows = to_numpy(b.A)
        weights = stats.weights[b.speaker]
        for row, i in enumerate(stats.speaker_ids[b.speaker].tolist()):
            n[type_, i] = int(b.n[row])
            A[type_, i] = rows[row] + b.n[row] * delta
        total, H = weights @ rows, weights @ b.n
        T[type_] = to_numpy(b.T) + np.outer(total, delta) + np.outer(delta, total) + H * np.outer(delta, delta)
        for at, k in enumerate(b.present):
            part = slice(at * stats.d, (at + 1) * stats.d)
            f[k] += total[part] + H * delta[part]
    for k in range(stats.K):
        move = offset - c
        S[k] += np.outer(f[k], move) + np.outer(move, f[k]) - stats.N[k] * np.outer(move, move)
    return n, A, T, within, S, stats.N, f


def assert_same(got, expected, rtol=1e-12):
    """Tables alike; sums of squares to a part of their size, as entries near zero are differences of large numbers."""
    assert got[0] == expected[0]
    for a, b in ((got[1], expected[1]), (got[2], expected[2])):
        assert a.keys() == b.keys()
        for key in a:
            np.testing.assert_allclose(a[key], b[key], rtol=0, atol=rtol * (1 + np.abs(b[key]).max()))
    for a, b in zip(got[3:], expected[3:], strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * (1 + np.abs(b).max()))


def assert_equal_statistics(a, b, rtol=1e-12):
    assert a.speaker_ids.tolist() == b.speaker_ids.tolist()
    assert a.kinds.tolist() == b.kinds.tolist()
    assert a.types.tolist() == b.types.tolist()
    np.testing.assert_allclose(a.weights, b.weights, rtol=1e-15)
    np.testing.assert_array_equal(a.counts, b.counts)
    if a.session_keys is None or b.session_keys is None:
        assert a.session_keys is b.session_keys
    else:
        np.testing.assert_array_equal(np.sort(a.session_keys), np.sort(b.session_keys))
    assert_same(as_table(a, a.offset), as_table(b, a.offset), rtol)


# -- from_arrays -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_from_arrays_is_the_direct_sums(library, seed, K):
    _, data = make(seed, d=3, K=K)
    stats = gather(data, K=K, put=library.put)
    offset = library.get(stats.offset)
    assert_same(as_table(stats, offset), direct(data, K, offset))
    assert stats.speaker_ids.tolist() == np.unique(data.speaker).tolist()
    assert stats.n_recordings == len(data)
    assert stats.n_sessions == len(np.unique(data.session))
    assert stats.n_speakers == len(np.unique(data.speaker))
    for b in stats.blocks:
        assert (np.diff(b.speaker) > 0).all()
        assert b.size == b.counts.sum()
    assert sorted(map(tuple, stats.types.tolist())) == list(map(tuple, stats.types.tolist()))


def test_the_documented_sum_of_squares_follows():
    _, data = make(1)
    stats = gather(data)
    centred = data.X - stats.offset
    np.testing.assert_allclose(stats.S[0], centred.T @ centred, rtol=1e-12)


def test_sessions_without_names_are_one_recording_each():
    _, data = make(2)
    stats = gather(data, named=False)
    assert stats.types.tolist() == [[1]]
    assert stats.n_sessions == stats.n_recordings == len(data)
    assert not stats.within.any()
    assert stats.session_keys is None


@pytest.mark.parametrize("K", [1, 2])
def test_a_recording_alone_of_its_kind_has_nothing_within(K):
    rng = np.random.default_rng(0)
    X = rng.normal(50, 1, (12, 2))
    kind = np.arange(12) % K
    stats = Statistics.from_arrays(X, np.arange(12) // 4, np.arange(12) // K, kind if K > 1 else None)
    assert (stats.types == 1).all()
    assert not stats.within.any()  # exactly: no difference of large numbers is ever taken


def test_a_pass_over_more_recordings_than_one_block_holds():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((12000, 400))
    sessions = X.reshape(4000, 3, 400)
    for order in (np.arange(len(X)), rng.permutation(len(X))):
        session = np.repeat(np.arange(4000), 3)[order]
        stats = Statistics.from_arrays(X[order], session // 8, session)
        residuals = (sessions - sessions.mean(axis=1, keepdims=True)).reshape(-1, 400)
        np.testing.assert_allclose(stats.within[0], residuals.T @ residuals, atol=1e-8)
        sums = (sessions - stats.offset).sum(axis=1)
        np.testing.assert_allclose(stats.blocks[0].T, sums.T @ sums, atol=1e-8)
        np.testing.assert_allclose(stats.blocks[0].A, sums.reshape(500, 8, 400).sum(axis=1), atol=1e-10)


def same_bits(a, b):
    for x, y in zip(a.blocks, b.blocks, strict=True):
        assert all(np.array_equal(getattr(x, n), getattr(y, n)) for n in ("counts", "speaker", "n", "A", "scatter"))
    assert np.array_equal(a.within, b.within)
    for x, y in zip(a.folds, b.folds, strict=True):
        same_bits(x, y)


@pytest.mark.parametrize("n_folds", [0, 3])
@pytest.mark.parametrize("way", ["whole", "chunks"])
def test_the_same_bits_for_any_number_of_threads(n_folds, way):
    rng = np.random.default_rng(0)
    n, d = 6000, 160
    session = np.sort(rng.integers(0, 1500, n))
    speaker, kind, X = session // 12, rng.integers(0, 2, n), rng.standard_normal((n, d)) + 3

    def run(threads):
        with threadpool_limits(threads, user_api="blas"):
            if way == "whole":
                return Statistics.from_arrays(X, speaker, session, kind, n_folds=n_folds)
            return accumulate(np.array_split(X, 3), (speaker, session, kind), n_folds=n_folds)

    one = run(1)
    for threads in (2, 3, 4, 7):
        for _ in range(2):
            same_bits(run(threads), one)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.int16, np.uint8, bool])
def test_other_number_types_are_summed_in_double_precision(dtype):
    _, data = make(4)
    X = (data.X - data.X.min(axis=0)).astype(dtype)
    X[0] = 0  # else bools would be constant
    stats = Statistics.from_arrays(X, data.speaker, data.session)
    exact = Statistics.from_arrays(X.astype(np.float64), data.speaker, data.session)
    assert stats.within.dtype == np.float64
    assert_equal_statistics(stats, exact, rtol=1e-14)
    rows = np.array_split(X, 5)
    assert_equal_statistics(accumulate(rows, (data.speaker, data.session)), exact)


def test_rows_that_are_not_contiguous():
    _, data = make(5)
    expected = gather(data)
    assert_equal_statistics(gather(oracle.Data(np.asfortranarray(data.X), *_labels(data))), expected)
    wide = np.repeat(data.X, 2, axis=1)[:, ::2]
    assert_equal_statistics(gather(oracle.Data(wide, *_labels(data))), expected)
    before = data.X.copy()
    gather(data)
    np.testing.assert_array_equal(data.X, before)  # the caller's array is left alone


def _labels(data):
    return data.speaker, data.session, data.kind


def test_data_far_from_zero_keep_their_digits(library):
    """A mean of 2^24 costs no digit: these numbers can be written exactly there and here."""
    _, data = make(6, d=3)
    far = np.round((data.X - data.X.mean(axis=0)) * 2**20) / 2**20 + 2.0**24  # exact in double precision
    near = far - 2.0**24
    a = Statistics.from_arrays(library.put(far), data.speaker, data.session)
    b = Statistics.from_arrays(library.put(near), data.speaker, data.session)
    np.testing.assert_allclose(library.get(a.within), library.get(b.within), rtol=1e-12)
    moved = oracle.Data(far, *_labels(data))
    offset = library.get(a.offset)
    assert_same(as_table(a, offset), direct(moved, 1, offset), rtol=1e-12)


def test_an_offset_far_from_the_mean_does_little_harm(library):
    """The offset is the mean of the first chunk: here a single recording, 1e3 standard deviations off."""
    _, data = make(7, d=2)
    data.X[0] += 1e3
    first = accumulate([library.put(data.X[:1]), library.put(data.X[1:])], _labels(data)[:2])
    assert np.abs(library.get(first.offset) - data.X.mean(axis=0)).max() > 900
    # 1e3 squared over the variance: six of sixteen digits
    assert_same(as_table(first, data.X.mean(axis=0)), direct(data, 1, data.X.mean(axis=0)), rtol=1e-10)


# -- shards ------------------------------------------------------------------------------------------------------------


@st.composite
def shards(draw, n_sessions):
    """A shard for each session, and an order in which shards are added."""
    n = draw(st.integers(1, 5))
    shard = np.array(draw(st.lists(st.integers(0, n - 1), min_size=n_sessions, max_size=n_sessions)))
    return shard, draw(st.permutations(sorted(set(shard.tolist()))))


@pytest.mark.parametrize("K", [1, 3])
def test_shards_add_up_in_any_order(K):
    p, data = make(8, d=2, K=K, n_speakers=4)
    names, session = np.unique(data.session, return_inverse=True)
    whole = gather(data, K=K)

    @exhaust
    @given(shards(len(names)), st.booleans())
    def check(cut, left_to_right):
        shard, order = cut
        parts = []
        for s in order:
            rows = np.flatnonzero(shard[session] == s)
            if K == 1:
                parts.append(gather(data, rows))
            else:  # a shard may lack kinds: its own labels then number them differently
                kinds = np.array(["clean", "codec", "far"])[data.kind[rows]]
                parts.append(Statistics.from_arrays(data.X[rows], data.speaker[rows], data.session[rows], kinds))
        if left_to_right:
            total = sum(parts)
        else:
            total = parts[-1]
            for part in reversed(parts[:-1]):
                total = part + total
        if K == 1:
            assert_equal_statistics(total, whole, rtol=1e-12)
        else:
            assert total.kinds.tolist() == ["clean", "codec", "far"]
            assert_same(as_table(total, whole.offset), as_table(whole, whole.offset))
        assert ln_likelihood(total, p) == pytest.approx(oracle.log_likelihoods(p, data).sum(), rel=1e-12)

    check()


def test_a_speaker_split_over_shards_is_one_speaker():
    p, data = make(9, d=3, n_speakers=1, sessions=(6, 6), recordings=(2, 2))
    first = np.isin(data.session, np.unique(data.session)[:3])
    a, b = gather(data, first), gather(data, ~first)
    joined = a + b
    assert joined.n_speakers == 1
    assert joined.n_sessions == 6
    assert ln_likelihood(joined, p) == pytest.approx(oracle.ln_density(p, data), rel=1e-12)
    llr = oracle.llr(p, data.rows(first), data.rows(~first))
    assert abs(llr) > 0.1  # or else the next line would hold for two strangers too
    assert ln_likelihood(joined, p) - ln_likelihood(a, p) - ln_likelihood(b, p) == pytest.approx(llr, rel=1e-10)


def test_adding_leaves_the_parts_alone():
    _, data = make(10)
    first = np.isin(data.session, np.unique(data.session)[::2])
    a, b = gather(data, first), gather(data, ~first)
    before = [as_table(s, s.offset) for s in (a, b)]
    a + b
    3.0 * a
    for s, table in zip((a, b), before, strict=True):
        assert_same(as_table(s, s.offset), table, rtol=0)


def test_a_session_in_two_shards_is_refused():
    _, data = make(11)
    names = np.unique(data.session)
    a = gather(data, np.isin(data.session, names[:4]))
    b = gather(data, np.isin(data.session, names[2:]))
    with pytest.raises(DuopldaError, match=r"2 sessions are in both statistics"):
        a + b
    with pytest.raises(DuopldaError, match=r"sessions are in both statistics"):
        gather(data, np.isin(data.session, names[:2])) + gather(data, np.isin(data.session, names[5:])) + a
    # Numbers and strings of other lengths are names too.
    X = data.X[:2]
    one = Statistics.from_arrays(X, [0, 0], ["s", "a-much-longer-name"])
    two = Statistics.from_arrays(X, [1, 1], ["s", "t"])
    with pytest.raises(DuopldaError, match=r"1 sessions are in both"):
        one + two
    with pytest.raises(DuopldaError, match=r"2 sessions are in both"):
        Statistics.from_arrays(X, [0, 0], [-5, 7]) + Statistics.from_arrays(X, [1, 1], [7, -5])


def test_sessions_without_names_cannot_be_confused():
    p, data = make(12)
    first = np.arange(len(data)) % 2 == 0
    total = gather(data, first, named=False) + gather(data, ~first, named=False)
    assert_equal_statistics(total, gather(data, named=False))
    own = oracle.Data(data.X, data.speaker, np.arange(len(data)), data.kind)
    assert ln_likelihood(total, p) == pytest.approx(oracle.log_likelihoods(p, own).sum(), rel=1e-12)


@exhaust
@given(st.lists(st.text("ab-0é日", min_size=1, max_size=6), unique=True, min_size=1, max_size=20))
def test_keys_tell_names_apart_and_do_not_depend_on_the_others(names):
    keys = labels.keys(np.array(names))
    assert len(np.unique(keys)) == len(names)
    assert [labels.keys(np.array([n]))[0] for n in names] == keys.tolist()


def test_what_cannot_be_added():
    _, data = make(13)
    stats = gather(data)
    with pytest.raises(DuopldaError, match="of 3 and of 2 dimensions"):
        stats + Statistics.from_arrays(data.X[:, :2], data.speaker)
    with pytest.raises(DuopldaError, match="different types"):
        stats + Statistics.from_arrays(data.X, np.arange(len(data)) // 2)
    with pytest.raises(TypeError):
        stats + 1
    with pytest.raises(TypeError):
        1 + stats
    assert 0 + stats is stats


# -- folds of speakers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("K", [1, 2])
@pytest.mark.parametrize("n_folds", [1, 3, 20])  # 20: more than there are speakers
def test_folds_hold_whole_speakers_and_add_up(K, n_folds):
    p, data = make(25, K=K, n_speakers=9)
    given_labels = (data.speaker, data.session, *((data.kind,) if K > 1 else ()))
    stats = Statistics.from_arrays(data.X, *given_labels, n_folds=n_folds, seed=5)
    plain = Statistics.from_arrays(data.X, *given_labels)
    assert plain.folds == ()
    assert len(stats.folds) == n_folds
    assert_equal_statistics(stats, plain)
    assert_equal_statistics(sum(stats.folds), plain)
    found = [i for fold in stats.folds for i in fold.speaker_ids.tolist()]
    assert sorted(found) == np.unique(data.speaker).tolist()
    for fold in stats.folds:
        own = data.rows(np.isin(data.speaker, fold.speaker_ids))
        assert fold.n_recordings == len(own)
        if len(own):
            assert_same(as_table(fold, plain.offset), direct(own, K, plain.offset))
            assert ln_likelihood(fold, p) == pytest.approx(oracle.log_likelihoods(p, own).sum(), rel=1e-11)
    chunks = accumulate(np.array_split(data.X, 7), given_labels, n_folds=n_folds, seed=5)
    for a, b in zip((chunks, *chunks.folds), (stats, *stats.folds), strict=True):
        assert a.speaker_ids.tolist() == b.speaker_ids.tolist()
        assert_same(as_table(a, plain.offset), as_table(b, plain.offset))


def test_folds_of_shards_are_the_folds_of_the_whole():
    _, data = make(26, n_speakers=12, sessions=(2, 4))
    shard = np.unique(data.session, return_inverse=True)[1] % 3

    def folded(rows, seed):
        part = data.rows(rows)
        return Statistics.from_arrays(part.X, part.speaker, part.session, n_folds=4, seed=seed)

    whole = folded(slice(None), 1)
    total = 0.5 * (folded(shard == 2, 1) + folded(shard == 0, 1) + folded(shard == 1, 1))
    for a, b in zip(total.folds, whole.folds, strict=True):
        assert_equal_statistics(a, 0.5 * b)
    assert [f.speaker_ids.tolist() for f in folded(slice(None), 2).folds] != [
        f.speaker_ids.tolist() for f in whole.folds
    ]
    plain = Statistics.from_arrays(*(a[shard == 1] for a in (data.X, data.speaker, data.session)))
    for other in (folded(shard == 1, 2), plain):  # splits that have nothing in common
        with pytest.raises(DuopldaError, match=r"different folds \(4 folds with seed 1; .*\) cannot be added"):
            folded(shard == 0, 1) + other


# -- weights -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [1, 2, 0.3, np.float64(1.7), np.float32(0.5), np.int64(3)])
def test_a_weight_scales_the_likelihood_and_the_counts(weight):
    p, data = make(14, K=2)
    stats = gather(data, K=2)
    for weighted in (weight * stats, stats * weight):
        assert isinstance(weighted, Statistics)
        # Kinds are 100 apart here, one offset serves all: four digits of the quadratic terms.
        assert ln_likelihood(weighted, p) == pytest.approx(weight * ln_likelihood(stats, p), rel=1e-11)
        assert weighted.n_recordings == pytest.approx(weight * len(data), rel=1e-15)
        assert weighted.n_speakers == pytest.approx(weight * stats.n_speakers, rel=1e-15)
        np.testing.assert_allclose(weighted.S, weight * stats.S, rtol=1e-14)
        np.testing.assert_allclose(weighted.N, weight * stats.N, rtol=1e-14)


def test_an_integer_weight_is_copies_of_the_speakers():
    p, data = make(15)
    first = np.isin(data.speaker, np.unique(data.speaker)[:2])
    a, b = gather(data, first), gather(data, ~first)
    copy = data.rows(first)
    copies = Statistics.from_arrays(copy.X, np.char.add(copy.speaker, "-again"), np.char.add(copy.session, "-again"))
    weighted, repeated = 2 * a + b, a + copies + b
    assert ln_likelihood(weighted, p) == pytest.approx(ln_likelihood(repeated, p), rel=1e-13)
    fits = [em.fit(s, model_of(p), tol=-np.inf, max_iter=5, accelerate=False).model for s in (weighted, repeated)]
    for name in ("mu", "V", "U", "W"):
        np.testing.assert_allclose(getattr(fits[0], name), getattr(fits[1], name), rtol=1e-10, atol=1e-10)


def test_domains_of_different_weight():
    p, data = make(16)
    first = np.isin(data.speaker, np.unique(data.speaker)[:3])
    a, b = gather(data, first), gather(data, ~first)
    expected = 0.2 * ln_likelihood(a, p) + 3 * ln_likelihood(b, p)
    assert ln_likelihood(0.2 * a + 3 * b, p) == pytest.approx(expected, rel=1e-13)
    assert ln_likelihood(2 * (0.1 * a + 1.5 * b), p) == pytest.approx(expected, rel=1e-13)


def test_weights_of_one_speaker_must_agree():
    p, data = make(17, sessions=(2, 4))
    first = np.isin(data.session, [np.unique(data.session[data.speaker == s])[0] for s in np.unique(data.speaker)])
    a, b = gather(data, first), gather(data, ~first)
    joined = 0.5 * a + 0.5 * b
    assert_equal_statistics(joined, 0.5 * (a + b))
    assert ln_likelihood(joined, p) == pytest.approx(0.5 * ln_likelihood(gather(data), p), rel=1e-13)
    with pytest.raises(DuopldaError, match=r"speakers 'speaker0'.* different weights"):
        a + 0.5 * b


@pytest.mark.parametrize("weight", [0, -1, np.nan, np.inf, [1.0], None, "2"])
def test_weights_that_mean_nothing(weight):
    _, data = make(18)
    with pytest.raises(DuopldaError, match="weighted by a positive number"):
        gather(data) * weight


# -- chunks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("by_session", [False, True])  # True: most chunks hold whole sessions and broken ones
def test_chunks_may_cut_sessions_anywhere(K, by_session):
    _, data = make(19, d=2, K=K, n_speakers=4)
    if by_session:
        data = data.rows(np.argsort(data.session, kind="stable"))
    whole = gather(data, K=K)
    given_labels = (data.speaker, data.session, *((data.kind,) if K > 1 else ()))

    @exhaust
    @given(st.sets(st.integers(1, len(data) - 1), max_size=12))
    def check(cuts):
        chunks = (chunk for chunk in np.split(data.X, sorted(cuts)))  # read once
        assert_equal_statistics(accumulate(chunks, given_labels), whole)

    check()


def test_recordings_one_by_one():
    _, data = make(20, K=2)
    whole = gather(data, K=2)
    chunks = [row[None] for row in data.X]
    assert_equal_statistics(accumulate(chunks, (data.speaker, data.session, data.kind)), whole)


def test_memory_is_held_for_sessions_that_are_open_only():
    """1,000 sessions of two recordings that lie in different chunks; four of them are open at a time."""
    d = 128
    session = np.repeat(np.arange(1000).reshape(-1, 1, 4), 2, axis=1).reshape(-1)
    X = np.random.default_rng(0).standard_normal((len(session), d))
    sums = SessionSums(labels.encode(0 * session, session), X[:100])
    for i in range(0, len(X), 4):
        if i == 400:  # all that is made once has been made
            tracemalloc.start()
        sums.add(X[i : i + 4], slice(i, i + 4))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sums.result()[0]["open"] is None
    assert peak < 4e5 < 900 * d * 8 / 2


def test_chunks_that_do_not_fit_the_labels():
    _, data = make(22)
    given_labels = (data.speaker, data.session)
    n = len(data)
    with pytest.raises(DuopldaError, match=f"brought {n - 3} rows, {n} have labels"):
        accumulate([data.X[:-3]], given_labels)
    with pytest.raises(DuopldaError, match=f"more rows than the {n}"):
        accumulate([data.X, data.X[:1]], given_labels)
    with pytest.raises(DuopldaError, match=f"brought 0 rows, {n} have labels"):
        accumulate([], given_labels)
    with pytest.raises(DuopldaError, match="begins at row 5 has 2 columns, the first had 3"):
        accumulate([data.X[:5], data.X[5:, :2]], given_labels)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_named_without_other_noise(bad):
    _, data = make(23)
    X = data.X.copy()
    X[7, 1] = bad
    with pytest.raises(DuopldaError, match="NaN or infinity in rows 7, and"):
        accumulate([X[:5], X[5:]], (data.speaker, data.session))
    X[2, 0] = np.inf
    with pytest.raises(DuopldaError, match=rf"NaN or infinity in 2 of {len(X)} rows: 2, 7\."):
        Statistics.from_arrays(X, data.speaker, data.session)


def test_values_too_large_to_square_are_refused():
    _, data = make(24)
    X = data.X.copy()
    X[3] *= 1e200
    with pytest.raises(DuopldaError, match="too large"):
        Statistics.from_arrays(X, data.speaker, data.session)


# -- without labels


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_unlabelled_folds_are_the_direct_sums(shift):
    """Folds of different sizes, one of which is empty, in chunks of single and double precision."""
    rng = np.random.default_rng(0)
    speaker = np.repeat([f"s{i}" for i in range(9)], rng.integers(1, 9, 9))
    X = rng.normal(size=(len(speaker), 3)) + shift
    parts = [X[:10].astype(np.float32), X[10:11], X[11:]]
    X = np.concatenate([part.astype(float) for part in parts])
    folds = labels.folds(speaker, 12, 5)
    assert len(set(folds.tolist())) < 12
    stats = Statistics.unlabelled(Recordings.from_chunks(lambda: parts, speaker), n_folds=12, seed=5)
    for fold, own in enumerate(stats.folds):
        rows = X[folds == fold]
        assert own.n_recordings == len(rows)
        if len(rows):
            np.testing.assert_allclose(own.f[0], (rows - own.offset).sum(axis=0), atol=1e-9)
            np.testing.assert_allclose(own.S[0], (rows - own.offset).T @ (rows - own.offset), atol=1e-9)
    assert stats.n_recordings == len(X)
    np.testing.assert_allclose(stats.S[0], (X - stats.offset).T @ (X - stats.offset), rtol=1e-9)


def test_unlabelled_gives_the_same_bits_for_any_number_of_threads_and_changes_no_row():
    rng = np.random.default_rng(0)
    X, speaker = rng.normal(size=(9000, 24)), np.repeat(np.arange(90), 100)
    before, found = X.copy(), []
    for threads in (1, 4):
        with threadpool_limits(threads):
            stats = Statistics.unlabelled(Recordings.from_arrays(X, speaker), n_folds=3)
            whole = Statistics.unlabelled(Recordings.from_chunks(lambda: [X], speaker))
        found.append([stats.S.tobytes(), whole.S.tobytes(), *(f.f[0].tobytes() for f in stats.folds)])
    assert found[0] == found[1]
    np.testing.assert_array_equal(X, before)


def test_unlabelled_statistics_leave_the_rows_as_they_are():
    """Also where NumPy makes another object of them that has the same memory, as of vectors that a file brought."""
    rows = np.random.default_rng(0).normal(5.0, 1.0, (30, 3)).astype(np.dtype("f8").newbyteorder("<"))
    assert np.asarray(rows, np.float64) is not rows
    before = rows.copy()
    Statistics.unlabelled(Recordings.from_arrays(rows))
    np.testing.assert_array_equal(rows, before)
