"""Reading options that are typed as one text: several numbers, a number or a word, names with values.

Each function raises a `ValueError` for a text that it cannot read; `Option.must_be` says what may be typed.
"""

from __future__ import annotations

import re
from functools import partial


def number_or_word(text: str, words: dict[str, str | None], least: int) -> int | str | None:
    """A whole number, or what a word stands for."""
    if text in words:
        return words[text]
    if not text.isdecimal() or int(text) < least:
        raise ValueError
    return int(text)


rank = partial(number_or_word, words={"full": None, "auto": "auto"}, least=0)
count = partial(number_or_word, words={"auto": "auto"}, least=1)


def share(text: str) -> float:
    """A number of speakers (30), or a fraction of all (0.25): only a fraction has a point."""
    return int(text) if text.isdecimal() else float(text)


def numbers(text: str) -> tuple[float, ...]:
    """Numbers with commas between them."""
    return tuple(float(part) for part in text.split(","))


def words(text: str) -> tuple[str, ...]:
    """Words with commas between them."""
    return tuple(part.strip() for part in text.split(","))


def pairs(text: str) -> dict[str, str]:
    """Names and what they stand for: session=call_id,speaker=who."""
    parts = [part.partition("=") for part in text.split(",")]
    named = {name.strip(): value.strip() for name, _, value in parts}
    if not all(named) or not all(named.values()):
        raise ValueError
    return named


def shrinkage(text: str) -> str | float | tuple[float, ...] | None:
    """None, "auto", one number or several."""
    if text in ("none", "auto"):
        return None if text == "none" else text
    amounts = numbers(text)
    if len(amounts) not in (1, 3, 4) or not all(0 <= amount <= 1 for amount in amounts):
        raise ValueError
    return amounts[0] if len(amounts) == 1 else amounts


def probabilities(text: str) -> tuple[float, ...]:
    """Numbers between 0 and 1."""
    values = numbers(text)
    if not all(0 < value < 1 for value in values):
        raise ValueError
    return values


def enrolments(text: str) -> tuple[tuple[int, int | None], ...]:
    """Forms of enrolment, such as 1x1,3xall: sessions x recordings of each."""
    forms = [re.fullmatch(r"([1-9]\d*)x([1-9]\d*|all)", part) for part in text.split(",")]
    if not all(forms):
        raise ValueError
    return tuple((int(form[1]), None if form[2] == "all" else int(form[2])) for form in forms if form)
