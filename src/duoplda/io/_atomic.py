"""Atomic writing: a file is written under another name in the same folder, and renamed when it is complete."""

import os
import secrets
import signal
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from duoplda.errors import DuopldaError
from duoplda.io.common import PathLike, bad, system_error


@contextmanager
def atomic_path(path: PathLike, *, force: bool = False) -> Iterator[Path]:
    """Give the block a temporary file beside `path`, which becomes `path` if the block ends without an exception.

    At the end of the block the file is flushed to disk and renamed. On any exception it is removed, and an existing
    file `path` stays as it was. The same happens on Ctrl-C and, in the main thread, on SIGTERM, after which the process
    exits with status 143.

    Parameters
    ----------
    path : the final name; a symbolic link is followed, even to a file that does not exist yet
    force : replace an existing file; otherwise it is an error

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_path(folder + "/a.txt") as temporary:
    ...         _ = temporary.write_text("whole")
    ...     Path(folder, "a.txt").read_text()
    'whole'
    """
    final, temporary = _target(path, force)
    with _ending_cleanly():
        try:
            _create(path, temporary)
            yield temporary
            _flush(temporary)
            _target(path, force)  # checked again, as another process may have made the file meanwhile
            os.replace(temporary, final)
        except OSError as e:
            raise system_error(path, e) from e
        except DuopldaError as e:
            if str(temporary) not in str(e):
                raise
            raise DuopldaError(str(e).replace(str(temporary), os.fspath(path))) from e  # the name the user knows
        finally:
            with suppress(OSError):  # after a success there is no temporary file: it has been renamed
                os.unlink(temporary)
    with suppress(OSError):  # some file systems cannot flush a folder
        _flush(final.parent)


@contextmanager
def atomic_paths(*paths: PathLike, force: bool = False) -> Iterator[tuple[Path, ...]]:
    """Give the block temporary files for several files that belong together.

    They are renamed after all of them have been written, the last one first, so that a reader who finds the first also
    finds the others. The operating system does not say which file it could not write; the error names all of them,
    unless the block says by `writing` which one it is writing.

    Example
    -------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_paths(folder + "/list", folder + "/data") as temporaries:
    ...         _ = [temporary.write_text("whole") for temporary in temporaries]
    ...     sorted(path.name for path in Path(folder).iterdir())
    ['data', 'list']
    """
    with ExitStack() as stack:
        temporaries = tuple(stack.enter_context(atomic_path(p, force=force)) for p in paths)
        with writing(" or ".join(str(path) for path in paths)):
            yield temporaries


@contextmanager
def writing(path: PathLike) -> Iterator[None]:
    """Turn an OSError of the block, such as that of a full disk, into a DuopldaError that names this file."""
    try:
        yield
    except OSError as e:
        raise system_error(path, e) from e


def check_output(path: PathLike | None, force: bool = False, inputs: Iterable[PathLike | None] = ()) -> None:
    """Raise an error if a result could not be written to `path`; call it before work that takes long.

    The folder of `path`, or the folder that a link leads to, must exist and be writable. An existing file is an error
    unless `force` is given, and always where it is one of `inputs`, under whatever name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     check_output(folder + "/new.txt")  # silent: it can be written
    ...     try:
    ...         check_output(folder + "/nowhere/new.txt")
    ...     except DuopldaError as error:
    ...         print("folder" in str(error))
    True
    """
    if path is None:
        return
    _, temporary = _target(path, force, inputs)
    _create(path, temporary)
    os.unlink(temporary)


@contextmanager
def _ending_cleanly() -> Iterator[None]:
    """Let SIGTERM raise SystemExit(143) inside the block, so that temporary files are removed.

    143 is 128 + 15, with which shells report a process that SIGTERM has ended. A handler that the program has set is
    called instead.
    """
    previous = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or previous in (None, signal.SIG_IGN):
        yield
        return

    def end(number: int, frame: object) -> None:
        if callable(previous):
            previous(number, frame)  # type: ignore[arg-type]
        else:
            raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is end:
            signal.signal(signal.SIGTERM, previous)


def _target(path: PathLike, force: bool, inputs: Iterable[PathLike | None] = ()) -> tuple[Path, Path]:
    """Return the file that `path` leads to, after checking that it may be written, and a temporary name beside it."""
    try:
        final = Path(os.path.realpath(path))
        mode = os.stat(final).st_mode
    except FileNotFoundError:
        mode = None
    except (OSError, ValueError) as e:
        raise system_error(path, e) from e
    if final.name.lower().endswith(".gz"):
        raise bad(path, "", "ends in .gz, and nothing is packed here", "leave .gz out, and pack the file afterwards")
    # File systems allow names of up to 255 bytes: 50 characters take at most 200, and 18 are added.
    temporary = final.parent / f".{final.name[:50]}.{secrets.token_hex(6)}.tmp"
    if mode is None:
        return final, temporary
    for other in inputs:
        if other is not None and os.path.exists(other) and os.path.samefile(final, other):
            raise bad(path, "", f"is also read by this command, as {os.fspath(other)}", "give another name")
    if stat.S_ISDIR(mode):
        raise bad(path, "", "is a folder", "give the name of a file")
    if not stat.S_ISREG(mode):
        raise bad(path, "", "exists and is not a regular file", "give another name")
    if not force:
        raise bad(path, "", "exists already", "give another name, or allow replacing it (force=True, --force)")
    return final, temporary


def _create(path: PathLike, temporary: Path) -> None:
    """Create the temporary file of `path`, empty."""
    try:
        temporary.touch(0o666, exist_ok=False)
    except FileNotFoundError as e:
        raise bad(path, "", "its folder does not exist", f"create it first: mkdir -p {temporary.parent}") from e
    except OSError as e:
        raise system_error(path, e) from e


def _flush(path: Path) -> None:
    """Wait until a file or folder is on the disk, so that a loss of power leaves no empty file under the final name."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
