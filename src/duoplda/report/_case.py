"""The page on a case: one page of plain words, then the tables and pictures that support it. It has no script."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from duoplda.case.record import CaseRecord, listed
from duoplda.case.recordings import Side
from duoplda.case.result import CaseResult, DomainCheck, Estimate, SessionShare, Validation
from duoplda.case.words import ratio_text
from duoplda.evaluation import support
from duoplda.evaluation.calibration import PAVCalibration
from duoplda.evaluation.metrics import pav_llr
from duoplda.evaluation.support import LN10
from duoplda.report._charts import Curve, Mark, chart
from duoplda.report._html import (
    DASH,
    badge,
    bdi,
    count,
    facts,
    items,
    log10,
    note,
    number,
    plain,
    repeat,
    table,
    template,
    text,
    write_page,
)
from duoplda.report.plots import score_range, tippett_curve

PRIOR_RANGE = 3.0  # orders of magnitude of prior odds on the ECE plot
LOG10 = 'log<tspan dy="3" font-size="9">10</tspan><tspan dy="-3">&#8203;</tspan> '  # for axes: SVG has no <sub>


def write_case_report(path: str | os.PathLike[str], record: CaseRecord, *, force: bool = False) -> Path:
    """Write the page on an assessed case, and return its path.

    It begins with one page of plain words for readers who know no statistics: the question, the sentence to be read
    out, what it rests on, and sentences that must not be said. Tables and pictures for an expert follow. Its texts are
    for the propositions and the population of this case, and should not be taken over into another report.

    Parameters
    ----------
    path : the HTML file; it appears whole or not at all, and replaces another only with `force`
    record : the assessed case, as `duoplda.case.assess_case` returns it

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
    return write_page(path, record.case.title, subtitle, sections, style=template("case.css"), force=force)


# -- one page of plain words


def _words(record: CaseRecord) -> str:
    """The question, the sentence to be read out, what it rests on, and what must not be said."""
    case, words = record.case, record.words
    answer = [words.interval, words.verbal, words.posterior]
    forbidden = "".join(f"<li><q>{text(f.sentence, None)}</q> {text(f.why, None)}</li>" for f in words.forbidden)
    return (
        "<h3>The question</h3><p>Which of these two propositions do the recordings support, and how strongly?</p>"
        f"<ol><li>{text(case.same, None)}</li><li>{text(case.different, None)}</li></ol>"
        f"<p>{text(_compared(record), None)}</p>"
        f'<h3>The answer, to be read out</h3><p class="sentence">{text(words.sentence, None)}</p>'
        + "".join(f"<p>{text(sentence, None)}</p>" for sentence in answer if sentence)
        + f"<h3>What it rests on</h3>{items(_grounds(record))}"
        f'<h3>What must not be said</h3><ul class="forbidden">{forbidden}</ul>'
    )


def _compared(record: CaseRecord) -> str:
    """A sentence on what was compared with what."""
    known, questioned = record.result.known, record.result.questioned
    of_known = f"{count(known.n_recordings, 'recording')} of {plain(record.case.speaker)} ({known})"
    in_question = f"{count(questioned.n_recordings, 'recording')} in question ({questioned})"
    were = "was" if known.n_recordings == 1 else "were"
    return f"{of_known} {were} compared with {in_question}."


