"""Wrong input: each mistake has its own message, which says what rows, why, and what to do.

Every error is a DuopldaError (a ValueError), unless scikit-learn has a class of its own for it. Warnings are errors
here, so that an error that comes after a NumPy warning is a failure too.
"""

import re
from dataclasses import replace

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from duoplda import PLDA, Backend, DuopldaError, Recordings, Statistics
from duoplda.datasets import make_recordings
from duoplda.model.parameters import same
from duoplda.preprocessing import LDA, Center, LengthNorm, Whiten

D = 4
DATA = make_recordings(12, (2, 3), (1, 3), n_dimensions=D, n_speaker_factors=2, n_session_factors=2, seed=1)
X, SPEAKER, SESSION = DATA.X, DATA.speaker, DATA.session
N, M, H = len(X), len(np.unique(SPEAKER)), len(np.unique(SESSION))
EACH = np.arange(N)


@pytest.fixture(scope="module")
def plda():
    return PLDA(2, 2).fit(X, SPEAKER, session=SESSION)


@pytest.fixture(scope="module")
def sides(plda):
    return plda.enroll(X, SPEAKER, SESSION)


def refused(*words):
    """A DuopldaError whose message has all these words (regular expressions)."""
    return pytest.raises(DuopldaError, match="^" + "".join(rf"(?=[\s\S]*(?:{w}))" for w in words))


def chunks(rows, size=10):
    return [rows[a : a + size] for a in range(0, len(rows), size)]


# What takes recordings, with labels that fit them: a call of a fitted model, of a class, and of training.
CALLS = {
    "fit": lambda plda, X: PLDA(2, 2).fit(X, SPEAKER, session=SESSION),
    "fit without sessions": lambda plda, X: PLDA(2).fit(X, SPEAKER),
    "transform": lambda plda, X: plda.transform(X),
    "enroll": lambda plda, X: plda.enroll(X, SPEAKER, SESSION),
    "log_likelihood": lambda plda, X: plda.log_likelihood(X, SPEAKER, SESSION),
    "score": lambda plda, X: plda.score(X, SPEAKER, SESSION),
    "posterior": lambda plda, X: plda.posterior(X, SPEAKER, SESSION),
    "partition_log_likelihood": lambda plda, X: plda.partition_log_likelihood(X, SPEAKER, SESSION),
    "conditional_log_likelihood": lambda plda, X: plda.conditional_log_likelihood(
        X, np.zeros((M, 2)), np.zeros((H, 2)), SPEAKER, SESSION
    ),
    "Statistics.from_arrays": lambda plda, X: Statistics.from_arrays(X, SPEAKER, SESSION),
    "Statistics.of chunks": lambda plda, X: Statistics.of(Recordings.from_chunks(lambda: chunks(X), SPEAKER, SESSION)),
}
# The same of labels.
LABELLED = {
    "fit": lambda plda, speaker, session=None: PLDA(2).fit(X, speaker, session=session),
    "enroll": lambda plda, speaker, session=None: plda.enroll(X, speaker, session),
    "log_likelihood": lambda plda, speaker, session=None: plda.log_likelihood(X, speaker, session),
    "score": lambda plda, speaker, session=None: plda.score(X, speaker, session),
    "posterior": lambda plda, speaker, session=None: plda.posterior(X, speaker, session),
    "Statistics.from_arrays": lambda plda, speaker, session=None: Statistics.from_arrays(X, speaker, session),
    "Statistics.of chunks": lambda plda, speaker, session=None: Statistics.of(
        Recordings.from_chunks(lambda: [X], speaker, session)
    ),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
every_labelled = pytest.mark.parametrize("call", LABELLED.values(), ids=LABELLED)
OF_A_MODEL = [name for name in CALLS if not name.startswith(("fit", "Statistics"))]


def test_the_calls_work(plda):
    """With good input, so that the tests below fail for the reason that they give."""
    for call in CALLS.values():
        call(plda, X)
    for call in LABELLED.values():
        call(plda, SPEAKER, SESSION)


def test_it_is_a_value_error():
    assert issubclass(DuopldaError, ValueError)


# -- numbers -----------------------------------------------------------------------------------------------------------


@every_call
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=str)
def test_not_finite(plda, call, value):
    bad = X.copy()
    bad[[5, 17], [1, 3]] = value
    if call is CALLS["Statistics.of chunks"]:  # the first chunk that has some says so
        with refused("NaN or infinity in rows 5, and perhaps in others", "Remove these recordings"):
            call(plda, bad)
    else:
        with refused("NaN or infinity", rf"in 2 of {N} rows: 5, 17\.", "Remove these recordings"):
            call(plda, bad)


@pytest.mark.parametrize("name", ["fit", "transform", "log_likelihood", "Statistics.from_arrays"])
def test_infinities_of_both_signs(plda, name):
    """Their sum is a NaN, which NumPy would like to warn of."""
    bad = X.copy()
    bad[3, 0], bad[4, 0] = np.inf, -np.inf
    with refused(rf"in 2 of {N} rows: 3, 4\."):
        CALLS[name](plda, bad)


def test_many_rows_are_cut_short(plda):
    with refused(rf"in {N} of {N} rows: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, \.\.\. \({N} in all\)"):
        plda.transform(X * np.nan)


@pytest.mark.parametrize("factor", [1e200, 1e307])
@pytest.mark.parametrize("name", ["fit", "log_likelihood", "Statistics.from_arrays"])
def test_values_too_large(plda, name, factor):
    """Finite numbers whose squares or sums are not."""
    with refused("too large"):
        CALLS[name](plda, X * factor)


# -- shapes ------------------------------------------------------------------------------------------------------------


@every_call
def test_one_dimension(plda, call):
    with refused(r"2D array|matrix"):
        call(plda, X[:, 0])


