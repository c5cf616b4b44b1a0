"""The page on a case: one page of plain words, then the tables and the pictures that they rest on; without a script."""

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from duoplda.case.record import CaseRecord, listed
from duoplda.case.recordings import Side
from duoplda.case.result import CaseResult, DomainCheck, Estimate, SessionShare, Validation, in_log10
from duoplda.case.words import ratio_text
from duoplda.evaluation import support
from duoplda.evaluation.calibration import PAVCalibration
from duoplda.evaluation.metrics import pav_llr
from duoplda.evaluation.support import LN10
from duoplda.io import atomic_path
from duoplda.report._charts import Curve, Mark, chart
from duoplda.report._html import badge, bdi, facts, number, page, plain, table, template, text
from duoplda.report._sections import of_repeat
from duoplda.report.plots import score_range, tippett_curve

PRIOR_RANGE = 3.0  # orders of magnitude of prior odds on the ECE plot
DASH = "\N{EN DASH}"
LOG10 = 'log<tspan dy="3" font-size="9">10</tspan><tspan dy="-3">&#8203;</tspan> '  # of an axis: SVG has no <sub>


def write_case_report(path: str | os.PathLike[str], record: CaseRecord, *, force: bool = False) -> Path:
    """Write the page on an assessed case, and return its path.

    Parameters
    ----------
    path : the HTML file; it appears whole or not at all, and replaces another only with `force`
    record : what `duoplda case` made

    >>> import tempfile
    >>> from duoplda.case import assess_case, read_case, write_example
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = write_case_report(f"{folder}/case.html", assess_case(read_case(write_example(folder))))
    ...     "What must not be said" in page.read_text(encoding="utf-8")
    True
    """
    result = record.result
    sections = {
        "words": ("In plain words", _words(record)),
        "ratio": ("The ratio", _ratio(record)),
        "validation": ("Validation in the structure of the case", _validation(result.validation)),
        "pictures": ("Pictures of the validation", _pictures(result)),
        "rests": ("What the ratio rests on", _rests_on(result)),
        "recordings": ("Recordings", _recordings(record) + _quality(record)),
        "population": ("Relevant population", _population(record)),
        "model": ("Model and domain", _model(record)),
        "repeat": ("To repeat it", _repeat(record)),
    }
    subtitle = text(f"{record.date}. Likelihood ratio of two propositions, by duoplda {record.version}.")
    with atomic_path(path, force=force) as temporary:
        temporary.write_bytes(page(record.case.title, subtitle, sections, style=template("case.css")).encode())
    return Path(path)


# -- one page of plain words


def _words(record: CaseRecord) -> str:
    """What was asked, the sentence to read out, what it rests on, and what must not be said."""
    case, words = record.case, record.words
    answer = [words.interval, words.verbal, words.posterior]
    forbidden = "".join(f"<li><q>{text(f.sentence, None)}</q> {text(f.why, None)}</li>" for f in words.forbidden)
    rests = "".join(f"<li>{text(sentence, None)}</li>" for sentence in _grounds(record))
    return (
        "<h3>The question</h3><p>Which of two propositions do the recordings speak for, and how strongly?</p>"
        f"<ol><li>{text(case.same, None)}</li><li>{text(case.different, None)}</li></ol>"
        f"<p>{text(_compared(record), None)}</p>"
        f'<h3>The answer, to be read out</h3><p class="sentence">{text(words.sentence, None)}</p>'
        + "".join(f"<p>{text(sentence, None)}</p>" for sentence in answer if sentence)
        + f"<h3>What it rests on</h3><ul>{rests}</ul>"
        f'<h3>What must not be said</h3><ul class="forbidden">{forbidden}</ul>'
    )


def _compared(record: CaseRecord) -> str:
    """What was compared with what, in a sentence."""
    known, questioned = record.result.known, record.result.questioned
    of_known = f"{_count(known.n_recordings, 'recording')} of {plain(record.case.speaker)} ({known})"
    in_question = f"{_count(questioned.n_recordings, 'recording')} in question ({questioned})"
    return f"Compared were {of_known} with {in_question}."