def _grounds(record: CaseRecord) -> Iterator[str]:
    """The grounds of the ratio, each as one or a few sentences."""
    result = record.result
    population, validation = result.population, result.validation
    why = record.case.why
    used = "all" if population.n_used == population.n_speakers else f"{population.n_used:,}"
    yield (
        "Recordings of other people show how probable the findings are if somebody else spoke: "
        f"{population.n_speakers:,} speakers, {used} of whom take part in the comparisons. Why these people are the "
        f"relevant ones: {why}{'.' * (why[-1] not in '.!?')}"
    )
    yield from population.lacking
    yield (
        "The whole procedure was tested on comparisons of these people that are built like the case. None was judged "
        "by a calibration or an adaptation in which one of its speakers took part. "
        f"{_misled(validation.n_same, 'of one person', validation.misleading_same, 'second')}. "
        f"{_misled(validation.n_different, 'of two people', validation.misleading_different, 'first')}"
        f"{_strongest(validation.highest_different.value)}."
    )
    bounds = result.ratio.support
    yield (
        f"These comparisons support ratios from {ratio_text(bounds.lower, down=True)} to "
        f"{ratio_text(bounds.upper, down=True)}. Nothing was tested beyond these bounds, so no ratio beyond them is "
        "stated."
    )
    yield from (_domain_sentence(check) for check in result.domain)
    yield from result.notes


def _misled(n: int, what: str, share: Estimate, favoured: str) -> str:
    """How many comparisons of a class spoke for the wrong proposition."""
    how_many = _percent(share.value) if share.value > 0 else "none"
    return f"Of {n:,} comparisons {what}, {how_many} wrongly spoke for the {favoured} proposition"


def _strongest(highest: float) -> str:
    return f", with a ratio of at most {ratio_text(highest)}" if highest > 0 else ""


def _domain_sentence(check: DomainCheck) -> str:
    like = "like" if check.within else "unlike"
    made_from = "adapted to" if check.adapted else "trained on"
    return f"The recordings of {check.what} are {like} those that the model was {made_from}."


# -- tables


def _ratio(record: CaseRecord) -> str:
    """The ratio, step by step from the model to the one that may be stated, and the bounds."""
    r = record.result.ratio
    interval = f'<span class="interval">{log10(r.low)} {DASH} {log10(r.high)}</span>'
    stated = f'<span class="interval">{log10(r.stated_low)} {DASH} {log10(r.stated_high)}</span>'
    bound = "" if r.bound_by is None else f" ({r.relation}, by the bound of {text(_rule(r.bound_by))})"
    rows = [
        ("from the model, without any calibration", log10(r.raw)),
        ("by the model\N{RIGHT SINGLE QUOTATION MARK}s own calibration", log10(r.own)),
        ("calibrated in the structure of the case, before any bound", log10(r.calibrated) + interval),
        (f"<strong>what may be said</strong>{bound}", f"<strong>{log10(r.stated)}</strong>{stated}"),
    ]
    bounds = [
        ("ELUB (empirical lower and upper bounds)", *map(log10, r.support.elub)),
        ("invariance verification", *map(log10, r.support.invariance)),
        ("<strong>used</strong>: the narrower of both", log10(r.support.lower), log10(r.support.upper)),
    ]
    sign = "+" if r.offset >= 0 else DASH
    formula = (
        f"calibrated = {number(r.scale, '{:.3f}')} \N{MULTIPLICATION SIGN} own "
        f"{sign} {number(abs(r.offset) / LN10, '{:.3f}')}"
    )
    words = (
        f"Below a value stands its {100 * r.confidence:.3g} % interval over speakers. For it the speakers of the "
        f"population were resampled {record.result.n_resamples:,} times, and the calibration was made anew each time; "
        "the interval is widened for the small number of speakers. It does not include the changes that other training "
        f"speakers of the model would bring. The calibration in the structure of the case is: {formula}, where "
        "\N{LEFT DOUBLE QUOTATION MARK}own\N{RIGHT DOUBLE QUOTATION MARK} is the value of the second line. Only the "
        "last line is for a conclusion. A value of 2 is a ratio of 100, and a value of \N{MINUS SIGN}2 is a ratio of "
        "1/100."
    )
    return (
        table(("Likelihood ratio", "log<sub>10</sub>"), rows)
        + f"{note(words)}<h3>What the validation supports</h3>"
        + table(("Bounds", "lowest log<sub>10</sub>", "highest log<sub>10</sub>"), bounds)
    )


def _rule(bound_by: str) -> str:
    return {"elub": "ELUB", "invariance": "invariance verification"}.get(bound_by, bound_by)


