"""Score normalisation against the formulas written out trial by trial, with scores of dense Gaussians."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from duoplda import PLDA, Backend, DuopldaError, Recordings
from duoplda.arrays import to_numpy
from duoplda.datasets import make_recordings
from duoplda.estimators import scoring
from duoplda.io import Coded, Trials
from duoplda.trials.blocks import Scorer
from duoplda.trials.normalization import NORMALIZATIONS, Cohort, NormalizedScorer, selected_moments
from test_llr import MODELS, each_pair, enrolled, two_sides

near = {"rtol": 1e-10, "atol": 1e-10}
every_method = pytest.mark.parametrize("method", NORMALIZATIONS)
with_speakers = pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name][1]])


def directly(scores, of_models, of_tests, method, top):
    """One trial after another. `of_models` (M, C) and `of_tests` (T, C) are scores with the members of the cohort."""
    out = np.empty_like(scores)
    for i, j in np.ndindex(scores.shape):
        e, t = of_models[i], of_tests[j]
        near_e, near_t = (sorted(range(len(s)), key=lambda c, s=s: (-s[c], c))[:top] for s in (e, t))
        e, t = {
            "z": (e, None),
            "t": (None, t),
            "s": (e, t),
            "as1": (e[near_e], t[near_t]),
            "as2": (e[near_t], t[near_e]),
        }[method]
        out[i, j] = np.mean([(scores[i, j] - np.mean(s)) / np.std(s) for s in (e, t) if s is not None])
    return out


def three_sets(name, seed=0, n=(5, 6, 9)):
    """A model, and models, tests and a cohort: ragged sets of several sessions, none of them shared."""
    p, a, b = two_sides(name, seed, n[:2])
    rng = np.random.default_rng(seed + 100)
    c = oracle.random_data(rng, p, n[2], (1, 3), (1, 4))
    return p, a, b, oracle.Data(c.X, np.char.add("c-", c.speaker), np.char.add("c-", c.session), c.kind)


def expected_of(p, a, b, c, method, top):
    return directly(*(oracle.llr_matrix(p, *pair) for pair in ((a, b), (a, c), (b, c))), method, top)


# -- the formulas ------------------------------------------------------------------------------------------------------


@every_method
@with_speakers
def test_the_formulas(name, method):
    """Enrolled sets of several sessions on each side and in the cohort, against dense Gaussians."""
    p, a, b, c = three_sets(name)
    expected = expected_of(p, a, b, c, method, 4)
    A, B = enrolled(p, a), enrolled(p, b)
    scorer = NormalizedScorer(A, Cohort(enrolled(p, c), method, 4))
    np.testing.assert_allclose(scorer.columns(B), expected, **near)
    np.testing.assert_allclose(scorer.columns(B, slice(2, 5)), expected[:, 2:5], **near)
    np.testing.assert_allclose(scorer.pairs(B, each_pair(A, B)), expected.ravel(), **near)
    some = np.array([[3, 1], [0, 5], [3, 1], [2, 0]])
    np.testing.assert_allclose(scorer.pairs(B, some), expected[some[:, 0], some[:, 1]], **near)
    assert scorer.pairs(B, np.zeros((0, 2), int)).shape == (0,)
    rows, values = scorer.top(B, 3)
    np.testing.assert_array_equal(rows, np.argsort(-expected, axis=0)[:3].T)
    np.testing.assert_allclose(values, np.take_along_axis(expected.T, rows, axis=1), **near)


@every_method
@pytest.mark.parametrize("cells", [1, 20, 37])
def test_blocks_do_not_show(method, cells):
    p, a, b, c = three_sets("low rank", 1)
    A, B = enrolled(p, a), enrolled(p, b)
    cohort = Cohort(enrolled(p, c), method, 3)
    whole = NormalizedScorer(A, cohort).columns(B)
    scorer = NormalizedScorer(A, cohort, scores_at_once=cells)
    np.testing.assert_allclose(
        np.concatenate([s for _, s in scorer.blocks(B, cells=len(A) * 2)], axis=1), whole, **near
    )
    np.testing.assert_allclose(scorer.pairs(B, each_pair(A, B)), whole.ravel(), **near)


@every_method
def test_other_array_libraries(library, method):
    data = make_recordings(12, 2, 2, n_dimensions=6, n_speaker_factors=3, n_session_factors=2, seed=1)
    m = data.model
    plda, part = PLDA.from_parameters(m.mu[0], m.V, m.U, m.W[0]), np.arange(len(data.X)) // 16
    X, sides = library.put(data.X), []
    for k in range(3):
        rows = np.flatnonzero(part == k)
        sides.append(
            [plda.enroll(Y[rows[0] : rows[-1] + 1, :], data.speaker[rows], data.session[rows]) for Y in (data.X, X)]
        )
    own, others = (NormalizedScorer(a, Cohort(c, method, 2)) for a, c in zip(sides[0], sides[2], strict=True))
    expected = own.columns(sides[1][0])
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(library.get(others.columns(sides[1][1])), expected, **near)
    pairs = np.array([[0, 1], [2, 0]])
    np.testing.assert_allclose(library.get(others.pairs(sides[1][1], pairs)), expected[[0, 2], [1, 0]], **near)
    np.testing.assert_array_equal(to_numpy(others.top(sides[1][1], 1)[0])[:, 0], expected.argmax(axis=0))


@settings(max_examples=25, derandomize=True, deadline=None, database=None)
@given(st.integers(0, 1000), st.sampled_from(NORMALIZATIONS), st.integers(2, 12))
def test_the_order_of_models_tests_and_members_does_not_matter(seed, method, top):
    p, *sets = three_sets("kinds", seed)
    sides = [enrolled(p, x) for x in sets]
    rng = np.random.default_rng(seed)
    i, j, k = (rng.permutation(len(side)) for side in sides)
    A, B, C = (side.select(order) for side, order in zip(sides, (i, j, k), strict=True))
    whole = NormalizedScorer(sides[0], Cohort(sides[2], method, top)).columns(sides[1])
    np.testing.assert_allclose(NormalizedScorer(A, Cohort(C, method, top)).columns(B), whole[np.ix_(i, j)], **near)


@pytest.mark.parametrize("top", [6, 10_000])
def test_with_all_members_the_adaptive_ones_are_s_norm(top):
    p, a, b, c = three_sets("full rank", n=(4, 4, 6))
    A, B, C = (enrolled(p, x) for x in (a, b, c))
    plain = NormalizedScorer(A, Cohort(C, "s")).columns(B)
    for method in ("as1", "as2"):
        np.testing.assert_allclose(NormalizedScorer(A, Cohort(C, method, top)).columns(B), plain, **near)


def test_the_two_selections_differ_and_swapping_sides_does_nothing():
    p, a, b, c = three_sets("low rank", 2)
    A, B, C = (enrolled(p, x) for x in (a, b, c))
    both = [NormalizedScorer(A, Cohort(C, method, 3)).columns(B) for method in ("as1", "as2")]
    assert np.abs(both[0] - both[1]).max() > 0.1
    for method, found in zip(("as1", "as2"), both, strict=True):
        np.testing.assert_allclose(NormalizedScorer(B, Cohort(C, method, 3)).columns(A), found.T, **near)
    z, t = (NormalizedScorer(*x, False).columns(y) for x, y in (((A, Cohort(C, "z")), B), ((B, Cohort(C, "t")), A)))
    np.testing.assert_allclose(z, t.T, **near)


def test_small_variances_far_from_the_mean():
    """A side's scores with the members that the other selects lie close together, far from all others."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(40, 3)) * 1e4
    A[:5] = 7e4 + 1e-3 * rng.normal(size=(5, 3))
    nearest = np.stack([np.arange(5), np.arange(20, 25)])
    mean, deviation = selected_moments(A, nearest)
    np.testing.assert_allclose(mean, [[A[rows, i].mean() for rows in nearest] for i in range(3)], rtol=1e-12)
    np.testing.assert_allclose(deviation, [[A[rows, i].std() for rows in nearest] for i in range(3)], rtol=1e-10)