@every_call
def test_three_dimensions(plda, call):
    with refused(r"dim 3|shape \(\d+, 1, 4\)"):
        call(plda, X[:, None, :])


@every_call
def test_no_rows_and_no_columns(plda, call):
    with refused(r"shape.{1,2}\(\d+, 0\)"):
        call(plda, X[:, :0])
    if call is not CALLS["Statistics.of chunks"]:
        with refused(r"shape.{1,2}\(0, 4\)"):
            call(plda, X[:0])


@pytest.mark.parametrize("name", OF_A_MODEL)
@pytest.mark.parametrize("columns", [3, 5])
def test_columns_of_another_model(plda, name, columns):
    with refused(f"X has {columns} features, but PLDA is expecting 4 features"):
        CALLS[name](plda, np.c_[X, X][:, :columns])


def test_chunks():
    def gather(*parts):
        return Statistics.of(Recordings.from_chunks(lambda: parts, SPEAKER, SESSION))

    with refused(r"begins at row 10 has 3 columns, the first had 4"):
        gather(X[:10], X[10:, :3])
    with refused(rf"more rows than the {N}"):
        gather(X, X[:1])
    with refused(rf"brought 5 rows, {N} have labels"):
        gather(X[:5])
    with refused("brought 0 rows"):
        gather()
    with refused("matrix", r"shape \(4,\)"):
        gather(*X)  # rows, not chunks
    with refused("chunks must be a function"):
        Recordings.from_chunks([X], SPEAKER, SESSION)


@every_call
def test_not_numbers(plda, call):
    with refused("convert|numbers"):
        call(plda, np.full(X.shape, "a"))
    with refused("[Cc]omplex"):
        call(plda, X + 1j)


# -- labels ------------------------------------------------------------------------------------------------------------


@every_labelled
def test_lengths_of_labels(plda, call):
    with refused(rf"{N - 1} speaker labels for {N} recordings|{N} session labels for {N - 1}", "one label for each"):
        call(plda, SPEAKER[:-1], SESSION)
    with refused(rf"{N - 1} session labels for {N} recordings", "one label for each"):
        call(plda, SPEAKER, SESSION[:-1])


@every_labelled
def test_shapes_of_labels(plda, call):
    with refused("speaker labels must be one-dimensional", rf"\({N}, 2\)"):
        call(plda, np.c_[SPEAKER, SPEAKER])
    with refused("session labels must be one-dimensional", rf"\({N}, 2\)"):
        call(plda, SPEAKER, np.c_[SESSION, SESSION])
    with refused("speaker"):
        call(plda, None)
    with refused("speaker labels must be one-dimensional"):
        call(plda, "a")


def with_missing(kind, values):
    values = values.astype(object)
    if kind == "a list":
        values[[3, 8]] = np.nan
        return values.tolist()  # np.asarray would make the text "nan" of it
    if kind == "pandas":
        pd = pytest.importorskip("pandas")
        values[[3, 8]] = None
        return pd.Series(values)
    if kind == "pandas' NA":
        pd = pytest.importorskip("pandas")
        values[[3, 8]] = pd.NA
        return pd.Series(values, dtype="string")
    if kind == "numbers":
        values = np.unique(values.astype(str), return_inverse=True)[1].astype(float)
    values[[3, 8]] = None if kind == "None" else np.nan
    return values


@every_labelled
@pytest.mark.parametrize("kind", ["None", "NaN", "numbers", "a list", "pandas", "pandas' NA"])
def test_missing_labels(plda, call, kind):
    with refused("speaker labels", "missing|NaN", r"rows 3, 8"):
        call(plda, with_missing(kind, SPEAKER))
    with refused("session labels", "missing|NaN", r"rows 3, 8"):
        call(plda, SPEAKER, with_missing(kind, SESSION))


@every_labelled
def test_types_of_labels(plda, call):
    mixed = SPEAKER.astype(object)
    mixed[0] = 3
    with refused("speaker labels mix types", "'int', 'str'", "use one"):
        call(plda, mixed)
    with refused("speaker labels mix types"):
        call(plda, mixed.tolist())
    with refused("strings or numbers", "datetime64"):
        call(plda, EACH.astype("datetime64[D]"))


@pytest.mark.parametrize("name", [n for n in LABELLED if n != "enroll"])
def test_session_under_two_speakers(plda, name):
    torn = np.where(EACH == 40, SESSION[0], SESSION)
    assert SPEAKER[40] != SPEAKER[0]
    at = np.flatnonzero(torn == SESSION[0])
    who = ", ".join(map(repr, sorted({str(SPEAKER[0]), str(SPEAKER[40])})))
    words = (f"session {SESSION[0]} belongs to 2 speakers", who, rf"rows {', '.join(map(str, at))}\b")
    with refused(*words, "make them unique") as caught:
        LABELLED[name](plda, SPEAKER, torn)
    assert "0 other" not in str(caught.value)
    two = np.where(np.isin(EACH, (40, 41)), SESSION[0], torn)
    two = np.where(EACH == 42, SESSION[-1], two)
    with refused("1 other session"):
        LABELLED[name](plda, SPEAKER, two)


def test_sides_may_share_a_session(plda):
    """Sets are not assumed to be different speakers: this is no mistake there."""
    assert len(plda.enroll(X, SPEAKER, np.full(N, "one"))) == M


# -- what can be learnt ------------------------------------------------------------------------------------------------


def counts(recordings, sessions, speakers):
    return f"{recordings} recordings in {sessions} sessions of {speakers} speaker"


def test_no_labels():
    with refused("requires y to be passed", "give the speaker of each row"):
        PLDA().fit(X)
    with refused("requires y to be passed"):
        PLDA(2, 2).fit(X, SPEAKER, session=SESSION).score(X)