def _grounds(record: CaseRecord) -> Iterator[str]:
    """What the ratio rests on, a sentence for each."""
    result = record.result
    population, validation = result.population, result.validation
    why = record.case.why
    used = "all" if population.n_used == population.n_speakers else f"{population.n_used:,}"
    yield (
        f"What if somebody else spoke? That is judged by other people. Why these: {why}{'.' * (why[-1] not in '.!?')} "
        f"They are {population.n_speakers:,} speakers, {used} of whom take part in the comparisons."
    )
    yield from population.lacking
    yield (
        "The whole procedure was tested on such comparisons, each without the people who are compared in it: "
        f"{_misled(validation.n_same, 'of one person', validation.misleading_same, 'second')}; "
        f"{_misled(validation.n_different, 'of two people', validation.misleading_different, 'first')}"
        f"{_strongest(validation.highest_different.value)}."
    )
    bounds = result.ratio.support
    yield (
        f"These comparisons support ratios from {ratio_text(bounds.lower, down=True)} to "
        f"{ratio_text(bounds.upper, down=True)}; beyond that nothing was tested."
    )
    yield from (_domain_sentence(check) for check in result.domain)
    yield from result.notes


def _misled(n: int, what: str, share: Estimate, favoured: str) -> str:
    """How many comparisons of a class spoke for the wrong proposition."""
    how_many = f"{_percent(share.value)} of them" if share.value > 0 else "none"
    return f"of {n:,} comparisons {what}, {how_many} spoke for the {favoured} proposition"


def _strongest(highest: float) -> str:
    return f", with a ratio of {ratio_text(highest)} at the most" if highest > 0 else ""


def _domain_sentence(check: DomainCheck) -> str:
    what = f"The recordings of {check.what}"
    model = "the adapted model" if check.adapted else "the model"
    if check.within:
        return f"{what} are like those that {model} was made from."
    return f"{what} are unlike those that {model} was made from."


# -- tables


def _ratio(record: CaseRecord) -> str:
    """The ratio from the model to what may be said, and the bounds."""
    r = record.result.ratio
    interval = f'<span class="interval">{_log10(r.low)} {DASH} {_log10(r.high)}</span>'
    stated = f'<span class="interval">{_log10(r.stated_low)} {DASH} {_log10(r.stated_high)}</span>'
    bound = "" if r.bound_by is None else f" ({r.relation}, by the bound of {text(_rule(r.bound_by))})"
    rows = [
        ("of the model, without any calibration", _log10(r.raw)),
        ("with the calibration of the model", _log10(r.own)),
        ("calibrated in the structure of the case, before any bound", _log10(r.calibrated) + interval),
        (f"<strong>what may be said</strong>{bound}", f"<strong>{_log10(r.stated)}</strong>{stated}"),
    ]
    bounds = [
        ("ELUB (empirical lower and upper bounds)", *map(_log10, r.support.elub)),
        ("invariance verification", *map(_log10, r.support.invariance)),
        ("<strong>used</strong>, the narrower", _log10(r.support.lower), _log10(r.support.upper)),
    ]
    sign = "+" if r.offset >= 0 else DASH
    formula = (
        f"calibrated = {number(r.scale, '{:.3f}')} \N{MULTIPLICATION SIGN} own "
        f"{sign} {number(abs(in_log10(r.offset)), '{:.3f}')}"
    )
    note = (
        f"Below: the {100 * r.confidence:.3g} % interval over speakers: the population resampled "
        f"{record.result.n_resamples:,} times, and the calibration made anew each time, with the quantiles that so few "
        "speakers ask for. What other training speakers of the model would change is not in it. In the structure of "
        f"the case: {formula}. Only the last line is for a conclusion. A value of 2 is a ratio of 100, of "
        "\N{MINUS SIGN}2 one of 1/100."
    )
    return (
        table(("Likelihood ratio", "log<sub>10</sub>"), rows)
        + f'<p class="note">{note}</p><h3>What the validation supports</h3>'
        + table(("Bounds", "lowest log<sub>10</sub>", "highest log<sub>10</sub>"), bounds)
    )


