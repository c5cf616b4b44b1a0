"""One self-contained HTML page on how good scores are: tables, curves, and sliders for the prior and the costs.

The tables are plain HTML and stand without a script. The curves are drawn, and the sliders answered, by a small
script from data inside the page. A Content-Security-Policy in the page allows nothing but that script and that style,
so no request can leave it and no id can act as markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from duoplda.errors import DuopldaError
from duoplda.evaluation import metrics
from duoplda.evaluation.metrics import Booleans, Floats
from duoplda.report._data import METRICS, Grid, page_data, share_data, summary
from duoplda.report.plots import VarianceShares, variance_directions

__all__ = ["write_report"]

_MOST_VALUES = 30  # rows of a condition's table
_MOST_CHARACTERS = 200  # of an id
# control characters, and those that turn the direction of text, made visible
_PICTURES: dict[int, str] = {c: chr(0x2400 + c) for c in range(32)} | {127: chr(0x2421)}
_PICTURES |= {c: f"[U+{c:04X}]" for c in (*range(0x200E, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A))}

Column = NDArray[Any]


def write_report(
    path: str | os.PathLike[str],
    systems: Mapping[str, ArrayLike],
    labels: ArrayLike,
    *,
    trials: tuple[ArrayLike, ArrayLike] | None = None,
    speakers: tuple[ArrayLike, ArrayLike] | None = None,
    conditions: Mapping[str, ArrayLike] | None = None,
    kinds: tuple[ArrayLike, ArrayLike] | None = None,
    title: str = "Speaker recognition report",
    data_counts: Mapping[str, Any] | None = None,
    model_summary: Any = None,
    variance_shares: VarianceShares | None = None,
    commands: Sequence[str] = (),
    hashes: Mapping[str, str] | None = None,
    prior: float = 0.01,
    costs: tuple[float, float] = (1.0, 1.0),
    bootstrap: int = 200,
    seed: int = 0,
    worst: int = 10,
    progress: bool = False,
    force: bool = False,
) -> Path:
    """Write the report on one or several systems that scored the same trials, and return its path.

    Parameters
    ----------
    path : the HTML file; it appears whole or not at all, and replaces another only with `force`
    systems : name -> scores (n,), natural-log likelihood ratios, in the order of `labels`
    labels : (n,) True for a target trial
    trials : ids of the enrolled and of the test side, each (n,), for the lists of worst trials (else row numbers)
    speakers : the speaker of each side, each (n,): gives confidence intervals by resampling speakers
    conditions : name -> value for each trial (n,): a table for each
    kinds : true and inferred kind of channel of recordings, each (m,): a table of which was taken for which
    data_counts : name -> number or text, shown after the counts of trials
    model_summary : a fitted PLDA, or name -> number or text
    variance_shares : from `duoplda.plots.variance_directions`; a fitted PLDA needs none
    commands, hashes : what to type, and file -> hash, to make this report again
    prior, costs : prior of a target, costs of a miss and a false alarm: of the tables, and where the sliders start
    bootstrap, seed : number of resamples (0: no intervals) and their seed
    worst : how many of the worst target and non-target trials of each system are listed

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     scores = {"a": [2.0, 1.0, -1.0, -2.0], "b": [3.0, -1.0, 1.0, -3.0]}
    ...     path = write_report(folder + "/report.html", scores, [True, True, False, False])
    ...     path.name
    'report.html'
    """
    from duoplda import __version__
    from duoplda.io._atomic import atomic_path

    scores, y = _checked(systems, labels)
    n = len(y)
    c_miss, c_fa = costs
    point = {"prior": float(prior), "c_miss": float(c_miss), "c_fa": float(c_fa)}
    metrics.act_dcf([0.0, 1.0], [False, True], *point.values())  # refuses impossible priors and costs
    ids = _columns(dict(zip(("enrolled", "test"), trials, strict=True)) if trials else {}, n)
    sides = list(
        _columns(dict(zip(("speaker", "other speaker"), speakers, strict=True)) if speakers else {}, n).values()
    )
    by = _columns(conditions or {}, n)
    if variance_shares is None and hasattr(model_summary, "speaker_loadings_"):
        variance_shares = variance_directions(model_summary)

    data = page_data(scores, y, Grid.around(**point))
    for system in data["systems"]:
        system["name"] = _plain(system["name"])
    if variance_shares is not None:
        data["shares"] = share_data(variance_shares[:3])
    sections = {
        "data": ("Data", _facts(_counts(y, ids, sides) | dict(data_counts or {}))),
        "metrics": ("Metrics", _metrics(scores, y, sides, point, bootstrap, seed, progress)),
        "decide": ("Decisions", _page("decide.html")),
        "curves": ("Curves", _page("curves.html")),
        "model": ("Model", _model(model_summary, variance_shares)),
        "conditions": ("Conditions", _conditions(scores, y, by, point)),
        "kinds": ("Kinds of channels", _confusion(*kinds) if kinds else ""),
        "worst": ("Worst trials", _worst(scores, y, ids, by, worst)),
        "repeat": ("To repeat it", _repeat([commands] if isinstance(commands, str) else commands, hashes or {})),
    }
    sections = {name: section for name, section in sections.items() if section[1]}
    names = ", ".join(_text(name) for name in scores)
    css, js = _page("page.css"), _page("page.js")
    page = Template(_page("page.html")).substitute(
        title=_text(title),
        subtitle=f"{len(scores)} system{'s' * (len(scores) > 1)} on {n:,} trials: {names}",
        nav="".join(f'<a href="#{name}">{head}</a>' for name, (head, _) in sections.items()),
        sections="\n".join(
            f'<section id="{name}"><h2>{head}</h2>\n{body}</section>' for name, (head, body) in sections.items()
        ),
        data=_json(data),
        css=css,
        js=js,
        css_hash=_policy_hash(css),
        js_hash=_policy_hash(js),
        version=__version__,
    )
    with atomic_path(path, force=force) as temporary:
        temporary.write_bytes(page.encode())
    return Path(path)


# -- input


def _checked(systems: Mapping[str, ArrayLike], labels: ArrayLike) -> tuple[dict[str, Floats], Booleans]:
    if not isinstance(systems, Mapping) or not systems:
        raise DuopldaError("systems must be a dictionary: name -> scores")
    checked, y = {}, np.empty(0, dtype=bool)
    for name, scores in systems.items():
        try:
            checked[str(name)], y, _ = metrics.check_trials(scores, labels, None)
        except DuopldaError as error:
            raise DuopldaError(f"system {name!r}: {error}") from None
    return checked, y


def _columns(columns: Mapping[str, ArrayLike], n: int) -> dict[str, Column]:
    arrays = {str(name): np.asarray(column) for name, column in columns.items()}
    for name, column in arrays.items():
        if column.shape != (n,):
            raise DuopldaError(f"column {name!r} has shape {column.shape}; there are {n} trials, give ({n},)")
    return arrays


# -- sections


def _counts(y: Booleans, ids: Mapping[str, Column], sides: Sequence[Column]) -> dict[str, Any]:
    counts: dict[str, Any] = {"target trials": int(y.sum()), "non-target trials": int((~y).sum())}
    for name, column in ids.items():
        counts[f"{name} sides"] = len(set(column.tolist()))
    if sides:
        counts["speakers"] = len(set(sides[0].tolist()) | set(sides[1].tolist()))
    return counts


def _metrics(
    scores: Mapping[str, Floats],
    y: Booleans,
    sides: Sequence[Column],
    point: Mapping[str, float],
    resamples: int,
    seed: int,
    progress: bool,
) -> str:
    measure: Any = partial(summary, **point)
    rows = []
    for name, s in scores.items():
        cells = [_metric(k, value) for k, value in enumerate(measure(s, y))]
        if sides and resamples:
            a, b = sides
            drawn = metrics.bootstrap(measure, s, y, a, b, n_resamples=resamples, seed=seed, progress=progress)
            for k, (low, high) in enumerate(zip(drawn.low, drawn.high, strict=True)):
                ends = f"{_metric(k, low)} \N{EN DASH} {_metric(k, high)}".replace(" %", "", 1)
                cells[k] += f'<span class="interval">{ends}</span>'
        rows.append((_bdi(name), *cells))
    note = f"Costs at prior {point['prior']:g}, cost of a miss {point['c_miss']:g}, of a false alarm {point['c_fa']:g}"
    note += ", normalised as by NIST. EER on the convex hull of the ROC. Cllr and calibration loss in bits. "
    if sides and resamples:
        note += f"Below each value: 95 % interval from {resamples} resamples of the speakers."
    else:
        note += "No intervals: they need the speakers of both sides." if resamples else "Intervals were not asked for."
    return _table(("System", *METRICS), rows) + f'<p class="note">{note}</p>'


def _model(model: Any, shares: VarianceShares | None) -> str:
    if model is None and shares is None:
        return ""
    facts = dict(model) if isinstance(model, Mapping) else {}
    if hasattr(model, "speaker_loadings_"):
        d, ny = model.speaker_loadings_.shape
        facts = {"dimensions": d, "speaker factors": ny, "session factors": model.session_loadings_.shape[1]}
        kinds = len(model.channel_priors_) if hasattr(model, "channel_priors_") else 1
        facts |= {"kinds of channels": kinds} if kinds > 1 else {}
        if hasattr(model, "log_likelihoods_"):
            state = "" if model.converged_ else " (not converged)"
            facts["EM iterations"] = f"{model.n_iter_}{state}"
            facts["log-likelihood"] = _number(float(model.log_likelihoods_[-1]), "{:,.1f} nats")
    elif model is not None and not isinstance(model, Mapping):
        raise DuopldaError(f"model_summary must be a fitted PLDA or a dictionary, not {type(model).__name__}")
    if shares is None:
        return _facts(facts)
    for name, share in zip(("speaker", "session", "channel"), shares.total, strict=True):
        facts[f"variance of the {name}"] = f"{100 * share:.1f} %"
    return f'<div class="columns"><div>{_facts(facts)}</div>{_page("shares.html")}</div>'


def _conditions(scores: Mapping[str, Floats], y: Booleans, by: Mapping[str, Column], point: Mapping[str, float]) -> str:
    parts = []
    for name, column in by.items():
        values, index, sizes = np.unique(column.astype(str), return_inverse=True, return_counts=True)
        shown = np.sort(np.argsort(-sizes, kind="stable")[:_MOST_VALUES])
        rows = []
        for k in shown:
            own = index == k
            targets, nontargets = int((own & y).sum()), int((own & ~y).sum())
            for system, s in scores.items():
                both = targets and nontargets
                cells = summary(s[own], y[own], **point)[:5] if both else [None] * 5
                numbers = [_metric(i, v) if v is not None else "\N{EN DASH}" for i, v in enumerate(cells)]
                head = _bdi(values[k]) if system == next(iter(scores)) else ""
                counts = (f"{targets:,}", f"{nontargets:,}") if head else ("", "")
                rows.append((head, _bdi(system), *numbers, *counts))
        parts.append(
            f"<h3>{_bdi(name)}</h3>" + _table((_text(name), "System", *METRICS[:5], "Targets", "Non-targets"), rows, 2)
        )
        if len(values) > len(shown):
            rest = int(sizes.sum() - sizes[shown].sum())
            parts.append(
                f'<p class="note">{len(values) - len(shown):,} rarer values ({rest:,} trials) are not shown.</p>'
            )
    return "".join(parts)


def _confusion(true: ArrayLike, inferred: ArrayLike) -> str:
    a, b = np.asarray(true).astype(str), np.asarray(inferred).astype(str)
    if a.shape != b.shape or a.ndim != 1 or not len(a):
        raise DuopldaError(f"kinds must be two columns of one length, got shapes {a.shape} and {b.shape}")
    rows, columns = np.unique(a), np.unique(np.concatenate([a, b]))
    counts = np.array([[((a == r) & (b == c)).sum() for c in columns] for r in rows])
    shares = counts / counts.sum(axis=1, keepdims=True)
    body = [
        (_bdi(r), f"{n.sum():,}", *(f"{100 * s:.1f} %" for s in share))
        for r, n, share in zip(rows, counts, shares, strict=True)
    ]
    head = ("True kind", "Recordings", *(f"taken for {_bdi(c)}" for c in columns))
    return _table(head, body) + f'<p class="note">{100 * (a == b).mean():.1f} % of {len(a):,} recordings right.</p>'


def _worst(
    scores: Mapping[str, Floats], y: Booleans, ids: Mapping[str, Column], by: Mapping[str, Column], most: int
) -> str:
    if most < 1:
        return ""
    ids = ids or {"row, from 0": np.arange(len(y))}
    parts = []
    for system, s in scores.items():
        parts.append(f'<h3>{_bdi(system)}</h3><div class="columns">')
        for keep, sign, kind in ((y, 1.0, "Targets that scored lowest"), (~y, -1.0, "Non-targets that scored highest")):
            rows = np.flatnonzero(keep)
            body = []
            for k in rows[np.argsort(sign * s[rows], kind="stable")[:most]]:
                under = " \N{MIDDLE DOT} ".join(_bdi(column[k]) for column in by.values())
                cells = [_number(s[k], "{:.2f}"), *(_bdi(column[k]) for column in ids.values())]
                cells[-1] += f'<span class="interval">{under}</span>' if by else ""
                body.append(cells)
            parts.append(f'<div><p class="note">{kind}</p>{_table(("LLR", *ids), body, 3, "trials")}</div>')
        parts.append("</div>")
    return "".join(parts)


def _repeat(commands: Iterable[str], hashes: Mapping[str, str]) -> str:
    typed = "\n".join(_text(line, None) for command in commands for line in str(command).split("\n"))
    parts = f"<pre>{typed}</pre>" if typed else ""
    rows = [(_bdi(name), f'<span class="hash">{_text(value)}</span>') for name, value in hashes.items()]
    return parts + (_table(("File", "Hash"), rows, 2) if rows else "")


# -- HTML


def _page(name: str) -> str:
    return files("duoplda.report").joinpath(name).read_text(encoding="utf-8")


def _plain(value: Any, most: int | None = _MOST_CHARACTERS) -> str:
    """Any value as text: control characters visible, no half characters, not endless unless `most` is None."""
    text = str(value)
    if most is not None and len(text) > most:
        text = text[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return text.translate(_PICTURES).encode("utf-8", "replace").decode()


def _text(value: Any, most: int | None = _MOST_CHARACTERS) -> str:
    return escape(_plain(value, most))


def _bdi(value: Any) -> str:
    return f"<bdi>{_text(value)}</bdi>"


def _json(data: Any) -> str:
    """JSON that cannot end the script element that holds it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _facts(facts: Mapping[str, Any]) -> str:
    shown = {
        k: f"{v:,}" if isinstance(v, (int, np.integer)) and not isinstance(v, bool) else v for k, v in facts.items()
    }
    return (
        '<dl class="facts">'
        + "".join(f"<div><dt>{_text(k)}</dt><dd>{_text(v)}</dd></div>" for k, v in shown.items())
        + "</dl>"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1, kind: str = "") -> str:
    """A table whose first `texts` columns are text, the others numbers; cells are HTML."""
    style = [' class="text"' if k < texts else "" for k in range(len(head))]
    if kind == "trials":
        style[0] = ' class="score"'
    top = "".join(f'<th scope="col"{c}>{cell}</th>' for c, cell in zip(style, head, strict=True))
    body = []
    for row in rows:
        first = f'<th scope="row"{style[0]}>{row[0]}</th>' if kind != "trials" else f"<td{style[0]}>{row[0]}</td>"
        rest = "".join(f"<td{c}>{cell}</td>" for c, cell in zip(style[1:], row[1:], strict=True))
        body.append(f"<tr>{first}{rest}</tr>")
    table = f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Table">{table}</div>'


def _metric(k: int, value: float) -> str:
    return _number(100 * value, "{:.2f} %") if k == 0 else _number(value, "{:.3f}")


def _number(value: float, form: str) -> str:
    if not np.isfinite(value):
        return "\N{INFINITY}" if value > 0 else "\N{MINUS SIGN}\N{INFINITY}"
    return form.format(value).replace("-", "\N{MINUS SIGN}")
