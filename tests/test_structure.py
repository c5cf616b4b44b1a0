"""Calibration by the structure of trials: what is expected of them, what is learned, and that all paths agree."""

from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose

import duoplda
import oracle
from duoplda import PLDA, Backend, DuopldaError
from duoplda.calibration import AffineCalibration, StructureCalibration, load
from duoplda.cli._words import summary_lines
from duoplda.datasets import make_recordings
from duoplda.diarization.known import known_voices
from duoplda.metrics import cllr
from duoplda.selection.structure import StructuredTrials, by_structure
from duoplda.trials.structure import Structure

STATE = {
    "log_scales_": [-0.4, -0.3, 0.2],
    "offsets_": [0.3, 0.5, -0.4],
    "least_": 0.01,
    "most_": 40.0,
    "ridge": 0.003,
    "priors": [0.5, 0.01],
}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def p(rng):
    return oracle.random_model(rng, 6, 3, 2, K=2)


@pytest.fixture
def plda(p):
    """It has two kinds of channels, and a calibration that differs between structures."""
    plda = PLDA.from_parameters(p.mu, p.V, p.U, p.W, channels=["a", "b"])
    plda.calibration_ = StructureCalibration.from_state(STATE)
    return plda


@pytest.fixture
def sides(rng, p, plda):
    """Ragged sets of recordings, and recordings one by one."""
    data = oracle.random_data(rng, p, 12, recordings=(1, 4))
    kinds = np.array(["a", "b"])[data.kind]
    enrolled = plda.enroll(data.X, data.speaker, data.session, kinds)
    others = oracle.random_data(rng, p, 9, recordings=(1, 3))
    return enrolled, plda.enroll(others.X, np.arange(len(others)), channel=np.array(["a", "b"])[others.kind])


def test_what_is_expected_is_the_mutual_information_of_dense_gaussians(rng, p, plda):
    a = oracle.random_data(rng, p, 4, recordings=(1, 4))
    b = oracle.random_data(rng, p, 3, recordings=(1, 3))
    names = np.array(["a", "b"])
    sides = [plda.enroll(d.X, d.speaker, np.char.add(d.session, end), names[d.kind]) for d, end in ((a, "x"), (b, "y"))]
    found = plda.structure(*sides)
    assert found.expected.shape == (4, 3)

    def ln_determinant(kind, session):
        one = np.zeros(len(kind), int)
        return np.linalg.slogdet(oracle.mean_and_covariance(p, one, session, kind)[1])[1]

    for (i, u), (j, v) in product(enumerate(sides[0].ids), enumerate(sides[1].ids)):
        first = a.rows(np.flatnonzero(a.speaker == u))
        second = b.rows(np.flatnonzero(b.speaker == v))
        session = [np.char.add(first.session, "x"), np.char.add(second.session, "y")]
        alone = ln_determinant(first.kind, session[0]) + ln_determinant(second.kind, session[1])
        both = ln_determinant(np.concatenate([first.kind, second.kind]), np.concatenate(session))
        assert found.expected[i, j] == pytest.approx((alone - both) / 2, rel=1e-9)
        assert found.alike[i, j] == pytest.approx(np.mean(first.kind[:, None] == second.kind))


def test_what_is_expected_is_the_mean_ratio_of_targets():
    plda = PLDA.from_parameters([5.0, -40.0], [[2.0, 0.0], [0.5, 1.0]], [[0.3], [0.1]], [[1.0, 0.2], [0.2, 2.0]])
    X, speaker, session = plda.sample(4000, sessions=3, random_state=1)
    first = np.arange(len(X)) % 3 < 2
    sides = plda.enroll(X[first], speaker[first], session[first]), plda.enroll(X[~first], speaker[~first])
    pairs = np.stack([np.arange(4000)] * 2, axis=1)
    assert plda.llr(*sides, pairs).mean() == pytest.approx(plda.structure(*sides, pairs[:1]).expected[0], rel=0.03)


