"""The tables of a registry in SQLite or PostgreSQL, its transactions, and the errors of the database.

    registry   one row: the model's fingerprint, what is kept, and `version`, which counts the changes
    voices     names and dates; `version` is that of the voice's last change
    sessions   the sums of each session (`duoplda.voices.sums`) as raw little-endian bytes, with a checksum
    embeddings the vectors of the recordings, if they are kept
    removed    the numbers of removed voices, for other programs that still have them in memory
    snapshot   the sums of many voices in one row, from which programs start (`duoplda.voices.snapshots`)

A change begins by counting up `version`, which locks the row (PostgreSQL) or the file (SQLite), so that changes come
one after another and none is lost. A program that has read up to some version continues from there.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc

from duoplda.errors import DuopldaError, printable
from duoplda.io.common import PathLike

REGISTRY_FORMAT = 1
WAIT_SECONDS = 60  # how long a change waits for that of another program

METADATA = sa.MetaData()
REGISTRY = sa.Table(
    "registry",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("format", sa.Integer, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("keep", sa.Text, nullable=False),
    sa.Column("n_kinds", sa.Integer, nullable=False),
    sa.Column("n_speaker_factors", sa.Integer, nullable=False),
    sa.Column("n_session_factors", sa.Integer, nullable=False),
    sa.Column("created", sa.Text, nullable=False),
)
VOICES = sa.Table(
    "voices",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    sa.Column("created", sa.Text, nullable=False),
    sa.Column("changed", sa.Text, nullable=False),
    sa.Column("by", sa.Text),  # the name noted with the last change
    sa.Column("version", sa.BigInteger, nullable=False, index=True),
)
SESSIONS = sa.Table(
    "sessions",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("voice", sa.Integer, sa.ForeignKey("voices.id"), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("n_recordings", sa.Integer, nullable=False),
    sa.Column("added", sa.Text, nullable=False),
    sa.Column("by", sa.Text),
    sa.Column("type", sa.LargeBinary, nullable=False),
    sa.Column("gamma", sa.LargeBinary, nullable=False),
    sa.Column("z", sa.LargeBinary, nullable=False),
    sa.Column("checksum", sa.BigInteger, nullable=False),
    sa.UniqueConstraint("voice", "name"),
)
EMBEDDINGS = sa.Table(
    "embeddings",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("session", sa.Integer, sa.ForeignKey("sessions.id"), nullable=False, index=True),
    sa.Column("n", sa.Integer, nullable=False),
    sa.Column("d", sa.Integer, nullable=False),
    sa.Column("dtype", sa.Text, nullable=False),
    sa.Column("kinds", sa.Text),  # JSON, one for each recording; None: no kinds were given
    sa.Column("vectors", sa.LargeBinary, nullable=False),
    sa.Column("checksum", sa.BigInteger, nullable=False),
)
REMOVED = sa.Table(
    "removed",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("voice", sa.Integer, nullable=False),
    sa.Column("removed", sa.Text, nullable=False),
    sa.Column("by", sa.Text),
    sa.Column("version", sa.BigInteger, nullable=False, index=True),
)
SNAPSHOT = sa.Table(
    "snapshot",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("first", sa.Integer, nullable=False),  # the smallest number of its voices
    sa.Column("last", sa.Integer, nullable=False),
    sa.Column("n", sa.Integer, nullable=False),
    sa.Column("n_types", sa.Integer, nullable=False),
    sa.Column("numbers", sa.LargeBinary, nullable=False),
    sa.Column("types", sa.LargeBinary, nullable=False),
    sa.Column("counts", sa.LargeBinary, nullable=False),
    sa.Column("gamma", sa.LargeBinary, nullable=False),
    sa.Column("checksum", sa.BigInteger, nullable=False),
)


class StoreError(DuopldaError):
    """An error of the database and not of the request: it is locked, full, damaged or out of reach."""


class Store:
    """The database of a registry, with transactions that read and transactions that change."""

    def __init__(self, location: PathLike, new: bool):
        self.url = address(location)
        self.sqlite = self.url.get_backend_name() == "sqlite"
        self.name = self.url.database or "" if self.sqlite else self.url.render_as_string(hide_password=True)
        if self.sqlite and not new and not Path(self.name).is_file():
            raise DuopldaError(f"{self.name}: there is no such registry: create it first")
        with self.translated():
            self._engine = _engine(self.url)
        self._process = os.getpid()

    def close(self) -> None:
        self.engine.dispose()

    def create(self, row: dict[str, Any], fill: Callable[[sa.Connection], None]) -> None:
        """Make all tables in one transaction, with the row of the registry, and fill them."""
        with self.translated(), self.engine.connect() as connection, connection.begin():
            if sa.inspect(connection).has_table("registry"):
                raise DuopldaError(f"{self.name}: there is a registry already: open it")
            METADATA.create_all(connection)
            connection.execute(sa.insert(REGISTRY).values(id=1, format=REGISTRY_FORMAT, version=0, **row))
            fill(connection)

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Read one state of all tables, which stays the same while others change them."""
        with self.translated(), self.engine.connect() as connection:
            if not self.sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def changing(self) -> Iterator[tuple[sa.Connection, sa.Row[Any]]]:
        """Make a change as a whole or not at all; it gets the row of the registry with the new version."""
        with self.translated(), self.engine.connect() as connection, connection.begin():
            counted_up = sa.update(REGISTRY).values(version=REGISTRY.c.version + 1).returning(*REGISTRY.c)
            yield connection, connection.execute(counted_up).one()

    def wipe(self) -> None:
        """Write the tables anew, so that no free space of a file holds data that were removed or renamed."""
        with self.translated():
            if not self.sqlite:
                with self.engine.connect() as connection:
                    autocommit = connection.execution_options(isolation_level="AUTOCOMMIT")
                    for table in METADATA.sorted_tables:
                        autocommit.exec_driver_sql(f"VACUUM (FULL) {table.name}")
                return
            with closing(self.engine.raw_connection()) as connection:  # SQLite allows neither command in a transaction
                driver: Any = connection.driver_connection
                driver.execute("VACUUM").close()
                (busy, *_) = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                raise StoreError(
                    f"{self.name}: the data are removed, but another program still reads old pages of the file: these "
                    "are removed when that program closes it"
                )

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn errors of the database into a `StoreError` with a remedy."""
        try:
            yield
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            cause = " ".join(str(getattr(error, "orig", None) or error).split())[:300]
            raise StoreError(printable(f"{self.name}: {cause}{_remedy(cause)}")) from None

    @property
    def engine(self) -> sa.Engine:
        """The engine that connects. After a fork the child opens its own connections, and leaves the parent's alone."""
        if self._process != os.getpid():
            self._engine.dispose(close=False)
            self._process = os.getpid()
        return self._engine