def test_sides_that_are_added_later_count():
    p, a, b, c = three_sets("low rank", 3)
    A, B, C = (enrolled(p, x) for x in (a, b, c))
    scorer = NormalizedScorer(A.select([0, 1]), Cohort(C.select([0, 1, 2]), "s"))
    before = scorer.columns(B)
    scorer.a.add(A.select([2]))
    np.testing.assert_allclose(scorer.columns(B)[:2], before, **near)
    assert scorer.columns(B).shape == (3, len(B))
    scorer.cohort.sides.add(C.select([5]))
    assert np.abs(scorer.columns(B)[:2] - before).max() > 1e-3
    s, e, t = (oracle.llr_matrix(p, *pair) for pair in ((a, b), (a, c), (b, c)))
    members = [0, 1, 2, 5]
    np.testing.assert_allclose(scorer.columns(B), directly(s[:3], e[:3, members], t[:, members], "s", 0), **near)


# -- bad cohorts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalize": "q"}, "normalize='q' must be one of z, t, s, as1, as2"),
        ({"top": 1}, "top=1 must be a whole number from 2 on"),
        ({"top": 2.5}, "top=2.5 must be a whole number"),
        ({"top": True}, "top=True must be a whole number"),
        ({"speaker": ["a", "b"]}, "speaker must be a mapping from ids, got list"),
    ],
)
def test_options_that_are_none(options, message):
    plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
    with pytest.raises(DuopldaError, match=message):
        Cohort(plda.enroll([[1.0], [2.0]], ["a", "b"]), **options)


