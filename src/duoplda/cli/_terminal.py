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
from contextlib import contextmanager
from enum import Enum
from typing import Any, NoReturn, TypeVar

import typer

from duoplda.errors import DuopldaError, MissingIds, OptionsError, printable

FAILURE = 1
USAGE = 2
MISSING_IDS = 3
INTERRUPTED = 130
EXTRAS = ("matplotlib", "rich", "torch", "pandas", "h5py", "pyarrow")  # libraries that only extras install

Command = TypeVar("Command", bound=Callable[..., Any])


class Terminal:
    """What a command tells people on standard error: notes, and how far it is."""

    def __init__(self, quiet: bool, bar: Callable[..., None] | None = None):
        self.quiet = quiet
        self.bar = bar

    def note(self, message: str) -> None:
        """Print a note, unless the command is to be quiet."""
        if not self.quiet:
            print(printable(message, keep="\n"), file=sys.stderr, flush=True)

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


# -- results


def result(message: str) -> None:
    """Print a result on standard output."""
    print(printable(message, keep="\n\t"), flush=True)


def result_json(value: object) -> None:
    """Print a result as JSON on standard output; NumPy numbers and arrays are taken, NaN becomes null."""
    print(json.dumps(_as_json(value), indent=1), flush=True)


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
    print(f"duoplda: {kind}: {printable(' '.join(str(message).split()))}", file=sys.stderr, flush=True)


def guarded(command: Command) -> Command:
    """Make each error of a command one line and an exit code, and each warning one line."""
    names = _option_names(command)

    def typed(message: object) -> str:
        """A message in which names of options stand in backticks, with the options as they are typed."""
        return re.sub(r"`(\w+)`", lambda match: names.get(match[1], match[0]), str(message))

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
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
        except BrokenPipeError:  # the reader of standard output has gone, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(FAILURE) from None
        except OSError as error:
            fail(f"{error.filename}: {error.strerror}" if error.filename else error)
        except MemoryError as error:
            fail(f"not enough memory: {error}")
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] not in EXTRAS:
                raise
            fail(f"{error}; install it with: pip install 'duoplda[cli,files,plots]'")

    return run  # type: ignore[return-value]


def _option_names(command: Callable[..., Any]) -> dict[str, str]:
    """How each parameter of a command is typed: {"cohort_top": "--cohort-top", "source": "--from", ...}."""
    names = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        (info,) = getattr(parameter.annotation, "__metadata__", (None,))
        declared = [text for text in getattr(info, "param_decls", None) or () if text.startswith("--")]
        names[name] = declared[0] if declared else "--" + name.replace("_", "-")
    return names
