"""Shards cut through sessions give the statistics of the whole."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duoplda import Statistics
from duoplda.data import labels as lab
from duoplda.datasets import make_recordings
from duoplda.errors import DuopldaError
from duoplda.model import shards
from duoplda.model.accumulate import near_mean
from test_statistics import assert_equal_statistics


def ragged(seed, kinds):
    data = make_recordings(9, (1, 4), (1, 9), n_dimensions=5, n_speaker_factors=3, n_session_factors=2, seed=seed)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(data.X))
    channel = rng.choice(list("abc"), len(order)) if kinds > 1 else None
    return data.X[order] + 1e3, data.speaker[order], data.session[order], channel


def in_shards(X, speaker, session, channel, cuts, n_buckets=1, **options):
    """As the engines do it."""
    pieces = [np.arange(a, b) for a, b in zip([0, *cuts], [*cuts, len(X)], strict=True) if b > a]
    encoded = [lab.encode(speaker[p], session[p], None if channel is None else channel[p], len(p)) for p in pieces]
    keys, times = np.unique(np.concatenate([lab.keys(e.session_ids) for e in encoded]), return_counts=True)
    offset = near_mean(X[pieces[0]])
    whole, rest = [], []
    for p, e in zip(pieces, encoded, strict=True):
        split = np.isin(lab.keys(e.session_ids), keys[times > 1])
        stats, part = shards.shard(X[p], e, split, offset, **options)
        whole += [stats] if stats is not None else []
        rest += [part] if part is not None else []
    options.pop("precision", None)
    joined = [shards.join([r.bucket(b, n_buckets) for r in rest], **options) for b in range(n_buckets)]
    return sum([*whole, *(j for j in joined if j is not None)])


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 1000),
    st.sampled_from([1, 3]),
    st.lists(st.integers(1, 60), max_size=6).map(sorted),
    st.sampled_from([0, 3]),
    st.sampled_from([1, 3]),
)
@example(46, 1, [1], 0, 3)  # the one session that is cut is not in the first bucket
def test_shards_cut_anywhere_give_the_statistics_of_the_whole(seed, kinds, cuts, n_folds, n_buckets):
    data = ragged(seed, kinds)
    cuts = [min(c, len(data[0])) for c in cuts]
    whole = Statistics.from_arrays(*data, n_folds=n_folds, seed=1)
    total = in_shards(*data, cuts, n_buckets, n_folds=n_folds, seed=1)
    assert_equal_statistics(total, whole, 1e-9)
    assert len(total.folds) == n_folds
    for a, b in zip(total.folds, whole.folds, strict=True):
        assert_equal_statistics(a, b, 1e-9)


def test_a_session_under_two_speakers_in_different_shards():
    X, speaker, session, _ = ragged(0, 1)
    session = np.array([f"s{s}" for s in session])
    session[0], session[-1] = "torn", "torn"
    speaker = speaker.copy()
    speaker[0], speaker[-1] = 0, 1
    with pytest.raises(DuopldaError, match=r"session torn belongs to 2 speakers \('0', '1'\), in different shards"):
        in_shards(X, speaker, session, None, [len(X) // 2])


@pytest.mark.parametrize("row", [0, 20])
def test_rows_that_are_not_finite_are_named(row):
    X, speaker, session, _ = ragged(0, 1)
    X[row] = np.nan
    with pytest.raises(DuopldaError, match="NaN or infinity in 1 of"):
        in_shards(X, speaker, session, None, [5, 30])
