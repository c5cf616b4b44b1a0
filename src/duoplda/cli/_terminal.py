"""How commands meet the terminal: exit codes, errors, notes, progress. Light on purpose: `duoplda --help` imports it.

Exit codes: 0 done, 1 failure, 2 usage, 3 missing ids, 130 Ctrl-C. Results go to standard output or `--out`, everything
else to standard error; progress bars only where that is a terminal.
"""

import json
import math
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import typer

from duoplda.errors import DuopldaError, MissingIds, OptionsError, printable

FAILURE = 1
USAGE = 2
MISSING_IDS = 3
INTERRUPTED = 130
EXTRAS = (
    "matplotlib",
    "rich",
    "torch",
    "pandas",
    "h5py",
    "pyarrow",
    "sqlalchemy",
    "psycopg",
    "fastapi",
    "pydantic",
    "uvicorn",
    "prometheus_client",
)  # libraries that only extras install

Show = Callable[[int | None, str], None]


@contextmanager
def progress_bar(doing: str | None) -> Iterator[Show]:
    """Give the block what shows its progress: a bar, where standard error is a terminal and there is something to say.

    It takes how much is done, if that is known, and a message.
    """
    if doing is None or not sys.stderr.isatty():
        yield lambda done, message: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None, note="")
        yield lambda done, message: bar.update(task, completed=done, note=message)


@contextmanager
def standard_streams() -> Iterator[None]:
    """Open what is closed of standard input, output and error (`2>&-`).

    Otherwise the next file that is opened would take the number of a closed stream, and get what others print. Notes
    and errors go nowhere then; to print a result to a closed output is an error, and so is a list from a closed input.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest number that is free, which is this one. Output is opened for reading alone: whoever
            # writes to it gets the error of a closed stream.
            os.open(os.devnull, os.O_RDONLY if name == "stdout" else os.O_WRONLY)
            if name != "stdin":  # None says that it is closed
                setattr(sys, name, open(number, "w"))  # noqa: SIM115
    try:
        with printing():  # the help and the version; commands see to theirs
            yield
    except typer.Exit as end:
        sys.exit(end.exit_code)


# -- results


@contextmanager
def printing() -> Iterator[None]:
    """End the command where the block cannot print to standard output: it is closed, or a disk is full."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # the reader has gone, as `head` does: nothing needs to be said
            _print_line("error", f"standard output: {error.strerror}")
        # Python would try to write what is left at its end, and fail with 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILURE) from None


def result(message: str) -> None:
    """Print a result on standard output."""
    with printing():
        print(printable(message, keep="\n\t"))


def result_json(value: object) -> None:
    """Print a result as JSON on standard output; NumPy numbers and arrays are taken, NaN becomes null."""
    result(json.dumps(_as_json(value), indent=1))


def _as_json(value: Any) -> Any:
    """Numbers, lists and dictionaries that JSON knows."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(name): _as_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def table(rows: list[list[str]]) -> str:
    """Lines of a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def command_line() -> str:
    """What was typed, quoted so that it can be pasted."""
    return shlex.join(["duoplda", *sys.argv[1:]])


# -- errors


def fail(message: object, code: int = FAILURE) -> NoReturn:
    """Print `duoplda: error: ...` on standard error, and end the command."""
    _print_line("error", message)
    raise typer.Exit(code)


def print_note(message: str, keep: str = "\n") -> None:
    """Print to standard error; where that cannot be written, the work counts, and not what is said about it."""
    with suppress(OSError):
        print(printable(message, keep=keep), file=sys.stderr, flush=True)


def _print_line(kind: str, message: object) -> None:
    print_note(f"duoplda: {kind}: {' '.join(str(message).split())}", keep="")


@contextmanager
def errors_in_one_line(flags: Mapping[str, str]) -> Iterator[None]:
    """Make each error of the block one line and an exit code, and each warning one line.

    In their messages names of options stand in backticks; they are shown as they are typed, which `flags` tell.
    """

    def shown(message: object) -> str:
        return re.sub(r"`(\w+)`", lambda match: flags.get(match[1], match[0]), str(message))

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda message, *_: _print_line("warning", shown(message))
            yield
    except OptionsError as error:
        fail(f"{shown(error)} (--help shows how)", USAGE)
    except DuopldaError as error:
        fail(shown(error), MISSING_IDS if isinstance(error, MissingIds) else FAILURE)
    except KeyboardInterrupt:
        fail("interrupted", INTERRUPTED)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else error)
    except MemoryError as error:
        fail(f"not enough memory: {error}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in EXTRAS:
            raise
        fail(f"{error}; install it with: pip install 'duoplda[cli,files,plots,voices,serve]'")