def test_every_path_gives_the_same_calibrated_ratios(plda, sides):
    enrolled, tests = sides
    raw = plda.llr(enrolled, tests, calibrated=False)
    structure = plda.structure(enrolled, tests)
    expected = plda.calibration_.transform(raw, *structure)
    scale, _ = plda.calibration_.maps(*structure)
    assert scale.max() > 1.3 * scale.min()  # structures differ, or nothing is tested here

    assert_allclose(plda.llr(enrolled, tests), expected, rtol=1e-9, atol=1e-9)
    blocks = np.concatenate([block for _, block in plda.llr_blocks(enrolled, tests, cells=30)], axis=1)
    assert_allclose(blocks, expected, rtol=1e-9, atol=1e-9)
    pairs = np.argwhere(np.ones_like(raw))[::5]
    assert_allclose(plda.llr(enrolled, tests, pairs), expected[tuple(pairs.T)], rtol=1e-9, atol=1e-9)
    assert_allclose(plda.structure(enrolled, tests, pairs).expected, structure.expected[tuple(pairs.T)], rtol=1e-12)

    rows, ratios = plda.top(enrolled, tests, 3)
    assert_allclose(ratios, np.sort(expected, axis=0)[::-1][:3].T, rtol=1e-9, atol=1e-9)
    assert (rows[:, 0] == expected.argmax(axis=0)).all()


def test_recordings_that_stream_are_calibrated_alike(rng, p, plda):
    data = oracle.random_data(rng, p, 8, recordings=(1, 3))
    kinds = np.array(["a", "b"])[data.kind]
    enrolled = plda.enroll(data.X, data.speaker, data.session, kinds)
    expected = plda.llr(enrolled, plda.enroll(data.X, np.arange(len(data)), channel=kinds))
    blocks = list(duoplda.score(plda, enrolled, data.X, channel=kinds))
    assert_allclose(np.concatenate([b.scores for b in blocks], axis=1), expected, rtol=1e-9, atol=1e-9)
    trials = np.array([0, 3, 1]), np.array([5, 2, 0])
    (listed,) = duoplda.score(plda, enrolled, data.X, channel=kinds, trials=trials)
    assert_allclose(listed.scores[np.argsort(listed.rows)], expected[trials], rtol=1e-9, atol=1e-9)
    (raw,) = duoplda.score(plda, enrolled, data.X, channel=kinds, calibrated=False)
    assert np.abs(raw.scores - expected).max() > 0.1


def test_normalised_scores_are_not_touched(rng, p, plda, sides):
    others = oracle.random_data(rng, p, 6, recordings=(1, 3))
    cohort = plda.enroll(others.X, np.char.add(others.speaker, "-cohort"))
    data = oracle.random_data(rng, p, 3, recordings=(1, 3))

    def normalized():
        return next(duoplda.score(plda, sides[0], data.X, cohort=cohort, normalize="s")).scores

    with_structure = normalized()
    plda.calibration_ = None
    assert (normalized() == with_structure).all()


