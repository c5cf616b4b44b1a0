"""The sample of recordings beside the statistics: bounded, and the same however the recordings come."""

import numpy as np
import pytest

from duoplda import Recordings, Statistics
from duoplda.datasets import make_recordings
from duoplda.model.sample import Sample, SampleLimits

X, SPEAKER, SESSION, CHANNEL = make_recordings(
    40, (1, 25), (1, 9), n_dimensions=6, n_speaker_factors=3, n_session_factors=3, seed=3
)
NAMES = np.array([f"spk{s}" for s in SPEAKER])
CALLS = np.array([f"call{s}" for s in SESSION])


def samples(stats):
    return [f.sample for f in stats.folds]


def assert_same(a, b):
    for one, other in zip(a, b, strict=True):
        for name in ("X", "kind", "speaker", "session", "recording"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.fixture(scope="module")
def whole():
    return samples(Statistics.from_arrays(X, NAMES, CALLS, n_folds=4))


def test_limits(whole):
    for part in whole:
        pairs, times = np.unique(np.stack([part.speaker, part.session]), axis=1, return_counts=True)
        assert times.max() == 5
        assert np.unique(pairs[0], return_counts=True)[1].max() <= 16


def test_what_is_kept_are_recordings_of_their_speakers(whole):
    """Every row is one of the data, and speakers and sessions are told apart as the labels tell them."""
    rows = {x.tobytes(): i for i, x in enumerate(X)}
    index = np.concatenate([[rows[x.tobytes()] for x in part.X] for part in whole])
    assert len(set(index.tolist())) == len(index)
    for keys, labels in (("speaker", NAMES), ("session", CALLS)):
        found = np.concatenate([getattr(part, keys) for part in whole])
        assert len(set(zip(found.tolist(), labels[index], strict=True))) == len(set(found)) == len(set(labels[index]))


@pytest.mark.parametrize("n_bytes", [1 << 26, 10_000, 2000])
@pytest.mark.parametrize("seed", range(3))
def test_any_order_and_any_parts_of_a_sample_that_is_full(seed, n_bytes):
    limits = SampleLimits(n_bytes)
    expected = Sample.of(Recordings.from_arrays(X, NAMES, CALLS), limits)
    assert len(expected) <= n_bytes // (8 * X.shape[1])
    order = np.random.default_rng(seed).permutation(len(X))
    chunks = Recordings.from_chunks(lambda: np.array_split(X[order], 7), NAMES[order], CALLS[order])
    assert_same([Sample.of(chunks, limits)], [expected])
    parts = [Sample.of(Recordings.from_arrays(X[p], NAMES[p], CALLS[p]), limits) for p in np.array_split(order, 5)]
    assert_same([Sample.join(parts)], [expected])


@pytest.mark.parametrize("seed", range(3))
def test_any_order_and_any_shards(seed):
    expected = samples(Statistics.from_arrays(X, NAMES, CALLS, n_folds=4))
    order = np.random.default_rng(seed).permutation(len(X))
    assert_same(samples(Statistics.from_arrays(X[order], NAMES[order], CALLS[order], n_folds=4)), expected)
    parts = np.array_split(order, 5)
    shards = [Statistics.from_arrays(X[p], NAMES[p], CALLS[p], n_folds=4, close=False) for p in parts]
    assert_same(samples(sum(shards).close()), expected)
    chunks = Recordings.from_chunks(lambda: (X[p] for p in parts), NAMES[order], CALLS[order])
    assert_same(samples(Statistics.of(chunks, lambda x, kind: 2 * x, n_folds=4)), expected)  # raw ones are kept


def test_single_precision_hashes_as_it_reads(whole):
    low = X.astype(np.float32)
    a = samples(Statistics.from_arrays(low, NAMES, CALLS, n_folds=4))
    b = samples(Statistics.from_arrays(low.astype(np.float64), NAMES, CALLS, n_folds=4))
    for one, other in zip(a, b, strict=True):
        np.testing.assert_array_equal(one.recording, other.recording)


def test_names_within_the_speaker_are_the_same_sessions(whole):
    """Lists name sessions within their speaker: "spk3 call7"."""
    long = np.array([f"{s} {c}" for s, c in zip(NAMES, CALLS, strict=True)])
    assert_same(samples(Statistics.from_arrays(X, NAMES, long, n_folds=4)), whole)


def test_speakers_fit_or_stay_out():
    n = 30
    column = np.repeat(np.arange(n, dtype=np.uint64), 4)
    rows = np.arange(4 * n)
    s = Sample(rows[:, None] * 1.0, rows, column, rows.astype(np.uint64), rows.astype(np.uint64), max_recordings=41)
    assert Sample.join([s]).speaker.tolist() == np.repeat(np.arange(10), 4).tolist()  # the eleventh would be cut


def test_no_folds_no_sample():
    assert Statistics.from_arrays(X, NAMES, CALLS).sample is None
