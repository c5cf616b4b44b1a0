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
from duoplda.report._html import badge, bdi, facts, number, table, template, text
from duoplda.report.plots import VarianceShares

METRIC_HEADS = ("EER", "minDCF", "actDCF", "Cllr", "minCllr", "calibration loss")  # as `metrics.measure` orders them
ACTUAL = METRIC_HEADS.index("actDCF")
NO_DECISION = "\N{EN DASH}"  # in place of a number that cannot be given
# Of the verdict: from 0.001 to 0.999, where the curve of the Bayes error is drawn.
PRIORS = expit(np.linspace(-7, 7, 141))

Column = NDArray[Any]
Columns = Mapping[str, ArrayLike]
Sides = tuple[ArrayLike, ArrayLike] | None


@dataclass(frozen=True, eq=False)
class ScoredTrials:
    """What the report is about: n trials, their scores, and what is known of the trials."""

    scores: dict[str, Floats]  # name of a system -> (n,)
    y: Booleans  # (n,)
    ids: dict[str, Column]  # enrolled and test side -> (n,)
    speakers: dict[str, Column]  # of the two sides, each (n,); empty where they are not known
    conditions: dict[str, Column]
    point: dict[str, Any]  # p_target, c_miss, c_fa


def checked(
    systems: Columns, labels: ArrayLike, trials: Sides, speakers: Sides, conditions: Columns, point: dict[str, float]
) -> ScoredTrials:
    """Refuse what does not fit together."""
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
    """What `metrics.measure` gives for each system at the chosen prior and at all of PRIORS, with intervals."""
    point = {**trials.point, "p_target": [trials.point["p_target"], *PRIORS]}
    sides: Any = tuple(trials.speakers.values()) or None
    return measure_systems(trials.scores, trials.y, sides, **resampling, **point)


def calibrated(estimate: Floats, labels: Booleans) -> str:
    """Whether ratios are calibrated: good, bad, or open where the trials are too few to tell.

    What calibration could gain may be a fifth of minCllr, as is commonly asked for, or 0.02 bits, and what it seems to
    gain by chance, since minCllr is fitted to these very trials: n^(-2/3), the rate of isotonic regression, was at
    least the mean loss of drawn calibrated ratios with 10 to 1,000 targets. Above 0.1 bits, chance hides too much.
    """
    min_cllr, loss = estimate[-2:]
    chance = (1 / labels.sum() + 1 / (~labels).sum()) ** (2 / 3)
    if not loss <= max(0.2 * min_cllr, 0.02) + chance:
        return "bad"
    return "good" if chance < 0.1 else "open"


def kinds_of(measured: Mapping[str, BootstrapResult], labels: Booleans) -> dict[str, str]:
    """Whether each system is calibrated. Those that are "bad" are not read as ratios in nats anywhere on the page."""
    return {name: calibrated(row.estimate, labels) for name, row in measured.items()}


def calibration_badge(kind: str) -> str:
    """The badge of a system."""
    words = {"good": "calibrated", "bad": "not calibrated", "open": "calibration unknown: few trials"}
    return badge(kind, words[kind])


def of_trials(
    trials: ScoredTrials, measured: Mapping[str, BootstrapResult], counts: Mapping[str, Any], worst: int
) -> dict[str, str]:
    """The sections that the trials and their scores fill."""
    kinds = kinds_of(measured, trials.y)
    return {
        "data": _data(trials, counts),
        "metrics": _metrics(trials, measured, kinds),
        "support": _support(trials, kinds),
        "conditions": _conditions(trials, kinds),
        "worst": _worst(trials, kinds, worst),
    }


def _data(trials: ScoredTrials, more: Mapping[str, Any]) -> str:
    """Counts of trials, sides and speakers, and whatever the caller adds."""
    counts: dict[str, Any] = {"target trials": int(trials.y.sum()), "non-target trials": int((~trials.y).sum())}
    counts |= {f"{name} sides": len(set(column.tolist())) for name, column in trials.ids.items()}
    if trials.speakers:
        counts["speakers"] = len(np.unique(np.concatenate(list(trials.speakers.values()))))
    return facts(counts | dict(more))


