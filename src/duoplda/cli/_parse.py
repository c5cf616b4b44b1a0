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


def share(text: str) -> float:
    """A number of things (30), or a fraction of them (0.25)."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        usage(f"{text!r} must be a whole number (30) or a fraction (0.25)")


def numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    """Numbers with commas between them, if any are given."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        usage(f"{option} {text!r} must be numbers, several with commas: 0.5,0.2")


def words(text: str) -> tuple[str, ...]:
    """Words with commas between them."""
    return tuple(part.strip() for part in text.split(","))


def columns(text: str) -> dict[str, str]:
    """The names of columns by what they mean: session=call_id,speaker=who."""
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(meaning and name for meaning, _, name in pairs):
        usage(f"--columns {text!r} must be meanings and names, several with commas: session=call_id,speaker=who")
    return {meaning.strip(): name.strip() for meaning, _, name in pairs}


def metadata(text: str) -> dict[str, str]:
    """Names and texts: framework=wespeaker,sample_rate=16000."""
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name.strip() and value.strip() for name, _, value in pairs):
        usage(f"--metadata {text!r} must be names and texts, several with commas: framework=wespeaker,output_dim=192")
    return {name.strip(): value.strip() for name, _, value in pairs}


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
