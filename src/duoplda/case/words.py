"""The result of a case in words that can be read out, and the sentences that must not be said.

The words have no number that the validation does not support: beyond a bound they are "at least" and the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from duoplda.case.file import CaseFile
from duoplda.case.result import CaseResult, Ratio

ENFSI = "ENFSI Guideline for Evaluative Reporting in Forensic Science (2015), the example of a verbal scale"
APOSTROPHE = "\N{RIGHT SINGLE QUOTATION MARK}"
# The smallest ratio to which the guideline gives each phrase; below the first there is none.
ENFSI_SUPPORT = (
    (2, "weak support"),
    (10, "moderate support"),
    (100, "moderately strong support"),
    (1_000, "strong support"),
    (10_000, "very strong support"),
    (1_000_000, "extremely strong support"),
)


@dataclass(frozen=True)
class Forbidden:
    """A sentence that must not be said in court, and why it is wrong.

    >>> Forbidden("He spoke.", "No ratio says that.").why
    'No ratio says that.'
    """

    sentence: str
    why: str


@dataclass(frozen=True)
class Words:
    """The result of a case in words.

    Attributes
    ----------
    strength : how many times as probable the findings are under the favoured proposition: "at least 240", "about 3.1";
        "1" where neither proposition is favoured
    favours : "first", "second" or "neither"
    sentence : the sentence to be read out, with both propositions
    interval : a sentence on the interval of the ratio
    verbal : the equivalent of a verbal scale with its source; None if the case file names no scale
    posterior : a sentence on the probability that follows from the prior of the case file; None if it has no prior
    forbidden : sentences that must not be said

    >>> words = Words("about 3.1", "first", "What was measured ...", "The 95 % interval ...", None, None, ())
    >>> words.strength
    'about 3.1'
    """

    strength: str
    favours: str
    sentence: str
    interval: str
    verbal: str | None
    posterior: str | None
    forbidden: tuple[Forbidden, ...]


def in_words(case: CaseFile, result: CaseResult) -> Words:
    """Put the result of a case into words.

    The sentences say how strongly the findings support one proposition over the other. They do not say how probable a
    proposition is, unless the case file has a prior.

    >>> import tempfile
    >>> from types import SimpleNamespace
    >>> from duoplda.case import Ratio, Support, read_case, write_example
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     case = read_case(write_example(folder))
    >>> bounds = Support((-4.0, 5.0), (-4.0, 5.0), -4.0, 5.0)
    >>> ratio = Ratio(9.0, 8.0, 6.5, 5.8, 7.4, 0.95, 0.8, 0.1, 5.0, "at least", "elub", 5.0, 5.0, bounds)
    >>> words = in_words(case, SimpleNamespace(ratio=ratio))  # only the ratio of a `CaseResult` is read
    >>> words.strength, words.favours
    ('at least 140', 'first')
    """
    ratio = result.ratio
    favours = _favours(ratio)
    strength = _strength(ratio)
    return Words(
        strength=strength,
        favours=favours,
        sentence=_sentence(case, favours, strength),
        interval=_interval(ratio),
        verbal=verbal_equivalent(ratio) if case.scale == "ENFSI" else None,
        posterior=None if case.prior is None else _posterior(ratio, case.prior),
        forbidden=tuple(_forbidden(case, ratio, favours)),
    )


def times(nats: float, down: bool = False) -> str:
    """Return a ratio or its inverse, whichever is larger, with two digits; a bound is rounded down.

    >>> times(math.log(243.7)), times(-math.log(3.14)), times(math.log(249), down=True), times(math.log(12_345))
    ('240', '3.1', '240', '12,000')
    """
    value = math.exp(min(abs(nats), 700.0))
    unit = 10.0 ** (math.floor(math.log10(value) + 1e-12) - 1)
    number = value / unit
    rounded = (math.floor(number + 1e-9) if down else round(number)) * unit
    return f"{rounded:.1f}" if rounded < 9.95 else f"{rounded:,.0f}"


def ratio_text(nats: float, down: bool = False) -> str:
    """Return a ratio as people write it: 240, or 1/31 where it is below 1.

    >>> ratio_text(math.log(240)), ratio_text(-math.log(31))
    ('240', '1/31')
    """
    text = times(nats, down)
    if text == "1.0":
        return "1"
    return text if nats >= 0 else f"1/{text}"


def verbal_equivalent(ratio: Ratio) -> str:
    """Return the words that ENFSI's guideline has for a stated ratio, with their source.

    Between 1/2 and 2 it has none: the findings then support neither proposition over the other.
    """
    value = math.exp(min(abs(ratio.stated), 700.0))
    words = [text for least, text in ENFSI_SUPPORT if value >= least * (1 - 1e-12)]
    if not words:
        return f"The findings do not support one of the propositions over the other ({ENFSI})."
    which, other = ("first", "second") if ratio.stated > 0 else ("second", "first")
    least = "at least " if ratio.relation != "about" and words[-1] != ENFSI_SUPPORT[-1][1] else ""
    support = f"{least}{words[-1]} for the {which} proposition relative to the {other} one"
    return f"The findings provide {support} ({ENFSI})."


def _favours(ratio: Ratio) -> str:
    """The proposition that the stated ratio supports; "neither" where it rounds to 1."""
    if times(ratio.stated, down=ratio.relation != "about") == "1.0":
        return "neither"
    return "first" if ratio.stated > 0 else "second"


def _strength(ratio: Ratio) -> str:
    """How many times as probable the findings are, with "about" or "at least"."""
    bound = ratio.relation != "about"
    if _favours(ratio) == "neither":
        return "1"
    return f"{'at least' if bound else 'about'} {times(ratio.stated, down=bound)}"


def _sentence(case: CaseFile, favours: str, strength: str) -> str:
    """The sentence to be read out."""
    propositions = f"The first proposition is: {_quoted(case.same)} The second is: {_quoted(case.different)}"
    if favours == "neither":
        what = "What was measured on these recordings is about as probable if the first proposition is true as if the "
        return f"{what}second one is. {propositions}"
    other = "second" if favours == "first" else "first"
    what = f"What was measured on these recordings is {strength} times as probable if the {favours} proposition is"
    return f"{what} true as if the {other} one is. {propositions}"


def _quoted(text: str) -> str:
    end = "" if text.endswith((".", "!", "?")) else "."
    return f"\N{LEFT DOUBLE QUOTATION MARK}{text}{end}\N{RIGHT DOUBLE QUOTATION MARK}"


def _interval(ratio: Ratio) -> str:
    """A sentence on the interval within the bounds, and on whether it contains 1."""
    lower, upper = ratio.support.lower, ratio.support.upper
    text = f"The {100 * ratio.confidence:.3g} % interval over the speakers of the population"
    if ratio.low >= upper or ratio.high <= lower:
        bound = upper if ratio.low >= upper else lower
        words = "at least" if ratio.low >= upper else "at most"
        beyond = "lies beyond the bounds of what their comparisons support, as the ratio does"
        return f"{text} {beyond}: it is {words} {ratio_text(bound, down=True)}."
    low = _end(ratio.stated_low, "at most", ratio.low < lower)
    high = _end(ratio.stated_high, "at least", ratio.high > upper)
    text = f"{text} is {low} to {high}"
    if ratio.stated_low < 0 < ratio.stated_high:
        return f"{text}, so it leaves open which of the propositions these recordings support."
    if ratio.stated_low < 0:
        return f"{text}. A ratio of 1/n means that the findings are n times as probable under the second proposition."
    return f"{text}."


def _end(nats: float, bound: str, binds: bool) -> str:
    """One end of the interval, with "at most" or "at least" where it is a bound."""
    text = ratio_text(nats, down=binds)
    return f"{bound} {text}" if binds and text != "1" else text


def _posterior(ratio: Ratio, prior: float) -> str:
    """A sentence on the probability that follows from the prior of the case file."""
    log_odds = math.log(prior) - math.log1p(-prior) + ratio.stated
    probability = 1 / (1 + math.exp(-log_odds)) if log_odds > -700 else 0.0
    how = "" if ratio.relation == "about" else f"{ratio.relation} "
    before = f"If the probability of the first proposition was {_percent(prior)} before these recordings were compared"
    after = f"it is {how}{_percent(probability)} afterwards"
    return f"{before}, as the case file says, {after}. Another prior gives another probability."


def _percent(probability: float) -> str:
    """A probability in per cent, with enough digits to tell it from 0 and from 1.

    >>> _percent(0.5), _percent(0.012), _percent(0.99994), _percent(2e-7)
    ('50 %', '1.2 %', '99.9940 %', '0.000020 %')
    """
    near = max(min(probability, 1 - probability), 1e-15)
    digits = max(0, 1 - math.floor(math.log10(100 * near) + 1e-12))
    return f"{100 * probability:.{digits}f} %"


def _forbidden(case: CaseFile, ratio: Ratio, favours: str) -> Iterator[Forbidden]:
    """Sentences that are often said about a ratio, and are wrong."""
    n = times(ratio.stated, down=ratio.relation != "about") if favours != "neither" else "100"
    fallacy = "takes the probability of the findings for that of the proposition. How probable it is that a certain "
    fallacy += "person spoke also depends on everything else in the case."
    if favours == "second":
        sentence = f"It is {n} times as likely that somebody else spoke as that {case.speaker} did."
        yield Forbidden(sentence, f"It {fallacy}")
        sentence = f"{case.speaker} is excluded."
        yield Forbidden(sentence, "A ratio excludes nobody: one person can sound different on different days.")
    else:
        sentence = f"It is {n} times as likely that {case.speaker} spoke as that somebody else did."
        yield Forbidden(sentence, f"This is the prosecutor{APOSTROPHE}s fallacy: it {fallacy}")
        sentence = f"The probability that somebody else spoke is 1 in {n}."
        yield Forbidden(sentence, "This is the same fallacy in other words.")
        sentence = f"The questioned speaker is {case.speaker}."
        yield Forbidden(sentence, "A ratio identifies nobody. The decision is for the court.")
        sentence = f"One person in {n} has such a voice."
        yield Forbidden(
            sentence, "The ratio compares two probabilities of what was measured. It does not count people."
        )
        sentence = "Many people in a large city would fit as well, so this is worth nothing."
        why = (
            f"This is the defence{APOSTROPHE}s fallacy: whatever the odds were before, the findings multiply them by "
            "the ratio."
        )
        yield Forbidden(sentence, why)
    if ratio.relation != "about":
        sentence = f"The true ratio is far {'larger' if ratio.calibrated > 0 else 'smaller'} than that."
        yield Forbidden(sentence, "Nothing was tested beyond the bound, so nothing is known about ratios there.")
    sentence = "Another system has found a ratio of its own, so the two can be multiplied."
    yield Forbidden(sentence, "Both ratios rest on the same recordings, so they are not independent.")