def test_one_speaker():
    with refused(counts(N, N, 1), "at least 2 speakers"):
        PLDA().fit(X, np.full(N, "me"))
    with refused(counts(N, H, 1), "at least 2 speakers"):
        PLDA(2, 2).fit(X, np.full(N, "me"), session=SESSION)


def test_no_session_with_two_recordings():
    with refused(counts(N, N, M), "no session has two recordings", "cannot be told apart", "n_session_factors=0"):
        PLDA(2, 2).fit(X, SPEAKER)
    with refused(counts(N, N, M), "no session has two recordings"):
        PLDA(2, 1, noise_floor=1e-4).fit(X, SPEAKER, session=EACH)
    assert PLDA(2, None).fit(X, SPEAKER).session_loadings_.shape == (D, 0)  # nobody asked for any


def test_no_speaker_with_two_sessions():
    with refused(counts(N, M, M), "no speaker has two sessions", "cannot be told apart", "n_session_factors=0"):
        PLDA(2, 2).fit(X, SPEAKER, session=SPEAKER)
    assert PLDA(2, 0).fit(X, SPEAKER, session=SPEAKER).converged_
    said = f"{counts(N, M, M)}s: no speaker has two sessions, so that sessions count as part of the speaker: a"
    with pytest.warns(UserWarning, match=said) as caught:  # nobody asked for any, but sessions are named
        assert PLDA(2, None).fit(X, SPEAKER, session=SPEAKER).session_loadings_.shape == (D, 0)
    assert caught[0].filename == __file__


def test_no_speaker_with_two_recordings():
    with refused(counts(N, N, N), "no speaker has two recordings", "Check the speaker labels"):
        PLDA(2).fit(X, EACH)


def test_fewer_recordings_than_dimensions():
    few = np.random.default_rng(0).standard_normal((20, 30))
    who, when = np.arange(20) // 4, np.arange(20) // 2
    with refused(counts(20, 20, 5), "within speakers", "only 15 differences", "30 dimensions", "noise_floor"):
        PLDA().fit(few, who)
    with refused(counts(20, 10, 5), "within sessions", "only 10 differences", "30 dimensions", "noise_floor"):
        PLDA().fit(few, who, session=when)


def test_constant_columns():
    for value in (0.0, 3.0, 1e6 / 3, 1e-30):
        flat = X.copy()
        flat[:, [1, 3]] = value
        with refused(r"columns 1, 3 are constant", "remove them", "noise_floor"):
            PLDA(2, 2).fit(flat, SPEAKER, session=SESSION)


def test_duplicated_columns():
    for copy in (X[:, 1], -3 * X[:, 1] + 2):
        with refused(r"columns \(1, 4\) are copies", "keep one", "noise_floor"):
            PLDA(2, 2).fit(np.c_[X, copy], SPEAKER, session=SESSION)


def test_dependent_columns():
    with refused("do not differ in 1 of 5 directions", "dependent columns", "noise_floor"):
        PLDA(2, 2).fit(np.c_[X, X[:, 0] + X[:, 1]], SPEAKER, session=SESSION)


def test_duplicated_recordings():
    with refused("within sessions", "do not differ in 4 of 4 directions", "duplicated recordings", "noise_floor"):
        PLDA(2, 2).fit(np.repeat(X, 2, axis=0), np.repeat(SPEAKER, 2), session=np.repeat(EACH, 2))


def test_equal_recordings():
    for value in (1.0, 1 / 3):
        with refused("constant"):
            PLDA(2, 2).fit(np.full_like(X, value), SPEAKER, session=SESSION)


