"""How commands meet the terminal: exit codes, errors, notes, progress. Light on purpose: `duoplda --help` imports it.

Exit codes: 0 done, 1 failure, 2 usage, 3 missing ids, 130 Ctrl-C. Results go to standard output or `--out`, everything
else to standard error; progress bars only where that is a terminal.
"""

import functools
import inspect
import json
import math
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

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

Command = TypeVar("Command", bound=Callable[..., Any])


class Terminal:
    """What a command tells people on standard error: notes, and how far it is."""

    def __init__(self, quiet: bool, bar: Callable[..., None] | None = None):
        self.quiet = quiet
        self.bar = bar

    def note(self, message: str) -> None:
        """Print a note, unless the command is to be quiet."""
        if not self.quiet:
            _tell(message, keep="\n")

    def show(self, done: int | None, message: str) -> None:
        """Show progress where there is a bar."""
        if self.bar is not None:
            self.bar(completed=done, note=message)


@contextmanager
def terminal(description: str, quiet: bool) -> Iterator[Terminal]:
    """Give the block a terminal, with a progress bar if standard error is one and the command need not be quiet."""
    if quiet or not sys.stderr.isatty():
        yield Terminal(quiet)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=None, note="")
        yield Terminal(quiet, functools.partial(bar.update, task))


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


def work_options(typed: Mapping[str, Any]) -> dict[str, Any]:
    """Of the options of a command (`locals()` at its beginning) those that were given and are not about printing.

    A workflow takes them under the same names.
    """
    work = {name: value for name, value in typed.items() if value is not None and name not in ("quiet", "json")}
    return {name: value.value if isinstance(value, Enum) else value for name, value in work.items()}


def command_line() -> str:
    """What was typed, quoted so that it can be pasted."""
    return shlex.join(["duoplda", *sys.argv[1:]])


# -- errors


def fail(message: object, code: int = FAILURE) -> NoReturn:
    """Print `duoplda: error: ...` on standard error, and end the command."""
    _print_line("error", message)
    raise typer.Exit(code)


def usage(message: str) -> NoReturn:
    """End the command because of its options."""
    fail(f"{message} (--help shows how)", USAGE)


def _print_line(kind: str, message: object) -> None:
    _tell(f"duoplda: {kind}: {' '.join(str(message).split())}")


def _tell(message: str, keep: str = "") -> None:
    """Print to standard error; where that cannot be written, the work counts, and not what is said about it."""
    with suppress(OSError):
        print(printable(message, keep=keep), file=sys.stderr, flush=True)


def guarded(command: Command) -> Command:
    """Make each error of a command one line and an exit code, and each warning one line."""
    names = _option_names(command)

    def typed(message: object) -> str:
        """A message in which names of options stand in backticks, with the options as they are typed."""
        return re.sub(r"`(\w+)`", lambda match: names.get(match[1], match[0]), str(message))

    def refuse_second(options: Mapping[str, Any]) -> None:
        """Refuse a second option that reads standard input or the same pipe, which can be read once."""
        first: dict[str, str] = {}
        for name, value in options.items():
            for path in value if isinstance(value, list) else [value]:
                if isinstance(path, str | Path) and (str(path) == "-" or Path(path).is_fifo()):
                    if str(path) in first:
                        usage(f"{first[str(path)]} and {names[name]} cannot both read {path}: write one to a file")
                    first[str(path)] = names[name]

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        refuse_second(kwargs)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", UserWarning)
                warnings.showwarning = lambda message, *_: _print_line("warning", typed(message))
                return command(*args, **kwargs)
        except OptionsError as error:
            usage(typed(error))
        except DuopldaError as error:
            fail(typed(error), MISSING_IDS if isinstance(error, MissingIds) else FAILURE)
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

    return run  # type: ignore[return-value]


def _option_names(command: Callable[..., Any]) -> dict[str, str]:
    """How each parameter of a command is typed: {"cohort_top": "--cohort-top", "source": "--from", ...}."""
    names = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        (info,) = getattr(parameter.annotation, "__metadata__", (None,))
        declared = [text for text in getattr(info, "param_decls", None) or () if text.startswith("--")]
        names[name] = declared[0] if declared else "--" + name.replace("_", "-")
    return names
