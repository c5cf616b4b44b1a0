"""Files appear whole or not at all: written under another name in the same folder, then renamed."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from duoplda.errors import DuopldaError
from duoplda.io._common import PathLike, bad, system_error


@contextmanager
def atomic_path(path: PathLike, *, force: bool = False) -> Iterator[Path]:
    """A temporary file beside `path` that becomes `path` when the block ends well.

    The block writes to the path it is given. At its end the file is flushed to disk and renamed; on
    any exception, Ctrl-C included, it is removed and what stood under `path` stays as it was.

    Parameters
    ----------
    path : the final name; a symbolic link is followed
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
    try:
        final = Path(os.path.realpath(path))
    except (OSError, ValueError) as e:
        raise bad(path, "", str(e)) from e
    _refuse_existing(path, final, force)
    temporary = final.with_name(f".{final.name[:100]}.{secrets.token_hex(6)}.tmp")
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileNotFoundError as e:
        raise bad(path, "", "its folder does not exist", f"create it first: mkdir -p {final.parent}") from e
    except OSError as e:
        raise system_error(path, e) from e
    try:
        try:
            yield temporary
            _flush(temporary)
            _refuse_existing(path, final, force)
            os.replace(temporary, final)
        except OSError as e:
            raise system_error(path, e) from e
        except DuopldaError as e:
            if str(temporary) not in str(e):
                raise
            raise DuopldaError(str(e).replace(str(temporary), os.fspath(path))) from e  # the name the user knows
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    with suppress(OSError):  # not every file system lets a folder be flushed
        _flush(final.parent)


@contextmanager
def atomic_paths(*paths: PathLike, force: bool = False) -> Iterator[tuple[Path, ...]]:
    """Several files that belong together: all are written before the last one given gets its name first.

    They are renamed one after the other, in reverse order.
    """
    with ExitStack() as stack:
        yield tuple(stack.enter_context(atomic_path(p, force=force)) for p in paths)


def _flush(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _refuse_existing(path: PathLike, final: Path, force: bool) -> None:
    try:
        mode = os.stat(final).st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as e:
        raise (system_error(path, e) if isinstance(e, OSError) else bad(path, "", str(e))) from e
    if not stat.S_ISREG(mode):
        raise bad(path, "", "exists and is not a regular file", "give another name")
    if not force:
        raise bad(path, "", "exists already", "give another name, or allow replacing it (force=True, --force)")