def test_cohorts_that_are_none():
    plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
    with pytest.raises(DuopldaError, match="the cohort has 1 members: give at least 2"):
        Cohort(plda.enroll([[1.0]], ["a"]))
    with pytest.raises(DuopldaError, match="the cohort must come from enroll, got ndarray"):
        Cohort(np.eye(3))
    sides = plda.enroll([[1.0], [2.0], [3.0]], ["a", "b", "c"])
    sides.gamma[1] = np.nan
    with pytest.raises(DuopldaError, match="1 members of the cohort have NaN or infinity in them: 'b'"):
        Cohort(sides)


@every_method
def test_models_and_tests_that_are_not_finite_are_named(method):
    plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
    cohort = Cohort(plda.enroll([[1.0], [2.0], [3.0]], ["a", "b", "c"]), method, 2)
    sides = [plda.enroll([[1.5], [2.5]], ["good", "bad"]) for _ in range(2)]
    sides[method == "t"].gamma[0] = np.nan  # ids are sorted
    with pytest.raises(DuopldaError, match=f"1 {'tests' if method == 't' else 'models'} with the cohort .*: 'bad'"):
        NormalizedScorer(sides[0], cohort).columns(sides[1])


@every_method
def test_equal_scores_have_no_deviation(method):
    """Members that are all alike, or a model in which nobody differs."""
    plda = PLDA.from_parameters([0.0], [[1.3]], None, [[0.7]])
    models, tests = plda.enroll([[1.1], [2.0]], ["ann", "bob"]), plda.enroll([[3.0]], ["x"])
    alike = plda.enroll(np.full((5, 1), 0.3), list("vwxyz"))
    side = "1 tests with the cohort are all equal, or not finite: 'x'"
    side = side if method == "t" else "2 models with the cohort are all equal, or not finite: 'ann', 'bob'"
    scorer = NormalizedScorer(models, Cohort(alike, method))
    with pytest.raises(DuopldaError, match=side):
        scorer.columns(tests)
    with pytest.raises(DuopldaError, match=side):
        scorer.pairs(tests, [[0, 0], [1, 0]])
    nothing = PLDA.from_parameters([0.0], np.zeros((1, 0)), None, [[1.0]])
    sides = nothing.enroll([[1.0], [2.0]], ["a", "b"])
    with pytest.raises(DuopldaError, match="all equal"):
        NormalizedScorer(sides, Cohort(sides, method)).columns(sides)


def test_approximate_scores_are_not_normalised():
    plda = PLDA.from_parameters([0.0], [[1.0]], None, [[1.0]])
    sides = plda.enroll([[1.0], [2.0]], ["a", "b"])
    with pytest.raises(DuopldaError, match="leave out the cohort, or approximate"):
        NormalizedScorer(sides, Cohort(sides)).guesses(sides)


# -- streamed ----------------------------------------------------------------------------------------------------------

DATA = make_recordings(40, (2, 4), (1, 4), n_dimensions=8, n_speaker_factors=4, n_session_factors=3, seed=0)
IDS = np.array([f"utt{i:04}" for i in range(len(DATA.X))])
SPEAKERS = np.unique(DATA.speaker)
MODELS_, TESTS, OTHERS = (np.flatnonzero(np.isin(DATA.speaker, part)) for part in np.split(SPEAKERS, [8, 20]))
SESSION, SPEAKER = (dict(zip(IDS.tolist(), of.tolist(), strict=True)) for of in (DATA.session, DATA.speaker))


