"""Recordings that stream past enrolled models: the same scores as with everything in memory, chunk by chunk."""

import pickle
import tracemalloc
from importlib.util import find_spec

import numpy as np
import pytest

from duoplda import PLDA, Backend, DuopldaError
from duoplda.data import Recordings
from duoplda.datasets import make_recordings
from duoplda.errors import MissingIds
from duoplda.estimators import scoring
from duoplda.io import Coded, Enrollment, Trials, read_recordings, write_embeddings

KINDS = np.array(["mic", "phone"])
DATA = make_recordings(40, (2, 4), (1, 4), n_dimensions=8, n_speaker_factors=4, n_session_factors=3, seed=0)
N = len(DATA.X)
IDS = np.array([f"utt{i:04}" for i in range(N)])
CHANNEL = KINDS[np.arange(N) % 2]
X = DATA.X + np.where(CHANNEL == "mic", 0.0, 2.0)[:, None]
MAPS = {"session": dict(zip(IDS, DATA.session, strict=True)), "channel": dict(zip(IDS, CHANNEL, strict=True))}
ENROLLED = np.arange(0, 60)  # rows; sessions of theirs have further recordings among the tests


@pytest.fixture(scope="module")
def backend():
    return Backend(lda=6, center_by_channel=True, plda=PLDA(3, 3, shrinkage=(0.1, 0.1, 0.1), tol=1e-4)).fit(
        X, DATA.speaker, DATA.session, CHANNEL
    )


@pytest.fixture(scope="module")
def models(backend):
    rows = ENROLLED
    return backend.enroll(X[rows], DATA.speaker[rows], DATA.session[rows], CHANNEL[rows])


@pytest.fixture(scope="module")
def whole(backend, models):
    """All models against all recordings, everything in memory."""
    return backend.llr(models, backend.enroll(X, np.arange(N), DATA.session, CHANNEL))


def data(ids=IDS, rows=slice(None)):
    return Recordings.from_arrays(X[rows], ids=ids[rows])


class Parts(Recordings):
    """Recordings in several parts, as a cluster has them: each part gets a job of its own that was pickled."""

    def __init__(self, *parts):
        self.parts = parts

    def labels(self):
        raise AssertionError("tests need no labels")

    def chunks(self, rows=4096):
        raise AssertionError("the parts are elsewhere")

    def map(self, function):
        for part in self.parts:
            yield from pickle.loads(pickle.dumps(function))(part)


def in_parts(size=17):
    """All recordings in small parts, which cut sessions and speakers."""
    return Parts(*(data(rows=slice(i, i + size)) for i in range(0, N, size)))


# -- all pairs, the highest, listed trials -----------------------------------------------------------------------------


