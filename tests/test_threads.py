"""Threads: results come in the order of the items, BLAS gets its threads back, and no bit depends on their number."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg  # noqa: F401  (it brings a BLAS of its own)
from threadpoolctl import ThreadpoolController, threadpool_limits

from duoplda import PLDA, Statistics
from duoplda import arrays as ar
from duoplda.datasets import make_recordings

BLAS = ThreadpoolController()


def allowed():
    """The numbers of threads of NumPy's BLAS and of SciPy's."""
    return {c.num_threads for c in BLAS.lib_controllers if c.user_api == "blas"}


@pytest.fixture
def four():
    with threadpool_limits(4, user_api="blas"):
        yield


def test_results_come_in_the_order_of_the_items(four):
    """Also where later items are done first."""
    later = threading.Event()

    def work(i):
        if i == 0:
            assert later.wait(300)
        later.set()
        return i, threading.get_ident(), allowed()

    results = list(ar.in_order(work, range(50), 1e12))
    assert [i for i, _, _ in results] == list(range(50))
    threads = {thread for _, thread, _ in results}
    assert threading.get_ident() not in threads
    assert 2 <= len(threads) <= 4
    assert {1} == set().union(*(n for _, _, n in results))
    assert allowed() == {4}


def test_few_flops_are_left_to_the_calling_thread(four):
    for i, thread, blas in ar.in_order(lambda i: (i, threading.get_ident(), allowed()), range(3), 1e5):
        assert (thread, blas) == (threading.get_ident(), {1}), i
    assert allowed() == {4}


def test_few_results_wait(four):
    """Items are asked for only as the results are taken."""
    given = []

    def items():
        for i in range(100):
            given.append(i)
            yield i

    for at, i in enumerate(ar.in_order(lambda i: i, items(), 1e12)):
        assert at == i
        assert len(given) <= at + 8
    assert len(given) == 100


def test_each_thread_has_one_scratch_object(four):
    made = []

    def scratch():
        made.append(threading.get_ident())
        return made[-1]

    def work(item, own):
        assert own == threading.get_ident()
        return item

    assert list(ar.in_order(work, range(40), 1e12, scratch)) == list(range(40))
    assert len(made) == len(set(made)) <= 4
    made.clear()
    assert list(ar.in_order(work, range(40), 0, scratch)) == list(range(40))
    assert made == [threading.get_ident()]


def test_errors_and_unfinished_loops_give_blas_back(four):
    with pytest.raises(ZeroDivisionError):
        list(ar.in_order(lambda i: 1 // (5 - i), range(1000), 1e12))
    assert allowed() == {4}
    results = ar.in_order(lambda i: i, range(1000), 1e12)
    assert next(results) == 0
    assert allowed() == {1}
    results.close()
    assert allowed() == {4}


def test_threads_work_under_the_callers_error_state(four):
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        list(ar.in_order(lambda i: np.float64(1e300) * 1e300, range(5), 1e12))
    with np.errstate(over="ignore"):
        assert list(ar.in_order(lambda i: np.float64(1e300) * 1e300, range(5), 1e12)) == [np.inf] * 5


def test_inside_a_thread_no_more_threads_are_started(four):
    def where(i):
        return threading.get_ident()

    def outer(i):
        return {threading.get_ident()} == set(ar.in_order(where, range(10), 1e12))

    assert all(ar.in_order(outer, range(10), 1e12))
    with ar.one_blas_thread():  # an engine's task
        assert set(ar.in_order(where, range(10), 1e12)) == {threading.get_ident()}
    with ar.reproducible():  # the threads that BLAS had are still there to be used
        assert threading.get_ident() not in set(ar.in_order(where, range(10), 1e12))


def test_concurrent_callers_leave_blas_as_it_was(four):
    """3,000 rounds from eight threads that come and go at random."""

    def rounds(seed):
        rng = np.random.default_rng(seed)
        for _ in range(375):
            way = rng.integers(3)
            if way == 0:
                assert sum(ar.in_order(lambda i: i, range(3), 1e12 * rng.integers(2))) == 3
            elif way == 1:
                with ar.one_blas_thread():
                    assert allowed() == {1}
            else:
                next(ar.in_order(lambda i: i, range(3), 1e12))  # and no further
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(rounds, range(8)))
    assert allowed() == {4}


class PerThread(threading.local):
    """A BLAS whose number of threads each thread sets for itself, as those with OpenMP have it."""

    num_threads = 4

    def set_num_threads(self, n):
        self.num_threads = n


def test_blas_with_a_number_for_each_thread(monkeypatch):
    blas = PerThread()
    monkeypatch.setattr(ar.threads.blas, "libraries", lambda: ([], [blas]))
    found = list(ar.in_order(lambda i: (threading.get_ident(), blas.num_threads), range(20), 1e12))
    assert {n for _, n in found} == {1}
    assert threading.get_ident() not in {thread for thread, _ in found}
    with ar.reproducible(), ar.reproducible():
        assert blas.num_threads == 1
    assert blas.num_threads == 4


@pytest.mark.parametrize("case", ["full rank", "few session factors", "kinds", "held-out speakers"])
def test_training_gives_the_same_bits_on_any_number_of_threads(case):
    """At sizes where NumPy's products alone would differ, as the last lines show, and that are worth threads."""
    n_speakers = 400 if case == "held-out speakers" else 1100  # it trains many models, so that fewer do
    factors = {"n_speaker_factors": 70, "n_session_factors": 20}
    made = make_recordings(n_speakers, (2, 5), (1, 3), n_dimensions=120, **factors, seed=0)
    channel = np.arange(len(made.X)) % 3 if case == "kinds" else None
    stats = Statistics.from_arrays(made.X, made.speaker, made.session, channel, n_folds=2)
    options = factors if case == "few session factors" else {}
    shrinkage = "auto" if case == "held-out speakers" else 0.1
    found, products = [], []
    for threads in (1, 2, 5):
        fresh = replace(stats)  # nothing that was computed from them before
        with threadpool_limits(threads, user_api="blas"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has not converged, and there are few data
            plda = PLDA(**options, shrinkage=shrinkage, max_iter=2, random_state=0).fit_statistics(fresh)
            if threads < 4:
                products.append(np.linalg.inv(plda.noise_precision_).tobytes())
        found.append([plda.model_.mu, plda.model_.V, plda.model_.U, plda.model_.W, plda.log_likelihoods_])
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            np.testing.assert_array_equal(one, other)
    assert len(set(products)) > 1
