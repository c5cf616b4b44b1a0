"""What a user's mistake raises."""


class DuopldaError(ValueError):
    """Wrong input: the message names the rows or the place, the cause and the remedy.

    It is a `ValueError`, as scikit-learn's conventions ask. The command line prints its message
    without a traceback.
    """


class MissingIds(DuopldaError):
    """Ids that one file names and another does not have: exit code 3 of the command line."""