def _validation(v: Validation) -> str:
    """How well the procedure did on pairs of the population, with intervals."""
    bits = [("Cllr (bits; 1 is no information)", v.cllr), ("minCllr (bits)", v.min_cllr)]
    bits.append(("calibration loss (bits)", v.calibration_loss))
    rows = [(name, _estimate(estimate, "{:.3f}")) for name, estimate in bits]
    rows.append(("equal error rate", _estimate(v.eer, "{:.2f} %", 100)))
    rows.append(("devPAV (orders of magnitude)", _estimate(v.dev_pav, "{:.3f}", 1 / LN10)))
    misleading = [
        ("one speaker (ratio below 1)", v.misleading_same),
        ("two speakers (ratio above 1)", v.misleading_different),
    ]
    rows += [(f"misleading comparisons of {who}", _estimate(share, "{:.2f} %", 100)) for who, share in misleading]
    strongest = [("one speaker", v.lowest_same), ("two speakers", v.highest_different)]
    rows += [
        (f"strongest misleading ratio of {who} (log<sub>10</sub>)", _estimate(ratio, "{:.2f}", 1 / LN10))
        for who, ratio in strongest
    ]
    counts = {"speakers": v.n_speakers, "comparisons of one speaker": v.n_same}
    counts |= {"comparisons of two speakers": v.n_different, "pairs of speakers": v.n_pairs_of_speakers}
    words = (
        "Below each value stands its interval over speakers. No comparison was judged by a calibration or an "
        "adaptation that had seen one of its speakers. By the model\N{RIGHT SINGLE QUOTATION MARK}s own calibration, "
        f"Cllr would have been {number(v.own_cllr, '{:.3f}')} and the calibration loss "
        f"{number(v.own_calibration_loss, '{:.3f}')}."
    )
    return f"{facts(counts)}{table(('Metric', 'Value'), rows)}{note(words)}"


def _rests_on(result: CaseResult) -> str:
    """The shares of sessions, typicality and similarity, and how the ratio changes with its grounds."""
    sessions = [_share(share) for share in result.sessions]
    far = [("known side, from the middle of the population", result.typicality_known)]
    far.append(("questioned side, from the middle of the population", result.typicality_questioned))
    far.append(("the two sides, from each other", result.similarity))
    distances = [(name, number(d.value, "{:.2f}"), _percent(d.farther)) for name, d in far]
    changes = []
    for s in result.sensitivity:
        value = DASH if s.calibrated is None else log10(s.calibrated)
        speakers = f"{s.n_speakers:,}" if s.n_speakers else DASH
        changes.append((text(s.what, None), text(s.note, None), value, speakers))
    shares = (
        "The table shows the ratio without each session, and how much the session adds to it. Nothing can be said of a "
        "session that is the only one on its side."
    )
    similar = (
        "The model expects a distance of 1 on average. The last column is the share of comparable sides of the "
        "population that lie farther from its middle, or of its pairs of one speaker that lie farther apart. Of its "
        f"pairs of two speakers, {_percent(result.similarity_different)} lie farther apart than the two sides of the "
        "case."
    )
    changed = (
        "Each row changes one thing, and shows the calibrated ratio before any bound. For the case as it is, this "
        f"ratio is {log10(result.ratio.calibrated)}."
    )
    return (
        "<h3>Sessions</h3>"
        + table(("Session", "side", "recordings", "log<sub>10</sub> ratio without it", "its share"), sessions, 3)
        + f"{note(shares)}<h3>Typicality and similarity</h3>"
        + table(("Distance", "value", "farther"), distances)
        + f"{note(similar)}<h3>Sensitivity</h3>"
        + table(("Change", "note", "log<sub>10</sub> ratio", "speakers"), changes, 2)
        + note(changed)
    )