def test_guesses_are_calibrated_with_a_guess_at_the_structure(rng):
    p = oracle.random_model(rng, 6, 3, 2)
    plda = PLDA.from_parameters(p.mu[0], p.V, p.U, p.W[0])
    plda.calibration_ = StructureCalibration.from_state(STATE)
    X, speaker, session = plda.sample(
        8, sessions=(1, 5), random_state=0
    )  # sessions of one type: the structure is no guess
    sides = plda.enroll(X, speaker, session), plda.enroll(X, np.arange(len(X)) // 2)
    raw = plda.llr(*sides, approximate=True, calibrated=False)
    expected = plda.calibration_.transform(raw, *plda.structure(*sides))
    assert_allclose(plda.llr(*sides, approximate=True), expected, rtol=1e-4, atol=1e-4)
    pairs = np.array([[0, 1], [3, 2]])
    assert_allclose(plda.llr(*sides, pairs, approximate=True), expected[tuple(pairs.T)], rtol=1e-4, atol=1e-4)


def test_sides_that_are_added_have_a_structure(rng, p, plda):
    data = oracle.random_data(rng, p, 6, recordings=(1, 3))
    half = data.speaker < np.sort(data.speaker)[len(data) // 2]
    tests = plda.enroll(data.X[:4], np.arange(4))
    growing = plda.enroll(data.X[half], data.speaker[half], data.session[half])
    scorer = plda.scorer(growing)
    scorer.columns(tests)
    growing.add(plda.enroll(data.X[~half], data.speaker[~half], data.session[~half]))
    assert_allclose(scorer.columns(tests), plda.llr(growing, tests), rtol=1e-9, atol=1e-9)


# -- what is learned


def structured_trials(rng, n=6000, differ=1.0):
    """Ratios of trials of four structures, which are wrong in the more ways the more structures `differ`."""
    expected = rng.choice([4.0, 8.0, 16.0, 32.0], n)
    alike = rng.integers(0, 2, n).astype(float)
    target = np.arange(n) % 3 == 0
    llr = rng.normal(np.where(target, 1, -1) * expected / 4, np.sqrt(expected / 2))  # calibrated: variance 2 mean
    scale = np.exp(-0.7 - 0.5 * differ * np.log(expected / 20))
    return (llr - 1.0 + differ * alike) / scale, target, expected, alike


def test_the_map_of_each_structure_is_found(rng):
    scores, target, expected, alike = structured_trials(rng)
    found = StructureCalibration(priors=(0.5,)).fit(scores, target, expected=expected, alike=alike)
    assert_allclose(found.log_scales_, [-0.7, -0.5, 0.0], atol=0.1)
    assert_allclose(found.offsets_, [1.0, 0.0, -1.0], atol=0.2)
    one = cllr(AffineCalibration().fit(scores, target).transform(scores), target)
    assert cllr(found.transform(scores, expected, alike), target) < one - 0.01


def test_the_order_within_a_structure_stays_even_where_scores_know_nothing(rng):
    scores = rng.normal(size=300)
    expected = rng.uniform(1, 9, 300)
    alike = np.ones(300)
    target = scores < 0.3  # the wrong way round
    found = StructureCalibration().fit(scores, target, expected=expected, alike=alike)
    rising = found.transform(np.sort(scores), np.full(300, 5.0), alike)
    assert (np.diff(rising) > 0).all()
    assert cllr(found.transform(scores, expected, alike), target) < 1.01


def test_trials_that_a_threshold_separates_give_finite_numbers():
    found = StructureCalibration().fit([-2.0, -1.0, 1.0, 2.0], [0, 0, 1, 1], expected=[4, 5, 4, 5], alike=[1, 0, 1, 0])
    assert np.isfinite([*found.log_scales_, *found.offsets_]).all()


def test_beyond_what_was_learned_from_structures_count_as_the_nearest(rng):
    scores, target, expected, alike = structured_trials(rng, 900)
    found = StructureCalibration().fit(scores, target, expected=expected, alike=alike)
    values = found.transform([1.0] * 4, expected=[0.0, 4.0, 32.0, 500.0], alike=[1.0] * 4)
    assert values[0] == values[1]
    assert values[2] == values[3] != values[1]


def test_training_learns_it_where_it_pays():
    """Each speaker sounds a little different in each kind of channels, which the model cannot know."""
    sizes = {"n_dimensions": 4, "n_speaker_factors": 3, "n_session_factors": 2}
    X, speaker, session, _ = make_recordings(40, 4, 2, **sizes, seed=3)
    options = {"shrinkage": "auto", "random_state": 0, "tol": 1e-3, "n_folds": 3}
    kind = np.arange(len(X)) % 2
    taken = 0
    for seed in range(3):
        own = 1.5 * np.random.default_rng(seed).standard_normal((40, 2, 4))
        learned, one = (
            PLDA(**options, calibration=name).fit(
                X + own[np.unique(speaker, return_inverse=True)[1], kind], speaker, session=session, channel=kind
            )
            for name in ("structure", "affine")
        )
        assert (learned.shrinkage_, learned.scales_) == (one.shrinkage_, one.scales_)
        if isinstance(learned.calibration_, StructureCalibration):
            taken += 1
            assert learned.cost_ < one.cost_
    assert taken >= 2  # 16 of 18 draws with offsets of 1.5 to 3


def test_one_map_stays_unless_structure_saves_more_than_its_standard_error(rng):
    chosen = {}
    for differ, draws in ((0.0, 10), (1.0, 10), (0.4, 20)):
        taken = 0
        for _ in range(draws):
            scores, target, expected, alike = structured_trials(rng, 900, differ)
            speaker = rng.integers(0, 30, 900)
            trials = (scores, target, np.ones(900), Structure(expected, alike), speaker % 5, speaker)
            taken += by_structure(StructuredTrials(*trials), (0.5,)) is not None
        chosen[differ] = taken
    assert chosen[0.0] <= 3  # one of six, were chance normal
    assert chosen[1.0] >= 5
    assert chosen[0.4] <= 5  # it saves something in about every second draw, and that is chance


def test_a_calibration_of_trials_of_ones_own(plda, sides):
    raw = plda.llr(*sides, calibrated=False).reshape(-1)
    structure = plda.structure(*sides)
    labels = raw + np.random.default_rng(0).normal(size=raw.shape) > 0
    flat = type(structure)(*(values.reshape(-1) for values in structure))
    plda.calibrate(raw, labels, method="structure", structure=flat)
    expected = plda.calibration_.transform(raw, *flat)
    assert_allclose(plda.llr(*sides).reshape(-1), expected, rtol=1e-9, atol=1e-9)
    plda.calibrate(raw, labels)
    assert isinstance(plda.calibration_, AffineCalibration)
    with pytest.raises(DuopldaError, match="needs the structure of the trials"):
        plda.calibrate(raw, labels, method="structure")


# -- files, and mistakes


def test_a_file_keeps_it(plda, sides, tmp_path):
    plda.save(tmp_path / "model.safetensors")
    again = PLDA.load(tmp_path / "model.safetensors")
    assert (again.llr(*sides) == plda.llr(*sides)).all()
    plda.calibration_.save(tmp_path / "calibration.safetensors")
    loaded = load(tmp_path / "calibration.safetensors")
    assert_allclose(
        loaded.maps(np.array([3.0]), np.array([1.0])), plda.calibration_.maps(np.array([3.0]), np.array([1.0]))
    )


@pytest.mark.parametrize(
    "change",
    [{"offsets_": [1.0, 2.0]}, {"log_scales_": [0.0, np.nan, 0.0]}, {"least_": 9.0, "most_": 1.0}, {"more": 1.0}],
    ids=lambda change: next(iter(change)),
)
def test_a_damaged_state_is_refused(change):
    with pytest.raises(DuopldaError):
        StructureCalibration.from_state(STATE | change)


def test_a_structure_that_does_not_fit_is_refused():
    with pytest.raises(DuopldaError, match="expected"):
        StructureCalibration().fit([1.0, 2.0], [0, 1], expected=[1.0], alike=[1.0])
    with pytest.raises(DuopldaError, match="calibration='nothing'"):
        PLDA(calibration="nothing").fit(np.zeros((3, 2)), ["a", "b", "c"])


def test_the_highest_of_very_many_are_those_of_calibrated_ratios(rng, p, plda):
    data = oracle.random_data(rng, p, 60, recordings=(1, 3))
    enrolled = plda.enroll(data.X, data.speaker, data.session)
    tests = plda.enroll(data.X[:5], np.arange(5))
    rows, ratios = plda.top(enrolled, tests, 1)  # few of many: raw ratios would be ranked by another way
    expected = plda.llr(enrolled, tests)
    assert (rows[:, 0] == expected.argmax(axis=0)).all()
    assert_allclose(ratios[:, 0], expected.max(axis=0), rtol=1e-9)


def test_known_voices_of_turns_are_named_by_calibrated_ratios(plda, sides):
    heard, known = sides[1], sides[0]
    files = np.arange(len(heard))
    names = known_voices(Backend.from_plda(plda), heard, known, files)
    assert np.isfinite(names.posterior).all()
    state = {**STATE, "log_scales_": [-9.0, 0.0, 0.0], "offsets_": [0.0, 0.0, 0.0]}  # ratios that say nothing
    plda.calibration_ = StructureCalibration.from_state(state)
    assert not known_voices(Backend.from_plda(plda), heard, known, files).named.any()


def test_info_says_it_in_words(plda):
    summary = Backend.from_plda(plda).summary()
    assert summary["calibration_values"]["one_kind_offset"] == -0.4
    text = "\n".join(summary_lines(summary))
    assert "calibration by the structure of trials: scale" in text
    assert "where both sides are of one kind of channels: scale times 1.221, offset plus -0.4" in text
