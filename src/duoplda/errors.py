"""What a user's mistake raises, and how messages name what they are about."""

from typing import Any


class DuopldaError(ValueError):
    """Wrong input: the message names the rows or the place, the cause and the remedy.

    It is a `ValueError`, as scikit-learn's conventions ask. The command line prints its message
    without a traceback.
    """


class MissingIds(DuopldaError):
    """Ids that one file names and another does not have: exit code 3 of the command line."""


def some(items: Any, most: int = 10) -> str:
    """The first few of many, for a message."""
    items = list(items)
    text = ", ".join(repr(i.item() if hasattr(i, "item") else i) for i in items[:most])
    return text + (f", ... ({len(items)} in all)" if len(items) > most else "")
