"""One source for every array library: each test runs on NumPy, array-api-strict and, if installed, torch."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

from chunked import accumulate
from duoplda import PLDA, DuopldaError, Statistics
from duoplda import arrays as ar
from duoplda.datasets import make_recordings
from duoplda.model import em
from duoplda.observer import Observer

DATA = make_recordings(14, (1, 4), (1, 4), n_dimensions=6, n_speaker_factors=3, n_session_factors=2, seed=3)
X, SPEAKER, SESSION = DATA.X, DATA.speaker, DATA.session
# Parameters that no eigenvector's sign can change: what is computed from them can be compared as it is.
MODEL = tuple(np.asarray(a) for a in (DATA.model.mu[0], DATA.model.V, DATA.model.U, DATA.model.W[0]))


@pytest.fixture
def plda(library):
    """The model of the data, with parameters in the library."""
    return PLDA.from_parameters(*map(library.put, MODEL))


@pytest.fixture(scope="module")
def reference():
    """The same in NumPy."""
    return PLDA.from_parameters(*MODEL)


def same(library, ours, numpys, tol=1e-9):
    np.testing.assert_allclose(library.get(ours), numpys, rtol=tol, atol=tol)


def chunks(rows, *edges):
    edges = (0, *edges, rows.shape[0])
    return [rows[a:b, :] for a, b in itertools.pairwise(edges)]


# -- statistics --------------------------------------------------------------------------------------------------------


def same_statistics(library, ours, numpys):
    for name in ("offset", "within", "S"):
        same(library, getattr(ours, name), getattr(numpys, name))
    assert [b.counts.tolist() for b in ours.blocks] == [b.counts.tolist() for b in numpys.blocks]
    for b, c in zip(ours.blocks, numpys.blocks, strict=True):
        same(library, b.A, c.A)
        same(library, b.T, c.T)
        np.testing.assert_array_equal(b.n, c.n)
        np.testing.assert_array_equal(b.speaker, c.speaker)
    for name in ("speaker_ids", "weights", "counts", "types", "H", "N"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(numpys, name))


@pytest.mark.parametrize("named", [True, False], ids=["sessions", "no sessions"])
def test_statistics(library, named):
    session = SESSION if named else None
    ours = Statistics.from_arrays(library.put(X), SPEAKER, session)
    same_statistics(library, ours, Statistics.from_arrays(X, SPEAKER, session))


def test_statistics_in_any_order_of_rows(library):
    shuffled = np.random.default_rng(0).permutation(len(X))
    ours = Statistics.from_arrays(library.put(X[shuffled]), SPEAKER[shuffled], SESSION[shuffled])
    same_statistics(library, ours, Statistics.from_arrays(X[shuffled], SPEAKER[shuffled], SESSION[shuffled]))


@pytest.mark.parametrize("kinds", [1, 2])
@pytest.mark.parametrize("edges", [(7, 8, 40), tuple(range(1, len(X)))], ids=["uneven chunks", "chunks of one row"])
def test_accumulated_statistics(library, edges, kinds):
    """Sessions that are split between chunks, down to a recording at a time."""
    shuffled = np.random.default_rng(1).permutation(len(X))
    kind = np.array(["near", "far"])[np.arange(len(X)) % kinds][shuffled]
    labels = (SPEAKER[shuffled], SESSION[shuffled], kind)
    ours = accumulate(chunks(library.put(X[shuffled]), *edges), labels)
    whole = Statistics.from_arrays(X[shuffled], *labels)
    same_statistics(library, ours.about(library.put(whole.offset)), whole)


def test_statistics_add_and_scale(library):
    half = np.isin(SPEAKER, np.unique(SPEAKER)[::2])

    def joined(put):
        parts = [Statistics.from_arrays(put(X[of]), SPEAKER[of], SESSION[of]) for of in (half, ~half)]
        return parts[0] + 0.5 * parts[1]

    ours, numpys = joined(library.put), joined(np.asarray)
    same_statistics(library, ours, numpys)
    whole = Statistics.from_arrays(X, SPEAKER, SESSION)
    assert not np.allclose(numpys.S, whole.S)  # the weight counts


def test_statistics_of_single_precision(library):
    """float32 goes in, the sums are in double precision, and equal NumPy's of the same rounded numbers."""
    rough = X.astype(np.float32)
    ours = Statistics.from_arrays(library.put(rough, "float32"), SPEAKER, SESSION)
    same_statistics(library, ours, Statistics.from_arrays(rough, SPEAKER, SESSION))
    np.testing.assert_allclose(
        library.get(ours.S), Statistics.from_arrays(rough.astype(float), SPEAKER, SESSION).S, rtol=1e-12
    )


