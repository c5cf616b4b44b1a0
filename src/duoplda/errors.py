"""Errors that report a user's mistake, a warning, and functions that make text from the user safe for messages."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

# Control characters (C0, DEL, C1), marks that turn the direction of writing, line separators and lone surrogates: in
# a message, they could hide or reorder text on a terminal, break the line, or not be written at all.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class DuopldaError(ValueError):
    """Wrong input: the message names the rows or the place, the cause and the remedy.

    It is a `ValueError`, as scikit-learn's conventions ask. The command line prints its message
    without a traceback.

    >>> from duoplda import PLDA
    >>> try:
    ...     PLDA.posterior_probability(1.0, prior=2)
    ... except DuopldaError as error:
    ...     print(error)
    prior=2 must lie between 0 and 1
    """


class MissingIds(DuopldaError):
    """Ids that one file names and another does not have: exit code 3 of the command line."""


class OptionsError(DuopldaError):
    """Options that do not go together: exit code 2 of the command line.

    The message puts the names of options in backticks. The command line shows them as they are typed there: `top`
    becomes --top.
    """


class DomainWarning(UserWarning):
    """Recordings are far from those that a model was trained on: likelihood ratios of them may mislead.

    >>> import warnings
    >>> with warnings.catch_warnings():  # to score without it, after a look at what it says
    ...     warnings.simplefilter("ignore", DomainWarning)
    ...     warnings.warn("far away", DomainWarning)
    """


def printable(text: object, keep: str = "") -> str:
    r"""Return a text whose unprintable characters are written as escapes, so that it cannot control a terminal.

    Parameters
    ----------
    text : an object of any type, which is converted by `str`
    keep : characters that are not escaped, such as "\n" where several lines are wanted

    Example
    -------
    >>> printable("a\x1b[31mb\u202ec")
    'a\\x1b[31mb\\u202ec'
    """
    return UNPRINTABLE.sub(lambda match: match[0] if match[0] in keep else ascii(match[0])[1:-1], str(text))


def some(items: Iterable[object], most: int = 10) -> str:
    """Return the first items as one line for a message, with the number of all of them if some are left out."""
    items = list(items)
    # Scalars of NumPy are shown as those of Python: 3, not np.int64(3).
    text = ", ".join(printable(repr(i.item() if hasattr(i, "item") else i)) for i in items[:most])
    return text + (f", ... ({len(items)} in all)" if len(items) > most else "")


@contextmanager
def error_prefix(name: str) -> Iterator[None]:
    """Put a name, such as that of a file, in front of the message of any DuopldaError that the block raises.

    >>> with error_prefix("file a"):
    ...     raise DuopldaError("is empty")
    Traceback (most recent call last):
    duoplda.errors.DuopldaError: file a: is empty
    """
    try:
        yield
    except DuopldaError as error:
        raise type(error)(f"{name}: {error}") from None