SINGULAR = {
    "constant column": (np.where(np.arange(D) == 2, 3.0, X), SPEAKER, SESSION),
    "duplicated column": (np.c_[X, X[:, 1]], SPEAKER, SESSION),
    "dependent columns": (np.c_[X, X[:, 0] + X[:, 1]], SPEAKER, SESSION),
    "duplicated recordings": (np.repeat(X, 2, axis=0), np.repeat(SPEAKER, 2), np.repeat(EACH, 2)),
    "few recordings": (
        *(np.random.default_rng(0).standard_normal((20, 30)), np.arange(20) // 4),
        np.arange(20) // 2,
    ),
}


@pytest.mark.parametrize("init", ["moments", "random"])
@pytest.mark.parametrize("case", SINGULAR)
@pytest.mark.parametrize("named", [True, False], ids=["sessions", "no sessions"])
def test_noise_floor_trains_singular_data(case, init, named):
    """It is refused without a floor; with one, every step is sound and no variance is below it."""
    rows, speaker, session = SINGULAR[case]
    session = session if named else None
    if not named and case == "duplicated recordings":
        pytest.skip("a speaker's recordings differ from one another: not singular")
    with refused("noise_floor"):
        PLDA().fit(rows, speaker, session=session)
    plda = PLDA(noise_floor=1e-4, init=init, random_state=0).fit(rows, speaker, session=session)
    assert plda.converged_
    trace = plda.log_likelihoods_
    assert np.diff(trace).min() >= -1e-9 * np.abs(trace).max()
    floor = 1e-4 * rows.var(axis=0).mean()
    assert np.linalg.eigvalsh(np.linalg.inv(plda.noise_precision_)).min() == pytest.approx(floor, rel=1e-5)
    side = plda.enroll(rows, speaker, session)
    assert np.isfinite(plda.llr(side, side)).all()


# -- parameters --------------------------------------------------------------------------------------------------------


SEEDS = [-1, 2**32, 10**30, True, 1.0, "x", np.random.default_rng(0), [1, 2], np.int64(-5)]
AMOUNTS = [-0.1, 1.1, np.nan, "much", (0.1, 0.1), [[0.1, 0.1, 0.1]], ("a", "b", "c"), np.array([0.1, 2.0, 0.1]), True]
AMOUNTS += [np.array(["auto", "auto", "auto"]), {0.1}, [0.1, [0.1, 0.2], 0.1], 0.1j]


@pytest.mark.parametrize(
    ("parameter", "value", "words"),
    [
        ("n_speaker_factors", 5, "n_speaker_factors=5 is more than the 4 dimensions.*at most 4"),
        ("n_session_factors", 5, "n_session_factors=5 is more than the 4 dimensions.*at most 4"),
        ("n_speaker_factors", 0, "n_speaker_factors=0 must be a whole number from 1 on"),
        *((n, -1, f"{n}=-1 must be a whole number") for n in ("n_speaker_factors", "n_session_factors", "max_iter")),
        *((n, 1.5, f"{n}=1.5 must be a whole number") for n in ("n_speaker_factors", "n_session_factors", "max_iter")),
        *((n, "2", f"{n}='2' must be a whole number") for n in ("n_speaker_factors", "n_session_factors", "max_iter")),
        *((n, True, f"{n}=True must be a whole number") for n in ("n_speaker_factors", "n_session_factors")),
        ("max_iter", None, "max_iter=None must be a whole number"),
        *((n, -1.0, rf"{n}=-1.0 must be a.*number") for n in ("tol", "noise_floor")),
        *((n, "a", f"{n}='a' must be a.*number") for n in ("tol", "noise_floor")),
        *((n, np.nan, f"{n}=nan must be a.*number") for n in ("tol", "noise_floor")),
        *((n, None, f"{n}=None must be a.*number") for n in ("tol", "noise_floor")),
        ("noise_floor", np.inf, "noise_floor=inf"),
        ("init", "zeros", "init='zeros' must be 'moments' or 'random'"),
        ("init", None, "init=None must be 'moments' or 'random'"),
        ("callback", 3, "callback"),
        *(("random_state", r, "random_state=.* must be None, a whole number from 0 to 4294967295") for r in SEEDS),
        *(
            ("shrinkage", a, "shrinkage=.* must be None, 'auto', a number from 0 to 1, or three or four")
            for a in AMOUNTS
        ),
    ],
    ids=lambda v: str(v)[:24],
)
def test_parameters(parameter, value, words):
    plda = PLDA(**{"n_speaker_factors": 2, "n_session_factors": 2, parameter: value})
    with refused(words):
        plda.fit(X, SPEAKER, session=SESSION)
    with refused(words):
        plda.fit_statistics(Statistics.from_arrays(X, SPEAKER, SESSION))


def test_numbers_of_numpy_are_numbers():
    plda = PLDA(np.int64(2), np.int32(2), tol=np.float32(1e-4), max_iter=np.int64(100), noise_floor=np.float64(0))
    assert plda.fit(X, SPEAKER, session=SESSION).speaker_loadings_.shape == (D, 2)


@pytest.mark.parametrize("seed", [0, 2**32 - 1, np.int64(7), np.uint8(7), None, np.random.RandomState(0)], ids=str)
def test_seeds(seed):
    data = make_recordings(40, (2, 3), (1, 3), n_dimensions=D, n_speaker_factors=2, n_session_factors=2, seed=1)
    for parameters in ({"init": "random"}, {"shrinkage": "auto"}):
        plda = PLDA(2, 2, random_state=seed, tol=1e-3, **parameters).fit(data.X, data.speaker, session=data.session)
        assert np.isfinite(plda.noise_precision_).all()


@pytest.mark.parametrize("seed", [-1, "x", 1.5])
def test_seeds_of_data(plda, seed):
    with refused(f"seed={seed!r} must be a whole number"):
        Statistics.from_arrays(X, SPEAKER, SESSION, n_folds=2, seed=seed)
    with refused(f"seed={seed!r} must be None or a whole number"):
        make_recordings(3, seed=seed)
    with refused(f"seed={seed!r} must be None or a whole number"):
        plda.sample(3, random_state=seed)


def test_shrinkage_of_any_sequence():
    def fit(shrinkage):
        return PLDA(2, 2, shrinkage=shrinkage).fit(X, SPEAKER, session=SESSION)

    given = (0.25, 0.5, 0.125)
    expected = fit(given)
    assert expected.shrinkage_ == (*given, 0.0)
    for other in (list(given), np.array(given), np.array(given, np.float32), (*given, 0.0)):
        np.testing.assert_array_equal(fit(other).noise_precision_, expected.noise_precision_)
    for one in (0.5, np.float32(0.5), np.array(0.5)):
        assert fit(one).shrinkage_ == (0.5, 0.5, 0.5, 0.0)
    assert fit(1).shrinkage_ == fit(np.array([1, 1, 1])).shrinkage_ == (1, 1, 1, 0)


# -- masked arrays, huge values, other devices -------------------------------------------------------------------------


STEPS = {
    **{step.__name__: lambda X, step=step: step().fit(X) for step in (Center, Whiten, LengthNorm)},
    "LDA": lambda X: LDA(2).fit(X, SPEAKER),
    "transform of a step": lambda X: Center().fit(DATA.X).transform(X),
    "Backend.fit": lambda X: Backend(plda=PLDA(2, 2)).fit(X, SPEAKER, session=SESSION),
    "Backend.transform": lambda X: Backend(plda=PLDA(2, 2)).fit(DATA.X, SPEAKER, session=SESSION).transform(X),
}


@pytest.mark.parametrize("name", [*CALLS, *STEPS])
def test_masked_recordings(plda, name):
    def call(X):
        return CALLS[name](plda, X) if name in CALLS else STEPS[name](X)

    masked = np.ma.array(X, mask=np.zeros(X.shape, bool))
    call(masked)  # nothing is masked: the data as they are
    call(np.ma.array(X))
    masked.mask[[3, 7], [0, 2]] = True
    with refused("masked entries in rows 3(, 7)?:", "remove these rows"):
        call(masked)


@every_labelled
def test_masked_labels(plda, call):
    call(plda, np.ma.array(SPEAKER), np.ma.array(SESSION))
    with refused("masked entries in rows 5, 6:"):
        call(plda, np.ma.array(SPEAKER, mask=np.isin(EACH, (5, 6))))
    with refused("masked entries in rows 5, 6:"):
        call(plda, SPEAKER, np.ma.array(SESSION, mask=np.isin(EACH, (5, 6))))


@pytest.mark.parametrize("size", [1e154, 1e160, 1e200, 1e300])
def test_huge_values_in_trials(plda, size):
    """Their squares are not finite: ratios would be NaN."""
    huge = X.copy()
    huge[[4, 9]] *= size
    with refused("too large", "rows 4, 9:", "scale of the training data"):
        plda.enroll(huge, EACH)
    with refused("too large", "rows 4, 9:|to add up"):
        plda.enroll(huge, EACH, EACH)


def test_large_values_are_computed(plda):
    """As long as squares are finite, so are ratios, and they do not depend on the order of the sides."""
    large = X.copy()
    large[[4, 9]] *= 1e120
    sides = plda.enroll(large, EACH)
    ratios = plda.llr(sides, sides)
    assert np.isfinite(ratios).all()
    np.testing.assert_allclose(ratios, ratios.T, rtol=1e-6)


def test_huge_values_of_unknown_kind():
    two = PLDA.from_parameters(np.zeros((2, 2)), np.eye(2), None, np.stack([np.eye(2), 2 * np.eye(2)]), ["a", "b"])
    with refused("too large", "rows 1:"):
        two.channel_posterior([[0.0, 1.0], [1e200, 1.0]])
    with refused("too large", "rows 1:"):
        two.enroll([[0.0, 1.0], [1e200, 1.0]], [0, 1])


@pytest.mark.filterwarnings("ignore::duoplda.DomainWarning")  # huge values are nothing like the training data
def test_length_normalisation_computes_huge_values():
    backend = Backend(whiten=False, plda=PLDA(2, 2)).fit(X, SPEAKER, session=SESSION)
    huge = X * 1e150
    sides = backend.enroll(huge, EACH)
    assert np.isfinite(backend.llr(sides, sides)).all()


def test_arrays_on_another_device():
    xp = pytest.importorskip("array_api_strict")
    away = xp.Device("device1")
    there = xp.asarray(X, device=away)
    for step in (Center(), Whiten(), LengthNorm()):
        out = step.fit(there).transform(there)
        assert out.device == away
        np.testing.assert_allclose(np.from_dlpack(out), step.fit(X).transform(X), rtol=1e-12)
    lda = LDA(2).fit(there, SPEAKER, session=SESSION)
    np.testing.assert_allclose(lda.matrix_, LDA(2).fit(X, SPEAKER, session=SESSION).matrix_)
    backend = Backend(plda=PLDA(2, 2)).fit(X, SPEAKER, session=SESSION)
    np.testing.assert_allclose(np.from_dlpack(backend.transform(there)), backend.transform(X), rtol=1e-12)
    with refused("X has 3 features, but Backend is expecting 4 features"):
        backend.transform(there[:, :3])
    labels = xp.asarray(np.unique(SPEAKER, return_inverse=True)[1], device=away)
    assert PLDA(2).fit(X, labels).converged_


# -- what was assigned -------------------------------------------------------------------------------------------------

ASSIGNED = ["mean_", "channel_means_", "speaker_loadings_", "session_loadings_", "noise_precision_"]


@pytest.mark.parametrize(
    "name", ["mean_", "channel_means_", "speaker_loadings_", "session_loadings_", "noise_precision_"]
)
@pytest.mark.parametrize("pairs", [None, [[0, 0]]], ids=["matrix", "pairs"])
def test_sides_of_a_model_that_was_changed(name, pairs):
    plda = PLDA(2, 2).fit(X, SPEAKER, session=SESSION)
    old = plda.enroll(X, SPEAKER, SESSION)
    before = plda.llr(old, old)
    setattr(plda, name, 5 * getattr(plda, name))
    with refused("different models", "enroll both"):
        plda.llr(old, old, pairs=pairs)
    new = plda.enroll(X, SPEAKER, SESSION)
    with refused("different models", "enroll both"):
        plda.llr(old, new, pairs=pairs)
    again = PLDA.from_parameters(plda.mean_, plda.speaker_loadings_, plda.session_loadings_, plda.noise_precision_)
    side = again.enroll(X, SPEAKER, SESSION)
    np.testing.assert_array_equal(plda.llr(new, new), again.llr(side, side))  # the change has its whole effect
    assert np.abs(plda.llr(new, new) - before).max() > 0.1
    setattr(plda, name, getattr(plda, name) / 5)
    np.testing.assert_allclose(plda.llr(plda.enroll(X, SPEAKER, SESSION), plda.enroll(X, SPEAKER, SESSION)), before)


def test_models_are_compared_wholly(plda):
    model = plda.model_
    assert same(model, replace(model))
    assert same(model, replace(model, **{name: getattr(model, name).copy() for name in ("mu", "V", "U", "W")}))
    for name in ("mu", "V", "U", "W"):
        assert not same(model, replace(model, **{name: 5 * getattr(model, name)}))
    assert not same(model, replace(model, kinds=np.array(["other"])))


def test_kinds_that_were_changed():
    parts = np.zeros((2, 2)), np.eye(2), None, np.stack([np.eye(2), 2 * np.eye(2)])
    plda = PLDA.from_parameters(*parts, channels=["a", "b"])
    old = plda.enroll(np.eye(2), [0, 1], channel=["a", "b"])
    plda.channels_ = ["b", "c"]
    with refused("different models"):
        plda.llr(old, old)
    assert plda.channels_.tolist() == ["b", "c"]
    with refused("mean over several kinds of channels: assign channel_means_"):
        plda.mean_ = np.ones(2)
    plda.channel_means_ = np.array([[0.0, 0.0], [2.0, 2.0]])
    assert plda.mean_.tolist() == [1.0, 1.0]


def test_parameters_are_not_changed_in_place():
    """Old sides would share them."""
    plda = PLDA(2, 2).fit(X, SPEAKER, session=SESSION)
    for name in ASSIGNED:
        with pytest.raises(ValueError, match="read-only"):
            getattr(plda, name)[0] = 0.0
    given = np.eye(4)
    plda.noise_precision_ = given
    given[0, 0] = 7.0  # nor through the array that was assigned
    np.testing.assert_array_equal(plda.noise_precision_, np.eye(4))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("mean_", np.zeros(3), r"expected \(1, 3\)|shape"),
        ("mean_", np.full(4, np.nan), "NaN"),
        ("speaker_loadings_", np.zeros((3, 2)), "speaker_loadings has shape"),
        ("session_loadings_", np.zeros(4), "session_loadings has shape"),
        ("noise_precision_", -np.eye(4), "not positive definite"),
        ("noise_precision_", np.ones((2, 4, 4)), "noise_precision has shape"),
        ("noise_precision_", np.eye(4) + 1j, "real"),
        ("channels_", ["a", "b"], "shape"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_assignments_are_checked(name, value, words):
    plda = PLDA(2, 2).fit(X, SPEAKER, session=SESSION)
    before = plda.model_
    with refused(words):
        setattr(plda, name, value)
    assert plda.model_ is before
    with pytest.raises(NotFittedError):
        setattr(PLDA(), name, value)


UNFITTED = {
    "transform": lambda p: p.transform(X),
    "enroll": lambda p: p.enroll(X, SPEAKER),
    "log_likelihood": lambda p: p.log_likelihood(X, SPEAKER),
    "score": lambda p: p.score(X, SPEAKER),
    "posterior": lambda p: p.posterior(X, SPEAKER),
    "conditional_log_likelihood": lambda p: p.conditional_log_likelihood(X, X, X, SPEAKER),
    "partition_log_likelihood": lambda p: p.partition_log_likelihood(X, SPEAKER),
    "sample": lambda p: p.sample(2),
    "llr": lambda p: p.llr(None, None),
    "save": lambda p: p.save("model"),
    "get_feature_names_out": lambda p: p.get_feature_names_out(),
}


@pytest.mark.parametrize("call", UNFITTED.values(), ids=UNFITTED)
def test_unfitted(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFittedError, match=r"This PLDA instance is not fitted yet"):
        call(PLDA())
    assert not list(tmp_path.iterdir())


def test_a_failed_fit_leaves_no_model():
    plda = PLDA(2, 2)
    with refused("NaN"):
        plda.fit(X * np.nan, SPEAKER)
    with pytest.raises(NotFittedError):
        plda.transform(X)


def test_fit_statistics_of_something_else():
    with refused("Statistics", "ndarray"):
        PLDA().fit_statistics(X)


# -- statistics --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [0, -1, np.nan, np.inf, "2", [1.0, 2.0], X], ids=lambda w: str(w)[:10])
def test_weights(weight):
    stats = Statistics.from_arrays(X, SPEAKER, SESSION)
    with refused("weighted by a positive number"):
        stats * weight
    if not isinstance(weight, np.ndarray):
        with refused("weighted by a positive number"):
            weight * stats


def test_weight_by_statistics():
    """The message names the type, not all of the numbers."""
    stats = Statistics.from_arrays(X, SPEAKER, SESSION)
    with refused("weighted by a positive number") as caught:
        stats * stats
    assert len(str(caught.value)) < 200


def test_sums_of_statistics():
    stats = Statistics.from_arrays(X, SPEAKER, SESSION)
    with refused("statistics of 4 and of 3 dimensions"):
        stats + Statistics.from_arrays(X[:, :3], SPEAKER)
    with refused("speaker ids of different types", "int64"):
        stats + Statistics.from_arrays(X, EACH // 2)
    with refused(f"{H} sessions are in both", "unique names|one shard"):
        stats + stats
    with refused("'spk0', 'spk1'", "different weights"):
        stats + 2 * Statistics.from_arrays(X, SPEAKER)
    with pytest.raises(TypeError, match="unsupported operand"):
        stats + 5


# -- trials ------------------------------------------------------------------------------------------------------------


def test_unknown_ids(plda, sides):
    with refused("2 ids are not among the 12 enrolled", "'nobody', 'nowhere'"):
        sides.find(["spk0", "nobody", "nowhere", "nobody"])
    for other in ([3], [np.nan], [None], ["zzz"], [""]):  # also beyond the first and the last
        with refused("1 ids? (are|is) not among the 12 enrolled"):
            sides.find(other)
    numbers = plda.enroll(X, EACH // 4)
    for other in ([-1], [10**9], ["one"], [1.5], [np.inf]):
        with refused("1 ids? (are|is) not among"):
            numbers.find(other)
    assert numbers.find([2, 0]).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([[0, 0], [0, 12]], "1 pairs?.*side 2 has 12.*: 1"),
        ([[12, 0], [0, 0], [13, 1]], "2 pairs.*side 1 has 12.*: 0, 2"),
        ([[-1, 0]], "1 pairs?.*side 1 has 12"),
        ([[0.0, 1.0]], r"integers of shape \(n, 2\), got float64"),
        ([[True, False]], r"integers of shape \(n, 2\), got bool"),
        ([["spk0", "spk1"]], r"integers of shape \(n, 2\), got <U4"),
        ([0, 1], r"shape \(n, 2\), got int64 of shape \(2,\)"),
        ([[0, 1, 2]], r"shape \(n, 2\), got int64 of shape \(1, 3\)"),
        ([[[0, 1]]], r"shape \(n, 2\)"),
        ([[0, 1], [2]], r"shape \(n, 2\)"),
        ([[None, 1]], r"integers of shape \(n, 2\), got object"),
    ],
    ids=str,
)
def test_pairs(plda, sides, pairs, words):
    with refused(words):
        plda.llr(sides, sides, pairs=pairs)


def test_no_pairs(plda, sides):
    assert plda.llr(sides, sides, pairs=np.zeros((0, 2), int)).shape == (0,)


@pytest.mark.parametrize("pairs", [None, [[0, 0]]], ids=["matrix", "pairs"])
def test_sides_of_different_models(plda, sides, pairs):
    words = ("different models?|another model", "enroll")
    for ny, nx, d in ((3, 2, 4), (2, 1, 4), (2, 2, 5)):
        other = PLDA.from_parameters(np.zeros(d), np.eye(d)[:, :ny], np.eye(d)[:, :nx], np.eye(d))
        with refused(*words):
            plda.llr(sides, other.enroll(np.ones((3, d)), [0, 1, 2]), pairs=pairs)
    same_shape = PLDA.from_parameters(np.zeros(4), np.eye(4)[:, :2], np.eye(4)[:, :2], np.eye(4))
    with refused(*words):  # would be numbers, and wrong
        plda.llr(sides, same_shape.enroll(X, SPEAKER), pairs=pairs)
    with refused(*words):
        same_shape.llr(sides, sides, pairs=pairs)


def test_sides_of_an_equal_model(plda, sides):
    """The same parameters, loaded or built again, are the same model."""
    again = PLDA.from_parameters(plda.mean_, plda.speaker_loadings_, plda.session_loadings_, plda.noise_precision_)
    expected = plda.llr(sides, sides)
    np.testing.assert_array_equal(again.llr(sides, sides), expected)
    np.testing.assert_allclose(plda.llr(sides, again.enroll(X, SPEAKER, SESSION)), expected, rtol=1e-12)


def test_neither_sides_nor_recordings(plda, sides):
    for side in (X[0], 3.0, None, "abc", {"a": 1}, [[1.0, 2.0], [3.0]], X[:, :1]):
        with refused("enrolled: "):
            plda.llr(side, sides)
        with refused("tests: "):
            plda.llr(sides, side)
    with refused("tests are Recordings.*duoplda.score"):
        plda.llr(sides, Recordings.from_arrays(X))


@pytest.mark.parametrize("prior", [0, 1, -0.1, 1.5, np.nan, "a", None], ids=str)
def test_prior(prior):
    with refused(f"prior={re.escape(repr(prior))} must"):
        PLDA.posterior_probability(1.0, prior=prior)


# -- parameters by hand ------------------------------------------------------------------------------------------------

GOOD = {
    "mean": np.zeros(4),
    "speaker_loadings": np.eye(4)[:, :2],
    "session_loadings": np.eye(4)[:, 2:],
    "noise_precision": np.eye(4),
}


def but(array, at, value):
    array = array.copy()
    array[at] = value
    return array


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("mean", np.zeros((1, 4)), r"mean has shape \(1, 4\)"),
        ("mean", 0.0, r"mean has shape \(\), expected \(dimensions,\)"),
        ("mean", np.zeros(0), r"mean has shape \(0,\)"),
        ("mean", ["a"] * 4, "mean"),
        ("mean", None, "mean"),
        ("mean", [[1], [1, 2]], "mean"),
        ("mean", np.zeros(4) + 1j, "mean.*(complex|real)"),
        ("mean", np.full(4, np.nan), "mean contains NaN or infinity"),
        ("speaker_loadings", np.eye(4)[:3, :2], r"speaker_loadings has shape \(3, 2\), expected \(4, factors\)"),
        ("speaker_loadings", np.ones(4), r"speaker_loadings has shape \(4,\), expected \(4, factors\)"),
        ("speaker_loadings", np.ones((4, 5)), "speaker_loadings has 5 factors for 4 dimensions"),
        ("speaker_loadings", np.full((4, 2), np.inf), "speaker_loadings contains NaN or infinity"),
        ("speaker_loadings", None, "speaker_loadings"),
        ("session_loadings", np.eye(4)[:2], r"session_loadings has shape \(2, 4\), expected \(4, factors\)"),
        ("session_loadings", np.ones((4, 5)), "session_loadings has 5 factors for 4 dimensions"),
        ("session_loadings", np.full((4, 2), np.nan), "session_loadings contains NaN or infinity"),
        ("noise_precision", np.ones(4), r"noise_precision has shape \(4,\), expected \(4, 4\)"),
        ("noise_precision", np.eye(3), r"noise_precision has shape \(3, 3\), expected \(4, 4\)"),
        ("noise_precision", but(np.eye(4), (0, 1), 0.1), r"noise_precision is not symmetric .*0\.1"),
        ("noise_precision", np.diag([1, 1, 1, -1.0]), "noise_precision is not positive definite .*-1"),
        ("noise_precision", np.diag([1, 1, 1, 0.0]), "noise_precision is not positive definite"),
        ("noise_precision", but(np.eye(4), (0, 0), np.nan), "noise_precision contains NaN or infinity"),
        ("noise_precision", None, "noise_precision"),
    ],
    ids=lambda v: re.sub(r"[^\w ]", "", v) if isinstance(v, str) else "",
)
def test_from_parameters(name, value, words):
    PLDA.from_parameters(**GOOD)
    with refused(words):
        PLDA.from_parameters(**{**GOOD, name: value})