@pytest.fixture(scope="module")
def backend():
    chain = Backend(lda=6, plda=PLDA(3, 3, shrinkage=(0.1, 0.1, 0.1), tol=1e-4))
    chain.fit(DATA.X, DATA.speaker, session=DATA.session)
    return chain.calibrate([-1.0, 1.0, -0.5, 3.0, 2.0], [False, False, True, True, True])


@pytest.fixture(scope="module")
def sides(backend):
    """Models, and a cohort of recordings."""
    models = backend.enroll(DATA.X[MODELS_], DATA.speaker[MODELS_], DATA.session[MODELS_])
    return models, scoring.enroll_recordings(backend, recordings(OTHERS), session=SESSION)


def recordings(rows):
    return Recordings.from_arrays(DATA.X[rows], ids=IDS[rows])


class Parts(Recordings):
    """Recordings in parts of seven at most, to each of which a job comes by pickle."""

    def __init__(self, rows):
        self.parts = [recordings(part) for part in np.array_split(rows, -(-len(rows) // 7))]

    labels = chunks = None

    def map(self, function):
        for part in self.parts:
            yield from pickle.loads(pickle.dumps(function))(part)


Parts.__abstractmethods__ = frozenset()


@pytest.mark.parametrize("source", [recordings, Parts])
@every_method
def test_streamed_scores_are_those_of_the_formulas(backend, sides, method, source):
    """All pairs, the highest and a list; the calibration of the chain is left out."""
    models, cohort = sides
    tests = backend.enroll(DATA.X[TESTS], IDS[TESTS], DATA.session[TESTS])
    assert cohort.ids.tolist() == IDS[OTHERS].tolist()
    assert backend.calibration_ is not None
    parts = (Scorer(a).columns(b) for a, b in ((models, tests), (models, cohort), (tests, cohort)))
    expected = directly(*parts, method, 11)
    options = {"session": SESSION, "cohort": cohort, "normalize": method, "cohort_top": 11, "speaker": SPEAKER}
    blocks = scoring.score(backend, models, source(TESTS), **options)
    np.testing.assert_allclose(scoring.as_matrix(blocks, models.ids).score, expected, **near)
    found = list(scoring.score(backend, models, source(TESTS), top=2, **options))
    np.testing.assert_array_equal(np.concatenate([b.rows for b in found]), np.argsort(-expected, axis=0)[:2].T)
    rng = np.random.default_rng(0)
    i, j = rng.integers(0, len(models), 50), rng.integers(0, len(TESTS), 50)
    trials = Trials(Coded.of(models.ids[i]), Coded.of(IDS[TESTS][j]))
    found = scoring.score_trials(backend, models, trials, source(TESTS), **options)
    np.testing.assert_allclose(found.score, expected[i, j], **near)


def test_cosines_are_normalised_too(backend):
    given = backend, recordings(np.arange(len(IDS)))
    models = scoring.enroll_recordings(*given, DATA.speaker[MODELS_], IDS[MODELS_], cosine=True)
    cohort = scoring.enroll_recordings(backend, recordings(OTHERS), cosine=True)
    blocks = scoring.score(backend, models, recordings(TESTS), cosine=True, cohort=cohort, normalize="s")
    found = scoring.as_matrix(blocks, models.ids).score
    tests = scoring.enroll_recordings(backend, recordings(TESTS), cosine=True)
    parts = (Scorer(a, True).columns(b) for a, b in ((models, tests), (models, cohort), (tests, cohort)))
    np.testing.assert_allclose(found, directly(*parts, "s", 0), **near)
    with pytest.raises(DuopldaError, match="enrolled by different models"):
        scoring.score(backend, models, recordings(TESTS), cosine=True, cohort=backend.enroll(DATA.X[:3], [0, 1, 2]))


def test_each_recording_enrolled(backend):
    """In chunks and in parts, sorted by id; those with named sessions and those without take turns."""
    order = np.random.default_rng(0).permutation(OTHERS)
    some = {i: s for i, s in SESSION.items() if int(i[3:]) % 3}
    for source in (recordings, Parts):
        found = scoring.enroll_recordings(backend, source(order), session=some)
        expected = backend.enroll(DATA.X[OTHERS], IDS[OTHERS])
        assert found.ids.tolist() == IDS[OTHERS].tolist()
        np.testing.assert_allclose(found.gamma, expected.gamma, rtol=1e-9, atol=1e-9)
        assert sorted(found.session.tolist()) == sorted(some[i] for i in IDS[OTHERS].tolist() if i in some)
        assert [some[i] for i in found.ids[found.session_side].tolist()] == found.session.tolist()
    with pytest.raises(DuopldaError, match="1 ids of recordings occur more than once: 'utt0001'"):
        scoring.enroll_recordings(backend, recordings([0, 1, 2, 3, 4, 5, 6, 7, 1]))
    with pytest.raises(DuopldaError, match="give both ids and members"):
        scoring.enroll_recordings(backend, recordings([0]), ids=["a"])
    with pytest.raises(DuopldaError, match="there is no recording to enroll"):
        scoring.enroll_recordings(backend, Nothing(OTHERS))


class Nothing(Parts):
    def map(self, function):
        yield from ()


# -- shared speakers ---------------------------------------------------------------------------------------------------


def scored(backend, models, tests, cohort, **options):
    return list(scoring.score(backend, models, tests, cohort=cohort, **options))


def test_a_cohort_that_shares_speakers_is_refused(backend, sides):
    models, cohort = sides
    tests = recordings(TESTS)
    assert scored(backend, models, tests, cohort)
    people = backend.enroll(DATA.X, DATA.speaker)  # all of them, models too
    shared = f"shares 8 speakers or recordings with the models: '{SPEAKERS[0]}'"
    with pytest.raises(DuopldaError, match=shared):
        scored(backend, models, tests, people)
    with pytest.raises(DuopldaError, match="shares 1 speakers or recordings with the test recordings: 'utt"):
        scored(backend, models, recordings([*TESTS, OTHERS[3]]), cohort)
    for which in ({"trials": ([0], [IDS[OTHERS[3]]])}, {"wanted": [IDS[OTHERS[3]]]}):
        with pytest.raises(DuopldaError, match=f"with the test recordings: '{IDS[OTHERS[3]]}'"):
            scoring.score(backend, models, tests, cohort=cohort, **which)  # before anything is read


def test_a_cohort_that_shares_sessions_is_refused(backend, sides):
    models, cohort = sides
    again = backend.enroll(DATA.X[MODELS_][:2], ["p", "q"], DATA.session[MODELS_][:2])
    with pytest.raises(DuopldaError, match=f"1 sessions with the models: '{DATA.session[MODELS_][0]}'"):
        scored(backend, models, recordings(TESTS), cohort.select(slice(None)).add(again.select([0])))
    again = backend.enroll(DATA.X[TESTS][:2], ["p", "q"], DATA.session[TESTS][:2])
    members = cohort.select(slice(None)).add(again)
    assert scored(backend, models, recordings(TESTS), members)  # nobody says what sessions the tests are of
    with pytest.raises(DuopldaError, match=f"sessions with the test recordings: '{DATA.session[TESTS][0]}'"):
        scored(backend, models, recordings(TESTS), members, session=SESSION)


def test_speakers_tell_where_ids_do_not(backend, sides):
    """A map from ids to speakers: cohort and tests have other recordings of one person."""
    models, cohort = sides
    tests = recordings(TESTS)
    who = SPEAKER | {IDS[OTHERS[0]]: SPEAKER[IDS[TESTS[0]]]}
    n = int((DATA.speaker[TESTS] == DATA.speaker[TESTS[0]]).sum())
    with pytest.raises(DuopldaError, match=f"shares {n} speakers or recordings with the test recordings"):
        scored(backend, models, tests, cohort, speaker=who)
    who = SPEAKER | {IDS[OTHERS[0]]: SPEAKERS[2]}  # the id of a model
    with pytest.raises(DuopldaError, match=f"shares 1 speakers or recordings with the models: '{SPEAKERS[2]}'"):
        scored(backend, models, tests, cohort, speaker=who)


def test_rows_of_arrays_are_no_names(backend):
    """Tests without ids are not compared by the numbers of their rows; numbers that were given are names."""
    models, cohort = (
        backend.enroll(DATA.X[MODELS_], DATA.speaker[MODELS_]),
        backend.enroll(DATA.X[OTHERS][:9], range(9)),
    )
    assert scored(backend, models, DATA.X[TESTS], cohort)
    assert scored(backend, models, DATA.X[TESTS], cohort, trials=([0, 1], [3, 4]))
    with pytest.raises(DuopldaError, match="shares 9 speakers or recordings with the test recordings: 0, 1, 2"):
        scored(backend, models, DATA.X[TESTS], cohort, ids=np.arange(len(TESTS)))
    with pytest.raises(DuopldaError, match="with the models: '0', '1'"):
        scored(backend, backend.enroll(DATA.X[:2], ["0", "1"]), DATA.X[TESTS], cohort)


def test_tests_that_cannot_be_normalised_are_named(backend, sides):
    """By their ids, in whatever chunk they are."""
    models, _ = sides
    alike = backend.enroll(np.repeat(DATA.X[OTHERS][:1], 4, axis=0), list("wxyz"))
    first = IDS[TESTS[0]]
    with pytest.raises(DuopldaError, match=f"of {len(TESTS)} tests with the cohort are all equal, .*: '{first}'"):
        scored(backend, models, recordings(TESTS), alike, normalize="t")
    with pytest.raises(DuopldaError, match=f"of 8 models with the cohort are all equal, .*: '{SPEAKERS[0]}'"):
        scored(backend, models, recordings(TESTS), alike, normalize="z")


# -- the experiment ----------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[1]
SPEECH = ROOT.parent / "shared" / "data"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    import normalization as module  # examples/normalization.py

    return module


def test_the_calibration_of_the_experiment_does_not_see_its_own_speakers(example):
    """What a trial becomes depends on its own score and on those of other speakers alone."""
    rng = np.random.default_rng(0)
    a, b = np.divmod(np.arange(15**2 * 3) % 15**2, 15)
    label = a == b
    values = rng.normal(2.0 * label, 1.0)
    before = example.calibrated(values, label, a, b)
    group, own = 2, 7  # speaker 7 is in the group of 2, 7 and 12
    assert own % example.GROUPS == group
    trial = np.flatnonzero((a == own) & (b == own))[0]
    touched = np.isin(a % example.GROUPS, group) | np.isin(b % example.GROUPS, group)
    touched[trial] = False
    changed = np.where(touched, values / 2 + 3, values)
    after = example.calibrated(changed, label, a, b)
    assert after[trial] == before[trial]
    others = np.flatnonzero(~touched)
    assert np.abs(after - before)[others].max() > 1e-3  # those of other groups do see it


@pytest.mark.skipif(not SPEECH.is_dir(), reason="the embeddings of real speech are not here")
def test_the_experiment_on_some_trials(example, capsys):
    """Cohorts are of other speakers than the trials, and scores are those of the formulas."""
    raw = example.speech.read(SPEECH, "cvau_campp_public")
    data, public, trials = example.speech.load(SPEECH, "cvau")
    few = np.random.default_rng(0).permutation(len(trials["trial_label"]))[:4000]
    trials = trials | {name: trials[name][few] for name in ("trial_model", "trial_test_row", "trial_label")}
    rows = example.one_of_each(data, most=4)
    assert len(np.unique(data["session_id"][rows])) == len(rows) == 600
    assert np.bincount(data["channel"][rows]).tolist() == [120] * 5
    part = data["session"] < 4
    labels = data["speaker"][part], data["session_id"][part]
    backend = Backend(plda=PLDA(20, 20, shrinkage=0.1, tol=1e-3)).fit(data["embeddings"][part], *labels)
    half = np.searchsorted(np.unique(raw["speaker"]), raw["speaker"]) >= 9
    first, test = trials["model_rows"][trials["trial_model"], 0], trials["trial_test_row"]
    assert (half[first] == half[test]).all()
    found = example.in_halves(backend, raw, public, trials, "as2", 20)
    for own in (half, ~half):
        of = np.flatnonzero(own[test])[:3]
        shift = (public["embeddings"] - raw["embeddings"])[own][0]
        chosen = example.one_of_each(raw)
        cohort = backend.enroll(raw["embeddings"][chosen[~own[chosen]]] + shift, np.arange((~own[chosen]).sum()))
        model = trials["model_rows"][trials["trial_model"][of]]
        sets = [rows[rows >= 0] for rows in model]
        session, X = public["session_id"], public["embeddings"]
        sides = [backend.enroll(X[rows], np.zeros(len(rows)), session[rows]) for rows in sets]
        tests = [backend.enroll(X[[row]], [0]) for row in test[of]]
        for k, (e, t) in enumerate(zip(sides, tests, strict=True)):
            parts = (Scorer(x).columns(y) for x, y in ((e, t), (e, cohort), (t, cohort)))
            assert found[of[k]] == pytest.approx(directly(*parts, "as2", 20).item(), rel=1e-6)
    table = example.Table(public, trials, resamples=3)
    table.add("none", example.scores(backend, public, trials, None, "", 0))
    table.add("as2", found)
    assert len(capsys.readouterr().out.splitlines()) == 2