def test_statistics_of_integers(library):
    whole = np.round(X * 10).astype(np.int64)
    ours = Statistics.from_arrays(library.put(whole, "int64"), SPEAKER, SESSION)
    same_statistics(library, ours, Statistics.from_arrays(whole.astype(float), SPEAKER, SESSION))


# -- training ----------------------------------------------------------------------------------------------------------


def test_training_goes_on_from_a_saved_state(library):
    """A state is saved as arrays of the host, and goes on where the statistics are."""
    saved = []

    class Keeper(Observer):
        def state(self, state):
            saved.append(state)

    stats = Statistics.from_arrays(library.put(X), SPEAKER, SESSION)
    whole = em.fit(stats, em.moment_start(stats, 3, 2), observer=Keeper(), tol=0, max_iter=8)
    arrays = saved[4].arrays()
    assert all(type(a) is np.ndarray for a in arrays.values())
    rest = em.fit(stats, em.State.from_arrays(arrays, whole.model.kinds), tol=0, max_iter=8)
    np.testing.assert_allclose(rest.log_likelihoods, whole.log_likelihoods, rtol=1e-12)
    for name in ("mu", "V", "U", "W"):
        same(library, getattr(rest.model, name), library.get(getattr(whole.model, name)), 1e-9)


def same_fit(library, ours, numpys, tol=1e-9):
    """Parameters as far as they are determined: y and x may be rotated."""
    same(library, ours.mean_, numpys.mean_, tol)
    same(library, ours.noise_precision_, numpys.noise_precision_, tol)
    for name in ("speaker_loadings_", "session_loadings_"):
        a, b = library.get(getattr(ours, name)), getattr(numpys, name)
        assert a.shape == b.shape
        np.testing.assert_allclose(a @ a.T, b @ b.T, rtol=tol, atol=tol)
    assert isinstance(ours.log_likelihoods_, np.ndarray)
    np.testing.assert_allclose(ours.log_likelihoods_, numpys.log_likelihoods_, rtol=1e-11)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(
    "parameters",
    [
        {"n_speaker_factors": 3, "n_session_factors": 2},
        {"n_speaker_factors": 3, "n_session_factors": 2, "accelerate": False},
        {"n_speaker_factors": 3, "n_session_factors": 2, "minimum_divergence": False},
        {"n_speaker_factors": 3, "n_session_factors": 0},
        {},
        {"noise_floor": 0.02},
        {"n_speaker_factors": 3, "n_session_factors": 2, "init": "random", "random_state": 0},
    ],
    ids=lambda p: ", ".join(f"{k}={v}" for k, v in p.items()) or "full rank",
)
def test_fit(library, parameters):
    ours, numpys = (
        PLDA(max_iter=6, tol=0, **parameters).fit(put(X), SPEAKER, session=SESSION) for put in (library.put, np.asarray)
    )
    assert numpys.n_iter_ == ours.n_iter_ == 6
    assert np.diff(numpys.log_likelihoods_).min() > 0
    same_fit(library, ours, numpys)


