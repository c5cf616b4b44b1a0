"""What every command shares: exit codes, messages, progress. Light on purpose: `duoplda --help` imports it.

Exit codes: 0 done, 1 failure, 2 usage, 3 missing ids, 130 Ctrl-C. Results go to standard output or `--out`, everything
else to standard error; progress bars only where that is a terminal.
"""

import ctypes
import functools
import hashlib
import json
import math
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from duoplda.errors import DuopldaError, MissingIds, printable

FAILURE = 1
USAGE = 2
MISSING = 3
INTERRUPTED = 130
OPTIONAL = ("matplotlib", "rich", "torch", "pandas", "h5py", "pyarrow")  # what an extra installs
F = TypeVar("F", bound=Callable[..., Any])

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No notes and no progress; warnings and errors stay.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]
Json = Annotated[bool, typer.Option("--json", help="The result as JSON on standard output.")]
AllowMissing = Annotated[bool, typer.Option("--allow-missing", help="Go on without missing ids, and count them.")]

_state: dict[str, Any] = {"quiet": False, "arguments": None}


def say(message: str) -> None:
    """Print a note for people on standard error, unless `--quiet`."""
    if not _state["quiet"]:
        print(printable(message, keep="\n"), file=sys.stderr, flush=True)


def warn(message: object) -> None:
    """Print one line on standard error, with `--quiet` too."""
    print(f"duoplda: warning: {printable(' '.join(str(message).split()))}", file=sys.stderr, flush=True)


def result(message: str) -> None:
    """Print a result on standard output."""
    print(printable(message, keep="\n\t"), flush=True)


def result_json(value: Any) -> None:
    """A result as JSON, on standard output; NumPy numbers and arrays are taken, NaN becomes null."""
    print(json.dumps(plain(value), indent=1), flush=True)


def plain(value: Any) -> Any:
    """Numbers, lists and dictionaries that JSON knows."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def fail(message: object, code: int = FAILURE) -> NoReturn:
    """Print `duoplda: error: ...` on standard error, and end the command."""
    print(f"duoplda: error: {printable(' '.join(str(message).split()))}", file=sys.stderr, flush=True)
    raise typer.Exit(code)


def usage(message: str) -> NoReturn:
    """End the command because of options that do not go together."""
    fail(f"{message} (--help shows how)", USAGE)


def guarded(command: F) -> F:
    """Make each error of a command one line and an exit code, and each warning one line."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        _state["quiet"] = bool(kwargs.get("quiet", False))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", UserWarning)
                warnings.showwarning = lambda message, *_: warn(message)
                return command(*args, **kwargs)
        except DuopldaError as error:
            fail(error, MISSING if isinstance(error, MissingIds) else FAILURE)
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
            if error.name is None or error.name.partition(".")[0] not in OPTIONAL:
                raise
            fail(f"{error}; install it with: pip install 'duoplda[cli,files,plots]'")

    return run  # type: ignore[return-value]


def missing(what: str, ids: Iterable[Any], allow: bool) -> None:
    """Fail with code 3 for ids that are not there (count, first ten), or count them where that is allowed."""
    ids = [str(i) for i in ids]
    if not ids:
        return
    shown = ", ".join(ids[:10]) + (", ..." if len(ids) > 10 else "")
    if not allow:
        raise MissingIds(f"{len(ids)} {what}: {shown} (--allow-missing goes on without them)")
    say(f"{len(ids)} {what}, left out: {shown}")


def files_hash(paths: Iterable[str | os.PathLike[str] | None]) -> dict[str, str]:
    """SHA-256 of each file, read in pieces."""
    out = {}
    for path in paths:
        if path is not None:
            with open(path, "rb") as file:
                out[os.fspath(path)] = hashlib.file_digest(file, "sha256").hexdigest()
    return out


def command_line() -> str:
    """What was typed, quoted so that it can be pasted."""
    return shlex.join(["duoplda", *(_state["arguments"] or sys.argv[1:])])


def run(app: Any, arguments: list[str]) -> None:
    """Run a command as if it had been typed; the errors it raises come out."""
    before = dict(_state)
    _state["arguments"] = arguments
    try:
        code = app(arguments, prog_name="duoplda", standalone_mode=False)
    finally:
        _state.update(before)
    if isinstance(code, int) and code:
        raise typer.Exit(code)


@contextmanager
def progress(description: str) -> Iterator[Callable[..., None]]:
    """A bar on a terminal: call what is given with `(done, note)`; elsewhere it does nothing."""
    if _state["quiet"] or not sys.stderr.isatty():
        yield lambda done=None, note="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=None, note="")
        yield lambda done=None, note="": bar.update(task, completed=done, note=note)


