"""Texts of options that stand for numbers, several numbers, or a word."""

import re
from collections.abc import Mapping

from duoplda.cli._terminal import usage


def number_or_word(option: str, text: str | None, words: Mapping[str, str | None], least: int = 0) -> int | str | None:
    """A whole number, or what a word stands for; None if nothing is given."""
    if text is None or text in words:
        return None if text is None else words[text]
    if not text.isdecimal() or int(text) < least:
        usage(f"{option} {text!r} must be {' or '.join([f'a whole number from {least} on', *words])}")
    return int(text)


def numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    """Numbers with commas between them, if any are given."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        usage(f"{option} {text!r} must be numbers, several with commas: 0.5,0.2")


def shrinkages(text: str) -> str | float | tuple[float, ...] | None:
    """None, "auto", one number or several."""
    if text in ("none", "auto"):
        return None if text == "none" else text
    amounts = numbers("--shrinkage", text) or ()
    if len(amounts) not in (1, 3, 4) or not all(0 <= amount <= 1 for amount in amounts):
        usage(f"--shrinkage {text!r} must be none, auto, or one or three numbers from 0 to 1: a,b,c")
    return amounts[0] if len(amounts) == 1 else amounts


def probabilities(option: str, text: str) -> tuple[float, ...]:
    """Numbers between 0 and 1."""
    values = numbers(option, text) or ()
    if not all(0 < p < 1 for p in values):
        usage(f"{option} {text!r} must be probabilities between 0 and 1, several with commas: 0.5,0.01")
    return values


def enrolments(text: str | None) -> tuple[tuple[int, int | None], ...] | None:
    """Forms of enrolment, such as 1x1,3xall: sessions x recordings of each."""
    if text is None:
        return None
    forms = [re.fullmatch(r"([1-9]\d*)x([1-9]\d*|all)", part) for part in text.split(",")]
    if not all(forms):
        usage(f"--enrolment {text!r} must be sessions x recordings, several with commas: 1x1,3x3,3xall")
    return tuple((int(form[1]), None if form[2] == "all" else int(form[2])) for form in forms if form)