def _metrics(trials: ScoredTrials, measured: Mapping[str, BootstrapResult], kinds: Mapping[str, str]) -> str:
    """A row for each system, with intervals where the speakers are known."""
    columns = [0, 1, 2, -3, -2, -1]  # without the costs at PRIORS
    rows = []
    n_resamples = 0
    for name, row in measured.items():
        cells = [_metric(k, value) for k, value in enumerate(row.estimate[columns])]
        if row.low is not None:
            n_resamples = len(row.values)
            for k, (low, high) in enumerate(zip(row.low[columns], row.high[columns], strict=True)):
                ends = f"{_metric(k, low)} \N{EN DASH} {_metric(k, high)}".replace(" %", "", 1)
                cells[k] += f'<span class="interval">{ends}</span>'
        if kinds[name] == "bad":
            cells[ACTUAL] = NO_DECISION
        rows.append((f"{bdi(name)}<div>{calibration_badge(kinds[name])}</div>", *cells))
    note = "Costs at prior {p_target:g}, cost of a miss {c_miss:g}, of a false alarm {c_fa:g}, ".format(**trials.point)
    note += "normalised as by NIST. EER on the convex hull of the ROC. Cllr and calibration loss in bits. "
    note += (
        "Not calibrated: the loss is above 0.02 bits and a fifth of minCllr, and what so few trials lose by chance. "
        "Such scores are no ratios in nats: no Bayes decisions and no Tippett curves are shown of them. "
    )
    if n_resamples:
        note += f"Below each value: 95 % interval from {n_resamples} resamples of the speakers."
    else:
        note += "No intervals: they need " + ("resamples." if trials.speakers else "the speakers of both sides.")
    return table(("System", *METRIC_HEADS), rows) + f'<p class="note">{note}</p>'


def _support(trials: ScoredTrials, kinds: Mapping[str, str]) -> str:
    """Which ratios of calibrated systems the trials support, and how often these mislead, in orders of magnitude."""
    rows = []
    for name, s in trials.scores.items():
        if kinds[name] == "bad":
            continue
        bounds = [support.elub(s, trials.y), support.invariance_bounds(s, trials.y)]
        misleading = support.misleading_evidence(s, trials.y)
        ends = [*bounds, (misleading.lowest_target, misleading.highest_nontarget)]
        cells = [" to ".join(_order(end) for end in pair) for pair in ends]
        distance = support.dev_pav(s, trials.y)
        cells.insert(2, "\N{EN DASH}" if np.isnan(distance) else _order(distance))
        shares = [number(100 * share, "{:.2f} %") for share in misleading[:2]]
        rows.append((bdi(name), *cells[:3], *shares, cells[3]))
    if not rows:
        return '<p class="note">No system is calibrated, so there are no ratios that trials could support.</p>'
    head = ("System", "ELUB", "Invariance bounds", "devPAV", "Misleading: targets", "non-targets", "strongest")
    note = "In orders of magnitude (log10), but for the shares. These trials support no ratio beyond the bounds: "
    note += "report a larger one as \N{LEFT DOUBLE QUOTATION MARK}at least\N{RIGHT DOUBLE QUOTATION MARK} its bound. "
    note += "devPAV: mean distance from what PAV makes of the ratios. Misleading: ratios below 1 of targets, and above "
    note += "1 of non-targets."
    return table(head, rows) + f'<p class="note">{note}</p>'


def _order(llr: float) -> str:
    """A natural-log ratio as its order of magnitude."""
    return number(llr / np.log(10), "{:.2f}")