class Watch:
    """A callback of EM that shows how far it is."""

    def __init__(self, show: Callable[..., None]):
        self.show = show

    def held_out(self, done: int, folds: int) -> None:
        self.show(None, f"held-out speakers: fold {done} of {folds}")

    def trials(self, step: int, cost: float) -> None:
        self.show(None, f"held-out trials: step {step}, cost {cost:.4f}")

    def __call__(self, iteration: int, log_likelihood: float, model: Any) -> None:
        self.show(iteration, f"iteration {iteration}: log-likelihood {log_likelihood:.6g} nats")


def number_of_factors(option: str, text: str) -> int | str | None:
    """A number, "auto", or None for full rank."""
    if text in ("full", "none"):
        return None
    if text != "auto" and not text.isdecimal():
        usage(f"{option} {text!r} must be a number, full or auto")
    return text if text == "auto" else int(text)


def _numbers(text: str) -> tuple[float, ...]:
    """Numbers with commas between them; none if one of them is no number."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        return ()


def numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    """Numbers with commas between them, if any are given."""
    if text is None:
        return None
    if not (found := _numbers(text)):
        usage(f"{option} {text!r} must be numbers, several with commas: 0.5,0.2")
    return found


def shrinkages(text: str) -> Any:
    """None, "auto", one number or several."""
    if text in ("none", "auto"):
        return None if text == "none" else text
    numbers = _numbers(text)
    if len(numbers) not in (1, 3, 4) or not all(0 <= a <= 1 for a in numbers):
        usage(f"--shrinkage {text!r} must be none, auto, or one or three numbers from 0 to 1: a,b,c")
    return numbers[0] if len(numbers) == 1 else numbers


def enrolments(text: str | None) -> tuple[tuple[int, int | None], ...] | None:
    """Forms of enrolment, such as 1x1,3xall: sessions x recordings of each."""
    if text is None:
        return None
    found = [re.fullmatch(r"([1-9]\d*)x([1-9]\d*|all)", part) for part in text.split(",")]
    if not all(found):
        usage(f"--enrolment {text!r} must be sessions x recordings, several with commas: 1x1,3x3,3xall")
    return tuple((int(m[1]), None if m[2] == "all" else int(m[2])) for m in found if m)


def probabilities(option: str, text: str) -> tuple[float, ...]:
    """Numbers between 0 and 1."""
    numbers = _numbers(text)
    if not numbers or not all(0 < p < 1 for p in numbers):
        usage(f"{option} {text!r} must be probabilities between 0 and 1, several with commas: 0.5,0.01")
    return numbers


def kinds_to_learn(text: str | None) -> int | str | None:
    """A number of kinds of channels, or "auto"."""
    if text is None or text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        usage(f"--learn-channels {text!r} must be a number from 1 on, or auto")
    return int(text)


def level_of(segments_are: str | None, chain: Any) -> str:
    """What segments are to a model, sessions or recordings: the option, or else what `train --sessions-are` kept."""
    if (given := one_of("--segments-are", segments_are, "sessions", "recordings")) is not None:
        return str(given)
    kept = chain.provenance_.get("sessions_are")
    if kept is None and chain.plda_.session_loadings_.shape[1]:
        say("segments are taken for sessions; if sessions were whole files in training: --segments-are recordings")
    return "recordings" if kept == "files" else "sessions"


def one_of(option: str, text: str | None, *allowed: str) -> str | None:
    """A word of a few."""
    if text is not None and text not in allowed:
        usage(f"{option} {text!r} must be one of {', '.join(allowed)}")
    return text


def labels_alone(labels: Path | None, sessions: Path | None, channels: Path | None) -> None:
    """A table of labels is all there is."""
    if labels is not None and (sessions is not None or channels is not None):
        usage("--labels has the sessions and channels: leave out --sessions and --channels")


def labels_or_speakers(
    labels: Path | None, speakers: Path | None, sessions: Path | None, channels: Path | None
) -> None:
    """Either a table of labels, or lists."""
    if (speakers is None) == (labels is None):
        usage("give either --labels or --speakers (with --sessions)")
    labels_alone(labels, sessions, channels)


def release_memory(least: int = 1 << 22) -> None:
    """Give back memory that Arrow keeps for later, once the lists have been read.

    On Linux, from then on, freed blocks of at least so many bytes go back to the system too; glibc would keep those of
    up to 32 MB, and the sums of a million recordings would take a gigabyte.
    """
    if pyarrow := sys.modules.get("pyarrow"):
        pyarrow.default_memory_pool().release_unused()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            libc = ctypes.CDLL(None)
            libc.mallopt(-3, least)  # M_MMAP_THRESHOLD
            libc.malloc_trim(0)


def let_go(data: Any) -> None:
    """Give back what only the reading of recordings needed. EM has many matrices at once, and frees them."""
    if hasattr(data, "forget"):  # a cluster's labels are not here
        data.forget()
    release_memory(1 << 20)
