"""The verdict on scores in words: how good they are, whether they are calibrated, and for which priors they help."""

from collections.abc import Iterator, Mapping

import numpy as np

from duoplda.estimators.domain import Domain
from duoplda.evaluation import metrics
from duoplda.evaluation.checks import Booleans, Floats
from duoplda.evaluation.resampling import BootstrapResult
from duoplda.report._html import badge, bdi, note, number
from duoplda.report._sections import (
    ACTUAL_COSTS,
    CLLR,
    EER,
    LOSS,
    PRIORS,
    ScoredTrials,
    calibration_badge,
    calibration_states,
)

Measured = Mapping[str, BootstrapResult]


def verdict(trials: ScoredTrials, measured: Measured, domain: Domain | None) -> str:
    """Return the verdict as HTML: one sentence on everything, the domain of the trials, then each system."""
    states = calibration_states(measured, trials.y)
    parts = [f'<p class="lead">{_in_short(measured, states, domain)}</p>']
    parts.append(f'<p class="badges">{_domain_badge(domain)}</p>')
    if len(measured) > 1:
        parts.append(f"<p>{_lowest(measured)}</p>")
    for name, row in measured.items():
        mark = calibration_badge(states[name])
        sentences = [_separation(row), *_calibration(row, trials.scores[name], states[name], trials.y)]
        if states[name] != "bad":
            sentences.append(_usefulness(row, trials))
        listed = "".join(f"<li>{sentence}</li>" for sentence in sentences)
        parts.append(f'<div class="verdict"><h3>{bdi(name)} {mark}</h3><ul>{listed}</ul></div>')
    if all(row.low is None for row in measured.values()):
        parts.append(note("There are no intervals: they need the speakers of both sides, and resamples."))
    return "".join(parts)


def _in_short(measured: Measured, states: Mapping[str, str], domain: Domain | None) -> str:
    """The verdict in one sentence; where there are several systems, on the one with the lowest Cllr."""
    name = _best(measured)
    estimate = measured[name].estimate
    judged = {
        "good": "its ratios mean what they say",
        "bad": "its scores are not to be read as ratios",
        "open": "there are too few trials to say whether its ratios mean what they say",
    }[states[name]]
    where = "recordings whose domain was not checked"
    if domain is not None:
        where = "recordings like those of the training" if domain.within else "recordings of another domain"
    first = "" if len(measured) == 1 else f"Of {len(measured)} systems, the one with the lowest Cllr: "
    return (
        f"{first}<strong>{bdi(name)}</strong> has an EER of <strong>{number(100 * estimate[EER], '{:.2f}')} %</strong> "
        f"and loses <strong>{number(estimate[LOSS], '{:.3f}')} bits</strong> by its calibration ({judged}), on {where}."
    )


def _best(measured: Measured) -> str:
    """The name of the system with the lowest Cllr."""
    return min(measured, key=lambda name: float(measured[name].estimate[CLLR]))


def _domain_badge(domain: Domain | None) -> str:
    """A sentence that says whether the recordings are like those that the model was trained on."""
    if domain is None:
        return badge("open", "domain not checked") + (
            " Whether these recordings are like those of the training is not known: "
            "<code>duoplda report --model --embeddings</code> compares them."
        )
    numbers = f"squared distance {domain.distance:.4g}, limit {domain.limit:.4g} for {domain.n_recordings:,} recordings"
    if domain.within:
        return (
            badge("good", "domain of the training") + f" These recordings are like those of the training ({numbers})."
        )
    warning = f" These recordings are unlike those of the training ({numbers}), so that ratios may mislead. "
    return badge("bad", "another domain") + warning + "<code>duoplda adapt</code> adapts the model to them."


def _lowest(measured: Measured) -> str:
    """Which system has the lowest Cllr, and in what share of the resamples, which are the same for all systems."""
    name = _best(measured)
    best = list(measured).index(name)
    sentence = f"The lowest Cllr is that of <strong>{bdi(name)}</strong>"
    values = [row.values for row in measured.values()]
    if len(values[0]):
        wins = np.argmin([resamples[:, CLLR] for resamples in values], axis=0) == best
        sentence += f", also in {100 * float(wins.mean()):.0f} % of the resamples of the speakers"
    return sentence + "."