def _conditions(trials: ScoredTrials, kinds: Mapping[str, str], most: int = 30) -> str:
    """A table for each condition, with a row for each of its `most` most frequent values and each system."""
    parts = []
    for name, column in trials.conditions.items():
        values, index, sizes = np.unique(column.astype(str), return_inverse=True, return_counts=True)
        shown = np.sort(np.argsort(-sizes, kind="stable")[:most])
        rows = [row for k in shown for row in _condition(trials, kinds, values[k], index == k)]
        head = (text(name), "System", *METRIC_HEADS[:5], "Targets", "Non-targets")
        parts.append(f"<h3>{bdi(name)}</h3>" + table(head, rows, 2))
        if len(values) > len(shown):
            rarer = f"{len(values) - len(shown):,} rarer values ({sizes.sum() - sizes[shown].sum():,} trials)"
            parts.append(f'<p class="note">{rarer} are not shown.</p>')
    return "".join(parts)


def _condition(trials: ScoredTrials, kinds: Mapping[str, str], value: str, rows: Booleans) -> Iterable[tuple[str, ...]]:
    """The rows of one value of a condition; its name and counts stand in the first."""
    y = trials.y[rows]
    first = (bdi(value), f"{int(y.sum()):,}", f"{int((~y).sum()):,}")
    for name, s in trials.scores.items():
        cells = [NO_DECISION] * 5
        if y.any() and not y.all():
            cells = [_metric(k, v) for k, v in enumerate(metrics.measure(s[rows], y, **trials.point)[:5])]
        if kinds[name] == "bad":
            cells[ACTUAL] = NO_DECISION
        yield first[0], bdi(name), *cells, *first[1:]
        first = ("", "", "")


def _worst(trials: ScoredTrials, kinds: Mapping[str, str], most: int) -> str:
    """The target trials with the lowest scores and the non-target trials with the highest, for each system."""
    if most < 1:
        return ""
    ids = trials.ids or {"row, from 0": np.arange(len(trials.y))}
    halves = ((trials.y, 1.0, "Targets that scored lowest"), (~trials.y, -1.0, "Non-targets that scored highest"))
    parts = []
    for system, s in trials.scores.items():
        unit = "Score" if kinds[system] == "bad" else "LLR"
        parts.append(f'<h3>{bdi(system)}</h3><div class="columns">')
        for keep, sign, kind in halves:
            rows = np.flatnonzero(keep)
            body = []
            for k in rows[np.argsort(sign * s[rows], kind="stable")[:most]]:
                under = " \N{MIDDLE DOT} ".join(bdi(column[k]) for column in trials.conditions.values())
                cells = [number(s[k], "{:.2f}"), *(bdi(column[k]) for column in ids.values())]
                cells[-1] += f'<span class="interval">{under}</span>' if under else ""
                body.append(cells)
            parts.append(f'<div><p class="note">{kind}</p>{table((unit, *ids), body, 3, "trials")}</div>')
        parts.append("</div>")
    summary = "the lowest targets and the highest non-targets of each system, with their ids"
    return f"<details><summary>Show {summary}</summary>{''.join(parts)}</details>"


def of_model(model: Any, shares: VarianceShares | None) -> str:
    """Sizes of a fitted PLDA, or the facts of a dictionary, and the shares of variance."""
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
    """How often each kind of channel was taken for which."""
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
    right = f"{100 * float(np.mean(a == b)):.1f} % of {len(a):,} recordings right."
    return table(head, body) + f'<p class="note">{right}</p>'


def of_repeat(commands: Iterable[str], hashes: Mapping[str, str]) -> str:
    """The commands to paste, and the hashes of the files they read."""
    commands = [commands] if isinstance(commands, str) else commands
    typed = "\n".join(text(line, None) for command in commands for line in str(command).split("\n"))
    rows = [(bdi(name), f'<span class="hash">{text(value)}</span>') for name, value in hashes.items()]
    return (f"<pre>{typed}</pre>" if typed else "") + (table(("File", "SHA-256"), rows, 2) if rows else "")


def _metric(k: int, value: float) -> str:
    return number(100 * value, "{:.2f} %") if k == 0 else number(value, "{:.3f}")
