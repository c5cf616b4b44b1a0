"""Confidence intervals of metrics over new speakers: speakers are drawn again, and their trials weighted.

Scores, labels and weights are those of `duoplda.evaluation.metrics`.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from duoplda.errors import DuopldaError, error_prefix
from duoplda.evaluation.checks import Booleans, Floats, Indices, check_trials, refuse_rows
from duoplda.evaluation.metrics import calibration_loss, measure, min_cllr, plain

__all__ = ["BootstrapResult", "bootstrap", "measure_systems", "paired_difference"]


class BootstrapResult(NamedTuple):
    """A metric on all trials, the ends of its confidence interval, and its value for each resample.

    The interval is about other speakers of the same kind, recorded in the same way. It says nothing about other
    channels or languages, and two systems must not be compared by whether their intervals overlap.

    >>> from duoplda.metrics import cllr
    >>> scores, labels = [-3.0, 1.0, -1.0, 3.0], [False, False, True, True]
    >>> speakers = ["a", "a", "a", "b"], ["b", "c", "a", "b"]
    >>> result = bootstrap(cllr, scores, labels, *speakers, n_resamples=20)
    >>> bool(result.low <= result.high), result.values.shape
    (True, (20,))
    """

    estimate: Any  # a float, or an array where the metric gives one; and so are low and high
    low: Any  # None where there were no resamples, and so is high
    high: Any
    values: Floats  # (n_resamples,), or (n_resamples, ...) for a metric that gives an array


def measure_systems(
    systems: Mapping[str, ArrayLike],
    labels: ArrayLike,
    speakers: tuple[ArrayLike, ArrayLike] | None = None,
    *,
    n_resamples: int = 200,
    seed: int = 0,
    progress: bool = False,
    **options: Any,
) -> dict[str, BootstrapResult]:
    """Measure several systems on the same trials, with 95 % intervals where the speakers are known.

    `systems` maps names to scores; `speakers` are the two columns (n,) of `bootstrap`, or None for no intervals, like
    `n_resamples` = 0; `options` are those of `measure`.

    >>> results = measure_systems({"a": [2.0, -2.0, 1.0], "b": [1.0, 0.0, -1.0]}, [True, False, True])
    >>> [results[name].estimate[0].round(3).tolist() for name in results], results["a"].low
    ([0.0, 0.333], None)
    """
    metric: Callable[..., Any] = partial(measure, **options)
    results = {}
    for name, scores in systems.items():
        with error_prefix(f"system {name!r}"):
            if speakers is None or not n_resamples:
                results[name] = BootstrapResult(metric(scores, labels), None, None, np.empty(0))
            else:
                results[name] = bootstrap(metric, scores, labels, *speakers, n_resamples, seed=seed, progress=progress)
    return results


def bootstrap(
    metric: Callable[..., Any],
    scores: ArrayLike,
    labels: ArrayLike,
    speakers_a: ArrayLike,
    speakers_b: ArrayLike,
    n_resamples: int = 1000,
    confidence: float = 0.95,
    seed: int | np.random.Generator = 0,
    progress: bool = False,
) -> BootstrapResult:
    """Confidence interval of a metric over new speakers: speakers are resampled, not trials.

    S speakers are drawn from the S speakers with replacement. If speaker a is drawn m_a times, a non-target trial of
    speakers a and b weighs m_a m_b and a target trial of speaker a weighs m_a; trials are weighted, never copied, and
    sorted once. A resample without any target or any non-target is drawn again. The interval runs between the
    (1 -+ confidence) / 2 quantiles of the resampled values. With few speakers (20 or less) it tends to be too short.

    `min_cllr` and `calibration_loss` (alone or in `measure`) are fitted to the trials, which lowers the one and raises
    the other. Resampling does so again, since about 37 % of the speakers are missing from a resample: quantiles err
    twice to the same side, and may leave out the estimate itself. The estimate e differs from the truth about as much
    as resampled values differ from e, and to the same side. So if these lie between q and r, the interval is from
    2 e - r to 2 e - q (the reverse percentile interval), within the limits of the metric. In eight kinds of drawn cases
    with 10 and 30 speakers, intervals of 95 % held the true loss in 0 to 73 % by quantiles and in 70 to 100 % reversed,
    the true minimum in 62 to 84 % and 83 to 92 % (`python -m benchmarks.intervals`). Every interval reaches the
    estimate.

    `metric(scores, labels, weights=...)` gives a number or an array (use `functools.partial` for its options);
    `speakers_a` and `speakers_b` (n,) are the speakers of the two sides. `progress` shows a bar on the standard
    error of a terminal, if `rich` is installed.

    >>> from duoplda.metrics import cllr
    >>> a, b = ["s1", "s2", "s3", "s1", "s1", "s2"], ["s1", "s2", "s3", "s2", "s3", "s3"]
    >>> r = bootstrap(cllr, [2.0, 1.0, 3.0, -2.0, -1.0, 1.0], [1, 1, 1, 0, 0, 0], a, b, n_resamples=50)
    >>> bool(r.low <= r.estimate <= r.high)
    True
    """
    s, y, _ = check_trials(scores, labels, None)
    draws = resamples(y, speakers_a, speakers_b, n_resamples, confidence, seed, progress)
    order = np.argsort(s)
    s = s[order]
    y = y[order]
    values = np.array([np.asarray(metric(s, y, weights=weights[order]), dtype=np.float64) for weights in draws])
    estimate = np.asarray(metric(s, y, weights=np.ones(len(s))), dtype=np.float64)
    limits: dict[Callable[..., Any], list[float]] = {min_cllr: [1.0], calibration_loss: [np.inf]}  # highest values
    limits[measure] = [*[np.nan] * (estimate.size - 2), 1.0, np.inf]
    limit = limits.get(metric.func if isinstance(metric, partial) else metric, [np.nan] * estimate.size)
    low, high = interval(estimate, values, confidence, np.reshape(limit, estimate.shape))
    return BootstrapResult(plain(estimate), plain(low), plain(high), values)


def paired_difference(
    metric: Callable[..., Any],
    scores: ArrayLike,
    others: ArrayLike,
    labels: ArrayLike,
    speakers_a: ArrayLike,
    speakers_b: ArrayLike,
    n_resamples: int = 1000,
    confidence: float = 0.95,
    seed: int | np.random.Generator = 0,
    progress: bool = False,
) -> BootstrapResult:
    """The difference of two systems in a metric on the same trials, with an interval over speakers.

    It is metric(scores) - metric(others), where each resample of the speakers (see `bootstrap`) gives both systems the
    same weights, so that what makes a speaker hard for both cancels. If 0 lies outside the interval, the difference is
    more than the chance of having these speakers. Use this to compare systems, and not whether their two intervals
    overlap: these may overlap although the difference is clear.

    >>> from duoplda.metrics import cllr
    >>> a, b = ["s1", "s2", "s3", "s1", "s1", "s2"], ["s1", "s2", "s3", "s2", "s3", "s3"]
    >>> scores, labels = np.array([2.0, 1.0, 3.0, -2.0, -1.0, 1.0]), [1, 1, 1, 0, 0, 0]
    >>> r = paired_difference(cllr, scores, scores + 1.0, labels, a, b, n_resamples=50)
    >>> bool(r.low <= r.estimate <= r.high), r.estimate == cllr(scores, labels) - cllr(scores + 1.0, labels)
    (True, True)
    """
    first, y, _ = check_trials(scores, labels, None)
    second = check_trials(others, labels, None)[0]
    orders = [np.argsort(s) for s in (first, second)]
    systems = [(s[order], y[order], order) for s, order in zip((first, second), orders, strict=True)]

    def difference(weights: Floats) -> Floats:
        one, other = (np.asarray(metric(s, labels, weights=weights[order])) for s, labels, order in systems)
        return np.asarray(one - other, np.float64)

    draws = resamples(y, speakers_a, speakers_b, n_resamples, confidence, seed, progress)
    values = np.array([difference(weights) for weights in draws])
    estimate = difference(np.ones(len(y)))
    low, high = interval(estimate, values, confidence)
    return BootstrapResult(plain(estimate), plain(low), plain(high), values)


def interval(estimate: Floats, values: Floats, confidence: float, limit: ArrayLike = np.nan) -> tuple[Floats, Floats]:
    """The ends of a confidence interval from resampled values (n, ...); see `bootstrap`.

    `limit` is the highest value of a metric that is fitted to its trials, whose interval is reversed; else NaN.
    """
    ranked = np.sort(values, axis=0)  # indexed, not interpolated: a value may be infinite
    cut = int(round((1 - confidence) / 2 * len(values), 9))  # as many values lie below low as above high
    low = ranked[cut]
    high = ranked[-1 - cut]
    reverse = ~np.isnan(limit) & np.isfinite(estimate)
    with np.errstate(invalid="ignore"):  # infinite values, which are not reversed
        ends = np.maximum(2 * estimate - high, 0.0), np.minimum(2 * estimate - low, limit)
    low = np.where(reverse, ends[0], low)
    high = np.where(reverse, ends[1], high)
    return np.minimum(low, estimate), np.maximum(high, estimate)


def resamples(
    labels: Booleans,
    speakers_a: ArrayLike | None,
    speakers_b: ArrayLike | None,
    n_resamples: int,
    confidence: float,
    seed: int | np.random.Generator,
    progress: bool = False,
) -> Iterator[Floats]:
    """Weights of the trials (n,) in one resample of the speakers after another; options are checked at the first.

    Without speakers, single trials are resampled.
    """
    if n_resamples < 1 or not 0 < confidence < 1 or (isinstance(seed, int) and seed < 0):
        raise DuopldaError("a bootstrap needs n_resamples >= 1, confidence between 0 and 1, and a seed >= 0")
    rng = np.random.default_rng(seed)
    rounds = _progress_bar(range(n_resamples), progress)
    if speakers_a is None or speakers_b is None:
        yield from (_drawn_weights(rng, labels, len(labels), None) for _ in rounds)
        return
    a = np.asarray(speakers_a)
    b = np.asarray(speakers_b)
    if not a.shape == b.shape == labels.shape:
        shapes = f"speakers_a has shape {a.shape}, speakers_b {b.shape}, labels {labels.shape}"
        raise DuopldaError(f"{shapes}; give the speaker of each side of each trial")
    names, index = np.unique(np.concatenate((a, b)), return_inverse=True)
    a, b = index[: len(a)], index[len(a) :]
    remedy = "a target trial has the same speaker on both sides, a non-target trial has two"
    refuse_rows((a == b) != labels, "labels", "at odds with the speakers", remedy)
    for _ in rounds:
        yield _drawn_weights(rng, labels, len(names), (a, b))


def _drawn_weights(rng: np.random.Generator, labels: Booleans, n: int, sides: tuple[Indices, Indices] | None) -> Floats:
    """Weights of the trials in one draw, with replacement, of n speakers, or of n trials where `sides` is None.

    `sides` are the speakers of the two sides of each trial, as numbers.
    """
    for _ in range(1000):  # only where speakers are very few do many draws in a row lack a class
        times = np.bincount(rng.integers(n, size=n), minlength=n).astype(np.float64)
        if sides is not None:
            a, b = sides
            times = np.where(labels, times[a], times[a] * times[b])
        if times[labels].any() and times[~labels].any():
            return times
    what = "trials" if sides is None else "speakers"
    raise DuopldaError(f"{n} {what} are too few to resample: no draw had trials of both classes")


def _progress_bar(steps: Iterable[int], wanted: bool) -> Iterable[int]:
    """The steps, with a progress bar on a terminal's standard error if that is wanted and `rich` is installed."""
    if wanted and sys.stderr is not None and sys.stderr.isatty():  # it is None where it is closed
        with suppress(ImportError):
            from rich.console import Console
            from rich.progress import track

            return track(steps, description="bootstrap", console=Console(stderr=True), transient=True)
    return steps