def _separation(row: BootstrapResult) -> str:
    """How well the scores tell speakers apart, and what the ratios are worth as they are."""
    wrong = f"At the threshold of equal error rates, {number(100 * row.estimate[EER], '{:.1f}')} % of the target "
    wrong += "trials, and the same share of the non-target trials, would be decided wrongly"
    wrong += f"{_interval(row, EER, 100, '{:.1f}')}. "
    cllr = row.estimate[CLLR]
    if cllr < 1:
        worth = f"The ratios as they are give {number(100 * (1 - cllr), '{:.0f}')} % of the information that is needed "
        worth += "to tell which trials are targets "
    else:
        worth = "<strong>The ratios as they are mislead</strong>: whoever believes them does worse than without them "
    return (
        wrong
        + worth
        + f"(Cllr {number(cllr, '{:.3f}')} bits{_interval(row, CLLR, 1, '{:.3f}', ', ')}; 1 is no information)."
    )


def _calibration(row: BootstrapResult, scores: Floats, state: str, labels: Booleans) -> Iterator[str]:
    """Whether ratios mean what they say; if not, in which way they are wrong, and what to do."""
    loss = f"{number(row.estimate[LOSS], '{:.3f}')} bits{_interval(row, LOSS, 1, '{:.3f}')}"
    if state != "bad":
        yield {
            "good": f"The ratios are calibrated: the best calibration for these very trials would gain {loss}.",
            "open": f"There are too few trials to say whether the ratios are calibrated; the loss is {loss}.",
        }[state]
        return
    # The change that lowers Cllr most says in which way the ratios are wrong. The changes are coarse: half the scale,
    # twice the scale, one nat less or more.
    remedies = {
        "over-confident, their logarithms are too large": scores / 2,
        "under-confident, their logarithms are too small": scores * 2,
        "too high": scores - 1,
        "too low": scores + 1,
    }
    costs = {wrong: metrics.cllr(changed, labels) for wrong, changed in remedies.items()}
    way = min(costs, key=costs.__getitem__)
    wrong = f": the ratios are {way}" if costs[way] < row.estimate[CLLR] else ""
    yield f"<strong>Not calibrated</strong>{wrong}. The best calibration for these trials would gain {loss}."
    yield "Do not read these scores as likelihood ratios before <code>duoplda calibrate</code>."


def _usefulness(row: BootstrapResult, trials: ScoredTrials) -> str:
    """The priors at which decisions by the ratios cost less than decisions without them.

    With intervals, the upper end of the cost must be below 1. Even if none of n trials was decided wrongly, the error
    rate may be 3 / n (the rule of three for 95 %), so n trials say nothing about priors at which that costs too much.
    """
    costs = row.estimate if row.high is None else row.high
    ratio = (1 - PRIORS) / PRIORS * (trials.point["c_fa"] / trials.point["c_miss"])
    tested = (3 / trials.y.sum() < ratio) & (ratio < (~trials.y).sum() / 3)
    if not tested.any():
        return "There are too few trials to say for which priors the ratios are of use."
    useful = tested & (costs[ACTUAL_COSTS] < 1)
    reach = f"The number of trials allows a statement for priors from {_widest(tested)}."
    if not useful.any():
        return f"<strong>Of no use at any prior</strong>: decisions without scores would cost no more. {reach}"
    interval = "" if row.high is None else " (the whole 95 % interval of the cost is below)"
    gain = f"decisions by the ratios cost less than decisions without scores{interval}"
    return f"Of use for priors from <strong>{_widest(useful)}</strong>, where {gain}. {reach}"


def _widest(kept: Booleans) -> str:
    """The widest range of priors without a gap, as text."""
    edges = np.flatnonzero(np.diff(np.r_[False, kept, False])).reshape(-1, 2)
    first, end = edges[np.argmax(np.diff(edges, axis=1))]
    return f"{_prior(PRIORS[first])} to {_prior(PRIORS[end - 1])}"


def _prior(p: float) -> str:
    """A prior with enough digits to tell it from 0 and from 1."""
    return f"{p:.2g}" if p < 0.5 else f"{1 - float(f'{1 - p:.2g}'):g}"


def _interval(row: BootstrapResult, column: int, factor: float, form: str, start: str = " (") -> str:
    """The 95 % interval of a metric as text, or an empty text where there is none."""
    if row.low is None:
        return ""
    ends = " to ".join(number(factor * end[column], form) for end in (row.low, row.high))
    return f"{start}95 % interval {ends}" + (")" if start == " (" else "")