def _rule(bound_by: str) -> str:
    return {"elub": "ELUB", "invariance": "invariance verification"}.get(bound_by, bound_by)


def _validation(v: Validation) -> str:
    """How the procedure did on pairs of the population, with intervals."""
    bits = [("Cllr (bits; 1 is no information)", v.cllr), ("minCllr (bits)", v.min_cllr)]
    bits.append(("calibration loss (bits)", v.calibration_loss))
    rows = [(name, _estimate(estimate, "{:.3f}")) for name, estimate in bits]
    rows.append(("equal error rate", _estimate(v.eer, "{:.2f} %", 100)))
    rows.append(("devPAV (orders of magnitude)", _estimate(v.dev_pav, "{:.3f}", 1 / LN10)))
    misleading = [
        ("one speaker, ratio below 1", v.misleading_same),
        ("two speakers, ratio above 1", v.misleading_different),
    ]
    rows += [(f"misleading: {what}", _estimate(estimate, "{:.2f} %", 100)) for what, estimate in misleading]
    rows.append(
        ("strongest misleading of one speaker (log<sub>10</sub>)", _estimate(v.lowest_same, "{:.2f}", 1 / LN10))
    )
    strongest = _estimate(v.highest_different, "{:.2f}", 1 / LN10)
    rows.append(("strongest misleading of two speakers (log<sub>10</sub>)", strongest))
    counts = {"speakers": v.n_speakers, "comparisons of one speaker": v.n_same}
    counts |= {"comparisons of two speakers": v.n_different, "pairs of speakers": v.n_pairs_of_speakers}
    note = (
        "Below each value: its interval over speakers. No comparison was judged by a calibration or an adaptation that "
        "had seen one of its speakers. With the calibration of the model itself, "
        f"Cllr would have been {number(v.own_cllr, '{:.3f}')} and the calibration loss "
        f"{number(v.own_calibration_loss, '{:.3f}')}."
    )
    return f'{facts(counts)}{table(("Metric", "Value"), rows)}<p class="note">{note}</p>'


def _rests_on(result: CaseResult) -> str:
    """Shares of sessions, typicality and similarity, and what changes the ratio."""
    sessions = [_share(share) for share in result.sessions]
    far = [("known side, from the middle of the population", result.typicality_known)]
    far.append(("questioned side, from the middle of the population", result.typicality_questioned))
    far.append(("the two sides, from each other", result.similarity))
    distances = [(name, number(d.value, "{:.2f}"), _percent(d.farther)) for name, d in far]
    changes = []
    for s in result.sensitivity:
        value = DASH if s.calibrated is None else _log10(s.calibrated)
        speakers = f"{s.n_speakers:,}" if s.n_speakers else DASH
        changes.append((text(s.what, None), value, speakers, text(s.note, None)))
    head = ("Change", "log<sub>10</sub> ratio", "speakers", "note")
    similar = (
        "1 is what the model expects. Farther: the share of comparable sides of the population, or of its pairs of one "
        f"speaker, that lie farther; of its pairs of two speakers, {_percent(result.similarity_different)} lie farther "
        "from each other than the two sides do."
    )
    shares = (
        "What the ratio would be without a session, and how much the session adds; of a session that is alone on its "
        "side there is nothing to say."
    )
    return (
        "<h3>Sessions</h3>"
        + table(("Session", "side", "recordings", "log<sub>10</sub> ratio without it", "its share"), sessions, 3)
        + f'<p class="note">{shares}</p><h3>Typicality and similarity</h3>'
        + table(("Distance", "value", "farther"), distances)
        + f'<p class="note">{similar}</p><h3>Sensitivity</h3>'
        + _with_text_last(head, changes)
        + '<p class="note">The ratio, calibrated and before any bound, if one thing were otherwise. The ratio of the '
        f"case is {_log10(result.ratio.calibrated)}.</p>"
    )