def test_rounding_is_not_asymmetry():
    PLDA.from_parameters(**{**GOOD, "noise_precision": but(np.eye(4), (0, 1), 1e-9)})


def test_hidden_variables(plda):
    y, x = np.zeros((M, 2)), np.zeros((H, 2))
    with refused(rf"y has shape \({M - 1}, 2\), expected \({M}, 2\)", "sorted id"):
        plda.conditional_log_likelihood(X, y[1:], x, SPEAKER, SESSION)
    with refused(rf"x has shape \({H}, 1\), expected \({H}, 2\)", "sorted id"):
        plda.conditional_log_likelihood(X, y, x[:, 1:], SPEAKER, SESSION)
    with refused("y .*NaN"):  # y is to blame, not X
        plda.conditional_log_likelihood(X, y * np.nan, x, SPEAKER, SESSION)
    with refused("x .*NaN"):
        plda.conditional_log_likelihood(X, y, x * np.nan, SPEAKER, SESSION)


# -- data to draw ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        *(({n: 0}, rf"{n} must be .*, got 0") for n in ("sessions", "recordings")),
        *(({n: -2}, rf"{n} must be .*, got -2") for n in ("sessions", "recordings")),
        *(({n: (3, 1)}, rf"{n} must be .*range \(low, high\), got \(3, 1\)") for n in ("sessions", "recordings")),
        ({"sessions": (0, 2)}, r"sessions must be .*, got \(0, 2\)"),
        ({"sessions": (1, 2, 3)}, r"sessions must be .*, got \(1, 2, 3\)"),
        ({"sessions": 1.5}, r"sessions must be .*, got 1\.5"),
        ({"recordings": (1, 2.5)}, r"recordings must be .*, got \(1, 2\.5\)"),
        ({"recordings": "a"}, r"recordings must be .*, got 'a'"),
        ({"recordings": None}, r"recordings must be .*, got None"),
        ({"n_speakers": -1}, "n_speakers"),
        ({"n_speakers": 2.5}, "n_speakers"),
        ({"n_speaker_factors": 40}, "between 0 and 32"),
        ({"n_speaker_factors": -1}, "between 0 and 32"),
        ({"n_session_factors": 33}, "between 0 and 32"),
        ({"n_dimensions": 0}, "0 dimensions"),
        ({"speaker_variance": -1.0}, "speaker_variance"),
        ({"session_variance": -1.0}, "session_variance"),
        ({"channel_variance": 0.0}, "channel_variance"),
        ({"channel_variance": -1.0}, "channel_variance"),
    ],
    ids=str,
)
def test_make_recordings(arguments, words):
    with refused(words):
        make_recordings(**arguments)


