"""The log of requests on standard error, and the audit log. Neither contains vectors.

Each line is a JSON object. The log of requests has no names of voices. The audit log has them, as it says who did what
to which voice.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from duoplda.errors import printable
from duoplda.io.common import PathLike, system_error

Fields = dict[str, str | int | float | bool | None]


class JsonLines(logging.Formatter):
    """Formats records as JSON objects: time, level, event, and the fields of the record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, also for a message of several lines."""
        fields: Fields = {"time": _now(), "level": record.levelname.lower(), "event": record.getMessage()}
        fields |= getattr(record, "fields", {})
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return _line(fields)


def open_log() -> logging.Logger:
    """Open the log of this service and of the server below it, on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("duoplda.service", "uvicorn", "py.warnings"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO if name == "duoplda.service" else logging.WARNING)
        logger.propagate = False
    logging.captureWarnings(True)
    return logging.getLogger("duoplda.service")


class Audit:
    """The audit log: who did what to which voice, and when. Its lines go to a file that only grows, or to the log."""

    def __init__(self, path: PathLike | None, log: logging.Logger):
        self.path = path
        self.log = log
        self.lock = threading.Lock()
        self.file: int | None = None
        if path is not None:
            try:
                self.file = os.open(Path(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise system_error(path, error) from error

    def write(self, fields: Fields) -> None:
        """Write one whole line; an OSError says that the disk refuses it."""
        if self.file is None:
            self.log.info("audit", extra={"fields": fields})
            return
        line = (_line({"time": _now(), **fields}) + "\n").encode()
        with self.lock:
            written = os.write(self.file, line)
            if written < len(line):
                raise OSError(f"the audit log {self.path} took {written} of {len(line)} bytes")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self.lock:
            if self.file is not None:
                os.close(self.file)
            self.file = None


def _line(fields: Fields) -> str:
    """A JSON object on one line, without characters that could control a terminal."""
    return json.dumps({name: printable(v) if isinstance(v, str) else v for name, v in fields.items()})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