def test_fit_to_convergence(library):
    ours, numpys = (PLDA(3, 2).fit(put(X), SPEAKER, session=SESSION) for put in (library.put, np.asarray))
    assert ours.converged_
    assert ours.n_iter_ == numpys.n_iter_
    same_fit(library, ours, numpys, 1e-8)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fit_of_single_precision(library):
    rough = X.astype(np.float32)
    ours = PLDA(3, 2, max_iter=4, tol=0).fit(library.put(rough, "float32"), SPEAKER, session=SESSION)
    same_fit(library, ours, PLDA(3, 2, max_iter=4, tol=0).fit(rough, SPEAKER, session=SESSION))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fit_statistics(library):
    stats = Statistics.from_arrays(library.put(X), SPEAKER, SESSION)
    numpys = PLDA(3, 2, max_iter=3, tol=0).fit(X, SPEAKER, session=SESSION)
    same_fit(library, PLDA(3, 2, max_iter=3, tol=0).fit_statistics(stats), numpys)


def test_callback_gets_the_model_in_the_library(library):
    seen = []
    PLDA(3, 2, callback=lambda i, ln, model: seen.append((type(ln), type(model.V))) or i == 2).fit(
        library.put(X), SPEAKER, session=SESSION
    )
    assert seen == [(float, library.array_type)] * 2


# -- densities, posteriors, trials -------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", [SESSION, None], ids=["sessions", "no sessions"])
def test_log_likelihood(library, plda, reference, session):
    ids, ln = plda.log_likelihood(library.put(X), SPEAKER, session)
    numpy_ids, numpys = reference.log_likelihood(X, SPEAKER, session)
    np.testing.assert_array_equal(ids, numpy_ids)
    same(library, ln, numpys)
    score = plda.score(library.put(X), SPEAKER, session)
    assert isinstance(score, float)
    assert score == pytest.approx(numpys.sum() / len(X), rel=1e-12)
    assert plda.partition_log_likelihood(library.put(X), SPEAKER, session) == pytest.approx(numpys.sum(), rel=1e-12)


def test_conditional_log_likelihood(library, plda, reference):
    rng = np.random.default_rng(2)
    y = rng.standard_normal((len(np.unique(SPEAKER)), 3))
    x = rng.standard_normal((len(np.unique(SESSION)), 2))
    _, ours = plda.conditional_log_likelihood(library.put(X), library.put(y), library.put(x), SPEAKER, SESSION)
    same(library, ours, reference.conditional_log_likelihood(X, y, x, SPEAKER, SESSION)[1])


def test_posterior(library, plda, reference):
    ours, numpys = plda.posterior(library.put(X), SPEAKER, SESSION), reference.posterior(X, SPEAKER, SESSION)
    for name in ("speaker_mean", "session_mean", "speaker_precision", "session_precision"):
        same(library, getattr(ours, name), getattr(numpys, name))
    y = np.random.default_rng(3).standard_normal(numpys.speaker_mean.shape)
    same(library, ours.session_mean_given(library.put(y)), numpys.session_mean_given(y))
    for name in ("speaker_ids", "session_ids", "session_speaker"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(numpys, name))


def test_transform(library, plda, reference):
    same(library, plda.transform(library.put(X)), reference.transform(X))