def _share(share: SessionShare) -> tuple[str, ...]:
    kinds = ", ".join(f"{n:,} {name}".rstrip() for name, n in share.structure.items())
    values = [DASH if value is None else log10(value) for value in (share.without, share.share)]
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
    """The measures of the recordings, beside those of the population."""
    if record.quality is None or not record.quality.measures:
        return ""
    rows = []
    for measure in record.quality.measures:
        usual = measure.population
        unlike = ", ".join(measure.unusual)
        if not usual.n:
            mark = badge("open", "not measured on the population")
        else:
            mark = badge("bad", f"unusual: {unlike}") if unlike else badge("good", "usual")
        sides = [_range(side.lowest, side.highest) for side in (measure.known, measure.questioned)]
        rows.append((text(measure.name), mark, *sides, _range(usual.usual_low, usual.usual_high)))
    head = ("Measure", "", "known", "in question", "population, 5 to 95 %")
    words = (
        "The table shows the lowest and the highest value of each side, and the range in which nine in ten recordings "
        "of the population lie."
    )
    return f"<h3>Quality of the recordings</h3>{table(head, rows, 2)}{note(words)}"


def _range(low: float, high: float) -> str:
    if math.isnan(low):
        return DASH
    first, last = (number(value, "{:.4g}") for value in (low, high))
    return first if first == last else f"{first} to {last}"


def _population(record: CaseRecord) -> str:
    """The population, why it is the relevant one, and how far the structure of the case could be matched."""
    p = record.result.population
    counts = {"speakers": p.n_speakers, "sessions": p.n_sessions, "recordings": p.n_recordings}
    counts["speakers who are compared"] = p.n_used
    rows = [
        ("known", str(record.result.known), str(p.known)),
        ("in question", str(record.result.questioned), str(p.questioned)),
    ]
    cells = [(name, text(case, None), text(drawn, None)) for name, case, drawn in rows]
    lacking = items(p.lacking) if p.lacking else note("The population can fill the whole structure of the case.")
    return (
        f"<p>{text(record.case.why, None)}</p>{facts(counts)}<h3>Structure of the comparisons</h3>"
        f"{table(('Side', 'of the case', 'drawn from the population'), cells, 3)}{lacking}"
    )


def _model(record: CaseRecord) -> str:
    """Whether the recordings are like those of the training, and to what the model was adapted."""
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
    """The command, the seed and the hashes, by which another person gets the same result."""
    result = record.result
    counts = {"version of duoplda": record.version, "seed": f"{result.seed}", "resamples": f"{result.n_resamples:,}"}
    counts |= {"weight of the calibration's prior": number(result.prior_weight, "{:.3g}")}
    return facts(counts) + "<p></p>" + repeat([record.command], record.hashes)


# -- pictures


def _pictures(result: CaseResult) -> str:
    """Tippett, ECE and PAV plots of the pairs of the validation; the first also shows the ratio of the case."""
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
    caption = "The curves show the share of comparisons that have at least the ratio on the axis. Comparisons of one "
    caption += "speaker mislead left of 0, those of two speakers right of 0."
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
    caption = "The uncertainty that is left to a person who believes the ratios, at each prior. Where a curve lies "
    caption += "above the dotted one (without ratios), the ratios would mislead."
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
    caption = "What the ratios are worth on these comparisons, by PAV, against what they say. Calibrated ratios follow "
    caption += "the dotted line."
    names = (f"{LOG10}likelihood ratio", f"{LOG10}likelihood ratio by PAV")
    return chart("PAV plot", curves, names, ((low, high), ends), caption)


# -- numbers


def _estimate(estimate: Estimate, form: str, factor: float = 1.0) -> str:
    """A value with its interval below it, or a dash where it is not a number."""
    if math.isnan(estimate.value):
        return DASH
    value, low, high = (DASH if math.isnan(v) else number(factor * v, form) for v in estimate)
    return f'{value}<span class="interval">{low.replace(" %", "")} {DASH} {high}</span>'


def _percent(share: float) -> str:
    return number(100 * share, "{:.1f} %")
