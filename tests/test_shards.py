"""Shards cut through sessions give the statistics of the whole."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duoplda import DuopldaError, Recordings, Statistics
from duoplda.data import labels as lab
from duoplda.data.recordings import ArrayRecordings
from duoplda.datasets import make_recordings
from test_statistics import assert_equal_statistics


def ragged(seed, kinds):
    data = make_recordings(9, (1, 4), (1, 9), n_dimensions=5, n_speaker_factors=3, n_session_factors=2, seed=seed)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(data.X))
    channel = rng.choice(list("abc"), len(order)) if kinds > 1 else None
    return data.X[order] + 1e3, data.speaker[order], data.session[order], channel


def cut(X, speaker, session, channel, cuts):
    pieces = [slice(a, b) for a, b in zip([0, *cuts], [*cuts, len(X)], strict=True) if b > a]
    return [(X[p], speaker[p], session[p], None if channel is None else channel[p]) for p in pieces]


class Parts(Recordings):
    """Arrays in parts, each of which knows which of its sessions go on in others, and no more."""

    def __init__(self, pieces, buckets):
        labels = [lab.encode(*p[1:]) for p in pieces]
        keys, times = np.unique(np.concatenate([lab.keys(e.session_ids) for e in labels]), return_counts=True)
        open_ = [np.isin(lab.keys(e.session_ids), keys[times > 1]) for e in labels]
        self.parts = [
            ArrayRecordings(p[0], labels=replace(e, open=o)) for p, e, o in zip(pieces, labels, open_, strict=True)
        ]
        self.buckets = buckets

    labels = chunks = None

    def reduce(self, make, join, tie, n=1):
        made = [make(p) for p in self.parts]
        loose = [join(list(ends)) for ends in zip(*(m[1] for m in made if m[1]), strict=True)]
        results = [*(m[0] for m in made), *map(tie, loose)]
        return [join([r[i] for r in results]) for i in range(n)]


Parts.__abstractmethods__ = frozenset()


def by_parts(*data, cuts, n_buckets, **options):
    return Statistics.of(Parts(cut(*data, cuts), n_buckets), **options)


def by_addition(*data, cuts, n_buckets, **options):
    return sum(Statistics.from_arrays(*piece, close=False, **options) for piece in cut(*data, cuts)).close()


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 1000),
    st.sampled_from([1, 3]),
    st.lists(st.integers(1, 60), max_size=6).map(sorted),
    st.sampled_from([0, 3]),
    st.sampled_from([1, 3]),
    st.sampled_from([by_parts, by_addition]),
)
@example(46, 1, [1], 0, 3, by_parts)  # the one session that is cut is not in the first bucket
def test_shards_cut_anywhere_give_the_statistics_of_the_whole(seed, kinds, cuts, n_folds, n_buckets, way):
    data = ragged(seed, kinds)
    cuts = [min(c, len(data[0])) for c in cuts]
    whole = Statistics.from_arrays(*data, n_folds=n_folds, seed=1)
    total = way(*data, cuts=cuts, n_buckets=n_buckets, n_folds=n_folds, seed=1)
    assert_equal_statistics(total, whole, 1e-9)
    assert len(total.folds) == n_folds
    assert not total.is_open
    for a, b in zip(total.folds, whole.folds, strict=True):
        assert_equal_statistics(a, b, 1e-9)


@pytest.mark.parametrize("way", [by_parts, by_addition])
def test_a_session_under_two_speakers_in_different_shards(way):
    X, speaker, session, _ = ragged(0, 1)
    session = np.array([f"s{s}" for s in session])
    session[0], session[-1] = "torn", "torn"
    speaker = speaker.copy()
    speaker[0], speaker[-1] = 0, 1
    with pytest.raises(DuopldaError, match=r"session torn belongs to 2 speakers \('0', '1', in different shards\)"):
        way(X, speaker, session, None, cuts=[len(X) // 2], n_buckets=1)


@pytest.mark.parametrize("row", [0, 20])
@pytest.mark.parametrize("way", [by_parts, by_addition])
def test_rows_that_are_not_finite_are_named(row, way):
    X, speaker, session, _ = ragged(0, 1)
    X[row] = np.nan
    with pytest.raises(DuopldaError, match="NaN or infinity in 1 of"):
        way(X, speaker, session, None, cuts=[5, 30], n_buckets=1)


def test_open_sessions_cannot_be_joined_to_closed_ones():
    X, speaker, session, _ = ragged(1, 1)
    closed, opened = (partial(Statistics.from_arrays, close=close) for close in (True, False))
    a, b = (slice(0, 20), slice(20, None))
    with pytest.raises(DuopldaError, match="sessions are in both statistics: a session that was closed"):
        closed(X[a], speaker[a], session[a]) + opened(X[b], speaker[b], session[b])
    with pytest.raises(DuopldaError, match="cannot be weighted: close them first"):
        2 * opened(X[a], speaker[a], session[a])
    with pytest.raises(DuopldaError, match="needs names of sessions"):
        opened(X, speaker)


@pytest.mark.parametrize("other", [np.uint64, np.float64, str, np.int32])
def test_ids_are_the_same_whatever_their_type(other):
    X, speaker, session, _ = ragged(2, 1)
    session = np.unique(session, return_inverse=True)[1]
    with pytest.raises(DuopldaError, match="sessions are in both statistics"):
        Statistics.from_arrays(X, speaker, session) + Statistics.from_arrays(X, speaker, session.astype(other))
    half = session % 2 == 0
    parts = [
        Statistics.from_arrays(X[i::2], speaker[i::2], session[i::2].astype(t), close=False)
        for i, t in enumerate((np.int64, other))
    ]
    assert half.any()
    assert_equal_statistics(sum(parts).close(), Statistics.from_arrays(X, speaker, session), 1e-9)


def test_large_unsigned_ids_are_no_hashes():
    X, speaker, session, _ = ragged(3, 1)
    number = np.unique(session, return_inverse=True)[1].astype(np.uint64) + np.uint64(2**63)
    stats = Statistics.from_arrays(X, speaker, number)
    assert not np.isin(stats.session_keys, number).any()
    hashes = lab.keys(number)  # ids that happen to be the hashes of others
    Statistics.from_arrays(X, speaker, number) + Statistics.from_arrays(X, speaker, hashes)