def test_all_pairs_in_blocks_are_the_matrix(backend, models, whole):
    blocks = list(scoring.score(backend, models, in_parts(), **MAPS))
    got = scoring.as_matrix(blocks, models.ids)
    assert got.test_ids.tolist() == IDS.tolist()
    np.testing.assert_allclose(got.score, whole, rtol=1e-9, atol=1e-9)
    lists = list(scoring.as_scores(blocks, models.ids))
    assert np.concatenate([part.test.values for part in lists]).tolist() == IDS.repeat(len(models)).tolist()
    assert np.concatenate([part.enroll.values for part in lists]).tolist() == models.ids.tolist() * N
    np.testing.assert_allclose(np.concatenate([part.score for part in lists]), whole.T.ravel(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("k", [1, 3, 1000])
def test_the_highest_scores(backend, models, whole, k):
    blocks = list(scoring.score(backend, models, in_parts(), top=k, **MAPS))
    order = np.argsort(-whole, axis=0, kind="stable")[:k].T
    np.testing.assert_array_equal(np.concatenate([b.rows for b in blocks]), order)
    expected = np.take_along_axis(whole.T, order, axis=1)
    np.testing.assert_allclose(np.concatenate([b.scores for b in blocks]), expected, rtol=1e-9, atol=1e-9)
    part = next(scoring.as_scores(blocks[:1], models.ids))
    assert part.enroll.values[0] == models.ids[order[0, 0]]
    assert part.test.values[0] == IDS[0]


@pytest.mark.parametrize("n", [12, 3000])
def test_listed_trials_in_their_order(backend, models, whole, n):
    rng = np.random.default_rng(n)
    model, test = rng.integers(0, len(models), n), rng.integers(0, N // 2, n) * 2
    trials = Trials(Coded.of(models.ids[model]), Coded.of(IDS[test]))
    scores = scoring.score_trials(backend, models, trials, in_parts(), **MAPS)
    assert scores.enroll.values.tolist() == models.ids[model].tolist()
    assert scores.test.values.tolist() == IDS[test].tolist()
    np.testing.assert_allclose(scores.score, whole[model, test], rtol=1e-9, atol=1e-9)


def test_arrays_bring_their_own_labels(backend, models, whole):
    blocks = scoring.score(backend, models, X, session=DATA.session, channel=CHANNEL)
    np.testing.assert_allclose(scoring.as_matrix(blocks, models.ids).score, whole, rtol=1e-9, atol=1e-9)
    (block,) = scoring.score(backend, models, X, session=DATA.session, channel=CHANNEL, trials=([2, 0], [7, 9]))
    np.testing.assert_allclose(block.scores[np.argsort(block.rows)], whole[[2, 0], [7, 9]], rtol=1e-9)
    with pytest.raises(DuopldaError, match="3 session labels for"):
        scoring.score(backend, models, X, session=[1, 2, 3])
    with pytest.raises(DuopldaError, match="leave out ids"):
        scoring.score(backend, models, data(), ids=IDS)


@pytest.mark.parametrize("what", ["matrix", "top", "trials"])
def test_parts_elsewhere_are_scored_by_the_same_job(backend, models, whole, what):
    """Jobs travel by pickle; and what a job has computed stays where it is."""
    parts = Parts(data(rows=slice(0, 50)), data(rows=slice(50, 51)), data(rows=slice(51, N)))
    if what == "trials":
        trials = Trials(Coded.of(models.ids[[1, 0, 2]]), Coded.of(IDS[[80, 3, 50]]))
        got = scoring.score_trials(backend, models, trials, parts, **MAPS).score
        np.testing.assert_allclose(got, whole[[1, 0, 2], [80, 3, 50]], rtol=1e-9)
    elif what == "top":
        blocks = scoring.score(backend, models, parts, top=1, **MAPS)
        np.testing.assert_array_equal(np.concatenate([b.rows for b in blocks])[:, 0], whole.argmax(axis=0))
    else:
        got = scoring.as_matrix(scoring.score(backend, models, parts, **MAPS), models.ids)
        np.testing.assert_allclose(got.score, whole, rtol=1e-9, atol=1e-9)


def job_of(backend, models, **options):
    jobs = []

    class Catch(Parts):
        def map(self, function):
            jobs.append(function)
            return iter(())

    list(scoring.score(backend, models, Catch(), **options))
    return jobs[0]


def test_a_job_computes_what_its_models_need_once(backend, models, whole):
    job = job_of(backend, models, **MAPS)
    size = len(pickle.dumps(job))
    parts = data(rows=slice(0, 100)), data(rows=slice(100, N))
    first = list(job(parts[0]))
    plans = [id(plan) for plan in job.scorer.plans.values()]
    assert plans
    got = np.concatenate([b.scores for b in first + list(job(parts[1]))], axis=1)
    assert [id(plan) for plan in job.scorer.plans.values()] == plans
    assert len(pickle.dumps(job)) == size
    np.testing.assert_allclose(got, whole, rtol=1e-9, atol=1e-9)


class Endless(Recordings):
    """Many chunks, made when asked for."""

    def __init__(self, n, rows):
        self.n, self.rows, self.made = n, rows, 0

    def labels(self):
        raise AssertionError("tests need no labels")

    def chunks(self, rows=4096):
        from duoplda.data.recordings import Chunk

        for i in range(self.n):
            self.made += 1
            at = slice(i * self.rows, (i + 1) * self.rows)
            yield Chunk(np.random.default_rng(i).normal(size=(self.rows, 8)), at, np.arange(at.start, at.stop))


@pytest.mark.filterwarnings("ignore::duoplda.DomainWarning")  # vectors are drawn about 0, far from the model's mean
def test_one_chunk_is_in_memory_at_a_time(backend, models):
    """Forty chunks take no more than a few: nothing is gathered, and nothing is read before it is asked for."""
    peaks = []
    for n in (4, 40):
        tests = Endless(n, 4096)
        blocks = scoring.score(backend, models, tests, top=1)
        next(blocks)
        assert tests.made <= 2
        tracemalloc.start()
        try:
            assert sum(len(b.ids) for b in blocks) == (n - 1) * 4096
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


@pytest.mark.filterwarnings("ignore::duoplda.DomainWarning")
@pytest.mark.parametrize("wanted", [None, np.arange(0, 9000, 2)])
def test_small_chunks_are_joined_and_large_ones_are_cut(backend, models, wanted):
    """Nine chunks of 1,000 recordings, all of which or half of which are scored."""
    rows = np.arange(9000) if wanted is None else wanted
    Y = np.concatenate([np.random.default_rng(i).normal(size=(1000, 8)) for i in range(9)])
    expected = backend.llr(models, backend.enroll(Y[rows], rows))
    for tests in (Endless(9, 1000), Recordings.from_arrays(Y, ids=np.arange(9000))):
        blocks = list(scoring.score(backend, models, tests, wanted=wanted))
        np.testing.assert_array_equal(np.concatenate([block.ids for block in blocks]), rows)
        scores = np.concatenate([block.scores for block in blocks], axis=1)
        np.testing.assert_allclose(scores, expected, rtol=1e-9, atol=1e-9)


# -- labels that are not known -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [False, True])
def test_tests_without_session_or_channel(backend, models, numbers):
    """One without a session has one of its own; one without a kind of channel has the most probable one."""
    code = np.unique(DATA.session, return_inverse=True)[1]
    names = code if numbers else DATA.session
    enrolled = backend.enroll(X[ENROLLED], DATA.speaker[ENROLLED], names[ENROLLED], CHANNEL[ENROLLED])
    known, labelled = np.arange(N) % 3 > 0, np.arange(N) % 5 > 0
    maps = {
        "session": dict(zip(IDS[known].tolist(), names[known].tolist(), strict=True)),
        "channel": dict(zip(IDS[labelled].tolist(), CHANNEL[labelled].tolist(), strict=True)),
    }
    got = scoring.as_matrix(scoring.score(backend, enrolled, in_parts(), **maps), enrolled.ids).score
    kinds = np.where(labelled, CHANNEL, "unknown")
    apart = np.where(known, names, 100_000 + np.arange(N)) if numbers else np.where(known, names, np.char.add("-", IDS))
    tests = backend.enroll(X, np.arange(N), apart, kinds)
    np.testing.assert_allclose(got, backend.llr(enrolled, tests), rtol=1e-9, atol=1e-9)
    without = scoring.as_matrix(scoring.score(backend, models, in_parts()), models.ids).score
    expected = backend.llr(models, backend.enroll(X, np.arange(N)))
    np.testing.assert_allclose(without, expected, rtol=1e-9, atol=1e-9)
    assert np.abs(without - got).max() > 0.1


def test_only_some_recordings(backend, models, whole):
    """What never comes is reported."""
    wanted = IDS[::4]
    blocks = list(scoring.score(backend, models, in_parts(), wanted=wanted[::-1], **MAPS))
    np.testing.assert_allclose(scoring.as_matrix(blocks, models.ids).score, whole[:, ::4], rtol=1e-9, atol=1e-9)
    with pytest.raises(MissingIds, match="2 recordings were not found: 'nobody', 'nothing'"):
        list(scoring.score(backend, models, in_parts(), wanted=["nothing", IDS[0], "nobody"]))
    missed = []
    list(scoring.score(backend, models, in_parts(), wanted=["nothing", IDS[0]], absent=missed.extend))
    assert missed == ["nothing"]


def test_trials_of_unknown_models_and_tests_are_left_out(backend, models, whole):
    a = models.ids[1]
    trials = Trials(Coded.of([a, "nobody", a, a]), Coded.of(["ghost", "spirit", IDS[9], IDS[3]]))
    missed = []
    scores = scoring.score_trials(backend, models, trials, data(), **MAPS, absent=missed.extend)
    assert scores.test.values.tolist() == [IDS[9], IDS[3]]
    np.testing.assert_allclose(scores.score, whole[1, [9, 3]], rtol=1e-9)
    assert missed == ["ghost"]
    with pytest.raises(MissingIds, match="ghost"):
        scoring.score_trials(backend, models, trials, data())


# -- enrolment ---------------------------------------------------------------------------------------------------------


def test_enrolment_in_chunks_is_enrolment_at_once(backend, whole, models):
    """Sessions and speakers are cut by the chunks; a recording may be of two models."""
    member = np.concatenate([ENROLLED, ENROLLED[:5]])
    names = np.concatenate([DATA.speaker[ENROLLED], np.full(5, "zz both")])
    for source in (data(), in_parts(), Parts(data(rows=slice(0, 33)), data(rows=slice(33, N)))):
        sides = scoring.enroll_recordings(backend, source, names, IDS[member], **MAPS)
        assert sides.ids.tolist() == [*models.ids.tolist(), "zz both"]
        tests = backend.enroll(X, np.arange(N), DATA.session, CHANNEL)
        np.testing.assert_allclose(backend.llr(sides, tests)[:-1], whole, rtol=1e-9, atol=1e-9)
        both = backend.enroll(X[:5], np.zeros(5), DATA.session[:5], CHANNEL[:5])
        np.testing.assert_allclose(backend.llr(sides, tests)[-1:], backend.llr(both, tests), rtol=1e-9, atol=1e-9)


def test_recordings_of_models_that_are_not_there(backend):
    missed = []
    args = (backend, data(), ["b", "a", "c", "a"], [IDS[4], IDS[2], "ghost", "spirit"])
    sides = scoring.enroll_recordings(*args, absent=missed.extend)
    assert sides.ids.tolist() == ["a", "b"]
    assert missed == ["ghost", "spirit"]
    with pytest.raises(MissingIds, match="2 recordings were not found: 'ghost', 'spirit'"):
        scoring.enroll_recordings(*args)
    with pytest.raises(DuopldaError, match="there is no model to score"):
        scoring.enroll_recordings(backend, data(), ["a"], ["ghost"], absent=missed.extend)


def test_members_of_models():
    trials = Trials(Coded.of(["m2", "m1", "m2"]), Coded.of(["a", "b", "c"]))
    table = Enrollment(Coded.of(["m1", "m3", "m2"]), Coded.of(["x", "y", "z"]))
    assert [c.values.tolist() for c in scoring.members(table, trials)] == [["m1", "m2"], ["x", "z"]]
    assert [c.values.tolist() for c in scoring.members(table, None)] == [["m1", "m3", "m2"], ["x", "y", "z"]]
    assert [c.values.tolist() for c in scoring.members(None, trials)] == [["m2", "m1"], ["m2", "m1"]]
    with pytest.raises(DuopldaError, match="give an enrolment map, or trials"):
        scoring.members(None, None)


# -- cosines, calibration, devices -------------------------------------------------------------------------------------


def test_cosines_of_mean_vectors(backend):
    sides = scoring.enroll_recordings(backend, in_parts(), DATA.speaker[ENROLLED], IDS[ENROLLED], **MAPS, cosine=True)
    Z = backend.transform(X, CHANNEL)
    means = np.array([Z[ENROLLED][DATA.speaker[ENROLLED] == s].mean(axis=0) for s in sides.ids])
    a, b = (m / np.linalg.norm(m, axis=1, keepdims=True) for m in (means, Z))
    got = scoring.as_matrix(scoring.score(backend, sides, in_parts(), **MAPS, cosine=True), sides.ids).score
    np.testing.assert_allclose(got, a @ b.T, rtol=1e-12, atol=1e-12)
    trials = Trials(Coded.of(sides.ids[[2, 0, 1]]), Coded.of(IDS[[5, 90, 7]]))
    listed = scoring.score_trials(backend, sides, trials, in_parts(), **MAPS, cosine=True)
    np.testing.assert_allclose(listed.score, (a @ b.T)[[2, 0, 1], [5, 90, 7]], rtol=1e-12)
    (best, *_) = scoring.score(backend, sides, in_parts(), **MAPS, cosine=True, top=1)
    np.testing.assert_array_equal(best.rows[:, 0], (a @ b.T).argmax(axis=0)[:17])
    with pytest.raises(DuopldaError, match="enrolled by different models"):
        scoring.score(backend, sides, in_parts())
    backend.plda_.check_sides(backend.enroll(X[:1], [0]))  # the chain itself is as it was


@pytest.mark.parametrize("method", ["affine", "pav"])
def test_calibration(backend, models, whole, method):
    chain = Backend.from_plda(backend.plda_)
    chain.steps_, chain.n_features_in_ = backend.steps_, backend.n_features_in_
    target = whole + np.random.default_rng(0).normal(0, 3, whole.shape) > np.median(whole)
    chain.calibrate(whole.ravel(), target.ravel(), method)
    for calibrated in (True, False):
        got = scoring.as_matrix(scoring.score(chain, models, data(), **MAPS, calibrated=calibrated), models.ids).score
        expected = chain.calibration_.transform(whole) if calibrated else whole
        np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-8)


def test_a_plda_alone_scores_too():
    plda = PLDA(4, 3).fit(X, DATA.speaker, session=DATA.session)
    sides = plda.enroll(X[:60], DATA.speaker[:60], DATA.session[:60])
    (block,) = scoring.score(plda, sides, X[:2], ids=["a", "b"])
    np.testing.assert_allclose(block.scores, plda.llr(sides, plda.enroll(X[:2], [0, 1])), rtol=1e-9)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_tests_go_to_the_device_of_the_models(backend, models, whole, device):
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    args = (backend, in_parts(), DATA.speaker[ENROLLED], IDS[ENROLLED])
    sides = scoring.enroll_recordings(*args, **MAPS, device=device if device == "cuda" else None)
    if device == "cpu":
        like = torch.asarray(X[ENROLLED])
        sides = backend.enroll(like, DATA.speaker[ENROLLED], DATA.session[ENROLLED], CHANNEL[ENROLLED])
    assert isinstance(sides.gamma, torch.Tensor)
    assert sides.gamma.device.type == device
    got = scoring.as_matrix(scoring.score(backend, sides, in_parts(), **MAPS), sides.ids).score
    assert isinstance(got, np.ndarray)
    np.testing.assert_allclose(got, whole, rtol=1e-8, atol=1e-8)
    trials = Trials(Coded.of(sides.ids[[2, 0, 1]]), Coded.of(IDS[[5, 90, 7]]))
    listed = scoring.score_trials(backend, sides, trials, in_parts(), **MAPS)
    np.testing.assert_allclose(listed.score, whole[[2, 0, 1], [5, 90, 7]], rtol=1e-8)
    rows = np.concatenate([b.rows for b in scoring.score(backend, sides, in_parts(), **MAPS, top=2)])
    np.testing.assert_array_equal(rows, np.argsort(-whole, axis=0, kind="stable")[:2].T)


# -- mistakes ----------------------------------------------------------------------------------------------------------


def test_what_is_wrong_with_recordings_is_named(backend, models):
    bad = X.copy()
    bad[[40, 41], 2] = np.nan, np.inf
    tests = Recordings.from_arrays(bad, ids=IDS)
    with pytest.raises(DuopldaError, match="NaN or infinity in 2 recordings: 'utt0040', 'utt0041'"):
        list(scoring.score(backend, models, tests))
    list(scoring.score(backend, models, tests, wanted=IDS[:40]))  # nobody asked for the others
    with pytest.raises(DuopldaError, match="'utt0040'"):
        scoring.enroll_recordings(backend, tests, ["a"], [IDS[40]])
    with pytest.raises(DuopldaError, match="vectors have 3 dimensions, the model takes 8"):
        list(scoring.score(backend, models, X[:, :3]))
    twice = Parts(data(rows=slice(0, 5)), data(rows=slice(3, 9)))
    with pytest.raises(DuopldaError, match="2 recordings were read twice: 'utt0003', 'utt0004'"):
        list(scoring.score(backend, models, twice, wanted=IDS[:9]))
    with pytest.raises(DuopldaError, match="use ids of one type"):
        list(scoring.score(backend, models, data(), wanted=[1, 2]))


def test_what_does_not_go_together(backend, models):
    with pytest.raises(DuopldaError, match="exclude each other"):
        scoring.score(backend, models, data(), trials=([0], [IDS[0]]), top=1)
    with pytest.raises(DuopldaError, match="enrolled by different models"):
        scoring.score(PLDA.from_parameters(np.zeros(8), np.eye(8), None, np.eye(8)), models, data())
    with pytest.raises(DuopldaError, match="sides must come from enroll"):
        scoring.score(backend, X, data())


def test_recordings_in_a_file(backend, models, whole, tmp_path):
    write_embeddings(tmp_path / "x.ark", IDS, X)
    got = scoring.as_matrix(scoring.score(backend, models, read_recordings(tmp_path / "x.ark"), **MAPS), models.ids)
    np.testing.assert_allclose(got.score, whole, rtol=1e-9, atol=1e-9)
