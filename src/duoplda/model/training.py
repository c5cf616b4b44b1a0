"""Training of one model by EM, with given numbers of factors: the floor under the noise, the start, the iterations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.utils import check_random_state

from duoplda.arrays import namespace
from duoplda.errors import DuopldaError
from duoplda.model import anova, em
from duoplda.model.parameters import Model
from duoplda.model.span import Span, SpanObserver
from duoplda.model.statistics import Statistics
from duoplda.observer import SILENT, Observer

# The floor, as a share of the mean variance, under noise that the data leave singular and that will be shrunk. It is
# far below what shrinking adds, and far above rounding.
SINGULAR_NOISE_FLOOR = 1e-4


@dataclass(frozen=True, eq=False)
class EMOptions:
    """How EM runs: parameters of `duoplda.PLDA`, with their meaning there."""

    noise_floor: float = 0.0
    tol: float = 1e-6
    max_iter: int = 500
    accelerate: bool = True
    minimum_divergence: bool = True
    init: str = "moments"
    random_state: int | np.random.RandomState | None = None


def some_kind_is_rare(stats: Statistics) -> bool:
    """Whether a kind of channels has too few recordings for a covariance of its own: fewer than 10 d."""
    return stats.K > 1 and bool((10 * stats.d > stats.N).any())


def train(
    stats: Statistics,
    ranks: tuple[int, int],
    options: EMOptions,
    *,
    will_be_shrunk: bool,
    observer: Observer = SILENT,
    state: em.State | None = None,
) -> em.Fit:
    """Maximum likelihood for given numbers of speaker and session factors; with `state`, EM goes on from there.

    Noise that the data leave singular gets a floor if the model will be shrunk, which raises it far above that floor;
    otherwise EM fails on such data. With a floor and fewer recordings than dimensions, EM runs in their span.
    """
    rare = some_kind_is_rare(stats)
    floor = float(options.noise_floor)
    if not floor and (rare or (will_be_shrunk and anova.singular(stats, *ranks) is not None)):
        floor = SINGULAR_NOISE_FLOOR
    if floor:
        total = anova.total_covariance(stats)
        floor *= float(namespace(total).linalg.trace(total)) / stats.d or 1.0
    prior_recordings = stats.d if rare else 1.0  # see `em.ln_prior`
    span = Span.of(stats, floor) if floor else None
    span_ranks = ranks
    if span is not None:
        stats = span.statistics(stats)
        span_ranks = (min(ranks[0], span.r), min(ranks[1], span.r))
        observer = SpanObserver(observer, span, ranks)
    start: em.State | Model
    if state is not None:
        sizes = (state.model.K, state.model.d, state.model.ny, state.model.nx)
        wanted = (stats.K, stats.d, *span_ranks)
        if sizes != wanted:
            raise DuopldaError(f"the state is of another training: its (K, d, ny, nx) are {sizes}, not {wanted}")
        start = state
    elif options.init == "moments":
        start = em.moment_start(stats, *span_ranks, floor)
    else:
        seed = check_random_state(options.random_state).randint(np.iinfo(np.int32).max)
        start = em.random_start(stats, *span_ranks, np.random.default_rng(seed), floor)
    fit = em.fit(
        stats,
        start,
        tol=options.tol,
        max_iter=options.max_iter,
        accelerate=options.accelerate,
        minimum_divergence=options.minimum_divergence,
        floor=floor,
        nu=prior_recordings,
        observer=observer,
    )
    if span is None:
        return fit
    return fit._replace(model=span.model(fit.model, *ranks), log_likelihoods=span.ln(fit.log_likelihoods))