def address(location: PathLike) -> sa.URL:
    """Return the URL of a registry: a text with :// in it is a URL, any other is the path of a SQLite file."""
    text = os.fspath(location)
    if "://" not in text:
        return sa.URL.create("sqlite", database=text)
    try:
        url = sa.make_url(text)
    except exc.SQLAlchemyError:
        raise DuopldaError("the registry's address is not a URL like postgresql+psycopg://user@host/name") from None
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise DuopldaError(f"a registry is in SQLite or PostgreSQL, not in {url.get_backend_name()!r}")
    return url


def _engine(url: sa.URL) -> sa.Engine:
    try:
        if url.get_backend_name() != "sqlite":
            return sa.create_engine(url, pool_pre_ping=True)
        engine = sa.create_engine(url, connect_args={"timeout": WAIT_SECONDS})
    except ImportError as error:
        raise DuopldaError(f"{error.name} is not installed; install it with: pip install duoplda[postgresql]") from None

    @event.listens_for(engine, "connect")
    def settings(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # SQLAlchemy begins transactions; the driver would guess where they begin
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def _remedy(cause: str) -> str:
    """The remedies for an error, found by words of the database's message."""
    remedies = {
        "is full": "free some space; nothing of this change was written",
        "No space left": "free some space; nothing of this change was written",
        "disk I/O error": "the disk may be full or broken; nothing of this change was written",
        "is locked": f"another program has been changing it for {WAIT_SECONDS} seconds: try again",
        "not a database": "give the file that `duoplda voices` made",
        "malformed": "the file is damaged: restore an older copy of it, or import an export",
        "no such table": "it is a database, but not a registry: give the file that `duoplda voices` made",
        "does not exist": "it is a database, but not a registry, or there is no such database: make one",
        "readonly": "you may read this file, but not change it",
        "unable to open": "give a file in a folder that exists, and that you may read and write",
    }
    return "".join(f": {remedy}" for word, remedy in remedies.items() if word in cause)