def _with_text_last(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first two columns are text: the note comes second."""
    order = [0, len(head) - 1, *range(1, len(head) - 1)]
    return table([head[k] for k in order], [[row[k] for k in order] for row in rows], 2)


def _share(share: SessionShare) -> tuple[str, ...]:
    kinds = ", ".join(f"{n:,} {name}".rstrip() for name, n in share.structure.items())
    values = [DASH if value is None else _log10(value) for value in (share.without, share.share)]
    return (bdi(share.session), share.side, text(kinds), *values)


def _recordings(record: CaseRecord) -> str:
    """Every recording of both sides with its labels."""
    sides = {"Known": record.recordings.known, "In question": record.recordings.questioned}
    parts = []
    for name, side in sides.items():
        who = f": {bdi(record.case.speaker)}" if name == "Known" else ""
        parts.append(f"<div><h3>{name}{who}</h3>{_side_table(side)}</div>")
    return f'<div class="columns">{"".join(parts)}</div>'


def _side_table(side: Side) -> str:
    rows = listed(side)
    head = {"id": "Recording", "session": "session", "channel": "kind of channel", "occasion": "occasion"}
    columns = list(rows[0])
    return table([head[c] for c in columns], [[bdi(row[c]) for c in columns] for row in rows], len(columns))


def _quality(record: CaseRecord) -> str:
    """What was measured on the recordings, beside the population."""
    if record.quality is None or not record.quality.measures:
        return ""
    rows = []
    for measure in record.quality.measures:
        usual = measure.population
        unlike = ", ".join(measure.unusual)
        mark = (
            badge("bad", f"unusual: {unlike}") if unlike else badge("good", "usual") if usual.n else badge("open", "?")
        )
        sides = [_range(side.lowest, side.highest) for side in (measure.known, measure.questioned)]
        rows.append((text(measure.name), mark, *sides, _range(usual.usual_low, usual.usual_high)))
    head = ("Measure", "", "known", "in question", "population, 5 to 95 %")
    note = "The lowest and the highest value of each side, beside where nine in ten recordings of the population lie."
    return f'<h3>Quality of the recordings</h3>{table(head, rows, 2)}<p class="note">{note}</p>'


def _range(low: float, high: float) -> str:
    if math.isnan(low):
        return DASH
    first, last = (number(value, "{:.4g}") for value in (low, high))
    return first if first == last else f"{first} to {last}"


def _population(record: CaseRecord) -> str:
    """Who they are, why, and how far the structure of the case could be matched."""
    p = record.result.population
    counts = {"speakers": p.n_speakers, "sessions": p.n_sessions, "recordings": p.n_recordings, "compared": p.n_used}
    rows = [
        ("known", str(record.result.known), str(p.known)),
        ("in question", str(record.result.questioned), str(p.questioned)),
    ]
    cells = [(name, text(case, None), text(drawn, None)) for name, case, drawn in rows]
    lacking = "".join(f"<li>{text(sentence, None)}</li>" for sentence in p.lacking)
    lacking = f"<ul>{lacking}</ul>" if lacking else '<p class="note">The population has all that the case has.</p>'
    return (
        f"<p>{text(record.case.why, None)}</p>{facts(counts)}<h3>Structure of the comparisons</h3>"
        f"{table(('Side', 'of the case', 'drawn from the population'), cells, 3)}{lacking}"
    )


def _model(record: CaseRecord) -> str:
    """Whether the recordings are like those of the training, and what an adaptation did."""
    rows = []
    for check in record.result.domain:
        mark = badge("good", "like the training") if check.within else badge("bad", "another domain")
        model = "adapted model" if check.adapted else "model as it was trained"
        values = (f"{check.n_recordings:,}", number(check.distance, "{:.4g}"), number(check.limit, "{:.4g}"))
        rows.append((f"{text(check.what)}, {model}", mark, *values))
    parts = [table(("Recordings", "", "number", "squared distance", "usual up to"), rows, 2)]
    if (story := record.result.adapted) is not None:
        target = ", ".join(f"{n:,} {what}" for what, n in story["target"].items())
        parts.append(
            f"<p>The model was adapted to the population: {text(target)} (method {text(story['method'])}).</p>"
        )
    else:
        parts.append("<p>The model was not adapted.</p>")
    return "".join(parts)


def _repeat(record: CaseRecord) -> str:
    """The command, the seed and the hashes."""
    result = record.result
    counts = {"version of duoplda": record.version, "seed": f"{result.seed}", "resamples": f"{result.n_resamples:,}"}
    counts |= {"weight of the calibration's prior": number(result.prior_weight, "{:.3g}")}
    return facts(counts) + "<p></p>" + of_repeat([record.command], record.hashes)


# -- pictures


def _pictures(result: CaseResult) -> str:
    """Tippett, ECE and PAV of the pairs of the validation; the first has the ratio of the case."""
    v = result.validation
    drawings = [_tippett(v, result), _ece(v), _pav(v)]
    return f'<div class="columns">{"".join(drawings)}</div>'


def _tippett(v: Validation, result: CaseResult) -> str:
    x, same, different = tippett_curve(v.scores, v.labels, v.weights)
    stated = result.ratio.stated
    low, high = score_range([v.scores / LN10, np.array([stated / LN10])])
    x = np.r_[low, x / LN10, high]
    curves = [
        Curve("one speaker", x, np.r_[1.0, same, same[-1]], 0),
        Curve("two speakers", x, np.r_[1.0, different, different[-1]], 1),
    ]
    caption = "The share of comparisons with at least this ratio. Left of 0, those of one speaker mislead; right of 0, "
    caption += "those of two."
    names = (f"{LOG10}likelihood ratio", "share with at least this ratio")
    bounds = [bound / LN10 for bound in (result.ratio.support.lower, result.ratio.support.upper)]
    marks = [Mark("the bounds", bounds, 1), Mark("this case, as stated", [stated / LN10])]
    return chart("Tippett plot", curves, names, ((low, high), (0.0, 1.0)), caption, marks)


def _ece(v: Validation) -> str:
    orders = np.linspace(-PRIOR_RANGE, PRIOR_RANGE, 121)
    odds = orders * LN10
    actual = support.ece(v.scores, v.labels, odds, v.weights)
    least = support.ece(pav_llr(v.scores, v.labels, v.weights), v.labels, odds, v.weights)
    without = support.ece(np.zeros(2), np.array([True, False]), odds)
    curves = [Curve("as they are", orders, actual, 0), Curve("by PAV, the least", orders, least, 1)]
    curves.append(Curve("without ratios", orders, without, 2))
    top = min(1.5, 1.05 * max(1.0, float(np.max(actual))))
    caption = "What is left to be known by whoever believes the ratios, at each prior. Above the dotted line of no "
    caption += "ratios, they would mislead."
    names = (f"{LOG10}prior odds", "empirical cross-entropy (bits)")
    return chart("ECE plot", curves, names, ((-PRIOR_RANGE, PRIOR_RANGE), (0.0, top)), caption)


def _pav(v: Validation) -> str:
    low, high = score_range([v.scores / LN10])
    pav = PAVCalibration().fit(np.clip(v.scores, low * LN10, high * LN10), v.labels, v.weights)
    steps = np.stack((pav.low_, pav.high_), axis=1).ravel() / LN10
    worth = np.repeat(pav.llr_, 2) / LN10
    ends = (min(low, float(worth[0])), max(high, float(worth[-1])))
    diagonal = np.array([low, high])
    curves = [Curve("by PAV", steps, worth, 0), Curve("where both agree", diagonal, diagonal, 2, thin=True)]
    caption = (
        "What the ratios are worth on these comparisons against what they say; calibrated ratios follow the dotted "
    )
    caption += "line."
    names = (f"{LOG10}likelihood ratio", f"{LOG10}likelihood ratio by PAV")
    return chart("PAV plot", curves, names, ((low, high), ends), caption)


# -- numbers


def _log10(nats: float) -> str:
    return number(in_log10(nats), "{:.2f}")


def _estimate(estimate: Estimate, form: str, factor: float = 1.0) -> str:
    """A value with its interval below; a dash where it is not a number."""
    if math.isnan(estimate.value):
        return DASH
    value, low, high = (DASH if math.isnan(v) else number(factor * v, form) for v in estimate)
    return f'{value}<span class="interval">{low.replace(" %", "")} {DASH} {high}</span>'


def _percent(share: float) -> str:
    return number(100 * share, "{:.1f} %")


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"
