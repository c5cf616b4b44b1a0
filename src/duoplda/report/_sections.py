"""The sections of the report, each as HTML; an empty text is a section that the page leaves out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from duoplda.errors import DuopldaError, error_prefix
from duoplda.evaluation import metrics, support
from duoplda.evaluation.checks import Booleans, Floats, check_trials
from duoplda.evaluation.resampling import BootstrapResult, measure_systems
from duoplda.report._html import DASH, badge, bdi, facts, log10, note, number, table, template, text
from duoplda.report.plots import VarianceShares

METRIC_HEADS = ("EER", "minDCF", "actDCF", "Cllr", "minCllr", "calibration loss")  # as `metrics.measure` orders them
ACTUAL = METRIC_HEADS.index("actDCF")
# The priors of the verdict, from 0.001 to 0.999: those over which the page draws the Bayes error.
PRIORS = expit(np.linspace(-7, 7, 141))
# What `measure` gives for a system: the EER, minDCF and actDCF at the chosen prior, both again at each of PRIORS, and
# then Cllr, minCllr and the calibration loss.
EER = 0
CLLR = -3
LOSS = -1
CHOSEN_PRIOR = [0, 1, 2, -3, -2, -1]  # the columns of METRIC_HEADS
ACTUAL_COSTS = slice(4, CLLR, 2)  # actDCF at each of PRIORS

Column = NDArray[Any]
Columns = Mapping[str, ArrayLike]
Sides = tuple[ArrayLike, ArrayLike] | None


@dataclass(frozen=True, eq=False)
class ScoredTrials:
    """The n trials of the report, their scores, and what is known about each trial."""

    scores: dict[str, Floats]  # name of a system -> (n,)
    y: Booleans  # (n,)
    ids: dict[str, Column]  # enrolled and test side -> (n,)
    speakers: dict[str, Column]  # of the two sides, each (n,); empty where they are not known
    conditions: dict[str, Column]
    point: dict[str, Any]  # p_target, c_miss, c_fa


def checked(
    systems: Columns, labels: ArrayLike, trials: Sides, speakers: Sides, conditions: Columns, point: dict[str, float]
) -> ScoredTrials:
    """Return the arguments of `write_report` as columns of one length; an error says what does not fit together."""
    if not isinstance(systems, Mapping) or not systems:
        raise DuopldaError("systems must be a dictionary: name -> scores")
    scores = {}
    y = np.empty(0, dtype=bool)
    for name, values in systems.items():
        with error_prefix(f"system {name!r}"):
            scores[str(name)], y, _ = check_trials(values, labels, None)
    metrics.act_dcf([0.0, 1.0], [False, True], **point)  # refuses impossible priors and costs
    ids = _columns(dict(zip(("enrolled", "test"), trials, strict=True)) if trials else {}, len(y))
    sides = _columns(dict(zip(("speaker", "other speaker"), speakers, strict=True)) if speakers else {}, len(y))
    return ScoredTrials(scores, y, ids, sides, _columns(conditions, len(y)), point)


def _columns(columns: Columns, n: int) -> dict[str, Column]:
    arrays = {str(name): np.asarray(column) for name, column in columns.items()}
    for name, column in arrays.items():
        if column.shape != (n,):
            raise DuopldaError(f"column {name!r} has shape {column.shape}; there are {n} trials, give ({n},)")
    return arrays


def measure(trials: ScoredTrials, resampling: Mapping[str, Any]) -> dict[str, BootstrapResult]:
    """Return all metrics of each system, at the chosen prior and at all of PRIORS, with intervals over speakers."""
    point = {**trials.point, "p_target": [trials.point["p_target"], *PRIORS]}
    sides: Any = tuple(trials.speakers.values()) or None
    return measure_systems(trials.scores, trials.y, sides, **resampling, **point)


def calibration_state(estimate: Floats, labels: Booleans) -> str:
    """Say whether ratios are calibrated: "good", "bad", or "open" where there are too few trials to tell.

    The calibration loss may be a fifth of minCllr, a common criterion, or 0.02 bits. Some loss more appears by chance,
    as minCllr is fitted to these very trials: n^(-2/3), the rate of isotonic regression, was at least the mean loss of
    calibrated ratios that were drawn with 10 to 1,000 targets. Where chance may explain 0.1 bits or more, "good" would
    mean nothing.
    """
    min_cllr, loss = estimate[-2:]
    chance = (1 / labels.sum() + 1 / (~labels).sum()) ** (2 / 3)
    if not loss <= max(0.2 * min_cllr, 0.02) + chance:
        return "bad"
    return "good" if chance < 0.1 else "open"


def calibration_states(measured: Mapping[str, BootstrapResult], labels: Booleans) -> dict[str, str]:
    """Say of each system whether it is calibrated; scores of a "bad" one are read as ratios nowhere on the page."""
    return {name: calibration_state(row.estimate, labels) for name, row in measured.items()}


def calibration_badge(state: str) -> str:
    """Return the badge of a system."""
    words = {"good": "calibrated", "bad": "not calibrated", "open": "calibration unknown: few trials"}
    return badge(state, words[state])


def of_trials(
    trials: ScoredTrials, measured: Mapping[str, BootstrapResult], counts: Mapping[str, Any], worst: int
) -> dict[str, str]:
    """Return the sections on the trials and their scores."""
    states = calibration_states(measured, trials.y)
    return {
        "data": _data(trials, counts),
        "metrics": _metrics(trials, measured, states),
        "support": _support(trials, states),
        "conditions": _conditions(trials, states),
        "worst": _worst(trials, states, worst),
    }


def _data(trials: ScoredTrials, more: Mapping[str, Any]) -> str:
    """The numbers of trials, sides and speakers, and the caller's own facts."""
    counts: dict[str, Any] = {"target trials": int(trials.y.sum()), "non-target trials": int((~trials.y).sum())}
    counts |= {f"{name} sides": len(set(column.tolist())) for name, column in trials.ids.items()}
    if trials.speakers:
        counts["speakers"] = len(np.unique(np.concatenate(list(trials.speakers.values()))))
    return facts(counts | dict(more))