def test_sample(plda):
    for arguments in ((3, 0), (3, 1, (2, 1)), (3, "a")):
        with refused("sessions must be|recordings must be"):
            plda.sample(*arguments)
    with refused("n_speakers"):
        plda.sample(-1)


def test_strings_of_numpy_in_a_list_are_strings():
    from duoplda.data import labels as lab

    ids, codes = lab.codes([np.str_("b"), np.str_("a")], "session")
    assert ids.tolist() == ["a", "b"]
    assert codes.tolist() == [1, 0]


# -- what strangers try


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_matrices_of_numpy(plda, call):
    with refused("np.matrix", "give np.asarray"):
        call(plda, np.matrix(X))


@pytest.mark.parametrize("what", ["speaker", "session"])
def test_ragged_labels(plda, what):
    labels = {"speaker": SPEAKER, "session": SESSION, what: [["a"], ["b", "c"]]}
    with refused(f"{what} labels must be one-dimensional", "one label for each recording"):
        PLDA(2, 2).fit(X, labels["speaker"], session=labels["session"])
    with refused(f"{what} labels must be one-dimensional"):
        plda.enroll(X, labels["speaker"], labels["session"])


def test_differences(plda, sides):
    with refused("nothing can be subtracted from sides", "remove"):
        sides - sides
    stats = Statistics.from_arrays(X, SPEAKER, SESSION)
    with refused("nothing can be taken off", "n_folds"):
        stats - stats


