"""The tables of a registry, in SQLite or PostgreSQL, and what is said where these fail.

    registry   one row: the model's fingerprint, what is kept, and `version`, which counts the changes
    voices     names and dates; `version` is that of the last change
    sessions   of each voice: what `duoplda.voices.sums` sums up, as raw bytes, little end first, with a checksum
    embeddings the recordings themselves, where they are kept
    removed    numbers of voices that are gone, for other programs that have read them
    snapshot   the sums of many voices in a row, to start from (`duoplda.voices.snapshots`)

A change begins by counting up `version`, which locks the row (PostgreSQL) or the file (SQLite): changes come one after
another, and none is lost. Who has read up to some version reads on from there.
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
WAIT_SECONDS = 60  # for another program's change

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
    sa.Column("by", sa.Text),  # who changed it last
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
    sa.Column("kinds", sa.Text),  # JSON, one for each recording; None: they were not told
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
    sa.Column("first", sa.Integer, nullable=False),  # the least number of its voices
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
    """The database failed, and not whoever asked: it is locked, full, damaged or out of reach."""


class Store:
    """The database of a registry: transactions that read, and transactions that change."""

    def __init__(self, location: PathLike, new: bool):
        self.url = address(location)
        self.sqlite = self.url.get_backend_name() == "sqlite"
        self.name = self.url.database or "" if self.sqlite else self.url.render_as_string(hide_password=True)
        if self.sqlite and not new and not Path(self.name).is_file():
            raise DuopldaError(f"{self.name}: there is no such registry: create it first")
        with self.told():
            self._engine = _engine(self.url)
        self._process = os.getpid()

    def close(self) -> None:
        self.engine.dispose()

    def create(self, row: dict[str, Any], fill: Callable[[sa.Connection], None]) -> None:
        """Make the tables, all of them or none, with their one row, and fill them."""
        with self.told(), self.engine.connect() as connection, connection.begin():
            if sa.inspect(connection).has_table("registry"):
                raise DuopldaError(f"{self.name}: there is a registry already: open it")
            METADATA.create_all(connection)
            connection.execute(sa.insert(REGISTRY).values(id=1, format=REGISTRY_FORMAT, version=0, **row))
            fill(connection)

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """One state of all tables, whatever others change meanwhile."""
        with self.told(), self.engine.connect() as connection:
            if not self.sqlite:
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def changing(self) -> Iterator[tuple[sa.Connection, sa.Row[Any]]]:
        """A change, whole or not at all, and the row of the registry with its new version."""
        with self.told(), self.engine.connect() as connection, connection.begin():
            counted_up = sa.update(REGISTRY).values(version=REGISTRY.c.version + 1).returning(*REGISTRY.c)
            yield connection, connection.execute(counted_up).one()

    def wipe(self) -> None:
        """Write the tables anew, so that no free space of a file has what was removed or renamed."""
        with self.told():
            if not self.sqlite:
                with self.engine.connect() as connection:
                    autocommit = connection.execution_options(isolation_level="AUTOCOMMIT")
                    for table in METADATA.sorted_tables:
                        autocommit.exec_driver_sql(f"VACUUM (FULL) {table.name}")
                return
            with closing(self.engine.raw_connection()) as connection:  # SQLite allows neither in a transaction
                driver: Any = connection.driver_connection
                driver.execute("VACUUM").close()
                (busy, *_) = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                raise StoreError(
                    f"{self.name}: it is removed, but another program still reads old pages of the file: they go when "
                    "that program has closed it"
                )

    @contextmanager
    def told(self) -> Iterator[None]:
        """Errors of the database, as ours."""
        try:
            yield
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            cause = " ".join(str(getattr(error, "orig", None) or error).split())[:300]
            raise StoreError(printable(f"{self.name}: {cause}{_remedy(cause)}")) from None

    @property
    def engine(self) -> sa.Engine:
        """What connects; open connections that a process has from its parent, by a fork, are left to that."""
        if self._process != os.getpid():
            self._engine.dispose(close=False)
            self._process = os.getpid()
        return self._engine


def address(location: PathLike) -> sa.URL:
    """The URL of a registry: what has :// in it is one, anything else is the path of a SQLite file."""
    text = os.fspath(location)
    if "://" not in text:
        return sa.URL.create("sqlite", database=text)
    try:
        url = sa.make_url(text)
    except exc.SQLAlchemyError:
        raise DuopldaError("the registry's address is no URL like postgresql+psycopg://user@host/name") from None
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
        connection.isolation_level = None  # transactions begin where SQLAlchemy says so, not where the driver guesses
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "foreign_keys=ON"):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def _remedy(cause: str) -> str:
    """What helps, by words of the database's message."""
    remedies = {
        "is full": "free some space; nothing of this change was written",
        "No space left": "free some space; nothing of this change was written",
        "disk I/O error": "the disk may be full or broken; nothing of this change was written",
        "is locked": f"another program has been changing it for {WAIT_SECONDS} seconds: try again",
        "not a database": "give the file that `duoplda voices` made",
        "malformed": "the file is damaged: take a copy of it from before, or import an export",
        "no such table": "it is a database, but no registry: give the file that `duoplda voices` made",
        "does not exist": "it is a database, but no registry, or there is no such database: make one",
        "readonly": "you may read this file, but not change it",
        "unable to open": "give a file in a folder that is there, and that you may read and write",
    }
    return "".join(f": {remedy}" for word, remedy in remedies.items() if word in cause)