def _metrics(trials: ScoredTrials, measured: Mapping[str, BootstrapResult], states: Mapping[str, str]) -> str:
    """A row for each system, with intervals where the speakers are known."""
    rows = []
    n_resamples = 0
    for name, row in measured.items():
        cells = [_metric(k, value) for k, value in enumerate(row.estimate[CHOSEN_PRIOR])]
        if row.low is not None:
            n_resamples = len(row.values)
            for k, (low, high) in enumerate(zip(row.low[CHOSEN_PRIOR], row.high[CHOSEN_PRIOR], strict=True)):
                ends = f"{_metric(k, low)} {DASH} {_metric(k, high)}".replace(" %", "", 1)
                cells[k] += f'<span class="interval">{ends}</span>'
        if states[name] == "bad":
            cells[ACTUAL] = DASH
        rows.append((f"{bdi(name)}<div>{calibration_badge(states[name])}</div>", *cells))
    words = (
        "minDCF and actDCF are detection costs at a prior of {p_target:g}, where a miss costs {c_miss:g} and a false "
        "alarm {c_fa:g}, normalised as NIST does: 1 is the cost of deciding without scores. The EER is that of the "
        "convex hull of the ROC. Cllr, minCllr and the calibration loss are in bits. A system is not calibrated if its "
        "calibration loss is above both 0.02 bits and a fifth of minCllr, by more than chance explains with this "
        "number of trials. Its scores are not read as log-likelihood ratios: the page shows neither Bayes decisions "
        "nor Tippett curves of it. "
    ).format(**trials.point)
    if n_resamples:
        words += f"Below each value stands its 95 % interval, from {n_resamples} resamples of the speakers."
    else:
        words += "There are no intervals: they need "
        words += "resamples." if trials.speakers else "the speakers of both sides."
    return table(("System", *METRIC_HEADS), rows) + note(words)


def _support(trials: ScoredTrials, states: Mapping[str, str]) -> str:
    """Which ratios of calibrated systems the trials support, and how often these mislead, in orders of magnitude."""
    rows = []
    for name, s in trials.scores.items():
        if states[name] == "bad":
            continue
        bounds = [support.elub(s, trials.y), support.invariance_bounds(s, trials.y)]
        misleading = support.misleading_evidence(s, trials.y)
        ends = [*bounds, (misleading.lowest_target, misleading.highest_nontarget)]
        cells = [" to ".join(map(log10, pair)) for pair in ends]
        distance = support.dev_pav(s, trials.y)
        cells.insert(2, DASH if np.isnan(distance) else log10(distance))
        shares = [number(100 * share, "{:.2f} %") for share in misleading[:2]]
        rows.append((bdi(name), *cells[:3], *shares, cells[3]))
    if not rows:
        return note("No system is calibrated, so there are no ratios that trials could support.")
    head = ("System", "ELUB", "Invariance bounds", "devPAV", "Misleading: targets", "non-targets", "strongest")
    words = (
        "All values but the shares are in orders of magnitude (log10). These trials support no ratio beyond the bounds "
        "(ELUB: empirical lower and upper bounds): report a larger one as \N{LEFT DOUBLE QUOTATION MARK}at "
        "least\N{RIGHT DOUBLE QUOTATION MARK} its bound. devPAV is the mean distance between the ratios and what PAV "
        "makes of them. A ratio misleads if it is below 1 in a target trial, or above 1 in a non-target trial."
    )
    return table(head, rows) + note(words)


def _conditions(trials: ScoredTrials, states: Mapping[str, str], most: int = 30) -> str:
    """A table for each condition, with a row for each of its `most` most frequent values and each system."""
    parts = []
    for name, column in trials.conditions.items():
        values, index, sizes = np.unique(column.astype(str), return_inverse=True, return_counts=True)
        shown = np.sort(np.argsort(-sizes, kind="stable")[:most])
        rows = [row for k in shown for row in _condition(trials, states, values[k], index == k)]
        head = (text(name), "System", *METRIC_HEADS[:5], "Targets", "Non-targets")
        parts.append(f"<h3>{bdi(name)}</h3>" + table(head, rows, 2))
        if len(values) > len(shown):
            rarer = f"{len(values) - len(shown):,} rarer values ({sizes.sum() - sizes[shown].sum():,} trials)"
            parts.append(note(f"{rarer} are not shown."))
    return "".join(parts)