@pytest.mark.parametrize("estimator", [PLDA(2, 2), PLDA(), Backend(plda=PLDA(2, 2))], ids=repr)
def test_the_scale_of_training_data(estimator):
    with refused("too large to add up", "e\\+151", "rows 0, 1", "divide"):
        estimator.fit(X * 1e150, SPEAKER, session=SESSION)
    with refused("variance of .*e-300.* in another unit|too little .*e-300"):
        estimator.fit(X * 1e-150, SPEAKER, session=SESSION)


def test_models_of_large_and_small_numbers_are_read_again(tmp_path):
    for scale in (1e-40, 1e40):
        path = tmp_path / f"{scale:g}"
        PLDA(2, 2).fit(scale * X / np.abs(X).max(), SPEAKER, session=SESSION).save(path)
        assert np.isfinite(PLDA.load(path).transform(scale * X)).all()


@pytest.mark.parametrize("scale", [1e-8, 1e8, 1e30])
@pytest.mark.parametrize("known", ["speakers", "sessions", "nothing"])
def test_a_target_on_another_scale(plda, scale, known):
    labels = {"speakers": (SPEAKER, SESSION), "sessions": (None, SESSION), "nothing": ()}[known]
    with refused("give vectors of the same extractor, on the same scale"):
        plda.adapt(scale * X, *labels)


@pytest.mark.parametrize("prior", [np.nan, 0, 1, "x", None])
def test_priors_of_an_adaptation(plda, prior):
    with refused(f"prior={prior!r} must be a number between 0 and 1".replace("(", r"\(").replace(")", r"\)")):
        plda.adapt(X, SPEAKER, SESSION, prior=prior)
