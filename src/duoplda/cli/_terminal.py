"""Commands and the terminal: exit codes, errors, notes, progress. `duoplda --help` imports it, so it imports little.

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
    """Give the block a function that shows its progress as a bar, if `doing` names the work and there is a terminal.

    The function takes how much is done, if that is known, and a message.
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
    """Open those of standard input, output and error that are closed (`2>&-`).

    Otherwise the next file that is opened would get the number of a closed stream, and what is printed would end up in
    it. With a closed standard error, notes and errors are not shown. It is an error to print a result to a closed
    output, or to read a list from a closed input.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The file gets the lowest free number, which is that of the stream. Output is opened only for reading, so
            # that writing to it is an error, as for a closed stream.
            os.open(os.devnull, os.O_RDONLY if name == "stdout" else os.O_WRONLY)
            if name != "stdin":  # `sys.stdin` stays None, by which readers see that it is closed
                setattr(sys, name, open(number, "w"))  # noqa: SIM115
    try:
        with printing():  # for the help and the version; commands print by `result`
            yield
    except typer.Exit as end:
        sys.exit(end.exit_code)


# -- results


@contextmanager
def printing() -> Iterator[None]:
    """End the command if the block cannot print to standard output, which is closed or on a full disk."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # a reader such as `head` that has ended is no error
            _print_line("error", f"standard output: {error.strerror}")
        # Otherwise Python would try to write the rest at its end, and fail with exit code 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILURE) from None


def result(message: str) -> None:
    """Print a result on standard output."""
    with printing():
        print(printable(message, keep="\n\t"))


def result_json(value: object) -> None:
    """Print a result as JSON on standard output; numbers and arrays of NumPy are converted, NaN becomes null."""
    result(json.dumps(_as_json(value), indent=1))


def _as_json(value: Any) -> Any:
    """A value in types that JSON has."""
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
    """The lines of a table, with the first column aligned left and the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def command_line() -> str:
    """The command line that was typed, quoted so that it can be pasted."""
    return shlex.join(["duoplda", *sys.argv[1:]])


# -- errors


def fail(message: object, code: int = FAILURE) -> NoReturn:
    """Print `duoplda: error: ...` on standard error, and end the command."""
    _print_line("error", message)
    raise typer.Exit(code)


def print_note(message: str, keep: str = "\n") -> None:
    """Print to standard error; if that fails, the command goes on, as its result does not depend on a message."""
    with suppress(OSError):
        print(printable(message, keep=keep), file=sys.stderr, flush=True)


def _print_line(kind: str, message: object) -> None:
    print_note(f"duoplda: {kind}: {' '.join(str(message).split())}", keep="")


@contextmanager
def errors_in_one_line(flags: Mapping[str, str]) -> Iterator[None]:
    """Show each error of the block as one line and an exit code, and each warning as one line.

    In messages, names of parameters stand in backticks; `flags` says how these options are typed.
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