def _condition(
    trials: ScoredTrials, states: Mapping[str, str], value: str, rows: Booleans
) -> Iterable[tuple[str, ...]]:
    """The rows of one value of a condition, one for each system; only the first has the value and the counts."""
    y = trials.y[rows]
    first = (bdi(value), f"{int(y.sum()):,}", f"{int((~y).sum()):,}")
    for name, s in trials.scores.items():
        cells = [DASH] * 5
        if y.any() and not y.all():
            cells = [_metric(k, v) for k, v in enumerate(metrics.measure(s[rows], y, **trials.point)[:5])]
        if states[name] == "bad":
            cells[ACTUAL] = DASH
        yield first[0], bdi(name), *cells, *first[1:]
        first = ("", "", "")


def _worst(trials: ScoredTrials, states: Mapping[str, str], most: int) -> str:
    """The target trials with the lowest scores and the non-target trials with the highest, for each system."""
    if most < 1:
        return ""
    ids = trials.ids or {"row, from 0": np.arange(len(trials.y))}
    halves = ((trials.y, 1.0, "Targets that scored lowest"), (~trials.y, -1.0, "Non-targets that scored highest"))
    parts = []
    for system, s in trials.scores.items():
        unit = "Score" if states[system] == "bad" else "LLR"
        parts.append(f'<h3>{bdi(system)}</h3><div class="columns">')
        for keep, sign, title in halves:
            rows = np.flatnonzero(keep)
            body = []
            for k in rows[np.argsort(sign * s[rows], kind="stable")[:most]]:
                under = " \N{MIDDLE DOT} ".join(bdi(column[k]) for column in trials.conditions.values())
                cells = [number(s[k], "{:.2f}"), *(bdi(column[k]) for column in ids.values())]
                cells[-1] += f'<span class="interval">{under}</span>' if under else ""
                body.append(cells)
            parts.append(f"<div>{note(title)}{table((unit, *ids), body, 3, 'trials')}</div>")
        parts.append("</div>")
    summary = "Show the lowest targets and the highest non-targets of each system, with their ids"
    return f"<details><summary>{summary}</summary>{''.join(parts)}</details>"


def of_model(model: Any, shares: VarianceShares | None) -> str:
    """Return the section on the model: sizes of a fitted PLDA and its shares of variance, or facts of a dictionary."""
    if model is None or isinstance(model, Mapping):
        return "" if model is None else facts(model)
    if shares is None:
        raise DuopldaError(f"model_summary must be a fitted PLDA or a dictionary, not {type(model).__name__}")
    d, ny = model.speaker_loadings_.shape
    nx = model.session_loadings_.shape[1]
    kinds = len(model.channel_priors_)
    known: dict[str, Any] = {"dimensions": d, "speaker factors": ny, "session factors": nx}
    known |= {"kinds of channels": kinds} if kinds > 1 else {}
    if hasattr(model, "log_likelihoods_"):
        known["EM iterations"] = f"{model.n_iter_}{'' if model.converged_ else ' (not converged)'}"
        known["log-likelihood"] = number(float(model.log_likelihoods_[-1]), "{:,.1f} nats")
    for name, share in zip(("speaker", "session", "channel"), shares.total, strict=True):
        known[f"variance of the {name}"] = f"{100 * share:.1f} %"
    if (story := getattr(model, "adapted_", None)) is not None:
        counts = ", ".join(f"{n:,} {what}" for what, n in story["target"].items())
        known["adapted to"] = f"{counts} (method {story['method']})"
    return f'<div class="columns"><div>{facts(known)}</div>{template("shares.html")}</div>'


def of_kinds(true: ArrayLike, inferred: ArrayLike) -> str:
    """Return the section on kinds of channels: a table of which kind was inferred how often for each true one."""
    a = np.asarray(true).astype(str)
    b = np.asarray(inferred).astype(str)
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise DuopldaError(f"kinds must be two columns of one length, got shapes {a.shape} and {b.shape}")
    columns = np.unique(np.concatenate([a, b]))
    body = []
    for kind in np.unique(a):
        taken = b[a == kind]
        body.append((bdi(kind), f"{len(taken):,}", *(f"{100 * float(np.mean(taken == c)):.1f} %" for c in columns)))
    head = ("True kind", "Recordings", *(f"taken for {bdi(c)}" for c in columns))
    return table(head, body) + note(f"{100 * float(np.mean(a == b)):.1f} % of {len(a):,} recordings are right.")


def _metric(k: int, value: float) -> str:
    """The metric of column `k` of METRIC_HEADS."""
    return number(100 * value, "{:.2f} %") if k == 0 else number(value, "{:.3f}")