def sides(plda, put):
    """Enrolment in sets, and tests of single recordings and of pairs, some of them from the enrolled sessions."""
    enrolled = plda.enroll(put(X[:-10]), SPEAKER[:-10], SESSION[:-10])
    some = np.r_[np.arange(0, len(X), 3), np.arange(len(X) - 10, len(X))]
    shared = plda.enroll(put(X[some]), np.arange(len(some)) // 2, SESSION[some])
    alone = plda.enroll(put(X[some]), np.arange(len(some)) // 2)
    return enrolled, shared, alone


def test_enroll(library, plda, reference):
    for ours, numpys in zip(sides(plda, library.put), sides(reference, np.asarray), strict=True):
        np.testing.assert_array_equal(ours.ids, numpys.ids)
        np.testing.assert_array_equal(ours.counts, numpys.counts)
        same(library, ours.gamma, numpys.gamma)


def test_llr(library, plda, reference):
    enrolled, shared, alone = sides(plda, library.put)
    numpys = sides(reference, np.asarray)
    apart = reference.llr(numpys[0], numpys[2])
    same(library, plda.llr(enrolled, alone), apart)
    merged = reference.llr(numpys[0], numpys[1])
    assert (np.abs(merged - apart) > 1e-3).any()  # some trials share a session, and it matters
    assert (np.abs(merged - apart) < 1e-9).any()
    same(library, plda.llr(enrolled, shared), merged)
    same(library, plda.llr(shared, enrolled), merged.T)


def test_llr_of_pairs(library, plda, reference):
    enrolled, shared, alone = sides(plda, library.put)
    numpys = sides(reference, np.asarray)
    rng = np.random.default_rng(4)
    pairs = np.c_[rng.integers(len(enrolled), size=60), rng.integers(len(shared), size=60)]
    small = np.tile(pairs, (2, 1)).astype(np.int8)
    assert len(enrolled) * len(shared) > 127  # more trials than such integers can number
    for side, numpy_side in ((shared, numpys[1]), (alone, numpys[2])):
        matrix = reference.llr(numpys[0], numpy_side)
        same(library, plda.llr(enrolled, side, pairs=pairs), matrix[pairs[:, 0], pairs[:, 1]])
        same(library, plda.llr(enrolled, side, pairs=pairs.tolist()), matrix[pairs[:, 0], pairs[:, 1]])
        same(library, plda.llr(enrolled, side, pairs=small), matrix[small[:, 0], small[:, 1]])
        same(library, plda.llr(enrolled, side, pairs=library.put(pairs, "int64")), matrix[pairs[:, 0], pairs[:, 1]])


def test_posterior_probability(library, plda):
    llr = np.array([[-800.0, -2.0, 0.0], [3.0, 40.0, 800.0]])
    ours = library.get(plda.posterior_probability(library.put(llr), prior=0.2))
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(ours, 1 / (1 + 4 * np.exp(-llr)), rtol=1e-12)


def test_labels_of_the_library(library, plda, reference):
    """Integer labels may be arrays of the library; ids are NumPy's."""
    speaker, session = (np.unique(a, return_inverse=True)[1] for a in (SPEAKER, SESSION))
    ids, ours = plda.log_likelihood(library.put(X), library.put(speaker, "int64"), library.put(session, "int64"))
    assert isinstance(ids, np.ndarray)
    same(library, ours, reference.log_likelihood(X, speaker, session)[1])


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_other_types_of_numbers(library, plda, reference, dtype):
    """Whatever numbers come in, densities and scores are in double precision."""
    rough = np.round(X * 8).astype(dtype)
    given = library.put(rough, dtype)
    same(library, plda.transform(given), reference.transform(rough.astype(float)))
    same(
        library,
        plda.log_likelihood(given, SPEAKER, SESSION)[1],
        reference.log_likelihood(rough.astype(float), SPEAKER, SESSION)[1],
    )
    side, numpy_side = plda.enroll(given, SPEAKER, SESSION), reference.enroll(rough.astype(float), SPEAKER, SESSION)
    same(library, plda.llr(side, side), reference.llr(numpy_side, numpy_side))


def test_parameters_of_single_precision(library):
    rough = tuple(a.astype(np.float32) for a in MODEL)
    ours = PLDA.from_parameters(*(library.put(a, "float32") for a in rough))
    numpys = PLDA.from_parameters(*rough)
    same(library, ours.noise_precision_, numpys.noise_precision_)
    same(library, ours.transform(library.put(X)), numpys.transform(X))


# -- from one library to another ---------------------------------------------------------------------------------------


def test_model_of_numpy_on_data_of_the_library(library, reference):
    same(library, reference.transform(library.put(X)), reference.transform(X))
    same(
        library,
        reference.log_likelihood(library.put(X), SPEAKER, SESSION)[1],
        reference.log_likelihood(X, SPEAKER, SESSION)[1],
    )
    a, b = reference.enroll(library.put(X), SPEAKER, SESSION), reference.enroll(X, SPEAKER, SESSION)
    same(library, reference.llr(a, a), reference.llr(b, b))
    assert isinstance(reference.mean_, np.ndarray)  # the model stays where it was


def test_model_of_the_library_on_data_of_numpy(library, plda, reference):
    for ours, numpys in (
        (plda.transform(X), reference.transform(X)),
        (plda.log_likelihood(X, SPEAKER, SESSION)[1], reference.log_likelihood(X, SPEAKER, SESSION)[1]),
        (plda.posterior(X, SPEAKER, SESSION).session_mean, reference.posterior(X, SPEAKER, SESSION).session_mean),
    ):
        assert type(ours) is np.ndarray
        np.testing.assert_allclose(ours, numpys, rtol=1e-9, atol=1e-9)
    side = plda.enroll(X, SPEAKER, SESSION)
    assert type(plda.llr(side, side)) is np.ndarray


def test_fitted_in_the_library_scored_by_numpy(library):
    ours = PLDA(3, 2).fit(library.put(X), SPEAKER, session=SESSION)
    numpys = PLDA(3, 2).fit(X, SPEAKER, session=SESSION)
    assert ours.score(X, SPEAKER, SESSION) == pytest.approx(numpys.score(X, SPEAKER, SESSION), rel=1e-10)
    a, b = ours.enroll(X, SPEAKER, SESSION), numpys.enroll(X, SPEAKER, SESSION)
    np.testing.assert_allclose(ours.llr(a, a), numpys.llr(b, b), rtol=1e-6, atol=1e-6)


def test_save_and_load(library, plda, tmp_path):
    """A file knows no library: NumPy comes back, with the same numbers."""
    plda.save(tmp_path / "model")
    back = PLDA.load(tmp_path / "model")
    for name in ("mean_", "speaker_loadings_", "session_loadings_", "noise_precision_"):
        assert type(getattr(back, name)) is np.ndarray
        np.testing.assert_array_equal(getattr(back, name), library.get(getattr(plda, name)))


def test_sides_of_two_libraries_are_refused(library, plda, reference):
    if library.name == "numpy":
        pytest.skip("one library only")
    ours, numpys = plda.enroll(library.put(X), SPEAKER), reference.enroll(X, SPEAKER)
    for pairs in (None, [[0, 0]]):
        with pytest.raises(DuopldaError, match="array librar"):
            reference.llr(ours, numpys, pairs=pairs)


def test_parameters_of_two_libraries(library):
    """Arrays of one library beside NumPy's and lists."""
    mixed = PLDA.from_parameters(MODEL[0].tolist(), library.put(MODEL[1]), MODEL[2], library.put(MODEL[3]))
    for name, value in zip(("mean_", "speaker_loadings_", "session_loadings_", "noise_precision_"), MODEL, strict=True):
        same(library, getattr(mixed, name), value)


def test_hidden_variables_of_numpy(library, plda, reference):
    y, x = np.ones((len(np.unique(SPEAKER)), 3)), np.ones((len(np.unique(SESSION)), 2))
    _, ours = plda.conditional_log_likelihood(library.put(X), y, x, SPEAKER, SESSION)
    same(library, ours, reference.conditional_log_likelihood(X, y, x, SPEAKER, SESSION)[1])


def test_another_device():
    """What goes in decides where the work is done: array-api-strict has a device that NumPy cannot see into."""
    strict = pytest.importorskip("array_api_strict")
    device = strict.Device("device1")
    given = strict.asarray(X, device=device)
    ours, numpys = (PLDA(3, 2).fit(a, SPEAKER, session=SESSION) for a in (given, X))
    assert ours.speaker_loadings_.device == ours.noise_precision_.device == ours.mean_.device == device
    np.testing.assert_allclose(ours.log_likelihoods_, numpys.log_likelihoods_, rtol=1e-11)
    side = ours.enroll(given, SPEAKER, SESSION)
    assert ours.llr(side, side).device == device
    assert ours.llr(side, side, pairs=[[0, 1]]).device == device
    assert ours.transform(given).device == device
    assert ours.posterior(given, SPEAKER, SESSION).session_mean.device == device
    assert ours.log_likelihood(given, SPEAKER, SESSION)[1].device == device
    assert ours.transform(strict.asarray(X)).device == strict.asarray(X).device  # the data's place, not the model's


# -- wrong input, in any library ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "call",
    [
        lambda plda, given: PLDA(3, 2).fit(given, SPEAKER, session=SESSION),
        lambda plda, given: plda.transform(given),
        lambda plda, given: plda.enroll(given, SPEAKER, SESSION),
        lambda plda, given: plda.log_likelihood(given, SPEAKER, SESSION),
    ],
    ids=["fit", "transform", "enroll", "log_likelihood"],
)
def test_not_finite(library, plda, call, value):
    bad = X.copy()
    bad[[4, 9], 2] = value
    with pytest.raises(DuopldaError, match=r"NaN or infinity in 2 of \d+ rows: 4, 9\."):
        call(plda, library.put(bad))


def test_wrong_shapes(library, plda):
    with pytest.raises(DuopldaError, match=r"expecting 6 features"):
        plda.transform(library.put(X[:, :5]))
    with pytest.raises(ValueError, match=r"(?i)shape \(84,\)|2D array"):
        plda.transform(library.put(np.zeros(84)))
    with pytest.raises(ValueError, match=r"(?i)shape \(1, \d+, 6\)|dim 3"):
        plda.transform(library.put(X[None]))


def test_singular_data(library):
    """The same words in every library, and the same remedy."""
    twice = np.c_[X, X[:, 1]]
    with pytest.raises(DuopldaError, match=r"columns \(1, 6\) are copies"):
        PLDA(3, 2).fit(library.put(twice), SPEAKER, session=SESSION)
    ours, numpys = (
        PLDA(3, 2, noise_floor=1e-3).fit(put(twice), SPEAKER, session=SESSION) for put in (library.put, np.asarray)
    )
    np.testing.assert_allclose(ours.log_likelihoods_, numpys.log_likelihoods_, rtol=1e-8)


def test_complex_numbers_are_refused(library, plda):
    given = library.put(X, "complex128")
    with pytest.raises(ValueError, match=r"(?i)complex"):
        plda.transform(given)


# -- the helpers, against NumPy ----------------------------------------------------------------------------------------


def spd(rng, *shape):
    """Well-conditioned symmetric positive definite matrices."""
    A = rng.standard_normal((*shape, shape[-1]))
    return A @ np.swapaxes(A, -1, -2) / shape[-1] + np.eye(shape[-1])


def check_inverse(library, matrices, given):
    inverse, ln = ar.spd_inverse(given)
    matrices = matrices.astype(np.float64)
    np.testing.assert_allclose(library.get(inverse), np.linalg.inv(matrices), rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(library.get(ln), np.linalg.slogdet(matrices)[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("sizes", [range(1, 101), range(101, 201), range(201, 301)], ids=str)
def test_spd_inverse_of_every_size(sizes):
    """NumPy's goes by blocks: every size up to 300."""
    rng = np.random.default_rng(5)
    for n in sizes:
        M = spd(rng, n)
        before = M.copy()
        inverse, ln = ar.spd_inverse(M)
        np.testing.assert_allclose(inverse, np.linalg.inv(M), rtol=1e-10, atol=1e-11)
        np.testing.assert_allclose(ln, np.linalg.slogdet(M)[1], rtol=1e-10, atol=1e-10)
        np.testing.assert_array_equal(M, before)  # what is given is not written to


@pytest.mark.parametrize("n", [1, 2, 3, 47, 48, 49, 50, 96, 97, 130, 300])
def test_spd_inverse(library, n):
    rng = np.random.default_rng(n)
    check_inverse(library, one := spd(rng, n), library.put(one))
    for shape in ((5, n), (2, 3, n), (1, n)):
        stack = spd(rng, *shape)
        check_inverse(library, stack, library.put(stack))


@pytest.mark.parametrize("n", [0, 1, 60])
def test_spd_inverse_of_nothing(library, n):
    inverse, ln = ar.spd_inverse(library.put(np.zeros((0, n, n))))
    assert library.get(inverse).shape == (0, n, n)
    assert library.get(ln).shape == (0,)
    inverse, ln = ar.spd_inverse(library.put(np.zeros((3, 0, 0))))
    assert library.get(inverse).shape == (3, 0, 0)
    np.testing.assert_array_equal(library.get(ln), np.zeros(3))


@pytest.mark.parametrize("n", [3, 48, 75])
def test_spd_inverse_of_views(library, n):
    """Transposed, strided, Fortran-ordered and broadcast input."""
    rng = np.random.default_rng(6)
    stack = spd(rng, 6, n)
    given = library.put(stack)
    check_inverse(library, stack[::2], given[::2, ...])
    check_inverse(library, np.swapaxes(stack, -1, -2), given.mT)
    check_inverse(library, stack[:, 1:, 1:], given[:, 1:, 1:])
    if library.name == "numpy":
        check_inverse(library, stack, np.asfortranarray(stack))
        check_inverse(library, stack[:, ::-1, ::-1], stack[:, ::-1, ::-1])
        check_inverse(library, np.broadcast_to(stack[0], (4, n, n)), np.broadcast_to(stack[0], (4, n, n)))
        check_inverse(library, stack.astype(np.float32), stack.astype(np.float32))


@pytest.mark.parametrize("n", [1, 5, 48, 49, 120])
def test_not_positive_definite(library, n):
    """Wherever in the stack, and wherever in the matrix, the bad one is."""
    rng = np.random.default_rng(7)
    for at in {0, n // 2, n - 1}:
        stack = spd(rng, 3, n)
        stack[1, at, at] = -1.0
        for function in (ar.spd_inverse, ar.cholesky):
            with pytest.raises(ar.NotPositiveDefinite):
                function(library.put(stack))
            with pytest.raises(ar.NotPositiveDefinite):
                function(library.put(stack * np.nan))


def test_singular_equations(library):
    rng = np.random.default_rng(8)
    A, b = spd(rng, 4), rng.standard_normal((4, 2))
    same(library, ar.solve(library.put(A), library.put(b)), np.linalg.solve(A, b), 1e-12)
    A[0], A[:, 0] = 0.0, 0.0
    with pytest.raises(ar.NotPositiveDefinite):
        ar.solve(library.put(A), library.put(b))


def test_libraries_that_return_nan(monkeypatch):
    """As some do instead of raising an error: EM must not go on from there."""
    strict = pytest.importorskip("array_api_strict")
    cholesky = strict.linalg.cholesky

    def nan(x):
        try:
            return cholesky(x)
        except np.linalg.LinAlgError:
            return x * float("nan")

    monkeypatch.setattr(strict.linalg, "cholesky", nan)
    bad = strict.asarray(np.diag([1.0, -1.0]))
    for function in (ar.spd_inverse, ar.cholesky):
        with pytest.raises(ar.NotPositiveDefinite):
            function(bad)


def test_spd_inverse_reuses_its_buffers():
    """One object, stacks of different sizes in turn: nothing is left over from the last call."""
    rng, invert = np.random.default_rng(8), ar.SpdInverse()
    for m, n in ((4, 100), (2, 100), (4, 60), (3, 10), (4, 100), (1, 48), (2, 100)):
        stack = spd(rng, m, n)
        out = stack.copy()
        ln = invert(out)
        np.testing.assert_allclose(out, np.linalg.inv(stack), rtol=1e-10, atol=1e-11)
        np.testing.assert_allclose(ln, np.linalg.slogdet(stack)[1], rtol=1e-10)


@pytest.mark.parametrize("starts", [[0], [0, 1, 2, 3, 4, 5, 6], [0, 3, 4], [0, 6]], ids=str)
@pytest.mark.parametrize("columns", [0, 1, 3])
def test_segment_sums(library, starts, columns):
    rows = np.random.default_rng(9).standard_normal((7, columns))
    expected = [rows[a:b].sum(axis=0) for a, b in zip(starts, [*starts[1:], 7], strict=True)]
    ours = ar.segment_sums(library.put(rows), np.array(starts))
    np.testing.assert_allclose(library.get(ours), np.array(expected).reshape(len(starts), columns), rtol=1e-14)


def test_add_rows(library):
    rng = np.random.default_rng(10)
    array, rows, index = rng.standard_normal((6, 3)), rng.standard_normal((4, 3)), np.array([5, 0, 2, 3])
    ours = library.put(array.copy())
    ar.add_rows(ours, index, library.put(rows))
    array[index] += rows
    same(library, ours, array, 1e-15)
    ar.add_rows(ours, np.zeros(0, np.int64), library.put(np.zeros((0, 3))))
    same(library, ours, array, 1e-15)


def test_set_rows_and_take(library):
    rng = np.random.default_rng(11)
    array, rows, index = rng.standard_normal((6, 3)), rng.standard_normal((4, 3)), np.array([5, 0, 2, 3])
    ours = library.put(array.copy())
    ar.set_rows(ours, index, library.put(rows))
    array[index] = rows
    same(library, ours, array, 0)
    line = library.put(array[:, 0].copy())
    ar.set_rows(line, index, library.put(rows[:, 1]))
    np.testing.assert_array_equal(library.get(line)[index], rows[:, 1])
    same(library, ar.take(ours, np.array([1, 1, 5])), array[[1, 1, 5]], 0)
    assert ar.take(ours, np.zeros(0, np.int64)).shape == (0, 3)


def test_tall_products(library):
    rng = np.random.default_rng(12)
    for n in (0, 1, 1024, 2051):
        rows, matrix = rng.standard_normal((n, 3)), rng.standard_normal((3, 2))
        same(library, ar.tall_product(library.put(rows), library.put(matrix)), rows @ matrix, 1e-13)


def test_cholesky_and_determinant(library):
    rng = np.random.default_rng(12)
    A = spd(rng, 5)
    factor = np.linalg.cholesky(A)
    same(library, ar.cholesky(library.put(A)), factor, 1e-12)
    ln = ar.logdet_cholesky(library.put(factor[None]))
    same(library, ln, np.linalg.slogdet(factor @ factor.T)[1:], 1e-12)


def test_small_helpers(library):
    like = library.put([0.0])
    same(library, ar.zeros((2, 3), like), np.zeros((2, 3)), 0)
    same(library, ar.eye(3, like), np.eye(3), 0)
    same(library, ar.put([1.5, 2.5], like), [1.5, 2.5], 0)
    same(library, ar.put(np.float32([1.5]), like), [1.5], 0)
    assert ar.put(np.array([True, False]), like).dtype == library.xp.int64
    square = np.arange(9.0).reshape(3, 3)
    same(library, ar.symmetric(library.put(square)), (square + square.T) / 2, 0)
    same(library, ar.gram(library.put(X)), X.T @ X, 1e-12)
    assert isinstance(ar.to_numpy(like), np.ndarray)
    same(library, ar.to_float(library.put([1, 2], "int64"), ar.namespace(like)), [1, 2], 0)


def test_namespace(library):
    given = library.put(X)
    assert ar.namespace(given) is ar.namespace(np.zeros(2), given, [1.0])
    assert ar.namespace() is ar.namespace(np.zeros(2), [1.0], "text", None) is np
    assert ar.is_torch(ar.namespace(given)) == (library.name == "torch")
    assert (ar.namespace(given) is np) == (library.name == "numpy")


def test_torch_without_array_api_compat():
    """The message says what to install."""
    program = """
import sys
sys.modules["array_api_compat.torch"] = None
from duoplda import PLDA
Tensor = type("Tensor", (), {"__module__": "torch"})
PLDA().fit(Tensor(), [1, 1, 2, 2])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "DuopldaError: tensors of torch need array-api-compat: pip install 'duoplda[torch]'" in ended.stderr


def test_tensors_that_ask_for_gradients():
    """Their numbers are used; no gradient is traced."""
    torch = pytest.importorskip("torch")
    given = torch.asarray(X, dtype=torch.float64).requires_grad_()
    ours, numpys = (PLDA(3, 2).fit(a, SPEAKER, session=SESSION) for a in (given, X))
    np.testing.assert_allclose(ours.log_likelihoods_, numpys.log_likelihoods_, rtol=1e-11)
    assert not ours.transform(given).requires_grad
