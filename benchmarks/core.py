"""Statistics, EM and likelihood ratios against their floors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.common import Row, interleaved, smaller
from duoplda import PLDA, Sides, Statistics, score
from duoplda.datasets import make_recordings
from duoplda.model import em
from duoplda.model.parameters import Model, checked
from duoplda.model.span import Span
from duoplda.observer import WithCallback
from duoplda.trials.ratios import Lambdas, common_counts


def a_model(d: int, ny: int, nx: int, seed: int = 0) -> Model:
    rng = np.random.default_rng(seed)
    V, U = rng.standard_normal((d, ny)) / ny**0.5, rng.standard_normal((d, nx)) / nx**0.5
    return checked(rng.standard_normal(d), V, U, np.diag(rng.uniform(1, 3, d)))


def balanced(n_speakers: int, sessions: int, recordings: int, d: int, dtype: str = "float64"):
    """Plain noise with nested labels: the time does not depend on what the numbers are."""
    rng = np.random.default_rng(0)
    n_speakers = smaller(n_speakers)
    N = n_speakers * sessions * recordings
    X = np.empty((N, d), dtype)
    for a in range(0, N, 65536):
        X[a : a + 65536] = rng.standard_normal((len(X[a : a + 65536]), d), dtype=np.float32)
    speaker = np.repeat(np.arange(n_speakers), sessions * recordings)
    return X, speaker, np.repeat(np.arange(n_speakers * sessions), recordings)


def one_pass() -> Iterator[Row]:
    for d, speakers in ((256, 5000), (512, 2500)):
        for size, shuffled in (("sorted", False), ("shuffled", True)):
            X, speaker, session = balanced(speakers, 10, 4, d)
            if shuffled:
                order = np.random.default_rng(1).permutation(len(X))
                X, speaker, session = X[order], speaker[order], session[order]
            F = X[: len(X) // 4].copy()
            ours, floor = interleaved(
                lambda a=(X, speaker, session): Statistics.from_arrays(*a), lambda X=X, F=F: (X.T @ X, F.T @ F)
            )
            what = f"{len(X) // 1000}k x {d}, sessions of 4, {size}"
            yield Row("(a) one pass over the data / X'X and F'F", what, ours, floor, 1.5)


def iteration_size() -> Iterator[Row]:
    """An EM iteration does not depend on the number of recordings."""
    model = a_model(512, 150, 100)
    steps = []
    for recordings in (1, 8):  # of 20 sessions of 6,000 speakers
        X, speaker, session = balanced(6000, 20, recordings, 512, "float32")
        stats = Statistics.from_arrays(X, speaker, session)
        del X
        e_step = em.EStep(stats)
        steps.append(lambda e=e_step, s=stats: em.md_step(em.ml_step(model, m := e(model), s), m))
    few, many = interleaved(*steps, repeat=7)
    yield Row("(b) EM iteration at 960k / at 120k recordings", "d=512, 6,000 speakers, 150/100", many, few, 1.15)


def acceleration() -> Iterator[Row]:
    """The number of E-steps, rejected ones included, until EM is within 1e-6 nats per recording of the optimum."""
    weak = {"speaker_variance": 0.1, "session_variance": 0.1, "channel_variance": 1.0}
    for what, variances, ny, nx in (("full rank", {}, 40, 40), ("weak factors", weak, 20, 15)):
        data = make_recordings(
            smaller(300, 40),
            (1, 6),
            (1, 5),
            n_dimensions=40,
            n_speaker_factors=20,
            n_session_factors=15,
            seed=3,
            **variances,
        )
        stats = Statistics.from_arrays(data.X, data.speaker, data.session)
        for name, start in (
            ("moment", em.moment_start(stats, ny, nx)),
            ("random", em.random_start(stats, ny, nx, np.random.default_rng(0))),
        ):
            close = em.fit(stats, start, tol=1e-12, max_iter=2000).log_likelihoods[-1] - 1e-6 * stats.n_recordings

            def steps(accelerate, start=start, stats=stats, close=close):
                stop = WithCallback(lambda iteration, log_likelihood, model: log_likelihood >= close)
                options = {"tol": 0, "max_iter": 4000, "accelerate": accelerate, "observer": stop}
                return float(em.fit(stats, start, **options).n_evaluations)

            size = f"d=40, 300 speakers, {what} {ny}/{nx}, {name} start"
            yield Row("(c) E-steps to 1e-6 nats / those of plain EM", size, steps(True), steps(False), 0.25, "E-steps")


def score_matrix() -> Iterator[Row]:
    rng = np.random.default_rng(0)
    ny = 150
    model = a_model(256, ny, 100)
    plda = PLDA.from_parameters(model.mu[0], model.V, model.U, model.W[0])
    n, m = smaller(5000), smaller(10_000)
    X = rng.standard_normal((m, 256))
    tests = plda.enroll(X, np.arange(m))
    left, right = rng.standard_normal((m, ny + 2)), rng.standard_normal((m, ny + 2))
    ours, floor = interleaved(lambda: plda.llr(tests, tests), lambda: left @ right.T)
    yield Row("(d) score matrix / GEMM of inner size ny+2", "10k x 10k, ny=150", ours, floor, 1.3)

    side = np.repeat(np.arange(n), rng.integers(3, 6, n))
    Y = rng.standard_normal((len(side), 256))
    sets = plda.enroll(Y, side, side)  # one session each
    ours, floor = interleaved(lambda: plda.llr(sets, tests), lambda: left[:n] @ right.T)
    yield Row(
        "(d) score matrix, enrolment sets / the same GEMM", "5k x 10k, sets of 3 to 5 of a session", ours, floor, 1.8
    )

    def blocks():
        for _ in plda.llr_blocks(sets, tests):
            pass

    ours, top, floor = interleaved(blocks, lambda: plda.top(sets, tests, 10), lambda: left[:n] @ right.T)
    yield Row("the same in blocks / the same GEMM", "5k x 10k, sets of 3 to 5 of a session", ours, floor, 1.8)
    yield Row(
        "the 10 highest scores of each test / the same GEMM", "5k x 10k, sets of 3 to 5 of a session", top, floor, None
    )

    streamed, whole = interleaved(
        lambda: list(score(plda, sets, X, top=10)), lambda: plda.top(sets, plda.enroll(X, np.arange(m)), 10)
    )
    yield Row("the 10 highest, tests in chunks / tests at once", "5k x 10k, from recordings", streamed, whole, 1.1)

    pairs = rng.integers(0, m, (smaller(1_000_000), 2))
    pairs[:, 0] %= n

    def gathered():
        return [np.einsum("ij,ij->i", left[p[:, 0]], right[p[:, 1]]) for p in np.array_split(pairs, 80)]

    ours, floor = interleaved(lambda: plda.llr(sets, tests, pairs=pairs), gathered)
    yield Row("(e) listed pairs / gathered products", "1M pairs, sets of 3 to 5", ours, floor, None)


def ragged_sides(plda: PLDA, n: int, sessions: tuple[int, int], constant: bool, seed: int) -> Sides:
    """`n` sides. The number of sessions of each is drawn from a range, that of recordings of a session from 1 to 6.

    With `constant`, all sessions of a side have the same number of recordings.
    """
    rng = np.random.default_rng(seed)
    per_side = rng.integers(sessions[0], sessions[1] + 1, n)
    session_side = np.repeat(np.arange(n), per_side)
    size = rng.integers(1, 7, n)[session_side] if constant else rng.integers(1, 7, len(session_side))
    session = np.repeat(np.arange(len(session_side)), size)
    X = rng.standard_normal((len(session), plda.n_features_in_))
    return plda.enroll(X, session_side[session], [f"{seed}-{s}" for s in session])


def other_work(A: Sides, B: Sides) -> Callable[[], None]:
    """The work that several patterns on both sides add to the matrix product.

    It is one inverse for each different sum of the counts of two sides, and for each side one product with an inverse
    for each pattern of the other set.
    """
    G, a, b = common_counts(A.groups, B.groups)
    counts = np.unique((a[:, None] + b).reshape(-1, G.shape[0]), axis=0)
    Lambda, once = Lambdas(G, counts, keep=False), np.zeros(1, np.int64)
    few = [np.empty_like(s.gamma) for s in (A, B)]

    def work() -> None:
        Lambda.each(np.arange(len(counts)), lambda u, M: None)
        for s, other, out in ((A, B, few[0]), (B, A, few[1])):
            for _ in range(len(other.patterns)):
                Lambda.each(once, lambda u, M, s=s, out=out: np.matmul(s.gamma, M, out=out))

    return work


def score_patterns() -> Iterator[Row]:
    """Several patterns on both sides: compared with the product alone, and with the product and the added work."""
    model, ny = a_model(256, 150, 100), 150
    plda = PLDA.from_parameters(model.mu[0], model.V, model.U, model.W[0])
    one, ten = (1, 1), (1, 10)
    for what, n, m, a, b, repeat, goal in (
        ("60 patterns against 60", 5000, 10_000, (ten, True), (ten, True), 3, 5.0),
        ("ragged against 6 patterns", 5000, 10_000, (ten, False), (one, True), 3, 10.0),
        ("6 patterns against ragged", 5000, 10_000, (one, True), (ten, False), 3, 10.0),
        ("ragged against ragged", 300, 300, (ten, False), (ten, False), 2, None),
    ):
        n, m = smaller(n, 20), smaller(m, 20)
        A, B = ragged_sides(plda, n, *a, seed=0), ragged_sides(plda, m, *b, seed=1)
        left, right = np.random.default_rng(0).standard_normal((n, ny + 2)), np.ones((m, ny + 2))
        ours, product, other = interleaved(
            lambda A=A, B=B: plda.llr(A, B), lambda a=left, b=right: a @ b.T, other_work(A, B), repeat=repeat
        )
        size = f"{n} x {m}, {len(A.patterns)} x {len(B.patterns)} patterns"
        yield Row(f"score matrix, {what} / GEMM", size, ours, product, goal)
        yield Row("  the same / GEMM, inverses and transforms", size, ours, product + other, None)


def ragged() -> Iterator[Row]:
    d = 256
    model = a_model(d, 150, 100)
    data = make_recordings(smaller(5000), (2, 14), (1, 7), model=model, seed=0)
    e_step = em.EStep(stats := Statistics.from_arrays(data.X, data.speaker, data.session))

    def iteration():
        moments = e_step(model)
        return em.md_step(em.ml_step(model, moments, stats), moments)

    ours, floor = interleaved(iteration, lambda: data.X.T @ data.X)
    yield Row("(f) EM iteration, ragged counts / X'X", "d=256, 5,000 speakers, 2-14 x 1-7, 150/100", ours, floor, 2.0)


def kinds() -> Iterator[Row]:
    """Five kinds of channels, one recording of each in a session, against one kind."""
    d, model = 192, a_model(192, 192, 192)
    X, speaker, session = balanced(500, 10, 5, d)
    X = X + np.tile(model.mu, (len(X), 1))
    channel = np.tile(np.arange(5), len(X) // 5)
    steps = []
    for labels in (channel, None):
        stats = Statistics.from_arrays(X, speaker, session, labels)
        start, e_step = em.moment_start(stats, d, d), em.EStep(stats)
        steps.append(lambda e=e_step, s=stats, m=start: em.md_step(em.ml_step(m, x := e(m), s, nu=1.0), x))
    many, one = interleaved(*steps)
    yield Row("EM iteration with 5 kinds of channels / with one", "d=192, full rank, 500 speakers", many, one, 2.0)
    plda = PLDA.from_parameters(
        np.tile(model.mu, (5, 1)), model.V[:, :150], model.U, np.tile(model.W, (5, 1, 1)), channels=np.arange(5)
    )
    n, m = smaller(5000), smaller(10_000)
    enrolled = plda.enroll(X[:n], np.arange(n), None, channel[:n])  # five patterns on each side
    tests = plda.enroll(X[:m], np.arange(m), None, channel[:m])
    left, right = np.random.default_rng(0).standard_normal((n, 152)), np.random.default_rng(1).standard_normal((m, 152))
    ours, floor = interleaved(lambda: plda.llr(enrolled, tests), lambda: left @ right.T)
    yield Row("score matrix, five kinds on each side / GEMM", "5k x 10k, ny=150", ours, floor, None)


def high_dimensions() -> Iterator[Row]:
    """Fewer recordings than dimensions, full rank: EM in the span of the recordings."""
    d = smaller(2000, 100)
    data = make_recordings(d // 20, 3, 2, n_dimensions=d, n_speaker_factors=50, n_session_factors=50, seed=0)
    stats, floor = Statistics.from_arrays(data.X, data.speaker, data.session), 1e-4
    start, e_step, inside, span = None, None, stats, None

    def prepare():
        nonlocal start, e_step, inside, span
        span = Span.of(stats, floor)
        inside = span.statistics(stats)
        start, e_step = em.moment_start(inside, span.r, span.r, floor), em.EStep(inside)

    def iteration():
        moments = e_step(start)
        return em.md_step(em.ml_step(start, moments, inside, floor), moments)

    A = np.cov(np.random.default_rng(0).standard_normal((d, 2 * d)))
    before, ours, after, product = interleaved(
        prepare, iteration, lambda: span.model(start, d, d), lambda: np.linalg.inv(A) @ A, repeat=3
    )
    size = f"d={d}, {len(data.X)} recordings, full rank"
    yield Row("EM iteration, high dimensions / an inverse and a product", size, ours, product, 10.0)
    yield Row("  what comes before the iterations / the same", size, before, product, None)
    yield Row("  what comes after them / the same", size, after, product, None)


def auto_shrinkage() -> Iterator[Row]:
    """What held-out speakers choose costs a few fits: no more for more recordings, as many on all threads."""
    d = smaller(96, 12)
    for recordings in (2, 8):
        sizes = {"n_dimensions": d, "n_speaker_factors": d // 2, "n_session_factors": d}
        data = make_recordings(smaller(300, 40), (2, 6), recordings, seed=0, **sizes)
        stats = Statistics.from_arrays(data.X, data.speaker, data.session, n_folds=5)
        size = f"d=96, 300 speakers, {len(data.X)} recordings"
        for criterion in ("decision", "likelihood"):
            for threads in (1, None):
                with threadpool_limits(threads):
                    ours, floor = interleaved(
                        lambda stats=stats, by=criterion: PLDA(shrinkage="auto", criterion=by).fit_statistics(stats),
                        lambda stats=stats: PLDA().fit_statistics(stats),
                        repeat=3,
                    )
                name = f"shrinkage='auto' by {criterion} / one ML fit, {'one thread' if threads else 'all threads'}"
                yield Row(name, size, ours, floor, 5.0)


ALL = (
    one_pass,
    iteration_size,
    acceleration,
    score_matrix,
    score_patterns,
    ragged,
    kinds,
    high_dimensions,
    auto_shrinkage,
)
